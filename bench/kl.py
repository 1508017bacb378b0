#!/usr/bin/env python3
"""kl.py -- how far from exact arithmetic are we, and how far is the peer?

    bench/kl.py MODEL [--prompts 12] [--caches f16,f32,q8_0] [--tokens 60]

MODEL is one of Qwen2's architecture (`scripts/instruct.sh` prints the path of one). Three programs
compute the log-probabilities behind every token of a few texts:

    exact   numpy in float64, weights made numbers by the Python package gguf: none of our code
    peer    llama-cpp-python, its own build, with its own choice of flash attention
    ours    pith logits

Printed are the mean over all positions of KL(exact || peer) and KL(exact || ours), over the whole
vocabulary, for each type of K and V cache, and how often the most likely token is that of exact
arithmetic. All three get the token ids of `pith tokenize`. The Python packages live in the private
environment of bench/versus.py. A model of 0.5B takes 4 GB of memory and a few minutes."""
import argparse, os, sys, tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import versus

TEXTS = [
    "The lighthouse keeper had not spoken to anyone for a year when the boat came. It was a "
    "small grey boat with a torn sail, and the man at the tiller waved as if he had been "
    "expected. She put the kettle on, moved the books from the second chair, and wondered what "
    "day of the week it might be on the mainland.",
    "def merge(a, b):\n    \"\"\"Merge two sorted lists.\"\"\"\n    out = []\n    i = j = 0\n    "
    "while i < len(a) and j < len(b):\n        if a[i] <= b[j]:\n            "
    "out.append(a[i])\n            i += 1\n        else:\n            "
    "out.append(b[j])\n            j += 1\n    return out + a[i:] + b[j:]\n",
    "Water boils at 100 degrees Celsius at sea level, but on a mountain of 3,000 metres it boils "
    "at about 90, because the pressure of the air is lower there. That is why pasta takes longer "
    "to cook in the Andes than in Lisbon, and why climbers carry a pressure cooker if they can "
    "bear the weight of it.",
    "#include <stdio.h>\n\nint main(void)\n{\n    unsigned long long a = 0, b = 1;\n    for (int "
    "i = 0; i < 50; i++) {\n        printf(\"%llu\\n\", a);\n        unsigned long long next = a "
    "+ b;\n        a = b;\n        b = next;\n    }\n    return 0;\n}\n",
    "Die Katze sprang auf den Tisch, sah die leere Schale und setzte sich beleidigt daneben. "
    "Seit drei Tagen hatte niemand das Fenster geöffnet, und der Regen lief in dünnen Streifen "
    "über das Glas. Draußen fuhr die letzte Straßenbahn, hell und leer wie ein Aquarium.",
    "SELECT c.name, COUNT(o.id) AS orders, SUM(o.total) AS revenue\nFROM customers c\nLEFT JOIN "
    "orders o ON o.customer_id = c.id\nWHERE o.created_at >= '2024-01-01'\nGROUP BY c.name\n"
    "HAVING COUNT(o.id) > 3\nORDER BY revenue DESC\nLIMIT 10;\n",
    "Ingredients: 500 g flour, 350 ml water, 10 g salt, 3 g dry yeast. Mix everything, cover the "
    "bowl and leave it overnight. In the morning fold the dough four times, let it rise for an "
    "hour, and bake it in a hot pot with the lid on for thirty minutes, then without it for "
    "fifteen.",
    "If a train leaves the station at 9:15 and travels at 80 kilometres an hour, and another "
    "leaves at 9:45 from the same station and travels at 120, the second one catches up after "
    "the first has gone 40 kilometres before the other starts. The difference in speed is 40, so "
    "it takes",
    "interface User {\n  id: number;\n  name: string;\n  email?: string;\n}\n\nasync function "
    "loadUser(id: number): Promise<User> {\n  const response = await "
    "fetch(`/api/users/${id}`);\n  if (!response.ok) {\n    throw new Error(`status "
    "${response.status}`);\n  }\n  return response.json();\n}\n",
    "Il y avait autrefois, au bord de la mer, un village où personne ne fermait sa porte. Les "
    "pêcheurs partaient avant l'aube et revenaient à midi ; les enfants apprenaient à compter "
    "avec des coquillages. Un jour, une lettre arriva de la capitale, et le maire la lut trois "
    "fois.",
    "The treaty of 1648 ended two wars at once and left behind a map of small states, each with "
    "its own coins, courts and customs. Historians still argue whether it invented the modern "
    "idea of sovereignty or merely wrote down what princes had practised for a century. What is "
    "not in doubt is",
    "$ git log --oneline -5\n3f2a9c1 Fix race in worker shutdown\n9b1d7e4 Add retries to the "
    "uploader\n51c0aa2 Bump version to 2.4.1\nc7e83f0 Document environment variables\n0d4f6b8 "
    "Remove dead code\n$ git show 3f2a9c1 --stat\n src/worker.c | 14 ++++++++------\n",
]


def tokens_of(a, text):
    out = versus.run([a.pith, "tokenize", a.model, text], 60)
    return [int(x) for x in out.strip().split(",")][:a.tokens]


# ---------------------------------------------------------------- exact

class Exact:
    """A decoder of Qwen2's architecture, all texts at once, a layer's weights at a time."""

    def __init__(self, path):
        import gguf
        self.gguf = gguf
        r = gguf.GGUFReader(path)
        self.tensors = {t.name: t for t in r.tensors}
        arch = self.key(r, "general.architecture")
        if arch != "qwen2":
            sys.exit(f"kl: {path} is of architecture {arch}, wanted qwen2")
        self.layers = self.key(r, arch + ".block_count")
        self.heads = self.key(r, arch + ".attention.head_count")
        self.heads_kv = self.key(r, arch + ".attention.head_count_kv")
        self.eps = self.key(r, arch + ".attention.layer_norm_rms_epsilon")
        self.base = self.key(r, arch + ".rope.freq_base")
        self.embd = self.key(r, arch + ".embedding_length")

    @staticmethod
    def key(r, name):
        if name not in r.fields:
            sys.exit(f"kl: the model has no {name}")
        return r.fields[name].contents()

    def weight(self, name, rows=slice(None)):
        """Float64 numbers, [rows, columns]."""
        t = self.tensors[name]
        return self.gguf.quants.dequantize(t.data[rows], t.tensor_type).astype("float64")

    def norm(self, x, name):
        import numpy as np
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps) * self.weight(name)

    def rotate(self, x):
        """x [tokens, heads, D], halves apart."""
        import numpy as np
        n, _, d = x.shape
        angle = np.arange(n)[:, None] * self.base ** (-2 * np.arange(d // 2) / d)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        low, high = x[..., :d // 2], x[..., d // 2:]
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)

    def attend(self, q, k, v):
        """One text: q [T, heads, D], k and v [T, heads_kv, D]."""
        import numpy as np
        n, _, d = q.shape
        q, k = self.rotate(q), self.rotate(k)
        k, v = (np.repeat(z, self.heads // self.heads_kv, axis=1) for z in (k, v))
        s = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(d)
        s = np.where(np.tri(n, dtype=bool), s, -np.inf)
        s = np.exp(s - s.max(axis=-1, keepdims=True))
        return np.einsum("hqk,khd->qhd", s / s.sum(axis=-1, keepdims=True), v).reshape(n, -1)

    def hidden(self, texts):
        """What the output matrix is multiplied by, of each text [T, embd]."""
        import numpy as np
        ids = np.concatenate(texts)
        ends = np.cumsum([len(t) for t in texts])[:-1]
        x = self.weight("token_embd.weight", ids)
        for i in range(self.layers):
            def linear(z, name):
                name = f"blk.{i}.{name}"
                y = z @ self.weight(name + ".weight").T
                return y + self.weight(name + ".bias") if name + ".bias" in self.tensors else y

            h = self.norm(x, f"blk.{i}.attn_norm.weight")
            q, k, v = (linear(h, f"attn_{c}").reshape(len(ids), n, -1)
                       for c, n in (("q", self.heads), ("k", self.heads_kv), ("v", self.heads_kv)))
            o = np.concatenate([self.attend(*p) for p in
                                zip(*(np.split(z, ends) for z in (q, k, v)))])
            x = x + linear(o, "attn_output")
            h = self.norm(x, f"blk.{i}.ffn_norm.weight")
            gate = linear(h, "ffn_gate")
            x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, "ffn_up"), "ffn_down")
        return np.split(self.norm(x, "output_norm.weight"), ends)

    def log_probs(self, hidden):
        """[T, vocabulary] of each text."""
        import numpy as np
        name = "output.weight" if "output.weight" in self.tensors else "token_embd.weight"
        w = self.weight(name)
        for h in hidden:
            yield log_softmax(h @ w.T)


def log_softmax(x):
    import numpy as np
    x = np.asarray(x, "float64")
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


# ---------------------------------------------------------------- the two programs

def ours(a, ids, cache):
    import numpy as np
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "logits")
        versus.run([a.pith, "logits", a.model, "--tokens", ",".join(map(str, ids)), "--out", path,
                    "--cache-type-k", cache, "--cache-type-v", cache], 600)
        return np.fromfile(path, "<f4").reshape(len(ids), -1)


class Peer:
    TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}

    def __init__(self, a):
        import llama_cpp as L
        self.L, self.room = L, a.tokens
        self.log = L.llama_log_callback(lambda level, text, data: None)  # it logs to stderr
        L.llama_log_set(self.log, None)
        L.llama_backend_init()
        self.model = L.llama_model_load_from_file(a.model.encode(),
                                                  L.llama_model_default_params())
        if not self.model:
            sys.exit("kl: the peer cannot open the model")
        self.n_vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.model))
        self.contexts = {}

    def context(self, cache):
        if cache not in self.contexts:
            p = self.L.llama_context_default_params()
            p.n_ctx = p.n_batch = p.n_ubatch = 512
            p.type_k = p.type_v = self.TYPES[cache]
            p.n_threads = p.n_threads_batch = len(os.sched_getaffinity(0))
            self.contexts[cache] = self.L.llama_init_from_model(self.model, p)
        if not self.contexts[cache]:
            sys.exit(f"kl: the peer has no cache of {cache}")
        return self.contexts[cache]

    def logits(self, ids, cache):
        import numpy as np
        L, ctx = self.L, self.context(cache)
        L.llama_memory_clear(L.llama_get_memory(ctx), True)
        b = L.llama_batch_init(len(ids), 0, 1)
        b.n_tokens = len(ids)
        for i, t in enumerate(ids):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = t, i, 1, 1
            b.seq_id[i][0] = 0
        if L.llama_decode(ctx, b):
            sys.exit("kl: the peer's decode failed")
        rows = [np.ctypeslib.as_array(L.llama_get_logits_ith(ctx, i), (self.n_vocab,)).copy()
                for i in range(len(ids))]
        L.llama_batch_free(b)
        return np.stack(rows)


# ---------------------------------------------------------------- main

def compare(a):
    import numpy as np
    texts = [tokens_of(a, t) for t in TEXTS[:a.prompts]]
    exact, peer = Exact(a.model), Peer(a)
    kl, best = {}, {}  # of (program, cache): all positions
    for ids, p in zip(texts, exact.log_probs(exact.hidden(texts))):
        weight = np.exp(p)
        for cache in a.caches:
            for who, x in (("peer", peer.logits(ids, cache)), ("ours", ours(a, ids, cache))):
                q = log_softmax(x)
                kl.setdefault((who, cache), []).extend((weight * (p - q)).sum(axis=-1))
                best.setdefault((who, cache), []).extend(p.argmax(axis=-1) == q.argmax(axis=-1))
    print(f"{os.path.basename(a.model)}, {sum(map(len, texts))} positions of {len(texts)} texts")
    print("| cache | KL: ours | the peer | share | median: ours | the peer | same best token: ours "
          "| the peer |\n|---|---:|---:|---:|---:|---:|---:|---:|")
    for cache in a.caches:
        o, p = kl["ours", cache], kl["peer", cache]
        print(f"| {cache} | {np.mean(o):.5f} | {np.mean(p):.5f} | {np.mean(o) / np.mean(p):.3f} | "
              f"{np.median(o):.5f} | {np.median(p):.5f} | {np.mean(best['ours', cache]):.4f} | "
              f"{np.mean(best['peer', cache]):.4f} |")


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model", metavar="MODEL")
    ap.add_argument("--prompts", type=int, default=len(TEXTS))
    ap.add_argument("--tokens", type=int, default=60, help="most tokens of a text, up to 512")
    ap.add_argument("--caches", type=lambda s: s.split(","), default=["f16", "f32", "q8_0"])
    ap.add_argument("--pith", default=os.path.join(versus.ROOT, "build", "pith"))
    ap.add_argument("--venv", default=versus.VENV)
    a = ap.parse_args()
    a.python = None
    for c in a.caches:
        if c not in Peer.TYPES:
            ap.error(f"--caches: {c!r} is not one of {', '.join(Peer.TYPES)}")
    if not 1 <= a.tokens <= 512 or a.prompts < 1:
        ap.error("--tokens is 1 to 512, --prompts at least 1")
    if os.path.realpath(sys.prefix) != os.path.realpath(a.venv):
        versus.ensure_peer(a)
        python = os.path.join(a.venv, "bin", "python")
        versus.run([python, "-m", "pip", "install", "-q", "gguf", "numpy"], 600)
        os.execv(python, [python, os.path.abspath(__file__), *sys.argv[1:]])
    compare(a)


if __name__ == "__main__":
    main()
