"""Would the checks notice? Faults that are easily made and hard to see are planted in the real functions, one at a time, and some check must fail
for each. A fault is a piece of source text and what replaces it; where the text is no longer there, the test says so instead of passing."""
import ast, dataclasses, inspect, math, textwrap
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
import pytest, torch
import test_contracts as contracts
import test_oracle as oracle
from rl4llm.advantages import dr_grpo, grpo, rloo, weighted_reinforce
from rl4llm.analysis import pass_at_k
from rl4llm.engine.llama import response_hidden, weights_of
from rl4llm.core.numerics import entropy_of, keyed_uniform
from rl4llm.core.policy import _whole_logits
from rl4llm.core.registry import recipe, stages, use
from rl4llm.objectives import aggregate, gmpo, gspo, gspo_token, ppo_clip
from rl4llm.core import kl_estimate
from rl4llm.oracle.decisions import exact_pass_at_k_gradient
from rl4llm.oracle.estimators import check
from rl4llm.oracle.tabular import TokenTree, exact_entropy, exact_gradient, random_logits
from rl4llm.tasks import task
from rl4llm.training.loop import train
from rl4llm.core.signals import complete

NAN = float('nan')


def near(a, b, atol=1e-9): assert torch.allclose(torch.as_tensor(a, dtype=torch.float64), torch.as_tensor(b, dtype=torch.float64), rtol=0, atol=atol, equal_nan=True), (a, b)


def grad(f, *x): return torch.func.grad(f)(*x)


# -- checks by hand and identities, beside the contracts and the oracle

def check_reference_numbers():
    r, group = torch.tensor([1.] + [0.] * 7 + [1., 1., 0.], dtype=torch.float64), torch.tensor([0] * 8 + [1] * 3)
    near(rloo(r, group)[[0, 1, 8, 10]], [1, -1 / 7, .5, -1])
    near(dr_grpo(r, group)[[0, 1, 8, 10]], [.875, -.125, 1 / 3, -2 / 3])
    near(grpo(r, group, eps=0.)[[0, 1]], [math.sqrt(49 / 8), -1 / math.sqrt(8)])
    near(grpo(r, group, eps=0., ddof=0)[[0, 1]], [math.sqrt(7), -math.sqrt(1 / 7)])
    near(grpo(r, group, eps=1.)[0], .875 / (math.sqrt(1 / 8) + 1))
    near(grpo(r, group, eps=0.)[8:], grpo(r[8:], group[8:], eps=0.))
    near(weighted_reinforce(r, group)[[0, 1]], [.1, -1])


def check_unscored_rows():
    r, group = torch.tensor([1., 0., NAN, 0., 1., 1.], dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1, 1])
    near(rloo(r, group), [1, -1, 0, -1, .5, .5])
    near(grpo(r, group, eps=0.)[:3], [math.sqrt(.5), -math.sqrt(.5), 0])


def check_clip_by_cases():
    "Ratio and advantage of either sign: the loss, and on which side the gradient stops."
    ratio, mask = torch.tensor([[.5, .75, 1.25, 1.5]] * 2, dtype=torch.float64), torch.ones(2, 4, dtype=torch.bool)
    adv, old = torch.tensor([[1.], [-1.]], dtype=torch.float64).expand(2, 4), torch.zeros(2, 4, dtype=torch.float64)
    loss = lambda logp: ppo_clip(logp, old, adv, mask, low=.3, high=.4)
    near(loss(ratio.log()), [[-.5, -.75, -1.25, -1.4], [.7, .75, 1.25, 1.5]])
    near(grad(lambda x: loss(x).sum(), ratio.log()), [[-.5, -.75, -1.25, 0], [0, .75, 1.25, 1.5]])


def check_aggregation_by_hand():
    loss, mask = torch.tensor([[1., 2, 3, NAN], [4, NAN, NAN, NAN]], dtype=torch.float64), torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]]).bool()
    for mode, value in {'token-mean': 10 / 4, 'seq-mean-token-mean': (2 + 4) / 2, 'seq-mean-token-sum': (6 + 4) / 2, 'seq-mean-token-sum-norm': (6 + 4) / 2 / 4}.items():
        near(aggregate(loss, mask, mode), value)
        near(aggregate(loss[:1], mask[:1], mode, whole=mask) + aggregate(loss[1:], mask[1:], mode, whole=mask), value)


def check_kl_estimators():
    "Means over a softmax of five tokens: value of k1 and k3; gradient of k1 (none), k2 (the divergence's), k3 (that of the other divergence), and k1+, k3+ (k2's)."
    z, ref = (torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    p, kl = z.softmax(0), lambda x: (x.softmax(0) * (x.log_softmax(0) - ref.log_softmax(0))).sum()
    mean = lambda name, x=z: (p * kl_estimate(x.log_softmax(0), ref.log_softmax(0), estimator=name)).sum()
    for name in ('k1', 'k3', 'k3+'): near(mean(name), kl(z))
    other = lambda x: -(ref.softmax(0) * x.log_softmax(0)).sum()
    for name, goal in (('k1', torch.zeros(5)), ('k2', grad(kl, z)), ('k3', grad(other, z)), ('k3+', grad(kl, z)), ('k1+', grad(kl, z))): near(grad(lambda x: mean(name, x), z), goal)


ONE = TokenTree(vocab=5, length=1)
Z, REF, PAY = random_logits(ONE, seed=1), random_logits(ONE, seed=2), torch.arange(5.) / 4


def check_penalty_goes_the_right_way():
    found = check(use('rloo'), ONE, Z, PAY, regularisers=(use('kl_penalty', coef=.3, estimator='k2'),), ref=REF, target=exact_gradient(ONE, Z, PAY, ref=REF, beta=.3))
    assert found.unbiased, found


def check_bonus_goes_the_right_way():
    near(entropy_of(torch.zeros(8, dtype=torch.float64)), math.log(8))
    goal = exact_gradient(ONE, Z, PAY) + .3 * grad(lambda x: exact_entropy(ONE, x), Z)
    assert check(use('rloo'), ONE, Z, PAY, regularisers=(use('entropy_bonus', coef=.3),), target=goal).unbiased


def check_updates_of_old_data():
    "Token ratios are exact for one token, whoever drew it; on the policy's own data any of these objectives has the plain gradient."
    assert check(use('rloo'), ONE, Z, PAY, old=REF, objective=use('ppo_clip', low=99., high=99.)).unbiased
    for name in ('policy_gradient', 'ppo_clip', 'dual_clip', 'cispo', 'gspo', 'gmpo'): assert check(use('rloo'), oracle.TREE, oracle.LOGITS, oracle.GRADED, objective=use(name)).unbiased


def check_ratio_of_a_response():
    "Geometric mean of the token ratios: its value, and the gradient of the row's loss, shared alike or by each token's own advantage."
    logp, old, mask = torch.tensor([[-.5, -.7, NAN]], dtype=torch.float64), torch.tensor([[-.6, -1., NAN]], dtype=torch.float64), torch.tensor([[True, True, False]])
    s, alike, own = math.exp(.2), torch.ones(1, 3, dtype=torch.float64), torch.tensor([[1., -2., NAN]], dtype=torch.float64)
    wide = dict(low=9., high=9.)
    for f, adv in ((gspo, alike), (gspo_token, alike), (gspo_token, own), (gmpo, alike)):
        near(f(logp, old, adv, mask, **wide), (-s * adv).masked_fill(~mask, 0))
        near(grad(lambda x: f(x, old, adv, mask, **wide).sum(), logp), (-s * adv).masked_fill(~mask, 0))
    near(gmpo(logp, old, alike, mask, low=.05, high=.1), [[-math.exp(.1), -math.exp(.1), 0]])


def check_climb_of_pass_at_k():
    goal = exact_pass_at_k_gradient(oracle.TREE, oracle.LOGITS, oracle.RIGHT, 2)
    for baseline in ('smaller', 'leave_one_out', 'none'): assert check(use('pkpo', k=2, baseline=baseline), oracle.TREE, oracle.LOGITS, oracle.RIGHT, group=3, target=goal).unbiased


def plain_logps(policy, r, temperature):
    "Log-probability and entropy of each response token, one row at a time, without padding."
    logp, entropy = torch.zeros(r.mask.shape), torch.zeros(r.mask.shape)
    for i, p in enumerate(r.prompt.tolist()):
        asked, said = r.prompt_ids[p][r.prompt_mask[p]], r.tokens[i][r.mask[i]]
        z = (policy.model(torch.cat([asked, said])[None]).logits[0] / temperature).log_softmax(-1)
        for t, token in enumerate(said.tolist()):
            logp[i, t], entropy[i, t] = z[len(asked) + t - 1, token], -(z[len(asked) + t - 1].exp() * z[len(asked) + t - 1]).sum()
    return logp, entropy


def alike_at_first():
    "Rollouts whose rows share their first two tokens with the other rows of their prompt."
    r, rows = contracts.some_rollouts(torch.float32), torch.arange(contracts.N)
    first = torch.tensor([int(rows[(r.prompt == p) & (contracts.LENGTHS > 2)][0]) for p in r.prompt])
    shared = (torch.arange(contracts.T) < 2) & (contracts.LENGTHS > 2)[:, None]
    return dataclasses.replace(r, tokens=torch.where(shared, r.tokens[first], r.tokens))


def paths():
    "The same policy on the fast path and on that of Hugging Face."
    return contracts.small_policy(), dataclasses.replace(contracts.small_policy().clone(), fast=False)


@torch.no_grad()
def check_log_probabilities():
    r = alike_at_first()
    logp, entropy = plain_logps(contracts.small_policy(), r, .7)
    for policy in paths():
        for mine, exact in zip(policy.logprobs(r, temperature=.7), (logp, entropy)): near(mine.double(), exact.double(), 1e-4)
    w, at = weights_of(contracts.small_policy().model), r.tokens[r.mask]
    for z in (response_hidden(w, r.prompt_ids, r.prompt_mask, r.tokens, r.prompt)[r.mask] @ w.head.t(), _whole_logits(contracts.small_policy(), r)):     # where the fast path does not apply
        near((z / .7).log_softmax(-1)[torch.arange(len(at)), at], logp[r.mask], 1e-4)


def check_gradients_of_log_probabilities():
    r, found = alike_at_first(), []
    for policy in paths():
        logp = policy.statistics(r, ('logp',), watched=('entropy',))['logp']
        found.append(torch.autograd.grad((logp * torch.arange(contracts.T)).sum(), list(policy.model.parameters())))
    assert all(torch.allclose(a, b, atol=1e-3) for a, b in zip(*found))


def check_sampled_tokens():
    "The sampler's log-probabilities are those of a later forward; a finished row ends in the end token, which is trained; rows differ."
    for policy in paths():
        r = policy.sample(list(contracts.problems()), 6, seed=1, temperature=2., max_new_tokens=48)
        near(policy.logprobs(r)[0].detach()[r.mask], r.logp_behave[r.mask], 1e-3)
        assert r.mask.any(1).all() and r.finished.any()
        last = r.tokens.gather(1, r.mask.sum(1, keepdim=True) - 1)[:, 0]
        assert (last[r.finished] == policy.eos).all() and (r.tokens[r.mask] == policy.eos).sum() == r.finished.sum()
        assert len({tuple(t) for t in r.tokens.tolist()}) > len(r) / 2
    near(keyed_uniform(3, torch.arange(400), torch.arange(50)).mean(), .5, .01)


def odd(prompts, completions, **columns): return [float(len(c) % 2) for c in completions]


class Watch:
    def on_step(self, state, row): self.state, self.rows = state, getattr(self, 'rows', []) + [row]


def lively(**changes): return recipe('grpo', **{**dict(reward=use(odd), sampler=use('sample', max_new_tokens=8), prompts=3, group=4, lr=1e-3), **changes})


def trained(steps=1, **changes):
    policy, watch = contracts.small_policy().clone(), Watch()
    train(policy, task('countdown', level='easy'), lively(**changes), steps=steps, callbacks=[watch])
    return policy, watch


def check_slices_add_up():
    "Slices of memory, and minibatches without an effect of their own, leave the first step's gradient as it is."
    whole, sliced = (trained(aggregate=use('aggregate', mode='token-mean'), micro=m)[1].rows[0] for m in (None, 5))
    assert whole['grad_norm'] > 0 and math.isclose(whole['grad_norm'], sliced['grad_norm'], rel_tol=1e-4) and math.isclose(whole['loss'], sliced['loss'], abs_tol=1e-6)


def check_first_step_by_hand():
    "Loss and gradient norm of a step that keeps only rows with an advantage, from the rollouts it was taken on."
    _, watch = trained(advantage='positive', select='drop_zero_rows', objective='policy_gradient', aggregate=use('aggregate', mode='token-mean'), temperature=.8)
    policy, r, row = contracts.small_policy().clone(), watch.state.rollouts, watch.rows[0]
    kept = (r.rewards > .5)[:, None] & r.mask
    loss = -policy.logprobs(r)[0][kept].mean()
    norm = torch.nn.utils.get_total_norm(torch.autograd.grad(loss, list(policy.model.parameters())))
    assert 0 < kept.any(1).sum() < len(r) and row['trained_tokens'] == kept.sum() and r.temperature == .8
    near([row['loss'], row['grad_norm']], [float(loss.detach()), float(norm)], 1e-4)


def check_reference_stays():
    "After a step, the reference still gives the log-probabilities of the first weights, and the old ones are those before the update."
    _, watch = trained(steps=2, regularisers=(use('kl_penalty', coef=.1),), epochs=2)
    r = watch.state.rollouts
    needed = complete(watch.state, r, {'logp_ref', 'logp_old'}, [slice(0, len(r))])
    near(needed.logp_ref, contracts.small_policy().logprobs(r)[0].detach(), 1e-4)
    assert watch.rows[1]['kl'] > 0 and watch.rows[0]['updates'] == 2


def check_pass_at_k():
    near(pass_at_k([4, 5], [1, 2], [2, 3]), [[1 / 2, 3 / 4], [1 - 3 / 10, 1 - 1 / 10]])


HAND = [f for name, f in list(globals().items()) if name.startswith('check_')]
ADVANTAGES, LOSSES = ('reinforce', 'rloo', 'grpo', 'positive'), ('policy_gradient', 'ppo_clip', 'kl_penalty', 'entropy_bonus')


def of_contracts():
    "The contracts, for a few stages of each kind."
    known = stages()
    for name in ADVANTAGES:
        yield from ((test, (known[name],)) for test in (contracts.test_advantage_row_order_and_group_names, contracts.test_advantage_unscored_rows_have_no_share))
    for name in LOSSES:
        yield contracts.test_loss_shape_dtype_gradient, (known[name], torch.float64)
        yield contracts.test_loss_ignores_what_is_outside_the_mask, (known[name], NAN)
    yield from ((contracts.test_select, (known[name], torch.float32)) for name in ('keep_all', 'drop_zero_rows'))
    yield from ((contracts.test_aggregate_invariances, (mode,)) for mode in contracts.MODES)


CHECKS = [(f, ()) for f in HAND] + list(of_contracts()) + [(oracle.test_known_factors, ()), (oracle.test_dropped_rows_change_the_weight_of_a_prompt, ())]


def first_to_fail():
    "Name of the first check that fails, None if all pass."
    for f, args in CHECKS:
        try: f(*args)
        except (AssertionError, ValueError, pytest.fail.Exception): return f.__name__     # a fault that just crashes is no test of the checks


# -- planting

def source_of(module, name):
    "Source text of a function, method or table at the top of a module."
    text = Path(module.__file__).read_text()
    nodes = ast.parse(text).body
    for part in name.split('.'):
        node = next((n for n in nodes if getattr(n, 'name', None) == part or isinstance(n, ast.Assign) and getattr(n.targets[0], 'id', None) == part), None)
        assert node is not None, f"{module.__name__} has no {name} any more: the planted fault needs a new place"
        nodes = getattr(node, 'body', [])
    return textwrap.dedent('\n'.join(text.split('\n')[node.lineno - 1:node.end_lineno]))


@contextmanager
def planted(place, old, new):
    "Run with `old` replaced by `new` in the function (or table) at `place`, wherever it has been imported to; everything is put back."
    module, name = import_module('rl4llm.' + place.split(':')[0]), place.split(':')[1]
    source = source_of(module, name)
    assert source.count(old) == 1, f"{place} has {source.count(old)} times {old!r}, wanted once: the planted fault needs new text"
    made, target = dict(vars(module)), module
    exec(compile(source.replace(old, new), f'<planted in {place}>', 'exec'), made)
    for part in name.split('.'): target = getattr(target, part)
    fault, parts = made[name.split('.')[-1]], ('__code__', '__defaults__', '__kwdefaults__')
    if isinstance(target, dict): holder, kept = target, dict(target)
    else: holder, kept = inspect.unwrap(target), None
    before = kept or {p: getattr(holder, p) for p in parts}
    try:
        if kept: holder.update(fault)
        else:
            for p in parts: setattr(holder, p, getattr(inspect.unwrap(fault), p))
        yield
    finally:
        if kept: holder.clear(); holder.update(kept)
        else:
            for p in parts: setattr(holder, p, before[p])


FAULTS = {
    # the divergence
    'sign of the log-ratio in the KL': ('objectives.regularisers:kl_estimate', '(logp - logp_ref)', '(logp_ref - logp)'),
    'KL rewarded instead of punished': ('objectives.regularisers:kl_penalty', 'return coef *', 'return -coef *'),
    'k1 where k3 is meant': ('objectives.regularisers:KL_ESTIMATORS', 'torch.expm1(-u) + u', 'u'),
    'k3 of the other divergence': ('objectives.regularisers:KL_ESTIMATORS', 'torch.expm1(-u) + u', 'torch.expm1(u) - u'),
    'k2 without its half': ('objectives.regularisers:KL_ESTIMATORS', 'u.square() / 2', 'u.square()'),
    'straight-through without detach': ('objectives.regularisers:kl_estimate', '(value - k2).detach()', '(value - k2)'),
    'entropy punished instead of rewarded': ('objectives.regularisers:entropy_bonus', 'return -coef *', 'return coef *'),
    'sign of the entropy': ('core.numerics:entropy_of', 'return -(', 'return ('),
    # means and masks
    'mean over padding': ('objectives.aggregation:row_divisors', 'whole.sum().clamp', 'torch.tensor(whole.numel()).clamp'),
    'row mean over padding': ('objectives.aggregation:row_divisors', 'mask.sum(1).clamp(min=1)', 'mask.shape[1]'),
    'sum instead of mean': ('objectives.aggregation:row_divisors', 'ones * whole.sum().clamp(min=1)', 'ones'),
    'sum over rows instead of mean': ('objectives.aggregation:row_divisors', "if mode == 'seq-mean-token-sum': return ones * rows", "if mode == 'seq-mean-token-sum': return ones"),
    'divisor of the slice, not of the batch': ('objectives.aggregation:aggregate', 'mask if whole is None else whole', 'mask'),
    'the loop forgets the whole batch': ('training.loop:piece_loss', 's.aggregate(loss, rows.mask, whole=whole)', 's.aggregate(loss, rows.mask)'),
    'sum over padding': ('core.numerics:masked_sum', 'torch.where(mask, x, ', 'torch.where(mask | True, x, '),
    'mask after the shift': ('objectives.surrogates:fill_outside', 'x.masked_fill(~mask, 0)', 'x.masked_fill(~mask.roll(1, 1), 0)'),
    'statistics of the neighbouring token': ('core.policy:statistics', 'places.append(at)', 'places.append((at[0], (at[1] + 1) % r.mask.shape[1]))'),
    'the end token carries no loss': ('core.sampler:draw', 'torch.where(live, y_logp, 0.0), live', 'torch.where(live, y_logp, 0.0), live & (y != policy.eos)'),
    'the end token carries no loss (generate)': ('core.sampler:draw_by_generate', 'ended.cumsum(1) - ended == 0', 'ended.cumsum(1) == 0'),
    'advantages of other rows': ('training.loop:update', 'rows_of(rollouts, keep), adv[keep]', 'rows_of(rollouts, keep), adv[:int(keep.sum())]'),
    'dropped rows still count': ('training.loop:update', 'rows_of(rollouts, keep), adv[keep], (weight * rollouts.loss_weight)[keep]', 'rollouts, adv, weight * rollouts.loss_weight'),
    # log-probabilities
    'off by one (fused forward)': ('core.fast_llama:tree_hidden', 'tree.token[inner]', 'tree.token[(inner + 1).clamp(max=len(tree.token) - 1)]'),
    'beginnings of different prompts taken for one': ('core.fast_llama:distinct_prefixes', 'prompt.clone()', 'torch.zeros_like(prompt)'),
    'different beginnings taken for one': ('core.fast_llama:distinct_prefixes', 'here[rows] * size + tokens[rows, t]', 'prompt[rows] * size + tokens[rows, t]'),
    'gradients through shared tokens get lost': ('core.fused:TreeMix.backward', 'out[:, h:].index_add_(0, nodes, more)', 'pass'),
    'gradients through shared prompts get lost': ('core.fused:TreeMix.backward', 'total.index_add_(0, b.prompt, g[:, :, :total.shape[2]])', 'total[b.prompt] = g[:, :, :total.shape[2]]'),
    'rows that part ways share their next token': ('core.fast_llama:FastDecoder.distinct', 'self.same * len(self.w.head) + tokens', 'self.same'),
    'off by one (functional forward)': ('core.llama:response_hidden', 'tokens[:, :-1]', 'tokens[:, 1:]'),
    'off by one (plain forward)': ('core.policy:_response_hidden', 'last_hidden_state[:, start - 1:-1]', 'last_hidden_state[:, start:]'),
    'off by one (logits of others)': ('core.policy:_whole_logits', '.logits[:, start - 1:-1]', '.logits[:, start:]'),
    'positions that count padding': ('core.fast_llama:tree_hidden', 'mask.sum(1)[', 'torch.full_like(mask.sum(1), mask.shape[1])['),
    'temperature the wrong way': ('core.policy:_stats', 'logits / temperature', 'logits * temperature'),
    'unnormalised log-probability': ('core.numerics:logp_of', ' - logits.logsumexp(-1)', ' - logits.amax(-1)'),
    'sign in the fused backward': ('core.fused:LogpEntropy.backward', 'probs * -grad[:, None]', 'probs * grad[:, None]'),
    'log-probability after truncation of temperature': ('core.sampler:choose', 'logits.float() / (temperature or 1.0)', 'logits.float()'),
    'reference is the trained policy': ('objectives.regularisers:fixed_reference.__call__', 'policy.clone()', 'policy'),
    'noise that repeats along the row': ('core.numerics:keyed_uniform', 'fold(seed, rows[:, None], positions[None, :])', 'fold(seed, rows[:, None] * 0, positions[None, :])'),
    # advantages
    'std of the batch instead of the group': ('advantages.group_relative:grpo', "group if scale == 'group' else torch.zeros_like(group)", 'torch.zeros_like(group)'),
    'baseline over other groups': ('core.rollouts:group_mean', 'group_sum(x, group) / group_count(x, group)', 'group_sum(x, 0 * group) / group_count(x, 0 * group)'),
    'population instead of sample std': ('advantages.group_relative:grpo', 'ddof=ddof', 'ddof=0'),
    'ddof by default': ('advantages.group_relative:grpo', 'ddof: int = 1', 'ddof: int = 0'),
    'eps inside the root': ('advantages.group_relative:grpo', 'adv / (std + eps)', 'adv / (std.square() + eps).sqrt()'),
    'leave one out that leaves none out': ('core.rollouts:leave_one_out_mean', "(group_sum(x, group) - x.nan_to_num(nan=0.0)) / (count - 1)", 'group_sum(x, group) / count'),
    'leave one out over the wrong count': ('core.rollouts:leave_one_out_mean', '(count - 1).clamp(min=1)', 'count.clamp(min=1)'),
    'unscored rows counted': ('core.rollouts:group_count', '(~x.isnan())', '(x == x).logical_or(x != x)'),
    'right and wrong swapped': ('advantages.negative_reinforcement:weighted_reinforce', 'baseline=threshold) > 0', 'baseline=threshold) <= 0'),
    'only positive rows kept': ('advantages.selection:drop_zero_rows', 'adv != 0', 'adv > 0'),
    'subsets that hold the row counted among those that do not': ('advantages.passk_advantages:pkpo', 'others = c - right', 'others = c'),
    # surrogates
    'sign of the policy gradient': ('objectives.surrogates:policy_gradient', 'return -adv * logp', 'return adv * logp'),
    'clip on the wrong side': ('objectives.surrogates:ppo_clip', 'torch.minimum', 'torch.maximum'),
    'low and high of the clip swapped': ('objectives.surrogates:ppo_clip', 'rho.clamp(1 - low, 1 + high)', 'rho.clamp(1 - high, 1 + low)'),
    'clip without the minimum': ('objectives.surrogates:ppo_clip', 'torch.minimum(rho * adv, rho.clamp(1 - low, 1 + high) * adv)', '(rho.clamp(1 - low, 1 + high) * adv)'),
    'ratio upside down': ('objectives.surrogates:ratio_of', 'return (logp - logp_old)', 'return (logp_old - logp)'),
    'ratio without gradient': ('objectives.surrogates:ratio_of', '.exp()', '.exp().detach()'),
    'weight of cispo without detach': ('objectives.clipping:cispo', 'logp.detach()', 'logp'),
    'sum of log-ratios instead of their mean': ('objectives.sequence_ratios:sequence_log_ratio', 'mask, 1)[:, None]', 'mask, 1)[:, None] * mask.sum(1, keepdim=True)'),
    'ratio without detach': ('objectives.sequence_ratios:gspo_token', 'mask).detach() + logp', 'mask) + logp'),
    'clip that forgets the side': ('objectives.sequence_ratios:gmpo', 'kept = side * torch.minimum(side * u, side * u.clamp(-low, high))', 'kept = u'),
    # evaluation
    'pass@k with replacement': ('analysis.passk:pass_at_k', 'log_miss(num_samples, num_correct, k)', 'np.multiply.outer(np.log1p(-np.divide(num_correct, num_samples)), k)'),
}


@pytest.mark.parametrize('f, args', [pytest.param(f, args, id='-'.join([f.__name__, *(getattr(a, 'name', str(a)) for a in args)])) for f, args in CHECKS])
def test_the_real_code_passes(f, args): f(*args)


@pytest.mark.parametrize('fault', FAULTS)
def test_a_planted_fault_is_noticed(fault):
    with planted(*FAULTS[fault]): caught = first_to_fail()
    assert caught, f"nothing notices: {fault}"


def test_a_fault_that_no_longer_fits_is_reported():
    with pytest.raises(AssertionError, match='needs new text'):
        with planted('core.numerics:logp_of', 'no such text', ''): pass
    with pytest.raises(AssertionError, match='needs a new place'):
        with planted('core.numerics:no_such_function', 'a', 'b'): pass


def test_everything_is_put_back():
    before = grpo.__code__
    with planted('advantages.group_relative:grpo', 'ddof=ddof', 'ddof=0'): assert grpo.__code__ is not before
    assert grpo.__code__ is before
