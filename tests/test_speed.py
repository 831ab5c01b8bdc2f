"""Fast paths change nothing but the time: the same tokens, the same numbers, and one setting turns them off."""

import os, subprocess, sys
from pathlib import Path
import pytest, torch
from rl4llm.core.policy import Policy, has_fast_bf16
from rl4llm.core.registry import recipe
from rl4llm.tasks import task
from rl4llm.training.loop import train

TOP = Path(__file__).resolve().parents[1]


def python(code, **env):
    return subprocess.run(
        [sys.executable, '-c', code],
        cwd=TOP,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout.strip()


def test_importing_is_quick_and_loads_no_torch():
    seconds = min(
        float(
            python(
                "import time; t = time.perf_counter(); import rl4llm; print(time.perf_counter() - t)"
            )
        )
        for _ in range(2)
    )
    assert seconds < 1.5
    assert python("import sys, rl4llm; print('torch' in sys.modules)") == 'False'


@pytest.mark.slow
def test_one_setting_turns_every_fast_path_off(monkeypatch):
    def lanes(**settings):
        for name, value in settings.items():
            monkeypatch.setenv(f'RL4LLM_{name}', value)
        policy = Policy.load('tiny')
        return policy.fast, policy.bf16, policy.graphs

    assert lanes() == (True, False, False)
    assert lanes(FAST='no', BF16='yes', GRAPHS='yes') == (False, True, True)
    assert lanes(BF16='auto')[1] == has_fast_bf16()
    patched = "import rl4llm.engine.fast_llama as f, rl4llm.engine.fused as g, rl4llm.engine.llama as l, rl4llm.engine.static_decoder as s\nfor m in (f, g, s):\n    for n in m.__all__: setattr(m, n, None)\nl.Decoder = l.prefill = l.hidden_states = None\n"
    patched += "f.is_fast = lambda *a: True\nfrom rl4llm.core.policy import Policy\nfrom rl4llm.tasks import task\np = Policy.load('tiny'); r = p.sample(task('countdown').sample(2, seed=0), 2, seed=0); print(float(p.logprobs(r)[0].sum()) < 0)"
    assert python(patched, RL4LLM_FAST='no') == 'True'


@pytest.fixture(scope='module')
def three():
    "The embedded model on the fast lane, on the readable path, and by Hugging Face."
    return {
        'fast': Policy.load('tiny', fast=True, bf16=False),
        'plain': Policy.load('tiny', fast=False),
    }


def test_same_seed_same_tokens(three):
    items = task('countdown', level='hard').sample(6, seed=1) + task('modular').sample(4, seed=1)
    a, b = (p.sample(items, 5, seed=3) for p in three.values())
    assert torch.equal(a.tokens, b.tokens) and torch.equal(a.mask, b.mask)
    assert (a.logp_behave - b.logp_behave).abs().max() < 1e-4


def test_same_statistics_and_gradients(three):
    items = task('countdown', level='hard').sample(6, seed=1) + task('modular').sample(4, seed=1)
    batch, found = three['plain'].sample(items, 5, seed=3), []
    for p in three.values():
        p.model.zero_grad()
        s = p.statistics(batch, ('logp',), watched=('entropy',))
        (s['logp'] * torch.linspace(-1, 1, s['logp'].numel()).view_as(s['logp'])).sum().backward()
        found.append(
            (
                s['logp'].detach(),
                s['entropy'],
                torch.cat([q.grad.flatten() for q in p.model.parameters()]),
                p.hidden(batch).detach(),
            )
        )
    for a, b in zip(*found):
        assert (a - b).norm() <= 1e-4 * b.norm()


def test_masks_with_holes_and_rows_without_a_token(three):
    "A tool's output in the middle, a row that carries no loss: the fast lane agrees with the plain path."
    import dataclasses

    batch = three['plain'].sample(task('countdown').sample(3, seed=0), 4, seed=0)
    mask = batch.mask.clone()
    mask[1] = False
    mask[2, 3:7] = False
    mask[5, 1:] = False
    holes = dataclasses.replace(batch, mask=mask)
    a, b = (p.statistics(holes, ('logp', 'entropy')) for p in three.values())
    for k in a:
        assert torch.allclose(a[k], b[k], atol=1e-4) and (a[k][~mask] == 0).all()


def test_a_training_run_is_the_same_to_rounding(three):
    small, runs = recipe('grpo', prompts=4, group=4, lr=1e-4), []
    for p in three.values():
        runs.append(train(p.clone(), task('countdown', level='easy'), small, steps=3))
    a, b = (
        r.metrics[['reward', 'entropy', 'loss', 'grad_norm', 'tokens']].to_numpy(dtype=float)
        for r in runs
    )
    assert abs(a - b).max() < 1e-3


def test_bfloat16_products_stay_close(three):
    rough, items = Policy.load('tiny', fast=True, bf16=True), task('countdown').sample(6, seed=1)
    batch = three['plain'].sample(items, 4, seed=0)
    with torch.no_grad():
        a, b = (p.logprobs(batch)[0] for p in (rough, three['plain']))
    assert 0 < (a - b)[batch.mask].abs().mean() < 0.02


def test_rows_without_advantage_are_not_computed_and_that_changes_nothing(three, monkeypatch):
    "Groups that are all right or all wrong: the same metrics and weights as with every row computed, and fewer rows."
    import rl4llm.training.loop as loop

    small, seen, runs = recipe('grpo', prompts=8, group=4, lr=1e-3, micro=8), [], []
    plain = loop.active_rows
    for skip in (True, False):
        monkeypatch.setattr(
            loop, 'active_rows', plain if skip else lambda stages, batch: torch.arange(len(batch))
        )
        policy = three['fast'].clone()
        runs.append(
            (
                train(policy, task('countdown'), small, steps=2),
                torch.cat([p.detach().flatten() for p in policy.model.parameters()]),
            )
        )
    (a, x), (b, y) = runs
    assert a.metrics['trained_tokens'].iloc[0] < b.metrics['trained_tokens'].iloc[0]
    assert (
        abs(a.metrics['loss'] - b.metrics['loss']).max() < 1e-5
        and abs(a.metrics['grad_norm'] - b.metrics['grad_norm']).max() < 1e-4
    )
    assert (x - y).abs().max() < 1e-5


def test_a_regulariser_needs_every_row(three):
    run = train(
        three['fast'].clone(), task('countdown'), recipe('grpo_kl', prompts=4, group=2), steps=1
    )
    assert (run.metrics['trained_tokens'] == run.metrics['tokens']).all()


@pytest.mark.parametrize(
    'device',
    [
        'cpu',
        pytest.param(
            'cuda', marks=pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU here')
        ),
    ],
)
def test_decoding_with_unchanging_shapes_draws_the_same(device):
    "With rows that end early and are dropped; on a GPU it is a recorded CUDA graph."
    import warnings

    items = task('countdown', level='easy').sample(3, seed=1) + task('modular').sample(3, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        a, b = (
            Policy.load('tiny', device=device, bf16=False, graphs=graphs).sample(items, 6, seed=3)
            for graphs in (False, True)
        )
    assert (
        torch.equal(a.tokens, b.tokens)
        and (a.logp_behave - b.logp_behave).abs().max() < 1e-4
        and a.mask.sum(1).min() < a.mask.sum(1).max()
    )
