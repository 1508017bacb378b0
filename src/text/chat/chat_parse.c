/* chat_parse.c -- see chat_parse.h. Three modes: content, reasoning, and a call, in which the text
 * from the marker on is held until its pattern has matched or cannot. All markers are compared
 * where their first byte stands; of those that fit at one place the calls are tried first, in the
 * row's order, then the longest other. */
#include "text/chat/chat_parse.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/work.h"
#include "text/chat/chat_impl.h"

enum mode { IN_CONTENT, IN_REASONING, IN_CALL };
enum marker_kind { OPENS, CLOSES, DROPS, CALLS, BARE }; /* bare: a call without a marker */

struct marker {
    const char *text; /* of a call: its pattern, without "!" */
    size_t n;
    enum marker_kind kind;
    int call; /* index in calls of the format */
};
enum { N_MARKERS = 2 + CHAT_DROPS + CHAT_CALLS };

struct pith_chat_parser {
    struct chat_parse_spec spec;
    struct marker markers[N_MARKERS];
    int n_markers;
    uint8_t begins[256];       /* some marker begins with this byte */
    struct arena arena;        /* tools, calls */
    const struct chat_tools *tools; /* NULL: not known; perhaps another's */
    struct chat_tools *own;
    int no_tools; /* there are none */
    uint64_t seed;             /* of ids */
    enum mode mode;
    struct str text; /* read and not yet given out, from `head` on */
    size_t head;
    struct str said[2], gap; /* by pith_chat_kind; gap: white space that may belong to a marker */
    int quiet;               /* nothing but white space since the last marker or the begin */
    int marked;              /* a marker since the last thing said */
    struct chat_match match;
    uint32_t tried; /* bit i: markers[i] has been tried here */
    size_t reach;   /* farthest failure of those */
    struct pith_chat_event *calls;
    uint32_t n_calls, cap_calls, n_settled; /* settled: whole, or never will be */
    struct str args;                        /* of the last call, while they come */
    int done, failed;
};

/* ---------------------------------------------------------------- open, close */

static void add_marker(struct pith_chat_parser *p, enum marker_kind kind, const char *text,
                       int call)
{
    if (!text)
        return;
    text += kind == CALLS && *text == '!';
    struct marker *m = &p->markers[p->n_markers++];
    *m = (struct marker){text, kind == CALLS ? chat_literal(text) : strlen(text), kind, call};
    if (m->n == 0)
        m->kind = BARE;
    else
        p->begins[(unsigned char)text[0]] = 1;
}

/* Lists the markers. Without tools there are no calls. */
static void add_markers(struct pith_chat_parser *p)
{
    const struct chat_format *f = p->spec.format;
    for (int i = 0; !p->no_tools && i < CHAT_CALLS; i++)
        add_marker(p, CALLS, f->calls[i], i);
    add_marker(p, OPENS, f->think, 0);
    add_marker(p, CLOSES, f->answer, 0);
    for (int i = 0; i < CHAT_DROPS; i++)
        add_marker(p, DROPS, f->drops[i], 0);
}

static pith_status step(struct pith_chat_parser *p, int final);
static void mark(struct pith_chat_parser *p);

/* When the prompt ends with a marker, the answer begins behind it: as if it had been read. */
static pith_status take_prompt(struct pith_chat_parser *p, struct slice prompt)
{
    const struct marker *best = NULL;
    while (prompt.n && strchr(" \t\r\n", prompt.p[prompt.n - 1]))
        prompt.n--;
    for (const struct marker *m = p->markers; m < p->markers + p->n_markers; m++)
        if (m->kind != BARE && m->n <= prompt.n && (!best || m->n > best->n) &&
            !memcmp(prompt.p + prompt.n - m->n, m->text, m->n))
            best = m;
    p->seed = p->spec.seed ^ slice_hash(prompt);
    if (best && best->kind == CLOSES)
        mark(p);
    if (!best || best->kind == CLOSES)
        return PITH_OK;
    str_put(&p->text, best->text, best->n);
    return step(p, 0);
}

static pith_status no_memory(struct pith_chat_parser *p, struct pith_error *err)
{
    p->failed = 1;
    return error_set(err, PITH_NOMEM, "out of memory for a model's answer of %zu bytes",
                     p->said[0].n + p->said[1].n + p->text.n);
}

/* 0: *err */
static int take_tools(struct pith_chat_parser *p, struct pith_error *err)
{
    const struct chat_parse_spec *spec = &p->spec;
    if (spec->tools_of) {
        p->tools = spec->tools_of->tools;
        p->no_tools = spec->tools_of->no_tools;
        return 1;
    }
    if (!spec->tools.n)
        return 1;
    const struct jtree *list = jtree_read(&p->arena, spec->tools.p, spec->tools.n, err);
    if (list && list->kind != JTREE_ARRAY)
        error_set(err, PITH_FORMAT, "tools: found %s, wanted an array", jtree_kind_name(list));
    if (!list || list->kind != JTREE_ARRAY)
        return 0;
    p->no_tools = !list->n;
    p->tools = p->own = chat_tools_new(list);
    return p->own || (no_memory(p, err), 0);
}

struct pith_chat_parser *chat_parse_new(const struct chat_parse_spec *spec, struct pith_error *err)
{
    struct pith_chat_parser *p = mem_zalloc(sizeof *p, PITH_MEM_META);
    if (!p) {
        error_set(err, PITH_NOMEM, "out of memory for a parser of answers");
        return NULL;
    }
    p->spec = *spec;
    p->quiet = 1;
    arena_init(&p->arena, PITH_MEM_META);
    str_init(&p->text, PITH_MEM_META);
    str_init(&p->gap, PITH_MEM_META);
    str_init(&p->args, PITH_MEM_META);
    str_init(&p->said[0], PITH_MEM_META);
    str_init(&p->said[1], PITH_MEM_META);
    chat_match_init(&p->match, "");
    int ok = take_tools(p, err);
    if (ok) {
        add_markers(p);
        ok = take_prompt(p, spec->prompt) == PITH_OK || (no_memory(p, err), 0);
    }
    if (ok)
        return p;
    chat_parse_free(p);
    return NULL;
}

void chat_parse_free(struct pith_chat_parser *p)
{
    if (!p)
        return;
    chat_match_deinit(&p->match);
    chat_tools_free(p->own);
    str_deinit(&p->text);
    str_deinit(&p->gap);
    str_deinit(&p->args);
    str_deinit(&p->said[0]);
    str_deinit(&p->said[1]);
    mem_free(p->calls);
    arena_deinit(&p->arena);
    mem_free(p);
}

/* ---------------------------------------------------------------- events */

static pith_chat_kind said_kind(const struct pith_chat_parser *p)
{
    return p->mode == IN_REASONING ? PITH_CHAT_REASONING : PITH_CHAT_CONTENT;
}

static void tell(struct pith_chat_parser *p, struct slice s)
{
    struct pith_chat_event e = {
        .size = sizeof e, .kind = said_kind(p), .text = s.p, .n_bytes = s.n};
    if (!s.n)
        return;
    str_put(&p->said[e.kind], s.p, s.n);
    if (p->spec.on_event && !p->said[e.kind].failed)
        p->spec.on_event(p->spec.ctx, &e);
}

static int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Content or reasoning. White space at its end waits: beside a marker it is not shown, but between
 * two things said it is. */
static void say(struct pith_chat_parser *p, const char *s, size_t n)
{
    size_t lead = 0, body = n;
    while (body && is_space(s[body - 1]))
        body--;
    while (lead < body && is_space(s[lead]))
        lead++;
    if (body) {
        str_put(&p->gap, s, lead);
        if (p->said[said_kind(p)].n || !p->marked)
            tell(p, (struct slice){p->gap.p, p->gap.n});
        p->gap.n = 0;
        tell(p, (struct slice){s + lead, body - lead});
        p->quiet = p->marked = 0;
    }
    str_put(&p->gap, s + body, n - body);
}

static void mark(struct pith_chat_parser *p)
{
    p->quiet = p->marked = 1;
}

static void enter(struct pith_chat_parser *p, enum mode mode)
{
    if (p->mode != mode)
        p->gap.n = 0;
    p->mode = mode;
    mark(p);
    if (mode == IN_REASONING && p->said[PITH_CHAT_REASONING].n)
        str_putz(&p->gap, "\n"); /* between two thoughts */
}

/* Nine letters and digits, of which some families allow no more; the same for the same answer and
 * seed. */
static void make_id(const struct pith_chat_parser *p, const struct chat_call *call, char id[10])
{
    uint64_t h = p->seed ^ slice_hash(call->args) ^
                 (slice_hash(call->name) + p->n_calls) * 0x9e3779b97f4a7c15u;
    h = slice_hash((struct slice){(const char *)&h, sizeof h});
    for (int i = 0; i < 9; i++, h /= 36)
        id[i] = "0123456789abcdefghijklmnopqrstuvwxyz"[h % 36];
    id[9] = 0;
}

/* More of the last call's arguments, and in the end that all which had begun are whole. */
static pith_status grow_call(struct pith_chat_parser *p, const struct chat_call *call)
{
    struct pith_chat_event *last = &p->calls[p->n_calls - 1], e = *last;
    str_put(&p->args, call->args.p, call->args.n);
    if (p->args.failed)
        return PITH_NOMEM;
    last->text = p->args.p;
    last->n_bytes = p->args.n;
    e.text = call->args.p;
    e.n_bytes = call->args.n;
    if (p->spec.on_event && e.n_bytes)
        p->spec.on_event(p->spec.ctx, &e);
    for (; call->ends && p->n_settled < p->n_calls; p->n_settled++) {
        e = p->calls[p->n_settled];
        p->calls[p->n_settled].whole = e.whole = 1;
        e.n_bytes = 0;
        if (p->spec.on_event)
            p->spec.on_event(p->spec.ctx, &e);
    }
    return PITH_OK;
}

/* Another call. The arguments of the one before it, where they came in parts, go where they stay.
 */
static pith_status take_call(void *ctx, const struct chat_call *given)
{
    struct pith_chat_parser *p = ctx;
    struct chat_call whole = *given, *call = &whole;
    char id[10];
    if (!given->begins)
        return grow_call(p, given);
    if (!given->ends)
        call->args.n = 0;
    make_id(p, call, id);
    if (p->args.n) {
        struct pith_chat_event *last = &p->calls[p->n_calls - 1];
        last->text = arena_strndup(&p->arena, p->args.p, p->args.n);
        str_clear(&p->args);
    }
    if (!mem_grow(&p->calls, &p->cap_calls, (uint64_t)p->n_calls + 1, sizeof *p->calls,
                  PITH_MEM_META))
        return PITH_NOMEM;
    struct pith_chat_event *e = &p->calls[p->n_calls];
    *e = (struct pith_chat_event){.size = sizeof *e,
                                  .kind = PITH_CHAT_CALL,
                                  .n_bytes = call->args.n,
                                  .index = (int32_t)p->n_calls,
                                  .whole = call->ends};
    e->text = arena_strndup(&p->arena, call->args.p, call->args.n);
    e->name = arena_strndup(&p->arena, call->name.p, call->name.n);
    e->id = call->id.n ? arena_strndup(&p->arena, call->id.p, call->id.n)
                       : arena_strndup(&p->arena, id, 9);
    if (!arena_ok(&p->arena))
        return PITH_NOMEM;
    p->n_calls++;
    mark(p);
    if (!given->ends)
        return grow_call(p, given);
    p->n_settled = p->n_calls;
    if (p->spec.on_event)
        p->spec.on_event(p->spec.ctx, e);
    return PITH_OK;
}

/* ---------------------------------------------------------------- text */

static struct slice held(const struct pith_chat_parser *p)
{
    return (struct slice){p->text.p ? p->text.p + p->head : "", p->text.n - p->head};
}

static void drop(struct pith_chat_parser *p, size_t n)
{
    p->head += n;
}

static void say_held(struct pith_chat_parser *p, size_t n)
{
    say(p, held(p).p, n);
    drop(p, n);
}

/* How a marker fits at the begin of `t`, where `quiet` tells that nothing has been said since the
 * last one. */
static enum scan_result fits(const struct pith_chat_parser *p, const struct marker *m,
                             struct slice t, int quiet, int final)
{
    int think =
        m->kind == OPENS || m->kind == CLOSES; /* opened twice: by the prompt and by the model */
    if (p->mode == IN_REASONING ? !think || (m->kind == OPENS && !quiet) : think && !quiet)
        return SCAN_NO;
    if (m->kind == BARE)
        return quiet && !p->said[PITH_CHAT_CONTENT].n ? chat_starts(m->text, t, final) : SCAN_NO;
    size_t k = t.n < m->n ? t.n : m->n;
    if (memcmp(t.p, m->text, k) != 0)
        return SCAN_NO;
    return k == m->n ? SCAN_END : final ? SCAN_NO : SCAN_MORE;
}

/* Tries the next call whose marker stands at the begin of what is held, else the longest other
 * marker, else it is text after all. */
static void next_try(struct pith_chat_parser *p)
{
    const struct marker *best = NULL;
    struct slice t = held(p);
    for (int i = 0; i < p->n_markers; i++) {
        const struct marker *m = &p->markers[i];
        if (fits(p, m, t, p->quiet, 1) != SCAN_END || p->tried >> i & 1)
            continue;
        if (m->kind == CALLS || m->kind == BARE) {
            p->tried |= 1u << i;
            chat_match_deinit(&p->match);
            chat_match_init(&p->match, p->spec.format->calls[m->call]);
            p->match.partial = p->spec.partial;
            p->mode = IN_CALL;
            return;
        }
        best = !best || m->n > best->n ? m : best;
    }
    int was_call = p->mode == IN_CALL;
    p->mode = was_call ? IN_CONTENT : p->mode;
    if (best) {
        drop(p, best->n);
        if (best->kind == OPENS)
            enter(p, IN_REASONING);
        else
            enter(p, IN_CONTENT);
    } else {
        size_t n = p->reach < t.n ? p->reach : t.n;
        say_held(p, n ? n : 1);
    }
    p->tried = 0;
    p->reach = 0;
}

/* Content or reasoning up to the next marker. 0: all that can be said has been. */
static int step_text(struct pith_chat_parser *p, int final)
{
    struct slice t = held(p);
    int quiet = p->quiet, bare = 0;
    for (int k = 0; k < p->n_markers; k++)
        bare |= p->markers[k].kind == BARE;
    for (size_t i = 0; i < t.n; i++) {
        int more = 0, end = 0;
        if (is_space(t.p[i]) || !(p->begins[(unsigned char)t.p[i]] || (bare && quiet))) {
            quiet = quiet && is_space(t.p[i]);
            continue;
        }
        for (int k = 0; k < p->n_markers; k++) {
            enum scan_result fit =
                fits(p, &p->markers[k], (struct slice){t.p + i, t.n - i}, quiet, final);
            more |= fit == SCAN_MORE;
            end |= fit == SCAN_END;
        }
        if (more || end) {
            p->failed |= !work_tick(1 + i / CHAT_BYTES_A_STEP);
            say_held(p, i);
            if (!more)
                next_try(p);
            return !more;
        }
        quiet = 0;
    }
    p->failed |= !work_tick(1 + t.n / CHAT_BYTES_A_STEP);
    say_held(p, t.n);
    return 0;
}

static int step_call(struct pith_chat_parser *p, int final)
{
    struct slice t = held(p);
    enum match_result res = chat_match_run(&p->match, t, final, p->tools, take_call, p);
    if (res == MATCH_NOMEM)
        p->failed = 1;
    if (res == MATCH_MORE || res == MATCH_NOMEM)
        return 0;
    p->reach = p->match.reach > p->reach ? p->match.reach : p->reach;
    if (res == MATCH_NO && !p->match.kept) {
        next_try(p);
        return 1;
    }
    p->mode = IN_CONTENT;
    p->tried = 0;
    p->n_settled = p->n_calls;
    if (res == MATCH_DONE) {
        drop(p, p->match.at);
        mark(p);
    } else { /* there were whole calls: what comes behind them is text, but for a close that is cut
                off */
        size_t kept = p->match.kept, to = p->match.cut ? kept : p->match.reach;
        drop(p, p->match.cut ? t.n : kept);
        mark(p);
        say_held(p, to - kept);
    }
    p->reach = 0;
    return 1;
}

static pith_status step(struct pith_chat_parser *p, int final)
{
    int go = 1;
    while (go && !p->failed) {
        go = p->mode == IN_CALL ? step_call(p, final) : step_text(p, final);
        p->failed |= p->text.failed | p->gap.failed | p->said[0].failed | p->said[1].failed;
    }
    if (p->head == p->text.n) {
        p->head = p->text.n = 0;
    } else if (p->head > p->text.n / 2) { /* moved once for every time it doubles */
        memmove(p->text.p, p->text.p + p->head, p->text.n - p->head);
        p->text.n -= p->head;
        p->head = 0;
    }
    return p->failed ? PITH_NOMEM : PITH_OK;
}

static pith_status state(struct pith_chat_parser *p, struct pith_error *err)
{
    if (p->failed)
        return error_set(err, PITH_NOMEM, "the parser had run out of memory: close it");
    return PITH_OK;
}

pith_status chat_parse_feed(struct pith_chat_parser *p, struct slice text, struct pith_error *err)
{
    if (p->done)
        return error_set(err, PITH_STATE, "the answer was finished: open another parser");
    if (state(p, err) != PITH_OK)
        return PITH_NOMEM;
    str_put(&p->text, text.p, text.n);
    return step(p, 0) == PITH_OK ? PITH_OK : no_memory(p, err);
}

pith_status chat_parse_finish(struct pith_chat_parser *p, struct pith_error *err)
{
    if (p->done || state(p, err) != PITH_OK)
        return p->failed ? PITH_NOMEM : PITH_OK;
    p->done = 1;
    if (step(p, 1) != PITH_OK)
        return no_memory(p, err);
    if (!p->marked)
        tell(p, (struct slice){p->gap.p, p->gap.n});
    return PITH_OK;
}

struct slice chat_parse_said(const struct pith_chat_parser *p, pith_chat_kind kind)
{
    const struct str *s = &p->said[kind == PITH_CHAT_REASONING];
    return (struct slice){s->p ? s->p : "", s->n};
}

int chat_parse_reasons(const struct pith_chat_parser *p)
{
    return p->mode == IN_REASONING;
}

int32_t chat_parse_n_calls(const struct pith_chat_parser *p)
{
    return (int32_t)p->n_calls;
}

const struct pith_chat_event *chat_parse_call(const struct pith_chat_parser *p, int32_t i)
{
    return i >= 0 && (uint32_t)i < p->n_calls ? &p->calls[i] : NULL;
}
