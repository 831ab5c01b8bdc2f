"Look-up: which tables are asked about, how far steps are read, and the smallest table."

import random
import pytest
from rl4llm.tasks import Item, lookup_steps, task, verify_lookup, wrong_lookup
from rl4llm.tasks.lookup import LookupQuery, LookupRow, LookupTable, _is_good


def table(verb, values):
    "One row of kind cat for each value and one dog, in one column."
    names = 'abcdefghij'[: len(values) + 1]
    nouns = ['cat'] * len(values) + ['dog']
    rows = [LookupRow(n, k, 'a', (v,)) for n, k, v in zip(names, nouns, [*values, 40])]
    return LookupTable(('red',), tuple(rows), LookupQuery(verb, 'cat', 'red', 0))


def test_a_good_question_means_two_to_six_rows_and_has_one_answer():
    cases = [
        ('count', [5], False),  # too few rows are meant, then few enough, then too many
        ('count', [5, 6], True),
        ('count', [5] * 6, True),
        ('count', [5] * 7, False),
        ('count', [60, 60], True),  # only a sum has to stay below 100
        ('sum', [49, 50], True),
        ('sum', [50, 50], False),
        ('most', [7, 9, 3], True),  # one is the largest, or two are
        ('most', [9, 9, 3], False),
        ('most', [9, 3, 3], True),
        ('follow', [5], True),
    ]
    for verb, values, good in cases:
        assert _is_good(table(verb, values)) == good, (verb, values)


def test_steps_are_read_to_the_2000th_character():
    item = Item('lookup', table('sum', [12, 30]))
    steps = ' ; '.join(lookup_steps(item))
    assert steps == 'a 12 = 12 ; b 30 = 42'
    fits = ' ' * (2000 - len(steps)) + steps
    for text, wrong, score in [(fits, None, 2 / 3), (' ' + fits, 1, 1 / 3), (' ' * 2000, 0, 0)]:
        said = f'{text} <answer> 41 </answer>'
        assert wrong_lookup(item, said) == wrong
        assert verify_lookup(item, said).score == pytest.approx(score)


def test_the_smallest_table_has_two_rows():
    made = task('lookup', rows=2, columns=1, hops=1, asks=1)
    item, shown = made.draw(random.Random(0))
    assert len(item.data[1]) == 2 and made.verify(item, shown).correct
    with pytest.raises(ValueError, match='rows is a whole number from 2 to 20'):
        task('lookup', rows=1, hops=0)
