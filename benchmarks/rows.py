"""What is measured, and on what: every function returns rows of the results."""
import statistics
import time
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch

from benchmarks import vocabulary
from benchmarks.clock import in_turn, ratio_row, timed, wait_for
from benchmarks.peers import generate, trl_in_turn, updater, whole_logprobs
from rl4llm.core.policy import has_fast_bf16
from rl4llm.advantages import grpo
from rl4llm.engine.fast_llama import distinct_prefixes
from rl4llm.core.policy import Policy
from rl4llm.core.registry import recipe, use
from rl4llm.core.sampling import ROOM
from rl4llm.scaling.cost_model import forward_flops, measure_machine, model_shape, step_flops, work_of
from rl4llm.tasks import task
from rl4llm.training.loop import train

FLOAT32, BFLOAT16 = 'float32', 'bfloat16 products'


@dataclass(frozen=True)
class Sizes:
    "How much is measured: of the step, of the log-probabilities, and along three axes."
    prompts: int = 32
    group: int = 16
    repeat: int = 7
    vocabulary: int = 150_000
    rows: int = 8
    tokens: int = 512
    processes: int = 2
    groups: tuple = (4, 8, 16, 32, 64)
    lengths: tuple = (12, 24, 48, 96, 192)
    widths: tuple = (64, 128, 256, 512)


QUICK = Sizes(prompts=2, group=4, repeat=2, vocabulary=20_000, rows=2, tokens=64, processes=1, groups=(2, 4), lengths=(4, 8), widths=(32, 64))


@dataclass(frozen=True)
class Setting:
    "What all measurements share: the sizes, the device, the problems, our policies by setting (the default's name is `default`), the recipe."
    sizes: Sizes
    device: str
    items: list
    policies: dict
    default: str
    recipe: object

    def about(self, name: str) -> dict: return dict(setting=name, default=name == self.default)


def setting_for(sizes: Sizes, device: str) -> Setting:
    "The embedded model in float32 and, where the machine has them, with bfloat16 products; the same problems for everybody."
    items = task('countdown').sample(sizes.prompts, seed=0)
    switches = {FLOAT32: False} | ({BFLOAT16: True} if has_fast_bf16(device) else {})
    policies = {name: Policy.load('tiny', device=device, fast=True, bf16=bf16) for name, bf16 in switches.items()}
    default = BFLOAT16 if Policy.load('tiny').bf16 else FLOAT32
    same = recipe('grpo', curriculum=use('uniform', pool=items), prompts=sizes.prompts, group=sizes.group, lr=1e-6)
    return Setting(sizes, device, items, policies, default, same)


def our_step(policy, problem, method) -> float:
    "Seconds of the second step of a run of two, from the end of the first to its own end: no start-up, everything else."
    marks = []
    def mark(state, row):
        wait_for(policy.device)
        marks.append(time.perf_counter())
    train(policy, problem, method, steps=2, callbacks=[SimpleNamespace(on_step=mark)])
    return marks[1] - marks[0]


def step_rows(s: Setting) -> list[dict]:
    "A whole training step: ours against TRL's."
    steps = {name: lambda policy=policy: our_step(policy, task('countdown'), s.recipe) for name, policy in s.policies.items()}
    times, length = trl_in_turn(s.policies[s.default], s.items, s.recipe, ROOM, contenders=steps, repeat=s.sizes.repeat)
    ours = s.policies[s.default].sample(s.items, s.sizes.group, seed=0).mask.sum(1).float().mean()
    lengths = dict(ours=round(float(ours), 2), theirs=round(length, 2))
    return [ratio_row(times[name], times['TRL'], what='training step (GRPO)', against='TRL GRPOTrainer', unit='s', wanted=2.5 if s.device == 'cpu' else None,
                      tokens_a_response=lengths, **s.about(name)) for name in s.policies]


def sampling_rows(s: Setting) -> list[dict]:
    "Drawing all responses: ours against `generate`."
    contenders = {name: timed(lambda policy=policy: policy.sample(s.items, s.sizes.group, seed=0), s.device) for name, policy in s.policies.items()}
    contenders['generate'] = timed(lambda: generate(s.policies[s.default], s.items, s.sizes.group, ROOM), s.device)
    times = in_turn(contenders, s.sizes.repeat)
    return [ratio_row(times[name], times['generate'], what=f'sampling, {len(s.items) * s.sizes.group} rows', against='generate', unit='s', wanted=2 if s.device == 'cpu' else None, **s.about(name)) for name in s.policies]


def update_rows(s: Setting) -> list[dict]:
    "Log-probabilities, gradient, clipping and AdamW on the same rollouts: ours (which computes entropies, too) against a plain autograd step."
    rollouts = s.policies[s.default].sample(s.items, s.sizes.group, seed=0)
    adv = grpo(torch.rand(len(rollouts), generator=torch.Generator().manual_seed(0)).round().to(s.device), rollouts.group)
    contenders = {name: timed(updater(p.model, lambda p=p: p.logprobs(rollouts)[0], rollouts, adv, 1e-6), s.device) for name, p in s.policies.items()}
    model = s.policies[s.default].clone().model
    times = in_turn({**contenders, 'plain': timed(updater(model, lambda: whole_logprobs(model, rollouts), rollouts, adv, 1e-6), s.device)}, s.sizes.repeat)
    return [ratio_row(times[name], times['plain'], what='update', against='plain autograd', unit='s', **s.about(name)) for name in s.policies]


def vocabulary_rows(s: Setting) -> list[dict]:
    "Log-probabilities and gradient at a large vocabulary, in float32: in chunks against whole logits, each in a process of its own."
    sizes = dict(rows=s.sizes.rows, tokens=s.sizes.tokens, vocabulary=s.sizes.vocabulary, device=s.device)
    found = [(vocabulary.in_own_process('ours', **sizes), vocabulary.in_own_process('whole', **sizes)) for _ in range(s.sizes.processes)]
    what = f"log-probabilities, {s.sizes.rows} x {s.sizes.tokens} tokens, {s.sizes.vocabulary:,} words"
    rows = [(key, [a[key] for a, _ in found], [b[key] for _, b in found]) for key in ('seconds', 'gib')]
    return [ratio_row(a, b, what=f"{what}: {'time' if key == 'seconds' else 'peak memory'}", against='whole logits', unit='s' if key == 'seconds' else 'GiB',
                      wanted=3 if key == 'gib' else None, setting=FLOAT32, default=True) for key, a, b in rows]


# -- the floor

def rates(device) -> dict[str, float]:
    "FLOPs a second of the best square matrix product, in each number format the machine is quick in."
    sizes = (512, 1024, 2048) if device == 'cpu' else (2048, 4096, 8192)
    kinds = {FLOAT32: torch.float32} | ({BFLOAT16: torch.bfloat16} if has_fast_bf16(device) else {})
    return {name: measure_machine(device=device, dtype=kind, sizes=sizes).flops for name, kind in kinds.items()}


def floor_rows(s: Setting, rows: list[dict], rate: dict[str, float]) -> list[dict]:
    "Share of the floor that each of our times reached: matrix FLOPs (prompts shared, nothing padded) at the measured rate, divided by the time. `distinct`: share of response tokens left if equal beginnings are counted once."
    policy = s.policies[s.default]
    rollouts = policy.sample(s.items, s.sizes.group, seed=0)
    shape, work = model_shape(policy.model.config), work_of(rollouts)
    lengths = rollouts.mask.sum(1).cpu()
    distinct = len(distinct_prefixes(rollouts.tokens.cpu(), lengths, rollouts.prompt.cpu()).token) / int(lengths.sum())
    once, step = forward_flops(shape, work), sum(step_flops(shape, work).values())
    flops = {'GRPOTrainer': step, 'generate': once, 'autograd': step - once}
    return [dict(what=r['what'], setting=r['setting'], default=r['default'], flops=flops[key], seconds=r['ours'], distinct=round(distinct, 3),
                 wanted=0.5 if key == 'GRPOTrainer' and s.device == 'cpu' else None, share={name: flops[key] / f / r['ours'] for name, f in rate.items()})
            for r in rows if (key := r['against'].split()[-1]) in flops]


# -- growth

class Endless(Policy):
    "A policy whose responses never end early, so that their length is a choice."
    eos = property(lambda self: -1)


def random_policy(width: int, device) -> Policy:
    "Random weights in the tiny model's proportions; its responses fill the room they are given."
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=256, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=3, num_attention_heads=width // 32, max_position_embeddings=256, tie_word_embeddings=True)
    default = Policy.load('tiny')
    return Endless(LlamaForCausalLM(config).to(device).eval(), default.tokenizer, 'random', 'compact', bf16=default.bf16)


def growth_points(s: Setting):
    "(axis, value, width, group, room) of every point along the three axes."
    for g in s.sizes.groups: yield 'responses a prompt', g, 128, g, 24
    for t in s.sizes.lengths: yield 'tokens a response', t, 128, 8, t
    for w in s.sizes.widths: yield 'model width', w, w, 8, 24


def growth_point(s: Setting, width: int, group: int, room: int) -> tuple[float, float]:
    "Seconds and matrix FLOPs of a step of a random policy, every response `room` tokens long."
    policy, prompts = random_policy(width, s.device), min(8, s.sizes.prompts)
    method = recipe('grpo', prompts=prompts, group=group, lr=1e-6, sampler=use('sample', max_new_tokens=room))
    work = work_of(policy.sample(s.items[:prompts], group, seed=0, max_new_tokens=room))
    if set(work.responses.tolist()) != {room}: raise RuntimeError(f"responses of {sorted(set(work.responses.tolist()))} tokens, wanted {room} in every row")
    times = in_turn(dict(ours=lambda: our_step(policy, task('countdown'), method)), min(3, s.sizes.repeat))
    return statistics.median(times['ours']), sum(step_flops(model_shape(policy.model.config), work).values())


def exponent(x, y) -> float:
    "Slope of log y over log x."
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def growth_row(axis: str, x, seconds, flops) -> dict:
    return dict(axis=axis, x=x, seconds=seconds, flops=flops, exponent=exponent(x, seconds), upper_exponent=exponent(x[-2:], seconds[-2:]), flops_exponent=exponent(x, flops))


def growth_rows(s: Setting) -> list[dict]:
    "A whole step along each axis, with the exponents of time and of the FLOPs counted; and of the time at the upper end, where fixed costs matter least."
    points = [(axis, x, *growth_point(s, *sizes)) for axis, x, *sizes in growth_points(s)]
    return [growth_row(axis, *zip(*(p[1:] for p in points if p[0] == axis))) for axis in dict.fromkeys(p[0] for p in points)]
