"""Audits of whole releases: what is planted is found, what is honest is not refuted, and each starts from its data."""

from dataclasses import replace

import pytest
import torch

from fu_core.errors import CertificateViolation, RepeatedNoise
from fu_core.evaluation.release_audit import audit_release
from fu_core.federation.decentralised import start
from fu_core.unlearning.certificate import Privacy, composed, retained_gradient
from fu_core.unlearning.du import du_release
from fu_core.unlearning.gaussian_mechanism import gaussian_sigma
from fu_core.unlearning.noise import rehearsal
from fu_papers.certified_dfl import (
    theory_audit,
    theory_canaries,
    theory_figures,
    theory_releases,
    theory_tables,
    theory_whole,
)
from fu_papers.certified_dfl.theory_releases import (
    BARE,
    BOTH,
    EACH,
    MESSAGES,
    ONE_MODEL,
    PLANTED,
    SHARED,
    TURN,
    TWICE,
    Releases,
)
from fu_papers.certified_dfl.theory_whole import CASES, TIGHT, UNLIKE
from fu_papers.study import Study
from tests.certified_dfl_lab import experiment

QUICK = theory_whole.cells(experiment())


@pytest.fixture(scope="module")
def records(theory_store):
    """As the quick profile has them."""
    study = Study(experiment(), theory_store, jobs=1)
    return {
        "whole": list(study.run("theory: whole").values()),
        "canaries": list(study.run("theory: canaries").values()),
    }


@pytest.fixture(scope="module")
def rows(records):
    return [row for held in records.values() for record in held for row in record.metrics["rows"]]


def config(case, **changes):
    return {**QUICK[case], "draws": 8, **changes}


def mechanism(here, name, claimed=5.0):
    return next(m for m in theory_releases.mechanisms(here) if (m.name, m.claimed) == (name, claimed))


# --- the records -----------------------------------------------------------------------------------------------------


def test_every_planted_release_is_found_and_no_honest_one_is(rows):
    """At the quick profile's draws."""
    planted = [row for row in rows if row["planted"]]
    assert {row["mechanism"] for row in planted} == {*PLANTED, theory_canaries.FORGOT_NOTHING}
    assert all(row["refuted"] and row["audited"] > row["claimed"] for row in planted)
    assert not any(row["counted"] for row in planted)
    honest = [row for row in rows if not row["planted"]]
    assert all(row["counted"] and row["mechanism"].startswith("corrected") for row in honest)
    assert not any(row["refuted"] or row["broken"] for row in honest)
    assert all(row["audited"] <= row["true"] <= row["claimed"] for row in honest if row["true"] is not None)


def test_each_is_found_in_the_way_that_it_is_wrong(rows):
    by = {row["mechanism"]: row["by"] for row in rows if row["planted"]}
    assert by[TWICE] == "change since the last"
    assert by[SHARED] == by[TURN] == "differences of models"
    assert by[theory_releases.TENTH] == by[theory_releases.THIRD] == by[BARE] == "mean model"
    assert by[theory_canaries.FORGOT_NOTHING] == "canaries"


def test_the_honest_release_beside_them_is_tight(rows):
    """Its claim is nearly used up, and what is planted claims as much."""
    tight = [row for row in rows if row["truth"] == "exact" and row["mechanism"] == "corrected, one model"
             and row["by"] != "canaries"]  # fmt: skip
    assert [row["claimed"] for row in tight] == [0.5, 1.0, 5.0]
    assert all(0.88 * row["claimed"] < row["true"] < row["claimed"] for row in tight)
    assert {row["claimed"] for row in rows if row["planted"] and row["by"] != "canaries"} == {5.0}


def test_the_audits_of_a_profile_share_half_of_alpha(records, rows):
    """Planted ones need none: they are wrong."""
    counted = sum(row["counted"] for row in rows)
    together = {record.config["together"] for held in records.values() for record in held}
    assert together == {2 * counted}
    every = [theory_whole.together(experiment(audit_cases=n)) for n in range(1, len(CASES) + 1)]
    assert every == sorted(set(every))
    assert every[-1] == 2 * (9 * 5 + 8 * 8 + 4)


def test_the_sweep_has_every_combination_once_and_begins_with_all_kinds():
    assert len(set(CASES)) == len(CASES) == 17
    for part, values in zip(zip(*CASES[1:], strict=True), ((2, 8),) * 4, strict=True):
        assert (len(set(part)), part.count(part[0])) == values
    assert all(one != other for one, other in zip(TIGHT, UNLIKE, strict=True))
    cells = theory_whole.cells(experiment(audit_cases=17, audit_draws=64))
    assert {case.models: cell["draws"] for case, cell in cells.items()} == {"consensus": 64, "dpsgd": 16}
    assert sorted(name for cell in cells.values() for name in cell["planted"]) == sorted(PLANTED)
    more = theory_whole.cells(experiment(audit_cases=17, audit_draws=64, audit_tight=3))
    assert {case for case in cells if more[case] != cells[case]} == {TIGHT}
    assert more[TIGHT]["draws"] == 3 * 64


def test_where_noise_comes_first_there_are_fewer_releases_and_the_table_says_how_many(records, rows):
    draws = {(row["mechanism"], record.config["models"]): row["draws"]
             for record in records["whole"] for row in record.metrics["rows"]}  # fmt: skip
    assert draws["corrected, one model", "consensus"] == 4 * draws["corrected, noise first", "consensus"] == 256
    assert draws["corrected, one model", "dpsgd"] == draws["corrected, noise first", "dpsgd"] == 64
    table = theory_tables.whole_table([*records["whole"], *records["canaries"]])
    assert set(table[table.audit == "two worlds"].releases) == {256, 64}
    assert set(table[table.audit == "canaries"].releases) == {1}


# --- releases --------------------------------------------------------------------------------------------------------


def test_every_release_is_trained_anew_and_the_budget_rule_serves_it():
    """Other batches, other models, other noise; world B is x' whatever k is; as `du_release` makes them by itself."""
    here = theory_releases.held(config(UNLIKE))
    first, again, second = (theory_releases.trained(here, True, "audited", k) for k in (0, 0, 1))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert float((first - second).norm()) > 1e-3
    assert bool((theory_releases.trained(here, False, "audited", 0) == here.exact).all())
    one = mechanism(here, "corrected, one model")
    with rehearsal():
        releases = Releases(here)
        published = [releases.of(one, knew, k) for knew, k in ((True, 0), (True, 1), (False, 2))]
    sigma = one.sigma
    for models, W in zip(published, (first, second, start(here.exact, 10)), strict=True):
        alone = du_release(here.problem.federation, W, here.deletion, ONE_MODEL, one.privacy)
        assert alone.certificate is not None
        assert (alone.sigma, alone.certificate.radius <= one.privacy.budget) == (sigma, True)
        left = models[0] - alone.noiseless[0]
        assert float(left.std()) == pytest.approx(sigma, rel=0.5)  # 30 numbers
    assert releases.refused == 0


def test_a_release_that_is_refused_is_retrained():
    """Models of everybody's own take one step; too small a budget serves none of world A."""
    here = theory_releases.held(config(UNLIKE))
    each = mechanism(here, "corrected, noise for each")
    small = each._replace(privacy=replace(each.privacy, budget=each.privacy.budget / 3))
    with rehearsal():
        releases = Releases(here)
        models = releases.of(small, True, 0)
        assert releases.refused == 1
        releases.of(small, False, 1)
        assert releases.refused == 1
    sigma = small.sigma
    assert float((models - here.exact).std()) == pytest.approx(sigma, rel=0.15)  # x' and noise
    assert releases.farthest(small, "all models") > small.privacy.budget


def test_noise_is_another_in_every_release_of_a_run_and_the_library_says_so_if_not():
    here = theory_releases.held(config(TIGHT))
    one, twice = mechanism(here, "corrected, one model"), mechanism(here, TWICE)
    with rehearsal():
        releases = Releases(here)
        drawn = [releases.of(m, True, k) for m in (one, twice) for k in (0, 1, 2)]
        assert torch.equal(drawn[3], drawn[4])
        assert len({tuple(models.flatten().tolist()) for models in drawn}) == 5
        with pytest.raises(RepeatedNoise):
            Releases(here).of(one, True, 0)


def test_the_library_refuses_what_is_planted_as_a_smaller_sensitivity():
    """Its certificate is measured: no more than one step, and a third of the radius."""
    here = theory_releases.held(config(TIGHT))
    budget = theory_releases.pilot(here, ONE_MODEL).radius / 3
    W, f = theory_releases.trained(here, True, "audited", 0), here.problem.federation
    one_step = replace(ONE_MODEL, until=3 * budget)
    privacy = Privacy(epsilon=5.0, delta=1e-5, budget=budget)
    with pytest.raises(CertificateViolation):
        du_release(f, W, here.deletion, one_step, privacy)
    assert len(du_release(f, W, here.deletion, ONE_MODEL, privacy).steps) == 2  # left alone it takes another step


def test_both_audits_look_at_the_same_release():
    """Where training draws nothing: the same models in both worlds, and the same noise for the same claim."""
    plan = {"l2": 0.1, "split": "iid", "request": "samples", "models": "consensus", "m": 4, "epsilon": 5.0,
            "delta": 1e-5, "gamma": 0.0, "seed": 0}  # fmt: skip
    claim = next(c for c in theory_audit._corrected_claims(plan, theory_audit.twins(plan, "logistic"))
                 if c.options == ONE_MODEL)  # fmt: skip
    here = theory_releases.held(config(TIGHT, l2=0.1))
    one = mechanism(here, "corrected, one model")
    assert one.sigma == pytest.approx(claim.worlds.sigma, rel=1e-6)
    releases = Releases(here)
    for knew, models in ((True, claim.worlds.a), (False, claim.worlds.b)):
        plain = releases._unlearn(one, knew, 0)[1].noiseless
        torch.testing.assert_close(plain, models, rtol=0, atol=1e-9 * float(models.norm()))


def test_fresh_noise_is_audited_as_rehearsed_noise_is():
    """What users get, of which no record could be made again: a tenth of it is found, all of it is not refuted.

    Not even by 64 draws can an honest release be refuted with more than one chance in a million.
    """
    here = theory_releases.held(config(TIGHT, draws=64))
    releases, found = Releases(here, rehearsed=False), {}
    for name in ("corrected, one model", theory_releases.TENTH):
        made = mechanism(here, name)
        alpha = 0.05 if made.planted else 1e-6
        found[name] = audit_release(lambda knew, k, made=made: releases.of(made, knew, k), (True, False),
                                    claimed=5.0, delta=1e-5, draws=64, alpha=alpha)  # fmt: skip
    assert not found["corrected, one model"].refuted
    assert found[theory_releases.TENTH].refuted
    assert not torch.equal(*(Releases(here, rehearsed=False).of(made, True, 0) for _ in range(2)))


@pytest.mark.parametrize("case", [TIGHT, UNLIKE])
def test_a_run_is_the_same_twice(case):
    """Its noise is rehearsed, and may be rehearsed again."""
    first, again = (theory_whole.whole(config(case, epsilons=[5.0]), None)[0] for _ in range(2))
    assert first == again


def test_the_truth_by_hand():
    """Noise for each: the mean's has 1 / sqrt N of it, the tuple's distance is that of all clients together."""
    here = theory_releases.held(config(UNLIKE))
    each = mechanism(here, "corrected, noise for each")
    releases, sigma = Releases(here), each.sigma
    away = torch.full((9, 30), 0.01, dtype=torch.float64)
    for k, apart in enumerate((away, away / 2)):  # the second is nearer
        published = theory_releases.Published(away, away, apart)
        releases._published[each.name, each.claimed, True, k] = published
    distance = 0.01 * 30**0.5
    for output, apart in (("mean model", 3 * distance), ("one client's model", distance), ("all models", 3 * distance)):
        true, truth = theory_releases.truth_about(releases, each, output)
        assert truth == "at most"
        assert gaussian_sigma(apart, epsilon=true, delta=1e-5) == pytest.approx(sigma, rel=1e-6)
    assert theory_releases.truth_about(releases, mechanism(here, SHARED), "all models") == (None, "infinite")
    assert EACH.own_models


# --- in turn, and in every message -----------------------------------------------------------------------------------


def test_two_requests_are_served_in_turn_and_claim_what_their_certificates_do_together():
    """The second goes on from the first's models of before noise, in world B from x' of what is then kept."""
    here = theory_releases.held(config(TIGHT))
    both = mechanism(here, "corrected, in turn")
    once, again = here.asked
    assert again.deletion.n == once.deletion.n - once.deletion.m
    assert len(again.deletion.forgotten) == 10
    with rehearsal():
        releases = Releases(here)
        seen = releases.of(both, True, 0)
        W, plain = releases._unlearn(both, True, 0, turn=1)
        certificates = [
            du_release(one.f, models, one.deletion, ONE_MODEL, both.privacy).certificate
            for one, models in zip(here.asked, (start(here.x, 10), W), strict=True)
        ]
    assert composed(certificates, 1e-5) == pytest.approx(both.claimed, rel=1e-9)
    assert seen.shape == (2, 30)
    torch.testing.assert_close(W, releases._unlearn(both, True, 0)[1].noiseless, rtol=0, atol=0)
    torch.testing.assert_close(seen[1] - plain.noiseless[0], seen[1] - again.exact, rtol=0, atol=1e-6)
    noise = seen - torch.stack([releases._unlearn(both, True, 0, turn)[1].noiseless[0] for turn in (0, 1)])
    assert abs(float(torch.corrcoef(noise)[0, 1])) < 0.6  # of 30 numbers: noise of its own for each
    of_b = releases._unlearn(both, False, 0, turn=1)[1].noiseless
    torch.testing.assert_close(of_b[0], again.exact, rtol=0, atol=1e-9)


def test_when_a_client_has_left_the_next_one_does():
    once, again = theory_releases.held(config(UNLIKE)).asked
    assert list(once.deletion.forgotten) == [0]
    assert list(again.deletion.forgotten) == [1]
    assert set(again.deletion.kept) == set(range(2, 10))
    assert not once.deletion.kept.keys() & {0}


def test_an_insider_sees_the_noisy_start_less_its_own_part_of_the_noise():
    """What is left is exactly the noise that the certificate claims, around everybody's mean."""
    here = theory_releases.held(config(TIGHT))
    noisy = mechanism(here, "corrected, noise first")
    with rehearsal():
        releases = Releases(here)
        seen = torch.cat([releases.of(noisy, True, k) for k in range(200)])
    left = seen - here.x
    assert float(left.std()) == pytest.approx(noisy.sigma, rel=0.03)  # 6,000 numbers
    certificate = du_release(here.problem.federation, start(here.x, 10), here.deletion, noisy.options,
                             noisy.privacy).certificate  # fmt: skip
    assert (certificate.against, certificate.sigma) == ("messages", noisy.sigma)
    with pytest.raises(ValueError, match="rehearsed"):
        Releases(here, rehearsed=False).of(noisy, True, 0)


def test_messages_of_a_release_for_outsiders_give_everything_away():
    """Gradients at the trained model, whatever noise follows: none is left in world B."""
    here = theory_releases.held(config(TIGHT))
    bare = mechanism(here, BARE)
    with rehearsal():
        releases = Releases(here)
        of_a, of_b = releases.of(bare, True, 0), releases.of(bare, False, 1)
    x, f, deletion = here.x, here.problem.federation, here.deletion
    torch.testing.assert_close(-of_a[0], retained_gradient(f.model, x, deletion), rtol=1e-6, atol=1e-12)
    assert float(of_b.norm()) < 1e-9 * float(of_a.norm())


# --- canaries --------------------------------------------------------------------------------------------------------


def canary_config(**changes):
    return {**theory_canaries.configs(26, 1e-5)[0], "m": 64, "guesses": 16, **changes}


@pytest.mark.parametrize("models", theory_canaries.MODELS)
def test_canaries_are_trained_and_all_of_them_forgotten(models):
    run = theory_canaries.trained(canary_config(models=models), seed=3)
    assert 0 < run.included.sum() < 64
    assert run.deletion.m == run.included.sum()
    gone = torch.cat([x for x, _ in run.deletion.forgotten.values()])
    assert sorted(gone.argmax(dim=1).tolist()) == [30 + j for j in range(64) if run.included[j]]
    assert all(len(y) == 40 and not bool(x[:, 30:].any()) for x, y in run.deletion.kept.values())
    leaning = (run.W.mean(dim=0) - run.exact)[30:]
    known = torch.from_numpy(run.included)
    assert float(leaning[known].min()) > 10 * float(leaning[~known].abs().max())  # whoever forgot nothing is found
    other = theory_canaries.trained(canary_config(models=models), seed=4)
    assert (other.included != run.included).any()


def test_guesses_look_at_what_is_published():
    """The trained model gives every coin away, x' none."""
    chosen = canary_config()
    run = theory_canaries.trained(chosen, seed=3)
    assert theory_canaries.guessed(run, run.W[0], chosen).right == 32
    coins = theory_canaries.guessed(run, run.exact, chosen)
    assert coins.right < 32
    assert coins.epsilon == 0


def test_a_canary_run_is_the_same_twice():
    first, again = (theory_canaries.canaries(canary_config(models="dpsgd"), None)[0] for _ in range(2))
    assert first == again


# --- tables and figures ----------------------------------------------------------------------------------------------


def test_planted_rows_are_marked_in_the_table(records, rows):
    table = theory_tables.whole_table([*records["whole"], *records["canaries"]])
    assert len(table) == len(rows)
    planted = table.planted == "planted"
    assert set(table[planted].claim) == {"found"}
    assert set(table[~planted].claim) == {"stands"}
    assert sum(planted) == len(PLANTED) + 2  # two canary runs
    assert set(table[table.mechanism == SHARED].published) == {"all models"}
    assert set(table[table.mechanism == "corrected, one model"].published) == {"one model"}
    assert set(table[table.mechanism == "corrected, in turn"].published) == {BOTH}
    assert set(table[table.mechanism == "corrected, noise first"].published) == {MESSAGES}
    assert (table.audit == "canaries").sum() == 6
    assert list(table[table.mechanism.isin([TWICE, TURN, BARE])]["true ε"]) == ["∞"] * 3
    assert any(str(true).startswith("≤ ") for true in table["true ε"])


def test_a_planted_release_that_is_missed_is_called_missed(records):
    row = next(row for record in records["whole"] for row in record.metrics["rows"] if row["planted"])
    assert theory_tables.audit_outcome({**row, "refuted": False}) == "missed"


def test_the_figure_has_a_line_per_mechanism_and_claim(records, rows):
    (ax,) = theory_figures.whole_figure([*records["whole"], *records["canaries"]]).axes
    labels = [text.get_text() for text in ax.get_yticklabels()]
    assert len(labels) == len(set(labels)) == 3 + 2 + 3 + 2 + 6 + 1
    assert len(rows) == (3 + 2) + (3 + 2 + 3) + 4 + 6 + 2
    assert labels[-7:] == [theory_figures._whole_label(row) for row in rows if row["planted"]][:7]
