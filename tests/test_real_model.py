"""Any Hugging Face causal model trains with the same recipe: text prompts, BPE tokenizer, chat template, other architectures."""

import ast, copy, dataclasses, inspect, json, re, time, zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rl4llm.core import policy as policy_module
from rl4llm.core.method_map import recipes
from rl4llm.core.numerics import STATISTICS
from rl4llm.core.policy import Policy, prompt_text
from rl4llm.core.registry import Recipe, STAGE_FIELDS, recipe, stages, use
from rl4llm.core.sampling import ROOM
from rl4llm.environments.environment import EpisodeTask
from rl4llm.studies.comparison import compare
from rl4llm.tasks import task, task_from, tasks
from rl4llm.training.callbacks import Evaluate
from rl4llm.training.evaluation import evaluate
from rl4llm.training.loop import train
from rl4llm.training.real_models import for_text, real_policy, updates_of

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "


@pytest.fixture(scope='module')
def tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw, texts = (
        Tokenizer(models.BPE()),
        [
            t.prompt(i, style='text')
            for t in map(task, ('countdown', 'modular', 'sat'))
            for i in t.sample(20, seed=0)
        ],
    )
    raw.pre_tokenizer, raw.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    raw.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=['<pad>', '<end>'],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token='<pad>', eos_token='<end>')


def saved(folder, kind, tokenizer, template=TEMPLATE, **sizes):
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    tokenizer.chat_template = template
    config = AutoConfig.for_model(
        kind,
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.eos_token_id,
        **sizes,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


LLAMA = dict(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
)
GPT2 = dict(n_embd=32, n_layer=2, n_head=4, n_positions=512)
# words of a model that calls tools
MARKS = ['<tool>', '</tool>', '<result>', '</result>', '<done>']
LONG = dict(llama=dict(max_position_embeddings=2048), gpt2=dict(n_positions=2048))
LONG['qwen2'] = LONG['llama']


def digits(prompts, completions, **columns):
    return [sum(c.isdigit() for c in text) / max(1, len(text)) for text in completions]


@pytest.mark.parametrize(
    'kind, sizes, lean', [('qwen2', LLAMA, True), ('llama', LLAMA, True), ('gpt2', GPT2, False)]
)
@pytest.mark.parametrize('name', sorted(tasks()))
def test_a_recipe_trains_any_model_on_any_task(tmp_path, tokenizer, kind, sizes, lean, name):
    is_played = isinstance(task(name), EpisodeTask)
    if is_played:
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.add_tokens(MARKS)
    policy = real_policy(saved(tmp_path / kind, kind, tokenizer, **sizes | LONG[kind]))
    made = for_text('grpo', max_new_tokens=10, lr=3e-3, prompts=2, group=4, reward=use(digits))
    if is_played and not lean:
        with pytest.raises(ValueError, match='wants a model of the Llama family'):
            train(policy, task(name), made, steps=2)
        return
    run = train(policy, task(name), made, steps=2, path=tmp_path / 'run')
    assert policy.style == 'text' and policy.has_fast_path == lean
    assert len(run.rows) == 2 and all(r['loss'] is not None for r in run.rows)
    again = Policy.load(policy.save(tmp_path / 'saved'))
    assert all(
        torch.equal(a, b) for a, b in zip(policy.model.parameters(), again.model.parameters())
    )


def test_sampled_and_teacher_forced_agree_for_the_fallback(tmp_path, tokenizer):
    policy = real_policy(saved(tmp_path, 'gpt2', tokenizer, **GPT2))
    rollouts = policy.sample(
        task('modular').sample(3, seed=0) + task('countdown').sample(1, seed=1),
        2,
        seed=0,
        max_new_tokens=6,
    )
    with torch.no_grad():
        logp, _ = policy.logprobs(rollouts)
    assert (logp - rollouts.logp_behave)[rollouts.mask].abs().max() < 1e-4


def test_the_chat_template_is_used_where_there_is_one(tmp_path, tokenizer):
    item = task('countdown').sample(1, seed=0)[0]
    chat = real_policy(saved(tmp_path / 'chat', 'llama', tokenizer, **LLAMA))
    plain = real_policy(saved(tmp_path / 'plain', 'llama', tokenizer, template=None, **LLAMA))
    assert prompt_text(chat, item).startswith('user: ') and prompt_text(chat, item).endswith(
        'assistant: '
    )
    assert prompt_text(plain, item) == task('countdown').prompt(item, style='text')


def test_the_template_is_told_that_the_model_speaks_next(tokenizer):
    asks = copy.deepcopy(tokenizer)
    asks.chat_template = "{{ messages[0]['content'] }}{% if add_generation_prompt %} >{% endif %}"
    chat = SimpleNamespace(style='text', tokenizer=asks)
    assert prompt_text(chat, 'What?') == 'What? >'
    assert prompt_text(SimpleNamespace(style='compact', tokenizer=asks), 'What?') == 'What?'


def test_a_policy_has_the_name_of_its_folder_and_what_nobody_says_is_plain(tmp_path, monkeypatch):
    tiny = Policy.load('tiny')
    folder = tiny.save(tmp_path / 'models' / 'tiny')
    assert Policy.load(folder).name == 'tiny' and tiny.name == 'tiny-v1'
    plain = Policy(tiny.model, tiny.tokenizer)
    assert (plain.fast, plain.bf16, plain.graphs) == (True, False, False)
    assert Policy.load('tiny', bf16='auto').bf16 is policy_module.has_fast_bf16('cpu')
    nothing_said = SimpleNamespace(model=SimpleNamespace(config=SimpleNamespace()))
    assert Policy.context.fget(nothing_said) == 10**9 and tiny.context == 256
    with pytest.raises(TypeError, match='wanted a Policy'):
        policy_module.as_policy(SimpleNamespace(model=tiny.model))
    here = SimpleNamespace(runs=tmp_path)
    monkeypatch.setattr(policy_module, 'settings', lambda: here)
    tiny.save(tmp_path / 'models' / 'mine')
    assert policy_module.model_folder('mine') == str(tmp_path / 'models' / 'mine')
    (tmp_path / 'models' / 'mine' / 'model.safetensors').unlink()
    with pytest.raises(FileNotFoundError, match='has no weights'):
        Policy.load('mine')


def test_a_prompt_may_fill_the_context_and_one_row_is_drawn_of_it():
    tiny = Policy.load('tiny')
    items = task('countdown').sample(2, seed=0)
    longest = max(len(tiny.tokenizer(text)['input_ids']) for text in tiny.prompts(items))
    assert len(tiny.sample(items, seed=0).tokens) == len(items)
    tiny.model.config.max_position_embeddings = longest
    for encode in (tiny.encode_prompts, lambda items: policy_module.encode_prompts(tiny, items)):
        assert encode(items)[0].shape == (2, longest)
    with pytest.raises(ValueError, match='1 are wanted'):
        tiny.encode_prompts(items, 1)


def test_prompt_and_room_together_choose_the_decoder(monkeypatch):
    tiny = Policy.load('tiny', fast=True, bf16=False, graphs=False)
    asked = torch.ones(1, 10).long(), torch.ones(1, 10).bool(), torch.zeros(2).long()

    def kind(policy, room=4):
        return type(policy.decoder(*asked, room)).__name__

    assert [kind(tiny), kind(tiny, 502), kind(tiny, 503)] == ['FastDecoder'] * 2 + ['Decoder']
    assert kind(dataclasses.replace(tiny, graphs=True)) == 'StaticDecoder'
    seen = []

    def is_fast(model, tokens):
        seen.append(tokens)
        return False

    rows = tiny.sample(task('countdown').sample(1, seed=0), 2, seed=0)
    monkeypatch.setattr(policy_module.fast_llama, 'is_fast', is_fast)
    tiny.statistics(rows, ('logp',))
    assert seen == [rows.prompt_ids.shape[1] + rows.tokens.shape[1]]


def test_statistics_are_the_same_in_any_pieces_and_any_order(monkeypatch):
    draw = torch.Generator().manual_seed(0)
    hidden, head = (torch.randn(5, 8, generator=draw), torch.randn(11, 8, generator=draw))
    tokens = torch.tensor([3, 0, 10, 4, 4])
    logits = hidden @ head.T
    given = (hidden, head, tokens)
    both = [(('logp',), ()), (('logp',), ('entropy',)), (('entropy',), ('entropy',))]
    for names, watched in [*both, (('entropy',), ('logp',)), (('logp',), ('logp',))]:
        wanted = [STATISTICS[name](logits, tokens) for name in (*names, *watched)]
        found = policy_module.token_stats(*given, names=names, watched=watched)
        assert all(torch.allclose(f, w, atol=1e-5) for f, w in zip(found, wanted))
        assert len(found) >= len(wanted)
    sizes = []
    real = policy_module._stats

    def counting(states, *rest, **how):
        sizes.append(len(states))
        return real(states, *rest, **how)

    monkeypatch.setattr(policy_module, '_stats', counting)
    for budget, parts in ((1, [1] * 5), (22, [2, 2, 1]), (33, [3, 2]), (55, [5])):
        sizes.clear()
        in_parts, _ = policy_module.token_stats(*given, budget=budget)
        assert sizes == parts and torch.allclose(in_parts, wanted[0], atol=1e-5)


def test_states_of_whole_sequences_give_the_models_own_logits():
    model = Policy.load('tiny').model
    ids = torch.arange(1, 13).reshape(2, 6)
    hidden, head = policy_module.whole_states(model, ids)
    with torch.no_grad():
        assert torch.allclose(hidden @ head.T, model(input_ids=ids).logits, atol=1e-4)


def test_missing_models_and_long_prompts_are_answered_in_a_sentence(tmp_path, tokenizer):
    with pytest.raises(FileNotFoundError, match="no model 'no/such/folder': wanted a shipped name"):
        Policy.load('no/such/folder')
    policy = real_policy(
        saved(tmp_path, 'llama', tokenizer, **{**LLAMA, 'max_position_embeddings': 64})
    )
    with pytest.raises(
        ValueError, match='tokens and 32 are wanted for the response, but .* holds 64'
    ):
        policy.sample(task('countdown').sample(1, seed=0), 1, seed=0, max_new_tokens=32)


@pytest.mark.parametrize(
    'name, nearest', [('tinny', 'tiny'), ('Tiny', 'tiny'), ('tiny-v2', 'tiny-v1')]
)
def test_a_misspelt_shipped_name_is_answered_at_once(name, nearest, monkeypatch):
    monkeypatch.delenv('HF_HUB_OFFLINE', raising=False)
    Policy.load('tiny')  # imports what is slow
    began = time.perf_counter()
    with pytest.raises(
        FileNotFoundError, match=f"no model '{name}' is here; did you mean '{nearest}'"
    ):
        Policy.load(name)
    assert time.perf_counter() - began < 1


LOCAL = dict.fromkeys(['gpt2', 'small-v1', './mine', 'runs/models/mine', 'nbs/mine'], True)


def test_only_owner_and_model_are_asked_for_on_the_hub(monkeypatch):
    import transformers

    asked = []

    def load(folder, *, local_files_only, **how):
        asked.append(local_files_only)
        raise OSError('not there')

    monkeypatch.chdir(Path(__file__).parents[1])
    monkeypatch.setattr(transformers.AutoModelForCausalLM, 'from_pretrained', load)
    for name, local in {**LOCAL, 'owner/mine': False}.items():
        with pytest.raises(FileNotFoundError, match='no model'):
            Policy.load(name)
        assert asked.pop() == local, name


def without(name):
    return lambda folder: (folder / name).unlink()


def cut(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:40])


def one_layer_less(folder):
    from safetensors.torch import load_file, save_file

    file = folder / 'model.safetensors'
    save_file(
        {k: v for k, v in load_file(file).items() if '.layers.1.' not in k},
        file,
        metadata=dict(format='pt'),
    )


def other_shape(folder):
    config = json.loads((folder / 'config.json').read_text())
    (folder / 'config.json').write_text(json.dumps({**config, 'intermediate_size': 96}))


def no_second_shard(folder):
    (folder / 'model.safetensors').rename(folder / 'model-1.safetensors')
    (folder / 'model.safetensors.index.json').write_text(
        json.dumps(dict(weight_map=dict(a='model-1.safetensors', b='model-2.safetensors')))
    )


@pytest.mark.parametrize(
    'damage, words',
    [
        (without('config.json'), 'no configuration .config.json.'),
        (without('model.safetensors'), 'no weights .model.safetensors.'),
        (lambda folder: [file.unlink() for file in folder.glob('tokenizer*')], 'no tokenizer'),
        (cut('config.json'), 'config.json is damaged'),
        (cut('tokenizer.json'), 'tokenizer.json is damaged'),
        (cut('model.safetensors'), 'model.safetensors is damaged'),
        (one_layer_less, '12 of its weights are missing .*layers.1.input_layernorm'),
        (no_second_shard, 'no model-2.safetensors, which model.safetensors.index.json names'),
    ],
)
def test_a_model_folder_that_is_not_whole_names_what_is_wrong(tmp_path, tokenizer, damage, words):
    folder = saved(tmp_path / 'model', 'qwen2', tokenizer, **LLAMA)
    assert Policy.load(folder)
    damage(folder)
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        Policy.load(folder)
    assert (
        re.search(words, str(error.value))
        and str(folder) in str(error.value)
        and '\n' not in str(error.value)
    )


def test_weights_of_another_shape_are_counted_and_three_are_named(tmp_path, tokenizer):
    folder = saved(tmp_path / 'model', 'qwen2', tokenizer, **LLAMA)
    other_shape(folder)
    with pytest.raises(ValueError, match='6 of its weights .*another shape .*gate_proj.*, [.]{3}'):
        Policy.load(folder)
    for lacking, named in ((['a', 'b', 'c'], '(a, b, c)'), ([*'abcd'], '(a, b, c, ...)')):
        with pytest.raises(ValueError, match=re.escape(named)):
            policy_module._check_weights('m', dict(mismatched_keys=[], missing_keys=lacking))


OTHER = ('[]', '{}', '3', '"text"', 'null', '{"weight_map": ["a"]}', '{"weight_map": {"a": 3}}')


@pytest.mark.parametrize('content', OTHER)
def test_a_file_of_a_model_that_holds_something_else_is_answered(tmp_path, tokenizer, content):
    "Whatever stands in one of its files: the model is loaded, or one sentence names it."
    folder = saved(tmp_path / 'model', 'qwen2', tokenizer, **LLAMA)
    (folder / 'model.safetensors.index.json').write_text('{"weight_map": {}}')
    files = sorted(folder.glob('*.json'))
    refused = set()
    for file in files:
        good = file.read_text()
        file.write_text(content)
        try:
            assert Policy.load(folder)
        except (ValueError, FileNotFoundError) as error:
            assert str(folder) in str(error) and '\n' not in str(error)
            refused.add(file.name)
        file.write_text(good)
    assert 'tokenizer.json' in refused and Policy.load(folder)
    if 'weight_map' in content:
        assert 'model.safetensors.index.json' in refused


# every recipe at the scale of a text model

ALL = sorted(recipes().index)
NOT_IN_TOKENS = set(
    """branch_rollouts.max_new_tokens branch_rollouts.seed branch_rollouts.splits
    branch_rollouts.width changed_sample.horizon critical_forks.branches critical_forks.letters
    critical_forks.max_new_tokens critical_forks.seed sample_by_the_clock.seed engine_sample.lag
    gae.epochs grpo.ddof grpo_roc.fewest handful.count handful.draw lagged_top_p.every
    lagged_top_p.least logged_sample.batches pkpo.k recomposed_sample.horizon
    recomposed_sample.size prompt_pairs.brittle prompt_pairs.samples random_reward.seed
    flipped_reward.seed dealt_reward.seed mended_reward.seed mended_reward.full
    pattern_reward.full reference_value.epochs reference_value.fit rehearse_solved.tries
    sample_episodes.max_new_tokens sample_episodes.seed sample_episodes.top_k
    reset_reference.every reset_reference.patience scheduled.over shuffled.seed variety.n
    rlfr.epochs rlfr.warmup sample.max_new_tokens sample.seed sample.top_k stale_sample.lag
    token_reward_weights.epochs token_reward_weights.warmup accuracy_band.most elliptical.dim
    rdd.passes rdd.memory curiosity.words curiosity.passes curiosity.memory curiosity.codes
    curiosity.width tournament_reward.seed subgroup_votes.size subgroup_votes.seed
    marked_reward.seed marked_reward.looks sample_thoughts.seed tool_branches.seed
    tool_branches.max_new_tokens prompt_echo.run rubric_reward.seed praised_reward.seed
    lookahead_rollouts.horizon lookahead_rollouts.top archived_rows.batch archived_rows.size
    archived_rows.width deep_search_rollouts.depth deep_search_rollouts.max_new_tokens
    deep_search_rollouts.seed deep_search_rollouts.width replayed_search.depth
    replayed_search.size replayed_search.width evolved_edits.archive evolved_edits.every
    evolved_edits.islands evolved_edits.population edit_reward.lazy
    rstar_traces.keep rstar_traces.width rstar_traces.depth rstar_traces.epochs
    best_first_traces.width best_first_traces.depth best_first_traces.seed
    best_first_traces.max_new_tokens value_guided_rollouts.beam value_guided_rollouts.epochs
    value_guided_rollouts.width
    dense_grpo.samples dense_grpo.seed tp_grpo.samples tp_grpo.seed dealt_effort.enough
    dealt_effort.seed rlsp_reward.enough search_effort.enough oni.budget srpo.least
    several_kinds.kinds mentions.full leaky.seed artefact_free.seed
    crowd_reward.samples crowd_reward.seed timehc.samples timehc.seed hi_grpo.levels""".split()
)


@pytest.fixture(scope='module')
def qwen(tmp_path_factory, tokenizer):
    return real_policy(saved(tmp_path_factory.mktemp('qwen'), 'qwen2', tokenizer, **LLAMA))


def coin(prompts, completions, **columns):
    "Right or wrong by the text's checksum, so that a random model has both in a group."
    return [float(zlib.crc32(text.encode()) % 2) for text in completions]


@pytest.mark.takes_turns
@pytest.mark.parametrize('name', ALL)
def test_every_recipe_trains_a_text_model(qwen, name):
    base = recipe(name)
    made = for_text(
        name,
        max_new_tokens=8,
        lr=1e-3,
        **({'reward': use(coin)} if base.reward.name in ('correct', 'adactrl') else {}),
    )
    if dict(made.select.knobs).get('warmup'):
        made = made.but(select=use(made.select, warmup=0))  # no update before it
    if dict(made.select.knobs).get('most'):
        made = made.but(select=use(made.select, most=None))  # all groups are trained on
    if made.advantage.name in ('hicra', 'hicra_entropy'):
        with pytest.raises(ValueError, match='give a lexicon'):  # numbers are cut here
            train(qwen.clone(), task('countdown', level='easy'), made, steps=1, limit=1e6)
        made = made.but(advantage=use(made.advantage, lexicon=('a', 'e')))
    row = train(qwen.clone(), task('countdown', level='easy'), made, steps=1, limit=1e6).rows[0]
    whole = made.prompts * made.group
    found = ('archived_rows', 'rstar_traces', 'best_first_traces')  # give what was found right
    gives_all = made.sampler.name not in found
    assert (
        (row['rows'] == whole if gives_all else 0 < row['rows'] <= whole)
        and row['tokens'] / row['rows'] <= 8
        and row['length'] > (3 if 'fork' in made.sampler.name else 6)  # branches count what is new
    )
    assert row['updates'] == updates_of(made) == updates_of(base), (
        'the number of updates a batch belongs to the method'
    )


@pytest.mark.parametrize('name', ALL)
def test_a_text_model_changes_sizes_only(name):
    "Knobs stay, except those in tokens, which follow the response; a group size of the recipe's own stays."
    base, made = recipe(name), for_text(name, max_new_tokens=10 * ROOM)
    assert base.group == Recipe.group or made.group == base.group
    assert {k for k in made.diff(base) if k not in STAGE_FIELDS} <= {
        'prompts',
        'group',
        'minibatch',
        'micro',
        'lr',
        'max_new_tokens',
    }
    for field in STAGE_FIELDS:
        old, new = getattr(base, field), getattr(made, field)
        for a, b in zip(*([x] if field != 'regularisers' else x for x in (old, new)), strict=True):
            defaults = {k: p.default for k, p in inspect.signature(a.info.fn).parameters.items()}
            own = {k: v for k, v in a.knobs if k not in dict(a.info.for_tiny)}
            wanted = {
                k: v * 10 if k in a.info.in_tokens and v else v
                for k, v in (defaults | own).items()
                if v is not inspect.Parameter.empty
            }
            assert (
                a.name == b.name
                and {k: v for k, v in (defaults | dict(b.knobs)).items() if k in wanted} == wanted
            )


def test_words_of_the_tiny_model_give_way_to_those_of_the_stage_and_ones_own_stay():
    "A text model was once paid for `<wait>` and for every plus."
    tiny = [name for name in ALL if dict(recipe(name).reward.info.for_tiny)]
    searching = ['rlsp', 'rlsp_dealt', 'rlsp_no_grade', 'rlsp_unverified']
    assert tiny == ['adactrl', 'adactrl_gated', 'grpo_mended', 'reasoning_pattern', *searching]
    for name in tiny[2:4]:
        own, made = recipe(name).reward, for_text(name).reward
        assert dict(own.info.for_tiny).items() <= dict(own.knobs).items() and not made.knobs
        kept = recipe(name, reward=use(own, phrases=('hm',)))
        assert dict(for_text(kept).reward.knobs)['phrases'] == ('hm',)
        assert for_text(for_text(name)).reward == made


def test_every_whole_knob_is_counted_in_tokens_or_is_not():
    "A new knob that is a whole number has to be sorted: does it grow with the response (in_tokens of its stage) or not (the list above)?"
    found = set()
    for info in stages().values():
        if not info.module.startswith('rl4llm'):
            continue
        whole = {
            k
            for k, p in inspect.signature(info.fn).parameters.items()
            if 'int' in str(p.annotation)
            and 'Tensor' not in str(p.annotation)
            and p.kind is p.KEYWORD_ONLY
        }
        assert set(info.in_tokens) <= whole, (
            f'{info.name}: in_tokens names a knob that is no whole number'
        )
        found |= {f'{info.name}.{k}' for k in whole - set(info.in_tokens)}
    assert found == NOT_IN_TOKENS


@pytest.mark.parametrize('name', sorted(stages('sampler')))
def test_every_sampler_keeps_to_the_longest_response(qwen, name):
    rollouts = use(name).make()
    rollouts = (rollouts() if inspect.isclass(rollouts) else rollouts)(
        qwen, task('modular').sample(2, seed=0), 2, seed=0, temperature=1.0, max_new_tokens=3
    )
    assert rollouts.mask.shape[1] == 3


def test_rehearsed_and_greedy_answers_keep_to_it_too(qwen, monkeypatch):
    rooms, policy, encode = [], qwen.clone(), Policy.encode_prompts
    monkeypatch.setattr(
        Policy,
        'encode_prompts',
        lambda self, items, room=0: rooms.append(room) or encode(self, items, room),
    )
    for name in ('dph_js', 'remax'):
        train(
            policy, task('modular'), for_text(name, max_new_tokens=5, prompts=2, group=2), steps=1
        )
    assert len(rooms) > 3 and set(rooms) == {5}


def test_rows_that_cannot_be_split_into_the_updates_of_a_recipe_are_refused():
    assert (
        for_text('gspo', prompts=4, group=6).minibatch == 6
        and for_text('gspo', minibatch=5).minibatch == 5
    )
    with pytest.raises(
        ValueError,
        match="'gspo' takes 4 updates on a batch, but 3 groups of 1 cannot be split into 4",
    ):
        for_text('gspo', prompts=3, group=1)
    with pytest.raises(
        ValueError, match='max_new_tokens is 256 and the sampler.s is 9, wanted one of the two'
    ):
        for_text('grpo', sampler=use('sample', max_new_tokens=9))
    assert for_text(
        recipe(
            'grpo',
            sampler=use('sample', max_new_tokens=24, top_p=0.9),
            aggregate=use('aggregate', length=6),
        ),
        max_new_tokens=96,
    ).aggregate.knobs == (('length', 24),)


ROWS = [{'question': f'What is {a} + {b}?', 'answer': a + b} for a in range(6) for b in range(6)]


def test_own_rows_train_evaluate_and_compare_on_a_model_with_an_ordinary_tokenizer(
    tmp_path, tokenizer
):
    policy, mine = (
        real_policy(saved(tmp_path, 'qwen2', tokenizer, **LLAMA)),
        task_from(ROWS, name='sums', verify=lambda text, answer: digits([''], [text])[0]),
    )
    exam = Evaluate(mine.parts['test'], samples=4)
    run = train(
        policy,
        mine,
        for_text('grpo', max_new_tokens=8, lr=3e-3, prompts=2, group=4),
        steps=2,
        path=tmp_path / 'run',
        callbacks=[exam],
    )
    assert (
        len(run.rows) == 2
        and run.config['task'] == 'sums'
        and 'DataTask(sums' in run.config['task_settings']
    )
    found = evaluate(policy, mine.parts['test'], samples=4)
    assert found.task == 'sums' and len(found.keys) == len(mine.parts['test'])
    assert 'sums' in repr(compare([run])) and 'sums' in compare([run])._repr_html_()
    assert prompt_text(policy, mine.parts['test'][0]).endswith(
        'between <answer> and </answer>.\nassistant: '
    )


@pytest.mark.slow
def test_a_data_set_of_reasoning_gym_trains_and_is_evaluated(tmp_path, tokenizer):
    pytest.importorskip('reasoning_gym')
    policy = real_policy(saved(tmp_path, 'qwen2', tokenizer, **LLAMA))
    made = task('gym:spell_backward', max_word_len=4)
    recipe_for_it = for_text('grpo', max_new_tokens=8, lr=3e-3, prompts=2, group=4)
    run = train(policy, made, recipe_for_it, steps=2, path=tmp_path / 'run')
    assert len(run.rows) == 2 and run.config['task'] == 'gym:spell_backward'
    assert run.config['task_settings'].startswith('gym:spell_backward(') and (
        'max_word_len=4' in run.config['task_settings']
    )
    found = evaluate(policy, made.sample(3, seed=0, split='test'), samples=2)
    assert found.task == 'gym:spell_backward' and len(found.keys) == 3


def test_own_rows_on_the_tiny_model_say_what_it_cannot_spell():
    tiny = Policy.load('tiny')
    with pytest.raises(ValueError, match="cannot spell 'What'"):
        tiny.sample(task_from(ROWS).parts['test'][:2], 1, seed=0)
    with pytest.raises(ValueError, match="does not know 'What', 'now'"):
        tiny.sample('What is 3 now', 1, seed=0)
    short = task_from(
        [{'question': f'{a} + {b} ?', 'answer': a + b} for a in range(6) for b in range(6)],
        name='short',
    )
    assert len(tiny.sample(short.sample(2, seed=0), 2, seed=0).texts) == 4


@pytest.mark.parametrize('fast', [True, False])
@pytest.mark.parametrize('pad', [True, False])
def test_a_tokenizer_without_an_end_token_is_told_of_wherever_one_is_wanted(
    tmp_path, tokenizer, fast, pad
):
    folder = saved(tmp_path, 'llama', tokenizer, **LLAMA)
    policy, items = Policy.load(folder, fast=fast), task('countdown').sample(2, seed=0)
    policy.tokenizer.eos_token = None
    if not pad:
        policy.tokenizer.pad_token = None
    ways = [
        lambda: policy.eos,
        lambda: policy.sample(items, 2, seed=0, max_new_tokens=4),
        lambda: evaluate(policy, items, samples=2),
        lambda: train(
            policy,
            task('countdown'),
            for_text('grpo', max_new_tokens=4, prompts=2, group=2),
            steps=1,
        ),
    ]
    policy.tokenizer.save_pretrained(folder)
    for way in [*ways, lambda: real_policy(folder)]:
        with pytest.raises(
            ValueError, match='has no end token, so no response could end: set .*eos_token'
        ) as e:
            way()
        assert '\n' not in str(e.value)
    policy.tokenizer.eos_token = '<end>'
    assert len(policy.sample(items, 2, seed=0, max_new_tokens=4).texts) == 4


OWN_SETTINGS = dict(
    repetition_penalty=3.0,
    suppress_tokens=list(range(40, 200)),
    begin_suppress_tokens=[5, 6],
    min_new_tokens=6,
    min_length=40,
    no_repeat_ngram_size=1,
    bad_words_ids=[[9]],
    top_k=2,
    top_p=0.5,
    temperature=0.3,
    do_sample=True,
    typical_p=0.5,
    forced_eos_token_id=3,
    num_beams=3,
    exponential_decay_length_penalty=(2, 2.0),
    sequence_bias=[[[7], 50.0]],
    renormalize_logits=True,
    min_p=0.2,
    encoder_repetition_penalty=2.0,
    guidance_scale=2.0,
    max_length=20,
    stop_strings=['a'],
    epsilon_cutoff=0.1,
    eta_cutoff=0.1,
    num_return_sequences=1,
)


@pytest.mark.parametrize('setting', OWN_SETTINGS)
@pytest.mark.parametrize('kind, sizes', [('gpt2', GPT2), ('llama', LLAMA)])
def test_the_models_own_settings_for_generate_do_not_move_what_is_drawn(
    tmp_path, tokenizer, kind, sizes, setting
):
    "The behaviour's log-probabilities are the policy's own, whatever generation_config says; and the fast path draws the same."
    from transformers import GenerationConfig

    items = task('countdown').sample(2, seed=0)
    policy = real_policy(saved(tmp_path, kind, tokenizer, **sizes))
    policy.fast = False
    draw = lambda: policy.sample(items, 3, seed=0, max_new_tokens=10)
    plain = draw()
    policy.model.generation_config = own = GenerationConfig()
    setattr(own, setting, OWN_SETTINGS[setting])
    stubborn = draw()
    assert policy.model.generation_config is own and getattr(own, setting) == OWN_SETTINGS[setting]
    assert torch.equal(stubborn.tokens, plain.tokens) and torch.equal(
        stubborn.logp_behave, plain.logp_behave
    )
    with torch.no_grad():
        logp, _ = policy.logprobs(stubborn)
    assert (logp - stubborn.logp_behave)[stubborn.mask].abs().max() < 1e-4
    if kind == 'llama':
        policy.fast = True
        assert torch.equal(draw().tokens, stubborn.tokens)


MORE_SETTINGS = OWN_SETTINGS | dict(
    top_h=0.1,
    penalty_alpha=0.6,
    dola_layers='high',
    num_beam_groups=2,
    diversity_penalty=1.0,
    length_penalty=-3.0,
    early_stopping=True,
    forced_bos_token_id=7,
    encoder_no_repeat_ngram_size=1,
    prompt_lookup_num_tokens=3,
    remove_invalid_values=True,
    cache_implementation='static',
    use_cache=False,
    return_dict_in_generate=True,
    output_scores=True,
    max_time=0.0,
    max_new_tokens=2,
    eos_token_id=[1, *range(200, 380)],
    pad_token_id=9,
    watermarking_config=dict(bias=5.0, greenlist_ratio=0.25),
)


def test_all_own_settings_together_leave_a_plain_forward_pass(tmp_path, tokenizer):
    "On a random Qwen2: what is drawn has the log-probabilities of the model's own logits."
    from transformers import GenerationConfig

    items = task('countdown').sample(2, seed=3)
    policy = real_policy(saved(tmp_path, 'qwen2', tokenizer, **LLAMA))
    policy.fast = False
    policy.model.generation_config = own = GenerationConfig()
    for setting, value in MORE_SETTINGS.items():
        setattr(own, setting, value)
    rolls = policy.sample(items, 3, seed=4, max_new_tokens=9)
    ids = torch.cat([rolls.prompt_ids[rolls.prompt], rolls.tokens], 1)
    seen = torch.cat([rolls.prompt_mask[rolls.prompt], torch.ones_like(rolls.mask)], 1).long()
    places = (seen.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = policy.model(input_ids=ids, attention_mask=seen, position_ids=places).logits
    logp = logits.log_softmax(-1)[:, rolls.prompt_ids.shape[1] - 1 : -1]
    logp = logp.gather(2, rolls.tokens[..., None])[..., 0]
    assert rolls.tokens.shape[1] == 9 and (logp - rolls.logp_behave)[rolls.mask].abs().max() < 1e-4


@pytest.mark.parametrize('kind', ['gpt2', 'qwen2'])
def test_a_prompt_without_a_token_is_answered_in_one_sentence(tmp_path, tokenizer, kind):
    "Alone or among others, on every path; a template or a start token makes tokens of ''."
    sizes = GPT2 if kind == 'gpt2' else LLAMA
    policy = real_policy(saved(tmp_path, kind, tokenizer, template=None, **sizes))
    for fast in (True, False):
        policy.fast = fast
        for asked, number in (('', 0), ([''], 0), (['3 4', '', ''], 1)):
            with pytest.raises(ValueError, match=f'prompt {number} is empty: .* one word') as e:
                policy.sample(asked, 2, seed=0, max_new_tokens=2)
            assert '\n' not in str(e.value)
    for text in ('', '  '):
        assert len(Policy.load('tiny').sample(text, 2, seed=0)) == 2
    policy.tokenizer.chat_template = TEMPLATE
    assert len(policy.sample('', 2, seed=0, max_new_tokens=2)) == 2
    for asked in ('', '3 4', [''], ['3 4']):
        with pytest.raises(ValueError, match='wanted .*problems of a task'):
            evaluate(policy, asked, samples=2)
    with pytest.raises(ValueError, match='wanted a list of problems of a task'):
        evaluate(policy, task('countdown').sample(1, seed=0)[0], samples=2)


def test_a_model_without_generation_settings_gets_them_back_after_an_error(tmp_path, tokenizer):
    policy = real_policy(saved(tmp_path, 'gpt2', tokenizer, **GPT2))
    own = policy.model.generation_config

    def broken(*args, **kwargs):
        raise RuntimeError('broken')

    policy.model.forward = broken
    with pytest.raises(RuntimeError):
        policy.sample(task('countdown').sample(1, seed=0), 1, seed=0, max_new_tokens=2)
    assert policy.model.generation_config is own


@pytest.mark.parametrize('model', ['tiny', 'llama', 'gpt2'])
def test_one_string_is_one_prompt(tmp_path, tokenizer, model):
    policy = (
        Policy.load('tiny')
        if model == 'tiny'
        else real_policy(saved(tmp_path, model, tokenizer, **(GPT2 if model == 'gpt2' else LLAMA)))
    )
    text, more = '<countdown> 3 4 5 -> 12 :', {} if model == 'tiny' else dict(max_new_tokens=8)
    alone, listed, other = (
        policy.sample(text, 2, seed=0, **more),
        policy.sample([text], 2, seed=0, **more),
        policy.sample((text, text), 2, seed=0, **more),
    )
    assert len(alone) == 2 and alone.items == (text,) and len(other) == 4
    assert (
        torch.equal(alone.tokens, listed.tokens)
        and policy.prompts(text) == policy.prompts([text])
        and len(policy.prompts(text)) == 1
    )
    item = task('countdown').sample(1, seed=0)[0]
    assert policy.sample(item, 2, seed=0, **more).items == (item,)
    for nothing in ([], ()):
        with pytest.raises(ValueError, match='no prompts given'):
            policy.sample(nothing, 1, seed=0)
    for strange in (b'3 4 5', [['3 4 5']], [dict(role='user', content='3 4 5')], [text, None]):
        with pytest.raises(TypeError, match='prompt . is .*wanted a string or a problem'):
            policy.sample(strange, 1, seed=0)


def test_special_tokens_inside_a_response_reach_the_verifier(tokenizer):
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer.add_special_tokens(
        {'additional_special_tokens': ['<answer>', '</answer>', '<again>']}
    )
    policy = Policy(LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **LLAMA)), tokenizer)
    end = tokenizer.eos_token
    for text, wanted in (
        (f'<answer> 7 </answer>{end}', '<answer> 7 </answer>'),
        ('7<again>8', '7<again>8'),
        (f'7{end}8{end}', f'7{end}8'),
        (f'7{end}<pad><pad>', f'7{end}<pad><pad>'),
        (f'7<pad><pad>{end}', '7<pad><pad>'),
        (f'7{end}{end}', f'7{end}'),
        (f'<pad>7{end}', '<pad>7'),
    ):
        ids = torch.tensor([tokenizer(text, add_special_tokens=False)['input_ids']])
        assert policy.decode(ids, torch.ones_like(ids, dtype=torch.bool)) == (wanted,)


def test_code_that_comes_with_a_model_is_never_run(tmp_path, tokenizer):
    folder = saved(tmp_path, 'llama', tokenizer, **LLAMA)
    config = json.loads((folder / 'config.json').read_text())
    (folder / 'theirs.py').write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (folder / 'config.json').write_text(
        json.dumps(
            config
            | dict(
                model_type='theirs',
                auto_map=dict(AutoConfig='theirs.C', AutoModelForCausalLM='theirs.M'),
            )
        )
    )
    with pytest.raises(ValueError, match='code of its own, which is never run'):
        Policy.load(folder)
    assert not (tmp_path / 'ran').exists()


def test_every_loader_refuses_foreign_code():
    import rl4llm

    calls = []
    for path in Path(rl4llm.__file__).parent.rglob('*.py'):
        text = path.read_text()
        assert 'trust_remote_code=True' not in text
        calls += [
            ast.unparse(n)
            for n in ast.walk(ast.parse(text))
            if isinstance(n, ast.Call) and getattr(n.func, 'attr', '') == 'from_pretrained'
        ]
    assert len(calls) >= 2 and all(
        '**where' in call or 'trust_remote_code=False' in call for call in calls
    )
