# SPDX-License-Identifier: Apache-2.0
"""transformers.Trainer, and whatever derives from it, on whole samples that the mesh's ranks share."""

from __future__ import annotations

import transformers
import transformers.trainer
from accelerate import skip_first_batches
from accelerate.data_loader import BatchSamplerShard

from .. import _check
from .._library import import_torch
from .._options import CREATE_OPTIONS
from ..data import SHARDER_KEYS
from ..errors import EnvironmentFault, UsageError
from ..loader import Loader
from ..mesh import Mesh
from .prepared import Prepared, prepare


torch = import_torch()


class _OnMesh:
    """What a Trainer needs on a mesh: its loaders deal samples, and what assumes whole sequences is refused."""

    sp: Prepared

    def _share(self, sp: Prepared, loader_keys: dict | None) -> None:
        self.sp, self.loader_keys = sp, loader_keys or {}
        self._check()

    def _check(self) -> None:
        args = self.args
        config = getattr(args, "parallelism_config", None)
        if config is not None and (config.cp_size > 1 or config.sp_size > 1):
            raise UsageError("args.parallelism_config has cp_size or sp_size above 1, which divides the loss once more; "
                             "usp's mesh takes their place: leave them at 1")
        if not self.model_accepts_loss_kwargs:
            raise UsageError(f"{type(self.model).__name__} takes no num_items_in_batch, so its loss would be a mean over "
                             "one rank's tokens; use a model whose forward has **kwargs")
        if args.label_smoothing_factor:
            raise UsageError("label_smoothing_factor shifts labels by itself, after they were cut; set it to 0")
        if self.compute_metrics is not None and not args.prediction_loss_only:
            raise UsageError("compute_metrics would see one rank's logits; put them together by usp.unshard in a "
                             "training step of your own, or leave it out")
        if not args.average_tokens_across_devices:
            raise UsageError("average_tokens_across_devices is False: each rank's loss would be a mean over its own "
                             "tokens; set it to True")
        args.prediction_loss_only = True

    def get_train_dataloader(self):
        return self._loader(super().get_train_dataloader())

    def get_eval_dataloader(self, eval_dataset=None):
        return self._loader(super().get_eval_dataloader(eval_dataset))

    def get_test_dataloader(self, test_dataset):
        return self._loader(super().get_test_dataloader(test_dataset))

    def evaluation_loop(self, *args, **kwargs):
        # Not gather_for_metrics: it drops losses of ranks as those of repeated samples; here each has a share of all.
        self.gather_function = self.accelerator.gather
        return super().evaluation_loop(*args, **kwargs)

    def _loader(self, loader) -> "_DealtLoader":
        if getattr(loader, "device", None) is not None:
            loader.device = None  # accelerate's: samples stay on the host until they are cut
        return _DealtLoader(loader, self.sp.mesh, source="each", num_items=False, **self.loader_keys)


class _DealtLoader(Loader):
    """A loader that accelerate dealt to processes, dealt to meshes instead, each of which is one process to accelerate:
    it repeats samples until all processes have as many, and a mesh would train on those again."""

    def __init__(self, loader, mesh: Mesh, **options):
        super().__init__(loader, mesh, **options)
        sampler = getattr(loader, "batch_sampler", None)
        self._batches = None
        if isinstance(sampler, BatchSamplerShard) and not sampler.split_batches:
            meshes, index = (1, 0) if sampler.num_processes == mesh.size else _index_of(mesh)
            self._batches = deal(sampler, meshes, index, mesh.size, mesh.rank)

    def __len__(self) -> int:
        return super().__len__() if self._batches is None else len(self._batches)


class _MeshBatches(BatchSamplerShard):
    """One mesh's batches of all meshes'."""

    @property
    def sampler(self):
        """accelerate sets its epoch."""
        return self.batch_sampler.sampler


def deal(sampler: BatchSamplerShard, meshes: int, index: int, size: int, rank: int):
    """Local: makes a process's sampler that of a rank of mesh `index` of `meshes`, and returns all batches of the mesh,
    each of which one of its ranks loads."""
    batches = sampler.batch_sampler
    if meshes > 1:
        batches = _MeshBatches(batches, meshes, index, even_batches=sampler.even_batches)
    sampler.batch_sampler, sampler.even_batches, sampler.drop_last = batches, False, False
    sampler.num_processes, sampler.process_index = size, rank
    return batches


def _index_of(mesh: Mesh) -> tuple[int, int]:
    """Collective over all processes: how many meshes there are, and which of them this is."""
    own = int(mesh.broadcast_bytes(b"%d" % torch.distributed.get_rank(), 0))  # by its first process
    firsts: list = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(firsts, own)
    meshes = sorted(set(firsts))
    return len(meshes), meshes.index(own)


class Trainer(_OnMesh, transformers.Trainer):
    """Trainer whose every loader deals samples to the mesh: usp.hf.Trainer(sp, model=model, args=args, ...).

    Each process loads its own samples, as Trainer has it, and all ranks of a mesh train on each in turn: a step sees
    per_device_train_batch_size x gradient_accumulation_steps samples per mesh. Losses are means over all valid tokens of
    all processes (average_tokens_across_devices). It resumes by loading and dropping what was trained on. Refuses a
    parallelism_config with cp or sp above 1, models without loss kwargs, label_smoothing_factor, and compute_metrics,
    whose logits would be one rank's. keys: loader_keys=dict(...) as Sharder's.
    """

    def __init__(self, sp: Prepared, *args, loader_keys: dict | None = None, **kwargs):
        _check.instance("sp", sp, Prepared, "what usp.hf.prepare returned")
        _check_keys(loader_keys)
        super().__init__(*args, **kwargs)
        self._share(sp, loader_keys)


def on_mesh(trainer: type, device_mesh=None, *, loader_keys: dict | None = None, **mesh_options) -> type:
    """A Trainer class of another library (trl's SFTTrainer) that does what usp.hf.Trainer does:

        SFTTrainer = usp.hf.on_mesh(SFTTrainer, mesh["ring", "ulysses"])

    Its instances prepare their model, as prepare(model, device_mesh, **mesh_options), once they have it.
    """
    if not isinstance(trainer, type) or not issubclass(trainer, transformers.Trainer):
        raise UsageError(f"trainer is {_check.shown(trainer)}; it must be a class that derives from transformers.Trainer")
    if issubclass(trainer, _OnMesh):
        raise UsageError(f"{trainer.__name__} is on a mesh already; give the Trainer it was made of")
    _check_keys(loader_keys)
    _check.known("on_mesh", mesh_options, ("layer_ids", *CREATE_OPTIONS))

    class OnMesh(_OnMesh, trainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self._share(prepare(self.model, device_mesh, **mesh_options), loader_keys)

    OnMesh.__name__, OnMesh.__qualname__, OnMesh.__doc__ = trainer.__name__, trainer.__qualname__, trainer.__doc__
    return OnMesh


def _check_keys(loader_keys: dict | None) -> None:
    if loader_keys is not None:
        _check.known("loader_keys", _check.mapping("loader_keys", loader_keys, "a dict, or None"), SHARDER_KEYS)


def _skip_first_batches(loader, batches: int):
    if not isinstance(loader, _DealtLoader):
        return skip_first_batches(loader, batches)
    loader.skip(batches)
    return loader


# By which Trainer resumes within an epoch; accelerate's own builds a loader anew, which would know of no mesh.
if not hasattr(transformers.trainer, "skip_first_batches"):
    raise EnvironmentFault(f"transformers {transformers.__version__} resumes training in a way that usp.hf.Trainer does not "
                           "know; use transformers 5.17, or usp.hf.prepare with a loop of your own")
transformers.trainer.skip_first_batches = _skip_first_batches
