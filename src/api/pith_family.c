/* pith_family.c -- see family.h. */
#include "api/family.h"

#include <string.h>

#include "text/chat/chat_derive.h"
#include "text/chat/chat_parse.h"
#include "text/jinja/jinja.h"

/* Samples are rendered within these; a template that needs more is told by its text alone. */
static const struct jinja_limits limits = {.steps = 1000000, .memory = 8 << 20, .output = 1 << 20};

enum { PROMPT, PLAIN, ONE, TWO, N_SAMPLES };

static void put_call(struct str *s, int i, int text)
{
    static const char *const names[] = DERIVE_NAMES, *const ids[] = DERIVE_IDS,
                             *const keys[] = DERIVE_KEYS, *const values[] = DERIVE_VALUES;
    const char *q = text ? "\\\"" : "\""; /* as a text of JSON: some templates want that */
    str_printf(s,
               "{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"%s\","
               "\"arguments\":%s{%s%s%s: %s%s%s, %s%s%s: %s%s%s}%s}}",
               ids[i], names[i], text ? "\"" : "", q, keys[0], q, q, values[0], q, q, keys[1], q, q,
               values[1], q, text ? "\"" : "");
}

static void put_tool(struct str *s, int i)
{
    static const char *const names[] = DERIVE_NAMES, *const keys[] = DERIVE_KEYS;
    str_printf(s,
               "{\"type\":\"function\",\"function\":{\"name\":\"%s\",\"description\":\"d\","
               "\"parameters\":{\"type\":\"object\",\"properties\":{\"%s\":{\"type\":"
               "\"string\",\"description\":\"d\"},\"%s\":{\"type\":\"string\",\"description\":"
               "\"d\"}},\"required\":[]}}}",
               names[i], keys[0], keys[1]);
}

static void put_variables(struct str *s, int sample, int text)
{
    str_putz(s, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}");
    if (sample == PLAIN)
        str_putz(s, ",{\"role\":\"assistant\",\"content\":\"" DERIVE_CONTENT "\"}");
    if (sample >= ONE) {
        str_putz(s, ",{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[");
        put_call(s, 0, text);
        if (sample == TWO) {
            str_putc(s, ',');
            put_call(s, 1, text);
        }
        str_putz(s, "]}");
    }
    str_putz(s, "],\"tools\":[");
    put_tool(s, 0);
    str_putc(s, ',');
    put_tool(s, 1);
    str_printf(s, "],\"add_generation_prompt\":%s}", sample == PROMPT ? "true" : "false");
}

/* PITH_OK: all are there. */
static pith_status render(const struct jinja *t, struct str *sample, int text,
                          struct pith_error *err)
{
    struct str vars;
    pith_status st = PITH_OK;
    str_init(&vars, PITH_MEM_SCRATCH);
    for (int i = 0; i < N_SAMPLES && st == PITH_OK; i++) {
        str_clear(&vars);
        str_clear(&sample[i]);
        put_variables(&vars, i, text);
        st = vars.failed ? error_set(err, PITH_NOMEM, "out of memory")
                         : jinja_render(t, vars.p, vars.n, &limits, &sample[i], err);
    }
    str_deinit(&vars);
    return st;
}

/* NULL: nothing can be derived, or (*st) not now. */
static const struct chat_format *derive(const struct jinja *t, pith_status *st)
{
    struct str s[N_SAMPLES];
    struct pith_error err = {PITH_OK, ""};
    const struct chat_format *f = NULL;
    *st = PITH_OK;
    for (int i = 0; i < N_SAMPLES; i++)
        str_init(&s[i], PITH_MEM_SCRATCH);
    for (int text = 0; text < 2 && !f && *st != PITH_NOMEM && *st != PITH_CANCELLED; text++) {
        *st = render(t, s, text, &err);
        struct chat_samples c = {{s[PROMPT].p, s[PROMPT].n},
                                 {s[PLAIN].p, s[PLAIN].n},
                                 {s[ONE].p, s[ONE].n},
                                 {s[TWO].p, s[TWO].n}};
        if (*st == PITH_OK)
            *st = chat_derive(&c, &f, &err);
    }
    for (int i = 0; i < N_SAMPLES; i++)
        str_deinit(&s[i]);
    return f;
}

static void drop(const void *note)
{
    if (note != chat_format_named("generic"))
        chat_derived_free(note);
}

const struct chat_format *family_of(const pith_template *t)
{
    const struct jinja *j = (const struct jinja *)t;
    const struct chat_format *generic = chat_format_named("generic"),
                             *f = chat_format_of(t ? jinja_source(j) : SLICE(""));
    pith_status st;
    if (f != generic || !t)
        return f;
    if ((f = jinja_note(j)))
        return f;
    f = derive(j, &st);
    if (!f && (st == PITH_NOMEM || st == PITH_CANCELLED))
        return generic; /* another time */
    f = f ? f : generic;
    if (jinja_keep(j, f, drop))
        return f;
    drop(f);
    return jinja_note(j);
}
