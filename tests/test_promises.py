"""What docstrings and registrations promise is kept.

Every "Raises ..." of a stage has a call below that makes it true; a stage that adds a clause fails
here until the call is added, or the clause taken out.
"""

import dataclasses, re, warnings
from functools import partial
import pytest, torch
from rl4llm.core.registry import RECIPES, KINDS, find_stage, recipe, stages, use
from rl4llm.core.rollouts import make_rollouts
from rl4llm.objectives import sequence_log_ratio
from rl4llm.oracle.estimators import tree_has
from rl4llm.oracle.tabular import exact_gradient, random_logits
from rl4llm.tasks import task
from rl4llm.tasks.protocol import Item
from test_contracts import (
    DTYPES,
    GROUP,
    MASK,
    OF_VERDICTS,
    N,
    T,
    at,
    batch,
    by_token,
    checked,
    close,
    fn_of,
    over,
    problems,
    questions,
    rewards_of,
    signals,
    small_policy,
    some_rollouts,
    take,
)

# every "Raises ..." is true

TESTED_FOR_ALL = {
    'wrong shapes',
    'infinite rewards',
    'another shape',
    'nan inside the mask',
    '`adv` has another shape than the tokens',
}  # in test_contracts.py
CLAUSE = re.compile(r',\s+(?:and |or )?(?![^(\[]*[)\]])|\s(?:or|and)\s')


def clauses(info):
    "What a stage says that it raises for, beyond what all stages of its kind are tested for."
    doc = ' '.join((info.fn.__doc__ or '').split())
    told = [
        c.strip()
        for sentence in re.findall(r'Raises (?:ValueError )?(.*?)\.(?: |$)', doc)
        for c in CLAUSE.split(sentence)
    ]
    plain = [re.sub(r'^(?:ValueError )?(?:on |for |if |unless )?', '', c) for c in told]
    return [c for c in plain if c not in TESTED_FOR_ALL]


def called(info, *, group=GROUP, rewards=None, change=lambda s: s, **knobs):
    "Call a stage on the batch of the contracts, with these knobs."
    import inspect

    s = change(signals(info, torch.float64, group=group))
    made = info.fn(**knobs) if inspect.isclass(info.fn) else partial(info.fn, **knobs)
    logp, logp_old, adv, mask = batch()
    args = dict(
        advantage=lambda: (rewards_of() if rewards is None else rewards, group),
        select=lambda: (s['rollouts'] if 'rollouts' in s else some_rollouts(torch.float64), adv),
        objective=lambda: (logp, logp_old, adv, mask),
        regulariser=lambda: (logp, mask),
        aggregate=lambda: (logp, mask),
    )[info.kind]()
    return made(*args, **s)


def knobs(**bad):
    return lambda info: called(info, **bad)


def whole_rewards(info):
    return called(info, rewards=rewards_of().long())


def made_with(*args, **bad):
    return lambda info: info.fn(*args, **bad)


def curriculum(**bad):
    return lambda info: info.fn(task('countdown'), **bad)


def endless_greedy(s):
    return {**s, 'greedy_rewards': torch.full((N,), torch.inf)}


def no_collision(s):
    return {**s, 'old_collision': s['old_collision'] * torch.nan}


def singles(info):
    return called(info, group=torch.arange(N))


def short_items(info):
    return info.fn(*questions()[:2], item=[None])


def long_ones(completions, **columns):
    return [2.0] * len(completions)


def text_reward(**bad):
    return lambda info: info.fn(*questions()[:2], item=questions()[2], **bad)


def sampled(items=None, policy=None, **bad):
    return lambda info: fn_of(info)(
        policy or small_policy(),
        list(problems()[:2]) if items is None else items,
        **{**dict(group=2, seed=1), **bad},
    )


def made_and_sampled(**bad):
    "Make a sampler with bad knobs, which it finds when it is asked for rows."
    return lambda info: info.fn(**bad)(small_policy(), list(problems()[:2]), 2, seed=1)


def nan_inside(info):
    return called(
        info,
        change=lambda s: {
            k: v.masked_fill(MASK, torch.nan) if k.startswith('logp') else v for k, v in s.items()
        },
    )


def with_items(items, **bad):
    "Call a stage on rollouts of other problems."
    return lambda info: called(
        info,
        change=lambda s: {**s, 'rollouts': dataclasses.replace(s['rollouts'], items=tuple(items))},
        **bad,
    )


def of_foreign_model(info):
    "Call a sampler with a policy that has no decoder."
    return sampled(policy=foreign_policy())(info)


def with_parents(info):
    "Rows that were forked from a row that is not there."
    far = torch.full((N,), N)
    return called(
        info,
        change=lambda s: {**s, 'rollouts': dataclasses.replace(s['rollouts'], parent=far)},
    )


def with_durations(info):
    r = some_rollouts(torch.float64)
    return info.fn(
        dataclasses.replace(r, signals=dict(durations=torch.full((N,), -1.0))), batch()[2]
    )


def foreign_policy():
    from transformers import GPT2Config, GPT2LMHeadModel
    from rl4llm.core.policy import Policy

    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=256,
            n_positions=128,
            n_embd=16,
            n_layer=1,
            n_head=2,
            eos_token_id=2,
            bos_token_id=1,
        )
    ).eval()
    return Policy(model, small_policy().tokenizer, 'foreign', 'compact')


# A search that a second network leads is made before it samples.
LED_SEARCH = {
    'no value': made_with(value=None),
    'numbers that make no sense': made_with(width=0),
    'a budget below the group': made_and_sampled(budget=1),
    'a word that is no token': made_and_sampled(ends=('two words',)),
    'as `sample`': sampled([]),
    'a model outside the Llama family': of_foreign_model,
}

BROKEN = {
    'handful': {'a count below 1': curriculum(count=0), 'no problems': curriculum(problems=[])},
    'prompt_pairs': {
        '`measured` holds no pair': curriculum(measured=[], samples=8),
        'comes without `samples`': curriculum(measured=[]),
    },
    'uniform': {'an empty pool': curriculum(pool=[])},
    'lagged_top_p': {
        'bad settings': made_with(every=0),
        'a model outside the Llama family': of_foreign_model,
    },
    'logged_sample': {'fewer than one batch': made_with(batches=0)},
    'stale_sample': {'a negative lag': made_with(lag=-1)},
    'recomposed_sample': {
        'a size below 1': made_with(size=0),
        'a horizon below 1': made_with(horizon=0),
        'a chance outside [0, 1]': made_with(start=1.5),
    },
    'changed_sample': {
        'a horizon below 1': made_with(horizon=0),
        'a share outside [0, 1]': made_with(end=1.5),
        'a change that is no function': made_with(change=None),
        'a copy with another key': made_and_sampled(change=lambda item, seed: 'another problem'),
        'as `sample`': sampled([]),
    },
    'archived_rows': {
        'a width': made_with(width=0),
        'batch below 1': made_with(batch=0),
        'a negative size': made_with(size=-1),
        'as `explore`': sampled(['2 + 3']),
    },
    'evolved_edits': {
        'problems that answer back': lambda info: sampled(task('calculator').sample(2, seed=0))(
            info
        ),
        'a parent that is no function': made_with(parent=None),
        'as `ProgramDatabase`': made_with(islands=0),
        'as `sample`': sampled([]),
    },
    'engine_sample': {
        'a negative lag': made_with(lag=-1),
        'a name that is no real type of torch': made_with(dtype='int8'),
    },
    'rehearse_solved': {
        '`tries` below 1': made_with(tries=0),
        '`solved` outside (0, 1]': made_with(solved=0.0),
        'as `sample`': sampled([]),
    },
    'sample_by_the_clock': {'as `sample`': sampled([])},
    'sample_episodes': {
        'as `sample`': sampled([]),
        'a model outside the Llama family': lambda info: sampled(
            task('calculator').sample(2, seed=0), foreign_policy()
        )(info),
    },
    'critical_forks': {
        'as `sample`': sampled([]),
        'a model outside the Llama family': of_foreign_model,
    },
    'tool_branches': {'as `sample_episodes`': sampled([])},
    'lookahead_rollouts': {
        'a share outside [0, 1]': made_with(start=1.5),
        'another word': made_with(elsewhere='never'),
        'a horizon below 1': made_with(horizon=0),
        'an age below 1': made_with(age=0),
        'no looks': made_with(looks=()),
        'a rule that is no function': made_with(pruning=None),
        'as `schedule_at`': made_with(end=0.0),
        'as `sample`': sampled([]),
        'a model outside the Llama family': of_foreign_model,
    },
    'branch_rollouts': {
        'as `sample`': sampled([]),
        'a model outside the Llama family': of_foreign_model,
    },
    'deep_search_rollouts': {
        'as `sample`': sampled([]),
        'a word that is no token': sampled(ends=('two words',)),
        'numbers below 1': sampled(width=0),
        'a model outside the Llama family': of_foreign_model,
    },
    'rstar_traces': {**LED_SEARCH, 'no swap': made_with(swap=None)},
    'best_first_traces': {
        'numbers below 1': sampled(width=0),
        'a budget below the group': sampled(budget=1),
        'a word that is no token': sampled(ends=('two words',)),
        'a problem that nobody can verify': sampled(['2 + 3']),
        'as `sample`': sampled([]),
        'a model outside the Llama family': of_foreign_model,
    },
    'value_guided_rollouts': LED_SEARCH,
    'replayed_search': {
        '`most` outside 0 to 1': made_with(most=1.5),
        'numbers below 1': made_with(size=0),
    },
    'sample': {
        'no items': sampled([]),
        'bad settings': sampled(group=0),
        'a prompt too long for the context': sampled(['1 ' * 500]),
    },
    'correct': {'there is one item for each completion (a column `item`)': short_items},
    'correct_mathematics': {
        'there is one answer for each completion': lambda info: info.fn(
            ['', ''], ['1', '2'], answer=['1']
        )
    },
    'passes_tests': {
        'tests that cannot be': lambda info: info.fn([''], ['x = 1'], tests=[['assert f(x)']])
    },
    'partial_credit': {'as `correct`': short_items},
    'edit_reward': {
        'there is one item for each completion': short_items,
        'a problem whose bound is not above 0': lambda info: info.fn(
            None, ['3 - 3 = 0'], item=[Item('countdown', ((3, 3), 0, 99, '+-*'))]
        ),
        'as `judged_child`': text_reward(lazy=3),
        '`shaped`': text_reward(alpha=0.0),
    },
    'unreadable': {'as `correct`': short_items},
    'longer': {'a number below 0': text_reward(lam=-1.0)},
    'search_effort': {
        'as `effort_judge`': text_reward(signs=()),
        'there is one prompt for each completion': lambda info: info.fn(['?'], ['x', 'y']),
    },
    'dealt_effort': {'as `search_effort`': text_reward(signs=())},
    'rlsp_reward': {
        'a weight outside [0, 1]': text_reward(weight=2.0),
        'another number below 0': text_reward(lam=-1.0),
        'as the parts do': short_items,
    },
    'readable': {'as `correct`': short_items},
    'ladder': {
        'no levels': text_reward(levels=()),
        'another number of weights': text_reward(weights=(1.0,)),
        'passes': text_reward(passes=(1.0,)),
        'a weight that is no number': text_reward(weights=(float('nan'), 1.0)),
        'as the levels do': short_items,
    },
    'saving': {'as `correct`': short_items},
    'chipseek_reward': {'as `ladder`': text_reward(weights=(1.0,))},
    'several_kinds': {'`kinds` below 1': text_reward(kinds=0)},
    'tool_star_reward': {
        'a bonus that is no number from 0 on': text_reward(bonus=-1.0),
        'a `malformed` that is no number': text_reward(malformed=float('nan')),
        'as the parts do': short_items,
    },
    'matched_actions': {
        'a number below 0': text_reward(difficulty=-1.0),
        'as `correct`': short_items,
    },
    'shop_reward': {'a number below 0': text_reward(form=-1.0), 'as `correct`': short_items},
    'mentions': {
        '`full` is at least 1': text_reward(full=0),
        '`words` is a list of words': text_reward(words='good'),
    },
    'leaky': {
        'a gap outside [0, 1]': text_reward(gap=2.0),
        'as the parts do': short_items,
    },
    'same_end': {'as `correct`': short_items},
    'ensemble': {
        'there are no parts': text_reward(parts=()),
        'as the parts do': short_items,
    },
    'artefact_free': {'an error that is no probability': text_reward(error=2.0)},
    'artefact_sum': {
        'a weight below 0': text_reward(weight=-1.0),
        'as the parts do': short_items,
    },
    'flipped_reward': {
        'another `per`': text_reward(per='word'),
        '`rate`': text_reward(rate=2.0),
        'there is one item a completion': short_items,
    },
    'random_reward': {'`rate` is a probability': text_reward(rate=2.0)},
    'majority_reward': {
        'without `read` unless there is one item a completion': short_items,
    },
    'majority_novelty_reward': {
        'without `read` unless there is one item a completion': short_items,
    },
    'dealt_reward': {'as `reward` does': short_items},
    'crowd_reward': {
        'without `read` unless there is one item a completion': short_items,
        'samples below 1': text_reward(samples=0),
        'a `weighted` that is neither True nor False': text_reward(weighted='no'),
    },
    'certainty': {'another `by`': knobs(by='x')},
    'tournament_reward': {
        'as `places`': text_reward(kind='x'),
        '`utility` do': short_items,
    },
    'marked_reward': {
        'a band without room': text_reward(band=(1.0, 0.0)),
        'a noise that is no number': text_reward(noise=float('nan')),
        'less than one look': text_reward(looks=0),
    },
    'segment_reward': {
        'another judge': text_reward(judge='x'),
        'a threshold outside (0, 1]': text_reward(threshold=0),
        'there is one item for each completion': short_items,
    },
    'sample_thoughts': {'as `sample`': sampled([])},
    'information_gain': {
        '0 <= tau <= 1': made_with(tau=2.0),
        'a group of a single row': singles,
    },
    'follow_up_likelihood': {
        'no praise': made_with(praise=()),
        'no blame': made_with(blame=()),
    },
    'prompt_echo': {'a `run` below 1': made_with(run=0)},
    'rubric_reward': {
        'there is one item a completion': short_items,
        'an `error` that is no probability': text_reward(error=2),
        'as `rubric_score`': text_reward(stretch=0),
    },
    'praised_reward': {'as `rubric_reward` does': short_items},
    'subgroup_votes': {
        'a wrong size': knobs(size=0),
        'share': knobs(share=0),
        'lam': knobs(lam=5),
        'another baseline': knobs(baseline='x'),
    },
    'gigpo': {
        'an unknown word': knobs(mean='x'),
        'a gamma outside (0, 1]': knobs(gamma=2.0),
    },
    'confidence_score': {
        'another rule': text_reward(rule='x'),
        'there is one item a completion': short_items,
    },
    'calibrated_reward': {
        'another rule': text_reward(rule='x'),
        '`unstated`': text_reward(unstated='x'),
        'there is one item a completion': short_items,
    },
    'pattern_reward': {
        '`full` is at least 1': text_reward(full=0),
        'there is one item a completion': short_items,
    },
    'mended_reward': {'as these do': text_reward(rate=2.0)},
    'fitting_tag': {
        'as `group_labels`': text_reward(threshold=2.0),
        'there is one item for each completion': short_items,
    },
    'fitting_length': {'as `fitting_tag`': text_reward(threshold=2.0)},
    'adactrl': {
        'another number of weights': text_reward(weights=(1.0,)),
        'as `fitting_tag`': text_reward(threshold=2.0),
    },
    'brevity': {'a limit that is not above 0': text_reward(limit=0)},
    'variety': {'another word': text_reward(by='letters'), 'an n below 1': text_reward(n=0)},
    'weighted_sum': {
        'another number of weights': text_reward(weights=(1.0,)),
        'another word': text_reward(unscored='zero'),
    },
    'normalised_sum': {'as `weighted_sum`': text_reward(weights=(1.0,))},
    'carl': {'a penalty outside [0, 1]': text_reward(penalties=(long_ones,))},
    'saturated': {'an `at` that is not above 0': text_reward(at=0)},
    'scheduled': {'as `schedule_at`': text_reward(shape='square')},
    'shuffled': {'another word': text_reward(among='rows')},
    'arm': {
        'unknown words': knobs(rows='some'),
        'an `alpha` that is no number': knobs(alpha=float('nan')),
        'a gap that is none for each row': knobs(gap=lambda rewards, group, **given: rewards[:1]),
    },
    'g2rl': {
        'whole ones': whole_rewards,
        'an unknown word': knobs(wrong='x'),
        'a knob that is no number': knobs(lam=float('nan')),
        'a novelty that is none for each scored row': knobs(
            novelty=lambda rewards, group, **given: rewards[:1]
        ),
    },
    'gae_kl': {
        'as `gae` does': lambda info: fn_of(info)(
            rewards_of(), GROUP[:-1], **signals(info, torch.float64)
        )
    },
    'grpo': {'an unknown `scale`': knobs(scale='x')},
    'hicra': {
        'an `alpha` that is no number': knobs(alpha=float('nan')),
        'as `planning_tokens`': knobs(lexicon=()),
    },
    'token_hidden_reward': {'a knob that is no number': knobs(p=float('nan'))},
    'grpo_passk': {
        'whole ones': whole_rewards,
        'an unknown `scale`': knobs(scale='x'),
        'an `eps` that is no number from 0 on': knobs(eps=-1.0),
    },
    'grpo_overlong': {'limits that make no sense': knobs(buffer=0)},
    'grpo_s': {'prompts without a demonstration': with_items([])},
    'grpo_roc': {'as `chosen_rows`': knobs(share=0.0)},
    'grpo_of_batch': {'as `priority_rows`': knobs(share=0.0)},
    'depth_advantages': {'as `node_numbers`': with_parents},
    'shared_advantages': {'as `node_numbers`': with_parents},
    'deep_search_advantages': {
        '`sharp` not above 0': knobs(sharp=0.0),
        'as `node_numbers`': with_parents,
    },
    'prune_leaves': {'a share outside (0, 1]': knobs(share=0.0)},
    'middle_steps': {
        'quantiles outside 0 to 1': knobs(high=1.5),
        'in another order': knobs(low=0.9, high=0.1),
        'as `drop_zero_rows`': knobs(low=-1.0),
    },
    'accuracy_band': {
        'a `low` above `high`': knobs(low=1.0, high=0.0),
        'a `most` below 1': knobs(most=0),
    },
    'elliptical': {'a `dim` below 1': made_with(dim=0)},
    'gui_g1': {'a problem without a rate': knobs(rates={})},
    'kl_in_reward': {'a group of one row': singles},
    'rloo': {'a group of a single row': singles},
    'weighted_reinforce': {
        'whole ones': whole_rewards,
        'a knob that is no number': knobs(weight=float('nan')),
    },
    'positive': {'as `weighted_reinforce` does': whole_rewards},
    'negative': {'as `weighted_reinforce` does': whole_rewards},
    'remax': {'infinite greedy ones': lambda info: called(info, change=endless_greedy)},
    'gpg': {'an `alpha` that is no number': knobs(alpha=float('nan'))},
    'optimal_token_baseline': {
        'as `score_energy` does': lambda info: called(info, change=no_collision)
    },
    'pkpo': {
        'whole ones': whole_rewards,
        'a group with too few rows for `k`': singles,
        'a `k` that is no whole number from 1 on': knobs(k=2.5),
        'another baseline': knobs(baseline='x'),
        'a threshold that is no number': knobs(threshold=float('nan')),
    },
    'no_advantage': {'as `reinforce` does': lambda info: info.fn(rewards_of(), GROUP[:-1])},
    'posterior_weight': {'`beta` > 0': knobs(beta=0.0)},
    'prl': {'an unknown mode': knobs(mode='x'), 'an eta not above 0': knobs(eta=0.0)},
    'dense_grpo': {
        'a reward outside [0, 1]': knobs(rewards=2 * rewards_of() - 1),
        'another word': knobs(across='x'),
        'as these do': knobs(samples=-1),
    },
    'tp_grpo': {
        'another mode': knobs(mode='x'),
        'an eta that is no number': knobs(eta='much'),
        'as `dense_grpo`': knobs(across='x'),
    },
    'hi_grpo': {
        'fewer levels than one': made_with(levels=0),
        'a `lam` that is no number': made_with(lam='x'),
        'a `score` that does not give a number for each step': knobs(score=lambda item, texts: None),
    },
    'timehc': {
        'another word': made_with(where='x'),
        'fewer samples than one': made_with(samples=0),
        'a knob out of range': made_with(alpha='x'),
    },
    'srpo': {'another word': knobs(among='x'), 'a knob that is no number': knobs(most='x')},
    'calm': {
        'another word': knobs(to='x'),
        'a weight that is no number': knobs(weight='much'),
        'a rate outside [0, 1]': knobs(recall=2.0),
    },
    'oni': {'another word': made_with(labeller='x'), 'a number out of range': made_with(budget=-1)},
    'rank_shaping': {'an unknown `spread`': made_with(spread='x')},
    'curiosity': {'as `Hindsight` does': made_with(codes=0)},
    'rdd': {
        'an `every` below 1': made_with(every=0),
        'as `Familiarity` does': made_with(passes=0),
    },
    'reference_value': {'another `value`': made_with(value='x')},
    'reinforce': {'a baseline that is no number': knobs(baseline='batch')},
    'uncertainty_bonus': {'as `capped_bonus`': knobs(beta=0.0)},
    'univg': {'an unknown form': knobs(form='x')},
    'weighted_grpo': {'other words': knobs(centre='x')},
    'duration_weighted': {'impossible durations': with_durations},
    'recomposed': {'as `priority_rows`': knobs(among='prompt')},
    'entropy_quantile': {'unknown words': knobs(end='x')},
    'a_lol': {'as `a_lol_weight`': knobs(variant='x')},
    'dph': {'an unknown divergence': knobs(divergence='x')},
    'dual_clip': {'c > 1': knobs(c=1.0), 'limits below 0': knobs(low=-0.2)},
    'gspo': {'limits below 0': knobs(low=-0.2)},
    'gspo_token': {'limits below 0': knobs(high=-0.2)},
    'gmpo': {'limits below 0': knobs(low=-0.4)},
    'cispo': {'limits below 0': knobs(high=-0.2), 'a cap below 1': knobs(cap=0.2)},
    'sapo': {'both are above 0': knobs(tau_neg=0.0)},
    'clip_cov': {
        'a fraction outside (0, 1]': knobs(fraction=20),
        '`lower` not below `upper`': knobs(lower=5.0, upper=5.0),
        'limits below 0': knobs(low=-0.2),
    },
    'kl_cov': {
        'a fraction outside (0, 1]': knobs(fraction=0.0),
        'a coefficient below 0': knobs(coef=-1.0),
    },
    'lp_reg': {'a `kappa` not in KAPPAS': knobs(kappa=0.5)},
    'pacs': {
        'an unknown `score`': knobs(score='x'),
        'a group of one row': lambda info: called(
            info, change=lambda s: {**s, 'group': torch.arange(N)}
        ),
    },
    'ppo_preclip': {
        'limits that do not include 1': knobs(floor=2.0),
        'distances below 0': knobs(low=-0.2),
    },
    'truncated_is': {'as `behaviour_weight`': knobs(level='x')},
    'banded_ppo': {
        'an empty band': knobs(band=(2.0, 1.0)),
        'an unknown level': knobs(level='x'),
    },
    'adaptive_entropy_bonus': {
        'a knob below 0': made_with(delta=-0.005),
        'as `entropy_bonus`': lambda info: fn_of(info)(
            batch()[0][:, :-1], MASK, **signals(info, torch.float64)
        )
    },
    'adaptive_kl_penalty': {
        'as `kl_penalty`': lambda info: fn_of(info)(
            batch()[0][:, :-1], MASK, **signals(info, torch.float64)
        )
    },
    'kl_penalty': {'an unknown estimator': knobs(estimator='x')},
    'aggregate': {
        'an unknown mode': knobs(mode='x'),
        'shapes that differ': lambda info: info.fn(batch()[0][:, :-1], MASK),
    },
    'ema_reference': {'0 <= tau < 1': made_with(tau=1.0)},
    'reset_reference': {'neither patience nor every is given': made_with(patience=None)},
}
PROMISES = [
    pytest.param(i, c, id=f'{i.name}: {c}')
    for k in KINDS
    for i in stages(k).values()
    if i.module.startswith('rl4llm')
    for c in clauses(i)
]


@pytest.mark.parametrize('info, clause', PROMISES)
def test_what_a_docstring_says_it_raises(info, clause):
    assert clause in BROKEN.get(info.name, {}), (
        f"{info.name} says that it raises for {clause!r}: add a call to BROKEN that makes it true, or take the promise out"
    )
    with pytest.raises(ValueError) as e:
        BROKEN[info.name][clause](info)
    assert len(str(e.value)) > 20


def test_no_call_is_left_of_a_promise_that_is_gone():
    told = {(p.values[0].name, p.values[1]) for p in PROMISES}
    assert {(name, clause) for name, calls in BROKEN.items() for clause in calls} == told


# limits of ratios, shares of tokens

NAN = float('nan')
REFUSED = [
    *(('cispo', dict(cap=cap)) for cap in (-1.0, 0.0, 0.999, NAN)),
    *((name, {side: bad}) for name in ('gspo', 'gspo_token', 'gmpo', 'cispo', 'dual_clip',
                                       'ppo_preclip', 'clip_cov')
      for side in ('low', 'high') for bad in (-0.1, NAN)),
    *(('sapo', {side: bad}) for side in ('tau_pos', 'tau_neg') for bad in (0.0, -1.0, NAN)),
    *((name, dict(fraction=bad)) for name in ('clip_cov', 'kl_cov') for bad in (0, -1.0, 20, NAN)),
    *(('clip_cov', dict(lower=a, upper=b)) for a, b in ((5.0, 1.0), (1.0, 1.0), (NAN, 5.0))),
    *(('kl_cov', dict(coef=bad)) for bad in (-1.0, NAN)),
]


@pytest.mark.parametrize('name, bad', REFUSED)
def test_a_knob_that_cannot_be_meant_is_named(name, bad):
    with pytest.raises(ValueError, match=f'^{name} has ') as e:
        called(find_stage(name), **bad)
    text = str(e.value)
    assert 'wanted' in text and text.endswith('.')
    assert all(f'{knob}={value}' in text for knob, value in bad.items())


@pytest.mark.parametrize('knob', ['target', 'start', 'delta', 'most'])
@pytest.mark.parametrize('bad', [-0.005, NAN])
def test_a_bonus_with_a_target_wants_knobs_of_0_or_more(knob, bad):
    with pytest.raises(ValueError, match=f'adaptive_entropy_bonus has {knob}={bad}, wanted 0'):
        find_stage('adaptive_entropy_bonus').fn(**{knob: bad})


@pytest.mark.parametrize(
    'name, edge',
    [
        ('gspo', dict(low=0.0, high=0.0)),
        ('cispo', dict(cap=1)),
        ('cispo', dict(low=10.0)),
        ('clip_cov', dict(fraction=1)),
        ('clip_cov', dict(lower=0.0, low=1.0, high=1.0)),
        ('kl_cov', dict(fraction=1.0, coef=0.0)),
        ('sapo', dict(tau_pos=1e-3, tau_neg=9.0)),
    ],
)
def test_knobs_at_the_edge_are_taken(name, edge):
    assert called(find_stage(name), **edge).isfinite().all()


def test_a_ratio_of_a_row_wants_one_value_for_each_token():
    logp, logp_old, _, mask = batch()
    with pytest.raises(ValueError, match='logp_old has shape'):
        sequence_log_ratio(logp, logp_old[:1], mask)
    with pytest.raises(ValueError, match='logp is nan at row'):
        sequence_log_ratio(logp * NAN, logp_old, mask)
    outside = logp.masked_fill(~mask, NAN)
    assert torch.equal(
        sequence_log_ratio(outside, logp_old, mask), sequence_log_ratio(logp, logp_old, mask)
    )


# advantages: equal rewards, holes, places

SMALL = dict(pkpo=use('pkpo', k=2))  # groups here have two rows and more
USES = {
    repr(u): u
    for name in RECIPES
    for u in [SMALL.get(recipe(name).advantage.name, recipe(name).advantage)]
} | {
    repr(u): u
    for u in (use('grpo', scale='batch'), use('grpo', scale='none'), use('opo', leave_out=True))
}
every_use = pytest.mark.parametrize(
    'made', [pytest.param(u, id=name) for name, u in sorted(USES.items())]
)
EQUAL = torch.tensor(
    [0, 1, 5]
)  # groups whose rewards are all equal below; the rows of group 2 differ


def advantage(made, rewards, group=GROUP, change=lambda s: s):
    s = change(signals(made.info, rewards.dtype, rewards=rewards, group=group))
    return made.make()(rewards, group, **s)


@every_use
@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('value', [0.1, 0.7, -3.3])
def test_equal_rewards_leave_no_rounding_behind(made, dtype, value):
    "An advantage of a group with equal rewards is exactly 0 or means something: a remainder of rounding would count as a row that teaches."
    if made.info.name in OF_VERDICTS:
        value = abs(value) / 4
    r = torch.full((N,), value, dtype=dtype)
    some = torch.where(torch.isin(GROUP, EQUAL), r, torch.linspace(0, 1, N, dtype=dtype))
    for rewards in (r, some, some.masked_fill(torch.arange(N) == 2, torch.nan)):
        adv = advantage(made, rewards)[torch.isin(GROUP, EQUAL)]
        left = (adv != 0) & (adv.abs() < 1e-5)
        assert not left.any(), f"{made}: {adv[left][:3].tolist()}"


NEEDS_REWARDS = (
    'weighted_grpo',
    'grpo',
    'dr_grpo',
    'rloo',
    'gpg',
    'opo',
    'reinforce_batch',
    'grpo_passk',
    'rank_shaping',
    'univg',
)


@pytest.mark.parametrize('name', NEEDS_REWARDS)
def test_equal_rewards_teach_nothing(name):
    assert (advantage(use(name), torch.full((N,), 0.1)) == 0).all()


def garbage(x):
    return (
        x.masked_fill(~MASK.view(N, T, *[1] * (x.dim() - 2)), torch.nan)
        if x.is_floating_point()
        else x
    )


@every_use
def test_advantage_ignores_what_is_outside_the_mask(made):
    r = rewards_of()
    adv, dirty = (
        advantage(made, r),
        advantage(
            made,
            r,
            change=lambda s: {k: by_token(garbage, v, everything=False) for k, v in s.items()},
        ),
    )
    assert close(*(a[MASK] if a.dim() == 2 else a for a in (adv, dirty)))


@every_use
def test_advantage_does_not_depend_on_the_place_of_a_prompt(made):
    "Prompts stand in a batch in no particular order, so their numbers mean nothing unless a curriculum said so."

    def turned(s):
        if 'rollouts' not in s:
            return s
        r, order = (
            s['rollouts'],
            torch.tensor([3, 0, 5, 1, 4, 2]),
        )  # the new place of prompt i is order[i]
        back = order.argsort()
        moved = dataclasses.replace(
            r,
            prompt=order[r.prompt],
            prompt_ids=r.prompt_ids[back],
            prompt_mask=r.prompt_mask[back],
            items=tuple(r.items[i] for i in back),
        )
        return {**s, 'rollouts': moved}

    assert close(advantage(made, rewards_of()), advantage(made, rewards_of(), change=turned))


def test_prices_belong_to_a_pair():
    "The price of a wrong answer goes by the mark that the curriculum put on its problem; without a mark there is none, whatever the batch looks like."
    from rl4llm.advantages.pairs import marked, weighted_grpo

    r, (hard, easy, *others) = rewards_of(), problems()
    price = dict(scale='none', hard=3.0, easy=2.0)

    def of(items):
        return weighted_grpo(
            r,
            GROUP,
            rollouts=dataclasses.replace(some_rollouts(torch.float64), items=tuple(items)),
            **price,
        )

    plain, pair = advantage(use('grpo'), r), [marked(hard, 0, True), marked(easy, 0, False)]
    for unmarked in (problems(), [hard, easy] * 3, ()):
        assert torch.equal(of(unmarked), plain)
    assert not torch.allclose(of(pair * 3), of(pair[::-1] * 3))
    mixed, whole = of(pair + others), of(pair * 3)
    is_marked = GROUP < 2
    assert torch.equal(mixed[is_marked], whole[is_marked]) and torch.equal(
        mixed[~is_marked], plain[~is_marked]
    )


@pytest.mark.parametrize('name', ['paired', 'paired_scale', 'paired_pooled'])
@pytest.mark.parametrize('items', [2, 4])
def test_a_batch_of_two_problems_is_no_pair(name, items):
    "Two prompts a step, as anybody may ask for: until the curriculum has found a pair, training is that of grpo, right or wrong."
    from rl4llm.training.loop import train

    one, other = (
        train(
            small_policy().clone(),
            task('countdown', level='easy'),
            recipe(made, prompts=items, group=4, max_new_tokens=4, reward='random_reward', **how),
            steps=1,
            seed=1,
        )
        for made, how in ((name, dict(curriculum='uniform')), ('grpo', {}))
    )
    for column in ('loss', 'grad_norm', 'reward'):
        assert one.metrics[column][0] == other.metrics[column][0]
    assert one.metrics['grad_norm'][0] > 0


@pytest.mark.parametrize('group, worst', [(8, 6), (12, 10), (16, 14), (24, 22)])
def test_a_brittle_problem_follows_the_size_of_the_group(group, worst):
    "With groups of G an easy problem failed once or twice in G: the window is that of the rates which the step has measured, unless `samples` says otherwise."
    from rl4llm.advantages.pairs import prompt_pairs
    from rl4llm.training.loop import rewards_by_problem

    first = torch.arange(6).repeat_interleave(group)
    right = torch.tensor(
        [group - 1, worst, worst - 1, 1, group, 0]
    )  # brittle twice, too often wrong, hard, solved, never solved
    r = make_rollouts(
        prompt_ids=torch.ones(6, 1).long(),
        prompt_mask=torch.ones(6, 1).bool(),
        tokens=torch.ones(6 * group, 1).long(),
        prompt=first,
        items=problems(),
        mask=torch.ones(6 * group, 1).bool(),
        rewards=(torch.arange(group).repeat(6) < right[first]).float(),
    )

    def found(rollouts, **how):
        made = prompt_pairs(task('countdown'), **how)
        made.update(rewards_by_problem(rollouts))
        return [kept and problems().index(kept[0]) for kept in made.pair]

    assert found(r) == [3, 0]
    others = r.rewards.masked_fill(first == 0, torch.nan)
    assert found(dataclasses.replace(r, rewards=others)) == [3, 1]
    assert found(r, samples=1000)[1] is None


# ranks: holes


def closed(x):
    "The tokens of the mask moved to the front of their row."
    order = (~MASK).int().argsort(dim=1, stable=True)
    return x.take_along_dim(order.view(N, T, *[1] * (x.dim() - 2)), 1)


@pytest.mark.parametrize('stride', [1, 2, 3])
@pytest.mark.parametrize('seed', range(5))
def test_ranks_along_a_response_with_holes(stride, seed):
    "What a tool wrote inside a response is as if it were not there: the ranks are those of the tokens around it, prefix by prefix."
    from rl4llm.advantages.effective_rank import effective_rank_of, rank_along

    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(N, 9, generator=g) < 0.6
    hidden = torch.randn(N, 9, 4, generator=g, dtype=torch.float64)
    found = rank_along(hidden.masked_fill(~mask[..., None], torch.nan), mask, stride=stride)
    for row in range(N):
        own = hidden[row][mask[row]]
        ends = list(range(stride, len(own) + 1, stride)) or [len(own)]
        wanted = [
            effective_rank_of(own[None, :e], torch.ones(1, e, dtype=torch.bool))[0]
            if e
            else torch.tensor(1.0).double()
            for e in ends
        ]
        assert close(found[row][~found[row].isnan()], torch.stack(wanted))


# selections: unscored rows


@over('select')
@pytest.mark.parametrize('more', [{}, dict(one_each=True, warmup=0)], ids=['plain', 'one_each'])
def test_select_unscored_rows_have_no_say(info, more):
    "A row that could not be scored is not a wrong one: which of the others stay, and with what weight, is as without it."
    if more and info.name != 'token_reward_weights':
        pytest.skip('knobs of another stage')
    gone = torch.tensor([1, 2, 6, 11])
    stay = ~torch.isin(torch.arange(N), gone)
    r, adv = (
        some_rollouts(
            torch.float32, rewards=rewards_of(torch.float32).masked_fill(~stay, torch.nan)
        ),
        batch(torch.float32)[2].masked_fill(~stay[:, None], 0),
    )
    s = signals(info, torch.float32, adv=adv)
    make = lambda: use(info.name, **more).make()
    weight, keep = make()(r, adv, **s)
    alone_weight, alone_keep = make()(at(r, stay), adv[stay], **take(s, stay))
    assert torch.equal(keep[stay], alone_keep)
    if info.name != 'entropy_quantile':
        assert torch.equal(
            weight[stay], alone_weight
        )  # its quantile is over the tokens of all rows


@over('sampler')
def test_a_sampler_of_nothing_says_so(info):
    with pytest.raises(ValueError, match='at least one problem'):
        fn_of(info)(small_policy(), [], 2, seed=1, temperature=1.0)


# claims of being unbiased, and of being right in later updates

CLAIMED = {
    f'{name}: {r.advantage}': r.advantage
    for name in RECIPES
    for r in [recipe(name)]
    if r.advantage.info.unbiased and all(map(tree_has, r.advantage.info.needs))
}


@pytest.mark.parametrize('made', CLAIMED.values(), ids=CLAIMED)
def test_unbiased_at_the_knobs_of_every_recipe(made):
    assert checked(made).unbiased


@pytest.mark.parametrize(
    'name', [n for n in sorted(RECIPES) if recipe(n).advantage.name == 'kl_in_reward']
)
def test_recipes_that_ascend_a_penalised_reward(name):
    "The step of the whole recipe, aggregation included, goes the way of E[r] - beta KL where responses end early or late."
    from rl4llm.oracle.estimators import check
    from rl4llm.oracle.tabular import TokenTree, tree_rewards

    tree = TokenTree(vocab=3, length=3, eos=0)
    ref, z, r = (
        random_logits(tree, seed=1),
        random_logits(tree, seed=2),
        tree_rewards(tree, lambda s: sum(s) == 2),
    )
    beta = dict(recipe(name).advantage.knobs).get('beta', 0.05)
    assert check(
        recipe(name),
        tree,
        z,
        r,
        group=2,
        ref=ref,
        target=exact_gradient(tree, z, r, ref=ref, beta=beta),
    ).aligned


def several_updates(r):
    return r.epochs > 1 or r.minibatch is not None and r.minibatch < r.prompts * r.group


@pytest.mark.parametrize('name', [n for n in sorted(RECIPES) if several_updates(recipe(n))])
def test_a_recipe_with_several_updates_looks_where_it_came_from(name):
    "In a second update the policy has moved: the loss depends on where it was, or says that it does not."
    made, (logp, logp_old, adv, mask) = recipe(name).objective, batch()
    s = signals(made.info, torch.float64)

    def gradient(old):
        x = logp.clone().requires_grad_()
        return torch.autograd.grad(made.make()(x, old, adv, mask, **s).sum(), x)[0]

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter('always')
        looks = not torch.equal(gradient(logp_old), gradient(logp.detach().clone()))
    assert (
        looks or told or {'logp_ref', 'logp_behave'} & set(made.info.needs)
    )  # these start from somebody else


def test_a_plain_policy_gradient_warns_in_a_second_update():
    from rl4llm.objectives.surrogates import policy_gradient

    logp, logp_old, adv, mask = batch()
    with pytest.warns(UserWarning, match='ppo_clip'):
        policy_gradient(logp, logp_old, adv, mask)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for same in (None, logp, logp + 1e-5, torch.full_like(logp, torch.nan)):
            policy_gradient(logp, same, adv, mask)


# DAPO: the worth of an answer at the limit


@pytest.mark.parametrize(
    'name', [n for n in sorted(RECIPES) if recipe(n).advantage.name == 'grpo_overlong']
)
def test_what_a_long_answer_is_worth(name):
    "As with the paper's rewards of +1 and -1: right at the limit is halfway between short and right and short and wrong, which is above wrong at the limit."
    made = recipe(name).advantage
    limit, lengths = (
        made(torch.zeros(2), torch.zeros(2).long(), lengths=torch.ones(2).long()),
        torch.tensor([1, 10**6, 1, 10**6]),
    )
    short_right, long_right, short_wrong, long_wrong = made(
        torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.zeros(4).long(), lengths=lengths
    )
    assert short_right > long_right > short_wrong > long_wrong and torch.isclose(
        long_right, (short_right + short_wrong) / 2, atol=1e-4
    )
