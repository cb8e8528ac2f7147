"""Names a model in a role that may not, and has boxes take it: what a thief of the key of `fleet` would do.

usage: stolen_fleet_key.py REPOSITORY KEYS ROLE FROM TO

The release FROM, such as models/shapes/1, is listed by ROLE as TO too, and the manifest of the default fleet rolls that out.
"""
import sys
from pathlib import Path

from ledge_platform import manifest as form
from ledge_platform import fleets, moments
from ledge_platform.keys import KeyRing
from ledge_platform.repository import Repository

folder, keys, role, source, evil = sys.argv[1:]
repository, ring = Repository.open(Path(folder)), KeyRing([keys])
metadata = {name: repository.load(name) for name in {role, "fleet"}}
for path, target in repository.load("models").signed.targets.items():
    if path.startswith(f"{source}/"):
        content, custom = repository.place(target).read_bytes(), target.unrecognized_fields.get("custom")
        named = evil + path.removeprefix(source)
        metadata[role].signed.targets[named] = repository.add_target(named, content, custom)
manifest = fleets.load(repository, "default").manifest
manifest["published"] = moments.text(moments.now())
rollout = {**manifest["rollouts"][-1], "id": f"r-{role}", "target": f"{evil}/model.onnx"}
manifest["rollouts"].append(rollout)
metadata["fleet"].signed.targets[form.path("default")] = repository.add_target(form.path("default"), form.encode(manifest))
for name, changed in metadata.items():
    repository.save(name, changed, ring)
assert repository.publish(ring)
print("ok")
