"Searches for truth values: every step is allowed, and a step that is not is noticed."

import itertools, random
import pytest
from rl4llm.tasks import Item, sat_search as S, task
from rl4llm.tasks.sat import satisfying
from rl4llm.tasks.sat_search import (
    Placed,
    SatStep,
    Searches,
    after_step,
    read_sat_step,
    read_search,
    search_sat,
    think_sat,
    write_sat_step,
)
from rl4llm.tasks.vocabulary import tiny_tokenizer

LEVELS = ('easy', 'standard', 'hard', 'extreme')
DIALS = [Searches(silent=0, plain=plain, ordered=ordered) for plain in (0, 1) for ordered in (0, 1)]


def follow(item, text):
    "Where the steps of a thought lead, in plain sets; a text that says which step is not allowed."
    variables, clauses = item.data
    past = []  # what was true before each guess, and the guess
    true = set()
    for place, piece in enumerate(text.split(' ; ')):
        words = piece.replace('! ', '-').split()
        if words[0] == '?' and len(words) == 2:
            name = words[1]
            if name.strip('-') in {known.strip('-') for known in true}:
                return f'{place} is set already'
            if name.strip('-') not in tuple('abcdefghijkl'[:variables]):
                return f'{place} is no variable'
            past.append((set(true), name))
            true.add(name)
            continue
        sign = '->' if '->' in words else '<backtrack>'
        *clause, found, name = words
        numbers = {('-' if x < 0 else '') + chr(96 + abs(x)): x for c in clauses for x in c}
        if found != sign or sorted(numbers.get(w, 0) for w in clause) not in map(sorted, clauses):
            return f'{place} has no such clause'
        turned = {w.strip('-') if w[0] == '-' else f'-{w}' for w in clause}
        opposite = name.strip('-') if name[0] == '-' else f'-{name}'
        if sign == '->':
            fine = turned - {opposite} <= true and opposite in turned
            if not fine or name.strip('-') in {known.strip('-') for known in true}:
                return f'{place} is not forced'
            true.add(name)
        elif turned <= true and past and past[-1][1] == opposite:
            true = past.pop()[0] | {name}
        else:
            return f'{place} has no reason to go back'
    return true


@pytest.mark.parametrize('dial', DIALS, ids=str)
@pytest.mark.parametrize('level', LEVELS)
def test_a_demonstration_is_right_and_read_as_it_is(level, dial):
    rng = random.Random(0)
    for item in task('sat', level).sample(25, seed=1):
        trace = think_sat(item, rng, dial)
        assert task('sat').verify(item, trace.text).correct
        read = read_search(item, trace.text)
        counts = (trace.guesses, trace.forced, trace.backtracks)
        assert (read.guesses, read.forced, read.backtracks) == counts
        assert read.complete and read.answered and read.wrong is None and read.late == 0
        thought = trace.text.partition('<think> ')[2].partition(' </think>')[0]
        assert len(thought.split()) <= dial.room and len(thought.split(' ; ')) == read.steps
        answer = trace.text.partition('<answer> ')[2].removesuffix(' </answer>')
        assert follow(item, thought) == set(answer.replace('! ', '-').split())


def test_a_damaged_step_is_noticed_where_it_stands():
    rng = random.Random(2)
    noticed = 0
    for item in task('sat', 'hard').sample(60, seed=3):
        text = think_sat(item, rng, Searches(silent=0)).text
        thought = text.partition('<think> ')[2].partition(' </think>')[0]
        pieces = thought.split(' ; ')
        place = rng.randrange(len(pieces))
        words = pieces[place].split()
        words[rng.randrange(len(words))] = rng.choice('a b c d e f ! ? -> <backtrack> 7'.split())
        damaged = ' ; '.join([*pieces[:place], ' '.join(words), *pieces[place + 1 :]])
        read = read_search(item, text.replace(thought, damaged))
        try:
            found = follow(item, damaged)
        except (IndexError, ValueError):
            found = 'no step'
        noticed += read.wrong is not None
        assert (read.wrong is None) == isinstance(found, set) or read.wrong == place
        if isinstance(found, str) and found[0].isdigit():
            assert read.wrong == int(found.split()[0])
    assert noticed > 20


def test_a_search_is_a_function_of_the_dice_and_ends():
    item = task('sat', 'extreme').sample(1, seed=0)[0]
    for plain, ordered, most in itertools.product((False, True), (False, True), (0, 3)):
        how = dict(plain=plain, ordered=ordered, most=most)
        one, other = (search_sat(item, random.Random(5), **how) for _ in range(2))
        assert one == other
    lucky = search_sat(item, random.Random(5), most=0)
    assert all(step.kind != 'back' for step in lucky)


def test_steps_are_written_and_read():
    literals = (1, -2, 12)
    steps = [SatStep('guess', x) for x in literals]
    steps += [SatStep(kind, x, (1, -5, 12)) for kind in ('forced', 'back') for x in literals]
    assert [read_sat_step(write_sat_step(step)) for step in steps] == steps


def test_every_word_is_in_the_vocabulary():
    tokenizer = tiny_tokenizer()
    rng = random.Random(1)
    for item in task('sat', variables=12, clauses=40).sample(5, seed=0):
        text = think_sat(item, rng, Searches(silent=0)).text
        ids = tokenizer(text, add_special_tokens=False)['input_ids']
        assert tokenizer.unk_token_id not in ids and len(ids) == len(text.split())


def test_what_has_no_solution_is_refused():
    item = Item('sat', (2, ((1, 2), (-1, 2), (1, -2), (-1, -2))))
    assert not satisfying(*item.data)
    with pytest.raises(ValueError, match='has no solution to search for'):
        search_sat(item, random.Random(0))


@pytest.mark.parametrize(
    'wrong',
    [dict(most=-1), dict(most=True), dict(most=2.5), dict(room=-1), dict(room='x')]
    + [dict(silent=2), dict(silent=-0.1), dict(plain=float('nan')), dict(ordered='a')],
)
def test_searches_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match=f'Searches: {next(iter(wrong))} is '):
        Searches(**wrong)


# cases by hand


def trail(*literals):
    "Literals that were guessed, those in brackets forced."
    guessed = [(x[0], False) if isinstance(x, list) else (x, True) for x in literals]
    return tuple(Placed(*pair) for pair in guessed)


@pytest.mark.parametrize(
    'before,step,after',
    [
        (trail(), ('guess', -3), trail(-3)),
        (trail(3), ('guess', -3), None),
        (trail(), ('guess', 4), None),
        (trail(-1), ('forced', 2, (1, 2)), trail(-1, [2])),
        (trail(1), ('forced', 2, (1, 2)), None),
        (trail(-1), ('forced', 2, (2, 3)), None),  # no clause of the problem
        (trail(3, -1, [-2]), ('back', 1, (1, 2)), trail(3, [1])),
        (trail(3, -1), ('back', 1, (1, 2)), None),  # the clause can still become true
        (trail(3, -1, -2), ('back', 1, (1, 2)), None),  # the last guess is -2
        (trail([-1], [-2]), ('back', 1, (1, 2)), None),  # nothing was guessed
    ],
)
def test_which_steps_are_allowed(before, step, after):
    item = Item('sat', (3, ((1, 2), (-1, 2, 3))))
    assert after_step(item, before, SatStep(*step)) == after


@pytest.mark.parametrize('text', ['? a', '?a', ' ?  a '])
def test_a_guess_is_read_whatever_the_blanks(text):
    assert read_sat_step(text) == SatStep('guess', 1)


@pytest.mark.parametrize(
    'thought,complete',
    [
        ('? a ; ? b ; ? c', True),
        ('? ! a ; ? ! b ; ? c', False),  # one clause is false, the other is not
        ('? a ; ? b', False),
    ],
)
def test_a_search_is_complete_if_all_is_set_and_no_clause_is_false(thought, complete):
    item = Item('sat', (3, ((1, 2), (-1, 2, 3))))
    assert read_search(item, f'<think> {thought} </think>').complete == complete


def only(*solutions):
    "A problem of three variables with just these solutions: every other one breaks a clause."
    every = itertools.product((1, -1), (2, -2), (3, -3))
    return Item('sat', (3, tuple(tuple(-x for x in one) for one in every if one not in solutions)))


def test_a_lucky_guess_follows_a_solution_that_fits():
    rng = random.Random(0)
    for one in itertools.product((1, -1), (2, -2), (3, -3)):
        for set_already, ordered in itertools.product(range(3), (False, True)):
            before = trail(*one[:set_already])
            step = S._guess(only(one), before, rng, ordered=ordered, lucky=True)
            assert step.kind == 'guess' and step.literal in one[set_already:]
            assert not ordered or step.literal == one[set_already]
        steps = search_sat(only(one), rng, plain=True, most=0)
        assert [step.literal for step in steps] == list(one)
    both = only((1, 2, 3), (1, -2, -3))
    for _ in range(20):  # the second does not fit what is set
        assert S._guess(both, trail(1, 2), rng, ordered=True, lucky=True).literal == 3


def test_the_searches_if_nothing_is_said():
    assert Searches() == Searches(silent=0.2, plain=0.2, ordered=0.5, most=5, room=160)
    assert Searches(most=0, room=0).most == 0
    item = task('sat', 'extreme').sample(1, seed=0)[0]
    for seed in range(5):
        one = search_sat(item, random.Random(seed))
        assert one == search_sat(item, random.Random(seed), plain=False, ordered=True, most=5)
    five, six = (search_sat(item, random.Random(11), plain=True, most=most) for most in (5, 6))
    assert search_sat(item, random.Random(11), plain=True) == five != six


def test_a_silent_demonstration_has_no_steps():
    trace = think_sat(only((1, -2, 3)), random.Random(0), Searches(silent=1))
    assert trace == ('<answer> a ! b c </answer>', 0, 0, 0)


def test_a_thought_without_room_is_drawn_again_with_one_backtrack_less(monkeypatch):
    tried = []

    def search(item, rng, *, most, **how):
        tried.append(most)
        return search_sat(item, rng, most=most, **how)

    monkeypatch.setattr(S, 'search_sat', search)
    item = only((1, 2, 3), (1, 2, -3))
    for room, wanted in ((0, [3, 2, 1, 0]), (160, [3])):
        tried.clear()
        think_sat(item, random.Random(0), Searches(most=3, room=room))
        assert tried == wanted
    tried.clear()
    guesses = [SatStep('guess', x) for x in (1, 2, 3)]  # '? a ; ? b ; ? c' has eight words
    monkeypatch.setattr(S, 'search_sat', lambda *_, most, **how: tried.append(most) or guesses)
    think_sat(item, random.Random(0), Searches(most=3, room=8))
    assert tried == [3]
