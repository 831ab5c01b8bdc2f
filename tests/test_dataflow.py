"""Workers behind protocols: round trips are the identity, and one loop drives three methods."""

import pytest, torch
from rl4llm.core.policy import Policy
from rl4llm.scaling.dataflow import (
    FLOWS,
    PROTOCOLS,
    Actor,
    Critic,
    Judge,
    Workers,
    cut_batch,
    join_batches,
    protocol,
    resharding,
    rlhf,
    rows_in,
)
from rl4llm.tasks import task


def batch_of(rows):
    return dict(
        number=torch.arange(rows),
        table=torch.randn(rows, 3, generator=torch.Generator().manual_seed(0)),
        text=[f'row {i}' for i in range(rows)],
    )


def same(a, b):
    assert a.keys() == b.keys() and a['text'] == b['text']
    assert torch.equal(a['number'], b['number']) and torch.equal(a['table'], b['table'])


class Echo:
    "Answers what it is given, and remembers it."

    def __init__(self, rank):
        self.rank, self.seen = rank, []

    def answer(self, batch):
        self.seen.append(batch)
        return batch

    split = protocol('split')(lambda self, batch: self.answer(batch))
    split_by_copy = protocol('split_by_copy')(lambda self, batch: self.answer(batch))
    everyone = protocol('everyone')(lambda self, batch: self.answer(batch))
    silent = protocol('split')(lambda self, batch: None)


@pytest.mark.parametrize('name', list(PROTOCOLS))
@pytest.mark.parametrize('workers, team', [(1, 1), (3, 1), (4, 2), (6, 3), (12, 4)])
@pytest.mark.parametrize('rows', [1, 2, 7])
def test_the_round_trip_is_the_identity(name, workers, team, rows):
    group = Workers(Echo, workers, team=team)
    same(getattr(group, name)(batch_of(rows)), batch_of(rows))


def test_a_team_sees_the_same_rows_and_teams_see_all_of_them_once():
    group = Workers(Echo, 6, team=2)
    group.split_by_copy(batch_of(7))
    seen = [m.seen[0]['number'].tolist() for m in group.members]
    numbers = [n for part in seen[0::2] for n in part]
    assert seen[0::2] == seen[1::2] and numbers == list(range(7))


def test_bytes_are_counted_on_both_ways():
    group = Workers(Echo, 2)
    column = dict(x=torch.zeros(4, 2), s=['ab', 'c', '', 'é'])
    group.split(column)
    assert group.moved == {'split': 2 * (4 * 2 * 4 + 2 + 1 + 0 + 2)}
    group.everyone(column)
    assert group.moved['everyone'] == 2 * group.moved['split']


def test_workers_that_answer_nothing_answer_nothing():
    assert Workers(Echo, 3).silent(batch_of(2)) is None


def test_parts_differ_by_at_most_a_row_and_join_to_the_whole():
    for rows in range(1, 9):
        for parts in range(1, 12):
            pieces = cut_batch(batch_of(rows), parts)
            sizes = [rows_in(p) for p in pieces]
            assert len(sizes) == parts and max(sizes) - min(sizes) <= 1
            same(join_batches(pieces), batch_of(rows))


@pytest.mark.parametrize('train', [1, 2, 4, 8, 12])
def test_every_team_for_drawing_holds_the_model_once_and_hybridflow_wastes_nothing(train):
    for draw in (d for d in range(1, train + 1) if train % d == 0):
        for interleaved in (True, False):
            pairs = resharding(train, draw, interleaved=interleaved)
            parts = {frozenset(need) for _, need in pairs}
            assert len(parts) == draw and set().union(*parts) == set(range(train))
            assert sum(map(len, parts)) == train
            assert all(len(need) * draw == train for _, need in pairs)
        kept = resharding(train, draw)
        assert all(hold <= need for hold, need in kept)


@pytest.fixture(scope='module')
def base():
    return Policy.load('tiny-v1', bf16=False)


def nodes_of(base, workers=1, lr=3e-4):
    policy = base.clone()
    adam = torch.optim.Adam(policy.model.parameters(), lr=lr)
    nodes = dict(actor=Workers(lambda rank: Actor(policy, adam, group=4), workers))
    nodes['judge'] = Workers(lambda rank: Judge(), workers)
    nodes['critic'] = Workers(lambda rank: Critic(base), 1)
    return nodes, policy


EASY = task('countdown', level='easy')


@pytest.mark.parametrize('name', list(FLOWS))
def test_a_flow_trains_and_the_number_of_workers_does_not_matter(base, name):
    ends = []
    for workers in (1, 2):
        nodes, policy = nodes_of(base, workers)
        rewards = rlhf(nodes, FLOWS[name], EASY, steps=1, prompts=3)
        assert len(rewards) == 1 and 0 <= rewards[0] <= 1
        ends.append(
            torch.cat(
                [
                    p.grad.flatten() if p.grad is not None else p.detach().flatten()
                    for p in policy.model.parameters()
                ]
            )
        )
    start = torch.cat([p.detach().flatten() for p in base.model.parameters()])
    moved = (ends[0] - start).norm()
    assert moved > 0 and (ends[0] - ends[1]).norm() < 0.1 * moved


def test_the_critic_learns_what_the_judge_says(base):
    nodes, _ = nodes_of(base)
    items = EASY.sample(4, seed=0)
    batch = nodes['actor'].generate(dict(item=items, number=torch.arange(4)))
    batch |= nodes['judge'].score(batch)
    wanted = batch['reward'][:, None].expand_as(batch['mask'])[batch['mask']]

    def error():
        return float(
            (nodes['critic'].value(batch)['value'][batch['mask']] - wanted).square().mean()
        )

    before = error()
    for _ in range(10):
        nodes['critic'].learn(batch)
    assert error() < before


def test_what_does_not_fit_is_answered(base):
    nodes, _ = nodes_of(base)
    del nodes['critic']
    with pytest.raises(KeyError, match='critic'):
        rlhf(nodes, FLOWS['ppo'], EASY, steps=1)
    with pytest.raises(AttributeError, match='split'):
        Workers(Echo).answer(batch_of(1))
    with pytest.raises(ValueError, match='no protocol'):
        protocol('broadcast')
    for count, team in ((0, 1), (3, 2), (2, 0)):
        with pytest.raises(ValueError, match='whole teams'):
            Workers(Echo, count, team=team)
    for wrong in ({}, dict(a=[1], b=[])):
        with pytest.raises(ValueError, match='columns'):
            rows_in(wrong)
    with pytest.raises(ValueError, match='the same'):
        join_batches([dict(a=[1]), dict(b=[1])])
    with pytest.raises(ValueError, match='divide'):
        resharding(8, 3)
