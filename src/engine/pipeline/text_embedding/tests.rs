use std::collections::HashMap;

use bytes::Bytes;
use ledge_base::memory_budget::MemoryAccount;
use proptest::prelude::*;

use super::*;
use crate::backend::ModelSignature;

/// Words by their place in the vocabulary, between `[CLS]` and `[SEP]`.
const TOKENIZER: &str = r#"{"version":"1.0","truncation":{"max_length":3,"strategy":"LongestFirst","stride":0},
    "padding":{"strategy":{"Fixed":9},"direction":"Right","pad_to_multiple_of":null,"pad_id":0,"pad_type_id":0,
    "pad_token":"[PAD]"},"added_tokens":[],"normalizer":{"type":"Lowercase"},"pre_tokenizer":{"type":"Whitespace"},
    "post_processor":{"type":"BertProcessing","sep":["[SEP]",3],"cls":["[CLS]",2]},"decoder":null,
    "model":{"type":"WordLevel","vocab":{"[UNK]":1,"[CLS]":2,"[SEP]":3,"red":4,"green":5,"[PAD]":7},
    "unk_token":"[UNK]"}}"#;

fn port(name: &str, datatype: DataType, shape: &[i64]) -> ModelPort {
    ModelPort { name: name.to_owned(), datatype, shape: shape.to_vec() }
}

fn inputs(names: &[&str], shape: &[i64]) -> Vec<ModelPort> {
    names.iter().map(|name| port(name, DataType::Int64, shape)).collect()
}

fn bind(section: &str, inputs: Vec<ModelPort>, output: &[i64], file: &str) -> Result<Arc<dyn Pipeline>, String> {
    let section: TextEmbedding = toml::from_str(section).unwrap();
    let signature = ModelSignature { inputs, outputs: vec![port("vectors", DataType::Fp32, output)] };
    let files = HashMap::from([("tokenizer.json".to_owned(), Bytes::copy_from_slice(file.as_bytes()))]);
    section.bind(ModelFacts {
        signature: &signature,
        labels: &[].into(),
        quantization: &[].into(),
        files: &files,
        parts: &[].into(),
        part_metadata: &[].into(),
        fields: &[],
    })
}

const ALL: &[&str] = &["input_ids", "attention_mask", "token_type_ids"];

fn embedder(section: &str) -> Arc<dyn Pipeline> {
    let sides: &[i64] = if section.contains("none") { &[-1, 2] } else { &[-1, -1, 2] };
    bind(section, inputs(ALL, &[-1, -1]), sides, TOKENIZER).unwrap()
}

fn texts(texts: &[&str]) -> CallContent {
    CallContent::Texts(Texts::new(texts.iter()).unwrap())
}

fn prepare(pipeline: &dyn Pipeline, content: &CallContent) -> PreprocessedInputs {
    pipeline.prepare(content, DecodeLimits::default(), &mut MemoryAccount::unlimited().hold()).unwrap()
}

/// The results of texts for an output.
fn results(section: &str, of: &[&str], shape: &[usize], output: Vec<f32>) -> Result<Vec<Tensor>, PostprocessError> {
    let prepared = prepare(embedder(section).as_ref(), &texts(of));
    prepared.postprocess.unwrap()(vec![Tensor::from_vec(shape.to_vec(), output).unwrap()])
}

fn vectors(section: &str, of: &[&str], shape: &[usize], output: Vec<f32>) -> Vec<f32> {
    results(section, of, shape, output).unwrap()[0].elements().unwrap().to_vec()
}

#[test]
fn texts_become_rows_of_tokens_as_long_as_the_longest() {
    let prepared = prepare(embedder("max_tokens = 5").as_ref(), &texts(&["Red", "green red RED green red", ""]));
    let rows: Vec<Vec<i64>> = prepared.inputs.iter().map(|tensor| tensor.elements().unwrap().to_vec()).collect();
    assert_eq!(prepared.inputs[0].shape(), [3, 5]);
    assert_eq!(rows[0], [2, 4, 3, 7, 7, 2, 5, 4, 4, 3, 2, 3, 7, 7, 7]);
    assert_eq!(rows[1], [1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0]);
    assert_eq!(rows[2], [0; 15]);
    let output = Tensor::from_vec(vec![3, 5, 2], vec![1.0_f32; 30]).unwrap();
    let results = prepared.postprocess.unwrap()(vec![output]).unwrap();
    assert_eq!(*results[1].elements::<i64>().unwrap(), [3, 5, 2]);
    assert_eq!(results[2].bools().unwrap(), [false, true, false]);
}

#[test]
fn a_model_of_fixed_sides_and_short_integers_gets_them() {
    let ids = vec![port("input_ids", DataType::Int32, &[1, 6])];
    let pipeline = bind("", ids, &[1, 6, 2], TOKENIZER).unwrap();
    let prepared = prepare(pipeline.as_ref(), &texts(&["red"]));
    assert_eq!(*prepared.inputs[0].elements::<i32>().unwrap(), [2, 4, 3, 7, 7, 7]);
    let parts = pipeline.divide(&texts(&["red", "green"])).unwrap().parts;
    assert_eq!(parts, [texts(&["red"]), texts(&["green"])]);
}

#[test]
fn a_vector_is_the_mean_of_its_tokens_the_first_one_or_the_output() {
    // A text of three tokens, and padding that must not count.
    let output = || vec![3.0, 0.0, 0.0, 6.0, 0.0, 3.0, 99.0, 99.0];
    assert_eq!(vectors("normalize = false", &["red"], &[1, 4, 2], output()), [1.0, 3.0]);
    assert_eq!(vectors("normalize = false\npooling = 'cls'", &["red"], &[1, 4, 2], output()), [3.0, 0.0]);
    assert_eq!(vectors("normalize = false\npooling = 'none'", &["red"], &[1, 2], vec![5.0, 7.0]), [5.0, 7.0]);
    assert_eq!(vectors("pooling = 'none'", &["red"], &[1, 2], vec![3.0, 4.0]), [0.6, 0.8]);
    assert_eq!(vectors("", &["red"], &[1, 3, 2], vec![0.0; 6]), [0.0, 0.0]);
}

#[test]
fn outputs_that_are_no_vectors_of_the_texts_are_errors() {
    let error = |shape: &[usize], value| results("", &["red"], shape, vec![value; shape.iter().product()]).unwrap_err();
    for shape in [&[2, 3, 2][..], &[1, 2], &[1, 0, 2], &[1, 3, 0]] {
        assert!(matches!(error(shape, 1.0), PostprocessError::Outputs(_)), "{shape:?}");
    }
    assert!(matches!(error(&[1, 3, 2], f32::NAN), PostprocessError::Values(_)));
}

#[test]
fn the_answer_has_a_vector_for_each_text() {
    let results = results("", &["red"], &[1, 3, 2], vec![1.0, 0.0, 1.0, 0.0, 1.0, 0.0]).unwrap();
    let answer = embedder("").answer(&results.iter().collect::<Vec<_>>()).unwrap();
    assert_eq!(answer.get(), r#"[{"embedding":[1.0,0.0],"tokens":3,"truncated":false}]"#);
    let printed = (KIND.rows)(&serde_json::from_str(answer.get()).unwrap());
    assert_eq!(printed[0].text, "2 numbers of 3 tokens: 1.0 0.0 ...");
}

#[test]
fn what_does_not_fit_the_model_refuses_it() {
    let refused = |inputs: Vec<ModelPort>, output: &[i64], file: &str| match bind("", inputs, output, file) {
        Err(reason) => reason,
        // As the check at its load does.
        Ok(pipeline) => {
            let mut hold = MemoryAccount::unlimited().hold();
            pipeline.prepare(&pipeline.sample(), DecodeLimits::default(), &mut hold).unwrap_err().to_string()
        }
    };
    let (any, good) = ([-1, -1, 2], || inputs(ALL, &[-1, -1]));
    assert!(refused(inputs(&["image"], &[-1, -1]), &any, TOKENIZER).contains("and not the input \"image\""));
    assert!(refused(inputs(&["attention_mask"], &[-1, -1]), &any, TOKENIZER).contains("no input \"input_ids\""));
    assert!(refused(inputs(&["input_ids"], &[-1]), &any, TOKENIZER).contains("of shape [-1]"));
    assert!(refused(inputs(&["input_ids"], &[-1, 2]), &any, TOKENIZER).contains("makes at least 3 tokens"));
    assert!(refused(good(), &[-1, 2], TOKENIZER).contains("needs [texts, tokens, numbers]"));
    for file in ["", "{}", "[1]", &TOKENIZER.replace("WordLevel", "Other"), &"[".repeat(10_000)] {
        assert!(refused(good(), &any, file).starts_with("tokenizer.json: "));
    }
    let mistakes = |text: &str| toml::from_str::<TextEmbedding>(text).unwrap().mistakes().len();
    assert_eq!((mistakes("max_tokens = 1"), mistakes("max_tokens = 8193"), mistakes("")), (1, 1, 0));
}

#[test]
fn texts_of_like_length_share_a_run_of_bounded_size() {
    let long = "red ".repeat(300);
    let all: Vec<&str> = (0..400).map(|index| if index % 40 == 0 { long.as_str() } else { "red green red" }).collect();
    let pipeline = embedder("max_tokens = 256");
    let ContentDivision { parts, places } = pipeline.divide(&texts(&all)).unwrap();
    // 390 short ones of 13 bytes, and 10 that count as 1024 bytes.
    let counts: Vec<_> = parts.iter().map(CallContent::count).collect();
    assert_eq!(counts, [[RUN_TEXTS_MAX; 12].as_slice(), &[6, 8, 2]].concat());
    assert_eq!(places[..2], [1, 2]);
    assert_eq!(places[390..], [0, 40, 80, 120, 160, 200, 240, 280, 320, 360]);
    assert!(pipeline.divide(&texts(&all[1..30])).is_none());
}

proptest! {
    #[test]
    fn every_text_is_in_one_run_within_its_bound(of in prop::collection::vec("[a-z ]{0,900}", 1..60), max_tokens in 3_usize..300) {
        let of: Vec<&str> = of.iter().map(String::as_str).collect();
        let pipeline = embedder(&format!("max_tokens = {max_tokens}"));
        let Some(ContentDivision { parts, mut places }) = pipeline.divide(&texts(&of)) else { return Ok(()) };
        let mut next = places.clone().into_iter();
        for part in &parts {
            let CallContent::Texts(part) = part else { panic!("texts") };
            let weights: Vec<_> = part.iter().map(|text| text.len().clamp(1, max_tokens * TOKEN_BYTES)).collect();
            let padded = weights.len() * weights.iter().max().unwrap();
            prop_assert!(weights.len() == 1 || (weights.len() <= RUN_TEXTS_MAX && padded <= RUN_BYTES_MAX));
            for text in part.iter() {
                prop_assert_eq!(text, of[next.next().unwrap()]);
            }
        }
        places.sort_unstable();
        prop_assert_eq!(places, (0..of.len()).collect::<Vec<_>>());
    }

    #[test]
    fn any_text_becomes_tokens_within_the_limit(text in ".{0,200}") {
        let prepared = prepare(embedder("max_tokens = 6").as_ref(), &texts(&[&text]));
        prop_assert!(prepared.inputs[0].shape()[1] <= 6);
    }
}

#[test]
fn the_sample_of_the_check_is_as_long_as_a_text_may_be() {
    let pipeline = embedder("max_tokens = 300");
    let prepared = prepare(pipeline.as_ref(), &pipeline.sample());
    assert_eq!(prepared.inputs[0].shape(), [1, 300]);
}
