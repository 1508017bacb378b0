#!/usr/bin/env python3
# In make test alone: make check has test_serve.py.
"""test_rank.py -- /rerank in the shapes of Jina, Cohere and TEI gives the scores of pith rerank;
vectors of inputs longer than 8,192 tokens; prefixes that a model's file has for texts."""
import json
import os
import subprocess
import tempfile

from report import run
from serving import LIMIT, PITH, SHARED, Server, check, skip, synth

RANK = os.path.join(SHARED, "golden", "arch", "qwen3-rank.gguf")
TEXTS = ["a b", "c </s> d", "hello", "a b", "who"]
PATHS = ("/rerank", "/v1/rerank", "/v2/rerank", "/v1/reranking", "/reranking")


def scores(*texts):
    p = subprocess.run([PITH, "rerank", RANK, "-q", "who", "--jsonl"], capture_output=True,
                       input="".join(json.dumps(t) + "\n" for t in texts), text=True,
                       timeout=LIMIT)
    assert p.returncode == 0, p.stderr
    return [json.loads(line)["score"] for line in p.stdout.splitlines()]


def close(a, b):
    return len(a) == len(b) and all(i == k and abs(x - y) <= 1e-6 * max(abs(y), 1e-9)
                                    for (i, x), (k, y) in zip(a, b))


def test_rerank(s):
    want = sorted(enumerate(scores(*TEXTS)), key=lambda v: (-v[1], v[0]))
    for path in PATHS:
        status, a, _ = s.post(path, {"query": "who", "documents": TEXTS, "model": "qwen3-rank"})
        got = [(r["index"], r["relevance_score"]) for r in a.get("results", [])]
        check("scores " + path, status == 200 and close(got, want), (status, a, want))
    check("no texts unless asked for", all("document" not in r for r in a["results"]), a)
    n = a["usage"]["prompt_tokens"]
    pairs = [len(s.post("/tokenize", {"content": t, "parse_special": False})[1]["tokens"])
             for t in ["who"] + TEXTS]
    check("usage", a["usage"] == {"prompt_tokens": n, "total_tokens": n}
          and n == sum(pairs[1:]) + len(TEXTS) * (pairs[0] + 3), (a["usage"], pairs))
    check("Cohere's", a["id"] and a["meta"]["billed_units"]["search_units"] == 1, a)
    a = s.post("/v1/rerank", {"query": "who", "documents": [{"text": t} for t in TEXTS], "top_n": 2,
                              "return_documents": True})[1]
    check("objects, the best two, with texts",
          [(r["index"], r["document"]) for r in a["results"]]
          == [(i, {"text": TEXTS[i]}) for i, _ in want[:2]], a)
    a = s.post("/rerank", {"query": "who", "texts": TEXTS, "return_text": True, "top_n": 99})[1]
    check("TEI's", close([(r["index"], r["score"]) for r in a], want)
          and [r["text"] for r in a] == [TEXTS[i] for i, _ in want], a)
    many = ["a" * (i % 17 + 1) for i in range(200)]
    a = s.post("/rerank", {"query": "who", "texts": many})[1]
    one = scores(*many)
    check("many", len(a) == 200 and all(abs(r["score"] - one[r["index"]]) < 1e-6 for r in a), a[:3])
    test_beside(s, want)
    check("props", s.get("/props")[1]["ranks"] is True and not s.get("/props")[1]["embeds"])
    status, a, _ = s.post("/v1/embeddings", {"input": "a"})
    check("no vectors", status == 400 and "--embeddings" in a["error"]["message"], a)
    status, a, _ = s.post("/v1/completions", {"prompt": "a"})
    check("no text", status == 400, a)


def test_beside(s, want):
    """An answer of many results, or of long texts, is written beside the steps."""
    def ask(documents, **more):
        before = s.metric("pith:answers_beside_total")
        status, a, _ = s.post("/rerank", {"query": "who", "documents": documents, **more})
        return status, a, s.metric("pith:answers_beside_total") - before

    check("few are written at once", ask(TEXTS, return_documents=True)[2] == 0)
    many = [{"text": t, "other": "x" * 100} for t in TEXTS] * 120
    status, a, n = ask(many, return_documents=True)
    got = [(r["index"], r["document"]) for r in a.get("results", [])]
    scored = [(r["index"] % len(TEXTS), r["relevance_score"]) for r in a.get("results", [])]
    check("many results beside", (status, n) == (200, 1)
          and sorted(got, key=lambda r: r[0]) == [(i, {"text": d["text"]})
                                                  for i, d in enumerate(many)]
          and all(abs(x - dict(want)[i]) < 1e-6 for i, x in scored), (status, n, got[:3]))
    status, a, n = ask(["a " * 60] * 300, return_documents=True, top_n=1)
    check("long texts beside", (status, n, len(a.get("results", []))) == (200, 1, 1),
          (status, n, str(a)[:300]))


def test_bad(s):
    good = {"query": "a", "documents": ["b"]}
    for name, body, status, said in (
            ("no documents", {"query": "a"}, 400, "documents"),
            ("none of them", {**good, "documents": []}, 400, "documents"),
            ("numbers", {**good, "documents": [1, 2]}, 400, "documents[0]"),
            ("no text in it", {**good, "documents": [{"title": "a"}]}, 400, "documents[0]"),
            ("both", {**good, "texts": ["b"]}, 400, "one of them"),
            ("no query", {"documents": ["b"]}, 400, "query"),
            ("too many", {**good, "documents": ["b"] * 4097}, 400, "4097"),
            ("top_n of 0", {**good, "top_n": 0}, 400, "top_n"),
            ("too long", {**good, "documents": ["b", "c " * 3000]}, 400, "text 1"),
            ("another model", {**good, "model": "other"}, 404, "other")):
        got, a, _ = s.post("/rerank", body)
        check("bad: " + name, got == status and said in a["error"]["message"], (got, a))
    got = s.post("/v1/rerank", {**good, "strange": 3})
    check("left out is told", got[0] == 200 and "strange" in got[2].getheader("x-pith-ignored"))


def test_without_a_head(folder):
    model = synth(os.path.join(folder, "long.gguf"), "--ctx", "12000")
    with Server(model, "--embeddings", "--ctx", "12000") as s:
        for path in PATHS:
            status, a, _ = s.post(path, {"query": "a", "documents": ["b"]})
            check("no head " + path, status == 501 and "cls.output.weight" in a["error"]["message"],
                  a)
        n = s.get("/props")[1]["n_input"]
        ids = [3 + i % 40 for i in range(9000)]
        status, a, _ = s.post("/v1/embeddings", {"input": ids})
        check("9,000 tokens", n == 12000 and status == 200
              and a["usage"]["prompt_tokens"] == 9000, (n, status, str(a)[:300]))
        b = s.post("/v1/embeddings", {"input": ids[:8999] + [50]})[1]
        check("all of them count", a["data"][0]["embedding"] != b["data"][0]["embedding"])
        status, a, _ = s.post("/v1/embeddings", {"input": ids + ids})
        check("longer than that", status == 400 and "12000" in a["error"]["message"], a)


def embed(model, *args):
    p = subprocess.run([PITH, "embed", model, *args], stdin=subprocess.DEVNULL,
                       capture_output=True, text=True, timeout=LIMIT)
    return p.returncode, [json.loads(x)["embedding"] for x in p.stdout.splitlines()], p.stderr


def test_prefixes():
    story = os.path.join(SHARED, "vectors", "models", "stories260K.gguf")
    keys = [x for name, text in (("query", "find: "), ("passage", "Once "))
            for x in ("--override-kv", "sentence_transformers.prompts.%s=str:%s" % (name, text))]
    with Server(story, "--embeddings", *keys) as s:
        def vector(**body):
            status, a, r = s.post("/v1/embeddings", body)
            assert status == 200, a
            return [d["embedding"] for d in a["data"]], r.getheader("x-pith-ignored")

        plain = vector(input=["find: a cat", "Once a cat", "a cat"])[0]
        for field, name, i in (("prompt_name", "query", 0), ("prompt_name", "passage", 1),
                               ("input_type", "query", 0), ("input_type", "search_query", 0),
                               ("input_type", "document", 1), ("input_type", "passage", 1)):
            got = vector(input="a cat", **{field: name})
            check("%s %s" % (field, name), got == ([plain[i]], None), got[1])
        got = vector(input=["a cat"], input_type="clustering")
        check("a kind without one", got[0] == [plain[2]] and "clustering" in got[1], got[1])
        texts = ["a cat", "the dog %s"] * 100
        texts = [t % i if "%" in t else t for i, t in enumerate(texts)]
        for more in ({}, {"dimensions": 48, "encoding_format": "base64"}):
            before = s.metric("pith:answers_beside_total")
            few = vector(input=texts[:4], **more)[0]
            at_once = s.metric("pith:answers_beside_total") - before
            many = vector(input=texts, **more)[0]
            beside = s.metric("pith:answers_beside_total") - before
            check("many vectors are written beside the steps %s" % more, (at_once, beside)
                  == (0, 1) and many[:4] == few and many[0] == many[2] != many[3],
                  (at_once, beside, len(many)))
        for name, body in (("unknown name", {"input": "a", "prompt_name": "none"}),
                           ("tokens", {"input": [3, 4], "prompt_name": "query"}),
                           ("mixed", {"input": [["a", 4]], "input_type": "query"}),
                           ("no text", {"input": "a", "input_type": 3})):
            status, a, _ = s.post("/v1/embeddings", body)
            check("bad prefix: " + name, status == 400, (status, a))
        a = s.post("/api/embed", {"input": "a cat", "prompt_name": "query"})[1]
        check("Ollama's", a["embeddings"] == [plain[0]], a)
    code, got, err = embed(story, *keys, "--prompt-name", "query", "a cat")
    check("pith embed", code == 0 and got == embed(story, "find: a cat")[1], err)
    code, _, err = embed(story, *keys, "--prompt-name", "none", "a cat")
    check("pith embed: unknown name", code == 2 and "prompts.none" in err, err)
    code, _, err = embed(story, *keys, "--prompt-name", "query", "--prefix", "a", "a cat")
    check("pith embed: both", code == 1 and "exclude" in err, err)


def main():
    if not os.path.exists(RANK):
        skip("rank", "no " + RANK)
        return
    with Server(RANK, "--no-store-dir") as s:
        test_rerank(s)
        test_bad(s)
    with tempfile.TemporaryDirectory() as folder:
        test_without_a_head(folder)
    test_prefixes()


run(main, "test_rank")
