#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of a Llama shape (hidden 4096, 32/8 heads, vocabulary 32K) in bf16 with FSDP2 and full checkpointing: on
usp meshes, on accelerate's context parallel, or with documents dealt whole to data-parallel ranks. One JSON line for each
length and kind, from one process group.

    torchrun --nproc-per-node 2 tests/bench/bench_llama.py --tokens 16384,65536 --layers 8
    torchrun --nproc-per-node 2 tests/bench/bench_llama.py --tokens 65536 --documents 4096 --kinds ring,balanced,ulysses,alone
"""

import argparse
import contextlib
import gc
import json
import statistics
import time

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

VOCABULARY, WARM = 32768, 2


def make_model(layers: int):
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers,
            num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=1 << 20, use_cache=False))
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


def on_mesh(ring: bool, keep: bool = False, **options):
    """keep: what attention returned is kept, so that checkpointing recomputes everything else."""
    def steps(model, tokens: int, mean: int, count: int):
        import usp_attention as usp

        if keep:
            model.gradient_checkpointing_enable(dict(use_reentrant=False, context_fn=usp.keep_attention))

        ranks = dist.get_world_size()
        mesh = init_device_mesh("cuda", (ranks, 1) if ring else (1, ranks), mesh_dim_names=("ring", "ulysses"))
        sp = usp.hf.prepare(model, mesh, **options)
        for part in sp.loader([sample(lengths(tokens, mean, step), step) for step in range(count)]):
            yield contextlib.nullcontext(), part
        sp.remove()
        sp.mesh.close()
    return steps


def on_accelerate(rotate: str):
    def steps(model, tokens: int, mean: int, count: int):
        import transformers.models.llama.modeling_llama as modeling
        from torch.distributed.tensor.experimental import context_parallel
        from torch.distributed.tensor.experimental._attention import set_rotate_method  # as accelerate's cp_size does

        if mean:
            raise SystemExit("accelerate's context parallel takes one document: leave --documents out, or its kinds")
        set_rotate_method(rotate)
        make_mask, modeling.create_causal_mask = modeling.create_causal_mask, lambda **_: None  # accelerate drops it
        model.set_attn_implementation("sdpa")
        mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("cp",))
        for step in range(count):
            one = {name: x.cuda() for name, x in sample([tokens], step).items()}
            one["shift_labels"] = torch.nn.functional.pad(one["labels"][:, 1:], (0, 1), value=-100)
            one["num_items_in_batch"] = (tokens - 1) / dist.get_world_size()
            buffers = [one["input_ids"], one["labels"], one["shift_labels"], one["position_ids"]]
            yield context_parallel(mesh, buffers=buffers, buffer_seq_dims=[1] * 4, no_restore_buffers=set(buffers)), one
        modeling.create_causal_mask = make_mask
    return steps


def alone(model, tokens: int, mean: int, count: int):
    """Each rank takes every other document whole: a mesh of one rank each."""
    import usp_attention as usp

    sp = usp.hf.prepare(model, usp.Mesh.create(init_device_mesh(
        "cuda", (dist.get_world_size(), 1, 1), mesh_dim_names=("data", "ring", "ulysses"))["ring", "ulysses"]))
    for part in sp.loader([sample(lengths(tokens, mean, step)[dist.get_rank()::dist.get_world_size()], step)
                           for step in range(count)]):
        yield contextlib.nullcontext(), part
    sp.remove()
    sp.mesh.close()


KINDS = {"ring": on_mesh(ring=True), "balanced": on_mesh(ring=True, layout="balanced"), "ulysses": on_mesh(ring=False),
         "ring_kept": on_mesh(ring=True, keep=True), "ulysses_kept": on_mesh(ring=False, keep=True),
         "allgather": on_accelerate("allgather"), "alltoall": on_accelerate("alltoall"), "alone": alone}


def train(kind: str, tokens: int, options) -> dict:
    """One row. Memory is the greatest of any rank: what torch reserved, and what the GPU has lost beside it."""
    model = make_model(options.layers)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)
    torch.cuda.reset_peak_memory_stats()
    times, losses, beside = [], [], 0
    for context, part in KINDS[kind](model, tokens, options.documents, options.steps):
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
        losses.append(float(total))
        free, whole = torch.cuda.mem_get_info()
        beside = max(beside, whole - free - torch.cuda.memory_reserved())
    peak = torch.tensor([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_allocated() + beside], device="cuda")
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    return {"kind": kind, "tokens": tokens, "layers": options.layers, "documents": options.documents,
            "tokens_per_s": round(tokens / statistics.median(times[WARM:])), "allocated_bytes": int(peak[0]),
            "peak_bytes": int(peak[1]), "losses": [round(x, 4) for x in losses[:2]]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="16384,65536,131072", help="lengths (16384,65536,131072)")
    parser.add_argument("--kinds", default="ring,ulysses,allgather,alltoall", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6, help=f"in all; the first {WARM} are not timed")
    parser.add_argument("--documents", type=int, default=0, help="mean length of packed documents (one document)")
    options = parser.parse_args()
    if options.steps <= WARM:
        parser.error(f"--steps is {options.steps}; the first {WARM} are not timed, so give more")
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    for tokens in map(int, options.tokens.split(",")):
        for kind in options.kinds.split(","):
            row = train(kind, tokens, options)
            gc.collect()
            torch.cuda.empty_cache()
            if dist.get_rank() == 0:
                print(json.dumps({"bench": "llama", "ranks": dist.get_world_size(), **row}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
