"""Next segments by hand: what counts as the same, thoughts cut and closed, log-probabilities."""

import pytest, torch
from rl4llm.advantages.next_segment import (
    MARKS,
    asr_problem,
    information_gain,
    mark_ids,
    msr_problem,
    plain_segment,
    reference_segments,
    same_segment,
    sample_thoughts,
    segment_gain,
    segment_logp,
    segment_reward,
    segments_of,
    thoughts_of,
)
from rl4llm.core.rollouts import make_rollouts
from rl4llm.tasks import task
from rl4llm.tasks.own_data import task_from
from rl4llm.tasks.protocol import Item
from rl4llm.tasks.vocabulary import tiny_tokenizer

SWAP = Item('story', ('b with the cat', 'd with the dog', 'b and d', 'b ?'))  # b with the dog


def test_the_segment_in_the_middle_is_asked_for():
    row = msr_problem(['a', 'b', 'c', 'd'], 1)
    assert row == dict(question='<story> a ; ? ; c', answer='b')


@pytest.mark.parametrize('place', [-1, 3, 4, 1.5, 'x', None])
def test_a_gap_needs_a_segment_behind_it(place):
    with pytest.raises(ValueError, match='msr_problem: the place is .* from 0 to 2'):
        msr_problem(['a', 'b', 'c', 'd'], place)


@pytest.mark.parametrize('place', [-1, 2, 1.5, 'x'])
def test_a_continuation_needs_a_segment(place):
    with pytest.raises(ValueError, match='asr_problem: the place is .* from 0 to 1'):
        asr_problem(['a', 'b'], place)
    assert asr_problem(['a', 'b'], 1) == dict(question='<story> a', answer='b')


def test_too_few_segments_are_named():
    with pytest.raises(ValueError, match='msr_problem: there are 1 segments, wanted 1 more'):
        msr_problem(['a'], 0)
    with pytest.raises(ValueError, match='asr_problem: there are 0 segments, wanted 1 more'):
        asr_problem([], 0)


@pytest.mark.parametrize('threshold', [-1, 0, 1.5, float('nan'), 'x', None])
def test_a_threshold_that_pays_all_or_nothing_is_refused(threshold):
    with pytest.raises(ValueError, match='segment_reward: threshold is'):
        segment_reward(['?'], ['x'], item=[SWAP], judge='overlap', threshold=threshold)


@pytest.mark.parametrize('tau', ['x', None, float('nan'), -0.1, 1.1])
def test_a_share_that_is_none_is_refused(tau):
    with pytest.raises(ValueError, match='information_gain has tau=.*wanted 0 <= tau <= 1'):
        information_gain(tau=tau)


TOWN = 'Paris is the Capital of France. It has 2 Rivers!\nThe  third;'


def test_segments_are_kept_as_they_are_written():
    found = segments_of(TOWN)
    assert found == ['Paris is the Capital of France', 'It has 2 Rivers!', 'The  third']
    assert all(segment in TOWN for segment in found)
    assert plain_segment(found[2]) == 'the third'
    assert segments_of('a ; . ;; b.') == ['a', 'b']


TOLD = 'Paris is the Capital of France. It has 2 Rivers!'


def test_the_judge_reads_small_letters():
    rows = [dict(question='Where?', answer=TOLD), dict(question='What?', answer='B with the Dog')]
    own = task_from(rows, replace=True)
    items = {item.data[0]: item for part in own.parts.values() for item in part}
    said = ['paris is the  capital of France.', 'Paris is a town.']
    texts = [f'<answer> {text} </answer>' for text in said]
    assert segment_reward([''] * 2, texts, item=[items['Where?']] * 2) == [1, 0]
    texts = ['<answer> b HAS the dog </answer>']
    assert segment_reward([''], texts, item=[items['What?']]) == [1]


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


def byte_tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ['<pad>', '<end>']
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator([f'<answer> {TOWN} </answer>'] * 9, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token='<pad>', eos_token='<end>')


def test_what_is_scored_is_what_a_model_of_letters_would_write():
    policy = Table()
    policy.tokenizer = byte_tokenizer()
    own = task_from([dict(question='Where?', answer=TOLD)], replace=True)
    (item,) = (item for part in own.parts.values() for item in part)
    assert reference_segments(item)[0] == 'Paris is the Capital of France'
    thought = mark_ids(policy, '<think> a town </think>')
    found = segment_logp(policy, rows_of([[1]], [item]), [thought], torch.arange(1))
    written = mark_ids(policy, '<answer> Paris is the Capital of France')
    assert policy.read == [[thought + written]]
    mark = mark_ids(policy, '<answer>')
    assert found.item() == -sum(written[len(mark) :])


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


class Short(Table):
    "A policy that finds each token of the answer as improbable as the text before it is short."

    def statistics(self, rows, names):
        length = rows.mask.sum(1, keepdim=True)
        return dict(logp=(-8.0 / length * rows.mask).double())


def test_a_thought_gains_what_it_adds_to_the_blank():
    policy = Short()
    tail = '<answer> b with the dog'
    assert len(mark_ids(policy, tail)) == 5
    blank = mark_ids(policy, '<think> </think>')
    longer = mark_ids(policy, '<think> cat dog bird </think>')
    assert (len(blank), len(longer)) == (2, 5)
    rows = rows_of([longer, blank], [SWAP], prompts=[0, 0])
    told = dict(rollouts=rows, policy=policy, baseline=policy)
    found = segment_gain(torch.zeros(2), rows.group, **told, blank='<think> </think>')
    # four tokens, -8/10 each behind the thought and -8/7 each behind the blank
    assert found.tolist() == pytest.approx([4 * (8 / 7 - 8 / 10), 0], abs=1e-4)
