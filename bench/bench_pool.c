/* bench_pool.c -- how a model would scale on machines with many cores: its own plan, cut as the
 * backend cuts it, on a simulated machine whose threads hand over work by cache lines.
 *
 *     bench_pool MODEL [rows of a prompt [depth [READ_SERVE]]]      default 512, 256, 0.5
 *
 * Measured here: what each phase takes one thread (the best of some steps), a cache line from core
 * to core, and waking a sleeper. Everything else is a described machine (machines[]): lines between
 * complexes and sockets are medians of AMD EPYC 7R13 (github.com/nviennot/core-to-core-latency: 107
 * and 197 ns), memory is 80 % of 8 channels of DDR4-3200 a socket, a complex reads 50 GB/s: an
 * assumption, from the width of its link; a node's link to the others brings 50 GB/s, assumed, too.
 * Cores are as the ones here.
 *
 * A line has an owner and readers. Who writes it pays for the farthest of them, and nobody else
 * has it meanwhile; a read is served after those before it, for READ_SERVE of their latency
 * (assumed), or by a neighbour of the same complex. Threads are simulated action by action, in
 * order of time:
 *
 *     flat     a take counts in a line of all; one bell for all; idle threads look at every share
 *     groups   what backend/cpu/run.c does with many threads: shares count in a line of the group,
 *              groups in a line of all; a bell for each group; idle threads stop looking when the
 *              phase is over
 *     cut      the same, and attention of a prompt cut by query heads, as it is for so many threads
 *              (graph/ops/attention.h). The others have it as for one thread
 *     copies   the same, and each memory node has a copy of what products of a prompt read
 *              (backend/cpu/copies.c). With the others each complex of cores brings it over the
 *              link of its node, all but the part that lies there
 *
 * Units of attention are measured one by one, on one thread, after a walk through more memory than
 * the caches hold where a row decodes; sums of the units of one thread's cut are taken for what the
 * phase took in its step, and all units by the same factor.
 *
 * A phase's time on a core is what it takes here, or what its bytes take at the core's part of
 * what its complex and its node read, whichever is more. Not simulated: caches that hold weights
 * (all are read from memory), kernels that slow each other down otherwise, the system, sleeping.
 * Models with experts are refused: their units depend on what the router said. */
#include "bench.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "backend/cpu/cpu.h"
#include "base/machine/pool.h"
#include "run/session/session.h"

enum { CORES_MAX = 128, GROUP = 8, REPS = 40 };

/* ---------------------------------------------------------------- measured here */

static inline void pause_core(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

struct pair {
    _Alignas(128) _Atomic(uint32_t) ball;
    _Alignas(128) _Atomic(uint32_t) go;
    uint32_t n;
};

static void *play(void *arg)
{
    struct pair *p = arg;
    for (uint32_t i = 0; i < p->n; i++) {
        while (atomic_load_explicit(&p->ball, memory_order_acquire) != 2 * i + 1)
            pause_core();
        atomic_store_explicit(&p->ball, 2 * i + 2, memory_order_release);
    }
    return NULL;
}

static double wall(void)
{
    return (double)clock_ns();
}

/* Nanoseconds of a line from core to core: the least of many rounds, of two threads wherever
 * the system puts them, which may be one core while others work here; 0: there is one core. */
static double measure_line(void)
{
    double best = 0;
    for (int round = 0; round < 60 && cores_usable() > 1; round++) {
        struct pair p = {.n = 20000};
        pthread_t t;
        if (pthread_create(&t, NULL, play, &p))
            break;
        double began = 0;
        for (uint32_t i = 0; i < p.n; i++) {
            if (i == p.n / 10)
                began = wall();
            atomic_store_explicit(&p.ball, 2 * i + 1, memory_order_release);
            while (atomic_load_explicit(&p.ball, memory_order_acquire) != 2 * i + 2)
                pause_core();
        }
        double ns = (wall() - began) / (1.8 * p.n);
        pthread_join(t, NULL);
        best = best == 0 || ns < best ? ns : best;
    }
    return best;
}

static void *sleep_once(void *arg)
{
    struct pair *p = arg;
    wait_while_equal(&p->go, 0, 0);
    return NULL;
}

/* Nanoseconds that waking one sleeper takes who wakes. */
static double measure_wake(void)
{
    double best = 0;
    for (int round = 0; round < 20; round++) {
        struct pair p = {.n = 0};
        pthread_t t;
        if (pthread_create(&t, NULL, sleep_once, &p))
            break;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        double began = wall();
        atomic_store(&p.go, 1);
        wake_all(&p.go);
        double ns = wall() - began;
        pthread_join(t, NULL);
        best = best == 0 || ns < best ? ns : best;
    }
    return best;
}

/* ---------------------------------------------------------------- the model's phases */

enum { CUTS = 9 }; /* 1, 2, 4 .. threads */

struct times { /* of the units of attention, as cut for some threads */
    int64_t n;
    double *ns;
};

struct work {
    const struct phase *ph;
    double ns;    /* on one thread here */
    double bytes; /* of weights and cache */
    double act;   /* bytes that each thread reads of what others have made */
    double cold;  /* of attention: the sum of its units on one thread, each measured by itself */
    struct times cut[CUTS];
};

struct job1 { /* one kind of step */
    const char *name;
    const struct plan *plan;
    struct exec x;
    struct step *step; /* a copy */
    struct work *work; /* [plan->n_phases] */
    double tokens;
    struct cpu_own own;
};

static void need(int ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void need_ok(pith_status st, const struct pith_error *err)
{
    need(st == PITH_OK, err->msg);
}

/* All that a kernel of the CPU looks at, of the session as it is. */
static struct exec exec_of(pith_session *s, const struct plan *plan, struct step *step)
{
    static uint8_t *at[STEP_MAX_GROUPS];
    struct exec x = {.step = step, .plan = plan, .n_threads = 1, .n_nodes = 1};
    x.base[0] = buffer_map(&s->role[ROLE_DECODER].run.act[0]);
    for (int g = 0; g < s->cache.n_groups; g++) {
        const struct slabs *p = &s->cache.group[g].pages;
        at[g] = buffer_map(&p->slab[0]);
        x.cache[g] = (struct cache_view){&at[g], p->shift, (int64_t)p->unit};
    }
    x.scratch_bytes = (plan->scratch_bytes + 127) / 64 * 64;
    x.scratch = aligned_alloc(64, x.scratch_bytes);
    need(x.base[0] && x.scratch, "out of memory");
    return x;
}

/* Takes the phases of the session's last step as they are; times are taken elsewhere. */
static struct job1 take_job(pith_session *s, const char *name, double tokens)
{
    const struct session_role *role = &s->role[ROLE_DECODER];
    struct job1 j = {.name = name, .plan = &role->plan, .tokens = tokens};
    j.step = malloc((size_t)s->step->bytes);
    j.work = calloc((size_t)j.plan->n_phases, sizeof *j.work);
    need(j.step && j.work, "out of memory");
    memcpy(j.step, s->step, (size_t)s->step->bytes);
    j.x = exec_of(s, j.plan, j.step);
    int32_t *none = malloc((size_t)j.plan->n_calls * sizeof *none);
    need(none != NULL, "out of memory");
    for (int32_t i = 0; i < j.plan->n_calls; i++)
        none[i] = -1;
    j.own.gathers.at = none;
    for (int32_t i = 0; i < j.plan->n_phases; i++) {
        struct work *w = &j.work[i];
        w->ph = &j.plan->phases[i];
        w->ns = INFINITY;
        for (int32_t k = 0; k < w->ph->n; k++) {
            const struct call *c = &j.plan->calls[w->ph->first + k];
            uint64_t bytes, ops;
            need(!strstr(op_infos[c->op]->name, "moe"), "a model with experts: see bench_pool.c");
            call_cost(c, &j.x, &bytes, &ops);
            if (w->ph->kind == PHASE_CONCAT)
                w->bytes += (double)bytes;
            if (w->ph->kind == PHASE_CONCAT && k == 0) /* 1 byte a number and its scales */
                w->act = (double)exec_rows(&j.x, c->src[0].rows, c->src[0].rows_mul) *
                         (double)c->src[0].cols * (c->w ? 1.125 : 4);
        }
    }
    return j;
}

/* One step of n tokens, its phases timed: the least so far counts. */
static void time_step(pith_session *s, struct job1 *j, int64_t depth, const int32_t *ids, int n)
{
    struct pith_error err = {0};
    struct session_role *role = &s->role[ROLE_DECODER];
    need_ok(pith_truncate(s, 0, depth, &err), &err);
    memset(role->stats, 0, (size_t)role->plan.n_calls * sizeof *role->stats);
    need_ok(pith_feed(s, 0, ids, (size_t)n, &err), &err);
    for (int32_t i = 0; j && i < j->plan->n_phases; i++) {
        double ns = 0;
        for (int32_t k = 0; k < j->work[i].ph->n; k++)
            ns += (double)role->stats[j->plan->calls[j->work[i].ph->first + k].index].ns;
        j->work[i].ns = ns < j->work[i].ns ? ns : j->work[i].ns;
    }
}

static int reads_cache(const struct job1 *j, int32_t phase)
{
    return j->plan->calls[j->work[phase].ph->first].op == OP_ATTN;
}

/* More than the caches hold goes through them. */
static void flush_caches(void)
{
    enum { BYTES = 64 << 20 };
    static uint8_t *p;
    if (!p) {
        p = malloc(BYTES);
        need(p != NULL, "out of memory");
        memset(p, 1, BYTES);
    }
    for (size_t i = 0; i < BYTES; i += 64)
        (void)*(volatile uint8_t *)(p + i);
}

static double time_unit(const struct job1 *j, const struct call *c, const struct exec *x, int64_t u)
{
    double best = INFINITY;
    for (int r = 0; r < 6; r++) {
        if (j->tokens == 1)
            flush_caches();
        double began = wall();
        c->impl.fn(c, x, u, u + 1, 0);
        double ns = wall() - began;
        best = ns < best ? ns : best;
    }
    return best;
}

/* Units of an attention phase as cut for n threads, timed once. */
static struct times *time_cut(struct job1 *j, int32_t phase, int n)
{
    struct work *w = &j->work[phase];
    const struct call *c = &j->plan->calls[w->ph->first];
    struct exec x = j->x;
    int k = 0;
    while (1 << k < n)
        k++;
    struct times *t = &w->cut[k];
    if (t->n)
        return t;
    x.n_threads = n;
    x.n_nodes = 1;
    x.own = n > 1 ? &j->own : NULL;
    t->n = c->impl.units(c, &x);
    for (int i = 0; i < k; i++) /* the same cut as for fewer threads? */
        if (w->cut[i].n == t->n)
            return *t = w->cut[i], t;
    double sum = 0;
    t->ns = calloc((size_t)t->n + 1, sizeof(double));
    need(t->ns != NULL, "out of memory");
    for (int64_t u = 0; u < t->n; u++)
        sum += t->ns[u] = time_unit(j, c, &x, u);
    if (n == 1)
        w->cold = sum;
    for (int64_t u = 0; u < t->n; u++)
        t->ns[u] *= w->ns / w->cold;
    return t;
}

/* While the session holds what the step has read. */
static void time_cuts(struct job1 *j)
{
    for (int32_t p = 0; p < j->plan->n_phases; p++)
        for (int n = 1; n <= CORES_MAX && reads_cache(j, p); n *= 2)
            time_cut(j, p, n);
}

/* ---------------------------------------------------------------- machines */

struct machine {
    const char *name;
    int cores, per_complex, per_node, per_socket;
    int n_slow; /* the last cores are half as fast */
    double gbs_complex, gbs_node;
};
#define SOCKET_GBS (0.8 * 8 * 25.6)
static const struct machine machines[] = {
    {"64 cores, 1 node", 64, 8, 64, 64, 0, 50, SOCKET_GBS},
    {"64 cores, 2 nodes", 64, 8, 32, 32, 0, 50, SOCKET_GBS},
    {"128 cores, 2 nodes", 128, 8, 64, 64, 0, 50, SOCKET_GBS},
    {"128 cores, 8 nodes", 128, 8, 16, 64, 0, 50, SOCKET_GBS / 4},
    {"8 fast and 8 slow cores", 16, 16, 16, 16, 8, 70, 70},
};

static double ns_complex = 25; /* measured */
static const double ns_socket = 107, ns_far = 197;
static double read_serve = 0.5; /* of a read's latency that the next reader waits */
enum { STORE_NS = 4, HIT_NS = 2, OWN_NS = 6, LINES_AT_ONCE = 8 };
static const double far_memory = 0.5; /* of the bandwidth, for chunks of another node */
static const double gbs_link = 50;    /* of a node */

static double distance(const struct machine *m, int a, int b)
{
    return a / m->per_complex == b / m->per_complex ? ns_complex
           : a / m->per_socket == b / m->per_socket ? ns_socket
                                                    : ns_far;
}

/* ---------------------------------------------------------------- lines */

struct line {
    double free;
    int owner;                /* who wrote it last; -1: nobody */
    uint8_t has[CORES_MAX];   /* a copy */
    uint8_t there[CORES_MAX]; /* complexes with one */
};

static void line_init(struct line *l)
{
    memset(l, 0, sizeof *l);
    l->owner = -1;
}

static double line_read(const struct machine *m, struct line *l, int core, double t)
{
    int cx = core / m->per_complex;
    double ns;
    if (l->owner < 0 || l->has[core])
        return t + HIT_NS;
    if (l->there[cx]) {
        ns = ns_complex;
    } else {
        ns = distance(m, core, l->owner);
        t = t > l->free ? t : l->free;
        l->free = t + read_serve * ns;
    }
    l->has[core] = l->there[cx] = 1;
    return t + ns;
}

static double line_write(const struct machine *m, struct line *l, int core, double t)
{
    double ns = OWN_NS;
    for (int c = 0; c < m->cores; c++) {
        if (c == core || !l->has[c])
            continue;
        double d = distance(m, core, c);
        ns = d > ns ? d : ns;
    }
    t = (t > l->free ? t : l->free) + ns;
    memset(l->has, 0, sizeof l->has);
    memset(l->there, 0, sizeof l->there);
    l->has[core] = l->there[core / m->per_complex] = 1;
    l->owner = core;
    l->free = t;
    return t;
}

/* ---------------------------------------------------------------- a step, simulated */

enum doing { LOOK, SCAN, PUBLISH, WAIT, OVER };

struct thread {
    double t, wants;   /* wants: work of what is in its hands */
    enum doing state;
    int core, node, group, share;
    int32_t phase;
    int q, pending, of; /* place in its order; chunks of share `of` that are not counted yet */
};

struct sim {
    const struct machine *m;
    struct job1 *j;
    int n, n_nodes, groups; /* groups: the hand-over by groups */
    int cut_fine;           /* attention as cut for so many threads */
    int copies;             /* a node brings what products read once */
    int n_groups;
    struct thread th[CORES_MAX];
    int order[CORES_MAX][CORES_MAX]; /* shares in the order in which a thread looks at them */
    int core_of[CORES_MAX], group_of[CORES_MAX]; /* of shares */
    int lo[CORES_MAX], hi[CORES_MAX]; /* chunks left */
    struct line share[CORES_MAX], count[CORES_MAX], bell[CORES_MAX], all, word, ticket;
    int left[CORES_MAX], left_all; /* chunks not done, of groups and of all */
    double vis[CORES_MAX];         /* when the group can see the phase */
    uint8_t act[CORES_MAX];        /* complexes that have read the phase's input */
    int32_t cur;                   /* phase */
    int opener;
    struct cpu_cut cut;
    const struct times *times; /* of the phase's units, NULL: they are alike */
    double busy, serial, end;
    double began, took[2]; /* phases of all threads: products, attention */
};

static int share_first(const struct sim *s, int k)
{
    int more = s->n % s->n_nodes;
    return k * (s->n / s->n_nodes) + (k < more ? k : more);
}

/* Threads are dealt over the nodes in turn, in each node core by core; groups are of GROUP. */
static void place(struct sim *s)
{
    for (int k = 0; k < s->n_nodes; k++)
        for (int v = share_first(s, k); v < share_first(s, k + 1); v++) {
            int nth = v - share_first(s, k), i = nth * s->n_nodes + k;
            s->core_of[v] = k * s->m->per_node + nth;
            s->group_of[v] = nth / GROUP * s->n_nodes + k;
            s->th[i] = (struct thread){.core = s->core_of[v], .node = k, .share = v};
            s->th[i].group = s->group_of[v];
            s->n_groups = s->group_of[v] + 1 > s->n_groups ? s->group_of[v] + 1 : s->n_groups;
        }
    for (int i = 0; i < s->n; i++) {
        struct thread *t = &s->th[i];
        int at = 0;
        for (int dk = 0; dk < s->n_nodes; dk++) {
            int k = (t->node + dk) % s->n_nodes, first = share_first(s, k);
            int n = share_first(s, k + 1) - first, nth = t->share - share_first(s, t->node);
            int per = s->groups ? GROUP : n, n_of = (n + per - 1) / per;
            for (int dj = 0; dj < n_of; dj++) {
                int j = (nth / per + dj) % n_of, size = n - j * per < per ? n - j * per : per;
                for (int e = 0; e < size; e++)
                    s->order[i][at++] = first + j * per + (nth % per + e) % size;
            }
        }
    }
}

static double slowness(const struct machine *m, int core)
{
    return core >= m->cores - m->n_slow ? 2 : 1;
}

/* What some work takes a core: so long by itself, reading so many bytes while a part `active` of
 * the threads have work, too. */
static double work_ns(const struct sim *s, int core, double ns, double bytes, int far,
                      double active)
{
    int node_has = 0, complex_has = 0;
    for (int v = 0; v < s->n; v++) {
        node_has += s->core_of[v] / s->m->per_node == core / s->m->per_node;
        complex_has += s->core_of[v] / s->m->per_complex == core / s->m->per_complex;
    }
    double by_node = s->m->gbs_node / fmax(1, active * node_has);
    double by_complex = s->m->gbs_complex / fmax(1, active * complex_has);
    double gbs = (by_node < by_complex ? by_node : by_complex) * (far ? far_memory : 1);
    double by_bytes = bytes / gbs, by_core = ns * slowness(s->m, core);
    return by_bytes > by_core ? by_bytes : by_core;
}

/* Units of a phase; sets *times where they are not alike. */
static int64_t phase_units(struct sim *s, int32_t phase, const struct times **times)
{
    *times = reads_cache(s->j, phase) ? time_cut(s->j, phase, s->cut_fine ? s->n : 1) : NULL;
    return *times ? (*times)->n : cpu_phase_units(s->j->plan, s->j->work[phase].ph, &s->j->x);
}

/* Bytes of a product's activations that come over the link of a node. */
static double linked(const struct sim *s, int32_t phase)
{
    if (!s->j->plan->calls[s->j->work[phase].ph->first].w)
        return 0;
    const int of_node = s->m->per_node / s->m->per_complex;
    const double once = s->j->work[phase].act * (s->n_nodes - 1) / s->n_nodes;
    const int complexes = (s->n / s->n_nodes + s->m->per_complex - 1) / s->m->per_complex;
    return once * (s->copies ? 1 : complexes < of_node ? complexes : of_node);
}

/* Units [lo, hi) of the phase that is open, on a core. */
static double units_ns(const struct sim *s, int64_t lo, int64_t hi, int core, int far)
{
    const struct work *w = &s->j->work[s->cur];
    double part = (double)(hi - lo) / (double)s->cut.n_units, ns = part * w->ns;
    double active = fmin(1, (double)s->cut.n_chunks / s->n);
    if (s->times) {
        ns = 0;
        for (int64_t u = lo; u < hi; u++)
            ns += s->times->ns[u];
    }
    ns = work_ns(s, core, ns, w->bytes * part, far, active);
    /* Threads use the link together, each for its part of the units; of one row see look. */
    double by_link = s->j->tokens > 1 ? linked(s, s->cur) / gbs_link * part * s->n * active : 0;
    return by_link > ns ? by_link : ns;
}

/* Thread i has finished phase `after` (-1: begins) at time t: opens the next one. Returns when it
 * is free again. */
static double open_next(struct sim *s, int i, int32_t after, double t)
{
    const struct plan *p = s->j->plan;
    int32_t next = after + 1;
    if (after >= 0)
        s->took[reads_cache(s->j, after)] += t - s->began;
    for (; next < p->n_phases; next++) {
        const struct phase *ph = s->j->work[next].ph;
        int64_t units = phase_units(s, next, &s->times);
        if (units > 1) {
            s->cut = cpu_cut(p, ph, units, s->j->step->T, s->n);
            break;
        }
        double ns = units ? s->j->work[next].ns * slowness(s->m, s->th[i].core) : 0;
        s->serial += ns;
        t += ns;
    }
    s->began = t;
    s->cur = next;
    s->opener = i;
    memset(s->act, 0, sizeof s->act);
    s->act[s->th[i].core / s->m->per_complex] = 1;
    memset(s->left, 0, sizeof s->left);
    for (int v = 0; v < s->n; v++) {
        s->lo[v] = (int)((int64_t)s->cut.n_chunks * v / s->n);
        s->hi[v] = (int)((int64_t)s->cut.n_chunks * (v + 1) / s->n);
        s->left[s->group_of[v]] += s->hi[v] - s->lo[v];
    }
    s->left_all = (int)s->cut.n_chunks;
    int core = s->th[i].core;
    t = line_write(s->m, &s->word, core, t);
    if (s->n == 1)
        s->vis[0] = t;
    else if (s->groups) {
        double last = t = line_write(s->m, &s->ticket, core, t) + 2 * OWN_NS;
        for (int g = 0; g < s->n_groups; g++) {
            double at = line_write(s->m, &s->bell[g], core, t + STORE_NS * g);
            s->vis[g] = at;
            last = at > last ? at : last;
        }
        t = last + 2 * OWN_NS;
    } else {
        t = line_write(s->m, &s->ticket, core, t);
        t = line_write(s->m, &s->bell[0], core, t);
        for (int g = 0; g < s->n_groups; g++)
            s->vis[g] = t;
    }
    for (int v = 0; v < s->n; v++) {
        struct thread *w = &s->th[v];
        if (w->state != WAIT)
            continue;
        w->t = line_read(s->m, &s->bell[s->groups ? w->group : 0], w->core, s->vis[w->group]);
        w->state = LOOK;
    }
    if (next == p->n_phases)
        s->end = t;
    return t;
}

/* The thread has something new to look at, or nothing. */
static void look(struct sim *s, int i)
{
    struct thread *w = &s->th[i];
    const struct machine *m = s->m;
    w->t = line_read(m, s->groups && s->n > 1 ? &s->bell[w->group] : &s->word, w->core, w->t);
    if (s->cur == w->phase || (w->t < s->vis[w->group] && s->opener != i)) {
        w->state = WAIT;
        if (s->cur != w->phase) /* it is on its way */
            w->t = s->vis[w->group], w->state = LOOK;
        return;
    }
    w->phase = s->cur;
    w->state = s->cur == s->j->plan->n_phases ? OVER : SCAN;
    w->q = 0;
    if (w->state == OVER)
        return;
    /* Its input: the first of a complex brings it there. */
    double lines = s->j->tokens > 1 ? 0 : s->j->work[s->cur].act / 64, ns = ns_complex;
    int cx = w->core / m->per_complex;
    if (!s->act[cx])
        ns = distance(m, w->core, s->th[s->opener].core);
    s->act[cx] = 1;
    if (i != s->opener)
        w->t += ceil(lines / LINES_AT_ONCE) * ns;
}

static void count(struct sim *s, int i, int chunks, int of)
{
    struct thread *w = &s->th[i];
    if (s->groups && s->n_groups > 1) {
        w->t = line_write(s->m, &s->count[s->group_of[of]], w->core, w->t);
        s->left[s->group_of[of]] -= chunks;
        s->left_all -= chunks;
        if (s->left[s->group_of[of]] > 0)
            return;
    } else {
        s->left_all -= chunks;
    }
    w->t = line_write(s->m, &s->all, w->core, w->t);
    if (s->left_all == 0 && s->cur == w->phase) {
        s->cur = -2; /* nobody else */
        w->t = open_next(s, i, w->phase, w->t);
    }
}

static void scan(struct sim *s, int i)
{
    struct thread *w = &s->th[i];
    if (w->phase != s->cur && s->groups) {
        w->state = LOOK;
        return;
    }
    if (w->q == s->n) {
        w->state = LOOK;
        return;
    }
    int v = s->order[i][w->q], own = v == w->share;
    w->t = line_read(s->m, &s->share[v], w->core, w->t);
    if (w->phase != s->cur || s->lo[v] >= s->hi[v]) {
        w->q += !w->pending;
        w->state = w->pending ? PUBLISH : SCAN;
        return;
    }
    w->t = line_write(s->m, &s->share[v], w->core, w->t);
    int n = (int)cpu_cut_part(&s->cut, (uint32_t)(s->hi[v] - s->lo[v]));
    int64_t lo = (own ? s->lo[v] : s->hi[v] - n) * s->cut.chunk, hi = lo + n * s->cut.chunk;
    if (own)
        s->lo[v] += n;
    else
        s->hi[v] -= n;
    hi = hi < s->cut.n_units ? hi : s->cut.n_units;
    int far = s->core_of[v] / s->m->per_node != w->core / s->m->per_node;
    double ns = units_ns(s, lo, hi, w->core, far);
    s->busy += ns;
    w->t += ns;
    w->pending += n;
    w->of = v;
    w->state = s->groups ? SCAN : PUBLISH; /* each take, or a share once it is empty */
}

static int first_in_time(const struct sim *s)
{
    int best = -1;
    for (int i = 0; i < s->n; i++)
        if (s->th[i].state != WAIT && s->th[i].state != OVER &&
            (best < 0 || s->th[i].t < s->th[best].t))
            best = i;
    return best;
}

enum way { FLAT, GROUPS, CUT, COPIES, WAYS };
static const char *const ways[] = {"flat", "groups", "cut", "copies"};

/* Runs a step on n threads; returns its nanoseconds. */
static double simulate(struct sim *s, const struct machine *m, struct job1 *j, int n, int way)
{
    int groups = way > FLAT;
    memset(s, 0, sizeof *s);
    s->m = m;
    s->j = j;
    s->n = n;
    s->groups = groups && n > 16;
    s->cut_fine = way >= CUT;
    s->copies = way == COPIES;
    s->n_nodes = m->cores / m->per_node <= n ? m->cores / m->per_node : 1;
    j->x.n_threads = n;
    j->x.n_nodes = s->n_nodes;
    place(s);
    for (int i = 0; i < CORES_MAX; i++) {
        line_init(&s->share[i]);
        line_init(&s->count[i]);
        line_init(&s->bell[i]);
    }
    line_init(&s->all);
    line_init(&s->word);
    line_init(&s->ticket);
    s->cur = -1;
    for (int i = 0; i < n; i++) {
        s->th[i].phase = -1;
        s->th[i].state = i ? WAIT : LOOK;
    }
    s->th[0].t = open_next(s, 0, -1, 0);
    for (int i; (i = first_in_time(s)) >= 0;) {
        struct thread *w = &s->th[i];
        if (w->state == LOOK) {
            look(s, i);
        } else if (w->state == SCAN) {
            scan(s, i);
        } else if (w->state == PUBLISH) {
            int chunks = w->pending;
            w->pending = 0;
            w->state = SCAN;
            count(s, i, chunks, w->of);
        }
    }
    return s->end;
}

/* What the machine's memory and n of its cores allow, without any hand-over. */
static double ideal_ns(struct sim *s, const struct job1 *j)
{
    double sum = 0, fast = 0;
    for (int v = 0; v < s->n; v++)
        fast += 1 / slowness(s->m, s->core_of[v]);
    for (int32_t p = 0; p < j->plan->n_phases; p++) {
        double gbs = 0;
        for (int v = 0; v < s->n; v++) {
            double bytes = j->work[p].bytes;
            gbs += bytes > 0 ? bytes / work_ns(s, s->core_of[v], 0, bytes, 0, 1) : 0;
        }
        double by_bytes = gbs > 0 ? j->work[p].bytes / gbs : 0, by_cores = j->work[p].ns / fast;
        sum += by_bytes > by_cores ? by_bytes : by_cores;
    }
    return sum;
}

/* ---------------------------------------------------------------- tables */

static void table(const struct machine *m, struct job1 *j)
{
    static struct sim s;
    printf("\n%s, %s: tokens/s, of ideal, handing over, by one thread\n", m->name, j->name);
    printf("  threads");
    for (int way = 0; way < WAYS; way++)
        printf("  %22s", ways[way]);
    printf("\n");
    for (int n = 1; n <= m->cores; n *= 2) {
        printf("  %7d", n);
        for (int way = 0; way < WAYS; way++) {
            double ns = simulate(&s, m, j, n, way);
            /* Of the threads' time: what is neither work nor waiting for what one thread does. */
            double wait = 1 - (s.busy + s.serial * n) / (ns * n);
            printf("  %6.0f %3.0f %% %2.0f %% %2.0f %%", 1e9 * j->tokens / ns,
                   100 * ideal_ns(&s, j) / ns, 100 * wait, 100 * s.serial / ns);
        }
        printf("\n");
        for (int way = 0; way < WAYS && n == m->cores; way++) {
            double ns = simulate(&s, m, j, n, way);
            printf("  %s: %.0f us; products %.0f, attention %.0f, one thread %.0f\n",
                   ways[way], ns / 1e3, s.took[0] / 1e3,
                   s.took[1] / 1e3, s.serial / 1e3);
        }
    }
}

/* Bytes of activations over all links in a step, without copies and with. */
static void links(struct sim *s)
{
    double bytes[2] = {0, 0};
    for (int k = 0; k < 2; k++)
        for (int32_t p = 0; p < s->j->plan->n_phases; p++) {
            s->copies = k;
            bytes[k] += linked(s, p) * s->n_nodes;
        }
    if (s->n_nodes > 1)
        printf("  activations over links: %.1f MB a step, %.1f with copies\n", bytes[0] / 1e6,
               bytes[1] / 1e6);
}

int main(int argc, char **argv)
{
    struct pith_error err = {0};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    need(argc > 1, "bench_pool MODEL [rows of a prompt [depth [READ_SERVE]]]");
    int rows = argc > 2 ? atoi(argv[2]) : 512, depth = argc > 3 ? atoi(argv[3]) : 256;
    need(rows > 16 && depth > 0 && depth < 1 << 20, "more than 16 rows of a prompt, some depth");
    mp.n_threads = 1;
    mp.n_batch = rows > depth ? rows : depth;
    pith_model *m = pith_model_open(argv[1], &mp, &err);
    need(m && pith_model_get_info(m, &info, &err) == PITH_OK, err.msg);
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = depth + rows + 1;
    pith_session *s = pith_session_open(m, &sp, &err);
    need(s != NULL, err.msg);
    int32_t *ids = calloc((size_t)mp.n_batch, sizeof *ids);
    need(ids != NULL, "out of memory");
    for (int i = 0; i < mp.n_batch; i++)
        ids[i] = (int32_t)((i * 7919LL + 11) % info.n_vocab);
    pith_profile(s, 1);
    char prompt[64];
    snprintf(prompt, sizeof prompt, "prefill of %d rows", rows);
    time_step(s, NULL, 0, ids, rows);
    struct job1 prefill = take_job(s, prompt, rows);
    for (int i = 0; i < REPS / 4; i++)
        time_step(s, &prefill, 0, ids, rows);
    time_cuts(&prefill);
    time_step(s, NULL, 0, ids, depth);
    time_step(s, NULL, depth, ids, 1);
    struct job1 decode = take_job(s, "decode", 1);
    for (int i = 0; i < REPS; i++)
        time_step(s, &decode, depth, ids, 1);
    time_cuts(&decode);

    double line = measure_line(), wake = measure_wake();
    ns_complex = line > 0 ? line : ns_complex;
    double read = 0, took = 0;
    for (int32_t p = 0; p < decode.plan->n_phases; p++) {
        read += decode.work[p].bytes;
        took += decode.work[p].ns;
    }
    read_serve = argc > 4 ? atof(argv[4]) : read_serve;
    printf("here: a line from core to core %.0f ns, waking a sleeper %.0f ns; one thread decodes "
           "in %.2f ms (%.1f GB/s), %d phases\n",
           line, wake, took / 1e6, read / took, decode.plan->n_phases);
    static struct sim sim;
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        table(&machines[i], &decode);
        table(&machines[i], &prefill);
        simulate(&sim, &machines[i], &prefill, machines[i].cores, COPIES);
        links(&sim);
    }
    free(ids);
    free(decode.step);
    free(decode.work);
    free(prefill.step);
    free(prefill.work);
    pith_session_close(s);
    pith_model_close(m);
    return 0;
}
