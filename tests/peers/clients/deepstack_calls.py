"""Clients of DeepStack's interface against a running box: the package deepstack-python, and one with the rules of Frigate.

usage: deepstack_calls.py PORT KEY PHOTOS     (the models coco_detector, face_detector and efficientnet_lite0; the folder PHOTOS)
"""
import io
import sys
import time
from pathlib import Path

import requests
from deepstack import core
from PIL import Image

SIDE = 320
ROUNDS = 50


class Frigate:
    """Sends a frame of the size that the model takes, and reads no more than Frigate does: the first 20 predictions, up to the
    first that scores less than 0.4 or has a label of another name."""

    def __init__(self, url, key, labels):
        self.url, self.key, self.labels, self.session = url, key, labels, requests.Session()

    def detect(self, photograph):
        frame, content = Image.open(photograph).convert("RGB").resize((SIDE, SIDE)), io.BytesIO()
        frame.save(content, format="JPEG")
        answer = self.session.post(self.url, data={"api_key": self.key}, files={"image": content.getvalue()}, timeout=5)
        predictions = answer.json()["predictions"]
        assert len(predictions) <= 20, predictions
        found = []
        for prediction in predictions:
            if prediction["confidence"] < 0.4 or prediction["label"].lower() not in self.labels:
                break
            edges = [prediction[edge] / SIDE for edge in ("y_min", "x_min", "y_max", "x_max")]
            assert all(0 <= edge <= 1 for edge in edges) and edges[0] < edges[2] and edges[1] < edges[3], prediction
            found.append(prediction["label"])
        return found


def main(port, key, photos):
    photos = Path(photos)
    cows, astronaut, cat = (photos.joinpath(f"{name}.jpg").read_bytes() for name in ("cows", "astronaut", "chelsea"))
    at = {"ip": "127.0.0.1", "port": port, "api_key": key, "min_confidence": 0.4}

    assert core.get_objects_summary(core.DeepstackObject(**at).detect(cows)) == {"cow": 3}
    custom = core.DeepstackObject(custom_model="coco_detector", **at).detect(astronaut)
    assert core.get_objects(custom) == ["person"], custom
    assert len(core.DeepstackFace(**at).detect(astronaut)) == 1
    scene = core.DeepstackScene(**at).recognize(cat)
    assert scene["label"] == "tiger cat", scene
    try:
        core.DeepstackObject(**{**at, "api_key": "wrong"}).detect(cows)
        raise AssertionError("a wrong key was let in")
    except core.DeepstackException as refused:
        assert "401" in str(refused), refused

    frigate = Frigate(f"http://127.0.0.1:{port}/v1/vision/detection", key, {"person", "cow", "car"})
    assert frigate.detect(photos / "cows.jpg")[:1] == ["cow"]
    took = []
    for _ in range(ROUNDS):
        begun = time.monotonic()
        assert frigate.detect(photos / "astronaut.jpg") == ["person"]
        took.append((time.monotonic() - begun) * 1e3)
    took.sort()
    print(f"{ROUNDS} calls as Frigate makes them: median {took[ROUNDS // 2]:.1f} ms, longest {took[-1]:.1f} ms")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
