#!/usr/bin/env python3
# In make test alone: it starts many servers.
"""test_rough_serve.py -- pith serve on a rough machine: a port that is taken, addresses of all
kinds, two servers on one folder of prefixes, a disk that is full, a folder that cannot be written,
half a request, and an end while it streams, loads or waits."""
import os
import re
import resource
import signal
import socket
import subprocess
import tempfile
import time

from report import run
from serving import (LIMIT, Server, begin, bits, check, command, completion, guard, prompts,
                     raw_post, refused, synth, wait_for)


def loads(port):
    """Whether a server at the other loopback has its model."""
    with socket.create_connection(("::1", port), LIMIT) as c:
        c.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return c.makefile("rb").read().startswith(b"HTTP/1.1 200")


def test_ports(model):
    with Server(model) as s:
        check("a_free_port", s.port > 0 and s.get("/health")[0] == 200, s.url)
        err = refused("a_taken_port", 3, "%d" % s.port, model, "--port", str(s.port))
        check("a_taken_port_is_one_line", err.count("\n") == 1 and "in use" in err, err)
    with Server(model, "--host", "::1", wait=False) as s:
        check("the_other_loopback", s.url.startswith("http://[::1]:"), s.url)
        port = int(s.url.rsplit(":", 1)[1])
        s.wait_for(lambda: loads(port))
        for host in "[::1]:%d" % port, "localhost:%d" % port:
            with socket.create_connection(("::1", port), LIMIT) as c:
                c.sendall(("GET /v1/models HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n"
                           % host).encode())
                got = c.makefile("rb").read()
            check("asked_as_" + host.split(":%d" % port)[0], got.startswith(b"HTTP/1.1 200"),
                  got[:200])
    refused("no_such_address", 3, "192.0.2.1", model, "--host", "192.0.2.1", "--api-key",
            "12345678")
    refused("a_name_for_an_address", 3, "nowhere.invalid", model, "--host", "nowhere.invalid",
            "--api-key", "12345678")


def streaming(s, more=None):
    """A connection whose answer has begun to come, and what came."""
    c = s.connect(raw_post("/v1/completions", completion([5, 6, 7], 3000, stream=True,
                                                         logprobs=None, **(more or {}))))
    got = b""
    while got.count(b"data: ") < 3:
        got += c.recv(65536)
    return c, got


def rest(c, got):
    """All of it, until the other end closes. None: it was cut off."""
    try:
        while True:
            more = c.recv(65536)
            if not more:
                return got
            got += more
    except OSError:
        return None


def test_ends(model):
    """SIGTERM and Ctrl-C while a text is streamed: it comes to its end, or says why it does not;
    the last chunk comes either way."""
    for name, sig in ("terminated", signal.SIGTERM), ("interrupted", signal.SIGINT):
        s = Server(model, "--ctx", "4096", "--shutdown-timeout", "60")
        c, got = streaming(s, {"max_tokens": 300})
        s.process.send_signal(sig)
        got = rest(c, got)
        code = s.process.wait(LIMIT)
        check("stream_ends_when_" + name, got and got.endswith(b"0\r\n\r\n") and b"[DONE]" in got
              and b'"finish_reason":"length"' in got.replace(b" ", b""), (got or b"")[-200:])
        check(name + "_status", code == 0, code)
        s.end()
        s = Server(model, "--ctx", "65536", "--shutdown-timeout", "0.2")
        c, got = streaming(s, {"max_tokens": 60000}) # more than any machine makes in that time
        s.process.send_signal(sig)
        got = rest(c, got)
        code = s.process.wait(LIMIT)
        check("stream_is_told_when_" + name, got and got.endswith(b"0\r\n\r\n")
              and b"shutting_down" in got, (got or b"")[-300:])
        s.end()
        check(name + "_and_says_so", code == 0 and "had not come to their end" in s.said,
              (code, s.said))
    s = Server(model, "--ctx", "4096", "--shutdown-timeout", "60")
    c, got = streaming(s)

    def again():
        s.process.send_signal(signal.SIGINT)
        time.sleep(0.05)
        return s.process.poll() is not None
    wait_for(again)
    check("twice", s.process.poll() == 130, s.process.poll())
    c.close()
    s.end()


def test_loading(folder):
    """Ctrl-C while it loads."""
    large = synth(os.path.join(folder, "large.gguf"), "--layers", "4", "--embd", "1024", "--heads",
                  "16", "--ff", "4096", "--vocab", "4000", "--ctx", "4096")
    for k in range(4):
        p = subprocess.Popen(command(large), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        p.stdout.readline()  # the address is told before the model is read
        time.sleep(0.03 * k)
        p.send_signal(signal.SIGINT)
        try:
            err = p.communicate(timeout=LIMIT)[1]
        except subprocess.TimeoutExpired:
            p.kill()
            err = p.communicate()[1] + " it did not end"
        check("ctrl_c_while_it_loads_%d" % k, p.returncode in (0, 130)
              and (p.returncode == 0 or "interrupted" in err), (p.returncode, err))


def test_halves(model):
    """A client that sends half a request and waits, or leaves; beside others."""
    whole = raw_post("/v1/completions", completion([5, 6, 7], 4))
    with Server(model, "--read-timeout", "1") as s:
        n = s.open_files()
        waits = [s.connect(whole[:k]) for k in (1, 10, 40, len(whole) // 2, len(whole) - 1)]
        for k in (1, 10, 40, len(whole) // 2, len(whole) - 1):
            s.connect(whole[:k]).close()
        check("beside_halves", s.post("/v1/completions", completion([5, 6, 7], 4))[0] == 200)
        for c, k in zip(waits, (1, 10, 40, len(whole) // 2, len(whole) - 1)):
            c.settimeout(LIMIT)
            got = rest(c, b"")
            check("half_of_%d" % k, got is not None and (not got or b" 408 " in got), got)
            c.close()
        check("no_file_stays_open", s.wait_for(lambda: s.open_files() <= n), (n, s.open_files()))
        c = s.connect(whole[:-5])
        c.shutdown(socket.SHUT_WR)
        check("closed_half_way", rest(c, b"") is not None)
        check("and_goes_on", s.post("/v1/completions", completion([5, 6, 7], 4))[0] == 200)


def test_one_folder(model, folder):
    """Two servers that write one folder of prefixes, at once, find each other's, and bits stay."""
    env = {"PITH_CACHE": os.path.join(folder, "cache")}
    asked = prompts(8, 150)
    with Server(model, "--ctx", "1024", "--no-store-dir") as s:
        wanted = [bits(s.post("/v1/completions", completion(p))[1]) for p in asked]
    with Server(model, "--ctx", "1024", env=env) as a, Server(model, "--ctx", "1024", env=env) as b:
        jobs = [lambda s=s, p=p: s.post("/v1/completions", completion(p))
                for p in asked for s in (a, b)]
        got = begin(jobs)[1]()
        check("two_servers_on_one_folder", all(g[0] == 200 and bits(g[1]) == wanted[i // 2]
                                               for i, g in enumerate(got)), got)
        for s in a, b:
            code = s.end()
            more = [x for x in s.said.split("\n") if x.startswith("pith:")
                    and not re.match("pith: (prefixes|.* has no chat template)", x)]
            check("and_end_well", code == 0 and not more, (code, s.said))
    with Server(model, "--ctx", "1024", env=env) as s:
        again = [s.post("/v1/completions", completion(p))[1] for p in asked]
        check("a_third_finds_them", [bits(g) for g in again] == wanted and all(
            g["usage"]["prompt_tokens_details"]["cached_tokens"] >= 128 for g in again),
            [g["usage"] for g in again])


def test_no_room(model, folder):
    """Prefixes that cannot be written: answers are as ever, and the report says it."""
    wanted = None
    for name, where, limit in (("room", "room", None), ("full", "full", 1024),
                               ("unwritable", "/proc/self", None), ("a_file", "/dev/null", None),
                               ("locked", "/sys/pith/deep", None)):
        env = {"PITH_CACHE": os.path.join(folder, where)}
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            s = Server(model, "--ctx", "1024", env=env)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        with s:
            a = [s.post("/v1/completions", completion(p)) for p in prompts(2, 200)]
            got = [bits(x[1]) for x in a if x[0] == 200]
            wanted = wanted or got
            check("answers_with_%s" % name, len(got) == 2 and got == wanted, a)
            again = s.post("/v1/completions", completion(prompts(2, 200)[0]))[1]
            check("and_finds_in_memory_%s" % name, again["usage"]["prompt_tokens_details"]
                  ["cached_tokens"] >= 128, again["usage"])
            if limit:
                check("says_that_it_cannot_write", s.wait_for(
                    lambda: re.search("write|too large|space", str(s.get("/v1/report")[1]))),
                    s.get("/v1/report")[1])
            code = s.end()
            check("starts_and_ends_with_%s" % name, code == 0 and
                  ("in memory alone" in s.said) == (name not in ("room", "full")), s.said)
            if name == "locked":
                check("says_why", "No such file" not in s.said, s.said)


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "m.gguf"), "--vocab", "300", "--ctx", "4096")
        for name, test in (("ports", lambda: test_ports(model)),
                           ("ends", lambda: test_ends(model)),
                           ("loading", lambda: test_loading(folder)),
                           ("halves", lambda: test_halves(model)),
                           ("one_folder", lambda: test_one_folder(model, folder)),
                           ("no_room", lambda: test_no_room(model, folder))):
            guard(name, test)


run(main, "test_rough_serve", "serve")
