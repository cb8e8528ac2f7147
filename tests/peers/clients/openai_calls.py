"""OpenAI's client, unmodified, against /v1/embeddings and /v1/models.

usage: openai_calls.py PORT KEY GOLDEN      (the folder golden of all_minilm_l6_v2)
"""
import base64
import json
import struct
import sys
import time
from pathlib import Path

import openai

MODEL = "all_minilm_l6_v2"
LIMIT = 1e-3


def main(port, key, golden):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0)
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL

    texts = sorted(Path(golden).glob("*.txt"))
    expected = [json.loads(path.with_suffix(".json").read_text())["outputs"] for path in texts]
    answer = client.embeddings.create(model=MODEL, input=[path.read_text() for path in texts], user="someone")
    for row, (vector, tokens) in zip(answer.data, expected):
        difference = max(abs(a - b) for a, b in zip(row.embedding, vector["data"]))
        assert len(row.embedding) == 384 and difference < LIMIT, difference
    assert answer.usage.prompt_tokens == sum(tokens["data"][0] for _, tokens in expected)

    one = client.embeddings.create(model=MODEL, input=texts[0].read_text(), encoding_format="float", dimensions=384)
    encoded = client.embeddings.create(model=MODEL, input=texts[0].read_text(), encoding_format="base64").data[0].embedding
    assert list(struct.unpack("<384f", base64.b64decode(encoded))) == [struct.unpack("<f", struct.pack("<f", v))[0] for v in one.data[0].embedding]

    sentences = [f"Order {number} of {number % 7 + 1} boxes left the warehouse in the {('morning', 'evening')[number % 2]}." for number in range(1000)]
    start = time.monotonic()
    many = client.embeddings.create(model=MODEL, input=sentences)
    seconds = time.monotonic() - start
    print(f"1000 sentences, {many.usage.total_tokens} tokens: {seconds:.2f} s")
    alone = client.embeddings.create(model=MODEL, input=sentences[617]).data[0].embedding
    assert [row.index for row in many.data] == list(range(1000))
    assert max(abs(a - b) for a, b in zip(alone, many.data[617].embedding)) < LIMIT

    long = client.embeddings.create(model=MODEL, input="word " * 1000)
    assert long.usage.total_tokens == 256 and long.data[0].truncated is True

    for kind, words, call in [
        (openai.BadRequestError, "check_embedding_ctx_length=False", dict(model=MODEL, input=[[1, 2, 3]])),
        (openai.BadRequestError, "384 numbers", dict(model=MODEL, input="a", dimensions=128)),
        (openai.NotFoundError, "unknown", dict(model="unknown", input="a")),
        (openai.APIStatusError, "divide it into parts", dict(model=MODEL, input="a" * (10 << 20))),
    ]:
        try:
            client.embeddings.create(**call)
        except kind as error:
            assert words in error.body["message"] and error.type == "invalid_request_error", error
        else:
            raise AssertionError(f"{call['model']} was answered")
    try:
        openai.OpenAI(base_url=client.base_url, api_key="sk-wrong", max_retries=0).models.list()
    except openai.AuthenticationError as error:
        assert error.code == "invalid_api_key", error
    else:
        raise AssertionError("an invalid key was accepted")


if __name__ == "__main__":
    main(*sys.argv[1:])
