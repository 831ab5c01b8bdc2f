"""Positive and negative reinforcement: knobs and rewards that are none are named."""

import math

import pytest
import torch

from rl4llm.advantages.negative_reinforcement import negative, positive, weighted_reinforce

REWARDS = torch.tensor([1.0, 0.0, math.nan])
GROUP = torch.zeros(3).long()
METHODS = (weighted_reinforce, positive, negative)


@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('threshold', [math.nan, math.inf, 'x', None])
def test_a_threshold_is_a_number(method, threshold):
    "A threshold of nan made every row wrong."
    with pytest.raises(ValueError, match='weighted_reinforce: threshold is .*, wanted a finite'):
        method(REWARDS, GROUP, threshold=threshold)


@pytest.mark.parametrize('weight', [math.nan, math.inf, 'x'])
def test_a_weight_is_a_number(weight):
    with pytest.raises(ValueError, match='weighted_reinforce: weight is .*, wanted a finite'):
        weighted_reinforce(REWARDS, GROUP, weight=weight)


@pytest.mark.parametrize('method', METHODS)
def test_whole_rewards_are_refused(method):
    "A weight of 0.1 became 0 in them."
    with pytest.raises(ValueError, match='rewards hold torch.int64, wanted real numbers'):
        method(torch.tensor([1, 0, 1]), GROUP)


def test_right_rows_count_by_a_tenth_in_each_kind_of_real_number():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        adv = weighted_reinforce(REWARDS.to(dtype), GROUP)
        assert adv.dtype == dtype
        assert torch.allclose(adv.double(), torch.tensor([0.1, -1.0, 0.0]).double(), atol=1e-3)
