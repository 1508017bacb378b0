#!/usr/bin/env python3
"""measure.py -- prints `# model architecture error` for every recorded model, as
test_transformers.py and test_second.py do for theirs: the greatest difference over the deviation
of what is recorded. scripts/archs.sh --measure keeps them."""
import glob
import json
import os

import numpy as np

from report import SHARED
from tiny import run_pith


def error(path):
    with open(path) as f:
        case = json.load(f)
    kinds = {o["file"]: o for o in case["outputs"]}
    stem = path[:-5]
    for end in ("logits_fa", "logits_exactgelu", "logits", "embd_none_exactgelu", "embd_none",
                "hidden_exactgelu", "hidden"):
        name = "%s.%s.bin" % (os.path.basename(stem), end)
        if name in kinds:
            break
    want = np.fromfile(os.path.join(os.path.dirname(path), name), "<f4").astype(np.float64)
    want = want.reshape(kinds[name]["shape"])
    tokens, flags = case["tokens"], ["--ctx", str(min(case["n_ctx"], case["n_ctx_train"]))]
    if "encoder_tokens" in case:
        tokens = case["decoder_tokens"]
        flags += ["--encoder-tokens", ",".join(map(str, case["encoder_tokens"]))]
    elif "embd" in end:
        flags += ["--pooling", "none"]
    got = run_pith(stem + ".gguf", tokens, *flags)
    if isinstance(got, str):
        return case["arch"], got
    if "logits_columns" in case:
        got = got[:, slice(*case["logits_columns"])]
    return case["arch"], float(np.abs(got - want).max() / want.std())


for path in sorted(glob.glob(os.path.join(SHARED, "golden", "arch", "*.json"))):
    arch, e = error(path)
    name = os.path.basename(path)[:-5]
    print("# %-30s %-16s %s" % (name, arch, "%.1e" % e if isinstance(e, float) else "- " + e))
