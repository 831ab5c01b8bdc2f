"""Frontiers: read by hand, judged in worlds where the truth is known, and one verdict for everybody."""

import dataclasses
import json
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from typer.testing import CliRunner

from rl4llm.analysis.passk import pass_at_k
from rl4llm.studies import frontiers, study as studies
from rl4llm.studies.frontiers import (
    FrontierVerdict,
    Path,
    change_at,
    dominance,
    frontier,
    frontier_differences,
    frontier_interval,
    frontier_table,
    frontier_verdict,
    first_gain,
    furthest,
    measured_frontiers,
    path_from_counts,
    paths_at_the_end,
    paths_on_the_way,
    plot_frontiers,
    shared_gains,
    store_frontiers,
    study_paths,
    verdict_file,
)
from rl4llm.studies.study import STUDIES, Study, load_study, stale_runs, study_file, study_runs


def straight(
    method, rise, change, *, name='lr 1', seeds=5, problems=60, luck=0.004, noise=0.01, seed=0
):
    "A path of two points: pass@1 rises from .2 by `rise`, pass@k changes from .8 by `change`, both with noise around."
    rng = np.random.default_rng((seed, len(method), int(abs(1000 * rise))))
    end = change + luck * rng.normal(size=(seeds, 1)) + noise * rng.normal(size=(seeds, problems))
    first = np.stack([np.full((seeds, problems), 0.2), np.full((seeds, problems), 0.2 + rise)])
    return Path(method, name, (0, 1), first, np.stack([np.full((seeds, problems), 0.8), 0.8 + end]))


@pytest.mark.parametrize(
    'first, reach, gain, want',
    [
        ([0.2, 0.3, 0.4], [0.5, 0.54, 0.48], 0.05, 0.02),
        ([0.2, 0.3, 0.4], [0.5, 0.54, 0.48], 0.10, 0.04),
        ([0.2, 0.3, 0.4], [0.5, 0.54, 0.48], 0.15, 0.01),
        ([0.2, 0.3, 0.4], [0.5, 0.54, 0.48], 0.21, np.nan),
        ([0.2, 0.3, 0.25, 0.4], [0.5, 0.6, 0.7, 0.9], 0.08, 0.08),
        ([0.2, 0.1, 0.4], [0.5, 0.4, 0.7], 0.10, 0.10),
        ([0.2, 0.1, 0.05], [0.5, 0.4, 0.7], 0.01, np.nan),
    ],
)
def test_a_path_is_read_where_it_first_gets_there(first, reach, gain, want):
    assert change_at(np.array([first]), np.array([reach]), [gain])[0, 0] == pytest.approx(
        want, nan_ok=True
    )


def test_copies_are_read_one_by_one():
    first, reach = np.random.default_rng(0).uniform(size=(2, 50, 6))
    gains = [0.05, 0.2, 0.4]
    assert np.allclose(
        change_at(first, reach, gains),
        np.concatenate([change_at(a[None], b[None], gains) for a, b in zip(first, reach)]),
        equal_nan=True,
    )
    with pytest.raises(ValueError, match='above zero'):
        change_at(first, reach, [0.0])


def test_the_frontier_is_the_best_path_at_each_level_and_of_those_that_get_there():
    short, long = (
        straight('a', 0.1, 0.05, luck=0, noise=0),
        straight('a', 0.3, -0.09, luck=0, noise=0),
    )
    assert frontier([short, long], [0.08, 0.2, 0.4])[0] == pytest.approx(
        [0.04, -0.06, np.nan], nan_ok=True
    )
    assert furthest([short, long]) == pytest.approx(0.3)
    assert shared_gains([short, long, straight('b', 0.2, 0)], 2, 0.5) == pytest.approx([0.05, 0.1])
    with pytest.raises(ValueError, match='b never rises'):
        shared_gains([short, straight('b', -0.1, 0)])


def test_of_a_method_that_never_rises_nothing_is_told_and_the_others_are_compared():
    paths = [straight('a', 0.2, -0.02), straight('b', -0.1, 0), straight('c', 0.2, -0.2)]
    alone = frontier_table(paths).set_index('method')['verdict']
    assert alone['b'] == 'cannot be told' and alone['c'] == 'lower'
    pairs = frontier_differences(paths).set_index(['method', 'minus'])['verdict']
    assert pairs['b', 'a'] == pairs['c', 'b'] == 'cannot be told'
    assert pairs['c', 'a'] == 'lower'
    lone = frontier_table([straight('b', -0.1, 0)])
    assert lone['verdict'].tolist() == ['cannot be told']
    readings = measured_frontiers(made_up_study(falls='narrower'))['readings']
    verdict = FrontierVerdict('world', tuple(json.loads(json.dumps(readings))))
    assert set(verdict.changes.loc['narrower']) == {'pass@1 never rises'}
    assert 'narrower and keeper do not reach the same pass@1' in verdict.headline
    assert all('cannot be told' in sentence for sentence in verdict.sentences)


def test_the_interval_is_that_of_the_formula_where_there_is_one():
    "Means over seeds and problems, each variance with its own t quantile; a bootstrap that lacks 1/S, or a plain 1.96, is found out."
    path = straight('a', 0.1, 0.05, seeds=4, problems=9, luck=0.1, noise=0.1)
    values = path.reach[1] - 0.8
    parts = [
        stats.t.ppf(0.975, 3) ** 2 * values.mean(1).var(ddof=1) / 4,
        stats.t.ppf(0.975, 8) ** 2 * values.mean(0).var(ddof=1) / 9,
    ]
    found = frontier_interval([path], [0.1], resamples=40_000)
    assert found.mean[0] == pytest.approx(values.mean())
    half_width = found.high[0] - found.mean[0]
    assert half_width == pytest.approx(np.sqrt(sum(parts)), rel=0.02)
    other = straight('bb', 0.1, 0.01, seeds=4, problems=9, luck=0.1, noise=0.1)
    gap, seconds = values.mean(0) - (other.reach[1] - 0.8).mean(0), (other.reach[1] - 0.8).mean(1)
    parts = [
        parts[0],
        stats.t.ppf(0.975, 3) ** 2 * seconds.var(ddof=1) / 4,
        stats.t.ppf(0.975, 8) ** 2 * gap.var(ddof=1) / 9,
    ]
    found = frontier_interval([path], [0.1], [other], resamples=40_000)
    assert found.high[0] - found.mean[0] == pytest.approx(np.sqrt(sum(parts)), rel=0.02)
    assert (found.p[0] < 0.05) == (found.low[0] > 0 or found.high[0] < 0)
    again, elsewhere = (frontier_interval([path], [0.1], [other], seed=s) for s in (0, 1))
    assert (
        again == frontier_interval([path], [0.1], [other])
        and again.low != elsewhere.low
        and again.mean == elsewhere.mean
    )


def some_paths(method, points, *, seeds=5, problems=12, seed=0):
    "Wandering paths of one method, one for each number of points, with a base of their own problems."
    rng = np.random.default_rng((seed, len(method)))
    base = np.random.default_rng(99).uniform(0.1, 0.3, size=(1, 1, problems))
    made = []
    for number, count in enumerate(points):
        steps = rng.normal(0.06, 0.05, size=(count, seeds, problems)).cumsum(0)
        moved = rng.normal(-0.02, 0.05, size=(count, seeds, problems)).cumsum(0)
        start = np.broadcast_to(base, (1, seeds, problems))
        made.append(
            Path(
                method,
                f'lr {number}',
                tuple(range(count + 1)),
                np.concatenate([start, start + steps]),
                np.concatenate([start + 0.5, start + 0.5 + moved]),
            )
        )
    return made


def read_by_hand(paths, gain, seeds, problems):
    "The frontier at one gain, of these seeds and problems (with repeats), segment by segment."
    found = []
    for path in paths:
        first, reach = (
            [float(np.mean([[point[s][p] for p in problems] for s in seeds])) for point in part]
            for part in (path.first, path.reach)
        )
        for i in range(len(first) - 1):
            low, high = first[i] - first[0], first[i + 1] - first[0]
            if high < gain:
                continue
            found.append(
                float(np.interp(gain, [low, high], [reach[i] - reach[0], reach[i + 1] - reach[0]]))
            )
            break
    return max(found) if found else np.nan


def test_the_band_is_that_of_a_slow_reading_of_the_same_copies():
    "Copy by copy with loops: interpolation, the best path, the variance over copies times S / (S - 1), and each with the t quantile of its own degrees of freedom."
    one, other, gains, copies = some_paths('a', (2, 3)), some_paths('bb', (3, 4)), [0.05, 0.1], 40
    rng = np.random.default_rng(0)
    draws = [rng.multinomial(size, [1 / size] * size, size=copies) for size in (12, 5, 5)]
    problems, seeds, seconds = (
        [np.repeat(np.arange(len(row)), row) for row in drawn] for drawn in draws
    )
    every, all_seeds = range(12), range(5)
    found = frontier_interval(one, gains, other, resamples=copies)
    for i, gain in enumerate(gains):
        gap = lambda p: (
            read_by_hand(one, gain, all_seeds, p) - read_by_hand(other, gain, all_seeds, p)
        )
        moved = [
            [gap(p) for p in problems],
            [read_by_hand(one, gain, s, every) for s in seeds],
            [read_by_hand(other, gain, s, every) for s in seconds],
        ]
        assert np.isfinite(moved).all()
        half = np.sqrt(
            sum(
                stats.t.ppf(0.975, size - 1) ** 2 * np.var(m) * size / (size - 1)
                for m, size in zip(moved, (12, 5, 5))
            )
        )
        assert [found.mean[i], found.low[i], found.high[i]] == pytest.approx(
            [gap(every), gap(every) - half, gap(every) + half]
        )
        assert (found.p[i] < 0.05) == (abs(gap(every)) > half)


def test_corrected_words_by_a_slow_rule():
    "Holm as it is told: the smallest p times the number of hypotheses, the next times one less, never falling; a pair dominates if all that can be told is higher."
    rng = np.random.default_rng(0)
    for _ in range(200):
        p = np.where(rng.uniform(size=5) < 0.2, np.nan, rng.uniform(0, 0.05, size=5))
        rows = [
            dict(difference=d, p=x, seeds=5)
            for d, x in zip(rng.choice([-1.0, 1.0], p=[0.2, 0.8], size=5), p)
        ]
        known = sorted(x for x in p if x == x)
        least, corrected = 0.0, {}
        for i, x in enumerate(known):
            least = max(least, min(1, x * (len(known) - i)))
            corrected[x] = least
        words = [
            'cannot be told'
            if x != x
            else 'no difference shown'
            if corrected[x] >= 0.05
            else 'higher'
            if row['difference'] > 0
            else 'lower'
            for x, row in zip(p, rows)
        ]
        table = frontiers._judged(rows)
        assert table['verdict'].tolist() == words and table[
            'p_holm'
        ].dropna().tolist() == pytest.approx([corrected[x] for x in p if x == x])
        told = {w for w in words if w != 'cannot be told'}
        wanted = {
            frozenset(): 'cannot be told',
            frozenset(['higher']): 'dominates',
            frozenset(['lower']): 'is dominated',
            frozenset(['no difference shown']): 'no difference shown',
        }
        assert dominance(words) == wanted.get(
            frozenset(told),
            'crosses'
            if {'higher', 'lower'} <= told
            else 'higher in part'
            if 'higher' in told
            else 'lower in part',
        )


def test_seeds_of_a_method_are_in_step_over_its_step_sizes():
    "They are redrawn as one: the order in which runs were stored changes nothing, and a missing one is refused."
    runs = studies.study_runs(made_up_study(), exam='path')
    shuffled = [runs[i] for i in np.random.default_rng(0).permutation(len(runs))]
    by_name = lambda paths: {(path.method, path.name): path for path in paths}
    one, other = by_name(paths_on_the_way(runs, 4)), by_name(paths_on_the_way(shuffled, 4))
    assert all(
        np.allclose(path.first.mean(2), other[name].first.mean(2))
        and np.allclose(path.reach.mean(2), other[name].reach.mean(2))
        for name, path in one.items()
    )
    fewer = paths_on_the_way(runs[1:], 4)
    seeds = {len(path.seed_names) for path in fewer}
    assert seeds == {4, 5} and all(path.seed_names == (0, 1, 2, 3, 4) for path in one.values())


def test_a_step_size_with_fewer_seeds_is_read_with_those_it_has():
    "As with loops over the copies: a path with two of five seeds is the mean of those of its seeds that were drawn, and nothing where none was."
    whole, part = some_paths('a', (2, 3))
    few = part._replace(first=part.first[:, :2], reach=part.reach[:, :2], seeds=(0, 1))
    drawn = np.array([[1.0, 0, 2, 1, 1], [0, 0, 3, 1, 1], [2, 1, 1, 1, 0]])
    found = frontier([whole, few], [0.05], seeds=drawn)[:, 0]
    for copy, counts in zip(found, drawn):
        values = []
        for path, own in ((whole, counts), (few, counts[:2])):
            if own.sum():
                seeds = np.repeat(np.arange(len(own)), own.astype(int))
                values.append(read_by_hand([path], 0.05, seeds, range(12)))
        assert copy == pytest.approx(np.nanmax(values))
    assert frontiers.all_seeds([whole, few]) == (0, 1, 2, 3, 4)


def test_problems_are_paired_and_must_be_the_same():
    rng = np.random.default_rng(0)
    hardness = 0.3 * rng.normal(size=60)

    def path(method, shift):
        made = straight(method, 0.1, shift, luck=0, noise=0)
        return made._replace(reach=np.stack([made.reach[0], made.reach[1] + hardness]))

    band = frontier_interval([path('a', 0.1)], [0.05], [path('b', 0.05)])
    assert band.mean == pytest.approx(0.025) and band.high - band.low == pytest.approx(0, abs=1e-9)
    with pytest.raises(ValueError, match='same problems'):
        frontier_interval([straight('a', 0.1, 0)], [0.1], [straight('b', 0.1, 0, problems=10)])


def test_step_size_does_not_decide_between_methods():
    "The fault this is for: at its last step the quick method is lower, at equal pass@1 higher."
    quick, slow = straight('quick', 0.3, -0.09), straight('slow', 0.1, -0.05)
    table = frontier_differences([slow, quick])
    assert (
        quick.reach[1].mean() < slow.reach[1].mean()
        and dominance(table['verdict']) == 'dominates'
        and set(table['method']) == {'quick'}
    )
    assert dominance(frontier_differences([quick, slow])['verdict']) == 'is dominated'
    verdicts = []
    for seed in range(40):
        lucky = [straight(name, 0.2, -0.05, luck=0.05, seed=seed) for name in ('a', 'bb')]
        verdicts.append(dominance(frontier_differences(lucky)['verdict']))
    assert verdicts.count('no difference shown') >= 36, 'one curve, two samples of it'
    assert (
        set(frontier_table([slow, quick])['verdict']) == {'lower'}
        and (frontier_table([slow, quick])['p_holm'] >= frontier_table([slow, quick])['p']).all()
    )
    assert (
        dominance(frontier_differences([straight('quick', 0.3, -0.09, seeds=4), slow])['verdict'])
        == 'no verdict yet'
    )


def test_the_correction_is_over_the_whole_table():
    "By hand: p-values of .01, .02, .03 become .03, .04, .04, and those that cannot be told do not count."
    rows = [dict(difference=1.0, p=p, seeds=5) for p in (0.03, 0.01, np.nan, 0.02)]
    table = frontiers._judged(rows)
    assert table['p_holm'].tolist() == pytest.approx(
        [0.04, 0.03, np.nan, 0.04], nan_ok=True
    ) and table['verdict'].tolist() == ['higher', 'higher', 'cannot be told', 'higher']
    assert (
        frontiers._judged([dict(difference=-1.0, p=p, seeds=5) for p in (0.02, 0.03, 0.04)])[
            'verdict'
        ].tolist()
        == ['no difference shown'] * 3
    )


def test_a_level_that_too_few_copies_reach_cannot_be_told():
    "One seed of five carries the whole rise: every third copy is without it."
    path = straight('a', 0.1, 0.1)
    first = np.array(path.first)
    first[1] = 0.2
    first[1, 0] = 0.7
    found = frontier_interval([path._replace(first=first)], [0.05, 0.2])
    assert np.isnan(found.mean).all() and np.isnan(found.low).all() and np.isnan(found.p).all()


WORLD = Study(
    name='world',
    question='?',
    task=('countdown', 'easy'),
    tests=(('easy', 100), ('hard', 100)),
    arms=('keeper', 'narrower'),
    regimes={'r': {}},
    lrs={'r': (1e-4, 2e-4)},
    steps=20,
    every=10,
    samples=16,
    all_rates=True,
    path_tests=(('easy', 80), ('hard', 80)),
    path_samples=8,
)


def made_up_study(study=WORLD, seeds=range(5), falls=None):
    """Stored runs: pass@1 rises alike, keeper keeps all problems, narrower loses the last ones.

    falls: an arm that loses pass@1 from the first step on.
    """

    def evaluation(step, lr, seed, arm, tests, n):
        rng, counts, keys = (
            np.random.default_rng((seed, int(lr * 1e5), len(arm), n) if step else n),
            [],
            [],
        )
        for level, many in tests:
            progress = step / 20 * lr * 5e3
            within = np.arange(many) < many * (1 - 0.3 * progress * (arm == 'narrower'))
            ease = 0.3 + (-0.2 if arm == falls else 0.2) * progress
            counts += rng.binomial(n, within * ease / within.mean()).tolist()
            keys += [f'{level}|{i}' for i in range(many)]
        return dict(
            step=step,
            task='countdown',
            keys=keys,
            num_samples=[n] * len(keys),
            num_correct=counts,
            seed=0,
            model='m',
            temperature=1.0,
            extras=dict(distinct=[0] * len(keys)),
        )

    runs = [
        dict(
            arm=arm,
            regime='r',
            lr=lr,
            seed=seed,
            phase='final',
            fingerprint='',
            model='m',
            weights='',
            task='t',
            seconds=0,
            versions={},
            metrics={},
            evaluations=[evaluation(s, lr, seed, arm, study.tests, 16) for s in (0, 20)],
            path=[evaluation(s, lr, seed, arm, study.path_tests, 8) for s in (0, 10, 20)],
        )
        for seed in seeds
        for arm in study.arms
        for lr in study.lrs['r']
    ]
    return dict(
        schema=2,
        study=json.loads(json.dumps(dataclasses.asdict(study))),
        command='',
        learning_rates={},
        tuning=[],
        runs=runs,
    )


def test_paths_of_a_stored_study_hold_its_counts():
    stored = made_up_study()
    paths = study_paths(stored, 'path', 'hard', 4)
    assert [(p.method, p.name, p.points) for p in paths] == [
        (arm, f'lr {lr:g}', (0, 10, 20)) for arm in WORLD.arms for lr in (1e-4, 2e-4)
    ]
    record = next(
        r for r in stored['runs'] if (r['arm'], r['lr'], r['seed']) == ('narrower', 2e-4, 3)
    )
    assert np.allclose(
        paths[3].reach[2, 3], pass_at_k(8, record['path'][2]['num_correct'][80:], 4)
    ) and np.allclose(paths[3].first[2, 3], np.array(record['path'][2]['num_correct'][80:]) / 8)
    ends = study_paths(stored, 'evaluations', None, 16)
    assert [p.method for p in ends] == list(WORLD.arms)
    assert {p.points for p in ends} == {('base', '0.0001', '0.0002')}
    assert ends[0].first.shape == (3, 5, 200)
    assert np.allclose(ends[1].first[2, 3], np.array(record['evaluations'][1]['num_correct']) / 16)
    assert len(plot_frontiers(paths, 4).lines) >= len(paths)


def test_unfinished_studies_are_refused_with_the_reason():
    runs = studies.study_runs(made_up_study(), exam='path')
    runs[0].evaluations.pop(10)
    with pytest.raises(ValueError, match='different steps'):
        paths_on_the_way(runs, 4)
    lacking = paths_at_the_end(studies.study_runs(made_up_study())[1:], 4)
    assert {len(path.seed_names) for path in lacking} == {4, 5}
    others = [run for run in studies.study_runs(made_up_study()) if run.seed < 3]
    for run in others:
        run.config['seed'] += run.config['recipe']['lr'] * 1e5
    with pytest.raises(ValueError, match='no seed in common'):
        paths_at_the_end(others, 4)
    with pytest.raises(ValueError, match='at least'):
        path_from_counts('a', 'lr', (0,), (np.full((1, 1, 2), 4), np.ones((1, 1, 2), int)), 2)


def test_one_verdict_from_stored_runs_for_everybody(monkeypatch, tmp_path):
    "Stored with the study, read from the small file alone (as in the installed package), and told in sentences."
    for module in (studies, frontiers):
        monkeypatch.setattr(module, 'ASSETS', tmp_path)
    monkeypatch.setitem(STUDIES, 'world', WORLD)
    waiting = frontier_verdict('world')
    assert (
        not waiting.known
        and len(waiting.table) == 0
        and 'No verdict yet' in repr(waiting)
        and '20 runs' in waiting._repr_html_()
        and '`rl4llm study world`' in repr(waiting)
    )
    studies.save_study(made_up_study())
    assert 'have not been read' in repr(frontier_verdict('world'))
    store_frontiers('world')
    study_file('world').unlink()
    found = frontier_verdict('world')
    assert found.known and found.readings == tuple(
        json.loads(json.dumps(measured_frontiers(made_up_study())['readings']))
    )
    assert (
        len(found.table) == 4
        and 'is dominated'
        in set(found.table['at equal pass@1'])
        <= {'is dominated', 'lower in part', 'no difference shown'}
        and (found.table['difference'] < 0).all()
        and (found.table['high'] > found.table['low']).all()
    )
    assert len(found.sentences) == 4 and all(
        'narrower against keeper' in s and 'at equal pass@1' in s for s in found.sentences
    )
    assert 'pass@16 at the end (200 problems): keeper keeps more than narrower' in found.headline
    at_the_end = found.changes.iloc[:, 0]
    assert at_the_end.name.startswith('pass@16 at the end (200 problems), pass@1 +0.')
    assert re.fullmatch(r'-0.\d+ \[-0.\d+, -0.\d+\]', at_the_end['narrower'])
    lines = found._repr_markdown_().split('\n')
    assert lines[0] == found.headline and lines[-3].startswith('| narrower | -0.')
    assert 'straight line' in lines[-1]
    rows = pd.concat([pd.DataFrame(r['differences']) for r in found.readings])
    assert set(rows['difference'].abs() > rows['least']) == {True, False}
    assert not rows[rows['difference'].abs() > rows['least']]['verdict'].str.startswith('no').any()
    alike = measured_frontiers(
        made_up_study(dataclasses.replace(WORLD, arms=('keeper', 'keepers')))
    )
    same = FrontierVerdict('world', tuple(alike['readings']))
    assert 'no difference between the methods is shown; one would have had to be' in same.headline
    assert waiting.headline == waiting.sentences[0] == waiting._repr_markdown_()
    few = FrontierVerdict(
        'world', tuple(measured_frontiers(made_up_study(seeds=range(3)))['readings'])
    )
    assert set(few.table['at equal pass@1']) <= {'no verdict yet', 'cannot be told'}
    with pytest.raises(ValueError, match='all_rates'):
        frontier_verdict('clip_higher')


def test_the_command_stores_the_verdict_with_the_study(monkeypatch, tmp_path):
    from rl4llm.app.cli import app

    for module in (studies, frontiers):
        monkeypatch.setattr(module, 'ASSETS', tmp_path)
    monkeypatch.setitem(STUDIES, 'world', WORLD)
    monkeypatch.setattr(studies, 'run_study', lambda *args, **how: made_up_study())
    done = CliRunner().invoke(app, ['study', 'world', '--out', str(tmp_path / 'out')])
    assert done.exit_code == 0 and 'verdict: ' in done.output and frontier_verdict('world').known, (
        done.output
    )


@pytest.mark.parametrize('name', [name for name, study in STUDIES.items() if study.has_frontier])
def test_the_stored_verdict_is_that_of_the_stored_runs(name):
    assert (
        verdict_file(name).exists() == study_file(name).exists() or verdict_file(name).exists()
    ), f'`rl4llm study {name} --store`'
    if not study_file(name).exists():
        return
    assert json.loads(verdict_file(name).read_text()) == json.loads(
        json.dumps(measured_frontiers(load_study(name)))
    ) and not stale_runs(load_study(name))


def test_the_demo_and_its_page_tell_the_verdict(monkeypatch, tmp_path):
    from rl4llm.app import demonstration

    told = FrontierVerdict('frontier', tuple(measured_frontiers(made_up_study())['readings']))
    monkeypatch.setattr(demonstration, 'frontier_verdict', lambda: told)
    closing = demonstration.closing_words(tmp_path, demonstration.stored_study(), 1)
    assert told.headline in ' '.join(closing.split())


def test_levels_before_the_first_trained_point_are_one_measurement():
    "Below the first point of both methods there is one chord and one row; with more, more levels."
    few = [straight('a', 0.3, -0.09), straight('b', 0.2, 0)]
    assert first_gain(few) == pytest.approx(0.2) == pytest.approx(furthest(few[1:]))
    assert len(frontier_differences(few)) == 1 and len(frontier_table(few)) == 2
    assert frontier_differences(few)['gain'][0] == pytest.approx(max(shared_gains(few)))
    several = [bent(path, 0.02) for path in few]
    assert first_gain(several) == pytest.approx(0.02)
    assert len(frontier_differences(several)) == 3 and len(frontier_table(several)) == 6


def bent(path, gain):
    "A path with one more point, at this gain of pass@1, before its end."
    rise, fall = path.first[1:] - path.first[:1], path.reach[1:] - path.reach[:1]
    first = np.insert(path.first, 1, path.first[:1] + rise * gain / rise.mean(), axis=0)
    reach = np.insert(path.reach, 1, path.reach[:1] + 0.3 * fall, axis=0)
    return path._replace(points=(0, 1, 2), first=first, reach=reach)


def test_a_study_of_one_method_has_a_verdict_without_pairs():
    verdict = frontiers.frontier_verdict('entropy_alone')
    assert verdict.known and not len(verdict.table)
    assert verdict.sentences == [verdict.headline] and 'one method alone' in verdict.headline


@pytest.mark.skipif(
    not study_file('noisy_labels').exists(), reason='stored runs come with the source tree alone'
)
def test_one_recipe_in_two_regimes_is_two_methods():
    stored = load_study('noisy_labels')
    for exam, k in (('path', 32), ('evaluations', 64)):
        paths = study_paths(stored, exam, None, k)
        assert {path.method for path in paths} == {
            'on-policy/grpo',
            'four in ten turned round/grpo',
        }
        assert all(len(set(path.seed_names)) == len(path.seed_names) for path in paths)
    runs = study_runs(stored, exam='path')
    with pytest.raises(ValueError, match="two runs of 'grpo' at step size 3e-05 with seed 0"):
        paths_on_the_way(runs, 32)
