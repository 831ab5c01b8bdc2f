"""The examples run as a stranger would run them, and end with something to read."""

import os, re, subprocess, sys
from pathlib import Path
import pytest

TOP = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((TOP / 'examples').glob('*.py'))


def output(name, folder, *options):
    "What an example prints, run in an empty folder without a network."
    quiet = dict(HF_HUB_OFFLINE='1', TQDM_DISABLE='1', OMP_NUM_THREADS='1')
    path = os.pathsep.join([str(TOP), os.environ.get('PYTHONPATH', '')])
    command = [sys.executable, str(TOP / 'examples' / f'{name}.py'), '--out', 'out', *options]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **quiet, 'PYTHONPATH': path},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert [file.name for file in folder.iterdir()] == ['out']
    return done.stdout


@pytest.mark.parametrize('path', EXAMPLES, ids=lambda path: path.stem)
def test_is_short_and_says_what_it_is_for(path):
    text = path.read_text()
    assert text.startswith('"""') and len(text.splitlines()) <= 100
    assert f'python examples/{path.name}' in text
    assert max(map(len, text.splitlines())) <= 100


def test_these_are_the_examples():
    assert [path.stem for path in EXAMPLES] == ['own_data', 'own_reward', 'same_on_trl']


@pytest.mark.takes_turns
@pytest.mark.slow
def test_own_data(tmp_path):
    said = output('own_data', tmp_path, '--steps', '12')
    before, after = map(float, re.search(r'pass@1 +([\d.]+) +([\d.]+)', said).groups())
    assert after > before + 0.05
    assert (tmp_path / 'out' / 'run' / 'metrics.jsonl').exists()


@pytest.mark.takes_turns
@pytest.mark.slow
def test_own_data_of_a_file(tmp_path):
    folder = tmp_path / 'data'
    folder.mkdir()
    rows = [f'{{"question": "<modular> {a} + 1 :", "answer": {a + 1}}}' for a in range(90)]
    (folder / 'rows.jsonl').write_text('\n'.join(rows))
    empty = tmp_path / 'empty'
    empty.mkdir()
    said = output('own_data', empty, '--steps', '1', '--data', str(folder / 'rows.jsonl'))
    assert 'pass@16' in said


@pytest.mark.takes_turns
@pytest.mark.slow
def test_own_reward(tmp_path):
    said = output('own_reward', tmp_path, '--steps', '2')
    assert '2 seeds: no verdict yet' in said
    for name in ('base', 'grpo', 'own reward', 'own advantage'):
        assert re.search(rf'^{name} .*\d\.\d+ \[', said, re.MULTILINE), name


@pytest.mark.takes_turns
@pytest.mark.slow
def test_same_on_trl(tmp_path):
    pytest.importorskip('trl')
    said = output('same_on_trl', tmp_path, '--steps', '2')
    rows = re.findall(r'^\d +(\d\.\d+) +(\d\.\d+)$', said, re.MULTILINE)
    assert len(rows) == 2
    for name in ('base', 'rl4llm', 'TRL'):
        assert re.search(rf'^{name} +pass@1 \d', said, re.MULTILINE)
