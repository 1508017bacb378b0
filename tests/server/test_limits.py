#!/usr/bin/env python3
# In make test alone: make check has test_serve.py.
"""test_limits.py -- the context contract of every endpoint that makes text: a prompt of any length
around the limit is evaluated whole (usage is its own count) or refused with 400 and how much it
is over; nothing else. And what a server keeps on disk, killed at any instant: the second request
of a conversation computes at most a page beyond what it shares with the first, and its bits are
those of a server that kept nothing. Between them: memory that ends in the middle of an answer
leaves no hole in it. And what one client asks for keeps no stream of another one waiting: while
much is written, read or ended between two steps, the longest gap between tokens of a text that
goes on is a small part of what doing it in one go takes. (How long it is counts in `make soak`
alone.)"""
import http.client
import os
import random
import resource
import tempfile
import threading
import time

from serving import (LIMIT, SANITIZED, SCALE, SEED, SHARED, Server, begin, bits, check, completion,
                     events, raw_post, run, skip, synth)

N_CTX = 192
LONG = 65536
SHORT = 0.25  # seconds; in one go each of what is tried takes three times as long and more
RESPONSES = "/v1/responses"
# path: a body with a text, and how many tokens the answer says that it had
ENDPOINTS = {"/v1/completions":
             (lambda t: {"prompt": t, "max_tokens": 2, "ignore_eos": True},
              lambda a: a["usage"]["prompt_tokens"]),
             "/v1/chat/completions": (lambda t:
                                      {"messages": [{"role": "user", "content": t}],
                                       "max_tokens": 2, "ignore_eos": True},
                                      lambda a: a["usage"]["prompt_tokens"]),
             "/v1/responses": (lambda t: {"input": t, "max_output_tokens": 2, "ignore_eos": True},
                               lambda a: a["usage"]["input_tokens"]),
             "/v1/messages": (lambda t: {"messages": [{"role": "user", "content": t}],
                                         "max_tokens": 2, "ignore_eos": True},
                              lambda a: a["usage"]["input_tokens"]
                              + a["usage"]["cache_read_input_tokens"]),
             "/api/generate": (lambda t:
                               {"prompt": t, "stream": False,
                                "options": {"num_predict": 2, "ignore_eos": True}},
                               lambda a: a["prompt_eval_count"]),}


def refusal(answer):
    """n_prompt, n_ctx and n_over of an error, whatever the API's shape."""
    e = answer["error"] if isinstance(answer["error"], dict) else answer
    return tuple(e.get(k) for k in ("n_prompt", "n_ctx", "n_over"))


def rendered(s, path, text):
    """The tokens of a request, counted by other endpoints."""
    content = text if path in ("/v1/completions", "/api/generate") else s.post("/apply-template",
                                                            {"messages": [{"role": "user",
                        "content": text}]})[1]["prompt"]
    return s.post("/tokenize", {"content": content, "add_special": True})[1]["count"]


def test_contract(s):
    for path, (body, count) in ENDPOINTS.items():
        wrong, refused = [], 0
        words = 1
        while rendered(s, path, "w5" + " w5" * (words - 1)) < N_CTX - 3:
            words += 1
        # words of a few tokens: lengths on both sides of the limit
        for more in (0, 1, 2, 3, 4, 200):
            text = "w5" + " w5" * (words + more - 1)
            n = rendered(s, path, text)
            status, a, _ = s.post(path, body(text))
            good = (count(a) == n and n <= N_CTX if status == 200 else status == 400 and n > N_CTX
                    and refusal(a) == (n, N_CTX, n - N_CTX))
            refused += status == 400
            if not good:
                wrong.append((n, status, a))
        check("contract_of_" + path.strip("/").replace("/", "_"), not wrong and 0 < refused < 6,
              (refused, wrong[:2]))


# ---------------------------------------------------------------- without memory

def data_bytes(s):
    with open("/proc/%d/status" % s.process.pid) as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmData"))


BOUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if SCALE >= 10 else (1, 2, 4, 8, 16)


def test_memory(model):
    """A server whose memory ends while it collects an answer: what it says is whole, or an error,
    and it lives on."""
    asks = {"/v1/completions": {"prompt": [3, 4, 5], "logprobs": 20},
            "/v1/chat/completions": {"messages": [{"role": "user", "content": "w3"}],
                                     "logprobs": True, "top_logprobs": 20}}
    most = 200 if SCALE >= 10 else 60
    asks = {path: {**body, "max_tokens": most, "n": 8, "temperature": 0, "ignore_eos": True}
            for path, body in asks.items()}
    if SANITIZED:
        skip("memory_that_ends", "a sanitizer needs memory of its own")
        return
    with Server(model, "--ctx", "256", "--parallel", "8") as s:
        want = {path: s.post(path, body)[1]["choices"] for path, body in asks.items()}
    with Server(model, "--ctx", "256", "--parallel", "8") as s:
        s.post("/v1/completions", completion([3, 4], 2))
        outcomes, wrong = [], []
        for more in (k << 18 for k in BOUNDS):
            resource.prlimit(s.process.pid, resource.RLIMIT_DATA,
                             (data_bytes(s) + more, resource.RLIM_INFINITY))
            for path, body in asks.items():
                try:
                    status, a, _ = s.post(path, body)
                except (ConnectionError, http.client.HTTPException):  # no memory even to say so
                    outcomes.append((more >> 10, 0))
                    continue
                outcomes.append((more >> 10, status))
                if status != 503 and (status, a["choices"]) != (200, want[path]):
                    wrong.append((path, status, str(a)[:200]))
            resource.prlimit(s.process.pid, resource.RLIMIT_DATA,
                             (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        check("memory_that_ends", any(o[1] == 503 for o in outcomes) and not wrong,
              (outcomes, wrong))
        check("and_comes_back", all(s.post(path, body)[1]["choices"] == want[path]
                                    for path, body in asks.items()))


def test_file_changes(model, folder):
    """A model's file that somebody writes to while it is in use: requests are told, the server
    lives, and is what it was when the bytes are. Cut short, it ends with a message: the system
    tells that by a signal and no other way."""
    path = os.path.join(folder, "changes.gguf")
    with open(model, "rb") as f:
        right = f.read()
    with open(path, "wb") as f:
        f.write(right)

    def write(data):
        with open(path, "r+b") as f:
            f.write(data)

    asks = (("/v1/completions", completion([3, 4, 5], 4)),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "w3"}],
                                      "max_tokens": 3, "logprobs": True}))
    with Server(path, "--ctx", "256", "--prefix-store", "0") as s:
        want = [bits(s.post(*asks[0])[1])]
        write(b"\xff" * len(right))
        for ask in asks:
            status, a, _ = s.post(*ask)
            check("weights_that_are_no_numbers " + ask[0], status == 500
                  and a["error"]["code"] == "model_damaged", str(a)[:300])
        write(bytes(random.Random(SEED).randrange(256) for _ in range(4096)) * (len(right) // 4096))
        seen = [s.post(*ask)[0] for ask in asks]
        seen += [s.post("/tokenize", {"content": "w3 w4"})[0], s.get("/props")[0],
                 s.get("/health")[0], s.post("/apply-template", asks[1][1])[0]]
        check("lives_with_any_weights", set(seen) <= {200, 400, 500} and seen[4] == 200
              and s.process.poll() is None, seen)
        write(right)
        check("is_what_it_was", s.post(*asks[0])[0] == 200
              and [bits(s.post(*asks[0])[1])] == want)
        if SANITIZED:
            skip("cut_short", "a sanitizer sees to SIGBUS itself")
            return
        os.truncate(path, 4096)
        try:
            s.post(*asks[0])
        except (ConnectionError, http.client.HTTPException):
            pass
        check("cut_short", s.process.wait(LIMIT) == 3)
        s.end()
        check("cut_short_is_told", "cannot be read any more" in s.said, s.said)


# ---------------------------------------------------------------- killed and started again


def test_beside_the_steps(model):
    """An answer that takes longer to write than steps do is written beside them: the same bits."""
    with Server(model, "--ctx", str(N_CTX)) as s:
        def ask(n):
            before = s.metric("pith:answers_beside_total")
            a = s.post("/v1/completions", completion("w1 w2", 60, n=n, logprobs=20))
            return a, s.metric("pith:answers_beside_total") - before

        (one, n_one), (many, n_many) = ask(1), ask(8)
        check("large_answers_are_written_beside_the_steps", (n_one, n_many) == (0, 1),
              (n_one, n_many))
        check("as_they_would_be", many[0] == 200 and bits(many[1]) == 8 * bits(one[1])
              and s.wait_for(s.at_rest), str(many[1])[:300])


def test_large_answer(model):
    """Log-probabilities are kept until an answer is whole; too many of them end it, and nothing
    else."""
    with Server(model, "--ctx", "4096") as s:
        ask = lambda n: s.post("/v1/completions",
                               completion([[1 + (7 * k) % 200 for k in range(4000)]] * n, 1,
                                          echo=True, logprobs=20))
        before = s.memory()
        refused = ask(14)
        check("large_answer_is_refused",
              refused[0] == 400 and refused[1]["error"]["code"] == "answer_too_large",
              str(refused[1])[:300])
        check("comes_to_rest", s.wait_for(lambda: s.at_rest() and s.memory() < before + (64 << 20)),
              (before, s.memory()))
        one = ask(1)
        check("one_is_answered", one[0] == 200
              and len(one[1]["choices"][0]["logprobs"]["tokens"]) == 4001)


def conversation(k, length):
    return [1 + (k * 31 + i * 7 + i * i) % 90 for i in range(length)]


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def n_keys(store):
    """Pages of the folder, whole files only."""
    return len({n.split("-")[0] for n in os.listdir(store)
                if n.endswith(".page")}) if os.path.isdir(store) else 0


def test_killed(model, name, folder, n_kills, page=64):
    """page: tokens that may have to be computed again beyond what is shared."""
    store = os.path.join(folder, name)
    r = random.Random(SEED)
    plain = Server(model, "--ctx", "1024", "--prefix-store", "0")
    wrong = []
    for k in range(n_kills):
        first = conversation(k, 300 + r.randrange(200))
        second = first + conversation(k + 1000, 100)
        want = bits(plain.post("/v1/completions", completion(second, 6))[1])
        before = n_keys(store)
        s = Server(model, "--ctx", "1024", "--store-dir", store)
        s.post("/v1/completions", completion(first, 1))
        s.wait_for(lambda: n_keys(store) >= before + len(first) // page)
        # What comes then is killed while it is computed and written, at whatever instant.
        _, rest = begin([lambda: s.post("/v1/completions",
                                        completion(conversation(k + 2000, 700), 50))])
        s.wait_for(lambda n=r.randrange(9): n_keys(store) >= before + len(first) // page + n)
        s.process.kill()
        rest()
        s.end()
        s = Server(model, "--ctx", "1024", "--store-dir", store)
        status, a, _ = s.post("/v1/completions", completion(second, 6))
        if status != 200 or bits(a) != want or len(first) - cached(a) > page:
            wrong.append((k, status, len(first), cached(a) if status == 200 else a,
                          status == 200 and bits(a) == want))
        if s.end() != 0:
            wrong.append((k, "does not end"))
    plain.end()
    check("killed_and_started_again_" + name, not wrong, wrong[:3])


# ---------------------------------------------------------------- who waits for whom


class Stream:
    """A text that goes on until it is left, and when its pieces came."""

    def __init__(self, s, n):
        self.socket = s.connect(raw_post("/v1/completions", {"prompt": "w1", "max_tokens": n,
                                                             "stream": True, "ignore_eos": True}))
        self.times = []
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        try:
            while self.socket.recv(1 << 20):
                self.times.append(time.monotonic())
        except OSError:  # it was left
            pass

    def gap(self, since, until):
        times = [since, *(t for t in self.times if since < t < until), until]
        return max(b - a for a, b in zip(times, times[1:]))

    def leave(self):
        self.socket.shutdown(2)
        self.thread.join(LIMIT)
        self.socket.close()


def wordy(n, **more):
    """Tokens with all that may be told of them; each has a text."""
    return {"input": "w3", "max_output_tokens": n, "ignore_eos": True, "stream": True,
            "top_logprobs": 20, "logit_bias": {"30": 50}, **more}


def read_until(c, word, n=1):
    """All up to the n-th time that a word comes, or its end."""
    got, seen, tail = [], 0, b""
    while seen < n:
        b = c.recv(1 << 20)
        if not b:
            break
        seen += (tail + b).count(word) - tail.count(word)
        tail = (tail + b)[-len(word) + 1:]
        got.append(b)
    return b"".join(got)


def calm(name, s, job):
    """job(): from when until when it matters, and whether all was as it should be."""
    gaps, timed = [], SCALE >= 100
    tries = 4 if timed else 1
    for _ in range(tries):  # the machine may be busy
        victim = Stream(s, LONG - 1000)
        s.wait_for(lambda: victim.times)
        since, until, good, why = job(s)
        gaps.append(victim.gap(since, until))
        victim.leave()
        s.wait_for(s.at_rest)
        if not good or gaps[-1] < SHORT:
            break
    check(name, good and (not timed or min(gaps) < SHORT), (gaps, str(why)[:500]))


def leaves(s):
    c = s.connect(raw_post(RESPONSES, wordy(LONG - 1000)))
    got = read_until(c, b"event: response.output_text.delta", 10000)
    since = time.monotonic()
    c.close()
    left = s.wait_for(lambda: s.metric("vllm:num_requests_running") == 1)
    time.sleep(0.2)
    return since, time.monotonic(), left, got[-300:]


def fails(s):
    """Its answer is more than a request may have."""
    since = time.monotonic()
    raw = s.post(RESPONSES, wordy(LONG - 1000))[1]
    until, told = time.monotonic(), events(raw)
    last, n = told[-1].get("response", {}), sum(len(e["logprobs"]) for e in told
                                                if e["type"] == "response.output_text.delta")
    good = told[-1]["type"] == "response.failed" and n > 4000 and (
        last["error"]["code"] == "request_too_expensive"
        and last["usage"]["output_tokens"] - n in (0, 1)
        and len(last["output"][0]["content"][0]["logprobs"]) == n)
    return since, until, good, (n, str(last)[:200], told[-1]["type"])


def searches(s):
    """A beam search says all that it has found at its end."""
    since = time.monotonic()
    c = s.connect(raw_post("/v1/chat/completions",
                           {"messages": [{"role": "user", "content": "w3"}], "max_tokens": 2000,
                            "n": 10, "use_beam_search": True, "ignore_eos": True,
                            "logprobs": True, "top_logprobs": 20}, "Connection: close\r\n"))
    got = read_until(c, b"\0")
    until = time.monotonic()
    c.close()
    # not parsed, which would keep the thread of the stream waiting
    return since, until, got.count(b"top_logprobs") == 20000, got[:300]


def test_stalls(model, folder):
    path = os.path.join(folder, "plain.jinja")
    with open(path, "w") as f:
        f.write("{% for m in messages %}{{ m.content }}{% endfor %}")
    with Server(model, "--ctx", str(LONG), "--chat-template", path) as s:
        calm("a_stream_that_is_left", s, leaves)
        calm("a_search_that_ends", s, searches)
    with Server(model, "--ctx", str(LONG), "--request-memory", "60M") as s:
        calm("a_stream_that_fails", s, fails)


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "m.gguf"), "--ctx", "256", "--layers", "2", "--seed",
                      "5")
        s = Server(model, "--ctx", str(N_CTX))
        test_contract(s)
        s.end()
        test_memory(model)
        test_stalls(synth(os.path.join(folder, "far.gguf"), "--ctx", str(LONG), "--layers", "2",
                          "--seed", "5"), folder)
        test_beside_the_steps(model)
        test_file_changes(model, folder)
        if SCALE >= 10:
            test_large_answer(synth(os.path.join(folder, "long.gguf"), "--ctx", "4096", "--layers",
                                    "2", "--seed", "5"))
        else:
            skip("large_answer", "at TEST_SCALE=10")
        n_kills = {1: 2, 10: 5}.get(SCALE, 20)
        for arch in ("llama", "gemma3"):
            test_killed(synth(os.path.join(folder, arch + ".gguf"), "--arch", arch, "--ctx", "1024",
                              "--seed", "7"), arch, folder, n_kills)
        for name in ("mamba2", "jamba"):  # recurrent, and with attention between
            path = os.path.join(SHARED, "golden/arch", name + ".gguf")
            if os.path.exists(path):
                test_killed(path, name, folder, n_kills)
            else:
                skip("killed_and_started_again_" + name, "there are no golden models")


run(main, "test_limits")
