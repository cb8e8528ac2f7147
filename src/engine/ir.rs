//! Reads the graph of an OpenVINO IR without the runtime, and follows the values that callers choose.

use std::collections::HashMap;

use ledge_base::tensor::DataType;
use roxmltree::{Document, Node, ParsingOptions};

use crate::backend::{InputDangers, ModelFormat, Runtime};
use crate::operators::{self, GraphFindings, Operation};

/// The most elements and attributes of a file. The largest language models have a hundred thousand layers.
const NODES_MAX: u32 = 20_000_000;

/// The deepest graph within graphs.
const DEPTH_MAX: usize = 8;

/// The elements that hold a graph within a layer.
const BODIES: [&str; 3] = ["body", "then_body", "else_body"];

/// The harm that callers could do to OpenVINO with the numbers that they send. A file that cannot be read is for no
/// runtime.
pub(crate) fn dangers(bytes: &[u8]) -> InputDangers {
    let options = ParsingOptions { nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    let text = String::from_utf8_lossy(bytes);
    let document = match Document::parse_with_options(&text, options) {
        Ok(document) => document,
        Err(error) => {
            let mut found = InputDangers { has_control_flow: true, ..InputDangers::default() };
            operators::refuse(&mut found, Runtime::OpenVino, format!("its XML cannot be checked: {error}"));
            return found;
        }
    };
    operators::within_limits(|found| graph(document.root_element(), 0, found))
}

fn graph(net: Node<'_, '_>, depth: usize, found: &mut GraphFindings) {
    if depth > DEPTH_MAX {
        operators::refuse(
            &mut found.dangers,
            Runtime::OpenVino,
            "its graphs are nested too deep to be checked".to_owned(),
        );
        return;
    }
    // Each port that an edge comes from, or that a layer has, is a value.
    let mut values = HashMap::<(&str, &str), usize>::new();
    let mut number = |port| {
        let number = values.len();
        *values.entry(port).or_insert(number)
    };
    let mut sources = HashMap::new();
    for edge in of(net, "edges").flat_map(|edges| of(edges, "edge")) {
        let text = |name| edge.attribute(name).unwrap_or_default();
        sources.insert((text("to-layer"), text("to-port")), number((text("from-layer"), text("from-port"))));
    }

    let mut operations = Vec::new();
    for layer in of(net, "layers").flat_map(|layers| of(layers, "layer")) {
        let text = |name| layer.attribute(name).unwrap_or_default();
        let (id, kind) = (text("id"), text("type"));
        let mut inner = layer.children().filter(|child| BODIES.contains(&child.tag_name().name())).peekable();
        let has_body = inner.peek().is_some();
        found.dangers.has_control_flow |= has_body || ["If", "Loop", "TensorIterator"].contains(&kind);
        for body in inner {
            graph(body, depth + 1, found);
        }
        let port = |port: &Node<'_, '_>| port.attribute("id").unwrap_or_default().to_owned();
        let inputs = of(layer, "input").flat_map(|input| of(input, "port"));
        let inputs = inputs.map(|input| sources.get(&(id, port(&input).as_str())).copied()).collect();
        let outputs = of(layer, "output").flat_map(|output| of(output, "port"));
        let outputs =
            outputs.map(|output| (number((id, output.attribute("id").unwrap_or_default())), datatype(&output)));
        operations.push(Operation {
            kind,
            name: text("name"),
            inputs,
            outputs: outputs.collect(),
            // The content of a state came from a caller, and the values that a loop makes of a constant depend on its
            // count.
            is_caller: has_body || ["Parameter", "ReadValue"].contains(&kind),
            is_constant: kind == "Const",
        });
    }
    operators::follow(ModelFormat::OpenVinoIr, &operations, found);
}

/// The datatype of a port.
fn datatype(port: &Node<'_, '_>) -> Option<DataType> {
    Some(match port.attribute("precision")? {
        "BOOL" => DataType::Bool,
        "U8" => DataType::Uint8,
        "U16" => DataType::Uint16,
        "U32" => DataType::Uint32,
        "U64" => DataType::Uint64,
        "I8" => DataType::Int8,
        "I16" => DataType::Int16,
        "I32" => DataType::Int32,
        "I64" => DataType::Int64,
        "FP16" => DataType::Fp16,
        "FP32" => DataType::Fp32,
        "FP64" => DataType::Fp64,
        _ => return None,
    })
}

/// The children of that name.
fn of<'a, 'input: 'a>(node: Node<'a, 'input>, name: &'static str) -> impl Iterator<Item = Node<'a, 'input>> {
    node.children().filter(move |child| child.tag_name().name() == name)
}

/// Reads a model for the fuzzers; true if its XML can be read.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_ir(data: &[u8]) -> bool {
    let found = dangers(data);
    assert!(found.refused.len() <= 1 && found.refused.iter().all(|(runtime, _)| *runtime == Runtime::OpenVino));
    !found.refused.iter().any(|(_, reason)| reason.contains("XML"))
}
