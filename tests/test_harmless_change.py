"""VOGUE: uncertainty under another order of the numbers, by hand, and what rows come to."""

import dataclasses, math
import pytest, torch
from conftest import weights
from rl4llm.advantages import harmless_change as module
from rl4llm.advantages.group_relative import grpo
from rl4llm.advantages.harmless_change import (
    bonus_counts,
    capped_bonus,
    changed_rows,
    changed_sample,
    order_sensitivity,
    order_uncertainty,
    plain_prompts,
    prompt_divergence,
    reordered,
    symmetric_kl,
    uncertainty_bonus,
)
from rl4llm.core.policy import Policy
from rl4llm.core.registry import recipe, use
from rl4llm.core.rollouts import check_drawn, make_rollouts, rows_of
from rl4llm.core.signals import scored
from rl4llm.tasks import Item, task
from rl4llm.training.callbacks import Checkpoint
from rl4llm.training.loop import train

EASY = task('countdown', level='easy')


@pytest.fixture(scope='module')
def policy():
    return Policy.load('tiny', fast=True, bf16=False, graphs=False)


@pytest.fixture(scope='module')
def rows(policy):
    drawn = changed_sample()(policy, EASY.sample(4, seed=2), 8, seed=3)
    return scored(policy, drawn, use('correct'))


def test_another_order_is_the_same_problem():
    for item in task('countdown', level='hard').sample(20, seed=0):
        twin = reordered(item, seed=5)
        assert twin.data[0] != item.data[0] and sorted(twin.data[0]) == sorted(item.data[0])
        assert twin.data[1:] == item.data[1:] and twin.key == item.key
        assert twin == reordered(item, seed=5)
        answer = EASY.demonstrate(item, seed=1)
        assert EASY.verify(item, answer) == EASY.verify(twin, answer)
    alike = Item('countdown', ((7, 7), 14, 99, '+-*'))
    assert reordered(alike, seed=0) is alike and reordered('4 5 6', seed=0) == '4 5 6'


def test_every_other_order_is_as_probable():
    item = Item('countdown', ((2, 3, 5), 10, 99, '+-*'))
    drawn = [reordered(item, seed=seed).data[0] for seed in range(1000)]
    counts = {order: drawn.count(order) for order in set(drawn)}
    assert len(counts) == 5 and all(150 < count < 250 for count in counts.values())


def test_symmetric_divergence_by_hand():
    p, q = torch.tensor([0.9, 0.1]).log().double(), torch.tensor([0.5, 0.5]).log().double()
    one = 0.9 * math.log(1.8) + 0.1 * math.log(0.2)
    other = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(5)
    assert float(symmetric_kl(p, q)) == pytest.approx((one + other) / 2, abs=1e-7)
    assert symmetric_kl(p, q) == symmetric_kl(q, p) and symmetric_kl(p, p) == 0
    assert symmetric_kl(p + 5, q).allclose(symmetric_kl(p, q))
    with pytest.raises(ValueError, match='the other logits'):
        symmetric_kl(p, q[:1])


def test_capped_bonus_by_hand():
    adv = torch.tensor([[2.0, -2.0, 0.0]])
    signal = torch.tensor([[0.3, 5.0, 5.0]])
    assert capped_bonus(signal, adv, alpha=2.0, beta=4.0).tolist() == [[0.5, 0.5, 0.0]]
    assert capped_bonus(signal, adv, alpha=1.0, beta=4.0)[0, 0] == signal[0, 0]
    for bad in (dict(alpha=1.0, beta=0.0), dict(alpha=-1.0, beta=2.0)):
        with pytest.raises(ValueError):
            capped_bonus(signal, adv, **bad)


def test_rows_replay_under_the_prompt_they_were_drawn_from(policy, rows):
    logp, _ = policy.logprobs(rows)
    assert (logp - rows.logp_behave)[rows.mask].abs().max() < 1e-4
    assert changed_rows(rows).view(4, 8).tolist() == [[False] * 4 + [True] * 4] * 4
    other = dataclasses.replace(rows, prompt=(rows.prompt + 4) % 8)
    assert (policy.logprobs(other)[0] - rows.logp_behave)[rows.mask].abs().max() > 0.01
    # what the row says it was asked is what the tokens of its prompt say
    asked = policy.prompts(rows.items)
    ids = [row[seen].tolist() for row, seen in zip(rows.prompt_ids, rows.prompt_mask)]
    assert [policy.tokenizer.decode(i[1:]).split() for i in ids] == [text.split() for text in asked]


def test_copies_stand_behind_the_problems(policy, rows):
    items = list(rows.items[:4])
    assert check_drawn(rows, items, 'changed_sample') is rows
    strange = dataclasses.replace(rows, items=(*items, *EASY.sample(4, seed=77)))
    with pytest.raises(ValueError, match='wanted the 4 that were asked'):
        check_drawn(strange, items, 'changed_sample')
    assert plain_prompts(rows).tolist() == rows.group.tolist()


def test_share_of_changed_rows_falls_to_nothing(policy):
    sampler = changed_sample(horizon=10)
    counts = []
    for step in range(12):
        counts.append(sampler.rows_changed(16, seed=step))
        sampler.update(None)
    wanted = [max(0, 8 - 0.8 * step) for step in range(12)]
    assert all(abs(count - x) < 1 for count, x in zip(counts, wanted))
    assert counts[0] == 8 and counts[10:] == [0, 0]
    items = EASY.sample(2, seed=0)
    ended, plain = sampler(policy, items, 4, seed=9), policy.sample(items, 4, seed=9)
    assert torch.equal(ended.tokens, plain.tokens) and len(ended.items) == 2


def test_other_problems_are_drawn_as_they_are(policy):
    items = task('modular').sample(2, seed=0)
    drawn, plain = changed_sample()(policy, items, 4, seed=1), policy.sample(items, 4, seed=1)
    assert torch.equal(drawn.tokens, plain.tokens) and not changed_rows(drawn).any()
    both = [items[0], *EASY.sample(1, seed=0)]
    mixed = changed_sample()(policy, both, 4, seed=1)
    assert changed_rows(mixed).tolist() == [False] * 4 + [False] * 2 + [True] * 2
    alike = [Item('countdown', ((3, 3, 3), 12, 99, '+-*')), both[1]]
    mixed = changed_sample()(policy, alike, 16, seed=1)
    assert not changed_rows(mixed)[:16].any() and mixed.texts[:8] != mixed.texts[8:16]


def test_uncertainty_is_that_of_whole_distributions(policy, rows):
    U = order_uncertainty(rows.rewards, rows.group, rollouts=rows, policy=policy)
    row = int(changed_rows(rows).nonzero()[0])
    plain = rows.prompt_ids[rows.group[row]][rows.prompt_mask[rows.group[row]]]
    twin = rows.prompt_ids[rows.prompt[row]][rows.prompt_mask[rows.prompt[row]]]
    said = rows.tokens[row][rows.mask[row]]
    with torch.no_grad():
        p, q = (
            policy.model(torch.cat([x, said])[None])
            .logits[0, len(x) - 1 : -1]
            .double()
            .log_softmax(-1)
            for x in (plain, twin)
        )
    wanted = ((p.exp() * (p - q)).sum(-1) + (q.exp() * (q - p)).sum(-1)) / 2
    assert U[row][rows.mask[row]].double().allclose(wanted, atol=1e-5)
    assert (U >= 0).all() and not U[~changed_rows(rows)].any() and not U[~rows.mask].any()
    assert prompt_divergence(policy, rows, rows.prompt).max() == 0


def test_tokens_that_carry_no_loss_have_no_uncertainty(policy, rows):
    short = rows.mask.clone()
    short[::2, -4:] = False
    cut = dataclasses.replace(rows, mask=short)
    found = prompt_divergence(policy, cut, plain_prompts(cut))
    whole = prompt_divergence(policy, rows, plain_prompts(rows))
    assert not found[~short].any() and found[short].allclose(whole[short], atol=1e-6)


def test_rows_in_another_order_have_the_same_bonus(policy, rows):
    H = policy.logprobs(rows)[1].detach()
    given = dict(policy=policy, old_entropy=H)
    straight = uncertainty_bonus(rows.rewards, rows.group, rollouts=rows, **given)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    turned = rows_of(rows, order)
    given['old_entropy'] = H[order]
    found = uncertainty_bonus(turned.rewards, turned.group, rollouts=turned, **given)
    assert found.allclose(straight[order], atol=1e-5)
    unscored = rows.rewards.clone()
    unscored[-1] = math.nan
    given['old_entropy'] = H
    assert not uncertainty_bonus(unscored, rows.group, rollouts=rows, **given)[-1].any()


def test_caps_cancel_blame_and_never_turn_it(policy):
    ids = torch.tensor([[5, 6], [6, 5]])
    two = torch.ones(4, 2).bool()
    four = make_rollouts(
        prompt_ids=ids,
        prompt_mask=ids > 0,
        tokens=two.long(),
        mask=two,
        prompt=torch.tensor([0, 0, 1, 1]),
        group=torch.zeros(4).long(),
        rewards=torch.tensor([1.0, 0.0, 1.0, 0.0]),
    )
    loud = torch.full((4, 2), 99.0)
    told = dict(policy=None, old_entropy=loud, signal=lambda rewards, group, **more: loud)
    adv = uncertainty_bonus(four.rewards, four.group, rollouts=four, **told)
    plain = grpo(four.rewards, four.group)
    assert torch.equal(adv[:2], plain[:2, None].expand(2, 2))
    assert adv[2].allclose(2 * plain[2]) and not adv[3].any()
    counts = bonus_counts(dataclasses.replace(four), adv)
    assert counts == dict(changed=2, paid=4, part=pytest.approx(1.0), cancelled=2, turned=0)
    turned = uncertainty_bonus(four.rewards, four.group, rollouts=four, beta=1.0, **told)
    assert bonus_counts(four, turned)['turned'] == 2
    alike = torch.ones(4)
    assert not uncertainty_bonus(alike, four.group, rollouts=four, **told).any()


def two_of_four(rewards):
    "Rows of two tokens, the second of which is not real in the last row; two have a copy."
    ids = torch.tensor([[5, 6], [6, 5]])
    real = torch.ones(4, 2).bool()
    real[3, 1] = False
    return make_rollouts(
        prompt_ids=ids,
        prompt_mask=ids > 0,
        tokens=real.long(),
        mask=real,
        prompt=torch.tensor([0, 0, 1, 1]),
        group=torch.zeros(4).long(),
        rewards=torch.tensor(rewards).double(),
    )


def test_counts_of_bonuses_by_hand():
    four = two_of_four([1.0, 0.0, 1.0, 0.0])
    plain = grpo(four.rewards, four.group)[:, None].expand(4, 2)
    blame = float(-plain[3, 0])
    bonus = torch.zeros(4, 2).double()
    bonus[3, 0] = blame / 4  # less blame, neither gone nor turned
    counts = bonus_counts(four, (plain + bonus) * four.mask)
    assert counts == dict(changed=2, paid=1, part=pytest.approx(0.25), cancelled=0, turned=0)
    alike = two_of_four([1.0] * 4)  # nobody is blamed
    counts = bonus_counts(alike, bonus)
    assert (counts['paid'], counts['cancelled'], counts['turned']) == (1, 0, 0)


def test_one_of_two_rows_is_changed_and_the_only_one_is_not(policy):
    items = EASY.sample(2, seed=0)
    pair = changed_sample()(policy, items, 2, seed=1)
    assert changed_rows(pair).tolist() == [False, True] * 2
    assert changed_sample()(policy, items, seed=1).prompt.tolist() == [0, 1]


class Worded(Item):
    "Problems that all count as one, whatever their words."

    key = 'one'


def test_a_copy_of_another_length_is_read_whole(policy):
    one, other = EASY.sample(2, seed=0)
    short = Worded(one.task, one.data)
    longer = dataclasses.replace(short, data=((*short.data[0], 7, 8), *short.data[1:]))
    for items, change in (
        ([short, other], lambda item, seed: longer if item == short else item),
        ([longer, other], lambda item, seed: short if item == longer else item),
    ):
        drawn = changed_sample(change=change)(policy, items, 4, seed=1)
        asked = policy.prompts(drawn.items)
        ids = [row[seen].tolist() for row, seen in zip(drawn.prompt_ids, drawn.prompt_mask)]
        said = [policy.tokenizer.decode(row[1:]).split() for row in ids]
        assert said == [text.split() for text in asked] and len(set(map(len, said))) > 1
        assert changed_rows(drawn).tolist() == [False] * 2 + [True] * 2 + [False] * 4
        logp, _ = policy.logprobs(drawn)
        assert (logp - drawn.logp_behave)[drawn.mask].abs().max() < 1e-4


@pytest.mark.parametrize('given', [EASY.sample(1, seed=9)[0], '<countdown> 1 2 3 -> 6 :', None])
def test_another_problem_is_no_copy(policy, given):
    items = EASY.sample(2, seed=0)
    sampler = changed_sample(change=lambda item, seed: given if item == items[1] else item)
    with pytest.raises(ValueError, match='wanted the same problem in other words'):
        sampler(policy, items, 4, seed=1)


def test_another_wording_of_a_text_is_taken_as_it_is(policy):
    asked = EASY.sample(1, seed=0)[0].prompt('compact')
    turned = changed_sample(change=lambda text, seed: text.replace('<countdown>', '<countdown> 9'))
    assert changed_rows(turned(policy, [asked], 4, seed=1)).tolist() == [False] * 2 + [True] * 2


def test_the_task_writes_ascending_numbers_only():
    items = [
        x for level in ('easy', 'standard') for x in task('countdown', level).sample(40, seed=7)
    ]
    assert all(list(x.data[0]) == sorted(x.data[0]) for x in items)
    unlike = [x for x in items if len(set(x.data[0])) > 1]
    assert all(list(reordered(x, seed=1).data[0]) != sorted(x.data[0]) for x in unlike)


def test_a_group_without_its_plain_rows_has_no_changed_ones(policy, rows):
    "Only the copy is left of the first group, and nothing tells it from a problem."
    left = rows_of(rows, (rows.group != 0) | changed_rows(rows))
    assert changed_rows(left).tolist() == [False] * 4 + changed_rows(rows)[8:].tolist()


def test_the_entropy_bonus_alone(policy, rows):
    given = dict(rollouts=rows, policy=policy, old_entropy=policy.logprobs(rows)[1].detach())
    plain = grpo(rows.rewards, rows.group)[:, None]
    both, entropy, uncertain = (
        uncertainty_bonus(rows.rewards, rows.group, **given, **knobs) - plain
        for knobs in ({}, dict(alpha=0.0), dict(alpha_entropy=0.0))
    )
    assert both.allclose(entropy + uncertain, atol=1e-6)
    assert entropy[rows.mask].sum() > uncertain[rows.mask].sum() > 0


def test_without_changed_rows_it_is_its_parent(policy):
    off = use(changed_sample, start=0.0)
    small = dict(prompts=2, group=8, lr=1e-3)
    ends = []
    for made in (recipe('vogue', sampler=off, **small), recipe('grpo', **small)):
        learner = policy.clone()
        train(learner, EASY, made, steps=2, seed=1)
        ends.append(weights(learner))
    assert torch.equal(*ends)


def test_the_idea_acts_and_goes_on_bit_for_bit(policy, tmp_path):
    made = recipe('vogue', prompts=2, group=8, lr=1e-3, sampler=use(changed_sample, horizon=6))

    def end_of(made, *parts, path=None):
        for steps in parts:
            learner = policy.clone()
            saved = [] if path is None else [Checkpoint(every=1)]
            train(learner, EASY, made, steps=steps, seed=1, path=path, callbacks=saved)
        return weights(learner)

    straight = end_of(made, 3)
    assert torch.equal(end_of(made, 2, 3, path=tmp_path / 'run'), straight)
    come = (straight - weights(policy)).norm()
    for other in ('vogue_plain', 'vogue_shuffled'):
        advantage = recipe(other).advantage
        assert (end_of(made.but(advantage=advantage), 3) - straight).norm() > 1e-4 * come


def test_sensitivity_of_each_problem(policy):
    items = EASY.sample(3, seed=0)
    found = order_sensitivity(policy, items, 4, seed=0)
    assert found.shape == (3,) and (found > 0).all()
    same = order_sensitivity(policy, items, 4, seed=0, change=lambda item, seed: item)
    assert not same.any()


def test_sensitivity_is_the_mean_over_the_copies_of_a_problem(policy, monkeypatch):
    seen = []

    def numbered(rewards, group, *, rollouts, policy):
        seen.append(rollouts)
        return group.double()[:, None].expand(rollouts.mask.shape)

    monkeypatch.setattr(module, 'order_uncertainty', numbered)
    items = EASY.sample(3, seed=0)
    assert order_sensitivity(policy, items, 4, seed=0).tolist() == [0, 1, 2]
    (rows,) = seen
    assert rows.group[changed_rows(rows)].bincount().tolist() == [4] * 3


def test_bad_input_is_answered_in_one_sentence(policy, rows):
    with pytest.raises(ValueError, match='shares of 2 and 0, wanted numbers from 0 to 1'):
        changed_sample(start=2)
    with pytest.raises(ValueError, match='horizon'):
        changed_sample(horizon=0)
    with pytest.raises(ValueError, match='change is None, wanted a function'):
        changed_sample(change=None)
    one = torch.ones(1, 2)
    with pytest.raises(ValueError, match='signal of -1, wanted numbers of at least 0'):
        capped_bonus(-one, one, alpha=1.0, beta=2.0)
    rounded = capped_bonus(-1e-5 * one, one, alpha=1.0, beta=2.0)
    assert rounded.abs().max() < 1e-4
    with pytest.raises(ValueError, match='the numbers of other prompts'):
        prompt_divergence(policy, rows, rows.prompt[:3])
    with pytest.raises(ValueError, match='the advantages'):
        bonus_counts(rows, rows.rewards)


def test_a_bonus_beside_no_advantage_is_a_number():
    four = two_of_four([1.0] * 4)
    bonus = torch.zeros(4, 2)
    bonus[2, 0] = 0.5
    counts = bonus_counts(four, bonus)
    assert counts['paid'] == 1 and math.isfinite(counts['part'])


def test_the_copy_is_named_before_the_problem():
    sampler = changed_sample(change=lambda item, seed: 'another text')
    with pytest.raises(ValueError, match="gave 'another text' for Item"):
        sampler(None, EASY.sample(1, seed=0), 2, seed=0)
