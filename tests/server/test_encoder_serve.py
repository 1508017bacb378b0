#!/usr/bin/env python3
"""test_encoder_serve.py -- a model whose encoder reads the prompt: every endpoint that makes text
says that it is not served, by name; the rest of the server works."""
import os
import tempfile

from report import run
from serving import Server, check, synth

SAYS = "has an encoder"


def test_refused(s):
    message = [{"role": "user", "content": "a"}]
    for path, body in (("/v1/completions", {"prompt": "a b"}), ("/completion", {"prompt": "a"}),
                       ("/v1/chat/completions", {"messages": message}),
                       ("/api/generate", {"model": "t5", "prompt": "a", "stream": False})):
        status, a, _ = s.post(path, body)
        check("refused " + path, status == 400 and SAYS in str(a), (status, a))
    status, a, _ = s.post("/v1/completions", {"prompt": "a"})
    check("named", a["error"]["type"] and "t5" in a["error"]["message"], a)
    check("tokens", s.post("/tokenize", {"content": "a"})[0] == 200)
    check("models", s.get("/v1/models")[0] == 200)


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "t5.gguf")
        synth(path, "--arch", "t5")
        with Server(path) as s:
            test_refused(s)


run(main, "test_encoder_serve")
