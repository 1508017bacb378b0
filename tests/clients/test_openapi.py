#!/usr/bin/env python3
"""test_openapi.py -- GET /openapi.json against the server that says it: each endpoint is there,
what is required is required, and (with the package schemathesis) what its phases think of is
never answered with 5xx, an undocumented status, another shape, or a good word for a body that
the file forbids. Whether every body that it allows is taken is not asked: no schema knows tokens
and grammars."""
import importlib.util
import os
import subprocess
import sys
import tempfile

from serving import SCALE, Server, check, run, skip, synth

# --max-examples and the phases of the sizes of tests
EXAMPLES, PHASES = 3 if SCALE < 100 else 100, "examples,coverage,fuzzing,stateful"


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


def test_schemathesis(name, model, phases, *flags, key=None):
    s = Server(model, "--ctx", "192", "--parallel", "4", *flags)
    done = subprocess.run([sys.executable, "-m", "schemathesis.cli", "run", s.url + "/openapi.json",
                           "--phases", phases, "--max-examples", str(EXAMPLES), "--seed", "1",
                           "--generation-database", "none", "--suppress-health-check", "all",
                           "--request-timeout", "60", "--exclude-checks",
                           "positive_data_acceptance", "--no-color",
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
        test_file(s)
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
        test_schemathesis("schemathesis", model, PHASES, "--embeddings", "--slot-save-path", slots)
        test_schemathesis("schemathesis_with_a_key", model, "fuzzing", "--slot-save-path", slots,
                          "--api-key", "ann:first-secret", key="first-secret")


run(main, "test_openapi")
