"""RDD: the law of its bonus by hand and by chance, what it counts, and how a run goes on."""

import math
import pytest, torch
from conftest import weights
from rl4llm.advantages.group_relative import grpo
from rl4llm.advantages.random_distillation import (
    Familiarity,
    TwoNetworks,
    bonus_parts,
    distillation_bonus,
    expected_bonus,
    group_bonus,
    pseudo_counts,
    rdd,
    step_states,
)
from rl4llm.core.policy import Policy
from rl4llm.core.registry import recipe, use
from rl4llm.core.rollouts import make_rollouts, rows_of
from rl4llm.core.signals import scored
from rl4llm.tasks import task
from rl4llm.training.callbacks import Checkpoint
from rl4llm.training.loop import train

EASY = task('countdown', level='easy')


@pytest.fixture(scope='module')
def policy():
    return Policy.load('tiny', fast=True, bf16=False, graphs=False)


@pytest.fixture(scope='module')
def rows(policy):
    drawn = policy.sample(EASY.sample(3, seed=2), 6, seed=3)
    return scored(policy, drawn, use('correct'))


def test_bonus_by_hand():
    mean, said = torch.tensor([[0.0, 2.0], [1.0, 1.0]]), torch.tensor([[3.0, 3.0], [1.0, 1.0]])
    assert distillation_bonus(said, mean).tolist() == [5.0, 0.0]  # (9 + 1) / 2
    assert distillation_bonus(said, mean, spread=torch.tensor([2.0, 1.0])).tolist() == [1.25, 0.0]
    assert pseudo_counts(torch.tensor([5.0]), spread=5.0).tolist() == [5.0]
    # draws 4, 1, 1 around 1: the means are 4, 2.5 and 2
    draws = torch.tensor([4.0, 1.0, 1.0])
    means = draws.cumsum(0) / torch.arange(1, 4)
    assert distillation_bonus(means[:, None], torch.ones(3, 1)).tolist() == [9.0, 2.25, 1.0]


def test_expected_bonus_by_hand():
    assert expected_bonus(torch.full((5,), 0.2), spread=2.0) == pytest.approx(4 / 5)
    assert expected_bonus(torch.zeros(0), first=3.0) == 3.0
    # a step of 0.1 towards each of three draws
    step = torch.tensor([0.081, 0.09, 0.1])
    wanted = 0.081**2 + 0.09**2 + 0.1**2 + 0.729**2
    assert float(expected_bonus(step)) == pytest.approx(wanted)
    assert float(expected_bonus(step, spread=0.0)) == pytest.approx(0.9**6)


@pytest.mark.parametrize('weights_of', ['mean', 'step', 'part'])
def test_law_of_weighted_draws(weights_of):
    n, spread, first = 12, 1.5, 2.0
    w = {
        'mean': torch.full((n,), 1 / n),
        'step': 0.3 * 0.7 ** torch.arange(n - 1, -1, -1.0),
        'part': torch.full((n,), 0.05),
    }[weights_of]
    g = torch.Generator().manual_seed(0)
    states, outputs = 64, 256
    mean = torch.randn(states, outputs, generator=g)
    guess = mean + math.sqrt(first)
    draws = mean + spread * torch.randn(n, states, outputs, generator=g)
    said = (w[:, None, None] * draws).sum(0) + (1 - w.sum()) * guess
    found = distillation_bonus(said, mean).mean()
    assert float(found) == pytest.approx(
        float(expected_bonus(w, spread=spread, first=first)), rel=0.03
    )
    # the sum of both parts is no less, on average, as long as the weights come to at most 1
    parts = bonus_parts(said, draws.mean(0), mean)
    assert sum(part.mean() for part in parts) > found * 0.97
    assert float(parts[0].mean()) == pytest.approx(spread**2 / n, rel=0.03)


def test_least_squares_counts_visits_and_random_networks_do_not():
    g = torch.Generator().manual_seed(1)
    counts = torch.tensor([1, 2, 4, 8, 16, 32])
    mean = torch.randn(6, 256, generator=g)
    for spread, law in ((1.0, 1 / counts), (0.0, torch.zeros(6))):
        fits = [
            (m + spread * torch.randn(n, 256, generator=g)).mean(0)
            for m, n in zip(mean, counts.tolist())
        ]
        assert distillation_bonus(torch.stack(fits), mean).allclose(
            law.float(), rtol=0.3, atol=1e-6
        )


def test_sum_of_the_parts_is_no_bound_of_single_draws():
    zero, best, said = (torch.full((1, 3), x) for x in (0.0, 1.0, 2.0))
    chance, optimiser = bonus_parts(said, best, zero)
    assert distillation_bonus(said, zero) == 4 > chance + optimiser


def test_unseen_states_are_all_worth_one():
    torch.manual_seed(3)
    nets = TwoNetworks(5, width=7, outputs=9)
    states = torch.cat([torch.randn(4, 5), 100 * torch.randn(4, 5)])
    with torch.no_grad():
        assert distillation_bonus(*nets(states)).allclose(torch.ones(8), atol=1e-4)
    assert not any(p.requires_grad for p in nets.target.parameters())


@pytest.mark.parametrize('spread', [0.0, 1.0])
def test_familiar_states_are_worth_less(spread):
    g = torch.Generator().manual_seed(0)
    states = torch.randn(3, 16, generator=g)
    known = Familiarity(spread=spread, passes=8, width=32, outputs=32)
    known.bonus(states)
    before = [x.clone() for x in known.module['nets'].target.parameters()]
    for _ in range(8):
        known.visit(states[[1] * 2 + [2] * 30])
    b = known.bonus(states)
    assert b[0] > 0.5 and b[1:].max() < 0.3 and known.losses[-1] < 3
    assert spread == 0 or 2 * b[2] < b[1]  # of RND both are next to nothing
    after = known.module['nets'].target.parameters()
    assert all(torch.equal(x, y) for x, y in zip(before, after))
    known.visit(states[:0])
    assert known.batches == 8


def test_states_are_measured_by_the_first_batch():
    "Deviations 2, 1 and 0: the last is taken for a tenth of their mean."
    known = Familiarity(passes=1)
    first = torch.tensor([[0.0, 0.0, 5.0], [4.0, 2.0, 5.0]])
    assert known.scaled(first).allclose(torch.tensor([[-1.0, -1.0, 0.0], [1.0, 1.0, 0.0]]))
    assert known.scaled(torch.tensor([[4.0, 1.0, 5.3]])).allclose(torch.tensor([[1.0, 0.0, 3.0]]))
    alike = Familiarity(passes=1)
    alike.scaled(torch.full((2, 3), 5.0))
    assert alike.scaled(torch.full((1, 3), 7.0)).tolist() == [[2.0] * 3]


def test_memory_holds_the_newest_visits_with_their_draws():
    known = Familiarity(memory=5, passes=1)
    states = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    known.visit(states)
    drawn = known.visits['draws'].clone()
    known.visit(states[:3])
    assert len(known.visits['states']) == len(known.visits['draws']) == 5
    assert torch.equal(known.visits['draws'][:2], drawn[2:])
    assert not torch.equal(known.visits['draws'][2:], drawn[:3])  # a visit has a draw of its own


def test_familiarity_goes_on_bit_for_bit():
    states = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    straight, stopped, resumed = (Familiarity(passes=3) for _ in range(3))
    for known in (straight, stopped):
        known.visit(states)
    resumed.load_state_dict(stopped.state_dict())
    for known in (straight, resumed):
        known.visit(states[:2] + 1)
    assert torch.equal(straight.bonus(states), resumed.bonus(states))
    assert straight.losses == resumed.losses
    assert straight.state_dict().keys() == resumed.state_dict().keys()


def test_the_state_of_one_that_saw_nothing_forgets_all():
    states = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    used, fresh = Familiarity(passes=3), Familiarity(passes=3)
    used.visit(states)
    used.load_state_dict(fresh.state_dict())
    assert used.batches == 0 and not used.visits and used.module is None
    for known in (used, fresh):
        known.visit(states[:4] + 3)
    assert torch.equal(used.bonus(states), fresh.bonus(states)) and used.losses == fresh.losses
    assert len(used.visits['states']) == 4


def test_the_state_of_one_that_only_looked_keeps_its_networks():
    states = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    used, looked = Familiarity(passes=3), Familiarity(passes=3)
    used.visit(states)
    looked.bonus(states + 5)
    used.load_state_dict(looked.state_dict())
    assert not used.visits and used.bonus(states).tolist() == [1.0] * 6
    assert torch.equal(used.scaled(states), looked.scaled(states))


def test_a_first_call_without_states_makes_no_networks():
    known = Familiarity(passes=1)
    assert known.bonus(torch.zeros(0, 4)).shape == (0,) and known.module is None
    known.visit(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))
    assert all(math.isfinite(loss) for loss in known.losses)


def test_the_placebo_loses_a_mean_more():
    "Dealt among the rows and centred again: 1 - 1/G of the mean square is left."
    g = torch.Generator().manual_seed(0)
    for size in (2, 4):
        group = torch.arange(4000 // size).repeat_interleave(size)
        given = dict(rewards=torch.zeros(4000), group=group, rollouts=None)
        own = group_bonus(bonus=torch.rand(4000, generator=g), **given)
        dealt = group_bonus(bonus=own[torch.randperm(4000, generator=g)], **given)
        kept = dealt.square().mean() / own.square().mean()
        assert float(kept) == pytest.approx(1 - 1 / size, rel=0.1)


def test_states_of_steps_by_hand():
    hidden = torch.arange(12.0).view(2, 6, 1)
    mask = torch.tensor([[True] * 5 + [False], [False, True, True, False, False, False]])
    ends = torch.tensor(
        [[False, True, False, False, True, False], [False, False, True] + [False] * 3]
    )
    states, row = step_states(hidden, mask, ends)
    assert states.tolist() == [[0.5], [3.0], [7.5]] and row.tolist() == [0, 0, 1]
    with pytest.raises(ValueError, match='hidden'):
        step_states(hidden[:1], mask, ends)


def test_group_bonus_by_hand():
    nan = math.nan
    rewards = torch.tensor([1.0, 0.0, nan, 0.0, 1.0, 1.0])
    group = torch.tensor([0, 0, 0, 1, 1, 1])
    bonus = torch.tensor([0.6, 0.2, 0.9, 0.3, nan, 0.1])
    paid = group_bonus(rewards, group, rollouts=None, bonus=bonus)
    assert paid.allclose(torch.tensor([0.2, -0.2, 0.0, 0.1, 0.0, -0.1]))


def test_a_row_is_worth_the_mean_of_its_steps(policy, rows):
    made = rdd(passes=5)
    given = dict(rollouts=rows, policy=policy)
    assert made(rows.rewards, rows.group, **given).allclose(
        grpo(rows.rewards, rows.group), atol=1e-5
    )
    made.update(rows)
    states, row = made.states_of(rows, policy)
    each = made.known.bonus(states)
    wanted = torch.stack([each[row == k].mean() for k in range(len(rows))])
    assert made.row_bonus(rows, policy).allclose(wanted, atol=1e-6)
    apart = wanted - torch.stack([wanted[rows.group == k].mean() for k in rows.group])
    adv = made(rows.rewards, rows.group, **given)
    assert adv.allclose(grpo(rows.rewards, rows.group) + apart, atol=1e-5)
    # groups in which all is wrong learn from it too, and unscored rows from nothing
    nothing = torch.zeros(len(rows))
    assert made(nothing, rows.group, **given).allclose(apart, atol=1e-5)
    unscored = rows.rewards.clone()
    unscored[-1] = math.nan
    assert made(unscored, rows.group, **given)[-1] == 0


def test_the_first_policy_reads_all_rows(policy, rows):
    made = rdd(passes=5)
    given = dict(rollouts=rows, policy=policy)
    made(rows.rewards, rows.group, **given)
    made.update(rows)
    before = made(rows.rewards, rows.group, **given)
    moved = policy.clone()
    for p in moved.model.parameters():
        p.data *= 1.1
    assert torch.equal(made(rows.rewards, rows.group, rollouts=rows, policy=moved), before)
    assert not any(torch.equal(x, y) for x, y in [(weights(moved), weights(made.reader))])


def test_the_state_of_before_the_first_call_makes_all_new(policy, rows):
    used, fresh = rdd(passes=2), rdd(passes=2)
    used(rows.rewards, rows.group, rollouts=rows, policy=policy)
    used.update(rows)
    used.load_state_dict(fresh.state_dict())
    assert used.reader is None and used.seen is None
    used.update(rows)  # nothing was seen since
    assert used.known.batches == 0
    moved = policy.clone()
    for p in moved.model.parameters():
        p.data *= 1.1
    for made in (used, fresh):
        made(rows.rewards, rows.group, rollouts=rows, policy=moved)
        made.update(rows)
    again = [made(rows.rewards, rows.group, rollouts=rows, policy=moved) for made in (used, fresh)]
    assert torch.equal(*again)


def test_another_order_of_rows_pays_the_same(policy, rows):
    made = rdd(passes=5)
    made(rows.rewards, rows.group, rollouts=rows, policy=policy)
    made.update(rows)
    straight = made(rows.rewards, rows.group, rollouts=rows, policy=policy)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    turned = rows_of(rows, order)
    found = made(turned.rewards, turned.group, rollouts=turned, policy=policy)
    assert found.allclose(straight[order], atol=1e-4)


def test_rows_without_tokens_cost_nothing(policy):
    ids = torch.ones(1, 2).long()
    mask = torch.tensor([[True, True], [True, True], [False, False]])
    three = make_rollouts(
        prompt_ids=ids,
        prompt_mask=ids.bool(),
        tokens=torch.tensor([[3, 4], [5, 6], [0, 0]]),
        mask=mask,
        prompt=torch.zeros(3).long(),
        rewards=torch.tensor([1.0, 0.0, 0.0]),
    )
    made = rdd(passes=2)
    for _ in range(2):
        adv = made(three.rewards, three.group, rollouts=three, policy=policy)
        made.update(three)
    assert adv.isfinite().all() and made.row_bonus(three, policy).isnan().tolist() == [
        False,
        False,
        True,
    ]


def end_of(policy, made, *parts, path=None):
    "The weights after runs of so many steps in one folder, one after the other."
    for steps in parts:
        learner = policy.clone()
        saved = [] if path is None else [Checkpoint(every=1)]
        train(learner, EASY, made, steps=steps, seed=1, path=path, callbacks=saved)
    return weights(learner)


SMALL = dict(prompts=2, group=4, lr=1e-3)


@pytest.fixture(scope='module')
def end_of_grpo(policy):
    return end_of(policy, recipe('grpo', **SMALL), 2)


def test_with_no_weight_it_is_its_parent(policy, end_of_grpo):
    off = recipe('rdd', advantage=use(rdd, beta=0.0, passes=1), **SMALL)
    assert torch.equal(end_of(policy, off, 2), end_of_grpo)


def test_the_idea_acts_and_goes_on_bit_for_bit(policy, tmp_path, end_of_grpo):
    ends = {
        name: end_of(policy, recipe(name, **SMALL), 2) for name in ('rdd', 'rdd_shuffled', 'rnd')
    }
    come = (ends['rdd'] - weights(policy)).norm()
    for other in (end_of_grpo, ends['rdd_shuffled'], ends['rnd']):
        assert (other - ends['rdd']).norm() > 1e-4 * come
    path = tmp_path / 'run'
    assert torch.equal(end_of(policy, recipe('rdd', **SMALL), 1, 2, path=path), ends['rdd'])


@pytest.mark.parametrize(
    'made, knobs, said',
    [
        (Familiarity, dict(spread=-0.5), 'Familiarity: spread is -0.5, wanted a finite number'),
        (Familiarity, dict(memory=0), 'memory is 0, wanted a whole number of at least 1'),
        (rdd, dict(beta=math.inf), 'rdd: beta is inf, wanted a finite number'),
        (rdd, dict(passes=0), 'passes is 0'),
        (rdd, dict(every=0), 'rdd: every is 0, wanted a whole number of at least 1'),
        (rdd, dict(lr=-1.0), 'lr is -1.0, wanted a finite number of at least 0'),
        (Familiarity, dict(lr=math.nan), 'lr is nan, wanted a finite number of at least 0'),
    ],
)
def test_bad_settings_are_answered_in_one_sentence(made, knobs, said):
    with pytest.raises(ValueError, match=said):
        made(**knobs)


def test_bad_input_is_answered_in_one_sentence(policy, rows):
    with pytest.raises(ValueError, match='spread=0, wanted more than 0'):
        distillation_bonus(torch.ones(1, 2), torch.ones(1, 2), spread=0)
    with pytest.raises(ValueError, match='the predictions'):
        distillation_bonus(torch.ones(1, 2), torch.ones(1, 3))
    with pytest.raises(ValueError, match='group'):
        rdd()(rows.rewards, rows.group[:-1], rollouts=rows, policy=policy)
    with pytest.raises(ValueError, match='separator'):
        rdd(separators=('no such',))(rows.rewards, rows.group, rollouts=rows, policy=policy)


def test_what_is_remembered_is_drawn_at_most_as_often_as_it_is_there():
    known = Familiarity(passes=1)
    known.visit(torch.arange(20.0).view(5, 4))
    g = torch.Generator().manual_seed(0)
    for batch, count in ((2, 2), (5, 5), (9, 5)):
        states, draws = known._some(g, batch)
        assert len(states) == len(draws) == count


def test_a_reader_that_is_there_takes_the_weights_of_a_state(policy, rows):
    moved = policy.clone()
    for p in moved.model.parameters():
        p.data *= 1.1
    used, saved = rdd(passes=2), rdd(passes=2)
    used(rows.rewards, rows.group, rollouts=rows, policy=policy)
    saved(rows.rewards, rows.group, rollouts=rows, policy=moved)
    used.load_state_dict(saved.state_dict())
    assert torch.equal(weights(used.reader), weights(moved))


def test_an_empty_state_takes_no_reader_away(policy, rows):
    used = rdd(passes=2)
    used(rows.rewards, rows.group, rollouts=rows, policy=policy)
    reader = used.reader
    used.load_state_dict({})
    assert used.reader is reader


def test_the_size_of_the_bonus_is_a_mean_over_rows(policy, rows):
    dealt = torch.tensor([3.0, -1.0, *[0.0] * (len(rows) - 2)])
    alike = torch.zeros(len(rows))
    made = rdd(passes=1, beta=0.5, bonus=lambda *given, **more: dealt)
    adv = made(alike, rows.group, rollouts=rows, policy=policy)
    assert adv.abs().sum() > 1
    assert made.told['size'] == pytest.approx(float(adv.abs().sum()) / len(rows))
