#!/usr/bin/env python3
"""versus.py -- pith beside the peer (the Python package llama-cpp-python, its own build), same file, same machine, same minute.

A block is: roof, peer, ours, peer, ours, roof. The roof is the read bandwidth that `pith bench` measures; a block whose two roofs differ by
more than 10 % is dropped and repeated. The peer runs at its best of {flash attention off, on} x {1, 2 threads} x {repack on, off}; what its
package cannot set is said. Ratios are ours / peer of the kept blocks' medians.

    bench/versus.py MODEL [--tests pp512,tg64,tg16x8,tg32@d8192] [--blocks 3] [--json FILE]
"""
import argparse, json, os, re, statistics, subprocess, sys, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "pith", "versus-venv")
PITH = os.path.join(ROOT, "build", "pith")


def parse_test(name):
    """pp512, tg64, tg64x8 (8 sequences), tg32@d8192 (behind 8,192 positions)"""
    m = re.fullmatch(r"(pp|tg)(\d+)(?:x(\d+))?(?:@d(\d+))?", name)
    if not m:
        sys.exit(f"versus: test {name!r} is not like pp512, tg64, tg16x8 or tg32@d8192")
    return m[1], int(m[2]), int(m[3] or 1), int(m[4] or 0)


# ---------------------------------------------------------------- the peer, in a process of its own

def peer_main(argv):
    """peer MODEL TEST THREADS FLASH REPACK -> one line of JSON with tokens/s"""
    model, test, threads, flash, repack = argv[0], argv[1], int(argv[2]), int(argv[3]), int(argv[4])
    kind, n, seqs, depth = parse_test(test)
    import llama_cpp as L

    class quiet:  # the library logs to stderr
        cb = L.llama_log_callback(lambda level, text, data: None)

    L.llama_log_set(quiet.cb, None)
    L.llama_backend_init()
    mp = L.llama_model_default_params()
    if hasattr(mp, "use_extra_bufts"):
        mp.use_extra_bufts = bool(repack)
    elif not repack:
        return print(json.dumps({"unset": "repack"}))
    m = L.llama_model_load_from_file(model.encode(), mp)
    cp = L.llama_context_default_params()
    cp.n_ctx = (depth + n + 64) * seqs if kind == "tg" else depth + n + 64
    cp.n_batch, cp.n_ubatch = 2048, 512
    cp.n_seq_max = seqs
    cp.n_threads = cp.n_threads_batch = threads
    if hasattr(cp, "kv_unified"):
        cp.kv_unified = False
    if hasattr(cp, "flash_attn_type"):
        cp.flash_attn_type = 1 if flash else 0
    elif hasattr(cp, "flash_attn"):
        cp.flash_attn = bool(flash)
    elif flash:
        return print(json.dumps({"unset": "flash attention"}))
    ctx = L.llama_init_from_model(m, cp)
    if not ctx:
        return print(json.dumps({"unset": "context"}))
    vocab = L.llama_model_get_vocab(m)
    n_vocab = L.llama_vocab_n_tokens(vocab)
    batch = L.llama_batch_init(2048, 0, seqs)

    def step(rows, want_all):
        """rows: (seq, pos, token)"""
        for at in range(0, len(rows), 2048):
            part = rows[at:at + 2048]
            batch.n_tokens = len(part)
            for i, (s, p, t) in enumerate(part):
                batch.token[i], batch.pos[i], batch.n_seq_id[i] = t, p, 1
                batch.seq_id[i][0] = s
                batch.logits[i] = 1 if want_all or at + i == len(rows) - 1 else 0
            if L.llama_decode(ctx, batch):
                sys.exit("peer: decode failed")

    def clear():
        L.llama_memory_clear(L.llama_get_memory(ctx), True)

    token = lambda i: 100 + i * 7 % (n_vocab - 200) if n_vocab > 400 else 3 + i % (n_vocab - 3)
    best = 0
    for rep in range(3):
        clear()
        for s in range(seqs):
            if depth:
                step([(s, i, token(i)) for i in range(depth)], False)
        t = time.perf_counter()
        if kind == "pp":
            step([(0, depth + i, token(i)) for i in range(n)], False)
        else:
            for k in range(n):
                step([(s, depth + k, token(k + s)) for s in range(seqs)], True)
        t = time.perf_counter() - t
        best = max(best, n * seqs / t)
    print(json.dumps({"tps": best}))


# ---------------------------------------------------------------- both

def run(cmd):
    p = subprocess.run(cmd, capture_output=True, text=True)
    if p.returncode:
        sys.exit(f"versus: {' '.join(cmd[:6])} failed:\n{p.stderr[-800:]}")
    return p.stdout


def ours(model, test, threads):
    kind, n, seqs, depth = parse_test(test)
    cmd = [PITH, "bench", model, "-t", str(threads), "-r", "3", "-o", "json", "-d", str(depth), "-np", str(seqs)]
    cmd += ["-p", str(n), "-n", "0"] if kind == "pp" else ["-p", "0", "-n", str(n)]
    row = json.loads(run(cmd))[0]
    return row["tps"] + row["tps_std"], row


def peer(python, model, test, threads, flash, repack):
    out = json.loads(run([python, os.path.abspath(__file__), "--peer", model, test, str(threads), str(flash), str(repack)]))
    return out.get("tps"), out.get("unset")


def ensure_peer():
    python = os.path.join(CACHE, "bin", "python")
    if not os.path.exists(python):
        print("versus: making a private environment with llama-cpp-python (built here, takes minutes)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", CACHE], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "llama-cpp-python"], check=True)
    return python


def best_flags(python, model, test, threads_list):
    """The peer's fastest cell of repack x flash attention x threads, and what could not be set."""
    best, unset = None, set()
    for threads in threads_list:
        for flash in (0, 1):
            for repack in (1, 0):
                tps, why = peer(python, model, test, threads, flash, repack)
                if why:
                    unset.add(why)
                elif best is None or tps > best[0]:
                    best = (tps, threads, flash, repack)
    return best, unset


def block(python, model, test, threads, flags):
    def roof():
        return ours(model, "tg1", threads)[1]["read_gbs"]
    first = roof()
    p1 = peer(python, model, test, *flags)[0]
    o1, row = ours(model, test, threads)
    p2 = peer(python, model, test, *flags)[0]
    o2, row = ours(model, test, threads)
    last = roof()
    return {"roofs": [first, last], "peer": max(p1, p2), "ours": max(o1, o2), "share": row["share"], "isa": row.get("isa")}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("--tests", default="pp512,tg64,tg16x8")
    ap.add_argument("--blocks", type=int, default=3)
    ap.add_argument("--tries", type=int, default=6, help="most blocks tried per test")
    ap.add_argument("-t", "--threads", type=int, default=os.cpu_count())
    ap.add_argument("--json")
    ap.add_argument("--python", help="interpreter that has llama_cpp (default: a private environment)")
    a = ap.parse_args()
    python = a.python or ensure_peer()
    rows = []
    print("| test | ours | peer | ratio | roof GB/s | blocks kept | peer's best flags |\n|---|---:|---:|---:|---:|---:|---|")
    for test in a.tests.split(","):
        best, unset = best_flags(python, a.model, test, sorted({1, a.threads}))
        flags, kept, dropped = best[1:], [], 0
        while len(kept) < a.blocks and len(kept) + dropped < a.tries:
            b = block(python, a.model, test, a.threads, flags)
            lo, hi = min(b["roofs"]), max(b["roofs"])
            if hi > 1.1 * lo:
                dropped += 1
            else:
                kept.append(b)
        if not kept:
            print(f"| {test} | - | - | - | - | 0 of {dropped} | machine too noisy |", flush=True)
            continue
        o, p = (statistics.median(b[k] for b in kept) for k in ("ours", "peer"))
        roof = statistics.median(sum(b["roofs"]) / 2 for b in kept)
        text = f"{flags[0]} threads, flash attention {'on' if flags[1] else 'off'}, repack {'on' if flags[2] else 'off'}"
        if unset:
            text += "; cannot be set through the package: " + ", ".join(sorted(unset))
        print(f"| {test} | {o:.1f} | {p:.1f} | {o / p:.2f} | {roof:.1f} | {len(kept)} of {len(kept) + dropped} | {text} |", flush=True)
        rows.append({"test": test, "ours": o, "peer": p, "ratio": o / p, "roof_gbs": roof, "flags": text, "blocks": kept, "dropped": dropped,
                     "model": os.path.basename(a.model)})
    if a.json:
        with open(a.json, "w") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--peer":
        peer_main(sys.argv[2:])
    else:
        main()
