"""The queue keeps its promises, no row is too old, and two processes do as predicted."""

import numpy as np
import pytest
from rl4llm.scaling.streaming import (
    Schedule,
    StreamTrace,
    TransferQueue,
    Work,
    measure_stream,
    simulate,
)

DRAW = Work(name='draw', gives=('text',), workers=3)
SCORE = Work(name='score', needs=('text',), gives=('reward',), batch=4, per_row=0.1)
TRAIN = Work(name='train', needs=('text', 'reward', 'version'), batch=3, fixed=0.1, per_row=0.2)
CHAIN = [DRAW, SCORE, TRAIN]


def heavy(seed, n=200):
    return np.exp(1.5 * np.random.default_rng(seed).standard_normal(n))


def test_a_task_is_told_once_whoever_fills_the_columns_in_whatever_order():
    rng = np.random.default_rng(0)
    queue = TransferQueue({'a': ('x',), 'b': ('x', 'y')})
    cells = [(n, c) for n in range(50) for c in 'xyz']
    rng.shuffle(cells)
    taken = {'a': [], 'b': []}
    for n, column in cells:
        queue.put(int(n), **{column: 0})
        for task in taken:
            taken[task] += queue.take(task, int(rng.integers(0, 3)))
    for task in taken:
        taken[task] += queue.take(task, 1000)
        assert sorted(taken[task]) == list(range(50)) and queue.take(task, 5) == []


def test_a_column_is_put_once_and_a_task_needs_one():
    queue = TransferQueue({'a': ('x',)})
    queue.put(3, x=1)
    with pytest.raises(ValueError, match="row 3 has a 'x' already"):
        queue.put(3, x=2)
    with pytest.raises(ValueError, match='needs no column'):
        TransferQueue({'a': ()})


@pytest.mark.parametrize('seed', range(4))
@pytest.mark.parametrize('bound', [0, 1, 3])
@pytest.mark.parametrize('late', ['wait', 'drop'])
@pytest.mark.parametrize('publish', [0.0, 2.5])
def test_no_row_is_older_than_the_bound_and_every_update_is_whole(seed, bound, late, publish):
    schedule = Schedule(rows=5, staleness=bound, late=late, publish=publish)
    run = simulate(CHAIN, heavy(seed), schedule, updates=6)
    trained = [n for e in run.events if e['work'] == 'train' for n in e['rows']]
    assert len(trained) == len(set(trained)) == len(run.ages) == 30
    assert max(run.ages) <= bound
    assert late == 'drop' or (trained == sorted(trained) and not run.dropped)


def test_nobody_does_more_than_his_workers_can_or_begins_before_the_columns_are_there():
    run = simulate(CHAIN, heavy(7), Schedule(rows=5, staleness=2), updates=6)
    for work in CHAIN:
        times = [(e['start'], e['end']) for e in run.events if e['work'] == work.name]
        for start, _ in times:
            at_once = sum(s <= start < e for s, e in times)
            assert at_once <= work.workers
        assert all(len(e['rows']) <= work.batch for e in run.events if e['work'] == work.name)
    ends = {(e['work'], n): e['end'] for e in run.events for n in e['rows']}
    for e in run.events:
        for n in e['rows']:
            if e['work'] != 'draw':
                assert ends['draw', n] <= e['start']
            if e['work'] == 'train':
                assert ends['score', n] <= e['start']


def test_stage_by_stage_takes_the_sum_of_the_stages():
    seconds = heavy(1)
    one = Work(name='draw', gives=('text',), workers=5)
    run = simulate([one, SCORE, TRAIN], seconds, Schedule(rows=5, staged=True), updates=4)
    longest = [seconds[5 * i : 5 * i + 5].max() for i in range(4)]
    expected = sum(longest) + 4 * (5 * 0.1 + 2 * 0.1 + 5 * 0.2)
    assert run.seconds == pytest.approx(expected) and set(run.ages) == {0}


def test_more_age_is_never_much_slower_and_soon_buys_nothing():
    rates = [
        simulate(CHAIN, heavy(2), Schedule(rows=8, staleness=b), updates=12).rate
        for b in (0, 1, 2, 4, 50)
    ]
    assert rates[0] < rates[1] < rates[2] * 1.02 and max(rates) < 1 / 0.2


def test_weights_that_arrive_late_slow_the_drawing():
    soon = simulate(CHAIN, heavy(3), Schedule(rows=5), updates=5)
    late = simulate(CHAIN, heavy(3), Schedule(rows=5, publish=2.0), updates=5)
    assert late.seconds == pytest.approx(soon.seconds + 4 * 2.0)


def test_a_row_that_is_too_old_is_noticed():
    with pytest.raises(AssertionError, match='age 3'):
        StreamTrace().note_age(3, 2)


@pytest.mark.parametrize(
    'works, seconds, updates, said',
    [
        ([TRAIN], [1.0], 1, 'draws'),
        ([], [1.0], 1, 'none'),
        ([DRAW, TRAIN], [1.0], 1, 'nobody gives reward'),
        ([DRAW, SCORE, Work(name='t', needs=('text',), workers=2)], [1.0], 1, 'one worker'),
        (CHAIN, [], 1, '0 rows'),
        (CHAIN, [-1.0], 1, '0 or more'),
        (CHAIN, [float('nan')], 1, '0 or more'),
        (CHAIN, [1.0], 0, '0 updates'),
    ],
)
def test_a_wrong_stream_is_answered(works, seconds, updates, said):
    with pytest.raises(ValueError, match=said):
        simulate(works, seconds, Schedule(rows=2), updates=updates)


@pytest.mark.parametrize(
    'wrong',
    [
        dict(rows=0),
        dict(rows=1, staleness=-1),
        dict(rows=1, late='never'),
        dict(rows=1, publish=-1.0),
        dict(rows=1, staged=True, late='drop'),
    ],
)
def test_a_wrong_schedule_is_answered(wrong):
    with pytest.raises(ValueError, match='wanted'):
        Schedule(**wrong)


def test_two_processes_keep_the_bound_and_take_as_long_as_predicted():
    work = Work(name='train', needs=('text',), batch=3, per_row=0.02)
    schedule = Schedule(rows=6, staleness=1)
    seconds = [0.01, 0.05, 0.02]
    run = measure_stream(work, seconds, schedule, updates=4)
    said = simulate([Work(name='draw', gives=('text',)), work], seconds, schedule, updates=4)
    assert len(run.ages) == 24 and max(run.ages) <= 1
    assert 0.95 * said.seconds < run.seconds < 2 * said.seconds + 1
    assert list(run.table.columns) == list(said.table.columns)


def test_the_process_that_draws_waits_for_one_that_trains_much_longer():
    slow = Work(name='train', needs=('text',), fixed=0.4)
    schedule = Schedule(rows=1, staleness=4)
    trace = measure_stream(slow, [0.0], schedule, updates=6)
    assert len(trace.ages) == 6 and trace.seconds > 6 * 0.4


def test_two_processes_refuse_what_they_cannot_do():
    work = Work(name='train', needs=('text',))
    with pytest.raises(ValueError, match='late'):
        measure_stream(work, [0.1], Schedule(rows=2, late='drop'), updates=1)
