"""Reads a SentencePiece model and writes it as a `tokenizer.json` of Hugging Face's tokenizers."""
import struct

# Fields and values of sentencepiece_model.proto.
PIECES, NORMALIZER = 1, 3
TEXT, SCORE, TYPE = 1, 2, 3
NORMALIZER_NAME, ADD_DUMMY_PREFIX, REMOVE_EXTRA_WHITESPACES = 1, 3, 4
UNKNOWN, CONTROL = 2, 3
# Wire types of protobuf.
VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5

# The replacements of the file are NFKC with two exceptions: these characters become a space, and the wide tilde is kept. To keep
# it, a noncharacter takes its place during NFKC.
SPACES = "\t\n\f\r\u1680\u200b\u200e\u200f\u2028\u2029\u2581\ufeff\ufffd"
WIDE_TILDE, PLACEHOLDER = "\uff5e", "\ufdd0"
BEGIN, END = "<s>", "</s>"


def varint(content, position):
    value, shift = 0, 0
    while True:
        byte = content[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def fields(content):
    """(number, value) of each field of a protobuf message. Messages and texts are bytes."""
    position = 0
    while position < len(content):
        tag, position = varint(content, position)
        kind = tag & 7
        if kind == VARINT:
            value, position = varint(content, position)
        else:
            length = {EIGHT_BYTES: 8, FOUR_BYTES: 4}.get(kind)
            if kind == BYTES:
                length, position = varint(content, position)
            value = content[position:position + length]
            position += length
        yield tag >> 3, value


def pieces(model):
    """(text, score, type) of each piece."""
    for number, message in fields(model):
        if number == PIECES:
            piece = dict(fields(message))
            score, = struct.unpack("<f", piece.get(SCORE, bytes(4)))
            yield piece[TEXT].decode(), score, piece.get(TYPE)


def replace(content, **pattern):
    return {"type": "Replace", "pattern": pattern, "content": content}


def special(name):
    return {"SpecialToken": {"id": name, "type_id": 0}}


def tokenizer_json(model):
    """The tokenizer of a SentencePiece file. It adds a token at the beginning and one at the end of a text, as the model needs."""
    spec = dict(fields(dict(fields(model))[NORMALIZER]))
    if spec[NORMALIZER_NAME] != b"nmt_nfkc" or not (spec[ADD_DUMMY_PREFIX] and spec.get(REMOVE_EXTRA_WHITESPACES, 1)):
        raise ValueError("the SentencePiece file has another normalization than nmt_nfkc with its usual handling of spaces")
    # The library would also match the names of control pieces in a text. A space in a name prevents it: the pre-tokenizer
    # replaces all spaces of a text.
    vocabulary = [(f" {text}" if kind in (UNKNOWN, CONTROL) else text, score, kind) for text, score, kind in pieces(model)]
    names = [text for text, _, _ in vocabulary]
    ids = {name: names.index(f" {name}") for name in (BEGIN, END)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        # Not `Precompiled` with the table of the file: it differs from SentencePiece for letters with several combining marks.
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                replace(" ", Regex=f"[{SPACES}]"),
                replace(PLACEHOLDER, String=WIDE_TILDE),
                {"type": "NFKC"},
                replace(WIDE_TILDE, String=PLACEHOLDER),
                replace(" ", Regex=" {2,}"),
                replace("", Regex="^ | $"),
            ],
        },
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [special(BEGIN), {"Sequence": {"id": "A", "type_id": 0}}, special(END)],
            "pair": [special(BEGIN), *({"Sequence": {"id": text, "type_id": 0}} for text in "AB"), special(END)],
            "special_tokens": {name: {"id": name, "ids": [id_], "tokens": [name]} for name, id_ in ids.items()},
        },
        "decoder": None,
        "model": {
            "type": "Unigram",
            "unk_id": [kind for _, _, kind in vocabulary].index(UNKNOWN),
            "vocab": [[text, score] for text, score, _ in vocabulary],
            "byte_fallback": False,
        },
    }
