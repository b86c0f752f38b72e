# SPDX-License-Identifier: Apache-2.0
"""Planning from Python: results as the command line prints them, plan files that run, errors by name."""

import dataclasses
import json

import pytest
import usp_attention as usp
from paths import REPOSITORY

QUESTION = dict(model="llama-3.1-8b", cluster="dgx-h100", seq=65536)


@pytest.fixture(scope="module")
def result():
    return usp.plan(**QUESTION)


def test_result(result):
    assert result.best.fits_memory and result.best.mesh.ring * result.best.mesh.ulysses > 1
    assert result.candidates[0].description == result.best.description
    assert result.ranked_by == "tokens_per_s" and result.verdict.margin >= 0
    assert result.best.memory["total_bytes"] == result.best.memory_bytes


def test_round_trip(result):
    document = json.loads(result.to_json())
    again = usp.PlanResult.from_json(result.to_json())
    assert again == result and json.loads(again.to_json()) == document
    for change, match in ((lambda d: d.update(extra=1), "no place for the key extra"),
                          (lambda d: d["candidates"][0].pop("mesh"), "/candidates/0 lacks the key mesh"),
                          (lambda d: d["best"]["mesh"].update(ring="2"), "/best/mesh/ring is str '2'; it must be int"),
                          (lambda d: d.update(version=9), "version 9")):
        other = json.loads(result.to_json())
        change(other)
        with pytest.raises(usp.InvalidInput, match=match):
            usp.PlanResult.from_json(json.dumps(other))
    with pytest.raises(usp.InvalidInput, match="no JSON"):
        usp.PlanResult.from_json("{")


def test_same_fields_as_the_schema(result):
    schema = json.loads((REPOSITORY / "configs/schema/plan_result.v2.schema.json").read_text())
    assert set(json.loads(result.to_json())) == set(schema["properties"])


def test_plan_file_of_each_candidate(result):
    for i, candidate in enumerate(result.candidates[:4]):
        recipe = json.loads(result.plan_file(i))
        assert recipe["format"] == "usp.plan"
        made = candidate.recipe()
        from usp_attention._plans import Recipe

        read = Recipe.of_plan_file(result.plan_file(i))
        assert (read.ring, read.ulysses, read.head_chunks) == (made.ring, made.ulysses, made.head_chunks)
        if made.ring > 1:
            assert (read.method, read.layout, read.dkv_return) == (made.method, made.layout, made.dkv_return)


def test_model_as_dict_path_and_config(result):
    path = REPOSITORY / "configs/models/llama-3.1-8b.json"
    config = json.loads(path.read_text())

    class Config:
        def to_dict(self):
            return config

    class Model:
        config = Config()

    for model in (path, config, Config(), Model()):
        found = usp.plan(**{**QUESTION, "model": model})
        assert found.best.description == result.best.description
    with pytest.raises(usp.UsageError, match="model is int"):
        usp.plan(**{**QUESTION, "model": 7})


def test_fixed_and_refused():
    fixed = usp.plan(**QUESTION, ring=2, method="ring_direct", devices=8)
    assert fixed.best.mesh.ring == 2 and fixed.best.method == "ring_direct"
    with pytest.raises(usp.InvalidInput, match="/cluster/devices"):
        usp.plan(**QUESTION, devices=16)
    with pytest.raises(usp.InvalidInput, match="did you mean"):
        usp.plan(**{**QUESTION, "cluster": "dgx-h1000"})
    with pytest.raises(usp.Infeasible, match="no plan fits") as error:
        usp.plan("llama-3.1-405b", "dgx-h100", seq=1 << 20)
    assert isinstance(error.value.rejected, tuple)
    with pytest.raises(usp.InvalidInput, match="/fixed/method"):
        usp.plan(**QUESTION, method="spiral")


def test_gated(result):
    assert not result.best.gated
    found = usp.plan(**QUESTION, ring=2, gated=True)
    assert found.best.gated and found.best.method == "all_gather_kv" and ", gated" in found.best.description
    assert [cost.flag for cost in found.verdict.flag_costs].count("--gated") == 1
    assert any(note.startswith("gates: this layout without them") for note in found.notes)
    from usp_attention._plans import Recipe

    assert found.best.recipe().gated and Recipe.of_plan_file(found.plan_file()).gated
    assert "gated=True" in found.best.two_lines() and "gated" not in usp.plan(**QUESTION, ring=2).best.two_lines()
    call = dict(query_heads=8, kv_heads=8, head_dim=64, seq=4096, ranks=4)
    one = usp.plan_attention(**call, gated=True)
    assert one.best.gated and ", gated" in one.best.description and not usp.plan_attention(**call, gated=False).best.gated
    assert [r.reason for r in one.rejected] == ["gated attention is for rings of more than one rank: nothing arrives on "
                                                "ring 1"]
    for fixed, why in ((dict(ring=1), "/fixed/gated': has no effect: /fixed/ring is 1"),
                       (dict(method="ring"), "/fixed/gated': needs blocks that come straight"),
                       (dict(dkv_return="cycle"), "/fixed/gated': is not for dkv_return cycle"),
                       (dict(method="all_gather_kv", dkv_return="cycle"), "/fixed/dkv_return': dkv_return cycle follows")):
        with pytest.raises(usp.InvalidInput, match=why):
            usp.plan_attention(**call, **fixed, gated=True)
    with pytest.raises(usp.InvalidInput, match="/fixed/gated': needs blocks"):
        usp.plan(**QUESTION, method="ring", gated=True)
    with pytest.raises(usp.Infeasible, match="gated attention is for rings of more than one rank"):
        usp.plan_attention(**call, ulysses=4, gated=True)


def test_gate_phases(result):
    from usp_attention._plans import Recipe

    assert result.best.gate_phases is None and "gate_phases" not in result.best.two_lines()
    found = usp.plan(**QUESTION, ring=4, gated=True, gate_phases=3)
    assert found.best.gate_phases == 3 and "gated in 3 phases" in found.best.description
    assert found.best.recipe().gate_phases == Recipe.of_plan_file(found.plan_file()).gate_phases == 3
    assert "gated=True, gate_phases=3" in found.best.two_lines()
    stalls = dict(query_heads=16, kv_heads=16, head_dim=128, seq=65536, cluster="h200", calibration="h200_sxm-pair",
                  backend="hopper", training=False, ring=8, gated=True)
    chosen = usp.plan_attention(**stalls).best
    assert chosen.gate_phases == 3 and chosen.time_s < usp.plan_attention(**stalls, gate_phases=1).best.time_s
    call = dict(query_heads=8, kv_heads=8, head_dim=64, seq=4096, ranks=4)
    for fixed, why in ((dict(gate_phases=2), "/fixed/gate_phases': is for gated plans"),
                       (dict(gated=True, gate_phases=3, ring=2), "/fixed/gate_phases': 3 exceeds the ring of 2"),
                       (dict(gated=True, gate_phases=5), "/fixed/gate_phases'"),
                       (dict(gated=True, gate_phases=0), "/fixed/gate_phases'")):
        with pytest.raises(usp.InvalidInput, match=why):
            usp.plan_attention(**call, **fixed)


def test_notebook_and_two_lines(result):
    page = result._repr_html_()
    assert result.best.description in page and page.count("<tr>") == 1 + min(10, len(result.candidates))
    text = result.candidates[0].two_lines()
    assert "usp.hf.prepare(model, mesh[" in text and "sp.loader(loader)" in text
    inner = dataclasses.replace(usp.plan(**QUESTION, ring=2, ulysses=2).best, order="ring_inner").two_lines()
    assert "DeviceMesh(" in inner and "init_device_mesh(\"cuda\"" not in inner
    for code in (text, inner):
        compile(code, "two_lines", "exec")
    with pytest.raises(usp.UsageError, match="2 tensor-parallel ranks"):
        dataclasses.replace(result.best, tensor=2).two_lines()
    chunked = dataclasses.replace(result.best, head_chunks=2, tensor=1).two_lines()
    assert 'plan="plan.json"' in chunked and "2 head chunks" in chunked and "layout=" not in chunked


@pytest.mark.parametrize("recompute,line", [("full", "use_reentrant=False))"), ("mlp", None),
                                            ("keep_attention", "context_fn=usp.keep_attention))")])
def test_two_lines_checkpoint_as_planned(result, recompute, line):
    best = dataclasses.replace(result.best, recompute=recompute, tensor=1,
                               split=dataclasses.replace(result.best.split, recompute_layers=None))
    text = best.two_lines()
    compile(text, "two_lines", "exec")
    assert ("gradient_checkpointing_enable" in text) == (line is not None) and (line or "") in text
    some = dataclasses.replace(best, split=dataclasses.replace(best.split, recompute_layers=3)).two_lines()
    assert "gradient_checkpointing_enable" not in some


def test_a_failing_nvidia_smi(monkeypatch, tmp_path):
    import torch
    from usp_attention import _machine

    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexit 3\n")
    tool.chmod(0o755)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(_machine.shutil, "which", lambda name: str(tool))
    _machine.this_machine.cache_clear()
    with pytest.raises(usp.EnvironmentFault, match="exit status 3"):
        usp.plan(**{**QUESTION, "cluster": "auto"})


def test_attention_call():
    found = usp.plan_attention(query_heads=32, kv_heads=8, head_dim=128, seq=131072, cluster="dgx-h100", window=4096)
    assert found.best.mesh.ring * found.best.mesh.ulysses == 8 and found.best.forward["time_s"] > 0
    assert usp.AttentionResult.from_json(found.to_json()) == found and "<table>" in found._repr_html_()
    threads = usp.plan_attention(query_heads=4, kv_heads=2, head_dim=8, seq=64, ranks=4, ring=2, ulysses=2)
    assert (threads.best.mesh.ring, threads.best.mesh.ulysses) == (2, 2)
    with pytest.raises(usp.UsageError, match="one of cluster and ranks"):
        usp.plan_attention(query_heads=4, kv_heads=2, head_dim=8, seq=64)
    with pytest.raises(usp.UsageError, match="window is given and causal is False"):
        usp.plan_attention(query_heads=4, kv_heads=2, head_dim=8, seq=64, ranks=4, window=3, causal=False)
    with pytest.raises(usp.InvalidInput, match="/shape/kv_heads"):
        usp.plan_attention(query_heads=4, kv_heads=3, head_dim=8, seq=64, ranks=4)


def test_attention_call_by_a_calibration(tmp_path):
    call = dict(query_heads=16, kv_heads=16, head_dim=128, seq=16384, cluster="h200")
    own = usp.plan_attention(**call)
    assert own.request["calibration"] != "h200_sxm-pair" and own.best.backend == "cpu" and not own.backends
    pair = usp.plan_attention(**call, calibration="h200_sxm-pair")
    assert pair.request["calibration"] == "h200_sxm-pair"
    assert {price.backend for price in pair.backends} == {"cudnn", "mma", "hopper", "hopper_cudnn"}
    assert pair.best.backend == pair.backends[0].backend != "cpu"
    assert pair.best.time_s != own.best.time_s
    shipped = REPOSITORY / "configs" / "calibrations" / "h200_sxm-pair.json"
    file = tmp_path / "mine.json"
    file.write_text(shipped.read_text())
    assert usp.plan_attention(**call, calibration=file).best == pair.best
    with pytest.raises(usp.UsageError, match="ranks are threads"):
        usp.plan_attention(query_heads=4, kv_heads=2, head_dim=8, seq=64, ranks=4, calibration="h200_sxm-pair")
    with pytest.raises(usp.UspError, match="nowhere.json"):
        usp.plan_attention(**call, calibration=tmp_path / "nowhere.json")
    with pytest.raises(usp.UsageError, match="calibration"):
        usp.plan_attention(**call, calibration=3)


def test_this_machine(monkeypatch, tmp_path):
    import torch
    from usp_attention import _machine

    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat {REPOSITORY}/configs/jobs/dgx-h100-topo.txt\n")
    tool.chmod(0o755)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(_machine.shutil, "which", lambda name: str(tool))
    for name, planned in (("NVIDIA H100 80GB HBM3", True), ("NVIDIA H7", False)):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        _machine.this_machine.cache_clear()
        if planned:
            found = usp.plan(**{**QUESTION, "cluster": "auto"})
            assert found.request["cluster"]["devices"] == 8 and found.plan_file()
        else:
            with pytest.raises(usp.UsageError, match="'NVIDIA H7' is none that usp knows"):
                usp.plan(**{**QUESTION, "cluster": "auto"})
    _machine.this_machine.cache_clear()


def test_this_machine_without_a_gpu(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(usp.UsageError, match="no GPU"):
        usp.plan(**{**QUESTION, "cluster": "auto"})
