"""The command line: it teaches, it works, and it answers mistakes in one sentence."""

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = (
    'demo',
    'train',
    'compare',
    'pretrain',
    'study',
    'tryout',
    'probes',
    'recipes',
    'atlas',
    'course',
    'lab',
    'doctor',
)


def rl4llm(*args, cwd=None, **env):
    code = 'import sys; from rl4llm.app.cli import main; sys.exit(main(sys.argv[1:]))'
    return subprocess.run(
        [sys.executable, '-c', code, *map(str, args)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        env={
            **os.environ,
            'OMP_NUM_THREADS': '1',
            'COLUMNS': '160',
            'NO_COLOR': '1',
            'TERM': 'dumb',
            **env,
        },
    )


def here(*args):
    "The command in this process, which has the library already."
    from typer.testing import CliRunner
    from rl4llm.app.cli import app

    return CliRunner().invoke(app, list(map(str, args)), env=dict(COLUMNS='160', TERM='dumb'))


def test_help_lists_every_command_and_each_explains_itself():
    out = rl4llm('--help').stdout
    assert all(c in out for c in COMMANDS)
    from typer.testing import CliRunner
    from rl4llm.app.cli import app

    for command in COMMANDS:
        done = CliRunner().invoke(app, [command, '--help'])
        assert done.exit_code == 0 and len(done.output.split()) > 20, command


def test_help_is_quick():
    loaded = subprocess.run(
        [sys.executable, '-c', "import sys, rl4llm.app.cli; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
    ).stdout
    assert loaded.strip() == 'False'


def test_train_then_compare(tmp_path, tiny_folder):
    common = [
        '--task',
        'countdown/easy',
        '--model',
        tiny_folder,
        '--steps',
        2,
        '--problems',
        2,
        '--samples',
        4,
        '--set',
        'prompts=2',
        '--set',
        'group=4',
        '--set',
        'lr=2e-4',
    ]
    common += ['--seed', 5]
    done = rl4llm('train', 'reinforce', *common, '--out', tmp_path / 'runs/reinforce')
    assert done.returncode == 0 and 'pass@1' in done.stdout, done.stderr
    done = here('train', 'grpo', *common, '--out', tmp_path / 'runs/grpo')
    assert done.exit_code == 0 and 'pass@1' in done.output
    config = json.loads((tmp_path / 'runs/grpo/run.json').read_text())
    assert (
        config['seed'] == 5
        and config['recipe']['lr'] == 2e-4
        and config['recipe']['group'] == 4
        and config['status'] == 'finished'
    )
    done = here('compare', tmp_path / 'runs', '--out', tmp_path / 'curves.png')
    assert done.exit_code == 0 and 'grpo' in done.output and 'no verdict' in done.output
    assert (tmp_path / 'curves.png').stat().st_size > 1000
    again = here('train', 'grpo', *common, '--out', tmp_path / 'runs/grpo')
    assert again.exit_code == 0 and '2 steps' in again.output


@pytest.mark.parametrize(
    'args, words',
    [
        (('train', 'grop'), 'did you mean grpo'),
        (('train', 'grpo', '--set', 'lr'), 'is not key=value'),
        (('train', 'grpo', '--set', 'epoch=3'), 'did you mean epochs'),
        (('train', 'grpo', '--set', 'setps=3'), 'did you mean the option --steps 3?'),
        (('train', 'grpo', '--set', 'seed=1'), 'did you mean the option --seed 1?'),
        (('train', 'grpo', '--set', 'prompt=1'), 'did you mean prompts'),
        (
            ('scale', 'run', 'grpo', '--small', '--set', 'seed=1'),
            'did you mean the option --seed 1?',
        ),
        (('scale', 'plan', 'grpo', '--set', 'response_tokens=9'), 'option --response-tokens 9?'),
        (('scale', 'plan', 'grpo', '--set', 'promps=9'), "did you mean 'prompts'"),
        (('scale', 'launch', 'grpo', '--print', '--set', 'rows=2'), 'the option --rows 2?'),
        (('scale', 'launch', 'grpo', '--print', '--task', 'sat', '--data', 'x'), 'has one of them'),
        (('scale', 'run', 'grpo'), 'needs data'),
        (('scale', 'check', 'ppo'), "'ppo' carries over, but has no full-scale file"),
        (('scale', 'launch', 'ppo', '--print'), 'or add --small'),
        (('train', 'grpo', '--set', 'lr=['), "cannot read '['"),
        (('probes', 'check', 'positiv'), "did you mean 'positive'"),
        (('probes', 'renew', 'grpo'), 'leave the names out'),
        (('claims', 'show', 'psr'), 'psr_narrows'),
        (('recipes', 'grop'), 'did you mean grpo'),
        (('train', 'grpo', '--set', 'group=0'), 'wanted a whole number'),
        (('train', 'grpo', '--task', 'countdwn'), 'countdown'),
        (('train', 'grpo', '--task', 'countdown/hrd'), 'hard'),
        (('train', 'grpo', '--model', 'no/such/model'), "no model 'no/such/model'"),
        (('compare', 'no/such'), 'no run below'),
        (('study', 'nonsense'), 'no study is called'),
        (('pretrain', 'big'), 'tiny-v1'),
    ],
)
def test_mistakes_get_one_sentence(args, words, tmp_path, monkeypatch, capsys):
    from rl4llm.app.cli import main

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    said = capsys.readouterr().err
    assert (
        stop.value.code == 2
        and words in said
        and 'Traceback' not in said
        and len(said.strip().splitlines()[-1]) < 700
    )


TAKES_A_FOLDER = {
    'train': ['grpo'],
    'demo': [],
    'pretrain': [],
    'study': [],
    'claims report': [],
    'claims run': ['psr_narrows'],
    'scale run': ['grpo', '--small', '--steps', '1'],
    'scale launch': ['grpo', '--small', '--print'],
}


def commands():
    "Every command by its words, also those of a group."
    from rl4llm.app.cli import app

    groups = [
        ('', app),
        *((f'{group.name} ', group.typer_instance) for group in app.registered_groups),
    ]
    return {
        f'{head}{info.name}': info for head, group in groups for info in group.registered_commands
    }


def test_launch_refuses_a_word_that_nobody_knows(tmp_path):
    from typer.testing import CliRunner
    from rl4llm.app.cli import app

    for wrong in (['--porcesses', '8'], ['--dta', 'x.jsonl']):
        words = ['scale', 'launch', 'grpo', '--print', '--out', str(tmp_path), *wrong]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 2 and 'No such option' in done.output, done.output


def test_launch_takes_what_run_takes_and_hands_it_on(tmp_path):
    "The same options, but for those of the devices; each of them reaches the line."
    import typer
    from typer.testing import CliRunner
    from rl4llm.app.cli import app

    group = typer.main.get_command(app).commands['scale'].commands
    known = {name: {p.opts[0] for p in group[name].params} for name in ('run', 'launch', 'plan')}
    own = {'--processes', '--distributed-type', '--print'}
    assert known['launch'] - known['run'] == own and not known['run'] - known['launch']
    assert '--processes' in known['plan'] and '--gpus' not in known['plan']
    given = ['--task', 'sat', '--steps', '3', '--rows', '2', '--seed', '7', '--set', 'lr=1e-4']
    words = ['scale', 'launch', 'ppo', '--small', '--print', '--out', str(tmp_path), *given]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and ' '.join(given) in done.output, done.output
    assert done.output.strip().endswith('--small')


def test_the_readme_and_the_lab_tell_the_same_commands_and_they_parse(tmp_path, monkeypatch):
    import shlex
    from typer.testing import CliRunner
    from rl4llm.app.cli import app
    from rl4llm.scaling.planning import known_models

    top = Path(__file__).resolve().parents[1]
    lab = json.loads((top / 'nbs/labs/07_laptop_to_cluster.ipynb').read_text())
    texts = [(top / 'README.md').read_text(), ''.join(lab['cells'][0]['source'])]
    blocks = [re.search(r'```\n(rl4llm train grpo --steps.*?)```', text, re.S)[1] for text in texts]
    assert blocks[0] == blocks[1] and all('vLLM' in text for text in texts)
    lines = blocks[0].replace('\\\n', ' ').strip().splitlines()
    monkeypatch.chdir(tmp_path)
    assert len(lines) == 3
    for line in lines:
        _, *words = shlex.split(line, comments=True)
        assert CliRunner().invoke(app, [*words, '--help']).exit_code == 0
        if '--model' in words:
            assert words[words.index('--model') + 1] in known_models()
    words += ['--print', '--out', str(tmp_path)]
    missing = CliRunner().invoke(app, words)
    assert missing.exit_code == 1 and "'mine.jsonl' is no file" in str(missing.exception)
    (tmp_path / 'mine.jsonl').write_text('{"question": "What is 2 + 3?", "answer": "5"}\n')
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and '--data mine.jsonl' in done.output


def test_a_file_where_a_folder_is_wanted_is_named_before_anything_runs(tmp_path, capsys):
    from rl4llm.app.cli import main

    import inspect

    takes = {
        words
        for words, info in commands().items()
        if 'out' in inspect.signature(info.callback).parameters
    }
    assert takes - {'compare'} == set(TAKES_A_FOLDER)  # compare writes a picture
    (tmp_path / 'afile').write_text('')
    for words, more in TAKES_A_FOLDER.items():
        for out in ('afile', 'afile/x'):
            with pytest.raises(SystemExit) as stop:
                main([*words.split(), *more, '--out', str(tmp_path / out)])
            said = capsys.readouterr().err
            assert stop.value.code == 2 and f'{tmp_path}/afile is a file, wanted a folder' in said
    assert (tmp_path / 'afile').read_text() == ''


@pytest.mark.parametrize(
    'error, words',
    [
        (FileExistsError(17, 'File exists', 'afile'), 'afile cannot be used (File exists)'),
        (PermissionError(13, 'Permission denied', '/root/x'), '/root/x cannot be used (Perm'),
        (OSError(28, 'No space left on device'), 'a file cannot be used (No space left'),
        (OSError('no reachable hub'), 'no reachable hub'),
    ],
)
def test_what_the_system_refuses_is_a_sentence(error, words, monkeypatch, capsys):
    from rl4llm.app.cli import main

    def refused():
        raise error

    monkeypatch.setattr(commands()['doctor'], 'callback', refused)
    with pytest.raises(SystemExit) as stop:
        main(['doctor'])
    said = capsys.readouterr().err
    assert (
        stop.value.code == 2 and words in said and 'Errno' not in said and '\n' not in said.strip()
    )


@pytest.mark.parametrize('words', commands())
def test_an_interruption_of_any_command_is_answered(words, monkeypatch, capsys):
    from rl4llm.app.cli import main

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(commands()[words], 'callback', interrupted)
    with pytest.raises(SystemExit) as stop:
        main(words.split())
    said = capsys.readouterr().err
    assert stop.value.code == 130 and 'rl4llm: stopped. What was finished is kept' in said


def test_a_typo_in_the_settings_is_named(tmp_path):
    (tmp_path / 'settings.ini').write_text('[rl4llm]\nsede = 1\n')
    done = rl4llm('train', 'grpo', cwd=tmp_path)
    assert done.returncode == 2 and "did you mean 'seed'" in done.stderr


def test_debug_shows_the_traceback(tmp_path):
    assert 'Traceback' in rl4llm('--debug', 'train', 'grop', cwd=tmp_path).stderr


def test_recipes_are_listed_and_shown():
    assert 'weighted_reinforce' in here('recipes').output
    shown = here('recipes', 'grpo').output
    assert (
        'ppo_clip' in shown
        and 'rl4llm/objectives/surrogates.py' in shown
        and 'nbs/objectives/00_surrogates.ipynb' in shown
    )
    assert 'nbs/advantages/01_group_relative.ipynb' in shown


def test_a_recipe_page_says_where_all_of_it_is():
    "Paper by name, formula lines, file, notebook, full-scale file, tryout with the placebo."
    shown = here('recipes', 'gui_g1').output
    for words in (
        'Zhou et al. 2025, GUI-G1',
        'Reward minus group mean, times 1 - success rate',
        'nbs/advantages/13_difficulty_weights.ipynb',
        'rl4llm/assets/scale/gui_g1.yaml',
        'one seed',
        'over its placebo gui_g1_shuffled',
    ):
        assert words in shown, words


def test_a_recipe_page_says_what_is_idle_at_its_own_settings():
    "A sentence for each part that is the parent's, and where it is not; none for all others."
    from rl4llm.app.cli import recipe_page
    from rl4llm.core.registry import recipe
    from rl4llm.studies.tryouts import IDLE, idle_lines

    for name in {key.split('.')[0] for key in IDLE} | {'rloo', 'gspo'}:
        page, told = recipe_page(recipe(name)), [k for k in IDLE if k.split('.')[0] == name]
        assert page.count('idle here') == len(told) == len(idle_lines(name))
        assert all(f'{IDLE[key].why}; it acts with ' in page for key in told)
    assert 'objective: only accidents' in recipe_page(recipe('stable_reinforce_preclip'))


BARE = re.compile(r'\b(?:paper|seed) \d{1,3}\b')


@pytest.mark.parametrize(
    'args',
    [
        ['recipes', 'univg'],
        ['recipes', 'spurious'],
        ['atlas'],
        ['atlas', '--family', 'rewards'],
        ['claims', 'list'],
        ['claims', 'table'],
        ['claims', 'show', 'psr_narrows'],
        ['recipes'],
    ],
)
def test_no_output_cites_a_paper_by_its_number_alone(args):
    from typer.testing import CliRunner
    from rl4llm.app.cli import app

    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0 and not BARE.search(done.output), BARE.search(done.output)


def test_the_atlas_opens_with_a_summary_and_what_is_built():
    from typer.testing import CliRunner
    from rl4llm.app.cli import app
    from rl4llm.atlas.catalogue import table

    lines = CliRunner().invoke(app, ['atlas']).output.splitlines()
    counts = table()['status'].str.split(':').str[0].value_counts()
    assert all(f'{n} {status}' in lines[0] for status, n in counts.items()) and lines[
        2
    ].strip().startswith('built: ')
    assert sum(line.startswith('    built') for line in lines) == counts['built'] and not any(
        'not built yet' in line for line in lines[1:-2]
    )
    assert 'partly built' in CliRunner().invoke(app, ['atlas', '--status', 'partly built']).output


def test_one_tryout_is_shown_alone():
    from typer.testing import CliRunner
    from rl4llm.app.cli import app

    shown = CliRunner().invoke(app, ['tryout', 'rloo', '--show']).output
    assert (
        'not that its idea helps' in shown
        and [line.split()[0] for line in shown.splitlines()[-1:]] == ['rloo']
        and 'grpo' not in shown
    )


@pytest.mark.parametrize(
    'wrong, args',
    [
        ('epoch', ['train', 'grpo', '--set', 'epoch=3']),
        ('zzz', ['train', 'grpo', '--set', 'zzz=3']),
        ('xyzzy', ['train', 'xyzzy']),
    ],
)
def test_three_nearest_names(wrong, args, capsys):
    from rl4llm.app.cli import main

    with pytest.raises(SystemExit):
        main(args)
    assert capsys.readouterr().err.split('did you mean ')[1].count(',') == 2


def test_an_unknown_attribute_names_the_three_nearest():
    import rl4llm.advantages

    for package, wrong in ((rl4llm, 'recip'), (rl4llm, 'xyzzy'), (rl4llm.advantages, 'leave_one')):
        with pytest.raises(AttributeError) as told:
            getattr(package, wrong)
        assert str(told.value).split('Did you mean ')[1].count(',') == 2


def test_a_star_import_brings_the_short_list_and_the_package_says_what_it_is():
    import rl4llm

    brought = {}
    exec('from rl4llm import *', brought)
    assert (
        set(rl4llm.PUBLIC) <= set(brought)
        and len(rl4llm.PUBLIC) >= 40
        and 'language models' in rl4llm.__doc__
    )


def test_a_part_of_ones_own_has_no_notebook():
    from rl4llm.app.cli import recipe_page
    from rl4llm.core.registry import recipe

    def halved(rewards, group):
        return rewards / 2

    page = recipe_page(recipe('grpo', advantage=halved))
    assert 'halved' in page and 'test_cli.py' in page and 'no notebook' in page


def test_probes_say_what_changed(monkeypatch, tmp_path):
    import rl4llm.studies.probes as module
    from typer.testing import CliRunner
    from rl4llm.app.cli import app
    from rl4llm.core.storage import read_json, readable_json

    stored = {name: copy.deepcopy(module.stored_probes()[name]) for name in ('positive', 'grpo')}
    stored['grpo']['steps'][0]['grad_norm'] *= 2
    (tmp_path / 'probes.json').write_text(readable_json(stored))
    monkeypatch.setattr(module, 'PROBES', tmp_path / 'probes.json')
    monkeypatch.setattr(module, 'stored_probes', lambda: read_json(tmp_path / 'probes.json'))
    monkeypatch.setattr(module, 'RENEWALS', tmp_path / 'renewals.json')
    done = CliRunner().invoke(app, ['probes', 'check', 'positive', 'grpo'])
    assert done.exit_code == 1 and '1 of 2 probes' in done.output
    done = CliRunner().invoke(app, ['probes', 'store', 'grpo'])
    assert done.exit_code == 1 and '--why' in str(done.exception)
    done = CliRunner().invoke(app, ['probes', 'store', 'grpo', '--why', 'a test'])
    assert done.exit_code == 0 and '1 probes stored' in done.output
    assert read_json(tmp_path / 'probes.json')['grpo']['revision'] == module.revision('grpo') + 1
    assert CliRunner().invoke(app, ['probes', 'check', 'grpo']).exit_code == 0
    monkeypatch.setattr(module, 'stored_results', lambda: [])
    done = CliRunner().invoke(app, ['probes', 'renew'])
    assert done.exit_code == 0 and '0 stored results renewed' in done.output


def test_doctor(tmp_path):
    done = rl4llm('doctor', cwd=tmp_path)
    assert all(w in done.stdout for w in ('torch', 'device', 'threads', 'embedded model'))


@pytest.mark.parametrize('preset', ['cpu', pytest.param('gpu', marks=pytest.mark.slow)])
def test_the_demo_runs_dry_under_every_preset(tmp_path, preset):
    done = rl4llm('demo', cwd=tmp_path, RL4LLM_DRY_RUN='1', RL4LLM_PRESET=preset)
    assert done.returncode == 0, done.stderr[-2000:]
    assert 'One seed is no verdict' in done.stdout and 'weighted_reinforce' in done.stdout
    page = (tmp_path / 'runs/demo/report.html').read_text()
    assert page.count('<img') >= 2 and (tmp_path / 'runs/demo/pass_at_k.png').exists()


# -- the demo's page


@pytest.fixture(scope='module')
def five_seeds():
    from rl4llm.studies.comparison import compare
    from rl4llm.studies.study import load_study, study_runs

    runs = study_runs(load_study('negative_reinforcement'), 'on-policy', level='hard')
    return (
        runs,
        compare(runs, ks=(1, 256)),
        compare([run for run in runs if run.seed == 0], ks=(1, 256)),
    )


def test_the_first_screen_of_the_demo_says_two_numbers_for_each_method(five_seeds):
    from rl4llm.app.demonstration import PAGE, gain_and_price, in_one_sentence, small_table

    _, comparison, one_seed = five_seeds
    made = gain_and_price(comparison)
    for k in (1, 256):
        for method in ('grpo', 'positive'):
            change = comparison.estimate(method, 'base', ks=[k])
            row = made.loc[method, k]
            assert (
                row['value'] == pytest.approx(comparison.estimate(method, ks=[k]).mean[0])
                and row['change'] == pytest.approx(change.mean[0])
                and row['low'] == change.low[0]
            )
    said = in_one_sentence(comparison)
    assert (
        f"{made.loc['base', (256, 'value')]:.0%} before" in said
        and 'one try' in said
        and '256 tries' in said
        and len(said) < 160
    )
    table = small_table(one_seed)
    assert (
        'no verdict' not in table
        and table.count('<tr') == 6
        and all(len(cell) < 18 for cell in re.findall(r'<td>(.*?)</td>', table))
    )
    top = PAGE[: PAGE.index('<details>')]
    assert 'white-space:nowrap' in top and top.index('{{ sentence }}') < top.index(
        '{{ picture }}{{ table }}'
    ) < top.index('One seed is no verdict')


def test_one_seed_is_said_once(five_seeds):
    from rl4llm.app.demonstration import PAGE, page_parts

    parts = page_parts(five_seeds[2])
    assert PAGE.count('One seed is no verdict') == 1 and not any(
        'no verdict' in part for part in parts.values()
    )


def test_the_picture_of_gain_and_price_names_what_it_shows(five_seeds):
    import matplotlib.pyplot as plt
    from rl4llm.app.demonstration import plot_gain_and_price

    figure = plot_gain_and_price(five_seeds[1])
    left, right = figure.axes
    assert (
        'one try' in left.get_xlabel()
        and '256 tries' in right.get_xlabel()
        and [t.get_text() for t in left.get_yticklabels()][0] == 'base'
    )
    figure.canvas.draw()
    for ax in figure.axes:
        boxes = [t.get_window_extent() for t in ax.get_xticklabels() if t.get_text()]
        assert not any(a.overlaps(b) for a, b in zip(boxes, boxes[1:]))
    plt.close(figure)


def test_ticks_of_k_do_not_touch():
    import matplotlib.pyplot as plt
    from rl4llm.analysis.plots import plot_pass_at_k

    ks = [2**i for i in range(9)]
    figure, axes = plt.subplots(1, 2, figsize=(8, 3))
    for ax in axes:
        plot_pass_at_k({'base': [k / 256 for k in ks]}, ks, ax=ax)
    figure.canvas.draw()
    boxes = [t.get_window_extent() for t in axes[0].get_xticklabels() if t.get_text()]
    assert len(boxes) >= 4 and not any(a.overlaps(b) for a, b in zip(boxes, boxes[1:]))
    plt.close(figure)


def test_the_course_tells_where_one_is(tmp_path):
    done = {f'1.{i}': dict(tries=2, right=True) for i in range(1, 5)}
    (tmp_path / 'course.json').write_text(json.dumps(done))
    said = rl4llm('course', RL4LLM_RUNS=tmp_path)
    assert said.returncode == 0, said.stderr
    first, *_, last = said.stdout.splitlines()
    assert re.match(r' +4 of \d+ +1\. A language model is a policy', first)
    assert re.match(r'Go on with lesson \d: rl4llm lab', last)


def test_a_damaged_record_of_the_course_is_told_in_a_sentence(tmp_path):
    (tmp_path / 'course.json').write_text('{')
    said = rl4llm('course', RL4LLM_RUNS=tmp_path)
    assert said.returncode == 2 and 'is damaged' in said.stderr and 'Traceback' not in said.stderr


def test_the_lab_opens_a_lesson(monkeypatch, tmp_path):
    from rl4llm.app import cli

    opened = []
    monkeypatch.setattr(cli.subprocess, 'call', lambda command: opened.append(command) or 0)
    monkeypatch.setenv('RL4LLM_RUNS', str(tmp_path))
    from typer.testing import CliRunner

    assert CliRunner().invoke(cli.app, ['lab']).exit_code == 0
    assert CliRunner().invoke(cli.app, ['lab', '2']).exit_code == 0
    names = [os.path.basename(command[-1])[:2] for command in opened]
    assert names == ['01', '02'] and opened[0][1:3] == ['-m', 'jupyterlab']
    root = Path(opened[0][3].removeprefix('--ServerApp.root_dir='))
    links = [root / 'nbs', root / 'tutorials' / os.path.basename(opened[0][-1])]
    assert all(place.exists() for place in links), 'links out of a lesson would not open'
    with pytest.raises(SystemExit):
        cli.main(['lab', '99'])
