"""report.py -- what tests that are Python scripts share: the program and where it is, waits that
are bounded, how they count and close. What tests/test.h is to the programs."""
import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

PITH = os.path.join(os.environ.get("B", "build"), "pith")
SHARED = os.environ.get("PITH_SHARED", "../shared")
SCALE = int(os.environ.get("TEST_SCALE", "1"))
SEED = int(os.environ.get("TEST_SEED", "1"))
# nobody's own settings, and nothing is left in ~/.cache
CACHE = tempfile.mkdtemp(prefix="pith-test-cache-")
atexit.register(shutil.rmtree, CACHE, True)
os.environ["PITH_CACHE"] = os.path.join(CACHE, "pith")
# Seconds any one wait may take; with a sanitizer everything takes several times as long.
LIMIT = 240.0 if "san" in os.environ.get("B", "") else 40.0
counts = {"ok": 0, "FAIL": 0, "skip": 0}


def say(kind, text):
    counts[kind] += 1
    print(kind, text, flush=True)


def check(name, good, why=""):
    say("ok" if good else "FAIL",
        name if good else "%s: %s" % (name, " ".join(str(why).split())[:400]))


def skip(name, why):
    say("skip", "%s: %s" % (name, why))


def end():
    print("%d passed, %d failed, %d skipped" % (counts["ok"], counts["FAIL"], counts["skip"]))
    sys.exit(counts["FAIL"] > 0)


def guard(name, test):
    """One test's surprise is its own failure: it ends no others, and leaves no server."""
    try:
        test()
    except Exception:
        check(name, False, traceback.format_exc()[-300:])


def run(main, name, command=None):
    """A script's last line: main, whatever it raises, and the counts. command: what the program has
    to have been built with."""
    if command and (not os.access(PITH, os.X_OK)
                    or subprocess.run([PITH, command, "--help"], capture_output=True).returncode):
        skip(name, "built without 'pith %s'" % command)
    else:
        guard(name, main)
    end()


def wait_for(good, while_=lambda: True):
    """Has it come about in time?"""
    until, pause = time.monotonic() + LIMIT, 0.005
    while time.monotonic() < until and while_():
        if good():
            return True
        time.sleep(pause)
        pause = min(2 * pause, 0.02)  # to ask costs, too
    return False


def synth(path, *flags):
    subprocess.run([PITH, "synth", path, *flags], check=True, capture_output=True)
    return path


def jsonl(args, rows):
    """One JSON answer for each row."""
    out = subprocess.run([PITH, *args], input="".join(json.dumps(r) + "\n" for r in rows),
                         capture_output=True, text=True).stdout.split("\n")[:-1]
    return [json.loads(line) for line in out] if len(out) == len(rows) else [{}] * len(rows)
