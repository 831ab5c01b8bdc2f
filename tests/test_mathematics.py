"""The reward for mathematics: every trap of its library, hostile answers, and the process."""

import atexit, functools, os, sys, threading, time
import pytest

pytest.importorskip('math_verify')

from rl4llm import task_from
from rl4llm.core.registry import recipe, recipe_fingerprint, use
from rl4llm.core.signals import score
from rl4llm.rewards import mathematics
from rl4llm.rewards.mathematics import (
    _Judge,
    correct_mathematics,
    readable_gold,
    same_mathematics,
    answer_said,
    think_format,
)


@functools.cache
def judge():
    own = _Judge()
    atexit.register(own.stop)
    return own


def boxed(said):
    return f'\\boxed{{{said}}}'


def rewards(texts, answers, **knobs):
    return correct_mathematics(
        prompts=[''] * len(texts), completions=texts, answer=answers, **knobs
    )


# -- what a text states


@pytest.mark.parametrize(
    'text, said',
    [
        (r'so \boxed{\frac{1}{2}}.', r'\frac{1}{2}'),
        (r'\boxed{1} and then \boxed{\sqrt{2}}', r'\sqrt{2}'),
        (r'\boxed 5$', '5'),
        (r'\fbox{5}', '5'),
        ('a\nb\n#### 1,234', '1,234'),
        ('<answer> \\boxed{5} </answer>', '5'),
        ('Answer: 7', '7'),
        ('<think>\\boxed{1}</think>\\boxed{2}', '2'),
        ('\\boxed{1}</think>The answer is 2', '2'),
        ('42', None),
        ('so it is 42', None),
        ('<think>\\boxed{1}', None),
        ('\\boxed{1}<think>', None),
        ('\\boxed{1', None),
        ('<answer>1</answer><answer>2</answer>', None),
        ('', None),
        (' \n ', None),
    ],
)
def test_stated_answer(text, said):
    assert answer_said(text) == said


@pytest.mark.parametrize(
    'text', ['x' * 10**6, '\\boxed{' * 10**5, 'answer ' * 10**5, '#### ' * 10**5]
)
def test_long_texts_are_read_quickly(text):
    begun = time.perf_counter()
    answer_said(text)
    assert time.perf_counter() - begun < 5


# -- the traps


@pytest.mark.parametrize(
    'gold, said, right',
    [
        (r'\sqrt{2}', r'2^{1/2}', 1),
        ('(1,2)', '(1, 2)', 1),
        ('(1,2)', '(1, 3)', 0),
        ('2x+1', '2', 0),
        ('2x+1', '1+2x', 1),
        ('$2x+1$', '1+2x', 1),
        ('x+1', '1+x', 1),
        ('1 < x < 2', '(1,2)', 1),
        ('(1,2)', '1 < x < 2', 0),
        ('101', 'a=b=101', 1),
        ('0', '0.0000001', 0),
        ('0.0000001', '0.0000002', 0),
        ('1/3', '0.333333', 1),
        ('10%', '0.1', 1),
        ('6*7=42\n#### 42', '42', 1),
        (r'so $\boxed{\frac12}$', '0.5', 1),
        ('42', '43$, $42', 0),
        ('42', '42, 43', 0),
        ('42', '41 1', 0),
        ('2½', r'\frac{5}{2}', 1),
        ('-2 1/2', '-2.5', 1),
        ('1 000 000', '1,000,000', 1),
        ('1e5', '100000', 1),
        ('east', 'seat', 0),
        ('Tuesday', r'\text{tuesday}', 1),
        ('1' + '0' * 400, '1' + '0' * 400, 1),
        (42, '42.0', 1),
        (0.5, '1/2', 1),
        (['1', '2'], '2', 1),
        ('1, 2', '2', 0),
    ],
)
def test_verdicts(gold, said, right):
    assert rewards([boxed(said)], [gold]) == [float(right)]
    assert same_mathematics(boxed(said), gold) == bool(right)


@pytest.mark.parametrize(
    'gold', ['', None, float('nan'), [], r'\frac{', '(1,2', '2/3 cups', '40 2']
)
def test_a_gold_answer_that_is_not_read_gives_none_and_one_warning(gold):
    mathematics._warn_unread.cache_clear()
    text = boxed(gold)
    with pytest.warns(UserWarning) as told:
        assert rewards([text, text], [gold, gold]) == [None, None]
    assert len(told) == 1 and str(gold)[:10].replace('\\', '\\\\') in str(told[0].message)
    assert not readable_gold(gold)
    with pytest.raises(ValueError, match='cannot be read'):
        same_mathematics(text, gold)


@pytest.mark.parametrize(
    'text', ['', '42', 'I say 42 or 43', '\ud800', boxed('\ud800'), boxed(''), boxed('?')]
)
def test_no_answer_is_wrong(text):
    assert rewards([text], ['42']) == [0.0]


def test_agrees_with_trl_on_boxes():
    accuracy = pytest.importorskip('trl.rewards').accuracy_reward
    golds = ['$\\frac{1}{2}$', '$42$', '$x^2-1$', '$(1,2)$', '$7$', '$\\sqrt{8}$']
    texts = map(boxed, ['0.5', '41', '(x-1)(x+1)', '(1,2)', 'x=7', '2\\sqrt{2}'])
    chats = [[{'role': 'assistant', 'content': text}] for text in texts]
    ours = rewards(chats, golds)
    assert ours == accuracy(completions=chats, solution=golds)
    assert ours == [1.0, 0.0, 1.0, 1.0, 1.0, 1.0]


# -- hostile answers, and the process


HOSTILE = [
    '9^{9^{9^{9}}}',
    pytest.param('(10^{10})!', marks=pytest.mark.slow),
    pytest.param('(' * 300 + '1' + ')' * 300, marks=pytest.mark.slow),
]


def numbers(count):
    return ','.join(map(str, range(count)))


FORGED = {
    'a long set': ('\\{1,2,3\\}', '\\{' + numbers(50) + '\\}'),
    'sets in sets': ('\\{1,2\\}', '\\{' * 12 + '1' + '\\}' * 12),
    'brackets': ('1', '(' * 20 + '1' + ')' * 20),
    'intervals': ('[0,1]', '\\cup'.join(f'[{2 * i},{2 * i + 1}]' for i in range(20))),
    'equations': ('5', '='.join(f'{i}-{i - 5}' for i in range(40)) + '=5'),
    'a polynomial': ('x', '+'.join(f'x^{{{i}}}' for i in range(60))),
    'a matrix': ('1', '\\begin{pmatrix}' + '&'.join('1' * 20) + '\\end{pmatrix}'),
}


@pytest.mark.parametrize('name', FORGED)
def test_a_forged_answer_costs_no_time(name):
    "The judge is not asked: it took a second and more for these."
    gold, said = FORGED[name]
    assert rewards([boxed(gold)], [f'${gold}$'], seconds=60.0) == [1.0]
    asked = judge().starts
    begun = time.perf_counter()
    assert rewards([boxed(said)], [f'${gold}$'], seconds=60.0) == [0.0]
    assert time.perf_counter() - begun < 0.5 and judge().starts == asked


def test_a_long_answer_to_a_long_question_is_read():
    gold = '\\{' + numbers(24) + '\\}'
    turned = '\\{' + ','.join(map(str, reversed(range(24)))) + '\\}'
    assert rewards([boxed(turned)], [f'${gold}$'], seconds=60.0) == [1.0]
    fractions = '\\frac{1}{1+\\frac{1}{1+\\frac{1}{1+\\frac{1}{2}}}}'
    assert rewards([boxed(fractions)], ['$\\frac{5}{8}$'], seconds=60.0) == [1.0]


@pytest.mark.parametrize('formula', HOSTILE)
def test_a_hostile_answer_comes_back_and_the_next_is_judged(formula):
    own = judge()
    assert own.ask(60.0, gold='42', said='42') is True
    begun = time.perf_counter()
    assert not own.ask(0.5, gold='42', said=formula)
    assert time.perf_counter() - begun < 5
    assert own.ask(60.0, gold='42', said='42') is True
    assert own.ask(60.0, gold='42', said='41') is False


def test_a_hostile_gold_answer_is_not_readable():
    assert not readable_gold('(10^{10})!^{9^{9^{9}}}', seconds=0.5)


def test_works_outside_the_main_thread():
    found = []
    thread = threading.Thread(
        target=lambda: found.extend(rewards([boxed('0.5')] * 2, ['1/2', '1/3']))
    )
    thread.start()
    thread.join(60)
    assert found == [1.0, 0.0]


def test_threads_do_not_get_one_another_s_answers():
    own, found = judge(), {}

    def ask(n):
        found[n] = [own.ask(60.0, gold=str(n), said=str(i)) for i in range(6)]

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == {n: [i == n for i in range(6)] for n in range(6)}


def test_a_process_that_was_killed_by_others_is_started_again():
    own = judge()
    assert own.ask(60.0, gold='1', said='1') is True
    before = own.starts
    own.process.kill()
    assert own.ask(60.0, gold='1', said='2') is False and own.starts == before + 1


def test_an_interrupted_question_does_not_answer_the_next(monkeypatch):
    own = judge()
    assert own.ask(60.0, gold='1', said='1') is True
    real = own.process.stdout

    class Interrupted:
        close = real.close

        def readline(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(own.process, 'stdout', Interrupted())
    with pytest.raises(KeyboardInterrupt):
        own.ask(60.0, gold='1', said='1')
    assert own.ask(60.0, gold='1', said='2') is False


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='no fork')
def test_a_fork_leaves_the_process_of_its_parent_alone():
    own = judge()
    assert own.ask(60.0, gold='1', said='1') is True
    child = os.fork()
    if child == 0:
        own.stop()
        os._exit(0)
    os.waitpid(child, 0)
    assert own.process.poll() is None and own.ask(60.0, gold='1', said='1') is True


def test_equal_pairs_are_compared_once(monkeypatch):
    asked = []
    monkeypatch.setattr(
        _Judge, 'ask', lambda self, seconds, **question: asked.append(question) or True
    )
    texts = [boxed('17.25'), '#### 17.25', boxed('17.25')] * 5
    assert rewards(texts, ['17.250'] * 15, seconds=4.5) == [1.0] * 15
    assert asked == [{'gold': '17.250', 'said': '17.25'}]
    mathematics._readable.cache_clear()
    mathematics._compared.cache_clear()


def test_a_process_that_does_not_start_is_named(monkeypatch):
    monkeypatch.setattr(sys, 'executable', '/bin/false')
    with pytest.raises(RuntimeError, match='does not start'):
        _Judge().ask(1.0, gold='1')


# -- the form of a reward


@pytest.mark.parametrize('seconds', [0, -1, float('nan'), float('inf'), '5', None, True])
def test_a_limit_that_is_none_is_refused(seconds):
    with pytest.raises(ValueError, match='seconds'):
        rewards([''], ['1'], seconds=seconds)


@pytest.mark.parametrize('answers', [None, '42', [], ['1', '2'], 42])
def test_the_wrong_number_of_answers_is_refused(answers):
    with pytest.raises(ValueError, match='answer'):
        rewards([''], answers)


def test_math_verify_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, 'math_verify', None)
    with pytest.raises(ModuleNotFoundError, match='math_verify'):
        rewards([''], ['1'])


def test_nothing_to_score():
    assert rewards([], []) == [] and think_format([], []) == []


def test_columns_of_trl_are_ignored():
    told = dict(completion_ids=[[1]], trainer_state=None, log_extra=print)
    assert rewards([boxed('1')], ['1'], **told) == [1.0]


def test_in_a_task_of_rows():
    rows = [
        {'question': f'{n}/2?', 'answer': f'so it is \\boxed{{\\frac{{{n}}}{{2}}}}'}
        for n in range(1, 5)
    ]
    made = task_from({'train': rows}, verify=same_mathematics)
    items = made.sample(4, seed=0)
    halves = [boxed(int(item.data[0][0]) / 2) for item in items]
    assert all(made.verify(item, text).correct for item, text in zip(items, halves))
    assert not made.verify(items[0], halves[1]).correct
    assert score(correct_mathematics, [''] * 4, halves, item=items).tolist() == [1.0] * 4


def test_problems_of_other_tasks_are_not_scored():
    from rl4llm import task

    mathematics._warn_unread.cache_clear()
    items = task('countdown').sample(2, seed=0)
    with pytest.warns(UserWarning, match='None'):
        assert correct_mathematics([''] * 2, ['', ''], item=items) == [None, None]


def test_the_fingerprint_does_not_change_with_use():
    made = recipe('grpo', reward=use('correct_mathematics'))
    before = recipe_fingerprint(made)
    rewards([boxed('0.125')], [r'\frac{1}{8}'])
    assert recipe_fingerprint(made) == before


# -- the form of a thought

FORMS = [
    '<think>a</think>b',
    '<think>a</think>',
    '<think></think>',
    '<think>a',
    'a</think>b',
    ' <think>a</think>b',
    '<think>a</think><think>b</think>',
    '<think><think>a</think>',
    '<think>a\n</think></think>\nb',
    '</think><think>',
    '',
]


def test_think_format_is_trl_s():
    theirs = pytest.importorskip('trl.rewards').think_format_reward
    chats = [[{'role': 'assistant', 'content': text}] for text in FORMS]
    assert think_format([''] * len(FORMS), chats) == theirs(completions=chats)
    assert think_format([''] * len(FORMS), FORMS) == theirs(completions=chats)


def test_a_tag_in_the_prompt_counts():
    assert think_format(['', ''], ['a</think>b', '<think>a</think>b'], prefilled='<think>') == [
        1.0,
        0.0,
    ]


@pytest.mark.parametrize(
    'said, gold, right',
    [
        ('4=5', '5', False),
        ('1=2=3=4=5', '5', False),
        ('x=4=5', '5', False),
        ('x=5', '5', True),
        (r'\angle ABC = 5', '5', True),
        (r'\frac{10}{2} = 5', '5', True),
        (r'5\text{ or six}', '5', False),
        (r'\sum_{k=1}^{100} k', '5050', False),
        (r'\int_0^1 x^2 dx', r'\frac{1}{3}', False),
        (r'\frac{1}{3}', r'\frac{1}{3}', True),
        ('x=2,x=3', '3', False),
        ('x=2;x=3', '3', False),
        (r'x=2 \lor x=3', '3', False),
        (r'x=2, \quad x=3', '3', False),
        (r'x=2 \\ x=3', '3', False),
        ('a_1=1,a_2=2,a_3=3', '3', False),
        ('x=1, x=2', '1, 2', True),
        ('x=2, x=1', '1, 2', True),
        (r'x=1 \lor x=2', '1, 2', True),
        ('x=1, x=2, x=3', '1, 2', False),
        ('x=1, 2', '1, 2', True),
        ('x=1, y=2', '(1,2)', True),
        ('x=2, y=1', '(1,2)', False),
        (r'x=\frac{2}{2}=1, x=2', '1, 2', True),
        ('x=3=1, x=2', '1, 2', False),
        ('x=1, y=234', '1234', False),
        ('x=1,234', '1234', True),
        ('f(2,x)=5', '5', True),
        (r'0.\overline{3}', '1/3', True),
        (r'0.\overline{3}', '1/4', False),
        (r'0.1\overline{6}', '1/6', True),
        (r'-2.\overline{09}', r'-\frac{23}{11}', True),
        (r'\frac{1}{6}', r'0.1\bar6', True),
    ],
)
def test_what_leaves_the_work_or_the_choice_to_the_reader_is_not_paid(said, gold, right):
    assert same_mathematics(rf'\boxed{{{said}}}', gold) == right
