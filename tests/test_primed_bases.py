"""Three bases whose demonstrations think differently, and a change carried to a larger one."""

import dataclasses
import json

import pytest
import torch

from rl4llm.core.policy import ASSETS, Policy
from rl4llm.core.storage import read_json
from rl4llm.studies.primed_bases import (
    LARGE,
    PRIMED,
    PRIMED_RUN,
    carried_table,
    carry_change,
    habits_of_base,
    plot_primed,
    primed_due,
    primed_records,
    primed_table,
    train_all_primed,
    train_primed,
)
from rl4llm.studies.study import standing
from rl4llm.studies.tryouts import tryout_recipe
from rl4llm.tasks import task
from rl4llm.training.pretraining import base_spec

SHORT = dataclasses.replace(PRIMED_RUN, steps=1, problems=3, samples=2)


@pytest.mark.parametrize('name', PRIMED)
def test_a_stored_base_is_that_of_its_specification(name):
    made = read_json(ASSETS / name / 'pretraining.json')['spec']
    wanted = json.loads(json.dumps(dataclasses.asdict(base_spec(name))))
    for field in ('architecture', 'thoughts', 'steps', 'batch', 'lr', 'second', 'seed'):
        assert made[field] == wanted[field], field
    assert (ASSETS / name / 'model.safetensors').stat().st_size < 1e6


def test_only_the_first_base_backs_up_rightly():
    "Of what was planted, the bases do what their demonstrations did."
    items = task('countdown').sample(25, seed=3, split='test')
    found = {name: habits_of_base(Policy.load(name), items, samples=6) for name in PRIMED}
    back, straight, careless = (found[name] for name in PRIMED)
    assert straight['backtracks a thought'] == 0
    assert back['backtracks a thought'] > 2 * careless['backtracks a thought'] > 0
    assert back['checks that are right'] > 0.8 > 0.5 > careless['checks that are right']


def test_stored_runs_are_current_and_as_said():
    assert primed_due() == []
    table = primed_table()
    assert set(table.index.get_level_values('base')) == set(PRIMED)
    assert all(len(r['reward']) == PRIMED_RUN.steps for r in primed_records())


def test_a_carried_change_is_the_changes_and_not_the_floors():
    record = read_json(ASSETS / 'analysis' / 'carried_change.json')
    assert standing(record, tryout_recipe('grpo', PRIMED_RUN), 'grpo') == 'current'
    table = carried_table()['right']
    own, strange = (
        table['large and the change, w = 1'],
        table["large and a stranger's change, w = 1"],
    )
    assert own > strange + 0.1
    assert strange > table["large with the floor alone"] > table["large"]


@pytest.mark.takes_turns
@pytest.mark.slow
def test_a_run_goes_on_from_what_there_is(tmp_path, monkeypatch):
    path = tmp_path / 'runs.json'
    monkeypatch.setattr('rl4llm.studies.primed_bases.PRIMED_RUN', SHORT)
    said = []
    train_all_primed([(PRIMED[1], 3)], say=said.append, path=path)
    records = train_all_primed([(PRIMED[0], 3)], say=said.append, path=path)
    assert [r['base'] for r in records] == [PRIMED[0], PRIMED[1]] and len(said) == 2
    again = train_all_primed([(PRIMED[0], 3)], say=said.append, path=path)
    assert len(again) == 2 and again[0]['reward'] == records[0]['reward']
    assert len(primed_table(again)) == 2 and len(plot_primed(again)) == 2


def test_another_base_or_no_step_is_refused():
    with pytest.raises(KeyError, match='primed base'):
        train_primed('tiny-v1')
    with pytest.raises(ValueError, match='steps'):
        train_primed(PRIMED[0], steps=0)


@pytest.mark.takes_turns
@pytest.mark.slow
def test_a_change_is_carried():
    said = []
    record = carry_change(ws=(1.0,), how=SHORT, say=said.append)
    rows = record['rows']
    alone, carried = rows['large'], rows['large and the change, w = 1']
    assert carried['computed'] > 2 * alone['computed'] and len(said) == len(rows)
    assert len(alone['right']) == SHORT.problems
    sizes = [sum(p.numel() for p in Policy.load(n).model.parameters()) for n in (PRIMED[0], LARGE)]
    assert 2.5 < sizes[1] / sizes[0] < 3.5 and torch.is_grad_enabled()
