"""Checks written by hand, each a function without arguments: numbers worked out on paper, and whole
steps of training done again the slow way. `test_mutants.py` runs them on the real code,
`mutants.py` on code with a fault in it."""

import dataclasses, functools, math
from types import SimpleNamespace
import torch
import test_contracts as contracts
import test_oracle as oracle
from rl4llm.advantages import dr_grpo, grpo, pkpo, rloo, weighted_reinforce
from rl4llm.analysis import pass_at_k
from rl4llm.core.numerics import entropy_of, keyed_uniform, kl_estimate
from rl4llm.core.policy import _whole_logits
from rl4llm.core.registry import recipe, use
from rl4llm.core.rollouts import ORIGINS, share_count
from rl4llm.engine.llama import response_hidden, weights_of
from rl4llm.objectives import aggregate, gmpo, gspo, gspo_token, ppo_clip
from rl4llm.objectives.outcome_limit import verdict_weights
from rl4llm.oracle.decisions import exact_pass_at_k_gradient
from rl4llm.oracle.estimators import check
from rl4llm.oracle.tabular import TokenTree, exact_entropy, exact_gradient, random_logits
from rl4llm.tasks import task
from rl4llm.training.loop import add_step_signals, train

NAN = float('nan')


def double(x):
    return torch.as_tensor(x, dtype=torch.float64)


def near(a, b, atol=1e-9):
    assert torch.allclose(double(a), double(b), rtol=0, atol=atol, equal_nan=True), (a, b)


def grad(f, *x):
    return torch.func.grad(f)(*x)


# -- advantages


def check_reference_numbers():
    "A group of eight of which one is right, and a group of three of which two are."
    r = double([1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0])
    group = torch.tensor([0] * 8 + [1] * 3)
    near(rloo(r, group)[[0, 1, 8, 10]], [1, -1 / 7, 0.5, -1])
    near(dr_grpo(r, group)[[0, 1, 8, 10]], [0.875, -0.125, 1 / 3, -2 / 3])
    near(grpo(r, group, eps=0.0)[[0, 1]], [math.sqrt(49 / 8), -1 / math.sqrt(8)])
    near(grpo(r, group, eps=0.0, ddof=0)[[0, 1]], [math.sqrt(7), -math.sqrt(1 / 7)])
    near(grpo(r, group, eps=1.0)[0], 0.875 / (math.sqrt(1 / 8) + 1))
    near(grpo(r, group, eps=0.0)[8:], grpo(r[8:], group[8:], eps=0.0))
    near(weighted_reinforce(r, group)[[0, 1]], [0.1, -1])


def check_unscored_rows():
    "A row that could not be scored has no share in its group."
    r, group = double([1, 0, NAN, 0, 1, 1]), torch.tensor([0, 0, 0, 1, 1, 1])
    near(rloo(r, group), [1, -1, 0, -1, 0.5, 0.5])
    near(grpo(r, group, eps=0.0)[:3], [math.sqrt(0.5), -math.sqrt(0.5), 0])
    one_prompt = torch.zeros(4, dtype=torch.long)
    signed = pkpo(double([1, NAN, -1, -1]), one_prompt, threshold=-0.5)
    near(signed[[0, 2, 3]], pkpo(double([1, -1, -1]), one_prompt[:3], threshold=-0.5))
    too_few = pkpo(double([1, 0, NAN, NAN]), one_prompt, k=3, baseline='none')
    near(too_few, [0, 0, 0, 0])


def check_top_quarter():
    "OREAL's other weighting, token by token: a quarter of a row, rounded up, where it agrees most with its verdict, from 0 at the least of them to 1."
    p = torch.rand(9, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask, right = torch.arange(9) < torch.arange(1, 10)[:, None], torch.arange(9) % 2 == 0
    mask[8, 3] = False  # a hole: eight tokens left
    wanted = torch.zeros_like(p)
    for row, (count, kept) in enumerate(zip(range(1, 10), (1, 1, 1, 1, 2, 2, 2, 2, 2))):
        agree = {
            t: float(p[row, t] if right[row] else 1 - p[row, t])
            for t in range(count)
            if mask[row, t]
        }
        best = sorted(agree, key=agree.get)[-kept:]
        low, high = agree[best[0]], agree[best[-1]]
        for t in best:
            wanted[row, t] = (agree[t] - low) / (high - low) if high > low else 1
    near(verdict_weights(p, right, mask, how='top'), wanted)


def check_shares_are_rounded_up():
    "As by fractions, which have no rounding error: in single precision 0.3 of 50 would be 16."
    lengths = torch.arange(0, 121)
    mask = torch.arange(120) < lengths[:, None]
    for percent in range(1, 101):
        assert share_count(mask, percent / 100)[:, 0].tolist() == [
            -(-percent * n // 100) for n in lengths.tolist()
        ]


# -- losses


def check_clip_by_cases():
    "Ratio and advantage of either sign: the loss, and on which side the gradient stops."
    ratio, mask = double([[0.5, 0.75, 1.25, 1.5]] * 2), torch.ones(2, 4, dtype=torch.bool)
    adv, old = double([[1], [-1]]).expand(2, 4), torch.zeros(2, 4, dtype=torch.float64)

    def loss(logp):
        return ppo_clip(logp, old, adv, mask, low=0.3, high=0.4)

    near(loss(ratio.log()), [[-0.5, -0.75, -1.25, -1.4], [0.7, 0.75, 1.25, 1.5]])
    slope = grad(lambda x: loss(x).sum(), ratio.log())
    near(slope, [[-0.5, -0.75, -1.25, 0], [0, 0.75, 1.25, 1.5]])


def check_aggregation_by_hand():
    """Rows of three tokens and of one; each row alone, with the mask of both, adds up. A single
    token is its own mean, and nothing at all is 0."""
    loss = double([[1, 2, 3, NAN], [4, NAN, NAN, NAN]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]]).bool()
    wanted = {
        'token-mean': 10 / 4,
        'seq-mean-token-mean': (2 + 4) / 2,
        'seq-mean-token-sum': (6 + 4) / 2,
        'seq-mean-token-sum-norm': (6 + 4) / 2 / 4,
    }
    for mode, value in wanted.items():
        near(aggregate(loss, mask, mode), value)
        first = aggregate(loss[:1], mask[:1], mode, whole=mask)
        second = aggregate(loss[1:], mask[1:], mode, whole=mask)
        near(first + second, value)
        near(aggregate(double([[3]]), torch.ones(1, 1).bool(), mode), 3)
        near(aggregate(double([[3]]), torch.zeros(1, 1).bool(), mode), 0)


def check_kl_estimators():
    """Means over a softmax of five tokens: value of k1 and k3; gradient of k1 (none), of k2 (the
    divergence's), of k3 (that of the other divergence), and of k1+ and k3+ (k2's)."""
    generators = [torch.Generator().manual_seed(seed) for seed in (0, 1)]
    z, ref = (torch.randn(5, dtype=torch.float64, generator=g) for g in generators)
    p = z.softmax(0)

    def kl(x):
        return (x.softmax(0) * (x.log_softmax(0) - ref.log_softmax(0))).sum()

    def other(x):
        return -(ref.softmax(0) * x.log_softmax(0)).sum()

    def mean(name, x):
        return (p * kl_estimate(x.log_softmax(0), ref.log_softmax(0), estimator=name)).sum()

    for name in ('k1', 'k3', 'k3+'):
        near(mean(name, z), kl(z))
    own, of_other = grad(kl, z), grad(other, z)
    wanted = {'k1': torch.zeros(5), 'k2': own, 'k3': of_other, 'k3+': own, 'k1+': own}
    for name, slope in wanted.items():
        near(grad(lambda x: mean(name, x), z), slope)


ONE = TokenTree(vocab=5, length=1)
Z, REF, PAY = random_logits(ONE, seed=1), random_logits(ONE, seed=2), torch.arange(5.0) / 4


def check_penalty_goes_the_right_way():
    penalty = use('kl_penalty', coef=0.3, estimator='k2')
    goal = exact_gradient(ONE, Z, PAY, ref=REF, beta=0.3)
    found = check(use('rloo'), ONE, Z, PAY, regularisers=(penalty,), ref=REF, target=goal)
    assert found.unbiased, found


def check_bonus_goes_the_right_way():
    near(entropy_of(torch.zeros(8, dtype=torch.float64)), math.log(8))
    goal = exact_gradient(ONE, Z, PAY) + 0.3 * grad(lambda x: exact_entropy(ONE, x), Z)
    bonus = use('entropy_bonus', coef=0.3)
    assert check(use('rloo'), ONE, Z, PAY, regularisers=(bonus,), target=goal).unbiased


def check_updates_of_old_data():
    """Token ratios are exact for one token, whoever drew it; on the policy's own data any of these
    objectives has the plain gradient."""
    wide = use('ppo_clip', low=99.0, high=99.0)
    assert check(use('rloo'), ONE, Z, PAY, old=REF, objective=wide).unbiased
    world = oracle.TREE, oracle.LOGITS, oracle.GRADED
    for name in ('policy_gradient', 'ppo_clip', 'dual_clip', 'cispo', 'gspo', 'gmpo'):
        assert check(use('rloo'), *world, objective=use(name)).unbiased, name


def check_ratio_of_a_response():
    """Geometric mean of the token ratios: its value, and the gradient of the row's loss, shared
    alike or by each token's own advantage."""
    logp, old = double([[-0.5, -0.7, NAN]]), double([[-0.6, -1.0, NAN]])
    mask = torch.tensor([[True, True, False]])
    ratio, wide = math.exp(0.2), dict(low=9.0, high=9.0)
    alike, own = torch.ones(1, 3, dtype=torch.float64), double([[1, -2, NAN]])
    for f, adv in ((gspo, alike), (gspo_token, alike), (gspo_token, own), (gmpo, alike)):
        wanted = (-ratio * adv).masked_fill(~mask, 0)
        near(f(logp, old, adv, mask, **wide), wanted)
        near(grad(lambda x: f(x, old, adv, mask, **wide).sum(), logp), wanted)
    top = -math.exp(0.1)
    near(gmpo(logp, old, alike, mask, low=0.05, high=0.1), [[top, top, 0]])


PAPER_KNOBS = [  # stage, what is given in any case, and values of the papers for what is not
    ('ppo_clip', {}, dict(low=0.2, high=0.2)),
    ('dual_clip', {}, dict(low=0.2, high=0.2, c=3.0)),
    ('ppo_preclip', {}, dict(low=0.2, high=0.2, floor=1e-3, ceiling=1e3)),
    ('cispo', {}, dict(low=0.2, high=0.2)),
    ('sapo', {}, dict(tau_pos=1.0, tau_neg=1.05)),
    ('gspo', {}, dict(low=3e-4, high=4e-4)),
    ('gspo_token', {}, dict(low=3e-4, high=4e-4)),
    ('gmpo', {}, dict(low=0.4, high=0.4)),
    ('truncated_is', {}, dict(cap=2.0, low=0.2, high=0.2)),
    ('decoupled_ppo', {}, dict(low=0.2, high=0.2)),
    ('banded_ppo', {}, dict(low=0.2, high=0.2)),
    ('behaviour_clip', {}, dict(low=0.2, high=0.2)),
    ('off_policy_mask', {}, dict(delta=0.5, low=0.2, high=0.2)),
    ('clip_cov', dict(fraction=1.0), dict(lower=1.0, upper=5.0, low=0.2, high=0.2)),
    ('clip_cov', {}, dict(fraction=2e-4)),
    ('kl_cov', {}, dict(fraction=2e-4, coef=1.0)),
    ('lp_reg', {}, dict(kappa=0.02, share=0.01, beta=1.0, high=9.0)),
    ('dph', dict(divergence='alpha'), dict(coef=0.02, alpha=0.2, low=0.2, high=0.28)),
    ('nlpo', {}, dict(low=0.2, high=0.2)),
    ('a_lol', {}, dict(eps=0.9)),
    ('a_lol', dict(variant='kl'), dict(beta=0.05)),
    ('oreal', {}, dict(positive=1.0, negative=0.5, threshold=0.5)),
    ('pacs', {}, dict(beta=1.0, threshold=0.5)),
    ('rover', {}, dict(rho=1.0)),
    ('kl_penalty', {}, dict(coef=1e-3)),
    ('entropy_bonus', {}, dict(coef=1e-3)),
]


def moved_rows(rows=48, width=40, vocab=6):
    "What objectives ask for, of rows that moved by little and by much, up and down."
    g = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    shape, far = (rows, width), double([5e-4, 0.3, 1, 8])[torch.arange(rows) % 4, None]
    old, mask = -3 + 0.8 * normal(*shape), torch.rand(shape, generator=g) < 0.8
    logp = old + far * (normal(*shape) / 8 + normal(rows, 1))
    allowed = torch.rand(*shape, vocab, generator=g) < 0.5
    allowed[..., 0] = True
    rollouts = SimpleNamespace(
        origin=torch.where(torch.arange(rows) % 3 < 2, 0, ORIGINS.index('replay')),
        logp_behave=old + 0.6 * normal(rows, 1) + 0.2 * normal(*shape),
        signals=dict(action_mask=allowed, log_mass=-normal(*shape).abs()),
    )
    return dict(
        logp=logp,
        logp_old=old,
        adv=2 * normal(*shape),
        mask=mask,
        rollouts=rollouts,
        logp_behave=rollouts.logp_behave,
        logp_ref=old + normal(*shape),
        entropy=normal(*shape).abs(),
        mean_logp=-5 + normal(*shape),
        old_mean_logp=-5 + normal(*shape),
        old_min_p_proxies=-3 + normal(*shape, 7),
        logits=normal(*shape, vocab),
        tokens=torch.randint(100, shape, generator=g),
        rewards=torch.arange(rows) % 5 / 4.0,
        group=torch.arange(rows) // 8,
    )


def another(value):
    "A value that a slip might put in place of this one."
    return value + 1 if value < 0.01 else 2 * value


def check_knobs_that_nobody_gives():
    "An objective without a knob is that with the paper's value, and any other value is noticed."
    data = moved_rows()
    for name, given, knobs in PAPER_KNOBS:
        stage = use(name)
        asked = ['logp', 'mask', *stage.info.needs]
        if stage.info.kind == 'objective':
            asked += ['logp_old', 'adv']
        loss = functools.partial(stage, **{k: data[k] for k in asked}, **given)
        usual = loss()
        near(usual, loss(**knobs), 0)
        for knob, value in knobs.items():
            try:
                changed = loss(**{**knobs, knob: another(value)})
            except ValueError:
                continue
            assert not torch.allclose(changed, usual, rtol=0, atol=1e-12), (name, knob)


def check_climb_of_pass_at_k():
    world = oracle.TREE, oracle.LOGITS, oracle.RIGHT
    goal = exact_pass_at_k_gradient(*world, 2)
    for baseline in ('smaller', 'leave_one_out', 'none'):
        assert check(use('pkpo', k=2, baseline=baseline), *world, group=3, target=goal).unbiased


def check_factors_of_the_estimators():
    oracle.test_known_factors()


def check_weight_of_a_prompt():
    oracle.test_dropped_rows_change_the_weight_of_a_prompt()


# -- log-probabilities


def plain_logps(policy, r, temperature):
    "Log-probability and entropy of each response token, one row at a time, without padding."
    logp, entropy = torch.zeros(r.mask.shape), torch.zeros(r.mask.shape)
    for i, p in enumerate(r.prompt.tolist()):
        asked, said = r.prompt_ids[p][r.prompt_mask[p]], r.tokens[i][r.mask[i]]
        logits = policy.model(torch.cat([asked, said])[None]).logits[0]
        z = (logits / temperature).log_softmax(-1)
        for t, token in enumerate(said.tolist()):
            here = z[len(asked) + t - 1]
            logp[i, t], entropy[i, t] = here[token], -(here.exp() * here).sum()
    return logp, entropy


def alike_at_first():
    "Rollouts without gaps, whose rows share two tokens with the other rows of their prompt."
    r, rows = contracts.some_rollouts(torch.float32), torch.arange(contracts.N)
    mask = contracts.LENGTHS[:, None] > torch.arange(contracts.T)
    words = torch.where(mask & ~r.mask, 100, r.tokens)  # a gap holds a padding token
    long = contracts.LENGTHS > 2
    first = torch.tensor([int(rows[(r.prompt == p) & long][0]) for p in r.prompt])
    shared = (torch.arange(contracts.T) < 2) & long[:, None]
    return dataclasses.replace(r, tokens=torch.where(shared, words[first], words), mask=mask)


def paths():
    "The same policy on the fast path and on that of Hugging Face."
    slow = dataclasses.replace(contracts.small_policy().clone(), fast=False)
    return contracts.small_policy(), slow


@torch.no_grad()
def check_log_probabilities():
    "Log-probabilities and entropies on every path are those of one row after the other."
    r, policy = alike_at_first(), contracts.small_policy()
    logp, entropy = plain_logps(policy, r, 0.7)
    for path in paths():
        found = path.logprobs(r, temperature=0.7)
        near(found[0].double(), logp.double(), 1e-4)
        near(found[1].double(), entropy.double(), 1e-4)
    w, tokens = weights_of(policy.model), r.tokens[r.mask]
    hidden = response_hidden(w, r.prompt_ids, r.prompt_mask, r.tokens, r.prompt)
    for z in (hidden[r.mask] @ w.head.t(), _whole_logits(policy, r)):  # not on the fast path
        every = (z / 0.7).log_softmax(-1)
        near(every[torch.arange(len(tokens)), tokens], logp[r.mask], 1e-4)


def check_gradients_of_log_probabilities():
    "Both paths have the same gradient, of a loss that weighs each position differently."
    r, found = alike_at_first(), []
    for policy in paths():
        logp = policy.statistics(r, ('logp',), watched=('entropy',))['logp']
        total = (logp * torch.arange(contracts.T)).sum()
        found.append(torch.autograd.grad(total, list(policy.model.parameters())))
    assert all(torch.allclose(a, b, atol=1e-3) for a, b in zip(*found))


def check_sampled_tokens():
    """The sampler's log-probabilities are those of a later forward; a finished row ends in the end
    token, which is trained; rows differ."""
    for policy in paths():
        items = list(contracts.problems())
        r = policy.sample(items, 6, seed=1, temperature=2.0, max_new_tokens=48)
        near(policy.logprobs(r)[0].detach()[r.mask], r.logp_behave[r.mask], 1e-3)
        assert r.mask.any(1).all() and r.finished.any()
        last = r.tokens.gather(1, r.mask.sum(1, keepdim=True) - 1)[:, 0]
        assert (last[r.finished] == policy.eos).all()
        assert (r.tokens[r.mask] == policy.eos).sum() == r.finished.sum()
        assert len({tuple(t) for t in r.tokens.tolist()}) > len(r) / 2
    near(keyed_uniform(3, torch.arange(400), torch.arange(50)).mean(), 0.5, 0.01)


# -- the loop


def odd(prompts, completions, **columns):
    "A reward that an untrained model gets now and then."
    return [float(len(c) % 2) for c in completions]


class Watch:
    "A callback that keeps the state and the rows of metrics."

    def __init__(self):
        self.rows = []

    def on_step(self, state, row):
        self.state = state
        self.rows.append(row)


def lively(**changes):
    "A small recipe in which every step has something to learn from."
    numbers = dict(prompts=3, group=4, lr=1e-3)
    sampler = use('sample', max_new_tokens=8)
    return recipe('grpo', **{**numbers, 'reward': use(odd), 'sampler': sampler, **changes})


def trained(steps=1, **changes):
    "The small policy after some steps, and what was seen on the way."
    policy, watch = contracts.small_policy().clone(), Watch()
    easy = task('countdown', level='easy')
    train(policy, easy, lively(**changes), steps=steps, callbacks=[watch])
    return policy, watch


TOKEN_MEAN = use('aggregate', mode='token-mean')


def check_slices_add_up():
    "Slices of memory leave the first step's loss and gradient as they are."
    rows = [trained(aggregate=TOKEN_MEAN, micro=m)[1].rows[0] for m in (None, 5)]
    whole, sliced = rows
    assert whole['grad_norm'] > 0
    assert math.isclose(whole['grad_norm'], sliced['grad_norm'], rel_tol=1e-4)
    assert math.isclose(whole['loss'], sliced['loss'], abs_tol=1e-6)


def check_first_step_by_hand():
    """Loss and gradient norm of a step that keeps only rows with an advantage, from the rollouts it
    was taken on."""
    _, watch = trained(
        advantage='positive',
        select='drop_zero_rows',
        objective='policy_gradient',
        aggregate=TOKEN_MEAN,
        temperature=0.8,
    )
    policy, r, row = contracts.small_policy().clone(), watch.state.rollouts, watch.rows[0]
    kept = (r.rewards > 0.5)[:, None] & r.mask
    loss = -policy.logprobs(r)[0][kept].mean()
    slopes = torch.autograd.grad(loss, list(policy.model.parameters()))
    norm = float(torch.nn.utils.get_total_norm(slopes))
    assert 0 < kept.any(1).sum() < len(r)
    assert row['trained_tokens'] == kept.sum() and r.temperature == 0.8
    near([row['loss'], row['grad_norm']], [float(loss.detach()), norm], 1e-4)


def check_reference_stays():
    """After a step, the reference still gives the log-probabilities of the first weights, and the
    old ones are those before the update."""
    penalty = use('kl_penalty', coef=0.1)
    _, watch = trained(steps=2, regularisers=(penalty,), epochs=2)
    r = watch.state.rollouts
    needed = add_step_signals(watch.state, r, {'logp_ref', 'logp_old'})
    near(needed.logp_ref, contracts.small_policy().logprobs(r)[0].detach(), 1e-4)
    assert watch.rows[1]['kl'] > 0 and watch.rows[0]['updates'] == 2


# -- evaluation


def check_pass_at_k():
    near(pass_at_k([4, 5], [1, 2], [2, 3]), [[1 / 2, 3 / 4], [1 - 3 / 10, 1 - 1 / 10]])


CHECKS = [f for name, f in list(globals().items()) if name.startswith('check_')]
