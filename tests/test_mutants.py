"""The checks by hand pass on the real code; the engine that plants faults does what it says; and a
sample of the faults is noticed (all of them: `make mutants`)."""

import ast, importlib, json, os, subprocess, sys
import pytest
import checks_by_hand
import faults, mutants

MODULE = '''
import contextlib, functools
import numpy as np
from dataclasses import dataclass
from typing import NamedTuple

LIMIT = 2.0
TABLE = {'two': lambda x: 2 * x}

def spread(x, low=0.5, *, high=1.5):
    "Keep x between low and high, and double it."
    if low > high:
        raise ValueError(f"low is {low + 0}, wanted at most {high - 0}.")
    kept = np.clip(x, low, high)
    return kept * 2.0

@functools.cache
def slow(n): return n + 1

@contextlib.contextmanager
def opened(n):
    yield n + 1

@dataclass
class Pair:
    a: float
    b: float = 3.0
    def total(self): return self.a + 1
    @property
    def half(self): return self.a / 2
    @staticmethod
    def least(x, y): return min(x, y)

class Edge(NamedTuple):
    a: float
    b: float = 3.0

class Longer(Pair):
    def total(self): return super().total() + 1

def plot_it(ax): return ax.plot(1 + 1)
'''


@pytest.mark.parametrize('check', checks_by_hand.CHECKS, ids=lambda f: f.__name__)
def test_the_real_code_passes(check):
    check()


@pytest.fixture
def toy(tmp_path, monkeypatch):
    "A package of one module, and a second that imports from it."
    monkeypatch.setattr(faults, 'PACKAGE', 'toypackage')
    folder = tmp_path / 'toypackage'
    folder.mkdir()
    (folder / '__init__.py').write_text('')
    (folder / 'own.py').write_text(MODULE)
    (folder / 'user.py').write_text('from .own import *\nfrom .own import spread as other\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    user = importlib.import_module('toypackage.user')
    yield user
    for name in [n for n in sys.modules if n.startswith('toypackage')]:
        del sys.modules[name]


def sites():
    return {s.name: s for s in faults.sites_in('own')}


def after(name, work):
    "What `work()` returns in a process where one fault is planted."
    site = sites()[name]

    def planted():
        faults.plant(site)
        return work()

    return mutants.forked(planted, 60)


def test_every_kind_of_fault_is_found(toy):
    assert {s.kind for s in sites().values()} >= {
        'constant',
        'factor',
        'operator',
        'sign',
        'minus before',
        'without clip',
        'min -> max',
    }
    assert set(sites()) >= {
        'spread: low=[0.5 -> 1.0]',
        'spread: high=[1.5 -> 3.0]',
        'spread: return kept * [2.0 -> 4.0]',
        'slow: return n [+ -> -] 1',
        'Pair.total: return self.a [+ -> -] 1',
        'LIMIT: LIMIT = [2.0 -> 4.0]',
    }


def test_errors_guards_texts_and_pictures_are_left_alone(toy):
    for name in sites():
        assert 'plot_it' not in name and 'wanted' not in name and 'low > high' not in name, name


@pytest.mark.parametrize(
    'text, wanted',
    [
        ('a > b', ['a >= b']),
        ('a <= b < c', ['a < b < c', 'a <= b <= c']),
        ('a == b', ['a != b']),
        ('-a', ['a']),
        ('a - b', ['a + b']),
        ('a * b', ['a / b', 'a', '-(a * b)']),
        ('a / b', ['a', '-(a / b)']),
        ('~a', ['a']),
        ('not a', ['a']),
        ('a and b', ['a or b']),
        ('True', ['False']),
        ('3', ['4']),
        ('0.5', ['1.0']),
        ('1e-06', ['1.000001']),
        ('x.sum()', []),
        ('x.clamp(min=a)', ['x']),
        ('torch.clamp(x, a, b)', ['x']),
        ('x.detach()', ['x']),
        ('x.mean(d)', ['x.sum(d)']),
        ('max(a, b)', ['min(a, b)']),
        ('f(a, b)', ['f(b, a)']),
        ('where(m, a, b)', ['where(m, b, a)']),
        ('f(a, 0)', []),
        ('minimum(a, b)', ['maximum(a, b)']),
        ("'a' + b", []),
        ("f'{a + b}'", []),
    ],
)
def test_faults_of_an_expression(text, wanted):
    node = ast.parse(text, mode='eval').body
    found = faults.FAULTS_OF.get(type(node), faults.no_faults)(node, None)
    assert [ast.unparse(ast.fix_missing_locations(new)) for _, new in found] == wanted


@pytest.mark.parametrize(
    'name, work, before, wanted',
    [
        ('spread: return kept * [2.0 -> 4.0]', lambda u: u.other(1), 2, 4),
        ('spread: high=[1.5 -> 3.0]', lambda u: u.spread(2), 3, 4),
        ('spread: kept = [np.clip(x, low, high) -> x]', lambda u: u.spread(5), 3, 10),
        ('slow: return n [+ -> -] 1', lambda u: u.slow(3), 4, 2),
        ('opened: yield (n [+ -> -] 1)', lambda u: u.opened(3).__enter__(), 4, 2),
        ('Pair.total: return self.a [+ -> -] 1', lambda u: u.Longer(3).total(), 5, 3),
        ('Longer.total: return super().total() [+ -> -] 1', lambda u: u.Longer(3).total(), 5, 3),
        ('Pair.half: return self.a / [2 -> 3]', lambda u: u.Pair(6).half, 3, 2),
        ('Pair.least: return [min -> max](x, y)', lambda u: u.Pair.least(1, 2), 1, 2),
        ('Pair.b: b: float = [3.0 -> 6.0]', lambda u: u.Pair(1).b, 3, 6),
        ('Edge.b: b: float = [3.0 -> 6.0]', lambda u: u.Edge(1).b, 3, 6),
        ('Edge.b: b: float = [3.0 -> 6.0]', lambda u: u.Edge(1, 2).b, 2, 2),
        ('LIMIT: LIMIT = [2.0 -> 4.0]', lambda u: u.LIMIT, 2, 4),
        ("TABLE: ...BLE = {'two': lambda x: [2 -> 3] * x}", lambda u: u.TABLE['two'](3), 6, 9),
    ],
)
def test_a_fault_reaches_every_importer_and_no_other_process(toy, name, work, before, wanted):
    assert work(toy) == before
    assert after(name, lambda: work(toy)) == wanted
    assert work(toy) == before


def test_names_do_not_depend_on_the_layout(toy, tmp_path):
    names = list(sites())
    tight = ast.unparse(ast.parse(MODULE)).replace('kept = ', '\n\n    kept = \\\n        ')
    (tmp_path / 'toypackage' / 'own.py').write_text(tight)
    assert list(sites()) == names and len(set(names)) == len(names)


def test_what_was_tried_is_put_back_in_the_tree(toy):
    unit = next(s for s in sites().values()).unit
    assert [s.name for s in faults.sites_of(unit)] == [s.name for s in faults.sites_of(unit)]


def check(run, site):
    lines = {site.unit.file: set(range(*site.lines)) | set(site.lines)}
    return mutants.Check('check', run, lines=lines)


@pytest.mark.parametrize(
    'run, status',
    [(lambda u: None, mutants.SURVIVED), (lambda u: u.other(1) + 'text', mutants.CRASHED)],
)
def test_what_becomes_of_a_fault(toy, run, status):
    site = sites()['spread: return kept * [2.0 -> 4.0]']
    found = mutants.forked(lambda: mutants.tried(site, [check(lambda: run(toy), site)]), 60)
    assert found.status == status


def test_a_failing_check_catches_and_an_endless_one_is_stopped(toy, monkeypatch):
    site = sites()['spread: return kept * [2.0 -> 4.0]']

    def right():
        assert toy.other(1) == 2

    def endless():
        while toy.other(1) != 2:
            pass

    for run, status in ((right, mutants.CAUGHT), (endless, mutants.ENDLESS)):
        made = check(run, site)
        made.seconds = -0.45  # half a second instead of five
        found = mutants.forked(lambda: mutants.tried(site, [made]), 60)
        assert found.status == status and found.check == 0


def test_only_checks_that_run_the_line_are_tried(toy):
    site = sites()['spread: return kept * [2.0 -> 4.0]']
    with mutants.tracing([site.unit.file]) as there:
        toy.spread(1)
    with mutants.tracing([site.unit.file]) as elsewhere:
        toy.slow(70)
    assert mutants.Check('a', None, lines=there).runs(site)
    assert not mutants.Check('b', None, lines=elsewhere).runs(site)


def notebook_of(sources, folder):
    made = [dict(cell_type='code', source=c) for c in sources]
    (folder / 'n.ipynb').write_text(json.dumps(dict(cells=made)))
    return mutants.Notebook('own', folder / 'n.ipynb')


def test_a_cell_brings_the_cells_that_it_needs(tmp_path):
    sources = [
        '#| export\nx = 1',
        'a = 1',
        'b = 2',
        'c = a + 1\nd = {}',
        "d['k'] = b",
        'assert c',
        'd',
    ]
    book = notebook_of(sources, tmp_path)
    assert [n for n, _ in book.cells] == [1, 2, 3, 4, 5, 6]
    assert book.needed_by(5) == [1, 3, 5]
    assert book.needed_by(6) == [1, 2, 3, 4, 6]


def test_what_a_failing_cell_defined_is_not_there(tmp_path, monkeypatch):
    sources = ['a = 1\nassert a', 'a = 2\nb = a\nassert b > 2', 'assert b', 'assert a == 1']
    book = notebook_of(sources, tmp_path)
    monkeypatch.setattr(book, 'start', dict)
    numbers, _, _ = book.measured([])
    assert numbers == [0, 3]


def test_scope_is_found_by_rule():
    scope = mutants.modules_in_scope()
    with_stages = {mutants.short(i.module) for i in mutants.stage_table().values()}
    assert with_stages <= set(scope)
    idle = [p for p in mutants.WITHOUT_STAGES if not any(mutants.fits(m, [p]) for m in scope)]
    assert not idle, f"no module fits {idle}: the table in mutants.py needs a new name"
    assert all((mutants.TESTS / f"{f}.py").exists() for m in scope for f in mutants.files_about(m))


def test_stored_survivors_have_a_reason_and_a_module():
    scope = mutants.modules_in_scope()
    for module, row in mutants.stored().items():
        assert module in scope, f"{module} is no module any more: run make mutants"
        counts = row['caught'] + row['crashed'] + len(row['survivors'])
        assert counts == row['tried'] <= row['sites']
        assert all(reason.strip() for reason in row['survivors'].values())


NOTICED = 0.95  # of the faults of a module that nobody has judged harmless
LESS = {  # module: why fewer of its faults are noticed
    'rewards.stress_suite': "its survivors have not been looked at yet"
}


def test_nearly_all_faults_that_may_matter_are_noticed():
    rows = mutants.stored()
    assert set(LESS) <= set(rows)
    for module in sorted(set(rows) - set(LESS)):
        row = rows[module]
        harmless = len(row['survivors']) - len(mutants.unjudged(module))
        noticed = row['caught'] + row['crashed']
        assert noticed >= NOTICED * (row['tried'] - harmless), f"{module}: see mutants.json"


def test_a_store_keeps_reasons():
    row = dict(sites=9, tried=9, caught=7, crashed=0, survivors={'f: a': '', 'f: b': ''})
    old = {'m': {**row, 'survivors': {'f: a': 'equivalent: why', 'f: c': 'gone'}}}
    assert mutants.merged({'m': row}, old)['m']['survivors'] == {
        'f: a': 'equivalent: why',
        'f: b': mutants.UNJUDGED,
    }
    assert mutants.merged({'m': {**row, 'tried': 3}}, old) == old
    assert mutants.unexpected({'m': row}, old) == ['m, f: b']
    assert not mutants.unexpected({'new': row}, old)


def test_a_run_that_was_stopped_goes_on(tmp_path, monkeypatch):
    sites = mutants.sites_in('core.numerics')[:4]
    tried = []

    def round_of(groups, run, jobs):
        for group in groups:
            tried.extend(group)
            yield from ((n, mutants.CAUGHT, 'a check') for n in group)

    monkeypatch.setattr(mutants, 'round_of', round_of)
    path = tmp_path / 'new' / 'journal.jsonl'
    first = mutants.Journal(sites, path)
    assert len(list(first.round('notebook', [[0, 1], [2]], None, 1))) == 3
    first.add('notebook', (3, mutants.LEFT, ''))  # there was no time: it is tried again
    tried.clear()
    found = list(mutants.Journal(sites, path).round('notebook', [[0, 1], [2, 3]], None, 1))
    assert sorted(n for n, _, _ in found) == [0, 1, 2, 3] and tried == [3]
    list(mutants.Journal(sites, path).round('tests', [[0]], None, 1))
    monkeypatch.setattr(mutants, 'digest', lambda module: 'of other code')
    list(mutants.Journal(sites, path).round('notebook', [[0]], None, 1))
    assert tried == [3, 0, 0]


def test_survivors_are_tried_again():
    known = {'f: a': 'equivalent: why', 'f: b': mutants.UNJUDGED, 'f: c': mutants.UNJUDGED}
    before = dict(sites=9, tried=9, caught=5, crashed=1, digest='old', survivors=known)
    row = dict(sites=9, tried=2, caught=0, crashed=1, digest='new', survivors={'f: c': ''})
    after = mutants.again(row, before)
    assert after['survivors'] == {k: v for k, v in known.items() if k != 'f: b'}
    assert after['caught'] + after['crashed'] + len(after['survivors']) == after['tried'] == 9
    assert (after['crashed'], after['digest']) == (2, 'new')


def test_faults_of_other_code_are_not_tried_again(monkeypatch, capsys):
    row = dict(code=mutants.code_digest('core.numerics'), survivors={'f: a': mutants.UNJUDGED})
    rows = {'core.numerics': row, 'core.learned': row}
    monkeypatch.setattr(mutants, 'stored', lambda: rows)
    assert mutants.same_code('core.numerics')
    assert not mutants.same_code('core.learned')
    assert capsys.readouterr().out.startswith('core.learned has changed')


def test_a_changed_notebook_leaves_the_rows_of_its_module_as_they_are(monkeypatch):
    code = mutants.code_digest('core.numerics')
    row = dict(sites=9, tried=9, code=code, digest='of another notebook')
    rows = {'core.numerics': row}
    monkeypatch.setattr(mutants, 'stored', lambda: rows)
    assert mutants.is_stored('core.numerics')
    for changed in (dict(row, code='of other code'), dict(row, tried=8)):
        rows['core.numerics'] = changed
        assert not mutants.is_stored('core.numerics')


@pytest.mark.parametrize(
    'caught, crashed, fails', [(40, 10, 0), (24, 10, 0), (23, 10, 1), (5, 40, 0)]
)
def test_a_sample_of_which_too_few_are_noticed_fails(caught, crashed, fails):
    row = dict(sites=99, tried=50, caught=caught, crashed=crashed, survivors={})
    assert mutants.too_few({'m': row}) == fails


@pytest.mark.parametrize('caught, passed, fails', [(30, 70, 0), (29, 71, 1), (0, 40, 1)])
def test_faults_that_no_test_has_met_are_not_noticed(caught, passed, fails):
    row = dict(sites=99, tried=caught, caught=caught, crashed=0, survivors={})
    assert mutants.too_few({'m': row}, passed) == fails


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sample_of_the_faults_is_noticed():
    "Modules changed since main, and 200 faults more, as far as a minute goes."
    options = ['--changed-since', 'main', '--sample', '200', '--seconds', '60']
    command = [sys.executable, str(mutants.TESTS / 'mutants.py'), *options]
    seed = ['--seed', os.environ.get('MUTANTS_SEED', '0')]
    done = subprocess.run([*command, *seed], capture_output=True, text=True, cwd=mutants.TOP)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_a_table_in_a_table_gets_its_fault_in_place():
    "A task holds the inner tables of its levels by themselves."
    levels = dict(easy=dict(nodes=8, loops=2), hard={})
    easy, hard = levels['easy'], levels['hard']
    faults.refill(levels, dict(easy=dict(nodes=9, loops=2), hard=dict(steps=3), new=1))
    assert levels['easy'] is easy and easy == dict(nodes=9, loops=2)
    assert levels['hard'] is hard and hard == dict(steps=3) and levels['new'] == 1
