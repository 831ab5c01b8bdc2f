"""Rounds of search and training: what is kept, and that a killed run ends as another."""

import json

import pytest
import torch

from conftest import weights
from rl4llm.core.policy import Policy
from rl4llm.core.registry import recipe, use
from rl4llm.objectives.offline import as_logged
from rl4llm.tasks import task
from rl4llm.training import rounds as module
from rl4llm.training.checkpoints import list_checkpoints
from rl4llm.training.rounds import (
    KeptRows,
    every_round,
    no_round,
    train_rounds,
    when_stalled,
)

EASY = task('countdown', level='easy')
SMALL = dict(steps=1, problems=4, seed=0)


@pytest.fixture(scope='module')
def policy():
    return Policy.load('tiny')


@pytest.fixture(scope='module')
def plain():
    return recipe('expert_iteration', prompts=2, group=4, lr=2e-4)


@pytest.fixture(scope='module')
def led():
    sampler = use('rstar_traces', ends=(';',), budget=100)
    return recipe('rstar', prompts=2, group=4, lr=2e-4, sampler=sampler)


def test_kept_rows_come_in_any_order_and_none_twice(policy):
    items = EASY.sample(4, seed=1)
    rows = as_logged(policy.sample(items, 4, seed=0))
    kept = KeptRows(rows)
    some = kept(policy, items[:2], 4, seed=5)
    assert len(some) == 8 and len(some.traj.unique()) == 8
    assert some.texts == kept(policy, items[:2], 4, seed=5).texts
    assert some.texts != kept(policy, items[:2], 4, seed=6).texts
    assert len(kept(policy, items, 99, seed=-5)) == 16


def test_when_it_has_stalled():
    def found(*shares):
        return [dict(solved=share) for share in shares]

    assert every_round([]) and not no_round([])
    assert not when_stalled(found(0.5)) and not when_stalled(found(0.1, 0.5))
    assert when_stalled(found(0.1, 0.5, 0.51)) and not when_stalled(found(0.5, 0.51), least=0.005)


def test_a_round_imitates_right_rows_alone(policy, plain):
    learner = policy.clone()
    seen = []
    inner = module.KeptRows

    class Noted(inner):
        def __init__(self, rows):
            super().__init__(rows)
            seen.append(rows)

    module.KeptRows = Noted
    try:
        records = train_rounds(learner, EASY, plain, rounds=2, keep=None, afresh=no_round, **SMALL)
    finally:
        module.KeptRows = inner
    assert [len(rows) for rows in seen] == [record['rows'] for record in records]
    assert records[1]['rows'] == records[0]['right'] + records[1]['right']
    for rows in seen:
        asked = [rows.items[k] for k in rows.prompt.tolist()]
        assert all(EASY.verify(item, text).correct for item, text in zip(asked, rows.texts))
    for record in records:
        assert record['drawn'] >= 4 * 4 and record['drawn'] == record['fed'] + 16
        assert 0 < record['solved'] <= 1 and record['afresh'] is False


def test_rows_of_the_last_round_alone(policy, plain):
    records = train_rounds(policy.clone(), EASY, plain, rounds=2, **SMALL)
    assert [record['rows'] for record in records] == [record['right'] for record in records]
    assert all(record['afresh'] for record in records)


@pytest.mark.parametrize('which', ('plain', 'led'))
def test_a_killed_run_ends_as_another(policy, which, request, tmp_path, monkeypatch):
    made = request.getfixturevalue(which)
    terms = dict(SMALL, keep=None, afresh=no_round)
    straight = policy.clone()
    records = train_rounds(straight, EASY, made, rounds=2, **terms)
    inner = module.learn_round

    def killed(state, number, afresh):
        if number == 2:
            raise KeyboardInterrupt
        inner(state, number, afresh)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(module, 'learn_round', killed)
        train_rounds(policy.clone(), EASY, made, rounds=2, path=tmp_path, **terms)
    assert [path.name for path in list_checkpoints(tmp_path)] == ['00000001']
    learner = policy.clone()
    again = train_rounds(learner, EASY, made, rounds=2, path=tmp_path, **terms)
    assert torch.equal(weights(learner), weights(straight)) and again == records
    assert json.loads((tmp_path / '00000002' / 'state.json').read_text())['metrics'] == records
    assert not list(tmp_path.rglob('*.pkl')) and not list(tmp_path.rglob('*.pt'))


def test_nothing_found_is_nothing_trained(policy, plain):
    class Hopeless:
        def __init__(self):
            self.task = task('countdown')

        def __getattr__(self, name):
            return getattr(self.task, name)

        def sample(self, n, *, seed, split='train'):
            from rl4llm.tasks.protocol import Item

            return [Item('countdown', ((1, 1, 1, k + 1), 99, 99, '+-*')) for k in range(n)]

    learner = policy.clone()
    record, = train_rounds(learner, Hopeless(), plain, rounds=1, **SMALL)
    assert record['solved'] == record['right'] == record['rows'] == 0 and 'loss' not in record
    assert torch.equal(weights(learner), weights(policy))


def test_an_exam_is_part_of_the_record(policy, plain):
    found = train_rounds(policy.clone(), EASY, plain, rounds=1, examine=lambda learner: 7, **SMALL)
    assert found[0]['exam'] == 7


def test_one_sentence_says_what_is_wrong(policy, plain, tmp_path):
    train_rounds(policy.clone(), EASY, plain, rounds=1, path=tmp_path, **SMALL)
    other = dict(SMALL, problems=5)
    for task_, recipe_, terms in (
        ('modular', plain, SMALL),
        (EASY, plain.but(lr=1e-3), SMALL),
        (EASY, plain, other),
    ):
        with pytest.raises(ValueError, match='holds another run'):
            train_rounds(policy.clone(), task_, recipe_, rounds=2, path=tmp_path, **terms)
    for name in ('rounds', 'steps', 'problems', 'keep'):
        with pytest.raises(ValueError, match=f'train_rounds: {name} is 0'):
            train_rounds(policy.clone(), EASY, plain, **{**dict(rounds=1, **SMALL), name: 0})
