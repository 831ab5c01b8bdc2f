"""Steps as tokens: which have one id, which are compared, and the way back, by hand."""

import pytest
import torch

from rl4llm.advantages.process_advantages import compare_steps, steps_as_tokens, to_tokens
from rl4llm.core.rollouts import make_rollouts

HALF = 0.5**0.5


def rows_of(tokens):
    "Rows of these ids to one prompt."
    tokens = torch.tensor(tokens)
    ids = torch.ones(1, 2).long()
    return make_rollouts(
        prompt_ids=ids,
        prompt_mask=ids.bool(),
        tokens=tokens,
        mask=torch.ones_like(tokens).bool(),
        prompt=torch.zeros(len(tokens)).long(),
    )


def test_rows_have_as_many_tokens_as_steps():
    "A row of one step, one of three and one of none."
    number = torch.tensor([[1, 1, 1, 1], [1, 2, 2, 3], [0, 0, 0, 0]])
    steps = steps_as_tokens(rows_of([[5, 6, 7, 8]] * 3), number)
    assert steps.mask.tolist() == [[True, False, False], [True] * 3, [False] * 3]
    assert (steps.tokens > 0).tolist() == steps.mask.tolist()


@pytest.mark.parametrize(
    'one, other',
    [
        ([3, 5, 0], [5, 3, 0]),  # another order
        ([4, 1, 0], [4, 2, 0]),  # another last token
        ([0, 6, 0], [1, 6, 0]),  # another first token
        ([4, 1, 0], [4, 0, 0]),  # the second ends with the padding's id
    ],
)
def test_steps_of_other_tokens_have_another_id(one, other):
    number = torch.tensor([[1, 1, 2]] * 3)
    first = steps_as_tokens(rows_of([one, other, one]), number).tokens[:, 0]
    assert first[0] == first[2] and first[0] != first[1]


def test_a_token_counts_whatever_its_id():
    "A step of one token is not the step that has one more behind it."
    number = torch.tensor([[1, 2, 2], [1, 1, 2]])
    for token in range(3):
        first = steps_as_tokens(rows_of([[7, token, 9]] * 2), number).tokens[:, 0]
        assert first[0] != first[1]


@pytest.mark.parametrize('groups', [(0, 1), (0, 2), (2, 0), (5, 6), (0, 4)])
def test_a_step_is_held_against_the_same_step_of_its_group_alone(groups):
    "Two groups of two rows: whatever their numbers, no step meets another group's."
    x = torch.tensor([[1.0, 8.0], [0.0, 8.0], [5.0, 3.0], [5.0, 1.0]])
    found = compare_steps(x, torch.tensor(groups).repeat_interleave(2), eps=0.0)
    wanted = torch.tensor([[HALF, 0], [-HALF, 0], [0, HALF], [0, -HALF]])
    assert torch.allclose(found, wanted)


def test_tokens_have_what_their_step_has():
    number = torch.tensor([[1, 1, 2, 0], [0, 2, 2, 1]])
    found = to_tokens(torch.tensor([[5.0, 7.0], [3.0, 4.0]]), number)
    assert found.tolist() == [[5, 5, 7, 0], [0, 4, 4, 3]]
