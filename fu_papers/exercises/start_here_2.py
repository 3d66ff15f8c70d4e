"""What an attacker gains."""

from fu_papers.exercises.draws import Draws, numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "start_here-2"


def trials() -> list[Arguments]:
    """Losses of members (n,) and of unseen samples (m,), a threshold; one of the first members is just at it."""
    draws = Draws(ID)
    by_hand = (numbers(0.1, 0.2, 1.0, 3.0), numbers(0.2, 2.0, 4.0, 5.0), 1.0)
    return [by_hand, (draws.uniform(50), 2 * draws.uniform(80), 0.7), (draws.uniform(20), draws.uniform(30), 0.2)]


EXERCISE = Exercise(
    id=ID,
    title="what does an attacker gain?",
    stars=1,
    minutes=10,
    statement=r"""
        An attacker calls a sample a member if its loss is at most a threshold. Return the *advantage*: the share of the
        members that it calls so, less the share of the unseen samples that it calls so (between -1 and 1). `members`
        (n,) and `unseen` (m,) are losses.
    """,
    stub="""
        def advantage(members, unseen, threshold):
            return ...
    """,
    answer="advantage",
    solution="""
        def advantage(members, unseen, threshold):
            found, wrongly = ((losses <= threshold).double().mean() for losses in (members, unseen))
            return found - wrongly
    """,
    trials=trials,
    hints=(
        "`losses <= threshold` is a tensor of True and False; the mean of its `.double()` is a share.",
        "Do it for both, and subtract: an attack that calls everybody a member gains nothing.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda members, unseen, threshold: (
                (unseen <= threshold).double().mean() - (members <= threshold).double().mean()
            ),
            "The other way round: models are surer of what they have seen, so *small* losses mean members, and the "
            "unseen that are called so are subtracted.",
        ),
        Mistake(
            "members only",
            lambda members, unseen, threshold: (members <= threshold).double().mean(),
            "An attack that calls everybody a member would score 1 here. What does it say of the unseen samples?",
        ),
        Mistake(
            "counts",
            lambda members, unseen, threshold: (members <= threshold).sum() - (unseen <= threshold).sum(),
            "These are counts. There may be more unseen samples than members: compare shares.",
        ),
        Mistake(
            "strictly below",
            lambda members, unseen, threshold: (
                (members < threshold).double().mean() - (unseen < threshold).double().mean()
            ),
            "Nearly. A loss that *equals* the threshold is called a member, too: at most, not below.",
        ),
    ),
    commentary="""
        Zero is a coin's advantage. What an attack finds is worth only what it does not also find among samples that
        nobody trained on; after Retrain it must be about zero, whatever the threshold.
    """,
)
