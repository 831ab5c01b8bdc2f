"""Every idea acts: after a few informative steps a recipe's weights are not those of its parent.

Two recipes that end in the same weights, bit for bit, are one recipe with two names: a clip in a
batch that is used once, a filter that is never crossed, a reset that never comes. So each recipe is
trained beside its parent, at its own settings of all that makes the method (sizes are small), and
so is each of several changes that it makes beside the same recipe without that change. Siblings
and more distant relatives are compared as well: two children may leave their parent by one step.
These are told apart by their stored probes where they can be, and trained where not.
"""

import tempfile
from collections import deque
from functools import cache
from itertools import combinations
import pytest, torch
from rl4llm.core.policy import Policy
from rl4llm.core.registry import LOOP_FIELDS, RECIPES, STAGE_FIELDS, load_stages, recipe, use
from rl4llm.core.rollouts import group_std
from rl4llm.studies.probes import stored_probes
from rl4llm.studies.tryouts import IDLE
from rl4llm.tasks import task
from rl4llm.training.loop import start, train_step

STEPS = 2
DIFFERENT = 1e-5  # of the way that the weights have come; rounding makes some 1e-6
ROUNDED = 2e-5  # two ways to write one gradient; 1.2e-5 where the processor has AVX2 only

# What acts later than in the second step: at which step, and why.
LATER = {
    'paired': (5, "a pair of a hard and an easy problem has to turn up first"),
    'paired_scale': (8, "as paired: until there is a pair it is plain GRPO"),
    'paired_pooled': (8, "as paired_scale"),
    'rlfr': (7, "the flow learns from five batches before it fines anything"),
    'rlfr_shuffled': (7, "as rlfr, whose scores it shuffles"),
    'rlccf_plain': (5, "a problem has to turn up whose label the weights decide"),
    'grpo_noisy': (4, "a problem with both rewards has to turn up whose coin says flip"),
    **dict.fromkeys(
        ('rorecomp_priority', 'rorecomp.sampler'), (3, "two batches are kept before any comes back")
    ),
    **dict.fromkeys(
        ('latr', 'latr_draw', 'latr_random_branching', 'latr_random_pruning'),
        (3, "rows of a tree are much alike: a group with both rewards has to turn up"),
    ),
    'rstar_dealt': (
        3,
        "the network leads from the second search on, and has to rank a pair otherwise",
    ),
    'go_explore_random': (10, "few cells are open in an easy problem, and mostly all are chosen"),
    'oni_dealt': (6, "a state that was labelled has to come back in a later problem"),
    'off_policy_mask': (6, "samples are as old as they get after four steps"),
    'grpo_adaptive_kl': (4, "the coefficient is steered for the first time after the first step"),
    **dict.fromkeys(
        (
            'dph_forward_kl',
            'dph_forward_kl.sampler',
            'dph_forward_kl.objective',
            'dph_js',
            'dph_alpha',
        ),
        (3, "a problem has to turn up of which six of eight tries are right"),
    ),
    'dapo.select': (5, "the batch must hold a group of equal rewards"),
    'prorl.select': (6, "the batch must hold a group of equal rewards"),
    'deep_search.select': (7, "the batch must hold a tree of equal verdicts"),
    'deep_search_random': (3, "few steps are open in an easy problem, and chance takes the best"),
    'deep_search_replay.sampler': (8, "a problem has to come back whose solution is kept"),
    't1.reference': (12, "the reference follows by a hundredth of the way a step"),
    'oreal.sampler': (12, "the token reward model learns for ten steps before anything is trained"),
    'oreal_pairs': (12, "as the sampler"),
    'oreal.objective': (12, "as the sampler"),
    'oreal.regularisers': (13, "as the sampler, and there is no divergence in the first update"),
}

# What needs batches of its own size, in which more tokens are at the border of a clip: steps until one is beyond it.
OWN_SIZE = {'grpo_clip_higher.objective': 4, 'grpo_dual_clip.objective': 1, 'prorl.objective': 9}
OWN_SIZE |= {'simplevla.select': 1, 'simplevla.group': 1}

# What is its parent at its own settings, here or for longer than a test can wait: why, and the settings of both in
# which it is not, as `rl4llm recipes NAME` shows them.
SAME = IDLE


# What asks for words that the tiny model never says: a model that says them.
BASES = dict.fromkeys(
    (
        'rlcr adactrl adactrl_gated rlp rlp_dealt flr flr_dealt rlsp rlsp_no_grade rlsp_dealt '
        'rlsp_unverified chipseek chipseek_flat chipseek_dealt'
    ).split(),
    'tiny-think-v1',
)


@cache
def base(name='tiny'):
    return Policy.load(name, fast=True, bf16=False, graphs=False)


@cache
def base_weights(name):
    return weights_of(base(name))


def weights_of(policy):
    return torch.cat([p.detach().flatten() for p in policy.model.parameters()])


def on_disk(x):
    "The tensor in a file without a name, so that hundreds of them do not fill the memory."
    with tempfile.NamedTemporaryFile() as file:
        mapped = torch.from_file(file.name, shared=True, size=x.numel(), dtype=x.dtype)
    return mapped.copy_(x)


class Weights:
    """A run that goes on as far as it is asked for, and the weights after each step.

    Only the latest few hold a policy and an optimiser; one that has lost them begins again."""

    def __init__(self, made, level, model, world):
        self.how = (made, level, model, world)
        self.state = None
        self.after = [base_weights(model)]
        self.informative = []

    def at(self, step):
        while len(self.after) <= step:
            self.take_step()
            if self.state.step < len(self.after):
                continue  # it catches up
            rollouts = self.state.rollouts
            mixed = (group_std(rollouts.rewards, rollouts.group) > 0).any()
            # these imitate right rows
            kinds = ('archived_rows', 'rstar_traces', 'best_first_traces')
            imitates = any(kind in str(self.state.recipe.sampler) for kind in kinds)
            self.informative.append(bool(mixed or (imitates and (rollouts.rewards > 0).any())))
            self.after.append(on_disk(weights_of(self.state.policy)))
        return self.after[step]

    def take_step(self):
        if self.state is None:
            made, level, model, world = self.how
            problems = task(world, level=level)
            self.state = start(base(model).clone(), problems, made, steps=99, seed=5, path=None)
            GOING.append(self)
            if len(GOING) > 20:
                GOING.popleft().state = None
        train_step(self.state, 1e4)
        self.state.step += 1


GOING = deque()
RUNS = {}


def run_of(made, level, model='tiny', world='countdown'):
    "The run of a recipe; recipes that differ in name alone share one."
    settings = (str(getattr(made, field)) for field in STAGE_FIELDS + LOOP_FIELDS)
    key = (world, model, level, *settings)
    if key not in RUNS:
        RUNS[key] = Weights(made, level, model, world)
    return RUNS[key]


def made_small(made):
    "The recipe with 32 rows a step, in wide groups if it is about those; four mini-batches if it has several."
    group = 16 if made.group > 16 else 8
    return made.but(
        prompts=32 // group, group=group, minibatch=8 if made.minibatch else None, micro=None
    )


def made_tiny(made):
    "The recipe with eight rows a step, for what acts late."
    return made.but(prompts=2, group=4, minibatch=4 if made.minibatch else None, micro=None)


def distance(mine, other, steps, *, resize=made_small, level='easy', **where):
    """How far the weights are apart, as a share of the way that they have come.

    where: model and world."""
    runs = [run_of(resize(made), level, **where) for made in (mine, other)]
    a, b = (run.at(steps) for run in runs)
    assert all(any(run.informative[:steps]) for run in runs), (
        "no group has both rewards: nothing could differ"
    )
    come = max(float((x - runs[0].after[0]).norm()) for x in (a, b))
    return float((a - b).norm()) / come if come else 0.0


ELSEWHERE = dict(level='level', model='model', task='world')


def with_settings(made, changes):
    "The recipe with changes, and where it is trained, as far as that is changed, too."
    own = {field: x for field, x in changes.items() if field not in ELSEWHERE}
    where = {ELSEWHERE[field]: x for field, x in changes.items() if field in ELSEWHERE}
    return made.but(**own), where


def distance_there(key, mine, other):
    "The distance in the settings that the table `SAME` names."
    mine, where = with_settings(mine, SAME[key].acts)
    other, _ = with_settings(other, SAME[key].beside)
    return distance(mine, other, 4, **where)


def assert_acts(key, mine, other):
    if key in SAME:
        assert distance(mine, other, STEPS) < ROUNDED, (
            f"{key} differs by now: take it out of the table"
        )
        assert distance_there(key, mine, other) > DIFFERENT, (
            f"{key} is its parent even where it should not be"
        )
        return
    steps, _ = LATER.get(key, (STEPS, ''))
    resize = made_tiny if steps > 10 else made_small
    if key in OWN_SIZE:
        steps, resize = OWN_SIZE[key], lambda made: made
    model = BASES.get(key.split('.')[0], 'tiny')
    assert distance(mine, other, steps, resize=resize, model=model) > DIFFERENT, (
        f"after {steps} steps {key} is what it would be without"
    )


load_stages()
OURS = sorted(
    name for name, spec in RECIPES.items() if spec.module.startswith('rl4llm') and spec.parent
)


@pytest.mark.takes_turns
@pytest.mark.parametrize('name', OURS)
def test_a_recipe_is_not_its_parent(name):
    made = recipe(name)
    assert_acts(name, made, recipe(made.parent))


def changes():
    "Each change of a recipe that makes several; numbers of rows and the step size are no ideas."
    for name in OURS:
        made = recipe(name)
        fields = made.diff()
        for field in fields:
            if len(fields) > 1 and field not in ('prompts', 'lr', 'micro'):
                yield f'{name}.{field}'


@pytest.mark.takes_turns
@pytest.mark.parametrize('key', list(changes()))
def test_each_change_of_a_recipe_acts(key):
    name, field = key.split('.')
    made = recipe(name)
    assert_acts(key, made, made.but(**{field: made.diff()[field][0]}))


# Two recipes, neither of which is the other's parent, that are one at their own settings: why.
TWINS = {
    (
        'adactrl_gated',
        'dapo',
    ): 'the embedded base says no control tags, and is paid for none; where one does, see BASES',
    **dict.fromkeys(
        [
            ('grpo', 'hindsight_curiosity_dealt'),
            ('grpo', 'plain_curiosity'),
            ('hindsight_curiosity_dealt', 'plain_curiosity'),
        ],
        'on Countdown no tool replies, and nothing is paid; where some do, see SAME',
    ),
}


@cache
def way_of(name):
    """How far a recipe's weights have come, and every fiftieth of them.

    These few cannot be further apart than all weights are."""
    run = run_of(made_small(recipe(name)), 'easy')
    return float((run.at(STEPS) - run.after[0]).norm()), run.at(STEPS)[::50]


def may_be_one(first, second):
    "Whether two recipes are near each other in a part of the weights; if not, they are two."
    come, few = way_of(first)
    other_come, other_few = way_of(second)
    return float((few - other_few).norm()) <= DIFFERENT * max(come, other_come)


def draws_alike(first, second):
    "Whether the stored probes of two recipes have drawn the same tokens."
    pairs = zip(stored_probes()[first]['draws'], stored_probes()[second]['draws'])
    return all(a['tokens'] == b['tokens'] for a, b in pairs)


def moves_alike(first, second):
    "Whether the weights of two recipes have come the same way from the same stored rollouts."
    pairs = list(zip(stored_probes()[first]['steps'], stored_probes()[second]['steps']))
    apart = [abs(a[key] - b[key]) for a, b in pairs for key in ('size', 'direction')]
    way = max(max(a['size'], b['size']) for a, b in pairs)
    return max(apart) <= 10 * DIFFERENT * way


@pytest.mark.slow
def test_what_a_probe_does_not_tell_from_its_parent_is_trained():
    "So all are looked at in every run, though `test_a_recipe_is_not_its_parent` takes turns."
    beside = {name: RECIPES[name].parent for name in OURS}
    alike = [name for name in OURS if draws_alike(name, beside[name])]
    alike = [name for name in alike if moves_alike(name, beside[name])]
    assert 10 < len(alike) < len(OURS) / 4
    for name in alike:
        assert_acts(name, recipe(name), recipe(beside[name]))


def later_step(*names):
    return max(LATER.get(name, (STEPS,))[0] for name in names)


def one_recipe(first, second):
    "Whether two recipes are one, even where each of them should have left its parent."
    steps = later_step(first, second)
    return may_be_one(first, second) and distance(recipe(first), recipe(second), steps) <= DIFFERENT


@pytest.mark.slow
def test_no_recipe_is_another_of_its_relatives():
    pairs = [
        (first, second)
        for first, second in combinations(OURS, 2)
        if RECIPES[first].parent != second and RECIPES[second].parent != first
    ]
    siblings = [pair for pair in pairs if RECIPES[pair[0]].parent == RECIPES[pair[1]].parent]
    assert len(siblings) > 300
    suspects = [pair for pair in pairs if draws_alike(*pair) and moves_alike(*pair)]
    found = {pair for pair in suspects if one_recipe(*pair)}
    assert found == set(TWINS) and len(suspects) > 50, 'one recipe with two names'


def test_two_names_for_one_recipe_are_noticed():
    again = recipe('grpo_kl').but(name='the same under another name')
    assert distance(again, recipe('grpo_kl'), STEPS) <= DIFFERENT
    assert distance(again, recipe('dr_grpo'), STEPS) > DIFFERENT
    assert one_recipe(*next(iter(TWINS)))


def test_the_tables_name_what_there_is():
    known = {*OURS, *changes()}
    assert {*LATER, *SAME, *OWN_SIZE} <= known, {*LATER, *SAME, *OWN_SIZE} - known
    assert all(len(idle.why) > 20 for idle in SAME.values()) and all(
        len(reason) > 10 for _, reason in LATER.values()
    )


def test_a_dead_idea_is_noticed():
    dead = recipe('grpo', objective=use('ppo_clip', high=0.28))
    assert distance(dead, recipe('grpo'), STEPS) == 0
    with pytest.raises(AssertionError, match='is what it would be without'):
        assert_acts('dead', dead, recipe('grpo'))
