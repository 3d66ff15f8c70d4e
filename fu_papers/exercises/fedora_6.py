"""The saddle point in closed form."""

from torch import Tensor

from fu_papers.exercises.draws import numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "fedora-6"


def trials() -> list[Arguments]:
    """a (d,), c (d,) of length one, epsilon: the constraint costs something, and it does not."""
    a, c = numbers(-0.3, 0.3), numbers(0.8, 0.6)
    return [(a, c, 0.5), (a, c, -1.0), (numbers(1, 0, 2), numbers(0, 0.6, 0.8), 3.0)]


def lacking(a: Tensor, c: Tensor, epsilon: float) -> Tensor:
    """What the score of `a` lacks."""
    return epsilon - c @ a


EXERCISE = Exercise(
    id=ID,
    title="a saddle point by hand",
    stars=2,
    minutes=20,
    statement=r"""
        A problem of the kind of (7): minimise $\tfrac12 \lVert \theta - a\rVert^2$ subject to
        $c^\top \theta \ge \epsilon$, with $\lVert c\rVert = 1$. The minimum without the constraint is $a$. Return
        $\theta^\star$, also where the constraint is inactive. (What is the price $\lambda^\star$ in either case?)
    """,
    stub="""
        def saddle(a, c, epsilon):
            return ...
    """,
    answer="saddle",
    solution="""
        def saddle(a, c, epsilon):
            price = max(0.0, epsilon - float(c @ a))  # lambda*: 0 if a meets the constraint
            return a + price * c
    """,
    trials=trials,
    hints=(
        "At the optimum the gradients balance: theta - a = lambda c. So theta* = a + lambda* c for some lambda* >= 0.",
        "If c.a >= epsilon, a itself is allowed, lambda* = 0. Else c.theta* = epsilon gives lambda* = epsilon - c.a.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda a, c, epsilon: a - lacking(a, c, epsilon).clamp(min=0) * c,
            "This moves against c, where the score gets smaller still.",
        ),
        Mistake(
            "always active",
            lambda a, c, epsilon: a + lacking(a, c, epsilon) * c,
            "Right where the constraint costs something. Where `a` meets it already, nothing presses: lambda* = 0 and "
            "theta* = a.",
        ),
        Mistake(
            "never active",
            lambda a, c, epsilon: a.clone(),
            "This is right only where `a` meets the constraint already.",
        ),
    ),
    commentary="""
        An inactive constraint has the price zero: the request costs nothing, since the model is as uncertain as asked
        for before anybody did anything. Section 6 finds the same point by the iteration.
    """,
)
