"""Writes the TensorFlow.js graph of CenterNet with MobileNetV3 as an ONNX model, for any input side that is a multiple of 32.

The graph of the package ends in a search for the 100 best peaks. It is left out, as Ledge does that itself: this model ends
in the heat map and the extents. TensorFlow's tensors are [N, height, width, channels], those of ONNX [N, channels, height,
width].

The weights stay in 16 bits, as they are published, behind a Cast to float32. Both runtimes do that once, when they load the
model.
"""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 17, 8
CLASSES = 80
STRIDE = 4  # pixels of the input for each cell of the maps
MULTIPLE = 32  # the smallest maps inside the network have one cell for so many pixels

PREFIX = "tower_0/"
IMAGE, HEAT, EXTENT = f"{PREFIX}images", f"{PREFIX}keypoints", f"{PREFIX}wh"


class Writer:
    """Writes the operations that the requested ones need, each after its inputs."""

    def __init__(self, operations, weights):
        self.operations, self.weights = operations, weights
        self.nodes, self.constants, self.written = [], {}, {IMAGE: "image"}

    def add(self, operator, inputs, output, **attributes):
        self.nodes.append(helper.make_node(operator, inputs, [output], name=f"{output}/{operator}", **attributes))
        return output

    def constant(self, name, data):
        """A float32 constant, from the float16 values of the file."""
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.array(data, np.float16, order="C"), f"{name}/float16")
            self.add("Cast", [f"{name}/float16"], name, to=TensorProto.FLOAT)
        return name

    def tensor(self, name):
        """The name in the ONNX graph of a tensor or a number."""
        if name in self.weights:
            if self.weights[name].size != 1:
                raise ValueError(f"{name} is not a single number")
            return self.constant(short(name), self.weights[name].reshape(()))
        if name not in self.written:
            self.written[name] = self.write(self.operations[name])
        return self.written[name]

    def write(self, operation):
        swish = self.hard_swish(operation)
        if swish:
            return swish
        kind, inputs, output = operation.kind, operation.inputs, short(operation.name)
        if kind in ("Conv2D", "_FusedConv2D", "DepthwiseConv2dNative", "FusedDepthwiseConv2dNative"):
            return self.convolution(operation)
        if kind in ("Add", "Mul"):
            return self.add(kind, [self.tensor(name) for name in inputs], output)
        if kind in ("Relu", "Sigmoid"):
            return self.add(kind, [self.tensor(inputs[0])], output)
        if kind == "Identity":
            return self.tensor(inputs[0])
        if kind == "Mean" and sorted(self.weights[inputs[1]]) == [1, 2]:
            return self.add("GlobalAveragePool", [self.tensor(inputs[0])], output)
        if kind == "ConcatV2" and self.weights[inputs[-1]] in (3, -1):
            return self.add("Concat", [self.tensor(name) for name in inputs[:-1]], output, axis=1)
        if kind == "ResizeBilinear":
            return self.double(operation)
        raise ValueError(f"no rule for {kind}, the kind of {operation.name}")

    def convolution(self, operation):
        x, weight, *bias = operation.inputs
        kernel = self.weights[weight]
        height, width, channels, filters = kernel.shape
        if "Depthwise" in operation.kind:
            kernel, groups = kernel.transpose(2, 3, 0, 1).reshape(channels * filters, 1, height, width), channels
        else:
            kernel, groups = kernel.transpose(3, 2, 0, 1), 1

        (_, stride, _, _), output = operation.attributes["strides"], short(operation.name)
        constants = [self.constant(short(weight), kernel), *(self.constant(short(name), self.weights[name]) for name in bias)]
        after = [kind for kind in operation.attributes.get("fused_ops", []) if kind != "BiasAdd"]
        y = self.add(
            "Conv", [self.tensor(x), *constants], f"{output}/sum" if after else output, kernel_shape=[height, width],
            strides=[stride, stride], pads=padding(operation, height, stride), group=groups)
        if after not in ([], ["Relu"]):
            raise ValueError(f"no rule for {after} behind {operation.name}")
        return self.add("Relu", [y], output) if after else y

    def hard_swish(self, operation):
        """Writes x * min(max(x + 3, 0), 6) / 6 as one operator, and its second factor, which gates channels, as another.

        The file spells both out and rounds 1/6 to 16 bits. The network was trained with 1/6.
        """
        if operation.kind != "Mul":
            return None
        left, right = (self.operations[name] for name in operation.inputs)
        x = self.limited_sum(right)
        output = short(operation.name)
        if x and self.is_sixth(left.name):
            return self.add("HardSigmoid", [self.tensor(x)], output, alpha=1 / 6, beta=0.5)
        if x and left.kind == "Mul" and self.is_sixth(left.inputs[0]) and left.inputs[1] == x:
            return self.add("HardSwish", [self.tensor(x)], output)
        return None

    def limited_sum(self, operation):
        """The x of min(max(x + 3, 0), 6), if OPERATION is that."""
        if operation.kind != "Relu6":
            return None
        added, = (self.operations[name] for name in operation.inputs)
        x, three = added.inputs
        if added.kind != "Add" or self.weights[three] != 3:
            raise ValueError(f"no rule for {operation.name}")
        return x

    def is_sixth(self, name):
        return name in self.weights and self.weights[name] == np.float16(1 / 6)

    def double(self, operation):
        """A map of twice the height and width. Cell n of the small map lies exactly on cell 2n of the large one."""
        scales = self.constants.setdefault("double", numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "double"))
        return self.add(
            "Resize", [self.tensor(operation.inputs[0]), "", scales.name], short(operation.name), mode="linear",
            coordinate_transformation_mode="asymmetric")


def short(name):
    return name.removeprefix(PREFIX)


def padding(operation, kernel, stride):
    """TensorFlow's "same" padding: an odd pixel goes to the bottom right. All maps are multiples of their stride."""
    if operation.attributes["padding"] == "VALID":
        return [0, 0, 0, 0]
    total = max(kernel - stride, 0)
    before, after = total // 2, total - total // 2
    return [before, before, after, after]


def onnx_model(operations, weights, side):
    """The model for pictures of SIDE x SIDE pixels."""
    if side % MULTIPLE:
        raise ValueError(f"the side is {side}, and must be a multiple of {MULTIPLE}")
    writer = Writer(operations, weights)
    scores = writer.tensor(HEAT)
    # A cell keeps its score where none of its eight neighbours has a higher one, as in the graph of the package.
    highest = writer.add("MaxPool", [scores], "highest", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    is_peak = writer.add("Cast", [writer.add("Equal", [scores, highest], "is_peak")], "peaks", to=TensorProto.FLOAT)
    writer.add("Mul", [scores, is_peak], "heat")
    writer.add("Identity", [writer.tensor(EXTENT)], "extent")

    cells = side // STRIDE
    tensors = {"image": [1, 3, side, side], "heat": [1, CLASSES, cells, cells], "extent": [1, 4, cells, cells]}
    image, *outputs = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in tensors.items())
    graph = helper.make_graph(writer.nodes, "coco_detector", [image], outputs, list(writer.constants.values()))
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="ledge models")
    onnx.checker.check_model(model, full_check=True)
    return model
