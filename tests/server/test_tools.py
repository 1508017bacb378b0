#!/usr/bin/env python3
"""test_tools.py -- tools as a real model writes them: with the choice left to it, every call that
it begins is returned as a call whose arguments satisfy their schema, and none as text; where no
tool is needed there is an answer. In a stream the same comes, piece by piece."""
import json
import os
import re
import tempfile

from serving import SCALE, Server, at_once, check, events, run, skip

CHAT = "/v1/chat/completions"


def function(name, description, parameters):
    return {"type": "function", "function":
            {"name": name, "description": description, "parameters": parameters}}


def struct(properties, **more):
    return {"type": "object", "properties": properties, "required": sorted(properties),
            "additionalProperties": False, **more}


TEXT = {"type": "string", "maxLength": 24}
WEATHER = function("get_weather", "The weather of a city today",
                   struct({"city": TEXT, "unit": {"enum": ["celsius", "fahrenheit"]}}))
CLOCK = function("get_time", "The time of day in a time zone", struct({"zone": TEXT}))
SUM = function("add", "Adds two whole numbers",
               struct({"a": {"type": "integer", "maximum": 999},
                       "b": {"type": "integer", "maximum": 999}}))
# as Pydantic writes a model that holds others
EVENT = function("create_event", "Puts an event into the calendar",
                 {"$defs": {"Person": {"properties":
                                       {"name": {"maxLength": 16, "title": "Name",
                                                 "type": "string"},
                                        "role": {"$ref": "#/$defs/Role"}},
                                       "required": ["name", "role"], "title": "Person",
                                       "type": "object"}, "Role":
                            {"enum": ["host", "guest"], "title": "Role", "type": "string"}},
                  "properties": {"title": {"maxLength": 24, "title": "Title", "type": "string"},
                                 "people": {"items": {"$ref": "#/$defs/Person"}, "maxItems": 2,
                                            "title": "People", "type": "array"}},
                  "required": ["title", "people"], "title": "Event", "type": "object"})

PLACES = "Paris Oslo Rome Cairo Lima Tokyo Berlin Madrid Dublin Athens".split()
NAMES = "Ann Bob Eve Max Lea Tom Zoe Ian Kim Joe".split()
PROMPTS = ([([WEATHER], "What is the weather in %s, in celsius?" % p) for p in PLACES]
           + [([WEATHER, CLOCK, SUM], t) for p in PLACES[:5]
              for t in ("What time is it in %s?" % p,
                        "What is %d plus %d?" % (len(p) * 17, len(p) * 31))]
           + [([EVENT], "Call create_event for a Lunch with %s as host%s." % (n, m))
              for n, m in zip(NAMES, [" and %s as guest" % m for m in NAMES[5:]] + [" alone"] * 5)]
           + [([WEATHER, CLOCK, SUM], t)
              for t in ("Hello!", "Who are you?", "Tell me a joke.", "Write a haiku about rain.",
                        "What is the capital of France?", "Say yes.", "Name three colours.",
                        "What does HTTP stand for?", "Thank you.", "Translate cat into French.")])


def fits(value, schema, root):
    """Whether a value satisfies a schema of those above."""
    if "$ref" in schema:
        at = root
        for key in schema["$ref"].split("/")[1:]:
            at = at[key]
        return fits(value, at, root)
    if "enum" in schema:
        return value in schema["enum"]
    kind = schema["type"]
    if kind == "integer":
        return type(value) is int and value <= schema["maximum"]
    if kind == "string":
        return isinstance(value, str) and len(value) <= schema["maxLength"]
    if kind == "array":
        return isinstance(value, list) and len(value) <= schema["maxItems"] and all(fits(v,
                    schema["items"], root) for v in value)
    return isinstance(value, dict) and set(value) == set(schema["properties"]) and all(
            fits(value[k], s, root) for k, s in schema["properties"].items())


REASONS = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in "
           "m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}"
           "<|im_end|>\n{% endfor %}{% if tools %}{{ tools | tojson }}{% endif "
           "%}<|im_start|>assistant\n<think>\n")


def test_reasoning(model):
    """In reasoning that the prompt has begun nothing is held: the model says what opens calls, over
    and over."""
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as f:
        f.write(REASONS)
        f.flush()
        with Server(model, "--ctx", "1024", "--chat-template", f.name) as s:
            word = s.post("/tokenize", {"content": "<tool_call>", "parse_special": True})[
                    1]["tokens"]
            ask = {"messages": [{"role": "user", "content": "Hi"}], "tools": [CLOCK],
                   "max_tokens": 20, "temperature": 0}
            a = s.post(CHAT, {**ask, "logit_bias": {str(word[0]): 100}})[1]["choices"][0]["message"]
            check("free in reasoning", json.dumps(a).count("<tool_call>") > 15
                  and not a.get("tool_calls"), a)


def streamed(raw):
    """What a stream comes to: text, [name, arguments] of its calls, why it ended, the most pieces
    that one call's arguments had."""
    said, calls, pieces, reason = "", [], [], None
    for e in events(raw):
        for choice in e.get("choices", []):
            delta = choice["delta"]
            said += delta.get("content") or ""
            reason = choice.get("finish_reason") or reason
            for c in delta.get("tool_calls", []):
                if c["index"] == len(calls):
                    calls.append([c["function"]["name"], ""])
                    pieces.append(0)
                more = c["function"].get("arguments", "")
                calls[c["index"]][1] += more
                pieces[c["index"]] += more != ""
    return said, calls, reason, max(pieces, default=0)


def whole(told):
    """The same of an answer that comes at once."""
    choice = told["choices"][0]
    calls = [[c["function"]["name"], c["function"]["arguments"]]
             for c in choice["message"].get("tool_calls", [])]
    return choice["message"].get("content") or "", calls, choice.get("finish_reason"), 0


# of each ten, those that are asked for both ways
BOTH = 1 if SCALE < 100 else 10


def main():
    model = os.environ.get("TEST_INSTRUCT")
    if not model or SCALE < 10:
        skip("calls of a real model",
             "scripts/instruct.sh has not fetched the model" if SCALE >= 10
             else "at TEST_SCALE=10, with the instruct model")
        return
    # every second comes as a stream; one of each ten first: the others find its tools read
    jobs = [(i, stream) for i in range(len(PROMPTS)) for stream in (False, True)
            if stream == i % 2 or i % 10 < BOTH]
    jobs.sort(key=lambda job: (job[0] % 10 > 0, job[1]))
    n_lead = len({i for i, _ in jobs if i % 10 == 0})
    with Server(model, "--ctx", "8192", "--parallel", "64") as s:
        def ask(i, stream):
            tools, text = PROMPTS[i]
            return lambda: s.post(CHAT, {"messages": [{"role": "user", "content": text}],
                                         "tools": tools, "max_tokens": 80, "temperature": 0,
                                         "stream": stream})

        answers = [a for part in (jobs[:n_lead], jobs[n_lead:])
                   for a in at_once([ask(*job) for job in part])]
    test_reasoning(model)
    called, seen = [set(), set(), set(), set()], {}
    for (i, stream), (status, told, _) in zip(jobs, answers):
        tools, text = PROMPTS[i]
        schemas = {t["function"]["name"]: t["function"]["parameters"] for t in tools}
        said, calls, reason, most = (("", [], status, 0) if status != 200
                                     else streamed(told) if stream else whole(told))
        calls = [(n, json.loads(a)) for n, a in calls]
        begun = re.search(r'<tool_call>|"name"\s*:\s*"(%s)"' % "|".join(schemas), said)
        name = "%s %d" % ("stream" if stream else "answer", i)
        check(name, (calls or said) and not begun and (most > 2 or not stream or not calls)
              and all(n in schemas and fits(v, schemas[n], schemas[n]) for n, v in calls),
              (text, told))
        check("end of " + name, reason == ("tool_calls" if calls else "stop"), (text, told))
        if calls:
            called[i // 10].add(i)
        other = seen.setdefault(i, (said, calls, reason))
        check("both ways %d" % i, other == (said, calls, reason), (told, other))
    check("all are asked", len(seen) == 40, len(seen))
    check("there are calls", min(map(len, called[:3])) >= 8 and len(called[3]) < 5, called)


run(main, "test_tools")
