# SPDX-License-Identifier: Apache-2.0
"""Networks and calls of regret.py."""
import dataclasses

from network import Nic


@dataclasses.dataclass(frozen=True)
class Cluster:
    nics: tuple  # one per host
    per_host: int  # ranks


@dataclasses.dataclass(frozen=True)
class Call:
    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    training: bool

    def __str__(self):
        return (f"{self.heads}/{self.kv_heads} x {self.head_dim}, {self.tokens}, "
                f"{'causal' if self.causal else 'full'}, {'training' if self.training else 'forward'}")

    def request(self, cluster, calibration):
        """The call as a usp.attention_request."""
        return {"format": "usp.attention_request", "version": 2, "cluster": {"name": str(cluster)},
                "calibration": str(calibration), "causal": self.causal, "training": self.training,
                "shape": {"tokens": self.tokens, "query_heads": self.heads, "kv_heads": self.kv_heads,
                          "head_dim_qk": self.head_dim, "head_dim_v": self.head_dim, "dtype": "fp32"}}


# Rates that two cores can emulate: above some 4 Gbit/s copies of the kernel are the limit, not htb.
NETWORKS = {
    "fast": Cluster((Nic(2000), Nic(2000)), 2),
    "slow": Cluster((Nic(400), Nic(400)), 2),
    "very slow": Cluster((Nic(100), Nic(100)), 2),
    "lopsided": Cluster((Nic(800), Nic(200)), 2),
    "4 hosts x 1": Cluster((Nic(400),) * 4, 1),
    "4 hosts x 2": Cluster((Nic(400),) * 4, 2),
}
DELAYED = {"high latency": Cluster((Nic(400, latency_ms=2), Nic(400, latency_ms=2)), 2)}  # needs netem

CALLS = {
    "GQA": Call(4096, 8, 2, 64, True, False),
    "MHA": Call(1024, 8, 8, 64, True, True),
    "full": Call(1024, 8, 4, 64, False, True),
    "long": Call(8192, 8, 2, 64, True, False),
}
