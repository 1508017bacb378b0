"""hf_families.py -- families of the Python package transformers as tiny models: what their
configuration is there, and how their weights and settings are called in a GGUF file."""
import re

import numpy as np

from tiny import N_VOCAB, weights

E, F, L, H, G, D = 32, 48, 4, 4, 2, 8
COMMON = {".context_length": 256, ".embedding_length": E, ".block_count": L,
          ".feed_forward_length": F, ".attention.head_count": H, ".attention.head_count_kv": G}
RMS = {".attention.layer_norm_rms_epsilon": 1e-5}
LN = {".attention.layer_norm_epsilon": 1e-5}
CONFIG = dict(vocab_size=N_VOCAB, hidden_size=E, intermediate_size=F, num_hidden_layers=L,
              num_attention_heads=H, num_key_value_heads=G, max_position_embeddings=256)
BASE = 5000.0  # the default is another: a key that is not read is seen
ROPE = dict(rope_type="default", rope_theta=BASE)

# What most families call their weights, and what GGUF does.
USUAL = [
    (r"(?:model\.)?(?:language_model\.)?embed_tokens\.", "token_embd."),
    (r"(?:model\.)?(?:language_model\.)?norm\.", "output_norm."),
    (r"lm_head\.", "output."),
    (r"input_layernorm\.", "attn_norm."),
    (r"self_attn\.([qkv])_proj\.", r"attn_\1."),
    (r"self_attn\.o_proj\.", "attn_output."),
    (r"self_attn\.([qk])_(?:layer)?norm\.", r"attn_\1_norm."),
    (r"self_attn\.sinks", r"attn_sinks.weight"),
    (r"post_attention_layernorm\.", "ffn_norm."),
    (r"mlp\.(gate|up|down)_proj\.", r"ffn_\1."),
    (r"mlp\.gate\.weight", "ffn_gate_inp.weight"),
    (r"mlp\.(?:gate\.)?e_score_correction_bias", "exp_probs_b.bias"),
    (r"mlp\.shared_experts?\.(gate|up|down)_proj\.", r"ffn_\1_shexp."),
    (r"mlp\.experts\.down_proj", "ffn_down_exps.weight"),
]


def permuted(w, n_head):
    """Rows of each head by halves (i, i + D/2) become rows by pairs (2i, 2i + 1)."""
    return w.reshape(n_head, 2, -1, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def renamed(name, rules):
    layer = re.match(r"(.*?\b(?:layers|blocks|h)\.(\d+)\.)", name)
    rest = name[layer.end():] if layer else name
    for pattern, new in rules:
        if re.fullmatch(pattern + r".*", rest) and re.match(pattern, rest):
            short = re.sub("^" + pattern, new, rest)
            return "blk.%s.%s" % (layer.group(2), short) if layer else short
    return None


class Family:
    """cls, config: in transformers. arch, keys: in GGUF. rules: names before the usual ones.
    by_pairs: q and k are written by pairs. centred: a pattern of the norms that add 1 to their
    weight there. split(name, array): {GGUF name: array} of what needs more than a name, or None.
    finish({GGUF name: array}): the same once more, for all of them. fixed: numbers of weights, by
    the end of their name. head: the package has no output matrix; from products to logits. pooled:
    `pith logits` is asked for embeddings. causal: rows do not see later ones."""

    def __init__(self, arch, cls, keys, config, rules=(), by_pairs=False, centred=None,
                 split=None, pooled=False, tied=False, finish=None, head=None,
                 fixed=(), causal=True):
        self.arch, self.cls, self.pooled, self.centred = arch, cls, pooled, centred
        self.keys = {**COMMON, **keys}
        self.keys = {k: v for k, v in self.keys.items() if v is not None}
        self.config = {**CONFIG, **config}
        self.config = {k: v for k, v in self.config.items() if v is not DROP}
        self.rules = list(rules) + USUAL
        self.by_pairs, self.split, self.tied, self.finish = by_pairs, split, tied, finish
        self.head, self.fixed, self.causal = head, dict(fixed), causal

    def values(self, shapes):
        """{transformers' name: array} for {name: shape}."""
        out = weights(shapes, self.centred)
        for name in out:
            for end, x in self.fixed.items():
                if name.endswith(end):
                    out[name] = np.full(shapes[name], x, dtype=np.float32)
        return out

    def gguf(self, state):
        """{GGUF name: array} from {transformers' name: array}."""
        out = {}
        for name, x in state.items():
            if self.tied and name == "lm_head.weight":
                continue
            parts = self.split(name, x) if self.split else None
            if parts is None:
                if name.endswith("experts.gate_up_proj"):
                    half = x.shape[1] // 2
                    parts = {name[:-12] + "gate": x[:, :half], name[:-12] + "up": x[:, half:]}
                    parts = {renamed(k, [(r"mlp\.experts\.(gate|up)", r"ffn_\1_exps.weight")]): v
                             for k, v in parts.items()}
                else:
                    new = renamed(name, self.rules)
                    if new is None:
                        raise KeyError("no GGUF name for " + name)
                    parts = {new: x}
            for new, y in parts.items():
                if self.by_pairs and re.search(r"attn_[qk]\.(weight|bias)$", new):
                    y = permuted(y, G if ".attn_k." in new else H)
                if self.centred and re.search(self.centred, name):
                    y = y + 1
                out[new] = y
        return self.finish(out) if self.finish else out


DROP = object()


def rope(dim=D, base=BASE, **more):
    return {".rope.dimension_count": dim, ".rope.freq_base": base, **more}


def moe(count=8, used=2, ff=16, **more):
    return {".expert_count": count, ".expert_used_count": used,
            ".expert_feed_forward_length": ff, **more}


def head_norms(out):
    """stablelm: the norms of single heads are rows of one tensor."""
    rows = sorted(k for k in out if "_norm." in k and k.endswith(".row"))
    for name in rows:
        whole, _, row = name.rpartition("_norm.")[0], None, int(name.split(".")[-2])
        out.setdefault(whole + "_norm.weight", {})[row] = out.pop(name)
    return {k: np.stack([v[i] for i in range(len(v))]) if isinstance(v, dict) else v
            for k, v in out.items()}


def xielu(out):
    """apertus: numbers of the activation are keys."""
    return {k: v for k, v in out.items() if ".xielu." not in k}


def muse(out):
    for i in range(L):
        out["blk.%d.attn_q_norm.weight" % i] = np.full(D, 3.87)
        out["blk.%d.attn_k_norm.weight" % i] = np.ones(D)
    return out


def dbrx(name, x):
    if "experts.mlp" not in name:
        return None
    layer, kind = name.split(".")[2], name.rsplit(".", 1)[-1]
    x = x.reshape(4, F, E)
    return {"blk.%s.ffn_%s_exps.weight" % (layer, {"w1": "gate", "v1": "up", "w2": "down"}[kind]):
            x.swapaxes(1, 2) if kind == "w2" else x}


def falcon(out, times=None, groups=2):
    """falcon-h1: what its widths multiply with is in the weights."""
    times = FALCON_TIMES if times is None else times
    for name in out:
        x = out[name]
        if name.endswith(("ssm_a", "ssm_d")):
            out[name] = (-np.exp(x) if name.endswith("a") else x)[:, None]
        elif name.endswith("ssm_conv1d.weight"):
            out[name] = x[:, 0]
        elif name.endswith("ssm_norm.weight"):
            out[name] = x.reshape(groups, -1)
        elif name.endswith("ssm_in.weight") and times:
            parts = np.repeat([0.5, 1.25, 0.75, 1.5, 0.8], [E, E, 2 * D, 2 * D, H])
            out[name] = x * parts[:, None] * 1.2
        else:
            for end, by in times.items():
                if name.endswith(end + ".weight"):
                    out[name] = x * by
    return out


def unused(out):
    """falcon-h1: files may have these, and nothing comes of it."""
    for i in range(L):
        out["blk.%d.attn_output.bias" % i] = np.ones(E)
    return {**out, "rope_freqs.weight": np.full(D // 2, 3.0)}


FALCON_TIMES = {"token_embd": 2.0, "output": 0.5, "attn_q": 0.9, "attn_k": 0.9 * 0.7,
                "attn_v": 0.9, "attn_output": 1.1, "ssm_out": 0.6, "ffn_gate": 1.3, "ffn_down": 0.4}


def bailing(name, x):
    blk = "blk.%s." % (name + "..").split(".")[2]
    if name.endswith("conv1d.weight"):
        return {blk + "ssm_conv1d_%s.weight" % p: x[i * E:(i + 1) * E, 0].reshape(1, E, 1, 4)
                for i, p in enumerate("qkv")}
    if name.endswith("A_log"):
        return {blk + "ssm_a": np.exp(x)[:, None]}
    if name.endswith("g_proj.weight"):
        return {blk + ("attn_gate.weight" if len(x) == H else "ssm_g_a.weight"): x}
    if name.endswith("kv_b_proj.weight"):
        x = x.reshape(H, 2 * D, -1)
        return {blk + "attn_k_b.weight": x[:, :D].swapaxes(1, 2), blk + "attn_v_b.weight": x[:, D:]}
    return None



def hunyuan(out):
    """hy_v4: the last 4 of a head turn, and pairs of them are neighbours in a file."""
    def turned(x):
        return np.concatenate([x[:-4], permuted(x[-4:], 1)])
    for name in out:
        if "indexer.attn_k" in name or "indexer.k_norm" in name or "attn_kv_a_mqa" in name:
            out[name] = turned(out[name])
        elif name.endswith("attn_q_b.weight"):
            by_head = np.split(out[name], 8 if "indexer" in name else H)
            out[name] = np.concatenate([turned(x) for x in by_head])
    return out


def llama4(name, x):
    """Experts are stacks of columns there, of rows in a file."""
    if "experts." not in name:
        return None
    blk, x = "blk.%s.ffn_" % name.split(".")[2], x.swapaxes(1, 2)
    if name.endswith("down_proj"):
        return {blk + "down_exps.weight": x}
    half = x.shape[1] // 2
    return {blk + "gate_exps.weight": x[:, :half], blk + "up_exps.weight": x[:, half:]}


def fused(out):
    """q, k and v in one tensor, for families that have no others."""
    for i in range(L):
        parts = [out.pop("blk.%d.attn_%s.weight" % (i, p)) for p in "qkv"]
        out["blk.%d.attn_qkv.weight" % i] = np.concatenate(parts)
    return out


WINDOWED = ["sliding_attention"] * 3 + ["full_attention"]
PHI = [(r"model\.final_layernorm\.", "output_norm."), (r"self_attn\.dense\.", "attn_output."),
       (r"mlp\.fc1\.", "ffn_up."), (r"mlp\.fc2\.", "ffn_down.")]
MPT = [(r"transformer\.wte\.", "token_embd."), (r"transformer\.norm_f\.", "output_norm."),
       (r"norm_1\.", "attn_norm."), (r"norm_2\.", "ffn_norm."), (r"attn\.Wqkv\.", "attn_qkv."),
       (r"attn\.out_proj\.", "attn_output."), (r"ffn\.(up|down)_proj\.", r"ffn_\1.")]
APERTUS = [(r"attention_layernorm\.", "attn_norm."), (r"feedforward_layernorm\.", "ffn_norm."),
           (r"mlp\.act_fn\.", "xielu.")]
GEMMA = [(r"post_attention_layernorm\.", "post_attention_norm."),
         (r"pre_feedforward_layernorm\.", "ffn_norm."),
         (r"post_feedforward_layernorm\.", "post_ffw_norm.")]
FALCON = [(r"model\.final_layernorm\.", "output_norm."), (r"mamba\.dt_bias", "ssm_dt.bias"),
          (r"mamba\.A_log", "ssm_a"), (r"mamba\.D", "ssm_d"), (r"mamba\.conv1d\.", "ssm_conv1d."),
          (r"mamba\.in_proj\.", "ssm_in."), (r"mamba\.out_proj\.", "ssm_out."),
          (r"mamba\.norm\.", "ssm_norm."), (r"pre_ff_layernorm\.weight", "ffn_norm"),
          (r"feed_forward\.(gate|up|down)_proj\.", r"ffn_\1.")]
PARTIAL = dict(rope_type="default", rope_theta=BASE, partial_rotary_factor=0.5)
XIELU = {"alpha_n": 0.5, "alpha_p": 0.75, "beta": 0.5, "eps": -1e-6}

FAMILIES = {
    "mpt": Family("mpt", "MptForCausalLM", {
        **LN, ".attention.head_count_kv": None, ".feed_forward_length": 4 * E,
        ".attention.max_alibi_bias": 8.0, ".attention.clamp_kqv": 1.5},
        dict(d_model=E, n_heads=H, n_layers=L, max_seq_len=256,
             attn_config=dict(alibi=True, clip_qkv=1.5), **{k: DROP for k in CONFIG if k !=
                                                           "vocab_size"}), MPT, tied=True),
    "phi2": Family("phi2", "PhiForCausalLM", {**LN, **rope(4)}, dict(rope_parameters=PARTIAL), PHI),
    "stablelm": Family("stablelm", "StableLmForCausalLM", {**LN, **rope(4)}, dict(
        rope_parameters=PARTIAL, use_qkv_bias=True)),
    "stablelm-12b": Family("stablelm", "StableLmForCausalLM", {**LN, **rope(4)}, dict(
        rope_parameters=PARTIAL, qk_layernorm=True, use_parallel_residual=True), [
        (r"self_attn\.([qk])_layernorm\.norms\.(\d+)\.weight", r"attn_\1_norm.\2.row")],
        finish=head_norms),
    "apertus": Family("apertus", "ApertusForCausalLM", {
        **RMS, **rope(), **{"xielu." + k: v for k, v in XIELU.items()}},
        dict(rope_parameters=ROPE), APERTUS, finish=xielu,
        fixed={"act_fn." + k: v for k, v in XIELU.items()}),
    "arcee": Family("arcee", "ArceeForCausalLM", {**RMS, **rope()}, dict(rope_parameters=ROPE),
                    by_pairs=True),
    "cohere2": Family("cohere2", "Cohere2ForCausalLM", {
        **LN, **rope(), ".logit_scale": 0.25, ".attention.sliding_window": 8},
        dict(rope_parameters=ROPE, logit_scale=0.25, sliding_window=8, layer_types=WINDOWED),
        tied=True),
    "ernie4_5": Family("ernie4_5", "Ernie4_5ForCausalLM", {**RMS, **rope()},
                       dict(rope_parameters=ROPE, head_dim=D), tied=True),
    "mistral3": Family("mistral3", "Ministral3ForCausalLM", {
        **RMS, **rope(base=100.0), ".attention.key_length": D, ".attention.value_length": D,
        ".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0,
        ".rope.scaling.original_context_length": 16, ".rope.scaling.yarn_beta_fast": 0.3,
        ".rope.scaling.yarn_beta_slow": 0.1, ".rope.scaling.yarn_log_multiplier": 1.0,
        ".attention.temperature_scale": 0.1},
        dict(head_dim=D, rope_parameters=dict(
            rope_type="yarn", rope_theta=100.0, factor=4.0, beta_fast=0.3, beta_slow=0.1,
            mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=16,
            llama_4_scaling_beta=0.1)), by_pairs=True),
    "smollm3": Family("smollm3", "SmolLM3ForCausalLM", {**RMS, **rope()},
                      dict(rope_parameters=ROPE, rms_norm_eps=1e-5, tie_word_embeddings=True),
                      by_pairs=True, tied=True),
    "muse-glimmer": Family("muse-glimmer", "MuseGlimmerTextModel", {
        **RMS, **rope(), ".attention.key_length": D, ".attention.value_length": D,
        ".attention.sliding_window": 8, ".logit_scale": 0.2,
        ".final_logit_softcapping": 20.0},
        dict(head_dim=D, sliding_window=8, rope_parameters=ROPE, layer_types=WINDOWED),
        [(r"self_attn\.gate_proj\.", "attn_gate.")] + GEMMA, by_pairs=True,
        centred=r"layernorm\.weight", finish=muse,
        head=lambda z: 20 * np.tanh(0.2 * z / 20)),
    "qwen2vl": Family("qwen2vl", "Qwen2VLTextModel", {
        **RMS, **rope(), ".rope.dimension_sections": [1, 2, 1, 0]},
        dict(rms_norm_eps=0.0, rope_parameters=dict(rope_type="default", rope_theta=BASE,
                                                    mrope_section=[1, 2, 1])), head=lambda z: z),
    "qwen3vl": Family("qwen3vl", "Qwen3VLTextModel", {
        **RMS, **rope(16), ".attention.key_length": 16, ".attention.value_length": 16,
        ".rope.dimension_sections": [3, 3, 2, 0]},
        dict(head_dim=16, rms_norm_eps=1e-5, rope_parameters=dict(
            rope_type="default", rope_theta=BASE, mrope_section=[3, 3, 2],
            mrope_interleaved=True)), head=lambda z: z),
    "dbrx": Family("dbrx", "DbrxForCausalLM", {
        **LN, **rope(), **moe(4, 2, F), ".attention.clamp_kqv": 1.5},
        dict(d_model=E, n_heads=H, n_layers=L, max_seq_len=256, rope_parameters=ROPE,
             attn_config=dict(kv_n_heads=G, clip_qkv=1.5, rope_theta=BASE),
             ffn_config=dict(ffn_hidden_size=F, moe_num_experts=4, moe_top_k=2,
                             ffn_act_fn=dict(name="silu")),
             **{k: DROP for k in CONFIG if k != "vocab_size"}),
        [(r"norm_attn_norm\.norm_1\.", "attn_norm."),
         (r"norm_attn_norm\.norm_2\.", "attn_output_norm."),
         (r"norm_attn_norm\.attn\.Wqkv\.", "attn_qkv."),
         (r"norm_attn_norm\.attn\.out_proj\.", "attn_output."),
         (r"ffn\.router\.layer\.", "ffn_gate_inp.")] + MPT, split=dbrx),
    "dots1": Family("dots1", "Dots1ForCausalLM", {
        **RMS, **rope(), **moe(), ".attention.head_count_kv": H, ".leading_dense_block_count": 1,
        ".expert_shared_count": 2, ".expert_weights_scale": 2.5, ".expert_weights_norm": True,
        ".expert_gating_func": 2},
        dict(num_key_value_heads=H, n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=2,
             moe_intermediate_size=16, first_k_dense_replace=1, norm_topk_prob=True,
             routed_scaling_factor=2.5, rms_norm_eps=1e-5, rope_parameters=ROPE)),
    "mimo2": Family("mimo2", "MiMoV2FlashForCausalLM", {
        **RMS, **rope(4), **moe(), ".attention.key_length": 12, ".attention.value_length": 8,
        ".attention.head_count_kv": [1, 2, 2, 1], ".attention.sliding_window": 8,
        ".attention.sliding_window_pattern": [False, True, True, False],
        ".rope.freq_base": 20000.0, ".rope.freq_base_swa": BASE,
        ".attention.value_scale": 0.707, ".expert_gating_func": 2, ".expert_weights_norm": True},
        dict(num_key_value_heads=1, head_dim=12, v_head_dim=8, n_routed_experts=8,
             num_experts_per_tok=2, moe_intermediate_size=16, sliding_window=8,
             layer_types=["full_attention", "sliding_attention", "sliding_attention",
                          "full_attention"], mlp_layer_types=["dense"] + ["sparse"] * 3,
             rope_parameters={k: dict(ROPE, rope_theta=b, partial_rotary_factor=1 / 3)
                              for k, b in (("full_attention", 20000.0),
                                           ("sliding_attention", BASE))})),
    "minimax-m2": Family("minimax-m2", "MiniMaxM2ForCausalLM", {
        **RMS, **rope(4), **moe(ff=F), ".attention.key_length": D, ".attention.value_length": D,
        ".expert_gating_func": 2},
        dict(head_dim=D, num_local_experts=8, num_experts_per_tok=2, rms_norm_eps=1e-5,
             rope_parameters=PARTIAL)),
    "falcon-h1": Family("falcon-h1", "FalconH1ForCausalLM", {
        **RMS, **rope(), ".ssm.conv_kernel": 4, ".ssm.inner_size": E, ".ssm.state_size": D,
        ".ssm.time_step_rank": H, ".ssm.group_count": 2, ".attention.key_length": D,
        ".attention.value_length": D},
        dict(mamba_d_ssm=E, mamba_n_heads=H, mamba_d_head=D, mamba_d_state=D, mamba_n_groups=2,
             mamba_rms_norm=True, mamba_norm_before_gate=False, rope_parameters=ROPE,
             embedding_multiplier=2.0, lm_head_multiplier=0.5, key_multiplier=0.7,
             attention_in_multiplier=0.9, attention_out_multiplier=1.1, ssm_in_multiplier=1.2,
             ssm_out_multiplier=0.6, mlp_multipliers=[1.3, 0.4],
             ssm_multipliers=[0.5, 1.25, 0.75, 1.5, 0.8]),
        FALCON, finish=falcon),
    "bailingmoe3": Family("bailingmoe3", "BailingHybridForCausalLM", {
        **rope(4), **moe(16), ".attention.layer_norm_rms_epsilon": 1e-6,
        ".attention.head_count_kv": [0, 1, 0, 1], ".attention.kv_lora_rank": 16,
        ".attention.key_length": 20, ".attention.value_length": 16,
        ".attention.key_length_mla": 12, ".attention.value_length_mla": 8, ".ssm.conv_kernel": 4,
        ".kda.head_dim": D, ".kda.gate_lower_bound": -5.0, ".kda.safe_gate": True,
        ".leading_dense_block_count": 1, ".expert_shared_count": 1,
        ".expert_shared_feed_forward_length": 16, ".expert_gating_func": 2,
        ".expert_weights_norm": True, ".expert_weights_scale": 2.5, ".expert_group_count": 4,
        ".expert_group_used_count": 2},
        dict(num_key_value_heads=H, head_dim=D, kv_lora_rank=16, qk_rope_head_dim=4, v_head_dim=8,
             qk_nope_head_dim=8, num_local_experts=16, moe_intermediate_size=16,
             num_experts_per_tok=2, n_group=4, topk_group=2, first_k_dense_replace=1,
             rms_norm_eps=1e-6, layer_types=["linear_attention", "full_attention"] * 2,
             rope_parameters=ROPE),
        [(r"self_attn\.q_proj\.", "attn_q."), (r"self_attn\.kv_a_proj_with_mqa\.",
                                               "attn_kv_a_mqa."),
         (r"self_attn\.kv_a_layernorm\.", "attn_kv_a_norm."),
         (r"(?:self_attn|linear_attn)\.forget_gate\.f_proj\.", "ssm_f_a."),
         (r"(?:self_attn|linear_attn)\.forget_gate\.dt_bias", "ssm_dt.bias"),
         (r"(?:self_attn|linear_attn)\.b_proj\.", "ssm_beta."),
         (r"(?:self_attn|linear_attn)\.o_norm\.", "ssm_norm."),
         (r"linear_attn\.([qkv])_proj\.", r"attn_\1."),
         (r"linear_attn\.o_proj\.", "attn_output.")], split=bailing),
    "modern-bert": Family("modern-bert", "ModernBertModel", {
        **LN, **rope(base=160000.0), ".attention.head_count_kv": None, ".attention.causal": False,
        ".attention.sliding_window": 8, ".attention.sliding_window_pattern": 2,
        ".rope.freq_base_swa": BASE},
        dict(num_key_value_heads=DROP, local_attention=8, cls_token_id=1, sep_token_id=2,
             layer_types=["full_attention", "sliding_attention"] * 2, rope_parameters={
                 "full_attention": dict(rope_type="default", rope_theta=160000.0),
                 "sliding_attention": dict(rope_type="default", rope_theta=BASE)}),
        [(r"(?:model\.)?embeddings\.tok_embeddings\.", "token_embd."),
         (r"(?:model\.)?embeddings\.norm\.", "token_embd_norm."),
         (r"final_norm\.", "output_norm."), (r"attn_norm\.", "attn_norm."),
         (r"attn\.Wqkv\.", "attn_qkv."), (r"attn\.Wo\.", "attn_output."),
         (r"mlp_norm\.", "ffn_norm."), (r"mlp\.Wi\.", "ffn_up."), (r"mlp\.Wo\.", "ffn_down.")],
        pooled=True),
    "gemma-embedding": Family("gemma-embedding", "Gemma3TextModel", {
        **RMS, **rope(base=20000.0), ".attention.key_length": D, ".attention.value_length": D,
        ".attention.sliding_window": 8, ".rope.freq_base_swa": BASE,
        ".attention.sliding_window_pattern": [True, True, True, False]},
        dict(head_dim=D, query_pre_attn_scalar=D, sliding_window=8, layer_types=WINDOWED,
             rms_norm_eps=1e-5, use_bidirectional_attention=True, rope_parameters={
                 "full_attention": dict(rope_type="default", rope_theta=20000.0),
                 "sliding_attention": dict(rope_type="default", rope_theta=BASE)}),
        GEMMA, centred=r"norm\.weight", pooled=True),

    # Families that the package has under another name: the same sums.
    "exaone": Family("exaone", "LlamaForCausalLM", {**RMS, **rope()},
                     dict(rope_parameters=ROPE, rms_norm_eps=1e-5)),
    "minicpm": Family("minicpm", "GraniteForCausalLM", {
        **RMS, **rope(), ".embedding_scale": 3.0, ".residual_scale": 0.6, ".logit_scale": 4.0},
        dict(rope_parameters=ROPE, rms_norm_eps=1e-5, embedding_multiplier=3.0,
             residual_multiplier=0.6, logits_scaling=4.0, attention_multiplier=D ** -0.5,
             tie_word_embeddings=True), by_pairs=True, tied=True),
    "codeshell": Family("codeshell", "Starcoder2ForCausalLM", {**LN, **rope()}, dict(
        rope_parameters=ROPE, norm_epsilon=1e-5, use_bias=True, sliding_window=None,
        hidden_act="gelu_pytorch_tanh", tie_word_embeddings=False),
        [(r"mlp\.c_fc\.", "ffn_up."), (r"mlp\.c_proj\.", "ffn_down.")]),
    "llada-moe": Family("llada-moe", "Qwen3MoeForCausalLM", {
        **RMS, **rope(), **moe(), ".attention.causal": False},
        dict(head_dim=D, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16,
             norm_topk_prob=False, decoder_sparse_step=1, rms_norm_eps=1e-5, rope_parameters=ROPE),
        causal=False),
    "bailingmoe2": Family("bailingmoe2", "Glm4MoeForCausalLM", {
        **RMS, **rope(4), **moe(), ".leading_dense_block_count": 1, ".expert_shared_count": 2,
        ".expert_shared_feed_forward_length": 16, ".expert_gating_func": 2,
        ".expert_weights_norm": True, ".expert_weights_scale": 2.5, ".expert_group_count": 4,
        ".expert_group_used_count": 2},
        dict(head_dim=D, use_qk_norm=True, n_routed_experts=8, n_shared_experts=2,
             num_experts_per_tok=2, moe_intermediate_size=16, first_k_dense_replace=1, n_group=4,
             topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5, rms_norm_eps=1e-5,
             rope_parameters=PARTIAL, attention_bias=False), finish=fused),

    # What these do by their number of layers.
    "gemma2-27b": Family("gemma2", "Gemma2ForCausalLM", {
        **RMS, **rope(16), ".block_count": 46, ".attention.key_length": 16,
        ".attention.value_length": 16, ".attention.sliding_window": 8,
        ".attn_logit_softcapping": 5.0, ".final_logit_softcapping": 3.0},
        dict(num_hidden_layers=46, head_dim=16, query_pre_attn_scalar=E // H, sliding_window=8,
             layer_types=["sliding_attention", "full_attention"] * 23, rms_norm_eps=1e-5,
             attn_logit_softcapping=5.0, final_logit_softcapping=3.0, rope_parameters=ROPE),
        GEMMA, centred=r"norm\.weight", tied=True),
    "gemma3-27b": Family("gemma3", "Gemma3ForCausalLM", {
        **RMS, **rope(16), ".block_count": 62, ".attention.key_length": 16,
        ".attention.value_length": 16, ".attention.sliding_window": 8,
        ".rope.freq_base_swa": 700.0, ".rope.scaling.type": "linear", ".rope.scaling.factor": 8.0},
        dict(num_hidden_layers=62, head_dim=16, query_pre_attn_scalar=E // H, sliding_window=8,
             layer_types=[("full" if i % 6 == 5 else "sliding") + "_attention" for i in range(62)],
             rms_norm_eps=1e-5, rope_parameters={
                 "full_attention": dict(rope_type="linear", factor=8.0, rope_theta=BASE),
                 "sliding_attention": dict(rope_type="default", rope_theta=700.0)}),
        GEMMA, centred=r"norm\.weight", tied=True),
    "gemma3-full": Family("gemma3", "Gemma3ForCausalLM", {
        **RMS, **rope(), ".attention.key_length": D, ".attention.value_length": D,
        ".rope.freq_base_swa": 700.0, ".rope.scaling.type": "linear", ".rope.scaling.factor": 8.0},
        dict(head_dim=D, query_pre_attn_scalar=D, layer_types=["full_attention"] * L,
             rms_norm_eps=1e-5, rope_parameters={
                 "full_attention": dict(rope_type="linear", factor=8.0, rope_theta=BASE),
                 "sliding_attention": dict(rope_type="default", rope_theta=700.0)}),
        GEMMA, centred=r"norm\.weight", tied=True),
    "lfm2": Family("lfm2", "Lfm2Model", {
        **RMS, **rope(), ".attention.head_count_kv": [0, G, 0, G], ".shortconv.l_cache": 3,
        ".pooling_type": 1},
        dict(layer_types=["conv", "full_attention"] * 2, conv_L_cache=3, conv_bias=False,
             norm_eps=1e-5, block_auto_adjust_ff_dim=False, rope_parameters=ROPE),
        [(r"(?:model\.)?embedding_norm\.", "token_embd_norm."), (r"operator_norm\.", "attn_norm."),
         (r"self_attn\.out_proj\.", "attn_output."), (r"conv\.in_proj\.", "shortconv.in_proj."),
         (r"conv\.out_proj\.", "shortconv.out_proj."), (r"feed_forward\.w1\.", "ffn_gate."),
         (r"feed_forward\.w2\.", "ffn_down."), (r"feed_forward\.w3\.", "ffn_up."),
         (r"ffn_norm\.", "ffn_norm.")],
        split=lambda name, x: {"blk.%s.shortconv.conv.weight" % name.split(".")[1]: x[:, 0]}
        if name.endswith("conv.conv.weight") else None, pooled=True),
    "exaone4-32b": Family("exaone4", "Exaone4ForCausalLM", {
        **RMS, **rope(), ".block_count": 64, ".attention.sliding_window": 8},
        dict(num_hidden_layers=64, sliding_window=8, layer_types=WINDOWED * 16, rms_norm_eps=1e-5,
             rope_parameters=ROPE), [
        (r"post_attention_layernorm\.", "post_attention_norm."),
        (r"post_feedforward_layernorm\.", "post_ffw_norm.")]),
    "deepseek2-lite": Family("deepseek2", "DeepseekV2ForCausalLM", {
        **rope(4), ".attention.layer_norm_rms_epsilon": 1e-6,
        **moe(), ".block_count": 27, ".attention.head_count_kv": 1,
        ".attention.kv_lora_rank": 16, ".attention.key_length": 20, ".attention.value_length": 16,
        ".attention.key_length_mla": 12, ".attention.value_length_mla": 8,
        ".leading_dense_block_count": 1, ".expert_shared_count": 2, ".expert_weights_scale": 1.5,
        ".expert_gating_func": 1},
        dict(num_hidden_layers=27, num_key_value_heads=H, q_lora_rank=None, kv_lora_rank=16,
             qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8, n_routed_experts=8,
             n_shared_experts=2, num_experts_per_tok=2, moe_intermediate_size=16,
             first_k_dense_replace=1, topk_method="greedy", routed_scaling_factor=1.5,
             norm_topk_prob=False, rms_norm_eps=1e-6, rope_parameters=ROPE),
        [(r"self_attn\.kv_a_proj_with_mqa\.", "attn_kv_a_mqa."),
         (r"self_attn\.kv_a_layernorm\.", "attn_kv_a_norm.")], split=bailing),
    "falcon-h1-bias": Family("falcon-h1", "FalconH1ForCausalLM", {
        **RMS, **rope(), ".ssm.conv_kernel": 4, ".ssm.inner_size": E, ".ssm.state_size": D,
        ".ssm.time_step_rank": H, ".ssm.group_count": 1},
        dict(mamba_d_ssm=E, mamba_n_heads=H, mamba_d_head=D, mamba_d_state=D, mamba_n_groups=1,
             mlp_bias=True, rope_parameters=ROPE), FALCON,
        finish=lambda o: unused(falcon(o, {}, 1))),
    "command-r-plus": Family("command-r", "CohereForCausalLM", {
        **LN, **rope(), ".block_count": 64, ".logit_scale": 0.25},
        dict(num_hidden_layers=64, rope_parameters=ROPE, logit_scale=0.25, use_qk_norm=True),
        tied=True),
    "llama4-128": Family("llama4", "Llama4ForCausalLM", {
        **RMS, **rope(), **moe(128, 1), ".interleave_moe_layer_step": 2,
        ".attention.sliding_window": 8192, ".feed_forward_length": 40},
        dict(head_dim=D, num_local_experts=128, num_experts_per_tok=1, intermediate_size=16,
             intermediate_size_mlp=40, interleave_moe_layer_step=2, use_qk_norm=False,
             rms_norm_eps=1e-5, attention_chunk_size=8192, rope_parameters=ROPE),
        [(r"feed_forward\.(gate|up|down)_proj\.", r"ffn_\1."),
         (r"feed_forward\.router\.", "ffn_gate_inp."),
         (r"feed_forward\.shared_expert\.(gate|up|down)_proj\.", r"ffn_\1_shexp.")],
        split=llama4),
    "hy_v4": Family("hy_v4", "HYV4ForCausalLM", {
        **rope(4), **moe(), ".attention.layer_norm_rms_epsilon": 1e-6,
        ".attention.head_count_kv": 1, ".attention.q_lora_rank": 20,
        ".attention.kv_lora_rank": 16, ".attention.key_length": 20, ".attention.value_length": 16,
        ".attention.key_length_mla": 12, ".attention.value_length_mla": 8,
        ".leading_dense_block_count": 1, ".expert_shared_count": 1, ".expert_weights_scale": 1.5,
        ".expert_weights_norm": True, ".expert_gating_func": 2, ".swiglu_clamp_exp": 0.5,
        ".hyper_connection.count": 2, ".hyper_connection.epsilon": 1e-6,
        ".hyper_connection.magnitude": 2.0, ".attention.indexer.head_count": 8,
        ".attention.indexer.key_length": 8, ".attention.indexer.top_k": 6,
        ".attention.indexer.types": [1, 1, 0, 0]},
        dict(num_key_value_heads=H, head_dim=D, moe_intermediate_size=16, n_routed_experts=8,
             num_experts_per_tok=2, q_lora_rank=20, kv_lora_rank=16, qk_nope_head_dim=8,
             qk_rope_head_dim=4, v_head_dim=8, index_topk=6, index_head_dim=8, index_n_heads=8,
             hc_mult=2, hc_magnitude=2.0, hc_eps=1e-6, routed_scaling_factor=1.5, swiglu_limit=0.5,
             rms_norm_eps=1e-6, rope_parameters=ROPE),
        [(r"self_attn\.q_a_proj\.", "attn_q_a."), (r"self_attn\.q_a_layernorm\.", "attn_q_a_norm."),
         (r"self_attn\.q_b_proj\.", "attn_q_b."),
         (r"self_attn\.kv_a_proj_with_mqa\.", "attn_kv_a_mqa."),
         (r"self_attn\.kv_a_layernorm\.", "attn_kv_a_norm."),
         (r"self_attn\.gate_proj\.", "attn_gate."),
         (r"self_attn\.indexer\.wq_b\.", "indexer.attn_q_b."),
         (r"self_attn\.indexer\.wk\.", "indexer.attn_k."),
         (r"self_attn\.indexer\.k_norm\.", "indexer.k_norm."),
         (r"self_attn\.indexer\.weights_proj\.", "indexer.proj."),
         (r"(attn|ffn)_hc\.(fn|base|scale)", r"hc_\1_\2.weight"),
         (r"model\.hc_head\.hc_(fn|base|scale)", r"output_hc_\1.weight")],
        split=bailing, finish=hunyuan),
}
