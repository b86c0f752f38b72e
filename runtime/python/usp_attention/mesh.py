# SPDX-License-Identifier: Apache-2.0
"""A ring x ulysses mesh of ranks: what runs attention on this rank."""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import itertools
import json
import secrets
import threading
import warnings
from collections.abc import Sequence

from . import _check
from . import _structs as s
from . import op as _op  # noqa: F401: torch.ops.usp exists wherever a mesh does
from ._call import Call
from ._comm import Comm
from ._differences import differences, shown
from ._documents import cu_seqlens_of_positions
from ._library import import_torch, interpreter_exits_by_error, lib
from ._options import OTHER_OPTIONS, RECIPE_OPTIONS, MeshOptions, options_of, recipe_of, transport_number
from ._plans import Plan, Shape, Terms
from .batch import Batch, BatchState, Documents
from .data import Cut
from .errors import DisagreementError, EnvironmentFault, UsageError

torch = import_torch()

_KEPT = 8
"""Documents of so many steps are kept, as the library keeps what it prepared of them."""


class Mesh:
    """The ranks that share each sequence: rank = ring row * ulysses + ulysses column.

    One call at a time, from any thread; `batch` alone may run beside it in another thread. A process that was
    forked from this one cannot use it. Close it on all ranks, or let the exit of the program do so.
    """

    def __init__(self, comm: Comm, options: MeshOptions, device: "torch.device", seed: int = 0):
        recipe = options.recipe
        if recipe.ranks != comm.size:
            raise UsageError(f"ring {recipe.ring} x ulysses {recipe.ulysses} are {recipe.ranks} ranks, there are "
                             f"{comm.size}; give degrees whose product is {comm.size}")
        self._comm, self.options, self.device = comm, options, device
        self._one_call, self._one_lookup = threading.Lock(), threading.Lock()
        self.recipe, self.ring, self.ulysses, self.size = recipe, recipe.ring, recipe.ulysses, recipe.ranks
        self.rank = comm.rank
        self.coordinate = (self.rank // self.ulysses, self.rank % self.ulysses)
        self._seed, self._batches = seed, 0
        self._plans: dict[tuple[Terms, Shape, bool], Plan] = {}
        self._recent: list[Documents] = []  # the last used first
        self._engine = ctypes.c_void_p()
        self._callbacks = _callbacks(device)
        desc = s.EngineDesc()
        comm.call(lib().usp_engine_desc_init, ctypes.byref(desc), ctypes.sizeof(desc))
        desc.ring, desc.ring_outer, desc.ulysses = recipe.ring, recipe.ring_outer, recipe.ulysses
        desc.compare_inputs, desc.deterministic = options.check, options.deterministic
        desc.forward_only = options.forward_only
        desc.backend = s.index_of(s.BACKENDS, recipe.backend, "backend")
        desc.device = device.index if device.type == "cuda" else -1
        desc.ring_transport = transport_number(options.ring_transport, "ring_transport")
        desc.ulysses_transport = transport_number(options.ulysses_transport, "ulysses_transport")
        if self._callbacks is not None:
            desc.allocator, desc.release_scratch = self._callbacks, True
        comm.call(lib().usp_engine_create, ctypes.byref(desc), comm.handle, ctypes.byref(self._engine))
        self._number = next(_numbers)
        _open[self._number] = self
        if self.rank == 0:
            for note in self.notes():
                warnings.warn(f"usp: {note}", stacklevel=3)

    # ---- making one -----------------------------------------------------------------------------------------

    @classmethod
    def create(cls, device_mesh=None, *, plan=None, ring: int | None = None, ulysses: int | None = None,
               layout: str | None = None, method: str | None = None, dkv_return: str | None = None,
               backend: str = "auto", ring_transport: str = "auto", ulysses_transport: str = "auto",
               keep_entry: bool | None = None, gated: bool | None = None, gate_phases: int | None = None,
               capacity_tokens: int | None = None, watchdog_s: float = 60.0, check: bool | None = None, forward_only: bool = False) -> "Mesh":
        """Collective over the mesh.

        device_mesh: a DeviceMesh with the dimensions ("ring", "ulysses"), in this order; or one dimension, whose
        ranks `ring` and `ulysses` then split; None: one rank. Its groups are used here only, to exchange an
        address. plan: a plan file's path or text, or a planner's Candidate, which fixes ring, ulysses, layout,
        method, dkv_return, keep_entry, gated and gate_phases. layout: zigzag (default), contiguous, striped or balanced; method:
        ring (default), ring_direct or all_gather_kv; double_ring comes with a plan, which has its inner ring;
        dkv_return: circulate, direct or cycle;
        backend: auto is cpu, and on GPUs the plan's where it loads, else cudnn where that does (on compute capability
        9.0 its backward), else mma; *_transport: copy_engine or nccl, auto
        is copy_engine; keep_entry: backward reuses q, k, v as forward exchanged them (True), or exchanges them
        again; gated: method all_gather_kv attends remote keys in one call with the own ones, which awaits each block
        as it lands (its gain has not been measured), forward in gate_phases calls (1 to 4: the own block, then growing lists
        of remote ones); capacity_tokens: refuse longer steps (None: any length); watchdog_s: a wait for another rank that
        lasts longer ends the job; check: compare layer, sinks and seed among ranks before each forward (None:
        on CPUs); forward_only: the workspace is forward's alone, and backward is refused. Raises UsageError, DisagreementError where ranks pass different options, CommunicationError.
        """
        from ._bootstrap import device_of, meet, mesh_degrees

        recipe = recipe_of(plan, dict(ring=ring, ulysses=ulysses, layout=layout, method=method,
                                       dkv_return=dkv_return, keep_entry=keep_entry, gated=gated,
                                       gate_phases=gate_phases))
        device = device_of(device_mesh)
        asked = (ring, ulysses) if plan is None else (recipe.ring, recipe.ulysses)
        recipe = dataclasses.replace(recipe, **dict(zip(("ring", "ulysses"), mesh_degrees(device_mesh, *asked))))
        options = options_of(recipe, device, backend=backend, ring_transport=ring_transport,
                           ulysses_transport=ulysses_transport, capacity_tokens=capacity_tokens,
                           watchdog_s=watchdog_s, check=check, forward_only=forward_only)
        comm, seed = meet(device_mesh, options)
        return cls(comm, options, device, seed)

    @classmethod
    def from_env(cls, ring: int, ulysses: int, *, device: str = "cpu", **options) -> "Mesh":
        """Collective over all processes that torchrun started, by its variables; needs no process group.
        device: "cpu", or "cuda" for the current GPU; options: as create's. Raises as create, and EnvironmentFault
        without GPUs for "cuda"."""
        _check.known("Mesh.from_env", options, ("plan", *RECIPE_OPTIONS, *OTHER_OPTIONS))
        recipe = recipe_of(options.pop("plan", None), dict(
            ring=ring, ulysses=ulysses, **{name: options.pop(name, None) for name in RECIPE_OPTIONS}))
        place = torch.device("cpu")
        if _check.word("device", device, ("cpu", "cuda")) == "cuda":
            if not torch.cuda.is_available():
                raise EnvironmentFault("device is 'cuda' and torch sees no GPU here; give 'cpu', or run where one is")
            place = torch.device("cuda", torch.cuda.current_device())
        made = options_of(recipe, place, **options)
        comm = Comm.launched(made.watchdog_s)
        seed = ctypes.c_uint64(secrets.randbits(63))
        comm.call(lib().usp_comm_broadcast, comm.handle, ctypes.byref(seed), ctypes.sizeof(seed), 0)
        return cls(comm, made, place, seed.value)

    # ---- batches --------------------------------------------------------------------------------------------

    def batch(self, *, cut=None, cu_seqlens: Sequence[int] | None = None, position_ids=None,
              tokens: int | None = None, seed: int | None = None) -> Batch:
        """Collective (an agreement on the control connections, no GPU work): the documents of one step.

        Exactly one of cut (what a Sharder returned), cu_seqlens (integers or a CPU tensor, 0 to the step's
        tokens), position_ids (a CPU tensor of the whole sample, rows end to end) and tokens (one document).
        seed: of dropout, the same on all ranks; None: another one for each batch. Raises DisagreementError
        where ranks bring other documents, samples or seeds, InvalidInput for documents out of order.
        """
        given = [name for name, value in dict(cut=cut, cu_seqlens=cu_seqlens, position_ids=position_ids,
                                              tokens=tokens).items() if value is not None]
        if len(given) != 1:
            raise UsageError(f"batch takes exactly one of cut, cu_seqlens, position_ids and tokens, and was given "
                             f"{', '.join(given) or 'none'}")
        row_starts: tuple[int, ...] = (0,)
        if cut is not None:
            _check.instance("cut", cut, Cut, "what a Sharder returned beside the part")
            cu, row_starts = _check.borders("cut.cu_seqlens", cut.cu_seqlens), _row_starts(cut)
            digest = _check.integer("cut.digest", cut.digest, 0, 2**64 - 1)
        elif position_ids is not None:
            cu, row_starts = cu_seqlens_of_positions(position_ids)
        elif tokens is not None:
            cu = (0, _check.integer("tokens", tokens, 1, of="the tokens of the one document"))
        else:
            cu = _check.borders("cu_seqlens", cu_seqlens)
        seed = _mixed(self._seed, self._batches) if seed is None else _check.integer("seed", seed, -2**63, 2**64 - 1)
        documents = self._documents(cu)
        if cut is not None:
            self._comm.call(lib().usp_engine_agree, self._engine, b"sample", digest)
        self._batches += 1
        handle = ctypes.c_void_p()
        self._comm.call(lib().usp_batch_create, self._engine, documents.borders, documents.count, seed & (2**64 - 1),
                        ctypes.byref(handle))
        return Batch(BatchState(self, handle, documents, row_starts, self._batches))

    def _documents(self, cu_seqlens: tuple[int, ...]) -> Documents:
        """Those of these borders among the last ones, found without a hash of all borders."""
        with self._one_lookup:
            at = next((i for i, known in enumerate(self._recent) if known.cu_seqlens == cu_seqlens), None)
            found = Documents(self, cu_seqlens) if at is None else self._recent.pop(at)
            self._recent.insert(0, found)
            del self._recent[_KEPT:]
        return found

    # ---- calls ----------------------------------------------------------------------------------------------

    @property
    def engine(self) -> ctypes.c_void_p:
        return self._engine

    def call(self, function, *arguments) -> None:
        """Runs a function of the library on this mesh; raises what it reports, and UsageError while another
        thread's call runs."""
        if not self._one_call.acquire(blocking=False):
            raise UsageError("another thread's call runs on this mesh; a mesh takes one call at a time, in the same order "
                             "on every rank: call from one thread, or make a mesh for each")
        try:
            self._comm.call(function, *arguments)
        finally:
            self._one_call.release()

    def plan(self, terms: Terms, shape: Shape, prune: bool) -> Plan:
        """Local; made at first use."""
        key = (terms, shape, prune)
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = Plan(self.recipe, *key, self.options.capacity_tokens)
        return found

    def compare(self, call: Call) -> None:
        """Collective where options.check is set: raises DisagreementError, on every rank, where one calls with another
        batch, layer or rules. All that differs is named."""
        if not self.options.check or self.size == 1:
            return
        mine = (ctypes.c_uint64 * 3)(call.batch.ordinal, call.layer & (2**64 - 1), call.plan.digest)
        everyone = (ctypes.c_uint64 * (3 * self.size))()
        self._comm.call(lib().usp_comm_all_gather, self._comm.handle, mine, everyone, ctypes.sizeof(mine))
        found = list(everyone)
        if found != list(mine) * self.size:
            self._name_difference([{"batch": found[at], "layer": found[at + 1], **rules} for at, rules in zip(
                range(0, len(found), 3), self._everyones(call.plan.rules))])

    def _everyones(self, mine: dict) -> list[dict]:
        """Collective: what each rank gave, by rank."""
        text = json.dumps(mine).encode()
        sizes = (ctypes.c_int64 * self.size)()
        size = ctypes.c_int64(len(text))
        self._comm.call(lib().usp_comm_all_gather, self._comm.handle, ctypes.byref(size), sizes, ctypes.sizeof(size))
        padded = torch.frombuffer(bytearray(text.ljust(max(sizes))), dtype=torch.uint8)
        return [json.loads(bytes(part.tolist())) for part in self.gather_bytes(padded)]

    @staticmethod
    def _name_difference(everyone: list[dict]) -> None:
        found = differences(everyone)
        raise DisagreementError(
            f"ranks call attention with different {shown(found, 'with')}; every rank makes the same calls in "
            "the same order", found[0].field, found[0].ranks)

    def gather_bytes(self, mine: "torch.Tensor") -> "list[torch.Tensor]":
        """Collective: a uint8 CPU tensor of each rank, all of one size, by rank."""
        if self.size == 1:
            return [mine]
        mine = _check.instance("mine", mine, torch.Tensor, "a uint8 tensor on the CPU").contiguous()
        everyone = torch.empty((self.size, mine.numel()), dtype=torch.uint8)
        self._comm.call(lib().usp_comm_all_gather, self._comm.handle, mine.data_ptr() or None,
                        everyone.data_ptr() or None, mine.numel())
        return list(everyone)

    def broadcast_bytes(self, mine: bytes, root: int) -> bytes:
        """Collective: what rank `root` gave."""
        _check.instance("mine", mine, bytes, "bytes")
        root = _check.integer("root", root, 0, self.size - 1, of="a rank of the mesh")
        size = ctypes.c_int64(len(mine))
        self._comm.call(lib().usp_comm_broadcast, self._comm.handle, ctypes.byref(size), ctypes.sizeof(size), root)
        data = ctypes.create_string_buffer(mine if self.rank == root else b"", size.value)
        self._comm.call(lib().usp_comm_broadcast, self._comm.handle, data, size.value, root)
        return data.raw

    # ---- properties -----------------------------------------------------------------------------------------

    def notes(self) -> list[str]:
        """Local: what the making of the transports found out that the user should know."""
        text = ctypes.c_char_p()
        self._comm.call(lib().usp_engine_notes, self._engine, ctypes.byref(text))
        return [line for line in (text.value or b"").decode().splitlines() if line]

    def memory(self, batch: Batch | None = None) -> dict[str, int]:
        """Local: bytes of the workspace that calls use in turn, the greatest so far (on GPUs a call takes what peers do not
        reach of it from torch's allocator, and gives it back), and of a batch what the calls so far plan for it:
        workspace, and what one forward saves in torch's memory until its backward."""
        self._comm.require_open()
        if batch is not None:
            _check.instance("batch", batch, Batch, "what Mesh.batch returns, or None")
        found = {"workspace_bytes": lib().usp_engine_workspace_bytes(self._engine)}
        if batch is not None:
            sizes = [batch._state.sizes(plan) for (terms, shape, _), plan in list(self._plans.items())
                     if plan is batch._state.plan(terms, shape)]
            found["planned_workspace_bytes"] = max((size.workspace_bytes for size in sizes), default=0)
            found["saved_bytes_per_forward"] = max((size.saved_bytes for size in sizes), default=0)
        return found

    def exchanged(self, batch: Batch, terms: Terms, shape: Shape, backward: bool = False) -> dict[str, int]:
        """Local: bytes that the last call with this batch, rules and shape was planned to send and receive on
        this rank, and those it did."""
        _check.instance("batch", batch, Batch, "what Mesh.batch returns")
        _check.instance("terms", terms, Terms, "Terms, the rules of the call")
        _check.instance("shape", shape, Shape, "Shape, of the call's tensors")
        record = s.PassRecord()
        self._comm.call(lib().usp_batch_record, self._engine, batch._state.plan(terms, shape).handle, batch._state.handle,
                        s.BACKWARD if _check.flag("backward", backward) else s.FORWARD, ctypes.byref(record))
        return {name: getattr(record, name) for name in ("planned_sent", "planned_received", "executed_sent",
                                                         "executed_received", "equal")}

    def abort(self, reason: str) -> None:
        """Local: ends the job; every rank's waiting or next call raises CommunicationError with the reason."""
        self._comm.abort(_check.instance("reason", reason, str, "a text that says why"))

    def close(self) -> None:
        """Collective, and nothing where it is closed already or in a forked child."""
        _open.pop(self._number, None)
        if not self._comm.open:
            return
        lib().usp_engine_destroy(self._engine)
        self._engine = ctypes.c_void_p()
        self._plans.clear()
        self._comm.close()

    def __enter__(self) -> "Mesh":
        return self

    def __exit__(self, kind, error, trace) -> None:
        if error is not None:
            self.abort(f"rank {self.rank}: {kind.__name__}: {error}")
        self.close()

    def __repr__(self) -> str:
        return (f"Mesh(ring={self.ring}, ulysses={self.ulysses}, rank={self.rank}, layout={self.recipe.layout!r}, "
                f"method={self.recipe.method!r})")


# Until they are closed, in the order of their making, which is the same on every rank, as closing is collective.
_numbers = itertools.count()
_open: "dict[int, Mesh]" = {}


@atexit.register
def _close_all() -> None:
    """Closes the meshes that are open at exit; aborts them first where an unhandled exception ends the program."""
    for _, mesh in sorted(_open.items()):
        if interpreter_exits_by_error():
            mesh.abort(f"rank {mesh.rank} ended by an unhandled exception")
        mesh.close()


def _row_starts(cut: Cut) -> tuple[int, ...]:
    found = _check.integers("cut.row_starts", cut.row_starts)
    if not {*found} <= {*cut.cu_seqlens[:-1]} or found[:1] != (0,) or [*found] != sorted({*found}):
        raise UsageError(f"cut.row_starts is {_check.shown(found)}; it holds the first token of each sample row, from 0 on, "
                         "each where a document begins")
    return found


def _mixed(seed: int, number: int) -> int:
    """splitmix64 of a seed and a number: the same on every rank, another one for each number."""
    x = (seed + (number + 1) * 0x9E3779B97F4A7C15) & (2**64 - 1)
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return x ^ (x >> 31)


def _callbacks(device) -> "s.Allocator | None":
    """torch's caching allocator for what a call needs while it runs; what peers open is the library's own."""
    if device.type != "cuda":
        return None
    return s.Allocator(
        allocate=s.Allocate(lambda _, size, index, stream: _allocate(size, index, stream)),
        release=s.Release(lambda _, memory, size, index, stream: torch.cuda.caching_allocator_delete(memory)),
        release_unused=s.ReleaseUnused(lambda _: torch.cuda.empty_cache()))


def _allocate(size: int, index: int, stream: int | None) -> int:
    try:
        return torch.cuda.caching_allocator_alloc(size, index, 0 if stream == s.DEFAULT_STREAM else stream or 0)
    except BaseException:  # none may pass through C, where null means no room: the library reports it
        return 0
