#!/usr/bin/env python3
"""pairs.py -- two programs of pith on one model, run by turns: how much faster is the second?

    bench/pairs.py BEFORE AFTER MODEL [--pairs 12] [--tests pp512,tg64,tg64@d4096,tg16x8,tg16x32]
        [--floor 0.98]

A test is a cell of bench/versus.py: pp512 (prefill), tg64 (decode), tg64@d4096 (behind 4,096
positions), tg16x8 (8 sequences side by side). A pair is one run of each program right after the
other; every second pair begins with AFTER. What the machine does to both falls out of the ratio;
where its limit of that minute (bytes read a second, of prefill operations a second, as each run
prints it) differs by over 10 % between the two, the pair is dropped and made again, three times
--pairs in all.

Printed are two estimates of AFTER / BEFORE (over 1: AFTER is faster), each with its lower bound of
95 % confidence, one side, over the logarithms:

    mean      geometric mean, Student's t: right where pairs differ as by a bell
    middle    median of all means of two pairs (Hodges and Lehmann), bound by the signed ranks of
              Wilcoxon: right also where some pairs are far off, as where the memory of a shared
              machine changes its speed between the two runs of a pair

The status is 1 when the middle's bound of any test lies under --floor. --out keeps all runs as
JSON."""
import argparse
import json
import math
import os
import statistics
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from versus import Failed, parse_test, run, say

TESTS = "pp512,tg64,tg64@d4096,tg16x8,tg16x32"
# Student's t, 95 % one-sided, for 1 to 30 degrees of freedom; from there on the normal's 1.645 is
# taken with a hundredth more.
T95 = [6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771,
       1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706,
       1.703, 1.701, 1.699, 1.697]


def speed(a, program, test):
    """Tokens/s of one run, and the machine's limit in it."""
    kind, n, seqs, depth = parse_test(test)
    cmd = [program, "bench", a.model, "-t", str(a.threads), "--repeat", str(a.reps), "--json"]
    cmd += ["-d", str(depth), "-np", str(seqs)]
    cmd += ["-p", str(n), "-n", "0"] if kind == "pp" else ["-p", "0", "-n", str(n)]
    row = json.loads(run(cmd, a.limit))[0]
    return row["tps"], row["int8_gops" if kind == "pp" else "read_gbs"]


def pairs(a, test):
    """Rows of [before, after]; how many were made for them."""
    rows, made = [], 0
    while len(rows) < a.pairs and made < 3 * a.pairs:
        got = [0.0, 0.0]
        limit = [0.0, 0.0]
        for k in ((0, 1), (1, 0))[made % 2]:
            got[k], limit[k] = speed(a, (a.before, a.after)[k], test)
        made += 1
        kept = max(limit) <= 1.1 * min(limit)
        if kept:
            rows.append(got)
        say(f"  {test} pair {made}: {got[0]:.1f} {got[1]:.1f} {got[1] / got[0]:.3f}"
            f" limits {limit[0]:.1f} {limit[1]:.1f}{'' if kept else ': dropped'}")
    if len(rows) < 2:
        raise Failed(f"{len(rows)} of {made} pairs had limits within 10 %")
    return rows, made


def bound(ratios):
    """Geometric mean and lower bound of 95 % confidence."""
    logs = [math.log(r) for r in ratios]
    mean = statistics.mean(logs)
    if len(logs) < 2:
        return math.exp(mean), 0.0
    t = T95[len(logs) - 2] if len(logs) - 2 < len(T95) else 1.66
    return math.exp(mean), math.exp(mean - t * statistics.stdev(logs) / math.sqrt(len(logs)))


def middle(ratios):
    """Hodges and Lehmann's estimate and its lower bound of 95 % confidence."""
    logs, n = [math.log(r) for r in ratios], len(ratios)
    means = sorted((logs[i] + logs[j]) / 2 for i in range(n) for j in range(i, n))
    spread = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    below = math.floor(n * (n + 1) / 4 - 1.645 * spread - 0.5)
    return math.exp(statistics.median(means)), math.exp(means[below]) if below >= 0 else 0.0


def heading():
    print(f"{'test':12} {'before':>10} {'after':>10} {'mean':>7} {'at least':>9}"
          f" {'middle':>7} {'at least':>9}")


def line(test, speeds, behind):
    """Prints what rows of [before, after], tokens/s, say of a test; returns the middle's bound."""
    ratios = [after / before for before, after in speeds]
    (mean, mean_least), (mid, least) = bound(ratios), middle(ratios)
    b, f = (statistics.median(r[k] for r in speeds) for k in (0, 1))
    print(f"{test:12} {b:10.1f} {f:10.1f} {mean:7.3f} {mean_least:9.3f}"
          f" {mid:7.3f} {least:9.3f}  {behind}", flush=True)
    return least


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("before", help="program whose speed is 1")
    ap.add_argument("after")
    ap.add_argument("model")
    ap.add_argument("--pairs", type=int, default=12, help="pairs of runs for each test, at least 2")
    ap.add_argument("--tests", default=TESTS)
    ap.add_argument("--reps", type=int, default=2, help="repeats in a run")
    ap.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    ap.add_argument("--floor", type=float, default=0.0,
                    help="status 1 when a middle's bound is lower")
    ap.add_argument("--limit", type=int, default=1800, help="seconds a single run may take")
    ap.add_argument("--out", help="file for all runs, JSON")
    a = ap.parse_args()
    if a.pairs < 2:
        ap.error("--pairs: one pair has no deviation")
    tests = a.tests.split(",")
    for t in tests:
        parse_test(t)
    runs, low = {}, []
    print(f"{os.path.basename(a.model)}, {a.threads} threads, {a.pairs} pairs; tokens/s")
    heading()
    for test in tests:
        try:
            rows, made = pairs(a, test)
        except (Failed, OSError) as e:
            sys.exit(f"pairs: {test}: {e}")
        runs[test] = rows
        least = line(test, rows, f"{len(rows)} of {made} pairs")
        if least < a.floor:
            low.append(test)
    if a.out:
        with open(a.out, "w") as f:
            json.dump({"model": os.path.basename(a.model), "threads": a.threads, "runs": runs}, f)
    if low:
        sys.exit(f"pairs: under {a.floor}: {', '.join(low)}")


if __name__ == "__main__":
    main()
