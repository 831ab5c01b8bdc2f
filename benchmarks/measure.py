"""What is measured. Speed: two functions in turn (A B A B ...), medians and the range of paired ratios. Memory: peak of a fresh process."""
import os
import platform
import statistics
import subprocess
import sys
import time

import torch


def machine() -> dict:
    "What the numbers belong to."
    cpu = next((line.split(':')[1].strip() for line in open('/proc/cpuinfo') if line.startswith('model name')), platform.processor()) if os.path.exists('/proc/cpuinfo') else platform.processor()
    return dict(cpu=cpu, cores=os.cpu_count(), threads=torch.get_num_threads(), torch=torch.__version__, python=platform.python_version(), date=time.strftime('%Y-%m-%d'))


def seconds(f) -> float:
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def side_by_side(what: str, ours, plain, repeat: int) -> dict:
    "One row: medians of both, and median, smallest and largest of the paired ratios."
    ours(), plain()
    pairs = [(seconds(ours), seconds(plain)) for _ in range(repeat)]
    ratios = [b / a for a, b in pairs]
    a, b = (statistics.median(x) for x in zip(*pairs))
    return dict(what=what, unit='s', ours=a, plain=b, ratio=statistics.median(ratios), low=min(ratios), high=max(ratios))


def speed_rows(repeat: int, quick: bool = False) -> list[dict]:
    "Sampling, log-probabilities with gradient, and whole training steps of the embedded model: our path against Hugging Face's."
    from rl4llm.core.llama import has_fast_bf16
    from rl4llm.core.policy import Policy
    from rl4llm.core.registry import recipe
    from rl4llm.tasks import task
    from rl4llm.training.loop import train
    prompts, group = (2, 4) if quick else (32, 16)
    problem, rows = task('countdown'), []
    items = problem.sample(prompts, seed=0)
    plain, paths = Policy.load('tiny', fast=False), {'float32': Policy.load('tiny')}
    if has_fast_bf16(): paths['bfloat16 products'] = Policy.load('tiny', bf16=True)
    batch, work = plain.sample(items, group, seed=0), recipe('grpo', prompts=prompts, group=group, lr=1e-6)

    def gradient(policy):
        policy.model.zero_grad()
        policy.logprobs(batch)[0].mean().backward()

    for name, ours in paths.items():
        rows += [side_by_side(f'sampling {prompts * group} rows, {name}', lambda: ours.sample(items, group, seed=0), lambda: plain.sample(items, group, seed=0), repeat),
                 side_by_side(f'log-probabilities and gradient, {name}', lambda: gradient(ours), lambda: gradient(plain), repeat),
                 side_by_side(f'a training step (GRPO), {name}', lambda: train(ours, problem, work, steps=1), lambda: train(plain, problem, work, steps=1), repeat)]
    return rows


# VmHWM and not getrusage: a child's ru_maxrss starts from what its parent held, which hides small peaks. Linux only.
PEAK = """
import re, torch
from rl4llm.core.policy import token_stats
n, v, d = {tokens}, {vocabulary}, 64
g = torch.Generator().manual_seed(0)
hidden, weight = torch.randn(n, d, generator=g, requires_grad=True), torch.randn(v, d, generator=g, requires_grad=True)
tokens = torch.randint(0, v, (n,), generator=g)
def peak(): return int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])
before = peak()
logp, entropy = token_stats(hidden, weight, tokens, budget={budget})
(logp + 0.01 * entropy).sum().backward()
print((peak() - before) / 2**20)
"""


def peak_gib(**sizes) -> float:
    "Peak memory (GiB above what imports and inputs had reached) of log-probabilities and entropies with gradient, in a fresh process; at least a MiB, the resolution."
    return max(2**-10, float(subprocess.run([sys.executable, '-c', PEAK.format(**sizes)], capture_output=True, text=True, check=True).stdout))


def memory_rows(quick: bool = False) -> list[dict]:
    "Peak memory of log-probabilities of 8 x 512 tokens at a vocabulary of 150,000: in chunks, and with the whole logits."
    sizes = dict(tokens=256, vocabulary=20_000) if quick else dict(tokens=8 * 512, vocabulary=150_000)
    ours, plain = peak_gib(**sizes, budget=sizes['vocabulary'] * 64), peak_gib(**sizes, budget=2**62)
    return [dict(what=f"peak memory, {sizes['tokens']} tokens, {sizes['vocabulary']:,} words", unit='GiB', ours=ours, plain=plain, ratio=plain / ours, low=plain / ours, high=plain / ours)]
