# SPDX-License-Identifier: Apache-2.0
"""Rows of gpu_table.py out of what the benchmarks print: pure functions, and the targets."""
import dataclasses
import json
import re

CUDNN, MMA = {"forward": 0.99, "backward": 0.99}, {"forward": 1.0, "backward": 0.95}
RING = {"one call per hop": {"forward": 0.82, "backward": 0.82}, "in waves": {"forward": 0.90, "backward": 0.90},
        "in one launch": {"forward": 0.96, "backward": 0.88}}
# Both passes, beside one launch without gates; copies from the host come too slowly for a target.
GATED = {"behind open gates": 0.997, "behind copies": 0.98}
HOPPER = {"forward": 1.0, "backward": 0.95}
MEMORY, EXCHANGE, TORCH_EXCHANGE = 0.90, 0.95, 2.0
UNDISTURBED = 1 / 1.03  # attention beside a transfer may take 3% longer
# Two GPUs, forward and backward: beside PyTorch's context parallel by length, and beside one GPU's rate at 64K.
MESHES = {"ulysses": {16384: 1.65, 65536: 1.10, 131072: 1.05}, "ring": {16384: 1.50, 65536: 1.07, 131072: 1.04}}
ALONE = {"ulysses": 0.96, "ring": 0.94}
ALONE_SEQ = 65536


@dataclasses.dataclass(frozen=True)
class Row:
    """One figure beside its peer's, both in `unit`; ratio above 1: ours is faster."""
    part: str
    what: str
    shape: str
    ours: float
    peer: float
    unit: str
    target: float | None = None

    @property
    def ratio(self):
        return self.peer / self.ours if self.unit == "ms" else self.ours / self.peer

    @property
    def met(self):
        """None where there is no target."""
        return None if self.target is None else self.ratio >= self.target

    def as_dict(self):
        return {**dataclasses.asdict(self), "ratio": self.ratio, "met": self.met}


@dataclasses.dataclass(frozen=True)
class NotRun:
    """What is missing in the table, and why; `failed` when it was started and should have worked."""
    part: str
    what: str
    why: str
    failed: bool = False


def json_lines(text):
    """The objects of a text that holds one a line, among lines that libraries may print. A broken one raises
    ValueError."""
    found = []
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"a broken line: {line[:120]!r}") from error
    return found


def length(seq):
    return f"{seq // 1024}K" if seq % 1024 == 0 else str(seq)


def attention_rows(part, found):
    """Of bench_cuda_attention_torch.py, for the parts `attention` (cudnn), `mma` and `hopper`."""
    own, peer, targets = {"attention": ("cudnn", "SDPA cuDNN", CUDNN),
                          "mma": ("mma", "SDPA FLASH", MMA),
                          "hopper": ("hopper", "SDPA cuDNN", HOPPER)}[part]
    for f in found:
        shape = (f"{length(f['seq'])} {'causal' if f['causal'] else 'full'} {f['heads']}/{f['kv_heads']} "
                 f"hd{f['head_dim']} {f['order']}")
        yield Row(part, f"{own} {f['pass']} beside {peer}", shape, f["ms"], f["peer_ms"], "ms",
                  targets[f["pass"]])


PACKED_OWN = re.compile(r"^(\S+)\s+fwd\s+\S+ ms\s+(\S+)\s+bwd\s+\S+ ms\s+(\S+) TF/s", re.M)
PACKED_PEER = re.compile(r"^(\S+)\s+FLASH fwd\s+(\S+) bwd\s+(\S+)", re.M)
PACKED_REFUSED = re.compile(r"^(packed\w*): (.*)$", re.M)


def packed_rows(text):
    """Of mma_attention_peer.py; a configuration that only one side measured is not run."""
    own, peer = ({m[1]: (float(m[2]), float(m[3])) for m in pattern.finditer(text)}
                 for pattern in (PACKED_OWN, PACKED_PEER))
    refused = {m[1]: m[2] for m in PACKED_REFUSED.finditer(text)}
    for name in sorted(own.keys() | peer.keys() | refused.keys()):
        if name not in own or name not in peer:
            why = refused.get(name, "mma_attention_check printed no figure" if name not in own
                              else "PyTorch's figure is missing")
            yield NotRun("packed", name, why, failed=name not in own)
            continue
        for i, pass_name in enumerate(("forward", "backward")):
            yield Row("packed", f"mma {pass_name} beside varlen_attn", name, own[name][i], peer[name][i],
                      "TF/s", MMA[pass_name])


def ring_rows(found, shape, part="ring"):
    """Of bench_cuda_ring --json, for the parts `ring` (cudnn) and `hopper`."""
    for f in found:
        if f["way"] in RING:
            yield Row(part, f"{f['way']}, {f['pass']}, beside one full call", f"{shape}, rank {f['rank']}",
                      f["tflop_s"], f["full_tflop_s"], "TF/s", RING[f["way"]][f["pass"]])
        elif f["way"] in GATED:
            slow = f["way"] == "behind copies" and f["copies"] == "host"
            yield Row(part, f"{f['way']}{' from the host' if slow else ''}, {f['pass']}, beside one launch without gates",
                      f"{shape}, rank {f['rank']}", f["tflop_s"], f["launch_tflop_s"], "TF/s",
                      None if slow else GATED[f["way"]])


def memory_rows(found, shape):
    """Of bench_cuda_memory --json; merge and delta have a target."""
    for f in found:
        aimed = f["work"].startswith(("merge", "delta"))
        yield Row("memory", f"{f['work']} beside a copy", shape, f["gb_s"], f["copy_gb_s"], "GB/s",
                  MEMORY if aimed else None)


def exchange_rows(found):
    """Of bench_cuda_exchange --json. Ranks that share a GPU have no target: those copies are not between GPUs."""
    for f in found:
        shared = f["gpus"] < f["ranks"]
        shape = (f"{f['ranks']} {f['mode']}{' sharing ' + str(f['gpus']) + ' GPU' if shared else ''}, "
                 f"{f['mib_per_peer']} MiB in runs of {f['run_bytes']}")
        if 2 * f["late"] >= f["rounds"]:
            shape += f", host late in {f['late']} of {f['rounds']} rounds"
        yield Row("exchange", f"exchange {f['way']} beside plain peer copies", shape, f["exchange_gb_s"],
                  f["plain_gb_s"], "GB/s", None if shared else EXCHANGE)


def best(found, **fields):
    """The fastest of forward and backward among those that have these fields, or None."""
    fitting = [f for f in found if "fault" not in f and all(f.get(k) == v for k, v in fields.items())]
    return max(fitting, key=lambda f: f["both_tflop_s"], default=None)


def ranks_rows(found, alone):
    """Of bench_gpu_ranks_torch.py --json on several GPUs, and on one: each mesh's fastest way beside PyTorch's."""
    for f in found + alone:
        if "fault" in f:
            yield NotRun("ranks", f"{length(f['seq'])} {f['name']}", f["fault"], failed=f["by"] == "usp")
    gpus = max((f["gpus"] for f in found), default=0)
    meshes = {"ulysses": {"ring": 1, "ulysses": gpus}, "ring": {"ring": gpus, "ulysses": 1}}
    single = best(alone, by="usp", seq=ALONE_SEQ)
    for seq in sorted({f["seq"] for f in found}):
        peer = best(found, by="torch", seq=seq)
        for mesh, degrees in meshes.items():
            own = best(found, by="usp", seq=seq, **degrees)
            yield beside(f"{mesh} beside context parallel", seq, own, peer,
                         MESHES[mesh].get(seq) if gpus == 2 else None)
            if seq == ALONE_SEQ:
                yield beside(f"{mesh} beside one GPU", seq, own, single, ALONE[mesh] if gpus == 2 else None)


def beside(what, seq, own, peer, target):
    if own is None or peer is None:
        return NotRun("ranks", f"{length(seq)} {what}", f"no figure of {'ours' if own is None else 'the peer'}")
    shape = (f"{length(seq)} causal {own['heads']}/{own['kv_heads']} hd{own['head_dim']}, {own['gpus']} GPUs, "
             f"{own['name']} | {peer['name']}")
    return Row("ranks", f"{what}, fwd+bwd", shape, own["both_tflop_s"], peer["both_tflop_s"], "TF/s", target)


def overlap_rows(found):
    """Of bench_cuda_overlap: attention beside transfers, and alone."""
    for f in found:
        late = f", uncovered in {f['uncovered']} of {f['rounds']} rounds" if f["uncovered"] else ""
        yield Row("overlap", f"{f['pass']} beside copies, and alone",
                  f"{length(f['local'])} full 16/16 hd128, {f['mib']} MiB both ways{late}", f["beside_ms"],
                  f["alone_ms"], "ms", UNDISTURBED if f["local"] >= 8192 else None)


def torch_exchange_rows(found, peer):
    """Our exchange, by threads, beside permute, all_to_all_single, permute of the same size."""
    for f in found:
        for p in peer:
            if all(f[k] == p[k] for k in ("ranks", "run_bytes", "mib_per_peer")) and f["gpus"] >= f["ranks"]:
                yield Row("exchange", f"exchange {f['way']} beside PyTorch's", f"{f['ranks']} {f['mode']}, "
                          f"{f['mib_per_peer']} MiB in runs of {f['run_bytes']}", f["exchange_gb_s"],
                          p["torch_gb_s"], "GB/s", TORCH_EXCHANGE)


def table(rows, missing):
    """The text of all rows and of what was not run."""
    heads = ("part", "what", "shape", "ours", "peer", "unit", "ratio", "target", "met")
    cells = [(r.part, r.what, r.shape, f"{r.ours:.4g}", f"{r.peer:.4g}", r.unit, f"{r.ratio:.3f}",
              "-" if r.target is None else f"{r.target:.2f}", {None: "-", True: "yes", False: "NO"}[r.met])
             for r in rows]
    widths = [max(len(line[i]) for line in [heads, *cells]) for i in range(len(heads))]
    left = {0, 1, 2, 5, 8}
    lines = ["  ".join(cell.ljust(w) if i in left else cell.rjust(w)
                       for i, (cell, w) in enumerate(zip(line, widths))).rstrip() for line in [heads, *cells]]
    aimed = [r for r in rows if r.target is not None]
    lines.append(f"{len(rows)} rows; {sum(r.met for r in aimed)} of {len(aimed)} targets met")
    lines += [f"not run: {m.part}: {m.what}: {m.why}" for m in missing]
    return "\n".join(lines)
