//! Refuses files that no runtime should read: tensors with less data than their shapes, shapes too large for any
//! memory, and graphs nested too deep. Collects the files with external data meanwhile.
//!
//! Every graph of the file is visited, also those that nothing uses: a runtime may read them.

use std::collections::BTreeMap;

use super::tensor::{TensorNumbers, TensorProto};
use crate::onnx::error::OnnxError;
use crate::onnx::protos::{AttributeProto, GraphProto, ModelProto, ShapeProto, SparseTensorProto, TypeProto};
use crate::text::shortened;

/// The deepest graph within graphs. Those of loops within branches of real models are four deep.
const GRAPH_DEPTH_MAX: usize = 16;

/// The most dimensions of a tensor. Runtimes have kernels for eight, and `NumPy`, which makes weights, has 64.
const RANK_MAX: usize = 64;

/// The most bytes of a weight without its zeros, which a file may leave out: as many as a whole model file may have.
const DENSE_BYTES_MAX: u64 = 64 << 30;

/// The files with external data by their locations, each with the number of its bytes that tensors refer to.
pub(super) type ExternalDataSizes<'a> = BTreeMap<&'a str, u64>;

/// Checks `model`, and returns its external data.
pub(super) fn check(model: &ModelProto) -> Result<ExternalDataSizes<'_>, OnnxError> {
    let mut walk = LimitsWalk { external: ExternalDataSizes::new() };
    let training = model.training_info.iter().flat_map(|info| info.initialization.iter().chain(&info.algorithm));
    for graph in model.graph.iter().chain(training) {
        walk.graph(graph, 1)?;
    }
    for function in &model.functions {
        for node in &function.node {
            walk.attributes(&node.attribute, 0)?;
        }
        walk.attributes(&function.attribute_proto, 0)?;
    }
    Ok(walk.external)
}

struct LimitsWalk<'a> {
    external: ExternalDataSizes<'a>,
}

impl<'a> LimitsWalk<'a> {
    /// Checks a graph that has `depth - 1` graphs around it.
    fn graph(&mut self, graph: &'a GraphProto, depth: usize) -> Result<(), OnnxError> {
        if depth > GRAPH_DEPTH_MAX {
            return Err(OnnxError::Absurd(format!("has graphs within graphs, more than {GRAPH_DEPTH_MAX} deep")));
        }
        for tensor in &graph.initializer {
            self.tensor(tensor)?;
        }
        for tensor in &graph.sparse_initializer {
            self.sparse(tensor)?;
        }
        for port in graph.input.iter().chain(&graph.output) {
            check_type(port.r#type.as_ref(), || format!("its input or output {:?}", shortened(&port.name)))?;
        }
        for value in &graph.value_info {
            check_type(value.r#type.as_ref(), || "a value".to_owned())?;
        }
        graph.node.iter().try_for_each(|node| self.attributes(&node.attribute, depth))
    }

    fn attributes(&mut self, attributes: &'a [AttributeProto], depth: usize) -> Result<(), OnnxError> {
        for attribute in attributes {
            for tensor in attribute.t.iter().chain(&attribute.tensors) {
                self.tensor(tensor)?;
            }
            for graph in attribute.g.iter().chain(&attribute.graphs) {
                self.graph(graph, depth + 1)?;
            }
            for tensor in attribute.sparse_tensor.iter().chain(&attribute.sparse_tensors) {
                self.sparse(tensor)?;
            }
        }
        Ok(())
    }

    fn sparse(&mut self, tensor: &'a SparseTensorProto) -> Result<(), OnnxError> {
        for part in tensor.values.iter().chain(&tensor.indices) {
            self.tensor(part)?;
        }
        let datatype = tensor.values.as_ref().map_or(0, |values| values.data_type);
        let name = tensor.values.as_ref().map_or("", |values| &values.name);
        let bytes = dense_bytes(datatype, &tensor.dims).map_err(|what| refused(&of_tensor(name), &what))?;
        if bytes > DENSE_BYTES_MAX {
            return Err(refused(
                &of_tensor(name),
                &format!("has {bytes} bytes, most of them zeros that the file leaves out"),
            ));
        }
        Ok(())
    }

    fn tensor(&mut self, tensor: &'a TensorProto) -> Result<(), OnnxError> {
        let refused = |what: &str| refused(&of_tensor(&tensor.name), what);
        let needed = dense_bytes(tensor.data_type, &tensor.dims).map_err(|what| refused(&what))?;
        if tensor.is_external() {
            return self.external(tensor, needed).map_err(|what| refused(&what));
        }
        let there = bytes_there(tensor.data_type, &tensor.numbers);
        // OpenVINO takes a single number that is not there for a zero.
        let is_single = element_count(&tensor.dims).is_ok_and(|count| count <= 1);
        match there {
            Some(there) if there < needed && !is_single => {
                Err(refused(&format!("has the shape {}, and {there} of its {needed} bytes", shape(&tensor.dims))))
            }
            _ => Ok(()),
        }
    }

    /// Notes the bytes of another file that a tensor refers to. The caller compares them with the file.
    fn external(&mut self, tensor: &'a TensorProto, needed: u64) -> Result<(), String> {
        let entries = |key: &'static str| tensor.external_data.iter().filter(move |entry| entry.key == key);
        let number = |key: &'static str| match entries(key).next_back() {
            None => Ok(0),
            Some(entry) => entry.value.trim().parse::<u64>().map_err(|_| {
                format!("has external data with the {key} {:?}, which is no number of bytes", shortened(&entry.value))
            }),
        };
        let (offset, length) = (number("offset")?, number("length")?);
        // No length, or 0, is all that there is.
        if length > 0 && length < needed {
            return Err(format!(
                "has the shape {}, and {length} of its {needed} bytes as external data",
                shape(&tensor.dims)
            ));
        }
        let end = offset.checked_add(length.max(needed));
        let end = end.ok_or_else(|| format!("has external data at byte {offset}, which no file has"))?;
        // A runtime uses any entry with the key "location".
        for entry in entries("location") {
            let reached = self.external.entry(&entry.value).or_default();
            *reached = end.max(*reached);
        }
        Ok(())
    }
}

fn of_tensor(name: &str) -> String {
    if name.is_empty() { "a tensor".to_owned() } else { format!("its tensor {:?}", shortened(name)) }
}

fn refused(thing: &str, what: &str) -> OnnxError {
    OnnxError::Absurd(format!("cannot be used: {thing} {what}"))
}

/// The shape for a message.
fn shape(dims: &[i64]) -> String {
    const SHOWN: usize = 8;
    let shown = dims.iter().take(SHOWN).map(i64::to_string).collect::<Vec<_>>().join(", ");
    if dims.len() > SHOWN { format!("[{shown}, ...]") } else { format!("[{shown}]") }
}

/// The number of elements of a shape. The error completes a sentence about the tensor.
fn element_count(dims: &[i64]) -> Result<u64, String> {
    if dims.len() > RANK_MAX {
        return Err(format!("has {} dimensions; the most are {RANK_MAX}", dims.len()));
    }
    let negative = || format!("has a negative dimension in its shape {}", shape(dims));
    let dims = dims.iter().map(|dim| u64::try_from(*dim)).collect::<Result<Vec<_>, _>>().map_err(|_| negative())?;
    // One of no length makes it empty, whatever the others are; but a runtime may multiply in any order.
    let count = dims.iter().filter(|dim| **dim > 0).try_fold(1_u64, |count, dim| count.checked_mul(*dim));
    let count = count.filter(|count| i64::try_from(*count).is_ok()).ok_or("has more elements than fit into 63 bits")?;
    Ok(if dims.contains(&0) { 0 } else { count })
}

/// The bytes of a tensor in memory. The error completes a sentence about it.
fn dense_bytes(datatype: i32, dims: &[i64]) -> Result<u64, String> {
    let bits = element_count(dims)?.checked_mul(u64::from(element_bits(datatype)));
    let bytes = bits.map(|bits| bits.div_ceil(8)).filter(|bytes| i64::try_from(*bytes).is_ok());
    bytes.ok_or_else(|| format!("has more bytes in its shape {} than there can be", shape(dims)))
}

// ONNX's numbers of datatypes.
const FLOAT: i32 = 1;
const UINT8: i32 = 2;
const INT8: i32 = 3;
const UINT16: i32 = 4;
const INT16: i32 = 5;
const INT32: i32 = 6;
const INT64: i32 = 7;
const STRING: i32 = 8;
const BOOL: i32 = 9;
const FLOAT16: i32 = 10;
const DOUBLE: i32 = 11;
const UINT32: i32 = 12;
const UINT64: i32 = 13;
const COMPLEX64: i32 = 14;
const COMPLEX128: i32 = 15;
const BFLOAT16: i32 = 16;
/// Of 8 bits, in four forms.
const FLOAT8: std::ops::RangeInclusive<i32> = 17..=20;
const UINT4: i32 = 21;
const INT4: i32 = 22;

/// The bits of an element, at the least; 0 for strings and for datatypes that this file does not know.
fn element_bits(datatype: i32) -> u8 {
    match datatype {
        UINT4 | INT4 => 4,
        UINT8 | INT8 | BOOL => 8,
        float if FLOAT8.contains(&float) => 8,
        UINT16 | INT16 | FLOAT16 | BFLOAT16 => 16,
        FLOAT | INT32 | UINT32 => 32,
        INT64 | UINT64 | DOUBLE | COMPLEX64 => 64,
        COMPLEX128 => 128,
        _ => 0,
    }
}

/// The bytes of the elements that the file has for a tensor of this datatype; `None` where that is not known.
fn bytes_there(datatype: i32, numbers: &TensorNumbers) -> Option<u64> {
    let TensorNumbers { raw, floats, doubles, int32s, int64s, uint64s, strings: _ } = *numbers;
    if raw > 0 {
        return Some(raw);
    }
    let (count, bits) = match datatype {
        FLOAT | COMPLEX64 => (floats, 32),
        DOUBLE | COMPLEX128 => (doubles, 64),
        INT64 => (int64s, 64),
        UINT32 => (uint64s, 32),
        UINT64 => (uint64s, 64),
        STRING => return None,
        // Two elements of 4 bits share a number.
        UINT4 | INT4 => (int32s, 8),
        other => (int32s, element_bits(other)),
    };
    (bits > 0).then(|| count.saturating_mul(u64::from(bits)) / 8)
}

/// Refuses a declared type with fixed dimensions too large for any memory. Some exporters write -1 for a variable
/// dimension.
fn check_type(declared: Option<&TypeProto>, name: impl Fn() -> String) -> Result<(), OnnxError> {
    let Some(tensor) = declared.and_then(|declared| declared.tensor_type.as_ref()) else { return Ok(()) };
    let Some(ShapeProto { dim }) = &tensor.shape else { return Ok(()) };
    let dims: Vec<i64> = dim.iter().map(|dim| dim.dim_value.filter(|value| *value != -1).unwrap_or(1)).collect();
    dense_bytes(tensor.elem_type, &dims).map(drop).map_err(|what| refused(&name(), &what))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

    use super::super::protos::{DimProto, NodeProto, TensorTypeProto, ValueInfoProto};
    use super::super::summarize;
    use super::super::tensor::StringStringEntryProto;
    use super::*;

    fn reason(graph: GraphProto) -> Option<String> {
        let model = ModelProto { graph: Some(graph), ..ModelProto::default() };
        summarize(&model.encode_to_vec()).err().map(|error| error.to_string())
    }

    fn weight(data_type: i32, dims: &[i64], raw: u64) -> TensorProto {
        let numbers = TensorNumbers { raw, ..TensorNumbers::default() };
        TensorProto { name: "w".into(), data_type, dims: dims.into(), numbers, ..TensorProto::default() }
    }

    fn of_weight(tensor: TensorProto) -> Option<String> {
        // Wherever it is.
        let sparse = SparseTensorProto { values: Some(tensor.clone()), ..SparseTensorProto::default() };
        let attribute = AttributeProto { t: Some(tensor.clone()), ..AttributeProto::default() };
        let node = NodeProto { attribute: vec![attribute], ..NodeProto::default() };
        let inner = GraphProto { initializer: vec![tensor.clone()], ..GraphProto::default() };
        let branch = AttributeProto { g: Some(inner), ..AttributeProto::default() };
        let outer = NodeProto { attribute: vec![branch], ..NodeProto::default() };
        let [a, b, c, d] = [
            GraphProto { initializer: vec![tensor], ..GraphProto::default() },
            GraphProto { sparse_initializer: vec![sparse], ..GraphProto::default() },
            GraphProto { node: vec![node], ..GraphProto::default() },
            GraphProto { node: vec![outer], ..GraphProto::default() },
        ]
        .map(reason);
        assert!(a == b && a == c && a == d, "{a:?} {b:?} {c:?} {d:?}");
        a
    }

    #[test]
    fn a_tensor_has_all_the_data_of_its_shape() {
        for (datatype, dims, bytes) in [
            (FLOAT, &[2, 3][..], 24),
            (INT8, &[5], 5),
            (INT4, &[5], 3),
            (FLOAT16, &[2, 0], 0),
            (COMPLEX128, &[2], 32),
            (19, &[7], 7),
        ] {
            assert_eq!(of_weight(weight(datatype, dims, bytes)), None);
            if bytes > 0 {
                let reason = of_weight(weight(datatype, dims, bytes - 1)).unwrap();
                assert!(reason.starts_with("cannot be used: its tensor \"w\" has the shape ["), "{reason}");
            }
        }
        let numbers = |floats| TensorNumbers { floats, ..TensorNumbers::default() };
        assert_eq!(bytes_there(FLOAT, &numbers(6)), Some(24));
        assert_eq!(bytes_there(COMPLEX64, &numbers(6)), Some(24));
        // A single number that is not there is a zero.
        assert_eq!(of_weight(weight(FLOAT, &[], 0)), None);
        assert_eq!(of_weight(weight(STRING, &[7], 0)), None, "strings are left to the runtime");
        assert_eq!(of_weight(weight(99, &[7], 0)), None, "so are datatypes of the future");
    }

    #[test]
    fn a_shape_that_no_memory_holds_is_refused() {
        for (dims, reason) in [
            (&[-1][..], "has a negative dimension in its shape [-1]"),
            (&[1 << 40, 1 << 40], "has more elements than fit into 63 bits"),
            (&[1 << 40, 1 << 40, 0], "has more elements than fit into 63 bits"),
            (&[1 << 61], "has more bytes in its shape [2305843009213693952] than there can be"),
            (&[i64::MAX], "has more bytes in its shape [9223372036854775807] than there can be"),
            (&[1; 65], "has 65 dimensions; the most are 64"),
        ] {
            let expected = format!("cannot be used: its tensor \"w\" {reason}");
            assert_eq!(of_weight(weight(FLOAT, dims, 4)), Some(expected));
        }
        let sparse = |dims: &[i64]| {
            let values = Some(weight(FLOAT, &[1], 4));
            let tensor = SparseTensorProto { values, dims: dims.into(), ..SparseTensorProto::default() };
            reason(GraphProto { sparse_initializer: vec![tensor], ..GraphProto::default() })
        };
        assert_eq!(sparse(&[1000, 1000]), None);
        assert!(sparse(&[1 << 20, 1 << 20]).unwrap().contains(&(4_u64 << 40).to_string()));
    }

    #[test]
    fn declared_shapes_may_vary_and_not_be_absurd() {
        let declared = |dims: &[Option<i64>]| {
            let dim = dims.iter().map(|dim| DimProto { dim_value: *dim }).collect();
            let tensor_type = TensorTypeProto { elem_type: FLOAT, shape: Some(ShapeProto { dim }) };
            let r#type = Some(TypeProto { tensor_type: Some(tensor_type) });
            let port = ValueInfoProto { name: "x".into(), r#type: r#type.clone() };
            let [a, b, c] = [
                GraphProto { input: vec![port.clone()], ..GraphProto::default() },
                GraphProto { output: vec![port], ..GraphProto::default() },
                GraphProto {
                    value_info: vec![ValueInfoProto { name: String::new(), r#type }],
                    ..GraphProto::default()
                },
            ]
            .map(reason);
            assert!(a == b && a.is_some() == c.is_some(), "{a:?} {b:?} {c:?}");
            a
        };
        assert_eq!(declared(&[None, Some(-1), Some(0), Some(224)]), None);
        for (dims, reason) in [
            (&[Some(-2)][..], "has a negative dimension in its shape [-2]"),
            (&[Some(1 << 40), Some(1 << 40)], "has more elements than fit into 63 bits"),
            (&[None; 65], "has 65 dimensions; the most are 64"),
        ] {
            assert_eq!(declared(dims), Some(format!("cannot be used: its input or output \"x\" {reason}")));
        }
    }

    fn external(entries: &[(&str, &str)]) -> Result<u64, String> {
        let entry = |(key, value): &(&str, &str)| StringStringEntryProto { key: (*key).into(), value: (*value).into() };
        let external_data = entries.iter().chain(&[("location", "w.bin")]).map(entry).collect();
        let tensor = TensorProto { external_data, ..weight(FLOAT, &[10], 0) };
        let graph = GraphProto { initializer: vec![tensor], ..GraphProto::default() };
        let model = ModelProto { graph: Some(graph), ..ModelProto::default() };
        let summary = summarize(&model.encode_to_vec()).map_err(|error| error.to_string())?;
        Ok(summary.external_data[0].bytes)
    }

    #[test]
    fn external_data_has_the_bytes_of_the_shape_and_its_file_must_reach_its_end() {
        assert_eq!(external(&[]), Ok(40));
        assert_eq!(external(&[("offset", "4096"), ("length", "40")]), Ok(4136));
        assert_eq!(external(&[("offset", "4096")]), Ok(4136));
        assert_eq!(external(&[("length", "0")]), Ok(40));
        assert_eq!(external(&[("length", "100")]), Ok(100));
        let refused = |key: &str, value: &str| external(&[(key, value)]).unwrap_err();
        let because = |reason: &str| format!("cannot be used: its tensor \"w\" has {reason}");
        assert_eq!(refused("length", "39"), because("the shape [10], and 39 of its 40 bytes as external data"));
        for offset in ["-1", "x", "18446744073709551616"] {
            let reason = format!("external data with the offset {offset:?}, which is no number of bytes");
            assert_eq!(refused("offset", offset), because(&reason));
        }
        let last = "external data at byte 18446744073709551615, which no file has";
        assert_eq!(refused("offset", "18446744073709551615"), because(last));
    }

    /// A graph with `depth - 1` graphs within it.
    pub(super) fn nested(depth: usize) -> GraphProto {
        (1..depth).fold(GraphProto::default(), |inner, _| {
            let branch = AttributeProto { g: Some(inner), ..AttributeProto::default() };
            let node = NodeProto { attribute: vec![branch], ..NodeProto::default() };
            GraphProto { node: vec![node], ..GraphProto::default() }
        })
    }

    #[test]
    fn graphs_are_nested_so_deep_and_not_deeper_on_any_stack() {
        // A quarter of the stack that a thread has.
        let thread = std::thread::Builder::new().stack_size(512 << 10);
        let checked = thread.spawn(|| {
            assert_eq!(reason(nested(GRAPH_DEPTH_MAX)), None);
            let deeper = "has graphs within graphs, more than 16 deep";
            assert_eq!(reason(nested(GRAPH_DEPTH_MAX + 1)).as_deref(), Some(deeper));
        });
        checked.unwrap().join().unwrap();
    }

    proptest! {
        #[test]
        fn shapes_never_overflow(dims in prop::collection::vec(any::<i64>(), 0..6), datatype in 0..30) {
            if let Ok(bytes) = dense_bytes(datatype, &dims) {
                let exact = dims.iter().map(|dim| u128::try_from(*dim).unwrap()).product::<u128>();
                prop_assert_eq!(u128::from(bytes), (exact * u128::from(element_bits(datatype))).div_ceil(8));
            }
        }
    }
}
