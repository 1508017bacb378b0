#!/usr/bin/env python3
"""test_tour.py -- README.md and docs/tour.md show what comes out: their commands are run, in the
shell, and print the lines that stand behind them."""
import glob
import hashlib
import http.server
import json
import os
import pty
import re
import shutil
import subprocess
import tempfile
import threading

from report import LIMIT, PITH, SCALE, SHARED, check, run, skip, synth
from serving import Server

# What is not the same each time, or asks for something that is not here, and a chat at a terminal.
OTHERS = ("pith pull", "pith list", "pith rm", "pith serve", "curl", "make", "git",
          "pith run model.gguf --temp 0.7", "pith run model.gguf -f long.txt",
          "pith run cut.gguf", "pith run qwen2.5-0.5b")
# Flags of other programs, of a benchmark's and of compilers; one that is shown to be wrong.
NOT_OURS = {"--scenario", "--set", "--body", "--n-predict", "--reasoning", "-ffp-contract",
            "-ffast-math", "-march", "--tempp", "--max-logprobs"}
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


def texts_of_pages():
    """(page, text) of the commands in fenced blocks and of what stands in backticks."""
    for page in ["README.md"] + sorted(glob.glob("docs/*.md")):
        text = open(page, encoding="utf-8").read()
        fenced = r"^```[a-z]*\n(.*?)^```"
        for block in re.findall(fenced, text, re.S | re.M):
            for line in block.replace("\\\n", " ").splitlines():
                for command in re.findall(r"(?:^|[|&;(]|\$ )\s*(?:[A-Z_]+=\S+ )*(?:build/)?"
                                          r"(pith \w+[^|&;]*)", line):
                    if not command.startswith("pith run: "):  # what it said
                        yield page, command
        for code in re.findall(r"`([^`\n]+)`", re.sub(fenced, "", text, flags=re.S | re.M)):
            yield page, code


def test_flags():
    """Every flag that a page names is one of the command it stands behind, or of some command."""
    names = re.findall(r"^  (\w+)  ", subprocess.run([PITH, "help"], capture_output=True,
                                                     text=True).stdout, re.M)
    flag = r"(?<![\w-])--?[a-zA-Z][\w-]*"
    known = {c: set(re.findall(flag, subprocess.run([PITH, c, "--help"], capture_output=True,
                                                    text=True).stdout)) for c in names}
    some = set().union(*known.values())
    n = 0
    for page, text in texts_of_pages():
        command = re.match(r"pith ([a-z]\w*)\b(?!: )(.*)", text)
        of = known.get(command.group(1)) if command else some
        rest = re.sub(r"'[^']*'|\"[^\"]*\"", "", command.group(2) if command else text)
        named = set(re.findall(r"(?<!\S)" + flag, rest)) if command else set(re.findall(
            "^" + flag, rest))
        check("%s: a command" % page, of is not None, text) if of is None else None
        wrong = named - (of or set()) - NOT_OURS
        check("%s: %s" % (page, text[:60]), not wrong, sorted(wrong)) if wrong else None
        n += len(named)
    check("flags on pages", n > 150, n)


def test_made_by():
    """What a page says a figure or a file is made by is in the tree: programs, scripts with the
    flags that are named, targets of make."""
    makefile = open("Makefile").read()
    tests = {os.path.basename(t).split(".")[0] for t in glob.glob("tests/*/test_*")}
    n = 0
    for page in ["README.md"] + sorted(glob.glob("docs/*.md")):
        text = re.sub(r"\s*\n\s*", " ", open(page, encoding="utf-8").read())
        for code in re.findall(r"`([^`]+)`", text):
            wrong = []
            for kind, name in re.findall(r"build/(bench|tests)/([\w/]+)", code):
                there = os.path.exists("bench/%s.c" % name) if kind == "bench" else name in tests
                wrong += [] if there else [name]
                n += 1
            script = re.search(r"(?:bench|scripts|packaging|fuzz)/[\w/]+\.(?:py|sh)", code)
            if script and "*" not in code:
                there = os.path.exists(script.group())
                of = {"bench/serve.py": ["bench/serve_scenarios.py"],
                      "bench/versus_types.py": ["bench/versus.py"],
                      "bench/versus_shapes.py": ["bench/versus.py"]}.get(script.group(), [])
                source = "".join(open(f, encoding="utf-8").read()
                                 for f in [script.group(), *of]) if there else ""
                flags = re.findall(r"(?<!\S)--[a-z][\w-]*", code[script.end():])
                wrong += [f for f in flags if f not in source] if there else [script.group()]
                n += 1 + len(flags)
            target = re.match(r"make ([a-z]+)(?![\w=])", code)
            if target:
                there = re.search(r"^%s:|^\.PHONY:.* %s\b" % (2 * target.groups()), makefile, re.M)
                wrong += [] if there else [code]
                n += 1
            check("%s: %s" % (page, code[:70]), not wrong, wrong) if wrong else None
    check("what pages are made by", n > 60, n)


def test_server_of_first_page(model):
    """The server of README.md and the request below it, but for the port."""
    block = re.search(r"^```\n\$ (pith serve .*?)\n\$ (curl .*?)^```", open("README.md").read(),
                      re.S | re.M)
    flags = block.group(1).split()[3:]
    request, printed = re.match(r"([^\n]*\n(?:    [^\n]*\n)*)(.*)", block.group(2), re.S).groups()
    check("the first page's server", flags == ["--port", "8080"], flags)
    if not shutil.which("curl") or not shutil.which("jq"):
        return skip("the first page's request", "there is no curl or no jq")
    with Server(model) as s:
        p = subprocess.run(["bash", "-c", request.replace(":8080", ":%d" % s.port)], text=True,
                           capture_output=True, timeout=LIMIT,
                           env={**os.environ, "NO_PROXY": "localhost", "no_proxy": "localhost"})
        check("the first page's request", p.stdout.strip() == printed.strip(),
              (p.stdout, p.stderr, printed))


def test_first_words(model):
    """What `make run` prints is what the first page says it does."""
    page = open("README.md").read()
    block = page[page.index("```\nA library"):].split("```")[1]
    settings = dict(re.findall(r"^(PROMPT|SEED|N) +\?= (.*)$", open("Makefile").read(), re.M))
    p = subprocess.run([PITH, "run", model, "-p", settings["PROMPT"], "-n", settings["N"], "--seed",
                        settings["SEED"]], capture_output=True, text=True, timeout=LIMIT)
    said = settings["PROMPT"] + " ... " + p.stdout
    begin = words(block).removesuffix(" ...")
    check("first words", len(begin) > 60 and words(said).startswith(begin), (said, block))


def test_first_screen():
    """Before anything is explained: two commands, a chat, a server, the call from C."""
    screen = open("README.md").read().splitlines()[:45]
    for begin in ("make run", "make test", "$ pith run", "$ pith serve", "pith_generate("):
        check("first screen: " + begin, any(line.startswith(begin) for line in screen), screen)


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub with one repository of one file."""
    file = data = b""

    def do_GET(self):
        digest = hashlib.sha256(self.data).hexdigest()
        row = {"rfilename": self.file, "size": len(self.data),
               "lfs": {"sha256": digest, "size": len(self.data)}}
        listing = json.dumps({"sha": "c" * 40, "siblings": [row]}).encode()
        answer = listing if self.path.startswith("/api/models/Qwen/") else self.data
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def test_models_by_name(folder):
    """The commands that fetch, name and remove a model, as they stand on the page, against a hub of
    this machine; whoever types them answers what is asked."""
    block = re.search(r"^## Models by name$.*?^```\n(.*?)^```", open("docs/tour.md").read(),
                      re.S | re.M).group(1)
    commands = [line[2:].split("#")[0].strip() for line in block.splitlines()]
    words = [c.split()[1] for c in commands]
    check("what is typed of models", words == ["pull", "run", "list", "rm"], commands)
    if subprocess.run([PITH, "pull", "--help"], capture_output=True).returncode:
        return skip("models by name", "built without 'pith pull'")
    name = commands[1].split()[2]
    Hub.file = name + ".gguf"
    with open(synth(os.path.join(folder, "small.gguf"), "--layers", "1"), "rb") as f:
        Hub.data = f.read()
    hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True).start()
    home = os.path.join(folder, "home")
    env = {k: v for k, v in os.environ.items()
           if not k.startswith(("HF_", "PITH_", "XDG_", "HUGGING")) and not k.lower().endswith(
               "_proxy")}
    env.update(HOME=home, PATH=folder + ":" + env["PATH"], PITH_CACHE=home,
               HF_ENDPOINT="http://127.0.0.1:%d" % hub.server_port)
    where = os.path.join(home, ".local/share/pith/models", "hf", commands[0].split(":")[1],
                         Hub.file)

    def typed(i, answer=""):
        main_end, end = pty.openpty()
        p = subprocess.Popen(["bash", "-c", commands[i]], env=env, cwd=folder, text=True,
                             stdin=end, stdout=subprocess.PIPE, stderr=end, errors="replace")
        os.close(end)
        os.write(main_end, answer.encode())
        out = p.communicate(timeout=LIMIT)[0]
        os.close(main_end)
        return p.returncode, out

    os.mkdir(home)
    rc, out = typed(0)
    check("typed: pull", rc == 0 and out.strip() == where and os.path.exists(where), (rc, out))
    commands[1] += ' -p "a b" -n 3'  # a random model has no chat
    rc, out = typed(1)
    check("typed: run", rc == 0 and out, (rc, out))
    rc, out = typed(2)
    check("typed: list", rc == 0 and name in out, (rc, out))
    rc, out = typed(3, "n\n")
    check("typed: rm, and kept", os.path.exists(where), (rc, out))
    rc, out = typed(3, "y\n")
    check("typed: rm", rc == 0 and not os.path.exists(where) and name not in typed(2)[1],
          (rc, out))
    hub.shutdown()


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
        test_models_by_name(folder)
    test_first_screen()
    test_flags()
    test_made_by()
    if models["model"]:
        test_first_words(models["model"])
        test_server_of_first_page(models["model"])
    else:
        skip("first words", "at TEST_SCALE=10, with the default model")


run(main, "test_tour")
