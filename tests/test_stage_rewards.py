"""Hi-GRPO: what stages earn, what is handed back, which tokens hear of it."""

import pytest
import torch

from rl4llm import recipe, train
from rl4llm.advantages.group_relative import grpo
from rl4llm.advantages.process_advantages import step_numbers
from rl4llm.advantages.stage_rewards import (
    even_weights,
    hi_grpo,
    open_behind,
    rewards_of_stages,
    stage_numbers,
)
from rl4llm.core.policy import Policy
from rl4llm.core.rollouts import group_std, make_rollouts
from rl4llm.core.signals import scored
from rl4llm.core.registry import use
from rl4llm.rewards.hierarchical import handed_back
from rl4llm.tasks import Item, task

EASY = Item('countdown', ((4, 9, 10), 50, 99, '+-*'))


@pytest.mark.parametrize(
    'texts, wanted',
    [
        (['9 - 4 = 5', '5 * 10 = 50'], [1, 1]),
        (['9 - 4 = 5', '5 + 10 = 15'], [1, 0]),
        (['4 + 9 = 13', '13 + 10 = 23'], [0, 0]),
        (['9 - 4 = 6', '6 * 10 = 60'], [0, 0]),
        (['8 - 3 = 5', '5 * 10 = 50'], [0, 0]),
        (['', 'nothing'], [0, 0]),
        ([], []),
    ],
)
def test_what_is_open_behind_a_step(texts, wanted):
    assert open_behind(EASY, texts) == wanted


def test_nobody_knows_it_of_another_task():
    other = task('modular').sample(1, seed=0)[0]
    assert open_behind(other, ['1', '2']) == [0, 0] and open_behind('a question', ['1']) == [0]


def test_stages_by_loops():
    torch.manual_seed(0)
    rewards = torch.rand(6)
    opened = torch.rand(6, 4)
    for row, last in enumerate((1, 2, 3, 4, 4, 1)):
        opened[row, last:] = torch.nan
    for levels in (1, 2, 3, 7):
        count = levels
        found = handed_back(rewards_of_stages(rewards, opened, levels=levels), lam=0.6)
        assert found.shape == (6, count)
        for row in range(6):
            carried = float(rewards[row])
            assert found[row, -1] == rewards[row]
            for place in range(count - 2, -1, -1):
                known = place < 4 and not opened[row, place].isnan()
                if known:
                    carried = float(opened[row, place]) + 0.6 * carried
                    assert abs(float(found[row, place]) - carried) < 1e-6
                else:
                    assert found[row, place].isnan()


def by_loops(rewards, group, number, opened, levels, lam, even):
    "Advantages of tokens, row by row and stage by stage."
    stages = {}
    for row in range(len(rewards)):
        steps = int(number[row].max())
        last = levels or steps
        own = {}
        carried = float(rewards[row])
        own['last'] = carried
        for k in range(min(steps, last - 1) if levels else steps - 1, 0, -1):
            carried = float(opened[row, k - 1]) + lam * carried
            own[k] = carried
        stages[row] = own
    found = torch.zeros(number.shape)
    for row, own in stages.items():
        of_step = [
            k if k < (levels or int(number[row].max())) else 'last' for k in number[row].tolist()
        ]
        real = int((number[row] > 0).sum())
        for t, (k, stage) in enumerate(zip(number[row].tolist(), of_step)):
            if not k:
                continue
            peers = [p[stage] for r, p in stages.items() if group[r] == group[row] and stage in p]
            spread = torch.tensor(peers).std() if len(peers) > 1 else torch.tensor(0.0)
            value = (own[stage] - sum(peers) / len(peers)) / (spread + 1e-4)
            same = sum(s == stage for s, n in zip(of_step, number[row].tolist()) if n)
            found[row, t] = value * (real / same if even else 1)
    return found


@pytest.mark.parametrize('even', [True, False])
@pytest.mark.parametrize('levels', [2, 3, None])
def test_rows_of_different_lengths_by_loops(levels, even):
    torch.manual_seed(1)
    policy = Policy.load('tiny')
    step = ['9 - 4 = 5', '1 + 1 = 2', '3 * 2 = 6', '8 - 1 = 7']
    texts = [' ; '.join(step[:count]) for count in (1, 2, 3, 4, 3, 3, 2, 3)]
    told = [policy.tokenizer(text, add_special_tokens=False)['input_ids'] for text in texts]
    width = max(map(len, told))
    tokens = torch.tensor([row + [policy.pad] * (width - len(row)) for row in told])
    mask = torch.tensor([[place < len(row) for place in range(width)] for row in told])
    ids = torch.ones(2, 2).long()
    rewards = torch.tensor([0.0, 1, 0, 1, 1, 0, 0, 1])
    rows = make_rollouts(prompt_ids=ids, prompt_mask=ids.bool(), tokens=tokens, mask=mask,
                         prompt=torch.tensor([0] * 4 + [1] * 4), rewards=rewards)  # fmt: skip
    worth = torch.rand(8, 4)

    def score(item, words):
        row = [t.split(' ; ') for t in texts].index(list(words))
        return worth[row, : len(words)].tolist()

    method = hi_grpo(levels=levels, even=even, lam=0.7, score=score)
    found = method(rewards, rows.group, rollouts=rows, policy=policy)
    number = step_numbers(rewards, rows, policy)
    opened = method.opened(rewards, rows, number, policy)
    wanted = by_loops(rewards, rows.group, number, opened, levels, 0.7, even)
    assert torch.allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize('levels', [2, None])
def test_a_longer_row_elsewhere_changes_nothing_here(drawn, levels):
    policy, rows = drawn
    method = hi_grpo(levels=levels)
    whole = method(rows.rewards, rows.group, rollouts=rows, policy=policy)
    steps = step_numbers(rows.rewards, rows, policy).amax(1)
    longest = rows.group == rows.group[steps.argmax()]
    some = rows.rewards.masked_fill(longest, torch.nan)
    alone = method(some, rows.group, rollouts=rows, policy=policy)
    assert torch.allclose(whole[~longest], alone[~longest])


@pytest.mark.parametrize('bad', [0.5, [1.0], [1.0] * 9, None, ['x'] * 3])
def test_scores_that_do_not_fit(drawn, bad):
    policy, rows = drawn
    method = hi_grpo(score=lambda item, texts: bad)
    with pytest.raises(ValueError, match='score gave'):
        method(rows.rewards, rows.group, rollouts=rows, policy=policy)


@pytest.mark.parametrize('levels', [0, -1, 1.5])
def test_levels_that_cannot_be(levels):
    with pytest.raises(ValueError, match='levels'):
        rewards_of_stages(torch.zeros(2), torch.zeros(2, 1), levels=levels)
    with pytest.raises(ValueError, match='levels'):
        hi_grpo(levels=levels)


def test_a_lam_that_is_no_number():
    with pytest.raises(ValueError, match='lam'):
        hi_grpo(lam=float('nan'))


def test_even_weights_make_means_of_stages():
    number = torch.tensor([[1, 1, 1, 2, 0, 0], [1, 2, 2, 2, 2, 2], [0] * 6])
    weights = even_weights(number)
    for row, tokens in ((0, 4), (1, 6)):
        for stage in (1, 2):
            assert torch.isclose(
                weights[row][number[row] == stage].sum(), torch.tensor(float(tokens))
            )
    assert not weights[number == 0].any()


@pytest.fixture(scope='module')
def drawn():
    policy = Policy.load('tiny')
    rows = policy.sample(task('countdown', level='hard').sample(8, seed=3), 8, seed=3)
    return policy, scored(policy, rows, use('correct'))


def advantages(drawn, **how):
    policy, rows = drawn
    method = hi_grpo(**how)
    return method(rows.rewards, rows.group, rollouts=rows, policy=policy), method


def test_each_stage_is_compared_by_itself(drawn):
    policy, rows = drawn
    adv, _ = advantages(drawn, even=False, lam=0.5)
    number = step_numbers(rows.rewards, rows, policy)
    first = hi_grpo().opened(rows.rewards, rows, number, policy)[:, 0]
    for row in range(len(rows)):
        of_first = grpo(first + 0.5 * rows.rewards, rows.group)[row]
        of_later = grpo(rows.rewards, rows.group)[row]
        assert torch.allclose(adv[row][number[row] == 1], of_first, atol=1e-5)
        assert torch.allclose(adv[row][number[row] > 1], of_later, atol=1e-5)
    assert not adv[~rows.mask].any()


def test_groups_that_are_silent_are_heard_and_counted(drawn):
    _, rows = drawn
    adv, method = advantages(drawn)
    silent = group_std(rows.rewards, rows.group) == 0
    heard = silent & (adv[:, 0] != 0)
    assert method.told['heard'] == pytest.approx(heard.float().mean().item()) and heard.any()
    later = torch.arange(adv.shape[1]) > 0
    assert adv[silent][:, later].any()  # a first step has several tokens
    assert 0 < method.told['closed'] < 1


def test_the_placebo_deals_within_groups(drawn):
    policy, rows = drawn
    sham = recipe('hi_grpo_dealt').advantage()
    found = sham(rows.rewards, rows.group, rollouts=rows, policy=policy)
    own, method = advantages(drawn)
    assert not torch.equal(found, own)
    assert sham.told['closed'] == pytest.approx(method.told['closed'])
    giver = sham.whose(rows.rewards, rows.group, rollouts=rows)
    assert torch.equal(rows.group[giver], rows.group)
    assert torch.equal(giver.sort().values, torch.arange(len(rows)))


def test_unscored_rows_have_no_part(drawn):
    policy, rows = drawn
    rewards = rows.rewards.clone()
    rewards[::3] = torch.nan
    found = hi_grpo()(rewards, rows.group, rollouts=rows, policy=policy)
    assert not found[::3].any() and found.isfinite().all()


def test_a_task_without_scores_is_grpo_with_even_stages():
    policy = Policy.load('tiny')
    rows = policy.sample(task('modular').sample(4, seed=0), 8, seed=0)
    rows = scored(policy, rows, use('correct'))
    given = dict(rollouts=rows, policy=policy)
    found = hi_grpo(even=False)(rows.rewards, rows.group, **given)
    plain = grpo(rows.rewards, rows.group)[:, None] * rows.mask
    assert torch.allclose(found, plain, atol=2e-3)


def test_it_trains_and_its_counters_are_metrics():
    made = recipe('hi_grpo', prompts=2, group=4)
    run = train(Policy.load('tiny').clone(), task('countdown', level='hard'), made, steps=2, seed=0)
    assert run.metrics['advantage/closed'].between(0, 1).all()
    assert run.metrics['advantage/heard'].between(0, 1).all()


def test_stages_of_one_step_and_of_none():
    rewards = torch.tensor([1.0, 0.0])
    one = rewards_of_stages(rewards, torch.tensor([[1.0], [0.0]]), levels=None)
    assert one.tolist() == [[1.0], [0.0]], 'one step is the last stage'
    number = torch.tensor([[1, 2, 2], [0, 0, 0]])
    assert stage_numbers(number, None).tolist() == [[1, 2, 2], [0, 0, 0]]


def test_infinite_rewards_are_refused(drawn):
    policy, rows = drawn
    rewards = rows.rewards.clone()
    rewards[0] = float('inf')
    with pytest.raises(ValueError, match='finite'):
        hi_grpo()(rewards, rows.group, rollouts=rows, policy=policy)


def test_counters_without_a_score_and_with_one(drawn):
    policy, rows = drawn
    given = dict(rollouts=rows, policy=policy)
    method = hi_grpo()
    method(torch.full_like(rows.rewards, torch.nan), rows.group, **given)
    assert method.told['closed'] == 0
    method(rows.rewards, rows.group, **given)
    closed = method.told['closed']
    first = torch.full_like(rows.rewards, torch.nan)
    seen = []
    for row in range(len(rows)):
        lone = first.clone()
        lone[row] = rows.rewards[row]
        method(lone, rows.group, **given)
        seen.append(method.told['closed'])
    assert set(seen) <= {0.0, 1.0} and sum(seen) / len(seen) == pytest.approx(closed)


def test_scores_are_dealt_by_rewards_and_groups(drawn):
    "What a row has no score for, since the other one is shorter, counts as lost."
    policy, rows = drawn
    seen = []

    def other(rewards, group, *, rollouts):
        seen.append((rewards, group))
        return torch.arange(len(rewards)).flip(0)

    adv = hi_grpo(whose=other, levels=None)(rows.rewards, rows.group, rollouts=rows, policy=policy)
    assert seen[0][0] is rows.rewards and torch.equal(seen[0][1], rows.group)
    assert adv.isfinite().all()


def test_without_a_step_there_is_one_stage():
    none = rewards_of_stages(torch.tensor([1.0, 0.0]), torch.zeros(2, 0), levels=None)
    assert none.tolist() == [[1.0], [0.0]]


def test_what_a_shorter_row_does_not_have_counts_as_closed():
    "Rows of two steps and of one: the first one's second step is dealt nothing, which is 0."
    policy = Policy.load('tiny')
    texts = ['9 - 4 = 5 ; 1 + 1 = 2 ; 3 * 2 = 6', '9 - 4 = 5']
    told = [policy.tokenizer(text, add_special_tokens=False)['input_ids'] for text in texts]
    width = len(told[0])
    tokens = torch.tensor([row + [policy.pad] * (width - len(row)) for row in told])
    mask = torch.tensor([[place < len(row) for place in range(width)] for row in told])
    tokens = tokens[[0, 0, 1, 1]]
    mask = mask[[0, 0, 1, 1]]
    ids = torch.ones(1, 2).long()
    rewards = torch.tensor([1.0, 0, 1, 0])
    rows = make_rollouts(prompt_ids=ids, prompt_mask=ids.bool(), tokens=tokens, mask=mask,
                         prompt=torch.zeros(4).long(), rewards=rewards)  # fmt: skip
    found = []
    for second in (0.0, 1.0):
        # the second long row keeps its scores, the first has those of a short row

        def score(item, words, second=second):
            return [1.0, second, 0.0][: len(words)]

        method = hi_grpo(levels=3, even=False, lam=0.0, score=score,
                         whose=lambda *given, **more: torch.tensor([2, 1, 2, 3]))  # fmt: skip
        adv = method(rewards, rows.group, rollouts=rows, policy=policy)
        number = step_numbers(rewards, rows, policy)
        found.append([float(adv[row][number[row] == 2][0]) for row in (0, 1)])
    assert found[0] == [0, 0], 'both 0'
    assert found[1][0] < 0 < found[1][1], '0 is less than 1'
