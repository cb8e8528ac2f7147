"""What each set is made of: functions that read the sources and write the documents with their truth into a `Collection`."""
from . import annotated, by_hand, facturx, sroie, wildreceipt

SETS = {
    "sroie": [sroie.collect],
    "wildreceipt": [wildreceipt.collect],
    "softmatic": [annotated.softmatic],
    "finpi": [annotated.finpi],
    "arabic_egypt": [annotated.arabic_egypt],
    "paragon_pl": [by_hand.collect, annotated.paragon],
    "efatura_tr": [annotated.efatura],
    "israel": [annotated.israel],
    "parsee": [annotated.parsee],
    "invoice2data": [annotated.invoice2data],
    "us_supermarkets": [annotated.us_supermarkets],
    "facturx": [facturx.collect],
    "azure": [by_hand.collect, by_hand.azure_training],
    "google": [by_hand.collect],
    "mindee": [by_hand.collect],
    "arabic_invoices": [by_hand.collect],
    "small_tests": [by_hand.collect, annotated.taiwan],
    "receipts_de_us": [by_hand.collect],
    "world": [by_hand.collect],
}
