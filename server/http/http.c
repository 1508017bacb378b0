/* http.c -- the one file that knows libmicrohttpd. One thread of its own moves all bytes; nothing
 * here waits for anything else.
 *
 *     headers -> checks (route, key, Host, size) -> body -> work.c or a direct handler -> suspended
 *         ... begun -> answer -> ... -> ended
 *
 * A connection is suspended while its exchange has nothing for it, and woken by whoever writes
 * (exchange_wake). */
#include <microhttpd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <unistd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "server/http/account.h"
#include "server/http/auth.h"
#include "server/http/connections.h"
#include "server/http/exchange.h"
#include "server/http/http.h"
#include "server/http/work.h"
#include "server/json.h"
#include "server/unconst.h"
#include "server/parts.h"

enum { HEADER_BYTES = 64 << 10, IDLE_SECONDS = 120, DRAIN_MS = 10, OTHER_FILES = 256 };

/* ---------------------------------------------------------------- connections */

static struct peer *peer_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static void on_connection(void *cls, struct MHD_Connection *c, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct http *h = cls;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    int fd = info ? info->connect_fd : -1;
    info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    pthread_mutex_lock(&h->lock);
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        *context = peers_add(h->peers, fd, info ? info->client_addr : NULL);
    else if (*context)
        peers_remove(h->peers, *context);
    pthread_mutex_unlock(&h->lock);
}

const char *exchange_asked(const struct exchange *x, const char *name)
{
    return x->c ? MHD_lookup_connection_value(x->c, MHD_HEADER_KIND, name) : NULL;
}

/* ---------------------------------------------------------------- requests */

static struct exchange *exchange_open(struct http *h, struct MHD_Connection *c, const char *method,
                                      const char *path)
{
    struct peer *p = peer_of(c);
    struct exchange *x =
        p ? calloc(1, sizeof *x) : NULL; /* one that nobody looks after is not served */
    if (!x)
        return NULL;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    pthread_mutex_init(&x->lock, NULL);
    atomic_store(&x->refs, 1);
    x->h = h;
    x->c = c;
    x->fd = info ? info->connect_fd : -1;
    x->began = x->spoke = clock_now();
    snprintf(x->id, sizeof x->id, "%llx-%llx", (unsigned long long)server_began(h->s),
             (unsigned long long)atomic_fetch_add(&h->serial, 1));
    snprintf(x->method, sizeof x->method, "%s", method);
    snprintf(x->path, sizeof x->path, "%s", path);
    trace_begin(&x->trace, MHD_lookup_connection_value(c, MHD_HEADER_KIND, "traceparent"),
                MHD_lookup_connection_value(c, MHD_HEADER_KIND, "tracestate"));
    const char *model = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "model");
    snprintf(x->query, sizeof x->query, "%s", model ? model : "");
    const char *action = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "action");
    snprintf(x->action, sizeof x->action, "%s", action ? action : "");
    const char *fails = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "fail_on_no_slot");
    x->wants_slot = fails && *fails && strcmp(fails, "0") != 0;
    pthread_mutex_lock(&h->lock);
    x->next = h->first;
    x->at = &h->first;
    if (h->first)
        h->first->at = &x->next;
    h->first = x;
    h->n++;
    peers_asks(h->peers, p, x);
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

int route_is_open(const struct server *s, const struct route *r)
{
    return (r->flags & ROUTE_OPEN) || ((r->flags & ROUTE_METRICS) && server_told(s)->open_metrics);
}

/* The endpoint that a path was to be: addresses are given with a slash at their end, or with the
 * /v1 that a client adds by itself. NULL: none. */
static const char *meant(const struct route *routes, const char *path)
{
    char plain[256];
    size_t n = 0;
    for (; *path && n + 1 < sizeof plain; path++)
        if (*path != '/' || !n || plain[n - 1] != '/')
            plain[n++] = *path;
    n -= n > 1 && plain[n - 1] == '/';
    plain[n] = 0;
    for (const char *at = plain; at; at = strchr(at + 1, '/')) {
        if (at != plain && strncmp(at, "/v1/", 4) && strncmp(at, "/api/", 5))
            continue;
        for (const struct route *r = routes; at[1] && r->path; r++)
            if (!strcmp(r->path, at))
                return r->path;
    }
    return NULL;
}

static int find_route(struct exchange *x, const char *method, const char *path, struct fault *f)
{
    if (!strcmp(method, "HEAD"))
        method = "GET";
    for (const struct route *r = x->h->site->routes; r->path; r++) {
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
        return fault_set(f, 405, "method_not_allowed", NULL, "%.8s %.100s; wanted %s", method, path,
                         x->allow);
    const char *near = meant(x->h->site->routes, path);
    return fault_set(f, 404, "not_found", NULL,
                     "there is no %.100s; %s%s%sGET /docs lists what there is", path,
                     near ? "did you mean " : "", near ? near : "", near ? "? " : "");
}

/* Who asks for something that takes time, and may, is known from now on. 0: there is no place for
 * another one. */
static int take_place(struct exchange *x, struct fault *f)
{
    struct http *h = x->h;
    int placed = 1;
    pthread_mutex_lock(&h->lock);
    if (x->tenant && (tenants_have_keys(server_tenants(h->s)) || !route_is_open(h->s, x->route)))
        placed = peers_know(h->peers, peer_of(x->c));
    pthread_mutex_unlock(&h->lock);
    if (placed)
        return 1;
    fault_set(f, 503, "connections_full", NULL,
              "all %d connections are taken by requests that run; see --max-connections",
              server_told(h->s)->connections);
    f->retry_after = 1;
    return 0;
}

/* What changes the server is an admin's; where there are no keys at all it is whoever's asks, but
 * for what loads, unloads and ends. */
static int check_admin(const struct exchange *x, const char *path, struct fault *f)
{
    const struct server *s = x->h->s;
    int flags = x->route->flags, have_admins = tenants_have_admins(server_tenants(s));
    if (!(flags & (ROUTE_ADMIN | ROUTE_OWN)) || (x->tenant && x->tenant->admin) ||
        ((flags & ROUTE_OWN) && !have_admins && !tenants_have_keys(server_tenants(s))))
        return 1;
    if (!have_admins && (flags & ROUTE_ADMIN))
        return fault_set(f, 404, "admin_is_off", NULL,
                         "there is no %.100s: the server was started without --admin-key", path);
    return fault_set(f, 403, "admin_key_needed", NULL,
                     "%.100s changes the server; it needs a key given with --admin-key%s", path,
                     have_admins ? "" : ", and the server was started without one");
}

/* All that can be said before the body is there. 0: *f says why it ends here, or nothing does: a
 * preflight, which has its answer. */
static int check_head(struct exchange *x, const char *method, const char *path, struct fault *f)
{
    struct server *s = x->h->s;
    struct MHD_Connection *c = x->c;
    const char *length = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Content-Length");
    const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host");
    const char *origin = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Origin");
    int keys = tenants_have_keys(server_tenants(s));
    if (http_tells_lies(server_told(s), host, origin, x->h->local, keys, f))
        return 0;
    if (!strcmp(method, "OPTIONS")) /* what a browser asks before a page may ask */
        return 0;
    if (!find_route(x, method, path, f))
        return 0;
    x->tenant = tenants_find(server_tenants(s), key_given(c));
    if (!x->tenant && !route_is_open(s, x->route))
        return fault_set(f, 401, "invalid_api_key", NULL,
                         "%s; send Authorization: Bearer KEY, or x-api-key: KEY",
                         key_given(c) ? "this key is not known here" : "a key is needed here");
    if (!take_place(x, f))
        return 0;
    if (!check_admin(x, path, f))
        return 0;
    if (length && strtoull(length, NULL, 10) > (unsigned long long)exchange_body_most(x))
        return fault_set(f, 413, "body_too_large", NULL,
                         "the body has %.20s bytes, at most %lld are taken", length,
                         (long long)exchange_body_most(x));
    return x->h->site->admits(s, x->route, f);
}

static void dispatch(struct exchange *x)
{
    struct server *s = x->h->s;
    struct fault f = {0};
    x->dispatched = 1;
    pthread_mutex_lock(&x->h->lock);
    peers_waits(x->h->peers, peer_of(x->c));
    pthread_mutex_unlock(&x->h->lock);
    if (x->too_large) {
        fault_set(&f, 413, "body_too_large", NULL, "the body has more than %lld bytes",
                  (long long)exchange_body_most(x));
        exchange_fault(x, &f);
    } else if (x->crowded) {
        fault_set(&f, 429, "queue_full", NULL,
                  "other requests that are being read or wait leave no memory for this one; try "
                  "again later, or send fewer at a time");
        f.retry_after = 2;
        exchange_fault(x, &f);
    } else if (x->route->flags & ROUTE_DIRECT) {
        x->route->handle(s, x);
    } else {
        exchange_hold(x); /* the handler drops it */
        if (!work_push(server_work(s), x->h->site->handle, s, x, &f)) {
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
        x->waits = clock_now();
    } else if (atomic_load(&x->gone)) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (x->fill && (n = (ssize_t)x->fill(x->ctx, buf, max)) > 0) {
        x->sent += (size_t)n;
        x->waits = clock_now();
    } else if (x->ended) {
        exchange_poured(x);
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
    char cut[512]; /* clients read so much of a header */
    if (x->ignored)
        MHD_add_response_header(r, "x-pith-ignored", exchange_ignored(x, sizeof cut, cut));
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

/* Headers, and the body or how to get it. Without a lock: what is begun does not change, and bytes
 * of a live one have their own. */
static enum MHD_Result answer(struct exchange *x)
{
    struct MHD_Response *r =
        x->live ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_live, x, NULL)
                : MHD_create_response_from_buffer(x->n_out, x->out ? x->out : (char *)"",
                                                  MHD_RESPMEM_PERSISTENT);
    if (!r)
        return MHD_NO;
    add_headers(x, r);
    enum MHD_Result ok = MHD_queue_response(x->c, (unsigned)x->status, r);
    pthread_mutex_lock(&x->lock);
    if (!x->live)
        x->sent = x->n_out;
    x->queued = 1;
    x->waits = clock_now();
    pthread_mutex_unlock(&x->lock);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *path,
                                  const char *method, const char *version, const char *data,
                                  size_t *n_data, void **con_cls)
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
            exchange_begin(x, 200, NULL, 0, NULL);
            exchange_end(x);
        }
        return answer(x);
    }
    if (*n_data) {
        exchange_feed(x, data, *n_data);
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

static void on_completed(void *cls, struct MHD_Connection *c, void **con_cls,
                         enum MHD_RequestTerminationCode code)
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
    peers_answered(h->peers, peer_of(c));
    pthread_mutex_unlock(&h->lock);
    pthread_mutex_lock(&x->lock);
    x->c = NULL;
    x->fd = -1;
    atomic_store(&x->gone, 1);
    struct figures figures = x->figures;
    pthread_mutex_unlock(&x->lock);
    if (x->tenant && x->route && x->route->endpoint)
        account_ended(x->tenant, &figures);
    exchange_log(x, &figures);
    exchange_drop(x);
}

/* ---------------------------------------------------------------- life */

static void say(void *cls, const char *fmt, va_list ap)
{
    (void)cls;
    (void)fmt;
    (void)ap; /* what clients do wrong is no news */
}

static struct MHD_Daemon *start(struct http *h, const struct server_params *p)
{
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC |
                     MHD_USE_ERROR_LOG;
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_KEY, 0, unconst(p->tls_key)},
        {MHD_OPTION_HTTPS_MEM_CERT, 0, unconst(p->tls_cert)},
        {MHD_OPTION_END, 0, NULL},
    };
    struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    flags |= MHD_is_feature_supported(MHD_FEATURE_EPOLL) == MHD_YES ? MHD_USE_EPOLL : MHD_USE_POLL;
    if (p->tls_cert)
        flags |= MHD_USE_TLS;
    return MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, h, MHD_OPTION_EXTERNAL_LOGGER, say, NULL,
        MHD_OPTION_LISTEN_SOCKET, h->listen_fd, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)peers_descriptors(h->peers), MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)IDLE_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADER_BYTES,
        MHD_OPTION_ARRAY, p->tls_cert ? tls : none, MHD_OPTION_END);
}

/* Each connection is a descriptor, and the usual limit is meant for programs that use select(). */
static int raise_files(int n, struct pith_error *err)
{
    struct rlimit r;
    rlim_t want = (rlim_t)n + OTHER_FILES;
    if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur == RLIM_INFINITY || r.rlim_cur >= want)
        return 1;
    r.rlim_cur = r.rlim_max == RLIM_INFINITY || r.rlim_max >= want ? want : r.rlim_max;
    if (r.rlim_cur == want && !setrlimit(RLIMIT_NOFILE, &r))
        return 1;
    err->code = PITH_RANGE;
    snprintf(err->msg, sizeof err->msg,
             "--max-connections and what else is open may need %llu descriptors, the system allows "
             "%llu (ulimit -Hn); give a lower number",
             (unsigned long long)want, (unsigned long long)r.rlim_max);
    return 0;
}

struct http *http_open(struct server *s, const struct site *site, const struct server_params *p,
                       struct pith_error *err)
{
    struct http *h = calloc(1, sizeof *h);
    if (!h) {
        *err = (struct pith_error){PITH_NOMEM, "out of memory for the server"};
        return NULL;
    }
    h->s = s;
    h->site = site;
    h->resume = MHD_resume_connection;
    pthread_mutex_init(&h->lock, NULL);
    h->peers = peers_open(p->connections,
                          tenants_have_keys(server_tenants(s)) ? p->connections_unknown
                                                               : p->connections);
    if (!h->peers || !raise_files(peers_descriptors(h->peers), err)) {
        if (!h->peers)
            *err = (struct pith_error){PITH_NOMEM, "out of memory for the server"};
        http_close(h);
        return NULL;
    }
    if (p->tls_cert && MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES) {
        http_fail(err, "TLS", "this libmicrohttpd was built without it");
        http_close(h);
        return NULL;
    }
    h->listen_fd = http_listen(h, p, err);
    h->daemon = h->listen_fd >= 0 ? start(h, p) : NULL;
    if (h->listen_fd >= 0 && !h->daemon)
        http_fail(err, h->url,
                  p->tls_cert ? "cannot serve; is the certificate that of the key?"
                              : "cannot serve");
    h->watching = h->daemon && !pthread_create(&h->watch, NULL, http_watch, h);
    if (h->daemon && !h->watching)
        http_fail(err, h->url, "no thread to look after those who wait");
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

void http_drain(struct http *h, int64_t deadline)
{
    int64_t since = clock_now();
    for (int any = 1; any && clock_now() < deadline;) {
        any = 0;
        pthread_mutex_lock(&h->lock);
        for (struct exchange *x = h->first; x; x = x->next) {
            pthread_mutex_lock(&x->lock);
            any |= x->began < since && atomic_load(&x->dispatched) && !atomic_load(&x->gone);
            pthread_mutex_unlock(&x->lock);
        }
        pthread_mutex_unlock(&h->lock);
        if (any)
            poll(NULL, 0, DRAIN_MS);
    }
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
        exchange_wake(x);
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
    peers_close(h->peers);
    free(h);
}
