"""Triton's client for gRPC, unmodified: calls, streams and the asyncio client, with a key, over plain TCP or TLS.

usage: triton_grpc_calls.py HOST:PORT KEY [CA]      (the models add_sub, identity_string and wine_mlp are loaded)
"""
import asyncio
import queue
import sys

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

VALUES = [np.arange(32, dtype=np.float32).reshape(2, 16), np.ones((2, 16), np.float32)]


def inputs(module=triton):
    made = [module.InferInput(name, value.shape, "FP32") for name, value in zip(["INPUT0", "INPUT1"], VALUES)]
    for tensor, value in zip(made, VALUES):
        tensor.set_data_from_numpy(value)
    return made


def check(answer):
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), VALUES[0] + VALUES[1])
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT1"), VALUES[0] - VALUES[1])


def refused(call, status, words=""):
    try:
        call()
    except InferenceServerException as error:
        assert error.status() == f"StatusCode.{status}" and words in error.message(), error
    else:
        raise AssertionError(f"expected {status}")


def calls(client, key):
    headers = {"authorization": f"Bearer {key}"}
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("add_sub", headers=headers) and not client.is_model_ready("nope", headers=headers)
    refused(lambda: client.infer("add_sub", inputs()), "UNAUTHENTICATED", "API key")
    refused(lambda: client.infer("add_sub", inputs(), headers={"authorization": "Bearer no"}), "UNAUTHENTICATED")

    assert client.get_server_metadata(headers=headers).name == "ledge"
    metadata = client.get_model_metadata("add_sub", headers=headers)
    assert [(i.name, i.datatype, list(i.shape)) for i in metadata.inputs] == [("INPUT0", "FP32", [-1, 16]), ("INPUT1", "FP32", [-1, 16])]
    config = client.get_model_config("add_sub", headers=headers).config
    assert config.max_batch_size == 64 and config.input[0].dims == [16] and config.input[0].data_type == 11

    answer = client.infer("add_sub", inputs(), request_id="7", headers=headers)
    check(answer)
    assert answer.get_response().id == "7"
    for compression in ("gzip", "deflate"):
        check(client.infer("add_sub", inputs(), compression_algorithm=compression, headers=headers))
    tensor = triton.InferInput("IN", [1, 3], "BYTES")
    tensor.set_data_from_numpy(np.array([["é", "", "two words"]], dtype=object))
    strings = client.infer("identity_string", [tensor], headers=headers).as_numpy("OUT")
    assert [text.decode() for text in strings.flatten()] == ["é", "", "two words"]
    tensor = triton.InferInput("features", [1, 13], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 13), np.float32))
    wanted = triton.InferRequestedOutput("probabilities", class_count=2)
    assert client.infer("wine_mlp", [tensor], outputs=[wanted], headers=headers).as_numpy("probabilities").shape == (1, 2)

    refused(lambda: client.infer("nope", inputs(), headers=headers), "NOT_FOUND", "unknown model")
    refused(lambda: client.infer("add_sub", inputs()[:1], headers=headers), "INVALID_ARGUMENT", "INPUT1")
    refused(lambda: client.infer("add_sub", inputs(), timeout=1, headers=headers), "DEADLINE_EXCEEDED")
    refused(lambda: client.infer("add_sub", inputs(), sequence_id=5, headers=headers), "INVALID_ARGUMENT", "sequence_id")
    refused(lambda: client.get_system_shared_memory_status(headers=headers), "UNIMPLEMENTED", "shared memory")
    refused(lambda: client.get_trace_settings(headers=headers), "UNIMPLEMENTED")

    done = queue.Queue()
    for _ in range(100):
        client.async_infer("add_sub", inputs(), lambda result, error: done.put((result, error)), headers=headers)
    for _ in range(100):
        result, error = done.get(timeout=60)
        assert error is None, error
        check(result)

    client.start_stream(lambda result, error: done.put((result, error)), headers=headers)
    for number in range(50):
        client.async_stream_infer("nope" if number == 7 else "add_sub", inputs(), request_id=str(number))
    for number in range(50):
        result, error = done.get(timeout=60)
        if number == 7:
            assert result is None and "unknown model" in error.message()
        else:
            assert result.get_response().id == str(number)
            check(result)
    client.stop_stream()
    statistics = client.get_inference_statistics("add_sub", headers=headers).model_stats[0]
    assert statistics.inference_stats.success.count >= 150 and statistics.inference_count >= 300

    assert {model.name for model in client.get_model_repository_index(headers=headers).models} >= {"add_sub", "wine_mlp"}
    client.unload_model("add_sub", headers=headers)
    assert not client.is_model_ready("add_sub", headers=headers)
    client.load_model("add_sub", headers=headers)
    check(client.infer("add_sub", inputs(), headers=headers))
    refused(lambda: client.load_model("add_sub", config="{}", headers=headers), "INVALID_ARGUMENT", "config")


async def asynchronous(address, key, secure):
    headers = {"authorization": f"Bearer {key}"}
    async with triton_aio.InferenceServerClient(address, **secure) as client:
        assert await client.is_server_ready()
        answers = await asyncio.gather(*(client.infer("add_sub", inputs(triton_aio), headers=headers) for _ in range(100)))
        for answer in answers:
            check(answer)

        async def requests():
            for number in range(20):
                yield {"model_name": "add_sub", "inputs": inputs(triton_aio), "request_id": str(number)}

        number = 0
        async for answer, error in client.stream_infer(requests(), headers=headers):
            assert error is None and answer.get_response().id == str(number), error
            check(answer)
            number += 1
        assert number == 20


def main(address, key, authority=None):
    secure = {"ssl": True, "root_certificates": authority} if authority else {}
    client = triton.InferenceServerClient(address, **secure)
    calls(client, key)
    client.close()
    asyncio.run(asynchronous(address, key, secure))
    print("ok")


main(*sys.argv[1:])
