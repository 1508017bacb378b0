#!/usr/bin/env python3
# In make test alone: make check has test_serve.py.
"""test_meaning.py -- what requests mean over HTTP: formats with tools beside them, messages without
content, media where a tool has returned some, tools of the service's own, tokens that repeat,
what a model is without loading it."""
import json
import os
import shutil
import tempfile

from serving import Server, check, run, synth

TEMPLATE = ("{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}{% for m in messages %}{{ "
            "m.role }}: {{ m.content }}"
            "{% for c in m.tool_calls or [] %} calls {{ c.function.arguments | tojson }}{% "
            "endfor %}\n{% endfor %}" "{% if add_generation_prompt %}assistant:{% endif %}")
NULLS = ("{% for m in messages %}{% if m.content is none %}[{{ m.tool_calls | length }} calls]{% "
         "else %}{{ m.content }}{% endif %}{% endfor %}")
CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "w5 w6"}
WEATHER = {"name": "weather", "description": "w1",
           "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
                          "required": ["city"], "additionalProperties": False}}
TOOL = {"type": "function", "function": WEATHER}
CALL = {"id": "call_1", "type": "function",
        "function": {"name": "weather", "arguments": "{\"city\":\"Rome\"}"}}
SEVEN = {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"],
         "additionalProperties": False}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def ask(s, **more):
    status, a, r = s.post(CHAT, {"messages": [USER], "max_tokens": 60, "temperature": 0, **more})
    return status, a["choices"][0]["message"] if status == 200 else a["error"], r


def test_formats(s):
    for kind in ("json_object", "json_schema"):
        for shape in ({"schema": SEVEN},
                      {"json_schema": {"name": "x", "schema": SEVEN, "strict": True}}):
            status, m, _ = ask(s, response_format={"type": kind, **shape})
            check("schema of %s in %s" % (kind, list(shape)[0]),
                  status == 200 and json.loads(m["content"]) == {"a": 7}, m)
    status, m, _ = ask(s, json_schema=SEVEN)
    check("json_schema", status == 200 and json.loads(m["content"]) == {"a": 7}, m)
    check("json_schema in completions",
          json.loads(s.post("/v1/completions",
                            {"prompt": "w5", "json_schema": SEVEN, "max_tokens": 40})[1]["choices"][
                    0]["text"]) == {"a": 7})
    for bad in ({"type": "json_object", "schema": 5},
                {"type": "json_object", "schema": {"type": 5}},
                {"type": "json_object", "shema": SEVEN}, {"type": "sound"}, {},
                {"type": "json_schema", "json_schema": {"schema": SEVEN, "strickt": True}},
                {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"schema": None}}):
        status, e, _ = ask(s, response_format=bad)
        check("bad format %s" % json.dumps(bad)[:60],
              status == 400 and e["param"] == "response_format", e)
    both = [{"json_schema": SEVEN, "grammar": "root ::= \"a\""},
            {"json_schema": SEVEN, "response_format": {"type": "json_object"}},
            {"grammar": "root ::= \"a\"", "response_format": {"type": "json_object"}},
            {"json_schema": {"type": "nothing"}}]
    for more in both:
        check("formats exclude each other %s" % list(more), ask(s, **more)[0] == 400)
    status, m, _ = ask(s, grammar="root ::= \"a\"", response_format={"type": "text"})
    check("text is no format", status == 200 and m["content"] == "a", m)


def test_tools_beside_a_format(s):
    """The answer is a call or what the format wants, and both come: each in the way that the
    model's bias makes it begin."""
    seen = set()
    for seed in range(40):
        status, a, _ = s.post(CHAT, {"messages": [USER], "max_tokens": 90, "temperature": 3,
                                     "seed": seed, "tools": [TOOL],
                                     "response_format": {"type": "json_schema",
                                                         "json_schema":
                                                         {"name": "x", "schema": SEVEN}}})
        m = a["choices"][0]["message"]
        # of white space, which JSON may have anywhere
        if a["choices"][0]["finish_reason"] == "length":
            continue
        if m.get("tool_calls"):
            seen.add("call")
            good = json.loads(m["tool_calls"][0]["function"]["arguments"])["city"] in ("Paris",
                    "Rome") and not m["content"]
        else:
            seen.add("text")
            good = json.loads(m["content"]) == {"a": 7}
        if status != 200 or not good:
            check("a call or the format", False, a)
            return
    check("a call or the format", seen == {"call", "text"}, seen)
    status, m, _ = ask(s, tools=[TOOL], tool_choice="none",
                       response_format={"type": "json_object", "schema": SEVEN})
    check("none leaves the format", status == 200 and json.loads(m["content"]) == {"a": 7}, m)
    status, m, _ = ask(s, tools=[TOOL], response_format={"type": "sound"})
    check("bad format beside tools", status == 400, m)


def test_content(s):
    def shown(*messages):
        status, a, _ = s.post("/apply-template",
                              {"messages": [USER, *messages], "add_generation_prompt": False})
        return a["prompt"] if status == 200 else a
    beside = shown({"role": "assistant", "content": None, "tool_calls": [CALL]},
                   {"role": "tool", "tool_call_id": "call_1", "content": "w9"})
    check("null beside calls", "None" not in beside and "assistant:  calls" in beside, beside)
    check("missing beside calls",
          shown({"role": "assistant", "tool_calls": [CALL]})
          == shown({"role": "assistant", "content": None, "tool_calls": [CALL]}))
    check("null without calls", shown({"role": "assistant", "content": None}, USER)
          == "user: w5 w6assistant: user: w5 w6",
          shown({"role": "assistant", "content": None}, USER))
    check("refusal", shown({"role": "assistant", "content": None, "refusal": "w8"},
                           USER).endswith("assistant: w8user: w5 w6"))
    check("part of refusal", shown({"role": "assistant",
                                    "content": [{"type": "refusal", "refusal": "w8"}]},
                                   USER).endswith("assistant: w8user: w5 w6"))
    check("null of a tool", shown({"role": "tool", "content": None}).endswith("tool: "))
    check("null of a user", s.post(CHAT, {"messages": [{"role": "user", "content": None}]})[0]
          == 400)
    for part in (IMAGE, {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                 {"type": "file", "file": {}}, {"type": 5, "text": "a"}, {"type": "text"}, 7):
        status, a, _ = s.post(CHAT, {"messages":
                                     [USER, {"role": "user",
                                             "content": [{"type": "text", "text": "w1"}, part]}]})
        check("media %s" % str(part)[:30],
              status == 400 and "messages[1].content[1]" in a["error"]["message"], a)
    status, a, _ = s.post("/v1/responses",
                          {"input": [{"role": "user",
                                      "content": [{"type": "input_text", "text": "w1"},
                                                  {"type": "input_image", "image_url": "x"}]}]})
    check("media of Responses", status == 400 and "input[0].content[1]" in a["error"]["message"], a)
    status, a, _ = s.post("/v1/messages",
                          {"max_tokens": 2, "messages":
                           [{"role": "user", "content":
                             [{"type": "text", "text": "w1"}, {"type": "image", "source": {}}]}]})
    check("media of messages", status == 400 and "messages[0].content[1]" in a["error"]["message"],
          a)


def test_media_of_tools(s):
    """What a tool has returned stays in the conversation for good: an image says that it was left
    out."""
    chat = {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]},
                         {"role": "tool", "tool_call_id": "call_1",
                          "content": [{"type": "text", "text": "w9"}, IMAGE]}, USER]}
    text = s.post("/apply-template", chat)[1]["prompt"]
    check("image of a tool", "w9[image_url: left out, this model reads text alone]" in text, text)
    status, _, r = s.post(CHAT, {**chat, "max_tokens": 2})
    check("image of a tool is told",
          status == 200 and r.getheader("x-pith-ignored") == "image_url of a tool", r.getheaders())
    messages = [USER, {"role": "assistant",
                       "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
                {"role": "user", "content":
                 [{"type": "tool_result", "tool_use_id": "c",
                   "content": [{"type": "image",
                                "source": {"type": "base64", "data": "A",
                                           "media_type": "image/png"}}]}]}]
    status, a, r = s.post("/v1/messages", {"messages": messages, "max_tokens": 2})
    check("tool_result with an image",
          status == 200 and r.getheader("x-pith-ignored") == "image of a tool", a)
    check("counted", s.post("/v1/messages/count_tokens", {"messages": messages})[0] == 200)
    items = [{"role": "user", "content": "w5"},
             {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
             {"type": "function_call_output", "call_id": "c",
              "output": [{"type": "input_text", "text": "w7"},
                         {"type": "input_image", "image_url": "x"}]}]
    status, a, r = s.post("/v1/responses", {"input": items, "max_output_tokens": 2})
    check("output with an image", status == 200 and "input_image" in r.getheader("x-pith-ignored"),
          a)
    for bad in ({"type": "text"}, 5, {"text": 5}):
        status, a, _ = s.post("/v1/messages",
                              {"messages": messages[:2]
                               + [{"role": "user", "content":
                                   [{"type": "tool_result", "tool_use_id": "c",
                                     "content": [bad]}]}], "max_tokens": 2})
        check("bad part of a tool %s" % bad, status == 400, a)


FRONT = ("{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
         "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
         "[{{ m.role }}|{{ m.content }}]{% endfor %}")
NOWHERE = ("{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}"
           "{% endif %}[{{ m.role }}|{{ m.content }}]{% endfor %}")
SILENT = ("{% for m in messages %}{% if m.role != 'system' or loop.first %}"
          "[{{ m.role }}|{{ m.content }}]{% endif %}{% endfor %}")
ALL = "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}"


def test_many_of_the_system(s, reminder):
    """Each is copied once, however many there are in a row: not anew with each that follows, which
    took longer than a request may."""
    n, text = 40000, "x" * 60
    many = [{"role": "system", "content": text}] * n
    user, said = ({"role": role, "content": "y"} for role in ("user", "assistant"))
    row = (text + "\n\n") * (n - 1) + text
    for name, messages, wanted in (
            ("in front", [*many, user], "[system|" + row + "][user|y]"),
            ("behind the user", [user, *many], "[user|y" + (reminder % text) * n + "]"),
            ("behind the assistant", [user, said, *many, user],
             "[user|y][assistant|y][user|" + (reminder % row)[2:] + "\n\ny]")):
        a = s.post("/apply-template", {"messages": messages})[1]
        check("many of the system " + name, a.get("prompt") == wanted, str(a)[:300])


def test_system(model, folder):
    """What the system says is before the model wherever clients put it, also where the template
    takes it in front alone, leaves it out elsewhere, or knows none."""
    say = lambda role, text: {"role": role, "content": text}
    reminder = "\n\n<system-reminder>\n%s\n</system-reminder>"
    late = [say("system", "s1"), say("user", "u1"), say("system", "s2"), say("assistant", "a1"),
            say("system", "s3"), say("developer", "s4"), say("user", "u2")]
    folded = ("[user|u1" + reminder % "s2" + "][assistant|a1][user|" + (reminder % "s3\n\ns4")[2:]
              + "\n\nu2]")
    two = [say("system", "s1"), say("developer", "s2"), say("user", "u1")]
    ends = [say("user", "u1"), say("assistant", "a1"), say("system", "s1")]
    moved = "place of system messages"
    for name, text, rows in (
            ("front", FRONT, ((late, "[system|s1]" + folded, moved),
                              (two, "[system|s1\n\ns2][user|u1]", None),
                              (late[:2], "[system|s1][user|u1]", None),
                              (ends, "[user|u1][assistant|a1][user|"
                               + (reminder % "s1")[2:] + "]", moved))),
            ("nowhere", NOWHERE, ((late, "[user|s1\n\n" + folded[6:], moved),
                                  (two, "[user|s1\n\ns2\n\nu1]", moved),
                                  (two[:1], "[user|s1]", moved),
                                  ([say("user", "u1")], "[user|u1]", None))),
            ("silent", SILENT, ((late, "[system|s1]" + folded, moved),)),
            ("all", ALL, ((late, "[system|s1][user|u1][system|s2][assistant|a1][system|s3]"
                           "[system|s4][user|u2]", None),))):
        path = os.path.join(folder, name)
        with open(path, "w") as f:
            f.write(text)
        with Server(model, "--ctx", "1024", "--chat-template", path) as s:
            for i, (messages, wanted, told) in enumerate(rows):
                a = s.post("/apply-template", {"messages": messages})[1]
                status, b, r = s.post(CHAT, {"messages": messages, "max_tokens": 1})
                check("system messages, %s %d" % (name, i), a.get("prompt") == wanted
                      and status == 200 and ignored(r) == told, (a, wanted, b, r.getheaders()))
            if name == "front":
                test_many_of_the_system(s, reminder)
                code = {"messages": [say("user", [{"type": "text", "text": "u1"}]),
                                     say("system", "s2")], "system": "s1", "max_tokens": 1,
                        "thinking": {"type": "adaptive", "budget_tokens": 0}}
                status, a, r = s.post("/v1/messages", code)
                check("as Claude Code has it", status == 200 and ignored(r) == moved
                      and a["usage"]["input_tokens"] == s.post(
                          CHAT, {"messages": [say("system", "s1"),
                                              say("user", "u1" + reminder % "s2")],
                                 "max_tokens": 1})[1]["usage"]["prompt_tokens"], a)
                codex = {"instructions": "s1", "max_output_tokens": 16, "input": [
                    {"type": "message", **say("developer", [{"type": "input_text",
                                                             "text": "s2"}])},
                    {"type": "message", **say("user", [{"type": "input_text", "text": "u1"}])}]}
                status, a, r = s.post("/v1/responses", codex)
                check("as Codex has it", status == 200 and ignored(r) is None
                      and a["usage"]["input_tokens"] == s.post(
                          CHAT, {"messages": [say("system", "s1\n\ns2"), say("user", "u1")],
                                 "max_tokens": 1})[1]["usage"]["prompt_tokens"], a)


def ignored(r):
    return r.getheader("x-pith-ignored")


def test_foreign_tools(s):
    status, a, r = s.post("/v1/responses",
                          {"input": "w5", "tools":
                           [{"type": "web_search"}, {"type": "function", **WEATHER}],
                           "max_output_tokens": 2})
    check("tools of the service",
          status == 200 and ignored(r) == "tools[0] web_search, schemas of tools",
          (a, r.getheaders()))
    check("tool_choice of one", s.post("/v1/responses",
                                       {"input": "w5", "tools": [{"type": "web_search"}],
                                        "tool_choice": {"type": "web_search"}})[0] == 400)
    check("nothing left to call",
          s.post(CHAT, {"messages": [USER], "tools": [{"type": "web_search"}],
                        "tool_choice": "required"})[0] == 400)
    status, a, r = s.post("/v1/messages",
                          {"messages": [USER], "max_tokens": 2,
                           "tools": [{"type": "web_search_20250305", "name": "web_search"},
                                     {"name": "f", "input_schema": {"type": "object"}}]})
    check("tools of Anthropic's",
          status == 200 and ignored(r) == "tools[0] web_search_20250305, schemas of tools", a)
    status, a, _ = s.post("/v1/messages",
                          {"messages": [USER], "max_tokens": 2,
                           "tools": [{"type": "web_search_20250305", "name": "web_search"}],
                           "tool_choice": {"type": "tool", "name": "web_search"}})
    check("tool_choice of Anthropic's", status == 400, a)
    status, a, r = s.post(CHAT, {"messages": [USER], "max_tokens": 2,
                                 "tools": [{"type": "custom", "custom": {"name": "x"}}, TOOL]})
    check("custom tools", status == 200 and ignored(r) == "tools[0] custom, schemas of tools", a)
    items = [{"type": "local_shell_call", "id": "ls_1"},
             {"type": "web_search_call", "id": "ws_1", "status": "completed"},
             {"role": "user", "content": "w5"}]
    status, a, r = s.post("/v1/responses", {"input": items, "max_output_tokens": 2})
    check("items of the service",
          status == 200 and r.getheader("x-pith-ignored")
          == "input[0] local_shell_call, input[1] web_search_call", (a, r.getheaders()))
    check("only items of the service", s.post("/v1/responses", {"input": items[:1]})[0] == 400)
    check("unknown items", s.post("/v1/responses", {"input": [{"type": "dance"}]})[0] == 400)
    many = [{"type": "ghost_snapshot"}] * 40 + [{"role": "user", "content": "w5"}]
    told = s.post("/v1/responses",
                  {"input": many, "max_output_tokens": 2})[2].getheader("x-pith-ignored")
    check("a long list is cut in the header", 400 < len(told) < 512
          and told.endswith("ghost_snapshot, ..."), told)
    status, _, r = s.post(CHAT, {"messages": [USER], "max_tokens": 2,
                                 "tools": [{"type": "a\r\nSet-Cookie: b, c\u00fc"}]})
    check("names are no headers",
          status == 200 and r.getheader("x-pith-ignored") == "tools[0] a??Set-Cookie: b? c??"
          and not r.getheader("Set-Cookie"), r.getheaders())


def test_repeats(s):
    """A token that the grammar has 200 of, with another one between: a penalty of presence holds it
    off for as long as the answer is."""
    body = {"prompt": "w5", "max_tokens": 120, "temperature": 0, "ignore_eos": True,
            "logit_bias": {"30": 50}, "logprobs": 0}
    plain = s.post("/v1/completions", body)[1]["choices"][0]["logprobs"]["tokens"]
    check("without a penalty", len(set(plain)) == 1, plain[:5])
    for name, window in (("frequency_penalty", {}), ("presence_penalty", {}),
                         ("frequency_penalty", {"repeat_last_n": -1}),
                         ("presence_penalty", {"repeat_last_n": 64})):
        tokens = s.post("/v1/completions",
                        {**body, **window, name: 100})[1]["choices"][0]["logprobs"]["tokens"]
        again = [i for i in range(1, 120) if tokens[i] == plain[0]]
        check("%s %s" % (name, window),
              (again[:1] == [65]) if window.get("repeat_last_n") == 64 else not again, again)


def test_most(s):
    a = s.post(CHAT, {"messages": [USER], "max_tokens": -1, "ignore_eos": True})[1]
    check("max_tokens of -1", a["choices"][0]["finish_reason"] == "length"
          and a["usage"]["total_tokens"] > 1000, a["usage"])
    check("max_tokens of -2", s.post(CHAT, {"messages": [USER], "max_tokens": -2})[0] == 400)
    status, a, _ = s.post("/v1/messages",
                          {"messages": [{"role": "user", "content": "w5 " * 3000}],
                           "max_tokens": 2})
    e = a["error"]
    check("too long for Anthropic's",
          status == 400 and e["message"] == "prompt is too long: %d tokens > 1024 maximum"
          % e["n_prompt"] and e["n_prompt"] > 3000, a)


def test_what_there_is(folder, model):
    version = None
    names = ("m1", "m2")
    models = os.path.join(folder, "models")
    os.mkdir(models)
    for name in names:
        shutil.copy(model, os.path.join(models, name + ".gguf"))
    with open(os.path.join(models, "broken.gguf"), "wb") as f:
        f.write(b"GGUF" + b"\xff" * 100)
    with Server([], "--models", models, "--ctx", "512") as s:
        version = s.get("/api/version")[1]["version"]
        # what Codex wants for /v1/responses
        check("version", [int(x) for x in version.split(".")] >= [0, 13, 4], version)
        cold = s.post("/api/show", {"model": "m2"})
        states = {m["id"]: m["state"] for m in s.get("/v1/models")[1]["data"]}
        check("show loads nothing", cold[0] == 200 and states["m2"] == "unloaded", (cold, states))
        s.post("/v1/completions", {"model": "m2", "prompt": "w5", "max_tokens": 1})
        warm = s.post("/api/show", {"model": "m2:latest"})[1]
        for place in (cold[1], warm):
            place["model_info"].pop([k for k in place["model_info"]
                                     if k.endswith(".context_length")][0])
        check("the header says the same", cold[1] == warm, (cold[1], warm))
        check("show of nothing", s.post("/api/show", {"model": "none"})[0] == 404
              and s.post("/api/show", {"model": "broken"})[0] == 503
              and s.post("/api/show", {"name": "m1"})[0] == 200)


def test_last_turn(s):
    """A last message of the assistant is gone on with; where it is the only one it is a turn."""
    alone = [{"role": "assistant", "content": "w7"}]
    turns = [USER, *alone]
    shown = lambda messages, **more: s.post("/apply-template", {"messages": messages,
                                                                **more})[1].get("prompt")
    check("a lone message is a turn", shown(alone) == "assistant: w7assistant:", shown(alone))
    for path, body in ((CHAT, {"messages": alone, "max_tokens": 1}),
                       ("/v1/messages", {"messages": alone, "max_tokens": 1}),
                       ("/api/chat", {"messages": alone, "stream": False,
                                      "options": {"num_predict": 1}})):
        status, a, _ = s.post(path, body)
        n = s.post("/tokenize", {"content": "assistant: w7assistant:"})[1]["tokens"]
        used = a.get("usage", a)
        check("a lone message " + path, status == 200 and len(n) == used.get("prompt_tokens",
              used.get("input_tokens", used.get("prompt_eval_count"))), (a, n))
    same = {"options": {"num_predict": 6, "temperature": 0}, "stream": False}
    told = s.post("/api/chat", {"messages": turns, **same})[1]
    wanted = s.post(CHAT, {"messages": turns, "max_tokens": 6, "temperature": 0})[1]
    check("Ollama goes on", told["prompt_eval_count"] == wanted["usage"]["prompt_tokens"]
          and told["message"]["content"] == wanted["choices"][0]["message"]["content"],
          (told, wanted))
    two = s.post("/api/chat", {"messages": [*turns, *alone], **same})
    check("Ollama behind another of the assistant's", two[0] == 200, two[1])


def test_parts(s):
    """What is no part is named as it is, with what is wanted."""
    for part, said in (("a", 'content[0] is "a", wanted a part'), (3, "content[0] is 3, wanted"),
                       ({"type": "text"}, "content[0].text is missing, wanted a string"),
                       ({"type": "text", "text": 4}, "content[0].text is 4, wanted a string"),
                       ({"type": "refusal"}, "content[0].refusal is missing, wanted"),
                       ({"x": 1}, "content[0].text is missing, wanted"),
                       (IMAGE, 'content[0] is "image_url", not a text')):
        for messages in ([{"role": "user", "content": [part]}],
                         [USER, {"role": "assistant", "content": [part]}]):
            status, e, _ = ask(s, messages=messages)
            check("part %s of %s" % (part, messages[-1]["role"]), status == 400 and
                  'messages[%d].' % (len(messages) - 1) + said in e["message"], e)
    status, e, _ = s.post("/v1/responses", {"input": [{"role": "user", "content": ["a"]}]})
    check("part of an item", status == 400
          and 'input[0].content[0] is "a", wanted a part' in e["error"]["message"], e)


def test_choices_of_foreign_tools(s):
    """A choice of a tool that is left out says so."""
    search, web = {"type": "web_search"}, {"type": "web_search_20250305", "name": "web_search"}
    custom = {"type": "custom", "name": "sql"}
    nested = {"type": "custom", "custom": {"name": "sql"}}
    flat = {"type": "function", **WEATHER}
    anthropic = {"name": "weather", "input_schema": WEATHER["parameters"]}
    for path, tools, choice, said in (
            (CHAT, [TOOL, search], search, "names tools[1] of type"),
            (CHAT, [TOOL, nested], nested, "names tools[1] of type"),
            (CHAT, [TOOL], search, 'is of type "web_search"'),
            (CHAT, [search], "required", "none of the 1 tools is a function"),
            ("/v1/responses", [flat, search], search, "names tools[1] of type"),
            ("/v1/responses", [custom, flat], custom, "names tools[0] of type"),
            ("/v1/responses", [custom], "required", "none of the 1 tools is a function"),
            ("/v1/messages", [anthropic, web], {"type": "tool", "name": "web_search"},
             'tools[1] of type "web_search_20250305"'),
            ("/v1/messages", [web], {"type": "any"}, "none of the 1 tools is a function")):
        talk = {"input": "w5"} if path == "/v1/responses" else {"messages": [USER],
                                                                 "max_tokens": 2}
        status, a, _ = s.post(path, {**talk, "tools": tools, "tool_choice": choice})
        check("choice of %s %s" % (path, choice), status == 400 and said in a["error"]["message"],
              a)
        status, a, _ = s.post(path, {**talk, "tools": tools, "tool_choice":
                                     {"type": "auto"} if path == "/v1/messages" else "auto"})
        check("no choice of %s %s" % (path, choice), status == 200, a)
    status, _, _ = s.post("/v1/responses", {"input": "w5", "max_output_tokens": 60, "tools":
                                            [flat, search],
                                            "tool_choice": {"type": "function", "name": "weather"}})
    check("a function beside them", status == 200)


def test_bounds(s):
    """Of several names of one bound the first that says one counts; others are named."""
    for path, talk in ((CHAT, {"messages": [USER]}), ("/v1/completions", {"prompt": "w5"}),
                       ("/completion", {"prompt": "w5"})):
        for bounds, n, ignored in (({"max_tokens": -1, "n_predict": 2}, 2, None),
                                   ({"max_tokens": 3, "n_predict": 3}, 3, None),
                                   ({"max_tokens": 3, "n_predict": 2}, None, True)):
            _, a, r = s.post(path, {**talk, **bounds, "ignore_eos": True})
            made = a.get("tokens_predicted") or a["usage"]["completion_tokens"]
            first = 2 if path == "/completion" else 3
            left = "max_tokens" if path == "/completion" else "n_predict"
            check("bounds %s %s" % (path, bounds), made == (n or first)
                  and r.getheader("x-pith-ignored") == (left if ignored else None),
                  (a, r.getheaders()))


def test_inner(s):
    """What is in objects is done, or named, or refused; an answer repeats what was done."""
    inner = {"type": "json_schema", "schema": SEVEN}
    seven = {"format": {**inner, "name": "s", "description": "d", "strict": None, "x": None}}

    def responses(**more):
        return s.post("/v1/responses", {"input": "w5", "max_output_tokens": 60, **more})

    def messages(**more):
        return s.post("/v1/messages", {"messages": [USER], "max_tokens": 60, **more})

    status, a, r = responses(text={**seven, "verbosity": "low", "tone": "w1"},
                             reasoning={"effort": "low", "summary": "auto", "enabled": True})
    check("text and reasoning", status == 200 and ignored(r) == "tone, enabled"
          and a["text"] == seven and a["reasoning"] == {"effort": "low", "summary": None}
          and json.loads(a["output"][-1]["content"][0]["text"]) == {"a": 7}, (a, r.getheaders()))
    status, a, r = messages(output_config={"format": inner, "effort": "low", "task_budget": 3})
    check("output_config", status == 200 and ignored(r) == "task_budget"
          and json.loads(a["content"][0]["text"]) == {"a": 7}, (a, r.getheaders()))
    status, a, r = ask(s, reasoning={"effort": "low", "summary": "auto", "tone": 1})
    check("reasoning of a chat", status == 200 and ignored(r) == "tone", (a, r.getheaders()))
    for send in (messages, lambda **more: s.post(CHAT, {"messages": [USER], "max_tokens": 1,
                                                       **more})):
        status, a, r = send(thinking={"type": "adaptive", "display": "summarized", "tone": 1})
        check("thinking", status == 200 and ignored(r) == "tone", (a, r.getheaders()))
    for send, bad, said in (
            (messages, {"thinking": {"type": 3}}, "thinking: type is 3, wanted a text"),
            (messages, {"thinking": {"budget_tokens": -1}}, "budget_tokens is -1, wanted"),
            (responses, {"text": {"format": {**inner, "pattern": "a"}}},
             'text.format has no field "pattern"'),
            (responses, {"text": {"format": 3}}, "text: format is 3, wanted an object"),
            (responses, {"text": {"verbosity": 3}}, "text: verbosity is 3, wanted a text"),
            (responses, {"text": {"format": {"type": "grammar", "schema": SEVEN}}},
             'is "grammar", wanted'),
            (responses, {"reasoning": {"effort": 3}}, "reasoning: effort is 3, wanted a text"),
            (messages, {"output_config": {"format": {"type": "grammar", "schema": {}}}},
             'output_config.format.type is "grammar", wanted json_schema'),
            (messages, {"output_config": {"format": {"schema": SEVEN}}},
             "output_config.format.type is missing"),
            (messages, {"output_config": {"format": {**inner, "pattern": "a"}}},
             'output_config.format has no field "pattern"'),
            (messages, {"output_config": {"format": "x"}}, 'format is "x", wanted an object'),
            (messages, {"output_config": {"effort": 3}}, "effort is 3, wanted a text")):
        status, a, _ = send(**bad)
        check("bad %s" % bad, status == 400 and said in a["error"]["message"], a)
    counted = s.post("/v1/responses/input_tokens", {"input": "w5", "text": {"format": {
        **inner, "pattern": "a"}}})
    check("bad where tokens are counted", counted[0] == 400, counted[1])
    status, a, _ = ask(s, response_format={**inner, "pattern": None})
    check("null of a format", status == 200 and json.loads(a["content"]) == {"a": 7}, a)


# As Gemma's and Mistral's, which want the user and the assistant to take turns; refuses what ends
# with "show", with all of it.
TURNS = ("{% set ns = namespace(s='', role='') %}{% for m in messages %}"
         "{% if m.role == ns.role and m.role != 'tool' %}"
         "{{ raise_exception('no turns') }}{% endif %}"
         "{% set ns.role = m.role %}{% set ns.s = ns.s ~ '[' ~ m.role ~ '|' ~ m.content %}"
         "{% if m.reasoning_content %}{% set ns.s = ns.s ~ '|' ~ m.reasoning_content %}{% endif %}"
         "{% for c in m.tool_calls or [] %}"
         "{% set ns.s = ns.s ~ '|' ~ c.function.name %}{% endfor %}"
         "{% set ns.s = ns.s ~ ']' %}{% endfor %}"
         "{% if messages and messages[-1].content[-4:] == 'show' %}"
         "{{ raise_exception('<' ~ ns.s ~ '>') }}{% endif %}{{ ns.s }}")


def told_turns(s):
    """What a template has of messages of Anthropic's; behind them the user says "show"."""
    def shown(*messages):
        last = {"role": "user", "content": [{"type": "text", "text": "show"}]}
        status, a, _ = s.post("/v1/messages", {"messages": [*messages, last], "max_tokens": 1})
        text = a["error"]["message"] if status == 400 else ""
        return text[text.find("<") + 1:text.rfind(">")].replace("?", ".") or a
    return shown


def test_turns(model, folder):
    """Messages of one role in a row are one turn, with all that they have."""
    path = os.path.join(folder, "turns")
    with open(path, "w") as f:
        f.write(TURNS)
    user, other = ({"role": r, "content": "a"} for r in ("user", "assistant"))
    think = {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}]}
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f",
                                              "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c",
                                           "content": "r"}]}
    secret = {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}
    parts = {"role": "user", "content": [{"type": "text", "text": "b"},
                                         {"type": "text", "text": "c"}]}
    empty = {"role": "user", "content": []}
    with Server(model, "--ctx", "1024", "--chat-template", path) as s:
        shown = told_turns(s)
        for name, messages, wanted in (
                ("users", (user, user), "[user|a..a..show]"),
                ("parts", (parts, parts, other), "[user|bc..bc][assistant|a][user|show]"),
                ("nothing", (empty, user, empty), "[user|a..show]"),
                ("assistants", (user, think, think, other, other, call, result),
                 "[user|a][assistant|a..a|t..t|f][tool|r][user|show]"),
                ("results", (user, call, result, result, user),
                 "[user|a][assistant||f][tool|r][tool|r][user|a..show]"),
                ("nothing between", (user, secret, user), "[user|a..a..show]"),
                ("one each", (user, other), "[user|a][assistant|a][user|show]")):
            got = shown(*messages)
            check("turns of " + name, got == wanted, got)
        for content, error, wanted in (
                ("r", True, "Error: r"), (None, True, "Error"), ([], True, "Error"),
                ([{"type": "text", "text": "r"}], True, "Error: r"), ("r", False, "r"),
                ("r", None, "r"), (None, False, "")):
            block = {"type": "tool_result", "tool_use_id": "c", "is_error": error,
                     **({} if content is None else {"content": content})}
            got = shown(user, call, {"role": "user", "content": [block]})
            check("a tool that failed %s %s" % (error, content),
                  got == "[user|a][assistant||f][tool|%s][user|show]" % wanted, got)
        got = shown(user, call, {"role": "user", "content": [{**block, "is_error": 1}]})
        check("a tool that failed 1", "messages[2].content[0].is_error is 1" in str(got), got)
        body = {"messages": [user, user], "max_tokens": 1}
        one = {"messages": [{"role": "user", "content": "a\n\na"}], "max_tokens": 1}
        a, b = (s.post("/v1/messages", x)[1] for x in (body, one))
        n = [s.post("/v1/messages/count_tokens", {"messages": x["messages"]})[1]
             for x in (body, one)]
        check("turns are counted", n[0] == n[1] and n[0]["input_tokens"]
              == b["usage"]["input_tokens"] + b["usage"]["cache_read_input_tokens"], (a, b, n))
        lead = s.post("/v1/messages", {"messages": [user, other, other], "max_tokens": 1})
        check("turns that are gone on with", lead[0] == 200 and lead[1]["usage"]["input_tokens"]
              + lead[1]["usage"]["cache_read_input_tokens"] == s.post("/tokenize", {
                  "content": "[user|a]a\n\na"})[1]["count"], lead[1])


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "m.gguf"), "--ctx", "2048", "--layers", "2", "--seed",
                      "5")
        path = os.path.join(folder, "t.jinja")
        with open(path, "w") as f:
            f.write(TEMPLATE)
        with Server(model, "--ctx", "1024", "--chat-template", path) as s:
            for test in (test_formats, test_tools_beside_a_format, test_content,
                         test_media_of_tools, test_foreign_tools, test_repeats, test_most,
                         test_last_turn, test_parts, test_choices_of_foreign_tools,
                         test_bounds, test_inner):
                test(s)
        with open(path, "w") as f:
            f.write(NULLS)
        with Server(model, "--ctx", "1024", "--chat-template", path) as s:
            a = s.post("/apply-template",
                       {"messages": [{"role": "assistant", "content": None,
                                      "tool_calls": [CALL]}]})[1]
            check("null where a template asks for it", a["prompt"] == "[1 calls]", a)
        plain, with_tools = ("tokenizer.chat_template=str:plain {% for m in messages %}{{ "
                             "m.content }}{% endfor %}",
                             "tokenizer.chat_template.tool_use=str:tools {{ tools | tojson }}")
        with Server(model, "--ctx", "1024", "--override-kv", plain, "--override-kv",
                    with_tools) as s:
            one, two = (s.post("/apply-template", {"messages": [USER], **more})[1]["prompt"]
                        for more in ({}, {"tools": [TOOL]}))
            check("template for tools",
                  one == "plain w5 w6" and two.startswith("tools [{") and "weather" in two,
                  (one, two))
            check("chat with that template",
                  s.post(CHAT, {"messages": [USER], "tools": [TOOL], "max_tokens": 2})[0] == 200
                  == s.post(CHAT, {"messages": [USER], "tools": [TOOL], "tool_choice": "none",
                                   "max_tokens": 2})[0])
        first = "tokenizer.chat_template=str:{{ messages[0]['content'] }}"
        with Server(model, "--ctx", "1024", "--override-kv", first) as s:
            lone = {"messages": [{"role": "assistant", "content": "w7"}], "max_tokens": 1}
            check("a lone message and a template that reads the first",
                  s.post(CHAT, lone)[0] == 200)
            status, a, _ = s.post(CHAT, {**lone, "continue_final_message": True,
                                         "add_generation_prompt": False})
            check("nothing before what is gone on with", status == 400
                  and "the only message is the one to go on with" in a["error"]["message"], a)
        test_what_there_is(folder, model)
        test_system(model, folder)
        test_turns(model, folder)


run(main, "test_meaning")
