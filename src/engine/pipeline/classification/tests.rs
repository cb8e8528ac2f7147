use proptest::prelude::*;

use super::*;

fn table(text: &str) -> ImageClassification {
    toml::from_str(text).unwrap()
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

/// What [`classify`] writes: the shape and the strings.
fn check_classes<T: Element>(shape: &[usize], values: Vec<T>, n: usize, expected_shape: &[usize], strings: &[&str]) {
    let output = Tensor::from_vec(shape.to_vec(), values).unwrap();
    let classes = classify(&output, n, &names(&["tea", "", "espresso"])).unwrap();
    assert_eq!(classes.shape(), expected_shape);
    let got: Vec<_> = classes.strings().unwrap().map(|string| String::from_utf8_lossy(string).into_owned()).collect();
    assert_eq!(got, strings);
}

#[test]
fn only_the_crop_is_needed() {
    let config = table("crop = [224, 192]");
    assert_eq!(config.validate(), []);
    assert_eq!((config.top_k, config.activation), (5, Activation::None));
    let preparation = config.preparation();
    assert_eq!((preparation.crop, preparation.mean, preparation.std), ([224, 192], [0.0; 3], [1.0; 3]));
    assert_eq!((preparation.layout, preparation.color), (Layout::Nchw, Color::Rgb));
    assert!(toml::from_str::<ImageClassification>("crop = [1, 1]\ntopk = 3").is_err());
    assert!(toml::from_str::<ImageClassification>("crop = [1, 1]\nlayout = \"CHWN\"").is_err());
    assert!(toml::from_str::<ImageClassification>("top_k = 3").is_err());
    let full = table(
        "input = \"x\"\noutput = \"y\"\nresize_shorter_side = 256\ncrop = [224, 224]\nmean = [1, 2.5, 3]\n\
         std = [1, 2, 3]\nlayout = \"NHWC\"\ncolor = \"BGR\"\nactivation = \"softmax\"\ntop_k = 1",
    );
    assert_eq!(full.validate(), []);
}

#[test]
fn every_mistake_is_told_at_once() {
    let config = table("resize_shorter_side = 100\ncrop = [0, 5000]\nmean = [nan, 0, 0]\nstd = [1, 0, 1]\ntop_k = 0");
    let prefix = "pipeline.image_classification.";
    let mistakes = config.validate();
    let keys: Vec<_> = mistakes.iter().map(|(key, _)| key.strip_prefix(prefix).unwrap()).collect();
    assert_eq!(keys, ["crop", "crop", "resize_shorter_side", "mean", "std", "top_k"]);
    assert_eq!(mistakes[5].1, "is 0, expected 1 to 1000");
    assert_eq!(table("crop = [1, 1]\nstd = [inf, 1, 1]\ntop_k = 1001").validate().len(), 2);
}

#[test]
fn labels_come_best_first_and_equal_ones_by_index() {
    let config = ImageClassification { top_k: 3, ..table("crop = [1, 1]") };
    let scores = Tensor::from_vec(vec![1, 4], vec![0.25_f32, 0.5, 0.25, 0.0]).unwrap();
    let labels = config.labels(&scores, &names(&["tea", "", "espresso"]), None).unwrap();
    let json = serde_json::to_string(&labels).unwrap();
    let expected = r#"[{"label":null,"index":1,"score":0.5},{"label":"tea","index":0,"score":0.25},{"label":"espresso","index":2,"score":0.25}]"#;
    assert_eq!(json, expected);
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
        assert_eq!(classify(&scores, 1, &[]), Err(ClassificationError::NotFinite { index: 1 }));
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
fn integers_of_unknown_worth_are_no_scores() {
    let scores = Tensor::from_vec(vec![1, 2], vec![3_u8, 7]).unwrap();
    let error = table("crop = [1, 1]").labels(&scores, &[], None).unwrap_err();
    assert_eq!(error, ClassificationError::Unscaled { datatype: DataType::Uint8 });
    assert!(error.to_string().contains("[[output]] of model.toml"), "{error}");
}

#[test]
fn classes_are_written_as_triton_writes_them() {
    check_classes(
        &[1, 3],
        vec![0.5_f32, 0.25, 0.090_633_3],
        5,
        &[1, 3],
        &["0.500000:0:tea", "0.250000:1", "0.090633:2:espresso"],
    );
    check_classes(
        &[4],
        vec![-1.5_f64, 2.0, 1e10, 2.0],
        3,
        &[3],
        &["10000000000.000000:2:espresso", "2.000000:1", "2.000000:3"],
    );
    check_classes(&[2, 2], vec![1_i8, -1, -128, 127], 1, &[2, 1], &["1:0:tea", "127:1"]);
    check_classes(&[1], vec![u64::MAX], 1, &[1], &["18446744073709551615:0:tea"]);
    check_classes(&[2, 2, 2], vec![0_u8, 1, 9, 3, 5, 5, 0, 0], 1, &[2, 1], &["9:2:espresso", "5:0:tea"]);
    check_classes(&[1, 1], vec![bf16::from_f32(0.5)], 1, &[1, 1], &["0.500000:0:tea"]);
    check_classes(&[1, 1], vec![f16::from_f32(-0.25)], 1, &[1, 1], &["-0.250000:0:tea"]);
    check_classes(&[], vec![7_u16], 1, &[1], &["7:0:tea"]);
}

#[test]
fn an_empty_output_has_no_classes() {
    check_classes(&[0, 3], Vec::<f32>::new(), 2, &[0, 2], &[]);
    check_classes(&[2, 0], Vec::<i32>::new(), 2, &[2, 0], &[]);
    check_classes(&[0, usize::MAX, 2], Vec::<u32>::new(), 2, &[0, 0], &[]);
    check_classes(&[2], vec![1_i16, 2], 0, &[0], &[]);
}

#[test]
fn strings_and_booleans_have_no_classes() {
    let strings = Tensor::from_strings(vec![1], ["a"]).unwrap();
    let error = classify(&strings, 1, &[]).unwrap_err();
    assert_eq!(error.to_string(), "expected numeric scores, got BYTES");
    assert!(classify(&Tensor::from_vec(vec![1], vec![true]).unwrap(), 1, &[]).is_err());
}

#[test]
fn a_label_file_has_one_label_a_line() {
    assert_eq!(parse_labels("tea\r\n\nespresso\n"), ["tea", "", "espresso"]);
    assert_eq!(parse_labels("tea\nespresso"), ["tea", "espresso"]);
    assert_eq!(parse_labels(""), Vec::<String>::new());
}

proptest! {
    #[test]
    fn rows_of_a_batch_are_kept_apart(
        rows in prop::collection::vec(prop::collection::vec(any::<i32>(), 6), 0..5), n in 0_usize..8,
    ) {
        let output = Tensor::from_vec(vec![rows.len(), 2, 3], rows.concat()).unwrap();
        let classes = classify(&output, n, &[]).unwrap();
        prop_assert_eq!(classes.shape(), [rows.len(), n.min(6)]);
        let alone = rows.iter().map(|row| classify(&Tensor::from_vec(vec![6], row.clone()).unwrap(), n, &[]).unwrap());
        let expected: Vec<u8> = alone.flat_map(|tensor| tensor.data().to_vec()).collect();
        prop_assert_eq!(classes.data().as_ref(), expected);
    }

    #[test]
    fn top_is_what_a_stable_sort_gives(values: Vec<u8>, count in 0_usize..20) {
        let mut sorted: Vec<_> = values.iter().enumerate().collect();
        sorted.sort_by_key(|&(_, value)| std::cmp::Reverse(value));
        sorted.truncate(count);
        prop_assert_eq!(top(&values, count, u8::cmp), sorted);
    }
}
