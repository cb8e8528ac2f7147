//! An ONNX model that doubles its input a given number of times: a `Loop` with the number of iterations as an input.

use crate::daemon::TestRoot;

/// The name of the model.
pub const LOOPING: &str = "looping";

/// Numbers of fields are those of `onnx.proto`; messages and strings have the wire type 2, numbers 0.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).ok().filter(|length| *length < 128);
    let mut bytes = vec![number << 3 | 2];
    match length {
        Some(length) => bytes.push(length),
        None => {
            bytes.extend([u8::try_from(content.len() & 127).unwrap() | 128, u8::try_from(content.len() >> 7).unwrap()]);
        }
    }
    [&bytes, content].concat()
}

fn number(number: u8, value: u8) -> Vec<u8> {
    // Tags from 16 on take two bytes.
    let tag = if number < 16 { vec![number << 3] } else { vec![number << 3 | 128, 1] };
    [tag, vec![value]].concat()
}

/// A `ValueInfoProto` of a tensor with these dimensions.
fn value(name: &str, element: u8, dims: &[u8]) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|dim| field(1, &number(1, *dim))).collect();
    let tensor = [number(1, element), field(2, &dims)].concat();
    [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat()
}

fn node(operator: &str, inputs: &[&str], outputs: &[&str], attribute: &[u8]) -> Vec<u8> {
    let inputs = inputs.iter().flat_map(|name| field(1, name.as_bytes()));
    let outputs = outputs.iter().flat_map(|name| field(2, name.as_bytes()));
    inputs.chain(outputs).chain(field(4, operator.as_bytes())).chain(attribute.iter().copied()).collect()
}

fn graph(name: &str, nodes: &[Vec<u8>], inputs: &[Vec<u8>], outputs: &[Vec<u8>]) -> Vec<u8> {
    let all = |number: u8, parts: &[Vec<u8>]| parts.iter().flat_map(|part| field(number, part)).collect::<Vec<_>>();
    [all(1, nodes), field(2, name.as_bytes()), all(11, inputs), all(12, outputs)].concat()
}

fn onnx() -> Vec<u8> {
    const FLOAT: u8 = 1;
    const INT64: u8 = 7;
    const BOOL: u8 = 9;
    const GRAPH: u8 = 5;
    let body = graph(
        "body",
        &[node("Identity", &["go_on"], &["goes_on"], &[]), node("Add", &["before", "before"], &["after"], &[])],
        &[value("trip", INT64, &[]), value("go_on", BOOL, &[]), value("before", FLOAT, &[4])],
        &[value("goes_on", BOOL, &[]), value("after", FLOAT, &[4])],
    );
    let attribute = field(5, &[field(1, b"body"), field(6, &body), number(20, GRAPH)].concat());
    let main = graph(
        "looping",
        &[node("Loop", &["trips", "", "x"], &["y"], &attribute)],
        &[value("trips", INT64, &[1]), value("x", FLOAT, &[4])],
        &[value("y", FLOAT, &[4])],
    );
    let operators = [field(1, b""), number(2, 17)].concat();
    [number(1, 8), field(7, &main), field(8, &operators)].concat()
}

/// Adds the model in ONNX Runtime, with a copy for each of two cores.
pub fn with_looping(root: TestRoot, timeout_ms: u64) -> TestRoot {
    let config = format!(
        "runtime = \"onnxruntime\"\nmax_batch_size = 0\n[instance_group]\ncount = 2\n[queue]\ndefault_timeout_ms = \
         {timeout_ms}\n"
    );
    root.file(&format!("{LOOPING}/1/model.onnx"), onnx()).file(&format!("{LOOPING}/model.toml"), config)
}
