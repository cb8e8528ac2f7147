"""One classic script of the modules of the page, because browsers load no modules from a disk.

Each module becomes a function with a scope of its own, in the order in which they need one another. Only the forms of
`import` and `export` are known that these modules use: any other is an error here, and not in a browser.
"""
import re

from ..errors import Failure

IMPORT = re.compile(r"^import \{ ([\w, ]+) \} from '\./([\w-]+\.js)';\n", re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const) (\w+))", re.MULTILINE)
OTHER = re.compile(r"^\s*(?:import|export)\b.*|\bimport\(.*", re.MULTILINE)


def bundle(read, first):
    """The script that runs the module FIRST. READ gives the bytes of a file by its name."""
    parts = {}
    add(read, first, parts, ())
    return "'use strict';\n(() => {\nconst modules = {};\n" + "".join(parts.values()) + "})();\n"


def add(read, name, parts, above):
    if name in above:
        raise Failure(f"{name} needs itself, by way of {', '.join(above)}")
    text = read(name).decode()
    for _, needed in IMPORT.findall(text):
        if needed not in parts:
            add(read, needed, parts, (*above, name))
    exported = ", ".join(EXPORT.findall(text))
    code = EXPORT.sub("", IMPORT.sub(needing, text))
    other = OTHER.search(code)
    if other:
        raise Failure(f"{name}: {other[0].strip()[:60]!r} is a form that the page does not know")
    parts[name] = f"modules['{name}'] = (() => {{\n{code}return {{ {exported} }};\n}})();\n"


def needing(found):
    return f"const {{ {found[1].replace(' as ', ': ')} }} = modules['{found[2]}'];\n"
