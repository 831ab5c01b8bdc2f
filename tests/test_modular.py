"Modular chains of any length and modulus: drawn, asked, demonstrated, judged and refused."

import random
import pytest
from fuzz import modular_rule
from rl4llm.core.policy import Policy
from rl4llm.tasks import Item, chain_values, task, task_of, verify_modular

KINDS = [(1, 2), (7, 2), (1, 3), (50, 99), (51, 100), (200, 7), (3, 999_999), (200, 999_999)]


def by_hand(item):
    "The values of a chain, each taken from the whole sum so far."
    modulus, value, updates = item.data
    found = []
    for op, y in updates:
        value = {'+': value + y, '-': value - y, '*': value * y}[op]
        found.append(value - value // modulus * modulus)
    return found


@pytest.mark.parametrize('length,modulus', KINDS)
def test_a_chain_of_any_kind_is_asked_shown_and_judged(length, modulus):
    made = task('modular', length=length, modulus=modulus)
    for seed in range(3):
        item, shown = made.draw(random.Random(seed))
        values = by_hand(item)
        assert chain_values(item) == values and len(values) == length
        assert made.verify(item, shown).correct and modular_rule(item, shown).required
        assert made.demonstrate(item, seed=seed) == shown and made.chance(item) == 1 / modulus
        wrong = f'<answer> {(values[-1] + 1) % modulus} </answer>'
        assert not made.verify(item, wrong).correct
        numbers = [modulus, item.data[1], *(y for _, y in item.data[2])]
        asked = [int(word) for word in item.prompt('compact').split() if word.isdecimal()]
        assert asked == numbers
        told = item.prompt('text').replace(';', ' ').replace('.', ' ').replace(':', ' ').split()
        assert [int(word) for word in told if word.isdecimal()][-length:] == numbers[2:]


@pytest.mark.parametrize('length,modulus', KINDS)
def test_every_right_value_counts_and_the_first_wrong_one_is_named(length, modulus):
    item, _ = task('modular', length=length, modulus=modulus).draw(random.Random(5))
    values = chain_values(item)
    for kept in {0, length // 2, length - 1}:
        slip = [*values[:kept], (values[kept] + 1) % modulus, *values[kept + 1 :]]
        wrong = (values[-1] + 1) % modulus
        said = verify_modular(item, f"{' ; '.join(map(str, slip))} <answer> {wrong} </answer>")
        assert (said.first_error, said.score) == (kept, kept / (length + 1))
    whole = '\n'.join(map(str, values))
    said = verify_modular(item, f'{whole}\n<answer> {wrong} </answer>')
    assert (said.first_error, said.score) == (length, length / (length + 1))


def test_modulo_two_no_update_is_idle():
    item, _ = task('modular', length=100, modulus=2).draw(random.Random(0))
    assert set(item.data[2]) == {('+', 1), ('-', 1)}
    assert chain_values(Item('modular', (2, 1, (('+', 1), ('-', 1), ('+', 1))))) == [0, 1, 0]


def test_mixed_chains_reach_what_the_dial_holds_and_no_further():
    drawn = [
        task('modular', length=3, modulus=4, mixed=True).draw(random.Random(s))[0]
        for s in range(99)
    ]
    assert {len(item.data[2]) for item in drawn} == {1, 2, 3}
    assert {item.data[0] for item in drawn} == {3, 4}
    only = task('modular', length=1, modulus=2, mixed=True).draw(random.Random(0))[0]
    assert only.data[0] == 2 and len(only.data[2]) == 1


@pytest.mark.parametrize('split', ['train', 'valid', 'test'])
def test_chains_of_another_kind_are_split_too(split):
    items = task('modular', length=60, modulus=1000).sample(5, seed=1, split=split)
    assert len({item.key for item in items}) == 5
    assert all(task_of(item).verify(item, item_shown(item)).correct for item in items)


def item_shown(item):
    return task_of(item).demonstrate(item, seed=0)


@pytest.mark.parametrize(
    'dial,told',
    [
        (dict(length=0), 'length is a whole number from 1 to 200, not 0'),
        (dict(length=201), 'length is a whole number from 1 to 200, not 201'),
        (dict(modulus=1), 'modulus is a whole number from 2 to 999999, not 1'),
        (dict(modulus=10**6), 'modulus is a whole number from 2 to 999999, not 1000000'),
        (dict(modulus=7.0), 'modulus is a whole number'),
    ],
)
def test_what_makes_no_chain_is_refused(dial, told):
    with pytest.raises(ValueError, match=told):
        task('modular', **dial)


def test_a_model_says_what_it_cannot_take():
    policy = Policy.load('tiny-mix-v1')
    large = task('modular', length=2, modulus=1000).sample(1, seed=0)
    with pytest.raises(ValueError, match='does not know'):
        policy.sample(large, 1, seed=0)
    long = task('modular', length=101, modulus=9).sample(1, seed=0)
    with pytest.raises(ValueError, match='holds 512'):
        policy.sample(long, 1, seed=0, max_new_tokens=2 * 101 + 3)
    longest = task('modular', length=100, modulus=9).sample(1, seed=0)
    ids, _ = policy.encode_prompts(longest, 2 * 100 + 3)
    assert ids.shape[1] == 307  # one stands before the question
