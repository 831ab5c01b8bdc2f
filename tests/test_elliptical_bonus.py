"""Rows that differ: each is the furthest from what those before it cover, for any ridge."""

import pytest, torch
from rl4llm.advantages.elliptical_bonus import most_different


@pytest.mark.parametrize('ridge', [0.01, 1.0, 10.0])
@pytest.mark.parametrize('seed', range(4))
def test_rows_are_chosen_one_by_one(seed, ridge):
    features = torch.randn(12, 3, generator=torch.Generator().manual_seed(seed)).double()
    centred = features - features.mean(0)
    chosen = []
    for _ in range(8):
        before = centred[chosen]
        covered = ridge * torch.eye(3).double() + before.T @ before
        novelty = ((centred @ covered.inverse()) * centred).sum(1)
        novelty[chosen] = -1
        chosen.append(int(novelty.argmax()))
    assert most_different(features, 8, ridge=ridge) == chosen
