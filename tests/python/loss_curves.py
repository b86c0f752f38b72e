#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loss curves of a byte-level model: one process, and meshes of threads whose gradients are averaged as FSDP2 and DDP do.

    PYTHONPATH=build/runtime/python build/python-env/bin/python3 tests/python/loss_curves.py --steps 200 --svg curves.svg
"""

import argparse
import json
import pathlib
import threading

import torch
import transformers
import usp_attention as usp
from reference import fill

SEED, ROW, ROWS_PER_STEP = 7, 192, 2
RUNS = {"ring 2": dict(ring=2), "ulysses 2": dict(ulysses=2), "data 2 x ring 2 x ulysses 2": dict(ring=2, ulysses=2, data=2)}


def model():
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, use_cache=False))
    fill(made, SEED)
    return made.train()


def rows(step: int) -> list[dict]:
    """ROWS_PER_STEP rows of packed documents: lines of this repository's README, as bytes."""
    text = (pathlib.Path(__file__).resolve().parents[2] / "README.md").read_bytes()
    lines = [line for line in text.split(b"\n") if len(line) > 8]
    found = []
    for row in range(ROWS_PER_STEP):
        ids, positions, at = [], [], (step * ROWS_PER_STEP + row) * 3
        while len(ids) < ROW:
            line = lines[at % len(lines)][: ROW - len(ids)]
            ids += line
            positions += range(len(line))
            at += 1
        found.append(dict(input_ids=torch.tensor([ids]), position_ids=torch.tensor([positions]),
                          labels=torch.tensor([ids])))
    return found


def valid(step: int) -> int:
    return sum(int((row["position_ids"] > 0).sum()) for row in rows(step))


def alone(steps: int) -> list[float]:
    one = model()
    optimizer = torch.optim.AdamW(one.parameters(), 1e-3)
    losses = []
    for step in range(steps):
        total = torch.zeros(())
        for row in rows(step):
            targets = torch.nn.functional.pad(row["input_ids"][:, 1:], (0, 1), value=-100)
            targets[0, (row["position_ids"][0] == 0).nonzero().flatten()[1:] - 1] = -100
            logits = one(input_ids=row["input_ids"], position_ids=row["position_ids"]).logits
            loss = torch.nn.functional.cross_entropy(logits[0], targets[0], reduction="sum") / valid(step)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(total))
    return losses


def on_meshes(steps: int, ring: int = 1, ulysses: int = 1, data: int = 1) -> list[float]:
    """`data` meshes of ring x ulysses threads; each takes its share of a step's rows."""
    ranks = ring * ulysses
    replicas = [model() for _ in range(data * ranks)]
    optimizer = torch.optim.AdamW(replicas[0].parameters(), 1e-3)
    barrier = threading.Barrier(data * ranks, timeout=120)
    losses = [0.0] * steps
    lock = threading.Lock()

    def body(mesh, group: int) -> None:
        own = replicas[group * ranks + mesh.rank]
        sp = usp.hf.prepare(own, mesh)
        for step in range(steps):
            for part in usp.Loader(rows(step)[group::data], mesh, num_items=False):
                loss = own(**part, num_items_in_batch=valid(step)).loss
                loss.backward()
                with lock:
                    losses[step] += float(loss.detach())
            barrier.wait()
            if group == mesh.rank == 0:
                for parameters in zip(*(replica.parameters() for replica in replicas)):
                    parameters[0].grad = sum(p.grad for p in parameters)
                optimizer.step()
                for parameters in zip(*(replica.parameters() for replica in replicas)):
                    for p in parameters:
                        p.data.copy_(parameters[0].data)
                        p.grad = None
            barrier.wait()
        sp.remove()

    threads = [threading.Thread(target=usp.run_threads, args=(ranks, lambda mesh, group=group: body(mesh, group)),
                                kwargs=dict(ring=ring, ulysses=ulysses)) for group in range(data)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return losses


def curves(steps: int) -> dict[str, list[float]]:
    return {"one process": alone(steps), **{name: on_meshes(steps, **degrees) for name, degrees in RUNS.items()}}


def greatest_difference(found: dict[str, list[float]]) -> float:
    """Relative to one process, over all steps and runs."""
    reference = found["one process"]
    return max(abs(loss - expected) / expected for losses in found.values() for loss, expected in zip(losses, reference))


def svg(found: dict[str, list[float]]) -> str:
    """The curves over one another, thinner towards the front, so that all are seen."""
    width, height, left, top = 640, 300, 48, 16
    highest, steps = max(max(losses) for losses in found.values()), len(found["one process"])
    colours = ["#222222", "#d1495b", "#00798c", "#edae49"]
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
             'font-size="11">', f'<rect width="{width}" height="{height}" fill="white"/>']
    for loss in range(int(highest) + 1):
        y = top + (1 - loss / highest) * (height - top - 36)
        lines.append(f'<path d="M{left} {y:.1f}H{width - 8}" stroke="#ddd"/><text x="{left - 6}" y="{y + 4:.1f}" '
                     f'text-anchor="end">{loss}</text>')
    for i, (name, losses) in enumerate(found.items()):
        points = " ".join(f"{left + step / max(steps - 1, 1) * (width - left - 8):.1f},"
                          f"{top + (1 - loss / highest) * (height - top - 36):.1f}" for step, loss in enumerate(losses))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colours[i]}" stroke-width="{7 - 2 * i}"/>'
                     f'<text x="{width - 200}" y="{top + 14 + 15 * i}" fill="{colours[i]}">{name}</text>')
    lines.append(f'<text x="{left}" y="{height - 8}">loss over {steps} steps; greatest relative difference from one '
                 f'process {greatest_difference(found):.1e}</text></svg>')
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--svg", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = curves(options.steps)
    if options.svg:
        options.svg.write_text(svg(found))
    print(json.dumps({"steps": options.steps, "greatest_relative_difference": greatest_difference(found),
                      "last": {name: losses[-1] for name, losses in found.items()}}))


if __name__ == "__main__":
    main()
