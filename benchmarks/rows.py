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
from rl4llm.advantages import grpo
from rl4llm.core.policy import Policy, has_fast_bf16
from rl4llm.core.registry import recipe, use
from rl4llm.core.sampling import ROOM
from rl4llm.engine.fast_llama import distinct_prefixes
from rl4llm.scaling.cost_model import (
    forward_flops,
    measure_machine,
    model_shape,
    step_flops,
    work_of,
)
from rl4llm.tasks import task
from rl4llm.training.evaluation import evaluate
from rl4llm.training.loop import train

FLOAT32, BFLOAT16 = 'float32', 'bfloat16 products'
TRL = 'TRL GRPOTrainer'


@dataclass(frozen=True)
class Sizes:
    """How much is measured: of the step, of the log-probabilities, and along three axes.

    thinking: prompts a step for the model that thinks. room: tokens a thought and its answer may
    have. often, once: (problems, samples) of an evaluation on the way and of one at the end.
    part: share of the problems of `once` that is measured; the time is scaled up from it.
    """

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
    thinking: int = 16
    room: int = 200
    often: tuple = (100, 16)
    once: tuple = (300, 256)
    part: float = 0.2


QUICK = Sizes(
    prompts=2,
    group=4,
    repeat=2,
    vocabulary=20_000,
    rows=2,
    tokens=64,
    processes=1,
    groups=(2, 4),
    lengths=(4, 8),
    widths=(32, 64),
    thinking=2,
    room=24,
    often=(2, 2),
    once=(2, 4),
    part=0.5,
)


@dataclass(frozen=True)
class Setting:
    """What measurements on one model share.

    of: what is added to the names of its rows. room: tokens that a response may have.
    policies: ours by setting; that of the default is named `default`.
    """

    sizes: Sizes
    device: str
    of: str
    room: int
    items: list
    policies: dict
    default: str
    recipe: object

    @property
    def policy(self):
        return self.policies[self.default]

    @property
    def on_cpu(self) -> bool:
        return self.device == 'cpu'

    def about(self, name: str) -> dict:
        return dict(setting=name, default=name == self.default)

    def wanted(self, aim: float) -> float | None:
        "An aim is for the processor."
        return aim if self.on_cpu else None


def formats(device) -> dict[str, bool]:
    "Our settings by name: float32, and bfloat16 products where the device is fast at them."
    return {FLOAT32: False} | ({BFLOAT16: True} if has_fast_bf16(device) else {})


def setting_for(sizes: Sizes, device: str, model: str = 'tiny', of: str = '') -> Setting:
    "One model with each of our settings, and the same problems for everybody."
    is_thinking = model != 'tiny'
    prompts = sizes.thinking if is_thinking else sizes.prompts
    items = task('countdown').sample(prompts, seed=0)
    policies = {
        name: Policy.load(model, device=device, fast=True, bf16=bf16)
        for name, bf16 in formats(device).items()
    }
    default = BFLOAT16 if Policy.load(model, device=device).bf16 else FLOAT32
    room = sizes.room if is_thinking else ROOM
    pool = use('uniform', pool=items)
    drawing = use('sample', max_new_tokens=room)
    how = dict(curriculum=pool, sampler=drawing, prompts=prompts, group=sizes.group, lr=1e-6)
    return Setting(sizes, device, of, room, items, policies, default, recipe('grpo', **how))


# -- ours against others


def our_step(policy, problem, method) -> float:
    """Seconds of the second step of a run of two, from the end of the first to its own end.

    So start-up is left out, and everything else counts.
    """
    marks = []

    def mark(state, row):
        wait_for(policy.device)
        marks.append(time.perf_counter())

    train(policy, problem, method, steps=2, callbacks=[SimpleNamespace(on_step=mark)])
    return marks[1] - marks[0]


def draw(s: Setting, policy):
    "Responses of a policy to all problems."
    return policy.sample(s.items, s.sizes.group, seed=0, max_new_tokens=s.room)


def against(times: dict, s: Setting, peer: str, **about) -> list[dict]:
    "A row for each of our settings, from the seconds of all contenders."
    return [
        ratio_row(times[name], times[peer], unit='s', **about, **s.about(name))
        for name in s.policies
    ]


def step_rows(s: Setting) -> list[dict]:
    "A whole training step: ours against TRL's."
    steps = {
        name: lambda policy=policy: our_step(policy, task('countdown'), s.recipe)
        for name, policy in s.policies.items()
    }
    how = dict(contenders=steps, repeat=s.sizes.repeat)
    times, theirs = trl_in_turn(s.policy, s.items, s.recipe, s.room, **how)
    ours = float(draw(s, s.policy).mask.sum(1).float().mean())
    lengths = dict(ours=round(ours, 2), theirs=round(theirs, 2))
    about = dict(what=f'training step (GRPO){s.of}', against=TRL, wanted=s.wanted(2.5))
    return against(times, s, 'TRL', tokens_a_response=lengths, **about)


def sampling_rows(s: Setting) -> list[dict]:
    "Drawing all responses: ours against `generate`."
    contenders = {
        name: timed(lambda policy=policy: draw(s, policy), s.device)
        for name, policy in s.policies.items()
    }

    def others():
        generate(s.policy, s.items, s.sizes.group, s.room)

    contenders['generate'] = timed(others, s.device)
    times = in_turn(contenders, s.sizes.repeat)
    what = f'sampling, {len(s.items) * s.sizes.group} rows{s.of}'
    return against(times, s, 'generate', what=what, against='generate', wanted=s.wanted(2))


def update_rows(s: Setting) -> list[dict]:
    """Log-probabilities, gradient, clipping and AdamW on the same rollouts.

    Ours, which computes entropies too, against a plain autograd step.
    """
    rollouts = draw(s, s.policy)
    coins = torch.rand(len(rollouts), generator=torch.Generator().manual_seed(0)).round()
    adv = grpo(coins.to(s.device), rollouts.group)

    def one_update(model, logprobs):
        return timed(updater(model, logprobs, rollouts, adv, 1e-6), s.device)

    contenders = {
        name: one_update(p.model, lambda p=p: p.logprobs(rollouts)[0])
        for name, p in s.policies.items()
    }
    model = s.policy.clone().model
    contenders['plain'] = one_update(model, lambda: whole_logprobs(model, rollouts))
    times = in_turn(contenders, s.sizes.repeat)
    return against(times, s, 'plain', what=f'update{s.of}', against='plain autograd')


def vocabulary_rows(s: Setting) -> list[dict]:
    """Log-probabilities and gradient at a large vocabulary, in float32.

    In chunks against whole logits, each in a process of its own.
    """
    names = ('rows', 'tokens', 'vocabulary')
    sizes = {name: getattr(s.sizes, name) for name in names}
    count = range(s.sizes.processes)
    run = vocabulary.in_own_process
    pairs = [[run(way, **sizes, device=s.device) for way in ('ours', 'whole')] for _ in count]
    what = '{rows} x {tokens} tokens, {vocabulary:,} words'.format(**sizes)
    about = dict(against='whole logits', setting=FLOAT32, default=True)
    found = []
    parts = dict(
        seconds=dict(what=f'log-probabilities, {what}: time', unit='s', wanted=None),
        gib=dict(what=f'log-probabilities, {what}: peak memory', unit='GiB', wanted=3),
    )
    for key, named in parts.items():
        ours, whole = ([pair[side][key] for pair in pairs] for side in (0, 1))
        found.append(ratio_row(ours, whole, **named, **about))
    return found


# -- times that a study waits for


def exam_rows(
    s: Setting, problems: int, samples: int, aim: float, part: float = 1.0
) -> list[dict]:
    """Seconds of an evaluation, by setting.

    part: share of the problems that are really asked; the time is scaled up from theirs.
    """
    asked = max(1, round(part * problems))
    items = task('countdown').sample(asked, seed=0, split='test')
    scaled = '' if asked == problems else f', from {asked} of them'
    about = dict(what=f'evaluation, {problems} problems{scaled} x {samples}{s.of}')

    def seconds(policy):
        once = timed(lambda: evaluate(policy, items, samples=samples), s.device)()
        return once * problems / asked

    return [
        dict(**about, wanted=s.wanted(aim), seconds=seconds(policy), **s.about(name))
        for name, policy in s.policies.items()
    ]


def time_rows(s: Setting, rows: list[dict]) -> list[dict]:
    "Seconds of evaluations and of a hundred training steps, by setting."
    found = exam_rows(s, *s.sizes.often, 8)
    found += exam_rows(s, *s.sizes.once, 300, s.sizes.part)
    steps = [row for row in rows if row['against'] == TRL and row['what'].endswith(s.of)]
    what = f'100 steps of {len(s.items) * s.sizes.group} rows{s.of}'
    for row in steps:
        about = s.about(row['setting'])
        found.append(dict(what=what, seconds=100 * row['ours'], wanted=s.wanted(180), **about))
    return found


# -- the floor


def rates(device) -> dict[str, float]:
    "FLOPs a second of the best square matrix product, in each fast number format."
    sizes = (512, 1024, 2048) if device == 'cpu' else (2048, 4096, 8192)
    kinds = {FLOAT32: torch.float32, BFLOAT16: torch.bfloat16}
    return {
        name: measure_machine(device=device, dtype=kinds[name], sizes=sizes).flops
        for name in formats(device)
    }


def share_distinct(rollouts) -> float:
    "Share of response tokens that are left if equal beginnings are counted once."
    lengths = rollouts.mask.sum(1).cpu()
    prefixes = distinct_prefixes(rollouts.tokens.cpu(), lengths, rollouts.prompt.cpu())
    return len(prefixes.token) / int(lengths.sum())


def floor_rows(s: Setting, rows: list[dict], rate: dict[str, float]) -> list[dict]:
    """Share of the floor that each of our times reached.

    The floor: matrix FLOPs (prompts shared, nothing padded) at the measured rate.
    """
    rollouts = draw(s, s.policy)
    shape = model_shape(s.policy.model.config)
    work = work_of(rollouts)
    once = forward_flops(shape, work)
    step = sum(step_flops(shape, work).values())
    flops = {TRL: step, 'generate': once, 'plain autograd': step - once}
    distinct = round(share_distinct(rollouts), 3)
    found = []
    for row in rows:
        if row['against'] not in flops:
            continue
        count = flops[row['against']]
        share = {name: count / most / row['ours'] for name, most in rate.items()}
        wanted = s.wanted(0.5) if row['against'] == TRL and not s.of else None
        about = {key: row[key] for key in ('what', 'setting', 'default')}
        measured = dict(flops=count, seconds=row['ours'], distinct=distinct, share=share)
        found.append(dict(**about, **measured, wanted=wanted))
    return found


# -- growth


class Endless(Policy):
    "A policy whose responses never end early, so that their length is a choice."

    eos = property(lambda self: -1)


def random_policy(width: int, device) -> Policy:
    "Random weights in the tiny model's proportions; its responses fill the room they are given."
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=3,
        num_attention_heads=width // 32,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    default = Policy.load('tiny')
    model = LlamaForCausalLM(config).to(device).eval()
    return Endless(model, default.tokenizer, 'random', 'compact', bf16=default.bf16)


@dataclass(frozen=True)
class Point:
    "One point of an axis: its value there, the model's width, rows a prompt, tokens a row."

    axis: str
    value: int
    width: int = 128
    group: int = 8
    room: int = 24


def growth_points(s: Setting) -> list[Point]:
    "Every point along the three axes."
    groups = [Point('responses a prompt', g, group=g) for g in s.sizes.groups]
    lengths = [Point('tokens a response', t, room=t) for t in s.sizes.lengths]
    return groups + lengths + [Point('model width', w, width=w) for w in s.sizes.widths]


def growth_point(s: Setting, point: Point) -> tuple[float, float]:
    "Seconds and matrix FLOPs of a step of a random policy whose responses fill their room."
    policy = random_policy(point.width, s.device)
    prompts = min(8, s.sizes.prompts)
    drawing = use('sample', max_new_tokens=point.room)
    method = recipe('grpo', prompts=prompts, group=point.group, lr=1e-6, sampler=drawing)
    items = s.items[:prompts]
    work = work_of(policy.sample(items, point.group, seed=0, max_new_tokens=point.room))
    drawn = sorted(set(work.responses.tolist()))
    if drawn != [point.room]:
        raise RuntimeError(f'responses of {drawn} tokens, wanted {point.room} in every row')

    def ours():
        return our_step(policy, task('countdown'), method)

    times = in_turn(dict(ours=ours), min(3, s.sizes.repeat))
    flops = sum(step_flops(model_shape(policy.model.config), work).values())
    return statistics.median(times['ours']), flops


def exponent(x, y) -> float:
    "Slope of log y over log x."
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def growth_row(axis: str, x, seconds, flops) -> dict:
    "Exponents of time and of FLOPs along an axis, and of the time at its upper end."
    fitted = dict(exponent=exponent(x, seconds), flops_exponent=exponent(x, flops))
    upper = exponent(x[-2:], seconds[-2:])
    return dict(axis=axis, x=x, seconds=seconds, flops=flops, upper_exponent=upper, **fitted)


def growth_rows(s: Setting) -> list[dict]:
    """A whole step along each axis, with the exponents of time and of the FLOPs counted.

    At the upper end of an axis fixed costs matter least, so it has an exponent of its own.
    """
    found = {}
    for point in growth_points(s):
        measured = (point.value, *growth_point(s, point))
        found.setdefault(point.axis, []).append(measured)
    return [growth_row(axis, *zip(*points)) for axis, points in found.items()]
