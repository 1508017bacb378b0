#!/usr/bin/env python3
# In make test alone: it starts a server for each default.
"""test_defaults.py -- what an operator says with --default gives way to what a body says, also by
another field that says the same, or excludes it: the answer is that of a server without the
default. Each subject of fields.c has its rows here."""
import json
import os
import re
import tempfile

from serving import SHARED, Server, check, events, refused, run, skip, synth

CHAT, TEXT, MSG = "/v1/chat/completions", "/v1/completions", "/v1/messages"
USER = {"role": "user", "content": "w5 w6"}
RANK = os.path.join(SHARED, "golden", "arch", "qwen3-rank.gguf")
SAYS = """{%- for m in messages %}{{ m.content }} {% endfor -%}
{{ enable_thinking }} {{ reasoning_effort }} {{ thinking_budget }} {{ colour }} {{ tools }} w5
{%- if thinks %}<think>\n{% endif %}"""
ASK = {"messages": [USER], "max_tokens": 2, "verbose": True}
OLLAMA = {"messages": [USER], "stream": False, "options": {"num_predict": 2}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
TOLD = "reasoning_budget=99"
HOT = {"temperature": 1.5, "seed": 7}

# A default, an endpoint, a body that does not speak of it, and what bodies say of it otherwise.
BESIDE = (
    ("n_predict=7", "/completion", {"prompt": "w5"}, {"max_tokens": 4}, {"max_tokens": -1}),
    ("max_tokens=7", TEXT, {"prompt": "w5"}, {"n_predict": 4}),
    ("max_completion_tokens=7", CHAT, {"messages": [USER]}, {"max_tokens": 5}, {"n_predict": 3}),
    ("n_cmpl=3", TEXT, {"prompt": "w5", "max_tokens": 2}, {"n": 1}, {"n": 2}),
    ("repeat_penalty=1.6", TEXT, {"prompt": [5, 6, 5, 6], "max_tokens": 9},
     {"repetition_penalty": 1.3}, {"repetition_penalty": 1}),
    ("repetition_penalty=1.6", TEXT, {"prompt": [5, 6, 5, 6], "max_tokens": 9},
     {"repeat_penalty": 1.3}),
    *(("%s=%s" % (name, json.dumps(value)), TEXT, {"prompt": "w5", "max_tokens": 9},
       {"grammar": 'root ::= "a"'}, {"response_format": {"type": "text"}},
       {"guided_choice": ["w6", "b"]}, {"json_schema": {"const": 3}},
       {"structured_outputs": {"regex": "b"}}) for name, value in (
           ("response_format", {"type": "json_object"}), ("guided_json", {"const": 4}),
           ("guided_regex", "c"), ("ebnf", 'root ::= "d"'),
           ("guided_json_object", True), ("structured_outputs", {"choice": ["e", "f"]}))),
    ('guided_grammar=root ::= "d"', TEXT, {"prompt": "w5", "max_tokens": 9}, {"regex": "b"}),
    ('bad_words="w"', TEXT, {"prompt": "w5", "max_tokens": 9}, {"grammar": 'root ::= "w5"'},
     {"banned_strings": "1"}),
    ('grammar=root ::= "g"', "/v1/responses", {"input": "w5", "max_output_tokens": 9},
     {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"const": 3}}}}),
    ('grammar=root ::= "g"', MSG, {"messages": [USER], "max_tokens": 9},
     {"output_config": {"format": {"type": "json_schema", "schema": {"const": 3}}}}),
    ('grammar=root ::= "g"', "/api/chat", OLLAMA, {"format": {"const": 3}}),
    ("format=json", "/api/chat", OLLAMA,
     {"options": {"num_predict": 2, "grammar": 'root ::= "g"'}}),
    ("n_probs=4", "/completion", {"prompt": "w5", "n_predict": 2}, {"logprobs": 2}),
    ("n_probs=4", TEXT, {"prompt": "w5", "max_tokens": 2}, {"logprobs": 2}),
    ("n_probs=4", CHAT, ASK, {"logprobs": False}, {"logprobs": True},
     {"logprobs": True, "top_logprobs": 2}),
    ("logprobs=4", "/completion", {"prompt": "w5", "n_predict": 2}, {"n_probs": 2}),
    ("return_token_ids=true", TEXT, {"prompt": "w5", "max_tokens": 2}, {"return_tokens": False}),
    ("return_progress=true", TEXT, {"prompt": "w5", "max_tokens": 2, "stream": True},
     {"stream_options": {"include_progress": False}}),
    ("include_progress=true", TEXT, {"prompt": "w5", "max_tokens": 2, "stream": True},
     {"return_progress": False}),
    ("reasoning_effort=low", CHAT, ASK, {"reasoning": {"effort": "none"}},
     {"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False},
     {"thinking": {"type": "disabled"}}, {"reasoning": {"enabled": False}}),
    ("enable_thinking=false", CHAT, ASK, {"reasoning_effort": "high"},
     {"chat_template_kwargs": {"enable_thinking": True, "colour": "red"}}),
    ('reasoning={"effort":"low","enabled":false}', CHAT, ASK, {"enable_thinking": True},
     {"reasoning_effort": "high"}),
    ('thinking={"type":"disabled"}', CHAT, ASK, {"reasoning_effort": "high"}),
    ('chat_template_kwargs={"enable_thinking":false}', CHAT, ASK, {"enable_thinking": True},
     {"chat_template_kwargs": {"reasoning_effort": "low"}}),
    ('reasoning={"effort":"low"}', "/v1/responses", {"input": "w5", "max_output_tokens": 2},
     {"chat_template_kwargs": {"enable_thinking": False}}),
    ('thinking={"type":"disabled"}', MSG, {"messages": [USER], "max_tokens": 2},
     {"chat_template_kwargs": {"enable_thinking": True}}, {"output_config": {"effort": "high"}}),
    ("think=false", "/api/chat", OLLAMA, {"chat_template_kwargs": {"enable_thinking": True}}),
    ("reasoning_budget_tokens=99", CHAT, ASK, {"thinking_token_budget": 7},
     {"reasoning_budget": 7}, {"thinking_budget_tokens": 7}, {"reasoning": {"max_tokens": 7}},
     {"thinking": {"budget_tokens": 7}}, {"chat_template_kwargs": {"thinking_budget": 7}}),
    (TOLD, CHAT, ASK, {"thinking_budget_tokens": -1}),
    (TOLD, MSG, {"messages": [USER], "max_tokens": 2}, {"thinking": {"budget_tokens": 123456}}),
    ("reasoning_budget=0", CHAT, ASK, {"reasoning_effort": "high"}),
    ("include_reasoning=false", CHAT, {**ASK, "chat_template_kwargs": {"thinks": True}},
     {"reasoning": {"exclude": False}}),
    ('reasoning={"exclude":true}', CHAT, {**ASK, "chat_template_kwargs": {"thinks": True}},
     {"include_reasoning": True}),
    ('functions=[{"name":"g"}]', CHAT, ASK, {"tools": [TOOL]}),
    ("tool_choice=none", CHAT, {**ASK, "functions": [{"name": "g"}]},
     {"function_call": {"name": "g"}}),
    ("add_generation_prompt=true", CHAT, {**ASK, "messages": [
        USER, {"role": "assistant", "content": "w7"}]}, {"continue_final_message": True}),
    ("mirostat=2", TEXT, {"prompt": "w5", "max_tokens": 9, **HOT}, {"samplers": "top_k;temp"},
     {"samplers": ["top_k", "temp"]}, {"samplers": "kt"}, {"samplers": ["temp", "mirostat"]}),
    ('samplers=["greedy"]', TEXT, {"prompt": "w5", "max_tokens": 9, **HOT}, {"mirostat": 2},
     {"mirostat": 1}),
    ("mirostat=2", "/api/chat", {**OLLAMA, "options": {"num_predict": 9, **HOT}},
     {"options": {"num_predict": 9, **HOT, "samplers": "top_k;temp"}}),
    ("add_special=true", "/tokenize", {"content": "w5"}, {"add_special_tokens": False}),
    ("content=w9", "/tokenize", {}, {"messages": [USER]}, {"prompt": "w7"}))
VECTORS = "/v1/embeddings"
OF_VECTORS = (
    ("normalize=false", VECTORS, {"input": "w5"}, {"embd_normalize": 2}),
    ("embd_normalize=0", VECTORS, {"input": "w5"}, {"normalize": True}),
    ("prompt_name=passage", VECTORS, {"input": "w5"}, {"input_type": "query"}),
    ("input_type=passage", VECTORS, {"input": "w5"}, {"prompt_name": "query"}),
    ("content=w6", VECTORS, {}, {"input": "w5"}))
OF_RANKS = (
    ("return_documents=true", "/rerank", {"query": "who", "documents": ["a", "b"]},
     {"return_text": False}),
    ('texts=["c"]', "/rerank", {"query": "who"}, {"documents": ["a", "b"]}))


def answer_of(got):
    """What is of the answer itself, not of when it was made."""
    def cut(v):
        if isinstance(v, list):
            return [cut(i) for i in v]
        if not isinstance(v, dict):
            return v
        return {k: cut(i) for k, i in v.items() if not re.fullmatch(
            r"id|item_id|created\w*|completed_at|timings|.*_duration|.*_ms|generation_settings|"
            "prompt_tokens_details|input_tokens_details|.*cached.*|cache.*|response_id", k)}
    status, a, r = got
    a = [e for e in events(a) if e != "[DONE]"] if isinstance(a, bytes) else a
    return status, cut(a), r.getheader("x-pith-ignored")


def test_beside(model, rows, *flags):
    flags = [*flags, "--default", "temperature=0", "--default", "ignore_eos=true"]
    with Server(model, *flags) as plain:
        for default, path, body, *others in rows:
            with Server(model, *flags, "--default", default) as s:
                got, want = (answer_of(t.post(path, body)) for t in (s, plain))
                check("the default %s of %s" % (default, path), got != want, got)
                for said in others:
                    got, want = (answer_of(t.post(path, {**body, **said})) for t in (s, plain))
                    check("%s beside the default %s of %s" % (said, default, path),
                          got == want and got[0] == 200, (got, want))


def test_both(model, *flags):
    """What fields that belong together say, a default and a body's, holds together."""
    with Server(model, *flags, "--default", "top_logprobs=2", "--default", "grammar=", "--default",
                'chat_template_kwargs={"colour":"red","enable_thinking":false}') as s:
        a = s.post(CHAT, {**ASK, "chat_template_kwargs": {"enable_thinking": True},
                          "logprobs": True})[1]
        prompt = a["__verbose"]["prompt"].lower()
        check("a variable that is a default stands beside those of a body",
              "true" in prompt and "red" in prompt, prompt)
        check("a default of the best stands beside logprobs", len(
              a["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 2, a)


def test_names(model):
    """A length and stops are those of every interface, whatever it calls them."""
    whole = {"temperature": 0, "ignore_eos": True}
    asks = (("/v1/responses", {"input": "w5", **whole}, "usage/output_tokens"),
            (MSG, {"messages": [USER], **whole}, "usage/output_tokens"),
            ("/api/chat", {**OLLAMA, "options": whole}, "eval_count"),
            ("/api/generate", {"prompt": "w5", "stream": False, "options": whole}, "eval_count"),
            (CHAT, {"messages": [USER], **whole}, "usage/completion_tokens"),
            (TEXT, {"prompt": "w5", **whole}, "usage/completion_tokens"),
            ("/completion", {"prompt": "w5", **whole}, "tokens_predicted"))
    others = {"/v1/responses": {"max_output_tokens": 4}, MSG: {"max_tokens": 4},
              "/api/chat": {"options": {**whole, "num_predict": 4}},
              "/api/generate": {"options": {**whole, "num_predict": 4}}}

    def made(s, path, body, where):
        status, a, _ = s.post(path, body)
        for key in where.split("/"):
            a = a.get(key, a) if status == 200 else a
        return a

    for default, n in (("n_predict=3", 3), ("max_tokens=3", 3), ("num_predict=3", 3)):
        with Server(model, "--name", "m", "--default", default) as s:
            for path, body, where in asks:
                check("%s of %s" % (default, path), made(s, path, body, where) == n,
                      made(s, path, body, where))
                if path in others:
                    got = made(s, path, {**body, **others[path]}, where)
                    check("%s of %s that says so" % (default, path), got == 4, got)
    with Server(model, "--name", "m", "--default", "n_predict=3", "--default", "num_predict=5",
                "--default", "max_output_tokens=6") as s:
        got = [made(s, path, body, where) for path, body, where in asks]
        check("each has its own where it is given", got == [6, 3, 5, 5, 3, 3, 3], got)
    with Server(model, "--name", "m", "--default", "max_tokens=3", "--default",
                "max_output_tokens=6") as s:
        got = [made(s, path, body, where) for path, body, where in asks]
        check("one that a synonym has is not another's", got == [6, 3, 3, 3, 3, 3, 3], got)
        got = [s.post(path, body)[2].getheader("x-pith-ignored") for path, body, _ in asks[4:]]
        check("of what nobody sent nothing is told", got == [None] * 3, got)
    body = {"messages": [USER], "max_tokens": 9, **whole}
    with Server(model, "--name", "m") as s:
        text = s.post(MSG, body)[1]["content"][0]["text"]
    word = re.search(r"w\d+", text).group()
    with Server(model, "--name", "m", "--default", "stop=" + word) as s:
        a = s.post(MSG, body)[1]
        check("stops of messages", a["stop_reason"] == "stop_sequence" and a["stop_sequence"]
              == word, a)
        got = s.post(MSG, {**body, "stop_sequences": ["zz"]})[1]["content"][0]["text"]
        check("messages that have their own", got == text, (got, text))
        for said in (["zz"], "", []):
            got = s.post(MSG, {**body, "stop_sequences": said})[1]["stop_reason"]
            check("messages with %s" % said, (got == "max_tokens") == (said == ["zz"]), got)


def test_told(model):
    """What /props tells is what a plain request of llama.cpp's interface gets."""
    for default in ("frequency_penalty=1", "repeat_penalty=1.5"):
        with Server(model, "--default", default) as s:
            told = s.get("/props")[1]["default_generation_settings"]["params"]["repeat_last_n"]
            got = s.post("/completion", {"prompt": "w5", "n_predict": 1})[1]["generation_settings"]
            check("the window of " + default, told == got["repeat_last_n"] == 64, (told, got))
    for default, said in (("mirostat=2", {"samplers": ""}), ("mirostat=2", {"samplers": []}),
                          ('samplers=["greedy"]', {"mirostat": 0}),
                          ('samplers=["temp","mirostat"]', {"mirostat": 1})):
        with Server(model, "--default", default) as s:
            got = [s.post(TEXT, {"prompt": "w5", "max_tokens": 9, **HOT, **more})
                   for more in ({}, said)]
            check("%s says nothing of the default %s" % (said, default), got[0][0] == 200
                  and got[0][1]["choices"] == got[1][1]["choices"], got)
    with Server(model, "--default", 'response_format={"type":"text"}', "--default",
                'grammar=root ::= "w5"') as s:
        a = s.post(TEXT, {"prompt": "w5"})
        check("plain text and a grammar, as defaults", a[0] == 200
              and a[1]["choices"][0]["text"] == "w5", a[1])


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "m.gguf"), "--ctx", "512", "--layers", "2", "--seed",
                      "5")
        says = os.path.join(folder, "says.jinja")
        with open(says, "w") as f:
            f.write(SAYS)
        chats = ("--name", "m", "--chat-template", says)
        test_beside(model, BESIDE, *chats)
        test_both(model, *chats)
        test_names(model)
        test_told(model)
        for one, other in (("grammar=root ::= \"a\"", "response_format={\"type\":\"json_object\"}"),
                           ("regex=a", "bad_words=[\"b\"]"),
                           ("tools=[%s]" % json.dumps(TOOL), "functions=[{\"name\":\"g\"}]"),
                           ("tool_choice=auto", "function_call=auto"),
                           ("continue_final_message=true", "add_generation_prompt=true")):
            names = sorted(d.partition("=")[0] for d in (one, other))
            refused("two defaults that exclude each other: %s, %s" % (one, other), 1,
                    "--default %s and --default %s; wanted one" % tuple(names), model, "--default",
                    one, "--default", other)
        test_beside(model, OF_VECTORS, "--name", "m", "--embeddings",
                    *(x for name, text in (("query", "w1 "), ("passage", "w2 ")) for x in (
                        "--override-kv",
                        "sentence_transformers.prompts.%s=str:%s" % (name, text))))
    if os.path.exists(RANK):
        test_beside(RANK, OF_RANKS, "--no-store-dir")
    else:
        skip("ranks", "no " + RANK)


run(main, "test_defaults")
