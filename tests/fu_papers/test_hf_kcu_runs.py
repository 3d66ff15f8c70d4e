"""HF-KCU's runs on a tiny federation: what they measure, that they do what the library does, and what is drawn."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from fu_core.errors import NumericalFailure
from fu_core.federation.horizontal import fedavg
from fu_core.federation.meter import Meter
from fu_core.streams import stream_seed
from fu_core.unlearning.baselines.fed_eraser import UpdateHistory, fed_eraser
from fu_core.unlearning.baselines.naive_ga import naive_ga
from fu_core.unlearning.baselines.sisa import shard_clients, sisa_train, sisa_unlearn
from fu_core.unlearning.hf_kcu import HFKCU
from fu_core.unlearning.hf_kcu import hf_kcu as library_hf_kcu
from fu_papers.convex import data_hash as convex_hash
from fu_papers.hf_kcu import claims as hf_kcu_claims
from fu_papers.hf_kcu import figures as hf_kcu_figures
from fu_papers.hf_kcu import runs as hf_kcu
from fu_papers.hf_kcu import theory as hf_kcu_theory
from fu_papers.hf_kcu.grid import ABLATIONS, CHOICES, METHODS, REFERENCES, TARGET, Cell, Experiment
from fu_papers.lab.context import RunContext
from fu_papers.lab.store import RecordStore
from fu_papers.lab.task import single_threaded
from fu_papers.look import style
from fu_papers.problems import client_opt, problem
from fu_papers.verdicts import VERDICTS

MAIN, OTHER, NET = "digits/dirichlet-0.5/softmax_regression", "digits/iid/softmax_regression", "digits/iid/tiny_cnn"
TINY = Experiment(
    "test", [MAIN, OTHER], [NET], seeds=[0, 1], sweep_seeds=[0], clients=4, n_train=80, n_test=100, n_attacker=80,
    rounds=4, epochs=2.0, batch_size=10, lr=0.1, curvature_samples=20, iters_sweep=[2, 10], dampings=[0.1, 0.01],
    betas=[0.01], alphas=[0.5, 1.0], client_counts=[4, 6], shadows=2, shards=2, ga_epochs=2, nets_n_train=40,
    nets_n_test=40, nets_rounds=1, nets_curvature_samples=8,
)  # fmt: skip


def run(store, function, config):
    with single_threaded():
        return store.run(function, config, data_hash=problem(config).data_hash)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    store = RecordStore(tmp_path_factory.mktemp("hf_kcu"))
    with single_threaded():
        made = SimpleNamespace(store=store, descriptions=hf_kcu.run_descriptions(TINY, store))
        made.trainings = hf_kcu.run_training(TINY, store, 1)
        made.shadows = hf_kcu.run_shadows(TINY, store, 1)
        made.unlearnings = hf_kcu.run_unlearning(TINY, store, 1)
        made.floor = hf_kcu.run_noise_floor(TINY, store, 1)
        made.residuals = hf_kcu.run_residuals(TINY, store, 1)
        made.speeds = hf_kcu.run_speed(TINY, store)
    made.runs = hf_kcu_figures.tidy(made.unlearnings)
    return made


def cell(tiny, method, group="methods", label=None, seed=0):
    return tiny.unlearnings[Cell(group, label or method, MAIN, seed, method)]


def weights(tiny, exclude=(), seed=0):
    return hf_kcu.model_of(TINY.training(MAIN, seed), tiny.store, exclude)


# --- trainings ---


def test_retraining_never_sees_the_target_and_starts_where_the_original_started(tiny):
    config = TINY.training(MAIN, 0)
    p = problem(config)
    spoilt = [(torch.zeros_like(x) if i == TARGET else x, y) for i, (x, y) in enumerate(p.clients)]
    start = p.model.init(stream_seed(0, "init"))
    kwargs = {"rounds": TINY.rounds, "local": client_opt(config), "seed": 0}
    with single_threaded():
        assert torch.equal(fedavg(p.model, start, spoilt, exclude=[TARGET], **kwargs), weights(tiny, [TARGET]))
        assert torch.equal(fedavg(p.model, start, p.clients, **kwargs), weights(tiny))


def test_a_training_that_was_interrupted_ends_in_the_same_bits_with_the_same_history(tiny, tmp_path, monkeypatch):
    config = TINY.training(MAIN, 0)
    whole = tiny.store.tensors(run(tiny.store, hf_kcu.train, config).key)
    checkpoint = RunContext.checkpoint

    def dies(self, tensors, meta):
        checkpoint(self, tensors, meta)
        if meta["round"] == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunContext, "checkpoint", dies)
    store = RecordStore(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(store, hf_kcu.train, config)
    monkeypatch.setattr(RunContext, "checkpoint", checkpoint)
    resumed = store.tensors(run(store, hf_kcu.train, config).key)
    assert resumed.keys() == whole.keys()
    assert {name.split("/")[1] for name in whole if name != "w"} == {"1", "3"}  # every second round
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_the_poisoned_training_differs_and_is_judged_on_clean_images(tiny):
    clean, poisoned = cell(tiny, "Original"), cell(tiny, "Original", "backdoor")
    assert poisoned.metrics["asr"] != clean.metrics.get("asr")
    p = problem(TINY.training(MAIN, 0))
    clients = hf_kcu.training_clients(TINY.training(MAIN, 0, **TINY.poisoned()), p)
    changed = (clients[TARGET][0] != p.clients[TARGET][0]).flatten(1).any(dim=1)
    assert 0 < int(changed.sum()) <= round(0.5 * len(changed))
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(clients[1:], p.clients[1:], strict=True))


def test_the_attacker_has_no_image_of_the_federation(tiny):
    p = problem(TINY.training(MAIN, 0))
    ours = {x.numpy().tobytes() for x in p.dataset.x_train}
    theirs = [x.numpy().tobytes() for x in p.validation[0]]
    assert sum(image in ours for image in theirs) <= 1  # digits itself holds a twin or two
    kept = tiny.store.tensors(tiny.shadows[0].key)
    assert len(kept["members"]) == len(kept["others"]) == 40


# --- unlearning ---


def test_original_and_retrain_are_the_two_ends(tiny):
    for seed in TINY.seeds:
        original, retrain = (cell(tiny, method, seed=seed).metrics for method in REFERENCES)
        assert original["step"] == 0
        assert retrain["gap"] == 0
        assert retrain["kl"] == pytest.approx(0, abs=1e-9)
        assert retrain["agreement"] == 100
        assert original["gap"] > 0
        assert original["images"] == original["bytes"] == 0


@pytest.mark.parametrize("method", ["HF-KCU", "HF-KCU printed"])
def test_hf_kcu_is_the_librarys(tiny, method):
    record = cell(tiny, method)
    p, config = problem(record.config), HFKCU(**record.config["hf_kcu"])
    options = {name: value for name, value in vars(config).items() if value != getattr(HFKCU(), name)}
    meter = Meter()
    with single_threaded():
        w = library_hf_kcu(p.model, weights(tiny), p.clients, TARGET, seed=0, meter=meter, **options)
    gap = float((w - weights(tiny, [TARGET])).norm() / weights(tiny, [TARGET]).norm())
    assert record.metrics["gap"] == pytest.approx(gap, rel=1e-5)
    assert record.metrics["passes"] == meter.images + 2 * meter.products
    assert record.metrics["bytes"] == meter.bytes


def test_sisa_is_the_librarys_ensemble_bit_for_bit(tiny):
    config = cell(tiny, "SISA").config
    p = problem(config)
    kwargs = {"rounds": TINY.rounds, "local": client_opt(config), "seed": 0}
    groups = shard_clients(TINY.clients, TINY.shards, seed=0)
    with single_threaded():
        state = sisa_train(p.model, p.model.init(stream_seed(0, "init")), p.clients, shards=groups, **kwargs)
        after = sisa_unlearn(p.model, state, p.clients, [TARGET], **kwargs)
        ours, spent = hf_kcu._sisa(config, p, tiny.store)
    assert len(ours) == len(after.models)
    assert all(torch.equal(a, b) for a, b in zip(ours, after.models, strict=True))
    stay = next(group for group in groups if TARGET in group)
    assert spent["images"] == TINY.rounds * 2 * sum(len(p.clients[i][1]) for i in stay if i != TARGET)


def test_fed_eraser_replays_the_very_updates_of_the_original(tiny):
    config = cell(tiny, "FedEraser").config
    p, local = problem(config), client_opt(config)
    start = p.model.init(stream_seed(0, "init"))
    history = UpdateHistory(start, TINY.history_interval)
    with single_threaded():
        fedavg(p.model, start, p.clients, rounds=TINY.rounds, local=local, seed=0, on_updates=history.record)
        w = fed_eraser(p.model, history, p.clients, [TARGET], local=local, seed=0, norm_scope="layer")
    gap = float((w - weights(tiny, [TARGET])).norm() / weights(tiny, [TARGET]).norm())
    assert cell(tiny, "FedEraser").metrics["gap"] == pytest.approx(gap, rel=1e-5)


def test_an_exploded_net_still_gives_a_row(tiny):
    config = replace(TINY.for_nets(), ga_epochs=400).unlearning(NET, 0, "NaiveGA")
    p, w = problem(config), hf_kcu.model_of(config, tiny.store)
    ascent = {"epochs": 400, "lr": 0.1, "batch_size": 10, "seed": 0}
    with single_threaded(), pytest.raises(NumericalFailure):
        naive_ga(p.model, w, p.clients[TARGET], **ascent)
    metrics = run(tiny.store, hf_kcu.unlearn, config).metrics
    assert np.isfinite(list(metrics.values())).all()
    assert metrics["step"] > 1e3


# --- timings and floors ---


def test_timings_are_positive_and_passes_are_the_formulas(tiny):
    config, metrics = TINY.speeds()["main"], tiny.speeds["main"].metrics
    p = problem(config)
    sizes = [len(y) for _, y in p.clients]
    assert set(metrics["seconds"]) == {"retrain", *config["variants"], *config["baselines"]}
    assert min(metrics["seconds"].values()) > 0
    assert metrics["passes"]["retrain"] == TINY.rounds * TINY.epochs * sum(sizes[1:])
    assert metrics["passes"]["HF-KCU printed"] == sizes[0] + 2 * 10 * sizes[0]  # g, and ten products as two gradients
    assert metrics["passes"]["NaiveGA"] == TINY.ga_epochs * sizes[0]


def test_a_projection_scales_rounds_and_epochs(tiny):
    """The nets train 1 round of 2 epochs; the schedule has 4 of 2: four times what was timed."""
    metrics, rounds = tiny.speeds[NET].metrics, tiny.speeds[NET].rounds
    assert metrics["timed_rounds"] == len(rounds) == 1
    config = TINY.speeds()[NET]
    factor = config["schedule_rounds"] * config["schedule_epochs"] / config["epochs"]
    assert metrics["seconds"]["retrain"] == pytest.approx(factor * rounds[0]["seconds"])


def test_the_noise_floor_is_two_retrainings(tiny):
    (record,) = tiny.floor
    a, b = (weights(tiny, [TARGET], seed) for seed in (0, 1))
    assert record.metrics["gap"] == pytest.approx(float((a - b).norm() / b.norm()), rel=1e-5)
    assert record.metrics["kl"] > 0


def test_cg_curves_start_at_1_and_gauss_newton_falls(tiny):
    curves = tiny.residuals[0].metrics["curves"]
    assert set(curves) == {f"{matrix}/{client}" for matrix in ("hessian", "ggn") for client in (1, 2)}
    assert all(curve["residuals"][0] == 1 for curve in curves.values())
    assert curves["ggn/1"]["residuals"][-1] < 0.1
    assert curves["ggn/1"]["negative"] == 0


# --- tables and figures ---


def test_differences_are_to_the_retrain_of_the_same_training_and_seed(tiny):
    r = tiny.runs
    for row in r.itertuples():
        group = row.group if row.group in ("backdoor", "alpha", "clients", "nets") else "methods"
        label = row.label if group in ("alpha", "clients", "nets") else "Retrain"
        reference = tiny.unlearnings[Cell(group, label, row.setting, row.seed, "Retrain")].metrics
        assert row.test_retrain == reference["test"]
        assert row.delta_forget == pytest.approx(abs(row.forget - reference["forget"]))
    assert len(r) == len(tiny.unlearnings)


def test_every_table_has_retrain_doing_nothing_and_the_papers_numbers(tiny):
    e, r, speeds = TINY, tiny.runs, tiny.speeds
    one = hf_kcu_figures.table_1(e, r, speeds)
    assert list(one.method) == [hf_kcu_figures.shown(method) for method in (*REFERENCES, *METHODS)]
    by_formula = one.set_index("method")["CF by its formula"]
    assert by_formula.dropna().tolist() == pytest.approx([-61.67, -0.309, -2.082, 0.619], abs=5e-3)
    assert len(hf_kcu_figures.table_2(e, r, speeds)) == 3 * 3
    assert list(hf_kcu_figures.table_3(e, r, speeds)["paper: ASR %"].dropna()) == [84.35, 71.37, 9.64]
    assert len(hf_kcu_figures.table_4(e, r)) == 2 + len(ABLATIONS)
    assert len(hf_kcu_figures.choices_table(e, r)) == 2 + len(CHOICES)
    assert len(hf_kcu_figures.table_5(e, r, speeds)) == 2 + 2 * len(e.dampings)
    assert len(hf_kcu_figures.table_6(e, r, speeds)) == 3 * len(e.alphas)
    assert len(hf_kcu_figures.table_7(e, r, speeds)) == 3 * len(e.client_counts)
    parameters = {setting: record.metrics["parameters"] for setting, record in tiny.descriptions.items()}
    eight = hf_kcu_figures.table_8(e, speeds, parameters)
    assert eight["retraining timed"].tolist() == ["in full", "projected from 1 round(s)"]
    nine = hf_kcu_figures.table_9(e, r, tiny.floor)
    assert "two retrainings (floor)" in nine
    assert nine.set_index("metric")["paper's HF-KCU"]["output KL (nats)"] == "0.0023"


def test_every_figure_draws(tiny):
    with style():
        drawn = [
            hf_kcu_figures.forgetting_figure(TINY, tiny.runs),
            hf_kcu_figures.pareto_figure(TINY, tiny.runs, tiny.speeds),
            hf_kcu_figures.backdoor_figure(TINY, tiny.runs),
            hf_kcu_figures.sweeps_figure(TINY, tiny.runs),
            hf_kcu_figures.residual_figure(tiny.residuals),
        ]
    assert all(isinstance(figure, Figure) for figure in drawn)


def test_all_fifteen_claims_are_judged_from_named_records(tiny):
    theory = {
        fn.__name__: [run_theory(tiny.store, fn, **config) for config in configs]
        for fn, configs in (
            (hf_kcu_theory.exactness, [{"data": "diabetes", "split": "iid", "clients": 10, "seed": 0}]),
            (hf_kcu_theory.cg_convergence, [{"kappa": 10.0, "steps": 20, "seed": 0}]),
            (hf_kcu_theory.condition_number, [{"kappa": kappa, "seed": 0} for kappa in (10.0, 100.0, 1000.0)]),
            (hf_kcu_theory.perturbation, [{"draws": 20, "seed": 0}]),
        )
    }
    results = hf_kcu_claims.verdicts(TINY, tiny.runs, tiny.speeds, tiny.floor, theory)
    assert [result.id for result in results] == [f"H{number}" for number in range(1, 16)]
    assert all(result.verdict in VERDICTS[:3] and result.records and result.ours for result in results)
    found = {result.id: result.verdict for result in results}
    assert (found["H6"], found["H14"]) == ("holds", "holds")
    assert found["H12"] in ("does not hold", "holds in part")  # on ridge it never does


def run_theory(store, function, **config):
    return store.run(function, config, data_hash=convex_hash(config.get("data", "")))


def test_the_frame_has_no_row_without_a_reference(tiny):
    assert tiny.runs.test_retrain.notna().all()
    assert tiny.runs[tiny.runs.cf_defined].cf.notna().all()
    assert isinstance(tiny.runs, pd.DataFrame)
