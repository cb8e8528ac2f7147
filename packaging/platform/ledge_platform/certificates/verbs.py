"""The verbs of `ledge-platform ca`."""
from .. import files, keys, moments, reports
from ..errors import Failure
from . import authority
from .authority import Authority


def init(given):
    made = authority.init(given.folder, given.offline_keys, given.name, dict(given.expires), not given.plain)
    print(f"made {given.folder}: the certificate authority {given.name}")
    print(f"  offline: {given.offline_keys / authority.ROOT}.key, which only `ca renew` needs")
    print(f"  boxes and servers trust {made.root_file}; nginx and mosquitto also read {made.list_file}")


def issue(given):
    own = Authority.open(given.folder)
    request = keys.content_of(given.request) if given.request else None
    certificate, key = given.out / f"{given.name}.pem", given.out / f"{given.name}.key"
    if key.exists() and request is None:
        raise Failure(f"{key} is there already; a key is never overwritten")
    with own.locked():
        chain, private = own.issue(given.name, given.host, request, given.expires, given.again)
    if private:
        files.write(key, private, 0o600)
    files.write(certificate, chain)
    print(f"{certificate} is good for {moments.spoken(given.expires)}" + (f"; its key is {key}" if private else ""))


def listed(given):
    found = Authority.open(given.folder).all()
    rows = [(each.name, each.kind, each.serial, moments.text(each.until), each.state) for each in found]
    print(reports.table(("NAME", "KIND", "SERIAL", "UNTIL", "STATE"), rows))


def renew(given):
    own = Authority.open(given.folder)
    folder = next((folder for folder in given.keys if (folder / f"{authority.ROOT}.key").exists()), None)
    if folder is None:
        raise Failure(f"{authority.ROOT}.key is in none of the folders of --keys")
    with own.locked():
        own.renew(keys.load_private(folder / f"{authority.ROOT}.key", authority.ROOT), given.expires)
    print(f"the issuing authority is good until {moments.text(own.certificate.not_valid_after_utc)}")


def revoke(given):
    own = Authority.open(given.folder)
    with own.locked():
        revoked = own.revoke(given.what)
    print(f"{given.what}: {len(revoked)} certificates are revoked now; give {own.list_file} to nginx and mosquitto")


def refresh(given):
    own = Authority.open(given.folder)
    with own.locked():
        own.refresh()
    print(f"{own.list_file} is good for {moments.spoken(authority.LIST_LIFETIME)}")


VERBS = {"ca init": init, "ca issue": issue, "ca list": listed, "ca renew": renew, "ca revoke": revoke, "ca refresh": refresh}
