#!/usr/bin/env python3
# In make test alone: make check has test_serve.py.
"""test_hostile.py -- hostile requests beside one good stream: what it gets are the bits of a quiet
server, /health always answers, nothing is answered with 500, and memory, files and threads come
back to their level. 60 requests at TEST_SCALE=1, 300 at 10, 1,000 beyond. The seed is printed
with a failure; each kind of request is a function below."""
import json
import os
import random
import resource
import socket
import struct
import tempfile
import threading
import time

from serving import (LIMIT, SCALE, SEED, Server, check, completion, events, prompts, raw_post, run,
                     synth)

COUNT = {1: 60, 10: 300}.get(SCALE, 1000)
IDLE = {1: 50, 10: 500}.get(SCALE, 2000)
MAX_BODY = 1 << 20
MORE = 62  # THREADS_MAX of server/http/work.c, less the two that are there from the beginning
PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses",
         "/v1/embeddings", "/api/generate", "/api/chat", "/api/embed", "/api/show", "/tokenize",
         "/detokenize", "/apply-template", "/v1/messages/count_tokens"]


class Peer:
    """One connection that says what it likes; statuses() is what it was answered, until the server
    ends it."""

    def __init__(self, s):
        self.s, self.c = s, s.connect()

    def say(self, data):
        try:
            self.c.sendall(data)
        except OSError:  # it has been shown the door
            pass

    def heard(self):
        """What was said has been read when the server, which has one thread for all connections,
        answers another one."""
        self.s.get("/live")

    def statuses(self, more=True):
        """more=False: nothing else will be said."""
        data = b""
        try:
            if not more:
                self.c.shutdown(socket.SHUT_WR)
            while True:
                piece = self.c.recv(65536)
                if not piece:
                    break
                data += piece
                if len(data) > 1 << 24:
                    break
        except OSError:
            pass
        self.c.close()
        return [int(line[9:12]) for line in data.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")
                and line[9:12].isdigit()]

    def leave(self, reset):
        if reset:
            self.c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.c.close()


def head(path, length):
    return (b"POST " + path.encode()
            + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            % length)


def post(p, path, body):
    p.say(raw_post(path, body, "Connection: close\r\n"))
    return p.statuses()


# ---------------------------------------------------------------- bodies


def malformed(r, p, docs):
    raw = bytearray(json.dumps(r.choice(list(GOOD.values()))).encode())
    for _ in range(r.randint(1, 6)):
        at = r.randrange(len(raw))
        raw[at:at + r.randint(0, 3)] = bytes(r.choice(b'{}[]",:\\\x00\xff\xc3e-0.')
                                             for _ in range(r.randint(0, 3)))
    return post(p, r.choice(PATHS), bytes(raw))


def nested(r, p, docs):
    deep = r.choice([127, 128, 129, 1000, 100000, 400000])
    opening, closing = r.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"schema":', b"}]")])
    body = opening * deep + b"1" + (closing * deep if r.random() < 0.7 else b"")
    field = r.choice([b"prompt", b"messages", b"tools", b"response_format", b"input", b"options"])
    return post(p, r.choice(PATHS), (b'{"%s":' % field + body + b"}")[:MAX_BODY])


def extreme(r, p, docs):
    endpoint = r.choice(docs)
    field, row = r.choice(list(endpoint["fields"].items()))
    values = [True, -1, 0, 1, 10**18, -10**18, 2**63, 10**400, 1e308, -1e308, 5e-324, 0.5, "", "x",
              "x" * 100000, "\x00", "\ud800", [], {}, [[]], [None], {"a": {}}, [1] * 1000, ["a", 1],
              [-1], [10**9], {"type": "json_schema", "json_schema": {"schema": True}}, {"0": -100},
              {"temperature": -1}]
    values += [row[k] + d for k, d
               in (("minimum", -1), ("maximum", 1), ("minimum", 0), ("maximum", 0)) if k in row]
    values += ["x" * (row["maxLength"] + 1)] if row.get("maxLength", 10**9) < 10**6 else []
    raw = json.dumps({"timeout": 5, **GOOD.get(endpoint["path"], {}), field: r.choice(values)})
    return post(p, endpoint["path"], raw.encode())


def numbers(r, p, docs):
    n = r.choice([b"1e999999", b"-1e400", b"0." + b"9" * 50000, b"9" * 100000, b"1E-999999", b"-0",
                  b"0x10", b"NaN", b"Infinity", b"01", b"1e", b"--1"])
    return post(p, r.choice(PATHS),
                b'{"prompt":[3,4],"messages":[{"role":"user","content":"a"}],"%s":%s}'
                % (r.choice([b"temperature", b"seed", b"n", b"max_tokens", b"top_k"]), n))


def bad_text(r, p, docs):
    text = r.choice([b"\xff\xfe", b"\xc3(", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\\ud800",
                     b"\\udc00\\ud800", b"\\u0000", b"\x01\x02", b"\xe2\x82"])
    text = text * r.choice([1, 1000])
    return post(p, *r.choice([("/v1/completions", b'{"prompt":"' + text + b'","max_tokens":2}'),
                              ("/v1/chat/completions",
                               b'{"messages":[{"role":"' + text + b'","content":"' + text
                               + b'"}],"max_tokens":2}'),
                              ("/tokenize", b'{"content":"' + text + b'"}'),
                              ("/v1/completions", b'{"' + text + b'":1}'),
                              ("/v1/completions", b'{"prompt":[1],"stop":["' + text
                               + b'"],"max_tokens":2}')]))


def grammar_bomb(r, p, docs):
    text = r.choice(['root ::= "a"{1000000}', 'root ::= (("a"{100}){100}){100}', "root ::= root",
                     'root ::= root "a" | root "b" | "c"', 'root ::= ("a"*)*',
                     'root ::= ("a"* "a"*)* "b"', "root ::= x", "root ::= " + "(" * 5000,
                     "root ::= " + " | ".join('"%d"' % i for i in range(5000)),
                     'root ::= ' + ' '.join('("a" | "aa")' for _ in range(300)),
                     "\n".join('r%d ::= r%d r%d' % (i, i + 1, i + 1) for i in range(60))
                     + '\nr60 ::= "a"\nroot ::= r0', "root ::= [^\\x00-\\U0010FFFF]",
                     "root ::= [" + "a-z" * 10000 + "]", 'root ::= "' + "x" * 500000 + '"',
                     "a" * 100000, "root ::= \"a\n", "root ::= .{0,100000} .{0,100000}"])
    return post(p, "/v1/completions",
                {"prompt": [3, 4], "max_tokens": 8, "timeout": 10, "grammar": text})


def schema_bomb(r, p, docs):
    deep = {"type": "string"}
    for _ in range(r.choice([20, 60, 100])):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    wide = {"anyOf": [{"type": "object",
                       "properties": {"k%d" % i: {"type": "integer"} for i in range(30)}}
                      for _ in range(30)]}
    s = r.choice([{"$ref": "#"}, {"$ref": "#/$defs/x"},
                  {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
                   "$ref": "#/$defs/a"}, {"enum": list(range(20000))},
                  {"type": "string", "minLength": 10**9}, {"type": "string", "maxLength": 10**7},
                  {"type": "string", "pattern": "^(a*)*b$"},
                  {"type": "string", "pattern": "(" * 3000},
                  {"type": "string", "pattern": "^(a|aa)+$" * 50},
                  {"type": "string", "pattern": "a{1000}{1000}"},
                  {"type": "array", "minItems": 10**8, "items": {}},
                  {"type": "array", "uniqueItems": True},
                  {"type": "integer", "minimum": -10**300, "maximum": 10**300},
                  {"type": "number", "multipleOf": 1e-300}, {"allOf": [wide, wide, wide]}, deep,
                  wide, {"not": {}}, False,
                  {"properties": {"k%d" % i: {} for i in range(1000)},
                   "additionalProperties": False},
                  {"type": "object", "patternProperties": {"^(x+x+)+y": {}}},
                  {"const": "x" * 200000}])
    return post(p, "/v1/chat/completions",
                {"messages": [{"role": "user", "content": "w3"}], "max_tokens": 8, "timeout": 10,
                 "response_format": {"type": "json_schema",
                                     "json_schema": {"name": "x", "schema": s}}})


def lists(r, p, docs):
    body, path = r.choice([({"prompt": [3], "stop": ["%d" % i * 20 for i in range(64)]},
                            "/v1/completions"), ({"prompt": [3], "stop": ["a"] * 50000},
                                                 "/v1/completions"),
                           ({"prompt": [3], "stop": "x" * 500000}, "/v1/completions"),
                           ({"prompt": [[3]] * 100000}, "/v1/completions"),
                           ({"prompt": [3] * 200000}, "/v1/completions"),
                           ({"prompt": [3], "n": 128, "best_of": 128}, "/v1/completions"),
                           ({"prompt": ["w3"] * 1024, "n": 128}, "/v1/completions"),
                           ({"prompt": [3], "logit_bias": {str(i): -100 for i in range(259)}},
                            "/v1/completions"), ({"prompt": [3],
                                                  "logit_bias": {str(i): 1 for i in range(50000)}},
                                                 "/v1/completions"),
                           ({"messages": [{"role": "user", "content": "a"}] * 10000},
                            "/v1/chat/completions"),
                           ({"messages": [{"role": "user",
                                           "content": [{"type": "text", "text": "a"}] * 20000}]},
                            "/v1/chat/completions"),
                           ({"messages": [{"role": "user",
                                           "content": [{"type": "text", "text": "a"}] * 25000}],
                             "max_tokens": 1}, "/v1/messages"),
                           ({"input": [{"role": "user", "content": [{"text": "a"}] * 40000}]},
                            "/v1/responses"), ({"messages": [{"role": "user", "content": "a"}],
                                                "tools": [{"type": "function",
                                                           "function": {"name": "f%d" % i,
                                    "parameters": {"type": "object"}}} for i in range(1000)],
                                                "tool_choice": "required"}, "/v1/chat/completions"),
                           ({"messages": [{"role": "user", "content": "a"}],
                             "tools": [None, 3, {}, []],
                             "tool_choice": {"function": {"name": "f"}}}, "/v1/chat/completions"),
                           ({"samplers": "top_k;" * 600, "prompt": [3]}, "/v1/completions"),
                           ({"prompt": [3], "dry_multiplier": 1,
                             "dry_sequence_breakers": ["x" * 1000] * 256}, "/v1/completions"),
                           ({"input": ["w3"] * 5000}, "/v1/embeddings"),
                           ({"tokens": [3] * 200000}, "/detokenize"),
                           ({"content": "w3 " * 200000, "with_pieces": True}, "/tokenize")])
    return post(p, path, {"max_tokens": 4, "timeout": 5, **body}
                if path in ("/v1/completions", "/v1/chat/completions") else body)


# ---------------------------------------------------------------- HTTP


def slow(r, p, docs):
    raw = head("/v1/completions", 1000)
    for i in range(0, r.randint(5, 60), 3):
        p.say(raw[i:i + 3])
        p.heard()
    if r.random() < 0.5:
        p.leave(r.random() < 0.5)
        return []
    p.say(raw[60:] + b'{"prompt":')
    return p.statuses()  # the server ends it


def early(r, p, docs):
    raw = raw_post("/v1/completions",
                   completion([3] * r.randint(1, 200), 100000, stream=r.random() < 0.5,
                              n=r.choice([1, 8])))
    p.say(raw[:r.choice([20, 90, 10**6, 10**6, 10**6])])
    if r.random() < 0.5:
        try:
            p.c.recv(r.choice([1, 100, 10000]))
        except OSError:
            pass
    p.leave(r.random() < 0.5)
    return []


def oversized(r, p, docs):
    way = r.randrange(3)
    if way == 0:
        p.say(head(r.choice(PATHS), r.choice([MAX_BODY + 1, 10**12, 10**19, 10**30])))
    elif way == 1:
        p.say(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
              b"chunked\r\nConnection: close\r\n\r\n")
        for _ in range(3 * MAX_BODY // 65536):
            p.say(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        p.say(b"0\r\n\r\n")
    else:
        p.say(head("/v1/completions", MAX_BODY) + b'{"prompt":"' + b"x" * (MAX_BODY - 13) + b'"}')
    return p.statuses()


def headers(r, p, docs):
    flood = r.choice([b"".join(b"X-%d: y\r\n" % i for i in range(5000)),
                      b"X: " + b"y" * 300000 + b"\r\n", b"Cookie: " + b"a=b; " * 20000 + b"\r\n",
                      b"X" * 100000 + b": y\r\n",
                      b"Authorization: Bearer " + b"k" * 50000 + b"\r\n", b": y\r\n" * 100,
                      b"X\x00Y: z\r\n", b"Origin: " + b"https://" * 5000 + b"\r\n",
                      b"traceparent: " + b"0" * 5000 + b"\r\n"])
    p.say(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + flood + b"Connection: close\r\n\r\n")
    return p.statuses()


def smuggled(r, p, docs):
    inner = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    more = r.choice([b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                     b"Content-Length: 5\r\nContent-Length: 6\r\n", b"Content-Length: -1\r\n",
                     b"Content-Length: +5\r\n", b"Content-Length: 5, 5\r\n",
                     b"Transfer-Encoding: xchunked\r\n",
                     b"Transfer-Encoding: chunked, identity\r\n",
                     b"Transfer-Encoding : chunked\r\n", b"Content-Length: 0x5\r\n",
                     b"X: y\r\n Content-Length: 5\r\n", b"Content-Length: 18446744073709551621\r\n",
                     b"Transfer-Encoding:\x0bchunked\r\n", b"Content-Length: 5\n"])
    p.say(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + more + b"\r\n0\r\n\r\n" + inner)
    return p.statuses(False)


def chunks(r, p, docs):
    lie = r.choice([b"zz\r\n{}\r\n0\r\n\r\n", b"ffffffffffffffff\r\n{}", b"-5\r\n{}\r\n",
                    b"5\r\n{}\r\n0\r\n\r\n", b"2\r\n{}0\r\n\r\n",
                    b"2;" + b"x=y;" * 5000 + b"\r\n{}\r\n0\r\n\r\n", b"1\r\n{\r\n" * 2000,
                    b"0\r\n" + b"X: y\r\n" * 5000 + b"\r\n", b"2\n{}\n0\n\n", b"\r\n",
                    b"0" * 5000 + b"2\r\n{}\r\n0\r\n\r\n"])
    p.say(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
          b"chunked\r\nConnection: close\r\n\r\n" + lie)
    return p.statuses(False)


def pipelined(r, p, docs):
    p.say(raw_post("/v1/completions", {"prompt": [3, 4], "max_tokens": 1}) * r.choice([2, 20])
          + b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    if r.random() < 0.3:
        p.leave(True)
        return []
    return p.statuses()


def lines(r, p, docs):
    p.say(r.choice([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(32),
                    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                    b"GET " + b"/" * 100000 + b" HTTP/1.1\r\n\r\n",
                    b"GET /%00/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: "
                    b"close\r\n\r\n",
                    b"GET http://evil.example/v1/models HTTP/1.1\r\nHost: "
                    b"localhost\r\nConnection: close\r\n\r\n", b"\r\n" * 5000,
                    b"FOO /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                    b"GET /health\r\n\r\n", b"GET /health HTTP/9.9\r\n\r\n",
                    b"GET /v1/models/" + b"%ff" * 3000
                    + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                    b"GET /props?" + b"model=x&" * 4000
                    + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                    bytes(r.randrange(256) for _ in range(2000)),
                    b"GET /health HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
                    b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n",
                    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: "
                    b"100-continue\r\nContent-Length: 10\r\nConnection: close\r\n\r\n"]))
    return p.statuses(False)


GOOD = {"/v1/completions": {"prompt": [3, 4], "max_tokens": 2},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "w3"}], "max_tokens": 2},
        "/tokenize": {"content": "a"}, "/detokenize": {"tokens": [3]},
        "/apply-template": {"messages": [{"role": "user", "content": "a"}]},
        "/v1/embeddings": {"input": "w3"}, "/v1/responses": {"input": "w3", "max_output_tokens": 2},
        "/v1/messages": {"messages": [{"role": "user", "content": "w3"}], "max_tokens": 2},
        "/api/chat": {"messages": [{"role": "user", "content": "w3"}],
                      "options": {"num_predict": 2}},
        "/api/generate": {"prompt": "w3", "options": {"num_predict": 2}}}
KINDS = [malformed, nested, extreme, extreme, extreme, numbers, bad_text, grammar_bomb, schema_bomb,
         lists, slow, early, early, oversized, headers, smuggled, chunks, pipelined, lines]


# ---------------------------------------------------------------- beside a good stream


def stream(s):
    raw = s.post("/v1/completions", completion(prompts(1, 20)[0], 300, stream=True))[1]
    return [(c["text"], c["logprobs"]) for e in events(raw) for c in e["choices"]]


def throw(s, n, seed, docs, wrong):
    """n hostile requests from four clients at once."""
    def client(k):
        r = random.Random(seed * 1000 + k)
        for i in range(k, n, 4):
            kind = KINDS[i % len(KINDS)]
            try:
                codes = kind(r, Peer(s), docs)
            except OSError:
                codes = []
            except Exception as e:
                codes = [repr(e)]
            wrong.extend((kind.__name__, c) for c in codes if c not in (501, 503, 505)
                         and (isinstance(c, str) or c >= 500))

    clients = [threading.Thread(target=client, args=(k,)) for k in range(4)]
    for t in clients:
        t.start()
    for t in clients:
        t.join()  # as long as it takes: each wait of theirs is bounded


def beside_a_stream(s, n, quiet, docs):
    """Differing streams, times of /health, wrong answers, streams in all."""
    stop = threading.Event()
    differing, healths, wrong, streams = [], [], [], []

    def good():
        while not stop.is_set():
            try:
                streams.append(stream(s) == quiet)
            except Exception as e:
                differing.append(repr(e))

    def health():
        while not stop.wait(0.02):
            began = time.monotonic()
            try:
                if s.get("/health")[0] == 200:
                    healths.append(time.monotonic() - began)
            except Exception as e:
                differing.append("health: " + repr(e))

    watchers = [threading.Thread(target=good), threading.Thread(target=health)]
    for t in watchers:
        t.start()
    throw(s, n, SEED, docs, wrong)
    stop.set()
    for t in watchers:
        t.join(2 * LIMIT)
    return differing + ["other bits" for same in streams if not same], healths, wrong, len(streams)


def idle(s, n):
    """Many connections that say nothing, and a client beside them."""
    held = []
    try:
        for _ in range(n):
            held.append(s.connect())
        return s.get("/health")[0] == 200 and s.post("/v1/completions",
                                                     completion([3, 4], 2))[0] == 200
    finally:
        for c in held:
            c.close()


def n_threads(s):
    return len(os.listdir("/proc/%d/task" % s.process.pid))


def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 3 * IDLE + 500)), hard))
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "m.gguf"), "--ctx", "512", "--layers", "2", "--seed",
                      "5")
        s = Server(model, "--ctx", "512", "--parallel", "8", "--queue", "64", "--max-body",
                   str(MAX_BODY), "--read-timeout", "2", "--prefix-store", "16M",
                   "--max-connections", str(2 * IDLE + 200), "--embeddings", "--grammar-cache",
                   "8M")  # what is kept for later requests is no growth
        docs = [e for e in s.get("/docs")[1]["endpoints"] if "fields" in e]
        quiet = stream(s)
        files, threads, memory = s.open_files(), n_threads(s), s.memory()
        began = time.monotonic()
        bad, healths, wrong, n_streams = beside_a_stream(s, COUNT, quiet, docs)
        seconds = time.monotonic() - began
        check("streams_beside_have_the_quiet_bits", n_streams > 0 and not bad,
              (SEED, n_streams, bad[:3]))
        check("no_internal_errors", not wrong, (SEED, wrong[:8]))
        check("idle_connections", idle(s, IDLE))
        check("comes_to_rest", s.wait_for(s.at_rest))
        check("files_come_back", s.wait_for(lambda: s.open_files() <= files + 1),
              (files, s.open_files()))
        # Threads that read requests stay for the next ones: at most MORE of them.
        check("threads_come_back", s.wait_for(lambda: n_threads(s) <= threads + MORE),
              (threads, n_threads(s)))
        check("memory_comes_back", s.wait_for(lambda: s.memory() < memory + (32 << 20)),
              (memory, s.memory()))
        check("stream_afterwards", stream(s) == quiet)
        healths.sort()
        print("%d requests in %.1f s, %d streams beside; /health %d times, median %.1f ms, most "
              "%.1f ms; memory %.1f -> %.1f MiB, files %d -> %d, threads %d -> %d"
              % (COUNT, seconds, n_streams, len(healths), 1e3 * healths[len(healths) // 2],
                 1e3 * healths[-1], memory / 2**20, s.memory() / 2**20, files, s.open_files(),
                 threads, n_threads(s)))
        check("ends_well", s.end() == 0)


run(main, "test_hostile")
