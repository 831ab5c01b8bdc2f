"Of tests with many cases `make test` runs those in turn and those about a change."

import os, subprocess, sys
from functools import cache
import pytest
from select_notebooks import TOP, House
from select_tests import (
    MANY,
    PARTS,
    Case,
    case_of,
    changed_words,
    chosen,
    long_in_turn,
    whole_files,
)

RECIPES = [f'recipe_{n}' for n in range(20)]
CASES = [Case('test_a.py', 'test_one'), Case('test_a.py', 'test_two')]
CASES += [Case('test_b.py', 'test_each', frozenset([name])) for name in RECIPES]
WHOLE = {'test_a.py': 'reached'}


def test_files_that_share_what_takes_long_go_to_one_worker():
    from together import TOGETHER, unit_of

    assert unit_of('tests/test_fuzz.py::test_a[x::y]') == 'tests/test_fuzz.py'
    assert unit_of('tests/test_loop.py::test_a[1]') == 'tests/test_loop.py::test_a[1]'
    assert all((TOP / 'tests' / file).exists() for file in TOGETHER)


def test_the_scheduler_keeps_them_together(tmp_path):
    code = """
import os, pytest

@pytest.mark.parametrize('number', range(6))
def test_it(number):
    worker = os.environ['PYTEST_XDIST_WORKER']
    open('log', 'a').write(f'{__file__[-7:]} {worker}\\n')
"""
    (tmp_path / 'test_fuzz.py').write_text(code)
    (tmp_path / 'test_else.py').write_text(code)
    (tmp_path / 'conftest.py').write_text((TOP / 'tests' / 'together.py').read_text())
    command = [
        sys.executable,
        '-m',
        'pytest',
        '-q',
        '-p',
        'xdist',
        '-n',
        '2',
        '--dist',
        'loadgroup',
    ]
    alone = os.environ | dict(PYTEST_DISABLE_PLUGIN_AUTOLOAD='1')
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    lines = (tmp_path / 'log').read_text().split('\n')[:-1]
    assert len(lines) == 12 and len({line for line in lines if 'fuzz.py' in line}) == 1


@cache
def house():
    return House(TOP)


def names(numbers):
    return [next(iter(CASES[n].words), CASES[n].test) for n in numbers]


def test_a_tenth_of_many_cases_is_in_turn_and_all_of_few():
    assert MANY <= len(RECIPES)
    first = names(chosen(CASES, set(), set(), WHOLE, turn=0))
    assert first == ['test_one', 'test_two', 'recipe_0', 'recipe_10']


def test_ten_turns_run_everything():
    runs = [chosen(CASES, {'recipe_3'}, set(), WHOLE, turn) for turn in range(PARTS)]
    assert set().union(*runs) == set(range(len(CASES)))


def test_few_cases_wait_for_their_file_unless_they_are_about_a_change():
    assert names(chosen(CASES, set(), set(), {}, turn=1))[0] == 'recipe_1'
    few = [Case('test_c.py', 'test_it', frozenset([name])) for name in ('lock', 'path')]
    assert chosen(few, {'lock'}, set(), {}, turn=0) == [0]


def test_a_file_of_tests_is_run_if_it_reaches_the_change():
    whys = [
        whole_files(house(), {'nbs/rewards/19_collective.ipynb'}, turn) for turn in range(PARTS)
    ]
    files = {path.name for path in (TOP / 'tests').glob('test_*.py')}
    assert set().union(*whys) == files, 'ten turns run every file'
    for why in whys:
        assert why['test_collective.py'] == 'reached' and why['test_lint.py'] == 'of the house'
        assert why['test_fuzz.py'] == 'always'
        assert len(why) < len(files) / 2


def test_a_change_of_what_all_stand_on_runs_nearly_everything():
    why = whole_files(house(), {'nbs/core/00_rollouts.ipynb'}, 0)
    assert why['test_loop.py'] == why['test_wiring.py'] == 'reached'
    assert len(why) > len(list((TOP / 'tests').glob('test_*.py'))) / 2


def test_a_changed_helper_of_the_tests_runs_the_files_that_import_it():
    why = whole_files(house(), {'tests/faults.py'}, 0)
    assert why['test_mutants.py'] == 'reached' and why['test_lint.py'] == 'of the house'


def test_what_is_about_a_change_is_always_run():
    for turn in range(PARTS):
        found = names(chosen(CASES, {'recipe_3', 'elsewhere'}, set(), WHOLE, turn))
        assert 'recipe_3' in found and len(found) <= 2 + 1 + 2


def test_a_changed_file_of_tests_is_run_whole():
    assert chosen(CASES, set(), {'test_b.py'}, WHOLE, turn=2) == list(range(len(CASES)))
    assert len(chosen(CASES, set(), {'test_a.py'}, {}, turn=2)) == 2 + 2


@pytest.mark.parametrize(
    'file, words',
    [
        (
            'nbs/rollouts/04_archives.ipynb',
            {'rollouts-04_archives', 'rollouts.archives', 'go_explore', 'archived_rows'},
        ),
        ('rl4llm/assets/scale/arpo.yaml', {'arpo', 'arpo.yaml'}),
        ('nbs/tasks/13_lock.ipynb', {'tasks.lock', 'lock'}),
    ],
)
def test_a_change_is_known_by_the_names_that_cases_have(file, words):
    assert words <= changed_words(house(), {file})


def test_what_takes_long_takes_turns_and_nothing_else(monkeypatch):
    import select_tests

    marked = [Given('test_each', name, takes_turns=True) for name in RECIPES]
    marked += [Given('test_alone', takes_turns=True)]
    plain = [Given('test_other', name) for name in RECIPES] + [Given('test_else')]
    items = [*marked, *plain]
    monkeypatch.setattr(select_tests, 'changed_files', lambda top: set())
    monkeypatch.setattr(select_tests, 'changed_words', lambda house, files: {'recipe_3'})
    monkeypatch.setattr(select_tests, 'House', lambda top: None)
    for turn in range(PARTS):
        monkeypatch.setattr(select_tests, 'turn_of', lambda top, digit=0, parts=PARTS: turn)
        whole = {'test_b.py': 'in turn'} if turn == 2 else {}
        monkeypatch.setattr(select_tests, 'whole_files', lambda *given: whole)
        kept = long_in_turn(items)
        assert kept[-len(plain) :] == plain and marked[3] in kept
        assert sum(item.name == 'test_each' for item in kept) in (2, 3)
        assert (marked[-1] in kept) == (turn == 2)
    monkeypatch.setattr(select_tests, 'changed_files', lambda top: None)
    assert long_in_turn(items) == items


class Given:
    "What this project reads of an item of pytest."

    path = TOP / 'tests' / 'test_b.py'

    def __init__(self, name, given=None, takes_turns=False):
        self.name = name
        self.takes_turns = takes_turns
        if given is not None:
            self.originalname = name
            self.callspec = type('Callspec', (), dict(id=given))

    def get_closest_marker(self, name):
        return self.takes_turns or None


@pytest.mark.parametrize(
    'given, word',
    [
        ('prorl.objective', 'prorl'),
        ('rollouts-04_archives', 'rollouts-04_archives'),
        ('lock-hard', 'lock'),
        ('rollouts.archives.Archive', 'rollouts.archives'),
    ],
)
def test_a_case_is_about_what_its_parameters_say(given, word):
    case = case_of(Given('test_each', given))
    assert word in case.words and case.test == 'test_each' and case.file == 'test_b.py'
    assert case_of(Given('test_alone')).words == frozenset()
