"""Invoices as PDF that carry their contents as XML: ZUGFeRD, Factur-X and XRechnung. The XML is the truth.

The XML travels inside the PDF, so a reader that is measured must not read it. Samples of the standards are in many repositories: a file with the
same text as an earlier one is left out, as is a third one with the same supplier, number and total.
"""
import hashlib
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter

from documents.collection import file_name
from documents.values import amount_of

CREDIT_NOTE = "381"
COPIES_MAX = 2
TEXT_MIN = 50  # characters; with fewer a PDF has no text layer
NOTE = "truth from the embedded XML; the XML travels inside the PDF: a reader must not read it"
# The names of version 1 of ZUGFeRD after those of the later standards.
DOCUMENT = ("ExchangedDocument", "HeaderExchangedDocument")
SETTLEMENT = ("ApplicableHeaderTradeSettlement", "ApplicableSupplyChainTradeSettlement")
SUMMATION = ("SpecifiedTradeSettlementHeaderMonetarySummation", "SpecifiedTradeSettlementMonetarySummation")
RATE = ("RateApplicablePercent", "ApplicablePercent")


def collect(collection):
    import pymupdf  # the other sets do without it

    pymupdf.TOOLS.mupdf_display_errors(False)
    clones, texts, copies, taken = collection.clones, set(), Counter(), set()
    for repository in [source.repository for source in clones.sources.values() if source.set == collection.name]:
        clone = clones.open(repository)
        for path in clone.paths():
            content = clone.read(path) if path.lower().endswith(".pdf") else None
            found = content and with_xml(pymupdf, content)
            if not found:
                continue
            xml, invoice, text = found
            truth = invoice.truth()
            letters = re.sub(r"\s", "", text)
            digest = hashlib.sha256(letters.encode() if len(letters) > TEXT_MIN else content).digest()
            copy = (truth["supplier"], truth["number"], truth["total"])
            if digest in texts or copies[copy] >= COPIES_MAX:
                collection.leave_out("a copy")
                continue
            texts.add(digest)
            copies[copy] += 1
            file = free_name(f"{repository.split('/')[1]}__{file_name(path)}", taken)
            collection.put(file, content)
            collection.put(f"{file}.xml", xml, "xml")
            about = invoice.about()
            collection.add(file, repository, path, truth, issuer=truth["supplier"], region=about.get("country", "unknown"), kind="invoice", raw=about,
                           doubt=list(doubts(truth, text)), note=NOTE, layout="credit note" if about.get("type_code") == CREDIT_NOTE else None)


def with_xml(pymupdf, content):
    """(XML, invoice, text of all pages) of a PDF with an invoice in XML. None for others, and for damaged ones."""
    try:
        with pymupdf.open(stream=content, filetype="pdf") as document:
            for embedded in [document.embfile_get(index) for index in range(document.embfile_count())]:
                invoice = Invoice.of(embedded)
                if invoice:
                    return embedded, invoice, "\n".join(page.get_text() for page in document)
    except Exception:  # of many kinds: some samples are damaged on purpose
        pass
    return None


def free_name(name, taken):
    """The name, with a number before its extension if there is one like it."""
    stem, number = name.rsplit(".", 1)[0], 2
    while name in taken:
        name = f"{stem}_{number}.pdf"
        number += 1
    taken.add(name)
    return name


class Invoice:
    """An invoice in the Cross Industry Invoice format."""

    def __init__(self, root):
        self.root = root

    @classmethod
    def of(cls, content):
        """None for a file that is no such invoice."""
        if b"CrossIndustry" not in content and "CrossIndustry".encode("utf-16-le") not in content:
            return None
        try:
            root = ElementTree.fromstring(content)
        except ElementTree.ParseError:
            return None
        return cls(root) if root.tag.rsplit("}", 1)[-1] in ("CrossIndustryInvoice", "CrossIndustryDocument") else None

    def truth(self):
        return {
            "number": self.first([f"{name}/ID" for name in DOCUMENT]),
            "date": date(self.first([f"{name}/IssueDateTime/DateTimeString" for name in DOCUMENT])),
            "supplier": self.first(["SellerTradeParty/Name"]),
            "currency": self.first(["InvoiceCurrencyCode"]),
            "due_date": date(self.first(["SpecifiedTradePaymentTerms/DueDateDateTime/DateTimeString"])),
            "iban": self.first(["PayeePartyCreditorFinancialAccount/IBANID"]),
            "vat_id": self.registration("VA"),
            "total": self.sum("GrandTotalAmount"),
            "net": self.sum("TaxBasisTotalAmount"),
            "tax": self.taxes(),
        }

    def about(self):
        """What else helps to judge an answer."""
        about = {
            "tax_number": self.registration("FC"), "due_payable": self.sum("DuePayableAmount"), "prepaid": self.sum("TotalPrepaidAmount"),
            "tax_total": self.sum("TaxTotalAmount"), "type_code": self.first([f"{name}/TypeCode" for name in DOCUMENT]),
            "country": self.first(["SellerTradeParty/PostalTradeAddress/CountryID"]),
            "guideline": self.first(["GuidelineSpecifiedDocumentContextParameter/ID"])}
        return {name: value for name, value in about.items() if value}

    def first(self, paths):
        """The first text that is not empty, of the elements of the first path that has one. Namespaces differ by version."""
        texts = (text_of(element) for path in paths for element in self.root.findall(anywhere(path)))
        return next((text for text in texts if text), None)

    def sum(self, name):
        return amount_of(self.first([f"{settlement}/{summation}/{name}" for settlement in SETTLEMENT for summation in SUMMATION]))

    def registration(self, scheme):
        """The seller's number at the tax office of this scheme: "VA" is of value added tax."""
        elements = self.root.findall(anywhere("SellerTradeParty/SpecifiedTaxRegistration/ID"))
        return next((text_of(element) for element in elements if element.get("schemeID") == scheme and text_of(element)), None)

    def taxes(self):
        taxes = []
        for tax in [tax for settlement in SETTLEMENT for tax in self.root.findall(anywhere(f"{settlement}/ApplicableTradeTax"))]:
            texts = {child.tag.rsplit("}", 1)[-1]: text_of(child) for child in tax}
            row = {"rate": amount_of(next((texts[name] for name in RATE if texts.get(name)), None)),
                   "amount": amount_of(texts.get("CalculatedAmount")), "base": amount_of(texts.get("BasisAmount")),
                   "category": texts.get("CategoryCode")}
            taxes.append({name: value for name, value in row.items() if value})
        return taxes


def anywhere(path):
    return ".//" + "/".join(f"{{*}}{name}" for name in path.split("/"))


def text_of(element):
    return (element.text or "").strip()


def date(text):
    found = re.match(r"(\d{4})-?(\d\d)-?(\d\d)", text or "")
    return "-".join(found.groups()) if found else None


def doubts(truth, text):
    """Fields that the text of the PDF does not show: the XML says more than the page, or the page is a picture."""
    letters = re.sub(r"\s", "", text)
    if len(letters) < TEXT_MIN:
        yield "no text layer"
        return
    if truth["number"] and re.sub(r"\s", "", truth["number"]) not in letters:
        yield "number not in the text"
    if truth["total"] and not re.search(as_printed(truth["total"]), letters):
        yield "total not in the text"
    if truth["supplier"] and re.sub(r"\W", "", truth["supplier"]).lower()[:10] not in re.sub(r"\W", "", text).lower():
        yield "supplier not in the text"
    if truth["iban"] and re.sub(r"\s", "", truth["iban"]) not in letters:
        yield "IBAN not in the text"
    if truth["vat_id"] and truth["vat_id"].replace(" ", "") not in letters:
        yield "VAT id not in the text"
    for field in ("date", "due_date"):
        if truth[field] and not is_date_printed(truth[field], letters):
            yield f"{field.replace('_', ' ')} not in the text as figures"


def as_printed(amount):
    """A pattern for an amount with any sign between thousands, or none."""
    whole, cents = amount.split(".")
    groups = [whole[max(0, end - 3):end] for end in range(len(whole), 0, -3)][::-1]
    return r"[.,'’\s]?".join(groups) + r"[.,]" + cents


def is_date_printed(iso, letters):
    """True for figures in a usual order, and for the name of a month between them."""
    year, month, day = iso.split("-")
    figures = (f"{day}.{month}.{year}", f"{int(day)}.{int(month)}.{year}", f"{day}/{month}/{year}", iso, f"{day}-{month}-{year}",
               f"{day}.{month}.{year[2:]}", f"{day}/{month}/{year[2:]}")
    return any(each in letters for each in figures) or bool(re.search(rf"{int(day)}\.?\w+{year}", letters))
