#!/usr/bin/env python3
"""test_fields.py -- fields of requests over HTTP: those that nobody knows are named and left out,
mistyped ones and constraints are refused; names of models; the effect of each field that vLLM
and llama.cpp have under other names."""
import json
import os
import tempfile

from serving import Server, check, completion, events, refused, run, synth

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
        for name in ("guided_json", "guided_choice", "structured_outputs", "bad_words",
                     "chat_template"):
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
    check("null is nothing", s.post(CHAT,
                                    {"messages": [USER], "max_tokens": 1, "guided_json": None,
                                     "foo": None})[2].getheader("x-pith-ignored") is None)


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
                       ("temperature=1000", "wanted 0 to 100"), ("=3", "wanted FIELD")):
        refused("default %s" % text, 1, said, model, "--default", text)


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
          again[0] != first[0] and only[0] == first[0] and only[1] != first[0], (again, only))
    long = s.post(TEXT, {**body, "max_tokens": 100, "repeat_penalty": 100, "repeat_last_n": -1})[1]
    check("repeat_last_n", long["usage"]["completion_tokens"] == 100)
    check("two of one meaning", s.post(TEXT,
                                       {**body, "repetition_penalty": 2, "repeat_penalty": 3})[0]
          == 400)


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
    told = events(s.post("/v1/responses",
                         {"input": "w5", "max_output_tokens": 5, "stream": True,
                          "timings_per_token": True, "return_progress": True, "ignore_eos": True})[
                1])
    check("progress of Responses",
          [e["type"] for e in told if "prompt_progress" in e][0] == "response.in_progress"
          and told[-1]["timings"]["predicted_n"] == 5, told[-1])


def test_bad(s):
    bad = [("stop_token_ids", [-1]), ("stop_token_ids", [10**9]), ("stop_token_ids", ["a"]),
           ("stop_token_ids", [1] * 300), ("min_tokens", -1), ("truncate_prompt_tokens", 0),
           ("truncate_prompt_tokens", -2), ("t_max_predict_ms", "a"), ("n_keep", -2),
           ("n_discard", -1), ("samplers", ["nothing"]), ("samplers", [3]),
           ("samplers", ["top_k:k=3"]), ("samplers", ["top_k"] * 100), ("repetition_penalty", -1),
           ("cache_prompt", 3), ("context_shift", "x"), ("include_stop_str_in_output", 1),
           ("suffix", 3), ("n_probs", -1), ("n_cmpl", 0), ("n_cmpl", 129), ("adaptive_target", 2),
           ("json_schema", 3), ("id_slot", -2), ("prompt", {"prompt_string": 3}),
           ("prompt", {"prompt_string": "a", "multimodal_data": ["x"]}), ("prompt", [[1, None]])]
    for name, value in bad:
        status, a, _ = s.post(TEXT, {**completion(P, 2), name: value})
        check("bad %s %s" % (name, str(value)[:20]), status == 400, a)


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "m.gguf"), "--ctx", "512", "--layers", "2", "--seed",
                      "5")
        with Server(model, "--ctx", "512", "--name", "m") as s:
            for test in (test_unknown, test_effects, test_repetition, test_bias, test_shift,
                         test_continue, test_logprobs_everywhere, test_timings, test_bad):
                test(s)
        test_strict(model)
        test_two_models(folder, model)
        test_defaults(model)


run(main, "test_fields")
