"""The official tritonclient[http] against a running daemon: JSON and binary, and every management call.

usage: triton_http.py HOST:PORT      (the models add_sub, identity_string and wine_mlp are loaded)"""

import sys

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException


def infer(client, binary, **options):
    values = [np.arange(32, dtype=np.float32).reshape(2, 16), np.ones((2, 16), np.float32)]
    inputs = [triton.InferInput(name, value.shape, "FP32") for name, value in zip(["INPUT0", "INPUT1"], values)]
    for tensor, value in zip(inputs, values):
        tensor.set_data_from_numpy(value, binary_data=binary)
    outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in ["OUTPUT1", "OUTPUT0"]]
    answer = client.infer("add_sub", inputs, outputs=outputs, request_id="7", **options)
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), values[0] + values[1])
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT1"), values[0] - values[1])
    assert answer.get_response()["id"] == "7"


def strings(client, binary):
    value = np.array([["é", "", "two words"]], dtype=object)
    tensor = triton.InferInput("IN", value.shape, "BYTES")
    tensor.set_data_from_numpy(value, binary_data=binary)
    answer = client.infer("identity_string", [tensor], outputs=[triton.InferRequestedOutput("OUT", binary_data=binary)])
    got = [x.decode() if isinstance(x, bytes) else x for x in answer.as_numpy("OUT").flatten()]
    assert got == ["é", "", "two words"], got


def classes(client):
    metadata = client.get_model_metadata("wine_mlp")
    tensor = triton.InferInput("features", [1, 13], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 13), np.float32))
    output = triton.InferRequestedOutput(metadata["outputs"][0]["name"], class_count=2)
    answer = client.infer("wine_mlp", [tensor], outputs=[output]).as_numpy(metadata["outputs"][0]["name"])
    assert answer.shape == (1, 2) and len(answer[0][0].decode().split(":")) == 3, answer


def refused(call, words):
    try:
        call()
    except InferenceServerException as error:
        assert words in error.message(), error
    else:
        raise AssertionError(f"expected an error with {words!r}")


def main(address):
    client = triton.InferenceServerClient(address, concurrency=4)
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("add_sub")
    server = client.get_server_metadata()
    assert server["name"] == "ledge" and "binary_tensor_data" in server["extensions"], server

    for binary in [True, False]:
        infer(client, binary)
        strings(client, binary)
    infer(client, True, model_version="1", timeout=10_000_000)
    infer(client, True, request_compression_algorithm="gzip", response_compression_algorithm="gzip")
    infer(client, True, request_compression_algorithm="deflate", response_compression_algorithm="deflate")
    classes(client)

    calls = [client.async_infer("identity_string", [bytes_input(str(n))]) for n in range(20)]
    assert [call.get_result().as_numpy("OUT")[0][0].decode() for call in calls] == [str(n) for n in range(20)]

    metadata = client.get_model_metadata("add_sub", model_version="1")
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["INPUT0", "INPUT1"], metadata
    config = client.get_model_config("add_sub")
    assert config["max_batch_size"] > 0 and config["input"][0]["data_type"] == "TYPE_FP32", config
    statistics = client.get_inference_statistics("add_sub")["model_stats"][0]
    assert statistics["inference_stats"]["success"]["count"] >= 5, statistics
    assert len(client.get_inference_statistics()["model_stats"]) == 3

    assert {row["name"]: row["state"] for row in client.get_model_repository_index()}["add_sub"] == "READY"
    client.unload_model("add_sub")
    assert not client.is_model_ready("add_sub")
    refused(lambda: infer(client, True), "add_sub")
    client.load_model("add_sub")
    infer(client, True)
    refused(lambda: client.load_model("nope"), "failed to load 'nope'")
    refused(lambda: client.get_model_metadata("nope"), "unknown model")
    refused(lambda: client.load_model("add_sub", config="{}"), "config")
    client.close()
    print("ok")


def bytes_input(text):
    tensor = triton.InferInput("IN", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text]], dtype=object))
    return tensor


main(sys.argv[1])
