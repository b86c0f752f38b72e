# SPDX-License-Identifier: Apache-2.0
"""Few cases in which every two values of different factors occur together."""

import itertools
import random


def pairwise(factors: dict, allowed=lambda case: True, seed: int = 7) -> list[dict]:
    """Greedy: each case covers as many new pairs as the best of some random ones. Pairs that `allowed` never lets
    occur are given up."""
    chooser = random.Random(seed)
    names = list(factors)
    missing = {((a, x), (b, y)) for a, b in itertools.combinations(names, 2) for x in factors[a] for y in factors[b]}
    cases, failures = [], 0
    while missing and failures < 200:
        (a, x), (b, y) = chooser.choice(sorted(missing, key=repr))
        best, gain = None, 0
        for _ in range(30):
            case = {name: chooser.choice(values) for name, values in factors.items()}
            case[a], case[b] = x, y
            if not allowed(case):
                continue
            covered = sum(pair in missing for pair in itertools.combinations(case.items(), 2))
            if covered > gain:
                best, gain = case, covered
        if best is None:
            failures += 1
            continue
        missing -= set(itertools.combinations(best.items(), 2))
        cases.append(best)
    return cases
