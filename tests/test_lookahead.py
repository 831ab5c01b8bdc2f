"""Lookahead-tree rollouts: the tree beside one in lists, what rows say, what is refused."""

import itertools
from functools import cache
from types import SimpleNamespace

import pytest
import torch

from rl4llm import Policy, train
from rl4llm.core.registry import recipe, use
from rl4llm.rollouts.lookahead import (
    LookaheadRules,
    grow_lookahead,
    lookahead_rollouts,
    near_copy,
    near_ties,
    random_cut,
    random_rivals,
    within_capacity,
)
from rl4llm.tasks import task

SHORT = dict(age=3, looks=(1, 2), longest=9)
END = 5  # of the table's six tokens, the one that ends a response


# a policy whose logits hang on the whole beginning


class Table:
    style, pad, eos = 'compact', 0, END

    def __init__(self, seed, flat=1.0):
        self.seed, self.flat, self.known = seed, flat, {}

    def logits(self, said):
        if said not in self.known:
            key = hash((self.seed, *said)) % 2**31
            z = torch.randn(6, generator=torch.Generator().manual_seed(key))
            self.known[said] = z * self.flat - 2.0 * (torch.arange(6) == END)
        return self.known[said]

    def decoder(self, ids, seen, prompt, room):
        return Walk(self, [tuple(ids[k][seen[k]].tolist()) for k in prompt.tolist()])


class Walk:
    spare = 1.0

    def __init__(self, table, rows):
        self.table, self.rows = table, rows
        self.logits = torch.stack([table.logits(row) for row in rows])

    def step(self, tokens):
        self.rows = [(*row, token) for row, token in zip(self.rows, tokens.tolist(), strict=True)]
        return torch.stack([self.table.logits(row) for row in self.rows])

    def keep(self, rows):
        self.rows = [self.rows[row] for row in rows.tolist()]


# the same tree, written in lists


@cache
def distance(a, b):
    if not a or not b:
        return len(a) + len(b)
    return min(
        distance(a[1:], b) + 1, distance(a, b[1:]) + 1, distance(a[1:], b[1:]) + (a[0] != b[0])
    )


def in_lists(table, prompt, *, k, longest, rules):
    "The rows of one tree, as the released code grows them, and what happened."
    rows = [SimpleNamespace(said=[], parent=None, born=0)]
    counts = dict(born=0, looked=0, pruned=0, dropped=0, rivals=0)

    def ended(row):
        return END in row.said

    for t in range(longest):
        wanted, likely = [], {}
        for i, row in enumerate(rows):
            if ended(row):
                continue
            probs, ids = table.logits((prompt, *row.said)).softmax(-1).sort(descending=True)
            likely[i] = int(ids[0])
            for rank in range(1, rules.top):
                if probs[rank] > rules.tau_abs and probs[0] - probs[rank] < rules.tau_rel:
                    wanted.append((rank, i, int(ids[rank])))
        counts['rivals'] += len(wanted)
        kept = sorted(wanted)[: k - len(rows)]
        new = [
            SimpleNamespace(said=[*rows[i].said, token], parent=rows[i], born=t)
            for rank, i, token in sorted(kept, key=lambda one: (one[1], one[0]))
        ]
        for i, row in enumerate(rows):
            row.said += [likely[i]] if i in likely else []
        rows += new
        counts['born'] += len(new)
        dropped = []
        for row in rows:
            age = t + 1 - row.born
            if row.parent is None or age not in rules.ages:
                continue
            last = slice(t + 1 - age, t + 1)
            own, other = [(r.said + [END] * longest)[last] for r in (row, row.parent)]
            if END in own + other:
                continue
            counts['looked'] += 1
            if distance(tuple(own), tuple(other)) / age < rules.tau_ed:
                dropped.append(row)
        counts['pruned'] += len(dropped)
        while True:
            more = [row for row in rows if row.parent in dropped and row not in dropped]
            if not more:
                break
            dropped += more
        counts['dropped'] += len(dropped)
        rows = [row for row in rows if row not in dropped]
        full = len(rows) >= round(k * (0.98 - 0.05 * t / rules.room))
        grown_up = all(row.born + max(rules.ages) < t for row in rows)
        if all(map(ended, rows)) or (full and grown_up):
            break
    return rows, counts


@pytest.mark.parametrize('seed', range(12))
def test_the_tree_is_the_one_written_in_lists(seed):
    k, longest = (2, 5, 8)[seed % 3], 8
    rules = LookaheadRules(
        room=16,
        ages=((2, 3), (1, 4), (2, 3, 5))[seed % 3],
        top=(2, 3)[seed % 2],
        tau_abs=0.12,
        tau_rel=0.25,
        tau_ed=(0.4, 0.67)[seed % 2],
    )
    table = Table(seed, flat=(0.6, 1.0)[seed % 2])
    ids = torch.tensor([[0, 1], [0, 2], [3, 1]])
    seen = torch.tensor([[False, True], [False, True], [True, True]])
    noise = (torch.full((3, k, longest), 0.5),) * 3
    trees, counts = grow_lookahead(table, (ids, seen), noise, rules=rules)
    total = dict.fromkeys(('born', 'looked', 'pruned', 'dropped', 'rivals'), 0)
    real = [tuple(row[real].tolist()) for row, real in zip(ids, seen, strict=True)]

    def table_of(prompt):
        def logits(said):
            return table.logits((*prompt, *said[1:]))

        return SimpleNamespace(logits=logits)

    for at, prompt in enumerate(real):
        rows, found = in_lists(table_of(prompt), None, k=k, longest=longest, rules=rules)
        total = {name: total[name] + found[name] for name in total}
        said = [
            trees.tokens[at, i, : trees.length[at, i]].tolist() for i in range(k)
        ]
        assert trees.alive[at].tolist() == [i < len(rows) for i in range(k)]
        assert said == [row.said for row in rows] + [rows[0].said] * (k - len(rows))
        places = {id(row): i for i, row in enumerate(rows)}
        above = [places.get(id(row.parent), -1) for row in rows]
        assert trees.parent[at, : len(rows)].tolist() == above
        born = [row.born for row in rows if row.parent]
        assert trees.born[at, 1 : len(rows)].tolist() == born
        for i, tokens in enumerate(said):
            z = torch.stack([table.logits((*prompt, *tokens[:t])) for t in range(len(tokens))])
            logp = z.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
            assert torch.allclose(trees.logp[at, i, : len(tokens)], logp, atol=1e-5)
    assert total == {name: counts[name] for name in total}
    assert total['born'] > 0


def test_the_lists_have_seen_what_there_is_to_see():
    "Over these seeds branches are born, looked at, dropped with their own, refused a place."
    found = dict.fromkeys(('born', 'looked', 'pruned', 'dropped', 'rivals'), 0)
    for seed in range(12):
        rules = LookaheadRules(room=16, ages=(2, 3), top=3, tau_abs=0.12, tau_rel=0.25, tau_ed=0.67)
        _, counts = in_lists(Table(seed, 0.6), 1, k=4, longest=8, rules=rules)
        found = {name: found[name] + counts[name] for name in found}
    assert found['rivals'] > found['born'] > found['dropped'] > found['pruned'] > 0


# rules by hand


def test_near_ties_are_likely_and_nearly_as_likely_as_the_first():
    probs = torch.tensor([[[0.5, 0.3, 0.2], [0.4, 0.26, 0.25], [0.26, 0.25, 0.24]]])

    def by(a, r):
        return near_ties(probs, probs[..., 0], tau_abs=a, tau_rel=r)[0].tolist()

    assert by(0.25, 0.15) == [[False, False], [True, False], [False, False]]
    assert by(0.2, 0.21) == [[True, False], [True, True], [True, True]]
    assert by(0.0, 0.0) == [[False, False]] * 3


def test_places_go_to_likelier_tokens_then_to_older_rows():
    wanted = torch.tensor([[[True, True], [False, True], [True, False]]])
    for free, kept in enumerate(
        ([], [(0, 0)], [(0, 0), (2, 0)], [(0, 0), (0, 1), (2, 0)], [(0, 0), (0, 1), (1, 1), (2, 0)])
    ):
        got = within_capacity(wanted, torch.tensor([free]))[0].nonzero().tolist()
        assert got == [list(place) for place in kept]
    two = within_capacity(wanted.expand(2, -1, -1), torch.tensor([1, 9]))
    assert two.sum((1, 2)).tolist() == [1, 4]


def test_a_near_copy_differs_in_less_than_its_share():
    assert near_copy([1, 2, 3], [1, 2, 4], 0.0, tau_ed=0.34)
    assert not near_copy([1, 2, 3], [1, 2, 4], 0.0, tau_ed=1 / 3)
    assert not near_copy([1, 2], [2, 1], 0.0, tau_ed=1.0)
    assert near_copy([1, 2, 3, 4], [2, 3, 4, 5], 0.0, tau_ed=0.6)


@pytest.fixture(scope='module')
def policy():
    return Policy.load('tiny')


@pytest.fixture(scope='module')
def items():
    return [*task('countdown').sample(3, seed=7), *task('modular').sample(1, seed=1)]


def test_placebos_throw_coins(policy, items):
    probs = torch.tensor([[[0.9, 0.05, 0.05]] * 4])
    chance = torch.tensor([[0.1, 0.3, 0.5, 0.7]])
    got = random_rivals(probs, chance, rate=0.4, tau_abs=1, tau_rel=0)
    assert got[0, :, 0].tolist() == [True, True, False, False] and not got[0, :, 1].any()
    rates = {1: 0.4}
    assert random_cut([1], [2], 0.1, rates=rates) and not random_cut([1], [1], 0.4, rates=rates)
    assert not random_cut([1, 2], [1, 2], 0.1, rates=rates)  # no rate at this age
    never = lookahead_rollouts(**SHORT, branching=use(random_rivals, rate=0.0).make())
    never(policy, items, 4, seed=0)
    always = lookahead_rollouts(**SHORT, pruning=use(random_cut, rates={3: 1.1, 6: 1.1}).make())
    always(policy, items, 4, seed=0)
    assert never.counts['born'] == 0 < always.counts['looked'] == always.counts['pruned']
    seeds = [lookahead_rollouts(**SHORT, branching=random_rivals) for _ in range(2)]
    for seed, sampler in enumerate(seeds):
        sampler(policy, items, 8, seed=seed)
    assert seeds[0].counts != seeds[1].counts


def test_every_look_can_drop_a_branch(policy):
    "A window begins with the token in which both differ: it has to be long enough for the rule."
    sampler = lookahead_rollouts(**SHORT)
    sampler(policy, task('countdown').sample(96, seed=6), 8, seed=0)
    for age in (3, 6):
        looked, pruned = sampler.counts[f'looked_{age}'], sampler.counts[f'pruned_{age}']
        assert 0 < pruned < looked / 2


# rows


@pytest.mark.parametrize(
    'knobs', [{}, dict(elsewhere='draw'), dict(tau_ed=0.0), dict(start=0.5, end=0.5)]
)
def test_rows_replay_and_say_what_they_are(policy, items, knobs):
    sampler = lookahead_rollouts(**SHORT, **knobs)
    rows = sampler(policy, items, 8, seed=3)
    with torch.no_grad():
        teacher, _ = policy.logprobs(rows)
    assert (teacher - rows.logp_behave)[rows.mask].abs().max() < 1e-4
    again = sampler(policy, items, 8, seed=3)
    assert rows.texts == again.texts and torch.equal(rows.logp_behave, again.logp_behave)
    assert torch.equal(rows.seg == 1, rows.sampled) and torch.equal(rows.seg >= 0, rows.mask)
    turned = sampler(policy, items[::-1], 8, seed=3)
    by_problem = [turned.texts[8 * i : 8 * i + 8] for i in range(4)]
    assert sum(by_problem[::-1], ()) == rows.texts
    count = round(8 * sampler.share())
    tree = torch.arange(len(rows)) % 8 < count
    assert not rows.sampled[tree, 0].any() and rows.sampled[~tree].equal(rows.mask[~tree])
    assert (rows.parent[~tree] == -1).all() and (rows.fork_at[~tree] == 0).all()
    for i, above in enumerate(rows.parent.tolist()):
        if above < 0:
            continue
        at = int(rows.fork_at[i])
        assert above < i and rows.prompt[above] == rows.prompt[i]
        assert torch.equal(rows.tokens[i, :at], rows.tokens[above, :at])


def test_missing_rows_are_copies_of_the_root_finished_each_by_itself(policy, items):
    rows = lookahead_rollouts(tau_abs=1.0, **SHORT)(policy, items[:3], 8, seed=0)
    begins = rows.tokens.view(3, 8, -1)[..., :9]
    assert torch.equal(begins, begins[:, :1].expand_as(begins))
    assert rows.parent.view(3, 8)[:, 1:].eq(torch.arange(3)[:, None] * 8).all()
    assert (rows.fork_at.view(3, 8)[:, 1:] == 9).all() and len(set(rows.texts)) > 6


def test_without_tree_rows_it_is_sample_and_with_one_place_it_is_greedy(policy, items):
    plain = policy.sample(items, 8, seed=0)
    off = lookahead_rollouts(start=0.0, end=0.0)(policy, items, 8, seed=0)
    late = lookahead_rollouts(horizon=4, **SHORT)
    late.load_state_dict(dict(steps=4))
    for same in (off, late(policy, items, 8, seed=0)):
        assert torch.equal(same.tokens, plain.tokens) and torch.equal(same.mask, plain.mask)
        assert torch.equal(same.logp_behave, plain.logp_behave) and same.sampled.equal(same.mask)
    greedy = policy.sample(items, 1, seed=0, temperature=0.0)
    for elsewhere in ('argmax', 'draw'):
        knobs = dict(longest=48, age=24, elsewhere=elsewhere)
        one = lookahead_rollouts(**knobs)(policy, items, 1, seed=0, temperature=0.0)
        assert torch.equal(one.tokens, greedy.tokens)
    drawn = lookahead_rollouts(longest=48, age=24, elsewhere='draw', tau_abs=1.0)
    assert drawn(policy, items, 1, seed=0).texts != greedy.texts


def test_half_a_group_are_the_plain_rows_of_their_numbers(policy, items):
    half = lookahead_rollouts(start=0.5, end=0.5, **SHORT)(policy, items, 8, seed=5)
    plain = policy.sample(items, 8, seed=5)
    numbers = [i for i in range(32) if i % 8 >= 4]
    assert [half.texts[i] for i in numbers] == [plain.texts[i] for i in numbers]


def test_the_share_falls_and_goes_through_a_checkpoint():
    sampler = lookahead_rollouts(start=1.0, end=0.25, horizon=10, shape='linear')
    shares = []
    for _ in range(12):
        shares.append(sampler.share())
        sampler.update(None)
    assert shares[0] == 1 and shares[5] == 0.625 and 0.25 < shares[9] < 0.4
    assert shares[10] == shares[11] == 0, 'behind the horizon all rows are plain'
    twin = lookahead_rollouts(start=1.0, end=0.25, horizon=10, shape='linear')
    twin.load_state_dict(sampler.state_dict())
    assert twin.steps == 12 and twin.share() == sampler.share()
    constant = lookahead_rollouts(start=0.5, end=0.5, horizon=10)
    constant.load_state_dict(sampler.state_dict())
    assert constant.share() == 0.5, 'a constant share stays'


def test_a_run_that_was_stopped_goes_on_exactly(policy, tmp_path):
    made = recipe('latr', prompts=2, group=4, lr=2e-4)
    made = made.but(sampler=use(made.sampler, horizon=4))

    def end_of(*parts, path=None):
        for steps in parts:
            learner = policy.clone()
            train(learner, task('countdown'), made, steps=steps, seed=0, path=path)
        return torch.cat([p.detach().flatten() for p in learner.model.parameters()])

    assert torch.equal(end_of(2, 4, path=tmp_path / 'run'), end_of(4))


def test_the_fast_decoder_and_the_plain_one_grow_the_same_trees(items):
    texts = [
        lookahead_rollouts(**SHORT)(Policy.load('tiny', fast=fast, bf16=False), items, 6, seed=0)
        for fast in (True, False)
    ]
    assert texts[0].texts == texts[1].texts


# refusals

WRONG = [
    (dict(start=1.5), 'shares of 1.5'),
    (dict(end=0.0), 'both ends above 0'),
    (dict(horizon=0), 'horizon'),
    (dict(age=0), 'age'),
    (dict(longest=0), 'longest'),
    (dict(top=0), 'top'),
    (dict(tau_ed=-1.0), 'tau_ed'),
    (dict(elsewhere='never'), "choose 'argmax' or 'draw'"),
    (dict(looks=()), 'looks'),
    (dict(pruning=None), 'pruning is None, wanted a function'),
    (dict(branching='near'), 'branching is .near., wanted a function'),
    (dict(looks=5), 'looks is 5, wanted whole numbers in a list'),
]


@pytest.mark.parametrize('knobs, words', WRONG, ids=lambda x: str(x)[:20])
def test_wrong_knobs_are_refused_in_one_sentence(knobs, words):
    with pytest.raises(ValueError, match=words) as error:
        lookahead_rollouts(**knobs)
    assert '\n' not in str(error.value)


def test_recipes_differ_from_latr_in_the_sampler_alone():
    for name in ('latr_draw', 'latr_random_branching', 'latr_random_pruning'):
        assert set(recipe(name).diff()) == {'sampler'} and recipe(name).parent == 'latr'
    assert set(recipe('latr').diff()) == {'sampler'} and recipe('latr').parent == 'grpo'
    for a, b in itertools.combinations(('latr', 'latr_draw', 'latr_random_branching'), 2):
        assert recipe(a).fingerprint() != recipe(b).fingerprint()
