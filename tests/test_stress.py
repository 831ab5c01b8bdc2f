"""Every registered reward through the stress suite, and the suite through faults that are planted.

A new reward is found in the registry; what it is not asked, it declares by `@stage(about=...)`."""

from types import SimpleNamespace
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
    Outcome,
    Said,
    Stress,
    about_of,
    answer_in,
    case,
    hostile_texts,
    near_misses,
    needs_of,
    stress,
    stress_all,
    stress_table,
    task_cases,
    text_rewards,
    usual_tasks,
    with_answer,
)
from rl4llm.tasks import Item, Verdict, protocol

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


# -- a task by hand, on which the faults pay what is said of them


class Sums:
    "5 + 6 = ?, where 11 is right, 12 is worth 0.4, and what stands behind a = is the answer."

    name = 'sums by hand'

    def sample(self, n, *, seed):
        return [Item(self.name, (5 + i, 6)) for i in range(n)]

    def prompt(self, item, style):
        return '{} + {} = ?'.format(*item.data)

    def demonstrate(self, item, *, seed):
        return '{} + {} = {}'.format(*item.data, sum(item.data))

    def verify(self, item, text):
        said = (protocol.final_answer(text) or '').rpartition('=')[2].strip()
        score = {f'{sum(item.data)}': 1.0, f'{sum(item.data) + 1}': 0.4}.get(said, 0.0)
        return Verdict(score == 1, score, None, said or None, 'by hand')


@pytest.fixture
def sums(monkeypatch):
    made = Sums()
    monkeypatch.setitem(protocol._KEPT, made.name, made)
    return made


def test_a_task_gives_its_near_misses_their_kinds(sums):
    made, second = task_cases(sums)
    assert (made.prompt, second.prompt) == ('5 + 6 = ?', '6 + 6 = ?')
    assert made.of('right') == ['5 + 6 = 11']
    assert made.of('partial') == ['5 + 6 = 12']  # but 6 + 6 = 11 and 5 + 7 = 11 are right here
    assert made.of('wrong') == ['5 + 6 =']
    assert made.of('rewritten')[-1] == 'It may be 5 + 6 = 12 . <answer> 5 + 6 = 11 </answer>'
    readable = {said.text: said.readable for said in made.texts}
    assert readable['5 + 6 = 12'] and not readable['5 + 6 =']


IN_CHAT = [dict(role='assistant', content='11')]
SHOWING = {  # a third text, and what it is paid beside '11', which is right, and '20', which is not
    'one value, repeated': ('12', [1, 1, 1]),
    'a letter more is overlooked': ('11x', [1, 0, 1]),
    'substring match': ('111', [1, 0, 1]),
    'the answer anywhere in the text': ('It may be 11 . <answer> 20 </answer>', [1, 0, 1]),
    'an error is paid in full': ('', [1, 0, 1]),
    'an empty text raises an error': ('sorry = 11', [1, 0, 0]),
    'NaN for an empty text': ('', [1, 0, np.nan]),
    'nothing is scored': ('12', [None, None, None]),
    'right answers are not scored': ('12', [None, 0.5, 0.5]),
    'the place in the batch counts': ('11', [1, 0, 1 / 3]),
    'white space counts': (' 11', [1, 0, 0]),
    'a chat is not read': (IN_CHAT, [1, 0, 0]),
    'a sentence before the answer costs': ('So it is. <answer> 11 </answer>', [1, 0, 0]),
    'the length is paid': ('it is 12', [1, 1, 3]),
    'half the way pays more than the whole': ('12', [1, 0, 1.4]),
    'a third right is right': ('12', [1, 0, 1]),
    'twice what is declared': ('11', [2, 0, 2]),
    'quadratic time': ('11', [1, 0, 1]),
}


def test_a_planted_fault_pays_the_rest_as_it_should(sums):
    item = sums.sample(1, seed=0) * 3

    def paid(name, *texts):
        return FAULTS[name].reward(['?'] * len(texts), list(texts), item=item[: len(texts)])

    for name, (text, wanted) in SHOWING.items():
        assert paid(name, '11', '20', text) == pytest.approx(wanted, nan_ok=True), name
    assert paid('one value for the batch', '11', '20') == 1
    with pytest.raises(IndexError):
        paid('an empty text raises an error', '')
    first, second = (paid('it counts its calls', '11')[0] for _ in range(2))
    assert 1 / second == pytest.approx(1 / first + 1)
    assert {*SHOWING, 'one value for the batch', 'it counts its calls'} == set(FAULTS)


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


def test_the_table_tells_how_many_were_tried_and_how_many_failed():
    wrong = tuple((text, 'paid 1') for text in 'vwxyz')
    outcomes = (
        Outcome('order', 'passed', 9),
        Outcome('range', 'nothing to try'),
        Outcome('near', 'not asked', note='it pays for luck'),
        Outcome('hostile', 'failed', 7, wrong),
    )
    table = Stress('mine', 'sums', ('correctness',), outcomes).table
    assert list(table['tried']) == [9, '', '', 7]
    says = [CHECKS['order'].says, CHECKS['range'].says, 'it pays for luck']
    assert list(table['what']) == [*says, "paid 1: 'v'; paid 1: 'w'; paid 1: 'x'; and 2 more"]


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


# -- the texts and the checks, by hand


@pytest.mark.parametrize(
    'right, missed',
    [
        (
            '9 - 4 = 5 ; 5 * 10 = 50',  # the last four numbers, the last step, the last word
            [
                '9 - 4 = 6 ; 5 * 10 = 50',
                '9 - 4 = 5 ; 6 * 10 = 50',
                '9 - 4 = 5 ; 5 * 11 = 50',
                '9 - 4 = 5 ; 5 * 10 = 51',
                '9 - 4 = 5 ',
                '9 - 4 = 5 ; 5 * 10 =',
            ],
        ),
        ('so <answer> a ; ! b </answer>', ['a ', 'a ; !', '! a ; ! b', 'a ! ; ! b', 'a ; b']),
        # of words one of the last four is denied
        ('a b c d e', ['a b c d', 'a ! b c d e', 'a b ! c d e', 'a b c ! d e', 'a b c d ! e']),
        ('8' * 18, ['8' * 17 + '9']),
        ('8' * 19, ['! ' + '8' * 19]),  # too long for a number of 64 bits
    ],
)
def test_near_misses_change_one_thing(right, missed):
    wanted = [with_answer(right, answer) for answer in missed]
    assert near_misses(right) == wanted


def test_hostile_texts_are_long_nested_and_keywords():
    made = hostile_texts('?')
    assert sum(len(text) == suite._LONG for text in made) == len(suite._ENDLESS)
    assert '{' in made and '{ { {' in hostile_texts('?', words=3)
    deepest = max(made, key=lambda text: text.count('</answer>'))
    assert deepest.count('<answer>') == deepest.count('</answer>') > 1


def test_a_right_answer_elsewhere_is_beside_a_wrong_one():
    wrong = '<answer> 8 </answer>'
    made = case('3 + 4 = ?', ['<answer> 7 </answer>'], [wrong])
    assert made.of('elsewhere') == [f'It may be 7 . {wrong}', f'{wrong} 7', f'7\n{wrong}']


def payer(paid, other=0.0):
    "A reward that pays texts by a table."

    def reward(prompts, completions, **columns):
        return [paid.get(text, other) for text in completions]

    return reward


def trial_of(reward, made=SUM, about=('correctness',), more=None):
    return suite._Trial(reward, (made,), frozenset(about), more=more)


def blamed(check, trial):
    "The texts that a check finds wanting."
    return [found[0] for found in check(trial) if found]


PAIRS = case('?', ['a'], ['b', 'c'], partial=['d'], hostile=[])


@pytest.mark.parametrize('size', [1, 2, 4])
def test_the_contract_is_tried_on_one_row_on_two_and_on_all(size):
    def short(prompts, completions, **columns):
        count = len(completions)
        return [0.0] * (count - 1 if count == size else count)

    found = filter(None, suite._contract(trial_of(short, PAIRS)))
    assert [*found] == [('a', f'returned {size - 1} values, wanted a list of {size}')]


@pytest.mark.parametrize(
    'paid, texts',
    [
        (dict(a=1, d=0.5), []),
        (dict(a=1, d=1), []),  # no less than a right text: another check asks for that
        (dict(a=1, d=0), []),
        (dict(a=1, d=1.2), ['d']),
        (dict(a=1, d=0.1, b=0.2), ['d']),  # less than one of two wrong texts
    ],
)
def test_partial_credit_lies_between(paid, texts):
    assert blamed(suite._partial, trial_of(payer(paid), PAIRS)) == texts


def test_another_writing_is_compared_with_the_text_it_writes():
    made = case('?', ['7', 'seven'], ['8'], same=['(7)', '7.0'], hostile=[])
    reward = payer({'7': 1, 'seven': 0.5, '(7)': 1, '7.0': 0.5})
    assert blamed(suite._wrapping, trial_of(reward, made)) == ['7.0']


def test_a_text_is_compared_with_those_that_are_alike():
    one, longer, unread = Said('7', 'right'), Said('so 7', 'wrong'), Said('?', 'wrong', False)
    for about, as_long, as_readable in (
        ((), True, True),
        (('length',), False, True),
        (('form',), True, False),
        (('length', 'form'), False, False),
    ):
        assert suite._comparable(about, one, Said('8', 'wrong'))
        assert suite._comparable(about, one, longer) == as_long
        assert suite._comparable(about, one, unread) == as_readable


def test_nan_is_the_same_as_nan_alone():
    same = [(np.nan, np.nan), (None, None), (1, 1 + 1e-9)]
    other = [(np.nan, 1), (1, np.nan), (None, np.nan), (0, None), (1, 1.001)]
    assert all(suite._same(a, b) for a, b in same)
    assert not any(suite._same(a, b) for a, b in other)


def test_a_chat_says_the_text_in_three_ways():
    plain = [dict(role='assistant', content='7')]
    parts = [dict(role='assistant', content=[dict(type='text', text='7')])]
    turns = [dict(role='assistant', content='no'), dict(role='user', content='again'), *plain]
    said = [suite._said_in_chat(name, '7') for name in suite._CHATS]
    assert said == [plain, parts, turns]


def test_signals_are_asked_for_with_prompts_and_completions():
    def signals(prompts, completions):
        return {'seen': list(zip(prompts, completions))}

    given = trial_of(correct, more=signals).given([(SUM, '8')])
    assert given['seen'] == [('3 + 4 = ?', '8')]


def test_what_a_reward_is_about_and_needs(added):
    assert about_of('brevity') == ('length',) and about_of('correct') == ('correctness',)

    def by_prompt(prompts, **columns):
        return [0.0 for _ in prompts]

    added(by_prompt)
    assert needs_of('by_prompt') == ()


def test_bounds_may_be_one_number():
    one = stress(payer({}, other=1.0), [SUM], bounds=(1, 1))
    assert 'range' not in one.failed and (one.low, one.high) == (1, 1)


# -- time, by a clock that rewards move on


@pytest.fixture
def clock(monkeypatch):
    made = SimpleNamespace(now=100.0)
    made.process_time = lambda: made.now
    monkeypatch.setattr(suite, 'time', made)
    return made


@pytest.mark.parametrize(
    'takes, asked, shortest',
    [
        ([0.005, 0.3], 1, 0.005),  # too short to be measured
        ([0.6, 0.3], 1, 0.6),  # long enough to be sure
        ([0.3, 0.1, 0.2, 0.05], 3, 0.1),
    ],
)
def test_the_time_for_a_text_is_the_shortest_of_three(clock, takes, asked, shortest):
    texts = []

    def reward(prompts, completions, **columns):
        clock.now += takes[len(texts)]
        texts.extend(completions)
        return [0.0]

    assert suite._seconds(trial_of(reward), 'a') == pytest.approx(shortest)
    assert texts == [f'a{i}' for i in range(asked)]  # they differ, or a cache could answer


def timed(clock, seconds, power):
    "A reward that takes these seconds for 1,000 letters, and grows with a power of the length."

    def reward(prompts, completions, **columns):
        clock.now += sum(seconds * (len(text) / 1000) ** power for text in completions)
        return [0.0 for _ in completions]

    return reward


@pytest.mark.parametrize(
    'seconds, power, found',
    [
        (0.0004, 2, 2),
        (0.02, 1.6, 1.6),
        (0.02, 1.4, 0),
        (0.02, 1, 0),
        (1, 1, 0),  # slow, and no slower for long texts
        (1e-6, 2, 0),  # 64,000 letters take 4 ms
    ],
)
def test_the_power_of_the_time_is_found(clock, seconds, power, found):
    trial = trial_of(timed(clock, seconds, power))
    for unit in ('a', 'ab '):
        assert suite._growth(trial, unit) == pytest.approx(found, abs=0.01)


def test_each_length_is_four_times_the_one_before():
    assert [b / a for a, b in zip(suite._SIZES, suite._SIZES[1:])] == [4, 4, 4]


def test_a_time_that_grows_too_fast_is_measured_twice(clock, monkeypatch):
    trial = trial_of(timed(clock, 0.02, 2))
    assert len([*suite._linear(trial)]) == 1  # the others would take as long
    assert blamed(suite._linear, trial) == ['a']
    growths = iter([2.0, 0.0])
    monkeypatch.setattr(suite, '_growth', lambda trial, unit: next(growths, 0.0))
    assert blamed(suite._linear, trial) == []
