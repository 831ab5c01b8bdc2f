"Wishes: what is said of the form, what is read off a text, and which wishes add nothing."

from types import SimpleNamespace
import pytest
from rl4llm.tasks import Item, Wish, task, wishes as W
from rl4llm.tasks.wishes import all_sentences, implied_wishes, sentences_text, verify_wishes


@pytest.mark.parametrize(
    'text,score,first,reason',
    [
        ('', 0, 0, 'no sentence can be read'),
        ('b runs. the the.', 0.5, 0, 'sentence 2 is none of the grammar'),
        ('the the. b runs. c', 1 / 3, 0, 'sentence 1 is none of the grammar'),
        ('b runs.', 0.5, 0, '1 sentences, wanted 2'),
        ('b runs. c runs. d runs.', 2 / 3, 0, '3 sentences, wanted 2'),
        ('b runs. the cat runs.', 0.5, 2, 'not fulfilled: mention dog'),
        ('b runs. the dog runs.', 1, None, 'correct'),
    ],
)
def test_verdicts_by_hand(text, score, first, reason):
    wishes = (('avoid', 'cat'), ('mention', 'dog'))
    if first == 0:
        wishes = (('avoid', 'cat'),)
    if first == 2:
        wishes = (('avoid', 'dog'), ('mention', 'dog'))
    said = verify_wishes(Item('wishes', (2, wishes)), text and f'<answer> {text} </answer>')
    assert (said.score, said.first_error, said.reason) == (pytest.approx(score), first, reason)


# sentences have from 2 to 6 words; `least` and `most` stand for the dice


def least(low, high):
    return low


def most(low, high):
    return high


@pytest.mark.parametrize(
    'size,slack,dice,limits',
    [
        (4, 1, least, (4, 5)),
        (4, 1, most, (3, 4)),
        (6, 3, least, (6, 6)),
        (2, 3, most, (2, 5)),
        # where every length would be kept, one is left out that the text does not have
        (6, 4, most, (3, 6)),
        (5, 4, most, (2, 5)),
        (2, 9, least, (2, 5)),
    ],
)
def test_a_limit_of_length_is_kept_by_its_text_and_not_by_all(size, slack, dice, limits):
    wish = W._window([('b',) * size], slack, SimpleNamespace(randint=dice))
    assert wish == Wish('words', *limits)


@pytest.mark.parametrize(
    'kind,free,wish',
    [
        ('before', ['runs', 'b'], ('b', 'runs')),  # just two are there, in the order of the text
        ('before', ['b'], None),
        ('mention', ['b'], ('b',)),
        ('mention', ['c'], None),
        ('avoid', ['b', 'c'], ('c',)),
        ('avoid', ['b'], None),
    ],
)
def test_the_last_free_word_is_used(kind, free, wish):
    rng = SimpleNamespace(sample=lambda some, k: list(some)[:k])
    found = W._read_off(kind, [('b', 'runs')], free, 0, rng)
    assert found == (wish and Wish(kind, *wish))


def test_what_needs_two_sentences_is_not_asked_of_one():
    dial = SimpleNamespace(kinds=7, wishes=99)
    rng = SimpleNamespace(sample=lambda some, k: sorted(some[:k]))
    twice = ['avoid'] * 3 + ['before'] * 2 + ['mention'] * 3 + ['mood']
    assert W._random_kinds(dial, 1, rng) == [*twice, 'words']
    assert W._random_kinds(dial, 2, rng) == [*twice, 'rhyme', 'turn', 'words']
    dial.wishes = 2
    assert W._random_kinds(dial, 1, rng) == ['avoid', 'avoid']


def test_no_word_is_asked_about_twice():
    for item in task('wishes', 'hard').sample(4, seed=0):
        words = [w for kind, *rest in item.data[1] for w in rest if kind not in ('words', 'mood')]
        words = [w for w in words if w]
        assert len(set(words)) == len(words) > 1


@pytest.mark.parametrize(
    'count,wishes,implied',
    [
        (2, [('mention', 'cat'), ('before', 'cat', 'dog'), ('avoid', 'big')], [0]),
        (2, [('avoid', 'big'), ('mention', 'cat'), ('mention', 'cat')], [1, 2]),
        (2, [('avoid', 'big'), ('words', 4, 12)], [1]),
        (1, [('words', 2, 6)], [0]),  # every sentence has from 2 to 6 words
        (1, [('words', 3, 6)], []),
        # a happy sentence has no room for a sad word, of two the other has
        (1, [('mood', 'happy'), ('avoid', 'sad')], [1]),
        (2, [('mood', 'happy'), ('avoid', 'sad')], []),
    ],
)
def test_wishes_that_add_nothing(count, wishes, implied):
    item = Item('wishes', (count, wishes))
    found = implied_wishes(item)
    assert found == [Wish(*wishes[i]) for i in implied]
    for i, _ in enumerate(wishes):
        others = Item('wishes', (count, wishes[:i] + wishes[i + 1 :]))
        assert not others.data[1] or (others.key == item.key) == (i in implied)


def test_the_key_is_the_fingerprint_of_the_listed_solutions():
    item = Item('wishes', (1, (('mention', 'cat'), ('mood', 'sad'), ('avoid', 'is'))))
    texts = [sentences_text([words]) for words in all_sentences()]
    right = [i for i, text in enumerate(texts) if verify_wishes(item, text).correct]
    numbers = [sum(int(n) for n in row[right]) % (2**31 - 1) for row in W._random_numbers(0)]
    assert 0 < len(right) < len(texts) and item.key == 'wishes|1|%08x%08x' % tuple(numbers)


def test_the_place_of_a_sentence_counts():
    "What is asked of the first sentence is not what is asked of the second."
    pair = Item('wishes', (2, (('before', 'b', 'c'), ('words', 4, 4))))  # b runs . c runs .
    i, j = (all_sentences().index((letter, 'runs')) for letter in 'bc')
    first, second = W._random_numbers(0), W._random_numbers(1)
    numbers = [int(a[i]) * int(b[j]) % (2**31 - 1) for a, b in zip(first, second)]
    assert pair.key == 'wishes|2|%08x%08x' % tuple(numbers)
    assert pair.key != Item('wishes', (2, (('before', 'c', 'b'), ('words', 4, 4)))).key


def test_long_texts_have_keys_and_too_many_wishes_none():
    long = Item('wishes', (8, (('mention', 'cat'), ('avoid', 'dog'))))
    turned = Item('wishes', (8, (('avoid', 'dog'), ('mention', 'cat'), ('words', 16, 48))))
    assert long.key == turned.key != Item('wishes', (8, (('mention', 'cat'),))).key
    many = tuple(('before', letter, 'cat') for letter in 'bcdefghjklmnpqrstuvwxyz') * 2
    with pytest.raises(ValueError, match='46 such wishes are too many'):
        task('wishes').key(Item('wishes', (3, many)))
