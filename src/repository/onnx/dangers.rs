//! Operators in which a runtime does not withstand what a caller sends: they end the process, read its memory, or answer
//! what should be refused.
//!
//! The graph is followed from its inputs, to know which values callers choose and which are whole numbers. Where the file
//! does not tell, a value is taken for no whole number: a division of floats harms nobody, and every model has some.

use std::collections::HashMap;

use super::{AttributeProto, GraphProto, ModelProto, NodeProto};
use crate::inference::backend::Runtime;

/// ONNX's numbers of the signed datatypes whose least value has no positive one on the CPU.
const INT32: i32 = 6;
const INT64: i32 = 7;

/// What callers may not do to a model.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Dangers {
    /// Why which runtime may not run it.
    pub refused: Vec<(Runtime, String)>,
    /// Inputs whose numbers choose rows of a table, and how many rows that has.
    pub rows: Vec<(String, i64)>,
    /// Inputs that are multiplied by a matrix, and how long their last dimension must be for it.
    pub widths: Vec<(String, i64)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Value<'a> {
    /// Whether a caller chooses it, beyond its shape.
    chosen: bool,
    /// Whether it is of 32 or 64 bit whole numbers with a sign.
    whole: bool,
    /// The input that has the same numbers.
    input: Option<&'a str>,
    /// The input that has the same last dimension.
    as_wide_as: Option<&'a str>,
    /// The dimensions of a weight.
    dims: Option<&'a [i64]>,
}

impl Value<'_> {
    fn of_type(datatype: i32) -> Self {
        Self { whole: matches!(datatype, INT32 | INT64), ..Self::default() }
    }
}

type Known<'a> = HashMap<&'a str, Value<'a>>;

/// Follows the values of a model.
pub(super) fn of(model: &ModelProto) -> Dangers {
    let mut found = Dangers::default();
    if let Some(graph) = &model.graph {
        let mut known = Known::new();
        for input in &graph.input {
            let name = Some(input.name.as_str());
            known.insert(&input.name, Value { input: name, as_wide_as: name, ..Value::default() });
        }
        walk_graph(graph, known, &mut found);
    }
    for function in &model.functions {
        // Of what types it is called with nothing is known here.
        let mut known = Known::new();
        for name in &function.input {
            known.insert(name, Value { chosen: true, ..Value::default() });
        }
        walk(&function.node, &mut known, &mut found);
    }
    found
}

/// A graph within which the values `known` of those around it can be used.
fn walk_graph<'a>(graph: &'a GraphProto, mut known: Known<'a>, found: &mut Dangers) {
    for input in &graph.input {
        let tensor = input.r#type.as_ref().and_then(|kind| kind.tensor_type.as_ref());
        let value = Value::of_type(tensor.map_or(0, |tensor| tensor.elem_type));
        let Value { input: same, as_wide_as, .. } = known.get(input.name.as_str()).copied().unwrap_or_default();
        known.insert(&input.name, Value { chosen: true, input: same, as_wide_as, ..value });
    }
    // Last, for an initializer may be the default of an input.
    for weight in &graph.initializer {
        known.insert(&weight.name, Value { dims: Some(&weight.dims), ..Value::of_type(weight.data_type) });
    }
    walk(&graph.node, &mut known, found);
}

fn walk<'a>(nodes: &'a [NodeProto], known: &mut Known<'a>, found: &mut Dangers) {
    for node in nodes {
        let inputs: Vec<Value> =
            node.input.iter().map(|name| known.get(name.as_str()).copied().unwrap_or_default()).collect();
        let input = |place: usize| inputs.get(place).copied().unwrap_or_default();
        if let Some(danger) = danger(node, input)
            && !found.refused.iter().any(|(runtime, _)| *runtime == danger.0)
        {
            found.refused.push(danger);
        }
        // Other lengths are the file's mistake, which the runtimes find.
        found.rows.extend(rows(node, input).filter(|(_, rows)| *rows > 0));
        found.widths.extend(width(node, input).filter(|(_, width)| *width > 0));
        for graph in node.attribute.iter().flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs)) {
            walk_graph(graph, known.clone(), found);
        }
        let chosen = inputs.iter().any(|value| value.chosen);
        known.extend(
            node.output.iter().enumerate().map(|(place, name)| (name.as_str(), output(node, place, chosen, input))),
        );
    }
}

/// The value that `node` gives at `place`, when it takes some that are chosen, or none.
fn output<'a>(node: &NodeProto, place: usize, chosen: bool, input: impl Fn(usize) -> Value<'a>) -> Value<'a> {
    let same = Value { chosen, whole: input(0).whole, as_wide_as: as_wide_as(node, &input), ..Value::default() };
    match (node.op_type.as_str(), place) {
        // Of a shape, or of places within one: within its bounds, whatever the values are.
        ("Shape" | "Size" | "NonZero" | "ArgMax" | "ArgMin", _) | ("TopK", 1) => Value::of_type(INT64),
        ("Constant" | "ConstantOfShape", _) => {
            let tensor = attribute(node, "value").and_then(|attribute| attribute.t.as_ref());
            Value::of_type(tensor.map_or(0, |tensor| tensor.data_type))
        }
        ("Cast", _) => {
            let to = attribute(node, "to").map_or(0, |attribute| i32::try_from(attribute.i).unwrap_or(0));
            let made = Value::of_type(to);
            Value { chosen, input: input(0).input.filter(|_| made.whole), as_wide_as: same.as_wide_as, ..made }
        }
        ("Identity" | "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten" | "Transpose", _) => {
            Value { input: input(0).input, ..same }
        }
        ("CastLike" | "Where", _) => Value { whole: input(1).whole, ..same },
        ("OneHot", _) => Value { whole: input(2).whole, ..same },
        (
            "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "Not" | "And" | "Or" | "Xor" | "IsNaN"
            | "IsInf" | "QuantizeLinear" | "DequantizeLinear",
            _,
        ) => Value { whole: false, ..same },
        _ => same,
    }
}

/// The input whose numbers choose rows of a weight here, and how many rows it has.
fn rows<'a>(node: &NodeProto, input: impl Fn(usize) -> Value<'a>) -> Option<(String, i64)> {
    if node.op_type != "Gather" || !is_standard(node) {
        return None;
    }
    let (dims, name) = (input(0).dims?, input(1).input?);
    let axis = attribute(node, "axis").map_or(0, |attribute| attribute.i);
    let axis = if axis < 0 { axis + i64::try_from(dims.len()).ok()? } else { axis };
    Some((name.to_owned(), *dims.get(usize::try_from(axis).ok()?)?))
}

/// The input whose last dimension the outputs of `node` have.
fn as_wide_as<'a>(node: &NodeProto, input: impl Fn(usize) -> Value<'a>) -> Option<&'a str> {
    match node.op_type.as_str() {
        "Identity" | "Cast" | "Dropout" | "QuantizeLinear" | "DequantizeLinear" | "Relu" | "LeakyRelu" | "Sigmoid"
        | "Tanh" | "Neg" | "Abs" | "Sqrt" | "Exp" | "Log" | "Clip" | "Erf" | "Softmax" => input(0).as_wide_as,
        "Add" | "Sub" | "Mul" | "Div" | "Pow" => {
            // A longer weight would make the other one as long.
            let is_single = |value: Value<'_>| value.dims.is_some_and(|dims| dims.last().is_none_or(|&dim| dim == 1));
            match (input(0), input(1)) {
                (value, weight) | (weight, value) if is_single(weight) => value.as_wide_as,
                _ => None,
            }
        }
        _ => None,
    }
}

/// The input that is multiplied by a matrix here, and how many rows that matrix has.
fn width<'a>(node: &NodeProto, input: impl Fn(usize) -> Value<'a>) -> Option<(String, i64)> {
    let is_set = |name| attribute(node, name).is_some_and(|attribute| attribute.i != 0);
    let (name, dims) = (input(0).as_wide_as?, input(1).dims?);
    let &[rows, cols] = dims else { return None };
    match node.op_type.as_str() {
        _ if !is_standard(node) => None,
        "MatMul" => Some((name.to_owned(), rows)),
        "Gemm" if !is_set("transA") => Some((name.to_owned(), if is_set("transB") { cols } else { rows })),
        _ => None,
    }
}

fn is_standard(node: &NodeProto) -> bool {
    matches!(node.domain.as_str(), "" | "ai.onnx")
}

fn danger<'a>(node: &NodeProto, input: impl Fn(usize) -> Value<'a>) -> Option<(Runtime, String)> {
    if !is_standard(node) {
        return None;
    }
    let name = if node.name.is_empty() { node.output.first() } else { Some(&node.name) };
    let name = name.map_or("", String::as_str);
    match node.op_type.as_str() {
        // The remainder of floats is another function, `fmod` of C.
        "Mod" if attribute(node, "fmod").is_some_and(|attribute| attribute.i == 1) => None,
        kind @ ("Div" | "Mod") if input(1).chosen && (input(0).whole || input(1).whole) => Some((
            Runtime::OnnxRuntime,
            format!(
                "{kind} {name:?} divides whole numbers by what callers send, and the least one by -1 ends the process"
            ),
        )),
        "GatherND" if input(1).chosen => Some((
            Runtime::OpenVino,
            format!("GatherND {name:?} takes indices that callers send, and reads whatever memory they lead to"),
        )),
        _ => None,
    }
}

fn attribute<'a>(node: &'a NodeProto, name: &str) -> Option<&'a AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name == name)
}

#[cfg(test)]
mod tests {
    use super::super::{TensorProto, TensorTypeProto, TypeProto, ValueInfoProto};
    use super::*;

    const FLOAT: i32 = 1;

    fn node(op: &str, inputs: &[&str], output: &str, attributes: Vec<AttributeProto>) -> NodeProto {
        NodeProto {
            op_type: op.into(),
            input: inputs.iter().map(|&name| name.into()).collect(),
            output: vec![output.into()],
            attribute: attributes,
            ..NodeProto::default()
        }
    }

    fn number(name: &str, i: i64) -> AttributeProto {
        AttributeProto { name: name.into(), i, ..AttributeProto::default() }
    }

    fn graph(nodes: Vec<NodeProto>) -> GraphProto {
        let input = |(name, elem_type): (&str, i32)| ValueInfoProto {
            name: name.into(),
            r#type: Some(TypeProto { tensor_type: Some(TensorTypeProto { elem_type }) }),
        };
        GraphProto {
            node: nodes,
            input: [("x", FLOAT), ("i", INT64), ("j", INT32)].map(input).into(),
            initializer: vec![TensorProto {
                name: "c".into(),
                data_type: INT64,
                dims: vec![30, 8],
                ..TensorProto::default()
            }],
            ..GraphProto::default()
        }
    }

    fn endangered(nodes: Vec<NodeProto>) -> Vec<Runtime> {
        let model = ModelProto { graph: Some(graph(nodes)), ..ModelProto::default() };
        of(&model).refused.into_iter().map(|(runtime, _)| runtime).collect()
    }

    #[test]
    fn the_rows_of_a_table_that_callers_choose_from_are_counted() {
        let rows = |nodes| of(&ModelProto { graph: Some(graph(nodes)), ..ModelProto::default() }).rows;
        let gather = |from: &str, axis| node("Gather", &["c", from], "y", vec![number("axis", axis)]);
        assert_eq!(rows(vec![gather("i", 0)]), [("i".to_owned(), 30)]);
        assert_eq!(rows(vec![gather("j", -1)]), [("j".to_owned(), 8)]);
        let cast = node("Cast", &["j"], "n", vec![number("to", INT64.into())]);
        let flat = node("Reshape", &["n", "c"], "f", vec![]);
        assert_eq!(rows(vec![cast, flat, gather("f", 0)]), [("j".to_owned(), 30)]);
        let more = node("Add", &["i", "c"], "n", vec![]);
        assert_eq!(rows(vec![more, gather("n", 0)]), [], "what is computed is not known");
    }

    #[test]
    fn whole_numbers_divided_by_what_callers_send_are_not_for_onnx_runtime() {
        let ort = [Runtime::OnnxRuntime];
        for op in ["Div", "Mod"] {
            assert_eq!(endangered(vec![node(op, &["c", "i"], "y", vec![])]), ort, "{op}");
            assert_eq!(endangered(vec![node(op, &["j", "j"], "y", vec![])]), ort, "{op}");
            let cast = node("Cast", &["x"], "n", vec![number("to", INT64.into())]);
            let add = node("Add", &["n", "c"], "d", vec![]);
            assert_eq!(
                endangered(vec![cast, add, node(op, &["c", "d"], "y", vec![])]),
                ort,
                "{op} by what was computed"
            );
            let branch =
                AttributeProto { g: Some(graph(vec![node(op, &["c", "i"], "y", vec![])])), ..number("then_branch", 0) };
            assert_eq!(endangered(vec![node("If", &["x"], "y", vec![branch])]), ort, "{op} in a branch");
        }
    }

    #[test]
    fn an_input_is_as_wide_as_the_matrix_that_it_is_multiplied_by() {
        let widths = |nodes| of(&ModelProto { graph: Some(graph(nodes)), ..ModelProto::default() }).widths;
        let x = |width| vec![("x".to_owned(), width)];
        assert_eq!(widths(vec![node("MatMul", &["x", "c"], "y", vec![])]), x(30));
        assert_eq!(widths(vec![node("Gemm", &["x", "c"], "y", vec![])]), x(30));
        assert_eq!(widths(vec![node("Gemm", &["x", "c"], "y", vec![number("transB", 1)])]), x(8));
        assert_eq!(widths(vec![node("Gemm", &["x", "c"], "y", vec![number("transA", 1)])]), []);
        let relu = node("Relu", &["x"], "r", vec![]);
        assert_eq!(widths(vec![relu, node("MatMul", &["r", "c"], "y", vec![])]), x(30));
        for step in [node("Add", &["x", "c"], "r", vec![]), node("Transpose", &["x"], "r", vec![])] {
            assert_eq!(widths(vec![step, node("MatMul", &["r", "c"], "y", vec![])]), [], "of another width");
        }
    }

    #[test]
    fn ordinary_divisions_harm_nobody() {
        let shape = node("Shape", &["i"], "s", vec![]);
        assert_eq!(endangered(vec![shape, node("Div", &["c", "s"], "y", vec![])]), [], "by a length");
        assert_eq!(endangered(vec![node("Div", &["i", "c"], "y", vec![])]), [], "by a constant");
        assert_eq!(endangered(vec![node("Div", &["x", "x"], "y", vec![])]), [], "of floats");
        assert_eq!(endangered(vec![node("Mod", &["i", "i"], "y", vec![number("fmod", 1)])]), [], "C's fmod");
        let cast = node("Cast", &["i"], "f", vec![number("to", FLOAT.into())]);
        assert_eq!(
            endangered(vec![cast, node("Div", &["x", "f"], "y", vec![])]),
            [],
            "of floats made of whole numbers"
        );
    }

    #[test]
    fn indices_that_callers_send_are_not_for_openvino() {
        assert_eq!(endangered(vec![node("GatherND", &["x", "i"], "y", vec![])]), [Runtime::OpenVino]);
        assert_eq!(endangered(vec![node("GatherND", &["x", "c"], "y", vec![])]), [], "constants");
        let found = node("NonZero", &["x"], "n", vec![]);
        let turned = node("Transpose", &["n"], "t", vec![]);
        assert_eq!(endangered(vec![found, turned, node("GatherND", &["x", "t"], "y", vec![])]), [], "a mask");
    }
}
