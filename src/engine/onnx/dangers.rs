//! Finds operators that are not safe in a runtime for some numbers of callers: they end the process, read or write its
//! memory, or give an answer instead of an error. Each was found by running it with harmful numbers in ONNX Runtime
//! 1.31 and OpenVINO 2026.4.
//!
//! The graph is followed from its inputs, to know which values come from callers, which are integers, and how large
//! they can be. A value of unknown type is taken for a float: a division of floats is safe, and every model has some.

use std::collections::{HashMap, HashSet};

use ledge_base::tensor::DataType;

use super::domains::without_alias;
use super::tensor::{NumberBounds, TensorProto, bound};
use crate::backend::{ALL_BITS, Divisor, InputDangers, ModelFormat, Runtime};
use crate::onnx::protos::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto};
use crate::operators::{self, Operand};
use crate::text::shortened;
use crate::values::{self, NumberFacts};

/// Inputs with integers that are small by their nature, such as the tokens of texts.
const SMALL_INPUTS: [&str; 6] =
    ["input_ids", "attention_mask", "token_type_ids", "position_ids", "decoder_input_ids", "decoder_attention_mask"];

/// The most nodes of functions that are followed. A node counts at each call of its function, and functions call each
/// other.
const FUNCTION_NODES_MAX: usize = 100_000;
/// The deepest chain of calls that is followed.
const CALL_DEPTH_MAX: usize = 16;
/// The deepest chain of calls and graphs within graphs. `limits.rs` bounds those of one function or graph, but a graph
/// within a function can call another one.
const DEPTH_MAX: usize = 40;

/// The known facts about a value.
#[derive(Debug, Clone, Copy, Default)]
struct ValueFacts<'a> {
    /// Set if its numbers come from a caller, not only its shape.
    from_caller: bool,
    numbers: NumberFacts,
    /// The input with the same numbers.
    input: Option<&'a str>,
    /// The same, if no cast is in between.
    uncast: Option<&'a str>,
    /// The first value with the same shape.
    shaped_as: Option<&'a str>,
    /// The shape that these numbers are indices into, by the first value with it.
    indices_into: Option<&'a str>,
    /// The dimensions of a weight.
    dims: Option<&'a [i64]>,
    /// Set if it was broadcast to a shape whose numbers come from a caller.
    is_expanded: bool,
}

impl ValueFacts<'_> {
    fn of(datatype: Option<DataType>) -> Self {
        Self { numbers: NumberFacts::of(datatype), ..Self::default() }
    }

    fn of_weight(tensor: &TensorProto) -> Self {
        Self::of_constant(datatype(tensor.data_type), tensor.bounds)
    }

    fn of_constant(datatype: Option<DataType>, bounds: Option<NumberBounds>) -> Self {
        let any = NumberFacts::of(datatype);
        let numbers = match bounds {
            Some(bounds) if bounds.low.is_finite() && bounds.high.is_finite() => {
                NumberFacts { is_single: any.is_single || bounds.is_single, ..any.within(bounds.low, bounds.high) }
            }
            _ => any,
        };
        Self { numbers, ..Self::default() }
    }

    /// Set for signed integers of 32 or 64 bits: their smallest value cannot be negated on the CPU.
    fn is_integer(&self) -> bool {
        self.numbers.is_signed()
    }
}

/// The datatype with ONNX's number.
fn datatype(number: i32) -> Option<DataType> {
    Some(match number {
        1 => DataType::Fp32,
        2 => DataType::Uint8,
        3 => DataType::Int8,
        4 => DataType::Uint16,
        5 => DataType::Int16,
        6 => DataType::Int32,
        7 => DataType::Int64,
        8 => DataType::Bytes,
        9 => DataType::Bool,
        10 => DataType::Fp16,
        11 => DataType::Fp64,
        12 => DataType::Uint32,
        13 => DataType::Uint64,
        16 => DataType::Bf16,
        _ => return None,
    })
}

fn datatype_of(kind: Option<&TypeProto>) -> Option<DataType> {
    datatype(kind?.tensor_type.as_ref()?.elem_type)
}

/// The values that a graph can use, by name: its own last, after those of the graphs around it.
#[derive(Debug, Default)]
struct GraphScopes<'a>(Vec<HashMap<&'a str, ValueFacts<'a>>>);

impl<'a> GraphScopes<'a> {
    fn get(&self, name: &str) -> ValueFacts<'a> {
        self.0.iter().rev().find_map(|scope| scope.get(name)).copied().unwrap_or_default()
    }

    fn insert(&mut self, name: &'a str, value: ValueFacts<'a>) {
        if let Some(scope) = self.0.last_mut() {
            scope.insert(name, value);
        }
    }
}

/// Follows the values of a model: once for the harm that callers can do, and for each runtime until it is known how
/// large their integers may be.
pub(super) fn find(model: &ModelProto) -> InputDangers {
    let mut found = follow(model, None, &[]).found;
    let rows = found.rows.clone();
    for runtime in Runtime::ALL {
        if found.refused.iter().any(|(refused, _)| *refused == runtime) {
            continue;
        }
        let wrong = |bits| follow(model, Some((runtime, bits)), &rows).wrong;
        let limit = match runtime {
            // A wrong number that no limit of the inputs prevents is accepted here: otherwise no runtime would be left
            // for the model.
            Runtime::OnnxRuntime => Ok(values::limit(wrong).unwrap_or(ALL_BITS)),
            // Where numbers are large by their nature, the other runtime answers more calls.
            Runtime::OpenVino => wrong(ALL_BITS).map_or(Ok(ALL_BITS), |reason| {
                let is_small = has_small_inputs(model, &rows) && wrong(values::FP32_BITS).is_none();
                if is_small { Ok(values::FP32_BITS) } else { Err(reason) }
            }),
        };
        match limit {
            Ok(ALL_BITS) => {}
            Ok(bits) => found.bits.push((runtime, bits)),
            Err(reason) => operators::refuse(&mut found, runtime, reason),
        }
    }
    found
}

/// True when all large integers of callers are small by their nature.
fn has_small_inputs(model: &ModelProto, rows: &[(String, i64)]) -> bool {
    let inputs = model.graph.iter().flat_map(|graph| &graph.input);
    let mut large = inputs.filter(|input| NumberFacts::of(datatype_of(input.r#type.as_ref())).is_signed());
    large.all(|input| SMALL_INPUTS.contains(&input.name.as_str()) || rows.iter().any(|(name, _)| *name == input.name))
}

/// Follows the values of a model, to compare them with the numbers that a runtime computes right. Assumes that the
/// integers of callers have at most a number of bits, and that those that index rows of a table are within the table.
fn follow<'a>(model: &'a ModelProto, compared: Option<(Runtime, u32)>, rows: &'a [(String, i64)]) -> GraphWalk<'a> {
    let mut functions = HashMap::new();
    for function in &model.functions {
        functions.entry((without_alias(&function.domain), function.name.as_str())).or_insert(function);
    }
    let found = InputDangers::default();
    let mut walk = GraphWalk {
        functions,
        nodes_left: FUNCTION_NODES_MAX,
        call_depth: 0,
        depth: 0,
        found,
        compared,
        rows,
        wrong: None,
    };
    if let Some(graph) = &model.graph {
        walk.graph(graph, &mut GraphScopes::default());
        let inputs: HashSet<&str> = graph.input.iter().map(|input| input.name.as_str()).collect();
        walk.found.widths.retain(|(name, _)| inputs.contains(name.as_str()));
    }
    walk
}

struct GraphWalk<'a> {
    /// By their domains and names.
    functions: HashMap<(&'a str, &'a str), &'a FunctionProto>,
    /// The number of nodes of functions that may still be followed.
    nodes_left: usize,
    /// The number of functions that are being followed, each called by the one before.
    call_depth: usize,
    /// The same, with the graphs.
    depth: usize,
    found: InputDangers,
    /// The runtime to compare the numbers with, and the bits of the integers of callers.
    compared: Option<(Runtime, u32)>,
    /// The inputs that index rows of a table.
    rows: &'a [(String, i64)],
    /// The first numbers that the runtime computes wrong.
    wrong: Option<String>,
}

impl<'a> GraphWalk<'a> {
    /// Follows a graph, which can use the values `known` of the graphs around it. Returns its outputs.
    fn graph(&mut self, graph: &'a GraphProto, known: &mut GraphScopes<'a>) -> Vec<ValueFacts<'a>> {
        if self.depth >= DEPTH_MAX {
            self.refuse_all("its functions and graphs are nested too deep to be checked");
            return Vec::new();
        }
        self.depth += 1;
        let is_main = known.0.is_empty();
        known.0.push(HashMap::new());
        for input in &graph.input {
            let name = is_main.then_some(input.name.as_str());
            let numbers = self.of_caller(name, datatype_of(input.r#type.as_ref()));
            let value = ValueFacts { from_caller: true, numbers, input: name, uncast: name, ..ValueFacts::default() };
            known.insert(&input.name, value);
        }
        // Initializers come after inputs, because one may be the default of an input.
        for weight in &graph.initializer {
            known.insert(&weight.name, ValueFacts { dims: Some(&weight.dims), ..ValueFacts::of_weight(weight) });
        }
        let stated = graph
            .value_info
            .iter()
            .filter_map(|value| Some((value.name.as_str(), datatype_of(value.r#type.as_ref())?)));
        self.nodes(&graph.node, known, &stated.collect());
        let outputs = graph.output.iter().map(|output| known.get(&output.name)).collect();
        known.0.pop();
        self.depth -= 1;
        outputs
    }

    /// The numbers of an input of callers, or of a graph within another.
    fn of_caller(&self, input: Option<&str>, datatype: Option<DataType>) -> NumberFacts {
        let Some((runtime, bits)) = self.compared else { return NumberFacts::of(datatype) };
        let numbers = NumberFacts::of_caller(datatype, runtime, bits);
        let rows = self.rows.iter().filter(|(name, _)| runtime == Runtime::OpenVino && Some(name.as_str()) == input);
        rows.fold(numbers, |numbers, (_, rows)| numbers.within(-bound((*rows).into()), bound((*rows).into()) - 1.0))
    }

    /// Follows `nodes`; `stated` are the datatypes of values that the file names.
    fn nodes(&mut self, nodes: &'a [NodeProto], known: &mut GraphScopes<'a>, stated: &HashMap<&'a str, DataType>) {
        for node in nodes {
            let value = |name: &'a String| {
                let known = known.get(name);
                ValueFacts { shaped_as: known.shaped_as.or(Some(name)), ..known }
            };
            let inputs: Vec<ValueFacts> = node.input.iter().map(value).collect();
            let input = |position: usize| inputs.get(position).copied().unwrap_or_default();

            let function = self.functions.get(&(without_alias(&node.domain), node.op_type.as_str())).copied();
            for (runtime, reason) in dangers(node, input) {
                self.refuse(runtime, reason);
            }
            if function.is_none() {
                self.ask_table(node, &inputs);
            }
            self.found.divisors.extend(divisor(node, input));
            // A length below 1 is a mistake of the file, which the runtimes find.
            self.found.rows.extend(rows(node, input).filter(|(_, rows)| *rows > 0));
            self.found.widths.extend(width(node, input).filter(|(_, width)| *width > 0));

            let mut inner: Vec<Vec<ValueFacts>> = Vec::new();
            for graph in node.attribute.iter().flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs)) {
                self.found.has_control_flow = true;
                inner.push(self.graph(graph, known));
            }
            if let Some(function) = function {
                inner.push(self.call(function, &inputs));
            }

            let from_caller = inputs.iter().any(|value| value.from_caller);
            let numbers: Vec<NumberFacts> = inputs.iter().map(|value| value.numbers).collect();
            let operator = operator(node);
            for (position, name) in node.output.iter().enumerate() {
                let value = if inner.is_empty() {
                    let mut value = output(node, position, from_caller, input);
                    let datatype = value.numbers.datatype.or_else(|| stated.get(name.as_str()).copied());
                    if node.input.is_empty() || node.op_type == "ConstantOfShape" {
                        value.numbers.datatype = datatype;
                    } else {
                        let made = values::made((&operator, position), &numbers, datatype);
                        if position == 0 && from_caller {
                            self.compare((&operator, node), &numbers, made);
                        }
                        value.numbers = made.fitted(from_caller);
                        // FP32 holds no larger integers without gaps: they are no exact numbers of a caller.
                        if value.is_integer()
                            && numbers.first().is_some_and(|first| !first.is_integer())
                            && self.is_for(Runtime::OnnxRuntime)
                        {
                            value.numbers = value.numbers.within(-i32::MAX, i32::MAX);
                        }
                    }
                    value
                } else {
                    // A subgraph may use values that are not among the node's inputs. In a loop its outputs come after
                    // a condition, so one integer among them makes all count as integers.
                    let of = |value: &ValueFacts<'_>| value.is_integer().then_some(value.numbers.datatype)?;
                    let datatype = inner.iter().flatten().find_map(of);
                    ValueFacts { from_caller: true, numbers: self.of_caller(None, datatype), ..ValueFacts::default() }
                };
                known.insert(name, value);
            }
        }
    }

    fn is_for(&self, runtime: Runtime) -> bool {
        self.compared.is_some_and(|(compared, _)| compared == runtime)
    }

    /// Compares the numbers of `node` with those that the runtime computes right.
    fn compare(&mut self, (operator, node): (&str, &NodeProto), inputs: &[NumberFacts], made: NumberFacts) {
        let (Some((runtime, _)), None) = (self.compared, &self.wrong) else { return };
        // It is taken away before a runtime gets the model.
        if node.op_type == "ZipMap" {
            return;
        }
        let name = if node.name.is_empty() { node.output.first() } else { Some(&node.name) };
        let name = name.map_or("", String::as_str);
        self.wrong = values::wrong((ModelFormat::Onnx, runtime), (operator, name), inputs, made);
    }

    /// Follows the body of a function, called with these values. Returns its outputs.
    fn call(&mut self, function: &'a FunctionProto, inputs: &[ValueFacts<'a>]) -> Vec<ValueFacts<'a>> {
        let left = self.nodes_left.checked_sub(function.node.len());
        let (Some(left), true) = (left, self.call_depth < CALL_DEPTH_MAX && self.depth < DEPTH_MAX) else {
            self.refuse_all("its functions call each other too often to be checked");
            return Vec::new();
        };
        self.nodes_left = left;
        self.call_depth += 1;
        self.depth += 1;
        let names = function.input.iter().map(String::as_str);
        let mut known = GraphScopes(vec![names.zip(inputs.iter().copied()).collect()]);
        self.nodes(&function.node, &mut known, &HashMap::new());
        self.call_depth -= 1;
        self.depth -= 1;
        function.output.iter().map(|name| known.get(name)).collect()
    }

    /// Refuses the dangers that the table of operators lists for these inputs.
    fn ask_table(&mut self, node: &NodeProto, inputs: &[ValueFacts<'a>]) {
        let first = inputs.first().and_then(|first| first.shaped_as);
        let operand = |value: &ValueFacts<'_>| Operand {
            from_caller: value.from_caller,
            is_integer: value.is_integer(),
            is_within: value.indices_into.is_some() && value.indices_into == first,
        };
        let operands: Vec<Operand> = inputs.iter().map(operand).collect();
        let domain = without_alias(&node.domain);
        // Their divisors are looked at in each call.
        if domain.is_empty() && ["Div", "Mod"].contains(&node.op_type.as_str()) {
            return;
        }
        let whole = operator(node);
        let operator = whole.strip_suffix(FMOD).unwrap_or(&whole);
        let name = if node.name.is_empty() { node.output.first() } else { Some(&node.name) };
        let is_table = rows(node, |index| inputs.get(index).copied().unwrap_or_default()).is_some();
        for runtime in Runtime::ALL {
            for (index, harm) in operators::harms((ModelFormat::Onnx, runtime), operator, &operands) {
                let input = |index| inputs.get(index).and_then(|value: &ValueFacts<'_>| value.input);
                match index.map(input) {
                    // An empty count or threshold is the only harm, and a call shows it.
                    None if runtime == Runtime::OnnxRuntime && operator == "NonMaxSuppression" => {}
                    Some(Some(input)) if runtime == Runtime::OnnxRuntime && operator == "NonMaxSuppression" => {
                        self.found.filled.push(input.to_owned());
                    }
                    // The indices of each call are compared with the rows of the table.
                    Some(Some(_)) if operator == "Gather" && is_table => {}
                    _ => {
                        self.refuse(runtime, operators::reason(operator, name.map_or("", String::as_str), index, harm));
                    }
                }
            }
        }
    }

    fn refuse_all(&mut self, reason: &str) {
        for runtime in Runtime::ALL {
            self.refuse(runtime, reason.to_owned());
        }
    }

    fn refuse(&mut self, runtime: Runtime, reason: String) {
        operators::refuse(&mut self.found, runtime, reason);
    }
}

/// The operators before which OpenVINO omits an `Expand`.
const ARITHMETIC: [&str; 10] = ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mod", "Sum", "Mean"];

/// Follows `Mod` in the table of values, if it divides as C's `fmod`.
const FMOD: &str = " fmod";

/// The name of an operator in the tables.
fn operator(node: &NodeProto) -> String {
    let domain = without_alias(&node.domain);
    let is_fmod = || node.op_type == "Mod" && attribute(node, "fmod").is_some_and(|attribute| attribute.i == 1);
    match domain {
        "" if is_fmod() => format!("{}{FMOD}", node.op_type),
        "" => node.op_type.clone(),
        _ => format!("{domain}.{}", node.op_type),
    }
}

/// The output of `node` at `position`, of any numbers. `from_caller` is set if one of its inputs comes from a caller.
fn output<'a>(
    node: &NodeProto,
    position: usize,
    from_caller: bool,
    input: impl Fn(usize) -> ValueFacts<'a>,
) -> ValueFacts<'a> {
    let first = input(0);
    let shaped_as = shaped_as(node, &input);
    let of = |datatype| ValueFacts { from_caller, shaped_as, ..ValueFacts::of(datatype) };
    let number = |name: &str| attribute(node, name).and_then(|attribute| datatype(i32::try_from(attribute.i).ok()?));
    let same = of(first.numbers.datatype);
    match (node.op_type.as_str(), position) {
        // Follows only from the shape.
        ("Shape" | "Size", _) => ValueFacts::of(Some(DataType::Int64)),
        ("NonZero" | "ArgMax" | "ArgMin", _) | ("TopK", 1) => {
            ValueFacts { from_caller, indices_into: first.shaped_as, ..ValueFacts::of(Some(DataType::Int64)) }
        }
        ("NonMaxSuppression", _) | ("Unique" | "MaxPool", 1..) => of(Some(DataType::Int64)),
        ("Constant" | "ConstantOfShape", _) => constant(node),
        ("Cast", _) => {
            let made = of(number("to"));
            let ValueFacts { input, indices_into, dims, .. } = first;
            ValueFacts { input: input.filter(|_| made.is_integer()), indices_into, dims, ..made }
        }
        ("Expand", _) => ValueFacts { is_expanded: input(1).from_caller, ..same },
        (kind, _) if is_standard(node) && ARITHMETIC.contains(&kind) => {
            ValueFacts { is_expanded: (0..node.input.len()).any(|index| input(index).is_expanded), ..same }
        }
        ("Identity", _) => ValueFacts { from_caller, shaped_as, ..first },
        ("Reshape" | "Squeeze" | "Unsqueeze" | "Flatten" | "Transpose", _) => {
            ValueFacts { input: first.input, uncast: first.uncast, indices_into: first.indices_into, ..same }
        }
        ("QuantizeLinear", _) => {
            ValueFacts { dims: first.dims, ..of(input(2).numbers.datatype.or(Some(DataType::Uint8))) }
        }
        ("DequantizeLinear", _) => ValueFacts { dims: first.dims, ..of(Some(DataType::Fp32)) },
        ("DynamicQuantizeLinear", 0 | 2) => of(Some(DataType::Uint8)),
        ("DynamicQuantizeLinear" | "RandomUniform" | "RandomNormal" | "Multinomial", _) => of(number("dtype")),
        ("MatMulInteger" | "ConvInteger", _) => of(Some(DataType::Int32)),
        ("CastLike" | "Where", _) => of(input(1).numbers.datatype),
        ("OneHot", _) => of(input(2).numbers.datatype),
        (
            "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "Not" | "And" | "Or" | "Xor" | "IsNaN"
            | "IsInf",
            _,
        )
        | ("Dropout", 1) => of(Some(DataType::Bool)),
        // The outputs of operators of other domains are unknown.
        _ if is_standard(node) => same,
        _ => of(first.numbers.datatype.filter(|_| first.is_integer())),
    }
}

/// The value of a node without inputs, or that has a shape for input.
fn constant<'a>(node: &NodeProto) -> ValueFacts<'a> {
    let tensor = attribute(node, "value").and_then(|attribute| attribute.t.as_ref());
    let number = attribute(node, "value_int").map(|attribute| std::slice::from_ref(&attribute.i));
    let numbers = attribute(node, "value_ints").map(|attribute| attribute.ints.as_slice()).or(number);
    match (tensor, numbers) {
        (Some(tensor), _) => ValueFacts::of_weight(tensor),
        (None, Some(numbers)) => ValueFacts::of_constant(Some(DataType::Int64), NumberBounds::of(numbers)),
        (None, None) => ValueFacts::default(),
    }
}

/// The input that indexes rows of a weight in `node`, with the number of rows.
fn rows<'a>(node: &NodeProto, input: impl Fn(usize) -> ValueFacts<'a>) -> Option<(String, i64)> {
    if node.op_type != "Gather" || !is_standard(node) {
        return None;
    }
    let (dims, name) = (input(0).dims?, input(1).input?);
    let axis = attribute(node, "axis").map_or(0, |attribute| attribute.i);
    let axis = if axis < 0 { axis + i64::try_from(dims.len()).ok()? } else { axis };
    Some((name.to_owned(), *dims.get(usize::try_from(axis).ok()?)?))
}

/// The first value with the shape of the outputs of `node`.
fn shaped_as<'a>(node: &NodeProto, input: impl Fn(usize) -> ValueFacts<'a>) -> Option<&'a str> {
    match node.op_type.as_str() {
        "Identity" | "Cast" | "Dropout" | "QuantizeLinear" | "DequantizeLinear" | "Relu" | "LeakyRelu" | "Sigmoid"
        | "Tanh" | "Neg" | "Abs" | "Sqrt" | "Exp" | "Log" | "Clip" | "Erf" | "Softmax" | "Not" | "IsNaN" | "IsInf" => {
            input(0).shaped_as
        }
        "Add" | "Sub" | "Mul" | "Div" | "Pow" | "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" => {
            // A longer weight would broadcast the other value to its length.
            let is_single = |value: ValueFacts<'_>| {
                value.dims.is_some_and(|dims| dims.len() <= 1 && dims.iter().all(|&dim| dim == 1))
            };
            match (input(0), input(1)) {
                (value, weight) | (weight, value) if is_single(weight) => value.shaped_as,
                _ => None,
            }
        }
        _ => None,
    }
}

/// The value that `node` multiplies by a matrix, with the number of rows of that matrix.
fn width<'a>(node: &NodeProto, input: impl Fn(usize) -> ValueFacts<'a>) -> Option<(String, i64)> {
    let is_set = |name| attribute(node, name).is_some_and(|attribute| attribute.i != 0);
    let (name, dims) = (input(0).shaped_as?, input(1).dims?);
    let &[.., rows, cols] = dims else { return None };
    match node.op_type.as_str() {
        _ if !is_standard(node) => None,
        "MatMul" => Some((name.to_owned(), rows)),
        "Gemm" if !is_set("transA") => Some((name.to_owned(), if is_set("transB") { cols } else { rows })),
        _ => None,
    }
}

fn is_standard(node: &NodeProto) -> bool {
    without_alias(&node.domain).is_empty()
}

/// Returns true if `node` divides integers. With `fmod`, the remainder is that of C's `fmod`, which is safe.
fn divides<'a>(node: &NodeProto, input: impl Fn(usize) -> ValueFacts<'a>) -> bool {
    let is_division = match node.op_type.as_str() {
        "Div" => true,
        "Mod" => attribute(node, "fmod").is_none_or(|attribute| attribute.i != 1),
        _ => false,
    };
    is_division && is_standard(node) && (input(0).is_integer() || input(1).is_integer())
}

/// The input that `node` divides integers by.
fn divisor<'a>(node: &NodeProto, input: impl Fn(usize) -> ValueFacts<'a>) -> Option<Divisor> {
    let divisor = input(1).uncast.filter(|_| divides(node, &input))?;
    Some(Divisor { input: divisor.to_owned(), dividend: input(0).uncast.map(str::to_owned) })
}

fn dangers<'a>(node: &NodeProto, input: impl Fn(usize) -> ValueFacts<'a>) -> Vec<(Runtime, String)> {
    let name = if node.name.is_empty() { node.output.first() } else { Some(&node.name) };
    let name = shortened(name.map_or("", String::as_str));
    let kind = node.op_type.as_str();
    let mut found = Vec::new();
    let mut endangered = |runtime, harm: &str| found.push((runtime, format!("{kind} {name:?} {harm}")));

    if divides(node, &input) {
        if input(0).from_caller || input(1).from_caller {
            endangered(
                Runtime::OpenVino,
                "divides integers that callers send, and OpenVINO does so in float32, which is wrong above 2^24",
            );
        }
        if input(1).from_caller && input(1).uncast.is_none() {
            endangered(
                Runtime::OnnxRuntime,
                "divides integers by a number that it computes, and the smallest integer divided by -1 ends the process",
            );
        }
    }

    // Indices into the tensor itself are within its bounds.
    let may_be_outside = |indices: ValueFacts<'_>| {
        indices.from_caller && (indices.indices_into.is_none() || indices.indices_into != input(0).shaped_as)
    };
    // OpenVINO omits the `Expand` where another operand seems to have that shape, and does not check it in a call. It
    // keeps it before single numbers.
    let may_omit_expand = || {
        let operands = || (0..node.input.len()).map(&input);
        let is_single = |value: &ValueFacts<'_>| value.dims.is_some_and(|dims| dims.iter().all(|&dim| dim == 1));
        operands().any(|value| value.is_expanded) && operands().filter(|value| !is_single(value)).count() > 1
    };
    match kind {
        _ if !is_standard(node) => {}
        _ if ARITHMETIC.contains(&kind) && may_omit_expand() => {
            endangered(
                Runtime::OpenVino,
                "takes a value that was broadcast to a shape that callers send, and OpenVINO answers where that shape does \
                 not fit",
            );
        }
        "GatherND" if may_be_outside(input(1)) => {
            endangered(Runtime::OpenVino, "takes indices that callers send, and reads whatever memory they point to");
        }
        "ScatterElements" | "Scatter" if may_be_outside(input(1)) => {
            endangered(
                Runtime::OpenVino,
                "takes indices that callers send, and writes to whatever memory they point to",
            );
        }
        "Range" if input(2).from_caller => {
            endangered(Runtime::OpenVino, "takes a step that callers send, and a step of 0 ends the process");
        }
        _ => {}
    }
    found
}

fn attribute<'a>(node: &'a NodeProto, name: &str) -> Option<&'a AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name == name)
}

#[cfg(test)]
mod tests {
    use super::super::protos::{TensorTypeProto, TypeProto, ValueInfoProto};
    use super::super::tensor::TensorProto;
    use super::*;

    const FLOAT: i32 = 1;
    const INT32: i32 = 6;
    const INT64: i32 = 7;

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

    fn tensor(elem_type: i32) -> ValueInfoProto {
        let tensor_type = Some(TensorTypeProto { elem_type, shape: None });
        ValueInfoProto { name: String::new(), r#type: Some(TypeProto { tensor_type }) }
    }

    fn graph(nodes: Vec<NodeProto>) -> GraphProto {
        let input = |(name, elem_type): (&str, i32)| ValueInfoProto { name: name.into(), ..tensor(elem_type) };
        let constant = |(name, low): (&str, f64)| TensorProto {
            name: name.into(),
            data_type: if name == "tiny" { FLOAT } else { INT64 },
            bounds: Some(NumberBounds { low, high: low, is_single: true }),
            ..TensorProto::default()
        };
        GraphProto {
            node: nodes,
            input: [("x", FLOAT), ("i", INT64), ("j", INT32)].map(input).into(),
            initializer: [("c", vec![30, 8]), ("one", vec![])]
                .map(|(name, dims)| TensorProto { dims, ..constant((name, 1.0)) })
                .into_iter()
                .chain([("small", 1.0), ("tiny", 9.0)].map(constant))
                .collect(),
            ..GraphProto::default()
        }
    }

    /// A graph within another.
    fn inner(nodes: Vec<NodeProto>, output: &str) -> GraphProto {
        let output = ValueInfoProto { name: output.into(), r#type: None };
        GraphProto { node: nodes, output: vec![output], ..GraphProto::default() }
    }

    fn endangered(nodes: Vec<NodeProto>) -> Vec<Runtime> {
        let model = ModelProto { graph: Some(graph(nodes)), ..ModelProto::default() };
        find(&model).refused.into_iter().map(|(runtime, _)| runtime).collect()
    }

    #[test]
    fn the_rows_of_a_table_that_callers_choose_from_are_counted() {
        let rows = |nodes| find(&ModelProto { graph: Some(graph(nodes)), ..ModelProto::default() }).rows;
        let gather = |from: &str, axis| node("Gather", &["c", from], "y", vec![number("axis", axis)]);
        assert_eq!(rows(vec![gather("i", 0)]), [("i".to_owned(), 30)]);
        assert_eq!(rows(vec![gather("j", -1)]), [("j".to_owned(), 8)]);
        let cast = node("Cast", &["j"], "n", vec![number("to", INT64.into())]);
        let flat = node("Reshape", &["n", "c"], "f", vec![]);
        assert_eq!(rows(vec![cast, flat, gather("f", 0)]), [("j".to_owned(), 30)]);
        let more = node("Add", &["i", "c"], "n", vec![]);
        assert_eq!(rows(vec![more, gather("n", 0)]), [], "what is computed is not known");
        let scaled = node("DequantizeLinear", &["c", "s"], "w", vec![]);
        let same = node("Identity", &["w"], "v", vec![]);
        let from = node("Gather", &["v", "i"], "y", vec![]);
        assert_eq!(rows(vec![scaled, same, from]), [("i".to_owned(), 30)], "a quantized table");
    }

    #[test]
    fn whole_numbers_divided_by_what_is_made_of_a_call_are_for_no_runtime() {
        let both = [Runtime::OpenVino, Runtime::OnnxRuntime];
        for op in ["Div", "Mod"] {
            let cast = || node("Cast", &["x"], "n", vec![number("to", INT64.into())]);
            let add = node("Add", &["n", "c"], "d", vec![]);
            let by = |divisor| node(op, &["c", divisor], "y", vec![]);
            assert_eq!(endangered(vec![cast(), add, by("d")]), both, "{op} by what was computed");
            assert_eq!(endangered(vec![cast(), by("n")]), both, "{op} by what is cast, and may wrap");
            // A value from outside a branch is not an input of the node.
            let outside = || {
                let branch = AttributeProto { g: Some(inner(vec![by("i")], "y")), ..number("then_branch", 0) };
                node("If", &["c"], "n", vec![branch])
            };
            assert_eq!(endangered(vec![outside()]), [Runtime::OpenVino], "{op} in a branch, by an input");
            assert_eq!(endangered(vec![outside(), by("n")]), both, "{op} by what comes out of a branch");
        }
    }

    #[test]
    fn divisors_that_are_inputs_are_named_with_their_dividends() {
        for (dividend, divisor, expected) in [("i", "j", Some("i")), ("c", "i", None), ("j", "j", Some("j"))] {
            let flat = node("Reshape", &[divisor, "c"], "f", vec![]);
            let model = ModelProto {
                graph: Some(graph(vec![flat, node("Div", &[dividend, "f"], "y", vec![])])),
                ..ModelProto::default()
            };
            let found = find(&model);
            let dividend = expected.map(str::to_owned);
            assert_eq!(found.divisors, [Divisor { input: divisor.to_owned(), dividend }]);
            assert_eq!(found.refused.into_iter().map(|(runtime, _)| runtime).collect::<Vec<_>>(), [Runtime::OpenVino]);
        }
    }

    #[test]
    fn functions_are_followed_at_each_call() {
        let function = |name: &str, nodes: Vec<NodeProto>| FunctionProto {
            name: name.into(),
            domain: "own".into(),
            input: vec!["a".into(), "b".into()],
            output: vec!["q".into()],
            node: nodes,
            attribute_proto: Vec::new(),
        };
        let call = |inputs: &[&str]| NodeProto { domain: "own".into(), ..node("F", inputs, "y", vec![]) };
        let model = |calls: Vec<NodeProto>, functions: Vec<FunctionProto>| ModelProto {
            graph: Some(graph(calls)),
            functions,
            ..ModelProto::default()
        };
        let runtimes =
            |model: &ModelProto| find(model).refused.into_iter().map(|(runtime, _)| runtime).collect::<Vec<_>>();
        let divide = || vec![function("F", vec![node("Div", &["a", "b"], "q", vec![])])];
        assert_eq!(runtimes(&model(vec![call(&["x", "x"])], divide())), [], "of floats");
        assert_eq!(runtimes(&model(vec![call(&["i", "c"])], divide())), [Runtime::OpenVino]);
        let computed = vec![node("Add", &["i", "c"], "d", vec![]), call(&["i", "d"])];
        assert_eq!(runtimes(&model(computed, divide())), [Runtime::OpenVino, Runtime::OnnxRuntime]);
        // One that calls itself ends as well.
        let itself = || NodeProto { domain: "own".into(), ..node("F", &["a", "b"], "q", vec![]) };
        let twice = function("F", vec![itself(), itself()]);
        assert!(!runtimes(&model(vec![call(&["x", "x"])], vec![twice])).is_empty());
    }

    #[test]
    fn an_input_is_as_wide_as_the_matrix_that_it_is_multiplied_by() {
        let widths = |nodes| find(&ModelProto { graph: Some(graph(nodes)), ..ModelProto::default() }).widths;
        let x = |width| vec![("x".to_owned(), width)];
        assert_eq!(widths(vec![node("MatMul", &["x", "c"], "y", vec![])]), x(30));
        assert_eq!(widths(vec![node("Gemm", &["x", "c"], "y", vec![])]), x(30));
        assert_eq!(widths(vec![node("Gemm", &["x", "c"], "y", vec![number("transB", 1)])]), x(8));
        assert_eq!(widths(vec![node("Gemm", &["x", "c"], "y", vec![number("transA", 1)])]), []);
        let relu = node("Relu", &["x"], "r", vec![]);
        assert_eq!(widths(vec![relu, node("MatMul", &["r", "c"], "y", vec![])]), x(30));
        let scaled = node("DequantizeLinear", &["c", "s"], "w", vec![]);
        assert_eq!(widths(vec![scaled, node("MatMul", &["x", "w"], "y", vec![])]), x(30), "a quantized matrix");
        for step in [node("Add", &["x", "c"], "r", vec![]), node("Transpose", &["x"], "r", vec![])] {
            assert_eq!(widths(vec![step, node("MatMul", &["r", "c"], "y", vec![])]), [], "of another width");
        }
    }

    #[test]
    fn ordinary_divisions_harm_nobody() {
        let shape = node("Shape", &["i"], "s", vec![]);
        assert_eq!(endangered(vec![shape, node("Div", &["c", "s"], "y", vec![])]), [], "by a length");
        assert_eq!(endangered(vec![node("Div", &["i", "c"], "y", vec![])]), [Runtime::OpenVino], "by a constant");
        assert_eq!(endangered(vec![node("Div", &["x", "x"], "y", vec![])]), [], "of floats");
        let fmod = node("Mod", &["small", "i"], "y", vec![number("fmod", 1)]);
        assert_eq!(endangered(vec![fmod]), [Runtime::OpenVino], "C's fmod, which ends no process");
        let cast = node("Cast", &["i"], "f", vec![number("to", FLOAT.into())]);
        assert_eq!(
            endangered(vec![cast, node("Div", &["x", "f"], "y", vec![])]),
            [],
            "of floats made of whole numbers"
        );
    }

    #[test]
    fn integers_that_openvino_computes_wrong_are_for_onnx_runtime() {
        let openvino = [Runtime::OpenVino];
        for op in ["Equal", "Add", "Mul"] {
            assert_eq!(endangered(vec![node(op, &["i", "i"], "y", vec![])]), openvino, "{op} of any integers");
        }
        assert_eq!(endangered(vec![node("Relu", &["i"], "y", vec![])]), openvino);
        let double = |to: i64| node("Cast", &["x"], "d", vec![number("to", to)]);
        let product = |of: &str| node("Mul", &[of, of], "y", vec![]);
        assert_eq!(endangered(vec![double(11), product("d")]), openvino, "FP64");
        assert_eq!(endangered(vec![double(FLOAT.into()), product("d")]), []);
        assert_eq!(endangered(vec![double(INT64.into()), product("d")]), openvino, "integers made of floats");
    }

    #[test]
    fn graphs_of_the_field_keep_openvino() {
        let to = |number_of: i32| vec![number("to", number_of.into())];
        let compared = node("Equal", &["i", "small"], "m", vec![]);
        let mask = [
            node("Unsqueeze", &["i", "small"], "u", vec![]),
            node("Cast", &["u"], "f", to(FLOAT)),
            node("Sub", &["x", "f"], "y", vec![]),
        ];
        let lengths = [
            node("Shape", &["x"], "s", vec![]),
            node("Gather", &["s", "small"], "n", vec![]),
            node("Mul", &["n", "n"], "p", vec![]),
            node("Equal", &["p", "c"], "e", vec![]),
            node("Concat", &["p", "n"], "t", vec![]),
            node("Reshape", &["x", "t"], "y", vec![]),
        ];
        let places = [
            node("ArgMax", &["x"], "a", vec![]),
            node("Add", &["a", "small"], "b", vec![]),
            node("Cast", &["b"], "y", to(FLOAT)),
        ];
        let counts = [
            compared.clone(),
            node("Cast", &["m"], "n", to(INT64)),
            node("ReduceSum", &["n"], "s", vec![]),
            node("Less", &["s", "small"], "y", vec![]),
        ];
        let clipped = [
            node("Clip", &["x", "tiny", "tiny"], "v", vec![]),
            node("Cast", &["v"], "n", to(INT64)),
            node("Sub", &["n", "small"], "y", vec![]),
        ];
        for nodes in [vec![compared], mask.into(), lengths.into(), places.into(), counts.into(), clipped.into()] {
            assert_eq!(endangered(nodes.clone()), [], "{nodes:?}");
        }
    }

    #[test]
    fn tokens_are_small_by_their_nature_and_each_call_is_checked() {
        let bits = |name: &str| {
            let mut graph = graph(vec![node("Add", &[name, name], "y", vec![])]);
            graph.input.truncate(1);
            graph.input.push(ValueInfoProto { name: name.into(), ..tensor(INT64) });
            find(&ModelProto { graph: Some(graph), ..ModelProto::default() }).bits
        };
        assert_eq!(bits("attention_mask"), [(Runtime::OpenVino, values::FP32_BITS)]);
        assert_eq!(bits("amount"), []);
        let table = |nodes| find(&ModelProto { graph: Some(graph(nodes)), ..ModelProto::default() });
        let rows = vec![node("Gather", &["c", "i"], "y", vec![]), node("Mul", &["i", "i"], "z", vec![])];
        let found = table(rows);
        assert_eq!((found.refused, found.bits), (vec![], vec![]), "a table of 30 rows");
        let larger = table(vec![node("Max", &["i", "i"], "y", vec![])]);
        assert_eq!(larger.bits, [(Runtime::OnnxRuntime, 31)], "it compares halves of 64 bits");
    }

    #[test]
    fn a_shape_that_callers_send_is_not_for_openvino_before_arithmetic() {
        let expand = |shape: &str| node("Expand", &["x", shape], "e", vec![]);
        let shape = || node("Shape", &["x"], "s", vec![]);
        for op in ["Add", "Mul", "Max", "Sum"] {
            assert_eq!(endangered(vec![expand("i"), node(op, &["e", "x"], "y", vec![])]), [Runtime::OpenVino], "{op}");
            assert_eq!(endangered(vec![expand("i"), node(op, &["x", "e"], "y", vec![])]), [Runtime::OpenVino], "{op}");
            assert_eq!(endangered(vec![shape(), expand("s"), node(op, &["e", "x"], "y", vec![])]), [], "{op}");
            let one_more = node("Add", &["e", "one"], "f", vec![]);
            assert_eq!(endangered(vec![expand("i"), one_more.clone()]), [], "one number");
            let sum = node(op, &["f", "x"], "y", vec![]);
            assert_eq!(endangered(vec![expand("i"), one_more, sum]), [Runtime::OpenVino], "{op} after one number");
        }
        assert_eq!(endangered(vec![expand("i"), node("Relu", &["e"], "y", vec![])]), []);
    }

    #[test]
    fn indices_that_callers_send_are_not_for_openvino() {
        let openvino = [Runtime::OpenVino];
        for op in ["GatherND", "ScatterElements", "Scatter"] {
            assert_eq!(endangered(vec![node(op, &["x", "i"], "y", vec![])]), openvino, "{op}");
            assert_eq!(endangered(vec![node(op, &["x", "c"], "y", vec![])]), [], "{op} with constants");
            let places = |of: &str| {
                let found = node("NonZero", &[of], "n", vec![]);
                vec![found, node("Transpose", &["n"], "t", vec![]), node(op, &["x", "t"], "y", vec![])]
            };
            assert_eq!(endangered(places("x")), [], "{op} at places of its own");
            assert_eq!(endangered(places("i")), openvino, "{op} at the places of another tensor, which may be larger");
            let mut masked = vec![node("Greater", &["x", "one"], "m", vec![])];
            masked.extend(places("m"));
            assert_eq!(endangered(masked), [], "{op} by a mask of its own");
        }
        assert_eq!(endangered(vec![node("Range", &["c", "c", "i"], "y", vec![])]), openvino);
    }

    #[test]
    fn counts_that_select_boxes_may_not_be_empty_and_boxes_are_for_both_runtimes() {
        let find = |inputs: &[&str]| {
            let nodes = vec![node("NonMaxSuppression", inputs, "y", vec![])];
            find(&ModelProto { graph: Some(graph(nodes)), ..ModelProto::default() })
        };
        let boxes = find(&["x", "x", "c"]);
        assert!(boxes.refused.iter().all(|(runtime, _)| *runtime != Runtime::OnnxRuntime), "{:?}", boxes.refused);
        assert_eq!(find(&["x", "x", "i"]).filled, ["i"]);
    }

    #[test]
    fn functions_and_graphs_within_each_other_end_on_a_small_stack() {
        // Each function calls itself from the innermost of its graphs.
        let call = |name: &str| NodeProto { domain: "own".into(), op_type: name.into(), ..NodeProto::default() };
        let within = |inner| {
            let branch =
                AttributeProto { g: Some(GraphProto { node: vec![inner], ..GraphProto::default() }), ..number("g", 0) };
            NodeProto { attribute: vec![branch], op_type: "If".into(), ..NodeProto::default() }
        };
        let deep = (0..15).fold(call("F"), |inner, _| within(inner));
        let function =
            FunctionProto { name: "F".into(), domain: "own".into(), node: vec![deep], ..FunctionProto::default() };
        let model =
            ModelProto { graph: Some(graph(vec![call("F")])), functions: vec![function], ..ModelProto::default() };
        // A quarter of the stack that a thread has.
        let thread = std::thread::Builder::new().stack_size(512 << 10);
        let refused = thread.spawn(move || find(&model).refused).unwrap().join().unwrap();
        assert_eq!(refused.len(), 2);
        assert!(refused[0].1.contains("nested too deep"), "{refused:?}");
    }

    #[test]
    fn many_graphs_next_to_many_values_are_followed_in_a_moment() {
        let values = (0..20_000).map(|number| node("Relu", &["x"], &format!("v{number}"), vec![]));
        let branches = (0..20_000).map(|_| {
            let branch = AttributeProto { g: Some(inner(vec![], "x")), ..number("then_branch", 0) };
            node("If", &["c"], "n", vec![branch])
        });
        let since = std::time::Instant::now();
        assert_eq!(endangered(values.chain(branches).collect()), []);
        assert!(since.elapsed() < std::time::Duration::from_secs(20), "{:?}", since.elapsed());
    }
}
