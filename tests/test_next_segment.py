"""Next segments by hand: what counts as the same, thoughts cut and closed, log-probabilities."""

import pytest, torch
from rl4llm.advantages.next_segment import (
    MARKS,
    information_gain,
    mark_ids,
    msr_problem,
    same_segment,
    sample_thoughts,
    segment_logp,
    segment_reward,
    thoughts_of,
)
from rl4llm.core.rollouts import make_rollouts
from rl4llm.tasks import task
from rl4llm.tasks.protocol import Item
from rl4llm.tasks.vocabulary import tiny_tokenizer

SWAP = Item('story', ('b with the cat', 'd with the dog', 'b and d', 'b ?'))  # b with the dog


def test_the_segment_in_the_middle_is_asked_for():
    row = msr_problem(['a', 'b', 'c', 'd'], 1)
    assert row == dict(question='<story> a ; ? ; c', answer='b')


@pytest.mark.parametrize(
    'said, wanted, same',
    [
        ('b has 4', 'b with 4', True),  # three words are enough
        ('b has the dog', 'b with the dog', True),
        ('b', 'b with', False),  # two are no fact
        ('the has the red', 'the tree is red', False),  # and this is none
        ('the tree is red', 'the tree is red', True),
    ],
)
def test_what_says_the_same(said, wanted, same):
    assert same_segment(said, wanted) == same


@pytest.mark.parametrize(
    'said, how, paid',
    [
        ('b has the dog', {}, 1),  # in other words than the reference
        ('b with the dog', dict(judge='overlap'), 1),
        ('b with the cat', dict(judge='overlap'), 0),  # 3 words of 4
        ('b with the cat', dict(judge='overlap', threshold=0.75), 1),
        ('b with the cat', dict(judge='overlap', threshold=0.76), 0),
    ],
)
def test_rewards_by_hand(said, how, paid):
    text = f'<answer> {said} </answer>'
    assert segment_reward(['?'], [text], item=[SWAP], **how) == [paid]


# -- thoughts and what they add, before a policy that is a table


class Table:
    "A policy whose log-probability of a token is minus its number."

    def __init__(self, context=999):
        self.tokenizer = tiny_tokenizer()
        self.context = context
        self.pad = self.tokenizer.pad_token_id
        self.eos = self.tokenizer.eos_token_id
        self.read = []

    def statistics(self, rows, names):
        self.read.append([own[real].tolist() for own, real in zip(rows.tokens, rows.mask)])
        return dict(logp=-rows.tokens.double() * rows.mask)


def rows_of(responses, items, prompts=None):
    "Rows of token ids to prompts of three tokens."
    longest = max(map(len, responses))
    tokens = torch.tensor([ids + [0] * (longest - len(ids)) for ids in responses])
    real = torch.tensor([[k < len(ids) for k in range(longest)] for ids in responses])
    seen = torch.ones(len(items), 3).bool()
    prompt = torch.arange(len(items)) if prompts is None else torch.tensor(prompts)
    return make_rollouts(
        prompt_ids=seen.long(),
        prompt_mask=seen,
        tokens=tokens,
        mask=real,
        prompt=prompt,
        items=tuple(items),
    )


def test_a_thought_loses_the_answer_mark_and_is_closed_once():
    policy = Table()
    close, answer = (mark_ids(policy, mark) for mark in MARKS)
    x, y, z = mark_ids(policy, 'cat dog bird')
    said = [
        [x, y, *close, *answer, z],
        [x, y, *answer, z],
        [x, y, z, policy.eos],
        [*answer, z],
        [policy.eos],
        [x],
    ]
    found = thoughts_of(policy, rows_of(said, [SWAP], prompts=[0] * len(said)))
    assert found == [[x, y, *close], [x, y, *close], [x, y, z, *close], [], [], [x, *close]]


def test_the_first_segment_alone_is_scored_and_a_text_without_one_is_not():
    policy = Table()
    easy = task('countdown', level='easy').sample(1, seed=3)[0]
    first = task('countdown').demonstrate(easy, seed=0).split(' ; ')[0]
    rows = rows_of([[1], [1], [1]], [SWAP, 'a text', easy])
    thought = mark_ids(policy, 'cat </think>')
    found = segment_logp(policy, rows, [thought] * 3, torch.arange(3))
    wanted = [-float(sum(mark_ids(policy, text))) for text in ('b with the dog', first)]
    assert found[[0, 2]].tolist() == wanted and found[1].isnan()


@pytest.mark.parametrize('room, kept', [(2, 2), (5, 5), (9, 5)])
def test_a_thought_that_is_too_long_loses_its_beginning(room, kept):
    tail = mark_ids(Table(), '<answer> b with the dog')
    policy = Table(context=3 + room + len(tail))
    thought = mark_ids(policy, 'cat dog bird tree </think>')
    segment_logp(policy, rows_of([[1]], [SWAP]), [thought], torch.arange(1))
    assert policy.read == [[thought[5 - kept :] + tail]]


def test_the_baseline_moves_and_not_before_there_is_a_policy(small_policy):
    made = information_gain(tau=0.25, gain=lambda rewards, group, **how: rewards.clone())
    made.update(None)
    rewards = torch.tensor([1.0, 0.0])
    made(rewards, torch.zeros(2).long(), rollouts=None, policy=small_policy)
    weight = small_policy.model.model.norm.weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight.add_(1.0)
    made.update(None)
    (kept,) = (x for name, x in made.state_dict().items() if name == 'model.norm.weight')
    assert kept.detach().allclose(before + 0.75)
    with pytest.raises(ValueError, match='infinite'):
        infinite = torch.tensor([torch.inf, 0.0])
        made(infinite, torch.zeros(2).long(), rollouts=None, policy=small_policy)


def test_one_thought_of_each_story_if_nothing_is_said(small_policy):
    items = task('countdown', level='easy').sample(3, seed=0)
    rows = sample_thoughts(small_policy, items, seed=0, max_new_tokens=3)
    assert rows.prompt.tolist() == [0, 1, 2]
