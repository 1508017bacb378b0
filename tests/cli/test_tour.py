#!/usr/bin/env python3
"""test_tour.py -- README.md and docs/tour.md show what comes out: their commands are run, in the
shell, and print the lines that stand behind them."""
import os
import re
import subprocess
import tempfile

from report import LIMIT, PITH, SCALE, SHARED, check, run, skip

# What is not the same each time, or asks for something that is not here, and a chat at a terminal.
OTHERS = ("pith pull", "pith list", "pith rm", "pith serve", "curl", "make", "git",
          "pith run model.gguf --temp 0.7", "pith run model.gguf -f long.txt",
          "pith run cut.gguf", "pith run qwen2.5-0.5b")
NAMES = {"gemma-2-2b-it.jinja": "google-gemma-2-2b-it.jinja",
         "qwen3.jinja": "Qwen-Qwen3-0.6B.jinja"}


def shown(path):
    """[(command, lines)] of the fenced blocks of a page."""
    found = []
    for block in re.findall(r"^```[a-z]*\n(.*?)^```", open(path).read(), re.S | re.M):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif found and "$ " in block:
                found[-1][1].append(line)
    return [(c, "\n".join(lines)) for c, lines in found]


def fetched(script):
    p = subprocess.run([script, "--if-present"], capture_output=True, text=True)
    return os.path.abspath(p.stdout.strip()) if p.returncode == 0 and p.stdout.strip() else None


def words(text):
    return " ".join(text.split())


def test_commands(path, folder, models):
    """Each in one folder, one after the other: some go on with a file of the one before."""
    n = left_out = 0
    env = {**os.environ, "PATH": folder + ":" + os.environ["PATH"], "PITH_CACHE": folder}
    for command, lines in shown(path):
        with_model = re.search(r"model\.gguf|\.bin", command)
        needs = "instruct" if '-p "What' in command else "model" if with_model else None
        jinja = [t for t in NAMES if t in command]
        if command.startswith(OTHERS) or any(t not in os.listdir(folder) for t in jinja):
            continue
        if needs and not models[needs]:
            left_out += 1
            continue
        text = re.sub(r"\S+\.gguf", models[needs], command) if needs == "instruct" else command
        p = subprocess.run(["bash", "-c", text], cwd=folder, env=env, text=True, timeout=LIMIT,
                           capture_output=True)
        said = p.stdout + (p.stderr if p.returncode else "")
        check("%s: %s" % (path, command[:60]), words(said) == words(lines), (said, lines))
        n += 1
    if left_out:
        skip("%d commands of %s" % (left_out, path), "at TEST_SCALE=10, with the models")
    return n + left_out


def test_first_words(model):
    """What `make run` prints is what the first page says it does."""
    page = open("README.md").read()
    block = page[page.index("```\nA library"):].split("```")[1]
    settings = dict(re.findall(r"^(PROMPT|SEED|N) +\?= (.*)$", open("Makefile").read(), re.M))
    p = subprocess.run([PITH, "run", model, "-p", settings["PROMPT"], "-n", settings["N"], "--seed",
                        settings["SEED"]], capture_output=True, text=True, timeout=LIMIT)
    said = settings["PROMPT"] + " ... " + p.stdout
    check("first words", words(said) == words(block), (said, block))


def main():
    models = {"model": None, "instruct": None}
    if SCALE >= 10:
        models = {"model": os.environ.get("TEST_GGUF") or fetched("scripts/model.sh"),
                  "instruct": fetched("scripts/instruct.sh")}
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.abspath(PITH), os.path.join(folder, "pith"))
        if models["model"]:
            os.symlink(models["model"], os.path.join(folder, "model.gguf"))
        for name, is_called in NAMES.items():
            path = os.path.abspath(os.path.join(SHARED, "vectors", "templates", is_called))
            if os.path.exists(path):
                os.symlink(path, os.path.join(folder, name))
        n = [test_commands(path, folder, models) for path in ("README.md", "docs/tour.md")]
        check("commands are found", all(n), n)
    if models["model"]:
        test_first_words(models["model"])
    else:
        skip("first words", "at TEST_SCALE=10, with the default model")


run(main, "test_tour")
