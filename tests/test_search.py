"""Searches at inference: what they choose, that they are like any policy, and what they refuse."""

import math

import pytest
import torch

from rl4llm.core.policy import Policy
from rl4llm.inference.search import (
    Searched,
    best_of_all,
    by_likelihood,
    by_text,
    countdown_hope,
    last_best,
    thought_hope,
    wrong_at_times,
)
from rl4llm.rollouts.tree import Forest, Tree, expand_nodes
from rl4llm.tasks import task
from rl4llm.tasks.countdown import demonstrate_countdown
from rl4llm.tasks.protocol import Item
from rl4llm.training.evaluation import evaluate
from rl4llm.training.loop import train

HOPE = by_text(countdown_hope)


@pytest.fixture(scope='module')
def policy():
    return Policy.load('tiny')


@pytest.fixture(scope='module')
def items():
    return task('countdown').sample(5, seed=2, split='test')


def test_hope_is_kept_along_every_solution_and_lost_on_the_way_to_a_wrong_one(policy, items):
    for item in items:
        for seed in range(4):
            steps = demonstrate_countdown(item, seed=seed).split(' ; ')
            hopes = [countdown_hope(item, ' ; '.join(steps[:n])) for n in range(len(steps) + 1)]
            assert hopes == [1.0] * (len(steps) + 1)
    drawn = policy.sample(items, 16, seed=1)
    for k, text in zip(drawn.prompt.tolist(), drawn.texts):
        right = task('countdown').verify(items[k], text).correct
        assert countdown_hope(items[k], text, ended=True) == float(right), text
    assert countdown_hope(items[0], '') == 1 and countdown_hope(items[0], '', ended=True) == 0


def test_hope_of_a_thought_is_that_of_the_attempt_it_is_at():
    item = Item('countdown', ((2, 7, 11, 12), 10, 99, '+-*'))
    dead = '<think> 7 + 12 = 19 ; 2 + 11 = 13 ;'
    assert thought_hope(item, '') == thought_hope(item, '<think> <plan> + - - </plan>') == 1
    assert thought_hope(item, '<think> 11 - 2 = 9 | 7 9 12 ; 7 + 12 = 19 | 9 19 ;') == 1
    assert thought_hope(item, '<think> 7 + 12 = 20 ;') == thought_hope(item, dead) == 0
    assert thought_hope(item, f'{dead} 19 - 13 = 6 <backtrack>') == 1
    assert thought_hope(item, f'{dead} 19 - 13 = 6 <backtrack> 7 + 7 = 14 ;') == 0
    backwards = '<think> 10 = 21 - 11 ; 21 = 19 + 2 ;'
    assert thought_hope(item, backwards) == 1 and thought_hope(item, '<think> 10 = 3 + 8 ;') == 0
    behind = f'{dead} 19 - 13 = 6 </think>'
    assert thought_hope(item, behind) == 1
    assert thought_hope(item, f'{behind} <answer> 11 - 2 = 9 ;') == 1
    assert thought_hope(item, f'{behind} <answer> 7 + 12 = 20 ;') == 0
    for begun in ('<think> 11 - 2', '<think> <plan> + *', '<think> 11 - 2 = 9 ; 7 + 12 ='):
        assert thought_hope(item, begun) == 1
    assert thought_hope(item, f'{dead} 13 -') == 0
    right = '<answer> 11 - 2 = 9 ; 7 + 12 = 19 ; 19 - 9 = 10 </answer>'
    assert thought_hope(item, right) == 1
    assert thought_hope(item, right, ended=True) == 1
    assert thought_hope(item, right.replace('= 10', '= 11'), ended=True) == 0


def test_rows_are_a_policys(policy, items):
    searched = Searched(policy, HOPE, width=2, branch=3)
    rows = searched.sample(items, 3, seed=0)
    assert rows.prompt.tolist() == [k for k in range(5) for _ in range(3)]
    assert (rows.parent == -1).all() and rows.mask.equal(rows.sampled)
    assert rows.finished.all() and searched.cost['computed'] > rows.mask.sum()
    with torch.no_grad():
        logp, _ = policy.logprobs(rows)
    assert (logp - rows.logp_behave)[rows.mask].abs().max() < 1e-4
    assert len(set(Searched(policy, by_likelihood()).sample(items, 8, seed=0).texts)) > 5 * 2
    alone = searched.sample(items[2:3], 3, seed=0)
    assert alone.texts == rows.texts[6:9]  # a problem's search does not hang on the others


def test_an_exact_value_finds_what_a_wider_search_finds(policy, items):
    found = {
        width: evaluate(Searched(policy, HOPE, width=width, branch=4), items, samples=2).num_correct
        for width in (1, 6)
    }
    plain = evaluate(policy, items, samples=32).num_correct / 16
    assert found[6].sum() >= found[1].sum() >= plain.sum()
    assert found[6].sum() >= 9


def test_one_beginning_and_no_chance_is_greedy(policy, items):
    lone = Searched(policy, by_likelihood(), width=1, branch=1)
    cold = lone.sample(items, 1, seed=0, temperature=0.0)
    assert cold.texts == policy.sample(items, 1, seed=0, temperature=0.0).texts
    assert cold.texts != lone.sample(items, 1, seed=0).texts


def test_rounds_are_counted_and_a_search_stops_early(policy, items):
    asked = []

    def value(forest, places):
        asked.append(len(places))
        return HOPE(forest, places)

    Searched(policy, value, rounds=1).sample(items, 1, seed=0)
    assert len(asked) == 2 and asked[0] == 16 * len(items)  # one round, and what it is written to
    blind, seeing = (
        Searched(policy, value, width=1, among='all', rounds=40)
        for value in (lambda forest, places: [math.nan] * len(places), HOPE)
    )
    for searched in (blind, seeing):
        searched.sample(items, 1, seed=0)
    assert seeing.cost['computed'] < blind.cost['computed'] / 2


def test_power_of_the_length(policy, items):
    forest = Forest(policy, items, seed=0)
    places = expand_nodes(forest, [(0, 0)], width=2, most=5)
    by_sum, by_mean = (by_likelihood(power)(forest, places) for power in (0, 1))
    assert by_sum == pytest.approx([5 * mean for mean in by_mean]) and by_sum != by_mean


@pytest.mark.parametrize('among', ['last', 'all'])
def test_a_search_that_is_cut_short_still_answers(policy, items, among):
    rows = Searched(policy, by_likelihood(), among=among, rounds=1).sample(items, 1, seed=0)
    assert len(rows) == 5 and rows.finished.all()
    short = Searched(policy, HOPE, among=among).sample(items, 1, seed=0, max_new_tokens=4)
    assert short.mask.sum(1).tolist() == [4] * 5 and not short.finished.any()


def test_selections_by_hand():
    tree = Tree()
    low = tree.add(0, tokens=[1], logp=[-1.0], value=0.1)
    high = tree.add(0, tokens=[2], logp=[-1.0], value=0.8)
    deep = tree.add(low, tokens=[3], logp=[-1.0], value=0.3)
    tree.add(low, tokens=[4], logp=[-9.0], value=math.nan)
    assert last_best(tree, width=1) == [deep] and best_of_all(tree, width=2) == [high, deep]
    tree[deep].ended = True
    assert best_of_all(tree, width=1) == [high]


def test_errors_are_always_about_the_same_texts(items):
    judge = wrong_at_times(countdown_hope, 0.3, seed=1)
    texts = [f'{n} + 2 = {n + 2} ;' for n in range(300)]
    wrong = [judge(items[0], text) != countdown_hope(items[0], text) for text in texts]
    assert 0.2 < sum(wrong) / 300 < 0.4
    assert wrong == [judge(items[0], text) != countdown_hope(items[0], text) for text in texts]
    never = wrong_at_times(countdown_hope, 0)
    assert all(never(items[0], text) == countdown_hope(items[0], text) for text in texts)


@pytest.mark.parametrize(
    'bad, said',
    [
        (dict(width=0), 'width is 0'),
        (dict(branch=0), 'branch is 0'),
        (dict(rounds=0), 'rounds is 0'),
        (dict(among='best'), "wanted 'last' or 'all'"),
        (dict(value=None), 'wanted a function'),
        (dict(ends=('no word',)), 'is no token'),
    ],
)
def test_bad_settings_are_refused(policy, bad, said):
    with pytest.raises(ValueError, match=said):
        Searched(policy, **(dict(value=HOPE) | bad))


def test_what_a_search_cannot_do_is_refused(policy, items):
    searched = Searched(policy, HOPE)
    with pytest.raises(ValueError, match='top_p is 0.9'):
        searched.sample(items, 1, seed=0, top_p=0.9)
    with pytest.raises(ValueError, match='gave 1 numbers for 80 places'):
        Searched(policy, lambda forest, places: [1.0]).sample(items, 1, seed=0)
    with pytest.raises(ValueError, match='at most 1'):
        wrong_at_times(countdown_hope, 1.5)
    with pytest.raises((TypeError, ValueError), match='chosen by a search'):
        train(searched, 'countdown/easy', 'grpo', steps=1)
