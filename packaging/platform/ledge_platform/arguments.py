"""The command line of ledge-platform."""
import argparse
import re
import textwrap
from pathlib import Path

from . import catalogues, ceremony, manifest, moments, names, waves
from .boxes import asking, inviting, monitoring, questions
from .certificates.authority import LIFETIMES
from .errors import Failure
from .repository import OFFLINE, ROLES
from .site.layout import EXISTING, OWN

EPILOG = """\
keys: a verb that signs says which keys it needs; name the folders that have them with --keys, as often as needed. A
passphrase is taken from LEDGE_PLATFORM_PASSPHRASE_<KEY>, else LEDGE_PLATFORM_PASSPHRASE, else asked for. That of a new
key has 12 characters or more.

exit status: 0 done, 1 judged and not good (model add, verify, watch) or waiting for signatures of others, 2 not done;
see `audit verify --help` for its own
"""

AUDIT_EPILOG = """\
exit status, that of the worst: 5 tampered (what is there is not what was signed, or less than before), 4 fork (the
box, or somebody with its key, signed two histories), 3 gap (records are missing), 2 not verified, 6 boxes are silent,
0 all whole
"""
ANYWHERE = "FOLDER|s3://BUCKET/PREFIX|https://..."
SERVED_BY = (OWN, EXISTING)
STATE, BOXES = Path("/var/lib/ledge-platform/audit"), Path("/var/lib/ledge-platform/boxes")


GUARDS = f"""\
what guards a rollout, unless an option says otherwise:
{textwrap.indent(chr(10).join(manifest.spoken_guards(manifest.completed({"target": "models/"}))), "  ")}

gate: a limit is a number, or off. Where there is too little to judge by, it passes.
  golden_min        share of the signed golden inputs that must be answered right
  p95_ratio_max     CPU time of a run, over that of the version before on the same inputs, in pairs; 0.5 ms more is never
                    too slow
  error_rate_max    share of the requests that the new version fails, or answers with values that are not finite, and the
                    one before does not
  memory_ratio_max  memory of the loaded model, over that of the version before; 32 MiB more are never too much
  agreement_min     share of the mirrored requests on which both versions agree; besides, they must agree as often as was
                    signed (model add --evaluate)
  psi_max           drift of the answered classes against the signed reference (population stability index)

shadow, canary, soak: a stage ends when it has lasted min_s and seen min_requests, and at max_s at the latest.
  share         of the requests; 0 leaves the stage out. A soak sees all of them
  min_s, max_s  seconds, or a duration such as 30m, 2h, 7d
  min_requests  requests that the new version must have seen
  quiet         what max_s means when there were fewer: pass (the gate is asked about those there were, and the box goes
                on) or roll_back
Nothing is compared for the first version of a model: shadow and canary pass at once, and the soak counts errors.
Settings and runtimes see no requests: they soak for min_s. A release of packages has only two guards: soak min_s, in
which its service must stay healthy, and gate memory_ratio_max, of the memory of that service; 64 MiB more are never too
much."""


def checked(parse):
    """A converter for argparse: its complaints are ours, in one line."""
    def convert(text):
        try:
            return parse(text)
        except Failure as failure:
            raise argparse.ArgumentTypeError(str(failure)) from None
    return convert


def share(text):
    try:
        share = float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise Failure(f"{text!r} is no share: write it like 2%")
    return share


def gigabytes(text):
    try:
        size = float(text) * 1e9
    except ValueError:
        size = 0.0
    if not 0 < size < float("inf"):
        raise Failure(f"{text!r} is no size in gigabytes above 0")
    return int(size)


def expiry(text):
    role, _, value = text.partition("=")
    if role not in ROLES:
        raise Failure(f"{text!r}: write ROLE=DURATION, like fleet=7d, with one of {', '.join(ROLES)}")
    return role, moments.duration(value)


def threshold(text):
    """(keys that must sign, keys) of `2/3`."""
    found = re.fullmatch(r"(\d{1,2})/(\d{1,2})", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]) <= ceremony.KEYS_MAX:
        raise Failure(f"{text!r}: write M/N, like 2/3, with 1 to {ceremony.KEYS_MAX} keys")
    return int(found[1]), int(found[2])


def role_threshold(text):
    role, _, value = text.partition("=")
    if role not in OFFLINE:
        raise Failure(f"{text!r}: write ROLE=M/N, like models=2/3, with one of {', '.join(OFFLINE)}")
    return role, threshold(value)


def key_number(text):
    """1 to 65535; a PIV slot 9c is 2."""
    if not re.fullmatch(r"[1-9]\d{0,4}", text):
        raise Failure(f"{text!r} is no number of a key")
    return int(text)


def version_or_none(text):
    return 0 if text == "none" else names.version(text)


def address(text):
    if not re.fullmatch(r"(https?|file)://[^\s]+", text):
        raise Failure(f"{text!r} is no address: write it like https://packages.example.com")
    return text.rstrip("/")


def line(text):
    if not 1 <= len(text) <= 200 or not text.isprintable():
        raise Failure(f"{text!r}: 1 to 200 printable characters in one line")
    return text


class Words(argparse.ArgumentParser):
    """An error is one line and a hint, without the whole usage."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parser():
    result = Words(
        prog="ledge-platform",
        description="Decides what a fleet of Ledge boxes runs: signs models, settings and runtimes, rolls "
        "them out in waves, and watches.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = result.add_subparsers(dest="verb", required=True, metavar="VERB")
    site(verbs)
    repository(verbs)
    for kind in names.FOLDERS:
        releases(verbs, kind)
    catalogue(verbs)
    package(verbs)
    upgrade(verbs)
    authority(verbs)
    boxes(verbs)
    rollout(verbs)
    roles(verbs)
    outward(verbs)
    audit(verbs)
    return result


def verb(verbs, name, text, signs=False, repository=True, **more):
    added = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", **more)
    if repository:
        added.add_argument("repository", type=Path, metavar="REPO", help="the folder of the repository")
    if signs:
        added.add_argument(
            "--keys", action="append", default=[], type=Path, metavar="DIR", help=f"a folder of keys ({signs})"
        )
    return added


def root_option(add):
    add("--root", type=Path, default=Path("/"), metavar="DIR", help="all folders of the platform are below it, for a trial (/)")


def site(verbs):
    making = verb(
        verbs, "init", "make a platform on this machine, or what is missing of it", repository=False,
        epilog="Run again, it finishes what was interrupted, and says what it found. To change something later, change "
        "/etc/ledge-platform/platform.toml and run it again.",
    )
    add = making.add_argument
    add("name", type=checked(names.name), metavar="NAME", help="of the platform and its certificate authority")
    add("--domain", required=True, metavar="DOMAIN", help="the name by which boxes reach this machine")
    root_option(add)
    add("--offline-keys", type=Path, metavar="DIR",
        help="where keys go that are not kept on this machine, such as a stick (default: /etc/ledge-platform/offline-keys)")
    add("--plain", action="store_true", help="put offline keys under no passphrase, for a trial")
    add("--region", metavar="WORD", help="what boxes call the place of this machine in their configuration (eu)")
    add("--address", action="append", default=[], metavar="HOST", help="another name or address of the servers; as often as needed")
    add("--https-port", type=int, metavar="N", help="of nginx (443)")
    add("--mqtt-port", type=int, metavar="N", help="of the broker (8883)")
    add("--web-server", choices=SERVED_BY, help="an nginx of its own, or one that you have: then include the file that is written (own)")
    brokers = making.add_mutually_exclusive_group()
    brokers.add_argument("--broker-server", choices=SERVED_BY, help="likewise for mosquitto (own)")
    brokers.add_argument("--broker", metavar="mqtts://HOST[:PORT]", help="a broker on another machine")
    add("--ca", type=Path, metavar="FOLDER",
        help="certificates of an authority that you have, instead of one of its own: server.pem, server.key, platform.pem, "
        "platform.key, clients.pem (the authorities of clients), root.pem, and crl.pem if there is one")

    root_option(verb(verbs, "doctor", "check the platform of this machine, and say what to do", repository=False).add_argument)
    saving = verb(verbs, "backup", "save all state of the platform, with its online keys, in one tar file", repository=False).add_argument
    saving("file", type=Path, metavar="FILE", help="which others must not read")
    saving("--without-logs", action="store_true", help="leave the boxes' audit logs out, which may be large")
    root_option(saving)
    bringing = verb(verbs, "restore", "bring a platform back from a backup, onto an empty machine", repository=False).add_argument
    bringing("file", type=Path, metavar="FILE")
    root_option(bringing)
    for group, text in (("certificates", "renew the certificates of the platform's own servers when it is time, as a timer does"),
                        ("servers", "let nginx and the broker read what changed, as a timer does")):
        actions = verbs.add_parser(group, help=text).add_subparsers(dest="action", required=True, metavar="ACTION")
        root_option(verb(actions, "refresh", text, repository=False).add_argument)


def repository(verbs):
    group = verbs.add_parser("repository", help="the signed files that boxes fetch").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    add = verb(group, "init", "make a repository and its keys").add_argument
    add("--keys", type=Path, required=True, metavar="DIR", help="where the online keys go: snapshot, timestamp, fleet")
    add(
        "--offline-keys",
        type=Path,
        metavar="DIR",
        help="where root, targets, models and programs go, such as a stick (default: the same)",
    )
    add("--threshold", action="append", default=[], type=checked(role_threshold), metavar="ROLE=M/N",
        help="M of N keys sign an offline role, like models=2/3; as often as needed (root=2/3, others 1/1)")
    add("--root-keys", type=int, default=3, metavar="N", help="how many root keys there are (3)")
    add("--root-threshold", type=int, default=2, metavar="N", help="how many of them must sign (2)")
    add(
        "--encrypt", choices=("offline", "all", "none"), default="offline", help="which keys get a passphrase (offline)"
    )
    defaults = ", ".join(f"{role} {moments.spoken(seconds)}" for role, seconds in ceremony.LIFETIMES.items())
    add("--expires", action="append", default=[], type=checked(expiry), metavar="ROLE=DURATION",
        help=f"how long signed metadata is good for ({defaults})")

    adding = verb(
        group, "add-role", "give an older repository a role that new ones have, with a key of its own",
        signs="needed: targets; snapshot and timestamp make it public")
    adding.add_argument("role", choices=tuple(ceremony.KEY_NAMES), help="packages: signs packages of Ledge itself")
    adding.add_argument("--new-keys", type=Path, metavar="DIR", help="where the new key goes (default: beside that of models)")
    adding.add_argument("--plain", action="store_true", help="without a passphrase")


def releases(verbs, kind):
    group = verbs.add_parser(kind, help=f"add, list or remove {kind}s").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    adding = verb(
        group, "add", f"sign a version of a {kind}", signs="needed: models; snapshot and timestamp make it public"
    )
    add = adding.add_argument
    add("name", type=checked(names.name), metavar="NAME")
    add("version", type=checked(names.version), metavar="VERSION")
    if kind == "model":
        add(
            "source",
            type=Path,
            metavar="FOLDER",
            help="a model folder: model.onnx (or .xml with .bin, .tflite), model.toml and what it "
            "names; in the folder itself or in FOLDER/VERSION",
        )
        model_options(adding)
    elif kind == "configuration":
        add(
            "source",
            type=Path,
            metavar="SETTINGS.toml",
            help="settings that boxes let a platform change; docs/updates.md of Ledge lists them",
        )
    else:
        add(
            "source",
            type=Path,
            metavar="FOLDER",
            help="the shared libraries of the runtime, all in one folder; NAME is the runtime's",
        )
    requirements(adding)
    verb(group, "list", f"what there is of {kind}s")
    removing = verb(
        group,
        "remove",
        f"take a version of a {kind} out",
        signs="needed: models; snapshot and timestamp make it public",
    )
    removing.add_argument("name", type=checked(names.name), metavar="NAME")
    removing.add_argument("version", type=checked(names.version), metavar="VERSION")


def upgrade(verbs):
    group = verbs.add_parser(
        "upgrade", help="packages of Ledge itself, which a rollout brings to boxes"
    ).add_subparsers(dest="action", required=True, metavar="ACTION")
    adding = verb(
        group, "add", "sign the packages of one version as a release; a rollout names it packages/NAME/RELEASE",
        signs="needed: programs; snapshot and timestamp make it public")
    adding.add_argument("version", type=checked(names.version), metavar="RELEASE", help="1 for the version that boxes have now")
    adding.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="debs and rpms of one package, each of another architecture or format")
    adding.add_argument("--requires-ledge", metavar="VERSION", help="boxes with an older Ledge wait for another upgrade first")
    verb(group, "list", "the signed packages")
    removing = verb(
        group, "remove", "take a release out, but never the way back of boxes", signs="needed: programs; snapshot and timestamp make it public")
    removing.add_argument("name", type=checked(names.name), metavar="NAME", help="such as ledge-slim")
    removing.add_argument("version", type=checked(names.version), metavar="RELEASE")


def model_options(adding):
    add = adding.add_argument
    add(
        "--golden",
        action="append",
        default=[],
        metavar="FILE[=LABEL]",
        help="an input with its known answer, beside those of model.toml: a "
        "request with its outputs in JSON, or a photograph and its label",
    )
    add("--golden-tolerance", type=float, metavar="X", help="how much the numbers of --golden may differ")
    add("--golden-min-score", type=float, metavar="X", help="what the label of --golden must score at least")
    add(
        "--no-golden",
        action="store_true",
        help="sign a model without golden inputs; nothing then proves that it runs right on a box",
    )
    add(
        "--ledge",
        type=Path,
        metavar="PROGRAM",
        help="the program that runs the golden inputs here before anything is signed (default: `ledge` on PATH)",
    )
    add(
        "--without-check",
        action="store_true",
        help="sign without running the golden inputs, such as where no `ledge` or none of its runtimes is installed",
    )
    add(
        "--evaluate",
        type=Path,
        metavar="DIR",
        help="an evaluation set: inputs in the form of golden inputs, answers left out, a file or a line (.jsonl) each. "
        "Both versions run on it, and how often they agree is signed: boxes stop a version that agrees less often",
    )
    add(
        "--against",
        metavar="VERSION",
        help="the signed version that this one is compared with (default: the highest that is lower), or none",
    )
    add(
        "--agreement-min",
        type=float,
        default=0.95,
        metavar="SHARE",
        help="refuse a version that surely agrees with the one before on fewer inputs than this (0.95)",
    )
    add(
        "--accuracy", type=Path, metavar="REPORT.json", help="how good it was found to be: signed and shown, not judged"
    )
    add(
        "--reference",
        type=Path,
        metavar="FILE.json",
        help="how its classes should be distributed, for the gate psi_max: "
        '{"output": "probabilities", "classes": [0.2, 0.8]}',
    )
    add("--tolerance", type=float, metavar="X", help="how much two versions may differ and still agree (default: as measured, else 0.01)")
    add(
        "--input",
        action="append",
        default=[],
        metavar="NAME:TYPE:SHAPE",
        help="an input, like features:FP32:-1,13; read from the ONNX file where the Python package onnx is installed",
    )
    add("--output", action="append", default=[], metavar="NAME:TYPE:SHAPE", help="an output, likewise")


def requirements(adding):
    add = adding.add_argument
    add("--release", metavar="TEXT", help="its semantic version, for people (default: `release` of model.toml)")
    add("--requires-ledge", metavar="VERSION", help="the oldest Ledge that may run it")
    add(
        "--requires-runtime",
        action="append",
        default=[],
        choices=("onnxruntime", "openvino"),
        help="a runtime that can run it",
    )
    add(
        "--requires-architecture", action="append", default=[], choices=("x86_64", "aarch64"), help="a machine that can"
    )
    add("--requires-memory-mb", type=int, metavar="MIB", help="the least memory of the machine")
    add("--limit-memory-mb", type=int, metavar="MIB", help="what its trial in a process of its own may take")
    add("--limit-seconds", type=int, metavar="S", help="how long that may last")


def catalogue(verbs):
    add = verb(
        verbs,
        "catalogue",
        "sign a folder of models as a catalogue, from which owners of boxes add them",
        repository=False,
        epilog="Run again, it signs what the folder has now, with the same keys and for the same time from now on. Boxes "
        "get root.json of FOLDER as their catalogue.root_file.",
    ).add_argument
    add("models", type=Path, metavar="MODELS", help="a model repository: a folder a model, with its model.toml")
    add("folder", type=Path, metavar="FOLDER", help="the catalogue: a folder for a web server or a USB stick")
    add("--keys", type=Path, required=True, metavar="DIR", help="the folder of its keys; made when there are none yet")
    add("--encrypt", action="store_true", help="put new keys under a passphrase")
    add(
        "--lifetime",
        type=checked(moments.duration),
        default=catalogues.LIFETIME,
        metavar="DURATION",
        help=f"how long a new catalogue is good for after each signing ({moments.spoken(catalogues.LIFETIME)})",
    )


def lifetime_of_authority(text):
    of, _, value = text.partition("=")
    if of not in ("root", "issuing"):
        raise Failure(f"{text!r}: write root=DURATION or issuing=DURATION, like issuing=365d")
    return of, moments.duration(value)


def boxes(verbs):
    group = verbs.add_parser("box", help="boxes join, renew their certificates, and leave").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    a_box = checked(lambda text: names.name(text, "box"))

    def added(name, text):
        result = verb(group, name, text, repository=False)
        result.add_argument("--root", type=Path, default=Path("/"), metavar="DIR", help="below which the platform lies (/)")
        return result.add_argument

    add = added("add", "make a join file for each box, or one for a batch of boxes")
    add("names", nargs="*", type=a_box, metavar="NAME", help="its device id, and the common name of its certificate")
    add("--csv", type=Path, metavar="FILE",
        help="boxes with the columns name, fleet, group and metrics, which its first line names")
    add("--metrics", type=checked(monitoring.address), metavar="HOST[:PORT]",
        help=f"where Prometheus reaches the box, which then listens on this port ({monitoring.PORT}) of all its addresses")
    add("--batch", type=a_box, metavar="NAME", help="one join file for many boxes, each of which says its name")
    add("--count", type=int, metavar="N", help="how many boxes can join by the batch (default: as many as --names has)")
    add("--names", dest="listed", type=Path, metavar="FILE",
        help="the names of the batch, one a line: others are refused. Without it, each box waits for `box approve`")
    add("--valid", type=checked(moments.duration), default=inviting.VALID_S, metavar="DURATION",
        help=f"how long the join files are good for ({moments.spoken(inviting.VALID_S)})")
    add("--fleet", type=checked(names.name), metavar="FLEET", help="that the boxes join (default: that of the box's settings)")
    add("--group", type=checked(names.name), metavar="GROUP", help="of the fleet")
    add("--settings", type=Path, metavar="SETTINGS.toml", help="settings that each box starts with, as for `configuration add`")
    add("--packages", action="store_true", help="let the platform upgrade Ledge itself on the boxes (`upgrade add`)")
    add("--out", type=Path, default=Path("."), metavar="DIR", help="where NAME.join goes (here); it is secret until it is used")
    add("--again", action="store_true", help="replace open invitations: their join files are worth nothing then")

    add = added("answer", "decide on the requests of boxes; the timer does it every minute")
    add("--quiet", action="store_true", help="say only what was refused")
    add = added("list", "all boxes and what needs a look")
    add("--json", action="store_true")
    add = added("ask", "ask a box that allows it how it is, and print its answer; without a question, its last answer")
    add("name", type=a_box, metavar="NAME")
    add("question", nargs="?", choices=questions.QUESTIONS, metavar="QUESTION", help=f"{', '.join(questions.QUESTIONS)}: the checks of `ledge doctor`, without their texts")
    add("--wait", type=checked(moments.duration), default=asking.WAIT_S, metavar="DURATION",
        help=f"for the answer ({moments.spoken(asking.WAIT_S)})")
    add("--json", action="store_true")
    for name, text in (("approve", "let boxes join that wait for it"), ("reject", "refuse boxes that wait for approval")):
        add = added(name, text)
        add("name", nargs="?", type=a_box, metavar="NAME")
        add("--all", action="store_true", help="all that wait")
        add("--key", metavar="DIGITS", help="the request with this key, as `box list` shows it")
    added("revoke", "revoke all certificates of a box")("name", type=a_box, metavar="NAME")
    added("forget", "revoke a box that is no more, and free its name")("name", type=a_box, metavar="NAME")
    add = added("metrics", "say where Prometheus reaches a member, from its next certificate on")
    add("name", type=a_box, metavar="NAME")
    add("address", metavar=f"HOST[:PORT]|{monitoring.NONE}")


def authority(verbs):
    group = verbs.add_parser("ca", help="a certificate authority for boxes and servers").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )

    def added(name, text):
        result = verb(group, name, text, repository=False)
        result.add_argument("folder", type=Path, metavar="FOLDER", help="of the authority, on the platform's machine")
        return result.add_argument

    def expires(add, of):
        seconds = LIFETIMES[of]
        add("--expires", type=checked(moments.duration), default=seconds, metavar="DURATION",
            help=f"how long it is good for ({moments.spoken(seconds)})")

    add = added("init", "make a root, which is kept offline, and an issuing authority below it")
    add("--name", type=checked(names.name), default="ledge", metavar="NAME", help="of the authority (ledge)")
    add("--offline-keys", type=Path, required=True, metavar="DIR", help="where the key of the root goes, such as a stick")
    add("--plain", action="store_true", help="put the key of the root under no passphrase")
    add("--expires", action="append", default=[], type=checked(lifetime_of_authority), metavar="root|issuing=DURATION",
        help=", ".join(f"{of} {moments.spoken(LIFETIMES[of])}" for of in ("root", "issuing")))

    add = added("issue", "issue a certificate, with its key or for a request")
    add("name", type=checked(names.name), metavar="NAME", help="its common name: the device id of a box")
    add("--host", action="append", default=[], metavar="NAME|ADDRESS", help="of a server that it is for (else: of a client)")
    add("--request", type=Path, metavar="FILE", help="a request in PEM (PKCS #10) of who keeps the key")
    add("--out", type=Path, default=Path("."), metavar="DIR", help="where NAME.pem and NAME.key go (here)")
    add("--again", action="store_true", help="although NAME has a certificate that is valid")
    expires(add, "certificate")

    added("list", "what was issued")
    add = added("revoke", "revoke all certificates of a name, or one")
    add("what", metavar="NAME|SERIAL")
    added("refresh", "sign the list of revoked certificates again, as a timer does")
    add = added("renew", "a new certificate of the issuing authority, with the same key")
    add("--keys", action="append", required=True, type=Path, metavar="DIR", help="a folder with the key of the root")
    expires(add, "issuing")


def package(verbs):
    group = verbs.add_parser("package", help="a signed repository of packages, for apt and dnf").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    signs = "needed: packages, and while two keys are accepted both"

    def added(name, text, keys=None):
        result = verb(group, name, text, repository=False)
        result.add_argument("folder", type=Path, metavar="FOLDER", help="the repository, a folder for a web server")
        if keys:
            result.add_argument(
                "--keys", action="append", default=[], type=Path, metavar="DIR", help=f"a folder of keys ({keys})"
            )
        return result

    add = added("init", "make a repository of packages and its OpenPGP key").add_argument
    add("--keys", type=Path, required=True, metavar="DIR", help="the folder of its key; made when there is none yet")
    add("--encrypt", action="store_true", help="put a new key under a passphrase")
    add("--address", type=checked(address), metavar="URL", help="where clients find FOLDER, like https://packages.example.com")
    add(
        "--name",
        type=checked(names.name),
        default="ledge",
        metavar="NAME",
        help="of the files for clients: NAME.asc, NAME.gpg, NAME.sources, NAME.repo (ledge)",
    )
    add("--origin", type=checked(line), default="Ledge", metavar="TEXT", help="who publishes, for apt (Ledge)")
    add("--label", type=checked(line), metavar="TEXT", help="the name of the repository, for people (default: the origin)")
    add(
        "--maintainer",
        type=checked(line),
        default="Ledge packages",
        metavar="'NAME <MAIL>'",
        help="the user id of the key, which dnf shows (Ledge packages)",
    )
    add("--suite", type=checked(names.name), default="stable", metavar="SUITE", help="of apt (stable)")
    add(
        "--lifetime",
        type=checked(moments.duration),
        default="30d",
        metavar="DURATION",
        help="how long apt takes the index after each publication (30d)",
    )
    add(
        "--key-lifetime",
        type=checked(moments.duration),
        default="1095d",
        metavar="DURATION",
        help="how long a new key is good for (1095d)",
    )

    adding = added("add", "check packages and put them into the repository; `publish` makes them public")
    adding.add_argument("files", type=Path, nargs="+", metavar="FILE.deb|FILE.rpm")

    publishing = added("publish", "sign the packages and their indexes, and make them public", signs).add_argument
    publishing("--address", type=checked(address), metavar="URL", help="where clients find FOLDER; kept for the next time")
    publishing(
        "--date",
        type=checked(moments.parse),
        metavar="MOMENT",
        help="of the signatures, like 2026-11-20T06:00:00Z (default: SOURCE_DATE_EPOCH, else now)",
    )

    rotating = added("rotate", "make a second key, which is accepted next to the first", signs).add_argument
    rotating("--new-keys", type=Path, metavar="DIR", help="where the new key goes (default: the first folder of --keys)")
    rotating("--encrypt", action="store_true", help="put the new key under a passphrase")
    rotating("--finish", action="store_true", help="accept only the second key from now on")


def rollout(verbs):
    group = verbs.add_parser("rollout", help="start and steer rollouts").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    online = "needed: fleet, snapshot, timestamp"

    def steer(name, text, fleet_help="the fleet that has it (default: found by the id)"):
        added = verb(group, name, text, signs=online)
        if fleet_help:
            added.add_argument(
                "--id", required=True, type=checked(lambda text: names.name(text, "rollout")), metavar="ROLLOUT"
            )
            added.add_argument("--fleet", type=checked(names.name), metavar="FLEET", help=fleet_help)
        else:
            added.add_argument(
                "--fleet", type=checked(names.name), default="default", metavar="FLEET", help="(default)"
            )
        return added

    starting = steer("start", "start a rollout", "the fleet (default)")
    starting.epilog, starting.formatter_class = GUARDS, argparse.RawDescriptionHelpFormatter
    start_options(starting.add_argument)
    widening = steer(
        "widen", "let more of the fleet in: the next wave now, unless an option says otherwise"
    ).add_mutually_exclusive_group()
    widening.add_argument(
        "--to",
        type=checked(waves.share),
        metavar="PERCENT",
        help="so much of the fleet now; later waves come as planned",
    )
    widening.add_argument(
        "--waves", type=checked(waves.parse), metavar="WAVES", help="another schedule, counted from the same start"
    )
    steer("pause", "stop boxes from going on; those that are done stay as they are")
    resuming = steer("resume", "go on with a paused rollout where it stood")
    resuming.add_argument(
        "--catch-up", action="store_true", help="keep the old times: the waves of the meantime all come at once"
    )
    steer("stop", "take a rollout out of the manifest: boxes that try it go back, boxes that are done stay")
    revoking = steer("revoke", "forbid a version: boxes that run it go back to the one before", None)
    revoking.add_argument("release", type=checked(names.release), metavar="models/NAME/VERSION")
    revoking.add_argument("--undo", action="store_true", help="allow it again")
    least = steer("minimum", "forbid all versions below one", None)
    least.add_argument("subject", type=checked(names.subject), metavar="models/NAME")
    least.add_argument("version", type=checked(version_or_none), metavar="VERSION|none")
    pinning = steer("pin", "keep one box at a version, whatever is rolled out", None)
    pinning.add_argument("device", type=checked(lambda text: names.name(text, "device")), metavar="DEVICE")
    pinning.add_argument("subject", type=checked(names.subject), metavar="models/NAME")
    pinning.add_argument("version", type=checked(version_or_none), metavar="VERSION|none")
    showing = verb(group, "show", "the rollouts of all fleets")
    showing.add_argument("--fleet", type=checked(names.name), metavar="FLEET")
    showing.add_argument("--json", action="store_true", help="the manifest as it is signed")


def start_options(add):
    add(
        "--target", required=True, type=checked(names.release), metavar="models/NAME/VERSION", help="what is rolled out; packages/NAME/RELEASE is Ledge itself"
    )
    add(
        "--start", type=checked(moments.parse), metavar="MOMENT", help="when it starts, like 2026-11-20T06:00:00Z (now)"
    )
    add(
        "--waves",
        type=checked(waves.parse),
        default="default",
        metavar="WAVES",
        help=f"{', '.join(waves.PRESETS)}, or shares and times after the start: 1%%@1h,20%%@1d,100%%@3d (default)",
    )
    add("--groups", metavar="GROUP,...", help="only boxes of these groups")
    add("--devices", metavar="DEVICE,...", help="only these boxes; with --groups, either")
    add(
        "--window",
        type=checked(manifest.parse_window),
        metavar="WINDOW",
        help="'Asia/Dubai mon,tue 01:00-05:00': boxes change only then",
    )
    add(
        "--gate",
        type=checked(manifest.parse_gate),
        metavar="KEY=VALUE,...|off",
        help="what the new version must hold (see below)",
    )
    for step, text in (
        ("shadow", "mirror a share of the requests to it"),
        ("canary", "let it answer a share"),
        ("soak", "let it answer all before it is called a success"),
    ):
        add(
            f"--{step}",
            type=checked(lambda text, step=step: manifest.parse_step(text, step)),
            metavar="KEY=VALUE,...|off",
            help=f"{text} (see below)",
        )
    add("--max-attempts", type=int, metavar="N", help="how often a box tries it when something passing fails")
    add("--byte-budget", type=int, metavar="BYTES", help="the most a box fetches for it")
    add("--allow-downgrade", action="store_true", help="boxes with a newer version take it too")
    add("--requires-ledge", metavar="VERSION",
        help="boxes with an older Ledge wait (default: what the release requires)")


def roles(verbs):
    group = verbs.add_parser("key", help="list, make, replace and re-encrypt keys").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    listing = verb(group, "list", "all keys, where they are, and when what they signed expires")
    listing.add_argument(
        "--keys", action="append", default=[], type=Path, metavar="DIR", help="folders to look for them"
    )
    making = verb(group, "generate", "make a key on a machine of its own, for `key rotate --public`", repository=False)
    making.add_argument("name", type=checked(names.name), metavar="NAME")
    making.add_argument("--keys", type=Path, required=True, metavar="DIR", help="where it goes")
    making.add_argument("--plain", action="store_true", help="without a passphrase")
    making.add_argument(
        "--token", metavar="LABEL", help="make it in this PKCS #11 token, ECDSA P-256; see `key import-token --help`"
    )
    making.add_argument("--id", type=checked(key_number), default=2, metavar="N", help="its number in the token (2)")
    bringing = verb(
        group,
        "import-token",
        "use a key that a PKCS #11 token has, ECDSA P-256, for `key rotate` or `key threshold --public`",
        repository=False,
        epilog="PYKCS11LIB names the PKCS #11 module. The PIN comes from LEDGE_PLATFORM_PIN_<KEY> or "
        "LEDGE_PLATFORM_PIN, or is asked for, and is tried once.",
    )
    bringing.add_argument("name", type=checked(names.name), metavar="NAME")
    bringing.add_argument("--keys", type=Path, required=True, metavar="DIR", help="where NAME.hsm and NAME.pub.pem go")
    bringing.add_argument("--token", metavar="LABEL", help="its label (default: the only one there is)")
    bringing.add_argument(
        "--id", type=checked(key_number), default=2, metavar="N", help="the number of the key in it (2)"
    )
    changing = verb(
        group,
        "passphrase",
        "put a key under a new passphrase, from LEDGE_PLATFORM_NEW_PASSPHRASE or asked for, and an old file under scrypt",
        repository=False,
    )
    changing.add_argument("name", type=checked(names.name), metavar="NAME")
    changing.add_argument("--keys", type=Path, required=True, metavar="DIR", help="where it is")
    rotating = verb(
        group,
        "rotate",
        "put a new key in the place of one",
        signs="needed: for models, packages and fleet the key of targets, for all "
        "others a threshold of root keys; and those of the roles that are signed anew",
    )
    rotating.add_argument(
        "key", metavar="ROLE|KEY", help="a role with one key, the name of a key's file, or 8 digits of its id"
    )
    rotating.add_argument(
        "--new-keys", type=Path, metavar="DIR", help="where the new key goes (default: beside the old one)"
    )
    rotating.add_argument("--public", type=Path, metavar="FILE", help="take this public key, made elsewhere")
    rotating.add_argument(
        "--plain", action="store_true", help="without a passphrase (default for snapshot, timestamp and fleet)"
    )
    changing = verb(
        group,
        "threshold",
        "change how many keys of how many sign an offline role",
        signs="needed: for models and packages the keys of targets, for targets and root a threshold of root keys",
    )
    changing.add_argument("role", choices=OFFLINE)
    changing.add_argument("threshold", type=checked(threshold), metavar="M/N", help="M of N keys, like 2/3")
    changing.add_argument(
        "--public", action="append", default=[], type=Path, metavar="FILE", help="add this public key, made elsewhere"
    )
    changing.add_argument(
        "--remove",
        action="append",
        default=[],
        metavar="KEY",
        help="take this key out: the name of its file, or 8 digits of its id",
    )
    changing.add_argument(
        "--new-keys",
        type=Path,
        metavar="DIR",
        help="where the keys go that are still missing for N (default: beside the others)",
    )
    changing.add_argument("--plain", action="store_true", help="without a passphrase")
    signing = verb(
        verbs,
        "sign",
        "show the version of an offline role that waits for signatures, and add those of the keys that are here",
        signs="needed: one of the role",
        epilog="Exit status 1: it still waits for others. Compare the hashes that are shown with those of the files "
        "that you approved.",
    )
    signing.add_argument("role", choices=OFFLINE)
    signing_options(signing)
    root = verbs.add_parser("root", help="sign a new root together").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    signing_options(verb(root, "sign", "the same as `sign REPO root`", signs="needed: a root key"))
    renewing = verb(verbs, "renew", "sign an offline role anew before it expires", signs="needed: that of the role")
    renewing.add_argument("role", choices=OFFLINE)
    refreshing = verb(
        verbs,
        "refresh",
        "sign the online roles anew before they expire, and make public what was signed offline",
        signs="needed: fleet, snapshot, timestamp",
    )
    refreshing.add_argument(
        "--warn",
        type=checked(moments.duration),
        default="30d",
        metavar="DURATION",
        help="say so when an offline role expires within it (30d)",
    )


def signing_options(signing):
    signing.add_argument(
        "--staged",
        type=Path,
        metavar="FILE",
        help="the version that another holder brings, with its files in targets/ beside it; the signatures go into "
        "FILE as well",
    )
    signing.add_argument("--yes", action="store_true", help="do not ask after showing what is signed")
    signing.add_argument("--discard", action="store_true", help="drop the version that waits")


def outward(verbs):
    verifying = verb(
        verbs, "verify", "let python-tuf's client go through the repository as a box does", repository=False
    )
    verifying.add_argument("repository", metavar="REPO|URL")
    verifying.add_argument(
        "--root", type=Path, metavar="FILE", help="the root that boxes have (default: the first one in REPO)"
    )
    publishing = verb(verbs, "publish", "bring the repository to where boxes fetch it")
    publishing.add_argument("destination", metavar="FOLDER|s3://BUCKET/PREFIX")
    publishing.add_argument("--endpoint", metavar="URL", help="of an S3 that is not Amazon's")
    fleet = verbs.add_parser("fleet", help="what the boxes report").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    status = verb(fleet, "status", "a table of all boxes", repository=False)
    broker(status, of_platform=True)
    status.add_argument("--fleet", type=checked(names.name), metavar="FLEET", help="only this fleet")
    status.add_argument("--json", action="store_true")
    hinting = verb(verbs, "hint", "tell the boxes that there is news, so that they look at once")
    broker(hinting, of_platform=True)
    hinting.add_argument("--fleet", type=checked(names.name), metavar="FLEET", help="only this fleet")
    watching = verb(
        verbs,
        "watch",
        "pause a rollout by itself when too many boxes fail it",
        signs="needed: fleet, snapshot, timestamp",
    )
    broker(watching, of_platform=True)
    add = watching.add_argument
    add("--rollout", required=True, type=checked(names.name), metavar="ROLLOUT")
    add("--fleet", type=checked(names.name), metavar="FLEET", help="the fleet that has it (default: found by the id)")
    add("--max-failures", type=checked(share), default="2%", metavar="SHARE", help="of the boxes that tried it (2%%)")
    add(
        "--max-silent",
        type=checked(share),
        default="5%",
        metavar="SHARE",
        help="that fall silent during the trial (5%%)",
    )
    add("--min-failures", type=int, default=3, metavar="N", help="never pause for fewer (3)")
    add("--min-reports", type=int, default=3, metavar="N", help="judge once so many boxes tried it (3)")
    add(
        "--silent-after",
        type=checked(moments.duration),
        default="15m",
        metavar="DURATION",
        help="how long offline is silent (15m)",
    )
    add(
        "--publish",
        metavar="FOLDER|s3://...",
        help="where to bring the paused manifest (default: REPO itself is served)",
    )
    add("--endpoint", metavar="URL", help="of an S3 that is not Amazon's")
    add("--once", action="store_true", help="judge once and end, for a timer: 0 goes on, 1 paused")
    add("--page", type=Path, metavar="FOLDER", help="write the fleet page there once a minute, as `page` does")
    shown(watching)
    paging = verb(verbs, "page", "write a folder of static files that shows all boxes and rollouts in a browser")
    paging.add_argument("folder", type=Path, metavar="FOLDER")
    broker(paging, of_platform=True)
    shown(paging)
    paging.add_argument("--quiet", action="store_true", help="say nothing when it is written, for a timer")


def shown(added):
    """The options of a fleet page."""
    add = added.add_argument
    add("--state", type=Path, default=STATE, metavar="DIR", help=f"where `audit verify` keeps what it found ({STATE})")
    add("--boxes", type=Path, default=BOXES, metavar="DIR", help=f"where `box answer` keeps who is a member ({BOXES})")
    add(
        "--late-after",
        type=checked(moments.duration),
        default="15m",
        metavar="DURATION",
        help="a box is late when its last report is older (15m)",
    )


def audit(verbs):
    group = verbs.add_parser("audit", help="whether the audit logs of the boxes are whole").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    a_device = checked(lambda text: names.name(text, "device"))

    def added(name, text, source=None, state=True, **more):
        result = verb(group, name, text, repository=False, **more)
        add = result.add_argument
        if source:
            add("source", metavar=source, help="where boxes sync to")
            add("--endpoint", metavar="URL", help="of an S3 that is not Amazon's")
        if source == ANYWHERE:
            add("--ca", metavar="FILE", help="https: the authority of the server's certificate")
            add("--certificate", metavar="FILE", help="https: this client's certificate, and --key its key")
            add("--key", metavar="FILE")
        if state:
            add("--state", type=Path, default=STATE, metavar="DIR", help=f"keys and what was verified ({STATE})")
        return result

    enrolling = added("enroll", "pin the key that the checkpoints of a box are signed with")
    enrolling.add_argument("device", nargs="?", type=a_device, metavar="DEVICE")
    enrolling.add_argument("key_of_box", nargs="?", metavar="KEY|@FILE", help="as `ledge audit key` prints it")
    broker(enrolling)
    enrolling.add_argument("--replace", action="store_true", help="pin another key than before")
    added("forget", "take a box out").add_argument("device", type=a_device, metavar="DEVICE")
    added("keys", "the boxes and their keys")
    verifying = added("verify", "verify the logs of all enrolled boxes, from where the last run ended", ANYWHERE,
                      epilog=AUDIT_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = verifying.add_argument
    add("--device", action="append", type=a_device, metavar="DEVICE", help="only this one; as often as needed")
    add("--full", action="store_true", help="from the first record on")
    add("--stale-hours", type=float, default=26, metavar="N", help="how long a box may be silent (26)")
    add("--quiet", action="store_true", help="say only what is not whole, for a timer")
    add("--json", action="store_true")
    acknowledging = added("acknowledge", "let what the last run found of a box count no more").add_argument
    acknowledging("device", type=a_device, metavar="DEVICE")
    acknowledging("--reason", metavar="TEXT", help="kept with it")
    showing = added("show", "the records of a box, verified on the way", ANYWHERE).add_argument
    showing("device", type=a_device, metavar="DEVICE")
    showing("--since", type=checked(moments.parse), metavar="MOMENT", help="like 2026-11-20T06:00:00Z")
    showing("--until", type=checked(moments.parse), metavar="MOMENT", help="before it")
    showing("--action", action="append", dest="actions", metavar="ACTION", help="such as model_loaded; may be repeated")
    showing("--model", type=checked(names.name), metavar="NAME")
    showing("--json", action="store_true", help="the lines as they are in the log")
    proving = added("check-proof", "check by a proof of `ledge audit prove` that a record is in the log of a box")
    proving.add_argument("file", metavar="FILE")
    proving.add_argument("--device", required=True, type=a_device, metavar="DEVICE")
    proving.add_argument("--record", metavar="FILE", help="the record, where it is not in the proof")
    limiting = added("quota", "refuse the uploads of boxes whose logs take too much room, and take them again when they do not",
                     "FOLDER|s3://BUCKET/PREFIX", False).add_argument
    limiting("--most-gb", dest="most_bytes", type=checked(gigabytes), required=True, metavar="GB",
             help="what the logs of one box may take")
    limiting("--full", type=Path, metavar="DIR",
             help="where an empty file for each box over its quota tells nginx (default: FOLDER/../full)")
    limiting("--quiet", action="store_true", help="say only what has changed, for a timer")
    added("tidy", "remove the partial tiles of which the whole ones are there", "FOLDER|s3://BUCKET/PREFIX", False)


def broker(added, of_platform=False):
    add = added.add_argument
    if of_platform:
        root_option(add)
        add("--broker", metavar="mqtts://HOST[:PORT]", help="another broker than that of the platform at --root")
    else:
        add("--broker", metavar="mqtts://HOST[:PORT]")
    add("--ca", metavar="FILE", help="the authority of the broker's certificate (default: those of the system)")
    add("--certificate", metavar="FILE", help="this client's certificate, and --key its key")
    add("--key", metavar="FILE")
    add("--user", metavar="NAME", help="the password comes from LEDGE_PLATFORM_MQTT_PASSWORD")
