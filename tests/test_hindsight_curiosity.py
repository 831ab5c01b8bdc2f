"""Curiosity in Hindsight: what surprises, what is given away, what was heard, going on."""

import dataclasses, math
import pytest, torch
from conftest import weights
from rl4llm.advantages.group_relative import grpo
from rl4llm.advantages.hindsight_curiosity import (
    Hindsight,
    Replies,
    ReplyNetworks,
    curiosity,
    given_away,
    heard_words,
    hindsight_error,
    words_before,
)
from rl4llm.core.policy import Policy
from rl4llm.core.registry import recipe, use
from rl4llm.core.rollouts import rows_of
from rl4llm.core.signals import scored
from rl4llm.tasks import task
from rl4llm.training.callbacks import Checkpoint
from rl4llm.training.loop import train

MACHINES = task('bandit', arms=2, pulls=3)
WORDS = 8


@pytest.fixture(scope='module')
def agent():
    return Policy.load('tiny-agent-v1', fast=True, bf16=False, graphs=False)


@pytest.fixture(scope='module')
def rows(agent):
    drawn = agent.sample(MACHINES.sample(3, seed=2), 6, seed=3)
    return scored(agent, drawn, use('correct'))


def test_error_by_hand():
    said = torch.tensor([[0.5, 0.25], [1.0, 0.0], [0.5, 0.125]]).log()
    q = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])
    wanted = torch.tensor([1.5, 0.0, 3.0]) * math.log(2)
    assert hindsight_error(said, q).allclose(wanted)
    assert hindsight_error(said[:, :1], torch.ones(3, 1)).allclose(-said[:, 0])  # one code: plain


def test_given_away_is_mutual_information_at_the_best_guess_and_less_at_others():
    g = torch.Generator().manual_seed(0)
    by_context = torch.rand(4, 3, generator=g).double()
    by_context = by_context / by_context.sum(1, keepdim=True)
    weight = torch.tensor([0.1, 0.2, 0.3, 0.4]).double()
    joint = weight[:, None] * by_context
    independent = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
    wanted = (joint * (joint / independent).log()).sum()
    best = given_away(by_context, by_context.log(), weight=weight)
    torch.testing.assert_close(best, wanted)
    for _ in range(20):
        guess = torch.randn(4, 3, generator=g).double().log_softmax(-1)
        assert 0 <= given_away(by_context, guess, weight=weight) < best
    # rows of one context differ: the information is about the context, not about the row
    two = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert given_away(two, torch.full((2, 2), 0.5).log()) == 0
    assert float(given_away(two, two.log())) == pytest.approx(math.log(2))


def test_guess_never_pays_hindsight_for_less_than_nothing():
    q = torch.tensor([[0.6, 0.4], [0.5, 0.5]], requires_grad=True)
    told = given_away(q, torch.tensor([[0.01, 0.99], [0.99, 0.01]]).log())
    told.backward()
    assert told == 0 and not q.grad.any()


def test_first_words_are_equally_likely_and_codes_are_distributions():
    torch.manual_seed(1)
    nets = ReplyNetworks(5, codes=6, words=9, width=7)
    x, word = torch.randn(4, 5), torch.tensor([0, 3, 8, 3])
    said, q, guess = nets(x, word)
    assert said.allclose(torch.full((4, 6), 1 / 9).log(), atol=1e-6)
    assert q.sum(1).allclose(torch.ones(4)) and guess.exp().sum(1).allclose(torch.ones(4))
    # what is said of a word is a distribution over words, under each code
    torch.nn.init.normal_(nets.reply.weight)
    every = nets(x[:1].expand(9, 5), torch.arange(9))[0].exp()
    assert every.sum(0).allclose(torch.ones(6), atol=1e-5)
    # who guesses sees the context alone, and so does the model
    assert torch.equal(nets(x, word)[2], nets(x, word.flip(0))[2])
    assert not torch.equal(nets(x, word)[1], nets(x, word.flip(0))[1])


def test_networks_begin_without_a_view_of_the_context():
    "Words look up 5 of 10 times their row of the table; the sharpest context, 10 times."
    nets = ReplyNetworks(3, codes=2, words=4, width=5)
    torch.nn.init.zeros_(nets.table.weight)
    with torch.no_grad():
        nets.table.weight[:, 0] = math.log(2) / 5
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    word = torch.tensor([0, 1, 2, 3, 0, 1])
    _, q, guess = nets(x, word)
    assert q.allclose(torch.tensor([2 / 3, 1 / 3]).expand(6, 2))
    assert guess.allclose(torch.full((6, 2), 0.5).log())
    torch.nn.init.constant_(nets.sharpness[-1].bias, 99.0)
    assert nets(x, word)[1].allclose(torch.tensor([0.8, 0.2]).expand(6, 2))


def two_tools(count, seed):
    "A sure tool, whose reply is 3, and one with eight."
    g = torch.Generator().manual_seed(seed)
    noisy = torch.rand(count, generator=g) < 0.5
    shown = torch.randint(WORDS, (count,), generator=g)
    before = torch.stack([noisy, ~noisy], 1).float()
    return Replies(before, torch.where(noisy, shown, 3)), noisy


def learnt(batches=12, **how):
    "Surprise at the sure and the noisy tool, after some batches of others."
    known = Hindsight(words=WORDS, width=16, **how)
    for k in range(batches):
        known.bonus(two_tools(64, k)[0])
        known.visit(two_tools(64, k)[0])
    replies, noisy = two_tools(256, 99)
    b = known.bonus(replies)
    return float(b[~noisy].mean()), float(b[noisy].mean())


def test_plain_error_stays_on_noise_and_hindsight_takes_it_out():
    sure, noisy = learnt(codes=1)
    assert sure < 0.2 and noisy == pytest.approx(math.log(WORDS), rel=0.08)
    corrected_sure, corrected = learnt()
    assert corrected_sure < 0.2 and corrected < 0.4 * noisy


def told_at_last(weight):
    "What z gives away of two tools without a reply in common, after some batches."
    known = Hindsight(words=8, width=16, weight=weight)

    def halves(count, seed):
        g = torch.Generator().manual_seed(seed)
        second = torch.rand(count, generator=g) < 0.5
        shown = torch.randint(4, (count,), generator=g)
        return Replies(torch.stack([second, ~second], 1).float(), shown + 4 * second)

    for k in range(12):
        known.visit(halves(64, k))
    new = halves(256, 99)
    with torch.no_grad():
        _, q, guess = known.module['nets'](known.scaled(new.before), new.word)
        return float(given_away(q, guess))


def test_the_fine_keeps_hindsight_from_telling_the_context():
    assert told_at_last(2.0) < 0.6 * told_at_last(0.0)
    assert told_at_last(0.0) > 0.8 * math.log(2)


def test_unexplained_is_log_of_words_at_first_and_parts_do_not_mix():
    known = Hindsight(words=WORDS, width=8, passes=2)
    replies, _ = two_tools(20, 0)
    assert known.bonus(replies).allclose(torch.full((20,), math.log(WORDS)))
    known.visit(replies)
    b = known.bonus(replies)
    some = torch.tensor([5, 2, 11])
    assert known.bonus(Replies(replies.before[some], replies.word[some])).allclose(b[some])
    assert (b >= 0).all()
    beyond = Replies(replies.before, replies.word + 3 * WORDS)
    assert torch.equal(known.bonus(beyond), b)  # ids beyond are counted from 0 again
    nothing = Replies(torch.zeros(0, 1), torch.zeros(0).long())
    known.visit(nothing)
    assert known.batches == 1 and known.bonus(nothing).shape == (0,)


def test_many_replies_are_looked_at_in_parts():
    known = Hindsight(words=WORDS, width=8, passes=2)
    replies, _ = two_tools(1100, 0)
    known.visit(replies)
    each = [
        known.bonus(Replies(*parts))
        for parts in zip(replies.before.split(99), replies.word.split(99))
    ]
    assert known.bonus(replies).allclose(torch.cat(each), atol=1e-6)


@pytest.mark.parametrize('count, looked_at', [(20, 20), (300, 256)])
def test_first_loss_is_a_mean_by_hand_over_256_replies_at_most(count, looked_at):
    "All words and all codes are as likely, whatever the context, so that nothing is given away."
    known = Hindsight(words=WORDS, codes=4, width=8, passes=1)
    sizes, both = [], known._both

    def watched(x, word):
        sizes.append(len(x))
        return both(x, word)

    known._both = watched
    known.visit(two_tools(count, 0)[0])
    assert sizes == [looked_at]
    assert known.losses == [pytest.approx(math.log(WORDS) + math.log(4), rel=1e-5)]


def test_who_guesses_learns_from_his_own_error_alone():
    "The fine for what z gives away moves hindsight, and not the guess that measures it."
    known = Hindsight(words=WORDS, width=16, weight=0.0)
    for k in range(12):
        known.visit(two_tools(64, k)[0])
    nets = known.module['nets']

    def slopes(weight):
        known.weight = weight
        wanted = [nets.guess[-1].bias, nets.table.weight]
        known.step = lambda loss: torch.autograd.grad(loss, wanted)
        return known._learn(torch.Generator().manual_seed(0))

    (guess, table), (other_guess, other_table) = slopes(0.0), slopes(2.0)
    assert guess.allclose(other_guess, atol=1e-7)
    assert not table.allclose(other_table, rtol=0.1)


def test_memory_holds_the_newest_replies():
    known = Hindsight(words=WORDS, width=8, passes=1, memory=30)
    (old, _), (new, _) = two_tools(20, 0), two_tools(20, 1)
    known.visit(old)
    known.visit(new)
    assert known.visits['words'].tolist() == [*old.word[-10:].tolist(), *new.word.tolist()]
    assert len(known.visits['states']) == 30


def test_hindsight_goes_on_bit_for_bit():
    straight, stopped, resumed = (Hindsight(words=WORDS, width=8, passes=3) for _ in range(3))
    first, then = two_tools(20, 0)[0], two_tools(20, 1)[0]
    for known in (straight, stopped):
        known.visit(first)
    resumed.load_state_dict(stopped.state_dict())
    for known in (straight, resumed):
        known.visit(then)
    assert torch.equal(straight.bonus(then), resumed.bonus(then))
    assert straight.losses == resumed.losses


def test_heard_words_are_what_environments_answer(agent, rows):
    heard = heard_words(rows, agent)
    assert heard.any() and not (heard & rows.mask).any()
    for row, text in enumerate(rows.texts):
        item = rows.items[int(rows.prompt[row])]
        answers = ' '.join(MACHINES.read(item, text).answers).split()
        ids = rows.tokens[row][heard[row]]
        assert agent.tokenizer.decode(ids).split() == answers


def test_plain_text_is_not_answered(agent):
    countdown = task('countdown', level='easy')
    plain = agent.sample(countdown.sample(2, seed=0), 2, seed=0)
    assert not heard_words(plain, agent).any()
    assert not heard_words(dataclasses.replace(plain, items=()), agent).any()
    made = curiosity(passes=1)
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0])
    for _ in range(2):
        adv = made(rewards, plain.group, rollouts=plain, policy=agent)
        assert torch.equal(adv, grpo(rewards, plain.group))
        made.update(plain)
    assert made.known.module is None


def test_no_reply_has_neither_a_state_nor_a_row(agent):
    countdown = task('countdown', level='easy')
    plain = agent.sample(countdown.sample(1, seed=0), 2, seed=0)
    (before, word), row = curiosity().states_of(plain, agent)
    assert len(before) == 0 and before.dim() == 2 and before.is_floating_point()
    for ids in (word, row):
        assert ids.shape == (0,) and ids.dtype == torch.long


def test_words_before_by_hand():
    tokens = torch.tensor([[11, 12, 13, 14, 15, 16, 17], [21, 22, 23, 24, 25, 26, 27]])
    heard = torch.zeros(2, 7).bool()
    heard[0, 6] = heard[1, 2] = True
    assert words_before(tokens, heard).tolist() == [[16, 15, 14, 13, 12], [22, 21, 0, 0, 0]]
    assert words_before(tokens, heard, reach=2).tolist() == [[16, 15], [22, 21]]
    few, at = torch.tensor([[11, 12], [21, 22]]), torch.tensor([[False, True], [True, False]])
    assert words_before(few, at, reach=4).tolist() == [[11, 0, 0, 0], [0, 0, 0, 0]]


def test_a_context_does_not_know_its_reply(agent, rows):
    "Another answer, the context is the same: nothing of what is to be foreseen leaks into it."
    made = curiosity()
    heard = heard_words(rows, agent)
    first = heard & (heard.cumsum(1) == 1)
    changed = dataclasses.replace(rows, tokens=torch.where(first, rows.tokens + 1, rows.tokens))
    (before, word), row = made.states_of(rows, agent)
    (other, new_word), _ = made.states_of(changed, agent)
    is_first = first[heard]
    assert before[is_first].allclose(other[is_first], atol=1e-5)
    assert not before[~is_first].allclose(other[~is_first], atol=1e-3)
    assert torch.equal(word[is_first] + 1, new_word[is_first])
    assert torch.equal(row, heard.nonzero()[:, 0])


def test_a_row_is_paid_the_mean_of_its_words(agent, rows):
    made = curiosity(passes=4)
    given = dict(rollouts=rows, policy=agent)
    assert made(rows.rewards, rows.group, **given).allclose(
        grpo(rows.rewards, rows.group), atol=1e-5
    )
    assert made.told['bonus'] == pytest.approx(math.log(256))
    made.update(rows)
    replies, row = made.states_of(rows, agent)
    each = made.known.bonus(replies)
    wanted = torch.stack([each[row == k].mean() for k in range(len(rows))])
    apart = wanted - torch.stack([wanted[rows.group == k].mean() for k in rows.group])
    adv = made(rows.rewards, rows.group, **given)
    assert adv.allclose(grpo(rows.rewards, rows.group) + 0.5 * apart, atol=1e-4)
    unscored = rows.rewards.clone()
    unscored[-1] = math.nan
    assert made(unscored, rows.group, **given)[-1] == 0
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    turned = rows_of(rows, order)
    found = made(turned.rewards, turned.group, rollouts=turned, policy=agent)
    assert found.allclose(adv[order], atol=1e-3)


def end_of(policy, made, *parts, path=None):
    "The weights after runs of so many steps in one folder, one after the other."
    for steps in parts:
        learner = policy.clone()
        saved = [] if path is None else [Checkpoint(every=1)]
        train(learner, MACHINES, made, steps=steps, seed=1, path=path, callbacks=saved)
    return weights(learner)


SMALL = dict(prompts=2, group=4, lr=1e-3)
ARMS = ('hindsight_curiosity', 'plain_curiosity', 'hindsight_curiosity_dealt', 'grpo')


def test_the_idea_acts_and_goes_on_bit_for_bit(agent, tmp_path):
    ends = {name: end_of(agent, recipe(name, **SMALL), 2) for name in ARMS}
    mine = ends[ARMS[0]]
    come = (mine - weights(agent)).norm()
    for other in ARMS[1:]:
        assert (ends[other] - mine).norm() > 1e-4 * come, other
    path = tmp_path / 'run'
    assert torch.equal(end_of(agent, recipe(ARMS[0], **SMALL), 1, 2, path=path), mine)
    off = recipe('grpo', advantage=use(curiosity, beta=0.0, passes=1), **SMALL)
    assert torch.equal(end_of(agent, off, 2), ends['grpo'])


@pytest.mark.parametrize(
    'made, knobs, said',
    [
        (Hindsight, dict(codes=0), 'Hindsight: codes is 0, wanted a whole number of at least 1'),
        (Hindsight, dict(words=2.5), 'Hindsight: words is 2.5'),
        (Hindsight, dict(weight=-1), 'weight is -1, wanted a finite number of at least 0'),
        (curiosity, dict(beta=math.inf), 'curiosity: beta is inf, wanted a finite number'),
        (curiosity, dict(passes=0), 'passes is 0'),
    ],
)
def test_bad_settings_are_answered_in_one_sentence(made, knobs, said):
    with pytest.raises(ValueError, match=said):
        made(**knobs)


def test_bad_input_is_answered_in_one_sentence(agent, rows):
    with pytest.raises(ValueError, match='q has'):
        hindsight_error(torch.ones(2, 3), torch.ones(2, 2))
    with pytest.raises(ValueError, match='guess has'):
        given_away(torch.ones(2, 3), torch.ones(3, 3))
    with pytest.raises(ValueError, match='group'):
        curiosity()(rows.rewards, rows.group[:-1], rollouts=rows, policy=agent)
