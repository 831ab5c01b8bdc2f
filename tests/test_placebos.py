"A placebo has its method's numbers in random order, and is a value that a recipe can store."

import json
import pytest
import torch
from rl4llm.core.method_map import recipes
from rl4llm.core.placebos import placebo
from rl4llm.core.registry import RECIPES, STAGE_FIELDS, recipe, recipe_from_dict, use
from rl4llm.core.rollouts import group_mean, make_rollouts, rows_of

recipes()  # loads every recipe


def shams(made):
    "The placebos among the knobs of a recipe's stages."
    used = [getattr(made, field) for field in STAGE_FIELDS if field != 'regularisers']
    return [v for u in used for _, v in u.knobs if hasattr(v, 'among')]


PLACEBOS = sorted(name for name in RECIPES if shams(recipe(name)))
every_placebo = pytest.mark.parametrize('name', PLACEBOS)


def test_the_ten_recipes_are_there():
    shuffled = {
        f'{name}_shuffled'
        for name in ('rlfr', 'thr', 'rank_shaping', 'progrpo', 'univg', 'gui_g1', 'grpo_s')
    }
    assert set(PLACEBOS) >= shuffled | {'hicra_random', 'g2rl_random', 'forking_tokens_random'}


@every_placebo
def test_it_comes_back_from_a_file(name):
    made = recipe(name)
    assert recipe_from_dict(json.loads(json.dumps(made.to_dict()))) == made
    assert hash(made) == hash(recipe(name))


@every_placebo
def test_it_differs_from_its_method_in_one_knob(name):
    made, method = recipe(name), recipe(recipe(name).parent)
    ((field, (before, after)),) = made.diff().items()
    assert dict(before.knobs).items() <= dict(after.knobs).items()
    assert len(after.knobs) == len(before.knobs) + 1
    assert 'placebo(' in repr(after) and made.fingerprint() != method.fingerprint()


@every_placebo
def test_a_run_of_the_method_is_not_taken_for_one_of_its_placebo(name):
    from rl4llm.training.run_identity import check_same_run, code_digests

    def config(made):
        alike = dict(task_settings='easy', seed=0, weights='the same', bf16=False)
        code = code_digests(made)
        return dict(alike, recipe=made.to_dict(), code=code, fingerprint=made.fingerprint())

    made, method = recipe(name), recipe(recipe(name).parent)
    check_same_run(config(method), config(recipe(method.name)), 'runs/a')
    for old, new in ((method, made), (made, method)):
        with pytest.raises(ValueError, match='runs/a holds another run'):
            check_same_run(config(old), config(new), 'runs/a')


def ones(rewards, group, *, rollouts):
    return torch.ones_like(rewards)


def twos(rewards, group, *, rollouts):
    return 2 * torch.ones_like(rewards)


def test_a_fingerprint_follows_the_factor():
    prints = [
        recipe('univg', advantage=use('univg', weight=f)).fingerprint()
        for f in (ones, twos, placebo(ones, among='groups'), placebo(twos, among='groups'))
    ]
    assert len({*prints, recipe('univg').fingerprint()}) == 5


def some_rollouts():
    lengths = torch.tensor([4, 2, 3, 1, 4, 3])
    mask = torch.arange(4) < lengths[:, None]
    asked = torch.ones(3, 1).long()
    return make_rollouts(
        prompt_ids=asked,
        prompt_mask=asked.bool(),
        mask=mask,
        prompt=torch.tensor([0, 0, 1, 1, 2, 2]),
        tokens=torch.arange(24).view(6, 4) * mask,
        rewards=torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, float('nan')]),
    )


def of_rows(rewards, group, *, rollouts):
    return rollouts.tokens[:, 0].double()


def of_groups(rewards, group, *, rollouts):
    return group_mean(rewards, group)


def of_tokens(rewards, group, *, rollouts):
    return rollouts.tokens.double()


def of_few(rewards, group, *, rollouts):
    return rollouts.mask & (rollouts.tokens % 2 == 0)


@pytest.mark.parametrize('seed', range(4))
@pytest.mark.parametrize(
    'factor, within',
    [
        (of_rows, 'rows'),
        (of_rows, 'peers'),
        (of_groups, 'groups'),
        (of_tokens, 'tokens'),
        (of_few, 'tokens'),
    ],
)
def test_the_numbers_stay_and_the_order_of_rows_does_not_matter(factor, within, seed):
    r, made = some_rollouts(), placebo(factor, among=within, seed=seed)
    before, after = factor(r.rewards, r.group, rollouts=r), made(r.rewards, r.group, rollouts=r)
    assert after.dtype == before.dtype
    dim = -1 if within == 'tokens' else 0
    assert torch.equal(before.sort(dim).values, after.sort(dim).values)
    if within != 'groups':
        assert torch.equal(before[5], after[5]), 'a row without a reward takes no part'
    back = torch.tensor([3, 1, 5, 0, 4, 2])
    turned = rows_of(r, back)
    assert torch.equal(made(turned.rewards, turned.group, rollouts=turned), after[back])


def test_peers_keep_what_their_group_has():
    r = some_rollouts()
    plain = of_rows(r.rewards, r.group, rollouts=r)
    drawn = [
        placebo(of_rows, among='peers', seed=seed)(r.rewards, r.group, rollouts=r)
        for seed in range(8)
    ]
    for values in drawn:
        for g in r.group.unique():
            own = r.group == g
            assert torch.equal(values[own].sort().values, plain[own].sort().values)
    assert any(not torch.equal(values, plain) for values in drawn)


@pytest.mark.parametrize('within', ['tokens', 'rows', 'peers', 'groups'])
def test_noise_is_uniform_numbers_of_the_right_shape(within):
    r = some_rollouts()
    noise = placebo(ones, among=within, by='noise')(r.rewards, r.group, rollouts=r)
    assert (
        noise.shape == (r.mask.shape if within == 'tokens' else (6,))
        and ((noise > 0) & (noise < 1)).all()
    )
    if within == 'groups':
        assert torch.equal(noise[::2], noise[1::2])


def test_what_cannot_work_is_refused():
    r = some_rollouts()
    with pytest.raises(ValueError, match='tokens, rows, peers, groups'):
        placebo(ones, among='row')
    with pytest.raises(ValueError, match="'order' or 'noise'"):
        placebo(ones, among='rows', by='chance')
    with pytest.raises(TypeError, match='wanted the function'):
        placebo('univg', among='rows')
    with pytest.raises(ValueError, match='one value a group'):
        placebo(of_rows, among='groups')(r.rewards, r.group, rollouts=r)
    with pytest.raises(ValueError, match='what the factor gave'):
        placebo(of_rows, among='tokens')(r.rewards, r.group, rollouts=r)


def test_nothing_scored_is_nothing_shuffled():
    r = some_rollouts()
    unknown = torch.full((6,), float('nan'))
    for factor, within in ((of_rows, 'rows'), (of_tokens, 'tokens')):
        assert torch.equal(
            placebo(factor, among=within)(unknown, r.group, rollouts=r),
            factor(unknown, r.group, rollouts=r),
        )


# -- placebos of rewards of text


def last_word(text):
    return text.split()[-1]


def dealt_rewards(texts, seed):
    "The placebo of the vote in both of its forms, with the votes."
    from rl4llm.rewards.algebra import shuffled
    from rl4llm.rewards.label_free import dealt_reward, majority_reward

    prompts = ['p'] * len(texts)
    votes = majority_reward(prompts, texts, read=last_word)

    def part(prompts, completions, **columns):
        return votes

    dealt = dealt_reward(prompts, texts, read=last_word, seed=seed)
    return votes, (dealt, shuffled(prompts, texts, part=part, seed=seed))


@pytest.mark.parametrize('counts', [(15, 1), (10, 3, 3), (2, 1)])
def test_equal_texts_do_not_deal_their_reward_to_each_other(counts):
    "Of 15 equal texts and another one the placebo once kept half of what the vote gives."
    texts = [f't {i}' for i, count in enumerate(counts) for _ in range(count)]
    kept = []
    for seed in range(300):
        votes, both = dealt_rewards(texts, seed)
        for dealt in both:
            true, sham = (torch.tensor(x, dtype=torch.float64) for x in (votes, dealt))
            kept.append(((true - true.mean()) * sham).mean() / true.var(unbiased=False))
            assert sorted(dealt) == sorted(votes)
    assert abs(torch.stack(kept).mean()) < 0.06


def test_what_was_not_scored_neither_gives_nor_takes():
    from rl4llm.rewards.algebra import dealt_out

    values = [None, 1.0, None, 0.0, 0.5]
    for texts in (['a'] * 5, list('abcde')):
        for seed in range(9):
            dealt = dealt_out(values, ['p'] * 5, texts, [range(5)], seed=seed)
            assert dealt[0] is dealt[2] is None
            assert sorted(dealt[1::2] + dealt[4:]) == [0.0, 0.5, 1.0]
