"""The layers of the image as archives: sorted, with one time and numeric owners, so that the same files make the same bytes."""
import io
import os
import re
import subprocess
import tarfile

PACKAGES = ("base-files", "ca-certificates", "gcc-14-base", "libc6", "libgcc-s1", "libstdc++6", "tzdata")
# The files of these packages that the program and the runtimes need. The rest of Debian's root, such as the character sets of iconv and
# the dependencies of the packages' scripts, is left out. Scanners find the versions of packages in status.d.
KEPT = re.compile(
    r"(bin|lib|lib64|sbin)$|(usr/|etc/)?(lib/)?os-release$|etc/debian_version$|(usr/|)lib64/ld-linux|"
    r"(usr/)?lib/ld-linux|(usr/)?lib/[a-z0-9_]+-linux-gnu/(ld-linux-[a-z0-9_-]+|lib(c|m|mvec|dl|rt|pthread|resolv|nss_dns|nss_files|gcc_s|stdc\+\+))\.so\.|"
    r"usr/share/zoneinfo/(?!right/|posix/)|usr/share/common-licenses/|"
    r"var/lib/dpkg/status\.d/(" + "|".join(map(re.escape, PACKAGES)) + r")$|"
    r"usr/share/doc/(" + "|".join(map(re.escape, PACKAGES)) + r")(/copyright)?$")
AUTHORITIES = re.compile(r"usr/share/ca-certificates/mozilla/.*\.crt$")
# apt verifies the packages, and this keeps the description of each.
KEEP_STATUS = (
    'mkdir -p "$1/var/lib/dpkg/status.d"; for deb in "$1"/var/cache/apt/archives/*.deb; do '
    'dpkg-deb --field "$deb" > "$1/var/lib/dpkg/status.d/$(dpkg-deb --field "$deb" Package)"; done')


class Layer:
    def __init__(self, file, time):
        self.file, self.time = file, time
        self.entries = {}

    def add_tree(self, source, target):
        """Adds a file, or a folder with everything in it. The mode of a file is 0755 or 0644, whatever the umask was."""
        if source.is_dir():
            self.add_folder(target)
            for path in sorted(source.iterdir()):
                self.add_tree(path, f"{target}/{path.name}")
        else:
            self.add_file(target, source.read_bytes(), 0o755 if os.access(source, os.X_OK) else 0o644)

    def add_text(self, target, text):
        self.add_file(target, text.encode(), 0o644)

    def add_file(self, target, content, mode):
        entry = tarfile.TarInfo(target)
        entry.size, entry.mode = len(content), mode
        self.add(entry, content)

    def add_folder(self, target, mode=0o755, owner=0):
        entry = tarfile.TarInfo(target)
        entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, mode, owner, owner
        self.add(entry)

    def add(self, entry, content=None):
        parent = os.path.dirname(entry.name)
        if parent and parent not in self.entries:
            self.add_folder(parent)
        entry.mtime, entry.uname, entry.gname = self.time, "", ""
        self.entries[entry.name] = (entry, content)

    def write(self):
        with tarfile.open(self.file, "w", format=tarfile.GNU_FORMAT) as archive:
            for name in sorted(self.entries):
                entry, content = self.entries[name]
                archive.addfile(entry, io.BytesIO(content) if content is not None else None)
        return self.file


def debian_layer(file, architecture, suite, mirrors, time):
    """Writes the layer of Debian's libraries, and returns the versions of its packages."""
    layer, authorities = Layer(file, time), []
    command = [
        "mmdebstrap", "--quiet", f"--architectures={architecture}", "--variant=extract", "--include=" + ",".join(PACKAGES), '--aptopt=APT::Install-Recommends "0"',
        f"--extract-hook={KEEP_STATUS}", suite, "-", *mirrors]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "SOURCE_DATE_EPOCH": str(time)}) as root:
        with tarfile.open(fileobj=root.stdout, mode="r|") as archive:
            for entry in archive:
                entry.name = entry.name.removeprefix("./")
                content = archive.extractfile(entry).read() if entry.isfile() else None
                if AUTHORITIES.match(entry.name):
                    authorities.append(content)
                elif KEPT.match(entry.name) and not entry.isdir():
                    entry.pax_headers = {}
                    layer.add(entry, content)
    if root.returncode:
        raise SystemExit(f"packaging/image: mmdebstrap failed with status {root.returncode}")
    # What update-ca-certificates would write.
    layer.add_file("etc/ssl/certs/ca-certificates.crt", b"".join(authorities), 0o644)
    layer.add_folder("tmp", 0o1777)
    layer.write()
    return sorted(version(content) for name, (_, content) in layer.entries.items() if "/status.d/" in name)


def version(status):
    fields = dict(re.findall(r"^(Package|Version): (.*)$", status.decode(), re.MULTILINE))
    return f"{fields['Package']} {fields['Version']}"
