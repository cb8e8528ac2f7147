"""The indexes of dnf, one an architecture. Each is a new folder with its own signature; the mirror list names the newest."""
import os
import shutil

from .. import files
from .adding import ARCHITECTURES, packages_in
from .folder import is_old, settle, touch
from .openpgp import seconds
from .programs import find, run

# Compressed as all versions of dnf read it, and without the databases that none needs any more.
FORM = ("--quiet", "--no-database", "--compress-type", "gz", "--general-compress-type", "gz", "--set-timestamp-to-revision")
HEXADECIMAL = "[0-9a-f]" * 16  # the id of a key, and the beginning of the hash of an index


def need_programs(repository):
    if repository.rpm.exists():
        for program in ("createrepo_c", "rpm", "rpmsign"):
            find(program)


def publish(repository, home, signer, date):
    """Returns how many packages dnf finds; None when there were none ever."""
    folders = [repository.rpm / name for name in ARCHITECTURES["rpm"] if (repository.rpm / name).is_dir()]
    if not folders:
        return None
    for folder in folders:
        sign_packages(repository, home, signer, folder)
    staged = repository.stage()
    generations = {folder: make_index(home, signer, date, folder, staged / folder.name) for folder in folders}
    for folder, made in generations.items():
        switch(repository, folder, made)
    for folder in folders:
        for path in folder.glob("*.rpm"):
            path.unlink()  # the signed one is public
    repository.settings.rpm_key = signer.id
    repository.save()
    for folder in folders:
        remove_old(folder, signer)
    return sum(len(packages_in(folder / signer.id, "rpm")) for folder in folders)


def sign_packages(repository, home, signer, folder):
    """Signs those that were added, and after a change of keys those that another key signed. A public file never changes."""
    before = repository.settings.rpm_key
    sources = packages_in(folder / before, "rpm") if before and before != signer.id else []
    (folder / signer.id).mkdir(exist_ok=True)
    for source in [*sorted(folder.glob("*.rpm")), *sources]:
        place = folder / signer.id / source.name
        if not place.exists():
            scratch = repository.stage() / source.name
            shutil.copyfile(source, scratch)
            home.sign_rpm(signer.fingerprint, scratch)
            # The index has the time of the file.
            built = int(run("rpm", "--query", "--nosignature", "--queryformat", "%{BUILDTIME}", "--package", scratch)[1])
            os.utime(scratch, (built, built))
            settle(scratch.parent)
            os.replace(scratch, place)
            files.sync(place.parent)


def make_index(home, signer, date, folder, staged):
    """The folder of a new generation, complete, and named by nothing yet."""
    staged.mkdir()
    run("createrepo_c", *FORM, "--revision", seconds(date), "--location-prefix", f"../{folder.name}/{signer.id}/",
        "--outputdir", staged, folder / signer.id)
    index = staged / "repodata" / "repomd.xml"
    files.write(index.with_name("repomd.xml.asc"), home.sign([signer.fingerprint], "--detach-sign", index.read_bytes()))
    made = folder.with_name(f"{folder.name}.{files.measure(index)[1][:16]}")
    if not made.exists():
        settle(staged)
        os.rename(staged, made)
        files.sync(made.parent)
    return made


def switch(repository, folder, made):
    """Makes MADE the public index."""
    link = folder / "repodata"
    touch(link.resolve().parent)
    if repository.settings.rpm_key:
        touch(folder / repository.settings.rpm_key)
    touch(made)
    scratch = repository.staged / "link"
    scratch.unlink(missing_ok=True)
    scratch.symlink_to(os.path.join("..", made.name, "repodata"))
    os.replace(scratch, link)
    files.sync(folder)
    if repository.settings.address:
        files.write(folder / "mirrorlist", f"{repository.settings.address}/rpm/{made.name}\n".encode())


def remove_old(folder, signer):
    """Removes earlier generations, and packages that an earlier key signed, when no reader can be at them any more."""
    live = [(folder / "repodata").resolve().parent, (folder / signer.id).resolve()]
    for path in [*folder.parent.glob(f"{folder.name}.{HEXADECIMAL}"), *folder.glob(HEXADECIMAL)]:
        if path.resolve() not in live and is_old(path):
            shutil.rmtree(path)
