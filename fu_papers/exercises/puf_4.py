"""The eta_u that makes one round exact retraining, on bowls of equal curvature."""

from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "puf-4"


def trials() -> list[Arguments]:
    """p_u, eta, c, E."""
    return [(0.5, 0.5, 1.0, 2), (0.1, 0.1, 0.5, 10), (0.3, 0.01, 2.0, 1)]


EXERCISE = Exercise(
    id=ID,
    title="one round that is exactly retraining",
    stars=3,
    minutes=30,
    statement=r"""
        All clients' losses are bowls of the same curvature $c$, $\frac c2 (w - a_i)^2$ with minima $a_i$. The model
        rests at $w = \sum_i p_i a_i$, with $p_i$ a client's share of the data; without client $u$ it would rest at
        $\sum_{i \ne u} p_i a_i / (1 - p_u)$. Client $u$ trains once more, $E$ steps of rate $\eta$. Return the $\eta_u$
        with which PUF-Special lands exactly on the retrained model.
    """,
    stub="""
        def eta_star(p_u, eta, c, E):
            return ...
    """,
    answer="eta_star",
    solution="""
        def eta_star(p_u, eta, c, E):
            m = 1 - (1 - eta * c) ** E  # E steps go this share of the way from w to a_u
            return p_u / ((1 - p_u) * m)
    """,
    trials=trials,
    hints=(
        "A gradient step takes w - a_u to (1 - eta c)(w - a_u). What is client u's update after E of them?",
        "Delta_u = m (a_u - w) with m = 1 - (1 - eta c)^E. And how far is the retrained model from w?",
        "Retrained - w = p_u / (1 - p_u) (w - a_u). Set it equal to -eta_u Delta_u = eta_u m (w - a_u).",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda p_u, eta, c, E: -p_u / ((1 - p_u) * (1 - (1 - eta * c) ** E)),
            "PUF subtracts the update already, so eta_u is positive: away from a_u.",
        ),
        Mistake(
            "E times one step",
            lambda p_u, eta, c, E: p_u / ((1 - p_u) * eta * c * E),
            "E steps are shorter than E times the first one, since the gradient shrinks on the way: 1 - (1 - eta c)^E.",
        ),
        Mistake(
            "weight p_u",
            lambda p_u, eta, c, E: p_u / (1 - (1 - eta * c) ** E),
            "The others' weights grow when u leaves: they are p_i / (1 - p_u) then.",
        ),
        Mistake(
            "all the way",
            lambda p_u, eta, c, E: p_u / (1 - p_u),
            "Right if client u trains until it rests in a_u. E steps go a part of that way only.",
        ),
    ),
    commentary="""
        On nets the curvatures differ, and no eta_u is exact. But the formula says what a good one depends on: more for
        larger clients, less for longer training. It is a test (tests/fu_core/unlearning/test_puf.py, case b), and
        section 5 has it with numbers.
    """,
)
