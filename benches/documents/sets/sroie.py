"""SROIE: receipts of Malaysia, with the text, its boxes, and four fields.

The truth is that of the corrected release. It has no pictures, so these are from two copies of the first release.
"""
import json
import re
from collections import Counter, defaultdict

from documents.values import DAY_FIRST, amount_of, before_rounding, date_of, listed, printed_amounts

CORRECTED = "jsdnrs/ICDAR2019-SROIE"
TRAINING = "zzzDavid/ICDAR-2019-SROIE"
TEST = "pdrsa/sroie2019"
TAX = 1.06  # the tax of Malaysia at that time was 6 %


class TrainingPictures:
    """The training part of the first release, whose pictures are numbered anew. The boxes tell which one a record is about."""

    def __init__(self, clone):
        self.clone, self.with_box, self.taken = clone, defaultdict(list), set()
        for path in clone.paths():
            found = re.match(r"data/box/(\d+)\.csv$", path)
            if found:
                for box in boxes_of(clone.read(path).decode("utf-8", "replace")):
                    self.with_box[box].append(found[1])

    def number_of(self, boxes):
        """The picture that has the most of these boxes, at least half of them. None if it is not there."""
        votes = Counter(number for box in boxes for number in self.with_box.get(tuple(str(corner) for corner in box), ()))
        best = next((number for number, _ in votes.most_common(5) if number not in self.taken), None)
        if best is None or votes[best] < 0.5 * len(boxes):
            return None
        self.taken.add(best)
        return best


def boxes_of(table):
    """Left, top, right and bottom of each line: x1, y1, x2, y2, x3, y3, x4, y4 and the text, without quotes."""
    rows = (line.split(",", 8) for line in table.splitlines() if line.count(",") >= 8)
    return {(row[0], row[1], row[4], row[5]) for row in rows}


def collect(collection):
    clones = collection.clones
    training = TrainingPictures(clones.open(TRAINING))
    for part in ("train", "test"):
        metadata = f"data/{part}/metadata.jsonl"
        for line in clones.open(CORRECTED).text(metadata).splitlines():
            record = json.loads(line)
            repository, path, first = TEST, f"images/{record['key']}.jpg", None
            if part == "train":
                number = training.number_of(record["bboxes"])
                repository, path = TRAINING, number and f"data/img/{number}.jpg"
                first = number and json.loads(training.clone.read(f"data/key/{number}.json"))
            picture = clones.open(repository).read(path)
            if picture is None:
                collection.leave_out("without a picture")
                continue
            add(collection, f"{part}_{record['key']}", record, first, picture, repository, path, f"{CORRECTED}:{metadata}#{record['key']}")


def add(collection, name, record, first, picture, repository, path, beside):
    words, entities = record["words"], record["entities"]
    company, total = entities.get("company"), amount_of(entities.get("total"))
    date, ambiguous = date_of(entities.get("date"), DAY_FIRST)
    collection.put(f"{name}.jpg", picture)
    boxes = collection.put_json(f"{name}.json", {"words": words, "bboxes": record["bboxes"], "size": record["image_size"]}, "boxes")
    doubt = [*not_in_text(entities, " ".join(words)), *other_totals(total, " ".join(words))]
    release = None
    if first:
        release = {key: first.get(key) for key in ("company", "date", "total")}
        if amount_of(first.get("total")) != total or first.get("date") != entities.get("date"):
            doubt.append("first release and corrected release differ")
    collection.add(f"{name}.jpg", repository, path, {"total": total, "date": date, "supplier": company}, issuer=company, region="MY", kind="receipt",
                   beside=beside, raw={key: entities.get(key) for key in ("total", "date", "address")}, doubt=doubt, boxes=boxes,
                   date_ambiguous=ambiguous or None, truth_first_release=release)


def not_in_text(entities, text):
    """Fields that the text of the source does not have."""
    total = re.sub(r"[^\d.]", "", str(entities.get("total") or ""))
    if not total:
        yield "no total in the source"
    elif total not in re.sub(r"[\s,]", "", text):
        yield "total not in the OCR text"
    if entities.get("date") and re.sub(r"\s", "", entities["date"]).upper() not in re.sub(r"\s", "", text).upper():
        yield "date not in the OCR text"
    if entities.get("company") and re.sub(r"\W", "", entities["company"]).upper()[:12] not in re.sub(r"\W", "", text).upper():
        yield "company not in the OCR text"


def other_totals(total, text):
    """Amounts that could as well be called the total: the one before rounding where the source has not the one to pay, and the one with tax."""
    if not total:
        return
    yield from before_rounding(total, text)
    with_tax = [amount for amount in printed_amounts(text) if abs(float(total) * TAX - amount) <= 0.03 and amount != float(total)]
    if with_tax:
        yield f"looks like the total before tax: {listed(with_tax)} is 6 % more"
