/* growth.c -- whether a grammar is read in ever more ways as its text grows (stacks.h).
 *
 *     texts of k bytes ──each by the first bytes of what may come──> texts of k + 1 bytes
 *         a few of them go on: by the steps of their last byte, of all, by depth
 *
 * Whether a grammar is ambiguous cannot be decided, but what a byte costs can be looked at: a
 * position is a set of stacks, and the steps from one to the next are those of every later token.
 * Where the costliest byte of such texts grows so fast that a text of GROWTH_TEXT bytes
 * would pass the bound of a token, the grammar is refused when it is compiled. What a search of
 * GROWTH_STEPS steps does not find is ended by the bound when it comes. */
#include "text/grammar/stacks.h"

#include <string.h>

#include "base/fmath.h"
#include "base/mem.h"

enum {
    EACH = 4,           /* texts that go on, by each of what they are known for */
    MOST_BYTES = 24,    /* that are tried behind a text */
    KEEP_PAIRS = 1 << 14,
    LEAST_BYTES = 24,   /* before that many nothing is told by how it grows */
    MUCH_MORE = 64,
    ONE_BYTE = 1 << 18, /* most steps of a byte in the search */
};

/* What a text is known for: steps of its last byte, of all its bytes, how deep its stacks are: what
 * was opened often is costly when it is closed. */
enum known_for { LAST, ALL, DEEP, N_KNOWN };
struct text {
    uint32_t at; /* position */
    uint64_t known[N_KNOWN];
};

struct search {
    struct stacks stacks;
    struct text text[N_KNOWN * EACH], next[N_KNOWN][EACH]; /* next: most first */
    uint32_t n, n_next[N_KNOWN];
    uint32_t *depth; /* [n_depth] of sets */
    uint32_t cap_depth, n_depth;
    struct stack_pair *pair; /* of the position at hand */
    uint32_t cap_pairs;
    uint8_t first[256]; /* of each class of bytes */
    uint64_t steps, most[GROWTH_BYTES + 1];
    uint32_t widest; /* of the costliest byte */
};

uint32_t growth_widest(const struct stacks *s)
{
    uint32_t state = 0, most = 0, n;
    for (uint32_t i = 0; i < s->n_members; i++) {
        stacks_pairs(s, s->below[s->member[i]], &n);
        if (n >= most && s->member[i] >= STATE_FIRST) {
            most = n;
            state = s->member[i];
        }
    }
    return state;
}

/* Bytes that may come, one for each range or class that some state reads. */
static uint32_t candidates(const struct search *s, uint32_t n_pairs, uint8_t out[MOST_BYTES])
{
    const struct automaton *a = s->stacks.a;
    uint8_t seen[256] = {0};
    uint32_t n = 0, n_all = 0, k = 0;
    for (uint32_t i = 0; i < n_pairs; i++) {
        if (s->pair[i].state >= a->n_states || s->pair[i].state < STATE_FIRST)
            continue;
        const struct automaton_row *row = &a->row[s->pair[i].state];
        for (uint32_t c = 0; row->several && c < a->n_classes; c++)
            seen[s->first[c]] |= a->next[(size_t)row->to * a->n_classes + c] != 0;
        if (!row->several && row->to)
            seen[row->lo] = 1;
    }
    for (uint32_t b = 0; b < 256; b++)
        n_all += seen[b];
    for (uint32_t b = 0; b < 256; b++) { /* of many some, spread out */
        if (!seen[b])
            continue;
        if (n_all <= MOST_BYTES || (uint64_t)k * MOST_BYTES / n_all >= n)
            out[n++] = (uint8_t)b;
        k++;
        if (n == MOST_BYTES)
            break;
    }
    return n;
}

/* How deep the stacks of a set are. Sets refer to those before them. */
static uint32_t depth_of(struct search *s, uint32_t set)
{
    uint32_t n;
    if (!mem_grow(&s->depth, &s->cap_depth, (uint64_t)set + 1, sizeof *s->depth,
                  PITH_MEM_SCRATCH)) {
        s->stacks.failed = STACKS_NO_MEMORY;
        return 0;
    }
    for (; s->n_depth <= set; s->n_depth++) {
        const struct stack_pair *p = stacks_pairs(&s->stacks, s->n_depth, &n);
        uint32_t most = 0;
        for (uint32_t i = 0; i < n && s->n_depth > STACKS_NONE; i++)
            most = s->depth[p[i].below] >= most ? s->depth[p[i].below] + 1 : most;
        s->depth[s->n_depth] = most;
        s->steps += n;
    }
    return s->depth[set];
}

static void put(struct search *s, enum known_for by, struct text t)
{
    struct text *v = s->next[by];
    uint32_t n = s->n_next[by], i = n;
    for (uint32_t k = 0; k < n; k++) /* a position goes on once */
        if (v[k].at == t.at)
            return;
    while (i > 0 && v[i - 1].known[by] < t.known[by]) {
        if (i < EACH)
            v[i] = v[i - 1];
        i--;
    }
    if (i == EACH)
        return;
    v[i] = t;
    s->n_next[by] = n < EACH ? n + 1 : EACH;
}

/* One byte further from the position at hand. 0: it ends here. */
static int try_byte(struct search *s, const struct text *from, uint32_t n_pairs, uint8_t byte,
                    uint32_t length)
{
    struct stacks *k = &s->stacks;
    k->work = 0;
    stacks_begin(k);
    stacks_step(k, s->pair, n_pairs, byte);
    uint32_t at = stacks_intern(k);
    s->steps += k->work + 1;
    if (k->work > s->most[length]) {
        s->most[length] = k->work;
        s->widest = growth_widest(k);
    }
    if (k->failed || at == STACKS_NONE)
        return !k->failed;
    struct text t = {at, {k->work, from->known[ALL] + k->work, depth_of(s, at)}};
    for (int by = 0; by < N_KNOWN; by++)
        put(s, (enum known_for)by, t);
    return s->steps < GROWTH_STEPS;
}

/* All that goes on by a byte. 0: it ends here. */
static int lengthen(struct search *s, uint32_t length)
{
    uint8_t byte[MOST_BYTES];
    int goes_on = 1;
    memset(s->n_next, 0, sizeof s->n_next);
    for (uint32_t i = 0; i < s->n && goes_on; i++) {
        uint32_t n;
        const struct stack_pair *p = stacks_pairs(&s->stacks, s->text[i].at, &n);
        if (!mem_grow(&s->pair, &s->cap_pairs, (uint64_t)n + 1, sizeof *s->pair,
                      PITH_MEM_SCRATCH)) {
            s->stacks.failed = STACKS_NO_MEMORY;
            return 0;
        }
        if (n)
            memcpy(s->pair, p, n * sizeof *p);
        uint32_t n_bytes = candidates(s, n, byte);
        for (uint32_t b = 0; b < n_bytes && goes_on; b++)
            goes_on = try_byte(s, &s->text[i], n, byte[b], length);
    }
    if (!goes_on)
        return 0;
    s->n = 0;
    for (int by = 0; by < N_KNOWN; by++)
        for (uint32_t i = 0, k; i < s->n_next[by]; i++) {
            for (k = 0; k < s->n && s->text[k].at != s->next[by][i].at; k++)
                ;
            s->text[k] = s->next[by][i];
            s->n += k == s->n;
        }
    return s->n > 0;
}

/* Drops what no text needs. */
static int tidy(struct search *s)
{
    uint32_t *root[N_KNOWN * EACH];
    if (s->stacks.n_pairs < KEEP_PAIRS)
        return 1;
    for (uint32_t i = 0; i < s->n; i++)
        root[i] = &s->text[i].at;
    if (!stacks_keep(&s->stacks, root, s->n)) {
        s->stacks.failed = STACKS_NO_MEMORY;
        return 0;
    }
    s->n_depth = 0;
    s->steps += s->stacks.n_pairs;
    return s->steps < GROWTH_STEPS;
}

/* Whether the costliest byte would pass the bound of a token: steps are taken to grow with some
 * power of the length, which is found between half of the bytes and all of them. Of few bytes the
 * last one says something only where it took more than any byte may, and far more than the first.
 */
static int passes(const struct search *s, uint32_t n, struct growth *g)
{
    uint32_t half = n / 2;
    uint64_t before = 1, now = 1;
    for (uint32_t i = 1; i <= n; i++) {
        before = i <= half && s->most[i] > before ? s->most[i] : before;
        now = s->most[i] > now ? s->most[i] : now;
    }
    g->n[0] = half;
    g->n[1] = n;
    g->steps[0] = before;
    g->steps[1] = now;
    g->state = s->widest;
    if (n < LEAST_BYTES)
        return s->stacks.failed && now > MUCH_MORE * (s->most[1] > 1 ? s->most[1] : 1);
    double doublings = fmath_log((double)GROWTH_TEXT / n) / fmath_log((double)n / half);
    return (double)now * fmath_pow((double)now / (double)before, doublings) > GROWTH_TOKEN;
}

/* The position where the grammar's own text begins. */
static void begin(struct search *s, struct slice trigger, int32_t token)
{
    const struct automaton *a = s->stacks.a;
    struct stacks *k = &s->stacks;
    struct stack_pair *p = s->pair;
    uint32_t n = 0;
    for (size_t i = 0; i <= trigger.n && !k->failed; i++) {
        stacks_begin(k);
        if (i)
            stacks_step(k, p, n, (uint8_t)trigger.p[i - 1]);
        else
            stacks_add(k, a->start, STACKS_BOTTOM);
        if (!mem_grow(&s->pair, &s->cap_pairs, (uint64_t)stacks_close(k) + 1, sizeof *s->pair,
                      PITH_MEM_SCRATCH))
            k->failed = STACKS_NO_MEMORY;
        p = s->pair;
        n = stacks_take(k, p);
    }
    stacks_begin(k);
    for (uint32_t i = 0; i < n && !k->failed; i++) {
        if (token < 0) {
            stacks_add(k, p[i].state, p[i].below);
            continue;
        }
        for (uint32_t t = a->token_at[p[i].state]; t < a->token_at[p[i].state + 1]; t++)
            if (a->token[t].kind == EDGE_TOKEN && a->token[t].value == (uint32_t)token)
                stacks_add(k, a->token[t].to, p[i].below);
    }
    s->text[0].at = stacks_intern(k);
}

int growth_search(const struct automaton *a, struct slice trigger, int32_t token, struct growth *g,
                  int *why)
{
    struct search s = {.n = 1};
    uint32_t length = 1;
    *g = (struct growth){0};
    for (int b = 255; b >= 0; b--)
        s.first[a->class_of[b]] = (uint8_t)b;
    int ok = stacks_init(&s.stacks, a) &&
             mem_grow(&s.pair, &s.cap_pairs, 1, sizeof *s.pair, PITH_MEM_SCRATCH);
    s.stacks.most = ONE_BYTE;
    if (ok)
        begin(&s, trigger, token);
    if (ok && !s.stacks.failed)
        while (length <= GROWTH_BYTES && lengthen(&s, length) && tidy(&s))
            length++;
    if (length > GROWTH_BYTES)
        length = GROWTH_BYTES;
    int failed = s.stacks.failed;
    g->grows = failed != STACKS_NO_MEMORY && failed != STACKS_CANCELLED && passes(&s, length, g);
    *why = !ok ? STACKS_NO_MEMORY : failed;
    stacks_deinit(&s.stacks);
    mem_free(s.pair);
    mem_free(s.depth);
    return ok && failed != STACKS_NO_MEMORY && failed != STACKS_CANCELLED;
}
