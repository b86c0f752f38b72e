#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""flags_test.py SOURCE: cli/ adds every flag in one place, and spells no words of an enum in --help.

A flag that verbs share belongs to one struct and one add function. HOMONYMS are flags of one name whose verbs give
them different meanings.
"""
import pathlib
import re
import sys

HOMONYMS = {"--seed": 2,          # of drawn documents; of random tensors
            "--device": 3,        # card of a cluster; hardware of a run; hardware that is calibrated
            "--devices": 3,       # visible devices of a host; GPUs of the ranks; GPUs that are calibrated
            "--transport": 2,     # of a plan; all that are calibrated
            "--trace": 2,         # of a run; of a plan
            "--forward-only": 2,  # of a workload; of a run whose plan has a backward pass
            "--backend": 2,       # of a plan; kernel that is calibrated
            "--dtype": 2,         # of a workload; of tensors of calibrated kernels
            "--nic": 2,           # NICs of a cluster; line of a host that is calibrated
            "--ranks": 2,         # threads of a plan; of a calibration
            "-o,--output": 5}     # topo, plan, run, report, calibrate: another kind of file each
ADDED = re.compile(r'\b(?:option|number|parsed(?:<[^(]*>)?|word|tokens|flag)\(\s*"(-[^"]+)"')
LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"')
TYPES = re.compile(r"struct WordTable<(\w+)>\s*{\s*static constexpr Word<\w+> words\[\] = {(.*?)};", re.DOTALL)


def word_lists(source):
    """{"LayoutKind": pattern of "contiguous, zigzag, striped"}: the first three words of each table in a list."""
    tables = {}
    for folder in ("topology", "planner", "kernels", "runtime"):
        for file in sorted((source / folder).rglob("*.hpp")):
            for name, rows in TYPES.findall(file.read_text()):
                words = re.findall(r'"([^"]+)"', rows)
                if len(words) > 2:
                    tables[name] = re.compile(f"\\b{words[0]}, {words[1]}(,| or) {words[2]}\\b")
    return tables


def main():
    source = pathlib.Path(sys.argv[1])
    texts = {file.name: file.read_text() for file in sorted((source / "cli").glob("*.?pp"))}
    added = [flag for text in texts.values() for flag in ADDED.findall(text)]
    faults = [f"{flag}: added in {added.count(flag)} places, not {HOMONYMS.get(flag, 1)}" for flag in sorted(set(added))
              if added.count(flag) != HOMONYMS.get(flag, 1)]
    tables = word_lists(source)
    faults += [f"cli/{name}: spells the words of {enum}; word_choice<{enum}>() lists them"
               for name, text in texts.items() for enum, words in tables.items()
               if any(words.search(literal) for literal in LITERAL.findall(text))]
    if len(added) < 50 or len(tables) < 5:
        faults.append(f"{len(added)} flags and {len(tables)} tables of words found: the sources have changed their form")
    print("\n".join(faults) or f"{len(added)} flags, {len(tables)} tables of words")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
