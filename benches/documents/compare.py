"""Compares the fields of answers with the truth.

A rule forgives another way to write the same value, and nothing that would change a payment.
"""
import difflib
import re
import unicodedata
from decimal import Decimal, InvalidOperation

RIGHT, WRONG, MISSING = "right", "wrong", "missing"
INVENTED = "invented"  # a value for a field that the page does not have
FIELDS = ("total", "date", "number", "supplier", "due_date", "net", "tax", "currency", "iban", "vat_id")
HALF_A_CENT = Decimal("0.005")
SIMILAR = 0.8
SHORT_NAME = 5  # letters; a shorter name must be a word of the answer
MOST_OF_NAME = 0.6
LEGAL_WORDS = "SDN|BHD|BERHAD|PVT|PRIVATE|LTD|LIMITED|LLC|INC|CO|COMPANY|CORP|CORPORATION|GMBH|MBH|AG|KG|OHG|SARL|SAS|SA|SAL|SPA|SRL|BV|NV|PLC|UG"
LEGAL_FORMS = re.compile(rf"\b({LEGAL_WORDS})\b")


def judge(field, row, fields):
    """RIGHT, WRONG or MISSING for a field of an answer, INVENTED for a value of a field that the page does not have, or None if the row of the
    truth says nothing about it."""
    answer = value_of(field, fields)
    has_answer = answer not in (None, "", [], {})
    if not has_truth(field, row):
        return INVENTED if has_answer and field in row.get("without", ()) else None
    if not has_answer:
        return MISSING
    truths = [row["truth"][field], *row.get(f"{field}_also", ())]
    return RIGHT if any(RULES[field](truth, answer) for truth in truths) else WRONG


def has_truth(field, row):
    """True if the truth can tell right from wrong. Taxes of which the source knows only the rates cannot: readers answer with amounts."""
    truth = row["truth"].get(field)
    return any("amount" in tax for tax in truth) if field == "tax" and truth else bool(truth)


def value_of(field, fields):
    """The value of a field. The currency may also be that of the total, where readers put it."""
    answer = fields.get(field)
    if field == "currency" and not answer:
        total = fields.get("total") or {}
        return total["value"].get("currency") if isinstance(total.get("value"), dict) else None
    return answer.get("value") if answer else None


def confidence_of(field, fields):
    """Between 0 and 1. An answer that comes without a confidence counts as sure: its caller could not refuse it."""
    answer = fields.get(field) or (fields.get("total") if field == "currency" else None) or {}
    confidence = answer.get("confidence")
    return 1.0 if confidence is None else confidence


def is_amount(truth, answer):
    """Equal to the cent, sign and all. Some currencies have three decimals, and a reader may give two of them."""
    one, other = decimal(truth), decimal(amount_in(answer))
    return one is not None and other is not None and abs(one - other) < HALF_A_CENT


def amount_in(answer):
    return answer.get("amount") if isinstance(answer, dict) else answer


def decimal(text):
    try:
        return Decimal(str(text))
    except InvalidOperation:
        return None


def is_date(truth, answer):
    """The same ISO date. An exchanged day and month is a wrong date: it moves a payment by months."""
    return str(answer) == truth


def is_number(truth, answer):
    """The same letters and digits. Case, spaces and signs differ between print and sources (`# INV-100`, `inv 100`); zeros in front count."""
    return letters(truth) == letters(answer)


def is_code(truth, answer):
    """The same currency, IBAN or other code, without case and spaces."""
    return compact(truth) == compact(answer)


def is_vat_id(truth, answer):
    """The same without case, spaces, dots and dashes. The two letters of the country may be missing on one side: many sources leave them out."""
    one, other = letters(truth), letters(answer)
    return one == other or without_country(one) == other or one == without_country(other)


def without_country(vat_id):
    return re.sub(r"^[A-Z]{2}(?=\w*\d)", "", vat_id)


def is_tax(truth, answer):
    """The same sum of all taxes, or the same amount for each rate.

    A page may print the sum, the rates, or both, and sources keep one of them. Taxes by rate are also right if the source lacks the amount of a
    rate of zero, so that sums could differ.
    """
    answers = answer if isinstance(answer, list) else [answer]
    by_rate = amounts_by_rate(truth)
    return is_amount(sum_of(truth), sum_of(answers)) or bool(by_rate) and by_rate == amounts_by_rate(answers)


def sum_of(taxes):
    """The sum of the amounts that are known. None without any, or with one that is no number."""
    amounts = [decimal(amount_in(tax)) for tax in taxes if amount_in(tax) is not None]
    return sum(amounts) if amounts and None not in amounts else None


def amounts_by_rate(taxes):
    """{rate: amount}, without rates of zero, whose tax is nothing."""
    amounts = {}
    for tax in taxes:
        rate, amount = (decimal(tax.get(key)) for key in ("rate", "amount")) if isinstance(tax, dict) else (None, None)
        if rate and amount is not None:
            amounts[rate] = amounts.get(rate, 0) + amount
    return amounts


def is_supplier(truth, answer):
    """The same name, where a part of it is enough if it is most of the name.

    Sources have the name with its legal form, the brand, a short name (`rewe`), or text without spaces (`ILIO'SRestaurant`). So case, accents,
    signs, spaces, legal forms and what stands in brackets behind a name, as its branch, do not count. An answer is right if all of the truth is in it (`REWE Markt GmbH`; names of less than five letters
    as a separate word), if it is a part of the truth with at least 60 % of its letters, or if both are similar by 80 % (difflib's ratio), which
    forgives a misread letter in five.
    """
    words, other_words = name_words(truth), name_words(answer)
    one, other = "".join(words), "".join(other_words)
    if not one or not other:
        return False
    if one == other or (one in other if len(one) >= SHORT_NAME else one in other_words):
        return True
    if other in one and len(other) >= MOST_OF_NAME * len(one):
        return True
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio() >= SIMILAR


def name_words(name):
    """The words of a name without its legal form, unless it is nothing else."""
    whole = without_accents(name).upper()
    bare = re.sub(r"(?<=\S)\s*[(（][^()（）]*[)）]", " ", whole)
    text = re.sub(r"[’'`.]", "", bare if len(letters(bare)) >= SHORT_NAME else whole)
    words = re.sub(r"[\W_]+", " ", text).strip()
    return LEGAL_FORMS.sub(" ", words).split() or words.split()


def without_accents(text):
    return "".join(sign for sign in unicodedata.normalize("NFKD", str(text)) if not unicodedata.combining(sign))


def letters(text):
    return re.sub(r"[\W_]+", "", without_accents(text)).upper()


def compact(text):
    return re.sub(r"\s+", "", str(text)).upper()


RULES = {"total": is_amount, "net": is_amount, "date": is_date, "due_date": is_date, "number": is_number, "tax": is_tax, "currency": is_code,
         "iban": is_code, "vat_id": is_vat_id, "supplier": is_supplier}
