//! The numbers that a runtime computes right: the table `values.tsv`, which `tests/operators/values.py` measures, and
//! the bounds of the values in a graph, which are compared with it.
//!
//! OpenVINO keeps 32 bits of integers and the precision of FP32, and computes many operators of integers in FP32, which
//! has 24 bits. A value that follows only from shapes is assumed to be right, because no dimension is that long.

use std::collections::HashMap;
use std::sync::LazyLock;

use ledge_base::tensor::{DataType, Tensor};

use crate::backend::{ALL_BITS, ModelFormat, Runtime};
use crate::text::shortened;

/// Up to how many bits operators are right, one line for datatypes with the same number of bits.
static MEASURED: &str = include_str!("values.tsv");

/// The bits of integers that OpenVINO keeps, besides the sign.
pub(crate) const OPENVINO_BITS: u32 = 31;

/// The bits of the integers that FP32 represents without gaps. An operator of OpenVINO that was not measured may use
/// FP32.
pub(crate) const FP32_BITS: u32 = 24;

/// The bits of a number of FP64 that FP32 does not have.
const FP64_BITS: u32 = 53;

/// A model with a lower limit for the integers of its callers is of no use.
const LEAST_BITS: u32 = 7;

/// Numbers of dimensions, and places in a tensor, are below this.
const DIMENSION_MAX: f64 = 16_777_215.0;

/// The most numbers that are taken to be as large as the largest in a sum.
const TERMS_MAX: f64 = 4096.0;

/// Constants that the readers do not see are taken to be within this.
const CONSTANT_MAX: f64 = 65_535.0;

/// The known facts about the numbers of a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct NumberFacts {
    /// `None` is a float, or unknown.
    pub datatype: Option<DataType>,
    pub low: f64,
    pub high: f64,
    /// Set if FP32 has each of them as well.
    pub is_single: bool,
}

impl Default for NumberFacts {
    fn default() -> Self {
        Self::of(None)
    }
}

impl NumberFacts {
    /// Any numbers of a datatype.
    pub fn of(datatype: Option<DataType>) -> Self {
        let (low, high) = datatype.and_then(limits).unwrap_or((f64::NEG_INFINITY, f64::INFINITY));
        Self { datatype, low, high, is_single: datatype != Some(DataType::Fp64) }
    }

    /// Numbers of a caller that are checked in each call: integers of 32 and 64 bits have at most `bits`.
    pub fn of_caller(datatype: Option<DataType>, runtime: Runtime, bits: u32) -> Self {
        let bits = match datatype {
            Some(DataType::Int64 | DataType::Uint64 | DataType::Uint32) if runtime == Runtime::OpenVino => {
                bits.min(OPENVINO_BITS)
            }
            Some(DataType::Int64 | DataType::Uint64 | DataType::Uint32 | DataType::Int32) => bits,
            _ => return Self::of(datatype),
        };
        let most = 2_f64.powi(bits.cast_signed()) - 1.0;
        Self::of(datatype).within(-most, most)
    }

    /// Constants of which only the datatype is known.
    pub fn of_constants(datatype: Option<DataType>) -> Self {
        let any = Self::of(datatype);
        if any.is_integer() { any.within(-CONSTANT_MAX, CONSTANT_MAX) } else { any }
    }

    /// The same numbers, as far as they are between these.
    pub fn within(self, low: impl Into<f64>, high: impl Into<f64>) -> Self {
        let (low, high) = (self.low.max(low.into()), self.high.min(high.into()));
        Self { low, high: high.max(low), ..self }
    }

    /// The same as a value of its datatype, which no numbers of a caller reach if it is not `from_caller`.
    pub fn fitted(self, from_caller: bool) -> Self {
        let (low, high) = match self.datatype.and_then(limits) {
            // A value that does not fit becomes another number.
            Some((low, high)) if self.low < low || self.high > high => (low, high),
            _ => (self.low, self.high),
        };
        let fitted = Self { low, high, ..self };
        if from_caller || !self.is_integer() { fitted } else { fitted.within(-DIMENSION_MAX, DIMENSION_MAX) }
    }

    /// Signed integers of 32 or 64 bits.
    pub fn is_signed(&self) -> bool {
        matches!(self.datatype, Some(DataType::Int32 | DataType::Int64))
    }

    pub fn is_integer(&self) -> bool {
        self.datatype.and_then(limits).is_some()
    }

    /// FP32 has each of them as well.
    fn is_single_or_short(&self) -> bool {
        self.is_single && (!self.is_integer() || self.bits() <= FP32_BITS)
    }

    /// The bits that a runtime must keep of them, without the sign.
    fn bits(&self) -> u32 {
        match self.datatype {
            Some(DataType::Fp64) => {
                if self.is_single {
                    FP32_BITS
                } else {
                    FP64_BITS
                }
            }
            _ if self.is_integer() => bits_of(self.low).max(bits_of(self.high)),
            _ => 1,
        }
    }
}

/// The least and the greatest number of integers of a datatype.
fn limits(datatype: DataType) -> Option<(f64, f64)> {
    let (bits, is_signed) = match datatype {
        DataType::Bool => return Some((0.0, 1.0)),
        DataType::Uint8 => (8, false),
        DataType::Uint16 => (16, false),
        DataType::Uint32 => (32, false),
        DataType::Uint64 => (64, false),
        DataType::Int8 => (7, true),
        DataType::Int16 => (15, true),
        DataType::Int32 => (31, true),
        DataType::Int64 => (63, true),
        _ => return None,
    };
    let size = 2_f64.powi(bits);
    Some((if is_signed { -size } else { 0.0 }, size - 1.0))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast from a float saturates")]
fn bits_of(number: f64) -> u32 {
    128 - (number.abs() as u128).leading_zeros()
}

/// One datatype of an operator, as it was measured.
#[derive(Debug)]
struct MeasuredDatatype {
    datatype: DataType,
    /// Right up to this many bits.
    bits: u32,
    /// Set if results that do not fit their datatype are right as well.
    wraps: bool,
    example: &'static str,
}

/// A format, an operator and a runtime.
type MeasurementKey = (&'static str, &'static str, &'static str);

static TABLE: LazyLock<HashMap<MeasurementKey, Vec<MeasuredDatatype>>> = LazyLock::new(|| {
    let mut table = HashMap::<MeasurementKey, Vec<MeasuredDatatype>>::new();
    for line in MEASURED.lines().skip(1) {
        let fields: Vec<&'static str> = line.split('\t').collect();
        let &[format, operator, runtime, datatypes, bits, wraps, ref example @ ..] = fields.as_slice() else {
            continue;
        };
        let measured = table.entry((format, operator, runtime)).or_default();
        for datatype in datatypes.split(',').filter_map(DataType::from_name) {
            let bits = bits.parse().unwrap_or(u32::MAX);
            let example = example.first().copied().unwrap_or_default();
            measured.push(MeasuredDatatype { datatype, bits, wraps: wraps != "wrong", example });
        }
    }
    table
});

/// The effect of an operator on numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OperatorEffect {
    /// Its results are numbers of its operands, wherever they are then.
    Moves,
    /// Its results are numbers of its operands, chosen by their sizes.
    Selects,
    /// Its results say which operand is larger.
    Compares,
    /// It changes the datatype.
    Casts,
    /// Its results follow from the shapes of its operands.
    Measures,
    Computes,
}

/// The effect of an operator, and the positions of the inputs of which it makes its numbers.
fn effect(operator: &str, count: usize) -> (OperatorEffect, Vec<usize>) {
    let all = || (0..count).collect();
    match operator {
        "Shape" | "ShapeOf" | "SHAPE" | "Size" | "RANK" | "ConstantOfShape" | "EyeLike" | "ZEROS_LIKE" => {
            (OperatorEffect::Measures, vec![0])
        }
        "Cast" | "Convert" | "CAST" => (OperatorEffect::Casts, vec![0]),
        "Equal" | "NotEqual" | "Less" | "LessOrEqual" | "LessEqual" | "Greater" | "GreaterOrEqual" | "GreaterEqual"
        | "EQUAL" | "NOT_EQUAL" | "LESS" | "LESS_EQUAL" | "GREATER" | "GREATER_EQUAL" => {
            (OperatorEffect::Compares, all())
        }
        "Max" | "Maximum" | "MAXIMUM" | "Min" | "Minimum" | "MINIMUM" => (OperatorEffect::Selects, all()),
        "Clip" | "Clamp" | "Relu" | "ReLU" | "RELU" | "ReduceMax" | "ReduceMin" | "REDUCE_MAX" | "REDUCE_MIN"
        | "TopK" | "TOPK_V2" | "MaxPool" | "Unique" | "UNIQUE" => (OperatorEffect::Selects, vec![0]),
        "Concat" | "CONCATENATION" | "PACK" | "SequenceConstruct" => (OperatorEffect::Moves, all()),
        "Where" | "Select" | "SELECT" | "SELECT_V2" => (OperatorEffect::Moves, vec![1, 2]),
        "ScatterElements"
        | "ScatterND"
        | "Scatter"
        | "ScatterElementsUpdate"
        | "ScatterNDUpdate"
        | "ScatterUpdate"
        | "PADV2" => (OperatorEffect::Moves, vec![0, 2]),
        "Pad" => (OperatorEffect::Moves, vec![0, if count > 3 { 3 } else { 2 }]),
        "EMBEDDING_LOOKUP" | "SPLIT" | "FILL" | "SCATTER_ND" => (OperatorEffect::Moves, vec![1]),
        "Identity" | "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten" | "Transpose" | "Slice" | "StridedSlice"
        | "Split" | "VariadicSplit" | "Tile" | "Expand" | "Broadcast" | "Gather" | "GatherND" | "GatherElements"
        | "Compress" | "DepthToSpace" | "SpaceToDepth" | "BatchToSpace" | "SpaceToBatch" | "ReverseSequence"
        | "Trilu" | "Roll" | "Reverse" | "Dropout" | "CenterCropPad" | "ConvertLike" | "Result" | "Assign"
        | "RESHAPE" | "SQUEEZE" | "EXPAND_DIMS" | "TRANSPOSE" | "SLICE" | "STRIDED_SLICE" | "SPLIT_V" | "TILE"
        | "BROADCAST_TO" | "GATHER" | "GATHER_ND" | "PAD" | "MIRROR_PAD" | "UNPACK" | "REVERSE_V2"
        | "REVERSE_SEQUENCE" | "DEPTH_TO_SPACE" | "SPACE_TO_DEPTH" | "BATCH_TO_SPACE_ND" | "SPACE_TO_BATCH_ND" => {
            (OperatorEffect::Moves, vec![0])
        }
        "Add" | "ADD" | "Sub" | "Subtract" | "SUB" | "Mul" | "Multiply" | "MUL" | "Div" | "Divide" | "DIV"
        | "FLOOR_DIV" | "Mod" | "Mod fmod" | "FloorMod" | "FLOOR_MOD" | "Pow" | "Power" | "POW"
        | "SquaredDifference" | "SQUARED_DIFFERENCE" | "BitwiseAnd" | "BitwiseOr" | "BitwiseXor" | "BITWISE_XOR"
        | "BitShift" | "BitwiseLeftShift" | "BitwiseRightShift" | "RIGHT_SHIFT" | "MatMul" | "Gemm" | "Einsum"
        | "BATCH_MATMUL" | "Sum" | "Mean" | "ADD_N" => (OperatorEffect::Computes, all()),
        _ => (OperatorEffect::Computes, vec![0]),
    }
}

/// The numbers that an operator makes at its output `position` by the rules of mathematics, whether or not they fit
/// `datatype`.
pub(crate) fn made(
    (operator, position): (&str, usize),
    inputs: &[NumberFacts],
    datatype: Option<DataType>,
) -> NumberFacts {
    match (operator, position) {
        (
            "Shape"
            | "ShapeOf"
            | "SHAPE"
            | "Size"
            | "RANK"
            | "NonZero"
            | "WHERE"
            | "ArgMax"
            | "ArgMin"
            | "ARG_MAX"
            | "ARG_MIN"
            | "NonMaxSuppression"
            | "NON_MAX_SUPPRESSION_V4"
            | "NON_MAX_SUPPRESSION_V5",
            _,
        )
        | ("TopK" | "TOPK_V2" | "Unique" | "UNIQUE" | "MaxPool", 1..) => {
            let any = NumberFacts::of(datatype);
            return if any.is_integer() { any.within(-1.0, DIMENSION_MAX) } else { any };
        }
        _ => {}
    }
    let (effect, operands) = effect(operator, inputs.len());
    let data: Vec<NumberFacts> = operands.iter().filter_map(|index| inputs.get(*index)).copied().collect();
    let any = NumberFacts::of(datatype);
    let (Some(&one), other) = (data.first(), data.get(1).copied()) else { return any };
    let other = other.unwrap_or(one);
    let is_single =
        any.is_single || effect != OperatorEffect::Computes && data.iter().all(NumberFacts::is_single_or_short);
    let most = one.low.abs().max(one.high.abs());
    let most_of_other = other.low.abs().max(other.high.abs());
    let low = data.iter().fold(f64::INFINITY, |low, one| low.min(one.low));
    let high = data.iter().fold(f64::NEG_INFINITY, |high, one| high.max(one.high));
    let product = || {
        let corners = [one.low * other.low, one.low * other.high, one.high * other.low, one.high * other.high];
        // An infinity times zero.
        let corners = corners.map(|corner| if corner.is_nan() { 0.0 } else { corner });
        (corners.into_iter().fold(f64::INFINITY, f64::min), corners.into_iter().fold(f64::NEG_INFINITY, f64::max))
    };
    let terms = |(low, high): (f64, f64)| ((low * TERMS_MAX).min(low), (high * TERMS_MAX).max(high));
    let (low, high) = match operator {
        "Add" | "ADD" | "Sum" | "ADD_N" => {
            data.iter().fold((0.0, 0.0), |(low, high), one| (low + one.low, high + one.high))
        }
        "Sub" | "Subtract" | "SUB" => (one.low - other.high, one.high - other.low),
        "Mul" | "Multiply" | "MUL" => product(),
        "Div" | "Divide" | "DIV" | "FLOOR_DIV" if one.is_integer() => {
            (if one.low < 0.0 || other.low < 0.0 { -most.max(1.0) } else { 0.0 }, most)
        }
        "Mod" | "Mod fmod" | "FloorMod" | "FLOOR_MOD" => {
            (if one.low < 0.0 || other.low < 0.0 { -most_of_other } else { 0.0 }, most_of_other)
        }
        "Pow" | "Power" | "POW" => {
            let power = most.max(1.0).powf(other.high.max(0.0));
            (if one.low < 0.0 { -power } else { 0.0 }, power)
        }
        "SquaredDifference" | "SQUARED_DIFFERENCE" => {
            (0.0, (one.high - other.low).abs().max((other.high - one.low).abs()).powi(2))
        }
        "Max" | "Maximum" | "MAXIMUM" => (data.iter().fold(f64::NEG_INFINITY, |low, one| low.max(one.low)), high),
        "Min" | "Minimum" | "MINIMUM" => (low, data.iter().fold(f64::INFINITY, |high, one| high.min(one.high))),
        "Clip" => {
            let bounds = one
                .within(inputs.get(1).map_or(low, |bound| bound.low), inputs.get(2).map_or(high, |bound| bound.high));
            (bounds.low, bounds.high)
        }
        "Abs" | "ABS" => (0.0, most),
        "Neg" | "Negative" | "NEG" => (-one.high, -one.low),
        "Relu" | "ReLU" | "RELU" => (one.low.max(0.0), one.high.max(0.0)),
        "Sign" | "SIGN" | "Tanh" | "TANH" | "Erf" | "Sin" | "Cos" => (-1.0, 1.0),
        "Sigmoid" | "LOGISTIC" | "Softmax" | "SoftMax" | "SOFTMAX" | "HardSigmoid" => (0.0, 1.0),
        "Floor" | "FLOOR" | "Ceil" | "Ceiling" | "CEIL" | "Round" | "ROUND" => (one.low.floor(), one.high.ceil()),
        "BitwiseAnd" if one.low >= 0.0 || other.low >= 0.0 => (0.0, if one.low < 0.0 { other.high } else { one.high }),
        "BitwiseRightShift" | "RIGHT_SHIFT" => (one.low.min(0.0), one.high.max(0.0)),
        "ReduceSum" | "SUM" | "CumSum" | "CUMSUM" => terms((one.low, one.high)),
        "MatMul" | "Gemm" | "BATCH_MATMUL" => terms(product()),
        "ReduceL1" => terms((0.0, most)),
        "ReduceSumSquare" => terms((0.0, most * most)),
        // On the way to the mean of integers is their sum.
        "ReduceMean" | "MEAN" if one.is_integer() => terms((one.low, one.high)),
        "ReduceMean" | "MEAN" | "Mean" | "AveragePool" | "AvgPool" => (low, high),
        "Range" | "RANGE" => {
            let ends = inputs.iter().take(2);
            (
                ends.clone().fold(one.low, |low, end| low.min(end.low)),
                ends.fold(one.high, |high, end| high.max(end.high)),
            )
        }
        "Pad" | "PADV2" | "PAD" | "SCATTER_ND" => (low.min(0.0), high.max(0.0)),
        "OneHot" | "ONE_HOT" => {
            let values = inputs.iter().skip(2);
            (values.clone().fold(0.0, |low, one| one.low.min(low)), values.fold(0.0, |high, one| one.high.max(high)))
        }
        _ if effect == OperatorEffect::Casts && datatype == Some(DataType::Bool) => (0.0, 1.0),
        _ if matches!(effect, OperatorEffect::Moves | OperatorEffect::Selects) => (low, high),
        _ if effect == OperatorEffect::Casts => (low.trunc(), high.trunc()),
        _ => (any.low, any.high),
    };
    let is_number = |bound: f64, other: f64| if bound.is_nan() { other } else { bound };
    NumberFacts { datatype, low: is_number(low, any.low), high: is_number(high, any.high), is_single }
}

/// The reason why `runtime` computes some of these numbers wrong. `made` are those of the first output, by [`made`].
pub(crate) fn wrong(
    (format, runtime): (ModelFormat, Runtime),
    (operator, name): (&str, &str),
    inputs: &[NumberFacts],
    made: NumberFacts,
) -> Option<String> {
    let (effect, operands) = effect(operator, inputs.len());
    if effect == OperatorEffect::Measures {
        return None;
    }
    let data: Vec<NumberFacts> = operands.iter().filter_map(|index| inputs.get(*index)).copied().collect();
    let datatype = data.first()?.datatype.unwrap_or(DataType::Fp32);
    if effect == OperatorEffect::Casts && made.datatype == Some(datatype) {
        return None;
    }
    let kind = match format {
        ModelFormat::Onnx => "onnx",
        ModelFormat::OpenVinoIr => "ir",
        ModelFormat::TfLite => "tflite",
    };
    let cast =
        made.datatype.filter(|_| effect == OperatorEffect::Casts).map(|to| format!("{operator} {}", to.as_str()));
    let rows = TABLE.get(&(kind, cast.as_deref().unwrap_or(operator), runtime.as_str()));
    let row = rows.and_then(|rows| rows.iter().find(|row| row.datatype == datatype));

    let mut bits: Vec<u32> = data.iter().map(NumberFacts::bits).collect();
    bits.sort_unstable();
    let most = bits.last().copied().unwrap_or_default();
    let needed = match (effect, bits.as_slice()) {
        // A single number that is much larger still compares correctly. In other formats it may be a constant that is
        // not read.
        (OperatorEffect::Compares, [.., second, largest])
            if format == ModelFormat::Onnx && *largest <= OPENVINO_BITS =>
        {
            *second
        }
        (OperatorEffect::Computes | OperatorEffect::Casts, _)
            if row.is_some() && made.datatype != Some(DataType::Bool) =>
        {
            most.max(made.bits())
        }
        _ => most,
    };
    let moved = if datatype == DataType::Int32 { 32 } else { OPENVINO_BITS };
    let (kept, wraps, example) = match row {
        Some(row) => (row.bits, row.wraps, row.example),
        None if runtime == Runtime::OnnxRuntime => return None,
        None if datatype == DataType::Fp64 && effect != OperatorEffect::Moves => (0, true, ""),
        None => (if effect == OperatorEffect::Moves { moved } else { FP32_BITS }, true, ""),
    };
    let is_within = |(low, high): (f64, f64)| low <= made.low && made.high <= high;
    // Other formats do not define the result of an overflow, and the bounds of sums of many numbers are not known well
    // enough.
    let is_defined = (format, runtime) == (ModelFormat::Onnx, Runtime::OpenVino) && data.len() == 2;
    let overflows = row.is_some() && is_defined && !made.datatype.and_then(limits).is_none_or(is_within);
    if needed <= kept && (wraps || !overflows) {
        return None;
    }
    let computes = match made.datatype.filter(|_| effect == OperatorEffect::Casts) {
        Some(to) => format!("casts {} to {}", datatype.as_str(), to.as_str()),
        None => format!("computes {}", datatype.as_str()),
    };
    let limit = match kept {
        _ if datatype == DataType::Fp64 => "with the precision of FP32".to_owned(),
        0 | 1 => "wrong".to_owned(),
        _ if needed <= kept => "wrong where a result does not fit it".to_owned(),
        _ => format!("right only up to {kept} bits, and callers can send more"),
    };
    let example = if example.is_empty() { String::new() } else { format!(" ({example})") };
    let advice = match (format, runtime) {
        (_, Runtime::OnnxRuntime) => "",
        (ModelFormat::Onnx, _) => ": set runtime = \"onnxruntime\" in model.toml",
        _ => ": export the model to ONNX, for runtime = \"onnxruntime\"",
    };
    Some(format!("{operator} {:?} {computes} {limit}{example}{advice}", shortened(name)))
}

/// The most bits of callers' integers with which all numbers of a model are right. `wrong` returns the numbers that are
/// not right with a number of bits. [`ALL_BITS`] means no limit. The error states the numbers that are wrong even with
/// the fewest bits.
pub(crate) fn limit(mut wrong: impl FnMut(u32) -> Option<String>) -> Result<u32, String> {
    if wrong(ALL_BITS).is_none() {
        return Ok(ALL_BITS);
    }
    if let Some(reason) = wrong(LEAST_BITS) {
        return Err(reason);
    }
    let (mut right, mut too_many) = (LEAST_BITS, ALL_BITS);
    while too_many - right > 1 {
        let bits = u32::midpoint(right, too_many);
        if wrong(bits).is_none() { right = bits } else { too_many = bits }
    }
    Ok(right)
}

/// Refuses integers of callers with more than `bits`, as of inputs of 32 and 64 bits.
pub(crate) fn check_bits(tensor: &Tensor, bits: u32, runtime: &str) -> Result<(), String> {
    let most = if bits < ALL_BITS { (1_i128 << bits) - 1 } else { return Ok(()) };
    let Some((position, number)) = first_outside(tensor, -most, most) else { return Ok(()) };
    let advice =
        if runtime == "OpenVINO" { ": set runtime = \"onnxruntime\" in model.toml to compute with all" } else { "" };
    Err(format!(
        "has the number {number} at position {position}, and {runtime} computes this model right only up to {most}{advice}"
    ))
}

/// The first integer of 32 or 64 bits that is not between these, with its position.
pub(crate) fn first_outside(tensor: &Tensor, least: i128, most: i128) -> Option<(usize, i128)> {
    fn first<T: Copy + Into<i128>>(
        numbers: Option<std::borrow::Cow<'_, [T]>>,
        least: i128,
        most: i128,
    ) -> Option<(usize, i128)> {
        let numbers = numbers?;
        let mut numbers = numbers.iter().map(|&number| number.into()).enumerate();
        numbers.find(|(_, number)| !(least..=most).contains(number))
    }
    match tensor.datatype() {
        DataType::Int64 => first::<i64>(tensor.elements(), least, most),
        DataType::Uint64 => first::<u64>(tensor.elements(), least, most),
        DataType::Int32 => first::<i32>(tensor.elements(), least, most),
        DataType::Uint32 => first::<u32>(tensor.elements(), least, most),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENVINO: (ModelFormat, Runtime) = (ModelFormat::Onnx, Runtime::OpenVino);
    const ONNXRUNTIME: (ModelFormat, Runtime) = (ModelFormat::Onnx, Runtime::OnnxRuntime);

    fn int64(low: f64, high: f64) -> NumberFacts {
        NumberFacts::of(Some(DataType::Int64)).within(low, high)
    }

    fn caller(datatype: DataType, bits: u32) -> NumberFacts {
        NumberFacts::of_caller(Some(datatype), Runtime::OpenVino, bits)
    }

    fn is_wrong(runtime: (ModelFormat, Runtime), operator: &str, inputs: &[NumberFacts], to: DataType) -> bool {
        wrong(runtime, (operator, "y"), inputs, made((operator, 0), inputs, Some(to))).is_some()
    }

    #[test]
    fn each_line_of_the_table_can_be_read() {
        for line in MEASURED.lines().skip(1) {
            let fields: Vec<&str> = line.split('\t').collect();
            assert!(fields.len() >= 6, "{line}");
            assert!(fields[3].split(',').all(|name| DataType::from_name(name).is_some()), "{line}");
            assert!(fields[4] == "all" || fields[4].parse::<u32>().is_ok(), "{line}");
            assert!(["right", "wrong", "-"].contains(&fields[5]), "{line}");
        }
        assert!(TABLE.len() > 150, "{} operators", TABLE.len());
    }

    #[test]
    fn integers_are_compared_right_up_to_the_bits_of_fp32_beside_a_small_number() {
        let any = caller(DataType::Int64, ALL_BITS);
        for operator in ["Equal", "Less", "GreaterOrEqual"] {
            assert!(is_wrong(OPENVINO, operator, &[any, any], DataType::Bool), "{operator}");
            assert!(
                !is_wrong(OPENVINO, operator, &[any, int64(1.0, 1.0)], DataType::Bool),
                "{operator} with a constant"
            );
            let short = caller(DataType::Int64, 24);
            assert!(!is_wrong(OPENVINO, operator, &[short, short], DataType::Bool), "{operator} of short ones");
            assert!(!is_wrong(ONNXRUNTIME, operator, &[int64(-9e18, 9e18); 2], DataType::Bool), "{operator}");
        }
    }

    #[test]
    fn sums_and_products_are_right_while_they_fit_32_bits() {
        let at = |bits| caller(DataType::Int64, bits);
        for (operator, right) in [("Add", 30), ("Sub", 30), ("Mul", 15)] {
            assert!(!is_wrong(OPENVINO, operator, &[at(right); 2], DataType::Int64), "{operator}");
            assert!(is_wrong(OPENVINO, operator, &[at(right + 1); 2], DataType::Int64), "{operator}");
        }
        let int32 = caller(DataType::Int32, ALL_BITS);
        assert!(!is_wrong(OPENVINO, "Add", &[int32; 2], DataType::Int32));
        let uint8 = caller(DataType::Uint8, ALL_BITS);
        assert!(is_wrong(OPENVINO, "Add", &[uint8; 2], DataType::Uint8), "OpenVINO saturates");
        assert!(!is_wrong(ONNXRUNTIME, "Add", &[uint8; 2], DataType::Uint8));
    }

    #[test]
    fn fp64_is_right_where_fp32_has_each_number() {
        let any = caller(DataType::Fp64, ALL_BITS);
        assert!(is_wrong(OPENVINO, "Add", &[any, any], DataType::Fp64));
        assert!(is_wrong(OPENVINO, "Softmax", &[any], DataType::Fp64), "that nobody measured");
        assert!(!is_wrong(OPENVINO, "Cast", &[any], DataType::Fp32));
        assert!(!is_wrong(ONNXRUNTIME, "Add", &[any, any], DataType::Fp64));
        let single = made(("Cast", 0), &[NumberFacts::of(Some(DataType::Fp32))], Some(DataType::Fp64));
        assert!(!is_wrong(OPENVINO, "Transpose", &[single], DataType::Fp64));
        assert!(is_wrong(OPENVINO, "Mul", &[single, single], DataType::Fp64));
    }

    #[test]
    fn bounds_follow_the_operators() {
        let (small, any) = (int64(-3.0, 5.0), int64(f64::NEG_INFINITY, f64::INFINITY));
        let bounds = |operator, inputs: &[NumberFacts]| {
            let made = made((operator, 0), inputs, Some(DataType::Int64));
            (made.low, made.high)
        };
        assert_eq!(bounds("Add", &[small, small]), (-6.0, 10.0));
        assert_eq!(bounds("Sub", &[small, small]), (-8.0, 8.0));
        assert_eq!(bounds("Mul", &[small, small]), (-15.0, 25.0));
        assert_eq!(bounds("Abs", &[small]), (0.0, 5.0));
        assert_eq!(bounds("Clip", &[any, int64(0.0, 0.0), int64(9.0, 9.0)]), (0.0, 9.0));
        assert_eq!(bounds("Min", &[any, small]), (any.low, 5.0));
        assert_eq!(bounds("Where", &[any, small, int64(7.0, 7.0)]), (-3.0, 7.0));
        assert_eq!(bounds("ArgMax", &[any]), (-1.0, DIMENSION_MAX));
        assert_eq!(bounds("Cast", &[NumberFacts { datatype: Some(DataType::Fp32), ..small }]), (-3.0, 5.0));
    }

    #[test]
    fn the_limit_is_the_most_bits_that_are_right() {
        let below = |most| move |bits| (bits > most).then(|| "wrong".to_owned());
        for most in [64, 63, 31, 24, 7] {
            assert_eq!(limit(below(most)), Ok(most));
        }
        assert!(limit(below(6)).is_err());
    }
}
