"""Which notebooks must be executed: `python tests/select_notebooks.py [--all] [--run]`.

Those that were changed against main, those whose imports reach a changed module, one fifth of
all in turn (which one follows from the commit), and the lessons. On main itself the last commit
is what changed. Without git, all. `--run` executes them, lessons in their short form; with `--all`
these are left to `test_tutorials.py`, which runs a fifth of them whole."""

import argparse, ast, os, runpy, subprocess, sys, time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from multiprocessing import current_process, get_context
from pathlib import Path
from unittest import mock
from lint_rules import Notebook

TOP = Path(__file__).resolve().parents[1]
PARTS = 5
NAMED = ('recipe', 'use', 'add_recipe', 'task')  # calls that name what another module registers
REGISTERS = ('add_recipe', 'add_task')
AIM = 5  # seconds for a notebook, on average
SLOW_IMPORTS = (
    'torch',
    'transformers.models.auto.tokenization_auto',
    'transformers.models.llama.modeling_llama',
    'pandas',
    'matplotlib.pyplot',
    'scipy.stats',
    'sympy',
)


# -- what changed


def git(top, *arguments):
    "Output of a git command, or None where it fails."
    try:
        done = subprocess.run(['git', *arguments], cwd=top, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def base_of(top):
    """The commit to compare with: where this branch left main, or on main the last commit but one.

    The environment can name another, `BASE_COMMIT`.
    """
    for name in (os.environ.get('BASE_COMMIT'), 'origin/main', 'main'):
        base = git(top, 'merge-base', 'HEAD', name) if name else None
        if base and base != git(top, 'rev-parse', 'HEAD'):
            return base
    return git(top, 'rev-parse', '--verify', 'HEAD~1')


def changed_files(top):
    "Files that differ from the base, uncommitted and untracked ones too; None without git."
    if git(top, 'rev-parse', 'HEAD') is None:
        return None
    base = base_of(top) or 'HEAD'
    prefix = git(top, 'rev-parse', '--show-prefix')
    if prefix:
        return None  # a copy inside another project
    tracked = git(top, 'diff', '--name-only', '--no-renames', base)
    untracked = git(top, 'ls-files', '--others', '--exclude-standard')
    return set((tracked + '\n' + untracked).split('\n')) - {''}


# -- who reaches whom


@dataclass(eq=False)
class Source:
    "Code of a module or a notebook: its trees, and the package that relative imports start from."

    trees: list
    package: list = field(default_factory=list)

    @cached_property
    def nodes(self):
        return [n for tree in self.trees for n in ast.walk(tree)]

    @cached_property
    def constants(self):
        "Every text in the code."
        values = [n.value for n in self.nodes if isinstance(n, ast.Constant)]
        return {v for v in values if isinstance(v, str)}

    @cached_property
    def calls(self):
        "(name of what is called, its arguments) of every call of a plain name or an attribute."
        found = [n for n in self.nodes if isinstance(n, ast.Call)]
        return [(getattr(n.func, 'id', getattr(n.func, 'attr', '')), n.args) for n in found]

    def texts(self, *names):
        "Text arguments of the calls of `names`."
        given = Source([a for name, args in self.calls if name in names for a in args])
        return given.constants

    @cached_property
    def imported(self):
        "Name here -> dotted path of what it is, for every import."
        found = {}
        for node in self.nodes:
            if not isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            start = self.start(node)
            for alias in node.names:
                path = '.'.join([*start, alias.name])
                found[path] = path
                if alias.asname or start:
                    found[alias.asname or alias.name] = path
                else:
                    found[alias.name.split('.')[0]] = alias.name.split('.')[0]
        return {name: path for name, path in found.items() if path.split('.')[0] == 'rl4llm'}

    def start(self, node):
        "Parts of the dotted path that an import starts from."
        if isinstance(node, ast.Import):
            return []
        above = self.package[: len(self.package) + 1 - node.level] if node.level else []
        return [*above, *([node.module] if node.module else [])]

    @cached_property
    def paths(self):
        "Dotted paths that the code imports, or reaches as attributes of what it imports."
        found = set(self.imported.values())
        for node in self.nodes:
            root, *rest = chain_of(node)
            if root in self.imported:
                found.add('.'.join([self.imported[root], *rest]))
        return found


def dotted(file):
    return file.removesuffix('.py').replace('/', '.')


def chain_of(node):
    "The names of a chain of attributes, such as `rl4llm.atlas.table`; [''] of anything else."
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *names[::-1]] if isinstance(node, ast.Name) else ['']


def registered(source):
    "Names of the stages, recipes and tasks that a module registers."
    firsts = [args[0] for name, args in source.calls if name in REGISTERS and args]
    names = {a.value for a in firsts if isinstance(a, ast.Constant)}
    for node in source.nodes:
        marks = [ast.unparse(d) for d in getattr(node, 'decorator_list', [])]
        if any(mark.startswith('stage(') for mark in marks):
            names.add(node.name)
    return names


def readable(paths, top):
    "Paths of notebooks in order, without drafts and hidden folders."
    parts = {p: p.relative_to(top).parts for p in sorted(paths)}
    return [p for p in parts if not any(part.startswith(('_', '.')) for part in parts[p])]


class House:
    "The notebooks and modules of a project, and who reaches whom."

    def __init__(self, top):
        self.top = top
        notebooks = readable((top / 'nbs').rglob('*.ipynb'), top)
        lessons = readable((top / 'tutorials').glob('*.ipynb'), top)
        modules = [p for p in (top / 'rl4llm').rglob('*.py') if not p.name.startswith('_')]
        syms = runpy.run_path(str(top / 'rl4llm' / '_modidx.py'))['d']['syms']
        self.notebooks = {self.short(p): Notebook(p) for p in notebooks}
        self.lessons = [self.short(p) for p in lessons]
        self.modules = {dotted(self.short(p)): self.source(p) for p in modules}
        self.defining = defaultdict(set)  # name -> modules that define it
        for module in syms:
            for name in syms[module]:
                self.defining[name.removeprefix(module + '.')].add(module)

    def short(self, path):
        return path.relative_to(self.top).as_posix()

    def source(self, path):
        return Source([ast.parse(path.read_text())], list(path.relative_to(self.top).parts[:-1]))

    @cached_property
    def homes(self):
        "Name of a stage, recipe or task -> the module that registers it."
        return {name: m for m, source in self.modules.items() for name in registered(source)}

    def behind(self, path):
        "The modules that a dotted path can lead to: itself, or those below it that have the name."
        package, _, name = path.rpartition('.')
        if path in self.modules:
            return {path}
        if package in self.modules:
            return {package}
        return {m for m in self.defining.get(name, ()) if m.startswith(package + '.')}

    def needs(self, source):
        "Modules that a source imports, or names by what they register."
        named = {self.homes[text] for text in source.texts(*NAMED) if text in self.homes}
        return named.union(*map(self.behind, source.paths))

    @cached_property
    def needs_of_modules(self):
        "Module -> the modules that it needs."
        return {module: self.needs(source) for module, source in self.modules.items()}

    def module_of(self, notebook):
        "The module that a notebook exports to, or None."
        name = self.notebooks[notebook].module
        return name and f'rl4llm.{name}'

    def changed_modules(self, files):
        "Modules that `files` are, are exported from, or that name an asset among them."
        notebooks = [name for name in self.notebooks if name in files]
        found = set(map(dotted, files)) | set(map(self.module_of, notebooks))
        assets = {Path(f).parts[2] for f in files if f.startswith('rl4llm/assets/')}
        modules = self.modules.items() if assets else ()
        naming = {m for m, source in modules if assets & source.constants}
        return (found | naming) & set(self.modules)

    def reaching(self, changed):
        "Every module that reaches a changed one -> the changed one."
        needs = self.needs_of_modules
        found = {module: module for module in changed}
        grown = True
        while grown:
            hits = {m: sorted(needs[m] & set(found)) for m in needs if m not in found}
            new = {m: found[hit[0]] for m, hit in hits.items() if hit}
            found.update(new)
            grown = bool(new)
        return found


# -- the choice


def affected(house, files):
    "Notebook -> why, of those that a change of `files` can reach."
    reached = house.reaching(house.changed_modules(files))
    why = {}
    for name, notebook in house.notebooks.items():
        source = Source([c.tree for c in notebook.code])
        hits = sorted((house.needs(source) | {house.module_of(name)}) & set(reached))
        if name in files:
            why[name] = 'changed'
        elif hits:
            why[name] = f'reaches {reached[hits[0]]}, which changed'
    return why


def turn_of(top, digit=0, parts=PARTS):
    """Which of so many parts is in turn: it follows from the commit, and is 0 without git.

    digit: another one for what takes turns apart from this, so that all pairs come up.
    """
    return int(git(top, 'rev-parse', 'HEAD') or '0', 16) // parts**digit % parts


def choose(top=TOP, *, everything=False):
    "Notebook -> why it is executed, lessons last."
    house, files = House(top), changed_files(top)
    if everything:
        return dict.fromkeys(house.notebooks, 'all were asked for')
    lessons = dict.fromkeys(house.lessons, 'a lesson')
    if files is None:
        return dict.fromkeys(house.notebooks, 'no git here') | lessons
    turn = turn_of(top)
    fifth = {name: f'in turn, {turn + 1} of {PARTS}' for name in list(house.notebooks)[turn::PARTS]}
    chosen = fifth | affected(house, files)
    return {name: chosen[name] for name in house.notebooks if name in chosen} | lessons


# -- the run


def execute_one(path, **options):
    "One notebook, in a process that may start processes of its own."
    from nbdev.test import test_nb

    current_process()._config['daemon'] = False
    return test_nb(path, **options)


def execute(files, workers=2):
    """Executes notebooks as nbdev-test does; (file, passed, seconds) of each.

    Each has a process of its own: what one registers must not reach another. They are forked from
    one that has imported the slow packages.
    """
    from fastcore.xtras import working_directory
    from nbdev.config import get_config

    for name in SLOW_IMPORTS:
        import_module(name)
    config = get_config(TOP)
    options = dict(skip_flags=config.tst_flags.split(), cell_timeout=config.cell_timeout)
    one = partial(execute_one, basepath=TOP, **options)
    pool = get_context('fork').Pool(workers, maxtasksperchild=1)
    done = []
    with working_directory(TOP / 'nbs'), pool:
        results = pool.imap(one, [TOP / f for f in files], chunksize=1)
        for file, (passed, seconds) in zip(files, results):
            print(f'{seconds:6.1f} s  {file}' + ('' if passed else '  FAILED'), flush=True)
            done.append((file, passed, seconds))
    return done


def run(chosen):
    "Executes the chosen notebooks, lessons in their short form; prints times, returns failures."
    start = time.monotonic()
    lessons = [f for f in chosen if f.startswith('tutorials/')]
    done = execute([f for f in chosen if f not in lessons])
    with mock.patch.dict(os.environ, RL4LLM_DRY_RUN='1'):
        done += execute(lessons)
    slowest = sorted(done, key=lambda item: -item[2])
    for file, _, seconds in slowest[:10]:
        print(f'{seconds:6.1f} s  {file}')
    mean = sum(seconds for *_, seconds in done) / len(done)
    took = time.monotonic() - start
    print(f'{len(done)} notebooks took {took:.0f} s, {mean:.1f} s each on average (aim: {AIM} s)')
    return [file for file, passed, _ in done if not passed]


def main():
    parser = argparse.ArgumentParser(description='Which notebooks must be executed, and why.')
    parser.add_argument('--all', action='store_true', help='every notebook')
    parser.add_argument('--run', action='store_true', help='execute them, store nothing')
    options = parser.parse_args()
    chosen = choose(everything=options.all)
    for name, why in chosen.items():
        print(f'{name}  ({why})', flush=True)
    failed = run(chosen) if options.run else []
    if failed:
        sys.exit('\n  '.join(['these notebooks failed:', *failed]))


if __name__ == '__main__':
    main()
