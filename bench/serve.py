#!/usr/bin/env python3
"""serve.py -- load on a server of OpenAI's /v1/completions, and what it makes of it.

    bench/serve.py MODEL [--clients 1,8,32] [--rate 2,4] [--prompt 16] [--prefix 0] [--predict 128]
        [--seconds 10] [--flags "..."]
    bench/serve.py --url http://host:port [--key KEY] ...           any server of that interface
    bench/serve.py MODEL --scenario throughput,prefix,gap ...       see serve_scenarios.py (--list)

Closed loop (--clients): so many clients, each asking again as soon as it is answered. Open loop
(--rate): requests a second come as a Poisson process, however many are still running. A prompt is
--prefix words that all requests share, then --prompt random ones (a word is a token with most
vocabularies; the answer's usage tells). All answers are streamed.

Time to the first token, gaps between arrivals of text, and whole requests are told by percentiles;
tokens are those of usage. A point begins with --warm seconds that do not count. The load is made by
one thread without any package; its own processor time is reported, since it takes it from a server
on the same machine: `fair` is tokens/s / (1 - share of all cores that the load took). With MODEL
the server is started here and its threads' processor time is reported, too.

OUT/NAME.json keeps every point, OUT/NAME.md is the table; OUT/NAME.png is drawn where matplotlib
is present."""
import argparse
import json
import os
import shlex
import signal
import sys
import time

import serve_scenarios
from serve_load import ROOT, Failed, Target, Texts, markdown, measure, say, write


def numbers(text, kind):
    return [kind(t) for t in text.split(",")] if text else []


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model", nargs="?", metavar="MODEL")
    ap.add_argument("--url")
    ap.add_argument("--key")
    ap.add_argument("--pith", default=os.path.join(ROOT, "build", "pith"))
    ap.add_argument("--flags", default="", help="further flags of pith serve")
    ap.add_argument("--clients", default="", help="closed loops: numbers of clients")
    ap.add_argument("--rate", default="", help="open loops: requests a second")
    ap.add_argument("--prompt", type=int, default=16, help="random words of a prompt")
    ap.add_argument("--prefix", type=int, default=0,
                    help="words before them that all prompts share")
    ap.add_argument("--predict", type=int, default=128, help="most tokens of an answer")
    ap.add_argument("--vary", action="store_true", help="lengths between 1 and twice as many")
    ap.add_argument("--body", default="{}",
                    help='further fields of a request, JSON, as {"ignore_eos": true}')
    ap.add_argument("--warm", type=float, default=2.0)
    ap.add_argument("--seconds", type=float, default=10.0)
    ap.add_argument("--out", default=os.path.join(ROOT, "build", "serve"))
    ap.add_argument("--name", default="load", help="name of the results' files")
    ap.add_argument("--scenario", help="instead: scenarios of serve_scenarios.py by name, or all")
    ap.add_argument("--list", action="store_true", help="scenarios and their settings")
    ap.add_argument("--set", action="append", default=[], metavar="NAME=N",
                    help="a setting of a scenario")
    ap.add_argument("--peer-python",
                    help="interpreter that has llama_cpp, for the scenario throughput")
    a = ap.parse_args()
    if a.scenario or a.list:
        return serve_scenarios.main(a)
    if not a.model and not a.url:
        ap.error("wanted a MODEL or a --url")
    more = json.loads(a.body)
    if a.model and "ignore_eos" not in more:
        more["ignore_eos"] = True
    points = []
    target = Target(a.url, a.key, a.pith, a.model, shlex.split(a.flags))
    try:
        for kind, values in (("clients", numbers(a.clients, int)),
                             ("rate", numbers(a.rate, float))):
            for v in values or ([8] if kind == "clients" and not a.rate else []):
                name = f"{v} clients" if kind == "clients" else f"{v:g} requests/s"
                points.append(measure(target,
                                      Texts(a.prefix, a.prompt, a.predict, vary=a.vary, **more),
                                      name, warm=a.warm, seconds=a.seconds, **{kind: v}))
                p = points[-1]
                say(f"{name}: {p['tps']:.1f} tokens/s, fair {p['fair_tps']:.1f}; threads "
                    f"{p['threads']}")
        write(a.out, a.name, {"date": time.strftime("%Y-%m-%d"), "model": target.name,
                              "points": points})
    finally:
        target.end()
    print(markdown(points), end="")
    return 0


if __name__ == "__main__":
    # servers started here end, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("serve: ended"))
    try:
        sys.exit(main())
    except (Failed, OSError) as e:
        sys.exit(f"serve: {e}")
