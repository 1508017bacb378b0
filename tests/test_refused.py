#!/usr/bin/env python3
"""test_refused.py -- bodies that are wrong, and what they are told: the field, what was found, what was wanted; in the shape of the interface that was
asked. And what looks wrong and is taken: fields that are null, hints of other servers, OpenAI's older and newer names."""
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
    for path, more in (("/v1/chat/completions", {"max_tokens": 1}), ("/apply-template", {}), ("/api/chat", {"stream": False, "options": {"num_predict": 1}}), ("/v1/responses", {"max_output_tokens": 1})):
        field = "input" if path == "/v1/responses" else "messages"
        for role in ("bot", "Assistant", ""):
            refused(s, "role_%s_%s" % (role, path), path, {field: [{"role": role, "content": "LOST"}], **more}, 'role is "%s"' % role, "wanted system, developer, user, assistant or tool")
    for role, known in (("developer", "system"), ("function", "tool"), ("tool", "tool"), ("assistant", "assistant")):
        a = taken(s, "role_" + role, "/apply-template", {"messages": [{"role": role, "content": "kept"}]})
        check("role_%s_is_kept" % role, a.get("prompt", "").startswith(known + ": kept"), a)


def test_null(s):
    taken(s, "null_fields", "/v1/chat/completions", {**CHAT, "functions": None, "audio": None, "nothing_of_that_name": None})
    taken(s, "null_fields_anthropic", "/v1/messages", {**CHAT, "container": None, "mcp_servers": None})


def test_others_fields(s):
    """What the clients' signatures offer."""
    for name, value in (("modalities", ["text"]), ("prediction", {"type": "content", "content": "w3"}), ("stream_options", {"include_obfuscation": False})):
        taken(s, "openai_" + name, "/v1/chat/completions", {**CHAT, name: value})
    for name, value, *words in (("modalities", ["text", "audio"], "modalities[1]", "text alone"), ("functions", [{"name": "f"}], "send tools"), ("function_call", "auto", "send tool_choice"),
                                ("audio", {"voice": "x"}, "text alone"), ("stream_options", {"foo": 1}, 'stream_options: there is no field "foo"'),
                                ("tools", [{"type": "function"}], "tools[0].function.name is missing"), ("tools", [{"type": "function", "function": {"name": ""}}], "is empty")):
        refused(s, "openai_%s_refused" % name, "/v1/chat/completions", {**CHAT, name: value}, *words)
    for name, value in (("inference_geo", "eu"), ("context_management", {"edits": []})):
        taken(s, "anthropic_" + name, "/v1/messages", {**CHAT, name: value})
    refused(s, "anthropic_container", "/v1/messages", {**CHAT, "container": "c"}, "container is not supported")
    flags = ("numa", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mlock", "embedding_only", "penalize_newline")
    options = {**{f: False for f in flags}, "tfs_z": 1.0, "num_gpu": 1, "num_predict": 1}
    taken(s, "ollama_options", "/api/chat", {"messages": TALK, "stream": False, "options": options})
    refused(s, "ollama_options_refused", "/api/chat", {"messages": TALK, "options": {"low_ram": True}}, 'options: there is no field "low_ram"')


def test_shapes(s):
    """Paths and methods that are not there, as the interface's own clients read errors."""
    for method, path, status in (("GET", "/api/chat", 405), ("DELETE", "/api/chat", 405), ("POST", "/api/pull", 404), ("DELETE", "/api/delete", 404)):
        got, a, _ = s.ask(method, path)
        check("ollama_shape_%s_%s" % (method, path), got == status and isinstance(a["error"], str), (got, a))
    for method, path, status in (("GET", "/v1/messages", 405), ("POST", "/v1/messages/batches", 404)):
        got, a, _ = s.ask(method, path)
        check("anthropic_shape_%s_%s" % (method, path), got == status and a.get("type") == "error" and a["error"]["message"], (got, a))
    got, a, _ = s.ask("GET", "/v1/nothing")
    check("openai_shape", got == 404 and "type" not in a and a["error"]["type"] == "not_found_error", (got, a))
    got, a, _ = s.ask("GET", "/api/nothing", headers={"Host": "evil.example"})
    check("ollama_shape_of_a_host", got == 403 and isinstance(a["error"], str), (got, a))


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "m.gguf"), "--ctx", "256", "--layers", "2", "--seed", "5")
        with Server(model, "--ctx", "192") as s:
            test_roles(s)
            test_null(s)
            test_others_fields(s)
            test_shapes(s)


run(main, "test_refused")
