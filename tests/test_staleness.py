"""Stale weights and other engines: the exact gradients are right, and bad input is answered."""

from functools import partial
import pytest, torch
from rl4llm.core.policy import Policy
from rl4llm.core.registry import recipe, use
from rl4llm.objectives.off_policy import banded_ppo, truncated_is
from rl4llm.objectives.surrogates import ppo_clip
from rl4llm.oracle.estimators import score_loss
from rl4llm.oracle.tabular import (
    TokenTree,
    exact_gradient,
    random_logits,
    sequence_logps,
    token_logps,
)
from rl4llm.samplers.stale_samples import engine_sample, round_weights
from rl4llm.scaling.staleness import (
    CORRECTIONS,
    ascent_path,
    gradient_of_lagged,
    mismatch,
    noisy_reports,
)
from rl4llm.tasks import task
from rl4llm.training.loop import train

TREE = TokenTree(vocab=2, length=3, eos=1)
REWARDS = torch.arange(len(TREE.sequences)).double() % 3
HERE = random_logits(TREE, seed=0)
THERE = random_logits(TREE, seed=1)


@pytest.mark.parametrize('name', list(CORRECTIONS))
def test_on_fresh_rows_every_correction_is_the_policy_gradient(name):
    found = gradient_of_lagged(CORRECTIONS[name], TREE, HERE, REWARDS, drawn=HERE)
    assert torch.allclose(found.mean, exact_gradient(TREE, HERE, REWARDS), atol=1e-12)


def test_the_exact_mean_and_variance_are_those_of_many_drawn_rows():
    found = gradient_of_lagged(truncated_is, TREE, HERE, REWARDS, drawn=THERE)
    p = sequence_logps(TREE, THERE).exp()
    adv = REWARDS - p @ REWARDS
    rows = p.multinomial(20_000, replacement=True, generator=torch.Generator().manual_seed(0))
    each = []
    for s in range(len(p)):
        z = HERE.clone().requires_grad_()
        logp = token_logps(TREE, z)[s : s + 1]
        loss = truncated_is(
            logp,
            logp.detach(),
            adv[s].expand_as(logp),
            TREE.mask[s : s + 1],
            logp_behave=token_logps(TREE, THERE)[s : s + 1],
        )
        each.append(-torch.autograd.grad(loss.sum(), z)[0])
    drawn = torch.stack(each)[rows]
    error = (drawn.mean(0) - found.mean) / (found.spread / len(rows)).sqrt().clamp(min=1e-12)
    assert error.abs().max() < 5
    assert abs(drawn.var(0).sum() / found.variance - 1) < 0.1


def test_the_whole_weight_is_unbiased_and_no_correction_is_not():
    whole = gradient_of_lagged(CORRECTIONS['whole weight, row'], TREE, HERE, REWARDS, drawn=THERE)
    nothing = gradient_of_lagged(ppo_clip, TREE, HERE, REWARDS, drawn=THERE)
    assert whole.unbiased and not nothing.unbiased


def test_a_noisy_report_multiplies_the_whole_weight_by_the_mean_of_its_error():
    "E exp(-noise) over a row of T tokens is exp(T (std^2 / 2 - mean)): 1 for mean = std^2 / 2."
    tree = TokenTree(vocab=2, length=2)
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0]).double()
    z = random_logits(tree, seed=2)
    truth = token_logps(tree, z)
    whole = CORRECTIONS['whole weight, row']
    for mean, wanted in ((0.0, 1.284), (0.125, 1.0)):
        reports = noisy_reports(truth, tree.mask, std=0.5, mean=mean, draws=300)
        found = gradient_of_lagged(whole, tree, z, rewards, drawn=z, reported=reports)
        assert found.scale == pytest.approx(wanted, abs=0.12)


def test_old_logits_are_where_the_clip_is():
    "From old = THERE, tokens that have left the clip's range are silent in ppo_clip."
    at_old = gradient_of_lagged(ppo_clip, TREE, HERE, REWARDS, drawn=THERE, old=THERE)
    naive = gradient_of_lagged(CORRECTIONS['naive'], TREE, HERE, REWARDS, drawn=THERE)
    assert torch.allclose(at_old.mean, naive.mean)
    free = gradient_of_lagged(score_loss, TREE, HERE, REWARDS, drawn=THERE)
    assert not torch.allclose(at_old.mean, free.mean)


def test_an_objective_with_other_needs_is_refused():
    def greedy(logp, logp_old, adv, mask, *, entropy):
        return logp * entropy

    with pytest.raises(ValueError, match='entropy'):
        gradient_of_lagged(greedy, TREE, HERE, REWARDS, drawn=HERE)


def test_the_path_is_gradient_ascent():
    first, second = ascent_path(TREE, HERE, REWARDS, steps=1, lr=0.5)
    assert torch.equal(second, HERE + 0.5 * exact_gradient(TREE, HERE, REWARDS))
    assert first is HERE


LOGP = torch.log(torch.tensor([[0.5, 0.2, 0.9], [0.3, 0.3, 0.3]]))
MASK = torch.tensor([[True, True, True], [True, True, False]])
ADV = torch.tensor([[1.0] * 3, [-1.0] * 3])


def test_a_band_around_everything_is_the_weight_and_the_filter_is_plain_ppo():
    behave = LOGP - 0.3
    wide = banded_ppo(LOGP, LOGP, ADV, MASK, logp_behave=behave, band=(0, 1e9))
    assert torch.equal(
        wide, truncated_is(LOGP, LOGP, ADV, MASK, logp_behave=behave, level='token', cap=None)
    )
    filtered = banded_ppo(LOGP, LOGP, ADV, MASK, logp_behave=behave, band=(0, 1e9), weigh=False)
    assert torch.equal(filtered, ppo_clip(LOGP, LOGP, ADV, MASK))


@pytest.mark.parametrize('shift, stays', [(0.0, True), (2.0, False), (-1.0, False)])
def test_both_sides_of_the_band_shut_out(shift, stays):
    loss = banded_ppo(LOGP, LOGP, ADV, MASK, logp_behave=LOGP - shift)
    assert bool((loss != 0).any()) == stays


def test_nan_outside_the_mask_is_nothing_and_inside_is_refused():
    behave = LOGP.clone()
    behave[1, 2] = float('nan')
    assert banded_ppo(LOGP, LOGP, ADV, MASK, logp_behave=behave).isfinite().all()
    behave[0, 0] = float('nan')
    with pytest.raises(ValueError):
        banded_ppo(LOGP, LOGP, ADV, MASK, logp_behave=behave)


@pytest.mark.parametrize('band', [(2, 1), (1, 1), (-1, 2), (float('nan'), 2)])
def test_an_empty_band_is_refused(band):
    with pytest.raises(ValueError, match='low < high'):
        banded_ppo(LOGP, LOGP, ADV, MASK, logp_behave=LOGP, band=band)


def test_mismatch_by_hand_and_without_tokens():
    found = mismatch(LOGP + torch.tensor([[1.0], [0.0]]), LOGP, MASK)
    assert found['mean'] == pytest.approx(3 / 5) and found['largest'] == pytest.approx(1)
    weights = torch.tensor([3.0, 0.0]).exp()
    counts = weights.sum() ** 2 / weights.square().sum() / 2
    assert found['rows'] == pytest.approx(float(counts))
    with pytest.raises(ValueError, match='no token'):
        mismatch(LOGP, LOGP, torch.zeros_like(MASK))


@pytest.fixture(scope='module')
def tiny():
    return Policy.load('tiny-v1', bf16=False)


def test_rounding_is_what_the_type_holds_and_happens_once(tiny):
    one = tiny.clone()
    round_weights(one)
    before = [p.clone() for p in one.model.parameters()]
    assert all(torch.equal(p, p.bfloat16().float()) for p in before)
    round_weights(one)
    assert all(map(torch.equal, before, one.model.parameters()))
    changed = [not torch.equal(p, q) for p, q in zip(before, tiny.model.parameters())]
    assert any(changed)


def test_the_sampler_leaves_the_policy_alone_and_its_state_goes_on(tiny):
    items = task('countdown', level='easy').sample(2, seed=0)
    learner = tiny.clone()
    sampler = engine_sample(lag=1)
    sampler(learner, items, 2, seed=0)
    kept = [p.clone() for p in learner.model.parameters()]
    again = engine_sample(lag=1)
    again.load_state_dict(sampler.state_dict())
    ours, theirs = sampler(learner, items, 2, seed=1), again(learner, items, 2, seed=1)
    assert all(map(torch.equal, kept, learner.model.parameters()))
    assert torch.equal(ours.logp_behave, theirs.logp_behave) and not ours.sampled.any()


@pytest.mark.parametrize('wrong', [dict(dtype='int8'), dict(dtype='no'), dict(lag=-1)])
def test_a_wrong_engine_is_refused(wrong):
    with pytest.raises(ValueError, match='wanted'):
        engine_sample(**wrong)


def test_stages_are_on_the_shelf_and_the_old_module_still_has_them():
    import rl4llm.scaling.staleness as old

    assert old.banded_ppo is use('banded_ppo').info.fn is recipe('icepop').objective.info.fn
    assert old.engine_sample is use('engine_sample').info.fn
    assert old.round_weights is round_weights


def test_an_engine_with_a_lag_draws_with_rounded_weights_of_the_past(tiny):
    items = task('countdown', level='easy').sample(2, seed=0)
    moved = tiny.clone()
    with torch.no_grad():
        for p in moved.model.parameters():
            p.mul_(1.1)
    sampler = engine_sample(lag=1)
    sampler(tiny, items, 2, seed=0)
    late = sampler(moved, items, 2, seed=1)
    rounded = tiny.clone()
    round_weights(rounded)
    assert torch.equal(late.logp_behave, rounded.sample(items, 2, seed=1).logp_behave)


def test_a_run_meets_the_mismatch(tiny):
    made = recipe(
        'grpo',
        sampler=use(engine_sample, lag=1),
        objective=partial(banded_ppo, level='sequence'),
        prompts=2,
        group=4,
    )
    run = train(tiny.clone(), task('countdown', level='easy'), made, steps=2, seed=0)
    assert len(run.metrics) == 2 and run.metrics['grad_norm'].notna().all()
