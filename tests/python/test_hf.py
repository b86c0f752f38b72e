# SPDX-License-Identifier: Apache-2.0
"""transformers models on a mesh beside themselves unsharded: loss and every parameter's gradient."""

import itertools

import pytest
import torch
import usp_attention as usp
from families import FAMILIES, SMALL, make
from reference import rms_ratio, visible

LENGTHS = {"one": [17], "packed": [3, 9, 1, 8]}
MESHES = [dict(ring=1), dict(ring=2), dict(ulysses=2), dict(ring=3), dict(ring=2, ulysses=2), dict(ring=3, ulysses=2)]
LAYOUTS = ["zigzag", "contiguous", "striped"]
TOKENS = 21


def ids(count, seed=0):
    return torch.randint(3, 53, (1, count), generator=torch.Generator().manual_seed(seed))


def sample_of(kind):
    """(whole sample, the reference's rows: list of (ids, document lengths))."""
    if kind == "padded":
        rows = [ids(12, 1), ids(9, 2)]
        padded = torch.zeros(2, 12, dtype=torch.int64)
        mask = torch.zeros_like(padded)
        for i, row in enumerate(rows):
            padded[i, : row.numel()], mask[i, : row.numel()] = row, 1
        labels = torch.where(mask.bool(), padded, -100)
        return dict(input_ids=padded, attention_mask=mask, labels=labels), [(row, [row.numel()]) for row in rows]
    lengths = LENGTHS[kind]
    row = ids(sum(lengths))
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    return dict(input_ids=row, position_ids=positions, labels=row.clone()), [(row, lengths)]


def masks_of(model, lengths):
    """Ready-made 4D masks by layer kind, additive."""
    config = model.config
    cu = list(itertools.accumulate([0, *lengths]))
    kinds = {
        "full_attention": visible(cu),
        "sliding_attention": visible(cu, window=getattr(config, "sliding_window", None)),
        "chunked_attention": visible(cu, chunk=getattr(config, "attention_chunk_size", None)),
    }
    additive = {kind: torch.where(mask, 0.0, float("-inf")).to(model.dtype)[None, None] for kind, mask in kinds.items()}
    if getattr(config, "layer_types", None):
        return {kind: additive[kind] for kind in set(config.layer_types)}
    return additive["sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"]


def unsharded(model, rows):
    """Mean loss over all targets, and gradients."""
    total, count = 0, 0
    for row, lengths in rows:
        ends = torch.tensor(lengths).cumsum(0) - 1
        targets = torch.nn.functional.pad(row[:, 1:], (0, 1), value=-100)
        targets[0, ends] = -100
        positions = torch.cat([torch.arange(n) for n in lengths])[None]
        logits = model(input_ids=row, position_ids=positions, attention_mask=masks_of(model, lengths)).logits
        total = total + torch.nn.functional.cross_entropy(logits.float()[0], targets[0], reduction="sum")
        count += int((targets != -100).sum())
    (total / count).backward()
    return float(total.detach() / count), {name: p.grad for name, p in model.named_parameters()}


def sharded(mesh, model, sample, **options):
    sp = usp.hf.prepare(model, mesh, **options)
    losses = []
    for part in sp.loader([sample]):
        losses.append(model(**part).loss)
        losses[-1].backward()
    return float(sum(losses)), sp


_references = {}


def reference(family, kind, dtype=torch.float64):
    key = (family, kind, dtype)
    if key not in _references:
        _references[key] = unsharded(make(family, dtype), sample_of(kind)[1])
    return _references[key]


def compare(family, kind, mesh_options, change=lambda model: None, dtype=torch.float64):
    loss, gradients = reference(family, kind, dtype)
    sample, _ = sample_of(kind)
    ranks = mesh_options.get("ring", 1) * mesh_options.get("ulysses", 1)
    models = [make(family, dtype) for _ in range(ranks)]
    losses = [0.0] * ranks

    def body(mesh):
        change(models[mesh.rank])
        losses[mesh.rank], _ = sharded(mesh, models[mesh.rank], sample)

    usp.run_threads(ranks, body, **mesh_options)
    assert abs(sum(losses) - loss) <= 1e-6 * abs(loss), (sum(losses), loss)
    for name, expected in gradients.items():
        found = sum(dict(model.named_parameters())[name].grad for model in models)
        assert rms_ratio(found, expected, floor=1e-6) <= 1e-5, name


CASES = [(family, kind, {**MESHES[(i + j) % len(MESHES)], "layout": LAYOUTS[(i + j) % len(LAYOUTS)]})
         for i, family in enumerate(FAMILIES) for j, kind in enumerate(("one", "packed", "padded"))]
CASES += [("llama", "packed", dict(mesh, layout=layout)) for mesh in MESHES[1:] for layout in (*LAYOUTS, "balanced")]


@pytest.mark.parametrize("family,kind,mesh", CASES, ids=lambda x: x if isinstance(x, str) else
                         "-".join(f"{k}{v}" for k, v in x.items()))
def test_loss_and_gradients(family, kind, mesh):
    compare(family, kind, mesh)


@pytest.mark.parametrize("family,taken", [("mistral", "window"), ("gpt_oss", "sinks"), ("gemma2", "softcap"),
                                          ("llama4", "chunk"), ("gemma2", "scale")])
def test_each_rule_counts(family, taken, monkeypatch):
    """The comparison above sees a rule that is left out of the call."""
    from usp_attention.hf import attention

    inner = attention.attend
    monkeypatch.setattr(attention, "attend", lambda *tensors, **rules: inner(*tensors, **{**rules, taken: None}))
    with pytest.raises(AssertionError):
        compare(family, "packed", dict(ring=2))


def test_documents_do_not_see_each_other():
    sample, _ = sample_of("packed")
    outs = []
    for first in (5, 6):
        changed = {**sample, "input_ids": sample["input_ids"].clone()}
        changed["input_ids"][0, 0] = first
        found = torch.zeros(TOKENS, 53, dtype=torch.float64)

        def body(mesh):
            model = make("llama")
            for part in usp.hf.prepare(model, mesh).loader([changed]):
                with torch.no_grad():
                    found[part["usp_batch"].local_tokens] = model(**part).logits[0]

        usp.run_threads(4, body, ring=2, ulysses=2)
        outs.append(found)
    assert not torch.equal(outs[0][:3], outs[1][:3])
    assert torch.equal(outs[0][3:], outs[1][3:])


def test_losses_are_divided_by_the_exact_count():
    """FSDP2 casts a module's inputs in a hook of its own, which runs first."""
    def cast(_module, args, kwargs):
        return args, {name: x.bfloat16() if torch.is_tensor(x) and x.is_floating_point() else x
                      for name, x in kwargs.items()}

    seen = []
    with usp.Mesh.create() as mesh:
        model = make("llama")
        sp = usp.hf.prepare(model, mesh)
        model.register_forward_pre_hook(cast, with_kwargs=True, prepend=True)
        model.register_forward_pre_hook(lambda _m, _a, kwargs: seen.append(kwargs["num_items_in_batch"]),
                                        with_kwargs=True)
        for part in sp.loader([dict(input_ids=ids(300), labels=ids(300))]):
            model(**part)
    assert seen[0].dtype == torch.float32 and float(seen[0]) == 299


@pytest.mark.parametrize("how", [dict(use_reentrant=True), dict(use_reentrant=False),
                                 dict(use_reentrant=False, context_fn=usp.keep_attention)])
def test_gradient_checkpointing(how):
    compare("gpt_oss", "packed", dict(ring=2, ulysses=2), change=lambda model: model.gradient_checkpointing_enable(how))


def test_microbatches_in_flight():
    """Forward of A and B, then both backwards, as pipelines have it."""
    samples = [sample_of(kind)[0] for kind in ("one", "packed")]
    expected = [reference("llama", kind)[1] for kind in ("one", "packed")]
    counts = [16, 17]
    models = [make("llama") for _ in range(2)]

    def body(mesh):
        model = models[mesh.rank]
        model.gradient_checkpointing_enable(dict(use_reentrant=False))
        parts = list(usp.hf.prepare(model, mesh).loader(samples, accumulate=2))
        for loss in [model(**part).loss for part in parts]:
            loss.backward()

    usp.run_threads(2, body, ring=2)
    for name in expected[0]:
        found = sum(dict(model.named_parameters())[name].grad for model in models)
        whole = sum(n * gradient[name] for n, gradient in zip(counts, expected)) / sum(counts)
        assert rms_ratio(found, whole, floor=1e-6) <= 1e-5, name


def test_off_and_generate():
    with usp.Mesh.create() as mesh:
        model = make("llama").eval()
        whole = model(input_ids=ids(9)).logits
        sp = usp.hf.prepare(model, mesh)
        assert model.config._attn_implementation == sp.registration.name and not model.config.use_cache
        with pytest.raises(usp.UsageError, match="sp.off"):
            model.generate(ids(9), max_new_tokens=2)
        with sp.off():
            assert torch.equal(model(input_ids=ids(9)).logits, whole)
            assert model.generate(ids(9), max_new_tokens=2).shape[1] >= 10
        with pytest.raises(usp.UsageError, match="sp.off"):
            model(input_ids=ids(9))
        sp.remove()
        assert torch.equal(model(input_ids=ids(9)).logits, whole)


def test_refused_calls():
    with usp.Mesh.create() as mesh:
        model = make("llama")
        sp = usp.hf.prepare(model, mesh)

        def refused(match, **more):
            part = next(iter(sp.loader([sample_of("packed")[0]])))
            with pytest.raises(usp.UsageError, match=match):
                model(**{**part, **more})

        mask = torch.ones(1, TOKENS, dtype=torch.int64)
        model(**{**next(iter(sp.loader([sample_of("packed")[0]]))), "attention_mask": mask})
        mask[0, :3] = 0
        refused("drops padding", attention_mask=mask)
        refused("ready-made masks", attention_mask=torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.float64))
        refused("of other documents", cu_seq_lens_q=torch.tensor([0, 5, TOKENS]))
        refused("passes position_bias", position_bias=torch.zeros(1, dtype=torch.float64))
        refused("KV cache", use_cache=True, past_key_values=_cache_with_one_token(model))


def _cache_with_one_token(model):
    import transformers

    cache = transformers.DynamicCache(config=model.config)
    for layer in range(model.config.num_hidden_layers):
        cache.update(*(torch.zeros(1, 2, 1, 8, dtype=torch.float64) for _ in range(2)), layer)
    return cache


def test_mask_function_is_needed(monkeypatch):
    """Without it transformers gives layers no mask at all, silently."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    with usp.Mesh.create() as mesh:
        model = make("llama")
        sp = usp.hf.prepare(model, mesh)
        monkeypatch.delitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, sp.registration.name)
        with pytest.raises(usp.UsageError, match="was given no mask"):
            model(**next(iter(sp.loader([sample_of("packed")[0]]))))


def test_overlays():
    with usp.Mesh.create() as mesh:
        made = usp.hf.register(mesh)
        made.batch = mesh.batch(tokens=6)
        call = dict(batch_size=1, q_length=6, kv_length=6)
        blocks = torch.tensor([-1, 0, 0, 0, -1, -1])
        assert made.mask(**call, mask_function=lambda b, h, q, k: k <= q).causal
        assert not made.mask(**call, mask_function=lambda b, h, q, k: q >= 0).causal
        for match, more in (("images", dict(mask_function=lambda b, h, q, k: (k <= q) | (
                (blocks[q] == blocks[k]) & (blocks[q] >= 0)))), ("overlays", dict(use_vmap=True))):
            with pytest.raises(usp.UsageError, match=match):
                made.mask(**call, **more)
        both = type("Config", (), dict(attention_chunk_size=4, sliding_window=4))
        with pytest.raises(usp.UsageError, match="both 4"):
            made.mask(**call, local_size=4, config=both)
        with pytest.raises(usp.UsageError, match="already"):
            usp.hf.register(mesh, name=made.name)
        unnumbered = usp.hf.register(mesh, layer_ids=False)
        assert unnumbered.name != made.name
        unnumbered.batch = made.batch
        q = torch.zeros(1, 2, 6, 4)
        with pytest.raises(usp.UsageError, match="numbers of layers"):
            unnumbered.attention(torch.nn.Module(), q, q, q, unnumbered.mask(**call), dropout=0.1)
        assert unnumbered.attention(torch.nn.Module(), q, q, q, unnumbered.mask(**call))[0].shape == (1, 6, 2, 4)


def test_refused_models():
    import transformers

    with usp.Mesh.create() as mesh:
        def refused(match, model):
            with pytest.raises(usp.UsageError, match=match):
                usp.hf.prepare(model, mesh)

        long = make("llama")
        long.config.rope_parameters = {"rope_type": "longrope", "factor": 2.0}
        refused("longrope", long)
        linear = make("qwen3")
        linear.config.layer_types = ["linear_attention", "full_attention"]
        refused("linear_attention", linear)
        prompt = make("llama")
        prompt.peft_config = {"default": type("Prefix", (), dict(is_prompt_learning=True))()}
        refused("prompt", prompt)
        t5 = transformers.T5Config(vocab_size=53, d_model=32, d_ff=32, num_layers=1, num_heads=2, d_kv=8)
        refused("encoder-decoder", transformers.T5ForConditionalGeneration(t5))
        mamba = transformers.MambaConfig(vocab_size=53, hidden_size=32, num_hidden_layers=1)
        refused("recurrent|layers of type", transformers.MambaForCausalLM(mamba))
        moe = make("gpt_oss")
        moe.config.output_router_logits = True
        with pytest.warns(UserWarning, match="auxiliary loss"):
            usp.hf.prepare(moe, mesh).remove()


def test_compiled_model():
    """One graph for all batches and lengths; losses as eager."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    with usp.Mesh.create() as mesh:
        model = make("llama")
        sp = usp.hf.prepare(model, mesh)
        compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
        for lengths in ([17], [3, 9, 1, 8], [5, 6], [17]):
            row = ids(sum(lengths))
            sample = dict(input_ids=row, labels=row, position_ids=torch.cat([torch.arange(n) for n in lengths])[None])
            losses, gradients = [], []
            for call in (model, compiled):
                model.zero_grad()
                loss = call(**next(iter(sp.loader([sample])))).loss
                loss.backward()
                losses.append(loss.detach())
                gradients.append([p.grad.clone() for p in model.parameters()])
            torch.testing.assert_close(*losses)
            for a, b in zip(*gradients):
                assert rms_ratio(b, a, floor=1e-6) < 1e-6
    assert counters["stats"]["unique_graphs"] == 1


def test_composite_model():
    """The text model alone runs on the mesh; the vision tower keeps its attention."""
    import transformers
    from reference import fill

    def made():
        text = transformers.LlamaConfig(**{**SMALL, "pad_token_id": 0})
        vision = transformers.CLIPVisionConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=1,
                                               num_attention_heads=2, image_size=8, patch_size=4)
        config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_id=52)
        model = transformers.LlavaForConditionalGeneration(config)
        fill(model, 3)
        return model.double()

    sample, rows = sample_of("packed")
    sample["input_ids"] %= 50
    sample["labels"] %= 50
    (row, lengths), = rows
    reference = made()
    targets = torch.nn.functional.pad(row[:, 1:] % 50, (0, 1), value=-100)
    targets[0, torch.tensor(lengths).cumsum(0) - 1] = -100
    logits = reference(input_ids=row % 50, position_ids=sample["position_ids"],
                       attention_mask=masks_of(reference.model.language_model, lengths)).logits
    loss = torch.nn.functional.cross_entropy(logits.float()[0], targets[0])
    models, losses = [made(), made()], [0.0, 0.0]

    def body(mesh):
        losses[mesh.rank], _ = sharded(mesh, models[mesh.rank], sample)
        assert models[0].config.vision_config._attn_implementation == "sdpa"

    usp.run_threads(2, body, ring=2)
    assert abs(sum(losses) - float(loss.detach())) < 1e-6 * float(loss.detach())
