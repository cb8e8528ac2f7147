//! Binary data behind the JSON, raw requests, and which outputs are binary.

use super::*;

/// A binary request: the JSON of its inputs, then data.
fn binary(inputs: &str, data: &[u8]) -> Result<DecodedRequest, ProtocolError> {
    let json = format!(r#"{{"inputs":[{inputs}]}}"#);
    decode([json.as_bytes(), data].concat(), Some(json.len()))
}

fn binary_input(name: &str, datatype: &str, shape: &str, size: &str) -> String {
    format!(r#"{{"name":"{name}","shape":{shape},"datatype":"{datatype}","parameters":{{"binary_data_size":{size}}}}}"#)
}

#[test]
fn an_output_may_differ_from_the_default_format() {
    let body = format!(
        r#"{{"parameters":{{"binary_data_output":true}},{ONE_INPUT},"outputs":[
            {{"name":"X","parameters":{{"binary_data":false}}}},{{"name":"Y"}}]}}"#
    );
    let reply = decode(body, None).unwrap().reply;
    assert_eq!((reply.is_binary("X"), reply.is_binary("Y"), reply.is_binary("Z")), (false, true, true));
    let decoded = decode(format!(r#"{{{ONE_INPUT},"outputs":[]}}"#), None).unwrap();
    assert_eq!(decoded.tensors.outputs, None, "as in gRPC, no output named is all of them");
}

#[test]
fn binary_data_follows_the_json_in_the_order_of_the_inputs() {
    let json = r#"{"name":"J","shape":[1],"datatype":"INT32","data":[7]}"#;
    let list = [binary_input("A", "FP32", "[2]", "8"), json.into(), binary_input("B", "BYTES", "[1]", "7")].join(",");
    let data = [&1.5_f32.to_le_bytes()[..], &f32::NAN.to_le_bytes(), b"\x03\0\0\0abc"].concat();
    let inputs = inputs(binary(&list, &data).unwrap());
    assert_eq!(inputs[0].1, Tensor::from_vec(vec![2], vec![1.5, f32::NAN]).unwrap());
    assert_eq!(inputs[1].1, Tensor::from_vec(vec![1], vec![7_i32]).unwrap());
    assert_eq!(inputs[2].1, Tensor::from_strings(vec![1], ["abc"]).unwrap());
}

#[test]
fn binary_data_is_complete_and_fits_its_shape() {
    let refusal = |inputs: String, data: &[u8]| {
        let error = binary(&inputs, data).unwrap_err();
        assert_eq!(error.status(), 400);
        error.to_string()
    };
    let input = |size| binary_input("INPUT0", "FP32", "[16]", size);
    assert_eq!(
        refusal(input("64"), &[0; 60]),
        "unexpected size for input 'INPUT0', expecting 4 additional bytes for model 'mlp'"
    );
    assert_eq!(refusal(input("64"), &[0; 65]), "unexpected additional input data for model 'mlp'");
    assert_eq!(refusal(String::new(), &[0; 1]), "unexpected additional input data for model 'mlp'");
    assert_eq!(
        refusal(input("60"), &[0; 60]),
        "input byte size mismatch for input 'INPUT0' for model 'mlp'. Expected 64, got 60"
    );
    for bad in ["-4", "\"64\"", "64.0", "true"] {
        let message = refusal(input(bad), &[0; 64]);
        assert_eq!(message, "'binary_data_size' of input 'INPUT0': expected a non-negative integer");
    }
    refusal(input("18446744073709551615"), &[0; 64]);
    assert_eq!(
        refusal(binary_input("IN", "BYTES", "[1]", "7"), b"\x63\0\0\0abc"),
        "incomplete string data for inference input 'IN', expecting string of length 99 but only 3 bytes available"
    );
    assert_eq!(
        refusal(binary_input("IN", "BYTES", "[3]", "8"), &[0; 8]),
        "expected 3 string elements for inference input 'IN' for model 'mlp', got 2"
    );
    assert_eq!(
        refusal(binary_input("IN", "BOOL", "[2]", "2"), &[1, 2]),
        "element 1 of BOOL input 'IN' is 0x02, expected 0 or 1"
    );
}

#[test]
fn the_header_is_a_number_within_the_body() {
    assert_eq!(parse_header_length(b"174"), Ok(174));
    for bad in [&b""[..], b"abc", b"-1", b"+1", b" 1", b"1.0", b"99999999999999999999999", b"\xff"] {
        assert_eq!(parse_header_length(bad).unwrap_err().status(), 400);
    }
    let error = decode(vec![b' '; 174], Some(99_999)).unwrap_err();
    assert_eq!(error.to_string(), "inference header size should be in range (0, 174), got: 99999");
}

#[test]
fn a_raw_request_is_one_input_and_wants_binary_outputs() {
    let decoded = decode("raw bytes", Some(0)).unwrap();
    assert!(matches!(&decoded.tensors.inputs, CallInputs::Raw(raw) if *raw == "raw bytes"));
    assert_eq!((decoded.reply, decoded.tensors.outputs, decoded.id), (ReplyFormat::BINARY, None, None));
}
