"Which notebooks `make test` executes: tried on a small project under git."

import os, shutil, subprocess
import nbformat, pytest, select_notebooks
from select_notebooks import House, affected, changed_files, choose, turn_of

MODULES = {
    'core/numerics': 'def near(x):\n    return x',
    'core/registry': 'def recipe(name):\n    return name',
    'advantages/mean': 'from ..core.numerics import near\n@stage("advantage")\ndef mean(r): ...',
    'advantages/spread': 'from .mean import mean\nadd_recipe("wide", "narrow")',
    'training/loop': 'def train(x):\n    from ..core.registry import recipe\n    return recipe(x)',
    'atlas/table': 'def table():\n    return read("papers")',
}
NOTEBOOKS = {
    'nbs/core/00_numerics': '#| default_exp core.numerics',
    'nbs/core/01_registry': '#| default_exp core.registry',
    'nbs/advantages/00_mean': '#| default_exp advantages.mean',
    'nbs/advantages/01_spread': '#| default_exp advantages.spread',
    'nbs/training/00_loop': '#| default_exp training.loop',
    'nbs/atlas/00_table': '#| default_exp atlas.table',
    'nbs/labs/00_lazy': 'from rl4llm.advantages import mean',
    'nbs/labs/01_top': 'from rl4llm import train\ntrain("wide")',
    'nbs/labs/02_dots': 'import rl4llm\nrl4llm.atlas.table()',
    'nbs/labs/03_named': 'from rl4llm import recipe\n%time recipe("wide")\nrecipe("wide")',
    'nbs/labs/04_alone': 'import math',
    'nbs/labs/_draft': 'import rl4llm',
    'tutorials/01_lesson': 'from rl4llm import train',
}


def git(top, *arguments):
    settings = ['-c', 'user.name=x', '-c', 'user.email=x@x.org', '-c', 'commit.gpgsign=false']
    plain = {k: v for k, v in os.environ.items() if not k.startswith('GIT_')}
    command = ['git', *settings, *arguments]
    subprocess.run(command, cwd=top, env=plain, check=True, capture_output=True)


def commit(top, message='x'):
    git(top, 'add', '-A')
    git(top, 'commit', '-m', message, '--allow-empty')


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture(scope='session')
def project(tmp_path_factory):
    "A project on main with two commits, the last one empty."
    top = tmp_path_factory.mktemp('project')
    for name, code in MODULES.items():
        write(top / 'rl4llm' / f'{name}.py', code)
    for name, code in NOTEBOOKS.items():
        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
        write(top / f'{name}.ipynb', nbformat.writes(made))
    names = {
        'core.numerics': 'near',
        'core.registry': 'recipe',
        'advantages.mean': 'mean',
        'training.loop': 'train',
        'atlas.table': 'table',
    }
    syms = {f'rl4llm.{m}': {f'rl4llm.{m}.{name}': ()} for m, name in names.items()}
    write(top / 'rl4llm' / '_modidx.py', f"d = {{'syms': {syms}}}")
    write(top / 'rl4llm' / 'assets' / 'papers' / 'a.csv', '1')
    git(top, 'init', '-b', 'main')
    commit(top)
    commit(top)
    return top


@pytest.fixture
def top(project, tmp_path):
    "A copy of the project, to be changed."
    return shutil.copytree(project, tmp_path / 'project')


def stems(names):
    return sorted(name.split('/')[-1].removesuffix('.ipynb') for name in names)


def edit(top, file):
    with (top / file).open('a') as f:
        f.write('\n')


# -- what changed


def test_a_branch_is_compared_with_where_it_left_main(top):
    git(top, 'checkout', '-b', 'work')
    edit(top, 'nbs/core/00_numerics.ipynb')
    commit(top)
    edit(top, 'nbs/core/01_registry.ipynb')
    write(top / 'nbs' / 'new.ipynb', '')
    assert stems(changed_files(top)) == ['00_numerics', '01_registry', 'new']


def test_the_commit_to_compare_with_can_be_named(top, monkeypatch):
    monkeypatch.setenv('BASE_COMMIT', select_notebooks.git(top, 'rev-parse', 'HEAD'))
    for name in ('00_numerics', '01_registry'):
        edit(top, f'nbs/core/{name}.ipynb')
        commit(top)
    assert stems(changed_files(top)) == ['00_numerics', '01_registry']
    monkeypatch.setenv('BASE_COMMIT', '')
    assert stems(changed_files(top)) == ['01_registry']


def test_what_main_did_meanwhile_is_no_change(top):
    git(top, 'checkout', '-b', 'work')
    commit(top)
    git(top, 'checkout', 'main')
    edit(top, 'nbs/core/00_numerics.ipynb')
    commit(top)
    git(top, 'checkout', 'work')
    assert changed_files(top) == set()


def test_on_main_the_last_commit_is_what_changed(top):
    assert changed_files(top) == set()
    edit(top, 'nbs/core/00_numerics.ipynb')
    commit(top)
    assert stems(changed_files(top)) == ['00_numerics']


def test_main_ahead_of_its_origin(top, tmp_path_factory):
    there = tmp_path_factory.mktemp('clone') / 'project'
    git(top, 'clone', str(top), str(there))
    for file in ('nbs/core/00_numerics.ipynb', 'nbs/core/01_registry.ipynb'):
        edit(there, file)
        commit(there)
    assert stems(changed_files(there)) == ['00_numerics', '01_registry']


def test_one_commit_alone(top, tmp_path_factory):
    there = tmp_path_factory.mktemp('shallow') / 'project'
    git(top, 'clone', '--depth', '1', f'file://{top}', str(there))
    assert changed_files(there) == set()
    edit(there, 'nbs/core/00_numerics.ipynb')
    assert stems(changed_files(there)) == ['00_numerics']


# -- who reaches whom

NUMERICS = ['00_lazy', '00_mean', '00_numerics', '01_spread', '03_named']


@pytest.mark.parametrize(
    'file, reached',
    [
        ('nbs/core/00_numerics.ipynb', NUMERICS),
        ('rl4llm/core/numerics.py', NUMERICS),
        ('nbs/core/01_registry.ipynb', ['00_loop', '01_registry', '01_top', '03_named']),
        ('nbs/advantages/01_spread.ipynb', ['01_spread', '03_named']),
        ('nbs/labs/04_alone.ipynb', ['04_alone']),
        ('rl4llm/assets/papers/a.csv', ['00_table', '02_dots']),
        ('README.md', []),
    ],
)
def test_a_change_reaches(top, file, reached):
    assert stems(affected(House(top), {file})) == reached


def test_the_reason_names_what_changed(top):
    why = affected(House(top), {'rl4llm/core/numerics.py'})
    assert why['nbs/labs/00_lazy.ipynb'] == 'reaches rl4llm.core.numerics, which changed'


# -- the choice


def test_all_come_in_turn(top, monkeypatch):
    seen = []
    for turn in range(select_notebooks.PARTS):
        monkeypatch.setattr(select_notebooks, 'turn_of', lambda top, turn=turn: turn)
        chosen = choose(top)
        assert 'tutorials/01_lesson.ipynb' in chosen
        seen += [name for name, why in chosen.items() if why.startswith('in turn')]
    assert sorted(seen) == sorted(House(top).notebooks) and len(seen) == 11


def test_the_choice_follows_from_the_commit(top):
    assert choose(top) == choose(top) and turn_of(top) in range(select_notebooks.PARTS)


def test_all_of_them(top):
    chosen = choose(top, everything=True)
    assert len(chosen) == 11 and 'nbs/labs/_draft.ipynb' not in chosen


def test_without_git_all(top, monkeypatch):
    monkeypatch.setattr(select_notebooks, 'git', lambda top, *arguments: None)
    assert set(choose(top)) == {*choose(top, everything=True), *House(top).lessons}


def test_the_project_itself(monkeypatch):
    house = House(select_notebooks.TOP)
    monkeypatch.setattr(select_notebooks, 'House', lambda top: house)
    chosen = choose()
    assert set(house.lessons) <= set(chosen) <= set(house.notebooks) | set(house.lessons)
    assert all(house.needs(source) <= set(house.modules) for source in house.modules.values())
