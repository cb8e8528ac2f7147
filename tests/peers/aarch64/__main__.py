#!/usr/bin/env python3
"""Installs the package for arm64 on Debian's own arm64 kernel, in QEMU, and asks it for a photograph in each runtime, and for a document.
`make test-aarch64` calls it.

usage: sudo python3 tests/peers/aarch64 [DEB]      [the package of this version in target/packages]

The unit of the package starts it there, and its processes of models are sealed, as on a box. The processor is emulated by software, so
nothing here is a measurement. The disk is made once, in .ledge/peers/machine-aarch64, from the mirror that DEBIAN_MIRROR names or
deb.debian.org.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[2]
MACHINE = CHECKOUT / ".ledge" / "peers" / "machine-aarch64"
SUITE, MIRROR = "trixie", "http://deb.debian.org/debian"
PACKAGES = "systemd-sysv,udev,dbus,kmod,curl,initramfs-tools,linux-image-arm64,libstdc++6"
PROGRAMS = {
    "mmdebstrap": "mmdebstrap", "arch-test": "arch-test", "mkfs.ext4": "e2fsprogs", "qemu-system-aarch64": "qemu-system-arm",
    "qemu-aarch64-static": "qemu-user-static"}
# The kernel's modules that find the disk. Without a list the emulated scripts copy some thousand of them.
MODULES = "virtio_pci virtio_blk ext4"
BEFORE_THE_KERNEL = (
    'cd "$1" && mkdir -p etc/initramfs-tools/conf.d usr/share/initramfs-tools/modules.d'
    " && echo MODULES=list >etc/initramfs-tools/conf.d/machine"
    f" && printf '%s\\n' {MODULES} >usr/share/initramfs-tools/modules.d/machine")
# The longest that it may take on a busy machine.
LIMIT_S = 3 * 3600


def main(arguments):
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    lacks = [f"{program} (Debian and Ubuntu: apt install {package})" for program, package in PROGRAMS.items() if not shutil.which(program)]
    if os.geteuid():
        lacks.append("root, who owns the files on the disk")
    if lacks:
        sys.exit(f"tests/peers/aarch64: this machine lacks {', '.join(lacks)}")
    version = re.search(r'^version = "(.+)"$', (CHECKOUT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    deb = Path(arguments[0]) if arguments else CHECKOUT / "target" / "packages" / f"ledge_{version}-1_arm64.deb"
    if not deb.is_file():
        sys.exit(f"tests/peers/aarch64: {deb} is missing: `make deb ARCH=arm64` makes it")
    if not MACHINE.is_dir():
        make_machine()
    with tempfile.TemporaryDirectory() as scratch:
        share = Path(scratch)
        shutil.copyfile(deb, share / "ledge.deb")
        shutil.copyfile(HERE / "on_the_box", share / "on_the_box")
        shutil.copyfile(CHECKOUT / "tests/data/photos/coffee.png", share / "coffee.png")
        shutil.copyfile(CHECKOUT / "models/document_reader/golden/receipt.png", share / "receipt.png")
        boot(share)
        check(share / "answers")


def make_machine():
    print(f"Making the disk of an arm64 machine ({SUITE} with its kernel, some 150 MB to fetch)", flush=True)
    new = MACHINE.with_name("machine-aarch64.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "root"
        # The scripts of its packages are programs for arm64, which the kernel of this machine gives to QEMU.
        subprocess.run(
            ["mmdebstrap", "--quiet", "--mode=root", "--architectures=arm64", "--variant=minbase", f"--include={PACKAGES}",
             f"--essential-hook={BEFORE_THE_KERNEL}", SUITE, root, os.environ.get("DEBIAN_MIRROR") or MIRROR], check=True)
        for kind in ("vmlinuz", "initrd.img"):
            kernel, = (root / "boot").glob(f"{kind}-*")
            shutil.copyfile(kernel, new / kind)
        subprocess.run(["mkfs.ext4", "-q", "-L", "root", "-d", root, new / "disk.img", "4G"], check=True)
    new.rename(MACHINE)


def boot(share):
    """Boots the machine, which runs on_the_box and ends. What it writes to the disk is gone then; the answers are in the share."""
    kernel = [
        "root=LABEL=root", "rw", "quiet", "console=ttyAMA0", "systemd.mount-extra=share:/mnt:9p:trans=virtio,msize=262144",
        '"systemd.run=/bin/sh -c \'sh /mnt/on_the_box >/dev/console 2>&1\'"']
    subprocess.run(
        ["qemu-system-aarch64", "-nodefaults", "-display", "none", "-no-reboot", "-machine", "virt", "-accel", "tcg,thread=multi",
         # The emulation of the default algorithm of signed pointers takes most of the time.
         "-cpu", "max,pauth-impdef=on", "-m", "3072", "-smp", "2", "-kernel", MACHINE / "vmlinuz", "-initrd", MACHINE / "initrd.img",
         "-append", " ".join(kernel), "-drive", f"file={MACHINE / 'disk.img'},if=virtio,format=raw,snapshot=on", "-serial", "stdio",
         "-device", "virtio-rng-pci", "-fsdev", f"local,id=share,path={share},security_model=none",
         "-device", "virtio-9p-pci,fsdev=share,mount_tag=share"],
        check=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S)


def check(answers):
    """Fails unless the photograph and the document were answered rightly, by sealed processes."""
    def read(name):
        file = answers / name
        if not file.is_file():
            sys.exit(f"tests/peers/aarch64: the machine ended before it wrote {name}")
        return file.read_text()

    def expect(what, found, *expected):
        print(f"{what}: {found}")
        if found not in expected:
            sys.exit(f"tests/peers/aarch64: expected {' or '.join(expected)}")

    machine = read("machine").strip()
    expect("architecture", machine.partition(",")[0], "aarch64")
    print(machine)
    seal, = (finding for finding in json.loads(read("doctor.json"))["checks"] if finding["name"] == "seal of models")
    # `info`: the unit leaves out the namespaces, and the list of system calls denies the same.
    expect(f"seal of models ({seal['detail']})", seal["status"], "ok", "info")
    for runtime in ("onnxruntime", "openvino"):
        answer = json.loads(read(f"coffee_{runtime}.json"))
        expect("photograph by the runtime", answer["runtime"], runtime)
        expect("its label", answer["labels"][0]["label"], "espresso")
    fields = json.loads(read("receipt.json"))["document"]["fields"]
    expect("total of the receipt", fields["total"]["value"]["amount"], "13.70")
    expect("its date", fields["date"]["value"], "2026-11-20")
    expect("its number", fields["number"]["value"], "A-10457")


if __name__ == "__main__":
    main(sys.argv[1:])
