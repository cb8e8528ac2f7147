"""The ONNX file: is it a float model that can be quantized, made ready for it, and what became int8 in the end."""
import collections
import contextlib
import logging

import numpy as np
import onnx
from onnx import TensorProto, helper, version_converter
from onnxruntime.quantization.shape_inference import quant_pre_process
from progress import Failure

# Below 13, QuantizeLinear has no axis, so weights cannot have a scale for each channel.
LEAST_OPSET = 13
QUANTIZED = {
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"}
# The operators that hold nearly all of a model's work; the others are not worth a line in the report.
HEAVY = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "Attention")

Port = collections.namedtuple("Port", "name shape dtype")  # shape: None for a variable dimension


def load(path):
    """The model, checked: float32, not quantized yet, and complete."""
    if not path.is_file():
        raise Failure(f"{path}: no such file")
    try:
        model = onnx.load(path)
        onnx.checker.check_model(model)
    except Exception as error:  # protobuf and onnx raise many kinds
        raise Failure(f"{path} is not a valid ONNX model: {first_line(error)}") from error
    found = sorted({node.op_type for node in model.graph.node} & QUANTIZED)
    if found:
        raise Failure(f"{path} is quantized already (it has {', '.join(found)}). Give the float32 model that it was made from.")
    half = [tensor.name for tensor in model.graph.initializer if tensor.data_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16)]
    if half:
        raise Failure(f"{path} holds 16-bit weights ({half[0]} and others). Export it as float32: int8 is made from that.")
    return model


def first_line(error):
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__


def opset(model):
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)


def prepare(model, target):
    """Writes to TARGET the same float model, ready: opset 13 or more, constants folded, shapes inferred; returns notes."""
    notes = []
    if opset(model) < LEAST_OPSET:
        notes.append(f"converted from opset {opset(model)} to {LEAST_OPSET}")
        try:
            model = version_converter.convert_version(model, LEAST_OPSET)
        except Exception as error:
            raise Failure(
                f"the model has opset {opset(model)} and cannot be converted to {LEAST_OPSET}: {first_line(error)}. "
                f"Export it again with opset_version={LEAST_OPSET} or more.") from error
    # As a file: of a model in memory quant_pre_process makes files with weights beside them, and stumbles over those.
    onnx.save(model, target)
    with quiet():
        try:
            quant_pre_process(str(target), str(target), skip_symbolic_shape=True)
        except Exception as error:
            try:  # without ONNX Runtime's graph optimization, which is what fails as a rule
                quant_pre_process(str(target), str(target), skip_symbolic_shape=True, skip_optimization=True)
            except Exception:
                raise Failure(f"ONNX Runtime cannot prepare the model: {first_line(error)}") from error
            notes.append("prepared without graph optimization")
    return notes


@contextlib.contextmanager
def quiet():
    """Without the warnings that onnxruntime.quantization logs for every model."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def inputs(model):
    """The model's inputs, without the weights that old exporters list among them."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [port(value) for value in model.graph.input if value.name not in weights]


def outputs(model):
    return [port(value) for value in model.graph.output]


def port(value):
    tensor = value.type.tensor_type
    shape = [dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None for dim in tensor.shape.dim]
    try:
        return Port(value.name, shape, np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)))
    except KeyError:
        raise Failure(f"{value.name} of the model is not a tensor") from None


def preamble(model):
    """The names of the nodes that do arithmetic on the raw inputs before the first real layer: a normalisation, mostly.

    They stay float. The columns of a table have ranges of their own, and one scale of 256 steps for all would wipe out those
    with small numbers.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    raw = {port.name for port in inputs(model)}
    names = []
    for node in model.graph.node:
        given = [name for name in node.input if name and name not in constants]
        if node.op_type in ("Add", "Sub", "Mul", "Div", "Cast") and given and raw.issuperset(given):
            raw.update(node.output)
            names.append(node.name)
    return names


def coverage(model):
    """What of the heavy operators became int8: {"int8": {operator: count}, "float": [node names]}."""
    maker = {name: node for node in model.graph.node for name in node.output}

    def dequantized(name):
        return name in maker and maker[name].op_type == "DequantizeLinear"

    done, left = collections.Counter(), []
    for node in model.graph.node:
        if node.op_type in ("ConvInteger", "MatMulInteger", "DynamicQuantizeLSTM"):
            done[node.op_type] += 1
        elif node.op_type in HEAVY:
            if len(node.input) > 1 and dequantized(node.input[0]) and dequantized(node.input[1]):
                done[node.op_type] += 1
            else:
                left.append(f"{node.name or node.output[0]} ({node.op_type})")
    return {"int8": dict(sorted(done.items())), "float": left}
