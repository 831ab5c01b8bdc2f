"""Maps of where a claim holds: cells recomputed from counts, dials, words, and what is refused."""

import copy
import dataclasses
import math

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from rl4llm.app.cli import app
from rl4llm.atlas.claims import CLAIMS
from rl4llm.atlas.regime_maps import (
    DIALS,
    MAPS,
    RegimeMap,
    map_cells,
    map_named,
    map_sentence,
    maps_of_claim,
    maps_of_study,
    maps_table,
    measured_cell,
    plot_map,
    read_map,
    readable_cells,
    study_of_map,
)
from rl4llm.studies.comparison import holm
from rl4llm.studies.study import earlier_arms, load_study, stale_runs, study_file, study_runs
from rl4llm.tasks import task
from rl4llm.tasks.countdown import all_solutions

pytestmark = pytest.mark.skipif(
    not study_file('frontier').exists(), reason='stored runs come with the source tree alone'
)


TOLD = [name for name in MAPS if study_of_map(name) == 'frontier']


@pytest.fixture(scope='module')
def stored():
    return load_study('frontier')


def reach(n, c, k):
    miss = 1.0
    for i in range(k):
        miss *= max(0, n - c - i) / (n - i)
    return 1 - miss


def keys_of(stored, exam):
    tests = stored['study']['path_tests' if exam == 'path' else 'tests']
    return [
        (level, item)
        for level, count in tests
        for item in task('countdown', level).sample(count, seed=0, split='test')
    ]


def share(stored, arm, lr, step, k, exam, keep):
    "Mean pass@k over seeds and the problems that `keep` lets through, by hand."
    found = []
    for run in stored['runs']:
        if (run['arm'], run['lr']) != (arm, lr):
            continue
        (taken,) = [e for e in run[exam] if e['step'] == step]
        counts = zip(keys_of(stored, exam), taken['num_samples'], taken['num_correct'])
        found += [reach(n, c, k) for (level, item), n, c in counts if keep(level, item)]
    return float(np.mean(found))


def test_cells_are_the_counts_of_the_stored_file(stored):
    cells = map_cells('nsr_steps').set_index(['step size', 'steps'])
    for lr, step in ((3e-5, 20), (1e-4, 100), (3e-4, 50)):
        arms = [
            share(stored, arm, lr, step, 64, 'path', lambda level, item: True)
            for arm in ('negative', 'positive')
        ]
        assert cells.loc[(lr, step), 'difference'] == pytest.approx(arms[0] - arms[1], abs=1e-9)
        one = share(stored, 'negative', lr, step, 1, 'path', lambda level, item: True)
        base = share(stored, 'negative', lr, 0, 1, 'path', lambda level, item: True)
        assert cells.loc[(lr, step), 'gain'] == pytest.approx(one - base, abs=1e-9)


def test_answers_choose_problems_by_all_their_solutions(stored):
    cells = map_cells('nsr_answers').set_index(['step size', 'answers'])
    count = {item.key: len(all_solutions(item)) for _, item in keys_of(stored, 'evaluations')}
    for low, below in ((1, 5), (15, math.inf)):

        def keep(level, item, low=low, below=below):
            return low <= count[item.key] < below

        arms = [
            share(stored, arm, 1e-4, 100, 256, 'evaluations', keep)
            for arm in ('negative', 'positive')
        ]
        cell = cells.loc[[(1e-4, (low, below))]].iloc[0]
        assert cell['difference'] == pytest.approx(arms[0] - arms[1], abs=1e-9)
        assert cell['problems'] == sum(low <= n < below for n in count.values())


def test_every_problem_is_in_one_range(stored):
    for name in ('nsr_problems', 'nsr_answers'):
        cells = map_cells(name)
        assert set(cells.groupby('step size')['problems'].sum()) == {300}


def test_tries_are_a_dial_and_the_base_has_no_seeds_of_its_own(stored):
    cells = map_cells('psr_tries').set_index(['step size', 'k'])
    whole = lambda level, item: True  # noqa: E731
    mine = share(stored, 'positive', 3e-5, 100, 32, 'evaluations', whole)
    base = share(stored, 'positive', 3e-5, 0, 32, 'evaluations', whole)
    assert cells.loc[(3e-5, 32), 'difference'] == pytest.approx(mine - base, abs=1e-9)
    assert (cells['seeds'] == 5).all()


def test_p_values_are_corrected_over_the_cells_that_are_asked():
    for name in TOLD:
        cells = map_cells(name)
        asked = cells['p_holm'].notna()
        assert np.allclose(cells.loc[asked, 'p_holm'], holm(cells.loc[asked, 'p'].to_numpy()))
        assert not cells.loc[asked, 'broken'].any()
        told = cells['says'].isin(['as predicted', 'against it', 'above', 'below'])
        assert (cells.loc[told, 'p_holm'] < 0.05).all()
        assert (cells.loc[asked & ~told, 'p_holm'] >= 0.05).all()


def test_words_follow_the_prediction():
    cells = map_cells('psr_tries')
    told = cells[cells['says'] == 'as predicted'].set_index('k')
    assert (told.loc[[1], 'low'] > 0).all() and (told.loc[[256], 'high'] < 0).all()
    assert set(told.index) == {1, 256}  # nothing is predicted between the two
    assert (cells.loc[cells['says'] == 'above', 'low'] > 0).all()
    assert (cells.loc[cells['says'] == 'below', 'high'] < 0).all()
    turned = dataclasses.replace(
        MAPS['psr_tries'], expects={1: 'lower', 4: '', 32: '', 256: 'higher'}
    )
    other = map_cells(turned)
    assert ((other['says'] == 'against it') == (cells['says'] == 'as predicted')).all()
    margin = map_cells('nsr_base')
    against = margin['says'] == 'against it'
    assert (margin.loc[against, 'high'] < -0.05).all() and against.any()


def test_swapped_arms_turn_every_difference_round(stored):
    turned = copy.deepcopy(stored)
    other = {'negative': 'positive', 'positive': 'negative'}
    for run in turned['runs']:
        run['arm'] = other.get(run['arm'], run['arm'])
    right = map_cells('nsr_steps', stored)['difference']
    assert np.allclose(map_cells('nsr_steps', turned)['difference'], -right)


def test_too_few_seeds_and_a_broken_control_say_so(stored):
    few = dict(stored, runs=[run for run in stored['runs'] if run['seed'] < 2])
    assert set(map_cells('nsr_steps', few)['says']) == {'too little'}
    broken = copy.deepcopy(stored)
    for run in broken['runs']:
        if run['arm'] == 'positive':
            for exam in run['path'][1:]:
                exam['num_correct'] = [0] * len(exam['num_correct'])
    assert set(map_cells('nsr_steps', broken)['says']) == {'control fell apart'}


def test_a_control_is_judged_by_all_its_problems(stored):
    cells = map_cells('nsr_problems', stored)
    assert not cells['broken'].any()
    assert (cells.groupby('step size')['gain'].nunique() == 1).all()
    whole = share(stored, 'negative', 1e-4, 100, 1, 'evaluations', lambda level, item: True)
    base = share(stored, 'negative', 1e-4, 0, 1, 'evaluations', lambda level, item: True)
    assert cells.set_index('step size').loc[1e-4, 'gain'].iloc[0] == pytest.approx(whole - base)


def test_a_cell_without_problems_is_empty(stored):
    found = RegimeMap(
        name='none',
        claim='nsr_keeps',
        part=2,
        level='all',
        paper='',
        dials={'step size': (3e-5, 1e-4), 'answers': ((1, 900), (900, 1000))},
    )
    cells = map_cells(found, stored)
    empty = cells['problems'] == 0
    assert empty.sum() == 2 and set(cells.loc[empty, 'says']) == {'too little'}
    plot_map(found, stored=stored)


def test_the_gain_marks_what_is_like_the_paper():
    for name in TOLD:
        found = MAPS[name]
        cells = map_cells(name)
        low, high = found.paper_gain
        assert cells['like the paper'].equals(cells['gain'].between(low, high))


def test_what_was_not_measured_is_refused(stored):
    runs = study_runs(stored, exam='path')
    with pytest.raises(ValueError, match='nothing was measured after 15 steps, only after 0, 10'):
        measured_cell(map_named('nsr_steps'), {'steps': 15}, runs)
    with pytest.raises(ValueError, match='was not trained at 0.5'):
        measured_cell(map_named('nsr_steps'), {'step size': 0.5}, runs)
    lonely = [run for run in runs if run.method != 'positive']
    with pytest.raises(ValueError, match='on-policy/positive was not trained'):
        measured_cell(map_named('nsr_steps'), {}, lonely)


GOOD = """
name: mine
claim: nsr_keeps
part: 2
metric: pass@64
dials: {step size: [3.0e-5, 1.0e-4], steps: [20, 100]}
paper: larger
"""


@pytest.mark.parametrize(
    'old, new, said',
    [
        ('part: 2', 'part: 7', 'part is 7, and the claim'),
        ('part: 2', 'part: 3', 'is read at equal pass@1'),
        ('pass@64', 'pass@x', 'wanted pass@ and a number of tries'),
        ('paper: larger', 'paper: larger\npaper_gain: [0.2, 0.1]', 'the least and the largest'),
        ('paper: larger', 'paper: larger\npaper_gain: [0.2]', 'paper_gain'),
        ('steps: [20, 100]', 'answers: [[1, 5], [4, 9]]', 'wanted ranges'),
        ('steps: [20, 100]', 'answers: [[5, 1], [5, 9]]', 'wanted ranges'),
        ('steps: [20, 100]', 'answers: [1, 5]', 'wanted ranges'),
        ('claim: nsr_keeps', 'claim: nsr_kept', 'nsr_keeps'),
        ('steps: [20, 100]', 'width: [20, 100]', 'wanted two of step size'),
        (', steps: [20, 100]', '', 'wanted two of step size'),
        ('steps: [20, 100]', 'steps: [20]', 'wanted two values or more'),
        ('part: 2', 'colour: red', 'colour'),
        ('name: mine', 'name: yours', 'like the file'),
    ],
)
def test_a_wrong_file_is_answered(tmp_path, old, new, said):
    file = tmp_path / 'mine.yaml'
    file.write_text(GOOD)
    assert read_map(file)['claim'] == 'nsr_keeps'
    file.write_text(GOOD.replace(old, new))
    with pytest.raises((ValueError, KeyError), match=said):
        read_map(file)


def test_a_metric_of_training_has_no_dial_of_problems(tmp_path):
    file = tmp_path / 'mine.yaml'
    text = GOOD.replace('pass@64', 'entropy')
    file.write_text(text)
    assert read_map(file)['metric'] == 'entropy'
    file.write_text(text.replace('steps: [20, 100]', 'k: [4, 8]'))
    with pytest.raises(ValueError, match="'entropy' is a metric of training; wanted pass@"):
        read_map(file)


def test_metrics_are_means_of_ten_steps_paired_by_seed(stored):
    found = RegimeMap(
        name='falls',
        claim='nsr_keeps',
        part=2,
        metric='entropy',
        paper='',
        dials={'step size': (3e-5, 3e-4), 'steps': (20, 100)},
    )
    cells = map_cells(found, stored).set_index(['step size', 'steps'])
    for lr, step in ((3e-5, 20), (3e-4, 100)):
        ends = {}
        for run in stored['runs']:
            if run['lr'] == lr and run['arm'] in ('negative', 'positive'):
                last = run['metrics']['entropy'][step - 10 : step]
                ends[run['arm'], run['seed']] = sum(last) / 10
        gaps = np.array([ends['negative', seed] - ends['positive', seed] for seed in range(5)])
        cell = cells.loc[(lr, step)]
        assert cell['difference'] == pytest.approx(gaps.mean(), abs=1e-9)
        half = stats.t.ppf(0.975, 4) * gaps.std(ddof=1) / math.sqrt(5)
        assert cell['high'] - cell['difference'] == pytest.approx(half, rel=1e-6)


def test_both_arms_are_in_the_regime_of_a_cell():
    old = load_study('negative_reinforcement')
    found = RegimeMap(
        name='updates',
        claim='nsr_keeps',
        part=2,
        metric='pass@256',
        study='negative_reinforcement',
        level='all',
        paper='',
        dials={'regime': ('on-policy', 'four mini-batches'), 'steps': (50, 100)},
    )
    cells = map_cells(found, old).set_index(['regime', 'steps'])
    whole = lambda level, item: True  # noqa: E731
    for regime, lr in (('on-policy', 1e-4), ('four mini-batches', 5e-5)):
        part = dict(old, runs=[run for run in old['runs'] if run['regime'] == regime])
        arms = [
            share(part, arm, lr, 50, 256, 'evaluations', whole) for arm in ('negative', 'positive')
        ]
        assert cells.loc[(regime, 50), 'difference'] == pytest.approx(arms[0] - arms[1], abs=1e-9)
    assert 'older than a change' in map_sentence(found) or not stale_or_earlier(old)


def stale_or_earlier(stored):
    return bool(stale_runs(stored) or earlier_arms(stored))


def test_the_base_does_not_choose_problems_that_it_is_compared_on(tmp_path):
    file = tmp_path / 'mine.yaml'
    bins = 'base accuracy: [[0, 0.1], [0.1, 1]]'
    file.write_text(GOOD.replace('part: 2', 'part: 1').replace('steps: [20, 100]', bins))
    with pytest.raises(ValueError, match='the same counts of the base would choose'):
        read_map(file)


def test_maps_are_of_claims_and_every_dial_is_told():
    assert all(found.claim in CLAIMS for found in MAPS.values())
    used = {dial for found in MAPS.values() for dial in found.dials}
    assert used <= set(DIALS)
    assert [found.name for found in maps_of_claim('psr_narrows')] == ['psr_tries']
    assert [found.name for found in maps_of_study('frontier')] == TOLD
    assert [found.name for found in maps_of_study('updates_map')] == ['clip_updates']
    assert maps_of_study('clip_higher') == []
    with pytest.raises(KeyError):
        map_named('nothing')


def test_sentence_table_and_text_say_the_same():
    table = maps_table()
    for name in set(MAPS) - set(TOLD):
        assert study_file(study_of_map(name)).exists() or 'not stored' in table.loc[name, 'says']
    for name in TOLD:
        assert table.loc[name, 'says'] in map_sentence(name)
        words = readable_cells(name)['says'].value_counts()
        assert all(f'{count} {word}' in map_sentence(name) for word, count in words.items())


def test_picture_has_a_number_for_each_cell():
    ax = plot_map('grpo_tries')
    cells = map_cells('grpo_tries')
    shown = {text.get_text() for text in ax.texts}
    assert {f'{x:+.2f}' for x in cells['difference']} <= shown
    assert len(ax.patches) == (cells['says'] != 'not told').sum() > 6


def test_the_command_prints_and_draws(tmp_path):
    done = CliRunner().invoke(app, ['study', 'frontier', '--map', '--out', str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert {file.stem for file in tmp_path.glob('*.png')} == set(TOLD)
    assert 'as predicted' in done.output
    none = CliRunner().invoke(app, ['study', 'clip_higher', '--map'])
    assert none.exit_code != 0
