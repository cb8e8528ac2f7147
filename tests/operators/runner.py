"""`runner.rs` for the runtimes without Ledge: the same orders and answers, one JSON a line.

ONNX Runtime has no arena here, so that `redzones.c` sees each allocation. OpenVINO is set as Ledge sets it.
"""
import json
import os
import sys
import zlib

import numpy as np

from cases import DATATYPES

SHOWN_BYTES_MAX = 4096
HASHED_BYTES_MAX = 1 << 26
SETTINGS = {"NUM_STREAMS": 0, "INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False, "INFERENCE_PRECISION_HINT": "f32"}
DTYPES = {name: dtype for dtype, name in DATATYPES.items()}


class OnnxRuntime:
    def __init__(self, path):
        import onnxruntime
        options = onnxruntime.SessionOptions()
        options.enable_cpu_mem_arena = False
        options.enable_mem_pattern = False
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(self, inputs):
        return self.session.run(None, inputs)


class OpenVino:
    def __init__(self, path):
        import openvino
        self.openvino = openvino
        self.core = openvino.Core()
        self.model = self.core.read_model(path)
        for port in self.model.outputs:
            # As in the interface that Ledge uses.
            if port.get_partial_shape().rank.is_dynamic:
                raise ValueError("an output has no fixed number of dimensions")
        self.names = {port.get_any_name(): number for number, port in enumerate(self.model.inputs)}
        self.compile()

    def compile(self):
        self.compiled = self.core.compile_model(self.model, "CPU", SETTINGS)
        self.request = None

    def run(self, inputs):
        # Ledge compiles a model again after a failed run, which takes 30 ms. `run.py` does for a run that went wrong.
        if self.request is None:
            self.request = self.compiled.create_infer_request()
        request, self.request = self.request, None
        for name, value in inputs.items():
            request.set_input_tensor(self.names[name], self.openvino.Tensor(value))
        request.start_async()
        request.wait()
        outputs = [np.array(request.get_output_tensor(number).data) for number in range(len(self.model.outputs))]
        self.request = request
        return outputs


def shown(value):
    content = np.ascontiguousarray(value).tobytes() if value.nbytes <= HASHED_BYTES_MAX else b""
    return {
        "datatype": DATATYPES[str(value.dtype)], "shape": list(value.shape), "hash": f"{zlib.crc32(content):08x}",
        "data": content[:SHOWN_BYTES_MAX].hex()}


def answer(order, loaded):
    """The answer to an order, and the model that is loaded afterwards."""
    if "file" in order:
        made = (OpenVino if order["runtime"] == "openvino" else OnnxRuntime)(order["file"])
        return {}, made
    if "end" in order:
        return {}, None
    feeds = {}
    for made in order["inputs"]:
        array = np.frombuffer(bytes.fromhex(made["data"]), DTYPES[made["datatype"]]).reshape(made["shape"])
        feeds[made["name"]] = array.copy()
    return {"outputs": [shown(value) for value in loaded.run(feeds)]}, loaded


def missing_folder(name):
    """Tells `redzones.c` something, by the removal of a folder that is not there."""
    try:
        os.rmdir(f"/{name}")
    except OSError:
        pass


def serve():
    loaded = None
    for line in sys.stdin:
        order = json.loads(line)
        missing_folder("wide-redzones" if "inputs" in order else "narrow-redzones")
        try:
            if "inputs" not in order:
                loaded = None
            made, loaded = answer(order, loaded)
        except Exception as error:
            made = {"error": " ".join(str(error).split())[-300:]}
        missing_folder("check-redzones" if "inputs" in order else "check-all-redzones")
        print(json.dumps(made), flush=True)


def main():
    """Loads the runtime once, and has a child run the models, which is forked again when it has died."""
    if sys.argv[1] == "openvino":
        import openvino
        from openvino import opset13 as ov
        parameter = ov.parameter([-1], np.float32)
        openvino.Core().compile_model(openvino.Model([ov.relu(parameter)], [parameter]), "CPU", SETTINGS)
    else:
        import onnxruntime  # noqa: F401
    while True:
        child = os.fork()
        if child == 0:
            serve()
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            return
        print(json.dumps({"died": status}), flush=True)


main()
