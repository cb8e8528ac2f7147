"""Inputs and outputs of a model, as they are signed: {"name", "datatype", "shape"}, -1 for a dimension that varies."""
from .errors import Failure

# By the number of the element type in ONNX.
DATATYPES = {
    1: "FP32",
    2: "UINT8",
    3: "INT8",
    4: "UINT16",
    5: "INT16",
    6: "INT32",
    7: "INT64",
    8: "BYTES",
    9: "BOOL",
    10: "FP16",
    11: "FP64",
    12: "UINT32",
    13: "UINT64",
    16: "BF16",
}


def of_onnx(path):
    """(inputs, outputs) by the library `onnx`; None where it is not installed."""
    try:
        import onnx
    except ImportError:
        return None
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # a protobuf error of whichever implementation is installed
        raise Failure(
            f"{path} is no ONNX model: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from None
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer):
        raise Failure(f"{path} keeps its weights in another file, which no box loads: save it as one file")
    constants = {constant.name for constant in model.graph.initializer}
    return [port(value) for value in model.graph.input if value.name not in constants], [
        port(value) for value in model.graph.output
    ]


def port(value):
    tensor = value.type.tensor_type
    shape = [side.dim_value if side.HasField("dim_value") else -1 for side in tensor.shape.dim]
    return {"name": value.name, "datatype": DATATYPES.get(tensor.elem_type, "UNKNOWN"), "shape": shape}


def parse(text):
    """`features:FP32:-1,13`."""
    parts = text.rsplit(":", 2)
    try:
        name, datatype, shape = parts
        return {"name": name, "datatype": known(datatype), "shape": [int(side) for side in shape.split(",") if side]}
    except ValueError:
        raise Failure(f"{text!r} is no input or output: write it like features:FP32:-1,13") from None


def known(datatype):
    if datatype.upper() not in DATATYPES.values():
        raise ValueError
    return datatype.upper()
