"""A reward and an advantage of your own: two plain functions, compared with GRPO.

    python examples/own_reward.py
    python examples/own_reward.py --steps 50 --seeds 0 1 2 3 4

A few steps with two seeds show that everything runs and in which direction it goes. They are
too few for a verdict, and the table says so.
"""

import argparse
from pathlib import Path

from rl4llm import Evaluate, Policy, compare, correct, evaluate, recipe, task, train
from rl4llm.core import group_mean

parser = argparse.ArgumentParser(description="Compare a method of your own with GRPO.")
parser.add_argument('--steps', type=int, default=5)
parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1])
parser.add_argument('--out', default='runs/own_reward', help="where the runs are kept")
options = parser.parse_args()


# 1. The reward: one number for each answer. It is called with lists: `prompts`, `completions`,
#    and what else you name (`item` are the problems). `**columns` takes the rest.
def short_and_correct(prompts, completions, item, **columns):
    "1 for a right answer, less a hundredth for each of its words."
    right = correct(prompts, completions, item=item)
    return [r - 0.01 * len(text.split()) if r else 0.0 for r, text in zip(right, completions)]


# 2. The advantage: how much each answer is to be made more likely (above 0) or less (below 0).
#    `rewards` has one number for each answer, `group` says which answers share a prompt.
def rarer_is_better(rewards, group):
    "The reward above the group's mean, larger where the group is seldom right."
    mean = group_mean(rewards, group)
    return (rewards - mean) * (1 - mean)


# 3. A recipe takes functions where it takes names. `but` varies one that is there.
grpo = recipe('grpo', prompts=8, group=8)
methods = {
    'grpo': grpo,
    'own reward': grpo.but(name='own reward', reward=short_and_correct),
    'own advantage': grpo.but(name='own advantage', advantage=rarer_is_better),
}

# 4. Train each from the same model with the same seeds, and examine each on the same problems.
#    The examination asks the task's verifier, whatever the training was rewarded for.
countdown = task('countdown')
base = Policy.load('tiny')
problems = countdown.sample(16, seed=0, split='test')
untrained = evaluate(base, problems, samples=16)       # once, and not for each run
exam = Evaluate(problems, samples=16, base=untrained)
runs = []
for name, method in methods.items():
    for seed in options.seeds:
        folder = Path(options.out) / name.replace(' ', '-') / f'seed-{seed}'
        run = train(base.clone(), countdown, method, steps=options.steps, seed=seed,
                    callbacks=[exam], path=folder)
        runs.append(run)
        first = run.metrics['reward'].iloc[0]
        last = run.metrics['reward'].iloc[-1]
        print(f'{name}, seed {seed}: training reward {first:.3f} -> {last:.3f}')

# 5. One table, with intervals over seeds and problems.
print()
print(compare(runs, ks=(1, 4, 16)))
