#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""regret.py USP PACED_CALLS [OPTION...]: what the planner's choice costs on emulated hosts, which it knows by `usp
calibrate` there alone: every legal plan of each call on each network, over the real runtime, with kernels that take
their calibrated time. Prints one row per network and call:

  choice          the planner's plan, with its measured time
  best            the fastest plan that was measured
  regret          time of the choice over that of the best, less 1, by the least times of the sweeps; beside it those of
                  the planner's best plan on the mesh with most Ulysses and on that of one ring of all ranks
  again           the same of the choice where one sweep names the best plan and another one times it, in turns: the
                  fastest of plans that are equal is else the luckiest. Noise may make it negative
  A/A             how far sweeps over the same plans lie apart: median and greatest of those measured again
  bytes           whether every plan moved the bytes that were planned

  --networks NAME,...   (all)          --calls NAME,...    (all)
  --launcher WORD       mpi or sockets (sockets)
  --max-seconds S       of a calibration: one of kernels, then one of each network (30)
  --kernels FILE        a calibration whose kernels count, in place of one made here
  --repeat N            rounds of a plan in a sweep, the median counts (3)
  --sweeps N            over the plans that may be the fastest, after one over all (3)
  --quiet-below SHARE   a cell with more A/A noise (median) is measured again (0.05),
  --attempts N          so often at most (3)
  --results FILE        JSON of all cells; cells that are in it are not measured again
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import time

import calibrate
import cases
import launchers
import network
import sandbox

PATIENCE_S = 1500
# Of the other work of the machine: kernels that sleep take little of it. Others than root do not have this.
AHEAD = ["nice", "-n", "-20"] if os.geteuid() == 0 else []


def seconds(plan):
    """By sweep, both passes together."""
    passes = [plan[name]["measured_s"] for name in ("forward", "backward") if plan[name]]
    return [sum(sweep) for sweep in zip(*passes)]


def measured_s(plan):
    """Of the sweeps after the first, which only chooses, the least: whatever else runs on the machine only adds."""
    return min(seconds(plan)[1:])


def timed_again(plan, plans):
    """Mean over sweeps of its time over that of the plan which the other sweeps found the fastest."""
    own, ratios = seconds(plan)[1:], []
    for sweep, time_s in enumerate(own):
        def elsewhere(other, left_out=sweep):
            return min(t for i, t in enumerate(seconds(other)[1:]) if i != left_out)
        ratios.append(time_s / seconds(min(plans, key=elsewhere))[1 + sweep])
    return statistics.mean(ratios) - 1


def noise(plans):
    """Between two sweeps over the same plan: (median, greatest) over plans."""
    apart = [max(s[1:]) / min(s[1:]) - 1 for s in map(seconds, plans)]
    return statistics.median(apart), max(apart)


def bytes_equal(plans):
    return all(p[name]["planned_bytes"] == p[name]["executed_bytes"] for p in plans for name in ("forward", "backward")
               if p[name])


def summary(plans):
    finalists = [p for p in plans if len(seconds(p)) > 1]
    best = min(finalists, key=measured_s)
    ulysses = max(p["mesh"]["ulysses"] for p in plans)
    rules = {"choice": plans[0], "most_ulysses": next(p for p in plans if p["mesh"]["ulysses"] == ulysses),
             "always_ring": next(p for p in plans if p["mesh"]["ulysses"] == 1)}
    predicted = sum(plans[0][name]["predicted_s"] for name in ("forward", "backward") if plans[0][name])
    typical, worst = noise(finalists)
    return {"plans": len(plans), "finalists": len(finalists), "choice": plans[0]["description"],
            "choice_s": measured_s(plans[0]), "predicted_s": predicted, "best": best["description"],
            "best_s": measured_s(best),
            "regret": {name: measured_s(plan) / measured_s(best) - 1 for name, plan in rules.items()},
            "timed_again": timed_again(plans[0], finalists),
            "noise": typical, "worst_noise": worst, "bytes_equal": bytes_equal(plans)}


def kernels_alone(options):
    """Calibration of the kernels of one rank."""
    if options.kernels:
        return options.kernels
    file = sandbox.RUN / "kernels.json"
    network.run([*AHEAD, options.usp, "calibrate", "-q", "--ranks", 1, "--max-seconds", options.max_seconds,
                 "-o", file])
    return file


class Bench:
    """One network, calibrated."""

    def __init__(self, options, name, cluster, kernels):
        self.options, self.cluster = options, cluster
        self.folder = sandbox.RUN / name.replace(" ", "_")
        self.folder.mkdir()
        self.network = network.Network(cluster.nics)
        self.hosts = self.network.hosts
        begin = time.monotonic()
        # Few kernels: those of one rank alone take their place.
        command = [*AHEAD, options.usp, "calibrate", "-q", "--quick", "--max-seconds", options.max_seconds]
        self.files = calibrate.calibrate(self.hosts, cluster.per_host, options.launcher, command, self.folder)
        calibrate.for_paced_kernels(self.files[1], kernels)
        print(f"{name}: calibrated in {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)

    def measure(self, call):
        request = self.folder / "request.json"
        request.write_text(json.dumps(call.request(*self.files)))
        launch = launchers.LAUNCHERS[self.options.launcher]
        command = [*AHEAD, self.options.paced_calls, request, self.options.repeat, self.options.sweeps]
        code, out, errors = launch(self.hosts, self.cluster.per_host, command, PATIENCE_S)
        if code != 0:
            raise RuntimeError(errors)
        return json.loads(out)["plans"]

    def cell(self, call):
        """The quietest of some attempts."""
        quietest = None
        for _ in range(self.options.attempts):
            plans = self.measure(call)
            row = {**summary(plans), "all": plans}
            if quietest is None or row["noise"] < quietest["noise"]:
                quietest = row
            if quietest["noise"] <= self.options.quiet_below:
                break
        return quietest


HEAD = (f"{'network':17} {'call':5} {'choice':52} {'ms':>7} {'best ms':>7} {'regret':>7} {'again':>7} {'ulysses':>8} "
        f"{'ring':>8} {'A/A':>6} {'worst':>6} bytes")


def line(name, call, row):
    regret = row["regret"]
    return (f"{name:17} {call:5} {row['choice'][:52]:52} {1e3 * row['choice_s']:7.1f} {1e3 * row['best_s']:7.1f} "
            f"{regret['choice']:7.1%} {row['timed_again']:7.1%} {regret['most_ulysses']:8.1%} "
            f"{regret['always_ring']:8.1%} {row['noise']:6.1%} {row['worst_noise']:6.1%} "
            f"{'equal' if row['bytes_equal'] else 'DIFFER'}")


def totals(rows):
    for name, text in (("choice", "the planner"), ("most_ulysses", "most Ulysses"), ("always_ring", "always ring")):
        all_of = [row["regret"][name] for row in rows]
        print(f"{text:13} mean regret {statistics.mean(all_of):6.2%}, worst {max(all_of):6.1%}")
    print(f"the planner, timed again: mean regret {statistics.mean(row['timed_again'] for row in rows):6.2%}")
    print(f"A/A noise: median {statistics.median(row['noise'] for row in rows):.1%}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("usp")
    parser.add_argument("paced_calls")
    parser.add_argument("--networks", type=lambda text: text.split(","))
    parser.add_argument("--calls", type=lambda text: text.split(","), default=list(cases.CALLS))
    parser.add_argument("--launcher", choices=launchers.LAUNCHERS, default="sockets")
    parser.add_argument("--max-seconds", type=float, default=30)
    parser.add_argument("--kernels", type=pathlib.Path)
    parser.add_argument("--attempts", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--sweeps", type=int, default=3)
    parser.add_argument("--quiet-below", type=float, default=0.05)
    parser.add_argument("--results", type=pathlib.Path)
    return parser.parse_args()


def main():
    options = parse()
    sandbox.enter()
    known = {**cases.NETWORKS, **(cases.DELAYED if network.has_latency() else {})}
    file = options.results
    results = json.loads(file.read_text()) if file and file.exists() else {}
    print(HEAD)
    rows, kernels = [], None
    for name in options.networks or known:
        bench = None
        for call in options.calls:
            key = f"{name}/{call}"
            if key not in results:
                kernels = kernels or kernels_alone(options)
                bench = bench or Bench(options, name, known[name], kernels)
                results[key] = bench.cell(cases.CALLS[call])
                if file:
                    file.write_text(json.dumps(results, indent=1))
            rows.append(results[key])
            print(line(name, call, results[key]), flush=True)
        if bench:
            bench.network.take_down()
    totals(rows)


if __name__ == "__main__":
    main()
