"""ProGRPO: what its placebo keeps, which groups it wakes, and bad input is named."""

import math

import pytest
import torch

from rl4llm.advantages.confidence import arm, confidence_gap, confidence_shift, text_confidence
from rl4llm.advantages.group_relative import grpo
from rl4llm.core.placebos import placebo
from rl4llm.core.policy import Policy
from rl4llm.core.registry import use
from rl4llm.core.rollouts import group_sum
from rl4llm.core.signals import scored
from rl4llm.tasks import task

R = torch.tensor([1.0, 1.0, 0.0, 0.0])
GROUP = torch.tensor([0, 0, 1, 1])
GAP = torch.tensor([-0.5, 0.2, 0.1, 0.3])


def shifted(gap, **knobs):
    return arm(R, GROUP, rollouts=None, policy=None, logp_old=None, gap=gap, **knobs)


def test_a_solved_group_has_a_signal():
    "GRPO learns nothing from either group."
    adv = shifted(lambda *rows, **given: GAP)
    assert not grpo(R, GROUP).any()
    assert torch.allclose(adv, torch.tensor([-0.25, 0.1, 0.0, 0.0]))


def test_peers_keep_the_sum_of_a_group_and_rows_do_not():
    policy = Policy.load('tiny')
    problems = task('countdown', level='hard').sample(16, seed=2)
    rows = scored(policy, policy.sample(problems, 8, seed=2), use('correct'))
    known = dict(rollouts=rows, policy=policy, logp_old=rows.logp_behave)
    plain = grpo(rows.rewards, rows.group)
    own = group_sum(arm(rows.rewards, rows.group, **known) - plain, rows.group)
    sums = {}
    for among in ('rows', 'peers'):
        gap = placebo(confidence_gap, among=among)
        adv = arm(rows.rewards, rows.group, gap=gap, **known)
        sums[among] = group_sum(adv - plain, rows.group)
    assert torch.allclose(sums['peers'], own, atol=1e-4)
    assert abs(sums['rows'].sum() - own.sum()) > 0.05 * abs(own.sum())


@pytest.mark.parametrize('knob', ['alpha', 'threshold'])
@pytest.mark.parametrize('value', [math.nan, math.inf, 'x'])
def test_knobs_are_numbers(knob, value):
    with pytest.raises(ValueError, match=f'confidence_shift: {knob} is .*, wanted a finite'):
        confidence_shift(R, GROUP, GAP, GAP, **{'alpha': 0.5, knob: value})


@pytest.mark.parametrize('place', [2, 3])
def test_confidences_are_one_a_row(place):
    "One for all was spread over the rows."
    given = [R, GROUP, GAP, GAP]
    given[place] = GAP[:1]
    with pytest.raises(ValueError, match=r'has shape \(1,\), wanted \(4,\)'):
        confidence_shift(*given, alpha=0.5)


def test_a_gap_is_one_a_row():
    with pytest.raises(ValueError, match=r'arm: what gap gave has shape \(1,\)'):
        shifted(lambda *rows, **given: GAP[:1])


def test_a_token_without_a_probability_is_named_wherever_it_ranks():
    "With the lowest share alone it went unnoticed."
    logp = torch.full((2, 5), 0.5).log()
    logp[1, 3] = math.nan
    mask = torch.ones(2, 5).bool()
    for share in (0.2, 1.0):
        with pytest.raises(ValueError, match='text_confidence: row 1, token 3 has logp nan'):
            text_confidence(logp, mask, share=share)
    mask[1, 3:] = False
    assert torch.allclose(text_confidence(logp, mask), torch.tensor([0.5, 0.5]))
