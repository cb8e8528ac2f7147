"""The verbs of `ledge-platform package`."""
import os
import sys

from .. import ceremony, moments
from ..errors import Failure
from ..repository import is_private
from . import adding, apt, dnf, openpgp
from .folder import KEY, PackageFolder, Settings, make_key
from .folder import init as make

WARNED_S = 90 * ceremony.DAY


def init(given):
    made = make(given.folder, given.keys, given.encrypt, Settings(
        given.name, given.origin, given.label or given.origin, given.maintainer, given.suite, given.lifetime,
        given.key_lifetime, given.address))
    print(f"made {given.folder}, signed by the key {given.keys / KEY}.asc")
    print(f"  fingerprint: {made.settings.keys[0]}")
    print(f"  next: ledge-platform package add {given.folder} FILE..., then package publish")


def add(given):
    repository = PackageFolder.open(given.folder)
    with repository.locked():
        for path in given.files:
            print(adding.add(repository, path), flush=True)


def publish(given):
    repository, ring = PackageFolder.open(given.folder), openpgp.KeyRing(given.keys)
    with repository.locked():
        if given.address:
            repository.settings.address = given.address
        bring_out(repository, ring, given.date or source_date() or moments.now())


def rotate(given):
    repository, ring = PackageFolder.open(given.folder), openpgp.KeyRing(given.keys)
    settings = repository.settings
    if not given.keys:
        raise Failure("name the folders of the keys with --keys")
    with repository.locked():
        if given.finish:
            if len(settings.keys) < 2:
                raise Failure("there is no second key yet: run `ledge-platform package rotate` without --finish")
            print(f"the key {settings.keys.pop(0)} is not accepted any more")
        else:
            if len(settings.keys) > 1:
                raise Failure("two keys are accepted: end that with `ledge-platform package rotate --finish`")
            ring, made = begin_rotation(repository, ring, given.new_keys or given.keys[0], given.encrypt)
            print(f"the key {made} is accepted too; when clients have it: `ledge-platform package rotate --finish`")
        repository.save()
        bring_out(repository, ring, moments.now())


def begin_rotation(repository, ring, folder, encrypt):
    name = ceremony.free_name(KEY, ring, folder, ".pub.asc")
    make_key(repository, folder, name, encrypt)
    made = openpgp.read_public(folder / f"{name}.pub.asc")[0].fingerprint
    repository.settings.keys.append(made)
    return openpgp.KeyRing([*ring.folders, folder]), made


def bring_out(repository, ring, date):
    """Signs everything and makes it public."""
    with openpgp.home(moments.now()) as home:
        accepted = repository.add_public_keys(home, ring)
        now = max(date, moments.now())
        signers = [key for key in accepted if not key.is_expired(now)]
        if not signers:
            raise Failure(
                f"the key {accepted[-1].id} has expired on {moments.text(accepted[-1].expires)}: replace it with "
                "`ledge-platform package rotate`, and bring clients the new one")
        for key in signers:
            if key.created > date:
                raise Failure(
                    f"the key {key.id} was made on {moments.text(key.created)}: it cannot sign as of {moments.text(date)}")
            home.add(ring.private(key))
            warn(ring, key, now)
        if len(accepted) > 1:
            repository.write_public(home)  # nothing is signed by a key that clients cannot get
        home.date = date
        # apt 3 accepts what a key signed before it expired, so the index expires with its last key.
        until = moments.after(date, repository.settings.lifetime_s)
        until = min(until, max(key.expires or until for key in signers))
        for kind in (apt, dnf):
            kind.need_programs(repository)
        counts = {
            "deb": apt.publish(repository, home, [key.fingerprint for key in signers], date, until),
            "rpm": dnf.publish(repository, home, signers[0], date),
        }
        repository.stage().rmdir()
        repository.write_public(home)
        repository.save()
    if counts == {"deb": None, "rpm": None}:
        raise Failure(f"there are no packages in {repository.folder}: `ledge-platform package add` brings them")
    found = " and ".join(f"{count} {kind}" for kind, count in counts.items() if count is not None)
    print(f"{found} packages are public; publish again before {moments.text(until)}, when apt refuses the index")


def warn(ring, key, now):
    path = openpgp.private_of(ring.found[key.fingerprint])
    if not is_private(path):
        print(f"ledge-platform: {path} is readable by others: chmod 600", file=sys.stderr)
    if key.expires and (key.expires - now).total_seconds() < WARNED_S:
        print(f"ledge-platform: the key {key.id} expires on {moments.text(key.expires)}: `ledge-platform package rotate`",
              file=sys.stderr)


def source_date():
    """The moment in SOURCE_DATE_EPOCH, as reproducible builds have it."""
    found = os.environ.get("SOURCE_DATE_EPOCH")
    if not found:
        return None
    if not found.isdigit():
        raise Failure(f"SOURCE_DATE_EPOCH={found} is no number of seconds")
    return moments.at(int(found))


VERBS = {
    "package init": init,
    "package add": add,
    "package publish": publish,
    "package rotate": rotate,
}
