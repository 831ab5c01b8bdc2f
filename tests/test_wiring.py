"""Is the training loop wired as the design says?

For every recipe, the gradient of each step that its optimiser takes is compared with that of a
plain, slow assembly, written again below from the design alone: loops over rows and tokens, an
ordinary Hugging Face forward, no micro-batches, no row left out. Stages are called as they are;
nothing of what surrounds them is shared with the package.

Then faults are planted where the package assembles its loss, and the comparison must notice each.
`pytest -s` shows two tables: which recipe ran how, and which recipe noticed which fault.
"""

import ast
import copy
import dataclasses
import inspect
import textwrap
from collections import Counter
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from operator import attrgetter
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.optim.optimizer import register_optimizer_step_pre_hook

from rl4llm import Policy, recipe, recipes, stage, stages, task, train, use
from rl4llm.core.numerics import STATISTICS, fold
from rl4llm.core.registry import RECIPES, STAGES
from rl4llm.core.rollouts import make_rollouts
from rl4llm.core.signals import known_signals
from rl4llm.tasks.vocabulary import tiny_tokenizer
from rl4llm.training import loop as training_loop

recipes()  # loads every stage and recipe

EASY = task('countdown', level='easy')
SEED = 11
NUMBERS = dict(
    prompts=6,
    group=3,
    temperature=0.8,
    max_new_tokens=9,
    epochs=1,
    minibatch=None,
    micro=None,
    lr=0.02,
    warmup=3,
    betas=(0.8, 0.95),
    weight_decay=0.1,
    max_grad_norm=1e9,
)


# -- a batch that has everything a loop can stumble over


@dataclasses.dataclass(frozen=True)
class Row:
    "One response. `loss`: a digit a token, 0 where it carries none (the answer of a tool)."

    prompt: int
    group: int
    verdict: str
    loss: str
    origin: int = 0


ROWS = (  # groups are ragged, mixed, and not always the prompt
    Row(0, 7, 'right', '1111111'),
    Row(0, 7, 'wrong', '1110011'),
    Row(1, 3, 'wrong', '111'),
    Row(0, 7, 'wrong', '0011110'),
    Row(1, 3, 'right', '1'),
    Row(1, 3, 'right', '11111', origin=1),
    Row(2, 9, 'wrong', '1111'),  # nobody in this group is right
    Row(2, 9, 'wrong', '111111'),
    Row(3, 5, 'right', '1101101'),
    Row(3, 6, 'right', '111', origin=3),
    Row(3, 5, 'no verdict', '11111'),
    Row(3, 5, 'wrong', '1111111', origin=2),
    Row(3, 6, 'wrong', '11'),
    Row(4, 1, 'wrong', '111111'),
    Row(4, 1, 'right', '11011', origin=2),
    Row(4, 1, 'wrong', '0000'),  # no token of it carries loss
    Row(4, 1, 'right', '1111111'),
)
N, T, V = len(ROWS), 7, 256  # rows, tokens of a row, words of the vocabulary
PAD, END = 0, 2
SEMICOLONS = ((0, 2), (5, 1), (8, 3), (13, 3), (16, 4))
NO_VERDICT = 'no verdict can be given'


def noise(seed):
    return torch.Generator().manual_seed(seed)


@cache
def first_policy():
    "A random Llama over the project's vocabulary, sharp enough that its tokens differ."
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=V,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.15,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=END,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
    return Policy(model, tiny_tokenizer(), 'small', 'compact')


def shake(policy):
    "Move the weights, so that the policy is not its own reference."
    generator = noise(8)
    with torch.no_grad():
        for p in policy.model.parameters():
            p.add_(0.03 * torch.randn(p.shape, generator=generator))


@cache
def problems():
    "Six problems, the last of which nobody answers; prompts are not all equally long."
    return tuple(EASY.sample(3, seed=5) + task('countdown').sample(3, seed=5))


def asked_of(item):
    "What a policy of the compact style is asked."
    return item.prompt('compact')


def problem_of(prompt):
    "The problem that a text asks for; nobody else's text is one."
    found = [item for item in problems() if asked_of(item) == prompt]
    assert len(found) == 1, f"the reward got a prompt that nobody was asked: {prompt!r}"
    return found[0]


@cache
def texts():
    "Each row's text: an answer to its problem, or to the next one, or one without a verdict."
    found = []
    for number, row in enumerate(ROWS):
        asked = problems()[row.prompt if row.verdict == 'right' else row.prompt + 1]
        answer = task(asked.task).demonstrate(asked, seed=number)
        found.append(NO_VERDICT if row.verdict == 'no verdict' else answer)
    return tuple(found)


@cache
def prompt_tensors():
    "Left-padded token ids of the problems, and where they are real."
    tokenizer = first_policy().tokenizer
    asked = [tokenizer(asked_of(item))['input_ids'] for item in problems()]
    width = max(map(len, asked))
    ids = torch.tensor([[PAD] * (width - len(a)) + a for a in asked])
    real = torch.tensor([[t >= width - len(a) for t in range(width)] for a in asked])
    return ids, real


@cache
def written_tokens():
    "Random tokens; rows 0 and 1 begin alike, and finished rows end in the end token."
    tokens = torch.randint(3, V - 1, (N, T), generator=noise(1))
    tokens[1, :3] = tokens[0, :3]
    semicolon = tiny_tokenizer().convert_tokens_to_ids(';')
    for i, t in SEMICOLONS:
        tokens[i, t] = semicolon
    for i, row in enumerate(ROWS):
        end = len(row.loss)
        tokens[i, end:] = PAD
        tokens[i, end - 1] = END if i % 3 else tokens[i, end - 1]
    return tokens


@cache
def extra_signals():
    "What samplers of single methods leave: durations, sets of allowed tokens, their mass."
    durations = torch.rand(N, generator=noise(2)) + 0.5
    durations[2] = torch.nan
    allowed = torch.rand(N, T, V, generator=noise(3)) < 0.8
    allowed.scatter_(2, written_tokens()[..., None], True)
    log_mass = -torch.rand(N, T, generator=noise(4)) / 2
    return dict(durations=durations, action_mask=allowed, log_mass=log_mass)


@cache
def written_rollouts():
    "The rows above as `Rollouts`, without any log-probabilities."
    ids, real = prompt_tensors()
    mask = torch.tensor([[row.loss.ljust(T)[t] == '1' for t in range(T)] for row in ROWS])
    prompt = torch.tensor([row.prompt for row in ROWS])
    group = torch.tensor([row.group for row in ROWS])
    origin = torch.tensor([row.origin for row in ROWS])
    every_fifth = torch.arange(N * T).view(N, T) % 5
    loss_weight = torch.tensor([1.0, 0.5, 2.0, 1.0, 0.0])[every_fifth]
    return make_rollouts(
        prompt_ids=ids,
        prompt_mask=real,
        tokens=written_tokens(),
        prompt=prompt,
        mask=mask,
        group=group,
        origin=origin,
        sampled=mask & (origin == 0)[:, None],
        finished=torch.arange(N) % 3 > 0,
        loss_weight=loss_weight,
        items=problems(),
        texts=texts(),
        signals=extra_signals(),
    )


def some_tokens():
    "Tokens of some rows, of no other row, and of half of the third kind."
    row = torch.arange(N)[:, None].expand(N, T)
    every_other = torch.arange(T).expand(N, T) % 2 == 0
    return (row % 3 == 0) | (row % 3 == 1) & every_other


def batch_of(policy, temperature, *, known=None, outside=0.0):
    """The rows as a sampler returns them, with log-probabilities near those of `policy`.

    known: tokens whose log-probabilities before the update are given, too; they are `outside` where
    no loss is.
    """
    rollouts = dataclasses.replace(written_rollouts(), temperature=temperature)
    mask = rollouts.mask
    with torch.no_grad():
        logp = plain_statistics(policy, rollouts, ['logp'])['logp']

    def near(seed):
        return logp + 0.2 * torch.randn(N, T, generator=noise(seed)) * mask

    given = near(6).masked_fill(~mask, outside)
    unknown = torch.full((N, T), torch.nan)
    old = unknown if known is None else torch.where(known, given, unknown)
    return dataclasses.replace(rollouts, logp_behave=near(5), logp_old=old)


def graded(prompts, completions, *, own, knobs, **columns):
    "The recipe's own reward, but None for one text, and something for a greedy answer."
    asked = [problem_of(prompt) for prompt in prompts]
    assert asked == list(columns['item']), "the reward got the prompts of other problems"
    values = stages('reward')[own].fn(prompts, completions, **columns, **dict(knobs))
    for i, text in enumerate(completions):
        if text == NO_VERDICT:
            values[i] = None
        elif text not in texts():
            values[i] = len(text) % 3 / 4
    return values


# -- a recipe of our own, whose stages ask for every signal but `logp_ref`, which many others do

EVERY_SIGNAL = 'every signal'
AT_HAND = (
    'rollouts',
    'policy',
    'task',
    'finished',
    'lengths',
    'mask',
    'tokens',
    'rewards',
    'group',
    'logp_behave',
    'durations',
    'action_mask',
    'log_mass',
)
LIVE = tuple(name for name in STATISTICS if name != 'logp')
BEFORE = (
    *AT_HAND,
    'old_hidden',
    'greedy_rewards',
    *(f"{who}_{name}" for who in ('old', 'ref') for name in LIVE),
)
NOW = (*BEFORE, 'adv', 'logp_old', *LIVE)


def by_token(name, x, like):
    "A signal as one number a token, or one for all."
    if name == 'task':
        x = torch.tensor(float(x is EASY))
    if name == 'policy':
        x = next(x.model.parameters()).detach().sum()
    if name == 'rollouts':
        x = x.loss_weight + x.temperature
    x = torch.sin(x.to(like).nan_to_num())
    if x.dim() == 1:
        return x[:, None]
    return x.flatten(2).mean(2) if x.dim() > 2 else x


def blend_of(signals, like):
    "One number a token that depends on every signal, each with a factor of its own."
    total = torch.zeros_like(like)
    for k, (name, x) in enumerate(signals.items()):
        total = total + by_token(name, x, like) / (k + 2)
    return total


def all_advantage(paid, _, **signals):
    return paid.nan_to_num()[:, None] - 0.5 + blend_of(signals, signals['logp_behave'])


def all_select(_, given, **signals):
    return 1 + 0.5 * blend_of(signals, given).tanh(), signals['greedy_rewards'] < 0.6


def all_objective(now, before, given, seen, **signals):
    loss = -given * (now - before).exp() * (1 + blend_of(signals, now))
    return loss.masked_fill(~seen, 0)


def all_regulariser(now, seen, **signals):
    return (now * blend_of(signals, now)).masked_fill(~seen, 0)


def own_recipe():
    "The recipe of these stages, and a constant length that is not given."
    stage('advantage', needs=BEFORE)(all_advantage)
    stage('select', needs=(*BEFORE, 'adv'))(all_select)
    stage('objective', needs=NOW)(all_objective)
    stage('regulariser', needs=NOW)(all_regulariser)
    return recipe(
        'grpo',
        advantage='all_advantage',
        select='all_select',
        objective='all_objective',
        regularisers=('all_regulariser',),
        aggregate=use('aggregate', mode='seq-mean-token-sum-norm'),
    )


@pytest.fixture(scope='module', autouse=True)
def registry():
    "Stages of these tests do not stay; fingerprints, half of the time, are not taken."
    before = dict(STAGES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(recipe('grpo')), 'fingerprint', lambda self: 'none')
        yield
    STAGES.clear()
    STAGES.update(before)


# -- settings

ONE, SEVERAL, KNOWN = 'one update', 'several updates', 'old log-probabilities given'
SOME, LATER = 'some old log-probabilities given', 'some given, several updates'
OPEN = 'length of a response left open'
SINGLE = {  # tried with one recipe each
    'clipped gradient': dict(max_grad_norm=0.1),
    'two epochs': dict(epochs=2),
    'two mini-batches': dict(minibatch=12),
    'less than a mini-batch': dict(minibatch=20),
}
SETTINGS = {
    ONE: dict(),
    SEVERAL: dict(epochs=2, minibatch=9, micro=4, warmup=1),
    KNOWN: dict(minibatch=11),  # where a group ends
    SOME: dict(micro=4),
    LATER: dict(epochs=2, micro=4),
    OPEN: dict(max_new_tokens=None),
    **SINGLE,
}

LOUDER = {  # knobs that make a small part of the loss large enough
    'adaptive_entropy_bonus': dict(start=0.5, delta=0.2),
    'adaptive_kl_penalty': dict(start=0.5, horizon=20),
    'dph': dict(coef=1.0),
    'ema_reference': dict(tau=0.5),
    'entropy_bonus': dict(coef=0.5),
    'kl_penalty': dict(coef=0.5),
    'pkpo': dict(k=2),
    'reference_value': dict(fit=1),
    'reset_reference': dict(every=1),
    'rlfr': dict(warmup=1, coef=1.0),
    'sigma_filter': dict(limit=1.0),
    'token_reward_weights': dict(warmup=1),
    'rlsp_reward': dict(lam=0.5),  # rows here have few tokens
}

GIVEN = {  # recipes that get old log-probabilities in every setting
    'kl_cov': 'has |logp - logp_old|, which has no gradient before the first update'
}


def uses_of(r):
    "All stages of a recipe that have a part in its loss."
    return (r.advantage, r.select, r.objective, r.aggregate, r.reference, *r.regularisers)


def kept_whole(r):
    "What some stage wants not to be split: 'group', 'batch' or None."
    wanted = {bound.info.keep_whole for bound in uses_of(r)}
    return next((whole for whole in ('batch', 'group') if whole in wanted), None)


def has_memory(r):
    "Whether some stage learns from a step; such a recipe is tried for two."
    return any(hasattr(bound.info.fn, 'update') for bound in uses_of(r))


def louder(bound):
    return use(bound, **LOUDER.get(bound.name, {}))


def recipe_of(name, setting):
    "A recipe as it is tried: its own stages, but prepared rewards and other numbers."
    r = own_recipe() if name == EVERY_SIGNAL else recipe(name)
    changes = {**NUMBERS, **SETTINGS[setting]}
    if kept_whole(r) == 'batch':
        changes['micro'] = None
    for field in ('advantage', 'select', 'objective', 'reference'):
        changes[field] = louder(getattr(r, field))
    changes['regularisers'] = tuple(map(louder, r.regularisers))
    knobs = {**dict(r.reward.knobs), **LOUDER.get(r.reward.name, {})}
    changes['reward'] = use(graded, own=r.reward.name, knobs=tuple(knobs.items()))
    return r.but(**changes)


def one_for_each_objective():
    "The first recipe of each objective."
    found = {recipe(name).objective.name: name for name in sorted(RECIPES, reverse=True)}
    return sorted(found.values())


CASES = (
    *((name, setting) for setting in (ONE, SEVERAL) for name in (*sorted(RECIPES), EVERY_SIGNAL)),
    *((name, KNOWN) for name in one_for_each_objective()),
    *(('grpo', setting) for setting in SINGLE),
    *((name, setting) for setting in (SOME, LATER) for name in ('grpo', 'gspo', EVERY_SIGNAL)),
    ('remax', OPEN),
)


def given_old(name, setting):
    "Tokens whose log-probabilities before the update the sampler gives in one of the `CASES`."
    if setting in (SOME, LATER):
        return some_tokens()
    every = torch.ones(N, T, dtype=torch.bool)
    return every if setting == KNOWN or name in GIVEN else None


# -- what the loop does


@dataclasses.dataclass
class Update:
    "One step of the policy's optimiser: weights before it, their gradient, its settings."

    step: int
    weights: list
    gradient: torch.Tensor
    settings: dict


def weights_of(policy):
    return [p.detach().clone() for p in policy.model.parameters()]


def flat(gradients, policy):
    "Gradients of all weights as one vector; a missing one is 0."
    found = []
    for g, p in zip(gradients, policy.model.parameters()):
        found.append((torch.zeros_like(p) if g is None else g).flatten())
    return torch.cat(found)


class Watch:
    "A callback and a sampler: notes what both are told, and each step of the optimiser."

    def __init__(self, **batch):
        self.batch = batch  # what kind of batch the sampler returns
        self.asked = []  # what the sampler was asked for, a step
        self.given = []  # what it returned
        self.updates = []
        self.rows = []  # of metrics
        self.rewards = []  # of the loop's rollouts
        self.after = []  # weights after the step

    def sampler(self):
        "A sampler that returns the prepared batch."

        def prepared(policy, items, group=1, *, seed, temperature=1.0, **more):
            self.asked.append(
                dict(prompts=len(items), group=group, temperature=temperature, seed=seed, **more)
            )
            self.given.append(batch_of(policy, temperature, **self.batch))
            return copy.deepcopy(self.given[-1])

        return use(prepared)

    def on_start(self, state):
        shake(state.policy)
        self.policy = state.policy

    def before_update(self, optimiser, *_):
        group = optimiser.param_groups[0]
        is_critic = group['params'][0] is not next(self.policy.model.parameters())
        if is_critic:
            return
        gradient = flat([p.grad for p in self.policy.model.parameters()], self.policy)
        settings = {key: group[key] for key in ('lr', 'betas', 'weight_decay')}
        weights = weights_of(self.policy)
        self.updates.append(Update(len(self.rows), weights, gradient, settings))

    def on_step(self, state, row):
        self.rows.append(row)
        self.rewards.append(state.rollouts.rewards.clone())
        self.after.append(weights_of(state.policy))


def run_loop(r, **batch):
    "Train by a recipe on the prepared batch, and return what was seen."
    watch = Watch(**batch)
    steps = 2 if has_memory(r) else 1
    hook = register_optimizer_step_pre_hook(watch.before_update)
    as_prepared = mock.patch.object(training_loop, 'check_drawn', lambda drawn, items, name: drawn)
    try:
        with as_prepared:
            train(
                first_policy().clone(),
                EASY,
                r.but(sampler=watch.sampler()),
                steps=steps,
                seed=SEED,
                callbacks=[watch],
            )
    finally:
        hook.remove()
    return watch


def loop(name, setting):
    "What the loop does in one of the `CASES`."
    return run_loop(recipe_of(name, setting), known=given_old(name, setting))


# -- the same, written again


def plain_forward(policy, rollouts):
    "Logits and last hidden states before each response token, row by row, from one forward."
    rows, starts = [], []
    for tokens, prompt in zip(rollouts.tokens, rollouts.prompt):
        asked = rollouts.prompt_ids[prompt][rollouts.prompt_mask[prompt]]
        rows.append(torch.cat([asked, tokens]))
        starts.append(len(asked) - 1)
    ids = pad_sequence(rows, batch_first=True)  # nobody sees what follows
    out = policy.model(input_ids=ids, output_hidden_states=True)
    width = rollouts.tokens.shape[1]
    parts = [slice(start, start + width) for start in starts]
    logits = [z[part] / rollouts.temperature for z, part in zip(out.logits, parts)]
    hidden = [h[part] for h, part in zip(out.hidden_states[-1], parts)]
    return logits, hidden


def placed(values, mask):
    "Values of the tokens of one row's mask at their places, 0 elsewhere."
    out = torch.zeros(len(mask), *values.shape[1:], dtype=values.dtype)
    return out.index_copy(0, mask.nonzero()[:, 0], values)


def plain_statistics(policy, rollouts, names):
    "Token statistics of each row by name; 'hidden' are the states themselves."
    logits, hidden = plain_forward(policy, rollouts)
    found = {name: [] for name in names}
    for z, h, tokens, mask in zip(logits, hidden, rollouts.tokens, rollouts.mask):
        for name in names:
            values = h[mask] if name == 'hidden' else STATISTICS[name](z[mask], tokens[mask])
            found[name].append(placed(values, mask))
    return {name: torch.stack(rows) for name, rows in found.items()}


def chosen(value, rows):
    "The rows of a tensor, a tuple or a dictionary of tensors; None stays None."
    if value is None:
        return None
    if isinstance(value, dict):
        return {k: chosen(v, rows) for k, v in value.items()}
    if isinstance(value, tuple):
        return tuple(value[i] for i in rows) if value else value
    return torch.stack([value[i] for i in rows])


OF_PROMPTS = ('prompt_ids', 'prompt_mask', 'items', 'temperature')


def rows_by_number(rollouts, rows):
    "Some rows of rollouts; prompts stay."
    names = [f.name for f in dataclasses.fields(rollouts) if f.name not in OF_PROMPTS]
    changes = {name: chosen(getattr(rollouts, name), rows) for name in names}
    return dataclasses.replace(rollouts, **changes)


def mini_batches(group, size, whole, seed):
    """Row numbers of each update.

    With `whole`, group comes behind group and none is cut. If there are several updates, groups
    come in an order of their own, decided by the seed.
    """
    rows = list(range(len(group)))
    if whole:
        rows.sort(key=lambda i: group.index(group[i]))
    parts = cut_rows(rows, group, size, whole)
    if len(parts) == 1:
        return parts
    rows.sort(key=lambda i: (int(fold(seed, group[i])), i))
    return cut_rows(rows, group, size, whole)


def cut_rows(rows, group, size, whole):
    "Parts of `size` rows; with `whole`, a cut moves on to the next border between groups."
    n = len(rows)
    parts, start = [], 0
    for planned in range(size, n, size):
        border = planned
        while whole and border < n and group[rows[border]] == group[rows[border - 1]]:
            border += 1
        if start < border < n:
            parts.append(rows[start:border])
            start = border
    return [*parts, rows[start:]]


def aggregated(loss, mask, mode='token-mean', length=None):
    "One number from the losses of tokens, by the name of the mode."
    width = loss.shape[1]
    rows = [[loss[i, t] for t in range(width) if mask[i, t]] for i in range(len(loss))]
    rows = [row for row in rows if row]
    if not rows:
        return 0 * loss.sum()
    sums = [sum(row) for row in rows]
    lengths = [len(row) for row in rows]
    if mode == 'token-mean':
        return sum(sums) / sum(lengths)
    if mode == 'seq-mean-token-sum':
        return sum(sums) / len(rows)
    if mode == 'seq-mean-token-mean':
        return sum(s / n for s, n in zip(sums, lengths)) / len(rows)
    assert mode == 'seq-mean-token-sum-norm', f"write the aggregation {mode} again here"
    return sum(sums) / len(rows) / (length or width)


def is_known(logp, mask):
    return not logp[mask].isnan().any()


def filled(known, present):
    "Numbers that are known, and the present ones where none is."
    rows, width = known.shape
    whole = [
        [known[i, t] if known[i, t] == known[i, t] else present[i, t] for t in range(width)]
        for i in range(rows)
    ]
    return torch.stack([torch.stack(row) for row in whole])


def room(r):
    "The longest response as a sampler is told it, if the recipe says one."
    return {} if r.max_new_tokens is None else dict(max_new_tokens=r.max_new_tokens)


class Assembly:
    "The steps of a run, one after the other, at the weights that the loop went through."

    def __init__(self, r):
        self.recipe = r
        self.policy = first_policy().clone()
        self.advantage = r.advantage.make()
        self.select = r.select.make()
        self.objective = r.objective.make()
        self.reference = r.reference.make()
        self.regularisers = [(bound, bound.make()) for bound in r.regularisers]
        self.needs = {name for bound in uses_of(r) for name in bound.info.needs}
        if any(name == 'logp_ref' or name.startswith('ref_') for name in self.needs):
            self.reference(self.policy)  # before training moves the weights

    def go_to(self, weights):
        "Take on other weights."
        with torch.no_grad():
            for p, w in zip(self.policy.model.parameters(), weights):
                p.copy_(w)

    def rewarded(self, rollouts):
        "Rollouts with a reward for each row; what cannot be scored is nan."
        items = [rollouts.items[int(p)] for p in rollouts.prompt]
        asked = [asked_of(item) for item in items]
        real = rollouts.seg >= 0
        ids = [row[kept].tolist() for row, kept in zip(rollouts.tokens, real)]
        columns = dict(item=items, completion_ids=ids)
        values = self.recipe.reward(asked, list(rollouts.texts), **columns)
        rewards = torch.tensor([torch.nan if v is None else v for v in values])
        return dataclasses.replace(rollouts, rewards=rewards)

    def greedy_rewards(self, rollouts):
        "For each row, what the greedy answer to its problem gets."
        answers = self.policy.sample(
            list(rollouts.items), 1, seed=0, temperature=0.0, **room(self.recipe)
        )
        values = self.rewarded(answers).rewards
        return torch.stack([values[int(p)] for p in rollouts.prompt])

    @torch.no_grad()
    def before(self, name, rollouts):
        "A signal of the policy before the update, or of its reference; None if it is neither."
        if name == 'greedy_rewards':
            return self.greedy_rewards(rollouts)
        if name in ('logp_old', 'logp_ref'):
            name = f"{name.removeprefix('logp_')}_logp"
        head, _, tail = name.partition('_')
        if head not in ('old', 'ref') or tail not in (*STATISTICS, 'hidden'):
            return None
        who = self.policy if head == 'old' else self.reference(self.policy)
        return plain_statistics(who, rollouts, [tail])[tail]

    def completed(self, rollouts, names):
        "Rollouts with those of the signals `names` that are computed before the update."
        wanted = set(names)
        if is_known(rollouts.logp_old, rollouts.mask):
            wanted.discard('logp_old')
        found = {name: self.before(name, rollouts) for name in wanted}
        found = {name: x for name, x in found.items() if x is not None}
        fields = {name: found.pop(name) for name in ('logp_old', 'logp_ref') if name in found}
        if 'logp_old' in fields:
            fields['logp_old'] = filled(rollouts.logp_old, fields['logp_old'])
        return dataclasses.replace(rollouts, signals={**rollouts.signals, **found}, **fields)

    def called(self, bound, made, *args, rows, **now):
        "A stage with the signals that it asks for."
        known = {**vars(rows), **rows.signals, 'lengths': (rows.seg >= 0).sum(1), **now}
        known.update(rollouts=rows, policy=self.policy, task=EASY)
        return made(*args, **{name: known[name] for name in bound.info.needs})

    def judged(self, rollouts):
        "Advantages and weights of all tokens, and the numbers of the rows that stay."
        r = self.recipe
        args = rollouts.rewards, rollouts.group
        adv = self.called(r.advantage, self.advantage, *args, rows=rollouts)
        if adv.dim() == 1:
            adv = torch.stack([adv] * rollouts.tokens.shape[1], 1)
        args = rollouts, adv
        weight, keep = self.called(r.select, self.select, *args, rows=rollouts, adv=adv)
        return adv, weight, [i for i in range(len(rollouts)) if keep[i]]

    def planned(self, rollouts, kept, number):
        "Row numbers of each update, in order, with the factor of its loss."
        r = self.recipe
        if not kept:
            return []
        size = min(r.minibatch or len(kept), len(kept))
        group = [int(rollouts.group[i]) for i in kept]
        seed = int(fold(SEED, number, 4))
        once = []
        for part in mini_batches(group, size, kept_whole(r), seed):
            once.append(([kept[j] for j in part], min(1, len(part) / size)))
        return once * r.epochs

    def loss_of(self, rows, adv, weight):
        "Loss of one update, all its rows at once."
        r = self.recipe
        live = [name for name in self.needs if name in STATISTICS]
        now = plain_statistics(self.policy, rows, {'logp', *live})
        logp = now['logp']
        old = filled(rows.logp_old, logp.detach())
        now.update(logp_old=old, adv=adv)
        args = logp, old, adv, rows.mask
        loss = self.called(r.objective, self.objective, *args, rows=rows, **now)
        loss = loss * weight * rows.loss_weight
        for bound, made in self.regularisers:
            loss = loss + self.called(bound, made, logp, rows.mask, rows=rows, **now)
        assert r.aggregate.name == 'aggregate', f"write {r.aggregate} again here"
        return aggregated(loss, rows.mask, **dict(r.aggregate.knobs))

    def step(self, rollouts, visited, number):
        "Loss and gradient of each update of a step; `visited`: the weights before each."
        rollouts = self.completed(self.rewarded(rollouts), self.needs)
        adv, weight, kept = self.judged(rollouts)
        plan = self.planned(rollouts, kept, number)
        if len(plan) > 1:
            rollouts = self.completed(rollouts, ['logp_old'])
        updates = []
        for (rows, share), weights in zip(plan, visited):
            self.go_to(weights)
            part = rows_by_number(rollouts, rows)
            loss = share * self.loss_of(part, chosen(adv, rows), chosen(weight, rows))
            updates.append(self.gradient_of(loss))
        selects = len(kept) < len(rollouts) or bool((weight[rollouts.mask] != 1).any())
        return SimpleNamespace(rollouts=rollouts, plan=plan, updates=updates, selects=selects)

    def gradient_of(self, loss):
        "A loss and its gradient as numbers."
        parameters = list(self.policy.model.parameters())
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        return SimpleNamespace(loss=float(loss.detach()), gradient=flat(gradients, self.policy))

    def remember(self, rollouts, number):
        "Tell the stages with memory that a step is over."
        optimiser = SimpleNamespace(state={})
        state = SimpleNamespace(
            policy=self.policy, rollouts=rollouts, step=number, optimiser=optimiser
        )
        parts = [self.advantage, self.select, self.objective]
        parts += [made for _, made in self.regularisers]
        for part in parts:
            if hasattr(part, 'update'):
                part.update(rollouts)
        if hasattr(self.reference, 'update'):
            self.reference.update(state)


def expected(r, watch):
    "What the assembly gives for each step of a run that was watched."
    assembly = Assembly(r)
    shake(assembly.policy)
    found = []
    for number, rollouts in enumerate(watch.given):
        visited = [u.weights for u in watch.updates if u.step == number]
        found.append(assembly.step(rollouts, visited, number))
        assembly.go_to(watch.after[number])
        assembly.remember(found[-1].rollouts, number)
    return found


@cache
def healthy(name, setting):
    "A run of the loop as it is, and what it should have been."
    watch = loop(name, setting)
    return watch, expected(recipe_of(name, setting), watch)


# -- the comparison

TOLERANCE = 2e-5
# Certainties differ by less than `eps`, a hundredth of a nat, which then divides their rounding.
ROUGHER = {'self_certainty': 2e-4}


def check_loss(row, updates):
    "The loss in a row of metrics is the mean over the step's updates."
    wanted = sum(u.loss for u in updates) / len(updates)
    close = abs(row['loss'] - wanted) <= TOLERANCE * max(1, abs(wanted))
    assert close, f"the loss is {row['loss']}, wanted {wanted}"


def check_asked(watch, r):
    "The sampler is asked for what the recipe says, and every step has a seed of its own."
    for asked in watch.asked:
        wanted = {name: getattr(r, name) for name in ('prompts', 'group', 'temperature')}
        wanted |= dict(seed=asked['seed'], **room(r))
        assert asked == wanted, f"the sampler was asked for {asked}"
    assert len({asked['seed'] for asked in watch.asked}) == len(watch.asked), "seeds repeat"


def check_gradient(taken, wanted, limit, scale, tolerance=TOLERANCE):
    "Gap between the gradient that an update took and the one it should have taken."
    norm = float(wanted.gradient.norm())
    clipped = wanted.gradient * min(1, limit / (norm + 1e-6))
    gap = float((taken.gradient - clipped).norm() / max(float(clipped.norm()), 1e-3 * scale))
    assert gap < tolerance, f"the gradient is {gap:.1e} off"
    return gap


def check_step(r, watch, number, step):
    "Gaps of the updates of one step."
    row = watch.rows[number]
    taken = [u for u in watch.updates if u.step == number]
    torch.testing.assert_close(watch.rewards[number], step.rollouts.rewards, equal_nan=True)
    assert len(taken) == len(step.plan) == row['updates'], f"{len(taken)} updates were made"
    if not taken:
        return []
    norms = [float(u.gradient.norm()) for u in step.updates]
    scale = min(max(norms), r.max_grad_norm)
    assert scale > 0, "nothing is learned here, which shows nothing"
    lr = pytest.approx(r.lr * min(1, (number + 1) / r.warmup))
    settings = dict(lr=lr, betas=r.betas, weight_decay=r.weight_decay)
    assert all(u.settings == settings for u in taken), f"the optimiser has {taken[0].settings}"
    pairs = zip(taken, step.updates)
    rough = ROUGHER.get(r.name, TOLERANCE)
    gaps = [check_gradient(*pair, r.max_grad_norm, scale, rough) for pair in pairs]
    check_loss(row, step.updates)
    norm = sum(norms) / len(norms)
    assert row['grad_norm'] == pytest.approx(norm, rel=rough, abs=rough * scale)
    return gaps


def compare(r, watch, steps):
    "Raises AssertionError where a run is not what is expected. Returns the gaps by step."
    check_asked(watch, r)
    assert len(watch.rows) == len(steps) == (2 if has_memory(r) else 1)
    if r.select.name != 'keep_all':
        assert steps[-1].selects, f"{r.select} selects everything, which shows nothing"
    return [check_step(r, watch, number, step) for number, step in enumerate(steps)]


RAN, CAUGHT = {}, {}  # the two tables


@pytest.fixture(scope='module', autouse=True)
def tables():
    "Print what ran, and what noticed which fault."
    yield
    for table in (RAN, CAUGHT):
        width = max((len(str(key)) for key in table), default=0)
        print('', *(f"{key:{width}}  {table[key]}" for key in table), sep='\n')


def summary(r, steps, gaps):
    "One line of the table of what ran."
    updates = ' + '.join(str(len(step.plan)) for step in steps)
    kept = len({row for rows, _ in steps[-1].plan for row in rows})
    whole = f", {kept_whole(r)} kept whole" if kept_whole(r) else ''
    worst = max(gap for step in gaps for gap in step)
    return f"{updates:>5} updates on {kept:>2} of {N} rows{whole}, gap {worst:.0e}"


@pytest.mark.takes_turns
@pytest.mark.parametrize('name, setting', CASES)
def test_gradients_are_those_of_the_plain_assembly(name, setting):
    r = recipe_of(name, setting)
    watch, steps = healthy(name, setting)
    gaps = compare(r, watch, steps)
    RAN[f"{name}, {setting}"] = summary(r, steps, gaps)


def test_no_recipe_is_left_out():
    for name in RECIPES:
        assert {(name, ONE), (name, SEVERAL)} <= set(CASES)
    given = {recipe(name).objective.name for name, setting in CASES if setting == KNOWN}
    assert given == {recipe(name).objective.name for name in RECIPES}
    assert set(GIVEN) <= set(RECIPES)
    assert set(LOUDER) <= {info.name for info in STAGES.values()}


# -- more promises


@pytest.mark.parametrize('numbers', [dict(minibatch=9), dict(micro=3)])
def test_groups_stay_whole(numbers):
    seen = []

    @stage('objective', needs=('group',), keep_whole='group')
    def witness(logp, logp_old, adv, mask, *, group):
        seen.extend(set(group.tolist()))
        return -(adv * logp).masked_fill(~mask, 0)

    r = recipe_of('grpo', ONE).but(objective=use('witness'), **numbers)
    run_loop(r)
    assert Counter(seen) == {row.group: 1 for row in ROWS}, "a group came in several parts"


def test_old_log_probabilities_are_known_where_they_carry_loss():
    r = recipe_of('grpo', KNOWN)
    watch = run_loop(r, known=given_old('grpo', KNOWN), outside=torch.nan)
    compare(r, watch, expected(r, watch))


@pytest.mark.parametrize('setting', (SOME, LATER))
@pytest.mark.parametrize('name', ('grpo', 'gspo', EVERY_SIGNAL))
def test_the_cut_into_micro_batches_does_not_show(name, setting):
    "Neither in a gradient nor in a metric, where old log-probabilities are known for some tokens."
    r = recipe_of(name, setting)
    whole, *cut = [run_loop(r.but(micro=micro), known=some_tokens()) for micro in (None, 1, 3, 8)]
    assert whole.rows[0]['kl'] > 0, "nothing is known here, which shows nothing"
    for watch in cut:
        for one, other in zip(watch.updates, whole.updates, strict=True):
            gap = (one.gradient - other.gradient).norm() / other.gradient.norm()
            assert gap < TOLERANCE, f"the gradient is {gap:.1e} off"
        for row, wanted in zip(watch.rows, whole.rows, strict=True):
            measured = {key: x for key, x in wanted.items() if not key.startswith('seconds')}
            assert {key: row[key] for key in measured} == pytest.approx(
                measured, rel=1e-4, abs=1e-6
            )


def test_the_recipe_of_every_signal_asks_for_every_signal():
    assert {*NOW, 'logp_ref'} == set(known_signals())


def test_the_curriculum_is_told_how_each_problem_went():
    told = []

    class listener:
        def __init__(self, task):
            self.task = task

        def sample(self, n, *, seed):
            return self.task.sample(n, seed=seed)

        def update(self, stats):
            told.append(stats)

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    run_loop(recipe_of('grpo', ONE).but(curriculum=use(listener)))
    worth = {'right': 1.0, 'wrong': 0.0}
    wanted = []
    for p in range(len(problems())):
        scored = [worth[row.verdict] for row in ROWS if row.prompt == p and row.verdict in worth]
        wanted.append(sum(scored) / len(scored) if scored else torch.nan)
    assert told[0]['items'] == problems() and told[0]['step'] == 0
    assert told[0]['rewards'] == pytest.approx(wanted, nan_ok=True)
    assert told[0]['scored'] == [
        sum(row.prompt == p and row.verdict in worth for row in ROWS)
        for p in range(len(problems()))
    ]


# -- faults: changes of the syntax tree of the functions that assemble the loss
#
# A change is a function of a node of the tree: another node in its place, or None.


def words(node):
    "Names, attributes, keywords and texts in a piece of code."
    found = set()
    for part in ast.walk(node):
        for key in ('id', 'attr', 'arg', 'value'):
            word = getattr(part, key, None)
            if isinstance(word, str):
                found.add(word)
    return found


def expression(text, **parts):
    "The code of an expression in which some names stand for given nodes."

    class Fill(ast.NodeTransformer):
        def visit_Name(self, node):
            return parts.get(node.id, node)

    return Fill().visit(ast.parse(text, mode='eval').body)


def calls(node, name):
    "Whether a node is a call of something of that name."
    if not isinstance(node, ast.Call):
        return False
    return name in (getattr(node.func, 'id', None), getattr(node.func, 'attr', None))


def without(name, operator=ast.Mult):
    "Leave out the factor (or term) that mentions `name`."

    def change(node):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, operator):
            return None
        left, right = (name in words(side) for side in (node.left, node.right))
        if left == right:
            return None
        return node.right if left else node.left

    return change


def call_becomes(call, text, mentions=None):
    "Put an expression for a call: `x` is the call itself, `first` its first argument."

    def change(node):
        if not calls(node, call):
            return None
        if mentions and mentions not in words(node):
            return None
        return expression(text, x=node, first=node.args[0] if node.args else node)

    return change


def argument(call, place, text=None):
    "Put an expression for an argument `x` (number or keyword) of a call; None: leave it out."

    def change(node):
        if not calls(node, call):
            return None
        if isinstance(place, int):
            old = node.args[place : place + 1]
            node.args[place : place + 1] = [expression(text, x=x) for x in old if text]
        else:
            old = [k for k in node.keywords if k.arg == place]
            new = [ast.keyword(place, expression(text, x=k.value)) for k in old if text]
            node.keywords = [k for k in node.keywords if k not in old] + new
        return node if old else None

    return change


def entry(name, index, text):
    "Put an expression for `name[index]`: `x` is what is indexed, `i` the index."

    def change(node):
        if not isinstance(node, ast.Subscript):
            return None
        if name not in words(node.value) or index not in words(node.slice):
            return None
        return expression(text, x=node.value, i=node.slice)

    return change


def name_becomes(name, text):
    "Put an expression for a name where it is read."

    def change(node):
        is_read = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        return expression(text) if is_read and node.id == name else None

    return change


def branch(side, mentions):
    "Take one side ('body' or 'orelse') of an `if` in a line whose other side has `mentions`."

    def change(node):
        if not isinstance(node, ast.IfExp):
            return None
        other = node.orelse if side == 'body' else node.body
        return getattr(node, side) if mentions in words(other) else None

    return change


def always(side):
    "Take one side ('body' or 'orelse') of every `if` in a line."

    def change(node):
        return getattr(node, side) if isinstance(node, ast.IfExp) else None

    return change


def comparison(name, operator):
    "Put another operator in a comparison of `name`."

    def change(node):
        if not isinstance(node, ast.Compare) or name not in words(node.left):
            return None
        return ast.Compare(node.left, [operator()], node.comparators)

    return change


def no_statement(call):
    "Leave out a statement that is just a call."

    def change(node):
        is_it = isinstance(node, ast.Expr) and calls(node.value, call)
        return ast.Pass() if is_it else None

    return change


def several(*changes):
    "Several changes in one function."

    def change(node):
        found = (one(node) for one in changes)
        return next((new for new in found if new is not None), None)

    return change


# The only place that knows where the package assembles its loss: module, function, change.
SELECT = 'core.pipeline', 'select_rows'
TAKE = 'core.pipeline', 'Batch.take'
TOKENS = 'core.pipeline', 'token_loss'
OLD = 'core.signals', 'logp_old_of'
UPDATE = 'training.loop', 'update'
STEP = 'training.loop', 'optimizer_step'
FAULTS = {
    'selection weights and loss weights': (*TOKENS, without('weight')),
    'selection weights': (*SELECT, without('weight')),
    'loss weights': (*SELECT, without('loss_weight')),
    'weights of the rows that stay': (*SELECT, entry('weight', 'keep', 'x[:int(i.sum())]')),
    'advantages of the rows that stay': (*SELECT, entry('adv', 'keep', 'x[:int(i.sum())]')),
    'dropped rows stay out': (
        *SELECT,
        several(
            call_becomes('rows_of', 'first', 'keep'),
            entry('adv', 'keep', 'x'),
            entry('weight', 'keep', 'x'),
        ),
    ),
    'weights of a part of the batch': (*TAKE, entry('weight', 'index', 'x[:len(i)]')),
    'advantages of a part of the batch': (*TAKE, entry('adv', 'index', 'x[:len(i)]')),
    'share of a partial mini-batch': (*UPDATE, argument('optimizer_step', 'share', '1.0')),
    'epochs': (*UPDATE, without('epochs')),
    'whole groups in a mini-batch': (*UPDATE, argument('mini_batches', 2)),
    'groups are shuffled': (
        'core.pipeline',
        'mini_batches',
        entry('order', 'part', 'x.sort().values[i]'),
    ),
    'every step shuffles anew': (*UPDATE, argument('mini_batches', 'seed', '0')),
    'a mini-batch above the batch': (*UPDATE, call_becomes('min', 'first', 'minibatch')),
    'whole groups in a micro-batch': (*STEP, argument('row_parts', 2)),
    'groups that are brought together': (
        'core.pipeline',
        'shuffled_groups',
        call_becomes('argsort', 'torch.arange(len(index))', 'index'),
    ),
    'each gradient starts from 0': (*STEP, no_statement('zero_grad')),
    'clipping': (*STEP, argument('clip_grad_norm_', 1, '1e9')),
    'warm-up': ('training.loop', 'set_learning_rate', call_becomes('min', '1.0')),
    'rows left out have no advantage': ('core.pipeline', 'active_rows', comparison('adv', ast.Gt)),
    'rows left out count in denominators': (*STEP, argument('microbatch_loss', 2, 'x[computed]')),
    'denominators of the whole batch': (
        'core.pipeline',
        'aggregate_loss',
        argument('aggregate', 'whole'),
    ),
    'rows without a token do not count': (
        'objectives.aggregation',
        'row_divisors',
        call_becomes('sum', 'torch.tensor(len(whole))', 'any'),
    ),
    'regularisers': (*TOKENS, without('extra', ast.Add)),
    'regularisers have no weight': (
        *TOKENS,
        call_becomes('check_shape', 'x * batch.weight', 'extra'),
    ),
    'gradient through an entropy': (
        *TOKENS,
        call_becomes('signals_for', '{k: v.detach() for k, v in x.items()}'),
    ),
    'old log-probabilities that are given': (*OLD, call_becomes('where', 'logp.detach()')),
    'old log-probabilities of single tokens': (
        *OLD,
        call_becomes('isnan', 'x & x[rollouts.mask].all()'),
    ),
    'old log-probabilities that are known stay': (
        'core.signals',
        'add_signals',
        call_becomes('logp_old_of', "found['logp_old']"),
    ),
    'old log-probabilities are constants': (*OLD, call_becomes('detach', 'logp')),
    'old log-probabilities before the update': (
        'training.loop',
        'needed_by_updates',
        name_becomes('several', 'False'),
    ),
    'old log-probabilities as a signal': (*TOKENS, argument('dict', 'logp_old')),
    'advantages as a signal': (*TOKENS, argument('dict', 'adv', '0 * x')),
    'reference log-probabilities': (
        'core.signals',
        'add_signals',
        name_becomes('reference', 'lambda policy: policy'),
    ),
    'reference from before training': ('training.loop', 'start', no_statement('reference')),
    'greedy reward of the same problem': (
        'core.signals',
        'greedy_rewards',
        entry('rewards', 'prompt', 'x[0 * i]'),
    ),
    'reward for the right problem': ('core.signals', 'score_rollouts', entry('items', 'i', 'x[0]')),
    'reward for the right prompt': (
        'core.signals',
        'score_rollouts',
        entry('prompts', 'i', 'x[i - 1]'),
    ),
    'order of the prompts': ('core.signals', 'scored', call_becomes('prompts', 'x[::-1]')),
    'text of the prompts': (
        'core.signals',
        'scored',
        call_becomes('prompts', "[text + ' ' for text in x]"),
    ),
    'length of a response': ('training.loop', 'draw_rollouts', argument('sampler', None)),
    'length of a greedy answer': ('training.loop', 'add_step_signals', argument('partial', None)),
    'length that the recipe says': (
        'core.ready_stages',
        'length_limit',
        argument('dict', 'max_new_tokens', 'x + 1'),
    ),
    'length that is left open': ('core.ready_stages', 'length_limit', always('body')),
    'temperature of sampling': (
        'training.loop',
        'draw_rollouts',
        argument('sampler', 'temperature'),
    ),
    'temperature of log-probabilities': (
        'core.policy',
        'statistics',
        argument('dict', 'temperature', '1.0'),
    ),
    'stages with memory learn': ('training.loop', 'update_memory', no_statement('update')),
}


class Planting(ast.NodeTransformer):
    "Applies a change wherever it fits, and counts."

    def __init__(self, change):
        self.change = change
        self.count = 0

    def generic_visit(self, node):
        node = super().generic_visit(node)
        new = self.change(node)
        if new is None:
            return node
        self.count += 1
        return new


def found_function(module, name):
    "The function or method of a module, without its decorators."
    try:
        return inspect.unwrap(attrgetter(name)(module))
    except AttributeError:
        raise LookupError(f"{module.__name__} has no {name}: the fault needs a new place") from None


@contextmanager
def planted(module, name, change):
    """Run with a changed function, wherever it has been imported to; it is put back.

    Raises LookupError if there is no such function, or nothing in it that the change fits.
    """
    module = import_module(f"rl4llm.{module}")
    function = found_function(module, name)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    planting = Planting(change)
    planting.visit(tree)
    if not planting.count:
        raise LookupError(f"{name} has nothing to change: the fault is old")
    tree.body[0].decorator_list = []
    names = dict(vars(module))
    exec(compile(ast.fix_missing_locations(tree), f"<planted in {name}>", 'exec'), names)
    kept = function.__code__
    function.__code__ = names[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = kept


WATCHERS = (  # tried first: between them they notice every fault
    ('grpo_entropy', SEVERAL),
    ('negative', SEVERAL),
    ('a_lol', SEVERAL),
    ('pacs', SEVERAL),
    ('remax', SEVERAL),
    (EVERY_SIGNAL, SEVERAL),
    (EVERY_SIGNAL, ONE),
    ('ppo', ONE),
    ('grpo', KNOWN),
    ('grpo', SOME),
    ('grpo', LATER),
    ('remax', OPEN),
    *(('grpo', setting) for setting in SINGLE),
)


def first_to_notice(fault):
    "The first case whose comparison fails with the fault planted; None if all pass."
    for case in dict.fromkeys(WATCHERS + CASES):
        _, steps = healthy(*case)
        with planted(*fault):
            try:
                compare(recipe_of(*case), loop(*case), steps)
            except (AssertionError, ValueError):
                return ', '.join(case)
    return None


@pytest.mark.parametrize('factor', FAULTS)
def test_every_factor_matters(factor):
    CAUGHT[factor] = first_to_notice(FAULTS[factor])
    assert CAUGHT[factor], f"nothing notices a fault in: {factor}"


def test_faults_that_do_not_fit_are_reported():
    with pytest.raises(LookupError, match='needs a new place'):
        with planted('training.loop', 'no_such_function', without('weight')):
            pass
    with pytest.raises(LookupError, match='nothing to change'):
        with planted(*UPDATE, without('no_such_name')):
            pass


def test_faults_are_taken_out_again():
    function = found_function(import_module('rl4llm.core.pipeline'), 'token_loss')
    before = function.__code__
    with planted(*FAULTS['regularisers']):
        assert function.__code__ is not before
    assert function.__code__ is before
