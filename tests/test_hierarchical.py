"Levels that open the next: ladders by hand, actions and fields, bonuses, bad input, placebos."

import math
import random
from itertools import product
from types import SimpleNamespace
import pytest, torch
from rl4llm.core.policy import ASSETS
from rl4llm.core.registry import recipe, use
from rl4llm.core.reward_calls import call_reward
from rl4llm.core.storage import read_json
from rl4llm.environments.environment import written_episode
from rl4llm.rewards import hierarchical
from rl4llm.rewards.algebra import gated, weighted_sum
from rl4llm.rewards.hierarchical import (
    Action,
    action_score,
    chipseek_reward,
    handed_back,
    known_actions,
    known_words,
    ladder,
    levels_passed,
    matched_actions,
    paid_levels,
    read_actions,
    readable,
    rouge_l,
    saving,
    several_kinds,
    shop_reward,
    temporal_bonus,
    tool_star_reward,
)
from rl4llm.rewards.verifier import correct
from rl4llm.tasks import task
from rl4llm.tasks.programs import grade_program
from rl4llm.tasks.protocol import Item

TWOS = Item('countdown', ((2, 2, 5), 9, 99, '+-*'))  # right with one kind, or with two
PROBLEM = Item('program', ('x', 'x 2 * 3 +', ((0,), (4,), (7,))))
SUMS = task('countdown', level='easy').sample(1, seed=3)[0]  # 4, 9, 10 -> 50


def rows(*texts, item=PROBLEM):
    return dict(prompts=['?'] * len(texts), completions=list(texts), item=[item] * len(texts))


def given(name):
    "A level whose rewards are a column of the data."

    def level(prompts, completions, **columns):
        return columns[name]

    level.__name__ = name
    return level


# -- ladders


@pytest.mark.parametrize(
    ('values', 'passed'),
    [((1, 1, 1), 3), ((1, 0.5, 1), 1), ((0, 1, 1), 0), ((1, None, 1), 1), ((0.51, 0.6, 0.5), 2)],
)
def test_levels_are_passed_one_after_the_other_and_only_above_their_thresholds(values, passed):
    assert levels_passed(values, (0.5,) * 3) == passed


@pytest.mark.parametrize('row', [*product((0, 0.4, 1), repeat=3)])
@pytest.mark.parametrize('passes', [(0.5, 0.5, 0.5), (0.3, 0.9, 0.0)])
def test_a_ladder_is_the_formula(row, passes):
    weights = (0.2, 1.0, -0.5)
    wanted, opened = 0.0, 1.0
    for weight, value, least in zip(weights, row, passes):
        wanted += weight * value * opened
        opened *= value > least
    assert paid_levels(row, weights, passes) == pytest.approx(wanted)
    columns = {name: [value] for name, value in zip('abc', row)}
    levels = tuple(map(given, 'abc'))
    found = ladder(['?'], ['x'], levels=levels, weights=weights, passes=passes, **columns)
    assert found == [pytest.approx(wanted)]


@pytest.mark.parametrize(
    ('row', 'paid'),
    [((1, None, 1), None), ((0, None, None), 0.0), ((None, 1, 1), None), ((1, 1, None), None)],
)
def test_none_decides_only_what_it_is_asked(row, paid):
    assert paid_levels(row, (1, 1, 1), (0.5,) * 3) == paid


def test_the_last_level_has_nothing_to_open():
    for last in (-3.0, 0.0, 3.0):
        assert paid_levels((1, last), (1, 1), (0.5, 99)) == 1 + last


def test_a_ladder_is_gates_in_gates():
    texts = rows('x + 3', 'x', 'x 2 * 3 +', 'x 2 * 5 + 2 -')
    behind = use(
        weighted_sum, parts=(correct, use(gated, gate=correct, part=saving)), weights=(1.0, 0.5)
    )
    outer = use(gated, gate=readable, part=behind)
    nested = weighted_sum(**texts, parts=(readable, outer), weights=(0.2, 1.0))
    assert chipseek_reward(**texts) == pytest.approx(nested)


def test_levels_are_logged_by_their_names():
    seen = {}
    ladder(**rows('x', 'x 2 * 3 +'), log_extra=lambda name, column: seen.update({name: column}))
    assert seen == dict(readable=[1.0, 1.0], correct=[0.0, 1.0])


@pytest.mark.parametrize('bad', [dict(weights=(1.0,)), dict(passes=(0.5,) * 3)])
def test_one_number_for_each_level(bad):
    with pytest.raises(ValueError, match=f'{next(iter(bad))} were given for 2 levels'):
        ladder(**rows('x'), **bad)


@pytest.mark.parametrize('knob', ['weights', 'passes'])
@pytest.mark.parametrize('bad', [math.nan, math.inf, 'x', None])
def test_numbers_of_levels_are_numbers(knob, bad):
    with pytest.raises(ValueError, match=f'ladder: one of the {knob} is'):
        ladder(**rows('x'), **{knob: (1.0, bad)})


@pytest.mark.parametrize('knob', ['weights', 'passes'])
def test_one_number_for_all_levels_is_told(knob):
    with pytest.raises(ValueError, match=f'{knob} is 1.0, wanted one number for each of 2 levels'):
        ladder(**rows('x'), **{knob: 1.0})


@pytest.mark.parametrize('bad', [(), [], readable])
def test_a_ladder_has_levels(bad):
    with pytest.raises(ValueError, match='wanted rewards in a tuple'):
        ladder(**rows('x', 'x'), levels=bad)


@pytest.mark.parametrize('row', [(1, 1, 1), (0, 1, 1)])
def test_no_level_is_dropped_for_want_of_a_number(row):
    for weights, passes in (((1, 1), (0.5,) * 3), ((1,) * 3, (0.5,) * 2)):
        with pytest.raises(ValueError, match='zip'):
            paid_levels(row, weights, passes)


def test_without_items_there_is_no_reward_and_without_a_column_an_error():
    for reward in (readable, saving, ladder, chipseek_reward, matched_actions, shop_reward):
        assert reward(['?'], ['x'], item=[None]) == [None]
        with pytest.raises(ValueError, match='item'):
            reward(['?'], ['x'])


# -- programs


@pytest.mark.parametrize('text', ['x + 3', 'x', 'x 2 * 3 +', 'x 2 * 3', '', 'y', 'x ' * 50])
def test_readable_is_the_syntax_of_a_program(text):
    assert readable(**rows(text)) == [float(grade_program(PROBLEM, text).syntax == 1)]


def test_saving_is_a_share_of_the_known_length():
    known = known_words(PROBLEM)
    texts = ['x', 'x 2 * 3 +', 'x ' + 'd + ' * known, 'x + 3']
    assert saving(**rows(*texts)) == pytest.approx([1 - 1 / known, 1 - 5 / known, -1.0, 0.0])
    assert saving(**rows('<think> x x x x </think> <answer> x </answer>')) == saving(**rows('x'))


def test_function_pays_more_than_shortness_while_its_weight_is_larger():
    long_and_right = 'x 2 * 3 +' + ' 0 +' * 17
    pair = rows(long_and_right, 'x')
    assert correct(**pair) == [1.0, 0.0]
    for third, above in ((0.5, True), (0.99, True), (1.01, False)):
        right, wrong = chipseek_reward(**pair, weights=(0.2, 1.0, third))
        assert (right > wrong) == above
        assert wrong == pytest.approx(0.2)  # its shortness is not paid


def test_each_threshold_of_chipseek_counts():
    four = rows('x + 3', 'x', 'x 2 * 3 +', 'x 2 * 5 + 2 -')
    assert saving(**four)[3] < 0
    assert chipseek_reward(**four, passes=(0.5, 2, 0)) == pytest.approx([0, 0.2, 1.2, 1.2])
    assert chipseek_reward(**four, passes=(1, 0.5, 0)) == pytest.approx([0, 0.2, 0.2, 0.2])


def test_a_known_design_has_a_word(monkeypatch):
    for answer in (None, ''):
        nothing = SimpleNamespace(answer=answer)
        monkeypatch.setattr(hierarchical, 'verdict_of', lambda item, text: nothing)
        assert known_words.__wrapped__(PROBLEM) == 1


# -- actions


def test_actions_of_steps_and_of_calls():
    assert read_actions('7 * 3 = 21 ; 21 - 4 = 17') == [('*', '3 7', '21'), ('-', '21 4', '17')]
    assert read_actions('<think> 1 + 1 = 2 </think> <answer> 9 + 10 = 19 </answer>') == [
        ('+', '10 9', '19')
    ]
    form = task('form', level='easy')
    item = form.sample(1, seed=0)[0]
    ((name, value),) = [pair for pair in item.data[0] if pair[0] in item.data[1]]
    text = written_episode(form.environment(), item, ['?', f'+ {name} {value}', '>'])
    assert read_actions(text) == [('?', '', ''), ('+', name, str(value)), ('>', '', '')]


def test_a_call_that_is_not_closed_is_no_action():
    assert read_actions('<tool> ? </tool> <tool> ! 3') == [('?', '', '')]
    assert read_actions('<tool> ? <tool> ! 3 </tool>') == [('!', '3', '')]
    assert several_kinds(['?'] * 2, ['<tool> a </tool> <tool> b', '<tool> a']) == [0.0, 0.0]


@pytest.mark.parametrize('text', ['', ' ; ; ', '<answer>', '</answer><answer>', '<tool> </tool>'])
def test_nothing_to_read_is_no_action(text):
    assert read_actions(text) == []


def test_operands_of_a_sum_have_no_order_and_those_of_a_difference_have():
    a, b = read_actions('3 + 7 = 10 ; 7 + 3 = 10')
    c, d = read_actions('7 - 3 = 4 ; 3 - 7 = 4')
    assert a == b and c != d


@pytest.mark.parametrize(
    ('said', 'known', 'alike'),
    [
        ('a b', 'a b', 1.0),
        ('a', 'a b', 2 / 3),
        ('b a', 'a b', 0.5),
        ('a x b', 'a b', 0.8),
        ('x a y a', 'a a', 2 / 3),
        ('a a', 'a', 2 / 3),
        ('', 'a', 0.0),
        ('', '', 0.0),
    ],
)
def test_rouge_l(said, known, alike):
    assert rouge_l(said, known) == pytest.approx(alike)
    assert rouge_l(known, said) == pytest.approx(alike)


@pytest.mark.parametrize(
    ('own', 'worth'),
    [
        (('type', 'box', 'red shoes'), 0.3 + 0.2 + 0.1 + 1000),
        (('type', 'box', 'red'), 0.3 + 0.2 + 0.1 + 1000 * 2 / 3),
        (('type', 'menu', 'hats'), 0.3 + 0.2),
        (('type', 'box', ''), 0.3 + 0.1 + 0.1),
        (('type', '', ''), 0.3),
        (('click', 'box', 'red shoes'), 0.0),
    ],
)
def test_an_action_by_hand(own, worth):
    assert action_score(Action(*own), Action('type', 'box', 'red shoes')) == pytest.approx(worth)


def test_an_action_without_fields_is_worth_its_kind_and_one_with_a_name_has_it_last():
    assert action_score(Action('end', 'x', 'y'), Action('end')) == 0.3
    assert action_score(Action('click', 'buy'), Action('click', 'buy')) == pytest.approx(1000.5)


def test_actions_are_compared_place_by_place_with_the_record():
    first, second = known_actions(SUMS)
    written = task('countdown').demonstrate(SUMS, seed=0)
    step = written.partition('<answer>')[2] or written
    step = step.split(';')[0].strip()
    full = 0.3 + 0.2 + 0.1 + 1000
    both, one, more = matched_actions(
        **rows(written, step, f'{step} ; {step} ; {step} ; {step}', item=SUMS)
    )
    repeated = action_score(first, second)
    assert both == pytest.approx(full) and one == pytest.approx(full / 2)
    assert more == pytest.approx((full + repeated) / 4)


def test_shop_reward_is_format_and_then_actions():
    written = task('countdown').demonstrate(SUMS, seed=0)
    for text in (written, '1 + 1 = 2 ; 2 + 2 = 4'):
        whole = shop_reward(**rows(text, item=SUMS))
        assert whole == pytest.approx([0.5 + matched_actions(**rows(text, item=SUMS))[0]])
    spoilt = written.replace('=', 'is', 1)
    assert shop_reward(**rows(spoilt, item=SUMS)) == [0.0]
    assert matched_actions(**rows(spoilt, item=SUMS))[0] > 100  # the gate withholds it
    kinds = shop_reward(**rows(written, item=SUMS), difficulty=0, present=0, near=0)
    assert kinds == pytest.approx([0.8])


def test_shop_reward_has_the_knobs_of_its_actions():
    written = task('countdown').demonstrate(SUMS, seed=0)
    plain = shop_reward(**rows(written, item=SUMS), difficulty=1.0)
    assert plain == pytest.approx([0.5 + 0.3 + 0.2 + 0.1 + 1.0])
    dear = shop_reward(**rows(written, item=SUMS), difficulty=1.0, kind=5.0, form=2.0)
    assert dear == pytest.approx([2.0 + 5.0 + 0.2 + 0.1 + 1.0])


@pytest.mark.parametrize('bad', [dict(difficulty=-1.0), dict(kind=math.nan), dict(near='x')])
def test_bad_worth_of_actions(bad):
    for reward in (matched_actions, shop_reward):
        with pytest.raises(ValueError, match=next(iter(bad))):
            reward(**rows('x', item=SUMS), **bad)


@pytest.mark.parametrize('bad', [-1.0, math.nan, '1'])
def test_bad_worth_of_the_format(bad):
    with pytest.raises(ValueError, match='form is'):
        shop_reward(**rows('x', item=SUMS), form=bad)


# -- Tool-Star


RIGHT = '9 - 4 = 5 ; 5 * 10 = 50'
WRONG = ('9 - 4 = 5 ; 5 + 10 = 15', '9 + 4 = 13 ; 13 + 10 = 23')


def test_kinds_are_counted():
    texts = (RIGHT, *WRONG, '9 + 4 = 13', '')
    assert several_kinds(['?'] * 5, texts) == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert several_kinds(['?'] * 5, texts, kinds=1) == [1.0, 1.0, 1.0, 1.0, 0.0]
    with pytest.raises(ValueError, match='kinds is 0'):
        several_kinds(['?'], [RIGHT], kinds=0)


@pytest.mark.parametrize('score', [0.0, 0.05, 0.4, 1.0])
@pytest.mark.parametrize('used', [0.0, 1.0])
@pytest.mark.parametrize('bonus', [0.0, 0.1, 2.0])
def test_tool_star_by_the_released_rule(score, used, bonus):
    parts = dict(part=given('f1'), tools=given('used'), bonus=bonus)
    paid = tool_star_reward(**rows(RIGHT, 'no answer', item=SUMS), f1=[score] * 2, used=[used] * 2,
                            **parts)  # fmt: skip
    assert paid == [pytest.approx(score + bonus * used if score > 0 else 0.0), -1.0]


def test_tool_star_on_countdown():
    assert tool_star_reward(**rows(RIGHT, *WRONG, 'x', item=SUMS)) == [1.1, 0.0, 0.0, -1.0]
    for bad in (dict(bonus=-1), dict(bonus=math.nan), dict(malformed=math.nan)):
        with pytest.raises(ValueError, match=next(iter(bad))):
            tool_star_reward(**rows(RIGHT, item=SUMS), **bad)


def test_tool_star_takes_rewards_of_your_own_and_asks_each_once():
    asked = []

    def own(name, values):
        def reward(prompts, completions, **columns):
            asked.append(name)
            return values

        return reward

    parts = dict(part=own('part', [1.0, 0.4, 0.0, -5.0, 1.0, -5.0]), tools=own('tools', [1.0] * 6))
    veto = own('veto', [0.0, 0.0, 0.0, 0.0, 1.0, 1.0])
    paid = tool_star_reward(['?'] * 6, ['any'] * 6, **parts, veto=veto)
    assert paid == pytest.approx([1.1, 0.5, 0.0, -5.0, -1.0, -5.0])  # at most `malformed`
    assert sorted(asked) == ['part', 'tools', 'veto']


# -- TimeHC-RL and Hi-GRPO


def test_the_temporal_bonus_asks_for_more_than_mu_of_the_twin():
    ok = torch.tensor([1.0, 0.0, 1.0, 1.0]).double()
    group = torch.tensor([7, 7, 3, 3])
    twins = torch.tensor([1.0, 1.0, 1.0, 0.0]).double()
    of = torch.tensor([3, 3, 7, 7])
    for mu, paid in ((0.9, [0.4, 0, 0.4, 0.4]), (1.0, [0.0] * 4), (0.0, [0.4, 0, 0.4, 0.4])):
        found = temporal_bonus(ok, group, twins, of, mu=mu)
        assert torch.allclose(found, torch.tensor(paid).double()) and found.dtype == ok.dtype
    none_right = temporal_bonus(0 * ok, group, 0 * twins, of)
    assert not none_right.any()
    with pytest.raises(ValueError, match='group 3 has no answers in another order'):
        temporal_bonus(ok, group, twins[2:], of[2:])


def one_group(right, count, kind=torch.float32):
    "So many right answers of so many, in group 0."
    return (torch.arange(count) < right).to(kind), torch.zeros(count, dtype=torch.long)


@pytest.mark.parametrize('kind', [torch.float32, torch.float64])
@pytest.mark.parametrize(('count', 'of'), [(12, 12), (11, 11), (20, 20), (10, 10), (30, 30)])
def test_just_nine_tenths_are_not_enough_however_they_are_rounded(kind, count, of):
    same, more = (temporal_bonus(*one_group(right, count, kind), *one_group(10, of, kind))
                  for right in (9, 10))  # fmt: skip
    assert not same.any() and more.sum() == pytest.approx(4.0)


def test_the_temporal_bonus_says_what_is_wrong():
    ok, group = one_group(2, 3)
    for bad in ((ok[:1], group, ok, group), (ok, group, ok[:1], group), (ok[:, None], group) * 2):
        with pytest.raises(ValueError, match='has shape'):
            temporal_bonus(*bad)
    for bad in (3 * ok - 0.5, ok * math.nan):
        for given in ((bad, group, ok, group), (ok, group, bad, group)):
            with pytest.raises(ValueError, match='wanted 1 for right'):
                temporal_bonus(*given)
    for knob in (dict(mu=math.nan), dict(alpha='x')):
        with pytest.raises(ValueError, match=next(iter(knob))):
            temporal_bonus(ok, group, ok, group, **knob)


def test_the_temporal_bonus_does_not_know_the_order_of_rows():
    gen = torch.Generator().manual_seed(0)
    ok, twins = (torch.rand(12, generator=gen) < 0.5).double(), torch.ones(12).double()
    group = torch.arange(12) % 3
    turn = torch.randperm(12, generator=gen)
    found = temporal_bonus(ok, group, twins * ok[turn], group, alpha=1.0, mu=0.5)
    again = temporal_bonus(ok[turn], group[turn], twins * ok[turn], group, alpha=1.0, mu=0.5)
    assert torch.equal(found[turn], again)


@pytest.mark.parametrize('lam', [0.0, 0.5, 2.0])
def test_rewards_are_handed_back(lam):
    rewards = torch.tensor([[1.0, 2.0, 4.0], [0.0, 0.0, 1.0]])
    before = rewards.clone()
    wanted = torch.stack(
        [rewards[:, 0] + lam * (rewards[:, 1] + lam * rewards[:, 2]),
         rewards[:, 1] + lam * rewards[:, 2], rewards[:, 2]], 1)  # fmt: skip
    assert torch.allclose(handed_back(rewards, lam=lam), wanted) and torch.equal(rewards, before)
    with pytest.raises(ValueError, match='lam'):
        handed_back(rewards, lam=math.nan)


@pytest.mark.parametrize(
    'bad', [torch.ones(2, 2).long(), torch.ones(3), torch.ones(1, 2, 2), torch.ones(2, 0)]
)
def test_stages_are_columns_of_floats(bad):
    with pytest.raises(ValueError, match='a column for each stage'):
        handed_back(bad)


def test_a_row_without_its_outcome_is_unscored():
    found = handed_back(torch.tensor([[1.0, 1.0, math.nan], [1.0, math.nan, 1.0]]))
    assert found[0].isnan().all()
    assert found[1, [0, 2]].tolist() == [2.0, 1.0] and found[1, 1].isnan()


# -- recipes


def paid(name, texts):
    return call_reward(recipe(name).reward, **texts)


def test_what_the_recipes_pay():
    texts = rows('x', 'x 2 * 3 +')
    known = known_words(PROBLEM)
    assert paid('chipseek', texts) == pytest.approx([0.2, 1.2 + 0.5 * (1 - 5 / known)])
    assert paid('chipseek_flat', texts)[0] == pytest.approx(0.2 + 0.5 * (1 - 1 / known))
    sums = rows(RIGHT, *WRONG, 'x', item=SUMS)
    assert paid('tool_star', sums) == [1.1, 0.0, 0.0, -1.0]
    assert paid('tool_star_ungated', sums) == [1.1, 0.1, 0.0, -1.0]
    written = task('countdown').demonstrate(SUMS, seed=0)
    other = written.replace(known_actions(SUMS)[1].value, '7')
    kinds = paid('shop_r1_kinds', rows(written, other, item=SUMS))
    assert kinds == pytest.approx([0.8, 0.8])


def test_placebos_deal_out_within_a_prompt():
    texts = rows(*(RIGHT, *WRONG, 'x') * 3, *('x',) * 6, item=SUMS)
    texts['prompts'] = ['one'] * 12 + ['two'] * 6
    for name in ('chipseek', 'shop_r1'):
        own, dealt = paid(name, texts), paid(f'{name}_dealt', texts)
        assert sorted(own[:12]) == sorted(dealt[:12]) and own != dealt
        assert own[12:] == dealt[12:]  # nothing comes from the other prompt


def test_marks_of_several_kinds_are_dealt_out_among_the_answers_to_a_prompt():
    one_kind = ('2 + 2 = 4 ; 4 + 5 = 9', '5 + 2 = 7 ; 7 + 2 = 9')
    mixed = ('2 * 2 = 4 ; 4 + 5 = 9', *one_kind, '2 + 5 = 7 ; 7 - 2 = 5', '2 + 2 = 4', 'x') * 3
    alone = (*one_kind, 'x') * 3  # nobody has several kinds here
    texts = rows(*mixed, *alone, item=TWOS)
    texts['prompts'] = ['one'] * len(mixed) + ['two'] * len(alone)
    own, dealt = paid('tool_star', texts), paid('tool_star_dealt', texts)
    assert own != dealt
    assert own[len(mixed) :] == dealt[len(mixed) :]  # nothing comes from the other prompt
    right = [value for value in dealt[: len(mixed)] if value > 0.5]
    assert len(right) == 9 and set(right) == {1.0, 1.1}
    for before, after in zip(own, dealt):
        assert before == after or {before, after} == {1.0, 1.1}  # a wrong answer gets nothing


# -- the stored runs


def test_recipes_pay_what_they_paid_when_the_stored_runs_were_made():
    pays = read_json(ASSETS / 'analysis' / 'hierarchical.json')['made_with']['pays']
    items = dict(programs=[PROBLEM] * 4, countdown=[SUMS] * 4 + [TWOS] * 4)
    prompts = dict(programs=['?'] * 4, countdown=['50'] * 4 + ['9'] * 4)
    for world in pays:
        recipes = [name for name in pays[world] if ' ' not in name]
        assert len(recipes) == len(pays[world]) - 1  # one arm of each is the notebook's own
        for name in recipes:
            stored = pays[world][name]
            texts = dict(prompts=prompts[world], completions=[*stored], item=items[world])
            assert paid(name, texts) == pytest.approx([*stored.values()], abs=1e-6)


def test_one_row_that_is_neither_right_nor_wrong_is_refused():
    ok = torch.tensor([1.0, 2.0])
    group = torch.tensor([0, 0])
    with pytest.raises(ValueError, match='ok has a value between or beside 0 and 1'):
        temporal_bonus(ok, group, ok.clamp(max=1), group)


def common_words(mine, theirs):
    "The longest row of words in both, by its definition."
    if not mine or not theirs:
        return 0
    if mine[-1] == theirs[-1]:
        return 1 + common_words(mine[:-1], theirs[:-1])
    return max(common_words(mine[:-1], theirs), common_words(mine, theirs[:-1]))


@pytest.mark.parametrize('seed', range(30))
def test_rouge_l_is_its_definition(seed):
    rng = random.Random(seed)
    mine, theirs = (rng.choices('abc', k=rng.randint(1, 7)) for _ in range(2))
    wanted = 2 * common_words(mine, theirs) / (len(mine) + len(theirs))
    assert rouge_l(' '.join(mine), ' '.join(theirs)) == pytest.approx(wanted)


def test_one_action_is_the_whole_of_a_response():
    short = Item('countdown', ((4, 9), 13, 99, '+-*'))
    (known,) = known_actions(short)
    shown = task('countdown').demonstrate(short, seed=0)
    found = matched_actions(['?'], [shown], item=[short])
    assert found == [pytest.approx(action_score(known, known))]


def test_weights_of_the_bonus_without_a_gate():
    knobs = dict(recipe('tool_star_ungated').reward.knobs)
    assert dict(knobs['part'].knobs)['weights'] == (1.0, 0.1)


def test_steps_beside_an_open_call_are_no_actions():
    assert read_actions('<tool> calculator 1 + 2 <answer> 1 + 2 = 3 </answer>') == []


def test_a_lone_row_without_a_twin_is_named():
    one = torch.ones(1)
    with pytest.raises(ValueError, match='group 5 has no answers in another order'):
        temporal_bonus(one, torch.tensor([5]), one, torch.tensor([4]))


def test_it_is_the_fields_of_the_record_that_are_asked_for():
    short = Item('countdown', ((4, 9), 13, 99, '+-*'))
    (found,) = matched_actions(['?'], ['<tool> + 4 </tool>'], item=[short])
    assert 0.3 < found < 1, 'a name alone is no result'
