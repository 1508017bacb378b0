/* json.h -- what goes wrong with a request, JSON, and the clock. The lowest header of the
 * server. */
#ifndef PITH_SERVER_JSON_H
#define PITH_SERVER_JSON_H

#include <jansson.h>
#include <pith.h>
#include <stddef.h>
#include <stdint.h>
#include "server/unconst.h"

/* What goes wrong with a request. msg says what was found, what was wanted, what to do. */
struct fault {
    int http;         /* status, 0: none */
    int retry_after;  /* seconds, 0: not said */
    const char *code; /* "context_length_exceeded" */
    char param[64];   /* the field, "" for none */
    char msg[512];
    int64_t n_prompt, n_ctx, n_over; /* of context_length_exceeded */
    double progress;                 /* of model_loading, 0 to 1 */
};
/* Returns 0, so that it can be returned. param may be NULL. */
int fault_set(struct fault *f, int http, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
int fault_from(struct fault *f, const struct pith_error *err, const char *param); /* by status */
int fault_memory(struct fault *f);
int fault_stopped(struct fault *f); /* 1: what this thread does was stopped, and *f says why */
void fault_answers(void);           /* what it does from now on is the answer to that */
int fault_shutting_down(struct fault *f);
const char *fault_type(const struct fault *f);  /* "invalid_request_error" */

/* Of a value that is only looked at, or held on to: jansson counts references in it, and walks
 * through members, as json_t * alone. Nobody changes what it is given so. */
static inline json_t *json_lent(const json_t *v)
{
    return (json_t *)unconst(v);
}
json_t *fault_json(const struct fault *f);      /* the shape of OpenAI's errors */

/* ---------------------------------------------------------------- JSON */

enum { JSON_DEPTH = 128 };
/* A body as JSON; nested deeper than JSON_DEPTH is refused before it is parsed. */
json_t *json_read(const char *p, size_t n, struct fault *f);
/* What was found where something else was wanted: "an object", a number or the beginning of a text
 * as it is; NULL: "missing". */
const char *json_found_in(const json_t *v, char buf[64]);
#define json_found(v) json_found_in(v, (char[64]){0}) /* lives as long as the block */
json_t *json_float(float x);                          /* 0.8f as 0.8 */
json_t *json_nine(double x);                          /* 9 digits, which tell a float */
json_t *json_text(const char *p, size_t n);           /* bytes that are no UTF-8 become U+FFFD */
/* The texts of a list as one, or those that its objects have under a key. NULL: one of them is no
 * text, or out of memory. */
json_t *json_joined(const json_t *list, const char *key);
/* As text (malloc), compact, with numbers that read back as the very same. NULL: out of memory. */
char *json_exact(const json_t *j);
/* Frees a text that jansson has made, of a value or of json_exact, and gives back what was counted
 * for it, which free() does not: where many are made by one job, or for one request. */
void json_drop(char *text);
/* About the bytes that a value has in memory, with all that is in it: what jansson takes for it. */
int64_t json_weight(const json_t *j);
/* What bounds the work that a thread does for a request (work.c); each asks about its own. */
struct json_bounds {
    int (*json)(size_t bytes, int taken); /* a block is taken (0: it may not be), or given back */
    int (*goes_on)(void);                 /* 0: it ends here */
    int (*why)(struct fault *f);          /* 1: it was stopped, and *f says why */
    void (*answers)(void); /* it has said why: what is allocated from now on is the answer */
};
/* jansson's callers cannot look at each of its allocations, so it tells their thread of those that
 * fail (from json_watch on, which is called first, once), as all of json.c does. Whether there was
 * one since this was asked last: what was made meanwhile has a hole. */
void json_watch(const struct json_bounds *b);
int json_lost(void);
/* What this thread allocates for JSON, less what it gives back, and what its texts grow by, is
 * added to it; NULL: nowhere. */
extern _Thread_local int64_t *json_meter;
/* n more bytes at the end of (*text)[*n_text]. 0: out of memory. */
int text_put(char **text, size_t *n_text, size_t *cap, const char *p, size_t n);
int64_t clock_now(void); /* monotonic ns */

#endif
