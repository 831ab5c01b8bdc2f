"""Every recipe was tried out, its record belongs to its present code, and one that does not improve says why."""
import math
import pytest
from rl4llm.core.registry import recipe
from rl4llm.studies.tryouts import OWN_TERMS, Tryout, WHY_NOT, due, gain, stored_tryouts, try_all, try_out, tryout_of, tryout_recipe, tryout_table


def test_no_record_is_missing_or_out_of_date():
    assert due() == [], "run `rl4llm tryout`"


def test_a_recipe_that_does_not_improve_says_why():
    table = tryout_table()
    silent = [name for name, row in table.iterrows() if row['result'] != 'improves' and not row['why not']]
    assert not silent, f"no reason is given for {silent}: see `explain` in the notebook on tryouts"


# Recipes whose run is their parent's by construction; why is said in the test that every idea acts.
SAME_RUN = {'gspo_token'}


def test_no_record_is_that_of_the_parent_under_another_name():
    records = stored_tryouts()
    numbers = lambda name: {k: records[name][k] for k in ('after', 'reward', 'entropy')}
    twins = [name for name in records if recipe(name).parent in records and numbers(name) == numbers(recipe(name).parent)]
    assert set(twins) <= SAME_RUN, f"{set(twins) - SAME_RUN} did nothing that their parents do not do: see OWN_TERMS in the notebook on tryouts"


def test_own_terms_change_the_run_and_make_an_old_record_due(monkeypatch):
    import rl4llm.studies.tryouts as t
    current = dict(fingerprint=tryout_recipe('grpo').fingerprint())
    monkeypatch.setattr(t, 'stored_tryouts', lambda: {'grpo': current})
    assert tryout_of('grpo') == Tryout() and 'grpo' not in due()
    monkeypatch.setitem(OWN_TERMS, 'grpo', dict(level='hard'))
    assert tryout_of('grpo').level == 'hard' and 'grpo' in due()


def test_records_are_whole():
    for name, r in stored_tryouts().items():
        assert len(r['before']) == len(r['after']) == Tryout().problems and all(0 <= c <= r['samples'] for c in r['before'] + r['after'])
        assert all(math.isfinite(gain(r)[k]) for k in ('before', 'after', 'gain', 'low', 'high'))


def test_the_words_follow_the_interval():
    record = lambda before, after: dict(before=before, after=after, samples=10)
    assert gain(record([1] * 20, [5] * 20))['result'] == 'improves'
    assert gain(record([5] * 20, [1] * 20))['result'] == 'gets worse'
    assert gain(record([0, 10] * 10, [10, 0] * 10))['result'] == 'no change shown'


def test_trying_writes_as_it_goes_and_is_repeatable(tmp_path, monkeypatch):
    import json
    import rl4llm.studies.tryouts as t
    monkeypatch.setattr(t, 'try_out', lambda name, base=None: try_out(name, Tryout(steps=1, problems=3, samples=4), base=None))
    monkeypatch.setattr(t, 'stored_tryouts', dict)
    said = []
    made = try_all(['grpo', 'rloo'], say=said.append, path=tmp_path / 'tried.json')
    assert json.loads((tmp_path / 'tried.json').read_text()) == made and list(made) == ['grpo', 'rloo'] and len(said) == 2
    assert made['grpo'] | dict(seconds=0) == try_out('grpo', Tryout(steps=1, problems=3, samples=4)) | dict(seconds=0)


@pytest.mark.parametrize('name', ['grpo', 'weighted_reinforce'])
def test_step_sizes_are_for_a_short_run(name): assert tryout_recipe(name).lr >= 2e-4
