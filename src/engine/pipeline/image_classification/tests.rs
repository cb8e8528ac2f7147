use half::f16;
use ledge_base::memory_budget::MemoryAccount;
use proptest::prelude::*;

use super::*;
use crate::backend::{ModelPort, ModelSignature};

fn table(text: &str) -> ImageClassification {
    toml::from_str(text).unwrap()
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

#[test]
fn only_the_crop_is_needed() {
    let config = table("crop = [224, 192]");
    assert_eq!(config.mistakes(), []);
    assert_eq!((config.top_k, config.activation), (5, ClassActivation::None));
    let preparation = config.preparation();
    assert_eq!((preparation.size, preparation.mean, preparation.std), ([224, 192], [0.0; 3], [1.0; 3]));
    assert_eq!((preparation.layout, preparation.color), (TensorLayout::Nchw, ChannelOrder::Rgb));
    assert!(toml::from_str::<ImageClassification>("crop = [1, 1]\ntopk = 3").is_err());
    assert!(toml::from_str::<ImageClassification>("crop = [1, 1]\nlayout = \"CHWN\"").is_err());
    assert!(toml::from_str::<ImageClassification>("top_k = 3").is_err());
    let full = table(
        "input = \"x\"\noutput = \"y\"\nresize_shorter_side = 256\ncrop = [224, 224]\nmean = [1, 2.5, 3]\n\
         std = [1, 2, 3]\nlayout = \"NHWC\"\ncolor = \"BGR\"\nactivation = \"softmax\"\ntop_k = 1",
    );
    assert_eq!(full.mistakes(), []);
}

#[test]
fn every_mistake_is_reported_at_once() {
    let config = table("resize_shorter_side = 100\ncrop = [0, 5000]\nmean = [nan, 0, 0]\nstd = [1, 0, 1]\ntop_k = 0");
    let mistakes = config.mistakes();
    let keys: Vec<_> = mistakes.iter().map(|mistake| mistake.key.as_str()).collect();
    assert_eq!(keys, ["crop", "crop", "resize_shorter_side", "mean", "std", "top_k"]);
    assert_eq!(mistakes[5].message, "is 0, expected 1 to 1000");
    assert_eq!(table("crop = [1, 1]\nstd = [inf, 1, 1]\ntop_k = 1001").mistakes().len(), 2);
}

#[test]
fn labels_come_best_first_and_equal_ones_by_index() {
    let config = ImageClassification { top_k: 3, ..table("crop = [1, 1]") };
    let scores = Tensor::from_vec(vec![1, 4], vec![0.25_f32, 0.5, 0.25, 0.0]).unwrap();
    let labels = config.labels(&scores, &names(&["tea", "", "espresso"]), None).unwrap();
    let json = serde_json::to_string(&labels).unwrap();
    let expected = [
        r#"[{"label":null,"index":1,"score":0.5},{"label":"tea","index":0,"score":0.25},"#,
        r#"{"label":"espresso","index":2,"score":0.25}]"#,
    ];
    assert_eq!(json, expected.concat());
    assert_eq!(ImageClassification { top_k: 1000, ..config }.labels(&scores, &[], None).unwrap().len(), 4);
}

#[test]
fn softmax_survives_large_logits() {
    let config = table("crop = [1, 1]\nactivation = \"softmax\"");
    for scores in [
        Tensor::from_vec(vec![3], vec![1000.0_f64, 1000.0, f64::NEG_INFINITY]).unwrap(),
        Tensor::from_vec(vec![1, 3, 1, 1], [60_000.0, 60_000.0, -60_000.0].map(f16::from_f32).to_vec()).unwrap(),
    ] {
        let labels: Vec<_> = config.labels(&scores, &[], None).unwrap().iter().map(|label| label.score).collect();
        assert_eq!(labels, [0.5, 0.5, 0.0]);
    }
}

#[test]
fn scores_that_cannot_be_ranked_are_an_error() {
    for text in ["crop = [1, 1]", "crop = [1, 1]\nactivation = \"softmax\""] {
        let scores = Tensor::from_vec(vec![2], vec![0.0, f32::NAN]).unwrap();
        assert!(matches!(table(text).labels(&scores, &[], None), Err(ClassificationError::NotFinite { .. })));
        let scores = Tensor::from_vec(vec![1], vec![f32::INFINITY]).unwrap();
        assert_eq!(table(text).labels(&scores, &[], None), Err(ClassificationError::NotFinite { index: 0 }));
        let none = Tensor::from_vec(vec![1, 0], Vec::<f32>::new()).unwrap();
        assert_eq!(table(text).labels(&none, &[], None), Ok(vec![]));
    }
}

#[test]
fn an_output_that_is_not_one_row_of_floats_is_an_error() {
    let config = table("crop = [1, 1]");
    let rows = Tensor::from_vec(vec![2, 2], vec![0.0_f32; 4]).unwrap();
    let error = config.labels(&rows, &[], None).unwrap_err();
    assert_eq!(error.to_string(), "expected scores of shape [1, K] or [K], got [2, 2]");
    let integers = Tensor::from_vec(vec![2], vec![0_i64; 2]).unwrap();
    let error = config.labels(&integers, &[], None).unwrap_err();
    assert_eq!(error.to_string(), "expected FP16, BF16, FP32 or FP64 scores, got INT64");
}

proptest! {
    #[test]
    fn quantized_scores_are_ranked_as_their_integers_and_scaled(
        integers in prop::collection::vec(any::<u8>(), 1..50),
        scale in 1e-4_f32..10.0,
        zero_point in 0..256,
    ) {
        let config = table("crop = [1, 1]\ntop_k = 50");
        let scores = Tensor::from_vec(vec![1, integers.len()], integers.clone()).unwrap();
        let quantization = Some(Quantization { scale, zero_point });
        let labels = config.labels(&scores, &[], quantization).unwrap();
        let mut expected: Vec<_> = integers.iter().copied().enumerate().collect();
        expected.sort_by_key(|&(index, integer)| (std::cmp::Reverse(integer), index));
        for (label, (index, integer)) in labels.iter().zip(expected) {
            prop_assert_eq!(label.index, index);
            let worth = f64::from(scale) * f64::from(i32::from(integer) - zero_point);
            prop_assert!((f64::from(label.score) - worth).abs() <= worth.abs() * 1e-6, "{label:?} {worth}");
        }
        let softmax = table("crop = [1, 1]\ntop_k = 50\nactivation = \"softmax\"");
        let sum: f32 = softmax.labels(&scores, &[], quantization).unwrap().iter().map(|label| label.score).sum();
        prop_assert!((sum - 1.0).abs() < 1e-4, "{sum}");
    }
}

#[test]
fn integers_without_quantization_are_no_scores() {
    let scores = Tensor::from_vec(vec![1, 2], vec![3_u8, 7]).unwrap();
    let error = table("crop = [1, 1]").labels(&scores, &[], None).unwrap_err();
    assert_eq!(error, ClassificationError::Unscaled { datatype: DataType::Uint8 });
    assert!(error.to_string().contains("[[output]] of model.toml"), "{error}");
}

/// The pipeline for a model with one input and one output of `scores`.
fn bound(section: &str, input: &[i64], labels: &[&str]) -> Result<Arc<dyn Pipeline>, String> {
    let port =
        |name: &str, datatype, shape: &[i64]| ModelPort { name: name.to_owned(), datatype, shape: shape.to_vec() };
    let signature = ModelSignature {
        inputs: vec![port("pixels", DataType::Uint8, input)],
        outputs: vec![port("aside", DataType::Fp32, &[1]), port("scores", DataType::Fp32, &[1, 3])],
    };
    let labels = [("scores".to_owned(), names(labels).into())].into();
    table(section).bind(ModelFacts {
        signature: &signature,
        labels: &labels,
        quantization: &[].into(),
        files: &[].into(),
        parts: &[].into(),
        part_metadata: &[].into(),
        fields: &[],
    })
}

#[test]
fn a_section_that_does_not_fit_the_model_is_refused() {
    let reason = |section: &str, input: &[i64]| bound(section, input, &[]).unwrap_err();
    let reasons = [
        reason("crop = [1, 2]", &[1, 3, 1, 2]),
        reason("crop = [1, 2]\noutput = 'y'", &[1, 3, 1, 2]),
        reason("crop = [1, 2]\noutput = 'scores'\ninput = 'x'", &[1, 3, 1, 2]),
        reason("crop = [1, 2]\noutput = 'scores'", &[-1, 3, 2, 2]),
    ];
    let expected = [
        "the model has 2 outputs: pipeline.image_classification.output must name one",
        "pipeline.image_classification.output names \"y\", which the model lacks",
        "pipeline.image_classification.input names \"x\", which the model lacks",
        "pipeline.image_classification makes tensors of shape [1, 3, 1, 2], input \"pixels\" takes [-1, 3, 2, 2]",
    ];
    assert_eq!(reasons, expected);
}

#[test]
fn a_photograph_becomes_a_tensor_and_scores_an_answer() {
    let section = "crop = [24, 32]\nlayout = 'NHWC'\noutput = 'scores'\ntop_k = 2";
    let pipeline = bound(section, &[-1, 24, 32, 3], &["tea", "", "espresso"]).unwrap();
    assert_eq!((pipeline.outputs(), pipeline.scores()), (&[1][..], Some(1)));

    let prepare = |content: &CallContent, pixels| {
        pipeline.prepare(content, DecodeLimits { max_pixels: pixels }, &mut MemoryAccount::unlimited().hold())
    };
    let PreprocessedInputs { inputs, .. } = prepare(&KIND.input.sample(), 32 * 24).unwrap();
    assert_eq!((inputs.len(), inputs[0].shape(), inputs[0].datatype()), (1, &[1, 24, 32, 3][..], DataType::Uint8));
    assert!(prepare(&KIND.input.sample(), 32 * 24 - 1).unwrap_err().to_string().contains("at most 767 pixels"));
    assert!(matches!(prepare(&CallContent::Photograph("tea".into()), 1), Err(PreprocessError::Content(_))));

    let scores = Tensor::from_vec(vec![1, 3], vec![0.1_f32, 0.2, 0.7]).unwrap();
    let expected = r#"[{"label":"espresso","index":2,"score":0.7},{"label":null,"index":1,"score":0.2}]"#;
    assert_eq!(pipeline.answer(&[&scores]).unwrap().get(), expected);
    let judge = |label, min_score| {
        pipeline.judge(&[&scores], GoldenExpectation { label, min_score, detections: None, words: None })
    };
    assert_eq!(judge(Some("espresso"), Some(0.7)), Ok(()));
    assert_eq!(judge(Some("tea"), None).unwrap_err(), "expected \"tea\" first, got \"espresso\" (0.700)");
    assert_eq!(judge(None, Some(0.8)).unwrap_err(), "\"espresso\" scores 0.700, expected at least 0.8");

    let answer = |scores: &[f32]| pipeline.answer(&[&Tensor::from_vec(vec![scores.len()], scores.to_vec()).unwrap()]);
    assert!(matches!(answer(&[f32::NAN]), Err(PostprocessError::Values(_))));
    let integers = Tensor::from_vec(vec![1], vec![1_u8]).unwrap();
    assert!(matches!(pipeline.answer(&[&integers]), Err(PostprocessError::Outputs(_))));
}

#[test]
fn a_result_is_shown_by_its_labels() {
    let labels =
        serde_json::json!([{"label": "tea", "index": 0, "score": 0.5}, {"label": null, "index": 7, "score": 0.25}]);
    let row = |score, text: &str| PrintedRow { score: Some(score), text: text.to_owned() };
    assert_eq!(rows(&labels), [row(0.5, "tea"), row(0.25, "class 7")]);
}
