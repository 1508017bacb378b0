#!/usr/bin/env python3
# In make test alone: it takes long at any scale.
"""test_second.py -- `pith logits` gives what second implementations give (second.py), which were
written from papers, model cards and the facts of the file format alone. Errors are relative to the
deviation of what is compared. One may be above TOLERANCE where a model makes as much of the last
bits of its weights: below three times what the second implementation itself then differs by."""
import os
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    np = None

from report import SCALE, SEED, check, run, skip

TOLERANCE = 3e-5


def by_layer(values):
    """{"token_embd": .., 0: {"attn_q": ..}, ..}, in float64."""
    out = {}
    for name, x in values.items():
        place, name = out, name.removesuffix(".weight")
        if name.startswith("blk."):
            _, layer, name = name.split(".", 2)
            place = out.setdefault(int(layer), {})
        place[name] = x.astype(np.float64)
    return out


def moved(function, values, tokens, want):
    """How far the rows are from others of weights that differ by a float's last bit or so."""
    rng, most = np.random.default_rng(7), 0.0
    for _ in range(4):
        near = {k: x * (1 + 6e-8 * rng.standard_normal(x.shape)) for k, x in values.items()}
        most = max(most, float(np.abs(function(by_layer(near), tokens) - want).max()))
    return most / want.std()


def allowed(e, function, values, tokens, want):
    """e, or a text: it is too much."""
    if e < TOLERANCE or e < 3 * moved(function, values, tokens, want):
        return e
    return "differs by %.2e of the deviation" % e


def error(arch, keys, shapes, function, pooled, folder):
    """pooled: how, where embeddings or scores are asked for."""
    from tiny import TOKENS, run_pith, weights, write_gguf
    values = weights(shapes, "_res_score")  # vectors that scores are made of are not near 1
    path = os.path.join(folder, "model.gguf")
    write_gguf(path, arch, keys, values, len(values.get("token_embd.weight", values.get(
        "output.weight"))))
    want = function(by_layer(values), TOKENS)
    got = run_pith(path, TOKENS, *(["--pooling", pooled] if pooled else []))
    if isinstance(got, str):
        return got
    said = want > -1e38  # the others cannot be
    if got.shape != want.shape or not np.isfinite(got[said]).all() or ((got > -1e38) != said).any():
        return "shape %s, not finite or not %s" % (got.shape, want.shape)
    e = float(np.abs(got[said] - want[said]).max() / np.abs(want[said]).max() if pooled == "rank"
              else np.abs(got[said] - want[said]).max() / want[said].std())
    return allowed(e, function, values, TOKENS, want)


def every_way(arch, family, salt, folder):
    """The greatest error of prompts of several lengths, whole and in steps of 7 tokens and of 1."""
    from tiny import N_VOCAB, run_pith, weights, write_gguf
    keys, shapes, function = family
    values = weights(shapes, "_res_score", salt)
    path = os.path.join(folder, "model.gguf")
    write_gguf(path, arch, keys, values)
    tokens = [int(t) for t in np.random.default_rng(40).integers(3, N_VOCAB, 40)]
    want, most = function(by_layer(values), tokens), 0.0
    for n, flags in ((1, []), (5, []), (40, []), (40, ["--chunk", "7"]), (40, ["--chunk", "1"])):
        got = run_pith(path, tokens[:n], *flags)
        if isinstance(got, str):
            return got
        if not np.isfinite(got).all():
            return "not finite"
        most = max(most, float(np.abs(got - want[:n]).max() / want.std()))
    return allowed(most, function, values, tokens, want)


def drawn(folder):
    """Kimi K3 of sizes and parts that are drawn."""
    from second_kimi import draw, k3
    for i in range(8 * SCALE):
        seed = 100 * SEED + i
        options = draw(np.random.default_rng(seed))
        e = every_way("kimi-k3", k3(**options), str(seed), folder)
        check("kimi-k3-drawn-%d" % seed, isinstance(e, float), "%s, of %s" % (e, options))


def no_output(folder):
    """T5's encoder alone may come with the decoder's output matrix."""
    from tiny import N_VOCAB, TOKENS, run_pith, weights, write_gguf
    keys = {".context_length": 64, ".embedding_length": 32, ".block_count": 1,
            ".feed_forward_length": 48, ".attention.head_count": 4, ".attention.key_length": 8,
            ".attention.value_length": 8, ".attention.layer_norm_rms_epsilon": 1e-5,
            ".attention.relative_buckets_count": 8, ".pooling_type": 0}
    shapes = {"token_embd.weight": [N_VOCAB, 32], "enc.output_norm.weight": [32]}
    shapes.update({"enc.blk.0.%s.weight" % k: v for k, v in {
        "attn_norm": [32], "ffn_norm": [32], "attn_q": [32, 32], "attn_k": [32, 32],
        "attn_v": [32, 32], "attn_o": [32, 32], "attn_rel_b": [8, 4], "ffn_up": [48, 32],
        "ffn_down": [32, 48]}.items()})
    rows = []
    for more in ({}, {"output.weight": [N_VOCAB, 32]}):
        path = os.path.join(folder, "t5encoder.gguf")
        write_gguf(path, "t5encoder", keys, weights({**shapes, **more}))
        rows.append(run_pith(path, TOKENS, "--pooling", "none"))
    good = all(isinstance(x, np.ndarray) for x in rows) and (rows[0] == rows[1]).all()
    check("t5encoder_with_output", good, [x for x in rows if isinstance(x, str)])


def main():
    if np is None:
        skip("second", "no Python package numpy")
        return
    from second import FAMILIES
    from second_forms import FORMS, RANKED
    from second_kimi import FAMILIES as KIMI
    from second_sizes import SIZES
    cases = {k: (arch, how, "none" if pooled else None)
             for k, (arch, how, pooled) in {**FAMILIES, **KIMI, **FORMS, **SIZES}.items()}
    cases.update((k, (arch, how, "rank")) for k, (arch, how) in RANKED.items())
    with tempfile.TemporaryDirectory() as folder:
        if not sys.argv[1:]:
            no_output(folder)
            drawn(folder)
            for name in KIMI:
                e = every_way("kimi-k3", KIMI[name][1], "other", folder)
                check(name + "_every_way", isinstance(e, float), e)
        for name in sys.argv[1:] or cases:
            arch, (keys, shapes, function), pooled = cases[name]
            e = error(arch, keys, shapes, function, pooled, folder)
            if isinstance(e, float):
                print("# %-18s %-14s %.1e" % (name, arch, e))
            check(name, isinstance(e, float), e)


if __name__ == "__main__":
    run(main, "second", "logits")
