//! Reads an ONNX file without a runtime.
//!
//! Only the needed parts are declared (`protos.rs`), with the field numbers of `onnx.proto3`; weights are counted, not
//! kept (`tensor.rs`). Six things depend on it: outputs that are maps become tensors (`class_maps.rs`), external data
//! outside the model's folder is refused before a runtime opens it, and so are shapes without data and graphs nested
//! too deep (`limits.rs`), inputs and outputs have the names of the file in every runtime, no runtime gets a model that
//! lets callers crash it (`dangers.rs`) or has operators that it does not know (`domains.rs`), and pipelines use the
//! metadata of a file.

pub(crate) mod class_maps;
mod dangers;
mod domains;
mod error;
mod limits;
mod protos;
mod tensor;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use prost::Message;

use crate::backend::{InputDangers, ModelPortNames, ZipMapOutput};
use crate::external_file::{ExternalDataFile, check_path};
pub use error::OnnxError;
use protos::ModelProto;

/// The facts that Ledge needs about an ONNX file.
#[derive(Debug, PartialEq, Eq)]
pub struct OnnxSummary {
    /// The names of its inputs, without initializers, and of its outputs.
    pub port_names: ModelPortNames,
    /// The files with some of its weights, each once and in the order of the bytes of their paths.
    pub external_data: Vec<ExternalDataFile>,
    /// Its operator sets: the domain (empty for the standard one) and the version.
    pub operator_sets: Vec<(String, i64)>,
    /// The harm that callers could do to a runtime.
    pub dangers: InputDangers,
    /// The outputs that are maps from classes to scores.
    pub class_maps: Vec<ZipMapOutput>,
    /// The texts that the file has for programs, by their keys, such as the characters of a model that reads.
    pub metadata: BTreeMap<String, String>,
}

/// Reads `bytes`, the content of a model file.
pub fn summarize(bytes: &[u8]) -> Result<OnnxSummary, OnnxError> {
    let model = ModelProto::decode(bytes)?;
    let graph = model.graph.as_ref().ok_or(OnnxError::NoGraph)?;
    let external_data = external_data(limits::check(&model)?)?;
    let mut dangers = dangers::find(&model);
    for (runtime, reason) in domains::unknown(&model)? {
        // One reason for each runtime is enough.
        if !dangers.refused.iter().any(|(refused, _)| *refused == runtime) {
            dangers.refused.push((runtime, reason));
        }
    }
    // A runtime that gets a rewritten model finds no files next to it. A function may have the name of an operator.
    let can_be_rewritten = external_data.is_empty() && model.functions.is_empty();
    let class_maps = if can_be_rewritten { class_maps::find(bytes, graph) } else { Vec::new() };
    let initializers: HashSet<&str> = graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
    let is_input = |name: &&str| !initializers.contains(name);
    Ok(OnnxSummary {
        port_names: ModelPortNames {
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
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_onnx(data: &[u8]) -> bool {
    let Ok(summary) = summarize(data) else { return false };
    for ExternalDataFile { path, .. } in &summary.external_data {
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

/// The files at these locations.
fn external_data(locations: limits::ExternalDataSizes<'_>) -> Result<Vec<ExternalDataFile>, OnnxError> {
    let file = |(location, bytes): (&str, u64)| {
        check_path(Path::new(location)).map(|()| ExternalDataFile { path: location.into(), bytes })
    };
    locations.into_iter().map(file).collect::<Result<_, _>>().map_err(OnnxError::ExternalData)
}

#[cfg(test)]
mod tests {
    use super::protos::{
        AttributeProto, FunctionProto, GraphProto, NodeProto, SparseTensorProto, TrainingInfoProto, ValueInfoProto,
    };
    use super::tensor::{StringStringEntryProto, TensorProto};
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
        let (values, indices) = (Some(tensor_at("values")), Some(tensor_at("indices")));
        let values = SparseTensorProto { values, indices, ..SparseTensorProto::default() };
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
        let paths: Vec<_> = found.iter().map(|file| file.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["./graph", "default", "indices", "training", "values"]);
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
        assert_eq!(names, ModelPortNames { inputs: vec!["x".into()], outputs: vec!["y".into()] });
    }

    #[test]
    fn what_is_not_onnx_is_an_error() {
        assert!(matches!(summarize(b""), Err(OnnxError::NoGraph)));
        assert!(summarize(b"\x89PNG\r\n\x1a\n0000").is_err());
        let whole = model_with("w");
        assert!(summarize(&whole[..whole.len() / 2]).is_err());
    }
}
