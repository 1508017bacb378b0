"""test_serve_schema.py -- schemas by way of the server: what has one text only is answered with
that text, as 'pith grammar' takes it, so that no number is changed between the body of a request
and the grammar; what is refused there is refused here, with the same words."""
import json
import os
import tempfile

from report import jsonl
from serving import Server, check, run, synth

# a schema and the only text under it
# 2^53 + 1: no double
ONE_TEXT = [({"const": 123456789012345}, "123456789012345"),
            ({"const": -999999999999999}, "-999999999999999"),
            ({"const": 9007199254740993}, "9007199254740993"),
            ({"const": 9223372036854775807}, "9223372036854775807"),
            ({"type": "integer", "minimum": 123456789012345, "maximum": 123456789012345},
             "123456789012345"), ({"type": "integer", "exclusiveMinimum": 999999999999998,
                                   "exclusiveMaximum": 1000000000000000}, "999999999999999"),
            ({"type": "integer", "minimum": 16.9, "maximum": 17.1}, "17"), ({"const": 0.1}, "0.1"),
            ({"const": 1234567.12345678}, "1234567.12345678"),
            ({"enum": [{"n": 123456789012345, "x": [0.3, -2.5]}]},
             '{"n":123456789012345,"x":[0.3,-2.5]}'), ({"const": "é \"\\/"}, '"é \\"\\\\/"'),]
REFUSED = [{"type": "string", "pattern": "(a"}, {"type": "number", "nonsense": 1},
           {"type": "integer", "multipleOf": 0}, {"$ref": "#/$defs/x"},
           {"type": "object", "maxProperties": 99999999999999}]


def ask(s, schema):
    body = {"messages": [{"role": "user", "content": "w9"}], "max_tokens": 200, "temperature": 1.5,
            "seed": 4, "response_format":
            {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}
    return s.post("/v1/chat/completions", body)


def test(folder):
    with Server(synth(os.path.join(folder, "model.gguf"), "--arch", "llama")) as s:
        taken = jsonl(["grammar", "--jsonl"],
                      [{"schema": schema, "text": text} for schema, text in ONE_TEXT])
        for i, ((schema, text), a) in enumerate(zip(ONE_TEXT, taken)):
            status, answer, _ = ask(s, schema)
            said = answer["choices"][0]["message"]["content"] if status == 200 else answer
            check("one_text_%d" % i, a == {"accept": True} and isinstance(said, str)
                  and said == text, (schema, a, said))
        for i, (schema, a) in enumerate(zip(REFUSED,
                                            jsonl(["grammar", "--jsonl"],
                                                  [{"schema": schema, "text": ""}
                                                   for schema in REFUSED]))):
            status, answer, _ = ask(s, schema)
            told = answer["error"]["message"] if status == 400 else answer
            check("refused_%d" % i, "invalid" in a and a["invalid"] in told, (schema, a, told))


def bodies(schema, strict=None):
    """Every field that a schema can be given by: path -> (body, the text of an answer)."""
    talk, more = [{"role": "user", "content": "w9"}], {} if strict is None else {"strict": strict}
    named = {"name": "s", "schema": schema, **more}
    return {
        "/v1/chat/completions": (
            {"messages": talk, "max_tokens": 400, "response_format":
             {"type": "json_schema", "json_schema": named}},
            lambda a: a["choices"][0]["message"]["content"]),
        "/v1/completions": ({"prompt": "w9", "max_tokens": 400, "guided_json": schema},
                            lambda a: a["choices"][0]["text"]),
        "/completion": ({"prompt": "w9", "n_predict": 400, "json_schema": schema},
                        lambda a: a["content"]),
        "/v1/responses": ({"input": "w9", "max_output_tokens": 400,
                           "text": {"format": {"type": "json_schema", **named}}},
                          lambda a: a["output"][-1]["content"][0]["text"]),
        "/v1/messages": ({"messages": talk, "max_tokens": 400, "output_config":
                          {"format": {"type": "json_schema", "schema": schema}}},
                         lambda a: a["content"][0]["text"]),
        "/api/chat": ({"messages": talk, "stream": False, "format": schema,
                       "options": {"num_predict": 400}}, lambda a: a["message"]["content"])}


def list_of(**items):
    return {"type": "object", "properties": {"a": {"type": "array", "items": items, "minItems": 3,
                                                   "maxItems": 3, "uniqueItems": True}},
            "required": ["a"]}


def test_unique(s):
    """Items differ, or the schema is refused with the place, whoever asks and however strictly."""
    for strict in (True, False, None):
        for path, (body, _) in bodies(list_of(type="array"), strict).items():
            status, a, _ = s.post(path, body)
            check("unique lists %s %s" % (strict, path), status == 400
                  and "#/properties/a/uniqueItems" in json.dumps(a), a)
    for name, items in (("letters", {"type": "string", "maxLength": 1}),
                        ("digits", {"type": "integer", "minimum": 0, "maximum": 99}),
                        ("few", {"enum": [1, 2, "3"]})):
        for path, (body, text) in bodies(list_of(**items)).items():
            status, a, r = s.post(path, {**body, "temperature": 1, "seed": 5}
                                  if path != "/api/chat" else body)
            said = json.loads(text(a))["a"] if status == 200 else a
            check("unique %s %s" % (name, path), status == 200 and len(said) == 3
                  and len(set(said)) == 3 and r.getheader("x-pith-ignored") is None, (said, a))


def test_annotations(s):
    """What a schema says of values, and is no constraint, is taken and named."""
    said = {"type": "object", "properties": {
        "a": {"type": "string", "format": "color", "maxLength": 3, "errorMessage": "b"},
        "b": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 9},
        "c": {"type": "string", "contentEncoding": "base64", "maxLength": 3}},
        "required": ["a", "b", "c"], "additionalProperties": False}
    held = {"type": "string", "format": "date"}
    for strict in (True, False, None):
        for path, (body, text) in bodies(said, strict).items():
            status, a, r = s.post(path, body)
            check("annotations %s %s" % (strict, path), status == 200
                  and set(json.loads(text(a))) == {"a", "b", "c"}
                  and set((r.getheader("x-pith-ignored") or "").split(", "))
                  == {"format color", "format int32", "contentEncoding",
                      "errorMessage"}, (a, r.getheaders()))
    for path, (body, _) in bodies(held).items():
        status, a, r = s.post(path, body)
        check("a format that is held " + path, status == 200
              and r.getheader("x-pith-ignored") is None, (a, r.getheaders()))


def test_nothing_around(s):
    """The value alone: what ends it is the end token, not white space up to the limit."""
    for name, schema in (("number", {"type": "number"}), ("enum", {"enum": ["a", 1, None]}),
                         ("list", {"type": "array", "items": {"type": "integer"}, "maxItems": 2}),
                         ("object", {"type": "object", "properties": {"a": {"const": 1}}})):
        for path, (body, text) in bodies(schema).items():
            status, a, _ = s.post(path, body)
            said = text(a) if status == 200 else ""
            json.loads(said or "0")  # raises where it is none
            check("nothing around a %s %s" % (name, path), said and said == said.strip()
                  and '"length"' not in json.dumps(a), a)


def decimals():
    """A schema as Pydantic writes it of a Decimal, and one as Zod does of an address."""
    return {"type": "object", "properties": {
        "price": {"anyOf": [{"type": "number"},
                            {"type": "string", "pattern":
                             "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$", "maxLength": 9}]},
        "email": {"type": "string", "maxLength": 20, "format": "email", "pattern":
                  "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@"
                  "([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$"}},
        "required": ["price", "email"], "additionalProperties": False}


NULLS = {"type": "object", "properties": {"a": {"type": "integer", "enum": None, "items": None,
                                                "minimum": 0, "maximum": 9}},
         "required": ["a"], "additionalProperties": False, "$defs": None, "anyOf": None}
NOTHING_SET = {"type": "object", "properties": None, "required": None}


def test_as_written(s):
    """What common writers of schemas write is taken: look-aheads, a format beside its pattern,
    keywords that are null because they were not set."""
    for name, schema in (("decimals", decimals()), ("null", NULLS)):
        for path, (body, text) in bodies(schema).items():
            status, a, r = s.post(path, body)
            check("%s as written %s" % (name, path), status == 200
                  and set(json.loads(text(a))) == set(schema["properties"])
                  and r.getheader("x-pith-ignored") is None, (a, r.getheaders()))


TEMPLATE = ("{% for t in tools or [] %}{% for n in t.function.parameters.properties %}{{ n }}"
            "{% endfor %}{{ t | tojson }}{% endfor %}<tool_call>{% for m in messages %}"
            "{{ m.content }}{% endfor %}")


def test_tools_as_written(s):
    tools = [{"type": "function", "function": {"name": "f%d" % i, "parameters": p}}
             for i, p in enumerate((decimals(), NULLS, NOTHING_SET))]
    for choice in ("auto", "required", {"type": "function", "function": {"name": "f2"}}):
        status, a, _ = s.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "w9"}], "max_tokens": 300, "tools": tools,
            "tool_choice": choice})
        calls = a["choices"][0]["message"].get("tool_calls") if status == 200 else None
        check("tools as written %s" % choice, status == 200 and (calls or choice == "auto"), a)


def main():
    with tempfile.TemporaryDirectory() as folder:
        test(folder)
        with Server(synth(os.path.join(folder, "model.gguf"), "--arch", "llama")) as s:
            test_unique(s)
            test_annotations(s)
            test_nothing_around(s)
            test_as_written(s)
        path = os.path.join(folder, "template")
        with open(path, "w") as f:
            f.write(TEMPLATE)
        with Server(synth(os.path.join(folder, "model.gguf"), "--arch", "llama"), "--ctx", "2048",
                    "--chat-template", path) as s:
            test_tools_as_written(s)


run(main, "test_serve_schema")
