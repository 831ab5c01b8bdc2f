"""Environments and episodes: replay, splits, TRL's view, masks, resume, forged results."""

import dataclasses, inspect, json, random, re, time
from types import SimpleNamespace
import numpy as np
import pytest
import torch
from ready_process import finished, started
from rl4llm import recipe, train
from rl4llm.core.policy import Policy
from rl4llm.core.registry import stages
from rl4llm.core.rollouts import concat_rollouts, rows_of
from rl4llm.core.sampling import sampler_of
from rl4llm.environments.bandit import Bandit
from rl4llm.environments.calculator import Calculator, plain_form, value_of
from rl4llm.environments.environment import DONE, TURN, UNFIT, UNKNOWN, read_episode, tools_of
from rl4llm.environments.environment import EpisodeTask, call_in_words, tool, written_episode
from rl4llm.environments.form import Form
from rl4llm.environments.key_door import KeyDoor
from rl4llm.environments.knowledge_base import KnowledgeBase, walk
from rl4llm.samplers.episodes import count_calls, sample_episodes, turn_rows
from rl4llm.tasks import SPLITS, Item, levels, split_of, task, tasks
from rl4llm.tasks.rollout_format import read_rollouts, written_rollouts
from rl4llm.tasks.vocabulary import tiny_tokenizer, vocabulary_list
from rl4llm.training.pretraining import BaseSpec, make_batch, new_model, supervised_step
from rl4llm.training.records import Run

CLASSES = dict(calculator=Calculator, knowledge=KnowledgeBase, key_door=KeyDoor)
CLASSES |= dict(form=Form, bandit=Bandit)
NAMES = sorted(CLASSES)
CASES = [(name, level) for name in NAMES for level in levels(name)]
each_world = pytest.mark.parametrize('name', NAMES)
each_case = pytest.mark.parametrize('name, level', CASES)
KNOWN = set(vocabulary_list())


def test_they_are_tasks():
    assert set(NAMES) <= set(tasks()) and all('standard' in levels(name) for name in NAMES)
    assert all(isinstance(task(name), EpisodeTask) for name in NAMES)


# what TRL does with the class


def found_by_trl(environment):
    "Tools and reward as `GRPOTrainer.__init__` of TRL 1.16 looks for them."
    tools, has_reset, has_reward = [], False, False
    for name, _ in inspect.getmembers(type(environment), predicate=inspect.isfunction):
        if name == 'reset':
            has_reset = True
        elif name == 'get_reward':
            has_reward = True
        elif not name.startswith('_'):
            tools.append(getattr(environment, name))
    return tools, has_reset, has_reward


@each_world
def test_trl_finds_the_tools_and_can_tell_what_they_take(name):
    from transformers.utils import get_json_schema

    tools, has_reset, has_reward = found_by_trl(CLASSES[name]())
    assert has_reset and has_reward and len(tools) == len(tools_of(CLASSES[name])) > 1
    for method in tools:
        told = get_json_schema(method)['function']
        wanted = list(inspect.signature(method).parameters)
        assert told['name'] == method.__name__ and told['description'].endswith('.')
        assert list(told['parameters']['properties']) == wanted
        assert all(told['parameters']['properties'][p]['description'] for p in wanted)
        assert told['parameters'].get('required', []) == wanted


@each_world
def test_one_instance_serves_rows_of_a_data_set(name):
    environment, made = CLASSES[name](), task(name)
    for seed in range(5):
        item, text = made.draw(random.Random(seed))
        column = json.dumps(dataclasses.asdict(item))
        question = [{'role': 'user', 'content': made.prompt(item, 'text')}]
        assert environment.reset(prompt=question, item=column, other=1) is None
        assert environment.reset(item=column) == made.prompt(item, 'text')
        assert environment.get_reward() == 0.0 and not environment.over
        for call in calls_of(text):
            word, *given = call.split()
            method = tools_of(CLASSES[name])[word].__name__
            said = getattr(environment, method)(*(int(x) if x.isdigit() else x for x in given))
        assert said.endswith(DONE) and environment.get_reward() == 1.0


@each_world
@pytest.mark.parametrize('wrong', [None, 3, 'x', [1], {}, {'task': 'calculator'}])
def test_rows_without_a_problem_are_refused(name, wrong):
    with pytest.raises(ValueError, match='an environment is reset with the item'):
        CLASSES[name]().reset(item=wrong)


STRANGE = [None, -1, 3.5, True, 'x', '', [1], {}, 10**5000, float('nan'), object()]


@each_world
def test_no_call_of_a_chat_model_raises(name):
    rng, item = random.Random(0), task(name).draw(random.Random(0))[0]
    for _ in range(200):
        environment = CLASSES[name]()
        environment.reset(item=item, prompt='?')
        for _ in range(4):
            method = rng.choice([fn.__name__ for fn in tools_of(CLASSES[name]).values()])
            given = [rng.choice(STRANGE) for _ in range(rng.randrange(4))]
            named = {'a': 1} if rng.random() < 0.2 else {}
            said = getattr(environment, method)(*given, **named)
            assert isinstance(said, str)
        assert environment.calls <= 4 and environment.get_reward() in (0.0, 1.0)


MISFITS = {int: ['28', '', 28.0, True, None, [28], {}], str: [5, None, True, ['a'], {}]}


@each_world
def test_arguments_of_another_kind_are_told_so_and_end_nothing(name):
    item = task(name).draw(random.Random(0))[0]
    for fn in tools_of(CLASSES[name]).values():
        wanted = list(inspect.signature(fn).parameters.values())[1:]
        kinds = [p.annotation if p.annotation in MISFITS else str for p in wanted]
        for place, kind in enumerate(kinds):
            for misfit in MISFITS[kind]:
                given = [{int: 7, str: 'a'}[k] for k in kinds]
                given[place] = misfit
                environment = CLASSES[name]()
                environment.reset(item=item, prompt='?')
                assert getattr(environment, fn.__name__)(*given) == UNFIT, (fn, given)
                assert not environment.over and environment.said is None
                assert (environment.calls, environment.refused) == (1, 1)


def test_numbers_of_numpy_are_whole_numbers():
    environment = Calculator()
    environment.reset(item=SUM, prompt='?')
    assert environment.add(np.int64(7), np.int8(5)) == '12'
    assert environment.answer(np.int64(36)) == DONE and environment.solved


@each_world
def test_without_an_episode_there_is_one_clear_sentence(name):
    environment = CLASSES[name]()
    first = next(iter(tools_of(CLASSES[name]).values()))
    with pytest.raises(RuntimeError, match='has no episode yet'):
        getattr(environment, first.__name__)()
    assert environment.get_reward() == 0
    item = task(name).draw(random.Random(0))[0]
    for horizon in (0, -1, 2.5, '5', True, None):
        with pytest.raises(ValueError, match='end with its horizon'):
            environment.reset(item=Item(name, (*item.data[:-1], horizon)), prompt='?')


def test_a_public_method_is_a_tool_with_a_word_of_its_own():
    class Helped(Calculator):
        def helper(self):
            return ''

    class Twice(Calculator):
        @tool('+')
        def plus(self) -> str:
            return ''

    for made, name in ((Helped, 'helper'), (Twice, 'plus')):
        with pytest.raises(ValueError, match=f'{made.__name__}.{name} is public'):
            tools_of(made)


# replay


def calls_of(text):
    return [part.partition(' </tool>')[0] for part in text.split('<tool> ')[1:]]


def loose_calls(made, item, rng):
    "Calls of an expert among others, some of which cannot be read."
    calls = made.plan(item, rng)
    words = ['+', '-', '=', '?', 'to', '>', 'up', 'a', 's', '7', '05', 'yes', '<tool>', '']
    for _ in range(rng.randrange(4)):
        other = ' '.join(rng.choice(words) for _ in range(rng.randrange(4)))
        calls.insert(rng.randrange(len(calls) + 1), other)
    return calls


@each_case
def test_an_episode_is_played_again_exactly(name, level):
    made, rng = levels(name)[level], random.Random(f'{name} {level}')
    for _ in range(40):
        item = made.propose(rng)
        calls = loose_calls(made, item, rng)
        text = written_episode(made.environment(), item, calls)
        first, again = made.read(item, text), made.read(item, text)
        assert first[1:] == again[1:] and not first.broken and not first.waits
        assert list(first.calls) == [' '.join(call.split()) for call in calls[: len(first.calls)]]
        assert text == written_episode(made.environment(), item, calls)
        verdict = made.verify(item, text)
        assert verdict.correct == (verdict.score == 1) == (verdict.first_error is None)
        assert verdict.correct == first.solved == bool(first.environment.get_reward())
        stored = Item(**json.loads(json.dumps(dataclasses.asdict(item))))
        assert stored.data == item.data and made.verify(stored, text) == verdict


@each_case
def test_every_cut_of_an_episode_waits_for_what_followed(name, level):
    made = levels(name)[level]
    item, text = made.draw(random.Random(level))
    words = text.split()
    for cut in range(len(words)):
        begun = ' '.join(words[:cut])
        episode = made.read(item, begun)
        assert not episode.broken
        reply = (made.reply(item, begun) or '').split()
        assert words[cut : cut + len(reply)] == reply
        if words[cut] == '<result>':
            assert reply[0] == '<result>' and reply[-1] == '</result>'


@each_case
def test_a_result_that_is_not_true_breaks_the_episode(name, level):
    made, rng = levels(name)[level], random.Random(level)
    item, text = made.draw(rng)
    words = text.split()
    for i, word in enumerate(words):
        if word != '<result>':
            continue
        end = words.index('</result>', i)
        forged = [
            [*words[: i + 1], 'yes', *words[end:]],  # another result
            [*words[: i + 1], *words[i + 1 : end], 'yes', *words[end:]],
            [*words[:i], *words[end + 1 :]],  # none, though more follows
            [*words[:i], '<result>', 'yes', '</result>', *words[i:]],
        ]
        forged += [['<result>', *words[i + 1 : end], '</result>', *words]]
        for tried in forged:
            if tried == words[: len(tried)]:
                continue  # the last result left out: the episode has ended all the same
            verdict = made.verify(item, ' '.join(tried))
            assert not verdict.correct and verdict.score == 0


@each_world
def test_the_horizon_ends_it(name):
    made = task(name)
    item = made.propose(random.Random(0))
    calls = ['yes'] * (item.data[-1] - 1) + made.plan(item, random.Random(0))
    episode = made.read(item, written_episode(made.environment(), item, calls))
    assert len(episode.calls) == item.data[-1] and not episode.solved and episode.environment.over
    assert episode.answers[0] == UNKNOWN and episode.answers[-1].endswith(DONE)
    assert call_in_words(episode.environment, ['yes']) == DONE
    assert episode.environment.calls == item.data[-1]


@each_case
def test_prompts_and_episodes_are_inside_the_vocabulary(name, level):
    made, rng = levels(name)[level], random.Random(level)
    for _ in range(30):
        item, text = made.draw(rng)
        assert set(made.prompt(item).split()) | set(text.split()) <= KNOWN
        assert len(made.prompt(item).split()) + made.room(item) < 250
        assert len(text.split()) + 1 <= made.room(item)
        assert all(len(turn.split()) + 1 <= TURN for turn in text.split('<tool>')[1:])
        assert 0 <= made.chance(item) <= 1 and made.difficulty(item) == item.difficulty


@each_world
def test_partial_credit_grows_with_what_is_reached(name):
    made = levels(name)['hard']
    for seed in range(10):
        item = made.propose(random.Random(seed))
        calls = made.plan(item, random.Random(seed))
        texts = [
            written_episode(made.environment(), item, calls[:n]) for n in range(len(calls) + 1)
        ]
        scores = [made.verify(item, text).score for text in texts]
        assert scores == sorted(scores) and scores[0] == 0 and scores[-1] == 1 > scores[-2] > 0


# splits


def other_wording(item, rng):
    "The same problem written in another way."
    *world, horizon = item.data
    if item.task == 'calculator':
        return Item(item.task, (rearranged(world[0], rng), horizon + 1))
    if item.task == 'knowledge':
        facts, start, relations = world
        on_the_way = list(zip(walk(facts, start, relations), relations))
        facts = [f for f in facts if f[:2] in on_the_way or rng.random() < 0.5]
        return Item(item.task, (rng.sample(facts, len(facts)), start, relations, horizon + 1))
    if item.task == 'form':
        known, wanted = (rng.sample(part, len(part)) for part in world)
        return Item(item.task, (known, wanted, horizon + 1))
    if item.task == 'bandit':
        return Item(item.task, (rng.sample(world[0], len(world[0])), horizon + 1))
    size, *cells, walls = world
    turns, flip = rng.randrange(4), rng.random() < 0.5

    def seen(cell):
        x, y = (size - 1 - cell[0], cell[1]) if flip else cell
        for _ in range(turns):
            x, y = y, size - 1 - x
        return x, y

    walls = rng.sample(list(map(seen, walls)), len(walls))
    return Item(item.task, (size, *map(seen, cells), walls, horizon + 1))


def rearranged(expression, rng):
    "An expression with sides exchanged and brackets moved, of the same value."
    if isinstance(expression, int):
        return expression
    op, left, right = expression
    left, right = rearranged(left, rng), rearranged(right, rng)
    if op in ('+', '*') and rng.random() < 0.5:
        left, right = right, left
    if op in ('+', '*') and not isinstance(right, int) and right[0] == op and rng.random() < 0.5:
        return (op, (op, left, right[1]), right[2])
    if op == '-' and not isinstance(right, int) and right[0] == '-' and rng.random() < 0.5:
        return ('+', ('-', left, right[1]), right[2])
    return (op, left, right)


@each_case
def test_another_wording_is_in_the_same_split(name, level):
    made, rng = levels(name)[level], random.Random(level)
    for _ in range(60):
        item = made.propose(rng)
        other = other_wording(item, rng)
        assert made.key(other) == made.key(item)
        assert split_of(other.key) == split_of(item.key)


@each_case
def test_no_episode_of_an_expert_is_in_two_splits(name, level):
    "What is trained on, word for word, is not what is tested."
    made, seen = levels(name)[level], {}
    for split in SPLITS:
        for item in made.sample(60, seed=0, split=split):
            episode = made.prompt(item), frozenset(made.demonstrate(item, seed=0).split('<tool>'))
            assert seen.setdefault(episode, split) == split or name == 'bandit'


@each_case
def test_samples_are_distinct_and_of_their_split(name, level):
    made = levels(name)[level]
    keys = {split: [item.key for item in made.sample(40, seed=1, split=split)] for split in SPLITS}
    assert keys['test'] == [item.key for item in made.sample(40, seed=1, split='test')]
    assert len({key for found in keys.values() for key in found}) == 120
    assert all(split_of(key) == split for split in SPLITS for key in keys[split])


def test_different_expressions_have_different_keys():
    assert len({plain_form(e) for e in (('-', 9, 4), ('-', 4, 9), ('+', 4, 9), ('*', 4, 9))}) == 4
    assert value_of(('-', ('*', 3, 5), 7)) == 8


# episodes: a policy that has seen demonstrations for a moment, so that it makes calls of all kinds


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    "A small model that writes calls, good and bad ones."
    sizes = dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96)
    mixture = (('calculator', dict(operations=1), 0.5), ('knowledge', dict(hops=1), 0.5))
    spec = BaseSpec(
        name='caller', summary='', architecture=dict(sizes, max_position_embeddings=256),
        mixture=mixture, steps=90, batch=24, chunks=1,
    )  # fmt: skip
    model = new_model(spec, seed=0).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step in range(spec.steps):
        supervised_step(model, optimiser, make_batch(spec, seed=step))
    place = tmp_path_factory.mktemp('models') / 'caller'
    model.save_pretrained(place)
    tiny_tokenizer().save_pretrained(place)
    return place


@pytest.fixture
def caller(folder):
    return Policy.load(folder)


@pytest.fixture(scope='module')
def items():
    return [*task('calculator').sample(4, seed=0), *task('knowledge').sample(4, seed=0)]


def test_masks_are_right(caller, items):
    r = caller.sample(items, 8, seed=3)
    special = caller.tokenizer.convert_tokens_to_ids
    put_in = counted = 0
    for row, text in enumerate(r.texts):
        item = items[int(r.prompt[row])]
        episode = task(item.task).read(item, text)
        results = [f'<result> {said} </result>'.split() for said in episode.answers]
        words = [word for result in results for word in result]
        if episode.environment.over:
            words.append('<eos>')
        given = r.tokens[row][(r.seg[row] < 0) & (r.tokens[row] != caller.pad)].tolist()
        assert given == special(words)[: len(given)]
        assert len(given) == len(words) or not r.finished[row]  # cut off at the end of the room
        put_in += len(given)
        counted += len(episode.calls)
    assert put_in > 100 and counted > 60 and r.finished.any()
    assert torch.equal(r.mask, r.sampled) and torch.equal(r.mask, r.seg >= 0)
    assert r.logp_behave.isfinite().all() and not r.logp_behave[~r.mask].any()
    with torch.no_grad():
        plain = dataclasses.replace(caller, fast=False)
        for policy in (caller, plain):
            logp = policy.logprobs(r)[0]
            assert not logp[~r.mask].any()
            torch.testing.assert_close(logp[r.mask], r.logp_behave[r.mask], atol=1e-4, rtol=0)


def test_nothing_in_a_result_reaches_the_gradient(caller, items):
    "The loss of a row is the same function of the weights, whatever is claimed of tokens put in."
    r = caller.sample(items[:2], 4, seed=3)
    logits = []
    caller.model.register_forward_hook(lambda model, given, out: logits.append(out.logits))
    plain = dataclasses.replace(caller, fast=False)
    plain.model._rl4llm_plain_head = False  # the whole logits
    logp = plain.logprobs(r, entropy=False)[0]
    logits[-1].retain_grad()
    logp.sum().backward()
    reached = logits[-1].grad[:, r.prompt_ids.shape[1] - 1 : -1].abs().sum(-1) > 0
    assert torch.equal(reached, r.mask)


def test_a_row_depends_on_its_problem_number_and_seed_alone(caller, items):
    r = caller.sample(items, 4, seed=3)
    for number in (0, 5):
        alone = caller.sample(items[number : number + 1], 4, seed=3)
        assert alone.texts == r.texts[4 * number : 4 * number + 4]
    more = caller.sample(items[:2], 6, seed=3)
    assert [more.texts[i] for i in (0, 1, 2, 3)] == list(r.texts[:4])
    backwards = caller.sample(items[::-1], 4, seed=3)
    assert backwards.texts[-4:] == r.texts[:4]
    again = caller.sample(items, 4, seed=3)
    assert torch.equal(again.tokens, r.tokens) and torch.equal(again.logp_behave, r.logp_behave)
    assert caller.sample(items, 4, seed=4).texts != r.texts


def test_problems_with_one_prompt_are_drawn_each_by_itself(caller):
    "Bandits are all asked for in the same words, and so are many questions to a knowledge base."
    problems = task('bandit').sample(3, seed=0) + task('knowledge', 'easy').sample(20, seed=0)
    mixed = [*problems, *task('modular').sample(2, seed=0)]
    assert len(set(caller.prompts(problems))) < len(problems)
    r = caller.sample(mixed, 2, seed=1)
    for number, problem in enumerate(mixed):
        alone = caller.sample([problem], 2, seed=1).texts  # its room may be less
        assert all(map(str.startswith, r.texts[2 * number : 2 * number + 2], alone))
    twice = caller.sample(problems[:1] * 2, 8, seed=1).texts
    assert twice[:8] != twice[8:] and twice[:8] == caller.sample(problems[:1], 8, seed=1).texts


def test_an_answer_without_tokens_is_an_error(caller, monkeypatch):
    monkeypatch.setattr(Calculator, '_compute', lambda self, op, a, b: '[0.1, 0.2]')
    with pytest.raises(ValueError, match="answers '<result> .0.1, 0.2. </result>', which"):
        forging(caller, '<tool> + 7 5 </tool>').sample([SUM], 1, seed=0)


def test_room_is_kept_and_problems_may_be_mixed(caller, items):
    short = caller.sample(items, 2, seed=3, max_new_tokens=7)
    assert short.tokens.shape[1] == 7
    whole = caller.sample(items, 2, seed=3)
    assert all(long.startswith(text) for long, text in zip(whole.texts, short.texts))
    mixed = [items[0], task('modular').sample(1, seed=0)[0], '<game> ?']
    r = caller.sample(mixed, 2, seed=3)
    assert r.mask[2:].sum(1).eq((r.tokens[2:] != caller.pad).sum(1)).all()  # nobody answered
    assert caller.sample(items[:1], 1, seed=0, temperature=0.0).texts
    assert sampler_of(mixed) is sample_episodes and sampler_of(mixed[1:]) is None


def test_episodes_of_problems_that_ask_once_are_samples(small_policy):
    problems = task('modular').sample(3, seed=0)
    ours, plain = (
        draw(small_policy, problems, 4, seed=1) for draw in (sample_episodes, Policy.sample)
    )  # fmt: skip
    assert torch.equal(ours.tokens, plain.tokens) and ours.texts == plain.texts
    with pytest.raises(ValueError, match='none of the problems has an environment'):
        count_calls(ours)


class Forger:
    "A decoder that has a policy write a text of its own, whatever it is told."

    def __init__(self, text):
        self.words = [*tiny_tokenizer()(text, add_special_tokens=False).input_ids, 2]
        self.spare = 1.1

    def __call__(self, prompt_ids, prompt_mask, prompt, room):
        self.at = [0] * len(prompt)
        return self

    @property
    def wanted(self):
        return torch.tensor([self.words[min(at, len(self.words) - 1)] for at in self.at])

    @property
    def logits(self):
        return 50.0 * torch.nn.functional.one_hot(self.wanted, 256)

    def step(self, tokens):
        said = (tokens == self.wanted).tolist()
        self.at = [at + hit for at, hit in zip(self.at, said)]
        return self.logits


def forging(policy, text):
    policy = dataclasses.replace(policy)
    policy.decoder = Forger(text)
    return policy


SUM = Item('calculator', (('*', ('+', 7, 5), 3), 4))


@pytest.mark.parametrize(
    'text',
    [
        '<tool> + 7 5 </tool> no <result> 36 </result>',
        '<result> 12 </result> <tool> = 36 </tool>',
        '<tool> + 7 5 </tool> so </result> <tool> = 36 </tool>',
        'so <result> <tool> = 36 </tool>',
        '<tool> + 7 5 </tool> yes <result> <done> </result>',
        '<tool> <result> </tool> <result> <done> </result>',
    ],
)
def test_who_writes_results_gains_nothing(caller, text):
    r = forging(caller, text).sample([SUM], 2, seed=0)
    assert '<result>' in r.texts[0] or '</result>' in r.texts[0]
    verdict = task('calculator').verify(SUM, r.texts[0])
    assert not verdict.correct and verdict.score == 0
    honest = forging(caller, '<tool> + 7 5 </tool> so <tool> = 36 </tool>').sample([SUM], 1, seed=0)
    assert task('calculator').verify(SUM, honest.texts[0]).correct


def test_a_model_that_cannot_call_is_refused(caller, small_policy, items):
    class Letters:
        unk_token_id, pad_token_id, eos_token_id = None, 0, 1

        def __call__(self, text, **how):
            return dict(input_ids=list(map(ord, text[:9])))

        def decode(self, *args, **how):
            return ''

    speller = dataclasses.replace(small_policy, tokenizer=Letters(), style='text')
    with pytest.raises(ValueError, match="has no token '</tool>', with which a tool is called"):
        sample_episodes(speller, items, 1, seed=0, max_new_tokens=3)


# turns


def test_turns_are_rows_with_their_history(caller, items):
    r = caller.sample(items, 4, seed=3)
    r = dataclasses.replace(r, rewards=torch.arange(32.0), group=r.group + 5)
    rows = turn_rows(caller, r)
    assert len(rows) == sum(len(set(seg.tolist()) - {-1}) for seg in r.seg) > len(r)
    for row in range(len(rows)):
        episode, turn = int(rows.traj[row]), int(rows.step[row])
        own = r.seg[episode] == turn
        assert rows.tokens[row][rows.mask[row]].tolist() == r.tokens[episode][own].tolist()
        first = int(own.nonzero()[0])
        asked = r.prompt_ids[r.prompt[episode]][r.prompt_mask[r.prompt[episode]]]
        before = [*asked.tolist(), *r.tokens[episode, :first].tolist()]
        assert rows.prompt_ids[row][rows.prompt_mask[row]].tolist() == before
        assert rows.rewards[row] == episode and rows.group[row] == r.group[episode]
        assert rows.items[int(rows.prompt[row])] == r.items[int(r.prompt[episode])]
    with torch.no_grad():
        ours, theirs = caller.logprobs(rows)[0].sum(1), caller.logprobs(r)[0].sum(1)
    torch.testing.assert_close(
        torch.zeros(len(r)).index_add(0, rows.traj, ours), theirs, atol=1e-3, rtol=0
    )


def test_turns_keep_what_is_known_of_them(caller, items):
    r = caller.sample(items, 2, seed=3)
    every = torch.arange(float(r.tokens.numel())).reshape(r.tokens.shape)
    r = dataclasses.replace(
        r, logp_old=every + 1, loss_weight=every + 2, token_rewards=every + 3, logp_ref=every + 4,
        mask=r.mask & (every % 3 > 0), origin=torch.arange(len(r)) % 3,
        components=dict(part=torch.arange(float(len(r)))),
    )  # fmt: skip
    rows = turn_rows(caller, r)
    names = ('mask', 'sampled', 'logp_behave', 'logp_old', 'loss_weight', 'token_rewards')
    for row in range(len(rows)):
        episode, turn = int(rows.traj[row]), int(rows.step[row])
        own, here = r.seg[episode] == turn, rows.seg[row] >= 0
        for name in (*names, 'tokens', 'logp_ref'):
            assert torch.equal(getattr(rows, name)[row][here], getattr(r, name)[episode][own]), name
        assert rows.origin[row] == r.origin[episode] and rows.components['part'][row] == episode
        assert not rows.mask[row][~here].any() and not rows.sampled[row][~here].any()


def test_the_step_goes_with_its_row(caller, items):
    rows = turn_rows(caller, caller.sample(items, 2, seed=3))
    some = torch.tensor([3, 0, 1])
    assert torch.equal(rows_of(rows, some).step, rows.step[some])
    assert torch.equal(
        concat_rollouts(rows, rows_of(rows, some), 0).step, torch.cat([rows.step, rows.step[some]])
    )
    facts, tensors = written_rollouts(rows)
    assert torch.equal(read_rollouts(json.loads(json.dumps(facts)), tensors).step, rows.step)
    tensors.pop('step')  # as older files
    assert not read_rollouts(facts, tensors).step.any()
    with pytest.raises(ValueError, match='Rollouts.step'):
        dataclasses.replace(rows, step=rows.step[:-1])


# training


LIVELY = dict(prompts=4, group=4, lr=1e-3)


@pytest.mark.parametrize(
    'name', ['grpo', 'reinforce', 'ppo', 'dapo', 'gspo', 'remax', 'psr', 'cispo', 'brorl']
)
def test_recipes_train_on_environments(name, caller):
    made = recipe(name).but(prompts=4, group=4, lr=1e-3, minibatch=None)
    seen = []

    class Look:
        def on_step(self, state, row):
            seen.append(count_calls(state.rollouts)['calls'])

    run = train(caller, task('calculator', 'easy'), made, steps=2, seed=1, callbacks=[Look()])
    assert len(run.rows) == 2 and min(seen) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    'name', ['grpo', 'dr_grpo', 'reinforce', 'weighted_reinforce', 'gspo', 'cure']
)
def test_a_recipe_trains_on_environments_or_says_why_not(name, caller):
    made = recipe(name)
    made = made.but(prompts=2, group=max(2, min(made.group, 4)), minibatch=None)
    try:
        run = train(caller, task('calculator', 'easy'), made, steps=1, seed=1)
    except ValueError as error:
        assert 'answer while a response is written' in str(error)
    else:
        assert len(run.rows) == 1


@pytest.mark.parametrize('name', sorted(stages('sampler')))
def test_every_sampler_lets_environments_answer_or_refuses(name, caller, items):
    draw = stages('sampler')[name].fn
    draw = draw() if inspect.isclass(draw) else draw
    try:
        r = draw(caller, items, 4, seed=3, temperature=1.0)
    except ValueError as error:
        assert 'cannot draw problems that answer while a response is written' in str(error)
        assert sampler_of(items) is not None
    else:
        assert (r.seg[:, :-1] < 0).any() and count_calls(r)['calls'] > 0.5


STEPS = 8
CHILD = """
from rl4llm import Policy, recipe, task, train
from rl4llm.training.callbacks import Checkpoint
p = Policy.load({model!r})
made = recipe('grpo', prompts=4, group=4, lr=1e-3)
run = train(p, task('calculator', 'easy'), made, steps={steps}, seed=3, path={path!r},
            callbacks=[Checkpoint(every=2)])
p.model.save_pretrained({path!r} + '/final')
"""


def timeless(run):
    return [{k: v for k, v in row.items() if not k.startswith('seconds')} for row in run.rows]


@pytest.mark.slow
def test_killed_among_episodes_it_ends_as_if_it_never_was(tmp_path, folder):
    path, log = tmp_path / 'killed', tmp_path / 'log.txt'
    whole = CHILD.format(model=str(folder), steps=STEPS, path=str(tmp_path / 'whole'))
    finished(whole, log)
    code = CHILD.format(model=str(folder), steps=STEPS, path=str(path))
    process, metrics, deadline = started(code, log), path / 'metrics.jsonl', time.time() + 120
    while process.is_alive() and time.time() < deadline:
        if metrics.exists() and metrics.read_text().count('\n') >= 3:
            break
        time.sleep(0.005)
    assert process.is_alive(), 'it was over before it could be killed'
    process.kill()
    process.join()
    finished(code, log)
    runs = [Run.load(tmp_path / 'whole'), Run.load(path)]
    assert timeless(runs[0]) == timeless(runs[1]) and len(runs[0].rows) == STEPS
    weights = [
        (place / 'final/model.safetensors').read_bytes() for place in (tmp_path / 'whole', path)
    ]
    assert weights[0] == weights[1]


# the examples of the rules


def test_calls_by_hand():
    environment = Calculator()
    environment.reset(item=SUM, prompt='?')
    said = [call_in_words(environment, call.split()) for call in ('+ 07 5', 'add 7 5', '* 50 2')]
    assert said == [UNFIT, UNKNOWN, 'no']
    assert call_in_words(environment, ['=', '36']) == DONE and environment.solved
    episode = read_episode(Calculator(), SUM, 'x ' * 4001)
    assert episode.calls == () and not episode.broken


# other shapes: Gymnasium, and TRL's trainer


@each_world
def test_gymnasium_sees_the_same_episode(name):
    gymnasium = pytest.importorskip('gymnasium')
    from rl4llm.environments.adapters import as_gymnasium

    made, rng = task(name), random.Random(name)
    items = made.sample(6, seed=0)
    played = as_gymnasium(CLASSES[name], items)
    assert isinstance(played, gymnasium.Env)
    for seed in (0, 4, 9):
        item = items[seed % 6]
        calls = loose_calls(made, item, rng)
        question, info = played.reset(seed=seed)
        assert question == item.prompt() and info == dict(calls=0, reached=[])
        steps = [played.step(call) for call in calls]
        episode = made.read(item, written_episode(made.environment(), item, calls))
        assert [step.observation for step in steps][: len(episode.answers)] == [*episode.answers]
        assert steps[len(episode.calls) - 1].terminated == (episode.environment.said is not None)
        assert sum(step.reward for step in steps) == episode.environment.get_reward()
        assert steps[-1].info['reached'] == episode.environment.reached
        assert played.observation_space.contains(item.prompt('text'))


def test_gymnasium_is_told_what_is_wrong():
    gymnasium = pytest.importorskip('gymnasium')
    from rl4llm.environments.adapters import as_gymnasium, from_gymnasium

    played = as_gymnasium(Calculator, [dataclasses.asdict(SUM)])
    with pytest.raises(RuntimeError, match='no episode yet'):
        played.step('+ 7 5')
    with pytest.raises(ValueError, match='there are no items'):
        as_gymnasium(Calculator, [])
    played.reset()
    for action in (5, None, ['+', '7', '5']):
        with pytest.raises(ValueError, match='an action is a text'):
            played.step(action)
    assert [played.step('= 36').reward, played.step('= 36').reward] == [1, 0]
    with pytest.raises(ValueError, match='wanted a Discrete space'):
        from_gymnasium(lambda: gymnasium.make('Pendulum-v1'))().reset(
            item=Item('pendulum', (0, 5)), prompt='?'
        )


@each_world
def test_openenv_sees_the_same_episode(name):
    server = pytest.importorskip('openenv.core.env_server')
    from rl4llm.environments.adapters import as_openenv, openenv_types

    call_of, made, rng = openenv_types().action, task(name), random.Random(name)
    items = made.sample(6, seed=0)
    played = as_openenv(CLASSES[name], items)
    assert isinstance(played, server.Environment)
    for seed in (0, 4, 9):
        item = items[seed % 6]
        calls = loose_calls(made, item, rng)
        first = played.reset(seed=seed, episode_id=str(seed))
        assert (first.text, first.reward, first.done) == (item.prompt('text'), None, False)
        steps = [played.step(call_of(call=call)) for call in calls]
        episode = made.read(item, written_episode(made.environment(), item, calls))
        assert [step.text for step in steps][: len(episode.answers)] == [*episode.answers]
        assert sum(step.reward for step in steps) == episode.environment.get_reward()
        assert steps[-1].done == episode.environment.over
        assert steps[-1].reached == episode.environment.reached
        assert played.state.step_count == episode.environment.calls
        assert server.serialize_observation(steps[0])['observation']['text'] == steps[0].text
    assert played.reset(item=dataclasses.asdict(items[2])).text == items[2].prompt('text')


def test_openenv_is_told_what_is_wrong():
    pytest.importorskip('openenv.core.env_server')
    from rl4llm.environments.adapters import as_openenv, openenv_types

    call_of = openenv_types().action
    played = as_openenv(Calculator, [SUM])
    assert played.state.step_count == 0
    with pytest.raises(RuntimeError, match='no episode yet'):
        played.step(call_of(call='+ 7 5'))
    with pytest.raises(ValueError, match='as_openenv: there are no items'):
        as_openenv(Calculator, [])
    with pytest.raises(ValueError, match='item'):
        played.reset(item='nothing')
    played.reset()
    with pytest.raises(ValueError, match='an action is a text'):
        played.step(7)
    ends = [played.step(call_of(call='= 36')) for _ in range(3)]
    assert [end.reward for end in ends] == [1, 0, 0] and all(end.done for end in ends)


class Theirs:
    "An environment as OpenEnv has them, which breaks what `wrong` says."

    wrong = {}
    first = {}

    def reset(self, seed=None):
        self.seed = seed
        return SimpleNamespace(
            **{**dict(text=f'seed {seed}', done=False, reward=None), **self.first}
        )

    def step(self, action):
        seen = dict(text=action, done=action == 'end', reward=0.25)
        return SimpleNamespace(**{**seen, **self.wrong})


def test_an_environment_of_openenv_is_ours():
    from rl4llm.environments.adapters import from_openenv

    played = from_openenv(Theirs, str)()
    assert [*tools_of(type(played))] == ['do']
    played.reset(item=Item('theirs', (7, 4)), prompt='?')
    assert played.first == 'seed 7' and played.get_reward() == 0
    assert [played.act(text) for text in ('a b', 'end', 'a')] == ['a b', 'end <done>', '<done>']
    assert played.get_reward() == 0.5 and played.solved and played.said == '0.5'
    played.reset(item=Item('theirs', (8, 1)), prompt='?')
    assert played.act('a') == 'a <done>' and not played.solved and played.get_reward() == 0.25
    refused = from_openenv(Theirs, int)()  # the text makes no action: the model is told
    refused.reset(item=Item('theirs', (7, 4)), prompt='?')
    assert refused.act('x') == UNFIT and refused.refused == 1


@pytest.mark.parametrize(
    'wrong, words',
    [
        (dict(reward=float('nan')), 'gave the reward nan'),
        (dict(reward='1'), "gave the reward '1'"),
        (dict(reward=[1.0]), 'wanted a finite number or None'),
        (dict(done=None), 'gave done=None'),
        (dict(done='no'), "gave done='no'"),
        (dict(text=None), 'an observation with 0 texts'),
        (dict(more='x'), 'an observation with 2 texts'),
    ],
)
def test_a_hostile_environment_stops_the_run_with_one_sentence(wrong, words):
    from rl4llm.environments.adapters import from_openenv

    for where in ('wrong', 'first'):
        broken = type('Broken', (Theirs,), {where: wrong})
        played = from_openenv(broken, str)()
        with pytest.raises(RuntimeError, match=re.escape(words)) as e:
            played.reset(item=Item('theirs', (7, 4)), prompt='?')
            played.act('a')
        assert '\n' not in str(e.value)
        assert f"Broken.{dict(wrong='step', first='reset')[where]}" in str(e.value)


def test_more_of_what_a_hostile_environment_does():
    from rl4llm.environments.adapters import from_openenv

    def told(theirs, say=None):
        with pytest.raises(RuntimeError) as e:
            played = from_openenv(theirs, str, say=say)()
            played.reset(item=Item('theirs', (7, 4)), prompt='?')
            played.act('a')
        assert '\n' not in str(e.value)
        return str(e.value)

    class Over(Theirs):
        first = dict(done=True)

    class Raises(Theirs):
        def step(self, action):
            raise ValueError('no\nsuch thing')

    class Slow(Theirs):
        async def reset(self, seed=None):
            return None

    class Nothing(Theirs):
        def step(self, action):
            return None

    assert told(Over) == 'Over is over before it begins: `reset` gave done=True.'
    assert told(Raises) == 'Raises.step raised ValueError: no such thing'
    assert 'client.sync()' in told(Slow)
    assert 'Nothing.step gave done=None' in told(Nothing)
    assert '`say` made 7 of what Theirs.reset gave' in told(Theirs, say=lambda seen: 7)
    assert '`say` raised AttributeError' in told(Theirs, say=lambda seen: seen.nothing)


@pytest.mark.slow
def test_an_environment_is_served_and_played_through_its_server():
    "A server of OpenEnv on this machine, its client, and the client as an environment of ours."
    server = pytest.importorskip('openenv.core.env_server')
    core = pytest.importorskip('openenv.core.env_client')
    uvicorn = pytest.importorskip('uvicorn')
    import inspect, socket, threading, time
    from openenv.core.client_types import StepResult
    from rl4llm.environments.adapters import as_openenv, from_openenv, openenv_types

    types = openenv_types()
    items = task('calculator').sample(3, seed=0)
    app = server.create_fastapi_app(lambda: as_openenv(Calculator, items), *types)
    place = socket.socket()
    place.bind(('127.0.0.1', 0))
    running = uvicorn.Server(uvicorn.Config(app, log_level='error'))
    thread = threading.Thread(target=running.run, args=([place],), daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.05)

    class Client(core.EnvClient):
        def _step_payload(self, action):
            return action.model_dump()

        def _parse_result(self, payload):
            seen = types.observation(**payload['observation'])
            return StepResult(seen, payload.get('reward'), payload.get('done', False))

        def _parse_state(self, payload):
            return server.State(**payload)

    client = Client(base_url=f'http://127.0.0.1:{place.getsockname()[1]}')
    if inspect.iscoroutinefunction(client.reset):
        client = client.sync()
    try:
        with client:
            played = from_openenv(
                lambda: client, lambda text: types.action(call=text), say=lambda seen: seen.text
            )()
            for seed, item in enumerate(items):
                played.reset(item=Item('served', (seed, 20)), prompt='?')
                assert played.first == item.prompt('text')
                direct = Calculator()
                direct.reset(item=item, prompt='?')
                for call in task('calculator').plan(item, random.Random(0)):
                    wanted = call_in_words(direct, call.split())
                    assert played.act(call).split()[: len(wanted.split())] == wanted.split()
                assert played.get_reward() == 1.0 and played.solved
    finally:
        running.should_exit = True
        thread.join(10)


def chat_tokenizer():
    "Bytes, with the chat template of Qwen2.5, which can tell of tools."
    from pathlib import Path
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    import trl

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token='<|im_end|>', pad_token='<pad>',
        additional_special_tokens=['<|im_start|>'], clean_up_tokenization_spaces=False,
    )  # fmt: skip
    template = Path(trl.__file__).parent / 'chat_templates' / 'qwen2_5.jinja'
    made.chat_template = template.read_text()
    return made


def chat_model(tokenizer):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1)
    heads = dict(num_attention_heads=2, num_key_value_heads=2)
    special = dict(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    config = Qwen2Config(vocab_size=len(tokenizer), bos_token_id=None, **sizes, **heads, **special)
    return Qwen2ForCausalLM(config)


def called(name, **arguments):
    written = json.dumps(dict(name=name, arguments=arguments))
    return f'<tool_call>\n{written}\n</tool_call>'


def recited(tokenizer, plays):
    "A `generate` that says the next line of each row's play, by how often tools have answered it."

    def generate(input_ids, **how):
        said = []
        for row in input_ids:
            text = tokenizer.decode(row)
            answered = text.count('<tool_response>')
            play = plays[1 if 'wrong' in text else 0] if answered else plays[len(said) % 2]
            said.append(tokenizer(f'{play[answered]}<|im_end|>').input_ids)
        width = max(map(len, said))
        padded = [ids + [tokenizer.pad_token_id] * (width - len(ids)) for ids in said]
        return torch.cat([input_ids, torch.tensor(padded)], 1)

    return generate


def test_the_same_class_trains_in_trl(tmp_path):
    "One row works the sum out; the other makes a mistake that is answered, and gives it up."
    pytest.importorskip('trl', minversion='1.16')
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = chat_tokenizer()
    model = chat_model(tokenizer)
    plays = [
        [called('add', a=7, b=5), called('multiply', a=12, b=3), called('answer', value=36), 'so'],
        [called('add', a='x', b=5), called('answer', value=35), 'so'],
    ]
    model.generate = recited(tokenizer, plays)
    question = [{'role': 'user', 'content': SUM.prompt('text')}]
    rows = [dict(prompt=question, item=json.dumps(dataclasses.asdict(SUM)))] * 2
    settings = dict(per_device_train_batch_size=2, num_generations=2, max_completion_length=900)
    settings |= dict(max_steps=1, logging_steps=1, report_to=[], save_strategy='no', use_cpu=True)
    trainer = GRPOTrainer(
        model=model,
        args=GRPOConfig(output_dir=str(tmp_path), bf16=False, **settings),
        train_dataset=Dataset.from_list(rows),
        environment_factory=Calculator,
        processing_class=tokenizer,
    )
    assert {method.__name__ for method in trainer.tools} == {
        'add', 'answer', 'multiply', 'subtract',
    }  # fmt: skip
    trainer.train()
    log = trainer.state.log_history[0]
    assert log['rewards/Calculator/mean'] == 0.5 and log['reward'] == 0.5
    assert log['tools/call_frequency'] == 2.5 and log['tools/failure_frequency'] == 0
    assert log['grad_norm'] > 0
