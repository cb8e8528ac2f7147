//! Reads an ONNX file without a runtime.
//!
//! Only the needed parts are declared, with the field numbers of `onnx.proto3`; weights are skipped, not kept. Five
//! things depend on it: outputs that are maps become tensors (`class_maps.rs`), external data outside the model's folder is refused before a runtime opens it, inputs and
//! outputs have the names of the file in every runtime, no runtime gets a model whose callers could crash it
//! (`dangers.rs`), and pipelines use what a file says of itself in its metadata.

pub(crate) mod class_maps;
mod dangers;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use prost::Message;

use crate::backend::{ClassMap, Dangers, PortNames};
use crate::files;

/// A file is not a model that Ledge opens.
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    #[error("is not an ONNX model, or is cut off: {0}")]
    Decode(#[from] prost::DecodeError),
    #[error("is not an ONNX model: it has no graph")]
    NoGraph,
    /// A tensor's data is outside the model's folder, or at an address in the memory of the process.
    #[error("{0}")]
    ExternalData(String),
}

#[derive(Message)]
struct ModelProto {
    #[prost(message, optional, tag = "7")]
    graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    opset_import: Vec<OperatorSetIdProto>,
    #[prost(message, repeated, tag = "14")]
    metadata_props: Vec<StringStringEntryProto>,
    #[prost(message, repeated, tag = "20")]
    training_info: Vec<TrainingInfoProto>,
    #[prost(message, repeated, tag = "25")]
    functions: Vec<FunctionProto>,
}

#[derive(Message)]
struct OperatorSetIdProto {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(int64, tag = "2")]
    version: i64,
}

#[derive(Message)]
struct TrainingInfoProto {
    #[prost(message, optional, tag = "1")]
    initialization: Option<GraphProto>,
    #[prost(message, optional, tag = "2")]
    algorithm: Option<GraphProto>,
}

#[derive(Message)]
struct FunctionProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, repeated, tag = "4")]
    input: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    output: Vec<String>,
    #[prost(message, repeated, tag = "7")]
    node: Vec<NodeProto>,
    #[prost(string, tag = "10")]
    domain: String,
    /// The attributes with a default.
    #[prost(message, repeated, tag = "11")]
    attribute_proto: Vec<AttributeProto>,
}

#[derive(Message)]
struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    node: Vec<NodeProto>,
    #[prost(message, repeated, tag = "5")]
    initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    output: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "15")]
    sparse_initializer: Vec<SparseTensorProto>,
}

#[derive(Message)]
struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    output: Vec<String>,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    op_type: String,
    #[prost(message, repeated, tag = "5")]
    attribute: Vec<AttributeProto>,
    #[prost(string, tag = "7")]
    domain: String,
}

#[derive(Message)]
struct AttributeProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int64, tag = "3")]
    i: i64,
    #[prost(message, optional, tag = "5")]
    t: Option<TensorProto>,
    #[prost(message, optional, tag = "6")]
    g: Option<GraphProto>,
    #[prost(message, repeated, tag = "10")]
    tensors: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    graphs: Vec<GraphProto>,
    #[prost(message, optional, tag = "22")]
    sparse_tensor: Option<SparseTensorProto>,
    #[prost(message, repeated, tag = "23")]
    sparse_tensors: Vec<SparseTensorProto>,
}

#[derive(Message)]
struct SparseTensorProto {
    #[prost(message, optional, tag = "1")]
    values: Option<TensorProto>,
    #[prost(message, optional, tag = "2")]
    indices: Option<TensorProto>,
}

#[derive(Message)]
struct TensorProto {
    #[prost(int64, repeated, tag = "1")]
    dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    data_type: i32,
    #[prost(string, tag = "8")]
    name: String,
    #[prost(message, repeated, tag = "13")]
    external_data: Vec<StringStringEntryProto>,
}

#[derive(Message)]
struct StringStringEntryProto {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Message)]
struct ValueInfoProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    r#type: Option<TypeProto>,
}

#[derive(Message)]
struct TypeProto {
    #[prost(message, optional, tag = "1")]
    tensor_type: Option<TensorTypeProto>,
}

#[derive(Message)]
struct TensorTypeProto {
    #[prost(int32, tag = "1")]
    elem_type: i32,
}

/// The facts that Ledge needs about an ONNX file.
#[derive(Debug, PartialEq, Eq)]
pub struct OnnxSummary {
    /// The names of its inputs, without initializers, and of its outputs.
    pub port_names: PortNames,
    /// The files with some of its weights, as paths within its folder, each once and in the order of their bytes.
    pub external_data: Vec<PathBuf>,
    /// Its operator sets: the domain (empty for the standard one) and the version.
    pub operator_sets: Vec<(String, i64)>,
    /// The harm that callers could do to a runtime.
    pub dangers: Dangers,
    /// The outputs that are maps from classes to scores.
    pub class_maps: Vec<ClassMap>,
    /// The texts that the file has for programs, by their keys, such as the characters of a model that reads.
    pub metadata: BTreeMap<String, String>,
}

/// Reads `bytes`, the content of a model file.
pub fn summarize(bytes: &[u8]) -> Result<OnnxSummary, OnnxError> {
    let model = ModelProto::decode(bytes)?;
    let graph = model.graph.as_ref().ok_or(OnnxError::NoGraph)?;
    let dangers = dangers::find(&model);
    let external_data = external_data(&model)?;
    // A runtime that gets a rewritten model finds no files beside it. A function may have the name of an operator.
    let can_be_rewritten = external_data.is_empty() && model.functions.is_empty();
    let class_maps = if can_be_rewritten { class_maps::find(bytes, graph) } else { Vec::new() };
    let is_input = |name: &&str| !graph.initializer.iter().any(|tensor| tensor.name == **name);
    Ok(OnnxSummary {
        port_names: PortNames {
            inputs: graph.input.iter().map(|value| value.name.as_str()).filter(is_input).map(str::to_owned).collect(),
            outputs: graph.output.iter().map(|value| value.name.clone()).collect(),
        },
        external_data,
        dangers,
        class_maps,
        metadata: model.metadata_props.iter().map(|entry| (entry.key.clone(), entry.value.clone())).collect(),
        operator_sets: model.opset_import.iter().map(|set| (set.domain.clone(), set.version)).collect(),
    })
}

/// Reads a model for the fuzzers; true if it can be read. The files that it names are in its folder.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_onnx(data: &[u8]) -> bool {
    let Ok(summary) = summarize(data) else { return false };
    for path in &summary.external_data {
        let mut parts = path.components();
        assert!(parts.all(|part| matches!(part, std::path::Component::Normal(_))), "{}", path.display());
        assert!(!path.as_os_str().is_empty());
    }
    if !summary.class_maps.is_empty() {
        let rewritten = class_maps::rewrite(data, &summary.class_maps).unwrap_or_default();
        let again = summarize(&rewritten).unwrap_or_else(|error| panic!("a rewritten model {error}"));
        assert_eq!(again.class_maps, [], "a map is left");
        assert_eq!(again.port_names, summary.port_names);
        assert_eq!(again.dangers, summary.dangers);
    }
    true
}

/// The files that any tensor of `model` refers to.
fn external_data(model: &ModelProto) -> Result<Vec<PathBuf>, OnnxError> {
    let mut locations = Vec::new();
    let training = model.training_info.iter().flat_map(|info| info.initialization.iter().chain(&info.algorithm));
    model.graph.iter().chain(training).for_each(|graph| collect_from_graph(graph, &mut locations));
    for function in &model.functions {
        function.node.iter().for_each(|node| collect_from_attributes(&node.attribute, &mut locations));
        collect_from_attributes(&function.attribute_proto, &mut locations);
    }
    locations.sort_unstable();
    locations.dedup();
    let path = |location: &str| files::check_path(Path::new(location)).map(|()| location.into());
    locations.into_iter().map(path).collect::<Result<_, _>>().map_err(OnnxError::ExternalData)
}

fn collect_from_graph<'a>(graph: &'a GraphProto, locations: &mut Vec<&'a str>) {
    graph.initializer.iter().for_each(|tensor| collect_from_tensor(tensor, locations));
    graph.sparse_initializer.iter().for_each(|tensor| collect_from_sparse(tensor, locations));
    graph.node.iter().for_each(|node| collect_from_attributes(&node.attribute, locations));
}

// Attributes contain graphs. prost refuses to decode more than 100 levels, which bounds this recursion.
fn collect_from_attributes<'a>(attributes: &'a [AttributeProto], locations: &mut Vec<&'a str>) {
    for attribute in attributes {
        attribute.t.iter().chain(&attribute.tensors).for_each(|tensor| collect_from_tensor(tensor, locations));
        attribute.g.iter().chain(&attribute.graphs).for_each(|graph| collect_from_graph(graph, locations));
        let sparse = attribute.sparse_tensor.iter().chain(&attribute.sparse_tensors);
        sparse.for_each(|tensor| collect_from_sparse(tensor, locations));
    }
}

fn collect_from_sparse<'a>(tensor: &'a SparseTensorProto, locations: &mut Vec<&'a str>) {
    tensor.values.iter().chain(&tensor.indices).for_each(|tensor| collect_from_tensor(tensor, locations));
}

fn collect_from_tensor<'a>(tensor: &'a TensorProto, locations: &mut Vec<&'a str>) {
    // A runtime uses any entry with the key "location". `data_location` is ignored, as some runtimes ignore it.
    locations.extend(tensor.external_data.iter().filter(|entry| entry.key == "location").map(|e| e.value.as_str()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(name: &str) -> ValueInfoProto {
        ValueInfoProto { name: name.into(), r#type: None }
    }

    fn tensor_at(location: &str) -> TensorProto {
        let entry = StringStringEntryProto { key: "location".into(), value: location.into() };
        TensorProto { name: "w".into(), external_data: vec![entry], ..TensorProto::default() }
    }

    fn graph_with(location: &str) -> GraphProto {
        let inner = GraphProto { initializer: vec![tensor_at(location)], ..GraphProto::default() };
        let branch = AttributeProto { g: Some(inner), ..AttributeProto::default() };
        GraphProto {
            node: vec![NodeProto { attribute: vec![branch], ..NodeProto::default() }],
            initializer: vec![TensorProto { name: "b".into(), ..TensorProto::default() }],
            input: ["x", "b"].map(value).into(),
            output: vec![value("y")],
            ..GraphProto::default()
        }
    }

    fn model_with(location: &str) -> Vec<u8> {
        ModelProto { graph: Some(graph_with(location)), ..ModelProto::default() }.encode_to_vec()
    }

    #[test]
    fn metadata_is_read() {
        let entry = StringStringEntryProto { key: "character".into(), value: "a\nb".into() };
        let model = ModelProto { graph: Some(graph_with("w")), metadata_props: vec![entry], ..ModelProto::default() };
        let metadata = summarize(&model.encode_to_vec()).unwrap().metadata;
        assert_eq!(metadata, [("character".to_owned(), "a\nb".to_owned())].into());
    }

    #[test]
    fn external_data_is_found_wherever_a_model_can_have_a_tensor() {
        let default = AttributeProto { t: Some(tensor_at("default")), ..AttributeProto::default() };
        let values = SparseTensorProto { values: Some(tensor_at("values")), indices: Some(tensor_at("indices")) };
        let sparse = AttributeProto { sparse_tensor: Some(values), ..AttributeProto::default() };
        let node = NodeProto { attribute: vec![sparse], ..NodeProto::default() };
        let function = FunctionProto { node: vec![node], attribute_proto: vec![default], ..FunctionProto::default() };
        let training = TrainingInfoProto { algorithm: Some(graph_with("training")), ..TrainingInfoProto::default() };
        let model = ModelProto {
            graph: Some(graph_with("./graph")),
            training_info: vec![training],
            functions: vec![function],
            ..ModelProto::default()
        };
        let found = summarize(&model.encode_to_vec()).unwrap().external_data;
        assert_eq!(found, ["./graph", "default", "indices", "training", "values"].map(PathBuf::from));
    }

    #[test]
    fn external_data_is_beside_the_model_and_no_address_of_the_process() {
        for outside in ["../w", "/etc/passwd", "", "a/../../w", "*/_ORT_MEM_ADDR_/*", "./*/_ORT_MEM_ADDR_/*"] {
            let error = summarize(&model_with(outside)).unwrap_err();
            assert!(matches!(error, OnnxError::ExternalData(_)), "{outside}: {error}");
        }
    }

    #[test]
    fn initializers_are_not_inputs() {
        let names = summarize(&model_with("w")).unwrap().port_names;
        assert_eq!(names, PortNames { inputs: vec!["x".into()], outputs: vec!["y".into()] });
    }

    #[test]
    fn what_is_not_onnx_is_an_error() {
        assert!(matches!(summarize(b""), Err(OnnxError::NoGraph)));
        assert!(summarize(b"\x89PNG\r\n\x1a\n0000").is_err());
        let whole = model_with("w");
        assert!(summarize(&whole[..whole.len() / 2]).is_err());
    }
}
