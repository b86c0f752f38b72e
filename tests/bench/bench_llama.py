#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of a Llama shape (hidden 4096, 32/8 heads, vocabulary 32K) in bf16 with FSDP2 and full checkpointing: on a
usp mesh, on accelerate's context parallel, or with documents dealt whole to data-parallel ranks. One JSON line.

    torchrun --nproc-per-node 2 tests/bench/bench_llama.py usp --ring 2 --tokens 65536 --layers 8
    torchrun --nproc-per-node 2 tests/bench/bench_llama.py accelerate --rotate alltoall --tokens 65536 --layers 8
    torchrun --nproc-per-node 2 tests/bench/bench_llama.py alone --tokens 65536 --documents 4096
"""

import argparse
import contextlib
import json
import statistics
import time

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

VOCABULARY, STEPS, WARM = 32768, 6, 2


def make_model(layers: int):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=1 << 20, use_cache=False)).cuda()
    model.gradient_checkpointing_enable(dict(use_reentrant=False))
    everyone = init_device_mesh("cuda", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in model.model.layers:
        fully_shard(layer, mesh=everyone, mp_policy=policy)
    return fully_shard(model, mesh=everyone, mp_policy=policy)


def lengths(tokens: int, mean: int, seed: int) -> list[int]:
    if not mean:
        return [tokens]
    generator, found = torch.Generator().manual_seed(seed), []
    while sum(found) < tokens:
        found.append(min(int(torch.randint(mean // 4, 2 * mean - mean // 4, (), generator=generator)),
                         tokens - sum(found)))
    return found


def sample(documents: list[int], seed: int) -> dict:
    ids = torch.randint(VOCABULARY, (1, sum(documents)), generator=torch.Generator().manual_seed(seed))
    return dict(input_ids=ids, labels=ids, position_ids=torch.cat([torch.arange(n) for n in documents])[None])


def on_usp(options, model):
    import usp_attention as usp

    mesh = init_device_mesh("cuda", (options.ring, options.ulysses), mesh_dim_names=("ring", "ulysses"))
    sp = usp.hf.prepare(model, mesh)
    whole = [sample(lengths(options.tokens, options.documents, step), step) for step in range(STEPS)]
    for part in sp.loader(whole):
        yield contextlib.nullcontext(), part


def on_accelerate(options, model):
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method  # what accelerate's cp_size=2 does

    set_rotate_method(options.rotate)
    model.set_attn_implementation("sdpa")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("cp",))
    for step in range(STEPS):
        one = {name: x.cuda() for name, x in sample([options.tokens], step).items()}
        one["shift_labels"] = torch.nn.functional.pad(one["labels"][:, 1:], (0, 1), value=-100)
        one["num_items_in_batch"] = (options.tokens - 1) / dist.get_world_size()
        buffers = [one["input_ids"], one["labels"], one["shift_labels"], one["position_ids"]]
        yield context_parallel(mesh, buffers=buffers, buffer_seq_dims=[1] * 4, no_restore_buffers=set(buffers)), one


def alone(options, model):
    """Each rank takes every other document whole: a mesh of one rank each."""
    import usp_attention as usp

    sp = usp.hf.prepare(model, usp.Mesh.create(init_device_mesh(
        "cuda", (dist.get_world_size(), 1, 1), mesh_dim_names=("data", "ring", "ulysses"))["ring", "ulysses"]))
    mine = [sample(lengths(options.tokens, options.documents, step)[dist.get_rank()::dist.get_world_size()], step)
            for step in range(STEPS)]
    for part in sp.loader(mine):
        yield contextlib.nullcontext(), part


KINDS = {"usp": on_usp, "accelerate": on_accelerate, "alone": alone}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    for name, value in (("ring", 1), ("ulysses", 1), ("tokens", 65536), ("layers", 8), ("documents", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rotate", choices=["allgather", "alltoall"], default="allgather")
    options = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    model = make_model(options.layers)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)
    times, first = [], None
    for context, part in KINDS[options.kind](options, model):
        torch.cuda.synchronize()
        dist.barrier()
        began = time.perf_counter()
        with context:
            loss = model(**part).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
        total = loss.detach().float() / dist.get_world_size()
        dist.all_reduce(total)
        first = float(total) if first is None else first
    peak = torch.tensor(torch.cuda.max_memory_allocated(), device="cuda")
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(json.dumps({"bench": "llama", **vars(options), "tokens_per_s": options.tokens / statistics.median(
            times[WARM:]), "peak_bytes": int(peak), "first_loss": first}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
