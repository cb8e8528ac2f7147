"""The inventory of a box: what it is, by its last report; and all boxes as a table for spreadsheets.

Boxes of earlier versions do not report these keys, and a hostile one reports others: both have None here.
"""
import csv
import io

from .. import moments
from . import clean

CSV = "inventory.csv"
FORMATS = ("deb", "rpm")
ORIGINS = ("updates", "package", "added", "own")
OWN = ("added", "own")  # the owner of the box brought these models, and no platform
NAME_MOST = 80  # as boxes bound the names of systems and machines

# The room of the disk. A release with its runtime and the one before it need some hundred megabytes, and logs grow: a
# tenth of a small disk is little, 5 GB of a large one are enough for months.
LITTLE_SHARE, LITTLE_BYTES = 0.1, 5_000_000_000
# `updates.min_free_mb` of a box: it takes no release below this.
FULL_BYTES = 512 << 20
# A box renews its certificate after two thirds of its life. In the last sixth half of the time for that is over.
WORN_PARTS = 6

# What spreadsheets take for the start of a formula, in their own forms and in those of other alphabets.
FORMULA = tuple("=+-@\t\r\n＝＋－＠")
HEAD = ("box", "fleet", "group", "findings", "hardware", "cpu", "cores", "architecture", "os", "ledge", "package",
        "package_version", "package_format", "own_models", "memory_bytes", "memory_available_bytes", "disk_bytes",
        "disk_available_bytes", "certificate_until", "membership", "last_report")


def of(document):
    """The inventory in a report; None where it has none of it."""
    load = clean.table(document.get("load"))
    hardware, disk = clean.table(document.get("hardware")), clean.table(load.get("disk"))
    certificate = clean.table(document.get("certificate"))
    total, free = room(disk.get("total_bytes")), room(disk.get("available_bytes"))
    found = {
        "package": package(clean.table(document.get("package"))),
        "os": clean.line(document.get("os"), NAME_MOST),
        "model": clean.line(hardware.get("model"), NAME_MOST),
        "cpu": clean.line(hardware.get("cpu"), NAME_MOST),
        "architecture": clean.line(hardware.get("architecture"), NAME_MOST),
        "disk": {"total": total, "free": free} if total and free is not None and free <= total else None,
        "certificate": validity(certificate),
    }
    return found if any(found.values()) else None


def machine(box):
    """The machine of a box in words, of the names that stay the same; None where it does not say enough."""
    found, cores = box.get("inventory"), (box.get("load") or {}).get("cores")
    if not found or not found["cpu"]:
        return None
    return ", ".join(filter(None, (found["model"], found["cpu"], found["architecture"], cores and f"{cores} cores")))


def package(found):
    name, version = clean.line(found.get("name"), NAME_MOST), clean.line(found.get("version"), NAME_MOST)
    if not name or not version:
        return None
    form = found.get("format") if found.get("format") in FORMATS else None
    return {"name": name, "version": version, "format": form}


def room(value):
    number = clean.number(value)
    return number if number is not None and number >= 0 else None


def validity(found):
    begin, end = clean.moment(found.get("from")), clean.moment(found.get("until"))
    return {"from": begin, "until": end} if begin and end and begin < end else None


def origin(model):
    return model.get("origin") if model.get("origin") in ORIGINS else None


# --- what needs a look ---

def disk_finding(disk):
    """(is a failure, text) of a disk that is nearly full; None for another."""
    if disk is None:
        return None
    left = f"{size(disk['free'])} of {size(disk['total'])} are free"
    if disk["free"] < FULL_BYTES:
        return True, f"the disk of its state folder is full, and it takes no release: {left}"
    if disk["free"] < LITTLE_BYTES and disk["free"] < disk["total"] * LITTLE_SHARE:
        return False, f"the disk of its state folder is nearly full: {left}"
    return None


def certificate_finding(certificate, newest_until, now, spoken):
    """(is a failure, text) of a certificate that the box should have renewed; None for another.

    The newest certificate that the platform knows of it is judged by `box list`, and not once more here.
    """
    if certificate is None or certificate["until"] == newest_until:
        return None
    begin, end = moments.parse(certificate["from"]), moments.parse(certificate["until"])
    rest = (end - now).total_seconds()
    more = ", and it has not taken the newer one that the platform issued" if newest_until else ""
    if rest <= 0:
        return True, f"the certificate that it uses ended {spoken(-rest)} ago{more}"
    if rest * WORN_PARTS < (end - begin).total_seconds():
        return False, f"the certificate that it uses ends in {spoken(rest)}, and it has not renewed it{more}"
    return None


def size(value):
    """Bytes for people."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if value >= factor:
            return f"{value / factor:.{0 if value >= 10 * factor else 1}f} {unit}"
    return f"{value} B"


# --- the table for spreadsheets ---

def table(described):
    """The CSV of all boxes (RFC 4180)."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(HEAD)
    for box in described:
        writer.writerow([harmless(cell) for cell in row(box)])
    return text.getvalue().encode()


def row(box):
    found, load = box.get("inventory") or {}, box.get("load") or {}
    packed, disk = found.get("package") or {}, found.get("disk") or {}
    certificate, membership = found.get("certificate") or {}, box.get("membership") or {}
    own = [model["name"] for model in box.get("models", ()) if model["origin"] in OWN and model["name"]]
    return [
        box["name"], box.get("fleet"), box.get("group"), len(box["findings"]), found.get("model"), found.get("cpu"),
        load.get("cores"), found.get("architecture"), found.get("os"), box.get("ledge"), packed.get("name"),
        packed.get("version"), packed.get("format"), " ".join(own), load.get("memory"), load.get("free"),
        disk.get("total"), disk.get("free"), certificate.get("until") or membership.get("until"),
        membership.get("state"), box.get("at")]


def harmless(cell):
    """A text that no spreadsheet takes for a formula: those that could be one have an apostrophe before them.

    It has no semicolon: in many countries spreadsheets begin a cell behind one, also within quotes.
    """
    if not isinstance(cell, str):
        return cell  # a number, or an empty cell
    cell = cell.replace(";", ",")
    return f"'{cell}" if cell.lstrip().startswith(FORMULA) else cell
