//! Requests of the Open Inference Protocol that are right or wrong for every model: JSON, binary data, parameters.

use std::time::Duration;

use ledge_base::tensor::{DataType, Tensor};

use super::*;

mod binary;
mod data;

fn decode(body: impl Into<Bytes>, header_length: Option<usize>) -> Result<DecodedRequest, ProtocolError> {
    decode_at(body, header_length, Instant::now())
}

fn decode_at(
    body: impl Into<Bytes>,
    header_length: Option<usize>,
    now: Instant,
) -> Result<DecodedRequest, ProtocolError> {
    decode_request(&"mlp".parse().unwrap(), body.into(), header_length, now)
}

/// The message with which a JSON body is refused.
fn refusal(body: impl Into<Bytes>) -> String {
    let error = decode(body, None).expect_err("refused");
    assert_eq!(error.status(), 400);
    error.to_string()
}

fn inputs(decoded: DecodedRequest) -> Vec<(String, Tensor)> {
    match decoded.tensors.inputs {
        CallInputs::Named(inputs) => inputs,
        CallInputs::Raw(_) => panic!("raw"),
    }
}

/// The only input of a request in JSON.
fn tensor(datatype: &str, shape: &str, data: &str) -> Result<Tensor, ProtocolError> {
    let body = format!(r#"{{"inputs":[{{"name":"IN","shape":{shape},"datatype":"{datatype}","data":{data}}}]}}"#);
    decode(body, None).map(|decoded| inputs(decoded).remove(0).1)
}

fn tensor_refusal(datatype: &str, shape: &str, data: &str) -> String {
    let error = tensor(datatype, shape, data).expect_err(data);
    assert_eq!(error.status(), 400);
    assert!(error.to_string().contains("'IN'"), "{error}");
    error.to_string()
}

const ONE_INPUT: &str = r#""inputs":[{"name":"A","shape":[1],"datatype":"FP32","data":[1]}]"#;

#[test]
fn a_request_is_read_whole() {
    let body = r#"{"id":"42","model_name":"ignored","extra":{"deep":[1,null]},
        "parameters":{"priority":3,"custom":"x","triton_final_response":true,"number":1.5,"sequence_id":0},
        "inputs":[{"name":"A","shape":[2,2],"datatype":"FP32","data":[1,2.5,-3e-1,4]},
                  {"data":["x","\u00e9\n"],"datatype":"BYTES","shape":[2],"name":"B"}],
        "outputs":[{"name":"Y","parameters":{"classification":3}},{"name":"X"}]}"#;
    let decoded = decode(body, None).unwrap();
    assert_eq!((decoded.id.as_deref(), decoded.priority), (Some("42"), Some(Priority::Batch)));
    assert_eq!(decoded.reply, ReplyFormat::JSON);
    assert_eq!(decoded.deadline, None);
    let output = |name: &str, classification| OutputRequest { name: name.into(), classification };
    assert_eq!(decoded.tensors.outputs, Some(vec![output("Y", Some(3)), output("X", None)]));
    let expected = vec![
        ("A".to_owned(), Tensor::from_vec(vec![2, 2], vec![1.0_f32, 2.5, -0.3, 4.0]).unwrap()),
        ("B".to_owned(), Tensor::from_strings(vec![2], ["x", "é\n"]).unwrap()),
    ];
    assert_eq!(inputs(decoded), expected);
}

#[test]
fn null_counts_as_absent_where_a_key_is_optional() {
    let body = format!(r#"{{"id":null,"parameters":null,"outputs":null,{ONE_INPUT}}}"#);
    let decoded = decode(body, None).unwrap();
    assert_eq!((decoded.id, decoded.tensors.outputs), (None, None));
    assert_eq!(
        refusal(r#"{"inputs":null}"#),
        "'inputs' of the request: expected an array of inputs, got null at line 1 column 14"
    );
    assert!(tensor_refusal("FP32", "[1]", "null").contains("null"));
    assert!(tensor_refusal("FP32", "null", "[1]").starts_with("'shape' of input 'IN'"));
    for shape in ["[1]", "[1,1]"] {
        let error = tensor("FP32", shape, "[null]").expect_err(shape);
        assert!(matches!(&error, ProtocolError::Element { index: 0, datatype: DataType::Fp32, .. }), "{error:?}");
    }
}

#[test]
fn malformed_json_is_the_clients_fault() {
    for body in ["", "{", "[]", "null", "1", "{} x", "{\"inputs\":[}", "{\"inputs\":[],}", "{\"x\":NaN,\"inputs\":[]}"]
    {
        refusal(body);
    }
    assert!(refusal(r#"{"x""#).starts_with("failed to parse the request JSON buffer: the text ends within"));
    assert_eq!(decode(&b"{\"\xff\":1}"[..], None).expect_err("refused"), ProtocolError::NotText);
}

#[test]
fn deep_nesting_is_refused_not_a_crash() {
    let deep = "[".repeat(1_000_000);
    refusal(deep.clone());
    refusal(format!(r#"{{"x":{deep}"#));
    refusal(format!(r#"{{"id":{deep}"#));
    refusal(format!(r#"{{"parameters":{{"x":{deep}"#));
    refusal(format!(r#"{{"inputs":[{{"name":"IN","shape":[1,1],"datatype":"FP32","data":{deep}"#));
    refusal(format!(r#"{{"inputs":[{{"data":{deep}"#));
    let ones = format!("[{}]", vec!["1"; 65].join(","));
    assert!(tensor_refusal("FP32", &ones, "[1]").ends_with("has more than 64 dimensions"));
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    assert_eq!(refusal(r#"{"id":"1"}"#), "the request has no 'inputs'");
    assert!(refusal(format!(r#"{{"id":5,{ONE_INPUT}}}"#)).starts_with("'id' of the request: expected a string, got 5"));
    assert!(
        refusal(r#"{"inputs":{}}"#).starts_with("'inputs' of the request: expected an array of inputs, got an object")
    );
    assert!(refusal(r#"{"inputs":[["IN",[1],"FP32"]]}"#).starts_with("'inputs' of the request: "));
    assert!(refusal(format!(r#"{{{ONE_INPUT},"outputs":[["OUT"]]}}"#)).starts_with("'outputs' of the request: "));
    assert!(refusal(format!(r#"{{{ONE_INPUT},"parameters":[]}}"#)).starts_with("'parameters' of the request"));
    let cases = [
        (r#""shape":[1],"datatype":"FP32","data":[1]"#, "input #0 has no 'name'"),
        (r#""name":"IN","datatype":"FP32","data":[1]"#, "input 'IN' has no 'shape'"),
        (r#""name":"IN","shape":[1],"data":[1]"#, "input 'IN' has no 'datatype'"),
        (
            r#""name":"IN","shape":[1],"datatype":"FP31","data":[1]"#,
            "invalid datatype for input IN: 'FP31', expected BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, BF16, FP32, FP64, BYTES",
        ),
        (
            r#""name":"IN","shape":[1],"datatype":"fp32","data":[1]"#,
            "invalid datatype for input IN: 'fp32', expected BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, BF16, FP32, FP64, BYTES",
        ),
    ];
    for (input, message) in cases {
        assert_eq!(refusal(format!(r#"{{"inputs":[{{{input}}}]}}"#)), message);
    }
    let input = "IN".to_owned();
    let no_data = decode(r#"{"inputs":[{"name":"IN","shape":[1],"datatype":"FP32"}]}"#, None);
    assert_eq!(no_data.expect_err("refused"), ProtocolError::NoData { input: input.clone() });
    let two = decode(
        r#"{"inputs":[{"name":"IN","shape":[1],"datatype":"FP32","data":[1],"parameters":{"binary_data_size":4}}]}"#,
        None,
    );
    assert_eq!(two.expect_err("refused"), ProtocolError::TwoData { input });
    assert_eq!(refusal(format!(r#"{{{ONE_INPUT},"outputs":[{{}}]}}"#)), "output #0 has no 'name'");
}

#[test]
fn nothing_is_there_twice() {
    assert_eq!(refusal(format!("{{{ONE_INPUT},{ONE_INPUT}}}")), "the request has 'inputs' twice");
    assert_eq!(refusal(format!(r#"{{"id":"a","id":"b",{ONE_INPUT}}}"#)), "the request has 'id' twice");
    let timeouts = r#"{"parameters":{"timeout":1,"timeout":2}}"#;
    assert_eq!(refusal(timeouts), "the request has 'timeout' twice");
    let input = r#"{"name":"INPUT0","shape":[1],"datatype":"FP32","data":[1]}"#;
    let twice = refusal(format!(r#"{{"inputs":[{input},{input}]}}"#));
    assert_eq!(twice, "input 'INPUT0' already exists in request");
    let outputs = refusal(format!(r#"{{{ONE_INPUT},"outputs":[{{"name":"Y"}},{{"name":"Y"}}]}}"#));
    assert_eq!(outputs, "output 'Y' already exists in request");
    let shapes = r#"{"inputs":[{"name":"IN","shape":[1],"shape":[1]}]}"#;
    assert_eq!(refusal(shapes), "input 'IN' has 'shape' twice");
}

#[test]
fn a_timeout_in_microseconds_becomes_a_deadline() {
    let now = Instant::now();
    let deadline = |timeout: &str| {
        decode_at(format!(r#"{{"parameters":{{"timeout":{timeout}}},{ONE_INPUT}}}"#), None, now).map(|d| d.deadline)
    };
    assert_eq!(deadline("1500"), Ok(Some(now + Duration::from_micros(1500))));
    assert_eq!(deadline("0"), Ok(None));
    assert!(deadline("18446744073709551615").is_ok());
    for bad in ["-1", "1.5", "\"1\"", "true"] {
        let message = deadline(bad).unwrap_err().to_string();
        assert_eq!(message, "'timeout' of the request: expected a non-negative integer");
    }
}

#[test]
fn parameters_are_scalars_and_what_is_not_supported_says_so() {
    for bad in ["[1]", "{}", "null"] {
        let message = refusal(format!(r#"{{"parameters":{{"custom":{bad}}},{ONE_INPUT}}}"#));
        assert!(
            message.starts_with("'custom' of the request: expected a string, a number or a boolean, got"),
            "{message}"
        );
    }
    for sequence in [r#""sequence_id":7"#, r#""sequence_id":"a""#] {
        let message = refusal(format!(r#"{{"parameters":{{{sequence}}},{ONE_INPUT}}}"#));
        assert!(message.starts_with("'sequence_id' of the request"), "{message}");
    }
    let none = r#""sequence_id":"","sequence_start":false,"sequence_end":true"#;
    assert!(decode(format!(r#"{{"parameters":{{{none}}},{ONE_INPUT}}}"#), None).is_ok());
    let shared = r#"{"parameters":{"shared_memory_region":"r","shared_memory_byte_size":4}"#;
    let message = refusal(format!(r#"{{"inputs":[{shared},"name":"IN"}}]}}"#));
    assert!(
        message.starts_with("input #0 uses 'shared_memory_region', but shared memory is not supported"),
        "{message}"
    );
    let error = decode(format!(r#"{{"outputs":[{shared},"name":"Y"}}],{ONE_INPUT}}}"#), None).expect_err("refused");
    assert!(matches!(error, ProtocolError::SharedMemory { .. }), "{error:?}");
    let message = refusal(format!(r#"{{"outputs":[{{"name":"Y","parameters":{{"binary_data":1}}}}],{ONE_INPUT}}}"#));
    assert_eq!(message, "'binary_data' of output 'Y': expected true or false");
}

#[test]
fn a_message_quotes_no_more_than_an_excerpt() {
    let long = "x".repeat(1_000_000);
    let mut bodies = vec![
        format!(r#"{{"id":[],"{long}":1,"parameters":{{"{long}":null}}}}"#),
        format!(r#"{{"parameters":{{"{long}":null}}}}"#),
        format!(r#"{{"inputs":["{long}"]}}"#),
        format!(r#"{{"inputs":[{{"name":"{long}","shape":"{long}"}}]}}"#),
        format!(r#"{{"outputs":[{{"name":"{long}"}},{{"name":"{long}"}}]}}"#),
    ];
    for tail in ["\"datatype\":\"FP\"", "\"datatype\":\"FP32\"", "\"datatype\":\"FP32\",\"data\":[]"] {
        bodies.push(format!(r#"{{"inputs":[{{"name":"{long}","shape":[1],{tail}}}]}}"#));
    }
    for body in bodies {
        let message = refusal(body);
        assert!(message.len() < 1000, "{} bytes", message.len());
    }
    let list = (0..2000).map(|n| format!(r#"{{"name":"{n}","shape":[0],"datatype":"BOOL","data":[]}}"#));
    let list = format!(r#"{{"inputs":[{}]}}"#, list.collect::<Vec<_>>().join(","));
    assert_eq!(refusal(list), "'inputs' has more than 1024 entries");
}
