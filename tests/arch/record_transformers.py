#!/usr/bin/env python3
"""record_transformers.py -- writes tests/data/transformers.npz: the logits that the Python package
transformers computes for the tiny models of hf_families.py, and what their weights are called.

Usage: PYTHONPATH=tests tests/arch/record_transformers.py [FAMILY ..], in an environment with torch
and transformers (several GB), which the tests do without. Only the named families are computed
anew.
GELU through erf becomes the tanh form, which is what programs for GGUF files compute."""
import inspect
import json
import os
import sys

import numpy as np
import torch
import transformers

from hf_families import FAMILIES
from tiny import N_VOCAB, TOKENS, weights

PATH = "tests/data/transformers.npz"


def tanh_gelu():
    gelu = torch.nn.functional.gelu
    torch.nn.functional.gelu = lambda x, approximate="none": gelu(x, approximate="tanh")


def model_of(family):
    cls = getattr(transformers, family.cls, None)
    if cls is None:
        import importlib
        import pkgutil
        for m in pkgutil.iter_modules(transformers.models.__path__):
            if family.cls.lower().startswith(m.name.replace("_", "")):
                module = importlib.import_module("transformers.models.%s.modeling_%s"
                                                 % (m.name, m.name))
                cls = getattr(module, family.cls, cls)
    config = cls.config_class(**family.config, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return cls(config).double().eval()


def record(family):
    model = model_of(family)
    state = model.state_dict()
    shapes = {k: list(v.shape) for k, v in state.items()}
    if family.head:
        shapes["lm_head.weight"] = [N_VOCAB, family.config["hidden_size"]]
    if family.tied:
        shapes.pop("lm_head.weight")
    values = family.values(shapes)
    with torch.no_grad():
        for k, v in state.items():
            if k in values:
                v.copy_(torch.from_numpy(values[k].astype(np.float64)))
        more = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters \
            else {}
        if not family.causal:
            more["attention_mask"] = torch.zeros(1, 1, len(TOKENS), len(TOKENS)).double()
        out = model(input_ids=torch.tensor([TOKENS]), **more)
    if family.head:
        z = family.head(out.last_hidden_state[0].numpy() @ values["lm_head.weight"].T)
    else:
        z = (out.last_hidden_state if family.pooled else out.logits)[0].numpy()
    return shapes, z.astype(np.float32)


def main():
    tanh_gelu()
    data = {}
    if os.path.exists(PATH):
        with np.load(PATH) as old:
            data = {k: old[k] for k in old.files}
    shapes = json.loads(str(data["shapes"])) if "shapes" in data else {}
    for name in sys.argv[1:] or FAMILIES:
        try:
            shapes[name], data[name] = record(FAMILIES[name])
            print(name, data[name].shape, "std %.3g" % data[name].std())
        except Exception as e:
            if not os.environ.get("KEEP_GOING"):
                raise
            print("FAIL", name, type(e).__name__, str(e)[:300])
    data["version"] = np.array(transformers.__version__)
    data["shapes"] = np.array(json.dumps(shapes))
    np.savez_compressed(PATH, **data)


main()
