"""What an attacker's errors say about epsilon."""

from __future__ import annotations

import math

from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "arena-3"


def trials() -> list[Arguments]:
    """missed, accused, n, delta."""
    return [(2, 1, 10, 0.0), (1, 12, 64, 1e-2), (30, 2, 64, 0.1), (7, 6, 10, 0.0)]


def sides(missed: int, accused: int, n: int, delta: float) -> tuple[float, float]:
    """Both ratios."""
    fnr, fpr = missed / n, accused / n
    return (1 - delta - fpr) / fnr, (1 - delta - fnr) / fpr


def swapped(missed: int, accused: int, n: int, delta: float) -> float:
    """Each rate over itself."""
    fnr, fpr = missed / n, accused / n
    return max(0.0, math.log((1 - delta - fpr) / fpr), math.log((1 - delta - fnr) / fnr))


EXERCISE = Exercise(
    id=ID,
    title="what do errors prove?",
    stars=2,
    minutes=15,
    statement=r"""
        A method with $(\varepsilon, \delta)$ promises that no attacker whatever tells its models from retrained ones
        better than so: $1 - \mathrm{FPR} \le e^{\varepsilon}\,\mathrm{FNR} + \delta$ and
        $1 - \mathrm{FNR} \le e^{\varepsilon}\,\mathrm{FPR} + \delta$. An attacker looks at n unlearned models and
        misses `missed` of them (FNR); of n retrained ones he accuses `accused` (FPR). Return the smallest
        $\varepsilon \ge 0$ for which both hold: less than that the method cannot promise.
        Both counts are above 0; `math.log` is the logarithm.
    """,
    stub="""
        def least_epsilon(missed, accused, n, delta):
            return ...
    """,
    answer="least_epsilon",
    solution="""
        import math


        def least_epsilon(missed, accused, n, delta):
            fnr, fpr = missed / n, accused / n
            return max(0.0, math.log((1 - delta - fpr) / fnr), math.log((1 - delta - fnr) / fpr))
    """,
    trials=trials,
    hints=(
        "Solve each of the two inequalities for epsilon.",
        "The first says epsilon >= log((1 - delta - FPR) / FNR). Both must hold: which of two bounds counts?",
        "The larger of the two, and 0 where both are negative: an attacker who guesses proves nothing.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda missed, accused, n, delta: max(0.0, *(-math.log(x) for x in sides(missed, accused, n, delta))),
            "The sign of the logarithms is wrong: the fewer errors, the larger epsilon.",
        ),
        Mistake(
            "smaller",
            lambda missed, accused, n, delta: max(0.0, math.log(min(sides(missed, accused, n, delta)))),
            "That is the smaller of the two bounds. Both must hold, so the larger counts.",
        ),
        Mistake(
            "negative",
            lambda missed, accused, n, delta: math.log(max(sides(missed, accused, n, delta))),
            "Right, but where the attacker is worse than chance: epsilon is never negative.",
        ),
        Mistake(
            "swapped",
            swapped,
            "Each ratio has the *other* kind of error below: who accuses nobody has an FPR of 0 for free, and misses "
            "everybody.",
        ),
        Mistake(
            "delta",
            lambda missed, accused, n, delta: max(0.0, math.log(max(sides(missed, accused, n, 0.0)))),
            "What may go wrong with probability delta is allowed: subtract it above the line.",
        ),
    ),
    commentary="""
        With n models a side the smallest error that can be seen is one of n, so that nothing above log(n - 1) can be
        shown; and since the arena takes the best of many attacks, a perfect method does not get 0 either. That is why
        it reports what is in excess of a second retraining. The rates are estimates: for a bound that holds with 95 %,
        which refutes a certificate, see `fu_core.evaluation.audit` and notebook 04.
    """,
)
