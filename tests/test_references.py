"""What a reset does besides copying weights: the optimiser forgets, and the next step is a first step."""

import torch

from rl4llm.core.registry import recipe, use
from rl4llm.references.reference_policies import reset_reference
from rl4llm.tasks import task
from rl4llm.training.loop import train


class Watch:
    "Notes after each step how many parameters the optimiser remembers, their oldest step count, and how far the weights moved."

    def __init__(self):
        self.remembered, self.counts, self.moves, self.before = [], [], [], None

    def on_start(self, state):
        self.before = [p.detach().clone() for p in state.policy.model.parameters()]

    def on_step(self, state, row):
        self.remembered.append(len(state.optimiser.state))
        self.counts.append(max((int(s['step']) for s in state.optimiser.state.values()), default=0))
        now = [p.detach().clone() for p in state.policy.model.parameters()]
        self.moves.append(max(float((a - b).abs().max()) for a, b in zip(now, self.before)))
        self.before = now


def words(prompts, completions, **columns):
    "A reward that differs within a group, so that every step is an update."
    return [float(len(c)) % 7 / 7 for c in completions]


def watched(policy, reference, steps=5):
    watch = Watch()
    made = recipe('grpo_kl', reward=words, reference=reference, prompts=2, group=4, lr=1e-3)
    run = train(
        policy, task('countdown', level='easy'), made, steps=steps, seed=0, callbacks=[watch]
    )
    assert all(row['updates'] for row in run.rows), 'no test of a reset without updates'
    return watch


def test_a_reset_clears_the_optimiser_and_nothing_else_does(small_policy):
    "Every second step: after it nothing is remembered, and the step that follows counts as the first."
    fixed = watched(small_policy.clone(), 'fixed_reference')
    full = fixed.remembered[0]
    assert full > 0 and fixed.remembered == [full] * 5 and fixed.counts == [1, 2, 3, 4, 5]
    cleared = watched(small_policy.clone(), use(reset_reference, every=2))
    assert cleared.remembered == [full, 0, full, 0, full] and cleared.counts == [1, 0, 1, 0, 1]
    kept = watched(small_policy.clone(), use(reset_reference, every=2, optimiser=False))
    assert kept.remembered == fixed.remembered and kept.counts == fixed.counts
    assert cleared.moves[:2] == kept.moves[:2] and cleared.moves[2] != kept.moves[2]


def test_a_reset_is_told_to_the_optimiser_that_trains(small_policy):
    "By hand: state and optimiser as the loop has them; the moments go, parameters and their groups stay."
    from types import SimpleNamespace

    optimiser = torch.optim.AdamW(small_policy.model.parameters(), lr=1e-3)
    for p in small_policy.model.parameters():
        p.grad = torch.ones_like(p)
    optimiser.step()
    groups = [len(g['params']) for g in optimiser.param_groups]
    state = SimpleNamespace(
        policy=small_policy,
        step=7,
        optimiser=optimiser,
        rollouts=SimpleNamespace(rewards=torch.tensor([0.0, 1.0])),
    )
    reference = reset_reference(every=1)
    reference(small_policy)
    reference.update(state)
    assert (
        not optimiser.state
        and [len(g['params']) for g in optimiser.param_groups] == groups
        and reference.resets == [7]
    )


def test_progress_is_measured_from_the_last_reset(small_policy):
    "After a fall and a reset, a rise is progress though it stays below the first reward."
    from types import SimpleNamespace

    reference = reset_reference(patience=2, decay=0.0, optimiser=False)
    for step, reward in enumerate([1.0, 0.0, 0.0, 0.25, 0.5, 0.75]):
        drawn = SimpleNamespace(rewards=torch.tensor([reward]))
        reference.update(SimpleNamespace(policy=small_policy, step=step, rollouts=drawn))
    assert reference.resets == [2] and reference.best == 0.75


def test_checkpoints_that_name_nothing_are_still_read():
    "What a reference and a value head keep has names now; older files have lists."
    from rl4llm.objectives.offline import reference_value

    reference = reset_reference(every=5)
    reference.load_state_dict(dict(progress=[0.5, 0.75, 2, 3, [4, 9]]))
    kept = dict(mean=0.5, best=0.75, waited=2, age=3, resets=[4, 9])
    assert {name: getattr(reference, name) for name in kept} == kept
    assert reference.state_dict()['progress'] == kept
    value = reference_value()
    value.load_state_dict(dict(seen=[7, -1.0, 2.0]))
    assert (value.age, value.span) == (7, [-1.0, 2.0])
    assert value.state_dict()['seen'] == dict(age=7, span=[-1.0, 2.0])
