"""Any Hugging Face causal model trains with the same recipe: text prompts, BPE tokenizer, chat template, other architectures."""
import pytest
import torch

from rl4llm.core.policy import Policy, prompt_text
from rl4llm.core.registry import use
from rl4llm.tasks import task
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
