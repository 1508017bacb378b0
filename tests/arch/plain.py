"""plain.py -- what models are made of, in plain numpy and float64: for second implementations of
architectures, which nobody wrote with an eye on src/arch. x are rows [T, width], w are weights."""
import numpy as np


def rms(x, w=1.0, eps=1e-5):
    return w * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def layer_norm(x, w=1.0, b=0.0, eps=1e-5):
    x = x - x.mean(-1, keepdims=True)
    return w * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) + b


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def relu(x):
    return np.maximum(x, 0)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def heads(x, n):
    """[T, n, D]"""
    return x.reshape(len(x), n, -1)


def rope(x, base, dims=None, pairs=False, speed=1.0, factors=1.0, first=0, size=1.0):
    """x [T, H, D]; dims of each head turn, from `first` on: by pairs or by halves. speed: one for
    all, or one for each of dims / 2."""
    dims = dims or x.shape[-1]
    angle = np.arange(len(x))[:, None] * base ** (-np.arange(0, dims, 2) / dims) * speed / factors
    c, s = size * np.cos(angle)[:, None], size * np.sin(angle)[:, None]
    part = x[..., first:first + dims]
    a, b = (part[..., 0::2], part[..., 1::2]) if pairs else np.split(part, 2, -1)
    turned = np.empty_like(part)
    if pairs:
        turned[..., 0::2], turned[..., 1::2] = a * c - b * s, b * c + a * s
    else:
        turned[...] = np.concatenate([a * c - b * s, b * c + a * s], -1)
    return np.concatenate([x[..., :first], turned, x[..., first + dims:]], -1)


def yarn(base, dims, factor, trained, fast=32, slow=1):
    """speed and size for rope(), arXiv:2309.00071."""
    def dim(turns):
        return dims * np.log(trained / (2 * np.pi * turns)) / (2 * np.log(base))
    low, high = max(0, np.floor(dim(fast))), min(dims - 1, np.ceil(dim(slow)))
    ramp = 1 - np.clip((np.arange(dims // 2) - low) / max(0.001, high - low), 0, 1)
    return dict(speed=(1 - ramp) / factor + ramp, size=1 + 0.1 * np.log(factor))


def attend(q, k, v, scale=None, causal=True, window=0,
           around=0, slopes=None, cap=0.0):
    """q [T, H, D], k [T, G, D], v [T, G, Dv]: [T, H Dv]. slopes: of each head, for ALiBi."""
    n, count = len(q), q.shape[1]
    share = count // k.shape[1]
    i, j = np.arange(n)[:, None], np.arange(n)[None]
    seen = np.ones((n, n), bool)
    if causal:
        seen &= j <= i
    if window:
        seen &= i - j < window
    if around:
        seen &= np.abs(i - j) <= around // 2
    out = []
    for h in range(count):
        s = q[:, h] @ k[:, h // share].T * (q.shape[-1] ** -0.5 if scale is None else scale)
        if cap:
            s = cap * np.tanh(s / cap)
        if slopes is not None:
            s = s - slopes[h] * np.abs(i - j)
        out.append(softmax(np.where(seen, s, -np.inf)) @ v[:, h // share])
    return np.concatenate(out, -1)


def alibi(count, most=8.0):
    n = 1 << (count.bit_length() - 1)
    return [2 ** (-most * (h + 1) / n) if h < n else 2 ** (-most / 2 * (2 * (h - n) + 1) / n)
            for h in range(count)]


def gated(x, gate, up, down, act=silu):
    return (act(x @ gate.T) * (x @ up.T)) @ down.T


def experts(x, p, chosen, w, kind="exps", act=silu, renorm=True, weigh=None):
    """The sum of chosen [T, K] experts; their weights are p at `weigh`, without it at `chosen`."""
    out = np.zeros_like(x)
    for t in range(len(x)):
        weights = p[t][(chosen if weigh is None else weigh)[t]]
        if renorm:
            weights = weights / max(weights.sum(), 2.0 ** -14)
        for e, by in zip(chosen[t], weights):
            up, down = w["ffn_up_" + kind][e], w["ffn_down_" + kind][e]
            out[t] += by * (gated(x[t], w["ffn_gate_" + kind][e], up, down, act)
                            if "ffn_gate_" + kind in w else act(x[t] @ up.T) @ down.T)
    return out


def best(p, k, groups=None):
    """Columns of each row. groups: (count, used): those of the best groups alone, which are worth
    their two best columns."""
    if groups:
        parts = p.reshape(len(p), groups[0], -1)
        stay = np.zeros(parts.shape[:2], bool)
        np.put_along_axis(stay, best(np.sort(parts, -1)[..., -2:].sum(-1), groups[1]), True, -1)
        p = np.where(stay[..., None], parts, -np.inf).reshape(p.shape)
    return np.argsort(-p, -1, kind="stable")[:, :k]
