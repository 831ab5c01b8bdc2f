"""Which cases of a test are run by `make test`: `pytest --turn`.

A test with many cases does the same to many things: to each recipe, stage, notebook or file. The
cases about something that was changed are run, and one fifth of the others in turn, which follows
from the commit as it does for notebooks. A test with few cases is run whole, and so is a file of
tests that was changed itself. Without git everything is run."""

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from select_notebooks import PARTS, TOP, House, changed_files, registered, turn_of

MANY = 10  # cases; a test with fewer is run whole


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


def chosen(cases, words, changed_tests, turn):
    "Numbers of the cases to run, in their order."
    families = defaultdict(list)
    for number, case in enumerate(cases):
        families[case.file, case.test].append(number)
    kept = set()
    for (file, _), numbers in families.items():
        if len(numbers) < MANY or file in changed_tests:
            kept.update(numbers)
            continue
        about = [number for number in numbers if cases[number].words & words]
        rest = [number for number in numbers if not cases[number].words & words]
        kept.update(about, rest[turn % PARTS :: PARTS])
    return sorted(kept)


def in_turn(items, top=TOP):
    "The items of pytest that `make test` runs."
    files = changed_files(top)
    if files is None:
        return items
    tests = {Path(file).name for file in files if file.startswith('tests/')}
    words = changed_words(House(top), files)
    numbers = chosen([case_of(item) for item in items], words, tests, turn_of(top))
    return [items[number] for number in numbers]
