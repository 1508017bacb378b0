#!/usr/bin/env python3
# In make test alone: make check has test_serve.py.
"""test_calls.py -- calls of tools over HTTP, in all interfaces: tools that no prompt would hold are
refused, a call that is cut short shows none of the model's markup, and arguments are told while
they are made."""
import glob
import json
import os
import re
import tempfile

from serving import SCALE, SHARED, Server, check, events, run, skip, synth

WITHOUT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
WITH = "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}" + WITHOUT
SILENT = "{% if tools %}{{ tools | tojson }}{% endif %}" + WITHOUT  # of what opens calls
SCHEMA = {"type": "object", "properties":
          {"city": {"type": "string", "minLength": 24, "maxLength": 24},
           "n": {"enum": [[1, -2.5e3, True, {"a\n": None}]]}}, "required": ["city", "n"],
          "additionalProperties": False}
NESTED = [{"type": "function", "function":
           {"name": "weather", "description": "w1", "parameters": SCHEMA}}]
TALK = [{"role": "user", "content": "w5 w6"}]
CHAT = "/v1/chat/completions"


def asked(tools=True):
    """A body for each endpoint that takes tools."""
    flat = {"type": "function", "name": "weather", "parameters": SCHEMA}
    bodies = {CHAT: ({"messages": TALK, "max_tokens": 3}, NESTED),
              "/apply-template": ({"messages": TALK}, NESTED),
              "/api/chat": ({"messages": TALK, "stream": False, "options": {"num_predict": 3}},
                            NESTED), "/v1/responses":
              ({"input": "w5", "max_output_tokens": 3}, [flat]),
              "/v1/messages": ({"messages": TALK, "max_tokens": 3},
                               [{"name": "weather", "input_schema": SCHEMA}]),
              "/v1/messages/count_tokens":
              ({"messages": TALK}, [{"name": "weather", "input_schema": SCHEMA}])}
    return {path: {**body, **({"tools": t} if tools else {})} for path, (body, t) in bodies.items()}


def test_no_place(s, why):
    for path, body in asked().items():
        status, told, _ = s.post(path, body)
        check("refused " + path, status == 400 and why in json.dumps(told)
              and "tools" in json.dumps(told), told)
        check("without " + path, s.post(path, asked(False)[path])[0] == 200
              == s.post(path, {**body, "tools": []})[0])
    check("refused when required",
          s.post(CHAT, {**asked()[CHAT], "tool_choice": "required"})[0] == 400)
    check("tools that may not be called",
          s.post(CHAT, {**asked()[CHAT], "tool_choice": "none"})[0] == 200)
    check("show", "tools" not in s.post("/api/show", {})[1]["capabilities"])


def test_place(s):
    for path, body in asked().items():
        check("taken " + path, s.post(path, body)[0] == 200)
    check("show with tools", "tools" in s.post("/api/show", {})[1]["capabilities"])


def test_cut(s):
    for n in (1, 2, 5, 14, 30, 60, 90):
        a = s.post(CHAT, {"messages": TALK, "tools": NESTED, "tool_choice": "required",
                          "max_tokens": n, "seed": n})[1]["choices"][0]
        check("cut %d" % n, a["finish_reason"] in ("length", "tool_calls")
              and not a["message"]["content"] and "tool_call>" not in json.dumps(a), a)


def told_chat(all_events):
    calls = [c for e in all_events for c in e["choices"][0]["delta"].get("tool_calls", [])]
    heads = [c for c in calls if "id" in c]
    return heads and (heads[0]["function"]["name"],
                      len(heads[0]["id"])), [c["function"]["arguments"] for c in calls]


def told_responses(all_events):
    heads = [e["item"] for e in all_events if e["type"] == "response.output_item.added"]
    return heads and (heads[0]["name"],
                      len(heads[0]["call_id"])), [e["delta"] for e in all_events
                                             if e["type"]
                                             == "response.function_call_arguments.delta"]


def told_messages(all_events):
    heads = [e["content_block"] for e in all_events if e["type"] == "content_block_start"]
    return heads and (heads[0]["name"],
                      len(heads[0]["id"])), [e["delta"]["partial_json"] for e in all_events
                                        if e["type"] == "content_block_delta"]


def test_streams(s):
    """What a stream tells of a call, put together, is the whole answer's to the byte, wherever it
    is cut."""
    bodies = asked()
    wanted = {CHAT: (told_chat, "max_tokens", "required"),
              "/v1/responses": (told_responses, "max_output_tokens", "required"),
              "/v1/messages": (told_messages, "max_tokens", {"type": "any"})}
    for path, (told, most, choice) in wanted.items():
        halves = 0
        for n in (1, 20, 40, 50, 60, 70, 80, 90, 100, 400):
            body = {**bodies[path], most: n, "seed": n, "tool_choice": choice}
            whole, raw = s.post(path, body)[1], s.post(path, {**body, "stream": True})[1]
            head, pieces = told(events(raw))
            text = "".join(pieces)
            halves += n < 400 and len(text) > 1
            if path == CHAT:
                calls = [(c["function"]["name"], len(c["id"]), c["function"]["arguments"])
                         for c in whole["choices"][0]["message"].get("tool_calls", [])]
            elif path == "/v1/responses":
                calls = [(c["name"], len(c["call_id"]), c["arguments"]) for c in whole["output"]]
            else:  # an object has no half
                calls = [(c["name"], len(c["id"]), c["input"]) for c in whole["content"]]
            if n == 400:
                text = json.loads(text) if path == "/v1/messages" else text
                good = len(pieces) > 10 and json.loads("".join(pieces))["n"] == [1, -2.5e3, True,
                        {"a\n": None}]
                check("told " + path, good and calls == [(*head, text)], (calls, head, pieces))
            elif path == "/v1/messages":
                check("told %s %d" % (path, n),
                      [c[:2] for c in calls] == ([head] if head else [])
                      and all(c[2] == {} for c in calls), (calls, head, pieces))
            else:
                check("told %s %d" % (path, n),
                      calls == ([(*head, text)] if head else [])
                      and "tool_call>" not in raw.decode(), (calls, head, pieces))
        check("halves " + path, halves > 2, halves)
    a = s.post("/api/chat", {**bodies["/api/chat"], "tool_choice": "required", "stream": True,
                             "options": {"num_predict": 400}})[1].decode()
    lines = [json.loads(line) for line in a.splitlines()]
    check("whole in /api/chat", sum(len(x["message"].get("tool_calls", [])) for x in lines) == 1
          and len(lines) == 2, lines)


def test_ids(s):
    """No two calls have the same id: not in the choices of one answer, nor in those of another."""
    body = {"messages": TALK, "tools": NESTED, "tool_choice": "required", "max_tokens": 400,
            "temperature": 0}
    ids = []
    for more in ({"n": 2}, {"n": 2}, {}):
        for c in s.post(CHAT, {**body, **more})[1]["choices"]:
            ids += [call["id"] for call in c["message"]["tool_calls"]]
    heads = [c for e in events(s.post(CHAT, {**body, "stream": True, "n": 2})[1])
             for choice in e["choices"] for c in choice["delta"].get("tool_calls", []) if "id" in c]
    ids += [c["id"] for c in heads]
    for _ in range(2):
        a = s.post("/v1/responses", {**asked()["/v1/responses"], "tool_choice": "required",
                                     "max_output_tokens": 400, "temperature": 0})[1]
        ids += [c["call_id"] for c in a["output"]]
    check("ids of calls", len(set(ids)) == len(ids) == 9
          and all(re.fullmatch("[0-9a-z]{9}", i) for i in ids), ids)


def test_auto():
    """Where calls may come, one that begins is whole and satisfies its schema: here the model says
    what opens calls and nothing else, if it may."""
    model = os.environ.get("TEST_INSTRUCT")
    if not model or SCALE < 10:
        skip("auto", "scripts/instruct.sh has not fetched the model" if SCALE >= 10
             else "at TEST_SCALE=10, with the instruct model")
        return
    schema = {"type": "object", "properties":
              {"city": {"type": "string", "maxLength": 12}, "days": {"enum": [1, 2, 3]}},
              "required": ["city", "days"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
    with Server(model, "--ctx", "2048") as s:
        opens = s.post("/tokenize", {"content": "<tool_call>", "parse_special": True})[1]["tokens"]
        ask = {"messages": [{"role": "user", "content": "The weather in Paris, for two days?"}],
               "max_tokens": 60, "temperature": 0, "logit_bias": {str(opens[0]): 100}}
        a = s.post(CHAT, {**ask, "tools": tools, "tool_choice": "auto"})[1]["choices"][0]["message"]
        calls = [json.loads(c["function"]["arguments"]) for c in a.get("tool_calls", [])]
        check("calls under auto", len(calls) > 1
              and all(set(c) == {"city", "days"} and len(c["city"]) <= 12 and c["days"] in (1, 2, 3)
                      for c in calls), a)
        a = s.post(CHAT, {**ask, "tools": tools, "messages": [
            *ask["messages"], {"role": "assistant", "content": "I look it up."}]})[1]
        a = a["choices"][0]["message"]
        calls = [json.loads(c["function"]["arguments"]) for c in a.get("tool_calls", [])]
        check("calls behind what the request begins", len(calls) > 1
              and all(set(c) == {"city", "days"} and len(c["city"]) <= 12 and c["days"] in (1, 2, 3)
                      for c in calls), a)
        a = s.post(CHAT, {**ask, "tools": tools, "tool_choice": "none", "max_tokens": 20})[
                1]["choices"][0]["message"]
        check("free without calls", a["content"].count("<tool_call>") > 15
              and not a.get("tool_calls"), a)
        one = s.post(CHAT, {**ask, "tools": tools, "parallel_tool_calls": False})[1]["choices"][0]
        check("one call under auto",
              one["finish_reason"] == "tool_calls" and len(one["message"]["tool_calls"]) == 1, one)
        odd = [{"type": "function", "function":
                {"name": "weather", "parameters":
                 {"type": "object", "properties": {"a": {"$dynamicRef": "#x"}}}}}]
        check("a schema that no grammar holds",
              s.post(CHAT, {**ask, "tools": odd, "max_tokens": 2})[0] == 400)


WRITES = ("{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}: "
          "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n"
          "</tool_call>{% endfor %}\n{% endfor %}assistant:")


def of_members(**properties):
    return {"type": "object", "properties": properties}


def bodies_of(schema, strict=None, choice="auto"):
    """A body with one tool for each interface that calls tools."""
    more = {} if strict is None else {"strict": strict}
    flat = {"type": "function", "name": "tag", "parameters": schema, **more}
    nested = [{"type": "function", "function":
               {"name": "tag", "parameters": schema, **more}}]
    return {CHAT: {"messages": TALK, "max_tokens": 1, "tools": nested, "tool_choice": choice},
            "/api/chat": {"messages": TALK, "stream": False, "options": {"num_predict": 1},
                          "tools": nested},
            "/v1/responses": {"input": "w5", "max_output_tokens": 16, "tools": [flat],
                              "tool_choice": choice},
            "/v1/messages": {"messages": TALK, "max_tokens": 1,
                             "tools": [{"name": "tag", "input_schema": schema, **more}],
                             "tool_choice": {"type": "any" if choice == "required" else "auto"}}}


def test_schemas(s, held):
    """A schema that cannot be kept is refused whether or not a call has to come, by the tool's name
    and the keyword; none is left out without a word."""
    for name, schema, why in (("not", of_members(a={"not": {"type": "string"}}), '"not"'),
                              ("an unknown keyword",
                               of_members(a={"type": "number", "multipleOfX": 2}), "multipleOfX"),
                              ("a reference to nothing",
                               of_members(a={"$ref": "#/$defs/none"}), "$ref"),
                              ("other names",
                               {**of_members(), "propertyNames": {"pattern": "a"}},
                               "propertyNames")):
        for choice in ("auto", "required"):
            for path, body in bodies_of(schema, choice=choice).items():
                status, a, _ = s.post(path, body)
                check("%s %s %s" % (name, choice, path), status == 400 and why in json.dumps(
                        a).replace('\\"', '"') and "tools" in json.dumps(a), a)
    record = {"type": "object", "propertyNames": {"type": "string"},
              "additionalProperties": {"type": "number", "example": 3}}
    for path, body in bodies_of(of_members(a=record)).items():
        status, a, r = s.post(path, body)
        check("a record " + path, status == 200
              and r.getheader("x-pith-ignored") == (None if held else "schemas of tools"),
              (a, r.getheaders()))


def test_begun(s):
    """Behind text that the request begins the answer with calls are held as ever. What it begins of
    a call is its text: nothing is held, which is said."""
    for schema, status, lead, told in (
            (of_members(a={"type": "string"}), 200, "w7", None),
            (of_members(a={"type": "string"}), 200, "w7\n", None),
            (of_members(a={"type": "string"}), 200, "<tool_call>", "schemas of tools"),
            (of_members(a={"type": "string"}), 200, 'w7<tool_call>\n{"name": "tag", "arguments": {',
             "schemas of tools"),
            (of_members(a={"type": "string"}), 200, '<tool_call>\n{"name": "other"',
             "schemas of tools"),
            (of_members(a={"type": "string"}), 200, '{"name": "tag"', "schemas of tools"),
            (of_members(a={"not": {"type": "string"}}), 400, "w7", None)):
        body = bodies_of(schema)[CHAT]
        body["messages"] = TALK + [{"role": "assistant", "content": lead}]
        for more in ({"continue_final_message": True, "add_generation_prompt": False}, {}):
            got, a, r = s.post(CHAT, {**body, **more})
            check("begun by the request %r %d %s" % (lead, status, list(more)), got == status and
                  (got != 200 or r.getheader("x-pith-ignored") == told), (a, r.getheaders()))


def test_unique(s, held):
    """Items of arguments differ, or the tool is refused, strict or not; what only annotates is
    said."""
    lists = of_members(a={"type": "array", "items": {"type": "array"}, "uniqueItems": True})
    names = of_members(a={"type": "array", "items": {"type": "string"}, "uniqueItems": True})
    color = of_members(a={"type": "string", "format": "color"})
    for choice in ("auto", "required"):
        for strict in (True, False, None):
            for path, body in bodies_of(lists, strict, choice).items():
                status, a, _ = s.post(path, body)
                check("unique lists %s %s %s" % (strict, choice, path), status == 400
                      and "uniqueItems: cannot be kept" in json.dumps(a)
                      and "tag" in json.dumps(a), a)
            for path, body in bodies_of(names, strict, choice).items():
                status, a, _ = s.post(path, body)
                check("unique names %s %s %s" % (strict, choice, path), status == 200, a)
        for path, body in bodies_of(color, None, choice).items():
            status, a, r = s.post(path, body)
            check("an annotation %s %s" % (choice, path), status == 200
                  and r.getheader("x-pith-ignored") ==
                  ("format color" if held or (choice == "required" and path != "/api/chat")
                   else "schemas of tools"),
                  (a, r.getheaders()))


def foreign_members(path, name, value):
    """A body whose tool has a member that no one knows, and where."""
    body = bodies_of(of_members())[path]
    body["tools"][0] = {**body["tools"][0], name: value}
    return body


def test_members(model, path):
    """Members of a tool that no one knows are named, or refused."""
    with Server(model, "--ctx", "1024", "--chat-template", path) as s:
        for where in bodies_of(of_members()):
            _, _, r = s.post(where, foreign_members(where, "bar", 1))
            check("a member of " + where, r.getheader("x-pith-ignored") == "tools[0].bar",
                  r.getheaders())
            for name, value in (("bar", None), ("cache_control", {"type": "ephemeral"})):
                _, _, r = s.post(where, foreign_members(where, name, value))
                check("%s of %s" % (name, where), r.getheader("x-pith-ignored") is None,
                      r.getheaders())
        for where in (CHAT, "/api/chat"):
            body = bodies_of(of_members())[where]
            body["tools"][0]["function"]["foo"] = {"x": 1}
            _, _, r = s.post(where, body)
            check("a function's " + where,
                  r.getheader("x-pith-ignored") == "tools[0].function.foo", r.getheaders())
    with Server(model, "--ctx", "1024", "--chat-template", path, "--strict-fields") as s:
        for where in bodies_of(of_members()):
            status, a, _ = s.post(where, foreign_members(where, "bar", 1))
            check("strict fields " + where, status == 400
                  and 'tools[0] has no field' in json.dumps(a), a)
            check("known fields " + where, s.post(where, bodies_of(of_members())[where])[0] == 200)


NATIVE = ("Qwen3-Coder GLM-4.6 Kimi-K2-Instruct Kimi-K3 MiniMax-M2 MiniMax-M3 "
          "ByteDance-Seed-OSS LFM2.5-8B-A1B meetkai-functionary-medium-v3.2 tencent-Hy3 "
          "upstage-Solar-Open-100B openbmb-MiniCPM5-1B muse-glimmer").split()
LAMP = [{"type": "function", "function": {"name": "lamp", "description": "w1", "parameters": {
    "type": "object", "properties": {
        "room": {"type": "string", "enum": ["hall", "bath"]},
        "level": {"type": "integer", "minimum": 0, "maximum": 9}, "on": {"type": "boolean"}},
    "required": ["room", "level"]}}}]


# Published ones that do not show what is in `tools`: they have none, or read another variable.
SHOW_NO_TOOLS = ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B deepseek-ai-DeepSeek-V3.1 "
                 "google-gemma-2-2b-it").split()
# Those that cannot go on where a tool lacks something; one that reads `functions` and `datetime`.
NEED_ALL = ("ByteDance-Seed-OSS Cohere2MoE CohereForAI-c4ai-command-r-plus-tool_use "
            "CohereForAI-c4ai-command-r7b-12-2024-tool_use "
            "NousResearch-Hermes-3-Llama-3.1-8B-tool_use muse-glimmer "
            "fireworks-ai-llama-3-firefunction-v2").split()
# Those that leave calls of a history out, change lists to write them, or want the start token.
LEAVE_OUT = ("Kimi-K2-Instruct LFM2-8B-A1B LFM2.5-Instruct ibm-granite-granite-3.3-2B-Instruct "
             "meetkai-functionary-medium-v3.2").split()


def test_published(model):
    """Under auto calls are held to the tools' schemas by every published template that shows
    tools, also where it says nothing of how calls are written."""
    found = sorted(glob.glob(os.path.join(SHARED, "vectors", "templates", "*.jinja")))
    if not found:
        skip("published templates under auto", "no templates in " + SHARED)
        return
    bare = [{"type": "function", "function": {"name": "lamp", **more}}
            for more in ({}, {"description": None, "parameters": None}, {"parameters": {}},
                         {"description": "w1", "parameters": {"type": "object"}},
                         {"parameters": LAMP[0]["function"]["parameters"]})]
    n = 0
    for path in found:
        name = os.path.basename(path)[:-len(".jinja")]
        if SCALE < 10 and name not in LEAVE_OUT + SHOW_NO_TOOLS[:1] + NEED_ALL:
            continue
        with Server(model, "--chat-template", path) as s:
            status, a, r = s.post(CHAT, {"messages": TALK, "tools": LAMP, "max_tokens": 1})
            n += status == 200
            for tool in bare if name not in SHOW_NO_TOOLS else []:
                status_, b, _ = s.post("/apply-template", {"messages": TALK, "tools": [tool]})
                check("a tool that lacks something of %s: %s" % (name, tool["function"]),
                      status_ == 200 and "lamp" in b["prompt"], b)
            if name == NEED_ALL[-1]:
                prompt = s.post("/apply-template", {"messages": TALK, "tools": LAMP})[1]["prompt"]
                plain = s.post("/apply-template", {"messages": TALK})[1]["prompt"]
                check("functions and the day of " + name,
                      json.dumps([LAMP[0]["function"]], indent=4) in prompt
                      and re.search(r"Today is \d{4}-\d\d-\d\d\.", prompt)
                      and "JSON spec:\n[]\nToday" in plain, (prompt, plain))
            check("held under auto: " + name,
                  status == 400 if name in SHOW_NO_TOOLS else
                  status == 200 and r.getheader("x-pith-ignored") is None, (a, r.getheaders()))
    check("templates under auto", n >= (len(found) - len(SHOW_NO_TOOLS) if SCALE >= 10
                                        else len(LEAVE_OUT + NEED_ALL)), n)


def test_whole_tools(folder, model):
    """A tool that lacks nothing is in the prompt as it came."""
    path = os.path.join(folder, "tojson.jinja")
    with open(path, "w") as f:
        f.write("{{ tools | tojson }}")
    with Server(model, "--chat-template", path) as s:
        show = lambda tool: json.loads(s.post("/apply-template", {
            "messages": TALK, "tools": [tool]})[1]["prompt"])[0]
        for tool in (LAMP[0], {"function": {"parameters": {"properties": {"x": {}}, "a": 1},
                                            "description": "", "name": "f"}, "type": "function"}):
            check("as it came: " + tool["function"]["name"],
                  json.dumps(show(tool)) == json.dumps(tool), show(tool))
        lacks = {"type": "function", "function": {"name": "f", "parameters": None, "strict": True}}
        check("what it lacks", show(lacks) == {"type": "function", "function": {
            "name": "f", "strict": True, "description": "", "parameters": {
                "type": "object", "properties": {}}}}, show(lacks))
        call = {"messages": TALK, "tools": [lacks], "max_tokens": 4}
        status, a, _ = s.post(CHAT, {**call, "tool_choice": "required"})
        check("null parameters are none", status == 200, a)


def is_lamp(call):
    args = json.loads(call["function"]["arguments"])
    return (call["function"]["name"] == "lamp" and args["room"] in ("hall", "bath")
            and args["level"] in range(10) and args.get("on", True) in (True, False)
            and set(args) <= {"room", "level", "on"})


def test_native(model):
    """A model of no sense that has to call, in the form of each family: its calls are whole and
    satisfy their schema, in a stream as well."""
    for name in NATIVE:
        path = os.path.join(SHARED, "vectors", "templates", name + ".jinja")
        if not os.path.exists(path):
            skip("native calls", "no templates in " + SHARED)
            return
        with Server(model, "--ctx", "4096", "--chat-template", path) as s:
            for seed in range(2):
                body = {"messages": TALK, "tools": LAMP, "tool_choice": "required",
                        "max_tokens": 500, "seed": seed, "temperature": 0.7}
                status, a, _ = s.post(CHAT, body)
                answer = a["choices"][0] if status == 200 else {"message": {}}
                calls = answer["message"].get("tool_calls") or []
                check("native %s %d" % (name, seed), calls and all(map(is_lamp, calls))
                      and not answer["message"].get("content")
                      and answer["finish_reason"] == "tool_calls", a)
                head, pieces = told_chat(events(s.post(CHAT, {**body, "stream": True})[1]))
                check("native stream %s %d" % (name, seed), head and head[0] == "lamp"
                      and "".join(pieces) == "".join(c["function"]["arguments"] for c in calls),
                      (head, pieces, a))
            status, a, _ = s.post(CHAT, {**body, "tool_choice": "auto", "max_tokens": 8})
            check("native under auto " + name, status == 200, a)
            if name == "Qwen3-Coder":
                free = bodies_of(of_members(a={"type": "string", "pattern": "^.{3}x$"}))[CHAT]
                status, a, r = s.post(CHAT, {**free, "tool_choice": "required", "max_tokens": 500,
                                             "seed": 1})
                calls = a["choices"][0]["message"].get("tool_calls") if status == 200 else None
                check("a pattern of any characters is kept", calls
                      and json.loads(calls[0]["function"]["arguments"])["a"].endswith("x")
                      and r.getheader("x-pith-ignored") is None, (a, r.getheaders()))


def test_older(s):
    """functions and function_call: tools by their older names, an answer in the older form."""
    functions = [t["function"] for t in NESTED]
    body = {"messages": TALK, "max_tokens": 400, "seed": 3}
    newer = s.post(CHAT, {**body, "tools": NESTED, "tool_choice":
                          {"type": "function", "function": {"name": "weather"}}})[1]["choices"][0]
    older = {**body, "functions": functions, "function_call": {"name": "weather"}}
    a = s.post(CHAT, older)[1]["choices"][0]
    check("function_call", a["finish_reason"] == "function_call" and a["message"]["content"] is None
          and a["message"]["function_call"] == newer["message"]["tool_calls"][0]["function"]
          and "tool_calls" not in a["message"], a)
    told = [e["choices"][0] for e in events(s.post(CHAT, {**older, "stream": True})[1])]
    pieces = [c["delta"]["function_call"] for c in told if "function_call" in c["delta"]]
    check("function_call in a stream", pieces[0]["name"] == "weather"
          and all("name" not in p for p in pieces[1:])
          and "".join(p["arguments"] for p in pieces) == a["message"]["function_call"]["arguments"]
          and told[-1]["finish_reason"] == "function_call"
          and not any("tool_calls" in c["delta"] for c in told), told)
    for more in ({}, {"function_call": "auto"}, {"function_call": "none"}):
        r = s.post(CHAT, {**body, "max_tokens": 3, "functions": functions, **more})
        check("functions with %s" % more, r[0] == 200
              and "tool_calls" not in json.dumps(r[1]), r[1])
    history = [*TALK, {"role": "assistant", "content": None, "function_call":
                       {"name": "weather", "arguments": "{}"}},
               {"role": "function", "name": "weather", "content": "w9"}]
    as_tools = [*TALK, {"role": "assistant", "content": "", "tool_calls":
                        [{"id": "call00001", "type": "function", "function":
                          {"name": "weather", "arguments": "{}"}}]},
                {"role": "tool", "name": "weather", "content": "w9", "tool_call_id": "call00001"}]
    given = [s.post("/apply-template", {"messages": m, "tools": NESTED})[1]
             for m in (history, as_tools)]
    check("function_call of an earlier turn", given[0] == given[1] and "w9" in given[0]["prompt"],
          given)
    counts = [s.post(CHAT + "/input_tokens", {"messages": TALK, **more})[1].get("input_tokens")
              for more in ({"functions": functions}, {"tools": NESTED}, {})]
    check("functions are counted", counts[0] == counts[1] != counts[2], counts)
    for bad in ({"functions": functions, "tools": NESTED}, {"functions": [{"name": ""}]},
                {"functions": [3]}, {"functions": functions, "function_call": "required"},
                {"functions": functions, "function_call": {"name": "other"}},
                {"functions": functions, "function_call": {}},
                {"functions": functions, "function_call": "auto", "tool_choice": "auto"},
                {"messages": [{"role": "assistant", "function_call": {"name": "x"}}]},
                {"function_call": {"name": "weather"}}):
        status, told, _ = s.post(CHAT, {**body, "max_tokens": 3, **bad})
        check("bad older %s" % str(bad)[:60], status == 400, told)


# Refuses a conversation that ends with "show", with what it has of calls and results.
IDS = ("{% set ns = namespace(s='') %}{% for m in messages %}{% for c in m.tool_calls or [] %}"
       "{% set ns.s = ns.s ~ c.function.name ~ '=' ~ c.id ~ ' ' %}{% endfor %}"
       "{% if m.role == 'tool' %}{% set ns.s = ns.s ~ m.name ~ ':' ~ m.tool_call_id ~ ' ' %}"
       "{% endif %}{% endfor %}{% if messages[-1].content == 'show' %}"
       "{{ raise_exception('<' ~ ns.s ~ '>') }}{% endif %}" + WITHOUT)


def test_ids_of_ollama(model, folder):
    """Results have the ids of their calls, also where the client gives none."""
    def shown(*messages):
        status, a, _ = s.post("/api/chat", {"stream": False, "messages": [
            *TALK, *messages, {"role": "user", "content": "show"}]})
        return re.search("<(.*) >", a["error"])[1] if status == 400 else a

    def calls(*given):
        return {"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": name, "arguments": {}}, **more} for name, more in given]}

    def result(name, **more):
        return {"role": "tool", "content": "w9", "tool_name": name, **more}

    path = os.path.join(folder, "ids.jinja")
    with open(path, "w") as f:
        f.write(IDS)
    with Server(model, "--ctx", "1024", "--chat-template", path) as s:
        own = shown(calls(("f", {"id": "abcdefghi"}), ("g", {"id": "123456789"})),
                    result("g", tool_call_id="123456789"), result("f", tool_call_id="abcdefghi"))
        check("ids of the client's own",
              own == "f=abcdefghi g=123456789 g:123456789 f:abcdefghi", own)
        none = shown(calls(("f", {}), ("g", {})), result("f"), result("g"), {"role": "assistant",
                     "content": "w3"}, calls(("f", {"id": ""})), result("f"))
        check("ids that nobody gave", none == "f=call00000 g=call00001 f:call00000 g:call00001 "
              "f=call00002 f:call00002", none)
        some = shown(calls(("f", {"id": "abcdefghi"})), result("f", tool_call_id=None))
        check("ids of calls alone", some == "f=abcdefghi f:abcdefghi", some)
        lone = shown(calls(("f", {"id": "abcdefghi"})), result("f"), result("f"))
        check("a result of nothing", lone.startswith("f=abcdefghi f:abcdefghi f:")
              and lone.count("abcdefghi") == 2, lone)


def test_allowed_tools(s):
    """Some of the tools alone."""
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}
    tools, one = [other, *NESTED], {"type": "function", "function": {"name": "weather"}}
    body = {"messages": TALK, "tools": tools, "max_tokens": 400, "seed": 5, "verbose": True}

    def choice(mode="required", some=(one,)):
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(some)}}
    for seed in range(3):
        a = s.post(CHAT, {**body, "seed": seed, "tool_choice": choice()})[1]
        calls = a["choices"][0]["message"].get("tool_calls", [])
        check("allowed_tools %d" % seed, [c["function"]["name"] for c in calls] == ["weather"]
              and "other" not in a["__verbose"]["prompt"], a)
    told = events(s.post(CHAT, {**body, "seed": 2, "stream": True, "tool_choice": choice()})[1])
    check("allowed_tools in a stream", told_chat(told)[0][0] == "weather"
          and "".join(told_chat(told)[1]) == calls[0]["function"]["arguments"], told)
    a = s.post(CHAT, {**body, "max_tokens": 3, "tool_choice": choice("auto")})[1]
    same = s.post(CHAT, {**body, "max_tokens": 3, "tools": NESTED, "tool_choice": "auto"})[1]
    check("allowed_tools auto", a["__verbose"]["prompt"] == same["__verbose"]["prompt"]
          and a["choices"] == same["choices"], (a, same))
    flat = [{"type": "function", **t["function"]} for t in tools]
    a = s.post("/v1/responses", {"input": "w5 w6", "tools": flat, "max_output_tokens": 400,
                                 "seed": 5, "tool_choice":
                                 {"type": "allowed_tools", "mode": "required", "tools":
                                  [{"type": "function", "name": "weather"}]}})[1]
    check("allowed_tools of Responses", [o.get("name") for o in a["output"]] == ["weather"], a)
    for bad in (choice("none"), choice(None), choice(some=[]), choice(some=[{"name": "x"}]),
                choice(some=[3]), {"type": "allowed_tools"},
                {"type": "allowed_tools", "allowed_tools": 3}):
        status, a, _ = s.post(CHAT, {**body, "tool_choice": bad})
        check("bad %s" % bad, status == 400 and "tool_choice" in a["error"]["message"], a)


def test_item_before(s):
    """A text that ends where a call begins ends between two steps: many log-probabilities, which
    its deltas have told, come again with the end of the answer alone."""
    flat = {"type": "function", "name": "weather", "parameters": {}}
    call = '{\\"name\\": \\"weather\\", \\"arguments\\": {}}'
    gbnf = 'root ::= ("w" [1-9]){50} "<tool_call>\\n%s\\n</tool_call>"' % call
    for top, again in ((1, True), (20, False)):
        told = events(s.post("/v1/responses", {"input": "w3", "max_output_tokens": 400,
                                               "tools": [flat], "grammar": gbnf, "stream": True,
                                               "top_logprobs": top})[1])
        of = {e["type"]: e for e in told if e.get("output_index", 0) == 0}
        deltas = [t for e in told if e["type"] == "response.output_text.delta"
                  for t in e["logprobs"]]
        item, last = of["response.output_item.done"]["item"], of["response.completed"]["response"]
        ends = [of["response.output_text.done"], of["response.content_part.done"]["part"],
                item["content"][0]]
        check("an item before a call, top %d" % top,
              len(deltas) > 100 and last["output"][0]["content"][0]["logprobs"] == deltas
              and [e["logprobs"] for e in ends] == 3 * [deltas if again else []]
              and [len(e["text"]) for e in ends] == [100] * 3
              and [o["type"] for o in last["output"]] == ["message", "function_call"],
              str([(len(e["logprobs"]), e["text"]) for e in ends])[:300])


def test_kept_calls(s):
    """parse_tool_calls false: a call is text, as it was made."""
    body = {"messages": TALK, "tools": NESTED, "tool_choice": "required", "max_tokens": 400,
            "seed": 3}
    call = s.post(CHAT, body)[1]["choices"][0]["message"]["tool_calls"][0]["function"]
    a = s.post(CHAT, {**body, "parse_tool_calls": False})[1]["choices"][0]
    text = a["message"]["content"]
    check("parse_tool_calls", "tool_calls" not in a["message"] and a["finish_reason"] == "stop"
          and "weather" in text and call["arguments"] in text, a)
    told = events(s.post(CHAT, {**body, "parse_tool_calls": False, "stream": True})[1])
    check("parse_tool_calls in a stream",
          "".join(e["choices"][0]["delta"].get("content") or "" for e in told) == text, told)


def test_documents(model, folder):
    path = os.path.join(folder, "documents.jinja")
    with open(path, "w") as f:
        f.write("{% for d in documents or [] %}[{{ d.title }}|{{ d.text }}]{% endfor %}" + WITHOUT)
    with Server(model, "--ctx", "1024", "--chat-template", path) as s:
        body = {"messages": TALK, "documents": [{"title": "w1", "text": "w2<s>"}, {"text": "w3"}]}
        text = s.post("/apply-template", body)[1]["prompt"]
        check("documents", text.startswith("[w1|w2<s>][|w3]user: w5 w6"), text)
        a = s.post(CHAT, {**body, "max_tokens": 2, "return_token_ids": True})[1]
        check("documents are no control tokens", 1 not in a["prompt_token_ids"], a)
        plain = s.post(CHAT, {"messages": TALK, "max_tokens": 2, "return_token_ids": True})[1]
        begun = [s.post(CHAT, {"messages": TALK, "max_tokens": 2, "return_token_ids": True,
                               "add_special_tokens": on})[1]["prompt_token_ids"]
                 for on in (True, False)]
        check("add_special_tokens of a chat", begun == [[1] + plain["prompt_token_ids"],
                                                        plain["prompt_token_ids"]],
              (begun, plain["prompt_token_ids"]))
        ids = s.post("/tokenize", {"messages": TALK, "return_token_strs": True})[1]
        check("tokens of a conversation", ids["tokens"] == plain["prompt_token_ids"]
              and ids["count"] == len(ids["tokens"]) == len(ids["token_strs"])
              and ids["max_model_len"] == 1024
              and "user:" in "".join(ids["token_strs"]), ids)
        for more in (body, {"messages": TALK, "add_generation_prompt": False},
                     {"messages": [*TALK, {"role": "assistant", "content": "w8"}]},
                     {"messages": TALK, "add_special_tokens": True}):
            ids = s.post("/tokenize", more)[1]["tokens"]
            same = s.post(CHAT, {**more, "max_tokens": 1, "return_token_ids": True})[1]
            check("tokens of %s" % list(more), ids == same["prompt_token_ids"], (ids, same))
        for bad in ({}, {"messages": TALK, "content": "w5"}, {"messages": []}, {"messages": "w5"},
                    {"messages": TALK, "tools": NESTED}, {"content": "w5", "return_token_strs": 3}):
            check("bad tokens of %s" % bad, s.post("/tokenize", bad)[0] == 400)
        for bad in ({"documents": "w2"}, {"documents": 3}, {"add_special_tokens": "x"},
                    {"chat_template": "{{ messages }}"}, {"chat_template": 3}):
            for path in (CHAT, "/apply-template"):
                if path == CHAT or "add_special_tokens" not in bad:
                    r = s.post(path, {"messages": TALK, "max_tokens": 2, **bad}
                               if path == CHAT else {"messages": TALK, **bad})
                    check("bad %s of %s" % (bad, path), r[0] == 400, r[1])


def main():
    test_auto()
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "m.gguf"), "--ctx", "2048", "--layers", "2", "--seed",
                      "5")
        test_native(synth(os.path.join(folder, "n.gguf"), "--ctx", "4096", "--layers", "2",
                          "--seed", "5"))
        test_whole_tools(folder, model)
        test_published(synth(os.path.join(folder, "p.gguf"), "--ctx", "16384", "--seed", "5"))
        with Server(model, "--ctx", "1024") as s:
            test_no_place(s, "no chat template")
        for name, text in (("without", WITHOUT), ("with", WITH), ("silent", SILENT)):
            path = os.path.join(folder, name + ".jinja")
            with open(path, "w") as f:
                f.write(text)
            with Server(model, "--ctx", "1024", "--chat-template", path) as s:
                if text == SILENT:
                    test_schemas(s, False)
                    test_unique(s, False)
                elif text == WITH:
                    test_schemas(s, True)
                    test_unique(s, True)
                    test_place(s)
                    test_cut(s)
                    test_streams(s)
                    test_ids(s)
                    test_older(s)
                    test_item_before(s)
                    test_kept_calls(s)
                    test_allowed_tools(s)
                else:
                    test_no_place(s, "does not use them")
        path = os.path.join(folder, "writes.jinja")
        with open(path, "w") as f:
            f.write(WRITES)
        with Server(model, "--ctx", "1024", "--chat-template", path) as s:
            test_schemas(s, True)
            test_unique(s, True)
            test_begun(s)
        test_members(model, path)
        test_documents(model, folder)
        test_ids_of_ollama(model, folder)


run(main, "test_calls")
