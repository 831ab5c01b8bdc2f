"""Rounds of search and training: what is kept, and that a killed run ends as another."""

import json
from functools import partial
from types import FunctionType

import pytest
import torch

from conftest import weights
from rl4llm.core.numerics import fold
from rl4llm.core.policy import Policy
from rl4llm.core.registry import recipe, use
from rl4llm.objectives.offline import as_logged
from rl4llm.tasks import task
from rl4llm.training import rounds as module
from rl4llm.training.checkpoints import list_checkpoints
from rl4llm.training.crowd import train_crowd
from rl4llm.training.loop import train
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


@pytest.fixture
def seen(monkeypatch):
    "Takes the rows that each round is trained on."
    found = []

    class Noted(KeptRows):
        def __init__(self, rows):
            super().__init__(rows)
            found.append(rows)

    monkeypatch.setattr(module, 'KeptRows', Noted)
    return found


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


def test_a_round_imitates_right_rows_alone(policy, plain, seen):
    learner = policy.clone()
    records = train_rounds(learner, EASY, plain, rounds=2, keep=None, afresh=no_round, **SMALL)
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


def test_afresh_is_the_first_weights_on_the_rows_of_this_round(policy, plain, seen):
    anew, onward = policy.clone(), policy.clone()
    train_rounds(anew, EASY, plain, rounds=2, afresh=every_round, **SMALL)
    train_rounds(onward, EASY, plain, rounds=2, afresh=no_round, **SMALL)
    assert seen[1].texts == seen[3].texts, 'both drew the same, from the weights of round one'
    assert not torch.equal(weights(anew), weights(onward))
    base = policy.clone()
    made = plain.but(sampler=use(KeptRows(seen[1])))
    train(base, EASY, made, steps=1, seed=int(fold(0, 2, 2)) & (2**62 - 1))
    assert torch.equal(weights(anew), weights(base))


def test_a_later_round_draws_other_answers(policy, plain, seen):
    learner = policy.clone()
    train_rounds(learner, EASY, plain.but(lr=1e-30), rounds=2, **SMALL)
    assert torch.equal(weights(learner), weights(policy)), 'nothing has moved'
    assert sorted(seen[0].texts) != sorted(seen[1].texts)


def test_a_folder_is_for_one_kind_of_work(policy, plain, tmp_path):
    def trained(kind, path):
        if kind == 'a run':
            train(policy.clone(), EASY, plain, steps=1, seed=0, path=path)
        elif kind == 'rounds':
            train_rounds(policy.clone(), EASY, plain, rounds=1, path=path, **SMALL)
        else:
            made = recipe('ttrl', prompts=2, group=4)
            train_crowd([policy], EASY, made, steps=1, seed=0, path=path)

    kinds = ('a run', 'rounds', 'a crowd')
    for kind in kinds:
        path = tmp_path / kind
        trained(kind, path)
        before = sorted(file.name for file in path.rglob('*'))
        for other in set(kinds) - {kind}:
            with pytest.raises(ValueError, match=f'holds {kind}, wanted a new folder for {other}'):
                trained(other, path)
        assert sorted(file.name for file in path.rglob('*')) == before
    trained('rounds', tmp_path / 'rounds')


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
    assert record['afresh'] is False, 'no weights were put back'
    assert torch.equal(weights(learner), weights(policy))


def test_an_exam_is_part_of_the_record(policy, plain):
    found = train_rounds(policy.clone(), EASY, plain, rounds=1, examine=lambda learner: 7, **SMALL)
    assert found[0]['exam'] == 7


def of_another_process(fn):
    "A function that is the same and stands at another address."
    twin = FunctionType(fn.__code__, fn.__globals__, fn.__name__)
    twin.__kwdefaults__ = fn.__kwdefaults__
    return twin


def test_a_rule_with_a_number_is_known_again(policy, plain, tmp_path):
    terms = dict(path=tmp_path, **SMALL)
    first = partial(when_stalled, least=0.1)
    train_rounds(policy.clone(), EASY, plain, rounds=1, afresh=first, **terms)
    run = json.loads((tmp_path / '00000001' / 'state.json').read_text())['run']
    assert 'afresh by when_stalled(least=0.1), 1 steps' in run['task_settings']
    for rounds, rule in (
        (2, partial(of_another_process(when_stalled), least=0.1)),
        (2, use(when_stalled, least=0.1)),
    ):
        records = train_rounds(policy.clone(), EASY, plain, rounds=rounds, afresh=rule, **terms)
        assert [record['step'] for record in records] == [1, 2]
    for other in (partial(when_stalled, least=0.2), when_stalled, every_round):
        with pytest.raises(ValueError, match='holds another run'):
            train_rounds(policy.clone(), EASY, plain, rounds=3, afresh=other, **terms)


def test_rules_of_ones_own_are_told_apart_by_their_code(policy, plain, tmp_path):
    def rule_of(bar):
        def rule(records):
            return records[-1]['solved'] < bar

        return rule

    terms = dict(path=tmp_path, **SMALL)
    train_rounds(policy.clone(), EASY, plain, rounds=1, afresh=rule_of(0.5), **terms)
    assert len(train_rounds(policy.clone(), EASY, plain, rounds=1, afresh=rule_of(0.5), **terms))
    with pytest.raises(ValueError, match='holds another run'):
        train_rounds(policy.clone(), EASY, plain, rounds=1, afresh=rule_of(0.6), **terms)


class Bar:
    def __call__(self, records):
        return True


@pytest.mark.parametrize(
    'rule',
    [
        lambda records: True,
        lambda records: False,
        partial(lambda records, bar: True, bar=1),
        partial(when_stalled, least=object()),
        Bar(),
        None,
    ],
)
def test_a_rule_without_a_name_is_refused(policy, plain, rule, tmp_path):
    with pytest.raises(ValueError, match='afresh is .*: wanted a function written with def, or'):
        train_rounds(policy, EASY, plain, rounds=1, afresh=rule, path=tmp_path, **SMALL)
    assert not list_checkpoints(tmp_path)


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
