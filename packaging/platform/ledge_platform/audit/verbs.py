"""`audit ...`: one function a verb, each of which returns its exit status."""
import collections
import json
import sys
from pathlib import Path

from .. import moments, reports
from ..broker import Broker
from ..errors import DONE, Failure, Refused
from . import fleet, proofs, records, walk
from .findings import FAILED, GAP, NOTICE, STATUSES, TAMPERED, Finding, status, worst
from .notes import Untrue
from .sources import open_source
from .store import Store


def read(path):
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}") from None


def enroll(given):
    """Pins keys: of one box from the command line, or of all boxes that report theirs."""
    store = Store(given.state)
    if given.broker and not given.key_of_box:
        keys = reported_keys(given)
        if given.device and given.device not in keys:
            raise Failure(f"{given.device} reports no key: it needs a Ledge that has an audit log, and a connection")
        wanted = {given.device: keys[given.device]} if given.device else keys
    elif given.device and given.key_of_box and not given.broker:
        text = given.key_of_box
        wanted = {given.device: read(text[1:]).decode(errors="replace") if text.startswith("@") else text}
    else:
        raise Failure("give a device and its verifier key (@FILE reads it from a file), or --broker, which tells it")
    ended = DONE
    with store.locked():
        for device, text in sorted(wanted.items()):
            try:
                print(f"{device}: {store.enroll(device, text, given.replace)}")
            except Refused as refused:
                if len(wanted) == 1:
                    raise
                print(f"ledge-platform: {refused}", file=sys.stderr)
                ended = refused.status
    return ended


def reported_keys(given):
    with Broker(given.broker, given.ca, given.certificate, given.key, given.user) as broker:
        devices = broker.gather()
    return {device.device: device.verifier_key for device in devices if device.verifier_key}


def forget(given):
    """Takes a box out that is no more."""
    store = Store(given.state)
    with store.locked():
        store.enrolled(given.device)
        store.path(given.device).unlink()
    print(f"{given.device} is not enrolled any more")


def key_list(given):
    store = Store(given.state)
    lines = [(box.device, box.enrolled, len(box.replaced), str(box.key)) for box in map(store.load, store.devices())]
    print(reports.table(("DEVICE", "ENROLLED", "REPLACED", "VERIFIER KEY"), lines))


def verify(given):
    store = Store(given.state)
    wanted = given.device or store.devices()
    if not wanted:
        raise Failure(f"no box is enrolled in {given.state}: `ledge-platform audit enroll` pins their keys")
    source = open_source(given.source, given)
    run = fleet.Verification(source, store, given.full, 3600 * given.stale_hours)
    found = []
    with store.locked():
        for device in wanted:
            report = run.verify(device)
            if not given.json and not (given.quiet and report.word == "whole"):
                print(*lines_of(report), sep="\n", flush=True)
            found.append(report)
    strangers = sorted(set(source.devices() or []) - set(store.devices())) if not given.device else []
    findings = [finding for report in found for finding in report.findings]
    if given.json:
        print(json.dumps({
            "at": moments.text(moments.now()), "source": given.source, "status": status(findings),
            "boxes": [as_json(report) for report in found], "not_enrolled": strangers}, indent=1))
        return status(findings)
    if given.quiet and not status(findings) and not strangers:
        return DONE
    counts = collections.Counter(report.word for report in found)
    ordered = [f"{counts[word]} {word}" for word in ("whole", *STATUSES) if counts[word]]
    print(f"{len(found)} boxes: {', '.join(ordered)}; {sum(report.new for report in found):,} new records")
    if strangers:
        print(f"not enrolled, and not looked at: {', '.join(strangers)}")
    return status(findings)


def lines_of(report):
    logs = report.logs
    last = f"log {max(logs)}, " if logs else ""
    total = sum(log.size for log in logs.values())
    synced = reports.age(moments.text(report.synced), moments.now()) if report.synced else "never"
    yield f"{report.device}: {report.word}, {last}{total:,} records, {report.new:,} new, synced {synced}"
    for finding in report.findings:
        yield records.printable(f"  {finding}")
    for text in records.summary([log.totals for log in logs.values()]):
        yield f"  {text}"


def as_json(report):
    return {
        "device": report.device, "state": report.word,
        "synced": moments.text(report.synced) if report.synced else None, "new": report.new,
        "findings": [finding.as_json() for finding in report.findings],
        "logs": [{"generation": number, "size": log.size, "root": log.to_json()["root"], "begun": log.begun,
                  "checkpoint": log.checkpoint, **log.totals} for number, log in sorted(report.logs.items())],
    }


def acknowledge(given):
    store = Store(given.state)
    with store.locked():
        box = store.enrolled(given.device)
        new = box.acknowledge(given.reason)
        store.save(box)
    for finding in new:
        print(f"acknowledged: {finding}")
    if not new:
        print("nothing to acknowledge: `ledge-platform audit verify` finds what is wrong")


def show(given):
    """Records, each of which is verified on the way; all of the log is, so that nothing can have been left out."""
    source, box = open_source(given.source, given), Store(given.state).enrolled(given.device)

    def on_record(line, record):
        if wanted(given, record):
            print(line.decode(errors="replace") if given.json else records.line(record))

    found = []
    for generation in sorted({*source.generations(box.device, list(box.logs)), *box.logs}):
        try:
            head = fleet.head_of(source, box, generation)
        except Untrue as error:
            print(f"ledge-platform: log {generation}: its checkpoint does not count: {error}", file=sys.stderr)
            return STATUSES[TAMPERED]
        if head:
            walked = walk.Walk(source, f"{box.device}/{generation}", generation, head, box.logs.get(generation), True,
                               on_record).run()
            found += walked.findings
        elif generation in box.logs:
            found.append(Finding(GAP, "its checkpoint is gone", generation))
    sys.stdout.flush()
    for finding in found:
        print(records.printable(f"ledge-platform: {finding}"), file=sys.stderr)
    if worst(found) not in (None, FAILED, NOTICE):
        print("ledge-platform: the log is not whole: what is shown proves nothing", file=sys.stderr)
    return status(found)


def wanted(given, record):
    event = record["event"]
    if given.actions and event["action"] not in given.actions:
        return False
    if given.model and records.model_of(event) != given.model:
        return False
    if given.since or given.until:
        try:
            at = moments.parse(record["ts"])
        except Failure:
            return True  # there is no such day: rather shown than left out
        return not (given.since and at < given.since or given.until and at >= given.until)
    return True


def check_proof(given):
    box = Store(given.state).enrolled(given.device)
    line = read(given.record).rstrip(b"\n") if given.record else None
    try:
        record, head = proofs.check(read(given.file), box, line)
    except Untrue as error:
        print(f"ledge-platform: the proof does not hold: {error}", file=sys.stderr)
        return STATUSES[TAMPERED]
    print(f"record {record['seq']} is in {head.origin}, which had {head.size} records when it was signed:")
    print(records.line(record))


def quota(given):
    """An empty file by the name of each box with logs above the quota: the web server refuses its uploads."""
    source = open_source(given.source, given)
    sizes = source.sizes()
    over = {device for device, size in sizes.items() if size > given.most_bytes}
    full = given.full or (None if source.is_far else source.path.resolve().parent / "full")
    known = set()
    if full:
        full.mkdir(parents=True, exist_ok=True)
        known = {entry.name for entry in full.iterdir()}
        for device in over - known:
            (full / device).touch()
        for device in known - over:
            (full / device).unlink(missing_ok=True)
    for device in sorted(over | known):
        if given.quiet and device in over & known:
            continue
        taken = f"{device}: {sizes.get(device, 0) / 1e9:.3g} GB of {given.most_bytes / 1e9:.3g} GB"
        if device not in over:
            print(f"{taken}: uploads are taken again")
        else:
            print(f"{taken}: " + ("uploads are refused" if full else "take its access key back, or give it more"))
    if not given.quiet:
        print(f"{len(sizes)} boxes: {len(over)} over their quota, {sum(sizes.values()) / 1e9:.3g} GB together")
    return Refused.status if over else DONE


def tidy(given):
    """Removes partial tiles once the whole tile is there."""
    source = open_source(given.source, given)
    there = set(source.list())
    over = sorted(path for path in there if ".p/" in path and path.partition(".p/")[0] in there)
    source.remove(over)
    print(f"{len(over):,} partial tiles removed, of which the whole ones are there")


VERBS = {
    "audit enroll": enroll,
    "audit forget": forget,
    "audit keys": key_list,
    "audit verify": verify,
    "audit acknowledge": acknowledge,
    "audit show": show,
    "audit check-proof": check_proof,
    "audit quota": quota,
    "audit tidy": tidy,
}
