#!/usr/bin/env python3
# In make test alone: make check has test_serve.py.
"""test_doors.py -- what a server listens on and whom it lets in: TLS, sockets in the file system,
addresses that others can reach, Host and Origin, limits of bodies, connections and time. Each
with what is wrong."""
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile

from serving import LIMIT, Server, check, completion, raw_post, refused, run, skip, synth


LIVE = b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def certificate(folder, name):
    cert, key = os.path.join(folder, name + ".pem"), os.path.join(folder, name + ".key")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-keyout", key, "-out", cert], check=True,
                   capture_output=True)
    return cert, key


def test_tls(model, folder):
    if not shutil.which("openssl"):
        skip("tls", "openssl is not installed")
        return
    cert, key = certificate(folder, "one")
    other = certificate(folder, "two")[1]
    junk = os.path.join(folder, "junk")
    with open(junk, "w") as f:
        f.write("-----BEGIN CERTIFICATE-----\nnonsense\n")
    refused("certificate_without_key", 1, "belong together", model, "--tls-cert", cert)
    refused("key_without_certificate", 1, "belong together", model, "--tls-key", key)
    refused("absent_certificate", 2, "cannot open", model, "--tls-cert", cert + ".no", "--tls-key",
            key)
    refused("damaged_certificate", 3, "certificate", model, "--tls-cert", junk, "--tls-key", key)
    refused("another_certificates_key", 3, "certificate", model, "--tls-cert", cert, "--tls-key",
            other)
    with Server(model, "--tls-cert", cert, "--tls-key", key, wait=False) as s:
        plain = s.connect(LIVE)
        answer = plain.recv(100)
        plain.close()
        c = http.client.HTTPSConnection("localhost", s.port, timeout=LIMIT,
                                        context=ssl.create_default_context(cafile=cert))
        c.request("GET", "/live")
        check("tls", s.url.startswith("https://") and c.getresponse().status == 200
              and not answer.startswith(b"HTTP"), (s.url, answer))
        c.close()


def test_sockets(model, folder):
    path = os.path.join(folder, "file")
    with open(path, "w") as f:
        f.write("mine")
    refused("a_file_is_no_socket", 3, path, model, "--unix", path)
    with open(path) as f:
        check("and_is_left_alone", f.read() == "mine")
    refused("a_folder_that_is_not_there", 3, "No such file", model, "--unix",
            os.path.join(folder, "no", "socket"))
    refused("a_name_too_long", 3, "too long", model, "--unix", os.path.join(folder, "x" * 200))
    path = os.path.join(folder, "taken")
    with Server(model, "--unix", path) as s:
        refused("a_socket_in_use", 3, "another server", model, "--unix", path)
        s.process.kill()
    with Server(model, "--unix", path) as s:
        check("a_socket_of_a_killed_server", s.url == "unix:" + path, s.url)
        c = socket.socket(socket.AF_UNIX)
        c.settimeout(LIMIT)
        c.connect(path)
        c.sendall(LIVE)
        answer = c.recv(4096)
        c.close()
        check("a_socket_serves", answer.startswith(b"HTTP/1.1 200")
              and os.stat(path).st_mode & 0o77 == 0, answer)
    check("a_socket_is_removed", not os.path.exists(path))


def test_addresses(model):
    refused("reachable_without_a_key", 1, "api-key", model, "--host", "0.0.0.0")
    refused("a_short_key", 1, "key 2 of --api-key and --api-key-file has 5 characters, wanted 8",
            model, "--api-key", "long-enough", "--api-key", "ann:short")
    refused("a_short_admin_key", 1, "key 1 of --admin-key has 5 characters", model, "--api-key",
            "long-enough", "--admin-key", "short")
    refused("reachable_without_a_key_6", 1, "", model, "--host", "::")
    refused("no_such_host", 3, "no-such-host.invalid", model, "--host", "no-such-host.invalid")
    refused("a_port_that_is_none", 1, "--port", model, "--port", "70000")
    with Server(model) as s:
        refused("a_port_in_use", 3, "in use", model, "--port", str(s.port))


def test_lists_of_keys(model, folder):
    keys = os.path.join(folder, "keys")
    with open(keys, "w") as f:
        f.write("# a comment\ncal:with,comma\n\n")
    for name, flags, env in (("flag", ["--api-key", "ann:first-key,second-key,"], {}),
                             ("variable", [], {"PITH_API_KEY": "ann:first-key,second-key"})):
        with Server(model, *flags, "--api-key-file", keys, env=env) as s:
            got = [s.get("/v1/models", **{"x-api-key": k})[0]
                   for k in ("first-key", "second-key", "with,comma", "first-key,second-key",
                             "with", "")]
            check("keys with commas of a " + name, got == [200, 200, 200, 401, 401, 401], got)
    for text in ("", ",", ",,,,,,,,,,"):
        refused("no key in \"%s\"" % text, 1, "key 1 of --api-key and --api-key-file has 0", model,
                "--api-key", text)
    refused("a short one between commas", 1, "key 2 of --api-key and --api-key-file has 5", model,
            "--api-key", "first-key,short,third-key")
    with open(keys, "w") as f:
        f.write("# nothing\n\n")
    refused("a file without keys", 2, "has no key", model, "--api-key-file", keys)


def test_headers(model):
    with Server(model, "--allow-host", "llm.example", "--allow-origin",
                "https://page.example") as s:
        hosts = {"localhost": 200, "LOCALHOST:1": 200, "127.0.0.1": 200, "[::1]:80": 200,
                 "llm.example:9": 200, "evil.example": 403, "localhost.evil.example": 403, "": 403,
                 "127.evil.example": 403, "x" * 2000: 403}
        got = {h: s.ask("GET", "/v1/models", headers={"Host": h})[0] for h in hosts}
        check("hosts", got == hosts, got)
        origins = {"https://page.example": 200, "https://page.example.evil": 403,
                   "http://page.example": 403, "null": 403, "": 403, "x": 403}
        got = {o: s.ask("GET", "/v1/models", headers={"Origin": o})[0] for o in origins}
        check("origins", got == origins, got)
        ours = ["http://localhost:3000", "https://localhost", "http://127.0.0.1:5173",
                "http://[::1]:8000", "http://[::1]", "HTTP://LOCALHOST:1", "app://obsidian.md",
                "app://-", "tauri://localhost", "http://tauri.localhost", "vscode-webview://0a1b2c",
                "http://127.8.9.1"]
        got = {o: (lambda a: (a[0], a[2].getheader("Access-Control-Allow-Origin")))(s.ask("GET",
                        "/v1/models", headers={"Origin": o})) for o in ours}
        check("origins_of_this_machine", got == {o: (200, o) for o in ours}, got)
        theirs = ["http://localhost.evil.example", "http://localhost:80.evil.example",
                  "http://localhost@evil.example", "http://127.0.0.1.evil.example",
                  "http://[::1].evil.example", "http://[::1", "http://localhost:", "file://",
                  "file://localhost", "chrome-extension://localhost", "apps://x", "xapp://x",
                  "app:", "ftp://localhost", "http://10.0.0.1", "://localhost", "null://localhost",
                  "http://" + "x" * 255 + "localhost", "http://localhost/" + "x" * 300,
                  "http://evil.localhost"]
        got = {o: s.ask("GET", "/v1/models", headers={"Origin": o})[0] for o in theirs}
        check("origins_that_look_like_them", got == {o: 403 for o in theirs}, got)
        got = s.ask("GET", "/v1/models", headers={"Origin": "app://x", "Host": "evil.example"})[0]
        check("their_host_is_looked_at", got == 403, got)
        status, _, r = s.ask("OPTIONS", "/v1/completions",
                             headers={"Origin": "https://page.example",
                                      "Access-Control-Request-Method": "POST"})
        check("preflight", status == 200
              and r.getheader("Access-Control-Allow-Origin") == "https://page.example", status)


def test_reachable_ones(model):
    # Where others can reach the server, their localhost is not ours.
    with Server(model, "--host", "0.0.0.0", "--api-key", "ann:first-secret") as s:
        got = [s.ask("GET", "/v1/models", headers={"Origin": o, "x-api-key": "first-secret"})[0]
               for o in ("http://localhost:3000", "app://x", "tauri://localhost", "null")]
        check("origins_where_others_reach_it", got == [403] * 4, got)


def test_metrics(model):
    key = {"x-api-key": "first-secret"}
    with Server(model, "--api-key", "ann:first-secret", "--name", "hidden-name") as s:
        got = [s.get("/metrics")[0], s.get("/metrics", **{"x-api-key": "other-secret"})[0]]
        right = s.get("/metrics", **key)
        check("metrics_need_the_key",
              got == [401, 401] and right[0] == 200 and b"hidden-name" in right[1], (got, right))
        check("and_say_so", s.get("/openapi.json")[1]["paths"]["/metrics"]["get"]["security"] != [])
    two = ("--api-key", "ann:first-secret", "--api-key", "bob:second-secret",
           "--admin-key", "root:third-secret")
    bob, root = {"x-api-key": "second-secret"}, {"x-api-key": "third-secret"}
    with Server(model, *two, "--name", "hidden-name") as s:
        for n, k in ((2, key), (3, bob)):
            s.post("/v1/completions", completion("w1 w2", n), **k)
        names = {"pith:key_%s" % n for n in (
            "bytes", "bytes_peak", "work_seconds_total", "sampling_seconds_total", "steps_total",
            "requests_total", "prompt_tokens_total", "generation_tokens_total")}

        def lines(who):
            return dict(line.rsplit(" ", 1) for line in s.get("/metrics", **who)[1].decode()
                        .splitlines() if not line.startswith("#"))

        own = {k: "pith:key_generation_tokens_total{key=\"%s\"}" % k for k in ("ann", "bob")}
        s.wait_for(lambda: lines(bob).get(own["bob"]) == "3" and lines(key)[own["ann"]] == "2")
        for who, name, made in ((key, "ann", "2"), (bob, "bob", "3")):
            got = lines(who)
            check("a_key_sees_its_own_alone_" + name,
                  set(got) == {"%s{key=\"%s\"}" % (n, name) for n in names}
                  and got[own[name]] == made
                  and got["pith:key_requests_total{key=\"%s\"}" % name] == "1", got)
        got = lines(root)
        check("an_admin_sees_all", got[own["ann"]] == "2" and got[own["bob"]] == "3"
              and "pith:requests_bytes" in got and any("hidden-name" in n for n in got), got)
    with Server(model, *two, "--open-metrics") as s:
        check("open_metrics_tell_all", b'key="bob"' in s.get("/metrics")[1]
              and b"vllm:" in s.get("/metrics", **key)[1])
    with Server(model, "--api-key", "ann:first-secret", "--open-metrics") as s:
        check("open_metrics", [s.get("/metrics")[0], s.get("/v1/models")[0],
                               s.get("/openapi.json")[1]["paths"]["/metrics"]["get"]["security"]]
              == [200, 401, []])
        closed = [(method.upper(), path)
                  for path, ops in s.get("/openapi.json")[1]["paths"].items()
                  for method, op in ops.items() if op.get("security") != []]
        wrong = [(method, path) for method, path in closed
                 if s.ask(method, path, "{}" if method == "POST" else None)[0] != 401]
        check("open_metrics_open_nothing_else",
              not wrong and len(closed) > 20 and ("POST", "/completion") in closed,
              (wrong, closed))
    with Server(model) as s:
        check("metrics_without_keys", s.get("/metrics")[0] == 200)


def test_limits(model):
    with Server(model, "--max-body", "2K") as s:
        check("a_body_at_the_limit",
              s.post("/tokenize", b'{"content": "' + b"x" * (2048 - 15) + b'"}')[0] == 200)
        check("a_body_over_it", s.post("/tokenize",
                                       b'{"content": "' + b"x" * (2048 - 14) + b'"}')[0] == 413)
    with Server(model) as s:
        control = b'{"id":"x","action":"reasoning_end"}'
        for path, body in (("/v1/chat/completions/control", control),
                           ("/slots/0?action=erase", b"{}")):
            got = []
            for n in 65536, 65537:
                got.append(s.post(path, body.ljust(n))[0])
                c = s.connect(b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked"
                              b"\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (path.encode(), n, body.ljust(n)))
                got.append(int(c.recv(100)[9:12]))
                c.close()
            check("a_brief_body_" + path, 413 not in got[:2] and got[2:] == [413, 413], got)
    with Server(model, "--max-connections", "4", "--read-timeout", "1") as s:
        whole = raw_post("/tokenize", b"{" + b" " * 99)
        for name, part in (("a_head_that_does_not_come", whole[:50]),
                           ("a_body_that_does_not_come", whole[:-99])):
            half = s.connect(part)
            check(name, half.recv(10) == b"")
            half.close()
        held = [s.connect() for _ in range(8)]
        check("connections_over_the_limit_end_again", s.wait_for(lambda: answers(s)), "no answer")
        for c in held:
            c.close()
        check("and_it_serves", s.wait_for(lambda: answers(s))
              and s.post("/v1/completions", completion([3, 4], 2))[0] == 200)


def closed(c):
    """Its other end has been closed: what would have come later is not waited for."""
    c.settimeout(LIMIT)
    try:
        return c.recv(1) == b""
    except ConnectionResetError:
        return True


SLOW = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"


def test_full_of_silence(model):
    # Those that have asked nothing yet make room, whoever they are: one that is idle, one whose
    # head does not end.
    for name, flags in (("with_a_key", ["--api-key", "ann:first-secret"]), ("without_keys", [])):
        with Server(model, "--max-connections", "20", "--read-timeout", "0", *flags) as s:
            held = [s.connect(SLOW if i % 2 else b"") for i in range(200)]
            check("health_beside_silence_" + name,
                  [s.get(p)[0] for p in ("/health", "/live", "/ready")] == [200] * 3)
            check("and_requests_" + name,
                  s.post("/v1/completions", completion([3, 4], 2),
                         Authorization="Bearer first-secret")[0] == 200)
            check("the_oldest_has_gone_" + name, closed(held[0]) and closed(held[1]))
            n = s.open_files()
            check("and_most_of_them_" + name, n < 100, n)
            for c in held:
                c.close()


def test_unknown_ones(model):
    # One that has shown its key stays, idle as it is, when others of its address come and say
    # nothing; of these so many may be there.
    with Server(model, "--max-connections", "500", "--max-unknown", "8", "--read-timeout", "0",
                "--api-key", "ann:first-secret") as s:
        known = http.client.HTTPConnection("127.0.0.1", s.port, timeout=LIMIT)
        ask = (lambda: known.request("GET", "/v1/models",
                                     headers={"Authorization": "Bearer first-secret"})
               or known.getresponse().read() and known.sock.getsockname())
        first = ask()
        wrong = s.connect(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nx-api-key: "
                          b"not-the-one\r\n\r\n")
        told = wrong.recv(100)
        held = [s.connect(SLOW if i % 2 else b"") for i in range(100)]
        check("unknown_ones_go", all([closed(c) for c in held[:90]]))
        wrong.settimeout(LIMIT)
        check("a_wrong_key_makes_nobody_known",
              told.startswith(b"HTTP/1.1 401")
              and b"" in (wrong.recv(1 << 16), wrong.recv(1 << 16)), told)
        held[-1].sendall(b"x-api-key: first-secret\r\nConnection: close\r\n\r\n" + b" " * 1000)
        answer = held[-1].recv(100)
        check("the_youngest_may_ask", answer.startswith(b"HTTP/1.1 400"), answer)
        check("who_has_a_key_stays", ask() == first)
        known.close()


def test_full_of_requests(model):
    # All places are taken by answers that are being read: nobody goes, probes are answered, and
    # others are told. An answer that nobody reads makes room.
    body = completion([3, 4], 4000, stream=True)
    with Server(model, "--ctx", "4096", "--max-connections", "4", "--parallel", "8",
                "--read-timeout", "0") as s:
        held = [s.connect(raw_post("/v1/completions", body)) for _ in range(4)]
        begun = [c.recv(100) for c in held]
        told = s.post("/v1/completions", completion([3, 4], 2))
        check("health_beside_requests",
              all(b.startswith(b"HTTP/1.1 200") for b in begun) and s.get("/health")[0] == 200,
              begun)
        check("others_are_told", told[0] == 503 and told[1]["error"]["code"] == "connections_full"
              and told[2].getheader("Retry-After") == "1", told)
        idle = [s.connect() for _ in range(100)]
        check("health_beside_both", s.get("/live")[0] == 200 and closed(idle[0]))
        for c in held[1:]:
            c.close()
        check("room_again", s.wait_for(lambda: s.post("/v1/completions", completion([3, 4], 2))[0]
                                       == 200))


def test_answers_unread(model):
    # /openapi.json over and over on one connection, and nothing of it is read.
    much = (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
            + b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400)
    with Server(model, "--max-connections", "4", "--read-timeout", "0") as s:
        held = [s.connect() for _ in range(4)]
        for c in held:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            c.sendall(much)
        check("who_does_not_read_makes_room",
              s.wait_for(lambda: s.post("/v1/completions", completion([3, 4], 2))[0] == 200))
        for c in held:
            c.close()


def test_bodies(model):
    # Bodies of one key that are being read have room for so many bytes: those beyond are told, and
    # the room comes back.
    with Server(model, "--max-body", "1M") as s:
        whole = raw_post("/tokenize", b"{" + b" " * ((1 << 20) - 1))
        held = [s.connect(whole[:-1]) for _ in range(90)]
        got = []
        for c in held:
            c.sendall(whole[-1:])
            got.append(int(c.recv(100)[9:12]))
            c.close()
        check("bodies_together", set(got) == {400, 429} and got.count(400) > 16, got)
        check("bodies_are_let_go", s.post("/tokenize", b"{" + b" " * ((1 << 20) - 1))[0] == 400)


def test_body_of_a_stream(folder):
    # A stream may last for hours: what it was asked with is let go of when it begins.
    model = synth(os.path.join(folder, "long.gguf"), "--ctx", "65536", "--layers", "2", "--seed",
                  "9")
    with Server(model, "--ctx", "65536") as s:
        s.post("/v1/chat/completions",
               {"messages": [{"role": "user", "content": "w3"}], "max_tokens": 2})
        before = s.memory()
        body = {"messages": [{"role": "user", "content": "w3"}], "stream": True,
                "max_tokens": 60000, "ignore_eos": True,
                "prediction": {"content": "x" * (30 << 20)}}
        c = s.connect(raw_post("/v1/chat/completions", body))
        first = c.recv(100)
        runs = s.wait_for(lambda: not s.at_rest())
        good = s.wait_for(lambda: s.memory() < before + (16 << 20) or s.at_rest())
        check("a_body_is_not_kept_by_its_stream",
              first.startswith(b"HTTP/1.1 200") and runs and good and not s.at_rest(),
              (first, before, s.memory()))
        c.close()


def test_log(model):
    # A key whose name is no text.
    with Server(model, "--no-log=no", "--api-key", os.fsdecode(b"a\xff:first-secret")) as s:
        s.get("/v1/models", Authorization="Bearer first-secret")
        s.end()
        keys = [json.loads(line)["key"] for line in s.said.splitlines() if '"/v1/models"' in line]
        check("any_key_is_logged", keys == ["a\ufffd"], keys)
    with Server(model, "--no-log=no") as s:
        items = [{"type": "ghost_snapshot"}] * 100
        body = {"input": items + [{"role": "user", "content": "w5"}], "max_output_tokens": 1}
        header = s.post("/v1/responses", body)[2].getheader("x-pith-ignored")
        many = s.post("/v1/responses", {**body, "input": items * 20 + body["input"][-1:]})
        s.end()
        told = [json.loads(line)["ignored"] for line in s.said.splitlines() if '"ignored"' in line]
        check("the_log_has_all_that_is_ignored", len(header) < 512 and told[0]
              == ", ".join("input[%d] ghost_snapshot" % i for i in range(100)), (header, told[0]))
        check("up_to_a_bound", many[0] == 200 and 15000 < len(told[1]) < 16384
              and told[1].endswith("ghost_snapshot, ..."), (many, told[1][-100:]))


def answers(s):
    try:
        return s.get("/health")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "m.gguf"), "--ctx", "4096", "--layers", "2", "--seed",
                      "5")
        test_addresses(model)
        test_lists_of_keys(model, folder)
        test_sockets(model, folder)
        test_tls(model, folder)
        test_headers(model)
        test_reachable_ones(model)
        test_metrics(model)
        test_limits(model)
        test_full_of_silence(model)
        test_unknown_ones(model)
        test_full_of_requests(model)
        test_answers_unread(model)
        test_log(model)
        test_bodies(model)
        test_body_of_a_stream(folder)


run(main, "test_doors")
