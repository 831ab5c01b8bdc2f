"""Log-probabilities with gradient at a large vocabulary: time and peak memory, measured in a process of its own.

`python -m benchmarks.vocabulary ours|whole --rows 8 --tokens 512 --vocabulary 150000` prints {"seconds": ..., "gib": ...}."""
import argparse
import json
import os
import re
import subprocess
import sys

import torch

from benchmarks.clock import timed
from benchmarks.peers import whole_logprobs


def peak_bytes(device) -> int:
    "The most memory that was ever held, in bytes. VmHWM where there is one: a child's ru_maxrss starts from what its parent held, which hides small peaks."
    if device.type == 'cuda': return torch.cuda.max_memory_allocated(device)
    if os.path.exists('/proc/self/status'): return 1024 * int(re.search(r'VmHWM:\s+(\d+)', open('/proc/self/status').read())[1])
    import resource
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == 'darwin' else 1024)


def wide_policy(vocabulary: int, device, *, fast: bool):
    "A one-layer Llama with a large vocabulary and random weights: nearly all the work is in its head."
    from rl4llm.core.policy import Policy
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=vocabulary, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=2048, tie_word_embeddings=True)
    return Policy(LlamaForCausalLM(config).to(device), Policy.load('tiny', fast=fast).tokenizer)


def some_rollouts(rows: int, tokens: int, vocabulary: int, device):
    "Random responses to random prompts of 16 tokens."
    from rl4llm.core.rollouts import make_rollouts
    draw = lambda n, t: torch.randint(0, vocabulary, (n, t), generator=torch.Generator().manual_seed(0)).to(device)
    return make_rollouts(prompt_ids=draw(rows, 16), prompt_mask=torch.ones(rows, 16, dtype=torch.bool, device=device), tokens=draw(rows, tokens),
                         prompt=torch.arange(rows, device=device), mask=torch.ones(rows, tokens, dtype=torch.bool, device=device))


def measure(way: str, rows: int, tokens: int, vocabulary: int, device) -> dict:
    "Seconds, and GiB above what model and data had taken, of log-probabilities and their gradient."
    policy, rollouts = wide_policy(vocabulary, device, fast=way == 'ours'), some_rollouts(rows, tokens, vocabulary, device)
    logprobs = dict(ours=lambda: policy.logprobs(rollouts, entropy=False)[0], whole=lambda: whole_logprobs(policy.model, rollouts))[way]
    before = peak_bytes(device)
    seconds = timed(lambda: logprobs().mean().backward(), device)()
    return dict(seconds=seconds, gib=max(2**20, peak_bytes(device) - before) / 2**30)


def in_own_process(way: str, **sizes) -> dict:
    "`measure` in a fresh process."
    options = [str(x) for name, value in sizes.items() for x in (f'--{name}', value)]
    done = subprocess.run([sys.executable, '-m', 'benchmarks.vocabulary', way, *options], capture_output=True, text=True)
    if done.returncode: raise RuntimeError(f"measuring log-probabilities ({way}) failed: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('way', choices=('ours', 'whole'))
    for name in ('rows', 'tokens', 'vocabulary'): parser.add_argument(f'--{name}', type=int, required=True)
    parser.add_argument('--device', type=torch.device, default='cpu')
    print(json.dumps(measure(**vars(parser.parse_args()))))


if __name__ == '__main__': main()
