"""Credit for tokens: phrases in any tokenizer, and knobs that are no numbers."""

import math
from types import SimpleNamespace

import pytest
import torch

from rl4llm.advantages.token_credit import (
    hicra,
    hicra_entropy,
    lift_tokens,
    nthr,
    planning_tokens,
    token_hidden_reward,
)
from rl4llm.oracle.estimators import check
from rl4llm.oracle.tabular import TokenTree, exact_objective, random_logits, tree_rewards
from rl4llm.tasks.vocabulary import tiny_tokenizer

WORDS = ['<pad>', '<eos>', '13', 'Ġ+', 'Ġ8', 'Ġ=', 'Ġ', '1', '3', '2', 'Wait', 'ĠWait', '?']
WORDS += ['+', '=', '8']


class Pieces:
    "As text models cut: numbers into digits, a space to the word behind it."

    eos_token_id = 1
    unk_token_id = 12

    def __len__(self):
        return len(WORDS)

    def convert_ids_to_tokens(self, ids):
        return [WORDS[i] for i in ids]

    def __call__(self, text, add_special_tokens=True):
        text = text.replace(' ', 'Ġ')
        ids = []
        while text:
            fits = [i for i, word in enumerate(WORDS) if text.startswith(word)]
            best = max(fits, key=lambda i: len(WORDS[i]), default=self.unk_token_id)
            ids.append(best)
            text = text[len(WORDS[best]) if fits else len(text) :]
        return dict(input_ids=ids)


def rows(*ids):
    tokens = torch.tensor([ids])
    return SimpleNamespace(tokens=tokens, mask=tokens > 0)


def test_a_tokenizer_that_cuts_numbers_needs_a_lexicon():
    "No operator planned, and the digits of the result did."
    step = rows(7, 8, 3, 6, 15, 5, 6, 9, 7)
    with pytest.raises(ValueError, match='wanted whole numbers and operators; give a lexicon'):
        planning_tokens(step, Pieces())
    by_phrase = planning_tokens(step, Pieces(), ('+',))
    assert not by_phrase[0, 0]


def test_a_phrase_is_found_behind_a_space():
    assert planning_tokens(rows(10, 2, 11, 2), Pieces(), ('Wait',)).tolist() == [
        [True, False, True, False]
    ]


@pytest.mark.parametrize('tokenizer', [Pieces(), tiny_tokenizer()])
@pytest.mark.parametrize(
    'lexicon, said',
    [
        ((), 'wanted at least one phrase'),
        (('',), 'wanted texts that are not empty'),
        ((' ',), 'wanted texts that are not empty'),
        ((1, 2), 'lexicon holds 1, wanted texts'),
        (('perhaps',), "does not know the phrase 'perhaps'"),
        ('13', 'put it in a tuple'),
    ],
)
def test_a_lexicon_that_would_find_nothing_is_refused(tokenizer, lexicon, said):
    with pytest.raises(ValueError, match=said):
        planning_tokens(rows(2, 3), tokenizer, lexicon)


REWARDS = torch.tensor([1.0, 0.0])
GROUP = torch.zeros(2).long()


@pytest.mark.parametrize(
    'stage, knob',
    [
        (hicra, 'alpha'),
        (hicra_entropy, 'alpha'),
        (token_hidden_reward, 'p'),
        (token_hidden_reward, 'beta'),
        (token_hidden_reward, 'threshold'),
        (nthr, 'beta'),
        (nthr, 'threshold'),
    ],
)
@pytest.mark.parametrize('value', [math.nan, 'x'])
def test_knobs_are_numbers(stage, knob, value):
    nothing = dict(rollouts=None, policy=None)
    nothing |= dict(old_entropy=None) if stage is hicra_entropy else {}
    nothing |= dict(old_hidden=None) if knob != 'alpha' else {}
    name = stage.__name__
    with pytest.raises(ValueError, match=f'{name}: {knob} is .*, wanted a finite number'):
        stage(REWARDS, GROUP, **nothing, **{knob: value})


def test_a_lexicon_pays_for_planning_as_such():
    "Where the token decides what plans, the lift is no change of the step's length."
    tree = TokenTree(vocab=3, length=2)
    z = random_logits(tree, seed=3)
    z = torch.cat([z[:1], z[1:2].expand(len(z) - 1, -1)])
    rewards = tree_rewards(tree, lambda s: s[1] == 0)
    q = exact_objective(tree, z, rewards).item()

    def by_token(rewards, group, rollouts):
        return lift_tokens(rewards - q, rollouts.tokens == 0, 0.2)

    found = check(by_token, tree, z, rewards, group=2)
    assert torch.allclose(found.target[0], torch.zeros(3).double())
    assert found.mean[0, 0] > 0.01
