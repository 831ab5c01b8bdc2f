"""Gains of steps: values and turning points by hand, what reduces to what, bad input, resume."""

import dataclasses
import math
import pytest, torch
from conftest import weights
from rl4llm.advantages.group_relative import grpo
from rl4llm.core.placebos import placebo
from rl4llm.core.policy import Policy
from rl4llm.core.registry import recipe, use
from rl4llm.core.rollouts import rows_of
from rl4llm.core.signals import scored
from rl4llm.rollouts import step_gains as module
from rl4llm.rollouts.step_gains import (
    beginning_values,
    compare_steps,
    dense_grpo,
    gains,
    step_numbers,
    step_values,
    steps_as_tokens,
    to_tokens,
    tp_grpo,
    turning_points,
    turning_rewards,
    value_gains,
)
from rl4llm.rollouts.tree import Meter
from rl4llm.tasks import task
from rl4llm.training.callbacks import Checkpoint
from rl4llm.training.loop import train

EASY = task('countdown', level='easy')
STANDARD = task('countdown', level='standard')


@pytest.fixture(scope='module')
def policy():
    return Policy.load('tiny', fast=True, bf16=False, graphs=False)


@pytest.fixture(scope='module')
def rows(policy):
    return scored(policy, policy.sample(STANDARD.sample(6, seed=1), 6, seed=1), use('correct'))


@pytest.fixture(scope='module')
def values(policy, rows):
    return step_values(rows.rewards, rows.group, rollouts=rows, policy=policy, samples=4)


def asked(rows, policy, **how):
    return dict(rewards=rows.rewards, group=rows.group, rollouts=rows, policy=policy, **how)


def test_steps_end_behind_separators(policy, rows):
    number = step_numbers(rows.rewards, rows, policy)
    (semicolon,) = policy.tokenizer(';', add_special_tokens=False)['input_ids']
    for ids, mask, steps in zip(rows.tokens, rows.mask, number):
        step, wanted = 1, []
        for token in ids[mask].tolist():
            wanted.append(step)
            step += token == semicolon
        assert steps[mask].tolist() == wanted and not steps[~mask].any()
    fours = step_numbers(rows.rewards, rows, policy, every=4)
    assert fours[0, : int(rows.mask[0].sum())].tolist()[:9] == [1, 1, 1, 1, 2, 2, 2, 2, 3]
    unscored = rows.rewards.clone()
    unscored[2] = math.nan
    assert not step_numbers(unscored, rows, policy)[2].any()


def test_greedy_values_by_hand(policy, rows):
    values = step_values(**asked(rows, policy))
    number = step_numbers(rows.rewards, rows, policy)
    row = int(number.amax(1).argmax())
    item, count = rows.items[int(rows.prompt[row])], int(number[row].max())
    start = policy.encode_prompts([item])[0][0].tolist()
    for step in range(count):
        said = rows.tokens[row][(number[row] > 0) & (number[row] <= step)].tolist()
        tail = list(said)
        while len(tail) < 48 and (not tail or tail[-1] != policy.eos):
            with torch.no_grad():
                logits = policy.model(torch.tensor([start + tail])).logits[0, -1]
            tail.append(int(logits.argmax()))
        ids = torch.tensor([tail])
        (text,) = policy.decode(ids, ids >= 0)
        assert values[row, step] == float(STANDARD.verify(item, text).correct)
    assert values[row, count] == rows.rewards[row] and values[row, count + 1 :].isnan().all()


def test_gains_add_up(rows, values):
    assert torch.allclose(gains(values).nansum(1), rows.rewards - values[:, 0])
    known = values[~values.isnan()]
    assert torch.equal(known * 4, (known * 4).round())
    for g in rows.group.unique():
        assert len(values[rows.group == g, 0].unique()) == 1


def test_values_do_not_depend_on_neighbours(policy, rows, values):
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(3))
    turned = rows_of(rows, order)
    found = step_values(**asked(turned, policy, samples=4))
    assert torch.equal(found.nan_to_num(-1), values[order].nan_to_num(-1))
    few = order[:5]
    alone = step_values(**asked(rows_of(rows, few), policy, samples=4))
    wanted = values[few, : alone.shape[1]]
    assert torch.equal(alone.nan_to_num(-1), wanted.nan_to_num(-1))
    other = step_values(**asked(rows, policy, samples=4, seed=1))
    assert not torch.equal(other.nan_to_num(-1), values.nan_to_num(-1))


def test_shared_beginnings_are_continued_once(policy, rows):
    meter = Meter(policy)
    step_values(**asked(rows, meter, separators=()))
    assert meter.read == int(rows.prompt_mask.sum())
    assert meter.fed <= 48 * len(rows.items)


def test_room_is_what_the_response_had(policy, rows):
    longest = (0, tuple(rows.tokens[0][rows.mask[0]].tolist()))
    assert beginning_values(policy, rows, [longest], room=1) == [float(rows.rewards[0])]
    assert beginning_values(policy, rows, [(0, ())], room=1) == [0.0]


def test_a_full_row_is_not_continued(policy):
    (item,) = EASY.sample(1, seed=5)
    asked = policy.sample([item], 1, seed=0)
    said = policy.tokenizer(EASY.demonstrate(item, seed=0), add_special_tokens=False)['input_ids']
    begun = [(0, tuple(said[:-1]))]
    verdicts = [
        beginning_values(policy, asked, begun, room=len(said) - 1 + more)[0] for more in (0, 2)
    ]
    assert verdicts == [0.0, 1.0]


class Stopped(Exception):
    pass


def asked_room(monkeypatch, policy, rows, places, **how):
    "The room of each beginning and the shape of the noise with which it would be continued."
    seen = {}

    def noted(policy, begun, u, *, room, temperature):
        seen.update(room=room.tolist(), noise=u.shape[1])
        raise Stopped

    monkeypatch.setattr(module, 'continue_rows', noted)
    with pytest.raises(Stopped):
        beginning_values(policy, rows, places, **how)
    return seen['room'], seen['noise']


def test_room_ends_at_the_models_context(policy, rows, monkeypatch):
    places = [(0, ()), (1, (5, 6, 7))]
    read = rows.prompt_mask.sum(1).tolist()
    room, noise = asked_room(monkeypatch, policy, rows, places, room=10**4)
    assert room == [policy.context - read[0], policy.context - read[1] - 3]
    assert noise == max(room)


def test_room_is_the_policys_or_the_longest_rows(policy, rows, monkeypatch):
    longest = int(rows.mask.sum(1).max())
    for own, wanted in ((3, longest), (90, 90)):
        monkeypatch.setattr(module, 'response_room', lambda policy: own)
        assert asked_room(monkeypatch, policy, rows, [(0, ())]) == ([wanted], wanted)


def test_greedy_values_have_no_seed(policy, rows):
    once, again = (step_values(**asked(rows, policy, seed=seed)) for seed in (0, 1))
    assert torch.equal(once.nan_to_num(-1), again.nan_to_num(-1))


def test_unscored_rows_have_no_part(policy, rows):
    rewards = rows.rewards.clone()
    rewards[4] = math.nan
    part = dataclasses.replace(rows, rewards=rewards)
    values = step_values(**asked(part, policy))
    assert values[4].isnan().all()
    for stage in (dense_grpo, tp_grpo):
        adv = stage(**asked(part, policy))
        assert adv.isfinite().all() and not adv[4].any()
    nothing = dataclasses.replace(rows, rewards=torch.full_like(rewards, math.nan))
    assert not dense_grpo(**asked(nothing, policy)).any()


def test_compared_by_hand():
    x = torch.tensor([[1.0, 0.0], [1.0, -1.0], [0.0, math.nan]])
    found = compare_steps(x, torch.zeros(3).long(), eps=0.0)
    first = 3**-0.5
    assert torch.allclose(found[:, 0], torch.tensor([first, first, -2 * first]))
    assert torch.allclose(found[:, 1], torch.tensor([0.5**0.5, -(0.5**0.5), 0.0]))
    apart = compare_steps(x, torch.arange(3))
    assert not apart.any()  # nobody to compare with
    number = torch.tensor([[1, 2, 2], [1, 1, 2], [1, 0, 0]])
    assert to_tokens(x.nan_to_num(0), number).tolist() == [[1, 0, 0], [1, 1, -1], [0, 0, 0]]


V = torch.tensor(
    [
        [0.5, 0.25, 0.75, 1.0],  # falls, turns, ends right
        [0.5, 0.75, 0.25, 0.0],  # rises, turns, ends wrong
        [0.0, 0.5, 0.5, 1.0],  # the first step goes with the whole
        [0.5, 1.0, 0.25, 1.0],  # turns at its end
        [0.5, 0.25, 1.0, math.nan],  # shorter, and turns at its end
    ]
)
TURNS = [[0, 1, 0], [0, 1, 0], [1, 0, 0], [1, 0, 1], [0, 1, 0]]
CONSISTENT = [[0, 1, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_turning_points_by_hand():
    assert turning_points(V).int().tolist() == TURNS
    assert turning_points(V, consistent=True).int().tolist() == CONSISTENT


def test_rewards_of_the_three_modes_by_hand():
    def found(**how):
        return turning_rewards(V[:, -1], torch.zeros(5).long(), rollouts=None, values=V, **how)

    local = [[-0.25, 0.75, 0.25], [0.25, -0.75, -0.25], [1, 0, 0.5], [0.5, -0.75, 0.75]]
    assert found().nan_to_num(9).tolist() == [*local, [-0.25, 0.75, 9]]
    outcome = [[0.5, 1.0, 0.5], [-0.5, -1.0, -0.5], [1.5, 1, 1], [1.0, 0.5, 1.25], [0.5, 1.25, 9]]
    assert found(mode='outcome').nan_to_num(9).tolist() == outcome
    bonus = [[-0.25, 2.0, 0.25], [0.25, -2.0, -0.25], [2.5, 0, 0.5], [1.5, -0.75, 2.25]]
    assert found(mode='bonus', eta=2).nan_to_num(9).tolist() == [*bonus, [-0.25, 2.25, 9]]
    assert torch.equal(found(mode='bonus', eta=0).nan_to_num(9), gains(V).nan_to_num(9))


def test_consistency_changes_nothing_where_the_end_is_an_extreme():
    five = torch.linspace(0, 1, 5)
    values = torch.cartesian_prod(five, five, five, torch.tensor([0.0, 1.0]))
    told = dict(rewards=values[:, -1], group=torch.zeros(len(values)).long(), rollouts=None)
    local = turning_rewards(**told, values=values)
    assert torch.equal(turning_rewards(**told, values=values, consistent=True), local)
    assert not torch.equal(local, gains(values))
    binary = values[((values == 0) | (values == 1)).all(1)]
    assert torch.equal(turning_rewards(**told, values=binary), gains(binary))


def test_one_step_a_row_is_grpo(policy, rows):
    plain = grpo(rows.rewards, rows.group)[:, None] * rows.mask
    assert plain.any()
    for samples in (0, 4):
        how = asked(rows, policy, separators=(), samples=samples)
        assert torch.allclose(dense_grpo(**how), plain, atol=1e-5)
        assert torch.allclose(tp_grpo(**how, mode='outcome', eta=0), plain, atol=1e-5)


def test_greedy_turning_points_change_nothing(policy, rows):
    plain = dense_grpo(**asked(rows, policy))
    assert torch.equal(tp_grpo(**asked(rows, policy, samples=0)), plain)
    assert torch.equal(tp_grpo(**asked(rows, policy, samples=0, mode='bonus', eta=0)), plain)
    drawn = dense_grpo(**asked(rows, policy, samples=4))
    assert not torch.equal(tp_grpo(**asked(rows, policy)), drawn)


def test_all_tokens_of_a_step_have_one_advantage(policy, rows):
    number = step_numbers(rows.rewards, rows, policy)
    for name in ('dense_grpo', 'dense_grpo_dealt', 'tp_grpo', 'tp_grpo_outcome'):
        adv = recipe(name).advantage(rows.rewards, rows.group, rollouts=rows, policy=policy)
        for row, steps in zip(adv, number):
            for step in range(1, int(steps.max()) + 1):
                assert len(row[steps == step].unique()) == 1
        assert not adv[number == 0].any()


def test_placebo_keeps_the_total(policy, rows, values):
    steps = steps_as_tokens(rows, step_numbers(rows.rewards, rows, policy))
    told = dict(rollouts=steps, values=values)
    plain = value_gains(rows.rewards, rows.group, **told)
    dealt = placebo(value_gains, among='tokens')(rows.rewards, rows.group, **told)
    assert torch.allclose(dealt.nansum(1), plain.nansum(1)) and not torch.equal(dealt, plain)
    assert torch.equal(dealt.isnan(), plain.isnan())
    for mine, other, real in zip(dealt, plain, steps.mask):
        assert torch.equal(mine[real].sort().values, other[real].sort().values)


def test_across_the_whole_group(policy, rows, values):
    found = dense_grpo(**asked(rows, policy, samples=4, across='group'))
    number = step_numbers(rows.rewards, rows, policy)
    d = gains(values)
    own = rows.group == 2
    known = d[own][~d[own].isnan()]
    wanted = (d[own] - known.mean()) / (known.std() + 1e-4)
    assert torch.allclose(found[own], to_tokens(wanted.nan_to_num(0), number[own]), atol=1e-5)


def end_of(policy, name, *parts, path=None):
    "The weights after runs of so many steps in one folder, one after the other."
    made = recipe(name, prompts=2, group=4, lr=1e-3)
    saved = [] if path is None else [Checkpoint(every=1)]
    for steps in parts:
        learner = policy.clone()
        train(learner, EASY, made, steps=steps, seed=1, path=path, callbacks=saved)
    return weights(learner)


def test_a_run_goes_on_bit_for_bit(policy, tmp_path):
    straight = end_of(policy, 'tp_grpo', 2)
    assert torch.equal(straight, end_of(policy, 'tp_grpo', 1, 2, path=tmp_path / 'run'))
    for other in ('dense_grpo', 'grpo'):
        assert not torch.equal(straight, end_of(policy, other, 2))


@pytest.mark.parametrize('stage', [dense_grpo, tp_grpo, step_values])
@pytest.mark.parametrize(
    ('change', 'told'),
    [
        (lambda r: 2 * r - 1, 'has the reward -1, wanted 0 to 1'),
        (lambda r: 100 * r, 'has the reward 100, wanted 0 to 1'),
        (lambda r: r + 0.01, 'has the reward 1.01, wanted 0 to 1'),
    ],
)
def test_rewards_off_the_scale_of_verdicts_are_refused(policy, rows, stage, change, told):
    given = {**asked(rows, policy), 'rewards': change(rows.rewards)}
    with pytest.raises(ValueError, match=told):
        stage(**given)


def test_rewards_between_the_verdicts_are_taken_and_rounding_is_no_fault(policy, rows):
    half = {**asked(rows, policy), 'rewards': 0.25 + rows.rewards / 2}
    assert dense_grpo(**half).isfinite().all()
    rounded = {**asked(rows, policy), 'rewards': rows.rewards * (1 + 2e-7)}
    assert torch.allclose(dense_grpo(**rounded), dense_grpo(**asked(rows, policy)), atol=0.01)


def test_bad_input_is_answered_in_one_sentence(policy, rows):
    def refused(match, stage=tp_grpo, **how):
        with pytest.raises(ValueError, match=match):
            stage(**{**asked(rows, policy), **how})

    refused('mode .x. is unknown; choose one of local, outcome, bonus', mode='x')
    refused('across .x. is unknown; choose one of step, group', across='x')
    refused('samples', samples=-1)
    refused('room', room=0)
    refused('eta', eta='much')
    refused('every is 0', dense_grpo, every=0)
    refused('separator', dense_grpo, separators=('no such word',))
    refused('one reward and one group number', dense_grpo, group=rows.group[:-1])
    texts = tuple(item.prompt() for item in rows.items)
    refused('needs a verifier, and the prompt', rollouts=dataclasses.replace(rows, items=texts))
    refused('the rows have no problems', rollouts=dataclasses.replace(rows, items=()))
