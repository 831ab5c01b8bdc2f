"""What foreign code may do at the borders of recipes, stages and runs, and what is said to it: a stage of somebody's own in any form, a name that is misspelt, a file that was changed by hand."""

import dataclasses, functools, importlib, inspect, itertools, json, os, shutil, subprocess, sys
from pathlib import Path
import pytest, torch

from conftest import noisy
from rl4llm.core.pipeline import build_stages, row_parts
from rl4llm.core.ready_stages import ARGUMENTS, BY_KEYWORD, ready, stage_inputs
from rl4llm.core.signals import in_parts
from rl4llm.core.registry import (
    KINDS,
    NUMBERS,
    RECIPES,
    STAGE_FIELDS,
    STAGES,
    Recipe,
    StageInfo,
    as_recipe,
    find_recipe,
    recipe,
    recipe_code,
    recipe_from_dict,
    stages,
    use,
    vary,
)
from rl4llm.analysis.traces import replay
from rl4llm.core.reward_calls import call_reward
from rl4llm.studies.comparison import compare
from rl4llm.training.callbacks import Checkpoint, Evaluate, check_callbacks
from rl4llm.training.checkpoints import latest_checkpoint, read_checkpoint, unpack_stages
from rl4llm.training.loop import train
from rl4llm.training.run_identity import code_digests
from rl4llm.training.real_models import for_text
from rl4llm.training.records import Run
from test_contracts import (
    GROUP,
    batch,
    fn_of,
    over,
    problems,
    signals,
    small_policy as random_policy,
    some_rollouts,
)


def said(call, *kinds):
    "What a call raises, which must be a sentence on one line."
    with pytest.raises(kinds or (ValueError, TypeError, KeyError, FileNotFoundError)) as error:
        call()
    text = str(error.value.args[0])
    assert '\n' not in text and ' ' in text, text
    return text


# stages of somebody's own


def apart(value):
    "A copy in which no two tensors share memory."
    if torch.is_tensor(value):
        return value.clone()
    if isinstance(value, dict):
        return {name: apart(part) for name, part in value.items()}
    return (
        dataclasses.replace(value, **apart(vars(value))) if hasattr(value, 'prompt_ids') else value
    )


def inputs(kind):
    "What stages of a kind are given, by name."
    logp, logp_old, adv, mask = batch(torch.float32)
    r = apart(some_rollouts())
    known = dict(
        rewards=r.rewards,
        group=GROUP.clone(),
        rollouts=r,
        adv=adv,
        logp=logp,
        logp_old=logp_old,
        mask=mask,
        loss=logp.square(),
        policy=random_policy(),
        items=list(problems()[:2]),
    )
    found = {name: known[name] for name in ARGUMENTS[kind]}
    return {**found, 'group': 2} if kind == 'sampler' else found


def more(info):
    "The signals and keywords of a stage beside them."
    keywords = dict(whole=batch()[3], seed=1, temperature=1.0)
    return {
        **signals(info, torch.float32),
        **{name: keywords[name] for name in BY_KEYWORD.get(info.kind, ())},
    }


def in_order(info, names):
    "The stage as a plain function whose parameters stand in this order."
    fn = fn_of(info)
    named = ', '.join(f'{name}={name}' for name in names)
    room = {}
    needs = [*info.needs, *BY_KEYWORD.get(info.kind, ())]
    after = ''.join(f', {name}' for name in (['*'] + needs if needs else []))
    passed = ''.join(f', {name}={name}' for name in needs)
    exec(f'def own({", ".join(names)}{after}): return fn({named}{passed})', dict(fn=fn), room)
    return room['own']


def equal(a, b):
    if isinstance(a, tuple):
        return all(map(equal, a, b))
    if torch.is_tensor(a):
        return torch.equal(a, b)
    return torch.equal(a.tokens, b.tokens) if hasattr(a, 'tokens') else type(a) is type(b)


def one_of_each():
    return [
        next(iter(i for i in stages(kind).values() if i.module.startswith('rl4llm')))
        for kind in ARGUMENTS
    ]


@pytest.mark.parametrize('info', one_of_each(), ids=lambda info: info.kind)
def test_parameters_may_stand_in_any_order(info):
    given = inputs(info.kind)
    right = fn_of(info)(*given.values(), **more(info))
    for names in itertools.permutations(given):
        assert equal(ready(in_order(info, names), info.kind)(*given.values(), **more(info)), right)
    names = list(given)
    for i, j in itertools.permutations(
        range(len(names)), 2
    ):  # a known name at another's place, and one is not there
        mixed = [
            'other' if k == j else names[j] if k == i else name for k, name in enumerate(names)
        ]
        fn = eval(f'lambda {", ".join(mixed)}, **more: None')
        text = said(lambda: ready(fn, info.kind), ValueError)
        assert (
            f"has {names[j]} where {names[i]} is given" in text and f"({', '.join(names)})" in text
        )


@pytest.mark.parametrize('kind', ARGUMENTS)
def test_a_stage_that_cannot_be_called_is_refused_before_training(kind):
    names = list(ARGUMENTS[kind])
    for head in (names[:-1], [*names, 'another']):
        if (
            head == []
            or kind in ('advantage', 'select', 'objective', 'regulariser')
            and 'another' in head
        ):
            continue  # there it is a signal, refused as such
        text = said(lambda: ready(eval(f'lambda {", ".join(head)}: None'), kind), ValueError)
        assert kind in text and ', '.join(names) in text


def test_other_names_are_called_by_position_and_bound_knobs_are_no_signals():
    def own(paid, team, *, power):
        return paid**power

    made = ready(use(own, power=2), 'advantage')
    assert made.needs == () and made(torch.tensor([3.0]), torch.tensor([0])).tolist() == [9.0]
    assert 'lengths where group is given' in said(
        lambda: ready(lambda rewards, lengths: rewards, 'advantage')
    )


def copies(given):
    "A copy of every tensor that a stage is given, by name."
    parts = {name: value for name, (value, _) in stage_inputs(given).items()}
    return {name: x.detach().clone() for name, x in parts.items() if torch.is_tensor(x)}


def changed_bytes(call, given):
    "The tensors that have other numbers after a call, whatever way they were written in."
    before = copies(given)
    call(given)
    after = copies(given)
    assert before.keys() == after.keys()
    same = {
        name: torch.equal(x.nan_to_num(9e9), after[name].nan_to_num(9e9))
        for name, x in before.items()
    }
    return [name for name, is_same in same.items() if not is_same]


@over(*ARGUMENTS)
def test_no_stage_changes_what_it_is_given(info):
    stage = ready(info.name, info.kind)
    beside = more(info)
    given = inputs(info.kind)

    def call(everything):
        arguments = [everything[name] for name in given]
        signals = {name: everything[name] for name in beside}
        stage(*arguments, **signals)  # what torch counts would be refused

    assert changed_bytes(call, {**beside, **given}) == []


def test_a_write_past_the_count_of_torch_is_seen_by_the_contract():
    "The guard of a run does not see it, as its docstring says; the contract does."

    def own(rewards, group):
        rewards.data.mul_(2)
        return rewards - 1

    stage = ready(own, 'advantage')
    assert changed_bytes(lambda given: stage(*given.values()), inputs('advantage')) == ['rewards']
    assert '`.data`' in stage_inputs.__doc__


def test_a_stage_that_writes_into_the_weights_is_refused():
    policy = random_policy()
    weights = dict(policy.model.named_parameters())
    first = next(iter(weights))

    def own(policy, items, group, *, seed, temperature):
        with torch.no_grad():
            weights[first].add_(1)

    def slyly(policy, items, group, *, seed, temperature):
        weights[first].data.add_(1)

    given = dict(policy=policy, items=[], group=2)
    how = dict(seed=0, temperature=1.0)
    text = said(lambda: ready(own, 'sampler')(*given.values(), **how), ValueError)
    assert f'own changed policy.{first},' in text
    call = ready(slyly, 'sampler')
    assert changed_bytes(lambda given: call(*given.values(), **how), given) == [f'policy.{first}']


WAYS = {
    'in place': lambda x: x.zero_(),
    'a part': lambda x: x[:1].fill_(0),
    'a view': lambda x: x.view(-1).zero_(),
}


@pytest.mark.parametrize(
    'kind', [kind for kind in ARGUMENTS if kind not in ('sampler', 'reference')]
)
def test_whatever_a_stage_changes_is_named(kind):
    names = ARGUMENTS[kind]
    for part, (value, _) in stage_inputs(
        inputs(kind)
    ).items():  # each tensor, those of the rollouts too
        for way in WAYS.values() if torch.is_tensor(value) else ():
            given = inputs(kind)

            def spoil(*args, **more):
                return way(stage_inputs(dict(zip(names, args)))[part][0])

            assert f'changed {part},' in said(
                lambda: ready(spoil, kind)(*given.values()), ValueError
            )


def test_a_record_that_is_replaced_is_named():
    def own(rollouts, adv):
        rollouts.rewards = rollouts.rewards - 1

    def other(rollouts, adv):
        rollouts.signals['mine'] = adv

    for fn, part in ((own, 'rewards'), (other, 'signals.mine')):
        assert f'{fn.__name__} changed rollouts.{part},' in said(
            lambda: ready(fn, 'select')(*inputs('select').values())
        )


# what comes back

JUNK = {
    'None': None,
    'a column': torch.ones(1),
    'too few': torch.ones(3),
    'a text': 'text',
    'an object': object(),
    'a table': {},
    'three things': (1, 2, 3),
    'a whole number': torch.tensor(2),
}


def own_stage(kind, junk):
    "A stage that returns something else than its kind does."

    class curious:
        def __init__(self, task):
            pass

        def sample(self, count, *, seed):
            return junk

    def own(*args, **given):
        return junk

    def reward(prompts, completions):
        return junk

    return {'curriculum': curious, 'reward': reward}.get(kind, own)


def short_recipe():
    "A recipe whose steps take no time and have an advantage."
    few = dict(prompts=2, group=2, sampler=use('sample', max_new_tokens=3))
    return recipe('grpo', reward=use(noisy), advantage='reinforce', **few)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('junk', JUNK)
def test_a_stage_of_any_kind_that_returns_something_else_is_named(kind, junk, small_policy, easy):
    field = 'regularisers' if kind == 'regulariser' else kind
    own = own_stage(kind, JUNK[junk])
    changed = short_recipe().but(regularisers='kl_penalty').but(**{field: own})
    text = said(lambda: train(small_policy, easy, changed, steps=1), ValueError, TypeError)
    assert own.__name__ in text and ('wanted' in text or 'does not depend' in text)


@pytest.mark.parametrize(
    'change',
    [
        dict(objective=lambda logp, logp_old, adv, mask: -adv * logp.detach()),
        dict(aggregate=lambda loss, mask, whole: loss.detach().sum()),
        dict(aggregate=lambda loss, mask, whole: torch.tensor(float(loss.sum()))),
    ],
)
def test_a_loss_without_a_gradient_is_named(change, small_policy, easy):
    changed = short_recipe().but(**change)
    assert 'does not depend on logp' in said(
        lambda: train(small_policy, easy, changed, steps=1), ValueError
    )
    drawn = some_rollouts()
    saved = dataclasses.replace(drawn, rewards=torch.arange(len(drawn)).float())
    assert 'does not depend on logp' in said(lambda: replay(saved, changed), ValueError)


def test_a_curriculum_without_problems_is_refused(small_policy, easy):
    def own(task):
        return task

    assert 'the curriculum own has no method sample(count, *, seed)' in said(
        lambda: train(small_policy, easy, recipe('grpo', curriculum=own), steps=1)
    )


# what lies in the folder of a run


def stored(folder, policy, task, *, steps=3, **changes):
    "A short run with a checkpoint at every step, the first of which stays; and how to train on."
    small = recipe(
        'grpo',
        reward=use(noisy),
        sampler=use('sample', max_new_tokens=3),
        prompts=2,
        group=2,
        advantage='reinforce',
        **changes,
    )
    start = policy.clone()
    run = train(start, task, small, steps=steps, path=folder, callbacks=[Checkpoint(every=1)])
    return run, lambda steps=steps: train(
        policy.clone(), task, small, steps=steps, path=folder, callbacks=[Checkpoint(every=1)]
    )


def without_times(rows):
    return [{k: v for k, v in row.items() if not k.startswith('seconds')} for row in rows]


WRONG = {
    'step': [None, '3', 2, True, -1],
    'sha256': [None, 5],
    'stages': [None, [], {'curriculum': 3}],
    'run': [None, 'mine'],
    'metrics': [{}, [1], [{'reward': 1}], [{'step': '0'}], [{'step': True}], [{'step': -1}]],
}


def test_every_field_of_a_state_is_looked_at(tmp_path, small_policy, easy):
    stored(tmp_path, small_policy, easy)
    file = tmp_path / 'checkpoints' / '00000003' / 'state.json'
    good = json.loads(file.read_text())
    assert set(good) == set(WRONG), "a field is written that nobody looks at"
    for field, values in WRONG.items():
        for value in [*values, 'missing'] if field in ('step', 'sha256', 'stages') else values:
            file.write_text(
                json.dumps({k: v for k, v in {**good, field: value}.items() if v != 'missing'})
            )
            text = said(lambda: read_checkpoint(file.parent), ValueError)
            assert f'00000003/state.json: {field} ' in text and 'wanted' in text
            with pytest.warns(UserWarning, match=f'{field} .*using the one before it'):
                assert latest_checkpoint(tmp_path / 'checkpoints')[0]['step'] == 2
    file.write_text('[]')
    assert 'state.json holds a list' in said(lambda: read_checkpoint(file.parent), ValueError)


WRONG_RUN = {
    'recipe': [None, 'grpo', {}, {'name': 3}],
    'task': [None, 3],
    'model': [None, 3],
    'seed': [None, '0', True],
    'steps': [None, '3', True],
    'seconds': [None, '3'],
    'row_digests': [None, ['0']],
}

MAY_BE_MISSING = ('steps', 'seconds', 'row_digests')


def test_every_field_of_a_run_that_is_read_is_looked_at(tmp_path, small_policy, easy):
    _, again = stored(tmp_path, small_policy, easy, steps=1)
    file = tmp_path / 'run.json'
    good = json.loads(file.read_text())
    for field, values in WRONG_RUN.items():
        for value in [*values, 'missing'] if field not in MAY_BE_MISSING else values:
            file.write_text(
                json.dumps({k: v for k, v in {**good, field: value}.items() if v != 'missing'})
            )
            for call in (again, lambda: Run.load(tmp_path)):
                assert f'run.json: {field} is ' in said(call, ValueError)
    file.write_text('[]')
    assert 'run.json holds a list' in said(again, ValueError)


def test_the_state_of_a_stage_that_does_not_fit_is_named():
    class counting:
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            self.seen = state['seen']

    assert 'no state of the curriculum' in said(
        lambda: unpack_stages(dict(curriculum=counting()), {}, {}), ValueError
    )
    assert 'of the curriculum does not fit counting' in said(
        lambda: unpack_stages(dict(curriculum=counting()), dict(curriculum={}), {}), ValueError
    )


def test_rows_are_kept_when_checkpoints_are_gone(tmp_path, small_policy, easy):
    run, again = stored(tmp_path, small_policy, easy)
    before = (tmp_path / 'metrics.jsonl').read_text()
    shutil.rmtree(tmp_path / 'checkpoints')
    with pytest.warns(UserWarning, match='metrics of 3 steps, but no checkpoint.*replaced.jsonl'):
        new = again()
    assert (tmp_path / 'replaced.jsonl').read_text() == before and without_times(
        new.rows
    ) == without_times(run.rows)


def test_rows_without_a_run_are_not_written_over(tmp_path, small_policy, easy):
    _, again = stored(tmp_path, small_policy, easy)
    shutil.rmtree(tmp_path / 'checkpoints')
    (tmp_path / 'run.json').unlink()
    before = (tmp_path / 'metrics.jsonl').read_text()
    assert 'metrics of 3 steps and 0 evaluations, but no run.json' in said(again, ValueError)
    assert (tmp_path / 'metrics.jsonl').read_text() == before and not (
        tmp_path / 'run.json'
    ).exists()


def test_metrics_of_another_run_are_refused(tmp_path, small_policy, easy):
    run, again = stored(tmp_path / 'mine', small_policy, easy)
    stored(tmp_path / 'other', small_policy, easy, lr=1e-2, temperature=2.0)
    shutil.copy(tmp_path / 'other' / 'metrics.jsonl', tmp_path / 'mine')
    before = (tmp_path / 'mine' / 'metrics.jsonl').read_text()
    for call in (again, lambda: Run.load(tmp_path / 'mine')):
        text = said(call, ValueError)
        assert (
            'metrics.jsonl is of another run than the checkpoints' in text
            and 'up to step 2' in text
        )
    assert (tmp_path / 'mine' / 'metrics.jsonl').read_text() == before
    (tmp_path / 'mine' / 'metrics.jsonl').unlink()
    with pytest.warns(UserWarning, match='nothing is lost'):
        assert without_times(again(4).rows)[:3] == without_times(run.rows)


@pytest.mark.parametrize(
    'killed', [False, True], ids=['finished', 'killed before its first checkpoint']
)
def test_metrics_of_another_run_are_refused_without_a_checkpoint(
    tmp_path, small_policy, easy, killed
):
    _, again = stored(tmp_path / 'mine', small_policy, easy)
    stored(tmp_path / 'other', small_policy, easy, lr=1e-2, temperature=2.0)
    shutil.rmtree(tmp_path / 'mine' / 'checkpoints')
    own = (tmp_path / 'mine' / 'metrics.jsonl').read_text()
    foreign = (tmp_path / 'other' / 'metrics.jsonl').read_text()
    if killed:
        file = tmp_path / 'mine' / 'run.json'
        config = json.loads(file.read_text())
        config['row_digests'].pop('2')
        file.write_text(json.dumps(config))
    files = [foreign, foreign.splitlines(keepends=True)[0]]
    if not killed:  # the same first step, as of two methods that part later
        files.append(
            own.splitlines(keepends=True)[0] + ''.join(foreign.splitlines(keepends=True)[1:])
        )
    for text in files:
        (tmp_path / 'mine' / 'metrics.jsonl').write_text(text)
        for call in (again, lambda: Run.load(tmp_path / 'mine')):
            assert 'metrics.jsonl is of another run than the run.json' in said(call, ValueError)
        assert (tmp_path / 'mine' / 'metrics.jsonl').read_text() == text
    (tmp_path / 'mine' / 'metrics.jsonl').write_text(own)
    assert len(Run.load(tmp_path / 'mine').rows) == 3


# stages of somebody's own in stored recipes


def through_json(made):
    return json.loads(json.dumps(made.to_dict()))


def shadow():
    "Functions with the names of stages of the library, each another thing."

    def grpo(rewards, group):
        return rewards

    def keep_all(rollouts, adv):
        return adv, adv

    def ppo_clip(logp, logp_old, adv, mask):
        return logp

    def entropy_bonus(logp, mask):
        return logp

    def aggregate(loss, mask, *, whole=None):
        return loss.sum()

    def correct(prompts, completions):
        return prompts

    def sample(policy, items, group, *, seed, temperature):
        return policy

    def fixed_reference(policy):
        return policy

    class uniform:
        pass

    return dict(
        advantage=grpo,
        select=keep_all,
        objective=ppo_clip,
        regularisers=entropy_bonus,
        aggregate=aggregate,
        reward=correct,
        sampler=sample,
        reference=fixed_reference,
        curriculum=uniform,
    )


@pytest.mark.parametrize('field', STAGE_FIELDS)
def test_a_stored_stage_of_ones_own_is_never_taken_for_ours(field, monkeypatch):
    own = shadow()[field]
    kind = field.removesuffix('s')
    assert own.__name__ in stages(kind)
    for fn in (own, use(own)):
        made = recipe('grpo', **{field: fn})
        text = said(lambda: recipe_from_dict(through_json(made)), ValueError)
        assert own.__name__ in text and own.__module__ in text and 'which is not here' in text
    assert 'an object made with functools:partial' not in said(
        lambda: recipe_from_dict(through_json(recipe('grpo', **{field: functools.partial(own)}))),
        ValueError,
    )
    own.__qualname__ = f'own_{own.__name__}'
    monkeypatch.setitem(globals(), own.__qualname__, own)
    assert recipe_from_dict(through_json(made)) == made  # it is here


def test_the_place_of_a_stage_of_ones_own_does_not_count(monkeypatch):
    own = shadow()['advantage']
    made = recipe('grpo', advantage=own)
    before = made.fingerprint()
    monkeypatch.setattr('rl4llm.core.registry._own_place', lambda bound, kind: {})
    assert made.fingerprint() == before and recipe('grpo').fingerprint() != before


def test_a_registered_stage_of_ones_own_is_stored_with_its_place(monkeypatch):
    def mine(rewards, group):
        return rewards

    monkeypatch.setitem(STAGES, ('advantage', 'mine'), StageInfo('mine', 'advantage', mine))
    stored = through_json(recipe('grpo', advantage='mine'))
    assert 'which is not here' in said(lambda: recipe_from_dict(stored), ValueError)
    assert all(
        'function' not in bound
        for name in RECIPES
        for bound in through_json(recipe(name)).values()
        if isinstance(bound, dict)
    )  # ours are stored by name


# what a recipe and a run are made of


def test_a_recipe_completes_itself():
    assert Recipe('x', advantage='grpo', regularisers='entropy_bonus') == vary(
        Recipe('x'), advantage='grpo', regularisers=('entropy_bonus',)
    )
    for bad, words in (
        (dict(advantage=None), 'advantage is None'),
        (dict(objective='grpo'), 'stage of kind advantage'),
        (dict(lr=-1), 'lr is -1'),
        (dict(lr=1e38), 'lr is 1e+38'),
        (dict(regularisers=(3,)), 'regulariser is 3'),
    ):
        assert words in said(lambda: Recipe('x', **bad), TypeError, ValueError)


def test_for_text_twice_is_for_text_once():
    for name in RECIPES:
        once = for_text(name, max_new_tokens=100, lr=2e-6)
        assert for_text(once, max_new_tokens=100, lr=2e-6) == once


def test_what_is_no_policy_task_or_recipe_is_named(small_policy, easy):
    right = dict(policy=small_policy, task=easy, recipe=recipe('grpo'))
    junk = [*right.values(), None, 5, small_policy.model, torch.nn.Linear(2, 2), [1]]
    for field in right:
        for other in junk:
            if other is right[field]:
                continue
            text = said(lambda: train(**{**right, field: other}, steps=1), TypeError)
            assert f'the {field} is ' in text and 'wanted' in text
    assert 'Policy(model, tokenizer)' in said(
        lambda: train(small_policy.model, easy, 'grpo', steps=1)
    )
    assert "the policy is 'countdown/easy', which is a task" in said(
        lambda: train('countdown/easy', 'tiny', 'grpo', steps=1)
    )
    for call in (
        recipe,
        as_recipe,
        for_text,
        find_recipe,
        lambda given: recipe('grpo').diff(given),
    ):
        for given in (5, small_policy):
            assert 'wanted a Recipe or the name of one' in said(lambda: call(given), TypeError)


# names

REWARDS = [1.0, 0.0]


def public(place):
    "A function by its module and name."
    module, name = place.rsplit('.', 1)
    return getattr(importlib.import_module(f'rl4llm.{module}'), name)


def first(place, *after, **more):
    return lambda given: public(place)(given, *after, **more)


def by_key(place, key, *before, **more):
    return lambda given: public(place)(*before, **more, **{key: given})


MISSPELT = {
    'world': ('lokup', 'lookup'),
    'primed base': ('tiny-thnk-s-v1', 'tiny-think-s-v1'),
    'data set': ('spell_backwrd', 'spell_backward'),
    'recipe': ('grpoo', 'grpo'),
    'stage': ('ppo_clipp', 'ppo_clip'),
    'kind': ('advantges', 'advantage'),
    'study': ('clip_hihger', 'clip_higher'),
    'protocol': ('split_by_cpoy', 'split_by_copy'),
    'dataset': ('mathh', 'math'),
    'data': ('countdwon', 'countdown'),
    'claim': ('nsr_kepes', 'nsr_keeps'),
    'map': ('nsr_stpes', 'nsr_steps'),
    'task': ('countdwon', 'countdown'),
    'level': ('eesy', 'easy'),
    'base': ('tiny-v11', 'tiny-v1'),
    'policy': ('tinny', 'tiny'),
    'exercise': ('E11', '1.1'),
    'family': ('advantags', 'advantages'),
    'status': ('buildt', 'built'),
    'verdict': ('reprodused', 'reproduced'),
    'split': ('tset', 'test'),
    'benchmark': ('cpuu', 'cpu'),
    'setting': ('sead', 'seed'),
    'metric': ('entrpy', 'entropy'),
    'field': ('epcohs', 'epochs'),
    'knob': ('cof', 'coef'),
    'reward': ('corect', 'correct'),
}
LOOKED_UP = {
    'core.registry.recipe': ('recipe', first),
    'studies.worlds.train_world': ('world', first),
    'studies.primed_bases.train_primed': ('primed base', first),
    'tasks.reasoning_gym.gym_task': ('data set', first),
    'core.registry.find_recipe': ('recipe', first),
    'core.registry.as_recipe': ('recipe', first),
    'core.registry.find_stage': ('stage', first),
    'core.registry.stages': ('kind', first),
    'core.registry.stage': ('kind', first),
    'core.registry.check_kind': ('kind', first),
    'atlas.catalogue.carries': ('recipe', first),
    'core.method_map.recipe_tree': ('recipe', first),
    'core.method_map.changes_of': ('recipe', first),
    'core.method_map.is_placebo': ('recipe', first),
    'core.method_map.recipe_map': ('recipe', first),
    'core.policy.as_policy': ('policy', first),
    'core.settings_file.parse_key': ('setting', lambda place: first(place, '1')),
    'training.real_models.for_text': ('recipe', first),
    'training.real_models.real_policy': ('policy', first),
    'training.pretraining.base_spec': ('base', first),
    'training.callbacks.check_metrics': (
        'metric',
        lambda place: lambda given: first(place, ['entropy', 'reward'])([given]),
    ),
    'tasks.protocol.task': ('task', first),
    'tasks.protocol.levels': ('task', first),
    'tasks.protocol.as_task': ('task', first),
    'course.exercises.yours_or_reference': ('exercise', lambda place: first(place, 1)),
    'course.glossary.metric_card': ('metric', first),
    'course.reproduction_lesson.claim_parts': ('claim', first),
    'course.reproduction_lesson.report': ('claim', first),
    'course.reproduction_lesson.testable_with': ('study', lambda place: first(place, 1)),
    'course.exercises.exercise_named': ('exercise', first),
    'course.exercises.review_answer': ('exercise', lambda place: first(place, 1)),
    'course.exercises.check_answer': ('exercise', lambda place: first(place, 1)),
    'studies.study.study_named': ('study', first),
    'atlas.regime_maps.map_cells': ('map', first),
    'atlas.regime_maps.map_named': ('map', first),
    'atlas.regime_maps.map_sentence': ('map', first),
    'atlas.regime_maps.plot_map': ('map', first),
    'atlas.regime_maps.readable_cells': ('map', first),
    'atlas.regime_maps.study_of_map': ('map', first),
    'atlas.regime_maps.maps_of_claim': ('claim', first),
    'atlas.regime_maps.maps_of_study': ('study', first),
    'atlas.claims_report.claim_section': ('claim', first),
    'atlas.claims_report.plot_claim': ('claim', first),
    'scaling.dataflow.protocol': ('protocol', first),
    'scaling.datasets.load_problems': ('dataset', first),
    'scaling.launching.data_from': ('data', first),
    'studies.study.load_study': ('study', first),
    'rewards.stress_suite.needs_of': ('reward', first),
    'rewards.stress_suite.stress_all': ('reward', first),
    'studies.frontiers.store_frontiers': ('study', first),
    'studies.frontiers.frontier_verdict': ('study', first),
    'studies.frontiers.not_there_yet': ('study', first),
    'studies.frontiers.plot_study': ('study', first),
    'course.reproduction_lesson.word_in': ('claim', lambda place: first(place, {})),
    'atlas.claims.corrected': ('claim', lambda place: first(place, [])),
    'atlas.claims.judged_parts': ('claim', lambda place: first(place, {})),
    'atlas.claims.measured_rows': ('claim', lambda place: first(place, {})),
    'studies.tryouts.tryout_of': ('recipe', first),
    'studies.tryouts.tryout_recipe': ('recipe', first),
    'studies.tryouts.try_out': ('recipe', first),
    'studies.tryouts.placebos_of': ('recipe', first),
    'studies.tryouts.over_placebo': ('recipe', lambda place: first(place, {})),
    'studies.tryouts.acts': ('recipe', first),
    'studies.tryouts.tryout_line': ('recipe', first),
    'studies.probes.probe_recipe': ('recipe', first),
    'studies.probes.probe': ('recipe', first),
    'atlas.claims.study_arms': ('study', first),
    **{
        f'atlas.claims.{name}': ('claim', first)
        for name in (
            'claim_named',
            'claim_table',
            'claim_verdict',
            'lacks_runs',
            'paper_of',
            'words_of',
            'why_earlier_loop',
            'measured_verdict',
            'why_waiting',
            'claim_rows',
            'then',
            'claim_html',
        )
    },
    'atlas.catalogue.table': ('family', first),
    'atlas.explorer.atlas_rows': ('family', first),
    'atlas.explorer.atlas_explorer': ('family', first),
    'app.benchmarks.load_benchmark': ('benchmark', first),
    'scaling.config_files.load_config': ('recipe', first),
    'widgets.explorers.recipe_differ': ('recipe', lambda place: first(place, 'grpo')),
}
MORE = {  # further arguments of these, and lists of names
    'a stage of a kind': ('stage', by_key('core.registry.find_stage', 'name', kind='objective')),
    'the kind of a stage': ('kind', by_key('core.registry.find_stage', 'kind', 'grpo')),
    'a field': ('field', lambda given: recipe('grpo', **{given: 1})),
    'a parent': ('recipe', lambda given: recipe('grpo').diff(given)),
    'a recipe to compare with': ('recipe', by_key('widgets.explorers.recipe_differ', 'b', 'grpo')),
    'advantages': (
        'recipe',
        lambda given: first('widgets.explorers.advantage_table', methods=[given])(REWARDS),
    ),
    'a stage in a recipe': ('stage', lambda given: build_stages(recipe('grpo', objective=given))),
    'a knob': ('knob', lambda given: use('kl_penalty', **{given: 1})),
    'tryouts': ('recipe', lambda given: public('studies.tryouts.tryout_table')(None, [given])),
    'probes': ('recipe', lambda given: first('studies.probes.changed_probes')([given])),
    'probes to store': (
        'recipe',
        lambda given: first('studies.probes.store_probes', why='none')([given]),
    ),
    'probe names': ('recipe', lambda given: first('studies.probes.probes_named')([given])),
    'a status': ('status', by_key('atlas.catalogue.table', 'status')),
    'a shown status': ('status', by_key('atlas.explorer.atlas_rows', 'status')),
    'a verdict': ('verdict', by_key('atlas.explorer.atlas_rows', 'verdict')),
    'a level': ('level', lambda given: public('tasks.protocol.task')('countdown', given)),
    'a level in a name': (
        'level',
        lambda given: first('tasks.protocol.as_task')(f'countdown/{given}'),
    ),
    'a split': (
        'split',
        lambda given: public('tasks.protocol.task')('countdown').sample(1, seed=0, split=given),
    ),
    'a policy to train': ('policy', lambda given: train(given, 'countdown', 'grpo', steps=1)),
    'a task to train on': ('task', lambda given: train(random_policy(), given, 'grpo', steps=1)),
    'a recipe to train by': (
        'recipe',
        lambda given: train(random_policy(), 'countdown', given, steps=1),
    ),
}
NOT_LOOKED_UP = """analysis.plots.method_look course.reproduction_lesson.claim_text course.reproduction_lesson.study_text course.reproduction_lesson.parts_in course.exercises.exercise course.exercises.keep_answer core.lazy.index core.lazy.places_of core.lazy.attach core.policy.model_folder core.registry.nearest_names core.registry.add_recipe core.rollouts.check_shape core.rollouts.check_drawn
core.rollouts.check_problems core.reward_calls.as_rewards core.settings_file.close_names core.settings_file.nearest core.settings_file.check_name core.signals.check_needs core.signals.source_of core.signals.whose core.signals.writer_of core.sources.file_of core.sources.notebook_of
core.ready_stages.check_unchanged core.ready_stages.check_returned analysis.passk.whole_numbers analysis.forks.plot_forks oracle.estimators.tree_has oracle.estimators.statistic_of rewards.spurious.check_rate scaling.config_files.check_recipe
atlas.claims_report.draw_pictures objectives.sequence_ratios.check_limits studies.frontiers.verdict_file studies.frontiers.path_from_counts studies.study.study_file studies.probes.checksum studies.tryouts.explain studies.tryouts.idle_lines tasks.protocol.add_task training.pretraining.add_base training.pretraining.card_rows
widgets.panels.check_knob
training.run_identity.check_folder_for""".split()  # names that the caller makes up, places where something would be, or a question with the answer no


def takes_a_name(parameter):
    return parameter.name in ('name', 'claim', 'kind', 'root', 'family') and 'list' not in str(
        parameter.annotation
    )


@functools.cache
def functions_of_names():
    "Public functions whose first parameter is called a name."
    found = set()
    for module in importlib.import_module('rl4llm._modidx').d['syms']:
        made = importlib.import_module(module)
        for name in made.__all__:
            fn = getattr(made, name)
            if not inspect.isfunction(fn) or module.startswith('rl4llm.app.cli'):
                continue
            parameters = list(inspect.signature(fn).parameters.values())
            if parameters and takes_a_name(parameters[0]):
                found.add(f'{module.removeprefix("rl4llm.")}.{name}')
    return found


def test_every_function_of_a_name_is_asked():
    unknown = functions_of_names() - set(LOOKED_UP) - set(NOT_LOOKED_UP)
    assert not unknown, (
        f"add {sorted(unknown)} to LOOKED_UP with a misspelt name, or to NOT_LOOKED_UP"
    )


@pytest.mark.parametrize('place', LOOKED_UP)
def test_a_misspelt_name_is_answered(place):
    what, how = LOOKED_UP[place]
    answered(what, how(place))


@pytest.mark.parametrize('what', MORE)
def test_a_misspelt_name_at_another_place_is_answered(what):
    answered(*MORE[what])


def answered(what, call):
    given, right = MISSPELT[what]
    text = said(lambda: call(given))
    assert given in text and right in text.replace(given, ''), text


def test_a_paper_is_a_number():
    from rl4llm.core.citations import cited

    assert (
        cited(None) == ''
        and cited(17)
        and 'wanted its number' in said(lambda: cited('17'), TypeError)
    )


# what is stored is data


def called_by_a_stored_recipe():
    raise AssertionError('a stored recipe has called a function')


@pytest.mark.parametrize('place', ['builtins:print', f'{__name__}:called_by_a_stored_recipe'])
def test_a_stored_recipe_calls_no_function(place):
    stored = recipe('grpo').to_dict()
    stored['advantage']['knobs'] = dict(scale={'function': place, 'of': 'group'})
    assert 'wraps no factor' in said(lambda: recipe_from_dict(stored), ValueError)


def test_a_stored_recipe_imports_nothing():
    stored = recipe('grpo').to_dict()
    stored['advantage']['knobs'] = dict(scale={'function': 'antigravity:fly'})
    assert 'which is not here' in said(lambda: recipe_from_dict(stored), ValueError)
    assert 'antigravity' not in sys.modules


def test_digests_hold_all_code_that_the_fingerprint_counts():
    "Knobs and what they wrap too: else a run is refused and nobody can say what has changed."
    for name in ('hicra_random', 'grpo', 'forking_tokens'):
        made = recipe(name)
        assert set(code_digests(made)) == set(recipe_code(made))
    assert any('placebo' in place for place in code_digests(recipe('hicra_random')))


def test_parts_are_put_together_in_the_order_of_the_rows():
    rows = some_rollouts()
    parts = row_parts(torch.tensor([0, 1] * (len(rows) // 2)), 2, keep_groups=True)
    assert torch.cat(parts).tolist() != list(range(len(rows)))
    found = in_parts(lambda part: dict(tokens=part.tokens), rows, parts)
    assert torch.equal(found['tokens'], rows.tokens)


def test_a_replay_keeps_the_regularisers_of_its_recipe():
    drawn = some_rollouts()
    saved = dataclasses.replace(
        drawn,
        rewards=torch.zeros(len(drawn)),
        logp_ref=(drawn.logp_behave - 0.5).masked_fill(~drawn.mask, 0.0),
    )
    made = recipe('grpo', regularisers=use('kl_penalty', coef=1.0))
    kept = replay(saved, made)
    without = replay(saved, made, regularisers=())
    assert kept.total > 0 and kept.weight.any()
    assert without.total == 0 and without.recipe.regularisers == ()


# how things are given


def powered(rewards, group, *, power=1, fold=None):
    return rewards**power


def test_any_callable_may_be_a_knob():
    "A partial, an object, a class, a built-in: printed, stored, fingerprinted, else refused."

    class Fold:
        def __call__(self, x):
            return x

    for fold in (functools.partial(powered, power=2), Fold(), Fold, len, powered):
        made = recipe('grpo', advantage=use(powered, fold=fold))
        assert ' at 0x' not in repr(made.advantage) or isinstance(fold, Fold)
        stored = json.loads(json.dumps(made.to_dict()))
        assert stored['advantage']['knobs']['fold']['function'] and made.fingerprint()
        if isinstance(fold, (functools.partial, Fold)) or fold is Fold:
            assert 'which is not here' in said(lambda: recipe_from_dict(stored), ValueError)
        else:
            assert recipe_from_dict(stored).advantage == made.advantage
    shown = repr(use(powered, fold=functools.partial(powered, power=2)))
    assert shown == 'powered(fold=partial(powered))'


def test_no_number_of_a_recipe_is_true_or_false():
    numbers = list(NUMBERS)
    assert 'group' in numbers and 'lr' in numbers
    for field in numbers:
        for value in (True, False):
            text = said(lambda: recipe('grpo', **{field: value}), ValueError)
            assert f'{field} is {value}' in text


def test_a_stage_of_ones_own_is_told_from_one_of_its_name():
    def grpo(rewards, group):
        return rewards

    made = recipe('grpo', advantage=grpo)
    pair = made.diff('grpo')['advantage']
    assert str(pair[0]) != str(pair[1]) and str(pair[0]) == str(recipe('grpo').advantage)
    assert (
        __name__ in str(pair[1]) and str(recipe('grpo', advantage=powered).advantage) == 'powered'
    )


REWARDS_NOT_BY_NAME = [
    lambda prompts, completions, /: [0.0] * len(completions),
    lambda completions, /, **columns: [0.0] * len(completions),
    lambda *args: [0.0] * len(args),
    lambda: [0.0, 0.0],
    lambda other=3: [0.0, 0.0],
]


@pytest.mark.parametrize('reward', REWARDS_NOT_BY_NAME)
def test_a_reward_that_cannot_be_called_by_name_is_refused(reward, small_policy, easy):
    text = said(lambda: call_reward(reward, ['?'] * 2, ['7'] * 2), ValueError)
    assert 'by name' in text
    changed = short_recipe().but(reward=reward)
    assert 'by name' in said(lambda: train(small_policy, easy, changed, steps=1), ValueError)
    assert call_reward(lambda *args, **columns: [1.0], ['?'], ['7']) == [1.0]


def test_callbacks_are_none_one_or_several():
    saving = Checkpoint()
    for given, wanted in ((None, []), ((), []), (saving, [saving]), (iter([saving]), [saving])):
        assert check_callbacks(given) == wanted
    for wrong in (Checkpoint, 3, 'progress', [None], object()):
        assert 'callback' in said(lambda: check_callbacks(wrong), ValueError)


@pytest.mark.parametrize('given', [None, 3, 'runs/mine', Path('runs'), ['runs/mine'], {'a': 1}])
def test_what_is_no_run_is_not_compared(given):
    assert 'wanted runs' in said(lambda: compare(given), TypeError)


def test_one_run_is_compared_alone():
    from rl4llm.studies.study import load_study, study_runs

    run = study_runs(load_study('negative_reinforcement'), 'on-policy', level='hard')[0]
    assert compare(run, ks=(1,)).table.equals(compare([run], ks=(1,)).table)


# code that has changed, and code that has not


READ = """
import importlib, json, pathlib, sys
sys.path.insert(0, sys.argv[1])
from rl4llm.core.fingerprint import not_compared
from rl4llm.core.registry import recipe, recipe_code, use
found = {}
for file in sorted(pathlib.Path(sys.argv[1]).glob('own_*.py')):
    own = importlib.import_module(file.stem)
    stage = getattr(own, 'stage', None) or use(own.f, **getattr(own, 'knobs', {}))
    made = recipe('grpo', advantage=stage)
    json.dumps(made.to_dict())
    found[file.stem] = made.fingerprint(), len(not_compared(recipe_code(made)))
print(json.dumps(found))
"""


def read_anew(folder, seed, **files):
    "Fingerprints of the recipes of modules in a process of its own, and how much has none."
    folder.mkdir()
    for name, text in files.items():
        (folder / f'{name}.py').write_text(text)
    child = subprocess.run(
        [sys.executable, '-c', READ, str(folder)],
        env={**os.environ, 'PYTHONHASHSEED': str(seed)},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return json.loads(child.stdout)


PLACES = 'def up(x): return x + 1\ndef down(x): return x - 1\n'
CHANGED = {  # {} stands for 1, then for 2
    'an imported module': ('import helpers\ndef f(rewards, group): return helpers.h(rewards)', 0),
    'an imported name': ('from helpers import h\ndef f(rewards, group): return h(rewards)', 0),
    'a constant': ('import helpers\ndef f(rewards, group): return rewards * helpers.RATE', 0),
    'an import inside': (
        'def f(rewards, group):\n    from helpers import h\n    return h(rewards)',
        0,
    ),
    'a base class': (
        'from helpers import Base\n'
        'class f(Base):\n'
        '    def __call__(self, rewards, group): return self.h(rewards)',
        0,
    ),
    'a class attribute': (
        'import helpers\n'
        'class f:\n'
        '    rate = helpers.RATE\n'
        '    def __call__(self, rewards, group): return rewards * self.rate',
        0,
    ),
    'a namespace': ('import types\nN = types.SimpleNamespace(x={})\n', 'N.x'),
    'a data class': (
        'import dataclasses\n'
        '@dataclasses.dataclass(slots=True)\n'
        'class D:\n'
        '    x: int = 0\n'
        'N = D({})\n'
        '',
        'N.x',
    ),
    'an object': ('class D:\n    def __init__(self, x): self.x = x\nN = D({})\n', 'N.x'),
    'a partial': (
        'import functools\ndef g(a, b): return a * b\nN = functools.partial(g, {})\n',
        'N(1)',
    ),
    'lambdas in a list': ('N = [lambda x: x, lambda x: x * {}]\n', 'N[1](1)'),
    'lambdas of a loop': ('N = [lambda x, k=k: x * k for k in (1, {})]\n', 'N[1](1)'),
    'tensors in a list': ('import torch\nN = [torch.ones(2), torch.full((2,), {})]\n', 'N[1]'),
    'a shape': ('import torch\nN = torch.ones(2, 2).reshape({}, -1)\n', 'N'),
    'a number beside a tensor': ("import torch\nN = dict(a=torch.ones(1), b={})\n", "N['b']"),
    'a fraction': ('from fractions import Fraction\nN = Fraction({}, 3)\n', 'float(N)'),
    'a complex number': ('N = {} + 1j\n', 'abs(N)'),
    'a range': ('N = range({})\n', 'len(N)'),
    'bytes': ('N = bytes([{}])\n', 'N[0]'),
    'a counter': ('import collections\nN = collections.Counter(a={})\n', "N['a']"),
    'weights': (
        'import torch\nN = torch.nn.Linear(1, 1)\nN.weight.data.fill_({})\nN.bias.data.fill_(0)\n',
        'N.bias',
    ),
    'a cached function': ('import functools\n@functools.cache\ndef N(): return {}\n', 'N()'),
    'a pattern': ("import re\nN = re.compile('a' * 300 + 'b' * {})\n", 'len(N.pattern)'),
    'a method': ('class D:\n    x = {}\n    def m(self): return self.x\nN = D().m\n', 'N()'),
    'names that change places': (PLACES + 'A, B = [up, down][::(-1) ** {}]\n', 'A(B(1) * 2)'),
    'defaults that change places': (
        PLACES + 'def N(a=[up, down][{} - 1], b=[down, up][{} - 1]): return a(b(1) * 2)\n',
        'N()',
    ),
    'closures that change places': (
        PLACES
        + 'def both(a, b): return lambda x: a(b(x) * 2)\n'
        + 'N = both(*[up, down][::(-1) ** {}])\n',
        'N(1)',
    ),
    'attributes that change places': (
        PLACES
        + 'class D:\n'
        + '    def __init__(self, a, b): self.a, self.b = a, b\n'
        + '    def __call__(self, rewards, group): return self.a(self.b(rewards) * 2)\n'
        + 'stage = D(*[up, down][::(-1) ** {}])\n',
        'N',
    ),
    'a class with functions that change places': (
        PLACES + 'class D:\n    a, b = [up, down][::(-1) ** {}]\n',
        'D.a(D.b(1) * 2)',
    ),
}
HELPERS = """
RATE = {}
def h(rewards): return rewards * {}
class Base:
    def h(self, rewards): return rewards * {}
"""


def test_whatever_has_changed_is_seen(tmp_path):
    files = {'helpers': HELPERS}
    for i, (text, read) in enumerate(CHANGED.values()):
        call = f'def f(rewards, group): return rewards * {read}' if read else ''
        files[f'own_{i:02}'] = text + call
    one, same, other = (
        read_anew(
            tmp_path / f'{number} {seed}',
            seed,
            **{name: text.replace('{}', str(number)) for name, text in files.items()},
        )
        for number, seed in ((1, 0), (1, 5), (2, 0))
    )
    assert len(one) == len(CHANGED)
    for what, name in zip(CHANGED, sorted(one)):
        assert one[name] == same[name], f'{what} differs from itself'
        assert one[name][0] != other[name][0], f'{what} has changed unseen'
        assert one[name][1] == 0, f'{what} cannot be compared'


SAME_CODE = {
    'a set in the code': "f = lambda r, group: r * (1.0 if 'a' in {'a', 'b', 'c', 'd'} else 2.0)",
    'sets in a table': (
        "N = dict(x=[{'a', 'b', 'c', 'd'}], y=({'e', 'f', 'g'},))\n"
        "def f(rewards, group): return rewards * len(N)"
    ),
    'a set as a knob': (
        "def f(rewards, group, *, k): return rewards\nknobs = dict(k={'a', 'b', 'c', 'd'})"
    ),
    'a function in a partial': (
        'import functools\n'
        'def h(x): return x\n'
        'def g(rewards, group, *, h): return h(rewards)\n'
        'stage = functools.partial(g, h=h)'
    ),
    'a partial as a knob': (
        'import functools\n'
        'def h(x): return x\n'
        'def f(rewards, group, *, k): return k(rewards)\n'
        'knobs = dict(k=functools.partial(h))'
    ),
    'an object as a knob': (
        'class K: pass\ndef f(rewards, group, *, k): return rewards\nknobs = dict(k=K())'
    ),
    'an object that is called': (
        'class K:\n'
        '    def __call__(self, x): return x\n'
        'def f(rewards, group, *, k): return k(rewards)\n'
        'knobs = dict(k=K())'
    ),
    'a tensor as a knob': (
        'import torch\ndef f(rewards, group, *, k): return rewards\nknobs = dict(k=torch.ones(2))'
    ),
    'functions in a knob': (
        'import math\n'
        'def h(x): return x\n'
        'def f(rewards, group, *, k): return rewards\n'
        'knobs = dict(k=[h, math.sqrt])'
    ),
    'many names': (
        'A, B, C, D = [lambda x, k=k: k * x for k in (1, 2, 3, 4)]\n'
        'def f(r, group): return A(B(C(D(r))))'
    ),
    'functions of others': (
        'from numpy import sqrt\n'
        'from torch import relu\n'
        'from torch.nn.functional import silu\n'
        'def f(rewards, group): return relu(silu(sqrt(rewards)))'
    ),
    'a wrapper of torch': 'import torch\n@torch.no_grad()\ndef f(rewards, group): return rewards',
}


def test_the_same_code_is_the_same_in_another_process(tmp_path):
    files = {f'own_{i:02}': text for i, text in enumerate(SAME_CODE.values())}
    first, *others = (read_anew(tmp_path / str(seed), seed, **files) for seed in (0, 1, 2))
    for what, name in zip(SAME_CODE, sorted(first)):
        assert all(other[name] == first[name] for other in others), f'{what} differs from itself'
        assert first[name][1] == 0, f'{what} cannot be compared'


def test_what_cannot_be_compared_is_told_when_a_run_goes_on(tmp_path, small_policy, easy, recwarn):
    import random

    drawn = random.Random(0)

    def own(rewards, group):
        return rewards * (1 if drawn else 2)

    how = dict(prompts=2, group=2, sampler=use('sample', max_new_tokens=3))
    for made, words in (
        (recipe('grpo', **how), []),
        (recipe('grpo', advantage=own, **how), ['own: drawn']),
    ):
        folder = tmp_path / made.advantage.name
        for steps in (1, 2):
            recwarn.clear()
            train(small_policy.clone(), easy, made, steps=steps, path=folder)
            told = [str(w.message) for w in recwarn if 'cannot be seen' in str(w.message)]
            assert len(told) == (len(words) if steps == 2 else 0)
            assert all(word in text for word, text in zip(words, told))


def test_a_task_of_ones_own_counts_with_its_code():
    from rl4llm.training.run_identity import task_settings

    def made(number, shown):
        room = dict(number=number)
        exec('class mine:\n    def verify(self, item, text): return number', room)
        if shown:
            room['mine'].__repr__ = lambda self: 'mine()'
        return room['mine']()

    for shown in (False, True):
        one, same, other = (task_settings(made(number, shown)) for number in (1, 1, 2))
        assert one == same != other and ' at 0x' not in one and one.startswith('mine')


# stages that remember


def remembering(kind, methods):
    "A class of a kind with these methods, which counts how often it is updated."

    class Mine:
        updated = []

        def __init__(self, *task):
            self.inner = (
                ready(recipe('grpo').curriculum, 'curriculum', *task).call if task else None
            )

        def sample(self, count, *, seed):
            return self.inner.sample(count, seed=seed)

        def __call__(self, rewards, group):
            return rewards

    kept = dict(
        update=lambda self, news: self.updated.append(news),
        state_dict=lambda self: {},
        load_state_dict=lambda self, state: None,
    )
    if kind == 'curriculum':
        del Mine.__call__
    else:
        del Mine.sample
    for name in methods:
        setattr(Mine, name, kept[name])
    return Mine


MEMORY = ('update', 'state_dict', 'load_state_dict')


@pytest.mark.parametrize('kind', ['curriculum', 'advantage'])
@pytest.mark.parametrize('count', range(4))
def test_whoever_has_an_update_is_updated_or_refused(kind, count, small_policy, easy):
    small = recipe('grpo', prompts=2, group=2, sampler=use('sample', max_new_tokens=3))
    for methods in itertools.combinations(MEMORY, count):
        cls = remembering(kind, methods)
        keeps = {'state_dict', 'load_state_dict'} <= set(methods)
        for given in (cls, use(cls), functools.partial(cls)):

            def call():
                return train(small_policy, easy, small.but(**{kind: given}), steps=1)

            if methods and not keeps:
                text = said(call, ValueError)
                assert f'the {kind} Mine has {methods[0]}' in text and 'state_dict' in text
            else:
                cls.updated.clear()
                call()
                assert len(cls.updated) == ('update' in methods)
        made = cls(easy) if kind == 'curriculum' else cls()

        def call():
            return train(small_policy, easy, small.but(**{kind: made}), steps=1)

        if 'update' in methods:
            assert f'the {kind} Mine is an object that learns' in said(call, ValueError)
        elif kind == 'curriculum' and methods and not keeps:
            said(call, ValueError)
        else:
            call()


COME_BACK = [
    1,
    2.5,
    float('nan'),
    'text',
    None,
    True,
    [1, [2.0]],
    {'a': {'b': 1}},
    torch.ones(2),
    [],
]
CHANGED_BY_JSON = [
    {0: 0.25},
    {'a': {1: 2}},
    (1, 2),
    [(1, 2)],
    {True: 1},
    {1, 2},
    [torch.ones(1)],
    torch.ones(1).numpy(),
    functools.partial(max),
    1j,
]


def keeping(state):
    "A stage whose memory is `state()`."

    class keeper:
        def __call__(self, rewards, group):
            return rewards

        def state_dict(self):
            return state()

        def load_state_dict(self, state):
            self.given = state

    return keeper


@pytest.mark.parametrize('value', [*COME_BACK, *CHANGED_BY_JSON], ids=repr)
def test_a_memory_comes_back_as_it_was_or_is_refused(value, tmp_path, small_policy, easy):
    "Before the first step, and later if it becomes so later; nothing half-written is left."
    small = recipe('grpo', prompts=2, group=2, sampler=use('sample', max_new_tokens=3))
    calls = []

    def later():
        calls.append(1)
        return {'seen': value if len(calls) > 1 else 0}

    for state in (lambda: {'seen': value}, later):
        folder = tmp_path / str(state is later)

        def run():
            made = small.but(advantage=keeping(state))
            return train(small_policy, easy, made, steps=1, path=folder)

        if any(value is other for other in COME_BACK):
            run()
            kept, tensors = latest_checkpoint(folder / 'checkpoints')
            back = kept['stages']['advantage'].get('seen', tensors.get('stages/advantage/seen'))
            assert repr(back) == repr(value)
        else:
            assert "the state of the advantage has 'seen'" in said(run, ValueError)
            assert not list(folder.glob('checkpoints/*')) and not list(
                folder.glob('checkpoints/.*')
            )
            assert (folder / 'metrics.jsonl').exists() == (state is later)
            if state is later:
                assert (folder / 'metrics.jsonl').read_text().count('\n') == 1
    bad = small.but(advantage=keeping(lambda: {3: torch.ones(1)}))
    assert 'has 3: ' in said(lambda: train(small_policy, easy, bad, steps=1, path=tmp_path / 'b'))


@pytest.mark.parametrize('knob', ['temperature', 'seed', 'group', 'max_new_tokens'])
def test_a_sampler_s_knob_is_refused_however_it_is_bound(knob, small_policy, easy):
    from rl4llm.core.sampling import sample

    set_by_recipe = dict(max_new_tokens=5) if knob == 'max_new_tokens' else {}
    for bound in (
        use('sample', **{knob: 3}),
        functools.partial(sample, **{knob: 3}),
        use(functools.partial(sample, **{knob: 3})),
        functools.partial(functools.partial(sample, top_k=0), **{knob: 3}),
    ):

        def call():
            made = recipe('grpo', sampler=bound, **set_by_recipe)
            return train(small_policy, easy, made, steps=1)

        assert knob in said(call, ValueError)


def test_every_field_of_an_evaluation_is_looked_at(tmp_path, small_policy, easy):
    items = easy.sample(2, seed=0, split='test')
    how = dict(steps=3, path=tmp_path)
    made = recipe('grpo', prompts=2, group=2, sampler=use('sample', max_new_tokens=3))
    exam = Evaluate(items, samples=2)
    train(small_policy.clone(), easy, made, **how, callbacks=[exam])
    last = tmp_path / 'evaluations' / '00000003.json'
    good = json.loads(last.read_text())

    def again():
        return train(small_policy.clone(), easy, made, **how, callbacks=[exam])

    numbers = [None, [], 'two', [1], ['1', '1'], [0.5, 0.5], [-1, -1], [9, 9], [True, True]]
    wrong = dict(
        step=[None, '3', 2, True],
        task=[None, 3],
        keys=[None, 'ab', ['a']],
        num_samples=numbers[:-2],
        num_correct=numbers,
        seed=[None, 'a'],
        model=[3],
        temperature=['warm', None],
        extras=[[]],
    )
    assert set(wrong) == set(good), 'a field is written that nobody looks at'
    bad = [{**good, field: value} for field, values in wrong.items() for value in values]
    without = [{k: v for k, v in good.items() if k != field} for field in ('step', 'task', 'keys')]
    for content in [*bad, *without, {**good, 'other': 1}, {}, [], 3, None]:
        last.write_text(json.dumps(content))
        for call in (again, lambda: Run.load(tmp_path)):
            assert '00000003.json' in said(call, ValueError)
    last.write_text(json.dumps(good))
    (last.parent / '00000099.json').write_text(json.dumps({**good, 'step': 99}))
    for call in (again, lambda: Run.load(tmp_path)):
        with pytest.warns(UserWarning, match='00000099.json is of step 99, and the run has 3'):
            assert call().final.step == 3


def test_a_file_is_no_folder_for_a_run(tmp_path, small_policy, easy):
    path = tmp_path / 'a file'
    path.write_text('mine')
    text = said(lambda: train(small_policy, easy, short_recipe(), steps=1, path=path), ValueError)
    assert 'is a file, wanted a folder' in text and path.read_text() == 'mine'


def test_an_advantage_is_real(small_policy, easy):
    def turned(rewards, group):
        return rewards * 1j

    changed = short_recipe().but(advantage=turned)
    text = said(lambda: train(small_policy, easy, changed, steps=1), TypeError)
    assert 'the advantage of turned is complex, wanted real numbers' in text
