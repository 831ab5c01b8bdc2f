"""TimeHC-RL: twins in another order, whom the bonus is paid to, and where it stands."""

import pytest
import torch

from rl4llm import recipe, train
from rl4llm.advantages.group_relative import grpo
from rl4llm.advantages.order_in_time import (
    every_group,
    in_another_order,
    order_gate,
    owners,
    timehc,
    twin_verdicts,
)
from rl4llm.core.policy import Policy
from rl4llm.core.registry import use
from rl4llm.core.signals import scored
from rl4llm.tasks import Item, task
from rl4llm.tasks.modular import chain_values

CHAINS = task('modular', length=6, modulus=13)


@pytest.mark.parametrize('seed', range(5))
@pytest.mark.parametrize('world', ['modular', 'countdown'])
def test_a_twin_has_the_same_parts_in_another_order(world, seed):
    for item in task(world).sample(10, seed=seed):
        twin = in_another_order(item, seed)
        if twin is None:
            continue
        place = dict(modular=2, countdown=0)[world]
        assert sorted(twin.data[place]) == sorted(item.data[place])
        assert twin.data[place] != item.data[place]
        rest = [part for at, part in enumerate(item.data) if at != place]
        assert rest == [part for at, part in enumerate(twin.data) if at != place]
        assert in_another_order(item, seed) == twin
        if world == 'modular':
            assert chain_values(twin)[-1] != chain_values(item)[-1]


@pytest.mark.parametrize('world', ['modular', 'countdown'])
def test_another_seed_makes_other_twins(world):
    items = task(world).sample(20, seed=0)
    pairs = [(in_another_order(item, 0), in_another_order(item, 1)) for item in items]
    assert sum(first != other for first, other in pairs) > 5


@pytest.mark.parametrize(
    'item',
    [
        'a question',
        None,
        Item('modular', (13, 0, (('+', 1),))),
        Item('modular', (13, 0, (('+', 1), ('+', 1)))),
        Item('modular', (13, 4, (('+', 1), ('-', 7), ('+', 3)))),  # sums may change places
        Item('countdown', ((5, 5), 10, 99, '+-*')),
        Item('story', (1, 2)),
    ],
)
def test_there_is_no_twin(item):
    assert in_another_order(item) is None


@pytest.fixture(scope='module')
def drawn():
    policy = Policy.load('tiny-mix-v1')
    rows = policy.sample(CHAINS.sample(6, seed=3), 8, seed=3)
    return policy, scored(policy, rows, use('correct'))


def test_answers_to_twins_are_judged_by_the_first_question(drawn):
    policy, _ = drawn
    items = CHAINS.sample(4, seed=0)
    right, group = twin_verdicts(policy, dict(zip((5, 2, 9, 7), items)), samples=8, seed=1)
    twins = [in_another_order(item, 1) for item in items]
    paired = [(item, twin) for item, twin in zip(items, twins) if twin]
    rows = policy.sample([twin for _, twin in paired], 8, seed=1)
    wanted = [
        float(CHAINS.verify(paired[k][0], x).correct)
        for k, x in zip(rows.prompt.tolist(), rows.texts)
    ]
    numbers = [number for number, twin in zip((5, 2, 9, 7), twins) if twin for _ in range(8)]
    assert right.tolist() == wanted and group.tolist() == numbers


def test_who_owns_a_group(drawn):
    _, rows = drawn
    assert owners(rows.group, rows) == dict(enumerate(rows.items))


@pytest.mark.parametrize('mu', [0.9, 1.0, 0.1])
def test_the_gate_by_loops(mu):
    torch.manual_seed(0)
    group = torch.arange(5).repeat_interleave(4)
    ok = torch.randint(2, (20,)).float()
    ok_twin = torch.randint(2, (16,)).float()
    group_twin = torch.arange(4).repeat_interleave(4)  # the last group has none
    found = order_gate(ok, group, rollouts=None, ok=ok, twins=(ok_twin, group_twin), mu=mu)
    for row in range(20):
        g = int(group[row])
        p, twin = ok[group == g].mean(), ok_twin[group_twin == g].mean()
        assert found[row] == (float(p > mu * twin + 1e-6) if g < 4 else 0)


def added(drawn, **how):
    policy, rows = drawn
    method = timehc(**how)
    adv = method(rows.rewards, rows.group, rollouts=rows, policy=policy)
    return adv - grpo(rows.rewards, rows.group), method


def test_right_rows_alone_are_paid(drawn):
    _, rows = drawn
    more, method = added(drawn, alpha=0.7)
    paid = more > 1e-6
    assert paid.any() and torch.allclose(more[paid], torch.tensor(0.7), atol=1e-5)
    assert (rows.rewards[paid] == 1).all() and not more[~paid].abs().gt(1e-6).any()
    assert method.told['paid'] == pytest.approx(paid.float().mean().item())
    assert method.told['ordered'] == pytest.approx(rows.rewards.mean().item())
    assert 0 <= method.told['shuffled'] < method.told['ordered']


def test_what_right_is_says_the_verifier(drawn):
    "Also where rewards are on another scale."
    policy, rows = drawn
    given = dict(rollouts=rows, policy=policy)
    scaled = 3.5 * rows.rewards - 1
    more = timehc()(scaled, rows.group, **given) - grpo(scaled, rows.group)
    own, _ = added(drawn)
    assert torch.allclose(more, own, atol=1e-5)


def test_all_right_rows_are_paid_by_the_control(drawn):
    _, rows = drawn
    more, _ = added(drawn, gate=every_group)
    assert torch.equal(more > 1e-6, rows.rewards == 1)


def test_in_the_reward_it_is_seen_where_the_format_varies(drawn):
    policy, rows = drawn
    given = dict(rollouts=rows, policy=policy)
    unseen, _ = added(drawn, where='reward')
    assert unseen.abs().max() < 5e-3
    worse = rows.rewards.clone()
    worse[1::4] -= 2
    seen = timehc(where='reward')(worse, rows.group, **given) - grpo(worse, rows.group)
    assert seen.abs().max() > 0.02


def test_unscored_rows_have_no_part(drawn):
    policy, rows = drawn
    rewards = rows.rewards.clone()
    rewards[::3] = torch.nan
    found = timehc()(rewards, rows.group, rollouts=rows, policy=policy)
    assert not found[::3].any() and found.isfinite().all()


@pytest.mark.parametrize(
    'bad, word',
    [
        (dict(where='behind'), 'where'),
        (dict(samples=0), 'samples'),
        (dict(alpha=float('inf')), 'alpha'),
        (dict(mu='x'), 'mu'),
        (dict(mu=-1), 'mu'),
        (dict(alpha=-0.4), 'alpha'),
        (dict(seed=-1), 'seed'),
    ],
)
def test_what_cannot_be(bad, word):
    with pytest.raises(ValueError, match=word):
        timehc(**bad)


def test_the_same_noise_gives_the_same_twins(drawn):
    first, method = added(drawn)
    again, _ = added(drawn)
    _, other = added(drawn, seed=1)
    assert torch.equal(first, again) and other.told['shuffled'] != method.told['shuffled']


def test_a_huge_mu_pays_only_where_no_twin_is_right():
    policy = Policy.load('tiny')
    rows = policy.sample(task('countdown').sample(8, seed=3), 8, seed=3)
    rows = scored(policy, rows, use('correct'))
    drawn = (policy, rows)
    strict, _ = added(drawn, mu=1e6)
    loose, _ = added(drawn, mu=0.0)
    right, group = twin_verdicts(policy, owners(rows.group, rows), samples=8)
    lucky = {g for g, found in zip(group.tolist(), right.tolist()) if found}
    solved = set(rows.group[rows.rewards == 1].tolist()) & set(group.tolist())
    assert lucky and solved
    assert set(rows.group[loose > 1e-6].tolist()) == solved
    assert set(rows.group[strict > 1e-6].tolist()) == solved - lucky


def test_answers_to_a_twin_may_be_few(drawn):
    policy, rows = drawn
    asked = {}

    def counted(rewards, group, *, rollouts, ok, twins, mu):
        asked['answers'] = len(twins[0])
        return torch.zeros_like(rewards)

    method = timehc(samples=3, gate=counted)
    method(rows.rewards, rows.group, rollouts=rows, policy=policy)
    paired = sum(in_another_order(item) is not None for item in rows.items)
    assert asked['answers'] == 3 * paired and paired > 2
    assert method.told['paired'] == pytest.approx(paired / 6)


def test_it_trains_and_its_counters_are_metrics():
    made = recipe('timehc', prompts=2, group=4)
    run = train(Policy.load('tiny-mix-v1').clone(), CHAINS, made, steps=2, seed=0)
    assert {'advantage/paid', 'advantage/ordered', 'advantage/shuffled'} <= set(run.metrics)
    assert (run.metrics['advantage/paid'] <= run.metrics['advantage/ordered'] + 1e-6).all()


def test_the_reward_of_the_paper_has_its_weights():
    assert dict(recipe('timehc_reward').reward.knobs)['weights'] == (2.0, 3.5)


def test_in_the_reward_the_bonus_is_added(drawn):
    "With three rewards in a group the division leaves a trace of it, and its sign."
    policy, rows = drawn
    rewards = rows.rewards * 3.5 + 2.0 * (torch.arange(len(rows)) % 2)
    seen = {}

    def all_groups(rewards, group, *, ok, **given):
        seen.update(ok=ok, twins=given['twins'])
        return torch.ones_like(rewards)

    method = timehc(where='reward', gate=all_groups)
    found = method(rewards, rows.group, rollouts=rows, policy=policy)
    assert torch.allclose(found, grpo(rewards + 0.4 * seen['ok'], rows.group), atol=1e-6)
    less = grpo(rewards - 0.4 * seen['ok'], rows.group)
    assert (found - less).abs().max() > 1e-3
    ok_twin, group_twin = seen['twins']
    assert len(ok_twin) == 8 * len(group_twin.unique()), 'as many answers as a group has rows'
    assert method.told['shuffled'] == pytest.approx(float(ok_twin.mean()))


def test_one_problem_asks_its_twin_as_often_as_it_was_asked():
    policy = Policy.load('tiny-mix-v1')
    item = next(item for item in CHAINS.sample(6, seed=3) if in_another_order(item))
    rows = scored(policy, policy.sample([item], 6, seed=0), use('correct'))
    seen = []

    def gate(rewards, group, *, twins, **given):
        seen.append(len(twins[0]))
        return torch.zeros_like(rewards)

    timehc(gate=gate)(rows.rewards, rows.group, rollouts=rows, policy=policy)
    assert seen == [6]


def test_counters_are_shares_of_all_rows(drawn):
    policy, rows = drawn

    def first_group(rewards, group, **given):
        return (group == 0).to(rewards)

    method = timehc(gate=first_group)
    method(rows.rewards, rows.group, rollouts=rows, policy=policy)
    right = rows.rewards > 0
    assert method.told['paid'] == pytest.approx(float((right & (rows.group == 0)).float().mean()))
    assert method.told['ordered'] == pytest.approx(float(right.float().mean()))
    lone = timehc(order=lambda item, seed: None if item == rows.items[0] else item)
    lone(rows.rewards, rows.group, rollouts=rows, policy=policy)
    assert lone.told['paired'] == pytest.approx(5 / 6)
    assert 0 < lone.told['shuffled'] < 1, 'the same order is as often right as the question'
