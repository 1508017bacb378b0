#!/usr/bin/env python3
# In make test alone: make check has test_serve.py.
"""test_beams.py -- beam search over HTTP: its texts, and what is told of them, are those of a
search that is written down here and asks for one token at a time, whatever else runs and however
little room there is."""
import itertools
import os
import tempfile

from serving import Server, at_once, begin, check, completion, raw_post, run, synth

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "w5 w6"}
PROMPTS = ([5, 6, 7, 8], [9] * 70, [200, 3, 17])
MODES = (False, True, "never")


class Rows:
    """The 20 most probable tokens behind a list of tokens, best first."""
    def __init__(self, s):
        self.s, self.known = s, {}

    def of(self, tokens):
        key = tuple(tokens)
        if key not in self.known:
            a = self.s.post(TEXT, {"prompt": tokens, "max_tokens": 1, "temperature": 0,
                                   "logprobs": 20, "return_tokens_as_token_ids": True,
                                   "ignore_eos": True})[1]
            best = a["choices"][0]["logprobs"]["top_logprobs"][0]
            row = [(int(name.split(":")[1]), p) for name, p in best.items()]
            self.known[key] = sorted(row, key=lambda t: (-t[1], t[0]))
        return self.known[key]


def searched(rows, prompt, width, most, ends, penalty=1.0, early=False):
    """[(tokens, log-probabilities, sum)], the best first: at most `width`."""
    def score(total, n):
        return total / n ** penalty
    found, beams = [], [((), (), 0.0)]
    for n in range(1, most + 1):
        ways = [(ids + (i,), told + (p,), total + p) for ids, told, total in beams
                for i, p in rows.of(list(prompt) + list(ids))[:2 * width]]
        ways.sort(key=lambda w: -w[2])
        beams = [w for w in ways if w[0][-1] not in ends][:width]
        found += [w for w in ways if w[0][-1] in ends] + (beams if n == most else [])
        found = sorted(found, key=lambda w: -score(w[2], len(w[0])))[:width]
        if n == most or not beams:
            break
        reach = most if early == "never" and penalty > 0 else n
        worst = score(found[-1][2], len(found[-1][0])) if found else 0
        if len(found) == width and (early is True or score(beams[0][2], reach) <= worst):
            break
    return found


def asked(prompt, width, most, **more):
    return {"prompt": prompt, "max_tokens": most, "n": width, "use_beam_search": True,
            "logprobs": 2, "return_token_ids": True, "return_tokens_as_token_ids": True, **more}


def told(a):
    return [(tuple(c["token_ids"]), tuple(c["logprobs"]["token_logprobs"]))
            for c in a["choices"]]


def without_end(w, ends):
    """The end token is counted, and is no text."""
    return (w[0], w[1][:-1] if w[0][-1] in ends else w[1])


def test_same(s, rows, name=""):
    """Texts, order, log-probabilities: of every width, limit, penalty and way to end."""
    for prompt, width, most in itertools.product(PROMPTS, (1, 2, 3, 10), (1, 2, 6)):
        want = searched(rows, prompt, width, most, {2})
        status, a, _ = s.post(TEXT, asked(prompt, width, most))
        check("texts%s of %d tokens, %d wide, at most %d" % (name, len(prompt), width, most),
              status == 200 and told(a) == [without_end(w, {2}) for w in want],
              (a if status != 200 else told(a), want))
    seen = 0
    for prompt, width in itertools.product(PROMPTS[::2], (2, 4)):
        first = [i for i, _ in rows.of(prompt)]
        second = [i for i, _ in rows.of(prompt + first[:1])]
        ends = {2, first[1], second[0], second[3]}
        for penalty, early in itertools.product((1.0, 0.0, -2.0, 3.0), MODES):
            want = searched(rows, prompt, width, 7, ends, penalty, early)
            status, a, _ = s.post(TEXT, asked(prompt, width, 7, length_penalty=penalty,
                                              early_stopping=early,
                                              stop_token_ids=sorted(ends - {2})))
            check("ends%s %d wide, %s %s" % (name, width, penalty, early), status == 200
                  and told(a) == [without_end(w, ends) for w in want],
                  (a if status != 200 else told(a), want))
            seen += sum(w[0][-1] in ends for w in want)
    check("some texts have ended%s" % name, seen > 20, seen)


def test_told(s, rows):
    """What is told of each token; reasons; usage; fewer texts than were followed."""
    prompt = PROMPTS[0]
    a = s.post(TEXT, asked(prompt, 3, 5))[1]
    want = searched(rows, prompt, 3, 5, {2})
    t = s.post(TEXT, asked(prompt, 2, 300, ignore_eos=True))[1]["timings"]
    check("its 300 steps are no part of the prompt's time, which takes one",
          t["predicted_n"] == 600 and 0 < t["prompt_ms"] < t["predicted_ms"], t)
    check("usage", a["usage"]["completion_tokens"] == sum(len(w[0]) for w in want), a["usage"])
    for c, w in zip(a["choices"], want):
        tops = c["logprobs"]["top_logprobs"]
        best = [{"token_id:%d" % i: p for i, p in
                 (*rows.of(prompt + list(w[0][:k]))[:2], (w[0][k], w[1][k]))}
                for k in range(len(w[0]))]
        check("the most probable of each", tops == best, (tops, best))
        check("the reason", c["finish_reason"] == "length", c)
        text = s.post("/detokenize", {"tokens": list(w[0])})[1]["content"]
        check("the text", c["text"].strip() == text.strip(), (c["text"], text))
    few = s.post(TEXT, {**asked(prompt, 2, 5), "best_of": 5})[1]
    check("n of best_of", told(few) == [without_end(w, {2})
                                        for w in searched(rows, prompt, 5, 5, {2})[:2]], few)
    text = a["choices"][0]["text"]
    cut = text[len(text) // 2:][:2]
    stopped = s.post(TEXT, {**asked(prompt, 3, 5), "stop": cut})[1]["choices"][0]
    check("a stop text cuts it", stopped["text"] == text[:text.index(cut)]
          and stopped["finish_reason"] == "stop", (cut, text, stopped))
    many = s.post(TEXT, {**asked([PROMPTS[0], PROMPTS[2]], 2, 3)})[1]
    check("of two prompts", told(many) == [
        without_end(w, {2}) for p in (PROMPTS[0], PROMPTS[2])
        for w in searched(rows, p, 2, 3, {2})], many)
    echoed = s.post(TEXT, {"prompt": "w5", "max_tokens": 0, "echo": True, "n": 2,
                           "use_beam_search": True})
    check("nothing to search", echoed[0] == 200 and len(echoed[1]["choices"]) == 2, echoed[1])
    body = {"messages": [USER], "max_tokens": 5, "n": 3, "use_beam_search": True,
            "return_token_ids": True}
    c = s.post(CHAT, body)[1]
    want = searched(rows, c["prompt_token_ids"], 3, 5, {2})
    check("a chat", [tuple(x["token_ids"]) for x in c["choices"]] == [w[0] for w in want]
          and all(x["message"]["content"] for x in c["choices"]), (c, want))
    room = s.post(TEXT, asked([7] * 508, 3, 50))[1]
    check("a full context", [len(t[0]) for t in told(room)] == [5] * 3
          and told(room) == [without_end(w, {2})
                             for w in searched(rows, [7] * 508, 3, 5, {2})], told(room))
    one = s.post(TEXT, {**completion(prompt, 6), "use_beam_search": True, "temperature": 1})[1]
    greedy = s.post(TEXT, completion(prompt, 6))[1]
    check("one beam is the most probable token each time",
          one["choices"][0]["text"] == greedy["choices"][0]["text"], (one, greedy))


def test_beside(s, rows):
    """Several at once, beside texts that are drawn."""
    jobs = [asked(p, w, 6) for p, w in zip(PROMPTS * 2, (4, 2, 3, 10, 1, 5))]
    others = [completion([20 + k] * 9, 20) for k in range(4)]
    want = [s.post(TEXT, o)[1]["choices"] for o in others]
    got = at_once([lambda b=b: s.post(TEXT, b)[1] for b in jobs + others])
    for body, a in zip(jobs, got):
        found = searched(rows, body["prompt"], body["n"], 6, {2})
        check("at once, %d wide" % body["n"], told(a) == [without_end(w, {2}) for w in found], a)
    check("others beside them", [a["choices"] for a in got[len(jobs):]] == want)


def test_bad(s):
    for name, more in (("stream", {"stream": True}), ("n", {"n": 11}), ("best_of", {"best_of": 11}),
                       ("length_penalty", {"length_penalty": 101}),
                       ("length_penalty", {"length_penalty": "a"}),
                       ("early_stopping", {"early_stopping": "always"}),
                       ("early_stopping", {"early_stopping": 3}),
                       ("early_stopping", {"use_beam_search": False, "early_stopping": "x"}),
                       ("use_beam_search", {"use_beam_search": "yes"}),
                       ("grammar", {"grammar": 'root ::= "a"'}),
                       ("response_format", {"response_format": {"type": "json_object"}}),
                       ("bad_words", {"bad_words": ["a"]}),
                       ("logit_bias", {"logit_bias": {"5": 3}}),
                       ("banned_tokens", {"banned_tokens": [5]}),
                       ("allowed_token_ids", {"allowed_token_ids": [5]}),
                       ("logprob_token_ids", {"logprob_token_ids": [5], "logprobs": 1}),
                       ("post_sampling_probs", {"post_sampling_probs": True, "logprobs": 1}),
                       ("min_tokens", {"min_tokens": 2}),
                       ("context_shift", {"context_shift": True}),
                       ("t_max_predict_ms", {"t_max_predict_ms": 100}),
                       ("repeat_penalty", {"repeat_penalty": 1.5}),
                       ("repetition_penalty", {"repetition_penalty": 1.5}),
                       ("frequency_penalty", {"frequency_penalty": 1}),
                       ("presence_penalty", {"presence_penalty": 1}),
                       ("dry_multiplier", {"dry_multiplier": 1})):
        status, a, _ = s.post(TEXT, {"prompt": "w5", "max_tokens": 2, "n": 2,
                                     "use_beam_search": True, **more})
        word = "early_stopping" if name == "early_stopping" else name
        check("bad %s" % more, status == 400 and (word in a["error"]["message"]
                                                  or "use_beam_search" in a["error"]["message"]), a)
    for more in ({"repeat_penalty": 1}, {"min_tokens": 0}, {"frequency_penalty": 0},
                 {"temperature": 2, "top_k": 1, "seed": 5}, {"logit_bias": None}):
        status, a, _ = s.post(TEXT, {"prompt": "w5", "max_tokens": 2, "n": 2,
                                     "use_beam_search": True, **more})
        check("harmless %s" % more, status == 200, a)
    status, a, _ = s.post(CHAT, {"messages": [USER], "max_tokens": 2, "use_beam_search": True,
                                 "tools": [{"type": "function", "function": {"name": "f"}}]})
    check("no tools", status == 400, a)


def test_many_that_wait(model):
    """Those that wait are looked at a few times in a step, not once for each other one."""
    n = 60
    with Server(model, "--ctx", "256", "--parallel", "2", "--queue", "200") as s:
        held = [s.connect(raw_post(TEXT, asked([i, 7], 2, 200))) for i in range(n)]
        s.wait_for(lambda: (s.metric("vllm:num_requests_waiting") or 0) >= n // 2)
        looks, steps = (s.metric("pith:choices_looked_at_total"), s.metric("pith:steps_total"))
        s.wait_for(lambda: s.metric("pith:steps_total") > steps + 50)
        steps = s.metric("pith:steps_total") + 1 - steps
        looks = s.metric("pith:choices_looked_at_total") - looks
        check("choices looked at in a step", 0 < looks <= 8 * 2 * n * (steps + 2),
              (looks, steps))
        for c in held:
            c.close()


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "m.gguf"), "--ctx", "512", "--layers", "2", "--seed",
                      "5")
        with Server(model, "--ctx", "512") as s:
            rows = Rows(s)
            test_same(s, rows)
            test_told(s, rows)
            test_beside(s, rows)
            test_bad(s)
            s.wait_for(s.at_rest)
            check("at rest", s.at_rest())
        test_many_that_wait(model)
        # fewer sequences than beams, and fewer pages than they want
        with Server(model, "--ctx", "512", "--parallel", "2", "--cache-tokens", "512") as s:
            test_same(s, rows, " (two sequences)")
            test_beside(s, rows)
            gone = begin([lambda: s.post(TEXT, asked(PROMPTS[0], 10, 400, timeout=0.05))])
            a = gone[1]()[0]
            check("out of time", a[0] == 400 or len(a[1]["choices"]) == 10, a)
            s.wait_for(s.at_rest)


run(main, "test_beams")
