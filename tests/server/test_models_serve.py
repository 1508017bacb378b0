# In make test alone: make check has test_serve.py.
"""test_models_serve.py -- several models in one server: loaded when they are asked for, evicted by
bytes, bits as alone; a broken file among them; what waits for a model, and what happens to it."""
import json
import os
import shutil
import socket
import tempfile

from serving import (LIMIT, Server, at_once, begin, bits, check, completion, prompts, raw_post, run,
                     synth)


def model_states(s):
    return {m["id"]: m["state"] for m in s.get("/v1/models")[1]["data"]}


def loads(s, model):
    return s.metric("pith:model_loads_total", model) or 0


def ask(s, model, n=8, **more):
    return s.post("/v1/completions", completion(prompts(1, 12)[0], n, model=model, **more))


def test_on_demand(s, alone):
    check("first_is_loaded_alone",
          model_states(s) == {"a": "ready", "b": "unloaded", "broken": "unloaded", "c": "unloaded"},
          model_states(s))
    default = s.post("/v1/completions", completion(prompts(1, 12)[0], 8))
    check("no_name_is_the_first",
          default[0] == 200 and default[1]["model"] == "a" and bits(default[1]) == alone["a"],
          default[1])
    b = ask(s, "b")
    check("loaded_on_demand", b[0] == 200 and b[1]["model"] == "b" and bits(b[1]) == alone["b"]
          and model_states(s)["b"] == "ready", b[1])
    check("names_that_are_here", ask(s, "nothing")[0] == 404
          and '"a"' in ask(s, "nothing")[1]["error"]["message"], ask(s, "nothing")[1])
    both = at_once([lambda m=m: ask(s, m) for m in "ab" * 8])
    check("two_models_at_once", all(a[0] == 200 and bits(a[1]) == alone["ab"[i % 2]]
                                    for i, a in enumerate(both)), [a[0] for a in both])
    check("nothing_was_loaded_twice", loads(s, "a") == 1 and loads(s, "b") == 1,
          (loads(s, "a"), loads(s, "b")))
    props = s.get("/props?model=b")
    check("props_of_one", props[0] == 200 and props[1]["model"] == "b"
          and s.get("/props")[1]["model"] == "a", props[1])
    check("props_of_one_that_is_not_loaded",
          s.get("/props?model=c")[0] == 409 and s.get("/props?model=nothing")[0] == 404)
    check("report_of_one", s.get("/v1/report?model=b")[0] == 200
          and s.get("/v1/report?model=c")[0] == 409)
    check("tags_and_ps", [len(s.get("/api/" + x)[1]["models"]) for x in ("tags", "ps")] == [4, 2],
          s.get("/api/ps")[1])
    unknown = [m for m in s.get("/api/tags")[1]["models"] if m["name"] == "c"][0]["details"]
    check("what_is_not_known_is_not_said", (unknown["family"], unknown["families"],
                                            unknown["parameter_size"]) == ("", None, ""), unknown)
    check("card_of_one", s.get("/v1/models/c")[1]["state"] == "unloaded"
          and s.get("/v1/models/b")[1]["bytes"] > 0, s.get("/v1/models/b")[1])


def test_broken(s, alone):
    a = at_once([lambda: ask(s, "broken")] * 4 + [lambda: ask(s, "a")])
    check("broken_file_is_told", all(x[0] == 503 and x[1]["error"]["code"] == "model_load_failed"
                                     and "broken" in x[1]["error"]["message"] for x in a[:4]),
          a[0][1])
    check("others_go_on", a[4][0] == 200 and bits(a[4][1]) == alone["a"], a[4][1])
    metrics = s.get("/metrics")[1].decode()
    check("metrics_have_its_name", 'model_name="broken"' in metrics and "{," not in metrics,
          metrics[:300])
    check("show_by_its_older_name",
          s.post("/api/show", {"name": "broken"})[0] == 503
          and s.post("/api/show", {"name": "nothing"})[0] == 404)
    check("its_card_says_why", "error" in s.get("/v1/models/broken")[1],
          s.get("/v1/models/broken")[1])


def test_no_room_for_broken(models, broken, strange):
    # Room for one: it stays where it is when the other is no model; one that proves to be none when
    # it is loaded is not tried again at once.
    with open(models[0], "rb") as f, open(strange, "wb") as out:
        out.write(f.read().replace(b"llama", b"alpac"))
    with Server([models[0], broken, strange], "--models-max", "1", "--ctx", "128") as s:
        bad = [ask(s, "broken") for _ in range(2)]
        check("a_broken_file_unloads_nobody",
              all(b[0] == 503 for b in bad) and model_states(s)["a"] == "ready"
              and loads(s, "a") == 1, (bad[0][1], model_states(s)))
        check("a_broken_file_is_not_read_at_once",
              [b[2].getheader("Retry-After") is not None for b in bad] == [False, True]
              and "a moment ago" in bad[1][1]["error"]["message"], [b[1] for b in bad])
        bad = [ask(s, m) for m in ("strange", "a", "strange", "a")]
        check("a_failed_load_is_not_tried_at_once",
              [b[0] for b in bad] == [503, 200, 503, 200] and loads(s, "a") == 2
              and "alpac" in bad[2][1]["error"]["message"]
              and int(bad[2][2].getheader("Retry-After")) > 0, (bad[2][1], loads(s, "a")))


def test_odd_folder(folder, model):
    # Somebody else's folder: what is no file, names of any bytes, links in a ring, hundreds of
    # files that are no models. Each is refused when it is asked for, and the others go on.
    odd = os.path.join(folder, "odd")
    os.mkdir(odd)
    shutil.copy(model, os.path.join(odd, "good.gguf"))
    names = [b"a\nb", b"c\x1b[31m", b'd"e\\', b"f\xff\xfeg", "h\u202eh".encode(), b"-i" * 120]
    for name in names:
        shutil.copy(model, os.path.join(odd.encode(), name + b".gguf"))
    os.mkfifo(os.path.join(odd, "pipe.gguf"))
    os.mkdir(os.path.join(odd, "folder.gguf"))
    os.symlink("ring2.gguf", os.path.join(odd, "ring1.gguf"))
    os.symlink("ring1.gguf", os.path.join(odd, "ring2.gguf"))
    os.symlink("good.gguf", os.path.join(odd, "same.gguf"))
    os.symlink("/dev/zero", os.path.join(odd, "zero.gguf"))
    for i in range(400):
        with open(os.path.join(odd, "n%d.gguf" % i), "wb") as f:
            f.write(b"GGUF\3\0\0\0" + bytes([i % 256]) * (i % 64))
    with Server([], "--models", odd, "--ctx", "128", "--models-max", "1", "--lazy") as s:
        listed = [m["id"] for m in s.get("/v1/models")[1]["data"]]
        check("odd_files_are_listed", len(listed) == len(set(listed)) == 400 + 7 + 5
              and "same" not in listed, (len(listed), listed[:12]))
        for name in ("pipe", "folder", "ring1", "ring2", "zero", "n0", "n399"):
            a = ask(s, name)
            check("odd_file_is_refused: " + name, a[0] == 503
                  and a[1]["error"]["code"] == "model_load_failed"
                  and name in a[1]["error"]["message"], a[1])
        said = [ask(s, name.decode("utf-8", "replace"), 2) for name in names]
        check("odd_names_are_names", [a[0] for a in said] == [200] * len(names)
              and len({json.dumps(bits(a[1])) for a in said}) == 1, said)
        check("odd_names_in_answers", all(a[1]["model"] == name.decode("utf-8", "replace")
                                          for a, name in zip(said, names)), said)
        check("a_good_one_among_them", ask(s, "good")[0] == ask(s, "same")[0] == 200)
        metrics = s.get("/metrics")[1].decode()
        values = [line.rsplit(" ", 1)[-1] for line in metrics.split("\n")
                  if line and not line.startswith("#")]
        check("metrics_are_lines", len(values) > 100
              and all(v.replace(".", "").replace("e-", "").isdigit() for v in values), values[:9])
        check("tags_of_odd_ones", s.get("/api/tags")[0] == 200 and s.get("/openapi.json")[0] == 200)


def test_eviction(models, alone):
    # Room for one at a time: models take turns, and memory comes back.
    with Server(models, "--models-max", "1", "--ctx", "128") as s:
        first = s.memory()
        turns = [ask(s, m) for m in "abcabc"]
        check("models_take_turns", all(t[0] == 200 and bits(t[1]) == alone["abcabc"[i]]
                                       for i, t in enumerate(turns)),
              [t[1] for t in turns if t[0] != 200])
        check("the_others_are_gone",
              sorted(model_states(s).values()) == ["ready", "unloaded", "unloaded"],
              model_states(s))
        files = s.open_files()
        mixed = at_once([lambda m=m: ask(s, m) for m in "abcabcabcabc"])
        check("turns_under_load", all(t[0] == 200 and bits(t[1]) == alone["abc"[i % 3]]
                                      for i, t in enumerate(mixed)),
              [t[1] for t in mixed if t[0] != 200])
        for m in "abcabc":
            ask(s, m)
        check("memory_comes_back", s.memory() < first + (48 << 20), (first, s.memory()))
        check("files_come_back", s.wait_for(lambda: s.open_files() <= files + 2),
              (files, s.open_files()))
        check("eviction_ends_well", s.end() == 0)
    need = 0
    with Server(models, "--ctx", "128", "--prefix-store", "1M") as s:
        ask(s, "b")
        need = [m["bytes"] for m in s.get("/v1/models")[1]["data"] if "bytes" in m]
        check("cards_have_bytes", len(need) == 2 and s.metric("pith:model_bytes", "a") == need[0],
              need)
    with Server(models, "--ctx", "128", "--prefix-store", "1M", "--models-memory",
                str(2 * max(need) + 1000)) as s:
        nobodys = lambda: not any(m.get("users") for m in s.get("/v1/models")[1]["data"])
        turns = [ask(s, m) for m in "abacab" if s.wait_for(nobodys)]  # one that is in use stays
        used = sum(m["bytes"] for m in s.get("/v1/models")[1]["data"] if m["state"] == "ready")
        check("evicted_by_bytes", all(t[0] == 200 for t in turns) and 0 < used <= 2 * max(need)
              + 1000, (used, turns))
        # a b a c (b goes: a was used later) a b (c goes)
        check("least_recently_used_goes_first", [loads(s, m) for m in "abc"] == [1, 2, 1],
              [loads(s, m) for m in "abc"])
    with Server(models[0], "--ctx", "128", "--models-memory", "100K", "--lazy") as s:
        a = ask(s, "")
        check("larger_than_the_limit",
              a[0] == 503 and "102400" in a[1]["error"]["message"]
              and "--models-memory" in a[1]["error"]["message"], a[1])
    with Server(models, "--models-idle", "0.05", "--lazy") as s:
        check("lazy", s.get("/ready")[0] == 200 and set(model_states(s).values()) == {"unloaded"},
              model_states(s))
        check("lazy_serves", bits(ask(s, "a")[1]) == alone["a"])
        check("idle_ones_go", s.wait_for(lambda: set(model_states(s).values()) == {"unloaded"}),
              model_states(s))


def test_waiting(models, alone):
    # One model at a time, and a stream that keeps the first for as long as we read: all that comes
    # now for others waits, unless it is not allowed to, or too many do.
    with Server(models, "--models-max", "1", "--queue", "2") as s:
        c = s.connect(raw_post("/v1/completions", completion([5, 6], 60000, stream=True)))
        c.recv(100)
        late = ask(s, "c", timeout=1e-9)
        check("waits_no_longer_than_allowed",
              late[0] == 400 and "was not loaded within the time" in late[1]["error"]["message"],
              late)
        many, rest = begin([lambda: ask(s, "b")] * 12)
        refused = s.wait_for(lambda: sum(a is not None for a in many) == 10) and [a for a in many
                if a]
        check("waiting_is_bounded", refused
              and all(a[0] == 429 and int(a[2].getheader("Retry-After")) > 0 for a in refused),
              many)
        check("the_stream_goes_on", model_states(s)["long"] == "unloading"
              and s.metric("vllm:num_requests_running", "long") == 1, model_states(s))
        c.close()
        served = [a for a in rest() if a[0] == 200]
        check("waits_for_a_stream", len(served) == 2
              and all(bits(a[1]) == alone["b"] for a in served), rest())


def test_admin(models, alone):
    with Server(models, "--ctx", "128") as s:
        off = s.post("/admin/unload", {"model": "a"}, Authorization="Bearer anything-at-all")
        check("admin_is_off", off[0] == 404 and "--admin-key" in off[1]["error"]["message"], off[1])
    with Server(models, "--ctx", "128", "--api-key", "ann:using-secret", "--admin-key",
                "boss:admin-secret") as s:
        def ask_as(key, path, body):
            return s.post(path, body, Authorization="Bearer " + key)

        def states():
            return {m["id"]: m["state"]
                    for m in s.get("/v1/models", Authorization="Bearer using-secret")[1]["data"]}

        check("admin_needs_a_key", s.post("/admin/load", {"model": "b"})[0] == 401
              and ask_as("using-secret", "/admin/load", {"model": "b"})[0] == 403)
        b = ask_as("admin-secret", "/admin/load", {"model": "b"})
        check("admin_loads", b[0] == 200 and b[1]["state"] == "ready" and states()["b"] == "ready",
              b[1])
        b = ask_as("admin-secret", "/admin/unload", {"model": "b"})
        check("admin_unloads", b[0] == 200 and s.wait_for(lambda: states()["b"] == "unloaded"),
              b[1])
        check("unloading_twice_is_no_error",
              ask_as("admin-secret", "/admin/unload", {"model": "b"})[0] == 200)
        check("admin_bad_input", ask_as("admin-secret", "/admin/unload", {"model": "nothing"})[0]
              == 404 and ask_as("admin-secret", "/admin/unload", {"model": "b", "force": 1})[0]
              == 400 and ask_as("admin-secret", "/admin/load", b"{")[0] == 400)
        again = ask_as("using-secret", "/v1/completions",
                       completion(prompts(1, 12)[0], 8, model="b"))
        check("loaded_again_when_asked_for", again[0] == 200 and bits(again[1]) == alone["b"],
              again[1])
        check("admins_use_it_too", ask_as("admin-secret", "/v1/completions", completion([5], 2))[0]
              == 200)
    with Server(models[0], "--api-key", "ann:using-secret", "--api-key", "admin:admin-secret") as s:
        check("a_key_named_admin", s.post("/admin/load", {}, Authorization="Bearer admin-secret")[0]
              == 200 and s.post("/admin/load", {}, Authorization="Bearer using-secret")[0] == 403)


def test_unload_a_stream(long):
    with Server(long, "--ctx", "65536", "--admin-key", "admin-secret") as s:
        for force in (False, True):
            c = s.connect(raw_post("/v1/completions",
                                   completion([5, 6], 300 if not force else 60000, stream=True),
                                   "Connection: close\r\n"))
            raw = c.recv(2000)  # it is being answered
            a = s.post("/admin/unload", {"force": force}, Authorization="Bearer admin-secret")
            c.settimeout(LIMIT)
            while piece := c.recv(1 << 20):
                raw += piece
            c.close()
            good = (b"model_unloaded" in raw if force else raw.count(b"text_completion") == 301
                    or b"[DONE]" in raw)
            check("unload_ends_a_stream" if force else "unload_lets_a_stream_end",
                  a[0] == 200 and good, raw[-200:])
            check("unloaded_behind_it",
                  s.wait_for(lambda: set(model_states(s).values()) == {"unloaded"}),
                  model_states(s))
            if not force:
                held = s.memory()
                check("back_on_demand", s.post("/v1/completions", completion([5], 2))[0] == 200)
        check("memory_is_back", s.wait_for(lambda: s.memory() < held + (32 << 20)),
              (held, s.memory()))


def test_drain(long):
    with Server(long, "--ctx", "65536", "--api-key", "ann:using-secret", "--admin-key",
                "admin-secret") as s:
        admin = {"Authorization": "Bearer admin-secret"}
        c = s.connect(raw_post("/v1/completions", completion([5, 6], 60000, stream=True),
                               "Authorization: Bearer using-secret\r\n"))
        c.recv(1)
        codes = [s.post("/admin/drain", b"")[0],
                 s.post("/admin/drain", b"", Authorization="Bearer using-secret")[0]]
        check("drain_needs_an_admin", codes == [401, 403] and s.get("/ready")[0] == 200, codes)
        a = s.post("/admin/drain", b"", **admin)
        late = s.post("/v1/completions", completion([5], 2), **admin)
        check("drain_takes_nothing_new",
              a[:2] == (200, {"status": "draining"}) and late[0] == 503
              and late[1]["error"]["code"] == "shutting_down" and s.get("/ready")[0] == 503,
              (a, late))
        check("drain_lets_a_stream_go_on", c.recv(1) and s.process.poll() is None)
        c.close()
        check("drain_ends_the_server", s.process.wait(LIMIT) == 0)


def test_trace(model):
    given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    bad = ["", "00", given.upper(), given[:-1], given + "-x", "ff" + given[2:],
           "00-" + "0" * 32 + given[35:], given[:36] + "0" * 16 + "-01", "01" + given[2:] + "x",
           given.replace("4b", "4g"), "x" * 4000]
    with Server(model, "--no-log=no") as s:
        def header(**headers):
            return s.ask("GET", "/health", headers=headers)[2]

        a = header(traceparent=given, tracestate="vendor=1").getheader("traceparent")
        check("trace_goes_on", a.startswith(given[:36]) and a.endswith("-01") and a != given, a)
        check("trace_state", header(traceparent=given,
                                    tracestate="vendor=1").getheader("tracestate") == "vendor=1")
        later = header(traceparent="01" + given[2:] + "-more").getheader("traceparent")
        check("trace_of_a_later_version", later.startswith(given[:36].replace("01-", "00-")), later)
        new = [header(traceparent=b, tracestate="vendor=1") for b in bad]
        ids = {h.getheader("traceparent")[3:35] for h in new}
        check("bad_traces_begin_anew",
              len(ids) == len(bad) and given[3:35] not in ids
              and not any(h.getheader("tracestate") for h in new), ids)
        s.post("/v1/completions", completion([5, 6], 3, temperature=0.5), traceparent=given)
        with socket.create_connection(("127.0.0.1", s.port), LIMIT) as c:  # no method, and no text
            c.sendall(b"G\xffT /strange HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            c.recv(4096)
        s.end()
        rows = [json.loads(line) for line in s.said.splitlines() if line.startswith("{")]
        row = [r for r in rows if r["path"] == "/v1/completions"][0]
        good = row["trace_id"] == given[3:35] and row["parent_span_id"] == given[36:52] and len(
                row["span_id"]) == 16
        strange = [r["method"] for r in rows if r["path"] == "/strange"]
        check("any_method_is_logged", strange == ["G\ufffdT"], strange)
        check("trace_is_logged", good and row["gen_ai.usage.completion_tokens"] == 3
              and row["gen_ai.request.temperature"] == 0.5
              and row["gen_ai.request.max_tokens"] == 3, row)


def test_folder(folder, models):
    with Server([], "--models", folder) as s:
        check("folder", sorted(model_states(s)) == ["a", "b", "broken", "c"]
              and set(model_states(s).values()) == {"unloaded"}, model_states(s))
        check("folder_serves", ask(s, "c")[0] == 200
              and s.post("/v1/completions", completion([5], 2))[1]["model"] == "a")
    with Server([], "--models", os.path.join(folder, "nothing"), wait=False) as s:
        check("no_folder", s.process.wait(LIMIT) == 2 and "nothing" in s.process.stderr.read())
    long = "n" * 240
    with Server([shutil.copy(models[0], os.path.join(folder, long + ".gguf")), models[1]]) as s:
        card = s.get("/v1/models/" + long)
        check("a_long_name", card[0] == 200 and card[1]["id"] == long, card[1])
    os.remove(os.path.join(folder, long + ".gguf"))
    other = os.path.join(folder, "other")
    os.mkdir(other)
    shutil.copy(models[0], other)
    with Server([models[0], os.path.join(other, "a.gguf")], wait=False) as s:
        check("two_of_one_name", s.process.wait(LIMIT) == 1
              and 'called "a"' in s.process.stderr.read())
    with Server([os.path.join(folder, "broken.gguf"), models[0]], wait=False) as s:
        check("broken_first", s.process.wait(LIMIT) == 2)


def test_names(folder, models):
    def names(s, words):
        return [ask(s, w, 1)[1].get("model") for w in words]

    with Server(models[0], "--lazy") as s:
        listed = [s.get("/v1/models")[1]["data"][0]["id"],
                  s.get("/api/tags")[1]["models"][0]["name"]]
        check("named_before_it_is_loaded", listed == ["a", "a"], listed)
        check("props_name_it", '"a"' in s.get("/props")[1]["error"]["message"], s.get("/props")[1])
        check("all_its_names", names(s, ["a", "a.gguf", models[0], "synthetic", "a:latest"])
              == ["a"] * 5, names(s, ["a", "a.gguf", models[0], "synthetic", "a:latest"]))
        done = [s.post(p, {"keep_alive": k})[1].get("done_reason")
                for p in ("/api/generate", "/api/chat")
                for k in (0, "0", "0s", 300, "5m", None, "", -1)]
        check("ollama_keep_alive", done == (["unload"] * 3 + ["load"] * 5) * 2, done)
        info = s.post("/api/show", {"model": "a"})[1]["model_info"]
        check("ollama_model_info", (info.get("llama.context_length"),
                                    info.get("llama.embedding_length")) == (256, 64)
              and not any(k.startswith("pith") for k in info), info)
        check("other_names_mean_the_only_one", names(s, ["A", "synth", "gpt-4"]) == ["a"] * 3)
    with Server(models[0], "--store-dir", "/proc/nothing", wait=False) as s:
        check("store_that_cannot_be_made",
              s.process.wait(LIMIT) == 2
              and "/proc/nothing: cannot make it" in s.process.stderr.read(), s.process.returncode)
    own = os.path.join(folder, "own")
    os.mkdir(own)
    with open(models[1], "rb") as f, open(os.path.join(own, "other.gguf"), "wb") as out:
        out.write(f.read().replace(b"synthetic", b"different", 1))
    shutil.copy(models[0], own)
    shutil.copy(models[2], own)
    os.symlink("a.gguf", os.path.join(own, "link.gguf"))
    with Server("a", "--name", "chosen", env={"PITH_MODELS": own}) as s:
        check("called_as_it_was_asked_for",
              names(s, ["chosen", "a", "synthetic"]) == ["chosen"] * 3)
    with Server(os.path.join(own, "other.gguf"), "--models", own) as s:
        check("a_file_is_offered_once", list(model_states(s)) == ["other", "a", "c"],
              model_states(s))
        check("a_link_is_a_name", names(s, ["link", "other", "different"])
              == ["a", "other", "other"])
        check("a_name_of_two_is_nobodys", ask(s, "synthetic")[0] == 404, ask(s, "synthetic")[1])
    for name, paths, code in (("absent_first", ["absent.gguf"], 2),
                              ("absent_later", [models[0], "absent.gguf"], 2),
                              ("broken_lazy", [os.path.join(folder, "broken.gguf"), "--lazy"], 2)):
        with Server(paths, wait=False) as s:
            check(name, s.process.wait(LIMIT) == code and s.url == "",
                  (s.url, s.process.returncode))


def main():
    with tempfile.TemporaryDirectory() as d:
        models = [synth(os.path.join(d, m + ".gguf"), "--ctx", "256", "--layers", "2", "--seed",
                        str(5 + i)) for i, m in enumerate("abc")]
        with open(models[0], "rb") as f, open(os.path.join(d, "broken.gguf"), "wb") as out:
            out.write(f.read(5000))
        os.mkdir(os.path.join(d, "long"))
        alone = {}
        for m, path in zip("abc", models):
            with Server(path, "--ctx", "128") as s:
                alone[m] = bits(ask(s, None)[1])
        with Server([*models[:2], os.path.join(d, "broken.gguf"), models[2]], "--ctx", "128") as s:
            test_on_demand(s, alone)
            test_broken(s, alone)
            check("ends_well", s.end() == 0)
        test_no_room_for_broken(models, os.path.join(d, "broken.gguf"), os.path.join(d, "strange"))
        test_odd_folder(d, models[0])
        test_eviction(models, alone)
        # A long context, so that a stream goes on for as long as it is let.
        long = synth(os.path.join(d, "long", "long.gguf"), "--ctx", "65536", "--layers", "2",
                     "--seed", "9")
        test_waiting([long, *models[1:]], alone)
        test_admin(models, alone)
        test_trace(models[0])
        test_folder(d, models)
        test_names(d, models)
        test_unload_a_stream(long)
        test_drain(long)


run(main, "test_models_serve")
