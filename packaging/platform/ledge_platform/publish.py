"""Puts a repository where boxes fetch it, so that no box ever sees a half of it.

A client reads from timestamp.json down: each file names the next by version and hash. So what is named is there before
who names it: targets, then the metadata of targets, snapshots, roots, and timestamp.json last. All but timestamp.json
and root.json never change once they are there, so a publication that was cut off is simply made again.

A root that replaces the key of snapshot or timestamp goes out right before timestamp.json. A box that looks in between
refuses the old timestamp under the new root, goes on as it is, and looks again: TUF leaves no way around that moment.
"""
import re
from pathlib import Path

from . import files
from .errors import Failure

ORDER = [
    r"targets/.*",
    r"metadata/\d+\.(fleet|models|packages)\.json",
    r"metadata/\d+\.targets\.json",
    r"metadata/\d+\.snapshot\.json",
    r"root\.json",
    r"metadata/\d+\.root\.json",
    r"metadata/timestamp\.json",
]
CHANGING = ("root.json", "metadata/timestamp.json")


def listing(repository):
    """The files of a repository in the order in which they go out; nothing else of the folder goes."""
    found = [str(path.relative_to(repository.folder)) for part in (repository.targets, repository.metadata)
             for path in part.rglob("*") if path.is_file() and not path.name.startswith(".")]
    found.append("root.json")

    def rank(path):
        return next((number for number, form in enumerate(ORDER) if re.fullmatch(form, path)), None)

    ranked = sorted((rank(path), path) for path in found if rank(path) is not None)
    return [path for _, path in ranked]


def publish(repository, destination, endpoint=None):
    """Returns how many files went out, and how many were there."""
    repository.refuse_unaccepted()
    if destination.startswith("s3://"):
        place = Bucket(destination, endpoint)
    elif "://" in destination:
        raise Failure(f"{destination}: a folder or s3://BUCKET/PREFIX; a web server serves the folder")
    else:
        place = Folder(destination)
    sent = kept = 0
    for path in listing(repository):
        source = repository.folder / path
        if path not in CHANGING and place.size(path) == source.stat().st_size:
            kept += 1
        else:
            place.put(path, source)
            sent += 1
    return sent, kept


class Folder:
    def __init__(self, path):
        self.path = Path(path)

    def size(self, path):
        try:
            return (self.path / path).stat().st_size
        except OSError:
            return None

    def put(self, path, source):
        try:
            files.copy(source, self.path / path)
        except OSError as error:
            raise Failure(f"{self.path / path} cannot be written: {error.strerror}") from None


class Bucket:
    def __init__(self, url, endpoint, listed=True):
        try:
            import boto3
            import botocore.exceptions
        except ImportError:
            raise Failure("S3 needs boto3: run `packaging/platform/setup --s3`") from None
        self.errors = (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError, boto3.exceptions.Boto3Error)
        self.bucket, _, prefix = url.removeprefix("s3://").partition("/")
        self.prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        try:
            self.client = boto3.client("s3", endpoint_url=endpoint)
            if not listed:
                return
            pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix)
            self.sizes = {item["Key"]: item["Size"] for page in pages for item in page.get("Contents", [])}
        except self.errors as error:
            raise Failure(f"{url} cannot be read: {error}") from None

    def size(self, path):
        return self.sizes.get(self.prefix + path)

    def put(self, path, source):
        # A cache on the way may keep files that never change, and must revalidate the others.
        caching = "no-cache" if path in CHANGING else "public, max-age=31536000, immutable"
        kind = "application/json" if path.endswith(".json") else "application/octet-stream"
        extra = {"CacheControl": caching, "ContentType": kind}
        try:
            self.client.upload_file(str(source), self.bucket, self.prefix + path, ExtraArgs=extra)
        except self.errors as error:
            raise Failure(f"s3://{self.bucket}/{self.prefix}{path} cannot be written: {error}") from None
