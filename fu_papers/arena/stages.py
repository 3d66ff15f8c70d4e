"""The arena's stages, in the order of its notebook."""

from __future__ import annotations

from fu_papers.arena import runs
from fu_papers.arena.grid import Experiment
from fu_papers.arena.worlds import SERVER, world_of
from fu_papers.problems import PROBLEM_KEYS
from fu_papers.study import Config, Stage


def descriptions(e: Experiment) -> dict[str, Config]:
    """Every setting with a server and nothing else, by its text."""
    settings = [setting for setting, _ in e.places() if world_of(setting) == SERVER]
    pools = {setting: e.pool(setting, "none", 0, 1) for setting in settings}
    return {setting: {key: config[key] for key in PROBLEM_KEYS} for setting, config in pools.items()}


STAGES = (
    Stage("settings", runs.describe, descriptions),
    Stage("pool", runs.train, lambda e: dict(e.pools())),
    Stage("unlearning", runs.unlearn, lambda e: dict(e.unlearned()), needs=("pool",)),
    Stage("relearning", runs.relearn, lambda e: dict(e.relearned()), needs=("pool",)),
    Stage("judging", runs.judge, lambda e: dict(e.judged()), needs=("unlearning",)),
    Stage("crowds", runs.judge, lambda e: dict(e.crowds()), needs=("unlearning",)),
)
