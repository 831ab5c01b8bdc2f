"""Advantages for pass@k: numbers that are none, and what the division by the deviation is."""

import math

import pytest
import torch

from rl4llm.advantages.passk_advantages import grpo_passk, pkpo

RIGHT = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0])
GROUP = torch.tensor([0, 0, 0, 1, 1, 1])


@pytest.mark.parametrize('k', [2.5, '2', 0, -1, True, None, math.nan])
def test_k_is_a_whole_number_from_1(k):
    with pytest.raises(ValueError, match='pkpo: k is .*, wanted a whole number of at least 1'):
        pkpo(RIGHT, GROUP, k=k)


def test_too_few_rows_are_told_with_their_number():
    with pytest.raises(ValueError, match='at least 4 rows a group; the smallest group has 3'):
        pkpo(RIGHT, GROUP, k=4)


@pytest.mark.parametrize('threshold', [math.nan, math.inf, '0.5'])
def test_a_threshold_is_a_number(threshold):
    with pytest.raises(ValueError, match='pkpo: threshold is .*, wanted a finite number'):
        pkpo(RIGHT, GROUP, threshold=threshold)


@pytest.mark.parametrize('eps', [math.nan, -1.0, 'x'])
def test_eps_is_a_number_from_0_on(eps):
    with pytest.raises(ValueError, match='grpo_passk: eps is .*, wanted a finite number'):
        grpo_passk(RIGHT, GROUP, eps=eps)


def test_without_eps_equal_rewards_are_worth_nothing():
    "0 / 0 was nan."
    assert grpo_passk(RIGHT, GROUP, eps=0.0)[3:].tolist() == [0, 0, 0]


@pytest.mark.parametrize('stage', [grpo_passk, pkpo])
def test_whole_rewards_are_refused(stage):
    "They ended in an overflow of torch, or were cut to whole advantages."
    with pytest.raises(ValueError, match='rewards hold torch.int64, wanted real numbers'):
        stage(RIGHT.long(), GROUP)


@pytest.mark.parametrize('n', [2, 3, 5, 16])
def test_the_division_is_a_constant_for_right_and_wrong(n):
    right = (torch.arange(n) == n - 1).double()
    group = torch.zeros(n).long()
    divided = grpo_passk(right, group, eps=0.0)
    assert torch.allclose(divided, math.sqrt(n) * grpo_passk(right, group, scale='none'))
