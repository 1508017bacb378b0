/* spread.c -- which devices a model is opened on, and which of them computes what.
 *
 *     devices   those that were named; else the CPU and every discrete GPU, or without any the
 *               integrated ones. The first is always one that has every op.
 *     layers    the last ones on GPUs, as many as were asked for or fit (place.c); the others on
 *               the CPU.
 *               Layers that share a state stay together, and so do a layer and its states.
 *     rows      of the matrices of layers that one GPU has may be on all of them: slices.c
 *     nodes     where their layer is; where a weight was sent by name its product goes with it, and
 *               what comes between two such products if less has to be copied so. A node for which
 *               its device has no kernel goes to the first device; one that has a state takes the
 *               state along.
 *
 * PITH_LAYER_DEVICES=0,1 says instead that layer l goes to the (l mod n)-th of the list. */
#include "run/model/model.h"

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/env.h"
#include "base/mem.h"
#include "base/machine/cpu.h"
#include "graph/cut.h"

#define X(symbol) extern const struct backend symbol;
#include "run/backends.def"
#undef X
#define X(symbol) &symbol,
static const struct backend *const backends[] = {
#include "run/backends.def"
};
#undef X
enum { N_BACKENDS = sizeof backends / sizeof *backends, NAME_MAX_BYTES = 64 };

const struct backend *first_backend(void)
{
    return backends[0];
}

/* ---------------------------------------------------------------- devices */

/* The next of names with commas between them: its beginning, its length in *n; NULL: no more. */
static const char *next_name(const char **list, size_t *n)
{
    const char *p = *list;
    if (!p)
        return NULL;
    *n = strcspn(p, ",");
    *list = p[*n] ? p + *n + 1 : NULL;
    return p;
}

static int is_name(const char *p, size_t n, const char *name)
{
    return strlen(name) == n && !strncasecmp(p, name, n);
}

static int is_listed(const char *list, const char *name)
{
    size_t n;
    for (const char *p; (p = next_name(&list, &n));)
        if (is_name(p, n, name))
            return 1;
    return 0;
}

/* Can one of the names be a device of this backend? Theirs begin with its name. */
static int may_have(const struct backend *b, const char *list)
{
    size_t n, own = strlen(b->name);
    for (const char *p; (p = next_name(&list, &n));)
        if (n >= own && !strncasecmp(p, b->name, own))
            return 1;
    return 0;
}

/* "CPU, vulkan0": what there is. */
static void name_all(const struct pith_model *m, struct str *out)
{
    for (int d = 0; d < m->n_devices; d++)
        str_printf(out, "%s%s", d ? ", " : "", m->devices[d]->name);
}

static void drop_device(struct pith_model *m, int d)
{
    m->devices[d]->backend->close(m->devices[d]);
    memmove(&m->devices[d], &m->devices[d + 1],
            (size_t)(m->n_devices - d - 1) * sizeof *m->devices);
    m->n_devices--;
}

static int is_gpu(const struct device *d)
{
    return d->kind != DEVICE_CPU;
}

static int count_kind(const struct pith_model *m, enum device_kind kind)
{
    int n = 0;
    for (int d = 0; d < m->n_devices; d++)
        n += m->devices[d]->kind == kind;
    return n;
}

static void note_unused(struct pith_model *m, const char *why)
{
    str_printf(&m->note, "%s%s: it is not used", m->note.n ? "; " : "", why);
}

/* Every device of a backend; one that cannot be opened is worth a sentence where nobody named it.
 * What is only not installed, *missing, is worth one where that leaves no GPU. */
static pith_status open_backend(struct pith_model *m, const struct backend *b,
                                struct pith_error *missing, struct pith_error *err)
{
    int named = m->params.devices || m->params.strict || env_get("PITH_LAYER_DEVICES");
    int n = b->n_devices(err);
    if (n < 0)
        return err->code;
    for (int i = 0; i < n && m->n_devices < MAX_DEVICES; i++) {
        struct device *d;
        struct pith_error why = {0};
        pith_status st = b->open(i, m->params.reference, &d, &why);
        if (st == PITH_OK) {
            d->reproducible = m->params.reproducible != 0;
            m->devices[m->n_devices++] = d;
            continue;
        }
        if (named || b == backends[0])
            return error_set(err, st, "%s", why.msg);
        if (st == PITH_MISSING)
            error_set(missing, st, "%s", why.msg);
        else
            note_unused(m, why.msg);
    }
    return PITH_OK;
}

static pith_status check_names(const struct pith_model *m, struct pith_error *err)
{
    const char *list = m->params.devices;
    size_t n;
    for (const char *p; (p = next_name(&list, &n));) {
        int d = 0;
        while (d < m->n_devices && !is_name(p, n, m->devices[d]->name))
            d++;
        if (d < m->n_devices)
            continue;
        struct str all;
        str_init(&all, PITH_MEM_META);
        name_all(m, &all);
        pith_status st =
            error_set(err, PITH_RANGE,
                      "there is no device \"%.*s\"; there are: %s ('pith devices' "
                      "lists all)",
                      (int)(n < NAME_MAX_BYTES ? n : NAME_MAX_BYTES), p, all.n ? all.p : "none");
        str_deinit(&all);
        return st;
    }
    return PITH_OK;
}

/* One GPU that two backends offer is used once, by the first of them: device d has a twin. */
static int has_twin(const struct pith_model *m, int d)
{
    const struct device *dev = m->devices[d];
    for (int i = 0; i < d && is_gpu(dev) && *dev->about; i++)
        if (m->devices[i]->backend != dev->backend && !strcmp(m->devices[i]->about, dev->about))
            return 1;
    return 0;
}

/* A level that PITH_CPU names and the processor has not gives another one. */
static pith_status tell_level(struct pith_model *m, struct pith_error *err)
{
    const char *want = env_get("PITH_CPU");
    enum cpu_level level;
    pith_status st = cpu_level(&level, err);
    if (st != PITH_OK || !want || !strcmp(want, cpu_level_name(level)))
        return st;
    if (m->params.strict)
        return error_set(err, PITH_UNSUPPORTED,
                         "--strict: PITH_CPU is %s, which this machine has not", want);
    str_printf(&m->note, "%sPITH_CPU is %s, which this machine has not: it runs with %s",
               m->note.n ? "; " : "", want, cpu_level_name(level));
    return PITH_OK;
}

pith_status model_open_devices(struct pith_model *m, struct pith_error *err)
{
    const char *list = m->params.devices;
    struct pith_error missing = {PITH_OK, ""};
    pith_status st = tell_level(m, err);
    for (int b = 0; b < N_BACKENDS && st == PITH_OK; b++)
        if (!list || !b || may_have(backends[b], list))
            st = open_backend(m, backends[b], &missing, err);
    if (st == PITH_OK)
        st = check_names(m, err);
    if (st != PITH_OK)
        return st;
    int discrete = count_kind(m, DEVICE_GPU);
    for (int d = m->n_devices - 1; d > 0; d--) {
        const struct device *dev = m->devices[d];
        if (list ? !is_listed(list, dev->name)
                 : dev->kind == DEVICE_SOFTWARE || (dev->kind == DEVICE_INTEGRATED && discrete) ||
                       has_twin(m, d))
            drop_device(m, d);
    }
    int gpus = 0;
    for (int d = 0; d < m->n_devices; d++) {
        m->devices[d]->index = d;
        gpus += is_gpu(m->devices[d]);
    }
    if (missing.code != PITH_OK && !gpus)
        note_unused(m, missing.msg);
    return PITH_OK;
}

/* Devices of a backend; one in place of those that cannot be counted, which says why. */
static int count_of(const struct backend *b)
{
    int n = b->n_devices(NULL);
    return n < 0 ? 1 : n;
}

int devices_count(void)
{
    int n = 0;
    for (int b = 0; b < N_BACKENDS; b++)
        n += count_of(backends[b]);
    return n;
}

pith_status device_open_ith(int i, struct device **out, struct pith_error *err)
{
    int b = 0, k = i;
    while (b < N_BACKENDS && k >= count_of(backends[b]))
        k -= count_of(backends[b++]);
    if (i < 0 || b == N_BACKENDS)
        return error_set(err, PITH_RANGE, "there is no device %d; there are %d", i,
                         devices_count());
    if (backends[b]->n_devices(err) < 0)
        return err->code;
    return backends[b]->open(k, 0, out, err);
}

pith_status device_info(int i, struct pith_device_info *out, struct pith_error *err)
{
    static const char *const kinds[] = {"cpu", "gpu", "integrated", "software"};
    struct device *d;
    struct mem_left left = {0};
    pith_status st = device_open_ith(i, &d, err);
    if (st != PITH_OK)
        return st;
    d->backend->memory(d, &left);
    snprintf(out->name, sizeof out->name, "%s", d->name);
    snprintf(out->about, sizeof out->about, "%s", d->about);
    snprintf(out->backend, sizeof out->backend, "%s", d->backend->name);
    snprintf(out->kind, sizeof out->kind, "%s", kinds[d->kind]);
    snprintf(out->lacks, sizeof out->lacks, "%s", d->lacks);
    out->total_bytes = left.total;
    out->free_bytes = left.bytes;
    d->backend->close(d);
    return PITH_OK;
}

/* ---------------------------------------------------------------- what goes by name */

static pith_status check_numbers(const struct pith_model_params *p, struct pith_error *err)
{
    if (p->gpu_layers < PITH_GPU_LAYERS_NONE)
        return error_set(err, PITH_RANGE, "gpu_layers is %d, wanted -1 (none), 0 (auto) or more",
                         p->gpu_layers);
    if (p->recordings < PITH_RECORDINGS_NONE || p->recordings > MOST_RECORDINGS)
        return error_set(err, PITH_RANGE, "recordings is %d, wanted -1 (none), 0 (default) to %d",
                         p->recordings, MOST_RECORDINGS);
    if (p->cpu_experts < -1)
        return error_set(err, PITH_RANGE, "cpu_experts is %d, wanted -1 (all) or more",
                         p->cpu_experts);
    if (p->upload_rows < PITH_UPLOAD_NONE)
        return error_set(err, PITH_RANGE, "upload_rows is %d, wanted -1 (none), 0 (auto) or more",
                         p->upload_rows);
    if (p->split < PITH_SPLIT_LAYER || p->split > PITH_SPLIT_TENSOR)
        return error_set(err, PITH_RANGE, "split is %d, wanted layer, none, row or tensor",
                         (int)p->split);
    return PITH_OK;
}

/* The device that a name means; -1 with an error. */
static int device_named(const struct pith_model *m, const char *name, const char *where,
                        struct pith_error *err)
{
    for (int d = 0; d < m->n_devices; d++)
        if (!strcasecmp(name, m->devices[d]->name))
            return d;
    struct str all;
    str_init(&all, PITH_MEM_META);
    name_all(m, &all);
    error_set(err, PITH_RANGE, "%.80s: there is no device \"%.40s\"; there are: %s", where, name,
              all.n ? all.p : "none");
    str_deinit(&all);
    return -1;
}

/* What would take the C library's expressions much memory or time: a part that is repeated makes as
 * many copies, and what refers to a match is tried in every way. */
static int is_costly(const char *p)
{
    enum { MOST_COPIES = 1000 };
    double copies = 1;
    for (; *p; p++)
        if (*p == '\\' && p[1]) {
            if (*++p >= '1' && *p <= '9')
                return 1;
        } else if (*p == '{') {
            char *end;
            double low = strtod(p + 1, &end), high = *end == ',' ? strtod(end + 1, &end) : 0;
            copies *= high > low ? high : low > 1 ? low : 1;
        }
    return copies > MOST_COPIES;
}

/* Tensors whose names hold a match of the pattern; those that an earlier rule took stay with it. */
static pith_status send_matching(struct pith_model *m, const char *pattern, int32_t device,
                                 const char *rule, struct pith_error *err)
{
    regex_t re;
    if (is_costly(pattern))
        return error_set(err, PITH_RANGE,
                         "%.80s: the pattern repeats parts over 1,000 times, or refers to a match "
                         "of its own",
                         rule);
    int n = 0, code = regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB);
    if (code) {
        char why[96];
        regerror(code, &re, why, sizeof why);
        return error_set(err, PITH_RANGE, "%.80s: the pattern: %s", rule, why);
    }
    for (int32_t i = 0; i < m->n_tensors; i++) {
        if (regexec(&re, m->tensors[i]->name, 0, NULL, 0))
            continue;
        n++;
        if (m->sent[i] < 0)
            m->sent[i] = (int8_t)device;
    }
    regfree(&re);
    return n ? PITH_OK
             : error_set(err, PITH_RANGE, "%.80s: no tensor has such a name, as %s has", rule,
                         m->n_tensors ? m->tensors[0]->name : "");
}

enum { PATTERN_MAX = 200 };

/* The rule at *at, which goes on behind the comma that ends it: the first one behind its "=". */
static pith_status send_rule(struct pith_model *m, const char **at, struct pith_error *err)
{
    char rule[PATTERN_MAX + 64], pattern[PATTERN_MAX + 1];
    const char *p = *at;
    size_t n = strcspn(p, "="), all = n + strcspn(p + n, ",");
    if (!p[n] || !n || n > PATTERN_MAX || all >= sizeof rule)
        return error_set(err, PITH_RANGE,
                         "\"%.80s\": wanted PATTERN=DEVICE, the pattern at most %d bytes long", p,
                         PATTERN_MAX);
    snprintf(pattern, sizeof pattern, "%.*s", (int)n, p);
    snprintf(rule, sizeof rule, "%.*s", (int)all, p);
    *at = p + all + (p[all] == ',');
    int d = device_named(m, rule + n + 1, rule, err);
    return d < 0 ? PITH_RANGE : send_matching(m, pattern, d, rule, err);
}

static pith_status send_by_name(struct pith_model *m, struct pith_error *err)
{
    for (const char *const *o = m->params.placements; o && *o; o++) {
        const char *at = *o;
        pith_status st;
        do
            st = send_rule(m, &at, err);
        while (st == PITH_OK && *at);
        if (st != PITH_OK)
            return st;
    }
    int32_t stay = m->params.cpu_experts < 0 ? INT32_MAX : m->params.cpu_experts;
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct tensor *t = m->tensors[i];
        if (t->use == TENSOR_EXPERTS && t->layer >= 0 && t->layer < stay && m->sent[i] < 0)
            m->sent[i] = 0;
    }
    return PITH_OK;
}

/* ---------------------------------------------------------------- layers */

static pith_status by_turns(struct pith_model *m, const char *text, struct pith_error *err)
{
    int32_t list[MAX_DEVICES], n = 0;
    for (const char *p = text;; p++) {
        char *end;
        long d = strtol(p, &end, 10);
        if (end == p || d < 0 || d >= m->n_devices || n == MAX_DEVICES || (*end && *end != ','))
            return error_set(err, PITH_RANGE,
                             "PITH_LAYER_DEVICES=%.40s, wanted at most %d numbers of devices, "
                             "0..%d, with commas between them",
                             text, MAX_DEVICES, m->n_devices - 1);
        list[n++] = (int32_t)d;
        p = end;
        if (!*p)
            break;
    }
    for (int32_t l = 0; l < m->arch.hp.n_layer; l++)
        m->layer_device[l] = list[l % n];
    return PITH_OK;
}

static uint64_t device_free(const struct pith_model *m, int d)
{
    struct mem_left left;
    m->devices[d]->backend->memory(m->devices[d], &left);
    return left.bytes;
}

/* tensor_split, a number for each of them; without it by the memory that is free (GPUs), alike
 * (logical devices of one machine). */
static pith_status find_shares(const struct pith_model *m, struct takers *t, struct pith_error *err)
{
    const char *p = m->params.tensor_split;
    for (int i = 0; i < t->n; i++) {
        char *end = NULL;
        t->share[i] = !is_gpu(m->devices[t->device[i]]) ? 1 : (double)device_free(m, t->device[i]);
        if (p) {
            t->share[i] = str_to_double(p, &end);
            if (end == p || !(t->share[i] >= 0 && t->share[i] <= 1e9) ||
                *end != (i + 1 < t->n ? ',' : 0))
                return error_set(err, PITH_RANGE,
                                 "the shares of devices are \"%.60s\", wanted %d numbers from 0 to "
                                 "1e9 with commas between them",
                                 m->params.tensor_split, t->n);
            p = end + 1;
        }
        t->sum += t->share[i];
    }
    if (!(t->sum > 0)) {
        if (p)
            return error_set(err, PITH_RANGE, "the shares of devices are \"%.60s\": all are 0",
                             m->params.tensor_split);
        for (int i = 0; i < t->n; i++)
            t->sum += t->share[i] = 1;
    }
    return PITH_OK;
}

/* Layers [first, end) over the takers, in order. Where the model is a stage, those of others are
 * said to be where its nearest is. */
static void deal_layers(struct pith_model *m, const struct takers *t, int32_t first, int32_t end)
{
    int32_t n = end - first, at = 0;
    double sum = 0;
    for (int i = 0; i < t->n; i++) {
        sum += t->share[i];
        int32_t last = i == t->n - 1 ? n : (int32_t)(n * (sum / t->sum) + 0.5);
        for (; at < last; at++)
            m->layer_device[first + at] = t->device[i];
    }
    for (int32_t l = end; l < m->arch.hp.n_layer; l++)
        m->layer_device[l] = m->layer_device[end - 1];
}

int model_as_half(const struct pith_model *m, const struct tensor *t, int32_t device)
{
    return m->devices[device]->backend->half && t->n_dims > 1 && dtypes[t->type].block > 1;
}

static void find_takers(const struct pith_model *m, struct takers *t, int gpus)
{
    for (int d = 0; d < m->n_devices; d++)
        if (is_gpu(m->devices[d]) == gpus)
            t->device[t->n++] = d;
}

/* One alone, by its number among them. */
static void keep_one(struct takers *t, int32_t main)
{
    t->device[0] = t->device[main];
    t->share[0] = t->sum = t->n = 1;
}

/* The layers go to one of them, the rows of their matrices to all, to that one the last: what
 * others were given to do is under way when it begins. */
static pith_status keep_rows(struct pith_model *m, struct takers *t, int32_t main,
                             struct pith_error *err)
{
    struct takers *to = &m->slicing;
    *to = (struct takers){0};
    const char *how = m->params.split == PITH_SPLIT_ROW ? "split by rows (--split-mode row)"
                                                        : "--split-mode tensor";
    if (t->n < 2)
        return error_set(err, PITH_RANGE,
                         "%s wants two devices or more, there is %s alone; 'pith devices' lists "
                         "all",
                         how, m->devices[t->device[0]]->name);
    if (t->n > NODE_SRC)
        return error_set(err, PITH_RANGE,
                         "%s over %d devices, at most %d; --device names those that are meant", how,
                         t->n, NODE_SRC);
    m->by_columns = m->params.split == PITH_SPLIT_TENSOR && !m->params.reproducible;
    for (int i = 0; i < t->n; i++)
        m->by_columns = m->by_columns && is_gpu(m->devices[t->device[i]]);
    for (int i = 1; i <= t->n; i++) {
        int k = (main + i) % t->n;
        to->device[to->n] = t->device[k];
        to->share[to->n++] = t->share[k];
    }
    to->sum = t->sum;
    keep_one(t, main);
    return PITH_OK;
}

pith_status model_join(struct pith_model *m, struct pith_error *err)
{
    const struct takers *t = &m->slicing;
    struct device *d[MAX_DEVICES];
    struct pith_error why = {PITH_OK, ""};
    const struct backend *b = t->n ? m->devices[t->device[0]]->backend : NULL;
    int alike = b && b->join;
    for (int i = 0; i < t->n; i++) {
        d[i] = m->devices[t->device[i]];
        alike = alike && d[i]->backend == b;
    }
    if (!alike || b->join(d, t->n, &why) == PITH_OK)
        return PITH_OK;
    if (m->params.strict)
        return error_set(err, PITH_UNSUPPORTED, "--strict: %s", why.msg);
    str_printf(&m->note, "%s%s: values go between GPUs by copies", m->note.n ? "; " : "", why.msg);
    return PITH_OK;
}

static pith_status check_main(const struct pith_model *m, int n_gpus, struct pith_error *err)
{
    int32_t main = m->params.main_gpu;
    return main >= 0 && main < (n_gpus ? n_gpus : 1)
               ? PITH_OK
               : error_set(err, PITH_RANGE, "main_gpu is %d, there are %d GPUs", main, n_gpus);
}

/* Layers were asked for on GPUs, and there is none. */
static pith_status miss_gpus(struct pith_model *m, struct pith_error *err)
{
    if (m->params.strict)
        return error_set(err, PITH_UNSUPPORTED,
                         "--strict: layers were asked for on GPUs, and there is none that can be "
                         "used");
    str_printf(&m->note, "%slayers were asked for on GPUs, and there is none that can be used",
               m->note.n ? "; " : "");
    return PITH_OK;
}

static pith_status place_layers(struct pith_model *m, int32_t most, struct pith_error *err)
{
    int32_t lo, hi, n = m->params.gpu_layers;
    struct takers cpus = {0}, gpus = {0};
    const char *text = env_get("PITH_LAYER_DEVICES");
    arch_stage_layers(&m->arch, &lo, &hi);
    find_takers(m, &cpus, 0);
    find_takers(m, &gpus, 1);
    pith_status st = check_main(m, gpus.n, err);
    if (st == PITH_OK && !gpus.n && n > 0)
        st = miss_gpus(m, err);
    if (m->params.split == PITH_SPLIT_NONE && gpus.n && st == PITH_OK)
        keep_one(&gpus, m->params.main_gpu);
    if (st == PITH_OK)
        st = find_shares(m, gpus.n ? &gpus : &cpus, err);
    if (m->params.split >= PITH_SPLIT_ROW && st == PITH_OK)
        st = keep_rows(m, gpus.n ? &gpus : &cpus, gpus.n ? m->params.main_gpu : 0, err);
    if (st == PITH_OK && gpus.n) {
        cpus.share[0] = cpus.sum = 1; /* and all of it to the first */
        cpus.n = 1;
    }
    if (st != PITH_OK || text)
        return st == PITH_OK ? by_turns(m, text, err) : st;
    deal_layers(m, &cpus, lo, hi);
    n = n == PITH_GPU_LAYERS_AUTO || n > hi - lo ? hi - lo : n;
    n = n < most ? n : most;
    if (gpus.n && n > 0)
        deal_layers(m, &gpus, hi - n, hi);
    return PITH_OK;
}

int32_t model_auto_layers(const struct pith_model *m)
{
    int32_t lo, hi;
    struct takers gpus = {0};
    find_takers(m, &gpus, 1);
    arch_stage_layers(&m->arch, &lo, &hi);
    int fixed = m->params.gpu_layers != PITH_GPU_LAYERS_AUTO || env_get("PITH_LAYER_DEVICES");
    return gpus.n && !fixed && m->fits ? hi - lo : 0;
}

/* Layers that share a state stay together. */
static void join_layers(struct pith_model *m)
{
    for (const struct state *s = m->arch.states; s < m->arch.states + m->arch.n_states; s++)
        for (int32_t l = s->layer + 1; l <= s->last; l++)
            m->layer_device[l] = m->layer_device[s->layer];
}

/* ---------------------------------------------------------------- nodes and states */

/* Has the device a kernel for the node, with its weights as rows there? */
static int supports(const struct pith_model *m, const struct node *n, int32_t device)
{
    const struct device *d = m->devices[device];
    const struct tensor *from[] = {n->w, n->b, n->w2};
    struct tensor t[3];
    struct node with = *n;
    struct op_impl impl;
    if (op_has(n->op, OP_ALIAS) || op_has(n->op, OP_TRANSFER))
        return 1;
    with.device = device;
    for (int i = 0; i < 3; i++) {
        if (!from[i])
            continue;
        t[i] = *from[i];
        t[i].at[0] = (struct placement){.device = device, .layout = LAYOUT_ROWS};
        if (model_as_half(m, from[i], device))
            t[i].at[0].layout = LAYOUT_HALF;
        t[i].n_at = 1;
    }
    with.w = n->w ? &t[0] : NULL;
    with.b = n->b ? &t[1] : NULL;
    with.w2 = n->w2 ? &t[2] : NULL;
    return d->backend->impl(d, &with, &impl);
}

/* What goes between devices is counted in columns. */
static int64_t size_of(const struct node *n)
{
    return n->cols * n->rows_mul;
}

/* What has to be copied if n ran on a device, its layer being on `home`. */
static int64_t to_copy(const struct node *n, int32_t device, int32_t home)
{
    int64_t sum = device == home ? 0 : size_of(n);
    for (int32_t i = 0; i < n->n_src; i++)
        sum += n->src[i]->device == device ? 0 : size_of(n->src[i]);
    return sum;
}

/* Where a node would be if every device had every kernel. */
static int32_t wanted_device(const struct pith_model *m, const struct node *n)
{
    int32_t home = model_layer_device(m, n->layer), best = home;
    if (n->n_states)
        return n->state[0]->sent ? n->state[0]->sent - 1 : home;
    const struct tensor *by = n->near ? n->near : n->w;
    if (by && m->sent[by->index] >= 0)
        return m->sent[by->index];
    for (int32_t i = 0; i < n->n_src && !n->w && !n->b; i++)
        if (to_copy(n, n->src[i]->device, home) < to_copy(n, best, home))
            best = n->src[i]->device;
    return best;
}

static int32_t device_of(const struct pith_model *m, const struct node *n)
{
    int32_t wanted = wanted_device(m, n), home = model_layer_device(m, n->layer);
    return op_has(n->op, OP_ALIAS)  ? n->src[0]->device
           : n->n_states            ? n->state[0]->device
           : supports(m, n, wanted) ? wanted
           : supports(m, n, home)   ? home
                                    : 0;
}

pith_status model_place_nodes(const struct pith_model *m, struct graph *g, struct pith_error *err)
{
    pith_status st = graph_cut(g, err);
    for (node n = st == PITH_OK ? g->first : NULL; n; n = n->next)
        n->device = device_of(m, n);
    return st;
}

/* Can its bytes be brought to a device as its kernels want them, straight from the file? */
static int can_bring(const struct tensor *t, const struct pith_model *m, int32_t device,
                     const struct device_limits *lim)
{
    return !t || (t->from->data && t->type == t->from->type && !t->from->row &&
                  !model_as_half(m, t, device) && t->bytes <= lim->largest / 4 &&
                  (!lim->bindable || t->bytes <= lim->bindable));
}

/* A product of all rows of a step whose weights the CPU has and the device can be brought. */
static int is_brought(const struct pith_model *m, const struct node *n, int32_t device,
                      const struct device_limits *lim)
{
    return op_has(n->op, OP_PRODUCT) && n->w && n->w->n_dims > 1 && n->rows == ROWS_T &&
           !n->n_states && !is_gpu(m->devices[n->device]) && can_bring(n->w, m, device, lim) &&
           can_bring(n->b, m, device, lim) && can_bring(n->w2, m, device, lim) &&
           supports(m, n, device);
}

/* The weight as one that is brought to a device. */
static const struct tensor *bring(struct graph *g, const struct tensor *t, int32_t device)
{
    struct {
        struct tensor t;
        struct bringing by;
    } *made = t ? arena_array(&g->arena, 1, sizeof *made) : NULL;
    if (!made)
        return NULL;
    struct tensor *copy = &made->t;
    *copy = *t;
    made->by = (struct bringing){t->from->data, &copy->at[0]};
    copy->brought = &made->by;
    copy->n_at = 1;
    copy->packed_bytes = 0;
    copy->at[0] =
        (struct placement){.device = device, .layout = LAYOUT_ROWS, .bytes = t->bytes};
    return copy;
}

pith_status model_place_uploads(const struct pith_model *m, struct graph *g, int32_t device,
                                struct brought *out, struct pith_error *err)
{
    struct device_limits lim;
    m->devices[device]->backend->limits(m->devices[device], &lim);
    *out = (struct brought){0};
    for (node n = g->first; n; n = n->next) {
        if (!is_brought(m, n, device, &lim)) {
            n->device = device_of(m, n);
            continue;
        }
        out->n++;
        out->bytes += n->w->bytes;
        out->ops += 2.0 * (double)(tensor_k(n->w) * n->cols * n->rows_mul);
        if (!out->most || n->w->bytes > out->most->bytes)
            out->most = n->w;
        n->device = device;
        n->w = bring(g, n->w, device);
        n->b = n->b ? bring(g, n->b, device) : NULL;
        n->w2 = n->w2 ? bring(g, n->w2, device) : NULL;
    }
    return arena_ok(&g->arena)
               ? PITH_OK
               : error_set(err, PITH_NOMEM, "out of memory for weights that are brought");
}

/* The first device takes a state that some node cannot use where it is, and then all states of that
 * node. Returns how many moved. */
static int move_states(const struct pith_model *m, struct graph *g, struct state *states)
{
    int moved = 0;
    for (node n = g->first; n; n = n->next) {
        int home = 0;
        for (int i = 0; i < n->n_states; i++)
            home |= !n->state[i]->device || !supports(m, n, n->state[i]->device);
        for (int i = 0; home && i < n->n_states; i++) {
            struct state *s = &states[n->state[i] - g->states];
            moved += s->device != 0;
            s->device = 0;
        }
    }
    return moved;
}

pith_status model_graph(struct pith_model *m, struct state *states, const struct arch_want *want,
                        struct graph *g, struct pith_error *err)
{
    const struct arch_model *a = arch_view(&m->arch, want->role, want->draft);
    graph_init(g);
    g->n_layer = a->hp.n_layer;
    g->n_embd = arch_row_cols(a);
    g->states = states;
    g->n_states = a->n_states;
    g->adapter_rank = want->adapter_rank;
    arch_build(a, want, g);
    return graph_finish(g, err);
}

/* A state has a device on which every role can use it. */
pith_status model_place_states(struct pith_model *m, const struct arch_model *a,
                               struct state *states, struct pith_error *err)
{
    int32_t draft = a->runs == ROLE_DRAFT ? (int32_t)(a - m->arch.draft) : 0;
    struct arch_want want = {.logits = m->gives_logits, .draft = draft};
    int moved = m->n_devices > 1, n_roles = a->n_encoder_visits ? 2 : 1;
    pith_status st = PITH_OK;
    for (int32_t i = 0; i < a->n_states; i++)
        states[i].device =
            states[i].sent ? states[i].sent - 1 : model_layer_device(m, states[i].layer);
    while (moved && st == PITH_OK) {
        moved = 0;
        for (int role = 0; role < n_roles && st == PITH_OK; role++) {
            struct graph g;
            want.role = role ? (enum role)role : a->runs;
            st = model_graph(m, states, &want, &g, err);
            if (st == PITH_OK)
                st = graph_cut(&g, err);
            while (st == PITH_OK && move_states(m, &g, states))
                moved = n_roles > 1; /* what one role moved another may mind */
            graph_deinit(&g);
        }
    }
    return st;
}

pith_status model_tell_of_gaps(struct pith_model *m, const struct graph *g, struct pith_error *err)
{
    for (const struct node *n = g->first; n; n = n->next) {
        int32_t wanted = wanted_device(m, n);
        const struct device *d = m->devices[wanted];
        const char *type = n->w && op_has(n->op, OP_PRODUCT) ? dtypes[n->w->type].name : "";
        char line[160];
        if (n->device == wanted || op_has(n->op, OP_ALIAS) || supports(m, n, wanted))
            continue;
        snprintf(line, sizeof line, "%s has no kernel for %s%s%s, which runs on %s", d->name,
                 op_infos[n->op]->name, *type ? " " : "", type, m->devices[n->device]->name);
        if (m->params.strict)
            return error_set(err, PITH_UNSUPPORTED, "--strict: %s: %s", n->name, line);
        if (!m->note.n || !strstr(m->note.p, line))
            str_printf(&m->note, "%s%s", m->note.n ? "; " : "", line);
    }
    return PITH_OK;
}

static pith_status find_pairs(struct pith_model *m, struct pith_error *err)
{
    pith_status st = PITH_OK;
    m->pair = arena_array(&m->arena, (size_t)m->n_tensors + 1, sizeof *m->pair);
    if (!m->pair)
        return error_set(err, PITH_NOMEM, "out of memory while dividing %s", gguf_path(m->gguf));
    st = model_heads_begin(m, err);
    for (int role = 0; role < (m->arch.n_encoder_visits ? 2 : 1) && st == PITH_OK; role++) {
        struct graph g;
        struct arch_want want = {.logits = m->gives_logits, .role = (enum role)role};
        st = model_graph(m, m->arch.states, &want, &g, err);
        if (st == PITH_OK) {
            model_find_pairs(m, &g);
            model_find_heads(m, &g);
        }
        graph_deinit(&g);
    }
    return st;
}

pith_status model_spread(struct pith_model *m, int32_t most, struct pith_error *err)
{
    int32_t n_layer = m->arch.hp.n_layer;
    m->layer_device = arena_array(&m->arena, (size_t)n_layer, sizeof *m->layer_device);
    m->sent = arena_array(&m->arena, (size_t)m->n_tensors + 1, sizeof *m->sent);
    if (!m->layer_device || !m->sent)
        return error_set(err, PITH_NOMEM, "out of memory while placing %s", gguf_path(m->gguf));
    memset(m->sent, -1, (size_t)m->n_tensors * sizeof *m->sent);
    pith_status st = check_numbers(&m->params, err);
    if (st == PITH_OK)
        st = send_by_name(m, err);
    if (st == PITH_OK && m->params.split == PITH_SPLIT_TENSOR)
        st = find_pairs(m, err);
    if (st == PITH_OK)
        st = place_layers(m, most, err);
    if (st != PITH_OK)
        return st;
    join_layers(m);
    return model_slice(m, err);
}
