"""The loop: exact resume, damaged checkpoints, diverging loss, bad input."""
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from conftest import noisy
from rl4llm.core.registry import recipe, stage, use
from rl4llm.training.callbacks import Checkpoint, EarlyStop, Evaluate
from rl4llm.training.checkpoints import list_checkpoints
from rl4llm.core.storage import pack
from rl4llm.training.loop import TrainingDiverged, train
from rl4llm.core.pipeline import row_parts
from rl4llm.training.records import Run, load_runs

STEPS = 12
CHILD = """
import sys, warnings
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from conftest import noisy
from rl4llm.core.policy import Policy
from rl4llm.core.registry import recipe, use
from rl4llm.tasks import task
from rl4llm.training.callbacks import Checkpoint, Evaluate
from rl4llm.training.loop import train
t = task('countdown', level='easy')
r = recipe('grpo', reward=use(noisy), sampler=use('sample', max_new_tokens=8), prompts=4, group=4, epochs=2, minibatch=8, lr=1e-3, regularisers=(use('kl_penalty', coef=0.01),))
p = Policy.load({model!r})
train(p, t, r, steps={steps}, seed=3, path={path!r}, callbacks=[Checkpoint(every=2), Evaluate(t.sample(2, seed=0, split='test'), samples=4, every=5)])
p.model.save_pretrained({path!r} + '/final')
"""


def child(path, model):
    code = CHILD.format(tests=os.path.dirname(__file__), model=str(model), steps=STEPS, path=str(path))
    return subprocess.Popen([sys.executable, '-c', code], env={**os.environ, 'OMP_NUM_THREADS': '1'}, stderr=subprocess.PIPE, text=True)


def finish(path, model):
    process = child(path, model)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-2000:]


def timeless(run):
    return [{k: v for k, v in row.items() if not k.startswith('seconds')} for row in run.rows]


def test_killed_at_any_moment_it_ends_as_if_it_never_was(tmp_path, tiny_folder):
    finish(tmp_path / 'whole', tiny_folder)
    killed, path = 0, tmp_path / 'killed'
    for lines in (1, 4, 7, 10):
        process = child(path, tiny_folder)
        metrics, deadline = path / 'metrics.jsonl', time.time() + 120
        while process.poll() is None and time.time() < deadline and (not metrics.exists() or metrics.read_text().count('\n') < lines): time.sleep(0.005)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.wait()
    finish(path, tiny_folder)
    whole, resumed = Run.load(tmp_path / 'whole'), Run.load(path)
    assert killed >= 2
    assert timeless(whole) == timeless(resumed) and len(whole.rows) == STEPS
    assert {s: e.num_correct.tolist() for s, e in whole.evaluations.items()} == {s: e.num_correct.tolist() for s, e in resumed.evaluations.items()}
    assert (tmp_path / 'whole/final/model.safetensors').read_bytes() == (path / 'final/model.safetensors').read_bytes()


@pytest.mark.parametrize('damage', ['truncate', 'flip', 'no state', 'bad json'])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path, small_policy, easy, lively, damage):
    start = small_policy.clone()
    train(small_policy, easy, lively, steps=6, path=tmp_path, callbacks=[Checkpoint(every=2)])
    newest = list_checkpoints(tmp_path / 'checkpoints')[-1]
    tensors, state = newest / 'tensors.safetensors', newest / 'state.json'
    if damage == 'truncate': os.truncate(tensors, tensors.stat().st_size // 2)
    if damage == 'flip': data = bytearray(tensors.read_bytes()); data[-5] ^= 1; tensors.write_bytes(bytes(data))
    if damage == 'no state': state.unlink()
    if damage == 'bad json': state.write_text('{"step": 6, ')
    with pytest.warns(UserWarning, match='00000006.*using the one before it'): run = train(start, easy, lively, steps=6, path=tmp_path, callbacks=[Checkpoint(every=2)])
    assert [r['step'] for r in run.rows] == list(range(6))
    assert all(torch.equal(a, b) for a, b in zip(start.model.parameters(), small_policy.model.parameters()))


def test_training_is_a_function_of_the_seed(tiny_folder, easy, lively):
    from rl4llm.core.policy import Policy
    runs = [train(Policy.load(tiny_folder), easy, lively, steps=3, seed=s) for s in (0, 0, 1)]
    assert timeless(runs[0]) == timeless(runs[1]) != timeless(runs[2])


def test_slices_of_memory_do_not_change_the_result(tiny_folder, easy, lively):
    from rl4llm.core.policy import Policy
    policies = [Policy.load(tiny_folder) for _ in range(2)]
    for p, micro in zip(policies, (None, 3)): train(p, easy, lively.but(micro=micro), steps=1)
    gap = max((a - b).abs().max().item() for a, b in zip(*(p.model.parameters() for p in policies)))
    moved = max((a - b).abs().max().item() for a, b in zip(policies[0].model.parameters(), Policy.load(tiny_folder).model.parameters()))
    assert gap < 0.05 * moved


def test_the_fast_path_trains_like_the_plain_one(tiny_folder, easy, lively):
    from rl4llm.core.policy import Policy
    runs = [train(Policy.load(tiny_folder, fast=fast), easy, lively, steps=1) for fast in (True, False)]
    a, b = (r.rows[0] for r in runs)
    assert a['tokens'] == b['tokens'] and a['reward'] == b['reward']
    assert np.isclose(a['grad_norm'], b['grad_norm'], rtol=1e-3) and np.isclose(a['entropy'], b['entropy'], rtol=1e-4)


def spoiled(logp, logp_old, adv, mask): return -adv * logp * mask * float('nan')
def exploding(logp, logp_old, adv, mask): return -adv.abs() * logp * mask * 1e9
def infinite(prompts, completions, **columns): return [float('inf')] * len(completions)
def too_few(prompts, completions, **columns): return [1.0]
def constant(prompts, completions, **columns): return [1.0] * len(completions)


@pytest.mark.parametrize('objective', [spoiled, exploding])
def test_a_loss_that_explodes_stops_the_run_before_the_weights_change(tmp_path, small_policy, easy, lively, objective):
    train(small_policy, easy, lively, steps=2, path=tmp_path / 'good', callbacks=[Checkpoint(every=1)])
    before = {k: v.clone() for k, v in pack(small_policy.model).items()}
    with pytest.raises(TrainingDiverged) as error: train(small_policy, easy, lively.but(objective=use(objective)), steps=2, path=tmp_path / 'bad', callbacks=[Checkpoint(every=1)])
    assert 'step 0' in str(error.value) and 'countdown' in str(error.value) and 'checkpoint' in str(error.value)
    assert all(torch.equal(v, before[k]) for k, v in pack(small_policy.model).items())


def test_the_last_good_checkpoint_is_named(tmp_path, small_policy, easy, lively):
    class Poison:
        def on_step(self, state, row):
            if state.step == 3: next(small_policy.model.parameters()).data.fill_(float('nan'))
    with pytest.raises(TrainingDiverged, match='step 3.*00000002'): train(small_policy, easy, lively, steps=6, path=tmp_path, callbacks=[Checkpoint(every=1), Poison()])


@pytest.mark.parametrize('reward, words', [(infinite, 'infinite returned inf for row 0'), (too_few, 'returned 1 rewards for 16')])
def test_a_broken_reward_is_named(small_policy, easy, lively, reward, words):
    with pytest.raises(ValueError, match=words): train(small_policy, easy, lively.but(reward=use(reward)), steps=1)


def test_equal_rewards_everywhere_leave_the_weights_alone(small_policy, easy, lively):
    before = [p.clone() for p in small_policy.model.parameters()]
    run = train(small_policy, easy, lively.but(reward=use(constant), select=use('drop_zero_rows')), steps=1)
    assert run.rows[0]['updates'] == 0 and run.rows[0]['signal'] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, small_policy.model.parameters()))


def test_a_group_of_one(small_policy, easy, lively):
    with pytest.raises(ValueError, match='at least 2 responses'): train(small_policy, easy, lively.but(advantage='rloo', group=1), steps=1)
    run = train(small_policy, easy, lively.but(group=1, minibatch=None), steps=1)
    assert np.isfinite(run.rows[0]['reward'])


def test_another_run_in_the_same_folder_is_refused(tmp_path, small_policy, easy, lively):
    start = small_policy.clone()
    train(small_policy, easy, lively, steps=1, path=tmp_path)
    with pytest.raises(ValueError, match='holds another run: its seed is 0'): train(start.clone(), easy, lively, steps=1, seed=1, path=tmp_path)
    with pytest.raises(ValueError, match='holds another run: its lr is 0.001, this one.s is 0.002'): train(start.clone(), easy, lively.but(lr=2e-3), steps=1, path=tmp_path)
    with pytest.raises(ValueError, match='holds another run: its weights'): train(small_policy, easy, lively, steps=1, path=tmp_path)


@pytest.mark.parametrize('bad, words', [(dict(steps=0), 'steps is 0'), (dict(steps=2.5), 'steps is 2.5')])
def test_bad_numbers(small_policy, easy, lively, bad, words):
    with pytest.raises(ValueError, match=words): train(small_policy, easy, lively, **bad)


def test_unknown_things_are_answered_with_what_there_is(small_policy, easy):
    with pytest.raises(KeyError, match='did you mean grpo'): train(small_policy, easy, 'grop', steps=1)
    with pytest.raises(TypeError, match='did you mean epochs'): recipe('grpo', epoch=2)
    with pytest.raises(ValueError, match='checkpoints need a folder'): train(small_policy, easy, recipe('grpo', prompts=1, group=2), steps=1, callbacks=[Checkpoint()])


def test_signals_reach_the_stages_that_ask(small_policy, easy, lively):
    asked = {}
    def curious(rewards, group, *, lengths, finished):
        asked.update(lengths=lengths, finished=finished)
        return rewards - rewards.mean()
    stage('advantage', needs=('lengths', 'finished'))(curious)
    train(small_policy, easy, lively.but(advantage=use('curious')), steps=1)
    assert asked['lengths'].shape == asked['finished'].shape == (16,)
    def greedy(rewards, group, *, moonlight): return rewards
    stage('advantage', needs=('moonlight',))(greedy)
    with pytest.raises(ValueError, match='needs moonlight, which this loop does not compute'): train(small_policy, easy, lively.but(advantage=use('greedy')), steps=1)


def test_memory_of_a_stage_is_kept_in_checkpoints(tmp_path, tiny_folder, easy, lively):
    from rl4llm.core.policy import Policy
    class running_mean:
        "An exponential mean of rewards as baseline: a stage with memory."
        def __init__(self, *, rate=0.5): self.rate, self.mean = rate, 0.0
        def __call__(self, rewards, group): return rewards - self.mean
        def update(self, rollouts): self.mean += self.rate * (float(rollouts.rewards.mean()) - self.mean)
        def state_dict(self): return dict(mean=self.mean)
        def load_state_dict(self, state): self.mean = state['mean']
    stage('advantage')(running_mean)
    lively = lively.but(advantage=use('running_mean', rate=0.3))
    whole = train(Policy.load(tiny_folder), easy, lively, steps=6)
    train(Policy.load(tiny_folder), easy, lively, steps=3, path=tmp_path)
    resumed = train(Policy.load(tiny_folder), easy, lively, steps=6, path=tmp_path)
    assert timeless(whole) == timeless(resumed)


def test_early_stop_and_evaluations(small_policy, easy, lively):
    items = easy.sample(2, seed=0, split='valid')
    run = train(small_policy, easy, lively, steps=50, callbacks=[EarlyStop(at_least=0.0, window=3), Evaluate(items, samples=4, every=2)])
    assert len(run.rows) == 3 and sorted(run.evaluations) == [0, 2, 3]


@pytest.mark.parametrize('whole', [False, True])
@pytest.mark.parametrize('mixed', [False, True])
def test_parts_cover_all_rows_once(whole, mixed):
    group = torch.tensor([0] * 3 + [1] * 5 + [2] * 1 + [3] * 4)
    if mixed: group = group[torch.randperm(13, generator=torch.Generator().manual_seed(0))]
    for size in (None, 1, 2, 4, 100):
        parts = row_parts(group, size, whole)
        assert sorted(torch.cat(parts).tolist()) == list(range(13))
        if not whole: assert torch.cat(parts).tolist() == list(range(13))
        if whole: assert all(set(group[a].tolist()).isdisjoint(group[b].tolist()) for i, a in enumerate(parts) for b in parts[:i])


def test_runs_are_found_again(tmp_path, tiny_folder, easy, lively):
    from rl4llm.core.policy import Policy
    for seed in (0, 1): train(Policy.load(tiny_folder), easy, lively, steps=1, seed=seed, path=tmp_path / f'{seed}')
    assert [(r.method, r.seed) for r in load_runs(tmp_path)] == [('grpo', 0), ('grpo', 1)]
    with pytest.raises(FileNotFoundError, match='no run below'): load_runs(tmp_path / 'nowhere')
