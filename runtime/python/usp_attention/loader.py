# SPDX-License-Identifier: Apache-2.0
"""A loader of whole samples as a loader of this rank's parts."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping

from . import _check
from ._library import import_torch
from .data import Sharder, _to
from .errors import DisagreementError
from .loss import averaged_ranks, valid_of_all
from .mesh import Mesh

torch = import_torch()

BATCH_KEY = "usp_batch"
"""Where a part carries its Batch; usp.hf takes it out before the model sees it."""


class Loader:
    """Iterates over parts {input_ids, position_ids, labels, shift_labels, ..., usp_batch} of the samples of `loader`.

    source: "same": every rank of the mesh yields the same samples (compared with the batch); "each": each rank brings
    its own and all train on each in turn (len is that of the loader times mesh.size; a rank that has no more brings none,
    and the others' go on).
    accumulate: so many parts are one optimizer step; with num_items each gets num_items_in_batch = valid targets of
    all of them, over all ranks, / the number of ranks that gradients are averaged over, by which the sum of losses is
    divided (num_items=False leaves that to Trainer). average_over: a ProcessGroup, None for the default group, or the
    number of ranks where they are those of the mesh. keys: as Sharder's.

    Collective; iterate on all ranks alike.
    """

    def __init__(self, loader: Iterable[Mapping], mesh: Mesh, *, source: str = "same", accumulate: int = 1,
                 average_over=None, num_items: bool = True, **keys):
        _check.iterable("loader", loader, "an iterable of whole samples, such as a DataLoader")
        _check.instance("mesh", mesh, Mesh, "a Mesh")
        _check.word("source", source, ("same", "each"))
        _check.integer("accumulate", accumulate, 1, of="the parts of an optimizer step")
        averaged_ranks(average_over)
        _check.flag("num_items", num_items)
        self.loader, self.mesh, self.source = loader, mesh, source
        self.accumulate, self.average_over, self.num_items = accumulate, average_over, num_items
        self.sharder = Sharder.of(mesh, **keys)
        self._skip = 0

    def __len__(self) -> int:
        return len(self.loader) * (self.mesh.size if self.source == "each" else 1)

    def __getattr__(self, name: str):
        if name in ("loader", "mesh"):  # while unpickling
            raise AttributeError(name)
        return getattr(self.loader, name)

    def skip(self, parts: int) -> None:
        """The next iteration begins after so many parts, which are loaded and dropped (to resume an epoch)."""
        self._skip = _check.integer("parts", parts, 0)

    def __iter__(self) -> Iterator[dict]:
        samples = self._samples()
        skip, self._skip = self._skip, 0
        for _ in range(skip):
            if next(samples, None) is None:
                return
        window: list[tuple[dict, object]] = []
        for sample in samples:
            part, cut = self.sharder(sample)
            window.append((part, cut))
            if len(window) == self.accumulate:
                yield from self._parts(window)
                window = []
        if window:
            yield from self._parts(window)

    def _parts(self, window) -> Iterator[dict]:
        extra = {}
        if self.num_items:
            valid = sum(cut.valid_labels for _, cut in window)
            ranks = averaged_ranks(self.average_over)
            total = valid_of_all(valid, self.mesh.size, self.average_over)
            extra["num_items_in_batch"] = torch.tensor(max(total, 1) / ranks, device=self.mesh.device)
        for part, cut in window:
            batch = self.mesh.batch(cut=cut)
            batch.num_items = extra.get("num_items_in_batch")
            yield {**_to(part, self.mesh.device), **extra, BATCH_KEY: batch}

    def _samples(self) -> Iterator[Mapping]:
        """Whole samples, the same on all ranks."""
        own = iter(self.loader)
        while True:
            sample = next(own, None)
            ended = [bool(flag[0]) for flag in self.mesh.gather_bytes(torch.tensor([sample is None],
                                                                                    dtype=torch.uint8))]
            if all(ended):
                return
            if self.source == "same":
                self._check_end(ended)
                yield sample
                continue
            for rank in (rank for rank in range(self.mesh.size) if not ended[rank]):
                yield _received(self.mesh, sample, rank)

    @staticmethod
    def _check_end(ended: list[bool]) -> None:
        if any(ended):
            ranks = tuple(rank for rank, end in enumerate(ended) if end)
            raise DisagreementError(
                f"the loader of rank(s) {', '.join(map(str, ranks))} ended before the others': with source='same' all "
                "ranks of a mesh load the same samples; give them one sampler, or use source='each'", "sample", ranks)


def _received(mesh: Mesh, sample: Mapping, root: int):
    """Collective: rank `root`'s sample."""
    if mesh.size == 1:
        return sample
    file = io.BytesIO()
    if mesh.rank == root:
        torch.save(dict(sample), file)
    content = mesh.broadcast_bytes(file.getvalue(), root)
    return sample if mesh.rank == root else torch.load(io.BytesIO(content), weights_only=True)
