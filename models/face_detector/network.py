"""Writes the TensorFlow Lite graph of BlazeFace as an ONNX model, which both runtimes run.

The network is run twice: on the picture as it is, which finds small faces, and on a copy of half its size, which finds large
ones. It has only convolutions, so it takes either size, and the weights are in the file once.

The tensors of TensorFlow Lite are [1, height, width, channels], those of ONNX [1, channels, height, width]. The weights stay
in 16 bits, as they are published, behind a Cast to float32, which both runtimes do once, when they load the model.
"""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tflite_file import NO_ACTIVATION, SAME

OPSET, IR_VERSION = 17, 8
SIZE = (192, 320)  # height and width of the picture, multiples of 64: most cameras have pictures of 16:9
STRIDE = 4  # pixels of the network's input from one box to the next
VALUES = 16  # of a box
INPUT = "input"
BOXES, SCORES = "reshaped_regressor_face_4", "reshaped_classifier_face_4"


class Writer:
    def __init__(self):
        self.nodes, self.constants = [], {}
        self.weights = set()  # the names of the weights in 32 bits

    def add(self, operator, inputs, output, **attributes):
        self.nodes.append(helper.make_node(operator, inputs, [output], name=f"{output}/{operator}", **attributes))
        return output

    def constant(self, name, data):
        self.constants[name] = numpy_helper.from_array(np.array(data, order="C"), name)
        return name

    def weight(self, name, halves):
        """A float32 constant from float16 values in ONNX's order."""
        if name not in self.weights:
            self.weights.add(name)
            self.add("Cast", [self.constant(f"{name}/float16", halves)], name, to=TensorProto.FLOAT)
        return name


class Network:
    """One run of the network. The names of its tensors begin with PREFIX."""

    def __init__(self, writer, tensors, prefix):
        self.writer, self.tensors, self.prefix = writer, tensors, prefix
        self.halves = {}  # the weights in 16 bits, by the name that the file gives them after its own conversion

    def run(self, operations, image, rows):
        """The names of the boxes and of the scores that it gives for IMAGE, which has ROWS cells."""
        self.names, self.rows = {INPUT: image}, rows
        for operation in operations:
            self.write(operation)
        return self.names[BOXES], self.names[SCORES]

    def write(self, operation):
        kind, options = operation.kind, operation.options
        is_padded_same = options.get("padding", SAME) == SAME or self.is_1x1(operation)
        if options.get("activation", NO_ACTIVATION) != NO_ACTIVATION or not is_padded_same:
            raise ValueError(f"no rule for the options of {operation}")
        if kind == "Dequantize":
            self.halves[operation.output] = self.tensors[operation.inputs[0]].value
            return
        inputs = [self.names.get(name, name) for name in operation.inputs]
        output = self.names[operation.output] = f"{self.prefix}/{operation.output}"
        if kind in ("Conv", "DepthwiseConv"):
            self.convolution(kind, inputs, output, options)
        elif kind == "MaxPool":
            kernel = [options["filter_h"], options["filter_w"]]
            steps = strides(options)
            self.writer.add("MaxPool", inputs, output, kernel_shape=kernel, strides=steps, pads=padding(kernel, steps))
        elif kind in ("Add", "Relu"):
            self.writer.add(kind, inputs, output)
        elif kind == "Pad":
            self.pad(operation, inputs, output)
        elif kind == "ResizeBilinear" and options == {"align_corners": 0, "half_pixel_centers": 1}:
            self.double(operation, inputs, output)
        elif kind == "Reshape":
            # The values of a cell lie together in TensorFlow's order only.
            rows = self.writer.add("Transpose", inputs[:1], f"{output}/rows", perm=[0, 2, 3, 1])
            values = self.tensors[operation.output].shape[-1]
            shape = self.writer.constant(f"{output}/shape", np.array([1, self.rows, values], np.int64))
            self.writer.add("Reshape", [rows, shape], output)
        else:
            raise ValueError(f"no rule for {operation}")

    def is_1x1(self, operation):
        """Tells whether padding changes nothing."""
        return operation.kind == "Conv" and self.halves[operation.inputs[1]].shape[1:3] == (1, 1)

    def convolution(self, kind, inputs, output, options):
        x, kernel, bias = inputs
        filters, height, width, channels = self.halves[kernel].shape
        # A depthwise kernel is [1, height, width, channels], another one [filters, height, width, channels].
        order, groups = ((3, 0, 1, 2), channels) if kind == "DepthwiseConv" else ((0, 3, 1, 2), 1)
        constants = [
            self.writer.weight(kernel, self.halves[kernel].transpose(order)), self.writer.weight(bias, self.halves[bias])]
        self.writer.add(
            "Conv", [x, *constants], output, kernel_shape=[height, width], strides=strides(options),
            pads=padding([height, width], strides(options)), group=groups)

    def pad(self, operation, inputs, output):
        """Appends channels of zeros."""
        (batch, height, width, channels) = self.tensors[operation.inputs[1]].value.tolist()
        pads = [ends[side] for side in (0, 1) for ends in (batch, channels, height, width)]
        self.writer.add("Pad", [inputs[0], self.writer.constant(f"{output}/pads", np.array(pads, np.int64))], output)

    def double(self, operation, inputs, output):
        """Doubles height and width."""
        (_, height, width, _), (_, new_height, new_width, _) = (
            self.tensors[name].shape for name in (operation.inputs[0], operation.output))
        if (new_height, new_width) != (2 * height, 2 * width):
            raise ValueError(f"no rule for {operation}")
        scales = self.writer.constant("double", np.array([1, 1, 2, 2], np.float32))
        self.writer.add(
            "Resize", [inputs[0], "", scales], output, mode="linear", coordinate_transformation_mode="half_pixel")


def strides(options):
    return [options["stride_h"], options["stride_w"]]


def padding(kernel, steps):
    """TensorFlow's "same" padding: an odd pixel goes to the bottom right. All maps are multiples of their stride."""
    totals = [max(length - step, 0) for length, step in zip(kernel, steps)]
    before = [total // 2 for total in totals]
    return [*before, *(total - first for total, first in zip(totals, before))]


def onnx_model(operations, tensors):
    height, width = SIZE
    rows = height * width // STRIDE ** 2
    writer = Writer()
    small_boxes, small_scores = Network(writer, tensors, "small").run(operations, "image", rows)
    half = writer.add("AveragePool", ["image"], "half", kernel_shape=[2, 2], strides=[2, 2])
    large_boxes, large_scores = Network(writer, tensors, "large").run(operations, half, rows // 4)
    # A pixel of the half picture is two of the picture.
    large_boxes = writer.add("Mul", [large_boxes, writer.constant("two", np.array(2, np.float32))], "large/boxes")
    writer.add("Concat", [small_boxes, large_boxes], "boxes", axis=1)
    writer.add("Concat", [small_scores, large_scores], "scores", axis=1)

    rows += rows // 4
    shapes = {"image": [1, 3, height, width], "boxes": [1, rows, VALUES], "scores": [1, rows, 1]}
    image, *outputs = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    graph = helper.make_graph(writer.nodes, "face_detector", [image], outputs, list(writer.constants.values()))
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="ledge models")
    onnx.checker.check_model(model, full_check=True)
    return model
