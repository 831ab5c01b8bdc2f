"""What foreign code may do at the borders of recipes, stages and runs, and what is said to it: a stage of somebody's own in any form, a name that is misspelt, a file that was changed by hand."""
import dataclasses, itertools, json, shutil
import pytest, torch

from conftest import noisy
from rl4llm.core.pipeline import GIVEN, BY_KEYWORD, parts_of, ready
from rl4llm.core.registry import KINDS, recipe, stages, use
from rl4llm.training.callbacks import Checkpoint
from rl4llm.training.checkpoints import latest_checkpoint, read_checkpoint, unpack_stages
from rl4llm.training.loop import train
from rl4llm.training.records import Run
from test_contracts import GROUP, batch, fn_of, over, problems, rewards_of, signals, small_policy as random_policy, some_rollouts


def said(call, *kinds):
    "What a call raises, which must be a sentence on one line."
    with pytest.raises(kinds or (ValueError, TypeError, KeyError, FileNotFoundError)) as error: call()
    text = str(error.value.args[0])
    assert '\n' not in text and ' ' in text, text
    return text


# stages of somebody's own

def apart(value):
    "A copy in which no two tensors share memory."
    if torch.is_tensor(value): return value.clone()
    if isinstance(value, dict): return {name: apart(part) for name, part in value.items()}
    return dataclasses.replace(value, **apart(vars(value))) if hasattr(value, 'prompt_ids') else value


def inputs(kind):
    "What stages of a kind are given, by name."
    logp, logp_old, adv, mask = batch(torch.float32)
    r = apart(some_rollouts())
    known = dict(rewards=r.rewards, group=GROUP.clone(), rollouts=r, adv=adv, logp=logp, logp_old=logp_old, mask=mask, loss=logp.square(), policy=random_policy(), items=list(problems()[:2]))
    found = {name: known[name] for name in GIVEN[kind]}
    return {**found, 'group': 2} if kind == 'sampler' else found


def more(info):
    "The signals and keywords of a stage beside them."
    keywords = dict(whole=batch()[3], seed=1, temperature=1.0)
    return {**signals(info, torch.float32), **{name: keywords[name] for name in BY_KEYWORD.get(info.kind, ())}}


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
    if isinstance(a, tuple): return all(map(equal, a, b))
    if torch.is_tensor(a): return torch.equal(a, b)
    return torch.equal(a.tokens, b.tokens) if hasattr(a, 'tokens') else type(a) is type(b)


def one_of_each(): return [next(iter(i for i in stages(kind).values() if i.module.startswith('rl4llm'))) for kind in GIVEN]


@pytest.mark.parametrize('info', one_of_each(), ids=lambda info: info.kind)
def test_parameters_may_stand_in_any_order(info):
    given = inputs(info.kind)
    right = fn_of(info)(*given.values(), **more(info))
    for names in itertools.permutations(given):
        assert equal(ready(in_order(info, names), info.kind)(*given.values(), **more(info)), right)
    names = list(given)
    for i, j in itertools.permutations(range(len(names)), 2):                         # a known name at another's place, and one is not there
        mixed = ['other' if k == j else names[j] if k == i else name for k, name in enumerate(names)]
        fn = eval(f'lambda {", ".join(mixed)}, **more: None')
        text = said(lambda: ready(fn, info.kind), ValueError)
        assert f"has {names[j]} where {names[i]} is given" in text and f"({', '.join(names)})" in text


@pytest.mark.parametrize('kind', GIVEN)
def test_a_stage_that_cannot_be_called_is_refused_before_training(kind):
    names = list(GIVEN[kind])
    for head in (names[:-1], [*names, 'another']):
        if head == [] or kind in ('advantage', 'select', 'objective', 'regulariser') and 'another' in head: continue    # there it is a signal, refused as such
        text = said(lambda: ready(eval(f'lambda {", ".join(head)}: None'), kind), ValueError)
        assert kind in text and ', '.join(names) in text


def test_other_names_are_called_by_position_and_bound_knobs_are_no_signals():
    def own(paid, team, *, power): return paid ** power
    made = ready(use(own, power=2), 'advantage')
    assert made.needs == () and made(torch.tensor([3.]), torch.tensor([0])).tolist() == [9.]
    assert 'lengths where group is given' in said(lambda: ready(lambda rewards, lengths: rewards, 'advantage'))


@over(*GIVEN)
def test_no_stage_changes_what_it_is_given(info):
    given = inputs(info.kind)
    ready(info.name, info.kind)(*given.values(), **more(info))                         # would be refused


WAYS = {'in place': lambda x: x.zero_(), 'a part': lambda x: x[:1].fill_(0), 'a view': lambda x: x.view(-1).zero_()}


@pytest.mark.parametrize('kind', [kind for kind in GIVEN if kind not in ('sampler', 'reference')])
def test_whatever_a_stage_changes_is_named(kind):
    names = GIVEN[kind]
    for part, (value, _) in parts_of(inputs(kind)).items():                          # each tensor, those of the rollouts too
        for way in WAYS.values() if torch.is_tensor(value) else ():
            given = inputs(kind)
            def spoil(*args, **more): return way(parts_of(dict(zip(names, args)))[part][0])
            assert f'changed {part},' in said(lambda: ready(spoil, kind)(*given.values()), ValueError)


def test_a_record_that_is_replaced_is_named():
    def own(rollouts, adv): rollouts.rewards = rollouts.rewards - 1
    def other(rollouts, adv): rollouts.signals['mine'] = adv
    for fn, part in ((own, 'rewards'), (other, 'signals.mine')):
        assert f'{fn.__name__} changed rollouts.{part},' in said(lambda: ready(fn, 'select')(*inputs('select').values()))


# what comes back

JUNK = {'None': None, 'a column': torch.ones(1), 'too few': torch.ones(3), 'a text': 'text', 'an object': object(), 'a table': {}, 'three things': (1, 2, 3), 'a whole number': torch.tensor(2)}


def own_stage(kind, junk):
    "A stage that returns something else than its kind does."
    class curious:
        def __init__(self, task): pass
        def sample(self, count, *, seed): return junk
    def own(*args, **given): return junk
    def reward(prompts, completions): return junk
    return {'curriculum': curious, 'reward': reward}.get(kind, own)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('junk', JUNK)
def test_a_stage_of_any_kind_that_returns_something_else_is_named(kind, junk, small_policy, easy):
    field = 'regularisers' if kind == 'regulariser' else kind
    own = own_stage(kind, JUNK[junk])
    small = recipe('grpo', reward=use(noisy), sampler=use('sample', max_new_tokens=3), prompts=2, group=2, advantage='reinforce', regularisers='kl_penalty')
    text = said(lambda: train(small_policy, easy, small.but(**{field: own}), steps=1), ValueError, TypeError)
    assert own.__name__ in text and ('wanted' in text or 'does not depend' in text)


@pytest.mark.parametrize('change', [
    dict(objective=lambda logp, logp_old, adv, mask: -adv * logp.detach()), dict(aggregate=lambda loss, mask, whole: loss.detach().sum()), dict(aggregate=lambda loss, mask, whole: torch.tensor(float(loss.sum())))])
def test_a_loss_without_a_gradient_is_named(change, small_policy, easy):
    small = recipe('grpo', reward=use(noisy), sampler=use('sample', max_new_tokens=3), prompts=2, group=2, advantage='reinforce')
    assert 'does not depend on logp' in said(lambda: train(small_policy, easy, small.but(**change), steps=1), ValueError)


def test_a_curriculum_without_problems_is_refused(small_policy, easy):
    def own(task): return task
    assert 'the curriculum own has no method sample(count, *, seed)' in said(lambda: train(small_policy, easy, recipe('grpo', curriculum=own), steps=1))


# what lies in the folder of a run

def stored(folder, policy, task, *, steps=3, **changes):
    "A short run with a checkpoint at every step, the first of which stays; and how to train on."
    small = recipe('grpo', reward=use(noisy), sampler=use('sample', max_new_tokens=3), prompts=2, group=2, advantage='reinforce', **changes)
    start = policy.clone()
    run = train(start, task, small, steps=steps, path=folder, callbacks=[Checkpoint(every=1)])
    return run, lambda steps=steps: train(policy.clone(), task, small, steps=steps, path=folder, callbacks=[Checkpoint(every=1)])


def without_times(rows): return [{k: v for k, v in row.items() if not k.startswith('seconds')} for row in rows]


WRONG = {'step': [None, '3', 2, True, -1], 'sha256': [None, 5], 'stages': [None, [], {'curriculum': 3}], 'run': [None, 'mine'], 'metrics': [{}, [1], [{'reward': 1}], [{'step': '0'}], [{'step': True}]]}


def test_every_field_of_a_state_is_looked_at(tmp_path, small_policy, easy):
    stored(tmp_path, small_policy, easy)
    file = tmp_path / 'checkpoints' / '00000003' / 'state.json'
    good = json.loads(file.read_text())
    assert set(good) == set(WRONG), "a field is written that nobody looks at"
    for field, values in WRONG.items():
        for value in [*values, 'missing'] if field in ('step', 'sha256', 'stages') else values:
            file.write_text(json.dumps({k: v for k, v in {**good, field: value}.items() if v != 'missing'}))
            text = said(lambda: read_checkpoint(file.parent), ValueError)
            assert f'00000003/state.json: {field} ' in text and 'wanted' in text
            with pytest.warns(UserWarning, match=f'{field} .*using the one before it'): assert latest_checkpoint(tmp_path / 'checkpoints')[0]['step'] == 2
    file.write_text('[]')
    assert 'state.json holds a list' in said(lambda: read_checkpoint(file.parent), ValueError)


WRONG_RUN = {'recipe': [None, 'grpo', {}, {'name': 3}], 'task': [None, 3], 'model': [None, 3], 'seed': [None, '0', True], 'steps': [None, '3', True], 'seconds': [None, '3']}


def test_every_field_of_a_run_that_is_read_is_looked_at(tmp_path, small_policy, easy):
    _, again = stored(tmp_path, small_policy, easy, steps=1)
    file = tmp_path / 'run.json'
    good = json.loads(file.read_text())
    for field, values in WRONG_RUN.items():
        for value in [*values, 'missing'] if field not in ('steps', 'seconds') else values:
            file.write_text(json.dumps({k: v for k, v in {**good, field: value}.items() if v != 'missing'}))
            for call in (again, lambda: Run.load(tmp_path)): assert f'run.json: {field} is ' in said(call, ValueError)
    file.write_text('[]')
    assert 'run.json holds a list' in said(again, ValueError)


def test_the_state_of_a_stage_that_does_not_fit_is_named():
    class counting:
        def state_dict(self): return {}
        def load_state_dict(self, state): self.seen = state['seen']
    assert 'no state of the curriculum' in said(lambda: unpack_stages(dict(curriculum=counting()), {}, {}), ValueError)
    assert 'of the curriculum does not fit counting' in said(lambda: unpack_stages(dict(curriculum=counting()), dict(curriculum={}), {}), ValueError)


def test_rows_are_kept_when_checkpoints_are_gone(tmp_path, small_policy, easy):
    run, again = stored(tmp_path, small_policy, easy)
    before = (tmp_path / 'metrics.jsonl').read_text()
    shutil.rmtree(tmp_path / 'checkpoints')
    with pytest.warns(UserWarning, match='metrics of 3 steps, but no checkpoint.*replaced.jsonl'): new = again()
    assert (tmp_path / 'replaced.jsonl').read_text() == before and without_times(new.rows) == without_times(run.rows)


def test_rows_without_a_run_are_not_written_over(tmp_path, small_policy, easy):
    _, again = stored(tmp_path, small_policy, easy)
    shutil.rmtree(tmp_path / 'checkpoints')
    (tmp_path / 'run.json').unlink()
    before = (tmp_path / 'metrics.jsonl').read_text()
    assert 'metrics of 3 steps and 0 evaluations, but no run.json' in said(again, ValueError)
    assert (tmp_path / 'metrics.jsonl').read_text() == before and not (tmp_path / 'run.json').exists()


def test_metrics_of_another_run_are_refused(tmp_path, small_policy, easy):
    run, again = stored(tmp_path / 'mine', small_policy, easy)
    stored(tmp_path / 'other', small_policy, easy, lr=1e-2, temperature=2.0)
    shutil.copy(tmp_path / 'other' / 'metrics.jsonl', tmp_path / 'mine')
    before = (tmp_path / 'mine' / 'metrics.jsonl').read_text()
    for call in (again, lambda: Run.load(tmp_path / 'mine')):
        text = said(call, ValueError)
        assert 'metrics.jsonl is of another run than the checkpoints' in text and 'up to step 2' in text
    assert (tmp_path / 'mine' / 'metrics.jsonl').read_text() == before
    (tmp_path / 'mine' / 'metrics.jsonl').unlink()
    with pytest.warns(UserWarning, match='nothing is lost'): assert without_times(again(4).rows)[:3] == without_times(run.rows)
