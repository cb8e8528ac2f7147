"""Operators of ONNX, each with its inputs."""
import numpy as np
from onnx import TensorProto, helper, numpy_helper

from cases import Spec, boolean, data, f32, i32, i64, numbered, steer

X8, X24 = numbered(8), numbered(2, 3, 4)
PICTURE = numbered(1, 2, 4, 4)
MS = "com.microsoft"


def model(spec, free, fixed=()):
    """The bytes of a model of one operator. Inputs named in `free` are those of callers, the others are constants."""
    how = spec.how
    inputs, weights = [], []
    for made in spec.inputs:
        if made is None:
            continue
        if made.name in free:
            rank = made.value.ndim
            is_variable = made.name not in fixed
            shape = [f"{made.name}_{axis}" for axis in range(rank)] if is_variable else list(made.value.shape)
            inputs.append(helper.make_tensor_value_info(made.name, helper.np_dtype_to_tensor_dtype(made.value.dtype), shape))
        else:
            weights.append(numpy_helper.from_array(made.value, made.name))
    names = [made.name if made else "" for made in spec.inputs]
    count = how.get("outputs", 1)
    outputs = [f"y{number}" for number in range(count)]
    if "graph" in how:
        nodes = how["graph"](names, outputs)
    else:
        nodes = [helper.make_node(spec.operator.split(".")[-1].split(":")[0], names, outputs, domain=how.get("domain", ""), **how.get("attributes", {}))]
    datatypes = how.get("types", [spec.inputs[0].value.dtype] * count)
    ports = []
    for output, datatype in zip(outputs, datatypes):
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(datatype))
        shape = [None] * how["rank"] if "rank" in how else None
        ports.append(helper.make_tensor_value_info(output, kind, shape))
    graph = helper.make_graph(nodes, "operator", inputs, ports, weights)
    opsets = [helper.make_opsetid("", how.get("opset", 21)), helper.make_opsetid(MS, 1), helper.make_opsetid("ai.onnx.ml", how.get("ml", 3))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString(deterministic=True)


def specs():
    made = []

    def op(operator, inputs, variant="", moves=False, **how):
        if "." in operator:
            how["domain"] = MS if operator.startswith(MS) else "ai.onnx.ml"
        made.append(Spec(operator, inputs, variant, moves, how))

    x, x24 = data("x", X8), data("x", X24)
    shape = steer("shape", i64(2, 4))
    op("Reshape", [x, shape], moves=True, rank=2)
    op("Reshape", [x, shape], "allowzero", moves=True, rank=2, attributes={"allowzero": 1})
    op("Expand", [data("x", numbered(1, 4)), steer("shape", i64(2, 4))], moves=True, rank=2)
    op("Tile", [data("x", numbered(2, 4)), steer("repeats", i64(1, 2))], moves=True, rank=2)
    op("Slice", [x, steer("starts", i64(1)), steer("ends", i64(7)), steer("axes", i64(0)), steer("steps", i64(1))], moves=True, rank=1, known=[
        {"starts": i64(start), "ends": i64(end), "steps": i64(-2**31)} for start in (0, 3, 7) for end in (-9, 7, 8, -2**31)])
    op("Slice", [x, steer("starts", i64(6)), steer("ends", i64(-9)), steer("axes", i64(0)), steer("steps", i64(-1))], "back", moves=True, rank=1)
    op("Slice", [x, steer("starts", i64(3)), steer("ends", i64(8)), steer("axes", i64(0)), steer("steps", i64(1))], "from 3", moves=True, rank=1)
    op("Slice", [x, steer("starts", i64(3)), steer("ends", i64(-9)), steer("axes", i64(0)), steer("steps", i64(-1))], "back from 3", moves=True, rank=1)
    op("Slice", [x24, steer("starts", i64(0, 1)), steer("ends", i64(2, 3)), steer("axes", i64(1, 2)), steer("steps", i64(1, 1))], "3d", moves=True, rank=3, known=[
        {"starts": i64(0, start), "ends": i64(2**20, end), "axes": i64(1, 2), "steps": i64(step, -2**31)} for start in (1, 3) for end in (-2**31, -9) for step in (1, 200)])
    for mode in ("constant", "reflect", "edge", "wrap"):
        op("Pad", [x, steer("pads", i64(1, 2)), steer("value", np.float32(9001.0))], mode, moves=True, rank=1, attributes={"mode": mode})
        op("Pad", [data("x", numbered(3, 4)), steer("pads", i64(0, 1, 1, 0))], mode + " 2d", moves=True, rank=2, attributes={"mode": mode})
    op("Pad", [data("x", numbered(3, 4)), steer("pads", i64(1, 1)), data("value", np.float32(9001.0)), steer("axes", i64(1))], "axes", moves=True, rank=2)
    op("Squeeze", [data("x", numbered(1, 8, 1)), steer("axes", i64(0))], moves=True)
    op("Unsqueeze", [x, steer("axes", i64(0))], moves=True)
    op("Split", [x, steer("split", i64(3, 5))], moves=True, rank=1, outputs=2)
    op("Split", [data("x", numbered(2, 8)), steer("split", i64(3, 5))], "axis 1", moves=True, rank=2, outputs=2, attributes={"axis": 1})
    sequence = lambda names, outputs: [helper.make_node("SplitToSequence", names[:2], ["q"]), helper.make_node("SequenceAt", ["q", names[2]], outputs)]
    op("SplitToSequence", [x, steer("split", i64(3, 5)), data("position", np.int64(0))], moves=True, graph=sequence)
    op("SplitToSequence", [x, steer("split", np.int64(3)), data("position", np.int64(0))], "scalar", moves=True, graph=sequence)
    op("SequenceAt", [x, data("split", i64(3, 5)), steer("position", np.int64(0))], moves=True, graph=sequence)
    op("SequenceErase", [x, data("split", i64(3, 5)), steer("position", np.int64(0))], moves=True, graph=lambda names, outputs: [
        helper.make_node("SplitToSequence", names[:2], ["q"]), helper.make_node("SequenceErase", ["q", names[2]], ["r"]),
        helper.make_node("ConcatFromSequence", ["r"], outputs, axis=0)])
    op("SequenceInsert", [x, data("split", i64(3, 5)), steer("position", np.int64(0))], moves=True, graph=lambda names, outputs: [
        helper.make_node("SplitToSequence", names[:2], ["q"]), helper.make_node("SequenceInsert", ["q", "x", names[2]], ["r"]),
        helper.make_node("ConcatFromSequence", ["r"], outputs, axis=0)])
    for kind in (i64, i32):
        word = "" if kind is i64 else "int32"
        op("Gather", [data("x", numbered(8, 2)), steer("indices", kind(1, 7, 0))], word, moves=True, rank=2)
        op("Gather", [data("x", numbered(2, 8)), steer("indices", kind(1, 7, 0))], "axis 1 " + word, moves=True, rank=2, attributes={"axis": 1})
        op("GatherElements", [data("x", numbered(8)), steer("indices", kind(1, 7, 0))], word, moves=True, rank=1)
        op("GatherElements", [data("x", numbered(2, 8)), steer("indices", kind(1, 7, 0, 3).reshape(2, 2))], "axis 1 " + word, moves=True, rank=2, attributes={"axis": 1})
        op("ScatterElements", [x, steer("indices", kind(1, 7, 0)), data("updates", numbered(3, first=2001))], word, moves=True, rank=1)
        for reduction in ("add", "mul", "max"):
            op("ScatterElements", [x, steer("indices", kind(1, 7, 0)), data("updates", numbered(3, first=2001))], reduction + word, rank=1, attributes={"reduction": reduction})
    op("Gather", [data("x", numbered(8, dtype=np.int64)), steer("indices", i64(1, 7, 0))], "of integers", moves=True, rank=1)
    op("Scatter", [x, steer("indices", i64(1, 7, 0)), data("updates", numbered(3, first=2001))], moves=True, rank=1, opset=10)
    op("GatherND", [data("x", numbered(2, 4)), steer("indices", i64(1, 3, 0, 2).reshape(2, 2))], moves=True, rank=1)
    op("GatherND", [data("x", numbered(8, 2)), steer("indices", i64(1, 3).reshape(2, 1))], "rows", moves=True, rank=2)
    op("GatherND", [data("x", numbered(2, 4)), steer("indices", i64(1, 3).reshape(2, 1))], "batch", moves=True, rank=1, attributes={"batch_dims": 1})
    for reduction in ("none", "add", "mul", "min"):
        op("ScatterND", [data("x", numbered(2, 4)), steer("indices", i64(1, 3, 0, 2).reshape(2, 2)), data("updates", numbered(2, first=2001))], reduction, moves=reduction in ("none", "min"), rank=2, attributes={"reduction": reduction})
    op("ScatterND", [data("x", numbered(8, 2)), steer("indices", i64(1, 3).reshape(2, 1)), data("updates", numbered(2, 2, first=2001))], "rows", moves=True, rank=2)
    op("TopK", [x, steer("k", i64(3))], moves=True, rank=1, outputs=2, types=[np.float32, np.int64])
    op("TopK", [data("x", numbered(4, 8)), steer("k", i64(3))], "axis 0", moves=True, rank=2, outputs=2, types=[np.float32, np.int64], attributes={"axis": 0})
    for kind in (i64, i32):
        op("OneHot", [steer("indices", kind(1, 3, 0)), steer("depth", kind(4)), data("values", f32(5001, 5002))], kind.__name__, moves=True, rank=2, types=[np.float32])
    op("OneHot", [steer("indices", f32(1, 3, 0)), steer("depth", f32(4)), data("values", f32(5001, 5002))], "float", moves=True, rank=2, types=[np.float32])
    for kind, word in ((np.int64, ""), (np.int32, "int32"), (np.float32, "float")):
        op("Range", [steer("start", kind(0)), steer("limit", kind(8)), steer("delta", kind(1))], word, rank=1)
    op("ConstantOfShape", [steer("shape", i64(2, 4))], rank=2, types=[np.float32], attributes={"value": numpy_helper.from_array(f32(5001))})
    for mode in ("nearest", "linear", "cubic"):
        op("Resize", [data("x", PICTURE), None, steer("scales", f32(1, 1, 2, 2))], mode, rank=4, moves=mode == "nearest", attributes={"mode": mode})
        op("Resize", [data("x", PICTURE), None, None, steer("sizes", i64(1, 2, 8, 8))], mode, rank=4, moves=mode == "nearest", attributes={"mode": mode})
        op("Resize", [data("x", PICTURE), steer("roi", f32(0, 0, 0, 0, 1, 1, 1, 1)), steer("scales", f32(1, 1, 2, 2))], mode + " crop", rank=4, attributes={"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize"})
    op("Resize", [data("x", PICTURE), None, None, steer("sizes", i64(8, 8))], "axes", rank=4, attributes={"mode": "linear", "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger", "antialias": 1})
    op("Upsample", [data("x", PICTURE), steer("scales", f32(1, 1, 2, 2))], "nearest", rank=4, moves=True, opset=9, attributes={"mode": "nearest"})
    op("Upsample", [data("x", PICTURE), steer("scales", f32(1, 1, 2, 2))], "linear", rank=4, opset=9, attributes={"mode": "linear"})
    boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11]]], np.float32)
    op("NonMaxSuppression", [steer("boxes", boxes), steer("scores", np.array([[[0.9, 0.75, 0.6]]], np.float32)), steer("max_output", i64(3)), steer("iou", f32(0.5)), steer("score", f32(0.1))], rank=2, types=[np.int64])
    for reduce in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"):
        op(reduce, [x24, steer("axes", i64(1))])
    op("ReduceSum", [x24, steer("axes", i64(1))], "keep 0", attributes={"keepdims": 0})
    for kind in (np.int64, np.int32):
        op("CumSum", [x24, steer("axis", kind(1))], kind.__name__, rank=3)
    op("CumProd", [x24, steer("axis", np.int64(1))], rank=3, opset=26)
    op("Trilu", [data("x", numbered(3, 4)), steer("k", np.int64(0))], moves=True, rank=2)
    op("Trilu", [data("x", numbered(3, 4)), steer("k", np.int64(0))], "lower", moves=True, rank=2, attributes={"upper": 0})
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["c2"]), helper.make_node("Identity", ["a"], ["a2"]), helper.make_node("Identity", ["a"], ["scan"])], "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("c", TensorProto.BOOL, []), helper.make_tensor_value_info("a", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("c2", TensorProto.BOOL, []), helper.make_tensor_value_info("a2", TensorProto.FLOAT, None), helper.make_tensor_value_info("scan", TensorProto.FLOAT, None)])
    op("Loop", [steer("trip", np.int64(3)), data("cond", np.bool_(True)), x], moves=True, outputs=2, types=[np.float32] * 2, attributes={"body": body})
    op("ReverseSequence", [data("x", numbered(4, 3)), steer("lens", i64(1, 2, 4))], moves=True, rank=2, attributes={"time_axis": 0, "batch_axis": 1})
    op("ReverseSequence", [data("x", numbered(3, 4)), steer("lens", i64(1, 2, 4))], "batch first", moves=True, rank=2, attributes={"time_axis": 1, "batch_axis": 0})
    op("Compress", [x, steer("condition", boolean(1, 0, 1, 1, 0, 0, 1, 1))], moves=True, rank=1)
    op("Compress", [data("x", numbered(4, 2)), steer("condition", boolean(1, 0, 1))], "axis", moves=True, rank=2, attributes={"axis": 0})
    for mode in ("avg", "max"):
        for ratio in (0, 2):
            op("RoiAlign", [data("x", PICTURE), steer("rois", f32(0, 0, 3, 3, 1, 1, 2, 2).reshape(2, 4)), steer("batch", i64(0, 0))], f"{mode} {ratio}", rank=4, attributes={"mode": mode, "sampling_ratio": ratio, "output_height": 2, "output_width": 2})
    op("MaxRoiPool", [data("x", PICTURE), steer("rois", f32(0, 0, 0, 3, 3, 0, 1, 1, 2, 2).reshape(2, 5))], rank=4, moves=True, attributes={"pooled_shape": [2, 2]})
    op("MaxUnpool", [data("x", numbered(1, 1, 2, 2)), steer("indices", i64(5, 7, 13, 15).reshape(1, 1, 2, 2)), steer("output_shape", i64(1, 1, 4, 4))], rank=4, moves=True, attributes={"kernel_shape": [2, 2], "strides": [2, 2]})
    op("MaxUnpool", [data("x", numbered(1, 1, 2, 2)), steer("indices", i64(5, 7, 13, 15).reshape(1, 1, 2, 2))], "fixed", rank=4, moves=True, attributes={"kernel_shape": [2, 2], "strides": [2, 2]})
    op("DFT", [data("x", numbered(1, 8, 1)), steer("length", np.int64(8)), steer("axis", np.int64(1))], rank=3, opset=20)
    op("STFT", [data("x", numbered(1, 16, 1)), steer("step", np.int64(4)), data("window", numbered(8)), steer("length", np.int64(8))], rank=4)
    op("STFT", [data("x", numbered(1, 16, 1)), steer("step", np.int64(4)), None, steer("length", np.int64(8))], "no window", rank=4)
    for window in ("HannWindow", "HammingWindow", "BlackmanWindow"):
        op(window, [steer("size", np.int64(8))], rank=1, types=[np.float32])
    op("MelWeightMatrix", [steer("bins", np.int64(8)), steer("length", np.int64(16)), steer("rate", np.int64(8192)), steer("low", np.float32(0)), steer("high", np.float32(4096))], rank=2, types=[np.float32])
    op("Multinomial", [data("x", numbered(2, 4))], rank=2, types=[np.int32], attributes={"sample_size": 4, "seed": 1.0})
    for kind in (np.uint64, np.uint32, np.uint8):
        for direction in ("LEFT", "RIGHT"):
            op("BitShift", [data("x", numbered(4, dtype=kind, first=17)), steer("shift", np.array([1, 2, 3, 4], kind))], f"{direction} {kind.__name__}", rank=1, attributes={"direction": direction})
    for kind in (np.int64, np.int32, np.uint8):
        for name in ("Div", "Mod"):
            op(name, [steer("x", np.array([1, 2, 30, 4], kind)), steer("by", np.array([1, 2, 3, 4], kind))], kind.__name__, rank=1, known=[{"x": np.full(4, np.iinfo(kind).min, kind), "by": np.full(4, -1 if kind is not np.uint8 else 0, np.int64).astype(kind)}])
        op("Pow", [steer("x", np.array([1, 2, 30, 4], kind)), steer("by", np.array([1, 2, 3, 4], kind))], kind.__name__, rank=1) if kind is not np.uint8 else None
    for name in ("Add", "Sub", "Mul", "Max", "Min"):
        op(name, [steer("x", i64(1, 2, 30, 4)), steer("by", i64(1, 2, 3, 4))], "int64", rank=1)
    for name in ("Abs", "Neg", "Sign"):
        op(name, [steer("x", i64(1, 2, 30, 4))], "int64", rank=1)
    for mode in ("linear", "nearest", "cubic"):
        for padding in ("zeros", "border", "reflection"):
            op("GridSample", [data("x", PICTURE), steer("grid", np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 2, 2, 2))], f"{mode} {padding}", rank=4, moves=mode == "nearest", opset=20, attributes={"mode": mode, "padding_mode": padding})
    op("DeformConv", [data("x", numbered(1, 1, 3, 3)), data("w", numbered(1, 1, 2, 2)), steer("offset", np.zeros((1, 8, 2, 2), np.float32))], rank=4, opset=19, attributes={"kernel_shape": [2, 2]})
    op("AffineGrid", [data("theta", numbered(1, 2, 3)), steer("size", i64(1, 1, 4, 4))], rank=4, opset=20)
    op("CenterCropPad", [data("x", numbered(4, 4)), steer("shape", i64(2, 6))], moves=True, rank=2)
    op("Col2Im", [data("x", numbered(1, 4, 4)), steer("image", i64(4, 4)), steer("block", i64(2, 2))], rank=4, opset=18, attributes={"strides": [2, 2]})
    op("NegativeLogLikelihoodLoss", [data("x", numbered(3, 4)), steer("target", i64(0, 1, 3))], opset=13, attributes={"reduction": "none"})
    op("SoftmaxCrossEntropyLoss", [data("x", numbered(3, 4)), steer("labels", i64(0, 1, 3))], opset=13, attributes={"reduction": "none"})
    op("Unique", [steer("x", i64(3, 1, 2, 1))], rank=1, outputs=4, types=[np.int64] * 4)
    op("Dropout", [x, steer("ratio", np.float32(0.5)), steer("training", np.bool_(False))], rank=1, attributes={"seed": 7})
    op("Clip", [steer("x", i64(1, 2, 3)), steer("min", np.int64(0)), steer("max", np.int64(2))], "int64", rank=1)
    op("Clip", [x, steer("min", np.float32(0)), steer("max", np.float32(2))], rank=1)
    op("QuantizeLinear", [steer("x", X8), steer("scale", np.float32(1)), steer("zero", np.uint8(0))], rank=1, types=[np.uint8])
    op("DequantizeLinear", [data("x", numbered(8, dtype=np.int32)), steer("scale", np.float32(1))], rank=1, types=[np.float32])
    op("DynamicQuantizeLinear", [steer("x", X8)], rank=1, outputs=3, types=[np.uint8, np.float32, np.uint8])
    for kind, to in ((np.float32, TensorProto.INT64), (np.float32, TensorProto.INT32), (np.float32, TensorProto.UINT8), (np.int64, TensorProto.INT8), (np.float32, TensorProto.BOOL)):
        op("Cast", [steer("x", np.array([1, 2, 3], kind))], f"{kind.__name__} {to}", rank=1, types=[helper.tensor_dtype_to_np_dtype(to)], attributes={"to": to})
    for name, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        op(name, [data("x", numbered(3, 2, 2)), data("w", numbered(1, gates * 2, 2)), data("r", numbered(1, gates * 2, 2)), None, steer("lens", i32(3, 2))], rank=4, attributes={"hidden_size": 2})
        op(name, [data("x", numbered(3, 2, 2)), data("w", numbered(2, gates * 2, 2)), data("r", numbered(2, gates * 2, 2)), None, steer("lens", i32(3, 2))], "bidirectional", rank=4, attributes={"hidden_size": 2, "direction": "bidirectional"})
    op("Where", [steer("c", boolean(1, 0, 1, 1, 0, 0, 1, 1)), x, data("z", numbered(8, first=2001))], moves=True, rank=1)
    op("NonZero", [steer("x", boolean(1, 0, 1, 1))], rank=2, types=[np.int64])
    op("TensorScatter", [data("past", numbered(2, 4, 2)), data("update", numbered(2, 1, 2, first=2001)), steer("write", i64(0, 3))], moves=True, rank=3, opset=24, attributes={"axis": 1})
    op("TensorScatter", [data("past", numbered(2, 4, 2)), data("update", numbered(2, 1, 2, first=2001)), steer("write", i64(0, 3))], "circular", moves=True, rank=3, opset=24, attributes={"axis": 1, "mode": "circular"})
    op("RotaryEmbedding", [data("x", numbered(1, 2, 3, 4)), data("cos", numbered(8, 2)), data("sin", numbered(8, 2)), steer("positions", i64(0, 1, 2).reshape(1, 3))], rank=4, opset=23)
    op("Attention", [data("q", numbered(1, 2, 3, 4)), data("k", numbered(1, 2, 3, 4)), data("v", numbered(1, 2, 3, 4)), None, None, None, steer("lengths", i64(3))], rank=4, opset=24)
    op("EyeLike", [data("x", numbered(3, 4))], rank=2)
    op("Einsum", [data("x", numbered(2, 3)), data("z", numbered(3, 2))], rank=2, attributes={"equation": "ij,jk->ik"})
    op("MatMul", [data("x", numbered(2, 3)), data("z", numbered(3, 2))], rank=2)
    # ai.onnx.ml
    op("ai.onnx.ml.ArrayFeatureExtractor", [data("x", numbered(2, 4)), steer("indices", i64(0, 3))], moves=True)
    op("ai.onnx.ml.LabelEncoder", [steer("x", i64(1, 2, 3))], rank=1, types=[np.float32], attributes={"keys_int64s": [1, 2], "values_floats": [1.0, 2.0]})
    op("ai.onnx.ml.OneHotEncoder", [steer("x", i64(1, 2, 3))], rank=2, types=[np.float32], attributes={"cats_int64s": [1, 2, 3]})
    op("ai.onnx.ml.Binarizer", [steer("x", f32(1, 2, 3))], rank=1)
    op("TfIdfVectorizer", [steer("x", i64(1, 2, 3, 1))], rank=1, types=[np.float32], attributes={
        "mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0, "ngram_counts": [0, 2], "ngram_indexes": [0, 1, 2], "pool_int64s": [1, 2, 1, 2]})
    # Operators of ONNX Runtime.
    ms = MS + "."
    op(ms + "Pad", [x, steer("pads", i64(1, 2)), steer("value", f32(9001.0))], moves=True, rank=1)
    op(ms + "Range", [steer("start", np.int64(0)), steer("limit", np.int64(8)), steer("delta", np.int64(1))], rank=1)
    op(ms + "GatherND", [data("x", numbered(2, 4)), steer("indices", i64(1, 3, 0, 2).reshape(2, 2))], moves=True, rank=1)
    op(ms + "ExpandDims", [x, steer("axis", np.int32(0))], moves=True, rank=2)
    op(ms + "Trilu", [data("x", numbered(3, 4)), steer("k", np.int64(0))], moves=True, rank=2)
    op(ms + "CropAndResize", [data("x", PICTURE), steer("rois", f32(0, 0, 1, 1, .1, .1, .5, .5).reshape(2, 4)), steer("batch", i32(0, 0)), steer("crop", i32(2, 2))], rank=4)
    op(ms + "CropAndResize", [data("x", PICTURE), steer("rois", f32(0, 0, 1, 1, .1, .1, .5, .5).reshape(2, 4)), steer("batch", i32(0, 0)), steer("crop", i32(2, 2))], "nearest", moves=True, rank=4, attributes={"mode": "nearest"})
    op(ms + "GridSample", [data("x", PICTURE), steer("grid", np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 2, 2, 2))], rank=4)
    op(ms + "ConvTransposeWithDynamicPads", [data("x", numbered(1, 1, 3, 3)), data("w", numbered(1, 1, 2, 2)), steer("pads", i64(0, 0, 0, 0))], rank=4, attributes={"kernel_shape": [2, 2]})
    op(ms + "EmbedLayerNormalization", [steer("ids", i32(1, 2, 3).reshape(1, 3)), steer("segments", i32(0, 1, 0).reshape(1, 3)), data("words", numbered(8, 4)), data("places", numbered(4, 4)), data("segment", numbered(2, 4)), data("gamma", numbered(4)), data("beta", numbered(4)), steer("mask", i32(1, 1, 1).reshape(1, 3)), steer("positions", i32(0, 1, 2).reshape(1, 3))], rank=3, outputs=2, types=[np.float32, np.int32])
    op(ms + "Attention", [data("x", numbered(1, 3, 4)), data("w", numbered(4, 12)), data("b", numbered(12)), steer("mask", i32(1, 1, 1).reshape(1, 3))], rank=3, attributes={"num_heads": 2})
    op(ms + "Attention", [data("x", numbered(1, 3, 4)), data("w", numbered(4, 12)), data("b", numbered(12)), steer("mask", i32(3))], "end", rank=3, attributes={"num_heads": 2})
    op(ms + "Attention", [data("x", numbered(1, 3, 4)), data("w", numbered(4, 12)), data("b", numbered(12)), steer("mask", i32(3, 0))], "start and end", rank=3, attributes={"num_heads": 2})
    op(ms + "Attention", [data("x", numbered(1, 1, 4)), data("w", numbered(4, 12)), data("b", numbered(12)), None, data("past", numbered(2, 1, 2, 4, 2)), None, steer("length", np.int32(2))], "past", rank=3, outputs=2, types=[np.float32] * 2, attributes={"num_heads": 2, "past_present_share_buffer": 1})
    q = lambda name: data(name, numbered(1, 3, 4))
    op(ms + "MultiHeadAttention", [q("q"), q("k"), q("v"), None, steer("mask", i32(3))], rank=3, attributes={"num_heads": 2})
    op(ms + "MultiHeadAttention", [q("q"), q("k"), q("v"), None, steer("mask", i32(1, 1, 1).reshape(1, 3))], "2d", rank=3, attributes={"num_heads": 2})
    cache = lambda name: data(name, numbered(1, 2, 4, 2))
    op(ms + "DecoderMaskedMultiHeadAttention", [data("q", numbered(1, 1, 4)), data("k", numbered(1, 1, 4)), data("v", numbered(1, 1, 4)), steer("mask", np.ones((1, 3), np.int32)), None, cache("past_k"), cache("past_v"), steer("length", i32(2)), steer("beams", i32(1)), steer("indirection", np.zeros((1, 1, 4), np.int32))], rank=3, outputs=3, types=[np.float32] * 3, attributes={"num_heads": 2, "past_present_share_buffer": 1})
    op(ms + "GroupQueryAttention", [data("q", numbered(1, 1, 32)), data("k", numbered(1, 1, 32)), data("v", numbered(1, 1, 32)), data("past_k", numbered(1, 2, 4, 16)), data("past_v", numbered(1, 2, 4, 16)), steer("seqlens", i32(4)), steer("total", i32(5))], rank=3, outputs=3, types=[np.float32] * 3, attributes={"num_heads": 2, "kv_num_heads": 2})
    op(ms + "GroupQueryAttention", [data("q", numbered(1, 1, 32)), data("k", numbered(1, 1, 32)), data("v", numbered(1, 1, 32)), data("past_k", numbered(1, 2, 4, 16)), data("past_v", numbered(1, 2, 4, 16)), steer("seqlens", i32(4)), steer("total", i32(5)), data("cos", numbered(8, 8)), data("sin", numbered(8, 8)), steer("positions", i64(4).reshape(1, 1))], "rotary", rank=3, outputs=3, types=[np.float32] * 3, attributes={"num_heads": 2, "kv_num_heads": 2, "do_rotary": 1})
    op(ms + "SparseAttention", [data("q", numbered(1, 1, 32)), data("k", numbered(1, 1, 32)), data("v", numbered(1, 1, 32)), data("past_k", numbered(1, 2, 4, 16)), data("past_v", numbered(1, 2, 4, 16)), steer("rows", i32(0, 1).reshape(1, 2)), steer("cols", i32(0).reshape(1, 1)), steer("total", np.int32(4)), steer("lengths", i32(4))], rank=3, outputs=3, types=[np.float32] * 3, attributes={"num_heads": 2, "kv_num_heads": 2, "sparse_block_size": 16})
    op(ms + "RotaryEmbedding", [data("x", numbered(1, 3, 8)), steer("positions", i64(0, 1, 2).reshape(1, 3)), data("cos", numbered(8, 4)), data("sin", numbered(8, 4))], rank=3)
    op(ms + "RotaryEmbedding", [data("x", numbered(1, 3, 8)), steer("positions", i64(0)), data("cos", numbered(8, 4)), data("sin", numbered(8, 4))], "offset", rank=3)
    op(ms + "MRotaryEmbedding", [data("x", numbered(1, 3, 8)), steer("positions", i64(*range(9)).reshape(3, 1, 3) % 8), data("cos", numbered(8, 4)), data("sin", numbered(8, 4))], rank=3, attributes={"mrope_section": [1, 1, 2], "num_heads": 1})
    op(ms + "NGramRepeatBlock", [steer("ids", i64(1, 2, 3, 1).reshape(1, 4)), data("scores", numbered(1, 8))], rank=2, types=[np.float32], attributes={"ngram_size": 2})
    op(ms + "BifurcationDetector", [steer("src", i64(1, 2, 3)), steer("cur", i64(1)), steer("match", np.int64(0)), steer("pred", i64(1, 2, 3, 4))], outputs=2, types=[np.int64] * 2)
    op(ms + "GatherBlockQuantized", [data("x", numbered(8, 32, dtype=np.uint8, first=0)), steer("indices", i64(1, 7)), data("scales", numbered(8, 1))], rank=2, types=[np.float32], attributes={"block_size": 32, "bits": 8, "gather_axis": 0, "quantize_axis": 1})
    op(ms + "MaxpoolWithMask", [data("x", PICTURE), steer("mask", np.ones((1, 2, 4, 4), np.int32))], rank=4, attributes={"kernel_shape": [2, 2]})
    op(ms + "WordConvEmbedding", [steer("x", i32(1, 2, 3, 4).reshape(1, 1, 4)), data("w", numbered(2, 1, 2, 3)), data("b", numbered(2)), data("c", numbered(8, 3))], types=[np.float32], attributes={"embedding_size": 2, "conv_window_size": 2, "char_embedding_size": 3})
    op(ms + "MatMulNBits", [data("x", numbered(1, 32)), data("b", numbered(4, 1, 16, dtype=np.uint8, first=0)), data("scales", numbered(4)), None, steer("groups", np.zeros(32, np.int32))], rank=2, attributes={"K": 32, "N": 4, "bits": 4, "block_size": 32})
    op(ms + "DynamicQuantizeLSTM", [data("x", numbered(3, 2, 2)), data("w", numbered(1, 2, 8, dtype=np.uint8, first=0)), data("r", numbered(1, 2, 8, dtype=np.uint8, first=0)), None, steer("lens", i32(3, 2)), None, None, None, data("ws", f32(1)), data("wz", np.array([0], np.uint8)), data("rs", f32(1)), data("rz", np.array([0], np.uint8))], rank=4, attributes={"hidden_size": 2})
    op(ms + "Unique", [steer("x", f32(3, 1, 2, 1))], rank=1, outputs=3, types=[np.float32, np.int64, np.int64])
    op(ms + "MurmurHash3", [steer("x", i32(3, 1, 2, 1))], rank=1, types=[np.uint32])
    op(ms + "QAttention", [data("x", numbered(1, 3, 4, dtype=np.uint8, first=0)), data("w", numbered(4, 12, dtype=np.uint8, first=0)), data("b", numbered(12)), data("xs", np.float32(1)), data("ws", np.float32(1)), steer("mask", i32(3))], rank=3, types=[np.float32], attributes={"num_heads": 2})
    return made
