"""second.py -- second implementations of architectures that neither the recorded models nor the
Python package transformers have: from papers and model cards, in plain numpy.

Each family is a function that gives its GGUF keys, the shapes of its tensors, and the function from
tokens to rows. That one takes w, where w["token_embd"] is a matrix and w[2] has the tensors of
layer 2, named without blk.2. and .weight."""
import numpy as np

from plain import (alibi, attend, best, experts, gated, gelu, heads, layer_norm, relu, rms, rope,
                   sigmoid, silu, softmax, yarn)
from tiny import N_VOCAB

E, F, H, G, D, X, K, FX = 32, 48, 4, 2, 8, 8, 2, 16
BASE = 5000.0
RMS = {".attention.layer_norm_rms_epsilon": 1e-5}
LN = {".attention.layer_norm_epsilon": 1e-5}
FFN = {"ffn_gate.weight": [F, E], "ffn_up.weight": [F, E], "ffn_down.weight": [E, F]}
MOE = {"ffn_gate_inp.weight": [X, E], "ffn_gate_exps.weight": [X, FX, E],
       "ffn_up_exps.weight": [X, FX, E], "ffn_down_exps.weight": [X, E, FX]}
MOE_KEYS = {".expert_count": X, ".expert_used_count": K, ".expert_feed_forward_length": FX}


def qkv(h=H, g=G, d=D):
    return {"attn_q.weight": [h * d, E], "attn_k.weight": [g * d, E], "attn_v.weight": [g * d, E],
            "attn_output.weight": [E, h * d]}


def norms(*names):
    return {n + ".weight": [E] for n in names}


def keys(layers, *more, h=H, g=G, d=D):
    out = {".context_length": 256, ".embedding_length": E, ".block_count": layers,
           ".feed_forward_length": F, ".attention.head_count": h, ".attention.head_count_kv": g}
    if d != E // H:
        out.update({".attention.key_length": d, ".attention.value_length": d})
    for m in more:
        out.update(m)
    return out


def shapes(layers, of_layer, ends=("output_norm", "output"), more=()):
    """of_layer: a dict, or a function of the layer."""
    out = {"token_embd.weight": [N_VOCAB, E]}
    out.update({n + ".weight": [N_VOCAB, E] if n == "output" else [E] for n in ends})
    out.update(more)
    for i in range(layers):
        mine = of_layer(i) if callable(of_layer) else of_layer
        out.update({"blk.%d.%s" % (i, n): s for n, s in mine.items()})
    return out


def projected(n, w, h=H, g=G):
    return heads(n @ w["attn_q"].T, h), heads(n @ w["attn_k"].T, g), heads(n @ w["attn_v"].T, g)


def refact():
    def run(w, tokens):
        x = w["token_embd"][tokens]
        for i in range(2):
            n = rms(x, w[i]["attn_norm"])
            x = x + attend(*projected(n, w[i], 6, 1), slopes=alibi(6)) @ w[i]["attn_output"].T
            x = x + gated(rms(x, w[i]["ffn_norm"]), w[i]["ffn_gate"], w[i]["ffn_up"],
                          w[i]["ffn_down"])
        return rms(x, w["output_norm"]) @ w["output"].T
    layer = {**norms("attn_norm", "ffn_norm"), **qkv(6, 1), **FFN}
    return keys(2, RMS, {".attention.key_length": D, ".attention.value_length": D}, h=6, g=1), \
        shapes(2, layer), run


def spark2_5():
    many, few = [4, 4, 2, 4], [2, 1, 2, 4]
    windowed = [True, False, True, True]

    def run(w, tokens):
        x = w["token_embd"][tokens]
        for i in range(4):
            n = rms(x, w[i]["attn_norm"])
            q, k, v = projected(n, w[i], many[i], few[i])
            how = dict(base=700.0, dims=4) if windowed[i] else dict(base=BASE, dims=6)
            q, k = rope(q, speed=0.5, **how), rope(k, speed=0.5, **how)
            y = heads(attend(q, k, v, window=8 if windowed[i] else 0), many[i])
            y = y * sigmoid(n @ w[i]["attn_gate"].T)[..., None]
            x = x + y.reshape(len(x), -1) @ w[i]["attn_output"].T
            x = x + gated(rms(x, w[i]["ffn_norm"]), w[i]["ffn_gate"], w[i]["ffn_up"],
                          w[i]["ffn_down"], gelu)
        return rms(x, w["output_norm"]) @ w["token_embd"].T
    return keys(4, RMS, {
        ".attention.head_count": many, ".attention.head_count_kv": few,
        ".attention.key_length": D, ".attention.value_length": D,
        ".attention.sliding_window": 8, ".attention.sliding_window_pattern": windowed,
        ".rope.dimension_count": 6, ".rope.dimension_count_swa": 4, ".rope.freq_base": BASE,
        ".rope.freq_base_swa": 700.0, ".rope.scaling.type": "linear",
        ".rope.scaling.factor": 2.0}), shapes(4, lambda i: {
            **norms("attn_norm", "ffn_norm"), **qkv(many[i], few[i]), **FFN,
            "attn_gate.weight": [many[i], E]}, ("output_norm",)), run


def talkie(fused=False):
    def run(w, tokens):
        e = x = rms(w["token_embd"][tokens])
        for i in range(3):
            if fused:
                y = rms(x) @ w[i]["attn_qkv"].T + w[i]["attn_qkv.bias"]
                q, k, v = (heads(z, len(z[0]) // D)
                           for z in np.split(y, [H * D, (H + G) * D], -1))
            else:
                q, k, v = projected(rms(x), w[i])
            q, k = rms(rope(q, BASE)) * w[i]["attn_q_norm"], rms(rope(k, BASE))
            s = x + attend(q, k, v) @ w[i]["attn_output"].T * w[i]["attn_output.scale"]
            f = gated(rms(s), w[i]["ffn_gate"], w[i]["ffn_up"], w[i]["ffn_down"])
            x = s + f * w[i]["ffn_down.scale"] + e * w[i]["layer_output_scale"]
        return 0.3 * rms(x) @ w["output"].T
    return keys(3, RMS, {".logit_scale": 0.3, ".rope.freq_base": BASE}), shapes(3, {
        **({"attn_qkv.weight": [(H + 2 * G) * D, E], "attn_qkv.bias": [(H + 2 * G) * D],
            "attn_output.weight": [E, H * D]} if fused else qkv()), **FFN,
        "attn_q_norm.weight": [H, 1], "layer_output_scale.weight": [1], "attn_output.scale": [1],
        "ffn_down.scale": [1]}, ("output",)), run


def arctic():
    def run(w, tokens):
        x = w["token_embd"][tokens]
        for i in range(2):
            q, k, v = projected(rms(x, w[i]["attn_norm"]), w[i])
            q, k = rope(q, BASE, pairs=True), rope(k, BASE, pairs=True)
            y = x + attend(q, k, v) @ w[i]["attn_output"].T
            d = y + gated(rms(y, w[i]["ffn_norm"]), w[i]["ffn_gate"], w[i]["ffn_up"],
                          w[i]["ffn_down"])
            z = rms(x, w[i]["ffn_norm_exps"])
            p = softmax(z @ w[i]["ffn_gate_inp"].T)
            x = d + experts(z, p, best(p, K), w[i])
        return rms(x, w["output_norm"]) @ w["output"].T
    return keys(2, RMS, {".rope.freq_base": BASE, ".expert_count": X, ".expert_used_count": K}), \
        shapes(2, {
            **norms("attn_norm", "ffn_norm", "ffn_norm_exps"), **qkv(),
            **{n: [E, E] for n in FFN}, "ffn_gate_inp.weight": [X, E],
            "ffn_gate_exps.weight": [X, F, E], "ffn_up_exps.weight": [X, F, E],
            "ffn_down_exps.weight": [X, E, F]}), run


def grok(dense, stretch=None):
    """stretch: keys of YaRN, and what they come to."""
    turn = stretch[1] if stretch else dict(base=BASE)

    def run(w, tokens):
        x = w["token_embd"][tokens] * (3.0 if dense else 78.38367176906169)
        for i in range(2):
            q, k, v = projected(rms(x, w[i]["attn_norm"]), w[i])
            a = attend(rope(q, **turn), rope(k, **turn), v, 0.4 if dense else 0.08838834764831845,
                       cap=5.0 if dense else 30.0)
            x = x + rms(a @ w[i]["attn_output"].T, w[i]["attn_output_norm"])
            z = rms(x, w[i]["ffn_norm"])
            p = softmax(z @ w[i]["ffn_gate_inp"].T)
            m = experts(z, p, best(p, K), w[i], act=gelu)
            if dense:
                m = (m + gated(z, w[i]["ffn_gate"], w[i]["ffn_up"], w[i]["ffn_down"], gelu)
                     ) * np.sqrt(0.5)
            x = x + rms(m, w[i]["post_ffw_norm" if dense else "layer_output_norm"])
        z = rms(x, w["output_norm"]) @ w["output"].T * (2.0 if dense else 0.5773502691896257)
        return 3 * np.tanh(z / 3) if dense else z
    more = {".rope.freq_base": BASE, ".expert_count": X, ".expert_used_count": K,
            ".expert_feed_forward_length": FX}
    more.update(stretch[0] if stretch else {})
    if dense:
        more.update({".embedding_scale": 3.0, ".attention.output_scale": 0.4,
                     ".attn_logit_softcapping": 5.0, ".final_logit_softcapping": 3.0,
                     ".logit_scale": 2.0})
    return keys(2, RMS, more), shapes(2, {
        **norms("attn_norm", "attn_output_norm", "ffn_norm",
                "post_ffw_norm" if dense else "layer_output_norm"),
        **qkv(), **MOE, **(FFN if dense else {})}), run


def grok_yarn(ext):
    """Of the mixture of angles a part; its size is the file's where nothing is mixed."""
    k = {".rope.freq_base": 100.0, ".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0,
         ".rope.scaling.original_context_length": 128, ".rope.scaling.yarn_attn_factor": 1.3}
    turn = yarn(100.0, D, 4, 128, 8, 1)
    ramp = (turn["speed"] - 0.25) / 0.75
    if ext is not None:
        k[".rope.scaling.yarn_ext_factor"] = ext
        turn["speed"] = 0.25 + 0.75 * ramp * ext
    if ext == 0:
        turn["size"] = 1.3
    return grok(False, (k, dict(base=100.0, **turn)))


def grovemoe(groups=None):
    def run(w, tokens):
        x = w["token_embd"][tokens]
        for i in range(2):
            q, k, v = projected(rms(x, w[i]["attn_norm"]), w[i])
            q, k = rope(rms(q, w[i]["attn_q_norm"]), BASE), rope(rms(k, w[i]["attn_k_norm"]), BASE)
            y = x + attend(q, k, v) @ w[i]["attn_output"].T
            z = rms(y, w[i]["ffn_norm"])
            p = softmax(z @ w[i]["ffn_gate_inp"].T)
            m = experts(z, p, best(p, 3, groups), w[i])
            chunk = best(p, 3, groups) // 2
            x = y + m + 0.6 * experts(m, p, chunk, w[i], "chexps")
        return rms(x, w["output_norm"]) @ w["output"].T
    limits = dict(zip((".expert_group_count", ".expert_group_used_count"), groups or ()))
    return keys(2, RMS, MOE_KEYS, limits, {
        ".rope.freq_base": BASE, ".expert_used_count": 3, ".experts_per_group": 2,
        ".expert_group_scale": 0.6, ".expert_chunk_feed_forward_length": 12}), shapes(2, {
            **norms("attn_norm", "ffn_norm"), **qkv(), **MOE, "attn_q_norm.weight": [D],
            "attn_k_norm.weight": [D], "ffn_gate_chexps.weight": [X // 2, 12, E],
            "ffn_up_chexps.weight": [X // 2, 12, E],
            "ffn_down_chexps.weight": [X // 2, E, 12]}), run


def smallthinker(layers, window, gating):
    def run(w, tokens):
        x = w["token_embd"][tokens]
        for i in range(layers):
            r = x @ w[i]["ffn_gate_inp"].T
            q, k, v = projected(rms(x, w[i]["attn_norm"]), w[i])
            if not window or layers == 4 or i % 4 != 0:
                base = 700.0 if window and i % 4 != 0 else BASE
                q, k = rope(q, base), rope(k, base)
            y = x + attend(q, k, v) @ w[i]["attn_output"].T
            p = softmax(r) if gating == 1 else sigmoid(r)
            x = y + experts(rms(y, w[i]["ffn_norm"]), p, best(p, K), w[i], act=relu)
        return rms(x, w["output_norm"]) @ w["token_embd"].T
    more = {".attention.sliding_window": 4096, ".rope.freq_base_swa": 700.0} if window else {}
    return keys(layers, RMS, MOE_KEYS, more, {
        ".rope.freq_base": BASE, ".expert_gating_func": gating}), shapes(layers, {
            **norms("attn_norm", "ffn_norm"), **qkv(), **MOE}, ("output_norm",)), run


def rwkv6qwen2():
    size, count, few, mix, slow = 8, 4, 2, 6, 5

    def run(w, tokens):
        x = w["token_embd"][tokens]
        for i in range(2):
            a = rms(x, w[i]["attn_norm"])
            d = np.concatenate([np.zeros((1, E)), a[:-1]]) - a
            t = np.tanh((a + d * w[i]["time_mix_lerp_x"]) @ w[i]["time_mix_w1"].T)
            t = t.reshape(len(x), 5, mix)
            m = [a + d * (w[i]["time_mix_lerp_fused"][c, 0, 0] + t[:, c] @ w[i]["time_mix_w2"][c].T)
                 for c in range(5)]
            k = heads(m[1] @ w[i]["time_mix_key"].T + w[i]["time_mix_key.bias"], few)
            v = heads(m[2] @ w[i]["time_mix_value"].T + w[i]["time_mix_value.bias"], few)
            r = m[3] @ w[i]["time_mix_receptance"].T + w[i]["time_mix_receptance.bias"]
            r, gate = heads(r, count), sigmoid(m[4] @ w[i]["time_mix_gate"].T)
            low = np.tanh(m[0] @ w[i]["time_mix_decay_w1"].T) @ w[i]["time_mix_decay_w2"].T
            keep = heads(np.exp(-np.exp(w[i]["time_mix_decay"] + low)), count)
            o = np.zeros((len(x), count, size))
            for h in range(count):
                state, kv = np.zeros((size, size)), h // (count // few)
                for row in range(len(x)):
                    state = keep[row, h][:, None] * state + np.outer(
                        k[row, kv] * (1 - keep[row, h]), v[row, kv])
                    o[row, h] = size ** -0.5 * r[row, h] @ state
            x = x + (o.reshape(len(x), -1) * gate) @ w[i]["time_mix_output"].T
            x = x + gated(rms(x, w[i]["ffn_norm"]), w[i]["ffn_gate"], w[i]["ffn_up"],
                          w[i]["ffn_down"])
        return (rms(x, w["output_norm"]) + w["output_norm.bias"]) @ w["output"].T
    return keys(2, RMS, {
        ".wkv.head_size": size, ".time_mix_extra_dim": mix, ".time_decay_extra_dim": slow,
        ".token_shift_count": 1, ".attention.head_count": 0, ".attention.head_count_kv": few,
        ".rescale_every_n_layers": 6}), shapes(2, {
            **norms("attn_norm", "ffn_norm", "time_mix_lerp_x", "time_mix_decay"), **FFN,
            "time_mix_w1.weight": [5 * mix, E], "time_mix_w2.weight": [5, E, mix],
            "time_mix_lerp_fused.weight": [5, 1, 1, E], "time_mix_decay_w1.weight": [slow, E],
            "time_mix_decay_w2.weight": [E, slow], "time_mix_key.weight": [few * size, E],
            "time_mix_value.weight": [few * size, E], "time_mix_receptance.weight": [E, E],
            "time_mix_gate.weight": [E, E], "time_mix_output.weight": [E, E],
            "time_mix_key.bias": [few * size], "time_mix_value.bias": [few * size],
            "time_mix_receptance.bias": [E]}, more={"output_norm.bias": [E]}), run


def jina_bert_v2(form, qk=False, again=False):
    """form: gate (a gate of its own), fused (ffn_up has both), plain."""
    def norm(x, w, name):
        return layer_norm(x, w[name], w[name + ".bias"])

    def run(w, tokens):
        x = norm(w["token_embd"][tokens] + w["token_types"][0], w, "token_embd_norm")
        for i in range(2):
            q, k, v = (x @ w[i]["attn_" + p].T + w[i]["attn_%s.bias" % p] for p in "qkv")
            if qk:
                q, k = norm(q, w[i], "attn_q_norm"), norm(k, w[i], "attn_k_norm")
            a = attend(heads(q, H), heads(k, H), heads(v, H), causal=False, slopes=alibi(H))
            a = a @ w[i]["attn_output"].T + w[i]["attn_output.bias"]
            y = norm(x + a, w[i], "attn_output_norm")
            if again:
                y = norm(y + x, w[i], "attn_norm_2")
            u = y @ w[i]["ffn_up"].T
            if form != "gate":
                u = u + w[i]["ffn_up.bias"]
            f = (gelu(y @ w[i]["ffn_gate"].T) * u if form == "gate" else
                 gelu(u[:, :F]) * u[:, F:] if form == "fused" else gelu(u))
            f = f @ w[i]["ffn_down"].T + w[i]["ffn_down.bias"]
            x = norm(y + f, w[i], "layer_output_norm")
        return x

    def both(*names):
        return {n + end: [E] for n in names for end in (".weight", ".bias")}
    layer = {**both("attn_output_norm", "layer_output_norm"), **qkv(H, H),
             **{"attn_%s.bias" % p: [E] for p in ("q", "k", "v", "output")},
             "ffn_up.weight": [2 * F if form == "fused" else F, E], "ffn_down.weight": [E, F],
             "ffn_down.bias": [E]}
    layer.update({"ffn_gate.weight": [F, E]} if form == "gate" else
                 {"ffn_up.bias": [2 * F if form == "fused" else F]})
    layer.update(both("attn_q_norm", "attn_k_norm") if qk else {})
    layer.update(both("attn_norm_2") if again else {})
    return keys(2, LN, {".attention.causal": False, ".attention.head_count_kv": H,
                        "tokenizer.ggml.token_type_count": 2}), shapes(
        2, layer, (), {**both("token_embd_norm"), "token_types.weight": [2, E]}), run


def plm():
    rank, turn, value = 12, 4, 6

    def run(w, tokens):
        x = w["token_embd"][tokens]
        for i in range(2):
            n = rms(x, w[i]["attn_norm"])
            q = rope(heads(n @ w[i]["attn_q"].T, H), BASE, turn, True, first=D - turn)
            c = n @ w[i]["attn_kv_a_mqa"].T
            kv = heads(rms(c[:, :rank], w[i]["attn_kv_a_norm"]) @ w[i]["attn_kv_b"].T, H)
            kr = np.repeat(rope(c[:, None, rank:], BASE, pairs=True), H, 1)
            k = np.concatenate([kv[..., :D - turn], kr], -1)
            x = x + attend(q, k, kv[..., D - turn:]) @ w[i]["attn_output"].T
            u = rms(x, w[i]["ffn_norm"]) @ w[i]["ffn_up"].T
            x = x + relu(u) ** 2 @ w[i]["ffn_down"].T
        return rms(x, w["output_norm"]) @ w["token_embd"].T
    return keys(2, RMS, {
        ".attention.head_count_kv": H, ".attention.kv_lora_rank": rank, ".attention.key_length": D,
        ".attention.value_length": value, ".rope.dimension_count": turn,
        ".rope.freq_base": BASE}), shapes(2, {
            **norms("attn_norm", "ffn_norm"), "attn_q.weight": [H * D, E],
            "attn_kv_a_mqa.weight": [rank + turn, E], "attn_kv_a_norm.weight": [rank],
            "attn_kv_b.weight": [H * (D - turn + value), rank],
            "attn_output.weight": [E, H * value], "ffn_up.weight": [F, E],
            "ffn_down.weight": [E, F]}, ("output_norm",)), run


# name: (architecture, its keys, shapes and function, gives embeddings)
FAMILIES = {
    "refact": ("refact", refact(), False),
    "spark2_5": ("spark2_5", spark2_5(), False),
    "talkie": ("talkie", talkie(), False),
    "talkie-fused": ("talkie", talkie(True), False),
    "arctic": ("arctic", arctic(), False),
    "grok": ("grok", grok(False), False),
    "grok-2": ("grok", grok(True), False),
    "grok-yarn": ("grok", grok_yarn(None), False),
    "grok-half": ("grok", grok_yarn(0.5), False),
    "grok-linear": ("grok", grok_yarn(0.0), False),
    "grovemoe": ("grovemoe", grovemoe(), False),
    "grovemoe-groups": ("grovemoe", grovemoe((4, 2)), False),
    "smallthinker": ("smallthinker", smallthinker(5, True, 2), False),
    "smallthinker-4": ("smallthinker", smallthinker(4, True, 1), False),
    "smallthinker-full": ("smallthinker", smallthinker(5, False, 1), False),
    "rwkv6qwen2": ("rwkv6qwen2", rwkv6qwen2(), False),
    "jina-bert-v2": ("jina-bert-v2", jina_bert_v2("gate"), True),
    "jina-bert-v2-fused": ("jina-bert-v2", jina_bert_v2("fused", qk=True, again=True), True),
    "jina-bert-v2-plain": ("jina-bert-v2", jina_bert_v2("plain", qk=True), True),
    "plm": ("plm", plm(), False),
}
