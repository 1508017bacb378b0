/* system.c -- system messages where a template has no place for them. Clients put them anywhere
 * (Claude Code and Codex behind the user's first message, SillyTavern in the middle), and many a
 * template takes one, in front, and refuses others or leaves them out without a word. What it makes
 * of them is tried with a few words. Leading ones become one then; those that come later stand in
 * the user's message before them, else in the one behind them, between <system-reminder> tags; and
 * where a template knows none at all the first one stands before what the user says. Nothing is
 * lost; that it stands in another place the answer's header says. */
#include <stdio.h>
#include <string.h>

#include "server/http/exchange.h"
#include "server/request/request.h"

#define SYSTEM    "{\"role\":\"system\",\"content\":\"QZFIRST\"},"
#define OTHER     "{\"role\":\"system\",\"content\":\"QZOTHER\"},"
#define USER      "{\"role\":\"user\",\"content\":\"QZUSER\"}"
#define ASSISTANT ",{\"role\":\"assistant\",\"content\":\"QZSAID\"},"

/* Whether a template renders these messages, with a word of them. */
static int renders(const pith_template *t, const char *messages, const char *word)
{
    char vars[512], text[16384];
    int n = snprintf(vars, sizeof vars,
                     "{\"messages\":[%s],\"add_generation_prompt\":true,\"bos_token\":\"\","
                     "\"eos_token\":\"\"}",
                     messages);
    int64_t len = pith_template_render(t, vars, (size_t)n, text, sizeof text - 1, NULL);
    if (len < 0 || len >= (int64_t)sizeof text)
        return 0;
    text[len] = 0;
    return strstr(text, word) != NULL;
}

/* One that does not take the words without the message in question tells nothing of it. */
static int lacks(const pith_template *t, const char *without, const char *with, const char *word)
{
    return renders(t, without, "QZUSER") && !renders(t, with, word);
}

static int is_role(const json_t *m, const char *role)
{
    const char *own = json_string_value(json_object_get(m, "role"));
    return own && !strcmp(own, role);
}

static int is_text(const json_t *m, const char *role)
{
    return is_role(m, role) && json_is_string(json_object_get(m, "content"));
}

/* Texts between others to the content of a message; NULL: nothing there. */
static int put_text(json_t *m, const char *before, json_t *text, const char *between, json_t *more,
                    const char *behind)
{
    json_t *list = json_array();
    json_array_append_new(list, json_string(before));
    json_array_append(list, text);
    json_array_append_new(list, json_string(between));
    json_array_append(list, more);
    json_array_append_new(list, json_string(behind));
    int ok = json_array_size(list) == 5 &&
             !json_object_set_new(m, "content", json_joined(list, NULL));
    json_decref(list);
    return ok;
}

#define OPEN  "<system-reminder>\n"
#define CLOSE "\n</system-reminder>"

/* Texts of messages [i, end) to a list, each with one before and one behind it (NULL: nothing; none
 * before the first of the list). 0: out of memory. */
static int list_texts(json_t *list, const json_t *messages, size_t i, size_t end,
                      const char *before, const char *behind)
{
    json_t *open = json_string(before), *close = json_string(behind ? behind : "");
    int ok = list && open && close;
    for (; ok && i < end; i++) {
        json_t *text = json_object_get(json_array_get(messages, i), "content");
        if (json_array_size(list))
            ok = !json_array_append(list, open);
        ok = ok && !json_array_append(list, text);
        if (behind)
            ok = ok && !json_array_append(list, close);
    }
    json_decref(open);
    json_decref(close);
    return ok;
}

/* A copy of m that says what is in the list. NULL: out of memory. */
static json_t *saying(const json_t *m, const json_t *list)
{
    json_t *made = json_copy(json_lent(m));
    if (made && !json_object_set_new(made, "content", json_joined(list, NULL)))
        return made;
    json_decref(made);
    return NULL;
}

/* Messages [0, n) are one, of all their texts. */
static int put_lead(json_t *out, const json_t *messages, size_t n)
{
    json_t *list = json_array();
    int ok = list_texts(list, messages, 0, n, "\n\n", NULL) &&
             !json_array_append_new(out, saying(json_array_get(messages, 0), list));
    json_decref(list);
    return ok;
}

/* What later system messages say that stand in a row, [i, end), where the user speaks: behind the
 * message before them, or they wait for the one that comes. All at once: each by itself would copy
 * what those before it said. */
static int put_late(json_t *out, const json_t *messages, size_t i, size_t end, json_t **waits)
{
    json_t *last = json_array_get(out, json_array_size(out) - 1), *list = json_array(), *m;
    int ok = list != NULL;
    if (last && is_text(last, "user")) {
        ok = ok && !json_array_append(list, json_object_get(last, "content")) &&
             list_texts(list, messages, i, end, "\n\n" OPEN, CLOSE) &&
             (m = saying(last, list)) && !json_array_set_new(out, json_array_size(out) - 1, m);
    } else {
        ok = list_texts(list, messages, i, end, "\n\n", NULL) && (*waits = json_joined(list, NULL));
    }
    json_decref(list);
    return ok;
}

/* What waits, before the user's next message, or as one of its own; the first one as it is. */
static int put_waiting(json_t *out, json_t *m, json_t **waits)
{
    int joins = m && is_text(m, "user"), bare = json_array_size(out) == 0;
    json_t *none = json_string(""),
           *made = joins ? json_copy(m) : json_pack("{s:s}", "role", "user");
    int ok = none && made &&
             put_text(made, bare ? "" : OPEN, *waits,
                      joins ? (bare ? "\n\n" : CLOSE "\n\n") : (bare ? "" : CLOSE),
                      joins ? json_object_get(m, "content") : none, "") &&
             !json_array_append(out, made) && (joins || !m || !json_array_append(out, m));
    json_decref(none);
    json_decref(made);
    json_decref(*waits);
    *waits = NULL;
    return ok;
}

/* The messages with those from number `from` on that are the system's put where the user speaks;
 * the `n_lead` first ones become one. NULL: out of memory. */
static json_t *moved(json_t *messages, size_t n_lead, size_t from)
{
    json_t *out = json_array(), *waits = NULL;
    size_t i = n_lead > 1 ? n_lead : 0, n = json_array_size(messages);
    int ok = out && (!i || put_lead(out, messages, i));
    for (size_t end; ok && i < n; i = end) {
        for (end = i; end >= from && end < n && is_text(json_array_get(messages, end), "system");)
            end++;
        json_t *m = json_array_get(messages, i);
        if (end > i)
            ok = put_late(out, messages, i, end, &waits);
        else if (waits)
            ok = put_waiting(out, m, &waits);
        else
            ok = !json_array_append(out, m);
        end += end == i;
    }
    if (ok && waits)
        ok = put_waiting(out, NULL, &waits);
    json_decref(waits);
    if (ok)
        return out;
    json_decref(out);
    return NULL;
}

int request_fit_system(const pith_template *t, json_t **messages, struct exchange *x,
                       struct fault *f)
{
    size_t i, n_lead = 0, n_late = 0;
    json_t *m;
    json_array_foreach(*messages, i, m)
    {
        n_lead += i == n_lead && is_text(m, "system");
        n_late += i >= n_lead && is_text(m, "system");
    }
    int first = n_lead && lacks(t, USER, SYSTEM USER, "QZFIRST"),
        merges = !first && n_lead > 1 && lacks(t, SYSTEM USER, SYSTEM OTHER USER, "QZOTHER"),
        moves = !first && n_late &&
                lacks(t, SYSTEM USER ASSISTANT USER, SYSTEM USER ASSISTANT OTHER USER, "QZOTHER");
    if (!first && !merges && !moves)
        return 1;
    json_t *fit = moved(*messages, merges ? n_lead : 1, first ? 0 : moves ? n_lead : SIZE_MAX);
    if (!fit)
        return fault_memory(f);
    if (first || moves)
        exchange_ignores(x, "place of system messages");
    json_decref(*messages);
    *messages = fit;
    return 1;
}
