"""RoRecomp by hand: which rows come first, batches stacked, what is counted."""

import math
import pytest, torch
from rl4llm.core.rollouts import ORIGINS, make_rollouts
from rl4llm.rollouts.recomposition import (
    priority_rows,
    recomposed_sample,
    recomposition_counts,
    stacked_batches,
)
from rl4llm.tasks import task


def rows_of(lengths, rewards, group, **fields):
    "Rows of these lengths, one prompt a group."
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    group = torch.tensor(group)
    one = torch.ones(int(group.max()) + 1, 1)
    return make_rollouts(
        prompt_ids=one.long(),
        prompt_mask=one.bool(),
        tokens=real.long(),
        mask=real,
        prompt=group,
        rewards=torch.tensor(rewards),
        **fields,
    )


def first_of(rows, **how):
    return (
        priority_rows(rows.rewards, rows.group, rollouts=rows, **how).nonzero().flatten().tolist()
    )


def test_rows_without_a_reward_count_in_no_group():
    # half of two wrong rows is one, whatever the group before has left unscored
    rows = rows_of([1, 1, 1, 5, 4], [math.nan] * 3 + [0.0, 0.0], [0, 0, 0, 1, 1])
    assert first_of(rows) == [3]


def test_a_length_is_told_the_rewards_and_the_groups():
    rewards = [float(k) for k in range(20, 0, -1)]
    rows = rows_of([1] * 20, rewards, [3] * 20)

    def worth(rewards, group, *, rollouts):
        assert (group == 3).all()
        return rewards

    assert first_of(rows, share=0.05, by=worth) == [19]


def test_batches_are_numbered_on():
    one = rows_of([1] * 4, [1.0] * 4, [0, 0, 1, 1])
    two = rows_of([2] * 6, [0.0] * 6, [0, 0, 1, 1, 2, 2])
    later = two.group + 7
    whole = stacked_batches([one, type(two)(**{**vars(two), 'group': later}), one], 0)
    assert whole.group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    assert whole.group.equal(whole.prompt)
    assert whole.mask.sum(1).tolist() == [1] * 4 + [2] * 6 + [1] * 4


def test_counts_by_hand():
    lengths = [3, 5, 4, 8, 2, 7]
    rewards = [1.0, 1.0, 0.0, 0.0, math.nan, 2.0]
    fresh = rows_of(lengths, rewards, [0] * 6)
    # of three right rows two stay, of two wrong ones one
    wanted = dict(priority=3, compensation=0, left=2, right=4.0, wrong=8.0)
    wanted |= dict(right_left=7.0, wrong_left=4.0)
    assert recomposition_counts(fresh) == wanted
    replay = torch.full((6,), ORIGINS.index('replay'))
    back = rows_of(lengths, rewards, [0] * 6, origin=replay)
    wanted = dict(priority=0, compensation=2, left=3, right=7.0, wrong=4.0)
    wanted |= dict(right_left=4.0, wrong_left=8.0)
    assert recomposition_counts(back) == wanted


def test_one_response_each_if_nothing_is_said(small_policy):
    items = task('countdown', level='easy').sample(3, seed=0)
    sampler = recomposed_sample(start=0.0)
    for step in range(2):
        rows = sampler(small_policy, items, seed=step, max_new_tokens=3)
        assert rows.prompt.tolist() == [0, 1, 2]
        assert (rows.traj >> 32).tolist() == [step] * 3
        sampler.update(rows)


@pytest.mark.parametrize('share', [0.0, 1.5])
def test_a_share_out_of_range_is_named(share):
    with pytest.raises(ValueError, match='share'):
        first_of(rows_of([1], [1.0], [0]), share=share)
