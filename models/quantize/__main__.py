"""Makes an int8 model of a float32 ONNX model, and a folder that Ledge serves, unless too much is lost. README.md beside this.

usage: python3 models/quantize MODEL.onnx --samples FOLDER --output DIR/my_model [OPTION...]      (--help lists the options)

Only Python's standard library is used here. The packages that do the work are fetched once into .ledge/tools/, pinned by
version and hash as those of `make setup` are; the work is then done by tool.py, in their company alone.
"""
import sys

if sys.version_info < (3, 11):  # the oldest Python that the pinned ONNX Runtime has a wheel for
    sys.exit(
        "The quantizer needs Python 3.11 or newer (found {}.{}). Name one, for example: "
        "python3.12 models/quantize ...".format(*sys.version_info))

sys.dont_write_bytecode = True  # the checkout stays as it is

import fcntl  # noqa: E402
import os  # noqa: E402
import platform  # noqa: E402
from pathlib import Path  # noqa: E402

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # else ONNX Runtime tells its maker about this machine
HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
sys.path.append(str(HERE.parent / "setup"))

from options import FAILED, parse  # noqa: E402
from progress import Failure  # noqa: E402
from steps import Setup, Step  # noqa: E402

# Hashes of strings must not differ from run to run: the same samples shall give the same file.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


def package_steps(setup, with_nncf):
    """The steps that fill .ledge/tools/quantize and, with NNCF, .ledge/tools/quantize-nncf."""
    pip = Step(setup.wheels.pip_folder, setup.fill_pip, values=setup.sources["pip"])
    this_python = [platform.python_implementation(), sys.version_info[:2], setup.machine]
    names = ["requirements.txt", "requirements-nncf.txt"] if with_nncf else ["requirements.txt"]
    packages = []
    for name in names:
        file = HERE / name
        folder = setup.folder / "tools" / name.replace("requirements", "quantize").replace(".txt", "")
        packages.append(Step(folder, lambda new, file=file: setup.fill_packages(new, file), [file], this_python, needs=[pip]))
    return [pip, *packages]


def install(with_nncf):
    """Makes what is missing of the packages and returns their folders."""
    setup = Setup(CHECKOUT)
    with open(setup.folder / "setup.lock", "w") as lock:  # shared with `make setup`, which uses the same scratch folder
        fcntl.flock(lock, fcntl.LOCK_EX)
        pip, *packages = package_steps(setup, with_nncf)
        stale = [step for step in packages if not step.is_done()]
        if stale:
            print("Fetching the quantizer's packages into .ledge/tools/ (once; it needs the network)", flush=True)
            for step in [pip, *stale]:
                if not step.is_done():
                    setup.make(step)
    return [str(step.folder) for step in packages]


def main(arguments):
    only_install = arguments == ["--install"]  # for the tests
    options = None if only_install else parse(arguments)
    try:
        folders = install(with_nncf=only_install or options.method in ("auto", "nncf"))
    except (Failure, OSError) as error:
        print(f"\nThe quantizer's packages are not complete: {error}", file=sys.stderr)
        sys.exit(FAILED)
    if only_install:
        return
    # -s: the user's own packages stay out; PYTHONPATH comes before those of a virtual environment.
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(folders), **ENVIRONMENT)
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-s", "-B", str(HERE / "tool.py"), *arguments], environment)


try:
    main(sys.argv[1:])
except KeyboardInterrupt:
    sys.exit(130)
