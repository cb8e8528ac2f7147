"""Packages made of packages: the same files as of another version, and names without files."""

from supplier import installed, must

STAND_INS = {"glibc": "2.34", "libgcc": "11.0", "libstdc++": "11.0", "shadow-utils": "4.9", "bash": "5.1"}
STAND_IN = """\
Name: {name}
Version: {version}
Release: 1
Summary: a name without files
License: Apache-2.0
Provides: {provides}
%description
%files
"""
REPACKED = """\
%global __os_install_post %{{nil}}
%global debug_package %{{nil}}
%global _build_id_links none
%global _binary_payload w1.gzdio
Name: {name}
Version: {version}
Release: {release}
Summary: the files of another version
License: Apache-2.0
AutoReqProv: no
{requires}
%description
%install
cp -a {tree}/. %{{buildroot}}
{scripts}
%files
{files}
"""
SCRIPTS = {"pre": "PREIN", "post": "POSTIN", "preun": "PREUN", "postun": "POSTUN"}


def higher_rpm(rpm, folder, version, program=None, post=None):
    """The same files as an rpm of another version; PROGRAM and POST are scripts in place of its own."""
    number, _, release = version.partition("-")
    tree, top = folder / f"rpm-{version}", folder / f"rpmbuild-{version}"
    tree.mkdir()

    def query(*words):
        return must(installed("rpm"), "--query", "--nosignature", "--package", *words, rpm)

    must("sh", "-c", 'rpm2archive - <"$1" | tar -C "$2" -xz', "sh", rpm, tree)
    if program:
        (tree / "usr/bin/ledge").write_text(program)
    configuration = query("--configfiles").splitlines()
    files = [f"%config(noreplace) {path}" if path in configuration else path for path in query("--list").splitlines()]
    requires = [line for line in query("--requires").splitlines() if not line.startswith(("rpmlib(", "config("))]
    scripts = {name: query("--queryformat", f"%{{{tag}}}").replace("%", "%%") for name, tag in SCRIPTS.items()}
    if post:
        scripts["post"] = post
    return build(top, REPACKED.format(
        name=query("--queryformat", "%{NAME}"), version=number, release=release, tree=tree, files="\n".join(files), requires="\n".join(f"Requires: {line}" for line in requires),
        scripts="\n".join(f"%{name}\n{text}" for name, text in scripts.items())))


def stand_ins(folder):
    """What the package requires of a distribution, as names."""
    folder.mkdir()
    return [
        build(folder / name, STAND_IN.format(name=name, version=version, provides="/bin/sh" if name == "bash" else name))
        for name, version in STAND_INS.items()]


def build(top, spec):
    top.mkdir()
    (top / "spec").write_text(spec)
    must(installed("rpmbuild"), "-bb", "--target", "x86_64", "--define", f"_topdir {top}", top / "spec")
    made, = top.glob("RPMS/*/*.rpm")
    return made
