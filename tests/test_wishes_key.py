"One key for one problem: wishes that follow from others, told or not, leave it as it is."

import itertools, random
import numpy as np
import pytest
from rl4llm.tasks import Item, Wish, split_of, task, wishes as W
from rl4llm.tasks.wishes import all_sentences, implied_wishes, plain_wishes, wish_solutions

WORDS = ('cat', 'b', 'sees', 'not')


def telling(wishes, count=2):
    return Item('wishes', (count, tuple(map(tuple, wishes))))


def universe():
    "All wishes about a few words, and some limits of length."
    told = [Wish(kind, word) for kind in ('avoid', 'mention') for word in WORDS]
    told += [Wish('before', *pair) for pair in itertools.permutations(WORDS, 2)]
    told += [Wish('words', 4, 6), Wish('words', 5, 8), Wish('words', 8, 12)]
    return [*told, Wish('rhyme'), Wish('turn'), Wish('mood', 'happy'), Wish('mood', 'sad')]


def solutions_by_wish(told):
    "For each wish which texts of two sentences fulfil it, one text for each two kinds of sentence."
    marks = [tuple(W._RULES[wish.kind].mark(wish, words) for wish in told) for words in all_sentences()]
    one = dict(zip(marks, all_sentences())).values()
    texts = list(itertools.product(one, repeat=2))
    numbers = {words: i for i, words in enumerate(all_sentences())}
    rows = np.array([[numbers[words] for words in text] for text in texts])
    held = dict(zip(told, W._fulfilled(told, rows)))
    some = random.Random(0).sample(range(len(texts)), 200)
    for wish, i in itertools.product(told, some):
        assert held[wish][i] == W.is_fulfilled(wish, texts[i])
    return held


def test_two_problems_have_one_key_exactly_if_they_have_the_same_solutions():
    told = universe()
    held = solutions_by_wish(told)
    problems = [*itertools.combinations(told, 1), *itertools.combinations(told, 2)]
    three = list(itertools.combinations(told, 3))
    problems += random.Random(1).sample(three, 150)
    pairs = set()
    for wishes in problems:
        meaning = np.packbits(np.all([held[wish] for wish in wishes], 0)).tobytes()
        pairs.add((meaning, telling(wishes).key))
    meanings = {meaning for meaning, _ in pairs}
    assert len({key for _, key in pairs}) == len(meanings) == len(pairs) < len(problems)


@pytest.mark.parametrize('level', ['standard', 'hard'])
def test_no_way_of_telling_a_problem_brings_it_into_another_split(level):
    rng = random.Random(11)
    for _ in range(12):
        item, _ = task('wishes', level).draw(rng)
        count, wishes = item.data
        ways = [[wish for wish in wishes if wish != idle] for idle in implied_wishes(item)]
        ways += [rng.sample(wishes, len(wishes)), [*wishes, wishes[0]]]
        for wish in wishes:
            if wish[0] == 'before':
                ways.append([*wishes, ('mention', wish[2])])
        if count > 1:
            ways.append([*wishes, ('words', 0, 99)])
            ways.append([*plain_wishes(item), *rng.sample(wishes, 1)])
        for way in ways:
            other = telling(way, count)
            assert other.key == item.key and split_of(other.key) == split_of(item.key), (item, way)


def test_of_what_follows_nothing_is_kept_and_the_solutions_stay():
    rng = random.Random(5)
    for _ in range(15):
        item, _ = task('wishes', 'hard').draw(rng)
        left = telling(plain_wishes(item), item.data[0])
        assert wish_solutions(left).count == wish_solutions(item).count
        assert implied_wishes(left) == [] and plain_wishes(left) == plain_wishes(item)


@pytest.mark.parametrize(
    'wishes,left',
    [
        ([('rhyme',), ('avoid', 'up')], [('rhyme',)]),
        ([('before', 'cat', 'dog'), ('mention', 'dog')], [('before', 'cat', 'dog')]),
        ([('words', 4, 7), ('words', 5, 99)], [('words', 5, 7)]),
        ([('mention', 'b'), ('words', 1, 99)], [('mention', 'b')]),
        ([('mention', 'happy'), ('words', 4, 5)], [('mention', 'happy'), ('words', 5, 5)]),
        ([('turn',), ('avoid', 'is'), ('avoid', 'was')], [('mention', 'runs'), ('mention', 'sees')]),
    ],
)
def test_what_is_left_by_hand(wishes, left):
    assert plain_wishes(telling(wishes)) == sorted(Wish(*wish) for wish in left)


def test_what_has_no_text_is_one_problem_and_what_cannot_be_counted_is_told_apart_by_its_words():
    none = [(('avoid', 'b'), ('mention', 'b')), (('words', 0, 3),), (('mention', 'the cat'),)]
    assert {telling(wishes).key for wishes in none} == {'wishes|2|none'}
    with pytest.raises(ValueError, match='no text fulfils'):
        plain_wishes(telling(none[0]))
    long = [('mention', 'b'), ('avoid', 'c')]
    assert telling(long, 6).key == telling(long[::-1], 6).key == 'wishes|6|avoid c|mention b'
    with pytest.raises(ValueError, match='too many'):
        plain_wishes(telling(long, 6))
