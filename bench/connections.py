#!/usr/bin/env python3
"""connections.py -- how soon a server answers /health and a request with a key, while many
connections hold on to it.

    bench/connections.py MODEL [--connections 2000] [--probes 200] [--pith build/pith] [--flags
        "..."]

Half of the connections say nothing; the other half send the head of a request, a byte at a time.
Each probe is a new connection. The server has a key; it is measured as it is by default, where
most of those that hold on are shown the door, and with room for all of them. Prints a table and
exits with 1 when the slowest /health took more than --most milliseconds (default 50)."""
import argparse
import http.client
import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KEY = "a-key-for-this"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nx-filler: " + b"x" * 100000


class Holding:
    """The connections, kept by one thread: what the server closes is opened again."""

    def __init__(self, port, n):
        self.port, self.n, self.ends, self.opened = port, n, False, 0
        self.held = [self.open() for _ in range(n)]
        self.thread = threading.Thread(target=self.hold)
        self.thread.start()

    def open(self):
        c = socket.create_connection(("127.0.0.1", self.port), 10)
        c.setblocking(False)
        self.opened += 1
        return [c, 0]

    def hold(self):
        while not self.ends:
            for i, one in enumerate(self.held):
                if self.ends:
                    break
                try:
                    if i % 2 and one[1] < len(HEAD):
                        one[1] += one[0].send(HEAD[one[1]:one[1] + 1])
                    if one[0].recv(1) == b"":
                        raise OSError
                except BlockingIOError:
                    pass
                except OSError:
                    one[0].close()
                    self.held[i] = self.open()
                if i % 20 == 0:
                    time.sleep(0.005)

    def end(self):
        self.ends = True
        self.thread.join()
        for c, _ in self.held:
            c.close()


def ask(port, path, headers):
    began = time.monotonic()
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=75)
    c.request("GET", path, headers=headers)
    status = c.getresponse().status
    c.close()
    return status, 1000 * (time.monotonic() - began)


def measure(a, name, flags):
    p = subprocess.Popen([a.pith, "serve", a.model, "--port", "0", "--no-log", "--ctx", "1024",
                          "--no-store-dir", "--api-key", "one:" + KEY, *flags,
                          *shlex.split(a.flags)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                         text=True)
    worst = 0
    try:
        port = int(p.stdout.readline().strip().rsplit(":", 1)[1])
        while ask(port, "/ready", {})[0] != 200:
            time.sleep(0.05)
        for n in (0, a.connections):
            holding = Holding(port, n) if n else None
            for path, headers in (("/health", {}), ("/v1/models", {"x-api-key": KEY})):
                got = [ask(port, path, headers) for _ in range(a.probes)]
                ms = sorted(t for _, t in got)
                good = sum(s == 200 for s, _ in got)
                if path == "/health" and n:
                    worst = max(worst, ms[-1] if good == len(got) else float("inf"))
                files = len(os.listdir("/proc/%d/fd" % p.pid))
                print("| %s | %d | %s | %d of %d | %.1f | %.1f | %.1f | %d | %d |"
                      % (name, n, path, good, len(got), ms[len(ms) // 2], ms[int(0.99 * len(ms))],
                         ms[-1], files, holding.opened if holding else 0), flush=True)
            if holding:
                holding.end()
    finally:
        p.send_signal(signal.SIGTERM)
        p.wait(60)
    return worst


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model", metavar="MODEL")
    ap.add_argument("--connections", type=int, default=2000)
    ap.add_argument("--probes", type=int, default=200)
    ap.add_argument("--most", type=float, default=50)
    ap.add_argument("--pith", default=os.path.join(ROOT, "build", "pith"))
    ap.add_argument("--flags", default="", help="further flags of pith serve")
    a = ap.parse_args()
    room = str(2 * a.connections)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, a.connections + 100), hard), hard))
    print("| server | held | asked | answered | median ms | P99 | most | its descriptors | "
          "opened |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    worst = max(measure(a, "by default", []),
                measure(a, "room for all", ["--max-connections", room, "--max-unknown", room]))
    return worst > a.most


sys.exit(main())
