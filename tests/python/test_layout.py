# SPDX-License-Identifier: Apache-2.0
"""Layouts: every token on one rank, in the order that the layout's definition gives."""

import itertools
import multiprocessing

import pytest
import torch
import usp_attention as usp
from usp_attention._documents import cu_seqlens_of_positions


@pytest.mark.parametrize("kind", ["contiguous", "zigzag", "striped", "balanced"])
@pytest.mark.parametrize("tokens", [1, 7, 24, 101])
def test_each_token_once(kind, tokens):
    for ring, ulysses in ((1, 1), (2, 1), (1, 3), (4, 2)):
        lists = [usp.layout_tokens(kind, tokens, ring, ulysses, rank, [0, tokens // 2, tokens])
                 for rank in range(ring * ulysses)]
        assert sorted(itertools.chain(*lists)) == list(range(tokens))


def test_by_definition():
    assert list(usp.layout_tokens("zigzag", 16, 2, 2, 0)) == [0, 1, 2, 3]
    assert list(usp.layout_tokens("zigzag", 16, 2, 1, 0)) == [0, 1, 2, 3, 12, 13, 14, 15]
    assert list(usp.layout_tokens("striped", 8, 2, 1, 1)) == [1, 3, 5, 7]
    assert list(usp.layout_tokens("contiguous", 8, 2, 2, 2)) == [4, 5]


def test_in_a_forked_worker():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert list(pool.apply(usp.layout_tokens, ("contiguous", 4, 2, 1, 1))) == [2, 3]


@pytest.mark.parametrize("positions,cu,rows", [
    ([0, 1, 2, 3], [0, 4], [0]),
    ([0, 1, 2, 0, 1], [0, 3, 5], [0]),
    ([7, 8, 9, 0, 1], [0, 3, 5], [0]),  # a first document that was cut
    ([0, 1, 2, 0, 0, 0], [0, 3, 6], [0]),  # padding is one document
    ([0, 1, 2, 2, 2], [0, 3, 5], [0]),
    ([0, 0, 0], [0, 3], [0]),
    ([[0, 1, 2], [0, 1, 2]], [0, 3, 6], [0, 3]),
    ([[0, 1, 0], [5, 6, 7]], [0, 2, 3, 6], [0, 3]),
    ([0], [0, 1], [0]),
])
def test_documents_of_positions(positions, cu, rows):
    assert cu_seqlens_of_positions(torch.tensor(positions)) == (tuple(cu), tuple(rows))


def test_positions_of_several_axes():
    with pytest.raises(usp.InvalidInput, match="several axes"):
        cu_seqlens_of_positions(torch.zeros(3, 2, 4, dtype=torch.int64))
