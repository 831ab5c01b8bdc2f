"Sequences: the rules of the family, which terms are asked, and what is said of a wrong answer."

import itertools
import pytest
from rl4llm.tasks import Item, TermRule, continued, fitting_rules, task, verify_sequence
from rl4llm.tasks.sequences import _in_range


def test_blends_have_factors_from_1_to_4_and_are_no_sums():
    for a, b in itertools.product(range(6), repeat=2):
        rule = TermRule('blend', (a, b, 50))
        terms = (3, 7, *continued(rule, (3, 7), 6))
        known = a in (1, 2, 3, 4) and b in (1, 2, 3, 4) and (a, b) != (1, 1)
        assert (rule in fitting_rules(terms)) == known, (a, b)


def test_terms_are_from_0_to_99_and_three_of_those_shown_differ():
    cases = [
        ((0, 1, 2, 3), (99,), True),
        ((0, 1, 2, 3), (100,), False),
        ((2, 1, 0, 3), (-1,), False),
        ((-1, 1, 0, 3), (4,), False),
        ((1, 2, 1, 2), (3,), False),
        ((1, 2, 3, 1), (2,), True),
    ]
    for shown, asked, good in cases:
        assert _in_range(Item('sequence', (shown, asked, 7))) == good, (shown, asked)


def test_the_difficulty_is_the_place_of_the_simplest_kind():
    cases = [
        ((2, 4, 6, 8, 10), 1),  # + 2
        ((1, 3, 4, 6, 7, 9), 2),  # + 2 and + 1 in turn
        ((1, 2, 4, 7, 11, 16), 3),  # + 1, + 2, + 3, ...
        ((1, 1, 2, 3, 5, 8, 3), 4),  # 5 + 8 = 13 = 3 mod 10
        ((1, 4, 3, 0, 1), 5),  # * 3 + 1 mod 10
        ((1, 60, 3, 59, 5, 58), 6),  # + 2 | - 1
        ((1, 3, 7, 17, 41, 49), 7),  # 2 * 41 + 17 = 99 = 49 mod 50
        ((90, 80, 99, 0, 57, 3), 8),  # no rule of the family
    ]
    for terms, place in cases:
        item = Item('sequence', (terms[:-1], terms[-1:], 7))
        assert task('sequence').difficulty(item) == place, terms


def test_a_wrong_answer_is_told_from_a_short_or_long_one():
    item = Item('sequence', ((2, 4, 6, 8), (10, 12), 1))
    cases = [
        ('11 12', 0, 0, 'term 0 is wrong'),
        ('10 13', 1 / 3, 1, 'term 1 is wrong'),
        ('10', 1 / 3, 1, '1 terms, not 2'),
        ('10 12 14', 2 / 3, 2, '3 terms, not 2'),
    ]
    for text, score, first, reason in cases:
        said = verify_sequence(item, text)
        assert (said.correct, said.first_error, said.reason) == (False, first, reason)
        assert said.score == pytest.approx(score)


def test_moduli_are_explained_where_a_kind_has_one():
    for rules, has_modulus in [(1, False), (3, False), (4, True), (7, True)]:
        text = Item('sequence', ((2, 4, 6, 8), (10,), rules)).prompt('text')
        assert ('Here m is one of 10, 11, 13, 20, 50' in text) == has_modulus
