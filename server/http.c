/* http.c -- the one file that knows libmicrohttpd. One thread of its own moves all bytes; nothing here waits for anything else.
 *
 *     headers -> checks (route, key, Host, size) -> body -> work.c or a direct handler -> suspended ... begun -> answer -> ... -> ended
 *
 * A suspended connection is not looked at by the library, so a client that leaves would go unnoticed: a second thread asks poll() about those
 * that wait, writes the pulse of silent streams and shuts connections whose bodies come too slowly. An exchange is counted: once by its
 * connection, once by whoever makes its answer. */
#include <arpa/inet.h>
#include <errno.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <microhttpd.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "scheduler.h"
#include "trace.h"

enum {
    OUT_MAX = 64 << 20,  /* bytes a client may leave unread */
    PULSE_MS = 5000, WATCH_MS = 50, TIDY_MS = 500,
    HEADER_BYTES = 64 << 10,
    IDLE_SECONDS = 120,
};

struct exchange {
    struct http *h;
    struct MHD_Connection *c; /* NULL: it has gone */
    struct exchange *next, **at;
    struct tenant *tenant;
    const struct route *route;
    atomic_int refs, gone, dispatched; /* dispatched: the body is here, or was refused */
    pthread_mutex_t lock; /* of all below */
    int fd, suspended, too_large;
    int begun, ended, live, queued, status, retry_after;
    const char *type, *pulse;
    struct header {
        const char *name;
        char value[256];
    } headers[4]; /* further ones of the answer */
    int n_headers;
    char *body, *out;
    size_t n_body, cap_body, n_out, at_out, cap_out, sent;
    int64_t began, spoke; /* ns */
    struct figures figures;
    json_t *tree;
    struct hosted *model; /* NULL: `why` says why there is none */
    struct fault why;
    struct trace trace;
    char id[32], method[12], path[128], query[256], allow[32]; /* allow: methods that there are instead of this one */
};

/* A connection, for as long as the library has it open. */
struct peer {
    struct peer *next, **at;
    int fd, busy; /* busy: it has an exchange */
    int64_t since; /* ns: it is open, or its last exchange ended */
};

struct http {
    struct server *s;
    struct MHD_Daemon *daemon;
    pthread_mutex_t lock; /* of the lists */
    struct exchange *first;
    struct peer *peers;
    int64_t stirred; /* ns: there was an exchange; 0: nothing since it was tidied up */
    int n;
    pthread_t watch;
    atomic_int quit;
    int listen_fd, local, watching;
    atomic_uint_fast64_t serial;
    char url[300];
};

/* ---------------------------------------------------------------- exchanges */

const char *exchange_body(const struct exchange *x, size_t *n)
{
    *n = x->n_body;
    return x->body ? x->body : "";
}

json_t *exchange_tree(struct exchange *x, struct fault *f)
{
    size_t n;
    const char *body = exchange_body(x, &n);
    if (!x->tree)
        x->tree = json_read(body, n, f);
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

const char *exchange_path(const struct exchange *x)
{
    return x->path;
}

const atomic_int *exchange_gone(const struct exchange *x)
{
    return &x->gone;
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
    json_decref(x->tree);
    free(x->body);
    free(x->out);
    free(x);
}

/* With the lock: the connection is looked at again. */
static void wake(struct exchange *x)
{
    if (x->suspended && x->c) {
        x->suspended = 0;
        MHD_resume_connection(x->c);
    }
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
            wake(x);
        else
            x->n_out = x->at_out = 0;
    }
    pthread_mutex_unlock(&x->lock);
    return first;
}

const char *exchange_asked(const struct exchange *x, const char *name)
{
    return x->c ? MHD_lookup_connection_value(x->c, MHD_HEADER_KIND, name) : NULL;
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

void exchange_retry_after(struct exchange *x, int seconds)
{
    x->retry_after = seconds;
}

static void put(struct exchange *x, const char *p, size_t n)
{
    if (x->at_out == x->n_out)
        x->at_out = x->n_out = 0;
    if (x->cap_out - x->n_out < n) {
        size_t cap = 2 * (x->n_out + n) + 256;
        char *more = !x->live || x->n_out - x->at_out + n <= OUT_MAX ? realloc(x->out, cap) : NULL;
        if (!more) { /* it does not read, or there is no memory: either way this answer cannot be whole */
            atomic_store(&x->gone, 1);
            return;
        }
        x->out = more;
        x->cap_out = cap;
    }
    memcpy(x->out + x->n_out, p, n);
    x->n_out += n;
    x->spoke = clock_now();
}

void exchange_write(struct exchange *x, const char *p, size_t n)
{
    pthread_mutex_lock(&x->lock);
    if (!atomic_load(&x->gone) && !x->ended)
        put(x, p, n);
    if (x->live)
        wake(x);
    pthread_mutex_unlock(&x->lock);
}

void exchange_break(struct exchange *x)
{
    pthread_mutex_lock(&x->lock);
    atomic_store(&x->gone, 1);
    wake(x);
    pthread_mutex_unlock(&x->lock);
}

void exchange_end(struct exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->ended = 1;
    wake(x);
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
    pthread_mutex_unlock(&x->lock);
}

void exchange_text(struct exchange *x, int status, char *json)
{
    static const char none[] = "{\"error\":{\"message\":\"the server is out of memory for this answer\",\"type\":\"server_error\","
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
    char *text = json_lost() ? NULL : json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(body);
    exchange_text(x, status, text);
}

/* Whose interface a path without a route belongs to. */
static int shape_of(const char *path)
{
    return !strncmp(path, "/api/", 5) ? ROUTE_OLLAMA : !strncmp(path, "/v1/messages", 12) ? ROUTE_ANTHROPIC : 0;
}

json_t *exchange_fault_json(const struct exchange *x, const struct fault *f)
{
    int flags = x->route ? x->route->flags : shape_of(x->path);
    return flags & ROUTE_ANTHROPIC ? fault_anthropic(f) : flags & ROUTE_OLLAMA ? fault_ollama(f) : fault_json(f);
}

void exchange_fault(struct exchange *x, const struct fault *f)
{
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
    json_object_set_new(j, "gen_ai.latency.time_to_first_token", json_real(1e-9 * (double)f->first_ns));
    json_object_set_new(j, "gen_ai.latency.e2e", json_real(1e-9 * (double)(clock_now() - x->began)));
}

static void log_access(const struct exchange *x, const struct figures *f)
{
    struct timespec t;
    struct tm tm;
    char when[32];
    if (!x->h->s->p.log)
        return;
    clock_gettime(CLOCK_REALTIME, &t);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", gmtime_r(&t.tv_sec, &tm));
    json_t *j = json_pack("{s:s, s:s, s:s, s:o, s:i, s:I, s:f, s:s}", "time", when, "id", x->id, "method", x->method, "path",
                          json_text(x->path, strlen(x->path)), "status", x->queued ? x->status : 499, "bytes", (json_int_t)x->sent,
                          "seconds", 1e-9 * (double)(clock_now() - x->began), "key", x->tenant ? x->tenant->name : "");
    json_object_set_new(j, "trace_id", json_string(x->trace.trace_id));
    json_object_set_new(j, "span_id", json_string(x->trace.span_id));
    if (*x->trace.parent_id)
        json_object_set_new(j, "parent_span_id", json_string(x->trace.parent_id));
    if (j && f->n_prompt)
        log_figures(x, f, j);
    char *line = j ? json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    if (line)
        fprintf(stderr, "%s\n", line);
    free(line);
    json_decref(j);
    json_lost(); /* what a line lacks is no fault of the next answer */
}

/* ---------------------------------------------------------------- connections */

static struct peer *peer_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* With the list's lock. */
static void peer_turns(struct MHD_Connection *c, int busy)
{
    struct peer *p = peer_of(c);
    if (p) {
        p->busy = busy;
        p->since = clock_now();
    }
}

static void on_connection(void *cls, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode code)
{
    struct http *h = cls;
    struct peer *p = *context;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    pthread_mutex_lock(&h->lock);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        p = *context = calloc(1, sizeof *p);
        if (p) {
            *p = (struct peer){.next = h->peers, .at = &h->peers, .fd = info ? info->connect_fd : -1, .since = clock_now()};
            if (h->peers)
                h->peers->at = &p->next;
            h->peers = p;
        }
    } else if (p) {
        *p->at = p->next;
        if (p->next)
            p->next->at = p->at;
        free(p);
    }
    pthread_mutex_unlock(&h->lock);
}

/* ---------------------------------------------------------------- requests */

static struct exchange *exchange_open(struct http *h, struct MHD_Connection *c, const char *method, const char *path)
{
    struct exchange *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    pthread_mutex_init(&x->lock, NULL);
    atomic_store(&x->refs, 1);
    x->h = h;
    x->c = c;
    x->fd = info ? info->connect_fd : -1;
    x->began = x->spoke = clock_now();
    snprintf(x->id, sizeof x->id, "%llx-%llx", (unsigned long long)h->s->created, (unsigned long long)atomic_fetch_add(&h->serial, 1));
    snprintf(x->method, sizeof x->method, "%s", method);
    snprintf(x->path, sizeof x->path, "%s", path);
    trace_begin(&x->trace, MHD_lookup_connection_value(c, MHD_HEADER_KIND, "traceparent"), MHD_lookup_connection_value(c, MHD_HEADER_KIND, "tracestate"));
    const char *model = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "model");
    snprintf(x->query, sizeof x->query, "%s", model ? model : "");
    pthread_mutex_lock(&h->lock);
    x->next = h->first;
    x->at = &h->first;
    if (h->first)
        h->first->at = &x->next;
    h->first = x;
    h->n++;
    peer_turns(c, 1);
    pthread_mutex_unlock(&h->lock);
    return x;
}

static const char *key_given(struct MHD_Connection *c)
{
    const char *a = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    if (a && !strncasecmp(a, "Bearer ", 7))
        return a + 7 + strspn(a + 7, " ");
    a = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "x-api-key");
    return a ? a : MHD_lookup_connection_value(c, MHD_HEADER_KIND, "api-key");
}

static int find_route(struct exchange *x, const char *method, const char *path, struct fault *f)
{
    if (!strcmp(method, "HEAD"))
        method = "GET";
    for (const struct route *r = routes; r->path; r++) {
        size_t n = strlen(r->path);
        if (r->path[n - 1] == '*' ? strncmp(r->path, path, n - 1) : strcmp(r->path, path))
            continue;
        if (!strcmp(r->method, method)) {
            x->route = r;
            return 1;
        }
        n = strlen(x->allow);
        snprintf(x->allow + n, sizeof x->allow - n, "%s%s", n ? ", " : "", r->method);
    }
    if (*x->allow)
        return fault_set(f, 405, "method_not_allowed", NULL, "%.8s %.100s; wanted %s", method, path, x->allow);
    return fault_set(f, 404, "not_found", NULL, "there is no %.100s; GET /docs lists what there is", path);
}

/* All that can be said before the body is there. 0: *f says why it ends here, or nothing does: a preflight, which has its answer. */
static int check_head(struct exchange *x, const char *method, const char *path, struct fault *f)
{
    struct server *s = x->h->s;
    struct MHD_Connection *c = x->c;
    const char *length = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Content-Length");
    const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host");
    const char *origin = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Origin");
    int keys = tenants_have_keys(s->tenants);
    if (http_tells_lies(&s->p, host, origin, x->h->local && !keys, f))
        return 0;
    if (!strcmp(method, "OPTIONS")) /* what a browser asks before a page may ask */
        return 0;
    if (!find_route(x, method, path, f))
        return 0;
    x->tenant = tenants_find(s->tenants, key_given(c));
    if (!x->tenant && !(x->route->flags & ROUTE_OPEN))
        return fault_set(f, 401, "invalid_api_key", NULL, "%s; send Authorization: Bearer KEY, or x-api-key: KEY",
                         key_given(c) ? "this key is not known here" : "a key is needed here");
    if ((x->route->flags & ROUTE_ADMIN) && !tenants_have_admins(s->tenants))
        return fault_set(f, 404, "admin_is_off", NULL, "there is no %.100s: the server was started without --admin-key", path);
    if ((x->route->flags & ROUTE_ADMIN) && !(x->tenant && x->tenant->admin))
        return fault_set(f, 403, "admin_key_needed", NULL, "%.100s changes the server; it needs a key given with --admin-key", path);
    if (length && strtoull(length, NULL, 10) > (unsigned long long)s->p.body_bytes)
        return fault_set(f, 413, "body_too_large", NULL, "the body has %.20s bytes, at most %lld are taken", length, (long long)s->p.body_bytes);
    if ((x->route->flags & ROUTE_MODEL) && !atomic_load(&s->ready))
        return models_loading(s, f);
    if ((x->route->flags & ROUTE_MODEL) && x->route->endpoint && atomic_load(&s->draining)) {
        return fault_shutting_down(f);
    }
    return 1;
}

static void take_body(struct exchange *x, const char *p, size_t n)
{
    pthread_mutex_lock(&x->lock);
    x->spoke = clock_now();
    if (x->n_body + n > (size_t)x->h->s->p.body_bytes)
        x->too_large = 1;
    if (!x->too_large && x->cap_body - x->n_body < n + 1) {
        size_t cap = 2 * (x->n_body + n) + 1;
        char *more = realloc(x->body, cap);
        if (more) {
            x->body = more;
            x->cap_body = cap;
        } else {
            x->too_large = 1;
        }
    }
    if (!x->too_large) {
        memcpy(x->body + x->n_body, p, n);
        x->n_body += n;
        x->body[x->n_body] = 0;
    }
    pthread_mutex_unlock(&x->lock);
}

static void dispatch(struct exchange *x)
{
    struct server *s = x->h->s;
    struct fault f = {0};
    x->dispatched = 1;
    if (x->too_large) {
        fault_set(&f, 413, "body_too_large", NULL, "the body has more than %lld bytes", (long long)s->p.body_bytes);
        exchange_fault(x, &f);
    } else if (x->route->flags & ROUTE_DIRECT) {
        x->route->handle(s, x);
    } else {
        exchange_hold(x); /* the handler drops it */
        if (!work_push(s->work, models_handle, s, x, &f)) {
            exchange_fault(x, &f);
            exchange_drop(x);
        }
    }
}

/* ---------------------------------------------------------------- answers */

static ssize_t read_live(void *cls, uint64_t pos, char *buf, size_t max)
{
    struct exchange *x = cls;
    ssize_t n = 0;
    (void)pos;
    pthread_mutex_lock(&x->lock);
    size_t have = x->n_out - x->at_out;
    if (have && !atomic_load(&x->gone)) {
        n = (ssize_t)(have < max ? have : max);
        memcpy(buf, x->out + x->at_out, (size_t)n);
        x->at_out += (size_t)n;
        x->sent += (size_t)n;
    } else if (atomic_load(&x->gone)) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (x->ended) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        x->suspended = 1;
        MHD_suspend_connection(x->c);
    }
    pthread_mutex_unlock(&x->lock);
    return n;
}

static void add_headers(struct exchange *x, struct MHD_Response *r)
{
    char text[32], parent[56];
    const char *origin = MHD_lookup_connection_value(x->c, MHD_HEADER_KIND, "Origin");
    if (x->type)
        MHD_add_response_header(r, "Content-Type", x->type);
    MHD_add_response_header(r, "x-request-id", x->id);
    trace_parent(&x->trace, parent);
    MHD_add_response_header(r, "traceparent", parent);
    if (*x->trace.state)
        MHD_add_response_header(r, "tracestate", x->trace.state);
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    for (int i = 0; i < x->n_headers; i++)
        MHD_add_response_header(r, x->headers[i].name, x->headers[i].value);
    if (x->live)
        MHD_add_response_header(r, "Cache-Control", "no-cache");
    if (x->status == 405)
        MHD_add_response_header(r, "Allow", x->allow);
    if (x->status == 401)
        MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (origin && x->status != 403) {
        MHD_add_response_header(r, "Access-Control-Allow-Origin", origin);
        MHD_add_response_header(r, "Access-Control-Allow-Headers", "*, Authorization");
        MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST");
        MHD_add_response_header(r, "Vary", "Origin");
    }
    if (x->retry_after) {
        snprintf(text, sizeof text, "%d", x->retry_after);
        MHD_add_response_header(r, "Retry-After", text);
    }
}

/* Headers, and the body or how to get it. Without a lock: what is begun does not change, and bytes of a live one have their own. */
static enum MHD_Result answer(struct exchange *x)
{
    struct MHD_Response *r = x->live ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_live, x, NULL)
                                     : MHD_create_response_from_buffer(x->n_out, x->out ? x->out : (char *)"", MHD_RESPMEM_PERSISTENT);
    if (!r)
        return MHD_NO;
    add_headers(x, r);
    enum MHD_Result ok = MHD_queue_response(x->c, (unsigned)x->status, r);
    if (!x->live)
        x->sent = x->n_out;
    x->queued = 1;
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *path, const char *method, const char *version,
                                  const char *data, size_t *n_data, void **con_cls)
{
    struct http *h = cls;
    struct exchange *x = *con_cls;
    struct fault f = {0};
    (void)version;
    if (!x) {
        x = *con_cls = exchange_open(h, c, method, path);
        if (!x)
            return MHD_NO;
        if (check_head(x, method, path, &f))
            return MHD_YES;
        x->dispatched = 1;
        if (f.http) {
            exchange_fault(x, &f);
        } else {
            exchange_begin(x, 204, NULL, 0, NULL);
            exchange_end(x);
        }
        return answer(x);
    }
    if (*n_data) {
        take_body(x, data, *n_data);
        *n_data = 0;
        return MHD_YES;
    }
    if (!x->dispatched)
        dispatch(x);
    pthread_mutex_lock(&x->lock);
    int gone = atomic_load(&x->gone), ready = x->live ? x->begun : x->begun && x->ended;
    if (!gone && !ready) {
        x->suspended = 1;
        MHD_suspend_connection(c);
    }
    pthread_mutex_unlock(&x->lock);
    if (gone)
        return MHD_NO;
    return ready && !x->queued ? answer(x) : MHD_YES;
}

static void on_completed(void *cls, struct MHD_Connection *c, void **con_cls, enum MHD_RequestTerminationCode code)
{
    struct http *h = cls;
    struct exchange *x = *con_cls;
    (void)code;
    if (!x)
        return;
    *con_cls = NULL;
    pthread_mutex_lock(&h->lock);
    *x->at = x->next;
    if (x->next)
        x->next->at = x->at;
    h->n--;
    peer_turns(c, 0);
    pthread_mutex_unlock(&h->lock);
    pthread_mutex_lock(&x->lock);
    x->c = NULL;
    x->fd = -1;
    atomic_store(&x->gone, 1);
    struct figures figures = x->figures;
    pthread_mutex_unlock(&x->lock);
    log_access(x, &figures);
    exchange_drop(x);
}

/* ---------------------------------------------------------------- watching */

static int has_left(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}

/* With the list's lock, under which no descriptor of it is closed. somebody_left: poll() has seen one who has. */
static void look_at(struct exchange *x, int somebody_left, int64_t now)
{
    const struct server_params *p = &x->h->s->p;
    pthread_mutex_lock(&x->lock);
    if (somebody_left && x->dispatched && x->suspended && x->fd >= 0 && !x->ended && has_left(x->fd)) {
        atomic_store(&x->gone, 1);
        wake(x);
    } else if (x->live && x->pulse && x->begun && !x->ended && now - x->spoke > (int64_t)PULSE_MS * 1000000) {
        put(x, x->pulse, strlen(x->pulse));
        wake(x);
    } else if (!x->dispatched && p->read_timeout > 0 && (double)(now - x->began) > 1e9 * p->read_timeout && x->fd >= 0) {
        shutdown(x->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&x->lock);
}

/* The descriptors of those who wait for their answers, so that one who leaves is noticed at once. Only a hint: they may be closed and opened
 * anew by the time poll() returns. */
static nfds_t waiting(struct http *h, struct pollfd **fds, nfds_t *cap)
{
    nfds_t n = 0;
    if (*cap < (nfds_t)h->n) {
        struct pollfd *more = realloc(*fds, 2 * (size_t)h->n * sizeof *more);
        if (!more)
            return 0;
        *fds = more;
        *cap = 2 * (nfds_t)h->n;
    }
    for (struct exchange *x = h->first; x; x = x->next) {
        pthread_mutex_lock(&x->lock);
        if (x->dispatched && x->suspended && x->fd >= 0 && !x->ended && !atomic_load(&x->gone))
            (*fds)[n++] = (struct pollfd){.fd = x->fd, .events = POLLRDHUP};
        pthread_mutex_unlock(&x->lock);
    }
    return n;
}

/* With the lists' lock: ends connections whose next request does not come, or comes by single bytes. */
static void expire_peers(struct http *h, int64_t now)
{
    double most = h->s->p.read_timeout;
    for (struct peer *p = h->peers; p && most > 0; p = p->next) {
        if (!p->busy && p->fd >= 0 && (double)(now - p->since) > 1e9 * most) {
            shutdown(p->fd, SHUT_RDWR);
            p->since = now;
        }
    }
}

/* What requests have freed goes back to the system when there are none: the allocator by itself keeps what the largest ones took. */
static void tidy(struct http *h, int any, int64_t now)
{
    if (any) {
        h->stirred = now;
    } else if (h->stirred && now - h->stirred > (int64_t)TIDY_MS * 1000000) {
        h->stirred = 0;
#ifdef __GLIBC__
        malloc_trim(0);
#endif
    }
}

static void *watch(void *arg)
{
    struct http *h = arg;
    struct pollfd *fds = NULL;
    nfds_t n, cap = 0;
    int somebody_left = 0;
    while (!atomic_load(&h->quit)) {
        int64_t now = clock_now();
        pthread_mutex_lock(&h->lock);
        for (struct exchange *x = h->first; x; x = x->next)
            look_at(x, somebody_left, now);
        expire_peers(h, now);
        n = waiting(h, &fds, &cap);
        int any = h->first != NULL;
        pthread_mutex_unlock(&h->lock);
        tidy(h, any, now);
        models_expire(h->s);
        somebody_left = poll(fds, n, WATCH_MS) > 0;
    }
    free(fds);
    return NULL;
}

/* ---------------------------------------------------------------- listening */

static int fail(struct pith_error *err, const char *what, const char *why)
{
    *err = (struct pith_error){.code = PITH_IO};
    snprintf(err->msg, sizeof err->msg, "%s: %s", what, why);
    return -1;
}

static int listen_unix(struct http *h, const char *path, struct pith_error *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat sb;
    if (strlen(path) >= sizeof a.sun_path)
        return fail(err, path, "too long for a socket's name");
    strcpy(a.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && !connect(fd, (struct sockaddr *)&a, sizeof a)) {
        close(fd);
        return fail(err, path, "another server listens there");
    }
    if (!lstat(path, &sb) && S_ISSOCK(sb.st_mode))
        unlink(path); /* of a server that was killed */
    mode_t old = umask(0077);
    int bound = fd >= 0 ? bind(fd, (struct sockaddr *)&a, sizeof a) : -1;
    umask(old);
    if (bound || listen(fd, 128)) {
        fail(err, path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return -1;
    }
    snprintf(h->url, sizeof h->url, "unix:%s", path);
    h->local = 1;
    return fd;
}

static int is_local_address(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static int listen_tcp(struct http *h, const struct server_params *p, struct pith_error *err)
{
    struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM}, *found = NULL;
    struct sockaddr_storage bound;
    socklen_t n = sizeof bound;
    char port[16], where[300], name[128];
    int one = 1, fd = -1;
    snprintf(port, sizeof port, "%d", p->port);
    snprintf(where, sizeof where, "%s port %d", p->host, p->port);
    int why = getaddrinfo(p->host, port, &hints, &found);
    if (why)
        return fail(err, where, gai_strerror(why));
    h->local = is_local_address(found->ai_addr);
    if (!h->local && !tenants_have_keys(h->s->tenants)) {
        freeaddrinfo(found);
        return fail(err, where, "everybody on the network could use this address; give an --api-key, or listen on 127.0.0.1");
    }
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) || listen(fd, 1024) || getsockname(fd, (struct sockaddr *)&bound, &n) ||
        getnameinfo((struct sockaddr *)&bound, n, name, sizeof name, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV)) {
        fail(err, where, strerror(errno));
        if (fd >= 0)
            close(fd);
        fd = -1;
    } else {
        snprintf(h->url, sizeof h->url, found->ai_family == AF_INET6 ? "%s://[%s]:%s" : "%s://%s:%s", p->tls_cert ? "https" : "http", name, port);
    }
    freeaddrinfo(found);
    return fd;
}

static void say(void *cls, const char *fmt, va_list ap)
{
    (void)cls;
    (void)fmt;
    (void)ap; /* what clients do wrong is no news */
}

static struct MHD_Daemon *start(struct http *h, const struct server_params *p)
{
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC | MHD_USE_ERROR_LOG;
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)p->tls_key},
        {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)p->tls_cert},
        {MHD_OPTION_END, 0, NULL},
    };
    struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    flags |= MHD_is_feature_supported(MHD_FEATURE_EPOLL) == MHD_YES ? MHD_USE_EPOLL : MHD_USE_POLL;
    if (p->tls_cert)
        flags |= MHD_USE_TLS;
    return MHD_start_daemon(flags, 0, NULL, NULL, on_request, h, MHD_OPTION_EXTERNAL_LOGGER, say, NULL, MHD_OPTION_LISTEN_SOCKET, h->listen_fd,
                            MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_CONNECTION_LIMIT, (unsigned)p->connections,
                            MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADER_BYTES,
                            MHD_OPTION_ARRAY, p->tls_cert ? tls : none, MHD_OPTION_END);
}

struct http *http_open(struct server *s, const struct server_params *p, struct pith_error *err)
{
    struct http *h = calloc(1, sizeof *h);
    if (!h) {
        *err = (struct pith_error){PITH_NOMEM, "out of memory for the server"};
        return NULL;
    }
    h->s = s;
    pthread_mutex_init(&h->lock, NULL);
    if (p->tls_cert && MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES) {
        fail(err, "TLS", "this libmicrohttpd was built without it");
        http_close(h);
        return NULL;
    }
    h->listen_fd = p->unix_path ? listen_unix(h, p->unix_path, err) : listen_tcp(h, p, err);
    h->daemon = h->listen_fd >= 0 ? start(h, p) : NULL;
    if (h->listen_fd >= 0 && !h->daemon)
        fail(err, h->url, p->tls_cert ? "cannot serve; is the certificate that of the key?" : "cannot serve");
    h->watching = h->daemon && !pthread_create(&h->watch, NULL, watch, h);
    if (!h->watching) {
        http_close(h);
        return NULL;
    }
    return h;
}

const char *http_url(const struct http *h)
{
    return h->url;
}


void http_close(struct http *h)
{
    if (!h)
        return;
    atomic_store(&h->quit, 1);
    if (h->watching)
        pthread_join(h->watch, NULL);
    pthread_mutex_lock(&h->lock);
    for (struct exchange *x = h->first; x; x = x->next) { /* none may stay suspended */
        pthread_mutex_lock(&x->lock);
        if (!x->ended)
            atomic_store(&x->gone, 1);
        wake(x);
        pthread_mutex_unlock(&x->lock);
    }
    pthread_mutex_unlock(&h->lock);
    if (h->daemon)
        MHD_stop_daemon(h->daemon);
    else if (h->listen_fd > 0)
        close(h->listen_fd);
    if (!strncmp(h->url, "unix:", 5))
        unlink(h->url + 5);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
