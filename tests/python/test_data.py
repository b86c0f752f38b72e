# SPDX-License-Identifier: Apache-2.0
"""Whole samples to parts: every token and target once, positions and documents as before, and refusals."""

import pickle

import pytest
import torch
import usp_attention as usp
from samples import sample

LAYOUTS = ["contiguous", "zigzag", "striped", "balanced"]


def parts_of(whole, ring, ulysses, layout, **keys):
    return [usp.Sharder(ring, ulysses, rank, layout, **keys)(whole) for rank in range(ring * ulysses)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lengths", [[19], [4, 4, 8], [1, 1, 7, 2], [3], [16, 1]])
def test_tokens_and_targets(layout, lengths):
    """Labels across every edge of shards and documents: the multiset of (token, position, target) is the unsharded."""
    whole = sample(lengths)
    expected, at = [], 0
    for n in lengths:
        row = whole["input_ids"][0, at: at + n].tolist()
        targets = [token + 1000 for token in row[1:]] + [-100]
        expected += list(zip(row, range(n), targets))
        at += n
    for ring, ulysses in ((1, 1), (2, 1), (1, 3), (2, 2), (4, 2)):
        found, cuts = [], set()
        for part, cut in parts_of(whole, ring, ulysses, layout):
            assert torch.equal(part["labels"], part["shift_labels"])
            found += list(zip(*(part[name][0].tolist() for name in ("input_ids", "position_ids", "labels"))))
            cuts.add(cut)
        assert sorted(found) == sorted(expected)
        (cut,) = cuts  # the same on all ranks
        assert cut.cu_seqlens == tuple(torch.tensor([0, *lengths]).cumsum(0).tolist())
        assert cut.valid_labels == sum(target != -100 for *_, target in expected)


def test_padding_is_dropped():
    ids = torch.tensor([[5, 6, 7, 0], [0, 8, 9, 10]])
    whole = dict(input_ids=ids, attention_mask=(ids > 0).long(), labels=ids.masked_fill(ids == 0, -100))
    ((part, cut),) = parts_of(whole, 1, 1, "zigzag")
    assert part["input_ids"].tolist() == [[5, 6, 7, 8, 9, 10]] and "attention_mask" not in part
    assert part["position_ids"].tolist() == [[0, 1, 2, 1, 2, 3]]
    assert part["labels"].tolist() == [[6, 7, -100, 9, 10, -100]]
    assert cut.cu_seqlens == (0, 3, 6) and cut.row_starts == (0, 3) and cut.valid_labels == 4


def test_documents_by_borders():
    whole = sample([8], cu_seq_lens_q=torch.tensor([0, 3, 8]), cu_seq_lens_k=torch.tensor([0, 3, 8]), max_length_q=5)
    del whole["position_ids"]
    ((part, cut),) = parts_of(whole, 1, 1, "zigzag")
    assert cut.cu_seqlens == (0, 3, 8) and set(part) == {"input_ids", "position_ids", "labels", "shift_labels"}
    assert part["labels"][0, 2] == -100
    axes = sample([8], cu_seq_lens_q=torch.tensor([0, 3, 8]))
    axes["position_ids"] = torch.arange(24).view(3, 1, 8)
    assert parts_of(axes, 2, 1, "contiguous")[1][0]["position_ids"].tolist() == [[[4, 5, 6, 7]], [[12, 13, 14, 15]],
                                                                               [[20, 21, 22, 23]]]


def test_ready_shifted_labels_are_not_shifted_again():
    whole = sample([3, 5])
    shifted = torch.arange(8)[None] + 50
    ((part, cut),) = parts_of({**whole, "shift_labels": shifted}, 1, 1, "zigzag")
    assert part["labels"].tolist() == [[50, 51, -100, 53, 54, 55, 56, -100]]


def test_further_tensors():
    whole = sample([8], weights=torch.arange(16.0).view(1, 8, 2), pixels=torch.zeros(3, 3), name="a")
    with pytest.raises(usp.UsageError, match="weights .*name it in sequence_keys"):
        parts_of(whole, 2, 1, "contiguous")
    part, _ = parts_of(whole, 2, 1, "contiguous", sequence_keys=["weights"])[1]
    assert part["weights"].tolist() == [[[8, 9], [10, 11], [12, 13], [14, 15]]]
    assert part["pixels"].shape == (3, 3) and part["name"] == "a"
    part, _ = parts_of(whole, 2, 1, "contiguous", pass_keys=["weights"])[1]
    assert part["weights"].shape == (1, 8, 2)


def test_refusals():
    for match, error, more in (
            ("drops", usp.UsageError, dict(attention_mask=torch.ones(1, 1, 8, 8))),
            ("no tokens", usp.InvalidInput, dict(attention_mask=torch.zeros(1, 8))),
            ("rise from 0", usp.InvalidInput, dict(cu_seq_lens_q=torch.tensor([0, 9]))),
            ("differs from cu_seq_lens_q", usp.InvalidInput, dict(cu_seq_lens_q=torch.tensor([0, 8]),
                                                                  cu_seq_lens_k=torch.tensor([0, 4, 8]))),
            ("seq_idx has documents", usp.InvalidInput, dict(seq_idx=torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1]]))),
            ("several axes", usp.InvalidInput, dict(position_ids=torch.arange(24).view(3, 1, 8)))):
        with pytest.raises(error, match=match):
            parts_of({**sample([8]), **more}, 1, 1, "zigzag")
    with pytest.raises(usp.UsageError, match="needs input_ids"):
        parts_of(dict(ids=torch.zeros(1, 4)), 1, 1, "zigzag")
    with pytest.raises(usp.UsageError, match="rank is 4; it must be from 0 to 3"):
        usp.Sharder(2, 2, 4)


def test_sharder_in_workers():
    """Pickled to a worker process and forked into one."""
    whole = [sample([n], seed=n) for n in (5, 9)]
    sharder = pickle.loads(pickle.dumps(usp.Sharder(2, 1, 1, "zigzag")))
    for context in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(whole, batch_size=None, collate_fn=sharder, num_workers=1,
                                             multiprocessing_context=context)
        for (part, cut), item in zip(loader, whole):
            assert torch.equal(part["input_ids"], sharder(item)[0]["input_ids"]) and cut == sharder(item)[1]


def test_shard_and_unshard():
    whole = sample([4, 9])

    def body(mesh):
        part, batch = usp.shard(whole, mesh)
        assert batch.cu_seqlens == (0, 4, 13) and batch.documents == 2 and batch.tokens == 13
        assert torch.equal(part["input_ids"][0], whole["input_ids"][0, batch.local_tokens])
        hidden = part["input_ids"].double()[..., None] * torch.arange(3)
        expected = whole["input_ids"].double()[..., None] * torch.arange(3)
        assert torch.equal(usp.unshard(hidden, batch), expected)
        assert torch.equal(usp.unshard(hidden.bfloat16().transpose(1, 2), batch, dim=2),
                           expected.bfloat16().transpose(1, 2))
        on_one = usp.unshard(hidden, batch, dst=2)
        assert (on_one is None) == (mesh.rank != 2)
        with pytest.raises(usp.UsageError, match="rows along axis 1"):
            usp.unshard(torch.zeros(1, 99), batch)

    usp.run_threads(6, body, ring=3, ulysses=2)


def test_differing_samples_are_an_error():
    def body(mesh):
        usp.shard(sample([8], seed=int(mesh.rank == 3)), mesh)

    with pytest.raises(usp.DisagreementError) as error:
        usp.run_threads(4, body, ring=2, ulysses=2)
    assert (error.value.field, error.value.ranks) == ("sample", (3,))


@pytest.mark.parametrize("source", ["same", "each"])
def test_loader(source):
    """Ids seen over an epoch: each sample of each rank once."""
    seen = {}

    def body(mesh):
        own = [sample([n], seed=100 * (source == "each") * mesh.rank + n) for n in (5, 9, 3)]
        loader = usp.Loader(own, mesh, source=source, accumulate=2)
        assert len(loader) == 3 * (4 if source == "each" else 1)
        for step, part in enumerate(loader):
            batch = part["usp_batch"]
            for token, at in zip(part["input_ids"][0].tolist(), batch.local_tokens.tolist()):
                seen.setdefault((step, at), []).append(token)
        counts = [4, 8] if source == "same" else [4, 4]
        first = next(iter(usp.Loader(own, mesh, source=source, accumulate=2)))
        assert first["num_items_in_batch"] == sum(counts)

    usp.run_threads(4, body, ring=2, ulysses=2)
    assert all(len(tokens) == 1 for tokens in seen.values())
    whole = [sample([n], seed=100 * rank + n) for n in (5, 9, 3) for rank in range(4)] if source == "each" else \
        [sample([n], seed=n) for n in (5, 9, 3)]
    expected = {(step, at): [token] for step, item in enumerate(whole)
                for at, token in enumerate(item["input_ids"][0].tolist())}
    assert seen == expected


def test_loader_that_ends_early():
    def body(mesh):
        own = [sample([4], seed=n) for n in range(3 - (mesh.rank == 1))]
        assert len(list(usp.Loader(own, mesh, source="each"))) == (3 if mesh.size == 1 else 3 * mesh.size - 1)
        for _ in usp.Loader(own, mesh):
            pass

    with pytest.raises(usp.DisagreementError, match="ended before") as error:
        usp.run_threads(2, body, ring=2)
    assert error.value.ranks == (1,)


def test_loader_resumes():
    def body(mesh):
        own = [sample([6], seed=n) for n in range(5)]
        loader = usp.Loader(own, mesh)
        whole = [part["input_ids"] for part in loader]
        loader.skip(3)
        rest = [part["input_ids"] for part in loader]
        assert len(rest) == 2 and all(torch.equal(a, b) for a, b in zip(rest, whole[3:]))
        assert len(list(loader)) == 5  # the next epoch is whole

    usp.run_threads(2, body, ulysses=2)


def test_token_mean_of_one_rank():
    total = torch.tensor(6.0, requires_grad=True)
    loss, reported = usp.token_mean(total * 1, 3)
    assert loss == reported == 2
    loss, reported = usp.token_mean(total * 0, 0)
    loss.backward()
    assert loss == reported == 0 and total.grad == 0
    loss, _ = usp.token_mean(total * 1, 12, average_over=4)
    assert loss == 2
    with pytest.raises(usp.UsageError, match="average_over is 0"):
        usp.token_mean(total, 3, average_over=0)


def pairs_of(whole, layout, ranks):
    """Causal pairs that each rank of a ring attends, and its tokens."""
    parts = [part["position_ids"][0] for part, _ in parts_of(whole, ranks, 1, layout)]
    return [int((positions + 1).sum()) for positions in parts], [len(positions) for positions in parts]


@pytest.mark.parametrize("ranks", [2, 4])
def test_balanced_deals_long_tails_evenly(ranks):
    """Documents of a Pareto law, the longest of which hold most of the pairs: balanced deals tokens and pairs alike;
    zigzag, which suits one document, leaves a rank more than twice the excess over its share."""
    worst = {}
    for seed in range(6):
        draws = torch.rand(400, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        lengths = (64 * draws.pow(-1 / 1.1)).long().clamp(max=4096).tolist()
        lengths = lengths[: next(i for i in range(400) if sum(lengths[:i]) >= 8192)]
        for layout in ("balanced", "zigzag"):
            pairs, tokens = pairs_of(sample(lengths), layout, ranks)
            assert max(tokens) - min(tokens) <= 4
            worst[layout] = max(worst.get(layout, 0), max(pairs) * ranks / sum(pairs))
    assert worst["balanced"] - 1 < (worst["zigzag"] - 1) / 2, worst
