"""ledge-platform: one function a verb, each of which returns its exit status."""
import json
import os
import sys
from pathlib import Path

from . import (
    agreement,
    arguments,
    catalogues,
    ceremony,
    fleets,
    goldens,
    keys,
    manifest,
    moments,
    names,
    page,
    ports,
    publish,
    release,
    reports,
    rollouts,
    signing,
    tokens,
    upgrades,
    verify,
    waves,
    watching,
)
from .audit import verbs as audit
from .boxes import verbs as boxes
from .broker import Broker
from .certificates import verbs as certificates
from .errors import DONE, FAILED, REFUSED, Failure, Refused
from .packages import openpgp
from .packages import verbs as packages
from .page.members import Members
from .repository import OFFLINE, SIGNED_AT, Repository, is_private, left, lifetime
from .site import verbs as site
from .site.layout import Layout

NOT_PUBLIC = "not public yet: run `ledge-platform refresh` where the keys of snapshot and timestamp are"


def main(argv=None):
    given = arguments.parser().parse_args(argv)
    verb = VERBS[given.verb] if given.verb in VERBS else VERBS[f"{given.verb} {given.action}"]
    try:
        return verb(given) or DONE
    except Failure as failure:
        print(f"ledge-platform: {failure}", file=sys.stderr)
        return failure.status
    except OSError as error:
        print(f"ledge-platform: {error.filename or 'the system'}: {error.strerror}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 130


def opened(given):
    return Repository.open(given.repository), keys.KeyRing(given.keys)


def tell(*lines):
    for line in lines:
        print(line)


def told_outcome(outcome, public, line):
    """Says LINE if a version is in place, else what it waits for. Returns the exit status."""
    if outcome.done:
        told(public, line)
        return DONE
    tell(*outcome.lines)
    return REFUSED


def told(public, line):
    tell(line, *([] if public else [NOT_PUBLIC]))


# --- the repository and its keys ---

def repository_init(given):
    offline = given.offline_keys or given.keys
    thresholds = {"root": (given.root_threshold, given.root_keys), **dict(given.threshold)}
    repository, ring = ceremony.init(
        given.repository, given.keys, offline, thresholds, given.encrypt, dict(given.expires)
    )
    tell(
        f"made {repository.folder} with {len(ring.found)} keys",
        f"  online:  {given.keys} (snapshot, timestamp, fleet)",
        f"  offline: {offline} (root, targets, models, packages)",
        f"  boxes get {repository.folder / 'root.json'} as their updates.root_file",
    )


def repository_add_role(given):
    repository, ring = opened(given)
    with repository.locked():
        folder = given.new_keys or ceremony.beside_models(repository, ring)
        public = ceremony.add_role(repository, given.role, ring, folder, not given.plain)
    told(public, f"the key {folder / ceremony.KEY_NAMES[given.role]}.pem signs {given.role}")


def key_list(given):
    repository, ring = opened(given)
    lines = []
    for role in repository.roles:
        accepted, signed = repository.delegation(role)[1], repository.load(role).signed
        for keyid in accepted.keyids:
            path = ring.found.get(keyid)
            private = keys.private_of(path) if path else None
            where = "not in --keys"
            if ring.absence(keyid):
                where = ring.absence(keyid)
            elif ring.has(keyid):
                where = str(private if private.exists() else tokens.file_of(path))
            if ring.has(keyid) and private.exists() and not is_private(private):
                where += " (readable by others: chmod 600)"
            if ring.has(keyid) and keys.is_weakly_encrypted(private):
                where += f" (weakly encrypted: ledge-platform key passphrase {ring.name_of(keyid)})"
            kept, needed = "offline" if role in OFFLINE else "online", f"{accepted.threshold} of {len(accepted.keyids)}"
            name = ring.name_of(keyid) or "-"
            lines.append((role, kept, needed, name, keyid[:16], moments.text(signed.expires), where))
    tell(reports.table(("ROLE", "KEPT", "NEEDED", "NAME", "KEY", "SIGNED UNTIL", "WHERE"), lines))
    tell(*signing.waits(repository, ring))


def key_generate(given):
    if given.token is not None:
        keys.refuse_existing(given.keys, given.name)
        return told_of_token(given, *tokens.make(given.token, given.id, given.name))
    key = keys.generate(given.keys, given.name, None if given.plain else keys.new_passphrase(given.name))
    path = given.keys / given.name
    tell(f"{key.keyid[:16]}: {path}.pem stays with its holder, {path}.pub.pem goes to the ceremony")


def key_import_token(given):
    keys.refuse_existing(given.keys, given.name)
    told_of_token(given, *tokens.bring(given.token, given.id, given.name))


def told_of_token(given, uri, public):
    keys.write_token(given.keys, given.name, uri, public)
    path = given.keys / given.name
    tell(f"{public.keyid[:16]}: {path}{tokens.SUFFIX} names the token ({uri}), {path}.pub.pem goes to the ceremony")


def key_passphrase(given):
    path = given.keys / f"{given.name}.pem"
    kind = keys
    if not path.exists() and path.with_suffix(".asc").exists():
        path, kind = path.with_suffix(".asc"), openpgp
    kind.change_passphrase(path, given.name)
    tell(f"{path} is under the new passphrase; copies of the old file open with the old one")


def key_rotate(given):
    repository, ring = opened(given)
    if not given.keys:
        raise Failure("name the folders of the keys with --keys")
    with repository.locked():
        role, old = ceremony.find(repository, given.key, ring)
        folder = given.new_keys or beside(ring, [old], given.keys[0])
        lines, complete = ceremony.rotate(
            repository, given.key, ring, folder, given.public, not given.plain and role in OFFLINE
        )
    tell(*lines)
    return DONE if complete else REFUSED


def beside(ring, keyids, otherwise):
    """The folder of the private half of a key. A public half may lie anywhere."""
    return next((ring.found[keyid].parent for keyid in keyids if ring.has(keyid)), otherwise)


def key_threshold(given):
    repository, ring = opened(given)
    if not given.keys:
        raise Failure("name the folders of the keys with --keys")
    needed, number = given.threshold
    with repository.locked():
        accepted = repository.delegation(given.role)[1]
        folder = given.new_keys or beside(ring, accepted.keyids, given.keys[0])
        lines, complete = ceremony.change_threshold(
            repository, given.role, needed, number, ring, given.remove, given.public, folder, not given.plain)
    tell(*lines)
    return DONE if complete else REFUSED


def sign(given):
    repository, ring = opened(given)
    role = getattr(given, "role", "root")
    if given.discard:
        with repository.locked():
            tell(f"dropped {signing.discard(repository, role)}")
        return DONE
    proposal = signing.Proposal(repository, role, given.staged)
    tell(*proposal.shown(ring))
    refuse_way_back(repository, role, proposal.metadata)
    here = [keyid for keyid in signing.keys_of(repository, role, proposal.metadata) if ring.has(keyid)]
    if not here and not proposal.metadata.signatures:
        raise Failure(f"none of the keys in {ring} signs {role}, and nobody signed this yet")
    if here and not given.yes:
        confirm(f"Sign {role} {proposal.metadata.signed.version} with {', '.join(map(ring.name_of, here))}?")
    signers = proposal.signers(ring)
    with repository.locked():
        outcome = proposal.sign(signers, ring)
        lines, complete = ceremony.follow_up(repository, ring, outcome)
        version = proposal.metadata.signed.version
        public = complete and repository.published(role) == version
        gone = release.clear(repository, outcome.removed, public)
    tell(*lines, *([f"{role} {version} is complete"] if outcome.done else []))
    if gone:
        tell(f"what is published elsewhere keeps its files until you delete them there: {', '.join(gone)}")
    return DONE if complete else REFUSED


def refuse_way_back(repository, role, metadata):
    """A rollout may have begun since a release was taken out by a version that waits."""
    if role != names.PACKAGES:
        return
    gone = set(repository.load(role).signed.targets) - set(metadata.signed.targets)
    manifests = [fleets.load(repository, fleet).manifest for fleet in fleets.all_of(repository)]
    for version in {names.release(path) for path in gone}:
        upgrades.refuse_way_back(repository, version, manifests)


def confirm(question):
    if not sys.stdin.isatty():
        raise Failure("nothing is signed: say --yes when you have read this, or run it in a terminal")
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise Refused("nothing is signed")


def renew(given):
    repository, ring = opened(given)
    with repository.locked():
        lines, complete = ceremony.renew(repository, given.role, ring)
    signed = repository.load(given.role).signed
    good = f"{given.role} {signed.version} is good until {moments.text(signed.expires)}"
    tell(*(lines or [good]))
    return DONE if complete else REFUSED


def refresh(given):
    repository, ring = opened(given)
    with repository.locked():
        repository.need(["fleet", "snapshot", "timestamp"], ring)
        fleet, snapshot = repository.load("fleet"), repository.load("snapshot")
        if left(fleet.signed) < lifetime(fleet.signed) / 2:
            repository.save("fleet", fleet, ring)
        repository.publish(ring, fresh_snapshot=left(snapshot.signed) < lifetime(snapshot.signed) / 2)
        timestamp = repository.load("timestamp").signed
    signed_at = timestamp.unrecognized_fields[SIGNED_AT]
    tell(f"timestamp {timestamp.version}, signed {signed_at}, good until {moments.text(timestamp.expires)}")
    for role in filter(repository.has, OFFLINE):
        rest = left(repository.load(role).signed)
        if rest < given.warn:
            days = max(0, int(rest // 86_400))
            print(
                f"ledge-platform: {role} expires in {days} days: `ledge-platform renew {role}` where its keys are",
                file=sys.stderr,
            )
    for line in [*signing.waits(repository, ring), *signing.held_back(repository)]:
        print(f"ledge-platform: {line}", file=sys.stderr)


# --- releases ---

def description_of(given, config):
    requires = {
        "ledge": given.requires_ledge,
        "runtimes": given.requires_runtime,
        "architectures": given.requires_architecture,
        "memory_mb": given.requires_memory_mb,
    }
    limits = {"memory_mb": given.limit_memory_mb, "seconds": given.limit_seconds}
    description = {
        "semantic_version": given.release or config.get("release"),
        "requires": filled(requires),
        "limits": filled(limits),
    }
    return filled(description)


def filled(table):
    return {key: value for key, value in table.items() if value not in (None, [], {})}


def model_add(given):
    repository, ring = opened(given)
    folder = release.ModelFolder(given.source, given.version)
    for golden in given.golden:
        path, _, label = golden.partition("=")
        folder.add_golden(path, label or None, given.golden_tolerance, given.golden_min_score)
    if not folder.config.get("golden") and not given.no_golden:
        raise Failure(
            "the model has no golden input, so no box could tell whether it runs right: --golden FILE, or --no-golden"
        )
    found = folder.ports() or ([], [])
    description = description_of(given, folder.config)
    description.update(filled({
        "inputs": [ports.parse(text) for text in given.input] or found[0],
        "outputs": [ports.parse(text) for text in given.output] or found[1],
        "accuracy": release.read_json(given.accuracy, "accuracy report") if given.accuracy else None,
        "reference": release.read_reference(given.reference) if given.reference else None,
        "tolerance": given.tolerance}))
    contents = folder.finished()
    release.refuse_unsignable(repository, ring, named(given), contents)
    tell(*golden_check(given, folder, contents))
    found, lines = agreement_check(given, repository, folder, contents, description.get("reference", {}).get("output"))
    # A tolerance that was given stays.
    description = {**found, **description}
    tell(*lines)
    status = add_release(given, repository, ring, folder.main, contents, description)
    left_out = folder.left_out()
    if left_out:
        tell(f"left out, for model.toml does not name them: {', '.join(left_out)}")
    return status


def golden_check(given, folder, contents):
    if not folder.config.get("golden"):
        return ["there are no golden inputs to run"]
    if given.without_check:
        return ["golden inputs were NOT run (--without-check): each box finds out in its own trial"]
    return goldens.check(goldens.program(given.ledge), named(given), folder.main, contents)


def agreement_check(given, repository, folder, contents, scores):
    """({its signed fields}, lines to print)."""
    if given.evaluate is not None and not given.evaluate.is_dir():
        raise Failure(f"--evaluate {given.evaluate} is no folder")
    earlier = agreement.predecessor(repository, named(given), given.against)
    if earlier is None or given.without_check:
        return {}, []
    if not folder.config.get("golden") and given.evaluate is None:
        return {}, [f"agreement: there are no inputs to compare it with {earlier} on (--evaluate DIR)"]
    found = agreement.measure(goldens.program(given.ledge), repository, earlier, named(given), folder.main, contents,
                              given.evaluate, given.tolerance, scores)
    return agreement.judge(found, earlier, named(given), given.agreement_min)


def configuration_add(given):
    repository, ring = opened(given)
    contents = release.settings(given.source)
    return add_release(given, repository, ring, release.SETTINGS, contents, description_of(given, {}))


def runtime_add(given):
    repository, ring = opened(given)
    if given.name not in release.RUNTIMES:
        raise Failure(f"there is no runtime {given.name!r}: {' or '.join(release.RUNTIMES)}")
    contents = release.libraries(given.source)
    return add_release(given, repository, ring, sorted(contents)[0], contents, description_of(given, {}))


def upgrade_add(given):
    repository, ring = opened(given)
    name, files, description = upgrades.described(given.files)
    version = names.Release(f"{names.PACKAGES}/{name}", given.version)
    with repository.locked():
        release.refuse_unsignable(repository, ring, version, files)
        upgrades.refuse_older(repository, version, description["package"])
        description.update(filled({"requires": filled({"ledge": given.requires_ledge})}))
        outcome, public = release.add(repository, ring, version, sorted(files)[0], files, description)
    return told_outcome(outcome, public, f"signed {version}: {', '.join(sorted(files))}")


def upgrade_list(given):
    repository = Repository.open(given.repository)
    found = release.listing(repository, names.PACKAGES) if repository.has(names.PACKAGES) else []
    rows = [(str(version), description["package"]["version"],
             ", ".join(f"{each['format']} {each['architecture']}" for each in description["package"]["files"]), f"{size:,}")
            for version, description, size in found]
    tell(reports.table(("RELEASE", "VERSION", "FOR", "BYTES"), rows))


def upgrade_remove(given):
    repository, ring = opened(given)
    version = names.Release(f"{names.PACKAGES}/{given.name}", given.version)
    with repository.locked():
        manifests = [fleets.load(repository, fleet).manifest for fleet in fleets.all_of(repository)]
        upgrades.refuse_way_back(repository, version, manifests)
        outcome, public, gone = release.remove(repository, ring, version, manifests)
    return removed(outcome, public, version, gone)


def named(given):
    return names.Release(f"{names.FOLDERS[given.verb]}/{given.name}", given.version)


def add_release(given, repository, ring, main_file, contents, description):
    version = named(given)
    with repository.locked():
        outcome, public = release.add(repository, ring, version, main_file, contents, description)
    more = f" and {len(contents) - 1} more" if len(contents) > 1 else ""
    return told_outcome(outcome, public, f"signed {version.path(main_file)}{more}")


def release_list(given):
    repository = Repository.open(given.repository)
    folder = names.FOLDERS[given.verb] + "/"
    lines = [(str(version), description.get("semantic_version", "-"), f"{size:,}", len(description["files"]) + 1)
             for version, description, size in release.listing(repository) if str(version).startswith(folder)]
    tell(reports.table(("RELEASE", "VERSION", "BYTES", "FILES"), lines))


def release_remove(given):
    repository, ring = opened(given)
    with repository.locked():
        manifests = [fleets.load(repository, fleet).manifest for fleet in fleets.all_of(repository)]
        outcome, public, gone = release.remove(repository, ring, named(given), manifests)
    return removed(outcome, public, named(given), gone)


def removed(outcome, public, version, gone):
    status = told_outcome(outcome, public, f"{version} is not signed any more")
    if status == DONE:
        tell(f"what is published elsewhere keeps its files until you delete them there: {', '.join(gone)}")
    return status


# --- rollouts ---

def steering(change):
    """A verb that changes one rollout by change(given, manifest, notes) and prints its result."""
    def verb(given):
        repository, ring = opened(given)
        with repository.locked():
            fleet = fleets.holding(repository, given.id, given.fleet) if hasattr(given, "id") else given.fleet
            said = []
            public = fleets.edit(
                repository, fleet, ring, lambda manifest, notes: said.append(change(given, manifest, notes))
            )
        told(public, f"fleet {fleet}: {said[0]}")
    return verb


def rollout_start(given):
    repository, ring = opened(given)
    fleet = given.fleet or "default"
    target = release.main_file(repository, given.target)
    # A box that is too old waits for a rollout with this requirement; it would refuse a release for good if only the
    # release had it.
    requires_ledge = given.requires_ledge or release.needed_ledge(repository, target)
    rollout = {"id": given.id, "target": target,
               "start": moments.text(given.start or moments.now()), "waves": given.waves, "paused": False}
    rollout.update(filled({
        "groups": given.groups and given.groups.split(","), "devices": given.devices and given.devices.split(","),
        "window": given.window,
        "gate": given.gate, "shadow": given.shadow, "canary": given.canary, "soak": given.soak,
        "max_attempts": given.max_attempts, "byte_budget": given.byte_budget,
        "allow_downgrade": given.allow_downgrade or None, "requires_ledge": requires_ledge}))
    rollout = manifest.completed(rollout)
    if given.target.subject.startswith(f"{names.PACKAGES}/"):
        upgrades.refuse_without_way_back(repository, given.target)
    with repository.locked():
        def change(manifest, notes):
            rollouts.start(manifest, notes, rollout)
        public = fleets.edit(repository, fleet, ring, change, create=True)
    first = waves.schedule(given.waves)[0]
    told(public, f"fleet {fleet}: rollout {given.id} of {rollout['target']} starts {rollout['start']}, "
                 f"{moments.spoken(first[0])} later for {100 * first[1] / waves.SEEDS:.3g} % of the boxes")
    tell(*manifest.spoken_guards(rollout))


def widen(given, manifest, notes):
    rollouts.widen(manifest, notes, given.id, moments.now(), given.to, given.waves)
    return f"waves of {given.id}: {json.dumps(rollouts.find(manifest, given.id)['waves'])}"


def pause(given, manifest, notes):
    rollouts.pause(manifest, notes, given.id, moments.now())
    return f"{given.id} is paused"


def resume(given, manifest, notes):
    rollouts.resume(manifest, notes, given.id, moments.now(), given.catch_up)
    return f"{given.id} goes on, its waves counted from {rollouts.find(manifest, given.id)['start']}"


def stop(given, manifest, notes):
    rollouts.stop(manifest, notes, given.id)
    return f"{given.id} is gone"


def revoke(given, manifest, _notes):
    rollouts.revoke(manifest, given.release, given.undo)
    return f"{given.release} is {'allowed again' if given.undo else 'revoked'}"


def minimum(given, manifest, _notes):
    rollouts.minimum(manifest, given.subject, given.version)
    return f"{given.subject} runs {f'from version {given.version} on' if given.version else 'in any version'}"


def pin(given, manifest, _notes):
    rollouts.pin(manifest, given.device, given.subject, given.version)
    return f"{given.device} {f'stays at version {given.version} of' if given.version else 'is free in'} {given.subject}"


def rollout_show(given):
    repository = Repository.open(given.repository)
    names_of = [given.fleet] if given.fleet else fleets.all_of(repository)
    manifests = {fleet: fleets.load(repository, fleet).manifest for fleet in names_of}
    if given.json:
        tell(json.dumps(list(manifests.values()), indent=1, ensure_ascii=False))
        return
    now, lines = moments.now(), []
    for fleet, manifest in manifests.items():
        for rollout in manifest["rollouts"]:
            share = 100 * waves.reached(rollout["waves"], rollouts.elapsed(rollout, now)) / waves.SEEDS
            schedule = rollout["waves"] if isinstance(rollout["waves"], str) else "own"
            state = "paused" if rollout.get("paused") else f"{share:.3g} % of the boxes"
            lines.append((fleet, rollout["id"], rollout["target"], rollout["start"], schedule, state))
        for kind in ("pins", "revoked", "minimum"):
            if manifest.get(kind):
                lines.append((fleet, kind, json.dumps(manifest[kind]), "-", "-", "-"))
    tell(reports.table(("FLEET", "ROLLOUT", "TARGET", "START", "WAVES", "REACHED"), lines))


# --- catalogues ---

def catalogue(given):
    models = catalogues.publish(given.models, given.folder, given.keys, given.encrypt, given.lifetime)
    tell(
        f"{given.folder} lists {', '.join(models) or 'no models'}",
        f"  keys: {given.keys}",
        f"  boxes get {given.folder / 'root.json'} as their catalogue.root_file",
    )


# --- to and from the boxes ---

def verify_verb(given):
    if "://" in given.repository:
        if not given.root:
            raise Failure("--root FILE is needed for a repository elsewhere: the root that the boxes have")
        address, first = given.repository.rstrip("/"), given.root
    else:
        repository = Repository.open(Path(given.repository))
        address, first = repository.folder.resolve().as_uri(), given.root or repository.path("root", 1)
    tell(*verify.verify(address, first.read_bytes()))


def publish_verb(given):
    repository = Repository.open(given.repository)
    with repository.locked():
        sent, kept = publish.publish(repository, given.destination, given.endpoint)
    tell(f"{sent} files sent, {kept} were there")


def connect(given):
    """The broker that was named, else that of the platform at --root."""
    if given.broker:
        return Broker(given.broker, given.ca, given.certificate, given.key, given.user)
    layout = Layout.open(given.root)
    return Broker(layout.broker_url, layout.ca / "root.pem", layout.platform_certificate, layout.platform_key)


def fleet_status(given):
    with connect(given) as broker:
        devices = [device for device in broker.gather() if given.fleet in (None, device.fleet)]
    if not given.broker:
        # The broker keeps the last report of a box that was forgotten.
        forgotten = Members(Layout(given.root).boxes, moments.now()).forgotten
        devices = [device for device in devices if device.device not in forgotten]
    for device, complaint in sorted(broker.complaints.items()):
        print(f"ledge-platform: what {device} reported is left out: {complaint}", file=sys.stderr)
    if given.json:
        tell(
            json.dumps(
                [reports.as_json(device) for device in sorted(devices, key=lambda device: device.device)], indent=1
            )
        )
    else:
        tell(reports.table(reports.HEAD, reports.rows(devices, moments.now())))


def hint(given):
    repository = Repository.open(given.repository)
    with connect(given) as broker:
        devices = [device.device for device in broker.gather() if given.fleet in (None, device.fleet)]
        sent = broker.hint(devices, repository.load("timestamp").signed.version)
    tell(f"{sent} boxes told")


def watch_verb(given):
    repository, ring = opened(given)
    shown = page.Page(given.page, repository, given.state, given.late_after, given.boxes) if given.page else None
    with connect(given) as broker:
        return watching.run(given, repository, ring, broker, shown)


def page_verb(given):
    shown = page.Page(given.folder, Repository.open(given.repository), given.state, given.late_after, given.boxes)
    with connect(given) as broker:
        broker.gather()
        boxes = shown.write(broker)
    if not given.quiet:
        tell(f"{shown.folder / 'index.html'} shows {boxes} boxes")


VERBS = {
    "repository init": repository_init,
    "repository add-role": repository_add_role,
    "catalogue": catalogue,
    "key list": key_list,
    "key generate": key_generate,
    "key passphrase": key_passphrase,
    "key rotate": key_rotate,
    "key threshold": key_threshold,
    "key import-token": key_import_token,
    "sign": sign,
    "root sign": sign,
    "renew": renew,
    "refresh": refresh,
    "rollout start": rollout_start,
    "rollout widen": steering(widen),
    "rollout pause": steering(pause),
    "rollout resume": steering(resume),
    "rollout stop": steering(stop),
    "rollout revoke": steering(revoke),
    "rollout minimum": steering(minimum),
    "rollout pin": steering(pin),
    "rollout show": rollout_show,
    "verify": verify_verb,
    "publish": publish_verb,
    "fleet status": fleet_status,
    "hint": hint,
    "watch": watch_verb,
    "page": page_verb,
    "model add": model_add,
    "configuration add": configuration_add,
    "runtime add": runtime_add,
    "upgrade add": upgrade_add,
    "upgrade list": upgrade_list,
    "upgrade remove": upgrade_remove,
    **{f"{kind} list": release_list for kind in names.FOLDERS},
    **audit.VERBS,
    **boxes.VERBS,
    **certificates.VERBS,
    **packages.VERBS,
    **site.VERBS,
    **{f"{kind} remove": release_remove for kind in names.FOLDERS},
}

if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        status = DONE
    sys.exit(status)
