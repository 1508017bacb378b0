#!/usr/bin/env python3
# In make test alone: make check has test_serve.py.
"""test_masks_serve.py -- grammars on the server: masks that are made beside the steps change no
text, compiled grammars are kept for the next request, and what a grammar cannot do is told in
its own words."""
import json
import os
import tempfile

from serving import SCALE, Server, at_once, check, raw_post, run, synth

SCHEMA = {"type": "object", "properties":
          {"a": {"type": "string", "maxLength": 9},
           "b": {"type": "array", "items": {"type": "integer"}, "maxItems": 3}},
          "required": ["a", "b"]}
AMBIGUOUS = 'root ::= s\ns ::= [a-z0-9 ] s [a-z0-9 ] | ""'
# Behind more than is looked at when a grammar is compiled.
TOO_AMBIGUOUS = 'root ::= [a-z0-9 ]{300} s\ns ::= [a-z0-9 ]' + 16 * ' s' + '| [a-z0-9 ]'
BESIDE, COMPILED, KEPT = ("pith:masks_beside_total", "pith:grammars_compiled_total",
                          "pith:grammars_kept_total")


def body(i, **more):
    return {"prompt": "w%d w2" % i, "max_tokens": 30, "temperature": 1, "seed": i, "n": 2,
            "logprobs": 2, **more}


def schema_body(i):
    return body(i, response_format={"type": "json_schema",
                                    "json_schema": {"name": "s", "schema": SCHEMA}})


def texts(s, bodies):
    got = at_once([lambda b=b: s.post("/v1/completions", b) for b in bodies])
    return [[(c["text"], c["finish_reason"], c["logprobs"]) for c in a["choices"]] if status == 200
            else (status, a) for status, a, _ in got]


FIRST, OTHER = {"x-api-key": "first-secret"}, {"x-api-key": "other-secret"}
KEYS = ("--api-key", "a:first-secret", "--api-key", "b:other-secret",
        "--open-metrics")
CALLS = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in "
         "m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor "
         "%}<|im_end|>\n{% endfor %}"
         "{% if tools %}{{ tools | tojson }}{% endif %}<|im_start|>assistant\n")


def counts(s):
    return s.metric(COMPILED), s.metric(KEPT)


def test_keys(model):
    """What one key has had compiled is not there for another, unless they share."""
    one = {"prompt": "w1", "max_tokens": 2, "grammar": 'root ::= "w1" [0-9]+'}
    for more, want in (((), [(1, 0), (2, 0), (2, 1), (2, 2), (3, 2)]),
                       (("--share-prefixes",), [(1, 0), (1, 1), (1, 2), (1, 3), (2, 3)])):
        with Server(model, *KEYS, *more) as s:
            got = []
            for key, text in ((FIRST, one), (OTHER, one), (FIRST, one), (OTHER, one),
                              (OTHER, {**one, "grammar": 'root ::= "w1" [0-8]+'})):
                status = s.post("/v1/completions", text, **key)[0]
                got.append(counts(s) if status == 200 else status)
            check("keys_apart" if not more else "keys_share", got == want, got)


def test_many(model):
    """More of them than are kept: the oldest goes, the others are found."""
    ask = [{"prompt": "w1", "max_tokens": 1, "grammar": 'root ::= "w%d"' % i} for i in range(60)]
    with Server(model, "--grammar-cache", "64K") as s:
        for b in ask:
            s.post("/v1/completions", b)
        check("newest_are_kept", s.post("/v1/completions", ask[-1])[0] == 200
              and counts(s) == (60, 1), counts(s))
        check("oldest_is_gone", s.post("/v1/completions", ask[0])[0] == 200
              and counts(s) == (61, 1), counts(s))
        check("newest_are_kept_still",
              s.post("/v1/completions", ask[-1])[0] == 200 and counts(s) == (61, 2), counts(s))


def test_refused(model):
    """What is refused is refused again by what was said of it, and nothing is compiled; where it
    was ended from outside it is tried again."""
    ask = [{"prompt": "w1", "max_tokens": 1, "grammar": g} for g in
           ("root ::= s\ns ::= [ab] s s | [ab]", 'root ::= "a', "root ::= nobody")]
    ask.append({"prompt": "w1", "max_tokens": 1, "json_schema": {"type": "object", "if": {}}})
    with Server(model, *KEYS) as s:
        first = [s.post("/v1/completions", b, **FIRST)[:2] for b in ask]
        check("refused", all(a[0] == 400 for a in first) and counts(s) == (4, 0),
              (first, counts(s)))
        again = [s.post("/v1/completions", b, **FIRST)[:2] for b in ask]
        check("refused_again", again == first and counts(s) == (4, 4), (again, counts(s)))
        other = s.post("/v1/completions", ask[0], **OTHER)[:2]
        check("refused_to_others_by_itself", other == first[0] and counts(s) == (5, 4), counts(s))
    long = {"prompt": "w1", "max_tokens": 1,
            "grammar": "root ::= " + 6 * "(" + '"a"' + 6 * "){3,7}"}
    with Server(model, "--request-memory", "1M") as s:
        said = [s.post("/v1/completions", long)[1]["error"]["code"] for _ in range(2)]
        check("work_that_was_ended_is_not_kept", counts(s) == (2, 0)
              and said == ["request_too_expensive"] * 2, (said, counts(s)))
    with Server(model, "--grammar-cache", "0") as s:
        for _ in range(2):
            s.post("/v1/completions", ask[0])
        check("no_refusal_is_kept", counts(s) == (2, 0), counts(s))


def test_calls(model, folder):
    """The grammar of calls that may come is kept as others are, and its masks are in the account of
    its key."""
    tools = [{"type": "function",
              "function": {"name": "f", "parameters":
                           {"type": "object", "properties": {"a": {"type": "integer"}}}}}]
    ask = {"messages": [{"role": "user", "content": "w1"}], "max_tokens": 3}
    path = os.path.join(folder, "calls.jinja")
    with open(path, "w") as f:
        f.write(CALLS)
    with Server(model, *KEYS, "--chat-template", path, "--requests-memory", "1G", "--parallel",
                "4") as s:
        def peak():
            return next(float(line.rsplit(" ", 1)[1])
                        for line in s.get("/metrics", **FIRST)[1].decode().splitlines()
                        if line.startswith('pith:key_bytes_peak{key="a"}'))
        check("no_calls", s.post("/v1/chat/completions", ask, **FIRST)[0] == 200
              and counts(s) == (0, 0), counts(s))
        before = peak()
        got = [s.post("/v1/chat/completions", {**ask, "tools": tools}, **FIRST)[0]
               for _ in range(3)]
        check("calls_are_kept", got == [200] * 3 and counts(s) == (1, 2), (got, counts(s)))
        check("calls_are_in_the_account", before < 32 << 20 and peak() >= 64 << 20,
              (before, peak()))


def test(folder):
    model = synth(os.path.join(folder, "model.gguf"), "--arch", "llama")
    bodies = [schema_body(i) for i in range(4)] + [body(i)
                                                   for i in range(4)] + [body(i,
                grammar='root ::= ("w" [0-9]+ " "?)+') for i in range(4)]
    with Server(model, "--mask-steps", "64M") as s:
        want = texts(s, bodies)
        check("all_are_answered", all(isinstance(a, list) for a in want), want)
        check("nothing_is_beside", s.metric(BESIDE) == 0, s.metric(BESIDE))
        check("compiled_once", s.metric(COMPILED) >= 2 and s.metric(COMPILED) + s.metric(KEPT) == 8,
              (s.metric(COMPILED), s.metric(KEPT)))
        before = s.metric(COMPILED), s.metric(KEPT)
        texts(s, bodies)
        check("kept", (s.metric(COMPILED), s.metric(KEPT)) == (before[0], before[1] + 8),
              (before, s.metric(COMPILED), s.metric(KEPT)))
    with Server(model, "--mask-steps", "1", "--grammar-cache", "0") as s:
        got = texts(s, bodies)
        check("beside_changes_no_text", got == want, [(a, b) for a, b in zip(got, want) if a != b])
        check("beside", s.metric(BESIDE) > 20, s.metric(BESIDE))
        texts(s, bodies)
        check("none_is_kept", (s.metric(COMPILED), s.metric(KEPT)) == (16, 0),
              (s.metric(COMPILED), s.metric(KEPT)))
    with Server(model, "--mask-steps", "1", "--parallel", "2", "--queue", "64", "--ctx", "64",
                "--cache-tokens", "192") as s:
        got = texts(s, bodies)
        check("where_others_wait", [a for a, b in zip(got, want) if a != b] == [], got)
        status, answer, _ = s.post("/v1/completions",
                                   body(1, grammar=AMBIGUOUS, max_tokens=50, timeout=0.05))
        check("deadline", status in (200, 400), answer)
        check("it_rests", s.wait_for(s.at_rest) is None or s.at_rest())
    with Server(model, "--ctx", "4096") as s:
        if SCALE >= 10:  # masks until then take seconds
            status, answer, _ = s.post("/v1/completions",
                                       body(1, grammar=TOO_AMBIGUOUS, max_tokens=4000, n=1,
                                            logit_bias={"2": -100}))
            said = answer.get("error", {}).get("message", "")
            check("its_own_error", status == 400 and 'rule "s"' in said and "too many ways" in said,
                  (status, said))
        status, answer, _ = s.post("/v1/completions",
                                   body(1, grammar='root ::= "w1"', max_tokens=20, ignore_eos=True))
        check("an_end_is_an_end", status == 200 and answer["choices"][0]["finish_reason"] == "stop",
              answer)
        check("goes_on", s.post("/v1/completions", body(1))[0] == 200)
    test_keys(model)
    test_many(model)
    test_refused(model)
    test_calls(model, folder)


def key(s, name):
    return next(float(line.rsplit(" ", 1)[1]) for line in s.get("/metrics")[1].decode().splitlines()
                if line.startswith(name + "{"))


def test_account(folder):
    """What is made beside is in its key's account while it is: two rows of the vocabulary, and the
    time of the thread that makes it."""
    vocab = 200000
    model = synth(os.path.join(folder, "wide.gguf"), "--arch", "llama", "--vocab", str(vocab))
    one = {"prompt": "w1", "max_tokens": 8, "temperature": 1, "seed": 1,
           "grammar": "root ::= [a-z0-9 ]+"}
    peak, seconds = [], []
    for steps in ("64M", "1"):
        with Server(model, "--ctx", "64", "--mask-steps", steps) as s:
            check("answered_%s" % steps, s.post("/v1/completions", one)[0] == 200)
            check("given_back_%s" % steps, s.wait_for(lambda: key(s, "pith:key_bytes") == 0),
                  key(s, "pith:key_bytes"))
            peak.append(key(s, "pith:key_bytes_peak"))
            check("made_%s" % steps, (s.metric(BESIDE) > 0) == (steps == "1"), s.metric(BESIDE))
    check("copies_are_counted", peak[1] - peak[0] > 7.9 * vocab, peak)
    with Server(model, "--ctx", "64", "--mask-steps", "1", "--requests-memory", "4M") as s:
        status, answer, _ = s.post("/v1/completions", one)
        check("no_room_for_copies", status == 429 and answer["error"]["code"] == "key_memory_full"
              and "%d more" % (8 * vocab) in answer["error"]["message"], answer)
        check("nothing_is_kept_of_who_is_refused",
              s.wait_for(lambda: key(s, "pith:key_bytes") == 0) and s.metric(BESIDE) == 0,
              key(s, "pith:key_bytes"))
    if SCALE < 10:  # its masks take seconds
        return
    # Masks are all but a few hundredths of a percent of what this costs, so it is a matter of who
    # is charged, not of how fast anything is.
    model = os.path.join(folder, "model.gguf")
    for steps in ("64M", "1"):
        with Server(model, "--ctx", "512", "--mask-steps", steps) as s:
            s.post("/v1/completions", body(1, grammar=AMBIGUOUS, max_tokens=60, n=1, temperature=0,
                                           logit_bias={"2": -100}))
            seconds.append(key(s, "pith:key_sampling_seconds_total"))
            check("given_back_by_who_fails_%s" % steps,
                  s.wait_for(lambda: key(s, "pith:key_bytes") == 0), key(s, "pith:key_bytes"))
    check("time_is_charged", seconds[1] > seconds[0] / 50, seconds)


def test_first_ends(folder):
    """Masks are of all choices of a request: they are in the account until the last one ends,
    whichever ends first."""
    ask = {"prompt": "w1", "max_tokens": 3000, "temperature": 1, "n": 2, "stream": True,
           "grammar": 'root ::= "w1" | "w2" [a-z0-9 ]{9000}'}
    with Server(os.path.join(folder, "model.gguf"), "--ctx", "4096", "--parallel", "4") as s:
        for seed in range(40):
            held, ended = None, set()
            for e in stream(s, {**ask, "seed": seed}):
                for c in e["choices"]:
                    if c["finish_reason"]:
                        ended.add(c["index"])
                if ended == {0}:
                    held = key(s, "pith:key_bytes")
                if ended:
                    break
            s.wait_for(s.at_rest)
            if held:
                break
        check("masks_outlive_the_first_choice", held and held > 60 << 20, (seed, held))
        check("masks_are_given_back", s.wait_for(lambda: key(s, "pith:key_bytes") == 0),
              key(s, "pith:key_bytes"))


def stream(s, body):
    with s.connect(raw_post("/v1/completions", body)).makefile("rb") as f:
        for line in f:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])


def main():
    with tempfile.TemporaryDirectory() as folder:
        test(folder)
        test_account(folder)
        test_first_ends(folder)


run(main, "test_masks_serve")
