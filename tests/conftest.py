"""Small models made on the spot: the embedded model is not needed to test the machinery."""

import os, zlib

os.environ.setdefault('HF_HUB_OFFLINE', '1')

import pytest
import torch
from together import pytest_xdist_make_scheduler  # noqa: F401, which xdist asks for


def pytest_addoption(parser):
    help = 'of tests with many cases run those in turn, and those about a change'
    parser.addoption('--turn', action='store_true', help=help)
    help = 'the same for tests that are marked to take turns, and all cases of all others'
    parser.addoption('--long-in-turn', action='store_true', help=help)


def pytest_collection_modifyitems(config, items):
    "Slow tests go first, so that no worker waits at the end for another's longest."
    items.sort(key=lambda item: item.get_closest_marker('slow') is None)
    if config.getoption('turn') or config.getoption('long_in_turn'):
        from select_tests import in_turn, long_in_turn

        kept = in_turn(items) if config.getoption('turn') else long_in_turn(items)
        left = set(items) - set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = kept


@pytest.fixture(scope='module', autouse=True)
def forget(request):
    "What the functions of a module keep is given up behind its last test: it adds up."
    yield
    for value in vars(request.module).values():
        is_own = getattr(value, '__module__', None) == request.module.__name__
        if is_own and hasattr(value, 'cache_clear'):
            value.cache_clear()


@pytest.fixture(scope='session')
def tiny_folder(tmp_path_factory):
    "A 2-layer Llama over the project's vocabulary."
    from transformers import LlamaConfig, LlamaForCausalLM
    from rl4llm.tasks.vocabulary import tiny_tokenizer

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        rl4llm_style='compact',
    )
    folder = tmp_path_factory.mktemp('models') / 'small'
    LlamaForCausalLM(config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def small_policy(tiny_folder):
    from rl4llm.core.policy import Policy

    return Policy.load(tiny_folder)


@pytest.fixture
def easy():
    from rl4llm.tasks import task

    return task('countdown', level='easy')


def weights(policy):
    "All weights of a policy in one row."
    return torch.cat([p.detach().flatten() for p in policy.model.parameters()])


def noisy(prompts, completions, **columns):
    "A reward that an untrained model gets every other time, so that updates are not empty."
    return [float(zlib.crc32(c.encode()) % 2) for c in completions]


@pytest.fixture
def lively(request):
    "A recipe whose reward varies on an untrained model, with minibatches and several epochs."
    from rl4llm.core.registry import recipe, use

    return recipe(
        'grpo',
        reward=use(noisy),
        sampler=use('sample', max_new_tokens=8),
        prompts=4,
        group=4,
        epochs=2,
        minibatch=8,
        lr=1e-3,
    )
