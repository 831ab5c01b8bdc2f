"""What a CPU does a GPU does: every recipe trains there and gives the CPU's numbers.

Without a GPU a device that is none stands in for it, in a process of its own (see
`another_device.py`): some of these tests are too slow for it, or ask it for what it lacks.
"""

import os
import warnings

import another_device
import pytest
import torch

from rl4llm.core.policy import Policy
from rl4llm.core.registry import RECIPES, load_stages, recipe
from rl4llm.inference.budget import Budgeted
from rl4llm.inference.mixing import guided
from rl4llm.studies.probes import probe_recipe
from rl4llm.studies.worlds import WORLD_RUNS, world_recipe
from rl4llm.tasks import task
from rl4llm.training.callbacks import Checkpoint
from rl4llm.training.evaluation import evaluate
from rl4llm.training.loop import train
from rl4llm.training.pretraining import pretrain

HAS_GPU = torch.cuda.is_available()
STANDS_IN = bool(os.environ.get('STAND_IN_FOR_GPU'))
DEVICE = another_device.install() if STANDS_IN else 'cuda'
pytestmark = pytest.mark.skipif(not (HAS_GPU or STANDS_IN), reason='there is no GPU here')
needs_gpu = pytest.mark.skipif(STANDS_IN, reason='there is no GPU here')

load_stages()
OURS = sorted(name for name, spec in RECIPES.items() if spec.module.startswith('rl4llm'))
SAMPLERS = ('branch_grpo', 'cure', 'decoupled_ppo', 'deep_search', 'latr', 'rlp', 'theta_evolve')
SAMPLERS += ('arpo', 'rorecomp', 'vogue')
CHOSEN = OURS if not STANDS_IN else ('grpo', 't1', 'ppo', *SAMPLERS)
WORLDS = list(WORLD_RUNS) if not STANDS_IN else ['wishes']
SAME = ('reward', 'tokens', 'rows')
CLOSE = {'kl_cov': 0.5}  # one token is on its leash, and rounding chooses it among equals


def tiny(device=DEVICE, **how):
    return Policy.load('tiny', device=device, **(dict(fast=True, bf16=False, graphs=False) | how))


def weights(policy):
    return torch.cat([p.detach().flatten().cpu() for p in policy.model.parameters()])


def trained(name, device, **how):
    "The metrics of two steps, and how far the weights went."
    policy = tiny(device, **how)
    before = weights(policy)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # so few rows may all be left out
        made = probe_recipe(name)
        run = train(policy, task('countdown', level='easy'), made, steps=2, seed=5)
    return run.rows, weights(policy) - before


@pytest.mark.parametrize('name', CHOSEN)
def test_a_recipe_gives_the_numbers_of_the_cpu(name):
    rel = CLOSE.get(name, 5e-3)
    here, moved_here = trained(name, DEVICE)
    there, moved_there = trained(name, 'cpu')
    for ours, theirs in zip(here, there, strict=True):
        for key in SAME:
            if key in theirs:
                assert ours[key] == pytest.approx(theirs[key], nan_ok=True), key
        for key in ('loss', 'grad_norm', 'entropy'):
            assert ours[key] == pytest.approx(theirs[key], rel=rel, abs=1e-4, nan_ok=True), key
    # Adam's first steps follow signs, and rounding decides those of gradients near zero
    assert (moved_here - moved_there).norm() <= max(rel, 0.1) * moved_there.norm() + 1e-9


@needs_gpu
@pytest.mark.parametrize('model', ['tiny', 'tiny-think-v1', 'tiny-mix-v1'])
def test_a_recorded_step_draws_the_same_tokens(model):
    items = task('countdown').sample(8, seed=1)
    found = {}
    for graphs in (False, True):
        policy = Policy.load(model, device=DEVICE, bf16=False, graphs=graphs)
        with warnings.catch_warnings():
            warnings.simplefilter('error')  # a recording that failed is told as a warning
            found[graphs] = policy.sample(items, 8, seed=3)
    plain, recorded = found.values()
    assert torch.equal(plain.mask, recorded.mask)
    assert torch.equal(plain.tokens[plain.mask], recorded.tokens[recorded.mask])
    assert (plain.logp_behave - recorded.logp_behave)[plain.mask].abs().max() < 1e-3


def test_bfloat16_products_stay_close():
    items = task('countdown').sample(8, seed=1)
    batch = tiny(DEVICE).sample(items, 8, seed=3)
    with torch.no_grad():
        exact, rough = (tiny(DEVICE, bf16=b).logprobs(batch)[0] for b in (False, True))
    assert 0 < (exact - rough)[batch.mask].abs().mean() < 0.02


@needs_gpu
def test_a_stopped_run_goes_on(tmp_path):
    made = recipe('grpo', prompts=8, group=8, lr=1e-4)
    easy = task('countdown', level='easy')
    whole, parts, resumed = tiny(), tiny(), tiny()
    train(whole, easy, made, steps=4, seed=1)
    with pytest.raises(KeyboardInterrupt):
        callbacks = [Checkpoint(2), Halt(3)]
        train(parts, easy, made, steps=4, seed=1, path=tmp_path, callbacks=callbacks)
    train(resumed, easy, made, steps=4, seed=1, path=tmp_path)
    assert (weights(resumed) - weights(whole)).abs().max() < 1e-5
    assert (weights(parts) - weights(whole)).abs().max() > 1e-5


class Halt:
    "Ends a run after so many steps, as a kill would."

    def __init__(self, steps):
        self.steps = steps

    def on_step(self, state, row):
        if state.step == self.steps:
            raise KeyboardInterrupt


@pytest.mark.parametrize('world', WORLDS)
def test_every_world_trains(world):
    run = WORLD_RUNS[world]
    policy = Policy.load(run.model, device=DEVICE, bf16=False)
    made = world_recipe(run).but(prompts=4, group=4)
    trained = train(policy, task(run.task, run.level), made, steps=2)
    assert trained.metrics['loss'].notna().all()


def test_turns_of_an_environment_have_anchor_states():
    policy = Policy.load('tiny-agent-v1', device=DEVICE, bf16=False)
    made = recipe('gigpo', prompts=4, group=8, lr=1e-4)
    trained = train(policy, task('key_door', 'standard'), made, steps=2)
    assert trained.metrics['loss'].notna().all()


@needs_gpu
@pytest.mark.parametrize('base', ['tiny-think-s-v1', 'tiny-mix-v1'])
def test_a_base_is_pretrained(base, tmp_path):
    folder = pretrain(base, out=tmp_path / 'base', device=DEVICE, dry_run=True)
    policy = Policy.load(folder, device=DEVICE)
    assert len(policy.sample(task('countdown').sample(2, seed=0), 2, seed=0)) == 4


@needs_gpu
def test_what_draws_otherwise_draws_here():
    items = task('countdown').sample(4, seed=1)
    base, other = (Policy.load('tiny-think-v1', device=DEVICE) for _ in range(2))
    for p in other.model.parameters():
        p.data *= 1.01
    for policy in (Budgeted(base, 40), guided(base, other, 1.5), Budgeted(base, 40, waits=1)):
        rows = policy.sample(items, 4, seed=0)
        assert rows.tokens.device.type == DEVICE and len(rows) == 16
    assert evaluate(base, items, samples=4, seed=0).num_samples.tolist() == [4] * 4
