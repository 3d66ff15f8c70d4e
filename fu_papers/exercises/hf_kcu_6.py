"""How far the printed step can go at most."""

from fu_papers.exercises.draws import Draws, numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "hf_kcu-6"


def trials() -> list[Arguments]:
    """theta (d,), beta, w_f."""
    return [(numbers(3, 4), 0.01, 0.1), (Draws(ID).normal(50), 0.02, 0.005)]


EXERCISE = Exercise(
    id=ID,
    title="how far can the printed step go?",
    stars=1,
    minutes=10,
    statement=r"""
        Line 17 of Algorithm 1 shortens the raw step $v$ to at most $\beta$ times the length of the model; with one
        client leaving, line 18 multiplies by $\alpha = 1$; line 24 by the client's weight $w_f$. Return the largest
        distance that the model can move, whatever the client's data, the Hessian, and the number of CG steps.
    """,
    stub="""
        def farthest(theta, beta, w_f):
            return ...
    """,
    answer="farthest",
    solution="""
        def farthest(theta, beta, w_f):
            return w_f * beta * theta.norm()
    """,
    trials=trials,
    hints=(
        "After line 17 the step is at most beta |theta| long.",
        "The server then adds w_f times that step: w_f * beta * theta.norm().",
    ),
    mistakes=(
        Mistake(SIGN, lambda theta, beta, w_f: -w_f * beta * theta.norm(), "A distance is not negative."),
        Mistake(
            "no weight",
            lambda theta, beta, w_f: beta * theta.norm(),
            "That is after line 17. Line 24 multiplies by the client's weight once more.",
        ),
        Mistake(
            "squared",
            lambda theta, beta, w_f: w_f * beta * theta @ theta,
            "That is the length squared: `theta.norm()`.",
        ),
        Mistake("no length", lambda theta, beta, w_f: w_f * beta, "That is relative to the length of the model."),
    ),
    commentary="""
        With the paper's beta = 0.01 and ten clients: a thousandth of the model's length, and less with more clients
        (erratum H2). A model that has hardly moved keeps its test accuracy, is produced quickly, and has forgotten
        nothing.
    """,
)
