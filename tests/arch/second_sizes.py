"""second_sizes.py -- families that decide something by the size of a model alone (src/arch/sizes.c)
as second implementations, in plain numpy: tiny models with the layers of the size that is meant,
and with others. See second.py."""
import numpy as np

from plain import alibi, attend, gelu, heads, rms, rope, silu
from second import BASE, D, E, FFN, G, H, RMS, keys, norms, qkv, shapes

SPEED = {".rope.freq_base": BASE}
PAIRS = dict(base=BASE, pairs=True)


def block(x, w, turn, act=silu, behind=False, both=False, **how):
    """One layer. behind: norms of what is added, alone; both: besides those before."""
    def before(y, name):
        return y if behind else rms(y, w[name])

    def after(y, name):
        return rms(y, w[name]) if behind or both else y

    n = before(x, "attn_norm")
    q, k = heads(n @ w["attn_q"].T, H), heads(n @ w["attn_k"].T, G)
    v = heads(n @ w["attn_v"].T, G)
    if "attn_q_norm" in w:
        q, k = rms(q, w["attn_q_norm"]), rms(k, w["attn_k_norm"])
    if turn:
        q, k = rope(q, **turn), rope(k, **turn)
    x = x + after(attend(q, k, v, **how) @ w["attn_output"].T, "post_attention_norm")
    n = before(x, "ffn_norm")
    f = act(n @ w["ffn_gate"].T) * (n @ w["ffn_up"].T)
    return x + after(f @ w["ffn_down"].T, "post_ffw_norm")


def logits(w, x, cap=0.0):
    z = rms(x, w["output_norm"]) @ w["output" if "output" in w else "token_embd"].T
    return cap * np.tanh(z / cap) if cap else z


def baichuan(layers):
    """32: RoPE. 40: ALiBi. Else neither."""
    def run(w, tokens):
        x = w["token_embd"][tokens]
        for i in range(layers):
            x = block(x, w[i], PAIRS if layers == 32 else None,
                      slopes=alibi(H) if layers == 40 else None)
        return logits(w, x)
    layer = {**norms("attn_norm", "ffn_norm"), **qkv(), **FFN}
    return keys(layers, RMS, SPEED), shapes(layers, layer), run


def gemma(layers, big, heads_normed):
    """Gemma 2 and 3. The size `big` divides scores by the root of E / H, others of D."""
    wide, window = 2 * D, 8

    def run(w, tokens):
        x = w["token_embd"][tokens] * np.sqrt(E)
        for i in range(layers):
            full = i % 6 == 5 if heads_normed else i % 2
            turn = dict(base=BASE if full or not heads_normed else 10000.0)
            x = block(x, w[i], turn, act=gelu, both=True, window=0 if full else window,
                      scale=(E // H if layers == big else wide) ** -0.5,
                      cap=0.0 if heads_normed else 50.0)
        return logits(w, x, 0.0 if heads_normed else 30.0)
    layer = {**norms("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"),
             **qkv(d=wide), **FFN}
    if heads_normed:
        layer.update({"attn_q_norm.weight": [wide], "attn_k_norm.weight": [wide]})
    return keys(layers, RMS, SPEED, {".attention.sliding_window": window}, d=wide), shapes(
        layers, layer, ("output_norm",)), run


def exaone4(layers):
    """64: windows in three of four layers, which alone have positions. Else none, whatever the file
    says, and positions in all."""
    def run(w, tokens):
        x = w["token_embd"][tokens]
        for i in range(layers):
            windowed = layers == 64 and i % 4 < 3
            x = block(x, w[i], dict(base=BASE) if windowed or layers != 64 else None, behind=True,
                      window=5 if windowed else 0)
        return logits(w, x)
    layer = {**norms("post_attention_norm", "post_ffw_norm"), **qkv(), **FFN,
             "attn_q_norm.weight": [D], "attn_k_norm.weight": [D]}
    return keys(layers, RMS, SPEED, {".attention.sliding_window": 5}), shapes(layers, layer), run


SIZES = {
    "baichuan-7B": ("baichuan", baichuan(32), False),
    "baichuan-13B": ("baichuan", baichuan(40), False),
    "baichuan-other": ("baichuan", baichuan(3), False),
    "gemma2-27B": ("gemma2", gemma(46, 46, False), False),
    "gemma2-other": ("gemma2", gemma(6, 46, False), False),
    "gemma3-27B": ("gemma3", gemma(62, 62, True), False),
    "gemma3-other": ("gemma3", gemma(6, 62, True), False),
    "exaone4-32B": ("exaone4", exaone4(64), False),
    "exaone4-other": ("exaone4", exaone4(8), False),
}
