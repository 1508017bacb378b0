"""test_serve.py -- pith serve from outside: bits under load, the context contract, bad input for
every field, clients that leave, keys, draining, what is left behind. Servers listen on free
ports of this machine and are ended by their process id; every wait is bounded."""
import base64
import http.client
import json
import os
import re
import select
import shutil
import socket
import stat
import struct
import subprocess
import tempfile
import time

from serving import (LIMIT, PITH, SANITIZED, SCALE, Server, at_once, begin, bits, check, completion,
                     events, prompts, raw_post, refused, run, skip, synth)


def test_bits(s):
    asked = prompts(8 * SCALE if SCALE < 10 else 40, 20)
    bodies = [completion(p, seed=i, temperature=0 if i % 2 else 0.9) for i, p in enumerate(asked)]
    alone = [s.post("/v1/completions", b) for b in bodies]
    check("answers_alone", all(a[0] == 200 for a in alone), [a[1] for a in alone if a[0] != 200])
    load = at_once([lambda b=b: s.post("/v1/completions", b) for b in bodies])
    check("same_bits_under_load",
          all(a[0] == 200 and bits(a[1]) == bits(b[1]) for a, b in zip(load, alone)), load[0][1])
    body = completion(asked[0], 5, n=3, seed=40, temperature=1)
    several = s.post("/v1/completions", body)[1]
    ones = [s.post("/v1/completions", {**body, "n": 1, "seed": 40 + k})[1]["choices"][0]["text"]
            for k in range(3)]
    check("choices_have_seeds_of_their_own", [c["text"] for c in several["choices"]] == ones,
          (several, ones))
    check("choices_count_their_prompt_once",
          several["usage"]["prompt_tokens"] == len(asked[0])
          and several["usage"]["completion_tokens"] == 15, several["usage"])
    same = at_once([lambda: s.post("/v1/completions", bodies[1])] * 4)
    check("equal_prompts_at_once", all(bits(a[1]) == bits(alone[1][1]) for a in same), same)
    together = s.post("/v1/completions", completion(asked[:3]))[1]
    apart = [s.post("/v1/completions", completion(p))[1] for p in asked[:3]]
    check("several_prompts", bits(together) == [bits(a)[0] for a in apart], together)
    drawn, seeded = [[c["text"] for c
                      in s.post("/v1/completions",
                                completion([asked[0]] * 3, temperature=1, **more))[1]["choices"]]
                     for more in ({}, {"seed": 7})]
    check("prompts_are_drawn_for_apart", len(set(drawn)) == 3 and len(set(seeded)) == 1,
          (drawn, seeded))


def test_prefix(s):
    # Pages of 64 tokens are kept and found again; the answer's bits are the same, and usage tells.
    p = [5 + k % 190 for k in range(100)]
    first = s.post("/v1/completions", completion(p, 4))[1]
    again = s.post("/v1/completions", completion(p, 4))[1]
    check("cached_tokens", again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64,
          again["usage"])
    check("cached_bits", bits(first) == bits(again), again)


def test_stream(s):
    body = completion(prompts(1, 10)[0], 16)
    whole = s.post("/v1/completions", body)[1]
    status, raw, r = s.post("/v1/completions",
                            {**body, "stream": True, "stream_options": {"include_usage": True}})
    pieces = events(raw)
    check("stream_type", status == 200 and r.getheader("Content-Type") == "text/event-stream"
          and raw.endswith(b"data: [DONE]\n\n"), raw[-100:])
    text = "".join(c["text"] for e in pieces for c in e["choices"])
    check("stream_is_the_same_text", text == whole["choices"][0]["text"], text)
    numbers = [x for e in pieces for c in e["choices"] if c["logprobs"]
               for x in c["logprobs"]["token_logprobs"]]
    check("stream_has_the_same_logprobs",
          numbers == whole["choices"][0]["logprobs"]["token_logprobs"], numbers)
    check("stream_usage", pieces[-1]["choices"] == [] and pieces[-1]["usage"] == whole["usage"],
          pieces[-1])
    chat = {"messages": [{"role": "user", "content": "w5 w6"}], "max_tokens": 6, "temperature": 0,
            "ignore_eos": True}
    whole = s.post("/v1/chat/completions", chat)
    pieces = events(s.post("/v1/chat/completions", {**chat, "stream": True})[1])
    check("chat", whole[0] == 200 and whole[1]["choices"][0]["message"]["role"] == "assistant"
          and whole[1]["choices"][0]["finish_reason"] == "length", whole[1])
    check("chat_stream", "".join(c["delta"].get("content", "") for e in pieces
                                 for c in e["choices"])
          == whole[1]["choices"][0]["message"]["content"], pieces)
    text = s.post("/v1/completions", body)[1]["choices"][0]["text"]
    if len(text) > 6:
        cut = text[3:6]
        stopped = s.post("/v1/completions", {**body, "stop": cut})[1]["choices"][0]
        check("stop", stopped["text"] == text[: text.index(cut)]
              and stopped["finish_reason"] == "stop", stopped)
    echo = s.post("/v1/completions", completion(prompts(1, 10)[0], 0, echo=True))[1]
    lp = echo["choices"][0]["logprobs"]["token_logprobs"]
    check("echo", lp[0] is None and len(lp) == 10
          and all(isinstance(x, float) and x <= 0 for x in lp[1:]), echo)
    best = s.post("/v1/completions",
                  completion(prompts(1, 10)[0], 4, n=2, best_of=5, temperature=1, seed=3))
    check("best_of", best[0] == 200 and len(best[1]["choices"]) == 2
          and best[1]["usage"]["completion_tokens"] == 20, best[1])


def test_contract(s, n_ctx):
    for n in (n_ctx - 2, n_ctx - 1, n_ctx, n_ctx + 1, n_ctx + 100):
        status, a, _ = s.post("/v1/completions", completion([7] * n, 3))
        e = a.get("error", {})
        good = (a["usage"]["prompt_tokens"] == n and a["choices"][0]["finish_reason"] == "length"
                if status == 200 and n <= n_ctx else status == 400 and n > n_ctx
                and (e["code"], e["n_prompt"], e["n_ctx"], e["n_over"])
                == ("context_length_exceeded", n, n_ctx, n - n_ctx))
        check("context_of_%+d" % (n - n_ctx), good, a)
    long = s.post("/v1/chat/completions",
                  {"messages": [{"role": "user", "content": "w5 " * 2 * n_ctx}]})
    check("context_of_a_chat", long[0] == 400
          and long[1]["error"]["code"] == "context_length_exceeded", long[1])
    check("no_tokens", s.post("/v1/completions", completion([]))[0] == 400)


def test_bad_input(s):
    raw = [b"", b"{", b"[]", b"3", b"nul", b'{"prompt": "a"', b"\xff\xfe", b'{"prompt": "\\ud800"}',
           b'{"a": 1e999}', b'{"prompt": [1], "seed": 99999999999999999999999}', b"[" * 100000,
           b'{"a":' * 5000, b'{"prompt": [1], "prompt": [2]}', b'{"no_such_field": 1}',
           b'{"prompt": ' + b"[" * 500 + b"]" * 500 + b"}"]
    codes = [s.post("/v1/completions", b)[0] for b in raw]
    check("damaged_bodies", all(c == 400 for c in codes), codes)
    values = [None, True, -1, 0, 1, 10**18, -10**18, 10**400, 1e308, -1e308, 0.5, "", "x",
              "x" * 5000, [], {}, [[]], [None], {"a": {}}, [1] * 300, ["a", 1], [-1], [10**9]]
    wrong = []
    count = 0
    base = {"/v1/completions": {"prompt": [3, 4], "max_tokens": 1},
            "/v1/chat/completions": {"messages": [{"role": "user", "content": "w3"}],
                                     "max_tokens": 1}, "/tokenize": {"content": "a"},
            "/detokenize": {"tokens": [3]},
            "/apply-template": {"messages": [{"role": "user", "content": "a"}]},
            "/v1/embeddings": {"input": "w3"},
            "/v1/responses": {"input": "w3", "max_output_tokens": 1},
            "/v1/responses/input_tokens": {"input": "w3"},
            "/v1/messages": {"messages": [{"role": "user", "content": "w3"}], "max_tokens": 1},
            "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "w3"}]},
            "/api/chat": {"messages": [{"role": "user", "content": "w3"}],
                          "options": {"num_predict": 1}, "stream": False},
            "/api/generate": {"prompt": "w3", "options": {"num_predict": 1}, "stream": False},
            "/api/embed": {"input": "w3"}, "/api/embeddings": {"prompt": "w3"}, "/api/show": {},
            "/admin/load": {}, "/admin/unload": {}, "/lora-adapters": {},
            "/completion": {"prompt": [3, 4], "n_predict": 1},
            "/completions": {"prompt": [3, 4], "n_predict": 1},
            "/infill": {"input_prefix": "w3", "input_suffix": "w4", "n_predict": 1}, "/slots/*": {},
            "/v1/chat/completions/input_tokens": {"messages": [{"role": "user", "content": "w3"}]},
            "/rerank": {"query": "w3", "documents": ["w4"]}, "/embedding": {"input": "w3"}}
    base["/v1/chat/completions/control"] = {"id": "x", "action": "reasoning_end"}
    for path, same in (("/chat/completions", "/v1/chat/completions"),
                       ("/chat/completions/control", "/v1/chat/completions/control"),
                       ("/api/v0/chat/completions", "/v1/chat/completions"),
                       ("/api/v0/completions", "/v1/completions"),
                       ("/api/v0/embeddings", "/v1/embeddings"),
                       ("/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"),
                       ("/responses", "/v1/responses"), ("/embeddings", "/v1/embeddings"),
                       ("/v1/rerank", "/rerank"), ("/v1/reranking", "/rerank"),
                       ("/v2/rerank", "/rerank"), ("/reranking", "/rerank")):
        base[path] = base[same]
    seen = set()

    def try_fields(path, rows, body):
        nonlocal count
        for field, row in rows.items():
            key = (field, json.dumps(row))
            if key in seen and SCALE < 10:  # the same row of the table
                continue
            seen.add(key)
            if "properties" in row:
                inside = base[path].get(field, {})
                try_fields(path, row["properties"], lambda more, field=field,
                           inside=inside: {**base[path], field: {**inside, **more}})
            # In make check a third of them for each field, another one for the next.
            some = values if SCALE >= 10 else values[len(seen) % 3::3]
            for v in some + [row[k] + d for k, d in (("minimum", -1), ("maximum", 1)) if k in row]:
                if field in ("max_tokens", "max_completion_tokens", "max_output_tokens",
                             "num_predict"):
                    v = v if v != 10**18 else -2
                status, a, _ = s.post(path, body({field: v}))
                count += 1
                if isinstance(a, bytes) or (status == 200 and isinstance(a, list)):
                    a = {}  # a stream; vectors
                e = a.get("error", {})
                if status not in (200, 400, 404,
                                  501) or (status != 200
                                           and not (e if path.startswith("/api/")
                                                    else e["message"])):
                    wrong.append((path, field, str(v)[:40], status, a))

    for endpoint in s.get("/docs")[1]["endpoints"]:
        path = endpoint["path"]
        if "fields" in endpoint:
            try_fields(path, endpoint["fields"], lambda more, path=path: {**base[path], **more})
    check("every_field_with_extremes", count > (1000 if SCALE >= 10 else 500) and not wrong,
          (count, wrong[:2]))
    for role in (None, 5, {}):
        check("bad_message_%s" % role,
              s.post("/v1/chat/completions", {"messages": [{"role": role, "content": "a"}]})[0]
              == 400)
    check("unknown_path", s.get("/nothing")[0] == 404 and s.get("/v1/completions")[0] == 405)
    check("unknown_model", s.post("/v1/embeddings", {"input": "w3", "model": "other"})[0] == 404)
    check("suffix", s.post("/v1/completions", {"prompt": "w3", "suffix": "x"})[1]["error"]["param"]
          == "suffix")
    check("host", s.ask("GET", "/v1/models", headers={"Host": "evil.example"})[0] == 403)
    check("origin", s.ask("GET", "/v1/models", headers={"Origin": "https://evil.example"})[0]
          == 403)
    check("preflight_from_elsewhere",
          s.ask("OPTIONS", "/v1/completions", headers={"Origin": "https://evil.example"})[0] == 403)
    check("huge_body", s.ask("POST", "/v1/completions",
                             headers={"Content-Length": "99999999999"})[0] == 413)


def send_and_leave(s, stream):
    c = s.connect(raw_post("/v1/completions", completion([9] * 20, 100000, stream=stream)))
    if stream:
        c.recv(100)
    c.close()


def test_leaving(s):
    s.wait_for(s.at_rest)
    files, held = s.open_files(), s.memory()
    for i in range(20 * SCALE if SCALE < 10 else 200):
        send_and_leave(s, i % 2)
    s.connect(raw_post("/v1/completions", b"x" * 1000)[:-999]).close()
    check("who_leaves_frees_the_machine", s.wait_for(s.at_rest),
          s.metric("vllm:num_requests_running"))
    check("no_file_is_left", s.wait_for(lambda: s.open_files() <= files + 1),
          (files, s.open_files()))
    check("no_memory_is_left", s.memory() < held + (64 << 20), (held, s.memory()))
    check("still_serves", s.post("/v1/completions", completion([9], 2))[0] == 200)


def test_little_cache(model, reference, asked):
    # Prompts of one body are taken at once, so that they are sure to meet.
    s = Server(model, "--ctx", "192", "--cache-tokens", "192", "--prefix-store", "0", "--parallel",
               "8")
    a = s.post("/v1/completions", completion(asked, 170))
    check("preempted_bits", a[0] == 200 and bits(a[1]) == reference, a[1])
    check("preempted", s.metric("vllm:num_preemptions_total") > 0,
          s.metric("vllm:num_preemptions_total"))
    s.end()


    # Sixteen pages: beside what is left of the first one there is no room for the second.
    asked = [[1 + (7 * k) % 200 for k in range(760)], [3 + (5 * k) % 200 for k in range(300)]]
    s = Server(model, "--ctx", "768", "--cache-tokens", "768", "--prefix-store", "0", "--parallel",
               "2")
    alone = [s.post("/v1/completions", completion(p, 4))[1] for p in asked]
    a = s.post("/v1/completions", completion(asked, 4))
    check("waits_for_room", a[0] == 200 and bits(a[1]) == [b for one in alone for b in bits(one)],
          a[1])
    s.end()


def test_urgent(model):
    """One that comes first, and finds no place, does not stop those who have theirs."""
    s = Server(model, "--ctx", "16K", "--parallel", "1", "--gap", "0.001", "--queue", "4")
    prompt = [9] * (12000 if SCALE >= 10 and not SANITIZED else 3000)
    _, long = begin([lambda: s.post("/v1/completions", completion(prompt, 2))])
    s.wait_for(lambda: s.metric("vllm:num_requests_running") > 0)
    urgent = s.post("/v1/completions", completion([8] * 5, 2, priority=-1))
    answers = [urgent, *long()]
    check("urgent_beside_a_prompt", [a[0] for a in answers] == [200, 200], answers)
    s.end()


def test_parts_of_the_queue(model):
    s = Server(model, "--ctx", "4096", "--parallel", "1", "--queue", "4", "--shutdown-timeout", "0",
               "--api-key", "ann:first-secret", "--api-key", "bob:second-secret", "--open-metrics")
    post = lambda who, prompt, most: s.post("/v1/completions", completion(prompt, most),
                                            Authorization="Bearer " + who)
    waiting = lambda n: s.wait_for(lambda: (s.metric("vllm:num_requests_waiting") or 0) >= n)
    _, four = begin([lambda: post("first-secret", [[9] * 5] * 4, 4000)])
    check("fills_the_queue", waiting(3))
    _, one = begin([lambda: post("first-secret", [8] * 5, 4000)])
    check("has_filled_the_queue", waiting(4))
    first, second = post("first-secret", [7] * 5, 2), post("second-secret", [7] * 5, 2)
    check("a_full_queue_is_full_for_who_filled_it", first[0] == 429 and second[0] == 200,
          (first, second))
    check("does_not_wait_for_the_queue", s.end() == 0)
    four(), one()


def test_queue(model):
    s = Server(model, "--parallel", "1", "--queue", "2")
    answers = at_once([lambda: s.post("/v1/completions", completion([9] * 5, 60))] * 12)
    refused = [a for a in answers if a[0] == 429]
    check("queue_is_bounded", refused and all(a[0] in (200, 429) for a in answers)
          and any(a[0] == 200 for a in answers), [a[0] for a in answers])
    check("retry_after", all(int(a[2].getheader("Retry-After")) > 0 for a in refused), refused)
    # A request is copied for each of its prompts: not before it is known that they may wait, and
    # nothing in it is large.
    most = s.most_memory()
    wide = s.post("/v1/completions",
                  {"prompt": ["w3"] * 1000, "stop": ["%08d" % i * 128 for i in range(8)]})
    check("no_copies_for_those_who_cannot_wait",
          wide[0] == 400 and "1000 choices" in wide[1]["error"]["message"]
          and s.most_memory() < most + (4 << 20), (most, s.most_memory(), wide[1]))
    for name, value, said in (("stop", "x" * 8193, "8193 bytes"),
                              ("stop", ["x" * 4000] * 3, "12000 bytes"),
                              ("stop", "a\0b", "zero byte"),
                              ("logit_bias", {"7": 1, "07": 1}, '"07"'),
                              ("logit_bias", {" 7": 1}, '" 7"'), ("logit_bias", {"+7": 1}, '"+7"'),
                              ("logit_bias", {str(i): 1 for i in range(16385)}, "16385"),
                              ("dry_sequence_breakers", ["w3 " * 5000], "4096 tokens")):
        a = s.post("/v1/completions", {"prompt": [3], "max_tokens": 1, name: value})
        check("bounded_%s" % name, a[0] == 400 and a[1]["error"]["param"] == name
              and said in a[1]["error"]["message"], a[1])
    good = {"prompt": [3], "max_tokens": 1, "stop": ["x" * 4096] * 2,
            "logit_bias": {"7": 1, "0": -100}}
    check("stop_of_8192_bytes", s.post("/v1/completions", good)[0] == 200)
    # over when it is read
    late = s.post("/v1/completions", completion([9] * 5, 100000, timeout=1e-9))
    # SDKs retry 408
    check("deadline", late[0] == 400 and late[1]["error"]["code"] == "deadline_exceeded", late[1])
    check("ends_well", s.end() == 0)


def test_sampling(model):
    """What a request does not say: the file's advice, else the usual; Ollama's interface has its
    own for the latter."""
    advice = ["--override-kv", "general.sampling.temp=float:0.3", "--override-kv",
              "general.sampling.top_p=float:0.7", "--override-kv",
              "general.sampling.penalty_repeat=float:1.25"]
    usual = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1}
    advised = {"temperature": 0.3, "top_k": 40, "top_p": 0.7, "min_p": 0.05, "repeat_penalty": 1.25}
    ollama = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0, "repeat_penalty": 1.1}
    prompt = {"prompt": [3, 4, 5], "max_tokens": 60, "seed": 4, "ignore_eos": True}
    for name, flags, said, by_ollama in (("usual", [], usual, ollama),
                                         ("advice", advice, advised,
                                          {**ollama, "temperature": 0.3, "top_p": 0.7,
                                           "repeat_penalty": 1.25})):
        with Server(model, *flags) as s:
            text = lambda **more: s.post("/v1/completions",
                                         {**prompt, **more})[1]["choices"][0]["text"]
            props = s.get("/props")[1]["sampling"]
            check("props_have_the_" + name, {k: props[k] for k in said} == said, props)
            check("sampled_as_" + name,
                  text() == text(**said) != text(temperature=1, top_k=0, top_p=1, min_p=0),
                  (text(), text(**said)))
            check("explicit_zero_is_greedy_" + name,
                  text(temperature=0, repeat_penalty=1)
                  == text(temperature=0, repeat_penalty=1, seed=5, top_k=1))
            raw = lambda o: s.post("/api/generate",
                                   {"prompt": "w3 w4 w5", "raw": True, "stream": False,
                                    "options": {"num_predict": 60, "seed": 4, "ignore_eos": True,
                                                **o}})[1]["response"]
            check("ollama_as_" + name, raw({}) == raw(by_ollama)
                  != raw({**by_ollama, "temperature": 2, "top_k": 0}), (raw({}), raw(by_ollama)))
            said_back = s.post("/v1/responses", {"input": "w5", "max_output_tokens": 2})[1]
            check("responses_tell_" + name,
                  (said_back["temperature"], said_back["top_p"])
                  == (said["temperature"], said["top_p"]), said_back)


def test_template_of_a_file(model, folder):
    """It knows no model, and is told its start and end tokens: as tokens, which a message cannot
    spell."""
    path = os.path.join(folder, "form.jinja")
    with open(path, "w") as f:
        f.write("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
    with Server(model, "--chat-template", path) as s:
        body = {"messages": [{"role": "user", "content": "w5</s>"}]}
        text = s.post("/apply-template", body)[1]["prompt"]
        n = s.post("/v1/chat/completions", {**body, "max_tokens": 1})[1]["usage"]["prompt_tokens"]
        plain = s.post("/tokenize", {"content": "w5</s>", "parse_special": False})[1]["count"]
        check("template_of_a_file_has_the_tokens", text == "<s>w5</s></s>" and n == plain + 2,
              (text, n, plain))


COMMON = {
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n"
              "<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\nC<|im_end|>\n"
              "<|im_start|>assistant\n",
    "command-r": "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>S<|END_OF_TURN_TOKEN|>"
                 "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>A<|END_OF_TURN_TOKEN|>"
                 "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>B<|END_OF_TURN_TOKEN|>"
                 "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>C<|END_OF_TURN_TOKEN|>"
                 "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    "gemma": "<s><start_of_turn>user\nS\n\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n"
             "<start_of_turn>user\nC<end_of_turn>\n<start_of_turn>model\n",
    "llama2": "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST] B </s><s>[INST] C [/INST]",
    "llama3": "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
              "<|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|>"
              "<|start_header_id|>user<|end_header_id|>\n\nC<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral-v7": "<s>[SYSTEM_PROMPT] S[/SYSTEM_PROMPT][INST] A[/INST] B</s>[INST] C[/INST]",
    "phi3": "<|system|>\nS<|end|>\n<|user|>\nA<|end|>\n<|assistant|>\nB<|end|>\n<|user|>\nC<|end|>"
            "\n<|assistant|>\n",
    "vicuna": "<s>S USER: A ASSISTANT: B</s>USER: C ASSISTANT:",
    "zephyr": "<|system|>\nS</s>\n<|user|>\nA</s>\n<|assistant|>\nB</s>\n<|user|>\nC</s>\n"
              "<|assistant|>\n"}


def test_end_by_text(s):
    """A vocabulary that lacks the token which ends answers: its text does."""
    body = {"messages": [{"role": "user", "content": "w5"}], "max_tokens": 60, "temperature": 0,
            "grammar": 'root ::= "Hi.<|im_end|>on"'}
    whole = s.post("/v1/chat/completions", body)[1]["choices"][0]
    check("end_by_text", (whole["message"]["content"], whole["finish_reason"]) == ("Hi.", "stop"),
          whole)
    told = [e["choices"][0] for e in events(s.post("/v1/chat/completions",
                                                   {**body, "stream": True})[1]) if e["choices"]]
    check("end_by_text_in_a_stream",
          ("".join(c["delta"].get("content") or "" for c in told), told[-1]["finish_reason"])
          == ("Hi.", "stop"), told)
    both = s.post("/v1/chat/completions", {**body, "stop": ["."], "n": 2})[1]["choices"]
    check("end_by_text_beside_stop", [c["message"]["content"] for c in both] == ["Hi"] * 2, both)
    on = s.post("/v1/chat/completions", {**body, "ignore_eos": True})[1]["choices"][0]
    check("end_by_text_ignored", on["message"]["content"] == "Hi.<|im_end|>on", on)
    a = s.post("/v1/messages", body)[1]
    check("end_by_text_is_an_end_of_turn", (a["content"][0]["text"], a["stop_reason"],
                                            a["stop_sequence"]) == ("Hi.", "end_turn", None), a)
    a = s.post("/v1/completions", {"prompt": "w5", "max_tokens": 60, "grammar": body["grammar"]})[1]
    check("end_by_text_of_conversations_alone", a["choices"][0]["text"] == "Hi.<|im_end|>on", a)


def test_template_by_name(model, folder):
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "A"},
                {"role": "assistant", "content": "B"},
                {"role": "user", "content": [{"type": "text", "text": "C"}]}]
    for name, text in COMMON.items():
        with Server(model, "--chat-template", name) as s:
            got = s.post("/apply-template", {"messages": messages})[1]
            check("common_format_" + name, got.get("prompt") == text, got)
            if name == "chatml":
                test_end_by_text(s)
            if name == "zephyr":
                n = [s.post("/v1/chat/completions",
                            {"messages": [{"role": "user", "content": said}], "max_tokens": 1})[1][
                                "usage"]["prompt_tokens"] for said in ("w5", "w5</s>")]
                more = [s.post("/tokenize", {"content": said, "parse_special": False})[1]["count"]
                        for said in ("w5", "w5</s>")]
                check("common_format_has_its_tokens_alone", n[1] - n[0] == more[1] - more[0] > 1,
                      (n, more))
                told = s.get("/props")[1]
                check("props_say_the_common_format",
                      told["chat_template_from"] == "from --chat-template"
                      and "<|assistant|>" in told["chat_template"], told)
    pets = ("--override-kv", "tokenizer.chat_template.pets=str:{{ bos_token }}pets")
    with Server(model, *pets, "--chat-template", "pets") as s:
        got = s.post("/apply-template", {"messages": messages})[1]
        told = s.get("/props")[1]
        check("template_of_the_model_by_name",
              (got.get("prompt"), told["chat_template_from"], told["chat_template"])
              == ("<s>pets", "from --chat-template", "{{ bos_token }}pets"), (got, told))
    form = ("{% for m in messages if m.role != 'system' %}{{ m.content }}{% for c in m.tool_calls "
            "or [] %}{{ c.function.name }}{% endfor %}{% endfor %}")
    key, names = "tokenizer.chat_template", ("tools", "tool_calls", "parallel_tool_calls",
                                             "system_role")
    for text, more, want in (
            (form, None, (0, 1, 1, 0)), (form + "{{ tools | tojson }}", None, (1, 1, 1, 0)),
            ("{{ messages[0].content }}", form + "{{ tools | tojson }}", (1, 1, 1, 1)),
            ("{% for m in messages %}{{ m.content }}{{ m.tool_calls[0].function.name "
             "if m.tool_calls }}{% endfor %}", None, (0, 1, 0, 1))):
        flags = ["--override-kv", key + "=str:" + text]
        flags += ["--override-kv", key + ".tool_use=str:" + more] if more else []
        with Server(model, *flags) as s:
            told = s.get("/props")[1]
            check("what_a_template_shows",
                  tuple(told["chat_template_caps"]["supports_" + n] for n in names) == want
                  and told.get("chat_template_tool_use") == more and told["endpoint_metrics"], told)
    slow = "{% for i in range(30000) %}{% if i == -1 %}x{% endif %}{% endfor %}"
    with Server(model, "--override-kv", key + "=str:" + slow + form) as s:
        def steps():
            return s.metric("pith:key_steps_total")

        def render(asks):  # the steps of that and of a conversation, counted when jobs have ended
            before, least = steps(), took[0] if took else 30000
            told = [s.get("/props")[0] for _ in range(asks)]
            told.append(s.post("/apply-template", {"messages": messages})[0])
            s.wait_for(lambda: steps() - before >= least)
            check("a_slow_template_%d" % asks, set(told) == {200}, told)
            took.append(steps() - before)

        took = []
        render(0)
        render(3)
        check("what_a_template_shows_is_tried_once", took[1] < 1.5 * took[0], took)
    for name, more in (("nope", ()), ("pet", pets), ("Chatml", ())):
        p = subprocess.run([PITH, "serve", model, "--port", "0", *more, "--chat-template", name],
                           capture_output=True, timeout=60)
        check("no_template_is_called_" + name, p.returncode == 2
              and b"the common ones are chatml, command-r, gemma, llama2, llama3, mistral-v7, "
                  b"phi3, vicuna, zephyr" in p.stderr, p)


def test_without_template(s):
    """Conversations of a model without a template have the plain form, whose next turn is not the
    model's; a text of Ollama's is gone on with."""
    form = s.get("/props")[1]["chat_template_from"]
    check("plain_form", form.startswith("plain"), form)
    for said, given, more in (("Paris.", "Paris.\n\nuser: What", {}),
                              ("a user: b", "a user: b", {}),
                              ("Paris.\n\nuser: W", "Paris.\n\nuser: W", {"ignore_eos": True})):
        body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0,
                "max_tokens": 60, "grammar": "root ::= %s" % json.dumps(given), **more}
        got = s.post("/v1/chat/completions", body)[1]["choices"][0]
        check("ends_before_the_next_turn", (got["message"]["content"], got["finish_reason"])
              == (said, "stop"), got)
    got = s.post("/v1/messages", {"messages": [{"role": "user", "content": "hi"}],
                                  "max_tokens": 60, "grammar": r'root ::= "a\n\nuser: b"'})[1]
    check("end_of_a_turn", (got["content"][0]["text"], got["stop_reason"]) == ("a", "end_turn"),
          got)
    ask = {"prompt": "w3 w4</s>", "stream": False,
           "options": {"num_predict": 12, "temperature": 0, "ignore_eos": True}}
    plain, raw, special = (
        s.post("/api/generate", {**ask, **more})
        for more in ({"system": "w9"}, {"raw": True, "prompt": "w3 w4"}, {"raw": True}))
    n = [s.post("/tokenize", {"content": ask["prompt"], "parse_special": k})[1]["count"]
         for k in (False, True)]
    check("goes_on", plain[0] == 200 and plain[1]["prompt_eval_count"] - n[0]
          == special[1]["prompt_eval_count"] - n[1] and n[0] > n[1], (plain, special, n))
    check("leaves_out_system", plain[2].getheader("x-pith-ignored") == "system",
          plain[2].getheaders())
    same = s.post("/api/generate", {**ask, "prompt": "w3 w4"})[1]
    check("goes_on_as_raw", same["response"] == raw[1]["response"] != "", (same, raw))


def test_keys(model):
    s = Server(model, "--api-key", "ann:first-secret", "--api-key", "bob:second-secret")
    body = completion([9] * 5, 3)
    check("no_key", s.post("/v1/completions", body)[0] == 401 and s.get("/health")[0] == 200)
    check("no_key_says_how", "x-api-key" in s.post("/v1/messages", body)[1]["error"]["message"])
    check("wrong_key", s.post("/v1/completions", body, Authorization="Bearer first-secres")[0]
          == 401)
    check("right_key", s.post("/v1/completions", body, Authorization="Bearer first-secret")[0]
          == 200)
    check("other_header", s.ask("POST", "/v1/completions", body, {"x-api-key": "second-secret"})[0]
          == 200)
    answers = at_once([lambda k=k: s.post("/v1/completions", completion([9, k], 20),
                                          Authorization="Bearer "
                                          + ("first-secret" if k % 4 else "second-secret"))
                       for k in range(12)])
    long = [1 + k % 200 for k in range(150)]
    for key, prompt in (("first-secret", long), ("second-secret", long[:130] + [250] * 20)):
        usage = s.post("/v1/completions", completion(prompt, 1),
                       Authorization="Bearer " + key)[1]["usage"]
    check("no_key_learns_what_another_said",
          usage["prompt_tokens_details"]["cached_tokens"] == 0
          and "cache_miss" not in json.dumps(usage), usage)
    for key in ("first-secret", "second-secret"):
        usage = s.post("/v1/completions", completion(long, 1),
                       Authorization="Bearer " + key)[1]["usage"]
        check("each_key_has_its_own_" + key, usage["prompt_tokens_details"]["cached_tokens"] == 128,
              usage)
    test_apart(s)
    check("two_keys_at_once", all(a[0] == 200 for a in answers), answers)
    # What takes long before a request can be queued: many of one key hold up no other key.
    many = [s.connect(raw_post("/tokenize", {"content": "w5 " * 30000},
                               "Authorization: Bearer first-secret\r\n")) for _ in range(40)]
    other = s.post("/tokenize", {"content": "w5"}, Authorization="Bearer second-secret")[0]
    ended = len(select.select(many, [], [], 0)[0])
    check("keys_take_turns", other == 200 and ended < 30, (other, ended))
    got = [http.client.HTTPResponse(c) for c in many]
    for c, a in zip(many, got):
        a.begin()
        a.read()
        c.close()
    check("and_none_is_lost", all(a.status == 200 for a in got), [a.status for a in got])
    # Reports wait for steps, and for each other; bodies are read meanwhile.
    reports = at_once([lambda i=i: s.get("/v1/report", Authorization="Bearer first-secret") if i % 2
                       else s.post("/tokenize", {"content": "w5"},
                                   Authorization="Bearer second-secret") for i in range(16)])
    check("reports_among_others", all(a[0] == 200 for a in reports), reports)
    s.end()
    said = refused("short_key", 1, "has 5 characters", model, "--api-key", "short")
    check("short_key_is_not_told", "short" not in said, said)


def test_apart(s):
    """The very same prompt of two keys at once: nobody waits for the other's, or takes it over; nor
    after a restart, from the folder."""
    prompt = [7 + k % 180 for k in range(220)]

    def cached(secret):
        answer = s.post("/v1/completions", completion(prompt, 1),
                        Authorization="Bearer " + secret)[1]
        return secret, answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    first = at_once([lambda k=k: cached(("first-secret", "second-secret")[k % 2])
                     for k in range(8)])
    for secret in ("first-secret", "second-secret"):
        mine = [n for who, n in first if who == secret]
        check("computed_for_each_" + secret, mine.count(0) >= 1, first)
    check("afterwards_its_own", cached("first-secret")[1] == 192
          and cached("second-secret")[1] == 192)


def test_shared_prefixes(model):
    """--share-prefixes: what one key has had computed, all have."""
    prompt = [3 + k % 190 for k in range(150)]
    with Server(model, "--api-key", "ann:first-secret", "--api-key", "bob:second-secret",
                "--share-prefixes") as s:
        usage = [s.post("/v1/completions", completion(prompt, 1),
                        Authorization="Bearer "
                        + key)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
                 for key in ("first-secret", "second-secret")]
        check("prefixes_shared", usage == [0, 128], usage)


def modes(folder):
    return [stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode)
            for name in os.listdir(folder)]


def test_folder(model):
    """Prefixes outlive the server, in a folder that is this user's alone; each key finds its own; a
    flag turns it off."""
    prompt, home = [5 + k % 190 for k in range(220)], tempfile.mkdtemp(prefix="pith-prefixes-")
    env, folder = {"PITH_CACHE": os.path.join(home, "cache", "pith")}, os.path.join(home, "cache",
            "pith", "prefixes")
    keys = ("--api-key", "ann:first-secret", "--api-key", "bob:second-secret")

    def cached(s, *keys):
        found = [s.post("/v1/completions", completion(prompt, 1),
                        Authorization="Bearer "
                        + key)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
                 for key in keys]
        s.process.terminate()
        said = s.process.communicate(timeout=LIMIT)[1]
        return found, said
    old = os.umask(0)
    try:
        found, said = cached(Server(model, *keys, "--no-store-dir", env=env), "first-secret")
        check("folder_off", found == [0] and not os.path.exists(home + "/cache"), (found, said))
        found, said = cached(Server(model, *keys, env=env), "first-secret")
        free = os.statvfs(folder)
        most = min(4 << 30, free.f_bavail * free.f_frsize / 20) / 2**20
        told = re.search(r"kept in (\S+), at most (\d+) MiB, for this user alone; --no-store-dir",
                         said)
        check("folder_is_named", found == [0] and told and told[1] == folder
              and 0.9 * most <= int(told[2]) <= 1.1 * most + 1, (most, said))
        check("folder_is_private", stat.S_IMODE(os.stat(folder).st_mode) == 0o700 and modes(folder)
              and set(modes(folder)) == {0o600}, modes(folder))
        os.chmod(folder, 0o755)
        found, said = cached(Server(model, *keys, env=env), "first-secret", "second-secret")
        check("folder_outlives", found == [192, 0], (found, said))
        check("folder_is_made_private", stat.S_IMODE(os.stat(folder).st_mode) == 0o700)
        found, said = cached(Server(model, env=env), "")
        check("folder_of_nobody", found == [0], (found, said))
        found, said = cached(Server(model, "--store-limit", "20K", env=env), "")
        sizes = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder)
                    if name.endswith(".page"))
        check("folder_limit", sizes <= 20 << 10, sizes)
        found, said = cached(Server(model, "--prefix-store", "1K", env=env), "")
        check("folder_without_room", found == [0] and "store_bytes is 1024" in said, (found, said))
        refused("folder_that_gets_nothing", 2, "store_bytes is 1024", model, "--prefix-store", "1K",
                "--store-dir", home + "/asked")
        open(home + "/file", "w").close()
        found, said = cached(Server(model, env={"PITH_CACHE": home + "/file"}), "")
        check("folder_cannot_be", found == [0]
              and "kept in memory alone: %s/file/prefixes: Not a directory" % home in said, said)
        broken = os.path.join(home, "broken.gguf")
        with open(broken, "wb") as f:
            f.write(b"GGUF and nothing")
        with Server(model) as s:
            for name, status, why, flags in (
                    ("no file", 2, "nothing.gguf", [home + "/nothing.gguf"]),
                    ("a broken file", 2, "broken.gguf", [broken]),
                    ("a port that is taken", 3, "%d" % s.port, [model, "--port", str(s.port)])):
                said = refused("folder_untold_by_an_error: " + name, status, why, *flags)
                check("folder_untold: " + name, "are kept in" not in said, said)
        refused("folder_both", 1, "exclude each other", model, "--store-dir", home,
                "--no-store-dir")
    finally:
        os.umask(old)
        shutil.rmtree(home, True)


def test_drain(model):
    s = Server(model, "--shutdown-timeout", "30")
    out, rest = begin([lambda: s.post("/v1/completions", completion([9] * 5, 100))])
    s.wait_for(lambda: s.metric("vllm:num_requests_running") > 0 or out[0])
    code = s.end()
    a = rest()[0]
    check("drain_lets_requests_end",
          code == 0 and a[0] == 200 and a[1]["usage"]["completion_tokens"] > 10, (code, a))
    s = Server(model, "--shutdown-timeout", "30")
    c = s.connect(raw_post("/tokenize", {"content": "w5 " * 39000, "with_pieces": True}))
    c.recv(1, socket.MSG_PEEK)  # the answer has ended, and is larger than what the system keeps
    s.process.terminate()
    try:
        s.process.wait(0.3)  # it stays as long as there is something to be read
    except subprocess.TimeoutExpired:
        pass
    r = http.client.HTTPResponse(c)
    r.begin()
    text = r.read()
    c.close()
    code = s.process.wait(LIMIT)
    check("drain_lets_answers_be_read", json.loads(text)["count"] > 150000 and code == 0,
          (code, text[-100:]))
    s.end()


def test_embeddings(model):
    s = Server(model, "--embeddings")
    a = s.post("/v1/embeddings", {"input": [[3, 4, 5], [6, 7]]})
    good = a[0] == 200 and len(a[1]["data"]) == 2 and a[1]["usage"]["prompt_tokens"] == 5
    check("embeddings", good and abs(sum(x * x for x in a[1]["data"][0]["embedding"]) - 1) < 1e-4,
          a[1])
    b = s.post("/v1/embeddings", {"input": [3, 4, 5], "encoding_format": "base64"})[1]["data"][
            0]["embedding"]
    raw = base64.b64decode(b)
    check("embeddings_base64", list(struct.unpack("<%df" % (len(raw) // 4), raw))
          == [struct.unpack("<f", struct.pack("<f", x))[0] for x in a[1]["data"][0]["embedding"]])
    most = s.most_memory()
    a = s.post("/v1/embeddings", {"input": [[3]] * 4096})
    check("embeddings_are_written_as_they_come",
          a[0] == 200 and [d["index"] for d in a[1]["data"]] == list(range(4096))
          and a[1]["usage"]["total_tokens"] == 4096 and s.most_memory() < most + (10 << 20),
          (most, s.most_memory()))
    ollama = [s.post(path, body)[1]
              for path, body in (("/api/embed", {"input": ["w3", "w4"]}),
                                 ("/api/embed", {"input": "w3"}),
                                 ("/api/embeddings", {"prompt": "w3"}))]
    check("embeddings_of_ollama",
          ollama[0]["embeddings"][0] == ollama[1]["embeddings"][0] == ollama[2]["embedding"]
          and len(ollama[0]["embeddings"]) == 2
          and ollama[0]["prompt_eval_count"] == 2 * ollama[1]["prompt_eval_count"]
          and list(ollama[2]) == ["embedding"], ollama)
    many = s.post("/v1/embeddings", {"input": ["w3"] * 600})
    check("embeddings_many", many[0] == 200 and len(many[1]["data"]) == 600,
          many[1] if many[0] != 200 else "")
    more = s.post("/v1/completions", {"prompt": ["w3"] * 600})
    check("more_than_the_queue", more[0] == 400 and "600 choices" in more[1]["error"]["message"],
          more[1])
    wide = s.post("/v1/completions", '{"prompt": [%s1]}' % ("[]," * 600000))
    check("body_of_too_many_lists",
          wide[0] == 413 and "600002 objects and lists" in wide[1]["error"]["message"],
          str(wide[1])[:200])
    check("embeddings_too_long", s.post("/v1/embeddings", {"input": [3] * 5000})[1]["error"]["code"]
          == "context_length_exceeded")
    most = s.get("/props")[1]["n_input"]
    codes = [s.post("/v1/embeddings", {"input": [3] * n})[0] for n in (most, most + 1)]
    check("props_say_how_long", codes == [200, 400], (most, codes))
    s.end()


def test_tools(model, folder):
    # Tools are read once, however many choices look for calls of them.
    template = os.path.join(folder, "few_words.jinja")
    with open(template, "w") as f:
        f.write("{% if tools %}{{ tools | length }} {% endif %}{% for m in messages %}{{ "
                "m.content }}{% endfor %}")
    with Server(model, "--chat-template", template) as s:
        tools = [{"type": "function",
                  "function": {"name": "f%d" % i, "parameters": {"enum": [0] * 100}}}
                 for i in range(1000)]
        most = []
        for n in (1, 100):
            a = s.post("/v1/chat/completions",
                       {"messages": [{"role": "user", "content": "w3"}], "max_tokens": 1, "n": n,
                        "tools": tools})
            most.append(s.most_memory())
        check("tools_are_read_once",
              a[0] == 200 and len(a[1]["choices"]) == 100 and most[1] < most[0] + (30 << 20),
              (most, str(a[1])[:200]))


def test_examples(s):
    # What begins with curl in the README and in the help, as a shell takes it, to the end of what
    # it quotes; which part of the answer is shown is left out.
    if not shutil.which("curl"):
        skip("examples", "curl is not installed")
        return
    texts = open("README.md").read() + subprocess.run([PITH, "serve", "--help"],
                                                      capture_output=True, text=True).stdout
    lines = []
    for line in texts.splitlines():
        if lines and lines[-1].count("'") % 2:
            lines[-1] += " " + line.strip()
        elif line.strip(" $").startswith("curl "):
            lines.append(line.strip(" $"))
    lines = [line.split(" | jq ")[0] for line in lines]
    for i, line in enumerate(lines):
        got = subprocess.run(["sh", "-c", line.replace("localhost:8080", "127.0.0.1:%d" % s.port)],
                             capture_output=True, text=True, timeout=LIMIT)
        check("example_%d" % i, got.returncode == 0 and '"choices"' in got.stdout,
              line + got.stdout)
    check("examples", len(lines) == 2, lines)


def test_tokens(s):
    t = s.post("/tokenize", {"content": "w5 w6", "with_pieces": True})
    ids = [x["id"] for x in t[1]["tokens"]]
    check("tokenize", t[0] == 200 and t[1]["count"] == len(ids) > 0, t[1])
    check("detokenize", s.post("/detokenize", {"tokens": ids})[1]["content"].replace("▁",
                " ").strip() == "w5 w6", s.post("/detokenize", {"tokens": ids})[1])
    # The names vLLM has for them, which lm-eval uses.
    info = s.get("/tokenizer_info")[1]
    check("tokenizer_info", info["eos_token"] and "bos_token" in info and "chat_template" in info,
          info)
    check("tokenize_prompt", s.post("/tokenize",
                                    {"prompt": "w5 w6", "add_special_tokens": False})[1]
          == s.post("/tokenize", {"content": "w5 w6"})[1])
    check("detokenize_prompt", s.post("/detokenize", {"tokens": ids})[1]["prompt"]
          == s.post("/detokenize", {"tokens": ids})[1]["content"])
    check("apply_template", s.post("/apply-template",
                                   {"messages": [{"role": "user", "content": "a"}]})[1]["prompt"]
          == "user: a\n\nassistant:")
    check("props_name_the_fallback", "plain" in s.get("/props")[1]["chat_template_from"])
    check("report", s.get("/v1/report")[0] == 200)
    paths = s.get("/openapi.json")[1]["paths"]
    check("openapi", "/v1/completions" in paths)
    wrong = [path for path, ops in paths.items() for op in ops.values()
             if set(re.findall(r"\{(\w+)\}", path))
             != {p["name"] for p in op.get("parameters", []) if p["in"] == "path"}]
    slot = {p["name"]: p for p in paths["/slots/{id_slot}"]["post"]["parameters"]}
    check("openapi_names_what_paths_hold", not wrong and "/v1/models/{model}" in paths
          and slot["id_slot"]["schema"]["type"] == "integer"
          and slot["action"]["schema"]["enum"] == ["save", "restore", "erase"], (wrong, slot))
    check("head", s.ask("HEAD", "/health")[0] == 200)


def test_gemma():
    found = os.environ.get("TEST_GGUF") or subprocess.run(["scripts/model.sh", "--if-present"],
                                                          capture_output=True,
                                                          text=True).stdout.strip()
    if not found or SCALE < 10:
        skip("gemma", "at TEST_SCALE=10, with the default model")
        return
    s = Server(found, "--ctx", "2048")
    # 700 tokens: beyond the window of its layers.
    asked = [("The story of %s goes on. " % w) * n
             for w, n in (("France", 3), ("a cat", 100), ("the sea", 20), ("Rome", 1))]
    bodies = [completion(p, 12) for p in asked]
    alone = [s.post("/v1/completions", b)[1] for b in bodies]
    load = at_once([lambda b=b: s.post("/v1/completions", b)[1] for b in bodies * 2])
    check("gemma_same_bits", all(bits(a) == bits(alone[i % 4]) for i, a in enumerate(load)))
    check("gemma_ends", s.end() == 0)


def main():
    with tempfile.TemporaryDirectory() as d:
        model = synth(os.path.join(d, "m.gguf"), "--ctx", "256", "--layers", "2", "--seed", "5")
        s = Server(model, "--ctx", "192", "--parallel", "4")
        try:
            test_bits(s)
            test_prefix(s)
            test_stream(s)
            test_tokens(s)
            test_examples(s)
            test_contract(s, 192)
            test_bad_input(s)
            test_leaving(s)
            test_without_template(s)
            asked = prompts(8, 10)
            reference = [bits(s.post("/v1/completions", completion(p, 170))[1])[0] for p in asked]
        finally:
            check("end", s.end() == 0)
        check("start_says_context_and_cache",
              re.search(r"^context 192 tokens, as asked for; cache of \d+ tokens, at most [\d.]+ "
                        r"MiB", s.said, re.M), s.said)
        check("start_says_there_is_no_template",
              len(re.findall(r"^pith: m.gguf has no chat template: .*chatml$", s.said, re.M)) == 1,
              s.said)
        test_little_cache(model, reference, asked)
        test_queue(model)
        test_urgent(model)
        test_parts_of_the_queue(model)
        test_tools(model, d)
        test_keys(model)
        test_sampling(model)
        test_template_of_a_file(model, d)
        test_template_by_name(model, d)
        test_shared_prefixes(model)
        test_folder(model)
        test_drain(model)
        test_embeddings(model)
        test_gemma()


run(main, "test_serve")
