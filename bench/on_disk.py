#!/usr/bin/env python3
"""on_disk.py -- a mixture of experts that is larger than memory: is it faster to ask for experts
ahead than to meet their pages one after the other?

    bench/on_disk.py [--pith build/pith] [--model FILE] [--limit 1536M] [--blocks 3] [-n 48]

Makes FILE by `pith synth` where it is not there. Runs take turns, every second block the other way
round: `pith run --weights mapped` with and without --no-read-ahead, the same text (random weights,
one seed), in a control group with that much memory, the file's pages dropped before each. So it
needs root. Printed are tokens/s of the text behind the prompt, what came from the disk, major page
faults and the counts of the report; then means and their ratio. The status is 1 where texts
differ."""
import argparse
import os
import re
import resource
import signal
import statistics
import subprocess
import sys

SYNTH = ("--arch qwen3moe --type q4_0 --layers 16 --embd 2048 --heads 16 --heads-kv 4 --head-dim "
         "128 --ff 1024 --experts 64 --experts-used 8 --vocab 4096 --ctx 2048").split()
WAYS = {"plain": ["--no-read-ahead"], "ahead": []}


def size(text):
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1:].upper(), 0)
    return int(text[:-1] if unit else text) << unit


class Group:
    """A control group with a limit of memory, of either version."""
    def __init__(self, limit):
        self.second = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
        root = "/sys/fs/cgroup" + ("" if self.second else "/memory")
        self.path = f"{root}/pith-on-disk-{os.getpid()}"
        os.mkdir(self.path)
        self.put("memory.max" if self.second else "memory.limit_in_bytes", limit)

    def put(self, name, value):
        with open(f"{self.path}/{name}", "w") as f:
            f.write(str(value))

    def enter(self):
        self.put("cgroup.procs", os.getpid())

    def end(self):
        if not self.second:
            self.put("memory.force_empty", 0)
        os.rmdir(self.path)


def drop(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def once(a, group, way):
    drop(a.model)
    cmd = [a.pith, "run", a.model, "-p", "w1 w2 w3 w4", "-n", str(a.n), "--temp", "1",
           "--seed", "7", "--ignore-eog", "--weights", "mapped", "-c", "512", "-v"]
    cmd += WAYS[way] + a.flags
    was = resource.getrusage(resource.RUSAGE_CHILDREN)
    p = subprocess.run(cmd, capture_output=True, text=True, errors="replace",
                       preexec_fn=group.enter)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    if p.returncode:
        sys.exit(f"{' '.join(cmd)}: {p.returncode}\n{p.stderr[-2000:]}")
    n, seconds = re.search(r"text: (\d+) tokens in ([\d.]+) s", p.stderr).groups()
    told = re.search(r"experts in the file: .*", p.stderr)
    return {"tps": int(n) / float(seconds), "text": p.stdout, "told": told.group(0) if told else "",
            "mib": (now.ru_inblock - was.ru_inblock) / 2048,
            "faults": now.ru_majflt - was.ru_majflt,
            "cpu": now.ru_utime + now.ru_stime - was.ru_utime - was.ru_stime}


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--pith", default="build/pith")
    ap.add_argument("--model", default="/tmp/pith-on-disk.gguf")
    ap.add_argument("--limit", type=size, default="1536M")
    ap.add_argument("--blocks", type=int, default=3)
    ap.add_argument("-n", type=int, default=48, help="tokens of a run")
    ap.add_argument("flags", nargs="*", help="more flags of pith run, behind --")
    a = ap.parse_args()
    if not os.path.exists(a.model):
        subprocess.run([a.pith, "synth", a.model, *SYNTH], check=True)
    print(f"{os.path.getsize(a.model) / 2**20:.0f} MiB of file, {a.limit / 2**20:.0f} MiB of "
          f"memory, {a.n} tokens")
    all_of = {w: [] for w in WAYS}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    group = Group(a.limit)
    try:
        for b in range(a.blocks):
            for way in list(WAYS)[::-1 if b % 2 else 1]:
                r = once(a, group, way)
                all_of[way].append(r)
                print(f"{way}: {r['tps']:.2f} tokens/s, {r['mib']:.0f} MiB read, {r['faults']} "
                      f"faults, {r['cpu']:.1f} s of processors {r['told']}", flush=True)
    finally:
        group.end()
    mean = {w: statistics.mean(r["tps"] for r in all_of[w]) for w in WAYS}
    print(f"plain {mean['plain']:.2f}, ahead {mean['ahead']:.2f} tokens/s: "
          f"{mean['ahead'] / mean['plain']:.2f} times")
    return len({r["text"] for w in WAYS for r in all_of[w]}) != 1


if __name__ == "__main__":
    sys.exit(main())
