# SPDX-License-Identifier: Apache-2.0
"""Whole samples in, each rank's part of them out: before sharding everything is decided, after it nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from . import _check
from . import _structs as s
from ._documents import check_ids, cu_seqlens_of_positions
from ._library import import_torch
from .batch import Batch, tokens_tensor
from .errors import InvalidInput, UsageError
from .layout import layout_tokens

if TYPE_CHECKING:
    from .mesh import Mesh

torch = import_torch()

SHARDER_KEYS = ("labels", "sequence_keys", "pass_keys")

IGNORE = -100
"""The label of a token without a target."""
_LENGTH_KEYS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")


class Cut(NamedTuple):
    """What was cut: the documents and sample rows of a step (token counts from 0), how many of all its tokens have a
    target, and a digest of the sample. The same on every rank; Mesh.batch takes it."""

    cu_seqlens: tuple[int, ...]
    row_starts: tuple[int, ...]
    valid_labels: int
    digest: int


class Sharder:
    """Cuts a whole sample to a rank's part: pure and picklable, for collate functions in workers.

    The rows of [B, S] are laid end to end; tokens whose attention_mask is 0 are dropped, never masked. Documents are
    those of cu_seq_lens_q, else of position_ids, else the rows. Labels are shifted once, before cutting, and are -100
    at each document's last token. Returns ({input_ids, position_ids, labels, shift_labels, ...} of shape [1, m], Cut);
    labels and shift_labels are both the shifted ones.

    labels: key of the labels; sequence_keys: further tensors [B, S, ...] to cut; pass_keys: tensors to pass on whole.
    Any other tensor with an axis as long as the sequence raises UsageError; documents that contradict one another
    raise InvalidInput.
    """

    def __init__(self, ring: int, ulysses: int, rank: int, layout: str = "zigzag", *, labels: str = "labels",
                 sequence_keys: Sequence[str] = (), pass_keys: Sequence[str] = ()):
        for name, degree in (("ring", ring), ("ulysses", ulysses)):
            _check.integer(name, degree, 1, s.INT32_MAX, of="a number of ranks")
        _check.integer("rank", rank, 0, ring * ulysses - 1, of=f"one of a mesh of ring {ring} x ulysses {ulysses}")
        self.ring, self.ulysses, self.rank = ring, ulysses, rank
        self.layout = _check.word("layout", layout, s.LAYOUTS)
        self.labels = _check.instance("labels", labels, str, "the key of the labels, such as 'labels'")
        self.sequence_keys = _check.words("sequence_keys", sequence_keys)
        self.pass_keys = _check.words("pass_keys", pass_keys)

    @classmethod
    def of(cls, mesh: "Mesh", **keys) -> "Sharder":
        """For this rank of a mesh."""
        _check.known("Sharder", keys, SHARDER_KEYS)
        return cls(mesh.ring, mesh.ulysses, mesh.rank, mesh.recipe.layout, **keys)

    def __call__(self, sample: Mapping) -> tuple[dict, Cut]:
        whole = _Whole(_check.mapping("sample", sample, "a dict of tensors, input_ids above all"), self)
        rows = tokens_tensor(layout_tokens(self.layout, whole.tokens, self.ring, self.ulysses, self.rank,
                                           whole.cu_seqlens))
        part = {name: x.index_select(x.ndim - 1 if name == "position_ids" else 1, rows.to(x.device))
                for name, x in whole.sequences.items()}
        part.update(whole.passed)
        return part, Cut(whole.cu_seqlens, whole.row_starts, whole.valid_labels, whole.digest)


class _Whole:
    """A sample with its rows end to end, without padding: sequences [1, T, ...], position_ids [..., T]."""

    def __init__(self, sample: Mapping, sharder: Sharder):
        self.batch, self.length = _shape(sample)
        for name in ("input_ids", "position_ids", "seq_idx", "shift_labels", sharder.labels):
            if sample.get(name) is not None:
                check_ids(name, sample[name])
        self.kept = self._kept(sample.get("attention_mask"))
        counts = self.kept.view(self.batch, self.length).sum(1).tolist()
        self.tokens = sum(counts)
        if self.tokens == 0:
            raise InvalidInput("the sample has no tokens: attention_mask drops all; leave it out of the data")
        self.row_starts = tuple(sum(counts[:i]) for i in range(self.batch) if counts[i])
        positions = self._positions(sample.get("position_ids"))
        self.cu_seqlens = self._documents(sample, positions)
        self.sequences = {"position_ids": positions}
        self.passed: dict = {}
        for name, value in sample.items():
            self._take(name, value, sharder)
        self._shift_labels(sample, sharder.labels)
        self.digest = self._digest()

    def _kept(self, mask):
        """[B * S]: tokens that are no padding."""
        if mask is None:
            return torch.ones(self.batch * self.length, dtype=torch.bool)
        _check.instance("attention_mask", mask, torch.Tensor, f"a tensor [{self.batch}, {self.length}]")
        if tuple(mask.shape) != (self.batch, self.length):
            raise UsageError(f"attention_mask has the shape {tuple(mask.shape)}; usp takes [{self.batch}, {self.length}]"
                             " with 0 for padding, which it drops: other masks follow from documents and the model's "
                             "layers")
        return mask.bool().flatten().cpu()

    def _rows(self, x):
        """[B, S, ...] to [1, T, ...]."""
        return x.flatten(0, 1)[self.kept.to(x.device)][None]

    def _same_shape(self, name: str, value):
        """The value, where it is [B, S, ...]."""
        _check.instance(name, value, torch.Tensor, f"a tensor [{self.batch}, {self.length}, ...], to be cut")
        if tuple(value.shape[:2]) != (self.batch, self.length):
            raise UsageError(f"{name} has the shape {tuple(value.shape)}; to be cut it is [{self.batch}, "
                             f"{self.length}, ...]")
        return value

    def _positions(self, ids):
        if ids is None:
            ids = torch.arange(self.length).expand(self.batch, self.length)
        if ids.ndim == 1:
            ids = ids[None]
        if ids.shape[-1] != self.length or ids.ndim > 3 or ids.shape[-2] not in (1, self.batch):
            raise InvalidInput(f"position_ids has the shape {tuple(ids.shape)}; it must be [{self.batch}, {self.length}], "
                               "as the sample's tokens, or have an axis before")
        ids = ids.expand(*ids.shape[:-2], self.batch, self.length)
        return ids.flatten(-2)[..., self.kept.to(ids.device)].unsqueeze(-2)

    def _documents(self, sample: Mapping, positions) -> tuple[int, ...]:
        own = {*self.row_starts, self.tokens}
        given = sample.get("cu_seq_lens_q")
        if given is not None:
            kept_before = [0, *self.kept.cumsum(0).tolist()]
            borders = _check.integers("cu_seq_lens_q", given)
            if not borders or borders[0] != 0 or borders[-1] != len(self.kept) or [*borders] != sorted(borders):
                raise InvalidInput(f"cu_seq_lens_q is {_check.shown(borders)}; it must rise from 0 to the sample's "
                                   f"{len(self.kept)} tokens")
            own |= {kept_before[border] for border in borders}
        elif sample.get("position_ids") is not None:
            if positions.ndim > 2:
                raise InvalidInput("position_ids have several axes, which do not say where documents begin; give "
                                   "cu_seq_lens_q")
            for begin, end in zip(self.row_starts, (*self.row_starts[1:], self.tokens)):
                own |= {begin + cut for cut in cu_seqlens_of_positions(positions[0, begin:end].cpu())[0]}
        cu = tuple(sorted(own))
        other = sample.get("cu_seq_lens_k")
        if other is not None and given is not None and _check.integers("cu_seq_lens_k", other) != borders:
            raise InvalidInput("cu_seq_lens_k differs from cu_seq_lens_q; a sample has one list of documents")
        if sample.get("seq_idx") is not None:
            found = self._same_shape("seq_idx", sample["seq_idx"]).flatten()[self.kept]
            starts = (torch.nonzero(found[1:] != found[:-1]).flatten() + 1).tolist()
            if not {*starts} <= {*cu}:
                raise InvalidInput("seq_idx has documents that cu_seq_lens_q or position_ids do not have; give one of "
                                   "them, or make them agree")
        return cu

    def _take(self, name: str, value, sharder: Sharder) -> None:
        if name in ("attention_mask", "position_ids", "shift_labels", sharder.labels, *_LENGTH_KEYS):
            return
        if value is not None and name in ("input_ids", "inputs_embeds", *sharder.sequence_keys):
            self.sequences[name] = self._rows(self._same_shape(name, value))
        elif (isinstance(value, torch.Tensor) and name not in sharder.pass_keys and
              {self.length, self.batch * self.length} & {*value.shape} - {1}):
            raise UsageError(f"{name} has the shape {tuple(value.shape)}, with an axis as long as the sequence: name it "
                             "in sequence_keys to cut it, or in pass_keys to pass it on whole")
        else:
            self.passed[name] = value

    def _shift_labels(self, sample: Mapping, name: str) -> None:
        """Targets: each token's next one in its document."""
        shifted, labels = sample.get("shift_labels"), sample.get(name)
        if shifted is not None:
            targets = self._rows(self._same_shape("shift_labels", shifted)).clone()
        elif labels is not None:
            targets = torch.nn.functional.pad(self._rows(self._same_shape(name, labels))[:, 1:], (0, 1), value=IGNORE)
        else:
            self.valid_labels = 0
            return
        targets[0, torch.tensor(self.cu_seqlens[1:]) - 1] = IGNORE
        self.valid_labels = int((targets != IGNORE).sum())
        self.sequences[name] = self.sequences["shift_labels"] = targets

    def _digest(self) -> int:
        found = hashlib.blake2b(repr((self.cu_seqlens, self.row_starts)).encode(), digest_size=8)
        for name, x in sorted(self.sequences.items()):
            found.update(name.encode())
            found.update(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return int.from_bytes(found.digest(), "little")


def _shape(sample: Mapping) -> tuple[int, int]:
    for name in ("input_ids", "inputs_embeds"):
        if sample.get(name) is not None:
            _check.instance(name, sample[name], torch.Tensor, "a tensor of torch: [batch, tokens]")
            if sample[name].ndim < 2:
                raise UsageError(f"{name} has the shape {tuple(sample[name].shape)}; a sample has rows: [batch, tokens]")
            return sample[name].shape[0], sample[name].shape[1]
    raise UsageError(f"the sample has the keys {', '.join(map(str, sample))}; it needs input_ids or inputs_embeds")


def shard(sample: Mapping, mesh: "Mesh", **keys) -> tuple[dict, Batch]:
    """Collective: this rank's part of a sample that all ranks of the mesh have, on the mesh's device, and its batch.
    keys: as Sharder's. Raises DisagreementError where the ranks have different samples."""
    _check.instance("mesh", mesh, _mesh_type(), "a Mesh")
    part, cut = Sharder.of(mesh, **keys)(sample)
    return _to(part, mesh.device), mesh.batch(cut=cut)


def unshard(x, batch: Batch, *, dim: int = 1, dst: int | None = None):
    """Collective: rows of all ranks in token order, on rank `dst` (None elsewhere) or on all. No gradient.

    x: this rank's rows along `dim`; all ranks have the same other axes and type.
    """
    _check.instance("x", x, torch.Tensor, "a tensor of torch")
    mesh = _check.instance("batch", batch, Batch, "what Mesh.batch returns").mesh
    if x.ndim == 0:
        raise UsageError("x has no axis; it holds this rank's rows along axis dim")
    dim = _check.integer("dim", dim, -x.ndim, x.ndim - 1, of="an axis of x")
    if dst is not None:
        dst = _check.integer("dst", dst, 0, mesh.size - 1, of="a rank of the mesh; None: all")
    rows = x.detach().movedim(dim, 0).contiguous().cpu()
    everyone = [tokens_tensor(layout_tokens(mesh.recipe.layout, batch.tokens, mesh.ring, mesh.ulysses, rank, batch.cu_seqlens))
                for rank in range(mesh.size)]
    if len(rows) != len(everyone[mesh.rank]):
        raise UsageError(f"x has {len(rows)} rows along axis {dim}, this rank's part of the batch "
                         f"{len(everyone[mesh.rank])}")
    most = max(map(len, everyone))
    mine = torch.zeros((most, *rows.shape[1:]), dtype=rows.dtype)
    mine[: len(rows)] = rows
    parts = mesh.gather_bytes(mine.flatten().view(torch.uint8))
    if dst is not None and mesh.rank != dst:
        return None
    whole = torch.empty((batch.tokens, *rows.shape[1:]), dtype=rows.dtype)
    for rank, tokens in enumerate(everyone):
        whole[tokens] = parts[rank].view(rows.dtype).view(most, *rows.shape[1:])[: len(tokens)]
    return whole.movedim(0, dim).to(x.device)


def _mesh_type() -> type:
    from .mesh import Mesh  # which imports this

    return Mesh


def _to(part: Mapping, device) -> dict:
    return {name: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
            for name, value in part.items()}
