# SPDX-License-Identifier: Apache-2.0
"""A transformers model on a mesh in one call."""

from __future__ import annotations

import contextlib

from .. import _check
from .._library import import_torch
from .._options import CREATE_OPTIONS
from ..batch import Batch
from ..errors import UsageError
from ..loader import BATCH_KEY, Loader
from ..loss import averaged_ranks
from ..mesh import Mesh
from .attention import OFF, Registration, register
from .checks import check_model, check_replicas

torch = import_torch()


class Prepared:
    """A model whose attention runs on `mesh`; made by `prepare`."""

    def __init__(self, model, mesh: Mesh, registration: Registration):
        self.model, self.mesh, self.registration = model, mesh, registration
        self._former = _implementation(model)
        model._usp_prepared = True
        self._hook = model.register_forward_pre_hook(self._take_batch, with_kwargs=True)
        self._set(registration.name)

    def loader(self, loader, **options) -> Loader:
        """This rank's parts of the whole samples of `loader`, which the model takes: model(**part). options: as
        Loader's."""
        made = Loader(loader, self.mesh, **options)
        if made.num_items:
            check_replicas(self.model, averaged_ranks(made.average_over))
        return made

    @contextlib.contextmanager
    def off(self):
        """Within it the model has its former attention and sees whole samples (to generate, to compare)."""
        self._set(self._former)
        try:
            yield self.model
        finally:
            self._set(self.registration.name)

    def remove(self) -> None:
        """Local: gives the model back as it was; the mesh stays open."""
        self._hook.remove()
        del self.model._usp_prepared
        self._set(self._former)

    def _take_batch(self, _module, args, kwargs):
        """Before each forward: the batch that the part carries."""
        batch = kwargs.pop(BATCH_KEY, None)
        if batch is not None:
            _check.instance(BATCH_KEY, batch, Batch, "what sp.loader put there")
        if batch is not None and _implementation(self.model) != self.registration.name:
            raise UsageError("the model was given a part of sp.loader while sp.off() is on; call it outside")
        if batch is not None and batch.num_items is not None and "num_items_in_batch" in kwargs:
            kwargs["num_items_in_batch"] = batch.num_items  # FSDP2 casts its inputs, counts too, to 16 bits
        self.registration.batch = batch
        return args, kwargs

    def _set(self, name: str) -> None:
        """Of the text model alone where there are others (vision towers)."""
        text = _text_key(self.model)
        self.model.set_attn_implementation(name if text is None else {text: name})
        if _implementation(self.model) != name:
            raise UsageError(f"transformers did not take the attention {name!r} for {type(self.model).__name__}; it is "
                             "not supported")


def prepare(model, device_mesh=None, *, layer_ids: bool = True, **mesh_options) -> Prepared:
    """Collective over the mesh: runs the attention of a transformers model on it.

    device_mesh: as Mesh.create's (a DeviceMesh with the dimensions ring and ulysses), or a Mesh; mesh_options: as
    Mesh.create's, plan= above all. layer_ids False: see register. Composite models: the text model only. Sets
    use_cache False. Call it before compiling the model; before or after fully_shard. Raises UsageError for models
    that would compute something else on a shard: encoder-decoders, linear and recurrent layers, RoPE of types dynamic
    and longrope, prompt tuning, models without AttentionInterface.
    """
    check_model(model)
    if getattr(model, "_usp_prepared", False):
        raise UsageError("the model is prepared already, and a second mesh would take the first one's place in its layers; "
                         "use what prepare returned, or its remove() first")
    _check.flag("layer_ids", layer_ids)
    _check.known("prepare", mesh_options, CREATE_OPTIONS)
    if isinstance(device_mesh, Mesh):
        if mesh_options:
            raise UsageError(f"the mesh exists already and was given {', '.join(mesh_options)}; pass them to "
                             "Mesh.create")
        mesh = device_mesh
    else:
        mesh = Mesh.create(device_mesh, **mesh_options)
    for config in {id(c): c for c in (model.config, model.config.get_text_config(decoder=True))}.values():
        config.use_cache = False
    return Prepared(model, mesh, register(mesh, layer_ids=layer_ids))


def _implementation(model) -> str:
    return model.config.get_text_config(decoder=True)._attn_implementation


def _text_key(model) -> str | None:
    """The key of the text model's config within the model's, None where they are the same."""
    text = model.config.get_text_config(decoder=True)
    if text is model.config:
        return None
    for key in model.config.sub_configs:
        if getattr(model.config, key) is text:
            return key
    raise UsageError(f"{type(model).__name__} keeps its text model's config where usp does not find it; it is not "
                     f"supported. {OFF}")
