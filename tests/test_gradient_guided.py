"""G2RL: rounding is no novelty, and bad input is named."""

import math

import pytest
import torch

from rl4llm.advantages.gradient_guided import between_extremes, g2rl, gradient_novelty
from rl4llm.core.policy import Policy
from rl4llm.core.registry import use
from rl4llm.core.signals import scored
from rl4llm.tasks import task

REWARDS = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 1.0])
GROUP = torch.zeros(6).long()


def of(values):
    return dict(rollouts=None, policy=None, old_hidden=None, novelty=lambda *rows, **more: values)


NEW = torch.tensor([0.1, 0.2, 0.5, 0.4, 0.9, 0.3])


def test_equal_texts_get_equal_advantages():
    "Two right wordings, eight of each: a last digit was worth advantages of -1.25 and 0.75."
    policy = Policy.load('tiny')
    problems = task('countdown', level='easy').sample(48, seed=1)
    batch = scored(policy, policy.sample(problems, 16, seed=1), use('correct'))
    hidden = policy.hidden(batch).detach()
    adv = g2rl(batch.rewards, batch.group, rollouts=batch, policy=policy, old_hidden=hidden)
    of_words = {}
    for g, text, a in zip(batch.group.tolist(), batch.texts, adv.tolist()):
        of_words.setdefault((g, text), []).append(a)
    assert max(max(a) - min(a) for a in of_words.values()) < 1e-3
    ten = [adv for (g, _), adv in of_words.items() if g == 10]
    assert [len(adv) for adv in ten] == [8, 8] and not any(map(any, ten))


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('seed', range(4))
def test_wordings_as_frequent_are_as_new(dtype, seed):
    features = torch.randn(2, 40, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    group = torch.zeros(14).long()
    nu = gradient_novelty(features.repeat(7, 1), torch.ones(14, dtype=dtype), group)
    assert nu.dtype == dtype and not between_extremes(nu, group).any()


def test_what_differs_by_more_than_rounding_is_scaled():
    pair = torch.zeros(2).long()
    assert between_extremes(torch.tensor([0.3, 0.3 + 1e-4]), pair).tolist() == [0, 1]
    assert between_extremes(torch.tensor([0.3, 0.3 + 2e-7]), pair).tolist() == [0, 0]


@pytest.mark.parametrize('knob', ['lam', 'threshold'])
@pytest.mark.parametrize('value', [math.nan, math.inf, 'x', None])
def test_knobs_are_numbers(knob, value):
    with pytest.raises(ValueError, match=f'g2rl: {knob} is .*, wanted a finite number'):
        g2rl(REWARDS, GROUP, **of(NEW), **{knob: value})


def test_a_novelty_has_a_number_for_each_scored_row():
    "Rows without one were left out in silence, and a single number was spread over all."
    holed = NEW.clone().index_fill(0, torch.tensor([2]), math.nan)
    with pytest.raises(ValueError, match='novelty gave nan for row 2'):
        g2rl(REWARDS, GROUP, **of(holed))
    unscored = REWARDS.clone().index_fill(0, torch.tensor([2]), math.nan)
    assert g2rl(unscored, GROUP, **of(holed)).isfinite().all()
    with pytest.raises(ValueError, match=r'what novelty gave has shape \(1,\)'):
        g2rl(REWARDS, GROUP, **of(NEW[:1]))


def test_whole_rewards_are_refused():
    with pytest.raises(ValueError, match='g2rl: rewards hold torch.int64, wanted real numbers'):
        g2rl(REWARDS.long(), GROUP, **of(NEW))
