"""Sets whose sources publish the truth next to the documents: in JSON, XML, CSV, or the name of the file."""
import csv
import hashlib
import io
import json
import re
import unicodedata
import xml.etree.ElementTree as ElementTree

from documents.collection import file_name
from documents.values import DAY_FIRST, MONTH_FIRST, amount_of, date_of


def softmatic(collection):
    """Scans of German receipts, whose files are named `<supplier>_<DDMMYYYY>_<page>_<cents>`."""
    repository = "softmatic/vision-data"
    clone = collection.clones.open(repository)
    for path in clone.paths():
        found = re.match(r"2D/Receipts/([A-D])/(([a-z]+)_(\d{8})_.*?)\.jpg$", path)
        if not found:
            continue
        series, name, supplier, date = found.groups()
        picture, blocks = clone.read(path), clone.read(f"{path[:-4]}_blocks.json")
        if picture is None:
            collection.leave_out("not in the clone")
            continue
        file = f"{series}_{name}.jpg"
        collection.put(file, picture)
        if blocks:
            collection.put(f"{file}.json", blocks, "boxes")
        cents = [part for part in name.split("_")[2:] if part.isdigit()][-1]
        truth = {"total": f"{int(cents) / 100:.2f}", "date": f"{date[4:]}-{date[2:4]}-{date[:2]}", "supplier": supplier, "currency": "EUR"}
        collection.add(file, repository, path, truth, issuer=supplier, region="DE", kind="receipt", boxes=f"boxes/{file}.json",
                       note="truth from the file name; flatbed scan 300 dpi, A cropped, B-C uncropped; supplier is a short name")


def finpi(collection):
    """Photographs of receipts of several countries. The truth of a picture is found by the name of the file that it was made of."""
    repository = "70SE07/finpi_ocr"
    clone = collection.clones.open(repository)
    truths = {}
    for path in clone.paths():
        found = re.match(r"docs/ground_truth/(\w\w_\w\w)/\d+_\w\w_\w\w_(\w+?)_IMG_(\w+)\.json$", path)
        if found:
            truths[path] = (found.groups(), json.loads(clone.text(path)))
    for path in clone.paths():
        found = re.match(r"data/analysis/pre_ocr_stages/(\d+_(\w\w_\w\w)_(\w+?)_(?:IMG_|[A-Za-z]{2}_)(\w+))/0_original\.jpg$", path)
        if not found:
            continue
        name, locale, shop, picture = found.groups()
        made_of = json.loads(clone.text(path.replace("0_original.jpg", "metadata.json")))["source_file"].rsplit("/", 1)[-1]
        same_file = [each for each, (key, truth) in truths.items() if key[0] == locale and truth.get("source_file", "").rsplit("/", 1)[-1] == made_of]
        same_name = [each for each, (key, _) in truths.items() if key == (locale, shop, picture)]
        beside = next(iter(same_file or same_name), "")
        if not beside:
            collection.leave_out("without a truth")
            continue
        record = truths[beside][1]
        store, about = record.get("store", {}), record.get("metadata", {})
        issuer = store.get("name") or shop
        truth = {
            "total": amount_of(about.get("receipt_total")), "date": date_of(about.get("date"), DAY_FIRST)[0], "number": about.get("receipt_number"),
            "supplier": issuer, "currency": about.get("currency"), "vat_id": store.get("tax_id"), "tax": finpi_tax(about.get("tax_block"))}
        collection.put(f"{name}.jpg", clone.read(path))
        collection.add(f"{name}.jpg", repository, path, truth, issuer=issuer, region=locale[3:], kind="receipt", beside=beside,
                       raw={"store": store, "metadata": about},
                       note="truth written by the source by looking at the picture (partly by an AI)")


def finpi_tax(block):
    """The rows of the table of taxes. The amounts have different names in different files."""
    rows = block.values() if isinstance(block, dict) else ()
    return [{"rate": amount_of(row.get("rate")), "amount": amount_of(row.get("mwst") or row.get("tax") or row.get("vat") or row.get("amount")),
             "base": amount_of(row.get("netto") or row.get("net"))} for row in rows if isinstance(row, dict)]


def arabic_egypt(collection):
    """Photographs of receipts of Egypt, in Arabic, English or both."""
    repository = "haneenfadi/receipt-ocr-pipeline"
    clone = collection.clones.open(repository)
    for record in json.loads(clone.text("test/ground_truth.json")):
        path = f"src/receipts/{record['image']}"
        picture = clone.read(path)
        if picture is None:
            collection.leave_out("not in the clone")
            continue
        names = record["store_name"] if isinstance(record["store_name"], list) else [record["store_name"]]
        truth = {"total": amount_of(record["total_amount"]), "date": date_of(record["date"], DAY_FIRST)[0], "number": record["receipt_number"],
                 "supplier": names[0], "currency": "EGP" if record["currency"] else None,
                 "tax": [{"amount": amount_of(record["taxes"])}] if record["taxes"] else None}
        collection.put(record["image"], picture)
        collection.add(record["image"], repository, path, truth, issuer=names[0], region="EG", kind="receipt", beside="test/ground_truth.json",
                       raw=without_items(record), supplier_also=names[1:],
                       note="currency only where the source states one (printed L.E., EGP); region EG from the source set")


def paragon(collection):
    """The receipt of Poland whose truth the source has. The others were read by hand."""
    repository = "codemarcinu/ParagonOCR"
    clone = collection.clones.open(repository)
    for name, record in json.loads(clone.text("tests/evaluation/ground_truth.json")).items():
        path = f"paragony/{name}"
        if not clone.has(path):
            continue
        shop, receipt = record["sklep_info"]["nazwa"], record["paragon_info"]
        collection.put(name, clone.read(path))
        collection.add(name, repository, path, {"total": amount_of(receipt["suma_calkowita"]), "date": receipt["data_zakupu"], "supplier": shop},
                       issuer=shop, region="PL", kind="receipt")


def efatura(collection):
    """Electronic invoices of Turkey: as PDF, and as a picture of each page."""
    repository, metadata = "samimozcan/e-invoice-dataset", "dataset_multi_image.jsonl"
    clone = collection.clones.open(repository)
    composed = {unicodedata.normalize("NFC", path): path for path in clone.paths()}  # the table has other code points for the same letters
    for line in clone.text(metadata).splitlines():
        record = json.loads(line)
        answer = json.loads(record["response"])["data"]
        invoices = answer if isinstance(answer, list) else [answer]
        invoice = invoices[0]
        stem = re.sub(r"\.pdf_page_\d+\.jpg$", "", record["images"][0].rsplit("/", 1)[-1])
        path = composed.get(unicodedata.normalize("NFC", f"pdfs/{stem}.pdf"))
        if path is None:
            collection.leave_out("without a PDF")
            continue
        file, content, pages = file_name(f"{stem}.pdf"), clone.read(path), []
        for number, picture in enumerate(record["images"], 1):
            page = clone.read(composed.get(unicodedata.normalize("NFC", picture)))
            if page:
                pages.append((f"{file[:-4]}_p{number}.jpg", page))
        if content is None and not pages:
            collection.leave_out("not in the clone")
            continue
        if content is None:  # the first page stands for it
            file, content = pages[0]
        collection.put(file, content)
        supplier = invoice.get("invoice_supplier_name")
        truth = {"total": amount_of(invoice.get("invoice_total_amount")), "date": date_of(invoice.get("invoice_date"), DAY_FIRST)[0],
                 "number": invoice.get("invoice_id"), "supplier": supplier, "currency": invoice.get("invoice_currency"),
                 "vat_id": invoice.get("invoice_supplier_vkn")}
        collection.add(file, repository, path, truth, issuer=supplier, region="TR", kind="invoice", beside=metadata, raw=without_items(invoice),
                       pages=[collection.put(name, page, "pages") for name, page in pages],
                       several_invoices=len(invoices) if len(invoices) > 1 else None)


def israel(collection):
    """Invoices and delivery notes of Israel, in Hebrew, with the fields that a commercial program read and its user verified."""
    repository = "kfireew/Receipt-OCR"
    clone = collection.clones.open(repository)
    for path in clone.paths():
        if not (path.startswith("sample_images/") and path.endswith(".pdf")):
            continue
        try:
            fields = first_values(json.loads(clone.read(f"{path[:-4]}.JSON").decode("utf-8-sig")))
        except (AttributeError, ValueError):  # there is none, or it is cut off
            collection.leave_out("without a truth")
            continue
        file, supplier = file_name(path), path.rsplit("/", 1)[-1].split("_")[0]
        truth = {"total": amount_of(fields.get("Total")), "date": date_of(fields.get("Date"), DAY_FIRST)[0], "number": fields.get("InvoiceNo")}
        collection.put(file, clone.read(path))
        collection.add(file, repository, path, truth, issuer=supplier, region="IL", kind="invoice", supplier_latin=supplier,
                       raw={name: fields[name] for name in ("InvoiceNo", "Date", "Total", "VendorNameS") if name in fields},
                       doubt=None if fields.get("Total") else ["no truth in the source JSON"],
                       note="Hebrew; truth from ABBYY output verified by the user; the supplier is given only as a Latin short name;"
                            " some are delivery notes, whose total is before VAT")


def first_values(record):
    """{name: the first value} of the fields in a record and in its groups."""
    values, waiting = {}, [record]
    while waiting:
        each = waiting.pop(0)
        if isinstance(each, list):
            waiting[:0] = each
        elif isinstance(each, dict):
            if each.get("name") and isinstance(each.get("value"), str) and each["value"]:
                values.setdefault(each["name"], each["value"].strip())
            waiting[:0] = [each[key] for key in ("fields", "groups", "GDocument") if key in each]
    return values


def parsee(collection):
    """Invoices as PDF. The truth is the text of answers, found by the hash of the file."""
    repository, metadata = "parsee-ai/parsee-datasets", "datasets/invoices/parsee-loader/data/invoices_parsee.csv"
    clone = collection.clones.open(repository)
    csv.field_size_limit(10**9)
    answers = {}
    for row in csv.DictReader(io.StringIO(clone.text(metadata))):
        answers.setdefault(row["source_identifier"], {})[row["element_identifier"]] = row["TRUTH_answer"]
    for path in clone.paths():
        if not path.startswith("datasets/invoices/raw_data/"):
            continue
        content, file = clone.read(path), file_name(path)
        raw = answers.get(hashlib.sha256(content).hexdigest())
        if raw is None:
            collection.leave_out("without a truth")
            continue
        amounts, supplier, date = (re.sub(r"\nSources:.*", "", raw.get(f"general{number}", ""), flags=re.S) for number in range(3))
        total = re.search(r"main question\): ([\d.,]+)", amounts) or re.match(r"([\d.,]+)", amounts)
        currency, rate = re.search(r"\$ (\w{3}) \$", amounts), re.search(r"\(meta1\): ([\d.,]+)%", amounts)
        truth = {"total": amount_of(total[1]) if total else None, "date": date, "supplier": supplier, "currency": currency[1] if currency else None,
                 "tax": [{"rate": amount_of(rate[1])}] if rate else None}
        collection.put(file, content)
        collection.add(file, repository, path, truth, issuer=supplier, region="unknown", kind="receipt" if "receipt" in file.lower() else "invoice",
                       beside=metadata, raw=raw)


INVOICE2DATA_REGIONS = {"AmazonWebServices": "US", "AzureInterior": "US", "FlipkartInvoice": "IN", "NetpresseInvoice": "FR", "QualityHosting": "DE",
                        "coolblue1": "NL", "coolblue2": "NL", "free_fiber": "FR", "oyo": "IN", "saeco": "NL"}


def invoice2data(collection):
    """The invoices that the project invoice2data tests its templates with."""
    repository = "invoice-x/invoice2data"
    clone = collection.clones.open(repository)
    for path in clone.paths():
        found = re.match(r"tests/compare/(\w+)\.pdf$", path)
        if not found:
            continue
        name = found[1]
        collection.put(f"{name}.pdf", clone.read(path))
        if clone.has(f"tests/compare/{name}.png"):
            collection.put(f"{name}.png", clone.read(f"tests/compare/{name}.png"), "pages")
        record = json.loads(clone.text(f"tests/compare/{name}.json"))[0]
        truth = {
            "total": amount_of(record.get("amount")), "date": date_of(record.get("date"), DAY_FIRST)[0],
            "number": str(record.get("invoice_number") or ""), "supplier": record.get("partner_name") or record.get("issuer"),
            "due_date": date_of(record.get("date_due"), DAY_FIRST)[0], "net": amount_of(record.get("amount_untaxed")),
            "tax": [{"amount": amount_of(record["amount_tax"])}] if record.get("amount_tax") else None, "currency": record.get("currency"),
            "iban": record.get("iban"), "vat_id": record.get("vat") or record.get("static_vat") or record.get("gstin")}
        collection.add(f"{name}.pdf", repository, path, truth, issuer=record.get("issuer"), region=INVOICE2DATA_REGIONS.get(name, "unknown"),
                       kind="invoice", raw={key: value for key, value in record.items() if key != "lines"},
                       note='truth = output the project checks its templates against; a "total" may be what its template picks')


def us_supermarkets(collection):
    """Receipts of supermarkets, with boxes whose attribute is the text."""
    repository = "adu-CS/Receipt-Dataset-OCR_PyTesseract"
    clone = collection.clones.open(repository)
    annotations = clone.read("annotations.xml")
    boxes = collection.put("annotations.xml", annotations, "boxes")
    for image in ElementTree.fromstring(annotations).findall("image"):
        path = image.get("name")
        picture = clone.read(path)
        if picture is None:
            collection.leave_out("not in the clone")
            continue
        fields = {box.get("label"): (box.find("attribute").text or "").strip() for box in image.findall("box") if box.get("label") != "item"}
        shop = re.sub("(?i)waalmart", "Walmart", fields.get("shop", "") or f"unknown adu {path}")
        american = "spar" not in shop.lower() and "momi" not in shop.lower()
        date, _ = date_of(fields.get("date_time"), MONTH_FIRST if american else DAY_FIRST)
        total = re.sub(r"(?i).*items", "", fields["total"]).replace(", ", ",") if fields.get("total") else None
        file = path.rsplit("/", 1)[-1]
        collection.put(file, picture)
        collection.add(file, repository, path, {"total": amount_of(total), "date": date, "supplier": fields.get("shop")}, issuer=shop,
                       region="US" if american else "unknown", kind="receipt", beside="annotations.xml", raw=fields, boxes=boxes)


def taiwan(collection):
    """Five receipts that the source has drawn, with their labels."""
    repository = "kuotunyu/receipt-ocr-vlm-benchmark"
    clone = collection.clones.open(repository)
    for number in range(1, 6):
        file = f"sample_{number:03}.jpg"
        path = f"data/dev_fixtures/raw/{file}"
        record = json.loads(clone.text(f"data/dev_fixtures/labels/sample_{number:03}.json"))
        seller = record.get("seller_name")
        truth = {"total": amount_of(record.get("total_amount")), "date": record.get("date"), "number": record.get("invoice_number"),
                 "supplier": seller, "vat_id": record.get("seller_tax_id")}
        collection.put(file, clone.read(path))
        collection.add(file, repository, path, truth, issuer=seller or "unknown tw", region="TW", kind="receipt", by="label file of the source",
                       raw=without_items(record), note="drawn, not real")


def without_items(record):
    return {key: value for key, value in record.items() if key != "items"}
