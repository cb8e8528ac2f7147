//! Exports of table models with a thousand rows each, and the predictions of the library that trained them: the folders
//! that `tests/models/table_models.py` writes.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::daemon::TestRoot;
use crate::table_rows::{Column, rows};

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

/// The exports in the repository.
pub fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tables")
}

pub fn with_model(root: TestRoot, name: &str) -> TestRoot {
    with_model_of(root, &committed(), name)
}

fn with_model_of(root: TestRoot, folder: &Path, name: &str) -> TestRoot {
    let file = |root: TestRoot, path: &str| {
        root.file(&format!("{name}/{path}"), std::fs::read(folder.join(name).join(path)).unwrap())
    };
    ["1/model.onnx", "model.toml", "golden/rows.json"].into_iter().fold(root, file)
}

/// The rows of an export, and what its library predicts for them.
pub struct Golden {
    columns: Vec<Column>,
    rows: Vec<Vec<Value>>,
    /// The class or the number, and the numbers behind it.
    predicted: Vec<(String, Vec<f64>)>,
    tolerance: f64,
}

impl Golden {
    pub fn of(folder: &Path, model: &str) -> Self {
        let read = |name: &str| std::fs::read_to_string(folder.join(model).join(name)).unwrap();
        let columns: Vec<Column> = serde_json::from_str(&read("columns.json")).unwrap();
        let line = |line: &str| {
            let (first, scores) = line.split_once(' ').unwrap_or((line, ""));
            (first.to_owned(), scores.split_whitespace().map(|score| score.parse().unwrap()).collect())
        };
        // In 32 bits a distance is the root of a difference of large squares.
        let tolerance = if model == "iris_clusters" { 2e-5 } else { 2e-6 };
        Self { rows: rows(&columns), columns, predicted: read("predicted.txt").lines().map(line).collect(), tolerance }
    }

    /// A missing value is null, or is not there in every other row.
    pub fn json(&self) -> Value {
        let object = |(place, row): (usize, &Vec<Value>)| {
            let cells = self.columns.iter().zip(row).filter(|(_, cell)| place % 2 == 0 || !cell.is_null());
            cells.map(|(column, cell)| (column.name.clone(), cell.clone())).collect::<Value>()
        };
        self.rows.iter().enumerate().map(object).collect()
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

    /// The same for an answer in CSV, behind its header.
    pub fn csv_answers(csv: &[u8]) -> (String, Vec<(String, Vec<f64>)>) {
        let mut lines = std::str::from_utf8(csv).unwrap().lines();
        let header = lines.next().unwrap().to_owned();
        let answer = |line: &str| {
            let mut cells = line.split(',');
            (cells.next().unwrap().to_owned(), cells.map(|cell| cell.parse().unwrap()).collect())
        };
        (header, lines.map(answer).collect())
    }

    pub fn csv(&self) -> String {
        let cell = |cell: &Value| match cell {
            Value::Null => String::new(),
            Value::String(text) if text.contains(['"', ',']) => format!("\"{}\"", text.replace('"', "\"\"")),
            Value::String(text) => text.clone(),
            number => number.to_string(),
        };
        let line = |row: &Vec<Value>| row.iter().map(cell).collect::<Vec<_>>().join(",");
        let names: Vec<_> = self.columns.iter().map(|column| column.name.as_str()).collect();
        std::iter::once(names.join(",")).chain(self.rows.iter().map(line)).collect::<Vec<_>>().join("\n")
    }

    /// Compares answers, each a class or a number, and the numbers behind it in the order of the model. Returns the
    /// largest difference, as a share of the number where that is more than 1.
    #[track_caller]
    pub fn compare(&self, model: &str, answers: &[(String, Vec<f64>)]) -> f64 {
        assert_eq!((answers.len(), self.predicted.len()), (self.rows.len(), self.rows.len()), "{model}");
        let mut largest: f64 = 0.0;
        let mut near = |one: f64, other: f64| {
            let apart = (one - other).abs() / other.abs().max(1.0);
            largest = largest.max(apart);
            apart <= self.tolerance
        };
        for (row, ((answer, scores), (expected, expected_scores))) in answers.iter().zip(&self.predicted).enumerate() {
            let is_same = match expected.parse().ok().filter(|_| expected_scores.is_empty()) {
                Some(number) => near(answer.parse().unwrap(), number),
                None => answer == expected,
            };
            assert!(is_same, "{model} row {row}: {answer} is not {expected}");
            assert_eq!(scores.len(), expected_scores.len(), "{model}");
            let differ = scores.iter().zip(expected_scores).find(|(one, other)| !near(**one, **other));
            assert_eq!(differ, None, "{model} row {row}");
        }
        largest
    }
}

/// The section that `ledge models check` proposes for each export, and where rows lack values, what becomes of them.
pub fn exports(root: TestRoot, folder: &Path) -> TestRoot {
    let root = MODELS.iter().fold(root, |root, name| with_model_of(root, folder, name));
    let output = root.command(&["models", "check", "--json"]).output().unwrap();
    let checked: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let proposal = |model: &str| {
        let row = checked.iter().find(|row| row["runtime"] == "onnxruntime" && row["model"] == model).unwrap();
        row["table"].as_str().unwrap_or_else(|| panic!("{row}")).to_owned()
    };
    MODELS.iter().fold(root, |root, model| {
        let missing = Golden::of(folder, model).columns.into_iter().filter(|column| column.missing);
        let table = missing.fold(proposal(model), |table, column| {
            let proposed = format!("{{ name = \"{}\", type = \"number\" }}", column.name);
            assert!(table.contains(&proposed), "{table}");
            table.replace(&proposed, &proposed.replace(" }", ", missing = \"nan\" }"))
        });
        let config = std::fs::read_to_string(folder.join(model).join("model.toml")).unwrap();
        root.file(&format!("{model}/model.toml"), format!("{table}\n{config}"))
    })
}
