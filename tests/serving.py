"""serving.py -- what tests of pith serve share: a server on a free port, ended by its process id;
requests, byte by byte where they need it."""
import http.client
import json
import os
import signal
import socket
import subprocess
import threading

import report
# noqa: F401
from report import LIMIT, PITH, SCALE, SEED, SHARED, check, guard, skip, synth, wait_for


def command(model, *flags):
    """A server of one model (a path) or several (a list), on a free port of this machine."""
    return [PITH, "serve", *([model] if isinstance(model, str) else model), "--port", "0",
            "--threads", "1", "--no-log", *flags]


def refused(name, status, said, model, *flags):
    """The server does not start, and says why."""
    env = {k: v for k, v in os.environ.items() if k != "PITH_API_KEY"}
    p = subprocess.run(command(model, *flags), stdin=subprocess.DEVNULL, capture_output=True,
                       text=True, timeout=LIMIT, env=env)
    check(name, p.returncode == status and said in p.stderr, (p.returncode, p.stderr))
    return p.stderr


def raw_post(path, body, more=""):
    """The bytes of a request."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n" % (path.encode(),
            len(data), more.encode()) + data


SANITIZED = "san" in os.environ.get("B", "")


class Server:
    def __init__(self, model, *flags, env=None, wait=True):
        self.process = subprocess.Popen(command(model, *flags), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **(env or {})})
        self.key = {"x-api-key": flags[flags.index("--api-key") + 1].rsplit(":",
                    1)[-1]} if "--api-key" in flags else {}
        self.url = self.process.stdout.readline().strip()
        self.port = int(self.url.rsplit(":", 1)[1]) if self.url.startswith("http") else 0
        if wait and self.port:
            self.wait_for(lambda: self.get("/ready")[0] == 200)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def wait_for(self, good):
        return wait_for(good, lambda: self.process.poll() is None)

    def connect(self, data=b""):
        """A connection that has sent these bytes."""
        c = socket.create_connection(("127.0.0.1", self.port), LIMIT)
        c.sendall(data)
        return c

    def ask(self, method, path, body=None, headers=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        try:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            try:
                c.request(method, path, data, headers or {})
            except BrokenPipeError:  # it was refused before it was read: the answer is there
                pass
            r = c.getresponse()
            text = r.read()
            return (r.status, json.loads(text) if text
                    and r.getheader("Content-Type") == "application/json" else text, r)
        finally:
            c.close()

    def get(self, path, **headers):
        return self.ask("GET", path, headers=headers)

    def post(self, path, body, **headers):
        return self.ask("POST", path, body, headers)

    def metric(self, name, model=None):
        """Of one model, or of the first that has it; None: nobody has."""
        for line in self.get("/metrics", **self.key)[1].decode().splitlines():
            if line.startswith(name + "{") and (model is None or 'model_name="%s"' % model in line):
                return float(line.rsplit(" ", 1)[1])

    def at_rest(self, model=None):
        return self.metric("vllm:num_requests_running",
                           model) == 0 and self.metric("vllm:num_requests_waiting", model) == 0

    def end(self):
        """Its exit code; None: it had to be killed. What it wrote to stderr and nobody has read is
        in `said`."""
        if self.process.stdout.closed:
            return self.process.returncode
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None
        finally:
            self.process.stdout.close()
            self.said = self.process.stderr.read()
            self.process.stderr.close()

    def open_files(self):
        return len(os.listdir("/proc/%d/fd" % self.process.pid))

    def memory(self):
        """Bytes; 0 where a sanitizer keeps what is freed."""
        if SANITIZED:
            return 0
        with open("/proc/%d/statm" % self.process.pid) as f:
            return int(f.read().split()[1]) * 4096

    def most_memory(self, what="VmHWM"):
        """The most that it ever had, or has had since forget_memory; VmRSS: has now."""
        if SANITIZED:
            return 0
        with open("/proc/%d/status" % self.process.pid) as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith(what + ":"))

    def forget_memory(self):
        with open("/proc/%d/clear_refs" % self.process.pid, "w") as f:
            f.write("5")


def completion(prompt, most=12, **more):
    return {"prompt": prompt, "max_tokens": most, "temperature": 0, "logprobs": 3,
            "ignore_eos": True, **more}


def bits(answer):
    """What has to be the same: texts, tokens, log-probabilities."""
    return [(c["text"], c["logprobs"]) for c in answer["choices"]]


def prompts(n, length):
    return [[1 + (i * 7 + k * (i + 3)) % 200 for k in range(length + i)] for i in range(n)]


def begin(jobs):
    """Starts them all. What they have returned so far (None: not yet), and a function that waits
    for the rest."""
    out = [None] * len(jobs)

    def job(i):
        try:
            out[i] = jobs[i]()
        except Exception as e:  # told by whoever looks at the answer
            out[i] = (0, repr(e), None)

    threads = [threading.Thread(target=job, args=(i,)) for i in range(len(jobs))]
    for t in threads:
        t.start()

    def rest():
        for t in threads:
            t.join(LIMIT)
        return out

    return out, rest


def at_once(jobs):
    return begin(jobs)[1]()


def events(raw):
    return [json.loads(line[6:]) for line in raw.decode().split("\n") if line.startswith("data: {")]


def run(main, name):
    report.run(main, name, "serve")
