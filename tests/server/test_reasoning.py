#!/usr/bin/env python3
# In make test alone: make check has test_serve.py.
"""test_reasoning.py -- a budget of reasoning is held: after so many tokens the end of reasoning is
written for the model, and it goes on with its answer."""
import contextlib
import http.client
import json
import os
import tempfile

from serving import LIMIT, Server, check, events, run, synth

TEMPLATE = ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
            "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}")
CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "w5 w6"}], "max_tokens": 60, "temperature": 0,
       "ignore_eos": True, "logprobs": True}


def ask(s, **more):
    a = s.post(CHAT, {**ASK, **more})[1]
    return [(c["message"].get("reasoning_content") or "", c["message"]["content"] or "",
             [t["token"] for t in c["logprobs"]["content"]]) for c in a["choices"]]


def test_budget(s):
    free = ask(s)[0]
    check("without a budget it reasons to the end", free[0] and not free[1] and len(free[2]) == 60)
    for n in (1, 5, 17):
        for name in ("reasoning_budget", "thinking_budget_tokens", "thinking_token_budget",
                     "reasoning_budget_tokens"):
            reasoning, content, tokens = ask(s, **{name: n})[0]
            after = "".join(tokens[n:])
            check("%s of %d" % (name, n), tokens[:n] == free[2][:n]
                  and after.startswith("</think>\n\n") and reasoning and content
                  and "</think>" not in reasoning + content and len(tokens) == 60,
                  (reasoning, content, tokens))
    reasoning, content, tokens = ask(s, reasoning_budget=0)[0]
    check("none at all", not reasoning and content
          and "".join(tokens).startswith("</think>\n\n"), (reasoning, content))
    check("more than it takes", ask(s, reasoning_budget=60)[0][0] == free[0]
          == ask(s, reasoning_budget=-1)[0][0])
    both = ask(s, reasoning_budget=4, n=2, temperature=1, seed=3)
    check("each choice by itself", len(both) == 2 and both[0][0] != both[1][0]
          and all("".join(t[4:]).startswith("</think>\n\n") and c for _, c, t in both), both)
    told = [e["choices"][0]["delta"] for e in
            events(s.post(CHAT, {**ASK, "reasoning_budget": 5, "stream": True})[1])]
    whole = ask(s, reasoning_budget=5)[0]
    check("in a stream", ("".join(d.get("reasoning_content") or "" for d in told),
                          "".join(d.get("content") or "" for d in told)) == whole[:2], told)
    check("where none is begun", ask(s, reasoning_budget=5,
                                     chat_template_kwargs={"enable_thinking": False})
          == ask(s, chat_template_kwargs={"enable_thinking": False}))


def test_formats(s):
    """A format holds for the answer, not for the reasoning before it."""
    schema = {"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"],
              "additionalProperties": False}
    forms = (("schema", {"response_format": {"type": "json_schema", "json_schema":
                                             {"name": "s", "schema": schema}}}),
             ("grammar", {"grammar": 'root ::= "{\\"a\\":" ("1" | "22") "}"'}))
    free = ask(s)[0]
    for name, form in forms:
        form = {**form, "ignore_eos": False}
        for n in (0, 1, 9):
            reasoning, content, tokens = ask(s, reasoning_budget=n, **form)[0]
            good = json.loads(content).get("a") in (1, 22) if content.strip() else False
            check("%s behind %d" % (name, n), good and (reasoning != "") == (n > 0)
                  and tokens[:n] == free[2][:n], (reasoning, content, tokens))
        reasoning, content, _ = ask(s, **form)[0]
        check("%s without a budget" % name, reasoning == free[0] and not content,
              (reasoning, content))
        both = ask(s, reasoning_budget=3, n=3, temperature=1, seed=4, **form)
        check("%s, three choices" % name, all(json.loads(c)["a"] in (1, 22) and r
                                              for r, c, _ in both), both)
        plain = ask(s, chat_template_kwargs={"enable_thinking": False}, **form)[0]
        check("%s where none is begun" % name, not plain[0] and json.loads(plain[1]), plain)
    a = s.post("/v1/messages", {"messages": ASK["messages"], "max_tokens": 60, "temperature": 0,
                                "thinking": {"type": "enabled", "budget_tokens": 5},
                                "output_config": {"format": {"type": "json_schema",
                                                             "schema": schema}}})[1]
    kinds = {c["type"]: c.get("thinking") or c.get("text") for c in a["content"]}
    check("Anthropic's", json.loads(kinds["text"])["a"] in (1, 22) and kinds.get("thinking"), a)
    a = s.post("/api/chat", {"messages": ASK["messages"], "stream": False, "format": schema,
                             "options": {"num_predict": 30, "temperature": 0}})[1]
    check("Ollama's reasons, too", a["message"].get("thinking"), a)


def test_messages(s):
    body = {"messages": ASK["messages"], "max_tokens": 60, "temperature": 0,
            "thinking": {"type": "enabled", "budget_tokens": 5}}
    a = s.post("/v1/messages", body)[1]
    kinds = {c["type"]: c.get("thinking") or c.get("text") for c in a["content"]}
    check("budget_tokens", kinds.get("thinking") == ask(s, reasoning_budget=5)[0][0]
          and kinds.get("text"), a)


def test_words(s):
    """What a request has written before the end of reasoning is text, whatever it spells."""
    free = ask(s)[0]
    for words in ("w7 w8 now", "w7</think>w8"):
        reasoning, content, tokens = ask(s, reasoning_budget=5, reasoning_budget_message=words)[0]
        whole = (reasoning + "</think>" + content).replace("▁", " ")
        check("words %s" % words, tokens[:5] == free[2][:5] and "</think>\n\n" in "".join(tokens)
              and words + "</think>" in whole and content, (reasoning, content, tokens))
    check("words without an end", ask(s, reasoning_budget_message="w7")[0] == free)
    check("words where it does not reason long", ask(s, reasoning_budget=60,
                                                     reasoning_budget_message="w7")[0] == free)


@contextlib.contextmanager
def stream(s, body):
    """The events of a stream while it is made."""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=LIMIT)
    try:
        c.request("POST", CHAT, json.dumps({**body, "stream": True}))
        yield (json.loads(line[6:]) for line in c.getresponse() if line.startswith(b"data: {"))
    finally:
        c.close()


def test_control(s):
    """Reasoning of an answer that runs is ended by whoever asked for it."""
    control = CHAT + "/control"
    end = lambda answer, path=control: s.post(path, {"id": answer, "action": "reasoning_end"})
    for path in (control, "/chat/completions/control"):
        with stream(s, {**ASK, "max_tokens": 3000, "reasoning_control": True}) as pieces:
            told = []
            for piece in pieces:
                told.append(piece)
                if len(told) == 6:
                    got = end(told[0]["id"], path)
                    check("control " + path, got[0] == 200 and got[1] == {"success": True}, got)
        deltas = [e["choices"][0]["delta"] for e in told if e["choices"]]
        thought = [d for d in deltas if d.get("reasoning_content")]
        said = "".join(d.get("content") or "" for d in deltas)
        check("it answers then " + path, 5 <= len(thought) < 2000 and said
              and "think>" not in said, (len(thought), said[:80]))
    gone = end(told[0]["id"])
    check("one that has ended", gone[0] == 200 and gone[1]["success"] is False
          and "no answer with this id" in gone[1]["message"], gone)
    for more, why in (({}, "not asked for with reasoning_control"),
                      ({"reasoning_control": True,
                        "chat_template_kwargs": {"enable_thinking": False}},
                       "does not reason now")):
        with stream(s, {**ASK, "max_tokens": 3000, **more}) as pieces:
            got = end(next(pieces)["id"])
            busy = s.get("/slots?fail_on_no_slot=1")
            check("no slot is idle", busy[0] == 503 and "all 1 are busy" in json.dumps(busy[1])
                  and s.get("/slots")[0] == s.get("/slots?fail_on_no_slot=0")[0] == 200, busy)
            check("no control: " + why, got[0] == 200 and got[1]["success"] is False
                  and why in got[1]["message"], got)
    s.wait_for(s.at_rest)
    check("a slot is idle", s.get("/slots?fail_on_no_slot=1")[0] == 200)
    for bad, code in (({}, "missing_field"), ({"id": "x"}, "missing_field"),
                      ({"id": "x", "action": "dance"}, "invalid_value"),
                      ({"id": 5, "action": "reasoning_end"}, "wrong_type")):
        got = s.post(control, bad)
        check("bad control %s" % bad, got[0] == 400 and got[1]["error"]["code"] == code, got)


def shape(s, **more):
    """Content and reasoning of an answer that reasons five tokens and answers; its stream, too."""
    body = {**ASK, "reasoning_budget": 5, **more}
    m = s.post(CHAT, body)[1]["choices"][0]["message"]
    told = [e["choices"][0]["delta"] for e in events(s.post(CHAT, {**body, "stream": True})[1])]
    streamed = tuple("".join(d.get(k) or "" for d in told)
                     for k in ("content", "reasoning_content"))
    check("stream of %s" % more, streamed == (m["content"], m.get("reasoning_content", "")),
          (m, streamed))
    return m["content"], m.get("reasoning_content")


def test_where(s):
    """Where reasoning is told."""
    content, reasoning = shape(s)
    check("apart", content and reasoning)
    for form in ("auto", "deepseek", ""):
        check("reasoning_format '%s'" % form, shape(s, reasoning_format=form)
              == (content, reasoning))
    whole = "<think>\n%s\n</think>\n\n%s" % (reasoning, content)
    check("none", shape(s, reasoning_format="none") == (whole, None),
          (shape(s, reasoning_format="none"), whole))
    check("both", shape(s, reasoning_format="deepseek-legacy") == (whole, reasoning))
    check("include_reasoning", shape(s, include_reasoning=False) == (content, None)
          == shape(s, include_reasoning=False, reasoning_format="none"))
    raw = shape(s, reasoning_format="none", reasoning_budget=-1)
    check("as it was made, without a budget", raw[0].strip() == ask(s)[0][0].strip()
          and raw[1] is None, raw)
    for bad in ("other", 3):
        check("bad reasoning_format %s" % bad, s.post(CHAT, {**ASK, "reasoning_format": bad})[0]
              == 400)


SENTENCE = ("\n\nConsidering the limited time by the user, I have to give the solution based on "
            "the thinking directly now.\n")
AGENT = ("{% for t in tools or [] %}<tool_call>{{ t.function.name }}\n{% endfor %}"
         "{% if thinking_budget is defined %}w7 w8 w9 {% endif %}" + TEMPLATE)
TOOL = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}},
                                       "required": ["at"]}}


def test_agent(s):
    """As programs that code ask: tools, a budget, a stream."""
    tools = {"tools": [{"type": "function", "function": TOOL}]}
    free = ask(s, chat_template_kwargs={"thinking_budget": 99}, **tools)[0]
    for n in (2, 9):
        reasoning, content, tokens = ask(s, reasoning_budget=n, max_tokens=400, **tools)[0]
        check("beside tools, %d" % n, reasoning.replace("▁", " ").endswith(SENTENCE.strip())
              and content and "think>" not in reasoning + content, (n, tokens[:20], free[2][:20]))
        check("so many of its own, %d" % n, tokens[n:n + 2] == ["\n", "\n"]
              and tokens[:n] == free[2][:n], (tokens[:n + 4], free[2][:n]))
    check("a template that knows budgets is told", s.post(CHAT, {**ASK, "reasoning_budget": 3})[1][
        "usage"]["prompt_tokens"] > s.post(CHAT, ASK)[1]["usage"]["prompt_tokens"])
    body = {"messages": ASK["messages"], "max_tokens": 400, "temperature": 0, "stream": True,
            "thinking": {"type": "enabled", "budget_tokens": 6},
            "tools": [{"name": "look", "input_schema": TOOL["parameters"]}]}
    told = events(s.post("/v1/messages", body)[1])
    thought = "".join(e["delta"].get("thinking", "") for e in told if "delta" in e)
    said = "".join(e["delta"].get("text", "") for e in told if "delta" in e)
    check("Claude Code's", thought.replace("▁", " ").endswith(SENTENCE.strip()) and said
          and len(thought) < len(free[0]) + len(SENTENCE), (thought, said))
    effort = lambda path, more: s.post(path, {"messages": ASK["messages"], "max_tokens": 900,
                                              "temperature": 0, "ignore_eos": True, **more})[1]
    budget = effort(CHAT, {"reasoning_budget": 512})["choices"][0]["message"]
    check("effort is a budget where the template has no such variable", budget["content"]
          and effort(CHAT, {"reasoning_effort": "minimal"})["choices"][0]["message"] == budget
          and not effort(CHAT, {"reasoning_effort": "high"})["choices"][0]["message"]["content"],
          budget)
    a = effort("/v1/messages", {"output_config": {"effort": "minimal"}})
    kinds = {c["type"]: c.get("thinking") or c.get("text") for c in a["content"]}
    check("effort of messages", (kinds.get("thinking"), kinds.get("text"))
          == (budget["reasoning_content"], budget["content"]), a)
    a = s.post("/v1/responses", {"input": ASK["messages"], "max_output_tokens": 900,
                                 "temperature": 0, "reasoning": {"effort": "minimal"}})[1]
    check("effort of responses", any(o["type"] == "message" for o in a["output"]), a)
    a = effort("/api/chat", {"stream": False, "think": "low",
                             "options": {"num_predict": 30, "temperature": 0}})
    check("effort of Ollama's", a["message"].get("thinking"), a)


NAMES = ("[{{ enable_thinking }}/{{ reasoning_effort }}/{{ thinking_budget }}]"
         "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")


def test_names(s):
    """Reasoning by the names that services have for it: what the template is told, in a chat and
    where its tokens are counted."""
    for more, told in (
            ({}, "//"), ({"enable_thinking": False}, "False//"),
            ({"enable_thinking": True}, "True//"),
            ({"thinking": {"type": "disabled"}}, "False//"),
            ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "True//9"),
            ({"thinking": {"type": "enabled", "budget_tokens": None}}, "True//"),
            ({"reasoning": {"effort": "high"}}, "True/high/"),
            ({"reasoning": {"effort": "none"}}, "False//"),
            ({"reasoning": {"enabled": False}}, "False//"),
            ({"reasoning": {"enabled": True, "max_tokens": 7, "effort": None}}, "True//7"),
            ({"reasoning": {"exclude": True}}, "//"), ({"reasoning": {}, "thinking": {}}, "//"),
            ({"reasoning_effort": "low"}, "True/low/"),
            ({"chat_template_kwargs": {"enable_thinking": True}, "enable_thinking": False},
             "False//")):
        body = {"messages": [{"role": "user", "content": "w5"}], **more}
        status, a, r = s.post(CHAT, {**body, "max_tokens": 1, "verbose": True})
        check("named %s" % more, status == 200
              and "[%s]" % told in a["__verbose"]["prompt"]
              and "thinking" not in (r.getheader("x-pith-ignored") or ""), (a, r.getheaders()))
        n = s.post(CHAT + "/input_tokens", body)[1]["input_tokens"]
        check("counted %s" % more, "9" in told or "7" in told
              or n == a["usage"]["prompt_tokens"], (n, a["usage"]))
    for bad in ({"enable_thinking": "yes"}, {"thinking": "disabled"}, {"reasoning": "low"},
                {"thinking": {"budget_tokens": "a"}}, {"thinking": {"budget_tokens": -1}},
                {"reasoning": {"max_tokens": -1}}, {"reasoning": {"max_tokens": "a"}},
                {"reasoning": {"effort": 3}}, {"reasoning": {"enabled": "yes"}},
                {"reasoning": {"exclude": 1}}):
        status, a, _ = s.post(CHAT, {"messages": [{"role": "user", "content": "w5"}],
                                     "max_tokens": 1, **bad})
        check("bad %s" % bad, status == 400 and list(bad)[0] in a["error"]["message"], a)


def test_bad(s):
    for path, more in ((CHAT, {"reasoning_budget": -2}), (CHAT, {"reasoning_budget": "x"}),
                       ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": "x"}}),
                       ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": -1}})):
        status = s.post(path, {"messages": ASK["messages"], "max_tokens": 4, **more})[0]
        check("refused %s" % more, status == 400, status)


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "m.gguf"), "--ctx", "512", "--layers", "2", "--seed",
                      "5")
        path = os.path.join(folder, "t.jinja")
        with open(path, "w") as f:
            f.write(TEMPLATE)
        with Server(model, "--ctx", "512", "--chat-template", path) as s:
            test_budget(s)
            test_words(s)
            test_formats(s)
            test_messages(s)
            test_where(s)
            test_bad(s)
        with Server(synth(os.path.join(folder, "long.gguf"), "--ctx", "4096", "--layers", "8",
                          "--seed", "5"), "--parallel", "1", "--chat-template", path) as s:
            test_control(s)
        with open(path, "w") as f:
            f.write(AGENT)
        with Server(model, "--ctx", "1024", "--chat-template", path) as s:
            test_agent(s)
        with open(path, "w") as f:
            f.write(NAMES)
        with Server(model, "--ctx", "512", "--chat-template", path) as s:
            test_names(s)


run(main, "test_reasoning")
