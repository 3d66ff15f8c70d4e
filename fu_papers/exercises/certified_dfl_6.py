"""The exact delta of the Gaussian mechanism."""

import math

from scipy.special import ndtr

from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "certified_dfl-6"


def trials() -> list[Arguments]:
    """sensitivity, sigma, epsilon."""
    return [(1.0, 1.0, 1.0), (2.0, 5.0, 0.5), (0.01, 0.004, 3.0)]


def phis(sensitivity: float, sigma: float, epsilon: float) -> tuple[float, float]:
    """Phi(a - b) and Phi(-a - b)."""
    a, b = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
    return float(ndtr(a - b)), float(ndtr(-a - b))


EXERCISE = Exercise(
    id=ID,
    title="what does noise buy?",
    stars=2,
    minutes=20,
    statement=r"""
        Two models at most `sensitivity` apart are released with noise $\mathcal N(0, \sigma^2 I)$. The smallest
        $\delta$ with which that is $(\varepsilon, \delta)$-private is known exactly (Balle and Wang, 2018): $\delta =
        \Phi(a - b) - e^{\varepsilon}\,\Phi(-a - b)$ with $a = \frac{\Delta}{2\sigma}$, $b =
        \frac{\varepsilon\sigma}{\Delta}$. Return it. $\Phi(t) = \frac12\big(1 + \operatorname{erf}(t/\sqrt2)\big)$.
    """,
    stub="""
        import math


        def smallest_delta(sensitivity, sigma, epsilon):
            return ...
    """,
    answer="smallest_delta",
    solution="""
        import math


        def smallest_delta(sensitivity, sigma, epsilon):
            def Phi(t):
                return 0.5 * (1 + math.erf(t / math.sqrt(2)))

            a, b = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
            return Phi(a - b) - math.exp(epsilon) * Phi(-a - b)
    """,
    trials=trials,
    hints=(
        "Write Phi as a small function of its own, with `math.erf`.",
        "a is half the distance in units of the noise; b the noise in units of the distance, times epsilon.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda *of: phis(*of)[0] + math.exp(of[2]) * phis(*of)[1],
            "What epsilon excuses is subtracted: delta is what is left of the difference between the two worlds.",
        ),
        Mistake(
            "no e^epsilon",
            lambda *of: phis(*of)[0] - phis(*of)[1],
            "The factor e^epsilon is missing; it is what (epsilon, delta) allows.",
        ),
        Mistake(
            "classical",
            lambda sensitivity, sigma, epsilon: 1.25 * math.exp(-((epsilon * sigma / sensitivity) ** 2) / 2),
            "This is the classical bound solved for delta, an upper bound, proved for epsilon < 1 only (erratum D8).",
        ),
        Mistake(
            "b upside down",
            lambda sensitivity, sigma, epsilon: (
                phis(sensitivity, sigma, epsilon * (sensitivity / sigma) ** 2)[0]
                - math.exp(epsilon) * phis(sensitivity, sigma, epsilon * (sensitivity / sigma) ** 2)[1]
            ),
            "b is epsilon *sigma / sensitivity*, not the other way round.",
        ),
    ),
    commentary="""
        More noise, smaller delta; and only sensitivity / sigma counts. `gaussian_delta` is the same without overflow,
        and `gaussian_sigma` solves it for sigma, as section 3 did by bisection.
    """,
)
