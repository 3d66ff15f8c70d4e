"""The price: one dual step."""

from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "fedora-3"


def trials() -> list[Arguments]:
    """price, sigma, epsilon, score."""
    return [(1.0, 0.5, 0.4, 0.2), (1.0, 0.5, 0.4, 0.9), (0.1, 1.0, 0.4, 0.9), (0.0, 1.0, 0.2, 0.2)]


EXERCISE = Exercise(
    id=ID,
    title="the price of not forgetting",
    stars=1,
    minutes=10,
    statement=r"""
        The dual step (20): the price $\lambda$ rises by $\sigma$ times what the score lacks to $\epsilon$, falls when
        the score is more than enough, and is never negative. Return the new price.
    """,
    stub="""
        def next_price(price, sigma, epsilon, score):
            return ...
    """,
    answer="next_price",
    solution="""
        def next_price(price, sigma, epsilon, score):
            return max(0.0, price + sigma * (epsilon - score))
    """,
    trials=trials,
    hints=(
        "What the score lacks is epsilon - score: positive where the constraint is violated.",
        "Add sigma times that, and cut the *result* off at zero.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda price, sigma, epsilon, score: max(0.0, price - sigma * (epsilon - score)),
            "This price falls while the constraint is violated. It must rise then: the constraint is L_u >= epsilon.",
        ),
        Mistake(
            "no projection",
            lambda price, sigma, epsilon, score: price + sigma * (epsilon - score),
            "A negative price would pay for remembering. Cut it off at zero.",
        ),
        Mistake(
            "never relaxes",
            lambda price, sigma, epsilon, score: price + max(0.0, sigma * (epsilon - score)),
            "This price only ever rises. Cut off the result, not the change: once the constraint is met it may relax.",
        ),
    ),
    commentary="""
        The price is what the paper calls a certificate. But it is zero after the score has overshot, whatever comes
        next (section 4): what certifies that the constraint is met is the score of the final model.
    """,
)
