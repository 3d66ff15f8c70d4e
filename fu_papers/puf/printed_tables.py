"""PUF's Tables III to VI as the paper prints them, its numbers beside ours, and stronger judges than it asks.

One row per method: controls first, then who unlearns; where methods are tuned, a second row has their own settings.
Every function takes the experiment and the frame of `results`; nothing here trains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from fu_core.unlearning.method import method as registered
from fu_papers.controls import FLOOR, Standing, wrong_controls
from fu_papers.evidence import completed, for_means
from fu_papers.lab.record import Record
from fu_papers.look import published
from fu_papers.problem_figures import spread
from fu_papers.problems import Setting
from fu_papers.puf.cost_model import BYTES_PER_PARAMETER, NOMINAL_FLOPS
from fu_papers.puf.grid import AGAIN, CONTROLS, OFFICIAL, PUBLISHED, Experiment, Scenario
from fu_papers.puf.results import rows_of

DASH = "–"
PAPERS = "paper: "  # before the heading of a column with the paper's numbers
# (scenario, kind of split) -> the nearest block of the paper: its table and its setting. No data set of ours is meant.
PAPER_SETTING = {
    ("clients", "iid"): ("iii", "CIFAR-100, IID, ResNet-18, E=1"),
    ("clients", "dirichlet"): ("iii", "CIFAR-10, Non-IID, ResNet-18, E=1"),
    ("long", "dirichlet"): ("iii", "CIFAR-100, Non-IID, ResNet-18, E=10"),
    ("samples", "iid"): ("iv", "CIFAR-100, IID, ResNet-18, E=1"),
    ("samples", "dirichlet"): ("iv", "CIFAR-100, Non-IID, ResNet-18, E=1"),
    ("pairs", "dirichlet"): ("v", "Multiple Unlearning, CIFAR-100, Non-IID, ResNet-18, E=1"),
    ("transformer", "dirichlet"): ("iii", "CIFAR-100, Non-IID, MiT-B0, E=1"),
    ("segmentation", "site"): ("vi", "ProstateMRI, U-NET"),
}
# The same for a data set and net that the paper has, too, where another block than the above is theirs.
SAME_DATA = {
    ("clients", "dirichlet", "cifar100"): ("iii", "CIFAR-100, Non-IID, ResNet-18, E=1"),
    ("pairs", "dirichlet", "cifar100", "mit_b0_224"): (
        "v",
        "Multiple Unlearning, CIFAR-100, Non-IID, MiT-B0, E=1",
    ),
}
# Where a block is shown that stands beside none of our settings.
SCENARIO_OF = {
    **{place: scenario for (scenario, _), place in PAPER_SETTING.items()},
    **{place: scenario for (scenario, *_), place in SAME_DATA.items()},
}
# our name -> heading, the published tables' name
ACCURACIES = {
    "forget": ("forget acc. % (Δ)", "forget_acc"),
    "song": ("MIA Song % (Δ)", "mia_song"),
    "yeom": ("MIA Yeom % (Δ)", "mia_yeom"),
}
ON_MASKS = {"forget": ("forget Dice % (Δ)", "forget_acc"), "loss": ("forget loss (Δ)", "forget_loss")}
COSTS = {
    "bytes": ("comm. bytes (×)", "comm_bytes", "comm_gain"),
    "images": ("FLOPs (×)", "comp_flops", "comp_gain"),
    "storage": ("storage bytes (×)", "storage_bytes", "storage_gain"),
}
# name -> heading, digits, is a difference to Retrain shown?
STRONGER = {
    "kl_forget": ("KL on forget set", 3, False),
    "agreement_forget": ("agreement on forget set %", 1, False),
    "distance": ("distance / |Original − Retrain|", 2, False),
    "shadow": ("shadow attack % (Δ)", 1, True),
    "shadow_auc": ("its AUC % (Δ)", 1, True),
    "threshold_auc": ("loss attack, AUC % (Δ)", 1, True),
    "tpr": ("TPR % at 1 % FPR (Δ)", 1, True),
    "backdoor": ("backdoor success % (Δ)", 1, True),
}


# --- which block stands beside which setting -------------------------------------------------------------------------


def beside(scenario: str, setting: str) -> tuple[str, str] | None:
    """The paper's nearest block, as (table, setting); None where it has nothing of the kind."""
    own = Setting.parse(setting)
    split = "dirichlet" if own.skewed else own.split
    for place in ((scenario, split, own.dataset, own.model), (scenario, split, own.dataset)):
        if place in SAME_DATA:
            return SAME_DATA[place]
    return PAPER_SETTING.get((scenario, split))


def alone(e: Experiment, scenario: str) -> list[tuple[str, str]]:
    """The paper's blocks of a scenario that stand beside no setting of the experiment."""
    taken = {beside(s.name, setting) for s in e.scenarios() for setting in s.settings}
    return [place for place, where in SCENARIO_OF.items() if where == scenario and place not in taken]


def nearest_note(scenario: str, setting: str) -> str:
    """For captions: whose numbers the paper's columns are, and what differs from the setting here."""
    place = beside(scenario, setting)
    if place is None:
        return "The paper has nothing of the kind."
    block, own = _block(place).iloc[0], Setting.parse(setting)
    other = [
        what
        for what, theirs, ours in (("data", block.dataset, own.dataset), ("net", block.model, own.model))
        if not _plain(ours).startswith(_plain(theirs))
    ]
    differs = f", with other {' and '.join(other)}" if other else ""
    return f"Paper: Table {place[0].upper()}, {place[1]}, its nearest setting{differs}."


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _block(place: tuple[str, str]) -> pd.DataFrame:
    table = published("puf", f"table_{place[0]}")
    return table[table.setting == place[1]]


# --- Tables III to VI ------------------------------------------------------------------------------------------------


def paper_table(
    e: Experiment,
    runs: pd.DataFrame,
    setting: str,
    description: Record,
    scenario: str = "clients",
    stop: str = "validation",
) -> pd.DataFrame:
    """A block of Tables III to VI: the paper's columns, each followed by its own numbers from the nearest setting.

    Ours are means over the runs that came back, then (Δ): mean ± standard deviation of the absolute difference to the
    retrained model of the same seed and request. Costs are those of both phases, counted, with retraining's over the
    mean cost as (×). Runs that gave up enter no mean. A method half of whose runs did, or that cannot serve the
    request, has dashes. description: the record of the setting, which knows P and the FLOPs of an image.

    The paper's numbers stand in a method's first row. Its methods that were not run here come last.
    """
    place = beside(scenario, setting)
    printed = _printed_rows(place) if place else {}
    masks = Setting.parse(setting).split == "site"
    rows, shown = [], []
    for method, label in _row_places(e, runs, setting, scenario):
        r = rows_of(runs, scenario, setting, method, stop, label)
        done, gave_up = for_means(r)
        first = method not in shown
        shown.append(method)
        row = {"method": row_name(method, label), "gave up": gave_up.removeprefix("gave up ").strip("()")}
        ours = _efficacy(method, done, masks) | _efficiency(method, done, description, masks)
        for heading, value in ours.items():
            row[heading] = value
            if place:
                row[PAPERS + heading] = printed.get(method, {}).get(heading, DASH) if first else DASH
        rows.append(row)
    rest = [name for name in printed if name not in shown]
    rows += [_papers_alone(name, printed[name]) for name in rest]
    return pd.DataFrame(rows)


def paper_block(place: tuple[str, str]) -> pd.DataFrame:
    """A block of the paper that nothing of ours stands beside: dashes for us."""
    return pd.DataFrame([_papers_alone(name, printed) for name, printed in _printed_rows(place).items()])


def our_blocks(e: Experiment, table: str) -> Iterator[tuple[Scenario, str, str]]:
    """Where our runs stand beside a block of the table "iii", "iv", "v" or "vi": scenario, setting, the paper's one."""
    for s in e.scenarios():
        for setting in s.settings:
            place = beside(s.name, setting)
            if place and place[0] == table:
                yield s, setting, place[1]


def paper_csv(
    e: Experiment, runs: pd.DataFrame, descriptions: Mapping[str, Record], table: str, stop: str = "validation"
) -> pd.DataFrame:
    """The whole table "iii", "iv", "v" or "vi": all blocks with their settings, ours and the paper's."""
    blocks = []
    for s, setting, theirs in our_blocks(e, table):
        block = paper_table(e, runs, setting, descriptions[setting], s.name, stop)
        blocks.append((f"{s.heading}: {setting}", theirs, block))
    for scenario in dict.fromkeys(SCENARIO_OF.values()):
        blocks += [(DASH, place[1], paper_block(place)) for place in alone(e, scenario) if place[0] == table]
    frames = [frame.assign(**{"setting": ours, "paper: setting": theirs}) for ours, theirs, frame in blocks]
    whole = pd.concat(frames, ignore_index=True)
    places = ["setting", "paper: setting"]
    return whole[[*places, *(column for column in whole if column not in places)]]


def row_name(method: str, label: str = "") -> str:
    """What a row is called: the second retraining is the noise floor, own settings are named where others are tuned."""
    if method == AGAIN:
        return FLOOR
    return f"{method}, {PUBLISHED}" if label == PUBLISHED else method


def _row_places(e: Experiment, runs: pd.DataFrame, setting: str, scenario: str) -> list[tuple[str, str]]:
    """(method, label) of every row, in order."""
    here = runs[(runs.group == scenario) & (runs.setting == setting)]
    methods = [*e.scenario(scenario).methods, *([OFFICIAL] if (here.method == OFFICIAL).any() else [])]
    own = set(here[here.label == PUBLISHED].method)
    return [(m, label) for m in methods for label in ("", *([PUBLISHED] if m in own else []))]


def _efficacy(method: str, done: pd.DataFrame, masks: bool) -> dict[str, str]:
    row = {f"test {'Dice' if masks else 'acc.'} %": _spread(done, "test")}
    for name, (heading, _) in (ON_MASKS if masks else ACCURACIES).items():
        digits = 2 if name == "loss" else 1
        row[heading] = _spread(done, name, digits) if method == "Retrain" else with_delta(done, name, digits)
    return row


def _efficiency(method: str, done: pd.DataFrame, description: Record, masks: bool) -> dict[str, str]:
    """Without storage in Table VI, as printed. Who only stands for comparison costs nothing."""
    wanted = [name for name in COSTS if not (masks and name == "storage")]
    if done.empty or (method in CONTROLS and method != "Retrain"):
        return {COSTS[name][0]: DASH for name in wanted}
    model = BYTES_PER_PARAMETER * description.metrics["parameters"]
    storage = float(model) if method == "Retrain" else done.storage.mean()
    found = {
        "bytes": (done.bytes.mean(), gain(done.bytes_gain)),
        "images": (done.images.mean() * description.metrics["flops"], gain(done.images_gain)),
        "storage": (storage, _times(model / storage)),
    }
    return {COSTS[name][0]: f"{_power(found[name][0])} ({found[name][1]})" for name in wanted}


def _printed_rows(place: tuple[str, str]) -> dict[str, dict[str, str]]:
    """Method -> our heading -> what the paper prints there, in its form."""
    masks = place[0] == "vi"
    found = {}
    for row in _block(place).to_dict("records"):
        own = {f"test {'Dice' if masks else 'acc.'} %": f"{row['test_acc_mean']:.1f} ± {row['test_acc_std']:.1f}"}
        for name, (heading, column) in (ON_MASKS if masks else ACCURACIES).items():
            own[heading] = _printed_efficacy(row, column, 2 if name == "loss" else 1)
        for heading, column, times in COSTS.values():
            if column in row:
                cost = row[column]
                own[heading] = DASH if pd.isna(cost) else f"{_power(cost)} ({row[times]:g}×)"
        found[str(row["method"])] = own
    return found


def _printed_efficacy(row: Mapping[Any, Any], column: str, digits: int) -> str:
    mean = f"{row[f'{column}_mean']:.{digits}f}"
    if pd.isna(row[f"{column}_delta"]):
        return f"{mean} ± {row[f'{column}_std']:.{digits}f}"
    return f"{mean} ({row[f'{column}_delta']:.{digits}f} ± {row[f'{column}_delta_std']:.{digits}f})"


def _papers_alone(method: str, printed: Mapping[str, str]) -> dict[str, str]:
    row = {"method": method, "gave up": DASH}
    for heading, value in printed.items():
        row |= {heading: DASH, PAPERS + heading: value}
    return row


# --- what the paper does not look at ---------------------------------------------------------------------------------


def judges_table(
    e: Experiment, runs: pd.DataFrame, setting: str, scenario: str = "clients", stop: str = "validation"
) -> pd.DataFrame:
    """Stronger judges of forgetting than the paper's, and what recovery took; rows as in `paper_table`.

    In parentheses: absolute difference to Retrain's. Shortfall: test accuracy below Retrain's, in points. Relearning
    counts passes over the forgotten data until Original's accuracy on them is back; "≥" where some run never got there.
    FLOPs with the paper's nominal F of a ResNet-18 image. Judges without a number in any row are left out.
    """
    here = runs[(runs.group == scenario) & (runs.setting == setting)]
    looked = [name for name in STRONGER if name in here and here[name].notna().any()]
    rows = []
    for method, label in _row_places(e, runs, setting, scenario):
        r = rows_of(runs, scenario, setting, method, stop, label)
        done, gave_up = for_means(r)
        recovers = method == OFFICIAL or (method not in CONTROLS and registered(method).recovers)
        row = {
            "method": row_name(method, label),
            "gave up": gave_up.removeprefix("gave up ").strip("()"),
            "recovery rounds": _spread(done, "rounds") if recovers else DASH,
            "test shortfall": _spread(done, "shortfall"),
        }
        for name in looked:
            heading, digits, compared = STRONGER[name]
            shown = with_delta if compared and method != "Retrain" else _spread
            row[heading] = shown(done, name, digits)
        if "relearn" in here and here.relearn.notna().any():
            row["relearning, passes (Δ)"] = _relearned(method, done)
        if method not in CONTROLS and len(done):
            row |= {
                "bytes sent to unlearn": _power(done.unlearning_bytes.mean()),
                "FLOPs, nominal F": _power(done.images.mean() * NOMINAL_FLOPS["ResNet-18"]),
                "bytes handed to the method": _power(done.handed.mean()),
            }
        rows.append(row)
    return pd.DataFrame(rows).fillna(DASH)


def _relearned(method: str, done: pd.DataFrame) -> str:
    shown = _spread(done, "relearn") if method == "Retrain" else with_delta(done, "relearn")
    return shown if shown == DASH or done.relearned.astype(bool).all() else f"≥ {shown}"


def control_notes(
    e: Experiment, runs: pd.DataFrame, setting: str, scenario: str = "clients", stop: str = "validation"
) -> list[str]:
    """What is wrong with a block's controls, of those runs that came back, for its caption; see `wrong_controls`."""
    rows = {}
    for method, label in _row_places(e, runs, setting, scenario):
        done, _ = completed(rows_of(runs, scenario, setting, method, stop, label))
        name = method if method == AGAIN else row_name(method, label)
        rows[name] = Standing(done.delta_forget.mean(), done.delta_test.mean(), done.shortfall.mean())
    return wrong_controls(rows)


# --- numbers as text -------------------------------------------------------------------------------------------------


def with_delta(done: pd.DataFrame, name: str, digits: int = 1) -> str:
    """The mean, and in parentheses mean ± standard deviation of its absolute difference to Retrain's."""
    if name not in done or not done[name].notna().any():
        return DASH
    deltas = done[f"delta_{name}"].dropna() if f"delta_{name}" in done else done[name][:0]
    mean = (
        f"{done[name].mean():.{digits}f}"  # alone where neither it nor Retrain's came to an end, as a capped relearning
    )
    return f"{mean} ({spread(deltas, digits)})" if len(deltas) else mean


def gain(values: pd.Series) -> str:
    """Retrain's cost over the method's mean cost; infinite where nothing was sent in any run."""
    cost = (1 / values).fillna(0.0).mean()  # in units of Retrain's; missing: nothing was sent
    return _times(1 / cost) if cost else "∞×"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}×" if ratio >= 1 else f"{ratio:.2g}×"


def _power(number: float) -> str:
    """As the paper prints costs: 3.30e09."""
    return f"{number:.2e}".replace("e+", "e")


def _spread(done: pd.DataFrame, name: str, digits: int = 1) -> str:
    if name not in done or not done[name].notna().any():
        return DASH
    return spread(done[name].dropna(), digits)
