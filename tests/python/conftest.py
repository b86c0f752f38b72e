# SPDX-License-Identifier: Apache-2.0
"""One thread per rank: the tests run several ranks on few cores."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402

torch.set_num_threads(1)
