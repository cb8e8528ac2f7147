"""Replaces the parts of an answer that differ from run to run. Nothing else is changed."""
import datetime
import re

# Each rule: the calls (a pattern of the request), the part ("body", or "header NAME"), the pattern to replace, the
# replacement, and the reason. "{root}" stands for the folder of the box. In addition, bodies of /metrics lose their
# values, and times of today become <now>.
RULES = [
    ("", "header date", r".+", "<date>", "the clock"),
    ("", "header retry-after", r"\d{2,}", "<seconds>", "the rest of a long wait; waits below 10 s stay"),
    ("", "body", "{root}", "<root>", "the temporary folder"),
    ("/stats", "body", r'"(last_inference|ns)":\d+', r'"\1":<time>', "times of inference"),
    ("/stats", "body", r'"byte_size":\d+', '"byte_size":<bytes>', "memory as measured"),
    ("GET /features/status", "body", r'"last_recovery_s":[\d.e-]+', '"last_recovery_s":<time>', "time of the opening"),
    ("GET /features/status", "body", r'"(index|snapshots)":\d+', r'"\1":<bytes>', "measured, and made, by the clock"),
    ("GET /features/status", "body", r'"snapshot":(null|"[^"]*")', '"snapshot":<moment>', "as above"),
    ("POST /features/snapshot", "body", r'"bytes":\d+', '"bytes":<bytes>', "as above"),
    ("GET /features/backup", "header content-disposition", r"\d{4}-\d\d-\d\d", "<day>", "the day"),
    ("GET /features/backup", "body", r'(?s)^(?!\{"error":).+', "<backup>", "times and sums in every record"),
    ("", "body", r'"time_ms":\{"decode":[\d.e-]+,"queue":[\d.e-]+,"compute":[\d.e-]+\}', '"time_ms":<times>',
        "times of a photograph"),
    ("", "body", r"(timeout expired for '\w+' after) \d+ ms", r"\1 <time> ms", "the time that a call has waited"),
    ("x-ledge-priority: batch", "body", r"at \d\d:00-\d\d:01 only", "at <window> only",
        "a window that is far from the hour"),
    ("x-ledge-priority: batch", "body", r"opens in \d+ s", "opens in <seconds> s", "the rest of a wait"),
    ("wrong keys", "header retry-after", r"\d+", "<seconds>", "the rest of a wait"),
    ("wrong keys", "body", r"in \d+ s", "in <seconds> s", "the rest of a wait"),
    ("/metrics", "body", r'"127\.0\.0\.1:\d+"', '"127.0.0.1:<port>"', "the port of the broker"),
    ("/reported", "body", r'"(cpu_ratio|memory_\w+|cpu_seconds|threads)":(null|[\d.e-]+)', r'"\1":<figure>',
        "the machine and the process"),
    ("", "body", r"ledge\.audit/box\+[0-9a-f]{8}\+[\w+/=]+", "ledge.audit/box+<key>", "the key of the audit log"),
    ("/audit/status|/reported", "body", r'"checkpoint":"[^"]*"', '"checkpoint":"<checkpoint>"',
        "hashes of records with times, and a signature"),
    ("/audit/status|/reported", "body", r'"(size|bytes)":\d+', r'"\1":<records>',
        "a record more when a minute ends meanwhile"),
    ("GET /figures", "body", r'("columns":)\{[^}]*\}', r"\1<figures>", "the machine and the time"),
    ("/v2/models/", "body", r'"profile":("[^"]*"|\{"string_value":"[^"]*"\})', '"profile":<profile>', "measured times"),
    ("GET /keys", "body", r'"(id|expires)":"[^"]*"', r'"\1":<of this key>', "drawn at random, and a year from now"),
    ("GET /findings", "body", r'"checks":\[.*\]', '"checks":<checks>', "the machine"),
    ("GET /egress", "body", r'("destinations":)\[[^\]]*\].*', r"\1<counts>", "the ports of this run"),
    ("GET /audit/logs/1/checkpoint", "body", r"(?s)^(ledge.audit/box/1\n).+", r"\1<checkpoint>", "as above"),
    ("GET /audit/logs/1/tile/.* with all records", "body", r'(?s)^(?!\{"error":).+', "<tile>",
        "records with times and their hashes"),
]

# A metric that is missing when the kernel's clock has not advanced since the previous scrape.
SINCE_LAST_SCRAPE = "ledge_machine_core_load_ratio"

MOMENT = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")


class Normalizer:
    """Replaces the differing parts in the answers of one box. ROOT is its folder."""

    def __init__(self, root):
        self.root, self.began = str(root), datetime.datetime.now(datetime.timezone.utc)

    def headers(self, request, headers):
        return [[name, self._text(request, f"header {name.lower()}", value)] for name, value in headers]

    def body(self, request, body):
        if "GET /metrics" in request and not body.startswith(b"{"):
            body = metrics(body, "key of" in request)
        changed = self._text(request, "body", body.decode("latin-1")).encode("latin-1")
        return MOMENT.sub(self._moment, changed)

    def _text(self, request, part, text):
        for calls, what, pattern, replacement, _ in RULES:
            if what == part and re.search(calls, request):
                text = re.sub(pattern.replace("{root}", re.escape(self.root)), replacement, text)
        return text

    def _moment(self, match):
        """Moments around this recording become <now>; those in the calls themselves are much earlier."""
        try:
            moment = datetime.datetime.fromisoformat(match[0].decode()[:19] + "+00:00")
        except ValueError:
            return match[0]  # not a valid date
        return b"<now>" if abs(moment - self.began) < datetime.timedelta(hours=6) else match[0]


def metrics(body, is_close):
    """Names, types, help texts and label sets in their order, without values. IS_CLOSE: soon after another scrape."""
    lines = [line if line.startswith("#") else line.rsplit(" ", 1)[0] for line in body.decode().splitlines()]
    if is_close:
        lines = [line for line in lines if SINCE_LAST_SCRAPE not in line]
    return "\n".join([*lines, ""]).encode()
