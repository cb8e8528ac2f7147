"""Triton's Python backend on ONNX Runtime: the body of every model that peers.py gives to Triton.

The same session options as Ledge's own: one intra-op thread, no spinning. The model config's parameters name the file.
"""
import json

import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(config["parameters"]["threads"]["string_value"])
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        path = config["parameters"]["onnx"]["string_value"]
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.input = self.session.get_inputs()[0].name
        self.output = self.session.get_outputs()[0].name

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, self.input).as_numpy()
        result = self.session.run([self.output], {self.input: tensor})[0]
        return pb_utils.InferenceResponse([pb_utils.Tensor(self.output, result)])
