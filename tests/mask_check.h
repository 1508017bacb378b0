/* mask_check.h -- masks along a text beside what accepting every token one by one says. */
#ifndef PITH_TESTS_MASK_CHECK_H
#define PITH_TESTS_MASK_CHECK_H

#include "base/rng.h"
#include "test.h"
#include "text/grammar/grammar.h"

enum { MASK_VOCAB = 1024 }; /* most tokens */

/* Any allowed token that `skips` (NULL: none) does not name, or else the first; -1: there is none.
 */
static int32_t any_allowed(const struct vocab *v, const uint64_t *mask, uint64_t seed, int step,
                           int (*skips)(const struct vocab *, int32_t))
{
    int32_t chosen = -1, n = 0;
    for (int32_t id = 0; id < vocab_n(v); id++) {
        if (!(mask[id / 64] >> (id % 64) & 1))
            continue;
        int skipped = skips && skips(v, id);
        if ((!skipped && rng_uniform(seed, (uint64_t)step, (uint64_t)id) * ++n < 1) || chosen < 0)
            chosen = id;
    }
    return chosen;
}

/* At most so many steps of a text under a grammar; how many there were. */
static int check_masks(const struct vocab *v, const struct trie *t, int kind, const char *text,
                       uint64_t seed, int most,
                       int (*skips)(const struct vocab *v, int32_t id))
{
    struct pith_error err = {PITH_OK, ""};
    struct grammar_spec spec = {.kind = kind,
                                .text = slice_of(text),
                                .vocab = v,
                                .trie = t,
                                .trigger_token = -1,
                                .unsearched = 1,
                                .cache_bytes = seed % 2 ? 1 << 20 : 100};
    struct pith_grammar *g = grammar_new(&spec, &err);
    int step = 0;
    CHECK_MSG(g != NULL, "%s: %s", text, err.msg);
    for (; g && step < most && !test_bad; step++) {
        uint64_t mask[MASK_VOCAB / 64];
        const uint64_t *found = grammar_mask(g, &err);
        if (!found)
            break;
        memcpy(mask, found, ((size_t)vocab_n(v) + 63) / 64 * 8);
        for (int32_t id = 0; id < vocab_n(v); id++) {
            struct pith_grammar *next = grammar_clone(g, NULL);
            int ok = grammar_accept(next, id, NULL) == PITH_OK,
                may = (int)(mask[id / 64] >> (id % 64) & 1);
            CHECK_MSG(ok == may, "%s, step %d, token %d: mask %d, accept %d", text, step, id, may,
                      ok);
            grammar_free(next);
        }
        int32_t id = any_allowed(v, mask, seed, step, skips);
        if (id < 0 || grammar_accept(g, id, NULL) != PITH_OK)
            break;
    }
    grammar_free(g);
    return step;
}

#endif
