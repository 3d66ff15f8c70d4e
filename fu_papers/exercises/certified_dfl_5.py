"""Break a certificate by releasing twice."""

import torch
from torch import Tensor

from fu_core.unlearning.gaussian_mechanism import gaussian_sigma
from fu_papers.exercises.draws import Draws, numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "certified_dfl-5"
WORLDS = 40


def trials() -> list[Arguments]:
    """first (d,), second (d,), change_a (d,), change_b (d,): forty pairs of releases, from world A and B in turn."""
    draws = Draws(ID)
    made: list[Arguments] = [(numbers(5, 5), numbers(6, 5), numbers(1, 0), numbers(0, 1))]
    for k in range(WORLDS):
        x, change_a, change_b = (draws.normal(6) for _ in range(3))
        sigma = gaussian_sigma(float((change_a - change_b).norm()), epsilon=1.0, delta=1e-5)
        noise = sigma * draws.normal(6)
        made.append((x + noise, x + (change_b if k % 2 else change_a) + noise, change_a, change_b))
    return made


def distance(change: Tensor, to: Tensor) -> Tensor:
    """How far the change from the first to the second release is from what a world would have made."""
    return (change - to).norm()


EXERCISE = Exercise(
    id=ID,
    title="break a certificate by releasing twice",
    stars=3,
    minutes=30,
    statement=r"""
        The network releases a model with noise that makes it $(1, 10^{-5})$-private, serves another request, and
        releases again, **with the same noise**: `first` $= x + \nu$, `second` $= x + c + \nu$. The second request
        changed the model by `change_a` if client 3 had some record (world A), and by `change_b` if not (world B). You
        see both releases, and know both possible changes, but neither $x$ nor $\nu$. Return a number that is positive
        if you bet on A, and negative if on B. You must be right in all of forty cases; from the second release alone
        nobody could be right in much more than 55 of a hundred.
    """,
    stub="""
        def bet(first, second, change_a, change_b):
            return ...
    """,
    answer="bet",
    solution="""
        def bet(first, second, change_a, change_b):
            change = second - first  # the noise is gone
            return (change - change_b).norm() - (change - change_a).norm()
    """,
    trials=trials,
    hints=(
        "Both releases carry the same noise. What is left if you subtract one from the other?",
        "`second - first` is exactly one of the two changes. Which one is it nearer to?",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda first, second, change_a, change_b: (
                distance(second - first, change_a) - distance(second - first, change_b)
            ),
            "You always bet on the wrong world: the *smaller* distance should win.",
        ),
        Mistake(
            "second release alone",
            lambda first, second, change_a, change_b: distance(second, change_b) - distance(second, change_a),
            "This looks at the second release alone, which the noise hides well. Use both.",
        ),
        Mistake(
            "backwards",
            lambda first, second, change_a, change_b: (
                distance(first - second, change_b) - distance(first - second, change_a)
            ),
            "first - second is minus the change.",
        ),
    ),
    commentary="""
        No noise is large enough if it is used twice: the difference of two releases is bare. The same happens at once
        where everybody adds the same vector (erratum D1), in the difference of two clients' models. Our releases refuse
        noise that has been used (`RepeatedNoise`), and the audit of section 10 finds a release that does it on purpose.
    """,
    same=lambda given, right: torch.equal(given.sign(), right.sign()),
)
