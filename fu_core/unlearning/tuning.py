"""The same number of trials for every method, each over its own ranges: what a fair comparison tunes with.

    for options in trials("PGA", 12, seed=0):
        model, _, _ = unlearn("PGA", trained, "client-3", **options)

The first trial is the method as it is registered, the others fill the space between the ends of its `ranges`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from fu_core.errors import InvalidRequest, check_count
from fu_core.streams import numpy_stream
from fu_core.unlearning.method import Ranges, method

Options = dict[str, Any]  # by parameter, as `unlearn` takes them; plain values that JSON can hold
NOTHING: Mapping[str, Any] = MappingProxyType({})


def trials(name: str, n: int, *, seed: int, fixed: Mapping[str, Any] = NOTHING) -> list[Options]:
    """`n` different option sets for the method `name`, or all that there are if those are fewer.

    The first holds the values that the method has by itself; the others are points of a scrambled Halton sequence, so
    that the trials for a smaller n are the first of those for a larger one, as long as n is less than all there are.
    fixed: parameters that every set holds as they are, and that are not tuned.

    Random: the scrambling, from the stream (seed, "trials", name). Numbers have four significant digits. Raises
    ValueError for an unknown method, `InvalidRequest` for a fixed parameter that it does not have.
    """
    check_count("n", n)
    chosen = method(name)
    try:
        config = chosen.configured(**fixed)
    except ValueError as error:
        raise InvalidRequest(f"fixed: {error}") from error
    ranges = {parameter: values for parameter, values in chosen.ranges.items() if parameter not in fixed}
    published = {parameter: getattr(config, parameter) for parameter in ranges}
    found = [published]
    for options in _points(ranges, n, seed=seed, name=name):
        if len(found) == n:
            break
        if options not in found:
            found.append(options)
    return [{**options, **fixed} for options in found]


def _points(ranges: Ranges, n: int, *, seed: int, name: str) -> Iterator[Options]:
    """All points of a grid of at most `n`; without end where there are more."""
    lists = [values.values for values in ranges.values()]
    if math.prod(math.inf if values is None else len(values) for values in lists) <= n:
        for point in itertools.product(*(values or () for values in lists)):
            yield dict(zip(ranges, point, strict=True))
        return
    begin = 0
    for end in (n * 2**doubled for doubled in itertools.count()):
        for shares in _halton(len(ranges), end, seed, name)[begin:]:
            yield {parameter: values.at(u) for (parameter, values), u in zip(ranges.items(), shares, strict=True)}
        begin = end


@cache  # a grid of runs asks for the same ones at every cell
def _halton(dimensions: int, count: int, seed: int, name: str) -> list[list[float]]:
    """The first `count` points of the scrambled sequence, each with `dimensions` shares in [0, 1)."""
    from scipy.stats.qmc import Halton  # scipy.stats takes its time

    points: list[list[float]] = Halton(dimensions, seed=numpy_stream(seed, "trials", name)).random(count).tolist()
    return points  # `seed` is what scipy before 1.15 calls its stream
