//! Data in JSON: datatypes, shapes and nesting.

use half::{bf16, f16};

use super::{ProtocolError, tensor, tensor_refusal};

#[test]
fn a_shape_is_of_non_negative_integers() {
    for shape in ["[-1]", "[1.0]", "[\"1\"]", "1", "{}", "[true]", "[18446744073709551616]"] {
        assert!(tensor_refusal("FP32", shape, "[1]").starts_with("'shape' of input 'IN'"), "{shape}");
    }
    let huge = "[4294967296,4294967296]";
    assert_eq!(tensor_refusal("FP32", huge, "[1]"), "'shape' of input 'IN' has too many elements");
    // Nothing is allocated for elements that cannot be in the body.
    let count = tensor("FP32", "[1152921504606846975]", "[1]").expect_err("refused");
    assert!(
        matches!(count, ProtocolError::ElementCount { got: 1, expected: 1_152_921_504_606_846_975, .. }),
        "{count:?}"
    );
}

#[test]
fn integers_are_exact_and_in_range() {
    let cases = [
        ("UINT8", "255", "256"),
        ("UINT16", "65535", "65536"),
        ("UINT32", "4294967295", "4294967296"),
        ("UINT64", "18446744073709551615", "18446744073709551616"),
        ("INT8", "-128", "-129"),
        ("INT16", "32767", "40000"),
        ("INT32", "-2147483648", "2147483648"),
        ("INT64", "-9223372036854775808", "9223372036854775808"),
    ];
    for (datatype, good, bad) in cases {
        assert!(tensor(datatype, "[1]", &format!("[{good}]")).is_ok(), "{datatype}");
        for bad in [bad, "1.0", "1e2", "true", "\"1\"", "{}"] {
            // Flat data of one dimension and of several takes different code paths.
            let message = tensor_refusal(datatype, "[2]", &format!("[0,{bad}]"));
            assert!(message.starts_with(&format!("'data' of input 'IN': element 1 is not {datatype}")), "{message}");
            tensor_refusal(datatype, "[1,1]", &format!("[{bad}]"));
            tensor_refusal(datatype, "[1,1]", &format!("[[{bad}]]"));
        }
    }
    let message = tensor_refusal("UINT8", "[1]", "[256]");
    assert!(message.contains("255") && message.contains("256"), "{message}");
}

#[test]
fn booleans_are_true_or_false() {
    assert_eq!(tensor("BOOL", "[2]", "[true,false]").unwrap().bools(), Some(&[true, false][..]));
    for bad in ["[1]", "[0]", "[\"true\"]", "[1.0]"] {
        tensor_refusal("BOOL", "[1]", bad);
        tensor_refusal("BOOL", "[1,1]", bad);
    }
}

#[test]
fn floats_are_rounded_but_never_infinite() {
    let fp32 = tensor("FP32", "[5]", "[16777217,1e-50,3.4028235e38,-0.0,0.1]").unwrap();
    let expected: [f32; 5] = [16_777_216.0, 0.0, f32::MAX, -0.0, 0.1];
    assert_eq!(fp32.data().as_ref(), bytemuck::cast_slice::<f32, u8>(&expected));
    let fp16 = tensor("FP16", "[3]", "[0.1,65504,1]").unwrap();
    assert_eq!(fp16.elements::<f16>().unwrap().as_ref(), &[f16::from_f32(0.1), f16::MAX, f16::ONE]);
    let bf16 = tensor("BF16", "[2]", "[0.1,1]").unwrap();
    assert_eq!(bf16.elements::<bf16>().unwrap().as_ref(), &[bf16::from_f32(0.1), bf16::ONE]);
    for (datatype, bad) in [("FP16", "65536"), ("BF16", "3.4e38"), ("FP32", "1e39"), ("FP64", "1e400")] {
        for (shape, data) in [("[1]", format!("[{bad}]")), ("[1,1]", format!("[-{bad}]"))] {
            let error = tensor(datatype, shape, &data).expect_err(&data);
            assert!(matches!(&error, ProtocolError::Element { index: 0, .. }), "{error:?}");
        }
    }
    for bad in ["[NaN]", "[Infinity]", "[\"1\"]", "[true]"] {
        tensor_refusal("FP32", "[1]", bad);
    }
}

#[test]
fn strings_are_unicode() {
    let tensor = tensor("BYTES", "[3]", r#"["", "a\"b", "\ud83d\ude00"]"#).unwrap();
    assert_eq!(tensor.strings().unwrap().collect::<Vec<_>>(), [&b""[..], b"a\"b", "😀".as_bytes()]);
    for bad in ["[1]", "[null]", "[[\"a\"]]", r#"["\ud83d"]"#] {
        tensor_refusal("BYTES", "[1]", bad);
        tensor_refusal("BYTES", "[1,1,1]", bad);
    }
}

#[test]
fn data_is_flat_or_nested_as_its_shape() {
    for (shape, data) in [
        ("[2,2]", "[1,2,3,4]"),
        ("[2,2]", "[[1,2],[3,4]]"),
        ("[1,2,2]", "[[[1,2],[3,4]]]"),
        ("[]", "[1]"),
        ("[0]", "[]"),
        ("[0,2]", "[]"),
        ("[2,0]", "[]"),
        ("[2,0]", "[[],[]]"),
        ("[2,0,3]", "[[],[]]"),
    ] {
        assert!(tensor("INT8", shape, data).is_ok(), "{shape} {data}");
    }
    for (shape, data) in [
        ("[2,2]", "[[1,2,3,4]]"),
        ("[2,2]", "[[1,2],3,4]"),
        ("[2,2]", "[1,[2,3],4]"),
        ("[2,2]", "[[1,2],[3]]"),
        ("[2,2]", "[[1],[2,3,4]]"),
        ("[2,2]", "[[[1,2],[3,4]]]"),
        ("[1,4]", "[[1,2],[3,4]]"),
        ("[2,1,2]", "[[1,2],[3,4]]"),
        ("[4]", "[[1,2,3,4]]"),
        ("[2,0]", "[[]]"),
        ("[2,2]", "[]"),
        ("[1]", "[]"),
        ("[1]", "1"),
        ("[]", "1"),
        ("[]", "[[1]]"),
        ("[1]", "{\"a\":1}"),
        ("[1]", "\"1\""),
        ("[3]", "[1,2,3,4]"),
    ] {
        tensor_refusal("INT8", shape, data);
    }
    assert_eq!(tensor_refusal("INT8", "[3]", "[1,2]"), "'data' of input 'IN' has 2 elements, but shape [3] needs 3");
    let message = tensor_refusal("INT8", "[2,2]", "[[1,2],[3]]");
    assert!(message.ends_with("its shape [2, 2]: an array has 1 entries, expected 2"), "{message}");
}
