#!/usr/bin/env python3
"""test_tokenizers.py -- `pith tokenize --jsonl` against the Python package `tokenizers` on random
texts.

The other tokenizer is built from the same GGUF file: its tokens, merges or scores, and the
pre-tokenizer as the model's authors publish it. Texts mix scripts, combining marks, emoji,
controls, spaces, line ends, digits, contractions, words and the vocabulary's special tokens.
TEST_SCALE sets how many there are for each vocabulary (100: 100,000), TEST_SEED where they begin,
TEST_ONLY which vocabulary. Without the package: skipped by name.

Where the two are known to differ, texts are left out, by the predicates `..._alike` below."""
import os
import random
import re
import struct
import unicodedata

from report import SCALE, SEED, SHARED, check, jsonl, run, skip

FOLDER = os.path.join(SHARED, "vectors")
SMALL = ["bert-bge", "gpt-2"]  # the only ones in the quick loop: the others take seconds to build
COUNT = 100000 if SCALE >= 100 else 100 * SCALE
BATCH = 5000

# ------------------------------------------------------------------ the keys of a GGUF file

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
           12: "d"}


def read_keys(path):
    data = open(path, "rb").read()
    at = 24

    def number(code):
        nonlocal at
        at += struct.calcsize(code)
        return struct.unpack_from("<" + code, data, at - struct.calcsize(code))[0]

    def value(kind):
        nonlocal at
        if kind == 8:
            n = number("Q")
            at += n
            return data[at - n : at].decode("utf-8", "surrogateescape")
        if kind == 9:
            item, n = number("I"), number("Q")
            if item == 8:
                return [value(8) for _ in range(n)]
            code = f"<{n}{NUMBERS[item]}"
            at += struct.calcsize(code)
            return list(struct.unpack_from(code, data, at - struct.calcsize(code)))
        return number(NUMBERS[kind])

    keys = {}
    for _ in range(struct.unpack_from("<Q", data, 16)[0]):
        name = value(8)
        keys[name] = value(number("I"))
    return {k.removeprefix("tokenizer.ggml."): v for k, v in keys.items()
            if k.startswith("tokenizer.ggml.")}


# ------------------------------------------------------------------ the other tokenizer

def cased_letters():
    """The class that DeepSeek spells out, from the table: what is tested is how it is read."""
    table = open(os.path.join(os.path.dirname(__file__), "../../src/text/vocab/pretok.def"),
                 encoding="utf-8").read()
    lines = re.search(r"#define CASED_LETTERS(.*?)\n#", table, re.S).group(1)
    return "".join(re.findall(r'"([^"]*)"', lines)).replace("\\\\", "\\")


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| "
          r"?[^\s\p{L}\p{N}]+[\r\n]*" r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]",
                                                            r"[^\s\p{L}\p{M}\p{N}]")
SPLITS = {
    "gpt-2": [GPT2],
    "starcoder": [r"\p{N}", GPT2],
    "command-r": [r"\p{N}", GPT2],
    "falcon": [r"[\p{P}$+<=>^~|`]+", GPT2, r"[0-9][0-9][0-9]"],
    "llama-bpe": [LLAMA3],
    "qwen2": [QWEN2],
    "qwen35": [QWEN35],
    # without the white space that the publishers' ranges U+0800..U+4E00 hold
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿&&[^\s]]+", r"\p{N}"],
}
SPLITS["deepseek-llm"] = [r"[\r\n]", r"\s?" + cased_letters(), r"\s?[!-/:-~！-／：-～‘-‟、。]+", r"\s+$",
                          r"[一-龥ࠀ-一가-퟿&&[^\s]]+", r"\p{N}+"]
WORD_START = "\u2581"


def build_bpe(keys, lib):
    tokens = keys["tokens"]
    ids = {}
    for i, t in enumerate(tokens):
        ids.setdefault(t, i)
    merges = [tuple(m.split(" ", 1)) if m[0] != " " else (" ", m[2:]) for m in keys["merges"]]
    if keys["model"] == "gemma4":
        t = lib.Tokenizer(lib.models.BPE(ids, merges, byte_fallback=True, fuse_unk=True,
                                         unk_token="<unk>"))
        t.normalizer = lib.normalizers.Replace(" ", WORD_START)
        t.pre_tokenizer = lib.pre_tokenizers.Split(lib.Regex(r"[^\n]+|\n+"), "isolated")
        return t
    t = lib.Tokenizer(lib.models.BPE(ids, merges, ignore_merges=keys["pre"] == "llama-bpe"))
    splits = [lib.pre_tokenizers.Split(lib.Regex(p), "isolated") for p in SPLITS[keys["pre"]]]
    t.pre_tokenizer = lib.pre_tokenizers.Sequence(
        splits + [lib.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return t


def build_spm(keys, lib):
    """Joining by score is joining by rank when every way to cut a token in two is a merge, ordered
    by the score of the token."""
    ids, merges = {}, []
    for i, t in enumerate(keys["tokens"]):
        ids.setdefault(t, i)
    plain = {t: i for t, i in ids.items() if keys["token_type"][i] in (1, 4)}
    for t, i in plain.items():
        merges += [(-keys["scores"][i], i, t[:k], t[k:]) for k in range(1, len(t)) if t[:k] in ids
                   and t[k:] in ids]
    merges.sort(key=lambda m: m[0])
    t = lib.Tokenizer(lib.models.BPE(ids, [m[2:] for m in merges], byte_fallback=True,
                                     fuse_unk=True, unk_token="<unk>"))
    t.normalizer = lib.normalizers.Sequence([lib.normalizers.Prepend(WORD_START),
                                             lib.normalizers.Replace(" ", WORD_START)])
    return t


def build_wpm(keys, lib):
    special = [t for t, k in zip(keys["tokens"], keys["token_type"]) if k in (2, 3)]
    ids = {}
    for i, t in enumerate(keys["tokens"]):
        ids.setdefault(t if t in special else t[1:] if t.startswith(WORD_START) else "##" + t, i)
    t = lib.Tokenizer(lib.models.WordPiece(ids, unk_token="[UNK]",
                                           max_input_chars_per_word=1 << 20))
    t.normalizer = lib.normalizers.BertNormalizer()
    t.pre_tokenizer = lib.pre_tokenizers.BertPreTokenizer()
    return t


def build_ugm(keys, lib):
    t = lib.Tokenizer(lib.models.Unigram(list(zip(keys["tokens"], keys["scores"])),
                                         keys["unknown_token_id"], False))
    charsmap = bytes(b & 255 for b in keys["precompiled_charsmap"])
    t.normalizer = lib.normalizers.Sequence(
        [lib.normalizers.Precompiled(charsmap), lib.normalizers.Replace(lib.Regex(" {2,}"), " ")])
    t.pre_tokenizer = lib.pre_tokenizers.Sequence([lib.pre_tokenizers.WhitespaceSplit(),
                                                   lib.pre_tokenizers.Metaspace(
                    prepend_scheme="always")])
    return t


def bpe_alike(text):
    """`tokenizers` joins across a byte without a token, which Falcon has (U+000B)."""
    return "\x0B" not in text


def wpm_alike(text):
    """Not for characters that decompose into several that stay (pith, as the field, keeps the
    first), nor for what only one knows, nor for controls that are white space (a space for the
    field, nothing there), nor for the sign that stands for a word's start in the file."""
    for c in text:
        if c in "\x0B\x0C\x1C\x1D\x1E\x1F\x85" + WORD_START:
            return False
        stay = [d for d in unicodedata.normalize("NFD", c) if unicodedata.category(d) != "Mn"]
        recent = unicodedata.category(c)[0] in "MP" and unicodedata.ucd_3_2_0.category(c) == "Cn"
        if recent or len(stay) > 1 or len(c.lower()) > 1 or unicodedata.category(c) in ("Cn", "Co",
                "Mc", "Me"):
            return False
    return True


def ugm_alike(text):
    """`tokenizers` maps grapheme by grapheme where the published algorithm maps by characters; text
    without marks and consonants of Hangul is the same."""
    return not any(unicodedata.category(c)[0] in "MC" or unicodedata.combining(c)
                   or "HANGUL LETTER" in unicodedata.name(c, "") or "\u1100" <= c <= "\u11FF"
                   for c in text)


BUILD = {"gpt2": build_bpe, "gemma4": build_bpe, "llama": build_spm, "bert": build_wpm,
         "t5": build_ugm}
ALIKE = {"gpt2": bpe_alike, "bert": wpm_alike, "t5": ugm_alike}

# ------------------------------------------------------------------ random texts

SCRIPTS = [(0x20, 0x7E), (0xA1, 0x24F), (0x250, 0x2FF), (0x370, 0x3FF), (0x400, 0x52F),
           (0x531, 0x58F), (0x591, 0x5F4), (0x600, 0x6FF), (0x700, 0x74F), (0x900, 0x97F),
           (0x980, 0x9FF), (0xA80, 0xAFF), (0xB80, 0xBFF), (0xC00, 0xC7F), (0xE01, 0xE5B),
           (0xE81, 0xEDF), (0xF00, 0xFFF), (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF),
           (0x1200, 0x137F), (0x13A0, 0x13FD), (0x1780, 0x17F9), (0x1E00, 0x1FFE), (0x2010, 0x205E),
           (0x2070, 0x218B), (0x2190, 0x23FF), (0x2460, 0x27BF), (0x2C00, 0x2DFF), (0x3001, 0x30FF),
           (0x3105, 0x33FF), (0x4E00, 0x9FFF), (0xA000, 0xA48C), (0xAC00, 0xD7A3), (0xF900, 0xFAFF),
           (0xFB00, 0xFDFF), (0xFE30, 0xFFEE), (0x10000, 0x1039F), (0x10400, 0x104FF),
           (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF), (0xE000, 0xE0FF),]
WORDS = ("the quick brown Fox hello World it's we'll DON'T I'M naïve straße Ελλάδα привет 你好 "
         "こんにちは 안녕 नमस्ते مرحبا www.x.com a1b2 3.14 1,000".split())
SPACES = [" "] * 12 + ["  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n", "\u00A0", "\u3000", "\u2003",
                       "\u2028", "\x0B", "\x85", "\u1680", "\u200B"]


def character(r):
    lo, hi = r.choice(SCRIPTS)
    while True:
        c = chr(r.randint(lo, hi))
        if unicodedata.category(c) not in ("Cn", "Cs"):
            return c


def piece(r, special):
    k = r.randrange(16)
    if k < 4:
        return r.choice(WORDS)
    if k < 8:
        return r.choice(SPACES)
    if k == 8:
        lo, hi = r.choice(SCRIPTS)
        chars = (chr(r.randint(lo, min(hi, lo + 400))) for _ in range(r.randint(1, 6)))
        return "".join(c for c in chars if unicodedata.category(c) not in ("Cn", "Cs"))
    if k == 9:
        return "".join(r.choice("0123456789") for _ in range(r.randint(1, 9)))
    if k == 10:
        return "".join(chr(r.randint(0x21, 0x7E)) for _ in range(r.randint(1, 8)))
    if k == 11:
        return r.choice("aeoun") + "".join(chr(r.randint(0x300, 0x36F))
                                           for _ in range(r.randint(1, 3)))
    if k == 12:
        return r.choice(["👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "\u200D", "\uFE0F", "\uFEFF", "\x07",
                         "\x1B", "\x7F", "\u202E", "\uFFFD"])
    if k == 13 and special:
        s = r.choice(special)
        return s if r.random() < 0.7 else s[: r.randint(1, len(s))]
    if k == 14:
        return r.choice(["'", "''", "'S", "'re", "!?", "...", "---", "/", "$", "^", "`", "~", "<",
                         ">", "|", "(", "))"]) * r.randint(1, 3)
    return character(r)


def random_text(r, special):
    return "".join(piece(r, special) for _ in range(r.randint(1, 20)))


# ------------------------------------------------------------------ comparing

def answers(path, texts):
    return jsonl(["tokenize", path, "--jsonl"], [{"text": t, "special": True} for t in texts])


def compare(name, path, keys, other, count):
    tokens, kinds = keys["tokens"], keys.get("token_type") or [1] * len(keys["tokens"])
    # Overlaps go the leftmost first there, the longest first here: tokens that overlap others are
    # not written next to each other.
    special = [t for t, k in zip(tokens, kinds) if k in (3, 4) and t
               and not t.startswith(">>")][:64]
    alike = ALIKE.get(keys["model"], lambda text: True)
    r = random.Random(f"{SEED} {name}")
    wrong = done = 0
    while done < count:
        texts = [t for t in (random_text(r, special) for _ in range(min(BATCH, count - done)))
                 if alike(t)]
        done += BATCH
        for text, answer, want in zip(texts, answers(path, texts),
                                      other.encode_batch(texts, add_special_tokens=False)):
            if answer.get("ids") == want.ids:
                continue
            wrong += 1
            if wrong <= 5:
                got = answer.get("ids", [])
                at = next((i for i, (a, b) in enumerate(zip(got, want.ids)) if a != b),
                          min(len(got), len(want.ids)))
                show = lambda ids: [(i, tokens[i]) for i in ids[max(0, at - 2) : at + 6]]
                print(f"    {name}: {text!r}\n      pith  {show(got)}\n"
                      f"      other {show(want.ids)}")
    return wrong


def test(name, path, lib):
    keys = read_keys(path)
    if keys["model"] == "gpt2" and keys["pre"] not in SPLITS:
        return
    other = BUILD[keys["model"]](keys, lib)
    kinds = keys.get("token_type") or []
    other.add_tokens([lib.AddedToken(t, normalized=False, special=k == 3)
                      for t, k in zip(keys["tokens"], kinds) if k in (2, 3, 4) and t])
    wrong = compare(name, path, keys, other, COUNT)
    check(name, not wrong, f"{wrong} of {COUNT} texts differ (seed {SEED})")


def main():
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    folder = os.path.join(FOLDER, "vocab")
    try:
        import tokenizers as lib
        from tokenizers import models, normalizers, pre_tokenizers  # noqa: F401
    except ImportError:
        lib = None
    if lib is None or not os.path.isdir(folder):
        skip("tokenizers", "no Python package tokenizers" if lib is None else "no vectors/vocab")
    else:
        only = (os.environ["TEST_ONLY"].split(",") if "TEST_ONLY" in os.environ else SMALL
                if SCALE < 10 else None)
        for file in sorted(os.listdir(folder)):
            name = file.removesuffix(".gguf")
            if name != file and (not only or name in only):
                test(name, os.path.join(folder, file), lib)


run(main, "test_tokenizers")
