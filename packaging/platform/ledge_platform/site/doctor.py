"""`ledge-platform doctor`: one line for each check, with what to do where something is wrong.

A check is a function of the platform that yields findings. One that cannot be made is a finding itself, so that a
broken file does not hide what the other checks know.
"""
import os
import shutil
import stat
from dataclasses import dataclass

from .. import files, keys, moments, signing
from ..boxes import listing, monitoring
from ..boxes.store import MEMBER, Store
from ..certificates.authority import DAY, LIFETIMES, Authority, certificate_of, first_list, general_name
from ..errors import Failure
from ..repository import OFFLINE, SIGNED_AT, Repository, left, lifetime
from . import answering, certificates, folders, machine, making, units
from .layout import EXISTING, OWN
from .written import Written

OK, WARNING, WRONG = "ok", "warning", "WRONG"
# Offline keys have to be fetched: this much time to do it.
OFFLINE_WARNING_S = 30 * DAY
ISSUING_WARNING_S, ISSUING_WRONG_S = 30 * DAY, 14 * DAY
# A timer signs the online roles when half of their time is over, and the list of revoked certificates every day.
ONLINE_SHARE_MIN = 0.4
LIST_WARNING_S = 4 * DAY
SIGNED_WARNING_S = 3 * 3_600
DISK_WARNING, DISK_WRONG = 0.10, 0.02


@dataclass(frozen=True)
class Finding:
    state: str
    text: str
    remedy: str | None = None

    def __str__(self):
        return f"{self.state:<8} {self.text}" + (f": {self.remedy}" if self.remedy else "")


def ok(text):
    return Finding(OK, text)


def warning(text, remedy=None):
    return Finding(WARNING, text, remedy)


def wrong(text, remedy=None):
    return Finding(WRONG, text, remedy)


class Platform:
    """What all checks look at."""

    def __init__(self, layout):
        if not layout.is_trial and os.geteuid() != 0:
            raise Failure("run it as root, because it looks at keys of several users")
        self.layout, self.users = layout, machine.Users(layout)
        self.repository, self.authority = Repository(layout.repository), Authority(layout.ca)
        here = f" --root {layout.root}" if layout.is_trial else ""
        self.init = f"`ledge-platform init {layout.name} --domain {layout.domain}{here}`"
        self.here = here


def findings(layout):
    platform = Platform(layout)
    for check in CHECKS:
        try:
            yield from check(platform)
        except Failure as failure:
            yield wrong(f"{check.__name__.replace('_', ' ')}: {failure}")
        except OSError as error:
            yield wrong(f"{check.__name__.replace('_', ' ')}: {error.filename or 'the system'}: {error.strerror}")


def folders_and_owners(platform):
    found = folders.differences(platform.layout, platform.users)
    for path, what in found:
        yield wrong(f"{path} {'is ' if what == 'missing' else ''}{what}", f"{platform.init} corrects it")
    if not found:
        yield ok(f"{len(folders.wanted(platform.layout))} folders have their owners and modes")
    foreign = [path for path in folders.foreign(platform.layout, platform.users) if is_in_the_way(path)]
    if foreign:
        more = f" and {len(foreign) - 1} more do" if len(foreign) > 1 else " does"
        yield wrong(f"{foreign[0]}{more} not belong to {platform.users.platform}, and timers may fail",
                    f"run verbs as `sudo -u {platform.users.platform}`; {platform.init} corrects it")


def is_in_the_way(path):
    """A file of root that everybody may read is replaced by its name; these are not."""
    mode = os.lstat(path).st_mode
    return stat.S_ISDIR(mode) or os.path.basename(path) == ".lock" or not mode & stat.S_IROTH


def keys_are_private(platform):
    layout, found = platform.layout, []
    for path in private_keys(layout.keys, layout.ca):
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            found.append(wrong(f"{path} is readable by others",
                               f"chmod 600 {path}, and replace the key if others use this machine"))
    for path in (layout.server_key, layout.platform_key, layout.scraper_key):
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o027:
            found.append(wrong(f"{path} is readable by others", f"chmod 640 {path}"))
    yield from found or [ok("keys are private")]


def private_keys(*places):
    for folder in places:
        for path in sorted(folder.glob("*")) if folder.is_dir() else ():
            if path.is_file() and files.PRIVATE.search(path.read_bytes()[:files.LONGEST_KEY]):
                yield path


def offline_keys_are_away(platform):
    """A thief of this machine must not find what replaces its keys."""
    layout = platform.layout
    disk = os.stat(layout.etc).st_dev
    places = {layout.offline, *making.offline_folders(layout)}
    found = [folder for folder in sorted(places)
             if folder.is_dir() and os.stat(folder).st_dev == disk and any(private_keys(folder))]
    for folder in found:
        yield warning(f"{folder} has offline keys, on the disk of this machine",
                      "move them to sticks, root1 to root3 to different places")
    if not found:
        yield ok("no offline keys are on the disk of this machine")


def signed_roles(platform):
    layout = platform.layout
    Repository.open(layout.repository)
    for role in platform.repository.roles:
        signed = platform.repository.load(role).signed
        rest, until = left(signed), moments.text(signed.expires)
        offline = role in OFFLINE
        by_hand = f"`ledge-platform renew {layout.repository} {role} --keys DIR --keys {layout.keys}`, with its offline keys"
        remedy = by_hand if offline else "see `journalctl -u ledge-platform-refresh`"
        if rest <= 0:
            yield wrong(f"{role} expired on {until}, and boxes take nothing new", remedy)
        elif offline and rest < OFFLINE_WARNING_S or not offline and rest < ONLINE_SHARE_MIN * lifetime(signed):
            yield warning(f"{role} expires on {until}", remedy)
        else:
            yield ok(f"{role} is signed until {until}")


def keys_of_roles(platform):
    """What waits for key holders, and roles that the loss of one key stops."""
    repository = platform.repository
    lines = [*signing.waits(repository, keys.KeyRing([platform.layout.keys])), *signing.held_back(repository)]
    yield from map(warning, lines)
    for role in filter(repository.has, OFFLINE):
        accepted = repository.delegation(role)[1]
        if accepted.threshold == len(accepted.keyids) > 1:
            lines.append(role)
            yield warning(f"{role} needs all of its {accepted.threshold} keys, so the loss of one stops it",
                          f"`ledge-platform key threshold {repository.folder} {role} {accepted.threshold}/{accepted.threshold + 1}`")
    if not lines:
        yield ok("no version waits for signatures, and each role has the keys that it needs")


def clock(platform):
    signed_at = moments.parse(platform.repository.load("timestamp").signed.unrecognized_fields[SIGNED_AT])
    age = (moments.now() - signed_at).total_seconds()
    if age < 0:
        now = moments.text(moments.now())
        yield wrong(f"the clock says {now}, before the last signature of {moments.text(signed_at)}",
                    "set the clock, for example by chrony or systemd-timesyncd")
    elif age > SIGNED_WARNING_S:
        yield warning(f"the timestamp was signed on {moments.text(signed_at)}, and a timer signs it every hour",
                      "see `systemctl status ledge-platform-refresh.timer`")
    else:
        yield ok("the clock is not behind the last signature")


def certificate_authority(platform):
    layout, authority = platform.layout, platform.authority
    if layout.ca_kind == EXISTING:
        yield ok("certificates come from your own authority")
        return
    Authority.open(layout.ca)
    until = authority.certificate.not_valid_after_utc
    rest, ends = (until - moments.now()).total_seconds(), moments.text(until)
    remedy = f"`ledge-platform ca renew {layout.ca} --keys DIR`, with the key of the root, then {platform.init}"
    if rest < ISSUING_WRONG_S:
        yield wrong(f"the issuing authority ends on {ends}, and all certificates end with it", remedy)
    elif rest < LIFETIMES["certificate"] + ISSUING_WARNING_S:
        yield warning(f"the issuing authority ends on {ends}, and no certificate outlives it", remedy)
    else:
        yield ok(f"the issuing authority is good until {ends}")


def revoked_certificates(platform):
    lists = {platform.authority.list_file: LIST_WARNING_S, platform.authority.root_list: OFFLINE_WARNING_S}
    for path, warned in lists.items():
        found = first_list(path)
        if found is None:
            if platform.layout.ca_kind == OWN:
                yield wrong(f"{path} is missing, and nginx and the broker do not start",
                            f"`ledge-platform ca refresh {platform.layout.ca}`")
            continue
        rest, ends = (found.next_update_utc - moments.now()).total_seconds(), moments.text(found.next_update_utc)
        remedy = ("see `journalctl -u ledge-platform-revoked`" if path == platform.authority.list_file
                  else f"`ledge-platform ca renew {platform.layout.ca} --keys DIR`, with the key of the root")
        if rest <= 0:
            yield wrong(f"the list {path} expired on {ends}, and every client is refused", remedy)
        elif rest < warned:
            yield warning(f"the list {path} expires on {ends}", remedy)
        else:
            yield ok(f"the list of revoked certificates {path.name} is good until {ends}")


def own_certificates(platform):
    layout = platform.layout
    for own in certificates.every(layout):
        found = certificates.chain_of(own)[0]
        until = found.not_valid_after_utc
        rest = (until - moments.now()).total_seconds()
        reason = certificates.due(own, platform.authority) if layout.ca_kind == OWN else None
        remedy = platform.init if layout.ca_kind == OWN else "get another one from your authority"
        if rest <= 0:
            yield wrong(f"{own.certificate} expired on {moments.text(until)}", remedy)
        elif own.hosts and general_name(layout.domain).value not in certificates.hosts_of(found):
            yield wrong(f"{own.certificate} is not for {layout.domain}, so boxes refuse it", remedy)
        elif reason:
            yield warning(f"{own.certificate} is due ({reason})",
                          f"{remedy}, or see `journalctl -u ledge-platform-certificates`")
        elif layout.ca_kind == EXISTING and rest < OFFLINE_WARNING_S:
            yield warning(f"{own.certificate} expires on {moments.text(until)}", remedy)
        else:
            yield ok(f"{own.certificate.name} is good until {moments.text(until)}")
    if layout.ca_kind == OWN:
        if layout.clients.read_bytes() != certificates.clients(platform.authority):
            yield wrong(f"{layout.clients} is not of this authority, so boxes are refused", platform.init)
    certificate_of(layout.clients)


def configuration_files(platform):
    layout = platform.layout
    if layout.web_server == OWN:
        status, said = machine.run(machine.program("nginx"), "-e", "stderr", "-t", "-q", "-c", layout.nginx_conf)
        if status:
            yield wrong(f"nginx does not take {layout.nginx_conf}",
                        said.splitlines()[0] if said else f"status {status}")
        else:
            yield ok(f"nginx takes {layout.nginx_conf}")
    for path in Written(layout).changed():
        fresh = path.with_name(f"{path.name}.new")
        if fresh.exists():
            yield warning(f"{path} was changed by hand", f"compare it with {fresh}, which this version writes")


def services(platform):
    layout = platform.layout
    if not machine.has_systemd(layout):
        yield warning("systemd does not run here: no timer runs either",
                      "run their commands by other means, as the units name them")
        return
    wanted = units.started(layout)
    states = units.states([*wanted, *(job.service for job in units.jobs(layout))])
    stopped = [unit for unit in wanted if states[unit]["ActiveState"] not in ("active", "reloading", "activating")]
    for unit in stopped:
        yield wrong(f"{unit} is {states[unit]['ActiveState'] or 'missing'}",
                    f"`systemctl enable --now {unit}`; see `journalctl -u {unit}`")
    failed = [job for job in units.jobs(layout) if states[job.service]["Result"] not in ("", "success")]
    for job in failed:
        when = states[job.service]["ExecMainExitTimestamp"]
        yield wrong(f"the last run of {job.service} failed{f' ({when})' if when else ''}",
                    f"see `journalctl -u {job.service}`")
    if not tool_exists():
        yield wrong(f"{machine.tool()}, which the timers run, does not exist",
                    "install it with packaging/platform/setup")
    if not stopped and not failed:
        yield ok(f"{len(wanted)} services and timers run, and the last run of each succeeded")


def tool_exists():
    return os.access(machine.tool(), os.X_OK)


def ports_answer(platform):
    yield from answering.check(platform, ok, warning, wrong)


def disk(platform):
    seen = {}
    for folder in (platform.layout.etc, platform.layout.repository, platform.layout.box_files, platform.layout.var):
        if folder.is_dir():
            seen.setdefault(folder.stat().st_dev, folder)
    for folder in seen.values():
        usage = shutil.disk_usage(folder)
        share, free = usage.free / usage.total, f"{usage.free / 1e9:.3g} GB of {usage.total / 1e9:.3g} GB"
        remedy = "audit logs are in ledge-boxes: `ledge-platform audit tidy`, or a larger disk"
        if share < DISK_WRONG:
            yield wrong(f"{free} are free on the disk of {folder}", remedy)
        elif share < DISK_WARNING:
            yield warning(f"{free} are free on the disk of {folder}", remedy)
        else:
            yield ok(f"{free} are free on the disk of {folder}")


def boxes(platform):
    state, now = Store(platform.layout.boxes).load(), moments.now()
    if state.held:
        yield wrong("boxes wait, and nothing is issued", state.held)
    rows, remedy = listing.rows(state, now), f"`ledge-platform box list{platform.here}`"
    waiting = len(state.waiting)
    if waiting:
        yield warning(f"{waiting} requests wait for approval", remedy)
    other = sum(row.needs_a_look and row.state != listing.WAITING for row in rows)
    if other:
        yield warning(f"{other} boxes need a look", remedy)
    refused = sum(refusal.count for refusal in listing.refusals(state, now))
    if refused:
        yield warning(f"{refused} requests were refused in the last {listing.REFUSALS_SHOWN_S // DAY} days", remedy)
    if not (state.held or waiting or other or refused):
        yield ok(f"no box needs a look, of {len(state.members)} members")


def prometheus(platform):
    layout = platform.layout
    if layout.ca_kind == EXISTING:
        return
    state = Store(layout.boxes).load()
    path = layout.prometheus / monitoring.TARGETS
    count = sum(member.metrics is not None for member in state.members.values() if member.state == MEMBER)
    if not path.exists():
        yield wrong(f"{path} is missing, so Prometheus finds no box", platform.init)
    elif path.read_bytes() != monitoring.targets(state):
        yield warning(f"{path} does not have the boxes of this platform",
                      f"`ledge-platform box answer{platform.here}` writes it; see `journalctl -u ledge-platform-boxes`")
    else:
        yield ok(f"{path} has {count} boxes for Prometheus")


CHECKS = (
    folders_and_owners, keys_are_private, offline_keys_are_away, signed_roles, keys_of_roles, clock, certificate_authority,
    revoked_certificates, own_certificates, configuration_files, services, ports_answer, disk, boxes, prometheus,
)
