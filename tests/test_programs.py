"Programs for a stack: limits, marks, odds and the choice of problems, beside hand-made cases."

import random
from types import SimpleNamespace
import pytest
from rl4llm.tasks import Item, programs as P
from rl4llm.tasks.programs import Grades, RunRead, all_inputs, blind_chance, blind_program
from rl4llm.tasks.programs import (
    demonstrate_program,
    function_table,
    grade_program,
    is_told,
    parse_program,
    read_run,
)
from rl4llm.tasks.programs import rewritings, verify_program

SOME = ((0,), (1,), (2,))


def asked(program, shown=SOME, names='x'):
    return Item('program', (names, program, shown))


def words(text):
    return tuple(text.split())


# what is read and how it is marked


def test_forty_words_are_a_program_and_one_more_are_none():
    assert parse_program('x' + ' d s +' * 13).fault is None
    assert parse_program('x' + ' d +' * 20).fault == 40


@pytest.mark.parametrize(
    'program,text,grades,verdict',
    [
        ('x 2 *', None, Grades(0, 0, 0, 0, 0), (False, 0, 0, 'word 0: no readable answer')),
        ('x 2 *', 'x d +', Grades(1, 1, 1, 1, 1), (True, 1, None, 'correct')),
        ('x 2 * 0 +', 'x d +', Grades(1, 1, 1, 1, 1), (True, 1, None, 'correct')),
        ('x d +', 'x 2 * 0 +', Grades(1, 1, 1, 1, 3 / 5), (True, 1, None, 'correct')),
        # 0, 1, 4, 9 ... and 0, 1, 2, 3 ...: the third test is the first that fails, and is shown
        ('x d *', 'x', Grades(1, 2 / 10, 2 / 3, 0, 0), (False, 0.2, 2, 'test 2 (shown): 2 gives')),
        # 0, 0, 0, 1, 1 ... and 0: the fourth test is the first that is hidden
        ('x 2 >', '0', Grades(1, 0.3, 1, 0, 0), (False, 0.3, 3, 'test 3 (hidden): 3 gives 0')),
    ],
)
def test_marks_and_verdicts(program, text, grades, verdict):
    item = asked(program)
    told = '<answer> x d +' if text is None else f'<answer> {text} </answer>'
    said = verify_program(item, told)
    assert grade_program(item, told) == pytest.approx(grades)
    correct, score, first, why = verdict
    assert (said.correct, said.first_error) == (correct, first) and said.reason.startswith(why)
    assert said.score == pytest.approx(score)


def test_where_all_tests_are_shown_nothing_hidden_fails():
    item = asked('x d *', all_inputs('x'))
    assert grade_program(item, '<answer> x </answer>') == Grades(1, 0.2, 0.2, 1, 0)


@pytest.mark.parametrize(
    'program,thought,read',
    [
        ('2 x *', '4 : 2 | 2 ; x | 2 4 ; * | 8', RunRead(3, None, True)),
        ('2 x *', '4 : 2 | 2 ; x | 2 5 ; * | 10', RunRead(3, 1, True)),
        ('x d *', '4 : x | b ; d | 4 4 ; * | 16', RunRead(3, 0, True)),
        ('x d *', '4 : x | 4 ; d | 4 b ; * | 16', RunRead(3, 1, True)),
        ('x d *', '4 : x ; d | 4 4 ; * | 16', RunRead(3, 0, True)),
        ('x d *', '4 : x | 4 ; d | 4 4', RunRead(2, None, False)),
    ],
)
def test_a_written_run_is_followed(program, thought, read):
    text = f'<think> {thought} </think> <answer> {program} </answer>'
    assert read_run(asked(program), text) == read


# what a blind writer gives


@pytest.mark.parametrize(
    'height,left,can',
    [(1, 0, True), (0, 0, False), (2, 0, False), (0, 1, True), (2, 1, True), (3, 1, True)]
    + [(1, 1, False), (4, 1, False), (0, 2, False), (5, 2, True), (6, 2, False), (0, 3, True)],
)
def test_where_a_program_can_still_end(height, left, can):
    "One number is left by +, which takes one off, or by 'if', which takes two off."
    assert P._can_end(height, left) == can


@pytest.mark.parametrize(
    'program,names,chance',
    [
        ('x', 'x', 2 / 3),  # an input is taken twice as often as a number
        ('y', 'xy', 2 / 3 / 2),
        ('5', 'x', 1 / 3 / 21),  # of 0 to 20
        ('20', 'x', 1 / 3 / 21),
        ('30', 'x', 1 / 3 / 100),  # of 0 to 99
        # no operation fits first, then d alone (3 of 1 + 2 + 3), then one of five
        ('x d +', 'x', 2 / 3 * 3 / 6 / 5),
        ('x 5 +', 'x', 2 / 3 * 1 / 6 / 21 / 5),
    ],
)
def test_the_chance_of_blind_writing(program, names, chance):
    assert blind_chance(words(program), names) == pytest.approx(chance)


def test_a_blind_writer_uses_numbers_up_to_twenty():
    rng = random.Random(0)
    some = {blind_program(1, 'x', rng)[0] for _ in range(600)}
    assert some == {'x', *map(str, range(21))}


def test_rewritings_by_hand():
    for program, others in {
        'x 3 -': ['3 x s -'],
        'x 3 s -': ['3 x -'],
        'x 3 +': ['3 x +'],
        'x d *': ['x x *'],
        'x x *': ['x x *', 'x d *'],
        'x d': [],
    }.items():
        assert rewritings(words(program)) == list(map(words, others))


# which programs make a problem


@pytest.mark.parametrize('names', ['x', 'xy'])
def test_the_scattered_inputs_are_all_inputs(names):
    assert sorted(P._scattered(names)) == list(all_inputs(names))


@pytest.mark.parametrize(
    'program,names,tight',
    [
        ('x x 3 - *', 'x', True),
        ('2 3 + x *', 'x', False),  # two fixed numbers
        ('2 d + x *', 'x', False),  # one of them doubled
        ('x 3 + x 3 + *', 'x', False),  # x 3 + d * is shorter
        ('x 0 +', 'x', False),
        ('x y +', 'xy', True),
        ('x y 0 + +', 'xy', False),
    ],
)
def test_what_is_tight(program, names, tight):
    assert P._is_tight(words(program), names) == tight


@pytest.mark.parametrize(
    'program,names,wanted',
    [
        ('x 4 >', 'x', True),
        ('3 4 +', 'x', False),  # x plays no part
        ('x y +', 'xy', True),
        ('x 3 +', 'xy', False),
        ('9 x 2 - mod', 'x', False),  # it stops at 2, where a quick look does not fall
        ('y d > 3 - x *', 'xy', False),  # 97 x, whatever y is
        ('x d > 3 - y *', 'xy', False),
    ],
)
def test_what_is_wanted(program, names, wanted):
    assert P._is_wanted(words(program), names) == wanted


def test_simple_functions_by_hand():
    tables = P.simple_tables('x', 3, 0)
    assert tables == (tuple(range(10)), *((n,) * 10 for n in range(4)))
    tables = P.simple_tables('x', 3, 2)
    for program, simple in {
        'x 2 * 3 -': True,
        '3 x 2 * -': True,
        'x d * x +': True,
        'x d * 3 mod': True,
        '3 x 1 + mod': True,
        'x 2 + x 3 + *': False,
    }.items():
        assert (function_table(words(program), 'x') in tables) == simple


@pytest.fixture
def rivals(monkeypatch):
    "What is asked of `simple_tables`, and what it gives."
    seen = SimpleNamespace(asked=[], tables=())

    def tables(names, high, operations):
        seen.asked.append((high, operations))
        return seen.tables

    monkeypatch.setattr(P, 'simple_tables', tables)
    return seen


def test_two_operations_are_tried_of_one_input_and_small_numbers(rivals):
    is_told(asked('x d *'))
    for high in (20, 21):
        is_told(asked('x d *'), high)
        is_told(asked('x y *', ((0, 0),), 'xy'), high)
    assert rivals.asked == [(20, 2), (20, 2), (20, 1), (21, 1), (21, 1)]


def test_an_item_is_told_if_no_rival_passes_what_it_shows(rivals):
    squares = tuple(n * n for n in range(10))
    for others, told in {
        (squares,): True,
        (tuple(range(10)),): True,  # differs at 2
        (squares[:9] + (0,),): False,  # differs where nothing is shown
        (squares, squares[:9] + (0,)): False,
    }.items():
        rivals.tables = others
        assert is_told(asked('x d *')) == told


def test_a_program_stands_out_if_no_rival_gives_more_than_half(rivals):
    half = (0, 1, 4, 9, 16, 0, 0, 0, 0, 0)
    more = (0, 1, 4, 9, 16, 25, 0, 0, 0, 0)
    for others, out in {(half,): True, (more,): False, (half, more): False, (): True}.items():
        rivals.tables = others
        assert P._stands_out(asked('x d *'), 20) == out
    rivals.asked.clear()
    P._stands_out(asked('x x d if'), 20)
    P._stands_out(asked('x 1 + d *'), 20)
    assert rivals.asked == [(20, 0), (20, 1)]


def test_demonstrations_are_at_most_two_words_longer():
    item = asked('x 3 - d *')  # x 3 - x 3 - * has two more, 3 x s - x 3 - * three
    said = [verify_program(item, demonstrate_program(item, seed=seed)) for seed in range(80)]
    assert all(one.correct for one in said)
    assert {len(one.answer.split()) for one in said} == {5, 6, 7}
