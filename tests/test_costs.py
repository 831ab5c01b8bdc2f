"What a sampler costs: counts, the plain line, and the table."

import numpy as np
import pytest
from rl4llm.core.policy import Policy
from rl4llm.core.registry import recipe, use
from rl4llm.inference.costs import Drawn, PlainDraws, cost_row, cost_table, drawn_cost, plain_draws
from rl4llm.rollouts.tree import Meter
from rl4llm.tasks import task


def drawn(solved, computed=40, **changes):
    known = dict(rows=4, tokens=30, read=4, fed=30, scored=6, computed=computed, passes=15)
    known.update(seconds=0.5, right=0.5, solved=np.array(solved, dtype=bool))
    return Drawn(**known | changes)


@pytest.fixture(scope='module')
def policy():
    return Policy.load('tiny')


@pytest.fixture(scope='module')
def items():
    return task('countdown', level='easy').sample(6, seed=3)


def test_plain_rows_are_counted_as_they_are_drawn(policy, items):
    one = drawn_cost('grpo', policy, items, 4, seed=7)
    rows = policy.sample(items, 4, seed=7)
    prompts = policy.encode_prompts(items)[1]
    assert one.rows == 24 and one.tokens == int(rows.mask.sum())
    assert one.read == int(prompts.sum()) and one.fed == one.tokens - one.rows
    assert one.computed == one.read + one.fed and one.scored == 0 and one.seconds > 0


def test_what_was_solved_is_what_the_verifier_says(policy, items):
    one = drawn_cost('grpo', policy, items, 4, seed=7)
    rows = policy.sample(items, 4, seed=7)
    maker = task('countdown', level='easy')
    right = [maker.verify(items[p], text).correct for p, text in zip(rows.prompt, rows.texts)]
    assert 0 < sum(right) < len(right) and one.right == pytest.approx(np.mean(right))
    assert one.solved.tolist() == [any(right[4 * p : 4 * p + 4]) for p in range(6)]


def test_scored_rows_are_counted_with_their_prompts(policy, items):
    rows = policy.sample(items, 2, seed=0)
    meter = Meter(policy)
    scored, _ = meter.logprobs(rows)
    prompts = policy.encode_prompts(items)[1].sum(1)
    assert meter.scored == int(2 * prompts.sum() + rows.mask.sum()) == meter.cost['computed']
    assert meter.passes == 1 and meter.read == meter.fed == 0
    assert (scored == policy.logprobs(rows)[0]).all()


def test_a_sampler_that_brings_no_row_for_a_problem_has_not_solved_it(policy):
    hard = task('countdown', level='hard').sample(8, seed=1, split='test')
    one = drawn_cost('go_explore', policy, hard, 4, seed=0)
    assert one.rows < 32 and len(one.solved) == 8 and not one.solved.all()


def test_knobs_of_the_recipe_are_those_that_draw(policy, items):
    short = drawn_cost('cure', policy, items, 4, seed=0)
    single = recipe('cure', sampler=use('critical_forks', branches=0))
    plain = drawn_cost('grpo', policy, items, 4, seed=0)
    assert drawn_cost(single, policy, items, 4, seed=0).fed == plain.fed != short.fed


@pytest.mark.parametrize('group', [0, -1, 1.5, True])
def test_a_group_that_is_none_is_refused(policy, items, group):
    with pytest.raises(ValueError, match='group'):
        drawn_cost('grpo', policy, items, group, seed=0)


def test_the_plain_line_is_pass_at_k_and_straight_between():
    plain = PlainDraws(np.array([2, 0, 4]), 4, 0.0, 10.0)
    assert plain.solved_by(1) == pytest.approx([0.5, 0, 1])
    assert plain.solved_by(2) == pytest.approx([5 / 6, 0, 1])
    assert plain.solved_by(1.25) == pytest.approx([0.5 + (5 / 6 - 0.5) / 4, 0, 1])
    assert plain.solved_by(4) == pytest.approx([1, 0, 1])


@pytest.mark.parametrize('rows', [0.9, 4.1, 0, -3, float('nan')])
def test_more_rows_than_there_are_is_said(rows):
    with pytest.raises(ValueError, match='plain rows a problem .* 4 were'):
        PlainDraws(np.array([2, 0]), 4, 0.0, 10.0).solved_by(rows)


def test_plain_draws_count_right_rows_of_each_problem(policy, items):
    plain = plain_draws(policy, items, 16, seed=2)
    one = drawn_cost('grpo', policy, items, 16, seed=2)
    assert plain.correct.sum() == round(one.right * 96) and plain.samples == 16
    assert ((plain.correct > 0) == one.solved).all()
    assert plain.each == pytest.approx(one.fed / 96) and plain.prompt == pytest.approx(one.read / 6)
    assert plain.rows_for(one.computed / 6) == pytest.approx(16)


def test_tokens_pay_for_the_prompt_first_and_for_one_row_at_least():
    plain = PlainDraws(np.array([2, 0]), 4, prompt=4.0, each=8.0)
    assert [plain.rows_for(tokens) for tokens in (0, 12, 16, 36)] == [1, 1, 1.5, 4]


def test_a_line_by_hand():
    plain = PlainDraws(np.array([2, 0]), 4, 0.0, 10.0)
    row = cost_row([drawn([True, False]), drawn([True, True], computed=80)], plain)
    assert row['solved'] == 0.75 and row['computed'] == 30 and row['equal'] == 3
    assert row['for_one'] == 60 / 1.5 and row['rate'] == 60
    assert row['over'] == pytest.approx(0.75 - 0.5)
    assert row['low'] <= row['over'] <= row['high']


def test_who_solves_nothing_has_no_price():
    row = cost_row([drawn([False, False])], PlainDraws(np.array([2, 0]), 4, 0.0, 10.0))
    assert row['for_one'] == np.inf and row['solved'] == 0 and row['over'] < 0


def test_without_a_drawing_there_is_no_line():
    with pytest.raises(ValueError, match='no drawing'):
        cost_row([], PlainDraws(np.array([2, 0]), 4, 0.0, 10.0))


def test_plain_sampling_is_the_measure(policy, items):
    table = cost_table(['branch_grpo', 'grpo'], policy, items, 4, seeds=(0,), samples=32)
    assert list(table.index) == ['grpo', 'branch_grpo'] and table.loc['grpo', 'times'] == 1
    ratio = table.loc['branch_grpo', 'for_one'] / table.loc['grpo', 'for_one']
    assert table.loc['branch_grpo', 'times'] == pytest.approx(ratio)
    assert table.loc['grpo', 'equal'] == pytest.approx(4, rel=0.05)
