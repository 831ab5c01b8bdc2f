"Short documents: exact probabilities of the next segment, and stories, each counted by hand."

import random
from contextlib import nullcontext
import pytest
from rl4llm.tasks import Corpus, Item, document, next_segment_probabilities
from rl4llm.tasks import small_corpus as S
from rl4llm.tasks.small_corpus import phrasings, prompt_story, segment_in_words, story_answer
from rl4llm.tasks.small_corpus import story_key, verify_story

TOLD = ('b with 3', 'c with 9')
CALM = Corpus(facts=2, changes=1, rounds=1, asides=0)


def story(text):
    return Item('story', tuple(text.split(' ; ')))


# documents


def test_the_plan_if_nothing_is_said():
    assert Corpus() == Corpus(facts=3, changes=3, rounds=2, asides=20)


@pytest.mark.parametrize(
    'dial,fits',
    [
        (dict(facts=2), True),
        (dict(facts=1), False),
        (dict(facts=5), True),
        (dict(facts=6), False),
        (dict(rounds=8, changes=0), True),
        (dict(rounds=9, changes=0), False),
        (dict(rounds=0), False),
        (dict(rounds=1, changes=16), True),
        (dict(rounds=1, changes=17), False),
        (dict(rounds=3, changes=6), False),
        (dict(asides=0), True),
        (dict(asides=100), True),
        (dict(asides=101), False),
    ],
)
def test_plans_that_can_be_kept(dial, fits):
    with nullcontext() if fits else pytest.raises(ValueError):
        Corpus(**dial)


def test_the_first_segment():
    "Three worlds; 22 letters with 5 things, with the numbers 0 to 9, on two sides of 21 others."
    first = next_segment_probabilities(())
    assert first['b with the cat'] == pytest.approx(1 / 3 / 110)
    assert first['b with 0'] == first['b with 9'] == pytest.approx(1 / 3 / 220)
    assert first['b left of c'] == pytest.approx(1 / 3 / 924)
    assert len(first) == 110 + 220 + 924


def test_what_happens_to_two_numbers():
    "b, who has 3, finds 1 to 5, loses 1 to 3, gives 1 to 3; c, who has 9, each of them 1 to 5."
    calm = next_segment_probabilities(TOLD, CALM)
    assert set(calm) == {
        *(f'{who} + {n}' for who in 'bc' for n in range(1, 6)),
        *(f'b {verb} {n}' for verb in ('-', 'to c') for n in range(1, 4)),
        *(f'c {verb} {n}' for verb in ('-', 'to b') for n in range(1, 6)),
    }
    assert set(calm.values()) == {1 / 26}
    busy = next_segment_probabilities(TOLD, Corpus(2, 1, 1, 20))
    assert busy['b + 5'] == pytest.approx(0.8 / 26) and len(busy) == 26 + 40
    assert busy['the cat is red'] == pytest.approx(0.2 / 40)


def test_what_cannot_happen_is_refused():
    only_asides = Corpus(2, 1, 1, 100)
    for segment, plan in (('b + 1', only_asides), ('the cat is red', CALM), ('b - 4', CALM)):
        with pytest.raises(ValueError, match='at place 2'):
            next_segment_probabilities((*TOLD, segment), plan)
        with pytest.raises(ValueError, match='at place 2'):
            document(random.Random(0), plan, (*TOLD, segment))


def test_a_document_goes_on_from_its_beginning():
    start = (*TOLD, 'c to b 2', 'b ?')
    made = document(random.Random(0), CALM, start)
    assert made.segments == (*start, 'b with 5')
    assert made.thoughts == ('', '', '', '', 'b 3 ; b 5')
    assert made.because == ((), (), (), (), (0, 2, 3))


# stories


def test_a_story_may_be_its_facts_alone():
    item = S.Story(facts=2, changes=0, distance=1).draw(random.Random(0))[0]
    assert len(item.data) == 3


@pytest.mark.parametrize(
    'text,key',
    [
        ('b with 3 ; c with 9 ; b + 2 ; b - 1 ; b ?', 'story|count|b 3|-1 2'),
        ('c with 9 ; b with 3 ; b - 1 ; b + 2 ; b ?', 'story|count|b 3|-1 2'),
        ('b with the cat ; c with the dog ; b and c ; c ?', 'story|hold|cat|b c'),
        ('b left of c ; the cat is sad ; b ? c', 'story|row|b c'),
        ('b left of c ; c left of d ; d ? b', 'story|row|b c d'),
    ],
)
def test_keys_by_hand(text, key):
    assert story_key(story(text)) == key


@pytest.mark.parametrize(
    'text,words',
    [
        ('b left of c ; the cat is sad ; b ? c', 'On which side of c does b stand?'),
        ('b with 3 ; the cat is sad ; b ?', 'How many stones does b have now?'),
        ('b with the cat ; the cat is sad ; b ?', 'What does b have now?'),
    ],
)
def test_the_question_in_words(text, words):
    assert words in prompt_story(story(text), 'text')


@pytest.mark.parametrize(
    'segment,words',
    [
        ('b with the cat', 'b has the cat.'),
        ('b with 1', 'b has 1 stone.'),
        ('b + 2', 'b finds 2 stones.'),
        ('b - 1', 'b loses 1 stone.'),
        ('b to c 2', 'b gives c 2 stones.'),
        ('b and c', 'b and c swap what they have.'),
        ('b left of c', 'b stands left of c.'),
        ('the cat is sad', 'The cat is sad.'),
    ],
)
def test_segments_in_words(segment, words):
    assert segment_in_words(segment) == words


def test_one_stone_is_said_of_one_alone():
    assert 'b has 1 stone' in phrasings('b with 1')
    assert 'b has 2 stone' not in phrasings('b with 2') and 'b has 2 stones' in phrasings(
        'b with 2'
    )


@pytest.mark.parametrize(
    'thought,answer,verdict',
    [
        ('b 3 ; b 5', 'b with 5', (True, 1, None, 'b with 5')),
        ('', 'b has 5 stones', (True, 1, None, 'b with 5')),
        ('b 3 ; b 5', 'b with 4', (False, 2 / 3, 2, 'b with 4')),
        ('b 3 ; b 4', 'b with 4', (False, 1 / 3, 1, 'b with 4')),
        ('b 3 ; b 5', '', (False, 2 / 3, 2, None)),
    ],
)
def test_verdicts_by_hand(thought, answer, verdict):
    item = story('b with 3 ; c with 9 ; b + 2 ; b ?')
    said = verify_story(item, f'<think> {thought} </think> <answer> {answer} </answer>')
    assert (said.correct, pytest.approx(said.score), said.first_error, said.answer) == verdict


def test_of_a_long_thought_its_beginning_is_read():
    "Its first 2000 characters; the first step has three."
    item = story('b with 3 ; c with 9 ; b + 2 ; b ?')
    for blanks, right in ((1000, 2), (1997, 1), (1998, 0)):
        text = f"<think>{' ' * blanks}b 3 ; b 5</think> <answer> b with 4 </answer>"
        assert S.right_steps(item, text) == right


def test_a_question_may_be_answered_from_two_segments_more_than_asked_for():
    lengths = set()
    for seed in range(60):
        item = S._random_story(S.Story(distance=1), random.Random(seed))
        lengths.add(len(story_answer(item).steps))
    assert lengths == {1, 2, 3}
