#!/usr/bin/env python3
# In make test alone: make check has test_serve.py.
"""test_fields.py -- fields of requests over HTTP: those that nobody knows are named and left out,
mistyped ones and constraints are refused; names of models; the effect of each field that vLLM
and llama.cpp have under other names."""
import json
import math
import os
import re
import socket
import tempfile
import threading

from serving import SCALE, Server, at_once, check, completion, events, refused, run, synth

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "w5 w6"}
P = [5, 6, 7, 8]


def test_unknown(s):
    for path, body in ((CHAT, {"messages": [USER], "max_tokens": 1}),
                       (TEXT, {"prompt": "w5", "max_tokens": 1}),
                       ("/v1/responses", {"input": "w5", "max_output_tokens": 1}),
                       ("/v1/messages", {"messages": [USER], "max_tokens": 1}),
                       ("/api/chat", {"messages": [USER], "stream": False,
                                      "options": {"num_predict": 1}}),
                       ("/completion", {"prompt": "w5", "n_predict": 1}),
                       ("/tokenize", {"content": "w5"}),
                       ("/v1/messages/count_tokens", {"messages": [USER]})):
        status, a, r = s.post(path, {**body, "chat_id": "x", "web_search_options": {}})
        check("left out of " + path,
              status == 200 and r.getheader("x-pith-ignored") == "chat_id, web_search_options",
              (a, r.getheaders()))
        none = s.post(path, {**body, "": 1})
        check("a field without a name of " + path,
              none[0] == 200 and none[2].getheader("x-pith-ignored") == '""', none[1])
        check("nothing left out of " + path,
              s.post(path, body)[2].getheader("x-pith-ignored") is None)
        for name in ("structural_tag", "grammar_triggers", "logits_processors"):
            status, a, _ = s.post(path, {**body, name: {"type": "object"}})
            check("constraint %s of %s" % (name, path), status == 400 and name in json.dumps(a), a)
    status, a, r = s.post("/api/chat",
                          {"messages": [USER], "stream": False,
                           "options": {"num_predict": 1, "num_keep_all": 3}})
    check("left out of options", status == 200 and r.getheader("x-pith-ignored") == "num_keep_all",
          a)
    for name, near in (("max_token", "max_tokens"), ("temprature", "temperature"),
                       ("maxTokens", "max_tokens"), ("temp", "temperature"), ("stops", "stop"),
                       ("tool", "tools"), ("toolChoice", "tool_choice")):
        status, a, _ = s.post(CHAT, {"messages": [USER], name: 1})
        check("near " + name, status == 400 and near in a["error"]["message"]
              and a["error"]["code"] == "unknown_field", a)
    for name in ("stop_reason", "model_config", "user_id", "top_a", "tfs", "typical", "rep_pen"):
        check("another word " + name,
              s.post(CHAT, {"messages": [USER], "max_tokens": 1, name: 1})[0] == 200)
    others = ("safe_prompt", "think", "format", "prefix", "preset", "api_base", "top_n", "speed",
              "strict")
    for path, body, names in (
            (CHAT, {"messages": [USER], "max_tokens": 1}, others),
            ("/v1/messages", {"messages": [USER], "max_tokens": 1}, ("speed", "n_predict")),
            (TEXT, {"prompt": "w5", "max_tokens": 1}, ("num_predict", "texts", "tools"))):
        for name in names:
            status, a, r = s.post(path, {**body, name: 1})
            check("a field of others, %s of %s" % (name, path), status == 200
                  and r.getheader("x-pith-ignored") == name, a)
    status, a, r = s.post("/api/chat", {"messages": [USER], "stream": False,
                                        "options": {"num_predict": 1, "num_gqa": 8}})
    check("num_gqa of options", status == 200 and r.getheader("x-pith-ignored") == "num_gqa", a)
    # one slip, two of ten letters; neighbours that changed places are one
    for name, near in (("sede", "seed"), ("srteam", "stream"), ("maxtokens", "max_tokens"),
                       ("max_toekn", "max_tokens"), ("topP", "top_p"), ("reponse_frmat",
                       "response_format"), ("temper_ture", "temperature")):
        status, a, _ = s.post(CHAT, {"messages": [USER], name: 1})
        check("slips of " + name, status == 400 and '"%s"' % near in a["error"]["message"], a)
    for name in ("sedes", "straem_on", "max_tkn", "tempirtur", "fooled"):
        status, a, _ = s.post(CHAT, {"messages": [USER], "max_tokens": 1, name: 1})
        check("too many slips of " + name, status == 200, a)
    nothing = {"guided_json": None, "logits_processors": None, "foo": None}
    check("null is nothing",
          s.post(CHAT, {"messages": [USER], "max_tokens": 1, **nothing})[2].getheader(
              "x-pith-ignored") is None)


def test_cold(s):
    """A temperature below 0 is 0, as llama.cpp has it: the most probable token."""
    for path, body, text in (
            (CHAT, {"messages": [USER], "max_tokens": 8}, lambda a: a["choices"]),
            (TEXT, {"prompt": P, "max_tokens": 8}, lambda a: a["choices"]),
            ("/completion", {"prompt": P, "n_predict": 8}, lambda a: a["content"]),
            ("/v1/responses", {"input": "w5", "max_output_tokens": 16},
             lambda a: [o["content"] for o in a["output"]]),
            ("/v1/messages", {"messages": [USER], "max_tokens": 8}, lambda a: a["content"])):
        best, cold, other = (s.post(path, {**body, "seed": i, "temperature": t})[1]
                             for i, t in ((1, 0), (2, -1), (3, 3)))
        check("below 0 of " + path, text(best) == text(cold) != text(other), (best, cold, other))
    ask = {"messages": [USER], "stream": False}
    cold, best = (s.post("/api/chat", {**ask, "options": {"num_predict": 8, "seed": 1,
                                                          "temperature": t}})[1]["message"]
                  for t in (-0.5, 0))
    check("below 0 of options", cold == best, (cold, best))
    check("far below 0", s.post(TEXT, {"prompt": P, "max_tokens": 1, "temperature": -101})[0]
          == 400)


def test_stops(s):
    """Empty ones are none; as many as their bytes allow."""
    body = {"prompt": P, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    text = s.post(TEXT, body)[1]["choices"][0]["text"]
    word = re.search(r"w\d+", text).group()
    one = s.post(TEXT, {**body, "stop": word})[1]["choices"][0]["text"]
    other = "\x01\x02"
    for name, stop in (("beside empty ones", ["", word, ""]), ("of 500", [other] * 499 + [word])):
        got = s.post(TEXT, {**body, "stop": stop})
        check("a stop " + name, got[0] == 200 and got[1]["choices"][0]["text"] == one != text, got)
    for name, stop in (("a list of nothing", [""]), ("nothing", "")):
        got = s.post(TEXT, {**body, "stop": stop})
        check("stop is " + name, got[0] == 200 and got[1]["choices"][0]["text"] == text, got)
    check("stop_sequences with an empty one", s.post("/v1/messages", {
        "messages": [USER], "max_tokens": 1, "stop_sequences": [""]})[0] == 200)
    for stop in ([3], ["a" * 8193], ["a"] * 1025):
        check("stops %s" % str(stop)[:9], s.post(TEXT, {**body, "stop": stop})[0] == 400)


def test_parse_special(s):
    """Markers in a prompt are tokens, or text where that is said."""
    text = "w5 </s> w6"
    count = [s.post("/tokenize", {"content": text, "parse_special": p})[1]["tokens"]
             for p in (True, False)]
    check("two readings", count[0] != count[1], count)
    for path, told in ((TEXT, lambda a: a["usage"]["prompt_tokens"]),
                       ("/completion", lambda a: a["tokens_evaluated"])):
        got = [told(s.post(path, {"prompt": text, "n_predict": 1, "add_special_tokens": False,
                                  **more})[1])
               for more in ({}, {"parse_special": True}, {"parse_special": False})]
        check("parse_special of " + path, got == [len(count[0]), len(count[0]), len(count[1])],
              (got, count))


def test_strict(model):
    with Server(model, "--strict-fields", "--strict-model", "--name", "m", "--alias", "gpt-4",
                "--alias", "m=claude") as s:
        check("strict fields", s.post(CHAT, {"messages": [USER], "chat_id": 1})[1]["error"]["code"]
              == "unknown_field")
        check("strict in options", s.post("/api/chat",
                                          {"messages": [USER], "options": {"chat_id": 1}})[0]
              == 400)
        got = {name: s.post(CHAT, {"messages": [USER], "max_tokens": 1, "model": name})[
                    1].get("model") for name in ("m", "gpt-4", "claude", "gpt-4:latest", "other",
                                                 "")}
        check("aliases", got == {"m": "m", "gpt-4": "m", "claude": "m", "gpt-4:latest": "m",
                                 "other": None, "": "m"}, got)
        check("aliases are told", s.get("/v1/models")[1]["data"][0]["aliases"]
              == ["gpt-4", "claude"])
    with Server(model, "--name", "m", "--alias", "v", "--embeddings") as s:
        got = [s.post(path, {**body, "model": "gpt-4"})
               for path, body in ((CHAT, {"messages": [USER], "max_tokens": 1}),
                                  (TEXT, {"prompt": "w5", "max_tokens": 1}))]
        check("any name makes text", [(g[0], g[1]["model"]) for g in got] == [(200, "m")] * 2, got)
        check("vectors want the name",
              [s.post("/v1/embeddings", {"input": "w5", "model": name})[0]
               for name in ("gpt-4", "m", "v")] == [404, 200, 200])


def test_two_models(folder, model):
    import shutil
    other = os.path.join(folder, "other.gguf")
    shutil.copy(model, other)
    with Server([model, other], "--alias", "one", "--alias", "other=two", "--lazy") as s:
        got = [s.post(TEXT, {"prompt": "w5", "max_tokens": 1, "model": name})[1].get("model")
               for name in ("one", "two", "m", "other", "third")]
        check("names of two", got == ["m", "other", "m", "other", None], got)
    refused("an alias that another has", 1, "answers to that name already", [model, other],
            "--alias", "other")
    refused("an alias of two", 1, "answers to that name already", [model, other], "--alias", "x",
            "--alias", "other=x")
    for name, given in (("no model", "othr=x"), ("no model, first", "=x")):
        refused("an alias of " + name, 1, "offered: m, other", [model, other], "--alias", given)
    refused("an alias of two by their paths", 1, "answers to that name already", [model, other],
            "--alias", other + "=x", "--alias", model + "=x")
    refused("an alias of none beside one", 1, "found no model called", model, "--alias", "n=x")
    odd = os.path.join(folder, "a=b.gguf")
    shutil.copy(model, odd)
    with Server([model, other, odd], "--alias", other + "=x", "--alias", "other.gguf=y", "--alias",
                odd + "=z", "--alias", "a=b=w", "--lazy") as s:
        got = [s.post(TEXT, {"prompt": "w5", "max_tokens": 1, "model": name})[1].get("model")
               for name in "xyzw"]
        check("aliases by path and file", got == ["other", "other", "a=b", "a=b"], got)
    refused("an empty alias", 1, "wanted NAME", model, "--alias", "m=")


def test_defaults(model):
    with Server(model, "--default", "temperature=0", "--default", "n_predict=3", "--default",
                "seed=7", "--default", "stop=zzz") as s:
        a, b = (s.post("/completion", {"prompt": "w5", "ignore_eos": True})[1] for _ in range(2))
        g = a["generation_settings"]
        check("defaults", (g["temperature"], g["n_predict"], g["seed"], g["stop"])
              == (0, 3, 7, "zzz") and a["content"] == b["content"] and a["tokens_predicted"] == 3,
              g)
        check("a body says otherwise",
              s.post("/completion", {"prompt": "w5", "n_predict": 2, "ignore_eos": True})[
                    1]["tokens_predicted"] == 2)
        check("defaults in options",
              s.post("/api/generate", {"prompt": "w5", "stream": False,
                                       "options": {"num_predict": 2}})[0] == 200)
        check("props tell them", s.get("/props")[1]["default_generation_settings"]["params"]["seed"]
              == 7)
    for text, said in (("temperature", "wanted FIELD=VALUE"), ("nothing=3", "no such field"),
                       ("temperature=hot", "wanted a number"),
                       ("temperature=1000", "wanted -100 to 100"), ("=3", "wanted FIELD")):
        refused("default %s" % text, 1, said, model, "--default", text)


def test_norms(model):
    """How long vectors are."""
    with Server(model, "--name", "m", "--embeddings") as s:
        def vector(path="/v1/embeddings", **more):
            status, a, _ = s.post(path, {"input": "w5 w6 w7", **more})
            return a["data"][0]["embedding"] if status == 200 and "data" in a else a
        raw, unit = vector(embd_normalize=-1), vector()
        size = math.sqrt(sum(x * x for x in raw))

        def near(a, b):
            return len(a) == len(b) and all(abs(x - y) <= 1e-4 * max(1, abs(y))
                                            for x, y in zip(a, b))
        check("length 1", near(unit, [x / size for x in raw]) and abs(size - 1) > 1e-3, size)
        check("as it is made", vector(normalize=False) == raw != unit)
        check("normalize", vector(normalize=True) == vector(embd_normalize=2) == unit)
        check("the largest", near(vector(embd_normalize=0),
                                  [32760 * x / max(map(abs, raw)) for x in raw]))
        check("the sum", near(vector(embd_normalize=1), [x / sum(map(abs, raw)) for x in raw]))
        check("a norm", near(vector(embd_normalize=3),
                             [x / sum(abs(y) ** 3 for y in raw) ** (1 / 3) for x in raw]))
        check("of fewer numbers", near(vector(dimensions=8, embd_normalize=-1), raw[:8]))
        status, a, _ = s.post("/embedding", {"content": "w5 w6 w7", "embd_normalize": -1})
        check("of /embedding", a[0]["embedding"][0] == raw, a)
        for name, value in (("embd_normalize", -2), ("embd_normalize", 101),
                            ("embd_normalize", "a"), ("normalize", 3)):
            check("bad %s %s" % (name, value),
                  s.post("/v1/embeddings", {"input": "w5", name: value})[0] == 400)


def made(s, **more):
    status, a, _ = s.post(TEXT, completion(P, 24, **more))
    return a["choices"][0] if status == 200 else a


def test_effects(s):
    plain = made(s)
    tokens = plain["logprobs"]["tokens"]
    ids = s.post("/completion", {"prompt": P, "n_predict": 24, "temperature": 0,
                                 "return_tokens": True, "ignore_eos": True})[1]["tokens"]
    third = ids[2]
    first = ids.index(third)
    a = made(s, stop_token_ids=[third])
    check("stop_token_ids", a["finish_reason"] == "stop"
          and a["logprobs"]["tokens"] == tokens[:first], a)
    a = s.post("/completion", {"prompt": P, "n_predict": 24, "temperature": 0,
                               "return_tokens": True, "ignore_eos": True, "stop_token_ids": [third],
                               "min_tokens": 10})[1]["tokens"]
    check("min_tokens", len(a) >= 10 and third not in a[:10] and a[:first] == ids[:first], (a, ids))
    ends = made(s, logit_bias={"2": 100}, ignore_eos=False)
    late = made(s, logit_bias={"2": 100}, ignore_eos=False, min_tokens=6)
    check("min_tokens and the end",
          ends["finish_reason"] == "stop" and not ends["text"] and late["finish_reason"] == "stop"
          and len(late["logprobs"]["tokens"]) == 6, (ends, late))
    cut = plain["text"][4:7]
    at = plain["text"].index(cut)
    check("include_stop_str_in_output",
          (made(s, stop=cut)["text"], made(s, stop=cut, include_stop_str_in_output=True)["text"])
          == (plain["text"][:at], plain["text"][:at + len(cut)]))
    a = s.post(TEXT, completion(P * 30, 1, truncate_prompt_tokens=7))[1]
    check("truncate_prompt_tokens",
          a["usage"]["prompt_tokens"] == 7
          and a["choices"][0] == s.post(TEXT, completion((P * 30)[-7:], 1))[1]["choices"][0],
          a["usage"])
    a = s.post(TEXT, completion(P * 1000, 1, truncate_prompt_tokens=-1))[1]
    check("truncated to the context", a["usage"]["prompt_tokens"] == 512, a["usage"])
    one, two, three = (s.post(TEXT, completion([9] * 150, 2, **more))[1]
                       for more in ({}, {}, {"cache_prompt": False}))
    cached = [x["usage"]["prompt_tokens_details"]["cached_tokens"] for x in (one, two, three)]
    check("cache_prompt", cached[1] >= 128 and cached[2] == 0
          and one["choices"] == two["choices"] == three["choices"], cached)
    a = s.post(TEXT, {"prompt": "w5", "max_tokens": 2, "add_special_tokens": False})[
            1]["usage"]["prompt_tokens"]
    b = s.post(TEXT, {"prompt": "w5", "max_tokens": 2})[1]["usage"]["prompt_tokens"]
    check("add_special_tokens", b == a + 1, (a, b))
    forever = completion(P, 100000, grammar='root ::= "\\n" [a-z ]{3000}', t_max_predict_ms=1)
    a = s.post(TEXT, forever)[1]
    check("t_max_predict_ms", a["choices"][0]["finish_reason"] == "length"
          and 2 <= a["usage"]["completion_tokens"] < 500, a["usage"])
    without = s.post(TEXT, {**forever, "grammar": "root ::= [a-z ]{3000}", "max_tokens": 200})[1]
    check("t_max_predict_ms needs a line end",
          without.get("usage", {}).get("completion_tokens") == 200, without)
    for path, body in ((TEXT, {"prompt": P}), (CHAT, {"messages": [USER]})):
        check("n_cmpl of " + path, [
                                    len(s.post(path, {**body, "max_tokens": 1, **more})[
                            1]["choices"]) for more
                                    in ({"n_cmpl": 3}, {"n_cmpl": 3, "n": 1}, {"n": 2})]
              == [3, 3, 2])
    check("n_cmpl of /completion",
          len(s.post("/completion", {"prompt": P, "n_predict": 1, "n_cmpl": 3})[1]) == 3)
    n = s.post(TEXT, completion(P, 0, n_predict=5, max_tokens=None))[
            1]["usage"]["completion_tokens"]
    check("n_predict", n == 5, n)
    for off in (0, -1):
        a = s.post(TEXT, completion(P, 6, top_n_sigma=off, temperature=1, seed=3))
        check("top_n_sigma %s is none" % off, a[0] == 200 and a[1]["choices"]
              == s.post(TEXT, completion(P, 6, temperature=1, seed=3))[1]["choices"], a[1])
    a, b = (s.post(TEXT, completion(P, 6, temperature=3, seed=3, top_k=2, samplers=v))[1]
            for v in ("kt", ["top_k", "temperature"]))
    check("letters of samplers", a["choices"] == b["choices"], (a, b))
    status, a, r = s.post(TEXT, completion(P, 2, samplers="edskypmxtia", adaptive_target=0.5))
    check("all letters", status == 200 and r.getheader("x-pith-ignored") == "samplers infill", a)
    for text, status in (("temp", 200), ("", 200), ("kz", 400), ("tempp z", 400)):
        check("samplers %r" % text, s.post(TEXT, completion(P, 2, samplers=text))[0] == status)
    check("no stop text", made(s, stop="") == made(s, stop=[]) == made(s))
    check("a stop text of nothing", made(s, stop=["zzzz", ""]) == made(s, stop="zzzz"))
    status, a, _ = s.post(CHAT, {"messages": [USER], "max_tokens": 1, "logprobs": False,
                                 "top_logprobs": 0, "grammar_lazy": False, "grammar_triggers": [],
                                 "structural_tag": ""})
    check("nothing of probabilities and constraints", status == 200
          and a["choices"][0]["logprobs"] is None, a)
    check("a constraint", s.post(CHAT, {"messages": [USER], "max_tokens": 1,
                                        "grammar_lazy": True})[0] == 400)
    check("best tokens without logprobs", s.post(CHAT, {"messages": [USER], "max_tokens": 1,
                                                        "top_logprobs": 1})[0] == 400)
    check("store of a completion", s.post(TEXT, completion(P, 1, store=False))[0] == 200)
    for samplers in (["top_k", "temperature"],
                     ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc",
                      "temperature"], ["top_k", "infill"], []):
        status, a, r = s.post(TEXT, completion(P, 3, samplers=samplers, top_k=1, temperature=1))
        check("samplers %s" % samplers,
              status == 200 and (a["choices"][0]["text"]
                                 == plain["text"][:len(a["choices"][0]["text"])] or not samplers),
              a)
    check("samplers that are left out",
          s.post(TEXT, completion(P, 3, samplers=["top_k", "infill"]))[
                2].getheader("x-pith-ignored") == "samplers infill")


def test_repetition(s):
    bias = {"30": 30, "31": 15}
    body = completion([30, 30, 9], 6, logit_bias=bias)
    first = s.post(TEXT, body)[1]["choices"][0]["logprobs"]["tokens"]
    check("without", set(first) == {first[0]}, first)
    again = s.post(TEXT, {**body, "repetition_penalty": 3})[1]["choices"][0]["logprobs"]["tokens"]
    only = s.post(TEXT, {**body, "repeat_penalty": 3})[1]["choices"][0]["logprobs"]["tokens"]
    check("repetition_penalty looks at the prompt",
          again[0] != first[0] and only[0] != first[0], (again, only))
    long = s.post(TEXT, {**body, "max_tokens": 100, "repeat_penalty": 100, "repeat_last_n": -1})[1]
    check("repeat_last_n", long["usage"]["completion_tokens"] == 100)
    check("two of one meaning", s.post(TEXT,
                                       {**body, "repetition_penalty": 2, "repeat_penalty": 3})[0]
          == 400)
    for prompt, more, good in (("left", {"regex": "left|right"}, ("left", "right")),
                               ("lef", {"regex": "left|right"}, ("left", "right")),
                               ('{"a":', {"regex": '[{]"a":[12][}]'}, ('{"a":1}', '{"a":2}'))):
        for penalty in (1, 1.1):
            a = s.post(TEXT, {"prompt": prompt, "max_tokens": 30, "temperature": 0,
                              "repetition_penalty": penalty, **more})[1]["choices"][0]
            check("the prompt %s is none of what a grammar describes, penalty %s"
                  % (prompt, penalty), a["text"] in good, a)


def test_prompt_is_history(s):
    """What looks at the history sees the prompt; penalties of frequency and presence do so on
    llama.cpp's and Ollama's interfaces, and see the answer alone on OpenAI's."""
    word = s.post("/detokenize", {"tokens": [30]})[1]["content"]

    def first_of(path, prompt, more):
        body = {"temperature": 0, "logit_bias": {"30": 30, "31": 15}, **more}
        if path == "/api/generate":
            text = s.post("/detokenize", {"tokens": prompt})[1]["content"]
            a = s.post(path, {"prompt": text, "raw": True, "stream": False,
                              "options": {"num_predict": 1, "repeat_penalty": 1, **body}})[1]
            return a["response"]
        body.update({"prompt": prompt, "max_tokens": 1})
        a = s.post(path, body)[1]
        return a["choices"][0]["text"] if path == TEXT else a["content"]

    short, long = [9, 30, 9, 9], [9, 30] + [9] * 70
    for path in (TEXT, "/completion", "/api/generate"):
        check("nothing looks back on " + path, first_of(path, short, {}) == word)
        for name, value, sees in (("repeat_penalty", 9, True), ("dry_multiplier", 100, False),
                                  ("frequency_penalty", 99, path != TEXT),
                                  ("presence_penalty", 99, path != TEXT)):
            check("%s on %s" % (name, path),
                  (first_of(path, short, {name: value}) != word) == sees)
            check("%s over 64 tokens on %s" % (name, path),
                  first_of(path, long, {name: value}) == word)
            check("%s over all on %s" % (name, path),
                  (first_of(path, long, {name: value, "repeat_last_n": -1}) != word) == sees)
        check("dry on " + path, first_of(path, [9, 12, 30, 5, 9, 12], {"dry_multiplier": 100})
              != word)
        check("one history on " + path, first_of(path, short, {
            "presence_penalty": 99, "repeat_penalty": 1.01, "repeat_last_n": -1}) != word)
        for chain in ("dry:multiplier=100;temp", "penalties:last_n=9,repeat=9;dry;temp"):
            check("%s on %s" % (chain, path), first_of(path, [9, 12, 30, 5, 9, 12],
                                                       {"samplers": chain}) != word)


def test_advised_history(model):
    """A penalty that a model's file advises sees the prompt, but not beside one of frequency, where
    that is of the answer alone."""
    with Server(model, "--override-kv", "general.sampling.penalty_repeat=float:9") as s:
        word = s.post("/detokenize", {"tokens": [30]})[1]["content"]
        body = {"prompt": [9, 30, 9, 9], "max_tokens": 1, "temperature": 0,
                "logit_bias": {"30": 30, "31": 15}}
        for more, sees in (({}, True), ({"repeat_penalty": 1}, False),
                           ({"frequency_penalty": 0.01}, False),
                           ({"frequency_penalty": 0.01, "repeat_penalty": 9}, True)):
            a = s.post(TEXT, {**body, **more})[1]
            check("an advised penalty beside %s" % more, (a["choices"][0]["text"] != word) == sees,
                  a)


def test_bias(s):
    word = s.post("/detokenize", {"tokens": [30]})[1]["content"]
    ids = s.post("/tokenize", {"content": word})[1]["tokens"]
    texts = [s.post(TEXT, completion(P, 4, logit_bias=b))[1]["choices"][0]["text"]
             for b in ({str(i): 40 for i in ids}, {word: 40}, [[i, 40] for i in ids], [[word, 40]])]
    check("biases of texts and lists", len(set(texts)) == 1, texts)
    never = s.post(TEXT, completion(P, 4, logit_bias=[[i, False] for i in range(3, 300)]))[
            1]["choices"][0]["logprobs"]["tokens"]
    check("never", never == s.post(TEXT,
                                   completion(P, 4, logit_bias={str(i): -100
                                                                for i in range(3, 300)}))[
                1]["choices"][0]["logprobs"]["tokens"], never)
    for bad in ([[3]], [3], [[3, "x"]], [["w5", 101]], [[True, 3]], [[10**9, 1]], {"7": True},
                [[3, 1]] * 20000):
        check("bad bias %s" % str(bad)[:20],
              s.post(TEXT, completion(P, 4, logit_bias=bad))[0] == 400)


def test_banned(s):
    """Tokens that are never drawn, in any chain and beside biases."""
    free = s.post("/completion", {"prompt": P, "n_predict": 8, "temperature": 0,
                                  "return_tokens": True, "ignore_eos": True})[1]["tokens"]
    for more in ({}, {"samplers": "temp"}, {"logit_bias": {str(free[0]): 50}},
                 {"ignore_eos": False}):
        got = s.post("/completion", {"prompt": P, "n_predict": 8, "temperature": 0,
                                     "return_tokens": True, "ignore_eos": True,
                                     "banned_tokens": free[:3], **more})[1]["tokens"]
        check("banned_tokens %s" % list(more), got and not set(got) & set(free[:3]), (free, got))
    text = s.post(TEXT, completion(P, 8, banned_tokens=free[:3]))[1]["choices"][0]["text"]
    check("banned_tokens of a completion", text != made(s)["text"])
    check("none are banned", made(s, banned_tokens=[])["text"] == made(s)["text"])
    for bad in ([-1], [10**9], ["a"], 3, [1.5], "1,2"):
        status, a, _ = s.post(TEXT, completion(P, 2, banned_tokens=bad))
        check("bad banned_tokens %s" % bad, status == 400, a)


def test_shift(s):
    """A full context goes on without its middle; the answer is that of the prompts it has become,
    one after the other."""
    prompt = [5 + i % 200 for i in range(400)]
    a = s.post("/completion", {"prompt": prompt, "n_predict": 300, "temperature": 0,
                               "ignore_eos": True, "return_tokens": True})[1]
    check("no shift unasked", a["truncated"] and a["stop_type"] == "limit"
          and a["tokens_predicted"] == 113, a["tokens_predicted"])
    b = s.post("/completion", {"prompt": prompt, "n_predict": 300, "temperature": 0,
                               "ignore_eos": True, "return_tokens": True, "context_shift": True,
                               "n_keep": 50, "n_discard": 100})[1]
    check("shift", b["truncated"] and b["tokens_predicted"] == 300
          and b["tokens"][:113] == a["tokens"], b["tokens_predicted"])
    seen = (prompt + b["tokens"])[:513]
    left = seen[:50] + seen[150:]
    c = s.post("/completion", {"prompt": left, "n_predict": 20, "temperature": 0,
                               "ignore_eos": True, "return_tokens": True, "cache_prompt": False})[1]
    check("what it goes on with", b["tokens"][113:133] == c["tokens"],
          (b["tokens"][113:133], c["tokens"]))
    for path, more in ((CHAT, {"messages": [{"role": "user", "content": "w5 " * 40}],
                               "max_tokens": 600}), (TEXT, {"prompt": prompt, "max_tokens": 600})):
        n = s.post(path, {**more, "context_shift": True, "n_keep": -1 if path == CHAT else 0,
                          "ignore_eos": True})[1]["usage"]["completion_tokens"]
        check("shift of " + path, n == 600, n)
    check("a prompt that fills it",
          s.post("/completion", {"prompt": [5] * 512, "n_predict": 3, "context_shift": True,
                                 "n_keep": -1})[0] == 200)


def check_anew(s, more):
    """Of 3 contexts of 128: where one token goes each time, or can go, all is computed anew for it;
    rows are counted."""
    for given in ({"prompt": "w5", "n_discard": 1}, {"prompt": [5] * 126, "n_keep": -1},
                  {"prompt": [5] * 126, "n_keep": -1, "cache_prompt": False}):
        before = s.metric("vllm:prompt_tokens_total")
        status, a, _ = s.post("/completion", {**given, **more, "timeout": 60})
        n = s.metric("vllm:prompt_tokens_total") - before
        check("rows computed anew: %s" % str(given)[:60],
              status == 200 and n <= (3 * 32 + 4) * 128 and a["stop_type"] == "limit", (n, a))
    a = s.post("/completion", {"prompt": "w5", "n_discard": 16, **more, "timeout": 60})[1]
    check("an eighth each time is as much as is asked for", a["tokens_predicted"] == 3 * 128, a)


def test_shift_ends(model):
    """A choice that shifts ends without a maximum, and with one that is none, in every form."""
    more = {"context_shift": True, "ignore_eos": True, "temperature": 0}
    user = [{"role": "user", "content": "w5"}]
    ways = {
        "/completion": ({"prompt": "w5", **more}, lambda a: (
            a["tokens_predicted"], a["stop_type"], a["truncated"]), "limit"),
        TEXT: ({"prompt": "w5", "max_tokens": -1, **more}, lambda a: (
            a["usage"]["completion_tokens"], a["choices"][0]["finish_reason"]), "length"),
        CHAT: ({"messages": user, **more}, lambda a: (
            a["usage"]["completion_tokens"], a["choices"][0]["finish_reason"]), "length"),
        "/v1/responses": ({"input": "w5", **more}, lambda a: (
            a["usage"]["output_tokens"], a["incomplete_details"]["reason"]), "max_output_tokens"),
        "/v1/messages": ({"messages": user, "max_tokens": 10**6, **more}, lambda a: (
            a["usage"]["output_tokens"], a["stop_reason"]), "max_tokens"),
        "/api/generate": ({"prompt": "w5", "stream": False, "options": more}, lambda a: (
            a["eval_count"], a["done_reason"]), "length"),
        "/api/chat": ({"messages": user, "stream": False, "options": {"num_predict": -1, **more}},
                      lambda a: (a["eval_count"], a["done_reason"]), "length")}
    with Server(model, "--ctx", "128", "--shift-contexts", "3") as s:
        for path, (ask, told, reason) in ways.items():
            status, a, _ = s.post(path, {**ask, "timeout": 60})
            check("what shifts ends: " + path, status == 200 and
                  told(a)[:2] == (3 * 128, reason), a if status != 200 else told(a))
        a = s.post("/completion", {"prompt": "w5", "n_predict": -1, **more, "timeout": 60})[1]
        check("a maximum of -1", a["tokens_predicted"] == 3 * 128, a["tokens_predicted"])
        a = s.post(CHAT, {"messages": user, "n": 2, **more, "timeout": 60})[1]
        check("each of two choices", a["usage"]["completion_tokens"] == 6 * 128, a["usage"])
        check_anew(s, more)
    with Server(model, "--ctx", "64") as s:
        a = s.post("/completion", {"prompt": "w5", **more, "timeout": 60})[1]
        check("ten contexts unless told", a["tokens_predicted"] == 640, a["tokens_predicted"])


def test_continue(s):
    half = {"role": "assistant", "content": "w7"}
    a, b = (s.post("/apply-template", {"messages": [USER, half], **more})[1]["prompt"]
            for more in ({}, {"continue_final_message": False}))
    check("goes on with the last message",
          a == "user: w5 w6\n\nassistant:w7" and b.endswith("assistant: w7\n\nassistant:"), (a, b))
    c = s.post("/apply-template",
               {"messages": [USER, {"role": "assistant",
                                    "content": [{"type": "text", "text": "w"},
                                                {"type": "text", "text": "7"}]}]})[1]["prompt"]
    check("of parts", c == a, c)
    told = s.post(CHAT, {"messages": [USER, half], "max_tokens": 4, "temperature": 0,
                         "verbose": True})[1]
    check("a chat goes on with it",
          told["__verbose"]["prompt"].endswith("assistant:w7")
          and not told["choices"][0]["message"]["content"].startswith("w7"), told)
    for more in ({"add_generation_prompt": True, "continue_final_message": True},
                 {"messages": [USER], "continue_final_message": True},
                 {"messages": [USER, half, half]}):
        check("bad end %s" % list(more),
              s.post(CHAT, {"messages": [USER, half], "max_tokens": 1, **more})[0] == 400)


def test_logprobs_everywhere(s):
    body = {"max_tokens": 4, "temperature": 0, "logprobs": True, "top_logprobs": 3,
            "ignore_eos": True}
    a = s.post(CHAT, {"messages": [USER], **body})[1]["choices"][0]["logprobs"]["content"]
    b = s.post("/v1/responses", {"input": [USER], "max_output_tokens": 4, "temperature": 0,
                                 "top_logprobs": 3, "include": ["message.output_text.logprobs"],
                                 "ignore_eos": True})[1]
    tokens = [t for o in b["output"] for c in o["content"] for t in c["logprobs"]]
    check("logprobs", [t["token"] for t in a] == [t["token"] for t in tokens]
          and all(len(t["top_logprobs"]) == 3 for t in a + tokens), (a, tokens))


def test_logprobs_of_streams(s):
    """All three interfaces tell of the same tokens in pieces what they tell of them whole."""
    for path, more in ((CHAT, {"logprobs": True, "top_logprobs": 3}), (TEXT, {"logprobs": 3}),
                       ("/v1/responses", {"top_logprobs": 3,
                                          "include": ["message.output_text.logprobs"]})):
        body = {**body_of(path, 24), "ignore_eos": True, **more}
        a, told = s.post(path, body)[1], events(s.post(path, {**body, "stream": True})[1])
        if path == CHAT:
            whole = a["choices"][0]["logprobs"]["content"]
            parts = [t for e in told for c in e["choices"]
                     for t in (c["logprobs"] or {}).get("content", [])]
        elif path == TEXT:
            whole = a["choices"][0]["logprobs"]
            lists = [c["logprobs"] for e in told for c in e["choices"] if c["logprobs"]]
            parts = {name: [x for one in lists for x in one[name]] for name in whole
                     if name != "text_offset"}
            whole = {name: whole[name] for name in parts}
        else:
            whole = [t for o in a["output"] for c in o["content"] for t in c["logprobs"]]
            parts = [t for e in told if e["type"] == "response.output_text.delta"
                     for t in e["logprobs"]]
        n = len(whole["tokens"] if path == TEXT else whole)
        check("logprobs of a stream of " + path, parts == whole and n == 24, (n, whole, parts))


def test_named(s):
    """Tokens that are named are told with each one, instead of the most probable ones."""
    for name, path, body in (("chat", CHAT, {"messages": [USER], "logprobs": True}),
                             ("text", TEXT, {"prompt": P, "logprobs": 0}),
                             ("text by n_probs", TEXT, {"prompt": P, "n_probs": 1})):
        body = {**body, "max_tokens": 6, "temperature": 0, "ignore_eos": True,
                "return_tokens_as_token_ids": True}
        top = {"top_logprobs": 20} if path == CHAT else {"logprobs": 20}
        want = probs_told(path, s.post(path, {**body, **top})[1])
        ids = sorted({i for _, best in want for i in best})[:9] + [3]
        for stream in (False, True):
            a = s.post(path, {**body, "logprob_token_ids": ids, "stream": stream})[1]
            got = probs_told(path, events(a) if stream else a)
            check("logprob_token_ids of a %s, stream %s" % (name, stream), len(got) == 6
                  and [own for own, _ in got] == [own for own, _ in want]
                  and all(set(named) - {own[0]} == set(ids) - {own[0]} for own, named in got), got)
            near = [(named[i], best[i]) for (_, named), (_, best) in zip(got, want)
                    for i in set(named) & set(best)]
            check("as they are among the best: %s %s" % (name, stream), len(near) > 6
                  and all(abs(a - b) < 1e-4 for a, b in near), near)
    left = s.post(CHAT, {"messages": [USER], "max_tokens": 3, "temperature": 1, "top_k": 2,
                         "seed": 4, "logprobs": True, "post_sampling_probs": True,
                         "ignore_eos": True, "logprob_token_ids": list(range(300))[:128]})[1]
    for t in left["choices"][0]["logprobs"]["content"]:
        check("named of what is left", len(t["top_probs"]) == 128
              and sum(p["prob"] > 0 for p in t["top_probs"]) <= 2
              and sum(p["prob"] for p in t["top_probs"]) <= 1 + 1e-4, t)
    many = {"prompt": P, "max_tokens": 20, "n": 8, "logprobs": 0, "temperature": 0,
            "ignore_eos": True}
    named = {**many, "logprob_token_ids": list(range(3, 131))}

    def charged(ask):
        paid = s.metric("pith:key_sampling_seconds_total")
        s.post(TEXT, ask)
        return s.metric("pith:key_sampling_seconds_total") - paid

    before = s.metric("pith:pieces_made_total")
    few = charged(many)
    bare = s.metric("pith:pieces_made_total") - before
    more = charged(named)
    check("what is told of named tokens is made once",
          s.metric("pith:pieces_made_total") - before - 2 * bare <= 128,
          (before, bare, s.metric("pith:pieces_made_total")))
    # What else the machine does makes either larger.
    few, more = (min([first, *(charged(ask) for _ in range(3))])
                 for first, ask in ((few, many), (more, named)))
    check("its key is charged for telling them", more > 2 * few, (more, few))
    masked = s.post(TEXT, {"prompt": P, "max_tokens": 3, "logprobs": 0, "temperature": 0,
                           "grammar": "root ::= [a-z ]{9}", "logprob_token_ids": [7, 9, 7]})[1]
    check("named beside a grammar", all(len(t) >= 2 for t in masked["choices"][0]["logprobs"][
        "top_logprobs"]), masked)
    check("none are named", made(s, logprob_token_ids=[]) == made(s))
    for bad in ([-1], [10**9], ["a"], 3, [3] * 129, [1.5]):
        status, a, _ = s.post(TEXT, completion(P, 2, logprob_token_ids=bad))
        check("bad logprob_token_ids %s" % str(bad)[:20], status == 400
              and "logprob_token_ids" in a["error"]["message"], a)
    for path in (CHAT, TEXT):
        status, a, _ = s.post(path, {**body_of(path, 2), "logprob_token_ids": [7]})
        check("named without logprobs of " + path, status == 400
              and "needs logprobs" in a["error"]["message"], a)


def probs_told(path, a):
    """[((token, logprob), {token: logprob of the named or best})] of tokens named token_id:7."""
    def number(name):
        return int(name.split(":")[1])
    out = []
    for e in a if isinstance(a, list) else [a]:
        for c in e["choices"]:
            lp = c["logprobs"]
            if path == CHAT:
                out += [((number(t["token"]), t["logprob"]),
                         {number(x["token"]): x["logprob"] for x in t["top_logprobs"]})
                        for t in (lp or {}).get("content", [])]
            elif lp:
                out += [((number(t), p), {number(k): v for k, v in best.items()}) for t, p, best
                        in zip(lp["tokens"], lp["token_logprobs"], lp["top_logprobs"])]
    return out


def test_prompt_time(model):
    """A prompt of several steps that takes longer than it may ends without a text; the next request
    finds what there is of it."""
    prompt = [5 + i % 200 for i in range(1500)]
    least = {"t_max_prompt_ms": 1e-6, "temperature": 0, "ignore_eos": True}
    # With steps of few tokens, too: fewer than are found again.
    with Server(model, "--ctx", "2048", "--parallel", "2", "--gap", "0.001") as s:
        a = s.post(TEXT, {"prompt": prompt, "max_tokens": 4, "n": 2, "logprobs": 2, **least})[1]
        check("t_max_prompt_ms", [(c["text"], c["finish_reason"], c["logprobs"]["tokens"])
                                  for c in a["choices"]] == [("", "length", [])] * 2
              and a["usage"]["completion_tokens"] == 0, a)
        for path, ask in (("/completion", {"prompt": prompt[::-1], "n_predict": 4}),
                          (CHAT, {"messages": [{"role": "user", "content": "w7 w8 " * 100}],
                                  "max_tokens": 4})):
            status, a, _ = s.post(path, {**ask, **least})
            check("of " + path, status == 200 and text_of(path, a) == "", a)
            told = events(s.post(path, {**ask, **least, "stream": True, "cache_prompt": False})[1])
            check("of a stream of " + path, stream_text(path, told) == "" and
                  (told[-1].get("stop_type") == "limit" or
                   told[-1]["choices"][0]["finish_reason"] == "length"), told)
        n, tries = 0, 0
        while n < len(prompt) - 64 and tries < 100:
            a = s.post(TEXT, {"prompt": prompt, "max_tokens": 4, **least})[1]
            more = a["usage"]["prompt_tokens_details"]["cached_tokens"]
            check("each finds more", more > n, (n, more))
            n, tries = more, tries + 1
            if a["usage"]["completion_tokens"]:
                break
        check("the last one has its text", a["usage"]["completion_tokens"] == 4, a)
        free = s.post(TEXT, {"prompt": prompt, "max_tokens": 4, "cache_prompt": False,
                             "temperature": 0, "ignore_eos": True})[1]
        check("which is that of any other", a["choices"] == free["choices"], (a, free))
        for value in (0, -1, 1e9, None):
            a = s.post(TEXT, {"prompt": prompt[5:], "max_tokens": 4, "cache_prompt": False, **least,
                              "t_max_prompt_ms": value})[1]
            check("any time %s" % value, a["usage"]["completion_tokens"] == 4, a)
        a = s.post(TEXT, {"prompt": prompt, "max_tokens": 4, "prompt_logprobs": 1, **least})[1]
        check("a prompt that is told is whole", len(a["choices"][0]["prompt_logprobs"]) == 1500
              and a["usage"]["completion_tokens"] == 4, a["usage"])
        for bad in (-2, "a", 1e10, [1]):
            check("bad t_max_prompt_ms %s" % bad,
                  s.post(TEXT, {"prompt": "w5", "max_tokens": 1, "t_max_prompt_ms": bad})[0] == 400)


def test_pulse(model):
    """Streams that wait for others are silent: one gives signs of life as often as it asks, one by
    default (which takes seconds: from TEST_SCALE=10 on), one never."""
    with Server(model, "--ctx", "512", "--parallel", "1", "--shift-contexts", "1000000") as s:
        def begun(**more):
            body = json.dumps({"prompt": [5], "max_tokens": -1, "stream": True, "ignore_eos": True,
                               **more}).encode()
            c = s.connect(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                          b"Content-Length: %d\r\n\r\n" % len(body) + body)
            return c
        def until(c, word):
            told = b""
            while word not in told:
                piece = c.recv(65536)
                check("the connection is there", piece)
                told += piece
            return told
        running = begun(context_shift=True, priority=-1)
        until(running, b"data: ")
        drained = threading.Thread(target=lambda: until_closed(running))
        drained.start()
        never, none, often = (begun(sse_ping_interval=v) for v in (-1, 0, 1))
        for c in (never, none, often):
            until(c, b"\r\n\r\n")
        usual, word = begun(), b": keep-alive"
        said = until(often, word)
        if SCALE >= 10:
            until(usual, word)
        told = {}
        for name, c in (("never", never), ("none", none), ("often", often)):
            c.setblocking(False)
            try:
                told[name] = c.recv(65536)
            except BlockingIOError:
                told[name] = b""
        check("sse_ping_interval", SCALE < 10 or (said + told["often"]).count(word) >= 2, told)
        check("no sign of life", told["never"] == told["none"] == b"", told)
        running.shutdown(socket.SHUT_RDWR)
        drained.join()
        for c in (running, never, none, often, usual):
            c.close()
        for bad in (-2, "a", 1.5, 2**31):
            check("bad sse_ping_interval %s" % bad,
                  s.post(TEXT, {"prompt": "w5", "max_tokens": 1, "sse_ping_interval": bad})[0]
                  == 400)


def until_closed(c):
    try:
        while c.recv(65536):
            pass
    except OSError:
        pass


def test_best_of(s):
    """Of a chat: as many as are asked for, the most probable ones of those that are made."""
    body = {"messages": [USER], "max_tokens": 5, "seed": 9, "temperature": 1.5, "logprobs": True,
            "ignore_eos": True, "top_k": 0, "top_p": 1, "min_p": 0}
    of_all = s.post(CHAT, {**body, "n": 6})[1]["choices"]
    best = s.post(CHAT, {**body, "n": 2, "best_of": 6})[1]
    mean = [sum(t["logprob"] for t in c["logprobs"]["content"]) for c in of_all]
    want = [of_all[i]["message"] for i in sorted(range(6), key=lambda i: -mean[i])[:2]]
    check("best_of of a chat", [c["message"] for c in best["choices"]] == want
          and best["usage"]["completion_tokens"] == 30, (best, want))
    for bad in ({"best_of": 1, "n": 2}, {"best_of": 3, "stream": True}, {"best_of": 0}):
        check("bad best_of %s" % bad, s.post(CHAT, {**body, **bad})[0] == 400)


def test_only(s):
    """The fields of an answer that are asked for; of a stream all are told."""
    for path in (CHAT, TEXT):
        body = {**body_of(path, 3), "ignore_eos": True}
        whole = s.post(path, body)[1]
        status, a, r = s.post(path, {**body, "response_fields": ["choices", "usage/total_tokens",
                                                                 "nothing", "usage/x"]})
        check("response_fields of " + path, status == 200
              and a == {"choices": whole["choices"],
                        "usage/total_tokens": whole["usage"]["total_tokens"]}
              and r.getheader("x-pith-ignored") is None, a)
        check("all of " + path, set(s.post(path, {**body, "response_fields": []})[1]) == set(whole))
        told, _, r = s.post(path, {**body, "response_fields": ["choices"], "stream": True})[::1]
        check("a stream of " + path, told == 200
              and r.getheader("x-pith-ignored") == "response_fields")
        for bad in ([3], "choices", ["a" * 257], ["a"] * 257):
            check("bad response_fields %s of %s" % (str(bad)[:9], path),
                  s.post(path, {**body, "response_fields": bad})[0] == 400)


def test_timings(s):
    for path, body in ((CHAT, {"messages": [USER]}), (TEXT, {"prompt": "w5"})):
        told = events(s.post(path, {**body, "max_tokens": 5, "stream": True,
                                    "timings_per_token": True, "ignore_eos": True})[1])
        n = [e["timings"]["predicted_n"] for e in told if "timings" in e]
        # a piece of a character is told with the next
        check("timings of " + path, n and n == sorted(n) and n[-1] == 5, n)
        t = s.post(path, {**body, "max_tokens": 5, "ignore_eos": True})[1]["timings"]
        check("timings at the end of " + path,
              t["predicted_n"] == 5 and t["cache_n"] + t["prompt_n"] > 0 and t["predicted_ms"] >= 0,
              t)
        body = {**body, "max_tokens": 5, "stream": True, "ignore_eos": True, "n": 2,
                "verbose": True}
        told = events(s.post(path, body)[1])
        have = [e for e in told if "timings" in e or "__verbose" in e]
        check("timings of the last piece of " + path, have == told[-1:]
              and have[0]["choices"][0]["finish_reason"] and "usage" not in have[0]
              and have[0]["timings"]["predicted_n"] == 10 and have[0]["__verbose"]["prompt"], have)
        told = events(s.post(path, {**body, "stream_options": {"include_usage": True}})[1])
        have = [e for e in told if "timings" in e or "__verbose" in e]
        check("timings beside usage of " + path, have == told[-1:] and not have[0]["choices"]
              and have[0]["usage"]["completion_tokens"] == 10 and have[0]["__verbose"], have)
    told = events(s.post("/v1/responses",
                         {"input": "w5", "max_output_tokens": 5, "stream": True,
                          "timings_per_token": True, "return_progress": True, "ignore_eos": True})[
                1])
    check("progress of Responses",
          [e["type"] for e in told if "prompt_progress" in e][0] == "response.in_progress"
          and told[-1]["timings"]["predicted_n"] == 5, told[-1])


PATHS = (CHAT, TEXT, "/completion", "/v1/responses", "/v1/messages")


def body_of(path, most, text="w5 w6"):
    """Of one and the same question on each interface."""
    body = ({"prompt": text} if path in (TEXT, "/completion", "/infill") else
            {"input": text} if path == "/v1/responses" else
            {"messages": [{"role": "user", "content": text}]})
    names = {"/v1/responses": "max_output_tokens", "/completion": "n_predict"}
    name = names.get(path, "max_tokens")
    return {**body, name: most, "temperature": 0}


def text_of(path, a):
    """Of a whole answer."""
    if "choices" in a:
        c = a["choices"][0]
        return c["text"] if "text" in c else c["message"]["content"]
    if "output" in a:
        return "".join(c["text"] for o in a["output"] for c in o.get("content", []))
    return a["content"] if path == "/completion" else "".join(c["text"] for c in a["content"])


def stream_text(path, told):
    """Of the events of a stream."""
    if path == "/v1/responses":
        return "".join(e["delta"] for e in told if e["type"] == "response.output_text.delta")
    if path == "/v1/messages":
        return "".join(e["delta"].get("text", "") for e in told
                       if e["type"] == "content_block_delta")
    if path == "/completion":
        return "".join(e["content"] for e in told)
    return "".join((c.get("text") or c.get("delta", {}).get("content") or "")
                   for e in told for c in e["choices"])


def both(s, path, most, **more):
    """The text of a whole answer, which has to be that of a stream; (status, answer) otherwise."""
    status, a, _ = s.post(path, {**body_of(path, most), **more})
    if status != 200:
        return status, a
    text = text_of(path, a)
    streamed = stream_text(path, events(s.post(path, {**body_of(path, most), **more,
                                                      "stream": True})[1]))
    check("stream and whole of %s %s" % (path, list(more)), streamed == text, (text, streamed))
    return text


def test_guided(s):
    """What the text has to keep, by vLLM's and SGLang's names: kept on every interface."""
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0,
                                                     "maximum": 9}},
              "required": ["a"], "additionalProperties": False}
    gbnf = 'root ::= "left" | "right"'
    words = ["one\n\"two\"", "three", "caf\u00e9"]
    for path in PATHS:
        for more in ({"guided_json": schema}, {"guided_json": json.dumps(schema)},
                     {"structured_outputs": {"json": schema, "disable_fallback": True}}):
            got = both(s, path, 60, **more)
            check("a schema of %s %s" % (path, list(more)), isinstance(got, str)
                  and json.loads(got).get("a", 10) < 10, got)
        for more in ({"guided_regex": "[0-9]{3}-[ab]{1,3}x?"}, {"regex": "[0-9]{3}-[ab]{1,3}x?"},
                     {"structured_outputs": {"regex": "[0-9]{3}-[ab]{1,3}x?"}}):
            got = both(s, path, 60, **more)
            check("a pattern of %s %s" % (path, list(more)), isinstance(got, str)
                  and re.fullmatch("[0-9]{3}-[ab]{1,3}x?", got), got)
        for more in ({"guided_choice": words}, {"structured_outputs": {"choice": words}}):
            got = both(s, path, 60, **more)
            check("a choice of %s %s" % (path, list(more)), got in words, got)
        for more in ({"guided_grammar": gbnf}, {"ebnf": gbnf},
                     {"structured_outputs": {"grammar": gbnf}}):
            got = both(s, path, 60, **more)
            check("a grammar of %s %s" % (path, list(more)), got in ("left", "right"), got)
        for more in ({"guided_json_object": True}, {"structured_outputs": {"json_object": True}}):
            got = both(s, path, 400, **more)
            check("an object of %s %s" % (path, list(more)), isinstance(got, str)
                  and got.startswith("{"), got)
    plain = both(s, TEXT, 40, ignore_eos=True)
    cut = plain[5:8]
    for path in PATHS:
        had = both(s, path, 40, ignore_eos=True)
        word = re.search("[ -~]+", had).group()[:3]
        for more in ({"bad_words": [word, "zzz"]}, {"banned_strings": word}):
            got = both(s, path, 40, ignore_eos=True, **more)
            check("bad words of %s %s" % (path, list(more)), isinstance(got, str)
                  and word not in got and got and got.startswith(had[:had.index(word)]),
                  (word, had, got))
    for bad in ({"guided_json": schema, "guided_regex": "a"}, {"regex": "a", "grammar": gbnf},
                {"guided_choice": ["a"], "response_format": {"type": "json_object"}},
                {"bad_words": ["a"], "guided_json": schema}, {"guided_json": "no JSON"},
                {"guided_json": "[1]"}, {"guided_choice": [1]}, {"guided_choice": "a"},
                {"guided_regex": "a)("}, {"guided_regex": "(?<=a)"}, {"guided_grammar": "nothing"},
                {"structured_outputs": {"structural_tag": "x"}}, {"structured_outputs": {"x": 1}},
                {"structured_outputs": {"json": schema, "regex": "a"}},
                {"structured_outputs": {"choice": []}}, {"structured_outputs": {"regex": ""}},
                {"structured_outputs": {"regex": 3}}, {"structured_outputs": "a"},
                {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
                {"bad_words": [""]}, {"bad_words": [3]}, {"bad_words": ["a" * 9000]},
                {"guided_whitespace_pattern": " "}):
        for path in PATHS[:3]:
            status, a, _ = s.post(path, {**body_of(path, 3), **bad})
            check("bad %s of %s" % (str(bad)[:40], path), status == 400
                  and any(name in a["error"]["param"] + a["error"]["message"] for name in bad), a)
    for nothing in ({"guided_json": {}}, {"guided_choice": []}, {"bad_words": []},
                    {"structured_outputs": {}}, {"guided_regex": ""}, {"regex": None},
                    {"structured_outputs": {"regex": None, "json_object": False}},
                    {"guided_regex": None, "response_format": {"type": "text"}},
                    {"guided_decoding_backend": "xgrammar"}):
        check("nothing of %s" % nothing, both(s, TEXT, 40, ignore_eos=True, **nothing) == plain)
    check("cut is there", cut in plain)


def test_allowed(s):
    """The only tokens there are, in any chain; and a least number of candidates."""
    for path in PATHS:
        for more in ({}, {"samplers": "temp"}, {"samplers": ["temperature"]},
                     {"temperature": 1, "seed": 3}):
            a = s.post(path, {**body_of(path, 12), "allowed_token_ids": [30, 31, 32], **more})
            allowed = {s.post("/detokenize", {"tokens": [i]})[1]["content"] for i in (30, 31, 32)}
            text = text_of(path, a[1])
            for piece in sorted(allowed, key=len, reverse=True):
                text = text.replace(piece, "").replace(piece.strip() or piece, "")
            check("allowed_token_ids of %s %s" % (path, list(more)), a[0] == 200
                  and not text.strip(), a[1])
    ids = s.post("/completion", {"prompt": P, "n_predict": 12, "temperature": 0,
                                 "allowed_token_ids": [40, 41, 41], "return_tokens": True})[1]
    check("only these tokens", set(ids["tokens"]) <= {40, 41} and len(ids["tokens"]) == 12
          and ids["stop_type"] == "limit", ids["tokens"])
    end = s.post(TEXT, completion(P, 12, allowed_token_ids=[2], ignore_eos=False))[1]
    check("an end token that is allowed", end["choices"][0]["text"] == ""
          and end["choices"][0]["finish_reason"] == "stop", end)
    check("an empty list is none", made(s, allowed_token_ids=[])["text"] == made(s)["text"])
    check("biases count in any chain",
          s.post("/completion", {"prompt": P, "n_predict": 3, "temperature": 0, "samplers": "temp",
                                 "logit_bias": {"77": 100}, "return_tokens": True,
                                 "ignore_eos": True})[1]["tokens"] == [77] * 3)
    never = s.post("/completion", {"prompt": P, "n_predict": 6, "temperature": 0, "min_tokens": 2,
                                   "logit_bias": {"2": 90}, "return_tokens": True, "samplers":
                                   "temp", "ignore_eos": True, "stop_token_ids": [9]})[1]
    check("no end token beside min_tokens", 2 not in never["tokens"]
          and never["tokens_predicted"] == 6, never["tokens"])
    told = s.post("/completion", {"prompt": P, "n_predict": 1, "temperature": 1, "seed": 1,
                                  "top_p": 0.0001, "min_keep": 7, "n_probs": 20,
                                  "post_sampling_probs": True})[1]
    check("min_keep", len(told["completion_probabilities"][0]["top_probs"]) == 7, told)
    for name, value in (("allowed_token_ids", [-1]), ("allowed_token_ids", ["a"]),
                        ("allowed_token_ids", [10**9]), ("allowed_token_ids", 3),
                        ("min_keep", -1), ("min_keep", "a")):
        status, a, _ = s.post(TEXT, {**completion(P, 2), name: value})
        check("bad %s %s" % (name, str(value)[:20]), status == 400 and name
              in a["error"]["message"], a)


def test_control(s):
    """Control tokens that were made stand in the text where that is asked for."""
    for path in PATHS:
        more = {"logit_bias": {"1": 100}, "ignore_eos": True}
        none = both(s, path, 4, **more)
        check("control tokens are no text of " + path, none == "", none)
        one = both(s, path, 1, skip_special_tokens=False, **more)
        four = both(s, path, 4, skip_special_tokens=False, spaces_between_special_tokens=False,
                    **more)
        check("skip_special_tokens of " + path, one and four == 4 * one
              and s.post("/tokenize", {"content": one})[1]["tokens"] == [1], (one, four))
        end = both(s, path, 4, skip_special_tokens=False, logit_bias={"2": 100})
        check("an end token is no text of " + path, end == "", end)


def test_token_ids(s):
    made = s.post("/completion", {"prompt": P, "n_predict": 6, "temperature": 0,
                                  "return_tokens": True, "ignore_eos": True})[1]["tokens"]
    for name in ("return_token_ids", "return_tokens"):
        body = {**completion(P, 6), name: True, "n": 2}
        a = s.post(TEXT, body)[1]["choices"]
        check(name, [(c["prompt_token_ids"], c["token_ids"]) for c in a] == [(P, made)] * 2, a)
        told = [c for e in events(s.post(TEXT, {**body, "stream": True})[1]) for c in e["choices"]]
        for k in range(2):
            check("%s in a stream %d" % (name, k),
                  sum((c.get("token_ids", []) for c in told if c["index"] == k), []) == made
                  and [c["prompt_token_ids"] for c in told
                       if c["index"] == k and "prompt_token_ids" in c] == [P], told)
        body = {"messages": [USER], "max_tokens": 6, "temperature": 0, "ignore_eos": True,
                name: True}
        a = s.post(CHAT, body)[1]
        n = a["usage"]["prompt_tokens"]
        told = events(s.post(CHAT, {**body, "stream": True})[1])
        ids = sum((c.get("token_ids", []) for e in told for c in e["choices"]), [])
        check(name + " of a chat", len(a["prompt_token_ids"]) == n
              and len(a["choices"][0]["token_ids"]) == 6
              and ids == a["choices"][0]["token_ids"]
              and [e["prompt_token_ids"] for e in told if "prompt_token_ids" in e]
              == [a["prompt_token_ids"]], (a, told))
        text = s.post("/detokenize", {"tokens": ids})[1]["content"]
        check(name + " is the text", text.strip() == a["choices"][0]["message"]["content"].strip(),
              text)
    for path in (CHAT, TEXT):
        a = s.post(path, {**body_of(path, 6), "logit_bias": {"2": 100},
                          "return_token_ids": True})[1]
        check("the end token of " + path, a["choices"][0]["token_ids"] == [2]
              and a["usage"]["completion_tokens"] == 1, a)
        check("none unasked of " + path, "token_ids" not in json.dumps(
            s.post(path, body_of(path, 2))[1]))
    a = s.post(TEXT, completion(P, 3, return_tokens_as_token_ids=True))[1]["choices"][0]["logprobs"]
    check("return_tokens_as_token_ids", a["tokens"] == ["token_id:%d" % i for i in made[:3]]
          and all(k.startswith("token_id:") for t in a["top_logprobs"] for k in t)
          and a["text_offset"] == made_offsets(s, 3), a)
    a = s.post(CHAT, {"messages": [USER], "max_tokens": 3, "logprobs": True, "top_logprobs": 2,
                      "return_tokens_as_token_ids": True, "return_token_ids": True,
                      "temperature": 0, "ignore_eos": True})[1]
    check("return_tokens_as_token_ids of a chat",
          [t["token"] for t in a["choices"][0]["logprobs"]["content"]]
          == ["token_id:%d" % i for i in a["choices"][0]["token_ids"]], a)


def made_offsets(s, n):
    return s.post(TEXT, completion(P, n))[1]["choices"][0]["logprobs"]["text_offset"]


def test_prompt_logprobs(s):
    want = s.post(TEXT, completion(P, 1, echo=True, logprobs=3))[1]["choices"][0]["logprobs"]
    for more in ({}, {"logprobs": None}, {"echo": True}, {"logprobs": 1, "n": 2}):
        body = {**completion(P, 1, prompt_logprobs=3), **more}
        for c in s.post(TEXT, body)[1]["choices"]:
            got = c["prompt_logprobs"]
            check("prompt_logprobs %s" % more, len(got) == len(P) and got[0] is None, got)
            for i in range(1, len(P)):
                own = got[i][str(P[i])]
                best = sorted(got[i].values(), key=lambda t: t["rank"])
                check("rank %d %s" % (i, more), own["logprob"] == want["token_logprobs"][i]
                      and own["rank"] >= 1 and [t["rank"] for t in best[:3]] == [1, 2, 3]
                      and len(got[i]) == (3 if own["rank"] <= 3 else 4)
                      and sorted((t["logprob"] for t in best), reverse=True)
                      == [t["logprob"] for t in best]
                      and own["decoded_token"] == want["tokens"][i], got[i])
    echoed = s.post(TEXT, completion(P, 1, echo=True, logprobs=1, prompt_logprobs=5))[
            1]["choices"][0]
    check("as many as each asks for",
          all(len(t) <= 2 for t in echoed["logprobs"]["top_logprobs"][1:])
          and all(len(t) >= 5 for t in echoed["prompt_logprobs"][1:]), echoed)
    drawn = s.post(TEXT, {"prompt": P, "max_tokens": 8, "logprobs": 1, "temperature": 5, "seed": 1,
                          "top_k": 0, "top_p": 1, "min_p": 0})[1]["choices"][0]["logprobs"]
    check("a drawn token is among the best",
          [top[t] for top, t in zip(drawn["top_logprobs"], drawn["tokens"])]
          == drawn["token_logprobs"] and max(map(len, drawn["top_logprobs"])) == 2, drawn)
    far = s.post(TEXT, completion(P, 1, prompt_logprobs=0))[1]["choices"][0]["prompt_logprobs"]
    check("the prompt's own alone", [len(t) for t in far[1:]] == [1] * (len(P) - 1), far)
    check("a prompt of one token",
          s.post(TEXT, completion([5], 1, prompt_logprobs=2))[1]["choices"][0]["prompt_logprobs"]
          == [None])
    a = s.post(CHAT, {"messages": [USER], "max_tokens": 1, "prompt_logprobs": 2,
                      "return_token_ids": True})[1]
    check("of a chat", len(a["prompt_logprobs"]) == a["usage"]["prompt_tokens"]
          and all(str(i) in t for i, t in zip(a["prompt_token_ids"][1:], a["prompt_logprobs"][1:])),
          a)
    for value in (-1, 21, "a"):
        check("bad prompt_logprobs %s" % value,
              s.post(TEXT, completion(P, 1, prompt_logprobs=value))[0] == 400)
    for path in (CHAT, TEXT):
        status, a, _ = s.post(path, {**body_of(path, 1), "prompt_logprobs": 1, "stream": True})
        check("no stream of " + path, status == 400 and "stream" in a["error"]["message"], a)


def test_left(s):
    """What the samplers left for the draw."""
    body = {"max_tokens": 4, "temperature": 1, "seed": 5, "top_k": 3, "logprobs": True,
            "top_logprobs": 5, "post_sampling_probs": True, "ignore_eos": True}
    a = s.post(CHAT, {"messages": [USER], **body})[1]["choices"][0]["logprobs"]["content"]
    check("post_sampling_probs of a chat",
          all(len(t["top_probs"]) == 3 and abs(sum(p["prob"] for p in t["top_probs"]) - 1) < 1e-4
              and 0 < t["prob"] <= 1 for t in a), a)
    a = s.post(TEXT, {**body, "prompt": P, "logprobs": 5, "top_logprobs": None})[
            1]["choices"][0]["logprobs"]
    check("post_sampling_probs of a completion",
          all(len(t) <= 3 and sum(math.exp(p) for p in t.values()) < 1 + 1e-4
              for t in a["top_logprobs"])
          and any(abs(sum(math.exp(p) for p in t.values()) - 1) < 1e-4
                  for t in a["top_logprobs"]), a)
    b = s.post(CHAT, {"messages": [USER], **body, "logprobs": False, "top_logprobs": None})
    check("nothing without logprobs", b[0] == 200 and b[1]["choices"][0]["logprobs"] is None, b[1])


def test_salt(s):
    """Prefixes are found by requests of the same salt alone."""
    def cached(salt, path=TEXT):
        a = s.post(path, {"prompt": [11] * 200, "max_tokens": 2, "cache_salt": salt})[1]
        return (a["usage"]["prompt_tokens_details"]["cached_tokens"] if path == TEXT
                else a["timings"]["cache_n"])
    got = [cached(salt) for salt in ("a", "a", "b", None, None, "b", "a")]
    check("cache_salt", [n >= 128 for n in got] == [False, True, False, False, True, True, True]
          and not any(got[i] for i in (0, 2, 3)), got)
    check("of /completion", cached("b", "/completion") >= 128 and cached("c", "/completion") == 0)
    body = completion([12] * 200, 2)
    told = at_once([lambda k=k: s.post(TEXT, {**body, "cache_salt": "x%d" % k})[1]
                    for k in range(4)])
    check("at once", [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in told] == [0] * 4
          and all(a["choices"] == told[0]["choices"] for a in told), told)
    check("no reuse behind a change", s.post(TEXT, {**body, "n_cache_reuse": 256})[0] == 200)


def test_small(s):
    """Names and shapes that only some clients send."""
    for path, start in ((CHAT, "chatcmpl-"), (TEXT, "cmpl-")):
        body = {**body_of(path, 3), "request_id": "mine-7"}
        ids = [s.post(path, body)[1]["id"],
               *(e["id"] for e in events(s.post(path, {**body, "stream": True})[1]))]
        check("request_id of " + path, set(ids) == {start + "mine-7"}, ids)
        for bad in ("", "a" * 49, 3):
            check("bad request_id %s of %s" % (str(bad)[:5], path),
                  s.post(path, {**body, "request_id": bad})[0] == 400)
        more = {"stream": True, "ignore_eos": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        told = events(s.post(path, {**body_of(path, 4), **more})[1])
        made = [e["usage"]["completion_tokens"] for e in told]
        check("continuous_usage_stats of " + path, made == sorted(made) and made[-1] == 4
              and len(set(made)) >= 2 and len({e["usage"]["prompt_tokens"] for e in told
                                               if e["usage"]["completion_tokens"]}) == 1, told)
    half = {"role": "assistant", "content": "w7"}
    body = {"messages": [USER, half], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    rest = s.post(CHAT, body)[1]["choices"][0]["message"]["content"]
    for more in ({"n": 2}, {"return_token_ids": True}):
        a = s.post(CHAT, {**body, **more, "echo": True})[1]
        told = events(s.post(CHAT, {**body, **more, "echo": True, "stream": True})[1])
        check("echo of a chat %s" % more,
              {c["message"]["content"] for c in a["choices"]} == {"w7" + rest}
              and a["usage"]["completion_tokens"] == 4 * len(a["choices"])
              and "".join(c["delta"].get("content") or "" for e in told for c in e["choices"]
                          if c["index"] == 0) == "w7" + rest, (a, rest))
    a = s.post(CHAT, {**body, "messages": [USER], "echo": True})[1]["choices"][0]["message"]
    b = s.post(CHAT, {**body, "messages": [USER]})[1]["choices"][0]["message"]
    check("nothing to echo", a == b, (a, b))
    schema = {"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"],
              "additionalProperties": False}
    for path in PATHS:
        got = both(s, path, 60, json_schema=json.dumps(schema))
        check("the text of a schema of " + path, got in ('{"a":1}', '{"a":22}') or
              json.loads(got)["a"] in (1, 22), got)
    for bad in ("no JSON", "[]", "3"):
        check("bad text of a schema %s" % bad,
              s.post(TEXT, completion(P, 3, json_schema=bad))[0] == 400)


def test_echo(s):
    """What stands before a text is the prompt that the model had."""
    def said(prompt, **more):
        body = {**completion(prompt, 3), "echo": True, **more}
        a = s.post(TEXT, body)[1]
        told = events(s.post(TEXT, {**body, "stream": True})[1])
        for c in a["choices"]:
            check("echo in a stream %s %s" % (prompt, more), c["text"] == "".join(
                t["text"] for e in told for t in e["choices"] if t["index"] == c["index"]), a)
        return [c["text"] for c in a["choices"]]

    first = s.post("/tokenize", {"content": "w5 w6", "add_special": True})[1]["tokens"]
    for prompt in (["w5 w6", 7, 8], ["w5 w6", 7], [7, "w5 w6", 8]):
        given = [first if i == 0 else s.post("/tokenize", {"content": v})[1]["tokens"]
                 if isinstance(v, str) else [v] for i, v in enumerate(prompt)]
        if not isinstance(prompt[0], str):
            given[0] = prompt[:1]
        ids = sum(given, [])
        check("echo of texts and tokens %s" % prompt, said(prompt, n=2) == said(ids, n=2),
              (said(prompt), said(ids)))
    check("echo of prompts", said(["w5 w6", "w7"]) == said(["w5 w6"]) + said("w7")
          and said("w7")[0].startswith("w7"), said("w7"))
    check("echo of lists", said([["w5 w6", 7], [8, 9]]) == said(["w5 w6", 7]) + said([8, 9]))
    cut = [said(prompt, truncate_prompt_tokens=2)
           for prompt in ("w1 w2 w5 w6", "w3 w4 w5 w6", ["w1 w2 w5 w6"], first[-2:])]
    check("echo of a prompt that was cut", cut == [cut[-1]] * 4 and "w1" not in cut[0][0]
          and said("w5 w6", truncate_prompt_tokens=100) == said("w5 w6"), cut)


def test_indent(s):
    """A line that is less indented ends the text before its first word."""
    text = "a\n    b\n\t  c\n d\ne"
    gbnf = "root ::= " + json.dumps(text)
    for path in (CHAT, TEXT, "/completion"):
        for n, want in ((0, text), (1, text[:-1]), (2, text[:-3]), (3, text[:-3]),
                        (4, "a\n    b\n\t  "), (5, "a\n    ")):
            for cut in (0, 2): # as its tokens are, and with a stop text held back
                got = both(s, path, 60, grammar=gbnf, n_indent=n, stop=["zz", "d\nx"][:cut])
                check("n_indent %d of %s" % (n, path), got == want, got)
    a = s.post("/completion", {**body_of("/completion", 60), "grammar": gbnf, "n_indent": 4})[1]
    check("n_indent is a limit", a["stop_type"] == "limit", a)
    got = both(s, TEXT, 60, grammar='root ::= "a\\n\\n  b"', n_indent=1)
    check("a line of nothing", got == "a\n", got)
    for bad in (-1, "x", 1.5):
        check("bad n_indent %s" % bad, s.post(TEXT, completion(P, 2, n_indent=bad))[0] == 400)


AGREE = {
    "stop": "w2", "stop_token_ids": [9, 77, 300], "include_stop_str_in_output": True,
    "min_tokens": 5, "truncate_prompt_tokens": 3, "ignore_eos": False, "n_keep": 3,
    "context_shift": True, "logit_bias": {"30": 4, "2": 3}, "repetition_penalty": 1.5,
    "repeat_penalty": 1.4, "repeat_last_n": 3, "frequency_penalty": 1, "presence_penalty": 1,
    "top_k": 7, "top_p": 0.5, "min_p": 0.2, "typical_p": 0.5, "top_n_sigma": 1,
    "xtc_probability": 1, "xtc_threshold": 0.01, "dry_multiplier": 2, "dry_base": 1.2,
    "dry_allowed_length": 1, "dry_penalty_last_n": 9, "dry_sequence_breakers": ["w"],
    "mirostat": 2, "mirostat_tau": 2, "mirostat_eta": 0.3, "adaptive_target": 0.3,
    "adaptive_decay": 0.5, "dynatemp_range": 0.5, "dynatemp_exponent": 2, "min_keep": 3,
    "samplers": ["top_k", "temperature"], "seed": 9, "cache_prompt": False, "cache_salt": "z",
    "priority": -3, "skip_special_tokens": False, "id_slot": 0, "timings_per_token": True,
    "return_progress": True, "t_max_predict_ms": 100000, "t_max_prompt_ms": 100000,
    "sse_ping_interval": 1, "lora": []}


def test_agree(s):
    """Every field of those that say how text is made: a stream has the text of the whole answer."""
    for path in PATHS:
        for name, value in AGREE.items():
            got = both(s, path, 24, **{"temperature": 0.9, "seed": 4, "ignore_eos": True,
                                       "stop": "w31", "dry_multiplier": 1, name: value})
            check("%s of %s" % (name, path), isinstance(got, str), got)


def test_bad(s):
    bad = [("stop_token_ids", [-1]), ("stop_token_ids", [10**9]), ("stop_token_ids", ["a"]),
           ("stop_token_ids", [1] * 300), ("min_tokens", -1), ("truncate_prompt_tokens", 0),
           ("truncate_prompt_tokens", -2), ("t_max_predict_ms", "a"), ("n_keep", -2),
           ("n_discard", -1), ("samplers", ["nothing"]), ("samplers", [3]),
           ("samplers", ["top_k:k=3"]), ("samplers", ["top_k"] * 100), ("repetition_penalty", -1),
           ("cache_prompt", 3), ("context_shift", "x"), ("include_stop_str_in_output", 1),
           ("suffix", 3), ("n_probs", -1), ("n_cmpl", 0), ("n_cmpl", 129), ("adaptive_target", 2),
           ("json_schema", 3), ("id_slot", -2), ("skip_special_tokens", 1),
           ("cache_salt", ""), ("cache_salt", "a" * 1025), ("cache_salt", 3), ("n_cache_reuse", -1),
           ("return_token_ids", "a"), ("return_tokens_as_token_ids", 1),
           ("post_sampling_probs", 2), ("spaces_between_special_tokens", "x"),
           ("prompt", {"prompt_string": 3}),
           ("prompt", {"prompt_string": "a", "multimodal_data": ["x"]}), ("prompt", [[1, None]])]
    for name, value in bad:
        status, a, _ = s.post(TEXT, {**completion(P, 2), name: value})
        check("bad %s %s" % (name, str(value)[:20]), status == 400, a)


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "m.gguf"), "--ctx", "512", "--layers", "2", "--seed",
                      "5")
        with Server(model, "--ctx", "512", "--name", "m") as s:
            for test in (test_unknown, test_stops, test_parse_special, test_cold, test_effects,
                         test_repetition, test_prompt_is_history, test_bias,
                         test_banned, test_shift, test_continue, test_logprobs_everywhere,
                         test_logprobs_of_streams, test_named, test_best_of,
                         test_only, test_timings,
                         test_guided, test_allowed, test_control, test_token_ids,
                         test_prompt_logprobs, test_left, test_salt, test_small, test_echo,
                         test_indent, test_agree, test_bad):
                test(s)
        test_prompt_time(synth(os.path.join(folder, "long.gguf"), "--ctx", "2048", "--layers", "2",
                               "--seed", "5"))
        test_pulse(model)
        test_shift_ends(model)
        test_strict(model)
        test_two_models(folder, model)
        test_defaults(model)
        test_advised_history(model)
        test_norms(model)


run(main, "test_fields")
