/* exchange.h -- a request of HTTP and its answer. */
#ifndef PITH_SERVER_HTTP_EXCHANGE_H
#define PITH_SERVER_HTTP_EXCHANGE_H

#include "server/json.h"
#include <stdatomic.h>

struct exchange;
struct hosted;
struct route;
struct server;
struct tenant;

const char *exchange_body(const struct exchange *x, size_t *n);
/* The body as JSON, parsed once; the caller's (a reference). NULL with *f. By the thread that
 * answers. */
json_t *exchange_tree(struct exchange *x, struct fault *f);
void exchange_forget(struct exchange *x,
                     int body); /* frees the tree, and the body; by who answers */
const char *exchange_query(const struct exchange *x);  /* model of ?model=, "" */
const char *exchange_action(const struct exchange *x); /* action of ?action=, "" */
int exchange_wants_slot(const struct exchange *x);     /* ?fail_on_no_slot=1 */
const struct route *exchange_route(const struct exchange *x);
/* The model asked for, loaded and held until the handler returns; sched_submit holds it for its
 * requests. NULL: *f says why. */
struct hosted *exchange_model(struct exchange *x, struct fault *f);
void exchange_give_model(struct exchange *x, struct hosted *m, const struct fault *why);
struct server *exchange_server(const struct exchange *x);
struct tenant *exchange_tenant(const struct exchange *x);
const char *exchange_id(const struct exchange *x); /* "req-..." */
int64_t exchange_began(const struct exchange *x);
int64_t exchange_deadline(const struct exchange *x); /* clock_now(), 0: none; as far as it has been
                                                        read, else the server's limit */
void exchange_set_deadline(struct exchange *x, int64_t deadline);
/* When a request that may take so many seconds is given up (0: it does not say; the server's
 * limit); 0: never. */
int64_t exchange_within(const struct exchange *x, double seconds);
const char *exchange_path(const struct exchange *x);
const atomic_int *exchange_gone(const struct exchange *x); /* becomes 1 when the client has left */
void exchange_hold(struct exchange *x);
void exchange_drop(struct exchange *x);
/* The answer. begin: status and type are known; the first call decides (1). `live` sends the
 * headers at once and the body as it is written (what was written before comes first), with `pulse`
 * (NULL: none) when nothing was written for as long as exchange_pulse said; otherwise the body is
 * what is written from here.
 * end: it is whole. From any thread. */
int exchange_begin(struct exchange *x, int status, const char *type, int live, const char *pulse);
void exchange_pulse(struct exchange *x, int64_t seconds); /* before begin */
void exchange_retry_after(struct exchange *x, int seconds); /* before begin */
/* What of the request the answer does not regard: told in the header x-pith-ignored, and in the
 * log, which has up to 16 KiB of it. Before begin; x NULL: nowhere. */
void exchange_ignores(struct exchange *x, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* The list of them, in less than `most` bytes: cut between two of them into cut, with "..." at its
 * end, if that is too few. */
const char *exchange_ignored(const struct exchange *x, size_t most, char *cut);
void exchange_header(struct exchange *x, const char *name,
                     const char *value); /* before begin; at most 4, name a constant */
const char *
exchange_asked(const struct exchange *x,
               const char *name); /* a header of the request, NULL; on the thread of HTTP */
void exchange_write(struct exchange *x, const char *p, size_t n);
void exchange_keep(struct exchange *x, void *p); /* for what is pushed for it (work_push) */
void *exchange_kept(const struct exchange *x);
/* An answer that is made as it is taken: fill writes the next bytes, at most max (4096 at least),
 * 0: that was all. On the thread of HTTP, with no lock but the exchange's. ctx, of so many bytes,
 * is freed with done. The first call that begins decides (0: ctx is freed). */
int exchange_pour(struct exchange *x, const char *type,
                  size_t (*fill)(void *ctx, char *buf, size_t max), void (*done)(void *ctx),
                  void *ctx, int64_t bytes);
void exchange_end(struct exchange *x);
void exchange_break(
    struct exchange *x); /* it cannot be whole: the connection ends in the middle of it */
void exchange_json(struct exchange *x, int status,
                   json_t *body); /* all of it; takes body, NULL or json_lost(): out of memory */
void exchange_text(struct exchange *x, int status,
                   char *json); /* the same of JSON as text (malloc) */
json_t *exchange_fault_json(const struct exchange *x,
                            const struct fault *f); /* in the shape of its route */
void exchange_fault(struct exchange *x, const struct fault *f);
/* For the access log. */
struct figures {
    int64_t n_prompt, n_cached, n_made, queue_ns, first_ns;
    int64_t made_ns;    /* from the first token to the last so far */
    int64_t differs_at; /* where the prompt left what was known of it, -1: nowhere */
    int32_t known;      /* the token there */
    /* What was asked for: n_choices 0: no text; n_max <= 0: as the context allows. */
    int64_t n_choices, n_max;
    double temperature, top_p;
};
void exchange_figures(struct exchange *x, const struct figures *f);

#endif
