#!/usr/bin/env python3
"""test_clients.py -- the Python packages openai, anthropic and ollama against pith serve: every
call of theirs that applies. A grammar makes a random model say what a test wants to hear:
reasoning, text, calls. With the instruct model there are a real call and a real answer to a
schema."""
import asyncio
import json
import os
import subprocess
import tempfile
import typing

from serving import LIMIT, SCALE, Server, check, guard, run, skip, synth

TEMPLATE = """{%- if tools %}tools: {{ tools | tojson }}
Answer with <tool_call>.
{% endif %}{%- for m in messages %}{{ m.role }}: {{ m.content }}{% if m.reasoning_content %} \
<think>{{ m.reasoning_content }}</think>{% endif %}
{%- for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments | tojson }}</tool_call>{% \
endfor %}
{% endfor %}{% if add_generation_prompt %}assistant: {% if think_first %}<think>
{% endif %}{% endif %}"""
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
           "required": ["city"], "additionalProperties": False}
CALL = ('<tool_call>\\n{\\"name\\": \\"weather\\", \\"arguments\\": {\\"city\\": '
        '\\"Rome\\"}}\\n</tool_call>')
SAYS = 'root ::= "<think>hm, so</think>It is" %s' # a grammar with one text
PERSON = {"type": "object", "properties":
          {"name": {"enum": ["Ann", "Bob"]}, "age": {"enum": [30, 40]}},
          "required": ["name", "age"], "additionalProperties": False}
TALK = [{"role": "user", "content": "w5 w6 w7"}]


def grammar(with_call):
    return SAYS % ('"%s"' % CALL if with_call else '" fine"')


def raises(kind, fn):
    try:
        fn()
    except kind as e:
        return e
    return None


# ---------------------------------------------------------------- openai

def test_openai(s, embedder):
    import openai
    c = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0, timeout=LIMIT)
    model = c.models.list().data[0].id
    check("openai_models", c.models.retrieve(model).id == model)
    ask = {"model": model, "messages": TALK, "max_tokens": 6, "temperature": 0,
           "extra_body": {"ignore_eos": True}}
    a = c.chat.completions.create(**ask, logprobs=True, top_logprobs=2, n=2, seed=3)
    check("openai_chat", len(a.choices) == 2 and len(a.choices[0].logprobs.content) == 6
          and a.usage.completion_tokens == 12, a)
    pieces = list(c.chat.completions.create(**ask, stream=True,
                                            stream_options={"include_usage": True}))
    check("openai_chat_stream", "".join(p.choices[0].delta.content or "" for p in pieces
                                        if p.choices) == a.choices[0].message.content, pieces)
    check("openai_chat_usage", pieces[-1].usage.completion_tokens == 6
          and pieces[-1].usage.prompt_tokens == a.usage.prompt_tokens, pieces[-1])
    e = raises(openai.BadRequestError, lambda: c.completions.create(model=model, prompt=[7] * 5000))
    check("openai_too_long", e and e.code == "context_length_exceeded", e)
    check("openai_unknown_model",
          raises(openai.NotFoundError, lambda: c.embeddings.create(model="none", input="w5"))
          and c.chat.completions.create(model="none", messages=TALK, max_tokens=1).model == model)
    openai_completions(c, model)
    openai_tools(c, model)
    openai_parse(openai, c, model)
    openai_responses(openai, c, model)
    asyncio.run(openai_async(openai, s, model, a.choices[0].message.content))
    if embedder:
        c = openai.OpenAI(base_url=embedder.url + "/v1", api_key="none", max_retries=0,
                          timeout=LIMIT)
        floats = c.embeddings.create(model="", input=["w5", "w6 w7"], encoding_format="float")
        base64 = c.embeddings.create(model="", input=["w5", "w6 w7"])  # its own way: base64
        near = [abs(x - y) < 1e-6 for a, b in zip(floats.data, base64.data)
                for x, y in zip(a.embedding, b.embedding)]
        check("openai_embeddings", len(floats.data) == 2 and near and all(near)
              and floats.usage.prompt_tokens > 2, floats)


def openai_completions(c, model):
    a = c.completions.create(model=model, prompt=["w5 w6", "w7"], max_tokens=4, temperature=0,
                             logprobs=2, echo=True, extra_body={"ignore_eos": True})
    lp = a.choices[0].logprobs
    check("openai_completions", len(a.choices) == 2 and a.choices[0].text.startswith("w5 w6")
          and lp.token_logprobs[0] is None and len(lp.tokens) > 4, a)
    pieces = list(c.completions.create(model=model, prompt="w5 w6", max_tokens=4, temperature=0,
                                       stream=True, extra_body={"ignore_eos": True}))
    check("openai_completions_stream",
          "w5 w6" + "".join(p.choices[0].text for p in pieces) == a.choices[0].text, pieces)


def openai_tools(c, model):
    tools = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
             {"type": "function", "function": {"name": "other", "parameters": PERSON}}]
    ask = {"model": model, "messages": TALK, "tools": tools, "max_tokens": 600, "temperature": 1,
           "seed": 5}
    says = {"extra_body": {"grammar": grammar(True)}}
    m = c.chat.completions.create(**ask, **says).choices[0]
    check("openai_tool_call", m.finish_reason == "tool_calls"
          and m.message.tool_calls[0].function.name == "weather"
          and json.loads(m.message.tool_calls[0].function.arguments) == {"city": "Rome"}
          and m.message.content == "It is" and m.message.reasoning_content == "hm, so", m)
    with c.chat.completions.stream(**ask, **says) as stream:
        kinds = [e.type for e in stream]
        final = stream.get_final_completion().choices[0].message
    check("openai_tool_call_stream",
          "tool_calls.function.arguments.done" in kinds
          and final.tool_calls[0].function.arguments == m.message.tool_calls[0].function.arguments,
          kinds)
    back = TALK + [m.message.to_dict(),
                   {"role": "tool", "tool_call_id": m.message.tool_calls[0].id, "content": "w9"}]
    a = c.chat.completions.create(**{**ask, "messages": back, "max_tokens": 5})
    check("openai_tool_round", a.usage.prompt_tokens > 0, a)
    m = c.chat.completions.create(**ask, tool_choice="required").choices[0]
    check("openai_required", m.finish_reason == "tool_calls"
          and m.message.tool_calls[0].function.name in ("weather", "other"), m)
    for seed in range(4):
        m = c.chat.completions.create(**{**ask, "seed": seed},
                                      tool_choice={"type": "function",
                                                   "function": {"name": "weather"}}).choices[
                0].message
        good = len(m.tool_calls) == 1 and m.tool_calls[0].function.name == "weather" and json.loads(
                m.tool_calls[0].function.arguments)["city"] in ("Paris", "Rome")
        check("openai_named_%d" % seed, good and not m.content, m)
    m = c.chat.completions.create(**ask, tool_choice="required",
                                  extra_body={"chat_template_kwargs":
                                              {"think_first": True}}).choices[0]
    check("openai_required_not_in_reasoning",
          m.finish_reason == "tool_calls" and not m.message.content, m)
    m = c.chat.completions.create(**ask, tool_choice="none",
                                  extra_body={"grammar": grammar(True)}).choices[0].message
    check("openai_none", not m.tool_calls and "tool_call" in m.content, m)
    two = {"extra_body": {"grammar": 'root ::= "%s%s"' % (CALL, CALL)}}
    several = c.chat.completions.create(**{**ask, "max_tokens": 200},
                                        **two).choices[0].message.tool_calls
    one = c.chat.completions.create(**{**ask, "max_tokens": 200}, **two,
                                    parallel_tool_calls=False).choices[0]
    check("openai_parallel", len(several) == 2 and len(one.message.tool_calls) == 1
          and one.finish_reason == "tool_calls", (several, one))


def openai_parse(openai, c, model):
    try:
        import pydantic
    except ImportError:
        return
    person = pydantic.create_model("Person", name=(typing.Literal["Ann", "Bob"], ...),
                                   age=(typing.Literal[30, 40], ...))
    a = c.chat.completions.parse(model=model, messages=TALK, max_tokens=600, seed=1,
                                 response_format=person)
    check("openai_parse", isinstance(a.choices[0].message.parsed, person), a)
    schema = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON, "strict": True}}
    a = json.loads(c.chat.completions.create(model=model, messages=TALK, max_tokens=600, seed=1,
                                             response_format=schema).choices[0].message.content)
    check("openai_schema", a["name"] in ("Ann", "Bob") and a["age"] in (30, 40), a)


def openai_responses(openai, c, model):
    ask = {"model": model, "input": "w5 w6 w7", "instructions": "w8", "temperature": 0}
    says = {"extra_body": {"grammar": grammar(False)}}
    a = c.responses.create(**ask, **says, max_output_tokens=60)
    check("responses", a.status == "completed" and a.output_text == "It is fine"
          and [o.type for o in a.output] == ["reasoning", "message"]
          and a.output[0].content[0].text == "hm, so"
          and a.usage.output_tokens_details.reasoning_tokens > 0 and a.instructions == "w8", a)
    b = c.responses.create(**ask, max_output_tokens=3, include=["message.output_text.logprobs"],
                           top_logprobs=2, extra_body={"ignore_eos": True})
    check("responses_incomplete",
          b.status == "incomplete" and b.incomplete_details.reason == "max_output_tokens", b)
    check("responses_logprobs", [len(t.top_logprobs) for t in b.output[0].content[0].logprobs]
          == [2, 2, 2], b.output)
    tools = [{"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}]
    with c.responses.stream(**ask, tools=tools, extra_body={"grammar": grammar(True)}) as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [e.type for e in events]
    check("responses_stream_numbers",
          [e.sequence_number for e in events] == list(range(len(events)))
          and kinds[:2] == ["response.created", "response.in_progress"]
          and kinds[-1] == "response.completed", kinds)
    wanted = ["response.reasoning_text.delta", "response.output_text.delta",
              "response.output_text.done", "response.function_call_arguments.delta",
              "response.function_call_arguments.done", "response.output_item.done",
              "response.content_part.added"]
    check("responses_stream_events", all(w in kinds for w in wanted), kinds)
    call = final.output[-1]
    check("responses_call", [o.type for o in final.output]
          == ["reasoning", "message", "function_call"]
          and json.loads(call.arguments) == {"city": "Rome"} and final.output_text == "It is",
          final)
    rounds = [{"role": "user", "content": [{"type": "input_text", "text": "w5"}]},
              *[o.to_dict() for o in final.output],
              {"type": "function_call_output", "call_id": call.call_id, "output": "w9"}]
    check("responses_round", c.responses.create(model=model, input=rounds, tools=tools,
                                                max_output_tokens=4).output is not None)
    forced = c.responses.create(**ask, tools=tools,
                                tool_choice={"type": "function", "name": "weather"})
    check("responses_named", forced.output[0].type == "function_call"
          and json.loads(forced.output[0].arguments)["city"] in ("Paris", "Rome"), forced)
    text = {"format": {"type": "json_schema", "name": "p", "schema": PERSON, "strict": True}}
    check("responses_schema", json.loads(c.responses.create(**ask, text=text).output_text)["age"]
          in (30, 40))
    n = c.responses.input_tokens.count(model=model, input="w5 w6 w7",
                                       instructions="w8").input_tokens
    check("responses_input_tokens", n == a.usage.input_tokens, (n, a.usage))
    e = raises(openai.BadRequestError,
               lambda: c.responses.create(**ask, previous_response_id="resp_1"))
    check("responses_previous", e and e.param == "previous_response_id", e)


async def openai_async(openai, s, model, text):
    async with openai.AsyncOpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0,
                                  timeout=LIMIT) as c:
        ask = {"model": model, "messages": TALK, "max_tokens": 6, "temperature": 0,
               "extra_body": {"ignore_eos": True}}
        many = await asyncio.gather(*[c.chat.completions.create(**ask) for _ in range(4)])
        check("openai_async", all(a.choices[0].message.content == text for a in many), many)
        pieces = [p async for p in await c.chat.completions.create(**ask, stream=True)]
        check("openai_async_stream",
              "".join(p.choices[0].delta.content or "" for p in pieces) == text, pieces)
        kinds = [e.type async for e in await c.responses.create(model=model, input="w5",
                                                                max_output_tokens=3, stream=True)]
        check("responses_async", kinds[0] == "response.created"
              and kinds[-1] in ("response.incomplete", "response.completed"), kinds)


# ---------------------------------------------------------------- anthropic

def test_anthropic(s):
    import anthropic
    c = anthropic.Anthropic(base_url=s.url, api_key="none", max_retries=0, timeout=LIMIT)
    listed = list(c.models.list())  # of all pages
    model = listed[0].id
    check("anthropic_models", len(listed) == 1 and listed[0].type == "model"
          and listed[0].display_name == model and listed[0].created_at.year >= 1970
          and c.models.retrieve(model).id == model, listed)
    ask = {"model": model, "messages": TALK, "max_tokens": 600, "system": "w8"}
    tools = [{"name": "weather", "description": "w1", "input_schema": WEATHER}]
    says = {"extra_body": {"grammar": grammar(True), "temperature": 0}}
    a = c.messages.create(**ask, tools=tools, **says)
    check("anthropic_blocks", [b.type for b in a.content] == ["thinking", "text", "tool_use"]
          and a.stop_reason == "tool_use" and a.content[2].input == {"city": "Rome"}
          and a.content[0].thinking == "hm, so" and a.content[1].text == "It is", a)
    with c.messages.stream(**ask, tools=tools, **says) as stream:
        kinds = [e.type for e in stream]
        final = stream.get_final_message()
    check("anthropic_stream", [b.to_dict() for b in final.content]
          == [{**b.to_dict(), "id": f.id} if b.type == "tool_use" else b.to_dict()
              for b, f in zip(a.content, final.content)] and final.stop_reason == "tool_use"
          and kinds[0] == "message_start" and kinds[-1] == "message_stop", (final, kinds))
    check("anthropic_usage", final.usage.output_tokens == a.usage.output_tokens
          and final.usage.input_tokens + final.usage.cache_read_input_tokens == a.usage.input_tokens
          + a.usage.cache_read_input_tokens, (final.usage, a.usage))
    raw = list(c.messages.create(**ask, tools=tools, stream=True, **says))
    check("anthropic_raw_stream",
          [e.type for e in raw].count("content_block_start") == 3
          == [e.type for e in raw].count("content_block_stop"), raw)
    back = TALK + [{"role": "assistant", "content": [b.to_dict() for b in a.content]},
                   {"role": "user", "content":
                    [{"type": "tool_result", "tool_use_id": a.content[2].id,
                      "content": [{"type": "text", "text": "w9"}]},
                     {"type": "text", "text": "w3"}]}]
    b = c.messages.create(**{**ask, "messages": back, "max_tokens": 4}, tools=tools)
    n = c.messages.count_tokens(model=model, messages=back, system="w8", tools=tools).input_tokens
    check("anthropic_round", b.usage.input_tokens + b.usage.cache_read_input_tokens == n,
          (b.usage, n))
    for choice in ({"type": "any"},
                   {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}):
        a = c.messages.create(**ask, tools=tools, tool_choice=choice)
        check("anthropic_choice_" + choice["type"],
              a.stop_reason == "tool_use" and a.content[0].input["city"] in ("Paris", "Rome"), a)
    a = c.messages.create(**ask, stop_sequences=["is f"], extra_body={"grammar": grammar(False)},
                          thinking={"type": "enabled", "budget_tokens": 1024})
    check("anthropic_stop", a.stop_reason == "stop_sequence" and a.stop_sequence == "is f"
          and a.content[-1].text == "It ", a)
    a = c.messages.create(**ask, output_config={"format":
                                                {"type": "json_schema", "schema": PERSON}})
    check("anthropic_schema", json.loads(a.content[0].text)["age"] in (30, 40), a)
    a = c.messages.create(**{**ask, "messages": TALK + [{"role": "assistant", "content": "w4"}],
                             "max_tokens": 2}, extra_body={"ignore_eos": True})
    check("anthropic_begun", a.stop_reason == "max_tokens" and a.usage.output_tokens == 2, a)
    e = raises(anthropic.BadRequestError,
               lambda: c.messages.create(**{**ask,
                                            "messages": [{"role": "user",
                                                          "content": "w5 " * 5000}]}))
    check("anthropic_too_long", e and e.body["error"]["type"] == "invalid_request_error"
          and e.body["error"]["n_over"] > 0, e and e.body)
    e = raises(anthropic.BadRequestError,
               lambda: c.messages.create(**{**ask,
                                            "messages": [{"role": "user",
                                                          "content": [{"type": "image",
                                    "source": {"type": "url", "url": "x"}}]}]}))
    check("anthropic_image", e and "image" in e.body["error"]["message"], e and e.body)
    asyncio.run(anthropic_async(anthropic, s, {**ask, "max_tokens": 60}))


async def anthropic_async(anthropic, s, ask):
    async with anthropic.AsyncAnthropic(base_url=s.url, api_key="none", max_retries=0,
                                        timeout=LIMIT) as c:
        says = {"extra_body": {"grammar": grammar(False)}}
        a = await c.messages.create(**ask, **says)
        async with c.messages.stream(**ask, **says) as stream:
            text = "".join([t async for t in stream.text_stream])
        check("anthropic_async", a.content[-1].text == text == "It is fine", (a, text))


# ---------------------------------------------------------------- ollama

def test_ollama(s, embedder):
    import ollama
    c = ollama.Client(host=s.url, timeout=LIMIT)
    model = c.list().models[0].model
    check("ollama_list", c.ps().models[0].model == model and len(c.list().models[0].digest) == 64,
          c.ps())
    check("ollama_show", "completion" in c.show(model).capabilities, c.show(model))
    tools = [{"type": "function",
              "function": {"name": "weather", "description": "w1", "parameters": WEATHER}}]
    options = {"grammar": grammar(True), "temperature": 0, "num_predict": 120, "num_ctx": 4096}
    a = c.chat(model=model, messages=TALK, tools=tools, options=options, think=True,
               keep_alive="5m")
    check("ollama_chat", a.message.content == "It is" and a.message.thinking == "hm, so"
          and a.message.tool_calls[0].function.arguments == {"city": "Rome"}
          and a.done_reason == "stop" and a.eval_count > 0
          and a.total_duration >= a.eval_duration > 0, a)
    lines = list(c.chat(model=model, messages=TALK, tools=tools, options=options, stream=True))
    said = [[x for m in lines for x in [getattr(m.message, k)] if x]
            for k in ("content", "thinking", "tool_calls")]
    check("ollama_chat_stream", "".join(said[0]) == "It is" and "".join(said[1]) == "hm, so"
          and len(said[2]) == 1 and lines[-1].done
          and lines[-1].prompt_eval_count == a.prompt_eval_count, lines)
    back = TALK + [a.message, {"role": "tool", "tool_name": "weather", "content": "w9"}]
    check("ollama_round", c.chat(model=model, messages=back, tools=tools,
                                 options={"num_predict": 3}).done)
    a = c.generate(model=model, prompt="w5", system="w8", format=PERSON,
                   options={"num_predict": 600, "seed": 4})
    check("ollama_schema", json.loads(a.response)["age"] in (30, 40), a)
    a = c.generate(model=model, prompt="w5 w6", raw=True,
                   options={"num_predict": 5, "temperature": 0, "ignore_eos": True}, logprobs=True,
                   top_logprobs=2)
    check("ollama_raw", a.done_reason == "length" and a.eval_count == 5 == len(a.logprobs)
          and len(a.logprobs[0].top_logprobs) == 2, a)
    lines = list(c.generate(model=model, prompt="w5 w6", raw=True,
                            options={"num_predict": 5, "temperature": 0, "ignore_eos": True},
                            stream=True))
    check("ollama_generate_stream", "".join(x.response for x in lines) == a.response, lines)
    check("ollama_load", c.generate(model=model).done_reason == "load"
          and c.chat(model=model).done_reason == "load")
    # this model has no tokens for a gap
    for name, value in (("suffix", "x"), ("template", "x"), ("context", [1])):
        e = raises(ollama.ResponseError,
                   lambda: c.generate(model=model, prompt="w5", **{name: value}))
        check("ollama_" + name, e and e.status_code == 400 and name in e.error, e)
    e = raises(ollama.ResponseError,
               lambda: c.chat(model=model, messages=TALK, options={"temperature": 1000}))
    check("ollama_options", e and "options: temperature" in e.error, e)
    check("ollama_unknown_model",
          raises(ollama.ResponseError, lambda: c.show("none")).status_code == 404)
    asyncio.run(ollama_async(ollama, s, model))
    if embedder:
        c = ollama.Client(host=embedder.url, timeout=LIMIT)
        a = c.embed(model=model, input=["w5", "w6 w7"])
        check("ollama_embed", len(a.embeddings) == 2 and a.prompt_eval_count > 2
              and list(c.embeddings(model=model, prompt="w5").embedding) == list(a.embeddings[0]),
              a)
        long = "w5 " * 3000
        check("ollama_embed_cut", raises(ollama.ResponseError,
                                         lambda: c.embed(model=model, input=long))
              and c.embed(model=model, input=long, truncate=True).embeddings)


async def ollama_async(ollama, s, model):
    c = ollama.AsyncClient(host=s.url, timeout=LIMIT)
    options = {"grammar": grammar(False), "num_predict": 60}
    lines = [x async for x in await c.chat(model=model, messages=TALK, options=options,
                                           stream=True)]
    a = await c.generate(model=model, prompt="w5", options=options)
    check("ollama_async", "".join(x.message.content for x in lines) == a.response == "It is fine",
          lines)


# ---------------------------------------------------------------- what packages do not ask for

def test_extensions(s):
    """Progress of prompts, breakers of DRY, errors in the API's own shape, what a key is called."""
    long = [{"role": "user", "content": "w5 w6 " * 60}]
    bodies = {"/v1/chat/completions": {"messages": long, "max_tokens": 2},
              "/v1/completions": {"prompt": "w5 w7 " * 60, "max_tokens": 2},
              "/v1/responses": {"input": "w5 w8 " * 60, "max_output_tokens": 2},
              "/v1/messages": {"messages": [{"role": "user", "content": "w5 w9 " * 60}],
                               "max_tokens": 2}, "/api/chat":
              {"messages": [{"role": "user", "content": "w5 w3 " * 60}],
               "options": {"num_predict": 2}},
              "/api/generate": {"prompt": "w5 w2 " * 60, "options": {"num_predict": 2}}}
    for path, body in bodies.items():
        raw = s.post(path, {**body, "stream": True, "return_progress": True})[1].decode()
        told = [json.loads(line.removeprefix("data: ")) for line in raw.splitlines()
                if '"prompt_progress"' in line]
        at = [t["prompt_progress"] for t in told]
        check("progress_" + path, at and at[-1]["processed"] == at[-1]["total"] > 60
              and all(a["processed"] < b["processed"] for a, b in zip(at, at[1:])), raw[:300])
    first, other = [{"prompt": [9, 8] * 100 + [x] + [5] * 100, "max_tokens": 1} for x in (3, 4)]
    s.post("/v1/completions", first)
    details = s.post("/v1/completions", other)[1]["usage"]["prompt_tokens_details"]
    texts = [s.post("/detokenize", {"tokens": [x]})[1]["content"].strip() for x in (3, 4)]
    miss = details.get("cache_miss", {})
    check("cache_miss", details["cached_tokens"] == 192 and miss.get("at") == 200
          and [miss[k].strip() for k in ("known", "given")] == texts, (details, texts))
    told = [s.post(p, {**b, "stream": False})[1] for _ in range(2) for p, b in bodies.items()]
    check("usage_of_all", all("cached_tokens" in json.dumps(t)
                              or "cache_read_input_tokens" in json.dumps(t) for t in told), told)
    good = s.post("/v1/completions",
                  {"prompt": "w5", "max_tokens": 4, "dry_multiplier": 1,
                   "dry_sequence_breakers": ["w5", "\n"]})
    check("dry_breakers", good[0] == 200
          and s.post("/v1/completions", {"prompt": "w5", "dry_sequence_breakers": [3]})[0] == 400,
          good[1])
    e = s.post("/v1/messages", {"messages": TALK})
    check("anthropic_error", e[0] == 400 and e[1]["type"] == "error"
          and e[1]["error"]["param"] == "max_tokens", e[1])
    e = s.post("/api/chat", {"messages": TALK, "formt": 1})
    check("ollama_error", e[0] == 400 and "formt" in e[1]["error"], e[1])
    for path, body in (("/v1/chat/completions",
                        {"messages": TALK, "tools": [], "tool_choice": "required"}),
                       ("/v1/chat/completions", {"messages": TALK, "tool_choice": "x"}),
                       ("/v1/responses", {"input": [{"type": "item_reference", "id": "a"}]}),
                       ("/v1/messages", {"messages":
                                         [{"role": "user", "content": [{"type": "tool_result"}]}],
                                         "max_tokens": 1}),
                       ("/api/chat", {"messages":
                                      [{"role": "user", "content": "a", "images": ["x"]}]}),
                       ("/api/generate", {"prompt": "a", "format": "xml"})):
        e = s.post(path, body)
        check("refused_%s" % list(body)[-1], e[0] == 400 and e[1]["error"], (path, body, e[1]))
    said = [1700000000.123, 48.858844312, 0.30000000000000004, 1099511627776.5]
    tool = {"name": "f", "input_schema":
            {"type": "object", "properties": {"x": {"const": said}}, "required": ["x"],
             "additionalProperties": False}}
    nested = {"type": "function", "function": {"name": "f", "parameters": tool["input_schema"]}}
    a = s.post("/v1/messages", {"messages": TALK, "max_tokens": 300, "tools": [tool],
                                "tool_choice": {"type": "any"}})[1]
    check("numbers_of_calls", a["content"][0]["input"] == {"x": said}, a)
    call = {"messages": TALK, "tools": [nested],
            "options": {"grammar": 'root ::= "%s"'
                        % json.dumps('<tool_call>\n%s\n</tool_call>'
                                     % json.dumps({"name": "f", "arguments": {"x": said}}))[1:-1],
                        "num_predict": 300}}
    a = s.post("/api/chat", {**call, "stream": False})[1]
    lines = [json.loads(x) for x in s.post("/api/chat", call)[1].decode().splitlines()]
    told = [c["function"]["arguments"] for x in [a, *lines]
            for c in x["message"].get("tool_calls", [])]
    check("numbers_of_ollamas_calls", told == [{"x": said}] * 2, (a, lines))
    a = s.post("/v1/responses", {"input": "w5", "max_output_tokens": 1, "temperature": 0.7,
                                 "tools": [{"type": "function", "name": "f",
                                            "parameters": tool["input_schema"]}]})[1]
    check("numbers_of_clients", a["tools"][0]["parameters"] == tool["input_schema"]
          and a["temperature"] == 0.7, a)
    begun = {"messages": TALK + [{"role": "assistant", "content": "w4\0w5 w6 w7"}]}
    cut = {"messages": TALK + [{"role": "assistant", "content": "w4"}]}
    n, n_cut = [s.post("/v1/messages/count_tokens", b)[1]["input_tokens"] for b in (begun, cut)]
    a = s.post("/v1/messages", {**begun, "max_tokens": 1, "ignore_eos": True})[1]["usage"]
    check("zero_byte_in_a_beginning",
          n >= n_cut + 3 and a["input_tokens"] + a["cache_read_input_tokens"] == n, (n, n_cut, a))
    named, nameless = {"name": "f", "description": "w1"}, {"description": "w1"}
    for path, body, tool, said in (("/v1/responses", {"input": "a"}, named, "has no type"),
                                   ("/v1/responses", {"input": "a"},
                                    {**nameless, "type": "function"}, "no name"),
                                   ("/v1/responses", {"input": "a"}, 3, "has no type"),
                                   ("/v1/messages", {"messages": TALK}, nameless, '"input_schema"'),
                                   ("/v1/messages", {"messages": TALK}, {"name": 3}, "no name")):
        e = s.post(path, {**body, "max_tokens" if "messages" in body else "max_output_tokens": 1,
                          "tools": [named, tool] if "messages" in body else [tool]})
        where = "tools[1]" if "messages" in body else "tools[0]"
        check("refused_tool", e[0] == 400 and said in e[1]["error"]["message"]
              and where in e[1]["error"]["message"], (tool, e[1]))


def test_instruct():
    model = os.environ.get("TEST_INSTRUCT")
    if not model or SCALE < 10:
        skip("instruct", "scripts/instruct.sh has not fetched the model" if SCALE >= 10
             else "at TEST_SCALE=10, with the instruct model")
        return
    import openai
    s = Server(model, "--ctx", "1024")
    try:
        ask_instruct(openai, s)
    finally:
        s.end()


def ask_instruct(openai, s):
    c = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0, timeout=LIMIT)
    tools = [{"type": "function",
              "function": {"name": "get_weather", "description": "Weather of a city",
                           "parameters": {"type": "object",
                                          "properties": {"city":
                                                         {"type": "string", "maxLength": 30}},
                                          "required": ["city"]}}}]
    talk = [{"role": "user", "content": "What is the weather in Paris?"}]
    a = c.chat.completions.create(model="", messages=talk, tools=tools, tool_choice="required",
                                  temperature=0, max_tokens=60).choices[0]
    check("instruct_call", a.finish_reason == "tool_calls"
          and json.loads(a.message.tool_calls[0].function.arguments) == {"city": "Paris"}, a)
    talk += [a.message.to_dict(),
             {"role": "tool", "tool_call_id": a.message.tool_calls[0].id,
              "content": "21 degrees and sunny"}]
    b = c.chat.completions.create(model="", messages=talk, temperature=0, max_tokens=40).choices[0]
    check("instruct_round", "21" in b.message.content, b)
    schema = {"type": "json_schema",
              "json_schema": {"name": "p",
                              "schema": {"type": "object",
                                         "properties": {"capital":
                                                        {"type": "string", "maxLength": 20}},
                                         "required": ["capital"]}}}
    b = c.chat.completions.create(model="",
                                  messages=[{"role": "user",
                                             "content": "The capital of France, as JSON"}],
                                  response_format=schema, temperature=0, max_tokens=30).choices[0]
    check("instruct_schema", json.loads(b.message.content) == {"capital": "Paris"}, b)


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "m.gguf"), "--ctx", "2048", "--layers", "2", "--seed",
                      "5")
        template = os.path.join(folder, "template.jinja")
        with open(template, "w") as f:
            f.write(TEMPLATE)
        s, embedder = Server(model, "--ctx", "2048", "--parallel", "4", "--chat-template",
                             template), Server(model, "--embeddings")
        for name, test in (("openai", lambda: test_openai(s, embedder)),
                           ("anthropic", lambda: test_anthropic(s)),
                           ("ollama", lambda: test_ollama(s, embedder)), ("openai", test_instruct)):
            if SCALE < 10:
                skip(name, "only in make test: packages take long to be imported")
                continue
            try:
                __import__(name)
            except ImportError:
                skip(getattr(test, "__name__", name).replace("<lambda>", name),
                     "the Python package %s is not installed" % name)
                continue
            guard(name, test)
        guard("extensions", lambda: test_extensions(s))
        check("ends", s.end() == 0 and embedder.end() == 0)


run(main, "test_clients")
