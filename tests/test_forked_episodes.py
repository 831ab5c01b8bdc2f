"""ARPO's rows that fork behind the answers of tools: what they share, and what stays."""

import dataclasses
import pytest
import torch
from conftest import weights
from rl4llm import Policy, recipe, task, train
from rl4llm.advantages.group_relative import grpo
from rl4llm.core.rollouts import make_rollouts
from rl4llm.rollouts.forked_episodes import (
    _grow,
    _Growth,
    _ids_of_words,
    _Row,
    fork_chance,
    shared_advantages,
    tool_branches,
    turn_entropy,
)
from rl4llm.rollouts.tree import trees_of


@pytest.fixture(scope='module')
def agent():
    return Policy.load('tiny-agent-v1')


def calculations(count=3):
    return task('calculator', level='hard').sample(count, seed=3)


def same_rows(a, b):
    return (
        a.texts == b.texts
        and torch.equal(a.mask, b.mask)
        and torch.equal(a.seg, b.seg)
        and torch.equal(a.finished, b.finished)
        and torch.allclose(a.logp_behave, b.logp_behave, atol=1e-4)
    )


def test_entropy_is_that_of_the_first_own_tokens():
    entropy = torch.tensor([[5.0, 1.0, 2.0, 4.0]])
    own = torch.tensor([[False, True, True, True]])
    for probe, total in ((1, 1.0), (2, 3.0), (9, 7.0)):
        found = turn_entropy(entropy, own, probe=probe, words=100)
        assert found.item() == pytest.approx(total / torch.tensor(100.0).log().item())


def test_without_weight_a_base_of_one_always_forks(agent):
    "With weight it need not: where entropy has fallen, the chance is below one."
    assert fork_chance(torch.tensor([-1.0]), base=1.0).item() == pytest.approx(0.8)
    rows = tool_branches(agent, calculations(4), 4, seed=1, probe=4, base=1.0, weight=0.0)
    assert rows.parent.view(4, 4).tolist() == [[-1, -1, 4 * k, 4 * k + 1] for k in range(4)]


def test_the_chance_follows_the_gain_and_stays_a_chance():
    gain = torch.tensor([-10.0, -1.0, 0.0, 1.0, 10.0])
    assert fork_chance(gain).tolist() == pytest.approx([0, 0.3, 0.5, 0.7, 1])
    assert fork_chance(gain, base=0.1, weight=0.0).tolist() == pytest.approx([0.1] * 5)


@pytest.mark.parametrize('name', ['calculator', 'key_door', 'countdown'])
def test_with_one_way_to_begin_it_is_plain_drawing(agent, name):
    model = agent if name != 'countdown' else Policy.load('tiny')
    asked = task(name).sample(2, seed=1)
    plain = model.sample(asked, 4, seed=5)
    whole = tool_branches(model, asked, 4, seed=5, starts=1.0)
    never = tool_branches(model, asked, 4, seed=5, base=0.0, weight=0.0)
    assert whole.texts == plain.texts == never.texts
    assert torch.equal(whole.mask, plain.mask)
    if name != 'countdown':  # whose steps are turns here, and one piece there
        assert same_rows(whole, plain) and same_rows(never, plain)


def test_rows_that_reach_their_room_are_those_of_plain_drawing(agent):
    asked = [*task('calculator', level='easy').sample(1, seed=3), *calculations(1)]
    how = dict(seed=5, max_new_tokens=20)
    plain = agent.sample(asked, 4, **how)
    whole = tool_branches(agent, asked, 4, starts=1.0, **how)
    assert whole.finished.tolist() == [True] * 4 + [False] * 4
    assert same_rows(whole, plain)


def test_greedy_rows_have_the_temperature_of_their_log_probabilities(agent):
    assert tool_branches(agent, calculations(1), 1, seed=0, temperature=0.0).temperature == 1.0


def test_a_word_of_one_known_token_ends_a_turn():
    tiny = Policy.load('tiny')
    (semicolon,) = tiny.tokenizer(';', add_special_tokens=False)['input_ids']
    assert _ids_of_words(tiny, (';', '3 ;', 'zzz')).tolist() == [semicolon]


def test_late_rows_begin_when_all_others_have_ended():
    drawn = []

    class Growth:
        def draw_turns(self, rows):
            drawn.append([row.number for row in rows])
            rows[0].is_live = False

        def wants_fork(self, row, how):
            return False

    _grow(Growth(), [[_Row(0, 0), _Row(0, 1)]], 3, None)
    assert drawn == [[0, 1], [1], [2]]


def test_forks_begin_where_a_tool_has_answered_and_end_as_the_policy_would(agent):
    rows = tool_branches(agent, calculations(), 8, seed=0, probe=4, base=1.0, weight=0.0)
    forks = (rows.parent >= 0).nonzero()[:, 0].tolist()
    assert len(forks) == 12 and not rows.fork_at[rows.parent < 0].any()
    for i in forks:
        at, parent = int(rows.fork_at[i]), int(rows.parent[i])
        assert torch.equal(rows.tokens[i, :at], rows.tokens[parent, :at])
        assert rows.prompt[i] == rows.prompt[parent] and parent < i
        assert rows.mask[i, at] and not rows.mask[i, at - 1]
    with torch.no_grad():
        logp, _ = agent.logprobs(rows)
    assert (logp - rows.logp_behave)[rows.mask].abs().max() < 1e-3
    assert (rows.logp_behave[~rows.mask] == 0).all()


def texts_of(agent, ways):
    one_by_one = [torch.tensor([way]) for way in ways]
    return [agent.decode(way, torch.ones_like(way).bool())[0] for way in one_by_one]


@pytest.mark.parametrize('room', [None, 22])
def test_the_tree_that_was_drawn_has_all_words_of_each_row(agent, room):
    "A leaf for each row, which is found by going up from it; put-in words are tokens of the way."
    how = dict(probe=4, base=1.0, weight=0.0, max_new_tokens=room)
    rows = tool_branches(agent, calculations(), 8, seed=0, **how)
    assert rows.finished.all() == (room is None)
    for k, tree in enumerate(trees_of(rows, pad=agent.pad, as_drawn=True)):
        mine = (rows.prompt == k).nonzero()[:, 0].tolist()
        ways = [tree.from_root(leaf) for leaf in tree.leaves]
        lengths = (rows.tokens[mine] != agent.pad).sum(1).tolist()
        written = [rows.tokens[i, :length].tolist() for i, length in zip(mine, lengths)]
        assert sorted(ways) == sorted(written)
        assert sorted(texts_of(agent, ways)) == sorted(rows.texts[i] for i in mine)
        assert len(tree.children(0)) == sum(int(rows.parent[i]) < 0 for i in mine) == 4
        for i in mine:
            at, parent = int(rows.fork_at[i]), int(rows.parent[i])
            places = {len(tree.from_root(node)) for node in range(len(tree))}
            assert parent < 0 or at in places


def test_a_tree_of_episodes_as_written_holds_whole_rows_too(agent):
    rows = agent.sample(calculations(), 6, seed=4)
    for k, tree in enumerate(trees_of(rows, pad=agent.pad)):
        mine = [i for i in range(len(rows)) if rows.prompt[i] == k]
        said = texts_of(agent, [tree.from_root(leaf) for leaf in tree.leaves])
        assert set(said) == {rows.texts[i] for i in mine} and len(said) == len(set(said))


def test_a_group_depends_on_no_other_and_on_its_seed(agent):
    asked = calculations()
    how = dict(probe=4, weight=1.0)
    together = tool_branches(agent, asked, 6, seed=2, **how)
    alone = tool_branches(agent, asked[1:2], 6, seed=2, **how)
    assert alone.texts == together.texts[6:12]
    assert tool_branches(agent, asked, 6, seed=3, **how).texts != together.texts


def test_entropy_decides(agent):
    asked = calculations(6)
    strong = tool_branches(agent, asked, 8, seed=0, probe=4, weight=4.0)
    by_chance = tool_branches(agent, asked, 8, seed=0, probe=4, weight=0.0)
    assert strong.fork_at.tolist() != by_chance.fork_at.tolist()


@pytest.mark.parametrize(
    'knobs, says',
    [
        (dict(starts=0.0), 'starts=0'),
        (dict(starts=1.5), 'starts=1.5'),
        (dict(base=-1.0), 'base'),
        (dict(base=1.5), 'base=1.5'),
        (dict(probe=0), 'probe'),
        (dict(weight=float('nan')), 'weight'),
        (dict(group=0), 'group'),
        (dict(ends='ab'), r"tool_branches has ends='ab', wanted a tuple of words"),
        (dict(ends=None), 'ends=None'),
        (dict(ends=(3,)), r'ends=\(3,\)'),
    ],
)
def test_bad_knobs_are_named(agent, knobs, says):
    group = knobs.pop('group', 2)
    with pytest.raises(ValueError, match=says):
        tool_branches(agent, calculations(1), group, seed=0, **knobs)


def test_words_of_tools_belong_to_the_piece_before_them():
    "Two calls with an answer of two words each; the second row leaves the first between them."
    ones = torch.ones(1, 2).long()
    seg = torch.tensor([[0, 0, -1, -1, 1, -1, -1], [0, 0, -1, -1, 1, -1, -1]])
    rows = make_rollouts(
        prompt_ids=ones,
        prompt_mask=ones.bool(),
        tokens=torch.tensor([[5, 6, 40, 41, 7, 42, 43], [5, 6, 40, 41, 7, 42, 0]]),
        mask=seg >= 0,
        prompt=torch.zeros(2).long(),
        parent=torch.tensor([-1, 0]),
        fork_at=torch.tensor([0, 4]),
        seg=seg,
        logp_behave=torch.tensor([[-1.0, -2.0, 0, 0, -3.0, 0, 0], [-1.0, -2.0, 0, 0, -4.0, 0, 0]]),
        rewards=torch.tensor([1.0, 0.0]),
    )

    def pieces(**how):
        (tree,) = trees_of(rows, **how)
        return [node.tokens for node in tree][1:]

    stem = [5, 6, 40, 41]
    assert pieces(pad=0, as_drawn=True) == [stem, [7, 42, 43], [7, 42]]
    assert pieces(as_drawn=True) == [stem, [7], [7]]
    assert pieces(pad=0) == [stem, [7, 42], [43]]
    assert pieces() == [stem, [7]]
    (tree,) = trees_of(rows, torch.arange(14.0).view(2, 7), pad=0, as_drawn=True)
    assert (tree[3].logp, tree[3].entropy, tree[3].parent) == ([-4, 0], [11, 12], 1)
    assert [node.value for node in tree] == [0.5, 0.5, 1, 0]
    assert [node.visits for node in tree] == [2, 2, 1, 1]


@pytest.mark.parametrize(
    'change',
    [
        dict(parent=torch.tensor([-1, 5])),
        dict(parent=torch.tensor([1, -1]), fork_at=torch.tensor([2, 0])),
        dict(fork_at=torch.tensor([0, 3])),
    ],
)
def test_a_row_without_its_parent_has_no_place_in_the_tree_that_was_drawn(change):
    rows = dataclasses.replace(two_rows(), **change)
    with pytest.raises(ValueError, match='trees_of: row . does not begin as row'):
        trees_of(rows, as_drawn=True)
    assert len(trees_of(rows)) == 1  # what is alike needs no parents


def test_a_row_that_left_one_of_another_problem_is_refused():
    rows = two_rows()
    ones = torch.ones(2, 2).long()
    other = dict(prompt_ids=ones, prompt_mask=ones.bool(), prompt=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match='row 1 does not begin as row 0'):
        trees_of(dataclasses.replace(rows, **other), as_drawn=True)


def two_rows():
    "A row, and one that leaves it behind its second token."
    tokens = torch.tensor([[5, 6, 7, 8], [5, 6, 9, 8]])
    ones = torch.ones(1, 2).long()
    return make_rollouts(
        prompt_ids=ones,
        prompt_mask=ones.bool(),
        tokens=tokens,
        mask=torch.ones(2, 4).bool(),
        prompt=torch.zeros(2).long(),
        parent=torch.tensor([-1, 0]),
        fork_at=torch.tensor([0, 2]),
        seg=torch.tensor([[0, 0, 1, 1]] * 2),
    )


def test_what_is_shared_has_the_mean_and_the_rest_its_own():
    rows = two_rows()
    rewards = torch.tensor([1.0, 0.0])
    own = grpo(rewards, rows.group, scale='none')
    shared = shared_advantages(rewards, rows.group, rollouts=rows, scale='none')
    assert own.tolist() == [0.5, -0.5]
    assert shared.tolist() == [[0, 0, 0.5, 0.5], [0, 0, -0.5, -0.5]]


def test_rows_without_a_score_leave_the_mean_alone():
    rows = two_rows()
    rewards = torch.tensor([1.0, float('nan')])
    shared = shared_advantages(rewards, rows.group, rollouts=rows)
    assert not shared.isnan().any() and not shared[1].any()


def test_an_unscored_row_has_no_part_in_what_it_shares():
    "Row 3 leaves row 0 behind its second token and has no score."
    ones = torch.ones(1, 2).long()
    rows = make_rollouts(
        prompt_ids=ones,
        prompt_mask=ones.bool(),
        tokens=torch.tensor([[5, 6, 7], [7, 8, 9], [9, 8, 7], [5, 6, 9]]),
        mask=torch.ones(4, 3).bool(),
        prompt=torch.zeros(4).long(),
        parent=torch.tensor([-1, -1, -1, 0]),
        fork_at=torch.tensor([0, 0, 0, 2]),
        seg=torch.tensor([[0, 0, 1]] * 4),
    )
    rewards = torch.tensor([1.0, 0.0, 0.0, float('nan')])
    shared = shared_advantages(rewards, rows.group, rollouts=rows, scale='none')
    assert torch.allclose(shared[0], torch.tensor(2 / 3)) and not shared[3].any()


def growth_of(agent):
    keys = torch.arange(4).view(1, 4)
    none = torch.zeros(0, dtype=torch.long)
    return _Growth(agent, calculations(1), None, None, keys, 3, 40, 1.0, 4, none)


def test_a_row_forks_by_how_far_entropy_has_risen_above_its_first_turn(agent):
    asked = []

    def surely(gain):
        asked.append(float(gain[0]))
        return torch.ones(1)

    growth = growth_of(agent)
    row = _Row(0, 1, turn=2, begins=12, fork_at=5, first=0.25, now=1.0)
    assert growth.wants_fork(row, surely) and asked == [0.75]
    assert not growth.wants_fork(row, lambda gain: torch.zeros(1))
    for refused in (dict(turn=0), dict(begins=5), dict(fork_at=12)):
        assert not growth.wants_fork(dataclasses.replace(row, **refused), surely)
    assert asked == [0.75]  # who may not fork is not asked


def test_a_fork_takes_over_what_its_parent_was_compared_with():
    row = _Row(0, 1, tokens=[1, 2, 3], logp=[0.0] * 3, own=[True] * 3, seg=[0, 0, 1])
    row.begins, row.first, row.turn = 2, 0.25, 1
    new = row.fork(5)
    assert (new.first, new.turn, new.parent, new.number, new.fork_at) == (0.25, 1, 1, 5, 2)
    assert (new.tokens, new.seg, new.is_live) == ([1, 2], [0, 0], True)


def test_it_trains_and_goes_on_where_it_was_stopped(agent, tmp_path):
    maker = task('calculator', level='hard')
    made = recipe('arpo', prompts=2, group=4, lr=1e-4)

    whole = train(agent.clone(), maker, made, steps=2, seed=0)
    train(agent.clone(), maker, made, steps=1, seed=0, path=tmp_path / 'run')
    again = train(agent.clone(), maker, made, steps=2, seed=0, path=tmp_path / 'run')
    assert torch.equal(weights(whole.policy), weights(again.policy))
