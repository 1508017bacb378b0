# In make test alone: make check has test_serve.py.
"""test_account.py -- what a request may cost: bytes and processor time are counted for each key,
bounded, and given back; work that is long lets others go first, and ends when its client's time
is over. Bytes, order and counts are compared, never times."""
import json
import os
import tempfile

from serving import LIMIT, SANITIZED, SCALE, Server, begin, check, completion, raw_post, run, synth

A, B = {"x-api-key": "aaaaaaaaaa"}, {"x-api-key": "bbbbbbbbbb"}
KEYS = ("--api-key", "a:aaaaaaaaaa", "--api-key", "b:bbbbbbbbbb", "--ctx", "256",
        "--open-metrics")
LONG = "w1 w2 w3 " * 250000  # 2 MB of text: long enough for others to come
TOOLS = [{"type": "function", "function": {"name": "f%d" % i, "parameters": {"type": "object"}}}
         for i in range(2000)]


def of_key(s, name, key="a"):
    for line in s.get("/metrics", **A)[1].decode().splitlines():
        if line.startswith('%s{key="%s"}' % (name, key)):
            return float(line.rsplit(" ", 1)[1])


def total(s, name):
    return next(float(line.rsplit(" ", 1)[1])
                for line in s.get("/metrics", **A)[1].decode().splitlines()
                if line.startswith(name + " "))


def code(answer):
    return answer[0], answer[1]["error"]["code"] if answer[0] >= 400 else None


def gives_back(s):
    return s.wait_for(lambda: of_key(s, "pith:key_bytes") == 0
                      and total(s, "pith:requests_bytes") == 0)


def test_windows(s):
    chain = "penalties:last_n=%d,repeat=1.1;dry:penalty_last_n=%d,multiplier=1;temp"
    for n in (1000001, 16777216):
        a = s.post("/v1/completions", completion("w1", 1, samplers=chain % (n, n)), **A)
        check("windows_of_a_text_of_%d" % n, a[0] == 400 and "1000000" in a[1]["error"]["message"],
              a[1])
    before = of_key(s, "pith:key_bytes_peak")
    a = s.post("/v1/completions", completion("w1", 1, n=128, samplers=chain % (1000000, 1000000)),
               **A)
    grown = of_key(s, "pith:key_bytes_peak") - before
    check("windows_are_no_larger_than_the_context", a[0] == 200 and grown < 16 << 20, (a[0], grown))
    check("sampling_is_counted", of_key(s, "pith:key_sampling_seconds_total") > 0)
    check("windows_are_given_back", gives_back(s), of_key(s, "pith:key_bytes"))


def test_searches(s):
    """What a beam search has found is told at its end: its key is charged for it, though nothing is
    drawn."""
    before = of_key(s, "pith:key_sampling_seconds_total")
    a = s.post("/v1/completions", completion("w1", 200, n=10, use_beam_search=True), **A)
    used = of_key(s, "pith:key_sampling_seconds_total") - before
    check("telling_of_a_search_is_counted", a[0] == 200
          and a[1]["usage"]["completion_tokens"] == 2000 and used > 0, (used, str(a[1])[:300]))


def test_turns(s):
    """Long work of one key, more of it than there are turns: the short one of another key, and one
    of its own, are answered before any of it."""
    order = []
    text = LONG if SCALE >= 10 else LONG[:len(LONG) // 2]

    def heavy():
        a = s.post("/tokenize", {"content": text}, **A)
        order.append("heavy")
        return a

    out, rest = begin([heavy] * 4)
    s.wait_for(lambda: of_key(s, "pith:key_work_seconds_total") > 0.1)
    for key, name in ((B, "other"), (A, "own")):
        a = s.post("/tokenize", {"content": "w1"}, **key)
        order.append(name if a[0] == 200 else a)
    answers = rest()
    check("short_work_goes_first", order[:2] == ["other", "own"] and order.count("heavy") == 4,
          order)
    check("long_work_comes_to_its_end",
          all(a[0] == 200 and a[1]["count"] == answers[0][1]["count"] > len(text) // 3
              for a in answers),
          [a[0] for a in answers])
    check("work_is_counted", of_key(s, "pith:key_work_seconds_total")
          > 10 * of_key(s, "pith:key_work_seconds_total", "b") > 0)
    check("work_is_given_back", gives_back(s), of_key(s, "pith:key_bytes"))


def test_deadline(s):
    whole = s.post("/v1/completions", completion(LONG), **A)
    check("a_long_prompt_is_over_the_context", code(whole) == (400, "context_length_exceeded"),
          whole[1])
    for path, body in (("/v1/completions", {**completion(LONG), "timeout": 0.1}),
                       ("/v1/embeddings", {"input": LONG, "timeout": 0.1}),
                       ("/api/generate", {"prompt": LONG, "options": {"timeout": 0.1}})):
        before = of_key(s, "pith:key_work_seconds_total")
        a = s.post(path, body, **A)
        said = a[1]["error"]["code"] if isinstance(a[1].get("error"), dict) else a[1].get("code")
        check("deadline_of_work_of_" + path.strip("/").replace("/", "_"),
              a[0] == 400 and said == "deadline_exceeded", a[1])
        check("deadline_ends_the_work_of_" + path.strip("/").replace("/", "_"),
              of_key(s, "pith:key_work_seconds_total") - before < 0.25)


def test_leaves(s):
    """Who leaves takes his work with him."""
    body = json.dumps({"content": LONG}).encode()
    before = of_key(s, "pith:key_work_seconds_total")
    for _ in range(8):
        c = s.connect(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nx-api-key: "
                      b"aaaaaaaaaa\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        c.close()
    check("who_has_left_costs_nothing_more", gives_back(s), of_key(s, "pith:key_bytes"))
    used = of_key(s, "pith:key_work_seconds_total") - before
    a = s.post("/tokenize", {"content": LONG}, **A)
    one = of_key(s, "pith:key_work_seconds_total") - before - used
    check("work_ends_when_its_client_has_left", a[0] == 200 and used < 4 * one, (used, one))


def test_poured(s):
    """Answers of any length are made as they are taken: a token is four bytes until then."""
    text = "w1 \u00e9\u4e2d \"\\/\t\x01" * 40000
    before = of_key(s, "pith:key_bytes_peak")
    a = s.post("/tokenize", {"content": text}, **A)
    n = a[1]["count"]
    check("a_long_list_is_whole", a[0] == 200 and len(a[1]["tokens"]) == n > 150000, (a[0], n))
    few = s.post("/tokenize", {"content": text[:1500]}, **A)[1]["tokens"]
    check("it_is_the_same_list", few[:200] == a[1]["tokens"][:200] and len(few) < 4096, few[:10])
    back = s.post("/detokenize", {"tokens": a[1]["tokens"]}, **A)
    check("a_long_text_is_whole",
          back[0] == 200 and back[1]["content"] == back[1]["prompt"]
          and back[1]["content"].replace("\u2581", " ").strip() == text.strip(), str(back[1])[:300])
    broken = [i for i in few if i][:3] + [s.post("/tokenize", {"content": "\u00e9"},
                                                 **A)[1]["tokens"][-1]]
    check("half_a_character", [s.post("/detokenize", {"tokens": broken * k}, **A)[1]["content"][-1]
                               for k in (1, 2000)] == ["\ufffd"] * 2, broken)
    check("a_long_answer_is_small", of_key(s, "pith:key_bytes_peak") - before < 100 << 20,
          of_key(s, "pith:key_bytes_peak") - before)
    check("what_was_poured_is_given_back", gives_back(s), of_key(s, "pith:key_bytes"))


def test_too_expensive(model):
    with Server(model, *KEYS, "--request-seconds", "0.05") as s:
        a = s.post("/tokenize", {"content": "w1 " * 300000}, **A)
        check("work_has_a_bound", code(a) == (400, "request_too_expensive")
              and "0.05" in a[1]["error"]["message"]
              and "--request-seconds" in a[1]["error"]["message"], a[1])
        check("work_that_was_stopped_was_short", of_key(s, "pith:key_work_seconds_total") < 0.2)
    with Server(model, *KEYS, "--request-seconds", "0", "--request-memory", "32M",
                "--requests-memory", "256M") as s:
        a = s.post("/tokenize", {"content": "1" * 24000000}, **A)
        check("memory_has_a_bound", code(a) == (400, "request_too_expensive")
              and "33554432" in a[1]["error"]["message"]
              and "--request-memory" in a[1]["error"]["message"], a[1])
        a = s.post("/v1/chat/completions",
                   {"messages": [{"role": "user", "content": "w1"}], "max_tokens": 1,
                    "response_format": {"type": "json_schema",
                                        "json_schema": {"name": "x",
                                                        "schema": {"enum":
                                                                   ["%060d" % i
                                                                    for i in range(200000)]}}}},
                   **A)
        check("memory_of_a_schema_has_a_bound", code(a) == (400, "request_too_expensive"), a[1])
        check("small_ones_are_answered",
              s.post("/v1/completions", completion("w1", 2), **A)[0] == 200)
        check("all_is_given_back", gives_back(s), of_key(s, "pith:key_bytes"))


def test_parts(model, folder):
    """Texts of JSON inside a request: the bound that ends the reading of one ends the request."""
    template = os.path.join(folder, "objects.jinja")
    with open(template, "w") as f:
        f.write("{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
                "{% for k, v in c.function.arguments.items() %}{{ k }}{% endfor %}{% endfor %}"
                "{% endfor %}")
    many = "[%s{}]" % ("{}," * 100000)
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": many}}] * 20
    body = {"messages": [{"role": "user", "content": "w1"},
                         {"role": "assistant", "content": "", "tool_calls": calls}]}
    with Server(model, *KEYS, "--request-memory", "24M", "--chat-template", template) as s:
        small = json.loads(json.dumps(body))
        small["messages"][1]["tool_calls"] = [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x7": 1}'}}]
        a = s.post("/apply-template", small, **A)
        check("arguments_are_objects", a[0] == 200 and "x7" in a[1]["prompt"], a[1])
        before = s.most_memory()
        a = s.post("/apply-template", body, **A)
        check("arguments_have_a_bound", code(a) == (400, "request_too_expensive")
              and "--request-memory" in a[1]["error"]["message"], a[1])
        check("their_memory_is_bounded", SANITIZED or s.most_memory() - before < 80 << 20,
              s.most_memory() - before)
        schema = '{"const": [%s{}]}' % ("{}," * 300000)
        a = s.post("/v1/completions", {**completion("w1", 1), "guided_json": schema}, **A)
        check("a_schema_in_a_text_has_a_bound", code(a) == (400, "request_too_expensive"), a[1])
        a = s.post("/v1/completions", {**completion("w1", 1), "guided_json": "{"}, **A)
        check("a_text_that_is_no_schema", a[0] == 400 and "guided_json is a text that is no JSON"
              in a[1]["error"]["message"], a[1])
        check("parts_are_given_back", gives_back(s), of_key(s, "pith:key_bytes"))
        made = s.post("/v1/responses", {"input": "w1", "max_output_tokens": 200}, **A)
        made = made[1]["output"][0]
        ask = {"input": [{"type": "item_reference", "id": made["id"]}] * 60000}
        a = s.post("/v1/responses/input_tokens", ask, **A)
        check("references_have_a_bound", code(a) == (400, "request_too_expensive"), a[1])
        a = s.post("/v1/responses/input_tokens", {"input": ask["input"][:1]}, **A)
        check("an_item_outlives_a_bound", a[0] == 200, a[1])


def test_memory_of_a_key(model):
    """What waits belongs to its key: it is told when it has its part, and another key has room."""
    with Server(model, *KEYS, "--parallel", "1", "--requests-memory", "16M", "--queue", "10000",
                "--ctx", "4096") as s:
        ask = completion("w1", 3000, logprobs=None)
        long, let_go = begin([lambda: s.post("/v1/completions", ask, **A)])
        s.wait_for(lambda: s.metric("vllm:num_requests_running") == 1)
        grammar = "root ::= (" + " | ".join('"%06d"' % i for i in range(500)) + ")+"
        out, rest = begin([lambda i=i: s.post("/v1/completions",
                                              completion("w%d" % i, 1, n=128, grammar=grammar), **A)
                           for i in range(12)])
        s.wait_for(lambda: sum(a is not None for a in out) >= 2)
        full = [a for a in out if a]
        check("a_key_has_its_part", full
              and all(a[0] == 429 and "--requests-memory" in a[1]["error"]["message"]
                      for a in full), [(a[0], a[1]) for a in full])
        check("its_part_is_half", of_key(s, "pith:key_bytes_peak") < 9 << 20,
              of_key(s, "pith:key_bytes_peak"))
        check("another_key_has_room", s.post("/v1/completions", completion("w1", 2), **B)[0] == 200)
        check("those_that_waited_are_answered",
              set(a[0] for a in rest()) == {200, 429} and let_go()[0][0] == 200,
              [(a[0], a[1]) for a in out])
        check("what_waited_is_given_back", gives_back(s), of_key(s, "pith:key_bytes"))


def test_kept(folder):
    """JSON that an answer tells of its request is there to its end, and takes far more than its
    text: it is in the account while the request waits, and a key that keeps much of it is told."""
    runs = raw_post("/v1/completions", completion("w1", 16000, stream=True, logprobs=None),
                    "x-api-key: aaaaaaaaaa\r\n")
    asks = (("/v1/responses", {"input": "w1", "max_output_tokens": 1, "store": False,
                               "metadata": {"a": [{}] * 100000}}, 20 << 20, 8),
            ("/completion", {"prompt": [3], "n_predict": 1,
                             "logit_bias": [[i, 1] for i in range(16384)]}, 4 << 20, 1))
    model = synth(os.path.join(folder, "many.gguf"), "--vocab", "20000")
    with Server(model, *KEYS, "--parallel", "1", "--requests-memory", "256M",
                "--ctx", "16384") as s:
        for path, body, least, n in asks:
            name = path.rsplit("/", 1)[-1]
            c = s.connect(runs)
            s.wait_for(lambda: s.metric("vllm:num_requests_running") == 1)
            out, rest = begin([lambda: s.post(path, body, **A)] * n)
            s.wait_for(lambda: s.metric("vllm:num_requests_waiting") + sum(
                a is not None for a in out) == n)
            held = min(of_key(s, "pith:key_bytes") for _ in range(20))
            check("what_is_kept_is_counted_" + name, held > least, (held, out))
            full = [code(a) for a in out if a]
            check("a_key_keeps_its_part_" + name, len(full) < n
                  and (n == 1) == (not full) and set(full) <= {(429, "key_memory_full")}, full)
            c.close()
            check("what_was_kept_is_given_back_" + name,
                  200 in [a[0] for a in rest()] and gives_back(s), [a[0] for a in out])


def test_answers(model):
    """An answer counts while it is made: logprobs as JSON are the most of it. One that passes what
    a request may have ends there, a stream keeps what is told of 512 tokens, and all is given
    back."""
    with Server(model, *KEYS, "--request-memory", "1400000", "--ctx", "4096") as s:
        ask = completion("w1", 3000, logprobs=5)
        status, answer, _ = s.post("/v1/completions", ask, **A)
        check("answer_is_too_large", status == 400 and "--request-memory" in
              answer["error"]["message"] and answer["error"]["code"] == "request_too_expensive",
              answer if status != 200 else status)
        check("it_was_counted", 1 << 19 < of_key(s, "pith:key_bytes_peak") < 2 << 20,
              of_key(s, "pith:key_bytes_peak"))
        check("answer_is_given_back", gives_back(s), of_key(s, "pith:key_bytes"))
        status, text, _ = s.post("/v1/completions", {**ask, "stream": True}, **A)
        check("stream_keeps_little", status == 200 and b"[DONE]" in text
              and text.count(b"data: ") >= 3000 and gives_back(s), text[-300:])
        status, answer, _ = s.post("/completion", {"prompt": "w1", "n_predict": 3000, "n_probs": 5,
                                                   "ignore_eos": True}, **A)
        check("native_answer_is_too_large", status == 400
              and "--request-memory" in answer["error"]["message"] and gives_back(s), status)


def test_unread(folder):
    """Streams that nobody reads are bounded by the account of their key, each and all together;
    those that are read are not, however long they are, and the room comes back."""
    model = synth(os.path.join(folder, "unread.gguf"), "--vocab", "2000")
    ask = {"messages": [{"role": "user", "content": "w1"}], "max_tokens": 2500, "n": 4,
           "logprobs": True, "top_logprobs": 20, "stream": True, "ignore_eos": True}
    with Server(model, *KEYS, "--parallel", "4", "--requests-memory", "16M", "--ctx",
                "4096") as s:
        status, text, _ = s.post("/v1/chat/completions", ask, **A)
        check("a_stream_that_is_read_is_whole", status == 200 and b"[DONE]" in text[-100:]
              and len(text) > 12 << 20, (status, len(text), text[-500:]))
        held = []
        for _ in range(3):
            held.append(s.connect(raw_post("/v1/chat/completions", ask,
                                           "x-api-key: aaaaaaaaaa\r\n")))
        s.wait_for(lambda: s.metric("vllm:num_requests_running") > 0)
        s.wait_for(s.at_rest)
        peak = of_key(s, "pith:key_bytes_peak")
        check("streams_unread_have_a_bound", 4 << 20 < peak < 10 << 20, peak)
        check("another_key_has_room_beside_them",
              s.post("/v1/completions", completion("w1", 2), **B)[0] == 200)
        check("streams_unread_are_given_back", gives_back(s), of_key(s, "pith:key_bytes"))
        for c in held:
            c.close()


def test_tables(folder):
    """What a sampler draws with is as large as the vocabulary, of each choice that runs: all of it
    is in the account, and as many choices run as have room."""
    vocab = 200000
    model = synth(os.path.join(folder, "wide.gguf"), "--vocab", str(vocab))
    ask = completion("w1", 20, n=8, logprobs=None, dry_multiplier=1, repeat_penalty=1.1)
    least = (8 + 4 + 8) * vocab  # of the list, what penalties count, what dry looks back to
    texts = []
    for memory, most in ("2G", 1 << 30), ("32M", 16 << 20):
        with Server(model, *KEYS, "--parallel", "8", "--requests-memory", memory) as s:
            status, a, _ = s.post("/v1/completions", {**ask, "seed": 1}, **A)
            texts.append([c["text"] for c in a["choices"]] if status == 200 else a)
            peak = of_key(s, "pith:key_bytes_peak")
            check("tables_of_choices_%s" % memory, status == 200 and len(texts[-1]) == 8
                  and (8 if memory == "2G" else 3) * least < peak <= most, (status, peak, least))
            check("tables_are_given_back_%s" % memory, gives_back(s), of_key(s, "pith:key_bytes"))
    check("fewer_at_a_time_say_the_same", texts[0] == texts[1], texts)


def test_queue_of_models(folder):
    """Requests for a model that is not there: one key fills the line, another still has its part of
    it."""
    models = [os.path.join(folder, n + ".gguf") for n in "xy"]
    for i, m in enumerate(models):
        synth(m, "--seed", str(i))
    with Server(models, *KEYS[:4], "--open-metrics", "--ctx", "4096", "--models-max", "1",
                "--queue", "4") as s:
        held, let_go = begin([lambda: s.post("/v1/completions", completion("w1", 3000, model="x"),
                                             **A)])
        s.wait_for(lambda: s.metric("vllm:num_requests_running", "x") == 1)
        out, rest = begin([lambda: s.post("/v1/completions",
                                          completion("w1", 1, model="y", timeout=LIMIT), **A)] * 6)
        s.wait_for(lambda: sum(a is not None for a in out) == 2)
        check("one_key_fills_the_line", sorted(a and a[0] for a in out if a) == [429, 429], out)
        b, let_b = begin([lambda: s.post("/v1/completions", completion("w1", 1, model="y"), **B)])
        check("another_has_its_part", let_b()[0][0] == 200, b[0])
        check("all_who_waited_are_answered",
              set(a[0] for a in rest()) == {200, 429} and let_go()[0][0] == 200,
              [a[0] for a in out])


def events(c):
    """What a stream says, as it comes."""
    with c.makefile("rb") as f:
        for line in f:
            if line.startswith(b"data: [DONE]"):
                return
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])


def test_many_choices(folder):
    """Where a step takes longer than --gap, the many choices of one key take turns: another key's
    one has a row in each step, and the steps are short."""
    model = os.path.join(folder, "slow.gguf")
    synth(model, "--layers", "4", "--embd", "512", "--ff", "2048", "--heads", "8")
    length = 100 if SCALE >= 10 else 25
    many = completion("w1", 2 * length, n=8, stream=True, logprobs=None)
    few = completion("w2", length, stream=True, logprobs=None)

    def stream(s, body, key):
        return events(s.connect(raw_post("/v1/completions", json.dumps(body).encode(), "".join(
            "%s: %s\r\n" % h for h in key.items()))))

    def steps(s):
        return [s.metric(n) for n in ("vllm:generation_tokens_total", "pith:steps_total")]

    with Server(model, *KEYS, "--parallel", "16", "--gap", "0.001") as s:
        made, spread = [0] * 8, [0]

        def read():
            for e in stream(s, many, A):
                for c in e.get("choices", []):
                    made[c["index"]] += 1
                    if not c.get("finish_reason"):
                        spread[0] = max(spread[0], max(made) - min(made))

        _, rest = begin([read])
        s.wait_for(lambda: min(made) > 2)
        mine = stream(s, few, B)
        next(mine)
        before = steps(s)
        n = sum(1 for _ in mine)
        tokens, taken = (b - a for a, b in zip(before, steps(s)))
        rest()
        check("another_key_has_short_steps", n >= length - 1 and tokens < 5 * taken,
              (n, tokens, taken))
        check("choices_take_turns", spread[0] <= 3, (spread, made))
        # Beside another key's text a prompt's choices begin one after the other: their first draws
        # are not all in one step.
        mine = stream(s, completion("w2", 8 * length, stream=True, logprobs=None), B)
        next(mine)
        order = [c["index"] for e in stream(s, {**many, "max_tokens": 6}, A)
                 for c in e.get("choices", []) if not c.get("finish_reason")]
        mine.close()
        first = [order.index(i) for i in range(8)]
        check("choices_begin_in_turns", len(set(order[:max(first)])) < max(first), order)


def test_most(model):
    with Server(model, *KEYS, "--requests-memory", "64M") as s:
        most = s.get("/props", **A)[1]["memory"]["most"]
        check("most_is_told", most["requests"] == 64 << 20 and most["model"] > 0
              and most["grammars"] == 64 << 20 and most["all"] == most["model"] + most["requests"]
              + most["grammars"] + most["beside"] and (SANITIZED or most["beside"] > 256 << 20),
              most)
        check("most_of_requests_is_a_metric", total(s, "pith:requests_bytes_max") == 64 << 20)
    with Server(model, *KEYS, "--requests-memory", "64M", "--grammar-cache", "3M", "--max-memory",
                "68M", wait=False) as s:
        s.process.wait(LIMIT)
        s.end()
        check("models_get_what_requests_leave",
              "--max-memory" in s.said and "1048576" in s.said
              and "--grammar-cache of 3145728" in s.said, s.said)


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "m.gguf")
        synth(model, "--seed", "3")
        with Server(model, *KEYS, "--embeddings", "--max-body", "64M", "--request-seconds",
                    "0") as s:
            test_windows(s)
            test_searches(s)
            test_poured(s)
            test_turns(s)
            test_deadline(s)
            test_leaves(s)
        test_too_expensive(model)
        test_parts(model, folder)
        test_memory_of_a_key(model)
        test_kept(folder)
        test_answers(model)
        test_unread(folder)
        test_tables(folder)
        test_queue_of_models(folder)
        test_many_choices(folder)
        test_most(model)


if __name__ == "__main__":
    run(main, __file__)
