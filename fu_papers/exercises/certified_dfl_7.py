"""How much noise several releases need."""

from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "certified_dfl-7"


def trials() -> list[Arguments]:
    """sigma, k."""
    return [(1.0, 4), (0.3, 3), (2.0, 1)]


EXERCISE = Exercise(
    id=ID,
    title="noise for several releases",
    stars=2,
    minutes=15,
    statement=r"""
        One release with noise of standard deviation $\sigma$ is private enough: its $\mu = \Delta / \sigma$ is small
        enough. Now there will be `k` releases, each with *fresh* noise, and together they shall be as private as that
        one. Their $\mu^2$ add up. Return the standard deviation that each of them needs.
    """,
    stub="""
        def sigma_of_each(sigma, k):
            return ...
    """,
    answer="sigma_of_each",
    solution="""
        def sigma_of_each(sigma, k):
            return k**0.5 * sigma
    """,
    trials=trials,
    hints=(
        "k times (Delta / sigma_each)^2 shall equal (Delta / sigma)^2.",
        "So sigma_each^2 = k sigma^2.",
    ),
    mistakes=(
        Mistake(SIGN, lambda sigma, k: -(k**0.5) * sigma, "A standard deviation is not negative."),
        Mistake(
            "k times",
            lambda sigma, k: k * sigma,
            "More than enough. The squares of mu add up, not mu itself.",
        ),
        Mistake(
            "unchanged",
            lambda sigma, k: sigma,
            "Averaging the releases would take the noise down by the root of k. Each needs more.",
        ),
        Mistake(
            "less",
            lambda sigma, k: sigma / k**0.5,
            "Upside down: more releases need *more* noise.",
        ),
    ),
    commentary="""
        Four releases need twice the noise, not four times. An attacker who averages k releases of one model sees noise
        of sigma_each / sqrt(k) = sigma: exactly what one release would have shown. That is Gaussian differential
        privacy in a nutshell, and how notebook 04 adds up requests (section 10).
    """,
)
