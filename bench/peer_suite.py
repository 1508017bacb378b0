#!/usr/bin/env python3
"""peer_suite.py FOLDER -- the public test suite of llama.cpp's server against pith serve: counts
what passes, and lists what does not. Nothing of it is part of this tree: it is taken from the
source archive of the Python package llama-cpp-python into FOLDER, with an environment of its own.

--archive FILE says where that archive is; without, pip fetches it. --tests names other files than
the 15 that docs/compatibility.md counts.

stories260K stands for every model, and a small random one for the model that ranks (both from the
shared data). The suite starts its server by a program: this file, which then takes the peer's flags
and starts pith serve with ours (serve below). What it cannot say is dropped."""
import argparse
import os
import re
import subprocess
import sys
import tarfile

VERSION = "0.3.36"
FILES = ("basic chat_completion compat_anthropic compat_oai_responses completion ctx_shift "
         "security template tokenize embedding infill rerank slot_save ignore_eos stream").split()
NEEDS = ["pytest", "requests", "openai", "aiohttp", "numpy", "prometheus-client", "filelock",
         "wget"]

# The peer's flags with a value, and what they are here: a flag, or a field of every request.
FLAGS = {"--port": "--port", "-ctk": "--cache-type-k", "-ctv": "--cache-type-v",
         "--threads": "--threads", "--models-max": "--models-max", "--models-dir": "--models",
         "--slot-save-path": "--slot-save-path"}
FIELDS = {"--temp": "temperature", "--seed": "seed", "--n-predict": "n_predict"}
SWITCHES = {"--no-slots": ["--no-slots"], "--no-ui": ["--no-web"],
            "--embedding": ["--embeddings"], "--reranking": ["--embeddings"],
            "--context-shift": ["--default", "context_shift=true"],
            "--verbose": ["--default", "verbose=true"]}
# What the peer takes for a model without a template: ChatML, with tools in a form of no family.
CHATML = """{%- if tools %}<|im_start|>system
{{ tools | tojson }}
Call one as <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
TEMPLATES = "command-r gemma llama2 llama3 mistral-v7 phi3 vicuna zephyr".split()


def flags_here(theirs, model, ranks, chatml):
    """(pith's arguments, what was dropped)."""
    had, dropped, out, names = {}, [], [], []
    theirs = list(theirs)
    while theirs:
        flag = theirs.pop(0)
        is_flag = not theirs or re.match("-[^0-9]", theirs[0])
        value = None if flag in SWITCHES or is_flag else theirs.pop(0)
        had[flag] = value
        if flag in SWITCHES:
            out += SWITCHES[flag]
        elif flag in FLAGS:
            out += [FLAGS[flag], value]
        elif flag in FIELDS:
            out += ["--default", "%s=%s" % (FIELDS[flag], value)]
        elif flag == "--host":
            out += ["--host", value.split(",")[0]]
        elif flag == "--api-key":
            out += [x for key in value.split(",") for x in ("--api-key", key)]
        elif flag == "--alias":
            names = sorted(value.split(","))
        elif flag == "--reasoning":
            out += ["--default", 'chat_template_kwargs={"enable_thinking":%s}'
                    % ("false" if value == "off" else "true")]
        elif flag not in ("--ctx-size", "--parallel", "--model", "--chat-template",
                          "--chat-template-file", "--kv-unified"):
            dropped.append(flag)
    if had.get("--ctx-size"):  # of all its slots together, there
        slots = 1 if "--kv-unified" in had else int(had.get("--parallel") or 1)
        out += ["--ctx", str(max(int(had["--ctx-size"]) // slots, 1))]
    if had.get("--parallel"):
        out += ["--parallel", had["--parallel"]]
    if names:
        out += ["--name", names[0]] + [x for n in names for x in ("--alias", n)]
    template = had.get("--chat-template-file") or had.get("--chat-template") or chatml
    if template not in TEMPLATES and not os.path.exists(template):
        dropped.append("--chat-template " + template)
        template = chatml
    if "--reranking" in had:
        model = ranks
    else:
        out += ["--chat-template", template]
    if "--embedding" in had and "--reranking" in had:
        out.remove("--embeddings")
    return [had.get("--model") or model, *out], dropped


def serve():
    """As the suite's server."""
    pith, model, ranks = (os.environ["PEER_SUITE_" + x] for x in ("PITH", "MODEL", "RANKS"))
    template = next((sys.argv[i + 1] for i, a in enumerate(sys.argv[:-1])
                     if a == "--chat-template"), "")
    args = sys.argv[1:]
    if " " in template:  # a template's text, where we want a file or a name
        path = os.path.join(os.environ["PEER_SUITE_FOLDER"], "template.jinja")
        with open(path, "w") as f:
            f.write(template)
        args[args.index(template)] = path
    out, dropped = flags_here(args, model, ranks,
                              os.path.join(os.environ["PEER_SUITE_FOLDER"], "chatml.jinja"))
    print("peer_suite: dropped:", *dropped, file=sys.stderr)
    os.execv(pith, [pith, "serve", *out])


def unpack(archive, folder):
    """Its tests and the templates they read, nothing else."""
    part = re.compile(r"[^/]+/vendor/llama\.cpp/((?:tools/server/tests|models/templates)/.*)")
    with tarfile.open(archive) as tar:
        for m in tar.getmembers():
            inside = part.fullmatch(m.name)
            if m.isfile() and inside and ".." not in m.name:
                path = os.path.join(folder, "suite", inside.group(1))
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as f:
                    f.write(tar.extractfile(m).read())


def main():
    a = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("folder")
    a.add_argument("--archive")
    a.add_argument("--pith", default="build/pith")
    a.add_argument("--port", type=int, default=18931)
    a.add_argument("--tests", nargs="*", default=["test_%s.py" % f for f in FILES])
    a = a.parse_args()
    folder = os.path.abspath(a.folder)
    shared = os.path.abspath(os.environ.get("PITH_SHARED", "../shared"))
    os.makedirs(folder, exist_ok=True)
    python = os.path.join(folder, "venv", "bin", "python")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", os.path.join(folder, "venv")], check=True)
    if subprocess.run([python, "-c", "import pytest, requests, openai, aiohttp, numpy, "
                       "prometheus_client, filelock, wget"], capture_output=True).returncode:
        subprocess.run([python, "-m", "pip", "install", "-q", *NEEDS], check=True)
    archive = a.archive or os.path.join(folder, "llama_cpp_python-%s.tar.gz" % VERSION)
    if not os.path.exists(archive):
        subprocess.run([python, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:",
                        "-d", folder, "llama-cpp-python==" + VERSION], check=True)
    unpack(archive, folder)
    with open(os.path.join(folder, "chatml.jinja"), "w") as f:
        f.write(CHATML)
    models = os.path.join(shared, "vectors", "models", "stories260K.gguf"), \
        os.path.join(shared, "golden", "arch", "qwen3-rank.gguf")
    p = subprocess.Popen([python, "-m", "pytest", "-q", "-rfE", "--tb=no",
                          *("unit/" + t for t in a.tests)],
                         cwd=os.path.join(folder, "suite", "tools", "server", "tests"),
                         env={**os.environ, "LLAMA_SERVER_BIN_PATH": os.path.abspath(__file__),
                              "PORT": str(a.port), "PEER_SUITE_FOLDER": folder,
                              "PEER_SUITE_PITH": os.path.abspath(a.pith),
                              "PEER_SUITE_MODEL": models[0], "PEER_SUITE_RANKS": models[1]})
    return p.wait()


if __name__ == "__main__":
    sys.exit(serve() if "PEER_SUITE_PITH" in os.environ else main())
