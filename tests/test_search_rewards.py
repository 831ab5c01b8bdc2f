"RLSP's reward: a verdict, a fine for short reasoning, and a grade for how it was searched."

import math
import pytest
from rl4llm.core.registry import recipe
from rl4llm.rewards.judges import JudgeError, programmed_judge, with_fallback
from rl4llm.rewards.search_rewards import (
    EFFORT,
    SIGNS,
    dealt_effort,
    effort_judge,
    longer,
    reasoning_of,
    rlsp_reward,
    search_effort,
    signs_of_search,
)
from rl4llm.rewards.verifier import correct
from rl4llm.tasks import task

ITEM = task('countdown', level='easy').sample(1, seed=3)[0]  # 9, 4, 5, 10 -> 50 in two steps
RIGHT = '9 - 4 = 5 ; 5 * 10 = 50'
WRONG = '9 - 4 = 5 ; 5 + 10 = 15'


def rows(*texts):
    return dict(prompts=['?'] * len(texts), completions=list(texts), item=[ITEM] * len(texts))


def response(answer, words=40, first=''):
    before = [first, *['x'] * (words - bool(first))]
    return ' '.join([*before, '<answer>', answer, '</answer>']).strip()


@pytest.mark.parametrize(
    ('text', 'before'),
    [
        ('a b <answer> c', 'a b '),
        ('a \\boxed{b} <answer> c', 'a '),
        ('a <answer> b \\boxed{c}', 'a '),
        ('a b', 'a b'),
        ('', ''),
        ('I put it in \\boxed{}. a b \\boxed{c}', 'I put it in \\boxed{}. a b '),
        ('\\boxed{a} b \\boxed{c} <answer> d', '\\boxed{a} b '),
        ('<answer> a </answer> b <answer> c', ''),
    ],
)
def test_reasoning_ends_where_the_answer_begins(text, before):
    assert reasoning_of(text) == before


def test_other_marks_of_an_answer():
    assert reasoning_of('a #### b', ('####',)) == 'a '


@pytest.mark.parametrize('words', [1, 7, 40, 400])
@pytest.mark.parametrize('lam', [0.0, 5.0, 20.0, 1000.0])
def test_the_fine_is_one_over_the_length(words, lam):
    text = response(RIGHT, words)
    assert longer(['?'], [text], lam=lam) == pytest.approx([-lam / words])
    assert longer(['?'], [text], lam=lam, most=0.5) == pytest.approx([-min(0.5, lam / words)])


def test_a_longer_reasoning_is_paid_more_and_a_longer_answer_is_not():
    short, long = longer(['?'] * 2, [response(WRONG, 20), response(WRONG, 60)])
    assert short < long < 0
    same = longer(['?'] * 2, [response('1', 20), response('1 1 1 1 1', 20)])
    assert same[0] == same[1]


def test_an_answer_at_once_is_fined_as_one_token_is():
    assert longer(['?'] * 3, [f'<answer> {RIGHT}', '', 'x']) == [-20.0, -20.0, -20.0]
    assert longer(['?'], ['<answer> 3'], most=1) == [-1.0]


def test_tokens_before_the_answer_are_a_share_of_all():
    text = 'x x x <answer>'  # three words of four
    assert longer(['?'], [text], completion_ids=[[0] * 80]) == [pytest.approx(-20 / 60)]
    assert longer(['?'], ['x'], completion_ids=[[0] * 10]) == [-2.0]
    with pytest.raises(ValueError, match='lists of completion_ids'):
        longer(['?'], [text], completion_ids=[])


def test_a_box_that_is_only_spoken_of_does_not_end_the_reasoning():
    text = 'It goes into \\boxed{}. ' + 'x ' * 96 + '\\boxed{3}'
    assert longer(['?'], [text]) == [-20 / 100]


@pytest.mark.parametrize(
    'bad',
    [
        dict(lam=-1.0),
        dict(lam=math.nan),
        dict(most=-1),
        dict(most=math.nan),
        dict(most=None),
        dict(most='1'),
    ],
)
def test_bad_numbers_of_the_fine(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        longer(['?'], ['x'], **bad)


def test_signs_are_counted_in_the_reasoning_alone_and_in_any_case():
    text = 'Wait, WAIT. Let me check. \\boxed{wait}'
    assert signs_of_search(text) == [2, 1, 0, 0] and len(SIGNS) == 4


@pytest.mark.parametrize(
    ('text', 'counts'),
    [
        ('The waiter awaits. Waiting, he waits.', [0, 0]),
        ('wait! (Wait) "wait" wait', [4, 0]),
        ('a<verify>b <verify> </verify>', [0, 2]),
        ('', [0, 0]),
    ],
)
def test_signs_are_whole_words_and_tags_stand_anywhere(text, counts):
    assert signs_of_search(text, ('wait', '<verify>')) == counts


def test_a_sign_is_no_pattern():
    assert signs_of_search('a.b axb (a.b) a.bc', ('a.b', '(a', '+')) == [2, 1, 0]


@pytest.mark.parametrize(('count', 'degree'), [(0, 0.0), (1, 0.25), (2, 0.5), (3, 0.5)])
def test_a_kind_counts_up_to_what_is_enough(count, degree):
    text = 'a ' * count + 'b'
    kinds = ('a', 'no')
    assert search_effort(['?'], [text], signs=kinds, enough=2) == [degree]


def test_the_judge_is_asked_once_about_effort():
    seen = []

    def judge(questions):
        seen.extend(questions)
        return [0.25] * len(questions)

    assert search_effort(['p'] * 3, ['a', 'a', 'b'], judge=judge) == [0.25] * 3
    assert [tuple(q) for q in seen] == [('p', 'a', EFFORT), ('p', 'b', EFFORT)]


def test_no_answer_goes_without_a_grade():
    for given in ((['p'], ['a', 'b']), (['p', 'q'], ['a'])):
        told = f'{len(given[0])} prompts and {len(given[1])} completions'
        with pytest.raises(ValueError, match=f'search_effort: {told} were given, wanted one'):
            search_effort(*given)


def test_a_chat_is_read():
    chat = [{'role': 'user', 'content': 'p'}]
    said = [{'role': 'assistant', 'content': 'wait'}]
    assert search_effort([chat], [said], signs=('wait',)) == [1.0]


def test_a_judge_who_says_nothing_is_an_error_or_what_was_declared():
    def broken(questions):
        raise OSError('no route')

    with pytest.raises(JudgeError, match='no route'):
        rlsp_reward(**rows(response(RIGHT)), judge=broken)
    with pytest.warns(UserWarning, match='0.5 counts instead'):
        paid = rlsp_reward(**rows(response(RIGHT)), judge=with_fallback(broken, 0.5))
    assert paid == pytest.approx([0.8 * (1 - 0.5) + 0.2 * 0.5])


@pytest.mark.parametrize(
    'bad',
    [
        dict(signs=()),
        dict(signs='wait'),
        dict(signs=('',)),
        dict(signs=(3,)),
        dict(signs=('wait', '')),
        dict(enough=0),
        dict(enough='2'),
        dict(enough=None),
        dict(enough=math.nan),
    ],
)
def test_bad_signs(bad):
    with pytest.raises(ValueError, match='effort_judge has signs'):
        effort_judge(**bad)
    with pytest.raises(ValueError, match='effort_judge has signs'):
        search_effort(['?'], ['x'], **bad)


@pytest.mark.parametrize('weight', [0.0, 0.2, 1.0])
@pytest.mark.parametrize('lam', [0.0, 20.0])
@pytest.mark.parametrize('grade', [0.0, 0.75])
def test_the_formula(weight, lam, grade):
    judge = programmed_judge(lambda question: grade)
    texts = (response(RIGHT), response(WRONG), 'x ' * 40)
    base = [1 - lam / 40, -lam / 40, -0.5 - lam / 40]
    paid = rlsp_reward(**rows(*texts), weight=weight, lam=lam, judge=judge)
    assert paid == pytest.approx([(1 - weight) * b + weight * grade for b in base])


def test_its_weights():
    texts = rows(response(RIGHT), response(WRONG), 'x ' * 40)
    alone = dict(lam=0, weight=0)
    assert rlsp_reward(**texts, **alone, unanswered=0) == correct(**texts)
    assert rlsp_reward(**texts, **alone, verdict=0) == [0, 0, -0.5]
    assert rlsp_reward(**texts, **alone, verdict=2, unanswered=1) == [2, 0, -1]
    capped = rlsp_reward(**rows(f'<answer> {RIGHT} </answer>'), weight=0, most=0.25)
    assert capped == [0.75]


@pytest.mark.parametrize('bad', [dict(weight=1.5), dict(weight=-1), dict(lam=-1), dict(verdict=-1),
                                 dict(unanswered=-1), dict(most=-1), dict(signs=())])  # fmt: skip
def test_bad_knobs_of_the_whole(bad):
    with pytest.raises(ValueError):
        rlsp_reward(**rows(response(RIGHT)), **bad)


def test_no_item_is_no_reward_and_no_list_is_an_error():
    assert rlsp_reward(['?'], ['x'], item=[None]) == [None]
    with pytest.raises(ValueError, match='item'):
        rlsp_reward(['?'], ['x'])


def test_dealt_grades_are_the_same_grades_within_a_prompt():
    texts = [f'{"wait " * (n % 3 > 0)}{n}' for n in range(12)]
    prompts = ['p'] * 6 + ['q'] * 6
    own = search_effort(prompts, texts, signs=('wait',))
    dealt = [dealt_effort(prompts, texts, signs=('wait',), seed=seed) for seed in range(6)]
    for found in dealt:
        assert sorted(found[:6]) == sorted(own[:6]) and sorted(found[6:]) == sorted(own[6:])
    assert any(found != own for found in dealt) and len(set(map(tuple, dealt))) > 1
    assert dealt[0] == dealt_effort(prompts, texts, signs=('wait',))


def test_without_a_weight_no_judge_is_asked():
    def never(questions):
        raise AssertionError('asked')

    assert rlsp_reward(**rows(response(RIGHT)), weight=0, judge=never) == [pytest.approx(0.5)]
    with pytest.raises(JudgeError):
        rlsp_reward(**rows(response(RIGHT)), judge=never)


def test_each_part_is_logged_by_its_name():
    seen = {}
    extra = {}
    rlsp_reward(
        **rows(response(RIGHT), response(WRONG)),
        log_metric=lambda name, value: seen.update({name: value}),
        log_extra=lambda name, column: extra.update({name: column}),
    )
    names = ' '.join([*seen, *extra])
    assert all(part in names for part in ('correct', 'unreadable', 'longer', 'search_effort'))


def test_what_the_recipes_change():
    names = ('rlsp', 'rlsp_no_grade', 'rlsp_dealt', 'rlsp_unverified')
    paid = {name: recipe(name).reward for name in names}
    text = response(RIGHT, first='<wait> <backtrack> <wait> <backtrack>')
    one = rows(text, response(WRONG))
    from rl4llm.core.reward_calls import call_reward

    found = {name: call_reward(reward, **one) for name, reward in paid.items()}
    plain = [1 - 5 / 43, -5 / 40]
    assert found['rlsp_no_grade'] == pytest.approx(plain)
    assert found['rlsp'] == pytest.approx([0.8 * plain[0] + 0.1, 0.8 * plain[1]])
    assert found['rlsp_unverified'] == pytest.approx([0.8 * (plain[0] - 1) + 0.1, 0.8 * plain[1]])
    assert sum(found['rlsp_dealt']) == pytest.approx(sum(found['rlsp']))
