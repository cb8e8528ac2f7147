#!/usr/bin/env python3
"""Compares vectors of sentences from a running Ledge with ONNX Runtime alone, in turns, on the same sentences.

usage: sentences.py URL PID [ROUNDS]

URL is Ledge's, PID its process, whose CPU time is counted. Needs the packages onnxruntime, tokenizers and numpy. The sentences are those of docs/: of
all lengths, in their own order. ONNX Runtime gets them as a careful script would give them: 32 at a time, each batch padded to its longest; once in
the order of their lengths, once in their own. It has one thread, so start Ledge with runtimes.threads = 1.
"""
import json
import re
import statistics
import sys
import time
import urllib.request
from pathlib import Path

import numpy
import onnxruntime
from tokenizers import Tokenizer

CHECKOUT = Path(__file__).resolve().parents[1]
MODEL = CHECKOUT / ".ledge/models/all_minilm_l6_v2"
COUNT, BATCH, TOKENS_MAX, TICKS_PER_S = 1000, 32, 256, 100


def sentences():
    text = " ".join(path.read_text() for path in sorted((CHECKOUT / "docs").rglob("*.md")))
    found = [" ".join(sentence.split()) for sentence in re.split(r"(?<=[.:?])\s|\n\n|\|", text)]
    return [sentence for sentence in found if 3 <= len(sentence.split()) <= 60][:COUNT]


def alone(session, tokenizer, texts, by_length):
    tokens = tokenizer.encode_batch(texts)
    order = sorted(range(len(texts)), key=lambda at: len(tokens[at].ids)) if by_length else range(len(texts))
    vectors, order = [None] * len(texts), list(order)
    for start in range(0, len(order), BATCH):
        rows = order[start:start + BATCH]
        longest = max(len(tokens[row].ids) for row in rows)
        ids, mask = numpy.zeros((2, len(rows), longest), numpy.int64)
        for at, row in enumerate(rows):
            length = len(tokens[row].ids)
            ids[at, :length], mask[at, :length] = tokens[row].ids, 1
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": numpy.zeros_like(ids)}
        states = session.run(None, {port.name: given[port.name] for port in session.get_inputs()})[0]
        weights = mask[:, :, None].astype(numpy.float32)
        means = (states * weights).sum(1) / weights.sum(1)
        for row, vector in zip(rows, means / numpy.linalg.norm(means, axis=1, keepdims=True)):
            vectors[row] = vector
    return numpy.array(vectors)


def ledge(url, texts):
    body = json.dumps({"model": MODEL.name, "input": texts}).encode()
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/embeddings", body, headers)) as answer:
        return numpy.array([row["embedding"] for row in json.load(answer)["data"]], numpy.float32)


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def main(url, pid, rounds=5):
    texts = sentences()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(MODEL / "1/model.onnx", options, ["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    tokenizer.enable_truncation(TOKENS_MAX)
    tokenizer.no_padding()
    lengths = [len(encoding.ids) for encoding in tokenizer.encode_batch(texts)]
    contenders = {
        "Ledge": (lambda: ledge(url, texts), lambda: cpu_s(pid)),
        "ONNX Runtime, by length": (lambda: alone(session, tokenizer, texts, True), time.process_time),
        "ONNX Runtime, as given": (lambda: alone(session, tokenizer, texts, False), time.process_time),
    }
    vectors, times = {}, {name: [] for name in contenders}
    for counted in range(-1, int(rounds)):
        for name, (run, cpu) in contenders.items():
            started, before = time.monotonic(), cpu()
            vectors[name] = run()
            if counted >= 0:
                times[name].append((time.monotonic() - started, cpu() - before))
    print(f"{len(texts)} sentences of {min(lengths)} to {max(lengths)} tokens, {statistics.mean(lengths):.0f} in the mean; onnxruntime {onnxruntime.__version__}")
    for name, taken in times.items():
        wall, cpu = (statistics.median(values) for values in zip(*taken))
        cosine = (vectors[name] * vectors["ONNX Runtime, as given"]).sum(1).min()
        print(f"{name:<26} {len(texts) / wall:5.0f} sentences/s  {cpu / len(texts) * 1e3:5.2f} ms CPU each  least cosine to ONNX Runtime as given {cosine:.4f}")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
