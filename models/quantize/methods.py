"""The ways to make a model int8: onnxruntime.quantization, static or dynamic, and NNCF. Each is a candidate."""
import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass

import graph
import numpy as np
import onnx
import overflow
import rewrites
from onnx import numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_dynamic, quantize_static)

CALIBRATIONS = {
    "minmax": CalibrationMethod.MinMax, "entropy": CalibrationMethod.Entropy, "percentile": CalibrationMethod.Percentile}
# The outputs of all layers are kept for this many samples at a time, so memory does not grow with the samples.
STRIDE = 8


@dataclass(frozen=True)
class Candidate:
    """MAKE(source, target, feeds) writes the int8 model of the prepared float model SOURCE to TARGET."""
    name: str
    make: Callable


def candidates(options, model):
    """What --method asks for, in order."""
    def static(calibration):
        return Candidate(f"static, {calibration}", lambda *paths: make_static(options, calibration, *paths))

    dynamic = Candidate("dynamic", lambda *paths: make_dynamic(options, *paths))
    nncf = Candidate("nncf", lambda *paths: make_nncf(options, *paths))
    if options.method == "static":
        return [static(options.calibration or "minmax")]
    if options.method == "dynamic":
        return [dynamic]
    if options.method == "nncf":
        return [nncf]
    calibrations = [options.calibration] if options.calibration else ["minmax", "percentile"]
    # Dynamic quantization of convolutions is slow in ONNX Runtime and unknown to OpenVINO.
    return [*map(static, calibrations), nncf, *([] if has_convolutions(model) else [dynamic])]


def has_convolutions(model):
    return any(node.op_type in ("Conv", "ConvTranspose") for node in model.graph.node)


class Reader(CalibrationDataReader):
    """Feeds, a range of them at a time."""

    def __init__(self, feeds):
        self.feeds = feeds
        self.set_range(0, len(feeds))

    def __len__(self):
        return len(self.feeds)

    def set_range(self, start_index, end_index):
        self.rest = iter(self.feeds[start_index:end_index])

    def get_next(self):
        return next(self.rest, None)


def make_static(options, calibration, source, target, feeds):
    """QDQ, not QOperator: OpenVINO refuses QLinearConv. Weights are int8, symmetric, with a scale for each channel."""
    stride = min(STRIDE, len(feeds))
    feeds = feeds[:len(feeds) // stride * stride]  # quantize_static wants a multiple
    symmetric = options.activations == "int8"
    with graph.quiet(), contextlib.redirect_stdout(io.StringIO()):
        quantize_static(
            str(source), str(target), Reader(feeds), quant_format=QuantFormat.QDQ, per_channel=True,
            weight_type=QuantType.QInt8,
            activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
            calibrate_method=CALIBRATIONS[calibration], nodes_to_exclude=nodes_to_keep(options, onnx.load(source)),
            extra_options={"ActivationSymmetric": symmetric, "WeightSymmetric": True, "CalibStridedMinMax": stride})
    save(options, source, rewrites.keep_outputs_float(onnx.load(target)), target)


def make_dynamic(options, source, target, _feeds):
    """Ranges of activations are found anew in each run; only weights are int8 beforehand."""
    kept = nodes_to_keep(options, onnx.load(source))
    # quantize_dynamic first turns a Gemm into a MatMul and an Add, and looks for the names afterwards.
    kept += [f"{name}_MatMul" for name in kept]
    with graph.quiet():
        quantize_dynamic(
            str(source), str(target), per_channel=True, weight_type=QuantType.QInt8, nodes_to_exclude=kept)
    save(options, source, onnx.load(target), target)


def make_nncf(options, source, target, feeds):
    """NNCF chooses ranges and corrects the biases of what rounding did to the layers before."""
    import logging
    import nncf  # its packages are there only when the method asks for them
    from nncf.quantization.advanced_parameters import QuantizationParameters

    nncf.set_log_level(logging.ERROR)
    model = onnx.load(source)
    name_nodes(model)
    kept = nodes_to_keep(options, model)
    with graph.quiet(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        quantized = nncf.quantize(
            model, nncf.Dataset(feeds), subset_size=len(feeds), preset=nncf.QuantizationPreset.MIXED,
            model_type=None if has_convolutions(model) else nncf.ModelType.TRANSFORMER,
            ignored_scope=nncf.IgnoredScope(names=kept) if kept else None,
            # NNCF would give activations before a depthwise convolution a scale for each channel, which OpenVINO computes
            # well and ONNX Runtime only in float.
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                # `overflow.fit` does what NNCF's own way does, and takes fewer bits.
                overflow_fix=nncf.OverflowFix.DISABLE, activations_quantization_params=QuantizationParameters(per_channel=False)))
    if options.activations == "uint8":
        quantized = rewrites.unsigned_activations(quantized)
    quantized = rewrites.integer_biases(quantized)
    save(options, source, rewrites.keep_outputs_float(quantized), target)


def name_nodes(model):
    """Gives nodes without a name one: options and NNCF speak of nodes by name."""
    for index, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{index}"


def nodes_to_keep(options, model):
    """The names of the nodes that stay float: those of --keep-float, and arithmetic on the raw inputs."""
    words = options.keep_float
    return graph.preamble(model) + [node.name for node in model.graph.node if node.name in words or node.op_type in words]


def save(options, source, model, target):
    """The same model gives the same bytes; what the file says of its origin is Ledge's quantizer and nothing of the machine."""
    if not options.full_range:
        constants = map(numpy_helper.to_array, onnx.load(source).graph.initializer)
        overflow.fit(model, [data for data in constants if data.dtype == np.float32])
        rewrites.drop_unused_constants(model.graph)
        if overflow.largest_pair(model) > overflow.LARGEST_PAIR:
            raise ValueError("its weights would overflow on processors without VNNI (--full-range makes it all the same)")
    model.producer_name, model.producer_version, model.doc_string = "ledge models/quantize", "", ""
    onnx.checker.check_model(model)
    target.write_bytes(model.SerializeToString(deterministic=True))
