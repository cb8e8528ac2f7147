"""KServe's client for HTTP, unmodified.

usage: kserve_http_calls.py URL      (the model add_sub is loaded)
"""
import asyncio
import sys

import numpy as np
from kserve import InferInput, InferRequest, InferenceRESTClient, RESTConfig


async def main(url):
    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=60))
    assert await client.is_server_live(url) and await client.is_server_ready(url)
    assert await client.is_model_ready(url, "add_sub") and not await client.is_model_ready(url, "nope")
    values = [np.arange(16, dtype=np.float32).reshape(1, 16), np.ones((1, 16), np.float32)]
    for binary in (True, False):
        inputs = []
        for name, value in zip(["INPUT0", "INPUT1"], values):
            tensor = InferInput(name=name, shape=list(value.shape), datatype="FP32")
            tensor.set_data_from_numpy(value, binary_data=binary)
            inputs.append(tensor)
        answer = await client.infer(url, InferRequest(model_name="add_sub", request_id="7", infer_inputs=inputs), model_name="add_sub")
        assert answer.model_name == "add_sub" and answer.id == "7", answer
        found = {output.name: output.as_numpy() for output in answer.outputs}
        np.testing.assert_array_equal(found["OUTPUT0"], values[0] + values[1])
        np.testing.assert_array_equal(found["OUTPUT1"], values[0] - values[1])
    await client.close()
    print("ok")


asyncio.run(main(*sys.argv[1:]))
