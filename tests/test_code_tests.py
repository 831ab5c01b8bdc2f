"""Rewards for programs, without a box: what a test may be, how values are read and compared, and
what an end is called. Hostile programs are in test_sandbox.py."""

import math
import pytest
from rl4llm.rewards import code_tests
from rl4llm.rewards.code_tests import (
    CallTest,
    OutputTest,
    as_tests,
    judge_program,
    passes_tests,
    share_of_tests,
)
from rl4llm.rewards.sandbox import Ended, Limits


def nested(levels, kind):
    "An empty list, tuple or dict in a list, tuple or dict and so on."
    value = kind()
    for _ in range(levels - 1):
        value = {0: value} if kind is dict else kind([value])
    return value


# -- tests


@pytest.mark.parametrize('kind', [list, tuple, dict])
def test_how_deep_a_test_may_be(kind):
    for good in (CallTest('f', (), nested(49, kind)), CallTest('f', (nested(48, kind),), 0)):
        assert as_tests([good]) == [good]
    for bad in (CallTest('f', (), nested(50, kind)), CallTest('f', (nested(49, kind),), 0)):
        with pytest.raises(ValueError, match='wanted'):
            as_tests([bad])


@pytest.mark.parametrize(
    ('expected', 'tolerance', 'fine'),
    [
        (1.0, 0, True),
        (1.0, 0.5, True),
        ([1.0], 1, True),
        (1.0, -0.1, False),
        (1.0, math.inf, False),
        (1.0, math.nan, False),
        (1.0, True, False),
        ({1.0}, 0.1, False),
        (frozenset([1.0]), 0.1, False),
        ({1.0}, None, True),
    ],
)
def test_what_a_tolerance_may_be(expected, tolerance, fine):
    test = CallTest('f', (), expected, tolerance)
    if fine:
        assert as_tests([test]) == [test]
        return
    with pytest.raises(ValueError, match='wanted'):
        as_tests([test])


# -- values that come back


def coded(levels, tag):
    "The coded form of nothing in so many lists, tuples or dicts."
    value = ['n', '']
    for _ in range(levels):
        value = [tag, [[['i', '0x0'], value]] if tag == 'd' else [value]]
    return value


@pytest.mark.parametrize(
    'deep',
    [
        lambda levels: coded(levels, 'l'),
        lambda levels: coded(levels, 'd'),
        lambda levels: ['d', [[coded(levels - 1, 't'), ['n', '']]]],
    ],
    ids=['in lists', 'in values of dicts', 'in a key'],
)
def test_how_deep_a_value_may_be(deep):
    code_tests._value(deep(50))
    with pytest.raises(code_tests._Forged, match='too deep'):
        code_tests._value(deep(51))


def test_truth_comes_back():
    assert code_tests._value(['b', 1]) is True
    assert code_tests._value(['b', 0]) is False


# -- values that are compared


@pytest.mark.parametrize(
    ('wanted', 'found', 'tolerance', 'same'),
    [
        ([1, 2], [1, 2], None, True),
        ([1, 2], [1, 3], None, False),
        ([1, 2], [1], None, False),
        ([], [1], None, False),
        ({1: 1, 2: 2}, {1: 1, 2: 3}, None, False),
        ({1: 1.0, 2: 2.0}, {2: 2.1, 1: 1.0}, 0.2, True),
        ({1: 1.0, 2: 2.0}, {2: 2.1, 1: 3.0}, 0.2, False),
        (1, 'a', 0.1, False),
        ('a', 1, 0.1, False),
        (True, 1.0, 0.1, False),
        ({frozenset([1, 2])}, {frozenset([2, 1])}, None, True),
        ({frozenset([1])}, {frozenset([True])}, None, False),
        ({frozenset([1])}, {(1,)}, None, False),
        ({(1, 2)}, {(2, 1)}, None, False),
    ],
)
def test_which_values_are_the_same(wanted, found, tolerance, same):
    assert code_tests._same(wanted, found, tolerance) is same


# -- what an end is called

LATE = ('time', 'more than 2 s of the processor')


@pytest.mark.parametrize(
    ('code', 'cpu_s', 'said', 'wanted'),
    [
        (0, 5.0, b'MemoryError', None),
        (-24, 0.1, b'', LATE),
        (-9, 2.0, b'', LATE),
        (-9, 1.9, b'', ('error', 'killed by signal 9')),
        (-11, 2.5, b'', ('error', 'killed by signal 11')),
        (9, 2.5, b'', ('error', 'it ended with status 9')),
        (1, 2.5, b'a\nValueError: b\n', ('error', 'ValueError: b')),
        (-6, 0.1, b'MemoryError', ('memory', 'more than 256 MB')),
        (1, 0.1, b'PermissionError: no', ('blocked', 'PermissionError: no')),
    ],
)
def test_what_an_end_is_called(code, cpu_s, said, wanted):
    ended = Ended('exit', code, b'', said, b'', cpu_s, 'limits')
    assert code_tests._mishap(ended, Limits(cpu_s=2, memory_mb=256)) == wanted


# -- how many tests are run


def test_who_stops_at_the_first_failure(monkeypatch):
    "The whole verdict is known then; a share needs the other tests too."
    runs = []

    def echo(program, stdin, **knobs):
        runs.append(stdin)
        return Ended('exit', 0, stdin.encode(), b'', b'', 0.1, 'limits')

    monkeypatch.setattr(code_tests, 'run_program', echo)
    monkeypatch.setattr(code_tests, 'find_isolation', lambda wanted: 'limits')
    tests = [OutputTest('0', '1'), OutputTest('1', '1')]
    assert judge_program('x', tests)[:3] == (1, 2, 'wrong answer')
    assert runs == ['0', '1']
    assert judge_program('x', tests, until_first=True)[:3] == (0, 2, 'wrong answer')
    assert passes_tests([''], ['x'], tests=[tests]) == [0.0]
    assert runs == ['0', '1', '0', '0']
    assert share_of_tests([''], ['x'], tests=[tests]) == [0.5]
    assert runs[4:] == ['0', '1']
