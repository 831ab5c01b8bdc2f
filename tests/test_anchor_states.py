"""GiGPO by hand: the state before a turn, turns of plain texts, shared turns, deviations."""

import math
from types import SimpleNamespace
import pytest, torch
from rl4llm.advantages.anchor_states import gigpo, shared_turns, states_before, turns_of
from rl4llm.core.rollouts import make_rollouts
from rl4llm.tasks import task
from rl4llm.tasks.vocabulary import tiny_tokenizer

POLICY = SimpleNamespace(tokenizer=tiny_tokenizer())
ONE = task('countdown', level='easy').sample(1, seed=3)


def rows_of(*texts, items=tuple(ONE), **fields):
    "Rows of these words to one problem."
    ids = [POLICY.tokenizer(text, add_special_tokens=False)['input_ids'] for text in texts]
    longest = max(map(len, ids))
    real = torch.tensor([[k < len(row) for k in range(longest)] for row in ids])
    return make_rollouts(
        prompt_ids=torch.ones(1, 1).long(),
        prompt_mask=torch.ones(1, 1).bool(),
        tokens=torch.tensor([row + [0] * (longest - len(row)) for row in ids]),
        mask=real,
        prompt=torch.zeros(len(texts)).long(),
        items=items,
        texts=texts,
        **fields,
    )


def test_an_episode_begins_in_a_state_of_which_nothing_is_heard():
    problem = task('key_door', level='standard').sample(1, seed=0)[0]
    assert states_before(problem, '', anchor='heard') == ['']
    (begun,) = states_before(problem, '', anchor='world')
    assert begun != ''


@pytest.mark.parametrize('items', [tuple(ONE), ()])
def test_a_turn_of_a_plain_text_ends_with_its_separator(items):
    rows = rows_of('2 ; 3 + 4 ; 5', '2', items=items)
    assert turns_of(rows, POLICY).tolist() == [[0, 0, 1, 1, 1, 1, 2], [0] + [-1] * 6]


# what the turns of a text begin in, told by its words
def told(item, text, anchor=None):
    return text.split()[::2]


@pytest.mark.parametrize(
    'texts, share',
    [
        (('2 ; 3', '2 ; 4 ; 4 ; 5'), 4 / 6),  # both of 2, both of 4
        (('2', '2'), 1),
        (('2', '3'), 0),
    ],
)
def test_the_share_of_turns_with_company(texts, share):
    found = shared_turns(rows_of(*texts), POLICY, states=told)
    assert found == pytest.approx(share)


def test_without_a_turn_nothing_is_shared():
    rows = rows_of('2 ; 3')
    rows.mask[:] = False
    assert shared_turns(rows, POLICY, states=told) == 0


def test_a_deviation_has_a_millionth_added_to_it():
    rows = rows_of('2', '3')
    rewards = torch.tensor([1.0, 0.0]).double()
    adv = gigpo(rewards, rows.group, rollouts=rows, policy=POLICY, omega=0.0, scale='group')
    wanted = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert adv[:, 0].tolist() == pytest.approx([wanted, -wanted], rel=1e-9)


def advantages_by_hand(**knobs):
    "Of three rows: right after two turns, wrong after three, half right after one."
    rows = rows_of('2 ; 3', '2 ; 3 ; 4', '2')
    rewards = torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64)
    group = torch.zeros(3).long()
    return gigpo(rewards, group, rollouts=rows, policy=POLICY, states=told, **knobs)


def test_turns_from_one_state_are_compared_by_what_is_still_to_come():
    """From state 2: .5 (1, a turn away), 0, .5; from state 3: 1 and 0; from state 4 one alone.

    The episodes have .5, -.5 and 0."""
    first = [1 / 6, -1 / 3, 1 / 6]
    wanted = torch.tensor(
        [
            [0.5 + first[0]] * 2 + [0.5 + 0.5] + [0] * 2,
            [-0.5 + first[1]] * 2 + [-0.5 - 0.5] * 2 + [-0.5],
            [first[2]] + [0] * 4,
        ],
        dtype=torch.float64,
    )
    found = advantages_by_hand(gamma=0.5)
    assert torch.allclose(found, wanted)
    whole = advantages_by_hand(gamma=0.5, omega=0.0)
    doubled = advantages_by_hand(gamma=0.5, omega=2.0)
    assert torch.allclose(doubled - whole, 2 * (found - whole))


def test_an_episode_may_count_once_for_each_of_its_turns():
    "Two turns of 1, three of 0 and one of a half: 5/12 on average."
    found = advantages_by_hand(omega=0.0, mean='turns')
    assert torch.allclose(found[:, 0], torch.tensor([7 / 12, -5 / 12, 1 / 12]).double())
    once = advantages_by_hand(omega=0.0)
    assert torch.allclose(once[:, 0], torch.tensor([0.5, -0.5, 0.0]).double())
