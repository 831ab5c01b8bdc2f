"""Every recipe was tried out, its record belongs to its present code, and one that does not improve says why."""

import math
import pytest
from rl4llm.core.registry import RECIPES, load_stages, recipe
from rl4llm.studies.tryouts import (
    OWN_TERMS,
    Tryout,
    WHY_NOT,
    acts,
    caption,
    due,
    gain,
    over_placebo,
    placebos_of,
    stored_tryouts,
    try_all,
    try_out,
    tryout_line,
    tryout_of,
    tryout_recipe,
    tryout_table,
)

load_stages()


def test_no_record_is_missing_or_out_of_date():
    assert due() == [], "run `rl4llm tryout --store`"


def test_a_recipe_that_does_not_end_above_its_start_says_why():
    table = tryout_table()
    silent = [
        name
        for name, record in stored_tryouts().items()
        if gain(record)['result'] != 'above the start' and not table.loc[name, 'why not']
    ]
    assert not silent, f"no reason is given for {silent}: see `explain` in the notebook on tryouts"


# Recipes whose run is their parent's by construction; why is said in the test that every idea acts.
SAME_RUN = {'gspo_token', 'expert_iteration'}
SAME_RUN |= {'hindsight_curiosity', 'hindsight_curiosity_dealt', 'plain_curiosity'}  # no replies


def test_no_record_is_that_of_the_parent_under_another_name():
    records = stored_tryouts()
    numbers = lambda name: {k: records[name][k] for k in ('after', 'reward', 'entropy')}
    twins = [
        name
        for name in records
        if recipe(name).parent in records and numbers(name) == numbers(recipe(name).parent)
    ]
    assert set(twins) <= SAME_RUN, (
        f"{set(twins) - SAME_RUN} did nothing that their parents do not do: see OWN_TERMS in the notebook on tryouts"
    )


def test_what_needs_a_model_with_its_words_is_tried_on_it():
    "RLCR was once tried on a model that never states a confidence: its reward was constant."
    from test_ideas_act import BASES

    records = stored_tryouts()
    for name in RECIPES:
        wanted = BASES.get(name, Tryout().model)
        assert tryout_of(name).model == wanted == records[name].get('model', Tryout().model), name
        if name in BASES:
            assert records[name]['before'] != records['grpo']['before']


def test_own_terms_change_the_run_and_make_an_old_record_due(monkeypatch):
    import rl4llm.studies.tryouts as t

    current = dict(fingerprint=tryout_recipe('grpo').fingerprint())
    monkeypatch.setattr(t, 'stored_tryouts', lambda: {'grpo': current})
    assert tryout_of('grpo') == Tryout() and 'grpo' not in due()
    monkeypatch.setitem(OWN_TERMS, 'grpo', dict(level='hard'))
    assert tryout_of('grpo').level == 'hard' and 'grpo' in due()


def test_no_reason_says_what_the_table_computes():
    "Whether a gain is within the noise is the table's to say: a sentence beside it would outlive the numbers."
    assert set(WHY_NOT) <= set(RECIPES)
    for name, why in WHY_NOT.items():
        assert 'noise' not in why and 'improve' not in why, name


def test_above_its_start_there_is_nothing_to_excuse():
    record = dict(
        before=[1] * 20, after=[5] * 20, samples=10, entropy=[0.5, 0.4], reward=[0.1, 0.5], lr=1e-4
    )
    row = tryout_table({'spurious': record}).loc['spurious']
    assert 'spurious' in WHY_NOT and row['result'] == 'above the start' and row['why not'] == ''


# -- what a tryout does not say


def test_every_showing_says_that_it_is_no_comparison():
    table = tryout_table()
    for shown in (repr(table), table._repr_html_(), repr(table.head(3))):
        assert caption() in shown and 'not that its idea helps' in shown
    page = table._repr_html_()
    assert (
        WHY_NOT['grpo_passk'] in page and '&nbsp;[' in page and ' [+' not in page.split('</p>')[1]
    ), 'sentences whole, intervals on one line'
    assert not any('improve' in str(word) for word in table['result'])


def test_a_method_stands_beside_its_placebo():
    pairs = [(name, sham) for name in RECIPES for sham in placebos_of(name)]
    assert len(pairs) >= 8 and all(recipe(sham).parent == name for name, sham in pairs)
    table = tryout_table()
    for name, sham in pairs:
        assert (
            table.loc[name, 'placebo'] in placebos_of(name)
            and table.loc[name, 'over placebo [95%]']
            and sham in tryout_table(names=[name]).index
        )


def test_the_difference_to_the_placebo_is_that_of_the_ends():
    record = lambda after: dict(before=[1] * 20, after=after, samples=10)
    found = over_placebo('univg', {'univg': record([5] * 20), 'univg_shuffled': record([3] * 20)})
    assert (
        found['placebo'] == 'univg_shuffled'
        and found['over'] == pytest.approx(0.2)
        and found['over_low'] <= 0.2 + 1e-9 <= found['over_high'] + 2e-9
    )
    assert over_placebo(
        'univg', {'univg': record([5] * 20)}
    ) == {} and 'univg_shuffled' in tryout_line('univg')
    with pytest.raises(KeyError, match='no recipe is called'):
        tryout_line('no such')


def test_the_parents_run_is_no_evidence_for_the_child():
    record = dict(
        before=[1] * 20, after=[5] * 20, samples=10, entropy=[0.5, 0.4], reward=[0.1, 0.5], lr=1e-4
    )
    records = {'grpo': record, 'dr_grpo': dict(record), 'rloo': record | dict(entropy=[0.5, 0.3])}
    assert (
        recipe('dr_grpo').parent == 'grpo'
        and not acts('dr_grpo', records)
        and acts('grpo', records)
        and not acts('gspo', records)
    )
    assert not acts(
        'rloo', {'rloo': record | dict(entropy=[0.5, 0.4 + 1e-8]), recipe('rloo').parent: record}
    )
    assert tryout_table(records).loc['dr_grpo', 'result'] == 'the same run as its parent'


def test_only_those_that_are_named():
    assert list(tryout_table(names=['rloo']).index) == ['rloo']
    with pytest.raises(KeyError, match='no recipe is called'):
        tryout_table(names=['rlo'])


def test_records_are_whole():
    for name, r in stored_tryouts().items():
        assert len(r['before']) == len(r['after']) == Tryout().problems and all(
            0 <= c <= r['samples'] for c in r['before'] + r['after']
        )
        assert all(math.isfinite(gain(r)[k]) for k in ('before', 'after', 'gain', 'low', 'high'))


def test_the_words_follow_the_interval():
    record = lambda before, after: dict(before=before, after=after, samples=10)
    assert gain(record([1] * 20, [5] * 20))['result'] == 'above the start'
    assert gain(record([5] * 20, [1] * 20))['result'] == 'below the start'
    assert gain(record([0, 10] * 10, [10, 0] * 10))['result'] == 'no change shown'


def test_trying_writes_as_it_goes_and_is_repeatable(tmp_path, monkeypatch):
    import json
    import rl4llm.studies.tryouts as t

    monkeypatch.setattr(
        t,
        'try_out',
        lambda name, how=None, base=None: try_out(
            name, Tryout(steps=1, problems=3, samples=4), base=None
        ),
    )
    monkeypatch.setattr(t, 'stored_tryouts', dict)
    said = []
    made = try_all(['grpo', 'rloo'], say=said.append, path=tmp_path / 'tried.json')
    assert (
        json.loads((tmp_path / 'tried.json').read_text()) == made
        and list(made) == ['grpo', 'rloo']
        and len(said) == 2
    )
    assert made['grpo'] | dict(seconds=0) == try_out(
        'grpo', Tryout(steps=1, problems=3, samples=4)
    ) | dict(seconds=0)


def test_a_command_stores_only_if_it_is_asked_to(tmp_path, monkeypatch):
    import rl4llm.studies.tryouts as t
    from rl4llm.app.cli import app
    from typer.testing import CliRunner

    record = stored_tryouts()['grpo']
    monkeypatch.setattr(t, 'try_out', lambda name, how=None, base=None: record | dict(lr=0.123))
    monkeypatch.setattr(t, 'TRYOUT_FILE', tmp_path / 'assets' / 'tryouts.json')
    monkeypatch.setenv('RL4LLM_RUNS', str(tmp_path / 'runs'))
    for words, where in (([], 'runs'), (['--store'], 'assets')):
        done = CliRunner().invoke(app, ['tryout', 'grpo', *words])
        assert done.exit_code == 0, done.output
        assert f'results: {tmp_path / where}' in done.output and 'grpo' in done.output
        written = [path.parent.name for path in tmp_path.rglob('tryouts.json')]
        assert sorted(written) == sorted({'runs', where})
    assert stored_tryouts()['grpo']['lr'] == 0.123


@pytest.mark.parametrize('name', ['grpo', 'weighted_reinforce'])
def test_step_sizes_are_for_a_short_run(name):
    assert tryout_recipe(name).lr >= 2e-4
