"""Recipes on TRL: loss and gradient are those of the pipeline, on rows that TRL has drawn."""

import dataclasses, json, subprocess, sys, textwrap
from pathlib import Path
import pytest
import torch

pytest.importorskip('trl')
import trl
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from rl4llm import Policy, recipe, task, use
from rl4llm.core.pipeline import advantages, batch_loss, build_stages, select_rows
from rl4llm.core.registry import RECIPES, load_stages
from rl4llm.core.signals import add_signals, live_names
from rl4llm.scaling.trl_bridge import (
    not_carried,
    read_memory,
    recipe_trainer,
    stages_with_memory,
    trl_arguments,
    trl_trainer,
)
from rl4llm.training.checkpoints import pack_stages

load_stages()
CARRIED = [name for name in RECIPES if not not_carried(name)]
FEW = ('grpo', 'dapo', 'gspo', 'grpo_kl', 'forking_tokens', 'cispo')
FLOAT32 = 5e-5  # share of a gradient's length that rounding may be; it is 1e-6 to 3e-5
# A reader's scores differ by a tenth of a nat in a group, which then divides their rounding.
ROUGHER = dict.fromkeys(('flr', 'flr_dealt'), 3e-4)
TOP = Path(__file__).resolve().parents[1]


def dataset(policy, count=32):
    problems = task('countdown').sample(count, seed=0)
    items = [json.dumps(dataclasses.asdict(item)) for item in problems]
    return Dataset.from_dict({'prompt': policy.prompts(problems), 'item': items})


class KeepSteps(TrainerCallback):
    "Weights, gradient and rows of each optimiser step."

    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        gradient = {name: p.grad.clone() for name, p in model.named_parameters()}
        self.steps.append((weights, gradient))


def keep_losses(trainer):
    "A list to which the trainer's loss of each slice is added."
    losses, compute = [], trainer._compute_loss

    def kept(model, inputs):
        loss = compute(model, inputs)
        losses.append(float(loss.detach()))
        return loss

    trainer._compute_loss = kept
    return losses


def moved(policy, scale=0.02):
    "A copy with noise on its weights."
    policy = policy.clone()
    torch.manual_seed(0)
    with torch.no_grad():
        for p in policy.model.parameters():
            p.add_(scale * torch.randn_like(p))
    return policy


def trained(made, folder, *, start, prepare=None, **more):
    """A trainer after one generation, its optimiser steps and the losses of their slices.

    The reference is the shipped model, the policy `start`. prepare: is given the trainer before
    it trains."""
    base = Policy.load('tiny')
    keep = KeepSteps()
    how = dict(
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy='no',
        disable_tqdm=True,
        max_completion_length=24,
        max_grad_norm=0.0,
        processing_class=base.tokenizer,
        callbacks=[keep],
        seed=0,
    )
    trainer = trl_trainer(
        made, base.clone().model, dataset(base), folder=folder, steps=1, rows=8, **{**how, **more}
    )
    trainer.remove_callback(PrinterCallback)
    trainer.model.load_state_dict(start.model.state_dict())
    losses = keep_losses(trainer)
    if prepare is not None:
        prepare(trainer)
    trainer.train()
    return trainer, keep.steps, losses


def expected(made, rollouts, *, start, weights, rows=None, old=True):
    """Loss and gradient of the same rows by the pipeline, for a policy with these weights.

    None if the recipe keeps none of the rows."""
    base = Policy.load('tiny')
    stages = build_stages(made)
    unknown = torch.full_like(rollouts.logp_old, float('nan'))
    bare = dataclasses.replace(rollouts, signals={}, logp_ref=None, logp_old=unknown)
    needs = stages.needed_first | (stages.needed_in_update - {'logp_old'})
    if rows is not None and old:
        needs |= {'logp_old'}
    known = add_signals(bare, needs, policy=start, reference=lambda _: base)
    adv = advantages(stages, known, policy=start)
    batch, kept = select_rows(stages, known, adv, policy=start)
    if batch is None:
        return None
    if rows is not None:
        place = kept.cumsum(0) - 1
        batch = batch.take(place[rows[kept[rows]]])
    policy = start.clone()
    policy.model.load_state_dict(weights, strict=False)
    policy = Policy(policy.model.double(), policy.tokenizer, fast=False)
    live = policy.statistics(batch.rows, ('logp', *live_names(stages.needs)))
    loss = batch_loss(stages, batch, live.pop('logp'), policy=policy, **live)
    loss.backward()
    return float(loss.detach()), {name: p.grad for name, p in policy.model.named_parameters()}


def gap(found, wanted):
    difference = sum(float((found[n] - wanted[n]).square().sum()) for n in wanted)
    return (difference / sum(float(wanted[n].square().sum()) for n in wanted)) ** 0.5


def check_loss_and_gradient(name, tmp_path, **more):
    made = recipe(name, prompts=4, group=8, minibatch=None, epochs=1, lr=1e-3)
    start = moved(Policy.load('tiny'))
    trainer, steps, losses = trained(made, tmp_path, start=start, **more)
    rewards = trainer.generated.rows.rewards
    assert 0 < rewards.nanmean() < 1 or name not in FEW
    wanted = expected(made, trainer.generated.rows, start=start, weights=steps[0][0])
    if wanted is None:
        assert not any(g.any() for g in steps[0][1].values())
        return
    loss, gradient = wanted
    assert len(losses) == 4 and abs(sum(losses) - loss) < 1e-5 * max(1, abs(loss))
    if not any(g.any() for g in gradient.values()):
        assert not any(g.any() for g in steps[0][1].values())
        return
    assert gap(steps[0][1], gradient) < ROUGHER.get(name, FLOAT32)


@pytest.mark.parametrize('name', FEW)
def test_a_recipe_has_loss_and_gradient_of_the_pipeline(name, tmp_path):
    assert name in CARRIED
    check_loss_and_gradient(name, tmp_path)


@pytest.mark.slow
@pytest.mark.takes_turns
@pytest.mark.parametrize('name', [name for name in CARRIED if name not in FEW])
def test_every_recipe_has_loss_and_gradient_of_the_pipeline(name, tmp_path):
    check_loss_and_gradient(name, tmp_path)


@pytest.mark.parametrize(
    'name',
    ['grpo_clip_higher', 'grpo_kl', 'gspo', 'cispo', 'gmpo', 'sapo', 'dapo', 'grpo_dual_clip'],
)
def test_later_updates_of_a_generation_know_the_old_policy(name, tmp_path):
    made = recipe(name, prompts=4, group=8, minibatch=16, epochs=1, lr=3e-3)
    start = moved(Policy.load('tiny'))
    trainer, steps, losses = trained(made, tmp_path, start=start)
    assert len(steps) == 2
    for number, (weights, gradient) in enumerate(steps):
        slices = trainer._buffered_inputs[2 * number : 2 * number + 2]
        rows = torch.cat([part['row'] for part in slices])
        rollouts = trainer.generated.rows
        seen = dict(start=start, weights=weights, rows=rows)
        loss, wanted = expected(made, rollouts, **seen)
        assert sum(losses[2 * number : 2 * number + 2]) == pytest.approx(loss, rel=1e-5, abs=1e-5)
        assert gap(gradient, wanted) < FLOAT32
        _, blind = expected(made, rollouts, **seen, old=False)
        assert (gap(gradient, blind) > 1e-3) == (number > 0)


REMEMBERS = ('ppo', 'ppo_kl', 'rank_shaping', 'rlfr', 'grpo_adaptive_kl', 'grpo_adaptive_entropy')


def test_recipes_with_a_memory_carry_over():
    assert set(REMEMBERS) | {'prorl', 't1', 'grpo_tied_reset'} <= set(CARRIED)
    assert stages_with_memory(build_stages(recipe('prorl'))) and not stages_with_memory(
        build_stages(recipe('grpo'))
    )


def generations(made, folder, steps, **more):
    """A trainer after so many generations of one update each.

    With it the rows of each generation and what stages remembered at its end."""
    seen = []

    class Look(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            plain, tensors = pack_stages(stages_with_memory(trainer.stages))
            kept = {name: x.detach().clone() for name, x in tensors.items()}
            seen.append((trainer.all_rollouts, plain, kept))

    base = Policy.load('tiny')
    how = dict(PLAIN, processing_class=base.tokenizer, seed=0, max_grad_norm=0.0)
    trainer = trl_trainer(
        made, base.clone().model, dataset(base), folder=folder, steps=steps, rows=8, **how, **more
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Look())
    trainer.train()
    return trainer, seen


PLAIN = dict(
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    report_to=[],
    save_strategy='no',
    disable_tqdm=True,
    max_completion_length=24,
)


def same_memory(a, b):
    return a[0] == b[0] and all(torch.equal(x, b[1][name]) for name, x in a[1].items())


@pytest.mark.parametrize('name', ['grpo_adaptive_kl', 'rank_shaping', 'ppo'])
def test_stages_remember_each_generation_once(name, tmp_path):
    "Three generations of two updates: the state changes with the second update only."
    made = recipe(name, prompts=4, group=8, minibatch=16, epochs=1, lr=3e-3)
    _, seen = generations(made, tmp_path, 3)
    states = [state for _, *state in seen]
    assert len(states) == 6
    assert same_memory(states[1], states[2]) and same_memory(states[3], states[4])
    assert not same_memory(states[0], states[1]) and not same_memory(states[2], states[3])


def test_what_a_stage_remembers_is_what_the_loop_would_tell_it(tmp_path):
    made = recipe('rank_shaping', prompts=4, group=8, minibatch=None, lr=3e-3)
    _, seen = generations(made, tmp_path, 3)
    stages = build_stages(made)
    own = stages_with_memory(stages)
    for rollouts, *state in seen:
        advantages(stages, rollouts, policy=None)
        for stage in own.values():
            stage.update(rollouts)
        assert same_memory(state, pack_stages(own))


def test_a_reset_makes_the_reference_the_policy_and_clears_the_optimiser(tmp_path):
    every = use('reset_reference', every=2, patience=None)
    made = recipe('prorl', prompts=4, group=8, minibatch=None, lr=3e-3, reference=every)
    trainer, _ = generations(made, tmp_path, 2)
    theirs = dict(trainer.ref_model.named_parameters())
    start = Policy.load('tiny').model.state_dict()
    changed = 0
    for name, p in trainer.model.named_parameters():
        assert torch.equal(p, theirs[name])
        changed += not torch.equal(p, start[name])
    assert changed and not trainer.optimizer.state
    assert trainer.stages.reference.call.resets == [2]
    assert trainer.stages.reference.call.kept.model is trainer.ref_model


def test_a_checkpoint_that_was_broken_off_is_named(tmp_path):
    with pytest.raises(ValueError, match='broken off'):
        read_memory(build_stages(recipe('ppo')), tmp_path)
    read_memory(build_stages(recipe('grpo')), tmp_path)


def test_what_does_not_carry_over_is_named(tmp_path):
    base = Policy.load('tiny')
    for name, stage in (
        ('clip_cov', 'batch'),
        ('dph_js', 'rehearse_solved'),
        ('one_shot', 'handful'),
    ):
        with pytest.raises(ValueError, match=f'does not carry over.*{stage}'):
            trl_trainer(name, base.model, dataset(base, 2), folder=tmp_path, steps=1)


def test_numbers_that_do_not_fit_are_named(tmp_path):
    with pytest.raises(ValueError, match='draws 256 rows and updates on 64'):
        trl_arguments('grpo_clip_higher', rows=48)
    base = Policy.load('tiny')
    how = dict(use_cpu=True, bf16=False)
    args = trl.GRPOConfig(
        output_dir=str(tmp_path), num_generations=8, per_device_train_batch_size=8,
        steps_per_generation=4, gradient_accumulation_steps=8, **how,
    )  # fmt: skip
    with pytest.raises(ValueError, match='whole number of updates'):
        recipe_trainer()(
            base.model, recipe('grpo', prompts=4, group=8), args=args,
            train_dataset=dataset(base, 4), processing_class=base.tokenizer,
        )  # fmt: skip
    for name in ('gradient_accumulation_steps', 'generation_batch_size', 'steps_per_generation',
                 'per_device_train_batch_size'):  # fmt: skip
        with pytest.raises(ValueError, match=f'{name} would do nothing'):
            trl_trainer('grpo', base.model, dataset(base, 4), folder=tmp_path, steps=1, **how,
                        **{name: 8})  # fmt: skip


def own_advantage(rewards, group):
    return 2.0 * rewards - 1


def test_your_own_reward_and_advantage_are_trained_with(tmp_path):
    def short(prompts, completions, **columns):
        return [1.0 if '+' in text else 0.0 for text in completions]

    made = recipe('grpo', prompts=4, group=8, advantage=own_advantage, reward=short)
    trainer, *_ = trained(made, tmp_path, start=Policy.load('tiny'))
    batch = trainer.generated
    rewards = torch.tensor(short(None, batch.rows.texts))
    assert torch.equal(batch.rows.rewards, rewards) and 0 < rewards.mean() < 1
    assert torch.equal(batch.adv[:, 0], own_advantage(rewards, None))


def test_a_reward_that_answers_nothing_stops_the_run(tmp_path):
    def sometimes(prompts, completions, **columns):
        return [None if i % 2 else float(i % 4) for i in range(len(completions))]

    def nothing(prompts, completions, **columns):
        return [None] * len(completions)

    made = recipe('grpo', prompts=4, group=8, minibatch=None, epochs=1, lr=1e-3)
    start = Policy.load('tiny')
    trained(made.but(reward=sometimes), tmp_path / 'some', start=start)
    with pytest.raises(ValueError, match="'nothing'.* gave None for all 32 responses"):
        trained(made.but(reward=nothing), tmp_path / 'none', start=start)


def test_groups_that_teach_nothing_are_drawn_again(tmp_path):
    "Every group that is trained on has two different rewards, and the log says how it came to it."
    made = recipe('grpo', prompts=4, group=8, minibatch=16, lr=1e-3, select='drop_uniform_groups')
    trainer, seen = generations(made, tmp_path, 3, redraws=10, logging_steps=2)
    log = [entry for entry in trainer.state.log_history if 'redraws' in entry]
    assert len(log) == 3 and any(entry['redraws'] > 0 for entry in log)
    assert all(entry['empty_groups'] == 0 and entry['redraws'] <= 10 for entry in log)
    assert len(seen) == 6 and trainer.kept.all()
    for rollouts, *_ in seen:
        rewards = rollouts.rewards.view(4, 8)
        assert (rewards.max(1).values > rewards.min(1).values).all()
        first = [rollouts.items[i] for i in range(0, 32, 8)]
        assert list(rollouts.items) == [item for item in first for _ in range(8)]
    for part in trainer._buffered_inputs:
        rows = trainer.generated.rows
        for i, row in enumerate(part['row'].tolist()):
            said = part['completion_mask'][i].bool()
            assert torch.equal(part['completion_ids'][i][said], rows.tokens[row][: said.sum()])
            asked = part['prompt_mask'][i].bool()
            own = rows.prompt[row]
            wanted = rows.prompt_ids[own][rows.prompt_mask[own]]
            assert torch.equal(part['prompt_ids'][i][asked], wanted)


def test_redraws_have_loss_and_gradient_of_the_pipeline(tmp_path):
    made = recipe('dapo', prompts=4, group=8, minibatch=None, epochs=1, lr=1e-3)
    start = Policy.load('tiny')
    trainer, steps, losses = trained(made, tmp_path, start=start, redraws=10)
    assert trainer.state.log_history[0]['redraws'] > 0
    loss, gradient = expected(made, trainer.generated.rows, start=start, weights=steps[0][0])
    assert sum(losses) == pytest.approx(loss, rel=1e-5, abs=1e-5)
    assert gap(steps[0][1], gradient) < FLOAT32


def test_redraws_end_and_what_stays_empty_is_counted(tmp_path):
    def same(prompts, completions, **columns):
        return [0.0] * len(completions)

    drops = dict(reward=same, select='drop_uniform_groups')
    made = recipe('grpo', prompts=4, group=8, minibatch=None, **drops)
    trainer, steps, _ = trained(made, tmp_path, start=Policy.load('tiny'), redraws=2)
    entry = trainer.state.log_history[0]
    assert entry['redraws'] == 2 and entry['empty_groups'] == 4
    assert not trainer.kept.any() and not any(g.any() for g in steps[0][1].values())


@pytest.mark.parametrize(
    'count, select, said',
    [(3, 'keep_all', 'select stage keep_all'), (-1, None, 'wanted a whole number')],
)
def test_redraws_that_would_do_nothing_are_refused(count, select, said, tmp_path):
    made = recipe('grpo', prompts=4, group=8, select=select or 'drop_uniform_groups')
    with pytest.raises(ValueError, match=said):
        generations(made, tmp_path, 1, redraws=count)


class KeepSlices:
    "A trainer's `_compute_loss` that first compares the rows of each slice in training."

    def __init__(self, trainer):
        self.trainer, self.compute, self.shares = trainer, trainer._compute_loss, []

    def __call__(self, model, inputs):
        if model.training:
            rows = self.trainer.generated.take(inputs['row']).rows
            same = [
                ids[seen.bool()].tolist() == tokens[mask].tolist()
                for ids, seen, tokens, mask in zip(
                    inputs['completion_ids'], inputs['completion_mask'], rows.tokens, rows.mask
                )
            ]
            self.shares.append(sum(same) / len(same))
        return self.compute(model, inputs)


def evaluating(base, **more):
    "Arguments of an evaluation after each update, so also between two of a generation."
    return dict(eval_strategy='steps', eval_steps=1, eval_dataset=dataset(base, 4), **more)


def six_tokens(prompts, trainer):
    "Responses of six tokens, other ones each time: their length does not tell them apart."
    base = Policy.load('tiny')
    ids = [base.tokenizer(prompt)['input_ids'] for prompt in prompts]
    said = torch.randint(3, 30, (len(prompts), 6)).tolist()
    return dict(prompt_ids=ids, completion_ids=said, logprobs=[[-1.0] * 6 for _ in said])


@pytest.mark.parametrize('is_one_length', [False, True])
def test_an_evaluation_within_a_generation_leaves_its_rows(is_one_length, tmp_path):
    made = recipe('grpo_clip_higher', prompts=4, group=8, minibatch=16, epochs=1, lr=3e-3)
    base = Policy.load('tiny')
    more = evaluating(base, per_device_eval_batch_size=32)
    if is_one_length:
        more['rollout_func'] = six_tokens
    found = []

    def watched(trainer):
        found.append(KeepSlices(trainer))
        trainer._compute_loss = found[0]

    start = moved(base)
    trainer, steps, _ = trained(made, tmp_path, start=start, prepare=watched, **more)
    assert found[0].shares == [1.0] * 4
    assert sum('eval_loss' in entry for entry in trainer.state.log_history) == 2
    for number, (weights, gradient) in enumerate(steps):
        rows = torch.cat([p['row'] for p in trainer._buffered_inputs[2 * number : 2 * number + 2]])
        seen = dict(start=start, weights=weights, rows=rows)
        _, wanted = expected(made, trainer.generated.rows, **seen)
        if any(g.any() for g in wanted.values()) or not is_one_length:
            assert gap(gradient, wanted) < FLOAT32


def test_an_evaluation_is_not_remembered(tmp_path):
    made = recipe('rank_shaping', prompts=4, group=8, minibatch=16, epochs=1, lr=3e-3)
    more = evaluating(Policy.load('tiny'), per_device_eval_batch_size=8, num_generations_eval=4)
    trainer, seen = generations(made, tmp_path, 2, **more)
    assert seen[0][0] is seen[1][0] and seen[2][0] is seen[3][0] is trainer.all_rollouts
    assert trainer.evaluated[0].rows.group.tolist() == [0] * 4 + [1] * 4
    stages = build_stages(made)
    own = stages_with_memory(stages)
    for rollouts, *state in seen[1::2]:
        advantages(stages, rollouts, policy=None)
        for stage in own.values():
            stage.update(rollouts)
        assert same_memory(state, pack_stages(own))


@pytest.mark.parametrize('name', ['ppo', 'grpo_adaptive_entropy', 'grpo_adaptive_kl'])
def test_what_a_stage_has_noted_is_the_same_after_an_evaluation(name, tmp_path):
    made = recipe(name, prompts=4, group=8, minibatch=None, epochs=1, lr=3e-3)
    trainer, _ = generations(made, tmp_path, 1, eval_dataset=dataset(Policy.load('tiny'), 2))
    parts = stages_with_memory(trainer.stages)
    before = {place: dict(vars(part)) for place, part in parts.items()}
    assert parts and trainer.evaluate()['eval_loss'] is not None
    for place, part in parts.items():
        assert vars(part).keys() == before[place].keys()
        assert all(value is before[place][name] for name, value in vars(part).items())


class Engine:
    "In place of vLLM: it draws as the policy does, and gives other log-probabilities."

    def __init__(self, base):
        self.base = base

    def sync_weights(self):
        pass

    def generate(self, prompts, num_generations, **_):
        decode = self.base.tokenizer.decode
        first = prompts[::num_generations]
        asked = [decode(ids, skip_special_tokens=True) for ids in first]
        rows = self.base.sample(asked, num_generations, seed=0, max_new_tokens=24)
        noise = 0.3 * torch.randn(rows.tokens.shape, generator=torch.manual_seed(0))
        logp = rows.logp_behave + noise
        said = [tokens[mask].tolist() for tokens, mask in zip(rows.tokens, rows.mask)]
        told = [[[x] for x in row[mask].tolist()] for row, mask in zip(logp, rows.mask)]
        return None, said, told, None


def with_engine(base):
    "What makes TRL take `Engine` for vLLM, with its correction of each token."

    def prepare(trainer):
        trainer.use_vllm = True
        trainer._last_loaded_step = -1
        trainer.vllm_generation = Engine(base)
        trainer.vllm_importance_sampling_mode = 'token_truncate'
        trainer.vllm_importance_sampling_clip_max = 100.0

    return prepare


@pytest.mark.parametrize('name', ['decoupled_ppo', 'truncated_is', 'stale_ppo', 'off_policy_mask'])
def test_a_recipe_that_corrects_for_the_sampler_is_not_corrected_again(name, tmp_path):
    "The loss is that of the pipeline, with the weight w of each token and not its square."
    made = recipe(name, sampler='sample', prompts=4, group=8, minibatch=None, epochs=1, lr=1e-3)
    assert not not_carried(made)
    start = moved(Policy.load('tiny'))
    trainer, steps, _ = trained(made, tmp_path, start=start, prepare=with_engine(start))
    slices = trainer._buffered_inputs
    assert len(slices) == 4 and 'importance_sampling_ratio' in slices[0]
    rows = torch.cat([part['row'] for part in slices])
    rollouts = trainer.generated.rows
    _, wanted = expected(made, rollouts, start=start, weights=steps[0][0], rows=rows)
    assert 0 < rollouts.rewards.mean() < 1 and gap(steps[0][1], wanted) < FLOAT32
    assert (rollouts.logp_old - rollouts.logp_behave)[rollouts.mask].std() > 0.1


def test_a_recipe_that_does_not_is_corrected_by_trl(tmp_path):
    made = recipe('grpo', prompts=4, group=8, minibatch=None, epochs=1, lr=1e-3)
    start = moved(Policy.load('tiny'))
    trainer, steps, _ = trained(made, tmp_path, start=start, prepare=with_engine(start))
    rows = torch.cat([part['row'] for part in trainer._buffered_inputs])
    seen = dict(start=start, weights=steps[0][0], rows=rows)
    rollouts = trainer.generated.rows
    _, bare = expected(made, rollouts, **seen)
    assert gap(steps[0][1], bare) > 1e-2
    weight = (rollouts.logp_old - rollouts.logp_behave).exp()
    _, wanted = expected(made, dataclasses.replace(rollouts, loss_weight=weight), **seen)
    assert gap(steps[0][1], wanted) < FLOAT32


TWO = textwrap.dedent('''
    import sys, torch
    sys.path.insert(0, 'tests')
    from test_trl_bridge import dataset
    from rl4llm import Policy, recipe, task, use
    from rl4llm.scaling.trl_bridge import trl_trainer

    out, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    base = Policy.load('tiny')

    def drawn(prompts, trainer):
        "The same response for the same place in the generation, however many processes there are."
        ids, said = [], []
        first = trainer.accelerator.process_index * len(prompts)
        for place, prompt in enumerate(prompts):
            seed = (first + place) % 8 + 100 * trainer.state.global_step
            rows = base.sample([prompt], 1, seed=seed)
            ids.append(rows.prompt_ids[0][rows.prompt_mask[0]].tolist())
            said.append(rows.tokens[0][rows.mask[0]].tolist())
        return dict(prompt_ids=ids, completion_ids=said, logprobs=[[0.0] * len(x) for x in said])

    made = recipe(name, prompts=3, group=8, minibatch=None, lr=1e-3)
    trainer = trl_trainer(made, base.clone().model, dataset(base), folder=out, steps=2,
        rows=12 // count, processes=count, use_cpu=True, bf16=False, report_to=[], seed=0,
        save_strategy='no', disable_tqdm=True, gradient_checkpointing=False, rollout_func=drawn,
        max_completion_length=24, processing_class=base.tokenizer,
        redraws=2 if name == 'dapo' else 0)
    trainer.train()
    if trainer.accelerator.is_main_process:
        torch.save(dict(trainer.accelerator.unwrap_model(trainer.model).state_dict()), out + '.pt')
''')


@pytest.mark.takes_turns
@pytest.mark.slow
@pytest.mark.parametrize('name', ['grpo', 'dapo'])
def test_two_processes_train_as_one(name, tmp_path):
    "Groups of eight, twelve rows a process: the second group lies on both."
    script = tmp_path / 'two.py'
    script.write_text(TWO)
    for count in (1, 2):
        out = str(tmp_path / f'run{count}')
        launch = ['-m', 'torch.distributed.run', '--standalone', f'--nproc-per-node={count}']
        done = subprocess.run(
            [sys.executable, *(launch if count > 1 else []), str(script), out, name, str(count)],
            cwd=TOP,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    one, two = (torch.load(tmp_path / f'run{count}.pt') for count in (1, 2))
    start = Policy.load('tiny').model.state_dict()
    changed = {name: one[name] - start[name] for name in one}
    assert any(x.any() for x in changed.values())
    assert all(torch.allclose(one[name], two[name], atol=1e-5) for name in one)


def test_the_warm_up_takes_as_many_generations_as_in_the_loop():
    made = recipe('grpo', prompts=4, group=4, minibatch=8, epochs=3, warmup=5)
    given = trl_arguments(made, rows=8)
    updates = given['steps_per_generation'] // given['gradient_accumulation_steps']
    assert updates * given['num_iterations'] == 6
    assert given['warmup_steps'] == 5 * 6
