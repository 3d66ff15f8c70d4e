"""What certified DFL's figures and tables show, on a tiny decentralised federation that is run once."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from fu_papers.certified_dfl import figures, further_figures, results, show, tables, titles
from fu_papers.certified_dfl.grid import CHOICES, CHOICES_OF, WHOLE_CLIENTS, Place, granularity
from fu_papers.controls import AGAIN, DESTROYED
from fu_papers.lab.store import RecordStore
from fu_papers.lab.task import single_threaded
from fu_papers.look import colour, mean_spread, published, show_table, style
from fu_papers.problem_figures import spread_or_dash
from fu_papers.study import Cell, Study, wide
from tests.certified_dfl_lab import CONVEX, NET, cell, experiment
from tests.pictures import alike, below, covered, faults, overprinted

TINY = experiment(
    splits=["iid"], seeds=[0, 1], lr_decay=[1.0, 1.0], printed_curvature=["diagonal_fisher"] * 2, damping=[0.01, 0.01],
    edge_probability=0.6, epsilons=[1.0, 10.0],
)  # fmt: skip
REQUESTS = TINY.requests()
NAMES = [titles.SHOWN[method] for method in tables.ROWS]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    study = Study(TINY, RecordStore(tmp_path_factory.mktemp("certified_dfl")), jobs=1)
    with single_threaded():
        made = SimpleNamespace(
            descriptions=study.run("settings"),
            unlearnings=study.run("unlearning"),
            curves=study.run("curves"),
            speeds=study.run("timing"),
            certificates=study.run("certificates"),
        )
    made.runs = wide(results.of_runs(made.unlearnings))
    return made


def metric(tiny, place, request, method, name):
    return [tiny.unlearnings[cell(place, seed, REQUESTS[request], method)].metrics[name] for seed in TINY.seeds]


def shown(values, digits=1):
    return mean_spread(values, digits).rpartition(" (n=")[0]


# --- the frame ---


def test_differences_are_to_the_retrain_of_the_same_place_request_and_seed(tiny):
    assert len(tiny.runs) == len(tiny.unlearnings)
    assert tiny.runs.test_retrain.notna().all()
    for row in tiny.runs.itertuples():
        retrained = Cell("tables", row.setting, row.seed, row.request, "Retrain", condition=row.condition)
        retrain = tiny.unlearnings[retrained].metrics
        assert row.test_retrain == retrain["test"]
        assert row.delta_forget == pytest.approx(abs(row.forget - retrain["forget"]))
        assert row.delta_auc_off == pytest.approx(abs(abs(row.auc - 0.5) - abs(retrain["auc"] - 0.5)))
        if row.request == REQUESTS["class"]:
            assert row.delta_removed == pytest.approx(abs(row.removed - retrain["removed"]))
        else:
            assert np.isnan(row.delta_removed)


def test_the_ablation_is_compared_with_the_sample_wise_retraining(tiny):
    choices = tiny.runs[tiny.runs.group == "choices"]
    assert set(choices.label) == set(CHOICES)
    assert set(choices.request) == {REQUESTS["sample"]}
    assert choices.test_retrain.notna().all()


def test_only_du_has_a_curvature(tiny):
    assert set(tiny.runs[tiny.runs.curvature.notna()].method) == {"DU", "DU printed"}
    assert set(tiny.runs[tiny.runs.method == "PDUDT"].curvature) == {None}  # its own is another thing


def test_what_is_saved_names_places_granularities_and_a_label_for_every_row(tiny):
    saved = results.saved(tiny.runs)
    head = ["group", "request", "label", "method", "dataset", "split", "topology", "seed", "curvature"]
    assert list(saved)[:9] == head
    assert "record" not in saved
    for (c, record), row in zip(tiny.unlearnings.items(), saved.itertuples(), strict=True):
        assert Place(row.dataset, row.split, row.topology) == Place.of(c)
        assert (row.group, row.request, row.seed) == (c.group, granularity(c.request), c.seed)
        assert row.label == (c.label if c.group in ("choices", "nets") else c.method)
        assert row.test == record.metrics["test"]
    assert list(saved)[-1] == "delta_kl"


# --- tables ---


def test_a_table_warns_where_its_controls_come_out_wrong():
    place = TINY.main(TINY.datasets[0])
    where = {"setting": place.setting, "condition": place.topology, "group": "tables", "request": "client-0"}
    good = {"Original": (9.0, 0.0), "Retrain": (0.0, 0.0), AGAIN: (1.0, 1.0), DESTROYED: (50.0, 60.0)}

    def caption(**change):
        rows = [
            {**where, "method": method, "delta_forget": gap, "delta_test": off, "test": 80 - off, "test_retrain": 80.0}
            for method, (gap, off) in {**good, **change}.items()
        ]
        return show.warned_of("Client-wise", pd.DataFrame(rows), "client", [place])

    assert caption() == "Client-wise"
    assert "cannot tell who forgets" in caption(**{AGAIN: (9.5, 1.0)})


def test_tables_1_to_4_have_both_ends_and_the_spread_of_their_own_runs(tiny):
    for request in ("sample", "class"):
        for split in TINY.splits:
            table = tables.tables_1_to_4(TINY, tiny.runs, request, split)
            assert table["method"].tolist() == NAMES * 4
            assert not any(name.startswith("paper: ") for name in table)  # digits is none of the paper's sets
            assert ("removed class %" in table) == (request == "class")
            graphs = table.set_index(["data set, net", "graph", "method"])
            place = Place(NET, split, "erdos_renyi")
            row = graphs.loc["Digits, MLP", "Erdős–Rényi", "DU, corrected"]
            accuracy = row["test acc. %, all classes" if request == "class" else "test acc. %"]
            assert accuracy == shown(metric(tiny, place, request, "DU", "test"))
            assert row["before fine-tuning"] == shown(metric(tiny, place, request, "DU", "before_test"))
            assert row["MIA AUC"] == shown(metric(tiny, place, request, "DU", "auc"), 3)
            assert row["distance to Retrain (do nothing: 1)"] == shown(metric(tiny, place, request, "DU", "gap"), 2)


def test_what_does_not_exist_is_a_dash(tiny):
    table = tables.tables_1_to_4(TINY, tiny.runs, "sample", "iid").set_index("method")
    for method in ("do nothing (Original)", "Retrain"):  # no round of fine-tuning, no step
        assert set(table.loc[method, "before fine-tuning"]) == {"–"}
        assert set(table.loc[method, "length of the step / of the model"]) == {"–"}
    assert spread_or_dash(pd.Series([1.0, np.nan])) == "–"
    assert tables.few(pd.Series([], dtype=float)) == "–"
    assert "nan" not in show_table(tables.tables_1_to_4(renamed(), mnist(tiny), "class", "iid"), "s").data


def mnist(tiny):
    """The runs, as if the convex data set had been MNIST."""
    convex = {p.setting: p._replace(dataset="mnist/unit_softmax").setting for p in TINY.places() if p.dataset == CONVEX}
    return tiny.runs.replace({"setting": convex})


def renamed():
    return TINY.changed(datasets=["mnist/unit_softmax", NET])


def test_the_papers_numbers_stand_beside_ours_where_the_data_are_the_papers(tiny):
    table = tables.tables_1_to_4(renamed(), mnist(tiny), "class", "iid")
    columns = list(table)
    ours = "test acc. %, all classes"
    assert columns[columns.index(ours) + 1] == f"paper: {ours}"
    rows = table.set_index(["data set, net", "graph", "method"])[f"paper: {ours}"]
    assert rows["MNIST, softmax regression", "ring", "Retrain"] == "77.71 ± 0.04"
    assert rows["MNIST, softmax regression", "Erdős–Rényi", "DU, as printed"] == "84.00 ± 0.14"
    assert rows.notna().sum() == 4


def test_every_published_row_is_found_and_nothing_else():
    found = [
        tables.papers_row(request, split, topology, f"{dataset}/tiny_cnn", method)
        for request, split in tables.PAPER_TABLES
        for topology in ("ring", "erdos_renyi")
        for dataset in ("mnist", "fashion_mnist", "cifar10")
        for method in ("Retrain", "DU printed")
    ]
    assert all(len(row) == 2 for row in found)
    wanted = pd.concat([published("certified_dfl", f"table_{n}") for n in ("i", "ii", "iii", "iv")])
    means = sorted(float(row["paper: MIA acc. %"].split(" ± ")[0]) for row in found)
    assert means == pytest.approx(sorted(wanted.mia_acc_mean))
    here = ("sample", "iid", "ring", "mnist/unit_softmax", "Retrain")
    for place, wrong in ((0, "client"), (1, "dirichlet-0.1"), (2, "star"), (3, "digits/mlp"), (4, "DU")):
        assert tables.papers_row(*here[:place], wrong, *here[place + 1 :]) == {}


def test_client_and_choices_tables(tiny):
    client = tables.client_table(TINY, tiny.runs)
    assert client["method"].tolist() == [*NAMES, titles.SHOWN["PDUDT"]] * 2
    forgotten = metric(tiny, TINY.main(NET), "client", "DU printed", "forget")
    assert client["forgotten data %"].iloc[-3] == shown(forgotten)
    choices = tables.choices_table(TINY, tiny.runs)
    assert choices["variant"].tolist()[:6] == [*NAMES[:4], "DU, as printed", "DU, corrected"]
    assert len(choices) == 5 + len(CHOICES)
    assert choices["distance to Retrain (do nothing: 1)"][1] == "0.00 ± 0.00"
    corrected = tiny.runs[(tiny.runs.group == "choices") & (tiny.runs.label == "corrected")]
    assert choices["passes"][5] == f"{(corrected.images + 2 * corrected.products).mean():,.0f}"
    printed = results.cell_runs(tiny.runs, TINY.main(CONVEX), "sample", "DU printed")
    assert choices["passes"][4] == f"{(printed.images + 2 * printed.products).mean():,.0f}"
    assert TINY.net_choices == ["sample", "class"]
    for kind, choices in CHOICES_OF.items():
        nets = tables.net_choices_table(TINY, tiny.runs, kind)
        assert len(nets) == (len(NAMES) - 1 + len(choices)) * len(TINY.splits)  # no row of fine-tuning alone
        assert ("removed class %" in nets) == (kind == "class")
        mine = tiny.runs[(tiny.runs.group == "nets") & (tiny.runs.request.map(granularity) == kind)]
        last = mine[mine.setting == TINY.on_last_graph(NET)[-1].setting].iloc[-1]
        assert nets["variant"].iloc[-1] == last.label
        assert nets["before fine-tuning"].iloc[-1] == spread_or_dash(pd.Series([last.before_test]))


# --- Fig. 1 ---


def test_curves_have_a_panel_per_data_set_and_request_and_a_line_per_method(tiny):
    with style():
        fig = figures.curves_figure(TINY, tiny.curves)
    assert len(fig.axes) == 4
    for ax, requests, methods in zip(fig.axes, (3, 3, 1, 1), (4, 4, 5, 5), strict=True):
        # training, doing nothing; a line and its thin end per method and request; a mark per request
        assert len(ax.lines) == 2 + requests * (2 * methods + 1)
        assert sum(text.get_text().startswith("request") for text in ax.texts) == requests
    K = TINY.rounds[0]
    marks = [line.get_xdata()[0] for line in fig.axes[0].lines if line.get_color() == "#555555"]
    assert marks == [K, 2 * K, 3 * K]  # Retrain's phases are the longest, all others start where they do
    assert fig.axes[0].get_xlim() == (0, 4 * K)
    for ax in fig.axes:  # whole rounds, where something happens
        assert [float(tick) % 1 for tick in ax.get_xticks()] == [0] * len(ax.get_xticks())
    assert fig.axes[0].get_xticks().tolist() == [0, K, 2 * K, 3 * K, 4 * K]
    trained = [path[0] for path in results.paths(tiny.curves, CONVEX, "sample")["Retrain"]]
    (line,) = (
        line for line in fig.axes[0].lines if line.get_xdata()[0] == trained[0][0][0] and len(line.get_xdata()) > 2
    )
    assert line.get_ydata().tolist() == pytest.approx(
        [np.mean([p[t][1] for p in trained]) for t in range(len(trained[0]))]
    )
    band = fig.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    every = [accuracy for path in trained for _, accuracy in path]
    assert (band.min(), band.max()) == pytest.approx((min(every), max(every)))
    (legend,) = fig.legends
    labels = [text.get_text() for text in legend.get_texts()]
    methods = ("Original", "Retrain", "Fine-tune", "DU printed", "DU", "PDUDT")
    assert {titles.IN_CURVES[m] for m in methods} <= set(labels)


def test_curves_table_says_when_retrains_accuracy_is_reached(tiny):
    table = tables.curves_table(TINY, tiny.curves)
    assert len(table) == 2 * (5 + 6)
    row = table[(table["method"] == "Retrain")].iloc[0]
    assert row["rounds run"] == "6"
    paths = results.paths(tiny.curves, CONVEX, "sample")["Retrain"]
    assert [[len(phase) for phase in path] for path in paths] == [[6, 7, 7, 7]] * row["seeds"]
    assert row["seeds"] == len(TINY.seeds)
    ends = [path[3][-1][1] for path in paths]
    assert row["after these rounds %"].split(" / ")[-1] == f"{sum(ends) / len(ends):.1f}"
    points = [(0, 10.0), (1, 88.9), (2, 89.0)]
    assert results.rounds_to_reach(points, 90) == 2
    assert results.rounds_to_reach(points, 95) is None
    assert results.needed_rounds([points, points], [90, 90]) == "2"
    assert results.needed_rounds([points, points], [90, 10]) == "0 to 2"
    assert results.needed_rounds([points, points], [90, 95]) == "not within 2 (1 of 2)"
    assert results.needed_rounds([points, points], [95, 95]) == "not within 2"
    assert tables._listed(["1", "0", "0"]) == "1 / 0 / 0"
    assert tables._listed(["5", "5"]) == "5"


# --- Fig. 2 ---


def test_times_are_written_beside_their_dots_and_compared_with_the_papers(tiny):
    with style():
        fig = figures.time_figure(TINY, tiny.speeds)
    dots = [[line for line in ax.lines if line.get_marker() == "o"] for ax in fig.axes]
    assert [len(found) for found in dots] == [6, 6, 8]  # PDUDT forgets whole clients only
    assert not any(ax.patches for ax in fig.axes)  # a bar's length means nothing on a log scale
    assert faults(fig) == []
    assert all(ax.get_xscale() == "log" for ax in fig.axes)
    seconds = tiny.speeds[CONVEX, "sample"].metrics["seconds"]
    assert dots[0][0].get_xdata()[0] == seconds["Retrain"]
    assert fig.axes[0].texts[0].get_text() == figures._seconds(seconds["Retrain"])
    table = tables.time_table(TINY, tiny.speeds)
    assert len(table) == 2 * 6
    row = table[table["method"] == "DU, as printed"].iloc[0]
    assert row["paper: saved %"] == "97"
    of_net = table[table["data set, net"] == table["data set, net"].iloc[-1]].set_index("method")["curvature from"]
    assert of_net[["DU, as printed", "DU, corrected", "Retrain"]].tolist() == ["5 samples a client", "20 samples", "–"]
    assert set(table[table["method"].str.startswith("DU")]["curvature from"].iloc[:2]) == {"all samples"}
    assert row["saved, sample-wise %"] == f"{100 * (1 - seconds['DU printed'] / seconds['Retrain']):.1f}"
    assert table["client-wise, s"].iloc[0] == "–"  # nothing is timed where nothing is done
    assert figures._saved({"Retrain": 1.0, "DU": 1.5}, "DU") == "50 % more"
    assert [figures._seconds(value) for value in (0.123, 2.0, 123.4)] == ["0.12 s", "2.0 s", "123 s"]


# --- the certificate ---


def test_certificates_show_noise_accuracy_and_refusals(tiny):
    table = tables.certificate_table(TINY, tiny.certificates)
    assert len(table) == 4 + 2 * len(TINY.epsilons)
    assert table["model"].tolist()[:2] == ["do nothing (Original)", "exact retraining"]
    printed = table[(table["model"] == "DU, as printed") & (table["ε"] == "1")].iloc[0]
    assert printed["released"] == "2 of 2"
    frame = results.releases(tiny.certificates)
    one = frame[frame.form == "printed"].iloc[0]
    record = tiny.certificates[one.place, one.kind, one.seed]
    assert one.ratio == pytest.approx(one.sigma * np.sqrt(640) / record.metrics["length"])


def test_every_cell_has_a_row_and_requests_in_a_row_compose(tiny):
    table = tables.certified_cells_table(TINY, tiny.certificates, 1.0)
    places = [place for place in TINY.places() if place.dataset == CONVEX]
    assert len(table) == len(TINY.certified()) * len(places)
    assert set(table["released"]) == {"2 of 2", "4 of 4", "6 of 6"}  # two of four clients can leave
    assert (table["to exact retraining (do nothing: 1)"].str.split().str[0].astype(float) < 1).all()
    together = table.set_index("request")["ε of all releases"]
    assert set(together["sample-wise"]) == {"1"}
    assert (together["samples, in turn"].astype(float).between(1.5, 2.5)).all()  # and not 3
    assert (together["classes, in turn"].astype(float).between(1.5, 2.5)).all()
    assert (together["clients, in turn"].astype(float).between(1.2, 1.7)).all()  # two of them


def test_a_refusal_has_no_noise_and_no_accuracy(tiny):
    def refuse(entry):
        return {name: entry[name] for name in ("epsilon", "form", "request")} | {"released": False, "reason": "too far"}

    refused = {
        where: replace(record, rounds=[refuse(x) if x["form"] == "corrected" else x for x in record.rounds])
        for where, record in tiny.certificates.items()
    }
    table = tables.certificate_table(TINY, refused)
    rows = table[table["model"].str.startswith("DU, corrected") & (table["ε"] != "no noise")]
    assert set(rows["released"]) == {"refused"}
    assert set(rows["test acc. %"]) == set(rows["noise σ"]) == {"–"}
    with style():
        assert len(figures.certificate_figure(TINY, refused).axes) == 3
        fig = figures.certificate_figure(TINY, tiny.certificates)
    assert [ax.get_yscale() for ax in fig.axes] == ["linear", "log", "log"]
    fig.draw_without_rendering()
    assert [*covered(fig), *overprinted(fig), *alike(fig), *below(fig)] == []


def test_newtons_steps_are_shown_per_kind_of_request_and_who_has_arrived_stays(tiny):
    with style():
        fig = figures.certificate_figure(TINY, tiny.certificates)
    ax = fig.axes[2]
    every = results.served(tiny.certificates)
    kinds = [kind for kind in figures.KIND_LOOKS if any(every[every.kind == kind].steps.map(bool))]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [titles.SERVED[kind] for kind in kinds]
    l2 = TINY.of_dataset("l2", CONVEX)
    lines = [line for line in ax.lines if line.get_marker() != "None"]
    for kind, line in zip(kinds, lines, strict=True):
        steps = [steps for steps in every[every.kind == kind].steps if steps]
        start = np.exp(np.mean([np.log(one[0]["before"] / l2) for one in steps]))
        end = np.exp(np.mean([np.log(one[-1]["after"] / l2) for one in steps]))
        assert line.get_ydata()[[0, -1]] == pytest.approx([start, end])
        assert len(line.get_ydata()) == 1 + max(map(len, steps))


def test_numbers_of_any_size_keep_two_digits():
    assert tables.few(pd.Series([0.05, 0.06])) == "0.055 ± 0.007"
    assert tables.few(pd.Series([3.0])) == "3.0"
    assert tables.few(pd.Series([8.5e7, 8.5e7])) == "(8.5 ± 0.0) · 10⁷"
    assert tables.few(pd.Series([2e-6])) == "2.0 · 10⁻⁶"
    assert tables.few(pd.Series([0.0, 0.0])) == "0.0 ± 0.0"


# --- storage, graphs ---


def test_storage_by_formula_is_what_was_counted(tiny):
    table = tables.storage_table(TINY, tiny.descriptions, tiny.runs)
    convex = table[table["data set, net"] == "Digits, softmax regression"].set_index("what is kept")
    kind = "diagonal Fisher (DU)"
    assert convex.loc[kind, "by formula"] == convex.loc[kind, "counted in our runs"]
    assert convex.loc["Hessian (DU)", "counted in our runs"] == "–"  # solved by products
    assert convex.loc["Hessian (DU)", "models' worth"] == "640"
    assert convex.loc["nothing (do nothing, Retrain)", "counted in our runs"] == "0 B"
    degree = results.graph_of(tiny.descriptions[TINY.main(CONVEX)], 4).degree[TINY.leaving]
    assert convex.loc["models and gradients (PDUDT)", "models' worth"] == str(TINY.rounds[0] * degree)
    # models and gradients of everybody, every round
    assert convex.loc["models and gradients (PDUDT)", "counted in our runs"] == tables.in_bytes(
        2 * TINY.rounds[0] * 4 * 640 * 4
    )
    assert [tables.in_bytes(size) for size in (0, 2560, 4.99e14)] == ["0 B", "2.56 kB", "499 TB"]


def test_traffic_is_what_was_counted_and_retraining_is_rounds_times_links(tiny):
    table = tables.traffic_table(TINY, tiny.descriptions, tiny.runs).set_index(["data set, net", "request"])
    here = table.loc[("Digits, softmax regression", "client-wise")]
    links = tiny.descriptions[TINY.main(CONVEX)].metrics["links"]
    assert here["Retrain"] == str(TINY.rounds[0] * links)
    assert (
        here["DU, as printed"] == f"{metric(tiny, TINY.main(CONVEX), 'client', 'DU printed', 'bytes')[0] / 2560:,.0f}"
    )
    assert table.loc[("Digits, softmax regression", "sample-wise"), "PDUDT (reconstruction)"] == "–"


def test_every_run_that_removed_a_class_is_a_dot_where_its_accuracy_is(tiny):
    with style():
        fig = figures.removed_class_figure(TINY, tiny.runs)
    assert faults(fig) == []
    assert len(fig.axes) == len(TINY.splits) * len(TINY.datasets)
    names = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    for ax, (split, dataset) in zip(fig.axes, itertools.product(TINY.splits, TINY.datasets), strict=True):
        drawn = sorted((names[round(y)], x) for line in ax.lines for x, y in zip(*line.get_data(), strict=True))
        places = [place for place in TINY.places() if (place.dataset, place.split) == (dataset, split)]
        shown = ("Original", "Fine-tune", "DU printed", "DU", "Retrain")
        expected = [
            (titles.SHOWN[method], x)
            for place, method in itertools.product(places, shown)
            for x in metric(tiny, place, "class", method, "removed")
        ]
        assert drawn == sorted(expected)


def test_at_equal_utility_every_way_begins_after_the_step_and_ends_after_its_round(tiny):
    """Planted: two seeds on either side of Retrain; a step that ruins the net and a round that repairs it."""
    runs = tiny.runs.assign(test_retrain=80.0, forget_retrain=50.0, test=81.0, forget=54.0, before_test=82.0)
    runs["before_forget"] = runs.forget
    ruined = runs.method == "DU printed"
    runs.loc[ruined, ["before_test", "before_forget", "test", "forget"]] = [60.0, 20.0, 79.0, 52.0]
    of_both = runs.method.isin(("DU", AGAIN))
    runs.loc[of_both & (runs.seed == 0), ["forget", "before_forget"]] = [49.0, 46.0]
    runs.loc[of_both & (runs.seed == 1), ["forget", "before_forget"]] = [54.0, 48.0]
    runs["delta_test"], runs["delta_forget"] = (runs.test - 80).abs(), (runs.forget - 50).abs()
    with style():
        fig = further_figures.utility_matched_figure(TINY, runs)
    for ax, (kind, _) in zip(fig.axes, itertools.product(REQUESTS, TINY.datasets), strict=True):
        ways = {line.get_color(): line.get_xydata().tolist() for line in ax.lines if len(line.get_xdata()) == 2}
        expected = {"Fine-tune": [[-2, 4], [-1, 4]], "DU printed": [[20, -30], [1, 2]], "DU": [[-2, -3], [-1, 1.5]]}
        expected |= {WHOLE_CLIENTS: [[-2, 4], [-1, 4]]} if kind == "client" else {}  # which serves no other request
        assert ways == {colour(method): way for method, way in expected.items()}
        ends = {line.get_label(): line.get_xydata().tolist() for line in ax.lines if len(line.get_xdata()) == 1}
        assert ends[titles.SHOWN["Retrain"]] == [[0, 0]]
        assert ends[titles.SHOWN["Original"]] == [[-1, 4]]
        assert {titles.SHOWN[method] for method in expected} <= set(ends)
        (floor,) = ax.patches
        assert [*floor.get_xy(), floor.get_width(), floor.get_height()] == [-1, -2.5, 2, 5]  # of one and four points


def test_the_picture_at_equal_utility_is_a_good_one(tiny):
    with style():
        fig = further_figures.utility_matched_figure(TINY, tiny.runs)
    assert faults(fig) == []
    assert below(fig) == []
    where = f"IID, {titles.topology_title(TINY.topologies[-1])}"
    assert f"(PDUDT: {TINY.pdudt_rounds[0]}); means over 2 seeds; {where}" in fig.get_label()


def test_a_data_set_at_the_main_place_alone_leaves_the_other_panels_of_removed_classes_empty(tiny):
    few = TINY.changed(splits=["iid", "dirichlet-0.3"], main_only=[NET])
    with style():
        fig = figures.removed_class_figure(few, tiny.runs)
    *_, whole, empty = fig.axes
    assert not empty.axison
    assert [bool(ax.get_xlabel()) for ax in fig.axes[:2]] == [False, True]  # the lowest of a column
    assert {line.get_markerfacecolor() for line in fig.axes[1].lines} & {"none"} == set()  # the first graph is hollow
    assert whole.axison


def test_networks_and_labels_are_those_described(tiny):
    with style():
        fig = figures.network_figure(TINY, tiny.descriptions)
        labels = figures.labels_figure(TINY, tiny.descriptions, NET)
    assert fig.axes[0].get_title() == "ring, 4 links"
    fig.draw_without_rendering()
    for ax in fig.axes:
        (dots,) = (c for c in ax.collections if isinstance(c, PathCollection))
        radius = 0.5 * np.sqrt(dots.get_sizes().max()) * fig.dpi / 72
        frame = ax.get_window_extent().padded(-radius)
        assert all(frame.contains(*at) for at in ax.transData.transform(dots.get_offsets()))  # none is cut off
    assert len(labels.axes) == 2 * len(TINY.splits)  # with a colour bar each
    assert isinstance(labels, Figure)
    assert titles.source(tiny.descriptions).count("net: ") == 2
    assert titles.source(tiny.descriptions, [NET]).endswith("net: mlp")
