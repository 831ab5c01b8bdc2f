"A database of programs: scores by hand, islands and archive, rows that replay, runs that go on."

import dataclasses, json, math
import pytest, torch
from rl4llm.core.policy import Policy
from rl4llm.core.registry import recipe, use
from rl4llm.core.rollouts import check_drawn
from rl4llm.rollouts.program_database import (
    CODES,
    Edit,
    Program,
    ProgramDatabase,
    add_program,
    any_parent,
    as_edit,
    child_of,
    choose_parent,
    edit_reward,
    evaluate,
    evolved_edits,
    first_steps,
    height,
    height_bound,
    highest,
    inference_only,
    judged_child,
    migrate,
    no_parent,
    objective_of,
    read_database,
    shaped,
    store_child,
    stored_parent,
    used_operations,
    written_database,
)
from rl4llm.tasks import task
from rl4llm.tasks.countdown import all_solutions, legal_moves
from rl4llm.tasks.protocol import Item
from rl4llm.training.loop import train

PUZZLE = Item('countdown', ((2, 3, 4, 5), 25, 99, '+-*'))
LOW = '2 + 3 = 5 ; 4 * 5 = 20 ; 20 + 5 = 25'
TOP = '4 * 5 = 20 ; 20 + 3 = 23 ; 23 + 2 = 25'
SMALL = dict(islands=2, population=200, archive=20)


@pytest.fixture(scope='module')
def policy():
    return Policy.load('tiny')


@pytest.fixture(scope='module')
def items():
    return task('countdown').sample(2, seed=3, split='test')


def stored(*scores, cells=None, **how):
    database = ProgramDatabase(**how)
    for i, score in enumerate(scores):
        cell = '' if cells is None else cells[i]
        add_program(database, Program(f'p{i}', f't{i}', float(score), cell=cell))
    return database


def test_heights_by_hand():
    assert height(PUZZLE, LOW) == 50 and height(PUZZLE, TOP) == 68 == highest(PUZZLE)
    assert height(PUZZLE, f'<answer>{LOW}</answer>') == 50
    assert height_bound(PUZZLE) == 223 and used_operations(PUZZLE, LOW) == '*++'
    assert highest(Item('countdown', ((1, 1), 99, 99, '+-*'))) == -math.inf
    with pytest.raises(ValueError, match='Countdown problem'):
        highest(Item('modular', ()))


def plays(left, target, total=0):
    "The heights of all plays that end in the target, move by move."
    if len(left) == 1:
        return {total} if left[0] == target else set()
    found = set()
    for step, rest in legal_moves(left, '+-*', 99):
        found |= plays(rest, target, total + step.c)
    return found


def test_the_highest_is_that_of_all_plays(items):
    for item in [*items, PUZZLE]:
        every = plays(tuple(sorted(item.data[0])), item.data[1])
        assert max(every) == highest(item) <= height_bound(item)
        assert {height(item, answer) for answer in all_solutions(item)} == every


def test_errors_have_words_and_no_score():
    assert evaluate(PUZZLE, LOW).score == 50
    assert evaluate(PUZZLE, '4 * 5 = 20 ; 3 + 2 = 5 ; 5 + 20 = 25') == evaluate(PUZZLE, LOW)
    for text, error in ((' ', 'nothing'), ('no', 'broken'), ('2 + 3 = 5', 'invalid')):
        found = evaluate(PUZZLE, text)
        assert (found.score, found.error) == (None, error)
    assert sorted(CODES.values()) == [-0.4, -0.3, -0.2, -0.1]
    other = task('modular').sample(1, seed=0)[0]
    right = task('modular').demonstrate(other, seed=0)
    assert evaluate(other, right).score == 1 and objective_of(other).high(other) == 1


@pytest.mark.parametrize(
    'hostile', ['9' * 5000, '<answer>' * 40, '1 + 1 = 2 ;' * 400, '\0', '=;=;']
)
def test_no_text_is_too_strange(hostile):
    found = evaluate(PUZZLE, hostile)
    assert found.score is None and found.error in ('broken', 'invalid')
    assert edit_reward(None, [hostile], item=[PUZZLE]) == [CODES[found.error]]


def test_shaping_by_hand():
    assert shaped(2, high=4, alpha=2) == 5 / 4
    assert shaped(9, high=4) == 5 and shaped(-1, high=4) == 0
    assert shaped(1, high=4, minimise=True, top=4) == 3
    assert shaped(-3, low=-4, high=0) == 5 / 4, "a score below 0 is no error"
    for bad in (dict(low=1), dict(alpha=0), dict(top=-1.0)):
        with pytest.raises(ValueError, match='shaped: from'):
            shaped(0, **bad)


def test_what_is_kept():
    steps = [first_steps(LOW, u) for u in (0, 0.49, 0.5, 0.99)]
    assert steps == ['', '', '2 + 3 = 5 ;', '2 + 3 = 5 ;'], "the last two are always written anew"
    assert first_steps('', 0.9) == first_steps('2 + 3 = 5', 0.9) == ''
    edit = as_edit(PUZZLE, Program('name', LOW, 50.0), u=0.9, known=frozenset({'name'}))
    assert edit.prompt('compact') == PUZZLE.prompt('compact') + ' 2 + 3 = 5 ;'
    assert edit.key == PUZZLE.key and edit.worth == 50
    assert LOW in edit.prompt('text') and edit.prompt('text').startswith(PUZZLE.prompt('text'))
    assert child_of(edit, '4 * 5 = 20 ; 20 + 5 = 25') == LOW
    assert child_of(edit, f'<answer>{TOP}</answer>') == f'<answer>{TOP}</answer>'
    assert as_edit(PUZZLE).prompt('text') == PUZZLE.prompt('text')


def test_copies_on_three_levels():
    own, other = (evaluate(PUZZLE, text).name for text in (LOW, TOP))
    edit = Edit(*dataclasses.astuple(PUZZLE), LOW, own, 50.0, '', frozenset({own, other}))
    of_low, of_top = (
        [judged_child(edit, text, lazy=level).error for level in (0, 1, 2)] for text in (LOW, TOP)
    )
    assert of_low == [None, 'copy', 'copy'] and of_top == [None, None, 'copy']
    assert judged_child(edit, '').error == 'nothing'
    paid = edit_reward(None, [LOW, TOP, TOP], item=[edit, edit, None])
    assert paid == [-0.3, 5 * (68 / 223), None], "on level 1 a child must differ from its parent"
    assert edit_reward(None, [LOW, TOP], item=[edit, edit], lazy=2) == [-0.3, -0.3]
    assert edit_reward(None, [TOP], item=[edit], lazy=1, alpha=2, top=1) == [(68 / 223) ** 2]
    with pytest.raises(ValueError, match='lazy is 3'):
        edit_reward(None, [TOP], item=[edit], lazy=3)
    with pytest.raises(ValueError, match="no column 'item'"):
        edit_reward(None, [TOP])
    with pytest.raises(ValueError, match='2 items were given'):
        edit_reward(None, [TOP], item=[edit, edit])


def test_islands_take_turns_and_give_their_best():
    database = stored(3, 1, 2, 5, 4, islands=2, population=40, archive=2, every=3)
    lives = [(p.name, p.island) for p in database.programs.values()]
    assert lives[:5] == [('p0', 0), ('p1', 0), ('p2', 1), ('p3', 1), ('p4', 0)]
    assert lives[5:] == [('p4', 1), ('p3', 0)], "the best of each island went to the other"
    assert database.counts['migrants'] == 2
    migrate(database)
    assert len(database.programs) == 7, "what is there already is not copied again"
    alone = stored(*range(5), islands=1, every=2)
    assert len(alone.programs) == 5 and not alone.counts['migrants']


def test_the_archive_keeps_the_best_of_cells():
    database = stored(3, 1, 2, 5, 0, cells='ababb', islands=1, archive=2)
    assert sorted(p.score for n, p in database.programs.items() if n in database.elite) == [3, 5]
    database = stored(3, 4, cells='aa', islands=1, archive=5)
    assert [database.programs[n].score for n in database.elite] == [4], "it left for the better one"


def test_the_worst_go_and_the_best_stays():
    database = stored(5, 1, 2, 3, cells='abcd', islands=1, population=3, archive=3)
    assert sorted(p.score for p in database.programs.values()) == [2, 3, 5]
    assert database.best.score == 5 and 1 not in database.elite and 'b' not in database.cells
    assert [score for _, score in database.log] == [5]
    assert len(stored(*range(9), islands=1, population=1).programs) == 1


def test_where_parents_come_from():
    database = stored(3, 1, 2, 5, 4, islands=2, population=40, archive=1, every=99)
    assert database.place['current'] == 0 and database.elite == [3]
    here = {choose_parent(database, 0.1, u / 9).name for u in range(9)}
    elite = {choose_parent(database, 0.5, u / 9).name for u in range(9)}
    every = {choose_parent(database, 0.9, u / 9).name for u in range(9)}
    assert here == {'p0', 'p1', 'p4'} and elite == {'p3'} and len(every) == 5
    assert choose_parent(ProgramDatabase(), 0.5, 0.5) is None
    u = (0.5, 0.0, 0.0)
    assert stored_parent(database, PUZZLE, u).name == 'p3'
    assert any_parent(database, PUZZLE, u).name == 'p0'
    alone = no_parent(database, PUZZLE, u)
    assert alone.name == '' and alone.known == database.names


def test_children_are_stored_once():
    database = ProgramDatabase()
    texts = (LOW, LOW, TOP, 'no', '', '2 + 3 = 5')
    told = [store_child(database, PUZZLE, text, 3) for text in texts]
    assert told == ['new', 'copy', 'new', 'broken', 'nothing', 'invalid']
    assert database.spent == 18 and database.log == [(3, 50.0), (9, 68.0)]
    assert database.best_within(8) == 50 and database.best_within(2) == -math.inf
    edit = as_edit(PUZZLE, database.best, u=0.9)
    assert store_child(database, edit, '20 + 2 = 22 ; 22 + 3 = 25') == 'new'
    assert list(database.programs.values())[-1].parent == database.best.name


def test_a_database_is_written_and_read():
    how = dict(islands=2, population=40, archive=2, every=3)
    database = stored(3, 1, 2, 5, 4, **how)
    back = read_database(json.loads(json.dumps(written_database(database))), **how)
    assert vars(back) == vars(database)
    for one in (back, database):
        add_program(one, Program('last', '', 9.0, cell='x'))
    assert vars(back) == vars(database)


def test_scores_are_finite_numbers():
    for score in (math.nan, math.inf, 'x', None, True):
        database = ProgramDatabase()
        with pytest.raises(ValueError, match='add_program: score is'):
            add_program(database, Program('p', 't', score))
        assert database.best is None and not database.log, "nothing was stored"


@pytest.mark.parametrize('u', [1.0, -0.1, math.nan, 'x', None])
def test_uniform_numbers_are_below_one(u):
    database = stored(3, 1, 2)
    for choose in (
        lambda: choose_parent(database, 0.5, u),
        lambda: choose_parent(database, u, 0.5),
        lambda: any_parent(database, PUZZLE, (0.5, u, 0.0)),
        lambda: stored_parent(database, PUZZLE, (0.5, 0.5, u)),
        lambda: first_steps(LOW, u),
    ):
        with pytest.raises(ValueError, match='wanted a number of at least 0 and below 1'):
            choose()


def test_a_state_that_lacks_something():
    with pytest.raises(ValueError, match='read_database: state lacks elite, ages, programs'):
        read_database({})
    state = written_database(stored(3))
    del state['log']
    with pytest.raises(ValueError, match='state lacks log; wanted what written_database gives'):
        read_database(state)
    for bad in (None, 7, []):
        with pytest.raises(ValueError, match='read_database: state is'):
            read_database(bad)


def test_a_level_is_no_truth_value():
    for lazy in (True, False):
        with pytest.raises(ValueError, match=f'lazy is {lazy}, wanted 0, 1 or 2'):
            edit_reward(None, [TOP], item=[PUZZLE], lazy=lazy)


def test_a_bound_of_nothing_is_named():
    flat = Item('countdown', ((3, 3), 0, 99, '+-*'))
    for text in ('3 - 3 = 0', 'no'):
        with pytest.raises(ValueError, match='wanted a problem whose scores have a bound above 0'):
            edit_reward(None, [text], item=[flat])


def test_a_parent_is_a_function():
    for parent in (None, 'any_parent'):
        with pytest.raises(ValueError, match='evolved_edits: parent is .*, wanted a function'):
            evolved_edits(parent=parent)


@pytest.mark.parametrize(
    'name, value',
    [
        ('islands', 0),
        ('population', 0),
        ('archive', 0),
        ('every', 0),
        ('explore', 0.5),
        ('rate', 2),
    ],
)
def test_bad_settings(name, value):
    with pytest.raises(ValueError, match='ProgramDatabase'):
        evolved_edits(**{name: value})


def test_rows_are_draws_of_the_policy(policy, items):
    sampler = evolved_edits(**SMALL)
    batch = [items[0], items[1], items[0]]
    first = sampler(policy, batch, 8, seed=0)
    plain = policy.sample(batch, 8, seed=0)
    assert first.texts == plain.texts and torch.equal(first.tokens, plain.tokens)
    assert torch.equal(first.group, plain.group)
    sampler.update(first)
    rows = check_drawn(sampler(policy, batch, 8, seed=1), batch, 'evolved_edits')
    edits = rows.items[3:]
    assert len(edits) == 3 and any(edit.kept for edit in edits)
    assert all(edit.known == sampler.database(edit).names for edit in edits)
    asked = [policy.prompts([item])[0] for item in rows.items]
    assert all(text.endswith(edit.kept) for text, edit in zip(asked[3:], edits))
    with torch.no_grad():
        again, _ = policy.logprobs(rows)
    assert (again - rows.logp_behave)[rows.mask].abs().max() < 1e-4
    assert rows.sampled.equal(rows.mask) and (rows.prompt >= 3).all()


def test_problems_do_not_hang_on_one_another(policy, items):
    ends = []
    for batch in (items[:1], items):
        sampler, tokens = evolved_edits(**SMALL), len(batch) * 120
        sampler = inference_only(policy, batch, sampler, tokens=tokens, group=8)
        ends.append(sampler.database(items[0]))
    both = min(len(end.log) for end in ends)
    assert both and ends[0].log[:both] == ends[1].log[:both]
    plain = evolved_edits(parent=no_parent)
    for seed in (0, 1):
        rows = plain(policy, items, 4, seed=seed)
        assert rows.texts == policy.sample(items, 4, seed=seed).texts
        plain.update(rows)


def test_strings_and_problems_that_answer_back(policy):
    rows = evolved_edits()(policy, ['<countdown> 2 3 -> 5 :'], 2, seed=0)
    evolved = evolved_edits()
    evolved.update(rows)
    assert len(rows) == 2 and evolved.databases == {}
    with pytest.raises(ValueError, match='evolved_edits cannot draw'):
        evolved_edits()(policy, task('calculator').sample(1, seed=0), 2, seed=0)
    with pytest.raises(ValueError, match='tokens is 0'):
        inference_only(policy, [PUZZLE], evolved_edits(), tokens=0)


def weights_of(policy):
    return torch.cat([p.detach().flatten() for p in policy.model.parameters()])


def test_a_run_goes_on_exactly(policy, tmp_path):
    made = recipe('theta_evolve', prompts=2, group=4, lr=2e-4)
    easy = task('countdown', level='easy')
    ends = []
    for parts, path in (((1, 2), tmp_path / 'run'), ((2,), None)):
        for steps in parts:
            learner = policy.clone()
            train(learner, easy, made, steps=steps, seed=0, path=path)
        ends.append(weights_of(learner))
    assert torch.equal(*ends)


def test_recipes_differ_by_their_idea():
    assert set(recipe('theta_evolve').diff()) == {'sampler', 'reward', 'objective', 'curriculum'}
    for name, parent in (('theta_evolve_random', any_parent), ('theta_evolve_alone', no_parent)):
        assert set(recipe(name).diff()) == {'sampler'}
        assert recipe(name).sampler == use(evolved_edits, parent=parent, **SMALL)
