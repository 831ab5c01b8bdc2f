"Estimators, intervals, votes, pictures and the comparison of runs."

import io, itertools, math, subprocess, sys
from fractions import Fraction
from types import SimpleNamespace

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy import stats

from rl4llm.analysis.boundary import support, support_band, transitions
from rl4llm.analysis.entropy import (
    answer_entropy,
    distinct_solutions,
    entropy_by_position,
    entropy_table,
    entropy_trend,
    first_step_at,
    mean_token_entropy,
    window_means,
)
from rl4llm.analysis.passk import (
    Band,
    bootstrap_band,
    bootstrap_means,
    crossing_band,
    crossing_point,
    ks_up_to,
    log_miss,
    pass_at_k,
    pass_at_k_error,
    pass_at_k_variance,
    true_pass_at_k,
    true_pass_at_k_variance,
)
from rl4llm.analysis.plots import (
    OKABE_ITO,
    label_lines,
    method_look,
    plot_by_position,
    plot_difference,
    plot_entropy,
    plot_pass_at_k,
    plot_training,
    spread,
    style,
)
from rl4llm.analysis.voting import avg_at_k, best_of_k, maj_at_k
from rl4llm.studies.comparison import (
    compare,
    crossed_interval,
    hierarchical_interval,
    holm,
    progress_share,
    reached_step,
    with_verdicts,
)


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close('all')


def exact(n, c, k):
    return 1 - Fraction(math.comb(n - c, k), math.comb(n, k))


# ---- pass@k ----


@pytest.mark.parametrize(
    'n, c, k, value',
    [
        (10, 3, 1, 0.3),
        (10, 3, 2, 8 / 15),
        (10, 3, 5, 11 / 12),
        (10, 3, 8, 1),
        (200, 5, 100, 0.9703079),
        (256, 1, 128, 0.5),
    ],
)
def test_card_values(n, c, k, value):
    assert pass_at_k(n, c, k) == pytest.approx(value, rel=1e-6)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_equals_combinatorics(data):
    n = data.draw(st.integers(1, 300))
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert pass_at_k(n, c, k) == pytest.approx(float(exact(n, c, k)), rel=1e-12, abs=0)


@pytest.mark.parametrize(
    'c, k',
    [(0, 10), (1, 1), (3, 9_999), (100, 64), (5_000, 2), (5_000, 5_000), (9_999, 1), (10_000, 1)],
)
def test_ten_thousand_samples(c, k):
    n = 10_000
    assert pass_at_k(n, c, k) == pytest.approx(float(exact(n, c, k)), rel=1e-12, abs=0)
    if n - c >= k:  # the miss probability keeps its digits too, however small
        miss = Fraction(math.comb(n - c, k), math.comb(n, k))
        assert log_miss(n, c, k) == pytest.approx(
            math.log(miss.numerator) - math.log(miss.denominator), rel=1e-9, abs=1e-9
        )


def test_hundred_thousand_samples():
    n = 100_000
    assert pass_at_k(n, 1, 777) == pytest.approx(777 / n, rel=1e-12)
    values = pass_at_k(n, [0, 1, 50_000, n], [1, 1000, n])
    assert (
        np.isfinite(values).all()
        and (np.diff(values, axis=0) >= 0).all()
        and (np.diff(values, axis=1) >= 0).all()
    )


def test_shapes_and_inputs():
    assert np.ndim(pass_at_k(10, 3, 2)) == 0
    learned = torch.tensor([3.0, 4.0], requires_grad=True)
    assert np.array_equal(pass_at_k(10, learned, 2), pass_at_k(10, [3, 4], 2))
    assert (
        pass_at_k(10, [3, 4], 2).shape == (2,)
        and pass_at_k(10, 3, [1, 2]).shape == (2,)
        and pass_at_k(10, [3, 4], [1, 2, 5]).shape == (2, 3)
    )
    assert pass_at_k(np.full((2, 3), 10), np.zeros((2, 3)), [1, 2]).shape == (2, 3, 2)
    ragged = pass_at_k([10, 20, 5], [3, 0, 5], [1, 4])
    assert np.allclose(
        ragged, [[float(exact(n, c, k)) for k in (1, 4)] for n, c in [(10, 3), (20, 0), (5, 5)]]
    )
    assert np.allclose(
        ragged, pass_at_k(torch.tensor([10, 20, 5]), torch.tensor([3, 0, 5]), torch.tensor([1, 4]))
    )
    assert np.allclose(
        ragged, pass_at_k(pd.Series([10.0, 20.0, 5.0]), pd.Series([3.0, 0.0, 5.0]), (1, 4))
    )


@pytest.mark.parametrize(
    'n, c, k, message',
    [
        (10, 3, 11, 'needs at least 11 samples'),
        ([10, 4], [3, 3], 8, 'one has 4'),
        (10, 11, 1, 'cannot exceed'),
        (10, -1, 1, '>= 0'),
        (10, 3, 0, '>= 1'),
        (0, 0, 1, '>= 1'),
        (10, 3.5, 1, 'whole numbers'),
        (10, float('nan'), 1, 'whole numbers'),
        (float('inf'), 3, 1, 'whole numbers'),
        ([], [], 1, 'empty'),
        (10, [1], [], 'empty'),
        ([10, 10], [1, 2, 3], 1, 'shape'),
        (10, [True, False], 1, 'counts'),
        (10, ['3'], 1, 'counts'),
    ],
)
def test_bad_counts(n, c, k, message):
    with pytest.raises(ValueError, match=message):
        pass_at_k(n, c, k)


@pytest.mark.parametrize(
    'n, k, p', [(20, 5, 0.1), (8, 4, 0.5), (30, 1, 0.3), (12, 6, 0.02), (10, 2, 1.0), (10, 2, 0.0)]
)
def test_moments_by_enumeration(n, k, p):
    c = np.arange(n + 1)
    chance, U = stats.binom.pmf(c, n, p), pass_at_k(n, c, k)
    assert chance @ U == pytest.approx(true_pass_at_k(p, k), abs=1e-13)
    variance = chance @ U**2 - (chance @ U) ** 2
    assert true_pass_at_k_variance(p, n, k) == pytest.approx(variance, abs=1e-13)
    assert chance @ pass_at_k_variance(n, c, k) == pytest.approx(variance, abs=1e-13)


def test_variance_needs_twice_k():
    with pytest.raises(ValueError, match='n >= 12'):
        pass_at_k_variance(10, 3, 6)
    with pytest.raises(ValueError, match='two problems'):
        pass_at_k_error(10, 3, 1)
    with pytest.raises(ValueError, match='sampled'):
        pass_at_k_error(10, [3, 1], 1, problems='all')
    with pytest.raises(ValueError, match='wanted one a problem'):
        pass_at_k_error(10, np.ones((5, 7)), 1)
    assert pass_at_k_error([10, 10], 5, 1) == 0  # two problems of equal counts
    with pytest.raises(ValueError, match='needs at least 10 samples'):
        true_pass_at_k_variance(0.1, 5, 10)
    with pytest.raises(ValueError, match='probabilities in'):
        true_pass_at_k_variance(1.5, 5, 2)


def test_fixed_error_by_simulation():
    rng, p = np.random.default_rng(0), np.linspace(0.02, 0.6, 30)
    counts = rng.binomial(40, p, size=(3000, 30))
    means = pass_at_k(40, counts, 8).mean(1)
    stated = np.mean([pass_at_k_error(40, c, 8, problems='fixed') ** 2 for c in counts[:500]])
    assert stated == pytest.approx(means.var(), rel=0.1)


def test_true_pass_at_k():
    assert np.allclose(true_pass_at_k([0, 0.1, 1], [1, 5]), [[0, 0], [0.1, 1 - 0.9**5], [1, 1]])
    assert true_pass_at_k(1e-12, 1000) == pytest.approx(1e-9, rel=1e-6)
    with pytest.raises(ValueError, match='probabilities'):
        true_pass_at_k(1.5, 1)


def test_ks_up_to():
    assert ks_up_to(256).tolist() == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert ks_up_to([300, 100]).tolist() == [1, 2, 4, 8, 16, 32, 64] and ks_up_to(
        1000, base=10
    ).tolist() == [1, 10, 100, 1000]


# ---- bootstrap and crossing ----


def test_bootstrap_is_paired_and_deterministic():
    values = np.random.default_rng(0).uniform(size=(30, 4))
    a, b = bootstrap_means(values, values + 0.25, resamples=50)
    assert np.allclose(b - a, 0.25) and np.array_equal(a, bootstrap_means(values, resamples=50)[0])
    assert not np.array_equal(a, bootstrap_means(values, resamples=50, seed=1)[0])


def test_bootstrap_redraws_seeds():
    values = np.stack([np.zeros((50, 1)), np.ones((50, 1))])  # seeds differ, problems do not
    assert (
        bootstrap_band(values.mean(0)).low == 0.5
        and bootstrap_band(values).low == 0
        and bootstrap_band(values).high == 1
    )
    assert bootstrap_means(values[:1]).max() == 0  # one seed: problems only


def test_ceiling_is_exactly_one():
    "Two curves at the ceiling tie exactly, whatever the number of problems and seeds."
    for problems, seeds in [(7, 3), (50, 3), (97, 7)]:
        base, trained = np.ones((problems, 2)), np.ones((seeds, problems, 2))
        assert (bootstrap_means(base, trained) == 1).all() and crossing_band(
            base, trained, [1, 2], strict=True
        ).never == 1


def test_bootstrap_matches_normal_theory():
    values = np.random.default_rng(0).normal(size=400)
    band = bootstrap_band(values)
    assert band.high - band.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.06)


def test_bootstrap_errors():
    with pytest.raises(ValueError, match='same problems'):
        bootstrap_band(np.zeros((3, 2)), np.zeros((4, 2)))
    with pytest.raises(ValueError, match='nan'):
        bootstrap_band([1.0, np.nan])
    with pytest.raises(ValueError, match='axes'):
        bootstrap_band(1.0)


def test_crossing():
    ks = [1, 2, 4, 8]
    assert (
        crossing_point([0.1, 0.3, 0.6, 0.9], [0.3, 0.4, 0.6, 0.7], ks) == 4
        and crossing_point([0.1, 0.3, 0.6, 0.9], [0.3, 0.4, 0.6, 0.7], ks, strict=True) == 8
    )
    assert (
        crossing_point([0.1] * 4, [0.2] * 4, ks) == np.inf
        and crossing_point([0.3] * 4, [0.2] * 4, ks) == 1
    )
    with pytest.raises(ValueError, match='one value per k'):
        crossing_point([0.1, 0.2], [0.1, 0.2], ks)


def test_a_curve_never_passes_copies_of_itself():
    for seed in range(20):
        luck = np.random.default_rng(seed)
        values = pass_at_k(64, luck.binomial(64, luck.beta(0.6, 1.8, size=37)), ks_up_to(64))
        copies = np.stack([values] * 3)
        strict = crossing_band(values, copies, ks_up_to(64), strict=True, resamples=50)
        reached = crossing_band(values, copies, ks_up_to(64), resamples=50)
        assert strict.k == np.inf and strict.never == 1 and reached.k == 1
    assert crossing_point([0.1, 0.5, 0.2], [0.2, 0.4, 0.3], [1, 2, 4]) == 2  # the first touch


def test_crossings_need_ascending_ks_and_numbers():
    with pytest.raises(ValueError, match='wanted them ascending'):
        crossing_point([0.9, 0.1], [0.7, 0.3], [8, 1])
    with pytest.raises(ValueError, match='a curve holds nan'):
        crossing_point([np.nan, 0.9], [0.1, 0.2], [1, 2])


def test_crossing_band_covers_truth():
    rng, ks = np.random.default_rng(0), ks_up_to(64)
    law_base, law_trained = (0.6, 1.8), (0.22, 0.28)
    ease = (np.arange(20_000) + 0.5) / 20_000
    truth = crossing_point(
        *(
            true_pass_at_k(stats.beta.ppf(ease, *law), ks).mean(0)
            for law in (law_base, law_trained)
        ),
        ks,
    )
    hits = 0
    for seed in range(100):
        u = rng.uniform(size=80)
        base, trained = (
            pass_at_k(64, rng.binomial(64, stats.beta.ppf(u, *law)), ks)
            for law in (law_base, law_trained)
        )
        band = crossing_band(base, trained, ks, resamples=200, seed=seed)
        hits += band.low <= truth <= band.high
    assert np.isfinite(truth) and hits >= 90


# ---- votes ----


def brute_majority(answers, correct, k, weights=None):
    weights, credit = np.ones(len(answers)) if weights is None else weights, []
    for pick in itertools.combinations(range(len(answers)), k):
        totals = {}
        for i in pick:
            totals[answers[i]] = totals.get(answers[i], 0) + weights[i]
        best = [a for a, x in totals.items() if x >= max(totals.values()) - 1e-12]
        credit.append(
            sum(a is not None and any(c for b, c in zip(answers, correct) if b == a) for a in best)
            / len(best)
        )
    return np.mean(credit)


@given(
    st.lists(st.sampled_from(['a', 'b', 'c', None]), min_size=1, max_size=8),
    st.sets(st.sampled_from(['a', 'b', 'c'])),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_majority_by_enumeration(answers, right, data):
    k, correct = data.draw(st.integers(1, len(answers))), [a in right for a in answers]
    weights = np.array(
        data.draw(
            st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=len(answers), max_size=len(answers))
        )
    )
    assert maj_at_k(answers, correct, k) == pytest.approx(brute_majority(answers, correct, k))
    assert maj_at_k(answers, correct, k, weights=weights) == pytest.approx(
        brute_majority(answers, correct, k, weights)
    )


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.data())
@settings(max_examples=60, deadline=None)
def test_pass_at_k_bounds_every_choice(answers, data):
    n, correct = len(answers), np.array(answers) == 0
    scores, ks = (
        np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))),
        np.arange(1, n + 1),
    )
    bound = pass_at_k(n, correct.sum(), ks) + 1e-12
    assert (maj_at_k(answers, correct, ks) <= bound).all() and (
        best_of_k(scores, correct, ks) <= bound
    ).all()


def test_majority_estimate_is_close_and_reproducible():
    rng = np.random.default_rng(0)
    answers = rng.integers(3, size=30).tolist()
    correct = [a == 0 for a in answers]
    a, b = (maj_at_k(answers, correct, [1, 5, 15, 30], draws=2000, seed=s) for s in (0, 1))
    assert np.allclose(a, b, atol=0.05) and np.array_equal(
        a, maj_at_k(answers, correct, [1, 5, 15, 30], draws=2000, seed=0)
    )
    assert a[0] == pytest.approx(np.mean(correct), abs=1e-12)


def test_unparsed_is_never_right():
    assert (
        maj_at_k([None, None, 'a'], [True, True, True], 3) == 0
        and maj_at_k([None, 'a'], [False, True], 2) == 0.5
    )


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2)), min_size=1, max_size=8), st.data()
)
@settings(max_examples=60, deadline=None)
def test_best_of_k_by_enumeration(pairs, data):
    scores, rewards = (np.array(x, dtype=float) for x in zip(*pairs))
    k, values = data.draw(st.integers(1, len(pairs))), []
    for pick in itertools.combinations(range(len(pairs)), k):
        s, r = scores[list(pick)], rewards[list(pick)]
        values.append(r[s == s.max()].mean())
    assert best_of_k(scores, rewards, k) == pytest.approx(np.mean(values), abs=1e-12)


def test_vote_errors():
    with pytest.raises(ValueError, match='both right and wrong'):
        maj_at_k(['a', 'a'], [True, False], 1)
    with pytest.raises(ValueError, match='one correct flag'):
        maj_at_k(['a'], [True, False], 1)
    with pytest.raises(ValueError, match='weights'):
        maj_at_k(['a', 'b'], [True, False], 1, weights=[1, 0])
    with pytest.raises(ValueError, match='needs at least 3'):
        maj_at_k(['a', 'b'], [True, False], 3)
    with pytest.raises(ValueError, match='needs at least 3'):
        best_of_k([1, 2], [0, 1], 3)
    with pytest.raises(ValueError, match='one score'):
        best_of_k([1, np.nan], [0, 1], 1)


def test_avg_at_k():
    share, error = avg_at_k([4, 1], [1, 1])
    assert share.tolist() == [0.25, 1] and error[0] == pytest.approx(0.25) and np.isnan(error[1])


# ---- entropy ----


def test_token_entropy_ignores_what_is_masked():
    entropy = torch.tensor([[0.5, float('nan')], [1.5, 2.5]])
    mask = torch.tensor([[True, False], [True, True]])
    assert mean_token_entropy(entropy, mask) == pytest.approx(1.5) and mean_token_entropy(
        entropy, mask, by='response'
    ) == pytest.approx(1.25)
    assert math.isnan(mean_token_entropy(entropy, torch.zeros(2, 2, dtype=torch.bool)))
    table = entropy_by_position(entropy, torch.tensor([[True, False], [True, False]]))
    assert (
        table['count'].tolist() == [2, 0]
        and table['entropy'][0] == 1
        and math.isnan(table['entropy'][1])
    )
    with pytest.raises(ValueError, match='shape'):
        mean_token_entropy(entropy, mask[:1])


def test_answers_in_tensors_and_tables_are_the_same_answers():
    assert answer_entropy(torch.tensor([7, 7, 9, 9])) == pytest.approx(math.log(2))
    assert answer_entropy([torch.tensor(7), torch.tensor(7)]) == 0
    holes = [7.0, None, None, None]
    assert answer_entropy(pd.Series(holes)) == answer_entropy(holes) > 0
    assert answer_entropy(np.array([np.nan] * 5)) == 0
    assert distinct_solutions(torch.tensor([7, 7, 9, 9]), [True] * 4) == 2
    assert distinct_solutions(pd.Series(holes), np.array([True] * 4)) == 1
    assert distinct_solutions(['a', 'b'], torch.tensor([1.0, 0.0])) == 1
    for flag in (np.nan, None, 0.5, 'yes'):
        with pytest.raises(ValueError, match='wanted True or False'):
            distinct_solutions(['a', 'b'], [True, flag])
    with pytest.raises(ValueError, match='one plain value for each response'):
        answer_entropy([[1], [2]])


def test_answer_entropy():
    assert (
        answer_entropy(['a', None, 'b', None]) == pytest.approx(1.5 * math.log(2))
        and answer_entropy(['a'] * 9) == 0
    )
    assert answer_entropy(['a', 'b'], correction='miller-madow') == pytest.approx(
        math.log(2) + 0.25
    )
    with pytest.raises(ValueError, match='at least one'):
        answer_entropy([])


@given(st.lists(st.sampled_from(['a', 'b', 'c', 'wrong', None]), min_size=1, max_size=8), st.data())
@settings(max_examples=60, deadline=None)
def test_distinct_solutions_by_enumeration(answers, data):
    k, correct = data.draw(st.integers(1, len(answers))), [a != 'wrong' for a in answers]
    right = [
        len({answers[i] for i in pick} - {'wrong', None})
        for pick in itertools.combinations(range(len(answers)), k)
    ]
    assert distinct_solutions(answers, correct, k=k) == pytest.approx(np.mean(right))
    assert distinct_solutions(answers, correct) == len(set(answers) - {'wrong', None})


@pytest.mark.parametrize('smooth', [1, 2, 9, 10])
@pytest.mark.parametrize('every', [1, 5])
def test_a_level_is_read_where_the_curve_is_there(smooth, every):
    "A straight line a + b s is at a level at (level - a) / b, also when it falls."
    step = np.arange(3, 3 + 60 * every, every)
    table = pd.DataFrame(dict(step=step, accuracy=0.1 + 0.01 * step, entropy=9 - 0.01 * step))
    table['jump'] = np.where(step >= step[30], 1.0, 0.0)
    for level in (0.1 + 0.01 * (step[6] + 0.3), 0.1 + 0.01 * (step[40] - 0.9)):
        assert reached_step(table, level) == pytest.approx((level - 0.1) / 0.01)
    before, after = step[:30].mean(), step[30:].mean()
    assert reached_step(table, 0.5, metric='jump') == pytest.approx((before + after) / 2)
    assert reached_step(table, 99.0) is None and reached_step(table, -99.0) == step[0]
    fallen = entropy_trend(table, smooth=smooth, collapse=0.99)
    assert fallen['collapse_step'] == pytest.approx((9 - 0.99 * fallen['start']) / 0.01)
    assert math.isnan(fallen['half_step'])


@pytest.mark.parametrize('slope, noise', [(0.0016, 0.116), (0.0023, 0.062), (0.0009, 0.062)])
def test_noise_and_slowness_do_not_move_the_place_where_a_level_is_read(slope, noise):
    "Where a mean over ten steps is there first, the curve is not yet: .01 to .03 below."
    luck = np.random.default_rng(0)
    step = np.arange(100)
    curve = 0.24 + slope * step
    runs = [curve + noise * luck.standard_normal(100) for _ in range(300)]
    tables = [pd.DataFrame(dict(step=step, accuracy=run)) for run in runs]
    read = [reached_step(table, 0.3) for table in tables]
    there = [0.24 + slope * place for place in read if place is not None]
    assert len(there) > 290 and np.mean(there) == pytest.approx(0.3, abs=0.004)
    by_luck = [first_step_at(window_means(table, 'accuracy'), 0.3) for table in tables]
    early = [0.24 + slope * place for place in by_luck if place is not None]
    assert 0.27 < np.mean(early) < 0.292


def test_a_step_without_the_metric_is_read_across():
    table = pd.DataFrame(dict(step=range(30), accuracy=np.arange(30.0)))
    table.loc[12, 'accuracy'] = np.nan
    assert reached_step(table, 12.0) == pytest.approx(12)


def test_windows_skip_steps_that_recorded_nothing():
    table = pd.DataFrame({'step': range(40), 'entropy': np.linspace(1, 0.05, 40)})
    seldom = table.assign(entropy=table['entropy'].where(table['step'] % 5 == 0))
    both = [entropy_trend(t, smooth=smooth, start=1.0) for t, smooth in ((table, 10), (seldom, 2))]
    assert both[0]['half_step'] == pytest.approx(both[1]['half_step'])
    assert both[1]['half_step'] == pytest.approx(0.5 / 0.95 * 39)
    with pytest.raises(ValueError, match='smooth must hold whole numbers >= 1'):
        window_means(table, 'entropy', smooth=0)
    with pytest.raises(ValueError, match='no step with a value of entropy'):
        entropy_trend(table.iloc[:0])
    with pytest.raises(ValueError, match='columns step and reward'):
        window_means(table, 'reward')
    with pytest.raises(ValueError, match='wanted an entropy above 0'):
        entropy_trend(table, start=0.0)


def test_the_start_of_an_entropy_may_be_given():
    step = np.arange(1, 151)
    table = pd.DataFrame({'step': step, 'entropy': 0.9 * np.exp(-step / 10)})
    given, read = entropy_trend(table, start=0.9), entropy_trend(table)
    assert read['half_step'] - given['half_step'] > 4 and given['kept'] < read['kept']
    assert given['half_step'] == pytest.approx(10 * math.log(2), abs=0.6)


def test_runs_of_one_method_and_seed_are_told_apart():
    metrics = pd.DataFrame({'step': [0, 10, 20], 'entropy': [1.0, 0.4, 0.4]})

    def run(**config):
        return SimpleNamespace(method='a', seed=1, metrics=metrics, config=config)

    table = entropy_table([run(regime='x'), run(regime='y')])
    assert table.index.names == ['method', 'seed', 'regime'] and len(table) == 2
    by_rate = entropy_table([run(recipe={'lr': 1e-4}), run(recipe={'lr': 3e-4})])
    assert by_rate.index.tolist() == [('a', 1, 1e-4), ('a', 1, 3e-4)]
    with pytest.raises(ValueError, match='several runs are'):
        entropy_table([run(), run()])
    with pytest.raises(ValueError, match='at least one run'):
        entropy_table([])
    with pytest.raises(ValueError, match="two runs are 'a' with seed 1"):
        plot_training([run(regime='x'), run(regime='y')], 'entropy')


def test_a_picture_shows_a_level_where_the_table_reads_it():
    step = np.arange(1, 61)
    metrics = pd.DataFrame({'step': step, 'entropy': 1 - 0.015 * step, 'accuracy': 0.0})
    run = SimpleNamespace(method='a', seed=1, metrics=metrics)
    line = plot_training([run], 'entropy').lines[0]
    drawn = pd.Series(line.get_ydata(), line.get_xdata())
    table = entropy_table([run])
    half = 0.5 * table.loc[('a', 1), 'start']
    assert first_step_at(-drawn, -half) == pytest.approx(table.loc[('a', 1), 'half_step'])
    seldom = metrics.assign(entropy=metrics['entropy'].where(step % 5 == 0))
    run.metrics = seldom
    path = plot_entropy([run], smooth=2).axes[1].lines[0]
    assert len(path.get_xdata()) == len(path.get_ydata()) == 11


def test_entropy_trend():
    metrics = pd.DataFrame({'step': [0, 10, 20], 'entropy': [1.0, 0.4, 0.4]})
    trend = entropy_trend(metrics, smooth=1)
    assert (
        trend['half_step'] == pytest.approx(10 * 5 / 6)
        and math.isnan(trend['collapse_step'])
        and trend['kept'] == pytest.approx(0.4)
        and math.isnan(trend['gain_per_nat'])
    )
    assert entropy_table([SimpleNamespace(method='a', seed=1, metrics=metrics)]).index.tolist() == [
        ('a', 1)
    ]


# ---- the boundary ----


@pytest.mark.parametrize('use', [support, support_band, transitions])
@pytest.mark.parametrize(
    'before, after, said',
    [
        ([0.5, 0.9], [0.1, 1.0], 'whole numbers'),
        ([np.nan, 3], [1, 2], 'whole numbers'),
        ([-1, 3], [1, 2], 'whole numbers'),
        ([5, 1, 0, 0], [9], 'same problems in the same order'),
        ([5, 1, 0, 0], [9, 1, 1], 'same problems in the same order'),
        ([], [], 'is empty'),
    ],
)
def test_supports_are_read_off_counts_of_the_same_problems(use, before, after, said):
    with pytest.raises(ValueError, match=said):
        use(before, after)


def test_edges_and_hits_that_cannot_be():
    with pytest.raises(ValueError, match='wanted them ascending'):
        transitions([1], [2], edges=(5, 1, 11))
    for hits in (0, float('nan'), 1.5):
        with pytest.raises(ValueError, match='hits must hold whole numbers'):
            support([1, 3], [1, 2], hits=hits)


def test_seeds_do_not_multiply_the_problems_of_a_band():
    luck = np.random.default_rng(0)
    before = luck.integers(0, 3, size=60)
    after = luck.integers(0, 3, size=60)
    one = support_band(before, after)
    five = support_band(before, np.stack([after] * 5))
    same = support_band(np.stack([before] * 5), np.stack([after] * 5))
    pooled = support_band(np.tile(before, 5), np.tile(after, 5))
    assert np.allclose(one['value'], five['value']) and same.equals(five)
    width = [band['high'] - band['low'] for band in (one, five, pooled)]
    assert np.allclose(width[0], width[1], atol=0.03) and (width[2] < 0.6 * width[1]).all()
    assert support_band(before, after).loc['srr', 'value'] == support(before, after).srr


# ---- pictures ----

BAND = Band(*np.array([[0.2, 0.5, 0.8], [0.1, 0.4, 0.7], [0.3, 0.6, 0.9]]))


def test_one_look_per_method():
    assert method_look('base') == {'color': 'black', 'linestyle': '--', 'marker': ''}
    code = "from rl4llm.analysis.plots import method_look; print(method_look('some_new_method'))"
    assert subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True
    ).stdout.strip() == str(method_look('some_new_method'))
    assert all(
        method_look(name)['color'] in OKABE_ITO.values() and method_look(name)['linestyle'] == '-'
        for name in 'abcdefgh'
    )


def test_pass_at_k_picture():
    ax = plot_pass_at_k({'base': BAND, 'grpo': BAND.mean + 0.1}, [1, 4, 16])
    assert ax.get_xscale() == 'log' and [t.get_text() for t in ax.get_xticklabels()] == [
        '1',
        '4',
        '16',
    ]
    assert (
        'k (samples' in ax.get_xlabel()
        and 'pass@k' in ax.get_ylabel()
        and [t.get_text() for t in ax.texts] == ['base', 'grpo']
    )
    assert ax.lines[0].get_linestyle() == '--' and len(ax.collections) == 1
    buffer = io.BytesIO()
    ax.figure.savefig(buffer)
    assert len(buffer.getvalue()) < 60_000
    with pytest.raises(ValueError, match='3 values for 2'):
        plot_pass_at_k({'base': BAND}, [1, 4])


@given(st.lists(st.floats(-0.5, 1.5), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_labels_never_overlap(heights):
    moved = spread(heights, 0.08)
    assert (
        (np.diff(np.sort(moved)) >= 0.08 - 1e-9).all()
        and moved.min() >= -1e-9
        and moved.max() <= 1 + 1e-9
    )
    order = np.argsort(heights, kind='stable')
    assert (np.diff(moved[order]) > 0).all()


def test_style_leaves_no_trace():
    before = dict(plt.rcParams)
    with style(**{'font.size': 20}):
        assert plt.rcParams['font.size'] == 20
    plot_difference({'grpo': BAND}, [1, 2, 4])
    assert dict(plt.rcParams) == before


def made_up_metrics(seed=0, steps=30):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            'step': np.arange(1, steps + 1),
            'accuracy': np.linspace(0.2, 0.5, steps) + 0.01 * rng.normal(size=steps),
            'entropy': np.linspace(0.9, 0.3, steps),
        }
    )


def test_training_pictures():
    runs = [
        SimpleNamespace(method=m, seed=s, metrics=made_up_metrics(s, 30 - 5 * s))
        for m in ('grpo', 'rloo')
        for s in range(2)
    ]
    ax = plot_training(runs, 'accuracy')
    assert len(ax.lines) == 2 and ax.lines[0].get_xdata().max() == 20.5  # 16..25, which all seeds have
    assert (
        len(plot_entropy(runs).axes) == 2
        and plot_by_position({'base': [1, 0.5, np.nan]}).texts[0].get_text() == 'base'
    )
    with pytest.raises(ValueError, match='it has step, accuracy, entropy'):
        plot_training(runs, 'loss')
    assert label_lines(ax, {}) is ax


# ---- comparison of runs ----


def made_up_evaluation(p, seed=0, step=0, n=64, order=None, **fields):
    keys, counts = (
        np.array([f'demo|{i}' for i in range(len(p))]),
        np.random.default_rng((seed, step)).binomial(n, p),
    )
    order = np.arange(len(p)) if order is None else order
    return SimpleNamespace(
        **{
            **dict(
                step=step,
                task='demo',
                keys=tuple(keys[order]),
                num_samples=np.full(len(p), n),
                num_correct=counts[order],
                seed=seed,
                model='tiny',
                temperature=1.0,
            ),
            **fields,
        }
    )


P = np.random.default_rng(5).beta(0.6, 1.8, size=40)


def made_up_run(method='grpo', seed=0, gain=0.1, **fields):
    base, p = made_up_evaluation(P), np.clip(P + gain, 0, 1)
    evaluations = {
        0: base,
        **{
            step: made_up_evaluation(P + (p - P) * step / 30, seed + 100, step)
            for step in (10, 20, 30)
        },
    }
    return SimpleNamespace(
        **{
            **dict(
                method=method,
                seed=seed,
                model='tiny',
                task='demo',
                base=base,
                final=evaluations[30],
                evaluations=evaluations,
                metrics=made_up_metrics(seed),
            ),
            **fields,
        }
    )


def altered(x, **fields):
    return SimpleNamespace(**{**vars(x), **fields})


def test_crossed_interval_reduces_to_t():
    x = np.random.default_rng(0).normal(0.1, 0.3, size=(25, 1))
    ours, reference = crossed_interval(x), stats.ttest_1samp(x[:, 0], 0)
    assert ours.p[0] == pytest.approx(reference.pvalue, abs=1e-10) and ours.low[0] == pytest.approx(
        reference.confidence_interval().low
    )
    y = x + np.random.default_rng(1).normal(0.1, 0.1, size=(25, 1))
    assert crossed_interval(y, x).p[0] == pytest.approx(
        stats.ttest_rel(y[:, 0], x[:, 0]).pvalue, abs=1e-10
    )


def by_hand(a, b=None, level=0.95):
    "Mean and half-width over seeds and problems, written out as in the text."
    upper = lambda df: stats.t.ppf(0.5 + level / 2, df)
    gap = a.mean(0) - (0 if b is None else b.mean(0))
    square = upper(a.shape[1] - 1) ** 2 * gap.var(ddof=1) / a.shape[1]
    for arm in (a,) if b is None else (a, b):
        if len(arm) > 1:
            square += upper(len(arm) - 1) ** 2 * arm.mean(1).var(ddof=1) / len(arm)
    return gap.mean(), np.sqrt(square)


def agrees_with_hand(function=crossed_interval):
    "Whether an interval over seeds and problems is the one written out: one arm and two, several sizes and levels."
    rng = np.random.default_rng(3)
    for seeds, others, problems, level in (
        (2, 5, 3, 0.95),
        (5, 3, 12, 0.9),
        (3, 3, 40, 0.99),
        (1, 4, 7, 0.95),
    ):
        a, b = (
            rng.normal(0.1, 0.3, size=(seeds, problems)),
            rng.normal(0, 0.2, size=(others, problems)),
        )
        for minus in (None, b):
            found = function(a[..., None], None if minus is None else minus[..., None], level=level)
            mean, half = by_hand(a, minus, level)
            if not np.allclose(
                [found.mean[0], found.low[0], found.high[0]],
                [mean, mean - half, mean + half],
                atol=1e-9,
            ):
                return False
            if not np.isclose(by_hand(a, minus, 1 - found.p[0])[1], abs(mean), rtol=1e-4):
                return False
    return True


def with_fault(function, old, new):
    "The function with a change in its text; what it calls in its module is looked up first in the changed one."
    import inspect, textwrap

    text = textwrap.dedent(inspect.getsource(function))
    assert text.count(old) == 1, (function.__name__, old)
    space = dict(function.__globals__)
    exec('from __future__ import annotations\n' + text.replace(old, new), space)
    return space[function.__name__]


def test_the_interval_is_the_one_written_out():
    assert agrees_with_hand()


@pytest.mark.parametrize(
    'part, old, new',
    [
        (
            '_variances',
            'per_problem.var(0, ddof=1) / problems',
            'per_problem.var(0, ddof=0) / problems',
        ),
        ('_variances', 'per_problem.var(0, ddof=1) / problems', 'per_problem.var(0, ddof=1)'),
        ('_variances', 'per_seed.var(0, ddof=1) / seeds', 'per_seed.var(0) / seeds'),
        (
            '_variances',
            'per_seed.var(0, ddof=1) / seeds, seeds - 1',
            'per_seed.var(0, ddof=1) / seeds, seeds',
        ),
        ('_variances', 'problems, problems - 1', 'problems, problems'),
        ('_variances', 'per_problem - arms[1].mean(0)', 'per_problem + arms[1].mean(0)'),
        ('_variances', 'for arm in arms:', 'for arm in arms[:1]:'),
        ('_variances', 'per_seed = arm.mean(1)', 'per_seed = arm.mean(0)'),
        ('_variances', 'if seeds > 1:', 'if seeds > 2:'),
        ('half_width', '0.5 + level / 2', 'level'),
        ('half_width', 'level / 2)**2 * variance', 'level / 2) * variance'),
        ('half_width', 'stdtrit(df, 0.5 + level / 2)', '1.96'),
        ('half_width', 'np.sqrt(sum(squares))', 'sum(np.sqrt(s) for s in squares)'),
        ('half_width', 'np.sqrt(sum(squares))', 'np.sqrt(max(squares))'),
        ('p_value', 'return 1 - low', 'return (1 - low) / 2'),
        ('p_value', 'np.where(covers, low, middle)', 'np.where(covers, middle, low)'),
        ('crossed_luck', 'mean - arms[1].mean((0, 1))', 'mean'),
        ('crossed_interval', 'half_width(parts, level)', 'half_width(parts, 0.95)'),
    ],
)
def test_a_planted_fault_of_the_interval_is_found(part, old, new, monkeypatch):
    from rl4llm.studies import comparison

    faulty = with_fault(vars(comparison)[part], old, new)
    monkeypatch.setitem(vars(comparison), part, faulty)
    with np.errstate(all='ignore'):
        assert not agrees_with_hand(faulty if part == 'crossed_interval' else crossed_interval), (
            f'{new} was not noticed'
        )


def bootstrap_is_right():
    "Spread, levels, tails and seeds of the hierarchical bootstrap against what they are by definition."
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.05, 0.2, size=(6, 40, 1)), rng.normal(0, 0.2, size=(4, 40, 1))
    copies = np.subtract(*bootstrap_means(a, b, resamples=500, seed=3))[:, 0]
    from rl4llm.studies.comparison import hierarchical_interval

    found = hierarchical_interval(a, b, level=0.9, resamples=500, seed=3)
    tail = min((copies <= 0).sum(), (copies >= 0).sum())
    want = [
        a.mean() - b.mean(),
        np.quantile(copies, 0.05),
        np.quantile(copies, 0.95),
        min(1, 2 * (tail + 1) / 501),
    ]
    return (
        np.allclose([x[0] for x in found], want)
        and hierarchical_interval(a, b, resamples=500, seed=4).low
        != hierarchical_interval(a, b, resamples=500, seed=3).low
    )


def test_the_bootstrap_is_what_it_is_by_definition():
    assert bootstrap_is_right()


@pytest.mark.parametrize(
    'old, new',
    [
        ('seed=seed', 'seed=0'),
        ('resamples=resamples', 'resamples=200'),
        ('(1 - level) / 2', '1 - level'),
        ('[1, -1]', '[1, 1]'),
        ('2 * (tail + 1)', '(tail + 1)'),
        ('(copies <= 0)', '(copies >= 0)'),
    ],
)
def test_a_planted_fault_of_the_bootstrap_is_found(old, new, monkeypatch):
    from rl4llm.studies import comparison

    monkeypatch.setattr(
        comparison, 'hierarchical_interval', with_fault(comparison.hierarchical_interval, old, new)
    )
    assert not bootstrap_is_right(), f'{new} was not noticed'


def test_spread_of_bootstrap_copies_is_that_of_the_means():
    "Problems and seeds both redrawn, crossed: the variance of a copy is the sum of the two parts (and their small product)."
    rng = np.random.default_rng(0)
    values = rng.normal(size=(4, 1, 1)) + rng.normal(size=(1, 50, 1)) * 2
    copies = bootstrap_means(values, resamples=40_000, seed=1)[0, :, 0]
    assert copies.var() == pytest.approx(
        values.mean(1).var() / 4 + values.mean(0).var() / 50, rel=0.05
    )
    assert np.array_equal(
        bootstrap_means(values, seed=5), bootstrap_means(values, seed=5)
    ) and not np.array_equal(bootstrap_means(values, seed=5), bootstrap_means(values, seed=6))


def test_p_value_agrees_with_interval():
    rng = np.random.default_rng(0)
    for _ in range(50):
        a, b = rng.normal(0.08, 0.3, size=(4, 20, 3)), rng.normal(0, 0.3, size=(3, 20, 3))
        e = crossed_interval(a, b)
        assert np.array_equal(e.p < 0.05, (e.low > 0) | (e.high < 0))


def test_degenerate_intervals():
    same = crossed_interval(np.ones((5, 2)), np.ones((5, 2)))
    assert (same.p == 1).all() and (same.low == 0).all()
    assert (crossed_interval(np.ones((5, 2))).p < 1e-10).all()
    with pytest.raises(ValueError, match='two problems'):
        crossed_interval(np.ones((3, 1, 2)))


def test_difference_covers_truth():
    "Paired difference of two methods with seed effects: 200 worlds, nominal 95%."

    def values(rng, ease, shift, seeds):
        p = 1 / (
            1
            + np.exp(
                -(
                    1.5 * ease
                    + shift
                    + 0.4 * rng.normal(size=(seeds, 1))
                    + 0.3 * rng.normal(size=(seeds, len(ease)))
                )
            )
        )
        return p, pass_at_k(64, rng.binomial(64, p), [1, 8])

    rng = np.random.default_rng(0)
    ease = rng.normal(-1.5, 1.5, size=(2000, 200))
    worlds = [
        np.mean(
            [[(1 - (1 - values(rng, e, shift, 1)[0]) ** k).mean() for k in (1, 8)] for e in ease],
            axis=0,
        )
        for shift in (1.0, 0.5)
    ]
    truth, hits, inside = worlds[0] - worlds[1], [], []
    for seed in range(200):
        rng = np.random.default_rng((1, seed))
        ease = rng.normal(-1.5, 1.5, size=60)
        a, b = values(rng, ease, 1.0, 5)[1], values(rng, ease, 0.5, 5)[1]
        for out, e in (
            (hits, crossed_interval(a, b)),
            (inside, hierarchical_interval(a, b, resamples=200, seed=seed)),
        ):
            out.append((e.low <= truth) & (truth <= e.high))
    assert 0.92 <= np.mean(hits) <= 0.99 and 0.85 <= np.mean(inside) <= 0.98


def test_holm():
    assert (
        np.allclose(holm([0.01, 0.04, 0.03, 0.5]), [0.04, 0.09, 0.09, 0.5])
        and np.allclose(holm([0.9, 0.8]), [1, 1])
        and len(holm([])) == 0
    )


def test_table_and_differences():
    runs = [made_up_run('grpo', s, 0.15) for s in range(5)] + [
        made_up_run('rloo', s, 0.0) for s in range(5)
    ]
    c = compare(runs)
    assert (
        list(c.counts) == ['base', 'grpo', 'rloo']
        and c.ks == (1, 4, 16, 64)
        and c.counts['base'][0].shape == (1, 40)
    )
    assert c.table[1]['mean']['grpo'] == pytest.approx(
        np.mean([r.final.num_correct.mean() / 64 for r in runs[:5]])
    )
    assert c.table[('note', '')].tolist() == ['untrained', '', ''] and c.table[
        ('seeds', '')
    ].tolist() == [0, 5, 5]
    d = c.differences().set_index(['method', 'k'])
    assert (
        d.loc[('grpo', 1), 'verdict'] == 'higher'
        and d.loc[('rloo', 1), 'verdict'] == 'no difference shown'
        and (d['p_holm'] >= d['p']).all()
    )
    against = c.differences('grpo', correction=None)
    assert against['method'].unique().tolist() == ['rloo'] and 'p_holm' not in against
    assert against['difference'][0] == pytest.approx(
        d.loc[('rloo', 1), 'difference'] - d.loc[('grpo', 1), 'difference']
    )
    assert {'k', 'low', 'high', 'never'} == set(c.crossings()) and len(c.plot().axes) == 2
    assert (
        'pass@64' in c._repr_html_()
        and 'no difference shown' in c._repr_html_()
        and 'grpo' in repr(c)
    )
    with pytest.raises(ValueError, match="no runs of 'ppo'"):
        c.differences('ppo')


def test_the_correction_is_over_the_rows_that_are_returned():
    "Rows that nobody asked for neither cost nor save anything."
    runs = [
        made_up_run(name, s, lift)
        for name, lift in (('grpo', 0.06), ('rloo', 0.0), ('ppo', 0.02))
        for s in range(5)
    ]
    c = compare(runs)
    whole = c.differences('rloo')
    for methods, ks in (('grpo', None), (['grpo', 'ppo'], (1, 16)), (None, 64), ('ppo', [4])):
        part = c.differences('rloo', methods=methods, ks=ks)
        names = ['grpo', 'ppo'] if methods is None else np.atleast_1d(methods)
        same = whole[whole['method'].isin(names) & whole['k'].isin(np.atleast_1d(ks or c.ks))]
        assert len(part) == len(same) and np.allclose(part['p'], same['p'])
        assert np.allclose(part['p_holm'], holm(part['p']))
        assert (part['p_holm'].to_numpy() <= same['p_holm'].to_numpy() + 1e-12).all()
        decided = part['verdict'].isin(['higher', 'lower'])
        assert (decided == (part['p_holm'] < 0.05)).all()
    two = [c.differences('rloo', methods='grpo', ks=k, correction=None) for k in (1, 64)]
    joined = with_verdicts(pd.concat(two, ignore_index=True))
    assert joined.equals(c.differences('rloo', methods='grpo', ks=(1, 64)))
    with pytest.raises(ValueError, match="no runs of 'gpro'"):
        c.differences('rloo', methods='gpro')
    with pytest.raises(ValueError):
        c.differences('rloo', ks=10**6)


def test_equal_curves_are_no_difference_by_bootstrap_either():
    "Every copy of the difference is 0, which speaks for neither side."
    same = np.tile([0.2, 0.5, 0.9], (3, 1))
    assert (hierarchical_interval(same, same).p == 1).all()


@pytest.mark.parametrize(
    'seeds, difference, p, said',
    [
        (1, 0.1, 0.001, 'one seed: no verdict'),
        (4, 0.1, 0.001, '4 seeds: no verdict yet'),
        (5, 0.1, 0.04, 'higher'),
        (5, -0.1, 0.04, 'lower'),
        (5, 0.1, 0.06, 'no difference shown'),
        (5, 0.1, 1 - 0.95, 'no difference shown'),
    ],
)
def test_what_may_be_said_of_a_difference(seeds, difference, p, said):
    from rl4llm.studies.comparison import _verdict

    assert _verdict(seeds, difference, p, 0.95) == said


def test_intervals_of_pass_at_k_end_at_0_and_1():
    ends = [made_up_evaluation(np.full(40, p), step=30) for p in (0.02, 0.98)]
    c = compare([made_up_run(seed=seed, final=end) for seed, end in enumerate(ends)])
    whole, cut = crossed_interval(c.values('grpo')), c.estimate('grpo')
    assert (whole.low < 0).any() and (whole.high > 1).any()
    assert np.array_equal(cut.low, whole.low.clip(0)) and cut.high.max() == 1
    assert np.array_equal(cut.high, whole.high.clip(max=1)) and np.array_equal(cut.p, whole.p)


def test_the_smaller_side_decides():
    "Of two methods the one with fewer seeds; of problems those with the fewest samples."
    runs = [made_up_run('grpo', s) for s in range(5)] + [made_up_run('rloo', s) for s in range(2)]
    assert (compare(runs).differences('rloo')['seeds'] == 2).all()
    n = np.where(np.arange(40) < 20, 64, 32)
    uneven = made_up_evaluation(P, n=n, seed=3, step=30)
    c = compare([made_up_run(final=uneven)])
    assert c.ks == (1, 4, 16) and np.isfinite(c.crossings()['k']).all()
    assert compare(runs, ks=[1]).ks == (1,)


def test_a_base_that_is_level_is_reached_but_not_passed():
    from rl4llm.studies.comparison import comparison_crossings

    base = made_up_evaluation(P)
    c = compare([made_up_run(base=base, final=altered(base, step=1))])
    for crossings in (c.crossings, lambda **how: comparison_crossings(c, **how)):
        assert crossings().loc['grpo', 'k'] == 1
        assert crossings(strict=True).loc['grpo', 'k'] == np.inf


def test_a_level_that_is_reached_at_an_evaluation_is_read_there():
    metrics = pd.DataFrame(dict(step=range(1, 31), accuracy=np.arange(1, 31) / 100))
    for level, step in ((0.1, 10), (0.3, 30)):
        steps = compare([made_up_run(metrics=metrics)], at_reward=level).steps
        row = steps[['reached', 'evaluated', 'later', 'share']].iloc[0].tolist()
        assert row == [step, step, step, 0]


def test_a_metric_of_a_single_step_is_its_own_curve():
    from rl4llm.studies.comparison import rising_curve

    curve = rising_curve(pd.DataFrame(dict(step=[5], accuracy=[0.3])))
    assert curve.to_dict() == {5: 0.3}


@pytest.mark.parametrize('knob, values', [('sampler', 'ab'), ('temperature', (1.0, 0.8))])
def test_equal_rewards_of_other_samplers_are_not_equal_policies(knob, values):
    runs = [
        made_up_run(method, 0, name=method, config=dict(recipe={knob: value}))
        for method, value in zip(('grpo', 'rloo'), values)
    ]
    assert list(compare(runs).counts) == ['base', 'grpo', 'rloo']
    with pytest.raises(ValueError, match=f'at_reward needs runs of one {knob}'):
        compare(runs, at_reward=0.35)
    runs[1].config = {}  # nobody knows how it sampled
    assert len(compare(runs, at_reward=0.35).counts) == 3


def test_bootstrap_intervals_agree_roughly():
    runs = [made_up_run('grpo', s, 0.15) for s in range(10)]
    t, b = (compare(runs, interval=i).table[4] for i in ('t', 'bootstrap'))
    assert t['mean'].equals(b['mean']) and np.allclose(
        t['high'] - t['low'], b['high'] - b['low'], rtol=0.2
    )
    assert 'bootstrap interval' in repr(compare(runs, interval='bootstrap'))


def test_few_seeds_get_no_verdict():
    one = compare([made_up_run('grpo', 0, 0.3)])
    assert (
        one.table[('note', '')]['grpo'] == 'one seed: no verdict'
        and (one.differences()['verdict'] == 'one seed: no verdict').all()
    )
    three = compare([made_up_run('grpo', s, 0.3) for s in range(3)])
    assert (three.differences()['verdict'] == '3 seeds: no verdict yet').all()


def test_one_run_is_a_list_of_one_and_occurs_once():
    run = made_up_run('grpo', 0)
    alone = compare(run)
    assert list(alone.counts) == ['base', 'grpo'] and alone.table.equals(compare([run]).table)
    with pytest.raises(ValueError, match="more than one run of 'grpo' with seed 0"):
        compare([run, run])
    with pytest.raises(TypeError, match="was given 'runs', wanted runs"):
        compare('runs')


def test_a_comparison_made_by_hand_has_the_defaults_of_compare():
    from rl4llm.studies.comparison import Comparison

    made = compare([made_up_run('grpo', seed) for seed in range(3)])
    bare = Comparison(made.counts, made.ks, made.steps, made.missing, made.task, made.model)
    assert bare.table.equals(made.table) and bare.differences().equals(made.differences())
    assert repr(bare) == repr(made)


def test_order_of_problems_is_irrelevant():
    plain, order = (
        [made_up_run('grpo', s) for s in range(3)],
        np.random.default_rng(0).permutation(40),
    )
    e = plain[1].final
    shuffled = altered(
        e,
        keys=tuple(np.array(e.keys)[order]),
        num_correct=torch.tensor(e.num_correct[order]),
        num_samples=torch.tensor(e.num_samples[order]),
    )
    a, b = compare(plain), compare([plain[0], altered(plain[1], final=shuffled), plain[2]])
    assert np.array_equal(a.counts['grpo'][1], b.counts['grpo'][1])


def test_base_is_pooled_over_sampling_seeds():
    fresh = made_up_evaluation(P, seed=9)
    runs = [made_up_run('grpo', 0), made_up_run('grpo', 1), made_up_run('grpo', 2, base=fresh)]
    n, c = compare(runs).counts['base']
    assert (n == 128).all() and np.array_equal(c[0], runs[0].base.num_correct + fresh.num_correct)
    no_base = compare(
        [altered(r, base=None) for r in runs[:2]] + [made_up_run('rloo', 0, base=None)]
    )
    assert list(no_base.counts) == ['grpo', 'rloo'] and no_base.differences()[
        'method'
    ].unique().tolist() == ['rloo']
    with pytest.raises(ValueError, match='crossings need the base'):
        no_base.crossings()
    assert no_base.plot() is not None


@pytest.mark.parametrize(
    'change, message',
    [
        ({'task': 'sat'}, 'one task'),
        ({'model': 'other'}, 'one model'),
        ({'seed': 0}, 'more than one run'),
        ({'method': 'base'}, "may not be called 'base'"),
        ({'final': made_up_evaluation(P[:30], step=30)}, '10 of 40 are missing'),
        ({'final': made_up_evaluation(P, step=30, temperature=0.6)}, 'temperature'),
        ({'final': made_up_evaluation(P, step=30, keys=('demo|0',) * 40)}, 'twice'),
        ({'final': made_up_evaluation(P, step=20)}, 'end at steps 20, 30'),
        ({'config': {'recipe': {'lr': 1}}}, "differ in lr"),
    ],
)
def test_refusals(change, message):
    with pytest.raises(ValueError, match=message):
        compare([made_up_run(seed=0), altered(made_up_run(seed=1), **change)])


def test_only_step_zero_is_the_base():
    late = [
        altered(r, base=r.evaluations[10]) for r in (made_up_run('grpo', 0), made_up_run('rloo', 0))
    ]
    assert 'base' not in compare(late).counts
    untrained = altered(made_up_run('rloo', 0), final=made_up_evaluation(P))
    assert compare([made_up_run('grpo', 0), untrained]).missing == ('rloo (seed 0)',)


def test_starting_weights_must_agree():
    runs = [
        made_up_run('grpo', s, config={'recipe': {}, 'weights': w})
        for s, w in enumerate(['aa', 'aa', 'bb'])
    ]
    assert len(compare(runs[:2]).counts['grpo'][0]) == 2
    with pytest.raises(ValueError, match='one set of starting weights, got aa, bb'):
        compare(runs)


def test_saved_runs_compare(tmp_path):
    "The package's own records go through, and a saved run compares like the one in memory."
    from rl4llm.training.records import Evaluation, Run, load_run

    runs = []
    for seed in range(2):
        run = Run(
            dict(recipe=dict(name='grpo', lr=1e-4), seed=seed, model='tiny', task='demo'),
            tmp_path / str(seed),
        )
        run.save()
        for row in made_up_metrics(seed).to_dict('records'):
            run.log({**row, 'step': int(row['step'])})
        for e in made_up_run('grpo', seed).evaluations.values():
            run.add(
                Evaluation(e.step, 'demo', e.keys, e.num_samples, e.num_correct, e.seed, 'tiny')
            )
        runs.append(run)
    memory, disk = compare(runs), compare([load_run(run.path) for run in runs])
    assert (
        memory.table.equals(disk.table)
        and list(disk.counts) == ['base', 'grpo']
        and compare(runs, at_reward=0.35).steps['evaluated'].tolist() == [10, 10]
    )


def test_more_refusals():
    with pytest.raises(ValueError, match='at least one run'):
        compare([])
    with pytest.raises(ValueError, match='interval must'):
        compare([made_up_run()], interval='z')
    with pytest.raises(ValueError, match='correction must'):
        compare([made_up_run()]).differences(correction='bonferroni')
    with pytest.raises(ValueError, match='needs at least 1000 samples'):
        compare([made_up_run()], ks=[1000])


def test_label_tells_variants_apart():
    c = compare(
        [made_up_run('grpo', 0, lr=1e-4), made_up_run('grpo', 0, lr=1e-5)],
        label=lambda run: f'{run.method} {run.lr:g}',
    )
    assert list(c.counts) == ['base', 'grpo 0.0001', 'grpo 1e-05']


def test_equal_reward():
    slow = made_up_metrics(3).assign(accuracy=lambda m: 0.2 + 0.004 * m['step'])
    runs = [made_up_run('grpo', 0), made_up_run('grpo', 1), made_up_run('rloo', 0, metrics=slow)]
    reached = reached_step(runs[0].metrics, 0.35)
    c = compare(runs, at_reward=0.35)
    assert (
        c.missing == ('rloo (seed 0)',)
        and c.steps['reached'][0] == reached
        and 'never reached it: rloo (seed 0)' in repr(c)
    )
    assert [c.steps['evaluated'].tolist(), c.steps['later'].tolist()] == [
        [r // 10 * 10 for r in c.steps['reached']],
        [-(-r // 10) * 10 for r in c.steps['reached']],
    ]
    for seed, (run, row) in enumerate(
        zip(runs, c.steps.itertuples())
    ):  # read between the two evaluations, problem by problem
        ends = [
            run.evaluations[step].num_correct / run.evaluations[step].num_samples
            for step in (row.evaluated, row.later)
        ]
        assert 0 <= row.share < 1 and np.allclose(
            c.values('grpo', [1])[seed, :, 0], (1 - row.share) * ends[0] + row.share * ends[1]
        )
    cut = altered(
        runs[1],
        evaluations={
            step: e for step, e in runs[1].evaluations.items() if step < c.steps['reached'][1]
        },
    )
    assert compare([runs[0], cut], at_reward=0.35).missing == (
        'grpo (seed 1), not evaluated around it',
    )
    assert compare(runs, at_reward=0.25).steps.set_index('method').loc['rloo', 'reached'] > 12
    with pytest.raises(ValueError, match='none reaches a training accuracy of 0.9'):
        compare(runs, at_reward=0.9)
    with pytest.raises(ValueError, match='no column'):
        compare(runs, at_reward=0.3, metric='acc')


@pytest.mark.parametrize(
    'values, steps, share',
    [
        ([0, 0, 0, 1, 4], (0, 3, 4), 0.25),
        ([0, 1, 2, 3, 4], (0, 1, 4), 0.25),
        ([0, 2, 2, 2, 4], (0, 2, 4), 0.5),
        ([0, 3, 1, 2, 4], (0, 2, 4), 0.5),
        ([0, 3, 1, 2, 4], (0, 1, 4), 0.25),
        ([1, 1, 1, 1, 1], (0, 1, 4), 0.25),
        ([4, 3, 2, 1, 0], (0, 3, 4), 0.75),
        ([0, 1, 2, 3, 4], (2, 2, 2), 0),
    ],
)
def test_progress_between_two_evaluations_by_hand(values, steps, share):
    "Of the fit that never falls: 3, 1, 2 become 2 at their middle; a metric that stands still or falls says nothing, and steps count."
    assert progress_share(
        pd.DataFrame(dict(step=range(5), x=np.array(values, float))), 'x', steps
    ) == pytest.approx(share)


@pytest.mark.parametrize('gap', [5, 10, 30])
def test_at_equal_reward_pass_at_1_is_the_same_however_rare_the_evaluations(gap):
    "Accuracy is pass@1 here: read at an accuracy of 0.5, each run has a pass@1 of 0.5."

    def run(seed, pace):
        step = np.arange(1, 61)
        p = lambda s: 0.2 + 0.6 * (1 - np.exp(-np.asarray(s) / pace))
        e = {
            s: made_up_evaluation(
                np.full(40, p(s)), step=s, n=1000, counts=np.full(40, round(1000 * p(s)))
            )
            for s in range(0, 61, gap)
        }
        return made_up_run(
            f'pace {pace}',
            seed,
            evaluations=e,
            base=e[0],
            final=e[60],
            metrics=pd.DataFrame(dict(step=step, accuracy=p(step))),
        )

    c = compare([run(0, 15), run(0, 40)], at_reward=0.5)
    assert [c.values(m, [1]).mean() for m in ('pace 15', 'pace 40')] == pytest.approx(
        [0.5, 0.5], abs=0.03
    )


def test_reached_step():
    "0.9 and 0.1 change places: the fit has 0.5 in the middle of the two."
    metrics = pd.DataFrame({'step': [5, 10, 15, 20], 'accuracy': [0.1, 0.9, 0.1, 0.9]})
    assert reached_step(metrics, 0.5) == pytest.approx(12.5)
    assert reached_step(metrics, 0.3) == pytest.approx(8.75)
    assert reached_step(metrics, 0.95) is None


# ---- forks ----


def test_entropy_quantiles_ignore_padding():
    from rl4llm.analysis.forks import entropy_quantiles

    H, mask = (
        torch.tensor([[0.0, 1.0], [2.0, float('nan')]]),
        torch.tensor([[True, True], [True, False]]),
    )
    assert entropy_quantiles(H, mask, at=(0.5,)).tolist() == pytest.approx([3, 1, 1 / 3, 1])
    with pytest.raises(ValueError, match='mask is empty'):
        entropy_quantiles(H, mask & False)
    with pytest.raises(ValueError, match='entropy'):
        entropy_quantiles(H[:1], mask)


def test_fork_overlap_is_one_for_the_same_order_and_the_share_by_chance():
    from rl4llm.analysis.forks import fork_overlap

    a, b = torch.rand(2, 200, 100, generator=torch.Generator().manual_seed(1))
    full = torch.ones_like(a).bool()
    assert fork_overlap(a, a.exp(), full) == 1 and fork_overlap(a, -a, full, share=0.5) == 0
    for share in (0.1, 0.3):
        assert fork_overlap(a, b, full, share=share) == pytest.approx(share, abs=0.02)


def test_entropy_change_adds_up():
    from rl4llm.analysis.forks import entropy_change

    a, b = torch.rand(2, 40, 25, generator=torch.Generator().manual_seed(2))
    mask = a + b > 0.3
    table = entropy_change(a, b, mask, bins=7)
    assert (
        table['tokens'].sum() == mask.sum()
        and table['base'].is_monotonic_increasing
        and table.index[-1] == 100
    )
    assert (table['tokens'] * table['change']).sum() / mask.sum().item() == pytest.approx(
        (b - a)[mask].mean().item(), abs=1e-5
    )


@given(st.integers(0, 10**6), st.integers(1, 12), st.floats(0, 4))
@settings(max_examples=25, deadline=None)
def test_semantic_entropy_on_the_oracle(seed, kinds, scale):
    "Exact with all sequences given; merging takes off just the entropy within meanings; repetitions and their order change nothing."
    from rl4llm.analysis.forks import semantic_entropy
    from rl4llm.oracle.tabular import TokenTree, exact_entropy, random_logits, sequence_logps

    tree = TokenTree(vocab=3, length=3, eos=1)
    logp = sequence_logps(tree, random_logits(tree, seed=seed, scale=scale)).numpy()
    m = np.random.default_rng(seed).integers(0, kinds, len(logp))
    p, whole = np.exp(logp), exact_entropy(tree, random_logits(tree, seed=seed, scale=scale)).item()
    within = sum(p[m == k].sum() * stats.entropy(p[m == k]) for k in set(m))
    merged = semantic_entropy(m.tolist(), sequences=tree.sequences, logp=logp)
    assert merged <= whole + 1e-9 and merged == pytest.approx(whole - within, abs=1e-9)
    again = np.r_[np.arange(len(m))[::-1], 0, 0]
    assert semantic_entropy(
        m[again].tolist(), sequences=[tree.sequences[i] for i in again], logp=logp[again]
    ) == pytest.approx(merged, abs=1e-9)


def test_semantic_entropy_counts_and_refuses():
    from rl4llm.analysis.forks import semantic_entropy

    assert semantic_entropy([None, 'a', None, 'a']) == pytest.approx(math.log(2))
    for bad in (dict(logp=[0.0]), dict(logp=[0.0], sequences=['x', 'y'])):
        with pytest.raises(ValueError, match='pass sequences='):
            semantic_entropy(['a'], **bad)


def test_strategic_grams_and_their_entropy():
    from rl4llm.analysis.forks import gram_table, sg_entropy, strategic_grams

    texts = ['go on x go on', 'go on y go on', 'then z', 'then x']
    table = gram_table(texts, sizes=(2,))
    assert table.loc['go on'].tolist() == [0.5, 2] and table.loc['then z'].tolist() == [0.25, 1]
    assert 'go on' not in strategic_grams(texts, sizes=(2,), top=1.0) and strategic_grams(
        texts, sizes=(1,), top=0.1
    ) == ['then']
    assert sg_entropy(texts, ['go on', 'then']) == pytest.approx(
        stats.entropy([4, 2])
    ) and math.isnan(sg_entropy(texts, ['no', 'such gram']))
    with pytest.raises(ValueError, match='part of the grams'):
        strategic_grams(texts, top=0)


def test_levels_of_entropy_and_heat_at_forks():
    "Merging never adds entropy, and heat that is the same everywhere is the ordinary sampler's."
    from rl4llm.analysis.forks import entropy_levels, fork_temperature, last_number, sample_by_state
    from rl4llm.core.policy import Policy
    from rl4llm.tasks import task

    policy = Policy.load('tiny')
    items = task('countdown', level='easy').sample(3, seed=0)
    r = policy.sample(items, 12, seed=4, temperature=1.3)
    levels = entropy_levels(r, policy.statistics(r, ('entropy',))['entropy'].detach())
    assert (
        list(levels.index) == [i.key for i in items]
        and (levels['text'] >= levels[['meaning', 'answer']].max(axis=1) - 1e-12).all()
    )
    for tau in (0.0, 0.5):
        assert sum(
            sample_by_state(
                policy,
                items,
                12,
                seed=4,
                temperature=fork_temperature(tau, forks=1.3, elsewhere=1.3),
            ),
            [],
        ) == list(r.texts)
    assert last_number('7 - 3 = 4 ;') == '4' and last_number('none') is None


# ---- dissection and consistency ----

COUNTDOWN = ('countdown', ((2, 3, 7), 13, 99, '+-*'))


def problem(task, data):
    from rl4llm.tasks.protocol import Item

    return Item(task, data)


@pytest.mark.parametrize(
    'counts, n, rate',
    [([[2, 1], [2], [2, 2, 0]], 2, [0.5, 1, 0]), ([[1, 1], [1, 0, 1]], 1, [1, 0])],
)
def test_sub_problem_rate(counts, n, rate):
    from rl4llm.analysis.dissection import sub_problem_rate

    assert sub_problem_rate(counts, n).tolist() == rate
    for bad in ([[]], [[3]], [[-1]]):
        with pytest.raises(ValueError, match='problem 0 has counts'):
            sub_problem_rate(bad, 2)


def test_effects_are_paired_and_stratified():
    from rl4llm.analysis.dissection import axis_table, effect_bands

    rng, levels = np.random.default_rng(0), np.repeat(['easy', 'hard'], [10, 30])
    alone = rng.random(40)
    base = pd.DataFrame(dict(level=levels, alone=alone, plan=alone))  # ignores the plan
    trained = pd.DataFrame(
        dict(level=levels, alone=alone / 2, plan=alone / 2 + 0.25)
    )  # gains as much on every problem
    table = axis_table(base, trained, helps=('plan',), resamples=200)
    assert (table.loc[('plan', 'base'), ['effect', 'low', 'high']] == 0).all().all()
    for model in ('trained', 'trained - base'):
        assert np.allclose(table.loc[('plan', model), ['effect', 'low', 'high']], 0.25)
    split = effect_bands(
        np.where(levels == 'easy', 1.0, 0.0), levels, resamples=200
    )  # nothing varies inside a level
    assert split.loc['all', ['effect', 'low', 'high']].tolist() == [0.25] * 3 and split[
        'problems'
    ].tolist() == [10, 30, 40]
    with pytest.raises(ValueError, match='different problems'):
        axis_table(base, trained.iloc[::-1])
    with pytest.raises(ValueError, match='one problem'):
        effect_bands([1.0, 2, 3], ['a', 'a', 'b'])


def test_sub_answers_are_judged_exactly():
    from rl4llm.analysis.dissection import gold_starts, on_course
    from rl4llm.tasks import task_of

    item = problem(*COUNTDOWN)
    for text in ('2 * 3 = 6', '2 * 3 = 6 ; 6 + 7 = 13'):
        assert on_course(item, text)
    for text in ('2 * 3 = 7', '7 - 3 = 4', '', '2 * 3 = 6 ; 7 - 6 = 1'):
        assert not on_course(item, text)
    for seed in range(10):
        starts = gold_starts(item, seed=seed)
        assert (
            starts[0] == '' and starts[1].endswith(' ;') and on_course(item, starts[1].strip(' ;'))
        )
        assert task_of(item).demonstrate(item, seed=seed).startswith(starts[1])


def test_agreement_is_with_the_most_frequent_answer_that_can_be_read():
    from rl4llm.analysis.calibration import agreement

    texts = ['?'] * 5 + ['2 * 3 = 6 ; 6 + 7 = 13'] * 2 + ['2 * 3 = 6']
    policy = SimpleNamespace(sample=lambda *given, **how: SimpleNamespace(texts=texts))
    shares, right = agreement(policy, [problem(*COUNTDOWN)], samples=8)
    assert shares.tolist() == [2 / 8] and right.tolist() == [True]


def test_calibration_numbers_by_hand():
    "Two bins of equal width hold all four answers in one, two adaptive ones two each."
    from rl4llm.analysis.calibration import calibration_numbers

    found = calibration_numbers([0.5, 0.7, 0.8, 0.8], [0, 0, 1, 1], bins=2)
    assert np.allclose(found, [0.5, 0.7, 0.205, 0.2, 0.4, 1.0])


def test_calculator_mends_and_never_hurts():
    from rl4llm.analysis.dissection import finish_from, mended, with_calculator

    item = problem(*COUNTDOWN)
    assert (
        mended(item, '2 * 3 = 7 ; 7 + 7 = 14') == '2 * 3 = 6'
        and mended(item, '2 * 3 = 6 ; 6 + 7 = 14') == '2 * 3 = 6 ; 6 + 7 = 13'
    )
    assert (
        mended(item, '2 - 3 = 1')
        is mended(item, 'so 2 * 3 = 7')
        is mended(item, '2 * 3 = 6 ; 6 + 7 = 13')
        is None
    )

    class Careless:  # false first result, then as it should be
        style = 'compact'

        def sample(self, prompts, group, **how):
            return SimpleNamespace(
                texts=[
                    {True: '2 * 3 = 7 ; 7 + 7 = 14', False: '; 6 + 7 = 12'}[p.endswith(':')]
                    for p in prompts
                    for _ in range(group)
                ]
            )

    assert finish_from(Careless(), [item], [''], 2, seed=0) == ['2 * 3 = 7 ; 7 + 7 = 14'] * 2
    assert with_calculator(Careless(), [item], 2, seed=0)[0].startswith('2 * 3 = 6 ; 6 + 7 = 13')
    with pytest.raises(ValueError, match='2 starts were given for 1'):
        finish_from(Careless(), [item], ['', ''], seed=0)
    with pytest.raises(ValueError, match="style 'compact'"):
        finish_from(SimpleNamespace(style='text'), [item], [''], seed=0)


@pytest.mark.parametrize(
    'text, stated, implied, follows',
    [
        ('2 * 3 = 6 ; 6 + 7 = 13', 13, 13, True),
        ('2 + 3 = 5 ; 5 + 7 = 13', 13, 12, False),
        ('2 * 3 = 7 ; 6 + 7 = 13', 13, 13, True),
        ('2 - 3 = 1', 1, None, False),
        ('so', None, None, False),
        ('', None, None, False),
    ],
)
def test_countdown_consistency(text, stated, implied, follows):
    from rl4llm.analysis.consistency import consistent, implied_answer, stated_answer

    item = problem(*COUNTDOWN)
    assert (stated_answer(item, text), implied_answer(item, text), consistent(item, text)) == (
        stated,
        implied,
        follows,
    )


@pytest.mark.parametrize(
    'text, follows, right',
    [
        ('9 ; 5 <answer> 5 </answer>', True, True),
        ('8 ; 2 <answer> 2 </answer>', True, False),
        ('8 ; 5 <answer> 5 </answer>', False, True),
        ('8 ; 5 <answer> 4 </answer>', False, False),
        ('<answer> 5 </answer>', False, True),
        ('9 ; 5', False, False),
        ('9 ; 5 ; 5 <answer> 5 </answer>', False, True),
    ],
)
def test_modular_consistency_is_not_correctness(text, follows, right):
    from rl4llm.analysis.consistency import consistent, consistency_table

    item = problem('modular', (11, 5, (('+', 4), ('*', 3))))
    row = consistency_table([item], [[text]]).iloc[0]
    assert consistent(item, text) == row['consistent'] == follows and row['correct'] == right
    with pytest.raises(ValueError, match='not for'):
        consistent(problem('sat', ()), text)


def test_dispersion_weight():
    from rl4llm.analysis.consistency import dispersion, dispersion_weight

    one, five = ['7'] * 5 + ['3'] * 5, ['7'] * 5 + list('12345')
    assert np.allclose(
        dispersion_weight([0.5, 0.5], [dispersion(one), dispersion(five)]),
        [(1 / 9) ** 0.5, (5 / 9) ** 0.5],
    )
    assert dispersion(one, options=10) == pytest.approx(math.log(2) / math.log(10)) and dispersion(
        ['a', 'b', None, None]
    ) == pytest.approx(1 / 3)
    assert dispersion(['a'] * 4) == dispersion([None] * 4) == dispersion(
        [None] * 4, options=3
    ) == 0 and dispersion(list('abc') * 2, options=3) == pytest.approx(1)
    assert (dispersion_weight([0, 1, 0.5], [1, 1, 0]) == 0).all() and dispersion_weight(0.5, 1) == 1
    for bad in (
        lambda: dispersion(['a']),
        lambda: dispersion(list('abc'), options=2),
        lambda: dispersion_weight(-0.1, 1),
    ):
        with pytest.raises(ValueError):
            bad()


# ---- formats ----

from rl4llm.analysis.formats import (
    dominance,
    format_dominance,
    format_flow,
    format_of,
    format_shares,
    format_trend,
    plot_formats,
    share_entropy,
)


def test_first_rule_wins():
    rules = {'code': '<code>', 'function': lambda text: text.startswith('def '), 'number': r'^\d+$'}
    assert [format_of(t, rules) for t in ('def f <code>', 'def f', '12', 'the def 12')] == [
        'code',
        'function',
        'number',
        'other',
    ]
    assert (
        format_of('', {}, default='none') == 'none'
        and format_of('12', dict(reversed(rules.items()))) == 'number'
    )


@given(
    st.lists(
        st.tuples(st.sampled_from('ABC'), st.integers(0, 1), st.integers(0, 4)),
        min_size=1,
        max_size=40,
    ),
    st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_format_shares_add_up(samples, clustered):
    labels, right, problem = zip(*samples)
    table = format_shares(labels, right, problem=problem if clustered else None, names='ABCD')
    assert (
        table['share'].sum() == pytest.approx(1)
        and table['count'].sum() == len(samples)
        and table['right'].sum() == sum(right)
    )
    assert (
        (table['share_low'] <= table['share'] + 1e-9).all()
        and (table['share_high'] >= table['share'] - 1e-9).all()
        or clustered
    )
    assert (
        table.loc['D', 'share'] == 0
        and np.isnan(
            table.loc['D', ['accuracy', 'accuracy_low', 'accuracy_high']].astype(float)
        ).all()
    )
    assert (
        0 <= share_entropy(table['share']) <= math.log(4) + 1e-9
        and 1 / 4 <= dominance(table['share']) <= 1
    )


def test_format_accuracy_has_wilson_interval():
    "7 of 10, by hand."
    row = format_shares(['A'] * 10, [1] * 7 + [0] * 3).loc['A']
    z = stats.norm.ppf(0.975)
    centre, half = (7 + z**2 / 2) / (10 + z**2), z / (10 + z**2) * math.sqrt(2.1 + z**2 / 4)
    assert (row['accuracy_low'], row['accuracy_high']) == pytest.approx(
        (centre - half, centre + half)
    )
    assert (centre - half, centre + half) == pytest.approx((0.3968, 0.8922), abs=1e-4)


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=6), st.data())
def test_format_flow_is_the_softmax_derivative(weights, data):
    a = np.array(data.draw(st.lists(st.floats(0, 1), min_size=len(weights), max_size=len(weights))))
    s = np.array(weights) / sum(weights)
    push = s * (a - s @ a)
    jacobian = np.diag(s) - np.outer(s, s)
    assert np.allclose(format_flow(s, a), jacobian @ push) and np.allclose(
        format_flow(s, a, natural=True), jacobian @ a
    )
    assert (
        a @ format_flow(s, a) >= -1e-12
        and format_flow(s, a, natural=True)[a.argmax()] >= -1e-12
        and abs(format_flow(s, a).sum()) < 1e-12
    )


def test_format_trend_pools_and_plots():
    samples = [(t, ['a', 'b', 'x'], [1, 0, 1]) for t in range(4)]
    trend = format_trend(samples, {'A': 'a', 'B': 'b', 'never': 'q'}, window=2)
    assert (
        trend['step'].unique().tolist() == [0, 2]
        and np.allclose(trend.groupby('step')['share'].sum(), 1)
        and trend['count'].sum() == 12
    )
    row = format_dominance(trend).loc[2]
    assert (
        row['dominance'] == pytest.approx(1 / 3)
        and row['entropy'] == pytest.approx(math.log(3))
        and row['accuracy'] == pytest.approx(2 / 3)
    )
    assert len(plot_formats(trend, few=1).axes) == 2


def test_format_refusals():
    with pytest.raises(ValueError, match='results 0 or 1'):
        format_shares(['A'], [0.5])
    with pytest.raises(ValueError, match=r"lacks \['B'\]"):
        format_shares(['A', 'B'], [1, 1], names='A')
    with pytest.raises(ValueError, match='summing to 1'):
        dominance([0.5, 0.6])
    with pytest.raises(ValueError, match='one of each'):
        format_flow([0.5, 0.5], [1.0])
    with pytest.raises(ValueError, match='no samples'):
        format_trend([], {})


# -- pictures of forks: there is something in them, or one sentence instead


def no_tokens():
    from rl4llm.analysis.forks import plot_forks

    plot_forks(torch.rand(2, 3), torch.rand(2, 3), torch.zeros(2, 3, dtype=torch.bool))


def no_numbers():
    from rl4llm.analysis.forks import plot_forks

    plot_forks(
        torch.rand(2, 3), torch.full((2, 3), float('nan')), torch.ones(2, 3, dtype=torch.bool)
    )


def two_shapes():
    from rl4llm.analysis.forks import plot_forks

    plot_forks(torch.rand(2, 3), torch.rand(2, 4), torch.ones(2, 3, dtype=torch.bool))


def lesson_forks(tokens=2, size=8, drawn=2, words=8, fill=0.0, top=6):
    from rl4llm.course.pictures import plot_forks

    plot_forks(
        torch.rand(tokens, size).softmax(1) + fill,
        torch.zeros(drawn, dtype=torch.long),
        ['w'] * words,
        top=top,
    )


@pytest.mark.parametrize(
    'call, words',
    [
        (no_tokens, 'mask is empty'),
        (no_numbers, '6 of 6 tokens is not a number'),
        (two_shapes, 'entropy'),
        (lambda: lesson_forks(tokens=0, drawn=0), 'at least one token'),
        (lambda: lesson_forks(drawn=1), 'one token for each row'),
        (lambda: lesson_forks(words=3), '3 words for a vocabulary of 8'),
        (lambda: lesson_forks(size=3, words=3), 'top is 6, wanted 1 to 3'),
        (lambda: lesson_forks(fill=float('nan')), 'not numbers'),
    ],
)
def test_a_picture_of_forks_is_never_empty(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert '\n' not in str(error.value) and not plt.get_fignums(), (
        'no half-made figure is left open'
    )


def test_a_picture_of_forks_has_its_marks():
    "One bar for each token of the response, and one for each decile that has tokens."
    lesson_forks()
    assert len(plt.gcf().axes[1].patches) == 2
    from rl4llm.analysis.forks import plot_forks

    figure = plot_forks(
        torch.rand(2, 30), torch.rand(2, 30), torch.ones(2, 30, dtype=torch.bool), bins=5
    )
    assert len(figure.axes[1].patches) == 5 and len(figure.axes[0].lines) == 3


def test_a_replay_by_a_moved_policy_clips_against_the_one_that_drew():
    "Whether or not statistics were kept: the old policy is never the moved one itself."
    from rl4llm.analysis.traces import keep_statistics, replay
    from rl4llm.core.policy import Policy
    from rl4llm.core.registry import use
    from rl4llm.core.signals import scored
    from rl4llm.tasks import task

    policy = Policy.load('tiny')
    problems = task('countdown').sample(4, seed=0)
    plain = scored(policy, policy.sample(problems, 8, seed=0), use('correct'))
    kept = keep_statistics(policy, plain)
    moved = policy.clone()
    with torch.no_grad():
        for weight in moved.model.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.manual_seed(0)))
    played = [replay(rows, 'grpo_clip_higher', policy=moved) for rows in (plain, kept)]
    assert torch.allclose(played[0].weight, played[1].weight, atol=1e-4)
    with_advantage = plain.mask & (played[0].adv != 0)
    assert (played[0].weight[with_advantage] == 0).any()


def test_what_holds_for_all_differences_is_said_once():
    from rl4llm.studies.comparison import _said_once

    assert _said_once(['one seed: no verdict'] * 8) == 'one seed: no verdict'
    assert _said_once(['2 seeds: no verdict yet', 'higher']) is None
    assert _said_once(['higher', 'higher']) is None


def test_the_line_to_a_name_starts_at_its_left_end():
    "It may not run through the names above and below."
    import matplotlib.pyplot as plt
    from rl4llm.analysis.plots import label_lines

    figure, ax = plt.subplots(figsize=(4, 3))
    label_lines(ax, {f'a long name {i}': (1, 0.9 - i / 100) for i in range(5)})
    figure.canvas.draw()
    for text in ax.texts:
        ends = text.arrow_patch.get_path().vertices[:, 0]
        assert ends.max() <= super(type(text), text).get_window_extent().x0 + 1
    plt.close(figure)
