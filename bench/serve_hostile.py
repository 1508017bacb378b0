#!/usr/bin/env python3
"""serve_hostile.py -- scenarios of bench/serve.py in which somebody means harm, or everybody does
something else.

`hostile`: valid requests of small size and great cost, by two keys and without one, beside one good
stream and another key's /tokenize. The requests are those that once did harm (the nine below), and
the costliest that tests/text/test_lab.c has found (tests/lab), whole and mutated, and the extremes
of every field that GET /docs tells. `mixed`: chats, tools, schemas, embeddings, long prompts,
clients that leave, models that come and go, for hours.

As a program it is the attacker: serve_hostile.py URL SECONDS KEY... prints a line of JSON with
the statuses that it got."""
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

from serve_load import ROOT, Failed, Load, Stream, Target, gaps_of, quantiles, say

LAB = os.path.join(ROOT, "tests", "lab")


# ---------------------------------------------------------------- what does harm


def completion(**more):
    return "/v1/completions", {"prompt": "a", "max_tokens": 8, "temperature": 1, "timeout": 20,
                               **more}


def schema(s, **more):
    return completion(response_format={"type": "json_schema",
                                       "json_schema": {"name": "s", "schema": s}}, **more)


def windows(r):
    return completion(n=r.choice([32, 128]), max_tokens=1,
                      samplers="dry:penalty_last_n=16777216,multiplier=1")


def one_of(r):
    return schema({"oneOf": [{"const": i} for i in range(r.choice([5000, 10000]))]}, timeout=1)


def all_of(r):
    branch = lambda i, j: {"type": "object",
                           "properties": {"p%d_%d" % (i, j): {"description": "z" * 2000}}}
    return schema({"allOf": [{"anyOf": [branch(i, j) for j in range(10)]} for i in range(4)]})


def ambiguous(r):
    return completion(n=r.choice([8, 64]), max_tokens=64, ignore_eos=True,
                      grammar="root ::= s\ns ::= [a-z ] s s | [a-z ] s | [a-z ]")


def repeated(r):
    return completion(grammar='root ::= ("abcdefghijklmnopqrstuvwxyz0123456789"){9000}')


def ones(r):
    return "/tokenize", {"content": "1" * r.choice([1 << 16, 8 << 20])}


def breakers(r):
    chars = [chr(c) for c in range(0x21, 0x3000) if chr(c).isprintable()
             and c not in (0x22, 0x5C)][:4000]
    return completion(n=32, max_tokens=64, ignore_eos=True, dry_multiplier=1,
                      dry_sequence_breakers=chars)


def unknown_model(r):
    return completion(model="no-such-model-%d" % r.randrange(9))


NINE = [windows, one_of, all_of, ambiguous, repeated, ones, breakers, unknown_model]


def mutated(r, text):
    """Pieces doubled and numbers changed, as the laboratory does."""
    for _ in range(r.randrange(4)):
        a = r.randrange(len(text) + 1)
        b = min(len(text), a + 1 + r.randrange(40))
        text = text[:b] + text[a:b] * r.choice([0, 1, 1, 5]) + text[b:]
    return re.sub(r"\d+", lambda m: str(r.randrange(10 ** min(6, len(m[0])))) if r.random() < 0.2
                  else m[0], text)[:4096]


def found(r):
    """What the laboratory has found."""
    kind, name = r.choice(sorted((k, n) for k in os.listdir(LAB)
                                 for n in os.listdir(os.path.join(LAB, k))))
    with open(os.path.join(LAB, kind, name), "rb") as f:
        text = mutated(r, f.read().decode("utf-8", "replace"))
    if kind == "gbnf":
        return completion(grammar=text, n=r.choice([1, 8]), max_tokens=32)
    if kind == "schema":
        try:
            return schema(json.loads(text), n=r.choice([1, 8]), max_tokens=32)
        except ValueError:
            return completion(json_schema=text)
    if kind == "regex":
        return schema({"type": "string", "pattern": text}, max_tokens=32)
    if kind == "samplers":
        return completion(samplers=text, n=32, max_tokens=32)
    if kind == "stop":
        return completion(stop=[s for s in text.split("\n") if s][:16], max_tokens=64)
    if kind == "text":
        return "/tokenize", {"content": text * r.choice([1, 100])}
    return talk(r, kind, text)


# The server's own, so that requests reach the engine of templates: it goes over all that they send.
TEMPLATE = """{%- for t in tools or [] %}{{ t | tojson }}{% endfor -%}
{%- for m in messages %}{% set c = m.content | string %}
<{{ m.role }}>{{ c | trim | replace('<', '&lt;') }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}
{% endif %}{% for line in c.split('\n') %}{{ line | upper | length }}{% endfor %}{% endfor -%}
{%- for k in extra or [] %}{{ k | tojson(indent=2) }}{% endfor %}<assistant>"""


def talk(r, kind, text):
    """Conversations: what a template goes over. jinja: a text that is one; variables: values."""
    turns = [{"role": "user" if i % 2 == 0 else "assistant", "content": text}
             for i in range(r.choice([1, 1, 51, 501]))]
    body = {"messages": turns, "max_tokens": 4, "timeout": 20}
    if kind == "jinja":
        body["tools"] = [{"type": "function", "function": {"name": "f%d" % i, "description": text}}
                         for i in range(r.choice([1, 30]))]
    if kind == "variables":
        try:
            values = json.loads(text)
        except ValueError:
            values = text
        body["chat_template_kwargs"] = {"extra": [values] * r.choice([1, 100])}
    return r.choice(["/v1/chat/completions", "/apply-template"]), body


class Extremes:
    """Requests whose fields have the least, the most and the longest values that GET /docs tells,
    some of them at a time."""

    REQUIRED = {"messages": [{"role": "user", "content": "a"}], "prompt": "a", "input": "a",
                "content": "a", "tokens": [1], "query": "a", "documents": ["a", "b"]}

    def __init__(self, target):
        self.__name__ = "extremes"
        docs = json.loads(target.get("/docs")[1])["endpoints"]
        self.endpoints = [(e["path"], e["fields"]) for e in docs if e.get("fields")
                          and e["method"] == "POST" and "{" not in e["path"]]

    @staticmethod
    def values(field):
        out = [field[k] for k in ("minimum", "maximum") if k in field]
        kinds = str(field.get("type", ""))
        if "boolean" in kinds:
            out += [True, False]
        if "string" in kinds:
            out.append("a " * (min(1 << 16, int(field.get("maxLength") or 1 << 16)) // 2))
        if "array" in kinds:
            out.append(["a"] * min(4096, int(field.get("maxItems") or 4096)))
        if "object" in kinds:
            out.append({str(i): i for i in range(min(4096, int(field.get("maximum") or 4096)))})
        return out or [None]

    def __call__(self, r):
        path, fields = r.choice(self.endpoints)
        body = {k: v for k, v in self.REQUIRED.items() if k in fields}
        if "max_tokens" in fields:
            body["max_tokens"] = 16
        for name in r.sample(sorted(fields), min(len(fields), r.randint(1, 4))):
            body[name] = r.choice(self.values(fields[name]))
        if "timeout" in fields:
            body["timeout"] = 20
        return path, body


def ask(host, port, path, body, key, seconds):
    """The status, 0: none in time. The answer is read and thrown away."""
    data = json.dumps(body).encode()
    head = (f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\nContent-Type: "
            f"application/json\r\n"
            f"Authorization: Bearer {key}\r\nContent-Length: {len(data)}\r\n\r\n").encode()
    first, until = b"", time.monotonic() + seconds
    try:
        with socket.create_connection((host, port), 10) as s:
            s.settimeout(seconds)
            s.sendall(head + data)
            while time.monotonic() < until:
                piece = s.recv(1 << 16)
                if not piece:
                    break
                first = first or piece
    except OSError:
        pass
    line = first.split(b" ", 2)
    return int(line[1]) if len(line) > 1 and line[1].isdigit() else 0


def attack(url, seconds, keys, seed=1):
    """Six at a time, and 520 connections that say nothing. Statuses by kind of request."""
    u = urllib.parse.urlsplit(url)
    until, lock, statuses = time.monotonic() + seconds, threading.Lock(), {}
    idle = []
    target = Target(url, keys[0])
    extremes = Extremes(target)
    others = [m["id"] for m in json.loads(target.get("/v1/models")[1])["data"]][1:]

    def other_model(r):
        return completion(model=r.choice(others))

    def choose(r):
        if others and r.random() < 0.1:
            return other_model
        return r.choice([r.choice(NINE), r.choice(NINE), found, found, extremes])

    def one(i):
        r = random.Random(seed * 100 + i)
        while time.monotonic() < until:
            kind = choose(r)
            try:
                path, body = kind(r)
            except (OSError, IndexError):
                continue
            status = ask(u.hostname, u.port, path, body, keys[i % len(keys)], 30)
            with lock:
                row = statuses.setdefault(kind.__name__, {})
                row[status] = row.get(status, 0) + 1

    threads = [threading.Thread(target=one, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    while time.monotonic() < until:
        while len(idle) < 520 and time.monotonic() < until:
            try:
                idle.append(socket.create_connection((u.hostname, u.port), 5))
            except OSError:
                time.sleep(0.1)
        time.sleep(1)
        for c in idle[::2]:  # those that were shown the door come back
            try:
                if not c.recv(1, socket.MSG_DONTWAIT):
                    idle.remove(c)
            except BlockingIOError:
                pass
            except OSError:
                idle.remove(c)
    for t in threads:
        t.join()
    return statuses


# ---------------------------------------------------------------- the scenario


class Keys:
    """A file with a key for each name; as a context."""

    def __init__(self, *names):
        self.file = tempfile.NamedTemporaryFile("w", suffix=".keys")
        self.of = {n: f"key-of-{n}-1234567890" for n in names}
        self.file.write("".join(f"{n}:{k}\n" for n, k in self.of.items()))
        self.file.flush()


def poll_tokenize(target, key, over, out):
    while not over.is_set():
        began = time.perf_counter()
        if target.ask("POST", "/tokenize", {"content": "Once upon a time"}, key)[0] == 200:
            out.append(time.perf_counter() - began)
        time.sleep(max(0, 0.1 - time.perf_counter() + began))


def hostile(run, minutes=10.0, seconds=20.0, extra=""):
    """small requests of great cost by two keys beside a good stream: its P99 gap at most twice that
    alone and 100 ms, another key's /tokenize within 250 ms, the process within what /props says
    (memory.most.all), the stream's bits those of a quiet server. extra: another model's file, of
    which one at a time is loaded (--models-max 1) and which the two keys ask for: then /tokenize
    waits while models change, and has no limit, but nobody who is good is refused"""
    keys = Keys("good", "other", "evil", "worse")
    template = tempfile.NamedTemporaryFile("w", suffix=".jinja")
    template.write(TEMPLATE)
    template.flush()
    target = Target(None, keys.of["good"], run.a.pith, run.a.model,
                    ["--ctx", "4096", "--no-store-dir", "--api-key-file", keys.file.name,
                     "--chat-template", template.name,
                     *(["--models-max", "1", extra] if extra else [])])
    run.servers.append(target)
    memory = json.loads(target.get("/props")[1])["memory"]["most"]["all"]
    over, asked, resident, differ = threading.Event(), [], [], []
    fixed = {"model": target.name, "prompt": "The three primary colours are", "max_tokens": 48,
             "temperature": 0, "logprobs": 3, "ignore_eos": True}
    quiet = json.loads(target.ask("POST", "/v1/completions", fixed)[1])["choices"]
    load = Load(target)
    texts = lambda: {**fixed, "logprobs": None, "max_tokens": 1000, "stream": True,
                     "stream_options": {"include_usage": True},
                     "prompt": "word %d" % random.randrange(10 ** 6)}
    load.then = lambda s: None if over.is_set() else Stream(load, texts())
    Stream(load, texts())
    load.run(time.perf_counter() + 3)
    poller = threading.Thread(target=poll_tokenize, args=(target, keys.of["other"], over, asked))
    poller.start()
    began = time.perf_counter()
    load.run(began + seconds)
    alone, asked_alone = gaps_of([*load.live, *load.done], began), len(asked)
    attacker = subprocess.Popen([sys.executable, os.path.abspath(__file__),
                                 f"http://{target.host}:{target.port}", str(60 * minutes),
                                 keys.of["evil"], keys.of["worse"]], stdout=subprocess.PIPE,
                                text=True)
    began = time.perf_counter()

    def same():
        while not over.is_set():
            status, text = target.ask("POST", "/v1/completions", fixed)
            if status != 200 or json.loads(text)["choices"] != quiet:
                differ.append(text[:300].decode("utf-8", "replace"))
            over.wait(5)

    comparer = threading.Thread(target=same)
    comparer.start()
    while attacker.poll() is None:
        load.run(time.perf_counter() + 0.5)
        resident.append(target.resident()[0])
    statuses = json.loads(attacker.stdout.read() or "{}")
    beside = gaps_of([*load.live, *load.done], began)
    over.set()
    poller.join()
    comparer.join()
    load.drop()
    a, b, t = quantiles(alone), quantiles(beside), asked[asked_alone:] or [99.0]
    failed = [s.error for s in load.done if s.error]
    ok = (b["p99"] <= 2 * a["p99"] + 0.1 and (bool(extra) or max(t) <= 0.25)
          and max(resident) <= memory and not differ and not failed)
    return {"ok": ok, "alone": a, "beside": b, "worst_beside": max(beside),
            "tokenize": quantiles(t), "tokenize_worst": max(t), "tokenize_asked": len(t),
            "resident_most": max(resident), "max_memory": memory, "differ": differ[:2],
            "failed": failed[:2], "statuses": statuses}


# ---------------------------------------------------------------- everybody does something else


GET_WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


def takes_tools(target, model):
    """A model without a chat template refuses them."""
    body = {"model": model, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1,
            "tools": [GET_WEATHER]}
    return target.ask("POST", "/v1/chat/completions", body)[0] == 200


def kinds_of_request(r, model, tools):
    talk = [{"role": "user", "content": " ".join(
                                                 r.choices(["why", "is", "the", "sky", "blue",
                                                            "and", "grass", "green"],
                                                           k=r.randint(1, 40)))}]
    return r.choice([("/v1/chat/completions",
                      {"model": model, "messages": talk, "max_tokens": r.randint(1, 64)}),
                     ("/v1/chat/completions",
                      {"model": model, "messages": talk, "max_tokens": 64,
                       **({"tools": [GET_WEATHER], "tool_choice": r.choice(["auto", "required"])}
                          if tools else {})}), ("/v1/completions",
                                                {"model": model, "prompt": "a", "max_tokens": 48,
                                                 "response_format":
                                                 {"type": "json_schema",
                                                  "json_schema": {"name": "s",
                                                                  "schema": {"type": "object",
                                    "properties": {"k%d" % r.randrange(50): {"type": "integer"},
                                                   "t": {"enum": ["a", "b"]}}}}}}),
                     ("/v1/embeddings", {"model": model, "input": ["a b c"] * r.randint(1, 8)}),
                     ("/v1/completions", {"model": model, "max_tokens": 4, "prompt": "word "
                                          * r.randint(500, 3000 if tools else 1000)}),
                     ("/v1/completions", {"model": model, "prompt": "w", "max_tokens": 300,
                                          "n": r.randint(1, 4), "stream": True}),
                     ("/tokenize", {"content": "text " * r.randint(1, 5000)}),])


def mixed(run, minutes=120.0, clients=8, extra=""):
    """chats, tools, schemas, embeddings, long prompts, clients that leave and models that come and
    go: nothing fails, and memory, descriptors and threads do not grow. extra: another model's
    file, which takes turns with the first"""
    target = Target(None, None, run.a.pith, run.a.model,
                    ["--ctx", "4096", "--embeddings", "--prefix-store", "64M", "--models-max", "1",
                     *([extra] if extra else [])])
    run.servers.append(target)
    models = [m["id"] for m in json.loads(target.get("/v1/models")[1])["data"]]
    tools = {m: takes_tools(target, m) for m in models}
    until, lock, counts, bad, rows = time.monotonic() + 60 * minutes, threading.Lock(), {}, [], []

    def client(i):
        r = random.Random(i)
        while time.monotonic() < until:
            model = r.choice(models if r.random() < 0.02 else models[:1])
            path, body = kinds_of_request(r, model, tools[model])
            if r.random() < 0.1:  # leaves in the middle
                data = json.dumps(body).encode()
                with target.connect() as s:
                    s.sendall(target.head("POST", path, len(data)) + data)
                    time.sleep(r.random())
                continue
            status, text = target.ask("POST", path, body)
            with lock:
                counts[status] = counts.get(status, 0) + 1
                if status not in (200, 429):
                    bad.append((path, status, text[:200].decode("utf-8", "replace")))

    threads = [threading.Thread(target=client, args=(i,), daemon=True) for i in range(clients)]
    for t in threads:
        t.start()
    while time.monotonic() < until:
        time.sleep(min(60.0, max(0.1, until - time.monotonic())))
        resident, fds = target.resident()
        rows.append({"resident": resident, "fds": fds, "threads": len(target.threads()),
                     "answered": sum(counts.values())})
        say(json.dumps(rows[-1]))
        if target.process.poll() is not None:
            raise Failed("the server has ended")
    for t in threads:
        t.join(120)
    third = max(1, len(rows) // 3)
    middle, last = rows[third:2 * third] or rows, rows[-third:]
    most = lambda part, what: max(r[what] for r in part)
    grown = most(last, "resident") / most(middle, "resident")
    more = {what: most(last, what) - most(middle, what) for what in ("fds", "threads")}
    # A connection of each client and one of each model's file may be open when they are counted;
    # threads that read requests are made when they are needed and stay, so a few may come late.
    ok = not bad and grown <= 1.03 and more["fds"] <= clients + len(models) and more["threads"] <= 4
    return {"ok": ok, "minutes": minutes, "statuses": counts, "grown": grown, "more": more,
            "tools": tools, "first": rows[0], "last": rows[-1], "bad": bad[:5], "rows": rows}


if __name__ == "__main__":
    print(json.dumps(attack(sys.argv[1], float(sys.argv[2]), sys.argv[3:])))
