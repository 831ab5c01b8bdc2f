"""Which cases of a test are run by `make test` and `make test-all`: `pytest --turn` and
`pytest --long-in-turn`.

A test with many cases does the same to many things: to each recipe, stage, notebook or file. The
cases about something that was changed are run, and one tenth of the others in turn, which follows
from the commit as it does for notebooks.

A file's tests with few cases are run if the file reaches what was changed, if it names no module
of the package, and else one commit in ten. A file of tests that was changed itself is run whole.
Hostile texts are judged every time. Without git everything is run.

`make test-all` runs all of this, but for tests that take long (marked `takes_turns`, as those that
train every recipe): of these it runs the cases that `make test` would run."""

import ast, re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from select_notebooks import TOP, House, Source, changed_files, registered, turn_of

PARTS = 10
MANY = 10  # cases of a test that does the same to many things
ALWAYS = ('test_fuzz.py',)


@dataclass(frozen=True)
class Case:
    "A test, the file it stands in, and the words of its parameters."

    file: str
    test: str
    words: frozenset = frozenset()


def case_of(item):
    "The case that an item of pytest is."
    name = getattr(item, 'originalname', item.name)
    given = item.callspec.id if hasattr(item, 'callspec') else ''
    words = re.split(r'[-/\s]', given)
    whole = [given, *words, *(word.rpartition('.')[0] for word in words)]
    return Case(item.path.name, name, frozenset(whole) - {''})


def changed_words(house, files):
    """What cases about a change are called: changed files, with their folders and without, changed
    modules, and what these register."""
    found = set()
    for file in files:
        path = Path(file)
        found |= {file, path.name, path.stem, f'{path.parent.name}-{path.stem}'}
        found.add(f'{path.parent.name}/{path.stem}')
    for module in house.changed_modules(files):
        found |= {module, module.removeprefix('rl4llm.'), module.rpartition('.')[2]}
        found |= registered(house.modules[module])
    return found - {'', '__init__'}


def imported_here(source):
    "Names of the files beside the tests that a file of tests imports."
    froms = [n.module for n in source.nodes if isinstance(n, ast.ImportFrom) and not n.level]
    plain = [a.name for n in source.nodes if isinstance(n, ast.Import) for a in n.names]
    return {f'{name}.py' for name in {*froms, *plain} - {None}}


@cache
def needs_of_tests(house):
    "File of tests -> the modules that it needs, and the files beside it that it imports."
    found = {}
    for path in sorted((house.top / 'tests').glob('test_*.py')):
        source = Source([ast.parse(path.read_text())])
        found[path.name] = house.needs(source), imported_here(source)
    return found


def whole_files(house, files, turn):
    """File of tests -> why its tests with few cases are run.

    'reached', 'always', 'in turn', or 'of the house' if it names no module of the package.
    """
    reached = set(house.reaching(house.changed_modules(files)))
    helpers = {Path(file).name for file in files if file.startswith('tests/')}
    found = {}
    for number, (file, (needs, beside)) in enumerate(needs_of_tests(house).items()):
        if needs & reached or (beside | {file}) & helpers:
            found[file] = 'reached'
        elif file in ALWAYS:
            found[file] = 'always'
        elif not needs:
            found[file] = 'of the house'
        elif number % PARTS == turn:
            found[file] = 'in turn'
    return found


def chosen(cases, words, changed_tests, whole, turn):
    """Numbers of the cases to run, in their order.

    words: what cases about a change are called. changed_tests: files that are run whole.
    whole: files whose tests with few cases are run. turn: which tenth of many cases.
    """
    families = defaultdict(list)
    for number, case in enumerate(cases):
        families[case.file, case.test].append(number)
    kept = set()
    for (file, _), numbers in families.items():
        about = [number for number in numbers if cases[number].words & words]
        rest = [number for number in numbers if not cases[number].words & words]
        many = len(numbers) >= MANY
        if file in changed_tests or (file in whole and not many):
            kept.update(numbers)
        elif many:
            kept.update(about, rest[turn % PARTS :: PARTS])
        else:
            kept.update(about)
    return sorted(kept)


def long_in_turn(items, top=TOP):
    "The items of pytest that `make test-all` runs."
    marked = [item for item in items if item.get_closest_marker('takes_turns')]
    left = set(marked) - set(in_turn(marked, top))
    return [item for item in items if item not in left]


def in_turn(items, top=TOP):
    "The items of pytest that `make test` runs."
    files = changed_files(top)
    if files is None:
        return items
    tests = {Path(file).name for file in files if file.startswith('tests/')}
    house = House(top)
    words = changed_words(house, files)
    whole = whole_files(house, files, turn_of(top, digit=1, parts=PARTS))
    turn = turn_of(top, parts=PARTS)
    numbers = chosen([case_of(item) for item in items], words, tests, whole, turn)
    return [items[number] for number in numbers]
