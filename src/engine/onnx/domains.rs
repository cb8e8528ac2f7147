//! Finds operators of domains that a runtime does not have, before it reads the file.
//!
//! Nodes that no output needs are left to the runtimes. ONNX Runtime refuses unknown operators there, too; OpenVINO
//! ignores these nodes, which occur in a model after its last steps were cut off by naming other outputs.

use std::collections::{HashMap, HashSet};

use crate::backend::Runtime;
use crate::onnx::error::OnnxError;
use crate::onnx::protos::{GraphProto, ModelProto, NodeProto};
use crate::text::shortened;

/// The domains of operators of both runtimes, besides the standard one.
const OF_BOTH: [&str; 3] = ["ai.onnx.ml", "com.microsoft", "org.pytorch.aten"];
/// The other domains of ONNX Runtime. It writes those of `nchwc` and `nhwc` into models that it has optimized.
const OF_ONNXRUNTIME: [&str; 6] = [
    "ai.onnx.training",
    "ai.onnx.preview",
    "ai.onnx.preview.training",
    "com.microsoft.experimental",
    "com.microsoft.nchwc",
    "com.ms.internal.nhwc",
];
/// The other domains of OpenVINO.
const OF_OPENVINO: [&str; 2] = ["org.openvinotoolkit", "mmdeploy"];

/// The domain, with the longer of the standard domain's two names replaced by the empty one.
pub(super) fn without_alias(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// The runtimes that do not have the domain of an operator of `model`, with the reason. An operator that neither has is
/// an error. The domains of the functions in the file are known.
pub(super) fn unknown(model: &ModelProto) -> Result<Vec<(Runtime, String)>, OnnxError> {
    let (mut functions, mut own) = (HashMap::new(), HashSet::new());
    for function in &model.functions {
        let domain = without_alias(&function.domain);
        own.insert(domain);
        functions.entry((domain, function.name.as_str())).or_insert(function);
    }
    let mut refused = Vec::<(Runtime, String)>::new();
    // Each node once, however deep it is, and each function once, however often it is called.
    let mut next: Vec<&NodeProto> = model.graph.as_ref().map(needed).unwrap_or_default();
    while let Some(node) = next.pop() {
        let domain = without_alias(&node.domain);
        if !own.contains(domain)
            && let Some(runtime) = without(node, domain)?
            && !refused.iter().any(|(refused, _)| *refused == runtime)
        {
            let (operator, domain) = (shortened(&node.op_type), shortened(domain));
            refused.push((runtime, format!("it does not know the operator {operator:?} of the domain {domain:?}")));
        }
        next.extend(within(node));
        if let Some(function) = functions.remove(&(domain, node.op_type.as_str())) {
            next.extend(&function.node);
        }
    }
    Ok(refused)
}

/// The runtime that does not have a domain which the other one has.
fn without(node: &NodeProto, domain: &str) -> Result<Option<Runtime>, OnnxError> {
    match domain {
        "" => Ok(None),
        _ if OF_BOTH.contains(&domain) => Ok(None),
        _ if OF_ONNXRUNTIME.contains(&domain) => Ok(Some(Runtime::OpenVino)),
        _ if OF_OPENVINO.contains(&domain) => Ok(Some(Runtime::OnnxRuntime)),
        _ => Err(OnnxError::UnknownOperator { operator: shortened(&node.op_type), domain: shortened(domain) }),
    }
}

/// The nodes of the graphs within a node, without those within them.
fn within(node: &NodeProto) -> impl Iterator<Item = &NodeProto> {
    let graphs = node.attribute.iter().flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs));
    graphs.flat_map(|graph| &graph.node)
}

/// The nodes that outputs of a graph need. Nodes come after those that make their inputs.
fn needed(graph: &GraphProto) -> Vec<&NodeProto> {
    let mut names: HashSet<&str> = graph.output.iter().map(|output| output.name.as_str()).collect();
    let mut found = Vec::new();
    for node in graph.node.iter().rev() {
        if !node.output.iter().any(|name| names.contains(name.as_str())) {
            continue;
        }
        found.push(node);
        // Graphs within it, too, take values of this one, and give them on as outputs.
        let mut inner = vec![node];
        while let Some(node) = inner.pop() {
            names.extend(node.input.iter().map(String::as_str));
            let graphs = node.attribute.iter().flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs));
            names.extend(graphs.flat_map(|graph| &graph.output).map(|output| output.name.as_str()));
            inner.extend(within(node));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::protos::{AttributeProto, FunctionProto, ValueInfoProto};
    use super::*;

    fn swirl(domain: &str, from: &str, to: &str) -> NodeProto {
        NodeProto {
            op_type: "Swirl".into(),
            domain: domain.into(),
            input: vec![from.into()],
            output: vec![to.into()],
            ..NodeProto::default()
        }
    }

    fn graph(node: Vec<NodeProto>, output: &str) -> GraphProto {
        GraphProto { node, output: vec![ValueInfoProto { name: output.into(), r#type: None }], ..GraphProto::default() }
    }

    fn branch(inner: GraphProto, to: &str) -> NodeProto {
        let attribute = AttributeProto { g: Some(inner), ..AttributeProto::default() };
        NodeProto { op_type: "If".into(), output: vec![to.into()], attribute: vec![attribute], ..NodeProto::default() }
    }

    fn found(nodes: Vec<NodeProto>, functions: Vec<FunctionProto>) -> Result<Vec<(Runtime, String)>, String> {
        let model = ModelProto { graph: Some(graph(nodes, "y")), functions, ..ModelProto::default() };
        unknown(&model).map_err(|error| error.to_string())
    }

    const UNKNOWN: &str = "has the operator \"Swirl\" of the domain \"acme\", which no runtime knows";

    #[test]
    fn an_operator_that_no_runtime_has_is_refused_wherever_an_output_needs_it() {
        for nodes in [
            vec![swirl("acme", "x", "y")],
            vec![swirl("acme", "x", "a"), swirl("", "a", "y")],
            vec![branch(graph(vec![swirl("acme", "x", "z")], "z"), "y")],
            // A value that only a graph within a graph takes, or gives on.
            vec![
                swirl("acme", "x", "a"),
                branch(graph(vec![branch(graph(vec![swirl("", "a", "z")], "z"), "b")], "b"), "y"),
            ],
            vec![swirl("acme", "x", "a"), branch(graph(vec![], "a"), "y")],
        ] {
            assert_eq!(found(nodes.clone(), vec![]), Err(UNKNOWN.to_owned()), "{nodes:?}");
        }
        assert_eq!(found(vec![swirl("acme", "x", "a"), swirl("", "x", "y")], vec![]), Ok(vec![]), "nothing needs it");
    }

    #[test]
    fn an_operator_of_one_runtime_is_for_that_one() {
        for domain in OF_BOTH.iter().chain(&["", "ai.onnx"]) {
            assert_eq!(found(vec![swirl(domain, "x", "y")], vec![]), Ok(vec![]));
        }
        for (domains, without) in [(&OF_ONNXRUNTIME[..], Runtime::OpenVino), (&OF_OPENVINO, Runtime::OnnxRuntime)] {
            for domain in domains {
                let nodes = vec![swirl(domain, "x", "a"), swirl(domain, "a", "y")];
                let reason = format!("it does not know the operator \"Swirl\" of the domain {domain:?}");
                assert_eq!(found(nodes, vec![]), Ok(vec![(without, reason)]));
            }
        }
    }

    #[test]
    fn domains_of_the_models_own_functions_are_known_and_their_bodies_are_checked() {
        let function = |domain: &str, body: &str| FunctionProto {
            name: "Swirl".into(),
            domain: domain.into(),
            node: vec![swirl(body, "x", "y"), swirl(domain, "x", "y")],
            ..FunctionProto::default()
        };
        let called = |functions, domain: &str| found(vec![swirl(domain, "x", "y")], functions);
        assert_eq!(called(vec![function("own", "com.microsoft")], "own"), Ok(vec![]));
        assert_eq!(called(vec![function("own", "acme")], "own"), Err(UNKNOWN.to_owned()));
        assert_eq!(called(vec![function("own", "acme")], ""), Ok(vec![]), "one that nothing calls");
        assert_eq!(called(vec![function("own", "")], "acme"), Err(UNKNOWN.to_owned()));
    }
}
