"""The benchmark runs and reports, and compares like with like; it does not judge speed here."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.clock import in_turn, ratio_row
from rl4llm.app.benchmarks import (
    benchmark_table,
    floor_table,
    growth_table,
    headline,
    load_benchmark,
    plot_benchmark,
    times_table,
)

TOP = Path(__file__).resolve().parents[1]
STORED = [p.stem for p in sorted((TOP / 'rl4llm' / 'assets' / 'benchmarks').glob('*.json'))]


def command(*args, timeout=300):
    return subprocess.run(
        [sys.executable, '-m', 'benchmarks', *map(str, args)],
        cwd=TOP,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.mark.slow
@pytest.mark.takes_turns
def test_it_runs_and_reports(tmp_path):
    done = command('--quick', '--repeat', 2, '--out', tmp_path / 'cpu.json')
    assert done.returncode == 0, done.stderr[-2000:]
    results = load_benchmark(tmp_path / 'cpu.json')
    assert {'s', 'GiB'} == {r['unit'] for r in results['rows']} and all(
        r['ours'] > 0 and r['peer'] > 0 and r['low'] <= r['ratio'] <= r['high']
        for r in results['rows']
    )
    assert len(times_table(results)) == len(results['times']) > 0
    assert all(row['seconds'] > 0 for row in results['times'])
    assert {row['what'].endswith(', thinking') for row in results['rows']} == {True, False}
    assert (
        len(results['growth']) == 3
        and results['rates']['float32'] > 0
        and (tmp_path / 'cpu.png').stat().st_size > 1000
    )
    steps = [r for r in results['rows'] if r['against'].startswith('TRL')]
    assert bool(steps) != bool(results['left_out']) and all(
        0 < s['seconds'] for s in results['floor']
    )


@pytest.mark.parametrize(
    'args, says',
    [
        (('--repeat', 0), 'wanted at least 1'),
        (('--out', 'somewhere'), 'ends in .json'),
        (('--device', 'tpu'), 'invalid choice'),
    ],
)
def test_a_bad_option_is_named(args, says):
    done = command(*args)
    assert done.returncode == 2 and says in done.stderr


def test_contenders_take_turns_after_a_warm_up():
    calls = []

    def contender(name):
        return lambda: calls.append(name) or float(len(calls))

    times = in_turn(dict(a=contender('a'), b=contender('b')), 2)
    assert calls == ['a', 'b'] * 3 and times == dict(a=[3.0, 5.0], b=[4.0, 6.0])


def test_ratios_are_of_pairs():
    row = ratio_row([1.0, 2.0, 4.0], [3.0, 4.0, 4.0], what='x')
    assert (row['ours'], row['peer'], row['ratio'], row['low'], row['high'], row['pairs']) == (
        2,
        4,
        2,
        1,
        3,
        3,
    )


def test_the_plain_way_computes_the_same():
    import torch
    from benchmarks.peers import updater, whole_logprobs
    from rl4llm import Policy
    from rl4llm.tasks import task

    policy = Policy.load('tiny', bf16=False)
    rollouts = policy.sample(task('countdown').sample(3, seed=0), 4, seed=0)
    other = policy.clone()
    plain, ours = whole_logprobs(other.model, rollouts), policy.logprobs(rollouts)[0]
    assert torch.allclose(plain[rollouts.mask], ours[rollouts.mask], atol=1e-4)
    adv = torch.linspace(-1, 1, len(rollouts))
    updater(policy.model, lambda: policy.logprobs(rollouts)[0], rollouts, adv, 1e-4)()
    updater(other.model, lambda: whole_logprobs(other.model, rollouts), rollouts, adv, 1e-4)()
    near = [
        torch.isclose(a, b, atol=2e-5).float().mean()
        for a, b in zip(policy.model.parameters(), other.model.parameters())
    ]
    assert (
        min(near) > 0.99
    )  # AdamW's first step is the sign of the gradient: a gradient of nearly 0 may differ in it


def test_generate_draws_as_many_texts_as_asked():
    from benchmarks.peers import generate
    from rl4llm import Policy
    from rl4llm.tasks import task

    assert len(generate(Policy.load('tiny'), task('countdown').sample(2, seed=0), 3, 8)) == 6


def test_trl_is_asked_for_the_same_step():
    pytest.importorskip('trl')
    from benchmarks.peers import trl_config
    from rl4llm import recipe

    method = recipe('grpo', prompts=4, group=2, lr=1e-6)
    config = trl_config(method, 48, 3, 'cpu', 'nowhere')
    assert (
        config.generation_batch_size == config.per_device_train_batch_size == 8
        and config.steps_per_generation
        == config.num_iterations
        == config.gradient_accumulation_steps
        == 1
    )
    assert (
        config.beta,
        config.bf16,
        config.gradient_checkpointing,
        config.learning_rate,
        config.max_completion_length,
    ) == (0, False, False, 1e-6, 48)
    assert (
        config.epsilon == 0.2
        and config.weight_decay == method.weight_decay
        and config.max_grad_norm == method.max_grad_norm
    )


def test_responses_of_a_random_policy_fill_their_room():
    from benchmarks.rows import exponent, random_policy
    from rl4llm.tasks import task

    assert (
        random_policy(32, 'cpu')
        .sample(task('countdown').sample(2, seed=0), 3, seed=0, max_new_tokens=20)
        .mask.all()
    )
    assert exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)


@pytest.mark.parametrize('name', STORED)
def test_stored_results_are_whole(name):
    results = load_benchmark(name)
    assert (
        not results['quick']
        and results['machine']['date']
        and len(benchmark_table(results)) == len(results['rows'])
    )
    assert (
        len(floor_table(results)) == len(results['floor'])
        and len(growth_table(results)) == len(results['growth']) == 3
    )
    for r in results['floor']:
        assert r['share'] == {
            kind: pytest.approx(r['flops'] / rate / r['seconds'])
            for kind, rate in results['rates'].items()
        }
    assert results['machine']['date'] in headline(results)
    plot_benchmark(results)


def test_missing_results_say_how_to_make_them(tmp_path):
    with pytest.raises(FileNotFoundError, match='python -m benchmarks'):
        load_benchmark('nonesuch.json')
    with pytest.raises(KeyError, match='benchmark'):
        load_benchmark('nonesuch')
    with pytest.raises(ValueError, match='TRL is not installed'):
        headline(dict(rows=[], left_out=['TRL is not installed']))


# -- the cost model


def test_the_counts_equal_counting_one_by_one():
    from rl4llm.scaling.cost_model import StepWork, prompt_counts, response_counts

    rng = np.random.default_rng(0)
    prompts, prompt = rng.integers(1, 9, 5), rng.integers(0, 5, 20)
    work = StepWork(prompts=prompts, responses=rng.integers(1, 12, 20), prompt=prompt)

    def walked(before, n):
        return np.array([n, sum(before + i + 1 for i in range(n)), 0.0])

    assert (prompt_counts(work) == sum(walked(0, p) for p in prompts)).all()
    assert (prompt_counts(work, shared=False) == sum(walked(0, prompts[i]) for i in prompt)).all()
    assert (
        response_counts(work)
        == sum(walked(prompts[i], t - 1) + [0, 0, t] for i, t in zip(prompt, work.responses))
    ).all()


def test_sharing_and_leaving_padding_out_never_cost():
    from rl4llm.core.policy import Policy
    from rl4llm.scaling.cost_model import forward_flops, model_shape, uniform_work, work_of
    from rl4llm.tasks import task

    policy = Policy.load('tiny')
    shape, work = (
        model_shape(policy.model.config),
        work_of(policy.sample(task('countdown').sample(4, seed=0), 3, seed=0)),
    )
    assert (
        forward_flops(shape, work)
        < forward_flops(shape, work, shared=False)
        <= forward_flops(shape, work, shared=False, padded=True)
    )
    even = uniform_work(4, 2, prompt_tokens=5, response_tokens=7)
    assert forward_flops(shape, even) == forward_flops(shape, even, padded=True)


def test_a_config_that_is_none_is_named():
    from rl4llm.scaling.cost_model import model_shape

    with pytest.raises(ValueError, match='intermediate_size'):
        model_shape(dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=9))


def test_the_roof_bends_at_the_ridge():
    from rl4llm.scaling.cost_model import KNOWN_MACHINES, roofline_seconds

    for m in KNOWN_MACHINES.values():
        assert roofline_seconds(2 * m.ridge, 1, m)[1] == 'products' and roofline_seconds(
            m.ridge / 2, 1, m
        ) == (1 / m.bandwidth, 'memory')
