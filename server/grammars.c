/* grammars.c -- a list of compiled grammars, the one used last in front. Their texts are compared whole, so no two are ever taken for each other.
 * What they hold grows as their masks are made: the list is made shorter when something is put into it, from its end, until what it has fits.
 * One that is dropped here lives on while a request has a position in it. */
#include "grammars.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "metrics.h"

struct kept {
    struct kept *next;
    pith_grammar *grammar;
    pith_grammar_kind kind;
    size_t n;
    char text[];
};
struct grammars {
    pthread_mutex_t lock;
    struct kept *first;
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

static void drop(struct kept *e)
{
    pith_grammar_close(e->grammar);
    free(e);
}

void grammars_close(struct grammars *k)
{
    if (!k)
        return;
    for (struct kept *e = k->first, *next; e; e = next) {
        next = e->next;
        drop(e);
    }
    pthread_mutex_destroy(&k->lock);
    free(k);
}

/* Takes it to the front. NULL: it is not there. */
static struct kept *find(struct grammars *k, pith_grammar_kind kind, const char *text, size_t n)
{
    for (struct kept **at = &k->first, *e; (e = *at); at = &e->next) {
        if (e->kind != kind || e->n != n || memcmp(e->text, text, n))
            continue;
        *at = e->next;
        e->next = k->first;
        return k->first = e;
    }
    return NULL;
}

static uint64_t bytes_of(const struct kept *e)
{
    return sizeof *e + e->n + pith_grammar_bytes(e->grammar);
}

/* What does not fit any more, as a list. */
static struct kept *shorten(struct grammars *k)
{
    uint64_t sum = 0;
    for (struct kept **at = &k->first; *at; at = &(*at)->next) {
        sum += bytes_of(*at);
        if (sum <= k->most_bytes)
            continue;
        struct kept *out = *at;
        *at = NULL;
        return out;
    }
    return NULL;
}

static void keep(struct grammars *k, pith_grammar_kind kind, const char *text, size_t n, const pith_grammar *g)
{
    struct kept *e = malloc(sizeof *e + n), *out;
    if (!e || !(e->grammar = pith_grammar_clone(g, NULL))) {
        free(e);
        return;
    }
    e->kind = kind;
    e->n = n;
    memcpy(e->text, text, n);
    pthread_mutex_lock(&k->lock);
    if (find(k, kind, text, n)) { /* another thread was faster */
        e->next = NULL;
        out = e;
    } else {
        e->next = k->first;
        k->first = e;
        out = shorten(k);
    }
    pthread_mutex_unlock(&k->lock);
    for (struct kept *next; out; out = next) {
        next = out->next;
        drop(out);
    }
}

pith_grammar *grammars_get(struct hosted *m, pith_grammar_kind kind, const char *text, size_t n, uint64_t mask_bytes, struct pith_error *err)
{
    struct grammars *k = m->grammars;
    text = text ? text : "";
    pthread_mutex_lock(&k->lock);
    struct kept *e = find(k, kind, text, n);
    pith_grammar *g = e ? pith_grammar_clone(e->grammar, err) : NULL;
    pthread_mutex_unlock(&k->lock);
    metrics_add(m->metrics, e ? M_GRAMMAR_HITS : M_GRAMMARS, 1);
    if (e)
        return g;
    struct pith_grammar_params p = PITH_GRAMMAR_PARAMS_INIT;
    p.cache_bytes = mask_bytes;
    p.schema_order = m->server->p.schema_order;
    g = pith_grammar_open(m->model, kind, text, n, &p, err);
    if (g && pith_grammar_prepare(g, err) != PITH_OK) {
        pith_grammar_close(g);
        return NULL;
    }
    if (g && k->most_bytes)
        keep(k, kind, text, n, g);
    return g;
}
