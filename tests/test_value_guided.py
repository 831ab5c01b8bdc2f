"V-STAR: siblings by hand, plain sampling with one child, a value that is learnt and goes on."

import dataclasses, math
import pytest, torch
from rl4llm.advantages.group_relative import grpo
from rl4llm.core.policy import Policy
from rl4llm.core.registry import recipe, use
from rl4llm.core.rollouts import make_rollouts
from rl4llm.core.signals import scored
from rl4llm.rollouts import value_guided as module
from rl4llm.rollouts.deep_search import GrowingForest
from rl4llm.rollouts.tree import Tree, expand_nodes
from rl4llm.rollouts.value_guided import (
    allowed_leaves,
    best_ends,
    count_child,
    finish_guided,
    grow_guided,
    guided_descent,
    guided_rows,
    held_by_beam,
    in_order,
    priorities,
    random_value,
    rows_to_places,
    sibling_advantages,
    sibling_grpo,
    step_ends,
    text_steps,
    tokens_drawn,
    value_guided_rollouts,
)
from rl4llm.tasks import task
from rl4llm.training.loop import train

STEP = dict(ends=(';',))


@pytest.fixture(scope='module')
def policy():
    return Policy.load('tiny')


@pytest.fixture(scope='module')
def items():
    return task('countdown').sample(3, seed=1)


@pytest.fixture(scope='module')
def drawn(policy, items):
    return scored(policy, value_guided_rollouts(**STEP)(policy, items, 8, seed=0), use('correct'))


def rows_of(rewards, group=(0, 0, 0, 0)):
    "Three rows that begin with 5, two of which go on with 6, and one that begins with 9."
    one, tokens = torch.ones(1, 1), torch.tensor([[5, 6, 1], [5, 6, 2], [5, 7, 1], [9, 1, 1]])
    return make_rollouts(
        prompt_ids=one.long(),
        prompt_mask=one.bool(),
        tokens=tokens,
        prompt=torch.zeros(4).long(),
        group=torch.tensor(group),
        mask=tokens >= 0,
        rewards=torch.tensor(rewards),
        seg=torch.tensor([[0, 1, 2]]).expand(4, 3),
    )


def test_siblings_by_hand():
    rows = rows_of([1.0, 0.0, 1.0, 0.0])
    adv = sibling_advantages(rows.rewards, rows.group, rollouts=rows, eps=0.0)
    wanted = torch.tensor([[1.0, -1, 1], [1, -1, -1], [1, 1, 0], [-1, 0, 0]])
    assert torch.allclose(adv, wanted, atol=1e-5)
    rows = rows_of([1.0, 0.0, 1.0, 0.5])
    adv = sibling_advantages(rows.rewards, rows.group, rollouts=rows, eps=0.1)
    first = (2 / 3 - 0.5) / 2  # children worth 2/3 and 1/2, each counted once
    assert torch.allclose(adv[0, 0], torch.tensor(first / (first + 0.1)))
    assert torch.allclose(adv[2, 1], torch.tensor(0.25 / 0.35)), "children worth 1/2 and 1"


def test_a_row_without_a_score_is_no_child_and_groups_are_apart():
    rows = rows_of([1.0, float('nan'), 0.0, float('nan')])
    adv = sibling_advantages(rows.rewards, rows.group, rollouts=rows, eps=0.0)
    assert (adv[1] == 0).all() and (adv[3] == 0).all() and (adv[:, 0] == 0).all()
    assert torch.allclose(adv[[0, 2], 1], torch.tensor([1.0, -1.0]))
    rows = rows_of([1.0, 0.0, 1.0, 0.0], group=(0, 0, 1, 1))
    adv = sibling_advantages(rows.rewards, rows.group, rollouts=rows, eps=0.0)
    assert torch.allclose(adv[:, 0], torch.tensor([0.0, 0, 1, -1]), atol=1e-5)
    step, above = text_steps(rows, rows.group)
    assert step[0, 0] == step[1, 0] != step[2, 0] and above[0, 0] != above[2, 0]


def test_the_second_loss_is_a_mean_over_tokens_with_siblings():
    rows = rows_of([1.0, 0.0, 1.0, 0.0])
    siblings = sibling_advantages(rows.rewards, rows.group, rollouts=rows)
    of_row = grpo(rows.rewards, rows.group)[:, None]
    for weight in (0.0, 0.5, 1.0):
        adv = sibling_grpo(rows.rewards, rows.group, rollouts=rows, weight=weight)
        second = (adv - of_row).mean(1).mean()
        assert torch.allclose(second, weight * siblings.sum() / 9, atol=1e-6)
    plain = sibling_grpo(rows.rewards, rows.group, rollouts=rows, weight=0.0)
    assert torch.equal(plain, of_row.expand(4, 3)), "without weight it is GRPO"
    with pytest.raises(ValueError, match='rewards'):
        sibling_grpo(rows.rewards[:2], rows.group, rollouts=rows)


def test_way_down_and_gate_by_hand():
    tree = Tree()
    for value in (0.6, 0.2, 0.4):
        count_child(tree, tree.add(0, tokens=[1]), value)
    for value, ended in ((0.5, False), (0.3, True)):
        count_child(tree, tree.add(1, tokens=[2], ended=ended), value)
    assert [node.visits for node in tree.nodes] == [5, 3, 1, 1, 1, 1]
    assert allowed_leaves(tree) == [3, 4], "the mean of the first level is 0.4, of the second too"
    assert guided_descent(tree, explore=0.0) == [4]
    gap = math.sqrt(math.log(6)) * (1 / math.sqrt(2) - 1 / 2)
    assert guided_descent(tree, explore=0.21 / gap) == [3]
    assert guided_descent(tree, explore=0.19 / gap) == [4]
    assert held_by_beam(tree, beam=3) == [4] and guided_descent(Tree()) == []
    tree.nodes[4].ended = True
    assert best_ends(tree, 2) == [4, 5] and best_ends(tree, 1) == [4]
    small = in_order(tree, [5])
    assert len(small) == 3 and small[2].value == 0.3


@pytest.mark.parametrize(
    'seg, behind',
    [
        ([0, 0, 1], [False, False, True, True]),
        ([0, -1, 1], [False, True, False, True]),
        ([0, -1, -1], [False, True, False, False]),
    ],
)
def test_a_value_is_read_behind_each_step(seg, behind):
    rows = dataclasses.replace(rows_of([1.0] * 4), seg=torch.tensor([seg]).expand(4, 3))
    assert step_ends(rows).mask.tolist() == [behind] * 4


def test_what_is_outside_of_a_row_has_no_advantage():
    short = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 1]]).bool()
    rows = rows_of([1.0, 0.0, 1.0, 0.0])
    rows = dataclasses.replace(rows, mask=short, seg=rows.seg.masked_fill(~short, -1))
    for stage in (sibling_advantages, sibling_grpo):
        adv = stage(rows.rewards, rows.group, rollouts=rows)
        assert adv[1, 2] == 0 and adv[1, 1] != 0


def test_the_beam_holds_the_best_of_the_deepest():
    tree = Tree()
    for value in (0.1, 0.5, 0.3):
        count_child(tree, tree.add(0, tokens=[1]), value)
    assert held_by_beam(tree, beam=2) == [2, 3] and held_by_beam(tree, beam=9) == [2, 3, 1]
    assert held_by_beam(Tree(), beam=2) == [0]


def test_the_first_node_counts_in_the_mean_of_its_level():
    tree = Tree()
    for value in (0.9, 0.2, 0.4):
        count_child(tree, tree.add(0, tokens=[1]), value)
    assert allowed_leaves(tree) == [1]


def test_the_bonus_is_that_of_the_visits_and_one():
    tree = Tree()
    for value in (0.8, 0.0, 0.4):
        count_child(tree, tree.add(0, tokens=[1]), value)
    for value in (0.5, 0.3):
        count_child(tree, tree.add(1, tokens=[2]), value)
    gap = math.sqrt(math.log(6)) * (1 / math.sqrt(2) - 1 / 2)
    assert guided_descent(tree, explore=0.39 / gap) == guided_descent(tree) == [4]
    assert guided_descent(tree, explore=0.41 / gap) == [3]


# with the policy


def forest_of(policy, items, **how):
    return GrowingForest(policy, items[:1], seed=0, room=None, **how)


def nothing(forest, places):
    return [0.0] * len(places)


@pytest.mark.parametrize('temperature, kept', [(0.5, 0.5), (0.0, 1.0)])
def test_beginnings_have_the_temperature_of_their_tree(policy, items, temperature, kept):
    forest = forest_of(policy, items, temperature=temperature)
    forest.trees[0].add(0, tokens=[5, 6])
    assert rows_to_places(forest, [(0, 1)]).temperature == kept


def test_noise_for_a_text_is_the_same_whatever_else_is_asked(policy, items):
    found = []
    for number, some in ((1, items[:2]), (0, items[1:2])):
        forest = GrowingForest(policy, some, seed=0, room=None)
        forest.trees[number].add(0, tokens=[5, 6])
        forest.trees[number].add(0, tokens=[6, 5])
        places = [(number, 1), (number, 2)]
        found.append(random_value(None, rows_to_places(forest, places), policy).tolist())
    assert found[0] == found[1] and found[0][0] != found[0][1]


def test_behind_an_end_there_is_no_doubt(policy, items):
    forest = forest_of(policy, items)
    for ended in (False, True):
        forest.trees[0].add(0, tokens=[5, 6], ended=ended)
    how = dict(places=[(0, 1), (0, 2)], value=lambda rows: torch.zeros(len(rows)))
    open_, ended = priorities(forest, **how)
    assert open_ > 0 == ended
    assert priorities(forest, **how, doubt=0.2)[0] == pytest.approx(2 * open_)


def test_a_budget_that_is_reached_ends_the_growth(policy, items):
    how = dict(beam=2, width=2, ends=())
    one = forest_of(policy, items)
    assert grow_guided(one, nothing, budget=1, **how) == [len(one.trees[0])]
    spent = tokens_drawn(one.trees[0])
    again = forest_of(policy, items)
    assert grow_guided(again, nothing, budget=spent, **how) == [5], 'no descent'
    assert tokens_drawn(again.trees[0]) == spent and len(again.trees[0]) == 5
    more = forest_of(policy, items)
    grow_guided(more, nothing, budget=spent + 1, **how)
    assert tokens_drawn(more.trees[0]) > spent


def test_missing_ends_come_from_the_best_leaves_and_then_from_the_root(policy, items):
    forest = forest_of(policy, items)
    tree = forest.trees[0]
    born = expand_nodes(forest, [(0, 0)], width=2, most=1)
    for (_, node), value in zip(born, (0.1, 0.9)):
        count_child(tree, node, value)
    finish_guided(forest, nothing, 1)
    assert tree.children(2) and not tree.children(1) and len(tree) == 4
    finish_guided(forest, nothing, 1)
    assert len(tree) == 4, 'none is missing'
    finish_guided(forest, nothing, 4)
    assert tree.children(1) and len(tree.children(0)) == 2 + 2
    lone = forest_of(policy, items)
    finish_guided(lone, nothing, 1)
    assert len(lone.trees[0]) == 2


def test_rows_that_are_finished_have_steps_as_others_have(policy, items):
    forest = forest_of(policy, items)
    semicolon = policy.tokenizer.convert_tokens_to_ids([';'])
    expand_nodes(forest, [(0, 0)], width=1, most=12, ends=semicolon)
    finish_guided(forest, nothing, 2, most=12, ends=semicolon)
    tree = forest.trees[0]
    ended = [i for i in tree.leaves if tree[i].ended]
    assert len(ended) == 2
    for leaf in ended:
        inner = [i for i in tree.path(leaf) if i and i != leaf]
        assert len(inner) == 2 and all(tree[i].tokens[-1] in semicolon for i in inner)
    plain = policy.sample(items[:1], 1, seed=0)
    assert tree.from_root(ended[0]) == plain.tokens[0, plain.mask[0]].tolist(), 'the same draws'


def test_copies_are_held_and_kept_once():
    tree = Tree()
    for tokens, value in (([1], 0.9), ([1], 0.8), ([2], 0.1)):
        count_child(tree, tree.add(0, tokens=tokens), value)
    assert held_by_beam(tree, beam=2) == [1, 2]
    assert held_by_beam(tree, beam=2, copies=False) == [1, 3]
    longer = tree.add(2, tokens=[7], ended=True)
    other = tree.add(1, tokens=[7], ended=True)
    count_child(tree, longer, 0.2)
    count_child(tree, other, 0.7)
    assert best_ends(tree, 2, copies=False) == [longer, other], 'a copy only where none is left'
    assert best_ends(tree, 2) == [other, longer]
    assert allowed_leaves(tree, copies=False) == []


def test_what_was_done_is_counted(policy, items, monkeypatch):
    monkeypatch.setattr(module, 'in_order', lambda tree, leaves: tree)
    seen = []
    monkeypatch.setattr(module, 'rows_of_trees', seen.append)
    forest = GrowingForest(policy, items, seed=0, room=None)
    how = dict(beam=2, width=2, budget=60, ends=())
    _, counts = guided_rows(forest, nothing, 2, **how)
    assert counts['pieces'] == sum(len(tree) - 1 for tree in forest.trees)
    ended = sum(tree[i].ended for tree in forest.trees for i in tree.leaves)
    assert counts['ended'] == ended and counts['left_out'] == ended - 2 * len(items) > 0
    assert counts['tokens'] == sum(map(tokens_drawn, forest.trees))


@pytest.mark.parametrize('group, beam', [(1, 1), (4, 1), (8, 2), (20, 5)])
def test_beam_and_budget_follow_the_group(policy, items, monkeypatch, group, beam):
    given = {}

    def noted(forest, evaluate, group, **how):
        given.update(how, group=group)
        return None, None

    monkeypatch.setattr(module, 'guided_rows', noted)
    sampler = value_guided_rollouts(**STEP)
    sampler(policy, items, group, seed=0)
    assert (given['beam'], given['budget']) == (beam, 2 * 12 * group)
    sampler(policy, items, seed=0)
    assert given['group'] == 1


@pytest.mark.parametrize('budget', [6, 60, None])
def test_one_child_each_is_plain_sampling(policy, items, budget):
    lone = value_guided_rollouts(beam=6, width=1, budget=budget, value=random_value, **STEP)
    rows, plain = lone(policy, items, 6, seed=2), policy.sample(items, 6, seed=2)
    assert torch.equal(rows.tokens, plain.tokens) and rows.texts == plain.texts


def test_without_its_knobs_training_is_that_of_grpo(policy):
    plain = use(value_guided_rollouts, beam=4, width=1, **STEP)
    off = recipe('vstar', prompts=2, group=4, lr=2e-4)
    off = off.but(sampler=plain, advantage=use(sibling_grpo, weight=0.0))
    ends = []
    for made in (off, recipe('grpo', prompts=2, group=4, lr=2e-4)):
        learner = policy.clone()
        train(learner, task('countdown'), made, steps=1, seed=3)
        ends.append(weights_of(learner))
    assert torch.equal(*ends) and not torch.equal(ends[0], weights_of(policy))


def test_rows_are_draws_with_their_log_probabilities(policy, items, drawn):
    with torch.no_grad():
        logp, _ = policy.logprobs(drawn)
    assert (logp - drawn.logp_behave)[drawn.mask].abs().max() < 1e-4
    assert torch.bincount(drawn.prompt).tolist() == [8, 8, 8]
    assert torch.equal(drawn.traj, torch.arange(24)) and (drawn.parent >= 0).sum() > 4
    for row in (drawn.parent >= 0).nonzero()[:, 0].tolist():
        parent, fork = int(drawn.parent[row]), int(drawn.fork_at[row])
        assert parent < row and drawn.prompt[parent] == drawn.prompt[row]
        assert torch.equal(drawn.tokens[row, :fork], drawn.tokens[parent, :fork])
    alone = value_guided_rollouts(**STEP)(policy, items[1:2], 8, seed=0)
    assert alone.texts == drawn.texts[8:16], "other problems do not matter"


def test_the_network_learns_and_its_values_lead(policy, items, drawn):
    sampler = value_guided_rollouts(**STEP)
    sampler(policy, items, 8, seed=0)
    assert sampler.counts['tokens'] >= sampler.counts['in_tree'] > 0
    first = []
    for _ in range(4):
        sampler.update(drawn)
        first.append(sampler.losses[0])
    assert first[-1] < 0.5 * first[0] and len(sampler.losses) == 4
    taught = sampler(policy, items, 8, seed=0)
    assert taught.texts != drawn.texts, "the same noise, and other rows come back"
    states = step_ends(drawn)
    assert (states.mask.sum(1) == drawn.seg.amax(1) + 1).all()
    copy = value_guided_rollouts(**STEP)
    copy.load_state_dict(sampler.state_dict())
    assert copy(policy, items, 8, seed=1).texts == sampler(policy, items, 8, seed=1).texts
    unscored = dataclasses.replace(drawn, rewards=torch.full((24,), float('nan')))
    sampler.update(unscored)
    assert sampler.losses == [], "nothing is learnt from rows without a score"


@pytest.mark.parametrize(
    'bad, said',
    [
        (dict(value=None), 'the value is None, wanted a function'),
        (dict(beam=0), 'beam is 0'),
        (dict(width=0), 'width is 0'),
        (dict(every=0), 'every is 0'),
        (dict(budget=3), 'a budget of 3 tokens is below the group of 4 rows'),
        (dict(ends=('two words',)), "'two words' is no token"),
        (dict(value=lambda critic, rows, policy: torch.zeros(1)), 'what the value gives has shape'),
        (dict(value=lambda critic, rows, policy: torch.full((len(rows),), math.inf)), 'not finite'),
    ],
)
def test_bad_settings_are_answered(policy, items, bad, said):
    with pytest.raises(ValueError, match=said):
        value_guided_rollouts(**bad)(policy, items, 4, seed=0)


def weights_of(learner):
    return torch.cat([p.detach().flatten() for p in learner.model.parameters()])


def test_a_run_goes_on_bit_for_bit_with_its_network(policy, tmp_path):
    made = recipe('vstar', prompts=2, group=4, lr=2e-4)
    ends = []
    for parts, path in (((1, 3), tmp_path / 'run'), ((3,), None)):
        for steps in parts:
            learner = policy.clone()
            train(learner, task('countdown'), made, steps=steps, seed=0, path=path)
        ends.append(weights_of(learner))
    assert torch.equal(*ends)


def test_it_trains_another_policy_than_its_relatives(policy):
    ends = {}
    for name in ('grpo', 'vstar', 'vstar_group', 'vstar_random_value'):
        learner = policy.clone()
        made = recipe(name, prompts=3, group=6, lr=2e-4)
        train(learner, task('countdown'), made, steps=2, seed=0)
        ends[name] = weights_of(learner)
    come = (ends['vstar'] - weights_of(policy)).norm()
    for name in set(ends) - {'vstar'}:
        assert (ends[name] - ends['vstar']).norm() > 0.05 * come, name
