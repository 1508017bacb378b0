"""report.py -- how tests that are Python scripts count and close. What tests/test.h is to the programs."""
import sys

counts = {"ok": 0, "FAIL": 0, "skip": 0}


def say(kind, text):
    counts[kind] += 1
    print(kind, text, flush=True)


def end():
    print("%d passed, %d failed, %d skipped" % (counts["ok"], counts["FAIL"], counts["skip"]))
    sys.exit(counts["FAIL"] > 0)
