"""What an exercise consists of, and how an answer is judged: by trying it, beside the solution and known mistakes."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fu_papers import links

Arguments = tuple[Any, ...]
Function = Callable[..., Any]
STARS = (1, 2, 3)
SIGN = "sign"  # the mistake that every exercise must know
WIDTH = 100  # characters of a verdict's lines


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that people give, and the hint that fits it. `made`: the function with that mistake."""

    name: str
    made: Function
    hint: str


@dataclass(frozen=True, repr=False)
class Verdict:
    """What a check says. True where the answer is right."""

    id: str
    right: bool
    message: str

    def __bool__(self) -> bool:
        return self.right

    def __repr__(self) -> str:
        state = "right" if self.right else "not yet"
        paragraphs = f"{self.id}: {state}. {self.message}".split("\n")
        return "\n".join(textwrap.fill(paragraph, WIDTH) for paragraph in paragraphs)


@dataclass(frozen=True, repr=False)
class Page:
    """Text in Markdown, which a notebook shows set, with links for what it names of the paper, of claims and errata."""

    text: str
    paper: str = ""

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        from fu_papers.places import linked  # brings what reads notebooks, which nobody waits for who only checks

        return links.linked(linked(self.text, self.paper), links.MARKDOWN_LINK)


@dataclass(frozen=True)
class Exercise:
    """An exercise with all of its parts; its answer is a function.

    id: the paper (or guide) and a number, "puf-2"; stars: how hard, 1 to 3; minutes: how long about.
    statement: what is asked (Markdown); stub, solution: Python that defines the function `answer`, may use torch and
    fu_core as a notebook does, and imports what else it needs.
    trials: the arguments of every call that is tried, made anew each time; the first is small enough to be shown.
    hints: from a nudge to nearly all of it; mistakes: one of them the wrong sign; commentary: what it was good for.
    reference: what the answer is compared with; by default the solution. same: whether two results, float64 tensors of
    the same shape, count as equal. beyond: what else must be true of the answer; "" or what is wrong.
    then: Python of a further cell, which does something with a right answer, and prints at once that there is none
    where there is none; then_text: the cell above it (Markdown).
    """

    id: str
    title: str
    stars: int
    minutes: int
    statement: str
    stub: str
    answer: str
    solution: str
    trials: Callable[[], Sequence[Arguments]]
    hints: tuple[str, ...]
    mistakes: tuple[Mistake, ...]
    commentary: str
    reference: Function | None = None
    same: Callable[[Tensor, Tensor], bool] = field(default=lambda given, right: _close(given, right))
    beyond: Callable[[Function], str] = field(default=lambda answer: "")
    then_text: str = ""
    then: str = ""

    @property
    def paper(self) -> str:
        """Whose notebook it stands in."""
        return self.id.rpartition("-")[0]

    # --- as a notebook has it ---

    @property
    def text(self) -> str:
        """The cell above the stub."""
        head = f"### {self.id}  {'★' * self.stars}  {self.minutes} min: {self.title}"
        help_text = (
            f'Stuck: `hint("{self.id}")`, then `hint("{self.id}", 2)`. Done, or given up: `solution("{self.id}")`.'
        )
        return f"{head}\n\n{_tidy(self.statement)}\n\n{help_text}"

    @property
    def code(self) -> str:
        """The cell to be filled in."""
        return f'{_tidy(self.stub)}\n\n\ncheck("{self.id}", {self.answer})'

    @property
    def further(self) -> tuple[str, str]:
        """The two cells after it, text and code, for who has solved it; empty where there are none."""
        return _tidy(self.then_text), _tidy(self.then)

    @property
    def solved(self) -> str:
        """The solution with its commentary (Markdown)."""
        return f"**{self.id}: {self.title}**\n\n```python\n{_tidy(self.solution)}\n```\n\n{_tidy(self.commentary)}"

    # --- the judge ---

    @cached_property
    def model_answer(self) -> Function:
        """The function that an answer is compared with."""
        return self.reference or self.defined(self.solution)

    def defined(self, source: str) -> Function:
        """The function `answer` that a piece of Python defines."""
        import fu_core

        names: dict[str, Any] = {"torch": torch, "fu_core": fu_core, "__name__": f"exercise {self.id}"}
        exec(compile(_tidy(source), f"<{self.id}>", "exec"), names)
        found: Function = names[self.answer]
        return found

    def judge(self, answer: Any) -> Verdict:
        """Try `answer`, and say that it is right, or what is wrong with a hint that fits."""
        message = self._wrong_with(answer)
        return Verdict(self.id, not message, message or " ".join(_tidy(self.commentary).split()))

    def _wrong_with(self, answer: Any) -> str:
        if not callable(answer):
            return f'Hand over the function itself, `check("{self.id}", {self.answer})`, not what it returns.'
        given = []
        for arguments in self.trials():
            before = [tensor.clone() for tensor in _tensors(arguments)]
            try:
                result = answer(*arguments)
            except Exception as error:  # whatever somebody's code may raise
                return f"It stops with {type(error).__name__}: {error}"
            if result is ...:
                return f"The stub is still there: put your own in place of `...`. {self._first_hint}"
            if result is None:
                return "It returns nothing: is there a `return`?"
            after = _tensors(arguments)
            if not all(torch.equal(*pair) for pair in zip(before, after, strict=True)):
                return (
                    f"It changes {self._changed(before, after, arguments)} in place, and whoever called it has lost "
                    "what was there. Make a new tensor, `w - step` say, in place of `w -= step`."
                )
            given.append(result)
        return self._compared(given) or self.beyond(answer)

    def _compared(self, given: Sequence[Any]) -> str:
        wanted = [_number(self.model_answer(*arguments)) for arguments in self.trials()]
        results = []
        for result, right in zip(given, wanted, strict=True):
            try:
                results.append(_number(result))
            except (TypeError, ValueError, RuntimeError):
                return f"It returns {_shown(result)}, and not a number or a tensor. {self._first_hint}"
            if results[-1].shape != right.shape:
                shapes = tuple(results[-1].shape), tuple(right.shape)
                return f"Its result has the shape {shapes[0]}, and should have {shapes[1]}. {self._first_hint}"
            if not results[-1].isfinite().all() and right.isfinite().all():
                return f"Its result is not finite: is something divided by zero? {self._first_hint}"
        if self._equal(results, wanted):
            return ""
        if not any(result.any() for result in results):
            return f"Its result is always zero. {self._first_hint}"
        for mistake in self.mistakes:
            if self._equal(results, [_number(mistake.made(*arguments)) for arguments in self.trials()]):
                return mistake.hint
        if self._equal([-result for result in results], wanted):
            return "Right, but for the sign of the whole result."
        return self._example(results, wanted)

    def _equal(self, results: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
        pairs = zip(results, wanted, strict=True)
        return all(result.shape == right.shape and self.same(result, right) for result, right in pairs)

    def _example(self, results: Sequence[Tensor], wanted: Sequence[Tensor]) -> str:
        """The first trial that goes wrong, as numbers, and a hint."""
        where = next(k for k, pair in enumerate(zip(results, wanted, strict=True)) if not self.same(*pair))
        if where:
            return f"Right for the first {where} of {len(wanted)} trials, but not for all. {self.hints[-1]}"
        shown = ", ".join(f"{name} = {_shown(value)}" for name, value in self._named(self.trials()[0]))
        return f"For {shown} it gives {_shown(results[0])}, and should give {_shown(wanted[0])}. {self._first_hint}"

    @property
    def _first_hint(self) -> str:
        return f"Hint: {self.hints[0]}"

    def _named(self, arguments: Arguments) -> Iterator[tuple[str, Any]]:
        names = list(inspect.signature(self.defined(self.stub)).parameters)
        return zip(names, arguments, strict=True)

    def _changed(self, before: Sequence[Tensor], after: Sequence[Tensor], arguments: Arguments) -> str:
        moved = [not torch.equal(was, now) for was, now in zip(before, after, strict=True)]
        names = [name for name, value in self._named(arguments) for _ in _tensors((value,))]  # one per tensor
        return f"`{names[moved.index(True)]}`"


def _tensors(of: Any) -> list[Tensor]:
    """All tensors in arguments: by themselves, in containers, and the model of a `Trained`."""
    if isinstance(of, Tensor):
        return [of]
    if isinstance(of, dict):
        return _tensors(tuple(of.values()))
    if isinstance(of, (tuple, list)):
        return [tensor for each in of for tensor in _tensors(each)]
    return _tensors(of.model) if isinstance(getattr(of, "model", None), Tensor) else []


def _number(result: Any) -> Tensor:
    """Numbers, booleans and tensors as one float64 tensor."""
    return torch.as_tensor(result, dtype=torch.float64).detach()


def _close(given: Tensor, right: Tensor) -> bool:
    return torch.allclose(given, right, rtol=1e-5, atol=1e-8)


def _shown(value: Any) -> str:
    """An argument or a result in few words: numbers in four digits, what is no number by its kind."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, (bool, int, str)) or value is None:
        return str(value)
    return f"{value:.4g}" if isinstance(value, float) else f"a {type(value).__name__}"


def _tidy(text: str) -> str:
    return textwrap.dedent(text).strip()
