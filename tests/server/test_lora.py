#!/usr/bin/env python3
"""test_lora.py -- low-rank adapters from outside: pith run --lora, the server's flag, its field and
/lora-adapters. That what they add is right test_adapters.c shows; here is who has which."""
import json
import os
import random
import struct
import subprocess
import tempfile

from serving import PITH, Server, at_once, bits, check, completion, run, synth

PROMPT = [5, 6, 7, 8, 9] * 20
ADMIN = {"Authorization": "Bearer admin-secret"}


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def write_adapter(model, path, seed, rank=2, arch="llama"):
    """A GGUF file with random numbers for the products of the first layer."""
    inspected = subprocess.run([PITH, "inspect", "--json", model], capture_output=True, check=True)
    pairs = [(t["name"], t["shape"]) for t in json.loads(inspected.stdout)["tensors"]
             if t["name"].startswith("blk.0.") and len(t["shape"]) == 2]
    rng = random.Random(seed)
    keys = [("general.type", "adapter"), ("adapter.type", "lora"), ("general.architecture", arch)]
    tensors = [(name + end, shape) for name, (m, k) in pairs
               for end, shape in ((".lora_a", (rank, k)), (".lora_b", (m, rank)))]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys) + 1)
    for key, value in keys:
        head += text(key) + struct.pack("<I", 8) + text(value)
    head += text("adapter.lora.alpha") + struct.pack("<If", 6, 4.0)
    data = b""
    for name, (m, k) in tensors:
        head += text(name) + struct.pack("<IQQIQ", 2, k, m, 0, len(data))
        data += struct.pack("<%df" % (m * k), *(rng.gauss(0, 0.3) for _ in range(m * k)))
        data += bytes(-len(data) % 32)
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32) + data)
    return path


def ask(s, lora=None, prompt=PROMPT, **more):
    body = completion(prompt, 12, temperature=0, logprobs=1, **more)
    return bits(s.post("/v1/completions", body if lora is None else {**body, "lora": lora})[1])


def test_run(model, one):
    def said(*flags):
        a = subprocess.run([PITH, "run", model, "-p", "w5 w6 w7", "-n", "12", "--temp", "0",
                            "--raw", *flags], capture_output=True)
        return a.returncode, a.stdout, a.stderr.decode()
    plain, with_it = said(), said("--lora", one)
    check("run_adapts", plain[0] == with_it[0] == 0 and plain[1] != with_it[1], with_it)
    check("run_scales", said("--lora", one + ":0")[1] == plain[1]
          and said("--lora", one + ":1")[1] == with_it[1]
          and said("--lora", one + ":0.5", "--lora", one + ":0.5")[0] == 0)
    bad = said("--lora", model)
    check("run_refuses", bad[0] == 2 and "is no adapter: it has no general.type" in bad[2], bad)
    with_session = ["--session", one + ".session"]
    said("--lora", one, *with_session)
    for name, flags, words in (
            ("none", [], "with adapters, and sequence 0 has none"),
            ("other", ["--lora", one + ":0.5"], "with other adapters or scales")):
        other = said(*with_session, *flags)
        check("run_session_" + name, other[0] == 2 and words in other[2]
              and "give the --lora flags it was saved with" in other[2], other)
    check("run_session_goes_on", said("--lora", one, *with_session)[0] == 0)
    said("--session", one + ".plain")
    other = said("--lora", one, "--session", one + ".plain")
    check("run_session_without", other[0] == 2 and "without adapters, and" in other[2]
          and "leave --lora out" in other[2], other)
    check("run_missing", said("--lora", one + ".none")[0] != 0)


def test_server(model, one, two):
    with Server(model, "--ctx", "256") as s:
        plain = ask(s)
        none = s.get("/lora-adapters")
        check("none", none[:2] == (200, []), none)
        check("no_such_adapter", s.post("/v1/completions", {
            **completion([5], 2), "lora": [{"id": 0, "scale": 1}]})[0] == 400)
    with Server(model, "--ctx", "256", "--lora", one, "--lora", two + ":0", "--admin-key",
                "admin-secret") as s:
        s.key = ADMIN
        listed = s.get("/lora-adapters", **ADMIN)
        check("listed", listed[0] == 200 and [(a["id"], a["path"], a["scale"]) for a in listed[1]]
              == [(0, one, 1.0), (1, two, 0.0)], listed)
        first = ask(s)
        check("by_default", first != plain)
        check("by_request", ask(s, []) == plain and ask(s, [{"id": 0, "scale": 1.0}]) == first
              and ask(s, [{"id": 0}]) == first)
        second, half = ask(s, [{"id": 1, "scale": 1}]), ask(s, [{"id": 0, "scale": 0.5}])
        both = ask(s, [{"id": 0, "scale": 1}, {"id": 1, "scale": 1}])
        check("all_differ", len({json.dumps(v) for v in (plain, first, second, half, both)}) == 5)
        # Beside each other, their prompts the same: nobody has another's beginning.
        kinds = [[], [{"id": 0}], [{"id": 1}], [{"id": 0, "scale": 0.5}]]
        answers = at_once([lambda k=k: ask(s, k) for k in kinds * 4])
        wrong = [i for i, a in enumerate(answers) if a != [plain, first, second, half][i % 4]]
        check("beside_each_other", not wrong, wrong)
        set_to = s.post("/lora-adapters", [{"id": 1, "scale": 1}], **ADMIN)
        check("set", set_to[0] == 200 and [a["scale"] for a in set_to[1]] == [0.0, 1.0]
              and ask(s) == second, set_to)
        check("set_as_object", s.post("/lora-adapters", {"lora": []}, **ADMIN)[0] == 200
              and ask(s) == plain)
        bad = [s.post("/lora-adapters", body, **ADMIN)[0]
               for body in ([{"id": 2}], [{"id": -1}], [{"id": "0"}], [7], {}, {"lora": 3},
                            [{"id": 0, "scale": "1"}], [{"id": 0, "scale": 1e300}])]
        check("bad_sets", bad == [400] * len(bad) and ask(s) == plain, bad)
        bad = [s.post("/v1/completions", {**completion([5], 2), "lora": v})[0]
               for v in ([{"id": 2}], 3, [3], [{}], [{"id": 0, "scale": None}, {"id": 1.5}])]
        check("bad_fields", bad == [400] * len(bad), bad)
        told = s.post("/completion", {"prompt": [5, 6], "n_predict": 2, "lora": [{"id": 1}]})[1]
        check("told", told["generation_settings"]["lora"] == [{"id": 1, "scale": 1.0}], told)
    with Server(model, "--lora", one, "--api-key", "ann:using-secret") as s:
        s.key = {"Authorization": "Bearer using-secret"}
        said = s.post("/lora-adapters", [], **s.key)
        check("needs_an_admin", said[0] == 403 and "--admin-key" in said[1]["error"]["message"]
              and s.get("/lora-adapters", **s.key)[0] == 200, said)
    with Server(model, "--lora", one) as s:  # whoever has it to himself
        said = s.post("/lora-adapters", [{"id": 0, "scale": 0.25}])
        check("without_any_key", said[0] == 200 and said[1][0]["scale"] == 0.25, said)
    with Server(model, "--lora", one, "--admin-key", "admin-secret") as s:
        codes = [s.post("/lora-adapters", [])[0], s.post("/lora-adapters", [], **ADMIN)[0]]
        check("an_admin_alone", codes == [403, 200], codes)


def main():
    with tempfile.TemporaryDirectory() as d:
        model = synth(os.path.join(d, "model.gguf"), "--ctx", "256", "--layers", "2", "--seed", "3")
        one = write_adapter(model, os.path.join(d, "one.gguf"), 1)
        two = write_adapter(model, os.path.join(d, "two.gguf"), 2)
        test_run(model, one)
        test_server(model, one, two)


run(main, "test_lora")
