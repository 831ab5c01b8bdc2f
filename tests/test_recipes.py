"Every registered recipe takes a training step on the embedded model, and the tables show what it is made of."

import html, math
from functools import cache
import pytest, torch
from rl4llm.core import registry
from rl4llm.core.method_map import is_placebo, recipe_map, recipe_tree
from rl4llm.core.policy import Policy
from rl4llm.core.registry import RECIPES, STAGE_FIELDS, recipe
from rl4llm.core.method_map import recipes
from rl4llm.tasks import task
from rl4llm.training.loop import train

TABLE = recipes()
every_recipe = pytest.mark.parametrize('name', sorted(RECIPES))


SAYS = {'rlsp_unverified': 'tiny-think-v1'}  # the usual base says nothing that is paid there


@cache
def base(name='tiny'):
    return Policy.load(name)


class UntilItMoves:
    "Stop after the first step that had something to learn from (eight responses may all be right, or a buffer may have to fill first)."

    def on_step(self, state, row):
        state.stop = bool(row['updates']) and row['grad_norm'] > 0


@pytest.mark.takes_turns
@every_recipe
def test_one_step(name):
    policy = base(SAYS.get(name, 'tiny')).clone()
    before = [p.detach().clone() for p in policy.model.parameters()]
    run = train(
        policy,
        task('countdown', level='easy'),
        recipe(name, prompts=2, group=4, minibatch=None, micro=None),
        steps=15,
        seed=1,
        callbacks=[UntilItMoves()],
    )
    last = run.rows[-1]
    assert last['updates'] and math.isfinite(last['loss']) and math.isfinite(last['grad_norm']), (
        last
    )
    assert any(not torch.equal(a, b) for a, b in zip(before, policy.model.parameters())), (
        f"{name} leaves the weights alone"
    )
    assert all(p.isfinite().all() for p in policy.model.parameters())


@every_recipe
def test_the_tables_show_its_stages(name):
    r = recipe(name)
    page = html.unescape(r._repr_html_())
    for field in STAGE_FIELDS:
        assert str(getattr(r, field)) in page, f"{name} does not show its {field}"
    for field, (_, new) in r.diff().items():
        assert f"{field}: {new}" in TABLE.changes[name], (
            f"recipes() does not say that {name} changes {field}"
        )


def test_the_map_names_every_recipe_once_and_below_its_parent():
    import matplotlib

    matplotlib.use('agg')
    texts = recipe_map(placebos=True, depth=99).axes[0].texts
    at = {name: [t.get_position() for t in texts if t.get_text() == name] for name in RECIPES}
    assert all(len(spots) == 1 for spots in at.values()), {
        n: s for n, s in at.items() if len(s) != 1
    }
    for name, r in RECIPES.items():
        if r.parent:
            assert at[name][0][1] > at[r.parent][0][1] and at[name][0][0] > at[r.parent][0][0]
    assert [n for n, _ in recipe_tree()] == list(TABLE.index)
    with pytest.raises(KeyError, match='no recipe is called .no_such_recipe.; did you mean'):
        recipe_map('no_such_recipe')


def test_the_map_leaves_out_placebos_and_what_does_not_fit_and_says_so():
    import matplotlib

    matplotlib.use('agg')
    drawn = {root: recipe_map(root) for root in (None, 'grpo', 'forking_tokens')}
    for figure in drawn.values():
        assert (
            min(t.get_fontsize() for t in figure.axes[0].texts) >= 8
            and figure.get_size_inches()[1] <= 12
        )
    texts = {root: [t.get_text() for t in figure.axes[0].texts] for root, figure in drawn.items()}
    for shown in texts.values():
        named = [n for n in shown if n in RECIPES]
        assert named and not any(is_placebo(n) for n in named)
        below = [int(t) for t in shown if t.strip().startswith('+')]
        root = next(iter(named))
        assert len(named) + sum(below) == sum(not is_placebo(n) for n, _ in recipe_tree(root))
    left = {round(t.get_position()[0], 3) for t in drawn['grpo'].axes[0].texts}
    assert drawn['grpo'].get_size_inches()[1] < 6 and 'select: drop_zero_rows' not in texts['grpo']
    assert len([x for x in left if x in (0.32, 3.153, 5.987)]) == 3  # names below GRPO's, by column
    assert 'univg_shuffled' in [
        t.get_text() for t in recipe_map('univg', placebos=True).axes[0].texts
    ]


def test_the_table_is_shown_in_full():
    page = html.unescape(TABLE._repr_html_().replace('<wbr>', ''))
    for name in RECIPES:
        assert TABLE.changes[name] in page and TABLE.summary[name] in page
    assert 'grpo' in TABLE[TABLE.parent == 'rloo']._repr_html_()


@pytest.mark.parametrize(
    'written, meant',
    [
        ('REINFORCE++', 'reinforce_pp'),
        ('REINFORCE++-baseline', 'reinforce_pp_baseline'),
        ('Dr. GRPO', 'dr_grpo'),
        ('dr-grpo', 'dr_grpo'),
        ('PSR', 'positive'),
        ('W-REINFORCE', 'weighted_reinforce'),
        ('SimpleVLA-RL', 'simplevla'),
    ],
)
def test_a_name_as_papers_write_it(written, meant):
    assert recipe(written).name == meant


def test_a_sign_that_makes_another_method_is_not_dropped():
    with pytest.raises(KeyError, match='grpo'):
        recipe('GRPO+')


def registered_by(module, *args, **changes):
    "What `add_recipe` does when a module of that name calls it."
    names = {'__name__': module, 'add_recipe': registry.add_recipe}
    exec('def call(*args, **changes): return add_recipe(*args, **changes)', names)
    return names['call'](*args, **changes)


@pytest.mark.parametrize(
    'name, aliases, said',
    [
        ('dapo', (), "'dapo' is defined in .*dynamic_sampling and again in elsewhere"),
        ('my_own', ('VERL',), "'verl' of recipe 'my_own' is a name of the recipe 'rank_shaping'"),
        ('my_own', ('rloo',), "'rloo' of recipe 'my_own' is a name of the recipe 'rloo'"),
    ],
)
def test_a_name_that_is_taken_is_not_given_twice(monkeypatch, name, aliases, said):
    monkeypatch.setattr(registry, 'RECIPES', registry.RECIPES | {})
    monkeypatch.setattr(registry, '_ALIASES', dict(registry._ALIASES))
    with pytest.raises(ValueError, match=said):
        registered_by('elsewhere', name, 'reinforce', aliases=aliases)
    registered_by('__main__', 'dapo', 'reinforce')  # a notebook may try its own
