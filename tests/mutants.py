"""Would the checks notice? Small faults (see `faults.py`) are planted in the package, one at a
time, and checks are run until one fails.

Each fault lives in a process of its own, forked from one that has everything imported. The checks
are the assertions of the module's notebook, and for what these pass the tests that run the line in
question. What no check notices is a survivor: either it changes nothing that matters, and
`mutants.json` says so, or an assertion is missing.

    python tests/mutants.py                                   everything (make mutants)
    python tests/mutants.py --module advantages.baselines     one module, or a folder
    python tests/mutants.py --changed-since main --sample 200 --seed 3 --seconds 300
    python tests/mutants.py --store                           write tests/mutants.json as it goes
    python tests/mutants.py --store --rest                    those not stored as they are; if
                                                              it is stopped, it goes on later
    python tests/mutants.py --store --again --module oracle   what survived and is not judged
"""

import argparse, ast, contextlib, fnmatch, functools, gc, hashlib, io, json, multiprocessing, os
import pickle
import random, re, select, signal, subprocess, sys, tarfile, time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import NamedTuple
import coverage
from faults import PACKAGE, called, live_module, plant, sites_in

TOP = Path(__file__).resolve().parents[1]
TESTS = TOP / 'tests'
STORED = TESTS / 'mutants.json'
JOURNAL = TOP / 'runs' / 'mutants.jsonl'  # --store --rest goes on from there


# -- which modules, and which test files speak of them

FOR_ALL = ('test_contracts', 'test_wiring', 'test_oracle', 'test_reference_numbers')
WITHOUT_STAGES = {  # where a fault would be silent too: test files beside those and its own
    'core.numerics': (),
    'core.rollouts': (),
    'core.learned': (),
    'core.sampling': (),
    'core.policy': ('test_real_model',),
    'core.signals': ('test_loop',),
    'core.placebos': (),
    'core.ready_stages': ('test_loop',),
    '*.pipeline': ('test_loop',),
    'training.run_identity': ('test_loop',),
    'training.step_metrics': ('test_loop',),
    'training.loop': ('test_loop',),
    'engine.*': (),
    'references.*': ('test_references',),
    'analysis.passk': ('test_analysis',),
    '*.comparison': ('test_analysis',),
    'atlas.claims': ('test_claims',),
    'tasks.*': ('test_tasks', 'test_drawn_problems'),
    'samplers.episodes': ('test_environments',),
    'rewards.*': ('test_tasks',),
    'rewards.box': ('test_sandbox',),
    'rewards.sandbox': ('test_sandbox',),
    'rewards.code_tests': ('test_sandbox',),
    'rewards.stress_suite': ('test_stress',),
    'oracle.*': (),
}
NOT_TRIED = (  # no maths, or another process at work
    'test_every_factor_matters',
    'test_recipe_',
    'test_stage_is_documented',
    'test_killed_at_any_moment',
)
# no recipe calls these: the tests of FOR_ALL have nothing to say of them
APART = ('tasks.*', 'rewards.*', '*.comparison', 'analysis.passk', 'atlas.claims')
# more of test_wiring is tried there
ABOUT_WIRING = ('core.ready_stages', '*.pipeline', 'training.*', 'core.signals')


def fits(module, patterns):
    return any(fnmatch.fnmatch(module, p) for p in patterns)


def stage_table():
    "All stages that the package registers, by name."
    from rl4llm.core.registry import stages

    return {name: info for name, info in stages().items() if info.module.startswith(PACKAGE)}


def short(name):
    return name.removeprefix(PACKAGE + '.')


def modules_in_scope():
    "Names of the modules that faults are planted in: those with a stage, and those of the table."
    with_stages = {info.module for info in stage_table().values()}
    known = import_module(PACKAGE + '._modidx').d['syms']
    return sorted(short(n) for n in known if n in with_stages or fits(short(n), WITHOUT_STAGES))


def own_file(module):
    "The test file that has a module's name."
    return f"test_{module.rpartition('.')[2]}"


def files_about(module):
    "Test files whose tests may notice a fault in the module; one with its name is its own."
    more = [f for p, files in WITHOUT_STAGES.items() if fits(module, [p]) for f in files]
    own = own_file(module)
    more += [own] if (TESTS / f"{own}.py").exists() else []
    with_stages = {short(info.module) for info in stage_table().values()}
    if fits(module, APART) and module not in with_stages:
        return more
    return [*FOR_ALL, *more]


# -- processes of their own


class Late(BaseException):
    "A check takes too long."


def ring(*_):
    raise Late


RINGS = {signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_REAL: signal.SIGALRM}
WAITED = 6  # times as long by the clock: other work may keep the processors busy


@contextlib.contextmanager
def at_most(seconds):
    "Raise Late in the block if it takes more of the processor's time, or waits for long."
    limits = {signal.ITIMER_PROF: seconds, signal.ITIMER_REAL: WAITED * seconds}
    for kind, limit in limits.items():
        signal.signal(RINGS[kind], ring)
        signal.setitimer(kind, limit)
    try:
        yield
    finally:
        for kind in limits:
            signal.setitimer(kind, 0)


def in_child(work, pipe):
    "Do the work, send what it returns (None if it fails), and end this process."
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    sys.stdout = sys.stderr = open(os.devnull, 'w')
    try:
        result = work()
    except BaseException:
        result = None
    with os.fdopen(pipe, 'wb') as out:
        pickle.dump(result, out)
    os._exit(0)


def forked(work, limit):
    "What `work()` returns in a process of its own; None if it dies or takes more than `limit` s."
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        in_child(work, write)
    os.close(write)
    end, parts = time.monotonic() + limit, []
    while select.select([read], [], [], max(0, end - time.monotonic()))[0]:
        parts.append(os.read(read, 1 << 16))
        if not parts[-1]:
            break
    os.close(read)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return pickle.loads(b''.join(parts)) if parts and not parts[-1] and parts[0] else None


@contextlib.contextmanager
def tracing(files):
    "The lines of these files that the block runs, with the first of each function, {file: lines}."
    hit = {file: set() for file in files}
    watch = coverage.Coverage(data_file=None, config_file=False, branch=True, include=files)
    watch.start()
    # one thread needs no lock, and a limit of time that strikes where it is held leaves it locked
    watch._collector.data_lock = None
    try:
        yield hit
    finally:
        watch.stop()
        found = watch.get_data()
        for file in files:
            steps = found.arcs(file) or ()
            hit[file].update(abs(number) for step in steps for number in step)


# -- checks


@dataclass
class Check:
    """Something that fails where the code is wrong. `about`: modules that it is meant for;
    `family`: checks of one family do the same to different things; `level`: when it is tried."""

    name: str
    run: object
    about: frozenset = frozenset()
    family: str = ''
    level: int = 0
    seconds: float = 0.0
    lines: dict = field(default_factory=dict)

    def runs(self, site):
        "Whether it runs the lines of a site."
        first, last = site.lines
        return any(first <= n <= last for n in self.lines.get(site.unit.file, ()))


SKIPPED = re.compile(r'^#\|\s*(export\w*|default_exp|eval)\b', re.MULTILINE)
TRAINED = {'train', 'compare', 'pretrain', 'style', 'pyplot', 'nbdev_export'}
CELL_SECONDS = 2.0  # of a cell, measured once; slower ones are left out


def cells_of(path):
    "(number, tree) of each cell of a notebook that is neither exported nor trains nor draws."
    cells = [c for c in json.loads(path.read_text())['cells'] if c['cell_type'] == 'code']
    for number, cell in enumerate(cells):
        source = ''.join(cell['source'])
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue
        names = {called(n) for n in ast.walk(tree) if isinstance(n, ast.Call)}
        drawn = names & TRAINED or any(n.startswith('plot') for n in names)
        if not SKIPPED.search(source) and not drawn:
            yield number, tree


def read_and_given(tree):
    "Names that a cell reads, and those that it defines or may change."
    names = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
    given = {n.id for n in names if not isinstance(n.ctx, ast.Load)}
    given |= {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            given.add((node.asname or node.name).split('.')[0])
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            given |= {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
    return {n.id for n in names if isinstance(n.ctx, ast.Load)}, given


class Notebook:
    "The cells of a module's notebook, run against the module as it is; `at`: the one that runs."

    def __init__(self, module, path):
        self.module, self.path, self.cells = module, path, list(cells_of(path))
        self.at = None

    def start(self):
        "Names that the exported cells define, and the notebook's folder."
        os.chdir(self.path.parent)
        return {**vars(live_module(self.module)), '__name__': '__main__'}

    def run(self, numbers=None):
        "Run cells in order, all unless `numbers` are given."
        names = self.start()
        for number, tree in self.cells:
            if numbers is None or number in numbers:
                self.at = number
                exec(compile(tree, f"cell {number}", 'exec'), names)

    def measured_check(self, numbers, seconds, lines):
        "The check of all these cells; the others are left out from now on."
        self.cells = [(n, tree) for n, tree in self.cells if n in numbers]
        check = self.check()
        check.seconds, check.lines = seconds, lines
        return check

    def asserting(self):
        "Numbers of the cells with an assertion."

        def asserts(tree):
            return any(isinstance(n, ast.Assert) for n in ast.walk(tree))

        return [number for number, tree in self.cells if asserts(tree)]

    def needed(self):
        "Numbers of the cells that some assertion needs."
        return {n for last in self.asserting() for n in self.needed_by(last)}

    def measured(self, files):
        "Numbers, seconds and lines of the needed cells that run on the real code, and in time."
        names, good, total = self.start(), [], 0.0
        wanted = self.needed()
        with tracing(files) as lines:
            for number, tree in self.cells:
                if number not in wanted:
                    continue
                start, before = time.process_time(), dict(names)
                try:
                    with at_most(CELL_SECONDS):
                        exec(compile(tree, 'cell', 'exec'), names)
                except BaseException:  # what it has defined is not there without it
                    names.clear()
                    names.update(before)
                    continue
                good.append(number)
                total += time.process_time() - start
        return good, total, lines

    def needed_by(self, number):
        "Numbers of the cells that one needs, itself last."
        before = [(n, *read_and_given(tree)) for n, tree in self.cells if n <= number]
        _, wanted, _ = before.pop()
        chosen = [number]
        for n, reads, gives in reversed(before):
            if gives & wanted:
                chosen.insert(0, n)
                wanted = wanted | reads
        return chosen

    def check(self, number=None):
        "A check of all cells, or of one and those that it needs."
        numbers = None if number is None else self.needed_by(number)
        name = self.path.name + ('' if number is None else f", cell {number}")
        run = functools.partial(self.run, numbers)
        return Check(name, run, frozenset([self.module]), self.path.name, NOTEBOOK)


@functools.cache
def notebooks():
    "Notebooks of the package by module."
    found = {}
    for path in sorted((TOP / 'nbs').rglob('*.ipynb')):
        if any(part.startswith(('_', '.')) for part in path.relative_to(TOP).parts):
            continue
        for cell in json.loads(path.read_text())['cells']:
            name = re.search(r'^#\|\s*default_exp (\S+)', ''.join(cell['source']), re.MULTILINE)
            if name:
                found[name[1]] = path
    return found


NOTEBOOK, CONTRACT, WIRING, OTHER = 0, 1, 2, 3  # the order in which checks are tried


def item_run(item, failures):
    "Run a test of pytest, with its fixtures; raise what it raises."
    from _pytest.runner import runtestprotocol

    failures.clear()
    runtestprotocol(item, nextitem=None, log=False)
    if failures:
        raise failures[0]


def modules_behind(value, known):
    "Modules of the stages that a parameter of a test speaks of: a stage, its name, a recipe's."
    if hasattr(value, 'module') and hasattr(value, 'kind'):
        return {short(value.module)}
    if not isinstance(value, str):
        return set()
    if value in known.stages:
        return {short(known.stages[value].module)}
    return known.recipes.get(value, set())


@dataclass
class Known:
    "Stages by name, and for each recipe the modules of its stages."

    stages: dict
    recipes: dict


def known_names():
    from rl4llm.core.registry import RECIPES, STAGE_FIELDS, recipe

    table = stage_table()
    modules = {}
    for name in RECIPES:
        r = recipe(name)
        single = [getattr(r, f) for f in STAGE_FIELDS if f != 'regularisers']
        modules[name] = {short(u.info.module) for u in (*single, *r.regularisers)}
    return Known(table, modules)


def item_check(item, failures, known):
    "The check that a test of pytest is."
    file = item.path.stem
    values = item.callspec.params.values() if hasattr(item, 'callspec') else ()
    about = set().union(*(modules_behind(v, known) for v in values))
    level = {'test_contracts': CONTRACT, 'test_wiring': WIRING}.get(file, OTHER)
    run = functools.partial(item_run, item, failures)
    return Check(item.nodeid, run, frozenset(about), f"{file}::{item.originalname}", level)


def checks_by_hand():
    "The checks written by hand, each a function without arguments."
    from checks_by_hand import CHECKS

    return [Check(f.__name__, f, family=f.__name__, level=OTHER) for f in CHECKS]


def worth_a_look(checks, module):
    """The checks that may notice a fault in a module, before it is known which lines they run.

    All tests of the files about it that do not speak of another module's stage; for modules
    without a stage also those. Of the tests of whole recipes a few."""
    files = files_about(module)
    has_stage = any(module in c.about for c in checks)
    found, few = [], defaultdict(list)
    for c in checks:
        file, _, test = c.family.partition('::')
        if test and file not in files or test.startswith(NOT_TRIED):
            continue
        if c.about and module not in c.about and has_stage:
            continue
        if c.level == WIRING:
            few[c.family].append(c)
        else:
            found.append(c)
    wanted = 24 if fits(module, ABOUT_WIRING) else 4
    for some in few.values():
        found += some[:: max(1, len(some) // wanted)][:wanted]
    return found


SLOW = 10.0  # seconds of a check that is not tried at all
HUNG = 600.0  # seconds after which a process is not waited for


def warm_up(checks):
    "Import here what some checks import while they run, so that no child has to."

    def work():
        before = set(sys.modules)
        for check in checks:
            with contextlib.suppress(BaseException), at_most(SLOW):
                check.run()
        return sorted(set(sys.modules) - before)

    for name in forked(work, HUNG) or ():
        with contextlib.suppress(Exception):
            import_module(name)


def measured(check, files):
    "Seconds and lines of a check on the real code; None if it fails or takes too long."

    def work():
        start = time.process_time()
        with tracing(files) as lines, at_most(SLOW):
            check.run()
        return time.process_time() - start, lines

    return forked(work, HUNG)


def candidates(site, checks):
    "The checks that run the lines of a site; of those meant for others, a few of each family."
    found, others = [], defaultdict(list)
    home = own_file(site.unit.module) + '::'
    for c in checks:
        if not c.runs(site):
            continue
        is_about = site.unit.module in c.about and c.level != WIRING
        own = is_about or c.family.startswith(home)
        (found if own else others[c.family]).append(c)
    few = {CONTRACT: 2, WIRING: 12 if fits(site.unit.module, ABOUT_WIRING) else 3, OTHER: 3}
    for some in others.values():
        found += sorted(some, key=lambda c: c.seconds)[: few[some[0].level]]
    return sorted(found, key=lambda c: (c.level, c.seconds))


# -- running

LOUD = (TypeError, NameError, AttributeError, ImportError)
CAUGHT, CRASHED, ENDLESS, SURVIVED, LEFT = 'caught', 'crashed', 'endless', 'survived', 'left'
PASSED = 'passed'  # by its notebook; there was no time for the tests


class Outcome(NamedTuple):
    "What became of a fault, the number of the check that ended it, and the cell if a notebook's."

    status: str
    check: int | None = None
    cell: int | None = None


def tried(site, checks):
    "Plant the fault in this process and run checks until one fails."
    try:
        plant(site)
    except Exception:
        return Outcome(CRASHED)
    for number, check in enumerate(checks):
        try:
            with at_most(5 + 10 * check.seconds):
                check.run()
        except Late:
            return Outcome(ENDLESS, number)
        except BaseException as problem:
            notebook = getattr(getattr(check.run, 'func', None), '__self__', None)
            status = CRASHED if isinstance(problem, LOUD) else CAUGHT
            return Outcome(status, number, getattr(notebook, 'at', None))
    return Outcome(SURVIVED)


class Run:
    """What the processes that try faults share: sites, checks by module, notebooks by module, and
    in each process which checks have caught something lately."""

    def __init__(self, sites, checks, books, end):
        self.sites, self.checks, self.books, self.end = sites, checks, books, end
        self.lately, self.cells = defaultdict(list), {}

    def cell_check(self, module, number):
        "The check of one cell, if it passes alone on the real code; else None."
        if (module, number) not in self.cells:
            check = self.books[module].check(number)
            found = measured(check, [live_module(module).__file__])
            if found:
                check.seconds, check.lines = found
            self.cells[module, number] = check if found else None
        return self.cells[module, number]

    def in_order(self, site):
        "The checks for a site; those that caught another fault nearby come first."
        usual = candidates(site, self.checks[site.unit.module])
        lately = self.lately[site.unit.key] + self.lately[site.unit.module]
        return list({c.name: c for c in lately + usual if c.runs(site)}.values())

    def note(self, site, check, cell):
        "Remember which check has caught a fault."
        if cell is not None:
            check = self.cell_check(site.unit.module, cell) or check
        for key in (site.unit.key, site.unit.module):
            others = [c for c in self.lately[key] if c.name != check.name]
            self.lately[key] = [check, *others][:4]

    def one(self, number):
        "Try one site: (number, status, name of the check)."
        site = self.sites[number]
        if time.monotonic() > self.end:
            return number, LEFT, ''
        checks = self.in_order(site)
        if not checks:
            return number, SURVIVED, 'no check runs it'
        found = forked(lambda: tried(site, checks), HUNG) or Outcome(ENDLESS)
        if found.check is None:
            return number, found.status, ''
        check = checks[found.check]
        if found.status == CAUGHT:
            self.note(site, check, found.cell)
        return number, found.status, check.name

    def group(self, numbers):
        return [self.one(n) for n in numbers]


SHARED = {}  # what forked workers find when they start


def measure_one(number):
    return number, measured(SHARED['checks'][number], SHARED['files'])


def book_one(module):
    book = SHARED['books'][module]
    return module, forked(lambda: book.measured(SHARED['files']), HUNG)


def group_one(numbers):
    return SHARED['run'].group(numbers)


def in_workers(function, values, jobs):
    "Results of a function over values, in any order, from forked workers."
    if jobs == 1:
        yield from map(function, values)
        return
    with multiprocessing.get_context('fork').Pool(jobs) as pool:
        yield from pool.imap_unordered(function, values, chunksize=1)


def books_prepared(modules, jobs):
    "The measured check of each module's notebook, in lists by module, and the notebooks."
    paths = notebooks()
    books = {m: Notebook(m, paths[m]) for m in modules if m in paths}
    SHARED.update(books=books, files=[live_module(m).__file__ for m in modules])
    mine = {m: [] for m in modules}
    for module, found in in_workers(book_one, books, jobs):
        if found:
            mine[module].append(books[module].measured_check(*found))
    return mine, books


def tests_prepared(modules, items, jobs, end):
    "The measured tests that may notice a fault, by module; None if that would go on after `end`."
    known = known_names()
    checks = [item_check(i, FAILURES, known) for i in items] + checks_by_hand()
    mine = {m: worth_a_look(checks, m) for m in modules}
    wanted = list({c.name: c for some in mine.values() for c in some}.values())
    warm_up({c.family: c for c in wanted}.values())
    SHARED.update(checks=wanted, files=[live_module(m).__file__ for m in modules])
    for number, found in in_workers(measure_one, range(len(wanted)), jobs):
        if found:
            wanted[number].seconds, wanted[number].lines = found
        if time.monotonic() > end:
            return None
    return {m: [c for c in some if c.lines] for m, some in mine.items()}


FAILURES = []


class Session:
    "A plugin of pytest: it collects the tests, and the faults are tried instead of running them."

    def __init__(self, work):
        self.work = work

    def pytest_runtest_makereport(self, item, call):
        import pytest

        if call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception):
            FAILURES.append(call.excinfo.value)

    def pytest_runtestloop(self, session):
        self.work(session.items)
        return True


def with_tests(files, work):
    "Call `work(items)` with the collected tests of these files."
    import hypothesis, pytest

    calm = hypothesis.settings(
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        max_examples=20,
        derandomize=True,
        database=None,
        deadline=None,
    )
    hypothesis.settings.register_profile('mutants', calm)
    hypothesis.settings.load_profile('mutants')
    paths = [str(TESTS / f"{f}.py") for f in files if (TESTS / f"{f}.py").exists()]
    off = ['cacheprovider', 'timeout', 'xdist', 'terminal']
    options = [o for name in off for o in ('-p', f"no:{name}")]
    pytest.main([*options, '-s', '-W', 'ignore', *paths], plugins=[Session(work)])


# -- which faults


def code_of_cells(text):
    "Trees of the code cells of a notebook."
    for cell in json.loads(text)['cells']:
        if cell['cell_type'] != 'code':
            continue
        with contextlib.suppress(SyntaxError):
            yield from ast.parse(''.join(cell['source'])).body


def statements(name, text):
    "What the top-level statements of a module or notebook say, whatever their layout."
    body = code_of_cells(text) if name.endswith('.ipynb') else ast.parse(text).body
    return {ast.dump(node) for node in body}


def known_at(revision):
    "All top-level statements of package and notebooks in a revision; None if there is none."
    command = ['git', 'archive', '--format=tar', revision, PACKAGE, 'nbs']
    found = subprocess.run(command, cwd=TOP, capture_output=True)
    if found.returncode:
        return None
    known = set()
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        for member in archive.getmembers():
            if member.name.endswith(('.py', '.ipynb')):
                known |= statements(member.name, archive.extractfile(member).read().decode())
    return known


def changed_since(revision, modules):
    "Modules that have a statement, in code or notebook, which the revision does not have."
    known, books = known_at(revision), notebooks()
    if known is None:
        return []

    def differs(m):
        paths = [Path(live_module(m).__file__), books.get(m)]
        return any(statements(p.name, p.read_text()) - known for p in paths if p)

    return [m for m in modules if differs(m)]


def chosen(sites, options):
    "Numbers of the faults to try, in groups of one unit, in the order in which they are tried."
    numbers = list(range(len(sites)))
    if options.rest:
        known = {m for m in {s.unit.module for s in sites} if is_stored(m)}
        numbers = [n for n in numbers if sites[n].unit.module not in known]
    if options.again:
        left = {(m, name) for m in stored() if same_code(m) for name in unjudged(m)}
        numbers = [n for n in numbers if (sites[n].unit.module, sites[n].name) in left]
    if options.changed_since is not None or options.sample is not None:
        scope = sorted({s.unit.module for s in sites})
        first = changed_since(options.changed_since, scope) if options.changed_since else []
        always = [n for n in numbers if sites[n].unit.module in first]
        rest = [n for n in numbers if sites[n].unit.module not in first]
        draw = random.Random(options.seed)
        numbers = always + draw.sample(rest, min(len(rest), options.sample or 0))
    groups = defaultdict(list)
    for n in numbers:
        groups[sites[n].unit.key].append(n)
    groups = list(groups.values())
    if options.seconds:
        random.Random(options.seed).shuffle(groups)
        groups = of_few_modules(groups, sites, 1 + int(options.seconds / MODULE_SECONDS))
    return groups


MODULE_SECONDS = 15  # in which a module's notebook is measured and some of its faults are tried


def of_few_modules(groups, sites, most):
    "The groups that lie in the `most` modules that come first."
    first = dict.fromkeys(sites[group[0]].unit.module for group in groups)
    kept = set(list(first)[:most])
    return [group for group in groups if sites[group[0]].unit.module in kept]


# -- what is stored and said


def stored():
    return json.loads(STORED.read_text()) if STORED.exists() else {}


UNJUDGED = 'not judged yet'


@functools.cache
def digest(module):
    "Of what the module and its notebook say, whatever their layout."
    paths = [Path(live_module(module).__file__), notebooks().get(module)]
    said = sorted(line for p in paths if p for line in statements(p.name, p.read_text()))
    return hashlib.blake2b('\n'.join(said).encode(), digest_size=6).hexdigest()


def code_digest(module):
    "Of what the module alone says: it tells which faults there are."
    path = Path(live_module(module).__file__)
    said = sorted(statements(path.name, path.read_text()))
    return hashlib.blake2b('\n'.join(said).encode(), digest_size=6).hexdigest()


def is_stored(module):
    """Whether all faults of the module's code as it is were tried and stored.

    Its notebook and tests may have changed since: they gain assertions far more often than they
    lose one. A lost one is noticed only where `make test-all` draws the module's faults again."""
    row = stored().get(module, {})
    whole = row.get('tried', 0) == row.get('sites')
    return whole and row.get('code') == code_digest(module)


def same_code(module):
    "Whether a module's faults are those of its stored row; says so where they are not."
    same = stored()[module].get('code') == code_digest(module)
    if not same and unjudged(module):
        print(f'{module} has changed since all its faults were tried: --again leaves it out.')
    return same


def unjudged(module):
    "Names of the survivors of a module that nobody has judged yet."
    row = stored().get(module, {})
    return [name for name, reason in row.get('survivors', {}).items() if reason == UNJUDGED]


def again(row, before):
    """The stored row of a module, after some of its survivors were tried once more.

    What was caught stays caught: between the two only assertions were added."""
    tried = set(row['survivors']) | set(before['survivors'])
    left = {n: r for n, r in before['survivors'].items() if r != UNJUDGED}
    left.update(dict.fromkeys(row['survivors'], UNJUDGED))
    gone = len(tried) - len(left)
    crashed = row['crashed']
    return {
        **before,
        'caught': before['caught'] + gone - crashed,
        'crashed': before['crashed'] + crashed,
        'digest': row['digest'],
        'survivors': dict(sorted(left.items())),
    }


def write(rows):
    STORED.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + '\n')


def store(table):
    write(merged(table, stored()))


def store_again(table):
    old = stored()
    write({**old, **{module: again(row, old[module]) for module, row in table.items()}})


class Store:
    "Writes each module's row when its last fault has been tried, so that a run can be cut short."

    def __init__(self, sites, groups, once_more):
        self.sites, self.results = sites, defaultdict(list)
        self.write = store_again if once_more else store
        self.left = Counter(sites[n].unit.module for group in groups for n in group)

    def add(self, result):
        module = self.sites[result[0]].unit.module
        self.results[module].append(result)
        self.left[module] -= 1
        if self.left[module]:
            return
        table = counted(self.sites, self.results[module])
        if table:
            self.write(table)
            print(said(table, stored()).splitlines()[1], flush=True)


class Journal:
    """Results as they come, a line each, so that a run that was stopped goes on from there.

    Lines about code or notebooks that have changed since are passed over. Without a path nothing is
    read or written."""

    def __init__(self, sites, path=None):
        self.sites, self.path, self.known = sites, path, {}
        if path is None or not path.exists():
            return
        numbers = {(s.unit.module, s.name): n for n, s in enumerate(sites)}
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            number = numbers.get((entry['module'], entry['name']))
            if number is not None and entry['digest'] == digest(entry['module']):
                result = (number, entry['status'], entry['by'])
                self.known[entry['stage'], number] = result

    def add(self, stage, result):
        number, status, by = result
        if self.path is None or status == LEFT:
            return
        site = self.sites[number]
        module = site.unit.module
        entry = dict(stage=stage, module=module, name=site.name, digest=digest(module))
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open('a') as file:
            file.write(json.dumps({**entry, 'status': status, 'by': by}) + '\n')

    def round(self, stage, groups, run, jobs):
        "Results of the groups of faults against the checks of a run; those known come first."
        todo = []
        for group in groups:
            yield from (self.known[stage, n] for n in group if (stage, n) in self.known)
            todo.append([n for n in group if (stage, n) not in self.known])
        for result in round_of([group for group in todo if group], run, jobs):
            self.add(stage, result)
            yield result


def counted(sites, results):
    "Counts and survivors of each module that was tried."
    table = {}
    for number, status, by in results:
        if status in (LEFT, PASSED):
            continue
        site = sites[number]
        row = table.setdefault(
            site.unit.module,
            dict(
                sites=sum(s.unit.module == site.unit.module for s in sites),
                tried=0,
                caught=0,
                crashed=0,
                code=code_digest(site.unit.module),
                digest=digest(site.unit.module),
                survivors={},
            ),
        )
        row['tried'] += 1
        row['caught'] += status == CAUGHT
        row['crashed'] += status in (CRASHED, ENDLESS)
        if status == SURVIVED:
            row['survivors'][site.name] = by
    return dict(sorted(table.items()))


def merged(table, old):
    "What to store: a module tried in part keeps what was stored of a whole one; reasons stay."
    new = dict(old)
    for module, row in table.items():
        before = old.get(module, {})
        reasons = before.get('survivors', {})
        if before.get('tried', 0) > row['tried'] and row['tried'] < row['sites']:
            continue
        judged = {name: reasons.get(name, UNJUDGED) for name in sorted(row['survivors'])}
        new[module] = {**row, 'survivors': judged}
    return dict(sorted(new.items()))


def share(row):
    "Share of caught faults among those that do not crash."
    counts = row['tried'] - row['crashed']
    return f"{row['caught'] / counts:.0%}" if counts else '-'


def said(table, old):
    "The report: a line a module, then the survivors with what is stored about them."
    lines = [f"{'module':38}{'sites':>6}{'tried':>7}{'crashed':>9}{'caught':>8}{'share':>7}"]
    total = dict.fromkeys(('sites', 'tried', 'crashed', 'caught'), 0)
    for module, row in [*table.items(), ('all', total)]:
        lines.append(
            f"{module:38}{row['sites']:6}{row['tried']:7}{row['crashed']:9}"
            f"{row['caught']:8}{share(row):>7}"
        )
        if row is not total:
            total = add_up(total, row)
    for module, row in table.items():
        known = old.get(module, {}).get('survivors', {})
        for name, by in row['survivors'].items():
            lines.append(f"survivor in {module}, {name}  ({known.get(name, by or 'new')})")
    return '\n'.join(lines)


def add_up(total, row):
    for key in total:
        total[key] += row[key]
    return total


def unexpected(table, old):
    "Survivors that are not stored, in modules of which all faults have been tried once."
    found = []
    for module, row in table.items():
        before = old.get(module, {})
        if before.get('tried', 0) < before.get('sites', 1):
            continue
        found += [f"{module}, {n}" for n in row['survivors'] if n not in before['survivors']]
    return found


def command_line(arguments):
    parser = argparse.ArgumentParser(description=__doc__.partition('\n\n')[0])
    parser.add_argument('--module', action='append', default=[], help='a module or folder')
    parser.add_argument('--sample', type=int, help='try so many faults, drawn by --seed')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--changed-since', metavar='REV', help='all faults of changed modules')
    parser.add_argument('--seconds', type=float, help='start no fault after this time')
    parser.add_argument('--rest', action='store_true', help='leave out modules stored as they are')
    parser.add_argument('--again', action='store_true', help='try only survivors not judged yet')
    parser.add_argument('--jobs', type=int, default=min(2, os.cpu_count()))
    parser.add_argument('--store', action='store_true', help=f"write {STORED.name}")
    return parser.parse_args(arguments)


def with_modules(options):
    "The modules that the options name."
    scope = modules_in_scope()
    if not options.module:
        return scope
    found = [m for m in scope if any(m == w or m.startswith(w + '.') for w in options.module)]
    if not found:
        raise SystemExit(f"none of {options.module} is among {', '.join(scope)}")
    return found


def main(arguments=None):
    "The command. Returns 1 if a fault survives that should not."
    options, start = command_line(arguments), time.monotonic()
    prepare_process()
    sites = [s for m in with_modules(options) for s in sites_in(m)]
    groups = chosen(sites, options)
    modules = sorted({sites[n].unit.module for group in groups for n in group})
    files = sorted({f for m in modules for f in files_about(m)})
    results, old = [], stored()
    keep = Store(sites, groups, options.again) if options.store else None

    def work(items):
        for result in trial(sites, groups, modules, items, options):
            results.append(result)
            if keep:
                keep.add(result)

    with_tests(files, work)
    table = counted(sites, results)
    print(said(table, old))
    left = sum(status == LEFT for _, status, _ in results)
    half = sum(status == PASSED for _, status, _ in results)
    print(f"{len(results) - left} faults tried, {left} not; {spent(start)}")
    print(f"{half} of them by their notebooks alone, which pass them")
    if options.store:
        return 0
    return max(report_unexpected(unexpected(table, old)), too_few(table, half))


def spent(start):
    "Time since the start by the clock, and the processors' time of the whole command so far."
    times = os.times()
    busy = times.user + times.system + times.children_user + times.children_system
    return f"{time.monotonic() - start:.0f} s ({busy:.0f} s of processors)"


ENOUGH, LEAST = 30, 0.6  # of a sample so large, this share must be noticed at least
LEAST_BY_NOTEBOOKS = 0.3  # where there was no time to try all that these pass against the tests


def too_few(table, passed=0):
    """1 if so few faults of a sample are noticed that the checks themselves must be broken.

    Faults that their notebooks passed, and that no test has met, count as not noticed."""
    caught = sum(row['caught'] for row in table.values())
    ran = sum(row['tried'] - row['crashed'] for row in table.values()) + passed
    least = LEAST_BY_NOTEBOOKS if passed else LEAST
    if ran < ENOUGH or caught >= least * ran:
        return 0
    print(f"TOO FEW: {caught} of {ran} noticed, wanted {least:.0%} of a sample")
    return 1


def report_unexpected(names):
    for name in names:
        print(f"NOT STORED: {name}")
    return int(bool(names))


def prepare_process():
    "One thread, no network, no pictures on a screen, small sizes in notebooks."
    os.environ.update(
        HF_HUB_OFFLINE='1',
        TQDM_DISABLE='1',
        MPLBACKEND='Agg',
        RL4LLM_DRY_RUN='1',
        CUDA_VISIBLE_DEVICES='',
    )
    sys.path[:0] = [str(TOP), str(TESTS)]
    import torch
    from rl4llm.core.policy import Policy

    torch.set_num_threads(1)
    Policy.load('tiny')  # its many imports are done here once, not in cells that are timed


def trial(sites, groups, modules, items, options):
    """Try the faults: (number, status, check) of each.

    All against their notebooks first; then those that pass against the tests. With a time limit
    the notebooks have half of it, and the tests follow if they can begin before its end."""
    start = time.monotonic()
    end = start + (options.seconds or 1e9)
    half = (start + end) / 2
    checks, books = books_prepared(modules, options.jobs)
    print(f"{len(modules)} modules, notebooks measured; {spent(start)}", flush=True)
    passed = []
    journal = Journal(sites, JOURNAL if options.store and options.rest else None)
    for result in journal.round('notebook', groups, Run(sites, checks, books, half), options.jobs):
        if result[1] == SURVIVED:
            passed.append(result)
        else:
            yield result
    print(f"{len(passed)} faults that the notebooks pass; {spent(start)}", flush=True)
    again = defaultdict(list)
    for number, _, _ in passed:
        again[sites[number].unit.key].append(number)
    left = sorted({sites[number].unit.module for number, _, _ in passed})
    checks = tests_prepared(left, items, options.jobs, end)
    if checks is None:
        yield from ((number, PASSED, by) for number, _, by in passed)
        return
    count = len({c.name for some in checks.values() for c in some})
    print(f"{len(left)} modules, {count} tests measured; {spent(start)}", flush=True)
    run = Run(sites, checks, {}, end)
    for number, status, by in journal.round('tests', again.values(), run, options.jobs):
        yield number, PASSED if status == LEFT else status, by


def round_of(groups, run, jobs):
    "Results of the groups of faults against the checks of a run."
    SHARED['run'] = run
    gc.collect()
    gc.freeze()
    for group in in_workers(group_one, list(groups), jobs):
        yield from group


if __name__ == '__main__':
    sys.exit(main())
