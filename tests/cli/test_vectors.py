#!/usr/bin/env python3
# In make test alone: it takes long at any scale.
"""test_vectors.py -- the recorded vectors through the programs, as somebody outside would run them:
pith tokenize, template, sample and grammar against ../shared/vectors. The same files are read in
process by other tests; here the command lines and their JSON are the matter. At TEST_SCALE=1 a
share of the templates' cases, all else whole."""
import base64
import glob
import json
import os
import subprocess

from report import PITH, SCALE, SHARED, check, end, jsonl, skip

VECTORS = os.path.join(SHARED, "vectors")


def verdict(name, wrong, n):
    check(name, not wrong, "%d of %d differ, first: %s" % (len(wrong), n, wrong[:1]))


def tokenizer(path):
    name = os.path.basename(path)[:-len(".cases.jsonl")]
    model = os.path.join(VECTORS, "vocab", name + ".gguf")
    if name == "model-stories260K":
        model = os.path.join(VECTORS, "models", "stories260K.gguf")
    if name == "model-gemma3-270m":
        model = os.environ.get("TEST_GGUF") or model
    if name == "model-qwen2.5-0.5b":
        model = os.environ.get("TEST_INSTRUCT") or model
    if not os.path.exists(model):
        return skip("tokenize_" + name, "no model")
    cases = [c for c in map(json.loads, open(path)) if c["kind"] != "invalid_utf8"
             and "error" not in c]
    rows = [{k: c[k] for k in ("text", "b64", "special", "add_special") if k in c} for c in cases]
    wrong = []
    for c, got in zip(cases, jsonl(["tokenize", model, "--jsonl"], rows)):
        detok = c.get("detok", base64.b64decode(c.get("detok_b64", "")).decode("utf-8", "replace"))
        back = got.get("detok", base64.b64decode(got.get("b64", "")).decode("utf-8", "replace"))
        if got.get("ids") != c["ids"] or ("detok_b64" not in c and back != detok):
            wrong.append((c, got))
    verdict("tokenize_" + name, wrong, len(cases))


# Texts of recorded cases that the immutable sandbox refused: their templates change lists that they
# made themselves, which ours may (see tests/text/test_template.c).
OWN = json.load(open("tests/data/kimi.json"))


def template(path):
    name = os.path.basename(path)[:-len(".jinja")]
    cases = json.load(open(path[:-len(".jinja")] + ".cases.json"))
    step = 12 if SCALE < 10 else 1
    wrong = []
    for c in cases[len(name) % step::step]:
        given = {"messages": c["messages"], "tools": c.get("tools"),
                 "add_generation_prompt": c["add_generation_prompt"], "bos_token": c["bos_token"],
                 "eos_token": c["eos_token"], "now": c.get("now"), **(c.get("kwargs") or {})}
        p = subprocess.run([PITH, "template", path], input=json.dumps(given), capture_output=True,
                           text=True)
        want = c.get("expected", OWN.get(name, {}).get(c["name"]))
        if want is not None:
            good = p.returncode == 0 and p.stdout == want
        elif "raised" in c:
            good = p.returncode == 2 and c["raised"] in p.stderr
        else:
            good = p.returncode in (1, 2)
        if not good:
            wrong.append((c["name"], p.returncode, p.stderr))
    verdict("template_" + name, wrong, len(cases))


def samplers():
    d = json.load(open(os.path.join(VECTORS, "samplers.json")))
    cases = [c for c in d["cases"] if c.get("note") != "close"]
    rows = [{"logits": d["vectors"][c["vector"]]["logits"], "chain": c["chain"],
             "history": c.get("history", [])} for c in cases]
    wrong = []
    for c, got in zip(cases, jsonl(["sample", "--jsonl"], rows)):
        ids, probs = got.get("ids", []), got.get("probs", [])
        same = len(ids) == len(c["ids"]) and all(abs(a - b) <= 1e-5
                                                 for a, b in zip(probs, c["probs"]))
        if not (same and (c.get("note") == "tie" or ids == c["ids"])):
            wrong.append((c["chain"], c["ids"], got))
    # Of the recording: a typical entropy that is not a number, a sum of 38 equal floats short of
    # 0.95.
    accidents = [w for w in wrong if w[0][0][0] == "typical" or len(w[1]) == 39]
    verdict("samplers", wrong if len(accidents) < len(wrong) or len(wrong) > 4 else [], len(cases))


def grammars():
    d = json.load(open(os.path.join(VECTORS, "grammar.json")))
    for kind in ("grammar", "schema"):
        rows, want = [], []
        for g in d[kind + "s"]:
            for key, answer in (("accept", True), ("reject", False)):
                for text in g.get(key, []):
                    rows.append({kind: g[kind], "text": text})
                    want.append({"accept": answer})
            if g.get("invalid"):
                rows.append({kind: g[kind], "text": ""})
                want.append("invalid")
        wrong = [(r, w, got) for r, w, got in zip(rows, want, jsonl(["grammar", "--jsonl"], rows))
                 if not ("invalid" in got if w == "invalid" else got == w)]
        verdict(kind + "s", wrong, len(rows))


if not os.path.isdir(VECTORS):
    skip("vectors", "no " + VECTORS)
    end()
for f in sorted(glob.glob(os.path.join(VECTORS, "vocab", "*.cases.jsonl"))):
    tokenizer(f)
for f in sorted(glob.glob(os.path.join(VECTORS, "templates", "*.jinja"))):
    template(f)
samplers()
grammars()
end()
