"Demonstrations that search, and what is read out of thoughts."

import random, time
from itertools import product
import pytest, torch
from rl4llm.analysis.thoughts import (
    ABOUT,
    Thought,
    by_backtracks,
    feedback_accuracies,
    feedback_prompts,
    feedback_table,
    read_thought,
    thought_lines,
    thought_summary,
    thought_table,
)
from rl4llm.core.policy import Policy
from rl4llm.engine.fast_llama import is_fast
from rl4llm.tasks import Item, task, task_of
from rl4llm.tasks.countdown import all_solutions, follow, outcomes
from rl4llm.tasks.thinking import (
    AttemptRead,
    FEEDBACK,
    STRATEGIES,
    Attempt,
    Thoughts,
    Trace,
    backward_attempt,
    dead_end,
    failing_attempt,
    feedback,
    forward_attempt,
    play,
    search,
    second_attempt,
    solves,
    think,
    towards,
    read_attempt,
)
from rl4llm.tasks.vocabulary import tiny_tokenizer

LEVELS = ('easy', 'standard', 'hard')


def problems(level='standard', count=40, seed=0):
    return task('countdown', level=level).sample(count, seed=seed)


@pytest.mark.parametrize('level', LEVELS)
@pytest.mark.parametrize('number', range(len(STRATEGIES)))
def test_a_trace_says_the_truth_about_itself(level, number):
    only = [float(n == number) for n in range(len(STRATEGIES))]
    dial = Thoughts(strategies=only, silent=0.1)
    rng = random.Random(number)
    for item in problems(level):
        trace = think(item, rng, dial)
        read = read_thought(item, trace.text)
        assert isinstance(read, Thought) and isinstance(trace, Trace)
        assert trace.right == read.correct
        assert trace.strategy in (STRATEGIES[number], 'at once')
        assert read.attempts == trace.attempts and read.answered
        assert read.missed == 0, 'nothing that solves the problem is given up'
        assert read.waits == ('waits' in trace.habits and read.thinks)


def test_a_function_of_the_state_of_the_dice_alone():
    for item in problems(count=5):
        texts = {think(item, random.Random(7)).text for _ in range(3)}
        assert len(texts) == 1


def test_every_word_is_in_the_vocabulary():
    tokenizer = tiny_tokenizer()
    rng = random.Random(0)
    for item in problems('hard', 60):
        prompt, completion = second_attempt(item, rng)
        for text in (think(item, rng).text, prompt, completion):
            ids = tokenizer(text, add_special_tokens=False)['input_ids']
            assert tokenizer.unk_token_id not in ids and len(ids) == len(text.split())


def test_dials_do_what_they_say():
    rng = random.Random(0)
    items = problems(count=150)
    never = [think(item, rng, Thoughts(backs_up=False)).text for item in items]
    assert not any('<backtrack>' in text for text in never)
    silent = [think(item, rng, Thoughts(silent=1.0)) for item in items]
    assert all(trace.right and '<think>' not in trace.text for trace in silent)
    careful = [
        think(item, rng, Thoughts(silent=0.0, checks=1.0, fooled=(0, 0), gives_up=0.0))
        for item in items
    ]
    assert all(trace.right for trace in careful)
    hasty = [think(item, rng, Thoughts(silent=0.0, checks=0.0, fooled=(1, 1))) for item in items]
    assert not all(trace.right for trace in hasty)


@pytest.mark.parametrize('cut', [False, True])
def test_an_attempt_is_read_as_it_was_written(cut):
    rng = random.Random(1)
    for item in problems(count=30):
        steps = failing_attempt(item, rng, 'restart', ())
        made = forward_attempt(item, steps, rng, cut=cut, stated=True)
        read = read_attempt(item, made.text)
        assert (
            isinstance(made, Attempt)
            and isinstance(read, AttemptRead)
            and read.legal
            and not read.solved
        )
        assert read.steps == len(made.steps) and not read.alive
        down = backward_attempt(item, rng, succeed=False, cut=cut)
        if down is not None:
            read = read_attempt(item, down.text)
            assert read.backwards and read.legal and not read.solved


def test_alive_means_that_the_target_is_in_reach():
    "Against a search by hand through all that can still be made."
    rng = random.Random(2)
    for item in problems(count=40):
        _, target, most, ops = item.data
        steps = play(item, rng, lambda step, rest: 1.0)
        for count in range(len(steps) + 1):
            text = ' ; '.join(f'{a} {op} {b} = {c}' for a, op, b, c in steps[:count])
            left = follow(item, steps[:count])[-1]
            assert read_attempt(item, text).alive == (target in outcomes(left, ops, most))
        assert (dead_end(item, steps) == len(steps)) >= solves(item, steps)


def test_a_search_ends_in_what_is_answered():
    rng = random.Random(3)
    for item in problems(count=40):
        tried = search(item, Thoughts(fooled=(0, 0)), rng, 'depth first', frozenset())
        assert solves(item, tried[-1].steps) and tried[-1].right
        assert not any(attempt.right for attempt in tried[:-1])


@pytest.mark.parametrize('kind', FEEDBACK)
def test_true_feedback_is_true(kind):
    rng = random.Random(4)
    for item in problems(count=30):
        first = failing_attempt(item, rng, 'restart', ())
        solution = play(item, rng, towards(item))
        said = feedback(item, first, solution, kind)
        if kind == 'where':
            kept = first[: int(said.split()[2]) - 1]
            assert solves(item, play(item, rng, towards(item), kept))
        elif kind == 'what':
            assert said.split()[1] == str(first[-1].c) and said.split()[3] == str(item.data[1])
        elif kind in ('hint', 'partial'):
            steps = said.removeprefix('<hint> ').removesuffix(' </hint>')
            count = 1 if kind == 'hint' else len(solution) - 1
            assert read_attempt(item, steps).alive and steps.count('=') == count
        else:
            assert solution[-1].op in said
    with pytest.raises(ValueError, match='feedback is one of where'):
        feedback(item, first, solution, 'praise')


@pytest.mark.parametrize('kind', FEEDBACK)
def test_feedback_without_steps_says_so(kind):
    item, *_ = problems(count=1)
    with pytest.raises(ValueError, match='there are none; give at least one step'):
        feedback(item, (), (), kind)


def test_who_is_told_where_the_mistake_is_keeps_what_stands_before_it():
    rng = random.Random(5)
    kept = 0
    for item in problems(count=200):
        prompt, completion = second_attempt(item, rng, Thoughts(silent=1.0), true=1.0, silent=0.0)
        if '<step>' not in prompt:
            continue
        place = int(prompt.split('<step> ')[1].split()[0])
        first = prompt.split(' : ')[1].split(' <critique>')[0].split(' ; ')
        answer = completion.split('<answer> ')[1].removesuffix(' </answer>').split(' ; ')
        numbers = [sorted(step.split()) for step in first[: place - 1]]
        assert [sorted(step.split()) for step in answer[: place - 1]] == numbers
        kept += place > 1
    assert kept > 3


def test_nothing_breaks_the_reader_and_it_takes_linear_time():
    item = problems(count=1)[0]
    words = [
        '<think>',
        '</think>',
        '<backtrack>',
        '<answer>',
        '</answer>',
        '<verify>',
        'right',
        '=',
    ]
    words += [
        '</verify>',
        '<plan>',
        '</plan>',
        '<conf-3>',
        ';',
        '|',
        '7',
        '+',
        '-',
        '999999',
        '<wait>',
    ]
    rng = random.Random(0)
    for _ in range(2000):
        text = ' '.join(rng.choices(words, k=rng.randrange(40)))
        assert read_thought(item, text).correct == task_of(item).verify(item, text).correct
    short, long = (
        quickest(lambda: read_thought(item, '<think> ' + '7 + 7 = 14 ; ' * count))
        for count in (2_000, 20_000)
    )
    assert long < 40 * max(short, 0.01)


def quickest(work, times=5):
    "Processor seconds of the quickest of some runs: the others were disturbed."
    took = []
    for _ in range(times):
        start = time.process_time()
        work()
        took.append(time.process_time() - start)
    return min(took)


def test_feedback_is_measured_by_problem_and_the_table_is_its_mean(small_policy):
    items = problems('easy', 3)
    found = feedback_accuracies(small_policy, items, samples=2, seed=1)
    assert len(found) == 3 and set(found) == set(product(FEEDBACK, ABOUT))
    table = feedback_table(small_policy, items, samples=2, seed=1)
    assert tuple(table.index) == FEEDBACK and tuple(table) == ABOUT
    assert all(table.loc[pair] == found[pair].mean() for pair in found)


def test_feedback_of_another_is_that_of_the_next_problem():
    items = problems(count=4)
    own, other, none = (
        feedback_prompts(items, 'hint', about, seed=0) for about in ('itself', 'another', 'nothing')
    )
    said = [prompt.split('<hint>')[1] for prompt in own]
    assert [prompt.split('<hint>')[1] for prompt in other] == said[1:] + said[:1]
    assert not any('<hint>' in prompt for prompt in none)
    assert [p.split('<hint>')[0] for p in own] == [p.split('<hint>')[0] for p in other]


def test_a_table_of_thoughts():
    items = problems(count=3)
    rng = random.Random(0)
    texts = [think(item, rng, Thoughts(silent=0.0, fooled=(0, 0))).text for item in items]
    table = thought_table(items, texts)
    summary = thought_summary(table)
    assert summary['correct'] == summary['thinks'] == 1 and len(by_backtracks(table)) >= 1
    with pytest.raises(ValueError, match='3 items and 2 responses'):
        thought_table(items, texts[:2])
    lines = thought_lines(items[0], texts[0])
    assert lines[-1][1] == 'right' and lines[-2][1] == 'solves it'


@pytest.mark.parametrize('level, fits', [('one', lambda n: n == 1), ('many', lambda n: n >= 10)])
def test_levels_by_the_number_of_solutions(level, fits):
    rng = random.Random(0)
    drawn = [*problems(level, 10), task('countdown', level=level).draw(rng)[0]]
    assert all(fits(len(all_solutions(item))) for item in drawn)


def test_solutions_are_counted_only_where_that_is_quick():
    for wrong, words in (
        (dict(solutions='two'), 'solutions is one of any, one, many'),
        (dict(solutions='one', numbers=6), 'wanted at most 5'),
    ):
        with pytest.raises(ValueError, match=words):
            task('countdown', **wrong)


def test_an_unknown_item_is_no_thought():
    item = Item('countdown', [[7, 8, 9, 11], 21, 99, '+-*'])
    assert not read_thought(item, '').answered and read_attempt(item, '').steps == 0


def test_long_responses_take_the_fast_lane_and_are_the_same_as_on_the_slow_one():
    "Log-probabilities, entropies and gradients of thoughts of up to 256 tokens."
    found = {}
    for fast in (True, False):
        policy = Policy.load('tiny-think-v1', fast=fast)
        rollouts = Policy.load('tiny-think-v1').sample(problems(count=4), 4, seed=0)
        length = rollouts.prompt_ids.shape[1] + rollouts.tokens.shape[1]
        assert length > 128 and is_fast(policy.model, length)
        values = policy.statistics(rollouts, ('logp', 'entropy'))
        (values['logp'] * rollouts.mask).sum().backward()
        slope = torch.cat([p.grad.flatten() for p in policy.model.parameters()])
        found[fast] = values['logp'].detach(), values['entropy'].detach(), slope
    for ours, plain in zip(found[True], found[False]):
        assert (ours - plain).norm() < 1e-4 * plain.norm()
