"Paths: where nothing leads to the goal, the coin of a search, the ends of the dials, mazes shown."

import math, random
import pytest
from rl4llm.tasks import Item, maze_neighbours, most_steps, path_chance, path_difficulty
from rl4llm.tasks import search_path, task, verify_path


def test_a_goal_that_cannot_be_reached_is_infinitely_hard():
    edges = (('a', 'b'), ('c', 'd'))
    ends = [('a', 'c', 0), ('a', 'c', 3), ('a', 'x', 3), ('x', 'a', 0), ('x', 'a', 3)]
    for start, goal, limit in ends:
        item = Item('path', (0, edges, start, goal, limit))
        assert most_steps(item) == limit
        assert path_chance(item) == 0 and path_difficulty(item) == math.inf
        assert not verify_path(item, f'{start} {goal}').correct


def test_a_search_is_depth_first_by_the_toss_of_a_coin_if_there_is_a_limit():
    deep = '<think> a b </think> <answer> a b </answer>'
    broad = '<think> a : b ; b < a </think> <answer> a b </answer>'
    for limit, least, most in [(0, 0, 0), (1, 70, 130)]:  # of 200: 100 and four deviations
        item = Item('path', (0, (('a', 'b'),), 'a', 'b', limit))
        rng = random.Random(0)
        found = [search_path(item, rng) for _ in range(200)]
        assert set(found) <= {deep, broad} and least <= found.count(deep) <= most, limit


def test_there_are_as_many_loops_and_steps_as_the_graph_has_room_for():
    # of n (n - 1) / 2 pairs of nodes a tree has n - 1, and one at least is left apart;
    # of 2 w (w - 1) pairs of cells side by side a tree has w * w - 1, and all may be open
    cases = [
        (dict(nodes=4), 'loops', 2),  # 6 - 3 - 1
        (dict(nodes=5), 'loops', 5),  # 10 - 4 - 1
        (dict(nodes=6), 'loops', 9),  # 15 - 5 - 1
        (dict(nodes=7), 'loops', 12),  # 21 - 6 - 1 = 14, more than are ever wanted
        (dict(width=3), 'loops', 4),  # 12 - 8
        (dict(width=4), 'loops', 9),  # 24 - 15
        (dict(width=5), 'loops', 12),  # 40 - 24 = 16
        (dict(nodes=4), 'steps', 2),
        (dict(nodes=8), 'steps', 2),
        (dict(nodes=9), 'steps', 3),
        (dict(nodes=20), 'steps', 6),
        (dict(width=5), 'steps', 8),
    ]
    for dial, knob, most in cases:
        rest = {**dict(loops=0, steps=1, slack=1), **dial}
        item, _ = task('path', **{**rest, knob: most}).draw(random.Random(0))
        places = {node for edge in item.data[1] for node in edge}
        loops = len(item.data[1]) - len(places) + 1
        assert loops == (most if knob == 'loops' else 0), dial
        with pytest.raises(ValueError, match=f'{knob} is a whole number from . to {most}'):
            task('path', **{**rest, knob: most + 1})


def test_a_maze_is_shown_as_it_is():
    opened = 'ab be de dg ef cf hi fi'.split()  # of all pairs but bc, gh, ad and eh
    item = Item('path', (3, [tuple(pair) for pair in opened], 'a', 'i', 4))
    rows = 'a . b | c ; - . . ; d . e . f ; . - . ; g | h . i'
    assert item.prompt('compact') == f'<maze> {rows} : a -> i in 4 ?'
    text = item.prompt('text')
    assert 'A maze has these cells:\na b c\nd e f\ng h i\nOne can step' in text
    assert 'Walls: b-c, g-h, a-d, e-h.\nFind a path from a to i, of at most 4 steps.' in text
    free = Item('path', (3, maze_neighbours(3), 'a', 'i', 0))
    rows = 'a . b . c ; . . . ; d . e . f ; . . . ; g . h . i'
    assert free.prompt('compact') == f'<maze> {rows} : a -> i <short> ?'
    assert 'Walls: none.\nFind a path from a to i, than which none is shorter.' in free.prompt(
        'text'
    )
