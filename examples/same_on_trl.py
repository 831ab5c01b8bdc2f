"""One recipe in two engines: the loop of rl4llm, and TRL's GRPOTrainer.

    pip install "rl4llm[scale]"
    python examples/same_on_trl.py
    python examples/same_on_trl.py --recipe dr_grpo --steps 20

The reward, the advantage, the selection and the loss are the same functions in both. The engines
draw different answers to different problems, so the curves are alike and not equal. That loss and
gradient of the same answers are equal is tested in tests/test_trl_bridge.py.
"""

import argparse
import dataclasses
import json
import warnings
from pathlib import Path

import pandas as pd
from datasets import Dataset
from transformers import PrinterCallback
from transformers.utils import logging

from rl4llm import Policy, evaluate, recipe, task, train
from rl4llm.scaling import not_carried, trl_trainer

parser = argparse.ArgumentParser(description="Train by one recipe here and on TRL.")
parser.add_argument('--recipe', default='grpo')
parser.add_argument('--steps', type=int, default=5)
parser.add_argument('--out', default='runs/same_on_trl')
options = parser.parse_args()
out = Path(options.out)
warnings.simplefilter('ignore')        # TRL and its libraries tell much that does not matter here
logging.disable_progress_bar()

# 1. The recipe. Not every one carries over: some need what TRL's trainer has no place for.
method = recipe(options.recipe, prompts=4, group=8, minibatch=None, max_new_tokens=24, lr=3e-4)
lost = not_carried(method)
if lost:
    raise SystemExit(f"{method.name} does not carry over to TRL: {'; '.join(lost)}")

countdown = task('countdown')
base = Policy.load('tiny')

# 2. Here.
ours = base.clone()
run = train(ours, countdown, method, steps=options.steps, seed=0, path=out / 'ours')

# 3. On TRL, which wants a data set with a column `prompt`; the reward asks for `item`, the
#    problem. `rows` answers go through the model at a time. What follows are fields of TRL's
#    GRPOConfig; on a cluster this is where use_vllm, bf16 and the like would stand.
problems = countdown.sample(64, seed=0)
data = Dataset.from_dict({
    'prompt': base.prompts(problems),
    'item': [json.dumps(dataclasses.asdict(problem)) for problem in problems]})
theirs = base.clone()
trainer = trl_trainer(
    method, theirs.model, data, folder=out / 'trl', steps=options.steps, rows=8,
    processing_class=theirs.tokenizer,
    use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], save_strategy='no',
    logging_steps=1, disable_tqdm=True, seed=0)
trainer.remove_callback(PrinterCallback)
trainer.train()
theirs.model.eval()

# 4. Side by side: the training reward of each step, and an examination at the end.
log = pd.DataFrame(trainer.state.log_history).dropna(subset=['reward'])
table = pd.DataFrame({'rl4llm': run.metrics['reward'].to_numpy(), 'TRL': log['reward'].to_numpy()})
print(f'mean reward of each step, recipe {method.name}:')
print(table.rename_axis('step').round(3).to_string())

held_out = countdown.sample(24, seed=0, split='test')
print()
print('on 24 held-out problems, 16 answers to each:')
for name, policy in (('base', base), ('rl4llm', ours), ('TRL', theirs)):
    curve = evaluate(policy, held_out, samples=16).pass_at_k((1, 4, 16))
    print(f'{name:8}', '  '.join(f'pass@{k} {value:.3f}' for k, value in curve.items()))
