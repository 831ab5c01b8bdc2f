"""Every registered reward through the stress suite, and the suite through faults that are planted.

A new reward is found in the registry; what it is not asked, it declares by `@stage(about=...)`."""

import numpy as np
import pytest
from fuzz import rule_of
from hypothesis import given, settings, strategies as st
from rl4llm.core.registry import STAGES, stage, stages, use
from rl4llm.rewards import correct, partial_credit
from rl4llm.rewards import stress_suite as suite
from rl4llm.rewards.sandbox import _try
from rl4llm.rewards.stress_suite import (
    ABOUT,
    CHECKS,
    FAULTS,
    about_of,
    answer_in,
    case,
    needs_of,
    stress,
    stress_all,
    stress_table,
    task_cases,
    text_rewards,
    usual_tasks,
    with_answer,
)

LOCKED = any(_try(mode).python for mode in ('namespaces', 'user'))
TASKS = ('countdown/easy', 'modular/easy')


def columns_of(name):
    "The columns that a registered reward takes."
    import inspect

    return set(inspect.signature(stages('reward')[name].fn).parameters)


# -- every reward of the registry


@pytest.mark.parametrize('name', text_rewards())
def test_a_registered_reward_passes(name):
    if 'tests' in columns_of(name) and not LOCKED:
        pytest.skip('no isolation works on this machine')
    if 'answer' in columns_of(name):
        pytest.importorskip('math_verify')
    results = stress_all(name)
    assert len({result.task for result in results}) >= 2
    for result in results:
        assert result.passed, f'{result}'
        assert result.low is not None, 'nothing was paid'
        asked = {o.check for o in result.outcomes if o.state == 'passed'}
        assert {'contract', 'scored', 'finite', 'any text', 'repeatable', 'order'} <= asked
        assert {'neighbours', 'chat'} <= asked


@pytest.mark.parametrize('name', text_rewards())
def test_what_a_reward_pays_for_is_said_in_known_words(name):
    assert set(about_of(name)) <= set(ABOUT)


def test_a_reward_that_is_not_tried_says_what_it_needs():
    untried = set(stages('reward')) - set(text_rewards())
    assert all(needs_of(name) for name in untried)


def test_rewards_of_correctness_are_asked_everything():
    for name in ('correct', 'partial_credit', 'calibrated_reward'):
        states = {o.check: o.state for o in stress(name, 'countdown/easy').outcomes}
        assert states.pop('range') == 'nothing to try'
        assert set(states.values()) == {'passed'}, states


@pytest.fixture
def added():
    "Registers rewards for the time of a test."
    before = dict(STAGES)
    yield stage('reward')
    for key in set(STAGES) - set(before):
        del STAGES[key]


def test_a_new_reward_is_caught(added):
    def newcomer(prompts, completions, **columns):
        return [float(len(text)) for text in completions]

    added(newcomer)
    assert 'newcomer' in text_rewards()
    assert all('monotone' in result.failed for result in stress_all('newcomer'))


# -- planted faults


@pytest.mark.parametrize('task', TASKS)
@pytest.mark.parametrize('name', FAULTS)
def test_a_planted_fault_is_found_by_its_check(name, task):
    check, reward, how = FAULTS[name]
    result = stress(reward, task, **how)
    assert check in result.failed and not result.passed
    assert check in set(result.failures['check'])
    assert result.failures['text'].str.len().max() <= 80
    assert f'FAILED         {check} ' in f'{result}' and '\n' in f'{result}'


def test_every_check_has_a_fault():
    assert {fault.check for fault in FAULTS.values()} == set(CHECKS)


def test_the_same_rewards_without_a_fault_pass():
    for task in TASKS:
        assert stress(correct, task, bounds=(0, 1)).passed
        assert stress(partial_credit, task, bounds=(0, 1)).passed
        assert 'range' in stress(partial_credit, task, bounds=(0, 0.9)).failed


# -- the worth of the texts, by the rules of the tasks written a second time


@pytest.mark.parametrize('task', [*TASKS, 'countdown', 'modular', 'sat/easy', 'sat'])
def test_texts_are_worth_what_is_said_of_them(task):
    for made in task_cases(task, n=12, seed=11):
        item = made.columns['item']
        for said in made.texts:
            rule = rule_of(item, said.text)
            if said.kind in ('right', 'rewritten'):
                assert rule.required, said
            elif said.kind != 'odd':
                assert not rule.allowed, said


@given(st.text(max_size=60).filter(lambda text: '<' not in text), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_an_answer_is_put_where_it_is_read(prose, answer):
    assert answer_in(with_answer(f'{prose} <answer> 1 </answer>', str(answer))) == str(answer)
    assert answer_in(with_answer(prose, str(answer))) == str(answer)


QUICK = [n for n in text_rewards() if not {'tests', 'answer'} & columns_of(n)]


@given(st.lists(st.text(max_size=40), min_size=1, max_size=4, unique=True))
@settings(max_examples=25, deadline=None)
def test_any_texts_are_paid_the_same_in_any_order(texts):
    made = task_cases('countdown/easy', n=1)[0]
    for name in QUICK:
        trial = suite._Trial(stages('reward')[name].fn, (made,), frozenset(about_of(name)))
        rows = [(made, text) for text in texts]
        first = trial.pay(rows)
        back = trial.pay(rows[::-1])[::-1]
        assert all(map(suite._same, first, back)), name
        assert all(x is None or abs(x) < 1e6 for x in first), name


# -- groups, signals, exceptions


def test_a_group_reward_is_tried_by_groups():
    vote = stress('majority_reward', 'modular/easy')
    alone = stress('majority_reward', 'modular/easy', about=('agreement',))
    assert vote.passed and alone.failed == ('neighbours',)


def test_a_batch_reward_is_no_group_reward():
    mixed = use('shuffled', among='batch')
    assert 'neighbours' in stress(mixed, 'modular/easy').failed
    assert stress(use('shuffled', among='prompt'), 'modular/easy').passed


def test_a_signal_reward_names_what_it_needs(added):
    def by_entropy(prompts, completions, *, old_entropy):
        return [float(x) for x in old_entropy]

    with pytest.raises(ValueError, match='by_entropy asks for old_entropy'):
        stress(by_entropy, 'modular/easy')
    stage('reward', needs=('old_entropy',), about=('form',))(by_entropy)
    assert needs_of('by_entropy') == ('old_entropy',) and 'by_entropy' not in text_rewards()
    with pytest.raises(ValueError, match='by_entropy needs old_entropy'):
        stress_all('by_entropy')

    def signals(prompts, completions):
        return dict(old_entropy=[len(f'{text}'.split()) for text in completions])

    skip = {'chat': 'the entropy is of plain texts'}
    assert stress(by_entropy, 'modular/easy', more=signals, skip=skip).passed


def test_a_declared_exception_has_a_reason_and_is_told():
    fault = FAULTS['white space counts'].reward
    skip = {'white space': 'the form is checked to the letter'}
    told = stress(fault, 'modular/easy', skip=skip).table.loc['white space']
    assert list(told[['result', 'what']]) == ['not asked', 'the form is checked to the letter']
    for wrong in ({'white space': ''}, ['white space'], {'white spaces': 'so'}):
        with pytest.raises(ValueError):
            stress(fault, 'modular/easy', skip=wrong)


def test_mistakes_are_answered_in_a_sentence():
    def needing(prompts, completions, *, gold):
        return [0.0 for _ in completions]

    for call, words in (
        (lambda: stress(correct, 'modular/easy', about=('corectness',)), 'did you mean'),
        (lambda: stress(correct, 'modular/easy', skip={'lineer': 'no'}), 'did you mean linear'),
        (lambda: stress(needing, [case('?', ['1'], ['2'])]), 'needing asks for gold'),
        (lambda: case('?', [], ['2']), '0 right and 1 wrong'),
        (lambda: stress('corect', 'modular/easy'), 'correct'),
    ):
        with pytest.raises((ValueError, KeyError), match=words) as error:
            call()
        assert '\n' not in str(error.value)


SUM = case('3 + 4 = ?', ['<answer> 7 </answer>'], ['<answer> 8 </answer>'], answer='7')


def test_an_error_on_a_spoilt_text_is_found_and_can_be_printed():
    def raising(prompts, completions, *, answer, **columns):
        said = [answer_in(suite.text_of(c)) for c in completions]
        if any(text.startswith('7x') for text in said):
            raise ValueError('\ud800\x1b[31m')
        return [float(text == a) for text, a in zip(said, answer)]

    result = stress(raising, [SUM])
    assert result.failed == ('any text',)
    assert r'\ud800\x1b[31m' in f'{result}' and f'{result}'.encode()

    def leaving(prompts, completions, **columns):
        raise SystemExit

    assert stress(leaving, [SUM]).failed == ('contract',)


def test_a_change_inside_a_column_is_seen():
    def marking(prompts, completions, *, notes, **columns):
        notes[0].append('seen')
        return [0.0] * len(completions)

    made = case('?', ['1'], ['2'], notes=[])
    result = stress(marking, [made])
    assert result.failed == ('contract',) and 'changed notes' in f'{result}'
    arrays = case('?', ['1'], ['2'], notes=np.zeros(2))

    def quiet(prompts, completions, *, notes, **columns):
        return [float(c == '1') for c in completions]

    assert 'contract' not in stress(quiet, [arrays]).failed


def test_each_problem_needs_a_right_and_a_wrong_reward():
    def only(kept):
        def scored(prompts, completions, *, answer, **columns):
            said = [answer_in(suite.text_of(c)) == a for c, a in zip(completions, answer)]
            return [float(right) if right == kept else None for right in said]

        return scored

    assert stress(only(True), [SUM]).failed == ('scored',)
    assert stress(only(False), [SUM]).failed == ('scored',)
    assert 'scored' not in stress(only(False), [SUM], about='form').failed


@pytest.mark.parametrize(
    'call, words',
    [
        (lambda: stress(correct, []), 'wanted at least one'),
        (lambda: stress(correct, ['countdown/easy']), 'name of a task'),
        (lambda: stress(correct, [SUM, case('?', ['1'], ['2'])]), 'different columns'),
        (lambda: stress(correct, [SUM], bounds=(1, 0)), 'wanted .lowest, highest.'),
        (lambda: stress(correct, [SUM], bounds='ab'), 'wanted .lowest, highest.'),
        (lambda: case('?', '<answer> 7 </answer>', ['8']), 'wanted a list of texts'),
        (lambda: case('?', [7], ['8']), 'wanted a list of texts'),
        (lambda: case('?', ['7'], ['7']), 'as right and as not'),
    ],
)
def test_cases_that_are_none_are_refused(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert '\n' not in str(error.value)


def test_results_of_one_name_have_a_row_each():
    results = [stress(correct, name) for name in ('sat/easy', 'sat')]
    assert len(stress_table(results)) == 2


def test_cases_of_ones_own_and_the_table():
    sums = [case('3 + 4 = ?', ['<answer> 7 </answer>'], ['<answer> 8 </answer>'], answer='7')]

    def exact(prompts, completions, *, answer, **columns):
        return [float(answer_in(suite.text_of(c)) == a) for c, a in zip(completions, answer)]

    result = stress(exact, sums, bounds=(0, 0.5))
    assert result.task == 'own cases' and result.failed == ('range',)
    table = stress_table([result, stress(correct, 'sat/easy')])
    assert list(table.index) == [('exact', 'own cases'), ('correct', 'sat')]
    assert list(table['range']) == ['FAILED', ''] and list(table['paid']) == ['0 to 1'] * 2
    without_items = stress(correct, sums)
    assert without_items.failed == ('contract',)
    assert "no column 'item'" in without_items.failures['what'][0]
    page = result._repr_html_()
    assert 'exact on own cases' in page and '<table' in page


def test_a_text_is_escaped_on_the_page():
    def loud(prompts, completions, **columns):
        return [1.0 for _ in completions]

    page = stress(loud, 'modular/easy')._repr_html_()
    assert '<answer>' not in page and '&lt;answer&gt;' in page


def test_at_least_two_tasks_for_any_reward():
    for name in text_rewards():
        assert len(usual_tasks(name)) >= 2


def test_the_command(monkeypatch):
    from typer.testing import CliRunner
    from rl4llm.app.cli import app

    done = CliRunner().invoke(app, ['rewards', 'stress', 'brevity'])
    assert done.exit_code == 0
    assert 'brevity on countdown/easy (length, paid 0 to 1): passed' in done.output
    broken = [stress(FAULTS['the length is paid'].reward, 'modular/easy')]
    monkeypatch.setattr(suite, 'stress_all', lambda name: broken)
    done = CliRunner().invoke(app, ['rewards', 'stress', 'brevity'])
    assert done.exit_code == 1 and 'FAILED         monotone' in done.output
