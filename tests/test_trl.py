"""Losses and advantages beside TRL's own code, on the same random tensors in float64: value and gradient.

TRL's methods are called on a light stand-in for the trainer, which has the attributes they read and nothing else; a TRL that reads more fails
with the name of what is missing. Where the two differ on purpose, that is a test as well (`test_differs_*`)."""

import math
from collections import defaultdict, deque
from types import SimpleNamespace
import pytest, torch
from rl4llm.advantages import dr_grpo, grpo, rloo
from rl4llm.objectives import (
    aggregate,
    cispo,
    dual_clip,
    gmpo,
    gspo,
    gspo_token,
    kl_penalty,
    off_policy_mask,
    policy_gradient,
    ppo_clip,
    sapo,
    truncated_is,
)
from rl4llm.objectives.off_policy import behaviour_weight

pytest.importorskip(
    'trl', minversion='1.16', reason="compares with TRL 1.16 or newer: pip install 'rl4llm[scale]'"
)
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

N, T, G, LENGTH = 12, 9, 4, 16
GROUP = torch.arange(N // G).repeat_interleave(G)


def batch(seed=0, drift=0.3):
    "logp, logp_old, logp_behave, logp_ref, advantage of each row, mask."
    g = torch.Generator().manual_seed(seed)
    logp = -torch.rand(N, T, generator=g, dtype=torch.float64) - 0.1
    near = lambda: logp + drift * torch.randn(N, T, generator=g, dtype=torch.float64)
    lengths = torch.cat([torch.tensor([1, T]), torch.randint(1, T + 1, (N - 2,), generator=g)])
    return (
        logp,
        near(),
        near(),
        near(),
        torch.randn(N, generator=g, dtype=torch.float64),
        torch.arange(T) < lengths[:, None],
    )


def accelerator():
    return SimpleNamespace(
        num_processes=1,
        process_index=0,
        device=torch.device('cpu'),
        gather=lambda x: x,
        reduce=lambda x, reduction: x,
        gather_for_metrics=lambda x: x,
    )


def grpo_trainer(logp, *, args=(), **settings):
    "What GRPOTrainer._compute_loss reads of its trainer, with TRL's defaults; the model's log-probabilities are `logp`."
    arguments = dict(
        delta=None,
        use_bias_correction_kl=False,
        steps_per_generation=1,
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
    ) | dict(args)
    defaults = dict(
        _get_per_token_logps_and_entropies=lambda *a, **k: (logp, torch.zeros_like(logp), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        importance_sampling_level='token',
        beta=0.0,
        loss_type='grpo',
        epsilon_low=0.2,
        epsilon_high=0.2,
        use_vllm=False,
        vllm_importance_sampling_correction=True,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=LENGTH,
        accelerator=accelerator(),
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    return SimpleNamespace(args=SimpleNamespace(**arguments), **{**defaults, **settings})


def inputs_of(x, **more):
    "What a trainer of TRL is given of the batch `x`: one-token prompts, and all else zeros."
    ids = torch.zeros(N, T, dtype=torch.long)
    _, _, _, _, adv, mask = x
    asked = dict(prompt_ids=ids[:, :1], prompt_mask=ids[:, :1] + 1)
    return dict(**asked, completion_ids=ids, completion_mask=mask.long(), advantages=adv, **more)


def theirs(x, *, inputs=(), **settings):
    "Value and gradient of TRL's loss on the batch `x`."
    logp, old, _, ref, _, mask = x
    logp = logp.clone().requires_grad_()
    more = inputs_of(
        x, old_per_token_logps=old, ref_per_token_logps=ref, num_items_in_batch=mask.sum()
    )
    loss = GRPOTrainer._compute_loss(grpo_trainer(logp, **settings), None, more | dict(inputs))
    return loss.detach(), torch.autograd.grad(loss, logp)[0]


def ours(x, objective, mode, *, length=None, **knobs):
    "Value and gradient of an objective of ours, aggregated."
    logp, old, _, _, adv, mask = x
    logp = logp.clone().requires_grad_()
    loss = aggregate(
        objective(logp, old, adv[:, None].expand(N, T), mask, **knobs), mask, mode, length=length
    )
    return loss.detach(), torch.autograd.grad(loss, logp)[0]


def same(a, b):
    return torch.allclose(a[0], b[0], rtol=0, atol=1e-6) and torch.allclose(
        a[1], b[1], rtol=0, atol=1e-6
    )


# losses: (TRL's settings, our objective, aggregation, knobs)

SEQUENCE, ROWS, TOKENS = (
    dict(importance_sampling_level='sequence'),
    'seq-mean-token-mean',
    'token-mean',
)
LOSSES = {
    'grpo': (dict(), ppo_clip, ROWS, {}),
    'grpo, clip-higher': (dict(epsilon_high=0.28), ppo_clip, ROWS, dict(high=0.28)),
    'grpo, delta': (dict(args=dict(delta=1.5)), dual_clip, ROWS, dict(c=1.5)),
    'bnpo': (dict(loss_type='bnpo'), ppo_clip, TOKENS, {}),
    'dr_grpo': (
        dict(loss_type='dr_grpo'),
        ppo_clip,
        'seq-mean-token-sum-norm',
        dict(length=LENGTH),
    ),
    'dapo': (dict(loss_type='dapo', epsilon_high=0.28), ppo_clip, TOKENS, dict(high=0.28)),
    'cispo': (dict(loss_type='cispo', epsilon_high=1.3), cispo, TOKENS, dict(cap=1.3)),
    'sapo': (dict(loss_type='sapo'), sapo, ROWS, {}),
    'sapo, other temperatures': (
        dict(loss_type='sapo', args=dict(sapo_temperature_pos=0.7, sapo_temperature_neg=2.0)),
        sapo,
        ROWS,
        dict(tau_pos=0.7, tau_neg=2.0),
    ),
    'gspo': (dict(epsilon_low=3e-4, epsilon_high=4e-4, **SEQUENCE), gspo, ROWS, {}),
    'gspo, wide': (SEQUENCE, gspo, ROWS, dict(low=0.2, high=0.2)),
    'gspo-token': (SEQUENCE, gspo_token, ROWS, dict(low=0.2, high=0.2)),
    'luspo': (
        dict(loss_type='luspo', **SEQUENCE),
        gspo,
        'seq-mean-token-sum',
        dict(low=0.2, high=0.2),
    ),
    'sequence ratio, every token counts': (
        dict(loss_type='dapo', **SEQUENCE),
        gspo,
        TOKENS,
        dict(low=0.2, high=0.2),
    ),
}


@pytest.mark.parametrize('drift', [0.0, 0.05, 0.5])
@pytest.mark.parametrize('name', LOSSES)
def test_loss(name, drift):
    settings, objective, mode, knobs = LOSSES[name]
    x = batch(drift=drift)
    a, b = theirs(x, **settings), ours(x, objective, mode, **knobs)
    assert same(a, b) and (a[1] != 0).any()


@pytest.mark.parametrize('drift', [0.0, 0.05, 0.5])
@pytest.mark.parametrize('low, high', [(0.4, 0.4), (0.1, 0.3)])
def test_gmpo(drift, low, high):
    "TRL's trainer for it has a loss of its own: limits of the log-ratio, the mean over rows."
    gmpo_trainer = pytest.importorskip('trl.experimental.gmpo').GMPOTrainer
    x = batch(drift=drift)
    logp, old, _, _, _, _ = x
    logp = logp.clone().requires_grad_()
    inputs = inputs_of(x, old_per_token_logps=old)
    loss = gmpo_trainer._compute_loss(
        grpo_trainer(logp, epsilon_low=low, epsilon_high=high), None, inputs
    )
    a, b = (
        (loss.detach(), torch.autograd.grad(loss, logp)[0]),
        ours(x, gmpo, ROWS, low=low, high=high),
    )
    assert same(a, b) and (a[1] != 0).any()
    if drift == 0.5:
        assert not same(b, ours(x, gmpo, ROWS, low=9.0, high=9.0)), 'otherwise nothing was clipped'


def test_some_tokens_are_clipped():
    "Otherwise the comparison says little."
    x, loose = batch(drift=0.5), dict(low=1.0, high=1e9)
    for f in (ppo_clip, gspo, gspo_token):
        assert not same(ours(x, f, ROWS), ours(x, f, ROWS, **loose))
    assert not same(ours(x, ppo_clip, ROWS), ours(x, dual_clip, ROWS, c=1.5)) and not same(
        ours(x, cispo, TOKENS, cap=1.3), ours(x, cispo, TOKENS, cap=1e9)
    )


def test_kl_penalty():
    x = batch()
    penalised = lambda logp, old, adv, mask: (
        ppo_clip(logp, old, adv, mask) + kl_penalty(logp, mask, logp_ref=x[3], coef=0.1)
    )
    assert same(theirs(x, beta=0.1), ours(x, penalised, ROWS))


@pytest.mark.parametrize('delta', [-0.5, -0.1, 0.05])
def test_off_policy_mask(delta):
    x = batch(seed=2, drift=1.0)
    a, b = (
        theirs(x, off_policy_mask_threshold=delta, inputs=dict(sampling_per_token_logps=x[2])),
        ours(x, off_policy_mask, ROWS, logp_behave=x[2], delta=delta),
    )
    assert same(a, b) and not same(b, ours(x, ppo_clip, ROWS))


# what TRL computes when it has sampled: weights and advantages


class Logs(defaultdict):
    def __init__(self):
        super().__init__(lambda: deque(maxlen=N))
        self.update(rewards=defaultdict(deque), extra=defaultdict(deque))


def scoring_trainer(rewards, *, lengths=None, behave=None, old=None, group=G, **settings):
    "What `_generate_and_score_completions` reads of its trainer, GRPO's or RLOO's; sampling and scoring give the numbers at hand."
    lengths = [T] * len(rewards) if lengths is None else lengths
    ids, logps = [[3] * n for n in lengths], behave and [row[:n] for row, n in zip(behave, lengths)]
    made = lambda prompts: (
        [[1]] * len(rewards),
        ids,
        None,
        [''] * len(rewards),
        logps,
        {},
        None,
        None,
    )
    model = SimpleNamespace(training=True, is_gradient_checkpointing=False)
    args = SimpleNamespace(
        per_device_train_batch_size=len(rewards),
        per_device_eval_batch_size=len(rewards),
        steps_per_generation=1,
        gradient_accumulation_steps=1,
        gradient_checkpointing_kwargs=None,
        report_to=[],
        reward_clip_range=None,
    )
    defaults = dict(
        _generate=made,
        _calculate_rewards=lambda *a: rewards[:, None],
        _get_per_token_logps_and_entropies=lambda *a, **k: (old, None, None),
        model=model,
        args=args,
        accelerator=accelerator(),
        reward_funcs=[None],
        reward_func_names=['reward'],
        reward_weights=torch.ones(1, dtype=torch.float64),
        num_generations=group,
        num_generations_eval=group,
        num_iterations=1,
        beta=0.0,
        multi_objective_aggregation='sum_then_normalize',
        scale_rewards='group',
        normalize_advantages=False,
        reward_clip_range=None,
        use_vllm=behave is not None,
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode='sequence_mask',
        vllm_importance_sampling_clip_max=3.0,
        vllm_importance_sampling_clip_min=None,
        mask_truncated_completions=False,
        pad_to_multiple_of=None,
        _tokenizer=SimpleNamespace(pad_token_id=0),
        pad_token_id=0,
        eos_token_ids=[2],
        tools=None,
        environments=None,
        environment_factories=None,
        ref_model=None,
        log_multimodal=False,
        _is_vlm=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _logs=Logs(),
        _pending_extra_logs={},
        _pending_metrics={},
    )
    return SimpleNamespace(**{**defaults, **settings})


def scored_by(trainer_class, rewards, **settings):
    "TRL's own advantages (and, with `behave`, weights)."
    made = scoring_trainer(rewards, **settings)
    if trainer_class is RLOOTrainer:
        whole = made._generate
        made._generate = lambda prompts: [whole(prompts)[i] for i in (0, 1, 3)]
    if made._get_per_token_logps_and_entropies(None)[0] is None:
        made._get_per_token_logps_and_entropies = lambda *a, **k: (
            torch.zeros(len(rewards), T, dtype=torch.float64),
            None,
            None,
        )
    return trainer_class._generate_and_score_completions(made, [dict(prompt='?')] * len(rewards))


def some_rewards(kind):
    g = torch.Generator().manual_seed(1)
    r = torch.rand(N, generator=g, dtype=torch.float64)
    if kind == 'binary':
        r = (r > 0.5).double()
    if kind == 'unscored':
        r[[1, 6, 7]] = float('nan')
    return r


KINDS = pytest.mark.parametrize('kind', ['graded', 'binary', 'unscored'])


@KINDS
@pytest.mark.parametrize('scale', ['group', 'batch', 'none'])
def test_grpo_advantages(kind, scale):
    r = some_rewards(kind)
    assert torch.allclose(
        scored_by(GRPOTrainer, r, scale_rewards=scale)['advantages'],
        grpo(r, GROUP, scale=scale),
        rtol=0,
        atol=1e-6,
    )
    if scale == 'none':
        assert torch.equal(grpo(r, GROUP, scale=scale), dr_grpo(r, GROUP))


@KINDS
def test_rloo_advantages(kind):
    r = some_rewards(kind)
    assert torch.allclose(
        scored_by(RLOOTrainer, r)['advantages'], rloo(r, GROUP), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize('level', ['token', 'sequence'])
@pytest.mark.parametrize('action', ['truncate', 'mask'])
def test_importance_weights(level, action):
    "TRL's weights against a sampler of its own, and the loss that they weigh."
    x = batch()
    logp, old, behave, _, adv, mask = x
    cap, lengths = 1.2, mask.sum(1).tolist()
    settings = dict(
        behave=behave.tolist(),
        old=old,
        lengths=lengths,
        vllm_importance_sampling_mode=f'{level}_{action}',
        vllm_importance_sampling_clip_max=cap,
    )
    weight = scored_by(GRPOTrainer, adv, **settings)['importance_sampling_ratio']
    mine = behaviour_weight(old, behave, mask, level=level, action=action, cap=cap)
    assert (
        torch.allclose((weight * mask), mine * mask, rtol=0, atol=1e-6)
        and (mine[mask] != 1).any()
        and ((mine == cap) if action == 'truncate' else (mine == 0)).any()
    )
    a = theirs(
        x,
        use_vllm=True,
        inputs=dict(importance_sampling_ratio=weight, sampling_per_token_logps=behave),
    )
    assert same(
        a, ours(x, truncated_is, ROWS, logp_behave=behave, level=level, action=action, cap=cap)
    )


# RLOO's loss: one ratio for the whole response, a product


def rloo_loss(x):
    logp, old, _, _, _, mask = x
    logp = logp.clone().requires_grad_()
    inputs = inputs_of(x, old_logps=(old * mask).sum(1))
    loss = RLOOTrainer._compute_loss(grpo_trainer(logp), None, inputs)
    return loss.detach(), torch.autograd.grad(loss, logp)[0]


def test_rloo_first_update():
    "Before the policy moves, TRL's gradient is that of the summed token losses."
    x = batch(drift=0.0)
    assert torch.allclose(
        rloo_loss(x)[1], ours(x, policy_gradient, 'seq-mean-token-sum')[1], rtol=0, atol=1e-6
    )


# differences, on purpose


def test_differs_rloo_ratio():
    "TRL's RLOO clips the product of the token ratios; ours, as all objectives by token, each of them."
    x = batch(drift=0.3)
    assert not torch.allclose(
        rloo_loss(x)[1], ours(x, ppo_clip, 'seq-mean-token-sum')[1], rtol=0, atol=1e-3
    )


def test_differs_log_ratio_limit():
    "A token 800 nats off: TRL's loss is not finite, ours is limited at 20 nats."
    x = list(batch(drift=0.0))
    x[1], x[4] = x[1] - 800, -x[4].abs()
    a, b = theirs(x), ours(x, ppo_clip, ROWS)
    assert not a[0].isfinite() and b[0].isfinite() and b[1].isfinite().all()


def test_differs_empty_rows():
    "A row without tokens counts as a loss of 0 in TRL's mean over rows, and not at all in ours."
    x = list(batch())
    x[5] = x[5] & (torch.arange(N) > 2)[:, None]
    assert torch.allclose(theirs(x)[0] * N, ours(x, ppo_clip, ROWS)[0] * (N - 3))


def test_differs_unknown_old_probability():
    "TRL passes a nan on; here it is an error that names the token."
    x = list(batch())
    x[1] = x[1].masked_fill(torch.arange(N * T).view(N, T) == 9, math.nan)
    assert theirs(x)[0].isnan()
    with pytest.raises(ValueError, match='logp_old is nan at row 1, token 0'):
        ours(x, ppo_clip, ROWS)


def test_differs_equal_rewards():
    "Rewards of 0.1 leave a rounding error over 1e-4 in TRL, exactly 0 here."
    r = torch.full((7,), 0.1)
    left = (
        scored_by(GRPOTrainer, r, group=7, reward_weights=torch.ones(1))['advantages'].abs().max()
    )
    assert 0 < left < 1e-2 and (grpo(r, torch.zeros(7).long()) == 0).all()


def test_differs_dapo_divisor():
    "TRL divides by its share of the generation batch's tokens, we by the optimiser batch's own."
    x = batch()
    a = theirs(
        x,
        loss_type='dapo',
        args=dict(steps_per_generation=2),
        inputs=dict(num_items_in_batch=3 * x[5].sum()),
    )
    assert torch.allclose(a[0] * 3 / 2, ours(x, ppo_clip, TOKENS)[0])


def test_differs_bias_corrected_kl():
    "TRL multiplies the KL term by the ratio unless told not to; `kl_penalty` does not."
    x = batch()
    penalised = lambda logp, old, adv, mask: (
        ppo_clip(logp, old, adv, mask) + kl_penalty(logp, mask, logp_ref=x[3], coef=0.1)
    )
    assert not same(
        theirs(x, beta=0.1, args=dict(use_bias_correction_kl=True)), ours(x, penalised, ROWS)
    )


def test_differs_cispo_default():
    "With the clip range left at 0.2, TRL's cap is 0.2 and a first step a fifth of the size."
    x = batch(drift=0.0)
    assert torch.allclose(5 * theirs(x, loss_type='cispo')[1], ours(x, cispo, TOKENS)[1])
