"""The house: who may import whom, one door to the engine, names that are found, nothing private across modules.
Imports inside functions count like all others: an arrow hidden in a function is still an arrow."""

import ast, importlib, inspect, json, re, textwrap, warnings
from functools import cache
from pathlib import Path
import pytest
import rl4llm
from lint_rules import IMPORTS, RULES, TOP, Notebook
from rl4llm.core.lazy import index, names_by_module

PACKAGE = Path(rl4llm.__file__).parent
NOTEBOOKS = [Notebook(p) for p in sorted((TOP / 'nbs').glob('*/[0-9]*.ipynb'))]

# From below to above: a folder imports its own and those that stand on lines above it.
FLOORS = [
    ['engine'],
    ['core'],
    ['tasks'],
    ['environments'],
    ['oracle', 'samplers', 'rewards', 'references'],
    ['curricula', 'selection'],
    ['advantages'],
    ['objectives'],
    ['rollouts', 'guidance'],
    ['analysis'],  # the estimators
    ['inference'],
    ['training'],
    ['studies'],
    ['reports'],  # those of analysis that read runs
    ['widgets', 'preferences', 'agents'],
    ['scaling', 'atlas'],
    ['course', 'labs'],
    ['app'],  # its commands open the course
]
REPORTS = {'analysis.page'}
WHOLE = '__init__'  # stands for the modules of a package that is imported as a whole
TOP_ITSELF = f'app.{WHOLE}'  # `import rl4llm` reaches every floor


def floor_of(module: str) -> int:
    "The floor of a module, e.g. of 'core.policy'."
    folder = 'reports' if module in REPORTS else module.split('.')[0]
    return next(i for i, folders in enumerate(FLOORS) if folder in folders)


def target_of(node, module: str):
    "The modules that an import statement in `module` names, without 'rl4llm.'."
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        base = module.split('.')[: -node.level] if node.level else []
        stem = (
            '.'.join(base + [node.module] if node.module else base) if node.level else node.module
        )
        if not node.level and not stem.startswith('rl4llm'):
            return []
        stem = stem.removeprefix('rl4llm').strip('.')
        is_module = (
            (PACKAGE / Path(*stem.split('.'))).with_suffix('.py').is_file() if stem else False
        )
        names = [stem] if is_module else [f'{stem}.{alias.name}'.strip('.') for alias in node.names]
        return [name for name in map(module_of, names) if name]
    inside = [name for name in names if name.split('.')[0] == 'rl4llm']
    parts = [name.removeprefix('rl4llm.') if '.' in name else '' for name in inside]
    return [module_of(part) if part else TOP_ITSELF for part in parts]


def module_of(name: str):
    "The module that a dotted name means: a module, or a name that a package offers."
    if (PACKAGE / Path(*name.split('.'))).with_suffix('.py').is_file():
        return name
    package, _, symbol = name.rpartition('.')
    if (PACKAGE / Path(*name.split('.'))).is_dir():
        return f'{name}.{WHOLE}'
    if symbol in rl4llm.PUBLIC and not package:
        return rl4llm.PUBLIC[symbol].removeprefix('rl4llm.')
    if not package:
        return None  # a name of Python's, such as __version__
    return index(f'rl4llm.{package}')[symbol].removeprefix('rl4llm.')


@cache
def arrows() -> dict[str, set]:
    "Every module of the package with the modules that it imports, anywhere in its code."
    found = {}
    for path in sorted(PACKAGE.rglob('*.py')):
        if path.name.startswith('_'):
            continue
        module = '.'.join(path.relative_to(PACKAGE).with_suffix('').parts)
        nodes = [
            n
            for n in ast.walk(ast.parse(path.read_text()))
            if isinstance(n, (ast.Import, ast.ImportFrom))
        ]
        found[module] = {target for node in nodes for target in target_of(node, module)} - {module}
    return found


def test_arrows_point_one_way():
    wrong = [
        f'{a} -> {b}'
        for a, targets in arrows().items()
        for b in targets
        if floor_of(b) > floor_of(a)
    ]
    assert not wrong, 'imports from a floor above: ' + ', '.join(wrong)


def test_folders_of_one_floor_do_not_import_each_other():
    def folder(module):
        return module.split('.')[0]

    wrong = [
        f'{a} -> {b}'
        for a, targets in arrows().items()
        for b in targets
        if folder(a) != folder(b) and floor_of(a) == floor_of(b)
    ]
    assert not wrong, ', '.join(wrong)


def test_imports_point_upwards_in_the_table_of_the_readme_but_for_what_its_sentence_names():
    page = (TOP / 'README.md').read_text().split('## Where things are')[1]
    sentence, table = page.split('| notebooks | what |')
    rows = [
        re.findall(r'\[(\w+)\]\(nbs/', row.split('|')[1])
        for row in table.split('\n\n')[0].splitlines()
        if row.startswith('| [')
    ]
    place = {folder: number for number, folders in enumerate(rows) for folder in folders}
    folders = {module.split('.')[0] for module in arrows()}
    assert folders <= place.keys(), folders - place.keys()
    down = {
        a
        for a, targets in arrows().items()
        for b in targets
        if place[b.split('.')[0]] > place[a.split('.')[0]]
    }
    assert down == set(re.findall(r'`(\w+\.\w+)`', sentence)) == REPORTS


def test_there_is_no_circle():
    done, path = set(), []

    def visit(module):
        assert module not in path, 'a circle: ' + ' -> '.join(path[path.index(module) :] + [module])
        if module in done:
            return
        path.append(module)
        for target in sorted(arrows().get(module, ())):
            visit(target)
        done.add(path.pop())

    for module in arrows():
        visit(module)


def test_the_engine_has_one_door():
    inside = {m for m in arrows() if m.startswith('engine.')}
    visitors = {a for a, targets in arrows().items() if targets & inside} - inside
    assert visitors == {'core.policy'}
    assert not any(target.split('.')[0] != 'engine' for m in inside for target in arrows()[m])


def test_nothing_private_crosses_a_border():
    wrong = []
    for path in sorted(PACKAGE.rglob('*.py')):
        if path.name == '_modidx.py':
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (
                node.level or (node.module or '').startswith('rl4llm')
            ):
                wrong += [
                    f'{path.name}: {a.name}'
                    for a in node.names
                    if a.name.startswith('_') and a.name != '_modidx'
                ]
    assert not wrong, ', '.join(wrong)


def test_every_signal_that_a_stage_asks_for_is_a_row_of_the_table():
    from rl4llm.core.ready_stages import ready
    from rl4llm.core.registry import stages
    from rl4llm.core.signals import GIVEN, source_of

    rl4llm.recipes()
    for info in stages().values():
        if not info.module.startswith('rl4llm.'):  # what a test has registered
            continue
        wanted = {*info.needs, *(ready(info.name, info.kind).needs if info.kind in GIVEN else ())}
        for name in wanted:
            assert source_of(name) in GIVEN.get(info.kind, ()), (
                f'the {info.kind} {info.name} asks for {name}'
            )


def lists_of_signals(text: str, known) -> list[list]:
    "Collections in a piece of code that hold two names of signals or more and nothing else, but for what stages declare."
    tree, found = ast.parse(text), []
    declared = {
        id(k.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for k in node.keywords
        if k.arg == 'needs'
    }
    for node in ast.walk(tree):  # what every stage of a kind is given is no list of signals
        if isinstance(node, ast.Assign) and getattr(node.targets[0], 'id', '') == 'ARGUMENTS':
            declared |= set(map(id, ast.walk(node)))
    for node in ast.walk(tree):
        if id(node) in declared or not isinstance(node, (ast.Tuple, ast.List, ast.Set, ast.Dict)):
            continue
        parts = node.keys if isinstance(node, ast.Dict) else node.elts
        names = [getattr(part, 'value', None) for part in parts]
        if len(names) > 1 and all(isinstance(name, str) and name in known for name in names):
            found.append(names)
    return found


def test_there_is_one_table_of_signals():
    from rl4llm.core.signals import known_signals

    rl4llm.recipes()
    known = set(known_signals())
    assert lists_of_signals(
        "HERE = ('adv', 'mask')\nx = name in ['logp_ref', 'old_entropy']\n@stage('select', needs=('adv', 'mask'))\ndef f(): return 'adv', 'step'",
        known,
    ) == [['adv', 'mask'], ['logp_ref', 'old_entropy']]
    wrong = {
        path.name: lists_of_signals(path.read_text(), known)
        for path in PACKAGE.rglob('*.py')
        if path.name != '_modidx.py' and path != PACKAGE / 'core' / 'signals.py'
    }
    assert not any(wrong.values()), {name: found for name, found in wrong.items() if found}


def unread_knobs(text: str) -> list[str]:
    "Keywords of the functions and methods in a piece of code that nothing in them reads."
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef):
            continue
        optional = node.args.args[len(node.args.args) - len(node.args.defaults) :]
        read = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        knobs = [a.arg for a in (*optional, *node.args.kwonlyargs)]
        found += [f'{node.name}: {knob}' for knob in knobs if knob not in read]
    return found


def test_every_knob_of_a_stage_is_read():
    "What all of a kind are given may stay unread (`whole`, say); a knob of its own may not."
    from rl4llm.core.ready_stages import ARGUMENTS, BY_KEYWORD
    from rl4llm.core.registry import stages

    assert unread_knobs('def f(a, b=1, *, c, d=2): return a + d') == ['f: b', 'f: c']
    rl4llm.recipes()
    ours = [info for info in stages().values() if info.module.startswith('rl4llm.')]
    wrong = []
    for info in ours:
        given = {*ARGUMENTS.get(info.kind, ()), *BY_KEYWORD.get(info.kind, ())}
        text = textwrap.dedent(inspect.getsource(info.fn))
        wrong += [said for said in unread_knobs(text) if said.split(': ')[1] not in given]
    assert len(ours) > 50 and not wrong, wrong


def composed_names(text: str) -> list[str]:
    "Pieces of names of old and reference statistics that code puts together or cuts off."
    texts = [getattr(node, 'value', None) for node in ast.walk(ast.parse(text))]
    texts = [piece for piece in texts if isinstance(piece, str)]
    heads = [piece for piece in texts if re.search(r'\b(old|ref|logp)_$', piece)]
    return heads + [piece for piece in texts if piece in ('_old', '_ref')]


def test_names_of_statistics_are_built_and_read_in_one_place():
    from rl4llm.core.numerics import STATISTICS
    from rl4llm.core.signals import WHO, known_signals, signal_name, whose

    for statistic in STATISTICS:
        for who in WHO:
            name = signal_name(statistic, who)
            assert whose(name) == (who, statistic) and name in known_signals()
    assert {name for name in known_signals() if whose(name)[0]} == {
        signal_name(statistic, who) for statistic in STATISTICS for who in WHO
    }
    code = "a = f'ask for old_{x}'\nb = f'logp_{x}'\nc = x.removesuffix('_ref')"
    assert composed_names(code) == ['ask for old_', 'logp_', '_ref']
    wrong = {path.name: composed_names(path.read_text()) for path in PACKAGE.rglob('*.py')}
    assert not any(wrong.values()), {name: found for name, found in wrong.items() if found}


def signals_by_hand(text: str) -> set:
    "Names that a piece of code looks up in `.signals` itself."
    found = set()
    for node in ast.walk(ast.parse(text)):
        place = key = None
        if isinstance(node, ast.Subscript):
            place, key = node.value, node.slice
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            place, key = node.func.value, node.args[0]
        if isinstance(place, ast.Attribute) and place.attr == 'signals':
            found |= {getattr(key, 'value', None)} - {None}
    return {name for name in found if isinstance(name, str)}


def test_what_code_looks_up_among_the_signals_is_a_row_of_the_table():
    from rl4llm.core.signals import known_signals

    assert signals_by_hand("r.signals.get('a', 0) + r.signals['b'] + r.signals[c]") == {'a', 'b'}
    read = {path.name: signals_by_hand(path.read_text()) for path in PACKAGE.rglob('*.py')}
    assert {'durations', 'action_mask'} <= set().union(*read.values())
    unknown = {name: names - set(known_signals()) for name, names in read.items()}
    assert not any(unknown.values()), {name: found for name, found in unknown.items() if found}


def test_every_package_can_tell_its_names():
    for package in sorted({module.rsplit('.', 1)[0] for module in names_by_module()}):
        assert index(package), package


def test_the_top_offers_a_short_list():
    assert 30 <= len(rl4llm.PUBLIC) <= 45 and set(rl4llm.__all__) == set(rl4llm.PUBLIC)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for name in rl4llm.PUBLIC:
            assert getattr(rl4llm, name) is not None
    assert set(rl4llm.PUBLIC) <= set(dir(rl4llm))


@pytest.mark.parametrize(
    'old, name, new',
    [
        ('training', 'compare', 'studies'),
        ('core', 'doctor', 'app'),
        ('advantages', 'keep_all', 'selection'),
        ('objectives', 'reset_reference', 'references'),
        ('scaling', 'banded_ppo', 'objectives'),
        ('scaling', 'engine_sample', 'samplers'),
    ],
)
def test_a_moved_name_answers_with_its_new_place(old, name, new):
    package = importlib.import_module(f'rl4llm.{old}')
    with pytest.warns(DeprecationWarning, match=f'rl4llm.{new}'):
        found = getattr(package, name)
    assert found is getattr(importlib.import_module(f'rl4llm.{new}'), name)


OLD = json.loads(
    (TOP / 'tests' / 'names_of_0_1.json').read_text()
)  # public names of version 0.1.0, by module


def answer(package, name: str) -> str:
    "What a package says to a name: nothing if it has it, else its warning or its error."
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter('always')
        try:
            found = getattr(package, name)
        except AttributeError as error:
            return str(error)
    said = [str(w.message) for w in told if issubclass(w.category, DeprecationWarning)]
    if said:
        assert found is not None and len(said) == 1
    return ''.join(said)


@pytest.mark.parametrize('package', sorted({module.rpartition('.')[0] for module in OLD}))
def test_names_of_the_first_version_are_there_or_say_what_they_have_become(package):
    names = sorted(
        {
            name
            for module, names in OLD.items()
            if module.rpartition('.')[0] == package
            for name in names
        }
    )
    for offers in {package, 'rl4llm'}:
        said = {name: answer(importlib.import_module(offers), name) for name in names}
        mute = {
            name: text
            for name, text in said.items()
            if 'Did you mean' in text
            or text
            and not re.search(r'rl4llm\.\w+', text.removeprefix(offers))
        }
        assert not mute, mute


@pytest.mark.parametrize(
    'module',
    sorted(
        module
        for module in OLD
        if not (PACKAGE.parent / Path(*module.split('.'))).with_suffix('.py').exists()
    ),
)
def test_a_moved_module_says_where_to(module):
    with pytest.raises(ModuleNotFoundError, match=rf'{module} is (rl4llm\.\w+\.\w+) now') as error:
        importlib.import_module(module)
    new = importlib.import_module(str(error.value).split()[2])
    package, _, name = module.rpartition('.')
    with pytest.warns(DeprecationWarning, match=new.__name__.rpartition('.')[0]):
        assert getattr(importlib.import_module(package), name) is new


def test_a_renamed_property_of_the_policy_still_answers():
    policy = rl4llm.Policy.load('tiny')
    with pytest.warns(DeprecationWarning, match='has_fast_path'):
        assert policy.lean is policy.has_fast_path


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(AttributeError, match='recipe'):
        rl4llm.recipie
    with pytest.raises(AttributeError, match='It is in rl4llm.objectives'):
        rl4llm.tasks.ppo_clip


def test_the_package_itself_uses_no_old_places():
    import subprocess, sys

    code = "import warnings; warnings.simplefilter('error', DeprecationWarning)\nfrom rl4llm.core.method_map import recipes; recipes()\nimport rl4llm.app.cli, rl4llm.atlas.explorer, rl4llm.widgets.dashboard"
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-800:]


# -- what nobody uses is private

FOR_READERS = {
    'w_reinforce',
    'w_REINFORCE',
    'MOVED',
    'REASONS',
}  # names by which a paper or a reader looks something up


UNSHOWN = 1  # public names that only their own module uses; this number only falls


def words_of(text: str) -> set[str]:
    return set(re.findall(r'\w+', text))


def cells_of(notebook: Path) -> str:
    "The code of a notebook that is not exported: its demos and checks."
    cells = json.loads(notebook.read_text())['cells']
    code = [''.join(cell['source']) for cell in cells if cell['cell_type'] == 'code']
    return '\n'.join(text for text in code if not text.startswith('#| export'))


@cache
def words_by_place() -> dict:
    "Words of every module (without its list of names), demo, test and text that may use a public name."
    places = {}
    for file in PACKAGE.rglob('*.py'):
        if file.name == '_modidx.py':  # an index of all names
            continue
        text = re.sub(r'^# %% auto.*?\n\n', '', file.read_text(), flags=re.S | re.M)
        places[file] = words_of(text)
    top = PACKAGE.parent
    for folder in ('nbs', 'tutorials'):
        for notebook in (top / folder).rglob('*.ipynb'):
            places[notebook] = words_of(cells_of(notebook))
    others = [
        *(top / 'tests').glob('*.py'),
        *(top / 'benchmarks').rglob('*.py'),
        *(top / 'nbs').glob('*.py'),
    ]
    others += [*PACKAGE.rglob('*.yaml'), top / 'README.md', top / 'pyproject.toml']
    return places | {
        file: words_of(file.read_text()) for file in others if file.name != Path(__file__).name
    }


def unused(module: str, names) -> list[str]:
    "Which of the public names of a module no other module, demo, test or text uses."
    own = (PACKAGE.parent / Path(*module.split('.'))).with_suffix('.py')
    elsewhere = set().union(*(words for place, words in words_by_place().items() if place != own))
    return [name for name in names if name not in elsewhere]


def is_record(module: str, name: str) -> bool:
    "A class: readers meet it as what a public function gives, not by its name."
    return isinstance(getattr(importlib.import_module(module), name), type)


def test_what_nobody_else_uses_is_private():
    "A stage is used by its name in a recipe, a record by what gives it; everything else by code."
    from rl4llm.core.registry import STAGES, load_stages

    load_stages()
    known = FOR_READERS | {name for _, name in STAGES}
    found = [
        f'{module}: {name}'
        for module, names in names_by_module().items()
        for name in unused(module, [name for name in names if name not in known])
        if not is_record(module, name)
    ]
    assert len(found) <= UNSHOWN, (
        f'{len(found)} public names that nobody uses, at most {UNSHOWN}; give them a leading '
        f"underscore, or show them: {', '.join(found)}"
    )


def test_a_public_name_means_one_thing_in_its_package():
    "A plain word may be used again in another package."
    modules = {}
    for module, names in names_by_module().items():
        for name in names:
            modules.setdefault((module.split('.')[1], name), []).append(module)
    twice = [' and '.join(found) + f': {name}' for (_, name), found in modules.items() if found[1:]]
    assert not twice, f'public names of two modules, give one of them another: {twice}'


@pytest.mark.parametrize(
    'line, module, wanted',
    [
        ('from .. import objectives', 'advantages.baselines', ['objectives.__init__']),
        ('from ..core import policy', 'tasks.sat', ['core.policy']),
        ('from ..core.policy import Policy', 'tasks.sat', ['core.policy']),
        ('import rl4llm.training.loop', 'tasks.sat', ['training.loop']),
        ('import rl4llm', 'tasks.sat', ['app.__init__']),
        ('from rl4llm import train', 'tasks.sat', ['training.loop']),
        ('import torch', 'tasks.sat', []),
        ('from torch import nn', 'tasks.sat', []),
    ],
)
def test_an_arrow_is_seen_however_it_is_written(line, module, wanted):
    (node,) = ast.parse(line).body
    assert target_of(node, module) == wanted


def test_an_unused_name_is_found():
    assert unused('rl4llm.core.registry', ['recipe', 'nobody' + '_would_use_this']) == [
        'nobody' + '_would_use_this'
    ]


# -- what a reader meets


def longest_run(notebook) -> int:
    "How many exported cells follow one another, imports aside, before an example is shown."
    run = most = 0
    for cell in notebook.code:
        if cell.exported:
            run += any(not isinstance(s, IMPORTS) for s in cell.tree.body)
        elif cell.shown:
            run = 0
        most = max(most, run)
    return most


def test_examples_stand_between_what_is_exported():
    rules = RULES['examples']
    limits = {
        f'{folder}.{name}': n for folder, runs in rules['runs'].items() for name, n in runs.items()
    }
    runs = {notebook.module: longest_run(notebook) for notebook in NOTEBOOKS if notebook.module}
    assert not limits.keys() - runs.keys(), 'limits of modules that are gone'
    long = {
        name: f'{run} exported cells without an example, at most {limits.get(name, rules["run"])}'
        for name, run in runs.items()
        if run > limits.get(name, rules['run'])
    }
    assert not long, long
    slack = {name: runs[name] for name, n in limits.items() if n > max(runs[name], rules['run'])}
    assert not slack, f'a limit only falls: these are reached now, {slack}'


TOP_DOWN = ('core', 'training')  # concepts come first here, and what they stand on behind them


def test_no_notebook_imports_a_later_one_of_its_folder():
    place = {nb.module: (nb.path.parent.name, nb.path.name) for nb in NOTEBOOKS if nb.module}
    assert len(place) > 100
    early = {
        f'{a} imports {b}, which comes later'
        for a, (folder, file) in place.items()
        for b in arrows()[a]
        if place.get(b, ('', ''))[0] == folder and place[b][1] > file
    }
    early = {text for text in early if not text.startswith(TOP_DOWN)}
    assert not early, early


def test_notebooks_of_a_folder_are_numbered_without_gaps():
    numbers = {}
    for notebook in NOTEBOOKS:
        numbers.setdefault(notebook.path.parent.name, []).append(int(notebook.path.name[:2]))
    wrong = {
        folder: found
        for folder, found in numbers.items()
        if found != list(range(found[0], found[0] + len(found))) or found[0] > 1
    }
    assert not wrong, wrong


def test_the_index_says_of_every_notebook_of_core_whether_to_begin_with_it():
    "In the order of their numbers: what is read first comes first, and nothing is left out."
    page = (TOP / 'README.md').read_text()
    section = page.split('## Where to begin reading')[1].split('\n## ')[0]
    linked = re.findall(r'\]\(nbs/(core/\w+\.ipynb)\)', section)
    there = [f'core/{nb.path.name}' for nb in NOTEBOOKS if nb.path.parent.name == 'core']
    assert linked == there
