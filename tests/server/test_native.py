#!/usr/bin/env python3
# In make test alone: make check has test_serve.py.
"""test_native.py -- llama.cpp's own interface over HTTP: completions, filling in, vectors, slots,
properties, health, paths without /v1."""
import json
import os
import struct
import subprocess
import tempfile
import time

from serving import PITH, SHARED, Server, begin, check, events, raw_post, run, skip, synth

P = [5, 6, 7, 8]
USER = {"role": "user", "content": "w5 w6"}


def ask(s, path="/completion", **more):
    return s.post(path, {"n_predict": 8, "temperature": 0, "ignore_eos": True, **more})[1]


def test_completion(s):
    a = ask(s, prompt=P, return_tokens=True)
    wanted = {"index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted",
              "tokens_evaluated", "generation_settings", "prompt", "has_new_line", "truncated",
              "stop_type", "stopping_word", "tokens_cached", "timings"}
    check("fields", set(a) == wanted
          and (a["stop"], a["stop_type"], a["tokens_predicted"], a["tokens_evaluated"],
               len(a["tokens"])) == (True, "limit", 8, 4, 8), a)
    same = s.post("/v1/completions",
                  {"prompt": P, "max_tokens": 8, "temperature": 0, "ignore_eos": True})[
            1]["choices"][0]["text"]
    check("the text of /v1/completions", a["content"] == same, (a["content"], same))
    probs = ask(s, prompt=P, n_probs=3)
    numbers = list(probs["timings"].values()) + [t["logprob"] for p in probs[
        "completion_probabilities"] for t in [p] + p["top_logprobs"]]
    check("measured numbers have nine digits, so that 0.8 stays 0.8 beside them",
          len(numbers) > 30 and all(float("%.9g" % v) == v for v in numbers), numbers)
    check("tokens only when asked for",
          ask(s, prompt=P)["tokens"] == [] and ask(s, "/completions", prompt=P)["content"] == same)
    told = events(s.post("/completion",
                         {"prompt": P, "n_predict": 8, "temperature": 0, "ignore_eos": True,
                          "stream": True})[1])
    check("stream", "".join(e["content"] for e in told) == same
          and [t for e in told[:-1] for t in e["tokens"]] == a["tokens"]
          and [e["stop"] for e in told] == [False] * 8 + [True], told)
    check("the last one tells all",
          set(told[-1]) == wanted and told[-1]["timings"]["predicted_n"] == 8, told[-1])
    text = s.post("/detokenize", {"tokens": P})[1]["content"]
    ids = s.post("/tokenize", {"content": text, "add_special": True})[1]["tokens"]
    one = ask(s, prompt=text)["content"]
    forms = [ask(s, prompt=ids)["content"], ask(s, prompt={"prompt_string": text})["content"],
             ask(s, prompt=[{"prompt_string": text}])["content"]]
    check("forms of a prompt", forms == [one] * 3, (one, forms))
    several = ask(s, prompt=[ids, text, {"prompt_string": text}])
    check("several prompts", [(x["index"], x["content"]) for x in several]
          == [(0, one), (1, one), (2, one)], several)
    mixed = ask(s, prompt=[1, 2, text, 7, 8, text], verbose=True)
    check("mixed", isinstance(mixed, dict) and mixed["tokens_evaluated"] > 8
          and "__verbose" in mixed, mixed)
    check("n", [x["index"] for x in ask(s, prompt=P, n=3)] == [0, 1, 2])
    word = a["content"][3:6]
    stopped = ask(s, prompt=P, stop=[word])
    check("stopping_word", (stopped["stop_type"], stopped["stopping_word"]) == ("word", word)
          and stopped["content"] == a["content"][: a["content"].index(word)], stopped)
    ends = s.post("/completion", {"prompt": P, "n_predict": 8, "logit_bias": {"2": 100}})[1]
    check("eos", ends["stop_type"] == "eos" and ends["content"] == ""
          and ends["generation_settings"]["logit_bias"] == [{"token": 2, "bias": 100}], ends)
    never = s.post("/completion",
                   {"prompt": P, "n_predict": 8, "logit_bias": {"2": 100}, "ignore_eos": True,
                    "return_tokens": True})[1]
    check("ignore_eos", 2 not in never["tokens"] and len(never["tokens"]) == 8
          and {"token": 2, "bias": None} in never["generation_settings"]["logit_bias"], never)
    some = ask(s, prompt=P, response_fields=["content", "generation_settings/n_predict", "nothing",
                                             "a/b/c"])
    check("response_fields", some == {"content": same, "generation_settings/n_predict": 8}, some)
    check("has_new_line", ask(s, prompt=P, grammar='root ::= "a\\nb"',
                              ignore_eos=False)["has_new_line"]
          and not ask(s, prompt=P, grammar='root ::= "ab"', ignore_eos=False)["has_new_line"])


def test_probabilities(s):
    a = ask(s, prompt=P, n_probs=5)["completion_probabilities"]
    check("n_probs", len(a) == 8 and all(len(t["top_logprobs"]) == 5 and t["logprob"] <= 0
                                         and t["id"] == t["top_logprobs"][0]["id"]
                                         and isinstance(t["bytes"], list) for t in a), a)
    told = events(s.post("/completion",
                         {"prompt": P, "n_predict": 8, "temperature": 0, "ignore_eos": True,
                          "stream": True, "n_probs": 5})[1])
    check("n_probs of a stream", [e["completion_probabilities"][0] for e in told[:-1]] == a,
          told[:2])
    for path in ("/completion", "/v1/completions"):
        got = {n: s.post(path, {"prompt": P, "n_predict": 2, "temperature": 0, "ignore_eos": True,
                                "n_probs": n}) for n in (20, 100, 101, 10**9)}
        tops = [got[n][1]["completion_probabilities"][0]["top_logprobs"] if path == "/completion"
                else list(got[n][1]["choices"][0]["logprobs"]["top_logprobs"][0].items())
                for n in (20, 100)]
        # of equal texts, where they are keys, one is kept
        check("n_probs above 20 of " + path, (path != "/completion" or len(tops[1]) == 100)
              and len(tops[1]) > 20 and tops[1][:len(tops[0])] == tops[0], tops)
        for n in (101, 10**9):
            check("n_probs %d of %s" % (n, path), got[n][0] == 400
                  and "n_probs is %d, wanted 0 to 100" % n in got[n][1]["error"]["message"], got[n])
    told = [ask(s, prompt=P, **more)["completion_probabilities"]
            for more in ({"n_probs": 7}, {"logprobs": 7}, {"logprobs": 7, "n_probs": 7},
                         {"logprobs": 3, "n_probs": 7}, {"logprobs": 7, "n_probs": 0})]
    check("logprobs is n_probs", all(t == told[0] for t in told), told)
    check("logprobs of /infill",
          s.post("/infill", {"input_prefix": "w5", "logprobs": 101})[0] == 400)
    talk = {"messages": [{"role": "user", "content": "w5"}], "max_tokens": 4, "seed": 3}
    chat = "/v1/chat/completions"
    said = s.post(chat, {**talk, "logprobs": True, "top_logprobs": 4})[1]["choices"][0]
    status, told, _ = s.post(chat, {**talk, "n_probs": 4})
    check("n_probs of a chat", status == 200 and said["logprobs"]["content"]
          and told["choices"][0]["logprobs"] == said["logprobs"], told)
    r = s.post(chat, {**talk, "n_probs": 30})
    check("n_probs above 20 of a chat",
          len(r[1]["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 30
          and s.post(chat, {**talk, "n_probs": 101})[0] == 400, r[1])
    r = s.post(chat, {**talk, "post_sampling_probs": True, "return_tokens": True, "n_probs": 0})
    check("others of a chat", r[0] == 200 and not r[1]["choices"][0].get("logprobs")
          and r[1]["choices"][0]["token_ids"] and not r[2].getheader("x-pith-ignored"), r[1])
    b = ask(s, prompt=P, n_probs=5, post_sampling_probs=True, temperature=1, top_k=3,
            seed=4)["completion_probabilities"]
    sums = [sum(p["prob"] for p in t["top_probs"]) for t in b]
    check("post_sampling_probs", all(len(t["top_probs"]) == 3
                                     and t["id"] in [p["id"] for p in t["top_probs"]] for t in b)
          and all(abs(x - 1) < 1e-3 for x in sums), (sums, b))
    c = ask(s, prompt=P, n_probs=5, post_sampling_probs=True, temperature=1,
            seed=4)["completion_probabilities"]
    check("of all that were left", all(0 < t["prob"] <= 1 and len(t["top_probs"]) == 5 for t in c),
          c)
    d = ask(s, prompt=P, n_probs=5, post_sampling_probs=True)["completion_probabilities"]
    check("greedy leaves one", all(t["prob"] > 0 for t in d), d)


def test_bad(s):
    for body in ({}, {"prompt": {"prompt_string": 3}},
                 {"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}},
                 {"prompt": P, "n_probs": -1}, {"prompt": P, "response_fields": [3]},
                 {"prompt": P, "n_predict": -3}, {"prompt": [P, 3.5]}, {"prompt": [1, None]},
                 {"prompt": [-1]}, {"prompt": P, "stop": 3}, {"prompt": P, "id_slot": "a"}):
        check("bad %s" % json.dumps(body)[:50], s.post("/completion", body)[0] == 400)
    status, a, _ = s.post("/completion", {"prompt": [5] * 600})
    e = a["error"]
    check("too long", status == 400
          and (e["type"], e["n_prompt_tokens"], e["n_ctx"])
          == ("exceed_context_size_error", 600, 512)
          and "exceeds the available context size" in e["message"], a)
    check("the same in OpenAI's words",
          s.post("/v1/completions", {"prompt": [5] * 600})[1]["error"]["type"]
          == "invalid_request_error")
    for path in ("/completion", "/infill", "/embedding", "/rerank"):
        check("nothing said " + path, s.post(path, b"")[0] == 400 == s.post(path, b"[")[0])
    for extra in ([{}], [{"filename": "a"}], [{"filename": 3, "text": "a"}], [3], {}):
        check("bad input_extra %s" % extra,
              s.post("/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": extra})[0]
              == 400)
    status, a, _ = s.post("/infill", {"input_prefix": "a", "input_suffix": "b"})
    check("no tokens for a gap", status == 501 and "no tokens for filling" in a["error"]["message"],
          a)
    status, a, _ = s.post("/v1/completions", {"prompt": "a", "suffix": "b"})
    check("no tokens for a suffix", status == 400 and a["error"]["param"] == "suffix", a)
    for path in ("/rerank", "/v1/rerank", "/reranking", "/v1/reranking"):
        good = [s.post(path, {"query": "a", name: docs, "top_n": 1})[0]
                for name, docs in (("documents", ["b", {"text": "c"}]), ("texts", ["b"]))]
        bad = [s.post(path, {"query": "a", "documents": docs})[0]
               for docs in ([], None, 3, [1, 2])] + [s.post(path, {"documents": ["a"]})[0]]
        check("rerank " + path, good == [501, 501] and bad == [400] * 5, (good, bad))


def test_gap_markers():
    """Markers that are no control tokens are text in the code around a gap, too."""
    model = os.environ.get("TEST_INSTRUCT")
    if not model:
        skip("markers in a gap", "at TEST_SCALE=10, with the instruct model")
        return
    with Server(model, "--ctx", "512") as s:
        size = lambda text, after: ask(s, "/infill", input_prefix=text, input_suffix=after,
                                       n_predict=1)["tokens_evaluated"]
        plain = size("ab", "cd")
        for marker in ("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|im_end|>"):
            found = size("a%sb" % marker, "cd"), size("ab", "c%sd" % marker)
            check("%s in a gap" % marker, min(found) >= plain + 3, (plain, found))


def test_gap(model):
    """With tokens for it (of the instruct model, or of any file by keys of its own) what fills a
    gap is what follows those tokens."""
    keys = [x for name, i in (("pre", 20), ("suf", 21), ("mid", 22), ("rep", 23), ("sep", 24))
            for x in ("--override-kv", "tokenizer.ggml.fim_%s_token_id=int:%d" % (name, i))]
    with Server(model, "--ctx", "512", *keys) as s:
        words = [s.post("/tokenize", {"content": t})[1]["tokens"] for t in ("w5 w6", "w7", "w8")]
        start = s.post("/tokenize", {"content": "", "add_special": True})[1]["tokens"]
        by_hand = ask(s, prompt=start + [20] + words[0] + [21] + words[1] + [22])
        a = ask(s, "/infill", input_prefix="w5 w6", input_suffix="w7")
        check("infill", a["content"] == by_hand["content"]
              and a["tokens_evaluated"] == by_hand["tokens_evaluated"],
              (a["prompt"], by_hand["prompt"]))
        b = ask(s, "/infill", input_prefix="w5 w6", input_suffix="w7", prompt="w8")
        check("infill that has begun",
              b["content"] == ask(s, prompt=start + [20] + words[0] + [21] + words[1] + [22]
                                  + words[2])["content"], b["prompt"])
        c = s.post("/v1/completions",
                   {"prompt": "w5 w6", "suffix": "w7", "max_tokens": 8, "temperature": 0,
                    "ignore_eos": True})[1]
        check("suffix", c["usage"]["prompt_tokens"] == a["tokens_evaluated"], c)
        d = ask(s, "/infill", input_prefix="w5 w6", input_suffix="w7",
                input_extra=[{"filename": "w9", "text": "w10"}])["prompt"]
        order = [d.index(t) for t in ("myproject", "w9", "w10", "filename", "w5", "w7")]
        check("other files", order == sorted(order), d)
        gap = {"input_prefix": "w5 w6", "input_suffix": "w7"}
        for more, good in (({"guided_choice": ["left", "right"]}, lambda t: t in ("left", "right")),
                           ({"regex": "[0-9]{3}"}, lambda t: len(t) == 3 and t.isdigit()),
                           ({"bad_words": [a["content"][:1]]},
                            lambda t: a["content"][:1] not in t),
                           ({"guided_json_object": True, "max_tokens": 300},
                            lambda t: t.startswith("{"))):
            got = s.post("/infill", {**gap, "n_predict": 40, "temperature": 0, **more})[1]
            told = events(s.post("/infill", {**gap, "n_predict": 40, "temperature": 0,
                                             "stream": True, **more})[1])
            check("%s of /infill" % list(more), good(got["content"])
                  and "".join(e["content"] for e in told) == got["content"], got["content"])
        only = ask(s, "/infill", **gap, allowed_token_ids=[40, 41], return_tokens=True)
        check("allowed_token_ids of /infill", set(only["tokens"]) <= {40, 41}, only["tokens"])
        check("bad regex of /infill", s.post("/infill", {**gap, "regex": "("})[0] == 400)
        mark = s.post("/detokenize", {"tokens": [21]})[1]["content"]
        e = ask(s, "/infill", input_prefix="a" + mark + "b", input_suffix="w7")
        check("texts are texts", e["tokens_evaluated"] == 3 + len(start)
              + len(s.post("/tokenize", {"content": "a" + mark + "b", "parse_special": False})[
                        1]["tokens"]) + len(words[1]), e["prompt"])
        kept = {"prompt": "w5 w6", "suffix": "w7",
                "options": {"num_predict": 8, "temperature": 0, "ignore_eos": True}}
        told = [json.loads(line) for line in s.post("/api/generate", kept)[1].splitlines()]
        f = s.post("/api/generate", {**kept, "stream": False})[1]
        check("suffix of generate", f["response"] == a["content"]
              == "".join(t["response"] for t in told)
              and f["prompt_eval_count"] == a["tokens_evaluated"], (f, told))
        _, g, r = s.post("/api/generate", {**kept, "stream": False, "system": "w9", "suffix": "w7"})
        check("a system message before a gap",
              g["response"] == f["response"] and r.getheader("x-pith-ignored") == "system", g)
        h = s.post("/api/generate", {**kept, "stream": False, "prompt": ""})[1]
        check("nothing before the gap",
              h["prompt_eval_count"] == a["tokens_evaluated"] - len(words[0])
              and h["eval_count"] == 8, h)
        check("an empty suffix", "prompt_eval_count"
              in s.post("/api/generate", {**kept, "stream": False, "suffix": ""})[1])
        for bad in ({"raw": True}, {"suffix": 3}):
            check("a gap with %s" % bad,
                  s.post("/api/generate", {**kept, "stream": False, **bad})[0] == 400)
        check("a list and a suffix",
              s.post("/v1/completions", {"prompt": ["a", "b"], "suffix": "c"})[0] == 400)


def test_slots(s, folder):
    idle = s.get("/slots")[1]
    check("slots", len(idle) == 4
          and all(not x["is_processing"] and x["n_ctx"] == 512 for x in idle), idle)
    prompt = [5 + i % 200 for i in range(200)]
    long = {"prompt": prompt[:9], "n_predict": 490, "ignore_eos": True, "temperature": 0.5}
    for _ in range(50):  # both take a few milliseconds, and one may be over before we look
        out, rest = begin([lambda: s.post("/completion", {**long, "id_slot": 2}),
                           lambda: s.post("/v1/completions", {**long, "n_predict": None,
                                                              "max_tokens": 490})])
        runs = [[]]
        s.wait_for(lambda: None not in out or runs.append(s.get("/slots")[1])
                   or sum(x["is_processing"] for x in runs[-1]) == 2)
        busy = [x for x in runs[-1] if x["is_processing"]]
        if len(busy) == 2:
            break
        rest()
    check("slots that run", [x["id"] for x in busy] == [0, 2]
          and len(set(x["id_task"] for x in busy)) == 2
          and all(x["params"]["temperature"] == 0.5 and x["params"]["ignore_eos"]
                  and x["params"]["n_predict"] == 490 and x["next_token"][0]["n_decoded"] >= 0
                  for x in busy), runs[-1])
    answers = rest()
    check("the slot of an answer", answers[0][1]["id_slot"] == 2
          and ask(s, prompt=prompt[:3], n_predict=1)["id_slot"] == -1, answers[0][1]["id_slot"])
    a = ask(s, prompt=prompt, id_slot=1, return_tokens=True, n_probs=5)
    check("kept", s.get("/slots")[1][1]["n_kept"] == 207 or s.get("/slots")[1][1]["n_kept"] == 208,
          s.get("/slots")[1][1])
    status, saved, _ = s.post("/slots/1?action=save", {"filename": "a.bin"})
    check("save", status == 200 and saved["n_saved"] in (207, 208)
          and saved["n_written"] == os.path.getsize(os.path.join(folder, "a.bin")), saved)
    status, got, _ = s.post("/slots/0?action=restore", {"filename": "a.bin"})
    check("restore", status == 200 and got["n_restored"] == saved["n_saved"]
          and got["n_read"] == saved["n_written"], got)
    status, gone, _ = s.post("/slots/1?action=erase", b"")
    check("erase", status == 200 and gone["n_erased"] == saved["n_saved"]
          and s.get("/slots")[1][1]["n_kept"] == 0, gone)
    for path in ("/completion", "/v1/completions"):
        status, no, _ = s.post(path, {"prompt": prompt, "id_slot": 4, "max_tokens": 1})
        check("a slot that is not there " + path, status == 400
              and "id_slot is 4; wanted -1 (any) to 3" in json.dumps(no), no)
        check("any slot " + path,
              [s.post(path, {"prompt": prompt, "id_slot": k, "max_tokens": 1})[0]
               for k in (-1, 3)] == [200, 200])
    check("an empty one", s.post("/slots/1?action=save", {"filename": "b.bin"})[0] == 400)
    for path, body in (("/slots/9?action=save", {"filename": "a"}),
                       ("/slots/0?action=dance", {"filename": "a"}),
                       ("/slots/0", {"filename": "a"}), ("/slots/0?action=save", {}),
                       ("/slots/0?action=save", {"filename": "../a"}),
                       ("/slots/0?action=save", {"filename": ".a"}),
                       ("/slots/0?action=save", {"filename": "a/b"}),
                       ("/slots/0?action=restore", {"filename": "nothing.bin"}),
                       ("/slots/0?action=save", {"filename": "a" * 129})):
        check("bad %s %s" % (path, str(body)[:30]), s.post(path, body)[0] == 400)
    check("no such slot", s.post("/slots/x?action=save", {"filename": "a"})[0] == 404)
    with open(os.path.join(folder, "damaged.bin"), "wb") as f, open(os.path.join(folder, "a.bin"),
                                                                    "rb") as g:
        f.write(g.read()[:-100])
    check("a damaged file", s.post("/slots/0?action=restore", {"filename": "damaged.bin"})[0] == 400
          and ask(s, prompt=prompt, return_tokens=True)["tokens"] == a["tokens"])
    return a


def test_damaged_slots(s, folder):
    """A byte that is another is found wherever it is: in the head, the tokens, what was computed.
    Nothing of such a file is kept."""
    good = open(os.path.join(folder, "a.bin"), "rb").read()
    n = int.from_bytes(good[12:16], "little")
    before = s.get("/slots")[1][0]["n_kept"]
    for at in (0, 8, 12, 17, 25, 33, 41, 40 + 4 * n - 1, 40 + 4 * n, 40 + 4 * n + 90,
               len(good) // 2, len(good) - 1):
        bad = bytearray(good)
        bad[at] ^= 1
        with open(os.path.join(folder, "bad.bin"), "wb") as f:
            f.write(bad)
        status, a, _ = s.post("/slots/0?action=restore", {"filename": "bad.bin"})
        check("byte %d of a slot" % at, status == 400 and a["error"]["param"] == "filename"
              and s.get("/slots")[1][0]["n_kept"] == before, (status, a))
    for name, bad in (("behind its end", good + b"a"), ("cut", good[:-1]), ("head", good[:39]),
                      ("huge", good[:12] + b"\xff" * 4 + good[16:])):
        with open(os.path.join(folder, "bad.bin"), "wb") as f:
            f.write(bad)
        status, a, _ = s.post("/slots/0?action=restore", {"filename": "bad.bin"})
        check("a slot: " + name, status == 400, (status, a))


def test_slots_later(model, folder, before):
    """Another server finds what was saved: the prompt's pages are there."""
    flags = ("--ctx", "512", "--parallel", "4", "--slot-save-path", folder, "--no-store-dir")
    with Server(model, *flags) as s:
        got = s.post("/slots/2?action=restore", {"filename": "a.bin"})[1]
        check("what was computed is restored, not computed again", got["n_loaded"] == 192
              and got["n_computed"] == got["n_restored"] - 192
              and s.metric("vllm:prompt_tokens_total") <= got["n_computed"], got)
        a = ask(s, prompt=[5 + i % 200 for i in range(200)], return_tokens=True, n_probs=5)
        check("restored by another server",
              a["tokens"] == before["tokens"] and a["timings"]["cache_n"] >= 128, a["timings"])
        check("the same bits as before", len(a["completion_probabilities"]) == len(a["tokens"])
              and a["completion_probabilities"] == before["completion_probabilities"])
        gone = s.post("/slots/2?action=erase", b"")[1]
        check("erased after a restart", gone["n_erased"] == got["n_restored"]
              and s.get("/slots")[1][2]["n_kept"] == 0, gone)
        test_damaged_slots(s, folder)
    with Server(model, *flags, "--cache-type-k", "f32") as s:
        got = s.post("/slots/2?action=restore", {"filename": "a.bin"})[1]
        check("of another type of cache it is computed again", got["n_loaded"] == 0
              and got["n_computed"] == got["n_restored"], got)
    with Server(model, *flags, "--prefix-store", "0") as s:
        ask(s, prompt=P * 40, id_slot=1, n_predict=0)
        saved = s.post("/slots/1?action=save", {"filename": "bare.bin"})[1]
        got = s.post("/slots/0?action=restore", {"filename": "bare.bin"})
        check("without a store the tokens alone", saved["n_written"] == 40 + 4 * saved["n_saved"]
              and got[0] == 200 and got[1]["n_loaded"] == 0
              and got[1]["n_computed"] == saved["n_saved"], (saved, got))
    with Server(model, "--ctx", "512", "--no-slots") as s:
        check("no slots", s.get("/slots")[0] == 501
              and s.post("/slots/0?action=save", {"filename": "a"})[0] == 501)
    other = synth(os.path.join(folder, "other.gguf"), "--ctx", "512", "--layers", "3", "--seed",
                  "6")
    with Server(other, "--ctx", "512", "--slot-save-path", folder) as s:
        check("a file of another model",
              s.post("/slots/0?action=restore", {"filename": "a.bin"})[0] == 400
              and s.get("/slots")[1][0]["n_kept"] == 0)
    with Server(model, "--ctx", "512", "--slot-save-path", folder, "--api-key", "ann:first-secret",
                "--api-key", "bob:second-secret", "--admin-key", "adm:third-secret") as s:
        s.ask("POST", "/completion", {"prompt": [3] * 40, "n_predict": 4, "id_slot": 1},
              {"x-api-key": "first-secret"})
        kept = [s.ask("GET", "/slots", None, {"x-api-key": k})[1][1]["n_kept"]
                for k in ("first-secret", "second-secret", "third-secret")]
        check("slots of others tell nothing", kept[0] == kept[2] > 40 and kept[1] == 0, kept)
        keys = {"Authorization": "Bearer first-secret"}, {"Authorization": "Bearer third-secret"}
        got = [s.ask("POST", "/slots/0?action=restore", {"filename": "a.bin"}, k)[0] for k in keys]
        check("several keys need an admin's", got == [403, 200], got)


def key_bytes(s):
    return next(float(line.rsplit(" ", 1)[1]) for line in s.get("/metrics")[1].decode().splitlines()
                if line.startswith("pith:key_bytes{"))


def test_slots_are_counted(s):
    """The tokens that slots keep are in the account of the key that has them, and no more of them
    than a context has."""
    for i in range(4):
        s.post("/slots/%d?action=erase" % i, b"")
    check("nothing is kept", s.wait_for(lambda: key_bytes(s) == 0), key_bytes(s))
    for prompt, n in ((P * 10, 40), (P * 50, 200), (P, 4)):
        ask(s, prompt=prompt, id_slot=2, n_predict=0)
        check("%d tokens are counted" % n, s.wait_for(lambda: key_bytes(s) == 4 * n), key_bytes(s))
    ask(s, prompt=[9] * 500, id_slot=3, n_predict=100)
    check("a full context", s.get("/slots")[1][3]["n_kept"] == 512
          and s.post("/slots/3?action=save", {"filename": "full.bin"})[0] == 200
          and s.post("/slots/2?action=restore", {"filename": "full.bin"})[1]["n_restored"] == 512)
    for i in range(4):
        s.post("/slots/%d?action=erase" % i, b"")
    check("given back", s.wait_for(lambda: key_bytes(s) == 0), key_bytes(s))


def test_slot_names(s, folder):
    """A name cannot lead out of the folder, not by a link either; what is there and is no slot is
    told."""
    outside = os.path.join(os.path.dirname(folder), "outside.bin")
    good = open(os.path.join(folder, "a.bin"), "rb").read()
    with open(outside, "wb") as f:
        f.write(good)
    os.symlink(outside, os.path.join(folder, "link"))
    os.mkfifo(os.path.join(folder, "pipe"))
    os.mkdir(os.path.join(folder, "sub"))
    ask(s, prompt=P * 10, id_slot=0, n_predict=0)
    for name in ("link", "pipe", "sub", "..", "/etc/passwd", "../outside.bin",
                 "sub/../../outside.bin", "a\0.bin", "a b", "\u00e4"):
        check("restore of %r" % name,
              s.post("/slots/0?action=restore", {"filename": name})[0] == 400)
    check("a link is replaced, not followed",
          s.post("/slots/0?action=save", {"filename": "link"})[0] == 200
          and open(outside, "rb").read() == good)
    check("not over a folder", s.post("/slots/0?action=save", {"filename": "sub"})[0] == 500)
    for i, bad in enumerate((b"", good[:31], good + b"x", good[:4] + b"x" + good[5:],
                             good[:12] + b"\xff\xff\xff\xff" + good[16:],
                             good[:40] + b"\x01" + good[41:], b"\0" * 10000)):
        with open(os.path.join(folder, "bad.bin"), "wb") as f:
            f.write(bad)
        status, a, _ = s.post("/slots/0?action=restore", {"filename": "bad.bin"})
        check("damage %d" % i, status == 400 and "bad.bin" in a["error"]["message"], a)
    check("kept through it all", s.get("/slots")[1][0]["n_kept"] == 40)
    check("no parts are left", [n for n in os.listdir(folder) if n.startswith(".")] == [],
          os.listdir(folder))


FED, MADE, STEPS = "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "pith:steps_total"


def leaves(s, name):
    """Tokens that the slot keeps when the client of a restore has left after its first steps; a
    stream goes on beside."""
    s.post("/slots/2?action=erase", b"")
    fed = s.metric(FED)
    client = s.connect(raw_post("/slots/2?action=restore", {"filename": name}))
    # a shift of the stream feeds fewer
    s.wait_for(lambda: s.metric(FED) > fed + 150 or s.get("/slots")[1][2]["n_kept"])
    client.close()
    s.wait_for(lambda: s.metric("vllm:num_requests_running") == 1)
    return s.get("/slots")[1][2]["n_kept"]


def test_slots_let_others_go_on(folder):
    """What a restored slot has to compute is computed in the steps of all, a part in each, and ends
    with its client or its time."""
    model, n = synth(os.path.join(folder, "long.gguf"), "--ctx", "4096", "--layers", "2", "--seed",
                     "7"), 3000
    flags = (model, "--ctx", "4096", "--parallel", "4", "--slot-save-path", folder, "--gap",
             "0.001", "--no-store-dir")
    with Server(*flags) as s:
        for i in range(6):
            ask(s, prompt=[5 + (k * k + i) % 200 for k in range(n)], id_slot=0, n_predict=0)
            fed = s.metric(FED)
            check("save %d" % i, s.post("/slots/0?action=save",
                                        {"filename": "long%d" % i})[1]["n_saved"] == n
                  and s.metric(FED) == fed)
    with Server(*flags, "--cache-type-v", "f32") as s:  # what was computed is of no use to it
        stream = s.connect(raw_post("/completion",
                                    {"prompt": P, "n_predict": -1, "ignore_eos": True,
                                     "stream": True, "context_shift": True, "n_discard": 4000}))
        s.wait_for(lambda: s.metric(MADE) > 0)
        fed, made, steps = s.metric(FED), s.metric(MADE), s.metric(STEPS)
        status, a, _ = s.post("/slots/1?action=restore", {"filename": "long1"})
        fed, made, steps = s.metric(FED) - fed, s.metric(MADE) - made, s.metric(STEPS) - steps
        check("restored beside a stream",
              status == 200 and a["n_restored"] == n == s.get("/slots")[1][1]["n_kept"], a)
        check("in steps of all", n <= fed < 2 * n and steps >= n / 512 and made >= n / 512,
              (fed, steps, made))
        # one that was done before its client left proves nothing
        seen = [leaves(s, "long%d" % i) for i in range(2, 6)]
        check("a client that leaves ends it", 0 in seen, seen)
        status, a, _ = s.post("/slots/3?action=restore", {"filename": "long0", "timeout": 0.001})
        check("its time", status == 400 and a["error"]["code"] == "deadline_exceeded"
              and s.get("/slots")[1][3]["n_kept"] == 0, a)
        stream.close()
        check("at rest", s.wait_for(s.at_rest))


def test_saving_lets_others_go_on(folder):
    """What was computed of a slot is copied in pieces between steps: a stream beside goes on, and
    of two that are saved at once both are whole."""
    n = 3000
    model = synth(os.path.join(folder, "rich.gguf"), "--ctx", "4096", "--layers", "2", "--heads",
                  "16", "--heads-kv", "16", "--head-dim", "128", "--seed", "8")
    flags = (model, "--ctx", "4096", "--parallel", "4", "--slot-save-path", folder,
             "--no-store-dir", "--cache-type-k", "f32", "--cache-type-v", "f32")
    with Server(*flags) as s:
        for i in range(2):
            ask(s, prompt=[5 + (k * k + i) % 200 for k in range(n)], id_slot=i, n_predict=0)
        at, ends = [], []

        def read():
            c = s.connect(raw_post("/completion", {"prompt": P, "n_predict": 3000,
                                                   "ignore_eos": True, "stream": True}))
            with c, c.makefile("rb") as f:
                for line in f:
                    if line.startswith(b"data: "):
                        at.append(time.monotonic())
                    if ends:
                        return

        _, rest = begin([read])
        s.wait_for(lambda: len(at) > 20)
        began, steps = time.monotonic(), s.metric("pith:steps_total")
        out, both = begin([lambda i=i: s.post("/slots/%d?action=save" % i,
                                              {"filename": "rich%d" % i}) for i in range(2)])
        saved = both()
        steps = s.metric("pith:steps_total") - steps
        ends.append(1)
        rest()
        gaps = [b - a for a, b in zip(at, at[1:]) if b > began]
        say = (max(gaps), sum(gaps), len(gaps), saved)
        check("saved beside a stream", all(a[0] == 200 and a[1]["n_written"] > n * 30000
                                           for a in saved), saved)
        check("the stream goes on while it is copied", max(gaps) < sum(gaps) / 4, say)
        pieces = s.metric("pith:slot_pieces_total")
        turns = s.metric("pith:slot_turns_total")
        check("in pieces, between which there are steps", pieces >= 2 * (n // 64)
              and 16 * turns >= pieces and steps >= turns - 2, (pieces, turns, steps))
    with Server(*flags) as s:
        got = [s.post("/slots/%d?action=restore" % i, {"filename": "rich%d" % i})[1]
               for i in range(2)]
        check("both are whole", all(g["n_loaded"] >= n - 64 for g in got), got)
        pieces = s.metric("pith:slot_pieces_total")
        turns = s.metric("pith:slot_turns_total")
        check("restored in pieces", pieces >= 2 * (n // 64) and 16 * turns >= pieces,
              (pieces, turns))


def written(tokens):
    return b"".join(bytes(t["piece"]) if isinstance(t["piece"], list) else t["piece"].encode()
                    for t in tokens).replace("\u2581".encode(), b" ")


def test_paths(s):
    a, b = (s.post(path, {"messages": [USER], "max_tokens": 4, "temperature": 0})[1]["choices"]
            for path in ("/chat/completions", "/v1/chat/completions"))
    check("/chat/completions", a == b, (a, b))
    n = [s.post(path, {"messages": [USER]})[1]["input_tokens"]
         for path in ("/chat/completions/input_tokens", "/v1/chat/completions/input_tokens")]
    check("input_tokens", n[0] == n[1]
          == s.post("/v1/chat/completions",
                    {"messages": [USER], "max_tokens": 1})[1]["usage"]["prompt_tokens"], n)
    check("/models", [m["id"] for m in s.get("/models")[1]["data"]] == ["m"]
          and s.get("/models/m")[1]["id"] == "m" and s.get("/models/none")[0] == 404)
    v0 = s.get("/api/v0/models")[1]
    check("LM Studio's models", v0["object"] == "list" and s.get("/api/v0/models/m")[1]
          == v0["data"][0] == {"id": "m", "object": "model", "type": "llm", "publisher": "",
                               "arch": v0["data"][0]["arch"], "compatibility_type": "gguf",
                               "quantization": v0["data"][0]["quantization"], "state": "loaded",
                               "max_context_length": v0["data"][0]["max_context_length"],
                               "loaded_context_length": 512}
          and v0["data"][0]["arch"] and v0["data"][0]["max_context_length"] > 0
          and s.get("/api/v0/models/none")[0] == 404, v0)
    for path, body in (("/chat/completions", {"messages": [USER]}), ("/completions",
                                                                    {"prompt": "w5"})):
        a, b = (s.post(at + path, {**body, "max_tokens": 4, "temperature": 0})[1]["choices"]
                for at in ("/api/v0", "/v1"))
        check("/api/v0" + path, a == b, (a, b))
    check("/responses", s.post("/responses", {"input": "w5", "max_output_tokens": 2,
                                              "store": False})[1]["object"]
          == "response")
    p = s.get("/props")[1]
    check("/props", (p["total_slots"], p["default_generation_settings"]["n_ctx"], p["model_alias"],
                     p["modalities"]) == (4, 512, "m", {"vision": False, "audio": False})
          and p["model_path"].endswith(".gguf")
          and p["default_generation_settings"]["params"]["temperature"]
          == p["sampling"]["temperature"] and p["chat_template"] == "" and "bos_token" in p, p)
    peer = {"seed": 4294967295, "temperature": 0.8, "dynatemp_range": 0.0,
            "dynatemp_exponent": 1.0, "top_k": 40, "top_p": 0.95, "min_p": 0.05,
            "top_n_sigma": -1.0, "xtc_probability": 0.0, "xtc_threshold": 0.1, "typical_p": 1.0,
            "repeat_last_n": 64, "repeat_penalty": 1.0, "presence_penalty": 0.0,
            "frequency_penalty": 0.0, "dry_multiplier": 0.0, "dry_base": 1.75,
            "dry_allowed_length": 2, "dry_penalty_last_n": 131072, "mirostat": 0,
            "dry_sequence_breakers": ["\n", ":", "\"", "*"], "mirostat_tau": 5.0,
            "mirostat_eta": 0.1, "stop": [], "max_tokens": 2, "n_predict": 2, "n_keep": 0,
            "n_discard": 0, "ignore_eos": False, "stream": False, "logit_bias": [], "n_probs": 0,
            "min_keep": 0, "grammar": "", "grammar_lazy": False, "grammar_triggers": [],
            "preserved_tokens": [], "chat_format": "Content-only", "reasoning_format": "none",
            "thinking_forced_open": False, "samplers": ["penalties", "dry", "top_n_sigma", "top_k",
                                                        "typ_p", "top_p", "min_p", "xtc",
                                                        "temperature"],
            "speculative.n_max": 16, "speculative.p_min": 0.75, "timings_per_token": False,
            "post_sampling_probs": False, "lora": [], "adaptive_target": -1.0,
            "adaptive_decay": 0.9}
    own = s.get("/props")[1]["default_generation_settings"]["params"]
    told = s.post("/completion", {"prompt": "w5", "n_predict": 2})[1]["generation_settings"]
    for name, settings in (("llama.cpp's", peer), ("ours", {**own, "n_predict": 2}),
                           ("an answer's", told)):
        for path, body in (("/completion", {"prompt": "w5"}), ("/v1/completions", {"prompt": "w5"}),
                           ("/v1/chat/completions", {"messages": [{"role": "user",
                                                                   "content": "w5"}]})):
            status, a, _ = s.post(path, {**settings, "max_tokens": 2, **body})
            check("settings given back: %s on %s" % (name, path), status == 200, a)
    for given, meant in (("//v1/completions", "/v1/completions"),
                         ("/v1/completions/", "/v1/completions"),
                         ("/v1/v1//chat/completions/", "/v1/chat/completions"),
                         ("/openai/v1/responses", "/v1/responses"), ("/v1/api/chat", "/api/chat"),
                         ("//infill", "/infill"), ("/v1", None), ("//", None), ("/v1/", None),
                         ("/x/completions", None), ("/v1/v1/", None), ("/a" * 300, None)):
        status, a, _ = s.post(given, {"prompt": "w5"})
        said = json.dumps(a)
        check("no %s" % given[:40], status in (404, 405) and ("did you mean" in said) == bool(meant)
              and (not meant or "did you mean %s? " % meant in said), a)
    check("/health by other names", [s.get(p)[:2] for p in ("/v1/health", "/ping")]
          == [(200, {"status": "ok"})] * 2)
    check("/version", s.get("/version")[1] == {"version": p["version"]}, s.get("/version"))
    check("/health", s.get("/health") [:2] == (200, {"status": "ok"}) and s.get("/live")[0] == 200)
    one = s.post("/tokenize", {"content": "w5 w6", "with_pieces": True})[1]["tokens"]
    check("pieces are the text", written(one).strip() == b"w5 w6", one)
    snow = s.post("/tokenize", {"content": "w5 \u2603", "with_pieces": True})[1]["tokens"]
    check("pieces of a character",
          written(snow).strip() == "w5 \u2603".encode()
          and any(isinstance(t["piece"], list) for t in snow), snow)
    told = events(s.post("/completion",
                         {"prompt": [9] * 300, "n_predict": 2, "stream": True,
                          "return_progress": True, "timings_per_token": True})[1])
    progress = [e["prompt_progress"] for e in told if "prompt_progress" in e]
    check("return_progress", progress and progress[-1]["processed"] == progress[-1]["total"] == 300
          and all("timings" in e for e in told if e["tokens"]), told[:3])
    told = events(s.post("/v1/completions",
                         {"prompt": [11] * 300, "max_tokens": 2, "stream": True,
                          "stream_options": {"include_progress": True}})[1])
    progress = [e["prompt_progress"] for e in told if "prompt_progress" in e]
    check("include_progress", progress
          and progress[-1]["processed"] == progress[-1]["total"] == 300, told[:3])


def test_vectors(s):
    text = "w5 w6"
    v = s.post("/v1/embeddings", {"input": text})[1]["data"][0]["embedding"]
    native = s.post("/embedding", {"content": text})[1]
    check("/embedding", native == [{"index": 0, "embedding": [v]}], str(native)[:100])
    check("/embeddings of content",
          s.post("/embeddings", {"content": [text, text]})[1]
          == [{"index": i, "embedding": [v]} for i in range(2)])
    check("/embeddings of input",
          s.post("/embeddings", {"input": text})[1]["data"][0]["embedding"] == v)
    ids = s.post("/tokenize", {"content": text, "add_special": True})[1]["tokens"]
    forms = [ids, {"prompt_string": text},
             {"content": [{"type": "text", "text": "w5 "}, {"type": "text", "text": "w6"}]},
             [{"prompt_string": text}], [ids[0], *ids[1:]]]
    check("forms of an input", all(s.post("/v1/embeddings", {"input": f})[1]["data"][0]["embedding"]
                                   == v for f in forms))
    check("mixed", len(s.post("/v1/embeddings", {"input": [3, "w5", 4]})[1]["data"]) == 1
          and len(s.post("/v1/embeddings", {"input": ["w5", [3, "w6"]]})[1]["data"]) == 2)
    for bad in ([], {"content": "w5"}, {"content": [{"type": "image_url"}]},
                {"content": [{"type": "unknown"}]}, 3, [None], [[3, None]], {}):
        check("bad input %s" % str(bad)[:30], s.post("/v1/embeddings", {"input": bad})[0] == 400)
    for n in (1, 7, len(v)):
        cut = s.post("/v1/embeddings", {"input": text, "dimensions": n})[1]["data"][0]["embedding"]
        length = sum(x * x for x in v[:n]) ** 0.5
        check("dimensions %d" % n, len(cut) == n
              and all(abs(a - b / length) < 1e-6 for a, b in zip(cut, v)), cut[:3])
    check("too many dimensions", s.post("/v1/embeddings",
                                        {"input": text, "dimensions": len(v) + 1})[0] == 400
          == s.post("/v1/embeddings", {"input": text, "dimensions": 0})[0])
    check("input and content", s.post("/embedding", {"input": "a", "content": "b"})[0] == 400)


def test_health(model):
    """503 while the first model is being loaded; never with --lazy. The model is one that takes a
    while, and a server starts again until it was asked in time."""
    ok, loads = ("200", str({"status": "ok"})), ("503", str({"status": "loading model"}))
    with tempfile.TemporaryDirectory() as folder:
        large = os.path.join(folder, "large.gguf")
        synth(large, "--layers", "8", "--embd", "1024", "--ff", "4096", "--heads", "8", "--vocab",
              "2000", "--type", "f16")
        with Server([large], "--lazy", "--ctx", "64") as s:
            seen = {tuple(map(str, s.get("/health")[:2]))}
            out, rest = begin([lambda: s.post("/completion", {"prompt": "w1", "n_predict": 1})])
            while out[0] is None:
                seen.add(tuple(map(str, s.get("/health")[:2])))
            check("lazy", seen == {ok} and rest()[0][0] == 200, seen)
        met = set()
        for _ in range(8):
            with Server(large, "--ctx", "64", wait=False) as s:
                seen = set()
                s.wait_for(lambda: seen.add((s.get("/live")[0], *map(str, s.get("/health")[:2])))
                           or s.get("/ready")[0] == 200)
                seen.add((s.get("/live")[0], *map(str, s.get("/health")[:2])))
            met |= seen
            if not seen <= {(200, *ok), (200, *loads)} or (200, *loads) in met:
                break
        check("while it loads", met == {(200, *ok), (200, *loads)}, met)


def whole_vector(model, ids):
    """The vector of tokens that are all in one step, of length 1, as pith logits has it."""
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run([PITH, "logits", model, "--tokens", ",".join(map(str, ids)), "--pooling",
                        "mean", "--out", out.name], check=True)
        raw = open(out.name, "rb").read()
    v = struct.unpack("<%df" % (len(raw) // 4), raw)
    return [x / sum(y * y for y in v) ** 0.5 for x in v]


def close_to(a, b):
    return len(a) == len(b) and all(abs(x - y) < 1e-4 for x, y in zip(a, b))


def test_long_inputs(model):
    """An input of more tokens than a step of text has is embedded whole."""
    with Server(model, "--ctx", "1024", "--embeddings") as s:
        most = s.get("/props")[1]["n_input"]
        over = s.post("/v1/embeddings", {"input": [3] * (most + 7)})[1]["error"]["message"]
        check("as long as the context", most == 1024 and "n_over = 7" in over, (most, over))
        ids = [3 + i * 7 % 200 for i in range(1000)]
        got = s.post("/v1/embeddings", {"input": [ids, ids[:30]]})[1]["data"]
        check("more than a step of text",
              all(close_to(v["embedding"], whole_vector(model, i))
                  for v, i in zip(got, (ids, ids[:30]))), [v["embedding"][:4] for v in got])


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "m.gguf"), "--ctx", "512", "--layers", "2", "--seed",
                      "5")
        slots = os.path.join(folder, "slots")
        os.mkdir(slots)
        with Server(model, "--ctx", "512", "--parallel", "4", "--name", "m", "--slot-save-path",
                    slots) as s:
            for test in (test_completion, test_probabilities, test_bad, test_paths):
                test(s)
            before = test_slots(s, slots)
            test_slots_are_counted(s)
            test_slot_names(s, slots)
        test_slots_later(model, slots, before)
        with Server(model, "--ctx", "512", "--embeddings") as s:
            test_vectors(s)
        test_long_inputs(model)
        test_slots_let_others_go_on(slots)
        test_saving_lets_others_go_on(slots)
        test_gap(model)
        test_gap_markers()
        test_health(model)


run(main, "test_native")
