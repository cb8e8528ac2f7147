use std::collections::HashMap;

use ledge_base::memory_budget::MemoryAccount;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::backend::{ModelPort, ModelSignature};
use crate::pipeline::content::rows::ROWS_MAX;

fn section(text: &str) -> TableConfig {
    toml::from_str(text).unwrap()
}

fn port(name: &str, datatype: DataType, shape: &[i64]) -> ModelPort {
    ModelPort { name: name.into(), datatype, shape: shape.into() }
}

fn bound(text: &str, inputs: Vec<ModelPort>, outputs: Vec<ModelPort>) -> Result<Arc<dyn Pipeline>, String> {
    let section = section(text);
    assert_eq!(section.mistakes(), []);
    let labels = HashMap::from([("chances".to_owned(), ["no".to_owned(), "yes".to_owned()].into())]);
    section.bind(ModelFacts {
        signature: &ModelSignature { inputs, outputs },
        labels: &labels,
        quantization: &HashMap::new(),
        files: &HashMap::new(),
        parts: &HashMap::new(),
        part_metadata: &HashMap::new(),
        fields: &[],
    })
}

fn prepare(pipeline: &dyn Pipeline, content: &str) -> Result<Vec<Tensor>, String> {
    let mut hold = MemoryAccount::unlimited().hold();
    let rows = RowsText::new(content.to_owned().into()).map_err(|error| error.to_string())?;
    let prepared = pipeline.prepare(&CallContent::Rows(rows), DecodeLimits::default(), &mut hold);
    prepared.map(|prepared| prepared.inputs).map_err(|error| error.to_string())
}

const MATRIX: &str =
    "columns = [{ name = 'a' }, { name = 'b', missing = 'nan' }, { name = 'c', type = 'boolean', default = true },
    { name = 'd', type = 'category', categories = ['low', 'high'] }]";

fn matrix() -> Arc<dyn Pipeline> {
    bound(MATRIX, vec![port("X", DataType::Fp32, &[-1, 4])], vec![port("y", DataType::Fp32, &[-1, 1])]).unwrap()
}

#[test]
fn columns_become_one_matrix_by_name_in_the_order_of_the_declaration() {
    let rows = json!([{"d": "high", "a": 1.5, "b": 2, "c": false}, {"a": "7", "d": "low"}]).to_string();
    let inputs = prepare(matrix().as_ref(), &rows).unwrap();
    assert_eq!(inputs[0].shape(), [2, 4]);
    let numbers = inputs[0].elements::<f32>().unwrap().into_owned();
    assert_eq!(numbers[..5], [1.5, 2.0, 0.0, 1.0, 7.0]);
    assert!(numbers[5].is_nan());
    assert_eq!(numbers[6..], [1.0, 0.0]);
    let one = prepare(matrix().as_ref(), r#"{"a": 1, "d": "low"}"#).unwrap();
    assert_eq!(one[0].shape(), [1, 4]);
}

#[test]
fn a_value_that_is_not_of_its_column_names_row_and_column() {
    let reason = |row: &str| prepare(matrix().as_ref(), &format!(r#"[{{"a": 1, "d": "low"}}, {row}]"#)).unwrap_err();
    assert_eq!(reason(r#"{"d": "low"}"#), "row 1: column \"a\" is missing");
    assert_eq!(reason(r#"{"a": null, "d": "low"}"#), "row 1: column \"a\" is missing");
    assert_eq!(reason(r#"{"a": "warm", "d": "low"}"#), "row 1: column \"a\" is \"warm\", expected a number");
    assert_eq!(reason(r#"{"a": 1e300, "d": "low"}"#), format!("row 1: column \"a\" is {}, beyond FP32", 1e300));
    assert_eq!(reason(r#"{"a": 1, "d": "mid"}"#), "row 1: column \"d\" is \"mid\", which is not one of its categories");
    assert_eq!(reason(r#"{"a": 1, "d": 1}"#), "row 1: column \"d\" is 1, expected one of its categories");
    assert!(reason(r#"{"a": 1, "d": "low", "e": 2}"#).starts_with("row 1: the model has no column \"e\""));
    assert!(reason(r#"{"a": 1, "a": 2, "d": "low"}"#).starts_with("row 1: column \"a\" is there twice"));
    assert!(reason("3").starts_with("row 1: "));
    assert!(reason(r#"{"a": [1]}"#).starts_with("row 1: "));
    assert!(prepare(matrix().as_ref(), "[]").is_err());
}

#[test]
fn columns_that_a_model_lacks_are_ignored_only_when_it_says_so() {
    let text = "extra_columns = 'ignore'\ncolumns = [{ name = 'a' }]";
    let pipeline = bound(text, vec![port("X", DataType::Fp64, &[-1])], vec![port("y", DataType::Fp32, &[-1])]).unwrap();
    let inputs = prepare(pipeline.as_ref(), r#"[{"id": {"deep": [1]}, "a": 2}]"#).unwrap();
    assert_eq!(inputs, [Tensor::from_vec(vec![1], vec![2.0_f64]).unwrap()]);
}

#[test]
fn a_model_with_one_input_a_column_gets_each_by_its_name() {
    let text = "columns = [{ name = 'kind', type = 'text', default = '' }, { name = 'hours', type = 'integer' }]";
    let inputs = vec![port("hours", DataType::Int64, &[-1, 1]), port("kind", DataType::Bytes, &[-1, 1])];
    let pipeline = bound(text, inputs, vec![port("y", DataType::Fp32, &[-1, 1])]).unwrap();
    let inputs = prepare(pipeline.as_ref(), r#"[{"kind": "saw", "hours": 7}, {"hours": 8.0}]"#).unwrap();
    let expected =
        [Tensor::from_vec(vec![2, 1], vec![7_i64, 8]).unwrap(), Tensor::from_strings(vec![2, 1], ["saw", ""]).unwrap()];
    assert_eq!(inputs, expected);
    let reason = |hours: &str| prepare(pipeline.as_ref(), &format!(r#"{{"hours": {hours}}}"#)).unwrap_err();
    assert_eq!(reason("7.5"), "row 0: column \"hours\" is 7.5, expected an integer");
    assert_eq!(reason("9007199254740993"), "row 0: column \"hours\" is 9007199254740993, beyond 2^53");
    assert_eq!(reason("\"9007199254740993\""), "row 0: column \"hours\" is \"9007199254740993\", beyond 2^53");
}

#[test]
fn columns_that_do_not_fit_the_model_refuse_it() {
    let refused =
        |text: &str, inputs: Vec<ModelPort>| bound(text, inputs, vec![port("y", DataType::Fp32, &[-1])]).unwrap_err();
    let one = "columns = [{ name = 'a' }]";
    let floats = "numbers are for an input of floats";
    let two = vec![port("a", DataType::Fp32, &[-1, 1]), port("b", DataType::Fp32, &[-1, 1])];
    let nan = "columns = [{ name = 'a', type = 'integer', missing = 'nan' }]";
    for (text, inputs, reason) in [
        (one, vec![port("X", DataType::Fp32, &[-1, 2])], "has 1 columns for it"),
        (one, vec![port("X", DataType::Int64, &[-1, 1])], floats),
        (one, vec![port("X", DataType::Bytes, &[-1, 1])], floats),
        (one, two.clone(), "no column has the name of input \"b\""),
        ("columns = [{ name = 'x' }]", two, "column \"x\" has the name of no input"),
        (nan, vec![port("X", DataType::Int64, &[-1, 1])], "INT64 has no NaN"),
    ] {
        let refused = refused(text, inputs);
        assert!(refused.contains(reason), "{reason}: {refused}");
    }
}

#[test]
fn mistakes_of_a_section_are_found_all_at_once() {
    let found = section(
        "classes = ['x', 'x']
         columns = [{ name = 'a' }, { name = 'a' }, { name = 'b', type = 'category' }, { name = 'c', default = 'warm' },
             { name = 'd', missing = 'nan', default = 1 }, { name = 'e', categories = ['x'] }]",
    );
    let keys: Vec<_> = found.mistakes().into_iter().map(|mistake| mistake.key).collect();
    assert_eq!(keys, ["columns[1]", "columns[2]", "columns[3]", "columns[4]", "columns[5]", "classes"]);
    assert_eq!(section("columns = []").mistakes().len(), 1);
}

fn answer(pipeline: &dyn Pipeline, results: &[&Tensor]) -> String {
    pipeline.answer(results).unwrap().get().to_owned()
}

#[test]
fn a_classifier_answers_with_the_class_and_the_probabilities_in_the_order_of_the_model() {
    let inputs = || vec![port("X", DataType::Fp32, &[-1, 1])];
    let outputs = |label| vec![port("label", label, &[-1]), port("chances", DataType::Fp32, &[-1, 2])];
    let pipeline = bound("columns = [{ name = 'a' }]", inputs(), outputs(DataType::Bytes)).unwrap();
    let (label, chances) =
        (Tensor::from_strings(vec![1], ["yes"]).unwrap(), Tensor::from_vec(vec![1, 2], vec![0.1_f32, 0.9]).unwrap());
    let expected = r#"[{"class":"yes","probabilities":{"no":0.1,"yes":0.9}}]"#;
    assert_eq!(answer(pipeline.as_ref(), &[&label, &chances]), expected);
    let golden = |label, min_score| GoldenExpectation {
        label: Some(label),
        min_score: Some(min_score),
        detections: None,
        words: None,
    };
    assert_eq!(pipeline.judge(&[&label, &chances], golden("yes", 0.5)), Ok(()));
    assert!(pipeline.judge(&[&label, &chances], golden("no", 0.5)).is_err());
    assert!(pipeline.judge(&[&label, &chances], golden("yes", 0.95)).is_err());

    let named = "classes = ['ill', 'well']\ncolumns = [{ name = 'a' }]";
    let pipeline = bound(named, inputs(), outputs(DataType::Int64)).unwrap();
    let number = Tensor::from_vec(vec![1], vec![1_i64]).unwrap();
    let expected = r#"[{"class":"well","probabilities":{"ill":0.1,"well":0.9}}]"#;
    assert_eq!(answer(pipeline.as_ref(), &[&number, &chances]), expected);

    let alone = "probabilities = 'chances'\ncolumns = [{ name = 'a' }]";
    let pipeline = bound(alone, inputs(), outputs(DataType::Int64)).unwrap();
    assert_eq!(answer(pipeline.as_ref(), &[&chances]), r#"[{"class":"yes","probabilities":{"no":0.1,"yes":0.9}}]"#);
    let three = Tensor::from_vec(vec![1, 3], vec![0.1_f32, 0.2, 0.7]).unwrap();
    assert!(matches!(pipeline.answer(&[&three]), Err(PostprocessError::Outputs(_))));
}

#[test]
fn a_regressor_answers_with_numbers() {
    let numbers = Tensor::from_vec(vec![2, 1], vec![21.4_f32, -3.0]).unwrap();
    assert_eq!(answer(matrix().as_ref(), &[&numbers]), r#"[{"values":[21.4]},{"values":[-3.0]}]"#);
    let nan = Tensor::from_vec(vec![1, 1], vec![f32::NAN]).unwrap();
    assert!(matches!(matrix().answer(&[&nan]), Err(PostprocessError::Values(_))));
}

#[test]
fn rows_of_one_call_are_bounded() {
    let rows = |count: usize| format!("[{}]", vec![r#"{"a":1,"d":"low"}"#; count].join(","));
    assert!(prepare(matrix().as_ref(), &rows(ROWS_MAX)).is_ok());
    assert!(prepare(matrix().as_ref(), &rows(ROWS_MAX + 1)).unwrap_err().contains(&ROWS_MAX.to_string()));
}

#[test]
fn every_pipeline_answers_its_own_sample() {
    let sample = matrix().sample();
    assert!(matrix().prepare(&sample, DecodeLimits::default(), &mut MemoryAccount::unlimited().hold()).is_ok());
}

#[test]
fn a_proposed_section_fits_the_model_that_it_was_read_from() {
    let propose = |inputs: Vec<ModelPort>, outputs: Vec<ModelPort>| {
        let signature = ModelSignature { inputs, outputs };
        let labels = HashMap::from([("chances".to_owned(), ["no".to_owned(), "yes\n".to_owned()].into())]);
        let proposed = proposal::propose(&signature, &labels)?;
        let document: toml::Table = toml::from_str(&proposed).unwrap();
        let section: TableConfig = document["pipeline"]["table"].clone().try_into().unwrap();
        assert_eq!(section.mistakes(), []);
        section
            .bind(ModelFacts {
                signature: &signature,
                labels: &labels,
                quantization: &HashMap::new(),
                files: &HashMap::new(),
                parts: &HashMap::new(),
                part_metadata: &HashMap::new(),
                fields: &[],
            })
            .unwrap();
        Some(section)
    };
    let classifier = || vec![port("label", DataType::Bytes, &[-1]), port("chances", DataType::Fp32, &[-1, 2])];
    let matrix = propose(vec![port("X", DataType::Fp32, &[-1, 3])], classifier()).unwrap();
    assert_eq!(
        matrix.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>(),
        ["column_0", "column_1", "column_2"]
    );
    let inputs = vec![
        port("od280/\"od\" 315", DataType::Fp32, &[-1, 1]),
        port("hours", DataType::Int64, &[-1, 1]),
        port("machine", DataType::Bytes, &[-1, 1]),
    ];
    let columns = propose(inputs, vec![port("variable", DataType::Fp32, &[-1, 1])]).unwrap();
    assert_eq!(columns.columns[0].name, "od280/\"od\" 315");
    assert_eq!(columns.columns[2].sample(), json!(""));

    let pictures = vec![port("X", DataType::Fp32, &[-1, 3, 224, 224])];
    assert!(propose(pictures, classifier()).is_none());
    assert!(propose(vec![port("X", DataType::Fp32, &[-1, -1])], classifier()).is_none());
}

proptest! {
    /// Against a reference that looks each cell up by its name.
    #[test]
    fn the_matrix_has_each_number_in_its_row_and_column(
        numbers in prop::collection::vec(prop::collection::vec(prop::option::of(-1e6_f64..1e6), 5), 1..20),
        order in Just((0..5_usize).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let columns = (0..5).map(|place| format!("{{ name = 'c{place}', default = 0.25 }}")).collect::<Vec<_>>().join(",");
        let inputs = vec![port("X", DataType::Fp64, &[-1, 5])];
        let pipeline = bound(&format!("columns = [{columns}]"), inputs, vec![port("y", DataType::Fp32, &[-1])]).unwrap();
        let row = |row: &Vec<Option<f64>>| -> Value {
            order.iter().filter_map(|&place| Some((format!("c{place}"), row[place]?.into()))).collect::<serde_json::Map<_, _>>().into()
        };
        let text = Value::from(numbers.iter().map(row).collect::<Vec<_>>()).to_string();
        let expected: Vec<f64> = numbers.iter().flatten().map(|number| number.unwrap_or(0.25)).collect();
        let made = prepare(pipeline.as_ref(), &text).unwrap();
        prop_assert_eq!(made[0].elements::<f64>().unwrap().into_owned(), expected);
    }

    #[test]
    fn any_bytes_are_rows_or_an_error(text in "[\\[\\]{}\",:a-b0-9nul ]{0,60}") {
        cell::fuzz_rows(text.as_bytes());
    }
}
