# SPDX-License-Identifier: Apache-2.0
"""Planning from Python; needs neither torch nor GPUs."""

import usp_attention as usp


def main() -> None:
    result = usp.plan("llama-3.1-8b", {"source": "dgx-h100", "nodes": 2}, seq=1 << 20, tensor=1)
    for candidate in result.candidates[:3]:
        print(f"{candidate.time_s:8.2f} s +- {100 * candidate.band:.0f}%  {candidate.description}")
    print("a tie: measure", result.verdict.tie_breaking_measurements if result.verdict.tie else "nothing")
    print(result.best.two_lines())
    call = usp.plan_attention(query_heads=32, kv_heads=8, head_dim=128, seq=1 << 17, cluster="dgx-h100", window=4096)
    print("one layer with a window of 4096:", call.best.description)


if __name__ == "__main__":
    main()
