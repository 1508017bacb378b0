#!/usr/bin/env python3
"""test_client_bodies.py -- what clients send, against what they read of the answer: a request for
each row of tests/data/clients.json. The bodies are of our own writing, their forms those of the
clients' public sources. A random model answers; where a client waits for a call, tool_choice
makes one.

A row: client, what, on (the server: none, "fim" with tokens for filling in, "embed"), method,
path, headers, body, expect. Of expect: status; has: members of the answer by their path
("choices.0.text": a value, or its kind as "<int>"); only: these members and no others;
headers_have: what headers hold; ignored: what x-pith-ignored names; stream: its form (data,
event, lines), the order of its events' names, some: members that one event has, last: what its
last data is."""
import json
import os
import re
import sys
import tempfile

from serving import Server, check, guard, run, synth

TEMPLATE = """{%- if tools %}tools: {{ tools | tojson }}
Answer with <tool_call>.
{% endif %}{%- for m in messages %}{{ m.role }}: {{ m.content }}
{%- for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments | tojson }}</tool_call>{% \
endfor %}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DATA = os.path.join(HERE, "data", "clients.json")
PAGE = os.path.join(HERE, "..", "docs", "compatibility.md")
CLIENTS = ["Open WebUI", "SillyTavern", "Continue", "Cline", "aider", "LiteLLM", "LangChain",
           "Claude Code", "Codex", "llama.vim", "Vercel SDK"]


def is_json(v):
    try:
        return isinstance(json.loads(v), dict)
    except (TypeError, ValueError):
        return False


KINDS = {"<int>": lambda v: type(v) is int, "<number>": lambda v: type(v) in (int, float),
         "<text>": lambda v: isinstance(v, str), "<list>": lambda v: isinstance(v, list),
         "<object>": lambda v: isinstance(v, dict), "<json>": is_json}


def at(v, path):
    """The member of a tree; a key may hold what divides paths."""
    for key in path.split("."):
        v = v[int(key)] if isinstance(v, list) else v[key]
    return v


def lacks(tree, wanted):
    """The first member that is not as wanted; None: all are."""
    for path, value in wanted.items():
        try:
            found = at(tree, path)
        except (KeyError, IndexError, TypeError, ValueError):
            return path + " is missing"
        good = (KINDS[value](found) if isinstance(value, str) and value in KINDS else found == value
                and type(found) is type(value))
        if not good:
            return "%s is %r, wanted %r" % (path, found, value)
    return None


def in_order(names, wanted):
    """Each name behind the one before it, others between them; the last one ends it."""
    rest = iter(names)
    return all(any(n == w for n in rest) for w in wanted)


def stream_fault(raw, wanted):
    text = raw.decode()
    if wanted["form"] == "lines":
        found = [json.loads(line) for line in text.splitlines()]
    else:
        data = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
        if "last" in wanted and data[-1:] != [wanted["last"]]:
            return "the last data is %s" % data[-1:]
        found = [json.loads(d) for d in data if d.startswith("{")]
    if wanted["form"] == "event":
        names = [line[7:] for line in text.split("\n") if line.startswith("event: ")]
        if names != [e["type"] for e in found]:
            return "names are not types: %s" % names
        if not in_order(names, wanted["order"]):
            return "events are %s" % names
    for some in wanted["some"]:
        if all(lacks(e, some) for e in found):
            return "no event has %s: %s" % (some, text[-300:])
    return None if found else "no events"


def fault(row, status, answer, response):
    """What a client would stumble over; None: nothing."""
    want = row["expect"]
    ignored = response.getheader("x-pith-ignored") or ""
    if status != want["status"]:
        return "status %d, wanted %d: %s" % (status, want["status"], answer)
    for name, value in want.get("headers_have", {}).items():
        if value not in (response.getheader(name) or ""):
            return "header %s is %s, wanted %s" % (name, response.getheader(name), value)
    if ignored != ", ".join(want.get("ignored", [])):
        return "x-pith-ignored is %s" % ignored
    if "stream" in want:
        return (stream_fault(answer, want["stream"]) if isinstance(answer, bytes)
                else "no stream: %s" % answer)
    if "only" in want and sorted(answer) != sorted(want["only"]):
        return "members are %s, wanted %s" % (sorted(answer), want["only"])
    return lacks(answer, want.get("has", {}))


def ask(server, row, name):
    body = row.get("body")
    if row.get("on") == "embed":
        body = {**body, "model": name}
    status, answer, response = server.ask(row["method"], row["path"], body, row.get("headers"))
    why = fault(row, status, answer, response)
    check("%s: %s" % (row["client"], row["what"]), not why, why)


# ---------------------------------------------------------------- what was mended for them

def test_empty(s):
    """A field that is always sent, and empty, asks for nothing."""
    body = {"prompt": "w5 w6", "n_predict": 4, "temperature": 0}
    plain = s.post("/completion", body)[1]["content"]
    for name, value in (("banned_strings", []), ("guided_json", {}), ("regex", ""),
                        ("grammar", "")):
        status, a, r = s.post("/completion", {**body, name: value})
        told = r.getheader("x-pith-ignored")
        check("empty " + name, status == 200 and a["content"] == plain
              and told is None, (a, told))
    for name, value in (("banned_strings", [""]), ("structural_tag", "a"), ("regex", "("),
                        ("banned_tokens", 0), ("logits_processors", ["a"]),
                        ("grammar", "root"), ("grammar", 3)):
        check("not empty %s %s" % (name, value),
              s.post("/completion", {**body, name: value})[0] == 400)
    one = {**body, "prompt": [30] + [9] * 70, "logit_bias": {"30": 30, "31": 15}, "n_probs": 1}
    told = [s.post("/completion", {**one, **more})[1]["completion_probabilities"]
            for more in ({"repeat_penalty": 3}, {"repeat_penalty": 3, "repetition_penalty": 3},
                         {"repetition_penalty": 3})]
    check("one penalty by both names", told[0] == told[1] != told[2], told)
    check("two penalties", s.post("/completion",
                                  {**one, "repeat_penalty": 3, "repetition_penalty": 2})[0] == 400)


def test_foreign(s):
    """What routers and other servers have is no mistyped name of ours."""
    foreign = {"models": ["a", "b"], "cache": {"no-cache": True},
               "mode": "chat", "truncate": 100, "include": ["usage"], "num_keep": 4,
               "num_predict": 2, "skew": 0, "transforms": [], "provider": {"order": ["a"]}}
    status, a, r = s.post("/v1/chat/completions",
                          {"messages": [{"role": "user", "content": "w5"}], "max_tokens": 1,
                           "reasoning": {"effort": "high"}, **foreign})
    check("names of others", status == 200 and r.getheader("x-pith-ignored") == ", ".join(foreign),
          (status, a, r.getheader("x-pith-ignored")))
    for name in ("modle", "reasoning_efort", "temp", "max_token"):
        e = s.post("/v1/chat/completions",
                   {"messages": [{"role": "user", "content": "w5"}], "max_tokens": 1, name: 1})[1]
        check("a mistyped name " + name, "did you mean" in e.get("error", {}).get("message", ""), e)


def test_nothing_made(s):
    ask = {"messages": [{"role": "user", "content": "w5 " * 60}]}
    a = s.post("/v1/chat/completions", {**ask, "n_predict": 0})[1]
    b = s.post("/v1/chat/completions", {**ask, "n_predict": 1})[1]["usage"]
    check("a warm-up makes nothing",
          a["choices"][0]["message"]["content"] == "" and a["usage"]["completion_tokens"] == 0, a)
    check("and is known afterwards",
          b["prompt_tokens"] == a["usage"]["prompt_tokens"]
          and b["prompt_tokens_details"]["cached_tokens"] >= 64, b)
    last = s.post("/v1/chat/completions", {**ask, "n_predict": 0, "stream": True})[1]
    check("a streamed warm-up", isinstance(last, bytes) and last.endswith(b"data: [DONE]\n\n"),
          last)
    for name in ("max_tokens", "max_completion_tokens"):
        check("no warm-up by " + name, s.post("/v1/chat/completions", {**ask, name: 0})[0] == 400)


def test_items(s):
    """What Codex has done with tools that take a text is before the model as a call like others."""
    def items(call, output):
        return {"input": [{"role": "user", "content": "w5"}, call, output,
                          {"role": "user", "content": "w6"}]}

    as_function = items({"type": "function_call", "call_id": "c", "name": "f",
                         "arguments": '{"input": "w7\\n\\"w8"}'},
                        {"type": "function_call_output", "call_id": "c", "output": "w9"})
    as_custom = items({"type": "custom_tool_call", "call_id": "c", "name": "f", "input": 'w7\n"w8'},
                      {"type": "custom_tool_call_output", "call_id": "c", "output": "w9"})
    path = "/v1/responses/input_tokens"
    told = [s.post(path, b)[1].get("input_tokens")
            for b in (as_function, as_custom,
                      items({"type": "web_search_call"}, {"type": "local_shell_call"}))]
    # a space between a name and its value
    check("a call with a text", told[0] and abs(told[0] - told[1]) <= 1 and told[2] < told[0] - 10,
          told)
    whole = {"custom_tool_call": {"input": "a"}, "function_call": {"arguments": "{}"}}
    for kind, bad in [("custom_tool_call", {"input": v}) for v in (3, None)] + [(k, {name: v})
            for k in whole for name in ("name", "call_id") for v in (3, None)]:
        e = s.post(path, {"input": [{"type": kind, "call_id": "c", "name": "f", **whole[kind],
                                     **bad}]})
        check("bad %s %s" % (kind, bad), e[0] == 400 and "input[0]" in e[1]["error"]["message"],
              e[1])
    long = {"input": "w5 " * 2000, "max_output_tokens": 1}
    told = [s.post("/v1/responses", {**long, **more})[1]["error"]["code"]
            for more in ({}, {"truncation": "auto"})]
    check("truncation auto cuts nothing", told == ["context_length_exceeded"] * 2, told)
    check("truncation of another kind",
          s.post("/v1/responses", {"input": "w5", "truncation": "all"})[0] == 400)


def test_namespaces(s):
    """Functions of namespaces are functions: one name for the model, in calls their own."""
    path, fn = "/v1/responses/input_tokens", {"type": "function", "name": "f", "parameters": {
        "type": "object", "properties": {"c": {"enum": ["a"]}}, "required": ["c"],
        "additionalProperties": False}}
    space = lambda name, *tools: {"type": "namespace", "name": name, "tools": list(tools)}
    ask = lambda *tools, **more: s.post(path, {"input": "w5", "tools": list(tools), **more})
    alone = ask({**fn, "name": "mcp__x__f"})[1]["input_tokens"]
    for name in "mcp__x", "mcp__x__":
        check("as one name: " + name, ask(space(name, fn))[1].get("input_tokens") in
              (alone, alone + 1), ask(space(name, fn)))
    status, a, r = ask(space("a", {"type": "custom", "name": "g"}, fn), fn)
    check("its other tools are left out", status == 200 and r.getheader("x-pith-ignored")
          == "tools[0].tools[0] custom", (a, r.getheaders()))
    for name, tools in (("no name", [space("a", {"type": "function"})]),
                        ("a number", [space("a", {**fn, "name": 3})]),
                        ("no kind", [space("a", {"name": "f"})]),
                        ("no tool", [space("a", 3)]),
                        ("too many", [space("a", *[fn] * 600), space("b", *[fn] * 600)])):
        status, a, _ = ask(*tools)
        check("a namespace with " + name, status == 400 and "tools" in a["error"]["message"], a)
    status, a, _ = s.post("/v1/responses", {
        "input": "w5", "tools": [space("a", fn), fn], "max_output_tokens": 200,
        "tool_choice": {"type": "function", "name": "f", "namespace": "a"}})
    call = a["output"][-1] if status == 200 else a
    check("one of a namespace is asked for", call.get("namespace") == "a"
          and call.get("name") == "f", a)
    status, a, _ = s.post("/v1/responses", {
        "input": "w5", "tools": [space("a", fn), fn], "max_output_tokens": 200,
        "tool_choice": {"type": "function", "name": "f"}})
    call = a["output"][-1] if status == 200 else a
    check("one without", "namespace" not in call and call.get("name") == "f", a)
    history = [{"role": "user", "content": "w5"}, {"type": "function_call", "call_id": "c", "name":
               "f", "namespace": "a", "arguments": "{}"},
               {"type": "function_call_output", "call_id": "c", "output": "w6"}]
    told = [s.post(path, {"input": [history[0], {**history[1], **more}, history[2]]})[1]
            for more in ({}, {"namespace": None, "name": "a__f"})]
    check("in a history by one name", told[0] == told[1] and told[0].get("input_tokens"), told)


def test_references(model, template):
    """The Vercel SDK's default: a step behind a call names what the step before made."""
    path, user = "/v1/responses", {"role": "user", "content": "w5"}
    fn = {"type": "function", "name": "f", "parameters": {
        "type": "object", "properties": {"c": {"enum": ["a", "b"]}}, "required": ["c"],
        "additionalProperties": False}}
    call = {"input": [user], "tools": [fn], "tool_choice": "required", "max_output_tokens": 200}
    ref = lambda item: {"type": "item_reference", "id": item["id"]}
    given = {"type": "function_call_output", "output": "w9"}

    def items(s, headers=None, **more):
        return s.ask("POST", path, {**call, **more}, headers)[1]["output"]

    def count(s, item, headers=None, where="/v1/responses/input_tokens"):
        return s.ask("POST", where, {"input": [user, item, {**given, "call_id": "c"}]}, headers)

    with Server(model, "--ctx", "2048", "--parallel", "2", "--chat-template", template, "--api-key",
                "a:aaaaaaaa", "--api-key", "b:bbbbbbbb", "--item-cache", "24K", "--default",
                "seed=3", "--default", "ignore_eos=true") as s:
        a, b = {"x-api-key": "aaaaaaaa"}, {"x-api-key": "bbbbbbbb"}
        one = items(s, a)[-1]
        whole = count(s, one, a)[1].get("input_tokens")
        check("a reference is its item", one["type"] == "function_call" and whole
              == count(s, ref(one), a)[1].get("input_tokens")
              == count(s, {"id": one["id"]}, a)[1].get("input_tokens"), count(s, ref(one), a))
        said = s.ask("POST", path, {"input": [user, ref(one), {**given, "call_id": one["call_id"]}],
                                    "max_output_tokens": 4}, a)
        check("the next step", said[0] == 200 and said[1]["usage"]["input_tokens"] == whole
              and said[1]["store"] is True and said[2].getheader("x-pith-ignored") is None, said)
        streamed = s.ask("POST", path, {**call, "stream": True}, a)[1].decode()
        made = [json.loads(d[6:]) for d in streamed.split("\n") if d.startswith("data: ")]
        item = next(e["item"] for e in made if e["type"] == "response.output_item.done")
        check("one of a stream", count(s, ref(item), a)[0] == 200
              and made[-1]["response"]["store"] is True, count(s, ref(item), a))
        no = count(s, ref(one), b)
        check("another key's", no[0] == 400 and no[1]["error"]["code"] == "item_not_found", no)
        for name, bad in (("another id", {"type": "item_reference", "id": "fc_1"}),
                          ("no id", {"type": "item_reference"}),
                          ("a number", {"type": "item_reference", "id": 3}),
                          ("what was not to be kept", ref(items(s, a, store=False)[-1]))):
            no = count(s, bad, a, path)
            check("a reference to " + name, no[0] == 400 and "input[1]" in no[1]["error"]["message"]
                  and "is stored here" in no[1]["error"]["message"]
                  and "store: false" in no[1]["error"]["message"], no)
        check("store is told",
              s.ask("POST", path, {**call, "store": False}, a)[1]["store"] is False)
        long = [items(s, a, tools=None, tool_choice=None, max_output_tokens=1500)[-1]
                for _ in range(12)]
        got = [count(s, ref(x), a)[0] for x in [one] + long]
        check("what was used longest ago goes", got[0] == 400 and got[-1] == 200
              and got == sorted(got, reverse=True), (got, [len(json.dumps(x)) for x in long]))
    with Server(model, "--chat-template", template, "--item-cache", "0") as s:
        x = s.post(path, call)[1]
        check("nothing is kept",
              x["store"] is False and count(s, ref(x["output"][-1]))[0] == 400, x)


def test_billing(s):
    """What changes in each of Claude Code's requests is no part of the prompt, so its beginning is
    known."""
    line = "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch=%05x;"
    path, said = "/v1/messages/count_tokens", [{"role": "user", "content": "w5"}]
    ask = lambda system: s.post(path, {"model": "m", "messages": said, **(
        {} if system is None else {"system": system})})[1].get("input_tokens")
    block = lambda text: {"type": "text", "text": text}
    for name, system, plain in (
            ("blocks", [block(line % 7), block("w1")], [block("w1")]),
            ("a text", line % 7 + "\nw1", "w1"), ("one block", [block(line % 7 + "\nw1")], "w1"),
            ("nothing else", line % 7, None), ("an empty list's", [block(line % 7)], None)):
        check("a line for its maker: " + name, ask(system) == ask(plain) is not None,
              (ask(system), ask(plain)))
    check("elsewhere it is a text", ask("w1\n" + line % 7) > ask("w1"))
    long = {"model": "m", "max_tokens": 2, "messages": said}
    cached = [s.post("/v1/messages", {**long, "system": [block(line % k), block("w1 " * 200)]})[1]
              ["usage"]["cache_read_input_tokens"] for k in (1, 2)]
    check("a known beginning", cached[1] >= 192, cached)


# ---------------------------------------------------------------- the page

def sent(row):
    fields = [k for k in row.get("body", {}) if k not in ("model", "messages", "prompt", "input")]
    more = " and %d more" % (len(fields) - 9) if len(fields) > 10 else ""
    fields = fields[:9] if more else fields
    return "%s `%s`%s%s" % (row["method"], row["path"], ": " + ", ".join(fields) if fields else "",
                            more)


def got(row):
    want = row["expect"]
    stream, out = want.get("stream"), str(want["status"])
    if stream:
        out += {"data": ", data", "event": ", events", "lines": ", lines"}[stream["form"]]
        out += " to `%s`" % stream["last"] if "last" in stream else " to `%s`" % stream["order"][
                -1] if stream["form"] == "event" else ""
    members = list(want.get("has", {})) + [m for some in (stream or {}).get("some", [])
                                           for m in some]
    names = list(dict.fromkeys(".".join(k for k in m.split(".") if not k.isdigit())
                               for m in members))
    out += ", with " + ", ".join("`%s`" % n for n in names[-3:]) if names else ""
    left = want.get("ignored", [])
    return out + (("; left out: " + ", ".join(left[:4])
                   + (" and %d more" % (len(left) - 4) if len(left) > 4 else "")) if left else "")


def tables(rows):
    out = []
    for client in CLIENTS:
        out += ["### " + client, "", "| what | sends | gets |", "| --- | --- | --- |"]
        out += ["| %s | %s | %s |" % (r["what"], sent(r), got(r)) for r in rows
                if r["client"] == client] + [""]
    return "\n".join(out)


def test_page(rows):
    with open(PAGE) as f:
        page = f.read()
    check("tables of docs/compatibility.md (print them: tests/clients/test_client_bodies.py "
          "--tables)", tables(rows) in page)
    check("nothing of a test's output there", not re.search(r"^\d+ passed, ", page, re.M))


def main():
    with open(DATA) as f:
        rows = json.load(f)
    if sys.argv[1:] == ["--tables"]:
        print(tables(rows), end="")
        sys.exit()
    test_page(rows)
    check("every client", [c for i, c in enumerate(r["client"] for r in rows)
                           if c not in [r["client"] for r in rows[:i]]] == CLIENTS)
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "m.gguf"), "--ctx", "2048", "--layers", "2", "--seed",
                      "5")
        template = os.path.join(folder, "template.jinja")
        with open(template, "w") as f:
            f.write(TEMPLATE)
        keys = [x for name, i in (("pre", 20), ("suf", 21), ("mid", 22), ("rep", 23), ("sep", 24))
                for x in ("--override-kv", "tokenizer.ggml.fim_%s_token_id=int:%d" % (name, i))]
        flags = {None: ["--ctx", "2048", "--parallel", "2", "--chat-template", template],
                 "fim": ["--ctx", "512", *keys], "embed": ["--embeddings"]}
        # no answer is by chance, none ends early
        same = ["--default", "seed=3", "--default", "ignore_eos=true"]
        for on, more in flags.items():
            with Server(model, *more, *(same if on != "embed" else [])) as s:
                name = s.get("/v1/models")[1]["data"][0]["id"]
                for row in (r for r in rows if r.get("on") == on):
                    guard("%s: %s" % (row["client"], row["what"]), lambda: ask(s, row, name))
                if not on:
                    for test in (test_empty, test_foreign, test_nothing_made, test_items,
                                 test_namespaces, test_billing):
                        guard(test.__name__, lambda: test(s))
                check("ends", s.end() == 0)
        guard("test_references", lambda: test_references(model, template))


run(main, "test_client_bodies")
