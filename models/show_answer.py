"""Prints an image classification answer for people. Standard input: the JSON, then a line with HTTP status and seconds."""
import json
import sys

body, _, last_line = sys.stdin.read().rstrip("\n").rpartition("\n")
status, seconds = last_line.split()
try:
    answer = json.loads(body)
    for label in answer["labels"]:
        print(f"    {100 * label['score']:5.1f} %  {label['label']}")
    print(
        f"says {answer.get('model_name', 'the model')} version {answer.get('model_version', '?')}, "
        f"run by {answer.get('runtime', 'an unnamed runtime')}; {1000 * float(seconds):.0f} ms for the whole request")
except (ValueError, KeyError, TypeError):
    # An error, or an answer of another kind: better as it is than not at all.
    print(f"    HTTP {status}: {body}")
