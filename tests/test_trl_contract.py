"""What of TRL's trainer the bridge builds on, in one table; what moved is named.

`moved` looks at the installed TRL only: signatures, and names in the code of its methods."""

import ast, inspect, textwrap
from pathlib import Path
import pytest

pytest.importorskip('trl')
import trl
from trl.trainer import grpo_trainer

BRIDGE = Path(__file__).resolve().parents[1] / 'rl4llm/scaling/trl_bridge.py'
TRAINER = 'GRPOTrainer'

# methods that the subclass overrides or calls: parameters that the bridge passes, or is passed
METHODS = {
    '__init__': [
        'model',
        'reward_funcs',
        'args',
        'train_dataset',
        'eval_dataset',
        'processing_class',
        'callbacks',
        'optimizers',
        'peft_config',
        'tools',
        'rollout_func',
        'environment_factory',
    ],
    'train': ['resume_from_checkpoint'],
    'add_callback': ['callback'],
    '_prepare_inputs': ['generation_batch'],
    '_generate_and_score_completions': ['inputs'],
    '_calculate_rewards': ['inputs', 'prompts', 'completions', 'completion_ids_list'],
    '_compute_loss': ['model', 'inputs'],
    '_get_per_token_logps_and_entropies': [
        'model',
        'input_ids',
        'attention_mask',
        'logits_to_keep',
        'batch_size',
        'compute_entropy',
    ],
}

# who calls what: a method that is overridden helps only where TRL still calls it
CALLS = {
    'compute_loss': ['_compute_loss'],
    '_prepare_inputs': [
        '_generate_and_score_completions',
        'shuffle_sequence_dict',
        'split_tensor_dict',
    ],
    '_generate_and_score_completions': ['_calculate_rewards', '_get_per_token_logps_and_entropies'],
}

# attributes of the trainer that are read: the method of TRL that sets or reads them
ATTRIBUTES = {
    'num_generations': '__init__',
    'num_generations_eval': '__init__',
    'reward_func_names': '__init__',
    'ref_model': '__init__',
    'reward_weights': '__init__',
    'train_dataset': 'get_train_dataloader',
    '_step': 'training_step',
    '_buffered_inputs': '_prepare_inputs',
    '_metrics': '_generate_and_score_completions',
    'accelerator': '_generate_and_score_completions',
    'args': '_generate_and_score_completions',
    'model': '_generate_and_score_completions',
    'state': '_generate',
    'processing_class': '_generate',
}

# keys of the dictionary that a generation comes as
KEYS = [
    'prompt_ids',
    'prompt_mask',
    'completion_ids',
    'completion_mask',
    'tool_mask',
    'old_per_token_logps',
    'ref_per_token_logps',
    'sampling_per_token_logps',
    'importance_sampling_ratio',
    'pixel_values',
]

# fields of GRPOConfig that the bridge reads or sets
FIELDS = [
    'per_device_train_batch_size',
    'gradient_accumulation_steps',
    'steps_per_generation',
    'num_generations',
    'num_iterations',
    'learning_rate',
    'adam_beta1',
    'adam_beta2',
    'weight_decay',
    'max_grad_norm',
    'lr_scheduler_type',
    'warmup_steps',
    'max_completion_length',
    'temperature',
    'beta',
    'scale_rewards',
    'output_dir',
    'max_steps',
]
INHERITED = ('optimizer',)  # of transformers' Trainer, which sets it when training begins


def names_in(method):
    "Names, attributes and texts in the code of a method, whatever wraps it."
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(method)))
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def moved(trainer, config):
    "What the bridge builds on and this trainer does not have: a sentence each."
    of = f'TRL {trl.__version__}: {TRAINER}'
    found = []
    for name, wanted in METHODS.items():
        if not hasattr(trainer, name):
            found.append(f"{of} has no method {name} any more.")
            continue
        known = inspect.signature(getattr(trainer, name)).parameters
        found += [f"{of}.{name} takes no {p} any more." for p in wanted if p not in known]
    for name, wanted in CALLS.items():
        if not hasattr(trainer, name):
            found.append(f"{of} has no method {name} any more, which called {wanted}.")
            continue
        seen = names_in(getattr(trainer, name))
        found += [f"{of}.{name} does not call {w} any more." for w in wanted if w not in seen]
    for name, method in ATTRIBUTES.items():
        seen = names_in(getattr(trainer, method)) if hasattr(trainer, method) else ()
        if name not in seen:
            found.append(f"{of}.{method} has no attribute {name} any more.")
    generate = getattr(trainer, '_generate_and_score_completions', None)
    told = names_in(generate) if generate else ()
    found += [f"{of}'s generation has no key {key!r} any more." for key in KEYS if key not in told]
    fields = inspect.signature(config).parameters
    return found + [
        f"TRL {trl.__version__}: GRPOConfig has no field {name} any more."
        for name in FIELDS
        if name not in fields
    ]


def test_the_installed_trl_has_what_the_bridge_builds_on():
    found = moved(trl.GRPOTrainer, trl.GRPOConfig)
    assert not found, '\n'.join(found)


class Hiding(type):
    "The class of a trainer that hides methods, as if TRL had given them other names."

    def __getattribute__(cls, name):
        if name in type.__getattribute__(cls, '__dict__').get('gone', ()):
            raise AttributeError(name)
        return type.__getattribute__(cls, name)


def without(*names):
    "TRL's trainer without these methods."
    return Hiding('Moved', (trl.GRPOTrainer,), dict(gone=names))


@pytest.mark.parametrize('name', sorted({*METHODS, *CALLS} - {'__init__', 'train'}))
def test_a_method_with_another_name_is_named(name):
    found = moved(without(name), trl.GRPOConfig)
    assert any(f'has no method {name} any more' in text for text in found)


def test_a_parameter_a_call_and_a_key_that_moved_are_named(monkeypatch):
    def _calculate_rewards(self, inputs, prompts, completions, token_ids):
        "With another name for its last argument."

    def _prepare_inputs(self, generation_batch):
        return self._make_completions(generation_batch)

    def _generate_and_score_completions(self, inputs):
        self._calculate_rewards(inputs, *self._get_per_token_logps_and_entropies(inputs))
        return {'input_ids': inputs, 'completion_ids': inputs, 'completion_mask': inputs}

    for method in (_calculate_rewards, _prepare_inputs, _generate_and_score_completions):
        monkeypatch.setattr(trl.GRPOTrainer, method.__name__, method)
    found = '\n'.join(moved(trl.GRPOTrainer, trl.GRPOConfig))
    of = f'TRL {trl.__version__}: GRPOTrainer'
    assert f'{of}._calculate_rewards takes no completion_ids_list any more.' in found
    assert f'{of}._prepare_inputs does not call shuffle_sequence_dict any more.' in found
    assert f'{of}._prepare_inputs has no attribute _buffered_inputs any more.' in found
    assert f"{of}'s generation has no key 'prompt_ids' any more." in found
    assert "no key 'completion_ids'" not in found


def test_a_field_that_moved_is_named():
    def config(output_dir, learning_rate):
        "A configuration with two fields only."

    found = moved(trl.GRPOTrainer, config)
    assert any(text.endswith('GRPOConfig has no field beta any more.') for text in found)
    assert not any('learning_rate' in text for text in found)


# -- the table speaks of all that the bridge uses


def used_by_the_bridge():
    "Names that the bridge takes from a trainer of TRL: `super().x`, `self.x` and `trainer.x`."
    tree = ast.parse(BRIDGE.read_text(encoding='utf-8'))
    mixin = next(n for n in tree.body if getattr(n, 'name', '') == 'RecipeMixin')
    own = {
        'recipe',
        'stages',
        'is_new',
        'rewards',
        'all_rollouts',
        'generated',
        'kept',
        'update_masks',
    }
    own |= {'redraws', 'evaluated'}
    found = {part.name for part in mixin.body if isinstance(part, ast.FunctionDef)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        of = ast.unparse(node.value)
        if of in ('super()', 'trainer', 'self.trainer') and node.attr not in own:
            found.add(node.attr)
    return found


def test_the_table_has_all_that_the_bridge_uses():
    used = used_by_the_bridge()
    known = {*METHODS, *ATTRIBUTES, *INHERITED}
    assert used >= {'_buffered_inputs', '_compute_loss', 'ref_model'}
    assert not used - known, f'in the bridge and not in the table: {sorted(used - known)}'
    text = BRIDGE.read_text(encoding='utf-8')
    idle = [name for name in {*METHODS, *ATTRIBUTES, *KEYS} if name not in text]
    assert not idle, f'in the table and not in the bridge: {sorted(idle)}'
    assert callable(grpo_trainer.shuffle_sequence_dict)
