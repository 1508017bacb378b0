/* report.c -- what ran: per kind of op its kernel, device, calls, bytes, operations, time; every
 * fallback by name; what a sequence keeps; the kept copy of packed weights and the prefix store's
 * folder. */
#include "run/session/session.h"

#include <string.h>

#include "base/machine/cpu.h"
#include "base/mem.h"
#include "run/cache/store_disk.h"

struct group {
    const struct call *first;
    struct call_stats sum;
    int n_calls, n_slow;
};

static int same_group(const struct call *a, const struct call *b)
{
    return a->op == b->op && a->dst.device == b->dst.device &&
           !(a->w && a->w->brought) == !(b->w && b->w->brought) &&
           !strcmp(a->impl.kernel, b->impl.kernel) && (!a->w || !b->w || a->w->type == b->w->type);
}

/* Adds the calls of a role to n groups; returns how many there are then. */
static int collect(const struct session_role *r, struct group *g, int n)
{
    for (int32_t i = 0; i < r->plan.n_calls; i++) {
        const struct call *c = &r->plan.calls[i];
        const struct call_stats *st = &r->stats[i];
        int k = 0;
        while (k < n && !same_group(g[k].first, c))
            k++;
        if (k == n)
            g[n++] = (struct group){.first = c};
        g[k].n_calls++;
        g[k].n_slow += c->impl.slow;
        g[k].sum.n += st->n;
        g[k].sum.bytes += st->bytes;
        g[k].sum.ops += st->ops;
        g[k].sum.ns += st->ns;
        g[k].sum.brought += st->brought;
    }
    return n;
}

/* The kept copy of the packed weights: its path when it is in use, and what was wrong with it. */
static void put_copy(const struct pith_model *m, int json, struct str *out)
{
    const char *path = m->copy.map.p ? m->copy.path : "";
    const char *note = m->note.n ? m->note.p : "";
    if (json) {
        str_putz(out, "{\"packed_copy\": ");
        str_json(out, path, strlen(path));
        str_putz(out, ", \"note\": ");
        str_json(out, note, strlen(note));
        str_putz(out, ", ");
    } else {
        str_printf(out, "%s%s%s%s%s", *path ? "packed weights mapped from " : "", path,
                   *path ? "\n" : "", note, *note ? "\n" : "");
    }
}

/* What devices that record have recorded; nothing where none does. */
static void put_recordings(const struct pith_session *s, int json, struct str *out)
{
    struct recordings all = {0};
    int some = 0;
    for (int i = 0; i < SESSION_ROLES; i++)
        for (int d = 0; d < s->model->n_devices; d++) {
            const struct job *j = s->role[i].run.job[d];
            const struct backend *b = s->model->devices[d]->backend;
            struct recordings r;
            if (!j || !b->recordings)
                continue;
            b->recordings(j, &r);
            all.replayed += r.replayed;
            all.recorded += r.recorded;
            all.evicted += r.evicted;
            all.refused += r.refused;
            all.why = r.why ? r.why : all.why;
            some = 1;
        }
    if (!some)
        return;
    str_printf(out,
               json ? "\"recordings\": {\"replayed\": %llu, \"recorded\": %llu, \"evicted\": "
                      "%llu, \"refused\": %llu"
                    : "recorded commands: run again %llu times, recorded %llu, evicted %llu, "
                      "call by call %llu",
               (unsigned long long)all.replayed, (unsigned long long)all.recorded,
               (unsigned long long)all.evicted, (unsigned long long)all.refused);
    if (all.why)
        str_printf(out, json ? ", \"why\": \"%s\"" : ", since %s", all.why);
    str_putz(out, json ? "}, " : "\n");
}

void session_read_ahead(const struct pith_session *s, struct pith_read_ahead *out)
{
    for (int i = 0; i < SESSION_ROLES; i++)
        for (int l = 0; l < (i == ROLE_DECODER ? s->n_lanes : 1); l++) {
            const struct plan_run *r = l ? &s->role[i].beside[l - 1] : &s->role[i].run;
            for (int d = 0; d < s->model->n_devices; d++)
                if (r->job[d] && s->model->devices[d]->backend->read_ahead)
                    s->model->devices[d]->backend->read_ahead(r->job[d], out);
        }
}

/* What was asked of the disk; nothing where there is nothing to ask for. */
static void put_read_ahead(const struct pith_session *s, int json, struct str *out)
{
    struct pith_read_ahead a = PITH_READ_AHEAD_INIT;
    session_read_ahead(s, &a);
    if (!a.layers)
        return;
    str_printf(out,
               json ? "\"read_ahead\": {\"layers\": %lld, \"looked\": %llu, \"asked\": %llu, "
                      "\"asked_bytes\": %llu, \"guessed\": %llu, \"right\": %llu, \"late\": "
                      "%llu, \"step_ns\": %lld, \"thread_ns\": %lld}, "
                    : "experts in the file: %lld layers; matrices looked for %llu, asked for %llu "
                      "(%llu bytes); experts guessed %llu, right %llu; late %llu; ns of steps "
                      "%lld, beside them %lld\n",
               (long long)a.layers, (unsigned long long)a.looked, (unsigned long long)a.asked,
               (unsigned long long)a.asked_bytes, (unsigned long long)a.guessed,
               (unsigned long long)a.right, (unsigned long long)a.late, (long long)a.step_ns,
               (long long)a.thread_ns);
}

/* What is divided over which devices, and what is not, and why; nothing where nothing was to be. */
static void put_slices(const struct pith_model *m, int json, struct str *out)
{
    struct slicing of;
    model_sliced(m, &of);
    if (!m->slicing.n)
        return;
    str_printf(out, json ? "\"split\": {\"matrices\": %d, \"columns\": %d, \"expert_stacks\": %d, "
                           "\"devices\": ["
                         : "rows of %d matrices, columns of %d, experts of %d stacks are split:",
               of.matrices, of.columns, of.stacks);
    for (int d = 0, k = 0; d < m->n_devices; d++)
        if (of.bytes[d])
            str_printf(out, json ? "%s{\"device\": \"%s\", \"bytes\": %llu}" : "%s %s %llu bytes",
                       !k++ ? "" : json ? ", " : ",", m->devices[d]->name,
                       (unsigned long long)of.bytes[d]);
    const struct device *main = m->devices[m->slicing.device[m->slicing.n - 1]];
    const char *by = main->backend->joined ? main->backend->joined(main) : NULL;
    str_printf(out, json ? "], \"between\": \"%s\", \"whole\": [" : "; between them: %s",
               by ? by : "copies");
    for (int32_t i = 0; i < of.n_whole; i++)
        str_printf(out, json ? "%s{\"why\": \"%s\", \"n\": %d}" : "%s%s: %d",
                   i ? ", " : json ? "" : "; whole: ", of.whole[i].why, of.whole[i].n);
    str_putz(out, json ? "]" : "");
    if (of.no_columns)
        str_printf(out, json ? ", \"not_by_columns\": {\"n\": %d, \"why\": \"%s\"}"
                             : "; %d by rows and not by columns: %s",
                   of.no_columns, of.why_no_columns);
    if (of.layers)
        str_printf(out, json ? ", \"attention_by_heads\": %d"
                             : "; attention of %d layers by heads", of.layers);
    if (of.no_heads)
        str_printf(out, json ? ", \"not_by_heads\": {\"n\": %d, \"why\": \"%s\"}"
                             : "; of %d not by heads: %s",
                   of.no_heads, of.why_no_heads);
    str_putz(out, json ? "}, " : "\n");
}

/* How pools of pages on devices of their own memory grow; nothing where there are none. */
static void put_pools(const struct pith_session *s, int json, struct str *out)
{
    int n = 0;
    for (int d = 0; d < s->model->n_devices; d++) {
        const struct device *dev = s->model->devices[d];
        const struct slabs *pool = NULL;
        struct device_limits lim;
        dev->backend->limits(dev, &lim);
        for (int g = 0; g < s->cache.n_groups && !lim.host; g++)
            if (s->cache.group[g].device == d)
                pool = &s->cache.group[g].pages;
        if (!pool)
            continue;
        str_putz(out, n++ ? ", " : json ? "\"pools\": [" : "pages of ");
        str_printf(out, json ? "{\"device\": \"%s\", \"in_place\": %s}" : "%s grow %s", dev->name,
                   json ? (pool->reserved ? "true" : "false")
                        : (pool->reserved ? "in place" : "slab by slab"));
    }
    if (n)
        str_putz(out, json ? "], " : "\n");
}

/* How many op calls have bits that depend on the batch; nothing where none has. */
static void put_bits(const struct pith_session *s, int json, struct str *out)
{
    int32_t n = 0;
    for (int i = 0; i < SESSION_ROLES; i++)
        for (int32_t c = 0; c < s->role[i].plan.n_calls; c++)
            n += s->role[i].plan.calls[c].impl.by_rows;
    if (n)
        str_printf(out, json ? "\"bits_by_rows\": %d, "
                             : "bits of %d op calls depend on how many rows a step has; with "
                               "--reproducible of none\n", n);
}

/* ---------------------------------------------------------------- states */

static const char *range_called(const struct state *s)
{
    return state_is(s, STATE_PAGED) ? state_range_called(s->range) : "";
}

/* Heads that devices share are told by the shares. */
static int is_told(const struct state *s)
{
    return !s->n_shares;
}

/* V of its own, that is. */
static int has_v(const struct state *s)
{
    return state_is(s, STATE_PAGED) && s->v_head && !state_is(s, STATE_V_IN_K);
}

static uint64_t bytes_of(const struct state *s)
{
    uint64_t n = 0;
    for (int i = 0; i < STATE_PARTS; i++)
        n += (uint64_t)s->n[i] * sizeof(float);
    int64_t head = s->k_head + (has_v(s) ? s->v_head : 0);
    return state_is(s, STATE_PAGED) ? (uint64_t)(s->n_head_kv * head) : n;
}

static int same_state(const struct state *a, const struct state *b)
{
    int paged = state_is(a, STATE_PAGED);
    return a->rows == b->rows && a->device == b->device && bytes_of(a) == bytes_of(b) &&
           (!paged || (a->range == b->range && a->span == b->span && a->k_type == b->k_type &&
                       a->v_type == b->v_type && state_every(a) == state_every(b) &&
                       a->ratio == b->ratio));
}

/* Visits that name a state like this one. */
static int32_t n_users(const struct pith_session *s, const struct state *like)
{
    int32_t n = 0;
    for (int32_t v = 0; v < s->arch->n_visits; v++) {
        int names = 0;
        for (int k = 0; k < STATE_SLOTS; k++) {
            int32_t at = s->arch->state_of[v][k];
            const struct state *of = at >= 0 ? &s->states[at] : NULL;
            for (int32_t i = 0; of && i < of->n_shares; i++)
                names |= same_state(&s->states[of->shares + i], like);
            names |= of && is_told(of) && same_state(of, like);
        }
        n += names;
    }
    return n;
}

/* The i-th that is unlike all before it; NULL: there are fewer. */
static const struct state *unlike(const struct pith_session *s, int32_t i)
{
    for (int32_t k = 0; k < s->n_states; k++) {
        int32_t j = 0;
        while (j < k && !(is_told(&s->states[j]) && same_state(&s->states[j], &s->states[k])))
            j++;
        if (j == k && is_told(&s->states[k]) && !i--)
            return &s->states[k];
    }
    return NULL;
}

int session_state(const struct pith_session *s, int32_t i, struct pith_session_state *out)
{
    const struct state *is = unlike(s, i);
    if (!is)
        return 0;
    int paged = state_is(is, STATE_PAGED);
    *out = (struct pith_session_state){
        .rows = state_called(is),
        .range = range_called(is),
        .span = paged ? is->span : 0,
        .ratio = is->ratio > 1 ? is->ratio : 1,
        .layers = n_users(s, is),
        .first = is->layer,
        .type_k = paged ? dtypes[is->k_type].name : "f32",
        .type_v = has_v(is) ? dtypes[is->v_type].name : NULL,
        .device = s->model->devices[is->device]->name,
    };
    for (int32_t k = 0; k < s->n_states; k++)
        if (is_told(&s->states[k]) && same_state(&s->states[k], is)) {
            out->states++;
            out->bytes += bytes_of(is);
        }
    return 1;
}

/* What a sequence keeps; nothing where it keeps nothing. */
static void put_states(const struct pith_session *s, int json, struct str *out)
{
    struct pith_session_state k;
    str_putz(out, json ? "\"states\": [" : "");
    for (int32_t i = 0; session_state(s, i, &k); i++) {
        char span[16] = "", every[40] = "";
        if (k.ratio > 1)
            snprintf(every, sizeof every, ", a row for %d tokens", k.ratio);
        if (k.span)
            snprintf(span, sizeof span, " %d", k.span);
        if (json)
            str_printf(out,
                       "%s{\"rows\": \"%s\", \"range\": \"%s\", \"span\": %d, \"ratio\": %d, "
                       "\"layers\": %d, \"states\": %d, \"first\": %d, \"type_k\": \"%s\", "
                       "\"type_v\": \"%s\", \"device\": \"%s\", \"bytes\": %llu}",
                       i ? ", " : "", k.rows, k.range, k.span, k.ratio, k.layers, k.states, k.first,
                       k.type_k, k.type_v ? k.type_v : "", k.device, (unsigned long long)k.bytes);
        else
            str_printf(out,
                       "state: %s of %d layers, %d of their own from layer %d on%s%s%s%s, %s%s%s, "
                       "%s, %llu bytes of %s\n",
                       k.rows, k.layers, k.states, k.first, *k.range ? ", " : "", k.range, span,
                       every, k.type_k, k.type_v ? " " : "", k.type_v ? k.type_v : "", k.device,
                       (unsigned long long)k.bytes, *k.range ? "64 positions" : "a sequence");
    }
    str_putz(out, json ? "], " : "");
}

/* The first state whose type the session chose, else the first. */
static const struct state *keeper(const struct pith_session *s)
{
    int32_t i = 0, n = s->n_states;
    while (i < n && (s->states[i].group < 0 || s->states[i].fixed))
        i++;
    return &s->states[i < n ? i : 0];
}

/* What can be done with its sequences. */
static void put_edits(const struct pith_session *s, int json, struct str *out)
{
    static const char *const names[] = {"copy", "truncate", "remove", "shift", "gaps", "trees"};
    uint32_t edits = session_edits(s);
    int n = 0;
    str_putz(out, json ? "\"edits\": [" : "edits:");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (edits >> i & 1)
            str_printf(out, json ? "%s\"%s\"" : "%.0s %s", n++ ? ", " : "", names[i]);
    str_putz(out, json ? "], " : n ? "\n" : " none\n");
}

/* What devices of the model lack that kernels would use; nothing where they lack nothing. */
static void put_lacks(const struct pith_model *m, int json, struct str *out)
{
    int n = 0;
    for (int d = 0; d < m->n_devices; d++) {
        const struct device *dev = m->devices[d];
        if (!*dev->lacks)
            continue;
        str_printf(out,
                   !json ? "%s without %s\n"
                   : n   ? ", {\"device\": \"%s\", \"lacks\": \"%s\"}"
                         : "\"lacks\": [{\"device\": \"%s\", \"lacks\": \"%s\"}",
                   dev->name, dev->lacks);
        n++;
    }
    if (n && json)
        str_putz(out, "], ");
}

/* What the model was asked for and has not; nothing where there is no such thing. */
static void put_note(const struct pith_model *m, int json, struct str *out)
{
    if (!m->note.n)
        return;
    str_putz(out, json ? "\"note\": " : "note: ");
    if (json)
        str_json(out, m->note.p, m->note.n);
    else
        str_putz(out, m->note.p);
    str_putz(out, json ? ", " : "\n");
}

/* What a line of the text ends in: of a product its weight's type may be what is slow, of any other
 * op that it has no kernel. */
static const char *slow_mark(const struct group *g)
{
    if (!g->n_slow)
        return "";
    return op_has(g->first->op, OP_PRODUCT) ? "  FALLBACK of its type" : "  FALLBACK";
}

void session_report(const struct pith_session *s, int json, struct str *out)
{
    int32_t n_calls = 0, n_phases = 0, n = 0;
    for (int i = 0; i < SESSION_ROLES; i++) {
        n_calls += s->role[i].plan.n_calls;
        n_phases += s->role[i].plan.n_phases;
    }
    struct group *g = mem_array((size_t)n_calls, sizeof *g, PITH_MEM_META);
    for (int i = 0; g && i < SESSION_ROLES; i++)
        n = collect(&s->role[i], g, n);
    out->failed |= !g;
    put_note(s->model, json, out);
    put_copy(s->model, json, out);
    put_slices(s->model, json, out);
    put_edits(s, json, out);
    put_states(s, json, out);
    put_recordings(s, json, out);
    put_read_ahead(s, json, out);
    put_pools(s, json, out);
    put_lacks(s->model, json, out);
    upload_report(s, json, out);
    put_bits(s, json, out);
    if (s->store.disk)
        store_disk_report(s->store.disk, json, out);
    str_printf(out,
               json ? "\"threads\": %d, \"threads_prefill\": %d, \"threads_refused\": %d, "
                      "\"isa\": \"%s\", \"phases\": %d, \"calls\": %d, \"cache_bytes\": %llu, "
                      "\"cache_type_k\": \"%s\", \"cache_type_v\": \"%s\", \"ops\": ["
                    : "%d threads (prefill %d; %d not at their place), %s, %d phases, %d op calls, "
                      "cache %llu bytes, K %s, V %s\nop, weight, kernel, device, "
                      "calls, runs, bytes, operations, ns, bytes of weights brought\n",
               s->n_threads, s->n_threads_prefill, pool_n_refused(s->model->pool),
               cpu_level_used(), n_phases, n_calls,
               (unsigned long long)(cache_bytes(&s->cache) + recurrent_bytes(&s->recurrent)),
               dtypes[keeper(s)->k_type].name, dtypes[keeper(s)->v_type].name);
    for (int i = 0; i < n; i++) {
        const struct call *c = g[i].first;
        str_printf(out,
                   json ? "%s{\"op\": \"%s\", \"weight\": \"%s\", \"kernel\": \"%s\", \"device\": "
                          "\"%s\", \"calls\": %d, \"runs\": %llu, \"bytes\": %llu, \"ops\": %llu, "
                          "\"ns\": %lld, \"brought\": %llu, \"fallback\": %s}"
                        : "%s%s, %s, %s, %s, %d, %llu, %llu, %llu, %lld, %llu%s\n",
                   json && i ? ", " : "", op_infos[c->op]->name, c->w ? dtypes[c->w->type].name :
                       "",
                   c->impl.kernel, s->model->devices[c->dst.device]->name, g[i].n_calls,
                   (unsigned long long)g[i].sum.n, (unsigned long long)g[i].sum.bytes,
                   (unsigned long long)g[i].sum.ops, (long long)g[i].sum.ns,
                   (unsigned long long)g[i].sum.brought,
                   json ? (g[i].n_slow ? "true" : "false") : slow_mark(&g[i]));
    }
    if (json)
        str_putz(out, "]}");
    mem_free(g);
}
