"""serve_scenarios.py -- what the server promises, measured: `bench/serve.py MODEL --scenario
NAME,...` (or all), --list says what each does.

A scenario starts a server of its own, returns its figures with `ok`: whether the promise was
kept, and is added to OUT/scenarios.json. Settings are the function's keywords: --set seconds=60.
Where a promise speaks of time the machine should be doing nothing else."""
import inspect
import json
import os
import random
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from serve_load import (CORES, ROOT, WORDS, Failed, Load, Stream, Target, Texts, gaps_of, markdown,
                        measure, quantiles, say, write)


class Run:
    """What scenarios are given: the command line, and servers that are ended with it."""

    def __init__(self, a):
        self.a, self.servers = a, []

    def serve(self, *flags):
        t = Target(None, None, self.a.pith, self.a.model, [*shlex.split(self.a.flags), *flags])
        self.servers.append(t)
        return t

    def end(self):
        for t in self.servers:
            t.end()
        self.servers = []


def words(n, seed):
    return " ".join(random.Random(seed).choices(WORDS, k=n))


def body(target, prompt, predict, **more):
    return {"model": target.name, "prompt": prompt, "max_tokens": predict, "temperature": 0,
            "ignore_eos": True, **more}


def streamed(target, prompt, predict, **more):
    return body(target, prompt, predict, stream=True, stream_options={"include_usage": True},
                **more)


def answer(target, request, key=None):
    status, text = target.ask("POST", "/v1/completions", request, key)
    if status != 200:
        raise Failed(f"status {status}: {text[:300]!r}")
    return json.loads(text)


def in_background(fn):
    t = threading.Thread(target=fn, daemon=True)
    t.start()
    return t


# ---------------------------------------------------------------- throughput

def bench_tps(run, seqs, predict, reps):
    cmd = [run.a.pith, "bench", run.a.model, "-p", "0", "-n", str(predict), "-np", str(seqs), "-r",
           str(reps), "--json"]
    return json.loads(subprocess.run(cmd, check=True, capture_output=True, text=True).stdout)[
            0]["tps"]


def peer_tps(python, model, seqs):
    """The best of the peer's settings, in its own process: batched decode, no HTTP."""
    best, cmd = (0.0, ""), [python, os.path.join(ROOT, "bench", "versus.py"), "--peer", model,
                            f"tg16x{seqs}"]
    for flash in (0, 1):
        for repack in (0, 1):
            out = subprocess.run([*cmd, str(CORES), str(flash), str(repack), "2"],
                                 capture_output=True, text=True).stdout
            tps = json.loads(out.strip().splitlines()[-1]).get("tps") if out.strip() else None
            if tps:
                best = max(best, (statistics.mean(tps),
                                  f"flash attention {'on' if flash else 'off'}, repack "
                                  f"{'on' if repack else 'off'}"))
    return best


def throughput(run, clients=32, predict=128, prompt=16, warm=60.0, seconds=20.0, blocks=2,
               temperature=0.0):
    """tokens/s over HTTP beside `pith bench` with as many sequences: at least 85 %, the load's own
    time left out; and beside the peer's batch. As bench does, it begins when the cache's memory
    has been written once: the prefix store keeps taking fresh pages until it is full."""
    bench, points = [bench_tps(run, clients, predict, 3)], []
    for _ in range(blocks):
        target = run.serve()
        texts = Texts(0, prompt, predict, ignore_eos=True, temperature=temperature)
        points.append(measure(target, texts, f"{clients} clients", clients=clients, warm=warm,
                              seconds=seconds))
        run.end()
        bench.append(bench_tps(run, clients, predict, 3))
    served, fair, alone = (statistics.median(v)
                           for v in ([p["tps"] for p in points], [p["fair_tps"] for p in points],
                                     bench))
    out = {"ok": fair >= 0.85 * alone, "served": served, "fair": fair, "bench": alone,
           "benches": bench, "ratio": served / alone, "fair_ratio": fair / alone,
           "client_share": statistics.median(p["client_share"] for p in points), "points": points}
    if run.a.peer_python:
        out["peer"], out["peer_setting"] = peer_tps(run.a.peer_python, run.a.model, clients)
        out["bench_over_peer"], out["served_over_peer"] = (v / out["peer"] if out["peer"] else 0
                                                           for v in (alone, served))
    return out


# ---------------------------------------------------------------- first

def prefill_s(run, prompt):
    """Seconds of the prefill of so many tokens, by `pith bench`."""
    cmd = [run.a.pith, "bench", run.a.model, "-p", str(prompt), "-n", "0", "-r", "5", "--json"]
    return prompt / json.loads(subprocess.run(cmd, check=True, capture_output=True,
                                              text=True).stdout)[0]["tps"]


def first(run, lengths="16,128,512,2000", times=15):
    """A warm server's first token, one request at a time and no prefix known, beside the prefill of
    as many tokens by `pith bench`: at most 1.1 times"""
    target, rows = run.serve(), []
    for i, length in enumerate(int(n) for n in lengths.split(",")):
        seconds, prompt = [], 0
        for k in range(times + 3):
            load = Load(target)
            s = Stream(load, streamed(target, words(length, 1000 * i + k), 2))
            load.run(None)
            if s.error:
                raise Failed(s.error)
            prompt = s.usage["prompt_tokens"]
            if k >= 3:  # warm by then
                seconds.append(s.times[0] - s.began)
        rows.append({"prompt": prompt, "first": statistics.median(seconds), "best": min(seconds)})
    run.end()
    for r in rows:
        r["prefill"] = prefill_s(run, r["prompt"])
        r["ratio"] = r["first"] / r["prefill"]
        r["over_ms"] = 1e3 * (r["first"] - r["prefill"])
        say("{prompt} tokens: {first:.4f} s (best {best:.4f}), prefill {prefill:.4f} s: "
            "{ratio:.2f} times, {over_ms:.1f} ms more".format(**r))
    return {"ok": all(r["ratio"] <= 1.1 for r in rows),
            **{f"ratio_{r['prompt']}": r["ratio"] for r in rows}, "rows": rows}


# ---------------------------------------------------------------- bits

def bits(run, prompts=200, predict=24, clients=32):
    """prompts at temperature 0 alone, then inside random load: the same tokens and
    log-probabilities"""
    target = run.serve()
    rng = random.Random(3)
    asked = [body(target, words(rng.randint(1, 120), 1000 + i), predict, logprobs=3)
             for i in range(prompts)]
    alone = [answer(target, b)["choices"] for b in asked]
    load, over = Load(target), threading.Event()

    def start(_=None):
        if not over.is_set():
            Stream(load, streamed(target, words(rng.randint(1, 400), rng.random()),
                                  rng.randint(1, 60), temperature=rng.choice([0, 1]),
                                  n=rng.choice([1, 1, 1, 3])))

    def background():
        load.then = start
        for _ in range(clients):
            start()
        while not over.is_set():
            load.run(time.perf_counter() + 0.2)
            if rng.random() < 0.1 and load.live:  # one leaves
                s = rng.choice(sorted(load.live, key=lambda s: s.began))
                load.remove(s)
                s.socket.close()
                start()
        load.drop()

    t = in_background(background)
    different, at, lock = [], iter(range(prompts)), threading.Lock()

    def ask():
        for i in iter(lambda: next(at, None), None):
            same = answer(target, asked[i])["choices"] == alone[i]
            with lock:
                different.extend([] if same else [i])

    askers = [in_background(ask) for _ in range(4)]
    for a in askers:
        a.join()
    over.set()
    t.join()
    return {"ok": not different and len(load.done) > clients, "prompts": prompts,
            "different": different, "requests_of_the_load": len(load.done)}


# ---------------------------------------------------------------- prefix

def prefix(run, clients=32, length=4000, predict=16):
    """clients at once with one long prefix: it is computed once"""
    target = run.serve("--ctx", "8K")
    load, shared = Load(target), words(length, 5)
    before = target.metric("vllm:prompt_tokens_total")
    for i in range(clients):
        Stream(load, streamed(target, shared + " " + words(8, 100 + i), predict))
    load.run(None)
    failed = [s.error for s in load.done if s.error]
    if failed:
        raise Failed(failed[0])
    prompt = [s.usage["prompt_tokens"] for s in load.done]
    computed = target.metric("vllm:prompt_tokens_total") - before
    # each its own words, and what is not a full page
    most = max(prompt) + (clients - 1) * (64 + 32)
    by_usage = sum(s.usage["prompt_tokens"] - s.usage["prompt_tokens_details"]["cached_tokens"]
                   for s in load.done)
    return {"ok": computed <= most, "clients": clients, "prompt_tokens": sum(prompt),
            "longest": max(prompt), "computed": computed, "allowed": most,
            "computed_by_usage": by_usage,
            "first_token": quantiles([s.times[0] - s.began for s in load.done])}


# ---------------------------------------------------------------- gaps

def poll_health(target, over, out):
    while not over.is_set():
        began = time.perf_counter()
        if target.get("/health")[0] == 200:
            out.append(time.perf_counter() - began)
        time.sleep(0.02)


def gap(run, clients=8, length=4000, seconds=15.0):
    """others' P99 gap while long prompts arrive: at most twice that without them, and 100 ms;
    /health answers within 50 ms throughout"""
    target = run.serve("--ctx", "8K")
    load, health, over = Load(target), [], threading.Event()

    def again(s):
        if s.who != "long":
            Stream(load, streamed(target, words(16, random.random()), 2000), "short")

    def long_prompt():
        Stream(load, streamed(target, words(length, random.random()), 4), "long")

    load.then = again
    for i in range(clients):
        Stream(load, streamed(target, words(16, i), 2000), "short")
    load.run(time.perf_counter() + 3)
    poller = in_background(lambda: poll_health(target, over, health))
    short = lambda: [s for s in [*load.live, *load.done] if s.who == "short"]
    began = time.perf_counter()
    load.run(began + seconds)
    alone = gaps_of(short(), began)
    long_prompt()
    began, n = time.perf_counter(), 0
    while time.perf_counter() < began + seconds:
        load.run(time.perf_counter() + 0.05)
        if not any(s.who == "long" for s in load.live):
            n += 1
            long_prompt()
    beside = gaps_of(short(), began)
    over.set()
    poller.join()
    load.drop()
    a, b, h = quantiles(alone), quantiles(beside), quantiles(health)
    return {"ok": b["p99"] <= 2 * a["p99"] + 0.1 and max(health) < 0.05, "alone": a, "beside": b,
            "worst_beside": max(beside), "long_prompts": n, "health": h,
            "health_worst": max(health), "health_asked": len(health)}


# ---------------------------------------------------------------- shares

def fair(run, many=50, few=8, parallel=16, seconds=20.0, predict=64):
    """two keys, one with many requests in flight and one with few: each 45 to 55 % of the tokens; a
    new request of a key waits at most 2 steps"""
    with tempfile.NamedTemporaryFile("w",
                                     suffix=".keys") as keys, tempfile.TemporaryFile("w+") as log:
        keys.write("key-of-many-1234567890\nkey-of-few-1234567890\n")
        keys.flush()
        target = Target(None, "key-of-few-1234567890", run.a.pith, run.a.model,
                        ["--api-key-file", keys.name, "--open-metrics", "--parallel",
                         str(parallel)], log=log)
        run.servers.append(target)
        load, made = Load(target), {"many": 0, "few": 0}

        def start(who):
            key = f"key-of-{who}-1234567890"
            Stream(load, streamed(target, words(16, random.random()), predict), who, key)

        load.then = lambda s: start(s.who)
        for who, n in (("many", many), ("few", few)):
            for _ in range(n):
                start(who)
        load.run(time.perf_counter() + 4)
        everyone = [*load.live, *load.done]
        before = {s: s.n_events for s in everyone}
        load.run(time.perf_counter() + seconds)
        for s in {*load.live, *load.done}:
            made[s.who] += s.n_events - before.get(s, 0)
        failed = [s.error for s in load.done if s.error]
        # The few leave; then they come one at a time.
        load.then = lambda s: start(s.who) if s.who == "many" else None
        while any(s.who == "few" for s in load.live):
            load.run(time.perf_counter() + 0.1)
        log.seek(0, os.SEEK_END)
        at, waits = log.tell(), []
        steps, spent = (target.metric(m) for m in ("pith:steps_total", "pith:step_seconds_total"))
        for _ in range(10):
            Stream(load, streamed(target, words(16, random.random()), 4), "few", target.key)
            while any(s.who == "few" for s in load.live):
                load.run(time.perf_counter() + 0.05)
        step = (target.metric("pith:step_seconds_total") - spent) / (
                target.metric("pith:steps_total") - steps)
        load.drop()
        run.end()
        log.seek(at)
        for line in log.read().splitlines():
            row = json.loads(line)
            if row.get("gen_ai.usage.completion_tokens") == 4:
                waits.append(row["gen_ai.latency.time_in_queue"] / step)
        share = made["few"] / max(1, sum(made.values()))
        return {"ok": 0.45 <= share <= 0.55 and bool(waits) and max(waits) <= 2 and not failed,
                "share_of_few": share, "tokens": made, "step_seconds": step,
                "waits_in_steps": waits, "failed": failed[:1]}


# ---------------------------------------------------------------- leaving

def leave(run, clients=8, rounds=10, length=4000):
    """a client that leaves frees what it held within a step (at most 100 ms), in the prompt as in
    the answer"""
    target = run.serve("--ctx", "8K")
    load, took = Load(target), {"answer": [], "prompt": []}
    for i in range(clients):
        Stream(load, streamed(target, words(16, i), 4000))
    load.run(time.perf_counter() + 3)
    for _ in range(rounds):
        for where in took:
            s = Stream(load, streamed(target,
                                      words(16 if where == "answer" else length, random.random()),
                                      1000))
            until = time.perf_counter() + 30
            while (target.metric("vllm:num_requests_running") <= clients
                   and time.perf_counter() < until):
                load.run(time.perf_counter() + 0.01)
            load.run(time.perf_counter() + 0.05)
            load.remove(s)
            s.socket.close()
            began = time.perf_counter()
            while (target.metric("vllm:num_requests_running") > clients
                   and time.perf_counter() < began + 5):
                pass
            took[where].append(time.perf_counter() - began)
            load.run(time.perf_counter() + 0.05)
    step = target.metric("pith:step_seconds_total") / target.metric("pith:steps_total")
    load.drop()
    worst = max(took["answer"] + took["prompt"])
    return {"ok": worst <= 0.1 + step, "worst": worst, "answer": quantiles(took["answer"]),
            "prompt": quantiles(took["prompt"]), "step_seconds": step}


# ---------------------------------------------------------------- soak

def knee(run, target, texts, seconds):
    """Points of rising rates, the last one with twice the first one's P99 of whole requests."""
    top = measure(target, texts, "32 clients", clients=32, warm=3, seconds=seconds)
    most = top["tps"] / texts.predict
    points, first = [], None
    for share in (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        p = measure(target, texts, f"{share * most:.1f} requests/s", rate=share * most, warm=4,
                    seconds=seconds)
        points.append(p)
        say(f"{p['name']}: P99 of a request {p['whole']['p99']:.2f} s")
        first = first or p["whole"]["p99"]
        if p["whole"]["p99"] >= 2 * first:
            break
    return points


class Machine:
    """What else the machine does: the share of its cores that is neither the server's nor the
    load's, and how fast memory is copied."""

    def __init__(self, target):
        self.target = target
        self.ours, self.busy, self.stolen, self.at = self.times()

    def times(self):
        with open("/proc/stat") as f:
            v = [int(x) / os.sysconf("SC_CLK_TCK") for x in f.readline().split()[1:9]]
        return time.process_time() + sum(self.target.threads().values()), sum(v) - v[3] - v[4] - v[
                7], v[7], time.perf_counter()

    def since(self):
        ours, busy, stolen, at = self.times()
        cores = (at - self.at) * (os.cpu_count() or 1)
        return {"others": max(0.0, busy - self.busy - ours + self.ours) / cores,
                "stolen": (stolen - self.stolen) / cores}

    @staticmethod
    def copies():
        """GB/s, one thread."""
        a, b, took = memoryview(bytearray(64 << 20)), memoryview(bytearray(64 << 20)), []
        for _ in range(5):
            began = time.perf_counter()
            b[:] = a
            took.append(time.perf_counter() - began)
        return 1e-9 * len(a) / min(took)


def soak(run, minutes=30.0, rate=0.0, predict=64, prompt=32, seconds=20.0):
    """for a long time at the load where the P99 of requests doubles: memory, descriptors, threads
    and latencies do not grow"""
    target = run.serve()
    texts = Texts(0, prompt, predict, ignore_eos=True, vary=True)
    points = []
    if not rate:
        points = knee(run, target, texts, seconds)
        rate = points[-1]["rate"]
    rows, began = [], time.perf_counter()
    while time.perf_counter() < began + 60 * minutes:
        machine = Machine(target)
        p = measure(target, texts, f"minute {len(rows) + 1}", rate=rate, warm=4,
                    seconds=min(56.0, 60 * minutes - 4))
        resident, fds = target.resident()
        rows.append({"tps": p["tps"], "p50": p["whole"]["p50"], "p99": p["whole"]["p99"],
                     "gap99": p["gap"]["p99"], "ttft99": p["ttft"]["p99"], "failed": p["failed"],
                     "requests": p["requests"], "resident": resident, "fds": fds,
                     "threads": len(target.threads()), **machine.since(),
                     "copies": machine.copies()})
        say(f"{p['name']}: {json.dumps(rows[-1])}")
    third = max(1, len(rows) // 3)
    mean = lambda part, k: statistics.mean(r[k] for r in part)
    grown = {k: mean(rows[-third:], k) / mean(rows[third:2 * third] or rows, k)
             for k in ("resident", "fds", "threads", "p50", "p99")}
    ok = all(grown[k] <= limit for k, limit
             in (("resident", 1.02), ("fds", 1.1), ("threads", 1.0), ("p50", 1.25),
                 ("p99", 1.5))) and not sum(r["failed"] for r in rows)
    return {"ok": ok, "rate": rate, "minutes": len(rows),
            "requests": sum(r["requests"] for r in rows), "grown": grown, "points": points,
            "rows": rows}


scenarios = {f.__name__: f for f in (throughput, first, bits, prefix, gap, fair, leave, soak)}


# ---------------------------------------------------------------- main

def settings(fn, given):
    known = {n: p.default for n, p in inspect.signature(fn).parameters.items() if n != "run"}
    return {n: type(known[n])(v) for n, v in given.items() if n in known}


def show(name, out):
    def text(v):
        if isinstance(v, dict) and set(v) == {"p50", "p90", "p99"}:
            return "P50 {p50:.4g}, P90 {p90:.4g}, P99 {p99:.4g} s".format(**v)
        if isinstance(v, float):
            return f"{v:.4g}"
        if isinstance(v, list):
            return "[" + ", ".join(map(text, v)) + "]"
        return json.dumps(v)
    print(f"{name}: {'kept' if out['ok'] else 'NOT KEPT'}")
    for k, v in out.items():
        if k not in ("ok", "points", "rows"):
            print(f"    {k}: {text(v)}")
    sys.stdout.flush()


def main(a):
    from serve_hostile import hostile, mixed  # they are made of what is above
    scenarios.update(hostile=hostile, mixed=mixed)
    if a.list:
        for name, fn in scenarios.items():
            known = [str(p) for n, p in inspect.signature(fn).parameters.items() if n != "run"]
            print(f"{name:<11} {fn.__doc__}\n{'':<11} {', '.join(known)}")
        return 0
    if not a.model:
        raise Failed("scenarios start their own server; wanted a MODEL")
    given = dict(s.split("=", 1) for s in a.set if re.fullmatch(r"\w+=.+", s))
    path, kept = os.path.join(a.out, "scenarios.json"), 0
    names = list(scenarios) if a.scenario == "all" else a.scenario.split(",")
    if set(names) - set(scenarios):
        raise Failed(f"unknown scenario in {a.scenario}; known are {', '.join(scenarios)}")
    for name in names:
        run = Run(a)
        try:
            out = scenarios[name](run, **settings(scenarios[name], given))
        finally:
            run.end()
        show(name, out)
        kept += out["ok"]
        data = json.load(open(path)) if os.path.exists(path) else {}
        data[name] = {"date": time.strftime("%Y-%m-%d"), **out}
        write(a.out, "scenarios", data)
        if out.get("points"):
            print(markdown(out["points"]), end="")
    return 0 if kept == len(names) else 1
