"""The promises that every registered stage and recipe keeps, whatever it computes. A new stage is covered by being registered;
if it asks for a signal that is not known here, teach `signal` how to make one."""

import collections, dataclasses, inspect, json, zlib
from decimal import Decimal
from fractions import Fraction
from functools import cache, partial
from types import SimpleNamespace
import numpy as np
import pandas as pd
import pytest, torch
from safetensors.torch import load, save
from rl4llm.core.numerics import STATISTICS
from rl4llm.core.policy import Policy, decode, encode_prompts
from rl4llm.core.registry import (
    KINDS,
    RECIPES,
    STAGE_FIELDS,
    Recipe,
    recipe,
    recipe_from_dict,
    stages,
    use,
)
from rl4llm.core.method_map import recipes
from rl4llm.core.pipeline import Batch, advantages, build_stages, select_rows, token_loss
from rl4llm.core.ready_stages import ReadyStage, ready
from rl4llm.core.reward_calls import call_reward
from rl4llm.core.rollouts import ORIGINS, check_drawn, check_problems, make_rollouts, rows_of
from rl4llm.objectives.aggregation import MODES, aggregate
from rl4llm.oracle.estimators import check, tree_has
from rl4llm.oracle.tabular import TokenTree, random_logits, tree_rewards
from rl4llm.tasks import Item, task
from rl4llm.tasks.protocol import split_of
from rl4llm.tasks.vocabulary import tiny_tokenizer
from rl4llm.training.checkpoints import pack_stages, unpack_stages
from rl4llm.core.signals import SIGNALS, score, scored, source_of, whose

recipes()  # loads every stage
N, T, D = 12, 7, 32
DTYPES = (torch.float32, torch.float64)
LENGTHS = torch.tensor([7, 3, 1, 5, 2, 7, 4, 6, 1, 2, 3, 5])
MASK = LENGTHS[:, None] > torch.arange(T)
for _row, _token in ((0, 2), (0, 3), (5, 1), (7, 4), (11, 0)):
    MASK[_row, _token] = False  # what a tool said, inside a response
GROUP = torch.tensor(
    [0, 1, 0, 2, 1, 5, 1, 0, 5, 2, 1, 5]
)  # rows of a group do not follow each other
ORIGIN = torch.tensor(
    [0, 0, 1, 0, 0, 0, 2, 0, 0, 3, 0, 0]
)  # a teacher's, a replayed and a hinted row


def over(*kinds, where=lambda info: True):
    "Run a test for every registered stage of these kinds."
    return pytest.mark.parametrize(
        'info',
        [
            pytest.param(i, id=i.name)
            for k in kinds
            for i in stages(k).values()
            if i.module.startswith('rl4llm') and where(i)
        ],
    )


def promises_unbiased(info):
    return info.unbiased and all(tree_has(n) for n in info.needs)


def has_memory(info):
    return inspect.isclass(info.fn) and hasattr(info.fn, 'state_dict')


def fn_of(info):
    return info.fn() if inspect.isclass(info.fn) else info.fn


# a world for stages that look around: rollouts, a policy, and every signal


@cache
def small_policy():
    "A random Llama over the project's vocabulary."
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=D,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Policy(LlamaForCausalLM(config).eval(), tiny_tokenizer(), 'small', 'compact')


@cache
def problems():
    "Six problems whose prompts are not all equally long."
    return tuple(
        task('countdown', level='easy').sample(2, seed=5) + task('countdown').sample(4, seed=5)
    )


@cache
def in_pairs():
    "The six problems, marked as three pairs, one of them with the easy one first: what knows of pairs is tested on pairs."
    from rl4llm.advantages.pairs import marked

    return tuple(marked(problem, i // 2, i in (0, 3, 4)) for i, problem in enumerate(problems()))


def noise(name, seed):
    "A generator of its own for every name, so that one signal does not depend on which others are asked for."
    return torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)


def rewards_of(dtype=torch.float64):
    return torch.tensor([1, 0, 0, 1, 1, 0, 1, 0, 1, 0, 0, 1], dtype=dtype)


def some_rollouts(dtype=torch.float32, *, rewards=None, group=GROUP, seed=7, **fields):
    "Rollouts of N rows of up to T tokens for six problems, two of three rows finished."
    policy, g, last = (
        small_policy(),
        noise('rollouts', seed),
        torch.arange(T) == LENGTHS[:, None] - 1,
    )
    finished, rewards = torch.arange(N) % 3 > 0, rewards_of(dtype) if rewards is None else rewards
    words = torch.randint(3, 250, (N, T), generator=g).masked_fill(
        last & finished[:, None], policy.eos
    )
    tokens = words.masked_fill(~MASK, policy.pad)
    ids, seen = encode_prompts(policy, problems())
    logp = lambda: -torch.rand(N, T, generator=g, dtype=dtype).mul(3).masked_fill(~MASK, 0)
    return make_rollouts(
        prompt_ids=ids,
        prompt_mask=seen,
        tokens=tokens,
        prompt=GROUP,
        group=group,
        mask=MASK,
        finished=finished,
        rewards=rewards,
        components=dict(correct=rewards),
        logp_behave=logp(),
        logp_old=logp(),
        loss_weight=torch.ones(N, T, dtype=dtype),
        seg=torch.where(MASK, torch.arange(T) // 2, -1),
        origin=ORIGIN,
        sampled=MASK & (ORIGIN == 0)[:, None],
        items=in_pairs(),
        texts=decode(policy, tokens, MASK),
        **fields,
    )


def of_statistic(name, r, dtype, seed):
    "A token statistic of random logits, 0 outside the mask."
    logits = torch.randn(int(MASK.sum()), 256, generator=noise(name, seed), dtype=dtype)
    values = STATISTICS[whose(name)[1]](logits, r.tokens[MASK])
    return torch.zeros(N, T, *values.shape[1:], dtype=dtype).index_put((MASK,), values)


def signal(name, r, dtype, seed):
    "One signal as the loop would hand it to a stage beside the rollouts `r`."
    if source_of(name) is None:
        raise AssertionError(f"the loop does not compute the signal {name!r}")
    normal = lambda *shape: torch.randn(*shape, generator=noise(name, seed), dtype=dtype)
    known = dict(
        rollouts=lambda: r,
        policy=small_policy,
        task=lambda: task('countdown'),
        lengths=lambda: r.mask.sum(1),
        adv=lambda: normal(N, T),
        logp_ref=lambda: -normal(N, T).abs() * MASK,
        old_hidden=lambda: normal(N, T, D) * MASK[..., None],
        greedy_rewards=lambda: (r.prompt % 2).to(dtype),
    )
    if name in known:
        return known[name]()
    return getattr(r, name) if hasattr(r, name) else of_statistic(name, r, dtype, seed)


def signals(info, dtype, *, rewards=None, group=GROUP, seed=7, adv=None):
    "What a stage asked for, and rollouts that hold the same."
    r = some_rollouts(dtype, rewards=rewards, group=group, seed=seed)
    found = {name: signal(name, r, dtype, seed) for name in info.needs}
    if 'adv' in found and adv is not None:
        found['adv'] = adv
    if 'rollouts' in found:
        found['rollouts'] = dataclasses.replace(
            r,
            logp_ref=found.get('logp_ref'),
            signals={
                k: v
                for k, v in found.items()
                if source_of(k) == 'before' and k not in ('logp_old', 'logp_ref')
            },
        )
    return found


def batch(dtype=torch.float64, seed=0):
    "logp, logp_old, adv, mask of N rows of up to T tokens."
    g = torch.Generator().manual_seed(seed)
    logp, move, adv = (torch.randn(N, T, generator=g, dtype=dtype) for _ in range(3))
    logp = -logp.abs() - 0.05
    return logp, logp - 0.5 * move, adv, MASK.clone()


def is_rollouts(x):
    return hasattr(x, 'prompt_ids')


def at(x, index):
    "The rows `index` of a tensor with N rows or of rollouts; anything else as it is."
    if is_rollouts(x):
        return rows_of(x, torch.arange(N)[index])
    return x[index] if torch.is_tensor(x) and x.dim() and x.shape[0] == N else x


def take(d, index):
    return {k: at(v, index) for k, v in d.items()}


def by_token(f, x, everything=True):
    "`f` of a tensor that has a value for every row and token, or of those of rollouts (with `everything`, integers and masks as well)."
    if not is_rollouts(x):
        return f(x) if torch.is_tensor(x) and x.shape[:2] == (N, T) else x
    own = {k.name: getattr(x, k.name) for k in dataclasses.fields(x)}
    new = {
        k: f(v)
        for k, v in own.items()
        if torch.is_tensor(v)
        and v.shape[:2] == (N, T)
        and (everything or v.is_floating_point() and k != 'loss_weight')
    }
    return dataclasses.replace(x, signals={k: by_token(f, v) for k, v in x.signals.items()}, **new)


def padded(x, by=3):
    return by_token(lambda v: torch.cat([v, v.new_zeros(N, by, *v.shape[2:])], 1), x)


def close(a, b):
    return torch.allclose(a, b, rtol=0, atol=1e-10, equal_nan=True)


def raises_with(shapes, call):
    with pytest.raises(ValueError) as e:
        call()
    for shape in shapes:
        shown = (
            str(tuple(shape)) if len(shape) > 1 else f"({shape[0]},"
        )  # rows may be shown with their tokens
        assert shown in str(e.value), f"the message should show {tuple(shape)}: {e.value}"


@over(*KINDS)
def test_stage_is_documented(info):
    assert info.kind in KINDS and (info.fn.__doc__ or '').strip(), f"{info.name} has no docstring"
    if info.parent is not None:
        assert info.parent in stages() and info.parent != info.name and info.changes
    if info.paper is not None:
        assert 0 <= info.paper < 229


# advantages


def advantage_of(info, rewards, group=GROUP):
    return fn_of(info)(rewards, group, **signals(info, rewards.dtype, rewards=rewards, group=group))


@over('advantage')
@pytest.mark.parametrize('dtype', DTYPES)
def test_advantage_shape_and_dtype(info, dtype):
    r, s = rewards_of(dtype), signals(info, dtype)
    before, adv = r.clone(), fn_of(info)(r, GROUP, **s)
    assert (
        adv.dtype == dtype
        and adv.shape in ((N,), (N, T))
        and adv.isfinite().all()
        and not adv.requires_grad
    )
    assert torch.equal(r, before), "rewards were changed in place"
    assert torch.equal(adv, fn_of(info)(r, GROUP, **s))


@over('advantage')
def test_advantage_row_order_and_group_names(info):
    r, s, perm = (
        rewards_of(),
        signals(info, torch.float64),
        torch.randperm(N, generator=torch.Generator().manual_seed(1)),
    )
    adv = fn_of(info)(r, GROUP, **s)
    assert close(fn_of(info)(r[perm], GROUP[perm], **take(s, perm)), adv[perm])
    assert close(advantage_of(info, r, 100 - 7 * GROUP), adv)


@over('advantage')
def test_advantage_unscored_rows_have_no_share(info):
    r, gone = rewards_of(), torch.tensor([2, 6, 11])
    r[gone] = float('nan')
    s, stay = signals(info, torch.float64, rewards=r), ~r.isnan()
    adv = fn_of(info)(r, GROUP, **s)
    assert (adv[gone] == 0).all() and close(
        adv[stay], fn_of(info)(r[stay], GROUP[stay], **take(s, stay))
    )


OF_VERDICTS = ('dense_grpo', 'tp_grpo')  # they refuse rewards outside [0, 1]


@over('advantage')
@pytest.mark.parametrize('value', [0.0, 1.0, 0.1, -3.0, 1e6])
def test_advantage_equal_rewards(info, value):
    r = torch.full((N,), value)
    if info.name in OF_VERDICTS and not 0 <= value <= 1:
        with pytest.raises(ValueError, match='wanted 0 to 1'):
            advantage_of(info, r)
        return
    assert (
        advantage_of(info, r).isfinite().all()
        and advantage_of(info, r, torch.zeros_like(GROUP)).isfinite().all()
    )


@over('advantage')
def test_advantage_everything_unscored(info):
    assert (advantage_of(info, torch.full((N,), float('nan'))) == 0).all()


@over('advantage')
def test_advantage_group_of_one(info):
    try:
        assert advantage_of(info, rewards_of(), torch.arange(N)).isfinite().all()
    except ValueError as e:
        assert 'group' in str(e)


@over('advantage')
def test_advantage_refuses_bad_input(info):
    r, s = rewards_of(), signals(info, torch.float64)
    raises_with([(N,), (N - 1,)], lambda: fn_of(info)(r, GROUP[:-1], **s))
    raises_with([(1,), (N,)], lambda: fn_of(info)(r[:1], GROUP, **s))
    with pytest.raises(ValueError, match='infinite'):
        fn_of(info)(r.where(r > 0, torch.inf), GROUP, **s)


TREE = TokenTree(vocab=3, length=2)
GRADED = tree_rewards(TREE, lambda s: sum(s) / 2)


def checked(advantage, **stages_):
    return check(
        advantage,
        TREE,
        random_logits(TREE, seed=0),
        GRADED,
        group=2,
        ref=random_logits(TREE, seed=1),
        **stages_,
    )


@over('advantage', where=promises_unbiased)
def test_advantage_unbiased_where_promised(info):
    assert checked(fn_of(info)).unbiased


# objectives and regularisers: losses per token


def loss_of(info, logp, logp_old, adv, mask, s):
    return (
        fn_of(info)(logp, logp_old, adv, mask, **s)
        if info.kind == 'objective'
        else fn_of(info)(logp, mask, **s)
    )


def gradient_of(info, logp, *rest):
    "Loss, and gradient of its sum in logp and in the live signals (an entropy is differentiable as well)."
    logp, s = (
        logp.detach().clone().requires_grad_(),
        {
            k: v.detach().clone().requires_grad_() if source_of(k) == 'live' else v
            for k, v in rest[-1].items()
        },
    )
    loss = loss_of(info, logp, *rest[:-1], s)
    wanted = [logp] + [v for k, v in s.items() if source_of(k) == 'live']
    return loss.detach(), torch.autograd.grad(
        loss.sum(), wanted, allow_unused=True, materialize_grads=True
    )


losses = over('objective', 'regulariser')


@losses
@pytest.mark.parametrize('dtype', DTYPES)
def test_loss_shape_dtype_gradient(info, dtype):
    *x, mask = batch(dtype)
    s = signals(info, dtype)
    loss, grads = gradient_of(info, *x, mask, s)
    assert (
        loss.shape == (N, T)
        and loss.dtype == dtype
        and loss.isfinite().all()
        and (loss[~mask] == 0).all()
    )
    assert all(
        g.isfinite().all() and (g[~mask] == 0).all() for g in grads if g.shape[:2] == mask.shape
    )
    assert any((g != 0).any() for g in grads), f"{info.name} has no gradient at all"
    assert torch.equal(loss, gradient_of(info, *x, mask, s)[0])


@losses
@pytest.mark.parametrize('garbage', [float('nan'), float('inf'), -float('inf'), 1e30])
def test_loss_ignores_what_is_outside_the_mask(info, garbage):
    *x, mask = batch()
    s = signals(info, torch.float64)
    over_padding = lambda v: (
        v.masked_fill(~mask.view(N, T, *[1] * (v.dim() - 2)), garbage)
        if v.is_floating_point()
        else v
    )
    spoil = lambda v: by_token(over_padding, v, everything=False)
    loss, grads = gradient_of(info, *x, mask, s)
    dirty, dirty_grads = gradient_of(
        info, *map(spoil, x), mask, {k: spoil(v) for k, v in s.items()}
    )
    assert torch.equal(loss, dirty) and all(torch.equal(a, b) for a, b in zip(grads, dirty_grads))


@losses
def test_loss_padding_and_row_order(info):
    *x, mask = batch()
    s, perm = (
        signals(info, torch.float64),
        torch.randperm(N, generator=torch.Generator().manual_seed(2)),
    )
    loss = loss_of(info, *x, mask, s)
    assert close(
        loss_of(info, *map(padded, x), padded(mask), {k: padded(v) for k, v in s.items()}),
        padded(loss),
    )
    assert close(loss_of(info, *(v[perm] for v in x), mask[perm], take(s, perm)), loss[perm])


@losses
def test_loss_finite_on_extremes(info):
    logp, logp_old, adv, mask = batch(torch.float32)
    for new, old in ((-1e4, -1e-6), (-1e-6, -1e4), (-1e4, -1e4), (0.0, 0.0)):
        s = {
            k: torch.full_like(logp, old) if k.startswith('logp') or k.endswith('_logp') else v
            for k, v in signals(info, torch.float32).items()
        }
        loss, grads = gradient_of(
            info, torch.full_like(logp, new), torch.full_like(logp, old), adv, mask, s
        )
        assert loss.isfinite().all() and all(g.isfinite().all() for g in grads)


@losses
def test_loss_of_nothing(info):
    *x, mask = batch()
    loss, grads = gradient_of(info, *x, torch.zeros_like(mask), signals(info, torch.float64))
    assert (loss == 0).all() and all((g == 0).all() for g in grads)


CUTS = {
    None: [torch.arange(N)[a:b] for a, b in ((0, 1), (1, 5), (5, 6), (6, N))],
    'group': [(GROUP == g).nonzero()[:, 0] for g in GROUP.unique()],
    'batch': [torch.arange(N)],
}


@losses
@pytest.mark.parametrize('mode', MODES)
def test_loss_micro_batches_add_up(info, mode):
    logp, *x, mask = batch()
    s, cuts = signals(info, torch.float64), CUTS[info.keep_whole]
    whole, parts = logp.clone().requires_grad_(), logp.clone().requires_grad_()
    at_once = aggregate(loss_of(info, whole, *x, mask, s), mask, mode)
    pieces = [
        aggregate(
            loss_of(info, parts[c], *(v[c] for v in x), mask[c], take(s, c)),
            mask[c],
            mode,
            whole=mask,
        )
        for c in cuts
    ]
    grads = [
        torch.autograd.grad(total, z, allow_unused=True, materialize_grads=True)[0]
        if total.requires_grad
        else torch.zeros_like(z)
        for total, z in ((at_once, whole), (sum(pieces), parts))
    ]
    assert close(at_once, sum(pieces)) and close(*grads)


@losses
def test_loss_refuses_wrong_shapes(info):
    logp, logp_old, adv, mask = batch()
    s = signals(info, torch.float64)
    raises_with(
        [(N, T), (N, T - 1)],
        lambda: loss_of(info, logp[:, :-1], logp_old[:, :-1], adv[:, :-1], mask, s),
    )
    if info.kind == 'objective':
        raises_with([(N, T), (N,)], lambda: loss_of(info, logp, logp_old, adv[:, 0], mask, s))
    for name, x in s.items():
        if torch.is_tensor(x):
            raises_with(
                [x.shape[:2], (N - 1, *x.shape[1:2])] if x.dim() < 3 else [x[:-1].shape],
                lambda: loss_of(info, logp, logp_old, adv, mask, {**s, name: x[:-1]}),
            )


@losses
def test_loss_reports_unknown_numbers(info):
    "A nan on a token that carries loss is an error that names the input, unless the stage does not read that input."
    *x, mask = batch()
    s = signals(info, torch.float64)
    inputs, clean = {**dict(zip(('logp', 'logp_old', 'adv'), x)), **s}, loss_of(info, *x, mask, s)
    for name, v in inputs.items():
        if not (torch.is_tensor(v) and v.is_floating_point() and v.shape[:2] == (N, T)):
            continue
        spoilt = {**inputs, name: v.clone()}
        spoilt[name][3, 1] = float('nan')
        try:
            assert torch.equal(
                loss_of(
                    info,
                    *(spoilt[k] for k in ('logp', 'logp_old', 'adv')),
                    mask,
                    {k: spoilt[k] for k in s},
                ),
                clean,
            ), f"{info.name} lets a nan in {name} through"
        except ValueError as e:
            assert name in str(e) and 'row 3' in str(e)


@over('regulariser')
def test_regulariser_off(info):
    *x, mask = batch()
    assert (fn_of(info)(x[0], mask, **signals(info, torch.float64), coef=0.0) == 0).all()


@over('objective', where=lambda info: info.quiet)
def test_quiet_objective_is_quiet_without_advantage(info):
    logp, logp_old, adv, mask = batch()
    logp.requires_grad_()
    loss = fn_of(info)(logp, logp_old, torch.zeros_like(adv), mask, **signals(info, torch.float64))
    assert (loss == 0).all() and (torch.autograd.grad(loss.sum(), logp)[0] == 0).all()


@over('objective', where=promises_unbiased)
def test_objective_unbiased_where_promised(info):
    assert checked(lambda r, g: r, objective=fn_of(info)).unbiased


# select


def select_of(info, r, adv, index=slice(None)):
    s = signals(info, adv.dtype, adv=adv)
    return fn_of(info)(at(r, index), adv[index], **take(s, index))


@over('select')
@pytest.mark.parametrize('dtype', DTYPES)
def test_select(info, dtype):
    r, adv = some_rollouts(dtype), batch(dtype)[2]
    adv[[1, 4]] = 0
    weight, keep = select_of(info, r, adv)
    assert (
        weight.shape == (N, T)
        and weight.dtype == dtype
        and weight.isfinite().all()
        and (weight >= 0).all()
    )
    assert keep.shape == (N,) and keep.dtype == torch.bool
    again = select_of(info, r, adv.masked_fill(~r.mask, float('nan')))
    assert torch.equal(keep, again[1]) and torch.equal(weight[r.mask], again[0][r.mask])


@over('select')
def test_select_row_order_and_shapes(info):
    r, adv, perm = (
        some_rollouts(),
        batch(torch.float32)[2],
        torch.randperm(N, generator=torch.Generator().manual_seed(3)),
    )
    weight, keep = select_of(info, r, adv)
    moved = select_of(info, r, adv, perm)
    assert torch.equal(moved[0], weight[perm]) and torch.equal(moved[1], keep[perm])
    s = signals(info, torch.float32, adv=adv)
    raises_with([(N, T), (N,)], lambda: fn_of(info)(r, adv[:, 0], **s))
    assert select_of(info, r, torch.zeros(N, T))[0].isfinite().all()


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
    perm, pad = (
        torch.randperm(N, generator=torch.Generator().manual_seed(4)),
        lambda v: torch.nn.functional.pad(v, (0, 2)),
    )
    total = aggregate(loss, mask, mode, length=T)
    assert close(aggregate(loss[perm], mask[perm], mode, length=T), total) and close(
        aggregate(pad(loss), pad(mask), mode, length=T), total
    )
    more, nothing = torch.cat([loss, loss[:2]]), torch.cat([mask, torch.zeros_like(mask[:2])])
    assert close(aggregate(more, nothing, mode, length=T), total), (
        "a row without tokens has a share"
    )
    assert close(
        sum(
            aggregate(loss[i : i + 5], mask[i : i + 5], mode, length=T, whole=mask)
            for i in range(0, N, 5)
        ),
        total,
    )


@modes
def test_aggregate_of_nothing_is_zero_and_differentiable(mode):
    loss = torch.randn(3, 4).requires_grad_()
    total = aggregate(loss, torch.zeros(3, 4, dtype=torch.bool), mode)
    assert total == 0 and (torch.autograd.grad(total, loss)[0] == 0).all()


def test_aggregate_refuses_bad_input():
    loss, _, _, mask = batch()
    raises_with([(N, T), (N, T - 1)], lambda: aggregate(loss, mask[:, :-1]))
    with pytest.raises(ValueError, match='token-mean'):
        aggregate(loss, mask, 'tokenmean')
    with pytest.raises(ValueError, match='length'):
        aggregate(loss, mask, 'seq-mean-token-sum-norm', length=0)


@over('aggregate')
def test_aggregate_is_linear(info):
    a, b, _, mask = batch()
    assert close(info.fn(2 * a - b, mask), 2 * info.fn(a, mask) - info.fn(b, mask))


# rewards


def is_text_reward(info):
    return {'prompts', 'completions'} <= set(
        inspect.signature(info.fn.__call__ if inspect.isclass(info.fn) else info.fn).parameters
    )


text_rewards = over('reward', where=is_text_reward)


def questions(n=4):
    countdown = task('countdown')
    items = countdown.sample(n, seed=5)
    texts = [countdown.demonstrate(i, seed=1) for i in items[:2]] + [
        '',
        '1 + 1 = 3 ; <answer>' + 'x' * 50,
    ]
    return [countdown.prompt(i) for i in items], texts, items


@text_rewards
def test_reward_contract(info):
    prompts, texts, items = questions()
    values = fn_of(info)(prompts, texts, item=items)
    assert (
        isinstance(values, list)
        and len(values) == len(texts)
        and all(v is None or isinstance(v, float) and abs(v) < 1e6 for v in values)
    )
    assert values == fn_of(info)(prompts, texts, item=items), "not deterministic"
    ids = {} if 'length' in info.about else dict(completion_ids=[[1]] * 4)  # a length is of them
    assert values == fn_of(info)(
        prompts, texts, item=items, trainer_state=None, unheard_of=[1] * 4, **ids
    ), "other columns must be ignored"
    assert values == fn_of(info)(
        prompts, [[{'role': 'assistant', 'content': t}] for t in texts], item=items
    ), "chat messages are scored differently"
    order = [2, 0, 3, 1]
    assert [values[i] for i in order] == fn_of(info)(
        [prompts[i] for i in order], [texts[i] for i in order], item=[items[i] for i in order]
    )


@text_rewards
def test_reward_without_item_is_none(info):
    "A reward that checks against the problem has nothing to say without one; others score the text all the same."
    values, asks = (
        fn_of(info)(['?'] * 2, ['1', '2'], item=[None, None]),
        'item' in inspect.signature(fn_of(info)).parameters,
    )
    assert (
        values == [None, None] if asks else all(v is None or isinstance(v, float) for v in values)
    )
    if not asks:
        return
    with pytest.raises(ValueError):
        fn_of(info)(['?'] * 2, ['1', '2'], item=[None])


@pytest.mark.parametrize(
    'text',
    ['', ' ', '<answer>', '</answer><answer>', 'a' * 100_000, '1 / 0 = 1', '٣ + 1 = 4', '\x00'],
)
@text_rewards
def test_reward_survives_any_text(info, text):
    _, _, items = questions(1)
    assert fn_of(info)([''], [text], item=items)[0] in (None, 0.0) or info.name != 'correct'


def test_score_is_a_border():
    from rl4llm.core import score

    assert score(lambda prompts, completions: [1, None], ['', ''], ['', '']).isnan().tolist() == [
        False,
        True,
    ]
    for bad in ([1.0], [1.0, float('nan')], [1.0, float('inf')]):
        with pytest.raises(ValueError):
            score(lambda prompts, completions: bad, ['', ''], ['', ''])


# curricula


@over('curriculum')
def test_curriculum(info):
    countdown = task('countdown')
    made, twin = info.fn(countdown), info.fn(countdown)
    first = made.sample(6, seed=3)
    assert (
        len(first) == 6
        and all(isinstance(i, Item) for i in first)
        and first == twin.sample(6, seed=3) != twin.sample(6, seed=4)
    )
    assert {split_of(i.key) for i in first} == {'train'}
    made.update({'step': 1, 'items': tuple(first), 'rewards': [0.0, 1.0] * 3, 'scored': [8] * 6})
    through_a_file(made, twin)
    assert made.sample(6, seed=9) == twin.sample(6, seed=9)


# samplers


@over('sampler')
def test_sampler(info):
    policy, items = small_policy(), list(problems()[:3])
    draw = lambda seed: fn_of(info)(policy, items, 4, seed=seed, temperature=1.0)
    r, again, other = draw(1), draw(1), draw(2)
    ends = ((r.tokens == policy.eos) & r.mask).long()
    behind = ends.cumsum(1) - ends > 0  # a random policy may draw the padding token before
    assert (
        is_rollouts(r)
        and not (r.mask & behind).any()
        and not (r.sampled & ~r.mask).any()
        and len(r.texts) == len(r)
    )
    assert r.logp_behave[r.sampled].isfinite().all() and (r.logp_behave[r.sampled] <= 0).all()
    assert (
        torch.equal(r.tokens, again.tokens)
        and torch.equal(r.logp_behave[r.mask], again.logp_behave[r.mask])
        and not torch.equal(r.tokens, other.tokens)
    )
    written = {name: row for name, row in SIGNALS.items() if row.sampler == info.name}
    assert set(r.signals) == set(written), f"{info.name}: each signal it writes has a row"
    for name, row in written.items():
        sizes = dict(n=len(r), t=r.mask.shape[1], v=policy.model.config.vocab_size)
        assert r.signals[name].shape == tuple(sizes[axis] for axis in row.shape.split()), name


# references


def moved(policy, by=0.1):
    "Change a policy in place, as an optimiser would."
    with torch.no_grad():
        for p in policy.model.parameters():
            p.add_(by * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))


@over('reference')
def test_reference_is_not_the_policy_itself(info):
    policy, made, r = small_policy().clone(), fn_of(info), some_rollouts()
    ask = lambda: made(policy).statistics(r, ('logp',))['logp'].detach()
    before = ask()
    moved(policy)
    assert before.shape == (N, T) and before.isfinite().all() and torch.equal(ask(), before), (
        f"{info.name}: training the policy moves its reference"
    )
    assert not torch.equal(policy.statistics(r, ('logp',))['logp'], before)


# borders: whatever a stage gives back in a wrong form is refused in one sentence that names the stage

BROKEN = {
    'one column': lambda x: x[:, :1] if x.dim() == 2 else x[:, None],
    'one row': lambda x: x[:1],
    'a row too few': lambda x: x[:-1],
    'a scalar': lambda x: x.flatten()[0],
    'a number': lambda x: float(x.flatten()[0]),
    'an array': lambda x: x.detach().numpy(),
    'a list': lambda x: x.tolist(),
    'nothing': lambda x: None,
}
BROKEN_KEEP = {
    'numbers of rows': lambda keep: keep.nonzero()[:, 0],
    'zeros and ones': lambda keep: keep.long(),
    'parts': lambda keep: keep.float(),
}


def border(info, spoil=lambda x: x, part=None):
    "What the pipeline makes of a stage whose output (or a `part` of it) is spoilt."
    kind = {'regulariser': 'regularisers'}.get(info.kind, info.kind)
    right = ready(info.name, info.kind)

    def call(*args, **signals):
        out = right(*args, **signals)
        return (
            spoil(out)
            if part is None
            else tuple(spoil(x) if i == part else x for i, x in enumerate(out))
        )

    wrong = dataclasses.replace(right, call=call)
    stages = dataclasses.replace(
        build_stages(recipe('grpo')), **{kind: (wrong,) if kind == 'regularisers' else wrong}
    )
    logp, _, adv, _ = batch(torch.float32)
    more = {
        name: x
        for name, x in signals(info, torch.float32).items()
        if name not in ('adv', 'mask', 'logp_old')
    }
    r = more.pop('rollouts', some_rollouts())
    if info.kind == 'advantage':
        return advantages(stages, r, **more)
    if info.kind == 'select':
        return select_rows(stages, r, adv, **more)
    return token_loss(stages, Batch(r, adv, r.loss_weight), logp, **more)


def refused(info, *how):
    with pytest.raises((ValueError, TypeError)) as e:
        border(info, *how)
    assert info.name in str(e.value) and '\n' not in str(e.value), str(e.value)


@over('advantage', 'objective', 'regulariser')
def test_a_broken_stage_is_refused_at_its_border(info):
    right = border(info)
    for form, spoil in BROKEN.items():
        if info.kind == 'advantage' and form in ('an array', 'a list'):
            assert torch.allclose(border(info, spoil), right)
        else:
            refused(info, spoil)


@over('select')
def test_a_broken_selection_is_refused_at_its_border(info):
    border(info)
    for spoil in BROKEN.values():
        refused(info, spoil, 0)
    for spoil in (BROKEN | BROKEN_KEEP).values():
        refused(info, spoil, 1)


@over('advantage', 'objective', 'regulariser')
def test_another_kind_of_number_means_the_same_or_is_refused(info):
    for cast in (torch.double, torch.long):
        try:
            cast_out = border(info, lambda x: x.detach().round().to(cast))
        except ValueError as error:
            assert info.name in str(error)
        else:
            assert torch.allclose(
                cast_out.float(), border(info, lambda x: x.detach().round()), atol=1e-6
            )


BROKEN_REWARDS = {
    'nothing': lambda v: None,
    'a number': lambda v: 1.0,
    'too few': lambda v: v[:1],
    'too many': lambda v: [*v, 0.0],
    'texts': lambda v: ['1'] * len(v),
    'one text': lambda v: '1' * len(v),
    'one column': lambda v: [[1.0]] * len(v),
    'a column': lambda v: torch.ones(len(v), 1),
    'not a number': lambda v: [float('nan')] * len(v),
    'infinite': lambda v: [float('inf')] * len(v),
    'a scalar': lambda v: torch.tensor(1.0),
    'a table': lambda v: {i: 1.0 for i in range(len(v))},
    'objects': lambda v: [object()] * len(v),
    'a set': lambda v: set(range(len(v))),
    'a frozen set': lambda v: frozenset(range(len(v))),
    'keys': lambda v: {i: 1.0 for i in range(len(v))}.keys(),
    'bytes': lambda v: bytes(len(v)),
    'more bytes': lambda v: bytearray(len(v)),
    'memory': lambda v: memoryview(bytes(len(v))),
    'texts as bytes': lambda v: [b'1'] * len(v),
    'texts in an array': lambda v: np.array(['1'] * len(v)),
    'a data frame': lambda v: pd.DataFrame({i: [1.0] for i in range(len(v))}),
    'a huge number': lambda v: 10**400,
    'huge numbers': lambda v: [10**400] * len(v),
    'numbers too long to print': lambda v: [10**5000] * len(v),
    'infinite in float32': lambda v: [1e300] * len(v),
    'complex': lambda v: [1j] * len(v),
    'complex in an array': lambda v: np.ones(len(v), complex),
    'complex in a tensor': lambda v: torch.ones(len(v), dtype=torch.cfloat),
    'real numbers as complex ones': lambda v: [np.complex64(1)] * len(v),
    'durations': lambda v: np.ones(len(v), 'm8[s]'),
    'nested': lambda v: [[[1.0]]] * len(v),
    'arrays': lambda v: [np.ones(1)] * len(v),
    'tensors': lambda v: [torch.ones(1)] * len(v),
    'the unknown of pandas': lambda v: [pd.NA] * len(v),
    'without end': lambda v: iter(int, 1),
    'a generator too short': lambda v: (1.0 for _ in v[1:]),
    'a generator too long': lambda v: (1.0 for _ in [*v, 0]),
    'a function': lambda v: len,
    'not ready': lambda v: [lambda: 1.0] * len(v),
}
GOOD_REWARDS = {
    'whole': list,
    'a tuple': tuple,
    'a generator': iter,
    'a map': lambda v: map(float, v),
    'a queue': collections.deque,
    'values': lambda v: dict(enumerate(v)).values(),
    'an array': np.array,
    'a tensor': torch.tensor,
    'true and false': lambda v: [bool(x) for x in v],
    'true and false in an array': lambda v: np.array(v, bool),
    'scalars': lambda v: [np.float16(x) for x in v],
    'scalars of torch': lambda v: [torch.tensor(x) for x in v],
    'single arrays': lambda v: [np.array(x) for x in v],
    'bfloat16': lambda v: torch.tensor(v, dtype=torch.bfloat16),
    'with a gradient': lambda v: torch.tensor(v, dtype=torch.float32, requires_grad=True),
    'fractions': lambda v: [Fraction(x) for x in v],
    'decimals': lambda v: [Decimal(x) for x in v],
    'a series': lambda v: pd.Series(v, index=[9] * len(v)),
    'a range': lambda v: range(len(v)),
}


@pytest.mark.filterwarnings('error:.*complex.*')
@pytest.mark.parametrize('name', BROKEN_REWARDS)
def test_what_is_not_one_number_a_row_is_refused_at_the_one_border(name):
    "On every way from a reward to a rollout; in one short sentence that names the function."

    def spoilt(prompts, completions, **columns):
        return BROKEN_REWARDS[name]([1.0] * len(completions))

    items = list(problems()[:2])
    drawn = small_policy().sample(items, 2, seed=0, max_new_tokens=4)
    for call in (
        lambda: call_reward(spoilt, ['?'] * 2, ['1', '2']),
        lambda: score(spoilt, ['?'] * 2, ['1', '2']),
        lambda: scored(small_policy(), drawn, ready(spoilt, 'reward')),
        lambda: score(use(spoilt), ['?'] * 2, ['1', '2']),
    ):
        with pytest.raises(ValueError, match='spoilt returned') as e:
            call()
        assert '\n' not in str(e.value) and len(str(e.value)) < 300


@pytest.mark.parametrize('name', GOOD_REWARDS)
def test_what_is_one_number_a_row_is_a_reward(name):
    given = [0, 1, 2] if name in ('whole', 'a range') else [0, 1, 1]

    def own(completions):
        return GOOD_REWARDS[name](given)

    assert (
        call_reward(own, ['?'] * 3, ['1', '2', '3'])
        == [float(x) for x in given]
        == score(own, ['?'] * 3, ['1', '2', '3']).tolist()
    )


@text_rewards
def test_a_reward_is_called_by_name_in_any_form(info):
    prompts, texts, items = questions()
    fn = fn_of(info)
    wanted = fn(prompts, texts, item=items)

    def turned(*, item, completions, prompts):
        return fn(prompts, completions, item=item)

    def backwards(item, completions, prompts):
        return fn(prompts, completions, item=item)

    class Object:
        def __call__(self, completions, item, prompts):
            return fn(prompts, completions, item=item)

    for form in (
        fn,
        turned,
        backwards,
        Object(),
        partial(fn),
        partial(Object().__call__),
        ReadyStage(fn, info.name),
        ready(info.name, 'reward'),
    ):
        assert call_reward(form, prompts, texts, item=items) == wanted
    ids = {} if 'length' in info.about else dict(completion_ids=[[1]] * 4)
    assert call_reward(fn, prompts, texts, item=items, unheard_of=[1] * 4, **ids) == wanted
    for name, spoil in BROKEN_REWARDS.items():

        def spoilt(prompts, completions, item):
            return spoil(fn(prompts, completions, item=item))

        with pytest.raises(ValueError, match='spoilt returned') as e:
            call_reward(spoilt, prompts, texts, item=items)
        assert '\n' not in str(e.value), name


def chat(*contents):
    return [
        {'role': 'user', 'content': 'say it'},
        *({'role': 'assistant', **content} for content in contents),
    ]


SAID = {
    'a chat': lambda t: chat({'content': t}),
    'several turns': lambda t: chat({'content': 'no'}, {'content': t}),
    'after a tool': lambda t: [
        *chat({'content': None, 'tool_calls': [{}]}),
        {'role': 'tool', 'content': '9'},
        {'role': 'assistant', 'content': t},
    ],
    'a tuple': lambda t: tuple(chat({'content': t})),
    'parts': lambda t: chat({'content': [{'type': 'image'}, {'type': 'text', 'text': t}]}),
    'two parts': lambda t: chat(
        {'content': [{'type': 'text', 'text': t[:1]}, {'type': 'text', 'text': t[1:]}]}
    ),
    'plain parts': lambda t: chat({'content': [t]}),
    'before another speaks': lambda t: [
        *chat({'content': t}),
        {'role': 'user', 'content': 'thanks'},
    ],
}
SILENT = {
    'no message': [],
    'no assistant': [{'role': 'user', 'content': '7'}],
    'no content': chat({}),
    'none': chat({'content': None}),
    'a tool is called': chat({'content': '7'}, {'content': None, 'tool_calls': [{}]}),
    'no parts': chat({'content': []}),
    'a picture': chat({'content': [{'type': 'image'}]}),
    'empty': chat({'content': ''}),
}
NO_TEXT = [
    None,
    7,
    b'7',
    {'role': 'assistant', 'content': '7'},
    ['7'],
    [None],
    [['7']],
    {'7'},
    np.array(['7']),
    chat({'content': 7}),
    chat({'content': b'7'}),
    chat({'content': {'text': '7'}}),
    chat({'content': [7]}),
    chat({'content': [{'type': 'text', 'text': None}]}),
    chat({'content': [{'text': ['7']}]}),
]


@text_rewards
def test_a_chat_is_scored_as_its_last_answer(info):
    "Whatever form of a conversation TRL gives; anything else is refused in a sentence."
    prompts, texts, items = questions()
    fn = fn_of(info)
    for name, said in SAID.items():
        assert fn(prompts, [said(t) for t in texts], item=items) == fn(
            prompts, texts, item=items
        ), name
    for name, silent in SILENT.items():
        assert fn(prompts, [silent] * 4, item=items) == fn(prompts, [''] * 4, item=items), name
    for wrong in NO_TEXT:
        with pytest.raises(ValueError, match='wanted a string') as e:
            fn(prompts[:1], [wrong], item=items[:1])
        assert '\n' not in str(e.value) and len(str(e.value)) < 300


@over(
    'reward',
    where=lambda info: is_text_reward(info) and 'item' in inspect.signature(fn_of(info)).parameters,
)
def test_what_is_no_item_is_refused(info):
    prompts, texts, items = questions()
    fields = dataclasses.asdict(items[0])
    for right in (fields, json.dumps(fields), items[0]):
        assert fn_of(info)(prompts[:1], texts[:1], item=[right]) == fn_of(info)(
            prompts[:1], texts[:1], item=items[:1]
        )
    for wrong in (
        '{"task": ',
        '7',
        '[]',
        7,
        [],
        {},
        {'task': 'countdown'},
        {**fields, 'more': 1},
        float('nan'),
        b'{}',
    ):
        with pytest.raises(ValueError, match='wanted an Item') as e:
            fn_of(info)(prompts[:1], texts[:1], item=[wrong])
        assert '\n' not in str(e.value)
    for wrong in (items[0], json.dumps(fields), fields):
        with pytest.raises(ValueError, match='wanted a list with one item'):
            fn_of(info)(prompts[:1], texts[:1], item=wrong)


@text_rewards
def test_a_missing_column_is_named(info):
    if 'item' not in inspect.signature(fn_of(info)).parameters:
        return
    with pytest.raises(ValueError, match="column 'item'.*items_dataset"):
        call_reward(fn_of(info), ['?'], ['1'])
    with pytest.raises(ValueError, match="column 'item'.*items_dataset"):
        fn_of(info)(prompts=['?'], completions=['1'], trainer_state=None)


def test_a_reward_that_asks_for_what_is_not_there_is_told():
    def own(completions, solution, prompts):
        return [1.0] * len(completions)

    with pytest.raises(
        ValueError, match='own asks for solution, but a reward is given prompts, completions, item'
    ):
        call_reward(own, ['?'], ['1'], item=[None])
    assert call_reward(own, ['?'], ['1'], solution=['1'], item=[None]) == [1.0]
    with pytest.raises(ValueError, match='asks for texts'):
        call_reward(lambda texts: [1.0], ['?'], ['1'])


@over('sampler')
def test_what_a_sampler_gives_is_checked(info):
    items = list(problems()[:3])
    r = fn_of(info)(small_policy(), items, 4, seed=1, temperature=1.0)
    assert check_drawn(r, items, info.name) is r
    for wrong in (
        None,
        [r],
        r.tokens,
        dataclasses.replace(r, items=()),
        dataclasses.replace(r, texts=()),
    ):
        with pytest.raises(ValueError, match=info.name):
            check_drawn(wrong, items, info.name)
    if (r.origin == ORIGINS.index('replay')).all():
        assert check_drawn(r, items[:2], info.name) is r, 'replayed rows bring their own problems'
    else:
        with pytest.raises(ValueError, match=info.name):
            check_drawn(r, items[:2], info.name)
        with pytest.raises(ValueError, match=info.name) as error:
            check_drawn(r, [items[0], items[2], items[2]], info.name)
        assert all(
            part in str(error.value)
            for part in ('problem 1 ', f'{items[1]!r:.200}', f'{items[2]!r:.200}')
        )
    for field in (f.name for f in dataclasses.fields(r)):
        x = getattr(r, field)
        if not torch.is_tensor(x):
            continue
        for cast in (torch.bool, torch.long, torch.float32):
            if x.dtype == cast:
                continue
            with pytest.raises(ValueError, match=f'Rollouts.{field} holds'):
                dataclasses.replace(r, **{field: x.to(cast)})
        spoils = [lambda x: x[:, None], lambda x: x.numpy(), lambda x: x.tolist()]
        for spoil in spoils if field == 'prompt_ids' else [*spoils, lambda x: x[:-1]]:
            with pytest.raises(ValueError, match='Rollouts'):
                dataclasses.replace(r, **{field: spoil(x)})


@over('curriculum')
def test_what_a_curriculum_gives_is_checked(info):
    drawn = info.fn(task('countdown')).sample(6, seed=3)
    assert check_problems(drawn, 6, info.name) == drawn
    for wrong in (None, drawn[:5], drawn[0], 'text', [1] * 6, {1: 2}, drawn * 2):
        with pytest.raises(ValueError, match=info.name):
            check_problems(wrong, 6, info.name)


# stages with memory


def through_a_file(stage, twin):
    "Give `twin` the state of `stage` the way a checkpoint does: JSON and a file of tensors."
    plain, tensors = pack_stages({'it': stage})
    unpack_stages(
        {'it': twin},
        json.loads(json.dumps(plain)),
        load(save({k: v.detach().contiguous() for k, v in tensors.items()})),
    )


def answer(info, made, policy, seed):
    "What a stage with memory answers to one batch, as tensors; and tells it that the step is over."
    r = some_rollouts(torch.float32, seed=seed)
    s = {
        **signals(info, torch.float32, seed=seed),
        **({'policy': policy} if 'policy' in info.needs else {}),
    }
    x = dict(
        advantage=lambda: (r.rewards, GROUP),
        select=lambda: (r, batch(torch.float32, seed)[2]),
        objective=lambda: batch(torch.float32, seed),
        regulariser=lambda: (batch(torch.float32, seed)[0], MASK),
        reference=lambda: (policy,),
        reward=lambda: questions()[:2],
        sampler=lambda: (policy, list(problems()[:3]), 4),
    )[info.kind]()
    more = dict(reward=dict(item=questions()[2]), sampler=dict(seed=seed, temperature=1.0)).get(
        info.kind, s
    )
    out = made(*x, **more)
    moved(policy, 0.01)
    if hasattr(made, 'update'):
        made.update(
            SimpleNamespace(policy=policy, rollouts=r, step=seed, seed=0)
            if info.kind == 'reference'
            else r
        )
    if info.kind == 'reference':
        out = out.statistics(r, ('logp',))['logp']
    return (
        [out.tokens, out.logp_behave]
        if info.kind == 'sampler'
        else [torch.tensor([float(v or 0) for v in out])]
        if info.kind == 'reward'
        else list(out)
        if isinstance(out, tuple)
        else [out]
    )


@over(
    'advantage',
    'select',
    'objective',
    'regulariser',
    'reference',
    'reward',
    'sampler',
    where=has_memory,
)
def test_memory_survives_a_checkpoint(info):
    made, twin, policy = fn_of(info), fn_of(info), small_policy().clone()
    if info.kind == 'reference':
        twin(
            policy.clone()
        )  # the loop asks once before it restores a run, when the policy has its first weights
    for seed in (1, 2, 3):
        answer(info, made, policy, seed)
    through_a_file(made, twin)
    other = policy.clone()
    for seed in (4, 5, 6):
        assert all(
            torch.equal(a, b)
            for a, b in zip(answer(info, made, policy, seed), answer(info, twin, other, seed))
        ), f"{info.name} goes on differently after a checkpoint"
    assert pack_stages({'it': made})[0] == pack_stages({'it': twin})[0]
    a, b = pack_stages({'it': made})[1], pack_stages({'it': twin})[1]
    assert a.keys() == b.keys()
    for k in a:
        torch.testing.assert_close(a[k], b[k], rtol=0, atol=0, equal_nan=True)


# recipes

every_recipe = pytest.mark.parametrize('name', sorted(RECIPES))
KIND_OF = {'regularisers': 'regulariser'}


@every_recipe
def test_recipe_stages_resolve(name):
    r = recipe(name)
    for field in STAGE_FIELDS:
        for use in getattr(r, field) if field == 'regularisers' else (getattr(r, field),):
            assert use.info.kind == KIND_OF.get(field, field), f"{name}: {use} is no {field}"
            known = inspect.signature(use.info.fn).parameters
            assert all(
                k in known or any(p.kind is p.VAR_KEYWORD for p in known.values())
                for k in dict(use.knobs)
            )


@every_recipe
def test_recipe_round_trip(name):
    r = recipe(name)
    back = recipe_from_dict(json.loads(json.dumps(r.to_dict())))
    assert back == r and back.fingerprint() == r.fingerprint() and not r.diff(back)


def test_what_is_put_into_a_recipe_is_shown_also_without_a_parent():
    def rarer(rewards, group):
        return rewards

    for name in [name for name in RECIPES if recipe(name).parent is None]:
        assert recipe(name).diff() == {}
        changed = recipe(name, advantage=rarer, lr=0.5)
        assert changed.diff() == {
            'advantage': (recipe(name).advantage, changed.advantage),
            'lr': (recipe(name).lr, 0.5),
        }
        assert '<b>rarer</b>' in changed._repr_html_()
    assert Recipe('nobody knows it', lr=0.5).diff() == {}


@every_recipe
def test_recipe_differs_from_its_parent(name):
    r, seen = recipe(name), {name}
    if r.parent is not None:
        assert r.diff(), f"{name} is the same as {r.parent}"
    assert r.summary
    while r.parent is not None:
        r = recipe(r.parent)
        assert r.name not in seen, f"{name} is its own ancestor"
        seen.add(r.name)


def test_recipes_are_all_different():
    prints = {}
    for name in RECIPES:
        prints.setdefault(recipe(name).fingerprint(), []).append(name)
    assert all(len(names) == 1 for names in prints.values()), [
        n for n in prints.values() if len(n) > 1
    ]


def test_the_classic_recipes_are_there():
    assert {
        'reinforce',
        'rloo',
        'grpo',
        'dr_grpo',
        'positive',
        'negative',
        'weighted_reinforce',
    } <= set(RECIPES)
