#!/usr/bin/env python3
# In make test alone: packages are imported, and make check has test_models.c.
"""test_transformers.py -- `pith logits` gives what the Python package transformers computes, for
tiny random models of families that it has.

The package and what it needs are several GB; so record_transformers.py has recorded its logits in
tests/data/transformers.npz. Weights are not recorded: they follow from their names (tiny.py).
hf_families.py writes them into a GGUF file. Errors are relative to the logits' deviation."""
import json
import os
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    np = None

from report import check, run, skip

TOLERANCE = 3e-5


def error(family, shapes, want, folder):
    """The greatest difference over the standard deviation; or a text."""
    from tiny import TOKENS, run_pith, write_gguf
    path = os.path.join(folder, "model.gguf")
    write_gguf(path, family.arch, family.keys, family.gguf(family.values(shapes)))
    flags = ["--pooling", "none"] if family.pooled else []
    got = run_pith(path, TOKENS, *flags)
    if isinstance(got, str):
        return got
    if got.shape != want.shape or not np.isfinite(got).all():
        return "shape %s, not finite or not %s" % (got.shape, want.shape)
    return float(np.abs(got - want).max() / want.std())


def behind_the_pool(family, shapes, rows, folder):
    """EmbeddingGemma's pooled rows go through two more matrices, LFM2's through one with a bias."""
    from tiny import TOKENS, run_pith, weights, write_gguf
    more = weights({"dense_2.weight": [40, rows.shape[1]], **(
        {"dense_2.bias": [40]} if family.arch == "lfm2" else
        {"dense_3.weight": [rows.shape[1], 40]})})
    path = os.path.join(folder, "dense.gguf")
    write_gguf(path, family.arch, {
        **family.keys, ".dense_2_feat_in": 32, ".dense_2_feat_out": 40, ".dense_3_feat_in": 40,
        ".dense_3_feat_out": 32, ".pooling_type": 1},
        {**family.gguf(family.values(shapes)), **more})
    for how, x in (("mean", rows.mean(0, keepdims=True)), ("none", rows)):
        want = x @ more["dense_2.weight"].T.astype(float) + more.get("dense_2.bias", 0.0)
        want = want @ more["dense_3.weight"].T.astype(float) if "dense_3.weight" in more else want
        got = run_pith(path, TOKENS, "--pooling", how)
        good = not isinstance(got, str) and got.shape == want.shape \
            and np.abs(got - want).max() < TOLERANCE * want.std()
        check("behind_the_pool_%s_%s" % (family.arch, how), good, got)


def nothing_is_chosen(family, shapes, folder):
    """hy_v4 without an indexer sees what one sees that chooses as many as there are."""
    from tiny import TOKENS, run_pith, write_gguf
    weights, rows = family.gguf(family.values(shapes)), []
    for k in (64, None):
        keys = {n: v for n, v in family.keys.items() if k or ".indexer." not in n}
        keys.update({".attention.indexer.top_k": k} if k else {})
        path = os.path.join(folder, "chosen.gguf")
        write_gguf(path, family.arch, keys,
                   {n: x for n, x in weights.items() if k or ".indexer." not in n})
        rows.append(run_pith(path, TOKENS))
    good = all(isinstance(x, np.ndarray) for x in rows) and np.abs(rows[0] - rows[1]).max() < 1e-5
    check("nothing_is_chosen", good, [x for x in rows if isinstance(x, str)])


def main():
    if np is None:
        skip("transformers", "no Python package numpy")
        return
    from hf_families import FAMILIES
    with np.load("tests/data/transformers.npz") as data:
        version, shapes = str(data["version"]), json.loads(str(data["shapes"]))
        wanted = {k: data[k].astype(np.float64) for k in data.files if k in shapes}
    check("all_are_recorded", sorted(wanted) == sorted(FAMILIES),
          set(wanted).symmetric_difference(FAMILIES))
    print("# against transformers", version)
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or wanted:
            e = error(FAMILIES[name], shapes[name], wanted[name], folder)
            if isinstance(e, str):
                check(name, False, e)
                continue
            print("# %-16s %-14s %.1e" % (name, FAMILIES[name].arch, e))
            check(name, e < TOLERANCE, "differs by %.2e of the deviation" % e)
        nothing_is_chosen(FAMILIES["hy_v4"], shapes["hy_v4"], folder)
        for name in ("gemma-embedding", "lfm2"):
            behind_the_pool(FAMILIES[name], shapes[name], wanted[name], folder)


run(main, "transformers", "logits")
