"""second_forms.py -- what files of the usual decoders may or may not have (biases, factors,
scalings, experts, fused products ...) as second implementations, in plain numpy: forms that the
tiny models of transformers do not take. See second.py."""
import numpy as np

from plain import (alibi, attend, best, experts, gated, gelu, heads, layer_norm, relu, rms, rope,
                   silu, softmax, yarn)
from second import BASE, D, E, F, FFN, G, H, K, LN, MOE, MOE_KEYS, RMS, X, jina_bert_v2, keys, \
    norms, projected, qkv, shapes
from tiny import N_VOCAB

SPEED = {".rope.freq_base": BASE}
UNGATED = {k: v for k, v in FFN.items() if "gate" not in k}
QKV_BIAS = {"attn_q.bias": [H * D], "attn_k.bias": [G * D], "attn_v.bias": [G * D]}
OUT_BIAS = {"attn_output.bias": [E]}
FFN_BIAS = {"ffn_gate.bias": [F], "ffn_up.bias": [F], "ffn_down.bias": [E]}
FREQS = {"rope_freqs.weight": [D // 2]}
FUSED = {"attn_qkv.weight": [(H + 2 * G) * D, E], "attn_qkv.bias": [(H + 2 * G) * D],
         "attn_output.weight": [E, H * D]}
PAIR_OF_NORMS = norms("attn_norm", "ffn_norm")


def biased(*names):
    return {n + end: [E] for n in names for end in (".weight", ".bias")}


def times(x, w, name, ignored=()):
    """The product, times its number if it has one, and its bias, if there is one and it counts;
    in a feed-forward the bias comes first."""
    scale = w.get(name + ".scale", 1.0)
    bias = w[name + ".bias"] if name + ".bias" in w and name not in ignored else 0.0
    return (x @ w[name].T + bias) * scale if "ffn" in name else x @ w[name].T * scale + bias


def decoder(layers, turn=dict(base=BASE), turns=None, norm=rms, act=silu, embed=1.0, scale=1.0,
            logits=lambda z: z, clamp=0.0, slopes=None, windowed=(), temper=None, ignored=(),
            renorm=True, parallel=False, rule=softmax, routed=1.0, around=0, row_norms=False,
            used=K):
    """tokens -> logits. turn: how positions turn q and k, turns: in which layers."""
    def normed(x, w, name):
        return norm(x, w[name], w[name + ".bias"]) if name + ".bias" in w else norm(x, w[name])

    def run(w, tokens):
        x = w["token_embd" if "token_embd" in w else "output"][tokens] * embed
        if "position_embd" in w:
            x = x + w["position_embd"][:len(x)]
        if "token_embd_norm" in w:
            x = normed(x, w, "token_embd_norm")
        how = dict(turn) if turn else None
        if "rope_freqs" in w:
            how["factors"] = w["rope_freqs"]
        for i in range(layers):
            n = normed(x, w[i], "attn_norm") if "attn_norm" in w[i] else x
            if "attn_qkv" in w[i]:
                y = times(n, w[i], "attn_qkv", ignored)
                g = (y.shape[1] // D - H) // 2
                q, k, v = np.split(y, [H * D, (H + g) * D], -1)
            else:
                q, k, v = (times(n, w[i], "attn_" + p, ignored) for p in "qkv")
                g = k.shape[1] // D
            if clamp:
                q, k, v = (np.clip(z, -clamp, clamp) for z in (q, k, v))
            if row_norms:
                q, k = normed(q, w[i], "attn_q_norm"), normed(k, w[i], "attn_k_norm")
            q, k, v = heads(q, H), heads(k, g), heads(v, g)
            if "attn_q_norm" in w[i] and not row_norms:
                q, k = rms(q, w[i]["attn_q_norm"]), rms(k, w[i]["attn_k_norm"])
            if how and (turns is None or turns[i]):
                q, k = rope(q, **how), rope(k, **how)
            if temper is not None:
                q = q * temper[:, None, None]
            a = attend(q, k, v, slopes=slopes, window=8 if windowed and windowed[i] else 0,
                       causal=not around, around=around if i % 2 else 0)
            a = scale * times(a, w[i], "attn_output", ignored)
            y = x + a
            z = n if parallel else normed(y, w[i], "ffn_norm")
            if "ffn_gate_inp" in w[i]:
                p = rule(z @ w[i]["ffn_gate_inp"].T)
                for part in ("gate", "up", "down"):  # of each expert
                    stack = "ffn_%s_exps" % part
                    if stack + ".scale" in w[i]:
                        w[i][stack] = w[i][stack] * w[i].pop(stack + ".scale")[:, None, None]
                f = routed * experts(z, p, best(p, used), w[i], renorm=renorm)
                if "ffn_gate_shexp" in w[i]:
                    f = f + gated(z, w[i]["ffn_gate_shexp"], w[i]["ffn_up_shexp"],
                                  w[i]["ffn_down_shexp"])
            elif "ffn_gate" in w[i]:
                f = act(times(z, w[i], "ffn_gate", ignored)) * times(z, w[i], "ffn_up", ignored)
                f = times(f, w[i], "ffn_down", ignored)
            else:
                f = act(times(z, w[i], "ffn_up", ignored))
                if f.shape[1] == 2 * F:
                    f = act(z @ w[i]["ffn_up"][:F].T) * (z @ w[i]["ffn_up"][F:].T)
                f = f / w[i].get("ffn.act.scales", 1.0)
                f = times(f, w[i], "ffn_down", ignored)
            x = y + scale * f
        x = normed(x, w, "output_norm")
        if around:
            return x
        z = x @ w["output" if "output" in w else "token_embd"].T
        return logits(z + w["output.bias"] if "output.bias" in w and "output" not in ignored else z)
    return run


def xielu(alpha_p, alpha_n, beta, eps):
    def act(u):
        p, n = np.log1p(np.exp(alpha_p)), beta + np.log1p(np.exp(alpha_n))
        return np.where(u > 0, p * u * u, n * (np.expm1(np.minimum(u, eps)) - u)) + beta * u
    return act


def mpt():
    layer = {**biased("attn_norm", "ffn_norm"), "attn_qkv.weight": [3 * E, E],
             "attn_qkv.bias": [3 * E], "attn_output.weight": [E, E], "attn_output.bias": [E],
             "attn_q_norm.weight": [E], "attn_q_norm.bias": [E], "attn_k_norm.weight": [E],
             "attn_k_norm.bias": [E], **UNGATED, "ffn_up.bias": [F], "ffn_down.bias": [E]}
    return keys(2, LN, {".attention.head_count_kv": H, ".attention.clamp_kqv": 1.5}), shapes(
        2, layer, ("output",), {**biased("output_norm"), "position_embd.weight": [256, E]}), \
        decoder(2, None, norm=layer_norm, act=gelu, clamp=1.5, row_norms=True)


def mistral3(form):
    more, layer, extra, turn = {}, {**PAIR_OF_NORMS, **qkv()}, {}, dict(base=BASE, pairs=True)
    if form == "bias":
        layer.update({**FFN, **QKV_BIAS, **OUT_BIAS, **FFN_BIAS})
        extra = FREQS
    else:
        layer.update({**MOE, "ffn_gate_exps.weight": [X, F, E], "ffn_up_exps.weight": [X, F, E],
                      "ffn_down_exps.weight": [X, E, F]})
        more = {".expert_count": X, ".expert_used_count": K, ".rope.scaling.type": "yarn",
                ".rope.scaling.factor": 4.0, ".rope.scaling.original_context_length": 16,
                ".rope.scaling.yarn_log_multiplier": 0.5}
        turn.update(yarn(BASE, D, 4, 16))
        turn["size"] /= 1 + 0.05 * np.log(4)
    return keys(2, RMS, SPEED, more), shapes(2, layer, more=extra), decoder(2, turn)


def longrope(which, layer, context, typed=True, **more):
    """Two sets of factors; which one counts is the context's to say. typed: the file names them."""
    run = decoder(2, **more)

    def chosen(w, tokens):
        w = dict(w)
        w["rope_freqs"] = w.pop("rope_factors_" + which)
        w.pop("rope_factors_long", None), w.pop("rope_factors_short", None)
        return run(w, tokens)
    return keys(2, RMS, SPEED, {
        ".context_length": context, **({".rope.scaling.type": "longrope"} if typed else {}),
        ".rope.scaling.original_context_length": 64}), shapes(
        2, layer, ("output_norm",), {"rope_factors_long.weight": [D // 2],
                                     "rope_factors_short.weight": [D // 2]}), chosen


def phi3(which, context):
    """As files of Phi-3.5 and Phi-4-mini are: factors, and no key that says so."""
    layer = {**PAIR_OF_NORMS, "attn_qkv.weight": [(H + 2 * G) * D, E],
             "attn_output.weight": [E, H * D], "ffn_up.weight": [2 * F, E],
             "ffn_down.weight": [E, F]}
    k, s, run = longrope(which, layer, context, False, turn=dict(base=BASE, size=1.25))
    return {**k, ".rope.scaling.attn_factor": 1.25}, s, run


def cohere2moe():
    """RMS norms, where the file has their epsilon; an expert is as wide as a feed-forward where
    its width is 0."""
    windowed = [False, True, True]
    layer = {k: [X, F, E] if "gate_exps" in k or "up_exps" in k else
             [X, E, F] if "down_exps" in k else v
             for k, v in {**norms("attn_norm"), **qkv(), **MOE}.items()}
    layer.update({k.replace("exps", "shexp"): v[1:] for k, v in layer.items() if "exps" in k})
    run = decoder(3, dict(base=BASE, pairs=True), windowed, windowed=windowed, parallel=True,
                  rule=lambda z: 1 / (1 + np.exp(-z)), routed=0.5, logits=lambda z: 0.25 * z)

    def mean(w, tokens):
        return run({k: {**v, "ffn_down_shexp": 0.5 * v["ffn_down_shexp"]}
                    if isinstance(k, int) else v for k, v in w.items()}, tokens)
    return keys(3, RMS, SPEED, {
        ".logit_scale": 0.25, ".attention.sliding_window": 8,
        ".attention.sliding_window_pattern": windowed, ".expert_count": X, ".expert_used_count": K,
        ".expert_feed_forward_length": 0, ".expert_shared_count": 1, ".expert_weights_norm": True,
        ".leading_dense_block_count": 0}), shapes(3, layer, ("output_norm",)), mean


def nemotron_h_moe():
    """Layers that use other numbers of experts, of other widths; attention has no positions."""
    used, wide = [1, 2, 1, 3], [0, 12, 0, 20]

    def run(w, tokens):
        x = w["token_embd"][tokens]
        for i in range(4):
            n = rms(x, w[i]["attn_norm"])
            if i % 2 == 0:
                x = x + attend(*projected(n, w[i])) @ w[i]["attn_output"].T
                continue
            p = 1 / (1 + np.exp(-n @ w[i]["ffn_gate_inp"].T))
            chosen = best(p + w[i]["exp_probs_b.bias"], used[i])
            y = relu(n @ w[i]["ffn_up_shexp"].T) ** 2 @ w[i]["ffn_down_shexp"].T
            for t in range(len(x)):
                by = 1.5 * p[t][chosen[t]] / p[t][chosen[t]].sum()
                y[t] += sum(b * w[i]["ffn_down_exps"][e] @ relu(w[i]["ffn_up_exps"][e] @ n[t]) ** 2
                            for b, e in zip(by, chosen[t]))
            x = x + y
        return rms(x, w["output_norm"]) @ w["output"].T

    def layer(i):
        return {**norms("attn_norm"), **(qkv() if i % 2 == 0 else {
            "ffn_gate_inp.weight": [X, E], "exp_probs_b.bias": [X],
            "ffn_up_exps.weight": [X, wide[i], E], "ffn_down_exps.weight": [X, E, wide[i]],
            "ffn_up_shexp.weight": [24, E], "ffn_down_shexp.weight": [E, 24]})}
    return keys(4, LN, {
        ".attention.head_count": [H, 0, H, 0], ".attention.head_count_kv": [G, 0, G, 0],
        ".feed_forward_length": [0, F, 0, F], ".expert_count": X, ".expert_used_count": used,
        ".expert_feed_forward_length": wide, ".expert_shared_feed_forward_length": 24,
        ".expert_weights_norm": True, ".expert_weights_scale": 1.5, ".ssm.conv_kernel": 4,
        ".ssm.inner_size": 64, ".ssm.state_size": 16, ".ssm.time_step_rank": 4,
        ".ssm.group_count": 1}), shapes(4, layer), run


def jina_in_one():
    """One product for q, k and v, and a bias for each."""
    k, s, run = jina_bert_v2("plain")
    s = {n: x for n, x in s.items() if not any("attn_%s.weight" % p in n for p in "qkv")}
    s.update({"blk.%d.attn_qkv.weight" % i: [3 * E, E] for i in range(2)})

    def apart(w, tokens):
        return run({n: {**x, **dict(zip(("attn_q", "attn_k", "attn_v"),
                                        np.split(x["attn_qkv"], 3)))}
                    if isinstance(n, int) else x for n, x in w.items()}, tokens)
    return k, s, apart


def minicpm(form):
    layer = {**PAIR_OF_NORMS, **qkv(), **FFN}
    how = dict(turn=dict(base=BASE, pairs=True), embed=12.0, scale=1.4 / np.sqrt(2),
               logits=lambda z: z / (256 / E))
    if form == "long":
        return longrope("short", layer, 64, **how)
    layer.update(MOE if form == "moe" else {**OUT_BIAS, **FFN_BIAS})
    more = {".attention.scale": 0.7}  # granite's, and not read here
    if form == "moe":
        layer = {k: [X, F, E] if "gate_exps" in k or "up_exps" in k else
                 [X, E, F] if "down_exps" in k else v for k, v in layer.items() if k not in FFN}
        more = {".expert_count": X, ".expert_used_count": K}
    return keys(2, RMS, SPEED, more), shapes(2, layer, ("output_norm",), FREQS), decoder(2, **how)


def arcee():
    return keys(2, RMS, SPEED), shapes(2, {**PAIR_OF_NORMS, **qkv(), **UNGATED}, ("output_norm",),
                                       FREQS), \
        decoder(2, dict(base=BASE, pairs=True), act=lambda x: relu(x) ** 2)


def apertus(form):
    numbers = {"alpha_p": [0.3, 0.9], "alpha_n": [-0.4, 0.7], "beta": [0.5, 0.4],
               "eps": [-1e-6, -0.5]}
    layer = {**PAIR_OF_NORMS, **qkv(), **UNGATED, "attn_q_norm.weight": [D],
             "attn_k_norm.weight": [D]}
    if form == "arrays":
        layer.update({**OUT_BIAS, **QKV_BIAS})
        order = ("alpha_p", "alpha_n", "beta", "eps")
        acts = [xielu(*(numbers[k][i] for k in order)) for i in range(2)]
        calls = []

        def act(u):  # layers call it in turn
            calls.append(1)
            return acts[(len(calls) - 1) % 2](u)
        run = decoder(2, act=act)
        return keys(2, RMS, SPEED, {"xielu." + k: v for k, v in numbers.items()}), \
            shapes(2, layer, more=FREQS), run
    same = {k: v[0] for k, v in numbers.items()}
    k, s, run = longrope("long", layer, 256, act=xielu(same["alpha_p"], same["alpha_n"],
                                                       same["beta"], same["eps"]))
    k.update({"xielu." + n: v for n, v in same.items()})
    s["output.weight"] = [N_VOCAB, E]
    return k, s, run


def cohere2():
    windowed = [False, True, True]
    return keys(3, LN, SPEED, {
        ".logit_scale": 0.25, ".attention.sliding_window": 8, ".rope.freq_base_swa": 700.0,
        ".attention.sliding_window_pattern": windowed}), shapes(
            3, {**norms("attn_norm"), **qkv(), **FFN}, ("output_norm",)), decoder(
                3, dict(base=BASE, pairs=True), windowed, norm=layer_norm, windowed=windowed,
                parallel=True, logits=lambda z: 0.25 * z)


def ernie4_5():
    return keys(2, RMS, SPEED), shapes(2, {
        **PAIR_OF_NORMS, **qkv(), **FFN, **QKV_BIAS, **OUT_BIAS}), decoder(
            2, dict(base=BASE, pairs=True), ignored=("attn_output",))


def exaone():
    return keys(2, RMS, {
        ".rope.freq_base": 100.0, ".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0,
        ".rope.scaling.original_context_length": 128, ".rope.scaling.attn_factor": 1.25}), shapes(
        2, {**PAIR_OF_NORMS, **qkv(), **FFN}, ("output_norm",), FREQS), decoder(
            2, dict(base=100.0, speed=yarn(100.0, D, 4, 128)["speed"],
                    size=1.25 * yarn(100.0, D, 4, 128)["size"]))


def phi2():
    return keys(2, LN, SPEED, {".rope.dimension_count": 4}), shapes(2, {
        **biased("attn_norm"), **FUSED, **OUT_BIAS, **UNGATED, "ffn_up.bias": [F],
        "ffn_down.bias": [E]}, ("output",), {**biased("output_norm"), "output.bias": [N_VOCAB]}), \
        decoder(2, dict(base=BASE, dims=4), norm=layer_norm, act=gelu, parallel=True)


def codeshell():
    s = shapes(2, {**biased("attn_norm", "ffn_norm"), **FUSED, **OUT_BIAS, **UNGATED,
                   "ffn_up.bias": [F], "ffn_down.bias": [E]}, ("output",), biased("output_norm"))
    del s["token_embd.weight"]
    return keys(2, LN, SPEED), s, decoder(2, norm=layer_norm, act=gelu)


def baichuan(layers):
    """The 13B model has 40 layers and slopes, the 7B one 32 and turns; others have neither."""
    return keys(layers, RMS, SPEED, {".attention.head_count_kv": H}), shapes(
        layers, {**PAIR_OF_NORMS, **qkv(H, H), **FFN}), decoder(
            layers, dict(base=BASE, pairs=True) if layers == 32 else None,
            slopes=alibi(H) if layers == 40 else None)


def llama_embed():
    """Experts, and an output matrix that nothing comes of."""
    layer = {k: [X, F, E] if "gate_exps" in k or "up_exps" in k else
             [X, E, F] if "down_exps" in k else v
             for k, v in {**PAIR_OF_NORMS, **qkv(), **MOE}.items()}
    return keys(2, RMS, SPEED, {".attention.causal": False, ".expert_count": X,
                                ".expert_used_count": K}), shapes(2, layer), \
        decoder(2, dict(base=BASE, pairs=True), around=1 << 20)


def refact():
    return keys(2, RMS), shapes(2, {
        **PAIR_OF_NORMS, **qkv(), **FFN, **QKV_BIAS, **OUT_BIAS, **FFN_BIAS}, ("output_norm",)), \
        decoder(2, None, slopes=alibi(H),
                ignored=("attn_output", "ffn_gate", "ffn_up", "ffn_down"))


def dream():
    run = decoder(2, around=1 << 20, ignored=("output",))
    return keys(2, RMS, SPEED), shapes(2, {
        **PAIR_OF_NORMS, **qkv(), **FFN, **QKV_BIAS}, more={"output.bias": [N_VOCAB]}), \
        lambda w, tokens: run(w, tokens) @ w["output"].T


def cogvlm():
    """RoPE is as it is, whatever the file says; the weights of image rows are not used."""
    layer = {**PAIR_OF_NORMS, **FFN, "attn_qkv.weight": [3 * E, E], "attn_output.weight": [E, E]}
    layer.update({"vis_" + k.replace("ffn_", ""): v for k, v in layer.items() if "norm" not in k})
    run = decoder(2, dict(base=10000.0))

    def without(w, tokens):
        return run({k: v for k, v in w.items() if k != "rope_freqs"}, tokens)
    return keys(2, RMS, SPEED, {".attention.head_count_kv": H}), shapes(2, layer, more=FREQS), \
        without


def qwen2vl():
    return keys(2, SPEED, {".rope.dimension_sections": [1, 1, 2, 0]}), shapes(2, {
        **PAIR_OF_NORMS, **qkv(), **FFN, **QKV_BIAS}, more={"output.bias": [N_VOCAB]}), \
        decoder(2, ignored=("output",), norm=lambda x, w=1.0, b=0.0: rms(x, w, 0.0))


def qwen3vl():
    """Four pairs, of which the sections leave the last to the fourth axis, which is 0 for text."""
    return keys(2, RMS, SPEED, {".rope.dimension_sections": [1, 1, 1, 1]}), shapes(2, {
        **PAIR_OF_NORMS, **qkv(), **FFN, "attn_q_norm.weight": [D], "attn_k_norm.weight": [D]}), \
        decoder(2, dict(base=BASE, speed=np.array([1.0, 1.0, 1.0, 0.0])))


def qwen3tts():
    """The output has rows for the last 3,072 tokens alone; the others cannot be said."""
    run = decoder(2, dict(base=BASE))
    layer = {**PAIR_OF_NORMS, **qkv(), **FFN, "attn_q_norm.weight": [D], "attn_k_norm.weight": [D]}
    s = shapes(2, layer)
    s.update({"token_embd.weight": [3072 + 8, E], "output.weight": [3072, E]})
    return keys(2, RMS, SPEED, {".rope.dimension_sections": [2, 1, 1, 0]}), s, \
        lambda w, tokens: np.pad(run(w, tokens), ((0, 0), (8, 0)), constant_values=-np.inf)


def smollm3():
    return keys(5, RMS, {
        ".rope.freq_base": 100.0, ".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0,
        ".rope.scaling.original_context_length": 128}), shapes(
        5, {**PAIR_OF_NORMS, **qkv(), **FFN}, ("output_norm",)), decoder(
            5, dict(base=100.0, pairs=True, **yarn(100.0, D, 4, 128)),
            turns=[(i + 1) % 4 != 0 for i in range(5)])


def llada_moe():
    layer = {**PAIR_OF_NORMS, **qkv(), **MOE, "attn_q_norm.weight": [D], "attn_k_norm.weight": [D]}
    layer = {k: [X, F // K, E] if "gate_exps" in k or "up_exps" in k else
             [X, E, F // K] if "down_exps" in k else v for k, v in layer.items()}
    run = decoder(2, renorm=False, around=1 << 20)

    def said(w, tokens):
        return run(w, tokens) @ w["output"].T
    return keys(2, RMS, SPEED, {".expert_count": X, ".expert_used_count": K}), \
        shapes(2, layer), said


def modern_bert():
    """SiLU by its key, a pattern of two, the first layer full; a window of 7 reaches 3 rows."""
    def layer(i):
        return {**norms("ffn_norm", *(["attn_norm"] if i else [])), "attn_qkv.weight": [3 * E, E],
                "attn_output.weight": [E, E], "ffn_up.weight": [2 * F, E],
                "ffn_down.weight": [E, F]}
    return keys(4, LN, SPEED, {
        ".attention.head_count_kv": H, ".attention.causal": False, ".attention.sliding_window": 7,
        ".attention.sliding_window_pattern": [False, True, False, True],
        ".rope.freq_base_swa": BASE, ".hidden_activation": "silu"}), shapes(
        4, layer, ("token_embd_norm", "output_norm")), decoder(
            4, norm=layer_norm, around=7)


def llama(what):
    """Ways to stretch positions."""
    keys_of = {"none": {".rope.scaling.type": "none", ".rope.scaling.factor": 4.0},
               "below": {".rope.scaling.type": "yarn", ".rope.scaling.factor": 0.5,
                         ".rope.scaling.original_context_length": 16},
               "untyped": {".rope.scaling.factor": 4.0, ".rope.scaling.attn_factor": 1.25},
               "old": {".rope.scale_linear": 4.0}}
    turn = {"none": {}, "below": dict(speed=yarn(BASE, D, 0.5, 16)["speed"]),
            "untyped": dict(speed=0.25, size=1.25), "old": dict(speed=0.25)}[what]
    return keys(2, RMS, SPEED, keys_of[what]), shapes(2, {**PAIR_OF_NORMS, **qkv(), **FFN}), \
        decoder(2, dict(base=BASE, pairs=True, **turn))


def ungated():
    """Experts without gates."""
    layer = {**PAIR_OF_NORMS, **qkv(), "ffn_gate_inp.weight": [X, E],
             "ffn_up_exps.weight": [X, F, E], "ffn_down_exps.weight": [X, E, F]}
    return keys(2, RMS, SPEED, {".expert_count": X, ".expert_used_count": K}), \
        shapes(2, layer), decoder(2, dict(base=BASE, pairs=True))


def scaled(experts):
    """Numbers beside matrices, as files of four-bit floats have them."""
    layer = {**PAIR_OF_NORMS, **qkv(), **QKV_BIAS, **OUT_BIAS}
    layer.update({k: [X, F, E] if "gate_exps" in k or "up_exps" in k else
                  [X, E, F] if "down_exps" in k else v for k, v in MOE.items()}
                 if experts else {**FFN, **FFN_BIAS})
    layer.update({k.replace("weight", "scale"): [X] if "exps" in k else [1]
                  for k in list(layer) if k.endswith("weight") and "norm" not in k
                  and "inp" not in k})
    more = {".expert_count": X, ".expert_used_count": K} if experts else {}
    return keys(2, RMS, SPEED, more), shapes(2, layer), decoder(2, dict(base=BASE, pairs=True))


def dots1(gating):
    """Gatings 1 (softmax), 2 (sigmoid), 3 (softmax of the chosen), 4 (root of softplus)."""
    layer = {**PAIR_OF_NORMS, **qkv(H, H), **MOE, "attn_q_norm.weight": [D],
             "attn_k_norm.weight": [D]}
    layer.update({k.replace("exps", "shexp"): v[1:] for k, v in MOE.items() if "exps" in k})
    rule = {1: softmax, 2: lambda z: 1 / (1 + np.exp(-z)), 3: np.exp,
            4: lambda z: np.sqrt(np.log1p(np.exp(z)))}[gating]
    return keys(2, RMS, SPEED, MOE_KEYS, {
        ".attention.head_count_kv": H, ".expert_shared_count": 1, ".expert_gating_func": gating,
        ".expert_weights_norm": gating != 4, ".expert_weights_scale": 1.5,
        ".expert_used_count": 3}), shapes(2, layer), decoder(
            2, rule=rule, renorm=gating != 4, used=3, routed=1.5)


def ranked(family, heads, score, **more):
    """A family whose pooled row is scored: heads are its tensors, score(w, rows) the score."""
    k, s, run = family
    k = {**k, ".pooling_type": 4, **more}
    return k, {**s, **heads}, lambda w, tokens: score(w, run(w, tokens))


def jina_score(w, rows):
    return np.tanh(rows[:1] @ w["cls"].T + w["cls.bias"])


def modern_score(w, rows, of=lambda x: x.mean(0, keepdims=True)):
    c = layer_norm(gelu(of(rows) @ w["cls"].T), w["cls.norm"])
    return c @ w["cls.output"].T + w["cls.output.bias"]


def qwen3vl_rank():
    k, s, _ = qwen3vl()
    run = decoder(2, dict(base=BASE, speed=np.array([1.0, 1.0, 1.0, 0.0])))
    k.update({".pooling_type": 4, ".classifier.output_labels": ["yes", "no", "perhaps"]})
    return k, {**s, "cls.output.weight": [3, E]}, lambda w, tokens: softmax(
        run({**w, "output": np.eye(E)}, tokens)[-1:] @ w["cls.output"].T)


MODERN_HEAD = {"cls.weight": [E, E], "cls.norm.weight": [E], "cls.output.weight": [3, E],
               "cls.output.bias": [3]}
LABELS = {".classifier.output_labels": ["yes", "no", "perhaps"]}
# As FORMS; what is compared are the scores of one text.
RANKED = {
    "jina-bert-v2-rank": ("jina-bert-v2", ranked(
        jina_bert_v2("gate"), {"cls.weight": [1, E], "cls.bias": [1]}, jina_score)),
    "jina-bert-v2-mean": ("jina-bert-v2", ranked(
        jina_bert_v2("gate"), {"cls.weight": [1, E], "cls.bias": [1]},
        lambda w, rows: jina_score(w, rows.mean(0, keepdims=True)),
        **{".classifier.pooling_type": "mean"})),
    "modern-bert-rank": ("modern-bert", ranked(
        modern_bert(), MODERN_HEAD, modern_score, **LABELS)),
    "modern-bert-first": ("modern-bert", ranked(
        modern_bert(), MODERN_HEAD, lambda w, rows: modern_score(w, rows, lambda x: x[:1]),
        **LABELS, **{".classifier.pooling_type": 2})),
    "qwen3vl-rank": ("qwen3vl", qwen3vl_rank()),
}

FORMS = {
    "llama-none": ("llama", llama("none"), False),
    "llama-untyped": ("llama", llama("untyped"), False),
    "llama-old": ("llama", llama("old"), False),
    "llama-yarn-below-1": ("llama", llama("below"), False),
    "phi3-short": ("phi3", phi3("short", 64), False),
    "phi3-long": ("phi3", phi3("long", 256), False),
    "nemotron_h_moe-layers": ("nemotron_h_moe", nemotron_h_moe(), False),
    "jina-bert-v2-in-one": ("jina-bert-v2", jina_in_one(), True),
    "cohere2moe-rms": ("cohere2moe", cohere2moe(), False),
    "llama-ungated": ("llama", ungated(), False),
    "llama-scales": ("llama", scaled(False), False),
    "llama-scales-experts": ("llama", scaled(True), False),
    "dots1-softmax": ("dots1", dots1(1), False),
    "dots1-sigmoid": ("dots1", dots1(2), False),
    "dots1-chosen": ("dots1", dots1(3), False),
    "dots1-softplus": ("dots1", dots1(4), False),
    "baichuan-7b": ("baichuan", baichuan(32), False),
    "baichuan-13b": ("baichuan", baichuan(40), False),
    "baichuan-neither": ("baichuan", baichuan(3), False),
    "mpt-biases": ("mpt", mpt(), False),
    "mistral3-biases": ("mistral3", mistral3("bias"), False),
    "mistral3-experts": ("mistral3", mistral3("moe"), False),
    "minicpm-biases": ("minicpm", minicpm("bias"), False),
    "minicpm-experts": ("minicpm", minicpm("moe"), False),
    "minicpm-longrope": ("minicpm", minicpm("long"), False),
    "arcee-factors": ("arcee", arcee(), False),
    "apertus-arrays": ("apertus", apertus("arrays"), False),
    "apertus-longrope": ("apertus", apertus("long"), False),
    "cohere2-pattern": ("cohere2", cohere2(), False),
    "ernie4_5-biases": ("ernie4_5", ernie4_5(), False),
    "exaone-yarn": ("exaone", exaone(), False),
    "phi2-fused": ("phi2", phi2(), False),
    "codeshell-tied": ("codeshell", codeshell(), False),
    "llama-embed-experts": ("llama-embed", llama_embed(), True),
    "refact-biases": ("refact", refact(), False),
    "dream-biases": ("dream", dream(), False),
    "cogvlm-factors": ("cogvlm", cogvlm(), False),
    "qwen2vl-biases": ("qwen2vl", qwen2vl(), False),
    "qwen3vl-axes": ("qwen3vl", qwen3vl(), False),
    "qwen3tts": ("qwen3tts", qwen3tts(), False),
    "smollm3-yarn": ("smollm3", smollm3(), False),
    "llada-moe-width": ("llada-moe", llada_moe(), False),
    "modern-bert-silu": ("modern-bert", modern_bert(), True),
}
