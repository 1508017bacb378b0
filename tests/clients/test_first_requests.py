#!/usr/bin/env python3
"""test_first_requests.py -- the commands of docs/serve.md's "First requests", as they stand there,
give what is written below them."""
import os
import re
import shutil
import subprocess

from serving import LIMIT, Server, check, skip
from report import run


def examples():
    """(command, what it printed) of each."""
    with open("docs/serve.md", encoding="utf-8") as f:
        part = f.read().split("\n## First requests\n")[1].split("\n## ")[0]
    for block in re.findall(r"^```\n(.*?)^```$", part, re.S | re.M):
        for one in re.split(r"^\$ ", block, flags=re.M)[1:]:
            lines = one.splitlines()
            n = max(i for i, line in enumerate(lines) if i == 0 or line.startswith("    ")) + 1
            yield "\n".join(lines[:n]), "\n".join(lines[n:])


def main():
    model = os.environ.get("TEST_INSTRUCT")
    if not model:
        return skip("first_requests", "TEST_INSTRUCT names no model (make test fetches one)")
    for program in ("curl", "jq"):
        if not shutil.which(program):
            return skip("first_requests", "there is no " + program)
    all_of_them = list(examples())
    check("there are some", len(all_of_them) >= 6, all_of_them)
    with Server(model, "--ctx", "1024") as s:
        for command, printed in all_of_them:
            p = subprocess.run(["sh", "-c", command.replace(":8080", ":%d" % s.port)], text=True,
                               stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT,
                               env={**os.environ, "NO_PROXY": "localhost", "no_proxy": "localhost"})
            check(re.search("/[a-z0-9/]+", command).group(),
                  p.returncode == 0 and p.stdout.strip() == printed.strip(),
                  (p.stdout, p.stderr, printed))


run(main, "first_requests", "serve")
