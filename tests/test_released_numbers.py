"""What released functions give on one fixed batch, beside ours.

The numbers were computed with the functions of the releases in rl4llm/assets/atlas/releases.yaml, in their versions there: verl's losses and
advantages, Lp-Reg's, AReaL's, DPH-RL's and RLVR-Decomposed's. A loss has its value and one number for its gradient."""

import numpy as np
import pytest, torch
from rl4llm.advantages import (
    gpg,
    grpo,
    negative,
    opo,
    optimal_token_baseline,
    positive,
    reinforce_plus_plus_baseline,
    weighted_reinforce,
)
from rl4llm.core.numerics import masked_mean
from rl4llm.core.registry import recipe, use
from rl4llm.core.rollouts import make_rollouts
from rl4llm.objectives import (
    aggregate,
    cispo,
    clip_cov,
    decoupled_ppo,
    dual_clip,
    f_divergence,
    gmpo,
    gspo_token,
    kl_cov,
    lp_reg,
    sapo,
)
from rl4llm.objectives.low_probability import KAPPAS

N, T = 6, 5
PLACE = torch.arange(N * T).double().reshape(N, T)


def wave(speed):
    return torch.sin(1 + speed * PLACE)


OLD = -1 - 0.8 * wave(1.3)
LOGP, BEHAVE, PROXY = OLD + 0.6 * wave(2.1), OLD + 0.4 * wave(0.7), OLD + 0.2 * (1 + wave(1.7))
MASK = torch.arange(T) < torch.tensor([5, 3, 4, 2, 5, 1])[:, None]
ADV = torch.tensor([1.5, -0.5, -1, 2, -2, 0.7]).double()[:, None].expand(N, T)
REWARDS, GROUP = torch.tensor([1.0, 0, 0, 1, 1, 0]).double(), torch.tensor([0, 0, 0, 1, 1, 1])
PROXIES = PROXY[..., None].expand(N, T, len(KAPPAS))
TOKENS, ROWS = 'token-mean', 'seq-mean-token-mean'


def number(x):
    return round((x * torch.cos(PLACE) * MASK).sum().item(), 6)


def of_loss(loss):
    "Value of a loss of the log-probabilities, and its gradient as one number."
    logp = LOGP.clone().requires_grad_()
    value = loss(logp)
    return round(value.item(), 6), number(torch.autograd.grad(value, logp)[0])


LOSSES = {
    'dual_clip': (dual_clip, TOKENS, dict(c=1.5), dict(c=9.0), (0.224382, 0.013473)),
    'gspo_token': (
        gspo_token,
        ROWS,
        dict(low=0.05, high=0.1),
        dict(low=0.9, high=0.9),
        (-0.166228, -0.099856),
    ),
    'cispo': (cispo, TOKENS, {}, dict(cap=9.0), (-0.063745, 0.170814)),
    'sapo': (sapo, ROWS, {}, dict(tau_neg=3.0), (-0.381682, 0.292749)),
    'gmpo': (gmpo, ROWS, dict(low=0.3, high=0.4), dict(low=9.0, high=9.0), (-0.149376, 0.120763)),
    'kl_cov': (
        kl_cov,
        TOKENS,
        dict(fraction=0.2),
        dict(fraction=0.2, coef=0.0),
        (0.185848, 0.201081),
    ),
    'clip_cov': (
        clip_cov,
        TOKENS,
        dict(fraction=1.0, lower=0.3, tokens=PLACE.long()),
        dict(lower=4.9, tokens=PLACE.long()),
        (0.232338, 0.145888),
    ),
    'lp_reg': (
        lp_reg,
        TOKENS,
        dict(share=0.5, old_min_p_proxies=PROXIES),
        dict(share=0.5, beta=0.0, old_min_p_proxies=PROXIES),
        (0.185907, 0.233731),
    ),
    'decoupled_ppo': (
        decoupled_ppo,
        TOKENS,
        dict(logp_behave=BEHAVE, cap=1.3),
        dict(logp_behave=BEHAVE),
        (0.11035, 0.024714),
    ),
}


@pytest.mark.parametrize('name', LOSSES)
def test_losses(name):
    "And with other knobs the number is another one: what is compared is at work."
    objective, mode, knobs, others, stored = LOSSES[name]
    ours = lambda knobs: of_loss(
        lambda logp: aggregate(objective(logp, OLD, ADV, MASK, **knobs), MASK, mode)
    )
    assert ours(knobs) == pytest.approx(stored, abs=2e-6) and ours(others) != pytest.approx(
        stored, abs=1e-4
    )


@pytest.mark.parametrize(
    'divergence, stored',
    [
        ('forward_kl', (0.085856, 0.036297)),
        ('js', (0.044091, 0.019563)),
        ('alpha', (0.090847, 0.041816)),
    ],
)
def test_divergences_of_stored_answers(divergence, stored):
    assert of_loss(
        lambda logp: masked_mean(f_divergence(logp, OLD, divergence=divergence), MASK)
    ) == pytest.approx(stored, abs=2e-6)


ADVANTAGES = {
    'opo': (opo, dict(lengths=MASK.sum(1)), -2.755363),
    'gpg': (gpg, {}, -5.934244),
    'optimal_token_baseline': (
        optimal_token_baseline,
        dict(mask=MASK, logp_old=OLD, old_collision=(2 * OLD).exp() + 0.5 * (1 - OLD.exp()) ** 2),
        -3.444978,
    ),
    'reinforce_plus_plus_baseline': (reinforce_plus_plus_baseline, dict(mask=MASK), -6.701526),
    'positive': (positive, {}, -3.48509),
    'negative': (negative, {}, -3.905592),
    'weighted_reinforce': (weighted_reinforce, {}, -4.254101),
}


@pytest.mark.parametrize('name', ADVANTAGES)
def test_advantages(name):
    advantage, knobs, stored = ADVANTAGES[name]
    adv = advantage(REWARDS, GROUP, **knobs)
    assert number(adv if adv.dim() == 2 else adv[:, None].expand(N, T)) == pytest.approx(
        stored, abs=2e-6
    )


# -- VERL: the released run and the formula, written once more row by row

ROWS_OF_STATES, WIDE = 4, 9
LONG = [9, 7, 4, 9]


def numpy_rank(states):
    states = states - states.mean(0)
    sigma = np.linalg.svd(states, compute_uv=False)
    share = sigma[sigma > 1e-9] / sigma.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


def numpy_features(states, *, stride, whole):
    "Rank, velocity, acceleration of one row: means over beginnings, or the rank of all of it."
    ranks = [numpy_rank(states[:end]) for end in range(stride, len(states) + 1, stride)]
    velocity = [ranks[j] - np.mean(ranks[:j]) for j in range(1, len(ranks))]
    faster = np.diff(velocity)
    means = [float(np.mean(x)) if len(x) else 0.0 for x in (ranks, velocity, faster)]
    return [numpy_rank(states), *means[1:]] if whole else means


def numpy_bonuses(batches, *, old, whole, aux_fix, from_zero, stride=2, gain=2.0, kappa=2.0):
    """The bonus of each row of each batch, as the release's `RewardManager` has it.

    old: the weight of the past, which is 1 - ema_alpha there.
    """
    mids, score, found = (np.zeros(3), 0.0, []) if from_zero else (None, None, [])
    for states, rewards in batches:
        own = [x[:n].numpy() for x, n in zip(states, LONG)]
        rows = np.array([numpy_features(x, stride=stride, whole=whole) for x in own])
        if mids is None:
            mids, score = rows.mean(0), rewards.mean()
        rank, speed, faster = np.clip((rows - mids) / (abs(mids) + 1e-8), -5, 5).T
        gate = 1 / (1 + np.exp(-gain * faster))
        phi = gate * np.tanh(rank) + (1 - gate) * np.tanh(speed)
        phi = phi * (1.0 if aux_fix else 1 - (score + 1) / 2)
        plain = np.abs(rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
        found.append(np.minimum(np.maximum(phi, 0), plain / kappa))
        mids = old * mids + (1 - old) * rows.mean(0)
        score = old * score + (1 - old) * rewards.mean()
    return np.array(found)


RANK_BATCHES = [
    (torch.sin(place * torch.arange(324).double() ** 1.3).reshape(ROWS_OF_STATES, WIDE, 9), rewards)
    for place, rewards in ((1.0, [1.0, 0, 0, 1]), (1.7, [0.0, 0, 1, 0]), (0.4, [1.0, 1, 0, 1]))
]
FORMS = {
    'rank_shaping': dict(old=0.7, whole=False, aux_fix=False, from_zero=False),
    'rank_shaping_released': dict(old=0.7, whole=True, aux_fix=True, from_zero=True),
}


def our_bonuses(name):
    "What the stage of a recipe adds to each row, and the share of a row's tokens that get it."
    made, mask, found = (
        use(recipe(name).advantage, stride=2).make(),
        torch.arange(WIDE) < torch.tensor(LONG)[:, None],
        [],
    )
    for states, scores in RANK_BATCHES:
        rewards = torch.tensor(scores).double()
        asked = dict(prompt_ids=torch.ones(1, 1).long(), prompt_mask=torch.ones(1, 1).bool())
        rolls = make_rollouts(
            **asked,
            tokens=mask.long() + 3,
            mask=mask,
            prompt=torch.zeros(4).long(),
            rewards=rewards,
        )
        shaped = made(rewards, rolls.group, rollouts=rolls, old_hidden=states)
        bonus = (shaped - grpo(rewards, rolls.group)[:, None]) * mask
        touched = (bonus > 1e-12).sum(1)
        found.append(bonus.sum(1) / touched.clamp(min=1))
        made.update(rolls)
        last = 'spread' in dict(recipe(name).advantage.knobs)
        own = torch.ones(4).long() if last else mask.sum(1)
        assert ((touched == own) | (touched == 0)).all()
    return torch.stack(found).numpy()


@pytest.mark.parametrize('name', FORMS)
def test_both_forms_of_verl_are_what_they_say(name):
    batches = [(states, np.array(rewards)) for states, rewards in RANK_BATCHES]
    ours, form = our_bonuses(name), FORMS[name]
    assert ours.any(0).any() and np.allclose(ours, numpy_bonuses(batches, **form), atol=1e-9)
    others = dict(old=0.3, whole=not form['whole'], aux_fix=not form['aux_fix'])
    others['from_zero'] = not form['from_zero']
    for knob, value in others.items():
        turned = numpy_bonuses(batches, **{**form, knob: value})
        assert abs(turned - ours).max() > 1e-3, f'{knob} makes no difference here'
