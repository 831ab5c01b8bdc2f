"""SCOPE's labels by hand: confidence, steps, the nearest point, votes of subgroups, advantages."""

import math
from types import SimpleNamespace
import pytest, torch
from rl4llm.rewards import subgroup_labels as module
from rl4llm.rewards.subgroup_labels import (
    candidate_confidence,
    marked_steps,
    nearest_to_best,
    rate_and_diversity,
    step_confidence,
    subgroup_votes,
    voted_labels,
)


def test_confidence_looks_at_twenty_tokens_and_no_more():
    logits = torch.tensor([[0.0] * 20 + [-50.0] * 20])
    found = candidate_confidence(logits, torch.zeros(1).long())
    assert float(found) == pytest.approx(math.log(20), abs=1e-5)


def test_a_step_of_each_token_is_a_step_of_its_own():
    shown = torch.tensor([[1.0, 2.0, 6.0]])
    every = torch.ones(1, 3).bool()
    assert step_confidence(shown, torch.tensor([[0, 1, 2]]), every).tolist() == [3.0]
    assert step_confidence(shown, torch.tensor([[0, 1, 1]]), every).tolist() == [2.5]


@pytest.mark.parametrize('step', [1, -1])
def test_a_place_without_a_token_counts_in_no_step(step):
    shown = torch.tensor([[1.0, 2.0, 6.0]])
    mask = torch.tensor([[True, True, False]])
    assert step_confidence(shown, torch.tensor([[0, 1, step]]), mask).tolist() == [1.5]


def test_a_step_ends_with_the_token_that_holds_any_of_the_marks():
    words = {5: 'a', 6: ' ;', 7: 'b', 8: 'c\n\n'}
    decode = SimpleNamespace(batch_decode=lambda rows: [words[int(row)] for row in rows])
    tokens = torch.tensor([[5, 6, 7, 8, 5]])
    steps = marked_steps(tokens, torch.ones(1, 5).bool(), decode)
    assert steps.tolist() == [[0, 0, 1, 1, 2]]


@pytest.mark.parametrize(
    'answers, labels, found',
    [
        ([['a']], [['a']], (1, 1)),
        ([[None, 'a']], [[None, 'a']], (0.5, 2)),  # nothing said is never right
        ([['a', 'a']], [['b', 'b']], (0, 1)),
        ([['a', 'b'], ['c', 'c']], [['a', 'a'], ['c', 'd']], (0.5, 1.5)),
    ],
)
def test_rate_and_diversity_by_hand(answers, labels, found):
    assert rate_and_diversity(answers, labels) == found


@pytest.mark.parametrize(
    'points, nearest',
    [
        # the second ends at 1 and 0, the third at 0 and 1, whatever their scale
        ([(0, 0), (1, 0.5), (0.9, 1)], 1),
        ([(0, 1), (1, 0.5), (0.9, 1)], 1),  # the first is beaten in one column, equal in the other
        ([(1, 0), (0, 1), (0.46, 0.46)], 2),  # 0.54 squared is below 0.3
        ([(1, 0), (0, 1), (0.4, 0.4)], 0),  # 0.6 squared is above it
        ([(0.5, 1), (0.5, 1)], 0),
    ],
)
def test_the_nearest_point_by_hand(points, nearest):
    assert nearest_to_best(points) == nearest


# -- votes


def rows_of(texts, groups):
    "Rows of one token each, that say these texts."
    one = torch.ones(len(texts), 1)
    group = torch.tensor(groups)
    rows = SimpleNamespace(
        texts=texts,
        items=(),
        prompt=group,
        tokens=one.long(),
        prompt_ids=torch.arange(max(groups) + 1)[:, None],
    )
    tokenizer = SimpleNamespace(batch_decode=lambda ids: ['x'] * len(ids))
    policy = SimpleNamespace(tokenizer=tokenizer)
    return group, dict(rollouts=rows, mask=one.bool(), policy=policy)


def votes_of(texts, groups, sure, rewards=None, **how):
    group, given = rows_of(texts, groups)
    rewards = [0.0] * len(texts) if rewards is None else rewards
    confidence = torch.tensor(sure).double()[:, None]
    rewards = torch.tensor(rewards).double()
    return subgroup_votes(rewards, group, old_candidate_confidence=confidence, **given, **how)


def test_advantages_of_one_vote_by_hand():
    four = ('a', 'a', 'b', 'c'), [0] * 4, [1.0, 1.0, 5.0, 1.0]
    weighted = votes_of(*four, size=4, share=1.0)  # b is paid: mean 1/4, deviation 1/2
    assert weighted.tolist() == pytest.approx(
        [x / (0.5 + 1e-6) for x in (-0.25, -0.25, 0.75, -0.25)], rel=1e-9
    )
    plain = votes_of(*four, size=4, share=1.0, weighted=False)  # a: deviation sqrt(1/3)
    spread = math.sqrt(1 / 3) + 1e-6
    assert plain.tolist() == pytest.approx([x / spread for x in (0.5, 0.5, -0.5, -0.5)], rel=1e-9)


def test_half_of_the_rows_vote_with_weights_if_nothing_is_said():
    texts = tuple('aaabbccd')
    rows = texts, [0] * 8, [1.0, 1.0, 1.0, 9.0, 9.0, 2.0, 2.0, 5.0]
    stated = votes_of(*rows, size=1, share=0.5, weighted=True, lam=0.7, baseline='prompt')
    assert torch.equal(votes_of(*rows, size=1), stated)
    for other in (dict(share=1.0), dict(weighted=False)):
        assert not torch.equal(votes_of(*rows, **{**dict(size=1), **other}), stated)


def test_of_two_rows_one_votes():
    ballot = dict(answers=['a', 'b'], weights=[1.0, 5.0], texts=['a', 'b'], rows=[0, 1], prompt='')
    labels = [module._labels_of(ballot, 2, 0.5, seed) for seed in range(20)]
    assert {tuple(pair) for pair in labels} == {('a', 'a'), ('b', 'b')}


def test_a_single_scored_row_and_infinite_rewards():
    adv = votes_of(('a', 'b'), [0, 0], [1.0, 1.0], rewards=[math.nan, 1.0])
    assert adv.tolist() == [0, 0]
    with pytest.raises(ValueError, match='infinite'):
        votes_of(('a', 'b'), [0, 0], [1.0, 1.0], rewards=[math.inf, 1.0])


@pytest.mark.parametrize('lam', [0.0, 1.0])
def test_the_size_with_the_best_column_is_chosen_among_powers_of_two(lam):
    four = dict(answers=list('abcc'), weights=[1.0] * 4, texts=list('abcc'), rows=[0, 1, 2, 3])
    one = dict(answers=['a'], weights=[1.0], texts=['a'], rows=[4])
    ballots = [dict(one, prompt='p'), dict(four, prompt='q')]
    chosen = set()
    for seed in range(30):
        points = {}
        for size in (1, 2, 4):
            how = dict(size=size, voters=1, seed=seed)
            known = [
                voted_labels(
                    b['answers'], b['weights'], texts=b['texts'], prompt=b['prompt'], **how
                )
                for b in ballots
            ]
            right = sum(x == y for b, v in zip(ballots, known) for x, y in zip(b['answers'], v))
            different = sum(len(set(labels)) for labels in known)
            points[size] = (right, different) if lam else (different, right)
        best = max(points, key=points.get)
        assert module._best_size(ballots, 0.25, lam, seed) == best
        chosen.add(best)
    assert len(chosen) > 1


def test_rows_of_different_labels_share_no_baseline():
    group = torch.tensor([0, 1, 1, 2, 2, 2])
    ballots = [dict(rows=[0]), dict(rows=[1, 2]), dict(rows=[3, 4, 5])]
    assert len(module._by_subgroup(group, ballots, 1).unique()) == 6
    assert module._by_subgroup(group, ballots, 2).unique(return_counts=True)[1].tolist() == [
        1,
        2,
        2,
        1,
    ]


# -- what the size cannot change, and bad input


def test_the_size_changes_no_rate_in_the_mean_over_draws():
    answers = ['a'] * 4 + ['b', 'b', 'c', None]
    found = {}
    for size in (1, 2, 8):
        labels = [
            voted_labels(answers, [1.0] * 8, size=size, voters=3, seed=seed) for seed in range(800)
        ]
        rate, _ = rate_and_diversity([answers] * 800, labels)
        found[size] = rate, sum(own.count('a') for own in labels) / 6400
    for column in zip(*found.values()):
        assert max(column) - min(column) < 0.05


def test_a_label_of_nobody_is_counted_as_one():
    assert rate_and_diversity([['7', '7', None, None]], [['7', '7', None, None]]) == (0.5, 2)


@pytest.mark.parametrize(
    'call, said',
    [
        (lambda: voted_labels(['a', 'b'], [1.0], size=1, voters=2), '2 answers, 1 weights'),
        (lambda: voted_labels(['a'], [1.0], size=1, voters=1, texts=[]), '0 texts'),
        (lambda: nearest_to_best([]), 'wanted at least one'),
        (lambda: nearest_to_best([[1, 2, 3]]), 'in two columns'),
    ],
)
def test_one_sentence_says_what_is_missing(call, said):
    with pytest.raises(ValueError, match=said):
        call()
