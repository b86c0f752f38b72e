# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer on packed data.

    torchrun --nproc-per-node 2 trainer_packed.py
"""

import tempfile

import torch
import torch.distributed as dist
import transformers
import usp_attention as usp
from torch.distributed.device_mesh import init_device_mesh


class Words(torch.utils.data.Dataset):
    """Documents of some bytes each."""

    def __init__(self, count: int):
        self._texts = [f"document {i} says {'again ' * (i % 5)}that {i} is a number".encode() for i in range(count)]

    def __len__(self):
        return len(self._texts)

    def __getitem__(self, i):
        return {"input_ids": list(self._texts[i])}


def main() -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    mesh = init_device_mesh("cuda" if torch.cuda.is_available() else "cpu", (dist.get_world_size(), 1),
                            mesh_dim_names=("ring", "ulysses"))
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2))
    args = transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(), max_steps=4, per_device_train_batch_size=4, logging_steps=1, report_to=[],
        use_cpu=not torch.cuda.is_available(), save_strategy="no", disable_tqdm=True)

    sp = usp.hf.prepare(model, mesh)
    trainer = usp.hf.Trainer(sp, model=model, args=args, train_dataset=Words(64),
                             data_collator=transformers.DataCollatorWithFlattening())
    trainer.train()
    if dist.get_rank() == 0:
        print("losses", [entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
