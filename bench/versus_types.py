#!/usr/bin/env python3
"""versus_types.py -- speed of each weight type beside the peer (bench/versus.py).

    bench/versus_types.py [--types iq1_s,tq2_0 ...] [--layers 8] [versus.py's arguments]

A model of each type is made once in OUT (371 million weights with 8 layers): a synthetic one of
q8_0 whose blocks are replaced by those of a small synthetic one of the type, over and over, because
the quantisers of types with code books search for minutes. Sizes and speed are those of any model
of the type; the text is none. Then all go through versus.py, decode and a short prefill."""
import argparse, os, struct, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# weights and bytes of a block
BLOCKS = {"q8_0": (32, 34), "mxfp4": (32, 17), "nvfp4": (64, 36), "q1_0": (128, 18),
          "q2_0": (64, 18), "tq1_0": (256, 54), "tq2_0": (256, 66), "iq1_s": (256, 50),
          "iq1_m": (256, 56), "iq2_xxs": (256, 66), "iq2_xs": (256, 74), "iq2_s": (256, 82),
          "iq3_xxs": (256, 98), "iq3_s": (256, 110)}
ALIGN = 32
SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


class File:
    """A GGUF file taken apart: the bytes up to the tensor table, its rows, the data."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.b = f.read()
        self.at = 8
        n, n_keys = self.number("<Q"), self.number("<Q")
        for _ in range(n_keys):
            self.text()
            self.value(self.number("<I"))
        self.head = self.b[:self.at]
        self.rows = []
        for _ in range(n):
            name = self.text()
            dims = [self.number("<Q") for _ in range(self.number("<I"))]
            self.rows.append((name, dims, self.number("<I"), self.number("<Q")))
        self.data = (self.at + ALIGN - 1) // ALIGN * ALIGN

    def number(self, form):
        self.at += struct.calcsize(form)
        return struct.unpack_from(form, self.b, self.at - struct.calcsize(form))[0]

    def text(self):
        n = self.number("<Q")
        self.at += n
        return self.b[self.at - n:self.at]

    def value(self, kind):
        if kind == 8:
            self.text()
        elif kind == 9:
            inner, n = self.number("<I"), self.number("<Q")
            for _ in range(n):
                self.value(inner)
        else:
            self.at += SCALAR_BYTES[kind]

    def bytes_of(self, row, n):
        return self.b[self.data + row[3]:self.data + row[3] + n]


def weights(dims):
    n = 1
    for d in dims:
        n *= d
    return n


def size(type_name, dims):
    block, n = BLOCKS[type_name]
    return weights(dims) // block * n


def synth(pith, path, *args):
    subprocess.run([pith, "synth", path, "--arch", "llama", *map(str, args)], check=True)


def make(pith, large, small_path, type_name, out):
    synth(pith, small_path, "--type", type_name, "--layers", 1, "--embd", 256, "--ff", 256,
          "--heads", 4, "--vocab", 300)
    small = File(small_path)
    pattern = next(r for r in small.rows if r[0] == b"blk.0.ffn_up.weight")
    blocks = small.bytes_of(pattern, size(type_name, pattern[1]))
    table, data = [], []
    at = 0
    for row in large.rows:
        name, dims, kind, _ = row
        if kind == 8:  # q8_0
            kind, n = pattern[2], size(type_name, dims)
            body = blocks * (n // len(blocks)) + blocks[:n % len(blocks)]
        else:
            body = large.bytes_of(row, 4 * weights(dims))  # f32: norms
        table.append(struct.pack("<Q", len(name)) + name + struct.pack("<I", len(dims)) +
                     struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, at))
        data.append(body + bytes(-len(body) % ALIGN))
        at += len(data[-1])
    head = large.head + b"".join(table)
    with open(out + ".part", "wb") as f:
        f.write(head + bytes(-len(head) % ALIGN))
        f.writelines(data)
    os.replace(out + ".part", out)
    os.remove(small_path)


def arguments(doc, what, known, default, layers=None):
    """The names that --WHAT gives, OUT and the program, and versus.py's own arguments. layers: a
    default of --layers; None: there is no such argument."""
    ap = argparse.ArgumentParser(description=doc,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--" + what, dest="names", type=lambda s: s.split(","), default=default)
    if layers:
        ap.add_argument("--layers", type=int, default=layers)
    ap.add_argument("--out", default=os.path.join(ROOT, "build", "versus-" + what))
    ap.add_argument("--pith", default=os.path.join(ROOT, "build", "pith"))
    a, rest = ap.parse_known_args()
    for name in a.names:
        if name not in known:
            ap.error(f"{name}: not one of {', '.join(known)}")
    os.makedirs(a.out, exist_ok=True)
    return a, rest


def versus(a, paths, tests, rest):
    """versus.py on the models; returns its exit status."""
    own = [] if any(r.startswith("--tests") for r in rest) else ["--tests", tests]
    return subprocess.run([sys.executable, os.path.join(ROOT, "bench", "versus.py"), *paths,
                           "--out", a.out, "--pith", a.pith, *own, *rest]).returncode


def main():
    a, rest = arguments(__doc__, "types", BLOCKS, [t for t in BLOCKS if t != "q8_0"], layers=8)
    names = a.names
    paths = [os.path.join(a.out, f"{a.layers}-{t}.gguf") for t in names]
    if not all(map(os.path.exists, paths)):
        whole = os.path.join(a.out, "large.gguf")
        synth(a.pith, whole, "--type", "q8_0", "--layers", a.layers, "--embd", 2048, "--ff", 5632,
              "--heads", 16, "--heads-kv", 4, "--vocab", 4096, "--ctx", 4096)
        large = File(whole)
        os.remove(whole)
        for t, path in zip(names, paths):
            if not os.path.exists(path):
                make(a.pith, large, os.path.join(a.out, "small.gguf"), t, path)
    sys.exit(versus(a, paths, "tg32,pp128", rest))


if __name__ == "__main__":
    main()
