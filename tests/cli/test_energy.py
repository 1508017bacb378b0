#!/usr/bin/env python3
# In make test alone: every pith bench measures the machine first.
"""test_energy.py -- joules per token of pith bench, from a made-up /sys. Counters are pipes: each
time one is read it has the next value of a list, so that nothing depends on a clock."""
import json
import os
import subprocess
import tempfile
import threading

from report import LIMIT, PITH, check, run, synth

RANGE = 1000000


def package(root, folder, name, values=None):
    path = os.path.join(root, "class", "powercap", folder)
    os.makedirs(path)
    with open(os.path.join(path, "name"), "w") as f:
        f.write(name + "\n")
    counter, bound = (os.path.join(path, x) for x in ("energy_uj", "max_energy_range_uj"))
    if values is None:
        return
    os.mkfifo(counter)
    os.mkfifo(bound)

    def feed():  # whoever reads the range has read the counter: pipes open on both ends at once
        for v in values:
            with open(counter, "w") as f:
                f.write(str(v))
            with open(bound, "w") as f:
                f.write("%d\n" % RANGE)
    threading.Thread(target=feed, daemon=True).start()


def bench(model, root, *form):
    p = subprocess.run([PITH, "bench", model, "-p", "0", "-n", "4", "-r", "2", "-t", "1", *form],
                       capture_output=True, text=True, timeout=LIMIT,
                       env={**os.environ, "PITH_SYSFS": root})
    return p.returncode, p.stdout, p.stderr


def test_figures(model, top):
    # At open; before and after each of two runs: 0.2 J, then 0.3 J over the end of the range.
    root = os.path.join(top, "one")
    package(root, "intel-rapl:0", "package-0", [5, 100000, 300000, 900000, 200000])
    package(root, "intel-rapl:0:0", "core")
    package(root, "intel-rapl-mmio:0", "psys")
    package(root, "dtpm", "package-7")
    code, out, err = bench(model, root, "--json")
    row = json.loads(out)[0] if code == 0 else {}
    check("around the end of the range", abs(row.get("joules_per_token", 0) - 0.5 / 8) < 1e-9,
          (code, out, err))
    root = os.path.join(top, "two")
    package(root, "intel-rapl:0", "package-0", [0, 0, 100000, 100000, 200000])
    package(root, "intel-rapl:1", "package-1", [9, 9, 300009, 300009, 600009])
    code, out, err = bench(model, root)
    check("two packages, as text", code == 0 and "J/token" in out
          and out.splitlines()[-1].split()[-1] == "0.1", (code, out, err))
    for form, last, value in (("--csv", ",joules_per_token", ",0.1"),
                              ("--md", " J/token |", "| 0.1 |")):
        root = os.path.join(top, form)
        package(root, "intel-rapl:0", "package-0", [0, 0, 400000, 0, 400000])
        code, out, err = bench(model, root, form)
        lines = [line for line in out.splitlines() if "threads" in line and "tps" in line
                 or "| tokens/s |" in line]
        check("column of " + form, code == 0 and lines and lines[0].endswith(last)
              and out.splitlines()[-1].endswith(value), (code, out, err))


def test_nothing_to_read(model, top):
    def silent(what, root):
        code, out, err = bench(model, root, "--json")
        text = bench(model, root)[1]
        check(what, code == 0 and "joules" not in out and "J/token" not in text and err == "",
              (code, out, err, text))
    silent("no folder", os.path.join(top, "none"))
    root = os.path.join(top, "unreadable")
    package(root, "intel-rapl:0", "package-0")
    silent("no counter", root)
    path = os.path.join(root, "class", "powercap", "intel-rapl:0")
    os.mkdir(os.path.join(path, "energy_uj"))  # root may read any file, but no folder as one
    silent("a counter that cannot be read", root)
    for i, (value, bound) in enumerate((("", "9\n"), ("-5\n", "9\n"), ("12x\n", "9\n"),
                                        ("7\n", "many\n"))):
        root = os.path.join(top, "wrong%d" % i)
        package(root, "intel-rapl:0", "package-0")
        path = os.path.join(root, "class", "powercap", "intel-rapl:0")
        for name, text in ("energy_uj", value), ("max_energy_range_uj", bound):
            with open(os.path.join(path, name), "w") as f:
                f.write(text)
        silent("no numbers %d" % i, root)
    # One of two packages, and one that stops in the middle.
    root = os.path.join(top, "half")
    package(root, "intel-rapl:0", "package-0")
    package(root, "intel-rapl:1", "package-1")
    path = os.path.join(root, "class", "powercap", "intel-rapl:1")
    for name in "energy_uj", "max_energy_range_uj":
        with open(os.path.join(path, name), "w") as f:
            f.write("10\n")
    silent("one of two packages", root)
    root = os.path.join(top, "stops")
    package(root, "intel-rapl:0", "package-0", [0, 0, "gone"] + [0] * 4)
    code, out, err = bench(model, root, "--json")
    row = json.loads(out)[0] if code == 0 else {}
    check("a counter that stops", "joules_per_token" in row and row["joules_per_token"] is None
          and err == "", (code, out, err))


def main():
    with tempfile.TemporaryDirectory() as top:
        model = os.path.join(top, "model.gguf")
        synth(model)
        test_figures(model, top)
        test_nothing_to_read(model, top)


run(main, "test_energy")
