"""Does a stored result notice that the code behind it has changed? Proved by changing the code.

Changes are planted in a copy of the package, which a process of its own imports.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rl4llm
from rl4llm.core.fingerprint import called_code
from rl4llm.core.policy import ASSETS
from rl4llm.core.registry import recipe
from rl4llm.studies.probes import (
    _stored_batches,
    alike_probes,
    arm_probe,
    is_close,
    probe,
    stands,
    probe_names,
    stored_probes,
)
from rl4llm.studies.study import STUDIES, is_current, load_study, renewals, study_file
from rl4llm.training.evaluation import evaluate

PACKAGE = Path(rl4llm.__file__).parent
ASKED = """
import json
from rl4llm.core.registry import recipe
from rl4llm.studies.probes import probe_recipe, probe_steps
from rl4llm.studies.study import load_study, stale_runs
print(json.dumps(dict(fingerprint=recipe('grpo', lr=1e-4).fingerprint(), steps=probe_steps(probe_recipe('grpo')), stale=len(stale_runs(load_study('lite_ppo'))))))
"""


def answers(folder: Path) -> dict:
    "Fingerprint, probe and stale runs as the package in `folder` has them."
    world = {**os.environ, 'PYTHONPATH': str(folder), 'OMP_NUM_THREADS': '1', 'HF_HUB_OFFLINE': '1'}
    done = subprocess.run(
        [sys.executable, '-c', ASKED], cwd=folder, env=world, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def copy_of_the_package(folder: Path) -> Path:
    "The package's code in `folder`, with the assets it has here."
    shutil.copytree(
        PACKAGE, folder / 'rl4llm', ignore=shutil.ignore_patterns('assets', '__pycache__')
    )
    (folder / 'rl4llm' / 'assets').symlink_to(ASSETS)
    return folder / 'rl4llm'


@pytest.fixture(scope='module')
def as_it_is(tmp_path_factory):
    folder = tmp_path_factory.mktemp('package')
    copy_of_the_package(folder)
    return answers(folder)


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    'file, old, new, seen_by',
    [
        pytest.param(
            'core/rollouts.py',
            'variance = total / (group_count(x, group) - ddof).clamp(min=1)',
            'variance = total / group_count(x, group).clamp(min=1)',
            {'fingerprint', 'probe'},
            id='a helper of a stage',
        ),
        pytest.param(
            'core/rollouts.py',
            'smallest = -group_max(-x, group)',
            'smallest = -group_max(-x, group) - 1e-3',
            {'fingerprint'},
            id='a helper, where rewards are 0 and 1 without effect',
            marks=pytest.mark.slow,
        ),
        pytest.param(
            'core/rollouts.py',
            'variance = total / (group_count(x, group) - ddof).clamp(min=1)',
            'count = group_count(x, group)\n    variance = total.div((count - ddof).clamp(min=1))',
            {'fingerprint'},
            id='a rewrite of a helper',
            marks=pytest.mark.slow,
        ),
        pytest.param(
            'core/rollouts.py',
            '"""Standard deviation of each row\'s group.',
            '"""The standard deviation of each row\'s own group.',
            set(),
            id='a docstring',
            marks=pytest.mark.slow,
        ),
        pytest.param(
            'training/loop.py',
            'state.optimiser.step()\n',
            'state.optimiser.step()\n    state.optimiser.step()\n',
            {'probe'},
            id='the loop',
            marks=pytest.mark.slow,
        ),
        pytest.param(
            'analysis/plots.py',
            'colours = list(OKABE_ITO)',
            'colours = list(OKABE_ITO)[::-1]',
            set(),
            id='a picture',
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_planted_change_is_noticed_and_a_rewrite_told_from_it(
    file, old, new, seen_by, as_it_is, tmp_path
):
    path = copy_of_the_package(tmp_path) / file
    text = path.read_text()
    assert text.count(old) == 1, f'plant this change somewhere else: {old}'
    path.write_text(text.replace(old, new))
    now = answers(tmp_path)
    assert (now['fingerprint'] != as_it_is['fingerprint']) == ('fingerprint' in seen_by)
    assert (not is_close(now['steps'], as_it_is['steps'])) == ('probe' in seen_by)
    if 'fingerprint' in seen_by:
        assert now['stale'] > as_it_is['stale'] or as_it_is['stale'] > 0


MADE_UP = """
import dataclasses, functools, types
from rl4llm.core import numerics
ONE = 1.0
@dataclasses.dataclass(frozen=True)
class Limits:
    low: float = ONE
    @functools.cached_property
    def twice(self): return helper_of_twice()
def helper_of_twice(): return 2
LIMITS = Limits(low=3.0)
SPACE = types.SimpleNamespace(low=4.0)
def power(x, k): return x**k
SQUARE = functools.partial(power, k=5)
def by_default(x, factor=ONE): return x * factor
def by_field(x): return x * Limits().low
def by_object(x): return x * LIMITS.low
def by_namespace(x): return x * SPACE.low
def by_partial(x): return SQUARE(x)
def by_cached_property(x): return x * Limits().twice
def by_module(x): return numerics.fold(x, 1)
def stage(x): return WAY(x)
"""


@pytest.mark.parametrize(
    'way, old, new',
    [
        ('by_default', 'ONE = 1.0', 'ONE = 7.0'),
        ('by_field', 'ONE = 1.0', 'ONE = 7.0'),
        ('by_object', 'low=3.0', 'low=7.0'),
        ('by_namespace', 'low=4.0', 'low=7.0'),
        ('by_partial', 'k=5', 'k=7'),
        ('by_cached_property', 'return 2', 'return 7'),
    ],
)
def test_a_number_two_calls_away_counts_wherever_it_stands(way, old, new, tmp_path, monkeypatch):
    "In a default, in a field, in an object that a module holds, behind a cached property."

    def code(text):
        path = tmp_path / f'made_up_{text.count(new)}.py'
        path.write_text(text)
        spec = importlib.util.spec_from_file_location('rl4llm.made_up', path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, 'rl4llm.made_up', module)
        spec.loader.exec_module(module)
        return called_code([module.stage])

    text = MADE_UP.replace('WAY', way)
    assert text.count(old) == 1
    assert code(text) != code(text.replace(old, new))
    assert 'rl4llm.core.numerics.fold' in code(MADE_UP.replace('WAY', 'by_module'))


class AsStored:
    "A policy that answers what is stored, so that only the examination is tried."

    name = 'stored answers'
    model = torch.nn.Identity()

    def sample(self, items, samples, **how):
        return _stored_batches()[0]


def test_an_examination_counts_as_it_did_for_the_stored_results():
    "`evaluate` is in no fingerprint and no probe: this notices a change of its counting."
    batch = _stored_batches()[0]
    found = evaluate(AsStored(), batch.items, samples=8)
    assert found.num_correct.tolist() == [0, 6, 4, 4]
    assert found.num_samples.tolist() == [8] * 4
    wanted = {
        'distinct': [0, 2, 2, 2],
        'token_nll': 0.23419225215911865,
        'length': 12.0,
        'length_right': 12.0,
        'length_wrong': 12.0,
        'blind': [1 / 16, 2 / 9, 7 / 36, 1 / 9],
    }
    assert is_close(wanted, found.extras)


CORE = [arm for arm in STUDIES['negative_reinforcement'].arms]


@pytest.mark.parametrize('name', CORE)
def test_the_core_arms_train_as_their_stored_probes_say(name):
    "The loop, the policy and the optimiser are in no fingerprint: this is what notices a change of theirs."
    assert stands(probe(name), stored_probes()[name]), f'`rl4llm probes check {name}`'


@pytest.mark.slow
@pytest.mark.takes_turns
@pytest.mark.parametrize('name', list(probe_names()))
def test_a_recipe_trains_as_its_stored_probe_says(name):
    from rl4llm.studies.probes import changed_probes

    assert not changed_probes([name])


# The first draw of this study's example is the one that the recipe makes anyway.
FIRST_DRAW = ['one_example: first draw/one_shot_pg', 'one_shot_pg']


def test_no_two_recipes_have_the_same_numbers():
    "A change of one into the other would pass unnoticed."
    assert alike_probes() == [FIRST_DRAW]


@pytest.mark.parametrize(
    'name, near',
    [
        ('oreal', 'oreal_pairs'),
        ('rlfr', 'rlfr_shuffled'),
        ('hindsight_curiosity', 'hindsight_curiosity_dealt'),
    ],
)
def test_an_idea_that_comes_late_is_seen_by_its_own_steps(name, near):
    "On the stored rollouts each of these gives the numbers of its control."
    stored = stored_probes()
    assert is_close(stored[name]['steps'], stored[near]['steps'])
    assert not is_close(stored[name]['own'], stored[near]['own'], 1e-4)
    assert stored[name]['own'][-1]['size'] > 0


def test_every_stored_result_has_a_probe():
    for study in STUDIES.values():
        if not study_file(study.name).exists():
            continue
        for record in load_study(study.name)['runs']:
            assert arm_probe(study, record['arm'], record['regime']) in stored_probes()
    assert set(stored_probes()) <= set(probe_names())


def test_results_of_later_notebooks_are_renewed_as_well():
    from rl4llm.core.registry import load_stages
    from rl4llm.studies.probes import stored_results
    from rl4llm.studies.thinking_tryouts import thinking_records
    from rl4llm.studies.worlds import world_records

    load_stages()
    counted = {result.what for result in stored_results()}
    assert {f'world {name}' for name in world_records()} <= counted
    assert {f'{name} on the thinking model' for name in thinking_records()} <= counted
    assert 'tiny-think-s-v1, seed 0' in counted


def test_a_renewal_stands_for_the_code_that_it_names_and_no_other():
    old, renewal = next((old, new) for old, new in renewals().items())
    grpo = recipe('grpo', lr=1e-4)
    assert is_current(grpo.fingerprint(), grpo) and not is_current('0' * 16, grpo)
    assert not is_current(old, grpo) or renewal['now'] == grpo.fingerprint()
