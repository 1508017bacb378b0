/* exchange.c -- an exchange: one HTTP request and its answer, as its handler sees it; and its line
 * in the access log.
 *
 *     body: grows while it is read, whole when the handler is called      out: [at_out, n_out) is
 *         what the connection has not taken yet
 *
 * The answer is written by any thread and taken by the thread of HTTP. What is not live is taken
 * when it has ended, and out does not change any more. Where bytes cannot be kept (there is no
 * memory, or a client leaves OUT_MAX unread, or more than OUT_FREE where its key has no room), the
 * exchange is gone: its connection ends in the middle, so nobody takes it for whole. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <pthread.h>

#include "server/http/account.h"
#include "server/http/exchange.h"
#include "server/http/http.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/parts.h"

enum {
    OUT_MAX = 64 << 20, /* bytes a client may leave unread */
    OUT_FREE = 1 << 20, /* of them, whatever else its key has */
    BODIES = 16,
    BODIES_MIN = 64 << 20, /* those of one key together: so many of the largest ones, and some that
                              are smaller */
};

/* ---------------------------------------------------------------- requests */

const char *exchange_body(const struct exchange *x, size_t *n)
{
    *n = x->n_body;
    return x->body ? x->body : "";
}

void exchange_forget(struct exchange *x, int body)
{
    json_decref(x->tree);
    x->tree = NULL;
    if (!body || !x->body)
        return;
    free(x->body);
    x->body = NULL;
    atomic_fetch_sub(&x->tenant->body_bytes, x->cap_body);
    account_add(x->h->s, x->tenant, -(int64_t)x->cap_body);
    x->n_body = x->cap_body = 0;
}

json_t *exchange_tree(struct exchange *x, struct fault *f)
{
    size_t n;
    const char *body = exchange_body(x, &n);
    if (!x->tree) /* what needs nothing to be said may say nothing */
        x->tree = n || !(x->route->flags & ROUTE_EMPTY) ? json_read(body, n, f) : json_object();
    return json_incref(x->tree);
}

void exchange_give_model(struct exchange *x, struct hosted *m, const struct fault *why)
{
    x->model = m;
    x->why = *why;
}

struct hosted *exchange_model(struct exchange *x, struct fault *f)
{
    if (!x->model)
        *f = x->why;
    return x->model;
}

const char *exchange_query(const struct exchange *x)
{
    return x->query;
}

int exchange_wants_slot(const struct exchange *x)
{
    return x->wants_slot;
}

const char *exchange_action(const struct exchange *x)
{
    return x->action;
}

const struct route *exchange_route(const struct exchange *x)
{
    return x->route;
}

struct server *exchange_server(const struct exchange *x)
{
    return x->h->s;
}

struct tenant *exchange_tenant(const struct exchange *x)
{
    return x->tenant;
}

const char *exchange_id(const struct exchange *x)
{
    return x->id;
}

int64_t exchange_began(const struct exchange *x)
{
    return x->began;
}

int64_t exchange_within(const struct exchange *x, double seconds)
{
    double most = server_told(x->h->s)->request_timeout;
    if (seconds <= 0 || (most > 0 && seconds > most))
        seconds = most;
    return seconds > 0 && seconds < 1e9 ? x->began + (int64_t)(1e9 * seconds) : 0;
}

int64_t exchange_deadline(const struct exchange *x)
{
    return x->deadline ? x->deadline : exchange_within(x, 0);
}

void exchange_set_deadline(struct exchange *x, int64_t deadline)
{
    x->deadline = deadline;
}

const char *exchange_path(const struct exchange *x)
{
    return x->path;
}

void exchange_keep(struct exchange *x, void *p)
{
    x->kept = p;
}

void *exchange_kept(const struct exchange *x)
{
    return x->kept;
}

const atomic_int *exchange_gone(const struct exchange *x)
{
    return &x->gone;
}

/* What waits for the scheduler is read without a turn, one at a time: it is brief. */
int64_t exchange_body_most(const struct exchange *x)
{
    enum { BRIEF = 64 << 10 };
    int64_t most = server_told(x->h->s)->body_bytes;
    return x->route->flags & ROUTE_WAITS && most > BRIEF ? BRIEF : most;
}

/* Room for n more bytes of the body, as far as one request and all of a key may have. */
static int grow_body(struct exchange *x, size_t n)
{
    size_t all = (size_t)server_told(x->h->s)->body_bytes, most = (size_t)exchange_body_most(x),
           cap = 2 * (x->n_body + n) + 1;
    if (x->n_body + n > most)
        return !(x->too_large = 1);
    if (x->cap_body - x->n_body > n)
        return 1;
    cap = cap < most + 1 ? cap : most + 1;
    size_t more = cap - x->cap_body;
    size_t held = atomic_fetch_add(&x->tenant->body_bytes, more) + more;
    char *body =
        held <= BODIES * all + BODIES_MIN && account_has_room(x->h->s, x->tenant, (int64_t)more)
            ? realloc(x->body, cap)
            : NULL;
    if (!body) {
        atomic_fetch_sub(&x->tenant->body_bytes, more);
        return !(x->crowded = 1);
    }
    x->body = body;
    x->cap_body = cap;
    account_add(x->h->s, x->tenant, (int64_t)more);
    return 1;
}

void exchange_feed(struct exchange *x, const char *p, size_t n)
{
    pthread_mutex_lock(&x->lock);
    x->spoke = clock_now();
    if (!x->dispatched && x->route->endpoint && !x->too_large &&
        !x->crowded) { /* others have no use for one */
        if (grow_body(x, n)) {
            memcpy(x->body + x->n_body, p, n);
            x->n_body += n;
            x->body[x->n_body] = 0;
        } else {
            exchange_forget(x, 1);
        }
    }
    pthread_mutex_unlock(&x->lock);
}

void exchange_hold(struct exchange *x)
{
    atomic_fetch_add(&x->refs, 1);
}

void exchange_drop(struct exchange *x)
{
    if (atomic_fetch_sub(&x->refs, 1) != 1)
        return;
    pthread_mutex_destroy(&x->lock);
    exchange_forget(x, 1);
    exchange_poured(x);
    if (x->tenant)
        account_add(x->h->s, x->tenant, -x->told_out);
    if (x->tenant)
        account_add(x->h->s, x->tenant, -(int64_t)x->cap_ignored);
    free(x->ignored);
    free(x->out);
    free(x);
}

/* ---------------------------------------------------------------- answers */

void exchange_wake(struct exchange *x)
{
    if (x->suspended && x->c) {
        x->suspended = 0;
        x->h->resume(x->c);
    }
}

void exchange_pulse(struct exchange *x, int64_t seconds)
{
    x->pulse_ns = seconds * 1000000000;
}

int exchange_begin(struct exchange *x, int status, const char *type, int live, const char *pulse)
{
    pthread_mutex_lock(&x->lock);
    int first = !x->begun;
    if (first) {
        x->status = status;
        x->type = type;
        x->live = live;
        x->pulse = pulse;
        x->begun = 1;
        x->spoke = clock_now();
        if (live)
            exchange_wake(x);
        else
            x->n_out = x->at_out = 0;
    }
    pthread_mutex_unlock(&x->lock);
    return first;
}

void exchange_header(struct exchange *x, const char *name, const char *value)
{
    struct header *h = &x->headers[x->n_headers];
    if (x->n_headers == sizeof x->headers / sizeof *x->headers)
        return;
    h->name = name;
    snprintf(h->value, sizeof h->value, "%s", value);
    x->n_headers++;
}

/* Whether the list has this entry, which is not "". */
static int is_listed(const char *list, const char *entry)
{
    size_t n = strlen(entry);
    for (const char *p = list; n && (p = strstr(p, entry)); p++)
        if ((p == list || p[-1] == ' ') && (!p[n] || p[n] == ','))
            return 1;
    return 0;
}

/* Room for one more entry, with the lock. 0: there is none. */
static int grow_ignored(struct exchange *x, size_t n)
{
    size_t cap = 2 * (x->n_ignored + n);
    if (x->cap_ignored >= x->n_ignored + n)
        return 1;
    char *more = account_has_room(x->h->s, x->tenant, (int64_t)(cap - x->cap_ignored))
                     ? realloc(x->ignored, cap)
                     : NULL;
    if (!more)
        return 0;
    account_add(x->h->s, x->tenant, (int64_t)(cap - x->cap_ignored));
    x->ignored = more;
    x->cap_ignored = cap;
    return 1;
}

/* With the lock. The last one says that there are more. */
static void put_ignored(struct exchange *x, const char *entry)
{
    enum { MOST = 16 << 10, MORE = 8 }; /* each is compared with all before it */
    size_t n = strlen(entry);
    int fits = x->n_ignored + n + 2 + MORE <= MOST && grow_ignored(x, n + 2 + MORE);
    x->ignored_full = !fits;
    if (!x->ignored)
        return;
    int put = snprintf(x->ignored + x->n_ignored, x->cap_ignored - x->n_ignored, "%s%s",
                       x->n_ignored ? ", " : "", fits ? entry : "...");
    x->n_ignored += (size_t)put;
}

const char *exchange_ignored(const struct exchange *x, size_t most, char *cut)
{
    if (x->n_ignored < most)
        return x->ignored ? x->ignored : "";
    size_t n = most - sizeof ", ...";
    memcpy(cut, x->ignored, n);
    while (n && cut[n - 1] != ',')
        n--;
    strcpy(cut + n, n ? " ..." : "...");
    return cut;
}

void exchange_ignores(struct exchange *x, const char *fmt, ...)
{
    char entry[96];
    va_list ap;
    if (!x)
        return;
    va_start(ap, fmt);
    vsnprintf(entry, sizeof entry, fmt, ap);
    va_end(ap);
    if (!*entry)
        snprintf(entry, sizeof entry, "\"\"");
    for (char *p = entry; *p; p++) /* names are the client's */
        if (*p < '!' || *p > '~' || *p == ',')
            *p = *p == ' ' ? ' ' : '?';
    pthread_mutex_lock(&x->lock);
    if (!x->ignored_full && !(x->ignored && is_listed(x->ignored, entry)))
        put_ignored(x, entry);
    pthread_mutex_unlock(&x->lock);
}

void exchange_retry_after(struct exchange *x, int seconds)
{
    x->retry_after = seconds;
}

/* With the lock. What nobody has taken yet is in the account of the key. */
static void count_out(struct exchange *x)
{
    if (x->tenant)
        account_add(x->h->s, x->tenant, (int64_t)x->cap_out - x->told_out);
    x->told_out = (int64_t)x->cap_out;
}

/* With the lock. Whether n more bytes may be kept, in a block of so many. What is no stream is
 * bounded as it is made. */
static int may_keep(const struct exchange *x, size_t n, size_t cap)
{
    size_t unread = x->n_out - x->at_out + n;
    if (!x->live || unread <= OUT_FREE)
        return 1;
    return unread <= OUT_MAX && atomic_load(&x->tenant->account.bytes) +
                                        (int64_t)(cap - x->cap_out) <= account_of_key(x->h->s);
}

/* With the lock. Nobody gets the rest of a stream that is gone. */
static void forget_out(struct exchange *x)
{
    if (!x->live)
        return;
    free(x->out);
    x->out = NULL;
    x->n_out = x->at_out = x->cap_out = 0;
    count_out(x);
}

void exchange_put(struct exchange *x, const char *p, size_t n)
{
    if (x->at_out == x->n_out) {
        x->at_out = x->n_out = 0;
        x->waits = clock_now();
    } else if (x->at_out > x->n_out / 2 &&
               x->cap_out - x->n_out <
                   n) { /* what has been taken makes room: fewer bytes are moved than were taken */
        x->n_out -= x->at_out;
        memmove(x->out, x->out + x->at_out, x->n_out);
        x->at_out = 0;
    }
    if (x->cap_out - x->n_out < n) {
        size_t cap = 2 * (x->n_out + n) + 256;
        char *more = may_keep(x, n, cap) ? realloc(x->out, cap) : NULL;
        if (!more) { /* it does not read, or there is no memory: either way this answer cannot be
                        whole */
            atomic_store(&x->gone, 1);
            forget_out(x);
            return;
        }
        x->out = more;
        x->cap_out = cap;
        count_out(x);
    }
    memcpy(x->out + x->n_out, p, n);
    x->n_out += n;
    x->spoke = clock_now();
}

int exchange_unread(struct exchange *x, int64_t before)
{
    pthread_mutex_lock(&x->lock);
    int unread = x->queued && x->waits < before &&
                 (!x->live || x->ended || x->at_out < x->n_out || atomic_load(&x->gone));
    pthread_mutex_unlock(&x->lock);
    return unread;
}

void exchange_write(struct exchange *x, const char *p, size_t n)
{
    pthread_mutex_lock(&x->lock);
    if (!atomic_load(&x->gone) && !x->ended)
        exchange_put(x, p, n);
    if (x->live)
        exchange_wake(x);
    pthread_mutex_unlock(&x->lock);
}

void exchange_poured(struct exchange *x)
{
    if (x->ctx)
        x->done(x->ctx);
    if (x->tenant)
        account_add(x->h->s, x->tenant, -x->poured);
    x->ctx = NULL;
    x->fill = NULL;
    x->poured = 0;
}

int exchange_pour(struct exchange *x, const char *type,
                  size_t (*fill)(void *ctx, char *buf, size_t max), void (*done)(void *ctx),
                  void *ctx, int64_t bytes)
{
    pthread_mutex_lock(&x->lock);
    int first = !x->begun;
    if (first) {
        x->fill = fill;
        x->done = done;
        x->ctx = ctx;
        x->poured = bytes;
        x->ended = 1;
        account_add(x->h->s, x->tenant, bytes);
    }
    pthread_mutex_unlock(&x->lock);
    if (!first)
        done(ctx);
    return first && exchange_begin(x, 200, type, 1, NULL);
}

void exchange_break(struct exchange *x)
{
    pthread_mutex_lock(&x->lock);
    atomic_store(&x->gone, 1);
    exchange_wake(x);
    pthread_mutex_unlock(&x->lock);
}

void exchange_end(struct exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->ended = 1;
    exchange_wake(x);
    pthread_mutex_unlock(&x->lock);
}

void exchange_figures(struct exchange *x, const struct figures *f)
{
    pthread_mutex_lock(&x->lock);
    x->figures.n_prompt += f->n_prompt;
    x->figures.n_cached += f->n_cached;
    x->figures.n_made += f->n_made;
    x->figures.queue_ns = f->queue_ns;
    x->figures.first_ns = f->first_ns;
    x->figures.n_choices = f->n_choices;
    x->figures.n_max = f->n_max;
    x->figures.temperature = f->temperature;
    x->figures.top_p = f->top_p;
    pthread_mutex_unlock(&x->lock);
}

/* The answer is this text (malloc), which is not copied: there is no memory to run out of. */
static void take_text(struct exchange *x, char *text)
{
    size_t n = strlen(text);
    pthread_mutex_lock(&x->lock);
    text[n] = '\n';
    free(x->out);
    x->out = text;
    x->n_out = x->cap_out = n + 1;
    count_out(x);
    pthread_mutex_unlock(&x->lock);
}

void exchange_text(struct exchange *x, int status, char *json)
{
    static const char none[] = "{\"error\":{\"message\":\"the server is out of memory for this "
                               "answer\",\"type\":\"server_error\","
                               "\"param\":null,\"code\":\"out_of_memory\"}}\n";
    exchange_begin(x, json ? status : 503, "application/json", 0, NULL);
    if (json)
        take_text(x, json);
    else
        exchange_write(x, none, sizeof none - 1);
    exchange_end(x);
}

void exchange_json(struct exchange *x, int status, json_t *body)
{
    char *text = json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(body);
    if (json_lost()) {
        struct fault f;
        free(text);
        text = NULL;
        if (fault_stopped(&f)) { /* not of memory */
            exchange_fault(x, &f);
            return;
        }
    }
    exchange_text(x, status, text);
}

/* Of its route, or whose path it looks like; NULL: OpenAI's. */
static const struct shape *shape_of(const struct exchange *x)
{
    for (const struct shape *s = x->h->site->shapes; s->fault; s++)
        if (x->route ? x->route->flags & s->flag
                     : s->under && !strncmp(x->path, s->under, strlen(s->under)))
            return s;
    return NULL;
}

json_t *exchange_fault_json(const struct exchange *x, const struct fault *f)
{
    const struct shape *s = shape_of(x);
    return s ? s->fault(f) : fault_json(f);
}

void exchange_fault(struct exchange *x, const struct fault *f)
{
    json_lost(); /* what was lost before is why it fails */
    fault_answers();
    exchange_retry_after(x, f->retry_after);
    exchange_json(x, f->http, exchange_fault_json(x, f));
}

/* ---------------------------------------------------------------- log */

/* Attributes by the names that tracing of language models has for them; never what was said. */
static void log_figures(const struct exchange *x, const struct figures *f, json_t *j)
{
    json_object_set_new(j, "gen_ai.request.id", json_string(x->id));
    if (f->n_choices) {
        json_object_set_new(j, "gen_ai.request.n", json_integer(f->n_choices));
        json_object_set_new(j, "gen_ai.request.temperature", json_real(f->temperature));
        json_object_set_new(j, "gen_ai.request.top_p", json_real(f->top_p));
    }
    if (f->n_max > 0)
        json_object_set_new(j, "gen_ai.request.max_tokens", json_integer(f->n_max));
    if (x->model)
        json_object_set_new(j, "gen_ai.response.model", json_string(x->model->name));
    json_object_set_new(j, "gen_ai.usage.prompt_tokens", json_integer(f->n_prompt));
    json_object_set_new(j, "gen_ai.usage.cached_tokens", json_integer(f->n_cached));
    json_object_set_new(j, "gen_ai.usage.completion_tokens", json_integer(f->n_made));
    json_object_set_new(j, "gen_ai.latency.time_in_queue", json_real(1e-9 * (double)f->queue_ns));
    json_object_set_new(j, "gen_ai.latency.time_to_first_token",
                        json_real(1e-9 * (double)f->first_ns));
    json_object_set_new(j, "gen_ai.latency.e2e",
                        json_real(1e-9 * (double)(clock_now() - x->began)));
}

void exchange_log(const struct exchange *x, const struct figures *f)
{
    struct timespec t;
    struct tm tm;
    char when[32];
    const char *key = x->tenant ? x->tenant->name : "";
    if (!server_told(x->h->s)->log)
        return;
    clock_gettime(CLOCK_REALTIME, &t);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", gmtime_r(&t.tv_sec, &tm));
    json_t *j = json_pack(
        "{s:s, s:s, s:o, s:o, s:i, s:I, s:f, s:o}", "time", when, "id", x->id, "method",
        json_text(x->method, strlen(x->method)), "path", json_text(x->path, strlen(x->path)),
        "status", x->queued ? x->status : 499, "bytes", (json_int_t)x->sent, "seconds",
        1e-9 * (double)(clock_now() - x->began), "key", json_text(key, strlen(key)));
    json_object_set_new(j, "trace_id", json_string(x->trace.trace_id));
    json_object_set_new(j, "span_id", json_string(x->trace.span_id));
    if (*x->trace.parent_id)
        json_object_set_new(j, "parent_span_id", json_string(x->trace.parent_id));
    if (x->ignored)
        json_object_set_new(j, "ignored", json_string(x->ignored));
    if (j && f->n_prompt)
        log_figures(x, f, j);
    char *line = j ? json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    if (line)
        fprintf(stderr, "%s\n", line);
    free(line);
    json_decref(j);
    json_lost(); /* what a line lacks is no fault of the next answer */
}
