"""Stored results still belong to the code, the model and the rule they claim."""
import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest

import rl4llm.atlas.claims
from rl4llm.core.policy import ASSETS, Policy
from rl4llm.studies.comparison import compare
from rl4llm.training.records import weights_hash
from rl4llm.studies.study import STUDIES, arm_recipe, held_out, load_study, stale_runs, study_named, study_runs

NAMES = [p.stem for p in sorted((ASSETS / 'studies').glob('*.json'))]
TOP = Path(__file__).resolve().parents[1]


def test_there_are_stored_studies(): assert 'negative_reinforcement' in NAMES


@pytest.mark.parametrize('name', NAMES)
def test_stored_results_belong_to_the_present_code_and_model(name):
    stored = load_study(name)
    assert not stale_runs(stored), f'formulas or numbers changed since: repeat them with {stored["command"]}'
    assert {r['weights'] for r in stored['runs']} == {weights_hash(Policy.load(stored['study']['model']).model)}


@pytest.mark.parametrize('name', NAMES)
def test_stored_studies_are_whole(name):
    stored, study = load_study(name), study_named(name)
    assert json.loads(json.dumps(dataclasses.asdict(study))) == stored['study'], 'the study asks for something else than what is stored'
    done = {(r['arm'], r['regime'], r['seed']) for r in stored['runs']}
    assert done == {(a, g, s) for a in study.arms for g in study.regimes for s in study.seeds} and len(stored['runs']) == len(done)
    assert all(len(v) == study.steps for r in stored['runs'] for v in r['metrics'].values())
    assert not set(study.seeds) & set(study.tuning_seeds)


@pytest.mark.parametrize('name', NAMES)
def test_the_problems_are_the_held_out_ones_and_the_base_is_one_and_the_same(name):
    stored, study = load_study(name), study_named(name)
    keys, bases = [i.key for i in held_out(study, 'test')], set()
    for r in stored['runs']:
        assert [e['step'] for e in r['evaluations']] == sorted({0, study.steps, *range(study.every, study.steps, study.every)})
        assert all(list(e['keys']) == keys for e in r['evaluations'])
        bases.add(tuple(r['evaluations'][0]['num_correct']))
    assert len(bases) == 1 and not set(keys) & {i.key for i in held_out(study, 'valid')}


@pytest.mark.parametrize('name', NAMES)
def test_step_sizes_follow_the_rule(name):
    stored, study = load_study(name), study_named(name)
    for regime in study.regimes:
        for arm in study.arms:
            tried = {}
            for t in stored['tuning']:
                if (t['regime'], t['arm']) == (regime, arm): tried.setdefault(t['lr'], []).append(t['pass_at_1'])
            assert set(tried) == set(study.lrs[regime])
            assert stored['learning_rates'][f'{regime}/{arm}'] == max(tried, key=lambda lr: np.mean(tried[lr]))
            assert {r['lr'] for r in stored['runs'] if (r['regime'], r['arm']) == (regime, arm)} == {stored['learning_rates'][f'{regime}/{arm}']}


def test_a_changed_recipe_makes_results_stale():
    stored = load_study('negative_reinforcement')
    stored['runs'][0]['lr'] *= 2
    assert len(stale_runs(stored)) == 1


def test_stored_runs_can_be_compared_by_level():
    stored = load_study('negative_reinforcement')
    for level, count in stored['study']['tests']:
        table = compare(study_runs(stored, 'on-policy', level=level)).table
        assert len(table) == 5
    with pytest.raises(ValueError, match="no level 'impossible'"): study_runs(stored, level='impossible')


def test_unknown_studies_are_answered_with_what_there_is():
    with pytest.raises(KeyError, match='negative_reinforcement'): study_named('nonsense')
    with pytest.raises(FileNotFoundError, match='rl4llm study nonsense'): load_study('nonsense')


@pytest.mark.slow
@pytest.mark.parametrize('path', ['nbs/advantages/02_negative_reinforcement.ipynb', 'nbs/app/00_demonstration.ipynb', 'nbs/training/05_pretraining.ipynb', *sorted(str(p.relative_to(TOP)) for p in TOP.glob('tutorials/0*.ipynb'))])
def test_demos_run_dry_under_the_gpu_preset(path):
    import nbformat
    from nbclient import NotebookClient
    from unittest.mock import patch
    with patch.dict(os.environ, {'RL4LLM_PRESET': 'gpu', 'RL4LLM_DRY_RUN': '1', 'TQDM_DISABLE': '1'}):
        done = NotebookClient(nbformat.read(TOP / path, 4), timeout=600, resources={'metadata': {'path': str((TOP / path).parent)}}).execute()
    assert sum(bool(c.get('outputs')) for c in done.cells) >= 3


def test_the_command_knows_every_study():
    import subprocess, sys
    done = subprocess.run([Path(sys.executable).parent / 'rl4llm', 'study', 'nothing'], capture_output=True, text=True)
    assert done.returncode != 0 and all(name in done.stdout + done.stderr for name in NAMES)
