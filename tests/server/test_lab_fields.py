#!/usr/bin/env python3
"""test_lab_fields.py -- the laboratory over HTTP: what a request may cost by its fields.

GET /docs tells every field with its type and bounds (server/fields.def), and from these alone come
the values that are tried: the least and the most of numbers and what lies beyond, the longest
texts, lists and objects, deep ones, and in fields of texts, objects and lists the grammars, schemas
and tools that tests/lab keeps. So a new field is tried without anybody's hand. Each field is tried
alone, then pairs of them at random. The bound is counted: steps of the library and bytes of the
account, by the bytes that were sent; nothing is answered with 500, all bytes are given back, and an
answer's bits are those of before.

TEST_SCALE 1: six values of each field, 10: all, and more pairs, 100: an hour's worth (20,000)."""
import json
import os
import random
import tempfile

from serving import SANITIZED, SCALE, SEED, Server, check, run, synth

LAB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lab")
MOST = 1 << 15  # bytes of a value, roughly
STEPS, STEPS_A_BYTE = 1 << 28, 1 << 14
MEMORY, MEMORY_OF_ALL = 64 << 20, 256 << 20
TEMPLATE = """{%- for t in tools or [] %}{{ t | tojson }}{% endfor -%}
{%- for m in messages %}<{{ m.role }}>{{ m.content | string | trim }}{% endfor %}<assistant>"""
# What an endpoint wants at least, by the names of fields: where one is there, this is its value.
NEEDED = {"messages": [{"role": "user", "content": "w5"}], "prompt": "w5", "input": "w5",
          "content": "w5", "tokens": [5], "query": "w5", "documents": ["w5", "w6"],
          "input_prefix": "w5", "filename": "kept"}
SHORT = {"max_tokens": 4, "n_predict": 4, "num_predict": 4, "max_output_tokens": 4,
         "max_completion_tokens": 4}


def lab(kind):
    out = []
    for name in sorted(os.listdir(os.path.join(LAB, kind))):
        with open(os.path.join(LAB, kind, name), "rb") as f:
            out.append(f.read().decode("utf-8", "replace"))
    return out


def objects(texts):
    out = []
    for t in texts:
        try:
            out.append(json.loads(t))
        except ValueError:
            pass
    return [v for v in out if isinstance(v, dict)]


def deep(n, leaf):
    for _ in range(n):
        leaf = [leaf]
    return leaf


def tool(i, schema):
    return {"type": "function", "function": {"name": "f%d" % i, "parameters": schema}}


class Values:
    """Values of a field by its schema: what its type and bounds say, and what the laboratory has
    found for texts that are read by a grammar of their own."""

    def __init__(self):
        self.texts = [t for k in ("gbnf", "samplers", "jinja", "stop", "text", "answer")
                      for t in lab(k)]
        self.schemas = objects(lab("schema") + lab("variables"))
        wide = {"type": "object", "properties": {
            "p%d" % i: {"type": ["string", "integer", "array"][i % 3], "description": "d%d" % i}
            for i in range(60)}}
        self.schemas += [wide, {"oneOf": [{"const": i} for i in range(1000)]},
                         {"anyOf": [{**wide, "required": ["p%d" % i]} for i in range(4)]}]

    def numbers(self, f):
        lo, hi = f["minimum"], f["maximum"]
        out = [lo, hi, 0, 1, -1, 0.5, (lo + hi) / 2, 2 * hi + 1, -2 * hi - 1, 1e300]
        return [int(v) if "integer" in str(f["type"]) and abs(v) < 1e18 else v for v in out]

    def of(self, f, r, some):
        """some: how many of the laboratory's."""
        kinds = str(f.get("type", "")) + ("string, array" if "anyOf" in f else "")
        out = [None, deep(100, 1), "\ud800"]
        pick = lambda v: r.sample(v, min(some, len(v)))
        if "minimum" in f:
            out += self.numbers(f)
        if "boolean" in kinds:
            out += [True, False]
        if "string" in kinds:
            n = min(MOST, int(f.get("maxLength", MOST)))
            out += ["", "w" * n, ("w5 " * n)[:n], ("\"\\\n" * n)[:n // 2], "7" * n, "w" * (n + 1)]
            out += pick(self.texts)
        if "array" in kinds:
            n = min(MOST // 8, int(f.get("maxItems", MOST)))
            out += [[], ["w5"] * n, [5] * n, [[5, 0.5]] * (n // 4), [{}] * n,
                    [{"role": "user", "content": "w5 " * 9, "type": "text", "text": "w5"}]
                    * (n // 16), [deep(50, 1)] * 50, ["w5"] * (n + 1)]
            out += [[tool(i, s) for i, s in enumerate(pick(self.schemas))]]
            out += [[tool(i, s) for i in range(40)] for s in pick(self.schemas)
                    if 40 * len(json.dumps(s)) < 2 * MOST]
        if "object" in kinds:
            out += [{}, {str(i): i for i in range(MOST // 16)}, {"type": deep(99, 1)},
                    {"type": "json_object"}, {"type": "function", "function": {"name": "f0"}}]
            out += [v for s in pick(self.schemas) for v in
                    (s, {"type": "json_schema", "json_schema": {"name": "s", "schema": s}},
                     {"format": {"type": "json_schema", "name": "s", "schema": s}})]
        return out


class Tried:
    def __init__(self, server):
        self.s, self.steps, self.n, self.bad, self.worst = server, 0, 0, [], (0, "")
        docs = server.get("/docs")[1]["endpoints"]
        self.rows = [(e["path"].replace("*", "0?action=save"), e["fields"]) for e in docs
                     if e.get("fields") and e["method"] == "POST"
                     and not e["path"].startswith("/admin")]

    def send(self, path, fields, given):
        body = {k: v for k, v in {**NEEDED, **SHORT}.items() if k in fields}
        body.update(given)
        text = json.dumps(body)
        status = self.s.post(path, text)[0]
        now = self.s.metric("pith:key_steps_total")
        cost, self.steps = now - self.steps, now
        share = cost / (STEPS + STEPS_A_BYTE * len(text))
        self.n += 1
        self.worst = max(self.worst, (share, "%s %s: %d bytes, %d steps"
                                      % (path, " ".join(given), len(text), cost)))
        if status not in (200, 400, 403, 404, 405, 409, 413, 429, 501, 503) or share > 1:
            self.bad.append((path, status, cost, text[:300]))


def alone(tried, values, r):
    """Every field of every endpoint, where several have the same field in the first of them."""
    seen, names = set(), set()
    for path, fields in tried.rows:
        for name, f in sorted(fields.items()):
            names.add((path, name))
            what = (name, json.dumps(f, sort_keys=True))
            if what in seen:
                continue
            seen.add(what)
            tries = values.of(f, r, 2 if SCALE < 10 else 6)
            for v in tries if SCALE >= 10 else r.sample(tries, min(6, len(tries))):
                tried.send(path, fields, {name: v})
    print("# %d fields of %d endpoints, %d different ones, %d requests"
          % (len(names), len(tried.rows), len(seen), tried.n))
    check("every_field_is_tried", len(seen) > 150, len(seen))


def pairs(tried, values, r, n):
    for _ in range(n):
        path, fields = r.choice(tried.rows)
        two = r.sample(sorted(fields), min(2, len(fields)))
        tried.send(path, fields, {k: r.choice(values.of(fields[k], r, 1)) for k in two})


def main():
    r, values = random.Random(SEED), Values()
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "model.gguf"), "--arch", "llama", "--ctx", "256")
        path = os.path.join(folder, "talk.jinja")
        with open(path, "w") as f:
            f.write(TEMPLATE)
        with Server(model, "--ctx", "256", "--chat-template", path, "--embeddings",
                    "--request-memory", str(MEMORY), "--requests-memory", str(MEMORY_OF_ALL),
                    "--slot-save-path", folder, "--no-store-dir") as s:
            ask = {"prompt": "w5 w6", "max_tokens": 8, "temperature": 0, "logprobs": 2}
            before = s.post("/v1/completions", ask)[1]["choices"]
            tried = Tried(s)
            alone(tried, values, r)
            pairs(tried, values, r, 20000 if SCALE >= 100 else 1500 if SCALE >= 10 else 60)
            print("# the costliest takes %.2f %% of the bound: %s"
                  % (100 * tried.worst[0], tried.worst[1]))
            check("none_is_above_its_bound", not tried.bad, tried.bad[:3])
            check("none_is_above_the_account",
                  0 < s.metric("pith:key_bytes_peak") <= MEMORY_OF_ALL + MEMORY,
                  s.metric("pith:key_bytes_peak"))
            for slot in s.get("/slots")[1]:  # what these keep is theirs until others come
                s.post("/slots/%d?action=erase" % slot["id"], {})
            check("all_is_given_back", s.wait_for(lambda: s.metric("pith:key_bytes") == 0),
                  s.metric("pith:key_bytes"))
            check("the_process_stays_small", SANITIZED or s.most_memory() < 2 * MEMORY_OF_ALL,
                  s.most_memory())
            after = s.post("/v1/completions", ask)[1]["choices"]
            check("bits_are_those_of_before", after == before, (before, after))


run(main, "test_lab_fields")
