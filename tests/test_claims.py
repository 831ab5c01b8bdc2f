"""Claims are well formed, their stored runs belong to the present code, verdicts follow the rule, and a new seed lands where the stored ones say."""

import dataclasses
import warnings
from functools import cache
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from typer.testing import CliRunner
from rl4llm.atlas.claims import (
    CLAIMS,
    VERDICTS,
    Part,
    _first_try,
    add_claim,
    claim_named,
    claim_rows,
    claim_table,
    claim_verdict,
    claims_table,
    control_broken,
    equal_progress,
    Claim,
    Check,
    corrected,
    judged_parts,
    lacks_runs,
    measured_rows,
    measured_verdict,
    metric_at,
    one_word,
    paired_seeds,
    part_reason,
    part_verdict,
    read_claim,
    study_arms,
    token_ratio,
)
from rl4llm.atlas.catalogue import components_of, coverage, papers, parts_of, recipes_of, table
from rl4llm.app.cli import app
from rl4llm.core.policy import ASSETS
from rl4llm.core.registry import RECIPES, load_stages
from rl4llm.core.sources import notebook_of
from rl4llm.studies.study import STUDIES, load_study, study_runs

load_stages()
whole_table = cache(table)  # it takes seconds; not where a test has changed what it reads
every_claim = pytest.mark.parametrize(
    'claim', [pytest.param(c, id=c.name) for c in CLAIMS.values()]
)


@every_claim
def test_claim_is_well_formed(claim):
    assert (claim.paper in papers().index) != bool(claim.source)
    assert claim.statement.endswith('.') and bool(claim.quote) == bool(claim.place)
    if not claim.parts:
        assert claim.waits or claim.needs_scale
        return
    study = STUDIES[claim.study]
    arms = {f'{g}/{a}' for g in study.regimes for a in study.arms} | {'base'}
    assert set(study.arms) <= set(RECIPES) and len(study.seeds) >= 5 and claim.differs
    for p in claim.parts:
        assert (
            p.arm in arms - {'base'}
            and p.minus in (arms if p.metric.startswith('pass@') else arms - {'base'} | {'start'})
            and p.predicted in ('higher', 'lower', 'not lower', 'not higher')
        )
        assert p.level is None or p.level in dict(study.tests)


@every_claim
def test_verdict_is_one_of_the_words_and_no_result_is_stale(claim):
    verdict = claim_verdict(claim)
    assert verdict in set(VERDICTS) - {'stale'}, f"{verdict}: run `rl4llm claims run {claim.name}`"
    if verdict in ('waits', 'needs scale'):
        return
    if verdict == 'earlier loop':
        verdict = measured_verdict(claim)
    made = claim_table(claim)
    words = set(made.loc[~made['ours'], 'verdict'])
    if verdict == 'reproduced':
        assert words == {'holds'}
    else:
        assert (verdict == 'contradicted') == ('contradicted' in words) and words != {'holds'}
        assert verdict in words
    made = made[made['p'].notna()]
    assert (
        (made['low'] <= made['difference']).all()
        and (made['difference'] <= made['high']).all()
        and (made['p_holm'] >= made['p'] - 1e-12).all()
        and (made['seeds'] >= 5).all()
    )


RULE = [  # predicted, difference, corrected p against the border, more of the row
    ('higher', 0.1, 0.001, {}, 'holds'),
    ('lower', 0.1, 0.001, {}, 'contradicted'),
    ('higher', 0.1, 0.2, {}, 'inconclusive'),
    ('higher', -0.1, 0.001, {}, 'contradicted'),
    ('lower', -0.1, 0.001, {}, 'holds'),
    ('lower', -0.1, 0.05, {}, 'inconclusive'),
    ('higher', 0.1, 0.001, dict(seeds=4), 'no verdict yet'),
    ('higher', 0.1, 0.001, dict(turns=True), 'inconclusive'),
    ('higher', 0.1, 0.001, dict(sizes=1), 'holds'),
    ('higher', -0.1, 0.001, dict(sizes=1), 'inconclusive'),
    ('higher', 0.1, 0.001, dict(idle=True), 'not testable here'),
    ('higher', 0.1, 0.001, dict(broken='it fell apart', seeds=0), 'not testable here'),
    ('not lower', -0.01, 0.001, {}, 'holds'),
    ('not lower', -0.01, 0.6, {}, 'inconclusive'),
    ('not lower', -0.2, 0.001, {}, 'contradicted'),
    ('not lower', -0.05, 0.6, {}, 'inconclusive'),
    ('not higher', -0.2, 0.001, {}, 'holds'),
    ('not higher', 0.2, 0.001, {}, 'contradicted'),
    ('not higher', 0.05, 0.6, {}, 'inconclusive'),
]


def test_rule():
    for predicted, difference, p_holm, more, want in RULE:
        part = Part(arm='a/b', minus='base', metric='pass@1', predicted=predicted)
        row = dict(difference=difference, p_holm=p_holm, seeds=5, least=0.1) | more
        assert part_verdict(part, row) == want, (predicted, row)
        assert bool(part_reason(part, row)) == (want in ('inconclusive', 'not testable here'))


def test_a_difference_below_the_smallest_effect_is_tested_against_that():
    from rl4llm.atlas.claims import border_of

    part = Part(arm='a/b', minus='base', metric='pass@1', predicted='lower', smallest=0.1)
    assert [border_of(part, x) for x in (-0.2, -0.05, 0.3)] == [0, -0.1, -0.1]
    row = dict(difference=-0.05, p_holm=0.01, seeds=5)
    assert part_verdict(part, row) == 'contradicted'  # told from -.1, and on the wrong side of it
    assert part_verdict(part, row | dict(difference=-0.2)) == 'holds'


def _ledger_of(p_values, monkeypatch, ours=()):
    "A ledger of one claim for each p-value, and the claims."
    import rl4llm.atlas.claims as module

    def claim_of(number):
        part = Part(
            arm='r/a', minus='r/b', metric='pass@1', predicted='higher', ours=number in ours
        )
        return Claim(name=f'c{number}', paper=1, statement='', parts=(part,))

    claims = [claim_of(number) for number in range(len(p_values))]
    luck = ((0.0001, 4),)
    rows = {c: (dict(difference=0.1, p=p, seeds=5, luck=luck),) for c, p in zip(claims, p_values)}
    monkeypatch.setattr(module, 'ledger', lambda: rows)
    return claims, rows


@pytest.mark.parametrize(
    'p_values, want, verdicts',
    [
        ([0.02, 0.03, 0.04], [0.06, 0.06, 0.06], ['inconclusive'] * 3),  # 3 x .02, then never less
        ([0.04, 0.001, 0.02], [0.04, 0.003, 0.04], ['holds'] * 3),  # 1 x .04, 3 x .001, 2 x .02
        ([0.03, 0.01, 0.2], [0.06, 0.03, 0.2], ['inconclusive', 'holds', 'inconclusive']),
    ],
)
def test_p_values_are_corrected_over_the_ledger_by_hand(p_values, want, verdicts, monkeypatch):
    "Each p-value is in a claim of its own: correcting within the claim would change nothing."
    claims, rows = _ledger_of(p_values, monkeypatch)
    made = [corrected(claim, rows[claim])[0] for claim in claims]
    assert [row['p_holm'] for row in made] == pytest.approx(want)
    assert [part_verdict(c.parts[0], row) for c, row in zip(claims, made)] == verdicts
    half = stats.t.ppf(1 - 0.05 / 3 / 2, 4) * 0.01
    assert [row['least'] for row in made] == pytest.approx([half] * 3)


def test_parts_of_ours_make_those_of_papers_no_dearer_and_decide_nothing(monkeypatch):
    claims, rows = _ledger_of([0.03, 0.02, 0.04], monkeypatch, ours=(1, 2))
    made = [corrected(claim, rows[claim])[0]['p_holm'] for claim in claims]
    assert made == pytest.approx([0.03, 0.04, 0.04])
    import rl4llm.atlas.claims as module

    table = pd.DataFrame(dict(verdict=['holds', 'contradicted'], ours=[False, True]))
    monkeypatch.setattr(module, '_judged', lambda claim, measured: table)
    monkeypatch.setattr(module, '_rows', lambda claim, stamp: ())
    assert measured_verdict(claim_named('psr_narrows')) == 'reproduced'
    with pytest.raises(ValueError, match='no part of the paper'):
        add_claim(name='nothing', paper=1, statement='', study='s', parts=claims[1].parts)


def _part_of_psr():
    "The stored study of the core paper, and a part of it that holds."
    claim = claim_named('psr_narrows')
    return load_study(claim.study), claim


def test_a_wrong_label_or_swapped_arms_turn_the_verdict():
    "What holds is contradicted once its label is wrong, or once two arms are swapped."
    stored, claim = _part_of_psr()
    assert measured_verdict(claim) == 'reproduced'
    turned = [dataclasses.replace(part, predicted='higher') for part in claim.parts[:1]]
    wrong = dataclasses.replace(claim, parts=tuple(turned))
    assert judged_parts(wrong, stored)['verdict'].tolist() == ['contradicted']
    pair = ('on-policy/weighted_reinforce', 'on-policy/positive')
    asked = Part(arm=pair[0], minus=pair[1], metric='entropy', predicted='higher')
    claim = Claim(name='swapped', paper=17, statement='', parts=(asked,))
    assert judged_parts(claim, stored)['verdict'].tolist() == ['holds']
    names = {'positive': 'weighted_reinforce', 'weighted_reinforce': 'positive'}
    runs = [dict(r, arm=names.get(r['arm'], r['arm'])) for r in stored['runs']]
    assert judged_parts(claim, dict(stored, runs=runs))['verdict'].tolist() == ['contradicted']


def test_a_neighbouring_step_size_on_the_other_side_makes_a_part_inconclusive():
    "At the largest step size stand the runs of the middle one, with their arms swapped."
    stored, _ = _part_of_psr()
    pair = ('on-policy/weighted_reinforce', 'on-policy/positive')
    asked = Part(arm=pair[0], minus=pair[1], metric='entropy', predicted='higher')
    claim = Claim(name='turning', paper=17, statement='', parts=(asked,))
    kept = [r for r in stored['runs'] if r['lr'] == 1e-4]
    names = {'positive': 'weighted_reinforce', 'weighted_reinforce': 'positive'}
    beside = [dict(r, arm=names.get(r['arm'], r['arm']), lr=3e-4) for r in kept]
    smaller = [dict(r, lr=3e-5) for r in kept]
    made = judged_parts(claim, dict(stored, runs=smaller + kept + beside)).iloc[0]
    assert (made['verdict'], made['why']) == ('inconclusive', 'turns over with the step size')
    same = [dict(r, lr=3e-4) for r in kept]
    made = judged_parts(claim, dict(stored, runs=smaller + kept + same)).iloc[0]
    assert made['verdict'] == 'holds' and made['sizes'] == 3


def test_a_mechanism_that_did_not_act_is_not_testable():
    stored, claim = _part_of_psr()
    for check, wanted in (
        (Check(metric='rows_dropped', at_least=20), 'holds'),
        (Check(metric='cut_above', at_least=0.001), 'not testable here'),
        (Check(metric='never_recorded', at_least=0.001), 'not testable here'),
    ):
        parts = tuple(dataclasses.replace(part, acted=(check,)) for part in claim.parts)
        rows = judged_parts(dataclasses.replace(claim, parts=parts), stored)
        assert set(rows['verdict']) == {wanted} and rows['acted'].str.contains(check.metric).all()


def test_verdicts_are_those_of_the_raw_counts():
    "pass@256 of PSR less the base by hand: mean and interval, from the stored counts."
    stored, claim = _part_of_psr()
    hard = slice(150, 300)
    own = [r for r in stored['runs'] if r['arm'] == 'positive' and r['lr'] == 1e-4]
    end = np.array([np.array(r['evaluations'][-1]['num_correct'])[hard] > 0 for r in own])
    base = np.array(own[0]['evaluations'][0]['num_correct'])[hard] > 0
    gap = end.mean(0) - base
    row = measured_rows(claim, stored)[0]
    half = np.sqrt(
        stats.t.ppf(0.975, 4) ** 2 * end.mean(1).var(ddof=1) / 5
        + stats.t.ppf(0.975, 149) ** 2 * gap.var(ddof=1) / 150
    )
    found = [row['difference'], row['low'], row['high']]
    assert found == pytest.approx([gap.mean(), gap.mean() - half, gap.mean() + half])


@pytest.mark.parametrize(
    'fields, compared',
    [
        (dict(minus='on-policy/positive', metric='pass@256', level=None), True),
        (dict(minus='on-policy/positive', metric='entropy'), True),
        (dict(minus='on-policy/positive', metric='reward'), False),
        (dict(minus='on-policy/positive', metric='entropy', same_reward=False), False),
        (dict(minus='on-policy/positive', metric='pass@1'), False),
        (dict(minus='on-policy/positive', metric='pass@64', read='equal pass@1'), False),
        (dict(minus='base', metric='pass@256'), False),
        (dict(minus='start', metric='entropy'), False),
    ],
)
def test_at_equal_progress_where_two_runs_can_have_one(fields, compared):
    "Measured again where both have made equal progress; nothing where there is no such place."
    part = Part(arm='on-policy/negative', predicted='higher', **fields)
    import rl4llm.atlas.claims as module

    found = module._at_equal(part, load_study('negative_reinforcement'))
    assert set(found) == {'at_equal', 'equal_low', 'equal_high'}
    assert np.isfinite(list(found.values())).all() == compared


@pytest.mark.parametrize(
    'parts, verdict',
    [
        (['holds', 'holds'], 'reproduced'),
        (['holds', 'contradicted'], 'contradicted'),
        (['contradicted', 'no verdict yet'], 'contradicted'),
        (['inconclusive', 'not testable here'], 'inconclusive'),
        (['holds', 'not testable here'], 'not testable here'),
        (['holds', 'no verdict yet'], 'no verdict yet'),
        ([], 'no verdict yet'),
    ],
)
def test_a_claim_is_reproduced_if_all_its_parts_hold(parts, verdict):
    assert one_word(parts) == verdict


def test_a_difference_as_text():
    from rl4llm.atlas.claims import _difference

    row = dict(here=0.1, low=-0.05, high=0.25, unknown=np.nan)
    assert _difference(row, ('here', 'low', 'high'), 'none') == '+0.100 [-0.050, +0.250]'
    assert _difference(row, ('here', 'unknown', 'high'), 'none') == '+0.100'
    assert _difference(row, ('unknown', 'low', 'high'), 'none') == 'none'


def _runs_of(values: dict):
    "Runs of 12 steps: entropy 9 at first, then for ten steps the value given for each arm and seed."
    from types import SimpleNamespace
    import pandas as pd

    return [
        SimpleNamespace(
            config=dict(regime='r'),
            method=arm,
            seed=seed,
            metrics=pd.DataFrame(
                dict(
                    step=range(12),
                    entropy=[9.0, 9.0] + [float(value)] * 10,
                    reward=np.arange(12) / 12,
                )
            ),
        )
        for arm, by_seed in values.items()
        for seed, value in by_seed.items()
    ]


def test_training_metrics_are_paired_by_seed_by_hand():
    "Differences 1, 2, 3, 4, 5: mean 3, variance 2.5 (n - 1), so t = 3 / sqrt(.5) with four degrees of freedom; the seed that one arm lacks is left out."
    runs = _runs_of(
        dict(a={0: 11, 1: 22, 2: 33, 3: 44, 4: 55, 7: 99}, b={4: 50, 3: 40, 2: 30, 1: 20, 0: 10})
    )
    row = paired_seeds(Part(arm='r/a', minus='r/b', metric='entropy', predicted='higher'), runs)
    half = stats.t.ppf(0.975, 4) * np.sqrt(2.5 / 5)
    assert row['seeds'] == 5 and [row['difference'], row['low'], row['high']] == pytest.approx(
        [3, 3 - half, 3 + half]
    )
    assert row['p'] == pytest.approx(2 * stats.t.sf(3 / np.sqrt(0.5), 4))
    part = Part(arm='r/a', minus='r/b', metric='entropy', predicted='higher')
    two = paired_seeds(part, _runs_of(dict(a={0: 2, 1: 4}, b={0: 1, 1: 1})))
    half = stats.t.ppf(0.975, 1) * np.sqrt(2 / 2)  # differences 1 and 3
    assert [two['difference'], two['low'], two['high']] == pytest.approx([2, 2 - half, 2 + half])
    one = paired_seeds(part, _runs_of(dict(a={0: 5}, b={0: 3})))
    assert (
        one['seeds'] == 1
        and one['difference'] == 2
        and np.isnan([one['low'], one['high'], one['p']]).all()
    )
    assert one['luck'] == ()


def test_a_training_metric_is_the_mean_of_ten_steps():
    run = _runs_of(dict(a={0: 1}))[0]
    run.metrics['entropy'] = np.arange(12.0)
    assert metric_at(run, 'entropy') == np.arange(2.0, 12).mean() and np.isnan(
        metric_at(run, 'entropy', 2.0)
    )
    assert metric_at(run, 'entropy', 6.5 / 12) == pytest.approx(
        np.arange(2.0, 12).mean()
    )  # rewards of steps 2 to 11 have this mean: those very steps are read


@pytest.mark.parametrize('noise, within', [(0.0, 0.015), (0.05, 0.03)])
@pytest.mark.parametrize('level', [0.1, 0.37, 0.5])
def test_at_a_training_reward_the_reward_is_that_reward(level, noise, within):
    "Whatever a metric is of the reward in a straight line, it is that of the level, for a fast and for a slow run."
    luck = np.random.default_rng(0).normal(size=80)
    for pace in (15, 40):
        reward = 0.9 * (1 - np.exp(-np.arange(80) / pace)) + noise * luck
        run = _runs_of(dict(a={0: 1}))[0]
        run.metrics = pd.DataFrame(dict(step=range(80), reward=reward, entropy=3 - 2 * reward))
        if pace == 15 and level == 0.1:
            continue  # reached within the first ten steps, over which nothing can be averaged
        assert metric_at(run, 'reward', level) == pytest.approx(level, abs=within)
        assert metric_at(run, 'entropy', level) == pytest.approx(3 - 2 * level, abs=2 * within)


def test_equal_progress_by_hand():
    "Last-ten means of the arms: 6.5/12 for a, half of that for b; nine tenths of the lower one."
    runs = _runs_of(dict(a={0: 1, 1: 1}, b={0: 1, 1: 1}))
    for run in runs:
        if run.method == 'b':
            run.metrics['reward'] /= 2
    assert equal_progress(runs) == pytest.approx(0.9 * 6.5 / 24) and equal_progress(
        runs, 0.5
    ) == pytest.approx(0.5 * 6.5 / 24)
    assert equal_progress(runs, 2.0) == pytest.approx(11 / 24)  # where the curve of b ends


def _counted_study(arms: dict, *, path=None, **fields):
    """A stored study of four problems, with eight samples of each at steps 0 and 20.

    arms: name -> (right ones of each problem at the end, seeds). The base has 4, 4, 0 and 0.
    path: the same, of what was measured on the way; right ones at the end.
    """

    def evaluation(step, right):
        same = dict(task='countdown', seed=0, model='m', extras=dict(distinct=[0] * 4))
        counts = dict(keys=list('0123'), num_samples=[8] * 4, num_correct=right)
        return dict(step=step, **counts, **same)

    def exam(right):
        return [evaluation(0, [4, 4, 0, 0]), evaluation(20, right)]

    about = dict(regime='r', lr=1e-4, phase='final', fingerprint='', model='m', weights='')
    about |= dict(task='t', seconds=0, versions={}, metrics=dict(reward=[0.3] * 20))
    runs = [
        dict(arm=arm, seed=seed, evaluations=exam(right), **about)
        for arm, (right, seeds) in arms.items()
        for seed in range(seeds)
    ]
    for run in runs:
        if path and run['arm'] in path:
            run['path'] = exam(path[run['arm']])
    study = dict(name='counted', question='Which?', steps=20, task=('countdown', 'standard'))
    study |= dict(tests=[('standard', 4)], path_tests=[('standard', 4)], lrs={'r': [1e-4]})
    return dict(study=dict(study, arms=list(arms), regimes={'r': {}}, **fields), runs=runs)


SLOW_AND_FAST = dict(a=([5, 5, 1, 1], 3), b=([6, 6, 2, 2], 2))  # gains 1/8 and 2/8 of pass@1


def _asked(minus='r/b', k=8, **fields):
    metric = f'pass@{k}'
    return Part(arm='r/a', minus=minus, metric=metric, predicted='higher', level=None, **fields)


def test_at_equal_pass_1_by_hand():
    """Both arms solve two problems more with eight tries; a has gained half as much by then.

    Both are read at seven tenths of what a has gained."""
    from rl4llm.atlas.claims import _at_equal_pass_1 as at_equal

    stored = _counted_study(SLOW_AND_FAST)
    found = at_equal(_asked(), stored, 8)
    assert found.difference == pytest.approx(0.7 * 0.5 - 0.7 * 0.5 / 2) and found.seeds == 2
    assert len(found.luck) == 3 and np.isfinite(found.luck).all() and not found.broken
    alone = at_equal(_asked('base'), stored, 8)
    assert alone.difference == pytest.approx(0.7 * 0.5) and alone.seeds == 3
    nobody = at_equal(_asked('r/c'), stored, 8)
    assert np.isnan(nobody.difference) and nobody[1:] == ((), 0, '')
    fallen = _counted_study(dict(SLOW_AND_FAST, a=([3, 4, 0, 0], 3)))
    stuck = at_equal(_asked(), fallen, 8)
    assert np.isnan(stuck.difference) and (stuck.luck, stuck.seeds) == ((), 0)
    assert 'never rises' in stuck.broken


def test_what_was_measured_on_the_way_is_read_where_all_runs_have_it():
    "At the end a has gained 1/8 of pass@1, by what was measured on the way 2/8."
    from rl4llm.atlas.claims import _at_equal_pass_1

    path = dict(a=[6, 6, 2, 2], b=[6, 6, 2, 2])

    def gain(path=path, **fields):
        stored = _counted_study(SLOW_AND_FAST, path=path, **fields)
        return _at_equal_pass_1(_asked('base', 1), stored, 1).difference

    assert gain(path_samples=1) == pytest.approx(0.7 * 2 / 8)
    fewer = [gain(path_samples=0), gain(), gain(dict(b=path['b']), path_samples=1)]
    assert fewer == pytest.approx([0.7 / 8] * 3)


def test_less_gain_is_read_where_too_few_copies_get_that_far(monkeypatch):
    "The gains that are asked for, if the luck is known from the n-th on."
    import rl4llm.atlas.claims as module

    stored = _counted_study(SLOW_AND_FAST)
    for known_from in (1, 2, 3, 4):
        shares = [0.7, 0.5, 0.3][:known_from]
        gains = []

        def luck(own, gain, *other, gains=gains, known_from=known_from):
            gains.extend(gain)
            variance = 0.01 if len(gains) >= known_from else np.nan
            return np.array(gain), [(np.array([variance]), 3), (np.array([0.01]), 2)]

        monkeypatch.setattr(module, 'frontier_luck', luck)
        found = module._at_equal_pass_1(_asked(), stored, 8)
        assert gains == pytest.approx([share / 8 for share in shares])
        if known_from < 4:
            assert found[:3] == (gains[-1], ((0.01, 3), (0.01, 2)), 2)
        else:
            assert found[1:3] == ((), 0) and 'too few runs' in found.broken


def test_at_the_end_by_hand():
    "The seeds are those of the arm that has fewer; where an arm is missing there are none."
    from rl4llm.atlas.claims import _at_the_end

    stored = _counted_study(SLOW_AND_FAST)
    found = _at_the_end(_asked(k=1), stored, 1)
    assert found.difference == pytest.approx(3 / 8 - 4 / 8) and found.seeds == 2
    for runs, minus in (([], 'r/b'), (stored['runs'], 'r/c')):
        nobody = _at_the_end(_asked(minus, 1), dict(stored, runs=runs), 1)
        assert np.isnan(nobody.difference) and nobody[1:] == ((), 0, '')
    ruined = _counted_study(dict(SLOW_AND_FAST, b=([1, 2, 0, 0], 2)))
    broken = _at_the_end(_asked(k=1), ruined, 1)
    assert broken[1:3] == ((), 0) and 'fallen apart' in broken.broken


def test_the_level_of_a_part_stands_in_its_row():
    parts = tuple(dataclasses.replace(_asked(k=1), level=level) for level in (None, 'standard'))
    claim = Claim(name='counted', paper=1, statement='', parts=parts)
    made = judged_parts(claim, _counted_study(SLOW_AND_FAST))
    assert made['level'].tolist() == ['all', 'standard']


@pytest.mark.parametrize('fields', [{}, dict(acted=[dict(metric='entropy', at_least=0.1)])])
def test_a_part_has_checks_or_none(fields):
    from rl4llm.atlas.claims import _read_part

    arms = study_arms('frontier')
    given = dict(arm=arms[0], minus=arms[1], metric='entropy', predicted='higher', acted=[])
    part = _read_part(given | fields, 'frontier', 'a part')
    assert len(part.acted) == len(fields)
    with pytest.raises(ValueError, match='acted is'):
        _read_part(given | dict(acted=[3]), 'frontier', 'a part')


def test_a_neighbour_turns_a_part_over_beyond_its_error(monkeypatch):
    "Differences at the smaller and the larger step size, each with an error of .02."
    import rl4llm.atlas.claims as module

    part = _asked()
    for here, smaller, larger, turns in (
        (0.1, 0.1, 0.1, False),
        (0.1, -0.03, 0.1, True),
        (0.1, 0.1, -0.03, True),
        (0.1, -0.02, 0.0, False),  # not beyond its error, and on the border
        (-0.1, 0.03, -0.1, True),
        (0.0, 0.1, 0.1, False),  # on neither side itself
    ):
        beside = {-1: smaller, 1: larger}

        def measured(part, stored, neighbour, beside=beside):
            return dict(difference=beside[neighbour], error=0.02)

        monkeypatch.setattr(module, 'measured_part', measured)
        assert module._turns_over(part, {}, dict(difference=here)) == turns


def test_tokens_are_counted_arm_for_arm():
    runs = _runs_of(dict(a={0: 1, 1: 1}, b={0: 1}))
    for run in runs:
        run.metrics['tokens'] = 3.0 if run.method == 'a' else 2.0
    part = Part(arm='r/a', minus='r/b', metric='entropy', predicted='higher')
    assert token_ratio(part, runs) == 3 and np.isnan(
        token_ratio(dataclasses.replace(part, minus='start'), runs)
    )


@pytest.mark.parametrize(
    'verdict, p, want', [(0.049, 'holds', 'contradicted'), (0.051, 'inconclusive', 'inconclusive')]
)
def test_the_threshold_is_five_percent_of_the_corrected_p_value(verdict, p, want):
    row = dict(difference=0.1, low=0.01, high=0.2, p=0.001, p_holm=verdict, seeds=5)
    for side, expected in (('higher', p), ('lower', want)):
        part = Part(arm='a/b', minus='base', metric='pass@1', predicted=side)
        assert part_verdict(part, row) == expected


def test_a_claim_needs_parts_or_a_reason():
    with pytest.raises(ValueError, match='either parts'):
        add_claim(name='nothing', paper=1, statement='Nothing.')
    assert 'nothing' not in CLAIMS
    with pytest.raises(KeyError, match='psr_narrows'):
        claim_named('psr')


@pytest.mark.parametrize(
    'change, words',
    [
        (('statement:', 'statment:'), ["'statment'", "did you mean 'statement'"]),
        (('paper: 17', 'paper: seventeen'), ["paper is 'seventeen'", 'wanted something like 17']),
        (
            ('not lower', 'at least'),
            ['part 1', "predicted is 'at least'", 'one of higher, lower, not higher, not lower'],
        ),
        (('    minus: base\n', ''), ['part 1', "lacks the field 'minus'"]),
        (
            ('minus: on-policy/positive', 'minus: on-policy/positiv'),
            ['part 2', "did you mean 'on-policy/positive'"],
        ),
        (('metric: pass@256', 'metrik: pass@256'), ["'metrik'", "did you mean 'metric'"]),
        (('study: frontier', 'study: frontie'), ["study is 'frontie'", "did you mean 'frontier'"]),
        (('study: frontier\n', ''), ['study is None']),
        (('at_least: 20', 'at_least: 20, differs: 1.0'), ['part 1, acted', 'one of them']),
        (('metric: rows_dropped, ', ''), ['part 1, acted', "lacks the field 'metric'"]),
        (('parts:', 'parts: 3\nrest:'), ['parts is 3', '[{arm: on-policy/negative, minus: base']),
        (('minus: base', 'minus: base\n    margin: wide'), ["margin is 'wide'", 'like 0.05']),
        (('minus: base', 'minus: base\n    same_reward: 3'), ['same_reward is 3', 'like false']),
        (('name: nsr_keeps', 'name: nsr'), ["wanted 'nsr_keeps'"]),
    ],
)
def test_a_wrong_claim_file_is_answered_in_one_sentence(change, words, tmp_path):
    right = (ASSETS / 'claims' / 'nsr_keeps.yaml').read_text()
    assert change[0] in right
    wrong = tmp_path / 'nsr_keeps.yaml'
    wrong.write_text(right.replace(*change, 1) if 'metrik' in change[1] else right.replace(*change))
    with pytest.raises(ValueError) as error:
        read_claim(wrong)
    said = str(error.value)
    assert (
        said.startswith('nsr_keeps.yaml')
        and all(word in said for word in words)
        and '\n' not in said
    )


def test_all_levels_can_be_asked_for(tmp_path):
    right = (ASSETS / 'claims' / 'nsr_keeps.yaml').read_text()
    (tmp_path / 'nsr_keeps.yaml').write_text(
        right.replace('    ours: true', '    level: all\n    ours: true')
    )
    first, second, _ = read_claim(tmp_path / 'nsr_keeps.yaml')['parts']
    assert (
        first.level == 'hard'
        and second.level is None
        and second.arm in study_arms('negative_reinforcement')
    )


def test_parts_of_a_recipe_are_found():
    parts = parts_of('grpo_kl')
    assert (
        set(parts['file'].str.split('/').str[0]) == {'rl4llm'}
        and parts['notebook'].str.endswith('.ipynb').all()
    )


def test_equal_progress_is_reached_by_every_arm():
    runs = [r for r in study_runs(load_study('negative_reinforcement'), 'on-policy')]
    level = equal_progress(runs)
    assert all(np.isfinite(metric_at(r, 'entropy', level)) for r in runs) and 0 < level < 1


def test_against_the_start_of_the_same_run():
    "Entropy of the last ten steps less that of the first three, seed by seed; a run that is a straight line gives its slope."
    from types import SimpleNamespace
    import pandas as pd

    runs = [
        SimpleNamespace(
            config=dict(regime='r'),
            method='a',
            seed=s,
            metrics=pd.DataFrame(dict(entropy=np.arange(50.0) * slope, reward=0.0)),
        )
        for s, slope in enumerate((1, 2, 3))
    ]
    row = paired_seeds(Part(arm='r/a', minus='start', metric='entropy', predicted='higher'), runs)
    assert (
        row['seeds'] == 3
        and np.isclose(row['difference'], 2 * (44.5 - 1))
        and row['low'] < row['difference'] < row['high']
    )


def test_a_control_is_broken_below_half_of_its_base():
    from types import SimpleNamespace

    def evaluation(right):
        return SimpleNamespace(num_correct=np.array(right), num_samples=np.array([8, 16]))

    def control(right):
        ends = dict(base=evaluation([4, 8]), final=evaluation(right))
        return SimpleNamespace(config=dict(regime='r'), method='b', **ends)

    part = Part(arm='r/a', minus='r/b', metric='pass@1', predicted='higher')
    assert _first_try(evaluation([2, 12])) == (2 / 8 + 12 / 16) / 2
    assert control_broken(part, [control([1, 4])])
    assert not control_broken(part, [control([2, 4])])  # half of it exactly
    with warnings.catch_warnings():
        warnings.simplefilter('error')  # no mean of no runs
        assert not control_broken(part, [])
    assert not control_broken(dataclasses.replace(part, minus='base'), [])


def test_the_differences_of_a_claim_in_one_line(monkeypatch):
    import rl4llm.atlas.claims as module

    of = ['pass@1', 'entropy']
    rows = pd.DataFrame({'of': of, 'difference': 'a - b', 'measured': '+0.1'})
    monkeypatch.setattr(module, 'claim_rows', lambda claim: rows)
    monkeypatch.setattr(module, 'why_waiting', lambda claim: '')
    for earlier, head in (('', ''), ('a change', 'then: ')):
        monkeypatch.setattr(module, 'why_earlier_loop', lambda claim, why=earlier: why)
        monkeypatch.setattr(module, 'then', lambda claim: 'then')
        told = module._measured_text(claim_named('psr_narrows'))
        assert told == head + 'pass@1 a - b: +0.1; entropy a - b: +0.1'


@pytest.mark.parametrize('is_installed', [False, True])
def test_a_study_that_was_never_run_waits(is_installed, monkeypatch, tmp_path):
    import rl4llm.atlas.claims as module
    import rl4llm.studies.study as study

    for place in (module, study):
        monkeypatch.setattr(place, 'study_file', lambda name: tmp_path / 'none.json')
    if is_installed:
        monkeypatch.setattr(study, 'root_folder', lambda: tmp_path)
    why = 'come with the source tree' if is_installed else 'have not been made yet'
    claim = claim_named('psr_narrows')
    assert module.missing_runs().startswith(
        f'The runs of {sum(bool(c.parts) for c in CLAIMS.values())} '
    )
    assert claim_verdict(claim) == 'waits' and claim_rows(claim).empty
    assert (
        'rl4llm claims run psr_narrows' in claim._repr_html_()
        and 'are not stored here' in module.missing_runs()
    )
    assert claims_table().loc['psr_narrows', 'measured'] == module.why_waiting(claim)
    done = CliRunner().invoke(app, ['claims', 'show', 'psr_narrows'])
    assert 'Empty DataFrame' not in done.output
    raised = [why_raised(study.load_study, 'clip_higher'), why_raised(claim_table, claim)]
    for said in (done.output, module.missing_runs(), *raised):
        assert why in said and ('come with the source tree' in said) == is_installed


def why_raised(ask, *given):
    "The words of the FileNotFoundError that a call raises."
    with pytest.raises(FileNotFoundError) as found:
        ask(*given)
    return str(found.value)


def test_one_claim_is_not_several(monkeypatch):
    import rl4llm.atlas.claims as module

    runs = ['psr_narrows', 'nsr_keeps']
    assert any(map(lacks_runs, CLAIMS.values()))
    for count, words in ((1, 'The runs of 1 claim are'), (2, 'The runs of 2 claims are')):
        waiting = {name: '.' for name in runs[:count]}
        with monkeypatch.context() as patched:
            patched.setattr(module, 'why_waiting', lambda c, waiting=waiting: waiting.get(c.name))
            assert module.missing_runs().startswith(words)


def test_words_are_explained_where_they_stand():
    import rl4llm.atlas.claims as module

    said = CliRunner().invoke(app, ['claims', 'list']).output
    assert set(module.LEGEND) < set(module.VERDICTS)
    for verdict, means in module.LEGEND.items():
        is_there = any(claim_verdict(claim) == verdict for claim in CLAIMS.values())
        assert (f'{verdict}: {means}.' in said) == is_there
    assert 'waits: ' in said


@pytest.mark.parametrize(
    'args, words',
    [
        (['claims', 'list'], 'psr_narrows'),
        (['claims', 'show', 'psr_narrows'], 'differs from the paper'),
        (['claims', 'table'], '| claim | paper |'),
        (['atlas', '--family', 'systems'], 'partly built'),
    ],
)
def test_commands(args, words):
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0 and words in done.output


def test_a_claim_that_waits_is_not_run():
    waiting = next(c for c in CLAIMS.values() if c.waits)
    done = CliRunner().invoke(app, ['claims', 'run', waiting.name])
    assert done.exit_code != 0 and waiting.waits in str(done.exception)


def test_atlas_holds_every_paper_once_and_finds_what_is_built():
    made = whole_table()
    assert list(made.index) == list(range(229)) and set(
        made.loc[made['scope'].isin(['context', 'outside']), 'code']
    ) == {''}
    assert (
        made.loc[17, 'status'] == 'built'
        and 'weighted_reinforce' in made.loc[17, 'recipe']
        and made.loc[17, 'notebook'].startswith('nbs/')
    )
    assert coverage().to_numpy().sum() == 229
    for seed in made.index[made['status'] == 'built']:
        assert components_of(seed) or recipes_of(seed)
        assert all(notebook_of(f"rl4llm.{c.rsplit('.', 1)[0]}") for c in components_of(seed))


def test_a_name_makes_no_row_built():
    "`add_recipe` with a paper's number, a copy of the parent, and a row that is known to lack something."
    import rl4llm.atlas.catalogue as module
    from rl4llm.core.registry import add_recipe
    from rl4llm.studies.tryouts import stored_tryouts

    unbuilt = whole_table().query("status == 'not built yet'").index
    number = next(n for n in unbuilt if not recipes_of(n))
    row = next(r for r in papers().itertuples() if r.Index == number)
    add_recipe('only_a_name', 'grpo', paper=number, summary='a name')
    try:
        assert recipes_of(number) == ['only_a_name']
        assert table().loc[number, 'status'] == 'not built yet'
        copied = stored_tryouts() | {
            'only_a_name': dict(stored_tryouts()['grpo'], recipe='only_a_name')
        }
        assert module.status_of(row, [], ['only_a_name'], copied) == 'not built yet'
        acting = copied | {'only_a_name': dict(copied['only_a_name'], entropy=[0.3, 0.1])}
        assert module.status_of(row, [], ['only_a_name'], acting) == 'not built yet'
        changes = dict(only_a_rate=dict(lr=5e-4), an_idea=dict(advantage='dr_grpo'))
        for name, change in changes.items():
            add_recipe(name, 'grpo', paper=number, summary='a change', **change)
            made = acting | {name: dict(acting['only_a_name'], recipe=name)}
            wanted = 'built' if name == 'an_idea' else 'not built yet'
            assert module.status_of(row, [], [name], made) == wanted
        assert module.status_of(row, ['advantages.x.y'], ['only_a_name'], copied).startswith(
            'partly built'
        )
    finally:
        for name in ('only_a_name', 'only_a_rate', 'an_idea'):
            RECIPES.pop(name, None)


def test_a_measuring_paper_needs_no_tryout():
    "A recipe that brings nothing to train lowers no measure; one that does waits for its tryout."
    import rl4llm.atlas.catalogue as module
    from rl4llm.core.registry import add_recipe
    from rl4llm.studies.tryouts import stored_tryouts

    brought = dict(
        a_rate=(dict(lr=5e-4), 'built'),
        a_copy=({}, 'built'),
        an_idea=(dict(advantage='dr_grpo'), 'partly built'),
    )
    try:
        for seed in (50, 109, 215):
            row = next(r for r in papers().itertuples() if r.Index == seed)
            measures = module.components_of(seed)
            assert module.status_of(row, measures, [], {}) == 'built'
            for name, (change, wanted) in brought.items():
                add_recipe(name, 'grpo', paper=seed, summary='a change', **change)
                assert module.status_of(row, measures, [name], {}).startswith(wanted)
                record = dict(stored_tryouts()['grpo'], entropy=[0.3, 0.1])
                acting = stored_tryouts() | {name: record}
                assert module.status_of(row, measures, [name], acting) == 'built'
                del RECIPES[name]
    finally:
        for name in brought:
            RECIPES.pop(name, None)


def test_no_placebo_makes_a_row_built():
    from rl4llm.atlas.catalogue import carries

    assert carries('rlfr') and not carries('rlfr_shuffled')


def test_what_is_built_was_at_work_or_is_a_measure():
    from rl4llm.atlas.catalogue import ALSO, PARTLY
    from rl4llm.studies.tryouts import acts

    made = whole_table()
    assert {18, 23, 75, 90, 115, 117, 118, 122, 124, 187, 197, 208, 227, 228} <= set(PARTLY)
    for seed in PARTLY:
        assert made.loc[seed, 'status'] == f'partly built: {PARTLY[seed]}' and components_of(
            seed
        ), seed
    for seed in made.index[made['status'] == 'built']:
        assert any(map(acts, recipes_of(seed))) or (
            not recipes_of(seed) and set(components_of(seed)) <= set(ALSO[seed])
        ), seed


@pytest.mark.parametrize(
    'seed, notebook, path',
    [
        (75, '08_dataflow', 'scaling.dataflow.Workers'),
        (90, '09_swarm', 'scaling.swarm.swarm_sharing'),
        (117, '07_streaming', 'scaling.streaming.TransferQueue'),
    ],
)
def test_papers_on_systems_point_at_their_notebooks(seed, notebook, path):
    row = whole_table().loc[seed]
    assert row['notebook'] == f'nbs/scaling/{notebook}.ipynb' and path in row['code']
    assert row['status'].startswith('partly built: its ') and 'missing' in row['status']


def test_every_paper_that_something_belongs_to_is_cited_by_name():
    from rl4llm.atlas.catalogue import ALSO
    from rl4llm.core.citations import cited, paper_rows
    from rl4llm.core.registry import STAGES

    named = {x.paper for x in (*STAGES.values(), *RECIPES.values(), *CLAIMS.values())} | set(ALSO)
    for seed in named - {None}:
        row = paper_rows()[seed]
        assert row['authors'] and 1990 < int(row['year']) < 2030 and 2 < len(row['short']) < 60, (
            f'papers.csv: authors, year, short title of {seed}'
        )
        assert cited(seed) == f"{row['authors']} {row['year']}, {row['short']} [{seed}]"


@pytest.mark.slow
@pytest.mark.takes_turns
def test_a_new_seed_lands_in_the_prediction_interval():
    "The stored on-policy PSR runs predict pass@256 on the harder problems of a seed that was never run."
    from rl4llm.analysis.passk import pass_at_k
    from rl4llm.studies.study import Job, run_job, study_named

    stored, study = load_study('negative_reinforcement'), study_named('negative_reinforcement')
    reach = lambda e: float(pass_at_k(e.num_samples, e.num_correct, 256).mean())
    known = np.array(
        [
            reach(r.final)
            for r in study_runs(stored, 'on-policy', level='hard')
            if r.method == 'positive'
        ]
    )
    half = stats.t.ppf(0.975, len(known) - 1) * known.std(ddof=1) * np.sqrt(1 + 1 / len(known))
    only_hard = dataclasses.replace(study, tests=(('hard', 60),), every=study.steps)
    record = run_job(
        only_hard,
        Job(
            'positive',
            'on-policy',
            stored['learning_rates']['on-policy/positive'],
            seed=7,
            phase='final',
        ),
    )
    from rl4llm.training.records import Evaluation

    new = reach(Evaluation.from_dict(record['evaluations'][-1]))
    assert known.mean() - half <= new <= known.mean() + half, (
        f"{new:.3f} is outside {known.mean():.3f} +- {half:.3f}"
    )


def shown_claims():
    "(notebook, claim, stored HTML) of each cell outside of the ledger that is `claim_named('...')` and nothing else."
    import json, re
    from pathlib import Path

    for path in sorted((Path(__file__).parents[1] / 'nbs').glob('*/[0-9]*.ipynb')):
        if path.parent.name in ('atlas', 'app'):
            continue
        for cell in json.loads(path.read_text())['cells']:
            named = re.fullmatch(r"claim_named\('(\w+)'\)", ''.join(cell['source']).strip())
            if named:
                yield (
                    path.stem,
                    named[1],
                    ''.join(
                        ''.join(o.get('data', {}).get('text/html', '')) for o in cell['outputs']
                    ),
                )


def test_the_forking_notebook_shows_its_claim():
    assert ('02_forking_tokens', 'forking_enough') in [found[:2] for found in shown_claims()]


def test_a_claim_that_a_notebook_shows_is_the_present_one():
    import html
    from rl4llm.atlas.claims import claim_named, claim_verdict

    for notebook, name, shown in shown_claims():
        claim = claim_named(name)
        assert (
            html.escape(claim.statement) in shown
            and f'Verdict: <b>{claim_verdict(claim)}</b>' in shown
        ), f'{notebook}: execute it anew, the verdict on {name} has changed'
