"""Divides all documents into two parts by their issuer: "look", for those who write rules of the reader, and "hidden", which only counts.

The receipts of a chain of shops look alike. With some in each part, rules would be tested on the documents that they were written for, so all
documents of an issuer are in one part: a bit of the hash of its name says which. The invented issuers of samples count by their layout instead. A
document whose issuer is not known is on its own.

Names are read by machines and typed by hand. Those that are nearly the same, or of which one begins with the other, are one issuer: same_issuer.tsv
lists them, so that a document stays in its part whatever else is collected. With a new set, `collect.py` prints the pairs that the table
lacks. Add them with the name on the right that is already in use.
"""
import difflib
import hashlib
import re
from pathlib import Path

from documents.compare import LEGAL_WORDS, without_accents

LOOK, HIDDEN = "look", "hidden"
NAMES = Path(__file__).with_name("same_issuer.tsv")
LEGAL_FORMS = re.compile(rf"\b({LEGAL_WORDS}|ENTERPRISE|TRADING|M|A ?G|E ?V|STI|AS|VE|SAN|TIC)\b")
SAME_ISSUER = {"GERBANGALAFRESTAURANTS": "MCDONALDS", "GOLDENARCHESRESTAURANTS": "MCDONALDS", "DMDROGERIEMARKT": "DM",
               "STARBUCKSCOFFEEFRANCE": "STARBUCKS"}
NO_ISSUER = frozenset(  # words on the place of a name that are none
    "RESTAURANT RESTORAN RESTAURANTS BURGER BURGERS COFFEE PHARMACY EXPRESS RETAIL SUPERMARKET SUPERMARKETS MARKET CAFE BISTRO KITCHEN GRILL PIZZA"
    " PIZZERIA STORE HOTEL BAKERY BAR SUSHI HARDWARE STATIONERY MUSTER COMPANY SELLER FOODS FOOD CUISINE HOUSE GARDEN THAI SEAFOOD STEAKHOUSE BREWERY"
    " DINER RECEIPT THANKYOU WELCOME CUSTOMERCOPY TESTCOMPANY GASTHAUS CHINESERESTAURANT SHOPPE STATION CENTRE CENTER TOTAL INVOICE GUESTCHECK CHECK"
    " ORDER TEA DELI".split())
SIMILAR = 0.84


def normalise(name):
    """A name without case, accents, legal form, digits, brackets and spaces."""
    name = without_accents(name or "").upper()
    name = re.sub(r"[’'`.]", "", name)
    name = re.sub(r"\([^)]*\)", " ", name)
    name = re.sub(r"[^\w]+", " ", name)
    name = LEGAL_FORMS.sub(" ", name).replace(" ", "")
    name = re.sub(r"(SDN)?(BHD)$", "", name)
    name = re.sub(r"[\d_]+", "", name)
    return SAME_ISSUER.get(name, name)


def key_of(set_name, row):
    """The name that stands for the issuer of a document. One with "?" is of a document without a known issuer, one with "|" of a layout."""
    key = normalise(row["issuer"])
    if len(key) < 2 or key in NO_ISSUER or key.startswith("UNKNOWN"):
        key = f"?{set_name}/{row['file']}"
    if row.get("fictional"):
        key = f"{'CONTOSO' if key.startswith('CONTOSO') else key}|{row.get('layout') or ''}"
    return key


def are_one(one, other):
    """True for two keys that are one issuer. Short names must be the same."""
    short, long = sorted((one, other), key=len)
    if len(short) < 5:
        return False
    if len(short) >= 6 and long.startswith(short) or len(short) >= 8 and short in long:
        return True
    if len(long) - len(short) > 0.3 * len(long):
        return False
    match = difflib.SequenceMatcher(None, one, other, autojunk=False)
    return match.real_quick_ratio() >= SIMILAR and match.quick_ratio() >= SIMILAR and match.ratio() >= SIMILAR


def read_names():
    """{name: the name that stands for its issuer} of same_issuer.tsv."""
    lines = NAMES.read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t") for line in lines if line and not line.startswith("#"))


def not_joined(keys, names):
    """Pairs of keys that seem to be one issuer, where the table has none for them."""
    named = sorted(key for key in keys if not key.startswith("?") and "|" not in key)
    pairs = ((one, other) for index, one in enumerate(named) for other in named[index + 1:])
    return [(one, other) for one, other in pairs if are_one(one, other) and names.get(one, one) != names.get(other, other)]


def part_of(issuer):
    return LOOK if hashlib.sha256(issuer.encode()).digest()[0] % 2 == 0 else HIDDEN


def divide(sets):
    """Gives each row of {name: rows} its `issuer_key` and its `part`. Returns the pairs of names that are not in the table and should be."""
    names, keys = read_names(), set()
    for name, rows in sets.items():
        for row in rows:
            key = key_of(name, row)
            issuer = names.get(key, key)
            row["issuer_key"] = "unknown" if issuer.startswith("?") else issuer
            row["part"] = part_of(issuer)
            keys.add(key)
    return not_joined(keys, names)
