"""The signed manifests of the fleets."""
import dataclasses

from . import manifest as form
from . import moments, names
from .errors import Failure
from .release import main_file


@dataclasses.dataclass
class Fleet:
    manifest: dict
    notes: dict


def load(repository, fleet):
    path = form.path(fleet)
    target = repository.load("fleet").signed.targets.get(path)
    if target is None:
        there = ", ".join(all_of(repository)) or "none"
        raise Failure(
            f"there is no fleet {fleet!r} (there is: {there}); `ledge-platform rollout start --fleet` makes one"
        )
    try:
        content = repository.place(target).read_bytes()
    except OSError as error:
        raise Failure(f"the manifest of fleet {fleet} cannot be read: {error.strerror}") from None
    return Fleet(form.decode(content), form.notes_of(target))


def all_of(repository):
    return sorted(path.split("/")[1] for path in repository.load("fleet").signed.targets)


def holding(repository, rollout_id, fleet=None):
    """The fleet that has the rollout."""
    fleets = [fleet] if fleet else all_of(repository)
    found = [name for name in fleets
             if any(rollout["id"] == rollout_id for rollout in load(repository, name).manifest["rollouts"])]
    if len(found) != 1:
        raise Failure(f"{'several fleets have' if found else 'no fleet has'} a rollout {rollout_id!r}"
                      + (": name one with --fleet" if found else ""))
    return found[0]


def edit(repository, fleet, ring, change, create=False):
    """Changes the manifest of FLEET by change(manifest, notes), signs it and makes it public. Whether it is public."""
    repository.need(["fleet"], ring)
    metadata, path = repository.load("fleet"), form.path(fleet)
    if create and path not in metadata.signed.targets:
        state = Fleet(form.empty(fleet, moments.now()), {})
    else:
        state = load(repository, fleet)
    change(state.manifest, state.notes)
    state.manifest["published"] = moments.text(moments.now())
    form.check(state.manifest)
    for rollout in state.manifest["rollouts"]:
        release = names.release(rollout["target"])
        if rollout["target"] != main_file(repository, release):
            raise Failure(f"rollout {rollout['id']} names {rollout['target']}, which is not the main file of {release}")
    content = form.encode(state.manifest)
    if len(content) > form.MOST_BYTES:
        raise Failure(
            f"the manifest has {len(content)} bytes, a box takes {form.MOST_BYTES} at most: stop rollouts that are done"
        )
    target = repository.add_target(path, content, form.notes_to_custom(state.notes))
    metadata.signed.targets[path] = target
    repository.save("fleet", metadata, ring)
    return repository.publish(ring)
