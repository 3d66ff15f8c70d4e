"""The arena beyond a plain server: backdoors, peers, vertical parties; and learning again what was forgotten."""

import matplotlib.pyplot as plt
import pytest
import torch

from fu_core.errors import ConfigError
from fu_core.federation.decentralised import dpsgd
from fu_core.federation.meter import Meter
from fu_core.federation.vertical import deal
from fu_core.federation.vertical import train as train_parties
from fu_core.request import Request
from fu_core.unlearning.memory import Memory
from fu_papers.arena import figures, results, runs, tables
from fu_papers.arena.grid import CONTROLS
from fu_papers.arena.pools import ENSEMBLES, ORDINARY, Recovery, serve
from fu_papers.arena.worlds import PeerPool, VerticalPool, Where, World, having, world_of
from fu_papers.controls import AGAIN
from fu_papers.fedora.problem import column_blocks
from fu_papers.lab.store import RecordStore
from fu_papers.look import style
from fu_papers.problems import problem
from fu_papers.study import Study
from tests.arena_lab import experiment
from tests.pictures import faults

BACKDOOR = "digits/iid/mlp/backdoor-1"
RING = "digits/iid/softmax_regression/ring"
VERTICAL = "digits/iid/mlp/vertical"
METHODS = ["PUF-Special", "Natural", "DU", "PDUDT", "Fine-tune", "FedORA", "GA"]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    places = [f"{BACKDOOR} client-1", f"{RING} class-0", f"{VERTICAL} class-0"]
    e = experiment(
        further_places=places, further_models=4, methods=METHODS, models=4, slow_models=4, chunk=4, memory_models=4,
        relearn_requests=["class-0", "client-1"], relearn_models=2, rounds=6,
    )  # fmt: skip
    return Study(e, RecordStore(tmp_path_factory.mktemp("worlds")), jobs=1)


@pytest.fixture(scope="module")
def everywhere(study):
    return results.of_runs(study.run("unlearning"), study.run("judging"), study.run("relearning"))


def world(e, place, request="none"):
    return World.of(e.pool(place, request, 0, 2))


# --- where a place lies ---


def test_a_place_says_its_world():
    assert Where.parse("digits/iid/mlp").exchange == "server"
    assert (Where.parse(BACKDOOR).exchange, Where.parse(BACKDOOR).poisoned) == ("server", 1)
    assert (Where.parse(RING).exchange, world_of(RING)) == ("peers", "ring")
    assert Where.parse(VERTICAL).exchange == "vertical"
    with pytest.raises(ConfigError, match="settings must look like"):
        Where.parse("digits")


def test_a_server_s_runs_say_nothing_of_worlds(study):
    """Their records were made before there were any."""
    e = study.experiment
    assert not {*runs.BEYOND} & set(e.pool(e.settings[0], "none", 0, 4))
    assert e.pool(RING, "none", 0, 4)["l2"] == e.peers_l2


def test_in_every_world_those_meet_who_work_there(study):
    met = {}
    for place, _, name in study.experiment.meetings():
        met.setdefault(place, set()).add(name)
    everywhere = {*CONTROLS} - {ENSEMBLES, ORDINARY}  # SISA is not here, and Natural needs a server
    assert met[BACKDOOR] == {*everywhere, ORDINARY, "PUF-Special", "Natural", "Fine-tune"}
    assert met[RING] == {*everywhere, "DU", "PDUDT", "Fine-tune"}
    assert met[VERTICAL] == {*everywhere, "FedORA", "GA"}


# --- pools ---


def test_peers_of_a_pool_are_trained_as_by_themselves_and_judged_by_their_average():
    e = experiment(further_places=[f"{RING} client-1"])
    w = world(e, RING)
    deletion = w.deletion("client-1")
    pool = w.trained([0, 3], e.rounds, "client-1")
    assert isinstance(pool, PeerPool)
    assert pool.w.shape == (2, 3, w.model.d)
    alone = dpsgd(w.f.after(deletion).having(seed=3, meter=Meter()), pool.w_0[1], e.rounds)
    assert torch.equal(pool.w[1], alone)
    assert torch.equal(w.vectors(pool.w)[1], alone.mean(dim=0))
    served = serve("Retrain", w.trained([0, 3], e.rounds, "none"), deletion, Recovery(w.p.validation, 0.0, 1))
    assert torch.equal(served.models, w.vectors(pool.w))


def test_peers_recover_until_their_average_is_good_enough():
    e = experiment(further_places=[f"{RING} client-1"])
    w = world(e, RING)
    deletion, pool = w.deletion("client-1"), w.trained([0], e.rounds, "none")
    started = [model[:3] for model in pool.w]
    after, rounds, reached, meter = pool.recover(
        started, deletion, e.rounds + 1, Recovery(w.p.validation, 0.0, 3), None
    )
    assert all(reached)
    assert rounds == [0]
    assert torch.equal(after[0], started[0])
    after, rounds, reached, meter = pool.recover(
        started, deletion, e.rounds + 1, Recovery(w.p.validation, 101.0, 3), None
    )
    assert not any(reached)
    assert rounds == [3]
    expected = dpsgd(w.f.after(deletion).having(meter=Meter()), started[0], 3, first_round=e.rounds + 1)
    torch.testing.assert_close(after[0], expected)
    assert meter.gradient_passes > 0
    assert pool.memories(history=True)[0].rounds == list(range(1, e.rounds + 1))


def test_vertical_parties_of_a_pool_are_trained_as_by_themselves():
    e = experiment(further_places=[f"{VERTICAL} class-0"])
    w = world(e, VERTICAL)
    deletion = w.deletion("class-0")
    pool = w.trained([0, 3], e.rounds, "class-0")
    assert isinstance(pool, VerticalPool)
    p = problem(e.pool(VERTICAL, "none", 0, 2))
    parties, _ = deal(p.dataset, bottom="mlp", seed=3, blocks=column_blocks(p.dataset))
    assert torch.equal(torch.cat(parties.w), pool.w_0[1])
    f = w.f.having(parties=parties, seed=3, meter=Meter())
    alone = train_parties(f, deletion.retain[0], f.optimisers(), w.rounds(e.rounds))
    assert torch.equal(torch.cat(alone.w), pool.w[1])
    served = serve("Retrain", w.trained([0, 3], e.rounds, "none"), deletion, Recovery(w.p.validation, 0.0, 1))
    assert torch.equal(served.models, pool.w)
    given = pool.one(1, Memory()).vertical
    assert torch.equal(torch.cat(given.parties.w), pool.w[1])
    assert having(given.parties, pool.w[0]).w[0].equal(pool.w[0][: len(given.parties.w[0])])


def test_a_method_that_asks_for_unseen_samples_gets_each_party_s_part_of_them():
    e = experiment(further_places=[f"{VERTICAL} class-0"])
    w = world(e, VERTICAL)
    pool, deletion = w.trained([0], 1, "none"), w.deletion("class-0")
    x, y = w.p.validation
    left, right = pool.unseen((x, y), deletion)
    assert torch.equal(torch.cat([left, right], dim=-1), x[y == 0])
    served = serve("FedORA calibrated", pool, deletion, Recovery((x, y), 0.0, 1))
    assert served.models.shape == pool.w.shape
    assert not torch.equal(served.models, pool.w)


@pytest.mark.parametrize("request_text", ["client-1", "sample-1-0.5", "class-0"])
def test_a_request_names_the_same_samples_among_clients_and_parties(request_text):
    e = experiment(further_places=[f"{VERTICAL} {request_text}"])
    w = world(e, VERTICAL)
    x, y = w.sides(w.deletion(request_text))["forget"]
    p = problem(e.pool(VERTICAL, "none", 0, 2))
    x_among, y_among = Request.parse(request_text).resolve(dict(enumerate(p.clients))).forget
    assert sorted(y.tolist()) == sorted(y_among.tolist())
    assert torch.equal(x.flatten(1).double().sort(dim=0).values, x_among.flatten(1).double().sort(dim=0).values)


# --- what comes of it ---


def test_the_controls_come_out_as_they_must_in_every_world(everywhere):
    must = everywhere[everywhere.method.isin(["Original", "Constant output"])]
    assert (must.klom_forget > results.AS_GOOD * must.floor).all()  # four models are too few for the interval


def test_a_backdoor_stays_with_who_does_nothing_and_leaves_with_retrain(everywhere):
    here = everywhere[everywhere.setting == BACKDOOR].set_index("method")
    assert here.backdoor["Original"] > 80
    assert here.backdoor[AGAIN] < 20
    assert here.backdoor[AGAIN] == here.backdoor_retrain["Original"]
    assert everywhere[everywhere.setting != BACKDOOR].backdoor.isna().all()


def test_whether_backdoors_tell_is_a_question_of_both_references(everywhere):
    assert results.backdoors_tell(everywhere)
    assert results.backdoors_tell(everywhere.drop(columns="backdoor"))  # there is none
    for name, success in (("Original", 1.0), (AGAIN, 60.0)):
        wrong = everywhere.copy()
        wrong.loc[(wrong.method == name) & wrong.backdoor.notna(), "backdoor"] = success
        assert not results.backdoors_tell(wrong)


def test_who_does_nothing_has_nothing_to_learn_again_and_retrain_is_the_unit(study, monkeypatch):
    monkeypatch.setattr(results, "KNOWS_NOT", 0.3)  # trainings as short as these are soon repeated from anywhere
    frame = results.of_runs(*(study.run(stage) for stage in ("unlearning", "judging", "relearning")))
    there = frame[frame.setting != VERTICAL].set_index(["setting", "method"])
    for place in (study.experiment.settings[0], BACKDOOR, RING):
        assert there.relearn[place, "Original"] == 0
        assert there.relearn[place, AGAIN] == 1
        assert there.relearn[place, "Destroyed"] > 0.3
    assert (there.relearn.dropna() >= 0).all()
    # a net whose outputs do not depend on its hidden layer learns nothing in the time: it is counted
    assert there.relearn_capped[BACKDOOR, "Constant output"] == 1
    assert tables.relearned({"relearn": 2.0, "relearn_capped": 0.5}) == {"learned again in": "≥ 2"}
    assert tables.relearned({"relearn": float("nan"), "relearn_capped": float("nan")}) == {"learned again in": "–"}
    assert tables.relearned({}) == {}
    lost = [r.metrics for c, r in study.run("relearning").items() if c.setting == VERTICAL]
    assert all("vertical parties hold parts" in metrics["unsupported"] for metrics in lost)


def test_only_places_with_a_server_are_ranked_together(everywhere, study):
    ranked = results.with_a_server(everywhere)
    assert set(ranked.setting) == set(study.experiment.settings)
    assert set(everywhere.setting) - set(ranked.setting) == {BACKDOOR, RING, VERTICAL}


def test_the_tables_of_a_world_say_what_is_special_there(everywhere):
    def table(place, request):
        rows = everywhere[everywhere.setting == place].copy()
        rows.loc[rows.method == AGAIN, "klom_forget"] = rows.floor.max()  # four models are few for a control
        rows.loc[rows.method.isin(results.MUST_FAIL), "low"] = 1e9
        return tables.request_table(rows, place, request)

    assert {"backdoor %", "learned again in"} <= set(table(BACKDOOR, "client-1"))
    assert "backdoor %" not in table(RING, "class-0")
    remark = table(RING, "class-0").set_index("method").remark["PDUDT"]
    assert "PDUDT forgets whole clients" in remark


def test_the_picture_of_the_worlds_hides_nothing(everywhere):
    rows = everywhere[everywhere.setting.isin([BACKDOOR, RING, VERTICAL])].copy()
    rows.loc[rows.method == AGAIN, "klom_forget"] = rows.floor.max()
    rows.loc[rows.method.isin(results.MUST_FAIL), "low"] = 1e9
    with style():
        fig = figures.worlds_figure(rows)
    assert [ax.get_title().split(": ")[0] for ax in fig.axes] == ["a backdoor", "peers on a ring", "vertical parties"]
    for ax, place in zip(fig.axes, (BACKDOOR, RING, VERTICAL), strict=True):
        names = [label.get_text().removesuffix(" →") for label in ax.get_yticklabels()]
        there = rows[(rows.setting == place) & rows.klom_forget.notna()]
        assert sorted(names) == sorted(results.shown(name) for name in there.method)
    assert faults(fig) == []
    for ax in fig.axes:
        assert ax.title.get_window_extent().width <= ax.get_window_extent().width
    plt.close(fig)
