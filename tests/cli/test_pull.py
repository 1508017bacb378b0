# In make test alone: it takes long at any scale.
"""test_pull.py -- pith pull against servers of this machine that break connections, lie, send
elsewhere, refuse, ignore what they are asked for and serve wrong bytes. A server does what the
test has put down for a path, one answer after the other, and keeps what it was asked; nothing
here waits for time to pass."""
import hashlib
import http.server
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import tempfile
import threading

from report import LIMIT, PITH, SCALE, check, run, skip, synth, wait_for


class Server(http.server.ThreadingHTTPServer):
    """answers: path -> list of functions of the request; the last one stays."""
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.port = self.server_address[1]
        self.url = "http://127.0.0.1:%d" % self.port
        self.other = "http://localhost:%d" % self.port  # the same server under another host's name
        self.reset()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def reset(self):
        self.answers, self.asked, self.sent = {}, [], 0

    def put(self, path, *answers):
        self.answers[path] = list(answers)

    def get(self, path, header):
        """What each request for the path had in this header."""
        return [h.get(header) for p, h in self.asked if p == path]

    def handle_error(self, request, client_address):
        pass


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        path = self.path
        self.server.asked.append((path, dict(self.headers)))
        todo = self.server.answers.get(path) or self.server.answers.get(path.split("?")[0])
        if not todo:
            return status(404)(self)
        (todo.pop(0) if len(todo) > 1 else todo[0])(self)

    def begin(self, code, **headers):
        self.send_response(code)
        for k, v in headers.items():
            self.send_header(k.replace("_", "-"), str(v))
        self.end_headers()

    def send(self, data):
        self.server.sent += len(data)
        self.wfile.write(data)
        self.wfile.flush()

    def gone(self):
        """Until the client has left."""
        self.connection.settimeout(LIMIT)
        try:
            self.connection.recv(1)
        except OSError:
            pass
        self.close_connection = True


def status(code, **headers):
    return lambda r: r.begin(code, Content_Length=0, **headers)


def text(body, code=200):
    data = body if isinstance(body,
                              bytes) else (body if isinstance(body, str)
                                           else json.dumps(body)).encode()

    def answer(r):
        r.begin(code, Content_Length=len(data), Content_Type="application/json")
        r.wfile.write(data)

    return answer


def go(to, code=302, **headers):
    return status(code, Location=to, **headers)


def start_of(r, data, etag):
    """Where the answer begins, as the request wants it."""
    wanted = r.headers.get("Range")
    if wanted and r.headers.get("If-Range") in (None, etag):
        return int(wanted[len("bytes="):-1])
    return 0


def file(data, etag='"v1"', cut=None, hold=None, length=None, ranges=True, from_=None,
         say_etag=True, pieces=1, after=None):
    """cut: bytes of the file after which the connection ends; hold: the same, but it waits until
    the client leaves, or for this event (after)."""

    def answer(r):
        at = start_of(r, data, etag) if ranges else 0
        if at and at >= len(data):
            return status(416, Content_Range="bytes */%d" % len(data))(r)
        headers = {"ETag": etag} if say_etag else {}
        if at:
            headers["Content_Range"] = "bytes %d-%d/%d" % (at if from_ is None else from_,
                                                           len(data) - 1, len(data))
        body = data[at:]
        stop = cut if cut is not None else hold
        r.begin(206 if at else 200, Content_Length=len(body) if length is None else length,
                **headers)
        part = body if stop is None else body[:max(0, stop - at)]
        step = max(1, len(part) // pieces)
        for i in range(0, len(part), step):
            r.send(part[i:i + step])
        if after:
            after.wait(LIMIT)
            r.send(body[len(part):])
        elif hold is not None:
            r.gone()
        elif len(part) != (len(body) if length is None else length):
            r.close_connection = True

    return answer


def piece(data, size, total="*"):
    """So many bytes behind those that are asked for, of a file whose size is not told."""
    def answer(r):
        at = start_of(r, data, '"v1"')
        if at >= len(data):
            return status(416, **({"Content_Range": "bytes */%s" % total}
                                  if total != "*" else {}))(r)
        part = data[at:at + size]
        r.begin(206, Content_Length=len(part), ETag='"v1"',
                Content_Range="bytes %d-%d/*" % (at, at + len(part) - 1))
        r.send(part)

    return answer


def first_of(data, size):
    """The same of an answer without a length that breaks."""
    def answer(r):
        r.begin(200, Transfer_Encoding="chunked", ETag='"v1"')
        r.send(b"%x\r\n" % size + data[:size] + b"\r\n")
        r.close_connection = True

    return answer


def chunked(data, whole=True):
    def answer(r):
        r.begin(200, Transfer_Encoding="chunked")
        r.send(b"%x\r\n" % len(data) + data + b"\r\n" + (b"0\r\n\r\n" if whole else b""))
        r.close_connection = True

    return answer


class Place:
    """A folder for models, and pith with it."""

    def __init__(self, server):
        self.server = server
        self.folder = tempfile.TemporaryDirectory()
        self.dir = os.path.join(self.folder.name, "models")
        self.env = {k: v for k, v in os.environ.items()
                    if not k.startswith(("HF_", "PITH_", "XDG_", "HUGGING", "OLLAMA", "LLAMA"))
                    and not k.lower().endswith("_proxy")}
        self.env.update(HOME=self.folder.name, PITH_MODELS=self.dir, HF_ENDPOINT=server.url,
                        PITH_OLLAMA_REGISTRY=server.url, PITH_BACKOFF="0",
                        PITH_CACHE=self.folder.name)

    def start(self, *args, env=None, **more):
        return subprocess.Popen([PITH, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, errors="replace",
                                env={**self.env, **(env or {})}, **more)

    def run(self, *args, env=None):
        p = self.start(*args, env=env)
        try:
            out, err = p.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            p.kill()
            out, err = p.communicate()
            err += "(hung)"
        return p.returncode, out, err

    def pull(self, name, *flags, env=None):
        return self.run("pull", name, *flags, env=env)

    def files(self):
        return sorted(os.path.relpath(os.path.join(d, f), self.dir)
                      for d, _, names in os.walk(self.dir) for f in names)

    def read(self, path):
        with open(os.path.join(self.dir, path), "rb") as f:
            return f.read()

    def grown(self, path, size):
        """Waits until the file has so many bytes."""
        file = os.path.join(self.dir, path)
        return wait_for(lambda: os.path.exists(file) and os.path.getsize(file) >= size)


def sha(data):
    return hashlib.sha256(data).hexdigest()


def listing(**files):
    """What the hub says of a repository; a value is bytes, or (size, sha256)."""
    rows = [{"rfilename": "README.md", "size": 5}]
    for name, data in files.items():
        size, digest = data if isinstance(data, tuple) else (len(data), sha(data))
        rows.append({"rfilename": name, "size": size,
                     "lfs": {"sha256": digest, "size": size, "pointerSize": 134}})
    return {"id": "o/r", "sha": "c" * 40, "siblings": rows}


API, RAW = "/api/models/o/r/revision/main", "/o/r/resolve/" + "c" * 40 + "/m-Q4_K_M.gguf"
HUB = "hf/o/r/m-Q4_K_M.gguf"


def gguf(keys):
    """A file with these keys (text, or a number as u16) and no tensors."""
    s = lambda t: struct.pack("<Q", len(t)) + t.encode()
    body = b"".join(s(k) + (struct.pack("<I", 8) + s(v) if isinstance(v, str)
                            else struct.pack("<IH", 2, v)) for k, v in keys.items())
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + body


class Case:
    """One server's and one folder's worth of tests, all of one repository with one file."""

    def __init__(self, server, model):
        self.s, self.model = server, model

    def fresh(self, *answers, name="m-Q4_K_M.gguf", data=None):
        self.s.reset()
        self.s.put(API, text(listing(**{name: self.model if data is None else data})))
        self.s.put(RAW, *(answers or (file(self.model),)))
        return Place(self.s)

    def good(self, name, place, result, path=HUB):
        rc, out, err = result
        where = os.path.join(place.dir, path)
        check(name, rc == 0 and out == where + "\n" and place.files() == [path]
              and place.read(path) == self.model, (rc, out, err, place.files()))

    def bad(self, name, place, result, code, message, left=()):
        rc, out, err = result
        check(name, rc == code and message in err and not out and place.files() == sorted(left),
              (rc, err, place.files()))


def test_hub(c):
    p = c.fresh()
    r = p.pull("hf:o/r")
    c.good("hub", p, r)
    steps = [line for line in r[2].splitlines() if " %, " in line]
    check("progress_by_tenths", 1 <= len(steps) <= 10 and "100 %" in steps[-1], steps)
    r = p.pull("hf:o/r:q4_k_m")
    check("here_already", r[0] == 0 and "is here already, with the right SHA-256" in r[2]
          and len(c.s.get(RAW, "Host")) == 1, r)
    with open(os.path.join(p.dir, HUB), "r+b") as f:
        f.seek(1000)
        f.write(b"x")
    r = p.pull("hf:o/r")
    check("other_bytes_here", "other bytes" in r[2], r)
    c.good("fetched_anew", p, r)
    p = c.fresh()
    cached = p.folder.name + "/.cache/huggingface/hub/models--o--r/snapshots/1/m-Q4_K_M.gguf"
    os.makedirs(os.path.dirname(cached))
    with open(cached, "wb") as f:
        f.write(c.model)
    r = p.pull("hf:o/r")
    with open(cached, "r+b") as f:  # another revision of the same size
        f.seek(1000)
        f.write(b"x")
    stale = p.pull("hf:o/r")
    c.good("others_have_a_stale_one", p, stale)
    check("others_have_it", r[:2] == (0, cached + "\n") and "in the folder of huggingface" in r[2]
          and len(c.s.get(RAW, "Host")) == 1, r)
    with open(cached, "ab") as f:
        f.write(b"x")
    c.good("others_have_another", p, p.pull("hf:o/r"))
    p = c.fresh()
    c.good("hub_address", p, p.pull(c.s.url + "/o/r/resolve/main/m-Q4_K_M.gguf?download=true"))
    c.good("hub_page", p, p.pull(c.s.url + "/o/r/blob/main/m-Q4_K_M.gguf"))


def test_run(c):
    p = c.fresh()
    rc, out, err = p.run("run", "hf:o/r", "-p", "w1", "-n", "3", "--temp", "0", "--threads", "1")
    check("run_pulls", rc == 0 and out and "fetching it" in err and p.files() == [HUB],
          (rc, out, err))
    n = len(c.s.asked)
    again = p.run("run", "hf:o/r", "-p", "w1", "-n", "3", "--temp", "0", "--threads", "1")
    check("run_asks_nobody_again", again[:2] == (rc, out) and len(c.s.asked) == n, again)
    by_name = p.run("run", "m-Q4_K_M", "-p", "w1", "-n", "3", "--temp", "0", "--threads", "1")
    check("run_by_name", by_name[:2] == (rc, out), by_name)
    p = c.fresh(status(404))
    c.bad("run_not_found", p, p.run("run", "hf:o/r", "-p", "x"), 2, "not found, status 404")
    n = len(c.s.asked)
    c.bad("wrong_use_before_fetching", p, p.run("run", "hf:o/r", "-p", "-", "-f", "y"), 1,
          "found both")
    check("wrong_use_asks_nobody", len(c.s.asked) == n)


def test_serve(c):
    p = c.fresh()
    if p.run("serve", "--help")[0]:
        return skip("serve_pulls", "built without the server")
    q = p.start("serve", "hf:o/r", "--port", "0", "--threads", "1")
    url = q.stdout.readline()
    q.send_signal(signal.SIGTERM)
    out, err = q.communicate(timeout=LIMIT)
    check("serve_pulls", url.startswith("http://") and q.returncode in (0, 130)
          and "fetching it" in err and p.files() == [HUB], (url, q.returncode, err))


def test_token(c):
    """Who gets it. 127.0.0.1 and localhost are two hosts; so are two ports."""
    elsewhere = Server()
    token = {"HF_TOKEN": "hf_secret"}
    for name, url, wanted in (("same_host", c.s.url + "/there", "Bearer hf_secret"),
                              ("relative", "/there", "Bearer hf_secret"),
                              ("other_host", c.s.other + "/there", None),
                              ("other_port", elsewhere.url + "/there", None)):
        p = c.fresh(go(url))
        elsewhere.reset()
        for s in (c.s, elsewhere):
            s.put("/there", file(c.model))
        c.good("redirect_" + name, p, p.pull("hf:o/r", env=token))
        got = (elsewhere if "port" in name else c.s).get("/there", "Authorization")
        check("token_" + name, c.s.get(RAW, "Authorization") == ["Bearer hf_secret"]
              and got == [wanted], got)
    # There and back: what comes back to the hub may have it again, what lies between may not.
    p = c.fresh(go(elsewhere.url + "/hop"))
    elsewhere.put("/hop", go(c.s.url + "/back"))
    c.s.put("/back", file(c.model))
    c.good("redirect_back", p, p.pull("hf:o/r", env=token))
    check("token_back", elsewhere.get("/hop", "Authorization") == [None]
          and c.s.get("/back", "Authorization") == ["Bearer hf_secret"])
    # An address of another host, and Ollama's registry, are nobody's business.
    elsewhere.put("/a/x.gguf", file(c.model))
    p = c.fresh()
    p.pull(elsewhere.url + "/a/x.gguf", env=token)
    check("token_other_address", elsewhere.get("/a/x.gguf", "Authorization") == [None])
    p.pull("ollama:x", env=token)
    check("token_registry", c.s.get("/v2/library/x/manifests/latest", "Authorization") == [None])
    # From its file; a token that is none is not sent.
    p = c.fresh()
    os.makedirs(p.folder.name + "/.cache/huggingface")
    with open(p.folder.name + "/.cache/huggingface/token", "w") as f:
        f.write("hf_file\n")
    p.pull("hf:o/r")
    check("token_file", c.s.get(API + "?blobs=true", "Authorization") == ["Bearer hf_file"],
          c.s.asked)
    p = c.fresh()
    p.pull("hf:o/r", env={"HF_TOKEN": "\x01\u00e9"})
    check("token_of_odd_bytes", c.s.get(API + "?blobs=true", "Authorization") == [None])
    elsewhere.shutdown()


def test_redirects(c):
    for name, to, message in (("loop", RAW, "redirected for the 11th time"),
                              ("plain_http", "http://example.org/x", "where we do not go"),
                              ("file", "file:///etc/passwd", "where we do not go"),
                              ("password", "http://a:b@127.0.0.1:1/x", "where we do not go"),
                              ("like_loopback", "http://127.0.0.1.example.org/x",
                               "where we do not go"), ("nowhere", "", "where we do not go"),
                              ("nonsense", "http://[", "where we do not go"),
                              ("control", "http://x\x7f/y", "where we do not go")):
        p = c.fresh(go(to))
        c.bad("redirect_" + name, p, p.pull("hf:o/r"), 3, message)
    p = c.fresh(go("/1"))
    for i in range(1, 10):
        c.s.put("/%d" % i, go("/%d" % (i + 1), (301, 303, 307, 308)[i % 4]))
    c.s.put("/10", file(c.model))
    c.good("redirect_ten_times", p, p.pull("hf:o/r"))


def test_broken(c):
    n = len(c.model)
    cuts = [n // 7, n // 7 + 1, n // 2, n - 1]
    p = c.fresh(*(file(c.model, cut=k) for k in cuts), file(c.model))
    r = p.pull("hf:o/r")
    c.good("broken_connections", p, r)
    check("resumed_exactly", c.s.sent == n and c.s.get(RAW, "Range") == [None]
          + ["bytes=%d-" % k for k in cuts], (c.s.sent, n, c.s.get(RAW, "Range")))
    p = c.fresh(file(c.model, cut=n // 2))
    r = p.pull("hf:o/r", "--retries", "2")
    c.bad("always_broken", p, r, 3, "tried 3 times", [HUB + ".part", HUB + ".part.json"])
    check("kept_is_told", "%d bytes are kept" % (n // 2) in r[2], r)
    c.s.put(RAW, file(c.model))
    before = c.s.sent
    c.good("next_pull_goes_on", p, p.pull("hf:o/r"))
    check("next_pull_reads_the_rest", c.s.sent - before == n - n // 2)
    p = c.fresh(file(c.model, cut=n // 2), file(c.model, ranges=False))
    r = p.pull("hf:o/r")
    c.good("ranges_ignored", p, r)
    check("ranges_ignored_is_told", "begins at the beginning" in r[2], r)
    p = c.fresh(file(c.model, cut=n // 2), file(c.model, from_=n // 2 - 5), file(c.model))
    c.good("other_range", p, p.pull("hf:o/r"))
    p = c.fresh(file(c.model, cut=n // 2), file(c.model, from_=0), file(c.model, cut=n // 2),
                file(c.model, from_=0))
    c.bad("other_ranges_always", p, p.pull("hf:o/r"), 3, "does not give the bytes",
          [HUB + ".part", HUB + ".part.json"])
    p = c.fresh(file(c.model, cut=n // 2), status(416), file(c.model))
    c.good("range_refused", p, p.pull("hf:o/r"))
    p = c.fresh(status(416))
    c.bad("range_refused_without_one", p, p.pull("hf:o/r"), 2, "status 416")
    p = c.fresh(file(c.model, hold=n // 3), file(c.model))
    c.good("stalled", p, p.pull("hf:o/r", "--stall", "0.5"))
    p = c.fresh(file(c.model, pieces=500))
    c.good("in_small_pieces", p, p.pull("hf:o/r"))
    p = c.fresh(lambda r: r.begin(200, **{"X-%d" % i: "y" * 1000 for i in range(400)}))
    c.bad("header_flood", p, p.pull("hf:o/r", "--retries", "0"), 3, "tried 1 times")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = "http://127.0.0.1:%d" % free.getsockname()[1]
    # nobody has said anything yet: told at once, however many tries there might be
    r = p.pull(closed + "/x.gguf", "--retries", "1000")
    c.bad("nobody_there", p, r, 3, "check the address")
    check("nobody_there_is_told_once", "trying again" not in r[2] and "tried" not in r[2], r)
    # a label of a name has at most 63 letters: no resolver asks anybody about this one
    r = p.pull("https://" + "no" * 40 + ".invalid/x.gguf", "--retries", "1000")
    c.bad("no_such_host", p, r, 3, "check the address")
    check("no_such_host_is_told_once", "trying again" not in r[2], r)
    p = c.fresh(go(closed + "/x.gguf"))
    r = p.pull("hf:o/r", "--retries", "2")
    c.bad("gone_after_it_has_spoken", p, r, 3, "tried 3 times")


def test_lies(c):
    n = len(c.model)
    p = c.fresh(file(c.model, length=n + 1000))
    c.bad("longer_than_listed", p, p.pull("hf:o/r"), 2,
          "has %d bytes for it, and there should be %d" % (n + 1000, n))
    p = c.fresh(file(c.model[:-10]))
    c.bad("shorter_than_listed", p, p.pull("hf:o/r"), 2, "has %d bytes" % (n - 10))
    p = c.fresh(chunked(c.model + b"more"))
    c.bad("more_than_listed", p, p.pull("hf:o/r"), 2, "sends more than")
    p = c.fresh(file(c.model[:100] + b"X" + c.model[101:]))
    c.bad("wrong_byte", p, p.pull("hf:o/r"), 2, "wrong bytes: SHA-256")
    c.s.put(RAW, file(c.model))
    c.good("right_bytes_then", p, p.pull("hf:o/r"))
    p = c.fresh(data=(10 ** 18, "0" * 64))
    c.bad("no_such_room", p, p.pull("hf:o/r"), 2, "there should be 1000000000000000000")
    p = c.fresh(chunked(c.model), data=(10 ** 18, "0" * 64))
    c.bad("no_room", p, p.pull("hf:o/r"), 3, "make room")
    # A file whose SHA-256 is right and which is no model is what the hub has.
    junk = b"GGUF" + b"\0" * 100
    p = c.fresh(file(junk), data=junk)
    r = p.pull("hf:o/r")
    check("right_and_no_model", r[0] == 2 and "it is kept" in r[2] and p.files() == [HUB], r)


def test_address(c):
    """Plain files: nothing but a tag or a date says what they are."""
    n, path = len(c.model), "http/127.0.0.1_%d/a/b_20c.gguf" % c.s.port
    url = c.s.url + "/a/b%20c.gguf"
    left = [path + ".part", path + ".part.json"]
    new = c.model[:-1] + bytes([c.model[-1] ^ 1])

    def fresh(*answers):
        c.s.reset()
        c.s.put("/a/b%20c.gguf", *answers)
        return Place(c.s)

    p = fresh(file(c.model))
    r = p.pull(url)
    c.good("address", p, r, path)
    check("no_hash_is_told", "tells no SHA-256" in r[2], r)
    check("address_here", "is here already" in p.pull(url)[2] and len(c.s.asked) == 1)
    check("found_by_address", p.run("inspect", url)[0] == 0 and len(c.s.asked) == 1)
    # What differs in the query alone is another file.
    p = fresh(file(c.model), file(new))
    got = [p.pull(url + "?x=1"), p.pull(url + "?x=2")]
    folders = sorted(f.split("/")[3] for f in p.files())
    check("queries_have_files_of_their_own",
          [g[0] for g in got] == [0, 0] and len(folders) == 2
          and sorted(map(p.read, p.files())) == sorted([c.model, new]), (got, p.files()))
    check("the_same_query_is_the_same_file",
          "is here already" in p.pull(url + "?x=2")[2]
          and "is here already" in p.pull(url + "?x=1#part")[2] and len(c.s.asked) == 2)
    check("found_by_its_query", [p.run("inspect", url + q)[0] for q in ("?x=1", "?x=2")] == [0, 0]
          and len(c.s.asked) == 2)
    p = fresh(file(c.model))
    c.good("no_query_after_all", p, p.pull(url + "?"), path)
    p = fresh(file(c.model, cut=n // 2), file(c.model))
    c.good("if_range", p, p.pull(url), path)
    check("if_range_asked", c.s.sent == n
          and [h.get("If-Range") for _, h in c.s.asked] == [None, '"v1"'], c.s.asked)
    p = fresh(file(c.model, cut=n // 2), file(new, etag='"v2"'))
    r = p.pull(url)
    check("changed_meanwhile", r[0] == 0 and p.read(path) == new, r)
    p = fresh(file(c.model, cut=n // 2),
              lambda q: (q.headers.replace_header("If-Range", '"v2"'), file(new, etag='"v2"')(q)),
              file(new, etag='"v2"'))
    r = p.pull(url)
    check("changed_and_if_range_ignored", r[0] == 0 and p.read(path) == new, r)
    p = fresh(file(c.model, cut=n // 2, say_etag=False), file(c.model, say_etag=False))
    c.good("nothing_to_know_it_by", p, p.pull(url), path)
    check("nothing_to_know_it_by_anew", c.s.sent == n + n // 2, c.s.sent)
    p = fresh(chunked(c.model))
    c.good("no_length", p, p.pull(url), path)
    p = fresh(chunked(c.model, whole=False), chunked(c.model))
    c.good("no_length_broken", p, p.pull(url), path)
    # Ranges of a file whose size nobody tells: the first is not the whole rest.
    for name, total in (("pieces", "*"), ("pieces_and_their_sum", n)):
        p = fresh(first_of(c.model, n // 3), piece(c.model, n // 5, total))
        c.good(name, p, p.pull(url), path)
    p = fresh(first_of(c.model, n // 3), piece(c.model, 1))
    c.bad("pieces_without_end", p, p.pull(url), 3, "does not tell where it ends", left)
    p = fresh(first_of(c.model, n // 3), piece(c.model, n // 5, n + 5))
    c.bad("pieces_and_another_sum", p, p.pull(url, "--retries", "1"), 3, "", left)
    p = fresh(file(c.model[:n // 2]))
    c.bad("cut_short", p, p.pull(url), 2, "thrown away")
    p = fresh(file(c.model, length=n + 1000))
    c.bad("length_never_reached", p, p.pull(url, "--retries", "2"), 3, "does not give", left)
    p = fresh(text("<html>sign in</html>"))
    c.bad("page", p, p.pull(url), 2, "no GGUF file")
    p = fresh(file(b""))
    c.bad("empty", p, p.pull(url), 2, "empty file")
    # The hub's own word on a file that was not looked up.
    linked = "/o/r/resolve/v1/m.gguf"
    for name, data in (("linked_hash", c.model), ("linked_hash_wrong", new)):
        c.s.reset()
        c.s.put(linked, go("/cdn", X_Linked_ETag='"%s"' % sha(c.model), X_Linked_Size=n))
        c.s.put("/cdn", file(data, cut=n // 2), file(data))
        p = Place(c.s)
        r = p.pull(c.s.url + linked)
        check(name, (r[0] == 0) == (data == c.model)
              and ("wrong bytes" in r[2]) == (data != c.model), r)


def test_statuses(c):
    for code, exit_code, message in ((400, 2, "status 400"), (401, 2, "set HF_TOKEN"),
                                     (403, 2, "set HF_TOKEN"), (404, 2, "check the name"),
                                     (410, 2, "check the name"), (418, 2, "status 418"),
                                     (204, 2, "status 204"), (304, 2, "status 304"),
                                     (500, 3, "status 500; tried 3"), (501, 2, "status 501"),
                                     (503, 3, "status 503; tried 3"),
                                     (429, 3, "status 429; tried 3")):
        for what, where in (("listing", API), ("file", RAW)):
            if SCALE < 10 and what == "file" and code not in (401, 404, 304, 500):
                continue
            p = c.fresh()
            c.s.put(where, status(code, X_Error_Message="Said\x1b[31m so"))
            r = p.pull("hf:o/r", "--retries", "2")
            c.bad("status_%d_%s" % (code, what), p, r, exit_code, message)
            check("status_%d_%s_is_clean" % (code, what), "\x1b" not in r[2], r)
    p = c.fresh(status(401))
    r = p.pull("hf:o/r", env={"HF_TOKEN": "hf_x"})
    check("token_refused", r[0] == 2 and "(HF_TOKEN) does not open it" in r[2]
          and "hf_x" not in r[2], r)
    p = c.fresh(status(429, Retry_After="0"), status(500),
                status(503, Retry_After="Thu, 01 Jan 1970 00:00:00 GMT"), file(c.model))
    c.s.put(API, status(502), text(listing(**{"m-Q4_K_M.gguf": c.model})))
    r = p.pull("hf:o/r")
    c.good("passing_statuses", p, r)
    check("tries_are_told", "trying again in 0 s (3 of 6)" in r[2], r)
    p = c.fresh(status(429, Retry_After="9999"))
    c.bad("too_long_to_wait", p, p.pull("hf:o/r"), 3, "asks to come back in 9999 s")
    p = c.fresh(file(c.model, cut=1000), status(404))
    c.bad("gone_in_the_middle", p, p.pull("hf:o/r"), 2, "not found",
          [HUB + ".part", HUB + ".part.json"])


def test_killed(c):
    n = len(c.model)
    p = c.fresh(file(c.model, hold=n // 2), file(c.model))
    q = p.start("pull", "hf:o/r")
    grown = p.grown(HUB + ".part", n // 2)
    q.kill()
    q.communicate()
    check("killed_leaves_part", grown and p.files() == [HUB + ".part", HUB + ".part.json"],
          p.files())
    listed = json.loads(p.run("list", "--json")[1])
    check("killed_is_listed", [(m["name"], m["complete"], m["source"]) for m in listed]
          == [("m-Q4_K_M", False, "hf:o/r")], listed)
    before = c.s.sent
    c.good("killed_goes_on", p, p.pull("hf:o/r"))
    check("killed_reads_the_rest", c.s.sent - before == n - n // 2, c.s.sent - before)
    for name, sig in (("interrupt", signal.SIGINT), ("terminate", signal.SIGTERM)):
        p = c.fresh(file(c.model, hold=n // 2), file(c.model))
        q = p.start("pull", "hf:o/r")
        p.grown(HUB + ".part", n // 2)
        q.send_signal(sig)
        out, err = q.communicate(timeout=LIMIT)
        check(name, q.returncode == 130 and "the same command goes on" in err and HUB
              + ".part" in p.files(), (q.returncode, err, p.files()))
        c.good(name + "_goes_on", p, p.pull("hf:o/r"))
    # What lies there is not the beginning of it: another file, no note, a note that is none, too
    # much.
    for name, note, part in (("other_part",
                              {"url": "x", "etag": "", "modified": "", "sha256": "0" * 64},
                              c.model[:50]),
                             ("bad_note", "[", c.model[:50]),
                             ("large_part", {"sha256": sha(c.model)}, c.model + b"x")):
        p = c.fresh()
        os.makedirs(os.path.join(p.dir, "hf/o/r"))
        with open(os.path.join(p.dir, HUB + ".part"), "wb") as f:
            f.write(part)
        with open(os.path.join(p.dir, HUB + ".part.json"), "w") as f:
            f.write(note if isinstance(note, str) else json.dumps(note))
        c.good(name, p, p.pull("hf:o/r"))
        check(name + "_anew", c.s.get(RAW, "Range") == [None], c.s.get(RAW, "Range"))
    # Somebody else's file of that name stays as it is.
    p = c.fresh()
    os.makedirs(os.path.join(p.dir, "hf/o/r"))
    with open(os.path.join(p.dir, HUB + ".part"), "wb") as f:
        f.write(b"not ours")
    code, out, err = p.pull("hf:o/r")
    check("foreign_part", code == 2 and "was not left by a pull" in err
          and p.files() == [HUB + ".part"] and p.read(HUB + ".part") == b"not ours", (code, err))
    # All of it was there but its name.
    p = c.fresh()
    os.makedirs(os.path.join(p.dir, "hf/o/r"))
    with open(os.path.join(p.dir, HUB + ".part"), "wb") as f:
        f.write(c.model)
    with open(os.path.join(p.dir, HUB + ".part.json"), "w") as f:
        json.dump({"sha256": sha(c.model)}, f)
    c.good("whole_part", p, p.pull("hf:o/r"))
    check("whole_part_asks_nothing", c.s.get(RAW, "Range") == [])


def test_two_at_once(c):
    let_go = threading.Event()
    p = c.fresh(file(c.model, hold=100, after=let_go), file(c.model))
    a = p.start("pull", "hf:o/r")
    p.grown(HUB + ".part", 100)
    busy = p.run("rm", "m-Q4_K_M", "--yes")
    check("rm_takes_nothing_then", p.files() != [], p.files())
    check("rm_while_pulling", busy[0] == 3 and "being fetched" in busy[2], busy)
    b = p.start("pull", "hf:o/r")
    line = b.stderr.readline()
    let_go.set()
    out = [q.communicate(timeout=LIMIT) for q in (a, b)]
    check("second_waits", "another pull of it is under way" in line, line)
    check("both_have_it", a.returncode == b.returncode == 0 and out[0][0] == out[1][0]
          and p.files() == [HUB] and p.read(HUB) == c.model, out)
    check("fetched_once", len(c.s.get(RAW, "Host")) == 1 and "is here already" in out[1][1], out)
    # The first one dies: the second takes over what it left.
    p = c.fresh(file(c.model, hold=100), file(c.model))
    a = p.start("pull", "hf:o/r")
    p.grown(HUB + ".part", 100)
    b = p.start("pull", "hf:o/r")
    b.stderr.readline()
    a.kill()
    a.communicate()
    c.good("second_takes_over", p,
           (*[(b.communicate(timeout=LIMIT), b.returncode)[1]], os.path.join(p.dir, HUB) + "\n",
            ""))
    check("second_goes_on", c.s.get(RAW, "Range") == [None, "bytes=100-"], c.s.get(RAW, "Range"))


def test_unknown(c):
    """What this build does not run is known by its first bytes, and no more of it is fetched."""
    for name, before, hold in (("first", {}, 4096), ("late", {"general.name": "y" * 100000},
                                                     600000)):
        data = gguf({**before, "general.architecture": "wings"}) + bytes(1 << 20)
        p = c.fresh(file(data, hold=hold), data=data)
        c.bad("unknown_" + name, p, p.pull("hf:o/r"), 2,
              'unknown architecture "wings", none of the ')
        check("unknown_%s_is_not_fetched" % name, c.s.sent <= hold, c.s.sent)
    p = c.fresh(file(data, hold=600000), data=data)
    c.bad("unknown_run", p, p.run("run", "hf:o/r", "-p", "x"), 2, 'unknown architecture "wings"')
    p = c.fresh(file(data), data=data)
    r = p.pull("hf:o/r", "--any")
    check("unknown_any", r[0] == 0 and p.files() == [HUB] and p.read(HUB) == data, r)


def test_choice(c):
    def fresh(*names):
        c.s.reset()
        c.s.put(API, text(listing(**{n: c.model for n in names})))
        for n in names:
            c.s.put("/o/r/resolve/" + "c" * 40 + "/" + n.replace(" ", "%20"), file(c.model))
        return Place(c.s)

    for name, files, want, got in (("default", ["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-F16.gguf"], "",
                                    "m-Q4_K_M.gguf"), ("next_best",
                                                       ["m-F16.gguf", "m-Q8_0.gguf",
                                                        "m-Q3_K_L.gguf"], "", "m-Q8_0.gguf"),
                                   ("only_one", ["m.gguf", "mmproj-F16.gguf", "imatrix.gguf"], "",
                                    "m.gguf"), ("only_odd_one", ["m-IQ1_S.gguf"], "",
                                                "m-IQ1_S.gguf"),
                                   ("small_letters", ["m-q8_0.gguf", "m-q4_0.gguf"], ":Q4_0",
                                    "m-q4_0.gguf"), ("dots", ["m.Q8_0.gguf", "m.fp16.gguf"], ":f16",
                                                     "m.fp16.gguf"),
                                   ("dynamic", ["m-UD-Q4_K_XL.gguf", "m-Q4_K_XL.gguf"],
                                    ":UD-Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
                                   ("not_dynamic", ["m-UD-Q4_K_M.gguf", "m-Q4_K_M.gguf"], "",
                                    "m-Q4_K_M.gguf"), ("file", ["a/m-Q8_0.gguf", "b/m-Q8_0.gguf"],
                                                       ":b/m-Q8_0.gguf", "b/m-Q8_0.gguf"),
                                   ("file_without_folder", ["a/x-Q8_0.gguf", "b/m-Q8_0.gguf"],
                                    ":m-Q8_0.gguf", "b/m-Q8_0.gguf"),
                                   ("projector", ["m-Q8_0.gguf", "mmproj-F16.gguf"],
                                    ":mmproj-F16.gguf", "mmproj-F16.gguf"),
                                   ("blank", ["a b-Q8_0.gguf"], "", "a b-Q8_0.gguf")):
        p = fresh(*files)
        c.good("choice_" + name, p, p.pull("hf:o/r" + want), "hf/o/r/" + got)
    for name, files, want, message in (("none", ["m-Q8_0.gguf"], ":Q4_K_M",
                                        "has no Q4_K_M; there is:"),
                                       ("several", ["a-Q8_0.gguf", "b-Q8_0.gguf"], ":q8_0",
                                        "is several files; name one:"),
                                       ("several_usual", ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], "",
                                        "has several models"),
                                       ("nothing_usual", ["a-Q2_K.gguf", "a-Q3_K.gguf"], "",
                                        "has several models"),
                                       ("no_gguf", ["model.safetensors"], "", "has no GGUF file"),
                                       ("outside", ["../../m-Q8_0.gguf", "/m.gguf", "a//b.gguf",
                                                    "x/../y.gguf"], "", "has no GGUF file")):
        p = fresh(*files)
        c.bad("choice_" + name, p, p.pull("hf:o/r" + want), 2, message)
    p = fresh("m-Q8_0.gguf", "m-Q2_K.gguf")
    r = p.pull("hf:o/r:nope")
    check("choice_tells_what_there_is", "Q8_0" in r[2] and "m-Q2_K.gguf" in r[2], r)


def test_parts(c):
    names = ["m-Q4_0-%05d-of-00003.gguf" % k for k in (1, 2, 3)]
    parts = [gguf({"general.architecture": "llama", "split.no": k, "split.count": 3})
             for k in range(3)]

    def fresh(have=3):
        c.s.reset()
        c.s.put(API, text(listing(**dict(list(zip(names, parts))[:have]))))
        for n, d in zip(names, parts):
            c.s.put("/o/r/resolve/" + "c" * 40 + "/" + n, file(d))
        return Place(c.s)

    p = fresh()
    r = p.pull("hf:o/r")
    check("parts", r[0] == 0 and r[1] == os.path.join(p.dir, "hf/o/r", names[0]) + "\n"
          and p.files() == ["hf/o/r/" + n for n in names], r)
    p = fresh(2)
    c.bad("part_not_listed", p, p.pull("hf:o/r"), 2, "part 3 of 3")
    p = fresh()
    c.s.put("/o/r/resolve/" + "c" * 40 + "/" + names[1], status(404))
    r = p.pull("hf:o/r")
    check("part_missing", r[0] == 2 and p.files() == ["hf/o/r/" + names[0]], (r, p.files()))
    check("part_missing_is_not_used", p.run("inspect", "hf:o/r")[0] == 2)
    c.s.put("/o/r/resolve/" + "c" * 40 + "/" + names[1], file(parts[1]))
    check("part_comes_later", p.pull("hf:o/r")[0] == 0 and len(p.files()) == 3)
    p = fresh()
    c.s.put(API, text(listing(**{"m-00001-of-99999.gguf": c.model})))
    c.bad("too_many_parts", p, p.pull("hf:o/r"), 2, "99999 parts")


def test_hostile_answers(c):
    """Listings and manifests of every wrong shape: an error, nothing written, no crash."""
    p = Place(c.s)
    good = listing(**{"m-Q4_K_M.gguf": c.model})
    row = good["siblings"][1]
    shapes = ["", "[", "[]", "null", "5", '"x"', "{}", "{\"siblings\": 5}", b"\xff\xfe{}",
              "[" * 100000, '{"a":' * 5000, {"siblings": None}, {"siblings": [None, 5, [], "x"]},
              {"siblings": [{}]}, {"siblings": [{"rfilename": 5}]},
              {"siblings": [{"rfilename": ""}]},
              {"siblings": [{"rfilename": "x" * 100000 + ".gguf"}]},
              {"siblings": [{"rfilename": "a\nb.gguf"}]},
              {"siblings": [{"rfilename": "a\\..\\b.gguf"}]},
              {"siblings": [{"rfilename": "..gguf"}] * 2},
              {"siblings": [dict(row, rfilename="/".join(["d"] * 500) + "/m.gguf")]},
              b" " * (33 << 20)]
    for i, shape in enumerate(shapes):
        c.s.reset()
        c.s.put(API, text(shape))
        r = p.pull("hf:o/r", "--retries", "0")
        check("listing_shape_%d" % i,
              r[0] in (2, 3) and p.files() == [] and r[2].startswith("pith: "), r)
    # Sizes and hashes that are none: fetched as one without them.
    for i, (size, lfs) in enumerate(((-1, None), ("x", 5), (1.5, {"sha256": "zz", "size": None}),
                                     (None, {"sha256": "A" * 64, "size": -7}),
                                     (2 ** 63 - 1, None))):
        p = c.fresh()
        c.s.put(API, text({"sha": "../..",
                           "siblings": [{"rfilename": "m-Q4_K_M.gguf", "size": size, "lfs": lfs}]}))
        c.s.put("/o/r/resolve/main/m-Q4_K_M.gguf", file(c.model))
        r = p.pull("hf:o/r")
        if size == 2 ** 63 - 1:
            c.bad("listing_size_%d" % i, p, r, 2, "there should be 9223372036854775807")
        else:
            c.good("listing_size_%d" % i, p, r)


def test_ollama(c):
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + sha(c.model),
             "size": len(c.model)}
    other = {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "1" * 64,
             "size": 3}
    blob = "/v2/library/tiny/blobs/" + layer["digest"]

    def fresh(layers, path="library/tiny/manifests/latest"):
        c.s.reset()
        c.s.put("/v2/" + path, text({"schemaVersion": 2, "layers": layers}))
        c.s.put(blob, go(c.s.other + "/store", 307))
        c.s.put("/store", file(c.model, cut=1000), file(c.model))
        return Place(c.s)

    p = fresh([other, layer])
    r = p.pull("ollama:tiny")
    c.good("ollama", p, r, "ollama/tiny/tiny-latest.gguf")
    check("ollama_found", p.run("inspect", "ollama:tiny:latest")[0] == 0)
    p = fresh([layer], "me/tiny/manifests/1b")
    c.s.put("/v2/me/tiny/blobs/" + layer["digest"], file(c.model))
    c.good("ollama_space_and_tag", p, p.pull("ollama:me/tiny:1b"), "ollama/me/tiny/tiny-1b.gguf")
    p = fresh([layer])
    c.s.put("/store", file(c.model[:-1] + b"x"))
    c.bad("ollama_wrong_byte", p, p.pull("ollama:tiny"), 2, "wrong bytes")
    c.bad("ollama_not_found", p, p.pull("ollama:none"), 2, "not found")
    for i, layers in enumerate(([], None, [other], [layer, layer],
                                [dict(layer, digest="sha256:../../x")], [dict(layer, digest=7)],
                                [dict(layer, size=-1)], [dict(layer, size="x")],
                                [dict(layer, digest="md5:" + "0" * 64)], 5, {"a": layer},
                                [None, 5])):
        p = fresh(layers)
        c.bad("manifest_shape_%d" % i, p, p.pull("ollama:tiny"), 2, "pith: ollama:tiny:latest: ")


def test_settings(c):
    p = c.fresh()
    c.bad("hub_in_the_clear", p, p.pull("hf:o/r", env={"HF_ENDPOINT": "http://example.org"}), 3,
          "wanted an https address")
    c.bad("hub_that_is_none", p, p.pull("hf:o/r", env={"HF_ENDPOINT": "x" * 2000}), 3,
          "wanted an https address")
    c.bad("hub_with_password", p,
          p.pull("hf:o/r", env={"HF_ENDPOINT": c.s.url.replace("//", "//a:b@")}), 3,
          "without user or password")
    check("proxy_is_not_asked_for_this_machine",
          p.pull("hf:o/r", env={"http_proxy": "http://127.0.0.1:1"})[0] == 0)
    p = c.fresh()
    r = p.pull("hf:o/r", env={"PITH_MODELS": "/dev/null/x"})
    check("no_folder", r[0] == 3 and "cannot make the folder" in r[2], r)
    c.bad("no_reference", p, p.pull("model.gguf"), 1, "wanted hf:OWNER/REPO")


def at_terminal(p, *args, typed=b""):
    """Status and what is shown."""
    master, slave = pty.openpty()
    os.write(master, typed)
    q = subprocess.Popen([PITH, *args], stdin=slave, stdout=subprocess.DEVNULL, stderr=slave,
                         env=p.env)
    os.close(slave)
    shown = b""
    while True:
        try:
            got = os.read(master, 65536)
        except OSError:
            break
        if not got:
            break
        shown += got
    os.close(master)
    return q.wait(LIMIT), shown


def test_terminal(c):
    p = c.fresh()
    code, shown = at_terminal(p, "pull", "hf:o/r")
    check("bar", code == 0 and b"m-Q4_K_M.gguf" in shown and b" % [" in shown
          and shown.endswith(b"\r\x1b[K"), shown)
    code, shown = at_terminal(p, "rm", "m-Q4_K_M", typed=b"n\n")
    check("rm_no", code == 0 and b"[y/N]" in shown and p.files() == [HUB], shown)
    code, shown = at_terminal(p, "rm", "m-Q4_K_M", typed=b"y\n")
    check("rm_yes", code == 0 and b"[y/N]" in shown and p.files() == [], shown)


def main():
    with tempfile.TemporaryDirectory() as d:
        with open(synth(os.path.join(d, "m.gguf"), "--seed", "5"), "rb") as f:
            c = Case(Server(), f.read())
        for test in (test_hub, test_run, test_serve, test_token, test_redirects, test_broken,
                     test_lies, test_address, test_statuses, test_killed, test_two_at_once,
                     test_unknown, test_choice, test_parts, test_hostile_answers, test_ollama,
                     test_settings,
                     test_terminal):
            test(c)


run(main, "test_pull", "pull")
