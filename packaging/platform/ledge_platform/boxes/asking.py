"""`box ask`: publishes a question, tells the box that there is one, and waits for the answer."""
import json
import sys
import time

from .. import moments
from ..broker import Broker
from ..errors import DONE, Failure
from ..repository import Repository
from ..site.layout import Layout
from . import answering, inviting
from .questions import NO_ANSWER, VALID_S, Questions, lines
from .store import MEMBER, Store

WAIT_S = 120
LOOK_S = 0.25


def ask(given):
    layout = Layout.open(given.root)
    questions = Questions(layout)
    if given.question is None:
        asked = questions.load(given.name)
        if asked is None or asked.answer is None:
            raise Failure(f"{given.name} has answered no question: `ledge-platform box ask {given.name} doctor` asks it")
        show(given, asked.answer)
        return DONE
    asked = publish(layout, questions, given)
    hint(layout, given.name)
    answered = wait(layout, questions, given.name, asked, given.wait)
    if answered is None:
        until = f"; it may still come until {asked.expires}: `ledge-platform box ask {given.name}` shows it"
        raise Failure(f"{given.name} gave {NO_ANSWER}{until}")
    show(given, answered)
    return DONE


def publish(layout, questions, given):
    now = moments.now()
    if not layout.questions.is_dir():
        raise Failure(f"{layout.questions} is missing: `ledge-platform init` makes it, and its place in nginx")
    with layout.as_owner(), Store(layout.boxes).locked():
        member = Store(layout.boxes).load().members.get(given.name)
        if member is None or member.state != MEMBER:
            raise Failure(f"{given.name} is no member: `ledge-platform box list` has them")
        signer = inviting.Signer(layout, now, moments.after(now, VALID_S))
        return questions.ask(given.name, member.newest.inbox, given.question, signer, now)


def hint(layout, name):
    """Boxes also look by themselves, once a minute."""
    try:
        version = Repository.open(layout.repository).load("timestamp").signed.version
        with Broker(layout.broker_url, layout.ca / "root.pem", layout.platform_certificate, layout.platform_key) as broker:
            broker.hint([name], version)
    except Failure as failure:
        print(f"ledge-platform: {name} is not told, and looks by itself within a minute and a half: {failure}",
              file=sys.stderr)


def wait(layout, questions, name, asked, wait_s):
    """The answer to this question; None if none came in time."""
    came = layout.requests / asked.inbox / f"{asked.id}.json"
    deadline = time.monotonic() + wait_s
    while True:
        if came.exists():
            answering.answer_all(layout)
        with layout.as_owner():
            now = questions.load(name)
        if now is not None and now.is_answered and now.id == asked.id:
            return now.answer
        if now is None or now.id != asked.id:
            raise Failure(f"{name} was asked again meanwhile, or was forgotten")
        if time.monotonic() >= deadline:
            return None
        time.sleep(LOOK_S)


def show(given, answer):
    if given.json:
        print(json.dumps({"box": given.name, **answer}, indent=1))
        return
    for line in lines(given.name, answer):
        print(line)
