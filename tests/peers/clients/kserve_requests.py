"""The requests of both scripts with KServe's clients, for the model add_sub, and the check of their answers."""
import numpy as np
from kserve import InferInput, InferRequest

VALUES = [np.arange(16, dtype=np.float32).reshape(1, 16), np.ones((1, 16), np.float32)]


def requests():
    """A request with its numbers as bytes, and one with numbers as text."""
    for binary in (True, False):
        inputs = []
        for name, value in zip(["INPUT0", "INPUT1"], VALUES):
            tensor = InferInput(name=name, shape=list(value.shape), datatype="FP32")
            tensor.set_data_from_numpy(value, binary_data=binary)
            inputs.append(tensor)
        yield InferRequest(model_name="add_sub", request_id="7", infer_inputs=inputs)


def check(answer):
    assert answer.model_name == "add_sub" and answer.id == "7", answer
    found = {output.name: output.as_numpy() for output in answer.outputs}
    np.testing.assert_array_equal(found["OUTPUT0"], VALUES[0] + VALUES[1])
    np.testing.assert_array_equal(found["OUTPUT1"], VALUES[0] - VALUES[1])
