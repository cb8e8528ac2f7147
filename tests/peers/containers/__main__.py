"""Tests of the image under rootless Podman: python3 tests/peers/containers IMAGE NEWER [test_...]

IMAGE and NEWER are archives (OCI) of packaging/image, the second of a higher version. Their program has the feature fault-injection,
as target/debug/ledge of the tests: a process of models then attacks on demand. `make test-peers-all` calls this; the programs come from
`make setup-kubernetes setup-grpc setup-kserve`.

Podman is run by a user without rights. Called by root, such a user is made, in a mount namespace: the machine does not have it.
"""
import os
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
INSIDE = "LEDGE_TEST_INSIDE"


def main(image, newer, *names):
    import podman
    if os.geteuid() == 0 and INSIDE not in os.environ:
        podman.enter([sys.executable, HERE, image, newer, *names], {INSIDE: "1"})
    os.environ.update(LEDGE_IMAGE=str(Path(image).resolve()), LEDGE_IMAGE_NEWER=str(Path(newer).resolve()))
    loader = unittest.defaultTestLoader
    suite = loader.loadTestsFromNames(names) if names else loader.discover(str(HERE))
    with podman.store():
        return 0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
