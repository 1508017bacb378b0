/* check_pages.h -- the page accounting of a session: every place is counted once for each table and
 * each entry of the store that names it, a quarter in use is marked as such, free pages are on the
 * list, and the limit is kept. */
#ifndef PITH_TESTS_CHECK_PAGES_H
#define PITH_TESTS_CHECK_PAGES_H

#include "run/session/session.h"
#include "test.h"

static int32_t *count_refs(const struct pith_session *s, int g)
{
    const struct cache *c = &s->cache;
    int32_t *refs = calloc((size_t)c->group[g].n_made * STEP_QUARTERS + 1, sizeof *refs);
    for (int32_t q = 0; q < c->n_seq; q++)
        for (int32_t i = 0; i < c->cap_pages; i++)
            if (c->seq[q].pages[g][i] >= 0)
                refs[c->seq[q].pages[g][i]]++;
    for (int32_t i = 0; i < s->store.cap; i++)
        if (s->store.entry[i].used && s->store.entry[i].page[g] >= 0)
            refs[s->store.entry[i].page[g]]++;
    return refs;
}

/* `what` and `why`: whose pages, after what. */
static void check_pages(const struct pith_session *s, const char *what, const char *why)
{
    for (int g = 0; g < s->cache.n_groups; g++) {
        const struct cache_group *p = &s->cache.group[g];
        int32_t *refs = count_refs(s, g), n_free = 0, n_open = 0;
        for (int32_t i = 0; i < p->n_made; i++) {
            int32_t used = 0;
            for (int32_t k = 0; k < STEP_QUARTERS; k++) {
                int32_t n = refs[STEP_QUARTERS * i + k];
                used |= (n > 0) << k;
                CHECK_MSG(n == p->refs[STEP_QUARTERS * i + k],
                          "%s: quarter %d of page %d is counted %d times, used %d:%s", what, k, i,
                          p->refs[STEP_QUARTERS * i + k], n, why);
            }
            n_free += !used;
            n_open += p->parts[i] && used != (1 << STEP_QUARTERS) - 1;
            CHECK_MSG(p->parts[i] ? p->parts[i] == used : used <= 1,
                      "%s: parts %x of page %d, used %x:%s", what, p->parts[i], i, used, why);
        }
        CHECK_MSG(n_free == p->n_free && n_open == p->n_open,
                  "%s: %d pages are free and %d open, on the lists %d and %d:%s", what, n_free,
                  n_open, p->n_free, p->n_open, why);
        CHECK_MSG(p->n_made - p->n_free <= p->n_pages && p->n_made <= p->n_pages + p->n_spare,
                  "%s: %d pages made, %d free, the limit is %d (%d lent):%s", what, p->n_made,
                  p->n_free, p->n_pages, p->n_lent, why);
        free(refs);
    }
}

#endif
