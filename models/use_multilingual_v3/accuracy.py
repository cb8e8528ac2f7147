#!/usr/bin/env python3
"""Prints how well the vectors of models sort sentences of ten languages, and the CPU time of 512 texts.

usage: accuracy.py MODEL_FOLDER...      e.g.  accuracy.py .ledge/models/use_multilingual_v3 .ledge/models/all_minilm_l6_v2

It needs packages that `make setup` does not install; in an environment of its own:
    pip install onnxruntime==1.31.1 openvino==2026.4.1 tokenizers==0.23.3

sentences.json was written for this measurement before the model was first run on it. No choice was made by its results.
`intents`: a sentence has the intent of the nearest centroid, each of 8 English sentences. `translations`: the place of the English
original among all English sentences of the file, by nearness to a translation; 20 sentences are free, 96 are made from 8 templates
and 12 cities.
"""
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
import openvino
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
ROUNDS, BATCH = 5, 32
TEXTS = 512


class Model:
    """A model in both runtimes, each with one thread."""

    def __init__(self, folder):
        self.name, path = folder.name, str(folder / "1" / "model.onnx")
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.inputs = [port.name for port in session.get_inputs()]
        request = openvino.Core().compile_model(path, "CPU", {
            "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
        self.runtimes = {
            "ONNX Runtime": lambda tensors: session.run(None, tensors)[0], "OpenVINO": lambda tensors: request.infer(tensors)[0]}

    def vectors(self, texts, runtime="ONNX Runtime", batch=BATCH):
        """A vector of length 1 for each text; those of like length share a run."""
        tokens = [self.tokenizer.encode(text).ids for text in texts]
        order, found = sorted(range(len(texts)), key=lambda index: len(tokens[index])), {}
        for first in range(0, len(order), batch):
            run = order[first:first + batch]
            longest = max(len(tokens[index]) for index in run)
            rows = {name: np.zeros((len(run), longest), np.int64) for name in self.inputs}
            for row, index in enumerate(run):
                rows["input_ids"][row, :len(tokens[index])] = tokens[index]
                rows["attention_mask"][row, :len(tokens[index])] = 1
            output = self.runtimes[runtime](rows)
            if output.ndim == 3:
                output = (output * rows["attention_mask"][:, :, None]).sum(axis=1)
            found.update(zip(run, output / np.linalg.norm(output, axis=1, keepdims=True)))
        return np.array([found[index] for index in range(len(texts))])


def right_intents(model, intents):
    """{language: how many of its test sentences are nearest to the centroid of their intent}, and the number of them."""
    centroids = np.array([model.vectors(intent["train"]).mean(axis=0) for intent in intents.values()])
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    right = {}
    for number, intent in enumerate(intents.values()):
        for language, texts in intent["test"].items():
            nearest = (model.vectors(texts) @ centroids.T).argmax(axis=1)
            right[language] = right.get(language, 0) + int((nearest == number).sum())
    return right, sum(len(intent["test"]["en"]) for intent in intents.values())


def translations(sentences):
    """{language: sentences}, each list in the same order."""
    made = {}
    for language, free in sentences["translations"].items():
        cities = sentences["cities"][language]
        pairs = list(zip(cities, cities[1:] + cities[:1]))
        made[language] = free + [template.format(*pair) for template in sentences["templates"][language] for pair in pairs]
    return made


def places(model, texts, others):
    """{language: the place of each English original, 0 for the nearest}, among the English texts and OTHERS."""
    candidates = model.vectors(texts["en"] + others)
    found = {}
    for language, translated in texts.items():
        if language != "en":
            nearness = model.vectors(translated) @ candidates.T
            found[language] = (nearness > np.diagonal(nearness)[:, None]).sum(axis=1)
    return found


def report(models, sentences):
    intents = sentences["intents"]
    texts = translations(sentences)
    others = [text for intent in intents.values() for text in intent["train"] + intent["test"]["en"]]
    print("| language |" + "".join(f" {model.name}: intents | first | of ten |" for model in models))
    print("|---" * (1 + 3 * len(models)) + "|")
    rights, found = [right_intents(model, intents) for model in models], [places(model, texts, others) for model in models]
    for language in texts:
        cells = []
        for (right, count), place in zip(rights, found):
            cells.append(f"{right[language]} of {count}")
            for limit in (1, 10):
                cells.append(f"{100 * (place[language] < limit).mean():.0f} %" if language in place else "")
        print(f"| {language} |", " | ".join(cells), "|")
    print(f"\n{len(texts['en'])} translations of each language among {len(texts['en']) + len(others)} English sentences.")


def report_runtimes(models, texts):
    for model in models:
        alone = model.vectors(texts, batch=1)
        packed, other = (model.vectors(texts, runtime) for runtime in model.runtimes)
        print(
            f"{model.name}: largest difference of a number with and without padding {np.abs(alone - packed).max():.1e}, of the "
            f"runtimes {np.abs(packed - other).max():.1e}; {len(texts)} texts.")
    # In turn, so that a busy machine slows all alike.
    times = {}
    for _ in range(ROUNDS):
        for model in models:
            for runtime in model.runtimes:
                started = time.process_time()
                model.vectors(texts, runtime)
                times.setdefault(f"{model.name}, {runtime}", []).append(time.process_time() - started)
    for name, values in times.items():
        print(f"CPU of {len(texts)} texts, {name}: {statistics.median(values):.2f} s")


def main(folders):
    models = [Model(Path(folder)) for folder in folders]
    sentences = json.loads((HERE / "sentences.json").read_text(encoding="utf-8"))
    report(models, sentences)
    all_texts = [text for texts in translations(sentences).values() for text in texts]
    print()
    report_runtimes(models, all_texts[::len(all_texts) // TEXTS][:TEXTS])


if __name__ == "__main__":
    main(sys.argv[1:])
