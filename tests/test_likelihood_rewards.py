"""Rewards by likelihood: scores by hand, what a reader is shown, and what is read of a copy."""

import math
import pytest, torch
from conftest import weights
from rl4llm.advantages.group_relative import dr_grpo, grpo
from rl4llm.advantages.likelihood_rewards import (
    BLAME,
    PRAISE,
    asked_ids,
    continuation_logp,
    cut_copies,
    echo_scores,
    follow_up_likelihood,
    follow_up_scores,
    pairwise_agreement,
    prompt_echo,
    reply_turn,
    shown_texts,
)
from rl4llm.advantages.next_segment import mark_ids
from rl4llm.core.policy import Policy
from rl4llm.core.registry import recipe, use
from rl4llm.core.rollouts import rows_of
from rl4llm.core.signals import scored
from rl4llm.tasks import task
from rl4llm.training.callbacks import Checkpoint
from rl4llm.training.loop import train

EASY = task('countdown', level='easy')
CHECKED = dict(
    praise=('<verify> right </verify>',),
    blame=('<verify> wrong </verify>',),
    shown='<think> {answer} ',
)
BEHIND = dict(shown='{text} <eos>')
SCORES = {'flr': (follow_up_scores, CHECKED), 'prompt_echo': (echo_scores, BEHIND)}


@pytest.fixture(scope='module')
def policy():
    return Policy.load('tiny', fast=True, bf16=False, graphs=False)


@pytest.fixture(scope='module')
def rows(policy):
    return scored(policy, policy.sample(EASY.sample(4, seed=2), 6, seed=3), use('correct'))


def other_policy(policy):
    "A policy whose weights are elsewhere."
    other = policy.clone()
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in other.model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=noise))
    return other


def asked(rows, policy, reader=None):
    return dict(rollouts=rows, policy=policy, reader=reader or policy)


def test_mean_of_a_tail_by_hand(policy):
    flat = policy.clone()
    with torch.no_grad():
        flat.model.get_output_embeddings().weight.zero_()  # every token is as probable as any other
    size = flat.model.config.vocab_size
    found = continuation_logp(flat, [[1], [1, 5, 6]], [[7], [8, 9, 9]])
    assert found.tolist() == pytest.approx([-math.log(size)] * 2, abs=1e-4)
    heads, tails = [[1, 9, 20, 30], [1, 9], [0, 9]], [[40, 41], [42], [42]]  # 0 is a token, too
    found = continuation_logp(policy, heads, tails)
    for head, tail, mean in zip(heads, tails, found.tolist()):
        with torch.no_grad():
            logp = policy.model(torch.tensor([head + tail])).logits[0].log_softmax(-1)
        each = [logp[len(head) - 1 + k, token].item() for k, token in enumerate(tail)]
        assert mean == pytest.approx(sum(each) / len(each), abs=2e-4)


def test_a_tail_does_not_depend_on_its_neighbours(policy):
    heads, tails = [[1, 5], [1, 6, 7, 8, 9, 10], [1, 5]], [[20], [21, 22], [20]]
    together = continuation_logp(policy, heads, tails)
    alone = torch.cat([continuation_logp(policy, [h], [t]) for h, t in zip(heads, tails)])
    assert torch.allclose(together, alone, atol=2e-4) and together[0] == together[2]
    assert continuation_logp(policy, [[1]], [[]]).isnan().all()


def test_a_head_too_long_loses_its_beginning(policy):
    tail = [20, 21]
    head = [1] + [5, 6, 7] * policy.context
    kept = head[-(policy.context - len(tail)) :]
    found = continuation_logp(policy, [head, kept], [tail, tail])
    assert found[0] == found[1] and found.isfinite().all()


def test_praise_over_blame_by_hand(policy, rows):
    found = follow_up_scores(rows.rewards, rows.group, **asked(rows, policy), **CHECKED)
    text = shown_texts(policy, rows, CHECKED['shown'])[5]
    head = asked_ids(policy, rows.items[0]) + mark_ids(policy, text)
    with torch.no_grad():
        means = []
        for reply in ('<verify> right </verify>', '<verify> wrong </verify>'):
            ids = mark_ids(policy, reply)
            logits = policy.model(torch.tensor([head + ids])).logits[0, len(head) - 1 : -1]
            logp = logits.log_softmax(-1)
            means.append(logp.gather(1, torch.tensor(ids)[:, None]).mean().item())
    assert found[5].item() == pytest.approx(means[0] - means[1], abs=3e-4)
    two = dict(CHECKED, praise=CHECKED['praise'] * 2)
    twice = follow_up_scores(rows.rewards, rows.group, **asked(rows, policy), **two)
    assert torch.equal(twice, found)
    assert len(PRAISE) == len(BLAME) == 6


def test_echo_by_hand(policy, rows):
    found = echo_scores(rows.rewards, rows.group, **asked(rows, policy), **BEHIND)
    request = mark_ids(policy, rows.items[1].prompt())
    head = [policy.tokenizer.bos_token_id] + mark_ids(policy, rows.texts[7]) + [policy.eos]
    with torch.no_grad():
        logits = policy.model(torch.tensor([head + request])).logits[0, len(head) - 1 : -1]
    mean = logits.log_softmax(-1).gather(1, torch.tensor(request)[:, None]).mean().item()
    assert found[7].item() == pytest.approx(mean, abs=2e-4)


def test_runs_that_repeat_are_cut():
    assert cut_copies([1, 2, 3], [1, 2, 3], 1) == []
    assert cut_copies([9, 1, 2, 9, 2, 3], [1, 2, 3], 2) == [9, 9]
    assert cut_copies([1, 2, 3, 4], [1, 2, 9, 3, 4], 3) == [1, 2, 3, 4]
    assert cut_copies([], [1], 1) == [] and cut_copies([1], [], 1) == [1]


def test_a_cut_copy_is_read_as_if_it_were_not_there(policy, rows):
    plain = echo_scores(rows.rewards, rows.group, **asked(rows, policy), **BEHIND)
    uncut = echo_scores(rows.rewards, rows.group, **asked(rows, policy), run=99, **BEHIND)
    assert torch.equal(plain, uncut)
    request = mark_ids(policy, rows.items[0].prompt())
    told = dict(shown=rows.items[0].prompt() + ' {text} <eos>')
    first = rows.group == 0
    read = echo_scores(rows.rewards, rows.group, **asked(rows, policy), **told)
    cut = echo_scores(rows.rewards, rows.group, **asked(rows, policy), run=len(request), **told)
    assert torch.equal(cut[first], plain[first]) and not torch.equal(read[first], plain[first])


def test_pairs_by_hand():
    group = torch.tensor([0, 0, 1, 1, 1])
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, math.nan])
    assert pairwise_agreement(torch.tensor([2.0, 1.0, 3.0, 0.0, 9.0]), rewards, group) == dict(
        pairs=2, agree=0.5
    )
    none = pairwise_agreement(rewards, torch.ones(5), group)
    assert none['pairs'] == 0 and math.isnan(none['agree'])


def test_a_template_says_what_stands_before_a_reply():
    class Chat:
        chat_template = 'x'

        def apply_chat_template(self, chat, tokenize):
            assert not tokenize
            return ''.join(f"[{m['role']}]{m['content']}[/]" for m in chat)

    assert reply_turn(Chat()) == '[/][user]'


@pytest.mark.parametrize('name', SCORES)
def test_rows_in_another_order_have_the_same_score(policy, rows, name):
    scores, how = SCORES[name]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))
    turned = rows_of(rows, order)
    straight = scores(rows.rewards, rows.group, **asked(rows, policy), **how)
    found = scores(turned.rewards, turned.group, **asked(turned, policy), **how)
    assert torch.allclose(found, straight[order], atol=2e-4)


def test_advantages_are_those_of_the_parent_on_the_scores(policy, rows):
    given = dict(rollouts=rows, policy=policy)
    flr, echo = follow_up_likelihood(**CHECKED), prompt_echo(**BEHIND)
    of_flr, of_echo = (stage(rows.rewards, rows.group, **given) for stage in (flr, echo))
    assert torch.equal(of_flr, grpo(flr.scores, rows.group))
    assert torch.equal(of_echo, dr_grpo(echo.scores, rows.group))
    rewards = rows.rewards.clone()
    rewards[3] = math.nan
    kept_out = flr(rewards, rows.group, **given)
    assert kept_out[3] == 0 and not torch.equal(kept_out[:3], of_flr[:3])
    # paid by the verdict itself, each is its parent
    verdict = dict(signal=lambda rewards, group, **how: rewards)
    for stage, parent in ((follow_up_likelihood, grpo), (prompt_echo, dr_grpo)):
        same = stage(**verdict)(rows.rewards, rows.group, **given)
        assert torch.equal(same, parent(rows.rewards, rows.group))


@pytest.mark.parametrize('name', ['flr', 'prompt_echo'])
def test_placebo_deals_within_groups(policy, rows, name):
    scores, how = SCORES[name]
    plain = scores(rows.rewards, rows.group, **asked(rows, policy), **how)
    dealt = dict(recipe(f'{name}_dealt').advantage.knobs)['signal']
    found = dealt(rows.rewards, rows.group, **asked(rows, policy), **how)
    assert not torch.equal(found, plain)
    for g in rows.group.unique():
        own = rows.group == g
        assert torch.equal(found[own].sort().values, plain[own].sort().values)


def test_who_the_reader_is(policy, rows, tmp_path):
    moved = other_policy(policy)
    frozen = follow_up_likelihood(**CHECKED)
    present = follow_up_likelihood(reader='policy', **CHECKED)
    for stage in (frozen, present):
        stage(rows.rewards, rows.group, rollouts=rows, policy=policy)
    first = frozen.scores
    assert torch.equal(first, present.scores)
    frozen(rows.rewards, rows.group, rollouts=rows, policy=moved)
    present(rows.rewards, rows.group, rollouts=rows, policy=moved)
    assert torch.equal(frozen.scores, first) and not torch.equal(present.scores, first)
    assert present.state_dict() == {}
    moved.save(tmp_path / 'reader')
    named = follow_up_likelihood(reader=str(tmp_path / 'reader'), **CHECKED)
    named(rows.rewards, rows.group, rollouts=rows, policy=policy)
    assert torch.allclose(named.scores, present.scores, atol=2e-4) and named.state_dict() == {}


class ReaderSeen:
    "Keeps the weights of the reader after the last step."

    def on_step(self, state, row):
        kept = state.stages.advantage.call.state_dict()
        named = [name for name, _ in state.policy.model.named_parameters()]
        self.weights = torch.cat([kept[name].flatten() for name in named])


def end_of(policy, name, *parts, path=None, watched=()):
    "The weights after runs of so many steps in one folder, one after the other."
    made = recipe(name, prompts=2, group=4, lr=1e-3)
    saved = [] if path is None else [Checkpoint(every=1)]
    for steps in parts:
        learner = policy.clone()
        calls = [*saved, *watched]
        train(learner, EASY, made, steps=steps, seed=1, path=path, callbacks=calls)
    return weights(learner)


@pytest.fixture(scope='module')
def end_of_grpo(policy):
    return end_of(policy, 'grpo', 2)


@pytest.mark.parametrize('name', SCORES)
def test_the_idea_acts_and_goes_on_bit_for_bit(policy, tmp_path, name, end_of_grpo):
    reader, again = ReaderSeen(), ReaderSeen()
    straight = end_of(policy, name, 2, watched=[reader])
    gone_on = end_of(policy, name, 1, 2, path=tmp_path / 'run', watched=[again])
    assert torch.equal(straight, gone_on)
    first = weights(policy)
    assert torch.equal(reader.weights, first) and torch.equal(again.weights, first)
    come = (straight - first).norm()
    for other in (end_of_grpo, end_of(policy, f'{name}_dealt', 2)):
        assert (other - straight).norm() > 1e-3 * come


def test_bad_input_is_answered_in_one_sentence(policy, rows):
    with pytest.raises(ValueError, match='2 heads and 1 tails'):
        continuation_logp(policy, [[1], [1]], [[2]])
    with pytest.raises(ValueError, match='a head of at least one token'):
        continuation_logp(policy, [[]], [[2]])
    with pytest.raises(ValueError, match='wanted at least one of each'):
        follow_up_likelihood(praise=())
    assert prompt_echo(run=1).how['run'] == 1
    with pytest.raises(ValueError, match='run is 0'):
        prompt_echo(run=0)
    with pytest.raises(ValueError, match='cut_copies'):
        cut_copies([1], [1], 0)
    with pytest.raises(ValueError, match='the scores'):
        pairwise_agreement(torch.zeros(2), torch.zeros(3), torch.zeros(3).long())
    with pytest.raises(ValueError, match='rewards have shape'):
        prompt_echo(**BEHIND)(rows.rewards[:, None], rows.group, rollouts=rows, policy=policy)


@pytest.mark.parametrize(
    'make, said',
    [
        (lambda: follow_up_likelihood(praise='yes'), "praise is 'yes'"),
        (lambda: follow_up_likelihood(blame=('no', ' ')), 'none of them empty'),
        (lambda: follow_up_likelihood(praise=(3,)), 'wanted a list of texts'),
        (lambda: follow_up_likelihood(shown='hello'), 'names nothing'),
        (lambda: prompt_echo(shown='{foo} {text}'), r'names \{foo\}, \{text\}'),
        (lambda: prompt_echo(shown='{text'), 'cannot be filled in'),
    ],
)
def test_a_stage_refuses_replies_and_frames_that_are_none(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_the_functions_refuse_them_too(policy, rows):
    given = asked(rows, policy)
    with pytest.raises(ValueError, match='follow_up_scores: blame is'):
        follow_up_scores(rows.rewards, rows.group, **given, praise=('yes',), blame='no')
    with pytest.raises(ValueError, match='follow_up_scores has 0 texts'):
        follow_up_scores(rows.rewards, rows.group, **given, praise=())
    for shown in ('hello', '{0}', '{text.upper}'):
        with pytest.raises(ValueError, match='nothing else'):
            shown_texts(policy, rows, shown)
    both = shown_texts(policy, rows, '{text}|{answer}')
    assert both[0].startswith(rows.texts[0] + '|')


def test_a_tail_has_to_fit_behind_a_token(policy):
    tail = [5] * (policy.context - 1)
    assert continuation_logp(policy, [[1, 7]], [tail]).isfinite().all()
    with pytest.raises(ValueError, match=f'a tail has {policy.context} tokens'):
        continuation_logp(policy, [[1]], [tail + [5]])


def test_all_of_many_pairs_are_scored(policy):
    "More than fit into one forward: each is what it is alone."
    heads = [[1 + k // 20, 1 + k % 20] for k in range(300)]
    found = continuation_logp(policy, heads, [[5]] * 300)
    assert found.isfinite().all()
    few = [0, 255, 256, 299]
    alone = continuation_logp(policy, [heads[k] for k in few], [[5]] * 4)
    assert torch.allclose(found[few], alone, atol=2e-4)


def test_the_longest_of_the_tails_has_to_fit(policy):
    with pytest.raises(ValueError, match=f'a tail has {policy.context} tokens'):
        continuation_logp(policy, [[1], [1]], [[5], [5] * policy.context])
    assert continuation_logp(policy, [], []).tolist() == []
