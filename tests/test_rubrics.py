"""Rubrics by hand: points, vetoes, judges that fail, criteria found from pairs."""

import math
import pytest
from rl4llm.rewards import rubrics as module
from rl4llm.rewards.judges import JudgeError, Question
from rl4llm.rewards.rubrics import (
    Criterion,
    Fulfils,
    Pair,
    Rubric,
    candidate_wishes,
    consistent,
    contrast,
    grade,
    in_band,
    item_rubric,
    item_scores,
    not_yet_met,
    pair_accuracy,
    praise,
    praised_reward,
    prompt_text,
    rubric_reward,
    rubric_score,
)
from rl4llm.tasks import task
from rl4llm.tasks.protocol import Item
from rl4llm.tasks.wishes import Wish

TWO = Item('wishes', (2, (('mention', 'cat'), ('avoid', 'dog'))), 2.0)
BOTH = 'the cat runs . the bird runs .'
WITH_DOG = 'the cat runs . the dog runs .'
NO_CAT = 'the tree runs . the bird runs .'


def rubric_of(*points, **more):
    return Rubric(tuple(Criterion(f'line {i}', p) for i, p in enumerate(points)), **more)


@pytest.mark.parametrize(
    'points, degrees, score',
    [
        ((1, 3), (1, 0), 0.25),
        ((1, 3), (1, 1), 1.0),
        ((2, -1), (1, 1), 0.5),
        ((2, -1), (0, 1), -0.5),  # may be negative, as HealthBench's sum is
        ((2, -4), (1, 1), -1.0),
        ((-1, -2), (1, 1), 0.0),  # nothing to be won
        ((1, 1), (0.5, 0), 0.25),
    ],
)
def test_a_score_is_points_met_over_points_to_be_won(points, degrees, score):
    assert rubric_score(rubric_of(*points), degrees) == pytest.approx(score)


def test_pairs_that_are_met_together_pay_more():
    rubric = rubric_of(1, 1, together=((0, 1, 2.0),))
    assert rubric_score(rubric, (1, 0)) == pytest.approx(1 / 4)
    assert rubric_score(rubric, (1, 1)) == pytest.approx(1.0)
    turned = rubric_of(1, 1, together=((1, 0, 2.0),))
    assert rubric_score(turned, (1, 0)) == rubric_score(rubric, (1, 0))
    assert rubric_score(rubric, (0.5, 0.5)) == pytest.approx((0.5 + 0.5 + 2 * 0.25) / 4)


def test_saturation_and_stretch_keep_the_ends():
    one = rubric_of(1)
    for knobs in (dict(saturation=3.0), dict(stretch=2.0)):
        assert rubric_score(one, [0.0], **knobs) == 0
        assert rubric_score(one, [1.0], **knobs) == pytest.approx(1.0)
    expected = (1 - math.exp(-1.5)) / (1 - math.exp(-3))
    assert rubric_score(one, [0.5], saturation=3.0) == pytest.approx(expected)
    assert rubric_score(one, [0.5], stretch=2.0) == pytest.approx(0.25)
    assert rubric_score(rubric_of(2, -1), (0, 1), stretch=2.0) == pytest.approx(-0.25)


def test_a_veto_takes_what_was_won_and_leaves_what_was_lost():
    critical = Criterion('must', 1, critical=True)
    rubric = Rubric((critical, Criterion('easy', 9)))
    assert rubric_score(rubric, (0, 1)) == 0
    assert rubric_score(rubric, (0.49, 1)) == 0 and rubric_score(rubric, (0.5, 1)) > 0.9
    assert rubric_score(rubric, (0, 1), veto=False) == pytest.approx(0.9)
    bad = Rubric((critical, Criterion('easy', -1)))
    assert rubric_score(bad, (0, 1)) == -1


@pytest.mark.parametrize(
    'made, says',
    [
        (lambda: Criterion('  '), 'wanted words for a judge'),
        (lambda: Criterion('a', float('nan')), 'wanted a number'),
        (lambda: rubric_score(rubric_of(1, 1), [1]), '1 degrees were given for 2 criteria'),
        (lambda: rubric_score(rubric_of(1), [1], saturation=-1), 'saturation'),
        (lambda: rubric_score(rubric_of(1), [1], stretch=0), 'stretch'),
        (lambda: rubric_score(rubric_of(1), [2]), 'a degree is 2, wanted a number from 0 to 1'),
        (lambda: rubric_score(rubric_of(1), [-1]), 'a degree is -1'),
        (lambda: rubric_score(rubric_of(1), [math.nan]), 'a degree is nan'),
        (lambda: rubric_score(rubric_of(1, together=((0, 7, 1.0),)), [1]), 'two criteria, from 0'),
        (lambda: rubric_score(rubric_of(1, 1, together=((0, -1, 1.0),)), [1, 1]), 'together'),
        (lambda: rubric_score(rubric_of(1, 1, together=((0, 2, 1.0),)), [1, 1]), 'together'),
        (lambda: rubric_score(rubric_of(1, 1, together=((0, 0, 1.0),)), [1, 1]), 'together'),
        (lambda: rubric_score(rubric_of(1, 1, together=((0, 1, math.nan),)), [1, 1]), 'together'),
        (lambda: rubric_score(rubric_of(1, 1, together=((0, 1),)), [1, 1]), 'together'),
        (lambda: contrast([], candidate_wishes()), 'contrast: no pairs were given'),
        (lambda: contrast(PAIRS, candidate_wishes(), most=0), 'most'),
        (lambda: consistent(rubric_of(1), []), 'consistent: no pairs were given'),
        (lambda: pair_accuracy(rubric_of(1), [Pair('a', 'b')]), 'no check'),
        (lambda: rubric_reward(['x'], ['y', 'z'], item=[TWO]), 'item'),
        (lambda: rubric_reward(['x'], ['y'], item=[TWO], error=2), 'error'),
    ],
)
def test_bad_input_is_named(made, says):
    with pytest.raises(ValueError, match=says):
        made()


def test_an_unknown_kind_is_named():
    with pytest.raises(KeyError, match='principle'):
        Criterion('a', kind='principel')


def test_a_judge_is_asked_at_once_and_only_where_there_is_no_check():
    asked = []

    def judge(questions):
        asked.append(list(questions))
        return [len(question.text) / 10 for question in questions]

    checked = Criterion('short', check=lambda question: len(question.text) < 3)
    rubrics = [Rubric((Criterion('a'), checked)), Rubric((checked, Criterion('b')))]
    found = grade(rubrics, ['p', 'q'], ['12', '12345'], judge)
    assert found == [[0.2, 1.0], [0.0, 0.5]]
    assert asked == [[Question('p', '12', 'a'), Question('q', '12345', 'b')]]


@pytest.mark.parametrize('said', [[2.0], [float('nan')], ['yes'], [], [0.5, 0.5], None])
def test_nonsense_of_a_judge_is_an_error_and_no_reward(said):
    with pytest.raises(JudgeError):
        grade([rubric_of(1)], ['p'], ['t'], lambda questions: said)


def test_nonsense_of_a_check_is_an_error_and_no_reward():
    wrong = Rubric((Criterion('a', check=lambda question: 7),))
    with pytest.raises(JudgeError):
        grade([wrong], ['p'], ['t'], lambda questions: [])


def test_exact_degrees_are_those_of_the_wishes():
    assert item_scores(TWO, BOTH) == {'form': 1, 'mention cat': 1, 'avoid dog': 1}
    assert item_scores(TWO, WITH_DOG) == {'form': 1, 'mention cat': 1, 'avoid dog': 0}
    names = [criterion.text for criterion in item_rubric(TWO).criteria]
    assert names == list(item_scores(TWO, ''))


def test_the_reward_is_the_score_of_the_exact_degrees_and_none_without_an_item():
    texts = [BOTH, WITH_DOG, NO_CAT, BOTH]
    got = rubric_reward([''] * 4, texts, item=[TWO, TWO, TWO, None])
    assert got[:3] == pytest.approx([1, 2 / 3, 2 / 3]) and got[3] is None


def test_the_mistakes_of_a_judge_hang_on_text_and_criterion_and_on_no_order():
    texts = [BOTH, WITH_DOG, NO_CAT] * 4
    prompts = [''] * len(texts)
    items = [TWO] * len(texts)
    got = rubric_reward(prompts, texts, item=items, error=0.3, seed=4)
    assert got[:3] == got[3:6] == got[9:]
    back = rubric_reward(prompts, texts[::-1], item=items, error=0.3, seed=4)
    assert back == got[::-1]
    others = {
        tuple(rubric_reward(prompts[:3], texts[:3], item=items[:3], error=0.3, seed=seed))
        for seed in range(8)
    }
    assert len(others) > 1
    turned = rubric_reward(prompts[:1], texts[:1], item=items[:1], error=1.0)
    assert turned == [0.0]


ONE_ANSWER = {  # texts that say the same answer and have other degrees
    'wishes': [BOTH, BOTH.removesuffix(' .')],
    'story': [
        f'<think> {thought} </think> <answer> b with the cat </answer>'
        for thought in ('d dog ; b dog', 'd dog', 'x')
    ],
    'countdown': ['9 - 4 = 5 \n 5 * 10 = 50', '9 - 4 = 5  5 * 10 = 50'],
}
OF_TASK = {
    'wishes': TWO,
    'story': Item(
        'story',
        ('b with the cat', 'd with the dog', 'e with the tree', 'b and d', 'b and e', 'e ?'),
    ),
    'countdown': task('countdown', level='easy').sample(1, seed=3)[0],
}


@pytest.mark.parametrize('name', ONE_ANSWER)
@pytest.mark.parametrize('reward', [rubric_reward, praised_reward])
@pytest.mark.parametrize('error', [0.0, 0.4])
def test_what_a_row_earns_hangs_on_no_other_row(name, reward, error):
    texts = ONE_ANSWER[name]
    item = OF_TASK[name]
    alone = [reward([''], [text], item=[item], error=error)[0] for text in texts]
    for order in (list(range(len(texts))), list(range(len(texts)))[::-1]):
        got = reward(
            [''] * len(texts), [texts[k] for k in order], item=[item] * len(texts), error=error
        )
        assert got == [alone[k] for k in order]


def test_texts_with_one_answer_have_degrees_of_their_own():
    full, unclosed = (rubric_reward([''], [text], item=[TWO])[0] for text in ONE_ANSWER['wishes'])
    assert full == 1 > unclosed
    right, wrong = rubric_reward([''] * 2, ONE_ANSWER['countdown'], item=[OF_TASK['countdown']] * 2)
    assert right == 1 and wrong < 1


def test_a_criterion_of_which_nobody_knows_is_named():
    polite = Rubric((Criterion('polite'),))
    with pytest.raises(JudgeError, match="asks 'polite', .*mention cat.*the reward a judge"):
        rubric_reward([''], [BOTH], item=[TWO], rubric=lambda item: polite)


def test_one_flip_of_three_is_what_an_error_of_a_third_costs():
    problems = task('wishes', level='hard').sample(200, seed=3)
    maker = task('wishes', level='hard')
    texts = [maker.demonstrate(item, seed=0) for item in problems]
    got = rubric_reward([''] * 200, texts, item=problems, error=1 / 3)
    assert abs(sum(got) / 200 - 2 / 3) < 0.05


def test_self_praise_wins_against_an_additive_rubric_and_a_veto_takes_it():
    loud = 'good good good .'
    pair = dict(item=[TWO, TWO])
    honest, praised = praised_reward(['', ''], [BOTH, loud], points=4.0, **pair)
    assert praised > honest
    honest, praised = praised_reward(['', ''], [BOTH, loud], points=4.0, veto=True, **pair)
    assert praised == 0 < honest
    assert praise(Question('', 'the good cat runs .', '')) == 0.5
    assert praise(Question('', loud, '')) == 1 and praise(Question('', BOTH, '')) == 0


def test_prompts_of_a_chat_are_read_with_their_roles():
    assert prompt_text('a') == 'a'
    chat = [dict(role='system', content='be short'), dict(role='user', content='write')]
    assert prompt_text(chat) == 'system: be short\nuser: write'


PAIRS = [Pair(BOTH, NO_CAT), Pair('x runs . the cat runs .', 'x runs . y runs .')]


def test_criteria_are_found_that_tell_the_preferred_text_from_the_other():
    found = contrast(PAIRS, candidate_wishes(), most=3)
    assert 'mention cat' in {criterion.text for criterion in found.criteria}
    assert all(0 < criterion.points <= 1 for criterion in found.criteria)
    assert found.criteria[0].points == 1
    first = next(c for c in found.criteria if c.text == 'mention cat')
    assert first.kind == 'rule' and first.check == Fulfils(Wish('mention', 'cat'))
    assert pair_accuracy(found, PAIRS) == [1, 1]


def test_a_pair_the_wrong_way_round_is_dropped_and_too_many_of_them_drop_the_rubric():
    cat = Rubric((Criterion('mention cat', check=Fulfils(Wish('mention', 'cat'))),))
    swapped = Pair(NO_CAT, BOTH)
    even = Pair(NO_CAT, 'x runs .')
    assert pair_accuracy(cat, [swapped, even]) == [0, 0.5]
    assert consistent(cat, [*PAIRS, swapped]) == PAIRS
    assert consistent(cat, [PAIRS[0], swapped]) == PAIRS[:1]
    assert consistent(cat, [PAIRS[0], swapped, swapped]) is None
    assert consistent(cat, [PAIRS[0], swapped, swapped], tau=0.3) == PAIRS[:1]


def test_nothing_fulfils_nothing():
    assert Fulfils(Wish('avoid', 'dog')).of([]) is False
    assert Fulfils(Wish('avoid', 'dog'))(Question('', BOTH, '')) is True


def test_problems_and_criteria_leave_that_teach_nothing():
    assert in_band([0.0, 0.2, 0.5, 0.8, 1.0], 0.2, 0.8) == [1, 2, 3]
    assert not_yet_met([[1, 0, 1], [1, 1, 0]], 0.5) == [1, 2]
    assert not_yet_met([[1, 0, 1], [1, 1, 0]], 0.4) == []


# -- what is taken if nothing is said, and ends of ranges


def test_a_reward_is_not_bent_if_nothing_is_said():
    half = Rubric((Criterion('half', check=lambda question: 0.5),))
    assert rubric_reward([''], [BOTH], item=[TWO], rubric=lambda item: half) == [0.5]
    assert rubric_score(rubric_of(1), [0.5], stretch=0.01) == pytest.approx(0.5**0.01)


@pytest.mark.parametrize(
    'sentences, goods, allowed',
    [(1, 0, True), (1, 1, True), (1, 2, False), (4, 2, True), (4, 3, False), (6, 3, True)],
)
def test_good_may_be_said_once_or_in_every_second_sentence(sentences, goods, allowed):
    text = ' '.join(['good .'] * goods + ['x runs .'] * (sentences - goods))
    if goods > sentences:
        text = 'good good .'
    assert module._no_praise(Question('', text, '')) == allowed


def test_numbers_of_words_that_are_searched():
    ranges = [wish[1:3] for wish in candidate_wishes() if wish.kind == 'words']
    assert ranges == [(low, low + 3) for low in range(3, 20)]


def test_five_criteria_are_kept_and_none_that_tells_nothing_apart():
    assert len(contrast(PAIRS, candidate_wishes()).criteria) == 5
    assert len(contrast(PAIRS, candidate_wishes(), most=1).criteria) == 1
    assert contrast(PAIRS, [Wish('avoid', 'house')]).criteria == ()


def test_what_one_preferred_text_meets_is_no_rule():
    pairs = [PAIRS[0], Pair('x runs .', 'y runs .')]
    (found,) = contrast(pairs, [Wish('mention', 'cat')]).criteria
    assert (found.kind, found.points) == ('principle', 0.5)
