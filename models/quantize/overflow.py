"""Weights whose products fit: the same answers on processors with and without VNNI.

x86-64 processors without VNNI add two products of a uint8 activation and an int8 weight in 16 bits (`vpmaddubsw`) and cut off
what does not fit. Two weights of one sign that are 128 steps together fit, 255 * 128 < 2**15, and no kernel adds products of
different outputs. So each channel's scale is as fine as its two largest weights of one sign allow: 7 bits where they are
equal, nearly 8 where one stands out.
"""
import collections

import numpy as np
from onnx import helper, numpy_helper

LARGEST_PAIR = 128
# Rounding adds at most half a step to each of the two.
ROOM = LARGEST_PAIR - 1
# Operators with weights, and the axis of the weights that counts outputs; of a Gemm it depends on transB.
OUTPUT_AXIS = {"Conv": 0, "ConvTranspose": 1, "MatMul": -1, "ConvInteger": 0, "MatMulInteger": -1, "DynamicQuantizeLSTM": -1}
# Operators that add no products: constants that they alone read are no weights.
ELEMENTWISE = {"Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Where", "PRelu", "Gather", "Concat", "QuantizeLinear"}

# A quantized tensor of weights: the names of its steps and its scale, the axis that counts outputs (None where the scales do
# not count along it), and the axis that the scales count along.
Weights = collections.namedtuple("Weights", "steps scale axis scale_axis")


def fit(model, originals):
    """Makes the weights of MODEL coarser where pairs of them are too large. Biases follow, for they have the scale of the sums.

    ORIGINALS: the constants of the float model. Weights are rounded anew from these: rounded once more from steps that are
    nearly half as large, all weights of one step would become as many coarser ones, and EfficientNet-Lite0's cosine .960
    where it is .984.
    """
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for weights in all_weights(model):
        steps, scale = (numpy_helper.to_array(constants[name]) for name in (weights.steps, weights.scale))
        pairs = largest_pairs(steps, scale, weights.axis)
        shrink = np.minimum(1, ROOM / np.maximum(pairs, 1)).astype(np.float32)
        # A pair that fits as it is keeps its scale.
        shrink = np.where(pairs <= LARGEST_PAIR, np.float32(1), shrink)
        if (shrink == 1).all():
            continue
        coarser = (scale / shrink.reshape(scale.shape if shrink.size > 1 else ())).astype(np.float32)
        fine, coarse = (along_axis(np.ravel(each), steps, weights.scale_axis) for each in (scale, coarser))
        original = find_original(originals, steps, fine)
        values = steps * fine if original is None else original
        put(constants, weights.steps, np.rint(values / coarse).astype(np.int8))
        put(constants, weights.scale, coarser)
        coarser_biases(model, constants, weights, shrink)
    return model


def largest_pair(model):
    """The largest sum of two weights of one output and one sign, in steps; 0 for a model without int8 weights."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    found = [
        largest_pairs(*(numpy_helper.to_array(constants[name]) for name in (weights.steps, weights.scale)), weights.axis).max()
        for weights in all_weights(model)]
    return int(max(found, default=0))


def all_weights(model):
    """The int8 weights of MODEL, each once."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    maker = {name: node for node in model.graph.node for name in node.output}
    found = {}
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" or node.op_type in ELEMENTWISE:
            continue
        for name in node.input:
            source, scale, zero, axis = name, None, None, output_axis(node)
            scale_axis = axis
            if name in maker and maker[name].op_type == "DequantizeLinear":
                source, scale, zero = (*maker[name].input, None)[:3]
                scale_axis = next((attribute.i for attribute in maker[name].attribute if attribute.name == "axis"), 1)
                axis = same_axis(axis, scale_axis, constants.get(source))
            elif name.endswith("_quantized"):  # as quantize_dynamic calls them
                scale, zero = (name.removesuffix("_quantized") + ending for ending in ("_scale", "_zero_point"))
            if source not in constants or scale not in constants or numpy_helper.to_array(constants[source]).dtype != np.int8:
                continue
            if zero in constants and numpy_helper.to_array(constants[zero]).any():
                raise ValueError(f"the weights {source} have a zero point, so their sums cannot be kept from overflowing")
            before = found.setdefault(source, Weights(source, scale, axis, scale_axis))
            if before.axis != axis:
                found[source] = before._replace(axis=None)
    return list(found.values())


def output_axis(node):
    if node.op_type == "Gemm":
        return 0 if any(attribute.name == "transB" and attribute.i for attribute in node.attribute) else 1
    return OUTPUT_AXIS.get(node.op_type)


def same_axis(axis, other, tensor):
    """AXIS if it is that of TENSOR which is also called OTHER, else None."""
    if axis is None or tensor is None or not tensor.dims:
        return None
    return axis if axis % len(tensor.dims) == other % len(tensor.dims) else None


def largest_pairs(steps, scale, axis):
    """Of each channel that has a scale of its own; one number for all where the scale is one, or not that of the outputs."""
    steps = steps.astype(np.int32)
    if scale.size == 1 or axis is None or steps.shape[axis] != scale.size:
        rows = steps.reshape(1, -1)
    else:
        rows = np.moveaxis(steps, axis, 0).reshape(scale.size, -1)
    ordered = np.sort(np.pad(rows, ((0, 0), (2, 2))), axis=1)
    return np.maximum(ordered[:, -1] + ordered[:, -2], -ordered[:, 0] - ordered[:, 1])


def along_axis(values, steps, axis):
    """VALUES, one for each channel, in a shape that multiplies STEPS."""
    if values.size == 1:
        return values.reshape(())
    shape = [1] * steps.ndim
    shape[axis] = values.size
    return values.reshape(shape)


def find_original(originals, steps, scale):
    """What STEPS were rounded from; None if it is not among ORIGINALS, as when a quantizer changed it."""
    for original in originals:
        for values in (original, original.T) if original.ndim == 2 else (original,):
            if values.shape == steps.shape and (np.abs(values - steps * scale) <= 0.51 * np.abs(scale)).all():
                return values
    return None


def coarser_biases(model, constants, weights, shrink):
    """Writes anew the int32 biases of the operators that read WEIGHTS, for the weights' scale divided by SHRINK."""
    maker = {name: node for node in model.graph.node for name in node.output}
    for node in list(model.graph.node):
        dequantize = [maker.get(name) for name in node.input[1:3]]
        if len(dequantize) < 2 or any(made is None or made.op_type != "DequantizeLinear" for made in dequantize):
            continue
        if dequantize[0].input[0] != weights.steps:
            continue
        steps, scale = (numpy_helper.to_array(constants[name]) for name in dequantize[1].input[:2])
        if steps.dtype != np.int32:
            continue
        # A bias may serve two operators, so the name is the operator's.
        name = f"{node.output[0]}/coarser_bias"
        shrink_each = np.broadcast_to(np.ravel(shrink), steps.shape)
        parts = {
            "steps": np.rint(steps.astype(np.float64) * shrink_each).astype(np.int32),
            "scale": (np.broadcast_to(np.ravel(scale), steps.shape) / shrink_each).astype(np.float32),
            "zero": np.zeros(steps.shape, np.int32)}
        for part, data in parts.items():
            constants[f"{name}/{part}"] = numpy_helper.from_array(np.array(data), f"{name}/{part}")
            model.graph.initializer.append(constants[f"{name}/{part}"])
        inputs = [f"{name}/{part}" for part in parts]
        made = helper.make_node("DequantizeLinear", inputs, [name], name=f"{name}/DequantizeLinear", axis=0)
        model.graph.node.insert(list(model.graph.node).index(node), made)
        node.input[2] = name


def put(constants, name, data):
    constants[name].CopyFrom(numpy_helper.from_array(np.array(data), name))
