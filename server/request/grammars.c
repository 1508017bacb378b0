/* grammars.c -- compiled grammars, the one used last in front, found by a hash of what they were
 * made of: who brought it, how it is opened, its text. That is compared whole, so no two are ever
 * taken for each other. One that was refused is kept as well, as what was said of it: what it took
 * to find that out is not spent again. What they hold grows as their masks are made: the list is
 * made shorter when something is put into it, from its end, until what it has fits; it is never
 * long. One that is dropped here lives on while a request has a position in it. */
#include "server/request/grammars.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "server/http/auth.h"
#include "server/http/work.h"
#include "server/hosted.h"
#include "server/metrics.h"
#include "server/parts.h"

enum { MOST = 1024, BUCKETS = 2048 };

/* What tells one from others (malloc). */
struct name {
    size_t n;
    uint64_t hash;
    char bytes[];
};
struct kept {
    struct kept *next, *before; /* by use */
    struct kept *chain;         /* of a bucket */
    pith_grammar *grammar; /* NULL: it was refused, by */
    pith_status code;
    char *message; /* malloc */
    struct name *name;
};
struct grammars {
    pthread_mutex_t lock;
    struct kept *first;
    struct kept *bucket[BUCKETS];
    uint64_t most_bytes;
};

struct grammars *grammars_open(uint64_t most_bytes)
{
    struct grammars *k = calloc(1, sizeof *k);
    if (k) {
        pthread_mutex_init(&k->lock, NULL);
        k->most_bytes = most_bytes;
    }
    return k;
}

static void drop_all(struct kept *e)
{
    for (struct kept *next; e; e = next) {
        next = e->next;
        pith_grammar_close(e->grammar);
        free(e->message);
        free(e->name);
        free(e);
    }
}

void grammars_close(struct grammars *k)
{
    if (!k)
        return;
    drop_all(k->first);
    pthread_mutex_destroy(&k->lock);
    free(k);
}

/* ---------------------------------------------------------------- names */

struct head {
    int64_t who; /* -1: whoever */
    int64_t kind, use_token, token, again, order, only;
    int64_t calls_of;                              /* it lives as long as the list */
    int64_t n_text, n_trigger, n_prefix, n_schema; /* -1: there is none */
};

static int64_t length(const char *s)
{
    return s ? (int64_t)strlen(s) : -1;
}

static char *put(char *to, const char *p, int64_t n)
{
    if (n > 0)
        memcpy(to, p, (size_t)n);
    return n > 0 ? to + n : to;
}

/* NULL: out of memory. */
static struct name *name_of(struct hosted *m, const struct tenant *who, pith_grammar_kind kind,
                            const char *text, size_t n, const struct pith_grammar_params *p)
{
    const struct server *s = m->server;
    int apart = tenants_count(server_tenants(s)) > 1 && !server_told(s)->share_prefixes;
    struct head h = {.who = apart && who ? who->index : -1,
                     .kind = kind,
                     .use_token = p->use_trigger_token,
                     .token = p->use_trigger_token ? p->trigger_token : 0};
    h.again = p->again;
    h.order = p->schema_order;
    h.only = p->calls_only;
    h.calls_of = (int64_t)(intptr_t)p->calls_of;
    h.n_text = (int64_t)n;
    h.n_trigger = length(p->trigger);
    h.n_prefix = length(p->or_prefix);
    h.n_schema = length(p->or_schema);
    size_t all = sizeof h + n + (size_t)(h.n_trigger + h.n_prefix + h.n_schema + 3);
    struct name *name = malloc(sizeof *name + all);
    if (!name)
        return NULL;
    char *at = put(name->bytes, (const char *)&h, sizeof h);
    at = put(at, text, (int64_t)n);
    at = put(at, p->trigger, h.n_trigger);
    at = put(at, p->or_prefix, h.n_prefix);
    at = put(at, p->or_schema, h.n_schema);
    name->n = (size_t)(at - name->bytes);
    name->hash = XXH3_64bits_withSeed(name->bytes, name->n, (uint64_t)(uintptr_t)m->grammars);
    return name;
}

/* ---------------------------------------------------------------- the list, with the lock held */

static void put_first(struct grammars *k, struct kept *e)
{
    e->before = NULL;
    e->next = k->first;
    if (k->first)
        k->first->before = e;
    k->first = e;
}

/* Takes it to the front. NULL: it is not there. */
static struct kept *find(struct grammars *k, const struct name *name)
{
    struct kept *e = k->bucket[name->hash % BUCKETS];
    while (e && (e->name->hash != name->hash || e->name->n != name->n ||
                 memcmp(e->name->bytes, name->bytes, name->n)))
        e = e->chain;
    if (!e || e == k->first)
        return e;
    e->before->next = e->next;
    if (e->next)
        e->next->before = e->before;
    put_first(k, e);
    return e;
}

static uint64_t bytes_of(const struct kept *e)
{
    return sizeof *e + sizeof *e->name + e->name->n + pith_grammar_bytes(e->grammar) +
           (e->message ? strlen(e->message) + 1 : 0);
}

static void unchain(struct grammars *k, const struct kept *e)
{
    struct kept **at = &k->bucket[e->name->hash % BUCKETS];
    while (*at != e)
        at = &(*at)->chain;
    *at = e->chain;
}

/* What does not fit any more, as a list. */
static struct kept *shorten(struct grammars *k)
{
    uint64_t sum = 0;
    int n = 0;
    for (struct kept **at = &k->first; *at; at = &(*at)->next) {
        sum += bytes_of(*at);
        if (sum <= k->most_bytes && ++n <= MOST)
            continue;
        struct kept *out = *at;
        *at = NULL;
        for (const struct kept *e = out; e; e = e->next)
            unchain(k, e);
        return out;
    }
    return NULL;
}

/* Whether the same text would be refused again, whoever brings it and however much room there is.
 */
static int is_final(const struct pith_error *err)
{
    return !work_was_stopped() && (err->code == PITH_RANGE || err->code == PITH_FORMAT ||
                                   err->code == PITH_UNSUPPORTED || err->code == PITH_MISSING);
}

/* Takes the name. g NULL: it was refused. */
static void keep(struct grammars *k, struct name *name, const pith_grammar *g,
                 const struct pith_error *err)
{
    struct kept *e = calloc(1, sizeof *e), *out = e;
    if (e && g)
        e->grammar = pith_grammar_clone(g, NULL);
    else if (e)
        e->message = strdup(err->msg);
    if (!e || (!e->grammar && !e->message)) {
        free(e);
        free(name);
        return;
    }
    e->name = name;
    e->code = g ? PITH_OK : err->code;
    pthread_mutex_lock(&k->lock);
    if (!find(k, name)) { /* no other thread was faster */
        put_first(k, e);
        e->chain = k->bucket[name->hash % BUCKETS];
        k->bucket[name->hash % BUCKETS] = e;
        out = shorten(k);
    }
    pthread_mutex_unlock(&k->lock);
    drop_all(out);
}

/* ---------------------------------------------------------------- */

pith_grammar *grammars_get(struct hosted *m, const struct tenant *who, pith_grammar_kind kind,
                           const char *text, size_t n, const struct pith_grammar_params *p,
                           struct pith_error *err)
{
    struct grammars *k = m->grammars;
    struct name *name = name_of(m, who, kind, text, n, p);
    if (!name) {
        *err = (struct pith_error){PITH_NOMEM, "out of memory for a grammar"};
        return NULL;
    }
    pthread_mutex_lock(&k->lock);
    struct kept *e = find(k, name);
    pith_grammar *g = e && e->grammar ? pith_grammar_clone(e->grammar, err) : NULL;
    if (e && !e->grammar) {
        err->code = e->code;
        snprintf(err->msg, sizeof err->msg, "%s", e->message);
    }
    pthread_mutex_unlock(&k->lock);
    metrics_add(m->metrics, e ? M_GRAMMAR_HITS : M_GRAMMARS, 1);
    if (!e) {
        g = pith_grammar_open(m->model, kind, text ? text : "", n, p, err);
        if (g && pith_grammar_prepare(g, err) != PITH_OK) {
            pith_grammar_close(g);
            g = NULL;
        }
    }
    if (!e && k->most_bytes && (g || is_final(err)))
        keep(k, name, g, err);
    else
        free(name);
    return g;
}
