#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""completion_test.py USP: what `usp completion bash` prints completes verbs, flags and names in bash."""
import pathlib
import subprocess
import sys

# (words typed, the last of which is completed; some that are offered; some that are not)
CASES = [(["usp", ""], {"plan", "export", "whatif"}, {"attention"}),
         (["usp", "pl"], {"plan"}, {"export"}),
         (["usp", "plan", "llama-3.1"], {"llama-3.1-8b", "llama-3.1-405b"}, {"qwen3-8b"}),
         (["usp", "plan", "llama-3.1-8b", "--fra"], {"--framework"}, {"--forward-only"}),
         (["usp", "plan", "llama-3.1-8b", "--cluster", "dgx"], {"dgx-h100", "dgx-a100"}, {"h200"}),
         (["usp", "plan", "attention", "--head-d"], {"--head-dim", "--head-dim-v"}, {"--model"}),
         (["usp", "export", "plan.json", "--to", "m"], {"megatron"}, {"deepspeed"}),
         (["usp", "export", "--s"], {"--script", "--slurm"}, {"--seq"})]


def complete(script, words):
    line = " ".join(f"'{word}'" for word in words)
    text = f"{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _usp; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, cwd="/").stdout.split()


def main():
    usp = str(pathlib.Path(sys.argv[1]).resolve())
    script = subprocess.run([usp, "completion", "bash"], capture_output=True, text=True, check=True).stdout
    faults = []
    for words, wanted, unwanted in CASES:
        offered = set(complete(script, words))
        if not wanted <= offered or unwanted & offered:
            faults.append(f"{words}: {sorted(offered)[:20]}")
    print("\n".join(faults) or "ok")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
