"""Verifiers on hostile text, splits, determinism, and the tokenizer: properties that hold for every registered task."""

import importlib, inspect, itertools, json, random, re, time
from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace
import fuzz
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from fuzz import rule_of
from rl4llm.tasks import countdown as C, protocol
from rl4llm.tasks import (
    Item,
    all_solutions,
    as_task,
    canonical_steps,
    final_answer,
    first_dead_end,
    levels,
    outcomes,
    parse_literals,
    plant_clauses,
    random_sat,
    satisfying,
    saturn_difficulty,
    write_assignment,
    solvable,
    split_of,
    split_steps,
    task,
    task_of,
    tasks,
    verify_countdown,
    verify_modular,
    verify_sat,
    wrong_value,
)
from rl4llm.tasks import grade_program, lock_landscape, rewritings, verify_lock, verify_program
from rl4llm.tasks import (
    Corpus,
    all_sentences,
    blind_probabilities,
    document,
    next_segment_probabilities,
    sentences_text,
    story_answer,
    true_gain,
    wish_scores,
    wish_solutions,
)
from rl4llm.tasks import (
    SPLITS,
    Verdict,
    VerifierFailed,
    keep_task,
    same_answer,
    task_from,
    verdict_of,
)
from rl4llm.tasks.vocabulary import tiny_tokenizer, vocabulary_list

NAMES = ['countdown', 'modular', 'sat', 'sequence', 'lookup', 'path', 'program', 'lock']
NAMES += ['wishes', 'story']
CASES = [(name, level) for name in NAMES for level in levels(name)]
SLOW = [('countdown', 'extreme'), ('program', 'extreme')]  # problems take long to find
CHEAP = [case for case in CASES if case not in SLOW]
WORDS = st.sampled_from(
    [w for w in vocabulary_list() if not w.startswith('<reserved')]
    + ['\n', ';', '\r\n', '<answer>', '</answer>', '=', '٣', '−', '１', '9' * 5000]
)
SOUP = st.one_of(
    st.text(max_size=200),
    st.lists(WORDS, max_size=40).map(' '.join),
    st.text(alphabet='0123456789+-*/=; \n<>answer!abc', max_size=120),
)
quick = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def some(name, level, seed=0):
    return task(name, level).draw(random.Random(seed))


def reference(item, text):
    "A second, deliberately different reading of each task's rule: does this text answer the item?"
    if item.task in ('program', 'lock', 'wishes'):
        return rule_of(item, text).required
    tags = re.findall(r'</?answer>', text)
    if tags:
        text = (
            text.split('<answer>')[1].split('</answer>')[0]
            if tags == ['<answer>', '</answer>'] and not text.split('</answer>')[1].strip()
            else None
        )
    if text is None or len(text) > 2000:
        return False
    if item.task in ('sequence', 'lookup', 'path', 'story'):
        return rule_of(item, text).allowed
    if item.task == 'modular':
        m, x, ups = item.data
        for op, y in ups:
            x = {'+': x + y, '-': x - y, '*': x * y}[op] % m
        # whatever signs of bold type and formulas stand around it, and what it is the value of
        plain = re.sub(
            r'\*\*|__|`|\$|\\[()\[\]]|\\(boxed|text|textbf|mathbf|mathrm)\{|[}#]', '', text
        )
        return plain.rpartition('=')[2].strip('*_ \t\r\n\f\v').rstrip('. ').strip('*_ ') == str(x)
    if item.task == 'sat':
        k, clauses = item.data
        words = re.sub(r'!', ' ! ', text.replace(',', ' ')).split()
        values, sign = [], True
        for w in words:
            if w == '!' and not sign:
                return False
            if w == '!':
                sign = False
                continue
            if len(values) >= k or w != 'abcdefghijklmnopqrstuvwxyz'[len(values)]:
                return False
            values.append(sign)
            sign = True
        return (
            sign
            and len(values) == k
            and all(any((x > 0) == values[abs(x) - 1] for x in c) for c in clauses)
        )
    numbers, target, top, ops = item.data
    have = list(numbers)
    for line in text.strip().replace(';', '\n').splitlines():
        if not line.strip():
            continue
        m = re.fullmatch(r'\s*(\d+)\s*([-+*/])\s*(\d+)\s*=\s*(\d+)\s*', line, re.ASCII)
        if (
            not m
            or m[2] not in ops
            or any(len(g) > 1 and g[0] == '0' for g in (m[1], m[3], m[4]))
            or max(map(len, m.groups())) > 9
        ):
            return False
        a, b, c = int(m[1]), int(m[3]), int(m[4])
        if (
            m[2] == '/'
            and (b == 0 or c * b != a)
            or m[2] != '/'
            and eval(f'{a}{m[2]}{b}') != c
            or not 0 <= c <= top
        ):
            return False
        for x in (a, b):
            if x not in have:
                return False
            have.remove(x)
        have.append(c)
    return have == [target]


@pytest.mark.takes_turns
@pytest.mark.parametrize('name,level', CHEAP)
@quick
@given(text=SOUP)
def test_any_text_is_judged_without_raising(name, level, text):
    item, _ = some(name, level)
    verdict = task_of(item).verify(item, text)
    assert 0 <= verdict.score <= 1 and verdict.correct == (verdict.score == 1) == (
        verdict.first_error is None
    )
    assert not verdict.correct or reference(item, text)
    assert not verdict.correct or verdict.answer is not None
    assert json.loads(json.dumps(asdict(verdict)))['correct'] == verdict.correct


@pytest.mark.parametrize('name,level', CHEAP)
@quick
@given(
    seed=st.integers(0, 10**6),
    cut=st.integers(0, 80),
    swap=st.tuples(st.integers(0, 80), st.integers(0, 80)),
    word=WORDS,
    how=st.sampled_from('truncate swap repeat replace insert'.split()),
)
def test_damaged_demonstrations_are_right_only_if_the_reference_says_so(
    name, level, seed, cut, swap, word, how
):
    item, good = some(name, level, seed)
    w = good.split()
    i, j, cut = swap[0] % len(w), swap[1] % len(w), cut % len(w)
    if how == 'truncate':
        w = w[:cut]
    if how == 'swap':
        w[i], w[j] = w[j], w[i]
    if how == 'repeat':
        w = w + [';'] + w[cut:]
    if how == 'replace':
        w[i] = word
    if how == 'insert':
        w.insert(i, word)
    text = ' '.join(w)
    verdict = task_of(item).verify(item, text)
    assert not verdict.correct or reference(item, text)
    # a doubled or dangling separator is a fault for the verifier and layout for the reference;
    # everywhere else they agree
    # one star beside a number makes nothing bold, which the reference does not look at
    stars = '*' in text.rpartition('<answer>')[2]
    if name in ('sequence', 'lookup', 'path', 'story'):
        # signs of a formula may stand around an answer: more is allowed than is required
        assert verdict.correct or not rule_of(item, text).required
    if name == 'modular' and not stars or name == 'sat' and ',' not in text:
        assert verdict.correct == reference(item, text)
    if name == 'countdown' and how in ('swap', 'truncate') and reference(item, text):
        assert (
            verdict.correct or not re.search(r'\d$', text) or '; ;' in text or text.startswith(';')
        )


@pytest.mark.parametrize('name,level', CASES)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_right_answers_are_accepted_in_every_layout(name, level, seed):
    if level == 'extreme' and name == 'countdown':
        item, good = replace(task(name, level), rare=1).draw(random.Random(seed))
    else:
        item, good = some(name, level, seed)
    t = task_of(item)
    again = (
        t.demonstrate(item, seed=seed) if not (name == 'countdown' and level == 'extreme') else good
    )
    tagged = good if '<answer>' in good else f'<answer> {good} </answer>'
    for text in (
        good,
        again,
        f'  {good}\n',
        good.replace(' ; ', '\n'),
        good.replace(' ; ', ';'),
        good.replace(' ; ', ' ;\r\n'),
        'Let me think; 1 = 2.\n' + tagged,
        tagged + '\n',
    ):
        assert t.verify(item, text).correct and reference(item, text), text
    for text in (
        tagged + ' x',
        tagged + tagged,
        tagged.replace('</answer>', ''),
        f'<answer> {tagged} </answer>',
        '',
        '<answer></answer>',
        good + ' junk',
        good + ' ' + 'x' * 3000,
    ):
        assert not t.verify(item, text).correct, text


@pytest.mark.parametrize('name,level', CHEAP)
def test_demonstrations_draws_and_items(name, level):
    t, rng = task(name, level), random.Random(3)
    for item, completion in [t.draw(rng) for _ in range(20)]:
        assert item.task == name and t.verify(item, completion).correct and 0 < t.chance(item) <= 1
        assert item.difficulty == pytest.approx(t.difficulty(item)) and task_of(item).difficulty(
            item
        ) == pytest.approx(item.difficulty)
        assert Item(**json.loads(json.dumps(asdict(item)))) == item and hash(item)
        assert t.demonstrate(item, seed=5) == t.demonstrate(item, seed=5)
        assert '<answer>' in t.prompt(item, 'text') and '<' not in t.prompt(item, 'text').replace(
            '<answer>', ''
        ).replace('</answer>', '')


@pytest.mark.takes_turns
@pytest.mark.parametrize('name,level', CHEAP)
def test_samples_are_distinct_deterministic_and_split(name, level):
    t, n = task(name, level), 20
    found = {split: t.sample(n, seed=7, split=split) for split in ('train', 'valid', 'test')}
    for split, items in found.items():
        assert len({i.key for i in items}) == n and all(split_of(i.key) == split for i in items)
    assert found['test'] == t.sample(n, seed=7, split='test') and found['test'] != t.sample(
        n, seed=8, split='test'
    )
    assert t.sample(5, seed=7, split='test') == found['test'][:5] and t.sample(0, seed=1) == []


DIALS = ['sequence', 'lookup', 'path', 'program', 'lock', 'calculator', 'knowledge', 'key_door']
DIALS += ['form', 'bandit', 'wishes', 'story']


@pytest.mark.parametrize('name', DIALS)
def test_dials_take_whole_numbers_of_any_kind_and_nothing_else(name):
    standard = task(name)
    for dial, value in vars(standard).items():
        if not isinstance(value, int):
            continue
        for wrong in (True, False, None, '3', 2.5, float('nan'), -1, 10**9, [3], np.array([3])):
            with pytest.raises(ValueError, match=f'{name}: {dial} is a whole number from'):
                replace(standard, **{dial: wrong})
        given = task(name, **{dial: np.int64(value)})
        assert repr(given) == repr(standard)
        item, _ = replace(standard, **{dial: np.int64(value)}).draw(random.Random(0))
        assert json.loads(json.dumps(asdict(item))) and item == standard.draw(random.Random(0))[0]


def test_dials_that_make_no_problems_are_refused_at_once():
    for arms in (0, 1, 6, None, '3'):
        with pytest.raises(ValueError, match='bandit: arms is a whole number from 2 to 5'):
            task('bandit', arms=arms)
    with pytest.raises(ValueError, match='program: length 4 makes no problems'):
        task('program', length=4)
    for thinking in (-0.1, 1.1, float('nan'), None, 'x', [0.5], True):
        with pytest.raises(ValueError, match='path: thinking is a share from 0 to 1'):
            task('path', thinking=thinking)


def test_prompts_have_two_styles():
    for name in tasks():
        item, _ = task(name).draw(random.Random(0))
        assert item.prompt('compact') != item.prompt('text')
        for style in ('Compact', 'prose', '', 0):
            with pytest.raises(ValueError, match="the style of a prompt is 'compact' or 'text'"):
                item.prompt(style)


def test_splits_have_the_stated_shares():
    shares = [split_of(f'countdown|{i}') for i in range(10_000)]
    assert [shares.count(s) / 10_000 for s in ('test', 'valid', 'train')] == pytest.approx(
        [0.1, 0.1, 0.8], abs=0.01
    )


def test_a_search_in_vain_ends(monkeypatch):
    proposed = []
    monkeypatch.setattr(C, '_propose_countdown', lambda dial, rng: proposed.append(dial))
    monkeypatch.setattr(C, '_is_wanted', lambda dial, item: False)
    with pytest.raises(ValueError, match='no such problem turned up'):
        C.Countdown(rare=2).draw(random.Random(0))
    assert len(proposed) == 100_000


@given(st.permutations([3, 7, 9, 12]))
def test_countdown_order_does_not_change_the_identity(numbers):
    assert (
        Item('countdown', (tuple(numbers), 35, 99, '+-*')).key
        == Item('countdown', ((3, 7, 9, 12), 35, 50, '+-')).key
        == 'countdown|3 7 9 12|35'
    )


@given(st.randoms())
def test_sat_order_does_not_change_the_identity(rng):
    item, _ = some('sat', 'standard')
    clauses = [list(c) for c in item.data[1]]
    for c in clauses:
        rng.shuffle(c)
    rng.shuffle(clauses)
    assert Item('sat', (item.data[0], clauses + clauses[:2])).key == item.key


def test_modular_identity_ignores_the_sign_of_writing():
    a, b = (
        Item('modular', (13, 5, (('-', 4), ('*', 3)))),
        Item('modular', (13, 18, (('+', 9), ('*', 16)))),
    )
    assert a.key == b.key and a.key != Item('modular', (13, 5, (('*', 3), ('-', 4)))).key


def every_way_on(shown, count, rules):
    "How sequences with these terms go on in the family, by trying all numbers of all rules."
    steps = range(-99, 100)
    mods = (10, 11, 13, 20, 50)
    mixed = [(a, b) for a in range(1, 5) for b in range(1, 5) if (a, b) != (1, 1)]
    kinds = [
        lambda x: [x[-1] + d for d in steps if all(b - a == d for a, b in zip(x, x[1:]))],
        lambda x: [x[-2] + (x[1] - x[0] + x[2] - x[1])] * (x[2:] == tuple(
            a + x[2] - x[0] for a in x[: len(x) - 2])),
        lambda x: [x[-1] + d for d in steps if len({c - 2 * b + a for a, b, c in zip(
            x, x[1:], (*x[2:], x[-1] + d))}) == 1],
        lambda x: [(x[-2] + x[-1]) % m for m in mods if all(
            (a + b) % m == c for a, b, c in zip(x, x[1:], x[2:]))],
        lambda x: {(a * x[-1] + b) % m for m in mods for a in range(2, 10) for b in range(m) if all(
            (a * p + b) % m == q for p, q in zip(x, x[1:]))},
        lambda x: [x[-2] + x[-2] - x[-4]] * all(
            len({b - a for a, b in zip(y, y[1:])}) == 1 for y in (x[0::2], x[1::2])),
        lambda x: {(a * x[-1] + b * x[-2]) % m for m in mods for a, b in mixed if all(
            (a * q + b * p) % m == r for p, q, r in zip(x, x[1:], x[2:]))},
    ]  # fmt: skip
    ways = set()
    for way_on in kinds[:rules]:
        found = {shown}
        for _ in range(count):
            found = {(*x, y) for x in found for y in way_on(x)}
        ways |= {x[len(shown) :] for x in found}
    return ways


@pytest.mark.parametrize('level', levels('sequence'))
def test_the_shown_terms_of_a_sequence_determine_the_asked_ones(level):
    rng = random.Random(11)
    for _ in range(25):
        item, _ = task('sequence', level).draw(rng)
        shown, asked, rules = item.data
        assert every_way_on(shown, len(asked), rules) == {asked}, item


def test_a_sequence_that_goes_on_in_two_ways_is_not_asked():
    from rl4llm.tasks.sequences import continuations

    rng, several = random.Random(3), 0
    for _ in range(150):
        shown = tuple(rng.randrange(6) for _ in range(4))
        ways = every_way_on(shown, 1, 7)
        assert ways == continuations(shown, 1), shown
        several += len(ways) > 1
    assert several > 20


def dressed(item, rng):
    "The same problem in other clothes."
    letters, nouns = list('abcdefghijklmnopqrstuvwxyz'), ['cat', 'dog', 'bird', 'tree', 'house']
    name = dict(zip(letters, rng.sample(letters, 26))) | dict(zip(nouns, rng.sample(nouns, 5)))
    if item.task == 'sequence':
        terms, cut = item.data[0] + item.data[1], rng.randint(4, 6)
        return Item('sequence', (terms[:cut], terms[cut:] or (1,), rng.randint(1, 7)))
    if item.task == 'path':
        _, edges, start, goal, limit = item.data
        edges = [rng.sample([name[a], name[b]], 2) for a, b in edges]
        ends = rng.sample([name[start], name[goal]], 2)
        return Item('path', (0, rng.sample(edges, len(edges)), *ends, limit + rng.randrange(3)))
    columns, rows, (verb, about, column, number) = item.data
    order = rng.sample(range(len(columns)), len(columns))
    new = dict(zip(columns, rng.sample(['red', 'blue', 'green', 'happy', 'sad', 'good'], 6)))
    rows = [(name[a], name[b], name[c], [x[i] for i in order]) for a, b, c, x in rows]
    query = (verb, name[about], new[column], number)
    return Item('lookup', ([new[columns[i]] for i in order], rng.sample(rows, len(rows)), query))


@pytest.mark.parametrize('name', ['sequence', 'lookup', 'path'])
def test_a_problem_in_other_clothes_is_in_the_same_split(name):
    rng = random.Random(5)
    for level, made in levels(name).items():
        drawn = [made.draw(rng)[0] for _ in range(60)]
        for item in drawn[:15]:
            again = [dressed(item, rng) for _ in range(6)]
            assert {other.key for other in again} == {item.key}, (level, item)
            assert {split_of(other.key) for other in again} == {split_of(item.key)}
            assert name == 'sequence' or any(other.data != item.data for other in again)
        different = len({item.key for item in drawn})
        assert different > 40, (level, different)  # and what is not the same is not thrown together


@pytest.mark.parametrize('limit', [0, 3, 4])
def test_the_first_error_of_a_path_is_where_nothing_can_be_saved(limit):
    rng = random.Random(limit)
    for _ in range(6):
        made, _ = task('path', nodes=5, loops=rng.randrange(3), slack=1).draw(rng)
        _, edges, start, goal, _ = made.data
        item = Item('path', (0, edges, start, goal, limit))
        nodes = sorted({a for edge in edges for a in edge})
        tried = [p for n in range(1, 6) for p in itertools.product(nodes, repeat=n)]
        right = [p for p in tried if fuzz.rule_of(item, ' '.join(p)).required]
        begun = {p[:i] for p in right for i in range(len(p) + 1)}
        for path in rng.sample(tried, 400) + right:
            verdict = task_of(item).verify(item, ' -> '.join(path))
            at = verdict.first_error
            assert verdict.correct == (path in right)
            if right and not verdict.correct:
                assert path[:at] in begun and (at == len(path) or path[: at + 1] not in begun)


def test_demonstrations_of_paths_search_as_often_as_the_dial_says():
    rng = random.Random(0)
    for share in (0, 0.5, 1):
        made = task('path', thinking=share)
        texts = [made.draw(rng)[1] for _ in range(100)]
        assert abs(sum('<think>' in text for text in texts) / 100 - share) < 0.2
        assert share == 0 or any('<backtrack>' in text for text in texts)
    with pytest.raises(ValueError, match='thinking is a share from 0 to 1, not 1.5'):
        task('path', thinking=1.5)


@given(st.integers(0, 10**6), st.randoms())
@settings(max_examples=40, deadline=None)
def test_a_program_keeps_its_split_however_it_is_written(seed, rng):
    dial = task('program', inputs=1 + seed % 2, length=5)
    item, completion = dial.draw(random.Random(seed))
    names, known, shown = item.data
    swapped = known.translate(str.maketrans('xy', 'yx'))
    others = [verify_program(item, completion).answer]
    others += map(' '.join, rewritings(tuple(known.split())))
    others += [f'{known} d + {known} -', f'0 {known} +']
    points = [rng.sample(list(itertools.product(range(10), repeat=len(names))), 3) for _ in others]
    again = [Item('program', (names, text, some)) for text, some in zip(others, points)]
    if len(names) == 1:
        again += [Item('program', ('xy', f'{known} y 0 * +', ((1, 2),)))]
        again += [Item('program', ('xy', f'{swapped} x 0 * +', ((1, 2),)))]
    else:
        again += [Item('program', ('xy', swapped, shown))]
    assert {other.key for other in again} == {item.key}


@given(st.integers(0, 10**6), st.integers(0, 5), st.integers(10, 99))
@settings(max_examples=40, deadline=None)
def test_a_lock_keeps_its_split_on_another_ring(seed, turn, lure):
    item, _ = task('lock', letters=4, depth=5).draw(random.Random(seed))
    ring, plate, _ = item.data
    turned = ring[turn % 4 :] + ring[: turn % 4]
    assert Item('lock', (turned, plate, lure)).key == item.key
    for place, letter in enumerate(turned):
        if letter not in plate and turned[place - 1] not in plate:
            shorter = turned.replace(letter, '')
            assert Item('lock', (shorter, plate, lure)).key == item.key


def test_the_scores_of_a_lock_are_those_of_its_verdicts():
    for depth, letters, lure in ((1, 2, 10), (2, 5, 99), (3, 3, 60)):
        item, code = task('lock', depth=depth, letters=letters, lure=lure).draw(random.Random(3))
        landscape = lock_landscape(item)
        verdicts = {answer: verify_lock(item, ' '.join(answer)) for answer, _ in landscape}
        assert len(verdicts) == letters**depth
        assert [verdicts[answer].score for answer, _ in landscape] == [s for _, s in landscape]
        assert [a for a, v in verdicts.items() if v.correct] == [code.replace(' ', '')]
        clicks = sorted({round(v.score, 9) for v in verdicts.values() if not v.correct})
        steps = [0.1 + (lure / 100 - 0.1) * n / depth for n in range(depth + 1)]
        assert clicks == sorted({round(step, 9) for step in steps}) and clicks[0] > 0


def told_otherwise(item, rng):
    "The same wishes in another order, some of them twice, with some that follow from them."
    count, wishes = item.data
    more = [('mention', rng.choice(wish[1:])) for wish in wishes if wish[0] == 'before']
    more += [('words', 0, wish[2] + rng.randrange(3)) for wish in wishes if wish[0] == 'words']
    more += [('words', rng.randrange(2 * count), 99), rng.choice(wishes)]
    return Item('wishes', (count, rng.sample([*wishes, *more], len(wishes) + len(more))))


@pytest.mark.parametrize('level', levels('wishes'))
def test_wishes_keep_their_split_however_they_are_told(level):
    rng = random.Random(3)
    items = [task('wishes', level).draw(rng)[0] for _ in range(25)]
    for item in items:
        for _ in range(4):
            other = told_otherwise(item, rng)
            assert other.key == item.key
            assert wish_solutions(other).count == wish_solutions(item).count
    assert len({item.key for item in items}) > 20


@pytest.mark.parametrize('level', levels('wishes'))
def test_every_wish_is_scored_as_the_second_verifier_says(level):
    rng = random.Random(4)
    for _ in range(60):
        item, good = task('wishes', level).draw(rng)
        lines = rng.choices(all_sentences(), k=item.data[0])
        text = rng.choice([good, sentences_text(lines), sentences_text(lines[::-1])])
        form, *scores = wish_scores(item, text).values()
        told = fuzz.sentences_in(text)
        wanted = [fuzz.wish_holds([x for x in wish if x != ''], told) for wish in item.data[1]]
        assert form == 1 and scores == wanted
        verdict = task_of(item).verify(item, text)
        assert verdict.score == sum(wanted) / len(wanted)
        assert verdict.first_error == (None if all(wanted) else wanted.index(False) + 1)


def test_the_chance_of_wishes_is_the_share_of_random_texts():
    rng = random.Random(5)
    for count in (1, 2, 3):
        texts = [sentences_text(rng.choices(all_sentences(), k=count)) for _ in range(1500)]
        if count == 1:
            texts = [sentences_text([words]) for words in all_sentences()]
        made = task('wishes', wishes=2, sentences=count, kinds=7, slack=3)
        items = [i for i in (made.draw(rng)[0] for _ in range(12)) if i.data[0] == count]
        for item in items:
            share = sum(fuzz.wishes_rule(item, text).required for text in texts) / len(texts)
            p = made.chance(item)
            error = 0 if count == 1 else 4.5 * (p * (1 - p) / len(texts)) ** 0.5
            assert abs(share - p) <= error + 1e-12, item


def test_wishes_against_one_another_have_no_solution():
    for wishes in (
        [('mention', 'cat'), ('avoid', 'cat')],
        [('before', 'cat', 'dog'), ('before', 'dog', 'cat')],
        [('words', 3, 2)],
        [('mood', 'happy'), ('mood', 'sad')],
    ):
        item = Item('wishes', (2, wishes))
        assert task_of(item).chance(item) == wish_solutions(item).count == 0
        with pytest.raises(ValueError, match='no text fulfils all of these wishes'):
            task_of(item).demonstrate(item, seed=0)
    with pytest.raises(ValueError, match="a wish is one of avoid, .* not 'cat'"):
        task_of(item).verify(Item('wishes', (2, (('cat', 'mention'),))), 'b runs .')


def retold(item, rng):
    "The same story with asides, its facts in another order, and told about in other words."
    *story, cue = item.data
    places = story_answer(item).because
    facts = [s for s in story if ' with ' in s]
    if not facts:  # a row, from the other end of the question
        one, _, other = cue.split()
        pairs = [(s.split()[0], s.split()[1], s.split()[3]) for s in story if ' of ' in s]
        turn = {'left': 'right', 'right': 'left'}
        told = [f'{b} {turn[side]} of {a}' for a, side, b in pairs]
        return Item('story', (*told, 'the cat is sad', f'{other} ? {one}'))
    rest = [s for s in story if s not in facts and not s.startswith('the ')]
    swapped = [' and '.join(s.split(' and ')[::-1]) for s in rest]
    more = rng.sample(['the cat is sad', 'the house is red'], 2)
    assert min(places) < len(facts)
    return Item('story', (*rng.sample(facts, len(facts)), *more, *swapped, cue))


@pytest.mark.parametrize('level', levels('story'))
def test_a_story_keeps_its_split_however_it_is_told(level):
    rng = random.Random(6)
    items = [task('story', level).draw(rng)[0] for _ in range(40)]
    for item in items:
        other = retold(item, rng)
        assert other.key == item.key
        if ' ? ' not in item.data[-1]:
            assert story_answer(other).segment == story_answer(item).segment
    assert len({item.key for item in items}) > 30


@pytest.mark.parametrize('plan', [(2, 0, 1, 0), (3, 3, 2, 20), (5, 8, 2, 50), (4, 2, 8, 100)])
def test_documents_are_drawn_with_the_stated_probabilities(plan):
    rng, corpus = random.Random(7), Corpus(*plan)
    for _ in range(12):
        made = document(rng, corpus)
        assert len(made.segments) == plan[0] + plan[2] * (plan[1] + 2)
        for place in range(len(made.segments) + 1):
            begun = made.segments[:place]
            known = next_segment_probabilities(begun, corpus)
            blind = blind_probabilities(begun, corpus)
            assert sum(known.values()) == pytest.approx(1) == pytest.approx(sum(blind.values()))
            if place == len(made.segments):
                assert known == {'<eos>': 1.0}
                continue
            segment, because = made.segments[place], made.because[place]
            gain = true_gain(begun, segment, corpus)
            if not because:
                assert known == blind and gain == 0 and segment in known
                continue
            assert known == {segment: 1.0} and max(because) == place - 1
            assert gain == pytest.approx(np.log(len(blind)))
            told = [s for s in begun[:-1] if '?' not in s]
            assert segment in fuzz.story_sayings(Item('story', (*told, begun[-1])))
            if ' of ' in segment:  # what it hangs on is enough
                needed = tuple(made.segments[i] for i in because)
                assert segment in fuzz.story_sayings(Item('story', needed))
    with pytest.raises(ValueError, match="has 'b runs' at place 0"):
        next_segment_probabilities(['b runs'], corpus)


def test_marks_of_programs_are_apart():
    item, _ = task('program', 'standard').draw(random.Random(0))
    known = item.data[1]
    marks = {text: grade_program(item, text) for text in (known, known + ' 0 +', '7', 'x +', '')}
    assert marks[known] == (1, 1, 1, 1, 1)
    assert marks[known + ' 0 +'][:4] == (1, 1, 1, 1) and 0 < marks[known + ' 0 +'].quality < 1
    assert marks['7'].syntax == 1 and marks['7'].quality == 0 and marks['x +'][1:] == (0, 0, 0, 0)
    assert 0 < marks['x +'].syntax < 1 and marks[''].syntax == 0


HAND = Item('countdown', ((3, 4, 7, 9), 14, 99, '+-*'))


@pytest.mark.parametrize(
    'text,score,first,why',
    [
        ('3 + 4 = 7 ; 7 + 7 = 14 ; 14 = 14', 2 / 4, 2, 'step 2'),
        ('3 + 4 = 7 ; 7 = 7', 1 / 4, 1, 'step 1'),
        ('3 + 4 = 7 ; 3 + 7 = 10', 1 / 4, 1, 'step 1'),
        ('3 + 4 = 07', 0, 0, 'step 0'),
        ('03 + 4 = 7', 0, 0, 'step 0'),
        ('--3 + 4 = 1', 0, 0, 'step 0'),
        ('+3 + 4 = 7', 0, 0, 'step 0'),
        ('3 - 4 = -1', 0, 0, 'step 0'),
        ('3 + 4 = 7', 1 / 4, 1, 'missing'),
        ('', 0, 0, 'step 0'),
        ('9 - 7 = 2 ; 2 + 4 = 6 ; 6 + 3 = 9', 3 / 4, 2, 'ends in 9'),
        ('3 + 4 = 8', 0, 0, 'step 0'),
        ('4 / 4 = 1', 0, 0, 'step 0'),
        ('3 + 4 = 7 ; ', 1 / 4, 1, 'step 1'),
        ('3 + 4 = ٧', 0, 0, 'step 0'),
        ('9' * 1900 + ' + 4 = 7', 0, 0, 'step 0'),
        ('9' * 9999, 0, 0, 'no readable'),
    ],
)
def test_countdown_hand_cases(text, score, first, why):
    v = verify_countdown(HAND, text)
    assert (v.correct, v.score, v.first_error) == (False, score, first) and why in v.reason


def test_one_border_may_stand_behind_the_last_step():
    for seed in range(20):
        item, good = some('countdown', 'easy', seed)
        for text in (f'{good} ;', f'{good};', f'{good} ;\n', f'<answer> {good} ; </answer>'):
            assert verify_countdown(item, text) == verify_countdown(item, good), text
        for text in (f'{good} ; ;', f'; {good}', f'{good} ; x', f'{good} ;.'):
            assert not verify_countdown(item, text).correct, text


def test_countdown_extra_steps_and_dead_ends():
    item = Item('countdown', ((1, 2, 3), 6, 99, '+-*'))
    good = '1 + 2 = 3 ; 3 + 3 = 6'
    assert (
        verify_countdown(item, good).correct
        and verify_countdown(item, good + ' ; 6 = 6').first_error == 2
        and first_dead_end(item, good) is None
    )
    assert first_dead_end(HAND, '3 + 4 = 7 ; 7 + 7 = 14 ; 14 + 9 = 23') == 1 and not solvable(
        (9, 14), 14
    )
    assert (
        first_dead_end(item, '2 - 1 = 1 ; 1 + 3 = 4') == 0
        and first_dead_end(item, '2 - 1 = 2') == 0
    )


def brute(numbers, ops, top):
    "Every canonical solution of every target, by permuting and splitting instead of pairing."
    found = {}

    def walk(left, steps):
        if len(left) == 1:
            found.setdefault(left[0], set()).add(canonical_steps(steps))
            return
        for i, j in itertools.permutations(range(len(left)), 2):
            a, b = left[i], left[j]
            rest = [x for m, x in enumerate(left) if m not in (i, j)]
            for op, c in (
                ('+', a + b),
                ('-', a - b),
                ('*', a * b),
                ('/', a // b if b and a % b == 0 else -1),
            ):
                if op in ops and 0 <= c <= top:
                    walk([*rest, c], [*steps, (a, op, b, c)])

    walk(list(numbers), [])
    return found


@settings(max_examples=25, deadline=None)
@given(
    numbers=st.lists(st.integers(0, 13), min_size=2, max_size=4),
    ops=st.sampled_from(['+-*', '+-*/', '-', '*+']),
    top=st.sampled_from([20, 99]),
)
def test_outcomes_and_solutions_are_exhaustive(numbers, ops, top):
    want, numbers = brute(numbers, ops, top), tuple(sorted(numbers))
    got = outcomes(numbers, ops, top)
    assert set(got) == set(want) and sum(got.values()) <= 1 + 1e-9
    for target in range(0, top + 1, 7):
        item = Item('countdown', (numbers, target, top, ops))
        assert all_solutions(item) == want.get(target, set()) and solvable(
            numbers, target, ops=ops, max_value=top
        ) == (target in want)
        assert all(verify_countdown(item, s).answer == s for s in all_solutions(item))


def test_solutions_written_out_are_right_in_some_order():
    item = task('countdown', rare=50).sample(1, seed=0)[0]
    for solution in all_solutions(item):
        assert any(
            verify_countdown(item, ' ; '.join(p)).correct
            for p in itertools.permutations(solution.split(' ; '))
        )


def test_chance_is_the_success_rate_of_random_play():
    item, rng = task('countdown', 'easy').draw(random.Random(1))[0], random.Random(0)
    plays = [C.play_random(item.data[0], rng)[-1][3] == item.data[1] for _ in range(4000)]
    assert sum(plays) / 4000 == pytest.approx(task_of(item).chance(item), abs=0.03)


def test_demonstrations_vary():
    for name in ('countdown', 'sat'):
        item = next(i for i in task(name, 'easy').sample(20, seed=0) if task(name).chance(i) > 0.1)
        assert len({task(name).demonstrate(item, seed=s) for s in range(30)}) > 1


def test_rare_problems_are_rare():
    t = task('countdown', numbers=4, rare=300)
    assert all(0 < t.chance(i) <= 1 / 300 for i in t.sample(10, seed=0))


def test_modular_steps_and_answer_are_told_apart():
    item = Item('modular', (13, 5, (('+', 7), ('*', 3), ('-', 4))))
    good = '12 ; 10 ; 6 <answer> 6 </answer>'
    assert (
        task('modular').demonstrate(item, seed=0) == good
        and verify_modular(item, good).correct
        and wrong_value(item, good) is None
    )
    lucky = verify_modular(item, '12 ; 11 ; 6 <answer> 6 </answer>')
    assert lucky.correct and wrong_value(item, '12 ; 11 ; 6 <answer> 6 </answer>') == 1
    slip = verify_modular(item, '12 ; 10 ; 6 <answer> 7 </answer>')
    assert (slip.correct, slip.score, slip.first_error, slip.answer) == (False, 3 / 4, 3, '7')
    for wrong in ('06', '6.0', '+6', '--6', '٦', '19', '6 6', '6 ; 6', ''):
        assert not verify_modular(item, f'<answer> {wrong} </answer>').correct


@pytest.mark.parametrize(
    'card,want',
    [
        ((3, 5, 5), 5.63),
        ((3, 5, 6), 6.16),
        ((3, 5, 13), 8.39),
        ((3, 5, 15), 8.80),
        ((3, 5, 20), 9.63),
        ((6, 7, 40), 8.62),
        ((4, 7, 40), 11.20),
    ],
)
def test_saturn_difficulty_matches_the_paper(card, want):
    assert saturn_difficulty(*card) == pytest.approx(want, abs=0.006)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(3, 6), m=st.integers(1, 12))
def test_satisfying_is_exhaustive_and_first_error_is_a_dead_end(seed, k, m):
    rng = random.Random(seed)
    item, _ = task('sat', variables=k, clauses=min(m, 7)).draw(rng)
    good = set(satisfying(*item.data))
    assert good == {
        a
        for a in itertools.product((False, True), repeat=k)
        if all(any(a[abs(x) - 1] == (x > 0) for x in c) for c in item.data[1])
    }
    for a in itertools.product((False, True), repeat=k):
        v = verify_sat(item, write_assignment(a))
        assert v.correct == (a in good)
        if not v.correct:
            assert not any(g[: v.first_error + 1] == a[: v.first_error + 1] for g in good) and any(
                g[: v.first_error] == a[: v.first_error] for g in good
            )


def test_literal_layouts():
    for text in ('a ! b c', 'a !b c', 'a, !b, c', 'a\n! b\nc', 'a!b c'):
        assert parse_literals(text) == (1, -2, 3), text
    blanks = [chr(i) for i in range(0x10000) if chr(i).isspace()]
    assert len(blanks) > 20 and '\x85' in blanks and '\xa0' in blanks and '\x1c' in blanks
    for blank in blanks:
        for text in ('a{0}!{0}b{0}c', 'a,{0}! b{0},c', 'a{0}{0}!b c{0}'):
            assert parse_literals(text.format(blank)) == (1, -2, 3), blank
    for text in ('a b,', 'a !', '! ! a', 'a ab', 'A b', 'a;b', 'а b'):
        assert parse_literals(text) is None, text


@pytest.mark.parametrize(
    'text',
    [
        ' ' * 1990 + 'x',
        '\n' * 1990 + 'x',
        '! ' * 995,
        'a ' * 995 + '?',
        '3 + ' * 490,
        '; ' * 990,
        'a' * 2000,
        '!' * 2000,
        'a' + ' ' * 1990 + '?',
        ', ' * 900 + 'a',
    ],
)
def test_hostile_text_is_judged_quickly(text):
    start = time.perf_counter()
    for name in NAMES:
        item, _ = some(name, 'standard')
        for wrapped in (
            text,
            f'<answer>{text}</answer>',
            text + '<answer> 1 </answer>',
            '<answer>' * 500 + text,
        ):
            assert not task_of(item).verify(item, wrapped).correct
    assert time.perf_counter() - start < 2


LONG = 100_000
HOSTILE = {
    'double spaces': 'a  ',
    'blanks': ' ',
    'new lines': '\n',
    'white space': ' \t\r\f\v\x1c\xa0\u2003',
    'nested brackets': '([{<',
    'digits': '9',
    'signs': '+-*/=!',
    'denials': '! ',
    'separators': ' ;  , ',
    'NUL': '\0',
    'unicode digits': '٣１²',
    'opened tags': '<answer>',
    'closed tags': '</answer>',
    'pairs of tags': '<answer>  </answer>',
}


def hostile(name, kind):
    "Texts of 10^5 characters around a piece; the task's own words come from its demonstration."
    item, good = some(name, 'standard')
    piece = (
        HOSTILE.get(kind) or dict(zip(OWN, (f'{good} ; ', f'{task(name).prompt(item)}  ')))[kind]
    )
    long = (piece * LONG)[:LONG]
    short = (piece * 1980)[:1980]
    inside = short[:1900] if '<' not in piece else 'a  ' * 600
    for end in ('', '?'):
        yield item, long + end
        yield item, short + end
        yield item, f'<answer>{inside}{end}</answer>'
        yield item, f'{long}<answer>{inside}{end}</answer>'
        yield item, f'<answer>{inside}</answer>{long}{end}'
    yield item, f'{good}  {long}'


OWN = ('own words', 'own question')


@pytest.mark.parametrize('kind', [*HOSTILE, *OWN])
@pytest.mark.parametrize('name', NAMES)
def test_a_long_hostile_text_is_judged_in_two_seconds(name, kind):
    for item, text in hostile(name, kind):
        assert quickest(lambda: task_of(item).verify(item, text), 2) < 2, text[:60]
        verdict = task_of(item).verify(item, text)
        assert not verdict.correct or reference(item, text)


@pytest.mark.parametrize(
    'text,want',
    [
        ('a  ' * 33_000, 33_000),
        ('a' + ' ' * LONG + '!' + ' ' * LONG + 'b', 2),
        ('a!' * 50_000 + 'b', 50_001),
        ('a  ' * 26 + '?', None),
        ('a  ' * 33_000 + '?', None),
        (' ' * LONG, None),
        ('! ' * LONG, None),
        ('a' + ' ' * LONG + '?', None),
        ('a,' * 50_000, None),
    ],
)
def test_literals_are_read_in_linear_time(text, want):
    start = time.process_time()
    literals = parse_literals(text)
    assert time.process_time() - start < 2
    assert want == (None if literals is None else len(literals))


def readers():
    "Every function of tasks, rewards and analysis that reads a text: alone, of a problem, or beside an answer."
    from rl4llm.core.lazy import names_by_module

    found = {}
    for module, names in names_by_module().items():
        if module.split('.')[1] not in ('tasks', 'rewards', 'analysis'):
            continue
        for name in names:
            fn = getattr(importlib.import_module(module), name)
            if not inspect.isfunction(fn) or fn.__module__ != module:
                continue
            wanted = [
                p.name for p in inspect.signature(fn).parameters.values() if p.default is p.empty
            ]
            if {'text', 'said', 'completion'} & set(wanted) and set(wanted) <= {
                'text',
                'said',
                'completion',
                'item',
                'answer',
            }:
                found[f'{module}.{name}'] = (fn, wanted)
    return found


READERS = readers()


def test_the_readers_are_found():
    names = {name.rsplit('.', 1)[1] for name in READERS}
    assert {
        'final_answer',
        'split_steps',
        'parse_steps',
        'written_values',
        'parse_literals',
        'verify_countdown',
        'verify_modular',
        'verify_sat',
        'first_dead_end',
        'wrong_value',
        'said_answer',
        'plain_answer',
        'same_answer',
        'text_of',
    } <= names


@pytest.mark.parametrize(
    'said', ['**{}**', '**{}.**', '${}$', r'\boxed{{{}}}', '{}.', '= {}', 'x = {}']
)
def test_a_number_in_a_wrapping_is_the_number(said):
    "What a real model writes between its tags, for every task whose answer is a number."
    asked = task('modular', level='standard')
    for item in asked.sample(20, seed=0):
        right = asked.demonstrate(item, seed=0).rpartition('<answer>')[2].split()[0]
        for number in (right, str(int(right) + 1), right + '0', '1' + right):
            verdict = asked.verify(item, f'So it is <answer>{said.format(number)}</answer>')
            assert verdict.correct == (int(number) == int(right)), (said, number)


def quickest(call, wanted):
    "Seconds of a call; of the best of three if the first takes as many as `wanted`."
    taken = []
    while len(taken) < 3 and (not taken or taken[-1] >= wanted):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


@pytest.mark.takes_turns
@pytest.mark.parametrize('name', READERS)
def test_every_reader_is_linear(name):
    "10^5 hostile characters, plain, behind a good beginning and before a bad end: each read in a second."
    fn, wanted = READERS[name]

    def read(text, item):
        return fn(**{p: item if p == 'item' else '7' if p == 'answer' else text for p in wanted})

    def takes(item, good):
        try:
            for text in (good, '3 + 4 = 7', '<think> 3 + 4 = 7'):
                read(text, item)
        except (ValueError, TypeError, IndexError, AttributeError):
            return False  # made for problems of another task
        return True

    examples = [
        some(task_name, 'standard') for task_name in (NAMES if 'item' in wanted else NAMES[:1])
    ]
    examples = [(item, good) for item, good in examples if takes(item, good)]
    assert examples
    for (item, good), piece in itertools.product(examples, [*HOSTILE.values(), *RARE]):
        long = (piece * LONG)[:LONG]
        for text in (
            long,
            long + '?',
            good + long,
            f'{long}<answer>{long}',
            f'<answer>{long}</answer>',
        ):
            assert quickest(lambda: read(text, item), 1) < 1, (piece, text[:40])


RARE = (
    '**',
    '**7',
    '$',
    '\\(',
    '\\text{',
    '= 7 ',
    'x = ',
    '{,}',
    '7\\,000',
    '\\frac{7}{',
    '\\boxed{',
    '}',
    '####',
    '#### 7\n',
    '½',
    '7½',
    '-½',
    '⁄',
    '１/',
    'answer is ',
    '<plan>',
    '<verify> 1 ;',
    '<think> <wait> | 3 ',
    '7 = 3 + 4 ;',
    '1,',
    '1/',
    '.5',
    '- ',
    '= ',
    'a!',
    '3 + 4 = 7 ;',
    '\ufdfa',
)


@settings(max_examples=400, deadline=None)
@given(st.text(alphabet=' ;\n\t\r1a', max_size=24))
def test_steps_are_split_as_the_plain_pattern_says(text):
    assert split_steps(text) == re.split(r'\s*[;\n]\s*', text)


@pytest.mark.parametrize(
    'literals, variables, count',
    [(3, 3, 8), (3, 3, 10**9), (1, 2, 3), (4, 3, 1), (0, 3, 1), (3, 3, -1), (2, 0, 1)],
)
def test_impossible_clauses_are_refused_at_once(literals, variables, count):
    with pytest.raises(ValueError, match='wanted'):
        plant_clauses((True,) * variables, literals, count, random.Random(0))
    if variables:
        with pytest.raises(ValueError, match='wanted'):
            random_sat(literals, variables, count, random.Random(0))


def test_all_clauses_can_be_planted():
    assert len(plant_clauses((True, False, True), 2, 9, random.Random(0))) == 9


@pytest.mark.parametrize(
    'text,want',
    [
        ('x', 'x'),
        (' x \n', 'x'),
        ('a <answer> x </answer>', 'x'),
        ('<answer>x</answer>\n', 'x'),
        ('<answer> x </answer> y', None),
        ('<answer> x', None),
        ('x </answer>', None),
        ('</answer> x <answer>', None),
        ('<answer> <answer> x </answer>', None),
        ('<answer> x </answer> <answer> x </answer>', None),
        ('x' * 2001, None),
        ('y' * 5000 + '<answer> x </answer>', 'x'),
    ],
)
def test_final_answer(text, want):
    assert final_answer(text) == want


@pytest.mark.parametrize(
    'call,words',
    [
        (lambda: task('countdwn'), 'There is no task'),
        (lambda: task('countdown', 'heroic'), 'no level'),
        (lambda: task('countdown', width=3), 'no dial'),
        (lambda: task('countdown', numbers=1), 'from 2 to 8'),
        (lambda: task('countdown', numbers='4'), 'whole number'),
        (lambda: task('countdown', ops='+%'), 'ops'),
        (lambda: task('modular', length=0), 'length'),
        (lambda: task('sat', variables=30), 'variables'),
        (lambda: task('sat', variables=3, clauses=50), 'clauses'),
        (lambda: task('countdown').sample(3, seed=0, split='tst'), 'split'),
        (lambda: task('sat', variables=3, clauses=7).sample(9, seed=0), 'ask for fewer'),
    ],
)
def test_mistakes_are_explained_in_one_sentence(call, words):
    with pytest.raises(ValueError, match=words) as e:
        call()
    assert '\n' not in str(e.value)


def test_register():
    assert set(NAMES) <= set(tasks()) and all('standard' in levels(n) for n in NAMES)
    assert (
        task('countdown', 'easy', numbers=5).numbers == 5
        and task('countdown') == levels('countdown')['standard']
    )


@pytest.mark.parametrize(
    'dial, low, high',
    [
        (partial(task, 'countdown', max_value=9999), 2, 8),
        (partial(task, 'countdown', high=1, low=1), 1, 9999),
        (partial(task, 'countdown', low=1), 1, 99),
        (partial(task, 'countdown', high=9), 0, 9),
        (partial(task, 'countdown'), 1, 10**6),
        (partial(task, 'modular'), 1, 200),
        (partial(task, 'modular'), 2, 999_999),
        (partial(task, 'sat', clauses=1, literals=1), 2, 12),
        (partial(task, 'sat', clauses=1), 1, 5),
        (partial(task, 'sat', variables=3), 1, 7),
        (partial(task, 'sequence'), 1, 7),
        (partial(task, 'sequence'), 4, 12),
        (partial(task, 'sequence'), 1, 6),
        (partial(task, 'sequence'), 1, 4),
        (partial(task, 'lookup', hops=0), 2, 20),
        (partial(task, 'lookup'), 1, 6),
        (partial(task, 'lookup'), 0, 5),
        (partial(task, 'lookup'), 1, 4),
        (partial(task, 'path', loops=1), 4, 20),
        (partial(task, 'path'), 0, 12),
        (partial(task, 'path'), 0, 9),
        (partial(task, 'path'), 1, 3),
        (partial(task, 'path'), 3, 5),
        (partial(task, 'wishes'), 1, 10),
        (partial(task, 'wishes'), 1, 5),
        (partial(task, 'wishes'), 1, 7),
        (partial(task, 'story'), 2, 5),
        (partial(task, 'story', distance=1), 0, 16),
        (partial(task, 'story'), 1, 5),
        (partial(task, 'story'), 0, 90),
    ],
    ids='numbers max_value high low rare length modulus variables literals clauses '
    'rules shown asked easiest rows columns hops asks nodes loops slack steps width '
    'wishes sentences kinds facts changes distance asides'.split(),
)
def test_a_dial_goes_to_its_ends_and_no_further(dial, low, high, request):
    knob = request.node.callspec.id
    for value in (low, high):
        assert getattr(dial(**{knob: value}), knob) == value
    for value in (low - 1, high + 1):
        with pytest.raises(ValueError, match=f'{knob} is a whole number from {low} to {high}'):
            dial(**{knob: value})


def test_all_four_operations_are_a_dial():
    assert task('countdown', ops='+-*/').ops == '+-*/'


def test_a_task_is_found_before_its_module_is_imported(monkeypatch):
    found = {}

    def import_them():
        found['late'] = task
        return ['late']

    monkeypatch.setattr(protocol, '_TASKS', found)
    monkeypatch.setattr(protocol, 'tasks', import_them)
    assert protocol._find('late') is task
    with pytest.raises(ValueError, match="no task 'later'"):
        protocol._find('later')


@pytest.mark.parametrize('wrong', [{}, set(), 3, [3], ['a', {}]], ids=repr)
def test_what_is_no_completion_is_refused(wrong):
    from rl4llm.rewards.verifier import text_of

    with pytest.raises(ValueError, match='a completion is .* wanted a string or a list of'):
        text_of(wrong)


def test_vocabulary_is_fixed():
    words = vocabulary_list()
    assert (
        len(words) == len(set(words)) == 256
        and words[:4] == ['<pad>', '<bos>', '<eos>', '<unk>']
        and words[4:104] == [str(i) for i in range(100)]
    )
    assert not any(re.search(r'\s', w) for w in words)


@quick
@given(st.lists(st.sampled_from(vocabulary_list()[4:]), max_size=60).map(' '.join))
def test_text_survives_the_tokenizer(text):
    tok = _tokenizer()
    assert (
        tok.decode(tok(text, add_special_tokens=False).input_ids)
        == text
        == tok.decode(tok(text).input_ids, skip_special_tokens=True)
    )
    assert tok(text).input_ids[:1] == [tok.bos_token_id]


@pytest.mark.parametrize('name', NAMES)
def test_whatever_stands_beside_an_answer_is_judged(name):
    "One end token closes a response; any other special token is part of what was said."
    import torch
    from rl4llm.core.policy import Policy

    policy = Policy.load('tiny')
    item, answer = some(name, next(iter(levels(name))))
    more = ('<pad>', '<eos>', '<bos>', '<unk>')
    for said in ('{} <eos>', '{}', *(f'{{}} {word} <eos>' for word in more)):
        ids = torch.tensor(
            [policy.tokenizer(said.format(answer), add_special_tokens=False).input_ids]
        )
        text = policy.decode(ids, torch.ones_like(ids, dtype=torch.bool))[0]
        assert verdict_of(item, text).correct == (said in ('{} <eos>', '{}')), (said, text)


def test_every_compact_text_is_inside_the_vocabulary(tmp_path):
    from transformers import AutoTokenizer

    _tokenizer().save_pretrained(tmp_path)
    tok = AutoTokenizer.from_pretrained(tmp_path)
    for name, level in CHEAP:
        item, completion = some(name, level)
        ids = tok(f'{task(name).prompt(item)} {completion}').input_ids
        assert (
            tok.unk_token_id not in ids
            and len(ids) < 250
            and ids == _tokenizer()(f'{task(name).prompt(item)} {completion}').input_ids
        )
    assert len(tok) == 256 and (
        tok.pad_token_id,
        tok.bos_token_id,
        tok.eos_token_id,
        tok.unk_token_id,
    ) == (0, 1, 2, 3)


def _tokenizer(memo=[]):
    if not memo:
        memo.append(tiny_tokenizer())
    return memo[0]


def test_the_samplers_default_room_fits_every_demonstration():
    from rl4llm.core.sampling import ROOM
    from rl4llm.tasks import levels, tasks

    for name in tasks():
        for level, t in levels(name).items():
            for item in t.sample(5, seed=0):
                room = t.room(item) if hasattr(t, 'room') else ROOM  # an environment has its own
                assert len(t.demonstrate(item, seed=0).split()) + 1 <= room, (name, level)


# rows of one's own

ROWS = [{'question': f'What is {a} + {b}?', 'answer': a + b} for a in range(12) for b in range(12)]


def test_own_rows_from_everywhere_are_one_task(tmp_path):
    import pandas as pd

    datasets = pytest.importorskip('datasets')
    path = tmp_path / 'rows.jsonl'
    path.write_text('\n'.join(map(json.dumps, ROWS)) + '\n\n')
    wanted = task_from(ROWS, name='a')
    for rows in (
        tuple(ROWS),
        iter(ROWS),
        path,
        str(path),
        pd.DataFrame(ROWS),
        datasets.Dataset.from_list(ROWS),
    ):
        made = task_from(rows, name='a')
        assert repr(made) == repr(wanted) and made.parts == wanted.parts
    named = [dict(problem=r['question'], solution=f"thinking\n#### {r['answer']}") for r in ROWS]
    assert [i.data[0] for i in task_from(named, 'problem', 'solution').parts['test']] == [
        i.data[0] for i in wanted.parts['test']
    ]


def test_own_data_keep_the_promises_of_a_task():
    made = task_from(ROWS, name='promises')
    keys = {split: [i.key for i in made.parts[split]] for split in SPLITS}
    assert sum(map(len, keys.values())) == len(
        {k for found in keys.values() for k in found}
    ) == len(ROWS) and all(split_of(k) == split for split in SPLITS for k in keys[split])
    assert len(keys['train']) > 5 * len(keys['test']) > 0
    for split in SPLITS:
        drawn = made.sample(5, seed=3, split=split)
        assert (
            drawn == made.sample(len(keys[split]), seed=3, split=split)[:5]
            and len(set(drawn)) == 5
            and {i.key for i in drawn} <= set(keys[split])
        )
    assert made.sample(5, seed=3) != made.sample(5, seed=4)
    item = made.sample(1, seed=0)[0]
    assert (
        Item(**json.loads(json.dumps(asdict(item)))).key == item.key
        and task('promises') is task_of(item) is made
        and levels('promises') == {}
    )
    for i in made.sample(20, seed=0):
        v = made.verify(i, made.demonstrate(i, seed=0))
        assert v.correct and v.score == 1 and v.first_error is None and v.answer == str(i.data[1])
        v = made.verify(i, 'no idea')
        assert not v.correct and v.score < 1 and v.first_error == 0


def test_own_splits_are_kept_and_share_no_question():
    made = task_from(
        {'train': ROWS, 'validation': ROWS[:10], 'test': ROWS[5:20] + ROWS[5:7]}, name='split'
    )
    assert {split: len(items) for split, items in made.parts.items()} == dict(
        train=len(ROWS) - 20, valid=5, test=15
    )
    assert [i.data[1] for i in made.parts['test']] == [r['answer'] for r in ROWS[5:20]]


@settings(max_examples=200, deadline=None)
@given(SOUP)
def test_the_verifier_of_own_data_never_fails(text):
    made = task_from(ROWS, name='soup')
    v = made.verify(made.parts['test'][0], text)
    assert (v.score == 1) == v.correct == (v.first_error is None)


@pytest.mark.parametrize(
    'text, answer, right',
    [
        ('42', 42, True),
        ('42.0', 42, True),
        ('The answer is: 42.', 42, True),
        ('It is 41 or 42', 42, False),
        ('x <answer> 42 </answer>', '42', True),
        ('<answer>42</answer> <answer>41</answer>', 42, False),
        ('<answer> 42', 42, False),
        (r'\boxed{41} no, \boxed{42}', 42, True),
        (r'so \boxed{\frac{1}{2}}', r'We get $\boxed{\frac{1}{2}}$.', True),
        ('#### 1,200', 'long\n#### 1200', True),
        ('#### Adding\n3 + 4\nThe answer is 7', 7, True),
        ('#### 7\nNo, it is 8', 7, False),
        ('#### 8\n#### 7\n', 7, True),
        ('#### Final answer: 7', 7, True),
        ('½', 0.5, True),
        ('2½', 2.5, True),
        ('-½', '-1/2', True),
        ('2 1/2', 2.5, True),
        ('２½', 2.5, True),
        ('½2', '1/22', False),
        ('5.½', '5.1/2', False),
        ('1⁄2', 0.5, True),
        ('½%', 0.5, True),
        ('3 5/2', 5.5, False),
        ('½½', 0.25, False),
        ('½ cup', '1/2 cup', True),
        ('10²', 102, False),
        ('- 5', 5, False),
        ('$1,200.00', 1200, True),
        ('12,00', 1200, False),
        ('0.5', '1/2', True),
        ('1/3', 0.3333, False),
        ('1/0', '1/0', True),
        ('1/0', 7, False),
        ('−7', -7, True),
        ('50%', 50, True),
        ('$5', '5%', False),
        ('€5', '$5', False),
        ('€5', '€5.00', True),
        ('€5', ('$5', '£5', 5), True),
        ('£5', ('$5', '€5'), False),
        ('＄5', '$5', True),
        ('$5$', '€5', True),
        ('50%', 0.5, False),
        ('paris', 'Paris.', True),
        ('Paris is in France', 'Paris', False),
        ('new  york', ('NYC', 'New York'), True),
        ('4' * 3000, 4, False),
        ('9' * 1000, '9' * 1000, True),
        ('1e3', 1000, True),
        ('４２', 42, True),
        ('', 0, False),
        ('True', True, True),
        ('A', 'a', True),
        ('(A)', 'B', False),
        ('3 + 4\n**7**', 7, True),
        ('**7**.', 7, True),
        ('**7.**', 7, True),
        ('The answer is **7**.', 7, True),
        ('**The answer is 7**', 7, True),
        ('**The answer is 7.**', 7, True),
        ('**Answer:** 7', 7, True),
        ('**Answer: 7**', 7, True),
        ('**Final answer:** $7$', 7, True),
        ('**Final answer:** **7**', 7, True),
        ('#### **7**', 7, True),
        ('### 7', 7, True),
        ('*7*', 7, True),
        ('__7__', 7, True),
        ('`7`', 7, True),
        ('$$7$$', 7, True),
        (r'\(7\)', 7, True),
        (r'\[ x = 7 \]', 7, True),
        (r'$\boxed{7}$.', 7, True),
        (r'\boxed{\text{7}}', 7, True),
        (r'\boxed{\mathbf{7}.}', 7, True),
        ('= 7', 7, True),
        ('x = 7.', 7, True),
        ('3 + 4 = 7', 7, True),
        (r'3 \times 4 = 12', 12, True),
        ('2*3 + 1 = 6 + 1 = 7', 7, True),
        ('<answer>**7**</answer>', 7, True),
        ('<answer> x = 7. </answer>', 7, True),
        ('**7,000**', 7000, True),
        ('$7{,}000$', 7000, True),
        (r'\boxed{7\,000}', 7000, True),
        (r'\boxed{\$7,000}', 7000, True),
        ('**$7,000**', 7000, True),
        ('**$7,000**', '€7,000', False),
        ('7\u202f000', 7000, True),
        ('7 000', 7000, False),
        (r'7\%', '7%', True),
        (r'\boxed{-\tfrac{1}{2}}', '-1/2', True),
        (r'$2\frac{1}{2}$', 2.5, True),
        (r'\frac{1}{0}', 1, False),
        ('**Paris**', 'Paris', True),
        ('**Paris.**', 'Paris', True),
        ('**7** or **8**', 8, False),
        ('**7** or **8**', 7, False),
        ('x = 3 or x = 7', 7, False),
        ('x = 3, y = 7', 7, False),
        ('2x = 7', 7, False),
        ('-x = 7', 7, False),
        ('x >= 7', 7, False),
        ('x != 7', 7, False),
        ('2 ** 7', 7, False),
        ('2**7', 27, False),
        ('2**3, the answer is 2**7', 27, False),
        ('7!', 7, False),
        ('~7', 7, False),
        ('**8**', 7, False),
        ('**', 0, False),
        ('$$', 0, False),
    ],
)
def test_final_answers_are_compared(text, answer, right):
    assert same_answer(text, answer) == right


def test_an_own_verifier_is_asked_with_text_and_answer():
    asked = []

    def close(text, answer):
        asked.append((text, answer))
        return 1 - min(1, abs(float(text) - answer) / 10)

    made = task_from(
        [{'q': 'x', 'a': [1, 2]}, {'q': 'y', 'a': 5}],
        'q',
        'a',
        verify=lambda text, answer: answer == (1, 2),
    )
    assert sorted(made.verify(i, '').correct for part in made.parts.values() for i in part) == [
        False,
        True,
    ]
    made = task_from([{'q': 'y', 'a': 5}], 'q', 'a', verify=close)
    item = next(i for part in made.parts.values() for i in part)
    assert (
        [made.verify(item, t).score for t in ('5', '6', '50')] == [1, 0.9, 0]
        and made.verify(item, '5').correct
        and not made.verify(item, '6').correct
        and asked[0] == ('5', 5)
    )


HOPELESS = {
    'raises': lambda text, answer: 1 / 0,
    'raises on two lines': lambda text, answer: {}['a\nb'],
    'nothing': lambda text, answer: None,
    'a text': lambda text, answer: 'yes',
    'above 1': lambda text, answer: 2,
    'no number': lambda text, answer: float('nan'),
    'huge': lambda text, answer: 10**5000,
    'complex': lambda text, answer: 1j,
    'several': lambda text, answer: [True, False],
    'bytes': lambda text, answer: b'1',
    'a score above 1': lambda text, answer: SimpleNamespace(correct=True, score=7),
    'a score that is none': lambda text, answer: SimpleNamespace(correct=True, score=None),
    'not whether it is right': lambda text, answer: SimpleNamespace(correct=None, score=1),
    'right by a half': lambda text, answer: SimpleNamespace(correct=0.5, score=1),
    'right without a score': lambda text, answer: SimpleNamespace(correct=True),
}


@pytest.mark.parametrize('kind', HOPELESS)
def test_a_verifier_that_fails_is_told_of_with_row_and_completion(kind):
    "However it is reached: by the task, the reward, the evaluation; and the cause is kept."
    from rl4llm.rewards import correct
    from rl4llm.training.evaluation import judge

    made = task_from([{'question': 'how many?', 'answer': 'seven'}], verify=HOPELESS[kind])
    item = next(i for part in made.parts.values() for i in part)
    for call in (
        lambda: made.verify(item, 'eight'),
        lambda: verdict_of(item, 'eight'),
        lambda: correct(['?'], ['eight'], item=[item]),
        lambda: judge(item, ['eight']),
    ):
        with pytest.raises(VerifierFailed) as e:
            call()
        text = str(e.value)
        assert (
            all(word in text for word in ("'how many?'", "'seven'", "'eight'"))
            and '\n' not in text
            and len(text) < 500
        )
        assert isinstance(e.value.__cause__, (ZeroDivisionError, KeyError)) == kind.startswith(
            'raises'
        )


IN_ANY_ORDER = [
    lambda text, answer: answer in text,
    lambda answer, text: answer in text,
    lambda solution, completion: solution in completion,
    lambda response, solution, exactly=False: solution in response,
    lambda *, answer, text: answer in text,
    lambda answer, *, completion, **more: answer in completion,
    lambda said, wanted: wanted in said,
    lambda said, /, wanted: wanted in said,
    lambda text, wanted, answer=None: wanted in text,
    partial(lambda answer, text, limit: answer in text[:limit], limit=9),
]


@pytest.mark.parametrize('verify', IN_ANY_ORDER)
def test_a_verifier_may_name_its_parameters_in_any_order(verify):
    made = task_from([{'question': 'q', 'answer': 'seven'}], verify=verify)
    item = next(i for part in made.parts.values() for i in part)
    assert made.verify(item, 'seven!').correct and not made.verify(item, 'seve').correct


@pytest.mark.parametrize(
    'verify',
    [
        lambda answer, wanted: True,
        lambda answer, text, /: True,
        lambda wanted, text: True,
        lambda answer, solution: True,
        lambda item, text: True,
        verify_countdown,
    ],
)
def test_a_verifier_with_a_name_at_the_place_of_another_is_refused(verify):
    with pytest.raises(ValueError, match='wanted a function of a text and an answer') as e:
        task_from(ROWS, verify=verify)
    assert 'names them (' in str(e.value) and '\n' not in str(e.value)


def test_a_verdict_of_any_kind_becomes_a_whole_one():
    made = SimpleNamespace(name='bare', levels={})
    keep_task(made, replace=True)
    for right, score in ((True, 1), (0, 0.5), (False, 0)):
        made.verify = lambda item, text: SimpleNamespace(correct=right, score=score)
        assert verdict_of(Item('bare', ('q', 1)), 'x') == Verdict(right == 1, score, *3 * [None])
    for said in (dict(correct=True, score=7), dict(correct=None, score=0), dict(correct=True)):
        made.verify = lambda item, text: SimpleNamespace(**said)
        with pytest.raises(VerifierFailed, match="'bare', asked about .* wanted a Verdict"):
            verdict_of(Item('bare', ('q', 1)), 'x')


@pytest.mark.parametrize('verify', [lambda text: True, 0, 'exact', lambda text, answer, more: True])
def test_a_verifier_that_cannot_be_called_is_refused_at_once(verify):
    with pytest.raises(ValueError, match='wanted a function of a text and an answer') as e:
        task_from(ROWS, verify=verify)
    assert '\n' not in str(e.value)


def test_a_failing_task_of_ones_own_is_named_as_well():
    made = SimpleNamespace(name='bare', verify=lambda item, text: {'a\nb': 1}[text], levels={})
    keep_task(made, replace=True)
    with pytest.raises(
        VerifierFailed, match="'bare', asked about \\('q', 1\\) and 'x', raised KeyError"
    ) as e:
        verdict_of(Item('bare', ('q', 1)), 'x')
    assert isinstance(e.value.__cause__, KeyError) and '\n' not in str(e.value)
    made.verify = lambda item, text: True
    with pytest.raises(VerifierFailed, match='returned True, wanted a Verdict'):
        verdict_of(Item('bare', ('q', 1)), 'x')


def SERIES():
    import pandas as pd

    return pd.Series(['q', 'r'])


@pytest.mark.parametrize(
    'rows, words',
    [
        ([], 'no rows'),
        ([{'question': 'q'}], "row 0 has no column 'answer'"),
        ([{'question': 'q', 'answer': None}], 'row 0 has no answer'),
        ([{'question': '', 'answer': 1}], 'row 0 has no question'),
        ([{'question': ' \n\u2003', 'answer': 1}], 'row 0 has no question'),
        ([{'question': 'q', 'answer': ' '}], 'row 0 has no answer'),
        ([{'question': 'q\ud800', 'answer': 1}], 'row 0: question has half a character'),
        ([{'question': 'q', 'answer': 'a\udfff'}], 'row 0: answer has half a character'),
        ([{'question': 'q', 'answer': [1, 10**5000]}], 'more than 2000 digits'),
        ([{'question': 'q', 'answer': -(10**5000)}], 'more than 2000 digits'),
        ([{'question': 'q', 'answer': {10**5000}}], 'thousands of digits'),
        (None, 'rows is None, wanted a list of dicts'),
        (7, 'rows is 7, wanted a list of dicts'),
        ({'train': None}, 'rows is None, wanted a list of dicts'),
        (SERIES, 'row 0 is a str'),
        ([{'question': 'q', 'answer': float('nan')}], 'no answer'),
        ([{'question': ['q'], 'answer': 1}], 'wanted the question as text'),
        ([{'question': 'q', 'answer': {}}], 'wanted a text, a number or a list'),
        (['q'], 'row 0 is a str'),
        ([{'question': 'q', 'answer': 1}, {'question': 'q ', 'answer': 2}], 'another answer'),
        ({'question': ['q'], 'answer': [1]}, 'rows by split'),
        ([{'question': 'q', 'answer': '####'}], 'states nothing'),
    ],
)
def test_rows_that_make_no_problems_are_refused(rows, words):
    if callable(rows):
        rows = rows()
    with pytest.raises(ValueError, match=words) as e:
        task_from(rows)
    assert '\n' not in str(e.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match='no.jsonl'):
        task_from(tmp_path / 'no.jsonl')
    for text, words in (
        ('{"question": 1', 'line 1'),
        ('\n{"question": "q", "answer": 1}\n[1]', 'line 3'),
        ('{"question": "q", "answer": ' + '9' * 5000 + '}', 'line 1'),
        ('[' * 100_000, 'line 1'),
    ):
        (tmp_path / 'bad.jsonl').write_text(text)
        with pytest.raises(ValueError, match=f'bad.jsonl, {words}'):
            task_from(tmp_path / 'bad.jsonl')


def test_names_of_own_tasks():
    a, b = task_from(ROWS), task_from(ROWS[:50])
    assert a.name != b.name == task_from(ROWS[:50]).name and task_of(b.parts['train'][0]) is not a
    with pytest.raises(ValueError, match='name of a task of the library'):
        task_from(ROWS, name='countdown')
    with pytest.raises(ValueError, match='name of a task of the library'):
        task_from(ROWS, name='countdown/easy')  # would hide a level
    mine = task_from(ROWS, name='my/sums')
    assert as_task('my/sums') is mine and as_task('countdown/easy') == task('countdown', 'easy')
    with pytest.raises(ValueError, match='neither levels nor dials'):
        task(a.name, 'easy')
    with pytest.raises(ValueError, match='task_from'):
        Item('gone', ('q', 1)).key
    with pytest.raises(ValueError, match='different test problems, 99 were wanted'):
        a.sample(99, seed=0, split='test')
    with pytest.raises(ValueError, match='split is one of'):
        a.sample(1, seed=0, split='tst')


def test_a_run_remembers_which_data_it_was_on():
    one, same = task_from(ROWS, name='x'), task_from(ROWS, name='x')
    changed = [task_from(**how, name='x', replace=True) for how in CHANGED]
    assert repr(one) == repr(same) and len({repr(t) for t in (one, *changed)}) == 1 + len(CHANGED)


def near(text, answer, tolerance):
    return abs(float(text) - answer) < tolerance


def within(tolerance):
    return lambda text, answer: near(text, answer, tolerance)


CHANGED = [
    dict(rows=[*ROWS[:-1], {**ROWS[-1], 'answer': 0}]),
    dict(rows=ROWS[:-1]),
    dict(rows=ROWS[::-1]),
    dict(rows=ROWS, instruction='Be quick.'),
    dict(rows=ROWS, verify=lambda text, answer: True),
    dict(rows={'train': ROWS}),
    dict(rows=ROWS, verify=within(0.1)),
    dict(rows=ROWS, verify=within(0.2)),
    dict(rows=ROWS, verify=partial(near, tolerance=1)),
    dict(rows=ROWS, verify=partial(near, tolerance=2)),
    dict(rows=[{**row, 'answer': str(row['answer'])} for row in ROWS]),
    dict(rows=[{**row, 'answer': [row['answer']]} for row in ROWS]),
]


@pytest.mark.parametrize('how', CHANGED)
def test_a_name_is_not_given_to_two_tasks(how):
    "Other rows, splits, instructions or verifiers are another task: refused under the same name, and the first stays; without a name both are found."
    first = task_from(ROWS, name='taken', replace=True)
    with pytest.raises(
        ValueError,
        match="the name 'taken' is taken by a task with other content.*another name or none, or say replace=True",
    ) as e:
        task_from(**how, name='taken')
    assert '\n' not in str(e.value) and task('taken') is first
    assert task_from(ROWS, name='taken') is task('taken')  # the same content again is the same task
    one, other = task_from(ROWS), task_from(**how)
    assert (
        one.name != other.name
        and task(one.name) is one
        and task(other.name) is other
        and task_of(other.parts['train'][0]) is other
    )
    assert task_from(**how, name='taken', replace=True) is task('taken')
    for bad in ('', ' ', 3, ('a',)):
        with pytest.raises(ValueError, match='wanted a text, or None'):
            task_from(**how, name=bad)


def test_what_the_tiny_vocabulary_cannot_spell_is_said():
    item = task_from(
        [{'question': '2 + 2 ?', 'answer': 100}, {'question': 'two plus 2 ?', 'answer': 4}],
        name='tiny',
    ).parts
    for i in (x for part in item.values() for x in part):
        with pytest.raises(
            ValueError,
            match="cannot spell '100'" if i.data[1] == 100 else "cannot spell 'two', 'plus'",
        ):
            i.prompt('compact')
        assert i.prompt('text').startswith(i.data[0]) and i.prompt() == i.data[0]


@pytest.mark.parametrize('chat', [False, True])
def test_the_data_set_for_trl_feeds_the_reward(chat):
    pytest.importorskip('datasets')
    from rl4llm.rewards.verifier import as_item, correct, items_dataset

    for problems in ('countdown', task('sat'), task_from(ROWS, name='own-sums')):
        rows = items_dataset(problems, 4, seed=3, chat=chat)
        items = [as_item(text) for text in rows['item']]
        made = task(problems) if isinstance(problems, str) else problems
        assert [i.key for i in items] == [i.key for i in made.sample(4, seed=3)] and set(
            rows.column_names
        ) == {'prompt', 'item'}
        assert [p[0]['content'] if chat else p for p in rows['prompt']] == [
            made.prompt(i, 'text') for i in items
        ]
        told = [made.demonstrate(i, seed=0) for i in items[:3]] + ['no']
        said = [[{'role': 'assistant', 'content': text}] for text in told] if chat else told
        assert correct(
            prompts=rows['prompt'],
            completions=said,
            completion_ids=[[1]] * 4,
            item=rows['item'],
            trainer_state=None,
        ) == [1, 1, 1, 0]
