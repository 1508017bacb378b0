"""second_kimi.py -- Kimi K3 as a second implementation, in plain numpy: delta attention step by
step, latent attention with keys and values of every head, a residual stream that is kept and begins
anew. See second.py."""
import numpy as np

from plain import attend, best, heads, rms, sigmoid, silu, softmax
from second import E, F, FX, H, K, RMS, X, keys, norms, shapes

EPS = 1e-5
WIDTH, D = 4, 8                    # delta attention: taps, a head's channels
RANK, PE, DK, DV, QL = 12, 4, 12, 6, 20  # latent attention
EL = 24                            # of an expert's rows


def kimi_k3(layers, every, beta, linear, mla, lowest, short, low_q, gate, shared, gating):
    """mla: which layers are latent attention. short: experts read shorter rows; "bare": these are
    not normalised. low_q, gate, shared: the file has these products."""

    def situ(g, u):
        up = linear * np.tanh(u / linear) if linear > 0 else u
        return beta * np.tanh(g / beta) * sigmoid(g) * up

    def ffn(z, gate_w, up, down):
        return situ(z @ gate_w.T, z @ up.T) @ down.T

    def conv(p, taps):
        padded = np.concatenate([np.zeros((WIDTH - 1, p.shape[1])), p])
        return silu(sum(padded[j:j + len(p)] * taps[:, 0, j] for j in range(WIDTH)))

    def unit(x):
        return x / np.sqrt((x * x).sum(-1, keepdims=True) + EPS)

    def delta(n, w):
        q, k, v = (heads(conv(n @ w["attn_" + p].T, w["ssm_conv1d_" + p]), H) for p in "qkv")
        q, k = unit(q), unit(k)
        f = n @ w["ssm_f_a"].T @ w["ssm_f_b"].T + w["ssm_dt.bias"]
        f, rate = heads(f, H), w["ssm_a"][:, None]
        g = lowest * sigmoid(-rate * f) if lowest else rate * np.log1p(np.exp(f))
        b = sigmoid(n @ w["ssm_beta"].T)
        o = np.zeros((len(n), H, D))
        for h in range(H):
            s = np.zeros((D, D))  # [key, value]
            for t in range(len(n)):
                s = np.exp(g[t, h])[:, None] * s
                s = s + np.outer(k[t, h], b[t, h] * (v[t, h] - s.T @ k[t, h]))
                o[t, h] = s.T @ q[t, h] / np.sqrt(D)
        y = rms(o, w["ssm_norm"]).reshape(len(n), -1) * sigmoid(n @ w["ssm_g"].T)
        return y @ w["attn_output"].T

    def latent(n, w):
        q = rms(n @ w["attn_q_a"].T, w["attn_q_a_norm"]) @ w["attn_q_b"].T if low_q \
            else n @ w["attn_q"].T
        row = n @ w["attn_kv_a_mqa"].T
        c, pe = rms(row[:, :RANK], w["attn_kv_a_norm"]), row[:, RANK:]
        k = np.stack([np.concatenate([c @ w["attn_k_b"][h], pe], -1) for h in range(H)], 1)
        v = np.stack([c @ w["attn_v_b"][h].T for h in range(H)], 1)
        y = attend(heads(q, H), k, v)
        return (y * sigmoid(n @ w["attn_gate"].T) if gate else y) @ w["attn_output"].T

    def moe(z, w):
        r = z @ w["ffn_gate_inp"].T
        p = sigmoid(r) if gating == 2 else softmax(r)
        chosen = best(p + w["exp_probs_b.bias"], K)
        x = z @ w["ffn_routed_down"].T if short else z
        m = np.zeros_like(x)
        for t in range(len(x)):
            for e in chosen[t]:
                by = p[t, e] / p[t, chosen[t]].sum() if gating == 2 else p[t, e]
                m[t] += 1.7 * by * ffn(x[t], *(w["ffn_%s_exps" % n][e]
                                               for n in ("gate", "up", "down")))
        if short and short != "bare":
            m = rms(m, w["ffn_routed_norm"])
        m = m @ w["ffn_routed_up"].T if short else m
        return m + ffn(z, *(w["ffn_%s_shexp" % n] for n in ("gate", "up", "down"))) if shared else m

    def mix(bank, x, w):
        rows = np.stack(bank + [x])
        return (softmax((rms(rows) @ w).T).T[..., None] * rows).sum(0) if bank else x

    def run(w, tokens):
        x, bank = w["token_embd"][tokens], []
        for i in range(layers):
            u, anew = mix(bank, x, w[i].get("attn_res_score")), every and i % every == 0
            bank = bank + [x] if anew else bank
            a = (latent if mla[i] else delta)(rms(u, w[i]["attn_norm"]), w[i])
            x = a if anew else x + a
            z = rms(mix(bank, x, w[i].get("ffn_res_score")), w[i]["ffn_norm"])
            x = x + (moe(z, w[i]) if i else ffn(z, *(w[i]["ffn_" + n]
                                                    for n in ("gate", "up", "down"))))
        return rms(mix(bank, x, w.get("output_res_score")), w["output_norm"]) @ w["output"].T

    def layer(i):
        out = {"attn_norm.weight": [E], "ffn_norm.weight": [E]}
        if every:
            out.update(norms("attn_res_score", "ffn_res_score"))
        if mla[i]:
            out.update({"attn_kv_a_mqa.weight": [RANK + PE, E], "attn_kv_a_norm.weight": [RANK],
                        "attn_k_b.weight": [H, RANK, DK - PE], "attn_v_b.weight": [H, DV, RANK],
                        "attn_output.weight": [E, H * DV]})
            out.update({"attn_q_a.weight": [QL, E], "attn_q_a_norm.weight": [QL],
                        "attn_q_b.weight": [H * DK, QL]} if low_q else
                       {"attn_q.weight": [H * DK, E]})
            out.update({"attn_gate.weight": [H * DV, E]} if gate else {})
        else:
            out.update({"attn_%s.weight" % p: [H * D, E] for p in "qkv"})
            out.update({"ssm_conv1d_%s.weight" % p: [H * D, 1, WIDTH] for p in "qkv"})
            out.update({"ssm_f_a.weight": [D, E], "ssm_f_b.weight": [H * D, D],
                        "ssm_dt.bias": [H * D], "ssm_a": [H], "ssm_beta.weight": [H, E],
                        "ssm_g.weight": [H * D, E], "ssm_norm.weight": [D],
                        "attn_output.weight": [E, H * D]})
        if not i:
            out.update({"ffn_gate.weight": [F, E], "ffn_up.weight": [F, E],
                        "ffn_down.weight": [E, F]})
            return out
        row = EL if short else E
        out.update({"ffn_gate_inp.weight": [X, E], "exp_probs_b.bias": [X],
                    "ffn_gate_exps.weight": [X, FX, row], "ffn_up_exps.weight": [X, FX, row],
                    "ffn_down_exps.weight": [X, row, FX]})
        if short:
            out.update({"ffn_routed_down.weight": [EL, E], "ffn_routed_up.weight": [E, EL]})
            out.update({} if short == "bare" else {"ffn_routed_norm.weight": [EL]})
        if shared:
            out.update({"ffn_gate_shexp.weight": [2 * FX, E], "ffn_up_shexp.weight": [2 * FX, E],
                        "ffn_down_shexp.weight": [E, 2 * FX]})
        return out

    more = {
        ".attention.head_count_kv": [1 if x else 0 for x in mla], ".rope.dimension_count": PE,
        ".attention.kv_lora_rank": RANK, ".attention.key_length_mla": DK,
        ".attention.value_length_mla": DV, ".ssm.conv_kernel": WIDTH, ".kda.head_dim": D,
        ".expert_count": X, ".expert_used_count": K, ".expert_feed_forward_length": FX,
        ".expert_shared_count": 2 if shared else 0, ".expert_gating_func": gating,
        ".expert_weights_norm": gating == 2, ".expert_weights_scale": 1.7,
        ".leading_dense_block_count": 1, ".attn_res.block_size": every,
        ".activation.situ_beta": beta, ".activation.situ_linear_beta": linear}
    more.update({".attention.q_lora_rank": QL} if low_q else {})
    more.update({".kda.gate_lower_bound": lowest} if lowest else {})
    more.update({".expert_latent_length": EL} if short else {})
    return keys(layers, RMS, more), \
        shapes(layers, layer, more={"output_res_score.weight": [E]} if every else {}), run


# As in second.py.
FAMILIES = {
    "kimi-k3": ("kimi-k3", kimi_k3(6, 2, 1.5, 2.0, [0, 1, 0, 1, 0, 1], -5.0, True, True, True,
                                   True, 2), False),
    "kimi-k3-each": ("kimi-k3", kimi_k3(4, 1, 0.8, 0.0, [0, 1, 1, 0], 0.0, "bare", False, True,
                                        False, 1), False),
    "kimi-k3-plain": ("kimi-k3", kimi_k3(4, 0, 1.5, 1.25, [1, 0, 0, 1], -2.0, False, True, False,
                                         True, 2), False),
    "kimi-k3-three": ("kimi-k3", kimi_k3(5, 3, 3.0, -1.0, [0, 0, 1, 1, 0], -5.0, False, False,
                                         False, False, 2), False),
}
