"""The notebook's look at Flower: one record for both modes, or the reason why there is none."""

import pytest

pytest.importorskip("flwr", reason='Flower is an extra: pip install "fu_core[flower]"')

from fu_core import flower
from fu_core.errors import MissingHistory, NumericalFailure, SimulationUnavailable
from fu_papers.lab.store import CommittedStore, RecordStore
from fu_papers.puf import flower as puf_flower
from fu_papers.study import Study
from tests.fu_core.test_flower import NODES, Grid, on_a_server  # noqa: F401, the second is a fixture
from tests.puf_lab import experiment


@pytest.fixture
def store(tmp_path):
    return RecordStore(tmp_path / "records")


@pytest.fixture
def without_ray(monkeypatch):
    """The clients answer in this process."""
    monkeypatch.setattr(flower, "simulate", lambda app, clients, serve: serve(Grid(app), NODES))


def asked(store, **change):
    """What the notebook gets to show."""
    return list(Study(experiment(["digits/iid/mlp"], **{"flower": True, **change}), store).run("Flower").values())


def test_both_modes_end_in_our_model(store, without_ray):
    table = puf_flower.flower_table(asked(store))
    assert table["mode"].tolist() == ["special", "regular"]
    assert table["same to 1e-6"].all()
    assert (table["moved"] > 0.05).all()


def test_a_model_that_differs_shows(store, without_ray, monkeypatch):
    monkeypatch.setattr(puf_flower, "TARGET", 2)
    [record] = asked(store)
    monkeypatch.setattr(puf_flower, "puf_round", lambda f, w, *how: w)
    [other] = asked(RecordStore(store.root / "other"))
    assert puf_flower.flower_table([record])["same to 1e-6"].all()
    assert not puf_flower.flower_table([other])["same to 1e-6"].any()


def test_who_does_not_want_it_is_not_shown_it(store):
    assert asked(store, flower=False) == []


def test_without_flower_the_notebook_goes_on(store, monkeypatch, capsys):
    monkeypatch.setattr(puf_flower, "find_spec", lambda name: None)
    assert asked(store) == []
    assert 'pip install "fu_core[flower]"' in capsys.readouterr().out
    assert puf_flower.flower_table([]).empty


def test_a_simulation_that_does_not_start_is_told_in_a_line(store, monkeypatch, capsys):
    def dies(*args):
        raise SimulationUnavailable("ray has no room\nlong story")

    monkeypatch.setattr(flower, "simulate", dies)
    assert asked(store) == []
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("Flower's simulation did not run here: 1 of 1 runs of Flower failed")


@pytest.mark.parametrize("kind", [NumericalFailure, MissingHistory, RuntimeError])
def test_what_goes_wrong_once_it_has_started_is_an_error(store, without_ray, monkeypatch, capsys, kind):
    """As opposed to a simulation that cannot start, which is no fault of ours."""

    def fails(*how, **more):
        raise kind("an update is not there")

    monkeypatch.setattr(flower.PufStrategy, "start", fails)
    with pytest.raises(RuntimeError, match=f"{kind.__name__}: an update is not there"):
        asked(store)
    assert "did not run here" not in capsys.readouterr().out


def test_a_committed_record_is_shown_where_flower_is_missing(store, without_ray, monkeypatch):
    [record] = asked(store)
    monkeypatch.setattr(puf_flower, "find_spec", lambda name: None)
    store.export([record.key], store.root / "committed")
    assert asked(CommittedStore(store.root / "committed")) == [record]
