# SPDX-License-Identifier: Apache-2.0
"""usp.hf.Trainer beside transformers' Trainer on one process with the same samples, and what it refuses."""

import itertools
import json

import pytest
import usp_attention as usp
from families import make
from launch import run


def losses(ranks, folder):
    output = run(ranks, "trainer", str(folder))[0]
    return json.loads(next(line for line in output.splitlines() if line.startswith("losses ")).removeprefix("losses "))


def test_losses_and_resume(tmp_path):
    alone, shared = losses(1, tmp_path / "alone"), losses(2, tmp_path / "shared")
    for part, count in (("train", 10), ("eval", 2)):
        assert len(alone["whole"][part]) == count
        assert shared["whole"][part] == pytest.approx(alone["whole"][part], rel=1e-5)
        assert shared["resumed"][part] == pytest.approx(shared["whole"][part], rel=1e-6)


@pytest.mark.parametrize("samples,batch,drop_last", [(11, 1, False), (11, 2, False), (12, 2, False), (11, 2, True), (1, 2, False)])
@pytest.mark.parametrize("meshes,size", [(1, 1), (1, 2), (1, 3), (2, 2), (3, 2)])
def test_a_mesh_is_one_process_to_accelerate(samples, batch, drop_last, meshes, size):
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler
    from usp_attention.hf.trainer import deal

    whole = BatchSampler(range(samples), batch, drop_last)
    for index in range(meshes):
        expected = list(BatchSamplerShard(whole, meshes, index) if meshes > 1 else whole)
        ranks = []
        for rank in range(size):
            sampler = BatchSamplerShard(whole, meshes * size, index * size + rank)
            assert len(deal(sampler, meshes, index, size, rank)) == len(expected)
            ranks.append(list(sampler))
        rounds = itertools.zip_longest(*ranks)  # what a Loader of source="each" trains on, in its order
        assert [found for one in rounds for found in one if found is not None] == expected


def test_refusals(tmp_path):
    import transformers

    with usp.Mesh.create() as mesh:
        model = make("llama")
        sp = usp.hf.prepare(model, mesh)
        for match, options, more in (
                ("label_smoothing_factor", dict(label_smoothing_factor=0.1), {}),
                ("average_tokens_across_devices", dict(average_tokens_across_devices=False), {}),
                ("compute_metrics", {}, dict(compute_metrics=lambda prediction: {}))):
            args = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[], **options)
            with pytest.raises(usp.UsageError, match=match):
                usp.hf.Trainer(sp, model=model, args=args, **more)
        model.accepts_loss_kwargs = False
        args = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
        with pytest.raises(usp.UsageError, match="num_items_in_batch"):
            usp.hf.Trainer(sp, model=model, args=args)
