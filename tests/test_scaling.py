"Full-scale configurations: every shipped file is sound, and a wrong one is answered in one sentence."

import html, inspect, re
from copy import deepcopy
from pathlib import Path
import nbformat, pytest, yaml
from rl4llm.core.citations import cited
from rl4llm.core.registry import recipe
from rl4llm.scaling.config_files import (
    HYPERPARAMETERS,
    LAUNCH,
    config_names,
    config_rows,
    configs,
    load_config,
    parse_config,
    read_config,
    whose_numbers,
)

TOP = Path(__file__).resolve().parents[1]

BASE = ('dr_grpo', 'grpo', 'negative', 'positive', 'reinforce', 'rloo', 'weighted_reinforce')


def changed(section=None, /, **changes):
    "The contents of the file `negative` with changes (in one section)."
    data = deepcopy(read_config('negative'))
    (data if section is None else data[section]).update(changes)
    return data


def test_there_is_a_file_for_every_base_recipe():
    assert set(BASE) <= set(config_names())


@pytest.mark.parametrize('name', config_names())
def test_file_is_sound(name):
    config = load_config(name)
    assert config.name == name and recipe(config.recipe).name == config.recipe
    assert all(source.strip() for _, _, source in config_rows(config))
    assert config['model'] and config['learning_rate'] > 0 and config['num_generations'] > 1
    assert config.differences, 'every file says how it differs from what was published'


@pytest.mark.parametrize('name', config_names())
def test_numbers_of_the_recipe_and_the_file_agree(name):
    "Where the recipe clips, has a weight or a KL term, the file reports one, and the other way round."
    config, here = load_config(name), recipe(load_config(name).recipe)
    assert (config['epsilon'] is not None) == (here.objective.name == 'ppo_clip') or name == 'rloo'
    if (weight := config['positive_weight']) is not None:
        assert here.advantage.info.fn.__kwdefaults__['weight'] == weight


# Files whose source divides otherwise than the recipe does: who says so.
DIVIDES_OTHERWISE = {
    'decoupled_ppo': 'AReaL, setup: advantages normalised over the global batch',
    'rover': "ROVER's run scripts, mathematics",
}
UNDIVIDED = ('dr_grpo', 'gui_g1', 'negative', 'positive', 'reinforce', 'rloo', 'weighted_reinforce')


def division_of(bound):
    "The knob `scale` of an advantage, 'none' where it divides by nothing, None if unknown."
    parameters = inspect.signature(bound.info.fn).parameters
    if 'scale' in parameters:
        return dict(bound.knobs).get('scale', parameters['scale'].default)
    return 'none' if bound.name in UNDIVIDED else None


@pytest.mark.parametrize('name', config_names())
def test_the_file_divides_advantages_as_the_recipe_does(name):
    "RLCR at scale was once divided by the deviation, which its recipe and its paper leave out."
    config = load_config(name)
    here, there = division_of(recipe(config.recipe).advantage), config['scale_rewards']
    if name in DIVIDES_OTHERWISE:
        source = config.hyperparameters['scale_rewards'].source
        assert here != there and DIVIDES_OTHERWISE[name] in source
    elif here is not None:
        assert here == there


def test_batches_of_rlcr_and_evol_rl_are_those_of_the_released_scripts():
    rlcr, evol = load_config('rlcr'), load_config('evol_rl')
    sizes = ('num_processes', 'per_device_train_batch_size', 'gradient_accumulation_steps')
    assert [rlcr[size] for size in sizes] == [4, 8, 64]
    assert 4 * 8 * 64 == rlcr['prompts_per_step'] * rlcr['num_generations']
    want = dict(prompts_per_step=8, minibatch_prompts=1, max_completion_length=12288, epochs=3)
    assert {k: evol[k] for k in want} == want
    sources = [source for config in (rlcr, evol) for _, _, source in config_rows(config)]
    assert not any('not known' in source for source in sources)


def test_paper_values_of_weighted_reinforce():
    config = load_config('weighted_reinforce')
    want = dict(
        learning_rate=1e-6,
        prompts_per_step=1024,
        num_generations=8,
        minibatch_prompts=256,
        temperature=1.0,
        epsilon=0.2,
        beta=0.0,
        positive_weight=0.1,
        max_completion_length=3072,
        max_grad_norm=1.0,
        epochs=20,
    )
    assert {k: config[k] for k in want} == want and config.paper == 17


def test_like_takes_over_and_says_so():
    grpo, base = load_config('grpo'), load_config('negative')
    assert grpo['learning_rate'] == base['learning_rate'] and grpo.hyperparameters[
        'learning_rate'
    ].source.startswith('as in negative: ')
    assert grpo['entropy_coef'] is None and grpo['beta'] != base['beta']
    assert (
        load_config('weighted_reinforce').hyperparameters['learning_rate'].source
        == base.hyperparameters['learning_rate'].source
    )


@pytest.mark.parametrize(
    'data, words',
    [
        (changed(modle='x'), ["'modle'", "did you mean 'model'"]),
        (
            changed('hyperparameters', learning_rte=dict(value=1.0, source='ours')),
            ["'learning_rte'", "did you mean 'learning_rate'"],
        ),
        (changed('hyperparameters', beta=dict(value=0.0)), ['beta', 'no source']),
        (changed('hyperparameters', beta=dict(value=0.0, source='  ')), ['beta', 'no source']),
        (
            changed('hyperparameters', beta=dict(value=0.0, sorce='ours')),
            ["'sorce'", "did you mean 'source'"],
        ),
        (changed('hyperparameters', beta=0.0), ['beta', 'value', 'source']),
        (
            changed('hyperparameters', learning_rate=dict(value='1e-6', source='ours')),
            ["'1e-6'", '1.0e-6'],
        ),
        (
            changed('hyperparameters', epochs=dict(value=2.5, source='ours')),
            ['2.5', 'whole number'],
        ),
        (
            changed('hyperparameters', epochs=dict(value=True, source='ours')),
            ['True', 'whole number'],
        ),
        (
            changed('hyperparameters', loss_type=dict(value='gspo', source='ours')),
            ["'gspo'", 'dapo'],
        ),
        (
            changed('launch', use_vllm=dict(value='yes', source='ours')),
            ['use_vllm', 'true or false'],
        ),
        (
            changed('hyperparameters', num_generations=dict(value=16, source='ours')),
            ['2048', '4096'],
        ),
        (changed(recipe='negativ'), ["'negativ'", 'negative']),
        (changed(notes='one'), ['notes', 'list of sentences']),
        (changed(paper='seventeen'), ['paper', 'number of a paper']),
        (changed(model='a name'), ['model', 'value', 'source']),
        ({k: v for k, v in changed().items() if k != 'model'}, ["lacks the field 'model'"]),
    ],
)
def test_a_wrong_file_is_answered_in_one_sentence(data, words):
    with pytest.raises(ValueError) as error:
        parse_config(data, 'mine.yaml')
    message = str(error.value)
    assert (
        all(w in message for w in words)
        and '\n' not in message
        and ('mine.yaml' in message or 'rows' in message)
    )


def test_files_of_ones_own(tmp_path):
    path = tmp_path / 'mine.yaml'
    path.write_text(
        'name: mine\nrecipe: grpo\nlike: grpo\nhyperparameters:\n  learning_rate: {value: 2.0e-6, source: ours}\n'
    )
    assert (
        load_config(path)['learning_rate'] == 2e-6
        and load_config(str(path))['num_generations'] == load_config('grpo')['num_generations']
    )
    path.write_text('name: [1')
    with pytest.raises(ValueError, match='mine.yaml is not YAML'):
        load_config(path)
    path.write_text('- 1')
    with pytest.raises(ValueError, match='holds list'):
        load_config(path)
    path.write_text(f'name: mine\nrecipe: grpo\nlike: {path}\n')
    with pytest.raises(ValueError, match='circle'):
        load_config(path)


def test_unknown_names():
    with pytest.raises(FileNotFoundError, match="did you mean 'dr_grpo'"):
        load_config('dr_gpro')
    with pytest.raises(KeyError, match="did you mean 'learning_rate'"):
        load_config('grpo')['learning_rte']


def test_the_table_has_a_row_a_file():
    table = configs()
    assert (
        list(table.index) == config_names() and 'as in' not in load_config('negative')._repr_html_()
    )
    assert set(HYPERPARAMETERS).isdisjoint(LAUNCH)


def test_files_hold_only_what_they_change():
    "A file that is like another repeats none of its values."
    from rl4llm.scaling.config_files import config_path

    for name in config_names():
        own = yaml.safe_load(config_path(name).read_text())
        if 'like' not in own:
            continue
        base = read_config(own['like'])
        same = [
            k
            for section in ('hyperparameters', 'launch')
            for k, v in (own.get(section) or {}).items()
            if v and base.get(section, {}).get(k) == v
        ]
        assert not same, f'{name} repeats {same}'


# -- whose numbers a card shows

CARDS = [
    (path, name)
    for path in sorted((TOP / 'nbs').glob('*/[0-9]*.ipynb'))
    if path.parent.name != 'scaling'
    for name in re.findall(
        r"load_config\('(\w+)'\)",
        '\n'.join(c.source for c in nbformat.read(path, 4).cells if c.cell_type == 'code'),
    )
]


@pytest.mark.parametrize('name', config_names())
def test_a_card_says_whose_numbers_they_are(name):
    "Every value is counted once, and what another paper's file lends is named with that paper."
    config, rows = load_config(name), config_rows(load_config(name))
    total, own, lent, ours = map(
        int,
        re.search(
            r'Values: (\d+)\..* have (\d+) of them, (\d+) were published with another method, and (\d+) are ours',
            said := whose_numbers(config),
        ).groups(),
    )
    assert total == len(rows) == own + ours + lent
    taken = [key for key, _, source in rows if source.startswith('as in ')]
    assert lent == len(taken) and all(
        re.search(rf'Taken over from [^:]*: [^.]*\b{key}\b', said) for key in taken
    )
    assert (
        not taken
        or cited(17) in said
        and said.endswith(config.published)
        and "this method's own paper" in said
    )
    assert html.escape(said) in config._repr_html_()


def test_numbers_of_another_paper_cannot_be_passed_over(tmp_path):
    "A file of one's own that is like another says so, too, and that nothing is known of its own paper."
    path = tmp_path / 'mine.yaml'
    path.write_text('name: mine\nrecipe: gspo\nlike: grpo\npaper: 48\n')
    said = whose_numbers(load_config(path))
    assert (
        cited(17) in said
        and cited(48) in said
        and said.endswith('not known to us.')
        and ' have 0 of them' in said
    )
    path.write_text('name: mine\nrecipe: negative\nlike: negative\npaper: 17\n')
    assert 'Taken over' not in whose_numbers(load_config(path))


def test_cards_are_found():
    assert len(CARDS) > 25


@pytest.mark.parametrize('path, name', CARDS, ids=[f'{path.stem}-{name}' for path, name in CARDS])
def test_a_card_in_a_notebook_says_whose_it_is(path, name):
    "The stored card has the sentence; a card of a method that is not the notebook's is announced as such above it."
    cells = nbformat.read(path, 4).cells
    place = next(
        i
        for i, c in enumerate(cells)
        if c.cell_type == 'code' and f"load_config('{name}')" in c.source
    )
    shown = ''.join(
        ''.join(output.get('data', {}).get('text/html', '')) for output in cells[place].outputs
    )
    card = load_config(name)._repr_html_()
    assert html.escape(whose_numbers(load_config(name))) in card
    assert card in shown, f'{path.name} shows {name} as it was before the file changed: execute it'
    code = '\n'.join(c.source for c in cells if c.cell_type == 'code')
    if f"add_recipe('{load_config(name).recipe}'" in code:
        return
    above = next(c.source for c in reversed(cells[:place]) if c.cell_type == 'markdown')
    assert 'another method' in above, (
        f"{path.name}: {name} is not a recipe of this notebook; say above the card that it is another method's"
    )
