"""Operators of OpenVINO's IR, each with its inputs. The version is that of the newest set of operators that has it."""
import tempfile
from pathlib import Path

import numpy as np
import openvino
from openvino import opset1, opset3, opset4, opset6, opset7, opset8, opset9, opset11, opset15, opset16 as ov

from cases import Spec, boolean, data, f32, i32, i64, numbered, steer

X8, X24 = numbered(8), numbered(2, 3, 4)
PICTURE = numbered(1, 2, 4, 4)


def model(spec, free, fixed=()):
    """The IR and the weights of a model of one operator. Inputs in `free` are those of callers, the others are constants."""
    nodes, parameters = [], []
    for made in spec.inputs:
        if made.name in free:
            is_variable = made.name not in fixed
            shape = [-1] * made.value.ndim if is_variable else list(made.value.shape)
            node = ov.parameter(openvino.PartialShape(shape), made.value.dtype, name=made.name)
            node.output(0).get_tensor().set_names({made.name})
            parameters.append(node)
        else:
            node = ov.constant(made.value, name=made.name)
        nodes.append(node)
    last = spec.how["make"](*nodes)
    results = [ov.result(output) for output in last.outputs()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.xml"
        openvino.serialize(openvino.Model(results, parameters, "operator"), path, path.with_suffix(".bin"))
        return path.read_bytes(), path.with_suffix(".bin").read_bytes()


def specs():
    made = []

    def op(operator, inputs, make, variant="", moves=False, known=()):
        made.append(Spec(operator, inputs, variant, moves, {"make": make, "known": known}))

    x, x24 = data("x", X8), data("x", X24)
    picture = data("x", PICTURE)
    for mode in ("constant", "reflect", "edge", "symmetric"):
        op("Pad", [x, steer("begin", i64(1)), steer("end", i64(2))], lambda a, b, c, mode=mode: ov.pad(a, b, c, mode), mode, moves=True)
    op("Pad", [data("x", numbered(3, 4)), steer("begin", i64(0, 1)), steer("end", i64(1, 0)), steer("value", np.float32(9001))], lambda a, b, c, d: ov.pad(a, b, c, "constant", d), "2d", moves=True)
    op("Pad", [x, steer("begin", i32(1)), steer("end", i32(2))], lambda a, b, c: opset1.pad(a, b, c, "constant"), "1", moves=True)
    op("Slice", [x, steer("start", i64(1)), steer("stop", i64(7)), steer("step", i64(1)), steer("axes", i64(0))], ov.slice, moves=True, known=[
        {"start": i64(start), "stop": i64(end), "step": i64(-2**31)} for start in (0, 3, 7) for end in (-9, 7, 8, -2**31)])
    op("Slice", [x, steer("start", i64(3)), steer("stop", i64(8)), steer("step", i64(1)), steer("axes", i64(0))], ov.slice, "from 3", moves=True)
    op("Slice", [x, steer("start", i64(3)), steer("stop", i64(-9)), steer("step", i64(-1)), steer("axes", i64(0))], ov.slice, "back from 3", moves=True)
    op("Slice", [x24, steer("start", i32(0, 1)), steer("stop", i32(2, 3)), steer("step", i32(1, 1)), steer("axes", i32(1, 2))], ov.slice, "3d", moves=True, known=[
        {"start": i32(0, start), "stop": i32(2**20, end), "axes": i32(1, 2), "step": i32(step, -2**31)} for start in (1, 3) for end in (-2**31, -9) for step in (1, 200)])
    op("SliceScatter", [x, data("updates", numbered(3, first=2001)), steer("start", i64(1)), steer("stop", i64(4)), steer("step", i64(1)), steer("axes", i64(0))], ov.slice_scatter, moves=True)
    op("StridedSlice", [data("x", numbered(3, 4)), steer("begin", i64(0, 1)), steer("end", i64(2, 3)), steer("strides", i64(1, 1))], lambda a, b, c, d: ov.strided_slice(a, b, c, d, [0, 0], [0, 0]), moves=True)
    op("StridedSlice", [data("x", numbered(3, 4)), steer("begin", i32(0, 1)), steer("end", i32(2, 3)), steer("strides", i32(1, 1))], lambda a, b, c, d: ov.strided_slice(a, b, c, d, [0, 0], [0, 0], [], [1, 0]), "shrink", moves=True)
    for kind in (i32, i64):
        word = kind.__name__
        op("Gather", [data("x", numbered(8, 2)), steer("indices", kind(1, 7, 0)), steer("axis", np.int64(0))], ov.gather, word, moves=True)
        op("Gather", [data("x", numbered(8)), steer("indices", kind(1, 7, 0)), steer("axis", np.int64(0))], ov.gather, word + " vector", moves=True)
        op("Gather", [data("x", numbered(2, 8)), steer("indices", kind(1, 7, 0, 3).reshape(2, 2)), steer("axis", np.int64(1))], lambda a, b, c: ov.gather(a, b, c, 1), word + " batch", moves=True)
        op("Gather", [data("x", numbered(8, 2)), steer("indices", kind(1, 7, 0)), steer("axis", np.int64(0))], opset1.gather, word + " 1", moves=True)
        op("Gather", [data("x", numbered(8, 2)), steer("indices", kind(1, 7, 0)), steer("axis", np.int64(0))], opset7.gather, word + " 7", moves=True)
        op("GatherElements", [data("x", numbered(8)), steer("indices", kind(1, 7, 0))], ov.gather_elements, word, moves=True)
        op("GatherND", [data("x", numbered(2, 4)), steer("indices", kind(1, 3, 0, 2).reshape(2, 2))], ov.gather_nd, word, moves=True)
        op("ScatterElementsUpdate", [x, steer("indices", kind(1, 7, 0)), data("updates", numbered(3, first=2001)), steer("axis", np.int64(0))], ov.scatter_elements_update, word, moves=True)
        op("ScatterNDUpdate", [data("x", numbered(2, 4)), steer("indices", kind(1, 3, 0, 2).reshape(2, 2)), data("updates", numbered(2, first=2001))], ov.scatter_nd_update, word, moves=True)
        op("ScatterUpdate", [data("x", numbered(8, 2)), steer("indices", kind(1, 7)), data("updates", numbered(2, 2, first=2001)), steer("axis", np.int64(0))], ov.scatter_update, word, moves=True)
    op("GatherND", [data("x", numbered(8, 2)), steer("indices", i32(1, 3).reshape(2, 1))], opset8.gather_nd, "rows 8", moves=True)
    op("GatherND", [data("x", numbered(2, 4)), steer("indices", i32(1, 3).reshape(2, 1))], lambda a, b: opset1_gather_nd(a, b), "batch 5", moves=True)
    for reduction in ("sum", "prod", "max", "mean"):
        op("ScatterElementsUpdate", [x, steer("indices", i32(1, 7, 0)), data("updates", numbered(3, first=2001)), steer("axis", np.int64(0))], lambda a, b, c, d, reduction=reduction: ov.scatter_elements_update(a, b, c, d, reduction), reduction)
    for reduction in ("sum", "prod", "max"):
        op("ScatterNDUpdate", [data("x", numbered(8, 2)), steer("indices", i32(1, 3).reshape(2, 1)), data("updates", numbered(2, 2, first=2001))], lambda a, b, c, reduction=reduction: ov.scatter_nd_update(a, b, c, reduction), reduction)
    op("GatherTree", [steer("steps", numbered(3, 2, 2, first=1)), steer("parents", np.zeros((3, 2, 2), np.float32)), steer("lengths", f32(3, 3)), steer("end", np.float32(9))], ov.gather_tree, moves=True)
    op("GatherTree", [steer("steps", numbered(3, 2, 2, first=1, dtype=np.int32)), steer("parents", np.zeros((3, 2, 2), np.int32)), steer("lengths", i32(3, 3)), steer("end", np.int32(9))], ov.gather_tree, "int32", moves=True)
    op("Tile", [data("x", numbered(2, 4)), steer("repeats", i64(1, 2))], ov.tile, moves=True)
    op("Broadcast", [data("x", numbered(1, 4)), steer("shape", i64(2, 4))], ov.broadcast, moves=True)
    op("Broadcast", [data("x", numbered(1, 4)), steer("shape", i64(2, 4))], lambda a, b: ov.broadcast(a, b, broadcast_spec="BIDIRECTIONAL"), "both", moves=True)
    op("Broadcast", [data("x", numbered(4)), steer("shape", i64(2, 4)), steer("axes", i64(1))], lambda a, b, c: ov.broadcast(a, b, c, "EXPLICIT"), "explicit", moves=True)
    op("Reshape", [x, steer("shape", i64(2, 4))], lambda a, b: ov.reshape(a, b, False), moves=True)
    op("Reshape", [x, steer("shape", i64(2, 4))], lambda a, b: ov.reshape(a, b, True), "zero", moves=True)
    op("Squeeze", [data("x", numbered(1, 8, 1)), steer("axes", i64(0))], ov.squeeze, moves=True)
    op("Unsqueeze", [x, steer("axes", i64(0))], ov.unsqueeze, moves=True)
    op("OneHot", [steer("indices", i64(1, 3, 0)), steer("depth", np.int64(4)), data("on", np.float32(5001)), data("off", np.float32(5002))], lambda a, b, c, d: ov.one_hot(a, b, c, d, -1), moves=True)
    op("OneHot", [steer("indices", i32(1, 3, 0)), steer("depth", np.int32(4)), data("on", np.float32(5001)), data("off", np.float32(5002))], lambda a, b, c, d: ov.one_hot(a, b, c, d, 0), "int32", moves=True)
    for kind, name in ((np.int64, "i64"), (np.int32, "i32"), (np.float32, "f32")):
        op("Range", [steer("start", kind(0)), steer("stop", kind(8)), steer("step", kind(1))], lambda a, b, c, name=name: ov.range(a, b, c, name), name)
    for kind in (i64, i32):
        op("TopK", [x, steer("k", kind(3)[0])], lambda a, b: ov.topk(a, b, 0, "max", "value"), kind.__name__, moves=True)
        op("TopK", [data("x", numbered(4, 8)), steer("k", kind(3)[0])], lambda a, b: ov.topk(a, b, 0, "max", "index"), kind.__name__ + " 2d", moves=True)
    op("TopK", [x, steer("k", np.int64(3))], lambda a, b: opset1.topk(a, b, 0, "max", "value"), "1", moves=True)
    op("Roll", [data("x", numbered(3, 4)), steer("shift", i64(1)), steer("axes", i64(1))], ov.roll, moves=True)
    op("Roll", [data("x", numbered(3, 4)), steer("shift", i32(1, 2)), steer("axes", i32(1, 0))], ov.roll, "int32", moves=True)
    table = data("x", numbered(5, 2))
    for kind in (i64, i32):
        word = kind.__name__
        op("EmbeddingBagOffsetsSum", [table, steer("indices", kind(0, 2, 3, 4)), steer("offsets", kind(0, 2, 3)), steer("default", kind(0)[0]), data("weights", numbered(4))], opset3.embedding_bag_offsets_sum, word)
        op("EmbeddingBagOffsets", [table, steer("indices", kind(0, 2, 3, 4)), steer("offsets", kind(0, 2, 3)), steer("default", kind(0)[0])], opset15.embedding_bag_offsets, word)
        op("EmbeddingBagPackedSum", [table, steer("indices", kind(0, 2, 3, 4).reshape(2, 2))], opset3.embedding_bag_packed_sum, word)
        op("EmbeddingBagPacked", [table, steer("indices", kind(0, 2, 3, 4).reshape(2, 2))], opset15.embedding_bag_packed, word)
        op("EmbeddingSegmentsSum", [table, steer("indices", kind(0, 2, 3, 4)), steer("segments", kind(0, 0, 2, 2)), steer("count", kind(3)[0]), steer("default", kind(0)[0])], opset3.embedding_segments_sum, word)
        op("SegmentMax", [x, steer("segments", kind(0, 0, 1, 1, 2, 2, 3, 3)), steer("count", kind(4)[0])], lambda a, b, c: ov.segment_max(a, b, c, "ZERO"), word, moves=True)
        op("ReverseSequence", [data("x", numbered(4, 3)), steer("lengths", kind(1, 2, 4))], lambda a, b: ov.reverse_sequence(a, b, 1, 0), word, moves=True)
        op("Bucketize", [steer("x", f32(1, 2, 30)), steer("buckets", f32(1, 5, 10))], lambda a, b: ov.bucketize(a, b), word)
    op("SearchSorted", [steer("sorted", f32(1, 5, 10)), steer("values", f32(1, 2, 30))], ov.search_sorted)
    for mode in ("nearest", "linear", "linear_onnx", "cubic"):
        for calculation, steered in (("sizes", i64(8, 8)), ("scales", f32(2, 2))):
            op("Interpolate", [picture, steer("sizes", steered), steer("axes", i64(2, 3))], lambda a, b, c, mode=mode, calculation=calculation: ov.interpolate(a, b, mode, calculation, axes=c), f"{mode} {calculation}", moves=mode == "nearest")
    for mode in ("bilinear_pillow", "bicubic_pillow"):
        op("Interpolate", [picture, steer("sizes", i64(8, 8))], lambda a, b, mode=mode: ov.interpolate(a, b, mode, "sizes", axes=ov.constant(i64(2, 3))), mode)
    op("ROIAlign", [picture, steer("rois", f32(0, 0, 3, 3, 1, 1, 2, 2).reshape(2, 4)), steer("batch", i32(0, 0))], lambda a, b, c: ov.roi_align(a, b, c, 2, 2, 2, 1.0, "avg"))
    op("ROIAlign", [picture, steer("rois", f32(0, 0, 3, 3, 1, 1, 2, 2).reshape(2, 4)), steer("batch", i32(0, 0))], lambda a, b, c: ov.roi_align(a, b, c, 2, 2, 0, 1.0, "max"), "max")
    op("ROIAlignRotated", [picture, steer("rois", f32(1, 1, 2, 2, 0, 1, 1, 2, 2, 1).reshape(2, 5)), steer("batch", i32(0, 0))], lambda a, b, c: ov.roi_align_rotated(a, b, c, 2, 2, 2, 1.0, True))
    op("ROIPooling", [picture, steer("rois", f32(0, 0, 0, 3, 3, 0, 1, 1, 2, 2).reshape(2, 5))], lambda a, b: ov.roi_pooling(a, b, [2, 2], 1.0, "max"))
    op("ROIPooling", [picture, steer("rois", f32(0, 0, 0, 1, 1, 0, .1, .1, .5, .5).reshape(2, 5))], lambda a, b: ov.roi_pooling(a, b, [2, 2], 1.0, "bilinear"), "bilinear")
    op("PSROIPooling", [data("x", numbered(1, 8, 4, 4)), steer("rois", f32(0, 0, 0, 3, 3, 0, 1, 1, 2, 2).reshape(2, 5))], lambda a, b: ov.psroi_pooling(a, b, 2, 2, 1.0, 1, 1, "average"))
    op("PSROIPooling", [data("x", numbered(1, 8, 4, 4)), steer("rois", f32(0, 0, 0, 1, 1, 0, .1, .1, .5, .5).reshape(2, 5))], lambda a, b: ov.psroi_pooling(a, b, 2, 2, 1.0, 2, 2, "bilinear"), "bilinear")
    op("DeformablePSROIPooling", [data("x", numbered(1, 8, 4, 4)), steer("rois", f32(0, 0, 0, 3, 3, 0, 1, 1, 2, 2).reshape(2, 5))], lambda a, b: ov.deformable_psroi_pooling(a, b, 2, 1.0, 2, spatial_bins_x=2, spatial_bins_y=2))
    op("DeformableConvolution", [data("x", numbered(1, 1, 3, 3)), steer("offset", np.zeros((1, 8, 2, 2), np.float32)), data("w", numbered(1, 1, 2, 2))], lambda a, b, c: opset8.deformable_convolution(a, b, c, [1, 1], [0, 0], [0, 0], [1, 1]))
    boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11]]], np.float32)
    scores = np.array([[[0.9, 0.75, 0.6]]], np.float32)
    op("NonMaxSuppression", [steer("boxes", boxes), steer("scores", scores), steer("count", np.int64(3)), steer("iou", np.float32(0.5)), steer("score", np.float32(0.1))], lambda *inputs: ov.non_max_suppression(*inputs))
    op("NonMaxSuppression", [steer("boxes", boxes), steer("scores", scores), steer("count", np.int64(3)), steer("iou", np.float32(0.5)), steer("score", np.float32(0.1)), steer("sigma", np.float32(0.5))], lambda *inputs: ov.non_max_suppression(*inputs), "soft")
    op("MatrixNms", [steer("boxes", boxes), steer("scores", scores)], lambda a, b: ov.matrix_nms(a, b))
    op("MulticlassNms", [steer("boxes", boxes), steer("scores", scores)], lambda a, b: opset8.multiclass_nms(a, b))
    op("MulticlassNms", [steer("boxes", boxes), steer("scores", np.array([[0.9, 0.75, 0.6]], np.float32)), steer("rois", i64(3))], lambda a, b, c: opset9.multiclass_nms(a, b, c), "rois")
    for kind in (np.int32, np.uint8, np.int64):
        for name, function in (("BitwiseLeftShift", opset15.bitwise_left_shift), ("BitwiseRightShift", opset15.bitwise_right_shift)):
            op(name, [steer("x", np.array([1, 2, 30, 4], kind)), steer("by", np.array([1, 2, 3, 4], kind))], function, kind.__name__)
        op("Divide", [steer("x", np.array([1, 2, 30, 4], kind)), steer("by", np.array([1, 2, 3, 4], kind))], ov.divide, kind.__name__)
        op("Mod", [steer("x", np.array([1, 2, 30, 4], kind)), steer("by", np.array([1, 2, 3, 4], kind))], ov.mod, kind.__name__)
        op("FloorMod", [steer("x", np.array([1, 2, 30, 4], kind)), steer("by", np.array([1, 2, 3, 4], kind))], ov.floor_mod, kind.__name__)
        op("Power", [steer("x", np.array([1, 2, 30, 4], kind)), steer("by", np.array([1, 2, 3, 4], kind))], ov.power, kind.__name__)
    for name, function in (("Add", ov.add), ("Subtract", ov.subtract), ("Multiply", ov.multiply), ("Maximum", ov.maximum)):
        op(name, [steer("x", i32(1, 2, 30, 4)), steer("by", i32(1, 2, 3, 4))], function)
    op("CumSum", [x24, steer("axis", np.int64(1))], ov.cum_sum)
    op("CumSum", [x24, steer("axis", np.int32(1))], ov.cum_sum, "int32")
    op("Split", [data("x", numbered(4, 8)), steer("axis", np.int64(1))], lambda a, b: ov.split(a, b, 2), moves=True)
    op("VariadicSplit", [data("x", numbered(4, 8)), steer("axis", np.int64(1)), steer("lengths", i64(3, 5))], ov.variadic_split, moves=True)
    op("CTCLoss", [data("x", numbered(2, 4, 3)), steer("lengths", i32(4, 3)), steer("labels", i32(0, 1, 1, 0, 0, 1, 1, 0).reshape(2, 4)), steer("label_lengths", i32(2, 1)), steer("blank", np.int32(2))], opset4.ctc_loss)
    op("CTCGreedyDecoder", [data("x", numbered(4, 2, 3)), steer("mask", np.ones((4, 2), np.float32))], opset1.ctc_greedy_decoder)
    op("CTCGreedyDecoderSeqLen", [data("x", numbered(2, 4, 3)), steer("lengths", i32(4, 3)), steer("blank", i32(2))], opset6.ctc_greedy_decoder_seq_len)
    op("Eye", [steer("rows", np.int32(3)), steer("columns", np.int32(4)), steer("diagonal", np.int32(0))], lambda a, b, c: opset9.eye(a, b, c, "f32"))
    op("Eye", [steer("rows", np.int64(3)), steer("columns", np.int64(4)), steer("diagonal", np.int64(0)), steer("batch", i64(2, 2))], lambda a, b, c, d: opset9.eye(a, b, c, "f32", d), "batch")
    op("RandomUniform", [steer("shape", i64(2, 3)), steer("least", f32(0)), steer("most", f32(1))], lambda a, b, c: ov.random_uniform(a, b, c, "f32", 7, 7))
    op("RandomUniform", [steer("shape", i64(2, 3)), steer("least", i32(0)), steer("most", i32(9))], lambda a, b, c: ov.random_uniform(a, b, c, "i32", 7, 7), "int32")
    op("Multinomial", [steer("x", f32(.1, .2, .3, .4).reshape(1, 4)), steer("count", i64(3))], lambda a, b: ov.multinomial(a, b, "i64", True, False, 7, 7))
    attributes = {"background_label_id": 0, "top_k": 2, "variance_encoded_in_target": True, "keep_top_k": [2], "code_type": "caffe.PriorBoxParameter.CORNER", "share_location": True, "nms_threshold": 0.5, "confidence_threshold": 0.1, "normalized": True, "num_classes": 2}
    op("DetectionOutput", [steer("boxes", np.zeros((1, 8), np.float32)), steer("classes", f32(.1, .9, .2, .8).reshape(1, 4)), steer("priors", f32(0, 0, 1, 1, .1, .1, .5, .5).reshape(1, 1, 8))], lambda a, b, c: opset1.detection_output(a, b, c, attributes))
    op("Transpose", [x24, steer("order", i64(1, 0, 2))], ov.transpose, moves=True)
    for name in ("reduce_sum", "reduce_max", "reduce_mean", "reduce_l2"):
        op("Reduce" + name[7:].capitalize(), [x24, steer("axes", i64(1))], lambda a, b, name=name: getattr(ov, name)(a, b, True))
    op("SpaceToBatch", [data("x", numbered(1, 2, 4, 4)), steer("block", i64(1, 1, 2, 2)), steer("begin", i64(0, 0, 0, 0)), steer("end", i64(0, 0, 0, 0))], ov.space_to_batch, moves=True)
    op("BatchToSpace", [data("x", numbered(4, 2, 2, 2)), steer("block", i64(1, 1, 2, 2)), steer("begin", i64(0, 0, 0, 0)), steer("end", i64(0, 0, 0, 0))], ov.batch_to_space, moves=True)
    op("Col2Im", [data("x", numbered(1, 4, 4)), steer("size", i64(4, 4)), steer("kernel", i64(2, 2))], lambda a, b, c: opset15.col2im(a, b, c, [2, 2]))
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            op("GridSample", [picture, steer("grid", np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 2, 2, 2))], lambda a, b, mode=mode, padding=padding: opset9.grid_sample(a, b, {"mode": mode, "padding_mode": padding, "align_corners": False}), f"{mode} {padding}", moves=mode == "nearest")
    op("STFT", [data("x", numbered(1, 16)), data("window", numbered(8)), steer("size", np.int64(8)), steer("step", np.int64(4))], lambda a, b, c, d: opset15.stft(a, b, c, d, True))
    op("ISTFT", [data("x", numbered(1, 5, 3, 2)), data("window", numbered(8)), steer("size", np.int64(8)), steer("step", np.int64(4)), steer("length", np.int64(16))], lambda a, b, c, d, e: ov.istft(a, b, c, d, False, False, e))
    op("AdaptiveAvgPool", [picture, steer("shape", i64(2, 2))], opset8.adaptive_avg_pool)
    op("AdaptiveMaxPool", [picture, steer("shape", i64(2, 2))], lambda a, b: opset8.adaptive_max_pool(a, b))
    for name in ("dft", "idft", "rdft", "irdft"):
        shape = (2, 8) if name == "rdft" else (2, 8, 2)
        op(name.upper(), [data("x", numbered(*shape)), steer("axes", i64(1)), steer("size", i64(8))], lambda a, b, c, name=name: getattr(opset9, name)(a, b, c))
    op("PriorBox", [steer("layer", i64(2, 2)), steer("image", i64(8, 8))], lambda a, b: opset8.prior_box(a, b, {"min_size": np.array([2.0], np.float32), "max_size": np.array([4.0], np.float32), "aspect_ratio": np.array([2.0], np.float32), "offset": 0.5, "variance": np.array([0.1], np.float32), "flip": False, "clip": False, "step": 0.0}))
    op("PriorBoxClustered", [steer("layer", i64(2, 2)), steer("image", i64(8, 8))], lambda a, b: opset1.prior_box_clustered(a, b, {"width": np.array([2.0], np.float32), "height": np.array([2.0], np.float32), "offset": 0.5, "variance": np.array([0.1], np.float32), "clip": False}))
    op("Proposal", [steer("scores", np.linspace(0, 1, 12, dtype=np.float32).reshape(1, 6, 1, 2)), steer("deltas", np.zeros((1, 12, 1, 2), np.float32)), steer("image", f32(8, 8, 1))], lambda a, b, c: opset4.proposal(a, b, c, {"base_size": np.uint32(4), "pre_nms_topn": np.uint32(4), "post_nms_topn": np.uint32(4), "nms_thresh": np.float32(0.5), "feat_stride": np.uint32(4), "min_size": np.uint32(1), "ratio": np.array([1], np.float32), "scale": np.array([1, 2, 4], np.float32)}))
    op("NonZero", [steer("x", i32(1, 0, 1))], lambda a: ov.non_zero(a))
    op("Unique", [steer("x", i32(3, 1, 2, 1))], lambda a: ov.unique(a))
    op("Convert", [steer("x", f32(1, 2, 3))], lambda a: ov.convert(a, "i32"))
    op("Convert", [steer("x", f32(1, 2, 3))], lambda a: ov.convert(a, "u8"), "u8")
    op("Select", [steer("c", boolean(1, 0, 1, 1, 0, 0, 1, 1)), x, data("z", numbered(8, first=2001))], ov.select, moves=True)
    for name, gates in (("rnn_sequence", 1), ("gru_sequence", 3), ("lstm_sequence", 4)):
        cells = [data("h", numbered(2, 1, 2))] + ([data("c", numbered(2, 1, 2))] if name.startswith("lstm") else [])
        op(name[:-9].upper() + "Sequence", [data("x", numbered(2, 3, 2)), *cells, steer("lengths", i32(3, 2)), data("w", numbered(1, gates * 2, 2)), data("r", numbered(1, gates * 2, 2)), data("b", numbered(1, gates * 2))], lambda *inputs, name=name: getattr(ov, name)(*inputs, 2, "forward"))
    op("ScaledDotProductAttention", [data("q", numbered(1, 2, 3, 4)), data("k", numbered(1, 2, 3, 4)), data("v", numbered(1, 2, 3, 4)), steer("mask", np.zeros((1, 1, 3, 3), np.float32))], lambda a, b, c, d: ov.scaled_dot_product_attention(a, b, c, d))
    op("MatMul", [steer("x", numbered(2, 3)), steer("z", numbered(3, 2))], lambda a, b: ov.matmul(a, b, False, False))
    op("Concat", [steer("x", numbered(2, 3)), steer("z", numbered(2, 3))], lambda a, b: ov.concat([a, b], 1))
    return made


def opset1_gather_nd(a, b):
    from openvino import opset5
    return opset5.gather_nd(a, b, 1)
