"""Tournaments by hand: who meets whom, who passes, what a place pays, and what a judge sees."""

import pytest
from rl4llm.rewards import tournaments as module
from rl4llm.rewards.tournaments import (
    Match,
    anchor_scores,
    marked_reward,
    pair_judge,
    places,
    single_elimination,
    swiss,
    tournament_reward,
)
from rl4llm.tasks import task


def marks_of(*marks):
    "Matches in which each player always scores its own marks; what was played is noted down."
    played = []

    def play(i, j):
        played.append((i, j))
        return Match(marks[i], marks[j])

    return play, played


def by_worth(prompt, first, second):
    return float(first), float(second)


def test_the_first_of_two_has_the_score_of_its_one_match():
    assert anchor_scores(lambda i, j: Match(3, 5), 2) == [5, 3]


def test_a_bias_is_for_what_is_shown_first():
    marks = pair_judge(lambda prompt, text: 0.5, bias=0.1)('p', 'a', 'b')
    assert marks == pytest.approx((5.5, 4.5))


def test_losers_of_one_round_are_told_apart_by_their_mean():
    # of five the best three pass the first round; 3 has played once more than 2 when both lose
    play, played = marks_of(5, 4, 3, 2, 1)
    assert single_elimination(play, 5) == [1, 0.75, 0.5, 0.25, 0]
    assert played[4:] == [(3, 4), (0, 3), (1, 2), (0, 1)]


def test_a_draw_lets_the_first_in_the_bracket_pass():
    assert single_elimination(lambda i, j: Match(5, 5), 2) == [1, 0]


@pytest.mark.parametrize('byes, found', [(True, [0, 1, 0.5]), (False, [0.5, 1, 0])])
def test_of_three_one_waits(byes, found):
    # the best seed, or else the one that is left over, who then meets the champion
    play, _ = marks_of(1, 3, 2)
    assert single_elimination(play, 3, byes=byes) == found


def test_rounds_of_a_swiss_tournament():
    assert swiss(None, 1) == [0.5]
    play, played = marks_of(1, 3, 2, 4)
    assert swiss(play, 4, rounds=9) == pytest.approx([0, 2 / 3, 1 / 3, 1])
    assert len(played) == 6 == len({frozenset(pair) for pair in played})


@pytest.mark.parametrize(
    'met, pairs',
    [
        ({}, [(0, 1), (2, 3)]),
        ({(0, 1)}, [(0, 2), (1, 3)]),
        ({(0, 1), (0, 2), (0, 3)}, [(0, 1), (2, 3)]),
    ],
)
def test_each_meets_the_next_whom_it_has_not_met(met, pairs):
    opponents = {i: {j for pair in met for j in pair if i in pair} - {i} for i in range(4)}
    assert module._swiss_pairs([0, 1, 2, 3], opponents) == pairs


@pytest.mark.parametrize(
    'texts, found',
    [
        (['1', '1.0', '1.00'], [0.5] * 3),  # nobody wins
        (['1', '1.0', '3'], [0, 0, 1]),  # a draw is not all
        (['1', '2', '2', '4'], [0, 2 / 3, 2 / 3, 1]),
        ([], []),
    ],
)
def test_places_by_hand(texts, found):
    assert places(texts, by_worth, kind='round_robin') == pytest.approx(found)


def test_copies_have_the_mean_of_their_places():
    # one copy loses against the other in the first round, the other in the last
    texts = ['4', '2', '2', '1']
    assert places(texts, by_worth, ties='order') == pytest.approx([1, 2 / 3, 1 / 3, 0])
    assert places(texts, by_worth) == pytest.approx([1, 0.5, 0.5, 0])


def test_an_answer_plays_as_one_however_it_is_written():
    countdown = task('countdown', level='easy')
    item = countdown.sample(1, seed=3)[0]
    said = '9 - 4 = 5 ; 5 * 10 = 50'
    texts = [said, f'<answer> {said} </answer>', '4 * 10 = 40 ; 9 + 40 = 49']
    for seed in range(4):
        how = dict(item=[item] * 3, noise=0.5, seed=seed)
        one, same, _ = tournament_reward(['p'] * 3, texts, **how)
        assert one == same


def test_marks_lie_in_their_band_but_for_the_noise():
    def worth(prompts, completions, **columns):
        return [float(text) for text in completions]

    texts = ['0', '0.5', '1']
    exact = marked_reward(['p'] * 3, texts, utility=worth)
    assert exact == pytest.approx([0.6, 0.7, 0.8])
    drawn = [module._logistic(0, 'p', '0.5', look) for look in range(3)]
    for looks in (1, 3):
        (noisy,) = marked_reward(['p'], ['0.5'], utility=worth, noise=0.1, looks=looks)
        assert noisy == pytest.approx(0.7 + 0.1 * sum(drawn[:looks]) / looks)
    (one,) = marked_reward(['p'], ['0.5'], utility=worth, noise=0.1)
    assert one == pytest.approx(0.7 + 0.1 * drawn[0])
