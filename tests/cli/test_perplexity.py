#!/usr/bin/env python3
"""test_perplexity.py -- pith perplexity gives the figure that the logits of pith logits give, chunk
by chunk, and tells what is wrong with a text, a model or a flag."""
import json
import math
import os
import struct
import subprocess
import tempfile

from report import LIMIT, PITH, SHARED, check, run, skip, synth

STORY = os.path.join(SHARED, "vectors", "models", "stories260K.gguf")
TEXT = ("Once upon a time there was a little dog. It had a red ball, and it ran with it all day. "
        "\"Look!\" said Lily. The dog was happy.\n") * 4
NO_BOS = ("--override-kv", "tokenizer.ggml.add_bos_token=bool:false")


def pith(*args, said=""):
    """Status, stdout, stderr."""
    p = subprocess.run([PITH, *args], input=said.encode(), stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, timeout=LIMIT)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def scored(text, *flags):
    code, out, err = pith("perplexity", STORY, "--json", *flags, said=text)
    assert code == 0, err
    return json.loads(out)


def logits(folder, ids):
    path = os.path.join(folder, "l")
    code, _, err = pith("logits", STORY, "--tokens", ",".join(map(str, ids)), "-o", path)
    assert code == 0, err
    with open(path, "rb") as f:
        data = f.read()
    v = len(data) // 4 // len(ids)
    return [struct.unpack_from("<%df" % v, data, 4 * v * i) for i in range(len(ids))]


def by_hand(folder, ids, n_ctx, n_chunks, bos):
    """-log p of the tokens that are scored."""
    nll = []
    for c in range(min(n_chunks, len(ids) // n_ctx)):
        chunk = ids[c * n_ctx:(c + 1) * n_ctx]
        chunk[0] = bos if bos is not None else chunk[0]
        rows = logits(folder, chunk)
        for i in range(n_ctx // 2, n_ctx - 1):
            top = max(rows[i])
            nll.append(top + math.log(sum(math.exp(x - top) for x in rows[i]))
                       - rows[i][chunk[i + 1]])
    return nll


def test_figures(folder):
    ids = [int(i) for i in pith("tokenize", STORY, TEXT)[1].split(",")]
    bare = [int(i) for i in pith("tokenize", STORY, TEXT, "--bare")[1].split(",")]
    for name, n_ctx, n_chunks, flags, tokens, bos in (
            ("chunks of 64", 64, 99, (), ids, ids[0]), ("the first two", 33, 2, (), ids, ids[0]),
            ("the smallest", 4, 5, (), ids, ids[0]), ("no start token", 64, 99, NO_BOS, bare, None),
            ("all in one", len(ids), 1, (), ids, ids[0])):
        got = scored(TEXT, "-c", str(n_ctx), "--chunks", str(n_chunks), *flags)
        nll = by_hand(folder, tokens, n_ctx, n_chunks, bos)
        mean = sum(nll) / len(nll)
        var = sum(x * x for x in nll) / len(nll) - mean * mean
        want = {"perplexity": math.exp(mean), "nll": mean, "n_ctx": n_ctx,
                "error": math.exp(mean) * math.sqrt(var / (len(nll) - 1)),
                "n_scored": len(nll), "n_chunks": min(n_chunks, len(tokens) // n_ctx),
                "n_tokens": len(tokens)}
        check(name, set(got) == set(want)
              and all(abs(got[k] - v) <= 1e-5 * abs(v) for k, v in want.items()), (got, want))
    words = TEXT.split()
    mixed = " ".join(words[i * 7 % len(words)] for i in range(len(words)))
    check("words in no order are foreseen worse",
          scored(mixed, "-c", "64")["nll"] > scored(TEXT, "-c", "64")["nll"] + 0.1)


def test_ways_in(folder):
    path = os.path.join(folder, "text")
    with open(path, "w", encoding="utf-8") as f:
        f.write(TEXT)
    code, piped, err = pith("perplexity", STORY, "-c", "64", said=TEXT)
    check("says it in a line", code == 0 and err == "" and len(piped.splitlines()) == 1
          and piped.startswith("perplexity ") and " tokens scored, in " in piped, (piped, err))
    for name, flags in (("a file", ("-f", path)), ("three threads", ("-t", "3")),
                        ("stdin by name", ("-f", "-"))):
        check(name, pith("perplexity", STORY, "-c", "64", *flags, said=TEXT)[1] == piped)
    code, out, err = pith("perplexity", STORY, "-c", "64", "-v", said=TEXT)
    check("progress", out == piped and "chunk 1 of " in err, err)
    # control tokens spelled out are the text that they are
    check("text is text", scored("<s>" + TEXT, "-c", "64")["n_tokens"]
          > scored(TEXT, "-c", "64")["n_tokens"] + 1)


def test_refused(folder):
    for name, code, words, args, said in (
            ("a short text", 2, "the text has 2 tokens, and a chunk 512", (), "Once"),
            ("no text", 2, "the text has 1 token, and a chunk 512", (), ""),
            ("no file", 2, "No such file", ("-f", os.path.join(folder, "absent")), ""),
            ("a folder", 2, "cannot read", ("-f", folder), ""),
            ("a tiny chunk", 1, "--ctx is \"3\"; wanted a whole number", ("-c", "3"), TEXT),
            ("no chunk", 1, "--chunks is \"0\"", ("--chunks", "0"), TEXT)):
        got = pith("perplexity", STORY, *args, said=said)
        check(name, got[0] == code and got[1] == "" and words in got[2], got)
    for arch in ("bert", "t5"):
        path = synth(os.path.join(folder, arch + ".gguf"), "--arch", arch)
        got = pith("perplexity", path, "-c", "8", said=TEXT)
        check("a model of " + arch, got[0] == 2 and got[1] == "" and "token after" in got[2], got)


def main():
    if not os.path.exists(STORY):
        return skip("perplexity", "no vectors/models in the shared data")
    with tempfile.TemporaryDirectory() as folder:
        test_figures(folder)
        test_ways_in(folder)
        test_refused(folder)


run(main, "perplexity", "perplexity")
