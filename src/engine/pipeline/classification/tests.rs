use proptest::prelude::*;

use super::*;

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

/// Checks the shape and the strings that [`classify`] writes.
fn check_classes<T: TensorElement>(
    shape: &[usize],
    values: Vec<T>,
    n: usize,
    expected_shape: &[usize],
    strings: &[&str],
) {
    let output = Tensor::from_vec(shape.to_vec(), values).unwrap();
    let classes = classify(&output, n, &names(&["tea", "", "espresso"])).unwrap();
    assert_eq!(classes.shape(), expected_shape);
    let got: Vec<_> = classes.strings().unwrap().map(|string| String::from_utf8_lossy(string).into_owned()).collect();
    assert_eq!(got, strings);
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
fn scores_that_cannot_be_ranked_have_no_classes() {
    let scores = Tensor::from_vec(vec![2], vec![0.0, f32::NAN]).unwrap();
    assert_eq!(classify(&scores, 1, &[]), Err(ClassificationError::NotFinite { index: 1 }));
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
