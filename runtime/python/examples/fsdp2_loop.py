# SPDX-License-Identifier: Apache-2.0
"""A training loop with FSDP2 on a data x ring x ulysses mesh: the two lines are marked.

    torchrun --nproc-per-node 4 fsdp2_loop.py [--data 1] [--ring 2] [--ulysses 2]
"""

import argparse

import torch
import torch.distributed as dist
import transformers
import usp_attention as usp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def packed_samples(count: int, tokens: int, vocabulary: int, seed: int):
    """Random documents of 1 to tokens / 2 tokens, packed into rows."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        lengths = []
        while sum(lengths) < tokens:
            lengths.append(min(int(torch.randint(1, tokens // 2 + 1, (), generator=generator)), tokens - sum(lengths)))
        ids = torch.randint(vocabulary, (1, tokens), generator=generator)
        yield {"input_ids": ids, "labels": ids, "position_ids": torch.cat([torch.arange(n) for n in lengths])[None]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, degree in (("data", 1), ("ring", 2), ("ulysses", 2), ("steps", 3), ("tokens", 256)):
        parser.add_argument(f"--{name}", type=int, default=degree)
    options = parser.parse_args()
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    if kind == "cuda":
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    mesh = init_device_mesh(kind, (options.data, options.ring, options.ulysses),
                            mesh_dim_names=("data", "ring", "ulysses"))
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
                                      num_attention_heads=8, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config).to(kind)
    everyone = init_device_mesh(kind, (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=everyone)
    fully_shard(model, mesh=everyone)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    samples = list(packed_samples(options.steps, options.tokens, 256, seed=mesh.get_coordinate()[0]))

    sp = usp.hf.prepare(model, mesh["ring", "ulysses"])  # 1
    for batch in sp.loader(samples):  # 2
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        reported = loss.detach() / dist.get_world_size()
        dist.all_reduce(reported)
        if dist.get_rank() == 0:
            print(f"loss {float(reported):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
