"""A mosec server on ONNX Runtime, with the session options that Ledge uses; one worker, one model, its own formats.

mosec knows no Open Inference Protocol: a call is JSON, {"data": [[...]]}, or, with BENCH_FORMAT=raw, the tensor's bytes,
which is the least that it can be asked to decode. BENCH_ONNX, BENCH_SHAPE and BENCH_THREADS say what to serve.
"""
import os

import numpy
import onnxruntime
from mosec import Server, Worker

SHAPE = [int(part) for part in os.environ["BENCH_SHAPE"].split(",")]


class Model(Worker):
    def __init__(self):
        super().__init__()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ["BENCH_THREADS"])
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(
            os.environ["BENCH_ONNX"], options, providers=["CPUExecutionProvider"])
        self.input = self.session.get_inputs()[0].name
        self.output = self.session.get_outputs()[0].name

    def run(self, tensor):
        return self.session.run([self.output], {self.input: tensor})[0]


class JsonModel(Model):
    def forward(self, data):
        tensor = numpy.array(data["data"], dtype=numpy.float32).reshape(SHAPE)
        return {"data": self.run(tensor).tolist()}


class RawModel(Model):
    def deserialize(self, data):
        return numpy.frombuffer(data, dtype=numpy.float32).reshape(SHAPE)

    def serialize(self, data):
        return data.tobytes()

    def forward(self, data):
        return self.run(data)


if __name__ == "__main__":
    server = Server()
    server.append_worker(RawModel if os.environ["BENCH_FORMAT"] == "raw" else JsonModel)
    server.run()
