"""Caches: used as they are, refused when damaged, written whole or not at all."""

from __future__ import annotations

import errno
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fu_core.data import datasets, load
from fu_core.data.cache import pack, read_cache, write_cache
from fu_core.data.catalogue import CACHED, Entry
from fu_core.errors import ConfigError, CorruptData, DataUnavailable


def tiny_arrays(n_train: int = 6, n_test: int = 4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def split(n: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.integers(0, 256, (n, 5, 7, 3), dtype=np.uint8), np.arange(n) % 3

    return pack(split(n_train), split(n_test), "made by a test")


def test_a_ready_cache_is_used_without_a_network(no_network, tmp_path):
    """(n, H, W, 3) in the file becomes a contiguous (n, 3, H, W) tensor with the same pixels."""
    arrays = tiny_arrays()
    write_cache(tmp_path / "cifar10.npz", arrays)
    data = load("cifar10", tmp_path)
    assert data.x_train.shape == (6, 3, 5, 7)
    assert data.x_train.is_contiguous()
    assert torch.equal(data.x_train[:, 2], torch.from_numpy(arrays["x_train"][..., 2].copy()))
    assert data.y_test.dtype == torch.int64
    assert (data.source, data.classes, data.task) == ("made by a test", 3, "classification")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cifar10.npz"]


def test_grey_images_get_a_channel_axis(tmp_path):
    arrays = tiny_arrays()
    arrays |= {"x_train": arrays["x_train"][..., 0], "x_test": arrays["x_test"][..., 0]}
    write_cache(tmp_path / "mnist.npz", arrays)
    assert load("mnist", tmp_path).x_test.shape == (4, 1, 5, 7)


def test_the_hash_depends_on_the_content_and_not_on_the_container(tmp_path):
    arrays = tiny_arrays()
    np.savez(tmp_path / "mnist.npz", **arrays)
    np.savez_compressed(tmp_path / "cifar10.npz", **arrays)
    assert load("mnist", tmp_path).sha256 == load("cifar10", tmp_path).sha256
    arrays["x_train"][0, 0, 0, 0] ^= 1
    np.savez(tmp_path / "mnist.npz", **arrays)
    assert load("mnist", tmp_path).sha256 != load("cifar10", tmp_path).sha256


def test_the_data_folder_comes_from_the_environment(tmp_path, monkeypatch):
    write_cache(tmp_path / "mnist.npz", tiny_arrays())
    monkeypatch.setenv("FU_DATA", str(tmp_path))
    assert len(load("mnist").x_train) == 6


def test_without_that_it_lies_in_the_checkout_and_without_a_checkout_in_the_current_folder(tmp_path, monkeypatch):
    """Never beside installed packages, wherever one works."""
    monkeypatch.delenv("FU_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert datasets.data_dir() == Path(__file__).resolve().parents[3] / "data"
    monkeypatch.setattr(datasets, "__file__", str(tmp_path / "site-packages" / "fu_core" / "data" / "datasets.py"))
    assert datasets.data_dir() == tmp_path / "data"


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_flipped_bit_is_found(tmp_path, save):
    """Every array in a zip carries a CRC; we damage the middle of the largest one."""
    path = tmp_path / "mnist.npz"
    save(path, **tiny_arrays(n_train=500))
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(CorruptData, match=r"mnist\.npz is not a usable cache.*delete it"):
        load("mnist", tmp_path)


def test_a_directory_that_swallows_its_last_entries_is_found(tmp_path):
    """By one flipped bit the entry of `source` has a comment, which is what follows: the hospitals were gone."""
    path = tmp_path / "mnist.npz"
    sites = {"site_train": np.zeros(6, dtype=np.int64), "site_test": np.zeros(4, dtype=np.int64)}
    write_cache(path, tiny_arrays() | sites)
    content = bytearray(path.read_bytes())
    directory = int.from_bytes(content[-6:-2], "little")
    entries = [directory]
    while content[entries[-1] :].startswith(b"PK\1\2"):
        lengths = [int.from_bytes(content[entries[-1] + k : entries[-1] + k + 2], "little") for k in (28, 30, 32)]
        entries.append(entries[-1] + 46 + sum(lengths))
    assert len(entries) == 8  # where the seven arrays' entries begin, and the end
    content[entries[4] + 32 : entries[4] + 34] = (entries[-1] - entries[5]).to_bytes(2, "little")
    path.write_bytes(content)
    with np.load(path) as archive:
        assert archive.files == ["x_train", "y_train", "x_test", "y_test", "source"]
    with pytest.raises(CorruptData, match=r"5 of 7 arrays are found.*delete it"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_a_truncated_cache_is_found(tmp_path, keep):
    path = tmp_path / "mnist.npz"
    write_cache(path, tiny_arrays())
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    with pytest.raises(CorruptData, match=r"mnist\.npz.*delete it and run `python -m fu_core\.data mnist`"):
        load("mnist", tmp_path)


def test_a_bare_array_under_the_name_of_a_cache_is_refused(tmp_path):
    with (tmp_path / "mnist.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(CorruptData, match="cannot be read"):
        load("mnist", tmp_path)


def test_pickled_objects_are_never_loaded(tmp_path):
    """A cache from somebody else must not be able to run code."""
    np.savez(tmp_path / "mnist.npz", **tiny_arrays() | {"y_train": np.array([print] * 6, dtype=object)})
    with pytest.raises(CorruptData, match="allow_pickle"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("key", ["x_train", "y_train", "x_test", "y_test", "source"])
def test_a_missing_array_is_named(tmp_path, key):
    arrays = tiny_arrays()
    del arrays[key]
    write_cache(tmp_path / "mnist.npz", arrays)
    with pytest.raises(CorruptData, match=f"array {key} missing"):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_train": np.zeros(5, np.int64)}, "x_train is .* but y_train"),
        ({"x_train": np.zeros((0, 5, 7, 3), np.uint8), "y_train": np.zeros(0, np.int64)}, "x_train is"),
        ({"x_test": np.zeros((4, 5, 8, 3), np.uint8)}, "x_train is .* but x_test"),
        ({"y_train": np.zeros(6, np.float32)}, "y_train is float32"),
        ({"y_train": np.full(6, -1)}, "labels >= 0"),
        ({"x_train": np.zeros((6, 5, 7, 3), np.float32)}, "x_train is float32"),
        ({"source": np.zeros(2)}, "source is not a single string"),
        ({"site_train": np.zeros(5, np.int64)}, "site_train"),
        ({"y_train": np.zeros((6, 5, 6), np.uint8)}, "masks of the images' size"),
        ({"y_train": np.full((6, 5, 7), 255, np.uint8)}, "masks of the images' size, of 0 and 1"),  # 256 classes
        ({"y_train": np.zeros((6, 5, 7), np.uint8)}, r"y_train is uint8 \(6, 5, 7\) but y_test int64 \(4,\)"),
        ({"y_test": np.zeros((4, 5, 7), np.uint8)}, r"y_train is int64 \(6,\) but y_test uint8 \(4, 5, 7\)"),
        ({"site_train": np.zeros(6, np.int64)}, "site_test missing"),
        ({"y_train": np.full(6, 2**63 + 5, np.uint64)}, "y_train is uint64"),  # negative as int64
        ({"y_train": np.full(6, 10**12)}, "y_train is int64"),  # a net for so many classes
        (
            {"x_train": np.zeros((6, 0, 0), np.uint8), "x_test": np.zeros((4, 0, 0), np.uint8)},
            r"x_train is \(6, 0, 0\)",
        ),
        ({"x_train": np.full((6, 2), 1e300), "x_test": np.ones((4, 2))}, "x_train is float64"),  # infinite in float32
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(tmp_path, change, message):
    write_cache(tmp_path / "mnist.npz", tiny_arrays() | change)
    with pytest.raises(CorruptData, match=message):
        load("mnist", tmp_path)


def test_a_table_with_missing_values_is_refused(tmp_path):
    x = np.array([[0.0, np.nan], [1.0, 2.0]], np.float32)
    write_cache(tmp_path / "adult.npz", pack((x, [0, 1]), (x[1:], [1]), "made by a test"))
    with pytest.raises(CorruptData, match="x_train"):
        load("adult", tmp_path)


@pytest.mark.parametrize(("rows", "asked"), [("600000000000000", "63,000,000,000,000,000"), ("9" * 20, "10,4")])
def test_a_header_that_asks_for_more_than_there_is_takes_no_memory(tmp_path, rows, asked):
    """Of 6 images it makes 600 million million: asked for, they end in MemoryError."""
    path = tmp_path / "mnist.npz"
    np.savez(path, **tiny_arrays())
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header, _, pixels = members["x_train.npy"].partition(b"\n")
    lied = header.replace(b"(6,", f"({rows},".encode())
    members["x_train.npy"] = lied[: len(header)] + b"\n" + pixels  # the header is padded with blanks
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(CorruptData, match=f"x_train has 758 bytes, and its header asks for {asked}"):
        load("mnist", tmp_path)


def test_a_folder_may_begin_with_the_users_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sets").mkdir()
    write_cache(tmp_path / "sets" / "mnist.npz", tiny_arrays())
    assert len(load("mnist", "~/sets").x_train) == 6
    with pytest.raises(ConfigError, match="data_dir must be a folder, got 5"):
        load("mnist", 5)


def test_a_failed_write_leaves_the_old_cache_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "mnist.npz"
    write_cache(path, tiny_arrays())
    before = path.read_bytes()

    def half_then_full(file, **arrays):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", half_then_full)
    with pytest.raises(DataUnavailable, match=r"cannot write .*mnist\.npz \([\d,]+ bytes needed\): No space left"):
        write_cache(path, tiny_arrays(n_train=60))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_cleared_away(tmp_path, monkeypatch):
    (tmp_path / ".mnist.npz.tmp").write_bytes(b"half a cache")
    monkeypatch.setitem(CACHED, "mnist", Entry(lambda raw: tiny_arrays()))
    assert len(load("mnist", tmp_path).x_train) == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mnist.npz", "raw"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
def test_a_write_that_the_system_cuts_off_leaves_nothing(tmp_path):
    """A real failing write, in a process that may write files of 10 kB only."""
    code = f"""
import resource, numpy as np
from pathlib import Path
from fu_core.data.cache import write_cache
from fu_core.errors import DataUnavailable
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    write_cache(Path({str(tmp_path / "mnist.npz")!r}), {{"x_train": np.zeros(100_000, np.uint8)}})
except DataUnavailable as error:
    assert "100,000 bytes needed" in str(error), error
    print("one clear error")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "one clear error", done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path, no_network):
    """The data folder lies below a regular file, which fails for every user, root included."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DataUnavailable, match=r"cannot write .*mnist\.npz.*FU_DATA"):
        load("mnist", tmp_path / "file" / "data")


def test_a_read_only_folder_is_named(tmp_path, monkeypatch):
    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(DataUnavailable, match=r"Permission denied.*make the folder writable"):
        load("mnist", tmp_path)


def test_a_cache_that_may_not_be_read_is_not_called_corrupt(tmp_path, monkeypatch):
    write_cache(tmp_path / "mnist.npz", tiny_arrays())

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(np, "load", refuse)
    with pytest.raises(DataUnavailable, match="change its permissions"):
        read_cache(tmp_path / "mnist.npz")


def test_a_data_set_is_built_once(tmp_path, monkeypatch):
    built = []

    def build(raw: Path) -> dict[str, np.ndarray]:
        built.append(raw)
        return tiny_arrays()

    monkeypatch.setitem(CACHED, "mnist", Entry(build))
    first, second = load("mnist", tmp_path), load("mnist", tmp_path)
    assert built == [tmp_path / "raw"]
    assert first.sha256 == second.sha256


def test_a_cache_made_by_another_process_meanwhile_is_not_built_again(tmp_path, monkeypatch):
    """We wait for the lock; when we get it, the cache is there."""

    class LockGrantedLate(datasets.FileLock):
        def acquire(self, *arguments, **options):
            write_cache(tmp_path / "mnist.npz", tiny_arrays())
            return super().acquire(*arguments, **options)

    monkeypatch.setattr(datasets, "FileLock", LockGrantedLate)
    monkeypatch.setitem(CACHED, "mnist", Entry(lambda raw: pytest.fail("built twice")))
    assert len(load("mnist", tmp_path).x_train) == 6
