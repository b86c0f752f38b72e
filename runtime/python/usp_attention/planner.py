# SPDX-License-Identifier: Apache-2.0
"""Lays out a training or inference step, or one attention call, on a cluster: `usp plan` from Python.

Needs no torch. Times are in seconds, sizes in bytes; fields are those of the JSON that `usp plan --json` prints.
"""

from __future__ import annotations

import ctypes
import dataclasses
import html
import json
import numbers
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import _check
from ._json import decode
from ._library import check, lib, take_text
from ._machine import this_machine
from .errors import InvalidInput, UsageError


@dataclass(frozen=True)
class MeshShape:
    """ring = ring_outer * ring_inner ranks by ulysses ranks."""

    ring: int
    ulysses: int
    ring_outer: int
    ring_inner: int


@dataclass(frozen=True)
class Split:
    """How a replica's batch and the layers are split. recompute_layers: that compute again, offload_layers: whose
    tensors go to host memory; None: all."""

    batch: int
    microbatches: int
    pipeline: int
    virtual_stages: int
    expert: int
    recompute_layers: int | None
    offload_layers: int | None
    mlp_tile_tokens: int


@dataclass(frozen=True)
class Candidate:
    """A layout of the step. `band` is the relative error of the estimate of time_s."""

    mesh: MeshShape
    data: int
    tensor: int
    layout: str
    method: str
    dkv_return: str
    head_chunks: int
    order: str
    uneven_heads: bool
    gated: bool
    time_s: float
    band: float
    memory_bytes: int
    description: str
    recompute: str | None = None
    zero_stage: int | None = None
    fits_memory: bool | None = None
    tokens_per_s: float | None = None
    forward: dict | None = None
    backward: dict | None = None
    split: Split | None = None
    offload: tuple[str, ...] | None = None
    executable: bool | None = None
    unexecutable_reason: str | None = None
    model_flops: float | None = None
    flop_per_s_per_device: float | None = None
    mfu: float | None = None
    backend: str | None = None
    gate_phases: int | None = None

    def recipe(self):
        """What Mesh.create(plan=...) runs."""
        from ._plans import Recipe

        return Recipe(ring=self.mesh.ring, ulysses=self.mesh.ulysses, ring_outer=self.mesh.ring_outer,
                      method=self.method, layout=self.layout, dkv_return=self.dkv_return,
                      head_chunks=self.head_chunks, gated=self.gated, gate_phases=self.gate_phases or 1,
                      backend=self.backend or "cpu")

    def two_lines(self) -> str:
        """The two lines of a training loop and the command that launches it, for this layout."""
        data, ring, ulysses = self.data, self.mesh.ring, self.mesh.ulysses
        ranks = data * ring * ulysses
        names = 'mesh_dim_names=("data", "ring", "ulysses")'
        made = f'init_device_mesh("cuda", ({data}, {ring}, {ulysses}), {names})'
        if self.order == "ring_inner" and ring > 1 and ulysses > 1:
            made = (f'DeviceMesh("cuda", torch.arange({ranks}).view({data}, {ulysses}, {ring}).transpose(1, 2), '
                    f'{names})  # the ring on neighbouring devices')
        planned = f"# planned with {', '.join(self._beside())}: yours to set\n"
        if self.tensor != 1:
            raise UsageError(f"the layout has {self.tensor} tensor-parallel ranks, which usp_attention does not set up; "
                             "plan with tensor=1")
        for name in ("pipeline", "expert"):
            degree = 1 if self.split is None else getattr(self.split, name)
            if degree != 1:
                raise UsageError(f"the layout has {degree} {name}-parallel ranks, which usp_attention does not set up; "
                                 f"plan with {name}=1")
        return (
            "import torch\nimport usp_attention as usp\n"
            "from torch.distributed.device_mesh import DeviceMesh, init_device_mesh\n\n"
            f"# torchrun --nproc-per-node {ranks} train.py   (on one host; --nnodes for more)\n"
            f"{planned}mesh = {made}\n{self._checkpointing()}"
            f"sp = usp.hf.prepare(model, mesh[\"ring\", \"ulysses\"], {self._options()}\n"
            "for batch in sp.loader(loader):\n"
            "    model(**batch).loss.backward()\n")


    def _options(self) -> str:
        """The layout as options of prepare; what only a plan says, by a plan file."""
        if self.head_chunks > 1 or self.mesh.ring_outer > 1:
            return (f'plan="plan.json")  # what plan_file() gave: {self.head_chunks} head chunks, '
                    f"{self.mesh.ring_outer} outer ring ranks")
        gated = ", gated=True" if self.gated else ""
        if (self.gate_phases or 1) > 1:
            gated += f", gate_phases={self.gate_phases}"
        return f"layout={self.layout!r}, method={self.method!r}, dkv_return={self.dkv_return!r}{gated})"

    def _checkpointing(self) -> str:
        """transformers checkpoints all layers or none."""
        kept = {"full": "", "keep_attention": ", context_fn=usp.keep_attention"}.get(self.recompute)
        some = self.split is not None and self.split.recompute_layers
        return "" if kept is None or some else f"model.gradient_checkpointing_enable(dict(use_reentrant=False{kept}))\n"

    def _beside(self) -> list[str]:
        """What the plan assumes of the step beside its attention."""
        layers = None if self.split is None else self.split.recompute_layers
        tile = 0 if self.split is None else self.split.mlp_tile_tokens
        away = f"{', '.join(self.offload)} in host memory" if self.offload else ""
        return [f"recompute {self.recompute}" + (f" of {layers} layers" if layers else ""), *([away] if away else []),
                f"ZeRO stage {self.zero_stage} (3: fully_shard)", *([f"MLP tiles of {tile} tokens"] if tile else [])]


@dataclass(frozen=True)
class Best(Candidate):
    """The best candidate, in full."""

    placement: tuple[int, ...] = ()
    axes: tuple[dict, ...] = ()
    terms: tuple[dict, ...] = ()
    memory: dict = field(default_factory=dict)
    attention: tuple[dict, ...] = ()


@dataclass(frozen=True)
class Rejection:
    """A mesh that was not considered, and why."""

    mesh: dict
    data: int
    tensor: int
    reason: str


@dataclass(frozen=True)
class FlagCost:
    """What a fixed choice costs. slowdown: seconds per token over those of the layout `without` it, minus one."""

    flag: str
    slowdown: float
    without: str


@dataclass(frozen=True)
class Guess:
    """An unmeasured input that decides the first place. factor: of the assumed rate at which `first` is first;
    measurement: the command that measures it."""

    input: str
    provenance: str
    factor: float
    first: str
    measurement: str


@dataclass(frozen=True)
class BackendPrice:
    """A backend that was priced, or what of the call it does not take (objection)."""

    backend: str
    time_s: float | None
    band: float | None
    slower: float | None
    tie: bool
    description: str | None
    objection: str | None


@dataclass(frozen=True)
class Smaller:
    """The best plan of fewer devices."""

    devices: int
    time_s: float
    band: float
    description: str


@dataclass(frozen=True)
class Verdict:
    """How certain the choice is. margin: of the runner-up over the best, relative; tie: within the bands."""

    margin: float
    tie: bool
    tie_breaking_measurements: tuple[str, ...]
    runner_up: str | None = None
    sensitive_terms: tuple[str, ...] = ()
    flag_costs: tuple[FlagCost, ...] = ()
    guesses: tuple[Guess, ...] = ()


@dataclass(frozen=True)
class _Result:
    format: str
    version: int
    request: dict
    best: Best
    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejection, ...]
    verdict: Verdict
    calibration: dict
    priced_schedules: int
    notes: tuple[str, ...]
    _text: str = field(default="", repr=False, compare=False, kw_only=True, metadata={"json": False})
    _asked: dict | None = field(default=None, repr=False, compare=False, kw_only=True, metadata={"json": False})

    def to_json(self) -> str:
        """As the command line prints it."""
        return self._text

    @classmethod
    def from_json(cls, text: str):
        """Reads what to_json gave. Raises InvalidInput for unknown and missing keys."""
        _check.instance("text", text, str, "the text that to_json gave")
        try:
            document = json.loads(text)
        except ValueError as error:
            raise InvalidInput(f"the text is no JSON: {error}") from error
        result = decode(cls, document)
        if result.format != cls._format or result.version != 2:
            raise InvalidInput(f"the document is {result.format} version {result.version}; this reads {cls._format} "
                               "version 2")
        return dataclasses.replace(result, _text=text)

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in (
                i, c.description, f"{c.time_s:.4g} ± {100 * c.band:.0f}%", f"{c.memory_bytes / 2**30:.1f}",
                "" if c.tokens_per_s is None else f"{c.tokens_per_s:,.0f}")) + "</tr>"
            for i, c in enumerate(self.candidates[:10]))
        tie = "a tie with the next" if self.verdict.tie else f"{100 * self.verdict.margin:.1f}% before the next"
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        return (f"<p><b>{html.escape(self.best.description)}</b>: {tie}</p><table><tr><th></th><th>layout</th>"
                f"<th>time (s)</th><th>memory (GiB)</th><th>tokens/s</th></tr>{rows}</table><ul>{notes}</ul>")


@dataclass(frozen=True)
class PlanResult(_Result):
    """What `usp plan` found, best first."""

    _format = "usp.plan_result"
    ranked_by: str
    pareto: tuple[int, ...]
    measured: dict | None

    def plan_file(self, index: int = 0) -> str:
        """The plan file of a candidate, as `usp plan -o` writes it, for Mesh.create(plan=...) and `usp run`."""
        _check.integer("index", index, 0, len(self.candidates) - 1, of="an index of candidates")
        asked = dict(self._asked if self._asked is not None else self.request)
        asked["fixed"] = {**(asked.get("fixed") or {}), **_choices(self.candidates[index], asked)}
        asked["workload"] = {**asked["workload"], **_split(self.candidates[index].split)}
        asked.update(search_expert=False, search_pipeline=False)
        return _ask(lib().usp_plan_step_file, asked)


@dataclass(frozen=True)
class AttentionResult(_Result):
    """What `usp plan attention` found, best sum of the passes first."""

    _format = "usp.attention_plan_result"
    best_forward: Candidate
    best_backward: Candidate | None
    backends: tuple[BackendPrice, ...]
    backend_steps: dict
    smaller: tuple[Smaller, ...]


def _choices(candidate: Candidate, asked: dict) -> dict:
    """Decisions that pin a candidate; those without effect are left out, as the planner refuses them."""
    training = (asked.get("workload") or {}).get("training", True) is not False
    fixed = {"ring": candidate.mesh.ring, "ulysses": candidate.mesh.ulysses, "data": candidate.data,
             "tensor": candidate.tensor, "head_chunks": candidate.head_chunks}
    if candidate.mesh.ring > 1:
        fixed.update(method=candidate.method, layout=candidate.layout)
        if candidate.mesh.ulysses > 1:
            fixed["order"] = candidate.order
        if candidate.gated:
            fixed.update(gated=True, gate_phases=candidate.gate_phases)
    if training:
        fixed.update(recompute=candidate.recompute, zero_stage=candidate.zero_stage)
        if candidate.offload:
            fixed["offload"] = list(candidate.offload)
        if candidate.mesh.ring > 1:
            fixed["dkv_return"] = candidate.dkv_return
    return fixed


def _split(split: Split) -> dict:
    """The same of the workload."""
    return _given(microbatches=split.microbatches, pipeline=split.pipeline, virtual_stages=split.virtual_stages,
                  expert=split.expert, recompute_layers=split.recompute_layers,
                  offload_layers=split.offload_layers)


def plan(model: Any, cluster: str | os.PathLike | Mapping, *, seq: int, batch: int = 1,
         documents: Sequence[int] = (), devices: int | None = None, nodes: int | None = None, dtype: str = "bf16",
         causal: bool = True, training: bool = True, recompute: str | None = None, zero_stage: int | None = None,
         ring: int | None = None, ulysses: int | None = None, data: int | None = None, tensor: int | None = None,
         method: str | None = None, layout: str | None = None, gated: bool | None = None, gate_phases: int | None = None,
         expert: int | None = None, pipeline: int = 1, global_batch: int | None = None, objective: str | None = None, device_bytes: int | None = None,
         calibration: str | os.PathLike | None = None, max_candidates: int | None = None) -> PlanResult:
    """Lays out a step: which ring x ulysses mesh, method and layout, at what time and memory.

    model: a preset's name, a config.json's path or dict, a transformers config, or a live transformers model.
    cluster: what `usp plan --cluster` takes (a preset, a file, a description), a dict of its options, or "auto":
    this machine's GPUs. seq: tokens of a row; batch: rows per data-parallel replica; documents: lengths packed
    into a row; devices: how many the cluster must have; nodes: hosts like those of the source; global_batch: rows of
    all replicas, whose number then follows; objective: throughput or latency (None: as `usp plan`); gated: attention
    awaits each block of all_gather_kv as it lands (never chosen: notes and flag costs say what it gains or costs), forward
    in gate_phases calls (1 to 4; None: as many as have the least price). The other keywords fix what the planner would choose. Raises Infeasible with the remedies, InvalidInput, UsageError.
    """
    documents = _check.integers("documents", documents)
    _plain(seq=seq, batch=batch, devices=devices, nodes=nodes, dtype=dtype, causal=causal, training=training,
           recompute=recompute, zero_stage=zero_stage, ring=ring, ulysses=ulysses, data=data, tensor=tensor, method=method,
           layout=layout, gated=gated, gate_phases=gate_phases, expert=expert, pipeline=pipeline, global_batch=global_batch, objective=objective,
           device_bytes=device_bytes, max_candidates=max_candidates)
    request: dict = {
        "model": _model(model),
        "cluster": _cluster(cluster, devices, nodes),
        "workload": _given(seq=seq, batch=batch, dtype=dtype, causal=causal, training=training,
                           documents=documents or None, expert=expert, pipeline=pipeline),
        "fixed": _given(ring=ring, ulysses=ulysses, data=data, tensor=tensor, method=method, layout=layout,
                        gated=gated, gate_phases=gate_phases, recompute=recompute, zero_stage=zero_stage),
        "memory": _given(device_bytes=device_bytes),
        **_given(calibration=None if calibration is None else _check.path("calibration", calibration),
                 max_candidates=max_candidates, global_batch=global_batch, objective=objective),
    }
    result = PlanResult.from_json(_ask(lib().usp_plan_step_json, request))
    return dataclasses.replace(result, _asked=request)


def plan_attention(*, query_heads: int, kv_heads: int, head_dim: int, seq: int, batch: int = 1, cluster=None,
                   ranks: int | None = None, nodes: int | None = None, head_dim_v: int | None = None,
                   causal: bool = True, window: int | None = None, sink: bool = False, softcap: float | None = None,
                   dropout: float = 0.0, documents: Sequence[int] = (), dtype: str = "bf16", backend: str | None = None,
                   training: bool = True, calibration: str | os.PathLike | None = None,
                   max_candidates: int | None = None, **fixed) -> AttentionResult:
    """Lays out one attention call on a cluster, or on `ranks` threads of this host (times are then a guess).

    calibration: a shipped one's name or a file that `usp calibrate` wrote; None is the cluster's own. backend: None is
    the fastest of those that it measured, and without one cpu. fixed: ring, ulysses, method, layout, dkv_return,
    head_chunks, order, gated, gate_phases. Raises as `plan`.
    """
    if (cluster is None) == (ranks is None):
        raise UsageError("plan_attention takes one of cluster and ranks")
    if calibration is not None and cluster is None:
        raise UsageError("calibration is of a cluster, and ranks are threads of this host; give cluster instead")
    _check.known("plan_attention", fixed, _FIXED)
    documents = _check.integers("documents", documents)
    _plain(query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim, seq=seq, batch=batch, ranks=ranks, nodes=nodes,
           head_dim_v=head_dim_v, causal=causal, window=window, sink=sink, softcap=softcap, dropout=dropout, dtype=dtype,
           backend=backend, training=training, max_candidates=max_candidates, **fixed)
    if window is not None and not causal:
        raise UsageError("window is given and causal is False: a window looks back from a causal query")
    request = {
        **({"ranks": ranks} if cluster is None else {"cluster": _cluster(cluster, None, nodes)}),
        "shape": _given(batch=batch, tokens=seq, query_heads=query_heads, kv_heads=kv_heads, head_dim_qk=head_dim,
                        head_dim_v=head_dim_v, dtype=dtype),
        **_given(causal=causal, window=window, sink=sink, softcap=softcap, dropout=dropout or None, backend=backend,
                 documents=documents or None, training=training, fixed=fixed or None,
                 calibration=None if calibration is None else _check.path("calibration", calibration),
                 max_candidates=max_candidates),
    }
    return AttentionResult.from_json(_ask(lib().usp_plan_attention_json, request))


_FIXED = ("ring", "ulysses", "method", "layout", "dkv_return", "head_chunks", "order", "gated", "gate_phases")


def _plain(**arguments) -> None:
    """Raises UsageError for what JSON cannot say; types and ranges are the library's to check."""
    for name, value in arguments.items():
        if isinstance(value, (float, numbers.Real)) and not isinstance(value, (bool, int)):
            _check.number(name, value)
        _check.instance(name, value, (str, numbers.Real, type(None)), "a number, a word, True, False or None")


def _ask(function, request: dict) -> str:
    text = ctypes.c_void_p()
    check(function(json.dumps(request, default=_number).encode(), ctypes.byref(text)))
    return take_text(text)


def _number(value: Any):
    """numpy's numbers in JSON."""
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _json(name: str, value: Mapping) -> Any:
    """A mapping as JSON has it: paths, types and numbers of libraries as their texts."""
    try:
        return json.loads(json.dumps(dict(value), default=str, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{name} cannot be written as JSON: {error}; give what a JSON file holds") from error


def _given(**values) -> dict:
    return {name: value for name, value in values.items() if value is not None}


def _model(model: Any):
    """A name, a path, or the content of a config.json."""
    if isinstance(model, (str, os.PathLike)):
        return _check.path("model", model)
    config = getattr(model, "config", model)  # a live model has one
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise UsageError(f"model is {type(model).__name__}; give a preset's name, a config.json (path or dict), a "
                         "transformers config or model")
    return _json("model", config)


def _cluster(cluster, devices: int | None, nodes: int | None):
    if isinstance(cluster, Mapping):
        described = _json("cluster", cluster)
    else:
        source = _check.path("cluster", cluster)
        described = this_machine() if source == "auto" else {"source": source}
    return {**described, **_given(devices=devices, nodes=nodes)}
