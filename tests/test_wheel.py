"The wheel: what is in it, and that it runs in an empty environment far from the repository."

import os, re, shutil, subprocess, sys, zipfile
from pathlib import Path
import pytest

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(1800)]
TOP = Path(__file__).resolve().parents[1]


def run(*command, cwd, **environ):
    "Run a command; its output, or a failure that shows it."
    clean = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(('RL4LLM_', 'PYTHONPATH', 'VIRTUAL_ENV'))
    }
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env=clean | environ, capture_output=True, text=True
    )
    assert done.returncode == 0, (
        f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done.stdout


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    "The wheel, built from a copy without anything that git ignores or a former build left."
    folder = tmp_path_factory.mktemp('wheel')
    leave = shutil.ignore_patterns(
        '.git', '.venv', 'build', 'dist', '*.egg-info', '__pycache__', 'runs', 'nbs', 'tutorials'
    )
    shutil.copytree(TOP, folder / 'source', ignore=leave)
    run(
        sys.executable,
        '-m',
        'pip',
        'wheel',
        '--no-deps',
        '--quiet',
        '-w',
        folder,
        folder / 'source',
        cwd=folder,
    )
    return next(folder.glob('*.whl'))


@pytest.fixture(scope='module')
def there(wheel, tmp_path_factory):
    "(folder, bin of an environment) with the wheel installed and nothing else of ours."
    folder = tmp_path_factory.mktemp('there')
    run(sys.executable, '-m', 'venv', folder / 'env', cwd=folder)
    run(
        folder / 'env' / 'bin' / 'python',
        '-m',
        'pip',
        'install',
        '--quiet',
        '--no-compile',
        '-c',
        TOP / 'constraints.txt',
        wheel,
        cwd=folder,
    )
    return folder, folder / 'env' / 'bin'


def test_contents(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    source = {
        str(f.relative_to(TOP))
        for f in (TOP / 'rl4llm').rglob('*')
        if f.is_file() and '__pycache__' not in f.parts
    }
    stored = {
        name
        for name in source
        if name.startswith('rl4llm/assets/studies/') and name.endswith('.json')
    }
    assert stored and not inside & stored, 'stored runs of studies come with the source tree alone'
    source -= stored
    primed = {name for name in source if re.match(r'rl4llm/assets/tiny-\w+-s-v1/', name)}
    assert primed and not inside & primed, 'bases to compare with come with the source tree alone'
    source -= primed
    package = {name for name in inside if name.startswith('rl4llm/')}
    assert package == source, (
        f'missing: {sorted(source - package)[:5]}; too much: {sorted(package - source)[:5]}'
    )
    assert {name.split('/')[0].split('-')[0] for name in inside} == {'rl4llm'}
    assert any(name.endswith('licenses/LICENSE') for name in inside)


def test_size(wheel):
    assert wheel.stat().st_size < 20e6


def test_demo_runs_in_an_empty_environment(there):
    folder, bin = there
    run(bin / 'rl4llm', 'demo', '--steps', '2', cwd=folder, OMP_NUM_THREADS='1')
    assert (folder / 'runs').is_dir() and any((folder / 'runs').rglob('metrics.jsonl'))


def test_what_is_not_in_the_wheel_is_answered_in_one_sentence(there):
    folder, bin = there
    said = run(bin / 'rl4llm', 'claims', 'show', 'psr_narrows', cwd=folder)
    assert (
        'verdict: waits' in said
        and 'come with the source tree' in said
        and 'rl4llm claims run psr_narrows' in said
    )
    assert 'The runs of' in run(bin / 'rl4llm', 'claims', 'list', cwd=folder).splitlines()[-1]
    page = next((folder / 'runs').rglob('report.html')).read_text()
    assert 'comes with the source tree' in page and 'rl4llm study negative_reinforcement' in page
    code = '''
from rl4llm.studies.study import STUDIES, load_study
from rl4llm.widgets import pass_at_k_explorer
for ask in (lambda: load_study('clip_higher'), pass_at_k_explorer):
    try: ask()
    except FileNotFoundError as error: print(error)
print(len(STUDIES), 'studies are known')
'''
    first, second, last = run(bin / 'python', '-c', code, cwd=folder).splitlines()
    assert 'rl4llm study clip_higher' in first and 'rl4llm study negative_reinforcement' in second
    assert (
        last
        == f"{len(list((TOP / 'rl4llm' / 'assets' / 'studies').glob('*.yaml')))} studies are known"
    )


def test_where_code_stands_in_an_empty_environment(there):
    folder, bin = there
    said = run(bin / 'rl4llm', 'recipes', 'grpo', cwd=folder)
    assert 'rl4llm/objectives/surrogates.py, nbs/objectives/00_surrogates.ipynb' in said


def test_doctor_and_names_in_an_empty_environment(there):
    folder, bin = there
    assert 'rl4llm[lab]' in run(bin / 'rl4llm', 'doctor', cwd=folder)
    code = (
        "import rl4llm; from rl4llm.scaling import configs; print(rl4llm.__file__, len(configs()))"
    )
    assert str(folder) in run(bin / 'python', '-c', code, cwd=folder)
