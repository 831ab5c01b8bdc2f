"""OREAL's token reward model: what it learns from, and what its weights are."""

import pytest
import torch

from rl4llm import Policy, task
from rl4llm.core.registry import recipe, use
from rl4llm.core.rollouts import rows_of
from rl4llm.core.signals import scored
from rl4llm.objectives.outcome_limit import one_of_each, token_reward_weights, verdict_weights


@pytest.fixture(scope='module')
def policy():
    return Policy.load('tiny')


def batch(policy, seed):
    rows = policy.sample(task('countdown').sample(8, seed=seed), 16, seed=seed)
    return scored(policy, rows, use('correct'))


def weights_after_lessons(policy, one_each, lessons=6):
    weigher = token_reward_weights(warmup=0, one_each=one_each)
    for seed in range(lessons):
        rows = batch(policy, seed)
        weigher(rows, rows.mask.float(), policy=policy)
        weigher.update(rows)
    rows = batch(policy, 100)
    weights, _ = weigher(rows, rows.mask.float(), policy=policy)
    right = rows.rewards > 0.5
    assert 0 < right.float().mean() < 0.4, 'most responses are wrong, or the test says nothing'
    return tuple(weights[of][rows.mask[of]].mean().item() for of in (right, ~right))


def test_a_model_that_learns_from_all_rows_gives_right_ones_no_weight(policy):
    of_right, of_wrong = weights_after_lessons(policy, one_each=False)
    assert of_right < 0.01 and of_wrong > 0.2


def test_a_model_that_learns_from_pairs_does_not_just_know_that_most_rows_are_wrong(policy):
    _, of_wrong = weights_after_lessons(policy, one_each=True)
    assert of_wrong < 0.3


def test_rows_outside_the_pairs_teach_nothing(policy):
    rows = batch(policy, 3)
    chosen = one_of_each(rows.rewards, rows.group)
    assert chosen.any() and not chosen.all()
    first, second = (token_reward_weights(one_each=True) for _ in range(2))
    for weigher in (first, second):
        weigher.probabilities(rows, policy)
    first.update(rows)
    second.update(rows_of(rows, chosen))
    assert first.losses == pytest.approx(second.losses, rel=1e-4)


def test_even_weights_are_one_on_every_token():
    mask = torch.tensor([[True, True], [True, False]])
    p = torch.tensor([[0.9, 0.2], [0.1, 0.4]])
    even = verdict_weights(p, torch.tensor([True, False]), mask, how='even')
    assert torch.equal(even, mask.float())


def test_the_recipe_is_that_of_the_released_configuration():
    select = dict(recipe('oreal').select.knobs)
    pairs = dict(recipe('oreal_pairs').select.knobs)
    assert select['one_each'] and select['warmup'] == 10
    assert pairs == select | {'how': 'even'}
