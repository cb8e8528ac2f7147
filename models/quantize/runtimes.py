"""ONNX Runtime and OpenVINO, set up as the daemon sets them up (`src/engine/`), and how long they take."""
import statistics
import time

import numpy as np
import onnxruntime
import openvino
from graph import first_line

# A setting is timed for at most this long, but never in fewer rounds than the least.
SECONDS, LEAST_ROUNDS, WARM_UP = 10, 5, 3


class OnnxRuntime:
    name, version = "ONNX Runtime", onnxruntime.__version__

    def __init__(self, path, threads):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.outputs = [output.name for output in self.session.get_outputs()]

    def run(self, feed):
        """{output name: array}"""
        return dict(zip(self.outputs, self.session.run(None, feed)))


class OpenVino:
    name, version = "OpenVINO", openvino.get_version().split("-")[0]
    core = None

    def __init__(self, path, threads):
        OpenVino.core = OpenVino.core or openvino.Core()
        # f32: left to itself OpenVINO computes float models in bfloat16 on processors that can.
        self.model = self.core.compile_model(str(path), "CPU", {
            "NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": str(threads), "ENABLE_CPU_PINNING": "NO",
            "INFERENCE_PRECISION_HINT": "f32"})
        self.request = self.model.create_infer_request()
        self.names = [port.get_any_name() for port in self.model.outputs]

    def run(self, feed):
        answers = self.request.infer(feed)
        return {name: np.array(answers[index]) for index, name in enumerate(self.names)}


RUNTIMES = (OnnxRuntime, OpenVino)


def load(runtime, path, threads):
    """(the loaded model, None), or (None, why the runtime refuses it)."""
    try:
        return runtime(path, threads), None
    except Exception as error:  # each library has its own kinds
        return None, first_line(error)


def latencies(float_path, int8_path, feed, threads_of, rounds):
    """A row for each runtime and number of threads: int8 against float, timed in turn in the same seconds."""
    return [
        {"runtime": runtime.name, "threads": threads, **compare(runtime, float_path, int8_path, feed, threads, rounds)}
        for runtime in RUNTIMES for threads in threads_of]


def compare(runtime, float_path, int8_path, feed, threads, rounds):
    pair = []
    for path in (float_path, int8_path):
        model, refusal = load(runtime, path, threads)
        if refusal:
            return {"refused": refusal}
        pair.append(model)
    for model in pair * WARM_UP:
        model.run(feed)
    times, ends = ([], []), time.perf_counter() + SECONDS
    for number in range(rounds):
        # Who goes first alternates, so that neither always finds the other's data in the caches.
        for which in ((0, 1), (1, 0))[number % 2]:
            started = time.perf_counter()
            pair[which].run(feed)
            times[which].append(1000 * (time.perf_counter() - started))
        if number + 1 >= LEAST_ROUNDS and time.perf_counter() > ends:
            break
    ratios = [before / after for before, after in zip(*times)]
    return {"speedup": spread(ratios), "float_ms": spread(times[0]), "int8_ms": spread(times[1]), "rounds": len(ratios)}


def spread(values):
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return {"median": round(middle, 4), "low": round(low, 4), "high": round(high, 4)}
