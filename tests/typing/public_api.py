"""The public names as a user writes them, for the type checker (`make types`). Nothing here is run.

Every name that `rl4llm` offers at the top must be used here: a test reads that."""
from typing import assert_type
import pandas as pd
import torch
import rl4llm
from rl4llm import (Evaluate, LivePlot, Policy, apply_settings, check_answer, compare, evaluate,
                    recipe, report, size, task, train, use)
from rl4llm.advantages import dr_grpo, grpo, negative, positive, reinforce, rloo, weighted_reinforce
from rl4llm.analysis import entropy_by_position, pass_at_k, plot_training
from rl4llm.analysis.page import Report
from rl4llm.core import Recipe, Rollouts, group_mean
from rl4llm.core.registry import Use
from rl4llm.core.settings_file import Settings
from rl4llm.objectives import aggregate, cispo, policy_gradient, ppo_clip
from rl4llm.oracle import TokenTree, check, check_table, random_logits, tree_rewards
from rl4llm.tasks import Item, Task, Verdict
from rl4llm.training.comparison import Comparison
from rl4llm.training.records import Evaluation, Run


def settings_and_version() -> None:
    assert_type(rl4llm.__version__, str)
    here = apply_settings()
    assert_type(here, Settings)
    assert_type(here.device, str)
    size(cpu=dict(steps=40), gpu=dict(steps=200), dry=dict(steps=2))


def a_task_and_a_policy() -> None:
    countdown = task('countdown', level='easy')
    assert_type(countdown, Task)
    items = countdown.sample(16, seed=0, split='test')
    assert_type(items, list[Item])
    assert_type(countdown.verify(items[0], 'text'), Verdict)
    policy = Policy.load('tiny')
    assert_type(policy, Policy)
    assert_type(policy.clone(), Policy)
    assert_type(policy.sample(items, 8, seed=0), Rollouts)
    logp, entropy = policy.logprobs(policy.sample(items, 8, seed=0))
    assert_type(logp, torch.Tensor)
    assert_type(entropy, torch.Tensor)
    entropy_by_position(entropy, policy.sample(items, 8, seed=0).mask)
    assert_type(policy.model(input_ids=logp).logits, torch.Tensor)


def recipes_of_ones_own() -> None:
    def rarer(rewards: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        return rewards * (1 - group_mean(rewards, group))

    mine = recipe('reinforce', advantage=rarer, prompts=8)
    assert_type(mine, Recipe)
    mine.but(lr=1e-4).diff(recipe('grpo'))
    assert_type(use(reinforce, baseline=0.5), Use)
    assert_type(use('grpo', eps=1e-4), Use)


def training_and_comparing() -> None:
    countdown, base = task('countdown'), Policy.load('tiny')
    exam = Evaluate(countdown.sample(16, seed=0, split='test'), samples=16)
    watchers = [exam, LivePlot(('reward',), every=2)]
    runs = [train(base.clone(), countdown, recipe(name), steps=5, seed=seed, callbacks=watchers)
            for name in ('grpo', 'negative') for seed in (0, 1)]
    assert_type(runs[0], Run)
    assert_type(runs[0].metrics, pd.DataFrame)
    assert_type(runs[0].final, Evaluation)
    assert_type(compare(runs), Comparison)
    compare(runs).plot()
    plot_training(runs, 'reward')
    assert_type(evaluate(base, countdown.sample(16, seed=0), samples=16), Evaluation)
    page = report(base, base.clone(), countdown)
    assert_type(page, Report)
    page.save('report.html')


def numbers_of_tries() -> None:
    pass_at_k(64, 3, 8)
    pass_at_k([64, 64], [3, 0], [1, 8, 64])
    check_answer('1.1', lambda logits, tokens, mask: logits)


def stages_are_functions() -> None:
    rewards, group = torch.tensor([1., 0., 0.]), torch.zeros(3, dtype=torch.long)
    for advantage in (dr_grpo, grpo, negative, positive, reinforce, rloo, weighted_reinforce):
        assert_type(advantage(rewards, group), torch.Tensor)
    logp, mask = torch.zeros(3, 4), torch.ones(3, 4, dtype=torch.bool)
    loss = ppo_clip(logp, logp, logp, mask, low=0.2, high=0.28) + cispo(logp, logp, logp, mask)
    assert_type(aggregate(loss + policy_gradient(logp, logp, logp, mask), mask), torch.Tensor)


def the_oracle_and_the_atlas() -> None:
    tree = TokenTree(vocab=3, length=3, eos=0)
    right = tree_rewards(tree, lambda s: sum(s) == 3)
    found = check(positive, tree, random_logits(tree, seed=3), right, group=3)
    assert_type(found.unbiased, bool)
    check_table(found, found)
    assert_type(rl4llm.atlas.table(), pd.DataFrame)
    use(rl4llm.objectives.aggregate, mode='token-mean')
