"""KServe's client for HTTP, unmodified.

usage: kserve_http_calls.py URL      (the model add_sub is loaded)
"""
import asyncio
import sys

from kserve import InferenceRESTClient, RESTConfig

from kserve_requests import check, requests


async def main(url):
    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=60))
    assert await client.is_server_live(url) and await client.is_server_ready(url)
    assert await client.is_model_ready(url, "add_sub") and not await client.is_model_ready(url, "nope")
    for request in requests():
        check(await client.infer(url, request, model_name="add_sub"))
    await client.close()
    print("ok")


asyncio.run(main(*sys.argv[1:]))
