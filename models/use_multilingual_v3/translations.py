#!/usr/bin/env python3
"""Prints how often the English original of a translated text is the nearest of 1,000, and among the nearest ten, by language.

usage: translations.py PACKAGES MODEL_FOLDER...

PACKAGES is a folder with programs whose messages people have translated, such as these (all BSD):
    pip install --no-deps --target PACKAGES wagtail==8.0.1 django-oscar==4.2.1 djangorestframework==3.18.3 django-cms==5.1.3 Django==5.2
Each language has 1,000 of its texts of three English words and more, drawn at random, and its originals are the candidates. Needs
the packages that accuracy.py needs. No choice was made by the results.
"""
import gettext
import random
import sys
from pathlib import Path

from accuracy import Model, places

# The folders of translations by language; the first that has a text counts.
LANGUAGES = {
    "Arabic": ["ar"], "Chinese, simplified": ["zh_Hans"], "Chinese, traditional": ["zh_Hant"], "Dutch": ["nl"], "French": ["fr"],
    "German": ["de"], "Italian": ["it"], "Japanese": ["ja"], "Korean": ["ko"], "Polish": ["pl"], "Portuguese": ["pt_PT", "pt", "pt_BR"],
    "Russian": ["ru"], "Spanish": ["es"], "Thai": ["th"], "Turkish": ["tr"]}
PAIRS, WORDS_MIN = 1000, 3


def pairs(packages, folders):
    """[(English text, its translation)], each of either once."""
    found, seen = {}, set()
    for folder in folders:
        for file in sorted(packages.glob(f"**/locale/{folder}/LC_MESSAGES/*.mo")):
            with file.open("rb") as binary:
                catalogue = gettext.GNUTranslations(binary)._catalog
            for english, translated in catalogue.items():
                # A plural has its number beside the text; a context stands before a text.
                english = english.rpartition("\x04")[2] if isinstance(english, str) else ""
                if len(english.split()) >= WORDS_MIN and translated != english and english not in found and translated not in seen:
                    found[english] = translated
                    seen.add(translated)
    return random.Random(0).sample(sorted(found.items()), min(PAIRS, len(found)))


def main(packages, folders):
    models = [Model(Path(folder)) for folder in folders]
    print("| language | pairs |" + "".join(f" {model.name}: nearest | of ten |" for model in models))
    print("|---" * (2 + 2 * len(models)) + "|")
    for language, names in LANGUAGES.items():
        drawn = pairs(Path(packages), names)
        english, translated = zip(*drawn)
        found = [places(model, {"en": list(english), language: list(translated)}, [])[language] for model in models]
        cells = [f"{100 * (place < limit).mean():.1f} %" for place in found for limit in (1, 10)]
        print(f"| {language} | {len(drawn)} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
