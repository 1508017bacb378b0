#!/usr/bin/env python3
"""test_fill_serve.py -- pith serve of models that fill in masks: texts are those of pith run, whole
or in a stream, alone or beside others; what such a model cannot do is refused by name."""
import json
import os
import subprocess
import tempfile

from report import run
from serving import LIMIT, PITH, SHARED, Server, begin, check, skip, synth

MODEL = os.path.join(SHARED, "golden", "arch", "llada.gguf")
MASK = ["--override-kv", "tokenizer.ggml.mask_token_id=int:5"]
BODY = {"prompt": "a b c", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "a b"}], "max_tokens": 33, "temperature": 0,
        "ignore_eos": True}


def events(raw):
    return [json.loads(line[6:]) for line in raw.decode().split("\n")
            if line.startswith("data: {")]


def text(answer):
    return answer["choices"][0]["text"]


def test_texts(s):
    p = subprocess.run([PITH, "run", MODEL, *MASK, "-p", "a b c", "-n", "40", "--temp", "0",
                        "--ignore-eog", "--threads", "1"], capture_output=True, timeout=LIMIT)
    said = p.stdout.decode(errors="replace").rstrip("\n")
    status, a, _ = s.post("/v1/completions", BODY)
    check("that of pith run", status == 200 and said and text(a).rstrip("\n") == said,
          (a, said, p.stderr))
    check("usage", a["usage"]["completion_tokens"] == 40
          and a["choices"][0]["finish_reason"] == "length", a)
    hot = {**BODY, "temperature": 1, "seed": 4, "n": 3}
    two = [[c["text"] for c in s.post("/v1/completions", hot)[1]["choices"]] for _ in range(2)]
    check("choices", two[0] == two[1] and len(set(two[0])) == 3, two)
    get, wait = begin([lambda i=i: s.post("/v1/completions", {**BODY, "n": 1 + i % 2})[1]
                       for i in range(6)])
    wait()
    check("beside others", all(c["text"] == text(a) for b in get for c in b["choices"]), get)
    cut = text(a)[9:12]
    stopped = s.post("/v1/completions", {**BODY, "stop": cut})[1]
    check("stop", text(stopped) == text(a)[:text(a).index(cut)]
          and stopped["choices"][0]["finish_reason"] == "stop", stopped)
    steps = s.metric("pith:steps_total") or 0
    usual = s.post("/v1/completions", {**BODY, "prompt": [7] * 200, "max_tokens": -1})[1]
    check("usual length", usual["usage"]["completion_tokens"] == 56, usual)
    check("steps", (s.metric("pith:steps_total") or 1) > steps)
    for path, body in (("/completion", {"prompt": "a b c", "n_predict": 40}),
                       ("/api/generate", {"prompt": "a b c", "stream": False, "raw": True,
                                          "options": {"num_predict": 40, "temperature": 0}})):
        status, b, _ = s.post(path, {**BODY, **body} if path == "/completion" else body)
        check(path, status == 200 and b.get("content", b.get("response")), b)
    # A penalty that is usual there does not look at the prompt: in a fill none is counted.
    said = [s.post("/api/generate", {
        "prompt": "a b c", "stream": False, "raw": True, "options": {
            "num_predict": 40, "temperature": 1, "seed": 3, **more}})[1]
            for more in ({}, {"repeat_penalty": 1}, {"seed": 4})]
    said = [a.get("response", a) for a in said]
    check("a usual penalty", said[0] == said[1] != said[2], said)


def test_streams(s):
    whole = s.post("/v1/completions", BODY)[1]
    status, raw, _ = s.post("/v1/completions", {**BODY, "stream": True})
    check("stream", status == 200 and "".join(text(e) for e in events(raw)) == text(whole), raw)
    status, whole, _ = s.post("/v1/chat/completions", CHAT)
    said = whole["choices"][0]["message"]["content"]
    raw = s.post("/v1/chat/completions", {**CHAT, "stream": True})[1]
    check("chat", status == 200 and said and whole["usage"]["completion_tokens"] == 33, whole)
    check("chat stream", said == "".join(c["delta"].get("content") or "" for e in events(raw)
                                         for c in e["choices"]), raw)


def test_limits(s):
    n_ctx = s.get("/props")[1]["default_generation_settings"]["n_ctx"]
    status, a, _ = s.post("/v1/completions", {**BODY, "prompt": [7] * (n_ctx - 5)})
    check("as long as there is room", status == 200 and a["usage"]["completion_tokens"] == 5
          and a["choices"][0]["finish_reason"] == "length", a)
    status, a, _ = s.post("/completion", {**BODY, "prompt": [7] * (n_ctx - 5), "n_predict": 40,
                                          "n": 2})
    check("each choice says that it is cut", status == 200
          and [c["truncated"] for c in a] == [True, True], a)
    status, a, _ = s.post("/v1/completions", {**BODY, "prompt": [7] * n_ctx})
    check("no room at all", status == 200 and text(a) == "", a)
    status, a, _ = s.post("/v1/completions", {**BODY, "prompt": [7] * (n_ctx + 1)})
    check("prompt too long", status == 400 and a["error"]["code"] == "context_length_exceeded", a)
    for field, body in (
            ("logprobs", {"logprobs": 2}), ("n_probs", {"n_probs": 3}), ("best_of", {"best_of": 3}),
            ("response_format", {"response_format": {"type": "json_object"}}),
            ("grammar", {"grammar": 'root ::= "a"'}), ("context_shift", {"context_shift": True}),
            ("prompt_logprobs", {"prompt_logprobs": 1}),
            ("min_tokens", {"min_tokens": 3, "ignore_eos": False}),
            ("repeat_penalty", {"repeat_penalty": 1.2}),
            ("frequency_penalty", {"frequency_penalty": 0.5}),
            ("dry_multiplier", {"dry_multiplier": 0.8})):
        status, a, _ = s.post("/v1/completions", {**BODY, **body})
        e = a.get("error", {})
        check("refused: " + field, (status, e.get("code"), e.get("param"))
              == (400, "not_supported", field) and "fills in masks" in e["message"], a)
    status, a, _ = s.post("/v1/chat/completions", {**CHAT, "logprobs": True})
    check("refused: of a chat", status == 400 and "logprobs" in a["error"]["message"], a)
    status, a, _ = s.post("/v1/chat/completions", {
        **CHAT, "tool_choice": "required", "tools": [
            {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]})
    check("refused: tools", status == 400, a)
    status, a, r = s.post("/v1/chat/completions", {**CHAT, "reasoning_effort": "low"})
    check("left out is told", status == 200 and "reasoning_budget"
          in (r.getheader("x-pith-ignored") or ""), a)
    check("neutral ones are taken", s.post("/v1/completions", {
        **BODY, "repeat_penalty": 1, "frequency_penalty": 0, "min_tokens": 0,
        "response_format": {"type": "text"}})[0] == 200)
    check("no vectors", s.post("/v1/embeddings", {"input": "a"})[0] != 200)


def test_leaves(folder):
    """Who leaves is not written for: the next one does not wait for the rest of it."""
    path = os.path.join(folder, "large.gguf")
    synth(path, "--arch", "llada", "--ctx", "1024")
    with Server(path, *MASK) as s:
        data = json.dumps({**BODY, "max_tokens": 1000, "stream": True}).encode()
        c = s.connect(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
                      b"\r\n" % len(data) + data)
        s.wait_for(lambda: s.metric("vllm:num_requests_running") == 1)
        answer = s.post("/v1/completions", {**BODY, "max_tokens": 8})
        check("beside a long one", answer[0] == 200
              and s.wait_for(lambda: s.metric("vllm:num_requests_running") == 1), answer)
        c.close()
        check("who leaves is not written for", s.wait_for(s.at_rest))
        late = s.post("/v1/completions", {**BODY, "max_tokens": 1000, "timeout": 0.05})
        check("late", late[0] == 400 and late[1]["error"]["code"] == "deadline_exceeded", late)
    with Server(path, *MASK, "--shutdown-timeout", "0") as s:
        got, wait = begin([lambda: s.post("/v1/completions", {**BODY, "max_tokens": 1000})])
        s.wait_for(lambda: s.metric("vllm:num_requests_running") == 1)
        code = s.end()
        wait()
        check("the server ends", code == 0 and got[0] and got[0][0] == 503
              and got[0][1]["error"]["code"] == "shutting_down", (code, got))


def main():
    if not os.path.exists(MODEL):
        skip("fill_serve", "no " + MODEL)
        return
    with Server(MODEL, *MASK, "--parallel", "2") as s:
        test_texts(s)
        test_streams(s)
        test_limits(s)
    with Server(MODEL) as s:  # without a token for masks
        status, a, _ = s.post("/v1/completions", BODY)
        check("no mask token", status == 400 and s.post("/v1/embeddings", {"input": "a"})[0] == 200,
              a)
    with tempfile.TemporaryDirectory() as folder:
        test_leaves(folder)


run(main, "test_fill_serve", "serve")
