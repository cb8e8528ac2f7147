#!/usr/bin/env python3
"""Draws receipts and invoices whose fields are known: ten layouts, five languages, askew, some on their side, noisy.

usage: receipts.py FOLDER COUNT [FONT...]      (writes 000.jpg, 001.jpg, ... and truth.json with their fields and words; "-" and no font are
       Pillow's own, which has neither accents nor the euro sign)
"""
import json
import random
import sys
import unicodedata
from datetime import date, timedelta
from pathlib import Path

from PIL import Image, ImageDraw, ImageFilter, ImageFont

WORDS = {
    "en": dict(receipt="RECEIPT", invoice="INVOICE", date="Date", number="Invoice No", sub="Subtotal", tax="VAT 20%", total=["Total", "Amount due", "Grand total", "TOTAL"], due="Due date",
               items=["Coffee", "Green tea", "Paper A4", "Screws M4", "Light bulb", "Cable 3 m", "Workshop hour", "Delivery", "Lunch menu"], thanks="Thank you for your visit"),
    "de": dict(receipt="QUITTUNG", invoice="RECHNUNG", date="Datum", number="Rechnung Nr", sub="Zwischensumme", tax="MwSt 19%", total=["Gesamtbetrag", "Summe", "Zu zahlen", "Rechnungsbetrag"], due="Lieferdatum",
               items=["Kaffee", "Brot", "Papier A4", "Schrauben M4", "Lampe", "Kabel 3 m", "Arbeitsstunde", "Versand", "Mittagessen"], thanks="Vielen Dank"),
    "fr": dict(receipt="RECU", invoice="FACTURE", date="Date", number="Facture No", sub="Total HT", tax="TVA 20%", total=["Total TTC", "Net à payer", "Montant total"], due="Date d'échéance",
               items=["Café", "Pain", "Papier A4", "Vis M4", "Ampoule", "Câble 3 m", "Heure de travail", "Livraison", "Menu du jour"], thanks="Merci de votre visite"),
    "es": dict(receipt="RECIBO", invoice="FACTURA", date="Fecha", number="Factura No", sub="Base imponible", tax="IVA 21%", total=["Total", "Total a pagar", "Importe total"], due="Fecha de vencimiento",
               items=["Café", "Pan", "Papel A4", "Tornillos M4", "Bombilla", "Cable 3 m", "Hora de trabajo", "Envío", "Menú del día"], thanks="Gracias por su visita"),
    "it": dict(receipt="RICEVUTA", invoice="FATTURA", date="Data", number="Fattura N", sub="Imponibile", tax="IVA 22%", total=["Totale", "Totale da pagare", "Importo totale"], due="Data di scadenza",
               items=["Caffè", "Pane", "Carta A4", "Viti M4", "Lampadina", "Cavo 3 m", "Ora di lavoro", "Consegna", "Menu del giorno"], thanks="Grazie e arrivederci"),
}
MONTHS = {"en": "January February March April May June July August September October November December",
          "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
          "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
          "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
          "it": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre"}


def money(cents, language, form):
    whole, part = divmod(cents, 100)
    thousands, point = (",", ".") if language == "en" else (".", ",")
    grouped = f"{whole:,}".replace(",", thousands)
    text = f"{grouped}{point}{part:02}"
    if form == 0:
        return text
    sign = {"en": "£"}.get(language, "€")
    if form == 1:
        return f"{sign}{text}" if language == "en" else f"{text} {sign}"
    return f"{text} EUR"


def day(value, language, form):
    if form == 0:
        return value.isoformat()
    if form == 1:
        return value.strftime("%d.%m.%Y") if language == "de" else value.strftime("%d/%m/%Y")
    month = MONTHS[language].split()[value.month - 1]
    return f"{value.day} {month} {value.year}" if language != "de" else f"{value.day}. {month} {value.year}"


class Page:
    def __init__(self, width, height, font, size):
        self.image = Image.new("L", (width, height), 255)
        self.draw = ImageDraw.Draw(self.image)
        self.font, self.size, self.width, self.words = font, size, width, []

    def text(self, x, y, text, scale=1.0, align="left"):
        size = round(self.size * scale)
        if self.font:
            font = ImageFont.truetype(self.font, size)
        else:
            font = ImageFont.load_default(size)
            text = unicodedata.normalize("NFD", text.replace("€", "EUR"))
            text = "".join(letter for letter in text if ord(letter) < 128 or letter == "£")
        self.words += text.split()
        length = self.draw.textlength(text, font=font)
        left = {"left": x, "right": x - length, "middle": x - length / 2}[align]
        self.draw.text((left, y), text, font=font, fill=25)


def draw(layout, language, fonts, rng):
    words = WORDS[language]
    items = [(rng.choice(words["items"]), rng.randint(1, 5), rng.randint(120, 9900) if layout < 5 else rng.randint(900, 190000)) for _ in range(rng.randint(2, 8))]
    net = sum(count * price for _, count, price in items)
    tax = round(net * 0.2)
    total = net + tax
    issued = date(2024, 1, 1) + timedelta(days=rng.randint(0, 1000))
    number = f"{rng.choice(['A-', 'RE', '2026/', ''])}{rng.randint(1000, 99999)}"
    form, day_form = rng.randint(0, 2), rng.randint(0, 2)
    pay = lambda cents: money(cents, language, form)
    issued_text = day(issued, language, day_form)
    label = rng.choice(words["total"])
    truth = dict(total=f"{total // 100}.{total % 100:02}", date=issued.isoformat(), number=number, language=language, layout=layout)
    font = rng.choice([None if font == "-" else font for font in fonts or ["-"]])
    if layout < 5:  # a receipt on a roll
        size = rng.choice([20, 24, 28])
        page = Page(size * 24, size * (26 + 2 * len(items)), font, size)
        width, y, line = page.width, size, size * 1.6
        page.text(width / 2, y, "CORNER STORE 24", 1.5, "middle"); y += 2.2 * line
        head = [f"{words['date']}: {issued_text}", f"{words['number']} {number}"] if layout != 3 else [f"{issued_text}  14:35", f"{words['number']}: {number}"]
        if layout == 1:
            page.text(width / 2, y, words["receipt"], 1.2, "middle"); y += 1.5 * line
        for text in head:
            page.text(size, y, text); y += line
        y += line * 0.6
        for name, count, price in items:
            if layout == 2:
                page.text(size, y, name); y += line * 0.9
                page.text(size * 2, y, f"{count} x {money(price, language, 0)}")
            else:
                page.text(size, y, f"{count} x {name}" if layout != 4 else name)
            page.text(width - size, y, money(count * price, language, 0), align="right"); y += line
        y += line * 0.4
        for name, cents in [(words["sub"], net), (words["tax"], tax)]:
            page.text(size, y, name); page.text(width - size, y, money(cents, language, 0), align="right"); y += line
        page.text(size, y, label, 1.25); page.text(width - size, y, pay(total), 1.25, "right"); y += 2 * line
        page.text(width / 2, y, words["thanks"], 0.9, "middle")
    else:  # an invoice on a sheet
        size = rng.choice([22, 26])
        page = Page(1240, 1754, font, size)
        y, line, right = 90, size * 1.6, 1150
        page.text(90, y, "Harbour Supplies Ltd", 1.6); y += 3 * line
        title_x, align = (90, "left") if layout != 6 else (right, "right")
        page.text(title_x, y, words["invoice"], 1.8, align); y += 3 * line
        pairs = [(words["date"], issued_text), (words["number"], number), (words["due"], day(issued + timedelta(days=30), language, day_form))]
        if layout in (5, 9):
            for name, value in pairs:
                page.text(90, y, f"{name}: {value}"); y += line
        elif layout == 6:
            for name, value in pairs:
                page.text(right - 300, y, name, align="right"); page.text(right, y, value, align="right"); y += line
        elif layout == 7:
            for place, (name, value) in enumerate(pairs):
                page.text(90 + 360 * place, y, name, 0.85); page.text(90 + 360 * place, y + line, value)
            y += 2 * line
        else:
            for name, value in pairs:
                page.text(90, y, name); page.text(480, y, value); y += line
        y += 2 * line
        for name, count, price in items:
            page.text(90, y, name); page.text(700, y, str(count), align="right")
            page.text(930, y, money(price, language, 0), align="right"); page.text(right, y, money(count * price, language, 0), align="right")
            y += line * 1.2
        page.draw.line((90, y, right, y), fill=60, width=2); y += line
        at = 820 if layout != 8 else 400
        for name, cents in [(words["sub"], net), (words["tax"], tax)]:
            page.text(at, y, name, align="right"); page.text(right, y, money(cents, language, 0), align="right"); y += line * 1.2
        page.text(at, y, label, 1.2, "right"); page.text(right, y, pay(total), 1.2, "right"); y += 3 * line
        if layout == 9:
            page.text(90, y, "IBAN DE89 3704 0044 0532 0130 00")
            truth["iban"] = "DE89370400440532013000"
    return page.image, dict(truth, words=page.words)


def spoil(image, rng):
    angle = rng.uniform(-3, 3)
    image = image.rotate(angle, Image.BICUBIC, expand=True, fillcolor=250)
    if rng.random() < 0.15:
        image = image.transpose(rng.choice([Image.ROTATE_90, Image.ROTATE_180, Image.ROTATE_270]))
    if rng.random() < 0.5:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 0.9)))
    noise = Image.effect_noise(image.size, rng.uniform(5, 30))
    return Image.blend(image, noise, rng.uniform(0.05, 0.2))


def main(folder, count, *fonts):
    folder, truths = Path(folder), {}
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(int(count)):
        rng = random.Random(index)
        image, truth = draw(index % 10, list(WORDS)[index // 10 % 5], fonts, rng)
        name = f"{index:03}.jpg"
        spoil(image, rng).convert("RGB").save(folder / name, quality=rng.choice([60, 75, 90]))
        truths[name] = truth
    (folder / "truth.json").write_text(json.dumps(truths, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
