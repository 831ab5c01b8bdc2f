"The data sets of reasoning-gym as tasks: what their scorers are shown, and what is believed."

import json, random, time
from dataclasses import asdict
import pytest
from hypothesis import given, settings, strategies as st
from rl4llm.tasks import SPLITS, Item, as_task, levels, task, task_from, task_of, tasks
from rl4llm.tasks import VerifierFailed, verdict_of
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
     'Integral(x)', 'ab', 'x and y', 'x < y', '*x', '()', '9' * 16, '1+' * 600 + '1'],
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
    "Minutes: three problems of each data set."
    table = G.gym_table()
    for row in G.gym_survey(table.index):
        stored = table.loc[row['name']]
        for column, value in row.items():
            if column != 'name' and value is not None:
                assert stored[column] == value, (row['name'], column)
