"""The house: who may import whom, one door to the engine, names that are found, nothing private across modules.
Imports inside functions count like all others: an arrow hidden in a function is still an arrow."""
import ast, importlib, warnings
from functools import cache
from pathlib import Path
import pytest
import rl4llm
from rl4llm.core.lazy import index, names_by_module

PACKAGE = Path(rl4llm.__file__).parent

# From below to above: a folder imports its own and those that stand on lines above it.
FLOORS = [
    ['engine'],
    ['core'],
    ['tasks'],
    ['oracle', 'samplers', 'rewards', 'references'],
    ['curricula', 'selection'],
    ['advantages'],
    ['objectives'],
    ['rollouts', 'guidance', 'inference'],
    ['analysis'],                                  # the estimators
    ['training'],
    ['studies'],
    ['reports'],                                   # those of analysis that read runs
    ['widgets', 'preferences', 'agents'],
    ['scaling', 'atlas'],
    ['app', 'course', 'labs'],
]
REPORTS = {'analysis.page'}


def floor_of(module: str) -> int:
    "The floor of a module, e.g. of 'core.policy'."
    folder = 'reports' if module in REPORTS else module.split('.')[0]
    return next(i for i, folders in enumerate(FLOORS) if folder in folders)


def target_of(node, module: str):
    "The modules that an import statement in `module` names, without 'rl4llm.'."
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        base = module.split('.')[:-node.level] if node.level else []
        stem = '.'.join(base + [node.module] if node.module else base) if node.level else node.module
        if not node.level and not stem.startswith('rl4llm'): return []
        stem = stem.removeprefix('rl4llm').strip('.')
        is_module = (PACKAGE / Path(*stem.split('.'))).with_suffix('.py').is_file() if stem else False
        names = [stem] if is_module else [f'{stem}.{alias.name}'.strip('.') for alias in node.names]
        return [name for name in map(module_of, names) if name]
    return [module_of(name.removeprefix('rl4llm.')) for name in names if name.startswith('rl4llm.')]


def module_of(name: str):
    "The module that a dotted name means: a module, or a name that a package offers."
    if (PACKAGE / Path(*name.split('.'))).with_suffix('.py').is_file(): return name
    package, _, symbol = name.rpartition('.')
    if symbol in rl4llm.PUBLIC and not package: return rl4llm.PUBLIC[symbol].removeprefix('rl4llm.')
    if not package: return None                    # a package as a whole
    return index(f'rl4llm.{package}')[symbol].removeprefix('rl4llm.')


@cache
def arrows() -> dict[str, set]:
    "Every module of the package with the modules that it imports, anywhere in its code."
    found = {}
    for path in sorted(PACKAGE.rglob('*.py')):
        if path.name.startswith('_'): continue
        module = '.'.join(path.relative_to(PACKAGE).with_suffix('').parts)
        nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, (ast.Import, ast.ImportFrom))]
        found[module] = {target for node in nodes for target in target_of(node, module)} - {module}
    return found


def test_arrows_point_one_way():
    wrong = [f'{a} -> {b}' for a, targets in arrows().items() for b in targets if floor_of(b) > floor_of(a)]
    assert not wrong, 'imports from a floor above: ' + ', '.join(wrong)


def test_folders_of_one_floor_do_not_import_each_other():
    def folder(module): return module.split('.')[0]
    wrong = [f'{a} -> {b}' for a, targets in arrows().items() for b in targets
             if folder(a) != folder(b) and floor_of(a) == floor_of(b)]
    assert not wrong, ', '.join(wrong)


def test_there_is_no_circle():
    done, path = set(), []

    def visit(module):
        assert module not in path, 'a circle: ' + ' -> '.join(path[path.index(module):] + [module])
        if module in done: return
        path.append(module)
        for target in sorted(arrows()[module]): visit(target)
        done.add(path.pop())

    for module in arrows(): visit(module)


def test_the_engine_has_one_door():
    inside = {m for m in arrows() if m.startswith('engine.')}
    visitors = {a for a, targets in arrows().items() if targets & inside} - inside
    assert visitors == {'core.policy'}
    assert not any(target.split('.')[0] != 'engine' for m in inside for target in arrows()[m])


def test_nothing_private_crosses_a_border():
    wrong = []
    for path in sorted(PACKAGE.rglob('*.py')):
        if path.name == '_modidx.py': continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.level or (node.module or '').startswith('rl4llm')):
                wrong += [f'{path.name}: {a.name}' for a in node.names if a.name.startswith('_') and a.name != '_modidx']
    assert not wrong, ', '.join(wrong)


def test_every_signal_that_a_stage_asks_for_is_a_row_of_the_table():
    from rl4llm.core.pipeline import ready
    from rl4llm.core.registry import stages
    from rl4llm.core.signals import GIVEN, source_of
    rl4llm.recipes()
    for info in stages().values():
        wanted = {*info.needs, *(ready(info.name, info.kind).needs if info.kind in GIVEN else ())}
        for name in wanted: assert source_of(name) in GIVEN.get(info.kind, ()), f'the {info.kind} {info.name} asks for {name}'


def lists_of_signals(text: str, known) -> list[list]:
    "Collections in a piece of code that hold two names of signals or more and nothing else, but for what stages declare."
    tree, found = ast.parse(text), []
    declared = {id(k.value) for node in ast.walk(tree) if isinstance(node, ast.Call) for k in node.keywords if k.arg == 'needs'}
    for node in ast.walk(tree):
        if id(node) in declared or not isinstance(node, (ast.Tuple, ast.List, ast.Set, ast.Dict)): continue
        parts = node.keys if isinstance(node, ast.Dict) else node.elts
        names = [getattr(part, 'value', None) for part in parts]
        if len(names) > 1 and all(isinstance(name, str) and name in known for name in names): found.append(names)
    return found


def test_there_is_one_table_of_signals():
    from rl4llm.core.signals import known_signals
    rl4llm.recipes()
    known = set(known_signals())
    assert lists_of_signals("HERE = ('adv', 'mask')\nx = name in ['logp_ref', 'old_entropy']\n@stage('select', needs=('adv', 'mask'))\ndef f(): return 'adv', 'step'", known) == [['adv', 'mask'], ['logp_ref', 'old_entropy']]
    wrong = {path.name: lists_of_signals(path.read_text(), known) for path in PACKAGE.rglob('*.py') if path.name != '_modidx.py' and path != PACKAGE/'core'/'signals.py'}
    assert not any(wrong.values()), {name: found for name, found in wrong.items() if found}


def test_every_package_can_tell_its_names():
    for package in sorted({module.rsplit('.', 1)[0] for module in names_by_module()}):
        assert index(package), package


def test_the_top_offers_a_short_list():
    assert 30 <= len(rl4llm.PUBLIC) <= 45 and set(rl4llm.__all__) == set(rl4llm.PUBLIC)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for name in rl4llm.PUBLIC: assert getattr(rl4llm, name) is not None
    assert set(rl4llm.PUBLIC) <= set(dir(rl4llm))


@pytest.mark.parametrize('old, name, new', [('training', 'compare', 'studies'), ('core', 'doctor', 'app'), ('advantages', 'keep_all', 'selection'),
                                            ('objectives', 'reset_reference', 'references')])
def test_a_moved_name_answers_with_its_new_place(old, name, new):
    package = importlib.import_module(f'rl4llm.{old}')
    with pytest.warns(DeprecationWarning, match=f'rl4llm.{new}'): found = getattr(package, name)
    assert found is getattr(importlib.import_module(f'rl4llm.{new}'), name)


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(AttributeError, match='recipe'): rl4llm.recipie
    with pytest.raises(AttributeError, match='It is in rl4llm.objectives'): rl4llm.tasks.ppo_clip


def test_the_package_itself_uses_no_old_places():
    import subprocess, sys
    code = "import warnings; warnings.simplefilter('error', DeprecationWarning)\nfrom rl4llm.core.method_map import recipes; recipes()\nimport rl4llm.app.cli, rl4llm.atlas.explorer, rl4llm.widgets.dashboard"
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-800:]
