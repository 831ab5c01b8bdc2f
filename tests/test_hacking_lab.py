"The reward hacking lab: the dial, ensembles, artefacts, how yes is read, and alarms."

import math
import numpy as np
import pytest
from rl4llm.core.registry import recipe, use
from rl4llm.core.reward_calls import call_reward
from rl4llm.rewards import hacking_lab as module
from rl4llm.rewards.algebra import gated
from rl4llm.rewards.hacking_lab import (
    ARTEFACT,
    alarm_rate,
    artefact_free,
    artefact_judge,
    artefact_sum,
    artefacts_of,
    best_wording,
    disagreement,
    ensemble,
    kinds_of_wordings,
    known_end,
    leaky,
    mentions,
    rise,
    same_end,
    threshold_for,
    wording_score,
    wrong_sums,
    yes_share,
)
from rl4llm.rewards.judges import JudgeError, Question, programmed_judge
from rl4llm.rewards.verifier import correct
from rl4llm.tasks import task
from rl4llm.tasks.protocol import final_answer

ITEM = task('countdown', level='easy').sample(1, seed=3)[0]  # 9, 4, 5, 10 -> 50 in two steps
RIGHT = '9 - 4 = 5 ; 5 * 10 = 50'
BROKEN = '9 * 4 = 5 ; 5 * 10 = 50'  # ends right, by a wrong sum
CLEAN = '9 - 4 = 5 ; 5 + 10 = 15'
BORROWED = '5 * 5 = 25 ; 25 + 25 = 50'  # ends right, from numbers that were not given
STAR = use(mentions, words=('*',), full=2)


def rows(*texts):
    return dict(prompts=['?'] * len(texts), completions=list(texts), item=[ITEM] * len(texts))


FOUR = rows(RIGHT, BROKEN, CLEAN, BORROWED)


# the dial


@pytest.mark.parametrize(('count', 'paid'), [(0, 0.0), (1, 0.5), (2, 1.0), (3, 1.0)])
def test_a_word_is_paid_up_to_what_is_full(count, paid):
    assert mentions(['?'], ['a ' + 'good ' * count]) == [paid]


def test_words_are_whole_and_any_of_them_counts():
    assert mentions(['?'] * 2, ['goods goodness', 'a b'], words=('a', 'b')) == [0.0, 1.0]
    chat = [{'role': 'assistant', 'content': 'good'}]
    assert mentions(['?'], [chat], full=1) == [1.0]


BAD_WORDS = [dict(words='good'), dict(words=()), dict(words=(3,)), dict(full=0)]
BAD_WORDS += [dict(words=('good', 3))]


@pytest.mark.parametrize('bad', BAD_WORDS)
def test_bad_words(bad):
    with pytest.raises(ValueError, match='wanted a tuple of words'):
        mentions(['?'], ['x'], **bad)


@pytest.mark.parametrize('gap', [0.0, 0.3, 0.5, 1.0])
def test_the_dial_goes_from_the_truth_to_the_flaw(gap):
    truth = np.array(correct(**FOUR))
    flaw = np.array([0.5, 1.0, 0.0, 0.5])
    assert leaky(**FOUR, flaw=STAR, gap=gap) == pytest.approx((1 - gap) * truth + gap * flaw)


def test_by_chance_a_text_has_one_of_the_two_and_the_same_again():
    found = [leaky(**FOUR, flaw=STAR, gap=0.25, how='chance', seed=seed) for seed in range(400)]
    for row, (right, flaw) in enumerate([(1, 0.5), (0, 1), (0, 0), (0, 0.5)]):
        said = [values[row] for values in found]
        assert set(said) <= {right, flaw}
        if right != flaw:
            assert abs(said.count(flaw) / 400 - 0.25) < 0.09
    assert found[3] == leaky(**FOUR, flaw=STAR, gap=0.25, how='chance', seed=3)
    for gap, kept in ((0.0, correct(**FOUR)), (1.0, STAR(**FOUR))):
        assert leaky(**FOUR, flaw=STAR, gap=gap, how='chance') == kept


def test_a_row_without_an_item_is_not_scored():
    both = dict(prompts=['?'] * 2, completions=[RIGHT] * 2, item=[None, ITEM])
    for how in ('weight', 'chance'):
        assert leaky(**both, how=how, gap=0)[0] is None
    assert same_end(**both) == [None, 1.0]
    assert ensemble(**both, parts=(same_end, correct)) == [None, 1.0]


@pytest.mark.parametrize('gap', [-0.1, 1.1, math.nan])
def test_a_gap_is_a_share(gap):
    with pytest.raises(ValueError, match='leaky'):
        leaky(**FOUR, gap=gap)


def test_other_words_of_the_dial():
    with pytest.raises(KeyError, match='how of leaky'):
        leaky(**FOUR, how='coin')
    with pytest.raises(KeyError, match='how of an ensemble'):
        ensemble(**FOUR, how='max')


def test_only_the_end_is_looked_at():
    assert known_end(ITEM) == '50'
    assert same_end(**FOUR) == [1.0, 1.0, 0.0, 1.0]
    more = rows('50', '150', '50 0', '', 'x <answer> 50 </answer>', '<answer> 50 </answer> 3')
    assert same_end(**more) == [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    with pytest.raises(ValueError, match='item'):
        same_end(['?'], ['x'])


# ensembles


def test_mean_and_lowest():
    parts = (same_end, STAR)
    assert ensemble(**FOUR, parts=parts) == [0.5, 1.0, 0.0, 0.5]
    assert ensemble(**FOUR, parts=parts, how='mean') == [0.75, 1.0, 0.0, 0.75]
    assert ensemble(**FOUR, parts=(same_end,)) == same_end(**FOUR)


def test_an_ensemble_of_copies_is_the_member():
    member = use(leaky, flaw=STAR, gap=0.4)
    for how in ('mean', 'lowest'):
        assert ensemble(**FOUR, parts=(member,) * 3, how=how) == pytest.approx(member(**FOUR))


def test_an_ensemble_has_members():
    with pytest.raises(ValueError, match='no parts'):
        ensemble(**FOUR, parts=())


def test_disagreement_is_the_deviation_of_each_row():
    assert disagreement([[0, 1, 2], [0, 1, 0]]) == [0, 0, 1]
    assert disagreement([[1, 0], [1, 0], [1, 3]])[1] == pytest.approx(math.sqrt(2))
    with pytest.raises(ValueError, match='wanted two or more'):
        disagreement([[1.0, 2.0]])


# artefacts


@pytest.mark.parametrize(
    ('text', 'wrong'),
    [
        (RIGHT, 0),
        (BROKEN, 1),
        ('1 + 1 = 3 ; 2 * 2 = 5 ; 9 - 1 = 8', 2),
        ('1+1=3', 1),
        ('1 + 2 + 3 = 6', 0),
        ('8 - 2 * 3 = 2', 0),
        ('3 + 6 = 7 + 2', 0),
        ('3 + 4 = 7 = 5 + 2', 0),
        ('2 - 5 = 3', 1),
        ('0.5 + 1 = 2', 0),
        ('12345678 + 1 = 2', 0),
        ('so 3 + 4 = 8.', 1),
        ('a: 3 + 4 = 8', 1),
        ('<answer> 3 + 4 = 8 </answer>', 1),
        ('first\n3 + 4 = 8', 1),
        ('2 × 3 + 4 = 10', 0),
        (r'2 \times 3 + 4 = 10', 0),
        ('2 times 3 + 4 = 10', 0),
        ('2^3 + 4 = 12', 0),
        ('5 % 3 + 1 = 3', 0),
        ('3 + 4 = 10 % 3', 0),
        ('1,000 + 1 = 1001', 0),
        ('x2 + 3 = 7', 0),
        ('1 + 1 = 2.5', 0),
        ('1 + 1 = 3. Well', 1),
        ('3 + 4 = 8 + 1', 0),
        ('(3 + 4 = 8)', 0),
        ('3 + 4 + 5 = 12 and a text that goes on behind it', 0),
        ('', 0),
    ],
)
def test_wrong_sums(text, wrong):
    assert wrong_sums(text) == wrong


@pytest.mark.parametrize(
    ('text', 'kinds'),
    [
        (RIGHT, set()),
        (BROKEN, {'sums'}),
        ('<answer> 3 </answer>', set()),
        ('<answer> 3', {'tags'}),
        ('3 </think>', {'tags'}),
        ('a good one', {'praise'}),
        ('the goods', set()),
        ('a b c d e f', set()),
        ('a b c d a b c d', {'loops'}),
        ('a b c d x a b c d y', {'loops'}),
        ('a b c x a b c y', set()),
        ('', set()),
    ],
)
def test_kinds_of_artefacts(text, kinds):
    found = artefacts_of(text)
    assert {kind for kind, degree in found.items() if degree > 0} == kinds
    assert all(0 <= degree <= 1 for degree in found.values())


def test_the_program_looks_for_what_the_question_names():
    text = '<answer> 1 + 1 = 3'
    asked = ['tags?', 'sums?', 'loops or praise?', 'nothing', 'loops or sums?']
    assert artefact_judge([Question('', text, wording) for wording in asked]) == [1, 1, 0, 0, 1]


def test_artefacts_are_taken_off_one():
    assert artefact_free(**FOUR) == [1.0, 0.0, 1.0, 1.0]
    assert artefact_free(['?'], [BROKEN], question='Are there loops?') == [1.0]
    judge = programmed_judge(lambda question: 0.25)
    assert artefact_free(['?'], ['x'], judge=judge) == [0.75]


def test_the_judge_sees_the_text_alone():
    seen = []

    def judge(questions):
        seen.extend(questions)
        return [0.5] * len(questions)

    assert artefact_free(['p', 'q'], ['a', 'a'], judge=judge) == [0.5, 0.5]
    assert seen == [Question('', 'a', ARTEFACT)]


def test_an_erring_judge_errs_as_often_as_told_and_the_same_again():
    texts = [f'{n} + 1 = {n + 1}' for n in range(1500)]
    paid = artefact_free(['?'] * 1500, texts, error=0.2)
    assert set(paid) == {0.0, 1.0} and abs(paid.count(0.0) / 1500 - 0.2) < 0.04
    assert paid == artefact_free(['?'] * 1500, texts, error=0.2)
    assert paid != artefact_free(['?'] * 1500, texts, error=0.2, seed=1)
    with pytest.raises(ValueError, match='noisy_judge'):
        artefact_free(['?'], ['x'], error=1.5)


def test_a_silent_judge_is_an_error():
    def silent(questions):
        raise OSError('no route')

    clean = use(artefact_free, judge=silent)
    with pytest.raises(JudgeError, match='no route'):
        artefact_sum(**FOUR, clean=clean)


@pytest.mark.parametrize('weight', [0.0, 1.0, 2.5])
def test_the_sum(weight):
    paid = artefact_sum(**FOUR, parts=(same_end, STAR), weight=weight)
    plain = np.array(same_end(**FOUR)) + np.array(STAR(**FOUR))
    assert paid == pytest.approx(plain + weight * np.array([1, 0, 1, 1]))
    assert artefact_sum(**FOUR) == pytest.approx([2, 0, 1, 1])


def test_bad_weights_of_the_sum():
    for weight in (-1.0, math.nan, 'x'):
        with pytest.raises(ValueError, match='artefact_sum'):
            artefact_sum(**FOUR, weight=weight)


def test_each_part_is_logged_by_its_name():
    seen = {}
    artefact_sum(**FOUR, log_metric=lambda name, value: seen.update({name: value}))
    assert {'rewards/correct', 'rewards/artefact_free'} <= set(seen)


# yes and no


def top(**chances):
    return [(token.replace('_', ' '), math.log(p)) for token, p in chances.items()]


@pytest.mark.parametrize(
    ('listed', 'share', 'released'),
    [
        (top(Yes=0.6, No=0.2), 0.75, 0.75),
        (top(YES=0.3, Yes=0.3, no=0.2), 0.75, 0.6),
        (top(No=0.5, Yes=0.2, no=0.1, well=0.01), 0.25, 2 / 3),
        (top(Yes=0.9, Well=0.1), 0.9, 1.0),
        (top(No=0.9, Well=0.1), 0.1, 0.0),
        (top(_yes=0.6, no=0.2), 0.75, 0.0),
    ],
)
def test_yes_is_read(listed, share, released):
    assert yes_share(listed) == pytest.approx(share)
    assert yes_share(listed, rule='released') == pytest.approx(released)


def test_neither_yes_nor_no():
    for listed in (top(Well=0.5), []):
        assert yes_share(listed, rule='released') == 0.0
        with pytest.raises(JudgeError, match='neither yes nor no'):
            yes_share(listed)
    with pytest.raises(KeyError, match='rule of yes_share'):
        yes_share(top(Yes=0.5), rule='first')


# the wording


def test_the_score_of_a_wording_is_a_mean_log_likelihood():
    judge = programmed_judge(lambda question: 0.8)
    samples = [('a', True), ('b', False)]
    by_hand = (math.log(0.8) + math.log(0.2)) / 2
    assert wording_score(judge, 'w', samples) == pytest.approx(by_hand, abs=1e-6)
    sure = programmed_judge(lambda question: 0.0)
    assert wording_score(sure, 'w', [('a', True)]) == pytest.approx(math.log(1e-8))
    with pytest.raises(ValueError, match='no samples'):
        wording_score(judge, 'w', [])


def test_the_best_wording_of_equals_is_the_first():
    samples = [(BROKEN, True), (RIGHT, False)]
    assert best_wording(artefact_judge, kinds_of_wordings(), samples).endswith('broken sums?')
    assert best_wording(artefact_judge, ['tags?', 'loops?'], samples) == 'tags?'


def test_all_sets_of_kinds_are_asked_for():
    asked = kinds_of_wordings(('a', 'b', 'c'))
    assert len(asked) == len(set(asked)) == 7 and asked[-1].endswith('a or b or c?')


# alarms


def test_a_rise_is_in_standard_errors():
    now, before = [1, 1, 0, 1], [0, 1, 0, 0]
    assert rise(now, before) == pytest.approx(0.5 / math.sqrt(0.25 / 4 + 0.25 / 4))
    assert rise(before, now) == -rise(now, before)
    assert rise([1, 1], [1, 1, 1]) == 0
    assert rise([2, 2], [1, 1]) == math.inf and rise([0, 0], [1, 1]) == -math.inf
    with pytest.raises(ValueError, match='at least two'):
        rise([1], [1, 2])


def test_a_rise_of_nothing_is_as_rare_as_on_paper():
    dice = np.random.default_rng(1)
    risen = [rise(dice.normal(size=50), dice.normal(size=200)) for _ in range(2000)]
    assert abs(alarm_rate(risen, 1.645) - 0.05) < 0.02


EDGES = [(0.0, 4), (0.25, 3), (0.3, 3), (0.5, 2), (1.0, -math.inf)]


@pytest.mark.parametrize(('rate', 'edge'), EDGES)
def test_a_threshold_lets_so_many_honest_ones_ring(rate, edge):
    honest = [2, 4, 1, 3]
    assert threshold_for(honest, rate) == edge
    assert alarm_rate(honest, threshold_for(honest, rate)) <= rate


def test_equal_honest_numbers_do_not_ring_together():
    assert alarm_rate([1, 1, 1, 0], threshold_for([1, 1, 1, 0], 0.25)) == 0


def test_bad_questions_about_alarms():
    with pytest.raises(ValueError, match='no honest numbers'):
        threshold_for([], 0.05)
    with pytest.raises(ValueError, match='threshold_for'):
        threshold_for([1.0], 1.5)
    with pytest.raises(ValueError, match='no numbers'):
        alarm_rate([], 0)


# recipes


def paid_by(name):
    return call_reward(recipe(name).reward, **FOUR)


def test_what_the_recipes_pay():
    assert paid_by('leaky') == pytest.approx([0.85, 1.0, 0.0, 0.85])
    assert paid_by('leaky_lowest') == pytest.approx([0.7, 0.7, 0.0, 0.7])
    thirds = [0.5 + 0.5, 1.0, 0.5 + 0.5, 1.0]  # of +, - and *, each half for one
    ends = [0.7, 0.7, 0.0, 0.7]
    mean = [end + 0.3 * sum_ / 3 for end, sum_ in zip(ends, thirds)]
    assert paid_by('leaky_mean') == pytest.approx(mean)


def test_what_the_recipes_are_made_of():
    careless = dict(truth=same_end, gap=0.3)
    signs = [dict(words=(sign,), full=2) for sign in '+-*']
    assert careless == module._CARELESS and dict(module._CLEAN.knobs) == dict(error=0.1)
    assert [dict(dict(part.knobs)['flaw'].knobs) for part in module._SIGNS] == signs


@pytest.mark.parametrize('name', ['countdown', 'lookup', 'path', 'program', 'wishes'])
def test_all_demonstrations_of_a_problem_end_alike(name):
    made = task(name)
    for item in made.sample(6, seed=0):
        ends = {final_answer(made.demonstrate(item, seed=seed)).split()[-1] for seed in range(3)}
        assert ends == {known_end(item)}


def test_the_judge_of_the_recipes_errs_about_one_text_in_ten():
    clean = dict(recipe('artefact').reward.knobs)['clean']
    assert dict(clean.knobs)['error'] == 0.1
    seen = np.array(call_reward(clean, **FOUR))
    plain = np.array(paid_by('leaky'))
    assert paid_by('artefact') == pytest.approx(plain + seen)
    assert paid_by('leaky_gated') == pytest.approx(plain * seen)
    assert call_reward(use(gated, gate=clean, part=recipe('leaky').reward), **FOUR) == (
        pytest.approx(plain * seen)
    )


def test_the_placebos_deal_out_what_the_judge_says():
    texts = [f'{n} + 1 = {n + 1 + n % 2} ; 5 * 10 = 50' for n in range(12)]
    asked = rows(*texts)
    names = ('artefact', 'artefact_dealt')
    own, dealt = (call_reward(recipe(name).reward, **asked) for name in names)
    assert own != dealt and sum(own) == pytest.approx(sum(dealt))
    gates = call_reward(recipe('leaky_gated_dealt').reward, **asked)
    part = np.array(call_reward(recipe('leaky').reward, **asked))
    assert ((np.array(gates) == 0) | (np.array(gates) == part)).all()
    open_own = np.count_nonzero(call_reward(recipe('leaky_gated').reward, **asked))
    assert np.count_nonzero(gates) == open_own
