"""Train a model on questions of your own, from a file, and see what it has learned.

    python examples/own_data.py                        # makes a small file of sums and uses it
    python examples/own_data.py --data my_rows.jsonl   # your own

The file holds one JSON object a line: {"question": "...", "answer": "..."}.
The embedded model is tiny and reads its own 256 words only, so the sums are written in these;
for questions in plain words give --model a model of the hub, such as Qwen/Qwen2.5-0.5B-Instruct.
"""

import argparse
import json
from pathlib import Path

from rl4llm import Policy, evaluate, recipe, task_from, train
from rl4llm.training import for_text

parser = argparse.ArgumentParser(description="Train on your own questions and answers.")
parser.add_argument('--data', help="a JSON-lines file; without it one is made in the --out folder")
parser.add_argument('--model', default='tiny', help="'tiny', a folder, or owner/name of the hub")
parser.add_argument('--steps', type=int, default=15)
parser.add_argument('--out', default='runs/own_data', help="where the run is kept")
options = parser.parse_args()
out = Path(options.out)
out.mkdir(parents=True, exist_ok=True)


# 1. The rows. These are all sums of two numbers below 12.
def write_sums(path):
    with open(path, 'w') as file:
        for a in range(12):
            for b in range(12):
                row = {'question': f'<modular> {a} + {b} :', 'answer': a + b}
                file.write(json.dumps(row) + '\n')


data = options.data
if data is None:
    data = out / 'sums.jsonl'
    write_sums(data)

# 2. The task. Rows are split by the hash of the question into train, valid and test, and an
#    answer is right if it says the same as the row (pass verify=... to decide that yourself).
questions = task_from(str(data))
print(questions)

# 3. The model before training, on questions that training never sees.
policy = Policy.load(options.model)
few = min(12, len(questions.parts['test']))
held_out = questions.sample(few, seed=0, split='test')
before = evaluate(policy, held_out, samples=16)

# 4. Train. A recipe names the method and its numbers; `for_text` sets them for a larger model.
method = recipe('grpo', prompts=8, group=16)
if policy.style == 'text':
    method = for_text(method, max_new_tokens=128)
run = train(policy, questions, method, steps=options.steps, seed=0, path=out / 'run')

# 5. The model after training, on the same questions.
after = evaluate(policy, held_out, samples=16, step=options.steps)
print()
print(f'{len(held_out)} held-out questions, 16 answers to each:')
print('             before   after')
for k in (1, 4, 16):
    print(f'pass@{k:<6} {before.pass_at_k()[k]:8.3f} {after.pass_at_k()[k]:7.3f}')

print()
print('one answer to each of three questions:')
rollouts = policy.sample(held_out[:3], 1, seed=1)
for prompt, text in zip(policy.prompts(held_out[:3]), rollouts.texts):
    print(f'  {prompt}  {text}')
print()
print(f'The run is in {out}: the same command goes on from there, with --steps as the total.')
