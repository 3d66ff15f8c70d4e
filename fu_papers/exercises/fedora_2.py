"""What a threshold asks for."""

from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "fedora-2"


def trials() -> list[Arguments]:
    """The threshold as a share of the largest score, beta."""
    return [(0.3, 1.0), (0.5, 5.0), (0.0, 0.5)]


EXERCISE = Exercise(
    id=ID,
    title="what does a threshold ask for?",
    stars=2,
    minutes=15,
    statement=r"""
        A threshold is given as a share $s$ of the largest score, $\log C$. With (28) written as
        $L_u = (1+\beta) H - \beta \log C$, which mean entropy does it ask for? Return it as a share of $\log C$.
    """,
    stub="""
        def entropy_asked_for(s, beta):
            return ...
    """,
    answer="entropy_asked_for",
    solution="""
        def entropy_asked_for(s, beta):
            return (s + beta) / (1 + beta)
    """,
    trials=trials,
    hints=(
        "Set (1 + beta) H - beta log C = s log C, and solve for H.",
        "H / log C = (s + beta) / (1 + beta).",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda s, beta: (s - beta) / (1 + beta),
            "The beta log C comes to the other side with a plus.",
        ),
        Mistake("as it is", lambda s, beta: s, "That would be right for beta = 0 only: beta shifts the threshold."),
        Mistake("not divided", lambda s, beta: s + beta, "And what stands before H? Divide by 1 + beta."),
    ),
    commentary="""
        With beta = 5 even a threshold of 0 asks for five sixths of the largest entropy. A retrained model shows far
        less (section 7), so the constraint forbids the retrained model.
    """,
)
