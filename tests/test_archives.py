"""Archives of reached states: cells, rounds, novelty, emitters, and the rows they train on."""

import dataclasses
import json
import math
from functools import partial

import pytest
import torch

from conftest import weights
from rl4llm.core.policy import Policy
from rl4llm.core.registry import recipe, stages, use
from rl4llm.core.rollouts import ORIGINS
from rl4llm.rollouts import archives as module
from rl4llm.rollouts.archives import (
    Archive,
    Cell,
    StateSpace,
    archived_rows,
    by_chance,
    by_count,
    by_novelty,
    count_weight,
    countdown_cell,
    countdown_descriptor,
    coverage,
    even_weight,
    explore,
    explore_nodes,
    from_the_start,
    lock_cell,
    lock_descriptor,
    no_novelty,
    novelty,
    rows_of_archives,
    state_space_of,
    text_cell,
    text_descriptor,
)
from rl4llm.rollouts.tree import Forest, Meter, Tree
from rl4llm.tasks import task
from rl4llm.tasks.countdown import all_solutions, demonstrate_countdown
from rl4llm.tasks.protocol import Item
from rl4llm.training.checkpoints import pack_stages, unpack_stages
from rl4llm.training.loop import train

PUZZLE = Item('countdown', ((2, 3, 4, 5), 25, 99, '+-*'))
LOCK = Item('lock', ('dmt', 'mdt', 60))
RIGHT = '5 * 4 = 20 ; 2 + 3 = 5 ; 20 + 5 = 25'


@pytest.fixture(scope='module')
def policy():
    return Policy.load('tiny')


@pytest.fixture(scope='module')
def items():
    return task('countdown', level='easy').sample(4, seed=2, split='test')


# states


@pytest.mark.parametrize(
    'text, left',
    [
        ('', (2, 3, 4, 5)),
        ('2 + 3 = 5', (4, 5, 5)),
        ('2 + 3 = 5 ;', (4, 5, 5)),
        ('2 + 3 = 5 ; 4 * 5 =', (4, 5, 5)),
        ('2 + 3 = 5 ; 4 * 5 = 2', (4, 5, 5)),  # the result is not written to its end
        ('2 + 3 = 5 ; 4 * 5 = 20', (5, 20)),
        ('2 + 3 = 6 ; 4 * 5 = 20', (2, 3, 4, 5)),  # nothing counts behind an illegal step
        ('9 + 3 = 12', (2, 3, 4, 5)),
        (RIGHT, (25,)),
        ('<answer> 2 + 3 = 5 ;', (4, 5, 5)),
        (f'<answer> {RIGHT} </answer>', (25,)),
    ],
)
def test_cell_of_a_countdown_text(text, left):
    assert countdown_cell(PUZZLE, text) == left
    assert countdown_cell(PUZZLE, text.replace(' ; ', '\n')) == left


def test_every_beginning_of_a_solution_has_the_cell_of_its_steps():
    steps = demonstrate_countdown(PUZZLE, seed=1).split(' ; ')
    for n in range(len(steps) + 1):
        cell = countdown_cell(PUZZLE, ' ; '.join(steps[:n]))
        assert len(cell) == 4 - n


def test_cell_of_a_lock_and_of_any_other_text():
    assert lock_cell(LOCK, '') == () and lock_cell(LOCK, ' t  m ') == ('t', 'm')
    assert lock_cell(LOCK, 't x m') == ('t',) and lock_cell(LOCK, 'tm') == ()
    assert text_cell(None, ' a  b\n c') == 'a b c'
    assert state_space_of(Item('modular', ())).cell is text_cell
    for space, item, right in (
        (countdown_cell, LOCK, 'a Countdown'),
        (lock_cell, PUZZLE, 'a lock'),
    ):
        with pytest.raises(ValueError, match=f'wanted {right}'):
            space(item, '')


def test_descriptors():
    assert countdown_descriptor(PUZZLE, RIGHT) == [5 / 99, 20 / 99, 25 / 99, 2 / 3, 0, 1 / 3]
    assert countdown_descriptor(PUZZLE, '2 + 3 = 6') == [0.0] * 6
    swapped = '2 + 3 = 5 ; 4 * 5 = 20 ; 5 + 20 = 25'
    assert countdown_descriptor(PUZZLE, swapped) == countdown_descriptor(PUZZLE, RIGHT)
    assert lock_descriptor(LOCK, 't m d') == [0, 0, 1, 0, 1, 0, 1, 0, 0]
    assert lock_descriptor(LOCK, 't') == [0, 0, 1] + [0] * 6
    assert text_descriptor(None, 'ab ba') == text_descriptor(None, 'a\na bb')
    kinds = text_descriptor(None, 'ab bb')  # 'a' and 'b' are signs 97 and 98
    assert (len(kinds), kinds[97 % 64], kinds[98 % 64], sum(kinds)) == (64, 1 / 4, 3 / 4, 1)
    assert max(text_descriptor(None, 'a')) == 1
    assert sum(text_descriptor(None, 'abc')) == pytest.approx(1) and not any(
        text_descriptor(None, '')
    )


# the archive


def test_new_better_known():
    archive = Archive(PUZZLE)
    assert archive.cells == {((2, 3, 4, 5), False): Cell(0, 0.0, 0)}
    put = archive.insert
    assert put(1, '2 + 3 = 5 ; x', length=9) == 'new'
    assert put(2, '3 + 2 = 5 ;', length=9) == 'known'  # as long: the first stays
    assert put(3, '2 + 3 = 5', length=5) == 'better'
    assert put(4, '5 * 4 = 20 ; 20 + 2 = 22', length=12, ended=True) == 'new'
    assert put(5, '20 + 2', length=2, ended=True) == 'new'  # the start, but ended
    assert put(6, RIGHT, length=17, ended=True) == 'new'
    assert put(7, RIGHT, length=17, ended=True) == 'known'
    assert dict(archive.counts) == dict(new=4, known=2, better=1)
    assert len(archive.open) == 2 and archive.cells[(4, 5, 5), False] == Cell(3, 0.0, 5, seen=3)
    assert list(archive.solved.values()) == [6] and set(archive.solved) <= all_solutions(PUZZLE)
    assert archive.scores == {4: 0.5, 5: 0.0, 6: 1.0, 7: 1.0}


def test_a_higher_score_counts_before_length():
    archive = Archive(LOCK, StateSpace(lambda item, text: 'all', lambda item, word: False))
    assert archive.insert(1, 't t t', length=3, ended=True) == 'new'
    assert archive.insert(2, 'm t t', length=9, ended=True) == 'better'  # clicks once
    assert archive.insert(3, 't t t', length=1, ended=True) == 'known'
    assert archive.insert(4, 't m d', length=9, ended=True) == 'better'
    assert archive.cells['all', True].score == 1 and archive.solved == {'t m d': 4}


def test_weights_by_hand():
    archive = Archive(PUZZLE)
    for number, chosen in enumerate((0, 3, 8)):
        archive.cells[number, False] = Cell(number, 0.0, 0, chosen=chosen)
    archive.cells['done', True] = Cell(9, 0.0, 0, ended=True)
    assert count_weight(archive, None) == [1, 1, 1 / 2, 1 / 3]
    assert even_weight(archive, None) == [1] * 4
    taken = by_count(None, archive, 9, lambda n: torch.full((n,), 0.5).double())
    assert sorted(taken) == [0, 0, 1, 2] and 9 not in taken
    assert [cell.chosen for cell in archive.open] == [1, 1, 4, 9]
    with pytest.raises(ValueError, match='one value for each row'):
        by_count(None, archive, 1, torch.ones, weigh=lambda archive, tree: [1.0])


def test_shares_of_a_choice_without_replacement():
    count = dict.fromkeys((by_count, by_chance), 0)
    for choice in count:
        for seed in range(400):
            archive = Archive(PUZZLE)
            archive.cells = {0: Cell(0, 0.0, 0, chosen=8), 1: Cell(1, 0.0, 0)}
            u = torch.rand(2, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
            count[choice] += choice(None, archive, 1, lambda n, u=u: u) == [0]
    assert count[by_count] / 400 == pytest.approx(1 / 4, abs=0.06)
    assert count[by_chance] / 400 == pytest.approx(1 / 2, abs=0.07)


# rounds


def test_pieces_are_the_response(policy, items):
    forest = Forest(policy, items, seed=3)
    reached = explore_nodes(forest, [(1, 0)], width=6)
    tree = forest.trees[1]
    rows = policy.sample(items, 6, seed=3)
    mine = rows.prompt == 1
    whole = [row[real].tolist() for row, real in zip(rows.tokens[mine], rows.mask[mine])]
    ended = [node for _, node in reached if tree[node].ended]
    assert [tree.from_root(node) for node in ended] == whole
    logp = torch.tensor([x for node in ended for x in tree.from_root(node, 'logp')])
    assert (logp - rows.logp_behave[mine][rows.mask[mine]]).abs().max() < 1e-4
    words = policy.tokenizer.batch_decode([[tree[node].tokens[-1]] for _, node in reached])
    assert all(word == ';' or tree[node].ended for word, (_, node) in zip(words, reached))
    assert not any(tree[node].tokens == [policy.eos] for _, node in reached)


def test_pieces_by_hand(policy):
    ids = policy.tokenizer('; 2 ; 3 ;', add_special_tokens=False)['input_ids']
    for tokens, ended in ((ids, False), ([*ids, policy.eos], True)):
        forest = Forest(policy, [PUZZLE], seed=0)
        tree = forest.trees[0]
        _, node = forest.new_child(0, 0)
        tree[node].tokens = tokens
        tree[node].logp = tree[node].entropy = [0.5] * len(tokens)
        tree[node].ended = ended
        reached = module._cut(forest, 0, node, lambda item, word: ';' in word)
        # an end token belongs to the step before it
        assert [tree[number].tokens for _, number in reached] == [ids[:1], ids[1:3], tokens[3:]]
        assert [tree[number].ended for _, number in reached] == [False, False, ended]
        assert tree.from_root(reached[-1][1]) == tokens
    forest = Forest(policy, [PUZZLE], seed=0)
    explore_nodes(forest, [(0, 0)])
    assert len(forest.trees[0].children(0)) == 1  # one response if nothing is said


def test_rounds_by_hand(policy, items):
    went = []

    def once_to_the_first(tree, archive, count, noise):
        went.append(count)
        return [0] if len(tree) == 1 else [1]

    forest = Forest(policy, items[:1], seed=0)
    (archive,) = explore(forest, once_to_the_first, budget=4, batch=2, width=3)
    first = forest.trees[0][1]
    assert went == [2, 1] and not first.ended
    wanted = dict(rounds=2, places=2, responses=4, returns=1)
    assert {name: archive.counts[name] for name in wanted} == wanted
    (plain,) = explore(Forest(policy, items[:1], seed=0), from_the_start, budget=3, width=1)
    assert (plain.counts['rounds'], plain.counts['returns']) == (3, 0)


def test_what_is_counted_was_done(policy, items):
    meter = Meter(policy)
    forest = Forest(meter, items, seed=0)
    archives = explore(forest, budget=17, batch=2, width=3)
    for archive, tree in zip(archives, forest.trees):
        counts = archive.counts
        assert counts['responses'] == 17 == len(archive.texts) == len(archive.scores)
        assert sum(cell.chosen for cell in archive.cells.values()) == counts['places'] >= 6
        assert counts['drawn'] == sum(len(node.tokens) for node in tree.nodes)
        assert archive.spent == counts['read'] + counts['drawn'] and counts['returns'] > 0
        assert tree[0].visits == 17
        assert tree[0].value == pytest.approx(sum(archive.scores.values()) / 17)
        for (state, ended), cell in archive.cells.items():
            way = torch.tensor([tree.from_root(cell.node)], dtype=torch.long)
            (text,) = policy.decode(way, torch.ones_like(way).bool())
            assert countdown_cell(archive.item, text) == state and tree[cell.node].ended == ended
            assert len(way[0]) == cell.length
    assert meter.cost['read'] == sum(archive.counts['read'] for archive in archives)


@pytest.mark.parametrize('choose', [by_count, by_chance, by_novelty])
def test_a_search_hangs_on_its_seed_and_problem_alone(policy, items, choose):
    how = dict(budget=24, batch=2, width=4)
    some = explore(Forest(policy, items, seed=1), choose, **how)
    (alone,) = explore(Forest(policy, items[2:3], seed=1), choose, **how)
    assert alone.texts == some[2].texts and alone.log == some[2].log
    other = explore(Forest(policy, items, seed=2), choose, **how)
    assert [a.texts for a in other] != [a.texts for a in some]


def test_counting_chooses_otherwise_than_chance(policy, items):
    made = {
        choose: explore(Forest(policy, items, seed=1), choose, budget=24, batch=2, width=1)
        for choose in (by_count, by_chance)
    }
    assert [a.log for a in made[by_count]] != [a.log for a in made[by_chance]]
    most = {
        choose: max(cell.chosen for a in some for cell in a.open) for choose, some in made.items()
    }
    assert most[by_count] <= most[by_chance]


def test_from_the_start_is_sample_in_rounds_of_any_size(policy, items):
    rows = policy.sample(items, 12, seed=0)
    for width in (12, 5):
        found = explore(Forest(policy, items, seed=0), from_the_start, budget=12, width=width)
        assert [text for a in found for text in a.texts.values()] == list(rows.texts)


def test_curves(policy, items):
    archive = Archive(PUZZLE)
    archive.log = [(5, 'cell'), (7, 'solved'), (9, 'solved'), (9, 'cell')]
    assert archive.first_success == 7 and Archive(PUZZLE).first_success == math.inf
    assert (archive.found('solved'), archive.found('solved', 8), archive.found('cell', 4)) == (
        2,
        1,
        0,
    )
    assert (archive.found('solved', 7), archive.found('solved', 6)) == (1, 0)  # a cell at 5
    assert coverage(archive) == 0


# novelty


def test_novelty_by_hand():
    points = torch.tensor([[0.0], [0.0], [3.0], [10.0]])
    own = torch.arange(4)
    assert novelty(points, points, k=1, own=own).tolist() == [0, 0, 3, 7]
    assert novelty(points, points, k=2, own=own).tolist() == [1.5, 1.5, 3, 8.5]
    assert novelty(points, points, k=9, own=own)[3] == pytest.approx((10 + 10 + 7) / 3)
    assert novelty(points, points, k=1).tolist() == [0] * 4  # not said who is who
    twin = novelty(points[:1], points[1:], k=1, own=[-1])
    assert twin.tolist() == [0]  # a twin is near, though the point is not there
    assert novelty(points[:1], points[:1], own=[0]).tolist() == [math.inf]
    crowd = torch.zeros(6, 3)
    assert not novelty(crowd, crowd, k=5, own=torch.arange(6)).any()
    order = torch.tensor([2, 0, 3, 1])
    again = novelty(points[order], points, k=2, own=order)
    assert torch.equal(again, novelty(points, points, k=2, own=own)[order])
    assert no_novelty(points, points).tolist() == [0] * 4


def test_parents_are_the_novel_ones_and_the_placebo_s_are_not():
    tree, archive = Tree(), Archive(PUZZLE)
    lonely = '5 * 4 = 20 ; 20 * 3 = 60 ; 60 - 2 = 58'
    texts = ['2 + 3 = 5 ; 5 + 4 = 9 ; 9 + 5 = 14'] * 6 + [lonely]
    for text in texts:
        first = tree.add(0, tokens=[1])
        archive.insert(tree.add(first, tokens=[2], ended=True), text, length=2, ended=True)
    noise = lambda n: torch.rand(n, generator=torch.Generator().manual_seed(0)).double()  # noqa: E731
    loneliest = len(tree) - 1
    (place,) = by_novelty(tree, archive, 1, noise)
    assert place in tree.path(loneliest)[:-1]
    places = {
        tuple(by_novelty(tree, archive, 1, noise, rate=no_novelty))
        for noise in (
            lambda n, s=s: torch.rand(n, generator=torch.Generator().manual_seed(s)).double()
            for s in range(30)
        )
    }
    assert len(places) > 3


def test_how_far_before_the_end_a_parent_lies():
    tree, archive = Tree(), Archive(PUZZLE)
    for text in ('2 + 3 = 5', '5 * 4 = 20'):
        place = 0
        for _ in range(4):
            place = tree.add(place, tokens=[1], ended=False)
        archive.insert(place, text, length=4, ended=True)
    u = torch.tensor([0.0, 0.9, 0.0, 0.6]).double()  # ranks of both, then depths of both
    draw = partial(by_novelty, tree, archive, 1, lambda n: u[:n], emitters=False)
    assert draw() == [5]  # 1 + int(0.6 * 4) steps before the second end, number 8
    ranked = []

    def rate(points, among, *, k, own):
        ranked.append(k)
        return torch.tensor([2.0, 1.0])

    assert draw(rate=rate) == [3] and ranked == [5]  # the first is the novel one now
    assert module._steps_before(tree, 8, 4) == module._steps_before(tree, 8, 9) == 0


def test_five_neighbours_if_nothing_is_said():
    points = torch.arange(8.0)[:, None]
    own = torch.arange(8)
    assert novelty(points, points, own=own)[0] == 3  # (1 + 2 + 3 + 4 + 5) / 5


def test_an_emitter_that_joins_is_next_and_every_second_round_is_theirs():
    tree, archive = Tree(), Archive(PUZZLE)
    for number in range(2):
        first = tree.add(0, tokens=[number])
        last = tree.add(first, tokens=[number, 9])
        archive.solved[number] = archive_node = tree.add(last, tokens=[8], ended=True)
        archive.texts[archive_node] = '5 * 5 = 25'
        archive.counts['rounds'] = 1
        by_novelty(tree, archive, 1, lambda n: torch.full((n,), 0.5).double())
        assert archive.memory['sent'] == [archive_node]
    archive.counts['rounds'] = 2
    by_novelty(tree, archive, 1, lambda n: torch.full((n,), 0.5).double())
    assert (archive.counts['emitted'], archive.counts['mutated']) == (2, 1)


def test_emitters_step_back_when_nothing_comes_and_stay_when_something_does():
    tree, archive = Tree(), Archive(PUZZLE)
    for depth in range(3):
        tree.add(depth, tokens=[depth], ended=depth == 2)
    archive.insert(3, RIGHT, length=17, ended=True)
    archive.counts['rounds'] = 1
    draw = partial(by_novelty, tree, archive, 1, lambda n: torch.full((n,), 0.5).double())
    assert draw() == [2]
    new = tree.add(2, tokens=[9], ended=True)
    other = '5 * 5 = 25'
    archive.solved[other], archive.texts[new] = new, other  # found behind the place
    assert draw() == [2] and archive.memory['emitters'][3]['barren'] == 0  # the other's turn
    archive.memory['emitters'][new]['back'] = 9  # the other has given up
    assert [draw()[0] for _ in range(4)] == [2, 2, 1, 1] and not archive.counts['mutated']
    draw()
    assert archive.counts['emitted'] == 6 and archive.counts['mutated'] == 1


# rows


def test_rows_are_right_distinct_and_replay(policy, items):
    forest = Forest(policy, items, seed=0, temperature=1.3)
    archives = explore(forest, budget=24, batch=2, width=4)
    rows = rows_of_archives(forest, archives)
    assert len(rows) == sum(len(archive.solved) for archive in archives) > 4
    verdicts = [
        task('countdown').verify(items[k], text)
        for k, text in zip(rows.prompt.tolist(), rows.texts)
    ]
    assert all(verdict.correct for verdict in verdicts) and rows.finished.all()
    told = list(zip(rows.prompt.tolist(), [verdict.answer for verdict in verdicts]))
    assert len(set(told)) == len(rows)
    assert (rows.origin == ORIGINS.index('replay')).all() and not rows.sampled.any()
    with torch.no_grad():
        logp, _ = policy.logprobs(rows)
    assert rows.temperature == 1.3 and (logp - rows.logp_behave)[rows.mask].abs().max() < 1e-4


def test_off_it_is_what_is_right_among_samples(policy, items):
    rows = archived_rows(choose=from_the_start, width=16, size=0)(policy, items, 16, seed=5)
    plain = policy.sample(items, 16, seed=5)
    right = {}
    for k, text in zip(plain.prompt.tolist(), plain.texts):
        verdict = task('countdown').verify(items[k], text)
        if verdict.correct:
            right.setdefault((k, verdict.answer), text)
    assert list(rows.texts) == list(right.values())


def test_rows_come_back_for_so_many_steps(policy, items):
    sampler = archived_rows(size=2)
    texts = []
    for step in range(4):
        rows = sampler(policy, items[step : step + 1], 16, seed=step)
        fresh = rows.traj >> 32 == step
        texts.append([text for text, is_fresh in zip(rows.texts, fresh) if is_fresh])
        came = [text for text, is_fresh in zip(rows.texts, fresh) if not is_fresh]
        assert came == [text for kept in texts[max(0, step - 2) : step] for text in kept]
        assert len(rows.traj.unique()) == len(rows)
        sampler.update(rows)
    assert [list(kept.texts) for kept in sampler.kept] == texts[2:]
    assert all(len(kept.items) == 1 == len(kept.prompt_ids) for kept in sampler.kept)
    again = sampler(policy, items[3:], 16, seed=3)
    sampler.update(again)  # all of them are known
    assert len(sampler.kept) == 2 and sampler.steps == 5


def test_nothing_found_is_nothing_trained(policy):
    hopeless = [Item('countdown', ((1, 1, 1, n), 99, 99, '+-*')) for n in (1, 2)]
    rows = archived_rows()(policy, hopeless, 4, seed=0)
    assert len(rows) == 2 and not rows.loss_weight.any() and (rows.origin == 2).all()
    sampler = archived_rows()
    sampler.update(dataclasses.replace(rows, rewards=torch.ones(2)))  # paid, but not right
    assert not sampler.kept and sampler.steps == 1


def test_the_best_of_what_is_not_right_stands_for_its_problem(policy):
    hopeless = [Item('countdown', ((1, 1, 1, n), 99, 99, '+-*')) for n in (1, 2)]
    forest = Forest(policy, hopeless, seed=0)
    archives = explore(forest, budget=4)
    forest.temperature = 0.0
    for archive in archives:
        best = list(archive.scores)[1]
        archive.scores = {node: float(node == best) for node in archive.scores}
    rows = module._one_each(forest, archives)
    assert rows.texts == tuple(list(archive.texts.values())[1] for archive in archives)
    assert rows.temperature == 1  # greedy beginnings are read as any others


def test_what_is_taken_if_nothing_is_said(policy, items):
    sampler = archived_rows()
    assert (sampler.width, sampler.batch, sampler.size) == (1, 2, 2)
    sampler(policy, items[:1], seed=0)
    assert sampler.archives[0].counts['responses'] == 1


def test_its_state_is_packed_and_read(policy, items):
    sampler = archived_rows()
    for step in range(2):
        sampler.update(sampler(policy, items[step : step + 2], 8, seed=step))
    plain, tensors = pack_stages(dict(sampler=sampler))
    twin = archived_rows()
    unpack_stages(dict(sampler=twin), json.loads(json.dumps(plain)), tensors)
    ours, theirs = (s(policy, items[3:], 8, seed=9) for s in (sampler, twin))
    assert ours.texts == theirs.texts and torch.equal(ours.logp_behave, theirs.logp_behave)
    assert torch.equal(ours.traj, theirs.traj) and ours.items == theirs.items


def test_a_run_goes_on_bit_for_bit(policy, tmp_path):
    made = recipe('go_explore', prompts=2, group=8, lr=2e-4)
    easy = task('countdown', level='easy')

    def end_of(*parts, path=None):
        for steps in parts:
            learner = policy.clone()
            train(learner, easy, made, steps=steps, seed=0, path=path)
        return weights(learner)

    assert torch.equal(end_of(2, 4, path=tmp_path / 'run'), end_of(4))


def test_two_steps_end_apart_from_parent_and_placebo(policy):
    countdown = task('countdown')
    ends = {}
    for name in ('positive', 'go_explore', 'go_explore_random', 'novelty_search'):
        learner = policy.clone()
        train(learner, countdown, recipe(name, prompts=4, group=8, lr=2e-4), steps=2, seed=0)
        ends[name] = weights(learner)
    come = (ends['go_explore'] - weights(policy)).norm()
    for name, end in ends.items():
        if name != 'go_explore':
            assert (end - ends['go_explore']).norm() > 0.05 * come, name


def test_its_rows_are_said_to_be_no_draws():
    info = stages('sampler')['archived_rows']
    assert info.paper == 174 and 'no one policy' in info.draws
    assert set(recipe('go_explore').diff()) == {'sampler', 'objective'}
    assert recipe('go_explore_random').sampler == use(archived_rows, choose=by_chance)


# bad input


@pytest.mark.parametrize(
    'how, said',
    [
        (dict(budget=0), 'explore: budget is 0, wanted a whole number of at least 1'),
        (dict(budget=4, width=0), 'explore: width is 0, wanted a whole number of at least 1'),
        (dict(budget=4, batch=1.5), 'explore: batch is 1.5, wanted a whole number'),
        (dict(budget=4, space=module.STATE_SPACES['lock']), 'wanted a lock, which has ring'),
        (dict(budget=4, choose=partial(by_novelty, k=0)), 'by_novelty: k is 0'),
        (dict(budget=4, choose=partial(by_novelty, patience=0)), 'by_novelty: patience is 0'),
    ],
)
def test_one_sentence_says_what_is_wrong(policy, items, how, said):
    with pytest.raises(ValueError, match=said):
        explore(Forest(policy, items, seed=0), **how)


def test_more_of_them(policy, items):
    with pytest.raises(ValueError, match='whose answers nobody can verify'):
        explore(Forest(policy, ['1 2 3'], seed=0), budget=4)
    bare = StateSpace(countdown_cell, lambda item, word: False)
    with pytest.raises(ValueError, match='have no descriptor'):
        explore(Forest(policy, items, seed=0), by_novelty, budget=8, space=bare)
    for how in (dict(width=0), dict(batch=0), dict(size=-1)):
        with pytest.raises(ValueError, match=f'archived_rows: {next(iter(how))} is'):
            archived_rows(**how)
    with pytest.raises(ValueError, match='archived_rows: group is 0'):
        archived_rows()(policy, items, 0, seed=0)
    with pytest.raises(ValueError, match='has no solution'):
        coverage(Archive(Item('countdown', ((1, 1), 99, 99, '+-*'))))
    with pytest.raises(ValueError, match='wanted as many coordinates'):
        novelty(torch.zeros(1, 2), torch.zeros(1, 3))
    with pytest.raises(ValueError, match='a problem of .lock. has 3 parts'):
        coverage(Archive(LOCK))


@pytest.mark.parametrize('weight', [math.nan, -1.0, math.inf])
def test_a_weight_that_is_none_is_refused(policy, items, weight):
    def weigh(archive, tree):
        return [weight] * len(archive.open)

    choose = partial(by_count, weigh=weigh)
    with pytest.raises(ValueError, match=f'by_count: a cell has the weight {weight}'):
        explore(Forest(policy, items, seed=0), choose, budget=4)


def test_a_weight_of_nothing_is_allowed():
    archive = Archive(PUZZLE)
    archive.cells = {place: Cell(place, 0.0, 0) for place in range(3)}
    noise = partial(torch.full, fill_value=0.5, dtype=torch.float64)
    chosen = by_count(None, archive, 1, lambda n: noise((n,)), weigh=lambda *_: [0, 1, 0])
    assert chosen == [1]


def test_found_by_what_was_drawn(policy, items):
    archive = Archive(PUZZLE)
    archive.log = [(5, 'cell'), (9, 'solved'), (12, 'cell')]
    archive.drawn_at = [2, 4, 6]
    assert [archive.found('cell', at, drawn=True) for at in (1, 2, 5, 6)] == [0, 1, 1, 2]
    assert archive.found('cell', 5) == 1 and archive.found('solved', drawn=True) == 1
    for archive in explore(Forest(policy, items, seed=0), budget=12):
        spent = [at for at, _ in archive.log]
        assert all(drawn < at for drawn, at in zip(archive.drawn_at, spent))
        assert archive.drawn_at == sorted(archive.drawn_at)
        assert archive.found('cell', archive.counts['drawn'], drawn=True) == archive.found('cell')


def test_a_solution_in_another_spelling_is_kept_beside_the_first(policy):
    item = Item('countdown', ((3, 3, 5), 5, 99, '+-*'))
    spellings = ('3 + 5 = 8 ; 8 - 3 = 5', '5 + 3 = 8 ; 8 - 3 = 5')
    verify = task('countdown').verify
    assert len({verify(item, text).answer for text in spellings}) == 1
    archive = Archive(item)
    for node, text in enumerate(spellings, start=1):
        archive.insert(node, text, length=11, ended=True)
    assert list(archive.solved.values()) == [1]  # in one archive once
    sampler = archived_rows()
    for seed in range(40):
        rows = sampler(policy, [item], 8, seed=seed)
        sampler.update(rows)
        texts = [text for kept in sampler.kept for text in kept.texts]
        answers = [verify(item, text).answer for text in texts]
        assert len(set(texts)) == len(texts)
        if len(set(answers)) < len(answers):
            return
    raise AssertionError('no solution came in two spellings')


def test_a_step_that_finds_nothing_gives_back_what_is_kept(policy, items):
    sampler = archived_rows()
    rows = sampler(policy, items, 16, seed=0)
    sampler.update(rows)
    hopeless = [Item('countdown', ((1, 1, 1, 2), 99, 99, '+-*'))]
    for seed in range(3):
        barren = sampler(policy, hopeless, 4, seed=seed)
        assert barren.texts == rows.texts and barren.loss_weight.all()
        sampler.update(barren)
    assert len(sampler.kept) == 1
