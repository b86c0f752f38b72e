# SPDX-License-Identifier: Apache-2.0
"""This machine's GPUs as a cluster."""

from __future__ import annotations

import atexit
import functools
import pathlib
import shutil
import subprocess
import tempfile

from ._library import import_torch
from .errors import EnvironmentFault, UsageError

# Cards by the words that the driver names them with; the first that fits counts.
_CARDS = (("gb200", "gb200"), ("gb300", "gb300"), ("b200", "b200-sxm"), ("b300", "b300-sxm"),
          ("h100 pcie", "h100-pcie"), ("h100 nvl", "h100-nvl"), ("h100 80gb hbm3", "h100-sxm"),
          ("h200 nvl", "h200-nvl"), ("h200", "h200-sxm"), ("h800", "h800-sxm"), ("h20", "h20-sxm"),
          ("a100-sxm4-80gb", "a100-sxm"), ("a100 80gb pcie", "a100-pcie"), ("a800-sxm4-80gb", "a800-sxm"),
          ("l40s", "l40s"), ("l20", "l20"), ("rtx 4090", "rtx-4090"), ("rtx pro 6000", "rtx-pro-6000"))


@functools.cache
def this_machine() -> dict:
    """This machine's GPUs as a cluster: nvidia-smi's links (a file, until the program ends) and the card. Raises
    UsageError where torch sees no GPU, or one that usp does not know by its name."""
    torch = import_torch()
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise UsageError("cluster is 'auto' and this machine has no GPU that torch sees; name a cluster, or give the "
                         "output of nvidia-smi topo -m as a file")
    name = torch.cuda.get_device_name(0)
    card = next((card for words, card in _CARDS if words in name.lower()), None)
    if card is None:
        raise UsageError(f"cluster is 'auto' and the card {name!r} is none that usp knows by this name; give "
                         "{'source': the output of nvidia-smi topo -m as a file, 'device': the card}")
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise UsageError("cluster is 'auto' and there is no nvidia-smi; give a cluster by name or file")
    try:
        topology = subprocess.run([tool, "topo", "-m"], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise EnvironmentFault(f"cluster is 'auto' and nvidia-smi topo -m fails: {error}; give a cluster by name or file"
                               ) from error
    with tempfile.NamedTemporaryFile("w", suffix=".txt", prefix="usp_topo_", delete=False) as file:
        file.write(topology)
    atexit.register(pathlib.Path(file.name).unlink, missing_ok=True)
    return {"source": file.name, "device": card}
