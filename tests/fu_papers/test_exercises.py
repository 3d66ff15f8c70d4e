"""Every exercise answers: its solution is right, every wrong answer gets the hint that fits. Notebooks have them."""

import time
from collections import Counter
from inspect import signature
from textwrap import dedent

import nbformat
import pytest
import torch

import fu_core
from fu_core.evaluation import klom, lira, membership, per_example_epsilon
from fu_core.federation import graphs
from fu_core.federation.server import aggregate
from fu_core.unlearning import fedora_score, gaussian_mechanism, hf_kcu, method, puf
from fu_core.unlearning.baselines import fed_eraser
from fu_papers.arena import results as arena_results
from fu_papers.exercises import check, exercise, exercises, hint, solution
from fu_papers.exercises.__main__ import BEGIN, TAG, cells_of, put_into
from fu_papers.exercises.exercise import SIGN, STARS
from fu_papers.hf_kcu.metrics import causal_faithfulness
from fu_papers.lab.notebooks import guides, notebooks
from fu_papers.places import linked, marks
from tests.notebook_lab import unlinked

IDS = list(exercises())
MISTAKES = [(id, mistake.name) for id in IDS for mistake in exercise(id).mistakes]
PAPERS = ("puf", "hf_kcu", "fedora", "certified_dfl")


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """What an answer registers is gone after the test."""
    method.methods()
    monkeypatch.setattr(method, "_REGISTERED", dict(method._REGISTERED))


def solved(id):
    return exercise(id).defined(exercise(id).solution)


def tensors_among(id):
    """An exercise's arguments that can be changed in place: tensors, and what has a model."""
    return [value for value in exercise(id).trials()[0] if isinstance(getattr(value, "model", value), torch.Tensor)]


def refused(verdict):
    """The message of a verdict on a wrong answer."""
    assert not verdict.right
    assert not bool(verdict)
    assert repr(verdict).startswith(f"{verdict.id}: not yet. ")
    return verdict.message


# --- every exercise ---


def test_each_paper_has_at_least_six():
    counts = Counter(exercise(id).paper for id in IDS)
    assert {paper: counts[paper] >= 6 for paper in PAPERS} == dict.fromkeys(PAPERS, True)
    assert set(counts) == {*PAPERS, "start_here", "arena"}


@pytest.mark.parametrize("id", IDS)
def test_it_is_complete(id):
    chosen = exercise(id)
    assert chosen.id == id
    assert chosen.stars in STARS
    assert 5 <= chosen.minutes <= 30
    assert len(chosen.hints) >= 2
    assert chosen.mistakes[0].name == SIGN
    assert len({mistake.hint for mistake in chosen.mistakes}) == len(chosen.mistakes) >= 3
    assert all((chosen.title, chosen.statement.strip(), chosen.commentary.strip()))
    assert list(signature(chosen.defined(chosen.stub)).parameters) == list(signature(solved(id)).parameters)


@pytest.mark.parametrize("id", IDS)
def test_the_solution_passes(id):
    verdict = check(id, solved(id))
    assert verdict.right, verdict
    assert repr(verdict).startswith(f"{id}: right. ")


@pytest.mark.parametrize("id", IDS)
def test_the_stub_is_recognised_and_gets_a_hint(id):
    message = refused(check(id, exercise(id).defined(exercise(id).stub)))
    assert "The stub is still there" in message
    assert exercise(id).hints[0] in message


@pytest.mark.parametrize(("id", "name"), MISTAKES)
def test_a_known_mistake_gets_its_own_hint(id, name):
    """The wrong sign is one of them in every exercise."""
    (mistake,) = (mistake for mistake in exercise(id).mistakes if mistake.name == name)
    assert refused(check(id, mistake.made)) == mistake.hint


@pytest.mark.parametrize("id", IDS)
def test_zero_is_refused(id):
    right = exercise(id).model_answer
    message = refused(check(id, lambda *given: torch.zeros_like(torch.as_tensor(right(*given), dtype=torch.float64))))
    assert "always zero" in message or message in {mistake.hint for mistake in exercise(id).mistakes}


@pytest.mark.parametrize("id", IDS)
def test_zero_is_noticed_in_every_trial_where_it_is_wrong(id):
    chosen = exercise(id)
    results = [torch.as_tensor(chosen.model_answer(*of), dtype=torch.float64).detach() for of in chosen.trials()]
    assert [k for k, right in enumerate(results) if right.any() and chosen.same(torch.zeros_like(right), right)] == []


@pytest.mark.parametrize("id", [id for id in IDS if tensors_among(id)])
def test_an_input_changed_in_place_is_named(id):
    """Also where the result is right. Numbers cannot be changed in place."""
    right = exercise(id).model_answer
    names = list(signature(right).parameters)

    def careless(*given):
        result = right(*given)
        for value in given:
            tensor = getattr(value, "model", value)
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                tensor += 1
                break
        return result

    message = refused(check(id, careless))
    assert "in place" in message
    assert any(f"`{name}`" in message for name in names)


@pytest.mark.parametrize("id", IDS)
def test_whatever_goes_wrong_is_a_verdict_and_no_traceback(id):
    def broken(*given):
        raise KeyError("x")

    assert "It stops with KeyError" in refused(check(id, broken))
    assert "It stops with TypeError" in refused(check(id, lambda: 0))
    assert "is there a `return`?" in refused(check(id, lambda *given: None))
    assert "the function itself" in refused(check(id, 3.0))
    assert "not a number or a tensor" in refused(check(id, lambda *given: "two"))
    assert "has the shape" in refused(check(id, lambda *given: torch.zeros(2, 7, 1)))
    shape = exercise(id).model_answer(*exercise(id).trials()[0])
    nan = torch.full_like(torch.as_tensor(shape, dtype=torch.float64), float("nan"))
    assert refused(check(id, lambda *given: nan.expand_as(torch.as_tensor(exercise(id).model_answer(*given)))))


@pytest.mark.parametrize("id", IDS)
def test_hints_and_solution_are_shown(id):
    chosen = exercise(id)
    assert chosen.hints[0] in repr(hint(id))
    assert chosen.hints[-1] in repr(hint(id, 99))
    assert "```python" in solution(id)._repr_markdown_()
    with pytest.raises(ValueError, match="number must be a whole number >= 1, got 0"):
        hint(id, 0)


@pytest.mark.parametrize("id", IDS)
def test_what_it_names_of_the_paper_of_claims_and_of_errata_is_a_link(id):
    """Where it is Markdown: what a check says is plain text."""
    chosen = exercise(id)
    helps = [hint(id, number + 1) for number in range(len(chosen.hints))]
    shown = [linked(text, chosen.paper) for text in (chosen.text, chosen.further[0])]
    shown += [page._repr_markdown_() for page in (*helps, solution(id))]
    assert [text for text in shown if unlinked(text, chosen.paper if chosen.paper in PAPERS else "")] == []


def test_a_link_in_a_hint_leads_where_it_says_and_its_plain_text_has_none():
    named = hint("puf-2")
    assert "[Eq. (7)](../fu_papers/places.md#place-puf-eq-7)" in named._repr_markdown_()
    assert "Eq. (7) as one sum" in repr(named)
    assert "[erratum P7](../fu_papers/errata.md#p7)" in solution("puf-3")._repr_markdown_()


def test_an_exercise_that_is_not_there_is_named_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'puf-2'"):
        check("puf2", None)


def test_a_method_that_is_not_registered_is_told_how():
    assert "not registered: put `@fu_core.register" in refused(check("puf-6", exercise("puf-6").model_answer))


def test_a_method_that_is_registered_under_another_name_or_was_before_is_told_so():
    right = exercise("puf-6").model_answer
    fu_core.register("mine", paper="mine", colour="#d98cc0")(right)
    assert "registered as 'mine'" in refused(check("puf-6", right))
    solved("puf-6")  # registers what it defines
    assert "registered as 'mine'" in refused(check("puf-6", right))
    assert "'my NoT' is another function" in refused(check("puf-6", lambda *given: right(*given)))


def test_a_new_mistake_is_shown_with_numbers_and_one_in_later_trials_with_the_last_hint():
    assert "it gives [1, 1], and should give [1, -7]" in refused(check("puf-1", lambda w, *of: 1.0 * w))
    shown = refused(check("hf_kcu-2", lambda loss, w, v: 3 * v))
    assert shown.startswith("For loss = a function, w = [1, 1], v = [1, -1] it gives [3, -3], and should give [2, -6].")
    assert "trained = a Trained, " in refused(check("puf-6", lambda trained, *of: trained.model + 1))
    late = refused(check("puf-3", lambda sizes, leaves, eta_u: 4 * eta_u if len(sizes) == 2 else 1.0))
    assert late == f"Right for the first 1 of 3 trials, but not for all. {exercise('puf-3').hints[-1]}"


# --- what they teach is what the library does ---


def bowls(theta, theta_f, w_f):
    """A federation of two clients that rest at `theta`, the second with the weight w_f and its optimum in theta_f."""
    m = 100
    n_f = round(w_f * m)
    stays = (theta - w_f * theta_f) / (1 - w_f)
    eye = torch.eye(len(theta), dtype=torch.float64)
    many = [(eye.repeat(n, 1), at.repeat(n)) for n, at in ((m - n_f, stays), (n_f, theta_f))]
    line = fu_core.FlatModel(torch.nn.Linear(len(theta), 1, bias=False), task="regression")
    return fu_core.Federation(line, dict(enumerate(many)))


def by_algorithm_1(theta, theta_f, w_f):
    f = bowls(theta, theta_f, w_f)
    leaves = fu_core.Request.parse("client-1").resolve(f.clients)
    return hf_kcu.hf_kcu(f, theta, leaves, form="printed", damping=0.0, scaling=False)


def eta_u_of_fedavg(eta_r):
    """The eta_u at which `pseudo_gradient`, which is linear in it, is FedAvg's mean update times eta_r."""
    deltas = torch.tensor([[0.0, 4.0], [4.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    sizes = torch.tensor([30.0, 10.0, 20.0], dtype=torch.float64)
    of = (deltas, sizes, torch.tensor([True, False, True]))
    at_0, at_1 = (puf.pseudo_gradient(*of, mode="regular", eta_r=eta_r, eta_u=eta_u) for eta_u in (0.0, 1.0))
    wanted, per_eta_u = eta_r * aggregate(deltas, sizes / sizes.sum()) - at_0, at_1 - at_0
    eta_u = wanted @ per_eta_u / (per_eta_u @ per_eta_u)
    torch.testing.assert_close(eta_u * per_eta_u, wanted)
    return eta_u


LIBRARY = {
    "start_here-1": lambda w, deltas, sizes: w + aggregate(deltas, sizes / sizes.sum()),
    "start_here-2": lambda members, unseen, threshold: (
        (membership.yeom(members, torch.tensor([threshold])) - membership.yeom(unseen, torch.tensor([threshold]))) / 100
    ),
    "puf-1": lambda w, deltas, sizes, eta_u: puf.puf(w, deltas, sizes, torch.ones(len(sizes)).bool(), eta_u=eta_u),
    "puf-2": eta_u_of_fedavg,
    "puf-3": lambda sizes, leaves, eta_u: (
        puf.effective_step(sizes, leaves, mode="special", eta_u=eta_u)
        / puf.effective_step(sizes, leaves, mode="regular", eta_u=1.0)
    ),
    "puf-5": lambda w, stored, fresh, sizes: w + aggregate(
        fed_eraser.calibrate(
            fu_core.FlatModel(torch.nn.Linear(len(w), 1, bias=False)), stored, fresh, per_layer=False
        )[0],
        sizes / sizes.sum(),
    ),
    "hf_kcu-3": lambda product, g, k: hf_kcu.conjugate_gradient(product, g, iters=k)[0],
    "hf_kcu-4": by_algorithm_1,
    "hf_kcu-7": lambda u, r, o: causal_faithfulness(u, r, o, n_test=10**9).value,
    "fedora-1": lambda logits, beta: fedora_score.uncertainty_loss(logits, weight=beta),
    "fedora-5": lambda logits, labels, forgotten, beta: fedora_score.threshold_of_entropy(
        fedora_score.entropy_share(logits[torch.isin(labels, forgotten)]), weight=beta
    ),
    "fedora-7": lambda logits, beta: fedora_score.uncertainty_loss(logits, weight=beta, score="reverse"),
    "certified_dfl-1": lambda links: graphs.metropolis(graphs.nx.from_numpy_array(links.numpy())),
    "certified_dfl-6": lambda sensitivity, sigma, epsilon: gaussian_mechanism.gaussian_delta(
        sensitivity, sigma, epsilon=epsilon
    ),
    "certified_dfl-7": lambda sigma, k: 1 / (
        gaussian_mechanism.gaussian_mu(1.0, sigma) / gaussian_mechanism.composed_mu([1.0] * k)
    ),
    "arena-1": lambda unlearned, retrained: klom.klom(unlearned[:, None], retrained[:, None])[0],
    "arena-2": lambda *crowds: lira._scores(*(crowd[:, None].numpy() for crowd in crowds), "pooled")[:, 0],
    "arena-3": lambda missed, accused, n, delta: (
        per_example_epsilon._epsilons(n, delta).reshape(n + 1, n + 1)[missed, accused]
    ),
}  # fmt: skip


@pytest.mark.parametrize("id", LIBRARY)
def test_the_library_passes_the_check(id):
    verdict = check(id, LIBRARY[id])
    assert verdict.right, verdict


@pytest.mark.parametrize("E", [1, 3])
def test_eta_star_is_exact_retraining(E):
    """puf-4, on two bowls of the library."""
    f = bowls(torch.tensor([2.0]).double(), torch.tensor([4.0]).double(), 0.5)
    slow = f.having(local=fu_core.ClientOpt(lr=0.25, epochs=E, batch_size=100))
    eta_u = solved("puf-4")(0.5, 0.25, 1.0, E)
    trained = fu_core.Trained(slow, torch.tensor([2.0]).double())
    served = fu_core.unlearn("PUF-Special", trained, "client-1", eta_u=eta_u, epochs_u=E)
    assert served.model.item() == pytest.approx(0.0, abs=1e-6)


def test_beyond_the_largest_rate_training_diverges():
    """certified_dfl-4: powers of the round's matrix, just below the bound and just above."""
    Q, L = exercise("certified_dfl-4").trials()[1]
    bound = float(solved("certified_dfl-4")(Q, L))
    lengths = [
        float(torch.linalg.matrix_power(Q - share * bound * L * torch.eye(len(Q)), 2000).norm())
        for share in (0.99, 1.01)
    ]
    assert lengths[0] < 1e-3
    assert lengths[1] > 1e3


def run_after(*cells):
    """The names that a notebook has after the first cell of the exercises and then these."""
    names = {"__name__": "__main__"}
    for cell in (BEGIN, *cells):
        exec(cell, names)
    return names


def test_a_registered_method_is_sent_to_the_arena_and_lands_where_not_does(capsys):
    """puf-6: the same numbers and the same bits, in well under twenty seconds; and the controls hold there."""
    chosen, begun = exercise("puf-6"), time.monotonic()
    names = run_after(dedent(chosen.solution), chosen.further[1])
    assert time.monotonic() - begun < 20
    frame = names["frame"]
    mine, theirs = (frame[frame.method == name].iloc[0] for name in ("my NoT", "NoT"))
    for number in ("left", "left_low", "left_high", "klom_forget", "auc", "price", "test", "forget"):
        assert mine[number] == theirs[number]
    assert arena_results.wrong_controls(frame) == []
    assert frame.set_index("method").left["Original"] == pytest.approx(100)
    assert "The very models that NoT makes: True" in capsys.readouterr().out


def test_another_method_than_not_is_told_from_it(capsys):
    nothing = dedent("""
        @fu_core.register("my NoT", paper="mine", colour="#d98cc0")
        def nothing(trained, deletion, config):
            return trained.model.clone()
    """)
    run_after(nothing, exercise("puf-6").further[1])
    assert "The very models that NoT makes: False" in capsys.readouterr().out


@pytest.mark.parametrize("id", [id for id in IDS if exercise(id).then])
def test_before_it_is_solved_its_further_cell_only_says_so(id, capsys):
    text, code = exercise(id).further
    assert text
    run_after(code)
    assert "yet" in capsys.readouterr().out


# --- in the notebooks ---

BOOKS = guides() | notebooks()
WITH = [paper for paper in BOOKS if any(exercise(id).paper == paper for id in IDS)]


@pytest.mark.parametrize("paper", WITH)
def test_the_notebook_has_them_as_they_are_here_and_as_their_stubs_print(paper):
    """On failure: `python -m fu_papers.exercises`."""
    notebook = nbformat.read(BOOKS[paper], as_version=4)
    begin = [cell.id for cell in notebook.cells].index("exercise-begin")
    count = sum(cell.cell_type == "code" for cell in notebook.cells[:begin])
    wanted = cells_of(paper, count, [mark for cell in notebook.cells for mark in marks(cell.source)])
    assert notebook.cells[begin : begin + len(wanted)] == wanted
    tagged = [cell for cell in notebook.cells if TAG in cell.metadata.get("tags", [])]
    assert len(tagged) == 1 + sum(1 + bool(exercise(id).then) for id in IDS if exercise(id).paper == paper)


def test_putting_them_in_twice_changes_nothing_and_other_code_may_not_follow():
    section = nbformat.v4.new_markdown_cell("## 7. Exercises", id="section")
    first, end = nbformat.v4.new_code_cell("1", id="first"), nbformat.v4.new_markdown_cell("## 8. End", id="end")
    notebook = nbformat.v4.new_notebook(cells=[first, section, end])
    put_into(notebook, "puf")
    once = [cell.copy() for cell in notebook.cells]
    put_into(notebook, "puf")
    assert notebook.cells == once
    assert once[2].execution_count == 2
    assert once[-1].id == "end"
    notebook.cells.append(nbformat.v4.new_code_cell("2", id="late"))
    with pytest.raises(ValueError, match="exercises come last"):
        put_into(notebook, "puf")
