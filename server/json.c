/* json.c -- reading bodies, texts of any bytes, and errors in the shape of OpenAI's. */
#include <malloc.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/json.h"

int64_t clock_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static _Thread_local int lost;
static const struct json_bounds *bounds; /* of all threads, set once */

static int goes_on(void)
{
    return !bounds || bounds->goes_on();
}

int fault_stopped(struct fault *f)
{
    return bounds && bounds->why(f);
}

void fault_answers(void)
{
    if (bounds)
        bounds->answers();
}

_Thread_local int64_t *json_meter;

static void count(int64_t bytes)
{
    if (json_meter)
        *json_meter += bytes;
}

/* Half of what reading a request does is done by jansson, which asks nobody whether it may go on,
 * but for memory. */
static void *allocate(size_t n)
{
    /* jansson tries again for every byte of a text */
    void *p = bounds->json(0, 1) ? malloc(n) : NULL;
    if (p && !bounds->json(malloc_usable_size(p), 1)) {
        bounds->json(malloc_usable_size(p), 0);
        free(p);
        p = NULL;
    }
    if (p)
        count((int64_t)malloc_usable_size(p));
    lost |= !p;
    return p;
}

static void give_back(void *p)
{
    if (p) {
        bounds->json(malloc_usable_size(p), 0);
        count(-(int64_t)malloc_usable_size(p));
    }
    free(p);
}

void json_drop(char *text)
{
    if (bounds)
        give_back(text);
    else
        free(text);
}

void json_watch(const struct json_bounds *b)
{
    bounds = b;
    json_set_alloc_funcs(allocate, give_back);
}

int json_lost(void)
{
    int was = lost;
    lost = 0;
    return was;
}

/* ---------------------------------------------------------------- errors */

int fault_set(struct fault *f, int http, const char *code, const char *param, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    *f = (struct fault){.http = http, .code = code};
    snprintf(f->param, sizeof f->param, "%s", param ? param : "");
    vsnprintf(f->msg, sizeof f->msg, fmt, ap);
    va_end(ap);
    return 0;
}

int fault_memory(struct fault *f)
{
    if (fault_stopped(f))
        return 0;
    return fault_set(f, 503, "out_of_memory", NULL, "the server is out of memory for this request");
}

int fault_from(struct fault *f, const struct pith_error *err, const char *param)
{
    if (fault_stopped(f))
        return 0;
    switch (err->code) {
    case PITH_FORMAT:
    case PITH_MISSING:
    case PITH_SHAPE:
    case PITH_RANGE:
    case PITH_STATE:
    case PITH_UNSUPPORTED:
        return fault_set(f, 400, "invalid_value", param, "%s", err->msg);
    case PITH_NOMEM:
    case PITH_CANCELLED:
        return fault_set(f, 503, "unavailable", param, "%s", err->msg);
    case PITH_OK:
    case PITH_IO:
    case PITH_DEVICE:
    case PITH_INTERNAL:
        break;
    }
    return fault_set(f, 500, "internal_error", param, "%s", err->msg);
}

int fault_shutting_down(struct fault *f)
{
    fault_set(f, 503, "shutting_down", NULL, "the server is shutting down; ask another one");
    f->retry_after = 5;
    return 0;
}

const char *fault_type(const struct fault *f)
{
    switch (f->http) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    }
    return f->http >= 500 ? "server_error" : "invalid_request_error";
}

json_t *fault_json(const struct fault *f)
{
    json_t *e = json_pack(
        "{s:o, s:s, s:o, s:s}", "message", json_text(f->msg, strlen(f->msg)), "type", fault_type(f),
        "param", *f->param ? json_text(f->param, strlen(f->param)) : json_null(), "code", f->code);
    if (e && f->n_ctx) {
        json_object_set_new(e, "n_prompt", json_integer(f->n_prompt));
        json_object_set_new(e, "n_prompt_tokens",
                            json_integer(f->n_prompt)); /* as llama.cpp has it */
        json_object_set_new(e, "n_ctx", json_integer(f->n_ctx));
        json_object_set_new(e, "n_over", json_integer(f->n_over));
    }
    if (e && f->progress > 0)
        json_object_set_new(e, "progress", json_real(f->progress));
    return json_pack("{s:o}", "error", e);
}

/* ---------------------------------------------------------------- bodies */

/* A tree takes far more memory than its text: so many at most, some 250 MB of them. */
enum { FAT_MAX = 500000, VALUES_MAX = 4000000 };

/* So many bytes are read without a look at whether it goes on: a millisecond. */
enum { LOOK_BYTES = 64 << 10 };

/* How deep brackets are nested, at most, and how many values there are; *fat: objects and lists, of
 * which each takes hundreds of bytes. Strings are skipped; whether it is JSON is not asked. */
static int depth_of(const char *p, size_t n, size_t *fat, size_t *values)
{
    int depth = 0, most = 0, inside = 0;
    *fat = *values = 0;
    for (size_t i = 0, look = LOOK_BYTES; i < n; i++) {
        if (i >= look) {
            look += LOOK_BYTES;
            if (!goes_on())
                break; /* the reader is told so, too */
        }
        if (inside) {
            if (p[i] == '\\')
                i++;
            else if (p[i] == '"')
                inside = 0;
        } else if (p[i] == '"') {
            inside = 1;
        } else if (p[i] == '{' || p[i] == '[') {
            most = ++depth > most ? depth : most;
            ++*fat;
            if (most > JSON_DEPTH)
                return most;
        } else if (p[i] == '}' || p[i] == ']') {
            depth--;
        } else if (p[i] == ',') {
            ++*values;
        }
    }
    return most;
}

/* The name before the value that ends at p[n]: `"name": value`. 0: there is none. */
static size_t name_before(const char *p, size_t n, const char **name)
{
    size_t end = n, begin;
    while (end && !strchr("\",[{", p[end - 1]))
        end--;
    for (begin = end ? end - 1 : 0; begin && p[begin - 1] != '"';)
        begin--;
    *name = p + begin;
    return end && begin && p[end - 1] == '"' && memchr(p + end, ':', n - end) ? end - 1 - begin : 0;
}

/* Why it could not be read. */
static void explain(const char *p, size_t n, const json_error_t *e, struct fault *f)
{
    const char *name;
    size_t at = e->position > 0 && (size_t)e->position < n ? (size_t)e->position : n,
           n_name = name_before(p, at, &name);
    switch (json_error_code(e)) {
    case json_error_numeric_overflow:
        fault_set(f, 400, "out_of_range", NULL, "%.*s is too large: line %d, column %d: %s",
                  n_name ? (int)(n_name < 64 ? n_name : 64) : 8, n_name ? name : "a number",
                  e->line, e->column, e->text);
        break;
    case json_error_duplicate_key:
        fault_set(f, 400, "invalid_json", NULL,
                  "the body says a field twice: line %d, column %d: %s", e->line, e->column,
                  e->text);
        break;
    default:
        if (strspn(p, " \t\r\n") >= n)
            fault_set(f, 400, "invalid_json", NULL, "the body is empty, wanted a JSON object");
        else
            fault_set(f, 400, "invalid_json", NULL, "the body is not JSON: line %d, column %d: %s",
                      e->line, e->column, e->text);
    }
}

/* A text that is read in pieces. */
struct source {
    const char *p;
    size_t n, at, look;
    int stopped;
};

static size_t next_piece(void *to, size_t room, void *source)
{
    struct source *s = source;
    size_t n = s->n - s->at < room ? s->n - s->at : room;
    if (s->at >= s->look) {
        s->look += LOOK_BYTES;
        s->stopped |= !goes_on();
    }
    if (s->stopped)
        return (size_t)-1;
    memcpy(to, s->p + s->at, n);
    s->at += n;
    return n;
}

json_t *json_read(const char *p, size_t n, struct fault *f)
{
    json_error_t e;
    size_t fat, values;
    if (depth_of(p, n, &fat, &values) > JSON_DEPTH) {
        fault_set(f, 400, "invalid_json", NULL, "the body is nested more than %d deep", JSON_DEPTH);
        return NULL;
    }
    if (fat > FAT_MAX || values > VALUES_MAX) {
        fault_set(f, 413, "body_too_large", NULL,
                  "the body has %zu objects and lists and %zu values; at most %d and %d are taken",
                  fat, values, FAT_MAX, VALUES_MAX);
        return NULL;
    }
    struct source from = {.p = p, .n = n};
    json_t *j = json_load_callback(
        next_piece, &from, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (!j && json_lost() + from.stopped)
        fault_memory(f);
    else if (!j)
        explain(p, n, &e, f);
    return j;
}

const char *json_found_in(const json_t *v, char buf[64])
{
    if (!v)
        return "missing";
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        snprintf(buf, 64, "\"%.40s\"%s", json_string_value(v),
                 json_string_length(v) > 40 ? "..." : "");
        return buf;
    case JSON_INTEGER:
        snprintf(buf, 64, "%lld", (long long)json_integer_value(v));
        return buf;
    case JSON_REAL:
        snprintf(buf, 64, "%.15g", json_real_value(v));
        return buf;
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
        break;
    }
    return "null";
}

static json_t *rounded(double x, int n_digits)
{
    char text[32];
    snprintf(text, sizeof text, "%.*g", n_digits, x);
    return json_real(isfinite(x) ? strtod(text, NULL) : x);
}

json_t *json_float(float x)
{
    return rounded((double)x, 7);
}

json_t *json_nine(double x)
{
    return rounded(x, 9);
}

json_t *json_text(const char *p, size_t n)
{
    json_t *clean = json_stringn(p, n);
    size_t cap = clean ? 0 : (size_t)pith_utf8(p, n, NULL, 0);
    char *buf = clean ? NULL : allocate(cap + 1);
    if (!buf)
        return clean;
    pith_utf8(p, n, buf, cap);
    clean = json_stringn(buf, cap);
    free(buf);
    return clean;
}

/* Trees of bodies are no deeper than JSON_DEPTH, and jansson reads none that is deeper than 2048.
 */
static int has_long_numbers(const json_t *j)
{
    const char *key;
    json_t *v;
    size_t i;
    char text[40];
    if (json_is_real(j)) {
        snprintf(text, sizeof text, "%.15g", json_real_value(j));
        return strtod(text, NULL) != json_real_value(j);
    }
    json_array_foreach(j, i, v) if (has_long_numbers(v)) return 1;
    json_object_foreach(json_lent(j), key, v) if (has_long_numbers(v)) return 1;
    return 0;
}

char *json_exact(const json_t *j)
{
    /* 17 digits tell every number; with 15, where they do, 16.9 stays 16.9 and does not become
     * 16.899999999999999 */
    return json_dumps(j, JSON_COMPACT | JSON_ENCODE_ANY |
                             JSON_REAL_PRECISION(has_long_numbers(j) ? 17 : 15));
}

/* As the allocator of a 64-bit system counts blocks; lists and tables as they grow, by doubling. */
int64_t json_weight(const json_t *j)
{
    enum { BARE_OBJECT = 224, PER_MEMBER = 96, BARE_LIST = 128, PER_ITEM = 16, BARE_TEXT = 64,
           NUMBER = 32 };
    const char *key;
    json_t *v;
    size_t i;
    int64_t n = 0;
    if (json_is_number(j))
        return NUMBER;
    if (json_is_string(j))
        return BARE_TEXT + (int64_t)json_string_length(j);
    if (json_is_object(j))
        n = BARE_OBJECT;
    if (json_is_array(j))
        n = BARE_LIST + PER_ITEM * (int64_t)json_array_size(j);
    json_array_foreach(j, i, v) n += json_weight(v);
    json_object_foreach(json_lent(j), key, v) n +=
        PER_MEMBER + (int64_t)strlen(key) + json_weight(v);
    return n;
}

int text_put(char **text, size_t *n_text, size_t *cap, const char *p, size_t n)
{
    if (!n)
        return 1;
    if (*cap - *n_text < n) {
        size_t most = 2 * (*n_text + n) + 64;
        char *more = realloc(*text, most);
        lost |= !more;
        if (!more)
            return 0;
        count((int64_t)most - (int64_t)*cap);
        *text = more;
        *cap = most;
    }
    memcpy(*text + *n_text, p, n);
    *n_text += n;
    return 1;
}

json_t *json_joined(const json_t *list, const char *key)
{
    char *text = NULL;
    size_t i, n = 0, cap = 0;
    int ok = 1;
    const json_t *v;
    json_array_foreach(list, i, v)
    {
        v = key ? json_object_get(v, key) : v;
        ok = ok && json_is_string(v) &&
             text_put(&text, &n, &cap, json_string_value(v), json_string_length(v));
    }
    json_t *j = ok ? json_stringn(text ? text : "", n) : NULL;
    free(text);
    return j;
}
