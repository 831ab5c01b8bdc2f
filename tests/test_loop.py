"""The loop: exact resume, damaged checkpoints, diverging loss, bad input."""

import dataclasses
import importlib
import inspect
import json
import os
import time
import warnings
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from conftest import noisy
from ready_process import finished, started
from rl4llm.core.registry import recipe, stage, use
from rl4llm.training.callbacks import Checkpoint, EarlyStop, Evaluate
from rl4llm.training.checkpoints import list_checkpoints
from rl4llm.core.storage import pack
from rl4llm.training.loop import TrainingDiverged, train
from rl4llm.core import ready_stages
from rl4llm.core.pipeline import build_stages, row_parts, rows_loss
from rl4llm.core.registry import load_stages
from rl4llm.core.signals import known_signals, source_of, writer_of
from rl4llm.tasks import task_of
from rl4llm.training.records import Run, load_runs, weights_hash

load_stages()  # and with them every token statistic
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


def program(path, model):
    "A run that ends in the folder."
    tests = os.path.dirname(__file__)
    return CHILD.format(tests=tests, model=str(model), steps=STEPS, path=str(path))


def timeless(run):
    return [{k: v for k, v in row.items() if not k.startswith('seconds')} for row in run.rows]


@pytest.mark.slow
def test_killed_at_any_moment_it_ends_as_if_it_never_was(tmp_path, tiny_folder):
    log = tmp_path / 'log.txt'
    finished(program(tmp_path / 'whole', tiny_folder), log)
    killed, path = 0, tmp_path / 'killed'
    code = program(path, tiny_folder)
    for lines in (1, 4, 7, 10):
        process = started(code, log)
        metrics, deadline = path / 'metrics.jsonl', time.time() + 120
        while (
            process.is_alive()
            and time.time() < deadline
            and (not metrics.exists() or metrics.read_text().count('\n') < lines)
        ):
            time.sleep(0.005)
        killed += process.is_alive()
        process.kill()
        process.join()
    finished(code, log)
    whole, resumed = Run.load(tmp_path / 'whole'), Run.load(path)
    assert killed >= 2
    assert timeless(whole) == timeless(resumed) and len(whole.rows) == STEPS
    assert {s: e.num_correct.tolist() for s, e in whole.evaluations.items()} == {
        s: e.num_correct.tolist() for s, e in resumed.evaluations.items()
    }
    assert (tmp_path / 'whole/final/model.safetensors').read_bytes() == (
        path / 'final/model.safetensors'
    ).read_bytes()


@pytest.mark.parametrize('damage', ['truncate', 'flip', 'no state', 'bad json'])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path, small_policy, easy, lively, damage
):
    start = small_policy.clone()
    train(small_policy, easy, lively, steps=6, path=tmp_path, callbacks=[Checkpoint(every=2)])
    newest = list_checkpoints(tmp_path / 'checkpoints')[-1]
    tensors, state = newest / 'tensors.safetensors', newest / 'state.json'
    if damage == 'truncate':
        os.truncate(tensors, tensors.stat().st_size // 2)
    if damage == 'flip':
        data = bytearray(tensors.read_bytes())
        data[-5] ^= 1
        tensors.write_bytes(bytes(data))
    if damage == 'no state':
        state.unlink()
    if damage == 'bad json':
        state.write_text('{"step": 6, ')
    with pytest.warns(UserWarning, match='00000006.*using the one before it'):
        run = train(start, easy, lively, steps=6, path=tmp_path, callbacks=[Checkpoint(every=2)])
    assert [r['step'] for r in run.rows] == list(range(6))
    assert all(
        torch.equal(a, b) for a, b in zip(start.model.parameters(), small_policy.model.parameters())
    )


def test_training_is_a_function_of_the_seed(tiny_folder, easy, lively):
    from rl4llm.core.policy import Policy

    runs = [train(Policy.load(tiny_folder), easy, lively, steps=3, seed=s) for s in (0, 0, 1)]
    assert timeless(runs[0]) == timeless(runs[1]) != timeless(runs[2])


def test_slices_of_memory_do_not_change_the_result(tiny_folder, easy, lively):
    from rl4llm.core.policy import Policy

    policies = [Policy.load(tiny_folder) for _ in range(2)]
    for p, micro in zip(policies, (None, 3)):
        train(p, easy, lively.but(micro=micro), steps=1)
    gap = max((a - b).abs().max().item() for a, b in zip(*(p.model.parameters() for p in policies)))
    moved = max(
        (a - b).abs().max().item()
        for a, b in zip(policies[0].model.parameters(), Policy.load(tiny_folder).model.parameters())
    )
    assert gap < 0.05 * moved


def test_the_fast_path_trains_like_the_plain_one(tiny_folder, easy, lively):
    from rl4llm.core.policy import Policy

    runs = [
        train(Policy.load(tiny_folder, fast=fast), easy, lively, steps=1) for fast in (True, False)
    ]
    a, b = (r.rows[0] for r in runs)
    assert a['tokens'] == b['tokens'] and a['reward'] == b['reward']
    assert np.isclose(a['grad_norm'], b['grad_norm'], rtol=1e-3) and np.isclose(
        a['entropy'], b['entropy'], rtol=1e-4
    )


def spoiled(logp, logp_old, adv, mask):
    return -adv * logp * mask * float('nan')


def exploding(logp, logp_old, adv, mask):
    return -adv.abs() * logp * mask * 1e9


def infinite(prompts, completions, **columns):
    return [float('inf')] * len(completions)


def too_few(prompts, completions, **columns):
    return [1.0]


def constant(prompts, completions, **columns):
    return [1.0] * len(completions)


@pytest.mark.parametrize('objective', [spoiled, exploding])
def test_a_loss_that_explodes_stops_the_run_before_the_weights_change(
    tmp_path, small_policy, easy, lively, objective
):
    train(
        small_policy, easy, lively, steps=2, path=tmp_path / 'good', callbacks=[Checkpoint(every=1)]
    )
    before = {k: v.clone() for k, v in pack(small_policy.model).items()}
    with pytest.raises(TrainingDiverged) as error:
        train(
            small_policy,
            easy,
            lively.but(objective=use(objective)),
            steps=2,
            path=tmp_path / 'bad',
            callbacks=[Checkpoint(every=1)],
        )
    assert (
        'step 0' in str(error.value)
        and 'countdown' in str(error.value)
        and 'checkpoint' in str(error.value)
    )
    assert all(torch.equal(v, before[k]) for k, v in pack(small_policy.model).items())


def beyond_the_limit(logp, logp_old, adv, mask, **more):
    return 0 * logp + 15_000


def below_the_limit(logp, logp_old, adv, mask, **more):
    return 0 * logp + 9_000


def test_a_loss_of_ten_thousand_counts_as_diverged_if_nobody_says_more(small_policy, easy, lively):
    fine = lively.but(objective=below_the_limit)
    assert train(small_policy, easy, fine, steps=1).config['status'] == 'finished'
    far = lively.but(objective=beyond_the_limit)
    with pytest.raises(TrainingDiverged, match='15000'):
        train(small_policy, easy, far, steps=1)
    assert train(small_policy, easy, far, steps=1, limit=2e4).config['status'] == 'finished'


class Poison:
    "After three steps a weight is not a number."

    def on_step(self, state, row):
        if state.step == 3:
            next(state.policy.model.parameters()).data.fill_(float('nan'))


def test_the_last_good_checkpoint_is_named(tmp_path, small_policy, easy, lively):
    with pytest.raises(TrainingDiverged, match='step 3.*00000002'):
        train(
            small_policy,
            easy,
            lively,
            steps=6,
            path=tmp_path,
            callbacks=[Checkpoint(every=1), Poison()],
        )


@pytest.mark.parametrize('kept', [False, True])
def test_what_to_do_without_a_checkpoint_depends_on_the_folder(
    tmp_path, small_policy, easy, lively, kept
):
    how = r'see Checkpoint\(every=' if kept else 'pass path='
    where = tmp_path / 'run' if kept else None
    with pytest.raises(TrainingDiverged, match=f'no checkpoint yet .{how}'):
        train(small_policy, easy, lively, steps=4, path=where, callbacks=[Poison()])


@pytest.mark.parametrize(
    'reward, words',
    [(infinite, 'infinite returned inf for row 0'), (too_few, 'returned 1 rewards for 16')],
)
def test_a_broken_reward_is_named(small_policy, easy, lively, reward, words):
    with pytest.raises(ValueError, match=words):
        train(small_policy, easy, lively.but(reward=use(reward)), steps=1)


def test_equal_rewards_everywhere_leave_the_weights_alone(small_policy, easy, lively):
    before = [p.clone() for p in small_policy.model.parameters()]
    run = train(
        small_policy, easy, lively.but(reward=use(constant), select=use('drop_zero_rows')), steps=1
    )
    assert run.rows[0]['updates'] == 0 and run.rows[0]['signal'] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, small_policy.model.parameters()))


def test_a_group_of_one(small_policy, easy, lively):
    with pytest.raises(ValueError, match='at least 2 responses'):
        train(small_policy, easy, lively.but(advantage='rloo', group=1), steps=1)
    run = train(
        small_policy, easy, lively.but(advantage='reinforce', group=1, minibatch=None), steps=1
    )
    assert np.isfinite(run.rows[0]['reward'])


def test_another_run_in_the_same_folder_is_refused(tmp_path, small_policy, easy, lively):
    start = small_policy.clone()
    train(small_policy, easy, lively, steps=1, path=tmp_path)
    with pytest.raises(ValueError, match='holds another run: its seed is 0'):
        train(start.clone(), easy, lively, steps=1, seed=1, path=tmp_path)
    with pytest.raises(ValueError, match='holds another run: its lr is 0.001, this one.s is 0.002'):
        train(start.clone(), easy, lively.but(lr=2e-3), steps=1, path=tmp_path)
    with pytest.raises(ValueError, match='holds another run: its weights'):
        train(small_policy, easy, lively, steps=1, path=tmp_path)


@pytest.mark.parametrize(
    'bad, words', [(dict(steps=0), 'steps is 0'), (dict(steps=2.5), 'steps is 2.5')]
)
def test_bad_numbers(small_policy, easy, lively, bad, words):
    with pytest.raises(ValueError, match=words):
        train(small_policy, easy, lively, **bad)


def test_unknown_things_are_answered_with_what_there_is(small_policy, easy):
    with pytest.raises(KeyError, match='did you mean grpo'):
        train(small_policy, easy, 'grop', steps=1)
    with pytest.raises(TypeError, match='did you mean epochs'):
        recipe('grpo', epoch=2)
    with pytest.raises(ValueError, match='checkpoints need a folder'):
        train(
            small_policy,
            easy,
            recipe('grpo', prompts=1, group=2),
            steps=1,
            callbacks=[Checkpoint()],
        )


def test_signals_reach_the_stages_that_ask(small_policy, easy, lively):
    asked = {}

    def curious(rewards, group, *, lengths, finished):
        asked.update(lengths=lengths, finished=finished)
        return rewards - rewards.mean()

    stage('advantage', needs=('lengths', 'finished'))(curious)
    train(small_policy, easy, lively.but(advantage=use('curious')), steps=1)
    assert asked['lengths'].shape == asked['finished'].shape == (16,)

    def greedy(rewards, group, *, moonlight):
        return rewards

    stage('advantage', needs=('moonlight',))(greedy)
    with pytest.raises(
        ValueError, match='the advantage greedy needs moonlight, which nobody computes'
    ):
        train(small_policy, easy, lively.but(advantage=use('greedy')), steps=1)


LATE = [
    (kind, name)
    for kind in ('advantage', 'select')
    for name in sorted(known_signals())
    if source_of(name) == 'live'
] + [('advantage', 'adv')]
FIRST = {'advantage': ('rewards', 'group'), 'select': ('rollouts', 'adv')}


def asking(kind, name):
    "A stage of our own that asks for one signal, and is never to be called."

    def wants_it(*given, **signals):
        raise AssertionError('it was called')

    parameter = inspect.Parameter
    wants_it.__signature__ = inspect.Signature(
        [
            *(parameter(p, parameter.POSITIONAL_ONLY) for p in FIRST[kind]),
            parameter(name, parameter.KEYWORD_ONLY),
        ]
    )
    return wants_it


@pytest.mark.parametrize('kind, name', LATE)
def test_a_signal_that_comes_too_late_is_refused_at_the_start(
    small_policy, easy, lively, tmp_path, kind, name
):
    "By the loop before anything is drawn, by a replay and by the oracle, in one sentence; what it advises is accepted."
    from rl4llm.analysis.traces import replay
    from rl4llm.oracle.estimators import estimator_of

    def never(policy, items, group, *, seed, temperature, max_new_tokens=None):
        raise AssertionError('something was drawn')

    late = lively.but(sampler=use(never), **{kind: asking(kind, name)})
    drawn = dataclasses.replace(
        small_policy.sample(easy.sample(2, seed=0), 2, seed=0, max_new_tokens=4),
        rewards=torch.tensor([1.0, 0.0, 0.0, 1.0]),
    )
    ways = dict(
        train=lambda: train(small_policy, easy, late, steps=1, path=tmp_path / 'run'),
        replay=lambda: replay(drawn, late),
        policy=lambda: replay(drawn, late, policy=small_policy),
        oracle=lambda: estimator_of(late),
    )
    for way, call in ways.items():
        with pytest.raises(ValueError) as e:
            call()
        said = str(e.value)
        assert f'the {kind} wants_it needs {name},' in said and '\n' not in said, (way, said)
        assert (f'ask for old_{name}, ' in said) == (source_of(name) == 'live'), (way, said)
    assert not (tmp_path / 'run' / 'run.json').exists()
    if source_of(name) == 'live':
        build_stages(lively.but(**{kind: asking(kind, f'old_{name}')}))


@pytest.mark.parametrize('name', sorted(n for n in known_signals() if writer_of(n)))
@pytest.mark.parametrize('kind', ['advantage', 'select'])
def test_a_signal_of_another_sampler_is_answered_by_the_name_of_that_sampler(
    small_policy, easy, lively, kind, name
):
    "By the loop before anything is trained and by a replay; with that sampler the stage gets it."
    from rl4llm.analysis.traces import replay

    asked = lively.but(**{kind: asking(kind, name)})
    wanted = f'a stage needs {name}, which the sampler {writer_of(name)} writes'
    before = [p.detach().clone() for p in small_policy.model.parameters()]
    with pytest.raises(ValueError, match=wanted):
        train(small_policy, easy, asked, steps=1)
    assert all(map(torch.equal, before, small_policy.model.parameters()))
    drawn = small_policy.sample(easy.sample(2, seed=0), 2, seed=0, max_new_tokens=4)
    for policy in (None, small_policy):
        with pytest.raises(ValueError, match=wanted):
            replay(dataclasses.replace(drawn, rewards=torch.ones(4)), asked, policy=policy)
    with pytest.raises(AssertionError, match='it was called'):
        train(
            small_policy.clone(),
            easy,
            asked.but(sampler=use(writer_of(name)), max_new_tokens=6),
            steps=1,
        )


@pytest.mark.parametrize('kind', ['sampler', 'reward', 'aggregate', 'reference'])
def test_a_stage_that_is_given_no_signals_is_told_so(lively, kind, monkeypatch):
    from rl4llm.core import registry

    monkeypatch.setattr(registry, 'STAGES', registry.STAGES | {})
    monkeypatch.setattr(ready_stages, 'STAGES', registry.STAGES)

    def wants_it(*given, **more):
        pass

    stage(kind, needs=('lengths',))(wants_it)
    with pytest.raises(
        ValueError, match=f'the {kind} wants_it needs lengths, but a {kind} is given no signals'
    ):
        build_stages(lively.but(**{kind: wants_it}))


def test_a_knob_that_is_bound_is_no_signal(small_policy, easy, lively):
    from functools import partial

    def scaled(rewards, group, *, factor, lengths):
        return (rewards - rewards.mean()) * factor / lengths

    for bound in (use(scaled, factor=2.0), partial(scaled, factor=2.0)):
        assert ready_stages.ready(bound, 'advantage').needs == ('lengths',)
    assert (
        len(train(small_policy, easy, lively.but(advantage=use(scaled, factor=2.0)), steps=1).rows)
        == 1
    )
    with pytest.raises(ValueError, match='needs factor, which nobody computes'):
        train(small_policy, easy, lively.but(advantage=scaled), steps=1)


def test_memory_of_a_stage_is_kept_in_checkpoints(tmp_path, tiny_folder, easy, lively):
    from rl4llm.core.policy import Policy

    class running_mean:
        "An exponential mean of rewards as baseline: a stage with memory."

        def __init__(self, *, rate=0.5):
            self.rate, self.mean = rate, 0.0

        def __call__(self, rewards, group):
            return rewards - self.mean

        def update(self, rollouts):
            self.mean += self.rate * (float(rollouts.rewards.mean()) - self.mean)

        def state_dict(self):
            return dict(mean=self.mean)

        def load_state_dict(self, state):
            self.mean = state['mean']

    stage('advantage')(running_mean)
    lively = lively.but(advantage=use('running_mean', rate=0.3))
    whole = train(Policy.load(tiny_folder), easy, lively, steps=6)
    train(Policy.load(tiny_folder), easy, lively, steps=3, path=tmp_path)
    resumed = train(Policy.load(tiny_folder), easy, lively, steps=6, path=tmp_path)
    assert timeless(whole) == timeless(resumed)


def test_early_stop_and_evaluations(small_policy, easy, lively):
    items = easy.sample(2, seed=0, split='valid')
    run = train(
        small_policy,
        easy,
        lively,
        steps=50,
        callbacks=[EarlyStop(at_least=0.0, window=3), Evaluate(items, samples=4, every=2)],
    )
    assert len(run.rows) == 3 and sorted(run.evaluations) == [0, 2, 3]


def test_a_row_of_metrics_and_the_evaluation_of_its_step_are_of_one_policy(
    small_policy, easy, lively
):
    "Row s is drawn by the policy after s updates, which is the one that is evaluated at step s: what is read at equal reward rests on it."
    from rl4llm.training.step_metrics import metrics_of_rows

    seen, drawn = {}, {}

    class watch:
        def on_start(self, state):
            seen[state.step] = state.policy.clone()

        def on_step(self, state, row):
            seen[state.step] = state.policy.clone()
            drawn[row['step']] = state.rollouts

    run = train(
        small_policy,
        easy,
        lively.but(lr=1e-2, reward=use(noisy)),
        steps=3,
        callbacks=[watch(), Evaluate(easy.sample(2, seed=0, split='test'), samples=4, every=1)],
    )
    assert sorted(run.evaluations) == sorted(seen) == [0, 1, 2, 3] and run.metrics[
        'step'
    ].tolist() == sorted(drawn) == [0, 1, 2]
    for step, r in drawn.items():
        logp = {at: policy.statistics(r, ("logp",))["logp"] for at, policy in seen.items()}
        same = [
            at
            for at, found in logp.items()
            if torch.allclose(found[r.mask], r.logp_behave[r.mask], atol=1e-4)
        ]
        assert same == [step]
        assert run.metrics['entropy'][step] == pytest.approx(metrics_of_rows(r)['entropy'])


@pytest.mark.parametrize('whole', [False, True])
@pytest.mark.parametrize('mixed', [False, True])
def test_parts_cover_all_rows_once(whole, mixed):
    group = torch.tensor([0] * 3 + [1] * 5 + [2] * 1 + [3] * 4)
    if mixed:
        group = group[torch.randperm(13, generator=torch.Generator().manual_seed(0))]
    for size in (None, 1, 2, 4, 100):
        parts = row_parts(group, size, whole)
        assert sorted(torch.cat(parts).tolist()) == list(range(13))
        if not whole:
            assert torch.cat(parts).tolist() == list(range(13))
        if whole:
            assert all(
                set(group[a].tolist()).isdisjoint(group[b].tolist())
                for i, a in enumerate(parts)
                for b in parts[:i]
            )


def test_runs_are_found_again(tmp_path, tiny_folder, easy, lively):
    from rl4llm.core.policy import Policy

    for seed in (0, 1):
        train(Policy.load(tiny_folder), easy, lively, steps=1, seed=seed, path=tmp_path / f'{seed}')
    assert [(r.method, r.seed) for r in load_runs(tmp_path)] == [('grpo', 0), ('grpo', 1)]
    with pytest.raises(FileNotFoundError, match='no run below'):
        load_runs(tmp_path / 'nowhere')


# -- metrics and counters


def test_divergence_and_moved_tokens_by_hand():
    "k3 of each token, finite also where the new policy has all but given a token up; 0.2 is the limit of the ratio's move."
    from rl4llm.core.pipeline import Batch
    from rl4llm.core.rollouts import make_rollouts
    from rl4llm.training.step_metrics import sums_of

    log_ratio = torch.tensor([[0.5, -0.5, -20.0, 0.15, -0.15, 0.0]])
    zero, seen = torch.zeros(1, 6), torch.ones(1, 6).bool()
    rows = make_rollouts(
        prompt_ids=torch.zeros(1, 1).long(),
        prompt_mask=seen[:, :1],
        tokens=torch.zeros(1, 6).long(),
        mask=seen,
        prompt=torch.zeros(1).long(),
        rewards=torch.ones(1),
        finished=torch.ones(1).bool(),
        logp_behave=zero,
        logp_old=zero,
        loss_weight=torch.ones(1, 6),
    )
    found = sums_of(Batch(rows, torch.ones(1, 6), torch.ones(1, 6)), seen, log_ratio, zero, None)
    by_hand = sum(np.exp(x) - 1 - x for x in log_ratio[0].double().tolist())
    assert (
        found['kl'] == pytest.approx(by_hand, rel=1e-9)
        and found['moved'] == 3
        and found['tokens'] == 6
    )


def half_constant(prompts, completions, **columns):
    "Every second problem pays the same for all answers: its rows have no advantage."
    order = list(dict.fromkeys(prompts))
    return [
        float(zlib.crc32(c.encode()) % 2) if order.index(p) % 2 else 1.0
        for p, c in zip(prompts, completions)
    ]


@pytest.mark.parametrize('name', ['grpo', 'grpo_kl'])
def test_metrics_do_not_depend_on_the_path(tiny_folder, easy, lively, name):
    from rl4llm.core.policy import Policy

    made = recipe(name).but(
        reward=use(half_constant),
        sampler=lively.sampler,
        prompts=4,
        group=4,
        epochs=2,
        minibatch=8,
        lr=0.01,
    )
    rows = [
        train(Policy.load(tiny_folder, fast=fast), easy, made.but(micro=micro), steps=1).rows[0]
        for fast in (True, False)
        for micro in (None, 3)
    ]
    assert rows[0]['kl'] > 0 and rows[0]['moved'] > 0 and rows[0]['signal'] < 1
    for row in rows[1:]:
        for key in row:
            if key.startswith('seconds'):
                continue
            first = rows[0][key]
            wanted = first if first is None else pytest.approx(first, rel=1e-3, abs=1e-4)
            assert row[key] == wanted, key


def test_every_metric_is_explained(small_policy, easy, lively):
    from rl4llm.training.step_metrics import METRICS

    run = train(small_policy, easy, lively, steps=1)
    assert set(run.rows[0]) == set(METRICS)


def text_rewards():
    """Every registered reward of single texts, and some of one's own: by length, above 1, with
    rows that are not scored, and one that only bears the verifier's name.

    Not those that want answers or tests of their own, which these problems have not."""
    from rl4llm.core.registry import load_stages, stages

    load_stages()

    def length(completions, **columns):
        return [float(len(text)) for text in completions]

    def every_other(completions, **columns):
        return [None if row % 2 else float(row) for row in range(len(completions))]

    def correct(completions, **columns):
        return [7.0 + len(text) for text in completions]

    ours = [
        use(name)
        for name, info in stages('reward').items()
        if info.module.startswith('rl4llm')
        and {'prompts', 'completions'} <= set(inspect.signature(info.fn).parameters)
        and not {'answer', 'tests'} & set(inspect.signature(info.fn).parameters)
    ]
    return [*ours, *map(use, (noisy, length, every_other, correct))]


class Seen:
    def __init__(self):
        self.right = []

    def on_step(self, state, row):
        own = state.rollouts
        self.right.append(
            np.mean(
                [
                    task_of(own.items[p]).verify(own.items[p], text).correct
                    for p, text in zip(own.prompt.tolist(), own.texts)
                ]
            )
        )


@pytest.mark.parametrize('reward', text_rewards(), ids=str)
def test_accuracy_is_the_verifier_s_whatever_the_reward(easy, reward, monkeypatch):
    "And the verdicts change nothing in training."
    from rl4llm.training import loop

    made, seen = (
        recipe(
            'grpo',
            reward=reward,
            sampler=use('sample', max_new_tokens=24),
            prompts=4,
            group=4,
            lr=1e-3,
        ),
        Seen(),
    )
    run = train('tiny', easy, made, steps=2, seed=1, callbacks=[seen])
    assert (
        np.allclose([row['accuracy'] for row in run.rows], seen.right, atol=1e-6)
        and seen.right[0] > 0
    )
    monkeypatch.setattr(loop, 'add_verdicts', lambda rollouts, reward: rollouts)
    unjudged = train('tiny', easy, made, steps=2, seed=1)
    of_verdicts = ('accuracy', 'length_right', 'length_wrong')
    drop = lambda rows: [{k: v for k, v in row.items() if k not in of_verdicts} for row in rows]
    assert drop(timeless(run)) == drop(timeless(unjudged)) and weights_hash(
        run.policy.model
    ) == weights_hash(unjudged.policy.model)


def test_without_a_verifier_there_is_no_accuracy(small_policy, lively):
    "Problems that are plain texts belong to no task: nobody says what is right."

    class Questions:
        def __init__(self, task):
            pass

        def sample(self, n, *, seed):
            return [f'{i} + 1 =' for i in range(n)]

    run = train(small_policy, 'countdown/easy', lively.but(curriculum=Questions), steps=1)
    assert run.rows[0]['accuracy'] is None and run.rows[0]['reward'] is not None


def test_the_policy_s_own_entropy_does_not_depend_on_the_sampler(tiny_folder, easy, lively):
    from rl4llm.core.policy import Policy

    found = {}
    for temperature, top_p in ((1.0, 1.0), (1.6, 1.0), (1.0, 0.5)):
        made = lively.but(
            temperature=temperature,
            sampler=use('sample', max_new_tokens=8, top_p=top_p),
            prompts=16,
        )
        found[temperature, top_p] = train(Policy.load(tiny_folder), easy, made, steps=1).rows[0]
    own = [row['policy_entropy'] for row in found.values()]
    drawn = [row['entropy'] for row in found.values()]
    assert max(own) - min(own) < 0.05 < max(drawn) - min(drawn)


def test_the_policy_s_own_entropy_is_at_temperature_one():
    "Row by row without padding, from the logits of the model: at the tokens that a warm sampler drew, the entropy of the policy as it is and not as it was warmed."
    from rl4llm.core.policy import Policy
    from rl4llm.tasks import task
    from rl4llm.training.step_metrics import policy_entropy

    policy = Policy.load('tiny', bf16=False)
    r = policy.sample(task('countdown', level='easy').sample(4, seed=0), 4, seed=0, temperature=1.6)

    def entropy(temperature):
        found = []
        for row in range(len(r)):
            prompt = r.prompt_ids[r.prompt[row]][r.prompt_mask[r.prompt[row]]]
            said = r.tokens[row][r.mask[row]]
            with torch.no_grad():
                logits = (
                    policy.model(torch.cat([prompt, said])[None])
                    .logits[0, len(prompt) - 1 : -1]
                    .double()
                    / temperature
                )
            found.append(torch.distributions.Categorical(logits=logits).entropy())
        return float(torch.cat(found).mean())

    assert r.temperature == 1.6 and entropy(1.6) > entropy(1.0) + 0.1
    for micro in (None, 3):
        assert policy_entropy(policy, r, micro) == pytest.approx(entropy(1.0), abs=1e-4)


def test_what_is_cut_off_is_what_ppo_clips():
    from rl4llm.core.pipeline import Batch, cut_tokens
    from rl4llm.core.rollouts import make_rollouts

    noise = torch.Generator().manual_seed(0)
    mask = torch.rand(6, 5, generator=noise) < 0.8
    old, adv = (torch.randn(6, 5, generator=noise) for _ in range(2))
    adv[0] = 0
    logp = (old + 0.5 * torch.randn(6, 5, generator=noise)).requires_grad_()
    blank = torch.zeros(6, 1).long()
    rows = make_rollouts(
        prompt_ids=blank,
        prompt_mask=blank == 0,
        tokens=mask.long(),
        mask=mask,
        prompt=torch.arange(6),
        logp_behave=old,
        logp_old=old,
    )
    weight = torch.ones(6, 5)
    weight[1] = 0
    batch = Batch(rows, adv, weight)
    loss = use('ppo_clip')(logp, old, adv, mask)
    above, below = cut_tokens(loss, logp, batch)
    ratio, live = (logp - old).exp(), mask & (weight > 0)
    assert torch.equal(above, live & (adv > 0) & (ratio > 1.2)) and torch.equal(
        below, live & (adv < 0) & (ratio < 0.8)
    )
    assert above.any() and below.any()
    assert not any(
        x.any() for x in cut_tokens(use('policy_gradient')(logp, old, adv, mask), logp, batch)
    )


def test_each_run_counts_how_often_its_mechanism_acted(tiny_folder, easy, lively):
    from rl4llm.core.policy import Policy

    def half(rollouts, adv):
        weight = torch.ones_like(adv)
        weight[:, ::2] = 0
        keep = torch.ones(len(adv), dtype=torch.bool)
        keep[:4] = False
        return weight, keep

    def row(made):
        return train(Policy.load(tiny_folder), easy, made.but(lr=0.02), steps=1).rows[0]

    several, one = row(lively), row(lively.but(epochs=1, minibatch=None))
    assert several['cut_above'] + several['cut_below'] > 0 == one['cut_above'] == one['cut_below']
    assert several['cut_against'] == 0  # a plain clip holds on to what went the wrong way
    dual = row(lively.but(objective=use('dual_clip', c=1.0001)))
    assert 0 < dual['cut_against'] <= dual['cut_above']
    assert row(lively.but(objective='policy_gradient'))['cut_above'] == 0
    chosen = row(lively.but(select=half))
    assert (
        chosen['rows_dropped'] == 4
        and chosen['weight_zero'] == chosen['weight_changed']
        and 0.4 < chosen['weight_zero'] < 0.7
    )
    assert one['rows_dropped'] == one['weight_zero'] == one['rows_other'] == 0


def test_a_selection_that_keeps_nothing_is_told_once_a_run(tiny_folder, easy, lively):
    from rl4llm.core.policy import Policy

    class rarely:
        "Keeps all rows of the third step, and none of the others."

        def __init__(self):
            self.steps = 0

        def __call__(self, rollouts, adv):
            self.steps += 1
            kept = torch.full((len(adv),), self.steps == 3)
            return torch.ones_like(adv), kept

        def state_dict(self):
            return dict(steps=self.steps)

        def load_state_dict(self, state):
            self.steps = state['steps']

    for _ in range(2):  # of a second run it is told again
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            run = train(Policy.load(tiny_folder), easy, lively.but(select=rarely), steps=4)
        (told,) = [str(w.message) for w in caught if 'none of' in str(w.message)]
        assert told.startswith(f'step 0: rarely kept none of {run.rows[0]["rows"]} rows')
        assert [row['updates'] > 0 for row in run.rows] == [False, False, True, False]


# -- mini-batches


def test_a_mini_batch_above_the_batch_is_the_batch(tiny_folder, easy, lively):
    from rl4llm.core.policy import Policy

    rows = [
        train(Policy.load(tiny_folder), easy, lively.but(epochs=1, minibatch=size), steps=2).rows
        for size in (None, 16, 64)
    ]
    assert all(
        a['grad_norm'] == b['grad_norm'] for other in rows[1:] for a, b in zip(rows[0], other)
    )


def test_whole_groups_are_shuffled_over_mini_batches():
    from rl4llm.core.pipeline import mini_batches

    group = torch.arange(8).repeat_interleave(4)
    orders = [torch.cat(mini_batches(group, 8, seed=seed)).tolist() for seed in range(5)]
    assert len(set(map(tuple, orders))) == 5 and all(sorted(o) == list(range(32)) for o in orders)
    for part in mini_batches(group, 8, seed=3):
        assert len(group[part].unique()) == 2
    last = [int(group[mini_batches(group, 8, seed=seed)[-1]].max()) == 7 for seed in range(20)]
    assert not all(last), "the last rows always stand in the last mini-batch"
    assert mini_batches(group, 40, seed=3)[0].tolist() == list(range(32))


# -- weights that are no longer numbers


def test_weights_that_overflow_in_the_step_are_found_at_once(tmp_path, small_policy, easy, lively):
    from torch.optim.optimizer import register_optimizer_step_post_hook

    before = {k: v.clone() for k, v in pack(small_policy.model).items()}
    overflowing = list(small_policy.model.parameters())[3]
    hook = register_optimizer_step_post_hook(
        lambda *_: overflowing.data.view(-1)[5:6].fill_(float('inf'))
    )
    try:
        with pytest.raises(
            TrainingDiverged, match=r'step 0: the weights model\.\S+ are not finite.*before step 0'
        ):
            train(small_policy, easy, lively, steps=2, path=tmp_path)
    finally:
        hook.remove()
    assert all(torch.equal(v, before[k]) for k, v in pack(small_policy.model).items())
    assert Run.load(tmp_path).config['status'] == 'diverged'


def test_without_a_copy_the_newest_checkpoint_is_restored(
    tmp_path, small_policy, easy, lively, monkeypatch
):
    monkeypatch.setattr('rl4llm.training.loop.LARGEST_COPIED', 0)

    with pytest.raises(TrainingDiverged, match='step 3.*weights of checkpoint 00000002'):
        train(
            small_policy,
            easy,
            lively,
            steps=6,
            path=tmp_path,
            callbacks=[Checkpoint(every=2), Poison()],
        )
    assert all(p.isfinite().all() for p in small_policy.model.parameters())


def test_an_evaluation_names_all_its_tasks(easy):
    "And each problem is judged by its own."
    from rl4llm.core.policy import Policy
    from rl4llm.tasks import task
    from rl4llm.training.evaluation import evaluate

    sums, mixed = task('modular').sample(3, seed=0), easy.sample(3, seed=0)
    mixed[1:1] = sums
    tiny = Policy.load('tiny')
    found = evaluate(tiny, mixed, samples=8)
    assert (
        found.task == 'countdown + modular'
        and 'countdown + modular' in repr(found)
        and found.keys == tuple(item.key for item in mixed)
    )
    apart = [evaluate(tiny, [item], samples=8) for item in mixed]
    assert found.num_correct.tolist() == [int(one.num_correct[0]) for one in apart] and {
        one.task for one in apart
    } == {'countdown', 'modular'}
    assert evaluate(tiny, sums, samples=2).task == 'modular'


def test_examinations_on_other_tasks_are_not_the_same(small_policy, easy, lively):
    "Neither as the evaluation of the base, nor beside each other at one step; though the questions are the same."
    from rl4llm.tasks import task_from
    from rl4llm.training.evaluation import evaluate

    rows = [{'question': f'{a} + {b} ?', 'answer': a + b} for a in range(9) for b in range(9)]
    one, other = (
        task_from({'test': rows}),
        task_from({'test': [{**row, 'answer': 0} for row in rows]}),
    )
    items, others = one.parts['test'][:3], other.parts['test'][:3]
    assert [i.key for i in items] == [i.key for i in others]
    base = evaluate(small_policy, items, samples=2)
    exam = Evaluate(items, samples=2, base=base)
    run = train(small_policy.clone(), easy, lively, steps=1, callbacks=[exam])
    assert run.evaluations[0] is base and sorted(run.evaluations) == [0, 1]
    for wrong in (others, items[:2], items[::-1], easy.sample(3, seed=0)):
        with pytest.raises(ValueError, match='base is an evaluation on other problems'):
            Evaluate(wrong, samples=2, base=base)
        with pytest.raises(ValueError, match='two callbacks evaluate different problems'):
            train(
                small_policy,
                easy,
                lively,
                steps=1,
                callbacks=[Evaluate(items, samples=2), Evaluate(wrong, samples=2)],
            )


@pytest.mark.parametrize(
    'items, how, words',
    [
        ([], {}, 'nothing to evaluate'),
        (['3 + 4 ='], {}, "items hold '3 . 4 =', wanted problems of a task"),
        (None, dict(samples=0), 'samples is 0'),
        (None, dict(samples=-1), 'samples is -1'),
        (None, dict(samples=2.5), 'samples is 2.5'),
        (None, dict(samples=True), 'samples is True'),
        (None, dict(samples='8'), "samples is '8'"),
        (None, dict(rows=0), 'rows is 0'),
        (None, dict(rows='9'), 'rows is'),
        (None, dict(seed=-1), 'seed is -1'),
        (None, dict(temperature=float('nan')), 'temperature is nan'),
        (None, dict(top_p=0), 'top_p is 0'),
        (None, dict(top_k=-1), 'top_k is -1'),
    ],
)
def test_an_evaluation_that_could_say_nothing_is_refused(small_policy, easy, items, how, words):
    from rl4llm.training.evaluation import evaluate

    items = easy.sample(2, seed=0) if items is None else items
    for call in (lambda: evaluate(small_policy, items, **how), lambda: Evaluate(items, **how)):
        with pytest.raises(ValueError, match=words) as e:
            call()
        assert '\n' not in str(e.value)


def test_a_broken_model_is_not_evaluated(small_policy, easy):
    from rl4llm.training.evaluation import evaluate

    list(small_policy.model.parameters())[-1].data.fill_(float('nan'))
    with pytest.raises(ValueError, match='small is broken.*weights model.norm'):
        evaluate(small_policy, easy.sample(2, seed=0, split='test'), samples=2)


# -- run folders


def test_a_checkpoint_of_another_run_is_not_adopted(tmp_path, tiny_folder, easy, lively):
    from rl4llm.core.policy import Policy

    train(Policy.load(tiny_folder), easy, lively, steps=2, path=tmp_path)
    (tmp_path / 'run.json').unlink()
    with pytest.raises(ValueError, match='00000002 holds another run: its seed is 0'):
        train(Policy.load(tiny_folder), easy, lively, steps=3, seed=1, path=tmp_path)
    assert not (tmp_path / 'run.json').exists()  # a run that was refused leaves nothing behind
    whole = train(Policy.load(tiny_folder), easy, lively, steps=3)
    again = train(Policy.load(tiny_folder), easy, lively, steps=3, path=tmp_path)
    assert timeless(again) == timeless(whole)


def test_two_processes_do_not_share_a_folder(tmp_path, small_policy, easy, lively):
    from rl4llm.training.records import locked

    with locked(tmp_path):
        with pytest.raises(ValueError, match='another process is training into'):
            train(small_policy, easy, lively, steps=1, path=tmp_path)
    assert len(train(small_policy, easy, lively, steps=1, path=tmp_path).rows) == 1


@pytest.mark.parametrize('damage', ['a line', 'the file', 'a line twice'])
def test_damaged_metrics_are_mended_from_checkpoints(tmp_path, tiny_folder, easy, lively, damage):
    from rl4llm.core.policy import Policy

    run = train(
        Policy.load(tiny_folder),
        easy,
        lively,
        steps=4,
        path=tmp_path,
        callbacks=[Checkpoint(every=2)],
    )
    file = tmp_path / 'metrics.jsonl'
    lines = file.read_text().splitlines(keepends=True)
    if damage == 'the file':
        file.unlink()
    elif damage == 'a line':
        file.write_text(lines[0] + lines[1][:20] + '\n' + ''.join(lines[2:]))
    else:
        file.write_text(''.join(lines + lines[1:3]))
    if damage == 'a line twice':
        assert timeless(Run.load(tmp_path)) == timeless(run)
    else:
        with pytest.warns(UserWarning, match='steps missing.*nothing is lost'):
            assert timeless(Run.load(tmp_path)) == timeless(run)
    whole = train(Policy.load(tiny_folder), easy, lively, steps=5)
    assert (
        timeless(train(Policy.load(tiny_folder), easy, lively, steps=5, path=tmp_path))
        == timeless(whole)
        == timeless(Run.load(tmp_path))
    )


def test_a_run_that_was_stopped_stays_stopped(tmp_path, tiny_folder, easy, lively):
    from rl4llm.core.policy import Policy

    how = dict(steps=9, path=tmp_path)
    first = train(
        Policy.load(tiny_folder), easy, lively, **how, callbacks=[EarlyStop(at_least=0.0, window=2)]
    )
    with pytest.warns(UserWarning, match='stopped early after 2 steps, and stays so') as told:
        second = train(Policy.load(tiny_folder), easy, lively, **how)
    assert not any('more steps' in str(w.message) for w in told), "more steps change nothing"
    assert (
        timeless(first) == timeless(second)
        and len(second.rows) == 2
        and second.config['status'] == 'stopped early'
    )
    config = {k: v for k, v in second.config.items() if k != 'stopped'}
    (tmp_path / 'run.json').write_text(json.dumps(config))  # as the warning says
    assert len(train(Policy.load(tiny_folder), easy, lively, **how).rows) == 9
    with pytest.warns(UserWarning, match='2 were asked for. Ask for more steps'):
        train(Policy.load(tiny_folder), easy, lively, steps=2, path=tmp_path)


class Raise:
    "Ends the run with an error after two steps."

    def __init__(self, error):
        self.error = error

    def on_step(self, state, row):
        if state.step == 2:
            raise self.error


@pytest.mark.parametrize(
    'error, status',
    [(KeyboardInterrupt(), 'interrupted'), (OSError('disk full'), 'failed (OSError)')],
)
def test_how_a_run_ended_is_written_down(
    tmp_path, tiny_folder, easy, lively, error, status, capsys
):
    from rl4llm.core.policy import Policy

    with pytest.raises(type(error)):
        train(
            Policy.load(tiny_folder),
            easy,
            lively,
            steps=4,
            path=tmp_path,
            callbacks=[Raise(error), Checkpoint(every=1)],
        )
    assert Run.load(tmp_path).config['status'] == status
    if status == 'interrupted':
        assert (
            'after 2 of 4 steps' in (said := capsys.readouterr().err)
            and '00000001 is saved' in said
            and 'goes on from there' in said
        )
    train(Policy.load(tiny_folder), easy, lively, steps=4, path=tmp_path)
    assert (
        Run.load(tmp_path).config['status'] == 'finished'
        and 'error' not in Run.load(tmp_path).config
    )


def test_what_killed_processes_left_is_taken_away(tmp_path, small_policy, easy, lively):
    (tmp_path / 'checkpoints/.00000004.77').mkdir(parents=True)
    (tmp_path / '.run.json.77').touch()
    train(small_policy, easy, lively, steps=1, path=tmp_path)
    assert not [p for p in tmp_path.rglob('.*') if p.name != '.lock']


# -- going on, and things that would do nothing


def test_a_refusal_names_the_field(tmp_path, tiny_folder, easy, lively):
    from rl4llm.core.policy import Policy

    train(Policy.load(tiny_folder), easy, lively, steps=1, path=tmp_path)
    for other, words in (
        (
            lively.but(advantage=use('grpo', scale='none')),
            "advantage: knobs: scale is None, this one.s is 'none'",
        ),
        (lively.but(minibatch=4), 'minibatch is 8, this one.s is 4'),
    ):
        with pytest.raises(ValueError, match=words):
            train(Policy.load(tiny_folder), easy, other, steps=2, path=tmp_path)
    config = json.loads((tmp_path / 'run.json').read_text())
    place = next(name for name in config['code'] if name.endswith('.ppo_clip'))
    config['code'][place] = 'old'
    (tmp_path / 'run.json').write_text(json.dumps({**config, 'fingerprint': 'old'}))
    with pytest.raises(ValueError, match='its code of .*ppo_clip is .old'):
        train(Policy.load(tiny_folder), easy, lively, steps=2, path=tmp_path)


def test_another_machine_is_told(tmp_path, tiny_folder, easy, lively):
    from rl4llm.core.policy import Policy

    train(Policy.load(tiny_folder, fast=True), easy, lively, steps=1, path=tmp_path)
    config = json.loads((tmp_path / 'run.json').read_text())
    (tmp_path / 'run.json').write_text(
        json.dumps({**config, 'threads': 77, 'versions': {**config['versions'], 'torch': '0.1'}})
    )
    with pytest.warns(UserWarning, match='torch was 0.1.*threads was 77.*fast was True, is False'):
        train(Policy.load(tiny_folder, fast=False), easy, lively, steps=2, path=tmp_path)


def nothing(prompts, completions, **columns):
    return [None] * len(completions)


class Misspelt:
    def on_steps(self, state, row):
        pass


@pytest.mark.parametrize(
    'change, how, words',
    [
        (dict(group=1, minibatch=None), {}, 'has group=1. The advantage grpo compares'),
        (dict(reward=nothing), {}, 'gave None for all 16 responses'),
        (
            dict(sampler=use('sample', temperature=0.5)),
            {},
            r'sampler has temperature=0.5.*recipe.but\(temperature=',
        ),
        (dict(sampler=use('sample', seed=3)), {}, r'sampler has seed=3.*train\(..., seed='),
        (dict(sampler=use('sample', max_new_tokens=0)), {}, 'max_new_tokens is 0'),
        ({}, dict(callbacks=[Misspelt()]), 'on_steps, which is never called; did you mean on_step'),
        ({}, dict(callbacks=[Misspelt]), 'holds the class Misspelt'),
        ({}, dict(callbacks=['progress']), 'none of the methods on_start'),
        (
            {},
            dict(callbacks=[EarlyStop('rewrad', at_least=1)]),
            "no metric is called 'rewrad'; did you mean reward",
        ),
    ],
)
def test_what_would_do_nothing_is_said(small_policy, easy, lively, change, how, words):
    with pytest.raises(ValueError, match=words):
        train(small_policy, easy, lively.but(**change), steps=1, **how)


def callbacks():
    "Every callback of the package that is written down as a class."
    from rl4llm.core.lazy import names_by_module

    found = {}
    for module, names in names_by_module().items():
        for name in names:
            made = getattr(importlib.import_module(module), name)
            if (
                inspect.isclass(made)
                and made.__module__ == module
                and any(hasattr(made, event) for event in ('on_start', 'on_step', 'on_end'))
            ):
                found[name] = made
    return found


CALLBACKS = callbacks()
FINE = {
    ('Checkpoint', 'keep'): (0,),
    ('EarlyStop', 'at_least'): (0, -1, 2.5),
    ('Evaluate', 'seed'): (0,),
    ('Evaluate', 'temperature'): (0, 2.5),
    ('Evaluate', 'top_k'): (0,),
    ('Dashboard', 'seconds'): (0, 2.5),
    ('EvaluateApart', 'seed'): (0,),
    ('EvaluateApart', 'temperature'): (0, 2.5),
    ('EvaluateApart', 'top_k'): (0,),
}


def numbers_of(made):
    "The numeric knobs of a callback, those that it passes on to `evaluate` too, and what must be given beside them."
    from rl4llm.training.evaluation import evaluate

    own = [
        p
        for kind in made.__mro__
        if '__init__' in vars(kind)
        for p in inspect.signature(kind.__init__).parameters.values()
    ]
    examined = (
        [
            p
            for p in inspect.signature(evaluate).parameters.values()
            if p.name in ('samples', 'seed', 'temperature', 'top_p', 'top_k', 'rows')
        ]
        if issubclass(made, Evaluate)
        else []
    )
    knobs = {
        p.name
        for p in (*own, *examined)
        if any(kind in str(p.annotation) for kind in ('int', 'float')) and 'label' not in p.name
    }
    return sorted(knobs)


def test_all_callbacks_are_found():
    assert {
        'Progress',
        'Evaluate',
        'EvaluateApart',
        'Checkpoint',
        'EarlyStop',
        'LivePlot',
        'Dashboard',
    } <= set(CALLBACKS)
    assert (
        numbers_of(CALLBACKS['Evaluate'])
        == ['every', 'rows', 'samples', 'seed', 'temperature', 'top_k', 'top_p']
        and numbers_of(CALLBACKS['EarlyStop']) == ['at_least', 'window']
        and 'samples' in numbers_of(CALLBACKS['EvaluateApart'])
    )


@pytest.mark.parametrize(
    'name, knob', [(name, knob) for name, made in CALLBACKS.items() for knob in numbers_of(made)]
)
def test_a_number_out_of_range_is_refused_before_the_run(name, knob, easy):
    "By the callback itself, in one sentence that names the knob and shows what it was."
    made, needed = (
        CALLBACKS[name],
        {
            'Evaluate': (easy.sample(1, seed=0),),
            'EvaluateApart': (easy.sample(1, seed=0),),
            'Track': (SimpleNamespace(open=print, numbers=print, texts=print, close=print),),
        }.get(name, ()),
    )
    others = dict(at_least=1) if name == 'EarlyStop' else {}
    for value in (
        0,
        -1,
        2.5,
        float('nan'),
        float('inf'),
        -float('inf'),
        '3',
        True,
        1j,
        [3],
        10**400 if knob != 'window' else 'x',
    ):
        if knob == 'texts' and value == 0:  # no texts at all
            continue
        call = lambda: made(*needed, **{**others, knob: value})
        if value in FINE.get((name, knob), ()) and not isinstance(value, bool):
            call()
            continue
        if (
            isinstance(value, int)
            and value > 0
            and not isinstance(value, bool)
            and knob not in ('at_least', 'seconds', 'temperature', 'top_p')
        ):
            continue
        with pytest.raises(ValueError, match=f': {knob} is ') as e:
            call()
        assert '\n' not in str(e.value) and len(str(e.value)) < 200, value
    made(*needed, **{**others, knob: 1})
    made(*needed, **{**others, knob: np.int64(1)})


@pytest.mark.parametrize('wrong', [0, -1, float('nan'), -float('inf'), '3', None, True])
def test_a_limit_that_stops_every_run_is_refused(small_policy, easy, lively, wrong):
    with pytest.raises(ValueError, match='limit is'):
        train(small_policy, easy, lively, steps=1, limit=wrong)


def test_steps_that_are_done_already(tmp_path, tiny_folder, easy, lively):
    from rl4llm.core.policy import Policy

    train(Policy.load(tiny_folder), easy, lively, steps=3, path=tmp_path)
    for steps in (3, 2):
        with pytest.warns(
            UserWarning, match=f'has done 3 steps already, and {steps} were asked for'
        ):
            run = train(Policy.load(tiny_folder), easy, lively, steps=steps, path=tmp_path)
        assert len(run.rows) == run.config['steps'] == 3


def test_names_are_accepted(tiny_folder, lively):
    run = train(str(tiny_folder), 'countdown/easy', lively, steps=1)
    assert (
        run.task == 'countdown'
        and run.model == 'small'
        and 'high=13' in run.config['task_settings']
    )


def test_plots_of_unknown_metrics(small_policy, easy, lively):
    from rl4llm.training.callbacks import plot_metrics

    run = train(small_policy, easy, lively, steps=1)
    with pytest.raises(ValueError, match="no metric is called 'entrpy'; did you mean entropy"):
        plot_metrics(run, ['entrpy'])


@pytest.mark.parametrize(
    'change', [dict(temperature=0.8), dict(sampler=use('sample', max_new_tokens=8, top_p=0.9))]
)
def test_equal_rewards_of_different_samplers_are_not_compared(tiny_folder, easy, lively, change):
    from rl4llm.core.policy import Policy
    from rl4llm.studies.comparison import compare

    items = easy.sample(2, seed=0, split='test')
    other = dataclasses.replace(lively.but(**change), name='other')
    runs = [
        train(Policy.load(tiny_folder), easy, made, steps=2, callbacks=[Evaluate(items, samples=4)])
        for made in (lively, other)
    ]
    assert compare(runs).at_reward is None
    with pytest.raises(ValueError, match=f'at_reward needs runs of one {next(iter(change))}'):
        compare(runs, at_reward=0.0)


def test_functions_without_source_are_told_apart(tiny_folder, lively):
    "Lambdas at the end of a call, and functions typed into a console, which have no source."

    def twice(factor):
        return lively.but(
            advantage=lambda rewards, group: (
                torch.tensor([x * 2 for x in rewards])
                if factor == 2
                else torch.tensor([x * 3 for x in rewards])
            )
        )

    code = 'def typed(rewards, group):\n    return torch.stack([{} * x for x in rewards])'
    found = []
    for number in (2, 3):
        names = dict(torch=torch, __name__='__main__')
        exec(code.format(number), names)
        found.append(lively.but(advantage=names['typed']))
    pairs = [
        tuple(found),
        tuple(
            lively.but(advantage=f)
            for f in (
                lambda r, g: torch.stack([2 * x for x in r]),
                lambda r, g: torch.stack([3 * x for x in r]),
            )
        ),
        (twice(2), twice(3)),
    ]
    for one, other in pairs:
        assert one.fingerprint() != other.fingerprint() == other.fingerprint()
    run = train(str(tiny_folder), 'countdown/easy', found[0], steps=1)
    assert run.config['status'] == 'finished'


def test_a_sampler_that_replays_brings_its_own_problems(small_policy, easy):
    "Both from the log and, on a later step, with other problems than were asked."
    from rl4llm.core.rollouts import check_drawn
    from rl4llm.objectives.offline import as_logged

    problems = easy.sample(4, seed=0)
    drawn = small_policy.sample(problems[:2], 2, seed=0)
    with pytest.raises(ValueError, match='whose problem 0'):
        check_drawn(drawn, problems[2:], 'sample')
    assert check_drawn(as_logged(drawn), problems[2:], 'logged_sample').items == drawn.items
    log = use('logged_sample', batches=1)
    made = recipe('a_lol', prompts=2, group=4, sampler=log)
    run = train(small_policy.clone(), easy, made, steps=3, seed=0)
    assert len(run.rows) == 3


def test_nobody_is_taken_for_a_checkpoint_by_accident(tmp_path, tiny_folder, easy, lively):
    "Whatever attributes a callback has, a run with a folder saves, and names what it has saved."
    from rl4llm.core.policy import Policy

    accidents = {name for name in vars(Checkpoint()) | vars(Checkpoint) if name[0] != '_'}
    for number, name in enumerate(sorted(accidents - {'on_start', 'on_step', 'on_end'})):
        looks_alike = type('LooksAlike', (), {name: 'mine', 'on_step': lambda *given: None})()
        folder = tmp_path / str(number)
        train(Policy.load(tiny_folder), easy, lively, steps=1, path=folder, callbacks=[looks_alike])
        assert [path.name for path in list_checkpoints(folder / 'checkpoints')] == ['00000001']
    twice = Checkpoint(every=1)
    train(Policy.load(tiny_folder), easy, lively, steps=2, path=tmp_path / 'a', callbacks=[twice])
    with pytest.raises(TrainingDiverged, match='there is no checkpoint yet'):
        train(
            Policy.load(tiny_folder),
            easy,
            lively,
            steps=2,
            path=tmp_path / 'b',
            limit=1e-30,
            callbacks=[twice],
        )


def test_a_loss_of_rows_is_told_what_is_not_in_the_rows(monkeypatch, small_policy, easy):
    from rl4llm.core import registry

    monkeypatch.setattr(registry, 'STAGES', registry.STAGES | {})
    told = []

    def wary(rollouts, adv, *, policy):
        told.append(('select', policy))
        return torch.ones_like(adv), torch.ones_like(rollouts.mask[:, 0])

    def tied(logp, mask, *, policy):
        told.append(('regulariser', policy))
        return 0 * logp

    stage('select', needs=('policy',))(wary)
    stage('regulariser', needs=('policy',))(tied)
    made = recipe('grpo').but(select=wary, regularisers=(use(tied),))
    rows = small_policy.sample(easy.sample(2, seed=0), 2, seed=0, max_new_tokens=6)
    adv = rows.mask.float()
    _, loss, keep = rows_loss(build_stages(made), rows, adv, rows.logp_behave, {}, policy='mine')
    assert keep.all() and loss.shape == adv.shape
    assert told == [('select', 'mine'), ('regulariser', 'mine')]
