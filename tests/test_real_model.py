"""Any Hugging Face causal model trains with the same recipe: text prompts, BPE tokenizer, chat template, other architectures."""
import ast, json
from pathlib import Path

import pytest
import torch

from rl4llm.core.policy import Policy, prompt_text
from rl4llm.core.registry import use
from rl4llm.studies.comparison import compare
from rl4llm.tasks import task, task_from
from rl4llm.training.callbacks import Evaluate
from rl4llm.training.evaluation import evaluate
from rl4llm.training.loop import train
from rl4llm.training.real_models import for_text, real_policy

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "


@pytest.fixture(scope='module')
def tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast
    raw, texts = Tokenizer(models.BPE()), [t.prompt(i, style='text') for t in map(task, ('countdown', 'modular', 'sat')) for i in t.sample(20, seed=0)]
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    raw.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, special_tokens=['<pad>', '<end>'], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token='<pad>', eos_token='<end>')


def saved(folder, kind, tokenizer, template=TEMPLATE, **sizes):
    from transformers import AutoConfig, AutoModelForCausalLM
    torch.manual_seed(0)
    tokenizer.chat_template = template
    config = AutoConfig.for_model(kind, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.eos_token_id, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


LLAMA = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512)
GPT2 = dict(n_embd=32, n_layer=2, n_head=4, n_positions=512)


def digits(prompts, completions, **columns): return [sum(c.isdigit() for c in text) / max(1, len(text)) for text in completions]


@pytest.mark.parametrize('kind, sizes, lean', [('qwen2', LLAMA, True), ('llama', LLAMA, True), ('gpt2', GPT2, False)])
@pytest.mark.parametrize('name', ['countdown', 'modular', 'sat'])
def test_a_recipe_trains_any_model_on_any_task(tmp_path, tokenizer, kind, sizes, lean, name):
    policy = real_policy(saved(tmp_path / kind, kind, tokenizer, **sizes))
    run = train(policy, task(name), for_text('grpo', max_new_tokens=10, lr=3e-3, prompts=2, group=4, reward=use(digits)), steps=2, path=tmp_path / 'run')
    assert policy.style == 'text' and policy.has_fast_path == lean
    assert len(run.rows) == 2 and all(r['loss'] is not None for r in run.rows)
    again = Policy.load(policy.save(tmp_path / 'saved'))
    assert all(torch.equal(a, b) for a, b in zip(policy.model.parameters(), again.model.parameters()))


def test_sampled_and_teacher_forced_agree_for_the_fallback(tmp_path, tokenizer):
    policy = real_policy(saved(tmp_path, 'gpt2', tokenizer, **GPT2))
    rollouts = policy.sample(task('modular').sample(3, seed=0) + task('countdown').sample(1, seed=1), 2, seed=0, max_new_tokens=6)
    with torch.no_grad(): logp, _ = policy.logprobs(rollouts)
    assert (logp - rollouts.logp_behave)[rollouts.mask].abs().max() < 1e-4


def test_the_chat_template_is_used_where_there_is_one(tmp_path, tokenizer):
    item = task('countdown').sample(1, seed=0)[0]
    chat = real_policy(saved(tmp_path / 'chat', 'llama', tokenizer, **LLAMA))
    plain = real_policy(saved(tmp_path / 'plain', 'llama', tokenizer, template=None, **LLAMA))
    assert prompt_text(chat, item).startswith('user: ') and prompt_text(chat, item).endswith('assistant: ')
    assert prompt_text(plain, item) == task('countdown').prompt(item, style='text')


def test_missing_models_and_long_prompts_are_answered_in_a_sentence(tmp_path, tokenizer):
    with pytest.raises(FileNotFoundError, match="no model 'no/such/folder': wanted a shipped name"): Policy.load('no/such/folder')
    policy = real_policy(saved(tmp_path, 'llama', tokenizer, **{**LLAMA, 'max_position_embeddings': 64}))
    with pytest.raises(ValueError, match='tokens and 32 are wanted for the response, but .* holds 64'): policy.sample(task('countdown').sample(1, seed=0), 1, seed=0, max_new_tokens=32)


ROWS = [{'question': f'What is {a} + {b}?', 'answer': a + b} for a in range(6) for b in range(6)]


def test_own_rows_train_evaluate_and_compare_on_a_model_with_an_ordinary_tokenizer(tmp_path, tokenizer):
    policy, mine = real_policy(saved(tmp_path, 'qwen2', tokenizer, **LLAMA)), task_from(ROWS, name='sums', verify=lambda text, answer: digits([''], [text])[0])
    exam = Evaluate(mine.parts['test'], samples=4)
    run = train(policy, mine, for_text('grpo', max_new_tokens=8, lr=3e-3, prompts=2, group=4), steps=2, path=tmp_path / 'run', callbacks=[exam])
    assert len(run.rows) == 2 and run.config['task'] == 'sums' and 'DataTask(sums' in run.config['task_settings']
    found = evaluate(policy, mine.parts['test'], samples=4)
    assert found.task == 'sums' and len(found.keys) == len(mine.parts['test'])
    assert 'sums' in repr(compare([run])) and 'sums' in compare([run])._repr_html_()
    assert prompt_text(policy, mine.parts['test'][0]).endswith('between <answer> and </answer>.\nassistant: ')


def test_own_rows_on_the_tiny_model_say_what_it_cannot_spell():
    tiny = Policy.load('tiny')
    with pytest.raises(ValueError, match="cannot spell 'What'"): tiny.sample(task_from(ROWS, name='sums').parts['test'][:2], 1, seed=0)
    with pytest.raises(ValueError, match="does not know 'What', 'now'"): tiny.sample('What is 3 now', 1, seed=0)
    short = task_from([{'question': f'{a} + {b} ?', 'answer': a + b} for a in range(6) for b in range(6)], name='short')
    assert len(tiny.sample(short.sample(2, seed=0), 2, seed=0).texts) == 4


OWN_SETTINGS = dict(repetition_penalty=3.0, suppress_tokens=list(range(40, 200)), begin_suppress_tokens=[5, 6], min_new_tokens=6, min_length=40, no_repeat_ngram_size=1, bad_words_ids=[[9]], top_k=2, top_p=0.5, temperature=0.3,
                    do_sample=True, typical_p=0.5, forced_eos_token_id=3, num_beams=3, exponential_decay_length_penalty=(2, 2.0), sequence_bias=[[[7], 50.0]], renormalize_logits=True, min_p=0.2, encoder_repetition_penalty=2.0,
                    guidance_scale=2.0, max_length=20, stop_strings=['a'], epsilon_cutoff=0.1, eta_cutoff=0.1, num_return_sequences=1)


@pytest.mark.parametrize('setting', OWN_SETTINGS)
@pytest.mark.parametrize('kind, sizes', [('gpt2', GPT2), ('llama', LLAMA)])
def test_the_models_own_settings_for_generate_do_not_move_what_is_drawn(tmp_path, tokenizer, kind, sizes, setting):
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
    assert torch.equal(stubborn.tokens, plain.tokens) and torch.equal(stubborn.logp_behave, plain.logp_behave)
    with torch.no_grad(): logp, _ = policy.logprobs(stubborn)
    assert (logp - stubborn.logp_behave)[stubborn.mask].abs().max() < 1e-4
    if kind == 'llama':
        policy.fast = True
        assert torch.equal(draw().tokens, stubborn.tokens)


def test_a_model_without_generation_settings_gets_them_back_after_an_error(tmp_path, tokenizer):
    policy = real_policy(saved(tmp_path, 'gpt2', tokenizer, **GPT2))
    own = policy.model.generation_config
    def broken(*args, **kwargs): raise RuntimeError('broken')
    policy.model.forward = broken
    with pytest.raises(RuntimeError): policy.sample(task('countdown').sample(1, seed=0), 1, seed=0, max_new_tokens=2)
    assert policy.model.generation_config is own


@pytest.mark.parametrize('model', ['tiny', 'llama', 'gpt2'])
def test_one_string_is_one_prompt(tmp_path, tokenizer, model):
    policy = Policy.load('tiny') if model == 'tiny' else real_policy(saved(tmp_path, model, tokenizer, **(GPT2 if model == 'gpt2' else LLAMA)))
    text, more = '<countdown> 3 4 5 -> 12 :', {} if model == 'tiny' else dict(max_new_tokens=8)
    alone, listed, other = policy.sample(text, 2, seed=0, **more), policy.sample([text], 2, seed=0, **more), policy.sample((text, text), 2, seed=0, **more)
    assert len(alone) == 2 and alone.items == (text,) and len(other) == 4
    assert torch.equal(alone.tokens, listed.tokens) and policy.prompts(text) == policy.prompts([text]) and len(policy.prompts(text)) == 1
    item = task('countdown').sample(1, seed=0)[0]
    assert policy.sample(item, 2, seed=0, **more).items == (item,)
    for nothing in ([], ()):
        with pytest.raises(ValueError, match='no prompts given'): policy.sample(nothing, 1, seed=0)


def test_special_tokens_inside_a_response_reach_the_verifier(tokenizer):
    from transformers import LlamaConfig, LlamaForCausalLM
    tokenizer.add_special_tokens({'additional_special_tokens': ['<answer>', '</answer>', '<again>']})
    policy = Policy(LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **LLAMA)), tokenizer)
    end = tokenizer.eos_token
    for text, wanted in ((f'<answer> 7 </answer>{end}', '<answer> 7 </answer>'), ('7<again>8', '7<again>8'), (f'7{end}8{end}', f'7{end}8'), (f'7{end}<pad><pad>', '7'), (f'<pad>7{end}', '<pad>7')):
        ids = torch.tensor([tokenizer(text, add_special_tokens=False)['input_ids']])
        assert policy.decode(ids, torch.ones_like(ids, dtype=torch.bool)) == (wanted,)


def test_code_that_comes_with_a_model_is_never_run(tmp_path, tokenizer):
    folder = saved(tmp_path, 'llama', tokenizer, **LLAMA)
    config = json.loads((folder / 'config.json').read_text())
    (folder / 'theirs.py').write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (folder / 'config.json').write_text(json.dumps(config | dict(model_type='theirs', auto_map=dict(AutoConfig='theirs.C', AutoModelForCausalLM='theirs.M'))))
    with pytest.raises(ValueError, match='code of its own, which is never run'): Policy.load(folder)
    assert not (tmp_path / 'ran').exists()


def test_every_loader_refuses_foreign_code():
    import rl4llm
    calls = []
    for path in Path(rl4llm.__file__).parent.rglob('*.py'):
        text = path.read_text()
        assert 'trust_remote_code=True' not in text
        calls += [ast.unparse(n) for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and getattr(n.func, 'attr', '') == 'from_pretrained']
    assert len(calls) >= 2 and all('**where' in call or 'trust_remote_code=False' in call for call in calls)
