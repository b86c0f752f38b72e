# SPDX-License-Identifier: Apache-2.0
"""usp.hf.Trainer on a mesh of all processes: ten steps, packed, checkpointing, evaluation, save and resume. With one
process: transformers' own Trainer on the same samples. Prints the losses as JSON."""

import json
import os

import torch
import transformers
import usp_attention as usp
from families import make
from samples import sample

RANKS = int(os.environ["WORLD_SIZE"])
STEPS, ACCUMULATE, RESUME_AT = 10, 4, 6


def packed(seed: int) -> dict:
    one = {name: x[0] for name, x in sample([3 + seed % 5, 7, 2 + seed % 3], seed=seed).items()}
    one["input_ids"] %= 50
    # Trainer shifts over the whole row: a document's first token must be no target of the one before.
    one["labels"] = one["input_ids"].masked_fill(one["position_ids"] == 0, -100)
    return one


def collate(items):
    assert len(items) == 1
    return {name: x[None] for name, x in items[0].items()}


class Arguments(transformers.TrainingArguments):
    """Checkpoints of processes on CPUs are read to "cpu:0" otherwise, which torch.load does not know."""

    @property
    def device(self):
        return torch.device(super().device.type)


def arguments(folder: str) -> transformers.TrainingArguments:
    return Arguments(
        output_dir=folder, max_steps=STEPS, per_device_train_batch_size=1, per_device_eval_batch_size=1,
        gradient_accumulation_steps=ACCUMULATE, learning_rate=1e-3, logging_steps=1,
        eval_strategy="steps", eval_steps=5, save_strategy="steps", save_steps=RESUME_AT, report_to=[],
        gradient_checkpointing=True, gradient_checkpointing_kwargs=dict(use_reentrant=False), use_cpu=True, seed=7,
        lr_scheduler_type="constant", dataloader_num_workers=0, disable_tqdm=True, remove_unused_columns=False)


def main(folder: str) -> None:
    # Epochs that end within a step, and counts that ranks do not divide: accelerate would repeat samples.
    train, test = [packed(seed) for seed in range(19)], [packed(100 + seed) for seed in range(5)]
    losses = {}
    for resume in (False, True):
        model = make("llama", dtype=torch.float32)
        model.config.use_cache = False
        kinds = dict(model=model, args=arguments(folder), train_dataset=train, eval_dataset=test, data_collator=collate)
        if RANKS > 1:
            from torch.distributed.device_mesh import init_device_mesh

            sp = usp.hf.prepare(model, init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=("ring", "ulysses")))
            trainer = usp.hf.Trainer(sp, **kinds)
        else:
            trainer = transformers.Trainer(**kinds)
        trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-{RESUME_AT}" if resume else None)
        log = trainer.state.log_history
        losses["resumed" if resume else "whole"] = {
            "train": [entry["loss"] for entry in log if "loss" in entry],
            "eval": [entry["eval_loss"] for entry in log if "eval_loss" in entry]}
    if int(os.environ["RANK"]) == 0:
        print("losses " + json.dumps(losses))
