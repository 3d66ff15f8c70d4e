"""HF-KCU's stages, in the order of its notebook."""

from __future__ import annotations

import itertools

from fu_papers.controls import NOT_RUN, other_seed
from fu_papers.hf_kcu import runs, theory
from fu_papers.hf_kcu.grid import MATCHED, REQUEST, Experiment
from fu_papers.hf_kcu.path import DAMPINGS, path
from fu_papers.hf_kcu.speed import speed
from fu_papers.lab.record import RunFunction, config_key
from fu_papers.problems import PROBLEM_KEYS, Setting
from fu_papers.study import Config, Stage, theory_stages


def descriptions(e: Experiment) -> dict[str, Config]:
    """Every setting and net, by its text."""
    configs = {s: e.training(s, 0) for s in e.settings} | {s: e.for_nets().training(s, 0) for s in e.nets}
    return {text: {key: config[key] for key in PROBLEM_KEYS} for text, config in configs.items()}


def needed(e: Experiment, fn: RunFunction) -> dict[str, Config]:
    """What the tables' runs need of `fn`, each once, SISA's shards and the attacker's federations included."""
    wanted = (need for config in (*e.runs().values(), *e.tuning().values()) for need in runs.needs(config).values())
    return {config_key(config): config for made_by, config in wanted if made_by is fn}


def noise_floor(e: Experiment) -> dict[tuple[int, int], Config]:
    """The pairs of retrainings of the main setting of which the tables show one as the other's second."""
    training = e.training(e.main, 0) | {"request": REQUEST}
    pairs = sorted({(min(seed, other), max(seed, other)) for seed in e.seeds for other in [other_seed(seed, e.seeds)]})
    return {pair: {**training, "pair": list(pair)} for pair in pairs}


def residuals(e: Experiment) -> dict[int, Config]:
    """CG curves on the trained nets of the main setting, by seed."""
    return {seed: {**e.training(e.main, seed), "damping": float(e.damping)} for seed in e.sweep_seeds}


def paths(e: Experiment) -> dict[tuple[str, int], Config]:
    """The corrected step by damping, and where both rules that choose it stop, by setting and seed: on the main setting
    and, where that is another one, on the paper's."""
    rules = {method: e.options(method) for method in ("HF-KCU", MATCHED)}
    asked = {"request": REQUEST, "dampings": list(DAMPINGS), "rules": rules}
    papers = [setting for setting in e.settings if Setting.parse(setting).dataset == "cifar10"]
    places = itertools.product(dict.fromkeys([e.main, *papers]), e.seeds)
    return {(setting, seed): {**e.training(setting, seed), **asked} for setting, seed in places}


STAGES = (
    Stage("settings", runs.describe, descriptions, alone=True),
    *theory_stages(theory.PLANS),
    Stage("training", runs.train, lambda e: needed(e, runs.train)),
    Stage("CG residuals", runs.residuals, residuals, needs=("training",)),
    Stage("shadow models", runs.shadow_federation, lambda e: needed(e, runs.shadow_federation)),
    Stage("tuning", runs.trial, lambda e: e.tuning(), needs=("training",)),
    Stage("unlearning", runs.unlearn, lambda e: e.runs(), needs=("training", "shadow models", "tuning")),
    Stage("controls", runs.unlearn, lambda e: e.controls(), needs=("training", "shadow models"), optional=NOT_RUN),
    Stage("same start", runs.unlearn, lambda e: e.same_start(), needs=("training", "shadow models"), optional=NOT_RUN),
    Stage("path", path, paths, needs=("training",)),
    Stage("prices", runs.prices, lambda e: e.prices(), needs=("training",), optional=NOT_RUN),
    Stage("noise floor", runs.noise_floor, noise_floor, needs=("training",)),
    Stage("timing", speed, lambda e: e.speeds(), needs=("training",), alone=True),
)
