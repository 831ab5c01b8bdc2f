"The data sets of reasoning-gym as tasks: what their scorers are shown, and what is believed."

import json, random, time
from contextlib import nullcontext
from types import SimpleNamespace
from dataclasses import asdict
import pytest
from hypothesis import given, settings, strategies as st
from rl4llm.tasks import SPLITS, Item, as_task, levels, task, task_from, task_of, tasks
from rl4llm.tasks import Verdict, VerifierFailed, verdict_of
from rl4llm.tasks import reasoning_gym as G

NAMES = ('spell_backward', 'countdown', 'gcd', 'prime_factorization', 'polynomial_multiplication')

HOSTILE = [
    '', ' ', '\x00', '\ud800', '٣', 'nan', 'inf', '1e9999', '9' * 2000, '9**9**9**9', '10**10**8',
    '(' * 1990, '[' * 1990, '{"a":' * 300, '<answer>' * 3, '<answer><answer>7</answer></answer>',
    'x' * 10_000, '</answer>7<answer>', '-' * 1990, '1/0', 'factorial(10**8)', 'lambda: 0',
    '__import__("os")._exit(1)', 'exit()', '\n' * 1990, '1,' * 990, 'null', '{}', '[[]]',
]  # fmt: skip


@pytest.fixture
def gym():
    return pytest.importorskip('reasoning_gym')


# the contract


@pytest.mark.parametrize('score', [float('nan'), 1.01, -1e-9, '1', None, [1.0], 1j, float('inf')])
def test_what_is_no_score_pays_nothing(score):
    said = G._scored(lambda text, entry: score, '7', {})
    assert said['score'] == 0 and said['fault'] and 'no number from 0 to 1' in said['why']


def test_a_scorer_is_asked_twice_about_a_fresh_problem():
    def spoils(text, entry):
        entry['answer'] += 'x'
        return len(entry['answer']) / 10

    entry = {'answer': 'abc'}
    assert G._scored(spoils, '7', entry) == dict(score=0.4, why='', fault=False)
    assert entry == {'answer': 'abc'}
    rng = random.Random(0)
    said = G._scored(lambda text, entry: rng.random(), '7', {})
    assert said['score'] == 0 and said['fault'] and ' and then ' in said['why']


@pytest.mark.parametrize(
    'error', [ValueError('x\ny'), KeyError(0), RecursionError(), MemoryError()]
)
def test_a_scorer_that_raises_pays_nothing(error):
    def fails(text, entry):
        raise error

    said = G._scored(fails, '7', {})
    assert said['score'] == 0 and not said['fault'] and type(error).__name__ in said['why']
    assert '\n' not in said['why']


# what a scorer is shown


@pytest.mark.parametrize(
    'text',
    ['f(1)', 'x.y', '__import__("os")', '[i for i in x]', 'x**y**z', '2**41', 'x**(9*9)', "'a'*9",
     'exp(1)(2)', 'exp(x, y)', 'exp(x=1)', '1 if x else 2', 'x[0]', 'x := 1', 'True', '1j', '1e16',
     'Integral(x)', 'ab', 'x and y', 'x < y', '*x', '()', '9' * 16, '1+' * 600 + '1', '1e15',
     '(a+b+x+y)**40'],
)  # fmt: skip
def test_no_program_is_a_formula(text):
    assert not G._is_formula(text)


@given(st.text(alphabet='0129+-*/(). xyC_"\'[]{}=:,ab\n', max_size=60))
@settings(max_examples=300, deadline=None)
def test_what_is_let_through_calls_nothing(text):
    for allowed in (G._is_formula, G._is_literal):
        if not allowed(text):
            continue
        try:
            eval(text, {'__builtins__': {}}, {})  # no name is known, so no call can be made
        except (NameError, SyntaxError, TypeError, ZeroDivisionError, OverflowError, ValueError):
            pass


@pytest.mark.parametrize(
    'text',
    ['x/x', '(1+2)*(x-x)', '0x2A', '0b11', '1_0', '1e2', '2.0', '2**3', '7//2', '7%2', 'sqrt(4)',
     '', '1 2', '٣', '3!', '007'],
)  # fmt: skip
def test_countdown_reads_whole_numbers_alone(text):
    assert not G._may_be_scored('countdown', text)
    assert G._may_be_scored('countdown', '6*(98 - 54) - -34/2')


def test_what_a_scorer_may_be_shown():
    assert not G._may_be_scored('string_insertion', 'oracle_answer')
    assert G._may_be_scored('string_insertion', 'ABCDE')
    assert G._may_be_scored('intermediate_integration', 'x*ln(x) - x + C')
    for text in ('sin(x)**13', 'tan(x)**7*sin(x)**6', '*'.join(['exp(x)'] * 13), '(a+b+x)**40'):
        assert G._is_formula(text) == (text == '(a+b+x)**40')
    assert not G._is_formula('(a+b+c+d+e+f)**40')
    # twelve functions are let through, an exponent of 40, and one without a number
    for text in ('sin(x)**12', '*'.join(['exp(x)'] * 12), 'x**40', 'x**(1*40)', 'x**y'):
        assert G._is_formula(text)


@pytest.mark.slow
def test_a_process_that_is_stopped_in_between_is_told(gym, monkeypatch):
    item = G.gym_task('gcd').sample(1, seed=0)[0]
    process = G._Scorers.own()
    ask = process.ask

    def stops(seconds, **question):
        said = ask(seconds, **question)
        if question['text'] is None:
            process.stop()
        return said

    process.stop()
    monkeypatch.setattr(process, 'ask', stops)
    said = verdict_of(item, item.data[4])
    assert not said.correct and said.reason == 'the process of the scorer ended'
    monkeypatch.undo()
    assert verdict_of(item, item.data[4]).correct


def test_a_program_never_reaches_a_scorer(gym, tmp_path):
    witness = tmp_path / 'it ran'
    program = f"open({str(witness)!r}, 'w')"
    for name in G._LITERALS | G._FORMULAS | G._SUMS:
        made = task(f'gym:{name}')
        item = made.sample(1, seed=0)[0]
        verdict = verdict_of(item, f'<answer>{program}</answer>')
        assert not verdict.correct and verdict.score == 0 and 'may be shown' in verdict.reason
        assert made.verify(item, made.demonstrate(item, seed=0)).correct
    assert not witness.exists()


# a task like any other


@pytest.mark.parametrize('name', NAMES)
def test_the_promises_of_a_task(gym, name):
    made = G.gym_task(name)
    parts = {split: made.sample(6, seed=3, split=split) for split in SPLITS}
    assert len({item.key for items in parts.values() for item in items}) == 18
    assert made.sample(4, seed=3) == parts['train'][:4] != made.sample(4, seed=4)
    blocks = {split: {item.data[1] // G._BLOCK % 3 for item in parts[split]} for split in SPLITS}
    assert [blocks[split] for split in SPLITS] == [{0}, {1}, {2}]
    for item in parts['test']:
        again = Item(**json.loads(json.dumps(asdict(item))))
        assert again == item or again.data == item.data  # nan is not equal to itself
        assert task_of(again).verify(again, made.demonstrate(again, seed=0)).correct
        assert item.prompt('text').startswith(item.prompt())
    item, text = made.draw(random.Random(0))
    assert verdict_of(item, text) and task_of(item) == as_task(f'gym:{name}')


def test_wording_decides_the_split_without_white_space_and_case(gym):
    made = G.gym_task('spell_backward')
    one, other = (
        Item(made.name, ('{}', 0, 0, words, answer))
        for words, answer in (('Spell  it', 'ti'), ('spell it\n', 'TI'))
    )
    assert one.key == other.key != Item(made.name, ('{}', 0, 0, 'Spell that', 'ti')).key


def test_names_levels_and_dials(gym):
    assert list(levels('gym:spell_backward')) == ['easy', 'standard', 'hard', 'extreme']
    assert task('gym:spell_backward') == levels('gym:spell_backward')['standard']
    assert as_task('gym:spell_backward/easy') == task('gym:spell_backward', 'easy')
    assert not any(name.startswith('gym:') for name in tasks())
    assert task('gym:bf', hardness=2).hardness == 2 and 'min_word_len=4' in repr(
        task('gym:spell_backward', min_word_len=4)
    )
    assert hash(task('gym:aiw')) == hash(task('gym:aiw'))  # lists on its dial
    for call, words in (
        (lambda: task('gym:puzzle24'), 'gym:puzzle24 is refused'),
        (lambda: task('gym:nothing'), "no data set 'nothing'"),
        (lambda: task('gym:gcd', 'easiest'), "no level 'easiest'"),
        (lambda: task('gym:gcd', wide=3), "no dial 'wide'"),
        (lambda: task('gym:gcd', seed=3), "no dial 'seed'"),
        (lambda: task('gym:gcd', min_numbers='x'), 'no such dial'),
        (lambda: task('gym:gcd').sample(3, seed=0, split='tst'), 'split'),
        (lambda: task('gym:gcd').sample(1, seed=0)[0].prompt('compact'), 'tiny vocabulary'),
        (lambda: task_from([dict(question='q', answer=1)], name='gym:gcd'), 'task of the library'),
        (lambda: task('gum:gcd'), 'There is no task'),
    ):
        with pytest.raises(ValueError, match=words) as e:
            call()
        assert '\n' not in str(e.value)


@pytest.mark.parametrize('name', NAMES)
def test_hostile_texts_are_wrong_and_come_back(gym, name):
    made = G.gym_task(name)
    item = made.sample(1, seed=1)[0]
    begun = time.time()
    for text in HOSTILE:
        for said in (text, f'<answer>{text}</answer>'):
            assert not verdict_of(item, said).correct
    assert time.time() - begun < 60
    assert verdict_of(item, made.demonstrate(item, seed=0)).correct


@pytest.mark.slow
def test_a_scorer_that_does_not_come_back_is_stopped(gym, monkeypatch):
    made = G.gym_task('countdown')
    item = made.sample(1, seed=1)[0]
    monkeypatch.setattr(G, '_may_be_scored', lambda name, text: True)
    monkeypatch.setattr(G, '_TO_SCORE', 1.0)
    G._warn_of_lateness.cache_clear()
    with pytest.warns(UserWarning, match='gym:countdown: nothing came from the scorer') as told:
        said = verdict_of(item, '9**9**9**9')
        G._warn_of_lateness('countdown')
    assert len(told) == 1 and said.reason == 'late: nothing came within 1 seconds'
    assert not said.correct
    monkeypatch.undo()
    assert verdict_of(item, made.demonstrate(item, seed=0)).correct


def test_a_fault_is_told_once(gym, monkeypatch):
    item = G.gym_task('gcd').sample(1, seed=1)[0]
    G._warn_of_fault.cache_clear()
    said = dict(score=0.0, why='the scorer gave 2', fault=True)
    monkeypatch.setattr(G, '_ask', lambda which, text=None: said)
    with pytest.warns(UserWarning, match='gym:gcd: the scorer') as told:
        verdicts = [verdict_of(item, '7') for _ in range(3)]
    assert len(told) == 1 and [v.score for v in verdicts] == [0, 0, 0]
    G._warn_of_fault.cache_clear()


def test_a_problem_of_another_version_is_told(gym):
    item = G.gym_task('gcd').sample(1, seed=1)[0]
    other = Item(item.task, (*item.data[:3], 'Another question', item.data[4]))
    with pytest.raises(VerifierFailed, match='makes another question'):
        verdict_of(other, '7')


def test_rewards_pay_as_trl_calls_them(gym):
    from rl4llm.rewards import correct, partial_credit

    made = G.gym_task('spell_backward')
    items = made.sample(3, seed=0)
    rows = [json.dumps(asdict(item)) for item in items]
    texts = [made.demonstrate(items[0], seed=0), items[1].data[4][:-1] + '?', 'nothing <answer>']
    prompts = [item.prompt('text') for item in items]
    assert correct(prompts, texts, item=rows) == [1, 0, 0]
    paid = partial_credit(prompts, texts, item=rows)
    assert paid[0] == 1 > paid[1] > 0 == paid[2]


def test_the_stored_table_fits_what_is_refused(gym):
    table = G.gym_table()
    works = table[table.works]
    assert set(table.index) == set(G.gym_sets()) and len(works) == 97
    assert dict(table[~table.works].why) == G._REFUSED
    assert (works.own == 1).all() and (works.nonsense <= 0.64).all()
    assert works.nonsense.nlargest(2).index[0] == 'rectangle_count'  # where 0 is nearly right


@pytest.mark.slow
def test_the_stored_table_is_made_again(gym):
    "Three problems of each data set; which fifth of them, follows from the commit."
    from select_notebooks import PARTS, TOP, turn_of

    table = G.gym_table()
    for row in G.gym_survey(table.index[turn_of(TOP) :: PARTS]):
        stored = table.loc[row['name']]
        for column, value in row.items():
            if column != 'name' and value is not None:
                assert stored[column] == value, (row['name'], column)


# parts, without a process


@pytest.mark.parametrize('score', [0, 1, 0.5])
def test_every_score_from_0_to_1_is_one(score):
    assert G._scored(lambda text, entry: score, '7', {}) == dict(score=score, why='', fault=False)


@pytest.mark.parametrize(
    'entry,answer',
    [
        (dict(answer='7', metadata={}), '7'),
        (dict(answer=[1, 2], metadata={}), '[1, 2]'),
        (dict(answer=None, metadata=dict(possible_answer='x')), 'x'),
        (dict(answer=None, metadata={}), None),
    ],
)
def test_the_answer_of_a_problem(entry, answer):
    assert G._own_answer(entry) == answer


@pytest.mark.parametrize(
    'answer,score,said',
    [
        ('1 + 2', 1, dict(question='q', answer='1 + 2', why='')),
        ('1 + 2', 0.5, dict(why='its own answer is worth 0.5')),
        ('1 + 2', None, dict(why='the scorer gave None, which is no number from 0 to 1')),
        ('f(1)', 1, dict(why='its own answer cannot be read')),  # no sum: the scorer is not asked
        ('', 1, dict(why='its own answer cannot be read')),
        (None, 1, dict(why='there is no answer to it')),
    ],
)
def test_no_problem_is_given_out_whose_own_answer_is_not_paid(answer, score, said):
    asked = []

    def scorer(text, entry):
        asked.append(text)
        return score

    found = G._with_answer('countdown', scorer, dict(answer=answer, metadata={}), 'q')
    assert found == said and set(asked) <= {'1 + 2'}


def test_lists_of_a_dial_are_of_the_kind_of_the_default():
    for value, standard, wanted in (
        ((1, 2), [0], [1, 2]),
        ([1, 2], (0,), (1, 2)),
        ([1, 2], None, [1, 2]),
        (3, [0], 3),
        ('ab', [0], 'ab'),
    ):
        assert G._as_wanted(value, standard) == wanted


def test_a_process_that_says_nothing_is_late():
    silent = SimpleNamespace(ask=lambda seconds, **question: None)
    for text, seconds in (('7', 3), (None, 10)):
        said = G._asked(silent, G._Which('gcd', '{}', 0, 0), text)
        why = f'late: nothing came within {seconds} seconds'
        assert said == dict(score=0, why=why, fault=False, late=True)


@pytest.mark.parametrize(
    'made,said',
    [
        (dict(why=''), dict(score=0, why='the process of the scorer ended', fault=False)),
        (dict(why='too late'), dict(why='too late')),
    ],
)
def test_a_process_that_forgets_every_problem_pays_nothing(monkeypatch, made, said):
    def ask(seconds, text, **which):
        return dict(unknown=True) if text else made

    process = SimpleNamespace(turn=nullcontext(), ask=ask)
    monkeypatch.setattr(G._Scorers, 'own', lambda: process)
    assert G._ask(G._Which('gcd', '{}', 0, 0), '7') == said


class Sums(G.GymTask):
    "A task without a data set behind it."

    name = 'gym:countdown'

    def _dials(self):
        return {}


ITEM = Item('gym:countdown', ('{}', 0, 0, 'What is 1 + 2?', '3'))


@pytest.mark.parametrize(
    'text,told,verdict',
    [
        ('3', dict(score=1), Verdict(True, 1, None, '3', 'correct')),
        ('4', dict(score=0.5, why=''), Verdict(False, 0.5, 0, '4', 'not the answer')),
        ('4', dict(score=0, why='it is late'), Verdict(False, 0, 0, '4', 'it is late')),
        # a problem that cannot be made any more has no score
        ('3', dict(why='no answer'), Verdict(False, 0, 0, '3', 'no answer')),
        ('', dict(score=1), Verdict(False, 0, 0, None, 'no readable answer')),
        ('<answer>3', dict(score=1), Verdict(False, 0, 0, None, 'no readable answer')),
        (
            'f(1)',
            dict(score=1),
            Verdict(False, 0, 0, 'f(1)', 'not an answer that its scorer may be shown'),
        ),
    ],
)
def test_verdicts_by_hand(monkeypatch, text, told, verdict):
    monkeypatch.setattr(G, '_ask', lambda which, text=None: told)
    assert Sums().verify(ITEM, text) == verdict


def test_a_prompt_is_the_question_and_never_the_answer():
    assert Sums().prompt(ITEM) == 'What is 1 + 2?'
    assert Sums().prompt(ITEM, 'text') == f'What is 1 + 2?\n{G._INSTRUCTION}'


@pytest.mark.parametrize('late,asks', [(False, 40), (True, 3)])
@pytest.mark.parametrize('split', SPLITS)
def test_a_search_for_problems_ends_and_keeps_to_the_blocks_of_its_split(
    monkeypatch, split, late, asks
):
    seen = []
    said = dict(why='it is too hard') | (dict(late=True) if late else {})
    monkeypatch.setattr(G, '_ask', lambda which, text=None: seen.append(which) or said)
    with pytest.raises(ValueError, match='no problem at this dial: it is too hard'):
        Sums()._items(split)(random.Random(0))
    assert len(seen) == asks
    assert [which.place for which in seen] == [*range(20), *range(20)][:asks]
    blocks = {which.block for which in seen}
    assert len(blocks) == (1 if late else 2) and min(blocks) > 0
    assert all(block % 20 == 0 and block // 20 % 3 == SPLITS.index(split) for block in blocks)


def test_levels_lie_at_the_foot_at_two_thirds_and_at_the_top(monkeypatch):
    class Curriculum:
        attributes = dict(a=SimpleNamespace(levels=[5, 6, 7, 8]), b=SimpleNamespace(levels=[1, 2]))

        def set_global_level(self, level):
            asked.append(level)

        def generate_configuration(self):
            return None

    asked = []
    monkeypatch.setattr(G, '_factory', lambda: SimpleNamespace(CURRICULA=dict(a=Curriculum)))
    monkeypatch.setattr(G, '_plain_dials', lambda config: {})
    assert list(G._levels_of(lambda: 'made', 'a')) == ['easy', 'standard', 'hard', 'extreme']
    assert asked == [0, 2, 3]
    Curriculum.attributes = dict(a=SimpleNamespace(levels=list(range(8))))  # 2 / 3 of 7 is near 5
    G._levels_of(lambda: 'made', 'a')
    assert asked[3:] == [0, 5, 7]


def test_the_row_of_a_data_set(monkeypatch):
    paid = {
        ('a', 'a'): 1,
        ('b', 'b'): 0.99999,  # in four places that is no 1
        ('a', 'b'): 0.5,
        ('b', 'a'): 0.25,
        ('a', 'x'): 0.125,
        ('b', 'b junk'): 0.75,
    }

    class Made:
        levels = ('easy', 'standard')

        def sample(self, count, *, seed):
            return [Item('gym:letters', ('{}', 0, n, 'q', answer)) for n, answer in enumerate('ab')]

        def demonstrate(self, item, *, seed):
            return f'<answer> {item.data[4]} </answer>'

        def verify(self, item, text):
            said = text.removeprefix('<answer> ').removesuffix(' </answer>')
            return SimpleNamespace(score=paid.get((item.data[4], said), 0))

    kind = type('Letters', (), dict(__module__='reasoning_gym.games.letters'))
    monkeypatch.setattr(G, '_factory', lambda: SimpleNamespace(DATASETS=dict(letters=(kind,))))
    monkeypatch.setattr(G, 'task', lambda name: Made())
    assert G._surveyed('letters', '', 2) == dict(
        name='letters', kind='games', works=True, why='', levels='easy, standard',
        own=0.9999, other=0.5, nonsense=0.125, floor=0, junk=0.75,
    )  # fmt: skip
    assert [G._rounded(score) for score in (1, 0.99999, 0.12344, 0)] == [1, 0.9999, 0.1234, 0]
