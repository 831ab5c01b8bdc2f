"""Full-scale files become runs on TRL: what they ask for, small runs, resumption, processes."""

import json, os, signal, subprocess, sys, time
from pathlib import Path
import pytest
import torch

pytest.importorskip('trl')
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from datasets import Dataset
from rl4llm import Policy, recipe, task
from rl4llm.core.numerics import fold
from select_notebooks import turn_of
from rl4llm.core.pipeline import build_stages
from rl4llm.scaling.config_files import config_names, load_config
from rl4llm.scaling.launching import (
    accelerate_config,
    build_run,
    check_config,
    check_data,
    check_launch,
    config_problems,
    full_recipe,
    laid_out,
    launch_arguments,
    launch_plan,
    newest_checkpoint,
    trl_problems,
)

TOP = Path(__file__).resolve().parents[1]
SMALL = ['--small', '--set', 'prompts=4', '--set', 'group=8', '--set', 'lr=1e-3']
SMALL += ['--set', 'max_completion_length=24', '--set', 'disable_tqdm=true']


@pytest.mark.parametrize('name', config_names())
def test_every_value_of_a_file_has_a_place_and_trl_knows_the_arguments(name):
    config = load_config(name)
    places = check_config(name)
    assert places['goes to'].notna().all() and (places['goes to'] != '').all()
    made = full_recipe(config)
    assert made.prompts == config['prompts_per_step'] and made.group == config['num_generations']
    assert made.lr == config['learning_rate'] and made.epochs == config['num_iterations']
    count = config['num_processes'] or 1
    arguments = launch_arguments(config, made, processes=count)
    assert not trl_problems(arguments)
    if config['gradient_accumulation_steps']:
        assert arguments['gradient_accumulation_steps'] == config['gradient_accumulation_steps']


def test_what_a_paper_reports_reaches_its_stage():
    for name, place, knob, value in (
        ('weighted_reinforce', 'advantage', 'weight', 0.1),
        ('cispo', 'objective', 'cap', 5.0),
        ('dapo', 'objective', 'high', 0.28),
        ('dapo', 'advantage', 'buffer', 4096),
        ('dapo', 'advantage', 'max_length', 20480),
        ('lite_ppo', 'advantage', 'scale', 'batch'),
        ('dr_grpo', 'aggregate', 'length', 3072),
        ('pacs', 'aggregate', 'mode', 'seq-mean-token-sum'),
    ):
        made = full_recipe(load_config(name))
        assert dict(getattr(made, place).knobs)[knob] == value, name
    kl = {b.name: dict(b.knobs) for b in full_recipe(load_config('rloo')).regularisers}
    assert kl['kl_penalty']['coef'] == 0.05
    assert not full_recipe(load_config('dapo')).regularisers


def test_a_renamed_or_wrong_argument_is_named():
    found = trl_problems(dict(num_generation=8, learning_rate='fast', use_vllm=1, top_p=1))
    assert len(found) == 3
    assert 'num_generations' in found[0] and 'learning_rate' in found[1]
    assert not trl_problems(dict(lr_scheduler_type='constant', max_grad_norm=1, beta=0.0))


def test_what_does_not_run_is_named():
    assert 'handful' not in ' '.join(config_problems('one_shot'))
    assert 'stale_sample' in ' '.join(config_problems('decoupled_ppo'))
    assert 'do not make that up' in ' '.join(config_problems('negative', processes=3))


@pytest.mark.parametrize('spread', ['MULTI_GPU', 'FSDP', 'DEEPSPEED', 'NO'])
def test_accelerate_reads_the_file(spread, tmp_path):
    path = tmp_path / 'accelerate.yaml'
    made = accelerate_config(spread, processes=1 if spread == 'NO' else 8)
    path.write_text(yaml.safe_dump(made))
    found = load_config_from_file(str(path))
    assert found.distributed_type == spread and found.num_processes in (1, 8)


@pytest.mark.parametrize('spread', ['FSDP', 'DEEPSPEED'])
def test_accelerate_has_an_option_for_each_line(spread):
    from accelerate.commands.launch import launch_command_parser

    known = vars(launch_command_parser().parse_args(['x.py']))
    section = {'FSDP': 'fsdp_config', 'DEEPSPEED': 'deepspeed_config'}[spread]
    assert set(accelerate_config(spread, processes=8)[section]) <= set(known)


def test_an_unknown_way_to_spread_is_named():
    with pytest.raises(ValueError, match='FSDP'):
        accelerate_config('FSPD', processes=2)


def test_the_server_of_vllm_is_started_first(tmp_path):
    path = tmp_path / 'own.yaml'
    path.write_text(
        'name: own\nrecipe: grpo\nlike: grpo\nlaunch:\n  vllm_mode: {value: server, source: ours}\n'
    )
    text = str(launch_plan(path, out='out'))
    assert text.index('trl vllm-serve --model Qwen/Qwen2.5-Math-7B') < text.index('accelerate')


def test_problems_are_those_of_the_loop():
    made = recipe('grpo', prompts=3)
    rows = laid_out(made, 'countdown', steps=2, seed=5)
    for step in range(2):
        drawn = task('countdown').sample(3, seed=int(fold(5, step, 1)), split='train')
        asked = [
            json.loads(row['item'])['data'] for row in rows.select(range(3 * step, 3 * step + 3))
        ]
        assert asked == [json.loads(json.dumps(item.data)) for item in drawn]


def test_a_handful_of_rows_is_repeated():
    data = Dataset.from_list([dict(prompt=str(n), answer=str(n)) for n in range(50)])
    rows = laid_out(recipe('one_shot', prompts=4), data, steps=3)
    assert len(rows) == 12 and len(set(rows['prompt'])) == 1
    rows = laid_out(recipe('grpo', prompts=40), data, steps=2)
    assert len(set(rows['prompt'][:40])) == 40
    for first in (0, 50):  # one pass, then the next
        passed = rows_of(data, steps=10)[first : first + 50]
        assert len(set(passed)) == 50
    assert rows_of(data, steps=10)[:50] != rows_of(data, steps=10)[50:]
    assert rows_of(data, steps=10) != rows_of(data, steps=10, seed=1)


def rows_of(data, **how):
    return laid_out(recipe('grpo', prompts=10), data, **how)['prompt'][:]


def test_bad_data_are_named(tmp_path):
    made = recipe('grpo')
    with pytest.raises(ValueError, match='no column .prompt. but question'):
        laid_out(made, Dataset.from_list([dict(question='1+1')]), steps=1)
    with pytest.raises(ValueError, match='empty'):
        laid_out(made, Dataset.from_list([]), steps=1)
    with pytest.raises(ValueError, match='needs data'):
        build_run('grpo', out=tmp_path)
    with pytest.raises(ValueError, match='how many steps'):
        build_run('grpo', small=True, out=tmp_path)
    with pytest.raises(ValueError, match='steps is 0'):
        build_run('grpo', small=True, steps=0, out=tmp_path)
    with pytest.raises(ValueError, match='every is 0'):
        build_run('grpo', small=True, steps=1, every=0, out=tmp_path)


def test_an_argument_that_the_recipe_decides_is_refused(tmp_path):
    for name, value in (('beta', 5.0), ('num_iterations', 3), ('loss_type', 'dr_grpo')):
        with pytest.raises(ValueError, match=f'{name} would do nothing'):
            build_run('grpo', small=True, steps=1, out=tmp_path, **{name: value})


def test_rows_are_cut_and_never_change_the_batch(tmp_path):
    "Whatever is said of a micro-batch, a generation has the recipe's prompts times its group."
    made = recipe('grpo')
    word = 'per_device_train_batch_size'
    for more, rows in (({}, 2), ({word: 1}, 1), ({word: 4}, 4), (dict(rows=4), 4), ({word: 7}, 4)):
        trainer = build_run('grpo', small=True, steps=1, out=tmp_path / str(more), **more)
        args = trainer.args
        assert args.per_device_train_batch_size == rows
        assert rows * args.steps_per_generation == made.prompts * made.group
        update = min(made.minibatch or 10**9, made.prompts * made.group)
        assert rows * args.gradient_accumulation_steps == update
    for name in ('gradient_accumulation_steps', 'generation_batch_size'):
        with pytest.raises(ValueError, match=f'{name} would do nothing'):
            build_run('grpo', small=True, steps=1, out=tmp_path, **{name: 2})
    with pytest.raises(ValueError, match='mean the same'):
        build_run('grpo', small=True, steps=1, out=tmp_path, rows=2, **{word: 2})


def test_an_argument_that_nobody_knows_is_named_with_the_nearest(tmp_path):
    for name, value, near in (
        ('nonsense', 3, "no argument 'nonsense'"),
        ('num_generation', 8, 'num_generations'),
        ('promps', 8, 'prompts'),
        ('learning_rate', 'fast', 'wants float'),
        ('report_to', 3, 'report_to, not 3'),
    ):
        with pytest.raises(ValueError, match=near):
            build_run('grpo', small=True, steps=1, out=tmp_path, **{name: value})
    assert not trl_problems(dict(report_to=['tensorboard'])) and not list(tmp_path.iterdir())


def test_small_takes_every_recipe_that_carries_over(tmp_path):
    from rl4llm.core.registry import RECIPES
    from rl4llm.scaling.trl_bridge import not_carried

    recipe('grpo')
    alone = [name for name in RECIPES if name not in config_names() and not not_carried(name)]
    assert len(alone) > 40
    for name in alone:
        plan = launch_plan(name, out=tmp_path, processes=2, small=True)
        assert name in plan.command and '--small' in plan.command
        with pytest.raises(ValueError, match=f"'{name}' carries over, but .*add --small"):
            launch_plan(name, out=tmp_path)
    trainer = build_run('ppo', small=True, steps=1, out=tmp_path, rows=8)
    assert trainer.recipe.name == 'ppo' and trainer.stages.memory
    with pytest.raises(KeyError, match='did you mean'):
        build_run('pppo', small=True, steps=1, out=tmp_path)
    with pytest.raises(ValueError, match='has no full-scale file, and does not carry over'):
        launch_plan('dph_js', out=tmp_path)


def test_a_launch_that_would_fail_everywhere_is_refused_before():
    for name, how, words in (
        ('grpo', dict(processes=5), 'do not make that up'),
        ('pacs', {}, 'does not carry over'),
        ('grpo', dict(num_generation=8), 'did you mean'),
        ('ppo', dict(small=True, processes=7), 'do not make that up'),
        ('grpo', dict(processes=0), 'wanted at least 1'),
    ):
        with pytest.raises(ValueError, match=words):
            check_launch(name, **how)
    check_launch('grpo', processes=8)
    check_launch('grpo', processes=5, prompts=10, group=5, minibatch=None)  # changes count
    check_launch('dapo', redraws=10)


def test_data_that_a_run_could_not_read_are_refused_before(tmp_path):
    path = tmp_path / 'mine.jsonl'
    path.write_text('{"q": "What is 2 + 3?", "sol": "5"}\n')
    check_data(str(path), question='q', answer='sol')
    check_data(None, small=True)
    check_data('gsm8k')  # on a hub: not fetched
    for word, fields, said in (
        (str(path), {}, 'question'),
        ('nosuch.jsonl', {}, 'is no file'),
        (None, {}, 'needs data'),
    ):
        with pytest.raises(ValueError, match=said):
            check_data(word, **fields)


def test_redraws_can_be_asked_for(tmp_path):
    how = dict(small=True, out=tmp_path, prompts=4, group=8, minibatch=None, rows=8, steps=1)
    trainer = build_run('dapo', redraws=3, **how)
    assert trainer.redraws == 3
    with pytest.raises(ValueError, match='redraws would do nothing'):
        build_run('grpo', redraws=3, **how)


def test_questions_go_to_a_model_as_it_can_read_them(tmp_path):
    from transformers import AutoTokenizer

    mine = Dataset.from_dict(
        {'prompt': [[{'role': 'system', 'content': 'a'}, {'role': 'user', 'content': 'b'}]] * 4}
        | {'answer': ['5'] * 4}
    )
    how = dict(out=tmp_path, small=True, steps=1, prompts=4, group=8, minibatch=None, rows=8)
    with pytest.raises(ValueError, match='the embedded model .* give --model'):
        build_run('grpo', mine, **how)
    assert not list(tmp_path.iterdir())
    policy = Policy.load('tiny-v1')
    policy.model.save_pretrained(tmp_path / 'model')
    policy.tokenizer.save_pretrained(tmp_path / 'model')
    plain = build_run('grpo', mine, **how | dict(model=str(tmp_path / 'model')))
    assert set(plain.train_dataset['prompt']) == {'a\n\nb'}
    assert set(plain.train_dataset['answer']) == {'5'}
    spoken = AutoTokenizer.from_pretrained(tmp_path / 'model')
    spoken.chat_template = "{{ messages[0]['content'] }}"
    spoken.save_pretrained(tmp_path / 'model')
    chat = build_run('grpo', mine, **how | dict(model=str(tmp_path / 'model')))
    assert chat.train_dataset[0]['prompt'][1]['content'] == 'b'


def test_what_goes_on_must_be_the_same_run(tmp_path):
    how = dict(small=True, out=tmp_path, prompts=4, group=8, minibatch=None, rows=8)
    build_run('grpo', steps=1, **how)
    build_run('grpo', 'modular', steps=1, **how)  # nothing is there yet
    (tmp_path / 'checkpoint-1').mkdir()
    build_run('grpo', 'modular', steps=9, **how)
    with pytest.raises(ValueError, match='data was'):
        build_run('grpo', 'countdown', steps=9, **how)
    with pytest.raises(ValueError, match='arguments was'):
        build_run('grpo', 'modular', steps=9, learning_rate=1.0, **how)


def test_numbers_below_one_are_refused(tmp_path):
    for count in (0, -3):
        with pytest.raises(ValueError, match='wanted at least 1'):
            launch_plan('grpo', out=tmp_path, processes=count)
        with pytest.raises(ValueError, match='wanted at least 1'):
            config_problems('grpo', processes=count)
        with pytest.raises(ValueError, match='wanted at least 1'):
            build_run('grpo', small=True, steps=1, out=tmp_path, rows=count)


def test_the_server_has_the_model_that_is_trained():
    made = launch_plan('open_rs', out='out', model='Qwen/Qwen3-4B')
    assert made.first.endswith('Qwen/Qwen3-4B') and '--model Qwen/Qwen3-4B' in str(made)


def test_vllm_that_is_missing_is_named(tmp_path):
    with pytest.raises(ModuleNotFoundError, match='use_vllm=false'):
        build_run('grpo', small=True, steps=1, out=tmp_path, use_vllm=True)


def test_a_checkpoint_that_was_broken_off_is_passed_over(tmp_path):
    plain, learned = (build_stages(recipe(name)) for name in ('grpo', 'ppo'))
    assert newest_checkpoint(tmp_path / 'nothing', plain) is None
    for step, names in ((2, ('trainer_state.json', 'stages.json')), (10, ('trainer_state.json',))):
        for name in names:
            path = tmp_path / f'checkpoint-{step}' / name
            path.parent.mkdir(exist_ok=True)
            path.write_text('{}')
    (tmp_path / 'checkpoint-30').mkdir()
    (tmp_path / 'checkpoint-best').mkdir()
    (tmp_path / 'checkpoint-best' / 'trainer_state.json').write_text('{}')
    assert newest_checkpoint(tmp_path, plain).endswith('checkpoint-10')
    assert newest_checkpoint(tmp_path, learned).endswith('checkpoint-2')


def test_an_adapter_is_trained(tmp_path):
    "One step of LoRA on the embedded model, a KL penalty towards the model without the adapter."
    peft = pytest.importorskip('peft')
    how = peft.LoraConfig(r=4, target_modules=['q_proj', 'v_proj'], task_type='CAUSAL_LM')
    numbers = dict(prompts=4, group=8, minibatch=None, lr=1e-2, max_completion_length=24)
    trainer = build_run(
        'one_shot', small=True, steps=2, out=tmp_path, peft_config=how, **numbers, every=1
    )
    trainer.train()
    start = Policy.load('tiny').model.state_dict()
    own = dict(trainer.accelerator.unwrap_model(trainer.model).named_parameters())
    trained = [name for name, p in own.items() if p.requires_grad]
    assert trained and all('lora_' in name for name in trained)
    assert all(own[name].any() for name in trained if 'lora_B' in name)
    for name, p in own.items():
        if not p.requires_grad:
            plain = name.removeprefix('base_model.model.').replace('.base_layer', '')
            assert torch.equal(p, start[plain]), name
    rows = trainer.generated.rows
    assert trainer.ref_model is None and not torch.equal(rows.logp_ref, rows.logp_old)
    with pytest.raises(ValueError, match='with an adapter'):
        build_run('prorl', small=True, steps=1, out=tmp_path / 'other', peft_config=how)


def command(*words, processes=1):
    start = [sys.executable]
    if processes > 1:
        start += ['-m', 'torch.distributed.run', '--standalone', f'--nproc-per-node={processes}']
    return [*start, '-m', 'rl4llm', 'scale', 'run', 'grpo', *map(str, words), *SMALL]


def ran(*words, processes=1):
    done = subprocess.run(
        command(*words, processes=processes), cwd=TOP, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def metrics_of(folder):
    lines = (folder / 'metrics.jsonl').read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    kept = ('reward', 'grad_norm', 'entropy')
    return [[row[name] for name in kept] for row in rows if 'reward' in row]


def weights_of(folder):
    return Policy.load(str(folder / 'model')).model.state_dict()


def killed_after(folder, step, *words, processes=1):
    "Start the command, and kill it and its children once it has written this checkpoint."
    started = subprocess.Popen(
        command('--out', folder, *words, processes=processes),
        cwd=TOP,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 240
    while not (folder / f'checkpoint-{step}' / 'trainer_state.json').exists():
        assert started.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()


@pytest.mark.takes_turns
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize('processes', [1, 2])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(processes, tmp_path):
    "With one process or with two, in turn."
    if processes != 1 + turn_of(TOP) % 2:
        pytest.skip('another number of processes is in turn')
    words = ['--steps', 6, '--set', 'save_steps=1']
    ran('--out', tmp_path / 'whole', *words, processes=processes)
    killed_after(tmp_path / 'cut', 2, *words, processes=processes)
    assert not (tmp_path / 'cut' / 'metrics.jsonl').exists()
    ran('--out', tmp_path / 'cut', *words, processes=processes)
    assert metrics_of(tmp_path / 'cut') == metrics_of(tmp_path / 'whole')
    assert len(metrics_of(tmp_path / 'cut')) == 6
    whole, cut = weights_of(tmp_path / 'whole'), weights_of(tmp_path / 'cut')
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    start = Policy.load('tiny').model.state_dict()
    assert any(not torch.equal(whole[name], start[name]) for name in whole)


@pytest.mark.takes_turns
@pytest.mark.slow
def test_another_run_in_the_same_folder_is_refused(tmp_path):
    ran('--out', tmp_path, '--steps', 1)
    done = subprocess.run(
        command('--out', tmp_path, '--steps', 1, '--seed', 9),
        cwd=TOP,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and 'seed was' in done.stderr and 'Traceback' not in done.stderr
