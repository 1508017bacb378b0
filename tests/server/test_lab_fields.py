#!/usr/bin/env python3
# In make test alone: it takes long at any scale.
"""test_lab_fields.py -- the laboratory over HTTP: a search for small requests of great cost.

What is tried is drawn from GET /openapi.json, which the tables of fields and routes make: every
field of every endpoint, and every member of what these hold, is a kind of its own, with values by
its schema: the least and the most, what lies beyond, the longest texts and lists, deep ones. What a
schema leaves free is filled from tests/lab, the costliest grammars, schemas and texts that
were found (test_lab.c). So a new field, type or endpoint is tried without anybody's hand.

Then it searches: the costliest requests of all are changed, cut and mixed. Those that were ever the
worst are tests/lab/request/n, where each run begins. Cost is counted: steps of the library, bytes
of the answer and of the account; each has a bound by the bytes that were sent. Nothing is answered
with 500, all bytes are given back, and an answer's bits are those of before.

TEST_SCALE 1: two values of each field and a short search, 10: all and a longer one, 100: for
TEST_LAB_SECONDS (1200), where processor time has a bound, too: work that nobody counts shows there.
TEST_LAB_KEEP=1: the worst are written to tests/lab."""
import copy
import json
import math
import os
import random
import re
import tempfile
import time

from serving import SANITIZED, SCALE, SEED, Server, check, run, synth

LAB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lab")
MOST, MOST_KEPT, N_KEPT, N_POPULATION = 1 << 15, 1 << 12, 12, 64  # bytes of a value, of a request
STEPS, STEPS_A_BYTE = 1 << 28, 1 << 14
MEMORY, MEMORY_OF_ALL = 64 << 20, 256 << 20
ITEMS = 64 << 10 # of answers, that a key's references may name
STORE = 32 << 20  # of beginnings: theirs to fill, beside what requests take
ANSWER, ANSWER_A_BYTE = MEMORY, 1 << 10
SECONDS = 10  # of processors, beside those of its steps
GOOD = (200, 400, 403, 404, 405, 409, 413, 429, 501, 503)
TEMPLATE = """{%- for t in tools or [] %}{{ t | tojson }}{% endfor -%}
{%- for m in messages %}<{{ m.role }}>{{ m.content | string | trim }}{% endfor %}<assistant>"""


def lab(kind):
    out, folder = [], os.path.join(LAB, kind)
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        with open(os.path.join(folder, name), "rb") as f:
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


def size(v):
    return len(json.dumps(v))


# ---------------------------------------------------------------- what the tables say


def kinds_of(schema):
    t = schema.get("type", [])
    return t if isinstance(t, list) else [t]


def members(schema):
    """Schemas inside of a schema, by a path of names."""
    for key in ("anyOf", "oneOf"):
        for s in schema.get(key, []):
            yield from members(s)
    if isinstance(schema.get("items"), dict) and schema["items"]:
        yield ("[]",), schema["items"]
        yield from ((("[]",) + p, s) for p, s in members(schema["items"]))
    for name, s in schema.get("properties", {}).items():
        yield (name,), s
        yield from (((name,) + p, s2) for p, s2 in members(s))


def least(schema):
    """A small value that a schema takes."""
    if "const" in schema or "enum" in schema:
        return schema.get("const", "user" if "user" in schema.get("enum", [])
                          else (schema.get("enum") or [None])[0])
    if "anyOf" in schema:
        return least(schema["anyOf"][0])
    kinds = kinds_of(schema)
    if "string" in kinds:
        return "w5"
    if "integer" in kinds or "number" in kinds:
        return min(max(4, schema.get("minimum", 4)), schema.get("maximum", 4))
    if "array" in kinds:
        return [least(schema["items"])] if schema.get("items") else ["w5"]
    if "boolean" in kinds and "object" not in kinds:
        return False
    return {k: least(s) for k, s in schema.get("properties", {}).items()}


class Tables:
    def __init__(self, s):
        paths = s.get("/openapi.json")[1]["paths"]
        self.rows, self.needed = {}, set()
        for path, methods in sorted(paths.items()):
            post = methods.get("post", {})
            body = post.get("requestBody", {}).get("content", {}).get("application/json", {})
            if body and not path.startswith("/admin"):
                self.rows[re.sub(r"\{\w+\}", "0", path)] = body["schema"]
                self.needed |= set(body["schema"]["required"])
        self.base = {path: self.learn(s, path) for path in self.rows}

    def fields(self, path):
        return self.rows[path]["properties"]

    def learn(self, s, path):
        """What the endpoint has to be given, so that it does something: what it wants, or others
        want by that name, and what it says is missing. Answers are short."""
        fields = self.fields(path)
        body = {k: least(f) for k, f in fields.items() if k in self.needed}
        body.update({k: 4 for k, f in fields.items()
                     if "integer" in kinds_of(f) and "most tokens" in f["description"]})
        for _ in range(4):
            said = json.dumps(s.post(self.asked(path), body)[1], default=str)
            lacks = re.search(r"(\w+)(?: and \w+)? (?:is|are) missing", said)
            if not lacks or lacks.group(1) not in fields or lacks.group(1) in body:
                break
            body[lacks.group(1)] = least(fields[lacks.group(1)])
        return body

    def asked(self, path, r=None):
        actions = ["save", "restore", "erase"]
        return path + "?action=" + (r.choice(actions) if r else "save") if "/slots/" in path \
            else path


# ---------------------------------------------------------------- values


class Values:
    """Values by a schema: what its types and bounds say, and what the laboratory has found for what
    they leave free."""

    def __init__(self, r):
        self.r = r
        self.texts = [t for k in ("gbnf", "samplers", "jinja", "stop", "text", "answer", "regex")
                      for t in lab(k)]
        self.schemas = objects(lab("schema") + lab("variables"))
        wide = {"type": "object", "properties": {
            "p%d" % i: {"type": ["string", "integer", "array"][i % 3], "description": "d%d" % i}
            for i in range(60)}}
        self.schemas += [wide, {"oneOf": [{"const": i} for i in range(1000)]},
                         {"anyOf": [{**wide, "required": ["p%d" % i]} for i in range(4)]},
                         {"type": "array", "uniqueItems": True,
                          "items": {"enum": list(range(300))}}]

    def pick(self, v, n):
        return self.r.sample(v, min(n, len(v)))

    def numbers(self, f):
        lo, hi = f.get("minimum", -1e6), f.get("maximum", 1e6)
        out = [lo, hi, 0, 1, -1, 0.5, (lo + hi) / 2, 2 * hi + 1, -2 * abs(lo) - 1, 1e300,
               lo + (hi - lo) * self.r.random() ** 8]
        return [int(v) if "integer" in kinds_of(f) and abs(v) < 1e18 else v for v in out]

    def strings(self, f):
        n = min(MOST, int(f.get("maxLength", MOST)))
        return ["", "w" * n, ("w5 " * n)[:n], ("\"\\\n" * n)[:n // 2], "7" * n, " " * n,
                ("\u4e2d" * n)[:n // 6], "w" * (n + 1)] + self.pick(self.texts, 3)

    def free_objects(self):
        """Of schemas, formats and tools, whatever they are of."""
        s, t = self.r.choice(self.schemas), self.r.choice(self.texts)
        tool = {"type": "function", "function": {"name": "f0", "parameters": s}}
        return [{}, {str(i): i for i in range(MOST // 16)}, {"type": deep(99, 1)}, s, tool,
                {"type": "json_object"}, {"type": "function", "function": {"name": "f0"}},
                {"type": "json_schema", "json_schema": {"name": "s", "schema": s}},
                {"format": {"type": "json_schema", "name": "s", "schema": s}},
                {self.r.choice(["json", "regex", "choice", "grammar", "text", "content"]): v
                 for v in (s, t)},
                {"type": "text", "role": "user", "text": t, "content": t}]

    def lists(self, f, depth):
        most = int(min(MOST // 8, f.get("maxItems", MOST)))
        item = f.get("items") or {}
        some = self.pick(self.of(item, depth + 1) if item else ["w5", 5, [5, 0.5], deep(50, 1)]
                         + self.free_objects(), 3)
        out = [[], ["w5"] * most, [5] * most, ["w5"] * (most + 1), some]
        for v in some:
            n = max(1, min(most, MOST // (1 + size(v))))
            out.append([v] * n)
            if isinstance(v, dict) and isinstance(v.get("function"), dict):
                out.append([{**v, "function": {**v["function"], "name": "f%d" % i}}
                            for i in range(min(n, 40))])
        return out

    def of(self, f, depth=0):
        kinds, out = kinds_of(f), [None, deep(100, 1), "\ud800"] if depth == 0 else []
        out += f.get("enum", []) + ([f["const"]] if "const" in f else [])
        for s in f.get("anyOf", []) + f.get("oneOf", []):
            out += self.of(s, depth + 1) if depth < 3 else []
        if "minimum" in f or {"integer", "number"} & set(kinds):
            out += self.numbers(f)
        if "boolean" in kinds:
            out += [True, False]
        if "string" in kinds:
            out += self.strings(f)
        if "array" in kinds and depth < 3:
            out += self.lists(f, depth)
        if "object" in kinds and depth < 3:
            out += self.free_objects() if not f.get("properties") else []
            whole = least(f)
            for name, s in f.get("properties", {}).items():
                out += [{**whole, name: v} for v in self.pick(self.of(s, depth + 1), 4)]
        return out if len(out) > 3 else out + self.strings({}) + self.free_objects()


# ---------------------------------------------------------------- the search


def nodes(v, path=()):
    yield path, v
    for k, w in v.items() if isinstance(v, dict) else enumerate(v) if isinstance(v, list) else ():
        if len(path) < 6:
            yield from nodes(w, path + (k,))


def put(v, path, w):
    for k in path[:-1]:
        v = v[k]
    v[path[-1]] = w


class Lab:
    def __init__(self, server, r):
        self.s, self.r, self.tables, self.values = server, r, Tables(server), Values(r)
        self.n, self.bad, self.found, self.tried = 0, [], {}, set()
        self.steps, self.peak = self.rest()
        self.most = 0  # memory of the process

    def cpu(self):
        with open("/proc/%d/stat" % self.s.process.pid) as f:
            v = f.read().rsplit(")", 1)[1].split()
        return (int(v[11]) + int(v[12])) / os.sysconf("SC_CLK_TCK")

    def rest(self):
        """Steps and the account's peak, when what a request has left behind has ended, too."""
        before = None
        for _ in range(200):
            text = self.s.get("/metrics")[1].decode()
            now = [
                float(re.search(r"(?m)^%s\{.*\} (\S+)$" % name, text).group(1))
                for name in ("vllm:num_requests_running", "vllm:num_requests_waiting",
                             "pith:key_steps_total", "pith:key_bytes_peak")]
            if now == before and not now[0] + now[1]:
                break
            before = now
        return now[2], now[3]

    def send(self, path, body, what="", again=False):
        fields = self.tables.fields(path)
        if "timeout" in fields and "timeout" not in what:  # what nobody counts ends all the same
            body = {**body, "timeout": 1}
        text = json.dumps(body)
        began = self.cpu() if SCALE >= 100 else 0
        self.s.forget_memory()
        had = self.s.most_memory("VmRSS")
        status, answer, _ = self.s.post(self.tables.asked(path, self.r), text)
        seconds = self.cpu() - began if SCALE >= 100 else 0
        now, peak = self.rest()
        took = self.s.most_memory() - had
        self.most = max(self.most, self.s.most_memory())
        n_answer = len(answer) if isinstance(answer, bytes) else size(answer)
        cost = {"steps": (now - self.steps) / (STEPS + STEPS_A_BYTE * len(text)),
                "answer": n_answer / (ANSWER + ANSWER_A_BYTE * len(text)),
                "account": max(0, peak - self.peak) / (MEMORY_OF_ALL + MEMORY),
                "process": took / (2 * MEMORY),
                "seconds": seconds / (SECONDS + 4 * (now - self.steps) / STEPS)}
        # to guide it: by each byte, of more than nothing
        score = max((now - self.steps) / (1e6 + 100 * len(text)), n_answer / (1e5 + len(text)),
                    10 * cost["account"], cost["seconds"], 10 * cost["process"])
        # of those that cost the same the smallest: so there are as many kinds as there can be
        kind = (path.startswith("/api"), status == 200, round(8 * math.log2(now - self.steps + 1)),
                round(math.log2(n_answer + 1)))
        self.steps, self.peak, self.n = now, max(peak, self.peak), self.n + 1
        if max(cost.values()) > 1 and not again:  # what was before it may have been counted late
            self.send(path, body, what, True)
        elif status not in GOOD or max(cost.values()) > 1:
            self.bad.append((path, status, cost, text[:300]))
        if len(text) <= 2 * MOST and (kind not in self.found or score > self.found[kind][0]):
            self.found[kind] = (score, max(cost.items(), key=lambda c: c[1]), path, body)

    def worst(self):
        return sorted(self.found.values(), key=lambda p: -p[0])

    def begin(self):
        """With the worst that were ever found, as far as there is such an endpoint."""
        for text in lab("request"):
            one = json.loads(text)
            if one["path"] in self.tables.rows:
                self.send(one["path"], one["body"])

    def alone(self):
        """Every field of every endpoint and every member of it, where several have the same field
        in the first of them."""
        seen, n = set(), 0
        for path in self.tables.rows:
            for name, f in sorted(self.tables.fields(path).items()):
                n += 1
                self.tried.update([(path, name)] + [(path, name) + p for p, _ in members(f)])
                what = (name, json.dumps(f, sort_keys=True))
                if what in seen:
                    continue
                seen.add(what)
                tries = self.values.of(f)
                for v in tries if SCALE >= 10 else self.values.pick(tries, 2):
                    self.send(path, {**self.tables.base[path], name: v}, name)
        print("# %d fields of %d endpoints, %d different ones, %d requests"
              % (n, len(self.tables.rows), len(seen), self.n))

    def changed(self, path, body):
        """A request with something of it larger, smaller, other, or of another request."""
        body, fields = copy.deepcopy(body), self.tables.fields(path)
        for _ in range(self.r.choice([1, 1, 2, 3])):
            where = [(p, v) for p, v in nodes(body) if p]
            way = self.r.randrange(6)
            if way < 2 or not where:
                name = self.r.choice(sorted(fields))
                body[name] = self.r.choice(self.values.of(fields[name]))
                continue
            p, v = self.r.choice(where)
            if way == 2 and isinstance(v, (str, list)) and size(v) < MOST:
                put(body, p, v * self.r.choice([2, 2, 8]))
            elif way == 2 and isinstance(v, dict):
                v.update({"x%d" % i: w for i, w in enumerate(list(v.values()))})
            elif way == 3 and isinstance(v, (str, list)):
                put(body, p, v[:len(v) // 2])
            elif way == 4 and len(p) == 1:
                del body[p[0]]
            elif isinstance(v, (int, float)) and not isinstance(v, bool):
                put(body, p, self.r.choice([10 * v, v + 1, v // 10, -v]))
            else:
                other = self.r.choice(self.worst())[3]
                put(body, p, copy.deepcopy(self.r.choice([w for _, w in nodes(other)])))
        return body

    def search(self, n, seconds):
        until = time.monotonic() + seconds
        for _ in range(n):
            if time.monotonic() > until or len(self.bad) > 9:
                break
            worst = self.worst()
            _, _, path, body = self.r.choice(worst[:self.r.choice([8, N_POPULATION, len(worst)])])
            self.send(path, self.changed(path, body))
        for _, cost, path, body in self.worst()[:4]:
            print("# %.2f %% of the bound of %s: %s %d bytes: %s"
                  % (100 * cost[1], cost[0], path, size(body), json.dumps(body)[:160]))

    def keep(self):
        """Of those that owe their cost to the same fields the worst."""
        folder, kept = os.path.join(LAB, "request"), []
        os.makedirs(folder, exist_ok=True)
        for _, _, path, body in self.worst():
            by = set(body) - set(self.tables.base[path]) - {"timeout"}
            if size(body) > MOST_KEPT or any(k <= by for k in kept) or len(kept) == N_KEPT:
                continue
            with open(os.path.join(folder, str(len(kept))), "w") as f:
                json.dump({"path": path, "body": body}, f)
            kept.append(by)


# ---------------------------------------------------------------- tests


def test_values(r):
    """Of a field that nobody has written a line for."""
    v = Values(r)
    numbers = v.of({"type": ["integer", "null"], "minimum": 3, "maximum": 9})
    check("a_new_number", {3, 9, 19, None} <= {n for n in numbers if not isinstance(n, list)}
          and min(n for n in numbers if isinstance(n, int)) < 3, numbers)
    texts = [len(t) for t in v.of({"type": "string", "maxLength": 50}) if isinstance(t, str)]
    check("a_new_text", {0, 50, 51} <= set(texts), sorted(set(texts)))
    lists = [len(t) for t in v.of({"type": "array", "maxItems": 7, "items": {"type": "boolean"}})
             if isinstance(t, list)]
    check("a_new_list", {0, 7, 8} <= set(lists), sorted(set(lists)))
    inner = {"type": "object", "properties": {"deep": {"type": "array", "items": {
        "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 5}}}}}}
    found = [x["n"] for _ in range(20) for t in v.of(inner) if isinstance(t, dict)
             for x in t.get("deep") or [] if isinstance(x, dict) and isinstance(x.get("n"), int)]
    check("members_of_a_new_object", {0, 5, 11} <= set(found), sorted(set(found)))
    check("whatever_it_is", len(v.of({})) > 10)


def check_fields(lab):
    """What /docs tells has been tried, and so has what it holds."""
    docs = {(re.sub(r"\*", "0", e["path"]), name, *inner)
            for e in lab.s.get("/docs")[1]["endpoints"] if e["method"] == "POST"
            and not e["path"].startswith("/admin") for name, f in (e.get("fields") or {}).items()
            for inner in [()] + [(k,) for k in f.get("properties", {})]}
    check("every_field_is_tried", len(docs) > 1000 and not docs - lab.tried,
          sorted(docs - lab.tried)[:5])


def main():
    r = random.Random(SEED)
    test_values(r)
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "model.gguf"), "--arch", "llama", "--ctx", "256")
        path = os.path.join(folder, "talk.jinja")
        with open(path, "w") as f:
            f.write(TEMPLATE)
        with Server(model, "--ctx", "256", "--chat-template", path, "--embeddings",
                    "--request-memory", str(MEMORY), "--requests-memory", str(MEMORY_OF_ALL),
                    "--slot-save-path", folder, "--no-store-dir",
                    "--prefix-store", str(STORE), "--item-cache", str(ITEMS)) as s:
            ask = {"prompt": "w5 w6", "max_tokens": 8, "temperature": 0, "logprobs": 2}
            before = s.post("/v1/completions", ask)[1]["choices"]
            lab = Lab(s, r)
            lab.begin()
            lab.alone()
            check_fields(lab)
            lab.search(10**9 if SCALE >= 100 else 200 if SCALE >= 10 else 20,
                       float(os.environ.get("TEST_LAB_SECONDS", 1200)))
            check("none_is_above_its_bound", not lab.bad, lab.bad[:3])
            check("none_is_above_the_account",
                  0 < s.metric("pith:key_bytes_peak") <= MEMORY_OF_ALL + MEMORY,
                  s.metric("pith:key_bytes_peak"))
            for slot in s.get("/slots")[1]:  # what these keep is theirs until others come
                s.post("/slots/%d?action=erase" % slot["id"], {})
            # Items of answers stay for references to them, up to their bound.
            check("all_is_given_back", s.wait_for(lambda: s.metric("pith:key_bytes") <= ITEMS),
                  s.metric("pith:key_bytes"))
            check("the_process_stays_small", lab.most < 2 * MEMORY_OF_ALL, lab.most)
            after = s.post("/v1/completions", ask)[1]["choices"]
            check("bits_are_those_of_before", after == before, (before, after))
            if os.environ.get("TEST_LAB_KEEP"):
                lab.keep()


run(main, "test_lab_fields")
