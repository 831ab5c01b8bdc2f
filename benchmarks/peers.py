"""The same work done by others: Hugging Face's `generate`, plain autograd, TRL's GRPOTrainer."""

import dataclasses
import json
import tempfile
import time

import torch
import torch.nn.functional as F

from benchmarks.clock import wait_for


@torch.no_grad()
def generate(policy, items, group: int, room: int) -> list[str]:
    "Tokenise, draw with `generate`, decode: `group` responses to each of the `items`, as texts."
    texts = [text for text in policy.prompts(items) for _ in range(group)]
    batch = policy.tokenizer(texts, return_tensors='pt', padding=True, padding_side='left')
    ids = batch['input_ids'].to(policy.device)
    out = policy.model.generate(
        input_ids=ids,
        attention_mask=batch['attention_mask'].to(policy.device),
        max_new_tokens=room,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=policy.eos,
        pad_token_id=policy.pad,
    )
    return policy.tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)


def whole_logprobs(model, rollouts):
    """Log-probability of each response token as tutorials write it.

    The logits of everything, a log-softmax, a gather.
    """
    ids = torch.cat([rollouts.prompt_ids[rollouts.prompt], rollouts.tokens], 1)
    seen = torch.cat([rollouts.prompt_mask[rollouts.prompt], rollouts.mask], 1).long()
    places = (seen.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=seen, position_ids=places).logits
    start = rollouts.prompt_ids.shape[1]
    logp = F.log_softmax(logits[:, start - 1 : -1], -1)
    return logp.gather(-1, rollouts.tokens[..., None])[..., 0]


def updater(model, logprobs, rollouts, adv, lr: float):
    """A function that takes one step of AdamW on the policy gradient of `rollouts`.

    logprobs: a function that gives (n, t) log-probabilities.
    """
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)

    def update():
        terms = adv[:, None] * logprobs() * rollouts.mask
        loss = -terms.sum() / rollouts.mask.sum()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    return update


def trl_config(recipe, room: int, steps: int, device, folder: str):
    """TRL's settings for the same step.

    One batch, one update a generation, no reference model, no recomputation, float32, nothing
    logged or saved.
    """
    from trl import GRPOConfig

    same_step = dict(
        per_device_train_batch_size=recipe.prompts * recipe.group,
        num_generations=recipe.group,
        num_iterations=1,
        max_completion_length=room,
        temperature=recipe.temperature,
        top_p=1.0,
        top_k=0,
        loss_type='grpo',
        scale_rewards='group',
        beta=0.0,
        epsilon=0.2,
        learning_rate=recipe.lr,
        lr_scheduler_type='constant',
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
    )
    nothing_else = dict(
        report_to='none',
        save_strategy='no',
        logging_strategy='no',
        disable_tqdm=True,
        dataloader_pin_memory=False,
        gradient_checkpointing=False,
        bf16=False,
    )
    on_cpu = torch.device(device).type == 'cpu'
    where = dict(output_dir=folder, use_cpu=on_cpu, max_steps=steps)
    return GRPOConfig(**where, **same_step, **nothing_else)


def turn_taker(contenders: dict, device):
    """A callback of transformers' Trainer that times its steps and then calls every contender.

    The first step is a warm-up and not counted.
    """
    from transformers import TrainerCallback

    class TakeTurns(TrainerCallback):
        times = {name: [] for name in ('TRL', *contenders)}

        def on_step_begin(self, *args, **kwargs):
            wait_for(device)
            self.start = time.perf_counter()

        def on_step_end(self, args, state, control, **kwargs):
            wait_for(device)
            spent = {'TRL': time.perf_counter() - self.start}
            spent |= {name: measure() for name, measure in contenders.items()}
            if state.global_step == 1:
                return
            for name, seconds in spent.items():
                self.times[name].append(seconds)

    return TakeTurns()


def as_data(policy, items):
    "Items as the data set that TRL wants."
    from datasets import Dataset

    texts = policy.prompts(items)
    written = [json.dumps(dataclasses.asdict(item)) for item in items]
    rows = [dict(prompt=text, item=item) for text, item in zip(texts, written)]
    return Dataset.from_list(rows)


def trl_in_turn(policy, items, recipe, room: int, *, contenders: dict, repeat: int):
    """Seconds of TRL's GRPO step on the `items` and of each contender, in turn.

    Gives (times, mean length of TRL's responses). Trains a copy of `policy`.
    """
    from transformers import PrinterCallback
    from trl import GRPOTrainer
    from rl4llm.rewards import correct

    policy = policy.clone()
    lengths = []

    def reward(prompts, completions, completion_ids, item, **columns):
        lengths.extend(map(len, completion_ids))
        return correct(prompts, completions, item=item)

    turns = turn_taker(contenders, policy.device)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=policy.model,
            reward_funcs=reward,
            args=trl_config(recipe, room, repeat + 1, policy.device, folder),
            train_dataset=as_data(policy, items),
            processing_class=policy.tokenizer,
            callbacks=[turns],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return turns.times, sum(lengths) / len(lengths)
