"Advantages of one success in eight, and the closed forms for 0/1 rewards, that every method of the group family must give."

import pytest, torch
from rl4llm.advantages.baselines import rloo
from rl4llm.advantages.batch_normalised import reinforce_plus_plus, reinforce_plus_plus_baseline
from rl4llm.advantages.group_relative import dr_grpo, grpo
from rl4llm.advantages.more_baselines import gpg, opo, optimal_token_baseline
from rl4llm.advantages.passk_advantages import grpo_passk, pkpo

G, EIGHT = 8, torch.zeros(8).long()


def solved(k):
    return (torch.arange(G) < k).double()


def tokens(t=5):
    return dict(mask=torch.ones(G, t).bool())


def even(t=5):
    return dict(
        **tokens(t),
        logp_old=torch.full((G, t), 0.5).double().log(),
        old_collision=torch.full((G, t), 0.5).double(),
    )


ONE_IN_EIGHT = {
    'rloo': (rloo, {}, 1, -1 / 7),
    'dr_grpo': (dr_grpo, {}, 0.875, -0.125),
    'grpo, ddof 1': (grpo, dict(eps=0), 2.4749, -0.3536),
    'grpo, ddof 0': (grpo, dict(eps=0, ddof=0), 2.6458, -0.3780),
    'grpo, batch std': (grpo, dict(eps=0, scale='batch'), 2.4749, -0.3536),
    'reinforce_plus_plus, one token': (reinforce_plus_plus, tokens(1), 2.4749, -0.3536),
    'reinforce_plus_plus_baseline, one token': (
        reinforce_plus_plus_baseline,
        tokens(1),
        2.4749,
        -0.3536,
    ),
    'opo': (opo, dict(lengths=torch.full((G,), 3)), 0.875, -0.125),
    'opo, leave_out': (opo, dict(lengths=torch.full((G,), 3), leave_out=True), 1, -1 / 7),
    'gpg': (gpg, {}, 7, -1),
    'optimal_token_baseline': (optimal_token_baseline, even(), 0.875, -0.125),
    'optimal_token_baseline, leave_out': (
        optimal_token_baseline,
        dict(**even(), leave_out=True),
        1,
        -1 / 7,
    ),
    'grpo_passk': (grpo_passk, dict(scale='none'), 1, 0),
    'pkpo, k = 1': (pkpo, dict(k=1, baseline='leave_one_out'), 1, -1 / 7),
    'pkpo, k = 8': (pkpo, dict(k=8), 8, 0),
}


@pytest.mark.parametrize('name', ONE_IN_EIGHT)
def test_one_success_in_eight(name):
    f, knobs, right, wrong = ONE_IN_EIGHT[name]
    adv = f(solved(1), EIGHT, **knobs)
    adv = adv[:, -1] if adv.dim() == 2 else adv
    assert torch.allclose(adv, torch.tensor([right] + [wrong] * 7).double(), rtol=0, atol=5e-5)


@pytest.mark.parametrize('k', range(1, G))
def test_closed_forms_of_binary_rewards(k):
    p, r = torch.tensor(k / G).double(), solved(k)
    population, sample, plain = (
        grpo(r, EIGHT, eps=0, ddof=0),
        grpo(r, EIGHT, eps=0),
        dr_grpo(r, EIGHT),
    )
    assert torch.allclose(
        population[[0, -1]], torch.stack([((1 - p) / p).sqrt(), -(p / (1 - p)).sqrt()])
    )
    assert torch.allclose(sample, population * ((G - 1) / G) ** 0.5)
    assert torch.allclose(population.abs().sum(), 2 * G * (p * (1 - p)).sqrt()) and torch.allclose(
        plain.abs().sum(), 2 * G * p * (1 - p)
    )
