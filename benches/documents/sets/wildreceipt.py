"""WildReceipt, its test part: receipts from the web, with the text of each box and what it is."""
import json
import re

from documents.compare import SHORT_NAME, letters
from documents.values import DAY_FIRST, MONTH_FIRST, amount_of, before_rounding, date_of

REPOSITORY = "jenashauryasikt/SD_internship"
NOTE = "supplier text has no spaces inside a box, and its first box is also right; net = printed subtotal; US sales tax"


def collect(collection):
    clone = collection.clones.open(REPOSITORY)
    classes = clone.text("wildreceipt/class_list.txt").split()
    for line in clone.text("wildreceipt/test.txt").splitlines():
        record = json.loads(line)
        path = f"wildreceipt/{record['file_name']}"
        picture = clone.read(path)
        if picture is None:
            collection.leave_out("without a picture")
            continue
        add(collection, record, classes, path, picture)


def add(collection, record, classes, path, picture):
    folder, sub_folder, name = re.match(r"image_files/Image_(\d+)/(\d+)/(.+)$", record["file_name"]).groups()
    file = f"i{folder}_{sub_folder}_{name[:12]}.{name.rsplit('.', 1)[-1]}"
    annotations = record["annotations"]
    collection.put(file, picture)
    boxes = collection.put_json(f"{file}.json", {
        "words": [each["text"] for each in annotations], "quads": [each["box"] for each in annotations],
        "labels": [class_of(each, classes) or each["label"] for each in annotations],
        "size": {"width": record["width"], "height": record["height"]}}, "boxes")
    texts = texts_by_class(annotations, classes)
    text = " ".join(each["text"] for each in annotations)
    american = is_american(texts, text)
    truth, doubt = fields(texts, american)
    doubt.extend(before_rounding(truth["total"], text))
    raw = {"date": " ".join(texts.get("Date_value", [])), "total": texts.get("Total_value"), "tax": texts.get("Tax_value"),
           "subtotal": texts.get("Subtotal_value")}
    names = texts.get("Store_name_value", [])
    also = names[:1] if len(names) > 1 and len(letters(names[0])) >= SHORT_NAME else []
    collection.add(file, REPOSITORY, path, truth, supplier_also=also, issuer=truth["supplier"], region="US" if american else "unknown", kind="receipt", raw=raw,
                   doubt=doubt, boxes=boxes, layout=f"wild_folder_{folder}", note=NOTE)


def texts_by_class(annotations, classes):
    """{class: [text]}, from the top to the bottom, and from the left in a row."""
    def place(annotation):
        return round(min(annotation["box"][1::2]) / 8), min(annotation["box"][0::2])

    texts = {}
    for each in sorted(annotations, key=place):
        texts.setdefault(class_of(each, classes), []).append(each["text"])
    return texts


def class_of(annotation, classes):
    """What the text of a box is. Empty for a label that the list of classes lacks."""
    return classes[annotation["label"]] if annotation["label"] < len(classes) else ""


def is_american(texts, text):
    """True with a ZIP code in the address, or a telephone number in the American form."""
    return bool(re.search(r"(?<!\d)\d{5}(?:-\d{4})?(?!\d)", " ".join(texts.get("Store_addr_value", [])))
                or re.search(r"\(\d{3}\)\d{3}-\d{4}", text.replace(" ", "")))


def fields(texts, american):
    """(truth, doubt). A date is left out where neither the country nor the date itself tells the order of day and month."""
    doubt = []
    date, ambiguous = date_of(" ".join(texts.get("Date_value", [])), MONTH_FIRST if american else DAY_FIRST)
    if ambiguous and not american:
        date = None
    totals, subtotals, taxes = (amounts(texts.get(name, [])) for name in ("Total_value", "Subtotal_value", "Tax_value"))
    if len(set(totals)) > 1:
        doubt.append(f"several totals marked: {', '.join(totals)}")
    total = totals[-1] if totals else None
    if len(set(taxes)) < len(taxes):  # printed twice, or two taxes of the same amount
        taxes = []
    net = subtotals[0] if len(set(subtotals)) == 1 else None
    if net and total and float(net) > float(total) + 0.01:
        doubt.append(f"subtotal above the total, left out: {net}")
        net = None
    if net == total and any(float(tax) for tax in taxes):  # the subtotal contains the tax
        net = None
    if ambiguous and american:
        doubt.append("day and month order guessed as month first")
    supplier = " ".join(texts.get("Store_name_value", []))
    return {"total": total, "date": date, "supplier": supplier, "net": net, "tax": [{"amount": tax} for tax in taxes]}, doubt


def amounts(texts):
    return [amount for amount in map(amount_of, texts) if amount]
