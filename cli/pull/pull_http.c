/* pull_http.c -- see pull_http.h. */
#include "cli/pull/pull_http.h"

#include <curl/curl.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "cli/cli.h"
#include "cli/models/names.h"

enum { MOST_REDIRECTS = 10, MOST_OF_ERROR = 1 << 16 };
/* Allowed schemes as text, from 7.85 on, and as bits (1 http, 2 https) before. */
enum { CURL_PROTOCOLS_STR = 10318, CURL_PROTOCOLS = 181 };

/* libcurl brings some thirty libraries along, so it is opened by the first command that fetches
 * something, and a program runs where it is not installed. */
#define CURL_FUNCTIONS(X)                                                                          \
    X(easy_cleanup)                                                                                \
    X(easy_init) X(easy_perform) X(easy_reset) X(easy_setopt) X(easy_strerror) X(free) X(getdate)  \
        X(global_cleanup) X(global_init) X(slist_append) X(slist_free_all) X(url) X(url_cleanup)   \
            X(url_get) X(url_set)
#define FUNCTION(name) __typeof__(curl_##name) *name;
static struct {
    CURL_FUNCTIONS(FUNCTION)
} lib;
#undef FUNCTION

int http_library(char *why, size_t cap)
{
    static const char *const names[] = {"libcurl-gnutls.so.4", "libcurl.so.4"};
    void *file = NULL;
    if (lib.url_set) /* the last of the list */
        return 1;
    for (size_t i = 0; i < sizeof names / sizeof *names && !file; i++)
        file = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!file) {
        snprintf(why, cap,
                 "fetching needs libcurl, which is not installed (Debian: apt-get install "
                 "libcurl3-gnutls)");
        return 0;
    }
#define FUNCTION(name) &&(lib.name = (__typeof__(lib.name))dlsym(file, "curl_" #name))
    if (!(1 CURL_FUNCTIONS(FUNCTION))) {
        snprintf(why, cap, "this libcurl is older than 7.63: %s", dlerror());
        dlclose(file);
        return 0;
    }
#undef FUNCTION
    return 1;
}

struct http_client {
    CURL *curl;
    const struct http_request *q;
    struct http_answer *a;
    int is_heard,    /* a server has said something since this was opened */
        nobody;      /* none has, and there is none */
    int is_first;    /* the server that was asked, not one it sent us to */
    size_t n_thrown; /* bytes of an answer nobody reads */
    int stopped;     /* by on_data */
    int stalled;
    curl_off_t n_got; /* bytes so far */
    double got_at;    /* when the last came */
    char why[CURL_ERROR_SIZE];
};

struct http_client *http_client_open(void)
{
    struct http_client *h = calloc(1, sizeof *h);
    if (h && (lib.global_init(CURL_GLOBAL_DEFAULT) || !(h->curl = lib.easy_init()))) {
        free(h);
        return NULL;
    }
    return h;
}

void http_client_close(struct http_client *h)
{
    if (!h)
        return;
    lib.easy_cleanup(h->curl);
    lib.global_cleanup();
    free(h);
}

/* ---------------------------------------------------------------- what comes back */

/* The value of a header line when it has this name, NULL else; *n without blanks around it. */
static const char *header(const char *line, size_t n_line, const char *name, size_t *n)
{
    size_t len = strlen(name);
    if (n_line <= len || strncasecmp(line, name, len) || line[len] != ':')
        return NULL;
    const char *p = line + len + 1, *end = line + n_line;
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    while (end > p && (unsigned char)end[-1] <= ' ')
        end--;
    *n = (size_t)(end - p);
    return p;
}

static void keep(const char *line, size_t n_line, const char *name, char *out, size_t cap)
{
    size_t n;
    const char *p = header(line, n_line, name, &n);
    if (!p || n >= cap)
        return;
    for (size_t i = 0; i < n; i++) /* it may be shown on a terminal */
        out[i] = (char)((unsigned char)p[i] < 0x20 || p[i] == 0x7F ? ' ' : p[i]);
    out[n] = 0;
}

static void keep_number(const char *line, size_t n_line, const char *name, int64_t *out)
{
    char text[32] = "";
    keep(line, n_line, name, text, sizeof text);
    if (*text && strspn(text, "0123456789") == strlen(text) && strlen(text) < 19)
        *out = strtoll(text, NULL, 10);
}

/* "bytes 5-9/10", "bytes 5-9/" "*", "bytes " "*" "/10" */
static void keep_range(const char *line, size_t n, struct http_answer *a)
{
    char text[96] = "";
    long long from, to, total;
    keep(line, n, "Content-Range", text, sizeof text);
    if (sscanf(text, "bytes %19lld-%19lld/%19lld", &from, &to, &total) == 3 && from >= 0 &&
        from <= to && to < total) {
        a->from = from;
        a->total = total;
    } else if (sscanf(text, "bytes %19lld-%19lld/*", &from, &to) == 2 && from >= 0 && from <= to) {
        a->from = from;
    } else if (sscanf(text, "bytes */%19lld", &total) == 1 && total >= 0) {
        a->total = total;
    }
}

/* Seconds or a date. */
static void keep_retry_after(const char *line, size_t n, struct http_answer *a)
{
    char text[64] = "";
    keep(line, n, "Retry-After", text, sizeof text);
    if (!*text)
        return;
    time_t at = strspn(text, "0123456789") == strlen(text) ? -1 : lib.getdate(text, NULL);
    double wait = at >= 0 ? difftime(at, time(NULL)) : strtod(text, NULL);
    a->retry_after = wait > 0 ? wait : 0;
}

static void keep_sha256(const char *line, size_t n, struct http_answer *a)
{
    char text[80] = "";
    keep(line, n, "X-Linked-ETag", text, sizeof text);
    const char *hex = text + (*text == '"');
    if (strspn(hex, "0123456789abcdef") == 64)
        snprintf(a->sha256, sizeof a->sha256, "%.64s", hex);
}

static void forget(struct http_answer *a, int all)
{
    char sha256[65];
    memcpy(sha256, a->sha256, sizeof sha256);
    *a = (struct http_answer){.from = -1, .total = -1, .retry_after = -1};
    if (!all)
        memcpy(a->sha256, sha256, sizeof sha256);
}

static size_t on_header(char *p, size_t one, size_t n, void *ctx)
{
    struct http_client *h = ctx;
    struct http_answer *a = h->a;
    n *= one;
    h->is_heard = 1;
    if (n > 5 && !memcmp(p, "HTTP/", 5)) { /* also behind an interim answer */
        const char *blank = memchr(p, ' ', n);
        forget(a, 0);
        for (const char *d = blank ? blank + 1 : p + n;
             d < p + n && *d >= '0' && *d <= '9' && a->status < 100; d++)
            a->status = 10 * a->status + *d - '0';
        return n;
    }
    if (a->status == 200)
        keep_number(p, n, "Content-Length", &a->total);
    if (a->status == 206 || a->status == 416)
        keep_range(p, n, a);
    keep(p, n, "ETag", a->etag, sizeof a->etag);
    keep(p, n, "Last-Modified", a->modified, sizeof a->modified);
    keep(p, n, "Location", a->location, sizeof a->location);
    keep(p, n, "X-Error-Message", a->message, sizeof a->message);
    keep_retry_after(p, n, a);
    if (h->is_first)
        keep_sha256(p, n, a);
    return n;
}

static size_t on_body(char *p, size_t one, size_t n, void *ctx)
{
    struct http_client *h = ctx;
    n *= one;
    if (h->a->status != 200 && h->a->status != 206) {
        h->n_thrown += n;
        return h->n_thrown > MOST_OF_ERROR ? 0 : n;
    }
    h->stopped = !h->q->on_data(h->q->ctx, h->a, p, n);
    return h->stopped ? 0 : n;
}

static int on_progress(void *ctx, curl_off_t down_total, curl_off_t down, curl_off_t up_total,
                       curl_off_t up)
{
    struct http_client *h = ctx;
    double now = cli_seconds();
    (void)down_total, (void)up_total, (void)up;
    if (down != h->n_got) {
        h->n_got = down;
        h->got_at = now;
    }
    if (h->q->on_tick)
        h->q->on_tick(h->q->ctx);
    h->stalled = now - h->got_at > h->q->timeout;
    return h->stalled || interrupt_asked();
}

/* ---------------------------------------------------------------- where requests go */

/* Scheme, host and port in one text. 0: no address of ours. */
static int origin(const char *url, char *out, size_t cap)
{
    CURLU *u = lib.url();
    char *scheme = NULL, *host = NULL, *port = NULL, *user = NULL;
    int good = u && !lib.url_set(u, CURLUPART_URL, url, 0) &&
               !lib.url_get(u, CURLUPART_SCHEME, &scheme, 0) &&
               !lib.url_get(u, CURLUPART_HOST, &host, 0) &&
               !lib.url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) &&
               lib.url_get(u, CURLUPART_USER, &user, 0) == CURLUE_NO_USER &&
               strlen(host) + 32 < cap;
    if (good)
        snprintf(out, cap, "%s://%s:%s", scheme, host, port);
    lib.free(scheme);
    lib.free(host);
    lib.free(port);
    lib.free(user);
    lib.url_cleanup(u);
    return good && (!strncasecmp(out, "https://", 8) ||
                    (!strncasecmp(out, "http://", 7) && url_is_loopback(out)));
}

int http_same_origin(const char *a, const char *b)
{
    char x[1024], y[1024];
    return a && b && origin(a, x, sizeof x) && origin(b, y, sizeof y) && !strcasecmp(x, y);
}

/* The address a redirect leads to, relative ones too (malloc). NULL: not one to follow. */
static char *follow(const char *url, const char *location)
{
    CURLU *u = lib.url();
    char *next = NULL, *copy = NULL, at[1024];
    if (u && *location && !lib.url_set(u, CURLUPART_URL, url, 0) &&
        !lib.url_set(u, CURLUPART_URL, location, CURLU_URLENCODE))
        lib.url_get(u, CURLUPART_URL, &next, 0);
    lib.url_cleanup(u);
    if (next && origin(next, at, sizeof at) &&
        (!strncasecmp(at, "https:", 6) || !strncasecmp(url, "http:", 5)))
        copy = strdup(next);
    lib.free(next);
    return copy;
}

/* ---------------------------------------------------------------- one request */

static void add(struct curl_slist **list, const char *name, const char *value)
{
    char line[8192];
    int n = snprintf(line, sizeof line, "%s: %s", name, value);
    struct curl_slist *more = n < (int)sizeof line ? lib.slist_append(*list, line) : NULL;
    *list = more ? more : *list;
}

/* No such host, or nobody who listens there. A name that is mistyped stays so. */
static int nobody_is_there(CURLcode rc)
{
    return rc == CURLE_COULDNT_RESOLVE_HOST || rc == CURLE_COULDNT_RESOLVE_PROXY ||
           rc == CURLE_COULDNT_CONNECT;
}

static enum http_end end_of(struct http_client *h, CURLcode rc)
{
    if (h->nobody)
        return HTTP_REFUSED;
    switch (rc) {
    case CURLE_OK:
        return HTTP_DONE;
    case CURLE_WRITE_ERROR:
        return h->stopped ? HTTP_STOPPED : HTTP_DONE; /* enough of an error's page */
    case CURLE_ABORTED_BY_CALLBACK:
        return h->stalled ? HTTP_BROKEN : HTTP_STOPPED;
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CIPHER:
    case CURLE_OUT_OF_MEMORY:
    case CURLE_BAD_FUNCTION_ARGUMENT:
        return HTTP_REFUSED;
    default:
        return HTTP_BROKEN;
    }
}

static enum http_end request(struct http_client *h, const char *url)
{
    const struct http_request *q = h->q;
    CURL *c = h->curl;
    struct curl_slist *headers = NULL;
    char from[32];
    lib.easy_reset(c);
    lib.easy_setopt(c, CURLOPT_URL, url);
    /* By number: which of the two there is depends on the library that is found, not on our
     * headers. */
    if (lib.easy_setopt(c, (CURLoption)CURL_PROTOCOLS_STR, "http,https"))
        lib.easy_setopt(c, (CURLoption)CURL_PROTOCOLS, 3L);
    lib.easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    lib.easy_setopt(c, CURLOPT_USERAGENT, "pith");
    lib.easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    lib.easy_setopt(c, CURLOPT_ERRORBUFFER, h->why);
    lib.easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    lib.easy_setopt(c, CURLOPT_HEADERDATA, h);
    lib.easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    lib.easy_setopt(c, CURLOPT_WRITEDATA, h);
    lib.easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    lib.easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    lib.easy_setopt(c, CURLOPT_XFERINFODATA, h);
    lib.easy_setopt(c, CURLOPT_BUFFERSIZE, 256L << 10);
    lib.easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS,
                    (long)(1000 * (q->timeout < 30 ? q->timeout : 30)));
    if (url_is_loopback(url))
        lib.easy_setopt(c, CURLOPT_NOPROXY, "*"); /* what is meant for this machine stays on it */
    if (q->accept)
        add(&headers, "Accept", q->accept);
    if (q->from > 0) {
        snprintf(from, sizeof from, "%lld-", (long long)q->from);
        lib.easy_setopt(c, CURLOPT_RANGE, from);
        if (q->if_range && *q->if_range)
            add(&headers, "If-Range", q->if_range);
    }
    if (q->token && http_same_origin(url, q->origin)) {
        char bearer[4096];
        if (snprintf(bearer, sizeof bearer, "Bearer %s", q->token) < (int)sizeof bearer)
            add(&headers, "Authorization", bearer);
    }
    lib.easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    h->n_thrown = 0;
    h->stopped = h->stalled = 0;
    h->n_got = 0;
    h->got_at = cli_seconds();
    *h->why = 0;
    forget(h->a, h->is_first);
    CURLcode rc = lib.easy_perform(c);
    if (h->stalled)
        snprintf(h->why, sizeof h->why, "nothing came for %.3g s", q->timeout);
    else if (rc && !*h->why)
        snprintf(h->why, sizeof h->why, "%s", lib.easy_strerror(rc));
    h->nobody = nobody_is_there(rc) && !h->is_heard;
    lib.easy_setopt(c, CURLOPT_HTTPHEADER, NULL);
    lib.slist_free_all(headers);
    return end_of(h, rc);
}

enum http_end http_client_get(struct http_client *h, const struct http_request *q,
                              struct http_answer *a, char *why, size_t cap)
{
    char at[1024];
    char *url = origin(q->url, at, sizeof at) ? strdup(q->url) : NULL;
    enum http_end end = HTTP_REFUSED;
    h->q = q;
    h->a = a;
    forget(a, 1);
    if (!url)
        snprintf(
            why, cap,
            "%s: wanted an https address (http on this machine alone) without user or password",
            q->url);
    for (int i = 0; url; i++) {
        h->is_first = i == 0;
        end = request(h, url);
        if (end != HTTP_DONE)
            snprintf(why, cap, "%s%s", h->why,
                     h->nobody ? "; check the address and the network: nothing has come yet, so "
                                 "there is no other try"
                               : "");
        if (end != HTTP_DONE || a->status < 300 || a->status > 399 || a->status == 304)
            break;
        char *next = i < MOST_REDIRECTS ? follow(url, a->location) : NULL;
        end = HTTP_REFUSED;
        if (i == MOST_REDIRECTS)
            snprintf(why, cap, "redirected for the %dth time, to \"%.200s\"", i + 1, a->location);
        else if (!next)
            snprintf(
                why, cap,
                "redirected to \"%.200s\", where we do not go: wanted https, no user or password",
                a->location);
        free(url);
        url = next;
    }
    free(url);
    return end;
}
