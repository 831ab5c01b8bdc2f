"Votes, best-of-n, mixtures and budgets of policies, and whatever takes a policy takes them."

import copy
import dataclasses
import pickle
import numpy as np
import pytest
import torch
from rl4llm import Policy
from rl4llm.analysis.page import report
from rl4llm.core.numerics import keyed_uniform
from rl4llm.core.sampling import choose, row_keys
from rl4llm.inference import (
    Ballots,
    Budgeted,
    Chooser,
    Mixed,
    ballots_of,
    budget_table,
    choice_curve,
    forced_tokens,
    guided,
    mix_logits,
    text_score,
    token_confidence,
    transferred,
)
from rl4llm.rewards.verifier import correct
from rl4llm.rollouts.tree import Forest, Meter, expand_nodes, trees_of
from rl4llm.tasks import task

ITEMS = task('countdown').sample(6, seed=0, split='test')


@pytest.fixture(scope='module')
def base():
    return Policy.load('tiny')


@pytest.fixture(scope='module')
def other(base):
    "A copy whose weights were shaken a little."
    shaken = base.clone()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in shaken.model.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=generator))
    shaken.name = 'shaken'
    return shaken


@pytest.mark.parametrize('w', [0.3, 1.7])
def test_a_mixture_is_the_weighted_sum_of_log_probabilities(base, other, w):
    mixed = guided(base, other, w)
    rows = mixed.sample(ITEMS, 3, seed=0, temperature=1.5)
    with torch.no_grad():
        parts = [x.statistics(rows, ('logits',), temperature=1.0)['logits'] for x in (base, other)]
        logp, entropy = mixed.logprobs(rows)
    by_hand = (1 - w) * parts[0].log_softmax(-1) + w * parts[1].log_softmax(-1)
    by_hand = (by_hand / 1.5).log_softmax(-1)
    chosen = by_hand.gather(-1, rows.tokens[..., None])[..., 0]
    at = rows.mask
    assert torch.allclose(logp[at], chosen[at], atol=1e-4)
    assert torch.allclose(rows.logp_behave[at], chosen[at], atol=1e-3)
    assert torch.allclose(entropy[at], -(by_hand.exp() * by_hand).sum(-1)[at], atol=1e-4)
    assert not logp[~at].any()


def test_rows_of_a_mixture_do_not_depend_on_their_neighbours(base, other):
    mixed = guided(base, other, 1.5, floor=0.1)
    together = mixed.sample(ITEMS, 4, seed=0)
    alone = mixed.sample(ITEMS[2:3], 4, seed=0)
    assert alone.texts == together.texts[8:12]


def test_a_floor_keeps_to_what_the_first_part_finds_plausible(base, other):
    rows = guided(base, other, 3.0, floor=0.3).sample(ITEMS, 8, seed=0)
    with torch.no_grad():
        logp = base.statistics(rows, ('logits',), temperature=1.0)['logits'].log_softmax(-1)
    share = logp.gather(-1, rows.tokens[..., None])[..., 0] - logp.amax(-1)
    assert share[rows.mask].min() > np.log(0.3) - 1e-3
    free = guided(base, other, 3.0).sample(ITEMS, 8, seed=0)
    assert free.texts != rows.texts


def test_the_change_of_no_training_is_none(base, other):
    copy = base.clone()
    carried = transferred(other, copy, base, 2.0).sample(ITEMS, 4, seed=0)
    assert carried.texts == other.sample(ITEMS, 4, seed=0).texts


def test_every_part_that_counts_is_paid_for_and_no_other(base, other):
    for w, active in ((0, [1, 0]), (1, [0, 1]), (0.5, [1, 1])):
        meters = [Meter(base), Meter(other)]
        guided(*meters, w).sample(ITEMS, 2, seed=0)
        assert [bool(meter.passes) for meter in meters] == [bool(x) for x in active]


def test_the_report_takes_a_mixture_and_a_chooser(base, other):
    for policy in (guided(base, other, 0.5), Chooser(base, 2)):
        told = report(base, policy, task('countdown'), items=ITEMS[:3], samples=4)
        assert told.after.model == policy.name and told._repr_html_()


def test_a_chooser_gives_what_the_rule_says(base):
    for rule, score in (('vote', None), ('vote', token_confidence), ('best', token_confidence)):
        chooser = Chooser(base, 8, rule=rule, score=score)
        given = chooser.sample(ITEMS, 1, seed=0)
        drawn = base.sample(ITEMS, 8, seed=0)
        ballots = ballots_of(drawn, score=score or token_confidence)
        name = None if score is None else 'score'
        credit = choice_curve(ballots, [8], rule=rule, score=name)[:, 0]
        right = ballots_of(given).correct[:, 0]
        sure = (credit == 0) | (credit == 1)
        assert (right[sure] == credit[sure]).all() and sure.any()
        assert chooser.drawn == int(drawn.mask.sum()) and chooser.given == int(given.mask.sum())


def test_groups_of_a_chooser_are_kept_apart(base):
    given = Chooser(base, 3).sample(ITEMS, 2, seed=0)
    assert given.prompt.tolist() == [i for i in range(6) for _ in range(2)]
    with pytest.raises(ValueError, match='equally many'):
        ballots_of(dataclasses.replace(given, prompt=given.prompt.flip(0)))


def test_an_unscored_response_has_the_number_for_missing(base):
    rows = base.sample(ITEMS, 2, seed=0)

    def silent(completions):
        return [None] * len(completions)

    assert text_score(silent, missing=0.5)(rows).tolist() == [0.5] * len(rows)
    assert set(text_score(correct)(rows).tolist()) <= {0.0, 1.0}


def test_a_mixture_of_nothing_is_refused(base):
    with pytest.raises(ValueError, match='nothing to mix'):
        Mixed([(base, 0.0)])


@pytest.mark.parametrize('parts', [None, 'tiny', ['tiny'], [('tiny',)], [('tiny', 1.0, 2)]])
def test_parts_of_a_mixture_are_pairs(parts):
    with pytest.raises(ValueError, match='Mixed: a part is .*, wanted a list of'):
        Mixed(parts)
    with pytest.raises(ValueError, match="guided: w is '3'"):
        guided('tiny', 'tiny', '3')


def test_a_mixture_of_mixtures_is_a_mixture(base, other):
    beyond = guided(base, other, 1.5)
    halfway = guided(base, beyond, 0.5)
    flat = guided(base, other, 0.75)
    assert halfway.sample(ITEMS, 4, seed=0).texts == flat.sample(ITEMS, 4, seed=0).texts
    assert transferred(other, beyond, base).sample(ITEMS, 1, seed=0).texts
    for same in (base, beyond):
        with pytest.raises(ValueError, match='one and the same model'):
            guided(same, Meter(same), 2.0)


def test_a_mixture_of_one_part_is_a_temperature(base):
    colder = Mixed([(base, 2.0)]).sample(ITEMS, 4, seed=0)
    assert colder.texts == base.sample(ITEMS, 4, seed=0, temperature=0.5).texts


def test_the_floor_stands_on_the_first_part_whatever_its_weight(base, other):
    floored = guided(base, other, 2.0, floor=0.1)
    unsure, sure = torch.tensor([0.92, 0.08]).log(), torch.tensor([0.1, 0.9]).log()
    assert floored.mix([unsure, sure]).softmax(-1).tolist() == [1, 0]
    assert guided(base, other, 2.0).mix([unsure, sure])[1] > -torch.inf


@pytest.mark.parametrize('scale', [1.0, 1e-7, 1e-30])
def test_the_scale_of_weights_plays_no_part(scale):
    right = np.array([[True, True, False, False]])
    sure = scale * np.array([[0.1, 0.1, 0.9, 0.0]])
    ballots = Ballots([['7', '7', '9', '8']], right, np.ones((1, 4), int), dict(sure=sure))
    assert choice_curve(ballots, [4], score='sure')[0, 0] == 0
    assert choice_curve(ballots, [1, 4])[0].tolist() == [0.5, 1.0]
    many = Ballots(
        [['7', *'9' * 20]],
        np.arange(21)[None] == 0,
        np.ones((1, 21), int),
        dict(sure=scale * (np.arange(21)[None] == 0)),
    )
    assert choice_curve(many, [21], score='sure')[0, 0] == 1


def test_scores_that_cannot_serve_are_named(base):
    rows = base.sample(ITEMS, 2, seed=0)
    for wrong in (1.0, torch.ones(3), torch.ones(12, 1)):
        with pytest.raises(ValueError, match="score 'mine' has shape"):
            ballots_of(rows, mine=lambda r, wrong=wrong: wrong)
    endless = ballots_of(rows, mine=lambda r: torch.full((12,), torch.inf, requires_grad=True))
    with pytest.raises(ValueError, match='finite number'):
        choice_curve(endless, [1], score='mine')
    with pytest.raises(ValueError, match='no items'):
        ballots_of(dataclasses.replace(rows, items=()))
    empty = dataclasses.replace(rows, mask=torch.zeros_like(rows.mask))
    assert not token_confidence(empty).any()


def test_wrappers_are_copied(base, other):
    for policy in (guided(base, other, 0.5), Chooser(base, 2), Meter(base)):
        again = pickle.loads(pickle.dumps(policy))
        assert type(copy.copy(policy)) is type(copy.deepcopy(policy)) is type(again) is type(policy)
        assert again.sample(ITEMS, 2, seed=0).texts == policy.sample(ITEMS, 2, seed=0).texts


def test_what_a_part_rules_out_is_ruled_out(base, other):
    inner = guided(base, other, 0.5, floor=0.5)
    outer = Mixed([(base, 2.0), (inner, -1.0)])
    rows = outer.sample(ITEMS, 4, seed=0)
    with torch.no_grad():
        logp, entropy = outer.logprobs(rows)
    assert rows.logp_behave.isfinite().all() and logp.isfinite().all() and entropy.isfinite().all()
    assert Mixed(iter([(base, 0.5), (other, 0.5)])).sample(ITEMS, 1, seed=0).texts
    with pytest.raises(ValueError, match='1 logits and 2 weights'):
        mix_logits([torch.zeros(3)], [1, 0])


@pytest.fixture(scope='module')
def thinker():
    return Policy.load('tiny-think-v1')


def by_hand(policy, item, seed, budget=None, waits=0, wait='<wait>', room=64):
    "One budgeted response, token by token through plain forwards, and which tokens are forced."
    known = policy.tokenizer.get_vocab()
    begin, end = known['<think>'], known['</think>']
    words = policy.tokenizer(wait, add_special_tokens=False)['input_ids']
    ids, seen = policy.encode_prompts([item], room)
    u = keyed_uniform(seed, row_keys(ids, seen, 1), torch.arange(room))[0]
    said, forced, script = [], [], []
    inside, spent = False, 0
    for t in range(room):
        is_forced = bool(script)
        if script:
            token = script.pop(0)
        else:
            so_far = torch.cat([ids, torch.tensor([said], dtype=ids.dtype)], 1)
            with torch.no_grad():
                logits = policy.model(input_ids=so_far).logits[:, -1]
            token = int(choose(logits, u[t : t + 1])[0])
            if inside and token == end and waits:
                waits -= 1
                token, *script = words
                is_forced = True
        said.append(token)
        forced.append(is_forced)
        if inside and token == end:
            inside = False
        elif inside:
            spent += 1
        elif token == begin:
            inside = True
        if inside and budget is not None and spent >= budget:
            script = [end, known['<answer>']]
        if token == policy.eos:
            break
    return said, forced


@pytest.mark.parametrize(
    'how',
    [
        dict(budget=5),
        dict(waits=1),
        dict(budget=30, waits=2),
        dict(budget=17, waits=3, wait='<backtrack> <wait> 7'),
    ],
)
def test_a_budgeted_row_is_what_plain_forwards_give(thinker, how):
    rows = Budgeted(thinker, **how).sample(ITEMS, 1, seed=3, max_new_tokens=64)
    real = rows.seg >= 0
    for row, item in enumerate(ITEMS):
        said, forced = by_hand(thinker, item, 3, **how)
        assert rows.tokens[row][real[row]].tolist() == said
        assert forced_tokens(rows)[row][real[row]].tolist() == forced
    assert torch.equal(rows.mask, rows.sampled) and not (rows.mask & ~real).any()
    assert not rows.logp_behave[~rows.mask].any()
    with torch.no_grad():
        logp, _ = thinker.logprobs(rows)
    assert torch.allclose(logp, rows.logp_behave, atol=1e-4)


def test_a_budget_that_is_not_reached_changes_nothing(thinker):
    plain = thinker.sample(ITEMS, 4, seed=0, max_new_tokens=200)
    first = [row for row in range(24) if plain.finished[row] and plain.mask[row].sum() < 90]
    assert len(first) > 5
    tight = Budgeted(thinker, 196, reserve=1)
    for policy in (Budgeted(thinker), tight, Budgeted(thinker, 90)):
        rows = policy.sample(ITEMS, 4, seed=0, max_new_tokens=200)
        assert all(rows.texts[row] == plain.texts[row] for row in first)
        assert not forced_tokens(rows)[first].any()
    policies = (Budgeted(thinker), thinker)
    unlimited, plain = (policy.sample(ITEMS, 4, seed=0) for policy in policies)
    assert unlimited.texts == plain.texts and torch.equal(unlimited.tokens, plain.tokens)
    assert torch.equal(unlimited.logp_behave, plain.logp_behave)


@pytest.mark.parametrize('how', [dict(temperature=0.0), dict(temperature=1.5, top_k=3, top_p=0.9)])
def test_a_budgeted_row_does_not_depend_on_its_neighbours(thinker, how):
    policy = Budgeted(thinker, 20, waits=1)
    together = policy.sample(ITEMS, 4, seed=0, **how)
    alone = policy.sample(ITEMS[2:3], 4, seed=0, **how)
    assert alone.texts == together.texts[8:12]


def test_a_budget_of_a_mixture_and_a_vote_over_budgets(thinker, base):
    mixed = Mixed([(thinker, 0.9), (base, 0.1)])
    rows = Budgeted(mixed, 6).sample(ITEMS, 2, seed=0, max_new_tokens=64)
    assert forced_tokens(rows).any()
    with torch.no_grad():
        logp, _ = mixed.logprobs(rows)
    assert torch.allclose(logp, rows.logp_behave, atol=1e-3)
    assert len(Chooser(Budgeted(thinker, 6), 3).sample(ITEMS, 1, seed=0)) == 6


def test_a_model_that_does_not_think_is_left_alone(base):
    short = Budgeted(base, 1, waits=3)
    assert short.sample(ITEMS, 4, seed=0).texts == base.sample(ITEMS, 4, seed=0).texts
    assert short.forced == short.cut == short.waited == 0 < short.drawn


def test_a_thought_that_the_prompt_opened_is_cut_too(thinker):
    asked = [f'{item.prompt("compact")} <think>' for item in ITEMS]
    policy = Budgeted(thinker, 4)
    rows = policy.sample(asked, 2, seed=0)
    assert policy.cut == 12
    assert all(text.split()[4:6] == ['</think>', '<answer>'] for text in rows.texts)


@pytest.mark.slow
def test_the_report_and_the_trees_take_budgeted_rows(thinker):
    policy = Budgeted(thinker, 8)
    told = report(thinker, policy, task('countdown'), items=ITEMS[:3], samples=4)
    assert told.after.model == policy.name and told._repr_html_()
    rows = policy.sample(ITEMS, 2, seed=0)
    rows.rewards[:] = 0.0
    assert sum(len(tree.leaves) for tree in trees_of(rows)) > 6
    assert rows._repr_html_()


def test_who_draws_by_itself_is_told_that_it_would_miss_the_budget(thinker):
    with pytest.raises(ValueError, match='only its `sample` keeps to the budget'):
        expand_nodes(Forest(Budgeted(thinker, 8), ITEMS[:1], seed=0), [(0, 0)])


def test_a_table_of_budgets_counts_what_was_spent(thinker):
    table = budget_table(thinker, ITEMS, [2, None], samples=4)
    plain = thinker.sample(ITEMS, 4, seed=0)
    assert table.loc[None, 'drawn'] == int(plain.mask.sum()) / 24
    assert table.loc[2, 'forced'] == 2 * table.loc[2, 'cut'] > 0
    assert table.loc[2, 'passes'] < table.loc[None, 'passes']


@pytest.mark.parametrize(
    'how, said',
    [
        (dict(budget=0), 'budget is 0'),
        (dict(budget=2.5), 'budget is 2.5'),
        (dict(waits=-1), 'waits is -1'),
        (dict(waits=1, wait=''), 'wait is an empty text'),
        (dict(waits=1, wait=None), 'wait is None, wanted a text'),
        (dict(waits=1, wait='</think>'), "wait is '</think>', wanted words without the tags"),
        (dict(waits=1, wait='</think> <think>'), "wait is '</think> <think>'"),
        (dict(waits=1, wait='<eos>'), "wait is '<eos>'"),
        (dict(budget=8, answer='<think>'), "answer is '<think>'"),
        (dict(budget=8, answer='<eos>'), "answer is '<eos>'"),
        (dict(budget=8, answer=3), 'answer is 3, wanted a text'),
        (dict(budget=8, tags=('<think>', '<think>')), 'wanted two different texts'),
        (dict(budget=8, tags=('<think>',)), 'wanted two different texts'),
        (dict(budget=8, tags='<think>'), 'wanted two different texts'),
        (dict(budget=8, tags=None), 'tags is None'),
        (dict(budget=8, reserve=0), 'reserve is 0'),
        (dict(wait='perhaps so'), 'does not know all words'),
        (dict(tags=('<a>', '<b>')), 'no token <a> and no token <b>'),
    ],
)
def test_a_budget_that_cannot_be_is_refused(thinker, how, said):
    with pytest.raises(ValueError, match=said):
        Budgeted(thinker, **how)


def test_a_budget_leaves_room_for_an_answer(thinker):
    with pytest.raises(ValueError, match='lower the budget to 229'):
        Budgeted(thinker, 230).sample(ITEMS, 1, seed=0)
    with pytest.raises(ValueError, match='reserve is 24: raise max_new_tokens to 57'):
        Budgeted(thinker, 30).sample(ITEMS, 1, seed=0, max_new_tokens=4)
    with pytest.raises(ValueError, match='27 more are needed'):
        Budgeted(thinker, 14).sample(ITEMS, 1, seed=0, max_new_tokens=40)
    assert Budgeted(thinker, 30, reserve=1).sample(ITEMS, 1, seed=0, max_new_tokens=34).texts


def test_behind_a_cut_there_is_an_answer(thinker):
    "With the least room that is allowed, a cut is nearly always followed by a whole answer."
    policy = Budgeted(thinker, 33)
    rows = policy.sample(ITEMS, 8, seed=0, max_new_tokens=60)
    cut = ((rows.tokens == policy.script.end) & forced_tokens(rows)).any(1).tolist()
    ends = [rows.texts[row].endswith('</answer>') for row in range(len(rows)) if cut[row]]
    assert len(ends) > 10 and sum(ends) > 0.8 * len(ends)
