"settings.ini: what is read from where, and what a wrong one says."

import os, re, subprocess, sys
from pathlib import Path
import pytest
from rl4llm.app.diagnosis import (
    doctor,
    find_model,
    find_packages,
    find_setup,
    install_command,
    requirements,
    unfit,
)
from rl4llm.core.settings_file import (
    KEYS,
    Settings,
    apply_settings,
    find_settings,
    parse_key,
    settings,
    size,
)

TOP = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    "An empty working directory and no variables of ours."
    for name in [n for n in os.environ if n.startswith('RL4LLM_')]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text, folder='.'):
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / 'settings.ini').write_text(text, encoding='utf-8', errors='surrogateescape')


def test_defaults_without_a_file(empty):
    s = settings()
    assert (s.seed, s.threads, s.dry_run, s.runs) == (0, 0, False, empty / 'runs')
    assert {where for _, where in s.sources} == {'default'}


def test_the_shipped_file_sets_every_key_to_its_default(monkeypatch):
    shipped, defaults = settings(TOP / 'settings.ini'), settings()
    assert all(
        getattr(shipped, f) == getattr(defaults, f)
        for f in ('preset_set', 'device_set', 'seed', 'threads', 'dry_run')
    )
    assert {key for key, where in shipped.sources if where != 'default'} == set(KEYS)
    assert shipped.runs == TOP / 'runs'


def test_found_upward_and_runs_relative_to_the_file(empty, monkeypatch):
    write('[rl4llm]\nseed = 4\nruns = kept/runs  # a comment\n')
    (empty / 'a' / 'b').mkdir(parents=True)
    monkeypatch.chdir(empty / 'a' / 'b')
    assert find_settings() == empty / 'settings.ini'
    assert settings().seed == 4 and settings().runs == empty / 'kept' / 'runs'


def test_the_nearest_file_wins_and_those_of_other_tools_are_passed_over(empty, monkeypatch):
    write('[rl4llm]\nseed = 1\n')
    write('[rl4llm]\nseed = 2\n', 'near')
    write('[DEFAULT]\nlib_name = other\n', 'near/other')
    monkeypatch.chdir(empty / 'near' / 'other')
    assert settings().seed == 2


def test_absolute_runs_folder_is_kept(empty):
    write(f'[rl4llm]\nruns = {empty}/elsewhere\n')
    assert settings().runs == empty / 'elsewhere'


def test_environment_wins(monkeypatch):
    write('[rl4llm]\nseed = 4\ndry_run = no\n')
    monkeypatch.setenv('RL4LLM_DRY_RUN', '1')
    monkeypatch.setenv('RL4LLM_SEED', '9')
    s = settings()
    assert s.dry_run and s.seed == 9 and dict(s.sources)['seed'] == 'RL4LLM_SEED'


@pytest.mark.parametrize(
    'text, words',
    [
        ('[rl4llm]\nsead = 1', ["settings.ini", "'sead'", "did you mean 'seed'"]),
        (
            '[rl4llm]\nlearning_rate = 1',
            ["settings.ini", "'learning_rate'", 'preset, device, seed'],
        ),
        ('[rl4llm]\nseed = -1', ['seed', "'-1'", 'whole number']),
        (f'[rl4llm]\nseed = {"9" * 5000}', ['seed', 'at most 9 digits']),
        ('[rl4llm]\nthreads = 999999999999', ['threads', 'at most 4 digits']),
        ('[rl4llm]\nseed =', ['seed', "''", 'whole number']),
        ('[rl4llm]\ndevice = tpu', ["'tpu'", 'auto, cpu, cuda or cuda:N']),
        ('[rl4llm]\ndevice = cuda:x', ["'cuda:x'"]),
        ('[rl4llm]\npreset = big', ["'big'", 'auto, cpu or gpu']),
        ('[rl4llm]\ndry_run = maybe', ["'maybe'", 'yes or no']),
        ('[rl4llm]\nthreads = two', ["'two'"]),
        ('[rl4llm]\nbf16 = maybe', ["'maybe'", 'yes, no or auto']),
        ('[rl4lm]\nseed = 1', ['[rl4lm]', 'did you mean [rl4llm]']),
        ('[RL4LLM]\nseed = 1', ['[RL4LLM]', 'did you mean [rl4llm]']),
        ('[training]\nseed = 1\npreset = cpu', ['[training]', 'did you mean [rl4llm]']),
        ('[rl4llm]\nmodel = caf\udce9', ['settings.ini is not an ini file']),
        ('[rl4llm]\nseed = 1\n[sizes]\n', ['[sizes]', '[rl4llm]']),
        ('[rl4llm]\nseed = 1\nseed = 2', ['settings.ini', 'seed', 'already exists']),
        ('seed = 1\n', ['settings.ini is not an ini file', 'section']),
    ],
)
def test_a_wrong_file_is_answered_in_one_sentence(text, words):
    write(text)
    with pytest.raises(ValueError) as error:
        settings()
    message = str(error.value)
    assert all(w in message for w in words) and '\n' not in message


def words_of(pattern):
    "The words that a pattern without capitals lists; none for one that takes any text."
    plain = pattern.replace('(:[0-9]{1,4})?', '|cuda:1')
    return plain.split('|') if re.fullmatch(r'[a-z0-9:|]+', plain) else []


@pytest.mark.parametrize('key', [key for key in KEYS if words_of(KEYS[key].pattern)])
def test_capital_letters_mean_what_small_ones_do(key, monkeypatch):
    assert {'preset', 'device', 'dry_run'} <= {k for k in KEYS if words_of(KEYS[k].pattern)}
    for word in words_of(KEYS[key].pattern):
        for given in (word.upper(), word.title()):
            assert parse_key(key, given) == parse_key(key, word)
    for device in ('CPU', 'Auto'):
        monkeypatch.setenv('RL4LLM_PRESET', 'Cpu')
        monkeypatch.setenv('RL4LLM_DEVICE', device)
        assert size(cpu=1, gpu=2) == 1 and settings().device in ('cpu', 'cuda')


def test_names_and_folders_keep_their_capitals(empty):
    write('\ufeff[rl4llm]\nruns = Kept\nmodel = Owner/Model\n')  # after a byte order mark
    assert settings().runs == empty / 'Kept' and settings().model == 'Owner/Model'


def test_a_wrong_variable_is_named(monkeypatch):
    monkeypatch.setenv('RL4LLM_SEED', 'one')
    with pytest.raises(ValueError, match='environment variable RL4LLM_SEED'):
        settings()
    monkeypatch.delenv('RL4LLM_SEED')
    monkeypatch.setenv('RL4LLM_SEEDS', '1')
    with pytest.raises(ValueError, match="did you mean 'seed'"):
        settings()


def test_an_explicit_file_must_exist_and_be_ours():
    with pytest.raises(FileNotFoundError, match='no settings file'):
        settings('none.ini')
    write('[other]\nx = 1\n')
    with pytest.raises(ValueError, match=r'no section \[other\]'):
        settings('settings.ini')


def test_auto_is_looked_up_and_a_missing_gpu_is_said():
    torch = pytest.importorskip('torch')
    gpus = torch.cuda.device_count()
    assert Settings().device == ('cuda' if gpus else 'cpu') and Settings().preset == (
        'gpu' if gpus else 'cpu'
    )
    assert Settings(preset_set='gpu', device_set='cpu').preset == 'gpu'
    with pytest.raises(ValueError, match=f'torch sees {gpus} GPUs'):
        Settings(device_set=f'cuda:{gpus}').device


def test_reading_settings_imports_no_torch():
    code = "import sys; from rl4llm import settings; settings().seed; print('torch' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, '-c', code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == 'False'
    )


def test_threads_are_applied():
    import torch

    before = torch.get_num_threads()
    try:
        apply_settings(Settings(threads=1))
        assert torch.get_num_threads() == 1
        apply_settings(Settings(threads=0))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_display_holds_no_absolute_path(empty):
    s = settings()
    assert str(empty) not in repr(s) + s._repr_html_() and 'runs=runs' in repr(s)


def test_size_picks_by_preset_and_dry_run():
    cpu, gpu, dry = (
        Settings(preset_set='cpu'),
        Settings(preset_set='gpu'),
        Settings(preset_set='gpu', dry_run=True),
    )
    assert [size(cpu=5, gpu=20, dry=1, using=s) for s in (cpu, gpu, dry)] == [5, 20, 1]
    assert size(cpu=5, gpu=20, using=dry) == 20 and size(cpu=5, gpu=20, dry=0, using=dry) == 0
    assert size(cpu=dict(a=1, b=2), gpu=dict(a=3, b=4), dry=dict(b=0), using=dry) == dict(a=3, b=0)
    with pytest.raises(ValueError, match='same keys'):
        size(cpu=dict(a=1), gpu=dict(b=1), using=cpu)
    with pytest.raises(ValueError, match='same keys'):
        size(cpu=dict(a=1), gpu=dict(a=1), dry=dict(c=1), using=cpu)


# -- the diagnosis


def test_doctor_names_what_it_looked_at():
    rows = doctor()
    assert [r.what for r in rows][:3] == ['python', 'rl4llm', 'packages']
    assert {
        'device',
        'threads',
        'bfloat16',
        'settings',
        'preset',
        'runs folder',
        'embedded model',
        'programs',
    } <= {r.what for r in rows}
    assert all(r.found for r in rows) and all(r.mend for r in rows if r.ok is False)


def test_doctor_says_whether_programs_can_be_locked_in(monkeypatch):
    from rl4llm.rewards import sandbox

    monkeypatch.setattr(sandbox, 'find_isolation', lambda: 'namespaces')
    assert doctor()[-1][:3] == ('programs', 'locked in by namespaces', True)

    def refused():
        raise RuntimeError("no program is run, because nothing works: allow user namespaces.")

    monkeypatch.setattr(sandbox, 'find_isolation', refused)
    row = doctor()[-1]
    assert row.what == 'programs' and row.ok is None and 'user namespaces' in row.mend


def test_doctor_gives_the_command_for_what_is_missing():
    from packaging.specifiers import SpecifierSet

    assert unfit({'no-such-package': SpecifierSet('>=1')}) == [
        'no-such-package missing (wanted >=1)'
    ]
    assert unfit({'pandas': SpecifierSet('>=2')}) == []
    assert install_command('lab').endswith(('-e ".[lab]"', '"rl4llm[lab]"'))
    lacking = [r for r in find_packages() if r.what.startswith('extra') and r.ok is None]
    assert all('pip install' in r.mend and r.what.split()[1] in r.mend for r in lacking)


def in_gymnasium():
    from rl4llm.environments import as_gymnasium

    as_gymnasium(object, [])


def in_openenv():
    from rl4llm.environments import openenv_types

    openenv_types.cache_clear()
    openenv_types()


def served():
    from rl4llm.environments import as_openenv

    as_openenv(object, [])


def reasoning_gym():
    from rl4llm.tasks import gym_task

    gym_task('a_name_that_nobody_asked_for')


def reasoning_gym_sets():
    from rl4llm.tasks import gym_sets

    gym_sets()


def live_plot():
    from types import SimpleNamespace
    from rl4llm.training.callbacks import LivePlot

    LivePlot().draw(SimpleNamespace())


def board():
    from types import SimpleNamespace
    from rl4llm.widgets.dashboard import dashboard_widget

    dashboard_widget(SimpleNamespace(parts=None))


def knob():
    from types import SimpleNamespace
    from rl4llm.widgets.panels import knob_widget

    knob_widget(SimpleNamespace(label='', kind='choice'), 0)


def trl_data():
    from rl4llm.rewards import items_dataset

    items_dataset('countdown', 1)


def bridge():
    from rl4llm.scaling import trl_trainer

    trl_trainer('grpo', None, None, folder='nowhere', steps=1)


def two_processes():
    from types import SimpleNamespace
    from rl4llm.scaling.trl_bridge import _from_all_processes

    _from_all_processes(SimpleNamespace(num_processes=2), [])


def mathematics():
    from rl4llm.rewards.mathematics import same_mathematics

    same_mathematics('a new answer 17', '18')


def server():
    from rl4llm.rewards.judges import endpoint_judge

    endpoint_judge('a model', base_url='http://127.0.0.1:9')


def parquet():
    from rl4llm.scaling.datasets import _parquet_rows

    _parquet_rows(Path('nowhere.parquet'))


def tracked(library):
    from rl4llm.training import Track

    return lambda: Track(library)


def lab():
    from rl4llm.app.cli import lab_command

    lab_command(1)


EXTRAS = {
    'jupyterlab': ('lab', [lab]),
    'ipywidgets': ('lab', [board, knob]),
    'IPython': ('lab', [live_plot]),
    'gymnasium': ('envs', [in_gymnasium]),
    'openenv': ('envs', [in_openenv, served]),
    'reasoning_gym': ('envs', [reasoning_gym, reasoning_gym_sets]),
    'datasets': ('scale', [trl_data]),
    'math_verify': ('scale', [mathematics]),
    'openai': ('scale', [server]),
    'pyarrow': ('', [parquet]),
    'trl': ('scale', [bridge]),
    'accelerate': ('scale', [two_processes]),
    'tensorboard': ('', [tracked('tensorboard')]),
    'wandb': ('', [tracked('wandb')]),
    'trackio': ('', [tracked('trackio')]),
}


@pytest.mark.parametrize('package', EXTRAS)
def test_the_error_about_a_missing_package_names_its_extra(package, monkeypatch):
    extra, calls = EXTRAS[package]
    for name in [name for name in sys.modules if name.partition('.')[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    for call in calls:
        with pytest.raises(ModuleNotFoundError) as e:
            call()
        said = str(e.value)
        assert f'needs the package {package}, which' in said and '\n' not in said
        alone = f'pip install {package}'  # of a package that no extra brings
        assert said.endswith(install_command(extra) if extra else alone)
        assert f'[{extra}]' in said or not extra


GUARDED = {  # only in a kernel, or only in a worker that is started after asking
    'course/exercises.py': {'IPython'},
    'course/pictures.py': {'IPython'},
    'widgets/panels.py': {'IPython'},
    'rewards/mathematics.py': {'math_verify'},
}


@pytest.mark.slow
def test_no_optional_package_is_imported_without_a_word():
    "What an extra brings is imported by `import_optional`, each use of which is tried above."
    import ast
    import rl4llm

    folder = Path(rl4llm.__file__).parent
    brought = {'IPython', *requirements('lab'), *requirements('scale'), *requirements('dev')}
    brought |= {'openenv', *requirements('envs')}
    brought = {name.replace('-', '_') for name in brought} - set(requirements())
    asked = set()
    for file in folder.rglob('*.py'):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            plain = {name.partition('.')[0] for name in names} & brought
            assert plain <= GUARDED.get(str(file.relative_to(folder)), set()), (file, plain)
            if isinstance(node, ast.Call) and getattr(node.func, 'id', '') == 'import_optional':
                asked.add(node.args[0].value.partition('.')[0])
    assert asked == set(EXTRAS)


def test_doctor_reports_wrong_settings_instead_of_failing():
    write('[rl4llm]\nsead = 1\n')
    assert [r.ok for r in find_setup()] == [False]
    write('[rl4llm]\ndevice = cuda:99\n')
    preset = next(r for r in find_setup() if r.what == 'preset')
    assert preset.ok is False and 'GPUs here' in preset.found


def test_doctor_sees_a_runs_folder_that_cannot_be(empty):
    (empty / 'file').write_text('')
    write('[rl4llm]\nruns = file/runs\n')
    row = next(r for r in find_setup() if r.what == 'runs folder')
    assert row.ok is False and 'cannot be written' in row.found


def test_the_embedded_model_is_there():
    assert find_model()[0].ok
