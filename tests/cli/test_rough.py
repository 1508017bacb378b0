#!/usr/bin/env python3
# In make test alone: it waits for terminals, and make check has test_chat.sh and test_exit.sh.
"""test_rough.py -- a first hour on a rough machine: terminals of a few columns that change while an
answer is written, Ctrl-C at any time, no home, folders that cannot be written, a full disk, pipes
that nobody reads, a locale that is not UTF-8. What is asked of all: the exit status that is
documented, the terminal as it was found, one line that says why, and nothing lost that was
there."""
import fcntl
import os
import re
import resource
import select
import signal
import struct
import subprocess
import tempfile
import termios
import time

from report import LIMIT, PITH, SCALE, check, guard, run, synth, wait_for

INTERRUPTED = 130


class Terminal:
    """A program that has a terminal of its own, with so many columns."""

    def __init__(self, columns, *command, term="xterm-256color", env=None, stdout=None):
        self.ours, self.theirs = os.openpty()
        self.resize(columns)
        self.before = termios.tcgetattr(self.theirs)
        self.seen = b""

        def own():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [PITH, *command], stdin=self.theirs, stdout=stdout or self.theirs, stderr=self.theirs,
            preexec_fn=own, env={**os.environ, "TERM": term, **(env or {})})

    def resize(self, columns, rows=24):
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.ours, text.encode())

    def more(self):
        if select.select([self.ours], [], [], 0.01)[0]:
            self.seen += os.read(self.ours, 65536)

    def sees(self, text, times=1):
        def look():
            self.more()
            return len(re.findall(text, self.seen)) >= times
        return wait_for(look, lambda: self.process.poll() is None) or look()

    def end(self):
        """Its exit status; None: it did not end."""
        def ended():
            self.more()
            return self.process.poll() is not None
        wait_for(ended)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            code = None
        else:
            code = self.process.returncode
        self.more()
        self.after = termios.tcgetattr(self.theirs)
        os.close(self.ours)
        os.close(self.theirs)
        return code

    def as_found(self):
        return self.before == self.after


TALKS = ["--override-kv", "tokenizer.chat_template=str:{% for m in messages %}{{ m.content }}"
         "{% endfor %}"]
ENDLESS = ["--ignore-eog", "-n", "100000", "--ctx", "200000", "--override-kv",
           "llama.context_length=int:1000000"]


def test_narrow(model):
    """The line editor, progress and answers in 1, 5 and 20 columns, resized while text comes."""
    for columns in 1, 5, 20:
        t = Terminal(columns, "run", model, *TALKS, "-n", "30", "--ignore-eog", "-t", "1")
        check("chat_in_%d_columns" % columns, t.sees(b"> "), t.seen[-200:])
        t.type("hello there, this is a line\x7f\x7fne\x01\x05")
        t.resize(80)
        t.type(" and more\r")
        for wide in 1, 200, 3, 20:
            t.resize(wide)
            t.more()
        check("next_question_in_%d_columns" % columns, t.sees(rb"\d\d/\d+>|> ", 2), t.seen[-200:])
        t.type("/exit\r")
        code = t.end()
        check("leaves_%d_columns" % columns, code == 0 and t.as_found(), (code, t.seen[-200:]))
    for columns, wanted in ((1, rb"\r\x1b\[K"), (8, rb"\r1?\d?\d %\x1b\[K"),
                            (80, rb"\r\w+ +\[#*\.*\] +1?\d?\d %\x1b\[K")):
        t = Terminal(columns, "run", model, "-p", "a", "--raw", "-n", "2", "-t", "1")
        code = t.end()
        bars = re.findall(rb"\r[^\r\n]*\x1b\[K", t.seen)
        check("progress_in_%d_columns" % columns, code == 0 and bars
              and all(re.fullmatch(wanted, b) for b in bars[:-1])
              and all(len(b) - 4 < max(columns, 1) + (columns == 1) for b in bars), (code, bars))


def test_interrupts(model, large, folder):
    """Ctrl-C at a terminal, whenever it comes: 130, and the terminal as it was."""
    for k in range(6 if SCALE < 10 else 12):
        t = Terminal(80, "run", large, "-p", "a", "--raw", *ENDLESS, "-t", "1")
        time.sleep(0.004 * k * k)
        t.type("\x03")
        code = t.end()
        # before the program's own handler is there the signal itself ends it
        check("ctrl_c_%d" % k, code in (INTERRUPTED, -signal.SIGINT) and t.as_found(),
              (code, t.seen[-200:]))
    long = os.path.join(folder, "long")
    with open(long, "w") as f:
        f.write("a b c d e f g h " * 4000)
    t = Terminal(80, "run", large, "-f", long, "--raw", "-t", "1", *ENDLESS)
    t.sees(rb"context \d+ tokens")
    t.type("\x03")
    code = t.end()
    check("ctrl_c_in_a_prompt", code == INTERRUPTED and t.as_found(), (code, t.seen[-200:]))
    t = Terminal(80, "run", model, *TALKS, *ENDLESS, "-t", "1")
    t.sees(b"> ")
    t.type("a\r")
    t.sees(rb"context \d+ tokens")
    before = len(t.seen)
    wait_for(lambda: t.more() or len(t.seen) > before + 100)
    t.type("\x03")
    # the model itself may write what looks like a prompt
    check("ctrl_c_in_an_answer", t.sees(rb"\(stopped\)[^>]*> "), t.seen[-200:])
    t.type("\x03")
    t.sees(b"Ctrl-C once more")
    t.type("\x03")
    code = t.end()
    check("ctrl_c_twice_leaves", code == INTERRUPTED and t.as_found(), (code, t.seen[-200:]))
    t = Terminal(80, "run", model, *TALKS, "-t", "1")
    t.sees(b"> ")
    t.process.send_signal(signal.SIGTERM)
    code = t.end()
    check("terminated_at_the_prompt", code == INTERRUPTED and t.as_found(), (code, t.seen[-99:]))
    ours, theirs = os.pipe()  # nobody reads
    t = Terminal(80, "run", model, "-p", "a", "--raw", *ENDLESS, "-t", "1", stdout=theirs)
    os.close(theirs)
    held = lambda: struct.unpack("i", fcntl.ioctl(ours, termios.FIONREAD, b"1234"))[0]
    wait_for(lambda: t.more() or held() > 60000)  # as much as a pipe holds

    def again():  # one that comes while the last is not yet taken counts once
        t.type("\x03")
        time.sleep(0.05)
        return t.process.poll() is not None
    wait_for(again)
    code = t.end()
    os.close(ours)
    check("ctrl_c_twice_in_a_full_pipe", code == INTERRUPTED and t.as_found(), (code, t.seen[-99:]))


def plain(*args, env=None, home=None, limit=None, said=None):
    """Status, stdout, stderr. home None: no variable names a folder."""
    e = {k: v for k, v in os.environ.items()
         if k not in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "PITH_CACHE")}
    if home:
        e["HOME"] = home
    small = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))) if limit else None
    p = subprocess.run([PITH, *args], stdin=subprocess.DEVNULL if said is None else None,
                       input=said, capture_output=True, timeout=LIMIT, env={**e, **(env or {})},
                       preexec_fn=small)
    return p.returncode, p.stdout, p.stderr.decode(errors="replace")


def test_homeless(model, folder):
    """No HOME, an empty one, one that is not there: what needs no folder works."""
    text = ["run", model, "-p", "a", "--raw", "-n", "3", "--temp", "0", "-t", "1"]
    wanted = plain(*text, home=folder)
    for name, home in (("no", {}), ("empty", {"HOME": ""}), ("missing", {"HOME": "/proc/nowhere"}),
                       ("unwritable", {"HOME": "/proc/self"})):
        check(name + "_home_runs", plain(*text, env=home) == wanted, plain(*text, env=home))
        got = plain("list", env=home)
        check(name + "_home_lists", got[0] == 0, got)
        got = plain("run", "absent-model", "-p", "a", env=home)
        check(name + "_home_and_a_name", got[0] == 2 and "absent-model" in got[2], got)
        got = plain("pull", "http://127.0.0.1:1/x.gguf", env=home)
        check(name + "_home_pulls", got[0] in (1, 2, 3) and got[2].count("\n") == 1, got)


def test_folders(model, folder):
    """A folder where a model is wanted."""
    for command in (["run", folder, "-p", "a"], ["serve", folder, "--port", "0"],
                    ["inspect", folder], ["tokenize", folder, "a"], ["bench", folder],
                    ["embed", folder, "a"], ["perplexity", folder, "-f", model],
                    ["logits", folder, "--tokens", "1", "--out", "/dev/null"]):
        got = plain(*command, home=folder)
        check("a_folder_for_" + command[0], got[0] == 2 and folder in got[2]
              and got[2].count("\n") == 1, got)
    got = plain("run", model, "-p", "a", "--cache-dir", "/proc/self/nowhere", "-n", "1")
    check("a_cache_that_cannot_be_made", got[0] == 2 and "/proc/self/nowhere" in got[2], got)
    for where in ("/proc/self", "/dev/null", "/proc/self/nowhere/at/all"):
        got = plain("run", model, "-p", "a", "--raw", "-n", "1", env={"PITH_CACHE": where})
        check("no_cache_in " + where, got[0] == 0, got)


def test_full(model, folder):
    """A disk that takes no more: what was there stays, and it is said."""
    at = os.path.join(folder, "kept")
    one = ["run", model, "-p", "a", "--raw", "-n", "4", "--session", at, "-t", "1"]
    check("a_session", plain(*one, home=folder)[0] == 0)
    with open(at, "rb") as f:
        was = f.read()
    before = sorted(os.listdir(folder))
    got = plain(*one, home=folder, limit=4096)
    with open(at, "rb") as f:
        now = f.read()
    check("a_session_on_a_full_disk", got[0] == 3 and at in got[2] and now == was, got)
    check("and_nothing_beside_it", sorted(os.listdir(folder)) == before, os.listdir(folder))
    got = plain("logits", model, "--tokens", "1,2,3", "--out", at, home=folder, limit=512)
    with open(at, "rb") as f:
        now = f.read()
    check("logits_on_a_full_disk", got[0] == 3 and at in got[2] and now == was, got)
    store = os.path.join(folder, "store")
    got = plain("run", model, "-p", "a b " * 200, "--raw", "-n", "2", "--temp", "0", "--store-dir",
                store, "-t", "1", home=folder, limit=2048)
    whole = plain("run", model, "-p", "a b " * 200, "--raw", "-n", "2", "--temp", "0", "-t", "1",
                  home=folder)
    check("a_store_on_a_full_disk", got[0] == 0 and got[1] == whole[1], (got, whole))
    check("which_keeps_no_halves", not [n for n in os.listdir(store) if "tmp" in n],
          os.listdir(store))
    packed = os.path.join(folder, "packed")
    got = plain("run", model, "-p", "a", "--raw", "-n", "2", "--temp", "0", "--cache-dir", packed,
                "-t", "1", home=folder, limit=8192)
    whole = plain("run", model, "-p", "a", "--raw", "-n", "2", "--temp", "0", "-t", "1",
                  home=folder)
    check("packed_weights_on_a_full_disk", got[0] == 0 and got[1] == whole[1]
          and not [n for n in os.listdir(packed) if "tmp" in n], (got, os.listdir(packed)))
    for command in (["run", model, "-p", "a", "--raw", "-n", "3", "--ignore-eog", "-t", "1"],
                    ["inspect", model],
                    ["tokenize", model, "a b"], ["--help"], ["man"], ["devices"]):
        with open("/dev/full", "w") as full:
            p = subprocess.run([PITH, *command], stdin=subprocess.DEVNULL, stdout=full,
                               stderr=subprocess.PIPE, timeout=LIMIT, text=True)
        check("full_stdout_of_" + command[0], p.returncode == 3 and "stdout" in p.stderr,
              (p.returncode, p.stderr))


def test_unread(model):
    """A reader that leaves after the first line, or before it."""
    for command in (["run", model, "-p", "a", "--raw", "-n", "200", "--ignore-eog", "-t", "1"],
                    ["run", model, "-p", "a", *TALKS, "-n", "200", "--ignore-eog", "-t", "1"],
                    ["inspect", model], ["inspect", model, "--json"],
                    ["tokenize", model, "a " * 9999],
                    ["--help"], ["man"], ["run", "--help"], ["sample", "--list"],
                    ["embed", model, "a"], ["devices"]):
        ours, theirs = os.pipe()
        os.close(ours)
        p = subprocess.run([PITH, *command], stdin=subprocess.DEVNULL, stdout=theirs,
                           stderr=subprocess.PIPE, timeout=LIMIT, text=True)
        os.close(theirs)
        check("unread_" + " ".join(command)[:20].replace(model, "MODEL"),
              p.returncode == 0 and not p.stderr, (command[0], p.returncode, p.stderr))
    shell = subprocess.run(["bash", "-c", 'set -o pipefail; "$0" run "$1" -p a --raw -n 100000 '
                            '--ctx 200000 --ignore-eog -t 1 --override-kv '
                            'llama.context_length=int:1000000 | head -n 1', PITH, model],
                           capture_output=True, timeout=LIMIT)
    check("head_ends_it", shell.returncode == 0 and not shell.stderr, shell)


def test_locales(model):
    """Texts are bytes of UTF-8, whatever the locale says."""
    wanted = None
    for locale in ("C.UTF-8", "C", "POSIX", "de_DE.ISO-8859-1", "none_such"):
        env = {"LC_ALL": locale, "LANG": locale}
        got = plain("run", model, "-p", "é 世界 \U0001f600", "--raw", "-n", "20", "--temp", "0",
                    "-t", "1", "--ignore-eog", env=env)
        ids = plain("tokenize", model, "é 世界 \U0001f600", "--jsonl", env=env,
                    said='{"text": "é 世界"}\n'.encode())
        wanted = wanted or (got, ids)
        check("locale_" + locale, got[0] == 0 and (got, ids) == wanted, (got, ids, wanted))
        t = Terminal(80, "run", model, *TALKS, "-n", "4", "-t", "1", env=env)
        t.sees(b"> ")
        t.type("Grüße 世界\x7f\x7f\r")
        t.sees(b"> ", 2)
        t.type("/exit\r")
        code = t.end()
        check("chat_in_" + locale, code == 0 and t.as_found() and "Grüße".encode() in t.seen,
              (code, t.seen[-300:]))


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "m.gguf"), "--vocab", "300", "--ctx", "4096")
        large = synth(os.path.join(folder, "l.gguf"), "--layers", "4", "--embd", "512", "--heads",
                      "8", "--ff", "1024", "--vocab", "2000", "--ctx", "4096")
        empty = os.path.join(folder, "empty")
        os.mkdir(empty)
        for name, test in (("narrow", lambda: test_narrow(model)),
                           ("interrupts", lambda: test_interrupts(model, large, empty)),
                           ("homeless", lambda: test_homeless(model, empty)),
                           ("folders", lambda: test_folders(model, empty)),
                           ("full", lambda: test_full(model, empty)),
                           ("unread", lambda: test_unread(model)),
                           ("locales", lambda: test_locales(model))):
            guard(name, test)


run(main, "test_rough")
