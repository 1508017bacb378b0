#!/usr/bin/env python3
"""test_settings.py -- one row of samplers.def is a setting everywhere: flag, help, manual page,
field of requests, documentation, what an answer and /props tell, the hint of a model's file, and
the parameter of a chain. The rows are read here from the table itself, so a new one is tested."""
import os
import re
import subprocess
import tempfile

from serving import PITH, Server, check, run, synth

HERE = os.path.dirname(os.path.abspath(__file__))
TABLE = os.path.join(HERE, "../../src/run/sample/samplers.def")
PAGE = os.path.join(HERE, "../../server/web/settings.js")


def columns(text):
    """The arguments of a macro: commas in brackets and texts are none."""
    out, depth, at, inside = [], 0, 0, False
    for i, c in enumerate(text):
        inside ^= c == '"'
        depth += (c in "(") - (c in ")") if not inside else 0
        if c == "," and not depth and not inside:
            out.append(text[at:i].strip())
            at = i + 1
    return out + [text[at:].strip()]


def rows():
    text = re.sub(r"/\*.*?\*/", "", open(TABLE, encoding="utf-8").read(), flags=re.S)
    for m in re.finditer(r"^SETTING\((.*?)\)$(?=\n(?:SETTING|NOTHING))", text, re.S | re.M):
        (name, member, kind, lo, hi, usual, flag, meta, page, least, zero, to,
         help_text) = columns(m[1])
        place, slider = re.match(r"(FRONT|MORE)\((.*)\)", page).groups()
        advised = re.match(r'ADVISED\("(\w+)", (.*)\)', usual)
        yield {"name": name, "member": member, "whole": kind == "INT", "lo": float(lo),
               "hi": float(hi), "hint": advised and advised[1],
               "usual": float(advised[2] if advised else re.match(r"USUAL\((.*)\)", usual)[1]),
               "flag": flag.strip('"'), "meta": meta.strip('"'), "slider": float(slider),
               "front": place == "FRONT", "least": float(least),
               "zero": float(zero), "to": re.findall(r"TO\((\w+), (\d)\)", to),
               "help": "".join(re.findall(r'"([^"]*)"', help_text))}


def samplers():
    text = re.sub(r"/\*.*?\*/", "", open(TABLE, encoding="utf-8").read(), flags=re.S)
    for m in re.finditer(r"^SAMPLER\((.*?)\)$(?=\n(?:SAMPLER|NO_SAMPLER))", text, re.S | re.M):
        name, _, _, _, chains, letter, others, _ = columns(m[1])
        yield {"name": name, "chains": chains, "letter": letter.strip("'") if letter != "0" else "",
               "others": others.strip('"').split()}


def says(*args):
    p = subprocess.run([PITH, *args], capture_output=True, text=True,
                       errors="replace")
    return p.returncode, p.stdout, p.stderr


def plain(text):
    return " ".join(text.replace("\\(aq", "'").replace("\\", "").split())


def test_flags(all_rows, model):
    help_text, manual = plain(says("run", "--help")[1]), plain(says("man")[1])
    samplers = dict(re.findall(r"^ *(\w+)(.*)$", says("sample", "--list")[1], re.M))
    for r in all_rows:
        name, flag = r["name"], r["flag"]
        check("help " + name, "%s %s" % (flag, r["meta"]) in help_text and r["help"] in help_text)
        check("manual page " + name, flag in manual and r["help"] in manual)
        code, _, err = says("run", model, "-p", "w5", flag, "%g" % (r["hi"] * 2 + 1))
        check("flag " + name, code == 1 and flag in err and "to %g" % r["hi"] in err.replace(
            "1000000000", "1e+09").replace("1000000", "1e+06"), (code, err))
        for sampler, at in r["to"]:
            listed = samplers.get(sampler, "")
            check("parameter %s of %s" % (at, sampler),
                  len(re.findall(r"\w+=", listed)) > int(at), listed)
        if r["hint"]:
            key = "general.sampling." + r["hint"]
            value = "%s=float:%g" % (key, r["hi"] * 2 + 1)
            err = says("run", model, "-p", "w5", "-n", "1", "--override-kv", value)[2]
            check("hint " + r["hint"], key + ": wanted a" in err, err)
    code, _, err = says("run", model, "-p", "w5", "-n", "1")
    check("usual_values_are_taken", code == 0, err)
    least = [v for r in all_rows for v in (r["flag"], "%g" % r["lo"])]
    code, _, err = says("run", model, "-p", "w5", "-n", "1", *least)
    check("lowest_values_are_taken", code == 0, err)


def test_fields(all_rows, s):
    body = {"prompt": "w5 w6", "n_predict": 1}
    docs = next(e for e in s.get("/docs")[1]["endpoints"] if e["path"] == "/v1/completions")
    described = s.get("/openapi.json")[1]["paths"]["/v1/completions"]["post"]["requestBody"]
    described = described["content"]["application/json"]["schema"]["properties"]
    advice = s.get("/props")[1]["sampling"]
    told = s.post("/completion", body)[1]["generation_settings"]
    check("advice_is_what_files_may_give",
          set(advice) == {r["name"] for r in all_rows if r["hint"]}, advice)
    for r in all_rows:
        name, field = r["name"], docs["fields"].get(r["name"], {})
        found = (field.get("minimum"), field.get("maximum"), field.get("x-slider", 0),
                 field.get("x-front", False), field.get("type"), field.get("default"))
        check("field " + name, found == (r["lo"], r["hi"], r["slider"], r["front"],
                                         "integer" if r["whole"] else "number",
                                         None if r["hint"] else r["usual"]), found)
        check("description " + name, field["description"].startswith(r["help"])
              and described[name]["description"] == field["description"], field)
        check("settings " + name, abs(told[name] - r["usual"]) < 1e-6, told.get(name))
        if r["hint"]:
            check("advice " + name, abs(advice[name] - r["usual"]) < 1e-6, advice[name])
        given = r["hi"] if r["hi"] <= 2 else 2
        a = s.post("/completion", {**body, name: given})
        check("given " + name, a[0] == 200
              and abs(a[1]["generation_settings"][name] - given) < 1e-6, a[1])
        check("lowest " + name, s.post("/completion", {**body, name: r["lo"]})[0] == 200)
        a = s.post("/completion", {**body, name: r["hi"] * 2 + 1})
        check("range " + name, a[0] == 400 and name + " is" in str(a[1]["error"]), a[1])
        a = s.post("/completion", {**body, name: "much"})
        check("type " + name, a[0] == 400 and name + " is" in str(a[1]["error"]), a[1])


def test_names(s):
    """Samplers by the letters and the names that other programs have for them."""
    body = {"prompt": "w5 w6", "max_tokens": 3, "temperature": 2, "seed": 7, "adaptive_target": 0.5,
            "dry_multiplier": 1, "presence_penalty": 1, "xtc_probability": 1, "top_n_sigma": 1}
    text = open(TABLE, encoding="utf-8").read()
    found = list(samplers())
    check("samplers_are_read", len(found) == len(re.findall(r"^SAMPLER\(", text, re.M)) > 10)
    for row in found:
        name, letter = row["name"], row["letter"]
        plain_name = s.post("/v1/completions", {**body, "samplers": [name]})[1]["choices"]
        for other in ([letter] if letter else []) + [[o] for o in row["others"]]:
            a = s.post("/v1/completions", {**body, "samplers": other})
            check("%s is %s" % (other, name), a[0] == 200 and a[1]["choices"] == plain_name, a[1])
    for name, letter in re.findall(r"^NO_SAMPLER\((\w+), (?:'(\w)'|0)\)", text, re.M):
        for said in ([letter] if letter else []) + [[name]]:
            a = s.post("/v1/completions", {**body, "samplers": said})
            check("%s is none" % said, a[0] == 200
                  and a[2].getheader("x-pith-ignored") == "samplers " + name, a)


def test_said(s):
    """What stands beside a chain, in any of its forms: biases count, mirostat takes its place."""
    body = {"prompt": "w5 w6", "max_tokens": 4, "seed": 7, "temperature": 1.5}
    for form in ("top_k;temp", ["top_k", "temp"], "kt"):
        a = s.post("/v1/completions", {**body, "samplers": form, "logit_bias": {"70": 100}})
        text = a[1]["choices"][0]["text"] if a[0] == 200 else ""
        check("biases of %s" % form, text and text == 4 * text[0], a[1])
        plain = s.post("/v1/completions", {**body, "mirostat": 2})
        a = s.post("/v1/completions", {**body, "samplers": form, "mirostat": 2})
        check("mirostat for %s" % form, a[0] == 200 and a[1]["choices"] == plain[1]["choices"]
              and a[2].getheader("x-pith-ignored") == "samplers", a[1])
        alone = s.post("/v1/completions", {**body, "samplers": form})
        check("mirostat is not %s" % form, alone[0] == 200
              and alone[2].getheader("x-pith-ignored") is None
              and alone[1]["choices"] != plain[1]["choices"], alone[1])
    names = [s.post("/v1/completions", {**body, "samplers": form, "top_k": 3, "typical_p": 0.5})
             for form in ("top-k;typ_p;temperature", ["top_k", "typical", "temp_ext"])]
    check("names_of_a_text", names[0][0] == 200
          and names[0][1]["choices"] == names[1][1]["choices"], names[0][1])
    a = s.post("/v1/completions", {**body, "samplers": "top_p;" * 5})
    check("few_of_a_kind", a[0] == 400 and "more than 4 times" in str(a[1]["error"]), a[1])


def test_chains(all_rows):
    """What a setting is of comes to its turn without being named: it is in a default chain."""
    chains = {row["name"]: row["chains"] for row in samplers()}
    for r in all_rows:
        for sampler, _ in r["to"]:
            check("%s is of a default chain" % r["name"], chains.get(sampler, "NEVER") != "NEVER",
                  sampler)


def test_page(all_rows):
    """The page makes its controls from /docs; it names none."""
    page = open(PAGE, encoding="utf-8").read()
    named = [r["name"] for r in all_rows if re.search(r"\b%s\b" % r["name"], page)]
    check("page_names_none", not named and "x-slider" in page and "x-front" in page, named)


def main():
    all_rows = list(rows())
    text = open(TABLE, encoding="utf-8").read()
    check("rows_are_read", len(all_rows) == len(re.findall(r"^SETTING\(", text, re.M)) > 20)
    test_page(all_rows)
    test_chains(all_rows)
    with tempfile.TemporaryDirectory() as folder:
        model = synth(os.path.join(folder, "m.gguf"))
        test_flags(all_rows, model)
        with Server(model, "--ctx", "512") as s:
            test_fields(all_rows, s)
            test_names(s)
            test_said(s)


if __name__ == "__main__":
    run(main, __file__)
