"""Writes the TensorFlow Lite graph of BlazeFace as an ONNX model, which both runtimes run.

The tensors of TensorFlow Lite are [1, height, width, channels], those of ONNX [1, channels, height, width]. The weights stay
in 16 bits, as they are published, behind a Cast to float32, which both runtimes do once, when they load the model.
"""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tflite_file import NO_ACTIVATION, SAME

OPSET, IR_VERSION = 17, 8
SIDE = 128
ANCHORS, VALUES = 896, 16
NAMES = {"input": "image", "regressors": "boxes", "classificators": "scores"}


class Writer:
    def __init__(self, tensors):
        self.tensors, self.nodes, self.constants = tensors, [], {}
        self.halves = {}  # the weights in 16 bits, by the name that the file gives them after its own conversion

    def add(self, operator, inputs, output, **attributes):
        self.nodes.append(helper.make_node(operator, inputs, [output], name=f"{output}/{operator}", **attributes))
        return output

    def constant(self, name, data):
        self.constants[name] = numpy_helper.from_array(np.array(data, order="C"), name)
        return name

    def weight(self, name, arrange):
        """A float32 constant from the float16 values of the file, after ARRANGE has put them into ONNX's order."""
        stored = self.constant(f"{name}/float16", arrange(self.halves[name]))
        return self.add("Cast", [stored], name, to=TensorProto.FLOAT)

    def write(self, operation):
        kind, options = operation.kind, operation.options
        is_padded_same = options.get("padding", SAME) == SAME or self.is_1x1(operation)
        if options.get("activation", NO_ACTIVATION) != NO_ACTIVATION or not is_padded_same:
            raise ValueError(f"no rule for the options of {operation}")
        inputs, (output,) = ([NAMES.get(name, name) for name in names] for names in (operation.inputs, [operation.output]))
        if kind == "Dequantize":
            self.halves[output] = self.tensors[operation.inputs[0]].value
        elif kind in ("Conv", "DepthwiseConv"):
            self.convolution(kind, inputs, output, options)
        elif kind == "MaxPool":
            kernel = [options["filter_h"], options["filter_w"]]
            steps = strides(options)
            self.add("MaxPool", inputs, output, kernel_shape=kernel, strides=steps, pads=padding(kernel, steps))
        elif kind in ("Add", "Relu"):
            self.add(kind, inputs, output)
        elif kind == "Pad":
            self.pad(operation, inputs, output)
        elif kind == "Reshape":
            # The values of a cell lie together in TensorFlow's order only.
            rows = self.add("Transpose", inputs[:1], f"{output}/rows", perm=[0, 2, 3, 1])
            shape = self.constant(f"{output}/shape", np.array(self.tensors[operation.output].shape, np.int64))
            self.add("Reshape", [rows, shape], output)
        elif kind == "Concatenation" and options["axis"] == 1:
            self.add("Concat", inputs, output, axis=1)
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
        constants = [self.weight(kernel, lambda values: values.transpose(order)), self.weight(bias, lambda values: values)]
        self.add(
            "Conv", [x, *constants], output, kernel_shape=[height, width], strides=strides(options),
            pads=padding([height, width], strides(options)), group=groups)

    def pad(self, operation, inputs, output):
        """Appends channels of zeros."""
        (batch, height, width, channels) = self.tensors[operation.inputs[1]].value.tolist()
        pads = [ends[side] for side in (0, 1) for ends in (batch, channels, height, width)]
        self.add("Pad", [inputs[0], self.constant(f"{output}/pads", np.array(pads, np.int64))], output)


def strides(options):
    return [options["stride_h"], options["stride_w"]]


def padding(kernel, steps):
    """TensorFlow's "same" padding: an odd pixel goes to the bottom right. All maps are multiples of their stride."""
    totals = [max(length - step, 0) for length, step in zip(kernel, steps)]
    before = [total // 2 for total in totals]
    return [*before, *(total - first for total, first in zip(totals, before))]


def onnx_model(operations, tensors):
    writer = Writer(tensors)
    for operation in operations:
        writer.write(operation)
    shapes = {"image": [1, 3, SIDE, SIDE], "boxes": [1, ANCHORS, VALUES], "scores": [1, ANCHORS, 1]}
    image, *outputs = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    graph = helper.make_graph(writer.nodes, "face_detector", [image], outputs, list(writer.constants.values()))
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="ledge models")
    onnx.checker.check_model(model, full_check=True)
    return model
