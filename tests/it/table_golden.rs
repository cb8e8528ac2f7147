//! Exports of table models with golden rows, which `tests/models/table_models.py` wrote: what the library that trained each
//! predicts for them.

use serde_json::Value;

use crate::daemon::{TestRoot, data};

pub const MODELS: [&str; 12] = [
    "cancer_lightgbm",
    "cancer_xgboost",
    "diabetes_boosting",
    "diabetes_lightgbm",
    "diabetes_linear",
    "diabetes_xgboost",
    "iris_clusters",
    "iris_forest",
    "iris_lightgbm",
    "iris_xgboost",
    "machine_condition",
    "wine_logistic",
];

pub fn with_model(root: TestRoot, name: &str) -> TestRoot {
    let file =
        |root: TestRoot, path: &str| root.file(&format!("{name}/{path}"), data(&format!("tables/{name}/{path}")));
    ["1/model.onnx", "model.toml", "golden/rows.json"].into_iter().fold(root, file)
}

/// Golden rows of an export as the rows of a call, and what its library predicts for them.
pub struct Golden {
    names: Vec<String>,
    rows: Vec<Vec<Value>>,
    /// The class or the number, and the numbers behind it.
    predicted: Vec<(Value, Vec<f64>)>,
}

/// Many rows, so that a call is several runs.
const REPEATED: usize = 105;

impl Golden {
    pub fn of(model: &str) -> Self {
        let file: Value = serde_json::from_slice(&data(&format!("tables/{model}/golden/rows.json"))).unwrap();
        let tensor = |tensor: &Value| -> (String, Vec<Vec<Value>>) {
            let elements = tensor["data"].as_array().unwrap();
            let width = elements.len() / usize::try_from(tensor["shape"][0].as_u64().unwrap()).unwrap();
            (tensor["name"].as_str().unwrap().to_owned(), elements.chunks(width).map(<[Value]>::to_vec).collect())
        };
        let inputs: Vec<_> = file["inputs"].as_array().unwrap().iter().map(tensor).collect();
        let outputs: Vec<_> = file["outputs"].as_array().unwrap().iter().map(tensor).collect();
        let names = match inputs.as_slice() {
            [(_, rows)] => (0..rows[0].len()).map(|place| format!("column_{place}")).collect(),
            columns => columns.iter().map(|(name, _)| name.clone()).collect(),
        };
        let count = inputs[0].1.len();
        let row = |row: usize| inputs.iter().flat_map(|(_, rows)| rows[row].clone()).collect();
        let predicted = |row: usize| {
            let scores =
                outputs.get(1).map(|(_, rows)| rows[row].iter().map(|score| score.as_f64().unwrap()).collect());
            (outputs[0].1[row][0].clone(), scores.unwrap_or_default())
        };
        let places = || (0..count * REPEATED).map(|place| place % count);
        Self { names, rows: places().map(row).collect(), predicted: places().map(predicted).collect() }
    }

    pub fn json(&self) -> Value {
        let object = |row: &Vec<Value>| self.names.iter().cloned().zip(row.iter().cloned()).collect::<Value>();
        self.rows.iter().map(object).collect()
    }

    /// The answers of a pipeline in JSON, for [`Self::compare`]. The names of the classes are in their order.
    pub fn answers(rows: &Value) -> Vec<(String, Vec<f64>)> {
        let answer = |row: &Value| match row["class"].as_str() {
            Some(class) => {
                let scores = row["probabilities"].as_object().into_iter().flat_map(serde_json::Map::values);
                (class.to_owned(), scores.map(|score| score.as_f64().unwrap()).collect())
            }
            None => (row["values"][0].to_string(), Vec::new()),
        };
        rows.as_array().unwrap_or_else(|| panic!("no rows: {rows}")).iter().map(answer).collect()
    }

    pub fn csv(&self) -> String {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let line = |row: &Vec<Value>| row.iter().map(text).collect::<Vec<_>>().join(",");
        std::iter::once(self.names.join(",")).chain(self.rows.iter().map(line)).collect::<Vec<_>>().join("\n")
    }

    /// Compares answers, each a class or a number, and the numbers behind it in the order of the model.
    #[track_caller]
    pub fn compare(&self, model: &str, answers: &[(String, Vec<f64>)]) {
        assert_eq!(answers.len(), self.predicted.len(), "{model}");
        let near = |one: f64, other: f64| (one - other).abs() <= 0.002 * other.abs().max(1.0);
        for (row, ((answer, scores), (expected, expected_scores))) in answers.iter().zip(&self.predicted).enumerate() {
            let is_same = match expected.as_f64().filter(|_| expected_scores.is_empty()) {
                Some(number) => near(answer.parse().unwrap(), number),
                None => expected.as_str().map_or_else(|| expected.to_string(), str::to_owned) == *answer,
            };
            assert!(is_same, "{model} row {row}: {answer} is not {expected}");
            assert_eq!(scores.len(), expected_scores.len(), "{model}");
            let differ = scores.iter().zip(expected_scores).find(|(one, other)| !near(**one, **other));
            assert_eq!(differ, None, "{model} row {row}");
        }
    }
}

/// The section that `ledge models check` proposes for each export, taken as it is.
pub fn exports(root: TestRoot) -> TestRoot {
    let root = MODELS.iter().fold(root, |root, name| with_model(root, name));
    let output = root.command(&["models", "check", "--json"]).output().unwrap();
    let checked: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let checked = checked
        .iter()
        .filter(|row| row["runtime"] == "onnxruntime" && MODELS.iter().any(|model| row["model"] == **model));
    checked.fold(root, |root, row| {
        let model = row["model"].as_str().unwrap();
        root.file(&format!("{model}/model.toml"), row["table"].as_str().unwrap_or_else(|| panic!("{row}")))
    })
}
