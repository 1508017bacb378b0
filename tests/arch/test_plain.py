#!/usr/bin/env python3
# In make test alone: make check has test_serve.py.
"""test_plain.py -- recorded models whose records do not show all: the same models by plain programs
in float64, written from papers and model cards alone.

wavtokenizer-dec  Its record rounds what convolutions read, and their kernels, to halves. A sum made
                  in another order is enough to round otherwise, and norms enlarge that: by 0.1 to
                  0.3. So the program with rounding is compared with the record, and the same
                  program without it with `pith logits`, which does not round.
graniteswitch     Its record has no token that switches an adapter on.
qwen4exp          Its indexer has slots of equal scores, of which the record takes what a heap of
                  the best leaves, pith the earlier ones. The program with the heap is compared
                  with the record, and the same program with the earlier ones with `pith logits`."""
import array
import json
import math
import os
import struct
import subprocess
import tempfile

from report import LIMIT, PITH, SHARED, check, guard, run, skip


class File:
    """Keys without the architecture's name, tensors as (numbers, dimensions as in the file)"""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.p = f.read()
        self.at = 8
        n_tensors, n_keys = self.take("Q"), self.take("Q")
        self.keys, self.t = {}, {}
        for _ in range(n_keys):
            name = self.text()
            self.keys[name.split(".", 1)[1]] = self.value(self.take("I"))
        infos = [(self.text(), [self.take("Q") for _ in range(self.take("I"))], self.take("I"),
                  self.take("Q")) for _ in range(n_tensors)]
        data = (self.at + 31) // 32 * 32
        for name, dims, kind, offset in infos:
            values = struct.unpack_from("<%d%s" % (math.prod(dims), "fe"[kind]), self.p,
                                        data + offset)
            self.t[name] = list(values), dims

    def take(self, kind):
        v, = struct.unpack_from("<" + kind, self.p, self.at)
        self.at += struct.calcsize(kind)
        return v

    def text(self):
        n = self.take("Q")
        self.at += n
        return self.p[self.at - n:self.at].decode(errors="replace")

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            item = self.take("I")
            return [self.value(item) for _ in range(self.take("Q"))]
        return self.take("BbHhIif?..Qqd"[kind])

    def rows(self, name):
        """A matrix, or a stack of them, as lists."""
        v, dims = self.t[name]
        for n in dims[:-1]:
            v = [v[i:i + n] for i in range(0, len(v), n)]
        return v


def times(w, x):
    return [sum(a * b for a, b in zip(row, x)) for row in w]


def plus(x, y):
    return [a + b for a, b in zip(x, y)]


def silu(x):
    return [a / (1 + math.exp(-a)) for a in x]


def softmax(x):
    e = [math.exp(a - max(x)) for a in x]
    return [a / sum(e) for a in e]


def half(x):
    return struct.unpack("<e", struct.pack("<e", x))[0]


class Wav:
    """WavTokenizer's decoder [arXiv:2408.16532]. x: rows of channels."""

    def __init__(self, file, rounds):
        self.f, self.rounds = file, half if rounds else float

    def conv(self, x, name):
        (w, (width, n_in, n_out)), b = self.f.t[name + ".weight"], self.f.t[name + ".bias"][0]
        taps = [[[self.rounds(w[(o * n_in + i) * width + k]) for i in range(n_in)]
                 for k in range(width)] for o in range(n_out)]
        x = [[self.rounds(a) for a in row] for row in x]
        each = n_in == 1 and len(x[0]) > 1  # channel by channel
        out = []
        for t in range(len(x)):
            under = [(k, x[t + k - width // 2]) for k in range(width)
                     if 0 <= t + k - width // 2 < len(x)]
            out.append([b[o] + sum(taps[o][k][0] * row[o] if each else
                                   sum(p * q for p, q in zip(taps[o][k], row))
                                   for k, row in under) for o in range(n_out)])
        return out

    def affine(self, x, name, mean, deviation):
        w, b = self.f.t[name + ".weight"][0], self.f.t[name + ".bias"][0]
        return [[(a - mean(t, c)) / deviation(t, c) * w[c] + b[c] for c, a in enumerate(row)]
                for t, row in enumerate(x)]

    def moments(self, values, eps):
        mean = sum(values) / len(values)
        return mean, math.sqrt(sum((a - mean) ** 2 for a in values) / len(values) + eps)

    def group_norm(self, x, name):
        n = -(-len(x[0]) // self.f.keys["attention.group_norm_groups"])
        m = [self.moments([a for row in x for a in row[c:c + n]],
                          self.f.keys["attention.group_norm_epsilon"])
             for c in range(0, len(x[0]), n)]
        return self.affine(x, name, lambda t, c: m[c // n][0], lambda t, c: m[c // n][1])

    def norm(self, x, name):
        m = [self.moments(row, self.f.keys["attention.layer_norm_epsilon"]) for row in x]
        return self.affine(x, name, lambda t, c: m[t][0], lambda t, c: m[t][1])

    def residual(self, x, i):
        y = x
        for k in "12":
            y = [silu(row) for row in self.group_norm(y, "posnet.%d.norm%s" % (i, k))]
            y = self.conv(y, "posnet.%d.conv%s" % (i, k))
        return [plus(a, b) for a, b in zip(x, y)]

    def attention(self, x):
        n = self.group_norm(x, "posnet.2.attn_norm")
        q, k, v = (self.conv(n, "posnet.2.attn_" + c) for c in "qkv")
        y = []
        for row in q:
            p = softmax([s / math.sqrt(len(row)) for s in times(k, row)])
            y.append([sum(a * b for a, b in zip(p, column)) for column in zip(*v)])
        return [plus(a, b) for a, b in zip(x, self.conv(y, "posnet.2.attn_output"))]

    def product(self, x, name):
        return [plus(times(self.f.rows(name + ".weight"), row), self.f.rows(name + ".bias"))
                for row in x]

    def frames(self, tokens):
        x = self.conv([self.f.rows("token_embd.weight")[t] for t in tokens], "conv1d")
        x = self.attention(self.residual(self.residual(x, 0), 1))
        x = self.group_norm(self.residual(self.residual(x, 3), 4), "posnet.5.attn_norm")
        x = self.norm(x, "token_embd_norm")
        for i in range(self.f.keys["convnext.block_count"]):
            name = "convnext.%d." % i
            y = self.norm(self.conv(x, name + "dw"), name + "norm")
            y = [[a / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a ** 3)))
                  for a in row] for row in self.product(y, name + "pw1")]
            y = self.product(y, name + "pw2")
            gamma = self.f.t[name + "gamma.weight"][0]
            x = [[a + g * b for a, g, b in zip(r, gamma, s)] for r, s in zip(x, y)]
        return [a for row in self.product(self.norm(x, "output_norm"), "output") for a in row]


class Switch:
    """Granite with adapters."""

    def __init__(self, file):
        self.f, self.k = file, file.keys
        self.heads = self.k["attention.head_count"]
        self.kv = self.k["attention.head_count_kv"]
        self.d = self.k["embedding_length"] // self.heads
        self.slot = {t: i + 1 for i, t in enumerate(self.k["adapters.token_ids_activate"])}

    def adapters(self, tokens):
        """Means are rounded; of halves, which are not quite reached, up."""
        gain, weights, out = self.k.get("adapters.router_gain", 15.0), [], []
        for t in tokens:
            weights.append((math.exp(gain if t in self.slot else -gain), self.slot.get(t, 0)))
            mean = sum(w * v for w, v in weights) / sum(w for w, _ in weights)
            out.append(math.floor(round(mean, 6) + 0.5))
        return out

    def product(self, l, name, w, x, a):
        name = "blk.%d.%s.lora_" % (l, name)
        return plus(times(w, x), times(self.f.rows(name + "b")[a],
                                       times(self.f.rows(name + "a")[a], x)))

    def norm(self, x, name):
        s = math.sqrt(sum(a * a for a in x) / len(x) + self.k["attention.layer_norm_rms_epsilon"])
        return [a / s * w for a, w in zip(x, self.f.rows(name))]

    def turned(self, x, pos):
        x = list(x)
        for at in range(0, len(x), 2):
            angle = pos * self.k["rope.freq_base"] ** (-(at % self.d) / self.d)
            a, b, c, s = x[at], x[at + 1], math.cos(angle), math.sin(angle)
            x[at:at + 2] = a * c - b * s, a * s + b * c
        return x

    def row(self, l, x, pos, a, keys, values):
        """Of one position; what it keeps is appended."""
        block = "blk.%d." % l
        n, w = self.norm(x, block + "attn_norm.weight"), self.f.rows(block + "attn_qkv.weight")
        nq, nk = self.heads * self.d, self.kv * self.d
        q = self.turned(self.product(l, "attn_q", w[:nq], n, a), pos)
        keys.append(self.turned(self.product(l, "attn_k", w[nq:nq + nk], n, a), pos))
        values.append(self.product(l, "attn_v", w[nq + nk:], n, a))
        o = []
        for h in range(self.heads):
            part = slice(h * self.kv // self.heads * self.d,
                         (h * self.kv // self.heads + 1) * self.d)
            mine = q[h * self.d:(h + 1) * self.d]
            p = softmax([self.k["attention.scale"] * s
                         for s in times([k[part] for k in keys], mine)])
            o += [sum(b * c for b, c in zip(p, column)) for column in zip(*[v[part]
                                                                            for v in values])]
        r = self.k["residual_scale"]
        o = self.product(l, "attn_output", self.f.rows(block + "attn_output.weight"), o, a)
        x = [c + r * b for b, c in zip(o, x)]
        n = self.norm(x, block + "ffn_norm.weight")
        gate, up = (self.product(l, m, self.f.rows(block + m + ".weight"), n, a)
                    for m in ("ffn_gate", "ffn_up"))
        y = [b * c for b, c in zip(silu(gate), up)]
        y = self.product(l, "ffn_down", self.f.rows(block + "ffn_down.weight"), y, a)
        return [c + r * b for b, c in zip(y, x)]

    def logits(self, tokens):
        instead = dict(zip(self.k["adapters.token_ids_activate"],
                           self.k["adapters.token_ids_substitute"]))
        table = self.f.rows("token_embd.weight")
        x = [[self.k["embedding_scale"] * v for v in table[instead.get(t, t)]] for t in tokens]
        chosen = self.adapters(tokens)
        for l in range(self.k["block_count"]):
            keys, values = [], []
            x = [self.row(l, row, i, chosen[i], keys, values) for i, row in enumerate(x)]
        return [v / self.k["logit_scale"] for row in x
                for v in times(self.f.rows("output.weight"), self.norm(row, "output_norm.weight"))]


def unit(x, eps):
    s = 1 / math.sqrt(sum(a * a for a in x) / len(x) + eps)
    return [a * s for a in x]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def dot(x, y):
    return sum(a * b for a, b in zip(x, y))


def parts(x, n):
    """Of n numbers each."""
    return [x[i:i + n] for i in range(0, len(x), n)]


def by_heap(scores, n):
    """What std::partial_sort leaves of the numbered scores: the worst of n is on top of a heap, and
    goes for what is better than it."""
    heap = list(range(n))

    def settle(at):
        own, top = heap[at], at
        while 2 * at + 1 < n:
            down = 2 * at + 1
            if down + 1 < n and scores[heap[down + 1]] <= scores[heap[down]]:
                down += 1
            heap[at], at = heap[down], down
        while at > top and scores[heap[(at - 1) // 2]] > scores[own]:
            heap[at], at = heap[(at - 1) // 2], (at - 1) // 2
        heap[at] = own

    for at in range(n // 2 - 1, -1, -1):
        settle(at)
    for i in range(n, len(scores)):
        if scores[i] > scores[heap[0]]:
            heap[0] = i
            settle(0)
    return set(heap)


def by_place(scores, n):
    return set(sorted(range(len(scores)), key=lambda i: -scores[i])[:n])


class Flash:
    """Qwen3.8-Flash-Next. What a layer has seen of earlier rows is kept beside it."""

    def __init__(self, file, best):
        self.f, self.k, self.best = file, file.keys, best
        self.n, self.c = self.k["embedding_length"], self.k["hyper_connection.count"]
        self.eps = self.k["attention.layer_norm_rms_epsilon"]

    def w(self, l, name):
        return self.f.rows("blk.%d.%s.weight" % (l, name))

    def streams(self, norm, x):
        return [[a * b for a, b in zip(unit(s, self.eps), w)] for s, w in zip(x, norm)]

    def read(self, name, x):
        """The streams as one, and side by side."""
        norm, down, up = (self.f.rows("%s_%s.weight" % (name, p)) for p in ("norm", "down", "up"))
        m = [a for s in self.streams(norm, x) for a in s]
        gate = times(up, silu([a / self.c for a in times(down, m)]))
        g = parts([a * sigmoid(b) for a, b in zip(m, gate)], self.n)
        return [sum(s) / self.c for s in zip(*g)], m

    def write(self, name, x, m, y):
        inject = times(self.f.rows(name + "_inject.weight"), m)
        return [[a + 2 * sigmoid(i / self.c) * b for a, b in zip(s, y)]
                for s, i in zip(x, inject)]

    def ngrams(self, l, tokens, t, x, before):
        k, size, end, e = self.k, self.k["ple.ngram_size"], self.k["ple.eos_token_id"], []
        table, mix, over = self.f.rows("per_layer_token_embd.weight"), 0, False
        for i in range(size):
            token = tokens[t - i] if t >= i else end
            over = over or i > 0 and token == end
            mix ^= (end if over else token) * k["ple.layer_multipliers"][i] % 2 ** 64
            for h in range((i - 1) * k["ple.heads_per_ngram"], i * k["ple.heads_per_ngram"]):
                if i:
                    e += table[mix % k["ple.head_vocab_sizes"][h] + k["ple.head_offsets"][h]]
        key = self.streams(self.w(l, "ple_norm_key"), parts(times(self.w(l, "ple_key"), e), self.n))
        value, v = times(self.w(l, "ple_value"), e), []
        for a, b in zip(key, self.streams(self.w(l, "ple_norm_query"), x)):
            s = dot(a, b) / math.sqrt(self.n)
            gate = sigmoid(math.copysign(math.sqrt(max(abs(s), 1e-6)), s) if s else 0)
            v.append([gate * a for a in value])
        before.append([a for s in self.streams(self.w(l, "ple_norm_conv"), v) for a in s])
        taps, u = self.w(l, "ple_conv1d"), []
        for c, w in enumerate(taps):
            at = [(t - (len(w) - 1 - j) * size, a) for j, a in enumerate(w)]
            u.append(sum(a * before[i][c] for i, a in at if i >= 0))
        return [[a + b + c for a, b, c in zip(*s)] for s in zip(x, v, parts(silu(u), self.n))]

    def delta(self, l, x, kept):
        k, d = self.k, self.k["ssm.state_size"]
        keys, values = k["ssm.group_count"], k["ssm.time_step_rank"]
        rows = kept.setdefault("rows", [])
        rows.append(times(self.w(l, "attn_qkv"), x))
        u = []
        for c, w in enumerate(self.w(l, "ssm_conv1d")):
            at = [(len(rows) - len(w) + j, a) for j, a in enumerate(w)]
            u.append(sum(a * rows[i][c] for i, a in at if i >= 0))
        u = parts(silu(u), d)
        q, key = ([unit(a, self.eps / d) for a in u[i:i + keys]] for i in (0, keys))
        alpha, beta = (times(self.w(l, "ssm_" + p), x) for p in ("alpha", "beta"))
        z, y = parts(times(self.w(l, "attn_gate"), x), d), []
        states = kept.setdefault("states", [[[0] * d for _ in range(d)] for _ in range(values)])
        for h, v in enumerate(u[2 * keys:]):
            mine, theirs = key[h % keys], q[h % keys]  # each sqrt(d) too long
            rate = math.log1p(math.exp(alpha[h] + self.f.t["blk.%d.ssm_dt.bias" % l][0][h]))
            keep = math.exp(self.f.t["blk.%d.ssm_a" % l][0][h] * rate)
            o = []
            for j, row in enumerate(states[h]):
                row[:] = [keep * a for a in row]
                learns = sigmoid(beta[h]) * (v[j] - dot(row, mine) / math.sqrt(d))
                row[:] = [a + learns * b / math.sqrt(d) for a, b in zip(row, mine)]
                o.append(dot(row, theirs) / d)
            o = [a * w for a, w in zip(unit(o, self.eps), self.w(l, "ssm_norm"))]
            y += [a * sigmoid(b) for a, b in zip(o, z[h])]
        return times(self.w(l, "ssm_out"), y)

    def turned(self, x, pos):
        """Text turns as if sections were one, but for the fourth, which is not here."""
        n = self.k["rope.dimension_count"] // 2
        out = list(x)
        for i in range(n):
            angle = pos * self.k["rope.freq_base"] ** (-i / n)
            c, s, a, b = math.cos(angle), math.sin(angle), x[i], x[i + n]
            out[i], out[i + n] = a * c - b * s, b * c + a * s
        return out

    def heads(self, l, name, norm, d, x, pos):
        w = self.w(l, norm)
        return [self.turned([a * b for a, b in zip(unit(h, self.eps), w)], pos)
                for h in parts(times(self.w(l, name), x) if isinstance(name, str) else name, d)]

    def chosen(self, l, x, pos, kept):
        k, size = self.k, self.k["attention.compress_ratios"][l]
        d, top = k["attention.indexer.key_length"], k["attention.indexer.top_k"] + size - 1
        raw = kept.setdefault("raw", [])
        raw.append(times(self.w(l, "indexer.k_proj"), x))
        q = self.heads(l, "indexer.q_proj", "indexer.q_norm", d, x, pos)
        scores = []
        for first in range(0, len(raw) // size * size, size):
            mean = [sum(a) / size for a in zip(*raw[first:first + size])]
            key, = self.heads(l, mean, "indexer.k_norm", d, x, first)
            scores += [sum(max(0, dot(a, key)) for a in q)] * size
        scores += [1e9] * (len(raw) - len(scores))
        return self.best(scores, min(len(raw), top))

    def attention(self, l, x, pos, kept):
        d, count = len(self.w(l, "attn_q_norm")), self.k["attention.head_count"]
        seen = sorted(self.chosen(l, x, pos, kept))
        both = parts(times(self.w(l, "attn_q"), x), d)
        q = self.heads(l, [a for h in both[::2] for a in h], "attn_q_norm", d, x, pos)
        keys, values = kept.setdefault("keys", []), kept.setdefault("values", [])
        keys.append(self.heads(l, "attn_k", "attn_k_norm", d, x, pos))
        values.append(parts(times(self.w(l, "attn_v"), x), d))
        y = []
        for h in range(count):
            g = h * len(keys[0]) // count
            p = softmax([dot(keys[i][g], q[h]) / math.sqrt(d) for i in seen])
            o = [dot(p, column) for column in zip(*[values[i][g] for i in seen])]
            y += [a * sigmoid(b) for a, b in zip(o, both[2 * h + 1])]
        return times(self.w(l, "attn_output"), y)

    def experts(self, l, x):
        def one(name, gate, up, down):
            return times(down, [a * b for a, b in zip(silu(times(gate, x)), times(up, x))])
        p = softmax(times(self.w(l, "ffn_gate_inp"), x))
        best = sorted(range(len(p)), key=lambda e: -p[e])[:self.k["expert_used_count"]]
        part = sigmoid(dot(self.w(l, "ffn_gate_inp_shexp"), x))
        gate, up, down = (self.w(l, "ffn_%s_shexp" % n) for n in ("gate", "up", "down"))
        y = [part * a for a in one("", gate, up, down)]
        gate, up, down = (self.w(l, "ffn_%s_exps" % n) for n in ("gate", "up", "down"))
        for e in best:
            by = p[e] / sum(p[i] for i in best)
            y = [a + by * b for a, b in zip(y, one("", gate[e], up[e], down[e]))]
        return y

    def logits(self, tokens):
        kept = [{} for _ in range(self.k["block_count"])]
        out, embedding = [], self.f.rows("token_embd.weight")
        for t, token in enumerate(tokens):
            x = [embedding[token]] * self.c
            for l in range(self.k["block_count"]):
                if l in self.k["ple.layers"]:
                    x = self.ngrams(l, tokens, t, x, kept[l].setdefault("before", []))
                y, m = self.read("blk.%d.hc_attn" % l, x)
                attends = (l + 1) % self.k["full_attention_interval"] == 0
                y = self.attention(l, y, t, kept[l]) if attends else self.delta(l, y, kept[l])
                x = self.write("blk.%d.hc_attn" % l, x, m, y)
                y, m = self.read("blk.%d.hc_ffn" % l, x)
                x = self.write("blk.%d.hc_ffn" % l, x, m, self.experts(l, y))
            out += times(self.f.rows("output.weight"), self.read("output_hc", x)[0])
        return out


def ours(path, tokens, *flags):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "x.bin")
        subprocess.run([PITH, "logits", path, "--tokens", ",".join(map(str, tokens)),
                        "--cache-type-k", "f32", "--cache-type-v", "f32", "-o", out, *flags],
                       check=True, capture_output=True, timeout=LIMIT)
        return floats(out)


def floats(path):
    x = array.array("f")
    with open(path, "rb") as f:
        x.frombytes(f.read())
    return x


def apart(got, want):
    """The last len(want) of got: a header may go before them."""
    if len(got) < len(want):
        return math.inf
    return max(abs(a - b) for a, b in zip(got[len(got) - len(want):], want))


def sound(base):
    file = File(base + ".gguf")
    with open(base + ".json") as f:
        tokens = json.load(f)["tokens"]
    e = apart(Wav(file, True).frames(tokens), floats(base + ".hidden_exactgelu.bin"))
    check("the_record_rounds_to_halves", e < 2e-3, e)
    e = apart(ours(base + ".gguf", tokens, "--pooling", "none"), Wav(file, False).frames(tokens))
    check("ours_is_exact", e < 1e-3, e)


def switches(base):
    model = Switch(File(base + ".gguf"))
    for tokens in ([108, 17, 92, 5], [108, 17, 20, 92, 30], [20, 20, 5, 21, 7, 21, 21, 21, 3],
                   [21, 108, 9, 20, 1], [9, 21, 8]):
        e = apart(ours(base + ".gguf", tokens), model.logits(tokens))
        check("adapters_" + "_".join(map(str, model.adapters(tokens))), e < 1e-4, e)


def ties(base):
    file = File(base + ".gguf")
    with open(base + ".json") as f:
        tokens = json.load(f)["tokens"]
    e = apart(Flash(file, by_heap).logits(tokens), floats(base + ".logits.bin"))
    check("the_record_has_a_heap", e < 4e-4, e)
    e = apart(ours(base + ".gguf", tokens), Flash(file, by_place).logits(tokens))
    check("ours_takes_the_earlier", e < 4e-4, e)


def main():
    for name, test in (("wavtokenizer-dec", sound), ("graniteswitch", switches),
                       ("qwen4exp", ties)):
        base = os.path.join(SHARED, "golden/arch", name)
        if os.path.exists(base + ".gguf"):
            guard(name, lambda: test(base))
        else:
            skip(name, "no golden/arch under " + SHARED)


run(main, "plain")
