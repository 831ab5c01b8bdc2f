"DeepSearch: numbers by hand, plain sampling where there is nothing to choose, memory that goes on."

import dataclasses, math
import pytest, torch
from rl4llm.advantages.group_relative import dr_grpo
from rl4llm.core.policy import Policy
from rl4llm.core.registry import recipe, use
from rl4llm.core.rollouts import ORIGINS, make_rollouts
from rl4llm.core.signals import scored
from rl4llm.rollouts.branch_advantages import node_numbers
from rl4llm.rollouts.deep_search import (
    backed_up,
    best_frontier,
    chosen_end,
    deep_search_advantages,
    deep_search_rollouts,
    frontier_score,
    hard_problems,
    mean_values,
    path_weights,
    random_frontier,
    replayed_search,
    search_values,
    uct_descent,
)
from rl4llm.rollouts.tree import Tree
from rl4llm.tasks import task
from rl4llm.training.loop import train

STEP = dict(ends=(';',))


@pytest.fixture(scope='module')
def policy():
    return Policy.load('tiny')


@pytest.fixture(scope='module')
def items():
    return task('countdown').sample(3, seed=1)


def test_weights_and_verdicts_by_hand():
    assert path_weights(1) == [0.5, 1.0] and path_weights(0) == [1.0]
    assert path_weights(19, least=0.2)[:4] == [0.2, 0.2, 0.2, 0.2]
    assert backed_up(0.0, -1, 0.5) == -0.5 and backed_up(-0.5, -1, 0.25) == -0.75
    assert backed_up(-0.75, 1, 0.5) == 0.5, "a right end takes the place of the wrong ones"
    assert backed_up(0.5, -1, 1.0) == 0.5, "a wrong end does not take it back"
    assert backed_up(0.5, 1, 0.25) == 0.75 and backed_up(0.5, 0, 1.0) == 0.5


def test_which_end_is_kept():
    assert chosen_end([0, 1], [1, 0], [0.1, 0.9]) == 1, "right before whole"
    assert chosen_end([0, 0], [0, 1], [0.1, 0.9]) == 1, "whole before cut off"
    assert chosen_end([1, 1, 1], [1, 1, 1], [0.3, 0.2, 0.2]) == 1, "the surest, of equals the first"


def hand_tree():
    tree = Tree()
    tree[0].value, tree[0].visits = 0.0, 4
    poor = tree.add(0, tokens=[1], entropy=[0.2, 0.4], value=-1.0, visits=2)
    rich = tree.add(0, tokens=[2], entropy=[0.1], value=1.0, visits=2)
    under_poor = tree.add(poor, tokens=[3], entropy=[0.9], value=0.0, visits=1)
    under_rich = tree.add(rich, tokens=[4], entropy=[0.1], value=0.0, visits=1)
    tree.add(rich, tokens=[5], entropy=[3.0], value=1.0, visits=1, ended=True)
    return tree, under_poor, under_rich


def test_score_of_the_frontier_and_going_down():
    tree, under_poor, under_rich = hand_tree()
    wanted = 0.4 * math.tanh(-0.5) + 0.4 * 0.9 + 0.01 * math.sqrt(2 / 8)
    assert math.isclose(frontier_score(tree, under_poor, depth=8), wanted)
    assert best_frontier(tree) == [under_rich] and uct_descent(tree) == [under_rich]
    assert best_frontier(tree, entropy=2.0) == [under_poor]
    assert {random_frontier(tree)[0]} <= {under_poor, under_rich}
    for node in tree.nodes:
        node.ended = True
    assert best_frontier(tree) == uct_descent(tree) == random_frontier(tree) == []


def test_bonus_of_uct_leads_to_what_was_seldom_visited():
    tree, under_poor, under_rich = hand_tree()
    tree[1].visits, tree[2].visits, tree[0].visits = 1, 40, 41
    tree[1].value = 0.0
    assert uct_descent(tree) == [under_poor] and uct_descent(tree, c=0.0) == [under_rich]


def rows_of(rewards):
    "Two rows that share two of their three tokens, and one of its own."
    one, tokens = torch.ones(1, 1), torch.tensor([[5, 6, 7], [5, 6, 8], [9, 6, 7]])
    return make_rollouts(
        prompt_ids=one.long(),
        prompt_mask=one.bool(),
        tokens=tokens,
        prompt=torch.zeros(3).long(),
        mask=tokens >= 0,
        rewards=rewards,
        seg=torch.tensor([[0, 0, 1]]).expand(3, 3),
        parent=torch.tensor([-1, 0, -1]),
        fork_at=torch.tensor([0, 2, 0]),
    )


def test_what_tokens_earn_by_hand():
    rows = rows_of(torch.tensor([0.0, 1.0, 0.0]))
    adv = deep_search_advantages(rows.rewards, rows.group, rollouts=rows, top=2.0, sharp=0.5)
    inner = 2 * math.tanh(2 / 3 / 0.5)
    wanted = torch.tensor([[inner, inner, -1], [inner, inner, 1], [-inner, -inner, -1]]) + 1 / 3
    assert torch.allclose(adv, wanted)
    plain = deep_search_advantages(rows.rewards, rows.group, rollouts=rows, credit=mean_values)
    assert torch.allclose(plain[0, 0], torch.tensor(1 / 3)), "one right and one wrong row: worth 0"
    lost = deep_search_advantages(torch.tensor([float('nan'), 0.0, 1.0]), rows.group, rollouts=rows)
    assert (lost[0] == 0).all() and torch.allclose(lost[2, 2], torch.tensor(1.0))
    with pytest.raises(ValueError, match='sharp is 0.0, wanted'):
        deep_search_advantages(rows.rewards, rows.group, rollouts=rows, sharp=0.0)


def test_values_in_the_end_do_not_depend_on_the_order(policy, items):
    rows = scored(policy, deep_search_rollouts(policy, items, 8, seed=3, **STEP), use('correct'))
    verdict, nodes = 2 * rows.rewards - 1, node_numbers(rows)
    closed = search_values(verdict, nodes, rows.seg)
    for order in (range(len(rows)), reversed(range(len(rows)))):
        values = [0.0] * len(closed)
        for row in order:
            way = nodes[row][nodes[row] >= 0].unique_consecutive().tolist()
            for node, weight in zip(way, path_weights(len(way))[1:]):
                values[node] = backed_up(values[node], float(verdict[row]), weight)
        assert torch.allclose(torch.tensor(values), closed)


def test_one_child_a_node_is_plain_sampling(policy, items):
    lone = deep_search_rollouts(policy, items, 6, seed=2, width=1, **STEP)
    plain = policy.sample(items, 6, seed=2)
    assert torch.equal(lone.tokens, plain.tokens) and lone.texts == plain.texts
    plain = scored(policy, plain, use('correct'))
    adv = deep_search_advantages(plain.rewards, plain.group, rollouts=plain)
    wanted = 2 * dr_grpo(plain.rewards, plain.group)[:, None].expand_as(adv)
    assert torch.allclose(adv[plain.mask], wanted[plain.mask], atol=1e-6)


@pytest.mark.parametrize('jump', [best_frontier, uct_descent, random_frontier])
def test_rows_are_draws_with_their_log_probabilities(policy, items, jump):
    rows = deep_search_rollouts(policy, items, 6, seed=2, width=3, jump=jump, **STEP)
    with torch.no_grad():
        logp, _ = policy.logprobs(rows)
    assert (logp - rows.logp_behave)[rows.mask].abs().max() < 1e-4
    assert torch.bincount(rows.prompt).tolist() == [6, 6, 6] and (rows.parent >= 0).any()
    alone = deep_search_rollouts(policy, items[1:2], 6, seed=2, width=3, jump=jump, **STEP)
    assert alone.texts == rows.texts[6:12], "other problems do not matter"


def test_a_response_is_cut_off_at_the_depth(policy, items):
    rows = deep_search_rollouts(policy, items, 3, seed=0, depth=2, every=4)
    assert rows.mask.sum(1).max() <= 8 and not rows.finished.any() and rows.seg.max() == 1


@pytest.mark.parametrize(
    'bad, said',
    [
        (dict(width=0), 'width is 0'),
        (dict(depth=0), 'depth is 0'),
        (dict(every=0), 'every is 0'),
        (dict(ends=('two words',)), "'two words' is no token"),
    ],
)
def test_bad_settings_are_answered(policy, items, bad, said):
    with pytest.raises(ValueError, match=said):
        deep_search_rollouts(policy, items, 2, seed=0, **bad)
    with pytest.raises(ValueError, match=said):
        replayed_search(**bad)(policy, items, 2, seed=0)


def test_bad_memory_and_no_problems(policy):
    for bad, said in ((dict(most=1.5), 'most is 1.5'), (dict(size=0), 'size is 0')):
        with pytest.raises(ValueError, match=said):
            replayed_search(**bad)
    with pytest.raises(ValueError):
        hard_problems(policy, [])


def with_rewards(rows, right):
    rewards = torch.zeros(len(rows))
    rewards[right] = 1.0
    return dataclasses.replace(rows, rewards=rewards)


def test_a_seldom_solution_comes_back_and_an_easy_one_does_not(policy, items):
    sampler = replayed_search(size=2, **STEP)
    rows = with_rewards(sampler(policy, items, 4, seed=0), [0, 4, 5, 6, 11])   # 1, 3 and 1 of 4
    sampler.update(rows)
    assert list(sampler.kept) == [items[0].key, items[2].key]
    back = sampler(policy, items, 4, seed=1)
    replayed = (back.origin == ORIGINS.index('replay')).nonzero()[:, 0].tolist()
    assert replayed == [0, 8] and back.texts[0] == rows.texts[0] and back.texts[8] == rows.texts[11]
    assert not back.sampled[0].any() and back.mask[0].any()
    plain = policy.sample(items[:1], 4, seed=1)
    assert back.texts[1:4] == plain.texts[1:], "the other rows are plain samples"
    sampler.update(with_rewards(back, [1, 2, 3, 8]))      # easy now; a replayed row is no draw
    assert list(sampler.kept) == [items[2].key]


def weights_of(learner):
    return torch.cat([p.detach().flatten() for p in learner.model.parameters()])


def test_a_run_goes_on_bit_for_bit_with_its_memory(policy, items, tmp_path):
    made = recipe('deep_search_replay', prompts=3, group=6, lr=2e-4, minibatch=None)
    made = made.but(curriculum=use('handful', problems=task('countdown').sample(5, seed=3)))
    ends = []
    for parts, path in (((2, 4), tmp_path / 'run'), ((4,), None)):
        for steps in parts:
            learner = policy.clone()
            train(learner, task('countdown'), made, steps=steps, seed=0, path=path)
        ends.append(weights_of(learner))
    assert torch.equal(*ends)


def test_it_trains_another_policy_than_its_relatives(policy):
    ends = {}
    for name in ('dapo', 'deep_search', 'deep_search_plain_credit', 'deep_search_random'):
        learner = policy.clone()
        made = recipe(name, prompts=3, group=6, lr=2e-4, minibatch=None)
        train(learner, task('countdown'), made, steps=2, seed=0)
        ends[name] = weights_of(learner)
    come = (ends['deep_search'] - weights_of(policy)).norm()
    for name in set(ends) - {'deep_search'}:
        assert (ends[name] - ends['deep_search']).norm() > 0.05 * come, name


# bad input


@pytest.mark.parametrize(
    'call, said',
    [
        (lambda: path_weights(3, least=2), 'path_weights: least is 2, wanted a weight from 0 to 1'),
        (lambda: path_weights(3, least=math.nan), 'path_weights: least is nan'),
        (lambda: chosen_end([], [], []), 'chosen_end: .* 0, 0 and 0 ends, wanted as many of each'),
        (lambda: chosen_end([0, 1], [1], [0.1, 0.2]), 'chosen_end: .* 2, 1 and 2 ends'),
        (lambda: replayed_search().load_state_dict({}), "replayed_search: a state with nothing"),
        (lambda: replayed_search().load_state_dict({'x': 1}), r"\['x'\], wanted one with 'kept'"),
    ],
)
def test_one_sentence_says_what_is_wrong(call, said):
    with pytest.raises(ValueError, match=said):
        call()


@pytest.mark.parametrize('below', (math.nan, 0, -0.5, 1.5, 'few'))
def test_hard_problems_wants_a_share(policy, items, below):
    with pytest.raises(ValueError, match='hard_problems: below is .* wanted a share above 0'):
        hard_problems(policy, items, below=below)


def test_a_state_without_solutions_is_a_state():
    copy = replayed_search()
    copy.load_state_dict(replayed_search().state_dict())
    assert copy.kept == {} and path_weights(1, least=0) == [0.5, 1.0]
