"""Progress: what steps are paid, by hand; what reduces to what; labels as they come; bad input."""

import dataclasses
import math
from types import SimpleNamespace
import pytest, torch
from conftest import weights
from rl4llm.advantages.group_relative import grpo
from rl4llm.advantages.process_advantages import step_numbers
from rl4llm.advantages.progress import (
    LABELLERS,
    OPEN,
    OPEN_WITH,
    REACHES,
    Distilled,
    OnlineLabels,
    _paid_to,
    after_step,
    as_potential,
    calm,
    count_pay,
    countdown_judge,
    dense_clusters,
    goals_reached,
    hashed_words,
    oni,
    open_goals,
    own_row,
    own_steps,
    pay_out,
    planned_goals,
    seen_before,
    self_progress,
    srpo,
    states_behind,
    step_texts,
    success_centres,
    success_distance,
    unsure_judge,
)
from rl4llm.core.placebos import placebo
from rl4llm.core.policy import Policy
from rl4llm.core.registry import recipe, use
from rl4llm.core.rollouts import make_rollouts, rows_of
from rl4llm.core.signals import scored
from rl4llm.rewards.judges import Question, ask
from rl4llm.tasks import task
from rl4llm.tasks.countdown import first_dead_end, puzzle_of, solvable, verify_countdown
from rl4llm.training.callbacks import Checkpoint
from rl4llm.training.loop import train

EASY = task('countdown', level='easy')
STANDARD = task('countdown', level='standard')
NAN = math.nan


@pytest.fixture(scope='module')
def policy():
    return Policy.load('tiny', fast=True, bf16=False, graphs=False)


@pytest.fixture(scope='module')
def rows(policy):
    return scored(policy, policy.sample(STANDARD.sample(6, seed=1), 6, seed=1), use('correct'))


@pytest.fixture(scope='module')
def words(policy, rows):
    return step_texts(rows, step_numbers(rows.rewards, rows, policy), policy)


def items_of(rows):
    return [rows.items[place] for place in rows.prompt.tolist()]


def asked(rows, policy, **how):
    return dict(rewards=rows.rewards, group=rows.group, rollouts=rows, policy=policy, **how)


def hidden_of(policy, rows):
    with torch.no_grad():
        return policy.hidden(rows).float()


# from steps to tokens

NUMBER = torch.tensor([[1, 2, 2], [1, 1, 2], [1, 0, 0]])
PAID = torch.tensor([[0.5, 0.0], [0.0, 0.25], [0.75, NAN]])
ONE = torch.zeros(3).long()


def test_paid_by_hand():
    rewards = torch.tensor([1.0, 0.0, 0.0])
    by_row = pay_out(rewards, ONE, PAID, NUMBER, to='row', eps=0.0)
    assert torch.allclose(by_row[:, 0], grpo(torch.tensor([1.5, 0.25, 0.75]), ONE, eps=0.0))
    assert torch.equal(by_row != 0, NUMBER > 0)
    by_step = pay_out(rewards, ONE, PAID, NUMBER, eps=0.0)
    first = grpo(torch.tensor([1.5, 0.25, 0.75]), ONE, eps=0.0)
    second = grpo(torch.tensor([1.0, 0.25]), ONE[:2], eps=0.0)
    assert torch.allclose(by_step[:, 0], first)
    assert torch.allclose(by_step[0, 1:], second[:1].expand(2))
    assert torch.allclose(by_step[1], torch.stack([first[1], first[1], second[1]]))
    at_once = pay_out(rewards, ONE, PAID, NUMBER, across='group', eps=0.0)
    of_all = grpo(torch.tensor([1.5, 1.0, 0.25, 0.25, 0.75]), torch.zeros(5).long(), eps=0.0)
    assert torch.allclose(at_once[0], of_all[[0, 1, 1]]) and at_once[2, 0] == of_all[4]


def two_rows():
    "Three tokens each: steps of one token, and one step with a padded end."
    mask = torch.tensor([[True, True, True], [True, True, False]])
    one = torch.ones(1, 1).long()
    tokens = torch.arange(6).view(2, 3)
    return make_rollouts(
        prompt_ids=one, prompt_mask=one.bool(), tokens=tokens, prompt=ONE[:2], mask=mask
    )


def test_pay_of_another_row_has_as_many_steps_as_the_own():
    number = torch.tensor([[1, 2, 3], [1, 1, 0]])
    paid = torch.tensor([[0.5, 0.25, 0.125], [1.0, NAN, NAN]])
    rewards, group = torch.tensor([0.75, 0.0]), ONE[:2]
    heard = []

    def which(rewards, group, *, rollouts, paid):
        heard.extend([rewards, group])
        return paid

    def swap(rewards, group, *, rollouts):
        return torch.tensor([1, 0])

    dealt = _paid_to(rewards, group, two_rows(), number, paid, whose=swap, which=which)
    wanted = torch.tensor([[1.0, 0.0, 0.0], [0.5, NAN, NAN]])
    assert torch.allclose(dealt, wanted, equal_nan=True)
    assert heard[0] is rewards and heard[1] is group
    own = _paid_to(rewards, group, two_rows(), number, paid, whose=own_row, which=own_steps)
    assert torch.allclose(own, paid, equal_nan=True)


def test_a_potential_gives_back_what_it_paid():
    shaped = as_potential(PAID)
    assert shaped[:, :1].isfinite().all() and shaped[2, 1].isnan()
    assert torch.allclose(shaped.nansum(1), torch.zeros(3), atol=1e-7)
    assert shaped[0].tolist() == [0.5, -0.5] and shaped[1].tolist() == [0.0, 0.0]
    assert shaped[2, 0] == 0  # one step: paid and taken back at once
    assert as_potential(torch.full((1, 2), NAN)).isnan().all()


def test_unscored_rows_have_no_part(policy, rows):
    rewards = rows.rewards.clone()
    rewards[4] = NAN
    part = dataclasses.replace(rows, rewards=rewards)
    rest = torch.arange(len(rows)) != 4
    alone = rows_of(part, rest.nonzero()[:, 0])
    for stage in (calm, oni()):
        adv = stage(**asked(part, policy))
        assert adv.isfinite().all() and not adv[4].any()
        assert torch.allclose(adv[rest], stage(**asked(alone, policy)), atol=1e-6)
    hidden = hidden_of(policy, rows)
    near = srpo(rewards, rows.group, rollouts=part, old_hidden=hidden)
    assert near[4] == 0 and near.isfinite().all()
    nothing = dataclasses.replace(rows, rewards=torch.full_like(rewards, NAN))
    assert not calm(**asked(nothing, policy)).any() and not oni()(**asked(nothing, policy)).any()
    moved = recipe('calm_moved').advantage.make()
    assert not moved(**asked(nothing, policy)).any()


# near a success


@pytest.mark.parametrize('knob', [dict(most=NAN), dict(reach=-1.0), dict(threshold='a')])
def test_a_knob_of_srpo_that_is_no_number_is_refused(policy, rows, knob):
    with pytest.raises(ValueError, match=f'srpo: {next(iter(knob))} is'):
        srpo(rows.rewards, rows.group, rollouts=rows, old_hidden=hidden_of(policy, rows), **knob)


def test_the_judge_says_what_it_cannot_judge():
    with pytest.raises(Exception, match='cannot judge'):
        ask(countdown_judge(), [Question('', '3 4 -> 7', 'The step is clever.')])
    assert ask(countdown_judge(), [Question('', 'a -> b', OPEN)]) == [0.0]


def test_clusters_by_hand():
    line = torch.tensor([[0.0], [0.5], [1.0], [3.0], [3.4], [9.0]])
    label = dense_clusters(line)
    assert label[0] == label[1] == label[2] != label[3] == label[4] and label[5] == -1
    three = dense_clusters(line, least=3)  # 0.5 is the only core, and takes in both sides
    assert three[:3].eq(three[1]).all() and three[1] >= 0 and three[3:].eq(-1).all()
    assert dense_clusters(line, reach=99.0).unique().numel() == 1


def test_a_point_between_two_clusters_belongs_to_the_first():
    line = torch.tensor([0.0, 0.0, 1.0, 2.0, 6.0, 10.0, 11.0, 12.0, 12.0])[:, None]
    label = dense_clusters(line, reach=4.0, least=4)  # 6 has two neighbours, and is no core
    assert label[:5].eq(label[0]).all() and label[5:].eq(label[5]).all()
    assert label[0] != label[5]


def test_clusters_as_another_library_finds_them():
    cluster = pytest.importorskip('sklearn.cluster')
    g = torch.Generator().manual_seed(0)
    for least in (2, 3, 4):
        x = torch.randn(60, 2, generator=g)
        mine = dense_clusters(x, reach=0.4, least=least)
        theirs = torch.tensor(cluster.DBSCAN(eps=0.4, min_samples=least).fit(x).labels_)
        assert torch.equal(mine < 0, theirs < 0)
        if least == 2:  # nobody is at the border of two
            same = mine[:, None] == mine
            assert torch.equal(same, theirs[:, None] == theirs)


def test_centres_of_success():
    x = torch.tensor([[0.0, 1.0], [0.0, 1.0], [9.0, 1.0]])
    assert success_centres(x).tolist() == [[0.0, 1.0]]  # a constant dimension divides by 1
    assert torch.allclose(success_centres(x[1:]), torch.tensor([[4.5, 1.0]]))
    assert success_centres(x[:1]).tolist() == [[0.0, 1.0]]
    two = torch.tensor([[0.0], [0.0], [8.0], [8.0]])
    assert sorted(success_centres(two)[:, 0].tolist()) == [0.0, 8.0]


@pytest.mark.parametrize('unit', [0.01, 1.0, 100.0])
@pytest.mark.parametrize('reach, wanted', [(0.75, 4 / 3), (0.85, 0.5)])
def test_likeness_is_measured_in_deviations_of_all(unit, reach, wanted):
    "0 and 1 are 0.80 deviations apart, with n in the denominator, and 0.65 with n - 1."
    x = unit * torch.tensor([[0.0], [1.0], [3.0]]).double()
    found = success_centres(x, reach=reach) / unit
    assert torch.allclose(found, torch.tensor([[wanted]]).double())


def test_distance_is_to_the_nearest_centre_of_the_own_pool():
    x = torch.tensor([[0.0], [0.0], [8.0], [8.0], [5.0], [1.0], [1.0]])
    right = torch.tensor([True, True, True, True, False, False, False])
    pool = torch.tensor([0, 0, 0, 0, 0, 0, 1])
    scored_rows = torch.ones(7).bool()
    d = success_distance(right, pool, x, scored=scored_rows)
    assert d[:4].isnan().all() and d[4:6].tolist() == [3.0, 1.0] and d[6].isnan()
    scored_rows[5] = False
    assert success_distance(right, pool, x, scored=scored_rows)[5].isnan()


def test_pay_by_nearness_by_hand():
    d = torch.tensor([NAN, 2.0, 6.0, 4.0, 3.0]).double()
    pool = torch.tensor([0, 0, 0, 0, 1])
    paid = self_progress(torch.zeros(5), pool, rollouts=None, distance=d, pool=pool)
    wanted = [0.0, 0.6 / (1 + math.exp(-5)), 0.6 / (1 + math.exp(5)), 0.3, 0.3]
    assert torch.allclose(paid, torch.tensor(wanted).double())
    other = self_progress(
        torch.zeros(5), pool, rollouts=None, distance=d, pool=pool, most=1.0, steep=0.0
    )
    assert other.tolist() == [0.0, 0.5, 0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    'span, first, second',
    [
        (9e-7, 0.3, 0.3),  # as good as equally far
        (1e-6, 0.6 / (1 + math.exp(-5)), 0.6 / (1 + math.exp(5))),
        (0.5, 0.6 / (1 + math.exp(-5)), 0.6 / (1 + math.exp(5))),
    ],
)
def test_nearest_and_furthest_are_told_apart_from_a_millionth_on(span, first, second):
    d = torch.tensor([0.0, span], dtype=torch.float64)
    paid = self_progress(d, ONE[:2], rollouts=None, distance=d, pool=ONE[:2])
    assert paid.tolist() == pytest.approx([first, second])


def paid_by(signal, rewards, **how):
    "SRPO's advantages of three rows with the states 0, 1 and 3; the last is padded."
    states = torch.tensor([0.0, 1.0, 3.0])[:, None, None].expand(3, 2, 1)
    rows = SimpleNamespace(mask=torch.tensor([[True, True], [True, True], [True, False]]))
    given = dict(rollouts=rows, old_hidden=states, signal=signal)
    return srpo(torch.tensor(rewards), ONE, **given, **how)


def test_srpo_by_hand():
    found = []

    def signal(rewards, group, *, distance, **more):
        found.append(distance)
        return torch.tensor([9.0, 0.5, 0.25])  # what a right row would be paid is passed over

    adv = paid_by(signal, [1.0, 0.5, 0.0], eps=0.0)
    assert found[0][0].isnan() and found[0][1:].tolist() == [1.0, 3.0]  # 0.5 is not above 0.5
    assert torch.allclose(adv, grpo(torch.tensor([1.0, 1.0, 0.25]), ONE, eps=0.0))
    assert torch.allclose(adv, torch.tensor([1.0, 1.0, -2.0]) / 3**0.5)


def test_srpo_pays_wrong_rows_with_a_right_one_beside_them(policy, rows):
    hidden = hidden_of(policy, rows)
    given = (rows.rewards, rows.group)
    plain = grpo(*given)
    adv = srpo(*given, rollouts=rows, old_hidden=hidden)
    batch = srpo(*given, rollouts=rows, old_hidden=hidden, among='batch')
    for g in rows.group.unique():
        own = rows.group == g
        right = own & (rows.rewards > 0.5)
        wrong = own & ~right
        if not right.any():
            assert not adv[own].any() and batch[own].any()
        elif wrong.any():
            assert adv[right].min() > adv[wrong].max()  # no wrong row is worth a right one
    assert not torch.allclose(adv, plain)
    none = srpo(*given, rollouts=rows, old_hidden=hidden, most=0.0)
    assert torch.allclose(none, plain)


def test_srpo_placebo_deals_among_wrong_rows(policy, rows):
    seen = {}

    def keep(name):
        def signal(rewards, group, **more):
            factor = self_progress if name == 'own' else placebo(self_progress, among='peers')
            seen[name] = factor(rewards, group, **more)
            return seen[name]

        return signal

    for name in ('own', 'dealt'):
        srpo(
            rows.rewards,
            rows.group,
            rollouts=rows,
            old_hidden=hidden_of(policy, rows),
            signal=keep(name),
        )
    right = rows.rewards > 0.5
    assert not seen['dealt'][right].any() and not torch.equal(seen['own'], seen['dealt'])
    for g in rows.group.unique():
        own = rows.group == g
        assert torch.equal(seen['own'][own].sort().values, seen['dealt'][own].sort().values)


# what a step has done


def test_states_are_those_of_the_rules(rows, words):
    for item, row, text in zip(items_of(rows), words, rows.texts):
        states = states_behind(item, row)
        dead = first_dead_end(item, text)
        puzzle = puzzle_of(item)
        for place, state in enumerate(states):
            if state == 'lost':
                continue
            left, target = state.split(' -> ')
            numbers = [int(word) for word in left.split()]
            assert len(numbers) == len(puzzle.numbers) - place - 1 and int(target) == puzzle.target
            alive = solvable(numbers, puzzle.target)
            assert alive == (dead is None or place < dead)
        if verify_countdown(item, text).correct:
            assert states[-1] == f'{puzzle.target} -> {puzzle.target}'


def test_steps_that_cannot_be_taken():
    start = '3 3 9 -> 50'
    assert after_step(start, '3 * 3 = 9') == '9 9 -> 50'
    assert after_step(start, '9 - 3 = 6') == '3 6 -> 50'
    for text in ('3 - 9 = 6', '9 / 3 = 3', '9 + 9 = 18', '3 + 9 = 13', '', 'x', '3 + 9'):
        assert after_step(start, text) == 'lost'
    assert after_step(start, '9 / 3 = 3', ops='/') == '3 3 -> 50'
    assert after_step(start, '9 * 9 = 81') == after_step('lost', '3 * 3 = 9') == 'lost'
    assert after_step('60 60 -> 9', '60 + 60 = 120') == 'lost'
    assert after_step('60 60 -> 9', '60 + 60 = 120', max_value=200) == '120 -> 9'


def test_the_judge_by_hand():
    judge = countdown_judge()

    def says(prompt, text, criterion):
        return judge([Question(prompt, text, criterion)]) == [1.0]

    assert says('4 5 9 -> 45', '9 - 4 = 5', REACHES.format(5))
    assert not says('4 5 9 -> 45', '9 - 4 = 5', REACHES.format(9))
    assert not says('4 5 9 -> 45', '9 - 5 = 5', REACHES.format(5))
    assert says('4 5 9 -> 45', '9 - 4 = 5', OPEN_WITH.format(2)) == solvable((5, 5), 45)
    assert says('4 5 9 -> 25', '9 - 4 = 5', OPEN_WITH.format(2))
    assert not says('4 5 9 -> 25', '9 - 4 = 5', OPEN_WITH.format(1))
    assert says('', '5 9 -> 45', OPEN) and not says('', 'lost', OPEN)
    assert not says('', 'some words', OPEN)


def test_the_dial_of_the_judge():
    judge = countdown_judge()
    questions = [Question('', f'{a} {b} -> {a * b}', OPEN) for a in range(20) for b in range(20)]
    wrong = [Question('', f'{a} {b} -> 997', OPEN) for a in range(20) for b in range(20)]
    dull = unsure_judge(judge, recall=0.6, false_alarm=0.3)
    yes, no = dull(questions), dull(wrong)
    affirmed = [a for a, b in zip(yes, judge(questions)) if b]
    assert abs(sum(affirmed) / len(affirmed) - 0.6) < 0.1 and abs(sum(no) / len(no) - 0.3) < 0.1
    assert dull(questions[::-1]) == yes[::-1]
    assert unsure_judge(judge, recall=0.6, false_alarm=0.3, seed=1)(questions) != yes
    assert unsure_judge(judge, recall=0.0)(questions) == [0.0] * len(questions)
    assert unsure_judge(judge)(questions + wrong) == judge(questions + wrong)
    with pytest.raises(ValueError, match='recall'):
        unsure_judge(judge, recall=1.5)


def test_half_sure_is_no_yes():
    question = Question('', '1 2 -> 3', 'happy')

    def undecided(questions):
        return [0.5] * len(questions)

    assert unsure_judge(undecided)([question]) == [0.0]
    assert unsure_judge(undecided, recall=0.0, false_alarm=1.0)([question]) == [1.0]
    for degree, wanted in ((0.5, 0), (0.51, 1)):
        counts = goals_reached(
            [None],
            [['a step']],
            goals=lambda item: ('happy',),
            judge=lambda questions: [degree] * len(questions),
        )
        assert counts == [[wanted]]


# subgoals


def test_goals_of_a_demonstration_are_reached_by_it():
    for item in STANDARD.sample(20, seed=3):
        shown = [step.strip() for step in STANDARD.demonstrate(item, seed=0).split(';')]
        planned = goals_reached([item], [shown])[0]
        assert len(planned_goals(item)) == 2 and sum(planned) == len(set(planned_goals(item)))
        assert planned[-1] == 0 or planned_goals(item)[0] in REACHES.format(puzzle_of(item).target)
        assert goals_reached([item], [shown], goals=open_goals)[0] == [1, 1, 0]


def test_a_goal_is_paid_once():
    item = STANDARD.sample(1, seed=1)[0]
    a, b, *_ = puzzle_of(item).numbers

    def goals(item):
        return (REACHES.format(a + b), REACHES.format(a + b), REACHES.format(1))

    step = f'{a} + {b} = {a + b}'
    assert goals_reached([item], [[step, step]], goals=goals) == [[1, 0]]
    assert goals_reached([item, None], [[], [step]], goals=goals) == [[], [0]]


def test_a_judge_is_asked_about_single_transitions():
    item = STANDARD.sample(1, seed=1)[0]
    a, b, *rest = puzzle_of(item).numbers
    heard = []

    def judge(questions):
        heard.extend(questions)
        return [0.0] * len(questions)

    steps = [f'{a} + {b} = {a + b}', f'{a + b} + {rest[0]} = {a + b + rest[0]}']
    goals_reached([item], [steps], goals=lambda item: ('happy',), judge=judge)
    start = f'{" ".join(map(str, puzzle_of(item).numbers))} -> {puzzle_of(item).target}'
    assert heard[0] == Question(start, steps[0], 'happy')
    assert heard[1] == Question(after_step(start, steps[0]), steps[1], 'happy')


def test_calm_reduces_to_grpo(policy, rows):
    number = step_numbers(rows.rewards, rows, policy)
    assert (number.amax(1) == number.max()).all()  # all have three steps
    plain = grpo(rows.rewards, rows.group)[:, None] * rows.mask
    for how in (dict(weight=0.0), dict(potential=True, to='row'), dict(recall=0.0)):
        assert torch.allclose(calm(**asked(rows, policy, **how)), plain, atol=1e-5)
    for how in ({}, dict(potential=True), dict(to='row'), dict(goals=open_goals)):
        assert not torch.allclose(calm(**asked(rows, policy, **how)), plain, atol=1e-3)


def test_who_reaches_more_subgoals_is_worth_more(policy, rows, words):
    reached = torch.tensor([sum(counts) for counts in goals_reached(items_of(rows), words)])
    nothing = torch.zeros(len(rows))
    adv = calm(nothing, rows.group, rollouts=rows, policy=policy)[:, 0]
    compared = 0
    for g in rows.group.unique():
        own = rows.group == g
        most, least = reached[own].max(), reached[own].min()
        if most > least:
            assert adv[own & (reached == most)].min() > 0 > adv[own & (reached == least)].max()
            compared += 1
    assert compared


def test_pay_of_others_keeps_the_total(policy, rows, words):
    def deal(name):
        knobs = dict(recipe(name).advantage.knobs)
        return knobs.get('whose', own_row)(rows.rewards, rows.group, rollouts=rows)

    giver = deal('calm_dealt')
    assert not torch.equal(giver, torch.arange(len(rows)))
    assert torch.equal(giver.sort().values, torch.arange(len(rows)))
    assert torch.equal(rows.group[giver], rows.group)
    assert torch.equal(giver, deal('oni_dealt')) and torch.equal(
        giver, deal('oni_classified_dealt')
    )


def test_all_tokens_of_a_step_have_one_advantage(policy, rows):
    number = step_numbers(rows.rewards, rows, policy)
    for name in ('calm', 'calm_dealt', 'calm_moved', 'calm_row', 'calm_potential', 'calm_open'):
        adv = recipe(name).advantage(rows.rewards, rows.group, rollouts=rows, policy=policy)
        for row, steps in zip(adv, number):
            for step in range(1, int(steps.max()) + 1):
                assert len(row[steps == step].unique()) == 1
        assert not adv[number == 0].any()


# labels as they come


def test_repetitions_by_hand():
    assert seen_before(['a', 'a', 'b', 'a']) == [1, 2, 1, 3]
    assert count_pay(['a', 'a', 'b', 'a'], [1.0] * 4, beta=1) == [1, 1 / 2, 1, 1 / 3]
    assert count_pay(['a', 'a'], [1.0, 1.0], beta=0) == [1, 1]
    assert sum(count_pay(['a'] * 5000, [1.0] * 5000)) < 1.2021


def test_each_message_of_a_row_has_a_value():
    for values in ([1.0], [1.0] * 3):
        with pytest.raises(ValueError, match=f'{len(values)} values were given for 2 messages'):
            count_pay(['a', 'b'], values)


@pytest.mark.parametrize('bad', [dict(across='x'), dict(eps='a'), dict(eps=-1.0), dict(eps=NAN)])
def test_oni_is_refused_when_it_is_made(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        oni(**bad)


def test_pay_moved_within_a_row_leaves_its_first_step(policy, rows, words):
    number = step_numbers(rows.rewards, rows, policy)
    given = dict(rollouts=rows, policy=policy)
    names = ('calm', 'calm_moved', 'calm_row')
    own, *moved = (
        recipe(name).advantage.make()(rows.rewards, rows.group, **given) for name in names
    )
    for other in moved:
        assert torch.allclose(other[number == 1], own[number == 1], atol=1e-5)
        assert not torch.allclose(other[number > 1], own[number > 1], atol=1e-5)


def test_ranking_pays_the_worst_more_than_the_second():
    scores = torch.tensor([-4.0, -0.5, 2.0, 2.0])
    worst, second, *_ = OnlineLabels(None, labeller='ranking')._standardised(scores).tolist()
    assert worst == 0 > second


def test_words_behind_the_arrow_are_other_words():
    x = hashed_words(['5 10 -> 50', '10 5 -> 50', '50 10 -> 5', 'lost', ''])
    assert torch.equal(x[0], x[1]) and not torch.equal(x[0], x[2])
    assert x[4].sum() == 1 and x[3].sum() in (2, 3)
    assert torch.equal(x, hashed_words(['5 10 -> 50', '10 5 -> 50', '50 10 -> 5', 'lost', '']))


@pytest.mark.parametrize(
    'message, count',
    [('', 1), ('a', 2), ('a b', 4), ('a b c', 7), ('c b a', 7), ('a -> a', 4), ('a a', 2)],
)
def test_each_word_and_each_pair_is_marked_once(message, count):
    "The empty word, n words and n (n - 1) / 2 pairs of two words, in one order."
    assert hashed_words([message]).sum() == count


def test_steps_of_the_linear_model_are_cut_at_a_norm_of_10():
    model = Distilled(passes=1)
    model.learn([' '.join(map(str, range(60)))], [1.0])
    assert model.module.weight.grad.norm() == pytest.approx(10.0, rel=1e-4)
    model.learn(['few words'], [1.0])
    assert model.module.weight.grad.norm() < 2.0


def test_classification_pays_scores_above_0():
    known = OnlineLabels(None, labeller='classification')
    known.meetings = 1
    known.model.scores = lambda messages: torch.tensor([-0.5, 0.0, 0.5])
    assert known.values(['a', 'b', 'c']) == [0.0, 0.0, 1.0]


def test_without_a_label_a_model_learns_nothing():
    none = OnlineLabels(countdown_judge(), labeller='classification', budget=0)
    none.meet(['1 2 -> 3'])
    assert none.values(['1 2 -> 3']) == [0.0] and not none.labels
    looked_up = OnlineLabels(countdown_judge())
    for _ in range(2):
        looked_up.meet(['1 2 -> 3'])
    assert looked_up.labels and looked_up.meetings == 2
    assert looked_up.model.module is None  # retrieval has no model


def test_before_the_first_meeting_no_score_has_come():
    ranked = OnlineLabels(countdown_judge(), labeller='ranking')
    assert ranked.values(['1 2 -> 3', '1 2 -> 9']) == [0.0, 0.0]
    assert ranked.moments == [0.0, 0.0, 0.0]
    ranked.meet(['1 2 -> 3', '1 2 -> 9'])
    assert ranked.values([]) == [] and ranked.moments == [0.0, 0.0, 0.0]
    better, worse = ranked.values(['1 2 -> 3', '1 2 -> 9'])
    assert better > 0.9 and worse == 0  # two messages can be compared
    assert ranked.moments[0] == 2


def test_small_scores_are_standardised_too_and_the_border_is_not_paid():
    for above, wanted in ((-1.0, [0.0, 1.0]), (-1.25, [-1.0, 1.0])):
        ranked = OnlineLabels(None, labeller='ranking', above=above)
        z = ranked._standardised(torch.tensor([0.0, 0.25]).double())
        assert z.tolist() == wanted


def test_comparisons_say_which_is_better_or_that_neither_is():
    liked = dict(a=1.0, b=1.0, c=0.0)
    ranked = OnlineLabels(lambda questions: [liked[q.text] for q in questions], labeller='ranking')
    heard = set()
    ranked.model.compare = lambda *told: heard.update(zip(*told))
    ranked.meet(list('abc'))
    same = {('a', 'b', 0.5), ('b', 'a', 0.5)}
    first = {('a', 'c', 1.0), ('b', 'c', 1.0)}
    second = {('c', 'a', 0.0), ('c', 'b', 0.0)}
    assert heard == same | first | second


def test_shares_of_known_and_paid_steps_by_hand():
    made = oni()
    assert made._counters(torch.zeros(0, 0)) == dict(known=0, paid=0, labels=0)
    made.known.labels = {'a': 1.0, 'x': 0.0}
    made.seen = ['a']
    paid = torch.tensor([[0.5, NAN, NAN]])
    assert made._counters(paid) == dict(known=1, paid=1, labels=2)
    made.seen = ['a', 'x', 'b', 'c']
    paid = torch.tensor([[0.5, 0.0, 0.0], [0.0, NAN, NAN]])
    assert made._counters(paid) == dict(known=1 / 2, paid=1 / 4, labels=2)


def test_labels_come_newest_first_and_later_than_the_message():
    judge = countdown_judge()
    known = OnlineLabels(judge, budget=1)
    states = ['1 2 -> 3', '1 2 -> 9', '2 2 -> 4']
    assert known.values(states) == [0, 0, 0]
    known.meet(states)
    assert known.labels == {'2 2 -> 4': 1.0} and known.waiting == states[:2]
    known.meet(states[:1])
    assert known.values(states) == [1, 0, 1] and known.waiting == [states[1]]
    known.meet([])
    assert not known.waiting and known.labels['1 2 -> 9'] == 0.0
    known.meet(states)
    assert len(known.labels) == 3


def test_models_learn_what_they_are_told():
    judge = countdown_judge()
    states = [f'{a} {b} -> {c}' for a in range(1, 5) for b in range(1, 5) for c in (a + b, 97)]
    truth = judge([Question('', state, OPEN) for state in states])
    sure = OnlineLabels(judge, labeller='classification', budget=99)
    ranked = OnlineLabels(judge, labeller='ranking', budget=99)
    for labels in (sure, ranked):
        assert labels.values(states) == [0.0] * len(states)
        for _ in range(5):
            labels.meet(states)
    assert sure.values(states) == truth
    paid = torch.tensor(ranked.values(states))
    wanted = torch.tensor(truth)
    assert paid[wanted == 1].min() > paid[wanted == 0].max()
    assert (paid[paid < 0] > -0.5).all()


def test_ranking_standardises_over_all_that_came():
    ranked = OnlineLabels(countdown_judge(), labeller='ranking')
    z = ranked._standardised(torch.tensor([1.0, 2.0, 3.0, 6.0]).double())
    spread = 3.5**0.5
    assert torch.allclose(z, torch.tensor([0.0, 0.0, 0.0, 3 / spread]).double())
    again = ranked._standardised(torch.tensor([3.0]).double())
    assert again.item() == 0.0 and ranked.moments[0] == 5


@pytest.mark.parametrize('labeller', LABELLERS)
def test_oni_pays_from_the_second_batch_on(policy, rows, labeller):
    plain = grpo(rows.rewards, rows.group)[:, None] * rows.mask
    made = oni(labeller=labeller, budget=999)
    assert torch.allclose(made(**asked(rows, policy)), plain, atol=1e-5)
    assert made.told['paid'] == 0
    made.update(rows)
    assert not torch.allclose(made(**asked(rows, policy)), plain, atol=1e-3)
    assert made.told['paid'] > 0
    if labeller == 'retrieval':
        assert made.told['known'] == 1


def test_oni_by_hand(policy, rows, words):
    made = oni(budget=999)
    made(**asked(rows, policy))
    made.update(rows)
    adv = made(**asked(rows, policy))
    judge = countdown_judge()
    paid = [
        [0.2 * x for x in judge([Question('', s, OPEN) for s in states_behind(item, row)])]
        for item, row in zip(items_of(rows), words)
    ]
    number = step_numbers(rows.rewards, rows, policy)
    wanted = pay_out(rows.rewards, rows.group, torch.tensor(paid), number)
    assert torch.allclose(adv, wanted, atol=1e-5)


def test_oni_without_a_verdict_of_the_judge_is_grpo(policy, rows):
    plain = grpo(rows.rewards, rows.group)[:, None] * rows.mask
    for how in (dict(budget=0), dict(recall=0.0), dict(weight=0.0)):
        made = oni(**how)
        for _ in range(2):
            adv = made(**asked(rows, policy))
            made.update(rows)
        assert torch.allclose(adv, plain, atol=1e-5)


def end_of(policy, name, *parts, path=None):
    "The weights after runs of so many steps in one folder, one after the other."
    made = recipe(name, prompts=2, group=4, lr=1e-3)
    saved = [] if path is None else [Checkpoint(every=1)]
    for steps in parts:
        learner = policy.clone()
        train(learner, EASY, made, steps=steps, seed=1, path=path, callbacks=saved)
    return weights(learner)


@pytest.mark.parametrize('name', ['oni', 'oni_classified', 'oni_ranked'])
def test_a_run_goes_on_bit_for_bit(policy, tmp_path, name):
    straight = end_of(policy, name, 3)
    assert torch.equal(straight, end_of(policy, name, 2, 3, path=tmp_path / 'run'))


def test_how_often_it_acts_is_in_the_metrics(policy):
    made = recipe('oni', prompts=2, group=4)
    told = train(policy.clone(), EASY, made, steps=2, seed=1).metrics
    assert {'advantage/paid', 'advantage/known'} <= set(told)
    assert told['advantage/paid'][0] == 0 and (told['advantage/known'] <= 1).all()


def test_bad_input_is_answered_in_one_sentence(policy, rows):
    def refused(match, stage=calm, **how):
        with pytest.raises(ValueError, match=match) as error:
            stage(**{**asked(rows, policy), **how})
        assert '\n' not in str(error.value)

    refused('to .x. is unknown; choose one of row, step', to='x')
    refused('across .x. is unknown; choose one of step, group', across='x')
    refused('weight', weight='much')
    refused('false_alarm', false_alarm=-1)
    refused('every is 0', every=0)
    refused('separator', separators=('no such word',))
    refused('one reward and one group number', group=rows.group[:-1])
    refused('one reward and one group number', oni(), group=rows.group[:-1])
    for bad in (dict(labeller='x'), dict(to='x'), dict(beta=-1), dict(budget=0.5)):
        with pytest.raises(ValueError, match=next(iter(bad))):
            oni(**bad)
    hidden = hidden_of(policy, rows)

    def near(**how):
        given = dict(rewards=rows.rewards, group=rows.group, rollouts=rows, old_hidden=hidden)
        with pytest.raises(ValueError) as error:
            srpo(**{**given, **how})
        return str(error.value)

    assert 'among' in near(among='x') and 'old_hidden' in near(old_hidden=hidden[:, :-1])


def test_a_refusal_says_which_shape_is_whose(policy, rows):
    n = len(rows)
    short = {**asked(rows, policy), 'group': rows.group[:-1]}
    said = rf'rewards have shape \({n},\) and groups \({n - 1},\)'
    for stage in (calm, oni()):
        with pytest.raises(ValueError, match=said):
            stage(**short)
    with pytest.raises(ValueError, match=r'rewards have shape \(3,\) and groups \(2,\)'):
        pay_out(torch.zeros(3), ONE[:2], PAID, NUMBER)
    with pytest.raises(ValueError, match=r'infinite value \(row 1\)'):
        pay_out(torch.tensor([0.0, math.inf, 0.0]), ONE, PAID, NUMBER)


def test_rows_without_problems_are_paid_nothing(policy, rows):
    bare = dataclasses.replace(rows, items=())
    plain = grpo(rows.rewards, rows.group)[:, None] * rows.mask
    assert torch.allclose(calm(**asked(bare, policy)), plain, atol=1e-5)
    model = Distilled()
    assert not model.scores(['a']).any()
