"""A repository of packages for apt and dnf, as static files in a folder.

    ledge.asc ledge.gpg           the public keys
    ledge.sources ledge.repo      for /etc/apt/sources.list.d and /etc/yum.repos.d
    pool/NAME/*.deb               packages for apt
    pool/NAME/*.deb.asc           the signature of each, for whoever has it without the index
    dists/SUITE/InRelease         the signed index of apt; the files that it lists are also in by-hash/
    rpm/ARCH/*.rpm                packages for dnf that are not published yet
    rpm/ARCH/KEY/*.rpm            the same, signed by KEY
    rpm/ARCH.GENERATION/repodata  an index of dnf, which never changes
    rpm/ARCH/mirrorlist           the address of the newest generation
    rpm/ARCH/repodata             a link to it, for clients without a mirror list

A reader of apt starts at InRelease, and a reader of dnf at the mirror list. Each is one file that is replaced last, and
what an earlier one names stays for a week.
"""
