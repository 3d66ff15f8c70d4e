"""Answers to what notebook 05 asks before its figures, from the frames that those are drawn from."""

from __future__ import annotations

import pandas as pd
from IPython.display import HTML

from fu_papers.arena.results import shown
from fu_papers.arena.tables import judges_agree, number
from fu_papers.predict import letter, reveal

FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {  # the choices of `nearest_family`, and who is of each
    "a": ("train on without the data", ("Natural", "Fine-tune")),
    "b": ("go against the data", ("Ascent", "NaiveGA", "PGA", "FedOSD", "PUF-Special", "PUF-Regular")),
    "c": ("step by curvature", ("HF-KCU", "HF-KCU held-out", "HF-KCU printed", "Trust-region Newton")),
    "d": ("repeat a part of the training", ("Rewind", "FedEraser")),
}
CHEAP = 0.1  # of Retrain's passes
GAP = "forget acc. gap"  # a judge's name in `tables.judges_agree`


def nearest_family(ranked: pd.DataFrame) -> HTML:
    """Which of FAMILIES has the member that ends nearest to Retrain. ranked: as `results.ranking` returns it.

    Counted is who served every place; families of whom nobody did are left out.
    """
    there = ranked[(ranked.places > 0) & (ranked.places == ranked.of)].set_index("method")
    best = {
        choice: there.loc[members].sort_values("left", kind="stable").iloc[0]
        for choice, (_, names) in FAMILIES.items()
        if (members := [name for name in names if name in there.index])
    }
    if not best:
        return reveal("none", "Nobody of the four families takes part in this run.")
    right = min(best, key=lambda choice: float(best[choice].left))
    told = "; ".join(
        f"{FAMILIES[choice][0]}: {row.name} ({row.left:.0f} % left, {number(100 * row.price)} % of the passes)"
        for choice, row in sorted(best.items(), key=lambda pair: float(pair[1].left))
    )
    methods = there[[name in _members() for name in there.index]]
    cheap = methods[methods.price <= CHEAP]
    near = f", the nearest of them {cheap.left.idxmin()} ({cheap.left.min():.0f} % left)" if len(cheap) else ""
    because = (
        f"The nearest of each, of those who served every place: {told}. At most {100 * CHEAP:.0f} % of the passes "
        f"take {len(cheap)} of these {len(methods)}{near}. "
        "What is trained into a model is spread over all of its later rounds: *who trains those rounds again* comes "
        "nearest here, and pays for them."
        if right == "d"
        else f"The nearest of each, of those who served every place: {told}."
    )
    return reveal(right, because)


def _members() -> set[str]:
    return {name for _, names in FAMILIES.values() for name in names}


def accuracy_as_judge(frame: pd.DataFrame) -> HTML:
    """How far accuracy on the forgotten data ranks methods as KLoM does: a rank correlation up to 0.3, up to 0.8, more.

    frame: of the places that are ranked together.
    """
    agree = judges_agree(frame).set_index("judge").KLoM
    fooled = _fooled(frame)
    because = (
        f"Rank correlation with KLoM over methods and places: accuracy {agree[GAP]:.2f}, U-LiRA "
        f"{agree['U-LiRA AUC']:.2f}, RMIA {agree['RMIA']:.2f}.{fooled} Accuracy asks only on which side of the "
        "border an example lies, and averages over the examples: *two crowds with the same accuracy can be "
        "told apart example by example*."
    )
    return reveal(letter(float(agree[GAP]), (0.3, 0.8)), because)


def _fooled(frame: pd.DataFrame) -> str:
    """Of the rows whose accuracy is within a point of Retrain's, how many KLoM tells at ten times the floor."""
    there = frame[frame.klom_forget.notna()]
    near = there[(there.forget - there.forget_retrain).astype(float).abs() <= 1]
    if not len(near):
        return ""
    far = near[near.klom_forget > 10 * near.floor]
    worst = (
        f", farthest of all for {shown(str(far.loc[far.klom_forget.astype(float).idxmax()].method))}"
        if len(far)
        else ""
    )
    return (
        f" Of {len(near)} results within one point of Retrain's accuracy on the forgotten data, KLoM is more than ten "
        f"times the floor in {len(far)}{worst}."
    )
