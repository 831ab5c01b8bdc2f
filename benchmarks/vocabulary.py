"""Log-probabilities with gradient at a large vocabulary: time and peak memory.

Measured in a process of its own: `python -m benchmarks.vocabulary ours|whole --rows 8
--tokens 512 --vocabulary 150000` prints {"seconds": ..., "gib": ...}.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.clock import timed
from benchmarks.peers import whole_logprobs

GIB = 2**30


def peak_bytes(device) -> int:
    """The most memory that was ever held, in bytes.

    VmHWM where there is one: a child's ru_maxrss starts from what its parent held, which hides
    small peaks.
    """
    if device.type == 'cuda':
        return torch.cuda.max_memory_allocated(device)
    status = Path('/proc/self/status')
    if status.exists():
        return 1024 * int(re.search(r'VmHWM:\s+(\d+)', status.read_text())[1])
    import resource

    unit = 1 if sys.platform == 'darwin' else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def wide_policy(vocabulary: int, device, *, fast: bool):
    "A one-layer random Llama with a large vocabulary: nearly all the work is in its head."
    from transformers import LlamaConfig, LlamaForCausalLM
    from rl4llm.core.policy import Policy

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).to(device)
    return Policy(model, Policy.load('tiny', fast=fast).tokenizer)


def some_rollouts(rows: int, tokens: int, vocabulary: int, device):
    "Random responses to random prompts of 16 tokens."
    from rl4llm.core.rollouts import make_rollouts

    def draw(n, t):
        noise = torch.Generator().manual_seed(0)
        return torch.randint(0, vocabulary, (n, t), generator=noise).to(device)

    def all_real(n, t):
        return torch.ones(n, t, dtype=torch.bool, device=device)

    return make_rollouts(
        prompt_ids=draw(rows, 16),
        prompt_mask=all_real(rows, 16),
        tokens=draw(rows, tokens),
        prompt=torch.arange(rows, device=device),
        mask=all_real(rows, tokens),
    )


def measure(way: str, rows: int, tokens: int, vocabulary: int, device) -> dict:
    """Seconds of log-probabilities and their gradient, and GiB above what was held before.

    way: 'ours', in chunks, or 'whole' logits.
    """
    policy = wide_policy(vocabulary, device, fast=way == 'ours')
    rollouts = some_rollouts(rows, tokens, vocabulary, device)

    def logprobs():
        if way == 'whole':
            return whole_logprobs(policy.model, rollouts)
        return policy.logprobs(rollouts, entropy=False)[0]

    before = peak_bytes(device)
    seconds = timed(lambda: logprobs().mean().backward(), device)()
    used = max(2**20, peak_bytes(device) - before)
    return dict(seconds=seconds, gib=used / GIB)


def in_own_process(way: str, **sizes) -> dict:
    "`measure` in a fresh process."
    options = [text for name, value in sizes.items() for text in (f'--{name}', str(value))]
    command = [sys.executable, '-m', 'benchmarks.vocabulary', way, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise RuntimeError(f'measuring log-probabilities ({way}) failed: {last}')
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('way', choices=('ours', 'whole'))
    for name in ('rows', 'tokens', 'vocabulary'):
        parser.add_argument(f'--{name}', type=int, required=True)
    parser.add_argument('--device', type=torch.device, default='cpu')
    print(json.dumps(measure(**vars(parser.parse_args()))))


if __name__ == '__main__':
    main()
