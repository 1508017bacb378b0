"""test_web.py -- the web page of pith serve, driven in a headless Chromium: writing, streaming,
stopping, branches, what the browser keeps, errors in words, hostile text, names and contrasts.
Any error on the console, any breach of the page's policy and any request to elsewhere is a
failure.

Without a browser (TEST_BROWSER, else chromium) or Playwright for Python that part is skipped by
name, as it is at TEST_SCALE=1, unless TEST_BROWSER is set. TEST_SHOTS: a folder for pictures."""
import http.client
import json
import os
import re
import shutil
import tempfile
import traceback

import web_checks
from serving import SCALE, Server, check, run, skip, synth

SHOTS = os.environ.get("TEST_SHOTS")
LIMIT = 40000  # ms any one wait may take
CHAT = "**/v1/chat/completions"


# ---------------------------------------------------------------- without a browser


def test_files(s):
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "server", "web")
    status, body, r = s.get("/")
    policy = r.getheader("Content-Security-Policy") or ""
    check("page", status == 200 and body.startswith(b"<!doctype html>")
          and r.getheader("Content-Type") == "text/html; charset=utf-8", status)
    check("policy", "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy,
          policy)
    status, nothing, same = s.get("/", **{"If-None-Match": r.getheader("ETag")})
    check("known_page_is_not_sent_again",
          status == 304 and not nothing and same.getheader("ETag") == r.getheader("ETag"), status)
    served = {name: s.get("/web/" + name) for name in os.listdir(folder)}
    check("every_file_is_served",
          all(a[0] == 200 and a[1] == open(os.path.join(folder, n), "rb").read()
              for n, a in served.items()), [n for n, a in served.items() if a[0] != 200])
    text = b"".join(a[1] for a in served.values()).decode()
    check("small_files", all(a[1].count(b"\n") < 300 for a in served.values()))
    check("no_html_from_text",
          not re.search(r"innerHTML|outerHTML\s*=[^=]|insertAdjacentHTML|document\.write|\beval\(|"
                        r"new Function|style=\"|\son\w+=\"", text))
    check("no_address_of_others",
          not re.search(r"""(?:src|href|url|import|fetch)\W{1,3}(?:https?:)?//""",
                        text.replace("http://www.w3.org/2000/svg", "")))
    for path in ("/web/", "/web/..", "/web/../http.c", "/web/nothing.js", "/web/index.html/x",
                 "/web/%2e%2e/serve.h"):
        check("no_file_%s" % path, s.get(path)[0] == 404)


def test_machine(s):
    """What the machine allows is measured while nothing runs."""
    body = json.dumps({"prompt": "w5", "max_tokens": 4000, "ignore_eos": True, "stream": True})
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=LIMIT / 1000)
    c.request("POST", "/v1/completions", body)
    r = c.getresponse()
    r.read(10)
    status, told, busy = s.get("/v1/machine")
    check("machine_waits_for_rest",
          status == 503 and told["error"]["code"] == "busy" and busy.getheader("Retry-After"), told)
    r.close()
    c.close()
    s.wait_for(lambda: s.get("/v1/machine")[0] == 200)
    m = s.get("/v1/machine")[1]
    check("machine", m.get("threads") == 1 and m["read_bytes_per_second"] > 1e8
          and m["int8_ops_per_second"] > 1e8 and s.get("/v1/machine")[1] == m, m)


# ---------------------------------------------------------------- canned answers


def sse(*deltas, finish="stop", usage=(31, 12)):
    """The body of a stream with these deltas (texts are contents)."""
    events = [{"choices": [{"index": 0, "delta": {"content": d} if isinstance(d, str) else d,
                            "finish_reason": None}]} for d in deltas]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    events.append({"choices": [],
                   "usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1],
                             "prompt_tokens_details": {"cached_tokens": 8}}})
    return "".join("data: %s\n\n" % json.dumps(e) for e in events) + "data: [DONE]\n\n"


def answer_with(page, *deltas, **more):
    page.unroute_all()
    page.route(CHAT, lambda r: r.fulfill(status=200, content_type="text/event-stream",
                                         body=sse(*deltas, **more)))


def fail_with(page, status, error, **headers):
    page.unroute_all()
    page.route(CHAT, lambda r: r.fulfill(status=status, content_type="application/json",
                                         headers=headers, body=json.dumps({"error": error})))


class Page:
    """A page of a browser of its own (nothing kept), with all that went wrong in it."""

    def __init__(self, browser, url, **how):
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 800},
                                              "accept_downloads": True, "reduced_motion": "reduce",
                                              **how})
        self.context.add_init_script("window.broken = []; "
                                     "addEventListener('securitypolicyviolation', (e) => "
                                     "broken.push(e.violatedDirective + ' ' + e.blockedURI))")
        self.url = url
        self.wrong = []
        self.page = self.open()

    def open(self):
        p = self.context.new_page()
        p.set_default_timeout(LIMIT)
        # A refused request is written to the console by the browser; the page tells it in words.
        p.on("console", lambda m: self.wrong.append(m.text) if m.type in ("error", "warning")
             and not m.text.startswith("Failed to load resource") else None)
        p.on("pageerror", lambda e: self.wrong.append(str(e)))
        p.on("dialog", lambda d: (self.wrong.append("dialog " + d.message), d.dismiss()))
        p.on("request", lambda r: None if r.url.startswith((self.url, "blob:" + self.url))
             else self.wrong.append("asked " + r.url))
        p.goto(self.url)
        p.wait_for_selector("#messages", state="attached")
        return p

    def clean(self, name):
        broken = self.page.evaluate("window.broken")
        check(name + "_without_errors", not self.wrong and not broken, self.wrong + broken)
        self.wrong.clear()

    def close(self):
        self.context.close()


def send(page, text):
    page.fill("#box", text)
    page.press("#box", "Enter")


def done(page):
    page.wait_for_selector(".message.assistant:last-child:not(.writing)")


def last(page):
    return page.inner_text(".message.assistant:last-child .body")


def shot(page, name):
    if SHOTS:
        page.screenshot(path=os.path.join(SHOTS, name + ".png"))


# ---------------------------------------------------------------- with the real server


def endless(page):
    """Sampling by the settings' panel: the most probable token, and no end."""
    page.click("#open-settings")
    page.fill("#f-temperature", "0")
    page.click("text=More samplers")
    page.check("#f-ignore_eos")
    page.click("#open-settings")


def test_writing(browser, s):
    p = Page(browser, s.url)
    page = p.page
    page.wait_for_selector("#model-name:not([hidden])")
    check("first_load", page.is_visible("#empty") and page.inner_text("#model-name")
          and page.evaluate("document.activeElement.id") == "box")
    check("nothing_to_send", page.is_disabled("#send"))
    web_checks.all_of(page, check, "empty")
    shot(page, "empty")
    page.click("#open-settings")
    page.wait_for_selector("#f-temperature")
    page.fill("#f-temperature", "1000")
    check("out_of_range_is_told", "0 to 100" in page.inner_text("#f-temperature-wrong"))
    for fold in page.query_selector_all("#settings summary"):
        fold.click()
    web_checks.all_of(page, check, "settings")
    ignored = page.evaluate("[...document.querySelectorAll('#settings .field')].map((e) => "
                            "e.innerText).filter((t) => /ignored|not supported|not used/.test(t))")
    check("settings_that_do_nothing_are_not_shown",
          not ignored and page.query_selector("#f-metadata") is None
          and page.query_selector("#f-response_format"), ignored)
    page.click("text=All back to defaults")
    page.wait_for_selector("#f-temperature")
    page.click("#open-settings")
    endless(page)
    page.evaluate("window.said = []; const live = document.getElementById('live'); "
                  "new MutationObserver(() => said.push(live.textContent))"
                  ".observe(live, {childList: true})")
    send(page, "w5 w6 w7")
    page.wait_for_function("() => document.querySelector('.message.writing "
                           ".md')?.textContent.length > 20")
    first = last(page)
    page.wait_for_function("(n) => document.querySelector('.message.writing "
                           ".md')?.textContent.length > n", arg=len(first))
    check("streams", page.is_visible(".message.user") and page.inner_text(".said") == "w5 w6 w7")
    page.wait_for_function("() => /[0-9.]+ tokens.s/"
                           ".test(document.getElementById('pace').textContent)")
    check("stop_is_offered", page.get_attribute("#send", "aria-label") == "Stop")
    page.press("#box", "Escape")
    done(page)
    stopped = last(page)
    check("escape_stops", "Stopped." in stopped
          and page.get_attribute("#send", "aria-label") == "Send")
    check("stopped_is_counted", re.match(r"[\d,]+ tokens",
                                         page.inner_text(".message.assistant .figures"))
          and re.match(r"[\d,]{2,} of 4,096", page.inner_text("#meter")), page.inner_text("#meter"))
    check("said_once_not_per_token", len(page.evaluate("said")) <= 3, page.evaluate("said"))
    page.click("[aria-label='Write another answer']")
    page.wait_for_selector(".message.writing")
    page.click("#send")
    done(page)
    check("again_is_a_branch", page.inner_text(".message.assistant .branches") == "2/2",
          page.inner_text(".message.assistant .foot"))
    page.click(".message.assistant [aria-label='Earlier version']")
    check("back_to_the_first", last(page) == stopped
          and page.inner_text(".message.assistant .branches") == "1/2")
    page.click("#open-settings")
    page.wait_for_selector("#f-max_tokens")
    page.fill("#f-max_tokens", "6")
    page.click("#open-settings")
    page.focus("#box")
    page.press("#box", "ArrowUp")
    page.fill(".editor textarea", "w8 w9")
    page.press(".editor textarea", "Enter")
    done(page)
    check("edit_is_a_branch", page.inner_text(".message.user .branches") == "2/2"
          and page.inner_text(".said") == "w8 w9")
    check("figures", "6 tokens" in page.inner_text(".message.assistant .figures")
          and "Cut off" in last(page), last(page))
    check("meter", re.search(r"\d+ of 4,096 tokens", page.inner_text("#meter")),
          page.inner_text("#meter"))
    page.keyboard.press("Alt+ArrowLeft")
    check("keys_change_branches", page.inner_text(".said") == "w5 w6 w7")
    page.click(".message.user [aria-label='Later version']")
    second = "later\nlines"
    page.focus("#box")
    page.fill("#box", "x")
    page.press("#box", "Shift+Enter")
    check("shift_enter_is_a_line", page.input_value("#box") == "x\n")
    send(page, second)
    done(page)
    check("goes_on_below_the_branch",
          [e.inner_text() for e in page.query_selector_all(".said")] == ["w8 w9", second]
          and page.is_visible(".message:last-child .figures"), last(page))
    p.clean("writing")
    return p


def test_keeping(browser, s, p):
    page = p.page
    before = page.inner_text("#messages")
    page.reload()
    page.wait_for_selector(".message")
    check("reload_keeps", page.inner_text("#messages") == before
          and page.inner_text("#title") == "w8 w9", page.inner_text("#messages"))
    page.click("#new")
    check("new", page.is_visible("#empty"))
    send(page, "another one")
    done(page)
    check("two_are_kept", len(page.query_selector_all("#conversations li")) == 2)
    page.hover("#conversations li:nth-child(2)")
    page.click("[aria-label='Rename w8 w9']")
    page.fill(".rename", "About <b>words</b>")
    page.press(".rename", "Enter")
    check("rename", page.is_visible("text=About <b>words</b>"))
    page.keyboard.press("Control+k")
    page.keyboard.type("LATER")
    check("search_in_messages", [e.inner_text()
                                 for e in page.query_selector_all("#conversations .open")]
          == ["About <b>words</b>"])
    page.keyboard.press("Escape")
    with page.expect_download() as download:
        page.click("#export")
    path = download.value.path()
    kept = json.load(open(path))
    check("export", kept["format"] == "pith-conversations" and len(kept["conversations"]) == 2,
          list(kept))
    page.hover("#conversations li")
    page.click("[aria-label='Delete another one']")
    check("delete", len(page.query_selector_all("#conversations li")) == 1
          and page.is_visible("#empty"))
    page.click("text=Undo")
    check("undo", len(page.query_selector_all("#conversations li")) == 2)
    p.clean("keeping")
    other = Page(browser, s.url)
    page = other.page
    page.wait_for_selector("#conversations .none")
    for name, text, told in (("no_json", "{", "not JSON"),
                             ("other_json", "[1]", "no file of conversations"),
                             ("newer",
                              '{"format": "pith-conversations", "version": 9, "conversations": []}',
                              "version 9"), ("hollow",
                                             '{"format": "pith-conversations", "version": 1, '
                                             '"conversations": [1, {"nodes": 3}, null]}',
                                             "no conversation")):
        page.set_input_files("#import-file",
                             {"name": name + ".json", "mimeType": "application/json",
                              "buffer": text.encode()})
        page.wait_for_function("(t) => document.getElementById('toast').textContent.includes(t)",
                               arg=told)
        check("import_" + name, page.query_selector("#conversations li") is None)
    page.set_input_files("#import-file", path)
    page.wait_for_selector("#conversations li")
    page.click("text=About <b>words</b>")
    page.wait_for_selector(".message")
    check("import", page.inner_text("#messages") == before)
    page.reload()
    page.wait_for_selector(".message")
    check("import_is_kept", page.inner_text("#messages") == before
          and len(page.query_selector_all("#conversations li")) == 2)
    page.set_input_files("#import-file", path)
    page.wait_for_function("() => document.getElementById('toast').textContent.includes('already')")
    check("import_twice", len(page.query_selector_all("#conversations li")) == 2)
    kept["conversations"] = [{**kept["conversations"][0], "id": "", "title": "Foreign",
                              "params": {"temperature": 0, "n": 128, "timeout": 1,
                                         "tool_choice": "none"}}]
    page.set_input_files("#import-file",
                         {"name": "foreign.json", "mimeType": "application/json",
                          "buffer": json.dumps(kept).encode()})
    page.click("text=Foreign")
    asked = []
    two = [{"choices": [{"index": i, "delta": {"content": "%d " % i}, "finish_reason": None}]}
           for i in (0, 1, 0)]
    page.route(CHAT, lambda r: (asked.append(json.loads(r.request.post_data)),
                                r.fulfill(status=200, content_type="text/event-stream",
                                          body="".join("data: %s\n\n" % json.dumps(e) for e in two)
                                          + "data: [DONE]\n\n")))
    send(page, "go on")
    done(page)
    check("only_settings_are_imported",
          set(asked[0]) == {"messages", "stream", "stream_options", "temperature"}, list(asked[0]))
    check("one_choice_is_one_answer", last(page).startswith("0 0"), last(page))
    other.clean("import")
    other.close()


def test_two_pages(browser, s):
    """The same conversation in two pages: each shows what the other adds, and both are kept."""
    p = Page(browser, s.url)
    one = p.page
    answer_with(one, "first answer")
    send(one, "a question")
    done(one)
    two = p.open()
    two.click("text=a question")
    two.wait_for_selector("text=first answer")
    answer_with(two, "second answer")
    send(two, "and more")
    one.wait_for_selector("text=second answer")
    check("pages_tell_each_other", last(one) == "second answer", last(one))
    answer_with(one, "third answer")
    send(one, "still more")
    two.wait_for_selector("text=third answer")
    two.hover("#conversations li")
    two.click("[aria-label='Rename a question']")
    two.fill(".rename", "Both")
    two.press(".rename", "Enter")
    one.wait_for_function("() => document.getElementById('title').textContent === 'Both'")
    one.reload()
    one.wait_for_selector("text=third answer")
    check("pages_lose_nothing", one.locator(".message").count() == 6, one.inner_text("#messages"))
    two.hover("#conversations li")
    two.click("[aria-label='Delete Both']")
    one.wait_for_selector("#conversations .none")
    check("deleted_in_both", one.is_visible("#empty"))
    two.close()
    # One that is opened in the middle of an answer gets all of it.
    one.unroute_all()
    send(one, "w5 w6")
    one.wait_for_selector("#conversations li")
    two = p.open()
    two.click("#conversations .open")
    two.wait_for_selector(".message.assistant")
    done(one)
    two.wait_for_function("(t) => document.querySelector('.message.assistant:last-child "
                          ".body').innerText === t", arg=last(one))
    steps = one.evaluate("""async () => {
        const { merge } = await import('/web/tree.js');
        const n = (content, state) => ({ id: 'm1', parent: '', role: 'assistant', content, state });
        const c = { nodes: { m1: n('a', 'stopped') }, updated: 0 };
        return [['ab', 'writing'], ['abc', 'writing'], ['abc', 'done'], ['a', \
'writing']].map(([content, state], i) => {
            merge(c, { nodes: { m1: n(content, state) }, updated: i }, i < 3);
            return c.nodes.m1.content + ' ' + c.nodes.m1.state;
        });
    }""")
    silent = one.evaluate("""async () => {
        const { merge } = await import('/web/tree.js');
        const n = (state, calls) => ({ id: 'm1', parent: '', role: 'assistant', content: '', \
state, calls });
        const c = { nodes: { m1: n('stopped', []) }, updated: 0 };
        merge(c, { nodes: { m1: n('done', [1]) }, updated: 1 }, false);
        return c.nodes.m1.state + ' ' + c.nodes.m1.calls.length;
    }""")
    check("an_answer_of_calls_alone_comes_over", silent == "done 1", silent)
    check("an_answer_of_another_page_grows",
          steps == ["ab writing", "abc writing", "abc done", "abc done"], steps)
    check("a_page_that_came_later_has_the_answer", "Stopped." not in two.inner_text("#messages"),
          two.inner_text("#messages")[-60:])
    two.close()
    p.clean("two_pages")
    p.close()


def test_editing(browser, s):
    """What is typed into the editor of a question stays while other things happen."""
    p = Page(browser, s.url)
    page = p.page
    held = []
    page.route(CHAT, lambda r: held.append(r))
    send(page, "a question")
    page.wait_for_selector(".message.writing")
    page.click("[aria-label='Edit']")
    page.fill(".editor textarea", "half of another")
    held[0].fulfill(status=200, content_type="text/event-stream", body=sse("An answer."))
    done(page)
    check("answer_leaves_the_editor",
          page.query_selector(".editor")
          and page.input_value(".editor textarea") == "half of another")
    page.hover("#conversations li")
    page.click("[aria-label='Rename a question']")
    page.fill(".rename", "Renamed")
    page.press(".rename", "Enter")
    page.wait_for_function("() => document.getElementById('title').textContent === 'Renamed'")
    page.focus("#box")
    page.keyboard.press("ArrowUp")
    check("edited_once", page.input_value(".editor textarea") == "half of another"
          and page.evaluate("document.activeElement.closest('.editor') !== null"))
    page.keyboard.press("Escape")
    check("editor_closes", page.inner_text(".said") == "a question"
          and page.query_selector(".editor") is None)
    p.clean("editing")
    p.close()


def test_marks(browser, s):
    """What somebody writes on the page, or an answer says, is text for the model, also where it
    spells a control token: as message, as system prompt, and as answer in what follows."""
    n, marker = 20, "</s>"
    whole = s.post("/tokenize", {"content": marker * n})[1]
    check("a_marker_is_a_token", n <= whole["count"] <= n + 1, whole)
    p = Page(browser, s.url)
    page = p.page

    def asked(text):
        with page.expect_response(CHAT) as got:
            send(page, text)
        done(page)
        return max((json.loads(line[6:]).get("usage") or {}).get("prompt_tokens", 0)
                   for line in got.value.text().splitlines() if line.startswith("data: {"))

    def behind(answer):
        page.click("#new")
        answer_with(page, answer)
        send(page, "w5")
        done(page)
        page.unroute_all()
        return asked("w5")

    page.click("#open-settings")
    page.wait_for_selector("#f-max_tokens")
    page.fill("#f-max_tokens", "2")
    plain = asked("w5")
    page.click("#new")
    counts = {"message": asked(marker * n) - plain,
              "answer": behind(marker * n) - behind("w5")}
    page.click("#new")
    page.fill("#f-system", marker * n)
    counts["system"] = asked("w5") - plain
    check("markers_are_text", all(c >= 3 * n for c in counts.values()), counts)
    p.clean("marks")
    p.close()


def test_full_disk(browser, s):
    """A browser that takes a conversation and then finds no room for it."""
    p = Page(browser, s.url)
    page = p.page
    answer_with(page, "x" * 100000)
    page.context.new_cdp_session(page).send("Storage.overrideQuotaForOrigin",
                                            {"origin": s.url, "quotaSize": 1})
    send(page, "too much")
    page.wait_for_function("() => document.getElementById('toast').textContent.includes('does "
                           "not keep conversations')")
    done(page)
    check("full_disk_is_told", page.inner_text(".said") == "too much"
          and "export" in page.inner_text("#toast"), page.inner_text("#toast"))
    p.clean("full_disk")
    p.close()


def test_limits(browser, s):
    """A conversation that is too long, in the server's numbers."""
    p = Page(browser, s.url)
    page = p.page
    send(page, "w5 " * 5000)
    done(page)
    error = last(page)
    check("context_in_numbers", "context holds 4,096" in error and "too many" in error
          and page.is_visible("text=Try again"), error)
    page.click("text=Try again")
    done(page)
    check("retry_replaces_what_never_began",
          page.query_selector(".message.assistant .branches") is None)
    p.clean("limits")
    p.close()


def test_going(browser, model):
    """A server that ends and comes back, and one that wants a key."""
    s = Server(model)
    p = Page(browser, s.url)
    page = p.page
    page.wait_for_selector("#model-name:not([hidden])")
    port = s.port
    s.end()
    send(page, "is anybody there")
    done(page)
    check("gone_in_words", "does not answer" in last(page)
          and "does not answer" in page.inner_text("#banner"), last(page))
    page.focus("#banner button")
    page.evaluate("window.said = []; new MutationObserver(() => "
                  "said.push(1)).observe(document.getElementById('live'), {childList: true})")
    for _ in range(2):
        with page.expect_event("requestfailed"):
            pass
    check("retries_are_quiet",
          page.evaluate("said.length === 0 && document.activeElement.closest('#banner') !== null"))
    s = Server(model, "--port", str(port))
    page.wait_for_selector("#banner", state="hidden")
    page.click(".error >> text=Try again")
    page.wait_for_selector(".message.assistant .md:not(:empty)")
    check("comes_back", "does not answer" not in last(page))
    p.clean("going")
    p.close()
    s.end()
    s = Server(model, "--api-key", "ann:the-secret-key")
    p = Page(browser, s.url)
    page = p.page
    page.wait_for_selector("#login[open]")
    web_checks.all_of(page, check, "login")
    page.fill("#key", "wrong-secret")
    page.press("#key", "Enter")
    page.wait_for_function("() => document.getElementById('login').open && "
                           "document.getElementById('key').value === ''")
    page.fill("#key", "the-secret-key")
    page.press("#key", "Enter")
    page.wait_for_selector("#model-name:not([hidden])")
    check("key_opens", page.is_hidden("#banner"))
    page.reload()
    page.wait_for_selector("#model-name:not([hidden])")
    check("key_is_kept_in_the_tab",
          page.evaluate("localStorage.getItem('pith.key')") is None
          and page.query_selector("#login[open]") is None)
    p.clean("key")
    p.close()
    s.end()


# ---------------------------------------------------------------- with canned answers


HOSTILE = """<script>window.hit = 1</script><img src=x onerror="window.hit = 1"> <iframe \
src="javascript:window.hit = 1"></iframe>

[a](javascript:window.hit=1) [b](JaVaScRiPt:window.hit=1) \
[c](data:text/html,<script>window.hit=1</script>) [d](vbscript:x) [e]( java\tscript:window.hit=1)
![picture](https://elsewhere.example/x.png) ![p](javascript:window.hit=1) \
<javascript:window.hit=1> [f](//elsewhere.example) \
[g](https://elsewhere.example/"onmouseover="window.hit=1)
[h](https://fine.example/a_b?c=d) <https://fine.example> https://fine.example/bare. mailto:x \
[m](mailto:a@b.example)

```html"><script>window.hit = 1</script>
</code></pre><script>window.hit = 1</script>
```

| <script>window.hit = 1</script> | b |
| --- | --- |
| `<img src=x onerror=window.hit=1>` | **<b onclick=window.hit=1>** |

# <svg onload=window.hit=1>
- [ ] <style>body { display: none }</style>
> <a href="javascript:window.hit=1">x</a> &lt;b&gt; __proto__ constructor
"""

FINE = """# Title ##

Some *emphasis*, **strong**, ***both***, ~~gone~~, `code with * and _`, snake_case_name, 2 * 3 * 4 \
and a [link](https://a.example/x_(y) "title").

1. one
   - inner **a**
   - inner b

     second paragraph
2. two

- [x] done
- [ ] open

| left | right |
| :--- | ---: |
| a \\| b | 1 |
| 2 |

> quote
> goes on

```python
def f(x):  # comment
    return "text" + str(42)
```

---
Last line
with a break\\*"""


def test_markdown(browser, s):
    p = Page(browser, s.url)
    page = p.page
    answer_with(page, *[HOSTILE[i:i + 7] for i in range(0, len(HOSTILE), 7)])
    send(page, "<img src=x onerror='window.hit = 1'>")
    done(page)
    page.keyboard.press("Control+k")
    check("hostile_text_does_nothing", page.evaluate("window.hit") is None)
    inside = page.evaluate("[...document.querySelectorAll('.messages *')].filter((e) => "
                           "/^(script|img|iframe|style|object|embed|link|base|form|meta)$/"
                           "i.test(e.tagName) || "
                           "[...e.attributes].some((a) => /^on/i.test(a.name) || a.name === "
                           "'style')).map((e) => e.outerHTML)")
    check("hostile_text_makes_no_elements", inside == [], inside)
    links = page.evaluate("[...document.querySelectorAll('.messages a')].map((a) => "
                          "[a.getAttribute('href'), a.rel, a.target])")
    check("links_are_safe", len(links) >= 5
          and all(re.match(r"(https?|mailto):", h) and "noopener" in rel and t == "_blank"
                  for h, rel, t in links), links)
    check("title_is_text", page.inner_text("#title") == "<img src=x onerror='window.hit = 1'>"
          and page.query_selector("#sidebar img") is None)
    web_checks.all_of(page, check, "hostile")
    page.click("#new")
    answer_with(page, *[FINE[i:i + 5] for i in range(0, len(FINE), 5)])
    send(page, "fine")
    done(page)
    tree = page.evaluate("""() => { const f = (e) => e.nodeType === 3 ? JSON.stringify(e.data) : \
e.tagName.toLowerCase() + '(' + [...e.childNodes].map(f).join(',') + ')';
        return [...document.querySelector('.md').children].map(f); }""")
    whole = "\n".join(tree)
    for name, part in (("heading", 'h3("Title")'), ("emphasis", 'em("emphasis")'),
                       ("strong", 'strong("strong")'), ("both", 'strong(em("both"))'),
                       ("struck", 'del("gone")'), ("code", 'code("code with * and _")'),
                       ("plain", "snake_case_name, 2 * 3 * 4"), ("link", 'a("link")'),
                       ("list",
                        'ol(li("one",ul(li("inner ",strong("a")),li(p("inner b"),p("second '
                        'paragraph")))),li("two"))'),
                       ("tasks", 'ul(li(input(),"done"),li(input(),"open"))'),
                       ("table", 'td("a | b")'), ("quote", 'blockquote(p("quote",br(),"goes on"))'),
                       ("colours", 'span("# comment")'), ("rule", "hr()"),
                       ("break", 'p("Last line",br(),"with a break*")'),
                       ("short_row", 'tr(td("2"),td())')):
        check("markdown_" + name, part in whole, whole)
    grown = page.evaluate("""async (text) => { const { Markdown } = await \
import('/web/markdown.js'); const a = new Markdown(), b = new Markdown();
        for (let i = 1; i <= text.length; i++) a.update(text.slice(0, i)); b.update(text); return \
a.node.outerHTML === b.node.outerHTML; }""", FINE + HOSTILE)
    check("growing_is_the_same_as_whole", grown)
    bombs = ["*" * 100000, "*a " * 30000, "[" * 50000, "[a](" * 20000, "`" * 50000 + "a",
             "> " * 5000 + "x", "- " * 5000 + "x", "|" * 20000 + "\n" + "-|" * 20000, "_a_" * 30000,
             "\n".join(" " * i + "- x" for i in range(300)), "![" * 30000, "<http://" * 20000]
    sizes = page.evaluate("async (bombs) => { const { Markdown } = await "
                          "import('/web/markdown.js'); return bombs.map((t) => { const m = new "
                          "Markdown(); m.update(t); return m.node.children.length > 0; }); }",
                          bombs)
    check("bombs", all(sizes), sizes)
    looks = page.evaluate("""async (text) => { const { Markdown } = await \
import('/web/markdown.js'), trim = String.prototype.trim; let n = 0;
        String.prototype.trim = function () { if (++n > 1e6) throw new Error('looked at too \
often'); return trim.call(this); };
        try { new Markdown().update(text); return n; } catch (e) { return e.message; } finally { \
String.prototype.trim = trim; } }""", "- a" + "\n" * 100000 + "- b")
    check("blank_lines_are_looked_at_a_few_times", isinstance(looks, int), looks)
    web_checks.all_of(page, check, "markdown")
    page.emulate_media(color_scheme="dark")
    web_checks.all_of(page, check, "markdown_dark")
    shot(page, "markdown-dark")
    page.evaluate("navigator.clipboard.writeText = async (t) => { window.copied = t; }")
    page.click("[aria-label='Copy the code']")
    page.wait_for_function("() => window.copied")
    check("copy_code", page.evaluate("copied")
          == 'def f(x):  # comment\n    return "text" + str(42)')
    p.clean("markdown")
    p.close()


def test_parts(browser, s):
    """Reasoning, calls of tools and their results, errors of the server, several models."""
    p = Page(browser, s.url)
    page = p.page
    call = [{"tool_calls": [{"index": 0, "id": "c1", "type": "function",
                             "function": {"name": "weather", "arguments": ""}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '"Rome"}'}}]}]
    answer_with(page, {"reasoning_content": "Let me "}, {"reasoning_content": "**think**."}, *call,
                finish="tool_calls")
    send(page, "weather?")
    done(page)
    check("reasoning_is_folded", page.is_visible(".message .fold > summary")
          and not page.is_visible(".message .fold .md"))
    page.click(".message .fold > summary")
    check("reasoning_unfolds", page.inner_text(".message .fold .md") == "Let me think.")
    check("call_is_shown", "weather" in page.inner_text(".call-name")
          and json.loads(page.inner_text(".call pre")) == {"city": "Rome"})
    web_checks.all_of(page, check, "tools")
    asked = []
    page.unroute_all()
    page.route(CHAT, lambda r: (asked.append(json.loads(r.request.post_data)),
                                r.fulfill(status=200, content_type="text/event-stream",
                                          body=sse("Sunny."))))
    page.fill(".results textarea", "sun, 20 C")
    page.click("text=Send the result")
    page.wait_for_selector("text=Sunny.")
    tail = asked[0]["messages"][-2:]
    check("result_goes_back", tail[0]["tool_calls"][0]["function"]
          == {"name": "weather", "arguments": '{"city":"Rome"}'}
          and tail[1] == {"role": "tool", "tool_call_id": "c1", "content": "sun, 20 C"}, tail)
    check("untouched_settings_are_not_sent",
          set(asked[0]) == {"messages", "stream", "stream_options"}, list(asked[0]))
    page.click("#open-settings")
    page.wait_for_selector("#f-temperature")
    page.fill("#f-system", "Be brief.")
    page.fill("#f-temperature", "0.5")
    page.fill("#f-stop", "one\ntwo")
    page.click("text=Tools and forms of answers")
    page.fill("#f-response_format", '{"type": ')
    check("json_that_is_none_is_told", "not JSON" in page.inner_text("#f-response_format-wrong"))
    page.fill("#f-response_format", '{"type": "json_object"}')
    page.keyboard.press("Escape")
    send(page, "next")
    done(page)
    check("settings_are_sent", (asked[-1]["messages"][0], asked[-1]["temperature"],
                                asked[-1]["stop"], asked[-1]["response_format"])
          == ({"role": "system", "content": "Be brief."}, 0.5, ["one", "two"],
              {"type": "json_object"}), asked[-1])
    for name, status, error, headers, told in (("busy", 429,
                                                {"message": "full", "code": "queue_full"},
                                                {"Retry-After": "7"}, "wait 7 s"),
                                               ("refused", 400,
                                                {"message": "stop is too long",
                                                 "code": "out_of_range"}, {}, "stop is too long"),
                                               ("broken", 500, {"message": "no step"}, {},
                                                "no step")):
        fail_with(page, status, error, **headers)
        send(page, name)
        done(page)
        check("error_" + name, told in last(page)
              and page.is_visible(".message:last-child >> text=Try again"), last(page))
    web_checks.all_of(page, check, "error")
    page.unroute_all()
    page.route(CHAT, lambda r: r.fulfill(status=200, content_type="text/event-stream",
                                         body='data: {"choices": [{"delta": {"content": '
                                         '"half"}}]}\n\n'))
    send(page, "cut")
    done(page)
    check("cut_stream_keeps_its_text", "half" in last(page) and "broke" in last(page), last(page))
    page.unroute_all()
    page.route("**/v1/models", lambda r: r.fulfill(json={"object": "list",
                                                         "data": [{"id": "one",
                                                                   "max_model_len": 100},
                                                                  {"id": "two <b>",
                                                                   "max_model_len": 200}]}))
    page.route(CHAT, lambda r: (asked.append(json.loads(r.request.post_data)),
                                r.fulfill(status=200, content_type="text/event-stream",
                                          body=sse("hi"))))
    page.reload()
    page.wait_for_selector("#models:not([hidden])")
    page.select_option("#models", "two <b>")
    send(page, "to two")
    done(page)
    page.route("**/v1/models", lambda r: r.fulfill(json={"object": "list",
                                                         "data": [{"id": "one", "state": "ready"},
                                                                  {"id": "two <b>",
                                                                   "state": "unloaded"}]}))
    page.reload()
    page.wait_for_selector("#models:not([hidden])")
    page.click("#open-model")
    page.wait_for_selector("#model >> text=It is not loaded")
    page.keyboard.press("Escape")
    check("several_models", asked[-1]["model"] == "two <b>", asked[-1])
    page.unroute_all()
    loading = {"error": {"message": "the model is being loaded", "code": "model_loading",
                         "progress": 0.4}}
    page.route("**/v1/models", lambda r: r.fulfill(status=503, headers={"Retry-After": "2"},
                                                   json=loading))
    page.reload()
    page.wait_for_selector("#banner:not([hidden])")
    check("loading_in_words", "40 %" in page.inner_text("#banner")
          and page.query_selector("#banner progress"), page.inner_text("#banner"))
    page.unroute_all()
    page.wait_for_selector("#banner", state="hidden")
    p.clean("parts")
    p.close()


def test_looks(browser, s):
    p = Page(browser, s.url, color_scheme="light")
    page = p.page
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(ground)
    check("as_the_system", light != dark, (light, dark))
    page.click("#theme")
    check("light_by_hand", page.evaluate(ground) == light)
    page.click("#theme")
    page.emulate_media(color_scheme="light")
    page.reload()
    check("dark_is_kept", page.evaluate(ground) == dark)
    web_checks.all_of(page, check, "dark")
    answer_with(page, "Some words.")
    send(page, "hello")
    done(page)
    page.click("#open-model")
    page.wait_for_selector("#model .facts")
    check("model_page", all(t in page.inner_text("#model")
                            for t in ("Architecture", "Weights", "Share", "tokens"))
          or "Nothing has run" in page.inner_text("#model"), page.inner_text("#model"))
    for fold in page.query_selector_all("#model summary"):
        fold.click()
    web_checks.all_of(page, check, "model")
    shot(page, "model-dark")
    page.keyboard.press("Escape")
    page.click("#title")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    check("keys_are_listed", page.is_visible("#keys kbd"))
    web_checks.all_of(page, check, "keys")
    page.keyboard.press("Escape")
    page.unroute_all()
    answer_with(page, FINE, "\n\n```c\n" + "x = 1; " * 60 + "\n```\n" + "w" * 400)
    page.set_viewport_size({"width": 360, "height": 740})
    send(page, "v" * 300)
    done(page)
    check("phone_width",
          page.evaluate("[document.documentElement, document.querySelector('.scroll'), "
                        "document.querySelector('.main')].every((e) => e.scrollWidth <= 360)"))
    check("drawer_is_closed", not page.is_visible("#new"))
    page.click("#open-sidebar")
    page.wait_for_function("() => document.activeElement.id === 'new'")
    web_checks.all_of(page, check, "phone_drawer")
    covered = []
    for _ in range(40):
        page.keyboard.press("Tab")
        covered.append(page.evaluate("document.activeElement.closest('.main') !== null"))
    check("focus_stays_before_what_is_covered",
          not any(covered) and page.evaluate("document.querySelector('.main').inert"))
    page.focus("#new")
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.activeElement.id === 'open-sidebar'")
    page.click("#open-settings")
    page.click("[aria-label='Close the settings']")
    check("uncovered", page.is_hidden("#settings")
          and page.evaluate("document.activeElement.id") == "open-settings")
    page.click("#open-settings")
    page.wait_for_selector("#f-temperature")
    check("phone_settings", page.evaluate("document.getElementById('settings').scrollWidth <= 360"))
    web_checks.all_of(page, check, "phone_settings")
    page.keyboard.press("Escape")
    shot(page, "phone")
    p.clean("looks")
    p.close()


def find_browser():
    browser = os.environ.get("TEST_BROWSER") or shutil.which("chromium")
    if not browser:
        return None, "no chromium here; TEST_BROWSER names one"
    if SCALE < 10 and not os.environ.get("TEST_BROWSER"):
        return None, "at TEST_SCALE=10, or with TEST_BROWSER set"
    try:
        import playwright.sync_api
        return browser, playwright.sync_api
    except ImportError:
        return None, "the Python package playwright is not installed"


def main():
    with tempfile.TemporaryDirectory() as d:
        model = synth(os.path.join(d, "m.gguf"), "--ctx", "4096", "--layers", "16", "--embd", "128",
                      "--seed", "5")
        s = Server(model, "--no-web")
        check("no_web", s.get("/")[0] == 404 and s.get("/web/app.js")[0] == 404
              and s.get("/health")[0] == 200)
        s.end()
        s = Server(model)
        try:
            test_files(s)
            test_machine(s)
            browser, api = find_browser()
            if not browser:
                skip("web_browser", api)
                return
            with api.sync_playwright() as p:
                b = p.chromium.launch(executable_path=browser,
                                      args=["--no-sandbox"] if os.geteuid() == 0 else [])
                page = test_writing(b, s)
                test_keeping(b, s, page)
                page.close()
                for test in (test_two_pages, test_editing, test_marks, test_full_disk, test_limits,
                             test_markdown, test_parts, test_looks):
                    test(b, s)
                test_going(b, model)
                b.close()
        except Exception as e:  # a wait that was in vain, or an element that is not there
            at = traceback.extract_tb(e.__traceback__)
            where = ["%s:%d" % (f.name, f.lineno) for f in at if f.filename == __file__]
            check("web", False, "%s: %r" % (" ".join(where), e))
        finally:
            s.end()


run(main, "test_web")
