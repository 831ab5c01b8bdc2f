"""rStar-Math and BFS-Prover-V2: numbers by hand, plain draws, memory that goes on."""

import math
from itertools import combinations_with_replacement, product
from types import SimpleNamespace

import pytest
import torch

from conftest import weights
from rl4llm.advantages.critic import TokenScorer
from rl4llm.core.policy import Policy
from rl4llm.core.registry import recipe, stages, use
from rl4llm.core.rollouts import ORIGINS, make_rollouts
from rl4llm.core.signals import scored
from rl4llm.rollouts.archives import Archive
from rl4llm.rollouts.deep_search import GrowingForest, end_ids, quality, uct_descent
from rl4llm.rollouts.self_evolution import (
    add_up,
    arbitrary_plan,
    as_judged,
    best_first,
    best_first_score,
    best_first_traces,
    best_traces,
    by_coin,
    chance_score,
    dealt_value,
    found_pairs,
    guided_values,
    imitated_rows,
    judged_ends,
    mcts_strategy,
    middle_steps,
    new_states,
    pair_loss,
    planned_search,
    right_ends,
    rollout_place,
    rstar_traces,
    scores_of,
    solution_plan,
    step_pairs,
    tokens_for,
)
from rl4llm.rollouts.tree import Tree, search
from rl4llm.rollouts.value_guided import learned_value, rows_to_places, tokens_drawn
from rl4llm.tasks import task
from rl4llm.tasks.countdown import puzzle_of
from rl4llm.tasks.protocol import Item
from rl4llm.training.checkpoints import pack_stages, unpack_stages
from rl4llm.training.loop import train

STEP = dict(ends=(';',))
EASY = task('countdown', level='easy')


@pytest.fixture(scope='module')
def policy():
    return Policy.load('tiny')


@pytest.fixture(scope='module')
def items():
    return EASY.sample(4, seed=2, split='test')


@pytest.fixture(scope='module')
def searched(policy, items):
    forest = GrowingForest(policy, items, seed=0)
    search(forest, mcts_strategy(120, ends=end_ids(policy, (';',))))
    return forest


def grown(*steps):
    "A tree of (parent, ended) nodes, a token each, told nothing."
    tree = Tree()
    for number, (parent, ended) in enumerate(steps):
        tree.add(parent, tokens=[number], logp=[-1.0], ended=ended)
    return tree


def told(tree, **values):
    for node, value in values.items():
        add_up(tree, int(node[1:]), value)
    return tree


# Monte Carlo search


def test_an_end_is_told_to_its_way_and_an_estimate_to_itself():
    tree = told(grown((0, False), (1, True), (1, False)), n2=1.0, n3=-0.25)
    assert [tree[i].value for i in (0, 1, 2)] == [1.0, 1.0, 1.0] and tree[3].value == -0.25
    assert [node.visits for node in tree.nodes] == [1, 1, 1, 1]
    add_up(tree, 2, math.nan)
    assert tree[2].visits == 1


def test_a_rollout_goes_on_below_and_the_next_begins_at_the_root():
    assert rollout_place(Tree()) == [0]
    tree = grown((0, True), (0, False), (0, False))
    assert rollout_place(tree) == [2], "of equals the first that is open"
    told(tree, n2=-0.5, n3=0.5)
    assert rollout_place(tree) == [3]
    below = [tree.add(3, tokens=[9], ended=True) for _ in range(2)]
    for end in below:
        add_up(tree, end, -1.0)
    assert rollout_place(tree) == uct_descent(tree, c=2.0) == [2]
    tree[2].ended = True
    assert rollout_place(tree) == []


def test_a_sibling_with_a_bad_name_is_left_for_one_without_a_visit():
    tree = grown((0, False), (0, False), (0, False), (1, True), (1, True))
    told(tree, n4=-1.0, n5=-1.0)
    assert rollout_place(tree) == [2]
    assert quality(tree, 1) == -1 and quality(tree, 2) == 0


def test_what_was_cut_off_says_nothing(policy, items):
    forest = GrowingForest(policy, items[:1], seed=0)
    whole = [policy.eos]
    for tokens in (whole, [9], [9]):
        forest.trees[0].add(0, tokens=tokens, logp=[-1.0], ended=True)
    forest.trees[0][3].ended = False
    values = judged_ends(forest, [(0, 1), (0, 2), (0, 3)])
    assert values[0] == -1 and all(map(math.isnan, values[1:]))
    led = guided_values(forest, [(0, 1), (0, 3)], value=lambda rows: torch.full((len(rows),), 0.5))
    assert led == [-1, pytest.approx(math.tanh(0.5))]
    assert math.isnan(guided_values(forest, [(0, 3)])[0])


def test_sums_and_visits_are_those_of_the_ends(searched):
    for tree in searched.trees:
        ends = [i for i in tree.leaves if tree[i].visits]
        assert tree[0].visits == len(ends)
        assert tree[0].value == sum(tree[i].value for i in ends)
        assert tokens_drawn(tree) >= 120 or rollout_place(tree) == []


def test_a_value_is_asked_of_what_is_open_alone(policy, items):
    forest = GrowingForest(policy, items[:2], seed=0)

    def half(rows):
        return torch.full((len(rows),), 0.5)

    search(forest, mcts_strategy(100, ends=end_ids(policy, (';',)), value=half))
    for tree in forest.trees:
        first = tree.children(0)
        begun = [i for i in range(1, len(tree)) if not tree[i].ended]
        assert set(first) & set(begun)
        for node in begun:
            ends = [i for i in tree.leaves if tree[i].visits and tree[i].ended]
            below = [tree[i].value for i in ends if node in tree.path(i)]
            assert tree[node].value == pytest.approx(math.tanh(0.5) + sum(below))
            assert tree[node].visits == 1 + len(below)


# traces and pairs


def test_traces_by_mean_then_by_the_worst_step_each_text_once():
    tree = grown((0, False), (0, False), (1, True), (1, True), (2, True), (2, True))
    told(tree, n3=1, n4=-1, n5=1, n6=1)
    assert right_ends(tree) == [3, 5, 6] and best_traces(tree, keep=3) == [5, 6, 3]
    tree[6].tokens = list(tree[5].tokens)
    assert best_traces(tree, keep=3) == [5, 3] and best_traces(tree, keep=1) == [5]
    assert best_traces(grown((0, True))) == []


def test_of_equal_means_the_better_worst_step():
    tree = grown((0, False), (0, False), (1, True), (2, True))
    for node, value in ((1, 0.0), (2, 0.5), (3, 1.0), (4, 0.5)):
        tree[node].value, tree[node].visits = value, 1
    assert best_traces(tree) == [4, 3]


def two_sided(values):
    "Steps below the root, each with one end of this verdict behind it."
    tree = Tree()
    for number, _ in enumerate(values):
        tree.add(0, tokens=[number], logp=[-1.0])
    for number, value in enumerate(values):
        add_up(tree, tree.add(number + 1, tokens=[0], logp=[-1.0], ended=True), value)
    return tree


@pytest.mark.parametrize('right, wrong', list(product((1, 2, 3, 5), (1, 2, 3, 5))))
def test_how_many_of_a_side(right, wrong):
    tree = two_sided([1] * right + [-1] * wrong)
    pairs = step_pairs(tree)
    chosen = min(right, 4 if wrong == 1 else 2)
    rejected = min(wrong, 4 if right == 1 else 2)
    assert len(pairs) == chosen * rejected
    assert {pair.weight for pair in pairs} == {1 / (chosen * rejected)}
    assert {pair.margin for pair in pairs} == {2}


def test_pairs_need_a_gap_other_words_and_a_better_way_on():
    tree = two_sided([1, -1])
    assert not step_pairs(tree, gap=2.5) and len(step_pairs(tree, gap=2.0)) == 1
    tree[2].tokens = list(tree[1].tokens)
    assert not step_pairs(tree)
    assert not step_pairs(two_sided([1, 1])) and not step_pairs(Tree())
    tree = two_sided([1, -1])
    tree[3].value = -5.0  # the way on is worse, whatever the step itself
    tree[3].ended = True
    assert not step_pairs(tree)


def test_the_loss_and_its_slope_by_hand():
    chosen, rejected = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 0.0])
    weight = torch.tensor([1.0, 0.25])
    chosen.requires_grad_(), rejected.requires_grad_()
    loss = pair_loss(chosen, rejected, weight)
    by_hand = math.log(1 + math.exp(-0.5)) + 0.25 * math.log(1 + math.exp(2.0))
    assert loss.item() == pytest.approx(by_hand, rel=1e-6)
    loss.backward()
    slope = [-1 / (1 + math.exp(0.5)), -0.25 / (1 + math.exp(-2.0))]
    assert chosen.grad.tolist() == pytest.approx(slope, rel=1e-6)
    assert rejected.grad.tolist() == pytest.approx([-x for x in slope], rel=1e-6)


def test_sides_are_those_of_the_pairs_or_tossed(searched, policy):
    pairs, tossed = found_pairs(searched), found_pairs(searched, swap=by_coin)
    count = len(pairs.weight)
    assert count > 3 and pairs.chosen.tolist() == list(range(count))
    turned = tossed.chosen >= count
    assert 0 < turned.sum() < count
    assert torch.equal(tossed.chosen + tossed.rejected, pairs.chosen + pairs.rejected)
    again = found_pairs(searched, swap=by_coin)
    assert torch.equal(again.chosen, tossed.chosen)
    assert not as_judged(torch.rand(5)).any()
    k = next(k for k, tree in enumerate(searched.trees) if step_pairs(tree))
    first = step_pairs(searched.trees[k])[0]
    said = searched.trees[k].from_root(first.chosen)
    assert pairs.rows.tokens[0, : len(said)].tolist() == said
    assert found_pairs(SimpleNamespace(trees=[Tree()])) is None


def test_pairs_of_a_forest_weigh_what_those_of_its_trees_weigh(searched):
    by_tree = [pair.weight for tree in searched.trees for pair in step_pairs(tree)]
    assert len(set(by_tree)) > 1 and max(by_tree) < 1
    assert found_pairs(searched).weight.tolist() == pytest.approx(by_tree)


def test_dealt_values_are_the_same_numbers_in_each_problem(searched, policy):
    critic = TokenScorer(lr=1e-2)
    pairs = found_pairs(searched)
    for _ in range(2):
        critic.step(pair_loss(*scores_of(critic, pairs, policy), pairs.weight))
    places = [(k, i) for k in (1, 0) for i in range(1, 7)]
    rows = rows_to_places(searched, places)
    plain, dealt = learned_value(critic, rows, policy), dealt_value(critic, rows, policy)
    for part in (slice(0, 6), slice(6, 12)):
        assert torch.equal(plain[part].sort().values, dealt[part].sort().values)
    assert not torch.equal(plain, dealt)
    alone = dealt_value(critic, rows_to_places(searched, places[:6]), policy)
    assert torch.allclose(alone, dealt[:6], atol=1e-5)


# rows


def test_rows_are_right_and_replayed(policy, items):
    rows = rstar_traces(**STEP)(policy, items, 8, seed=0)
    rows = scored(policy, rows, use('correct'))
    assert (rows.origin == ORIGINS.index('replay')).all() and not rows.sampled.any()
    assert rows.prompt.unique().tolist() == [0, 1, 2, 3] and len(rows) <= 8
    several = [k for k in range(4) if (rows.prompt == k).sum() == 2]
    assert several and all((rows.rewards[rows.prompt == k] == 1).all() for k in several)
    with torch.no_grad():
        logp, _ = policy.logprobs(rows)
    assert (logp - rows.logp_behave)[rows.mask].abs().max() < 1e-4


@pytest.mark.parametrize('keep', (1, 3))
def test_as_many_rows_as_are_kept(policy, items, keep):
    rows = rstar_traces(keep=keep, **STEP)(policy, items, 8, seed=0)
    counts = rows.prompt.bincount()
    assert counts.max() == keep and counts.min() >= 1


def test_gap_and_swap_reach_the_pairs(policy, items):
    def pairs_of(**how):
        sampler = rstar_traces(**how, **STEP)
        sampler(policy, items[:2], 8, seed=0)
        return sampler.pairs

    plain, tossed = pairs_of(), pairs_of(swap=by_coin)
    assert len(plain.weight) > 3 and pairs_of(gap=2.5) is None, 'no margin is above two'
    assert torch.equal(plain.rows.tokens, tossed.rows.tokens)
    assert not torch.equal(plain.chosen, tossed.chosen)


def test_a_tree_without_an_end_gives_one_that_is_drawn(policy, items):
    forest = GrowingForest(policy, items[:2], seed=3)
    forest.trees[1].add(0, tokens=[9, policy.eos], logp=[-1.0, -1.0], ended=True)
    rows = imitated_rows(forest, [[], []])
    assert len(rows) == 2 and rows.prompt.tolist() == [0, 1]
    assert rows.texts[0] == policy.sample(items[:2], 1, seed=3).texts[0]


@pytest.mark.parametrize('seed', (4, 5))
def test_with_one_child_it_is_a_draw(policy, items, seed):
    plain = policy.sample(items, 1, seed=seed)
    how = dict(width=1, budget=300, **STEP)
    for rows in (
        best_first_traces(policy, items, 1, seed=seed, **how),
        rstar_traces(**how)(policy, items, 1, seed=seed),
    ):
        assert rows.texts == plain.texts
        assert torch.allclose(rows.logp_behave, plain.logp_behave, atol=1e-4)


def test_other_problems_beside_it_change_nothing(policy, items):
    for sampler in (best_first_traces, rstar_traces(**STEP)):
        how = {} if hasattr(sampler, 'update') else STEP
        every = sampler(policy, items, 6, seed=1, **how)
        alone = sampler(policy, items[2:3], 6, seed=1, **how)
        texts = [t for t, k in zip(every.texts, every.prompt.tolist()) if k == 2]
        assert list(alone.texts) == texts


# best first


def test_scores_by_hand():
    tree = grown((0, False), (1, False))
    tree[1].logp, tree[2].logp = [-1.0, -3.0], [-0.5]
    score = best_first_score
    assert score(tree, 2, power=0, within=0) == -4.5, "the log-probability of the beginning"
    assert score(tree, 2, power=1, within=0) == -2.25
    assert score(tree, 2) == (-2.0 - 0.5) / 4 and score(tree, 1) == -2.0
    assert -1 < chance_score(tree, 2) < 0 and chance_score(tree, 2) == chance_score(tree, 2)
    assert chance_score(tree, 1) != chance_score(tree, 2)


def test_the_best_open_node_without_closed_ones():
    tree = grown((0, False), (0, False), (0, False), (0, True))
    for node, value in ((1, -0.5), (2, -math.inf), (3, -0.2), (4, 1.0)):
        tree[node].value = value
    assert best_first(tree) == [3] and best_first(tree, width=9) == [3, 1]
    assert best_first(Tree()) == [0]


def test_a_state_is_searched_once_and_a_false_step_never(policy):
    item = Item('countdown', ((2, 3, 4, 5), 25, 99, '+-*'))
    forest = GrowingForest(policy, [item], seed=0)
    words = ('2 + 3 = 5 ;', '3 + 2 = 5 ;', '2 + 3 = 6 ;', '4 * 5 = 20 ;')
    for text in words:
        ids = policy.tokenizer(text, add_special_tokens=False)['input_ids']
        forest.trees[0].add(0, tokens=ids, logp=[-1.0] * len(ids))
    places = [(0, i) for i in range(1, 5)]
    values = new_states(forest, places, archives=[Archive(item)], score=best_first_score)
    assert values == [-1.0, -math.inf, -math.inf, -1.0]


def test_it_stops_at_the_first_right_end(policy, items):
    rows = best_first_traces(policy, items, 8, seed=0, **STEP)
    assert rows.prompt.tolist() == [0, 1, 2, 3]
    rows = scored(policy, rows, use('correct'))
    assert rows.rewards.sum() >= 3


# steps of middling surprise


def step_rows(surprise):
    "A row with a step of two tokens for each number."
    t = 2 * len(surprise)
    one = torch.ones(1, 1)
    logp = -torch.tensor(surprise).repeat_interleave(2)[None]
    return make_rollouts(
        prompt_ids=one.long(),
        prompt_mask=one.bool(),
        tokens=torch.ones(1, t).long(),
        prompt=torch.zeros(1).long(),
        mask=torch.ones(1, t).bool(),
        logp_behave=logp,
        seg=torch.arange(len(surprise)).repeat_interleave(2)[None],
    )


def test_the_lowest_and_the_highest_weigh_nothing():
    rows = step_rows([0.1, 5.0, 1.0, 2.0, 3.0])
    weight, keep = middle_steps(rows, torch.ones(1, 10), low=0.2, high=0.8)
    assert keep.all() and weight[0, ::2].tolist() == [0, 0, 1, 1, 1]
    assert torch.equal(weight[0, ::2], weight[0, 1::2]), "a step is weighed as a whole"
    weight, _ = middle_steps(rows, torch.ones(1, 10), low=0.0, high=1.0)
    assert (weight == 1).all()
    weight, keep = middle_steps(rows, torch.zeros(1, 10))
    assert not keep.any()


def test_rows_that_leave_are_not_asked():
    rows = step_rows([1.0, 2.0, 3.0])
    both = make_rollouts(
        prompt_ids=rows.prompt_ids,
        prompt_mask=rows.prompt_mask,
        tokens=rows.tokens.repeat(2, 1),
        prompt=torch.zeros(2).long(),
        mask=rows.mask.repeat(2, 1),
        logp_behave=torch.cat([rows.logp_behave, rows.logp_behave - 100]),
        seg=rows.seg.repeat(2, 1),
    )
    adv = torch.tensor([[1.0], [0.0]]).expand(2, 6)
    weight, keep = middle_steps(both, adv, low=0.3, high=0.7)
    assert keep.tolist() == [True, False] and weight[0, ::2].tolist() == [0, 1, 0]


# plans


def test_plans_are_plays_and_solutions_lead_to_the_target(items):
    for item, attempt in product(items, range(3)):
        target = puzzle_of(item).target
        states = solution_plan(item, attempt)
        assert states[0] == tuple(sorted(puzzle_of(item).numbers)) and states[-1] == (target,)
        assert [len(state) for state in states] == [3, 2, 1]
        assert solution_plan(item, attempt) == states
    assert any(arbitrary_plan(item)[-1] != (puzzle_of(item).target,) for item in items)
    assert len({str(arbitrary_plan(items[0], number)) for number in range(6)}) > 1


def test_the_search_goes_on_behind_what_the_cache_has(policy):
    problems = task('countdown').sample(3, seed=3)
    forest = GrowingForest(policy, problems, seed=1)
    how = dict(budget=250, ends=end_ids(policy, (';',)))
    archives = planned_search(forest, solution_plan, **how)
    for tree, archive, item in zip(forest.trees, archives, problems):
        plan = solution_plan(item)
        reached = [archive.cells[s, False].node for s in plan if (s, False) in archive.cells]
        assert reached[0] == 0
        for node in range(reached[-1] + 1, len(tree)):
            if tree[node].parent > reached[-1]:
                assert reached[-1] in tree.path(node)
    bare = GrowingForest(policy, problems, seed=1)
    planned_search(bare, None, provers=1, **how)
    plain = best_first_traces(policy, problems, 1, seed=1, budget=250, **STEP)
    found = [bool(right_ends(tree)) for tree in bare.trees]
    right = scored(policy, plain, use('correct')).rewards > 0
    assert found == right.tolist(), "one prover without a plan is best first"


@pytest.mark.parametrize('plans', (1, 3))
def test_behind_dead_subgoals_every_plan_is_asked_and_then_all_is_searched(policy, plans):
    numbers = ((2, 3, 4), (5, 7, 11))
    hopeless = [Item('countdown', (these, 97, 99, '+-*')) for these in numbers]
    one_step_on = list(combinations_with_replacement(range(100), 2))
    asked = {item.key: [] for item in hopeless}

    def last_that_was_reached(item, attempt):
        asked[item.key].append(attempt)
        return one_step_on

    forest = GrowingForest(policy, hopeless, seed=1)
    how = dict(budget=2000, ends=end_ids(policy, (';',)))
    planned_search(forest, last_that_was_reached, plans=plans, **how)
    for tree, item in zip(forest.trees, hopeless):
        assert list(dict.fromkeys(asked[item.key])) == list(range(plans))
        assert tokens_drawn(tree) < 2000 and best_first(tree) == [], 'nothing is left open'
        searched = [i for i in tree.children(0) if tree.children(i)]
        assert len(searched) > 1, 'nor was it all below one subgoal'


# memory


def test_the_first_call_is_led_by_ends_and_later_ones_by_the_network(policy, items):
    sampler = rstar_traces(**STEP)
    assert sampler.guide(policy) is None
    sampler.update(sampler(policy, items, 8, seed=0))
    assert sampler.guide(policy) is not None and len(sampler.losses) == sampler.epochs
    assert sampler.losses[-1] < sampler.losses[0]
    plain, tensors = pack_stages(dict(sampler=sampler))
    twin = rstar_traces(**STEP)
    unpack_stages(dict(sampler=twin), plain, tensors)
    ours, theirs = (one(policy, items, 8, seed=9) for one in (sampler, twin))
    assert ours.texts == theirs.texts and torch.equal(ours.logp_behave, theirs.logp_behave)
    fresh = rstar_traces(**STEP)(policy, items, 8, seed=9)
    assert fresh.texts != ours.texts, 'the network has led the search elsewhere'


def test_a_taught_network_is_asked_at_each_open_node(policy, items):
    asked = []

    def noted(critic, rows, policy):
        asked.append((critic, len(rows)))
        return learned_value(critic, rows, policy)

    sampler = rstar_traces(value=noted, **STEP)
    sampler.update(sampler(policy, items[:2], 8, seed=0))
    assert not asked
    sampler(policy, items[:2], 8, seed=9)
    assert asked and all(critic is sampler.critic for critic, _ in asked)


def test_the_network_learns_from_the_pairs_by_their_weights(policy, items):
    sampler = rstar_traces(**STEP)
    rows = sampler(policy, items[:2], 8, seed=0)
    pairs = sampler.pairs
    twin = TokenScorer(lr=1e-3)
    first = pair_loss(*scores_of(twin, pairs, policy), pairs.weight).item()
    unweighed = pair_loss(*scores_of(twin, pairs), torch.ones_like(pairs.weight)).item()
    sampler.update(rows)
    assert sampler.losses[0] == pytest.approx(first, rel=1e-5)
    assert first < 0.9 * unweighed


def test_without_pairs_nothing_is_learnt(policy):
    hopeless = [Item('countdown', ((1, 1, 1, n), 99, 99, '+-*')) for n in (1, 2)]
    sampler = rstar_traces(**STEP)
    rows = sampler(policy, hopeless, 2, seed=0)
    assert len(rows) == 2 and sampler.pairs is None
    sampler.update(rows)
    assert sampler.taught == 0 and not sampler.losses and sampler.guide(policy) is None


def test_recipes_train_apart_from_parent_and_placebo(policy):
    names = ('expert_iteration', 'bfs_prover', 'bfs_prover_unfiltered', 'bfs_prover_random')
    start = weights(policy)
    ends = {}
    for name in names:
        learner = policy.clone()
        train(learner, 'countdown', recipe(name, prompts=8, group=12, lr=2e-4), steps=1, seed=0)
        ends[name] = weights(learner)
        assert not torch.equal(ends[name], start), name
    for name in names[:1] + names[2:]:
        assert not torch.equal(ends[name], ends['bfs_prover']), name


def test_what_they_say_of_themselves():
    for name, paper in (('rstar_traces', 49), ('best_first_traces', 73)):
        info = stages('sampler')[name]
        assert info.paper == paper and 'no one policy' in info.draws
    assert recipe('rStar-Math') == recipe('rstar') and recipe('BFS-Prover-V2').paper == 73
    assert set(recipe('rstar').diff()) == {'sampler'}
    assert set(recipe('bfs_prover').diff()) == {'sampler', 'select'}


# bad input


@pytest.mark.parametrize(
    'made, said',
    [
        (dict(value=None), 'the value model is None, wanted a function of a network'),
        (dict(width=0), 'rstar_traces: width is 0, wanted a whole number of at least 1'),
        (dict(keep=0), 'rstar_traces: keep is 0'),
        (dict(budget=0), 'rstar_traces: budget is 0'),
        (dict(gap='wide'), 'gap'),
        (dict(lr=-1), 'rstar_traces: lr is -1, wanted a finite number of at least 0'),
        (dict(swap=None), 'rstar_traces: swap is None, wanted a function of a number'),
        (dict(c=math.nan), 'rstar_traces: c is nan'),
    ],
)
def test_one_sentence_says_what_is_wrong(made, said):
    with pytest.raises(ValueError, match=said):
        rstar_traces(**made)


def test_more_of_them(policy, items):
    with pytest.raises(ValueError, match='mcts_strategy: c is nan, wanted a finite number'):
        mcts_strategy(100, c=math.nan)
    with pytest.raises(ValueError, match='best_first_score: node 0 is the root'):
        best_first_score(Tree(), 0)
    below = 'a budget of 3 tokens is below the group of 4 rows'
    with pytest.raises(ValueError, match=f'rstar_traces: {below}'):
        rstar_traces(budget=3)(policy, items, 4, seed=0)
    with pytest.raises(ValueError, match=f'best_first_traces: {below}'):
        best_first_traces(policy, items, 4, seed=0, budget=3)
    with pytest.raises(ValueError, match='group is 0'):
        tokens_for('it', None, 0, 12)
    with pytest.raises(ValueError, match='whose answers nobody can verify'):
        best_first_traces(policy, ['1 2 3'], 1, seed=0)
    with pytest.raises(ValueError, match='is no token of'):
        best_first_traces(policy, items, 1, seed=0, ends=('two words',))
    with pytest.raises(ValueError, match='wanted 0 <= low <= high'):
        middle_steps(step_rows([1.0]), torch.ones(1, 2), low=0.9, high=0.1)
    with pytest.raises(ValueError, match='rejected scores'):
        pair_loss(torch.zeros(2), torch.zeros(1), torch.zeros(2))
    with pytest.raises(ValueError, match='has no solution'):
        solution_plan(Item('countdown', ((1, 1), 99, 99, '+-*')))
    with pytest.raises(ValueError, match='wanted a Countdown problem'):
        solution_plan(task('modular').sample(1, seed=0)[0])
    with pytest.raises(ValueError, match='planned_search: provers is 0'):
        planned_search(GrowingForest(policy, items, seed=0), None, budget=9, provers=0)
