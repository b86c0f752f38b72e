# SPDX-License-Identifier: Apache-2.0
"""Random samples of packed documents."""

import torch


def sample(lengths, seed=0, **more):
    """One row of documents of these lengths; a token's label is the token + 1000."""
    row = torch.randint(3, 1000, (1, sum(lengths)), generator=torch.Generator().manual_seed(seed))
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    return dict(input_ids=row, position_ids=positions, labels=row + 1000, **more)
