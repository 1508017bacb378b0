"""second_kimi.py -- Kimi K3 as a second implementation, in plain numpy: from the papers
(arXiv:2510.26692 for KDA and MLA without positions, arXiv:2603.15031 for attention over earlier
residual streams) and the facts of the file format. Nobody who wrote it had seen src/arch.

A model is a set of options (K3); every part that a file may have or not is one of them, and draw()
draws them all. See second.py for what a family gives."""
import numpy as np

from plain import best, heads, rms, sigmoid, silu, softmax
from tiny import N_VOCAB

# mla: of each layer whether it attends, or keeps a state. block: 0: an ordinary residual stream.
# lower: the bound of decays, None: softplus. latent: what experts read, None: no key. gates,
# routed_norms: of each layer. ranks: of queries and of keys; dims: of a key, and how many of these
# are apart; linear: of the activation's second factor, 0: it is as it is.
K3 = dict(mla=(0, 0, 1, 0), e=32, f=48, h=4, d=8, width=4, eps=1e-5, block=2, lower=-5.0,
          q_rank=12, rank=16, key=12, apart=4, value=10, gates=(1, 1, 1, 1), dense=1, experts=8,
          used=2, fx=16, latent=20, routed_norms=(1, 1, 1, 1), shared=1, has_shared=True, gating=2,
          renorm=True, scale=1.5, beta=4.0, linear=25.0, groups=None)


def mix(bank, x, score, eps):
    """Softmax over all kept streams and the running one, each scored by its direction; [T, E]."""
    if not bank:
        return x
    rows = np.stack([*bank, x])
    return (softmax((rms(rows, score, eps)).sum(-1).T).T[..., None] * rows).sum(0)


def short(p, taps):
    """Each channel's own causal convolution over its last rows, then SiLU. taps [channels, 1, w]"""
    taps = taps.reshape(len(taps), -1)
    width = taps.shape[1]
    under = np.concatenate([np.zeros((width - 1, p.shape[1])), p])
    return silu(sum(under[j:j + len(p)] * taps[:, j] for j in range(width)))


def delta(n, w, o):
    """KDA: a state of each head, which forgets by channel of keys, and is corrected."""
    q, k, v = (heads(short(n @ w["attn_" + c].T, w["ssm_conv1d_" + c]), o["h"]) for c in "qkv")
    q, k = (y / np.sqrt((y * y).sum(-1, keepdims=True) + o["eps"]) for y in (q, k))
    rate = heads(n @ w["ssm_f_a"].T @ w["ssm_f_b"].T + w["ssm_dt.bias"], o["h"])
    a = w["ssm_a"].reshape(-1, 1)
    g = a * np.log1p(np.exp(rate)) if o["lower"] is None else o["lower"] * sigmoid(-a * rate)
    beta = sigmoid(n @ w["ssm_beta"].T)
    out = np.zeros_like(v)
    for h in range(o["h"]):
        s = np.zeros((o["d"], o["d"]))
        for t in range(len(n)):
            s = np.exp(g[t, h])[:, None] * s
            s = s + np.outer(k[t, h], beta[t, h] * (v[t, h] - k[t, h] @ s))
            out[t, h] = q[t, h] @ s / np.sqrt(o["d"])
    out = rms(out, w["ssm_norm"], o["eps"]).reshape(len(n), -1)
    return (out * sigmoid(n @ w["ssm_g"].T)) @ w["attn_output"].T


def latent(n, w, o):
    """MLA without positions: what is kept of a row serves all heads as key and value."""
    q = n
    if "attn_q_a" in w:
        q = rms(n @ w["attn_q_a"].T, w["attn_q_a_norm"], o["eps"])
    q = heads(q @ w["attn_q_b" if "attn_q_a" in w else "attn_q"].T, o["h"])
    kept = n @ w["attn_kv_a_mqa"].T
    c, apart = rms(kept[:, :o["rank"]], w["attn_kv_a_norm"], o["eps"]), kept[:, o["rank"]:]
    split, seen, out = o["key"] - o["apart"], np.tri(len(n), dtype=bool), []
    for h in range(o["h"]):
        score = (q[:, h, :split] @ (c @ w["attn_k_b"][h]).T + q[:, h, split:] @ apart.T)
        p = softmax(np.where(seen, score / np.sqrt(o["key"]), -np.inf))
        out.append(p @ c @ w["attn_v_b"][h].T)
    out = np.concatenate(out, -1)
    if "attn_gate" in w:
        out = out * sigmoid(n @ w["attn_gate"].T)
    return out @ w["attn_output"].T


def situ(x, gate, up, down, o):
    g, u = x @ gate.T, x @ up.T
    if o["linear"] > 0:
        u = o["linear"] * np.tanh(u / o["linear"])
    return (o["beta"] * np.tanh(g / o["beta"]) * sigmoid(g) * u) @ down.T


def mixture(z, w, o):
    """Experts of a narrower row, chosen by the whole one."""
    s = z @ w["ffn_gate_inp"].T
    p = {1: softmax, 2: sigmoid, 3: lambda y: y, 4: lambda y: np.sqrt(np.log1p(np.exp(y)))}[
        o["gating"]](s)
    which = best(p + w["exp_probs_b.bias"], o["used"], o["groups"])
    by = np.take_along_axis(p, which, -1)
    if o["gating"] == 3:
        by = softmax(by)
    if o["renorm"]:
        by = by / np.maximum(by.sum(-1, keepdims=True), 6.103515625e-5)
    by = by * (o["scale"] or 1.0)
    r = z @ w["ffn_routed_down"].T if o["latent"] else z
    m = np.zeros_like(r)
    for t in range(len(z)):
        for x, a in zip(which[t], by[t]):
            m[t] += a * situ(r[t], *(w["ffn_%s_exps" % c][x] for c in ("gate", "up", "down")), o)
    if "ffn_routed_norm" in w:
        m = rms(m, w["ffn_routed_norm"], o["eps"])
    m = m @ w["ffn_routed_up"].T if o["latent"] else m
    if o["has_shared"]:
        m = m + situ(z, *(w["ffn_%s_shexp" % c] for c in ("gate", "up", "down")), o)
    return m


def keys_of(o):
    out = {".context_length": 256, ".embedding_length": o["e"], ".block_count": len(o["mla"]),
           ".feed_forward_length": o["f"], ".attention.head_count": o["h"],
           ".attention.head_count_kv": list(o["mla"]),
           ".attention.layer_norm_rms_epsilon": o["eps"],
           ".attention.key_length": o["rank"] + o["apart"], ".attention.value_length": o["rank"],
           ".attention.key_length_mla": o["key"], ".attention.value_length_mla": o["value"],
           ".attention.kv_lora_rank": o["rank"], ".rope.dimension_count": o["apart"],
           ".ssm.conv_kernel": o["width"], ".kda.head_dim": o["d"],
           ".attn_res.block_size": o["block"], ".activation.situ_beta": o["beta"],
           ".activation.situ_linear_beta": o["linear"], ".expert_count": o["experts"],
           ".expert_used_count": o["used"], ".expert_feed_forward_length": o["fx"],
           ".expert_gating_func": o["gating"]}
    may = {".attention.q_lora_rank": o["q_rank"], ".kda.gate_lower_bound": o["lower"],
           ".expert_latent_length": o["latent"], ".expert_weights_scale": o["scale"],
           ".expert_shared_count": o["shared"], ".leading_dense_block_count": o["dense"] or None,
           ".expert_weights_norm": o["renorm"] or None}
    if o["groups"]:
        may.update(zip((".expert_group_count", ".expert_group_used_count"), o["groups"]))
    out.update((k, v) for k, v in may.items() if v is not None)
    return out


def layer_of(o, i):
    e, rows, x, fx = o["e"], o["h"] * o["d"], o["experts"], o["fx"]
    out = {"attn_norm": [e], "ffn_norm": [e]}
    if o["block"]:
        out.update({"attn_res_score": [e], "ffn_res_score": [e]})
    if o["mla"][i]:
        out.update({"attn_kv_a_mqa": [o["rank"] + o["apart"], e], "attn_kv_a_norm": [o["rank"]],
                    "attn_k_b": [o["h"], o["rank"], o["key"] - o["apart"]],
                    "attn_v_b": [o["h"], o["value"], o["rank"]],
                    "attn_output": [e, o["h"] * o["value"]]})
        if o["q_rank"]:
            out.update({"attn_q_a": [o["q_rank"], e], "attn_q_a_norm": [o["q_rank"]],
                        "attn_q_b": [o["h"] * o["key"], o["q_rank"]]})
        else:
            out["attn_q"] = [o["h"] * o["key"], e]
        if o["gates"][i]:
            out["attn_gate"] = [o["h"] * o["value"], e]
    else:
        for c in "qkv":
            out["attn_" + c], out["ssm_conv1d_" + c] = [rows, e], [rows, 1, o["width"]]
        out.update({"ssm_f_a": [o["d"], e], "ssm_f_b": [rows, o["d"]], "ssm_beta": [o["h"], e],
                    "ssm_g": [rows, e], "ssm_norm": [o["d"]], "attn_output": [e, rows]})
    if i < o["dense"]:
        out.update({"ffn_gate": [o["f"], e], "ffn_up": [o["f"], e], "ffn_down": [e, o["f"]]})
    else:
        r = o["latent"] or e
        out.update({"ffn_gate_inp": [x, e], "ffn_gate_exps": [x, fx, r],
                    "ffn_up_exps": [x, fx, r], "ffn_down_exps": [x, r, fx]})
        if o["latent"]:
            out.update({"ffn_routed_down": [r, e], "ffn_routed_up": [e, r]})
            if o["routed_norms"][i]:
                out["ffn_routed_norm"] = [r]
        if o["has_shared"]:
            n = o["shared"] * fx
            out.update({"ffn_gate_shexp": [n, e], "ffn_up_shexp": [n, e],
                        "ffn_down_shexp": [e, n]})
    out = {k + ".weight": v for k, v in out.items()}
    if not o["mla"][i]:
        out.update({"ssm_a": [o["h"]], "ssm_dt.bias": [rows]})
    if i >= o["dense"]:
        out["exp_probs_b.bias"] = [x]
    return out


def k3(**options):
    o = {**K3, **options}

    def run(w, tokens):
        x, bank = w["token_embd"][tokens], []
        for i, attends in enumerate(o["mla"]):
            u = mix(bank, x, w[i].get("attn_res_score"), o["eps"])
            begins = o["block"] and i % o["block"] == 0
            if begins:
                bank.append(x)
            a = (latent if attends else delta)(rms(u, w[i]["attn_norm"], o["eps"]), w[i], o)
            x = a if begins else x + a
            z = rms(mix(bank, x, w[i].get("ffn_res_score"), o["eps"]), w[i]["ffn_norm"], o["eps"])
            x = x + (situ(z, w[i]["ffn_gate"], w[i]["ffn_up"], w[i]["ffn_down"], o)
                     if i < o["dense"] else mixture(z, w[i], o))
        x = mix(bank, x, w.get("output_res_score"), o["eps"])
        return rms(x, w["output_norm"], o["eps"]) @ w["output"].T
    ends = {"token_embd.weight": [N_VOCAB, o["e"]], "output_norm.weight": [o["e"]],
            "output.weight": [N_VOCAB, o["e"]]}
    if o["block"]:
        ends["output_res_score.weight"] = [o["e"]]
    for i in range(len(o["mla"])):
        ends.update(("blk.%d.%s" % (i, k), v) for k, v in layer_of(o, i).items())
    return keys_of(o), ends, run


def draw(rng):
    """Options by chance; each part is there or not."""
    def one(*of):
        return of[rng.integers(len(of))]
    layers = one(1, 2, 3, 4, 5, 7)
    apart, shared = one(2, 4, 6), one(None, 0, 1, 2, 3)
    experts, used, groups = one((4, 1, None), (6, 3, None), (8, 2, None), (8, 4, (4, 2)))
    return dict(
        mla=[int(x) for x in rng.integers(0, 2, layers)], e=one(16, 24, 32, 40), f=one(24, 48),
        h=one(1, 2, 3, 4), d=one(4, 8, 16), width=one(2, 3, 4), eps=one(1e-6, 1e-5, 1e-2),
        block=one(0, 1, 2, 3, 4), lower=one(None, -5.0, -0.5), q_rank=one(None, 12),
        rank=one(8, 16, 20), key=apart + one(4, 8, 10), apart=apart, value=one(4, 8, 10),
        gates=[int(x) for x in rng.integers(0, 2, layers)], dense=one(0, 1, 2, layers),
        experts=experts, used=used, groups=groups, fx=one(8, 16), latent=one(None, 0, 12, 20),
        routed_norms=[int(x) for x in rng.integers(0, 2, layers)], shared=shared,
        has_shared=bool(shared), gating=one(1, 2, 2, 3, 4), renorm=one(False, True),
        scale=one(None, 0.0, 1.0, 2.5), beta=one(1.0, 4.0), linear=one(-1.0, 0.0, 2.0, 25.0))


FAMILIES = {k: ("kimi-k3", k3(**options), False) for k, options in {
    "kimi-k3": {},
    "kimi-k3-plain": dict(block=0, lower=None, q_rank=None, gates=(0,) * 4, latent=None,
                          shared=None, has_shared=False, renorm=False, scale=None, linear=0.0,
                          dense=0),
    "kimi-k3-each": dict(block=1, mla=(1, 0, 0, 1), routed_norms=(0,) * 4, width=2, linear=-1.0),
    "kimi-k3-three": dict(block=3, mla=(0, 0, 1, 0, 0, 1, 1), gates=(0, 0, 1, 0, 0, 0, 1),
                          routed_norms=(1, 0, 1, 0, 1, 0, 1), dense=2, shared=2, eps=1e-2),
    "kimi-k3-states": dict(mla=(0, 0, 0, 0), lower=-0.5, latent=0, e=24, h=3),
    "kimi-k3-attends": dict(mla=(1, 1, 1, 1), gates=(1, 0, 0, 1), q_rank=None, beta=1.0),
    "kimi-k3-dense": dict(dense=4, linear=2.0, beta=1.0, block=2),
    "kimi-k3-softmax": dict(gating=1, renorm=False, scale=0.0, block=4),
    "kimi-k3-groups": dict(groups=(4, 2), used=4, shared=0, has_shared=False)}.items()}
