#!/usr/bin/env python3
# In make test alone: make check has test_serve.py.
"""test_amplified.py -- small input that would cost much: what a request makes the server do or say
for each of its choices, names, tools or tokens is bounded before it is begun, and counted for its
key. Answers and counted bytes are compared, never times."""
import os
import tempfile
import time

from serving import SANITIZED, SCALE, Server, check, events, raw_post, run, synth
from test_account import A, KEYS, code, gives_back, of_key

TEXT, NATIVE, CHAT = "/v1/completions", "/completion", "/v1/chat/completions"
SAID = [{"role": "user", "content": "w3"}]


def ask(s, path, **body):
    return s.post(path, body, **A)


def peak(s):
    return of_key(s, "pith:key_bytes_peak")


def longest(s):
    """The token with the longest text."""
    n = s.get("/props", **A)[1]["n_vocab"]
    return max(range(3, n), key=lambda i: len(s.post("/detokenize", {"tokens": [3, i]},
                                                     **A)[1]["content"].encode()))


def test_names(s):
    """Each unknown name is compared with all that there are."""
    many = {"x%d" % i: 1 for i in range(5000)}
    for path, body in ((TEXT, {"prompt": "w3", "max_tokens": 1, **many}),
                       (CHAT, {"messages": SAID, "max_tokens": 1, "stream_options": many}),
                       ("/api/chat", {"messages": SAID, "options": many}),
                       ("/tokenize", {"content": "w3", **many})):
        a = s.post(path, body, **A)
        said = a[1]["error"] if isinstance(a[1].get("error"), dict) else a[1]
        check("names of " + path, a[0] == 400 and said["code"] == "out_of_range", str(a[1])[:300])
    few = {"x%d" % i: 1 for i in range(100)}
    check("a hundred names are left out",
          ask(s, TEXT, prompt="w3", max_tokens=1, **few)[0] == 200)


def test_tools(s):
    tools = [{"type": "function", "function": {"name": "f%d" % i}} for i in range(3)]
    for n, status in ((1000, 200), (1001, 400)):
        a = ask(s, "/v1/chat/completions", messages=SAID, max_tokens=1, tools=tools,
                tool_choice={"type": "allowed_tools", "mode": "auto",
                             "tools": [{"type": "function", "name": "f2"}] * n})
        check("allowed tools, %d" % n, status == 400 and code(a) == (400, "out_of_range")
              or status == 200 and "1000" not in str(a[1]), str(a[1])[:300])


def test_biases(s):
    """A text says a token once more with each of its words."""
    a = ask(s, TEXT, prompt="w3", max_tokens=1, logit_bias={"w3 " * 20000: 1})
    check("biases of a long text", code(a) == (400, "out_of_range") and "16384" in str(a[1]), a[1])
    a = ask(s, TEXT, prompt="w3", max_tokens=1, logit_bias=[[3, 1]] * 16384)
    check("as many as there may be", a[0] == 200, a[1])


def test_lists(s):
    """Lists that each choice has a copy of: in the account, and each token in them once."""
    before = peak(s)
    a = ask(s, TEXT, prompt="w3", max_tokens=1, n=128,
            stop=["%03d" % i * 42 for i in range(64)])
    check("stop texts of choices that wait are counted",
          a[0] == 200 and peak(s) - before > 128 * 6 * 8000, (a[0], peak(s) - before))
    was = s.most_memory()
    a = ask(s, TEXT, prompt=["w3"] * 256, max_tokens=1, allowed_token_ids=[40, 41] * 250000)
    check("allowed tokens", a[0] == 200 and len(a[1]["choices"]) == 256, str(a[1])[:300])
    check("a list of them is no larger than the vocabulary",
          SANITIZED or s.most_memory() - was < 400 << 20, s.most_memory() - was)
    check("all of it is given back", gives_back(s), of_key(s, "pith:key_bytes"))


def test_tables(s):
    """Penalties look at the prompt: the tables for that are in the account before they are made."""
    before = peak(s)
    a = ask(s, TEXT, prompt="w3 w4", max_tokens=1, n=64, repetition_penalty=1.1,
            dry_multiplier=1, dry_penalty_last_n=-1)
    check("tables that a prompt needs are counted",
          a[0] == 200 and peak(s) - before > 2 << 20, (a[0], peak(s) - before))
    check("they are given back", gives_back(s), of_key(s, "pith:key_bytes"))


def test_repeated(s, token):
    """What each choice tells of the request."""
    grammar = 'root ::= "a"\n#'
    a = ask(s, NATIVE, prompt=[3], n_predict=1, n=2, grammar=grammar)
    check("a grammar is told", a[0] == 200 and all(
        c["generation_settings"]["grammar"] == grammar for c in a[1]), str(a[1])[:300])
    a = ask(s, NATIVE, prompt=[3], n_predict=1, grammar=grammar + "x" * 70000)
    check("a long one is not", a[0] == 200 and a[1]["generation_settings"]["grammar"] is None,
          str(a[1])[:300])
    for stream in (False, True):
        a = ask(s, NATIVE, prompt=[3], n_predict=1, n=128, stream=stream, verbose=True,
                grammar=grammar + "\x01" * 60000)
        check("settings of all choices, stream %s" % stream,
              a[0] == 400 and a[1]["error"]["code"] == "answer_too_large", str(a[1])[:300])
    prompt = [token] * 60000
    for path, more in ((TEXT, {"echo": True, "max_tokens": 1}), (NATIVE, {"n_predict": 1}),
                       (TEXT, {"return_token_ids": True, "max_tokens": 1, "stream": True}),
                       (TEXT, {"prompt_logprobs": 5, "max_tokens": 1})):
        a = ask(s, path, prompt=prompt, n=128, **more)
        check("prompts of all choices: %s %s" % (path, list(more)),
              a[0] == 400 and a[1]["error"]["code"] == "answer_too_large", str(a[1])[:300])
    for length, n, status in ((60000, 16, 400), (600, 4, 200)):
        said = "w3 " * (length // 5)
        for path, more in ((TEXT, {"prompt": prompt[:length]}),
                           (CHAT, {"messages": [{"role": "user", "content": said}]})):
            a = ask(s, path, n=n, max_tokens=1, stream=True, return_token_ids=True, **more)
            check("a stream of tokens of a prompt, %s, n %d" % (path, n), a[0] == status
                  and (status == 200 or "4194304" in a[1]["error"]["message"]), str(a[1])[:300])
    a = ask(s, TEXT, prompt=[token] * 50, n=4, echo=True, max_tokens=1)
    check("few of them are told", a[0] == 200 and len(a[1]["choices"]) == 4, str(a[1])[:300])


def test_said(s):
    """A stream of the Responses interface tells what the request said three times."""
    for n, stream, status in ((12 << 20, True, 400), (12 << 20, False, 200), (1000, True, 200)):
        a = ask(s, "/v1/responses", input="w3", max_output_tokens=1, stream=stream,
                metadata={"a": "x" * n})
        check("what a request said, %d bytes, stream %s" % (n, stream), a[0] == status
              and (status == 200 or a[1]["error"]["code"] == "answer_too_large"), str(a[1])[:300])


def test_said_beside(s):
    """What a stream tells at its end is written beside the steps, where it is much; how far a
    prompt is, which is told often, is brief."""
    def ask(n, prompt, **more):
        before = s.metric("pith:answers_beside_total")
        a = ask_raw({"input": prompt, "max_output_tokens": 1, "stream": True,
                     "metadata": {"a": "x" * n}, **more})
        return a, s.metric("pith:answers_beside_total") - before

    def ask_raw(body):
        status, a, _ = s.post("/v1/responses", body, **A)
        return events(a) if status == 200 else a

    for n, beside in ((1000, 0), (4 << 20, 1)):
        a, times = ask(n, "w3")
        check("the end of a stream that tells %d bytes" % n, times == beside
              and a[-1]["type"] == "response.incomplete"
              and a[-1]["response"]["metadata"] == {"a": "x" * n}
              and [e["type"] for e in a].count("response.output_item.done")
              == [e["type"] for e in a].count("response.output_item.added"),
              (times, str(a)[-300:]))
    a, _ = ask(100000, "w3 w4 " * (3000 if SCALE >= 10 else 600), return_progress=True)
    far = [e for e in a if "prompt_progress" in e]
    check("progress is brief", len(far) > 1 and max(len(str(e)) for e in far) < 5000,
          [len(str(e)) for e in far])


def test_text_in_account(model, flags):
    """Tokens of a text have room, in the account, before they are made."""
    with Server(model, *flags, "--request-memory", "16M", "--embeddings") as s:
        for n, status in ((1000000, 200), (5000000, 400)):
            text = "w3 w4 " * (n // 6)
            for path, body in (("/tokenize", {"content": text}),
                               ("/v1/embeddings", {"input": text}),
                               (TEXT, {"prompt": text})):
                before, a = peak(s), s.post(path, body, **A)
                said = a[1]["error"] if a[0] != 200 else {}
                check("tokens of %d bytes, %s" % (n, path), status == 400 and
                      said.get("code") == "request_too_expensive"
                      and "--request-memory" in said.get("message", "") or status == 200
                      and said.get("code") != "request_too_expensive", (a[0], said))
                if path == "/tokenize" and status == 200:
                    check("they are counted", peak(s) - before > 4 * n, (peak(s), before))
        check("all is given back behind them", gives_back(s), of_key(s, "pith:key_bytes"))


def test_paths(s):
    """A name with slashes is a path, as long as it likes: nobody goes as deep as that."""
    for name in ("/" * 100000, "generation_settings/" * 20000, "x" * 300):
        a = ask(s, NATIVE, prompt=[3], n_predict=1, response_fields=[name])
        check("a path of %d bytes" % len(name), code(a) == (400, "out_of_range"), str(a[1])[:300])
    a = ask(s, NATIVE, prompt=[3], n_predict=1,
            response_fields=["/" * 256, "generation_settings/seed", "stop/" * 50, "//stop"])
    check("a path to nothing", a[0] == 200 and list(a[1]) == ["generation_settings/seed"], a[1])


def test_detokenized(s, token):
    """A text is longer than its tokens: it is in the account before there is one."""
    n, grown, lengths = 400000, [], []
    for one in (ord("w") + 3, token):
        before = peak(s)
        a = s.post("/detokenize", {"tokens": [one] * n}, **A)
        grown.append(peak(s) - before)
        lengths.append(len(a[1]["content"].encode()))
    check("texts of tokens are counted", grown[1] > 2 * (lengths[1] - lengths[0]) > 0,
          (grown, lengths))


def test_choices(model):
    """Choices of one request have all places only while no other request has none."""
    with Server(model, "--ctx", "4096", "--parallel", "4", "--no-store-dir") as s:
        body = {"prompt": "w3", "n": 4, "max_tokens": 3000, "ignore_eos": True, "stream": True}
        many = s.connect(raw_post(TEXT, body))
        s.wait_for(lambda: s.metric("vllm:num_requests_running") == 4)
        a = s.post(TEXT, {"prompt": "w5", "max_tokens": 3})
        check("another request begins beside them", a[0] == 200, str(a[1])[:300])
        check("and they go on", s.metric("vllm:num_requests_running") > 0)
        s.wait_for(lambda: s.metric("vllm:num_requests_running") == 4)
        two = s.connect(raw_post(TEXT, {**body, "n": 2, "prompt": "w7"}))
        s.wait_for(lambda: s.metric("vllm:num_requests_waiting") == 2)
        check("a place for each of two, and the rest to the first",
              s.metric("vllm:num_requests_running") == 4)
        two.close()
        many.close()
        check("all end", s.wait_for(s.at_rest))


def test_left_inside_a_step(folder):
    """An input is one step, however long: who leaves meanwhile ends it."""
    model = synth(os.path.join(folder, "wide.gguf"), "--layers", "8", "--embd", "512", "--ff",
                  "1024", "--heads", "8", "--heads-kv", "8")
    n = 8192
    with Server(model, "--embeddings", "--ctx", str(n), "--no-store-dir") as s:
        one = {"input": [5] * 3}
        check("an input", s.post("/v1/embeddings", one)[0] == 200)
        before = s.metric("vllm:prompt_tokens_total")
        c = s.connect(raw_post("/v1/embeddings", {"input": [5] * (n - 2)}))
        time.sleep(0.5)
        c.close()
        check("the next input has its turn", s.post("/v1/embeddings", one)[0] == 200)
        check("the long one did not come to its end",
              s.metric("vllm:prompt_tokens_total") - before < n,
              s.metric("vllm:prompt_tokens_total") - before)
        a = s.post("/v1/embeddings", {"input": [5] * (n - 2), "timeout": 0.2})
        check("nor does one whose time is over", a[0] == 400 and code(a)[1] == "deadline_exceeded",
              str(a[1])[:300])
        check("of which nothing was told", s.metric("vllm:prompt_tokens_total") - before < n)


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "m.gguf"), "--seed", "3")
        flags = [f for f in KEYS if f not in ("--ctx", "256")]
        flags += ["--ctx", "65536", "--parallel", "4"]
        for test in (test_lists, test_tables):
            with Server(model, *flags) as s:
                test(s)
        test_choices(model)
        test_left_inside_a_step(folder)
        test_text_in_account(model, flags)
        with Server(model, *flags) as s:
            token = longest(s)
            test_detokenized(s, token)
            test_names(s)
            test_tools(s)
            test_biases(s)
            test_repeated(s, token)
            test_said(s)
            test_said_beside(s)
            test_paths(s)


if __name__ == "__main__":
    run(main, __file__)
