"""Python's urllib and the official tritonclient[http] over TLS, with a client certificate and without.

usage: tls_calls.py HOST:PORT CA CERTIFICATE KEY REQUEST      (the model wine_mlp is loaded; REQUEST is one to it)"""

import json
import ssl
import sys
import urllib.error
import urllib.request

import numpy as np
import tritonclient.http as triton

address, ca, certificate, key, request = sys.argv[1:]


def context(known=True):
    made = ssl.create_default_context(cafile=ca)
    if known:
        made.load_cert_chain(certificate, key)
    return made


def with_urllib():
    url = f"https://{address}/v2/models/wine_mlp/infer"
    with urllib.request.urlopen(urllib.request.Request(url, request.encode()), context=context()) as answer:
        assert json.load(answer)["model_name"] == "wine_mlp"
    try:
        urllib.request.urlopen(f"https://{address}/v2", context=context(known=False))
    except (urllib.error.URLError, OSError):
        return
    raise AssertionError("served without a client certificate")


def with_tritonclient():
    client = triton.InferenceServerClient(address, ssl=True, ssl_context_factory=context)
    assert client.is_model_ready("wine_mlp")
    for _ in range(3):
        tensor = triton.InferInput("features", [1, 13], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 13), np.float32))
        assert client.infer("wine_mlp", [tensor]).get_response()["model_name"] == "wine_mlp"
    client.close()


with_urllib()
with_tritonclient()
print("ok")
