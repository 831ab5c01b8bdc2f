"""The problems of a seed, what is asked and what is judged: the same in every version.

Runs, splits and stored results hang on them. Who changes them on purpose says so in the changelog
and writes them anew: `python tests/test_drawn_problems.py`.
"""

import dataclasses, hashlib, json, random
from pathlib import Path
import pytest
from rl4llm.tasks import levels, task, tasks

STORED = Path(__file__).with_name('drawn_problems.json')
CASES = [f'{name}/{level}' for name in sorted(tasks()) for level in levels(name)]


def variants(text: str, rng: random.Random) -> list[str]:
    "A demonstration whole, cut, shuffled, with words changed, and in other clothes."
    words = text.split()
    cut = [' '.join(words[:n]) for n in range(0, len(words), max(1, len(words) // 6))]
    without = [' '.join(words[:i] + words[i + 1 :]) for i in rng.sample(range(len(words)), 1)]
    other = list(words)
    if len(words) > 1:
        i, j = rng.sample(range(len(words)), 2)
        other[i], other[j] = other[j], other[i]
    numbers = [str(int(word) + 1) if word.isdigit() else word for word in words]
    dressed = [f'<answer> {text} </answer>', f'the answer is {text} .', f'\\boxed{{{words[-1]}}}']
    made = [text, *cut, *without, ' '.join(other), ' '.join(numbers), *dressed]
    return [*made, text.upper(), f'{text} {text}', '', 'yes', 'no', '7', 'a', '= 12']


def said_of(verdict) -> tuple:
    return (verdict.correct, f'{verdict.score:.6g}', verdict.first_error, verdict.answer)


def facts(case: str) -> dict:
    "What is drawn and said of it, by aspect, each as a short digest."
    name, _, level = case.partition('/')
    maker = task(name, level=level)
    rng = random.Random(case)
    count = 2 if level == 'extreme' else 6
    items = [*maker.sample(count, seed=5), *maker.sample(2, seed=5, split='test')]
    shown = [maker.demonstrate(item, seed=seed) for item in items for seed in (0, 1)]
    sizes = [(item.difficulty, maker.difficulty(item), maker.chance(item)) for item in items]
    judged = []
    for item, text in zip(items, shown[::2]):
        judged += [said_of(maker.verify(item, said)) for said in variants(text, rng)]
    found = dict(
        problems=[item.data for item in items],
        keys=[maker.key(item) for item in items],
        sizes=[tuple(f'{size:.6g}' for size in row) for row in sizes],
        asked=[maker.prompt(item, style) for item in items for style in ('compact', 'text')],
        shown=shown,
        judged=judged,
    )
    return {name: digest(said) for name, said in found.items()}


def digest(said) -> str:
    return hashlib.blake2b(repr(said).encode(), digest_size=8).hexdigest()


def dials(name: str) -> dict:
    "Of every whole-number dial of a task its value if nobody sets it, the least and the largest."
    maker = task(name)
    found = {}
    for field in dataclasses.fields(maker):
        value = getattr(maker, field.name)
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        fits = [n for n in range(-3, 301) if is_accepted(maker, {field.name: n})]
        found[field.name] = [value, min(fits), max(fits)]
    return found


def is_accepted(maker, change: dict) -> bool:
    try:
        dataclasses.replace(maker, **change)
    except ValueError:
        return False
    return True


def all_facts() -> dict:
    known = {case: facts(case) for case in CASES}
    return {'drawn': known, 'dials': {name: dials(name) for name in sorted(tasks())}}


def stored() -> dict:
    return json.loads(STORED.read_text())


@pytest.mark.parametrize('case', CASES)
def test_a_seed_draws_the_same_problems_as_ever(case):
    assert facts(case) == stored()['drawn'][case]


@pytest.mark.parametrize('name', sorted(tasks()))
def test_dials_go_as_far_as_ever(name):
    assert dials(name) == stored()['dials'][name]


def test_nothing_is_stored_of_what_is_gone():
    assert set(stored()['drawn']) == set(CASES) and set(stored()['dials']) == set(tasks())


if __name__ == '__main__':
    STORED.write_text(json.dumps(all_facts(), indent=1) + '\n')
