"What a sampler costs: counts at both prices, the plain line, tables, and the stored drawings."

import numpy as np
import pytest
from rl4llm.analysis.passk import bootstrap_band
from rl4llm.core.policy import ASSETS, Policy
from rl4llm.core.registry import find_stage, recipe, use
from rl4llm.core.storage import read_json
from rl4llm.inference import costs
from rl4llm.inference.costs import (
    Drawn,
    PlainDraws,
    beside_plain,
    cost_row,
    cost_table,
    drawn_cost,
    plain_draws,
    solved_share,
)
from rl4llm.rollouts.tree import Meter
from rl4llm.studies.study import revision
from rl4llm.tasks import task

HALF = PlainDraws(np.array([2, 0]), 4, prompt=0.0, each=10.0)


def drawn(solved, **changes):
    known = dict(rows=4, tokens=30, read=4, again=0, fed=30, scored=6, passes=15, seconds=0.5)
    known.update(right=0.5, solved=np.array(solved, dtype=bool))
    return Drawn(**known | changes)


@pytest.fixture(scope='module')
def policy():
    return Policy.load('tiny')


@pytest.fixture(scope='module')
def items():
    return task('countdown', level='easy').sample(6, seed=3)


# one drawing


def test_plain_rows_are_counted_as_they_are_drawn(policy, items):
    one = drawn_cost('grpo', policy, items, 4, seed=7)
    rows = policy.sample(items, 4, seed=7)
    prompts = policy.encode_prompts(items)[1]
    assert one.rows == 24 and one.tokens == int(rows.mask.sum())
    assert one.read == int(prompts.sum()) and one.fed == one.tokens - one.rows
    assert one.scored == one.again == 0 and one.seconds > 0
    assert one.computed == one.cached == one.read + one.fed


def is_right(items, rows):
    "What the task says of each row."
    maker = task('countdown', level='easy')
    return [maker.verify(items[p], text).correct for p, text in zip(rows.prompt, rows.texts)]


def test_what_was_solved_is_what_the_verifier_says(policy, items):
    one = drawn_cost('grpo', policy, items, 4, seed=7)
    right = is_right(items, policy.sample(items, 4, seed=7))
    assert 0 < sum(right) < len(right) and one.right == pytest.approx(np.mean(right))
    assert one.solved.tolist() == [any(right[4 * p : 4 * p + 4]) for p in range(6)]


@pytest.mark.parametrize('how', [dict(max_new_tokens=6), dict(temperature=3.0)])
def test_length_and_temperature_are_those_of_the_recipe(policy, items, how):
    one = drawn_cost(recipe('grpo', **how), policy, items, 4, seed=7)
    rows = policy.sample(items, 4, seed=7, **how)
    assert one.tokens == int(rows.mask.sum())
    assert one.right == pytest.approx(np.mean(is_right(items, rows)))
    assert one.right < drawn_cost('grpo', policy, items, 4, seed=7).right


class Listening(Meter):
    "A policy that keeps every beginning that it is asked to read, prompts first."

    def __init__(self, policy):
        super().__init__(policy)
        self.beginnings = []

    def decoder(self, prompt_ids, prompt_mask, prompt, room):
        self.beginnings += [row[real].tolist() for row, real in zip(prompt_ids, prompt_mask)]
        return super().decoder(prompt_ids, prompt_mask, prompt, room)


@pytest.mark.parametrize('name', ['branch_grpo', 'cure', 'latr'])
def test_of_a_beginning_all_but_the_last_token_had_been_computed(policy, items, name):
    ear = Listening(policy)
    one = drawn_cost(name, ear, items, 8, seed=0)
    prompts, others = ear.beginnings[:6], ear.beginnings[6:]
    assert one.read == sum(map(len, ear.beginnings)) > sum(map(len, prompts))
    assert one.again == sum(len(beginning) - 1 for beginning in others)
    assert one.cached == one.computed - one.again < one.computed
    assert all(any(said[: len(prompt)] == prompt for prompt in prompts) for said in others)


def test_tokens_are_those_of_whole_rows_though_a_beginning_carries_loss_once(policy, items):
    rows = find_stage('branch_rollouts', 'sampler').fn(policy, items, 8, seed=0)
    said = [policy.tokenizer(text, add_special_tokens=False)['input_ids'] for text in rows.texts]
    whole = sum(map(len, said)) + int(rows.finished.sum())
    one = drawn_cost('branch_grpo', policy, items, 8, seed=0)
    assert one.tokens == whole > int(rows.mask.sum())


def test_scored_rows_are_counted_with_their_prompts(policy, items):
    rows = policy.sample(items, 2, seed=0)
    meter = Meter(policy)
    scored, _ = meter.logprobs(rows)
    prompts = policy.encode_prompts(items)[1].sum(1)
    assert meter.scored == int(2 * prompts.sum() + rows.mask.sum()) == meter.cost['computed']
    assert meter.passes == 1 and meter.read == meter.fed == meter.begun == 0
    assert (scored == policy.logprobs(rows)[0]).all()


def test_what_is_scored_costs_the_same_at_both_prices():
    one = drawn([True], read=20, again=9, fed=5, scored=7)
    assert (one.computed, one.cached) == (32, 23)


def test_the_clock_stops_before_rows_are_verified(policy, items, monkeypatch):
    said = []

    def clock():
        said.append('clock')
        return {1: 10.0, 2: 12.5}[len(said)]

    def verified(*args):
        assert said == ['clock', 'clock']
        return scored(*args)

    scored = costs.scored
    monkeypatch.setattr(costs.time, 'process_time', clock)
    monkeypatch.setattr(costs, 'scored', verified)
    assert drawn_cost('grpo', policy, items, 2, seed=0).seconds == 2.5


def test_a_sampler_that_brings_no_row_for_a_problem_has_not_solved_it(policy):
    hard = task('countdown', level='hard').sample(8, seed=1, split='test')
    one = drawn_cost('go_explore', policy, hard, 4, seed=0)
    assert one.rows < 32 and len(one.solved) == 8 and not one.solved.all()


def test_knobs_of_the_recipe_are_those_that_draw(policy, items):
    forked = drawn_cost('cure', policy, items, 4, seed=0)
    single = recipe('cure', sampler=use('critical_forks', branches=0))
    plain = drawn_cost('grpo', policy, items, 4, seed=0)
    assert drawn_cost(single, policy, items, 4, seed=0).fed == plain.fed != forked.fed


@pytest.mark.parametrize('group', [0, -1, 1.5, True])
def test_a_group_that_is_none_is_refused(policy, items, group):
    with pytest.raises(ValueError, match='group'):
        drawn_cost('grpo', policy, items, group, seed=0)
    with pytest.raises(ValueError, match='samples'):
        plain_draws(policy, items, group, seed=0)


def test_what_cannot_be_counted_is_refused(items):
    by_generate = Policy.load('tiny', fast=False)
    with pytest.raises(ValueError, match='nothing can be counted: load it with fast=True'):
        drawn_cost('grpo', by_generate, items, 2, seed=0)
    with pytest.raises(ValueError, match='nothing can be counted: load it with fast=True'):
        plain_draws(by_generate, items, 2, seed=0)


# the plain line


def test_the_plain_line_is_pass_at_k_and_straight_between():
    plain = PlainDraws(np.array([2, 0, 4]), 4, 0.0, 10.0)
    assert plain.solved_by(1) == pytest.approx([0.5, 0, 1])
    assert plain.solved_by(2) == pytest.approx([5 / 6, 0, 1])
    assert plain.solved_by(1.25) == pytest.approx([0.5 + (5 / 6 - 0.5) / 4, 0, 1])
    assert plain.solved_by(4) == pytest.approx([1, 0, 1])


@pytest.mark.parametrize('rows', [0.9, 4.1, 0, -3, float('nan')])
def test_more_rows_than_there_are_is_said(rows):
    with pytest.raises(ValueError, match='plain rows a problem .* 4 were .* Raise samples='):
        HALF.solved_by(rows)


def test_plain_draws_count_right_rows_of_each_problem(policy, items):
    plain = plain_draws(policy, items, 16, seed=2)
    one = drawn_cost('grpo', policy, items, 16, seed=2)
    assert plain.correct.sum() == round(one.right * 96) and plain.samples == 16
    assert (plain.solved_by(16) == one.solved).all()
    assert plain.each == pytest.approx(one.fed / 96) and plain.prompt == pytest.approx(one.read / 6)
    assert plain.rows_for(one.computed / 6) == pytest.approx(16)


def test_tokens_pay_for_the_prompt_first_and_for_one_row_at_least():
    plain = PlainDraws(np.array([2, 0]), 4, prompt=4.0, each=8.0)
    assert [plain.rows_for(tokens) for tokens in (0, 12, 16, 36)] == [1, 1, 1.5, 4]


# the table of costs


def test_a_line_by_hand():
    first = drawn([True, False], read=14, again=10, right=0.25)
    other = drawn([True, True], read=24, again=10, fed=50, passes=25, seconds=1.5, tokens=70)
    row = cost_row([first, other])
    assert row['right'] == 0.375 and row['solved'] == 0.75
    each = dict(tokens=25, read=9.5, fed=20, scored=3, computed=32.5, cached=27.5)
    assert {name: row[name] for name in each} == each
    assert row['passes'] == 20 and row['rate'] == 50
    assert row['computed_for_one'] == pytest.approx(65 / 1.5)
    assert row['cached_for_one'] == pytest.approx(55 / 1.5)
    assert row['passes_for_one'] == pytest.approx(20 / 1.5)
    assert row['seconds_for_one'] == pytest.approx(1 / 1.5)
    assert cost_table({'this': [first, other]}).loc['this'].to_dict() == row


def test_who_solves_nothing_has_no_price():
    row = cost_row([drawn([False, False])])
    prices = {value for name, value in row.items() if name.endswith('for_one')}
    assert prices == {np.inf} and row['solved'] == 0


@pytest.mark.parametrize('none', [[], (), drawn([True])])
def test_without_a_list_of_drawings_there_is_no_line(none):
    with pytest.raises(ValueError, match='no drawing was given: wanted a list'):
        cost_table({'grpo': none})


def test_drawings_of_other_problems_are_refused():
    with pytest.raises(ValueError, match='drawings of 1 and of 2 problems'):
        solved_share([drawn([True]), drawn([True, False])])
    with pytest.raises(ValueError, match='of 3 problems, the plain draws of 2'):
        beside_plain({'grpo': [drawn([True, False, True])]}, HALF)


# beside plain draws


def held(draws, plain=HALF, **how):
    "The line of the one sampler beside the plain groups."
    return beside_plain(draws, plain, **how).loc['this']


def test_a_comparison_by_hand_at_both_prices():
    groups = [drawn([True, False], read=0, fed=20, scored=0)]
    other = [drawn([True, True], read=30, again=30, fed=30, scored=0)]
    draws = {'grpo': groups, 'this': other}
    dear = held(draws)
    assert dear['spent'] == 30 and dear['equal'] == 3 and dear['line'] == pytest.approx(0.5)
    assert dear['times'] == pytest.approx(30 / 20) and dear['for_one'] == 30
    assert dear['over'] == pytest.approx((0 + 1) / 2 - (0.5 + 0) / 2)
    cheap = held(draws, price='cached')
    assert cheap['spent'] == 15 and cheap['equal'] == 1.5 and cheap['times'] == 15 / 20
    assert cheap['line'] == pytest.approx((0.5 + 5 / 6) / 4)
    assert cheap['over'] == pytest.approx(1 - cheap['line'] - 0.25)


def test_plain_groups_under_another_name_are_the_measure(policy, items):
    plain = plain_draws(policy, items, 16, seed=2)
    groups = [drawn_cost('grpo', policy, items, 4, seed=seed) for seed in (0, 1)]
    row = held({'grpo': groups, 'this': groups}, plain)
    assert row['times'] == 1 and row['equal'] == pytest.approx(4, rel=0.1)
    assert row['low'] == row['over'] == row['high'] == 0 and row['verdict'] == 'not told apart'


def many_plain(problems=400):
    "Plain rows of many problems, each solved by one of two rows, at ten tokens a row."
    return PlainDraws(np.full(problems, 1), 2, 0.0, 10.0)


def of_many(solved, each=10):
    return drawn(solved, read=0, scored=0, fed=each * len(solved))


def test_the_interval_is_paired_with_the_plain_groups():
    solved = np.arange(400) % 3 == 0
    groups = [of_many(solved), of_many(~solved)]
    draws = {'grpo': groups, 'this': [of_many(solved), of_many(np.ones(400))]}
    row = held(draws | dict(this=groups[::-1]), many_plain())
    assert row['low'] == row['over'] == row['high'] == 0
    row = held(draws, many_plain())
    gap = bootstrap_band(solved / 2.0)
    assert (row['over'], row['low'], row['high']) == pytest.approx(tuple(gap))


def test_the_interval_holds_the_noise_of_the_plain_groups_at_95_percent():
    rng = np.random.default_rng(0)
    groups = [of_many(rng.random(400) < 0.5)]
    steady = [of_many(np.ones(400)), of_many(np.zeros(400))]
    row = held({'grpo': groups, 'this': steady}, many_plain())
    spread = groups[0].solved.std() / 20
    assert row['high'] - row['low'] == pytest.approx(2 * 1.96 * spread, rel=0.1)
    assert row['over'] == pytest.approx(0.5 - groups[0].solved.mean())


@pytest.mark.parametrize('share, verdict', [(0.2, 'fewer'), (0.8, 'more')])
def test_a_verdict_is_what_the_interval_says(share, verdict):
    rng = np.random.default_rng(1)
    groups, this = [[of_many(rng.random(400) < p) for _ in range(8)] for p in (0.5, share)]
    assert held({'grpo': groups, 'this': this}, many_plain())['verdict'] == verdict


def test_a_sampler_that_is_plain_is_told_apart_one_time_in_twenty():
    rng = np.random.default_rng(0)
    said = []
    for _ in range(100):
        groups, this = [[of_many(rng.random(60) < 0.5) for _ in range(8)] for _ in range(2)]
        said.append(held({'grpo': groups, 'this': this}, many_plain(60))['verdict'])
    assert 1 <= 100 - said.count('not told apart') <= 10


def test_luck_that_is_shared_with_plain_groups_is_no_merit():
    lucky = [of_many(np.arange(400) < 280)]
    alone = bootstrap_band(lucky[0].solved.astype(float), np.full(400, 0.5))
    row = held({'grpo': lucky, 'this': lucky}, many_plain())
    assert alone.low > 0 and row['over'] == 0


def test_where_plain_groups_solve_nothing_there_is_no_ratio():
    nothing = [drawn([False, False], fed=10)]
    one = [drawn([True, False], fed=10)]
    assert np.isnan(held({'grpo': nothing, 'this': one})['times'])
    assert np.isnan(held({'grpo': nothing, 'this': nothing})['times'])
    assert held({'grpo': one, 'this': nothing})['times'] == np.inf


def test_what_is_unknown_is_said():
    draws = {'grpo': [drawn([True, False])]}
    with pytest.raises(KeyError, match="no price is called 'cache'; did you mean 'cached'"):
        beside_plain(draws, HALF, price='cache')
    with pytest.raises(KeyError, match="no sampler that has drawn is called 'plain'"):
        beside_plain(draws, HALF, usual='plain')


# the stored drawings


@pytest.fixture(scope='module')
def stored():
    return read_json(ASSETS / 'analysis' / 'sampler_costs.json')


def test_stored_drawings_are_those_of_their_settings(stored):
    how = stored['settings']
    assert len(how['seeds']) >= 8 and how['plain_seed'] not in how['seeds']
    assert stored['plain']['samples'] == how['samples']
    drawings = [one for draws in stored['draws'].values() for one in draws]
    shapes = {len(one['solved']) for one in drawings} | {len(stored['plain']['correct'])}
    assert shapes == {how['problems']}
    assert {len(draws) for draws in stored['draws'].values()} == {len(how['seeds'])}
    assert all(one['again'] == 0 for one in stored['draws']['grpo'])


def test_stored_drawings_are_of_the_samplers_as_they_are(stored):
    assert stored['revisions'] == {name: revision(name) for name in stored['draws']}


@pytest.mark.slow
@pytest.mark.parametrize('name', ['grpo', 'cure'])
def test_a_stored_drawing_made_anew(stored, policy, name):
    how = stored['settings']
    hard = task('countdown', level=how['level'])
    items = hard.sample(how['problems'], seed=how['problem_seed'], split='test')
    old = stored['draws'][name][0]
    new = drawn_cost(name, policy, items, how['group'], seed=how['seeds'][0])
    for count in ('rows', 'tokens', 'read', 'again', 'fed', 'scored'):
        assert getattr(new, count) == pytest.approx(old[count], rel=0.01)
    assert (new.solved != np.array(old['solved'])).mean() <= 0.05
