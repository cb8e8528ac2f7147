"""KServe's client for gRPC, unmodified.

usage: kserve_grpc_calls.py HOST:PORT      (the model add_sub is loaded)
"""
import asyncio
import sys

from kserve.inference_client import InferenceGRPCClient

from kserve_requests import check, requests


async def main(address):
    client = InferenceGRPCClient(address)
    assert await client.is_server_live() and await client.is_server_ready()
    assert await client.is_model_ready("add_sub")
    for request in requests():
        check(await client.infer(request))
    await client.close()
    print("ok")


asyncio.run(main(*sys.argv[1:]))
