//! The effect of callers' numbers on the runtimes, by operator: the table `operators.tsv`, which
//! `tests/operators/run.py` measures, and the walk through the graph of an IR or a TFLite file that asks it.
//!
//! An operator that is not in the table must not get integers of a caller, because their effect was not measured.

use std::collections::HashMap;
use std::sync::LazyLock;

use ledge_base::tensor::DataType;

use crate::backend::{ALL_BITS, InputDangers, ModelFormat, Runtime};
use crate::text::shortened;
use crate::values::{self, NumberFacts};

/// One line for each operand of an operator in a runtime and a format.
static MEASURED: &str = include_str!("operators.tsv");

/// Operators that compute with numbers. Only integers can harm in them.
const ARITHMETIC: [&str; 22] = [
    "Add",
    "Sub",
    "Subtract",
    "Mul",
    "Multiply",
    "Div",
    "Divide",
    "Mod",
    "FloorMod",
    "Pow",
    "Power",
    "Max",
    "Maximum",
    "Min",
    "ADD",
    "DIV",
    "FLOOR_DIV",
    "FLOOR_MOD",
    "POW",
    "Clip",
    "BitwiseLeftShift",
    "BitwiseRightShift",
];

/// Operators whose output follows from the shape of their input.
const OF_SHAPES: [&str; 6] = ["Shape", "Size", "ShapeOf", "SHAPE", "RANK", "Rank"];

/// Operators whose (integer) outputs are indices into their first input.
const INDEXING: [&str; 5] = ["NonZero", "TopK", "TOPK_V2", "ARG_MAX", "WHERE"];

/// Operators that keep the shape of their first input, and its numbers or their places.
const KEEPING: [&str; 6] = ["Convert", "CAST", "Relu", "Sigmoid", "Identity", "LOGISTIC"];

/// Operators that change the shape of their first input and keep its numbers.
const RESHAPING: [&str; 8] =
    ["Reshape", "Squeeze", "Unsqueeze", "Transpose", "RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE"];

/// Operators that use their second input as indices into the first.
const INDEXED: [&str; 9] = [
    "Gather",
    "GatherND",
    "GatherElements",
    "ScatterElements",
    "Scatter",
    "ScatterND",
    "ScatterElementsUpdate",
    "ScatterNDUpdate",
    "GATHER_ND",
];

/// Operators that shift by the number of bits in their second input. They touch no memory, so the table does not show
/// that the result of a shift by all bits of a number or more depends on the processor.
const SHIFTS: [&str; 3] = ["BitwiseLeftShift", "BitwiseRightShift", "RIGHT_SHIFT"];

/// Operators with a step, by format and operand, that OpenVINO negates: the smallest number has no opposite, and the
/// place that is read then is outside of the tensor. Seen with constant axes and the other operands from a caller,
/// which the table does not have.
const NEGATED_STEPS: [(&str, &str, usize); 2] = [("onnx", "Slice", 4), ("ir", "Slice", 3)];

/// The harm of an operator that was not measured.
const UNKNOWN: &str = "is not known to be safe";

/// The operand of a line about several at once.
const TOGETHER: &str = "together";
/// The operand of a line about an operator without lengths, places or counts among its inputs.
const VALUES_ONLY: &str = "-";

#[derive(Debug, Default)]
struct MeasuredOperator {
    /// The operands that do harm, with the harm.
    operands: Vec<(usize, &'static str)>,
    /// The operands that were measured.
    steers: Vec<usize>,
    /// The harm of several operands at once.
    together: Option<&'static str>,
}

type OperatorKey = (&'static str, &'static str, &'static str);

static TABLE: LazyLock<HashMap<OperatorKey, MeasuredOperator>> = LazyLock::new(|| {
    let mut table = HashMap::<OperatorKey, MeasuredOperator>::new();
    for line in MEASURED.lines().skip(1) {
        let fields: Vec<&'static str> = line.split('\t').collect();
        let &[format, operator, operand, runtime, _, answered, _, crashes, foreign, ..] = fields.as_slice() else {
            continue;
        };
        let measured = table.entry((format, operator, runtime)).or_default();
        let harm = match (crashes, foreign) {
            // A runtime that answered nothing has shown nothing.
            ("0", "0") if answered == "0" => Some(UNKNOWN),
            ("0", "0") => None,
            ("0", _) => Some("reads or writes memory of the process"),
            _ => Some("can end the process"),
        };
        match operand.split(' ').next().and_then(|number| number.parse().ok()) {
            Some(index) => {
                measured.steers.push(index);
                measured.operands.extend(harm.map(|harm| (index, harm)));
            }
            None if operand == TOGETHER => measured.together = harm.filter(|harm| *harm != UNKNOWN),
            None => debug_assert_eq!(operand, VALUES_ONLY, "{line}"),
        }
    }
    table
});

/// The known facts about the value of one operand.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Operand {
    /// Set if its numbers come from a caller, not only its shape.
    pub from_caller: bool,
    /// Set for signed integers of 32 or 64 bits.
    pub is_integer: bool,
    /// Set for indices that the graph itself found in the operator's first input.
    pub is_within: bool,
}

/// The operands of `operator` by which a caller can harm `runtime`, each with the harm; `None` for several at once.
pub(crate) fn harms(
    (format, runtime): (ModelFormat, Runtime),
    operator: &str,
    operands: &[Operand],
) -> Vec<(Option<usize>, &'static str)> {
    let format = match format {
        ModelFormat::Onnx => "onnx",
        ModelFormat::OpenVinoIr => "ir",
        ModelFormat::TfLite => "tflite",
    };
    let is_arithmetic = ARITHMETIC.contains(&operator);
    let counts = |operand: &Operand| operand.from_caller && (operand.is_integer || !is_arithmetic);
    let at = |index: usize| operands.get(index).filter(|operand| counts(operand));
    if runtime == Runtime::OpenVino
        && let Some((_, _, step)) = NEGATED_STEPS.iter().find(|(of, name, _)| (*of, *name) == (format, operator))
        && at(*step).is_some()
    {
        return vec![(Some(*step), "reads memory of the process")];
    }
    if SHIFTS.contains(&operator) && at(1).is_some() {
        return vec![(Some(1), "is undefined from the bits of its datatype on")];
    }
    let Some(measured) = TABLE.get(&(format, operator, runtime.as_str())) else {
        let unknown = operands.iter().position(|operand| operand.from_caller && operand.is_integer);
        return unknown.map(|index| (Some(index), UNKNOWN)).into_iter().collect();
    };
    let is_within = |index: usize| index == 1 && INDEXED.contains(&operator) && at(1).is_some_and(|one| one.is_within);
    let mut found: Vec<_> = measured
        .operands
        .iter()
        .filter(|(index, _)| at(*index).is_some() && !is_within(*index))
        .map(|&(index, harm)| (Some(index), harm))
        .collect();
    let mut steers = measured.steers.clone();
    steers.dedup();
    let chosen = steers.iter().filter(|index| at(**index).is_some() && !is_within(**index)).count();
    if let (Some(harm), true) = (measured.together, chosen > 1 && found.is_empty()) {
        found.push((None, harm));
    }
    found
}

/// The reason why a runtime must not get a model with this operator.
pub(crate) fn reason(operator: &str, name: &str, operand: Option<usize>, harm: &str) -> String {
    let name = shortened(name);
    match operand {
        Some(index) => format!("{operator} {name:?} takes its input {index} from callers, which {harm}"),
        None => format!("{operator} {name:?} takes several inputs from callers, which {harm}"),
    }
}

/// An operator of an IR or a TFLite file.
#[derive(Debug, Default)]
pub(crate) struct Operation<'a> {
    pub kind: &'a str,
    pub name: &'a str,
    /// The values that it takes, by their numbers.
    pub inputs: Vec<Option<usize>>,
    /// The values that it makes, each with its datatype. One that is quantized is a float, which has none here.
    pub outputs: Vec<(usize, Option<DataType>)>,
    /// Set for an operator with outputs that the caller chooses, such as an input of the model.
    pub is_caller: bool,
    /// Set for a constant.
    pub is_constant: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct OperandFacts {
    from_caller: bool,
    numbers: NumberFacts,
    /// The first value with the same shape.
    shaped_as: usize,
    /// The shape that these numbers are indices into, by the first value with it.
    indices_into: Option<usize>,
}

/// The findings in the graphs of one file.
#[derive(Debug, Default)]
pub(crate) struct GraphFindings {
    pub dangers: InputDangers,
    /// The first numbers that OpenVINO computes wrong if the integers of callers have up to `bits`.
    pub wrong: Option<String>,
    pub bits: u32,
}

/// The dangers that `follow` finds, with the most bits of callers' integers for which all numbers are right. OpenVINO
/// is the only runtime of the format.
pub(crate) fn within_limits(mut follow: impl FnMut(&mut GraphFindings)) -> InputDangers {
    let mut followed = |bits| {
        let mut found = GraphFindings { bits, ..GraphFindings::default() };
        follow(&mut found);
        found
    };
    let GraphFindings { mut dangers, wrong, .. } = followed(ALL_BITS);
    if dangers.refused.is_empty() && wrong.is_some() {
        match values::limit(|bits| followed(bits).wrong) {
            Ok(bits) => dangers.bits.push((Runtime::OpenVino, bits)),
            Err(reason) => refuse(&mut dangers, Runtime::OpenVino, reason),
        }
    }
    dangers
}

/// Follows the values that callers choose through a graph of `format`. Its operators may be in any order.
pub(crate) fn follow(format: ModelFormat, operations: &[Operation<'_>], found: &mut GraphFindings) {
    let mut makers = HashMap::new();
    let mut takers = HashMap::<usize, Vec<usize>>::new();
    for (number, operation) in operations.iter().enumerate() {
        makers.extend(operation.outputs.iter().map(|(value, _)| (*value, number)));
    }
    let mut missing = Vec::with_capacity(operations.len());
    for (number, operation) in operations.iter().enumerate() {
        let waits = operation.inputs.iter().flatten().filter(|value| makers.contains_key(*value));
        let mut count = 0_usize;
        for value in waits {
            takers.entry(*value).or_default().push(number);
            count += 1;
        }
        missing.push(count);
    }

    let mut values = HashMap::<usize, OperandFacts>::new();
    let mut ready: Vec<usize> = (0..operations.len()).filter(|number| missing.get(*number) == Some(&0)).collect();
    let mut done = 0;
    while let Some(operation) = ready.pop().and_then(|number| operations.get(number)) {
        done += 1;
        // An input that no operator of this graph makes comes from a graph around it.
        let numbers = NumberFacts::of_caller(Some(DataType::Int64), Runtime::OpenVino, found.bits);
        let around = |value: &usize| OperandFacts { from_caller: true, numbers, shaped_as: *value, indices_into: None };
        let known = |value: &Option<usize>| {
            value
                .as_ref()
                .map_or_else(OperandFacts::default, |value| values.get(value).copied().unwrap_or_else(|| around(value)))
        };
        let inputs: Vec<OperandFacts> = operation.inputs.iter().map(known).collect();
        check(format, operation, &inputs, &mut found.dangers);
        for (position, &(value, datatype)) in operation.outputs.iter().enumerate() {
            values.insert(value, output((format, operation), (position, value), datatype, &inputs, found));
            for taker in takers.remove(&value).unwrap_or_default() {
                if let Some(left) = missing.get_mut(taker) {
                    *left -= 1;
                    if *left == 0 {
                        ready.push(taker);
                    }
                }
            }
        }
    }
    if done < operations.len() {
        refuse(&mut found.dangers, Runtime::OpenVino, "its operators depend on one another in a circle".to_owned());
    }
}

fn check(format: ModelFormat, operation: &Operation<'_>, inputs: &[OperandFacts], found: &mut InputDangers) {
    if operation.is_caller || operation.is_constant {
        return;
    }
    let first = inputs.first().map(|first| first.shaped_as);
    let operand = |value: &OperandFacts| Operand {
        from_caller: value.from_caller,
        is_integer: value.numbers.is_signed(),
        is_within: value.indices_into.is_some() && value.indices_into == first,
    };
    let operands: Vec<Operand> = inputs.iter().map(operand).collect();
    for (index, harm) in harms((format, Runtime::OpenVino), operation.kind, &operands) {
        refuse(found, Runtime::OpenVino, reason(operation.kind, operation.name, index, harm));
    }
}

/// The output of an operation at `position`. Its numbers are compared with those that OpenVINO computes right.
fn output(
    (format, operation): (ModelFormat, &Operation<'_>),
    (position, value): (usize, usize),
    datatype: Option<DataType>,
    inputs: &[OperandFacts],
    found: &mut GraphFindings,
) -> OperandFacts {
    let kind = operation.kind;
    let first = inputs.first().copied().unwrap_or_default();
    let from_caller = operation.is_caller
        || !operation.is_constant && !OF_SHAPES.contains(&kind) && inputs.iter().any(|value| value.from_caller);
    let numbers = if operation.is_caller {
        NumberFacts::of_caller(datatype, Runtime::OpenVino, found.bits)
    } else if operation.is_constant {
        NumberFacts::of_constants(datatype)
    } else {
        let known: Vec<NumberFacts> = inputs.iter().map(|value| value.numbers).collect();
        let made = values::made((kind, position), &known, datatype);
        if position == 0 && from_caller && found.wrong.is_none() {
            found.wrong = values::wrong((format, Runtime::OpenVino), (kind, operation.name), &known, made);
        }
        made.fitted(from_caller)
    };
    let is_integer = numbers.is_signed();
    let made = OperandFacts { from_caller, numbers, shaped_as: value, indices_into: None };
    if KEEPING.contains(&kind) {
        OperandFacts { shaped_as: first.shaped_as, indices_into: first.indices_into, ..made }
    } else if RESHAPING.contains(&kind) {
        OperandFacts { indices_into: first.indices_into, ..made }
    } else if INDEXING.contains(&kind) && is_integer {
        OperandFacts { indices_into: Some(first.shaped_as), ..made }
    } else {
        made
    }
}

/// Keeps `runtime` from the model. One reason for each runtime is enough.
pub(crate) fn refuse(found: &mut InputDangers, runtime: Runtime, reason: String) {
    if !found.refused.iter().any(|(refused, _)| *refused == runtime) {
        found.refused.push((runtime, reason));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_the_table_has_counts_that_add_up() {
        for line in MEASURED.lines().skip(1) {
            let fields: Vec<&str> = line.split('\t').collect();
            assert!(fields.len() >= 10, "{line}");
            let counts: Vec<u64> = fields[4..10].iter().map(|count| count.parse().unwrap()).collect();
            assert_eq!(counts[0], counts[1..].iter().sum::<u64>(), "{line}");
            assert!(
                ["onnx", "ir", "tflite"].contains(&fields[0]) && ["onnxruntime", "openvino"].contains(&fields[3]),
                "{line}"
            );
        }
        assert!(TABLE.len() > 300, "{} operators", TABLE.len());
    }

    #[test]
    fn an_operator_that_nobody_measured_gets_no_integers_of_callers() {
        let integer = Operand { from_caller: true, is_integer: true, is_within: false };
        let harm =
            |operand| harms((ModelFormat::OpenVinoIr, Runtime::OpenVino), "Unheard", &[Operand::default(), operand]);
        assert_eq!(harm(integer), [(Some(1), UNKNOWN)]);
        assert_eq!(harm(Operand { is_integer: false, ..integer }), []);
        assert_eq!(harm(Operand { from_caller: false, ..integer }), []);
    }

    #[test]
    fn values_are_followed_in_any_order_and_a_circle_is_refused() {
        let operation = |kind, inputs: &[usize], output: usize| Operation {
            kind,
            inputs: inputs.iter().map(|value| Some(*value)).collect(),
            outputs: vec![(output, Some(DataType::Int64))],
            is_caller: kind == "Parameter",
            ..Operation::default()
        };
        let refused = |operations: &[Operation<'_>]| {
            let mut found = GraphFindings::default();
            follow(ModelFormat::OpenVinoIr, operations, &mut found);
            found.dangers.refused.into_iter().map(|(_, reason)| reason).collect::<Vec<_>>()
        };
        let of = |operations: [Operation<'static>; 3]| refused(&operations);
        assert!(
            of([operation("Unheard", &[2], 3), operation("Convert", &[1], 2), operation("Parameter", &[], 1)])[0]
                .contains("Unheard")
        );
        assert_eq!(
            of([operation("Unheard", &[2], 3), operation("ShapeOf", &[1], 2), operation("Parameter", &[], 1)]),
            [""; 0]
        );
        assert!(
            of([operation("Convert", &[2], 3), operation("Convert", &[3], 2), operation("Parameter", &[], 1)])[0]
                .contains("circle")
        );
    }
}
