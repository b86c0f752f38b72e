# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a DeviceMesh meet: torch's groups carry one address, then usp's own connections take over."""

from __future__ import annotations

import dataclasses
import pathlib
import secrets
import socket

from . import _check
from . import _structs as s
from ._comm import Comm
from ._differences import differences, shown
from ._library import import_torch, lib
from ._options import split_ranks
from .errors import DisagreementError, UsageError

torch = import_torch()

if torch.distributed.is_available():
    from torch.distributed.device_mesh import DeviceMesh as _DEVICE_MESH
else:
    _DEVICE_MESH = ()


def device_of(device_mesh) -> "torch.device":
    """The device of this rank: the current one of the mesh's kind."""
    if device_mesh is None:
        return torch.device("cpu")
    _check.instance("device_mesh", device_mesh, _DEVICE_MESH, "a DeviceMesh of torch.distributed, such as "
                    "init_device_mesh(...)['ring', 'ulysses'], or None for one rank")
    if device_mesh.device_type == "cpu":
        return torch.device("cpu")
    if device_mesh.device_type != "cuda":
        raise UsageError(f"the DeviceMesh is one of {device_mesh.device_type}; usp runs on cpu and cuda")
    return torch.device("cuda", torch.cuda.current_device())


def mesh_degrees(device_mesh, ring: int | None, ulysses: int | None) -> tuple[int, int]:
    """(ring, ulysses) of a DeviceMesh, as given or as its dimensions say."""
    if device_mesh is None:
        if (ring or 1) * (ulysses or 1) != 1:
            raise UsageError(f"ring {ring or 1} x ulysses {ulysses or 1} need {(ring or 1) * (ulysses or 1)} ranks; "
                             "give the DeviceMesh of those ranks (without one there is one rank)")
        return 1, 1
    names = device_mesh.mesh_dim_names or ()
    if device_mesh.ndim == 2:
        if tuple(names) != ("ring", "ulysses"):
            raise UsageError(f"the DeviceMesh has the dimensions {tuple(names)}; give ('ring', 'ulysses'), in this "
                             "order: mesh['ring', 'ulysses']")
        degrees = (device_mesh.size(0), device_mesh.size(1))
    elif device_mesh.ndim == 1:
        degrees = _split(device_mesh.size(), names[0] if names else "", ring, ulysses)
    else:
        raise UsageError(f"the DeviceMesh has {device_mesh.ndim} dimensions {tuple(names)}; slice the sequence's: "
                         "mesh['ring', 'ulysses']")
    for name, asked, found in (("ring", ring, degrees[0]), ("ulysses", ulysses, degrees[1])):
        if asked not in (None, found):
            raise UsageError(f"{name} is {asked}, and the DeviceMesh has {found}; make both the same")
    return degrees


def _split(size: int, name: str, ring: int | None, ulysses: int | None) -> tuple[int, int]:
    """Degrees of a mesh of one dimension."""
    if ring is None and ulysses is None:
        if name not in ("ring", "ulysses"):
            raise UsageError(f"the DeviceMesh has one dimension {name!r} of {size} ranks; say how to split it: "
                             "ring=..., ulysses=...")
        return (size, 1) if name == "ring" else (1, size)
    return split_ranks(size, ring, ulysses, "the DeviceMesh")


def meet(device_mesh, options) -> tuple[Comm, int]:
    """Collective: (communicator whose rank is that in the mesh, a seed that all ranks share)."""
    if device_mesh is None or device_mesh.size() == 1:
        return Comm.serial(), secrets.randbits(63)
    # The last dimension is ulysses, or the only one.
    groups = [device_mesh.get_group(dim) for dim in reversed(range(device_mesh.ndim))]
    rank = 0
    for dim, at in enumerate(device_mesh.get_coordinate()):
        rank = rank * device_mesh.size(dim) + at
    mine = {"host": _host(), "version": lib().usp_version().decode(), **_flat(options)}
    everyone = _gather(mine, groups)
    _compare(everyone)
    job = s.SocketJob(rank=rank, ranks=len(everyone), digest=0,
                      one_host=len({entry["host"] for entry in everyone}) == 1)
    return _connect(job, groups, options.watchdog_s)


def _connect(job: s.SocketJob, groups, watchdog_s: float) -> tuple[Comm, int]:
    """Rank 0 listens at a free port, then broadcasts the port with the secret that the others must prove."""
    told = {"name": socket.gethostname(), "secret": secrets.token_hex(16), "seed": secrets.randbits(63)}
    failure: list[BaseException] = []

    def on_listening(_context, port):
        try:
            _gather({**told, "port": port}, groups)
        except BaseException as error:  # no exception may pass through C
            failure.append(error)

    if job.rank == 0:
        job.on_listening = s.OnListening(on_listening)
    else:
        told = _gather(None, groups)[0]
        job.host, job.port = told["name"].encode(), told["port"]
    job.secret = told["secret"].encode()
    try:
        return Comm.sockets(job, watchdog_s), told["seed"]
    except Exception as error:
        if failure:
            raise failure[0] from error
        raise


def _gather(mine, groups) -> list:
    """What each rank gave, by its rank in the mesh: over the inner dimension, then over the outer one."""
    import torch.distributed as dist

    known = [mine]
    for group in groups:
        parts: list = [None] * dist.get_world_size(group)
        dist.all_gather_object(parts, known, group=group)
        known = [entry for part in parts for entry in part]
    return known


def _compare(everyone: list[dict]) -> None:
    found = differences([{name: value for name, value in entry.items() if name != "host"} for entry in everyone])
    if found:
        raise DisagreementError(f"ranks of the mesh differ in {shown(found, 'have')}; pass the same options on "
                                "every rank", found[0].field, found[0].ranks)


def _flat(options) -> dict:
    fields = dataclasses.asdict(options)
    return {**fields.pop("recipe"), **fields}


def _host() -> str:
    """This host, by its name and boot: containers of different hosts may share a name."""
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}"
