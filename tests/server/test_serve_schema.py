"""test_serve_schema.py -- schemas by way of the server: what has one text only is answered with
that text, as 'pith grammar' takes it, so that no number is changed between the body of a request
and the grammar; what is refused there is refused here, with the same words."""
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
                  and said.strip() == text, (schema, a, said))
        for i, (schema, a) in enumerate(zip(REFUSED,
                                            jsonl(["grammar", "--jsonl"],
                                                  [{"schema": schema, "text": ""}
                                                   for schema in REFUSED]))):
            status, answer, _ = ask(s, schema)
            told = answer["error"]["message"] if status == 400 else answer
            check("refused_%d" % i, "invalid" in a and a["invalid"] in told, (schema, a, told))


def test_strict(folder):
    """What cannot be kept is refused with its place where the format is strict."""
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"},
                                                     "uniqueItems": True, "maxItems": 2}}}
    few = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}
    with Server(synth(os.path.join(folder, "model.gguf"), "--arch", "llama")) as s:
        for strict, schema_, status in ((True, schema, 400), (False, schema, 200),
                                        (None, schema, 200), (True, few, 200)):
            more = {} if strict is None else {"strict": strict}
            got = [s.post("/v1/chat/completions",
                          {"messages": [{"role": "user", "content": "w9"}], "max_tokens": 40,
                           "response_format": {"type": "json_schema", "json_schema":
                                               {"name": "s", "schema": schema_, **more}}}),
                   s.post("/v1/responses",
                          {"input": "w9", "max_output_tokens": 40, "text":
                           {"format": {"type": "json_schema", "name": "s", "schema": schema_,
                                       **more}}})]
            check("strict %s %d" % (strict, status), all(g[0] == status for g in got)
                  and (status == 200 or all("#/properties/a/uniqueItems" in
                                            g[1]["error"]["message"] for g in got)), got)


def main():
    with tempfile.TemporaryDirectory() as folder:
        test(folder)
        test_strict(folder)


run(main, "test_serve_schema")
