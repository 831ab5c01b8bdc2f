"""The promises that every registered stage and recipe keeps, whatever it computes. A new stage is covered by being registered;
if it needs a signal that is not known here, teach `SIGNALS` how to make one."""
import inspect, json
import pytest, torch
from rl4llm.core.registry import KINDS, RECIPES, STAGE_FIELDS, recipe, recipe_from_dict, recipes, stages
from rl4llm.core.rollouts import make_rollouts, rows_of
from rl4llm.objectives.aggregation import MODES, aggregate
from rl4llm.tasks import Item, task
from rl4llm.tasks.protocol import split_of

recipes()                                                    # loads every stage
N, T = 12, 7
DTYPES = (torch.float32, torch.float64)
SIGNALS = {'logp_ref': lambda g, dtype: -torch.rand(N, T, generator=g, dtype=dtype) * 3, 'entropy': lambda g, dtype: torch.rand(N, T, generator=g, dtype=dtype) * 2,
           'logp_behave': lambda g, dtype: -torch.rand(N, T, generator=g, dtype=dtype) * 3, 'lengths': lambda g, dtype: torch.randint(1, T + 1, (N,), generator=g),
           'mask': lambda g, dtype: LENGTHS[:, None] > torch.arange(T)}
LENGTHS = torch.tensor([7, 3, 1, 5, 2, 7, 4, 6, 1, 2, 3, 5])
GROUP = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 5, 5, 5])


def over(*kinds, where=lambda info: True):
    "Run a test for every registered stage of these kinds."
    return pytest.mark.parametrize('info', [pytest.param(i, id=i.name) for k in kinds for i in stages(k).values() if i.module.startswith('rl4llm') and where(i)])


def promises_unbiased(info): return info.unbiased and not info.needs


def fn_of(info): return info.fn() if inspect.isclass(info.fn) else info.fn


def signals(info, dtype, seed=7):
    g = torch.Generator().manual_seed(seed)
    for name in info.needs: assert name in SIGNALS, f"{info.name} needs the signal {name!r}: add it to SIGNALS in tests/test_contracts.py"
    return {name: SIGNALS[name](g, dtype) for name in info.needs}


def rewards_of(dtype=torch.float64): return torch.tensor([1, 0, 0, 1, 1, 0, 1, 0, 1, 0, 0, 1], dtype=dtype)


def batch(dtype=torch.float64, seed=0):
    "logp, logp_old, adv, mask of N rows of up to T tokens."
    g = torch.Generator().manual_seed(seed)
    logp, move, adv = (torch.randn(N, T, generator=g, dtype=dtype) for _ in range(3))
    logp = -logp.abs() - 0.05
    return logp, logp - 0.5 * move, adv, LENGTHS[:, None] > torch.arange(T)


def at(x, index): return x[index] if torch.is_tensor(x) and x.dim() and x.shape[0] == N else x


def take(d, index): return {k: at(v, index) for k, v in d.items()}


def close(a, b): return torch.allclose(a, b, rtol=0, atol=1e-10, equal_nan=True)


def raises_with(shapes, call):
    with pytest.raises(ValueError) as e: call()
    for shape in shapes: assert str(tuple(shape)) in str(e.value), f"the message should show {tuple(shape)}: {e.value}"


@over(*KINDS)
def test_stage_is_documented(info):
    assert info.kind in KINDS and (info.fn.__doc__ or '').strip(), f"{info.name} has no docstring"
    if info.parent is not None: assert info.parent in stages() and info.parent != info.name and info.changes
    if info.paper is not None: assert 0 <= info.paper < 229


# advantages

@over('advantage')
@pytest.mark.parametrize('dtype', DTYPES)
def test_advantage_shape_and_dtype(info, dtype):
    r, s = rewards_of(dtype), signals(info, dtype)
    before, adv = r.clone(), fn_of(info)(r, GROUP, **s)
    assert adv.dtype == dtype and adv.shape in ((N,), (N, T)) and adv.isfinite().all() and not adv.requires_grad
    assert torch.equal(r, before), "rewards were changed in place"
    assert torch.equal(adv, fn_of(info)(r, GROUP, **s))


@over('advantage')
def test_advantage_row_order_and_group_names(info):
    r, s, perm = rewards_of(), signals(info, torch.float64), torch.randperm(N, generator=torch.Generator().manual_seed(1))
    adv = fn_of(info)(r, GROUP, **s)
    assert close(fn_of(info)(r[perm], GROUP[perm], **take(s, perm)), adv[perm])
    assert close(fn_of(info)(r, 100 - 7 * GROUP, **s), adv)


@over('advantage')
def test_advantage_unscored_rows_have_no_share(info):
    r, s, gone = rewards_of(), signals(info, torch.float64), torch.tensor([2, 6, 11])
    r[gone] = float('nan')
    stay = ~r.isnan()
    adv = fn_of(info)(r, GROUP, **s)
    assert (adv[gone] == 0).all()
    if not any(k for k in s if s[k].dim() == 2): assert close(adv[stay], fn_of(info)(r[stay], GROUP[stay], **take(s, stay)))


@over('advantage')
@pytest.mark.parametrize('value', [0., 1., 0.1, -3., 1e6])
def test_advantage_equal_rewards(info, value):
    s = signals(info, torch.float32)
    adv = fn_of(info)(torch.full((N,), value), GROUP, **s)
    alone = fn_of(info)(torch.full((N,), value), torch.zeros_like(GROUP), **s)
    assert adv.isfinite().all() and alone.isfinite().all()


@over('advantage')
def test_advantage_everything_unscored(info):
    adv = fn_of(info)(torch.full((N,), float('nan')), GROUP, **signals(info, torch.float32))
    assert (adv == 0).all()


@over('advantage')
def test_advantage_group_of_one(info):
    r, group, s = rewards_of(), torch.arange(N), signals(info, torch.float64)
    try: assert fn_of(info)(r, group, **s).isfinite().all()
    except ValueError as e: assert 'group' in str(e)


@over('advantage')
def test_advantage_refuses_bad_input(info):
    r, s = rewards_of(), signals(info, torch.float64)
    raises_with([(N,), (N - 1,)], lambda: fn_of(info)(r, GROUP[:-1], **s))
    raises_with([(1,), (N,)], lambda: fn_of(info)(r[:1], GROUP, **s))
    with pytest.raises(ValueError, match='infinite'): fn_of(info)(r.where(r > 0, torch.inf), GROUP, **s)


@over('advantage', where=promises_unbiased)
def test_advantage_unbiased_where_promised(info):
    from rl4llm.oracle.estimators import check
    from rl4llm.oracle.tabular import TokenTree, random_logits, tree_rewards
    tree = TokenTree(vocab=3, length=2)
    assert check(info.fn, tree, random_logits(tree, seed=0), tree_rewards(tree, lambda s: sum(s) / 2), group=2).unbiased


# objectives and regularisers: losses per token

def loss_of(info, logp, logp_old, adv, mask, s):
    return fn_of(info)(logp, logp_old, adv, mask, **s) if info.kind == 'objective' else fn_of(info)(logp, mask, **s)


def gradient_of(info, logp, *rest):
    "Loss, and gradient of its sum in logp and in the first signal (an entropy is differentiable as well)."
    logp, s = logp.detach().clone().requires_grad_(), {k: v.detach().clone().requires_grad_() if torch.is_floating_point(v) else v for k, v in rest[-1].items()}
    loss = loss_of(info, logp, *rest[:-1], s)
    wanted = [logp] + [v for v in s.values() if v.requires_grad]
    return loss.detach(), torch.autograd.grad(loss.sum(), wanted, allow_unused=True, materialize_grads=True)


losses = over('objective', 'regulariser')


@losses
@pytest.mark.parametrize('dtype', DTYPES)
def test_loss_shape_dtype_gradient(info, dtype):
    *x, mask = batch(dtype)
    loss, grads = gradient_of(info, *x, mask, signals(info, dtype))
    assert loss.shape == (N, T) and loss.dtype == dtype and loss.isfinite().all() and (loss[~mask] == 0).all()
    assert all(g.isfinite().all() and (g[~mask] == 0).all() for g in grads if g.shape == mask.shape)
    assert any((g != 0).any() for g in grads), f"{info.name} has no gradient at all"
    assert torch.equal(loss, gradient_of(info, *x, mask, signals(info, dtype))[0])


@losses
@pytest.mark.parametrize('garbage', [float('nan'), float('inf'), -float('inf'), 1e30])
def test_loss_ignores_what_is_outside_the_mask(info, garbage):
    *x, mask = batch()
    s = signals(info, torch.float64)
    spoil = lambda v: v.masked_fill(~mask, garbage) if v.shape == mask.shape and torch.is_floating_point(v) else v
    loss, grads = gradient_of(info, *x, mask, s)
    dirty, dirty_grads = gradient_of(info, *map(spoil, x), mask, {k: spoil(v) for k, v in s.items()})
    assert torch.equal(loss, dirty) and all(torch.equal(a, b) for a, b in zip(grads, dirty_grads))


@losses
def test_loss_padding_and_row_order(info):
    *x, mask = batch()
    s, perm = signals(info, torch.float64), torch.randperm(N, generator=torch.Generator().manual_seed(2))
    loss = loss_of(info, *x, mask, s)
    pad = lambda v: torch.nn.functional.pad(v, (0, 3)) if v.dim() == 2 else v
    assert close(loss_of(info, *map(pad, x), pad(mask), {k: pad(v) for k, v in s.items()}), pad(loss))
    assert close(loss_of(info, *(v[perm] for v in x), mask[perm], take(s, perm)), loss[perm])


@losses
def test_loss_finite_on_extremes(info):
    logp, logp_old, adv, mask = batch(torch.float32)
    for new, old in ((-1e4, -1e-6), (-1e-6, -1e4), (-1e4, -1e4), (0., 0.)):
        s = {k: torch.full_like(logp, old) if k.startswith('logp') else v for k, v in signals(info, torch.float32).items()}
        loss, grads = gradient_of(info, torch.full_like(logp, new), torch.full_like(logp, old), adv, mask, s)
        assert loss.isfinite().all() and all(g.isfinite().all() for g in grads)


@losses
def test_loss_of_nothing(info):
    *x, mask = batch()
    loss, grads = gradient_of(info, *x, torch.zeros_like(mask), signals(info, torch.float64))
    assert (loss == 0).all() and all((g == 0).all() for g in grads)


@losses
@pytest.mark.parametrize('mode', MODES)
def test_loss_micro_batches_add_up(info, mode):
    logp, *x, mask = batch()
    s, cuts = signals(info, torch.float64), (0, 3, 7, 9, N) if info.keep_whole else (0, 1, 5, 6, N)      # groups are whole in the first
    whole, parts = logp.clone().requires_grad_(), logp.clone().requires_grad_()
    at_once = aggregate(loss_of(info, whole, *x, mask, s), mask, mode)
    pieces = [aggregate(loss_of(info, parts[c], *(v[c] for v in x), mask[c], take(s, c)), mask[c], mode, whole=mask) for c in map(slice, cuts[:-1], cuts[1:])]
    grads = [torch.autograd.grad(total, z, allow_unused=True, materialize_grads=True)[0] if total.requires_grad else torch.zeros_like(z) for total, z in ((at_once, whole), (sum(pieces), parts))]
    assert close(at_once, sum(pieces)) and close(*grads)


@losses
def test_loss_refuses_wrong_shapes(info):
    logp, logp_old, adv, mask = batch()
    s = signals(info, torch.float64)
    raises_with([(N, T), (N, T - 1)], lambda: loss_of(info, logp[:, :-1], logp_old[:, :-1], adv[:, :-1], mask, s))
    if info.kind == 'objective': raises_with([(N, T), (N,)], lambda: loss_of(info, logp, logp_old, adv[:, 0], mask, s))
    for name in s: raises_with([(N, T), (N - 1, T)], lambda: loss_of(info, logp, logp_old, adv, mask, {**s, name: s[name][:-1]}))


@losses
def test_loss_reports_unknown_numbers(info):
    "A nan on a token that carries loss is an error that names the input, unless the stage does not read that input."
    logp, logp_old, adv, mask = batch()
    inputs = {'logp': logp, 'logp_old': logp_old, 'adv': adv, **signals(info, torch.float64)}
    clean = loss_of(info, logp, logp_old, adv, mask, signals(info, torch.float64))
    for name in inputs:
        spoilt = {k: v.clone() for k, v in inputs.items()}
        spoilt[name][3, 1] = float('nan')
        *x, s = *(spoilt.pop(k) for k in ('logp', 'logp_old', 'adv')), spoilt
        try: assert torch.equal(loss_of(info, *x, mask, s), clean), f"{info.name} lets a nan in {name} through"
        except ValueError as e: assert name in str(e) and 'row 3' in str(e)


@over('regulariser')
def test_regulariser_off(info):
    *x, mask = batch()
    assert (fn_of(info)(x[0], mask, **signals(info, torch.float64), coef=0.) == 0).all()


@over('objective', where=promises_unbiased)
def test_objective_unbiased_where_promised(info):
    from rl4llm.oracle.estimators import check
    from rl4llm.oracle.tabular import TokenTree, random_logits, tree_rewards
    tree = TokenTree(vocab=3, length=2)
    assert check(lambda r, g: r, tree, random_logits(tree, seed=0), tree_rewards(tree, lambda s: sum(s) / 2), group=2, objective=info.fn).unbiased


# select

def some_rollouts(dtype=torch.float32):
    mask = LENGTHS[:, None] > torch.arange(T)
    ids = torch.ones(6, 2, dtype=torch.long)
    return make_rollouts(prompt_ids=ids, prompt_mask=ids.bool(), tokens=mask.long(), prompt=GROUP, mask=mask, rewards=rewards_of(dtype),
                         loss_weight=torch.ones(N, T, dtype=dtype), logp_behave=-torch.ones(N, T, dtype=dtype))


@over('select')
@pytest.mark.parametrize('dtype', DTYPES)
def test_select(info, dtype):
    r, adv = some_rollouts(dtype), batch(dtype)[2]
    adv[[1, 4]] = 0
    weight, keep = fn_of(info)(r, adv)
    assert weight.shape == (N, T) and weight.dtype == dtype and weight.isfinite().all() and (weight >= 0).all()
    assert keep.shape == (N,) and keep.dtype == torch.bool
    again = fn_of(info)(r, adv.masked_fill(~r.mask, float('nan')))
    assert torch.equal(keep, again[1]) and torch.equal(weight[r.mask], again[0][r.mask])


@over('select')
def test_select_row_order_and_shapes(info):
    r, adv, perm = some_rollouts(), batch(torch.float32)[2], torch.randperm(N, generator=torch.Generator().manual_seed(3))
    weight, keep = fn_of(info)(r, adv)
    moved = fn_of(info)(rows_of(r, perm), adv[perm])
    assert torch.equal(moved[0], weight[perm]) and torch.equal(moved[1], keep[perm])
    raises_with([(N, T), (N,)], lambda: fn_of(info)(r, adv[:, 0]))
    empty = fn_of(info)(r, torch.zeros(N, T))
    assert empty[0].isfinite().all()


# aggregate

modes = pytest.mark.parametrize('mode', MODES)


@modes
@pytest.mark.parametrize('dtype', DTYPES)
def test_aggregate_scalar(mode, dtype):
    loss, _, _, mask = batch(dtype)
    total = aggregate(loss, mask, mode)
    assert total.shape == () and total.dtype == dtype
    assert torch.equal(total, aggregate(loss.masked_fill(~mask, float('nan')), mask, mode))


@modes
def test_aggregate_invariances(mode):
    loss, _, _, mask = batch()
    perm, pad = torch.randperm(N, generator=torch.Generator().manual_seed(4)), lambda v: torch.nn.functional.pad(v, (0, 2))
    total = aggregate(loss, mask, mode, length=T)
    assert close(aggregate(loss[perm], mask[perm], mode, length=T), total) and close(aggregate(pad(loss), pad(mask), mode, length=T), total)
    more, nothing = torch.cat([loss, loss[:2]]), torch.cat([mask, torch.zeros_like(mask[:2])])
    assert close(aggregate(more, nothing, mode, length=T), total), "a row without tokens has a share"
    assert close(sum(aggregate(loss[i:i + 5], mask[i:i + 5], mode, length=T, whole=mask) for i in range(0, N, 5)), total)


@modes
def test_aggregate_of_nothing_is_zero_and_differentiable(mode):
    loss = torch.randn(3, 4).requires_grad_()
    total = aggregate(loss, torch.zeros(3, 4, dtype=torch.bool), mode)
    assert total == 0 and (torch.autograd.grad(total, loss)[0] == 0).all()


def test_aggregate_refuses_bad_input():
    loss, _, _, mask = batch()
    raises_with([(N, T), (N, T - 1)], lambda: aggregate(loss, mask[:, :-1]))
    with pytest.raises(ValueError, match='token-mean'): aggregate(loss, mask, 'tokenmean')
    with pytest.raises(ValueError, match='length'): aggregate(loss, mask, 'seq-mean-token-sum-norm', length=0)


@over('aggregate')
def test_aggregate_is_linear(info):
    a, b, _, mask = batch()
    assert close(info.fn(2 * a - b, mask), 2 * info.fn(a, mask) - info.fn(b, mask))


# rewards

def is_text_reward(info): return {'prompts', 'completions'} <= set(inspect.signature(info.fn.__call__ if inspect.isclass(info.fn) else info.fn).parameters)


text_rewards = over('reward', where=is_text_reward)


def questions(n=4):
    countdown = task('countdown')
    items = countdown.sample(n, seed=5)
    texts = [countdown.demonstrate(i, seed=1) for i in items[:2]] + ['', '1 + 1 = 3 ; <answer>' + 'x' * 50]
    return [countdown.prompt(i) for i in items], texts, items


@text_rewards
def test_reward_contract(info):
    prompts, texts, items = questions()
    values = fn_of(info)(prompts, texts, item=items)
    assert isinstance(values, list) and len(values) == len(texts) and all(v is None or isinstance(v, float) and abs(v) < 1e6 for v in values)
    assert values == fn_of(info)(prompts, texts, item=items), "not deterministic"
    assert values == fn_of(info)(prompts, texts, item=items, completion_ids=[[1]] * 4, trainer_state=None), "other columns must be ignored"
    assert values == fn_of(info)(prompts, [[{'role': 'assistant', 'content': t}] for t in texts], item=items), "chat messages are scored differently"
    order = [2, 0, 3, 1]
    assert [values[i] for i in order] == fn_of(info)([prompts[i] for i in order], [texts[i] for i in order], item=[items[i] for i in order])


@text_rewards
def test_reward_without_item_is_none(info):
    assert fn_of(info)(['?'] * 2, ['1', '2'], item=[None, None]) == [None, None]
    with pytest.raises(ValueError): fn_of(info)(['?'] * 2, ['1', '2'], item=[None])


@pytest.mark.parametrize('text', ['', ' ', '<answer>', '</answer><answer>', 'a' * 100_000, '1 / 0 = 1', '٣ + 1 = 4', '\x00'])
@text_rewards
def test_reward_survives_any_text(info, text):
    _, _, items = questions(1)
    assert fn_of(info)([''], [text], item=items)[0] in (None, 0.0) or info.name != 'correct'


def test_score_is_a_border():
    from rl4llm.rewards import score
    assert score(lambda p, c: [1, None], ['', ''], ['', '']).isnan().tolist() == [False, True]
    for bad in ([1.], [1., float('nan')], [1., float('inf')]):
        with pytest.raises(ValueError): score(lambda p, c: bad, ['', ''], ['', ''])


# curricula

@over('curriculum')
def test_curriculum(info):
    countdown = task('countdown')
    made, twin = info.fn(countdown), info.fn(countdown)
    first = made.sample(6, seed=3)
    assert len(first) == 6 and all(isinstance(i, Item) for i in first) and first == twin.sample(6, seed=3) != twin.sample(6, seed=4)
    assert {split_of(i.key) for i in first} == {'train'}
    made.update({'step': 1, 'items': tuple(first), 'rewards': [0., 1.] * 3})
    twin.load_state_dict(json.loads(json.dumps(made.state_dict())))
    assert made.sample(6, seed=9) == twin.sample(6, seed=9)


# recipes

every_recipe = pytest.mark.parametrize('name', sorted(RECIPES))
KIND_OF = {'regularisers': 'regulariser'}


@every_recipe
def test_recipe_stages_resolve(name):
    r = recipe(name)
    for field in STAGE_FIELDS:
        for use in (getattr(r, field) if field == 'regularisers' else (getattr(r, field),)):
            assert use.info.kind == KIND_OF.get(field, field), f"{name}: {use} is no {field}"
            known = inspect.signature(use.info.fn).parameters
            assert all(k in known or any(p.kind is p.VAR_KEYWORD for p in known.values()) for k in dict(use.knobs))


@every_recipe
def test_recipe_round_trip(name):
    r = recipe(name)
    back = recipe_from_dict(json.loads(json.dumps(r.to_dict())))
    assert back == r and back.fingerprint() == r.fingerprint() and not r.diff(back)


@every_recipe
def test_recipe_differs_from_its_parent(name):
    r, seen = recipe(name), {name}
    if r.parent is not None: assert r.diff(), f"{name} is the same as {r.parent}"
    assert r.summary
    while r.parent is not None:
        r = recipe(r.parent)
        assert r.name not in seen, f"{name} is its own ancestor"
        seen.add(r.name)


def test_recipes_are_all_different():
    prints = {}
    for name in RECIPES: prints.setdefault(recipe(name).fingerprint(), []).append(name)
    assert all(len(names) == 1 for names in prints.values()), [n for n in prints.values() if len(n) > 1]


def test_the_classic_recipes_are_there():
    assert {'reinforce', 'rloo', 'grpo', 'dr_grpo', 'positive', 'negative', 'weighted_reinforce'} <= set(RECIPES)
