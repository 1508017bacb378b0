#!/usr/bin/env python3
"""test_openapi.py -- GET /openapi.json against the server that says it: each endpoint is there,
what is required is required, and (with the package schemathesis) what its phases think of is
never answered with 5xx, an undocumented status, another shape, or a good word for a body that
the file forbids. Whether every body that it allows is taken is not asked: no schema knows tokens
and grammars."""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

from serving import SCALE, Server, check, run, skip, synth

EXAMPLES = 3 if SCALE < 100 else 100  # --max-examples


def schema_of(api, path):
    """What is told of the body of a path."""
    return api["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]


def test_file(s):
    status, api, _ = s.get("/openapi.json")
    missing = []
    for e in s.get("/docs")[1]["endpoints"]:
        if e["path"] in ("/", "/web/*"):  # the page
            continue
        rest = "{id_slot}" if e["path"] == "/slots/*" else "{model}"
        op = api["paths"].get(e["path"].replace("*", rest), {}).get(e["method"].lower())
        body = (op or {}).get("requestBody", {}).get("content", {}).get("application/json",
                {}).get("schema", {})
        if not op or set(body.get("properties", {})) != set(e.get("fields", {})):
            missing.append(e["path"])
    check("every_endpoint_is_described",
          status == 200 and api["openapi"].startswith("3.1") and not missing, missing)
    told = [(e["path"], name, f) for e in s.get("/docs")[1]["endpoints"]
            for name, f in e.get("fields", {}).items()]
    told += [(path, name, f) for path, ops in api["paths"].items() for op in ops.values()
             for name, f in op.get("requestBody", {}).get("content", {}).get("application/json",
                {}).get("schema", {}).get("properties", {}).items()]
    check("every_field_has_a_type",
          len(told) > 400 and all("type" in f or "anyOf" in f for _, _, f in told),
          [t for t in told if "type" not in t[2] and "anyOf" not in t[2]])
    most = schema_of(api, "/v1/messages")["properties"]["max_tokens"]
    check("a_required_field_is_not_null_or_zero",
          most["minimum"] == 1 and most["type"] == "integer", most)
    wrong = []
    for path, ops in api["paths"].items():
        needed = ops.get("post", {}).get("requestBody", {}).get("content",
                                                                {}).get("application/json",
                {}).get("schema", {}).get("required")
        answer = s.post(path, {}) if needed else None
        if needed and (answer[0] != 400 or "missing" not in str(answer[1]["error"])):
            wrong.append((path, answer[:2]))
    check("what_is_required_is_refused_without", not wrong, wrong)
    r = s.ask("DELETE", "/v1/completions")
    model = schema_of(api, "/v1/completions")["properties"]["model"]
    check("names_of_models_are_told", s.get("/v1/models")[1]["data"][0]["id"] in model["examples"],
          model)
    check("method_not_allowed", r[0] == 405 and r[2].getheader("Allow") == "POST", r)
    return api


def fields_of(methods):
    """Fields as they are told, and what else is told of a path's bodies, answers and parameters."""
    found = set()
    for method, op in methods.items():
        body = op.get("requestBody", {}).get("content", {}).get("application/json",
                                                                {}).get("schema", {})
        rest = [method, op.get("parameters"), sorted(op.get("responses", {})),
                body.get("required")]
        found |= {json.dumps(v, sort_keys=True)
                  for v in [rest, *body.get("properties", {}).items()]}
    return found


def enough(api):
    """Paths that have each different field between them: most have those of another."""
    fields = {path: fields_of(methods) for path, methods in api["paths"].items()}
    left, chosen = set().union(*fields.values()), []
    while left and SCALE < 100:
        chosen.append(max(fields, key=lambda p: len(fields[p] & left)))
        left -= fields[chosen[-1]]
    return chosen or list(fields)


def test_schemathesis(name, model, phases, paths, *flags, key=None):
    s = Server(model, "--ctx", "192", "--parallel", "4", *flags)
    done = subprocess.run([sys.executable, "-m", "schemathesis.cli", "run", s.url + "/openapi.json",
                           "--phases", phases, "--max-examples", str(EXAMPLES), "--seed", "1",
                           "--generation-database", "none", "--suppress-health-check", "all",
                           "--request-timeout", "60", "--exclude-checks",
                           "positive_data_acceptance", "--no-color",
                           *(word for p in paths for word in ("--include-path", p)),
                           *(["-H", "Authorization: Bearer " + key] if key else [])],
                          capture_output=True, text=True, cwd=tempfile.gettempdir())
    said = (done.stdout[done.stdout.find("= FAILURES ="):] if "= FAILURES =" in done.stdout
            else done.stdout[-600:] + done.stderr[-600:])
    if done.returncode:
        print(said)
    check(name, done.returncode == 0, " ".join(said.split()))
    check(name + "_leaves_it_well", s.get("/health")[0] == 200 and s.end() == 0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "m.gguf"), "--ctx", "256", "--layers", "2", "--seed",
                      "5")
        s = Server(model, "--ctx", "192", "--embeddings")
        api = test_file(s)
        s.end()
        with Server(model, "--ctx", "192", "--api-key", "ann:first-secret", "--name",
                    "hidden-name") as s:
            check("but_to_nobody_without_his_key",
                  "hidden-name" not in str(s.get("/openapi.json")[1])
                  and "hidden-name" in str(s.get("/v1/models",
                                                 Authorization="Bearer first-secret")[1]))
        if SCALE < 10:
            skip("schemathesis", "only in make test")
            return
        if not importlib.util.find_spec("schemathesis"):
            skip("schemathesis", "the Python package is not installed")
            return
        # without a folder the action of a slot is 501
        slots = os.path.join(folder, "slots")
        os.mkdir(slots)
        flags = ["--embeddings", "--slot-save-path", slots]
        test_schemathesis("schemathesis", model, "examples,stateful", [], *flags)
        paths = enough(api)
        check("few_paths_have_all_fields", 5 < len(paths) < len(api["paths"]) / 2 or SCALE >= 100,
              paths)
        test_schemathesis("schemathesis_of_each_field", model, "coverage", paths, *flags)
        test_schemathesis("schemathesis_with_a_key", model, "fuzzing", [], *flags,
                          "--api-key", "ann:first-secret", key="first-secret")


run(main, "test_openapi")
