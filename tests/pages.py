"""The examples of the documents, for tests that run them."""
import re
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]


def fences(document, heading, language="console"):
    """The text of each fence of a language in a section of a document, as far as the next heading."""
    text = (CHECKOUT / document).read_text()
    section, = re.findall(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##+ |\Z)", text, re.MULTILINE | re.DOTALL)
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def commands(fence):
    """The commands of a fence, of root and of any user, each a line of shell."""
    return re.findall(r"^[#$] (.*)$", fence.replace("\\\n", " "), re.MULTILINE)
