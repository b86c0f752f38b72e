# SPDX-License-Identifier: Apache-2.0
"""transformers.Trainer, and whatever derives from it, on whole samples that the mesh's ranks share."""

from __future__ import annotations

import transformers

from ..errors import UsageError
from ..loader import Loader
from .prepared import Prepared, prepare


class _OnMesh:
    """What a Trainer needs on a mesh: its loaders deal samples, and what assumes whole sequences is refused."""

    sp: Prepared

    def _share(self, sp: Prepared, loader_keys: dict | None) -> None:
        self.sp, self.loader_keys = sp, loader_keys or {}
        self._train_loader: Loader | None = None
        self._check()
        self._ignore_data_skip, self.args.ignore_data_skip = self.args.ignore_data_skip, True
        self.add_callback(_SkipTrained(self))

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
        self._train_loader = self._loader(super().get_train_dataloader())
        return self._train_loader

    def get_eval_dataloader(self, eval_dataset=None):
        return self._loader(super().get_eval_dataloader(eval_dataset))

    def get_test_dataloader(self, test_dataset):
        return self._loader(super().get_test_dataloader(test_dataset))

    def _loader(self, loader) -> Loader:
        return Loader(loader, self.sp.mesh, source="each", num_items=False, **self.loader_keys)


class Trainer(_OnMesh, transformers.Trainer):
    """Trainer whose every loader deals samples to the mesh: usp.hf.Trainer(sp, model=model, args=args, ...).

    Each process loads its own samples, as Trainer has it, and all ranks of a mesh train on each in turn: a step sees
    per_device_train_batch_size x gradient_accumulation_steps samples per mesh. Losses are means over all valid tokens of
    all processes (average_tokens_across_devices). It resumes by loading and dropping what was trained on. Refuses a
    parallelism_config with cp or sp above 1, models without loss kwargs, label_smoothing_factor, and compute_metrics,
    whose logits would be one rank's. keys: loader_keys=dict(...) as Sharder's.
    """

    def __init__(self, sp: Prepared, *args, loader_keys: dict | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self._share(sp, loader_keys)


def on_mesh(trainer: type, device_mesh=None, *, loader_keys: dict | None = None, **mesh_options) -> type:
    """A Trainer class of another library (trl's SFTTrainer) that does what usp.hf.Trainer does:

        SFTTrainer = usp.hf.on_mesh(SFTTrainer, mesh["ring", "ulysses"])

    Its instances prepare their model, as prepare(model, device_mesh, **mesh_options), once they have it.
    """
    if not issubclass(trainer, transformers.Trainer):
        raise UsageError(f"{trainer.__name__} does not derive from transformers.Trainer")

    class OnMesh(_OnMesh, trainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self._share(prepare(self.model, device_mesh, **mesh_options), loader_keys)

    OnMesh.__name__, OnMesh.__qualname__, OnMesh.__doc__ = trainer.__name__, trainer.__qualname__, trainer.__doc__
    return OnMesh


class _SkipTrained(transformers.TrainerCallback):
    """accelerate's skip_first_batches would build a loader without the mesh; the Loader skips instead."""

    def __init__(self, trainer: _OnMesh):
        self._trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        loader = self._trainer._train_loader
        if loader is None or self._trainer._ignore_data_skip or state.global_step == 0:
            return
        parts_per_step = args.gradient_accumulation_steps
        steps_per_epoch = max(len(loader) // parts_per_step + (len(loader) % parts_per_step > 0), 1)
        loader.skip(state.global_step % steps_per_epoch * parts_per_step)
