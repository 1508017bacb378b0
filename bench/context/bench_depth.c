/* bench_depth.c -- how fast a model runs behind a long context, without computing the context: K
 * and V of DEPTH positions are random rows, normal numbers of deviation 1, each position's its own,
 * put into the pages of the cache as a load of a saved session puts them.
 *
 *     bench_depth MODEL DEPTH TYPE [threads [tokens]]     decode tokens (16), then 512 at once
 *     bench_depth MODEL DEPTH TYPE check                  are rows put so what a prefill leaves?
 *
 * TYPE is that of K and V. Limits are those of `pith bench`: read bandwidth, int8 and fma peaks by
 * as many threads, measured before and after each test: the mean of the bandwidth, which has modes,
 * and the higher peaks, which other load alone brings down. The limit of decode is what weights and
 * cache take of the bandwidth. Where many query heads share a kv head, attention cannot come to
 * that, for it computes longer than it reads: so the limits of the parts are shown, too, of each
 * its bytes' or its operations', whichever takes longer, and their sum. That sum alone is the limit
 * of prefill. Operations of products count as the integer peak's (of float weights: fma's), those
 * of attention as fma's, though scores of a cache of blocks are integer products.
 *
 * check computes the context once, puts its rows into a second session, and compares the bits of
 * the logits of the tokens after it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "graph/kv_page.h"
#include "run/cache/cache_impl.h"
#include "run/session/session.h"

enum { UBATCH = 512, WARM = 8, MEASURE_MS = 250 };

struct bench {
    pith_model *m;
    struct pith_model_info info;
    struct pith_session_params params;
    pith_session *s;
    int32_t depth, tokens[UBATCH];
    struct pith_machine roof; /* of the test under way: of before and after */
};

static void need(pith_status st, const struct pith_error *err)
{
    if (st == PITH_OK)
        return;
    fprintf(stderr, "%s\n", err->msg);
    exit(1);
}

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---------------------------------------------------------------- the context */

/* A step of Knuth's 64-bit generator, its bits mixed. Not base/rng.h's, whose numbers are the same
 * everywhere and cost many times as much: a long context has a thousand million of them. */
static uint64_t next_bits(uint64_t *state)
{
    uint64_t x = *state = *state * 6364136223846793005u + 1442695040888963407u;
    x ^= x >> 32;
    return x * 0x9e3779b97f4a7c15u;
}

/* Numbers of mean 0 and deviation 1, a sum of four uniform ones each: near enough to normal. */
static void random_numbers(float *x, int64_t n, uint64_t *state)
{
    const float deviation = 37837.2f; /* 65536 / sqrt(3) */
    for (int64_t i = 0; i < n; i++) {
        uint64_t r = next_bits(state);
        uint32_t sum = (uint32_t)(r & 65535) + (uint32_t)(r >> 16 & 65535) +
                       (uint32_t)(r >> 32 & 65535) + (uint32_t)(r >> 48);
        x[i] = ((float)sum - 131070) / deviation;
    }
}

/* So many bytes of rows of a type, as a file has them. */
static void random_rows(enum dtype t, int64_t bytes, uint8_t *out, uint64_t *state)
{
    const struct dtype_traits *type = &dtypes[t];
    float x[1024]; /* a multiple of every block */
    int64_t piece = (int64_t)(sizeof x / sizeof *x) / type->block * type->block_bytes;
    for (int64_t at = 0; at < bytes; at += piece) {
        int64_t n = (bytes - at < piece ? bytes - at : piece) / type->block_bytes * type->block;
        random_numbers(x, n, state);
        type->quant(x, out + at, n);
    }
}

/* A page of the group in canonical form. */
static void random_page(const struct cache *c, int g, uint8_t *out, uint64_t *state)
{
    for (const struct state *kv = c->states; kv < c->states + c->n_states; kv++) {
        if (kv->group != g)
            continue;
        int64_t k = kv_canonical_k(kv), v = kv_canonical_v(kv);
        random_rows(kv->k_type, k, out, state);
        random_rows(kv_v_type(kv), v, out + k, state);
        out += k + v;
    }
}

/* Brings sequence 0 to so many positions, page by page: with the rows of another session's, or
 * (NULL) random ones. Pages that a window has left are given back on the way, as steps do. */
static pith_status fill(pith_session *s, int32_t depth, const pith_session *from,
                        struct pith_error *err)
{
    struct cache *c = &s->cache;
    struct cache_seq *q = &c->seq[0];
    uint64_t most = 0, state = 42;
    for (int g = 0; g < c->n_own; g++)
        most = page_canonical(c, g) > most ? page_canonical(c, g) : most;
    uint8_t *page = calloc(1, most + 1);
    pith_status st = from ? cache_flush(&from->cache, err) : PITH_OK;
    while (page && st == PITH_OK && q->n < depth) {
        int32_t at = q->n / STEP_PAGE, n = depth - q->n < STEP_PAGE ? depth - q->n : STEP_PAGE;
        cache_begin(c, 0);
        st = cache_grow(c, 0, n, err);
        for (int g = 0; g < c->n_own && st == PITH_OK; g++) {
            int32_t theirs = from ? from->cache.seq[0].pages[g][at] : -1;
            if (theirs >= 0)
                st = page_read(&from->cache, g, theirs, n, page, err);
            else if (!from)
                random_page(c, g, page, &state);
            if (st == PITH_OK)
                st = page_write(c, g, q->pages[g][at], page, err);
        }
        for (int32_t i = 0; i < n && st == PITH_OK; i++)
            cache_append(c, 0, 1, NULL);
        cache_end(c, 0, st != PITH_OK);
    }
    q->foreign = 1; /* its rows are no prefill's of these tokens */
    if (!page)
        return error_set(err, PITH_NOMEM, "out of memory for a page");
    free(page);
    return st;
}

/* ---------------------------------------------------------------- tests */

struct part {
    double ns, bytes, int_ops, f32_ops;
};
enum { ATTENTION, PRODUCTS, OTHERS, N_PARTS };

static int is_float(enum dtype t)
{
    return t == DT_F32 || t == DT_F16 || t == DT_BF16;
}

/* What all calls of the session have done. */
static void add_up(const pith_session *s, struct part part[N_PARTS])
{
    memset(part, 0, N_PARTS * sizeof *part);
    for (int r = 0; r < SESSION_ROLES; r++)
        for (int32_t i = 0; i < s->role[r].plan.n_calls; i++) {
            const struct call *c = &s->role[r].plan.calls[i];
            const struct call_stats *did = &s->role[r].stats[i];
            int kind = op_has(c->op, OP_PRODUCT) ? PRODUCTS
                       : c->op == OP_ATTN        ? ATTENTION
                                                 : OTHERS;
            struct part *p = &part[kind];
            int whole = kind == PRODUCTS && c->w && !is_float(c->w->type);
            p->ns += (double)did->ns;
            p->bytes += (double)did->bytes;
            *(whole ? &p->int_ops : &p->f32_ops) += (double)did->ops;
        }
}

static void feed(struct bench *b, int32_t n)
{
    struct pith_error err = {0};
    need(pith_feed(b->s, 0, b->tokens, (size_t)n, &err), &err);
}

/* n tokens one by one, or at once; behind them the sequence is what it was. Seconds; *cpus: the
 * processors that worked for it, fewer than threads where others had them. */
static double run_once(struct bench *b, int32_t n, int at_once, double *cpus)
{
    struct pith_error err = {0};
    double began = seconds(CLOCK_MONOTONIC), worked = seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (int32_t i = 0; i < (at_once ? 1 : n); i++)
        feed(b, at_once ? n : 1);
    double took = seconds(CLOCK_MONOTONIC) - began;
    *cpus = (seconds(CLOCK_PROCESS_CPUTIME_ID) - worked) / took;
    need(pith_truncate(b->s, 0, b->depth, &err), &err);
    return took;
}

static struct pith_machine measure(const struct bench *b)
{
    struct pith_error err = {0};
    struct pith_machine h = {.size = sizeof h};
    need(pith_machine_measure(b->params.n_threads, MEASURE_MS, &h, &err), &err);
    return h;
}

/* Shows what a part did per second, and its share of what the machine allows; returns the
 * nanoseconds that this is. */
static double show_part(const char *name, const struct part *p, double all_ns,
                        const struct pith_machine *h)
{
    double by_ops = p->int_ops / h->int8_gops + p->f32_ops / h->f32_gops;
    double by_bytes = p->bytes / h->read_gbs, ops = p->int_ops + p->f32_ops;
    double limit_ns = by_ops > by_bytes ? by_ops : by_bytes;
    const char *of = by_bytes >= by_ops ? "the bandwidth"
                     : p->int_ops > 0   ? "the integer peak"
                                        : "fma";
    printf("  %-9s %5.1f %% of the time, %6.1f GB/s, %6.1f Gop/s, %5.1f %% of %s\n", name,
           100 * p->ns / all_ns, p->bytes / p->ns, ops / p->ns, 100 * limit_ns / p->ns, of);
    return limit_ns;
}

static void test(struct bench *b, int32_t n, int at_once)
{
    struct part was[N_PARTS], part[N_PARTS];
    struct pith_machine *h = &b->roof, before = measure(b);
    pith_profile(b->s, 1);
    add_up(b->s, was);
    double cpus, took = run_once(b, n, at_once, &cpus), all_ns = 0;
    add_up(b->s, part);
    pith_profile(b->s, 0);
    *h = measure(b);
    h->read_gbs = (h->read_gbs + before.read_gbs) / 2;
    h->int8_gops = h->int8_gops > before.int8_gops ? h->int8_gops : before.int8_gops;
    h->f32_gops = h->f32_gops > before.f32_gops ? h->f32_gops : before.f32_gops;
    for (int i = 0; i < N_PARTS; i++) {
        part[i].ns -= was[i].ns;
        part[i].bytes -= was[i].bytes;
        part[i].int_ops -= was[i].int_ops;
        part[i].f32_ops -= was[i].f32_ops;
        all_ns += part[i].ns;
    }
    double cache = (double)pith_cache_bytes(b->s, b->depth + n / 2);
    double bytes = (double)b->info.token_bytes + cache, tps = n / took;
    double by_bytes = 1e9 * h->read_gbs / bytes;
    printf("%s %d at %d, %s: %.2f tokens/s", at_once ? "prefill" : "decode", n, b->depth,
           b->params.cache_type_k, tps);
    if (!at_once)
        printf(", %.1f %% of what reading allows (%.2f); a token: %.0f MB of weights, %.0f of "
               "cache, %.1f GB/s",
               100 * tps / by_bytes, by_bytes, 1e-6 * (double)b->info.token_bytes, 1e-6 * cache,
               1e-9 * bytes * tps);
    printf("\n  machine   %.1f GB/s (%.1f before), int8 %.0f Gop/s, f32 %.0f Gop/s; "
           "%.2f processors worked\n",
           h->read_gbs, before.read_gbs, h->int8_gops, h->f32_gops, cpus);
    double limit_s = 1e-9 * (show_part("attention", &part[ATTENTION], all_ns, h) +
                             show_part("products", &part[PRODUCTS], all_ns, h));
    printf("  both      limit %.2f tokens/s, %.1f %% of it\n", n / limit_s, 100 * limit_s / took);
    fflush(stdout);
}

static pith_session *open_session(struct bench *b)
{
    struct pith_error err = {0};
    pith_session *s = pith_session_open(b->m, &b->params, &err);
    need(s ? PITH_OK : err.code, &err);
    if (s->recurrent.n_blocks || !s->cache.n_own || s->cache.n_groups != s->cache.n_own) {
        fprintf(stderr, "%s: found layers that keep a state or an encoder's rows; wanted a model "
                        "that keeps K and V alone\n", b->info.arch);
        exit(1);
    }
    return s;
}

/* 0: the logits of the tokens behind a computed context and behind its rows put are the same. */
static int check(struct bench *b)
{
    struct pith_error err = {0};
    enum { AFTER = 3 };
    pith_session *computed = b->s, *put = open_session(b);
    for (int32_t at = 0; at < b->depth; at += UBATCH)
        feed(b, b->depth - at < UBATCH ? b->depth - at : UBATCH);
    need(fill(put, b->depth, computed, &err), &err);
    size_t bytes = (size_t)b->info.n_vocab * sizeof(float);
    int differs = 0;
    for (int32_t i = 0; i < AFTER; i++) {
        feed(b, 1);
        need(pith_feed(put, 0, b->tokens, 1, &err), &err);
        differs |= memcmp(pith_logits(computed, 0), pith_logits(put, 0), bytes) != 0;
    }
    printf("%d tokens behind %d positions, %s: logits %s\n", AFTER, b->depth,
           b->params.cache_type_k, differs ? "DIFFER" : "are the same bits");
    pith_session_close(put);
    return differs;
}

int main(int argc, char **argv)
{
    static struct bench b = {.info = {.size = sizeof b.info}};
    struct pith_error err = {0};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    int checks = argc > 4 && !strcmp(argv[4], "check"), code = 0;
    int32_t n = argc > 5 ? atoi(argv[5]) : 16, n_threads = argc > 4 && !checks ? atoi(argv[4]) : 0;
    b.depth = argc > 2 ? atoi(argv[2]) : 0;
    if (argc < 4 || b.depth < 1 || n < 1 || n > UBATCH || n_threads < 0) {
        fprintf(stderr, "bench_depth MODEL DEPTH TYPE [threads [tokens]]\n"
                        "bench_depth MODEL DEPTH TYPE check\n");
        return 1;
    }
    mp.weights = PITH_WEIGHTS_PACKED; /* not while we measure */
    mp.n_threads = n_threads;
    b.m = pith_model_open(argv[1], &mp, &err);
    need(b.m ? pith_model_get_info(b.m, &b.info, &err) : err.code, &err);
    b.params = (struct pith_session_params)PITH_SESSION_PARAMS_INIT;
    b.params.n_ctx = b.depth + UBATCH;
    b.params.cache_type_k = b.params.cache_type_v = argv[3];
    b.params.n_threads = n_threads;
    b.params.pooling = PITH_POOL_NONE;
    b.s = open_session(&b);
    uint64_t state = 7;
    for (int32_t i = 0; i < UBATCH; i++)
        b.tokens[i] = (int32_t)(next_bits(&state) % (uint64_t)b.info.n_vocab);
    if (checks) {
        code = check(&b);
    } else {
        double began = seconds(CLOCK_MONOTONIC), cpus;
        need(fill(b.s, b.depth, NULL, &err), &err);
        printf("%s, %s, %d threads; %d positions put in %.1f s\n", b.info.type, pith_isa(),
               b.s->n_threads, b.depth, seconds(CLOCK_MONOTONIC) - began);
        run_once(&b, UBATCH / 8, 1, &cpus); /* pages for all, before windows slide */
        run_once(&b, WARM, 0, &cpus);
        test(&b, n, 0);
        test(&b, UBATCH, 1);
    }
    pith_session_close(b.s);
    pith_model_close(b.m);
    return code;
}
