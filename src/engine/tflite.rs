//! Reads the quantization of inputs and outputs from a TensorFlow Lite file, because the runtime returns integers
//! without it, and follows the values that callers choose through its graphs.
//!
//! Only the needed parts are read, by the field numbers of `schema.fbs`. Every offset in the file is checked before it
//! is followed. An input or output with a bad offset has no known quantization; the runtime finds other errors of the
//! file.

use std::collections::{HashMap, HashSet};

use ledge_base::tensor::DataType;

use crate::backend::{InputDangers, ModelFormat, Runtime};
use crate::operators::{self, GraphFindings, Operation};
use crate::pipeline::quantization::Quantization;

/// The most inputs, and the most outputs, that are read.
const PORTS_MAX: usize = 256;

/// The longest name that is read, in bytes.
const NAME_MAX: usize = 1024;

/// The most graphs, and the most operators of one, and the most tensors of an operator, that are read.
const GRAPHS_MAX: usize = 64;
const OPERATORS_MAX: usize = 1 << 17;
const OPERANDS_MAX: usize = 1 << 12;

/// The names of `BuiltinOperator`, by their numbers.
const NAMES: [&str; 162] = [
    "ADD",
    "AVERAGE_POOL_2D",
    "CONCATENATION",
    "CONV_2D",
    "DEPTHWISE_CONV_2D",
    "DEPTH_TO_SPACE",
    "DEQUANTIZE",
    "EMBEDDING_LOOKUP",
    "FLOOR",
    "FULLY_CONNECTED",
    "HASHTABLE_LOOKUP",
    "L2_NORMALIZATION",
    "L2_POOL_2D",
    "LOCAL_RESPONSE_NORMALIZATION",
    "LOGISTIC",
    "LSH_PROJECTION",
    "LSTM",
    "MAX_POOL_2D",
    "MUL",
    "RELU",
    "RELU_N1_TO_1",
    "RELU6",
    "RESHAPE",
    "RESIZE_BILINEAR",
    "RNN",
    "SOFTMAX",
    "SPACE_TO_DEPTH",
    "SVDF",
    "TANH",
    "CONCAT_EMBEDDINGS",
    "SKIP_GRAM",
    "CALL",
    "CUSTOM",
    "EMBEDDING_LOOKUP_SPARSE",
    "PAD",
    "UNIDIRECTIONAL_SEQUENCE_RNN",
    "GATHER",
    "BATCH_TO_SPACE_ND",
    "SPACE_TO_BATCH_ND",
    "TRANSPOSE",
    "MEAN",
    "SUB",
    "DIV",
    "SQUEEZE",
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
    "STRIDED_SLICE",
    "BIDIRECTIONAL_SEQUENCE_RNN",
    "EXP",
    "TOPK_V2",
    "SPLIT",
    "LOG_SOFTMAX",
    "DELEGATE",
    "BIDIRECTIONAL_SEQUENCE_LSTM",
    "CAST",
    "PRELU",
    "MAXIMUM",
    "ARG_MAX",
    "MINIMUM",
    "LESS",
    "NEG",
    "PADV2",
    "GREATER",
    "GREATER_EQUAL",
    "LESS_EQUAL",
    "SELECT",
    "SLICE",
    "SIN",
    "TRANSPOSE_CONV",
    "SPARSE_TO_DENSE",
    "TILE",
    "EXPAND_DIMS",
    "EQUAL",
    "NOT_EQUAL",
    "LOG",
    "SUM",
    "SQRT",
    "RSQRT",
    "SHAPE",
    "POW",
    "ARG_MIN",
    "FAKE_QUANT",
    "REDUCE_PROD",
    "REDUCE_MAX",
    "PACK",
    "LOGICAL_OR",
    "ONE_HOT",
    "LOGICAL_AND",
    "LOGICAL_NOT",
    "UNPACK",
    "REDUCE_MIN",
    "FLOOR_DIV",
    "REDUCE_ANY",
    "SQUARE",
    "ZEROS_LIKE",
    "FILL",
    "FLOOR_MOD",
    "RANGE",
    "RESIZE_NEAREST_NEIGHBOR",
    "LEAKY_RELU",
    "SQUARED_DIFFERENCE",
    "MIRROR_PAD",
    "ABS",
    "SPLIT_V",
    "UNIQUE",
    "CEIL",
    "REVERSE_V2",
    "ADD_N",
    "GATHER_ND",
    "COS",
    "WHERE",
    "RANK",
    "ELU",
    "REVERSE_SEQUENCE",
    "MATRIX_DIAG",
    "QUANTIZE",
    "MATRIX_SET_DIAG",
    "ROUND",
    "HARD_SWISH",
    "IF",
    "WHILE",
    "NON_MAX_SUPPRESSION_V4",
    "NON_MAX_SUPPRESSION_V5",
    "SCATTER_ND",
    "SELECT_V2",
    "DENSIFY",
    "SEGMENT_SUM",
    "BATCH_MATMUL",
    "PLACEHOLDER",
    "CUMSUM",
    "CALL_ONCE",
    "BROADCAST_TO",
    "RFFT2D",
    "CONV_3D",
    "IMAG",
    "REAL",
    "COMPLEX_ABS",
    "HASHTABLE",
    "HASHTABLE_FIND",
    "HASHTABLE_IMPORT",
    "HASHTABLE_SIZE",
    "REDUCE_ALL",
    "CONV_3D_TRANSPOSE",
    "VAR_HANDLE",
    "READ_VARIABLE",
    "ASSIGN_VARIABLE",
    "BROADCAST_ARGS",
    "RANDOM_STANDARD_NORMAL",
    "BUCKETIZE",
    "RANDOM_UNIFORM",
    "MULTINOMIAL",
    "GELU",
    "DYNAMIC_UPDATE_SLICE",
    "RELU_0_TO_1",
    "UNSORTED_SEGMENT_PROD",
    "UNSORTED_SEGMENT_MAX",
    "UNSORTED_SEGMENT_SUM",
    "ATAN2",
    "UNSORTED_SEGMENT_MIN",
    "SIGN",
    "BITCAST",
    "BITWISE_XOR",
    "RIGHT_SHIFT",
];

/// The quantization of the inputs and outputs of the model in `bytes`, by name. Floats have none.
pub fn quantization(bytes: &[u8]) -> HashMap<String, Quantization> {
    let Some(graph) = main_graph(bytes) else { return HashMap::new() };
    // The fields of SubGraph: the indices of its inputs, and of its outputs.
    let ports = [1, 2].into_iter().filter_map(|field| graph.vector(field));
    let indices = ports.flat_map(|(start, length)| (0..length.min(PORTS_MAX)).map(move |number| start + 4 * number));
    indices.filter_map(|at| port(&graph, u32_at(bytes, at)?)).collect()
}

/// The harm that callers could do to OpenVINO with the numbers that they send.
pub(crate) fn dangers(bytes: &[u8]) -> InputDangers {
    operators::within_limits(|found| {
        // Assumed for every file: graphs within the graph are small, as are the models of this format.
        found.dangers.has_control_flow = true;
        if follow(bytes, found).is_none() {
            operators::refuse(&mut found.dangers, Runtime::OpenVino, "its graph cannot be checked".to_owned());
        }
    })
}

fn follow(bytes: &[u8], found: &mut GraphFindings) -> Option<()> {
    let model = FlatBufferTable { bytes, at: follow_offset(bytes, 0)? };
    let graphs = model.vector(2)?.1;
    if graphs > GRAPHS_MAX {
        return None;
    }
    for graph in (0..graphs).map(|index| model.table_of(2, index)) {
        let graph = graph?;
        // The inputs of a graph within another, too, are a caller's.
        let inputs = Operation {
            outputs: graph
                .indices(1)?
                .into_iter()
                .map(|value| value.map(|value| (value, graph.datatype(value))))
                .collect::<Option<_>>()?,
            is_caller: true,
            ..Operation::default()
        };
        let mut operations = vec![inputs];
        let count = graph.vector(3).map_or(0, |(_, count)| count);
        if count > OPERATORS_MAX {
            return None;
        }
        for index in 0..count {
            operations.push(operation(&model, &graph, &graph.table_of(3, index)?)?);
        }
        // A tensor that no operator makes is a constant, or a state that is zero at first.
        let made: HashSet<usize> =
            operations.iter().flat_map(|operation| operation.outputs.iter().map(|(value, _)| *value)).collect();
        let others = operations
            .iter()
            .flat_map(|operation| operation.inputs.iter().flatten())
            .filter(|value| !made.contains(value));
        let others: HashSet<usize> = others.copied().collect();
        let outputs = others.into_iter().map(|value| (value, graph.datatype(value))).collect();
        operations.push(Operation { outputs, is_constant: true, ..Operation::default() });
        operators::follow(ModelFormat::TfLite, &operations, found);
    }
    Some(())
}

fn operation<'a>(
    model: &FlatBufferTable<'a>,
    graph: &FlatBufferTable<'a>,
    node: &FlatBufferTable<'a>,
) -> Option<Operation<'a>> {
    let opcode = node.field(0).map_or(Some(0), |at| u32_at(node.bytes, at))?;
    let code = model.table_of(1, usize::try_from(opcode).ok()?)?;
    let short = code.field(0).map_or(Some(0), |at| bytes_at(code.bytes, at).map(i8::from_le_bytes))?;
    let long = code.field(3).map_or(Some(0), |at| bytes_at(code.bytes, at).map(i32::from_le_bytes))?;
    let kind = NAMES.get(usize::try_from(long.max(short.into())).ok()?).copied().unwrap_or("of a newer version");
    let outputs = node.indices(2)?.into_iter().flatten().map(|value| (value, graph.datatype(value))).collect();
    let is_caller = ["IF", "WHILE", "READ_VARIABLE", "CALL"].contains(&kind);
    Some(Operation { kind, name: "", inputs: node.indices(1)?, outputs, is_caller, is_constant: false })
}

fn main_graph(bytes: &[u8]) -> Option<FlatBufferTable<'_>> {
    let model = FlatBufferTable { bytes, at: follow_offset(bytes, 0)? };
    model.table_of(2, 0)
}

/// The name and the quantization of a tensor.
fn port(graph: &FlatBufferTable<'_>, index: u32) -> Option<(String, Quantization)> {
    let tensor = graph.table_of(0, usize::try_from(index).ok()?)?;
    let (start, length) = tensor.vector(3)?;
    let name = tensor.bytes.get(start..start.checked_add(length.min(NAME_MAX + 1))?)?;
    let name = str::from_utf8(name).ok().filter(|name| name.len() <= NAME_MAX)?;

    let parameters = tensor.table(4)?;
    let (scales, zero_points) = (parameters.vector(2)?, parameters.vector(3)?);
    // Several would be one for each channel, which no input and no output has.
    if (scales.1, zero_points.1) != (1, 1) {
        return None;
    }
    let scale = f32::from_bits(u32_at(tensor.bytes, scales.0)?);
    let zero_point = bytes_at(tensor.bytes, zero_points.0).map(i64::from_le_bytes)?;
    let quantization = Quantization { scale, zero_point: i32::try_from(zero_point).ok()? };
    quantization.is_valid().then(|| (name.to_owned(), quantization))
}

/// A table of a `FlatBuffer`.
struct FlatBufferTable<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl FlatBufferTable<'_> {
    /// The position of a field; `None` if the table does not have it.
    fn field(&self, number: usize) -> Option<usize> {
        let back = bytes_at(self.bytes, self.at).map(i32::from_le_bytes)?;
        let layout = self.at.checked_add_signed(isize::try_from(back).ok()?.checked_neg()?)?;
        let place = number.checked_mul(2)?.checked_add(4)?;
        if place.checked_add(2)? > u16_at(self.bytes, layout)? {
            return None;
        }
        match u16_at(self.bytes, layout.checked_add(place)?)? {
            0 => None,
            distance => self.at.checked_add(distance),
        }
    }

    fn table(&self, number: usize) -> Option<Self> {
        Some(Self { bytes: self.bytes, at: follow_offset(self.bytes, self.field(number)?)? })
    }

    /// The start of a vector's elements, and their number.
    fn vector(&self, number: usize) -> Option<(usize, usize)> {
        let at = follow_offset(self.bytes, self.field(number)?)?;
        Some((at.checked_add(4)?, usize::try_from(u32_at(self.bytes, at)?).ok()?))
    }

    /// A vector of indices; `None` for -1, which stands for no tensor.
    fn indices(&self, number: usize) -> Option<Vec<Option<usize>>> {
        let Some((start, length)) = self.vector(number) else { return Some(Vec::new()) };
        if length > OPERANDS_MAX {
            return None;
        }
        (0..length)
            .map(|index| {
                u32_at(self.bytes, start + 4 * index)
                    .map(|value| usize::try_from(value).ok().filter(|_| value != u32::MAX))
            })
            .collect()
    }

    /// Of a graph: the datatype of a tensor. `None` for a quantized tensor, in which integers stand for floats.
    fn datatype(&self, tensor: usize) -> Option<DataType> {
        let tensor = self.table_of(0, tensor)?;
        let scales = tensor.table(4).and_then(|parameters| parameters.vector(2));
        let kind = tensor.field(1).and_then(|at| tensor.bytes.get(at).copied()).unwrap_or_default();
        if scales.is_some_and(|(_, count)| count > 0) {
            return None;
        }
        Some(match kind {
            0 => DataType::Fp32,
            1 => DataType::Fp16,
            2 => DataType::Int32,
            3 => DataType::Uint8,
            4 => DataType::Int64,
            6 => DataType::Bool,
            7 => DataType::Int16,
            9 => DataType::Int8,
            10 => DataType::Fp64,
            12 => DataType::Uint64,
            15 => DataType::Uint32,
            16 => DataType::Uint16,
            _ => return None,
        })
    }

    /// The table at an index of a vector.
    fn table_of(&self, number: usize, index: usize) -> Option<Self> {
        let (start, length) = self.vector(number)?;
        let slot = start.checked_add(index.checked_mul(4)?)?;
        (index < length).then_some(())?;
        Some(Self { bytes: self.bytes, at: follow_offset(self.bytes, slot)? })
    }
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    bytes_at(bytes, at).map(|bytes| usize::from(u16::from_le_bytes(bytes)))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes_at(bytes, at).map(u32::from_le_bytes)
}

/// The target of the offset at `at`.
fn follow_offset(bytes: &[u8], at: usize) -> Option<usize> {
    at.checked_add(usize::try_from(u32_at(bytes, at)?).ok()?)
}

/// Reads a model for the fuzzers; true if an input or an output is quantized. Names and numbers are within their
/// bounds.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_tflite(data: &[u8]) -> bool {
    let found = quantization(data);
    assert!(found.len() <= 2 * PORTS_MAX);
    assert!(found.iter().all(|(name, quantization)| name.len() <= NAME_MAX && quantization.is_valid()));
    assert!(dangers(data).refused.len() <= 1);
    !found.is_empty()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(bytes: Vec<u8>, words in prop::collection::vec(0_u32..64, 0..64)) {
            let near: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            fuzz_tflite(&bytes);
            fuzz_tflite(&near);
        }
    }
}
