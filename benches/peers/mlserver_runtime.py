"""A runtime for MLServer on ONNX Runtime, with the session options that Ledge uses.

MLServer finds it by `implementation` in model-settings.json, which peers.py writes; `uri` names the ONNX file.
"""
import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class OnnxModel(MLModel):
    async def load(self) -> bool:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.settings.parameters.extra["threads"]
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        uri = self.settings.parameters.uri
        self.session = onnxruntime.InferenceSession(uri, options, providers=["CPUExecutionProvider"])
        self.input = self.session.get_inputs()[0].name
        self.output = self.session.get_outputs()[0].name
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        tensor = NumpyCodec.decode_input(payload.inputs[0])
        result = self.session.run([self.output], {self.input: tensor})[0]
        output = NumpyCodec.encode_output(self.output, result)
        return InferenceResponse(model_name=self.name, outputs=[output])
