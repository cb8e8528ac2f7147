"""Writes the layers of network.py as an ONNX model: in float32, or quantized to int8.

The int8 graph keeps float operators between QuantizeLinear and DequantizeLinear pairs ("QDQ"): ONNX Runtime fuses them to
integer kernels, OpenVINO reads them as its own quantization, while it refuses operators that are integer already
(QLinearConv). Weights are int8, symmetric, with a scale for each output channel; activations are uint8 with one scale and
zero point for each tensor, from the ranges in calibration.json; biases are int32. The logits stay float: the last layer's
sums are exact, and rounding them to 256 steps would only make ties.

Processors without VNNI add two products of an activation and a weight in 16 bits (`vpmaddubsw`) and cut off what does not
fit. Two weights of one sign that are 128 steps together do: 255 * 128 < 2**15. So weights are as fine as that allows, which
is 7 bits for a channel whose two largest weights are equal, and nearly 8 where one stands out. The answers are then the same
on every processor.
"""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from network import CLASSES, SIDE, Add, Conv, Linear, Pool

OPSET, IR_VERSION = 13, 8


class Graph:
    def __init__(self):
        self.nodes, self.constants = [], {}

    def constant(self, name, data):
        self.constants[name] = numpy_helper.from_array(np.array(data, order="C"), name)
        return name

    def add(self, operator, inputs, output, **attributes):
        self.nodes.append(helper.make_node(operator, inputs, [output], name=f"{output}/{operator}", **attributes))
        return output

    def operator(self, layer, inputs, output):
        """The float operator of a layer, without its activation function."""
        if isinstance(layer, Conv):
            return self.add(
                "Conv", inputs, output, kernel_shape=list(layer.weight.shape[2:]), strides=[layer.stride] * 2,
                pads=layer.pads, group=layer.groups)
        if isinstance(layer, Linear):
            return self.add("Gemm", inputs, output, transB=1)
        return self.add({Add: "Add", Pool: "GlobalAveragePool"}[type(layer)], inputs, output)

    def model(self):
        graph = helper.make_graph(
            self.nodes, "efficientnet_lite0",
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 3, SIDE, SIDE])],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", CLASSES])], list(self.constants.values()))
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="ledge models")
        onnx.checker.check_model(model, full_check=True)
        return model


def float_model(layers):
    graph = Graph()
    limits = [graph.constant("zero", np.float32(0)), graph.constant("six", np.float32(6))]
    for layer in layers:
        inputs = [layer.x, layer.other] if isinstance(layer, Add) else [layer.x]
        if isinstance(layer, (Conv, Linear)):
            inputs += [graph.constant(f"{layer.y}/weight", layer.weight), graph.constant(f"{layer.y}/bias", layer.bias)]
        if isinstance(layer, Conv) and layer.relu6:
            graph.add("Clip", [graph.operator(layer, inputs, f"{layer.y}/sum"), *limits], layer.y)
        elif isinstance(layer, Pool):
            graph.add("Flatten", [graph.operator(layer, inputs, f"{layer.y}/map")], layer.y)
        else:
            graph.operator(layer, inputs, layer.y)
    return graph.model()


class QuantizedGraph(Graph):
    """Every tensor t between layers exists as `t/q` (uint8) and as `t/dq` (float again)."""

    def __init__(self, ranges, full_range):
        super().__init__()
        self.ranges, self.full_range, self.scales = ranges, full_range, {}

    def quantize_activation(self, source, tensor, like=None):
        """Puts the pair behind SOURCE and calls the result TENSOR; LIKE names a tensor whose scale is to be shared."""
        like = like or tensor
        if like not in self.scales:
            scale, zero_point = activation_scale(*self.ranges[like])
            self.scales[like] = scale
            self.constant(f"{like}/scale", scale)
            self.constant(f"{like}/zero_point", zero_point)
        parameters = [f"{like}/scale", f"{like}/zero_point"]
        self.add("QuantizeLinear", [source, *parameters], f"{tensor}/q")
        return self.add("DequantizeLinear", [f"{tensor}/q", *parameters], f"{tensor}/dq")

    def dequantized_constant(self, name, integers, scale):
        inputs = {"q": integers, "scale": scale, "zero_point": np.zeros(len(scale), integers.dtype)}
        names = [self.constant(f"{name}/{part}", data) for part, data in inputs.items()]
        return self.add("DequantizeLinear", names, name, axis=0)

    def quantized_weights(self, layer):
        rows, x_scale = layer.weight.reshape(len(layer.weight), -1), self.scales[layer.x]
        largest = np.abs(rows).max(axis=1) if self.full_range else largest_pair(rows)
        # The second bound is for channels whose weights are next to nothing: their bias, in steps this fine, would not
        # fit into 32 bits.
        scale = np.maximum(largest / np.float32(127), np.abs(layer.bias) / (x_scale * np.float32(2**30)))
        scale = np.where(scale > 0, scale, np.float32(1))
        steps = np.rint(rows / scale[:, None]).astype(np.int8).reshape(layer.weight.shape)
        # A bias must have exactly the scale of the sums it is added to, or the runtimes do not fuse it.
        bias_scale = scale * x_scale
        bias = np.rint(layer.bias.astype(np.float64) / bias_scale).astype(np.int32)
        return [
            self.dequantized_constant(f"{layer.y}/weight", steps, scale),
            self.dequantized_constant(f"{layer.y}/bias", bias, bias_scale),
        ]


def largest_pair(rows):
    """The largest sum of two numbers of one sign in each row, without the sign; of one number alone where it has no other."""
    ordered = np.sort(np.pad(rows, ((0, 0), (2, 2))), axis=1)
    return np.maximum(ordered[:, -1] + ordered[:, -2], -ordered[:, 0] - ordered[:, 1])


def activation_scale(low, high):
    """The uint8 scale and zero point that cover a range; 0 is always a step of its own, because padding is made of it."""
    low, high = np.float32(min(low, 0.0)), np.float32(max(high, 0.0))
    scale = (high - low) / np.float32(255)
    return scale, np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8)


def int8_model(layers, ranges, full_range=False):
    """RANGES: tensor name -> [smallest, largest value] over the calibration pictures.

    FULL_RANGE takes 127 steps for every channel's largest weight: finer, and wrong on processors without VNNI.
    """
    graph = QuantizedGraph(ranges, full_range)
    graph.quantize_activation("input", "input")
    for layer in layers:
        inputs = [f"{layer.x}/dq"]
        if isinstance(layer, Add):
            inputs.append(f"{layer.other}/dq")
        elif isinstance(layer, (Conv, Linear)):
            inputs += graph.quantized_weights(layer)
        if isinstance(layer, Linear):
            graph.operator(layer, inputs, layer.y)
        elif isinstance(layer, Pool):
            pooled = graph.quantize_activation(graph.operator(layer, inputs, f"{layer.y}/map"), f"{layer.y}/map", like=layer.y)
            graph.quantize_activation(graph.add("Flatten", [pooled], f"{layer.y}/flat"), layer.y)
        else:
            # No Clip behind a convolution with relu6: uint8 from 0 to at most 6 clips by itself.
            if getattr(layer, "relu6", False) and not (ranges[layer.y][0] == 0 and ranges[layer.y][1] <= 6):
                raise ValueError(f"the calibrated range of {layer.y} leaves 0..6")
            graph.quantize_activation(graph.operator(layer, inputs, f"{layer.y}/sum"), layer.y)
    return graph.model()
