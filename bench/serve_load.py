"""serve_load.py -- what bench/serve.py is made of: a server to ask, streamed requests on sockets
that do not block, one loop that moves their bytes and notes when they arrive, a point of load,
tables and plots. One thread and no package, because the load shares the machine's cores with the
server, and its own processor time is part of the result."""
import heapq
import json
import os
import random
import resource
import selectors
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import time
import urllib.parse

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CORES = len(os.sched_getaffinity(0))
WORDS = ("the of and to in is you that it he was for on are as with his they at be this have "
         "from or one had by word but not what all were we when "
         "your can said there use an each which she do how their if will up other about out many "
         "then them these so some her would make like him "
         "into time has look two more write go see number no way could people my than first "
         "water been call who oil its now find long down day did " "get come made may part").split()


class Failed(Exception):
    pass


def say(text):
    print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- the server

class Target:
    """Where requests go: a URL, or `pith serve` started here."""

    def __init__(self, url=None, key=None, pith=None, model=None, flags=(), log=None):
        self.key, self.process = key, None
        if not url:
            cmd = [pith, "serve", model, "--port", "0", "--no-store-dir",
                   *flags] + ([] if log else ["--no-log"])
            self.process = subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                            stderr=log, text=True)
            url = self.process.stdout.readline().strip()
            if not url:
                raise Failed(f"{' '.join(cmd)}: status {self.process.wait()}")
        u = urllib.parse.urlsplit(url)
        self.tls = ssl.create_default_context() if u.scheme == "https" else None
        self.host, self.base = u.hostname, u.path.rstrip("/")
        self.port = u.port or (443 if self.tls else 80)
        self.name = None
        if self.process:
            self.wait_ready()
        self.name = self.model_name()

    def wait_ready(self):
        until = time.monotonic() + 120
        while time.monotonic() < until and self.process.poll() is None:
            if self.get("/ready")[0] == 200:
                return
            time.sleep(0.05)
        raise Failed("the server is not ready after 120 s")

    def model_name(self):
        status, text = self.get("/v1/models")
        try:
            return json.loads(text)["data"][0]["id"]
        except (ValueError, KeyError, IndexError):
            raise Failed(f"/v1/models: status {status}, {text[:200]!r}") from None

    def connect(self):
        s = socket.create_connection((self.host, self.port), 30)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.tls.wrap_socket(s, server_hostname=self.host) if self.tls else s

    def head(self, method, path, length, key=None):
        key = key or self.key
        return (f"{method} {self.base}{path} HTTP/1.1\r\nHost: "
                f"{self.host}:{self.port}\r\nConnection: close\r\nContent-Type: "
                f"application/json\r\n" + (f"Authorization: Bearer {key}\r\n" if key else "")
                + f"Content-Length: {length}\r\n\r\n").encode()

    def ask(self, method, path, body=None, key=None):
        """(status, body as bytes); blocking."""
        data = b"" if body is None else json.dumps(body).encode()
        with self.connect() as s:
            s.settimeout(600)
            s.sendall(self.head(method, path, len(data), key) + data)
            raw = b"".join(iter(lambda: s.recv(1 << 16), b""))
        head, _, rest = raw.partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" in head.lower():
            rest = unchunk(rest)
        return int(head.split(b" ", 2)[1] if head else 0), rest

    def get(self, path):
        return self.ask("GET", path)

    def metric(self, name):
        for line in self.get("/metrics")[1].decode().splitlines():
            if line.startswith(name + "{"):
                return float(line.rsplit(" ", 1)[1])
        raise Failed(f"/metrics has no {name}")

    def threads(self):
        """Processor seconds of each of the server's threads, by name and number."""
        out = {}
        if self.process:
            base = f"/proc/{self.process.pid}/task"
            for t in os.listdir(base):
                try:
                    with open(f"{base}/{t}/comm") as c, open(f"{base}/{t}/schedstat") as f:
                        out[f"{c.read().strip()}-{int(t) - self.process.pid}"] = int(
                                f.read().split()[0]) * 1e-9
                except OSError:
                    pass  # it has ended
        return out

    def resident(self):
        """Bytes, and open descriptors."""
        with open(f"/proc/{self.process.pid}/statm") as f:
            pages = int(f.read().split()[1])
        return pages * resource.getpagesize(), len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def end(self):
        if self.process:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process.stdout.close()
            self.process = None


def unchunk(raw):
    out = b""
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        n = int(size or b"0", 16)
        if not n:
            break
        out, raw = out + raw[:n], raw[n + 2:]
    return out


# ---------------------------------------------------------------- one request

DATA = b"data: {"  # begins an event; [DONE] is none
KEPT = 4096        # bytes of the end of an answer, where usage is


class Stream:
    """A streamed request on a socket that does not block."""

    def __init__(self, load, body, who=None, key=None):
        data = json.dumps(body).encode()
        self.load, self.who = load, who
        self.began = time.perf_counter()
        self.times = []   # of arrivals that hold text
        self.n_events = 0
        self.status, self.usage, self.error = 0, {}, None
        self.head, self.tail = b"", b""
        self.socket = load.target.connect()
        self.out = load.target.head("POST", "/v1/completions", len(data), key) + data
        self.socket.setblocking(False)
        load.add(self)
        self.write()

    def write(self):
        try:
            while self.out:
                self.out = self.out[self.socket.send(self.out):]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        except OSError as e:
            return self.close(str(e))
        self.load.want_write(self, bool(self.out))

    def read(self):
        try:
            data = self.socket.recv(1 << 16)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError as e:
            return self.close(str(e))
        if not data:
            return self.close(None)
        now = time.perf_counter()
        if not self.status:
            self.head += data
            line, _, data = self.head.partition(b"\r\n\r\n")
            if len(line) == len(self.head):
                return
            self.status = int(line.split(b" ", 2)[1])
        seen = self.tail[1 - len(DATA):]
        n = (seen + data).count(DATA)
        self.tail = (self.tail + data)[-KEPT:]
        if n:
            self.times.append(now)
            self.n_events += n
            self.load.n_events += n

    def close(self, error):
        self.load.remove(self)
        self.socket.close()
        self.ended = time.perf_counter()
        try:
            if self.status == 200 and b"data: [DONE]" in self.tail:
                at = self.tail.rindex(b'"usage":{')
                self.usage = json.JSONDecoder().raw_decode(self.tail[at + 8:].decode("utf-8",
                            "replace"))[0]
            else:
                error = error or f"status {self.status}, {self.tail[-200:]!r}"
        except ValueError:
            error = error or "no usage"
        self.error = error
        self.load.on_end(self)


class Load:
    """The loop that moves the bytes of all streams, and calls what is due at a time."""

    def __init__(self, target):
        self.target = target
        self.selector = selectors.DefaultSelector()
        self.live, self.done, self.due = set(), [], []
        self.n_events = self.serial = 0
        self.then = None  # called with each stream that has ended

    def add(self, s):
        self.live.add(s)
        self.selector.register(s.socket, selectors.EVENT_READ, s)

    def want_write(self, s, on):
        self.selector.modify(s.socket, selectors.EVENT_READ | (selectors.EVENT_WRITE if on else 0),
                             s)

    def remove(self, s):
        self.live.discard(s)
        self.selector.unregister(s.socket)

    def on_end(self, s):
        self.done.append(s)
        if self.then:
            self.then(s)

    def at(self, when, fn):
        self.serial += 1
        heapq.heappush(self.due, (when, self.serial, fn))

    def run(self, until):
        """Until that time; with None until all streams have ended."""
        while True:
            now = time.perf_counter()
            if (until is not None and now >= until) or (until is None and not self.live
                                                        and not self.due):
                return
            while self.due and self.due[0][0] <= now:
                heapq.heappop(self.due)[2]()
            ends = [t for t in (until, self.due[0][0] if self.due else None) if t is not None]
            for key, events in self.selector.select(max(0, min(ends) - time.perf_counter()) if ends
                                                    else 1):
                if events & selectors.EVENT_WRITE:
                    key.data.write()
                if events & selectors.EVENT_READ and key.data in self.live:
                    key.data.read()

    def drop(self):
        """Leaves all streams as a client does that goes away."""
        for s in list(self.live):
            self.remove(s)
            s.socket.close()


# ---------------------------------------------------------------- a point: one kind of load for
# some time

class Texts:
    """Prompts of --prefix shared words and --prompt random ones; with vary these and the answers
    are 1 to twice as long."""

    def __init__(self, prefix, prompt, predict, seed=1, vary=False, **more):
        self.rng = random.Random(seed)
        self.shared = " ".join(random.Random(seed + 1).choices(WORDS, k=prefix))
        self.prompt, self.predict, self.vary, self.more = prompt, predict, vary, more

    def length(self, n):
        return self.rng.randint(1, 2 * n) if self.vary and n else n

    def body(self, model):
        text = (self.shared + " " + " ".join(self.rng.choices(WORDS,
                                                              k=self.length(self.prompt)))).strip()
        return {"model": model, "prompt": text, "max_tokens": self.length(self.predict),
                "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
                **self.more}


def quantiles(values):
    v = sorted(values)
    return {f"p{q}": v[min(len(v) - 1, int(q / 100 * len(v)))]
            for q in (50, 90, 99)} if v else {"p50": 0, "p90": 0, "p99": 0}


def gaps_of(streams, since=0):
    return [b - a for s in streams for a, b in zip(s.times, s.times[1:]) if a >= since]


def measure(target, texts, name, clients=0, rate=0.0, warm=2.0, seconds=10.0, key=None):
    """One point: clients (closed loop) or rate (open loop). Returns its figures."""
    load = Load(target)
    rng = random.Random(7)
    began = time.perf_counter()
    end = began + warm + seconds

    def start(_=None):
        if time.perf_counter() < end:
            Stream(load, texts.body(target.name), key=key)

    def arrive():
        start()
        load.at(time.perf_counter() + rng.expovariate(rate), arrive)

    if clients:
        load.then = start
        for _ in range(clients):
            start()
    else:
        arrive()
    load.run(began + warm)
    first, events, cpu, threads = (time.perf_counter(), load.n_events, time.process_time(),
                                   target.threads())
    load.run(end)
    wall, events = time.perf_counter() - first, load.n_events - events
    cpu, later = time.process_time() - cpu, target.threads()
    ended = [s for s in load.done if not s.error and s.ended >= first]
    failed = [s for s in load.done if s.error]
    everyone = ended + list(load.live)
    told = sum(s.n_events for s in ended)
    # events hold text; not every token does
    scale = sum(s.usage["completion_tokens"] for s in ended) / told if told else 1
    share = cpu / (CORES * wall)
    point = {"name": name, "clients": clients, "rate": rate, "seconds": wall,
             "requests": len(ended), "failed": len(failed),
             "n_prompt": statistics.mean([s.usage["prompt_tokens"] for s in ended] or [0]),
             "n_predict": texts.predict,
             "n_cached": statistics.mean(
                                         [(s.usage.get("prompt_tokens_details")
                                           or {}).get("cached_tokens", 0) for s in ended] or [0]),
             "tps": events * scale / wall, "client_share": share,
             "fair_tps": events * scale / wall / max(0.01, 1 - share),
             "ttft": quantiles([s.times[0] - s.began for s in everyone if s.times
                                and s.times[0] >= first]),
             "gap": quantiles(gaps_of(everyone, first)),
             "whole": quantiles([s.ended - s.began for s in ended]), "left": len(load.live),
             "threads": {t: round((later[t] - threads.get(t, 0)) / wall, 4) for t in later
                         if later[t] - threads.get(t, 0) > 0.002 * wall},}
    load.drop()
    if failed:
        point["error"] = failed[0].error
        say(f"{name}: {len(failed)} requests failed, the first: {failed[0].error}")
    return point


# ---------------------------------------------------------------- results

def ms(q):
    return f"{1e3 * q['p50']:.0f} / {1e3 * q['p90']:.0f} / {1e3 * q['p99']:.0f}"


def markdown(points):
    lines = ["| load | prompt (cached) | requests | tokens/s | fair | load's share | first token "
             "P50 / P90 / P99 ms | gap ms | request ms |",
             "|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for p in points:
        failed = f" + {p['failed']} failed" if p["failed"] else ""
        lines.append(f"| {p['name']} | {p['n_prompt']:.0f} ({p['n_cached']:.0f}) | "
                     f"{p['requests']}{failed} | {p['tps']:.1f} | {p['fair_tps']:.1f} | "
                     f"{100 * p['client_share']:.1f} % | {ms(p['ttft'])} | {ms(p['gap'])} | "
                     f"{ms(p['whole'])} |")
    return "\n".join(lines) + "\n"


def plot(points, png):
    """Throughput, first token and gaps over the load: closed loops left, open loops right."""
    try:
        import matplotlib
    except ImportError:
        return say("serve: no matplotlib, no plot")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    kinds = [(k, unit, [p for p in points if p[k]])
             for k, unit in (("clients", "clients, each asking again at once"),
                             ("rate", "requests/s, Poisson"))]
    kinds = [k for k in kinds if len(k[2]) > 1]
    if not kinds:
        return None
    fig, axes = plt.subplots(3, len(kinds), figsize=(5.5 * len(kinds), 8), squeeze=False,
                             sharex="col")
    for col, (kind, unit, rows) in enumerate(kinds):
        x = [p[kind] for p in rows]
        axes[0][col].plot(x, [p["tps"] for p in rows], "o-", label="tokens/s")
        axes[0][col].plot(x, [p["fair_tps"] for p in rows], "x:",
                          label="without the load's own time")
        for row, what in ((1, "ttft"), (2, "gap")):
            for q, style in (("p50", "o-"), ("p90", "s--"), ("p99", "^:")):
                axes[row][col].plot(x, [1e3 * p[what][q] for p in rows], style, label=q.upper())
            axes[row][col].set_yscale("log" if what == "ttft" else "linear")
        axes[2][col].set_xlabel(unit)
        for row, label in enumerate(("tokens/s", "first token, ms", "gap, ms")):
            axes[row][col].set_ylabel(label)
            axes[row][col].set_ylim(bottom=None if row == 1 else 0)
            axes[row][col].grid(alpha=0.3)
            axes[row][col].legend(fontsize=7)
    fig.tight_layout()
    fig.savefig(png, dpi=110)


def write(out, name, data):
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, name + ".json"), "w") as f:
        json.dump(data, f, indent=1)
    if data.get("points"):
        with open(os.path.join(out, name + ".md"), "w") as f:
            f.write(markdown(data["points"]))
        plot(data["points"], os.path.join(out, name + ".png"))
