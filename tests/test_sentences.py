"""What is misspelt, damaged or of another kind is answered in one sentence: what was given, what was wanted, and the nearest that there is."""

import ast, json, re
from pathlib import Path
import numpy as np
import pytest, torch

from rl4llm.core.pipeline import advantages, build_stages
from rl4llm.core.policy import Policy
from rl4llm.core.registry import RECIPES, find_stage, load_stages, recipe, use
from rl4llm.core.rollouts import make_rollouts
from rl4llm.core.settings_file import parse_key

SOURCES = sorted(Path(__file__).parents[1].glob('rl4llm/**/*.py'))


def message(call, *kinds):
    "What `call` raises, which must be one of `kinds`, as text on one line."
    with pytest.raises(kinds or (KeyError, ValueError, FileNotFoundError, TypeError)) as error:
        call()
    text = str(error.value.args[0])
    assert '\n' not in text
    return text


# names


def stored_benchmark(name):
    from rl4llm.app.benchmarks import load_benchmark

    return load_benchmark(name)


def base_model(name):
    from rl4llm.training.pretraining import base_spec

    return base_spec(name)


def study(name):
    from rl4llm.studies.study import study_named

    return study_named(name)


def claim(name):
    from rl4llm.atlas.claims import claim_named

    return claim_named(name)


def scale(name):
    from rl4llm.scaling.config_files import load_config

    return load_config(name)


def tree(name):
    from rl4llm.core.method_map import recipe_tree

    return recipe_tree(name)


def statistic(name):
    return Policy.load('tiny').statistics(None, (name,))


@pytest.mark.parametrize(
    'find, given, near',
    [
        (recipe, 'grop', 'grpo'),
        (recipe, 'Dr GPRO', 'dr_grpo'),
        (tree, 'grop', 'grpo'),
        (find_stage, 'ppo_clipp', 'ppo_clip'),
        (base_model, 'tiny-v11', 'tiny-v1'),
        (base_model, 'SMALL-v1', 'small-v1'),
        (study, 'clip_hihger', 'clip_higher'),
        (claim, 'nsr_keep', 'nsr_keeps'),
        (scale, 'dr_gpro', 'dr_grpo'),
        (statistic, 'entropi', 'entropy'),
        (Policy.load, 'tinny', 'tiny'),
        (lambda name: parse_key(name, '1'), 'SEEDS', 'seed'),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(find, given, near):
    text = message(lambda: find(given))
    assert repr(given) in text and f'did you mean {near!r}' in text.replace(
        f'mean {near}', f'mean {near!r}'
    )


def test_names_are_likened_in_one_place():
    "Everybody takes the helper, so that capitals and cut-offs are treated alike."
    using = {path.stem for path in SOURCES if 'get_close_matches' in path.read_text()}
    assert using <= {'settings_file', 'lazy', 'exercises'}


# damaged files


def broken_run(folder):
    (folder / 'run.json').write_text('{"recipe": ')
    from rl4llm.training.records import load_run

    load_run(folder)


def broken_evaluation(folder):
    (folder / 'run.json').write_text(
        json.dumps(dict(recipe=dict(name='grpo'), task='countdown', model='tiny', seed=0))
    )
    (folder / 'evaluations').mkdir()
    (folder / 'evaluations' / '00000003.json').write_text('[1, 2')
    from rl4llm.training.records import load_run

    load_run(folder)


def broken_state(folder):
    (folder / 'state.json').write_text('{"step": 3')
    from rl4llm.training.checkpoints import read_checkpoint

    read_checkpoint(folder)


def broken_trace(folder):
    (folder / 'rollouts.json').write_text('{')
    from rl4llm.analysis.traces import load_rollouts

    load_rollouts(folder)


def broken_benchmark(folder):
    (folder / 'mine.json').write_text('{"rows": [1, ')
    stored_benchmark(folder / 'mine.json')


def asset(module, variable, file, call):
    "A loader whose file is a constant of its module."

    def load(folder):
        import importlib

        made = importlib.import_module(module)
        (folder / file).write_bytes(b'{"a": \xff')
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                made,
                variable,
                folder / file if file.endswith('.json') and variable != 'ASSETS' else folder,
            )
            getattr(made, call)()

    return load


def broken_study(folder):
    from rl4llm.studies import study

    (folder / 'studies').mkdir()
    (folder / 'studies' / 'mine.json').write_text('{')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, 'ASSETS', folder)
        study.load_study('mine')


def broken_definition(folder):
    from rl4llm.studies.definition_files import read_fields

    (folder / 'mine.yaml').write_bytes(b'name: caf\xe9')
    read_fields(folder / 'mine.yaml')


@pytest.mark.parametrize(
    'load, file',
    [
        (broken_run, 'run.json'),
        (broken_evaluation, '00000003.json'),
        (broken_state, 'state.json'),
        (broken_trace, 'rollouts.json'),
        (broken_benchmark, 'mine.json'),
        (broken_study, 'mine.json'),
        (broken_definition, 'mine.yaml'),
        (
            asset('rl4llm.studies.tryouts', 'TRYOUT_FILE', 'tryouts.json', 'stored_tryouts'),
            'tryouts.json',
        ),
        (asset('rl4llm.studies.study', 'PROBES', 'probes.json', 'stored_probes'), 'probes.json'),
        (asset('rl4llm.studies.study', 'RENEWALS', 'renewals.json', 'renewals'), 'renewals.json'),
    ],
)
def test_a_damaged_file_is_named(load, file, tmp_path):
    assert file in message(lambda: load(tmp_path), ValueError)


def test_no_json_file_is_read_without_naming_it():
    "A file is read by `read_json`, or inside a try that says what is wrong with it."
    bare = []
    for path in SOURCES:
        nodes = ast.parse(path.read_text())
        guarded = {
            id(inner)
            for node in ast.walk(nodes)
            if isinstance(node, ast.Try)
            for part in node.body
            for inner in ast.walk(part)
        }
        bare += [
            f'{path.stem}:{n.lineno}'
            for n in ast.walk(nodes)
            if isinstance(n, ast.Call)
            and ast.unparse(n.func) in ('json.load', 'json.loads')
            and 'read_text()' in ast.unparse(n)
            and id(n) not in guarded
        ]
    assert not bare, f'use read_json: {bare}'


# recipes


@pytest.mark.parametrize(
    'changes, words',
    [
        (
            dict(objective='stale_sample'),
            [
                "'stale_sample' is a stage of kind sampler",
                'wanted one of kind objective',
                'did you mean',
            ],
        ),
        (dict(sampler='grpo'), ['kind advantage', 'kind sampler']),
        (dict(objective=use('keep_all')), ['kind select', 'kind objective']),
        (dict(regularisers=('entropy_bonus', 'gspo')), ['kind objective', 'kind regulariser']),
        (dict(advantage=3), ['advantage is 3', 'name of a stage, a function']),
        (dict(reward=None), ['reward is None']),
        (dict(regularisers=(None,)), ['regulariser is None']),
        (dict(warmup=-1), ['warmup is -1', 'at least 0']),
        (dict(betas=0.9), ['betas is 0.9', 'two numbers']),
        (dict(betas=(0.9, 1.0)), ['from 0 to below 1']),
        (dict(weight_decay=float('nan')), ['weight_decay is nan']),
        (dict(lr=True), ['lr is True']),
        (dict(lr=float('nan')), ['lr is nan']),
        (dict(max_new_tokens=0), ['max_new_tokens is 0', 'at least 1']),
        (dict(prompts='4'), ["prompts is '4'"]),
    ],
)
def test_a_field_of_the_wrong_kind_says_what_is_wanted(changes, words):
    text = message(lambda: recipe('grpo', **changes))
    assert all(word in text for word in words)


def test_a_stage_of_another_kind_is_also_seen_when_its_name_is_looked_up():
    assert 'is a stage of kind sampler, wanted one of kind objective' in message(
        lambda: find_stage('stale_sample', 'objective'), ValueError
    )
    load_stages()
    for name in RECIPES:
        build_stages(recipe(name))  # none of ours is refused


def test_one_regulariser_needs_no_tuple():
    bonus = use('entropy_bonus', coef=0.5)
    assert (
        recipe('grpo', regularisers=bonus)
        == recipe('grpo', regularisers=(bonus,))
        == recipe('grpo', regularisers=[bonus])
    )
    assert recipe('grpo', regularisers='entropy_bonus').regularisers[0].name == 'entropy_bonus'


# advantages


def four_rows():
    mask = torch.ones(4, 3, dtype=torch.bool)
    tokens = torch.zeros(4, 3, dtype=torch.long)
    return make_rollouts(
        prompt_ids=tokens[:2],
        prompt_mask=mask[:2],
        tokens=tokens,
        prompt=torch.tensor([0, 0, 1, 1]),
        mask=mask,
        rewards=torch.tensor([1.0, 0, 0, 1]),
    )


@pytest.mark.parametrize(
    'form',
    [
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x.double().numpy(),
        lambda x: tuple(x.tolist()),
        lambda x: x[:, None].expand(4, 3).tolist(),
        lambda x: np.asarray(x[:, None].expand(4, 3)),
    ],
)
def test_an_advantage_may_be_a_list_or_an_array(form):
    def own(rewards, group):
        return form(rewards - 0.5)

    adv = advantages(build_stages(recipe('grpo', advantage=own)), four_rows())
    assert adv.dtype == torch.float32 and torch.equal(
        adv, (four_rows().rewards - 0.5)[:, None].expand(4, 3)
    )


@pytest.mark.parametrize(
    'given, words',
    [
        (None, 'NoneType, wanted a tensor'),
        ('abc', 'str, wanted a tensor'),
        ([[1.0], [1.0, 2.0]], 'list, wanted a tensor'),
        ([1.0, 2.0], 'wanted (4,)'),
    ],
)
def test_an_advantage_that_is_none_is_named(given, words):
    def own(rewards, group):
        return given

    text = message(
        lambda: advantages(build_stages(recipe('grpo', advantage=own)), four_rows()),
        TypeError,
        ValueError,
    )
    assert 'the advantage of own' in text and words in text


# sizes that would do nothing


@pytest.mark.parametrize('steps', [0, -3])
def test_no_steps_are_no_demo_and_no_pretraining(steps, tmp_path):
    from rl4llm.app.demonstration import demo
    from rl4llm.training.pretraining import pretrain

    (tmp_path / 'kept').touch()
    assert f'steps is {steps}, wanted at least 1' in message(
        lambda: demo(steps=steps, out=tmp_path, fresh=True), ValueError
    )
    assert f'steps is {steps}, wanted at least 1' in message(
        lambda: pretrain('tiny-v1', out=tmp_path, steps=steps), ValueError
    )
    assert [path.name for path in tmp_path.iterdir()] == ['kept']


# prose of the method notebooks

TOP = Path(__file__).parents[1]
FOLDERS = (
    'advantages',
    'objectives',
    'selection',
    'samplers',
    'rollouts',
    'inference',
    'references',
    'curricula',
    'rewards',
    'analysis',
)
METHODS = [
    *sorted(path for folder in FOLDERS for path in (TOP / 'nbs' / folder).glob('[0-9]*.ipynb')),
    TOP / 'nbs' / '_method_template.ipynb',
]
each_method = pytest.mark.parametrize(
    'path', METHODS, ids=lambda path: f'{path.parent.name}-{path.stem}'
)

# What the rules below know as a finite verb. A sentence whose verb is missing here is refused wrongly: add the verb.
VERBS = """refuses? is are was were be has have had do does did can cannot could may might must should will would let adds? agrees? aims? allows? answers? appears? apply applies ask asks be began begins? belongs? bounds? breaks?
brings? calls? came cancels? carry carries change changes check checks clamps? clips? come comes compare compared compares compute computes contributes? cost costs count counts cover covers cut cuts decides? depends? describes?
differs? divide divides down draw draws drew drops? dissect ends? enters? enumerates? equals? estimates? explains? fail fails fall falls fell find finds flips? follow follows found gave get gets give gives go goes got grew
grows? halve halves happens? help helps hide hides hits? hold holds ignores? keep keeps kept knows? lead leads learns? leaves? lets lie lies lifts? list lists look looks lose loses lost made make makes marks? match matches matters? mean means
measures? misses mixes moved moves? multiply multiplies name names need needs pass passes pay pays plant plays? point points puts? punish punishes raises? read reads redraws? remain remains remembers? removes? repeat repeats reports? resample
act acts becomes? chooses? cures? optimises? over-optimises sample samples tie ties restores? returns? rises? runs? saves? saw say says see sees separate separates serve serves set sets share shares show shows shrinks? shuts? sorts? spends? stands? starts? stay stays stood stop stops subtracts? suffices? suits sums? survive survives
earns? praises? reached spoilt builds? said swap take takes teach teaches tell tells test tests told took train trains travels? tries try turn turns use uses want wants watch weigh weighs went work works write writes wrote
accepts? ascends? average averages confirms? couples fade fades judges? left meet mends? reach reaches say trade trades vary""".split()
VERB = re.compile(r'\b(' + '|'.join(VERBS) + r')\b', re.IGNORECASE)
OPENINGS = 'The A An One Two Three Four Five Six Eight Ten Some Exactly Now Next Again First Again Every Their These At With For By'.split()


def plain_sentences(source):
    "The sentences of a markdown cell outside of headings, quotations, tables, lists, labels and captions; formulas and code are X."
    text = re.sub(r'```.*?```|\$\$.*?\$\$', '', source, flags=re.DOTALL)
    for paragraph in (p.strip() for p in text.split('\n\n')):
        if not paragraph or paragraph.startswith(('#', '>', '|', '- ', '*', '1.')):
            continue
        short = re.sub(r'\]\([^)]*\)', ']', re.sub(r'`[^`]*`|\$[^$]*\$', 'X', paragraph)).replace(
            '\n', ' '
        )
        yield from (
            s
            for s in re.split(r'(?<!Dr\.)(?<!al\.)(?<=[.?!:])\s+(?=[A-Z(]|- )', short)
            if not s.startswith(('Left', 'Right', '('))
        )


def notes_for_oneself(source):
    "Sentences that are none: they open like one, or announce what the next cell shows, and have no verb."
    announcement = source.rstrip().endswith(':')
    found = list(plain_sentences(source))
    wanted = [
        s
        for i, s in enumerate(found)
        if s.split()[0] in OPENINGS
        and s.endswith('.')
        or announcement
        and i == len(found) - 1
        and s.endswith(':')
    ]
    return [s for s in wanted if len(s.split()) > 1 and s.strip('X ,.:') and not VERB.search(s)]


def prose_of(path):
    return [
        ''.join(c['source'])
        for c in json.loads(path.read_text())['cells']
        if c['cell_type'] == 'markdown'
    ]


@each_method
def test_a_method_notebook_says_what_to_look_for(path):
    "The first cell gives the problem and the idea in sentences, then what one should see, which holds no number that no cell computes."
    paragraphs = prose_of(path)[0].split('\n\n')
    place = next(
        (i for i, p in enumerate(paragraphs) if p.startswith('**What to look for.** ')), None
    )
    assert place is not None, (
        'the first cell says in a paragraph "**What to look for.** ..." what one should see'
    )
    before = ' '.join(p for p in paragraphs[2:place] if p[0] not in '|$')
    assert len(re.findall(r'[.?!](?:\s|$)', before)) >= 2, (
        'which problem, and what is done about it?'
    )
    said = paragraphs[place].removeprefix('**What to look for.** ')
    assert len(said.split()) >= 15 and not re.search(
        r'\d', re.sub(r'`[^`]*`|\b[kK]\d\b', '', said)
    ), said


@each_method
def test_sentences_have_a_verb_and_an_end(path):
    assert not (notes := [s for source in prose_of(path) for s in notes_for_oneself(source)]), (
        f'no verb (if there is one, add it to VERBS): {notes}'
    )
    assert not (
        long := [
            s for source in prose_of(path) for s in plain_sentences(source) if len(s.split()) > 55
        ]
    ), f'too long for one reading: {long}'


@pytest.mark.parametrize(
    'source',
    [
        'We divide by it. The errors:',
        'Two rows of two tokens. The first is right.',
        'Now the baseline. It is 0.',
        'The same rows again, at $x=1$:',
        'Exactly, on a token tree:',
    ],
)
def test_a_note_for_oneself_is_seen(source):
    assert notes_for_oneself(source)


@pytest.mark.parametrize(
    'source',
    [
        'We divide by it. The table shows the errors:',
        'Take two rows of two tokens. The first is right.',
        '- *KL.* None.',
        '**By hand.** Two rows:\n\n| a |',
        'Left: the errors. Right: the sums.',
    ],
)
def test_a_sentence_is_none(source):
    assert not notes_for_oneself(source)
