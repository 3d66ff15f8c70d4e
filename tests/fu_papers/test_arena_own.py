"""The arena for a federation of one's own: the worked example of docs/arena.md as it stands, and refusals."""

import os
import re
import subprocess
import sys

import pytest
import torch

from fu_core.errors import ConfigError, InvalidRequest, UnsupportedTask
from fu_core.unlearning import method
from fu_core.unlearning.method import register
from fu_papers.arena import compare, results
from fu_papers.arena.__main__ import loaded
from fu_papers.arena.own import put_aside
from fu_papers.arena.report import verdict, write_report
from fu_papers.controls import AGAIN
from fu_papers.lab.paths import ROOT
from tests.federations import among_peers, with_server

EXAMPLE = (ROOT / "docs" / "arena.md").read_text(encoding="utf-8")
SHORT = ("PUF-Special", "MoDe", "SISA", "Stored vectors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The two files of the worked example: the module as it is printed, and eight shops, the last unlike the others."""
    where = tmp_path_factory.mktemp("shops")
    (code,) = re.findall(r"```python\n# shops\.py\n(.*?)```", EXAMPLE, flags=re.DOTALL)
    (where / "shops.py").write_text(code, encoding="utf-8")
    g = torch.Generator().manual_seed(0)
    lines = ["shop,size,price,visits,returned"]
    for shop in range(8):
        x = torch.randn(50, 3, generator=g)
        score = x[:, 0] - x[:, 1] + 0.3 * torch.randn(50, generator=g)
        y = (score * (-1 if shop == 7 else 1) > 0).long()
        lines += [
            f"{shop},{a:.4f},{b:.4f},{c:.4f},{label}" for (a, b, c), label in zip(x.tolist(), y.tolist(), strict=True)
        ]
    (where / "shops.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return where


@pytest.fixture(scope="module")
def federation(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return loaded("shops:federation")


@pytest.fixture(scope="module")
def frame(federation):
    return compare(federation, ["client-7"], SHORT, rounds=8, models=8)


def test_a_row_per_method_with_price_utility_and_judges(frame):
    by_name = frame.set_index("method")
    assert {*SHORT, "Original", AGAIN, "Constant output", "Destroyed"} <= set(by_name.index)
    assert results.wrong_controls(frame) == []
    assert by_name.left["Original"] == pytest.approx(100)
    assert by_name.left["SISA"] < 50  # exact
    assert by_name.price[AGAIN] == pytest.approx(1)
    assert 0 < by_name.price["PUF-Special"] < 1.5
    assert by_name.test[AGAIN] > 70
    assert "Hessian-free" in by_name.reason["Stored vectors"]


def test_the_frame_tells_seeds_versions_and_hashes(frame, federation):
    about = frame.attrs["about"]
    assert about["seeds"].startswith("0 to 7")
    assert about["clients"] == 8
    assert "fu_core" in about["versions"]
    assert len(about["hashes"]["originals"]) == 16
    again = compare(federation, ["client-7"], ["MoDe"], rounds=8, models=8)
    assert again.attrs["about"]["hashes"]["client-7: MoDe"] == about["hashes"]["client-7: MoDe"]


def test_judges_are_chosen(federation):
    found = compare(federation, ["client-7"], ["SISA"], ["u_lira"], rounds=2, models=4)
    assert "auc" in found
    assert not {"klom_forget", "rmia", "epsilon", "exposure", "left"} & set(found.columns)


def test_without_retraining_a_reference_judge_says_less(federation, tmp_path):
    found = compare(federation, ["client-7"], ["PUF-Special"], ["membership"], rounds=8, models=4)
    assert set(found.method) == {
        *("Original", "Natural, longer", "Constant output", "Original with noise", "Destroyed", "PUF-Special"),
    }
    constant = found.set_index("method").membership["Constant output"]
    assert constant == pytest.approx(0.5)
    text = write_report(found, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Nobody was retrained" in text
    assert "not sufficient" in text


def test_the_report_is_one_file_with_everything_in_it(frame, tmp_path):
    text = write_report(frame, tmp_path / "report.html", "shops").read_text(encoding="utf-8")
    assert "data:image/png;base64," in text
    assert not re.search(r"(src|href)=['\"](?!data:)", text)
    assert verdict(frame, "client-7").split(":")[0] in text
    assert frame.attrs["about"]["hashes"]["originals"] in text
    assert "MoDe" in text
    assert "Hessian-free" in text


def test_the_report_ranks_nobody_where_controls_are_wrong(frame, tmp_path):
    wrong = frame.copy()
    wrong.attrs = frame.attrs
    wrong.loc[wrong.method == "Original", "low"] = 0.0
    text = write_report(wrong, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "nothing is ranked" in text
    assert "data:image" not in text


def test_the_command_line_of_the_worked_example(folder):
    (line,) = re.findall(r"^python (-m fu_papers\.arena .*)$", EXAMPLE, flags=re.MULTILINE)
    words = line.replace("--rounds 15", "--rounds 6").replace("--models 16", "--models 8").split()
    done = subprocess.run(
        [sys.executable, *words, "--method", "PUF-Special"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "client-7: PUF-Special" in done.stderr  # progress
    assert done.stdout.splitlines()[0].startswith("client-7: ")  # the verdict
    assert (folder / "report.html").stat().st_size > 10_000


def test_what_is_put_aside_is_a_fifth_and_nobody_trains_on_it():
    f = with_server().federation
    kept, (x, y) = put_aside(f, 0)
    for i, (own, _) in f.clients.items():
        assert len(kept.clients[i][1]) == len(own) - max(1, len(own) // 5)
    assert len(y) == sum(len(own) // 5 for own, _ in f.clients.values())
    trained = torch.cat([own for own, _ in kept.clients.values()])
    assert not (x[:, None] == trained).all(dim=2).any()


def test_what_is_wrong_is_named(federation, folder):
    with pytest.raises(InvalidRequest, match="requests must be a list"):
        compare(federation, "client-7")
    with pytest.raises(ValueError, match="judges must be one of"):
        compare(federation, ["client-7"], judges=["klim"])
    with pytest.raises(ValueError, match="methods must be one of"):
        compare(federation, ["client-7"], ["DU"])
    with pytest.raises(ValueError, match="models must be a whole number >= 4"):
        compare(federation, ["client-7"], models=2)
    with pytest.raises(UnsupportedTask, match="peers"):
        compare(among_peers().federation, ["client-1"])
    with pytest.raises(ConfigError, match="must look like my_module:federation"):
        loaded("shops")
    with pytest.raises(ConfigError, match="must name something to be imported"):
        loaded("nowhere_at_all:federation")


def test_a_method_that_fails_is_a_row_with_the_reason_and_takes_no_other_with_it(federation, monkeypatch):
    monkeypatch.setattr(method, "_REGISTERED", dict(method.methods()))

    def fails(trained, deletion, config):
        raise NotImplementedError("no such kernel")

    register("Fails", paper="nobody's", colour="#123456")(fails)
    with pytest.warns(UserWarning, match="Fails failed with NotImplementedError"):
        rows = compare(federation, ["client-7"], ["Fails", "NoT"], rounds=2, models=4).set_index("method")
    assert rows.loc["Fails", "reason"] == "failed with NotImplementedError: no such kernel"
    assert rows.loc["NoT", "models"] > 0
