/* sample_dry.c -- the sampler that keeps a text from going on with what it repeats.
 *
 * Reference: DRY ("don't repeat yourself") as described by its author, p-e-w, 2024.
 *
 * What a token costs is what it has in common with the history, not the history:
 *
 *     ring    ... a b c x d ... b c x        the last token x has been there before:
 *     same          <-----------------+     each token knows how far back its last occurrence is,
 *     common            3                   and of each occurrence of x is kept how many tokens up
 *                       to
 *                                           it agree with the end: one more than of the token
 *                                               before
 *                                           it, which was of the end one token ago
 *
 * The breakers are one automaton (Aho and Corasick 1975), which reads each token once. What counts
 * is the breaker that begins last, and of these the longest.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fmath.h"
#include "base/mem.h"
#include "run/sample/sample.h"

/* ---------------------------------------------------------------- breakers */

/* A node is a beginning of some sequences; the first is empty. Children of one node lie side by
 * side, in the order of their tokens. */
struct breakers {
    uint32_t n;
    struct node {
        int32_t token; /* the last one of it */
        uint32_t child, n_children;
        uint32_t fail; /* the longest other beginning that it ends with */
        int32_t depth;
        int32_t shortest;  /* tokens of the shortest sequence that ends here, 0: none */
        uint32_t from, to; /* of the sorted sequences, while it is made */
    } node[];
};

/* Sequences end with -1, which is before all tokens. */
static int in_order(const void *a, const void *b)
{
    const int32_t *x = *(const int32_t *const *)a, *y = *(const int32_t *const *)b;
    while (*x == *y && *x >= 0) {
        x++;
        y++;
    }
    return (*x > *y) - (*x < *y);
}

static uint32_t child_of(const struct breakers *b, uint32_t at, int32_t token)
{
    uint32_t lo = b->node[at].child, hi = lo + b->node[at].n_children;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (b->node[mid].token == token)
            return mid;
        if (b->node[mid].token < token)
            lo = mid + 1;
        else
            hi = mid;
    }
    return 0;
}

/* The node behind one more token. */
static uint32_t next_node(const struct breakers *b, uint32_t at, int32_t token)
{
    uint32_t to;
    while (!(to = child_of(b, at, token)) && at)
        at = b->node[at].fail;
    return to;
}

/* The children of a node: of the sequences from..to, which share its tokens. */
static void spread(struct breakers *b, uint32_t at, const int32_t *const *seq)
{
    struct node *p = &b->node[at];
    int32_t d = p->depth;
    p->child = b->n;
    for (uint32_t i = p->from; i < p->to; i++) {
        int32_t token = seq[i][d];
        if (token < 0) {
            p->shortest = d;
            continue;
        }
        struct node *c = &b->node[b->n - 1];
        if (p->n_children && c->token == token) {
            c->to = i + 1;
            continue;
        }
        b->node[b->n] = (struct node){.token = token, .depth = d + 1, .from = i, .to = i + 1};
        b->node[b->n].fail = at ? next_node(b, p->fail, token) : 0;
        b->n++;
        p->n_children++;
    }
    int32_t behind = b->node[p->fail].shortest;
    p->shortest = at && behind ? behind : p->shortest;
}

struct breakers *breakers_new(const int32_t *list, size_t n)
{
    struct breakers *b = mem_alloc(sizeof *b + (n + 1) * sizeof b->node[0], PITH_MEM_SCRATCH);
    const int32_t **seq = mem_array(n + 1, sizeof *seq, PITH_MEM_SCRATCH);
    uint32_t n_seq = 0;
    if (!b || !seq) {
        mem_free(b);
        mem_free(seq);
        return NULL;
    }
    for (size_t i = 0; i < n; i++)
        if (list[i] >= 0 && (i == 0 || list[i - 1] < 0))
            seq[n_seq++] = list + i;
    qsort(seq, n_seq, sizeof *seq, in_order);
    b->n = 1;
    b->node[0] = (struct node){.to = n_seq};
    for (uint32_t at = 0; at < b->n;
         at++) /* a node's fail is nearer to the first: it has its children */
        spread(b, at, seq);
    mem_free(seq);
    return b;
}

int64_t breakers_bytes(size_t n)
{
    return (int64_t)(sizeof(struct breakers) + (n + 1) * sizeof(struct node));
}

void breakers_free(struct breakers *b)
{
    mem_free(b);
}

/* Tokens behind the breaker that begins last among the last n; n when there is none. */
static int32_t since_breaker(const struct sample_history *h, int32_t n)
{
    return h->end && h->n - h->begin <= n ? (int32_t)(h->n - h->end) : n;
}

void dry_accept(struct sample_history *h, int32_t id)
{
    const struct breakers *b = h->index;
    uint32_t back = (uint32_t)h->n + 1 - h->latest[id];
    int known = h->latest[id] && back <= (uint32_t)h->dry && back <= h->n &&
                history_last(h, (int32_t)back - 1) == id;
    h->same[h->n % h->dry] = known ? (int32_t)back : 0;
    h->latest[id] = (uint32_t)h->n + 1;
    if (b->n == 1)
        return;
    h->reading = next_node(b, h->reading, id);
    int32_t len = b->node[h->reading].shortest;
    if (len && h->n + 1 - len >= h->begin) {
        h->begin = h->n + 1 - len;
        h->end = h->n + 1;
    }
}

/* ---------------------------------------------------------------- what agrees with the end */

/* Of all places at once: the Z algorithm on the reversed history of n tokens. common[k-th last], k
 * = 1..n-1: how many of the last tokens are also the ones up to it. */
static void agree_anew(struct sample_history *h, int32_t n)
{
    int64_t end = h->n - 1;
    for (int32_t k = 1, left = 0, right = 0; k < n; k++) { /* [left, right) repeats the begin */
        int32_t len = 0;
        if (k < right) {
            len = h->common[(end - (k - left)) % h->dry];
            len = len < right - k ? len : right - k;
        }
        while (k + len < n && history_last(h, len) == history_last(h, k + len)) {
            len++;
            h->steps++;
        }
        h->common[(end - k) % h->dry] = len;
        h->steps++;
        if (k + len > right) {
            left = k;
            right = k + len;
        }
    }
}

/* The occurrence of a token before the k-th last one, among the last n: as the how-many-th last. 0:
 * none. */
static int32_t before_it(const struct sample_history *h, int32_t k, int32_t n)
{
    int32_t back = h->same[(h->n - 1 - k) % h->dry];
    return back && back < n - k ? k + back : 0;
}

/* One token more than `common` is of. Later places first: each takes from the one before it. */
static void agree_once_more(struct sample_history *h, int32_t n)
{
    int32_t last = n > 1 ? history_last(h, 1) : 0;
    for (int32_t k = before_it(h, 0, n); k; k = before_it(h, k, n)) {
        int64_t at = h->n - 1 - k;
        int more = k + 1 < n && history_last(h, k + 1) == last;
        h->common[at % h->dry] = 1 + (more ? h->common[(at - 1) % h->dry] : 0);
        h->steps++;
    }
}

/* How far what ends with the k-th last token agrees with the end, within the last n tokens. */
static int32_t agreement(const struct sample_history *h, int32_t k, int32_t n, int32_t most)
{
    int32_t len = history_last(h, k) == history_last(h, 0) ? h->common[(h->n - 1 - k) % h->dry] : 0;
    len = len < n - k ? len : n - k;
    return len < most ? len : most;
}

/* ---------------------------------------------------------------- the sampler */

/* Where it is looked for repetitions: behind the last token's occurrences; or everywhere, as those
 * of no token count. */
static int32_t next_place(const struct sample_history *h, int32_t k, int32_t n, int32_t allowed)
{
    if (allowed)
        return before_it(h, k, n);
    return k + 1 < n ? k + 1 : 0;
}

/* A token that would go on with a sequence of at least allowed_length tokens that was there before
 * loses multiplier * base^(length - allowed_length). Sequences do not reach over breakers; a
 * breaker of one token is never penalised. */
void sample_dry(struct pith_sampler *s, struct sample_step *t)
{
    const double LOG_MOST = 88.72283; /* of the largest float */
    struct sample_history *h = &s->history;
    int32_t last_n = t->p[0] < 0 || t->p[0] > h->dry ? h->dry : (int32_t)t->p[0];
    int32_t n = h->n < last_n ? (int32_t)h->n : last_n;
    int32_t allowed = (int32_t)t->p[3], all = h->n < h->dry ? (int32_t)h->n : h->dry;
    double base = t->p[2];
    if (t->p[1] == 0 || base < 1)
        return;
    if (h->agrees_at != h->n && h->agrees_at != h->n - 1)
        agree_anew(h, all);
    else if (h->agrees_at == h->n - 1)
        agree_once_more(h, all);
    h->agrees_at = h->n;
    int32_t most = since_breaker(h, n);
    if (n <= allowed || most < allowed)
        return;
    for (int32_t k = next_place(h, 0, n, allowed); k;
         k = next_place(h, k, n, allowed)) { /* + 1: 0 is none */
        int32_t *longest = &h->longest[history_last(h, k - 1)], len = agreement(h, k, n, most);
        h->steps++;
        if (len >= allowed && len + 1 > *longest)
            *longest = len + 1;
    }
    int changed = 0;
    double most_exponent = base > 1.000001 ? LOG_MOST / fmath_log(base) : HUGE_VAL;
    for (int32_t k = next_place(h, 0, n, allowed); k; k = next_place(h, k, n, allowed)) {
        int32_t id = history_last(h, k - 1), length = h->longest[id] - 1;
        uint32_t alone = child_of(h->index, 0, id);
        h->longest[id] = 0;
        if (length < 0 || (alone && h->index->node[alone].shortest == 1))
            continue;
        double e = length - allowed < most_exponent ? length - allowed : most_exponent;
        candidates_add(&s->list, id, -t->p[1] * fmath_pow(base, e));
        changed = 1;
    }
    if (changed)
        candidates_settle(&s->list);
}
