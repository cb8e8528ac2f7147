"""What both runtimes need of an int8 graph, and the quantizers leave undone. Each gives the same model, computed faster."""
import numpy as np
from onnx import TensorProto, helper, numpy_helper

# A bias in steps as fine as its sums must fit into 32 bits; beyond this it stays float.
LARGEST_BIAS = 2**30


def keep_outputs_float(model):
    """Takes the QuantizeLinear/DequantizeLinear pair off each output.

    The last layer's sums are exact; rounding them to 256 steps only makes ties between classes.
    """
    graph, names = model.graph, {value.name for value in model.graph.output}
    maker = {name: node for node in graph.node for name in node.output}
    for name in names:
        dequantize = maker.get(name)
        quantize = maker.get(dequantize.input[0]) if dequantize and dequantize.op_type == "DequantizeLinear" else None
        source = maker.get(quantize.input[0]) if quantize and quantize.op_type == "QuantizeLinear" else None
        readers = [node for node in graph.node if quantize and quantize.input[0] in node.input]
        others = [node for node in graph.node if quantize and quantize.output[0] in node.input or name in node.input]
        if not source or len(readers) != 1 or len(others) != 1:
            continue
        raw = quantize.input[0]
        source.output[:] = [name if output == raw else output for output in source.output]
        graph.node.remove(quantize)
        graph.node.remove(dequantize)
    drop_unused_constants(graph)
    return model


def unsigned_activations(model):
    """The same model with int8 activations written as uint8, every step and zero point moved up by 128: exactly equal.

    On x86-64 the fast instructions multiply unsigned by signed. ONNX Runtime takes a model whose activations are int8, as
    NNCF writes them, at half the speed of float.
    """
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    moved = {node.output[0] for node in graph.node if node.op_type == "QuantizeLinear" and is_int8(constants, node)}
    for node in list(graph.node):
        if node.op_type == "QuantizeLinear" and node.output[0] in moved \
                or node.op_type == "DequantizeLinear" and node.input[0] in moved:
            zero = constants[node.input[2]]
            name = f"{zero.name}/unsigned"
            if name not in constants:
                values = numpy_helper.to_array(zero).astype(np.int16) + 128
                constants[name] = numpy_helper.from_array(values.astype(np.uint8), name)
                graph.initializer.append(constants[name])
            node.input[2] = name
    # What shape inference said of the steps' datatype holds no more.
    for value in [value for value in graph.value_info if value.name in moved]:
        graph.value_info.remove(value)
    drop_unused_constants(graph)
    return model


def is_int8(constants, node):
    return len(node.input) > 2 and node.input[2] in constants and constants[node.input[2]].data_type == TensorProto.INT8


def drop_unused_constants(graph):
    """Takes out the constants that nothing reads, and the DequantizeLinear nodes of constants that nothing reads."""
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    for node in [node for node in graph.node if node.op_type == "DequantizeLinear" and node.output[0] not in read]:
        graph.node.remove(node)
    used = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in used]:
        graph.initializer.remove(tensor)


def integer_biases(model):
    """Writes float biases of int8 convolutions as int32, with exactly the scale of the sums that they are added to.

    ONNX Runtime fuses a convolution to an integer kernel only if its bias is quantized too; NNCF leaves biases float.
    """
    graph = model.graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    maker = {name: node for node in graph.node for name in node.output}
    for node in list(graph.node):
        if node.op_type != "Conv" or len(node.input) < 3 or node.input[2] not in constants:
            continue
        scales = [scale_of(maker.get(name), constants) for name in node.input[:2]]
        if scales[0] is None or scales[1] is None or scales[0].size != 1:
            continue
        bias, scale = constants[node.input[2]], (np.ravel(scales[0])[0] * np.ravel(scales[1])).astype(np.float32)
        scale = np.broadcast_to(scale, bias.shape)
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.rint(bias.astype(np.float64) / scale)
        if bias.dtype != np.float32 or not (np.abs(steps) <= LARGEST_BIAS).all():
            continue
        # A bias may serve two convolutions, so the name is the convolution's.
        name = f"{node.output[0]}/int32_bias"
        parts = {"steps": steps.astype(np.int32), "scale": scale, "zero": np.zeros(scale.shape, np.int32)}
        graph.initializer.extend(numpy_helper.from_array(np.array(data), f"{name}/{part}") for part, data in parts.items())
        inputs = [f"{name}/{part}" for part in parts]
        dequantize = helper.make_node("DequantizeLinear", inputs, [name], name=f"{name}/DequantizeLinear", axis=0)
        graph.node.insert(list(graph.node).index(node), dequantize)
        node.input[2] = name
    drop_unused_constants(graph)
    return model


def scale_of(node, constants):
    """The scale of a DequantizeLinear node, or None."""
    return constants.get(node.input[1]) if node is not None and node.op_type == "DequantizeLinear" else None
