#!/usr/bin/env python3
"""test_calls.py -- calls of tools over HTTP, in all interfaces: tools that no prompt would hold are refused, and a call that is cut short shows
none of the model's markup."""
import json
import os
import tempfile

from serving import Server, check, run, synth

WITHOUT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
WITH = "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}" + WITHOUT
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "minLength": 24, "maxLength": 24}, "n": {"enum": [[1, -2.5e3, True, {"a\n": None}]]}},
          "required": ["city", "n"], "additionalProperties": False}
NESTED = [{"type": "function", "function": {"name": "weather", "description": "w1", "parameters": SCHEMA}}]
TALK = [{"role": "user", "content": "w5 w6"}]
CHAT = "/v1/chat/completions"


def asked(tools=True):
    """A body for each endpoint that takes tools."""
    flat = {"type": "function", "name": "weather", "parameters": SCHEMA}
    bodies = {CHAT: ({"messages": TALK, "max_tokens": 3}, NESTED), "/apply-template": ({"messages": TALK}, NESTED), "/api/chat": ({"messages": TALK, "stream": False, "options": {"num_predict": 3}}, NESTED),
              "/v1/responses": ({"input": "w5", "max_output_tokens": 3}, [flat]), "/v1/messages": ({"messages": TALK, "max_tokens": 3}, [{"name": "weather", "input_schema": SCHEMA}]),
              "/v1/messages/count_tokens": ({"messages": TALK}, [{"name": "weather", "input_schema": SCHEMA}])}
    return {path: {**body, **({"tools": t} if tools else {})} for path, (body, t) in bodies.items()}


def test_no_place(s, why):
    for path, body in asked().items():
        status, told, _ = s.post(path, body)
        check("refused " + path, status == 400 and why in json.dumps(told) and "tools" in json.dumps(told), told)
        check("without " + path, s.post(path, asked(False)[path])[0] == 200 == s.post(path, {**body, "tools": []})[0])
    check("refused when required", s.post(CHAT, {**asked()[CHAT], "tool_choice": "required"})[0] == 400)
    check("tools that may not be called", s.post(CHAT, {**asked()[CHAT], "tool_choice": "none"})[0] == 200)
    check("show", "tools" not in s.post("/api/show", {})[1]["capabilities"])


def test_place(s):
    for path, body in asked().items():
        check("taken " + path, s.post(path, body)[0] == 200)
    check("show with tools", "tools" in s.post("/api/show", {})[1]["capabilities"])


def test_cut(s):
    for n in (1, 2, 5, 9, 14, 30, 60):
        a = s.post(CHAT, {"messages": TALK, "tools": NESTED, "tool_choice": "required", "max_tokens": n, "seed": n})[1]["choices"][0]
        check("cut %d" % n, a["finish_reason"] in ("length", "tool_calls") and not a["message"]["content"] and "tool_call>" not in json.dumps(a), a)


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "m.gguf"), "--ctx", "2048", "--layers", "2", "--seed", "5")
        with Server(model, "--ctx", "1024") as s:
            test_no_place(s, "no chat template")
        for name, text in (("without", WITHOUT), ("with", WITH)):
            path = os.path.join(folder, name + ".jinja")
            with open(path, "w") as f:
                f.write(text)
            with Server(model, "--ctx", "1024", "--chat-template", path) as s:
                if text == WITH:
                    test_place(s)
                    test_cut(s)
                else:
                    test_no_place(s, "does not use them")


run(main, "test_calls")
