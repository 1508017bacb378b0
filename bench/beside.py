#!/usr/bin/env python3
"""beside.py -- tokens per granted processor second, alone and beside spinning processes.

    bench/beside.py MODEL [--rounds 5] [-n 96] [--spinners 1,2] [--floor 0.9]

A round is one `pith bench -p 0 -n N` alone and one beside each number of spinning processes, each
of which is kept to a processor of its own, as long as there are such. What the system granted is
the user and system time of the run, opening and packing included: so a run of 1 token beside each
is taken off both tokens and seconds. The ratio to alone says what waiting for a thread that has
lost its core wastes. The status is 1 when the ratio beside one spinner is under --floor in any
round."""
import argparse
import json
import os
import resource
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def granted():
    r = resource.getrusage(resource.RUSAGE_CHILDREN)
    return r.ru_utime + r.ru_stime


def run(a, n):
    """Tokens/s by the clock, tokens decoded and seconds of processors of one run."""
    began = granted()
    p = subprocess.run([a.pith, "bench", a.model, "-p", "0", "-n", str(n), "-t", str(a.threads),
                        "--repeat", str(a.reps), "--json"], capture_output=True, text=True)
    if p.returncode:
        sys.exit(f"beside: {a.pith} bench: status {p.returncode}: {p.stderr.strip()[-300:]}")
    return json.loads(p.stdout)[0]["tps"], n * (a.reps + 1), granted() - began


def beside(a, spinners, cores):
    """Tokens/s, and tokens per granted second, with so many spinning processes. They are ended
    before their time is collected, so it is in no run's."""
    spin = [subprocess.Popen(["taskset", "-c", str(cores[i % len(cores)]), "sh", "-c",
                              "while :; do :; done"]) for i in range(spinners)]
    try:
        _, few, short = run(a, 1)
        tps, many, long = run(a, a.n)
    finally:
        for p in spin:
            p.kill()
            p.wait()
    if long <= short:
        sys.exit(f"beside: {a.n} tokens took no longer than 1; ask for more with -n")
    return tps, (many - few) / (long - short)


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model", metavar="MODEL")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("-n", type=int, default=96, help="steps of a repeat, at least 2")
    ap.add_argument("--reps", type=int, default=2, help="repeats in a run, beside the first")
    ap.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    ap.add_argument("--spinners", default="1,2", help="how many, with commas")
    ap.add_argument("--floor", type=float, default=0.9)
    ap.add_argument("--pith", default=os.path.join(ROOT, "build", "pith"))
    a = ap.parse_args()
    counts = [int(x) for x in a.spinners.split(",")]
    if a.n < 2 or a.rounds < 1 or min(counts) < 1:
        ap.error("-n is at least 2, --rounds and --spinners at least 1")
    cores = sorted(os.sched_getaffinity(0))
    low = []
    print(f"{os.path.basename(a.model)}, {a.threads} threads on {len(cores)} processors; tokens "
          f"per granted second (tokens/s by the clock), ratio to alone")
    for i in range(a.rounds):
        tps, alone = beside(a, 0, cores)
        line = f"round {i + 1}: alone {alone:.1f} ({tps:.1f})"
        for k in counts:
            tps, per = beside(a, k, cores)
            line += f"; {k} spinning {per:.1f} ({tps:.1f}) {per / alone:.3f}"
            if k == 1 and per < a.floor * alone:
                low.append(i + 1)
        print(line, flush=True)
    if low:
        sys.exit(f"beside: under {a.floor} beside one spinner in round {', '.join(map(str, low))}")


if __name__ == "__main__":
    main()
