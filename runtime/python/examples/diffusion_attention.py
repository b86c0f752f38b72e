# SPDX-License-Identifier: Apache-2.0
"""Attention of a diffusion transformer: full, without positions, text and image tokens in one sequence, on 4 threads of a
CPU here; on GPUs the mesh comes from a DeviceMesh("ring", "ulysses"), as diffusers' ContextParallelConfig makes it."""

import torch
import usp_attention as usp

TEXT, IMAGE, HEADS, WIDTH = 77, 1024, 6, 32


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, TEXT + IMAGE, HEADS, WIDTH, generator=generator) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    errors = []

    def rank(mesh: usp.Mesh) -> None:
        batch = mesh.batch(tokens=TEXT + IMAGE)
        rows = batch.local_tokens
        out = usp.attention(q[:, rows], k[:, rows], v[:, rows], batch, causal=False)
        errors.append(float((out - expected[:, rows]).abs().max()))

    usp.run_threads(4, rank, ring=2, ulysses=2, layout="contiguous")
    print("greatest difference from one device", max(errors))
    assert max(errors) < 1e-5


if __name__ == "__main__":
    main()
