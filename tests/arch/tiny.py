"""tiny.py -- tiny models for tests of architectures: random weights that follow from their names, a
writer of GGUF files, and what `pith logits` says of one."""
import os
import re
import struct
import subprocess
import tempfile
import zlib

import numpy as np

from report import LIMIT, PITH

N_VOCAB = 64
TOKENS = [int(t) for t in np.random.default_rng(16).integers(3, N_VOCAB, 24)]


def weights(shapes, centred=None, salt=""):
    """{name: f32 array} for {name: shape}. The same name, shape and salt give the same numbers.
    Vectors that scale are near 1, or 0 where the model adds 1 itself (names that `centred` is found
    in); matrices keep the size of rows, those of queries and keys enlarge it, so that attention is
    no mean; what states decay by is negative."""
    out = {}
    for name, shape in shapes.items():
        rng = np.random.default_rng(zlib.crc32((salt + name).encode()))
        x = rng.standard_normal(shape)
        last = name.rsplit(".", 1)[-1]
        if len(shape) < 2 and last == "weight":
            x = 0.2 * x + (not (centred and re.search(centred, name)))
        elif last == "ssm_a":
            x = -np.exp(0.5 * x)
        elif len(shape) < 2:
            x = 0.3 * x
        elif "embed" in name or "wte" in name or "embd" in name:
            x = 1.0 * x
        else:
            gain = 1.5 if re.search("q_|k_|[Qq]kv|attn_[qk]", name) else 1.0
            x = gain * x / np.sqrt(shape[-1])
        out[name] = x.astype(np.float32)
    return out


def string(s):
    s = s.encode()
    return struct.pack("<Q", len(s)) + s


def value(v):
    """A value with its type before it: bool, whole numbers as u32 or i32, floats as f32, text."""
    if isinstance(v, (list, tuple)):
        first = value(v[0])
        return (struct.pack("<I", 9) + first[:4] + struct.pack("<Q", len(v))
                + b"".join(value(x)[4:] for x in v))
    if isinstance(v, (bool, np.bool_)):
        return struct.pack("<I?", 7, bool(v))
    if isinstance(v, str):
        return struct.pack("<I", 8) + string(v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    return struct.pack("<II", 4, v) if v >= 0 else struct.pack("<Ii", 5, v)


def write_gguf(path, arch, keys, tensors, n_vocab=N_VOCAB):
    """keys: without the architecture's name before them where they begin with a dot. tensors:
    {name: f32 array}, slowest dimension first."""
    tokens = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % i for i in range(n_vocab - 3)]
    every = {"general.architecture": arch, "general.name": "tiny"}
    every.update((arch + k if k.startswith(".") else k, v) for k, v in keys.items())
    every.update({"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
                  "tokenizer.ggml.scores": [-float(i) for i in range(n_vocab)],
                  "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2})
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(every))
    head += b"".join(string(k) + value(v) for k, v in every.items())
    body = b""
    for name, x in tensors.items():
        x = np.ascontiguousarray(x, dtype=np.float32)
        head += string(name) + struct.pack("<I", x.ndim)
        head += b"".join(struct.pack("<Q", n) for n in reversed(x.shape))
        head += struct.pack("<IQ", 0, len(body))
        body += x.tobytes() + bytes(-x.nbytes % 32)
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32) + body)


def run_pith(path, tokens, *flags):
    """[T, V], or [T, E] with --pooling none, one row with other pooling; a text if it went
    wrong."""
    out = tempfile.mktemp(prefix="pith-rows-")
    p = subprocess.run([PITH, "logits", path, "--tokens", ",".join(map(str, tokens)), "--out", out,
                        "--cache-type-k", "f32", "--cache-type-v", "f32", "--threads", "1",
                        "--no-cache-dir", *flags],
                       capture_output=True, text=True, timeout=LIMIT)
    if p.returncode:
        return p.stderr.strip()
    x = np.fromfile(out, dtype=np.float32).astype(np.float64)
    os.remove(out)
    one = "--pooling" in flags and flags[flags.index("--pooling") + 1] != "none"
    return x.reshape(1 if one else len(tokens), -1)
