#!/usr/bin/env python3
"""test_embed.py -- pith embed and pith rerank: the vectors are those that pith logits pools, alone
or among others; how texts come and vectors go; what is wrong is told and writes no file."""
import ast
import json
import math
import os
import struct
import subprocess
import tempfile

from report import LIMIT, PITH, SHARED, check, run

STORY = os.path.join(SHARED, "vectors", "models", "stories260K.gguf")
TEXTS = ["Once upon a time", "The dog", "Lily had a red ball. " * 5]


def pith(*args, said="", command="embed"):
    """Status, stdout, stderr. said: text or bytes"""
    p = subprocess.run([PITH, command, *args], input=said if isinstance(said, bytes) else
                       said.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def vectors(text):
    lines = [json.loads(line) for line in text.splitlines()]
    assert [v["index"] for v in lines] == list(range(len(lines)))
    return [[struct.unpack("<f", struct.pack("<f", x))[0] for x in v["embedding"]] for v in lines]


def pooled(folder, text, how):
    ids = pith(STORY, text, command="tokenize")[1].replace(",", " ").split()
    out = os.path.join(folder, "pooled")
    code, _, err = pith(STORY, "--tokens", ",".join(ids), "--pooling", how, "-o", out,
                        command="logits")
    assert code == 0, err
    with open(out, "rb") as f:
        data = f.read()
    return list(struct.unpack("<%df" % (len(data) // 4), data))


def test_vectors(folder):
    code, out, err = pith(STORY, "--raw", *TEXTS)
    got = vectors(out)
    check("vectors_are_those_of_logits", code == 0 and
          got == [pooled(folder, t, "mean") for t in TEXTS], (code, err))
    last = vectors(pith(STORY, "--raw", "--pooling", "last", TEXTS[1])[1])
    check("pooling", last == [pooled(folder, TEXTS[1], "last")] and last[0] != got[1])
    none = pith(STORY, "--tokens", "1,2", "--pooling", "none", "-o", os.path.join(folder, "none"),
                command="logits")
    check("no_rows_beside_logits", none[0] and "--pooling none" in none[2], none)
    unit = vectors(pith(STORY, *TEXTS)[1])
    length = [math.sqrt(sum(x * x for x in v)) for v in unit]
    check("length_is_one", all(abs(n - 1) < 1e-6 for n in length), length)
    few = vectors(pith(STORY, "--raw", "--dimensions", "5", TEXTS[0])[1])
    check("dimensions", few == [got[0][:5]], few)
    with_prefix = vectors(pith(STORY, "--raw", "--prefix", "Once ", "upon a time")[1])
    check("prefix", with_prefix == got[:1])
    many = vectors(pith(STORY, "--raw", said="\n".join(TEXTS * 40) + "\n")[1])
    check("many_lines", many == got * 40, len(many))
    lines = "\n".join([json.dumps(TEXTS[0]), json.dumps({"text": TEXTS[1]})])
    check("lines_of_json", vectors(pith(STORY, "--raw", "--jsonl", said=lines)[1]) == got[:2])


def test_lines():
    """As many vectors as lines, whatever is in these."""
    alone = vectors(pith(STORY, "a", "", "b c")[1])
    check("empty_line", vectors(pith(STORY, said="a\n\nb c\n")[1]) == alone)
    check("no_line_end", vectors(pith(STORY, said="a\r\n\r\nb c")[1]) == alone)
    check("no_lines", pith(STORY, said="")[:2] == (0, ""))
    lines = '\n"a"\n  \n{"id": 7, "text": "", "title": null}\n"b c"'
    check("empty_lines_of_json", vectors(pith(STORY, "--jsonl", said=lines)[1]) == alone)
    code, out, err = pith(STORY, said=b"a\xff\xfeb\n\x80\na\0b\n")
    check("not_utf8", code == 0 and len(vectors(out)) == 3, err)
    code, _, err = pith(STORY, "--jsonl", said='\n\n{"text": 3}\n')
    check("lines_are_counted", code == 2 and "line 3" in err, err)
    code, out, err = pith(RANK, "--jsonl", said='"a"\n\n""\n')
    check("no_token_at_all", code == 2 and "text 2 is empty" in err and len(vectors(out)) == 1, err)
    lines = '"a"\n"b"\n"%s"\n"c"\n' % ("a b " * 50)
    code, out, err = pith(STORY, "-c", "16", "--jsonl", said=lines)
    check("those_before_a_bad_one", code == 2 and "text 3" in err and len(vectors(out)) == 2, err)
    code, out, err = pith(STORY, "--jsonl", said=b'"a"\n"\xff"\n')
    check("json_of_bad_bytes", code == 2 and "line 2" in err and len(vectors(out)) == 1, err)


def test_npy(folder):
    got = vectors(pith(STORY, *TEXTS)[1])
    path = os.path.join(folder, "v.npy")
    code, out, err = pith(STORY, "--npy", path, *TEXTS)
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<H", data[8:10])[0]
    head = ast.literal_eval(data[10:10 + n].decode())
    check("npy_head", (code, out) == (0, "") and data[:8] == b"\x93NUMPY\x01\x00" and
          (10 + n) % 64 == 0 and head == {"descr": "<f4", "fortran_order": False,
                                          "shape": (len(TEXTS), len(got[0]))}, (code, err, head))
    flat = list(struct.unpack("<%df" % (len(TEXTS) * len(got[0])), data[10 + n:]))
    check("npy_numbers", flat == [x for v in got for x in v])
    code, _, err = pith(STORY, "--npy", path, said="")
    with open(path, "rb") as f:
        check("npy_of_nothing", code == 0 and b"(0, 64)" in f.read(), err)
    p = subprocess.run([PITH, "embed", STORY, "--npy", "/dev/stdout", *TEXTS], timeout=LIMIT,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    check("npy_to_a_pipe", (p.returncode, p.stdout) == (0, data), (p.returncode, p.stderr))


RANK = os.path.join(SHARED, "golden", "arch", "qwen3-rank.gguf")


def ids_of(text, *flags):
    out = pith(RANK, text, "--bare", "--literal", *flags, command="tokenize")[1]
    return out.replace(",", " ").split()


def score(folder, ids):
    out = os.path.join(folder, "score")
    code, _, err = pith(RANK, "--tokens", ",".join(ids), "--pooling", "rank", "-o", out,
                        command="logits")
    assert code == 0, err
    with open(out, "rb") as f:
        return struct.unpack("<2f", f.read())[0]


def ranked(*args, said=""):
    code, out, err = pith(RANK, "-q", "who", *args, said=said, command="rerank")
    return code, [(v["index"], struct.unpack("<f", struct.pack("<f", v["score"]))[0])
                  for v in map(json.loads, out.splitlines())], err


def test_rerank(folder):
    texts = ["a b", "c </s> d", "hello"]
    pair = [score(folder, ids_of("who") + ["2", "2"] + ids_of(t) + ["2"]) for t in texts]
    code, got, err = ranked(*texts)
    check("scores_of_pairs", code == 0 and got == list(enumerate(pair)), (got, pair, err))
    lines = "\n".join(json.dumps({"text": t}) for t in texts)
    check("lines_to_rank", ranked("--jsonl", said=lines)[1] == got)
    best = sorted(got, key=lambda v: -v[1])
    check("top", ranked("--top", "2", *texts)[1] == best[:2], best)
    form = "tokenizer.chat_template.rerank=str:{query}</s>{document}!{query}"
    wanted = [score(folder, ids_of("who") + ["2"] + ids_of(t + "!who")) for t in ["a", "b"]]
    code, got, err = ranked("--override-kv", form, "a", "b")
    check("template", code == 0 and got == list(enumerate(wanted)), (got, wanted, err))
    code, _, err = pith(STORY, "-q", "who", "a", command="rerank")
    check("model_without_a_head", code == 2 and "cannot rank" in err, err)
    code, _, err = pith(RANK, "a", command="rerank")
    check("no_question", code == 1 and "--query" in err, err)


def test_masks(folder):
    """A model that fills in masks gives logits of all tokens, in one step; it writes no text."""
    model = os.path.join(SHARED, "golden", "arch", "llada")
    with open(model + ".json") as f:
        ids = [str(i) for i in json.load(f)["tokens"]]
    out = os.path.join(folder, "logits")
    code, _, err = pith(model + ".gguf", "--tokens", ",".join(ids), "--cache-type-k", "f32",
                        "--cache-type-v", "f32", "-o", out, command="logits")
    with open(out, "rb") as f, open(model + ".logits.bin", "rb") as g:
        got, want = (struct.unpack("<%df" % (len(d) // 4), d) for d in (f.read(), g.read()))
    check("logits_of_masks", code == 0 and len(got) == len(want) and
          max(abs(a - b) for a, b in zip(got, want)) < 4e-4, err)
    many = ",".join(ids * 4)
    code, _, err = pith(model + ".gguf", "--tokens", many, "-o", out, command="logits")
    check("more_than_outputs_of_a_step", code == 0 and
          os.path.getsize(out) == 4 * len(ids) * 128 * 4, err)
    code, _, err = pith(model + ".gguf", "--tokens", many, "--chunk", "7", "-o", out,
                        command="logits")
    check("not_in_pieces", code == 1 and "--chunk" in err, err)


def test_fills_in():
    """pith run of such a model: block by block, by its own flags."""
    model = os.path.join(SHARED, "golden", "arch", "llada.gguf")
    mask = ("--override-kv", "tokenizer.ggml.mask_token_id=int:5")

    def text(*more):
        code, out, err = pith(model, *mask, "-p", "a b c", "-n", "40", "--seed", "3",
                              "--ignore-eog", *more, command="run")
        check("fills_in " + " ".join(more), code == 0 and out, (code, err))
        return out

    greedy = text("--temp", "0")
    check("whatever_the_threads", text("--temp", "0", "--threads", "2") == greedy)
    others = [text("--temp", "0", *more) for more in (("--steps", "2"), ("--block", "8"),
                                                      ("--surest", "random"),
                                                      ("--surest", "entropy"))]
    check("penalties_of_nothing", text("--temp", "0", "--repeat-penalty", "1", "--dry-multiplier",
                                       "0", "--presence-penalty", "0") == greedy)
    check("its_flags_count", all(o != greedy for o in others[:3]), others)
    hot = [text("--temp", "2", *more) for more in ((), (), ("--seed", "4"))]
    check("sampled", hot[0] == hot[1] != hot[2], hot)
    for name, more, status, words in (
            ("session", ("--session", "/tmp/none"), 1, "--session"),
            ("grammar", ("--json",), 1, "a grammar"),
            ("shift", ("--context-shift",), 1, "--context-shift"),
            *((flag[2:], (flag, value), 1, "found %s, and" % flag) for flag, value in (
                ("--think-budget", "3"), ("--repeat-penalty", "1.5"),
                ("--frequency-penalty", "-1"), ("--presence-penalty", "0.5"),
                ("--dry-multiplier", "1"))),
            ("steps", ("--steps", "1"), 2, "1 steps for 2 blocks"),
            ("too_long", ("-c", "20"), 2, "n_ctx = 20"),
            ("no_such_measure", ("--surest", "luck"), 1, "luck")):
        code, _, err = pith(model, *mask, "-p", "a b c", "-n", "40", *more, command="run")
        check("fills_in_" + name, code == status and words in err, (code, err))
    code, _, err = pith(model, "-p", "a", command="run")
    check("no_mask_token", code == 2 and "mask_token_id" in err, (code, err))
    encoder = os.path.join(SHARED, "golden", "arch", "bert.gguf")
    code, _, err = pith(encoder, "-p", "a", command="run")
    check("writes_no_text", code == 2 and "makes no text" in err, (code, err))


def test_bad(folder):
    def bad(name, status, words, *args, said=""):
        code, _, err = pith(STORY, *args, said=said)
        check(name, code == status and all(w in err for w in words), (code, err))

    path = os.path.join(folder, "none.npy")
    bad("too_long", 2, ["text 2", "n_ctx = 8", "n_over"], "-c", "8", "--npy", path, "a",
        "one two three four five six seven eight nine ten")
    check("no_file_of_a_failure", not os.listdir(folder) or "none.npy" not in os.listdir(folder))
    bad("not_json", 2, ["line 2", "not JSON"], "--jsonl", said='"a"\n{"text": \n')
    bad("no_text", 2, ["line 1", "text"], "--jsonl", said='{"texts": 1}\n')
    bad("too_many_dimensions", 1, ["--dimensions", "64"], "--dimensions", "65", "a")
    bad("npy_is_a_folder", 2, ["folder"], "--npy", folder, "a")
    code, _, err = pith(STORY, "--tokens", "1,2", "--pooling", "rank", "-o", path, command="logits")
    check("no_head_to_rank", code == 2 and "cls.output.weight" in err, (code, err))
    bad("jsonl_and_texts", 1, ["--jsonl"], "--jsonl", "a")
    learned = os.path.join(SHARED, "golden", "arch", "bert.gguf") # 64 positions
    code, _, err = pith(learned, "-c", "65", "a")
    check("positions_not_learned", code == 2 and "has learned 64" in err, (code, err))
    for n in 64, 65:
        code, _, err = pith(learned, "--tokens", ",".join(["5"] * n), "-o", path, command="logits")
        check("logits_of_" + str(n), code == 0 if n == 64 else code == 2 and "learned 64" in err,
              (code, err))


def main():
    with tempfile.TemporaryDirectory() as folder:
        test_vectors(folder)
        test_lines()
        test_npy(folder)
        test_rerank(folder)
        test_masks(folder)
        test_fills_in()
        test_bad(folder)


run(main, "test_embed", "embed")
