#!/usr/bin/env python3
"""versus.py -- pith beside the peer (the Python package llama-cpp-python, its own build), same
file, same machine, same minute.

    bench/versus.py MODEL... [--tests tg64,pp512,tg16x4,tg16x8,tg32@d8192,pp8192] [--blocks 3]
        [--out build/versus]

A test is a *cell* of a model: pp512 (prefill), tg64 (decode), tg16x8 (8 sequences side by side),
tg32@d8192 (behind 8,192 positions). First the peer's best setting of {repack on, off} x {flash
attention off, on} x {1, all threads} is looked for with a quarter of the tokens; then come blocks
of

    roof, peer, ours, peer, ours, roof

Both programs are open all the while and take turns, since the memory of a shared machine may change
its speed every few seconds: ours is build/bench/turns/turn (`make build/bench/turns/turn`), which
measures the roof, too. A block whose two roofs (bandwidth of reads) differ by more than 10 % is
dropped and repeated. Figures are the median of the kept blocks, a ratio is that of the blocks'
ratios, ours / peer; beside it and the share stand their least and most. What the machine allows for
a test is asked of `pith bench`, then scaled to the roofs of the block. Of a cell that kept none,
the range of what was dropped stands in brackets. Steal is the share of the processors' time that
the host gave to others. Beside the ratio stands what the peer's fastest fork published for a type
(FORK), and ours / fork: other machines, so a hint.

Everything is kept in OUT/results.json after each block, and a later call goes on from there: cells
that have their blocks are not run again (--again starts them anew). OUT/results.md and
OUT/results.png are made from it at the end (--report makes them alone). The plot has a bar for
each cell: hatched where no block was kept, a cross where there is no figure. For long cells (8,192
tokens or more) repack and threads are those of the short cell of the same kind and only flash
attention is looked for.

--avx2 is for the table of AVX2 alone: ours runs with PITH_CPU=avx2, and the peer is built without
AVX-512 (AVX2_BUILD) into an environment of its own. Its cells should have an --out of their own.

--busy is for a machine that others use, too: one thread on both sides, tokens per second of its
processor time, and roofs need not be alike. Its cells should have an --out of their own.

The peer lives in a private environment (--venv), made on the first call; building it takes
minutes."""
import argparse, datetime, json, os, re, statistics, subprocess, sys, tempfile, threading, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "pith",
                    "versus-venv")
TESTS = "tg64,pp512,tg16x4,tg16x8,tg32@d8192,pp8192"
# The peer's fastest fork, ik_llama.cpp, over the peer, from its own table ("Latest CPU performance
# comparison with llama.cpp", discussion 164 of its repository, December 2024): AVX2 on a Ryzen
# 7950X, an 8B model, prefill of 512 with 16 threads, decode with 2.
FORK = {"bf16": (3.269, 1.054), "q8_0": (1.813, 1.541), "q5_0": (2.249, 2.102),
        "q4_0": (1.782, 1.150), "q2_k": (2.206, 1.509), "q3_k": (2.997, 1.476),
        "q4_k": (2.487, 1.409), "q5_k": (3.372, 1.519), "q6_k": (3.140, 1.319),
        "iq4_nl": (2.155, 1.560), "iq4_xs": (3.628, 1.666), "iq2_xxs": (3.590, 1.598),
        "iq2_xs": (3.148, 1.170), "iq2_m": (4.147, 1.063), "iq3_xxs": (4.380, 1.490),
        "iq3_s": (5.181, 1.205)}
AVX2_BUILD = "-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON"
LONG = 2048  # tokens from which a cell is too slow to look for all settings
ROOF_SLACK = 1.10
PEER_BATCH = 2048
PAUSE_S = 0.05  # threads of one side may spin for a while after a turn


class Failed(Exception):
    pass


def parse_test(name):
    m = re.fullmatch(r"(pp|tg)(\d+)(?:x(\d+))?(?:@d(\d+))?", name)
    if not m or int(m[2]) == 0:
        sys.exit(f"versus: test {name!r} is not like pp512, tg64, tg16x8 or tg32@d8192")
    return m[1], int(m[2]), int(m[3] or 1), int(m[4] or 0)


def is_long(test):
    kind, n, seqs, depth = parse_test(test)
    return max(n if kind == "pp" else 0, depth) * seqs > LONG


# ---------------------------------------------------------------- the peer, in a process of its own

def peer_open(L, model, seqs, n_ctx, threads, flash, repack):
    """Model and context; what the package cannot set is told by a KeyError with its name."""
    mp = L.llama_model_default_params()
    if hasattr(mp, "use_extra_bufts"):
        mp.use_extra_bufts = bool(repack)
    elif not repack:
        raise KeyError("repack")
    cp = L.llama_context_default_params()
    cp.n_ctx, cp.n_batch, cp.n_ubatch, cp.n_seq_max = n_ctx * seqs, PEER_BATCH, 512, seqs
    cp.n_threads = cp.n_threads_batch = threads
    if hasattr(cp, "kv_unified"):
        cp.kv_unified = False
    if hasattr(cp, "flash_attn_type"):
        cp.flash_attn_type = 1 if flash else 0
    elif hasattr(cp, "flash_attn"):
        cp.flash_attn = bool(flash)
    elif flash:
        raise KeyError("flash attention")
    m = L.llama_model_load_from_file(model.encode(), mp)
    ctx = L.llama_init_from_model(m, cp) if m else None
    if not ctx:
        sys.exit("peer: cannot open the model")
    return m, ctx


def peer_main(model, test, threads, flash, repack):
    """As bench/turns/turn.c: "ready", or what cannot be set; then a turn for each line."""
    kind, n, seqs, depth = parse_test(test)
    import llama_cpp as L

    log = L.llama_log_callback(lambda level, text, data: None)  # it logs to stderr
    L.llama_log_set(log, None)
    L.llama_backend_init()
    try:
        m, ctx = peer_open(L, model, seqs, depth + n + 64, threads, flash, repack)
    except KeyError as e:
        return print(f"unset {e.args[0]}")
    n_vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(m))
    memory = L.llama_get_memory(ctx)
    batch = L.llama_batch_init(PEER_BATCH, 0, seqs)

    def token(i):
        return 100 + i * 7 % (n_vocab - 200) if n_vocab > 400 else 3 + i % (n_vocab - 3)

    def step(rows, want_all):
        for at in range(0, len(rows), PEER_BATCH):
            part = rows[at:at + PEER_BATCH]
            batch.n_tokens = len(part)
            for i, (s, p, t) in enumerate(part):
                batch.token[i], batch.pos[i], batch.n_seq_id[i] = t, p, 1
                batch.seq_id[i][0] = s
                batch.logits[i] = 1 if want_all or at + i == len(rows) - 1 else 0
            if L.llama_decode(ctx, batch):
                sys.exit("peer: decode failed")

    def work(n_tokens):
        if kind == "pp":
            step([(s, depth + i, token(i)) for s in range(seqs) for i in range(n_tokens)], False)
        else:
            for k in range(n_tokens):
                step([(s, depth + k, token(k + s)) for s in range(seqs)], True)

    def rewind():
        """To the depth; a cache that cannot be cut (windows) is filled anew."""
        if depth and all(L.llama_memory_seq_rm(memory, s, depth, -1) for s in range(seqs)):
            return
        L.llama_memory_clear(memory, True)
        for s in range(seqs if depth else 0):
            step([(s, i, token(i)) for i in range(depth)], False)

    L.llama_memory_clear(memory, True)
    for s in range(seqs if depth else 0):
        step([(s, i, token(i)) for i in range(depth)], False)
    work(min(n, 512 if kind == "pp" else 8))  # warm-up
    rewind()
    print("ready", flush=True)
    for _ in sys.stdin:
        began, worked = time.perf_counter_ns(), time.process_time_ns()
        work(n)
        print(time.perf_counter_ns() - began, time.process_time_ns() - worked, flush=True)
        rewind()


# ---------------------------------------------------------------- running both

def run(cmd, limit_s):
    try:
        p = subprocess.run([str(x) for x in cmd], capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise Failed(f"over {limit_s} s")
    if p.returncode:
        raise Failed(f"status {p.returncode}: {p.stderr.strip()[-300:]}")
    return p.stdout


def ticks():
    """Of all processors since the start, by /proc/stat: the host's for others, all."""
    with open("/proc/stat") as f:
        n = [int(x) for x in f.readline().split()[1:9]]
    return n[7], sum(n)


class Held:
    """A program that is open and waits for turns: bench/turns/turn, or the peer in peer_main."""

    def __init__(self, args, limit_s=1800):
        self.limit_s, self.errors = limit_s, tempfile.TemporaryFile("w+")
        self.p = subprocess.Popen([str(x) for x in args], stdin=subprocess.PIPE, text=True,
                                  stdout=subprocess.PIPE, stderr=self.errors)
        self.first = self.line()

    def line(self):
        stop = threading.Timer(self.limit_s, self.p.kill)
        stop.start()
        text = self.p.stdout.readline()
        stop.cancel()
        if text:
            return text.strip()
        status = self.p.wait()
        self.errors.seek(0)
        raise Failed(f"{os.path.basename(self.p.args[0])}: status {status}: "
                     f"{self.errors.read().strip()[-300:]}")

    def ask(self, what=""):
        try:
            self.p.stdin.write(what + "\n")
            self.p.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, and line() says how
        return [float(x) for x in self.line().split()]

    def close(self):
        try:
            self.p.stdin.close()
        except BrokenPipeError:
            pass
        self.p.wait()
        self.p.stdout.close()
        self.errors.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Runner:
    def __init__(self, a):
        self.a = a
        self.python = a.python or os.path.join(a.venv, "bin", "python")
        self.unset = set()

    def limits(self, model, test):
        """Tokens/s for each unit of a roof, as pith bench has it, and which of turn's three."""
        kind, n, seqs, depth = parse_test(test)
        counts = ["-p", n, "-n", 0] if kind == "pp" else ["-p", 0, "-n", 4]
        rows = json.loads(run([self.a.pith, "bench", model, "-t", self.a.threads, "--repeat", 1,
                               "-d", depth, "-np",
                               seqs if kind == "pp" or seqs == 1 else f"1,{seqs}",
                               *counts, "--json"], self.a.limit))
        row, one = rows[-1], rows[0]
        by = 0
        if kind == "pp" or row["limit_tps"] < 0.97 * seqs * one["limit_tps"]:
            by = 2 if row["type"] in ("f16", "bf16", "f32") else 1
        return row["limit_tps"] / row[("read_gbs", "int8_gops", "f32_gops")[by]], by

    def ours(self, model, test):
        kind, n, seqs, depth = parse_test(test)
        work = [n, 0] if kind == "pp" else [0, n]
        side = Held([self.a.turn, model, self.a.threads, seqs, depth, *work], self.a.limit)
        side.ask()  # warm-up
        return side

    def peer(self, model, test, flags):
        side = Held([self.python, os.path.abspath(__file__), "--peer", model, test, *flags],
                    self.a.limit)
        if side.first == "ready":
            return side
        side.close()
        what = side.first.removeprefix("unset ")
        self.unset.add(what)
        raise Failed(f"{what} cannot be set through the package")

    def speed(self, side, test):
        """Tokens/s, the mean of the repeats; of processor time when others are busy, too."""
        kind, n, seqs, _ = parse_test(test)
        return statistics.mean(1e9 * n * seqs / side.ask()[self.a.busy]
                               for _ in range(self.a.reps))

    def best_flags(self, model, test, short):
        """The peer's fastest (threads, flash attention, repack). short: the flags of the short cell
        of this kind, when this one is long."""
        counts = {int(t) for t in self.a.peer_threads.split(",")} if self.a.peer_threads else {1,
                self.a.threads}
        rows = [(t, f, r) for t in sorted(counts) for f in (0, 1) for r in (1, 0)]
        if short:
            rows = [(short[0], f, short[2]) for f in (0, 1)]
        kind, n, seqs, depth = parse_test(test)
        # a quarter is enough to choose by
        test = f"{kind}{max(16, n // 4)}x{seqs}@d{depth}" if n > 16 else test
        tried = {}
        for flags in rows:
            try:
                with self.peer(model, test, flags) as side:
                    tried[flags] = self.speed(side, test)
            except Failed as e:
                say(f"  peer with {flags_text(flags)}: {e}")
        if not tried:
            raise Failed("the peer ran with no setting")
        return max(tried, key=tried.get), {flags_text(k): v for k, v in tried.items()}

    def block(self, test, ours, peer, limits):
        began = ticks()
        first = ours.ask("roof")
        p, o = [], []
        for _ in range(2):
            p.append(self.speed(peer, test))
            time.sleep(PAUSE_S)
            o.append(self.speed(ours, test))
            time.sleep(PAUSE_S)
        last = ours.ask("roof")
        stolen, all_ticks = (b - a for a, b in zip(began, ticks()))
        per, by = limits
        return {"roofs": [first[0], last[0]], "steal": stolen / max(1, all_ticks),
                "peer": statistics.mean(p), "ours": statistics.mean(o),
                "runs": {"peer": p, "ours": o},
                "share": statistics.mean(o) / (per * (first[by] + last[by]) / 2),
                "int8_gops": statistics.mean((first[1], last[1]))}


def flags_text(flags):
    return (f"{flags[0]} threads, flash attention {'on' if flags[1] else 'off'}, repack "
            f"{'on' if flags[2] else 'off'}")


def say(text):
    print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- results

def load(path):
    try:
        with open(path) as f:
            data = json.load(f)
        return data if isinstance(data.get("cells"), dict) else {"cells": {}}
    except FileNotFoundError:
        return {"cells": {}}
    except (ValueError, AttributeError) as e:
        sys.exit(f"versus: {path} is damaged ({e}); move it away")


def save(path, data):
    with open(path + ".tmp", "w") as f:
        json.dump(data, f, indent=1)
    os.replace(path + ".tmp", path)


def summary(cell):
    """Medians of the kept blocks, or of the dropped ones ("kept" is False); None: no block ran."""
    kept = cell.get("blocks") or cell.get("lost")
    if not kept:
        return None
    ratios = [b["ours"] / b["peer"] if b["peer"] else 0 for b in kept]
    shares = [100 * b["share"] for b in kept]
    return {"ours": statistics.median(b["ours"] for b in kept),
            "peer": statistics.median(b["peer"] for b in kept),
            "ratio": statistics.median(ratios), "ratios": spread(ratios, "{:.2f}"),
            "kept": bool(cell.get("blocks")),
            "roof": statistics.median(sum(b["roofs"]) / 2 for b in kept),
            "steal": [b["steal"] for b in kept if "steal" in b],
            "share": statistics.median(shares), "shares": spread(shares, "{:.0f}")}


def spread(values, form="{:.1f}"):
    """Least and most."""
    least, most = (form.format(f(values)) for f in (min, max))
    return least if least == most else f"{least} to {most}"


def fork_ratio(model, test):
    """What the fork's own table says for the type in a model's name; None: it has no such cell, or
    the model is a mixture of types: a small Q4_K_M is mostly q8_0 and q5_0."""
    kind, _, seqs, depth = parse_test(test)
    if re.search("_k_[ml]", model.lower()):
        return None
    types = re.findall("|".join(sorted(FORK, key=len, reverse=True)), model.lower())
    return FORK[types[-1]][kind == "tg"] if types and seqs == 1 and not depth else None


def markdown(data):
    lines = [f"{data.get('machine', '')}; pith {data.get('commit', '')}, llama-cpp-python "
             f"{data.get('peer', '')}; tokens/s", "",
             "| model | test | ours | peer | ratio | its fork's | ours / fork | of the limit | "
             "roof GB/s | steal % | blocks kept | peer's best setting |",
             "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|"]
    for cell in data["cells"].values():
        s = summary(cell)
        tried = len(cell.get("blocks", [])) + cell.get("dropped", 0)
        fork = fork_ratio(cell["model"], cell["test"])
        steal = spread([100 * x for x in s["steal"]]) if s and s["steal"] else "-"
        if s and s["kept"]:
            beside = f"{fork:.2f} | {s['ratio'] / fork:.2f}" if fork else "- | -"
            lines.append(f"| {cell['model']} | {cell['test']} | {s['ours']:.1f} | "
                         f"{s['peer']:.1f} | {s['ratio']:.2f} ({s['ratios']}) | {beside} | "
                         f"{s['share']:.0f} % ({s['shares']}) | "
                         f"{s['roof']:.1f} | {steal} | {len(cell['blocks'])} of {tried} | "
                         f"{flags_text(cell['flags'])} |")
        elif s:
            lost = cell["lost"]
            lines.append(f"| {cell['model']} | {cell['test']} | "
                         f"({spread([b['ours'] for b in lost])}) | "
                         f"({spread([b['peer'] for b in lost])}) | "
                         f"({spread([b['ours'] / b['peer'] for b in lost], '{:.2f}')}) | - | - | "
                         f"- | {spread(sum((b['roofs'] for b in lost), []))} | {steal} | "
                         f"0 of {tried} | {flags_text(cell['flags'])} |")
        else:
            why = cell.get("error") or "no two roofs alike"
            lines.append(f"| {cell['model']} | {cell['test']} | - | - | - | - | - | - | - | - | "
                         f"0 of {tried} | {why} |")
    if data.get("unset"):
        lines += ["", "Cannot be set through the package: " + ", ".join(data["unset"]) + "."]
    return "\n".join(lines) + "\n"


def plot_main(results, png):
    """Ratios as bars: a group for each test, a bar for each model."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    data = load(results)
    cells = {(c["model"], c["test"]): summary(c) for c in data["cells"].values()}
    models = list(dict.fromkeys(m for m, _ in cells))
    tests = list(dict.fromkeys(t for _, t in cells))
    width = 0.8 / max(1, len(models))
    fig, ax = plt.subplots(figsize=(max(6, 1.6 * len(tests), 0.45 * len(cells)), 4))
    for i, m in enumerate(models):
        color = f"C{i}"
        ax.bar([0], [0], color=color, label=m)
        for k, t in enumerate(tests):
            x = k + (i - (len(models) - 1) / 2) * width
            s = cells.get((m, t))
            if s:
                bars = ax.bar([x], [s["ratio"]], width, color=color,
                              **({} if s["kept"] else {"alpha": 0.5, "hatch": "//"}))
                ax.bar_label(bars, fontsize=7,
                             labels=[("{:.2f}" if s["kept"] else "({:.2f})").format(s["ratio"])])
            elif (m, t) in cells:
                ax.plot([x], [0.05], "x", color=color)
    ax.axhline(1, color="black", linewidth=0.8)
    ax.set_xticks(range(len(tests)), tests)
    ax.set_ylabel("tokens/s, ours / peer")
    ax.legend(fontsize=7)
    fig.tight_layout()
    fig.savefig(png, dpi=130)


def report(a, data, results):
    text = markdown(data)
    with open(os.path.join(a.out, "results.md"), "w") as f:
        f.write(text)
    print(text, end="")
    try:
        run([Runner(a).python, os.path.abspath(__file__), "--plot", results,
             os.path.join(a.out, "results.png")], 120)
    except (Failed, OSError) as e:
        say(f"versus: no plot: {e}")


# ---------------------------------------------------------------- main

def ensure_peer(a):
    """Version of the peer in the environment, which is made when it is not there."""
    python = Runner(a).python
    version = [python, "-c", "import llama_cpp; print(llama_cpp.__version__)"]
    try:
        return run(version, 120).strip()
    except (Failed, OSError):
        if a.python:
            sys.exit(f"versus: {a.python} has no llama_cpp")
    say(f"versus: making a private environment with llama-cpp-python in {a.venv} (built here, "
        f"takes minutes)")
    try:
        run([sys.executable, "-m", "venv", a.venv], 600)
        # pip would keep the package as it was built for other instructions
        run([python, "-m", "pip", "install", "-q", "--no-cache-dir", "llama-cpp-python",
             "matplotlib"], 7200)
        return run(version, 120).strip()
    except Failed as e:
        sys.exit(f"versus: no peer: {e}")


def run_cell(a, r, data, results, model, test):
    key = f"{os.path.basename(model)} {test}"
    cell = data["cells"].get(key)
    if cell is None or a.again:
        cell = data["cells"][key] = {"model": os.path.basename(model), "test": test, "blocks": [],
                                     "dropped": 0}
    cell.pop("error", None)
    kind, tried = parse_test(test)[0], 0
    if len(cell["blocks"]) >= a.blocks:
        return say(f"{key}: has its blocks")
    try:
        if "flags" not in cell:
            short = next((c["flags"] for c in data["cells"].values() if is_long(test)
                          and c["model"] == cell["model"] and "flags" in c
                          and c["test"].startswith(kind) and not is_long(c["test"])), None)
            cell["flags"], cell["settings"] = r.best_flags(model, test, short)
            save(results, data)
            say(f"{key}: peer's best: {flags_text(cell['flags'])}")
        limits = r.limits(model, test)
        with r.ours(model, test) as ours, r.peer(model, test, cell["flags"]) as peer:
            while len(cell["blocks"]) < a.blocks and tried < a.tries:
                b = r.block(test, ours, peer, limits)
                tried += 1
                alike = a.busy or max(b["roofs"]) <= ROOF_SLACK * min(b["roofs"])
                if alike:
                    cell["blocks"].append({"commit": data["commit"], **b})
                else:
                    cell["dropped"] += 1
                    cell.setdefault("lost", []).append({"commit": data["commit"], **b})
                say(f"{key}: ours {b['ours']:.1f}, peer {b['peer']:.1f}, ratio "
                    f"{b['ours'] / b['peer']:.2f}, roofs {b['roofs'][0]:.1f} and "
                    f"{b['roofs'][1]:.1f}, steal {100 * b['steal']:.1f} %"
                    f"{'' if alike else ': dropped'}")
                save(results, data)
    except (Failed, OSError) as e:
        cell["error"] = str(e)
        say(f"{key}: {e}")
    data["unset"] = sorted(r.unset | set(data.get("unset", [])))
    save(results, data)


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("models", nargs="*", metavar="MODEL")
    ap.add_argument("--tests", default=TESTS)
    ap.add_argument("--blocks", type=int, default=3, help="blocks to keep for each cell")
    ap.add_argument("--tries", type=int, default=8,
                    help="most blocks tried for a cell in this call")
    ap.add_argument("--reps", type=int, default=1, help="repeats in a run")
    ap.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    ap.add_argument("--peer-threads", help="thread counts tried for the peer, default 1 and all")
    ap.add_argument("--out", default=os.path.join(ROOT, "build", "versus"))
    ap.add_argument("--pith", default=os.path.join(ROOT, "build", "pith"))
    ap.add_argument("--turn", default=os.path.join(ROOT, "build", "bench", "turns", "turn"))
    ap.add_argument("--venv", help=f"default: {os.path.basename(VENV)} in the cache of pith")
    ap.add_argument("--avx2", action="store_true", help="both sides without AVX-512")
    ap.add_argument("--python", help="interpreter that has llama_cpp, instead of the environment's")
    ap.add_argument("--limit", type=int, default=1800, help="seconds a single run may take")
    ap.add_argument("--again", action="store_true", help="measure cells that are there anew")
    ap.add_argument("--busy", action="store_true", help="processor time of one thread")
    ap.add_argument("--report", action="store_true", help="only make the table and the plot")
    a = ap.parse_args()
    a.venv = a.venv or VENV + ("-avx2" if a.avx2 else "")
    if a.avx2:
        os.environ.update(PITH_CPU="avx2", CMAKE_ARGS=AVX2_BUILD)
    if a.busy:
        a.threads, a.peer_threads = 1, "1"
    tests = a.tests.split(",")
    for t in tests:
        parse_test(t)
    if not a.models and not a.report:
        ap.error("no model is named")
    for m in a.models:
        if not os.access(m, os.R_OK):
            sys.exit(f"versus: {m}: cannot be read")
    if a.models and not os.access(a.turn, os.X_OK):
        sys.exit(f"versus: {a.turn}: no such program; make build/bench/turns/turn")
    os.makedirs(a.out, exist_ok=True)
    results = os.path.join(a.out, "results.json")
    data = load(results)
    if not a.report:
        r = Runner(a)
        data["peer"] = ensure_peer(a)
        data["date"] = datetime.date.today().isoformat()
        data["commit"] = run([a.pith, "version"], 60).split("(")[-1].split(")")[0]
        row = json.loads(run([a.pith, "bench", a.models[0], "-t", a.threads, "-p", 0, "-n", 1,
                              "--repeat", 1, "--json"], a.limit))[0]
        data["machine"] = f"{row['device']}, {row['isa']}, {a.threads} threads"
        for model in a.models:
            # short ones first: long ones take their settings
            for test in sorted(tests, key=is_long):
                run_cell(a, r, data, results, model, test)
    report(a, data, results)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        peer_main(sys.argv[2], sys.argv[3], *map(int, sys.argv[4:7]))
    elif sys.argv[1:2] == ["--plot"]:
        plot_main(sys.argv[2], sys.argv[3])
    else:
        main()
