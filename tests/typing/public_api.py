"""The public names as a user writes them, for the type checker (`make types`). Nothing here is run.

Every name that `rl4llm` offers at the top must be used here: a test reads that."""
from pathlib import Path
from typing import assert_type
import pandas as pd
import torch
import rl4llm
from rl4llm import (
    Checkpoint, EarlyStop, Evaluate, Evaluation, Item, LivePlot, Policy, Progress, Recipe, Rollouts,
    Run, TrainingDiverged, add_recipe, apply_settings, check_answer, compare, correct, demo, doctor,
    evaluate, load_rollouts, load_run, load_runs, load_study, pass_at_k, plot_metrics, pretrain,
    recipe, recipe_map, recipes, replay, report, save_rollouts, settings, size, stage, stages, task,
    task_from, train, use,
)
from rl4llm.advantages import dr_grpo, grpo, negative, positive, reinforce, rloo, weighted_reinforce
from rl4llm.analysis import entropy_by_position, plot_training
from rl4llm.analysis.page import Report
from rl4llm.core import group_mean
from rl4llm.core.registry import StageInfo, Use
from rl4llm.core.settings_file import Settings
from rl4llm.objectives import aggregate, cispo, policy_gradient, ppo_clip
from rl4llm.oracle import TokenTree, check, check_table, random_logits, tree_rewards
from rl4llm.studies.comparison import Comparison
from rl4llm.tasks import Task, Verdict


def settings_and_version() -> None:
    assert_type(rl4llm.__version__, str)
    assert_type(settings(), Settings)
    here = apply_settings()
    assert_type(here, Settings)
    assert_type(here.device, str)
    size(cpu=dict(steps=40), gpu=dict(steps=200), dry=dict(steps=2))
    for finding in doctor(): print(finding)


def a_task_and_a_policy() -> None:
    countdown = task('countdown', level='easy')
    assert_type(countdown, Task)
    mine = task_from([{'question': '3 + 4 ?', 'answer': 7}], verify=lambda text, answer: text == str(answer))
    assert_type(mine.sample(1, seed=0), list[Item])
    items = countdown.sample(16, seed=0, split='test')
    assert_type(items, list[Item])
    assert_type(countdown.verify(items[0], 'text'), Verdict)
    assert_type(countdown.demonstrate(items[0], seed=0), str)
    correct(['2 + 2'], ['4'], item=items[:1])
    policy = Policy.load('tiny')
    assert_type(policy, Policy)
    assert_type(policy.clone(), Policy)
    policy.model.parameters()
    policy.tokenizer.convert_ids_to_tokens(range(5))


def rollouts_of_a_policy(policy: Policy, items: list[Item]) -> None:
    rollouts = policy.sample(items, 8, seed=0)
    assert_type(rollouts, Rollouts)
    assert_type(rollouts.mask, torch.Tensor)
    logp, entropy = policy.logprobs(rollouts)
    assert_type(logp, torch.Tensor)
    entropy_by_position(entropy, rollouts.mask)
    assert_type(save_rollouts(rollouts, 'folder'), Path)
    assert_type(load_rollouts('folder'), Rollouts)
    replay(rollouts, 'grpo')


def recipes_of_ones_own() -> None:
    @stage('advantage', parent='reinforce', changes='rare right answers weigh more')
    def rarer(rewards: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        return rewards * (1 - group_mean(rewards, group))

    assert_type(rarer(torch.ones(2), torch.zeros(2)), torch.Tensor)
    add_recipe('rarer', 'reinforce', advantage=rarer, summary='rare right answers first')
    mine = recipe('reinforce', advantage=rarer, prompts=8)
    assert_type(mine, Recipe)
    assert_type(mine.lr, float)
    mine.but(lr=1e-4).diff(recipe('grpo'))
    assert_type(use(reinforce, baseline=0.5), Use)
    assert_type(use('grpo', eps=1e-4), Use)
    assert_type(stages('advantage'), dict[str, StageInfo])
    recipes()
    recipe_map('grpo', width=8)


def training_and_comparing() -> None:
    countdown, base = task('countdown'), Policy.load('tiny')
    exam = Evaluate(countdown.sample(16, seed=0, split='test'), samples=16)
    watchers = [exam, Checkpoint(every=10), EarlyStop(at_least=0.9), Progress(),
                LivePlot(('reward',), every=2)]
    runs = [train(base.clone(), countdown, recipe(name), steps=5, seed=seed, callbacks=watchers)
            for name in ('grpo', 'negative') for seed in (0, 1)]
    assert_type(runs[0], Run)
    assert_type(runs[0].metrics, pd.DataFrame)
    assert_type(runs[0].final, Evaluation | None)
    assert_type(compare(runs), Comparison)
    compare(runs).plot()
    plot_training(runs, 'reward')
    plot_metrics(runs[0])


def what_is_stored() -> None:
    try: assert_type(load_run('runs/grpo'), Run)
    except TrainingDiverged as error: print(error)
    assert_type(load_runs('runs'), list[Run])
    assert_type(load_study('psr_nsr'), dict)
    assert_type(pretrain('small', out='runs/models/small', steps=10), Path)
    demo(steps=2)


def what_training_did(base: Policy, trained: Policy) -> None:
    countdown = task('countdown')
    found = evaluate(base, countdown.sample(16, seed=0), samples=16)
    assert_type(found, Evaluation)
    assert_type(found.pass_at_k((1, 4)), pd.Series)
    page = report(base, trained, countdown)
    assert_type(page, Report)
    page.save('report.html')


def numbers_of_tries() -> None:
    pass_at_k(64, 3, 8)
    pass_at_k([64, 64], [3, 0], [1, 8, 64])
    check_answer('1.4', lambda logits, tokens, mask: logits)


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
