"""Small float models with samples, made here: nothing is downloaded and nothing is random that is not seeded."""
import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

WINE = Path(__file__).resolve().parents[2] / "wine_mlp" / "weights.json"
SIDE, COLORS = 32, {"blue": (20, 40, 220), "green": (30, 200, 40), "red": (220, 40, 30)}


def save(path, nodes, constants, inputs, outputs, opset=13):
    def ports(shapes):
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]

    tensors = [numpy_helper.from_array(np.array(values, np.float32), name) for name, values in constants.items()]
    graph = helper.make_graph([helper.make_node(*node[:3], **(node[3] if len(node) > 3 else {})) for node in nodes],
                              path.stem, ports(inputs), ports(outputs), tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


def wine(folder):
    """(the catalogue's wine network without its last Softmax, a CSV of 160 wines around its training mean)."""
    weights = json.loads(WINE.read_text())
    shapes = {"hidden_weight": (13, -1), "output_weight": (-1, 3)}
    constants = {name: np.reshape(weights[name], shapes.get(name, -1)) for name in weights if name != "features"}
    model = save(folder / "wine.onnx", [
        ("Sub", ["features", "mean"], ["centred"]), ("Mul", ["centred", "inverse_deviation"], ["standardized"]),
        ("Gemm", ["standardized", "hidden_weight", "hidden_bias"], ["sum"]), ("Relu", ["sum"], ["hidden"]),
        ("Gemm", ["hidden", "output_weight", "output_bias"], ["logits"])],
        constants, {"features": ["N", 13]}, {"logits": ["N", 3]})
    random = np.random.default_rng(1)
    rows = np.array(weights["mean"]) + random.normal(size=(160, 13)) / np.array(weights["inverse_deviation"])
    path = folder / "wines.csv"
    lines = [",".join(f"f{index}" for index in range(13)), *(",".join(f"{value:.4f}" for value in row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return model, path


def colors(folder, opset=11, batch="N"):
    """(a convolutional network that tells three colours apart, a folder of pictures for each). Opset 11, as converters write."""
    random = np.random.default_rng(2)
    first = random.normal(scale=0.1, size=(8, 3, 3, 3))
    for channel in range(3):  # the first three filters look at one colour each; the others are there to be quantized
        first[channel] = 0
        first[channel, channel, 1, 1] = 1
    weight = np.zeros((3, 8))
    for row, channel in enumerate((2, 1, 0)):  # the classes in alphabetical order: blue, green, red
        weight[row, channel] = 8
    model = save(folder / "colors.onnx", [
        ("Conv", ["image", "w", "b"], ["sum"], {"pads": [1, 1, 1, 1], "strides": [2, 2]}), ("Relu", ["sum"], ["map"]),
        ("GlobalAveragePool", ["map"], ["pooled"]), ("Flatten", ["pooled"], ["flat"]),
        ("Gemm", ["flat", "classes", "zero"], ["logits"], {"transB": 1})],
        {"w": first, "b": np.full(8, 0.01), "classes": weight, "zero": np.zeros(3)},
        {"image": [batch, 3, SIDE, SIDE]}, {"logits": [batch, 3]}, opset)
    for name, color in COLORS.items():
        (folder / "pictures" / name).mkdir(parents=True)
        for index in range(10):
            pixels = np.clip(random.normal(color, 30, (40, 50, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "pictures" / name / f"{index}.png")
    names = folder / "names.txt"
    names.write_text("".join(f"{name}\n" for name in COLORS))
    return model, folder / "pictures", names


def fragile(folder):
    """(a model that int8 ruins, samples for it): the answer is in the fourth digit of activations that are a million wide."""
    random = np.random.default_rng(3)
    values = random.normal(size=(80, 8)).astype(np.float32)
    values[:, 0] *= 1e6
    weight = np.zeros((8, 8))
    weight[np.arange(8), np.arange(8)] = 1
    second = random.normal(size=(8, 4))
    second[0] = 0  # the wide one has no say in the answer
    model = save(folder / "fragile.onnx", [
        ("Gemm", ["x", "w", "zeros"], ["hidden"]), ("Relu", ["hidden"], ["positive"]),
        ("Gemm", ["positive", "v", "none"], ["logits"])],
        {"w": weight, "zeros": np.zeros(8), "v": second, "none": np.zeros(4)}, {"x": ["N", 8]}, {"logits": ["N", 4]})
    (folder / "arrays").mkdir()
    np.save(folder / "arrays" / "x.npy", values)
    return model, folder / "arrays"


def quantized_layer(seed):
    """A model of one int8 layer with weights of the full range, and what it was made of.

    (the model, its input, how far coarser weights may move its output, the float weights)
    """
    random = np.random.default_rng(seed)
    operator = ("Conv", "Gemm", "MatMul", "ConvTranspose")[seed % 4]
    transposed = bool(seed % 3)
    shape, axis, x_shape, attributes = {
        "Conv": ([6, 4, 3, 3], 0, [1, 4, 8, 8], {}),
        "Gemm": ([6, 20] if transposed else [20, 6], 0 if transposed else 1, [2, 20], {"transB": int(transposed)}),
        "MatMul": ([20, 6], 1, [2, 20], {}),
        "ConvTranspose": ([4, 6, 3, 3], 1, [1, 4, 8, 8], {}),
    }[operator]
    per_channel = seed % 5 != 0
    scale = (random.uniform(0.001, 0.01, 6) if per_channel else np.array(0.005)).astype(np.float32)
    along = [1] * len(shape)
    along[axis] = scale.size
    fine = scale.reshape(along if per_channel else ())
    original = (random.uniform(-127, 127, shape) * fine).astype(np.float32)
    steps = np.rint(original / fine).astype(np.int8)
    x_scale, bias = np.float32(0.02), random.integers(-500_000, 500_000, 6).astype(np.int32)
    constants = {
        "x_scale": x_scale, "x_zero": np.uint8(100), "steps": steps, "scale": scale, "zero": np.zeros(scale.shape, np.int8),
        "bias_steps": bias, "bias_scale": np.broadcast_to(scale * x_scale, 6), "bias_zero": np.zeros(6, np.int32)}
    channels = {"axis": axis} if per_channel else {}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "x_scale", "x_zero"], ["dq"]),
        helper.make_node("DequantizeLinear", ["steps", "scale", "zero"], ["w"], **channels),
        helper.make_node("DequantizeLinear", ["bias_steps", "bias_scale", "bias_zero"], ["b"], axis=0),
        helper.make_node(operator, ["dq", "w"] if operator == "MatMul" else ["dq", "w", "b"], ["y"], **attributes)]
    if operator == "MatMul":
        nodes[3:4] = []
        constants = {name: data for name, data in constants.items() if not name.startswith("bias")}
    tensors = [numpy_helper.from_array(np.array(data), name) for name, data in constants.items()]
    graph = helper.make_graph(
        nodes, "layer", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x_shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    x = random.uniform(-2, 3, x_shape).astype(np.float32)
    # Each product may move by half a coarser step, which is at most twice as large.
    products = steps.size // 6
    return model, {"x": x}, float(products * 3 * np.max(scale) * 0.5) + 0.01, original


def quantized(folder):
    """A model of one QuantizeLinear."""
    zero = numpy_helper.from_array(np.array(0, np.uint8), "zero")
    scale = numpy_helper.from_array(np.array(0.1, np.float32), "scale")
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["features", "scale", "zero"], ["steps"])], "quantized",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["N", 13])],
        [helper.make_tensor_value_info("steps", TensorProto.UINT8, ["N", 13])], [scale, zero])
    path = folder / "quantized.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path
