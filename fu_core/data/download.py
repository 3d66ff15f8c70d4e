"""Downloads that survive an interruption and are never believed without a check.

Bytes go to `<file>.partial`. If that file is already there, the server is asked for the rest only. The finished file is
compared with its published size and checksum and only then gets its name. Of several processes that ask for one file,
whatever data sets they make of it, one downloads it and the others wait.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

import requests
from filelock import FileLock
from tqdm.auto import tqdm

from fu_core.data.cache import storage_errors
from fu_core.errors import CorruptData, DataUnavailable

ATTEMPTS = 3
PAUSE_SECONDS = 1.0
TIMEOUT_SECONDS = (10, 60)  # to connect, and between two pieces
CHUNK = 1 << 16  # what a broken connection loses at most


@dataclass(frozen=True)
class Archive:
    """One file of the manifest: where it is, how it is called here, and how to recognise it."""

    filename: str
    urls: tuple[str, ...]
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None

    def fetch(self, folder: Path) -> Path:
        """The verified file in `folder`, downloaded from the first mirror that delivers it."""
        failures: list[DataUnavailable | CorruptData] = []
        for url in self.urls:
            try:
                return fetch(url, folder / self.filename, size=self.size, sha256=self.sha256, md5=self.md5)
            except (DataUnavailable, CorruptData) as error:
                failures.append(error)
        reasons = dict.fromkeys(str(error) for error in failures)  # a bad file already here is one reason, not several
        raise type(failures[-1])("; ".join(reasons)) from failures[-1]


def fetch(
    url: str,
    path: Path,
    *,
    size: int | None = None,
    sha256: str | None = None,
    md5: str | None = None,
    progress: bool = True,
) -> Path:
    """Download `url` to `path` unless it is there; returns `path`, whose size and checksums have been verified.

    Raises `DataUnavailable` when the server cannot be reached, breaks off (what came is kept, the next call goes on
    from there) or the disk is full, and `CorruptData` when the bytes are not the published ones.
    """
    if not path.exists():  # looked at first: what is there may lie where nobody may write, not even a lock
        lock = FileLock(path.with_name(f"{path.name}.lock"))
        with storage_errors(path, size):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        try:
            if not path.exists():
                _fetch(url, path, size, sha256, md5, progress)
                return path
        finally:
            lock.release()
    problem = mismatch(path, size=size, sha256=sha256, md5=md5)
    if problem:
        raise CorruptData(f"{path} {problem}; delete it and try again")
    return path


def mismatch(path: Path, *, size: int | None = None, sha256: str | None = None, md5: str | None = None) -> str:
    """How the file differs from the given size and checksums, or an empty string; what is None is not compared."""
    found_size = path.stat().st_size
    if size is not None and found_size != size:
        return f"has {found_size:,} bytes, expected {size:,}"
    for algorithm, expected in (("sha256", sha256), ("md5", md5)):
        if expected is None:
            continue
        with path.open("rb") as file:
            found = hashlib.file_digest(file, algorithm).hexdigest()
        if found != expected:
            return f"has {algorithm} {found}, expected {expected}"
    return ""


def _fetch(url: str, path: Path, size: int | None, sha256: str | None, md5: str | None, progress: bool) -> None:
    """`fetch` of what is not there; nobody else is at it."""
    partial = path.with_name(f"{path.name}.partial")
    with storage_errors(path, size):
        _download(url, partial, size, progress)
    problem = mismatch(partial, size=size, sha256=sha256, md5=md5)
    if problem:
        partial.unlink()  # resuming wrong bytes could never succeed
        raise CorruptData(
            f"what {url} delivered {problem}; it has been removed, try again or copy {path} from elsewhere"
        )
    with storage_errors(path, size):
        partial.replace(path)


def _download(url: str, partial: Path, size: int | None, progress: bool) -> None:
    """Complete `partial`, in a few attempts that each go on where the last one stopped."""
    failure: Exception | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
        try:
            return _continue(url, partial, size, progress)
        except requests.HTTPError as error:
            failure = error
            if error.response.status_code < 500:  # such a refusal does not go away
                break
        except requests.RequestException as error:
            failure = error
    kept = partial.stat().st_size if partial.exists() else 0
    resume = f"; {kept:,} bytes are kept in {partial}, and the next call resumes there" if kept else ""
    raise DataUnavailable(f"cannot download {url}: {failure}{resume}") from failure


def _continue(url: str, partial: Path, size: int | None, progress: bool) -> None:
    """Ask for what `partial` lacks and append it; start over if the server does not serve ranges."""
    have = partial.stat().st_size if partial.exists() else 0
    if have and have == size:
        return
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            if response.headers.get("Content-Range") == f"bytes */{have}":
                return  # complete: the last call ended between the last byte and the rename
            partial.unlink()
            raise requests.RequestException(f"{partial.name} was longer than the file on the server")
        response.raise_for_status()
        resumed = response.status_code == requests.codes.partial_content
        total = _announced(response, have if resumed else 0)
        _append(response, partial, have if resumed else 0, total or size, progress)
    got, expected = partial.stat().st_size, total or size
    if expected is not None and got < expected:
        raise requests.ConnectionError(f"the connection closed after {got:,} of {expected:,} bytes")


def _announced(response: requests.Response, start: int) -> int | None:
    """The size of the whole file according to the server."""
    length = response.headers.get("Content-Length")
    return None if length is None else start + int(length)


def _append(response: requests.Response, partial: Path, start: int, total: int | None, progress: bool) -> None:
    name = partial.name.removesuffix(".partial")
    with (
        partial.open("ab" if start else "wb") as file,
        tqdm(total=total, initial=start, desc=name, unit="B", unit_scale=True, disable=not progress) as bar,
    ):
        for chunk in response.iter_content(CHUNK):
            file.write(chunk)
            bar.update(len(chunk))
