"""More baselines: where the token baseline has nobody to compare with, and bad input is named."""

import math

import pytest
import torch

from rl4llm.advantages.baselines import rloo
from rl4llm.advantages.group_relative import dr_grpo
from rl4llm.advantages.more_baselines import gpg, opo, optimal_token_baseline, remax, score_energy
from rl4llm.core.registry import use
from rl4llm.oracle.estimators import check
from rl4llm.oracle.tabular import TokenTree, random_logits, tree_rewards

ONE_RIGHT = torch.tensor([1.0, 0.0, 0.0])
GROUP = torch.zeros(3).long()
MASK = torch.arange(5) < torch.tensor([5, 2, 3])[:, None]
HALF = torch.full((3, 5), 0.5)
LOGP = HALF.log()


def by_token(rewards, mask=MASK, logp=LOGP, collision=HALF, **knobs):
    known = dict(mask=mask, logp_old=logp, old_collision=collision)
    return optimal_token_baseline(rewards, GROUP, **known, **knobs)


def test_the_longest_row_of_a_solved_group_is_pushed_up_in_its_tail():
    assert by_token(torch.ones(3))[0].tolist() == [0, 0, 0, 1, 1]
    assert not by_token(torch.ones(3), zero_tail=False).any()


def test_what_is_left_out_leaves_a_lone_row_its_whole_reward():
    for zero_tail in (True, False):
        alone = by_token(ONE_RIGHT, leave_out=True, zero_tail=zero_tail)[0, 3:]
        assert alone.tolist() == [1, 1]


def test_certain_tokens_have_no_weight_and_no_score():
    logp, agree = HALF.log(), HALF.clone()
    logp[:, 0], agree[:, 0] = 0, 1
    everywhere = torch.ones(3, 5).bool()
    adv = by_token(torch.ones(3), everywhere, logp, agree, zero_tail=False)
    assert adv[:, 0].tolist() == [1, 1, 1] and not adv[:, 1:].any()
    assert not score_energy(logp, agree, everywhere)[:, 0].any()


def test_a_hole_of_the_others_counts_as_a_tail():
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 1], [1, 1, 0, 0, 1]]).bool()
    assert (by_token(ONE_RIGHT, mask)[0] == 1).tolist() == [False, False, True, True, False]


def test_the_bias_of_opo_is_no_factor():
    tree = TokenTree(vocab=3, length=2, eos=0)
    z = random_logits(tree, seed=3)
    r = tree_rewards(tree, lambda tokens: sum(tokens) == 2)
    plain, weighted = (check(f, tree, z, r, group=3) for f in (dr_grpo, opo))
    assert plain.cosine > 1 - 1e-9 and weighted.cosine < 1 - 1e-4


def test_two_rows_are_compared_with_each_other_while_both_are_going():
    tree = TokenTree(vocab=3, length=2, eos=0)
    z = random_logits(tree, seed=3)
    r = tree_rewards(tree, lambda tokens: sum(tokens) == 2)
    token = use(optimal_token_baseline, leave_out=True)
    for rewards, same in ((r, True), (1 - r, False)):
        noise = [check(f, tree, z, rewards, group=2).variance for f in (rloo, token)]
        assert math.isclose(*noise, rel_tol=1e-9) == same


@pytest.mark.parametrize('place', ['logp', 'collision'])
@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_a_token_without_an_energy_is_named(place, value):
    "One nan gave a whole group its raw rewards from that token on."
    bad = dict(logp=LOGP, collision=HALF.clone())
    bad[place][1, 1] = value
    with pytest.raises(ValueError, match=r'row 1, token 1 has logp .* wanted finite numbers'):
        by_token(ONE_RIGHT, **bad)


def test_what_stands_outside_the_mask_or_in_an_unscored_row_need_be_no_number():
    logp = HALF.log()
    logp[1, 4] = logp[2] = math.nan
    adv = by_token(torch.tensor([1.0, 0.0, math.nan]), logp=logp)
    assert adv.isfinite().all() and not adv[2].any()


def test_a_token_of_probability_0_has_an_energy():
    logp = HALF.log()
    logp[0, 0] = -math.inf
    assert score_energy(logp, HALF, MASK)[0, 0] == 1.5


@pytest.mark.parametrize('value', [math.inf, -math.inf])
def test_an_infinite_greedy_reward_is_named(value):
    greedy = torch.tensor([0.0, value, 0.0])
    with pytest.raises(ValueError, match=r'remax: greedy_rewards hold an infinite value \(row 1\)'):
        remax(ONE_RIGHT, GROUP, greedy_rewards=greedy)


def test_an_unscored_greedy_response_is_worth_nothing():
    greedy = torch.tensor([0.0, math.nan, 1.0])
    assert remax(ONE_RIGHT, GROUP, greedy_rewards=greedy).tolist() == [1, 0, -1]


@pytest.mark.parametrize('alpha', [math.nan, math.inf, 'x'])
def test_alpha_is_a_number(alpha):
    with pytest.raises(ValueError, match='gpg: alpha is .*, wanted a finite number'):
        gpg(ONE_RIGHT, GROUP, alpha=alpha)


def test_alpha_counts_rows_and_not_prompts_that_teach_nothing():
    one = torch.tensor([1.0] + [0.0] * 7)
    group = torch.arange(2).repeat_interleave(8)
    others = {8: one, 16 / 9: torch.ones(8), 16: torch.zeros(8)}
    for alpha, other in others.items():
        r = torch.cat([one, other])
        assert torch.allclose(gpg(r, group), alpha * dr_grpo(r, group))
