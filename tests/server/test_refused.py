#!/usr/bin/env python3
"""test_refused.py -- bodies that are wrong, and what they are told: the field, what was found, what
was wanted; in the shape of the interface that was asked. And what looks wrong and is taken:
fields that are null, hints of other servers, OpenAI's older and newer names."""
import os
import tempfile

from serving import Server, check, run, synth

TALK = [{"role": "user", "content": "w3"}]
CHAT = {"messages": TALK, "max_tokens": 1}


def said(answer):
    e = answer.get("error", "")
    return e["message"] if isinstance(e, dict) else e


def refused(s, name, path, body, *words, status=400):
    got, a, _ = s.post(path, body)
    check(name, got == status and all(w in said(a) for w in words), (got, a))


def taken(s, name, path, body):
    got, a, _ = s.post(path, body)
    check(name, got == 200, (got, a))
    return a


def test_roles(s):
    for path, more in (("/v1/chat/completions", {"max_tokens": 1}), ("/apply-template", {}),
                       ("/api/chat", {"stream": False, "options": {"num_predict": 1}}),
                       ("/v1/responses", {"max_output_tokens": 1})):
        field = "input" if path == "/v1/responses" else "messages"
        for role in ("bot", "Assistant", ""):
            refused(s, "role_%s_%s" % (role, path), path,
                    {field: [{"role": role, "content": "LOST"}], **more}, 'role is "%s"' % role,
                    "wanted system, developer, user, assistant or tool")
    for role, known in (("developer", "system"), ("function", "tool"), ("tool", "tool"),
                        ("assistant", "assistant")):
        a = taken(s, "role_" + role, "/apply-template",
                  {"messages": [{"role": role, "content": "kept"}],
                   "continue_final_message": False})
        check("role_%s_is_kept" % role, a.get("prompt", "").startswith(known + ": kept"), a)


def test_null(s):
    taken(s, "null_fields", "/v1/chat/completions",
          {**CHAT, "functions": None, "audio": None, "nothing_of_that_name": None})
    taken(s, "null_fields_anthropic", "/v1/messages",
          {**CHAT, "container": None, "mcp_servers": None})


def test_others_fields(s):
    """What the clients' signatures offer."""
    for name, value in (("modalities", ["text"]),
                        ("prediction", {"type": "content", "content": "w3"}),
                        ("stream_options", {"include_obfuscation": False})):
        taken(s, "openai_" + name, "/v1/chat/completions", {**CHAT, name: value})
    for name, value, *words in (("modalities", ["text", "audio"], "modalities[1]", "text alone"),
                                ("functions", [{}], "functions[0].name is missing"),
                                ("function_call", "maybe", "wanted auto, none"),
                                ("function_call", {"name": ""}, "an object with a name"),
                                ("chat_template", "{{ x }}", "control tokens"),
                                ("documents", [{"text": "w3"}], "does not use them"),
                                ("documents", "w3", "wanted a list"),
                                ("reasoning_format", "other", "wanted none, auto"),
                                ("audio", {"voice": "x"}, "text alone"),
                                ("stream_options", {"include_usag": 1},
                                 'stream_options: there is no field "include_usag"'),
                                ("tools", [{"type": "function"}],
                                 "tools[0].function.name is missing"),
                                ("tools", [{"type": "function", "function": {"name": ""}}],
                                 "is empty")):
        refused(s, "openai_%s_refused" % name, "/v1/chat/completions", {**CHAT, name: value},
                *words)
    for name, value in (("inference_geo", "eu"), ("context_management", {"edits": []})):
        taken(s, "anthropic_" + name, "/v1/messages", {**CHAT, name: value})
    refused(s, "anthropic_container", "/v1/messages", {**CHAT, "container": "c"},
            "container is not supported")
    flags = ("numa", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mlock",
             "embedding_only", "penalize_newline")
    options = {**{f: False for f in flags}, "tfs_z": 1.0, "num_gpu": 1, "num_predict": 1}
    taken(s, "ollama_options", "/api/chat", {"messages": TALK, "stream": False, "options": options})
    refused(s, "ollama_options_refused", "/api/chat",
            {"messages": TALK, "options": {"low_ram": True}},
            'options: there is no field "low_ram"')


def test_damaged(s):
    """What is no JSON, and what is JSON that cannot be taken."""
    for name, raw, *words in (("empty", b"", "the body is empty"),
                              ("blank", b" \n", "the body is empty"),
                              ("a_list", b"[]", "the body is a list, wanted an object"),
                              ("a_number", b"3", "the body is 3"),
                              ("cut", b'{"prompt": "a', "is not JSON: line 1"),
                              ("twice", b'{"seed": 1, "seed": 2}', "a field twice", '"seed"'),
                              ("a_large_seed", b'{"prompt": "w3", "seed": 18446744073709551615}',
                               "seed is too large", "18446744073709551615"),
                              ("a_large_number", b'{"prompt": [1, 18446744073709551615]}',
                               "a number is too large"),
                              ("a_large_exponent", b'{"prompt": "w3", "temperature" : 1e999}',
                               "temperature is too large")):
        refused(s, "body_" + name, "/v1/completions", raw, *words)


def test_found(s):
    """What was found, and what was wanted."""
    tool = {"type": "function", "function": {"name": "f"}}
    schema = {"type": "json_schema", "json_schema": {"schema": {"type": "intt"}}}
    for field, value, *words in (("max_tokens", 1.5, "is 1.5, wanted an integer"),
                                 ("temperature", "hot", 'is "hot", wanted a number'),
                                 ("stop", [3], "stop[0] is 3"),
                                 ("response_format", {"type": "xml"},
                                  'response_format.type is "xml", wanted text, json_object or '
                                  'json_schema'), ("response_format", {}, "type is missing"),
                                 ("response_format", schema, "#/type", '"intt"'),
                                 ("logit_bias", {"5": 101}, "token 5 is 101, wanted"),
                                 ("logit_bias", {"5": "x"}, 'token 5 is "x"'),
                                 ("dry_sequence_breakers", [3], "[0] is 3"),
                                 ("messages", [{"role": "user", "content": 5}],
                                  "messages[0].content is 5, wanted a text or a list of parts"),
                                 ("messages", [{"role": "user", "content": None}],
                                  "content is null"), ("messages", [{"role": "user"}],
                                                       "content is missing"),
                                 ("messages", [{"role": 5}], "role is 5"),
                                 ("max_token", 1, 'no field "max_token"',
                                  'did you mean "max_tokens"?')):
        refused(s, "found_%s" % field, "/v1/chat/completions", {**CHAT, field: value}, *words)
    refused(s, "found_tool_choice", "/v1/chat/completions",
            {**CHAT, "tools": [tool], "tool_choice": "any"}, 'tool_choice is "any", wanted auto')
    refused(s, "found_tool_choice_anthropic", "/v1/messages",
            {**CHAT, "tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "all"}},
            'tool_choice.type is "all", wanted auto')
    refused(s, "found_role_responses", "/v1/responses",
            {"instructions": "w3", "input":
             [{"role": "user", "content": "w3"}, {"role": "bot", "content": "a"}]},
            'input[1].role is "bot", wanted system')
    refused(s, "found_role_anthropic", "/v1/messages",
            {**CHAT, "messages": [{"role": "bot", "content": "a"}]}, 'role is "bot", wanted user')
    refused(s, "found_format", "/api/chat", {"messages": TALK, "format": "xml"},
            'format is "xml", wanted "json" or a schema')
    refused(s, "found_think", "/api/chat", {"messages": TALK, "think": "much"},
            'think is "much", wanted true')
    refused(s, "found_options", "/api/chat", {"messages": TALK, "options": {"num_predic": 1}},
            "options: ", 'did you mean "num_predict"?')
    refused(s, "found_prompt", "/v1/completions", {"prompt": 3},
            "prompt is 3, wanted a text or a list")
    refused(s, "found_input", "/v1/responses", {"input": 3}, "input is 3, wanted a text or a list")


def test_shapes(s):
    """Paths and methods that are not there, as the interface's own clients read errors."""
    for method, path, status in (("GET", "/api/chat", 405), ("DELETE", "/api/chat", 405),
                                 ("POST", "/api/pull", 404), ("DELETE", "/api/delete", 404)):
        got, a, _ = s.ask(method, path)
        check("ollama_shape_%s_%s" % (method, path), got == status and isinstance(a["error"], str),
              (got, a))
    for method, path, status in (("GET", "/v1/messages", 405),
                                 ("POST", "/v1/messages/batches", 404)):
        got, a, _ = s.ask(method, path)
        check("anthropic_shape_%s_%s" % (method, path),
              got == status and a.get("type") == "error" and a["error"]["message"], (got, a))
    got, a, _ = s.ask("GET", "/v1/nothing")
    check("openai_shape", got == 404 and "type" not in a
          and a["error"]["type"] == "not_found_error", (got, a))
    got, a, _ = s.ask("GET", "/api/nothing", headers={"Host": "evil.example"})
    check("ollama_shape_of_a_host", got == 403 and isinstance(a["error"], str), (got, a))


def test_encoder(s):
    """A model whose encoder reads the prompt: every endpoint that makes text says that it is not
    served, by name; the rest of the server works."""
    for path, body in (("/v1/completions", {"prompt": "a b"}), ("/completion", {"prompt": "a"}),
                       ("/v1/chat/completions", CHAT),
                       ("/api/generate", {"model": "t5", "prompt": "a", "stream": False})):
        status, a, _ = s.post(path, body)
        check("encoder_refused_" + path, status == 400 and "has an encoder" in str(a), (status, a))
    status, a, _ = s.post("/v1/completions", {"prompt": "a"})
    check("encoder_named", a["error"]["type"] and "t5" in a["error"]["message"], a)
    check("encoder_tokens", s.post("/tokenize", {"content": "a"})[0] == 200)
    check("encoder_models", s.get("/v1/models")[0] == 200)


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "m.gguf"), "--ctx", "256", "--layers", "2", "--seed",
                      "5")
        with Server(model, "--ctx", "192") as s:
            test_roles(s)
            test_null(s)
            test_others_fields(s)
            test_shapes(s)
            test_damaged(s)
            test_found(s)
        with Server(synth(os.path.join(folder, "t5.gguf"), "--arch", "t5")) as s:
            test_encoder(s)


run(main, "test_refused")
