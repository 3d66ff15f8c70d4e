"""Downloads: resumed, verified, and never left under their final name unless they are right."""

from __future__ import annotations

import errno
import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fu_core.data import download
from fu_core.data.download import Archive, fetch
from fu_core.errors import CorruptData, DataUnavailable

CONTENT = bytes(range(256)) * 4096  # 1 MiB
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "raw" / "file.bin"


def _partial(target: Path) -> Path:
    return target.with_name("file.bin.partial")


def test_a_download_is_verified_and_gets_its_name(server, target):
    server.files["/file.bin"] = CONTENT
    md5 = hashlib.md5(CONTENT).hexdigest()
    assert fetch(server.url + "file.bin", target, size=len(CONTENT), sha256=SHA256, md5=md5) == target
    assert target.read_bytes() == CONTENT
    assert not _partial(target).exists()


def test_a_verified_file_is_not_downloaded_again(no_network, target):
    target.parent.mkdir()
    target.write_bytes(CONTENT)
    assert fetch("http://127.0.0.1:9/file.bin", target, sha256=SHA256) == target


def test_a_file_in_place_that_is_wrong_is_named_and_left_alone(no_network, target):
    """It may be the user's own; we do not delete it silently."""
    target.parent.mkdir()
    target.write_bytes(b"something else")
    with pytest.raises(CorruptData, match=r"file\.bin has sha256 .* delete it"):
        fetch("http://127.0.0.1:9/file.bin", target, sha256=SHA256)
    assert target.read_bytes() == b"something else"


def test_an_interrupted_download_resumes_where_it_stopped(server, target):
    """1,000 bytes are here; the server is asked for the rest only, and the whole has the right checksum."""
    server.files["/file.bin"] = CONTENT
    target.parent.mkdir()
    _partial(target).write_bytes(CONTENT[:1000])
    fetch(server.url + "file.bin", target, size=len(CONTENT), sha256=SHA256)
    assert server.asked == [("/file.bin", "bytes=1000-")]
    assert target.read_bytes() == CONTENT


def test_a_server_without_ranges_makes_it_start_over(server, target):
    server.files["/file.bin"] = CONTENT
    server.serve_ranges = False
    target.parent.mkdir()
    _partial(target).write_bytes(b"x" * 1000)
    fetch(server.url + "file.bin", target, sha256=SHA256)
    assert target.read_bytes() == CONTENT


def test_a_broken_connection_is_resumed_within_one_call(server, target):
    server.files["/file.bin"] = CONTENT
    server.cut_after = [300_000, 200_000]
    fetch(server.url + "file.bin", target, sha256=SHA256)
    assert [wanted for _, wanted in server.asked] == [None, "bytes=300000-", "bytes=500000-"]
    assert target.read_bytes() == CONTENT


def test_a_truncated_download_is_kept_and_the_next_call_completes_it(server, target):
    server.files["/file.bin"] = CONTENT
    server.cut_after = [1000] * download.ATTEMPTS
    with pytest.raises(DataUnavailable, match=r"3,000 bytes are kept in .*file\.bin\.partial.*next call resumes"):
        fetch(server.url + "file.bin", target, sha256=SHA256)
    assert not target.exists()
    fetch(server.url + "file.bin", target, sha256=SHA256)
    assert server.asked[-1] == ("/file.bin", "bytes=3000-")
    assert target.read_bytes() == CONTENT


def test_a_finished_partial_whose_rename_was_lost_is_accepted(server, target):
    server.files["/file.bin"] = CONTENT
    target.parent.mkdir()
    _partial(target).write_bytes(CONTENT)
    fetch(server.url + "file.bin", target, sha256=SHA256)
    assert target.read_bytes() == CONTENT


def test_a_partial_longer_than_the_file_is_thrown_away(server, target):
    server.files["/file.bin"] = CONTENT
    target.parent.mkdir()
    _partial(target).write_bytes(CONTENT + b"more")
    fetch(server.url + "file.bin", target, sha256=SHA256)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("check", [{"sha256": "0" * 64}, {"md5": "0" * 32}, {"size": 10}])
def test_wrong_bytes_are_refused_and_removed(server, target, check):
    server.files["/file.bin"] = CONTENT
    with pytest.raises(CorruptData, match=r"what http://.*/file\.bin delivered has .*, expected .*removed"):
        fetch(server.url + "file.bin", target, **check)
    assert not target.exists()
    assert not _partial(target).exists()


def test_a_server_error_is_tried_again_but_a_missing_page_is_not(server, target):
    server.files["/file.bin"] = CONTENT
    server.refuse_with = [503]
    fetch(server.url + "file.bin", target, sha256=SHA256)
    server.asked.clear()
    with pytest.raises(DataUnavailable, match="404"):
        fetch(server.url + "no_such_file", target.with_name("other"))
    assert len(server.asked) == 1


def test_without_a_network_the_error_names_the_address(no_network, target):
    with pytest.raises(DataUnavailable, match=r"cannot download http://example\.org/file\.bin"):
        fetch("http://example.org/file.bin", target)


def test_a_full_disk_is_one_clear_error(server, target, monkeypatch):
    server.files["/file.bin"] = CONTENT

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(download, "_append", full)
    with pytest.raises(DataUnavailable, match=r"cannot write .*file\.bin \(1,048,576 bytes needed\): No space left"):
        fetch(server.url + "file.bin", target, size=len(CONTENT))


def test_the_next_mirror_is_tried_when_one_fails(server, tmp_path):
    """The first has nothing, the second a page that says so in place of the file."""
    server.files |= {"/good/file.bin": CONTENT, "/moved/file.bin": b"<html>moved</html>"}
    urls = tuple(f"{server.url}{mirror}/file.bin" for mirror in ("bad", "moved", "good"))
    assert Archive("file.bin", urls, sha256=SHA256).fetch(tmp_path).read_bytes() == CONTENT
    with pytest.raises(DataUnavailable, match=r"bad/other.*worse/other"):
        Archive("other", (server.url + "bad/other", server.url + "worse/other")).fetch(tmp_path)


def test_of_two_that_want_one_file_at_once_one_downloads_it(server, target):
    """Two data sets can share an archive: the second went on where the first was, and both had wrong bytes."""
    server.files["/file.bin"], server.pause = CONTENT, 0.05

    def wanted() -> Path:
        return fetch(server.url + "file.bin", target, size=len(CONTENT), sha256=SHA256)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(wanted)
        while not _partial(target).exists():
            time.sleep(0.01)
        second = pool.submit(wanted)
        assert first.result() == second.result() == target
    assert target.read_bytes() == CONTENT
    assert [path for path, _ in server.asked] == ["/file.bin"]


def test_who_waits_for_a_download_that_fails_goes_on_with_it(server, target):
    server.files["/file.bin"], server.pause = CONTENT, 0.05
    server.cut_after = [300_000] + [0] * (download.ATTEMPTS - 1)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(fetch, server.url + "file.bin", target, sha256=SHA256)
        while not _partial(target).exists():
            time.sleep(0.01)
        second = pool.submit(fetch, server.url + "file.bin", target, sha256=SHA256)
        with pytest.raises(DataUnavailable, match="300,000 bytes are kept"):
            first.result()
        assert second.result().read_bytes() == CONTENT
    assert server.asked[-1] == ("/file.bin", "bytes=300000-")


def test_a_verified_file_needs_no_lock(no_network, target, monkeypatch):
    """It may lie where nobody may write."""
    target.parent.mkdir()
    target.write_bytes(CONTENT)
    monkeypatch.setattr(download, "FileLock", None)
    assert fetch("http://127.0.0.1:9/file.bin", target, sha256=SHA256) == target
