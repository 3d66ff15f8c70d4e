"""Causal faithfulness, by its formula."""

from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "hf_kcu-7"


def trials() -> list[Arguments]:
    """Test accuracies: unlearned, retrained, original."""
    return [(71.16, 70.79, 71.76), (69.52, 70.79, 71.76), (70.0, 71.0, 60.0)]


EXERCISE = Exercise(
    id=ID,
    title="causal faithfulness",
    stars=1,
    minutes=10,
    statement=r"""
        The paper's CF is 1 if the unlearned model's test accuracy equals the retrained one's, and 0 if it is as far
        from it as the original's. Return it: $1 - \frac{|a_u - a_r|}{|a_o - a_r|}$. The first trial has the accuracies
        of Table 1 (71.16 for HF-KCU, 70.79 retrained, 71.76 trained), for which the paper prints 0.38.
    """,
    stub="""
        def causal_faithfulness(unlearned, retrained, original):
            return ...
    """,
    answer="causal_faithfulness",
    solution="""
        def causal_faithfulness(unlearned, retrained, original):
            return 1 - abs(unlearned - retrained) / abs(original - retrained)
    """,
    trials=trials,
    hints=(
        "Both differences are absolute: `abs(...)`.",
        "The formula gives 0.62 for Table 1, and not 0.38. Trust the formula.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda unlearned, retrained, original: abs(unlearned - retrained) / abs(original - retrained) - 1,
            "Upside down: perfect agreement should give +1.",
        ),
        Mistake(
            "as the table",
            lambda unlearned, retrained, original: abs(unlearned - retrained) / abs(original - retrained),
            'This gives the paper\'s 0.38: the fraction without the "1 -" (erratum H3).',
        ),
        Mistake(
            "from the original",
            lambda unlearned, retrained, original: 1 - abs(unlearned - original) / abs(original - retrained),
            "The distance in the numerator is that to the *retrained* model.",
        ),
        Mistake(
            "not absolute",
            lambda unlearned, retrained, original: 1 - (unlearned - retrained) / (original - retrained),
            "A model beyond Retrain would score more than 1: take absolute differences.",
        ),
    ),
    commentary="""
        No other row of the paper's CF column follows from its accuracies either (erratum H3). And where original and
        retrained differ by less than the noise of a test accuracy, the fraction says nothing at all; our tables leave
        it out there (`fu_papers.hf_kcu.metrics`).
    """,
)
