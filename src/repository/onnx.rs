//! What an ONNX file says about itself, read without a runtime.
//!
//! Only the parts that Ledge needs are declared, with the field numbers of `onnx.proto3`; weights are skipped, not kept.
//! Three things hang on it: external data outside the model's folder is refused before a runtime opens it, the inputs and
//! outputs get the names that the file gives them, whichever runtime runs it, and no runtime gets a model in which it does
//! not withstand what a caller sends (`dangers.rs`).

mod dangers;

use std::path::{Component, Path, PathBuf};

use prost::Message;

use crate::inference::backend::{Dangers, PortNames};

/// Why a file is not a model that Ledge opens.
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    /// The bytes are not an ONNX model.
    #[error("is not an ONNX model, or is cut off: {0}")]
    Decode(#[from] prost::DecodeError),
    /// There is no graph in it.
    #[error("is not an ONNX model: it has no graph")]
    NoGraph,
    /// A tensor's data lies outside the model's folder.
    #[error("refers to external data at {location:?}, outside its own folder")]
    ExternalDataOutside {
        /// The location as written in the file.
        location: String,
    },
    /// A tensor's data is not there.
    #[error("refers to external data at {location:?}, which is not a file")]
    ExternalDataMissing {
        /// The location as written in the file.
        location: String,
    },
}

#[derive(Message)]
struct ModelProto {
    #[prost(message, optional, tag = "7")]
    graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    opset_import: Vec<OperatorSetIdProto>,
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

/// What an ONNX file says about itself.
#[derive(Debug, PartialEq, Eq)]
pub struct OnnxSummary {
    /// The names of its inputs (initializers left out) and outputs.
    pub port_names: PortNames,
    /// Files beside it that hold some of its weights.
    pub external_data: Vec<PathBuf>,
    /// Its operator sets: domain (empty for the standard one) and version.
    pub operator_sets: Vec<(String, i64)>,
    /// What callers could do to a runtime.
    pub dangers: Dangers,
}

/// Reads `bytes`, the content of a model file in `folder`.
pub fn summarize(bytes: &[u8], folder: &Path) -> Result<OnnxSummary, OnnxError> {
    let model = ModelProto::decode(bytes)?;
    let graph = model.graph.as_ref().ok_or(OnnxError::NoGraph)?;
    let mut locations = Vec::new();
    collect_from_graph(graph, &mut locations);
    for node in model.functions.iter().flat_map(|function| &function.node) {
        collect_from_node(node, &mut locations);
    }
    locations.sort_unstable();
    locations.dedup();
    let dangers = dangers::of(&model);
    let external_data =
        locations.iter().map(|location| resolve(location, folder)).collect::<Result<Vec<_>, OnnxError>>()?;
    let is_input = |name: &&str| !graph.initializer.iter().any(|tensor| tensor.name == **name);
    Ok(OnnxSummary {
        port_names: PortNames {
            inputs: graph.input.iter().map(|value| value.name.as_str()).filter(is_input).map(str::to_owned).collect(),
            outputs: graph.output.iter().map(|value| value.name.clone()).collect(),
        },
        external_data,
        dangers,
        operator_sets: model.opset_import.iter().map(|set| (set.domain.clone(), set.version)).collect(),
    })
}

fn collect_from_graph<'a>(graph: &'a GraphProto, locations: &mut Vec<&'a str>) {
    graph.initializer.iter().for_each(|tensor| collect_from_tensor(tensor, locations));
    graph.sparse_initializer.iter().for_each(|tensor| collect_from_sparse(tensor, locations));
    graph.node.iter().for_each(|node| collect_from_node(node, locations));
}

// Graphs nest in attributes; prost refuses to decode deeper than 100 levels, so this recursion is bounded too.
fn collect_from_node<'a>(node: &'a NodeProto, locations: &mut Vec<&'a str>) {
    for attribute in &node.attribute {
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
    // A runtime takes any entry called "location"; `data_location` is not looked at, as some runtimes ignore it too.
    locations.extend(tensor.external_data.iter().filter(|entry| entry.key == "location").map(|e| e.value.as_str()));
}

/// The file of `location`, which must lie in `folder` with every symbolic link followed.
fn resolve(location: &str, folder: &Path) -> Result<PathBuf, OnnxError> {
    let outside = || OnnxError::ExternalDataOutside { location: location.to_owned() };
    let missing = |_| OnnxError::ExternalDataMissing { location: location.to_owned() };
    let relative = Path::new(location);
    if location.is_empty()
        || !relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
    {
        return Err(outside());
    }
    let file = folder.join(relative).canonicalize().map_err(missing)?;
    if !file.starts_with(folder.canonicalize().map_err(missing)?) {
        return Err(outside());
    }
    if !file.is_file() {
        return Err(OnnxError::ExternalDataMissing { location: location.to_owned() });
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(name: &str) -> ValueInfoProto {
        ValueInfoProto { name: name.into(), r#type: None }
    }

    fn model_with(location: &str) -> Vec<u8> {
        let entry = StringStringEntryProto { key: "location".into(), value: location.into() };
        let weight = TensorProto { name: "w".into(), external_data: vec![entry], ..TensorProto::default() };
        let inner = GraphProto { initializer: vec![weight], ..GraphProto::default() };
        let branch = AttributeProto { g: Some(inner), ..AttributeProto::default() };
        let graph = GraphProto {
            node: vec![NodeProto { attribute: vec![branch], ..NodeProto::default() }],
            initializer: vec![TensorProto { name: "b".into(), ..TensorProto::default() }],
            input: ["x", "b"].map(value).into(),
            output: vec![value("y")],
            ..GraphProto::default()
        };
        ModelProto { graph: Some(graph), ..ModelProto::default() }.encode_to_vec()
    }

    #[test]
    fn external_data_is_found_in_subgraphs_and_stays_in_its_folder() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("1");
        std::fs::create_dir(&folder).unwrap();
        for path in ["1/weights.bin", "outside.bin"] {
            crate::durable::replace(&root.path().join(path), b"w").unwrap();
        }
        std::os::unix::fs::symlink("../outside.bin", folder.join("link.bin")).unwrap();

        let summary = summarize(&model_with("weights.bin"), &folder).unwrap();
        assert_eq!(summary.external_data, [folder.canonicalize().unwrap().join("weights.bin")]);
        for outside in ["../outside.bin", "/etc/passwd", "link.bin", "", "a/../../outside.bin"] {
            let error = summarize(&model_with(outside), &folder).unwrap_err();
            assert!(matches!(error, OnnxError::ExternalDataOutside { .. }), "{outside}: {error}");
        }
        let error = summarize(&model_with("gone.bin"), &folder).unwrap_err();
        assert!(matches!(error, OnnxError::ExternalDataMissing { .. }), "{error}");
    }

    #[test]
    fn initializers_are_not_inputs() {
        let root = tempfile::tempdir().unwrap();
        crate::durable::replace(&root.path().join("w"), b"w").unwrap();
        let names = summarize(&model_with("w"), root.path()).unwrap().port_names;
        assert_eq!(names, PortNames { inputs: vec!["x".into()], outputs: vec!["y".into()] });
    }

    #[test]
    fn what_is_not_onnx_is_an_error() {
        let folder = Path::new(".");
        assert!(matches!(summarize(b"", folder), Err(OnnxError::NoGraph)));
        assert!(summarize(b"\x89PNG\r\n\x1a\n0000", folder).is_err());
        let whole = model_with("w");
        assert!(summarize(&whole[..whole.len() / 2], folder).is_err());
    }
}
