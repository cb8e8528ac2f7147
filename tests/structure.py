#!/usr/bin/env python3
"""Measures the structure of the Rust code: size, repeated names, circles of files, and what should stay in its folder.

    tests/structure.py [FOLDER] [--list lines|names|circles|documents|english]

FOLDER is a checkout, by default the one of this script. Prints Markdown; `--list` prints the places behind a figure.

A file uses another one when a path of its code, in `use` or elsewhere, leads to an item that the other one declares.
Modules on the way do not count, nor does a re-export. Calls of methods have no path, so they are not seen.
"""
import argparse
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

DOCUMENT_FOLDERS = ("src/engine/pipeline/document_reading", "src/engine/pipeline/reading", "src/documents/")
DOCUMENT_TYPES = re.compile(
    r"\b(PageLease|PageId|PageStep|PageSource|StepTask|StepResult|FoundLine|DocumentFormat|TextLayer|document_reading"
    r"|ledge_documents(?=::))\b")
TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|\bb?r(?P<hashes>#*)\".*?\"(?P=hashes)|b?\"(?:\\.|[^\"\\])*\"|b?'(?:\\[^\n]+?|[^\\'\n])'", re.S)
IF_TEST = re.compile(r"#\[cfg\((?:test|(?:any|all)\(test\b[^\]]*)\)\]")
ITEM = re.compile(
    r"(?:^|[;{}\]])\s*(?:pub(?:\([^)]*\))?\s+)?(?:(?:async|unsafe|const|default|extern\s*\"\s*\")\s+)*"
    r"(?P<kind>mod|fn|struct|enum|trait|union|type|const|static|macro_rules!)\s+(?:mut\s+)?(?P<name>\w+)")
TYPE = re.compile(r"^ *(?:pub(?:\([^)]*\))? +)?(?:unsafe +)?(?:struct|enum|trait|union) +(\w+)|"
                  r"^(?:pub(?:\([^)]*\))? +)?type +(\w+)", re.M)
USE = re.compile(r"(?P<pub>\bpub(?:\([^)]*\))?\s+)?\buse\s+(?P<tree>[^;]+);")
PATH = re.compile(r"(?<![\w:.])\w+(?:::\w+)+")


def blank(text):
    """Spaces in place of a text, with its lines."""
    return re.sub(r"[^\n]", " ", text)


def without_comments(text):
    return TOKEN.sub(lambda token: blank(token[0]) if token[0].startswith("/") else token[0], text)


def code_only(text):
    """The text with blank comments, strings and characters."""
    return TOKEN.sub(lambda token: blank(token[0]), text)


def end_of_item(code, at):
    """The end of the item, field or statement that begins at `at`, after its attributes."""
    while attribute := re.compile(r"\s*#\[").match(code, at):
        at = matching(code, attribute.end() - 1)
    with_comma = not re.compile(r"\s*(pub\b\s*(\([^)]*\))?\s*)?(mod|fn|use|impl|struct|enum|trait|type|const|static|let|"
                                r"async|unsafe|extern|macro_rules)\b").match(code, at)
    to_semicolon = re.compile(r"\s*(pub\b\s*(\([^)]*\))?\s*)?(use|static|let|type|const(?!\s+fn))\b").match(code, at)
    while at < len(code):
        if code[at] in "([{":
            end = matching(code, at)
            if code[at] == "{" and not to_semicolon:
                return end
            at = end
        elif code[at] == ";" or (with_comma and code[at] == ","):
            return at + 1
        elif code[at] in ")]}":
            return at
        else:
            at += 1
    return at


def matching(code, at):
    """The place after the bracket that closes the one at `at`."""
    depth = 0
    for place in range(at, len(code)):
        depth += (code[place] in "([{") - (code[place] in ")]}")
        if depth == 0:
            return place + 1
    return len(code)


def outermost(code):
    """The code without what is in braces."""
    depth, shown = 0, []
    for char in code:
        depth -= char == "}"
        shown.append(char if depth == 0 or char == "\n" else " ")
        depth += char == "{"
    return "".join(shown)


def leaves(tree, before=()):
    """The (path, name) pairs of a `use`: `a::{b, c as d}` has a::b as b and a::c as d."""
    tree = tree.strip()
    if "{" not in tree:
        path, _, renamed = re.sub(r"\s+", " ", tree).partition(" as ")
        parts = before + tuple(part.strip() for part in path.split("::") if part.strip())
        if parts and parts[-1] == "self":
            parts = parts[:-1]
        return [(parts, renamed or parts[-1])] if parts else []
    start = tree.index("{")
    before += tuple(part.strip() for part in tree[:start].split("::") if part.strip())
    found, depth, last = [], 0, start + 1
    inner = tree[:matching(tree, start) - 1] + ","
    for at in range(start + 1, len(inner)):
        depth += (inner[at] == "{") - (inner[at] == "}")
        if inner[at] == "," and depth == 0:
            found += leaves(inner[last:at], before)
            last = at + 1
    return found


class Module:
    """A module: its file, its items, its imports, and the paths in its code."""

    def __init__(self, crate, path, file, folder, code):
        self.crate, self.path, self.file, self.folder, self.code = crate, path, file, folder, code
        self.items, self.imports, self.globs, self.unused = set(), {}, [], set()

    def read(self):
        flat = list(self.code)
        for block in re.finditer(r"\bmod\s+(\w+)\s*\{", self.code):
            if flat[block.start()] != " ":
                end = matching(self.code, block.end() - 1)
                inner = blank(self.code[:block.end()]) + self.code[block.end():end - 1]
                self.crate.add(Module(self.crate, self.path + (block[1],), self.file, self.folder / block[1], inner))
                flat[block.end():end - 1] = blank(self.code[block.end():end - 1])
        self.code = "".join(flat)
        for item in ITEM.finditer(outermost(self.code)):
            if item["kind"] == "mod" and self.code[item.end():].lstrip().startswith(";"):
                self.crate.load(self.path + (item["name"],), self.child_file(item))
            elif item["kind"] != "mod":
                self.items.add(item["name"])
        uses = list(USE.finditer(self.code))
        self.body = USE.sub(lambda use: blank(use[0]), self.code)
        words = set(re.findall(r"\w+", self.body))
        for use in uses:
            for path, name in leaves(use["tree"]):
                if name == "*":
                    self.globs.append(path[:-1])
                    continue
                self.imports[name] = path
                if use["pub"] and name not in words:
                    self.unused.add(name)

    def child_file(self, item):
        named = re.search(r"#\[path = \"([^\"]+)\"\]\s*$", self.crate.texts[self.file][:item.start("kind")].rsplit("mod", 1)[0])
        if named:
            return self.file.parent / named[1]
        flat = self.folder / (item["name"] + ".rs")
        return flat if flat.exists() else self.folder / item["name"] / "mod.rs"

    def uses(self):
        """The files whose items this module names, with the names."""
        found = [self.imports[name] for name in self.imports if name not in self.unused]
        found += [tuple(path[0].split("::")) for path in PATH.finditer(self.body)]
        for path in self.globs:
            module = self.crate.module(self, path)
            if module:
                found += [path + (name,) for name in module.items if re.search(rf"\b{name}\b", self.body)]
        files = defaultdict(set)
        for path in found:
            file = self.crate.resolve(self, path)
            if file and file != self.file:
                files[file].add(path[-1])
        return files


class Crate:
    """The modules of a crate and the files that declare its items."""

    def __init__(self, root):
        self.modules, self.texts, self.root = {}, {}, root
        self.load((), root)

    def add(self, module):
        self.modules[module.path] = module
        module.read()

    def load(self, path, file):
        if file.exists():
            self.texts[file] = file.read_text()
            stem = file.parent if file.name in ("lib.rs", "main.rs", "mod.rs") else file.with_suffix("")
            self.add(Module(self, path, file, stem, production(self.texts[file])))

    def module(self, scope, path):
        found = self.walk(scope, path)
        return found if isinstance(found, Module) else None

    def resolve(self, scope, path):
        """The file that declares the item at the end of a path; None for a module and for another crate."""
        found = self.walk(scope, path)
        return found if isinstance(found, Path) else None

    def walk(self, scope, path, seen=frozenset()):
        if not path or (scope.path, path) in seen:
            return None
        seen |= {(scope.path, path)}
        first, rest = path[0], path[1:]
        if first == "crate":
            at = self.modules[()]
        elif first == "self":
            at = scope
        elif first == "super":
            at = self.modules.get(scope.path[:-1])
        else:
            at = self.name(scope, first, seen)
        for name in rest:
            if not isinstance(at, Module):
                break
            at = self.modules.get(at.path[:-1]) if name == "super" else self.name(at, name, seen)
        return at

    def name(self, module, name, seen):
        """The module, or the file of the item, that a name in a module stands for."""
        if name in module.items:
            return module.file
        if module.path + (name,) in self.modules:
            return self.modules[module.path + (name,)]
        if name in module.imports and module.imports[name] != (name,):
            return self.walk(module, module.imports[name], seen)
        for path in module.globs:
            target = self.walk(module, path, seen)
            if isinstance(target, Module) and target is not module:
                if found := self.name(target, name, seen | {(module.path, path, name)}):
                    return found
        return None

    def graph(self):
        """The files that each file uses, with the names."""
        edges = {module.file: defaultdict(set) for module in self.modules.values()}
        for module in self.modules.values():
            for file, names in module.uses().items():
                edges[module.file][file] |= names
        return edges


def production(text):
    """The code without strings, comments, and all that is compiled only for tests."""
    code = code_only(text)
    while test := IF_TEST.search(code):
        end = end_of_item(code, test.end())
        code = code[:test.start()] + blank(code[test.start():end]) + code[end:]
    return code


def components(edges):
    """The strongly connected components of more than one node (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(edges[node]):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return sorted(found, key=len, reverse=True)


class Checkout:
    """The figures of a checkout, and their places."""

    def __init__(self, root):
        self.root = root
        self.crates = {"ledge": Crate(root / "src/lib.rs")}
        for manifest in sorted(root.glob("src/*/Cargo.toml")):
            self.crates[manifest.parent.name] = Crate(manifest.parent / "lib.rs")
        self.files = {file: name for name, crate in self.crates.items() for file in crate.texts if file.name != "fuzz.rs"}
        self.files[root / "src/main.rs"] = "ledge"

    def place(self, file, text, at):
        return f"{file.relative_to(self.root)}:{text.count(chr(10), 0, at) + 1}"

    def lines(self):
        """Production lines of each crate."""
        counts = Counter()
        for file, crate in self.files.items():
            text = file.read_text()
            tests = {line for part in test_parts(text) for line in part}
            lines = enumerate(without_comments(text).split("\n"))
            counts[crate] += sum(1 for at, line in lines if line.strip() and at not in tests)
        return counts

    def names(self):
        """Names of types that are declared more than once, with their places."""
        places = defaultdict(list)
        for file in self.files:
            code = production(file.read_text())
            for found in TYPE.finditer(code):
                places[found[1] or found[2]].append(self.place(file, code, found.start()))
        return {name: found for name, found in places.items() if len(found) > 1}

    def circles(self):
        """Circles of files of each crate, with the uses between their files."""
        found = {}
        for name, crate in self.crates.items():
            edges = crate.graph()
            found[name] = [
                [(file, other, sorted(edges[file][other])) for file in circle for other in circle if other in edges[file]]
                for circle in components(edges)]
        return found

    def documents(self):
        """Mentions of document-reading types outside of their folders."""
        places = []
        for file in self.files:
            if str(file.relative_to(self.root)).startswith(DOCUMENT_FOLDERS):
                continue
            code = production(file.read_text())
            found = list(DOCUMENT_TYPES.finditer(code))
            if "document_reading" in code:
                found += re.finditer(r"\bReader\b", code)
            places += [f"{self.place(file, code, one.start())} {one[0]}" for one in found]
        return places

    def english(self):
        """Tests that wait for or look for an English sentence."""
        places = []
        for file in sorted(self.root.glob("tests/**/*.rs")) + sorted(self.root.glob("src/**/*.rs")):
            text = file.read_text()
            shown = without_comments(text)
            tests = None if file not in self.files else {line for test in test_parts(text) for line in test}
            for one in re.finditer(r"(?<!fn )\bwait_for_log\(|\.contains\(\s*\"[^\"\n]* [^\"\n]*\"\s*\)", shown):
                if tests is None or shown.count("\n", 0, one.start()) in tests:
                    places.append(f"{self.place(file, shown, one.start())} {one[0]}")
        return places


def test_parts(text):
    """The ranges of lines that are compiled only for tests."""
    code, ranges = code_only(text), []
    while test := IF_TEST.search(code):
        end = end_of_item(code, test.end())
        ranges.append(range(code.count("\n", 0, test.start()), code.count("\n", 0, end) + 1))
        code = code[:test.start()] + blank(code[test.start():end]) + code[end:]
    return ranges


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--list", choices=("lines", "names", "circles", "documents", "english"))
    options = parser.parse_args()
    sys.setrecursionlimit(10_000)
    checkout = Checkout(options.folder.resolve())
    if options.list == "circles":
        for crate, circles in checkout.circles().items():
            for circle in circles:
                print(f"{crate}: {len({use[0] for use in circle})} files")
                for file, other, names in circle:
                    src = checkout.root / "src"
                    print(f"  {file.relative_to(src)} -> {other.relative_to(src)} ({', '.join(names)})")
    elif options.list == "lines":
        for crate, count in checkout.lines().most_common():
            print(crate, count)
    elif options.list == "names":
        for name, places in sorted(checkout.names().items(), key=lambda pair: (-len(pair[1]), pair[0])):
            print(name, len(places), *places)
    elif options.list:
        print("\n".join(getattr(checkout, options.list)()))
    else:
        lines, circles = checkout.lines(), checkout.circles()
        print("| crate | production lines | circles | files in circles | largest |\n| --- | ---: | ---: | ---: | ---: |")
        for crate in sorted(checkout.crates):
            sizes = [len({use[0] for use in circle}) for circle in circles[crate]]
            print(f"| {crate} | {lines[crate]} | {len(sizes)} | {sum(sizes)} | {max(sizes, default=0)} |")
        sizes = [len({use[0] for use in circle}) for found in circles.values() for circle in found]
        print(f"| all | {sum(lines.values())} | {len(sizes)} | {sum(sizes)} | {max(sizes, default=0)} |")
        print("\n| measure | number |\n| --- | ---: |")
        print(f"| names of more than one type | {len(checkout.names())} |")
        print(f"| mentions of document-reading types elsewhere | {len(checkout.documents())} |")
        print(f"| English in tests | {len(checkout.english())} |")


if __name__ == "__main__":
    main()
