"""serving.py -- what tests of pith serve share: a server on a free port, ended by its process id; every wait is bounded."""
import http.client
import json
import os
import signal
import subprocess
import threading
import time
import traceback

import report

PITH = os.path.join(os.environ.get("B", "build"), "pith")
SCALE = int(os.environ.get("TEST_SCALE", "1"))
LIMIT = 40.0  # seconds any one wait may take


def check(name, good, why=""):
    report.say("ok" if good else "FAIL", name if good else "%s: %s" % (name, str(why)[:300]))


def skip(name, why):
    report.say("skip", "%s: %s" % (name, why))


class Server:
    """A server of one model (a path) or several (a list), on a free port of this machine."""

    def __init__(self, model, *flags, env=None, wait=True):
        models = [model] if isinstance(model, str) else model
        self.process = subprocess.Popen([PITH, "serve", *models, "--port", "0", "--threads", "1", "--no-log", *flags], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
        self.url = self.process.stdout.readline().strip()
        self.port = int(self.url.rsplit(":", 1)[1]) if self.url else 0
        if wait:
            self.wait_for(lambda: self.get("/ready")[0] == 200)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def wait_for(self, good):
        until = time.monotonic() + LIMIT
        while time.monotonic() < until and self.process.poll() is None:
            if good():
                return True
            time.sleep(0.01)
        return False

    def ask(self, method, path, body=None, headers=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        try:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            c.request(method, path, data, headers or {})
            r = c.getresponse()
            text = r.read()
            return r.status, json.loads(text) if text and r.getheader("Content-Type") == "application/json" else text, r
        finally:
            c.close()

    def get(self, path, **headers):
        return self.ask("GET", path, headers=headers)

    def post(self, path, body, **headers):
        return self.ask("POST", path, body, headers)

    def metric(self, name, model=None):
        """Of one model, or of the first that has it; None: nobody has."""
        for line in self.get("/metrics")[1].decode().splitlines():
            if line.startswith(name + "{") and (model is None or 'model_name="%s"' % model in line):
                return float(line.rsplit(" ", 1)[1])

    def end(self):
        """Its exit code; None: it had to be killed. What it wrote to stderr and nobody has read is in `said`."""
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
        with open("/proc/%d/statm" % self.process.pid) as f:
            return int(f.read().split()[1]) * 4096

    def most_memory(self):
        """The most that it ever had."""
        with open("/proc/%d/status" % self.process.pid) as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM:"))


def completion(prompt, most=12, **more):
    return {"prompt": prompt, "max_tokens": most, "temperature": 0, "logprobs": 3, "ignore_eos": True, **more}


def bits(answer):
    """What has to be the same: texts, tokens, log-probabilities."""
    return [(c["text"], c["logprobs"]) for c in answer["choices"]]


def prompts(n, length):
    return [[1 + (i * 7 + k * (i + 3)) % 200 for k in range(length + i)] for i in range(n)]


def at_once(jobs):
    out = [None] * len(jobs)

    def run(i):
        try:
            out[i] = jobs[i]()
        except Exception as e:  # told by whoever looks at the answer
            out[i] = (0, repr(e), None)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(LIMIT)
    return out


def events(raw):
    return [json.loads(line[6:]) for line in raw.decode().split("\n") if line.startswith("data: {")]


def synth(path, *flags):
    subprocess.run([PITH, "synth", path, *flags], check=True, capture_output=True)
    return path


def served():
    """Is there a server to be tested?"""
    return os.access(PITH, os.X_OK) and not subprocess.run([PITH, "serve", "--help"], capture_output=True).returncode


def run(main, name):
    """A test script's last line: main, whatever it raises, and the counts."""
    if not served():
        skip("serve", "built without the server")
    else:
        try:
            main()
        except Exception:
            check(name, False, traceback.format_exc()[-250:].replace("\n", " "))
    report.end()
