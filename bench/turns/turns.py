#!/usr/bin/env python3
"""turns.py -- two builds of pith on one model, a tenth of a second each in turn.

    bench/turns/turns.py BEFORE AFTER MODEL [--launches 5] [--pairs 8] [--tests pp512,tg64,tg16x8]
        [--floor 0.98]

BEFORE and AFTER are build/bench/turns/turn of two trees. In the tree of an older commit:

    cc -O2 -Iinclude turn.c build/libpith.a -o turn -pthread -lm -ldl -lpcre2-8 -lutf8proc
        -ljansson -lxxhash

bench/pairs.py runs whole programs by turns. Where the memory of a shared machine changes its speed
every few seconds that is too coarse: here both programs are open, with the context filled, and take
turns of --steps steps (a prefill is one turn). A pair is one turn of each; every second pair begins
with AFTER. All is opened anew for each launch, since where pages lie is drawn at open. Tests are
named as those of pairs.py, but the number of steps is not looked at; the two estimates and the
status are the same."""
import argparse
import json
import os
import statistics
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from pairs import heading, line
from versus import Failed, Held, parse_test


def launch(a, test):
    """Pairs of nanoseconds, [before, after]."""
    kind, n, seqs, depth = parse_test(test)
    prefill, steps = (n, 0) if kind == "pp" else (0, a.steps)
    sides = [Held([p, a.model, a.threads, seqs, depth, prefill, steps])
             for p in (a.before, a.after)]
    for _ in range(2):
        for s in sides:
            s.ask()
    rows = []
    for made in range(a.pairs):
        got = [0, 0]
        for k in ((0, 1), (1, 0))[made % 2]:
            got[k] = sides[k].ask()[0]
        rows.append(got)
    for s in sides:
        s.close()
    return rows


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("before", help="turn whose speed is 1")
    ap.add_argument("after")
    ap.add_argument("model")
    ap.add_argument("--launches", type=int, default=5)
    ap.add_argument("--pairs", type=int, default=8, help="of a launch")
    ap.add_argument("--steps", type=int, default=8, help="steps in a turn of a decode test")
    ap.add_argument("--tests", default="pp512,tg64,tg16x8")
    ap.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    ap.add_argument("--floor", type=float, default=0.0,
                    help="status 1 when a middle's bound is lower")
    ap.add_argument("--out", help="file for all turns, JSON")
    a = ap.parse_args()
    if a.launches * a.pairs < 2:
        ap.error("--pairs: one pair has no deviation")
    tests = a.tests.split(",")
    runs, low = {}, []
    print(f"{os.path.basename(a.model)}, {a.threads} threads, {a.launches} launches of {a.pairs}"
          f" pairs; tokens/s")
    heading()
    for test in tests:
        kind, n, seqs, _ = parse_test(test)
        tokens = seqs * (n if kind == "pp" else a.steps)
        all_rows = [launch(a, test) for _ in range(a.launches)]
        rows = runs[test] = [r for rows in all_rows for r in rows]
        each = " ".join(f"{statistics.median(x / y for x, y in rows):.3f}" for rows in all_rows)
        speeds = [[1e9 * tokens / ns for ns in r] for r in rows]
        least = line(test, speeds, f"of each launch {each}")
        if least < a.floor:
            low.append(test)
    if a.out:
        with open(a.out, "w") as f:
            json.dump({"model": os.path.basename(a.model), "threads": a.threads, "ns": runs}, f)
    if low:
        sys.exit(f"turns: under {a.floor}: {', '.join(low)}")


if __name__ == "__main__":
    try:
        main()
    except Failed as e:
        sys.exit(f"turns: {e}")
