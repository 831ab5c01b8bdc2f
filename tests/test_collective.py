"""The vote of a crowd: weights, ties, peers, and several models that train in step."""

import json

import pytest
import torch

from conftest import weights
from rl4llm.core.numerics import fold
from rl4llm.core.policy import Policy
from rl4llm.core.registry import recipe, use
from rl4llm.rewards.collective import (
    asked_peer,
    collective_consistency,
    crowd_label,
    crowd_reward,
    self_consistency,
)
from rl4llm.rewards.label_free import majority_reward
from rl4llm.tasks import task
from rl4llm.training import crowd as module
from rl4llm.training.checkpoints import list_checkpoints
from rl4llm.training.crowd import AsAsked, Heard, train_crowd
from rl4llm.training.loop import train

EASY = task('countdown', level='easy')
STRAIGHT = 'tiny-straight-s-v1'


@pytest.fixture(scope='module')
def tiny():
    return Policy.load('tiny')


@pytest.fixture(scope='module')
def small():
    return recipe('rlccf', prompts=2, group=4, lr=1e-3)


def last_word(text):
    word = text.split()[-1]
    return word if word.isdigit() else None


def saying(*texts):
    "A peer that says the same to every question, and notes what it was asked."

    def peer(questions, count, *, seed):
        peer.asked.append((list(questions), count))
        return [list(texts) for _ in questions]

    peer.asked = []
    return peer


def paid(texts, prompts=None, **how):
    return crowd_reward(prompts or ['p'] * len(texts), texts, read=last_word, **how)


def test_self_consistency():
    assert self_consistency(['7', '7', '9', '7']) == 0.75
    assert self_consistency(['7', None, None, '7']) == 0.5  # unreadable ones count among K
    assert self_consistency([None, None]) == self_consistency([]) == 0


def test_weights_are_raw():
    "Squared, they would elect another answer; a common factor would not."
    sure, divided, fair = ['7'] * 4, ['9', '9', '5', '3'], ['9', '9', '9', '5']
    assert crowd_label([sure, divided, fair]) == '7'  # 4 to 1 + 9/4
    assert crowd_label([sure, divided, fair], weighted=False) == '9'  # 4 to 5
    assert crowd_label([sure, divided, fair, ['9', '9', '5', '2']]) == '9'  # 4 to 4 1/4
    most = ['9'] * 6 + ['1', '2', '3', '4']  # 6 * 0.6 to 2 * 4 * 0.4
    assert crowd_label([most, *[['5'] * 4 + list('678012')] * 2]) == '9'


def test_the_weight_is_of_the_favourite_and_goes_to_all_votes_of_the_model():
    "The second model is sure of 7; its single vote for 9 counts as much as one for 7."
    first = ['9', '9', '5', '4']  # 1/2
    second = ['7', '7', '7', '9']  # 3/4
    assert crowd_label([first, second]) == '7'  # 9/4 to 1 + 3/4
    assert crowd_label([[*first, '9'], second]) == '9'  # 9/4 to 9/5 + 3/4


def test_unreadable_answers_have_no_vote_and_no_pay():
    assert crowd_label([[None, None, None], ['7', None, None]]) == '7'
    assert crowd_label([[None], [], [None]]) is None
    assert paid(['hm', 'well'], peers=()) == [0, 0]
    assert paid(['hm', 'hm', 'a 7'], peers=()) == [0, 0, 1]


def test_equals_are_told_apart_by_a_coin_of_problem_and_answers():
    labels = {crowd_label([['7'], ['9']], prompt=str(n)) for n in range(20)}
    assert labels == {'7', '9'}
    for n in range(20):
        one, other = ([['7'], ['9']], [['9'], ['7']])
        assert crowd_label(one, prompt=str(n)) == crowd_label(other, prompt=str(n))


def test_collective_consistency():
    assert collective_consistency([['7', '9'], ['7', None]], '7') == 0.5
    assert collective_consistency([[None], [None]], None) == 0
    assert collective_consistency([['7']], '7') == 1
    assert collective_consistency([], None) == collective_consistency([[]], '7') == 0


def test_peers_outvote_and_are_asked_once():
    texts = ['a 7', 'b 7', 'c 9', 'd 5']
    sure = saying('x 9', 'y 9', 'z 9', 'w 9')
    assert paid(texts, peers=()) == [1, 1, 0, 0]
    assert paid(texts, peers=(sure,)) == [0, 0, 1, 0]
    assert sure.asked == [(['p'], 4)]
    silent = saying('hm', 'hm', 'hm', 'hm')
    assert paid(texts, peers=(silent,)) == [1, 1, 0, 0]


def test_samples_limit_what_a_peer_says():
    texts = ['a 7', 'b 7', 'c 9']
    peer = saying('x 9', 'y 9', 'z 9')
    assert paid(texts, peers=(peer,), samples=1, weighted=False)[0] in (0, 1)  # a tie of 2 to 2
    assert paid([*texts, 'd 7'], peers=(peer,), samples=1, weighted=False) == [1, 1, 0, 1]
    assert [count for _, count in peer.asked] == [1, 1]
    with pytest.raises(ValueError, match='samples'):
        paid(texts, peers=(), samples=0)


def test_weights_act_in_the_reward():
    texts = ['a 7', 'b 7', 'c 7', 'd 7']
    divided = saying('9', '9', '5', '3')
    fair = saying('9', '9', '9', '5')
    assert paid(texts, peers=(divided, fair)) == [1] * 4
    assert paid(texts, peers=(divided, fair), weighted=False) == [0] * 4


def test_each_prompt_has_its_own_vote():
    def peer(questions, count, *, seed):
        return [['7'] * count if question == 'p' else ['9'] * count for question in questions]

    texts = ['a 7', 'b 9', 'c 7', 'd 9']
    assert paid(texts, list('pqqp'), peers=(peer,)) == [1, 1, 0, 0]


def test_groups_of_different_sizes_have_as_many_votes_of_a_peer():
    peer = saying('9', '9', '9')
    texts = ['a 7', 'b 7', 'c 7', 'd 5']
    values = paid(texts, list('pppq'), peers=(peer,), weighted=False)
    assert peer.asked == [(['p', 'q'], 3)]
    assert values[0] == values[1] == values[2]


def test_without_peers_it_is_the_majority(tiny):
    items = EASY.sample(6, seed=4)
    rows = tiny.sample(items, 6, seed=0)
    asked = [items[k] for k in rows.prompt.tolist()]
    given = dict(prompts=tiny.prompts(asked), completions=list(rows.texts), item=asked)
    assert crowd_reward(**given, peers=()) == majority_reward(**given)
    assert crowd_reward(**given, peers=(), weighted=False) == majority_reward(**given)
    given['item'] = [None] * 6 + asked[6:]
    assert crowd_reward(**given, peers=())[:6] == [None] * 6


def test_the_coin_is_that_of_the_task_whatever_the_prompts_are():
    items = EASY.sample(20, seed=4)
    texts = [text for item in items for text in (EASY.demonstrate(item, seed=0), '1 + 1 = 2')]
    asked = [item for item in items for _ in range(2)]
    own = [EASY.prompt(item) for item in asked]
    chats = [[dict(role='user', content=prompt)] for prompt in own]
    paid_own, paid_chats = (
        crowd_reward(prompts, texts, item=asked, peers=()) for prompts in (own, chats)
    )
    assert paid_own == paid_chats == majority_reward(own, texts, item=asked)
    assert paid_own != majority_reward(chats, texts, item=asked)


@pytest.mark.parametrize('bad', ['no', None, 1, 0.5])
def test_weighted_is_yes_or_no(bad):
    with pytest.raises(ValueError, match='weighted is .*, wanted True or False'):
        paid(['7'], peers=(), weighted=bad)


def test_two_frozen_copies_do_not_say_the_same(tiny):
    said = []

    class Noted:
        def sample(self, questions, count, *, seed):
            said.append(tiny.sample(questions, count, seed=seed))
            return said[-1]

        model = statistics = None

    items = EASY.sample(3, seed=4)
    texts = [EASY.demonstrate(item, seed=1) for item in items]
    prompts = [EASY.prompt(item) for item in items]
    crowd_reward(prompts, texts, item=items, peers=(Noted(), Noted()), samples=8)
    assert [len(rows) for rows in said] == [24, 24] and said[0].texts != said[1].texts


def test_what_a_peer_says_depends_on_problem_and_seed():
    items = EASY.sample(3, seed=4)
    straight = asked_peer(STRAIGHT, items, 2)
    assert straight == asked_peer(Policy.load(STRAIGHT), items, 2)
    assert straight[::-1] == asked_peer(STRAIGHT, items[::-1], 2)
    assert straight != asked_peer(STRAIGHT, items, 2, seed=1)
    with pytest.raises(TypeError, match='the policy is a int'):
        asked_peer(7, items, 2)
    with pytest.raises(TypeError, match='wanted one list of texts for each question'):
        asked_peer(lambda questions, count, seed: [['a'], 7], items[:2], 1)


def test_a_single_sample_is_sure():
    assert self_consistency(['7']) == 1


def test_each_peer_is_asked_with_a_seed_of_its_own():
    seeds = []

    def noted(questions, count, *, seed):
        seeds.append(seed)
        return [['7'] * count for _ in questions]

    crowd_reward(['a'], ['7'], read=str, peers=(noted, noted), seed=3)
    crowd_reward(['a'], ['7'], read=str, peers=(noted,))
    assert seeds == [int(fold(3, 0)), int(fold(3, 1)), int(fold(0, 0))]


CHAT = [[dict(role='user', content='which?')]] * 2


@pytest.mark.parametrize(
    'peers, told',
    [
        ('tiny', "peers is 'tiny', wanted a list"),
        ((lambda questions, count, seed: 'ab',), "asked 1 questions and returned 'ab'"),
        ((lambda questions, count, seed: ['a'],), 'wanted one list of texts for each'),
        ((lambda questions, count, seed: [],), 'wanted one list of texts for each'),
        ((lambda questions, count, seed: [[7]],), 'wanted one list of texts for each'),
        ((lambda questions, count, seed: [['a', 7]],), 'wanted one list of texts for each'),
        (('tiny',), 'a question is a list of messages'),
    ],
)
def test_what_is_no_crowd_is_told_in_a_sentence(peers, told):
    with pytest.raises(TypeError, match=told):
        crowd_reward(CHAT, ['7', '9'], read=str, peers=peers)


def test_functions_are_asked_messages():
    def peer(questions, count, *, seed):
        return [['9'] * count for _ in questions]

    assert crowd_reward(CHAT, ['7', '9'], read=str, peers=(peer,)) == [0, 1]


def test_recipes():
    knobs = {name: dict(recipe(name).reward.knobs) for name in ('rlccf_plain', 'rlccf_clones')}
    assert knobs == {'rlccf_plain': {'weighted': False}, 'rlccf_clones': {'peers': ('tiny',)}}
    assert dict(recipe('rlccf_dealt').reward.knobs)['reward'] is crowd_reward
    for name in ('rlccf', 'rlccf_plain', 'rlccf_clones', 'rlccf_dealt'):
        assert set(recipe(name).but(name='').diff()) <= {'reward'}


# several models in step


def test_heard_is_what_was_said(tiny):
    items = EASY.sample(3, seed=1)
    rows = tiny.sample(items, 4, seed=0)
    heard = Heard(rows)(items[1:], 3, seed=9)
    assert heard == [list(rows.texts[4:7]), list(rows.texts[8:11])]


def test_a_crowd_of_one_is_the_loop(tiny, small):
    alone = tiny.clone()
    run = train(alone, EASY, small.but(reward='majority_reward'), steps=2, seed=3)
    crowd = train_crowd([tiny], EASY, small, steps=2, seed=3)
    assert torch.equal(weights(crowd.policies[0]), weights(alone))
    assert crowd.metrics['reward'].tolist() == run.metrics['reward'].tolist()
    assert not torch.equal(weights(alone), weights(tiny))  # a copy was trained


def test_all_are_asked_the_same_and_paid_by_the_vote_of_all(tiny, small, monkeypatch):
    seen = []
    inner = module.learn_step

    def noted(state, *args, **how):
        seen.append(state.rollouts)
        return inner(state, *args, **how)

    monkeypatch.setattr(module, 'learn_step', noted)
    policies = [tiny, tiny, STRAIGHT]
    train_crowd(policies, EASY, small, steps=1, seed=1)
    assert seen[0].items == seen[1].items == seen[2].items
    assert seen[0].texts != seen[1].texts
    for number, rows in enumerate(seen):
        asked = [rows.items[k] for k in rows.prompt.tolist()]
        others = [Heard(other) for k, other in enumerate(seen) if k != number]
        given = dict(prompts=tiny.prompts(asked), completions=list(rows.texts), item=asked)
        assert crowd_reward(**given, peers=others) == rows.rewards.tolist()
    paid_answers = {
        (number, text)
        for rows in seen
        for number, text, value in zip(rows.prompt.tolist(), rows.texts, rows.rewards)
        if value
    }
    assert paid_answers


def test_a_run_that_was_broken_off_ends_as_another(tiny, small, tmp_path, monkeypatch):
    pair = [tiny, STRAIGHT]
    whole = train_crowd(pair, EASY, small, steps=3, seed=0)
    inner = module.learn_step

    def killed(state, *args, **how):
        if state.step == 2 and how:
            raise KeyboardInterrupt
        return inner(state, *args, **how)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(module, 'learn_step', killed)
        train_crowd(pair, EASY, small, steps=3, seed=0, path=tmp_path, every=1)
    assert [path.name for path in list_checkpoints(tmp_path)] == ['00000001', '00000002']
    again = train_crowd(pair, EASY, small, steps=3, seed=0, path=tmp_path, every=1)
    for first, second in zip(whole.policies, again.policies):
        assert torch.equal(weights(first), weights(second))
    assert again.metrics['reward'].tolist() == whole.metrics['reward'].tolist()
    assert len(json.loads((tmp_path / '00000003' / 'state.json').read_text())['metrics']) == 6


def test_another_crowd_is_told_apart(tiny, small, tmp_path):
    train_crowd([tiny], EASY, small, steps=1, path=tmp_path)
    with pytest.raises(ValueError, match='a crowd of 1, this one has 2'):
        train_crowd([tiny, tiny], EASY, small, steps=2, path=tmp_path)
    with pytest.raises(ValueError, match='holds another run'):
        train_crowd([STRAIGHT], EASY, small, steps=2, path=tmp_path)


@pytest.mark.parametrize('bad', (dict(steps=0), dict(every=0), dict(policies=[])))
def test_numbers_that_make_no_crowd(tiny, small, bad):
    given = dict(dict(policies=[tiny], steps=1), **bad)
    policies = given.pop('policies')
    with pytest.raises(ValueError, match='train_crowd'):
        train_crowd(policies, EASY, small, **given)


@pytest.mark.parametrize('policies', ('tiny', None))
def test_a_crowd_is_a_list(small, policies):
    with pytest.raises(TypeError, match='policies is a .*, wanted a list of models'):
        train_crowd(policies, EASY, small, steps=1)


NAMED = use('dealt_reward', reward=use(crowd_reward, peers=('tiny',)))


@pytest.mark.parametrize(
    'changes, told',
    [
        (dict(reward=use(crowd_reward, peers=('tiny',))), r"names the peers \('tiny',\)"),
        (
            dict(reward=use('weighted_sum', parts=(NAMED, 'brevity'))),
            r"names the peers \('tiny',\)",
        ),
        (dict(reward=NAMED), r"names the peers \('tiny',\)"),
        (dict(advantage='remax'), 'remax compares with the reward of one greedy answer'),
    ],
)
def test_a_recipe_that_would_not_hear_the_crowd_is_refused(tiny, small, changes, told):
    with pytest.raises(ValueError, match=told):
        train_crowd([tiny, tiny], EASY, small.but(**changes), steps=1)


def test_a_function_that_is_no_reward_is_left_alone(tiny, small):
    by_text = small.but(reward=use(crowd_reward, read=str))
    assert len(train_crowd([tiny, tiny], EASY, by_text, steps=1).metrics) == 2


def test_a_greedy_answer_is_compared_where_nobody_votes(tiny, small):
    by_remax = small.but(reward='correct', advantage='remax')
    assert len(train_crowd([tiny], EASY, by_remax, steps=1).metrics) == 1


def test_fewer_steps_than_are_done_are_told(tiny, small, tmp_path):
    train_crowd([tiny], EASY, small, steps=2, path=tmp_path)
    with pytest.warns(UserWarning, match='has done 2 steps already, and 1 were asked for'):
        assert len(train_crowd([tiny], EASY, small, steps=1, path=tmp_path).metrics) == 2


def test_only_the_leader_chooses(tiny, small):
    leader = type('Leader', (), dict(rollouts=tiny.sample(EASY.sample(2, seed=0), 1, seed=0)))
    assert AsAsked(leader).sample(99, seed=5) == list(leader.rollouts.items)
