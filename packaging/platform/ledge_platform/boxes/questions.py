"""Questions to a box, and its answers: `box ask`.

A question is signed by the platform's certificate and published under the name of the box's inbox, which no other box
knows. The answer comes into that inbox. It has words of closed lists and numbers; what a box adds is refused.

    questions/NAME.json    in the folder of `boxes.json`: what was asked last, and the last answer
"""
import json
import secrets
from dataclasses import asdict, dataclass, field

from .. import files, moments, reports
from ..errors import Failure
from . import dsse, requests

DOCTOR = "doctor"
QUESTIONS = (DOCTOR,)
# Boxes refuse a question that is good for more than an hour.
VALID_S = 900
LEVELS = ("ok", "warning", "failure")
# The checks of `ledge doctor`, as `src/membership/diagnosis.rs` names them.
CHECKS = frozenset((
    "clock", "cpu", "cores", "memory", "state", "access", "local_access", "local_plain", "tls", "grpc_tls", "runtimes",
    "isolation", "onnxruntime", "openvino", "feature_store", "egress", "audit_log", "audit_key", "audit_copy",
    "encryption", "daemon_sandbox", "model_sandbox", "mqtt", "membership", "updates", "updates_metadata",
    "updates_root", "catalogue", "catalogue_root", "models", "model_folders", "cameras", "model", "crashes",
    "full_queue", "failing_calls", "wrong_values", "rolled_back", "camera", "inbox", "alert", "other"))
CHECKS_MAX = 3 * len(CHECKS)
NUMBER_MAX = 2**53
LEDGE_LENGTH_MAX = 40
NO_ANSWER = ("no answer: the box is off or cannot reach the platform, or its owner does not allow it "
             "(`[membership] questions` in its configuration)")


@dataclass(frozen=True)
class Answer:
    """An answer of a box: a document of a stranger until its signature is verified."""

    id: str
    box: str
    content: dict
    keyid: str
    signature: bytes
    signed: bytes

    # Nothing is published for whoever sent it.
    wants_answer = False
    is_signed_by_certificate = requests.Request.is_signed_by_certificate


def is_answer(content):
    """True for an envelope that says it has an answer."""
    return dsse.read_object(content, "the file").get("payloadType") == dsse.DIAGNOSIS


def parse(content, id_):
    """The answer in a file under the name ID_."""
    body, signature = dsse.take_apart(content, dsse.DIAGNOSIS)
    payload = dsse.read_object(body, "its payload")
    if payload.get("version") != 1:
        raise Failure(f"it has version {dsse.short(payload.get('version'))}, and this platform knows 1")
    if set(payload) != {"version", "box", "question", "id", "at", "ledge", "checks"}:
        raise Failure("its payload has other keys than an answer")
    if payload["question"] not in QUESTIONS:
        raise Failure(f"it answers the question {dsse.short(payload['question'])}, which was never asked")
    if requests.matching(requests.ID, payload, "id") != id_:
        raise Failure("it is under the name of another answer")
    ledge = requests.text(payload, "ledge")
    if len(ledge) > LEDGE_LENGTH_MAX:
        raise Failure(f"its ledge has more than {LEDGE_LENGTH_MAX} characters")
    shown = {"id": id_, "question": payload["question"], "at": moments.text(moments.parse(payload["at"])),
             "ledge": reports.printable(ledge), "checks": checks(payload["checks"])}
    return Answer(id_, requests.box_name(requests.text(payload, "box")), shown,
                  requests.matching(requests.SERIAL, signature, "keyid"),
                  dsse.decode(requests.text(signature, "sig"), "its signature"), dsse.pae(dsse.DIAGNOSIS, body))


def checks(found):
    """[{check, level, count, free_bytes, seconds_left}], in which a check of a later Ledge is `other`."""
    if not isinstance(found, list) or len(found) > CHECKS_MAX:
        raise Failure("its checks are no list, or too many")
    return [one_check(entry) for entry in found]


def one_check(entry):
    if not isinstance(entry, dict) or set(entry) - {"check", "level", "count", "free_bytes", "seconds_left"}:
        raise Failure("one of its checks has other keys than a check")
    name, level = entry.get("check"), entry.get("level")
    if not isinstance(name, str) or level not in LEVELS:
        raise Failure("one of its checks has no name, or another level")
    shown = {"check": name if name in CHECKS else "other", "level": level}
    for key in ("count", "free_bytes", "seconds_left"):
        value = entry.get(key)
        is_number = type(value) is int and 0 <= value <= NUMBER_MAX
        if not is_number and (value is not None or key == "count"):
            raise Failure(f"the {key} of one of its checks is no number")
        if value is not None:
            shown[key] = value
    return shown


@dataclass
class Asked:
    """What was asked of a box last, and its last answer, which may be to an earlier question."""

    id: str
    question: str
    inbox: str
    made: str
    expires: str
    answer: dict | None = field(default=None)

    @property
    def is_answered(self):
        return self.answer is not None and self.answer["id"] == self.id


def file_of(boxes, name):
    return boxes / "questions" / f"{name}.json"


def load(boxes, name):
    """What a box was asked, by the folder of `boxes.json`; None if it never was."""
    path = file_of(boxes, name)
    try:
        return Asked(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise Failure(f"{path} cannot be read ({error}): remove it, and ask the box again") from None


class Questions:
    def __init__(self, layout):
        self.boxes, self.published = layout.boxes, layout.questions

    def load(self, name):
        """None for a box that was never asked."""
        return load(self.boxes, name)

    def content(self, name, asked):
        """(the file of a box, its content)."""
        return file_of(self.boxes, name), json.dumps(asdict(asked)).encode() + b"\n"

    def ask(self, name, inbox, question, signer, now, valid_s=VALID_S):
        """Publishes a question. The earlier one is worth nothing then."""
        before = self.load(name)
        asked = Asked(secrets.token_hex(32), question, inbox, moments.text(now), moments.text(moments.after(now, valid_s)),
                      before and before.answer)
        if before and before.inbox != inbox:
            self.withdraw(before)
        # First what the platform expects, so that no answer comes to a question that it does not know.
        path, content = self.content(name, asked)
        files.write(path, content, 0o600)
        files.write(self.published / f"{inbox}.json", signer.sealed({
            "version": 1, "box": name, "question": question, "id": asked.id, "made": asked.made,
            "expires": asked.expires}, dsse.QUESTION))
        return asked

    def withdraw(self, asked):
        (self.published / f"{asked.inbox}.json").unlink(missing_ok=True)

    def forget(self, name):
        try:
            asked = self.load(name)
        except Failure:
            asked = None
        if asked:
            self.withdraw(asked)
        file_of(self.boxes, name).unlink(missing_ok=True)

    def answers(self):
        """{name of a box: its last answer}. A damaged file is left to `box ask`."""
        found = {}
        for path in sorted((self.boxes / "questions").glob("*.json")):
            try:
                asked = load(self.boxes, path.stem)
            except Failure:
                continue
            if asked and asked.answer:
                found[path.stem] = asked.answer
        return found

    def tidy(self, now):
        """Removes published questions that no box answers any more."""
        try:
            published = list(self.published.iterdir())
        except FileNotFoundError:
            return
        for path in published:
            try:
                if path.stat().st_mtime + VALID_S < now.timestamp():
                    path.unlink()
            except FileNotFoundError:
                pass


def lines(name, answer):
    """An answer for people, the worst first."""
    found = sorted(answer["checks"], key=lambda check: -LEVELS.index(check["level"]))
    rows = [(check["check"], check["level"], str(check["count"]), numbers(check)) for check in found]
    yield f"{name} answered at {answer['at']}, with Ledge {answer['ledge']}"
    yield reports.table(("CHECK", "LEVEL", "COUNT", "NUMBERS"), rows)
    yield "`ledge doctor` on the box has the details, which do not leave it"


def summaries(answers):
    """A line for each last answer."""
    if answers:
        yield "last answers (`box ask NAME` shows one):"
    for name, answer in answers.items():
        yield f"  {answer['at']}  {name}: {summary(answer)}"


def summary(answer):
    found = []
    for level in ("failure", "warning"):
        count = sum(check["count"] for check in answer["checks"] if check["level"] == level)
        if count:
            found.append(f"{count} {level}{'s' if count > 1 else ''}")
    return ", ".join(found) or "all is well"


def numbers(check):
    shown = []
    if "free_bytes" in check:
        shown.append(f"{check['free_bytes'] / 2**30:.1f} GiB free")
    if "seconds_left" in check:
        shown.append(f"certificate ends in {check['seconds_left'] / 86_400:.0f} d")
    return ", ".join(shown) or "-"
