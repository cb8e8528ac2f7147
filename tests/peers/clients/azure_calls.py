"""The client of Azure AI Document Intelligence, unmodified, against /documentintelligence.

usage: azure_calls.py PORT KEY FOREIGN_KEY RECEIPT INVOICE      (a picture and a PDF of two pages)
"""
import datetime
import struct
import sys
from pathlib import Path

import pymupdf
from azure.ai.documentintelligence import DocumentIntelligenceClient
from azure.ai.documentintelligence.models import AnalyzeDocumentRequest, AnalyzeOutputOption, DocumentContentFormat
from azure.core.credentials import AzureKeyCredential
from azure.core.exceptions import HttpResponseError


def refused(status, code, call):
    try:
        call()
    except HttpResponseError as error:
        assert (error.status_code, error.error.code) == (status, code), error
    else:
        raise AssertionError("it was answered")


def words_of(pdf, page):
    return [word[4] for word in pdf[page].get_text("words")]


def pixels(page):
    return page.get_pixmap(dpi=100).samples


def bmp(picture):
    """The picture with 24 bits a pixel, rows from below."""
    pixmap = pymupdf.Pixmap(pymupdf.csRGB, pymupdf.Pixmap(picture))
    width, height, stride = pixmap.width, pixmap.height, pixmap.stride
    rows = [pixmap.samples[row * stride:row * stride + 3 * width] for row in reversed(range(height))]
    padding = bytes(-3 * width % 4)
    data = b"".join(bytes(sample for at in range(0, len(row), 3) for sample in row[at:at + 3][::-1]) + padding for row in rows)
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(data), 0, 0, 0, 0)
    return struct.pack("<2sIII", b"BM", 54 + len(data), 0, 54) + header + data


def main(port, key, foreign_key, receipt, invoice):
    receipt, invoice = Path(receipt).read_bytes(), Path(invoice).read_bytes()
    client, foreign = [
        DocumentIntelligenceClient(f"http://127.0.0.1:{port}", AzureKeyCredential(one)) for one in (key, foreign_key)
    ]

    # As Paperless-ngx calls it: the text, then the searchable PDF.
    poller = client.begin_analyze_document(
        "prebuilt-read", AnalyzeDocumentRequest(bytes_source=receipt), output=[AnalyzeOutputOption.PDF],
        output_content_format=DocumentContentFormat.TEXT, content_type="application/json")
    poller.wait()
    result, operation = poller.result(), poller.details["operation_id"]
    assert "Total EUR 13.70" in result.content, result.content
    read = [word.content for word in result.pages[0].words]
    pdf = pymupdf.open(stream=b"".join(client.get_analyze_result_pdf("prebuilt-read", operation)))
    assert words_of(pdf, 0) == read, (words_of(pdf, 0), read)
    refused(404, "NotFound", lambda: b"".join(foreign.get_analyze_result_pdf("prebuilt-read", operation)))

    # A BMP, as Paperless-ngx sends it unchanged.
    poller = client.begin_analyze_document(
        "prebuilt-read", AnalyzeDocumentRequest(bytes_source=bmp(receipt)), output=[AnalyzeOutputOption.PDF])
    assert "Total EUR 13.70" in poller.result().content, poller.result().content
    pdf = pymupdf.open(stream=b"".join(client.get_analyze_result_pdf("prebuilt-read", poller.details["operation_id"])))
    assert words_of(pdf, 0) == [word.content for word in poller.result().pages[0].words]

    # As LangChain calls it: the file itself, Markdown.
    layout = client.begin_analyze_document(
        "prebuilt-layout", invoice, content_type="application/octet-stream", output_content_format="markdown",
        features=["styleFont"]).result()
    assert "<td>VAT 19%</td>\n<td>95.00</td>" in layout.content and "<!-- PageBreak -->" in layout.content, layout.content
    assert layout.tables[0].column_count == 2 and len(layout.pages) == 2 and layout.pages[0].unit == "inch"
    text = layout.content
    for page in layout.pages:
        for word in page.words:
            assert text[word.span.offset:][:word.span.length] == word.content, word

    fields = client.begin_analyze_document("prebuilt-receipt", AnalyzeDocumentRequest(bytes_source=receipt)).result()
    fields = fields.documents[0].fields
    assert fields["Total"].value_currency.amount == 13.7 and fields["Total"].value_currency.currency_code == "EUR"
    assert fields["TransactionDate"].value_date == datetime.date(2026, 11, 20), fields["TransactionDate"]

    # A PDF with text of its own keeps it: nothing is added, nothing moves.
    poller = client.begin_analyze_document(
        "prebuilt-invoice", AnalyzeDocumentRequest(bytes_source=invoice), output=[AnalyzeOutputOption.PDF])
    number = poller.result().documents[0].fields["InvoiceId"]
    assert number.value_string == "R-2048", number
    after = pymupdf.open(stream=b"".join(client.get_analyze_result_pdf("prebuilt-invoice", poller.details["operation_id"])))
    before = pymupdf.open(stream=invoice)
    for index in range(2):
        assert pixels(before[index]) == pixels(after[index]) and words_of(before, index) == words_of(after, index)

    refused(400, "InvalidRequest", lambda: client.begin_analyze_document(
        "prebuilt-read", AnalyzeDocumentRequest(url_source="http://127.0.0.1/scan.pdf")))
    refused(404, "NotFound", lambda: client.begin_analyze_document("mine", AnalyzeDocumentRequest(bytes_source=receipt)))
    unknown = DocumentIntelligenceClient(client._config.endpoint, AzureKeyCredential("0" * 32))
    refused(401, "Unauthorized", lambda: unknown.begin_analyze_document(
        "prebuilt-read", AnalyzeDocumentRequest(bytes_source=receipt)))


if __name__ == "__main__":
    main(*sys.argv[1:])
