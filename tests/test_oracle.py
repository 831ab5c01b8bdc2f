"The exact oracle: its own identities on many small trees, and every registered stage that claims an exact gradient."

import pytest, torch
from hypothesis import given, settings, strategies as st
from rl4llm.core.registry import recipe, stages, use
from rl4llm.oracle.decisions import (
    exact_effective_horizon,
    exact_pass_at_k_gradient,
    exact_q,
    gorp_success,
    greedy_value,
    look_ahead,
    needed_depth,
    optimal_q,
    soft_q,
    step_effect,
    tree_children,
)
from rl4llm.oracle.estimators import (
    all_groups,
    check,
    estimator_of,
    group_gradients,
    one_gradient,
    tree_has,
)
from rl4llm.oracle.tabular import (
    TokenTree,
    exact_advantages,
    exact_entropy,
    exact_gradient,
    exact_kl,
    exact_objective,
    exact_pass_at_k,
    exact_value,
    exact_values,
    random_logits,
    regularised_optimum,
    sequence_logps,
    state_entropy,
    state_kl,
    token_scores,
    tree_rewards,
    visit_probs,
)

TREE = TokenTree(vocab=3, length=3, eos=0)
RIGHT = tree_rewards(TREE, lambda s: sum(s) == 3)
GRADED = tree_rewards(TREE, lambda s: sum(s) / 6)
LOGITS = random_logits(TREE, seed=3)


def close(a, b, atol=1e-10):
    return torch.allclose(
        torch.as_tensor(a, dtype=torch.float64),
        torch.as_tensor(b, dtype=torch.float64),
        rtol=0,
        atol=atol,
    )


@st.composite
def worlds(draw):
    "A small tree, a policy on it, and rewards of either sign."
    vocab, length = draw(st.sampled_from([(2, 1), (2, 3), (3, 2), (3, 3), (4, 2), (5, 2)]))
    tree, seed = (
        TokenTree(vocab, length, draw(st.sampled_from([None, 0, vocab - 1]))),
        draw(st.integers(0, 999)),
    )
    rewards = torch.randn(
        len(tree.sequences), dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return (
        tree,
        random_logits(tree, seed=seed, scale=draw(st.sampled_from([0.0, 1.0, 3.0]))),
        rewards,
    )


@given(worlds())
@settings(max_examples=40, deadline=None)
def test_probabilities_and_chain_rules(world):
    tree, z, _ = world
    ref = random_logits(tree, seed=1)
    assert abs(sequence_logps(tree, z).exp().sum() - 1) < 1e-12
    assert close(visit_probs(tree, z) @ state_entropy(tree, z), exact_entropy(tree, z))
    assert (
        close(visit_probs(tree, z) @ state_kl(tree, z, ref), exact_kl(tree, z, ref))
        and exact_kl(tree, z, ref) >= -1e-12
    )


@given(worlds())
@settings(max_examples=40, deadline=None)
def test_three_ways_to_the_gradient(world):
    tree, z, r = world
    g, p, scores = exact_gradient(tree, z, r), sequence_logps(tree, z).exp(), token_scores(tree, z)
    assert close(torch.einsum('s,s,stcv->cv', p, r, scores), g, 1e-12)
    assert close(torch.einsum('s,st,stcv->cv', p, exact_advantages(tree, z, r), scores), g, 1e-12)
    step = (
        torch.randn(z.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 1e-5
    )
    difference = exact_objective(tree, z + step, r) - exact_objective(tree, z - step, r)
    assert close(difference, 2 * (g * step).sum(), 1e-12)


@given(worlds())
@settings(max_examples=30, deadline=None)
def test_values_are_a_martingale(world):
    tree, z, r = world
    values = dict(zip(tree.prefixes, exact_values(tree, z, r)))
    for c, prefix in enumerate(tree.prefixes):
        children = torch.stack([exact_value(tree, z, r, (*prefix, v)) for v in range(tree.vocab)])
        assert close(z[c].softmax(0) @ children, values[prefix])


@given(worlds(), st.sampled_from([0.1, 1.0, 10.0]))
@settings(max_examples=30, deadline=None)
def test_regularised_optimum(world, beta):
    tree, z, r = world
    best, J = regularised_optimum(tree, z, r, beta=beta)
    other = random_logits(tree, seed=7)
    assert close(
        J - exact_objective(tree, other, r, ref=z, beta=beta),
        beta * exact_kl(tree, other, best),
        1e-9,
    )
    assert exact_gradient(tree, best, r, ref=z, beta=beta).abs().max() < 1e-9


def test_pass_at_k_by_enumeration():
    p, rows = sequence_logps(TREE, LOGITS).exp(), torch.arange(len(RIGHT))
    for k in (1, 2, 3):
        groups = torch.cartesian_prod(*[rows] * k).view(-1, k)
        assert close(
            (p[groups].prod(1) * RIGHT[groups].any(1)).sum(),
            exact_pass_at_k(TREE, LOGITS, RIGHT, k),
            1e-12,
        )


@pytest.mark.parametrize(
    'call, word',
    [
        (lambda: TokenTree(vocab=1), 'vocab'),
        (lambda: TokenTree(3, 2, eos=5), 'eos'),
        (lambda: TokenTree(11, 3), '1024'),
        (lambda: exact_objective(TREE, LOGITS[:2], RIGHT), 'logits'),
        (lambda: exact_objective(TREE, LOGITS, RIGHT[:2]), 'rewards'),
        (lambda: exact_value(TREE, LOGITS, RIGHT, (0, 1)), 'starts with'),
        (lambda: regularised_optimum(TREE, LOGITS, RIGHT, beta=0.0), 'beta'),
        (lambda: exact_pass_at_k(TREE, LOGITS, GRADED, 2), 'threshold'),
        (lambda: check(use('rloo'), TREE, LOGITS, RIGHT, group=8), 'samples='),
    ],
)
def test_refusals_say_what_was_wrong(call, word):
    with pytest.raises(ValueError, match=word):
        call()


CLAIMS = sorted(
    n for n, s in stages('advantage').items() if s.unbiased and all(map(tree_has, s.needs))
)
ASKS_FOR_TEXTS = {'grpo_s', 'grpo_roc'}  # a tree has no texts; their notebooks ask the oracle
OTHERS = sorted(
    n for n, s in stages('advantage').items() if s.unbiased is False and all(map(tree_has, s.needs))
)
OTHERS = [n for n in OTHERS if n not in ASKS_FOR_TEXTS]


def scales(name, tree, group):
    "Checks of a stage at a policy that is mostly wrong and at one that is mostly right."
    right, z = tree_rewards(tree, lambda s: s[0] == 1), random_logits(tree, seed=3)
    return [
        check(
            use(name),
            tree,
            regularised_optimum(tree, z, right * odds, beta=1.0)[0],
            right,
            group=group,
            ref=random_logits(tree, seed=6),
        )
        for odds in (-3.0, 3.0)
    ]


@pytest.mark.parametrize('name', CLAIMS)
@pytest.mark.parametrize('tree, group', [(TREE, 2), (TREE, 3), (TokenTree(2, 2), 4)], ids=str)
def test_claims_of_exact_gradients_hold(name, tree, group):
    "A stage registered `unbiased=True` gives the exact gradient up to one constant, the same for hard and easy prompts."
    hard, easy = scales(name, tree, group)
    assert hard.aligned and easy.aligned and close(hard.scale, easy.scale, 1e-8), (hard, easy)


def test_the_claim_test_would_catch_grpo():
    hard, easy = scales('grpo', TokenTree(2, 2), 4)
    assert hard.aligned and easy.aligned and abs(hard.scale - easy.scale) > 1e-3


@pytest.mark.parametrize('name', OTHERS)
def test_denied_claims_are_really_biased(name):
    assert not check(
        use(name), TREE, LOGITS, GRADED, group=2, ref=random_logits(TREE, seed=6)
    ).unbiased


def test_known_factors():
    found = {
        n: check(use(n), TREE, LOGITS, RIGHT, group=3)
        for n in ('rloo', 'dr_grpo', 'positive', 'negative', 'weighted_reinforce')
    }
    assert (
        found['rloo'].unbiased
        and close(found['dr_grpo'].scale, 2 / 3)
        and close(found['weighted_reinforce'].scale, 1.1)
    )
    assert close(found['positive'].mean, found['negative'].mean, 1e-12)
    assert close(check(use('dr_grpo'), TREE, LOGITS, GRADED, group=2).scale, 1 / 2)


def test_the_signal_to_noise_ratio_of_a_coin_is_its_odds():
    "By hand, one row without a baseline: mean p g and second moment p g^2, so p / (1 - p)."
    coin, heads = TokenTree(2, 1), torch.tensor([0.0, 1.0])
    z = torch.tensor([[0.0, 3.0]], dtype=torch.float64).log1p()  # p = 4 / 5
    assert close(check(use('reinforce', baseline=0.0), coin, z, heads, group=1).snr, 4.0)


def test_dropped_rows_change_the_weight_of_a_prompt():
    q, drop = exact_objective(TREE, LOGITS, RIGHT), use('drop_zero_rows')
    assert close(
        check(use('positive'), TREE, LOGITS, RIGHT, group=3, select=drop).scale,
        (1 - (1 - q) ** 3) / q,
    )
    assert close(
        check(use('negative'), TREE, LOGITS, RIGHT, group=3, select=drop).scale,
        (1 - q**3) / (1 - q),
    )


@pytest.mark.parametrize(
    'mode, exact',
    [
        ('token-mean', False),
        ('seq-mean-token-mean', False),
        ('seq-mean-token-sum', True),
        ('seq-mean-token-sum-norm', True),
    ],
)
def test_length_bias_of_each_aggregation(mode, exact):
    "Only the first token earns a reward, so no later logit should move."
    z, first = random_logits(TREE, seed=0, scale=0.0), tree_rewards(TREE, lambda s: s[0] == 1)
    later = check(use('rloo'), TREE, z, first, group=2, aggregate=use('aggregate', mode=mode)).mean[
        1:
    ]
    assert (later.abs().max() < 1e-12) == exact


@pytest.mark.parametrize(
    'stages_',
    [
        dict(),
        dict(objective=use('ppo_clip')),
        dict(select=use('drop_zero_rows'), aggregate=use('aggregate', mode='token-mean')),
        dict(aggregate=use('aggregate', mode='seq-mean-token-mean')),
    ],
    ids=['plain', 'clip', 'drop', 'length'],
)
def test_fast_and_literal_gradients_agree(stages_):
    est, rows = estimator_of(use('weighted_reinforce'), **stages_), torch.arange(len(RIGHT))
    pairs, old = torch.cartesian_prod(rows, rows), random_logits(TREE, seed=4)
    literal = torch.stack([one_gradient(est, TREE, LOGITS, RIGHT, i, old=old) for i in pairs])
    assert close(group_gradients(est, TREE, LOGITS, RIGHT, pairs, old=old), literal, 1e-12)


def test_stages_that_mix_groups_are_noticed():
    def batch_mean(rewards, group):
        return rewards - rewards.mean()

    assert close(check(batch_mean, TREE, LOGITS, RIGHT, group=2).scale, 1 / 2)
    with pytest.raises(ValueError, match='influence each other'):
        check(
            batch_mean,
            TokenTree(3, 3),
            random_logits(TokenTree(3, 3), seed=0),
            torch.arange(27.0),
            group=3,
        )


def test_sequence_importance_ratio_is_exact_off_policy_and_clipping_is_not():
    def sequence_ratio(logp, logp_old, adv, mask):
        return -((logp - logp_old) * mask).sum(1, keepdim=True).detach().exp() * adv * logp * mask

    old = random_logits(TREE, seed=5)
    assert check(use('rloo'), TREE, LOGITS, GRADED, old=old, objective=sequence_ratio).unbiased
    assert not check(use('rloo'), TREE, LOGITS, GRADED, old=old, objective=use('ppo_clip')).unbiased


def test_sampled_check_agrees_with_the_enumerated_one():
    whole, some = (
        check(use('grpo'), TREE, LOGITS, GRADED, group=2, samples=n) for n in (None, 20_000)
    )
    assert (
        whole.exact
        and not some.exact
        and ((some.mean - whole.mean).abs() <= 4 * some.stderr + 1e-12).all()
    )
    assert (
        abs(some.variance / whole.variance - 1) < 0.1
        and check(use('rloo'), TREE, LOGITS, GRADED, group=8, samples=20_000).unbiased
    )
    assert check(use('rloo'), TREE, LOGITS, GRADED, group=8, samples=500, seed=1).mean.equal(
        check(use('rloo'), TREE, LOGITS, GRADED, group=8, samples=500, seed=1).mean
    )


def test_unscored_rows_have_no_share():
    "A sequence whose reward is nan acts as if it had not been drawn: constant baselines stay exact for the rest."
    holes = RIGHT.clone()
    holes[4] = torch.nan
    found = check(
        use('reinforce', baseline=0.5),
        TREE,
        LOGITS,
        holes,
        target=exact_gradient(
            TREE,
            LOGITS,
            (RIGHT - 0.5).where(~holes.isnan(), torch.tensor(0.0, dtype=torch.float64)),
        ),
    )
    assert found.unbiased


def test_results_show_themselves():
    found = check(use('grpo', eps=0.0), TREE, LOGITS, GRADED)
    assert (
        'grpo(eps=0.0)' in found._repr_html_()
        and 'biased' in repr(found)
        and '15 sequences' in TREE._repr_html_()
    )


# signals, regularisers, recipes

REF = random_logits(TREE, seed=6)


def test_signals_are_those_of_the_loop():
    "Statistics of the live, the old and the reference policy, rows and the greedy reward, as looked up on the tree."
    seen = {}

    def curious(
        rewards,
        group,
        *,
        lengths,
        finished,
        tokens,
        mask,
        rollouts,
        logp_old,
        logp_ref,
        old_entropy,
        ref_entropy,
        greedy_rewards,
    ):
        seen.update(locals())
        return rewards

    def loss(logp, logp_old, adv, mask, *, entropy, logits):
        assert entropy.requires_grad and logits.shape == (*logp.shape, 3)
        return -adv * logp * mask + 0 * entropy

    old, rows = random_logits(TREE, seed=8), torch.tensor([3, 14])
    one_gradient(
        estimator_of(curious, objective=loss, ref=REF), TREE, LOGITS, GRADED, rows, old=old
    )
    keep = TREE.mask[rows]
    assert close(seen['old_entropy'], state_entropy(TREE, old)[TREE.state[rows]] * keep) and close(
        seen['ref_entropy'], state_entropy(TREE, REF)[TREE.state[rows]] * keep
    )
    assert close(seen['logp_ref'].sum(1), sequence_logps(TREE, REF)[rows]) and close(
        seen['logp_old'].sum(1), sequence_logps(TREE, old)[rows]
    )
    best = ()
    while best not in TREE.sequences:
        best += (int(old[TREE.prefixes.index(best)].argmax()),)
    assert (seen['greedy_rewards'] == GRADED[TREE.sequences.index(best)]).all() and torch.equal(
        seen['lengths'], keep.sum(1)
    )


def test_a_stage_that_asks_too_much_is_told_what_to_give():
    def hidden(rewards, group, *, old_hidden):
        return rewards

    def reference(rewards, group, *, ref_entropy):
        return rewards

    with pytest.raises(ValueError, match='old_hidden.*signals='):
        check(hidden, TREE, LOGITS, RIGHT)
    with pytest.raises(ValueError, match='ref_entropy.*ref='):
        check(reference, TREE, LOGITS, RIGHT)
    with pytest.raises(ValueError, match='target='):
        check(recipe('grpo_kl'), TREE, LOGITS, RIGHT, ref=REF)


def test_regularisers_of_a_recipe_are_part_of_the_step():
    one, z, ref, pay = (
        TokenTree(5, 1),
        random_logits(TokenTree(5, 1), seed=1),
        random_logits(TokenTree(5, 1), seed=2),
        torch.arange(5.0) / 4,
    )
    penalised = recipe(
        'rloo',
        regularisers=(use('kl_penalty', coef=0.3, estimator='k2'),),
        aggregate=use('aggregate', mode='seq-mean-token-sum'),
    )
    assert check(
        penalised, one, z, pay, ref=ref, target=exact_gradient(one, z, pay, ref=ref, beta=0.3)
    ).unbiased
    assert estimator_of(penalised).stages.needs == {'logp_ref'}


def test_memory_is_made_fresh_and_used_as_it_is_when_given():
    class constant:
        "A baseline that it remembers."

        def __init__(self, *, start=0.0):
            self.mean = start

        def __call__(self, rewards, group):
            return rewards - self.mean

    quiet, loud = (
        check(use(constant, start=0.5), TREE, LOGITS, RIGHT),
        check(constant(start=3.0), TREE, LOGITS, RIGHT),
    )
    assert quiet.unbiased and loud.unbiased and loud.variance > quiet.variance


# decisions


@given(worlds())
@settings(max_examples=25, deadline=None)
def test_values_of_decisions(world):
    tree, z, r = world
    q, v = exact_q(tree, z, r), exact_values(tree, z, r)
    assert close((z.softmax(-1) * q).sum(1), v) and close(
        q,
        torch.stack(
            [
                torch.stack([exact_value(tree, z, r, (*p, t)) for t in range(tree.vocab)])
                for p in tree.prefixes
            ]
        ),
    )
    assert close(
        visit_probs(tree, z)[:, None] * z.softmax(-1) * (q - v[:, None]), exact_gradient(tree, z, r)
    )
    assert close(optimal_q(tree, r).max(-1).values[0], r.max()) and close(
        greedy_value(tree, r, optimal_q(tree, r)), r.max()
    )
    assert close(
        (z.log_softmax(-1) + soft_q(tree, z, r, beta=0.5) / 0.5).softmax(-1),
        regularised_optimum(tree, z, r, beta=0.5)[0].softmax(-1),
    )
    assert (
        close(look_ahead(tree, r, q, tree.length - 1), optimal_q(tree, r))
        and 1 <= needed_depth(tree, r, z) <= tree.length
    )


@given(worlds())
@settings(max_examples=25, deadline=None)
def test_random_play_knows_the_way_to_right_answers(world):
    tree, _, r = world
    right = (r > r.quantile(0.8)).double()
    assert needed_depth(tree, right) == 1


def test_contexts_and_ends():
    child, end = tree_children(TREE)
    for c, prefix in enumerate(TREE.prefixes):
        for v in range(TREE.vocab):
            if end[c, v] >= 0:
                assert TREE.sequences[end[c, v]] == (*prefix, v) and child[c, v] == -1
            else:
                assert TREE.prefixes[child[c, v]] == (*prefix, v)


def test_effective_horizon():
    tree = TokenTree(2, 4)
    needle = tree_rewards(tree, lambda s: s == (1, 0, 1, 1))
    found = exact_effective_horizon(tree, needle)
    assert found['samples'][4] == 1 and found['horizon'] <= 4
    for k, m in found['samples'].items():
        assert gorp_success(tree, needle, k=k, m=m) >= 0.5 and (
            m == 1 or gorp_success(tree, needle, k=k, m=m - 1) < 0.5
        )
    with pytest.raises(ValueError, match='binomial'):
        gorp_success(TREE, GRADED, k=1, m=1)


@pytest.mark.parametrize('k', [1, 2, 7])
def test_gradient_of_pass_at_k(k):
    q = exact_objective(TREE, LOGITS, RIGHT)
    assert close(
        exact_pass_at_k_gradient(TREE, LOGITS, RIGHT, k),
        k * (1 - q) ** (k - 1) * exact_gradient(TREE, LOGITS, RIGHT),
    )


def test_effect_of_one_step():
    "A short step gains what the gradient promises; enumerated and sampled groups agree; the mean is over all groups."
    g = exact_gradient(TREE, LOGITS, RIGHT)
    short = step_effect(use('rloo'), TREE, LOGITS, RIGHT, lr=1e-3)
    assert close(
        short.loc['reward', 'exact step'] - short.loc['reward', 'before'],
        1e-3 * g.square().sum(),
        1e-6,
    ) and close(short.loc['reward', 'mean'], short.loc['reward', 'exact step'], 1e-6)
    whole, some = (
        step_effect(use('rloo'), TREE, LOGITS, RIGHT, lr=2.0, samples=n) for n in (None, 5_000)
    )
    assert ((whole['mean'] - some['mean']).abs() < 5 * whole['sd'] / 5_000**0.5 + 1e-9).all()
    p, est = sequence_logps(TREE, LOGITS).exp(), estimator_of(use('rloo'))
    pairs = [(i, j) for i in range(len(p)) for j in range(len(p))]
    literal = sum(
        p[i]
        * p[j]
        * exact_objective(
            TREE, LOGITS + 2.0 * one_gradient(est, TREE, LOGITS, RIGHT, torch.tensor([i, j])), RIGHT
        )
        for i, j in pairs
    )
    assert close(whole.loc['reward', 'mean'], literal)


def test_the_largest_tree():
    tree = TokenTree(5, 4)
    z, r = random_logits(tree, seed=0, scale=0.5), tree_rewards(tree, lambda s: sum(s) == 6)
    assert (
        check(use('reinforce', baseline=0.5), tree, z, r, group=1).unbiased
        and check(
            use('rloo'),
            TokenTree(5, 3),
            random_logits(TokenTree(5, 3), seed=1),
            tree_rewards(TokenTree(5, 3), sum),
            group=2,
        ).unbiased
    )
    assert close((z.softmax(-1) * exact_q(tree, z, r)).sum(1), exact_values(tree, z, r)) and close(
        visit_probs(tree, z) @ state_kl(tree, z, 0 * z), exact_kl(tree, z, 0 * z)
    )


# groups in one call


@pytest.mark.parametrize('name', ['lite_ppo', 'reinforce_pp', 'reinforce_batch'])
@pytest.mark.slow
def test_groups_that_influence_each_other_are_taken_one_by_one(name):
    "Whichever single answer is right, and however few groups have a signal."
    tree = TokenTree(3, length=3, eos=0)
    logits = random_logits(tree, seed=3)
    index = all_groups(tree, 2)
    est = estimator_of(recipe(name))
    for right in range(0, len(tree.sequences), 3):
        rewards = torch.zeros(len(tree.sequences), dtype=torch.float64)
        rewards[right] = 1.0
        found = group_gradients(est, tree, logits, rewards, index)
        assert found.any()
        for number in range(0, len(index), 17):
            alone = one_gradient(est, tree, logits, rewards, index[number])
            assert torch.allclose(found[number], alone, rtol=1e-9, atol=1e-12)
