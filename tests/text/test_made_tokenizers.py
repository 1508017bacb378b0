#!/usr/bin/env python3
"""test_made_tokenizers.py -- tokenizers without a recorded vocabulary: random ones are written as
GGUF files, and random texts go through `pith tokenize --jsonl` and through a second implementation.

plamo2      written here, from the description of the published tokenizer
hybriddna   sixes of bases written here, the text between them by the Python package `tokenizers`
whitespace  the package: its BPE behind its Lowercase and its Whitespace
kimi        the package, with the pattern that is published for Kimi K2 and K2.5

TEST_SCALE sets how many texts, TEST_SEED where they begin."""
import itertools
import os
import random
import struct
import tempfile

from report import SCALE, SEED, check, guard, jsonl, run, skip

COUNT = 300 * SCALE
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def string(s):
    s = s.encode()
    return struct.pack("<Q", len(s)) + s


def write(path, model, tokens, merges=(), **more):
    """tokens: (text, type, score)."""
    keys = {"model": string(model)}
    kinds = {"model": 8}
    for name, kind, values in (("tokens", 8, [string(t[0]) for t in tokens]),
                               ("token_type", 5, [struct.pack("<i", t[1]) for t in tokens]),
                               ("scores", 6, [struct.pack("<f", t[2]) for t in tokens]),
                               ("merges", 8, [string("%s %s" % m) for m in merges])):
        keys[name] = struct.pack("<IQ", kind, len(values)) + b"".join(values)
        kinds[name] = 9
    for name, v in more.items():
        name = name.replace("__", ".")
        keys[name] = string(v) if isinstance(v, str) else struct.pack(
            "<?" if isinstance(v, bool) else "<I", v)
        kinds[name] = 8 if isinstance(v, str) else 7 if isinstance(v, bool) else 4
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)))
        for name, v in keys.items():
            f.write(string("tokenizer.ggml." + name) + struct.pack("<I", kinds[name]) + v)


def compare(name, path, texts, wanted, says):
    """wanted: ids of each text; says: may each text come back from its ids?"""
    wrong, first = 0, ""
    answers = jsonl(["tokenize", path, "--jsonl"], [{"text": t, "special": True} for t in texts])
    for text, want, answer in zip(texts, wanted, answers):
        if answer.get("ids") != want or (says and answer.get("detok") != text):
            first = first or "%r: %s, wanted %s" % (text, answer, want)
            wrong += 1
    check(name, not wrong and len(texts) > 50, "%d of %d differ; %s" % (wrong, len(texts), first))


# ------------------------------------------------------------------ plamo2

def plamo2_ids(tokens, text):
    """Of all ways to cut the text the one with the lowest cost, from its end on; a character that
    no token is worth it for is its bytes."""
    price = {t: (i, -round(s * 1e4)) for i, (t, kind, s) in enumerate(tokens)
             if kind == NORMAL and round(s * 1e4) > -20000000}
    byte = {int(t[3:5], 16): i for i, (t, kind, _) in enumerate(tokens) if kind == BYTE}
    longest = max(map(len, price))
    cost, step = [0] * (len(text) + 1), [None] * len(text)
    for i in range(len(text) - 1, -1, -1):
        cost[i] = None
        for n in range(min(longest, len(text) - i), 0, -1):  # of equal costs the longest
            got = price.get(text[i:i + n])
            if got and (cost[i] is None or got[1] + cost[i + n] < cost[i]):
                cost[i], step[i] = got[1] + cost[i + n], (n, [got[0]])
        if cost[i] is None or 10000000 + cost[i + 1] < cost[i]:
            cost[i] = 10000000 + cost[i + 1]
            step[i] = 1, [byte[b] for b in text[i].encode()]
    ids, i = [], 0
    while i < len(text):
        ids += step[i][1]
        i += step[i][0]
    return ids


def plamo2(folder):
    r = random.Random("%s plamo2" % SEED)
    tokens = [("<|plamo:unk|>", UNKNOWN, 0.0), ("<|plamo:bos|>", CONTROL, 0.0),
              ("<|plamo:eos|>", CONTROL, 0.0), ("<|plamo:pad|>", CONTROL, 0.0)]
    tokens += [("<0x%02X>" % b, BYTE, 0.0) for b in range(256)]
    letters, seen = "ab c日本語é\u2581😀\n", set()
    while len(seen) < 300:
        seen.add("".join(r.choice(letters) for _ in range(r.randint(1, 6))))
    seen -= set("b日😀")  # their bytes
    scores = [-1.5, -2.0, -4.5, -9.0, -9.0, -12.25, -13.5, -999.0, -1001.5, -2000.0, -3000.0]
    tokens += [(t, NORMAL, r.choice(scores)) for t in sorted(seen)]
    path = os.path.join(folder, "plamo2.gguf")
    write(path, "plamo2", tokens)
    texts = ["", "b", "<|plamo:bo"] + ["".join(r.choice(letters + "xß") for _ in range(
        r.randint(1, 40))) for _ in range(COUNT)]
    compare("plamo2", path, texts, [plamo2_ids(tokens, t) for t in texts], True)


# ------------------------------------------------------------------ pairs

def pairs(r, letters, n):
    """Random merges, and all texts that they and the letters are."""
    known, merges = list(letters), []
    while len(merges) < n:
        a, b = r.choice(known), r.choice(known)
        if len(a + b) <= 8 and (a, b) not in merges:
            merges.append((a, b))
            if a + b not in known:
                known.append(a + b)
    return known, merges


def whitespace(folder, lib):
    r = random.Random("%s whitespace" % SEED)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    words, word_merges = pairs(r, "abcé你好ß1_", 150)
    marks, mark_merges = pairs(r, "!?,。", 20)
    merges = word_merges + mark_merges
    r.shuffle(merges)
    known = special + words + marks
    ids = {t: i for i, t in enumerate(known)}
    letters = "abcABCéÉ你好ß1_!?,。İ" + "  \t\n\u3000\u00A0\u200D" + "字X"
    texts = ["".join(r.choice(letters) for _ in range(r.randint(1, 40))) for _ in range(COUNT)]
    for lower in (True, False):
        path = os.path.join(folder, "whitespace%d.gguf" % lower)
        write(path, "whitespace", [(t, CONTROL if t in special else NORMAL, 0.0) for t in known],
              merges, pre="whitespace", unknown_token_id=3, bos_token_id=0, eos_token_id=2,
              normalizer__lowercase=lower)
        other = lib.Tokenizer(lib.models.BPE(ids, merges, unk_token="<unk>"))
        if lower:
            other.normalizer = lib.normalizers.Lowercase()
        other.pre_tokenizer = lib.pre_tokenizers.Whitespace()
        wanted = [e.ids for e in other.encode_batch(texts, add_special_tokens=False)]
        compare("whitespace_%s" % ("lower" if lower else "as_it_is"), path, texts, wanted, False)


def hybriddna(folder, lib):
    r = random.Random("%s hybriddna" % SEED)
    alphabet = sorted(lib.pre_tokenizers.ByteLevel.alphabet())
    known, merges = pairs(r, "acgtACGTN\u0120", 150)
    known = alphabet + [t for t in known if t not in alphabet]
    known += ["CCCCCC"] if "CCCCCC" not in known else []
    ids = {t: i for i, t in enumerate(known)}
    names = ["<dna>", "</dna>", "<oov>"] + ["".join(s) for s in itertools.product(
        "ATCG", repeat=6)]
    own = {t: len(known) + i for i, t in enumerate(names)}
    path = os.path.join(folder, "hybriddna.gguf")
    write(path, "hybriddna", [(t, NORMAL, 0.0) for t in known + names[:3]
                              + [t + "\uE000" for t in names[3:]]], merges, pre="qwen2")
    other = lib.Tokenizer(lib.models.BPE(ids, merges))
    other.pre_tokenizer = lib.pre_tokenizers.Sequence([
        lib.pre_tokenizers.Split(lib.Regex(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+"
            r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated"),
        lib.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    texts, wanted = [], []
    for _ in range(COUNT):
        text, want = "", []
        for part in range(r.randint(1, 4)):
            words = "".join(r.choice("acgt ACGTN\n'é") for _ in range(r.randint(0, 12)))
            text += words
            want += other.encode(words, add_special_tokens=False).ids
            dna = "".join(r.choice("ACGTacgt" * 9 + "Nné ") for _ in range(r.randint(0, 20)))
            want.append(own["<dna>"])
            for i in range(0, len(dna), 6):
                want.append(own.get(dna[i:i + 6].upper().ljust(6, "A"), own["<oov>"]))
            text += "<dna>" + dna
            if part == 3 and r.random() < 0.5:
                break
            text += "</dna>"
            want.append(own["</dna>"])
        texts.append(text)
        wanted.append(want)
    compare("hybriddna", path, texts, wanted, False)


UPPER, LOWER = (r"[\p{L%s}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]" % c for c in (r"u}\p{Lt", "l"))
ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = "|".join([r"[\p{Han}]+", r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + ENDS,
                 r"[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*" + ENDS, r"\p{N}{1,3}",
                 r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def kimi(folder, lib):
    r = random.Random("%s kimi" % SEED)
    letters = "aabBsSt''12 \n!,世界é\u0301ǅʰ\u3000-のЖ"
    whole = lib.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(lib.pre_tokenizers.ByteLevel.alphabet())
    symbols = sorted(set("".join(p for p, _ in whole.pre_tokenize_str(letters))))
    known, merges = pairs(r, symbols, 600)
    known = alphabet + [t for t in known if t not in alphabet]
    path = os.path.join(folder, "kimi.gguf")
    other = lib.Tokenizer(lib.models.BPE({t: i for i, t in enumerate(known)}, merges))
    other.pre_tokenizer = lib.pre_tokenizers.Sequence([
        lib.pre_tokenizers.Split(lib.Regex(KIMI), "isolated"), whole])
    texts = ["".join(r.choice(letters) for _ in range(r.randint(1, 40))) for _ in range(COUNT)]
    wanted = [e.ids for e in other.encode_batch(texts, add_special_tokens=False)]
    for pre in ("kimi-k2", "kimi-k25"):
        write(path, "gpt2", [(t, NORMAL, 0.0) for t in known], merges, pre=pre)
        compare(pre, path, texts, wanted, True)


def main():
    try:
        import tokenizers as lib
        from tokenizers import models, normalizers, pre_tokenizers  # noqa: F401
    except ImportError:
        lib = None
    with tempfile.TemporaryDirectory() as folder:
        guard("plamo2", lambda: plamo2(folder))
        for test in (whitespace, hybriddna, kimi):
            if lib:
                guard(test.__name__, lambda: test(folder, lib))
            else:
                skip(test.__name__, "no Python package tokenizers")


run(main, "test_made_tokenizers")
