"""Dates and amounts as the sources write them, in the form of the truth: ISO dates, amounts with a dot and two decimals."""
import datetime
import re

MONTHS = {name: number for number, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), 1)}
DAY_FIRST, MONTH_FIRST = "day_first", "month_first"

YEAR_FIRST = re.compile(r"(?<!\d)((?:19|20)\d\d)[-/.年 ]{1,2}(\d{1,2})[-/.月 ]{1,2}(\d{1,2})(?!\d)")
DAY_NAME_YEAR = re.compile(r"(?<!\d)(\d{1,2})\s*[-/. ,']*\s*([A-Za-z]{3})[a-z]*\.?\s*[-/. ,']*\s*(\d{4}|\d{2})(?!\d)")
NAME_DAY_YEAR = re.compile(r"([A-Za-z]{3})[a-z]*\.?\s*[-/. ,']*\s*(\d{1,2})(?:st|nd|rd|th)?\s*[-/. ,']+\s*(\d{4}|\d{2})(?!\d)")
THREE_NUMBERS = re.compile(r"(?<!\d)(\d{1,2})\s*[-/.]\s*(\d{1,2})\s*[-/.]\s*(\d{4}|\d{2})(?!\d)")
THREE_NUMBERS_AND_MORE = re.compile(r"(?<!\d)(\d{1,2})[-/.](\d{1,2})[-/.]((?:19|20)\d\d)")  # a time may follow without a space
EIGHT_DIGITS_YEAR_FIRST = re.compile(r"(?<!\d)(20\d\d)(\d\d)(\d\d)(?!\d)")
EIGHT_DIGITS_YEAR_LAST = re.compile(r"(?<!\d)(\d\d)(\d\d)(20\d\d)(?!\d)")


def date_of(text, order=DAY_FIRST):
    """(ISO date or None, True where day and month could be exchanged) of a text. ORDER decides where both are possible."""
    text = str(text or "").strip()
    if found := YEAR_FIRST.search(text):
        return iso(*found.groups()), False
    if (found := DAY_NAME_YEAR.search(text)) and found[2].lower() in MONTHS:
        return iso(found[3], MONTHS[found[2].lower()], found[1]), False
    if (found := NAME_DAY_YEAR.search(text)) and found[1].lower() in MONTHS:
        return iso(found[3], MONTHS[found[1].lower()], found[2]), False
    if found := THREE_NUMBERS.search(text) or THREE_NUMBERS_AND_MORE.search(text):
        first, second, year = found.groups()
        if int(first) > 12 >= int(second):
            return iso(year, second, first), False
        if int(second) > 12 >= int(first):
            return iso(year, first, second), False
        return in_order(first, second, year, order), int(first) != int(second)
    if found := EIGHT_DIGITS_YEAR_FIRST.search(text):
        return iso(*found.groups()), False
    if found := EIGHT_DIGITS_YEAR_LAST.search(text):
        return in_order(*found.groups(), order), False
    return None, False


def in_order(first, second, year, order):
    return iso(year, second, first) if order == DAY_FIRST else iso(year, first, second)


def iso(year, month, day):
    """The date, or None if there is no such day. Years of two digits are those from 1970 to 2069."""
    year = int(year)
    if year < 100:
        year += 2000 if year < 70 else 1900
    try:
        return datetime.date(year, int(month), int(day)).isoformat()
    except ValueError:
        return None


def amount_of(value):
    """`RM 1,234.50`, `1.234,50` and 1234.5 are "1234.50", `.82` is "0.82". None without a number.

    A comma with three digits after it is that of thousands, as is a dot that stands twice.
    """
    if value is None:
        return None
    if isinstance(value, (int, float)):
        return f"{value:.2f}"
    text = re.sub(r"[^\d.,\-]", "", str(value)).rstrip(".,")
    text = f"0{text}" if re.fullmatch(r"\.\d\d", text) else text.lstrip(".,")
    if not re.search(r"\d", text):
        return None
    sign = "-" if text.startswith("-") or text.endswith("-") else ""
    try:
        return f"{sign}{float(with_decimal_dot(text.replace('-', ''))):.2f}"
    except ValueError:
        return None


def with_decimal_dot(digits):
    if "," in digits and "." in digits:
        decimal_comma = digits.rfind(",") > digits.rfind(".")
        return digits.replace(".", "").replace(",", ".") if decimal_comma else digits.replace(",", "")
    if "," in digits:
        whole, _, rest = digits.rpartition(",")
        return digits.replace(",", "") if len(rest) == 3 else f"{whole.replace(',', '')}.{rest}"
    return digits.replace(".", "") if digits.count(".") > 1 else digits


def before_rounding(total, text):
    """A doubt about a total beside which the text has another amount, and a word of rounding: the amount to pay is a multiple of five cents."""
    near = [amount for amount in printed_amounts(text) if total and 0 < abs(amount - float(total)) <= 0.05]
    is_to_pay = near and round(float(total) * 100) % 5 == 0 and all(abs(amount - float(total)) < 0.03 for amount in near)
    if near and not is_to_pay and re.search("ROUND|ADJ", text.upper()):
        yield f"rounding: {listed(near)} also printed"


def printed_amounts(text):
    """The amounts of a text with two decimals, in their order."""
    return sorted({float(amount.replace(",", "")) for amount in re.findall(r"(?<![\d.])\d[\d,]*\.\d\d(?!\d)", text)})


def listed(amounts):
    return ", ".join(f"{amount:.2f}" for amount in amounts)
