"""Stored results still belong to the code, the model and the rule they claim."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest

from rl4llm.core.policy import ASSETS, Policy
from rl4llm.studies.comparison import compare
from rl4llm.training.records import weights_hash
from rl4llm.studies import study as studies
from rl4llm.studies.study import (
    STUDIES,
    Job,
    Study,
    held_out,
    final_jobs,
    job_file,
    job_key,
    load_study,
    read_study,
    repeated_jobs,
    stale_runs,
    study_named,
    study_of,
    study_runs,
    stored_jobs,
    with_repeats,
    without_repeats,
)

NAMES = [p.stem for p in sorted((ASSETS / 'studies').glob('*.json'))]
TOP = Path(__file__).resolve().parents[1]


def test_there_are_stored_studies():
    assert 'negative_reinforcement' in NAMES


@pytest.mark.parametrize('name', NAMES)
def test_stored_results_belong_to_the_present_code_and_model(name):
    stored = load_study(name)
    assert not stale_runs(stored), (
        f'formulas or numbers changed since: repeat them with {stored["command"]}'
    )
    assert {r['weights'] for r in stored['runs']} == {
        weights_hash(Policy.load(stored['study']['model']).model)
    }


@pytest.mark.parametrize(
    'record, revised, wanted',
    [
        ({}, {}, 'current'),
        ({'revision': 1}, {'revision': 2}, 'earlier loop'),
        ({}, {'revision': 2}, 'earlier loop'),
        ({'revision': 2}, {'revision': 2}, 'current'),
        ({'fingerprint': '0' * 16}, {}, 'stale'),
        ({'fingerprint': '0' * 16}, {'revision': 2}, 'earlier loop'),
    ],
)
def test_a_run_is_current_or_of_an_earlier_loop_or_stale(record, revised, wanted, monkeypatch):
    monkeypatch.setattr(studies, 'stored_probes', lambda: {'grpo': revised})
    grpo = studies.recipe('grpo')
    assert studies.standing({'fingerprint': grpo.fingerprint(), **record}, grpo, 'grpo') == wanted


def test_an_arm_of_an_earlier_loop_says_what_has_changed():
    earlier = studies.earlier_arms(load_study('clip_higher'))
    assert set(earlier) == {'four mini-batches/grpo', 'four mini-batches/grpo_clip_higher'} and all(
        earlier.values()
    )
    assert studies.earlier_arms(load_study('lite_ppo')) == {}


@pytest.mark.parametrize('name', NAMES)
def test_stored_studies_are_whole(name):
    stored, study = load_study(name), study_named(name)
    assert study_of(stored) == study, 'the study asks for something else than what is stored'
    done = [(r['arm'], r['regime'], r['lr'], r['seed'], 'final') for r in stored['runs']]
    assert done == final_jobs(study, stored['learning_rates']) and len(set(done)) == len(done)
    assert all(len(v) == study.steps for r in stored['runs'] for v in r['metrics'].values())
    assert not set(study.seeds) & set(study.tuning_seeds)


@pytest.mark.parametrize('name', NAMES)
def test_the_problems_are_the_held_out_ones_and_the_base_is_one_and_the_same(name):
    stored, study = load_study(name), study_named(name)
    keys, bases = [i.key for i in held_out(study, 'test')], set()
    some = [i.key for i in held_out(study, 'test', study.path_tests)] if study.path_tests else []
    for r in stored['runs']:
        on_the_way = sorted({0, study.steps, *range(study.every, study.steps, study.every)})
        assert [e['step'] for e in r['evaluations']] == (
            [0, study.steps] if study.path_tests else on_the_way
        )
        assert all(list(e['keys']) == keys for e in r['evaluations'])
        bases.add(tuple(r['evaluations'][0]['num_correct']))
        if not study.path_tests:
            continue
        assert [e['step'] for e in r['path']] == on_the_way
        assert all(list(e['keys']) == some for e in r['path'])
    assert not set(keys) & {i.key for i in held_out(study, 'valid')}
    first, *others = map(np.array, sorted(bases))
    for base in others:  # of arms shared with a study of another machine, which rounds otherwise
        assert np.abs(base - first).max() <= 8 and abs((base - first).sum()) <= 100


@pytest.mark.parametrize('name', NAMES)
def test_step_sizes_follow_the_rule(name):
    stored, study = load_study(name), study_named(name)
    if study.all_rates:
        assert not stored['tuning'] and not stored['learning_rates']
    for regime in study.regimes if not study.all_rates else ():
        for arm in study.arms:
            tried = {}
            for t in stored['tuning']:
                if (t['regime'], t['arm']) == (regime, arm):
                    tried.setdefault(t['lr'], []).append(t['pass_at_1'])
            assert set(tried) == set(study.lrs[regime])
            assert stored['learning_rates'][f'{regime}/{arm}'] == max(
                tried, key=lambda lr: np.mean(tried[lr])
            )
            assert {
                r['lr'] for r in stored['runs'] if (r['regime'], r['arm']) == (regime, arm)
            } == {stored['learning_rates'][f'{regime}/{arm}']}


def test_a_changed_recipe_makes_results_stale():
    stored = load_study('negative_reinforcement')
    stored['runs'][0]['lr'] *= 2
    assert len(stale_runs(stored)) == 1


def test_stored_runs_can_be_compared_by_level():
    stored = load_study('negative_reinforcement')
    for level, count in stored['study']['tests']:
        table = compare(study_runs(stored, 'on-policy', level=level)).table
        assert len(table) == 5
    with pytest.raises(ValueError, match="no level 'impossible'"):
        study_runs(stored, level='impossible')


def test_unknown_studies_are_answered_with_what_there_is():
    with pytest.raises(KeyError, match='negative_reinforcement'):
        study_named('nonsense')
    with pytest.raises(KeyError, match='negative_reinforcement'):
        load_study('nonsense')


def test_a_study_without_stored_results_says_what_makes_them(monkeypatch, tmp_path):
    monkeypatch.setattr(studies, 'ASSETS', tmp_path)
    with pytest.raises(FileNotFoundError, match='rl4llm study lite_ppo'):
        load_study('lite_ppo')


def test_every_stored_study_is_defined_and_nothing_need_be_imported_for_it():
    import subprocess, sys

    code = "from rl4llm.studies.study import STUDIES; print(*STUDIES)"
    known = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True
    ).stdout.split()
    assert known == sorted(known) and set(NAMES) <= set(known) == {
        p.stem for p in (ASSETS / 'studies').glob('*.yaml')
    }


@pytest.mark.parametrize(
    'change, words',
    [
        (('arms:', 'armz:'), ["'armz'", "did you mean 'arms'"]),
        (('arms: [grpo, grpo_clip_higher]', ''), ["lacks the field 'arms'"]),
        (
            ('arms: [grpo, grpo_clip_higher]', 'arms: grpo'),
            ["arms is 'grpo'", 'wanted something like [grpo, grpo_clip_higher]'],
        ),
        (('1.5e-5', '1.5e5'), ['lrs is', 'YAML reads 1.5e5 as text: write 1.5e+5']),
        (('[standard, 60]', '[standard]'), ['tests is', '[[standard, 60], [hard, 60]]']),
        (('name: clip_higher', 'name: clip'), ["name is 'clip'", "wanted 'clip_higher'"]),
        (('arms: [', 'arms: [' * 2), ['is not YAML']),
        (('  four mini-batches: [', '  four: ['), ['lrs are given for four', 'four mini-batches']),
    ],
)
def test_a_wrong_study_file_is_answered_in_one_sentence(change, words, tmp_path):
    right = (ASSETS / 'studies' / 'clip_higher.yaml').read_text()
    assert change[0] in right
    wrong = tmp_path / 'clip_higher.yaml'
    wrong.write_text(right.replace(*change))
    with pytest.raises(ValueError) as error:
        read_study(wrong)
    said = str(error.value)
    assert (
        said.startswith('clip_higher.yaml')
        and all(word in said for word in words)
        and '\n' not in said
    )


def test_a_study_that_was_run_is_stored_where_there_is_none(monkeypatch, tmp_path):
    from typer.testing import CliRunner
    from rl4llm.app.cli import app

    small = Study(
        name='small',
        question='Does it run?',
        task=('countdown', 'easy'),
        tests=(('easy', 2),),
        arms=('positive',),
        regimes={'on-policy': dict(prompts=2, group=4)},
        lrs={'on-policy': (1e-4,)},
        seeds=(0,),
        steps=2,
        every=1,
        samples=4,
        tuning_samples=4,
    )
    monkeypatch.setattr(studies, 'ASSETS', tmp_path)
    monkeypatch.setitem(STUDIES, 'small', small)
    command = ['study', 'small', '--out', str(tmp_path / 'out'), '--workers', '0']
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0 and 'stored: ' in done.output, done.output
    assert load_study('small') == with_repeats(
        json.loads((tmp_path / 'out' / 'small.json').read_text())
    ) and not stale_runs(load_study('small'))
    (tmp_path / 'studies' / 'small.json').write_text('{"runs": []}')
    assert 'stored: ' not in CliRunner().invoke(app, command).output and load_study('small') == {
        'runs': []
    }
    assert (
        'stored: ' in CliRunner().invoke(app, [*command, '--store']).output
        and load_study('small')['study']['name'] == 'small'
    )


MINI = Study(
    name='mini',
    question='Does it run?',
    task=('countdown', 'easy'),
    tests=(('easy', 2), ('standard', 1)),
    arms=('positive', 'negative'),
    regimes={'on-policy': dict(prompts=2, group=4)},
    lrs={'on-policy': (1e-4, 3e-4)},
    seeds=(0, 1),
    steps=2,
    every=1,
    samples=4,
    tuning_samples=4,
    all_rates=True,
    path_tests=(('easy', 1), ('standard', 1)),
    path_samples=4,
)


@pytest.mark.parametrize(
    'change',
    [
        dict(steps=3),
        dict(samples=8),
        dict(path_samples=8),
        dict(every=2),
        dict(path_tests=(('easy', 2),)),
        dict(tests=(('easy', 3),)),
        dict(task=('countdown', 'standard')),
        dict(model='tiny-v2'),
        dict(bf16=False),
        dict(regimes={'on-policy': dict(prompts=2, group=8)}),
    ],
)
def test_what_changes_the_numbers_of_a_job_changes_its_key_and_nothing_else_does(change):
    job = Job('positive', 'on-policy', 1e-4, seed=0, phase='final')
    assert job_key(dataclasses.replace(MINI, **change), job) != job_key(MINI, job)
    assert (
        len(
            {
                job_file('', MINI, job._replace(**other))
                for other in (
                    dict(arm='negative'),
                    dict(lr=3e-4),
                    dict(seed=1),
                    dict(phase='tuning'),
                )
            }
            | {job_file('', MINI, job)}
        )
        == 5
    )
    like = dataclasses.replace(
        MINI,
        name='like',
        question='Another?',
        arms=('positive',),
        seeds=(0,),
        lrs={'mine': (1e-4,)},
        regimes={'mine': dict(group=4, prompts=2)},
    )
    assert job_file('', like, job._replace(regime='mine')) == job_file('', MINI, job)


def test_keys_and_files_of_jobs_are_those_of_runs_that_are_stored_or_under_way():
    job = Job('positive', 'on-policy', 1e-4, seed=0, phase='final')
    assert json.loads(job_key(MINI, job)) == {
        'recipe': 'positive',
        'changes': {'prompts': 2, 'group': 4},
        'lr': 1e-4,
        'seed': 0,
        'task': ['countdown', 'easy'],
        'steps': 2,
        'model': 'tiny',
        'bf16': True,
        'exams': {
            'end': {
                'split': 'test',
                'tests': [['easy', 2], ['standard', 1]],
                'samples': 4,
                'every': None,
            },
            'path': {
                'split': 'test',
                'tests': [['easy', 1], ['standard', 1]],
                'samples': 4,
                'every': 1,
            },
        },
    }
    assert job_file('runs', MINI, job).as_posix() == 'runs/final-positive-0.0001-0-9b486ef4.json'


def test_every_step_size_is_trained_measured_on_the_way_and_gone_on_with_after_an_interruption(
    monkeypatch, tmp_path
):
    "Interrupted after three of eight jobs; the rest follows, in one file a job; a second study with another name takes all of them."
    monkeypatch.setattr(studies, 'ASSETS', tmp_path / 'assets')
    real, done = studies.run_job, []

    def interrupted(study, job, bases):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(job)
        return real(study, job, bases)

    monkeypatch.setattr(studies, 'run_job', interrupted)
    with pytest.raises(KeyboardInterrupt):
        studies.run_study(MINI, tmp_path / 'jobs', workers=0, say=str)
    assert len(list((tmp_path / 'jobs').iterdir())) == 3
    monkeypatch.setattr(studies, 'run_job', lambda *args: done.append(args[1]) or real(*args))
    stored = studies.run_study(MINI, tmp_path / 'jobs', workers=0, say=str)
    assert done == final_jobs(MINI, {}) and len(done) == len({*done}) == 8 == len(
        list((tmp_path / 'jobs').iterdir())
    )
    whole = with_repeats(stored)
    assert (
        without_repeats(whole) == stored
        and [[e['step'] for e in r['path']] for r in whole['runs']] == [[0, 1, 2]] * 8
    )
    assert (
        json.loads(
            json.dumps(
                studies.run_study(
                    dataclasses.replace(MINI, name='like'), tmp_path / 'jobs', workers=0, say=str
                )['runs']
            )
        )
        == json.loads(json.dumps(stored['runs']))
        and len(done) == 8
    )


def test_a_run_stored_in_one_study_is_the_run_of_every_other_that_asks_for_it(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(studies, 'ASSETS', tmp_path)
    small = dataclasses.replace(MINI, arms=('positive',), seeds=(0,), path_tests=())
    wider = dataclasses.replace(
        small,
        name='wider',
        arms=('negative', 'positive'),
        regimes={'mine': small.regimes['on-policy']},
        lrs={'mine': small.lrs['on-policy']},
    )
    for study in (small, wider):
        monkeypatch.setitem(STUDIES, study.name, study)
    studies.save_study(studies.run_study(small, tmp_path / 'a', workers=0, say=str))
    said = []
    studies.save_study(studies.run_study(wider, tmp_path / 'b', workers=0, say=said.append))
    assert len(said) == 2 and all('negative' in line for line in said)
    first, second = stored_jobs(load_study('mini')), stored_jobs(load_study('wider'))
    assert first.keys() < second.keys() and all(
        {**second[key], 'regime': ''} == {**first[key], 'regime': ''} for key in first
    )
    assert repeated_jobs()[['records', 'first_form']].values.tolist() == [[1, False]] * 2
    old = {**load_study('mini'), 'schema': 1}  # a record of the first form is nobody else's
    studies.save_study(old)
    assert not studies.shared_records(wider)


def test_studies_that_share_a_run_hold_one_record_of_it_unless_stored_before_records_were_shared():
    table = repeated_jobs()
    assert len(table) and (table['records'].eq(1) | table['first_form']).all()


@pytest.mark.slow
@pytest.mark.takes_turns
@pytest.mark.parametrize(
    'path',
    [
        'nbs/advantages/02_negative_reinforcement.ipynb',
        'nbs/app/00_demonstration.ipynb',
        'nbs/training/07_pretraining.ipynb',
        *sorted(str(p.relative_to(TOP)) for p in TOP.glob('tutorials/0*.ipynb')),
    ],
)
def test_demos_run_dry_under_the_gpu_preset(path):
    import nbformat
    from nbclient import NotebookClient
    from unittest.mock import patch

    with patch.dict(
        os.environ, {'RL4LLM_PRESET': 'gpu', 'RL4LLM_DRY_RUN': '1', 'TQDM_DISABLE': '1'}
    ):
        done = NotebookClient(
            nbformat.read(TOP / path, 4),
            timeout=600,
            resources={'metadata': {'path': str((TOP / path).parent)}},
        ).execute()
    assert sum(bool(c.get('outputs')) for c in done.cells) >= 3


def test_the_command_knows_every_study():
    import subprocess, sys

    done = subprocess.run(
        [Path(sys.executable).parent / 'rl4llm', 'study', 'nothing'], capture_output=True, text=True
    )
    assert done.returncode != 0 and all(name in done.stdout + done.stderr for name in NAMES)


def test_runs_of_a_study_are_of_one_task_though_a_dial_came_later():
    "Arms shared with an older study tell the task without the dials that it has gained."
    stored = load_study('random_valuation')
    assert len({record['task'] for record in stored['runs']}) == 2
    assert len({run.task for run in study_runs(stored)}) == 1
