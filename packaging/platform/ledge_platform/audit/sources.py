"""Where the logs of the boxes lie: a folder, a bucket, or behind a web server. They are read and never written, but for
`tidy`."""
import email.utils
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

from .. import names
from ..errors import Failure
from ..publish import Bucket as PublishedBucket

BLOCK = 4096  # the least that a file or a folder takes on a disk
AHEAD = 64  # files that are asked for before they are needed, where each takes a while
TOGETHER = 16


def open_source(text, given):
    if text.startswith("s3://"):
        return Bucket(text, given.endpoint)
    if text.startswith(("https://", "http://")):
        return Web(text, given.ca, given.certificate, given.key)
    if "://" in text:
        raise Failure(f"{text}: a folder, s3://BUCKET/PREFIX or https://HOST/PATH")
    return Folder(text)


def numbers(found):
    return sorted(int(name) for name in found if names.VERSION.fullmatch(name))


def boxes(found):
    return sorted(name for name in found if names.NAME.fullmatch(name))


class Source:
    is_far = False

    def read_all(self, paths, limit):
        """The content of each of the files, in their order; None for a missing file."""
        if not self.is_far:
            for path in paths:
                yield self.read(path, limit)
            return
        with ThreadPoolExecutor(TOGETHER) as pool:
            waiting = deque()
            for path in paths:
                waiting.append(pool.submit(self.read, path, limit))
                if len(waiting) > AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()


class Folder(Source):
    def __init__(self, path):
        self.path = Path(path)
        if not self.path.is_dir():
            raise Failure(f"{path} is no folder")

    def devices(self):
        return boxes(self.folders(self.path))

    def generations(self, device, _known):
        return numbers(self.folders(self.path / device))

    def folders(self, path):
        try:
            return [entry.name for entry in path.iterdir() if entry.is_dir()]
        except FileNotFoundError:
            return []

    def read(self, path, limit):
        """At most LIMIT bytes and one more, so that a file that is too long is detected."""
        try:
            with open(self.path / path, "rb") as file:
                return file.read(limit + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def modified(self, path):
        try:
            return datetime.fromtimestamp((self.path / path).stat().st_mtime, timezone.utc)
        except OSError:
            return None

    def list(self):
        return [str(path.relative_to(self.path)) for path in self.path.rglob("*") if path.is_file()]

    def sizes(self):
        """The size of the logs of each box, in bytes. Many empty files take room, too."""
        return {device: sum(self.room(self.path / device)) for device in self.devices()}

    def room(self, folder):
        for place, _, names_of_files in os.walk(folder):
            yield BLOCK
            for name in names_of_files:
                try:
                    size = os.lstat(os.path.join(place, name)).st_size
                except FileNotFoundError:
                    continue  # `tidy` was quicker
                yield max(1, -(-size // BLOCK)) * BLOCK

    def remove(self, paths):
        for path in paths:
            (self.path / path).unlink(missing_ok=True)
            try:
                (self.path / path).parent.rmdir()
            except OSError:
                pass  # others are left in it


class Bucket(Source):
    is_far = True

    def __init__(self, url, endpoint):
        self.place = PublishedBucket(url, endpoint, listed=False)
        self.client, self.bucket, self.prefix = self.place.client, self.place.bucket, self.place.prefix

    def devices(self):
        return boxes(self.folders(""))

    def generations(self, device, _known):
        return numbers(self.folders(f"{device}/"))

    def pages(self, prefix, **more):
        pages = self.client.get_paginator("list_objects_v2")
        try:
            yield from pages.paginate(Bucket=self.bucket, Prefix=self.prefix + prefix, **more)
        except self.place.errors as error:
            raise Failure(f"s3://{self.bucket}/{self.prefix}{prefix} cannot be listed: {error}") from None

    def folders(self, prefix):
        return [item["Prefix"].removeprefix(self.prefix + prefix).rstrip("/")
                for page in self.pages(prefix, Delimiter="/") for item in page.get("CommonPrefixes", [])]

    def ask(self, method, path, **more):
        try:
            return method(Bucket=self.bucket, Key=self.prefix + path, **more)
        except self.place.errors as error:
            answer = getattr(error, "response", {})
            if answer.get("ResponseMetadata", {}).get("HTTPStatusCode") == 404 and "Bucket" not in str(
                answer.get("Error", {}).get("Code")
            ):
                return None
            raise Failure(f"s3://{self.bucket}/{self.prefix}{path} cannot be read: {error}") from None

    def read(self, path, limit):
        answer = self.ask(self.client.get_object, path)
        try:
            return answer and answer["Body"].read(limit + 1)
        except Exception as error:  # of whichever library reads the body
            raise Failure(f"s3://{self.bucket}/{self.prefix}{path} breaks off: {error}") from None

    def modified(self, path):
        answer = self.ask(self.client.head_object, path)
        return answer and answer["LastModified"]

    def list(self):
        return [item["Key"].removeprefix(self.prefix) for page in self.pages("") for item in page.get("Contents", [])]

    def sizes(self):
        """The size of the logs of each box, in bytes."""
        found = {}
        for page in self.pages(""):
            for item in page.get("Contents", []):
                device = item["Key"].removeprefix(self.prefix).partition("/")[0]
                found[device] = found.get(device, 0) + item["Size"]
        return {device: found[device] for device in boxes(found)}

    def remove(self, paths):
        paths = list(paths)
        for at in range(0, len(paths), 1000):
            keys = [{"Key": self.prefix + path} for path in paths[at:at + 1000]]
            try:
                answer = self.client.delete_objects(Bucket=self.bucket, Delete={"Objects": keys, "Quiet": True})
            except self.place.errors as error:
                raise Failure(f"s3://{self.bucket}/{self.prefix} cannot be tidied: {error}") from None
            for error in answer.get("Errors", [])[:1]:
                raise Failure(f"s3://{self.bucket}/{error['Key']} cannot be removed: {error['Message']}")


class Web(Source):
    """A server returns the content of a file, but does not list files."""

    is_far = True
    PROBED = 8  # numbers behind the last known log at which another is looked for

    def __init__(self, url, ca, certificate, key):
        import urllib3

        if url.startswith("http://") and urllib3.util.parse_url(url).host not in ("localhost", "127.0.0.1", "[::1]"):
            raise Failure(f"{url}: without TLS only within this machine; use https://")
        self.url, self.errors = url.rstrip("/"), (urllib3.exceptions.HTTPError, OSError)
        tls = {"ca_certs": ca} if ca else {}
        self.pool = urllib3.PoolManager(
            cert_file=certificate, key_file=key, maxsize=TOGETHER, retries=urllib3.Retry(3, redirect=0),
            timeout=urllib3.Timeout(connect=15, read=60), **tls)

    def devices(self):
        return None

    def generations(self, device, known):
        last = max(known, default=0)
        return [number for number in range(1, last + self.PROBED + 1)
                if self.ask("HEAD", f"{device}/{number}/checkpoint") is not None]

    def ask(self, method, path, limit=0):
        try:
            answer = self.pool.request(method, f"{self.url}/{path}", preload_content=False)
            try:
                if answer.status == 404:
                    return None
                if answer.status != 200:
                    raise Failure(f"{self.url}/{path} cannot be read: HTTP status {answer.status}")
                body = answer.read(limit + 1) if method == "GET" else b""
                if len(body) > limit:
                    answer.close()  # the rest would be taken for the next answer
                return answer.headers, body
            finally:
                answer.release_conn()
        except self.errors as error:
            raise Failure(f"{self.url}/{path} cannot be read: {error}") from None

    def read(self, path, limit):
        answer = self.ask("GET", path, limit)
        return answer and answer[1]

    def modified(self, path):
        answer = self.ask("HEAD", path)
        try:
            return answer and email.utils.parsedate_to_datetime(answer[0]["Last-Modified"])
        except (KeyError, ValueError):
            return None

    def sizes(self):
        return self.list()

    def list(self):
        raise Failure(f"{self.url}: a web server does not say which files it has; give the folder or the bucket")
