/* test_bind.c -- files whose tensors are not those of their architecture: each tensor of each model
 * left out, misshapen, and each optional row of the tables put in by itself. Wanted is an error
 * that names the tensor, or a model that runs; never a crash. Models are synthetic, and the
 * recorded ones where there are some. A model's cases run in a child process, so that a crash costs
 * one and names it. At TEST_SCALE 1 every architecture is met, with experts or without, some of the
 * recorded models, and of the tensors those outside of layers and of one layer: each is left out or
 * misshapen in one way, by turns. */
#include "encoder.h"
#include "golden.h"
#include "hook.h"

#include <math.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "run/model/model.h"
#include "run/session/session.h"

/* ---------------------------------------------------------------- files taken apart */

struct info { /* of a tensor, as it stands in the file */
    char name[96];
    uint32_t n_dims, type;
    uint64_t dims[4], offset; /* GGUF's order; offset from the data's begin */
};

struct model_file {
    uint8_t *p;
    size_t n, keys, after_keys, data; /* where the keys begin, the tensors' list, the data */
    uint64_t n_keys;
    uint32_t version;
    int n_infos;
    struct info *info;
};

struct reader {
    const uint8_t *p;
    size_t at;
};

static uint64_t take(struct reader *r, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v |= (uint64_t)r->p[r->at++] << 8 * i;
    return v;
}

static void skip_text(struct reader *r)
{
    uint64_t n = take(r, 8);
    r->at += n;
}

static void skip_value(struct reader *r, uint32_t type)
{
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == 8) {
        skip_text(r);
    } else if (type == 9) {
        uint32_t item = (uint32_t)take(r, 4);
        for (uint64_t n = take(r, 8); n; n--)
            skip_value(r, item);
    } else {
        r->at += bytes[type];
    }
}

/* The file is a good one. */
static int take_apart(const char *path, struct model_file *f)
{
    size_t n = 0;
    *f = (struct model_file){.p = (uint8_t *)test_read(path, &n)};
    if (!f->p)
        return 0;
    struct reader r = {.p = f->p, .at = 4};
    f->version = (uint32_t)take(&r, 4);
    f->n_infos = (int)take(&r, 8);
    f->n_keys = take(&r, 8);
    f->keys = r.at;
    for (uint64_t i = 0; i < f->n_keys; i++) {
        skip_text(&r);
        skip_value(&r, (uint32_t)take(&r, 4));
    }
    f->after_keys = r.at;
    f->info = calloc((size_t)f->n_infos + 64, sizeof *f->info);
    for (int i = 0; i < f->n_infos; i++) {
        struct info *t = &f->info[i];
        uint64_t len = take(&r, 8);
        snprintf(t->name, sizeof t->name, "%.*s", (int)len, (const char *)r.p + r.at);
        r.at += len;
        t->n_dims = (uint32_t)take(&r, 4);
        for (uint32_t d = 0; d < t->n_dims; d++)
            t->dims[d] = take(&r, 8);
        t->type = (uint32_t)take(&r, 4);
        t->offset = take(&r, 8);
    }
    f->n = n;
    f->data = (r.at + 31) / 32 * 32;
    return f->data <= n;
}

static void put(FILE *out, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        fputc((int)(v >> 8 * i & 255), out);
}

/* Writes the file with these tensors; `extra` bytes of zero follow its data. */
static void put_together(const char *path, const struct model_file *f, const struct info *info,
                         int n, uint64_t extra)
{
    FILE *out = fopen(path, "wb");
    if (!out)
        return;
    fwrite("GGUF", 1, 4, out);
    put(out, f->version, 4);
    put(out, (uint64_t)n, 8);
    put(out, f->n_keys, 8);
    fwrite(f->p + f->keys, 1, f->after_keys - f->keys, out);
    for (int i = 0; i < n; i++) {
        put(out, strlen(info[i].name), 8);
        fputs(info[i].name, out);
        put(out, info[i].n_dims, 4);
        for (uint32_t d = 0; d < info[i].n_dims; d++)
            put(out, info[i].dims[d], 8);
        put(out, info[i].type, 4);
        put(out, info[i].offset, 8);
    }
    static const uint8_t zero[4096];
    uint64_t pad = (0 - (uint64_t)ftell(out)) % 32;
    fwrite(zero, 1, pad, out);
    fwrite(f->p + f->data, 1, f->n - f->data, out);
    for (pad = (0 - (uint64_t)(f->n - f->data)) % 32 + (extra + 31) / 32 * 32; pad;) {
        uint64_t some = pad < sizeof zero ? pad : sizeof zero;
        fwrite(zero, 1, some, out);
        pad -= some;
    }
    fclose(out);
}

static struct info *info_of(struct model_file *f, const char *name)
{
    for (int i = 0; i < f->n_infos; i++)
        if (!strcmp(f->info[i].name, name))
            return &f->info[i];
    return NULL;
}

/* Appends a tensor of f32; dims in the file's order, 0 where there are no more. */
static float *append_floats(struct model_file *f, const char *name, const uint64_t dims[3])
{
    struct info *t = &f->info[f->n_infos++];
    *t = (struct info){.offset = (f->n - f->data + 31) / 32 * 32};
    snprintf(t->name, sizeof t->name, "%s", name);
    uint64_t bytes = 4;
    for (; t->n_dims < 3 && dims[t->n_dims]; t->n_dims++)
        bytes *= t->dims[t->n_dims] = dims[t->n_dims];
    f->n = f->data + t->offset + bytes;
    f->p = realloc(f->p, f->n);
    return (float *)(f->p + f->data + t->offset);
}

/* The last logits of these tokens, with other keys. */
static int logits_with(const char *path, const char *const *overrides, const int32_t *ids,
                       int32_t n, float *out, int32_t n_vocab)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    mp.n_threads = 1;
    mp.overrides = overrides;
    pith_model *m = pith_model_open(path, &mp, &err);
    pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
    int ok = s && pith_feed(s, 0, ids, n, &err) == PITH_OK;
    CHECK_MSG(ok, "%s", err.msg);
    if (ok)
        memcpy(out, pith_logits(s, 0), (size_t)n_vocab * sizeof *out);
    pith_session_close(s);
    pith_model_close(m);
    return ok;
}

static int last_logits(const char *path, const int32_t *ids, int32_t n, float *out, int32_t n_vocab)
{
    return logits_with(path, NULL, ids, n, out, n_vocab);
}

static const int32_t some_ids[] = {3, 9, 10, 11, 4};

/* ---------------------------------------------------------------- one case */

static struct shared {
    char label[256], why[8][700];
    int n_bad, n_cases, n_ran;
    int unsupported; /* the whole file is refused: no case of it says anything */
} * shared;

static char changed[300]; /* the file of the case */

__attribute__((format(printf, 1, 2))) static void bad(const char *fmt, ...)
{
    va_list ap;
    char text[400], label[sizeof shared->label];
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    memcpy(label, shared->label, sizeof label);
    if (shared->n_bad < 8)
        snprintf(shared->why[shared->n_bad], sizeof shared->why[0], "%s: %s", label, text);
    shared->n_bad++;
}

/* Opens the file and runs three tokens; 1: it ran, with finite numbers; 0: refused with *err. */
static int runs(struct pith_error *err)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_model_info in = {.size = sizeof in};
    static const int32_t ids[] = {1, 5, 2};
    mp.n_threads = 1;
    mp.n_batch = 16;
    sp.n_ctx = 32;
    shared->n_cases++;
    *err = (struct pith_error){PITH_OK, ""};
    pith_model *m = pith_model_open(changed, &mp, err);
    pith_session *s = m ? pith_session_open(m, &sp, err) : NULL;
    int ok = s && encoder_reads(s, 0, err) == PITH_OK && pith_feed(s, 0, ids, 3, err) == PITH_OK;
    pith_model_get_info(m, &in, NULL);
    const float *out = ok ? pith_logits(s, 0) ? pith_logits(s, 0) : pith_embedding(s, 0) : NULL;
    for (int32_t i = 0; out && i < in.n_embd && i < in.n_vocab; i++)
        if (!(out[i] - out[i] == 0))
            bad("runs, and gives %f", (double)out[i]);
    pith_session_close(s);
    pith_model_close(m);
    if (!ok && (err->code == PITH_OK || err->code == PITH_INTERNAL || strlen(err->msg) < 20))
        bad("refused with %d \"%s\"", err->code, err->msg);
    shared->n_ran += ok;
    return ok;
}

static const struct arch_model *in_hand;

/* No row of the table wants it: each of that name is optional, or there is none. */
static int nobody_wants(const char *name)
{
    for (const struct tensor_spec *s = in_hand->arch->tensors; s->name; s++)
        for (int32_t l = s->layer ? 0 : -1; l < (s->layer ? in_hand->hp.n_layer : 0); l++) {
            char full[160];
            arch_tensor_name(in_hand, s, l, full, sizeof full);
            if (!strcmp(full, name) && arch_tensor_used(in_hand, s, l) && !s->optional)
                return 0;
        }
    return 1;
}

/* Rows a model can do without: what stands there instead is another model, not a broken one. */
static int may_go(const char *name)
{
    int no_v =
        !strcmp(in_hand->arch->name, "gemma4") && strstr(name, ".attn_v."); /* v is what k was */
    int no_gate = !strcmp(in_hand->arch->name, "step35") && strstr(name, ".attn_gate.");
    if (no_v || no_gate || nobody_wants(name) || strstr(name, ".layer_output_scale."))
        return 1;
    size_t n = strlen(name);
    if (strstr(name, ".vis_")) /* of rows of images, which are not run */
        return 1;
    return !strcmp(name, "output.weight") || !strcmp(name, "rope_freqs.weight") ||
           !strncmp(name, "cls.", 4) || !strcmp(name, "token_types.weight") ||
           (n > 6 && !strcmp(name + n - 6, ".scale"));
}

/* An optional row that is the only one of its group in this model. */
static int alone(const struct arch_model *a, const char *name)
{
    char full[128];
    int group = 0, used = 0;
    for (const struct tensor_spec *s = a->arch->tensors; s->name && !group; s++)
        for (int32_t l = 0; s->layer && s->group && l < a->hp.n_layer && !group; l++) {
            arch_tensor_name(a, s, l, full, sizeof full);
            group = arch_tensor_used(a, s, l) && !strcmp(full, name) ? s->group : 0;
        }
    for (const struct tensor_spec *s = a->arch->tensors; s->name && group; s++)
        for (int32_t l = 0; s->group == group && l < a->hp.n_layer; l++)
            used += arch_tensor_used(a, s, l);
    return used == 1;
}

/* CodeShell's files may have one of the two ends for both. */
static int embeds_by_output(const struct arch_model *a, const struct model_file *f, int i)
{
    return !strcmp(a->arch->name, "codeshell") && !strcmp(f->info[i].name, "token_embd.weight");
}

static void leave_out(const struct model_file *f, const struct arch_model *a, int i)
{
    struct pith_error err;
    struct info *rest = malloc((size_t)f->n_infos * sizeof *rest);
    memcpy(rest, f->info, (size_t)i * sizeof *rest);
    memcpy(rest + i, f->info + i + 1, (size_t)(f->n_infos - i - 1) * sizeof *rest);
    snprintf(shared->label, sizeof shared->label, "without %s", f->info[i].name);
    put_together(changed, f, rest, f->n_infos - 1, 0);
    if (runs(&err)) {
        if (!may_go(f->info[i].name) && !alone(a, f->info[i].name) && !embeds_by_output(a, f, i))
            bad("it runs");
    } else if (!strstr(err.msg, f->info[i].name)) {
        /* features follow from some tensors: then others are the wrong ones */
        if (!strstr(err.msg, "blk.") && !strstr(err.msg, "vocab_size"))
            bad("%s", err.msg);
    }
    free(rest);
}

/* Shapes that its data could have, too. */
static void misshape(struct model_file *f, int i)
{
    struct pith_error err;
    struct info *t = &f->info[i], was = *t;
    for (int how = 0; how < 5; how++) {
        *t = was;
        if (test_scale() < 10 ? how != i / 2 % 5 : test_scale() < 100 && (how + i) % 5 > 1)
            continue;
        switch (how) {
        case 0: /* a row less */
            t->dims[t->n_dims - 1]--;
            break;
        case 1: /* turned */
            t->dims[0] = was.dims[t->n_dims - 1];
            t->dims[t->n_dims - 1] = was.dims[0];
            break;
        case 2: /* one dimension more, and in front of all */
            if (t->n_dims == 4)
                continue;
            memcpy(t->dims + 1, was.dims, 3 * sizeof *t->dims);
            t->dims[0] = 1;
            t->n_dims++;
            break;
        case 3: /* one less */
            t->n_dims = 1;
            break;
        case 4: /* nothing */
            t->dims[t->n_dims - 1] = 0;
            break;
        }
        if (!memcmp(t, &was, sizeof was) || !t->dims[0])
            continue;
        snprintf(shared->label, sizeof shared->label, "%s in shape %d", t->name, how);
        put_together(changed, f, f->info, f->n_infos, 0);
        if (runs(&err) && how == 0 && strcmp(t->name, "token_embd.weight") &&
            strncmp(t->name, "cls.", 4) && strcmp(t->name, "token_types.weight") &&
            strncmp(t->name, "dense_", 6) && !strstr(t->name, ".vis_"))
            bad("it runs with a row less");
    }
    *t = was;
}

/* ---------------------------------------------------------------- rows of the tables */

/* Appends a tensor of f32 zeros, at most `room` bytes in all. 0: there is one of that name. */
static int append(struct info *all, int *n, const struct model_file *f, uint64_t *extra,
                  const struct arch_model *a, const struct tensor_spec *spec, int32_t l)
{
    int64_t dims[4], bytes = 4;
    struct info *t = &all[*n];
    *t = (struct info){.n_dims = (uint32_t)arch_tensor_dims(a, spec, l, dims)};
    arch_tensor_name(a, spec, l, t->name, sizeof t->name);
    for (int i = 0; i < *n; i++)
        if (!strcmp(all[i].name, t->name))
            return 0;
    for (uint32_t d = 0; d < t->n_dims; d++) {
        int64_t v = dims[t->n_dims - 1 - d];
        t->dims[d] = v < 0 ? 1 : (uint64_t)v;
        bytes *= (int64_t)t->dims[d];
    }
    t->offset = (f->n - f->data + 31) / 32 * 32 + *extra;
    *extra += (uint64_t)(bytes + 31) / 32 * 32;
    ++*n;
    return 1;
}

/* Rows of layers are of 0 .. n_layer - 1, the others of -1. */
static int32_t last_of(const struct arch_model *a, const struct tensor_spec *s)
{
    return s->layer ? a->hp.n_layer : 0;
}

/* Each optional row that the file has not, by itself; then all of its group. */
static void put_in(const struct model_file *f, const struct arch_model *a)
{
    struct pith_error err;
    struct info *all = malloc(((size_t)f->n_infos + 4096) * sizeof *all);
    for (const struct tensor_spec *s = a->arch->tensors; s->name; s++) {
        int32_t l = s->layer ? 0 : -1;
        while (s->layer && l < a->hp.n_layer && !arch_tensor_used(a, s, l))
            l++;
        if (!(s->optional || s->group) || l >= a->hp.n_layer || !arch_tensor_used(a, s, l))
            continue;
        int n = f->n_infos, used = 0;
        uint64_t extra = 0;
        memcpy(all, f->info, (size_t)n * sizeof *all);
        if (!append(all, &n, f, &extra, a, s, l))
            continue;
        const char *name = all[n - 1].name;
        snprintf(shared->label, sizeof shared->label, "with %s", name);
        put_together(changed, f, all, n, extra);
        int ran = runs(&err);
        for (const struct tensor_spec *k = a->arch->tensors; s->group && k->name; k++)
            for (int32_t i = k->layer - 1; k->group == s->group && i < last_of(a, k); i++)
                used += arch_tensor_used(a, k, i);
        if (ran && used > 1)
            bad("it runs without the others of its group");
        if (!ran && (!strstr(err.msg, name) || (used > 1 && !strstr(err.msg, "belong together"))))
            bad("%s", err.msg);
        for (const struct tensor_spec *k = a->arch->tensors; s->group && k->name; k++)
            for (int32_t i = k->layer - 1; k->group == s->group && i < last_of(a, k); i++)
                if (arch_tensor_used(a, k, i) && n < f->n_infos + 4096)
                    append(all, &n, f, &extra, a, k, i);
        snprintf(shared->label, sizeof shared->label, "with all of the group of %s", name);
        put_together(changed, f, all, n, extra);
        if (s->group && !runs(&err))
            bad("%s", err.msg);
    }
    free(all);
}

/* ---------------------------------------------------------------- one model */

static void all_cases(const char *path, int turn)
{
    struct model_file f;
    struct pith_error err;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    mp.n_threads = 1;
    snprintf(shared->label, sizeof shared->label, "the file itself");
    pith_model *m = pith_model_open(path, &mp, &err);
    if (!m || !take_apart(path, &f)) {
        bad("%s", m ? "cannot be taken apart" : err.msg);
        return;
    }
    in_hand = &m->arch;
    snprintf(changed, sizeof changed, "/proc/self/fd/%d", memfd_create("model", MFD_CLOEXEC));
    put_together(changed, &f, f.info, f.n_infos, 0);
    if (!runs(&err)) {
        shared->unsupported = err.code == PITH_UNSUPPORTED;
        if (!shared->unsupported)
            bad("put together again: %s", err.msg);
    }
    for (int i = 0; i < f.n_infos && !shared->unsupported; i++) {
        int looked_at = test_scale() >= 10 || strncmp(f.info[i].name, "blk.", 4) ||
                        !strncmp(f.info[i].name, "blk.1.", 6);
        if (looked_at && (test_scale() >= 10 || (i + turn) % 2))
            leave_out(&f, &m->arch, i);
        if (looked_at && (test_scale() >= 10 || (i + turn) % 2 == 0))
            misshape(&f, i);
    }
    if (!shared->unsupported)
        put_in(&f, &m->arch);
    pith_model_close(m);
    free(f.p);
    free(f.info);
}

static void check_model(const char *name, const char *path)
{
    static int turn; /* at TEST_SCALE 1: which half of the tensors is left out */
    turn++;
    memset(shared, 0, sizeof *shared);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(300);
        all_cases(path, turn);
        exit(0);
    }
    int status = 0;
    REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid, "no child process");
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s, %s: ends the program (0x%x)",
              name, shared->label, (unsigned)status);
    for (int i = 0; i < shared->n_bad && i < 8; i++)
        test_fail(__FILE__, __LINE__, "%s, %s", name, shared->why[i]);
    CHECK_MSG(shared->n_bad <= 8, "%s: %d failed in all", name, shared->n_bad);
    int least = test_scale() < 10 ? 8 : test_scale() < 100 ? 14 : 20;
    CHECK_MSG(shared->unsupported || (shared->n_cases > least && shared->n_ran > 0),
              "%s: %d cases, %d ran", name, shared->n_cases, shared->n_ran);
    printf("# %s: %d files, %d ran\n", name, shared->n_cases, shared->n_ran);
}

static void synthetic_models(void)
{
    int nth = 0;
    for (const char *const *a = pith_arch_names(); *a; a++, nth++)
        for (int experts = 0; experts < 2; experts++) {
            if (test_scale() < 10 && experts != nth % 2)
                continue;
            char name[96], path[300];
            struct pith_error err;
            struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
            snprintf(name, sizeof name, "%s%s", *a, experts ? "-moe" : "");
            snprintf(path, sizeof path, "%s", tmp_path(name));
            p.arch = *a;
            p.n_layer = 4;
            p.n_embd = 32;
            p.n_head = 4;
            p.n_vocab = 24;
            p.n_ff = 48;
            p.n_expert = 4 * experts;
            REQUIRE(pith_synth(path, &p, &err) == PITH_OK, "%s: %s", name, err.msg);
            check_model(name, path);
            unlink(path);
        }
}

/* A tensor of a group half there: the message names both sides. */
static void messages(void)
{
    static const char *const text[] = {"blk.0.attn_q.bias is there",
                                       "blk.0.attn_k.bias and 2 more are missing"};
    char path[300];
    struct model_file f;
    struct pith_error err;
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    snprintf(path, sizeof path, "%s", tmp_path("biases"));
    p.arch = "llama";
    REQUIRE(pith_synth(path, &p, &err) == PITH_OK && take_apart(path, &f), "%s", err.msg);
    pith_model *m = pith_model_open(path, &mp, &err);
    REQUIRE(m, "%s", err.msg);
    int n = f.n_infos;
    uint64_t extra = 0;
    for (const struct tensor_spec *s = m->arch.arch->tensors; s->name; s++)
        for (int32_t l = 0; l < 2; l++)
            if (arch_tensor_used(&m->arch, s, l) &&
                (!strcmp(s->name, "attn_q.bias") || (l && !strcmp(s->name, "attn_k.bias"))))
                append(f.info, &n, &f, &extra, &m->arch, s, l);
    pith_model_close(m);
    /* of six biases three are there */
    put_together(path, &f, f.info, n, extra);
    m = pith_model_open(path, &mp, &err);
    CHECK(!m && err.code == PITH_MISSING);
    CHECK_MSG(strstr(err.msg, "blk.0.attn_q.bias and 2 more are there, ") &&
                  strstr(err.msg, text[1]),
              "%s", err.msg);
    put_together(path, &f, f.info, f.n_infos + 1, extra);
    m = pith_model_open(path, &mp, &err);
    CHECK_MSG(!m && strstr(err.msg, text[0]) &&
                  strstr(err.msg, "attn_k.bias and 4 more are missing"),
              "%s", err.msg);
    free(f.p);
    free(f.info);
    unlink(path);
}

/* Takes a key out of the file at `path`, as it lies among the others. */
static int without_key(const char *path, const char *key)
{
    struct model_file f;
    if (!take_apart(path, &f))
        return 0;
    struct reader r = {.p = f.p, .at = f.keys};
    int found = 0;
    while (r.at < f.after_keys && !found) {
        size_t begin = r.at;
        uint64_t n = take(&r, 8);
        found = n == strlen(key) && !memcmp(r.p + r.at, key, n);
        r.at += n;
        skip_value(&r, (uint32_t)take(&r, 4));
        if (found) {
            memmove(f.p + begin, f.p + r.at, f.after_keys - r.at);
            f.after_keys -= r.at - begin;
            f.n_keys--;
        }
    }
    if (found)
        put_together(path, &f, f.info, f.n_infos, 0);
    free(f.p);
    free(f.info);
    return found;
}

/* Old files of gemma2 have no window in their keys: it is 4,096. Those of gemma3 have none then. */
static void windows_that_are_not_told(void)
{
    static const char *const archs[] = {"gemma2", "gemma3"};
    for (int i = 0; i < 2; i++) {
        char path[300], key[96];
        struct pith_error err = {PITH_OK, ""};
        struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
        struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
        mp.n_threads = 1;
        p.arch = archs[i];
        snprintf(path, sizeof path, "%s", tmp_path(p.arch));
        snprintf(key, sizeof key, "%s.attention.sliding_window", p.arch);
        REQUIRE(pith_synth(path, &p, &err) == PITH_OK, "%s", err.msg);
        pith_model *m = pith_model_open(path, &mp, &err);
        CHECK_MSG(m && m->arch.hp.window == 32, "%s", err.msg); /* as synth writes it */
        pith_model_close(m);
        REQUIRE(without_key(path, key), "no key %s", key);
        m = pith_model_open(path, &mp, &err);
        if (i)
            CHECK_MSG(m && m->arch.hp.window == 0, "%s", err.msg);
        else
            CHECK_MSG(m && m->arch.hp.window == 4096 && m->arch.hp.windowed[0] &&
                          !m->arch.hp.windowed[1],
                      "%s", err.msg);
        pith_model_close(m);
        unlink(path);
    }
}

/* Layers of gemma3n from 20 on read the K and V of layer 18 or 19, of which the first has to be
 * windowed and the second not. */
static void layers_that_share(void)
{
    static const char key[] = "gemma3n.attention.sliding_window_pattern";
    char path[300];
    struct model_file f;
    struct pith_error err = {PITH_OK, ""};
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    mp.n_threads = 1;
    p.arch = "gemma3n";
    p.n_layer = 22;
    snprintf(path, sizeof path, "%s", tmp_path("shared"));
    REQUIRE(pith_synth(path, &p, &err) == PITH_OK, "%s", err.msg);
    pith_model *m = pith_model_open(path, &mp, &err);
    REQUIRE(m, "%s", err.msg);
    for (int l = 0; l < 22; l++) /* of a random model every second sees everything */
        CHECK_MSG(m->arch.hp.windowed[l] == (l % 2 == 0), "layer %d", l);
    CHECK(m->arch.n_states == 20);
    CHECK(m->arch.state_of[20][0] == m->arch.state_of[18][0]);
    CHECK(m->arch.state_of[21][0] == m->arch.state_of[19][0]);
    pith_model_close(m);

    REQUIRE(take_apart(path, &f), "cannot be taken apart");
    uint8_t *at = memmem(f.p, f.n, key, sizeof key - 1);
    REQUIRE(at, "no key %s", key);
    at[sizeof key - 1 + 4 + 4 + 8 + 18 * 4] = 0; /* behind two types and a count: of layer 18 */
    put_together(path, &f, f.info, f.n_infos, 0);
    m = pith_model_open(path, &mp, &err);
    CHECK_MSG(!m && err.code == PITH_SHAPE && strstr(err.msg, "layer 20 shares") &&
                  strstr(err.msg, "layer 18"),
              "%s", err.msg);
    pith_model_close(m);
    free(f.p);
    free(f.info);

    REQUIRE(without_key(path, key), "no key %s", key);
    m = pith_model_open(path, &mp, &err);
    REQUIRE(m, "%s", err.msg);
    for (int l = 0; l < 22; l++)
        CHECK_MSG(m->arch.hp.windowed[l] == (l % 5 != 4), "layer %d", l);
    CHECK(m->arch.state_of[21][0] == m->arch.state_of[18][0]);
    pith_model_close(m);
    unlink(path);
}

/* Results of mpt's activation are divided: as if the columns of ffn_down were, by powers of two. */
static void activations_are_divided(void)
{
    char path[300], name[96];
    float z[3][24];
    struct model_file f, other;
    struct pith_error err = {PITH_OK, ""};
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    static const int32_t ids[] = {3, 9, 10, 11};
    p.arch = "mpt";
    p.type = "f32";
    p.n_vocab = 24;
    snprintf(path, sizeof path, "%s", tmp_path("divided"));
    REQUIRE(pith_synth(path, &p, &err) == PITH_OK && take_apart(path, &f) &&
                take_apart(path, &other),
            "%s", err.msg);
    int ok = last_logits(path, ids, 4, z[0], 24);
    for (int l = 0; l < 2; l++) {
        snprintf(name, sizeof name, "blk.%d.ffn_down.weight", l);
        const struct info *t = info_of(&other, name);
        uint64_t n = t->dims[0];
        float *w = (float *)(other.p + other.data + t->offset);
        for (uint64_t i = 0; i < n * t->dims[1]; i++)
            w[i] /= i % n % 2 ? 4.0f : 0.5f;
        snprintf(name, sizeof name, "blk.%d.ffn.act.scales", l);
        float *v = append_floats(&f, name, (uint64_t[3]){n});
        for (uint64_t i = 0; i < n; i++)
            v[i] = i % 2 ? 4.0f : 0.5f;
    }
    put_together(path, &f, f.info, f.n_infos, 0);
    ok = ok && last_logits(path, ids, 4, z[1], 24);
    put_together(path, &other, other.info, other.n_infos, 0);
    ok = ok && last_logits(path, ids, 4, z[2], 24);
    CHECK(ok && !memcmp(z[1], z[2], sizeof z[1]) && memcmp(z[0], z[1], sizeof z[0]));
    memset(f.p + f.data + f.info[f.n_infos - 1].offset + 8, 0, 4);
    put_together(path, &f, f.info, f.n_infos, 0);
    pith_model *m = pith_model_open(path, NULL, &err);
    CHECK_MSG(!m && err.code == PITH_RANGE && strstr(err.msg, "ffn.act.scales divides column 2"),
              "%s", err.msg);
    pith_model_close(m);
    free(f.p);
    free(f.info);
    free(other.p);
    free(other.info);
    unlink(path);
}

/* ---------------------------------------------------------------- keys and their defaults */

/* A file of random weights, f32; NULL: it could not be made. */
static const char *made(const char *arch, int32_t n_layer, struct model_file *f)
{
    static char path[300];
    struct pith_error err = {PITH_OK, ""};
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    p.arch = arch;
    p.type = "f32";
    p.n_vocab = 24;
    p.n_layer = n_layer;
    p.n_embd = 32;
    p.n_expert = 4;
    snprintf(path, sizeof path, "%s", tmp_path("made"));
    int ok = pith_synth(path, &p, &err) == PITH_OK && (!f || take_apart(path, f));
    CHECK_MSG(ok, "%s: %s", arch, err.msg);
    return ok ? path : NULL;
}

/* Opens it with another key; wants this status and, where it is refused, this text. */
static pith_model *opened(const char *path, const char *override, pith_status want,
                          const char *text)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    const char *const overrides[] = {override, NULL};
    mp.n_threads = 1;
    mp.overrides = overrides;
    pith_model *m = pith_model_open(path, &mp, &err);
    CHECK_MSG(err.code == want && (m || strstr(err.msg, text)), "%s: %s", override, err.msg);
    return m;
}

/* Windows of no positions, where a family has windows. */
static void windows_of_nothing(void)
{
    static const char *const archs[] = {"cohere2", "mimo2", "muse-glimmer", "gemma-embedding",
                                        "granite_swa"};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        char key[96];
        const char *path = made(archs[i], 4, NULL);
        snprintf(key, sizeof key, "%s.attention.sliding_window=int:0", archs[i]);
        if (path)
            pith_model_close(
                opened(path, key, PITH_RANGE, "attention.sliding_window\" is 0, wanted 1.."));
    }
    const char *path = made("gemma3", 2, NULL); /* which may have none */
    if (path)
        pith_model_close(opened(path, "gemma3.attention.sliding_window=int:0", PITH_OK, ""));
}

/* Scales of 0 are none: the same bits as of 1. */
static void scales_of_nothing(void)
{
    float z[2][24];
    static const char *const none[] = {"granitehybrid.logit_scale=float:0",
                                       "granitehybrid.residual_scale=float:0",
                                       "granitehybrid.embedding_scale=float:0", NULL};
    const char *path = made("granitehybrid", 4, NULL);
    CHECK(path && last_logits(path, some_ids, 5, z[0], 24) &&
          logits_with(path, none, some_ids, 5, z[1], 24) && !memcmp(z[0], z[1], sizeof z[0]));
}

/* A shared expert whose width is 0, or not told, is as wide as its family has it. */
static void shared_experts_of_no_width(void)
{
    float z[2][24];
    static const char *const none[] = {"qwen2moe.expert_shared_feed_forward_length=int:0", NULL};
    const char *path = made("qwen2moe", 2, NULL);
    CHECK(path && last_logits(path, some_ids, 5, z[0], 24) &&
          logits_with(path, none, some_ids, 5, z[1], 24) && !memcmp(z[0], z[1], sizeof z[0]));
    path = made("laguna", 2, NULL);
    int ok = path && last_logits(path, some_ids, 5, z[0], 24);
    if (ok) /* written or not: it is as without it */
        without_key(path, "laguna.expert_shared_count");
    CHECK(ok && last_logits(path, some_ids, 5, z[1], 24) && !memcmp(z[0], z[1], sizeof z[0]));
}

static void keys_that_have_to_be_there(void)
{
    static const char *const keys[][2] = {{"cohere2", "logit_scale"},
                                          {"bailingmoe2", "expert_gating_func"}};
    for (int i = 0; i < 2; i++) {
        struct pith_error err = {PITH_OK, ""};
        char key[96];
        const char *path = made(keys[i][0], 2, NULL);
        snprintf(key, sizeof key, "%s.%s", keys[i][0], keys[i][1]);
        REQUIRE(path && without_key(path, key), "no key %s", key);
        pith_model *m = pith_model_open(path, NULL, &err);
        CHECK_MSG(!m && strstr(err.msg, keys[i][1]), "%s: %s", key, m ? "opened" : err.msg);
        pith_model_close(m);
    }
}

/* What stretches positions and lengthens rotated parts is of full layers alone, where windowed ones
 * are not scaled: Olmo 3. */
static void windows_are_not_scaled(void)
{
    static const char *const archs[] = {"olmo2", "mellum", "laguna", "gemma3"};
    for (size_t a = 0; a < sizeof archs / sizeof *archs; a++) {
        static const char *const of_keys[] = {"type=str:yarn", "factor=float:4",
                                              "attn_factor=float:1.25"};
        char keys[3][96];
        const char *const overrides[] = {keys[0], keys[1], keys[2], NULL};
        struct pith_error err = {PITH_OK, ""};
        struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
        const char *path = made(archs[a], 8, NULL);
        for (int i = 0; i < 3; i++)
            snprintf(keys[i], sizeof keys[i], "%s.rope.scaling.%s", archs[a], of_keys[i]);
        mp.n_threads = 1;
        mp.overrides = overrides;
        pith_model *m = path ? pith_model_open(path, &mp, &err) : NULL;
        REQUIRE(m, "%s: %s", archs[a], err.msg);
        for (int32_t l = 0, n = 0; l < 8; l++) {
            double want = m->arch.hp.windowed[l] ? 1 : 1.25 * (1 + 0.1 * log(4));
            n += m->arch.hp.windowed[l];
            CHECK_MSG(fabs((double)m->arch.rope[l]->mscale - want) < 1e-6 && (l < 7 || n > 3),
                      "%s, layer %d: %g, wanted %g", archs[a], l,
                      (double)m->arch.rope[l]->mscale, want);
        }
        pith_model_close(m);
    }
}

/* How experts are chosen is the family's to say where the file says 0; and the layers that decide
 * are those that run, not the block behind them. */
static void defaults_of_latent_families(void)
{
    const char *path = made("glm-dsa", 2, NULL);
    pith_model *m = path ? opened(path, "glm-dsa.expert_gating_func=int:0", PITH_OK, "") : NULL;
    CHECK(m && m->arch.hp.expert_gating == 2);
    pith_model_close(m);
    path = made("deepseek2", 27, NULL);
    m = path ? opened(path, "deepseek2.nextn_predict_layers=int:1", PITH_OK, "") : NULL;
    CHECK(m && m->arch.hp.n_layer == 26 && gguf_tensor_find(m->gguf, SLICE("blk.0.attn_q.weight")));
    pith_model_close(m);
}

/* Biases that mimo2's files may have are not added. */
static void biases_that_are_not_added(void)
{
    float z[2][24];
    struct model_file f;
    const char *path = made("mimo2", 2, &f);
    REQUIRE(path, "no model");
    int ok = last_logits(path, some_ids, 5, z[0], 24);
    const struct info *q = info_of(&f, "blk.1.attn_q.weight");
    REQUIRE(q, "no blk.1.attn_q.weight");
    uint64_t n = q->dims[1];
    float *bias = append_floats(&f, "blk.1.attn_q.bias", (uint64_t[3]){n});
    for (uint64_t i = 0; i < n; i++)
        bias[i] = 3;
    put_together(path, &f, f.info, f.n_infos, 0);
    CHECK(ok && last_logits(path, some_ids, 5, z[1], 24) && !memcmp(z[0], z[1], sizeof z[0]));
    free(f.p);
    free(f.info);
}

/* Factors of longrope come in pairs, and may be there where no key says so. */
static void factors_come_in_pairs(void)
{
    struct model_file f;
    struct pith_error err = {PITH_OK, ""};
    const char *path = made("phi3", 2, &f);
    pith_model *plain = path ? opened(path, "phi3.context_length=int:64", PITH_OK, "") : NULL;
    REQUIRE(plain, "no model");
    uint64_t pairs = (uint64_t)plain->arch.hp.n_rot / 2;
    pith_model_close(plain);
    for (int i = 0; i < 2; i++) {
        float *v = append_floats(&f, i ? "rope_factors_short.weight" : "rope_factors_long.weight",
                                 (uint64_t[3]){pairs});
        for (uint64_t k = 0; k < pairs; k++)
            v[k] = 2;
    }
    for (int n = 1; n < 3; n++) {
        char with[300];
        snprintf(with, sizeof with, "%s", tmp_path("pairs"));
        put_together(with, &f, f.info, f.n_infos - 2 + n, 0);
        pith_model *m = pith_model_open(with, NULL, &err);
        CHECK_MSG(n == 1 ? !m && strstr(err.msg, "factors_short.weight is missing: they belong")
                         : m && m->arch.io.rope_short && m->arch.rope[0]->longer,
                  "%s", err.msg);
        pith_model_close(m);
        unlink(with);
    }
    free(f.p);
    free(f.info);
}

/* The last logits of a session with these parameters; n_ctx: what it has. *m stays open. */
static pith_session *of_context(pith_model *m, int32_t n_ctx, int64_t n_tokens, float *out)
{
    struct pith_error err = {0};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = n_ctx;
    sp.n_tokens = n_tokens;
    sp.store_bytes = 1 << 20;
    pith_session *s = pith_session_open(m, &sp, &err);
    CHECK_MSG(s && pith_feed(s, 0, some_ids, 5, &err) == PITH_OK, "%s", err.msg);
    if (s)
        memcpy(out, pith_logits(s, 0), 24 * sizeof *out);
    return s;
}

/* Which of two sets of factors turns K and Q goes by the context that is asked for: never by what
 * memory leaves room for. What one set computed is no use to a session with the other. */
static void contexts_choose_factors(void)
{
    struct model_file f;
    struct pith_error err = {PITH_OK, ""};
    const char *path = made("phi3", 2, &f);
    char with[300];
    static const char *const keys[] = {"phi3.context_length=int:512",
                                       "phi3.rope.scaling.original_context_length=int:128", NULL};
    pith_model *m = path ? opened(path, keys[0], PITH_OK, "") : NULL;
    REQUIRE(m, "no model");
    uint64_t pairs = (uint64_t)m->arch.hp.n_rot / 2;
    pith_model_close(m);
    for (int i = 0; i < 2; i++) {
        float *v = append_floats(&f, i ? "rope_factors_short.weight" : "rope_factors_long.weight",
                                 (uint64_t[3]){pairs});
        for (uint64_t k = 0; k < pairs; k++)
            v[k] = i ? 1 : 3;
    }
    snprintf(with, sizeof with, "%s", tmp_path("factors"));
    put_together(with, &f, f.info, f.n_infos, 0);
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    mp.n_threads = 1;
    mp.overrides = keys;
    REQUIRE(m = pith_model_open(with, &mp, &err), "%s", err.msg);
    static const struct {
        int32_t n_ctx;
        int64_t n_tokens;
        int32_t is;
        int far;
    } rows[] = {{0, 0, 128, 0},   {0, 64, 64, 0},   {64, 0, 64, 0},
                {128, 0, 128, 0}, {129, 0, 129, 1}, {512, 0, 512, 1}};
    enum { N = sizeof rows / sizeof *rows };
    pith_session *s[N];
    float z[N][24];
    for (int i = 0; i < N; i++) {
        REQUIRE(s[i] = of_context(m, rows[i].n_ctx, rows[i].n_tokens, z[i]), "row %d", i);
        CHECK_MSG(pith_n_ctx(s[i]) == rows[i].is, "row %d: a context of %d", i, pith_n_ctx(s[i]));
        size_t n = 0;
        CHECK(pith_save_memory(s[i], 0, NULL, 0, &n, &err) == PITH_OK);
        char *saved = malloc(n + 1);
        CHECK_MSG(pith_save_memory(s[i], 0, saved, n, &n, &err) == PITH_OK, "%s", err.msg);
        for (int k = 0; k <= i; k++) {
            int same = rows[i].far == rows[k].far;
            int bits = !memcmp(z[i], z[k], sizeof z[0]),
                pages = !memcmp(s[i]->store.root, s[k]->store.root, sizeof s[i]->store.root);
            CHECK_MSG(bits == same && pages == same, "rows %d and %d: bits %d, pages %d", i, k,
                      bits, pages);
            pith_status st = pith_load_memory(s[k], 0, saved, n, &err);
            CHECK_MSG(same ? st == PITH_OK
                           : st == PITH_STATE && strstr(err.msg, "another set of factors"),
                      "rows %d and %d: %s", i, k, err.msg);
        }
        free(saved);
    }
    for (int i = 0; i < N; i++)
        pith_session_close(s[i]);
    pith_model_close(m);
    unlink(with);
    free(f.p);
    free(f.info);
}

/* q, k and v of a layer in one tensor, behind the others; 0: it has them in another way. */
static int fuse(struct model_file *f, int l)
{
    struct info *t[3];
    char name[96];
    uint64_t rows = 0, at = 0;
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "blk.%d.attn_%c.weight", l, "qkv"[i]);
        t[i] = info_of(f, name);
        if (!t[i] || t[i]->n_dims != 2 || t[i]->dims[0] != t[0]->dims[0])
            return 0;
        rows += t[i]->dims[1];
    }
    uint64_t cols = t[0]->dims[0];
    snprintf(name, sizeof name, "blk.%d.attn_qkv.weight", l);
    float *all = append_floats(f, name, (uint64_t[3]){cols, rows});
    for (int i = 0; i < 3; i++) {
        memcpy(all + at, f->p + f->data + t[i]->offset, 4 * cols * t[i]->dims[1]);
        at += cols * t[i]->dims[1];
        snprintf(t[i]->name, sizeof t[i]->name, "gone");
    }
    return 1;
}

/* Any family's files may have them so: the same bits. */
static void q_k_v_in_one(void)
{
    static const char *const archs[] = {
        "llama",     "falcon-h1", "granitehybrid", "jamba",       "lfm2",     "nemotron_h",
        "llama4",    "gemma3n",   "gpt-oss",       "kimi-linear", "hrm_text", "minimax-m3",
        "qwen3next", "minimax-01"};
    for (size_t a = 0; a < sizeof archs / sizeof *archs; a++) {
        float z[2][24];
        struct model_file f;
        const char *path = made(archs[a], 4, &f);
        REQUIRE(path, "no model");
        int ok = last_logits(path, some_ids, 5, z[0], 24), fused = 0, n = 0;
        for (int l = 0; l < 4; l++)
            fused += fuse(&f, l);
        for (int i = 0; i < f.n_infos; i++)
            if (strcmp(f.info[i].name, "gone"))
                f.info[n++] = f.info[i];
        put_together(path, &f, f.info, n, 0);
        CHECK_MSG(ok && fused && last_logits(path, some_ids, 5, z[1], 24) &&
                      !memcmp(z[0], z[1], sizeof z[0]),
                  "%s: %d layers have q, k and v in one, and give other bits", archs[a], fused);
        free(f.p);
        free(f.info);
    }
    /* Their biases, too, unless these are blocks. */
    for (int blocks = 0; blocks < 2; blocks++) {
        struct model_file f;
        struct pith_error err = {PITH_OK, ""};
        const char *path = made("falcon-h1", 4, &f);
        REQUIRE(path, "no model");
        uint64_t rows = 0;
        for (int i = 0; i < 3; i++) {
            char name[96];
            snprintf(name, sizeof name, "blk.0.attn_%c.weight", "qkv"[i]);
            rows += info_of(&f, name)->dims[1];
        }
        for (int l = 0; l < 4; l++) {
            char name[96];
            snprintf(name, sizeof name, "blk.%d.attn_qkv.bias", l);
            memset(append_floats(&f, name, (uint64_t[3]){rows}), 0, 4 * rows);
            f.info[f.n_infos - 1].type = blocks ? 8 : 0; /* q8_0 */
        }
        put_together(path, &f, f.info, f.n_infos, 0);
        pith_model *m = pith_model_open(path, NULL, &err);
        CHECK_MSG(blocks ? !m && strstr(err.msg, "attn_qkv.bias") : m != NULL, "%s", err.msg);
        pith_model_close(m);
        free(f.p);
        free(f.info);
    }
}

/* ---------------------------------------------------------------- adapters of tokens */

/* Gives slot `one` of all stacks of adapters the matrices of `other`, and that one its own. */
static void change_slots(struct model_file *f, uint64_t one, uint64_t other, int and_back)
{
    for (int i = 0; i < f->n_infos; i++) {
        const struct info *t = &f->info[i];
        uint64_t bytes = 4 * t->dims[0] * t->dims[1];
        uint8_t *p = f->p + f->data + t->offset, *a = p + one * bytes, *b = p + other * bytes;
        for (uint64_t k = 0; strstr(t->name, ".lora_") && k < bytes; k++) {
            uint8_t was = a[k];
            a[k] = b[k];
            b[k] = and_back ? was : b[k];
        }
    }
}

/* From a token that switches adapter 1 on a model is as one whose adapter 0 is that, and which
 * reads the token's stand-in. Adapters 1 and 2, both on, are the mean, 1.5, rounded: 2. */
static void tokens_switch_adapters(void)
{
    enum { V = 24 };
    static const int32_t on[2][4] = {{4, 9, 10, 11}, {5, 9, 10, 11}};
    static const int32_t as[2][4] = {{6, 9, 10, 11}, {7, 9, 10, 11}};
    static const int32_t both[3][4] = {{4, 5, 10, 11}, {6, 5, 10, 11}, {6, 7, 10, 11}};
    float z[4][V];
    char path[300];
    struct pith_error err = {PITH_OK, ""};
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    p.arch = "graniteswitch";
    p.type = "f32";
    p.n_vocab = V;
    p.n_layer = 3;
    p.n_embd = 32;
    snprintf(path, sizeof path, "%s", tmp_path("switch"));
    for (uint64_t slot = 1; slot < 3; slot++) {
        struct model_file f;
        REQUIRE(pith_synth(path, &p, &err) == PITH_OK && take_apart(path, &f), "%s", err.msg);
        int ok = last_logits(path, on[slot - 1], 4, z[0], V) &&
                 last_logits(path, as[slot - 1], 4, z[1], V);
        change_slots(&f, 0, slot, 1);
        put_together(path, &f, f.info, f.n_infos, 0);
        ok = ok && last_logits(path, as[slot - 1], 4, z[2], V) &&
             last_logits(path, on[slot - 1], 4, z[3], V);
        CHECK_MSG(ok && !memcmp(z[0], z[2], sizeof z[0]), "adapter %d is not adapter 0 there",
                  (int)slot);
        CHECK_MSG(ok && !memcmp(z[1], z[3], sizeof z[0]), "adapter 0 is not adapter %d there",
                  (int)slot);
        CHECK(memcmp(z[0], z[1], sizeof z[0]));
        free(f.p);
        free(f.info);
    }
    struct model_file f; /* adapter 1 is as 0: so the first row is as if it switched nothing on */
    REQUIRE(pith_synth(path, &p, &err) == PITH_OK && take_apart(path, &f), "%s", err.msg);
    change_slots(&f, 1, 0, 0);
    put_together(path, &f, f.info, f.n_infos, 0);
    int ok = last_logits(path, both[0], 4, z[0], V) && last_logits(path, both[1], 4, z[1], V) &&
             last_logits(path, both[2], 4, z[2], V);
    CHECK(ok && !memcmp(z[0], z[1], sizeof z[0]) && memcmp(z[0], z[2], sizeof z[0]));
    free(f.p);
    free(f.info);
    unlink(path);
}

/* ---------------------------------------------------------------- stacks of experts */

static int experts_open(const char *arch, const char *path, struct model_file *f)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    p.arch = arch;
    p.type = "f32";
    p.n_vocab = 24;
    p.n_layer = 2;
    p.n_embd = 32;
    p.n_expert = 4;
    int ok = pith_synth(path, &p, &err) == PITH_OK && take_apart(path, f);
    CHECK_MSG(ok, "%s: %s", arch, err.msg);
    return ok;
}

static const char *const stacks[] = {"ffn_gate_exps",   "ffn_up_exps",   "ffn_down_exps",
                                     "ffn_gate_chexps", "ffn_up_chexps", "ffn_down_chexps"};

static void scaled(float *v, uint64_t n, uint64_t each, const float *by)
{
    for (uint64_t i = 0; i < n; i++)
        v[i] *= by[i / each];
}

/* NAME.scale multiplies each matrix of a stack and its bias: the same bits as of a file whose
 * matrices and biases are, by powers of two. How many stacks there were. */
static int factors_of(const char *arch, const char *path)
{
    static const float by[4] = {2, 0.5f, 1, 4};
    float z[3][24];
    char name[96];
    struct model_file f, other;
    int n = 0, ok = experts_open(arch, path, &f) && last_logits(path, some_ids, 5, z[0], 24) &&
                    take_apart(path, &other);
    for (int k = 0; ok && k < 12; k++) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", k % 2, stacks[k / 2]);
        const struct info *t = info_of(&other, name);
        if (!t)
            continue;
        uint64_t each = t->dims[0] * t->dims[1], stack = t->dims[2];
        scaled((float *)(other.p + other.data + t->offset), each * stack, each, by);
        snprintf(name, sizeof name, "blk.%d.%s.bias", k % 2, stacks[k / 2]);
        if (info_of(&other, name)) {
            const struct info *b = info_of(&other, name);
            scaled((float *)(other.p + other.data + b->offset), b->dims[0] * stack, b->dims[0], by);
        }
        snprintf(name, sizeof name, "blk.%d.%s.scale", k % 2, stacks[k / 2]);
        memcpy(append_floats(&f, name, (uint64_t[3]){t->dims[2]}), by, t->dims[2] * sizeof *by);
        n++;
    }
    put_together(path, &f, f.info, f.n_infos, 0);
    ok = ok && last_logits(path, some_ids, 5, z[1], 24);
    put_together(path, &other, other.info, other.n_infos, 0);
    ok = ok && last_logits(path, some_ids, 5, z[2], 24);
    CHECK_MSG(ok && !memcmp(z[1], z[2], sizeof z[1]) && memcmp(z[0], z[1], sizeof z[0]),
              "%s: factors of experts", arch);
    free(f.p);
    free(f.info);
    free(other.p);
    free(other.info);
    return n;
}

static void experts_have_factors(void)
{
    static const char *const archs[] = {"qwen3moe",  "grok",   "grovemoe",
                                        "deepseek2", "gemma4", "gpt-oss"};
    char path[300];
    struct model_file f;
    struct pith_error err = {PITH_OK, ""};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    mp.n_threads = 1;
    snprintf(path, sizeof path, "%s", tmp_path("factors"));
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        CHECK_MSG(factors_of(archs[i], path) >= 3, "%s has fewer stacks", archs[i]);
    for (int how = 0; how < 2; how++) {
        REQUIRE(experts_open("qwen3moe", path, &f), "no model");
        float *v = append_floats(&f, "blk.1.ffn_up_exps.scale", (uint64_t[3]){how ? 4 : 3});
        for (int i = 0; i < 3 + how; i++)
            v[i] = i == 2 && how ? INFINITY : 1;
        put_together(path, &f, f.info, f.n_infos, 0);
        pith_model *m = pith_model_open(path, &mp, &err);
        CHECK_MSG(!m && err.code == (how ? PITH_RANGE : PITH_SHAPE) &&
                      strstr(err.msg, how ? "ffn_up_exps.scale is inf"
                                          : "ffn_up_exps.scale is 3 numbers of type f32, wanted 4"),
                  "%s", err.msg);
        pith_model_close(m);
        free(f.p);
        free(f.info);
    }
    unlink(path);
}

/* Gates and up matrices of experts as one stack: the same bits. */
static void experts_are_fused(void)
{
    static const char *const archs[] = {"qwen3moe", "grok", "grovemoe"};
    for (size_t a = 0; a < sizeof archs / sizeof *archs; a++) {
        char path[300], name[96];
        float z[2][24];
        struct model_file f;
        snprintf(path, sizeof path, "%s", tmp_path("fused"));
        int ok = experts_open(archs[a], path, &f) && last_logits(path, some_ids, 5, z[0], 24);
        for (int l = 0; ok && l < 2; l++) {
            const struct info *one = NULL;
            for (int half = 0; half < 2; half++) {
                snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.weight", l, half ? "up" : "gate");
                const struct info *t = info_of(&f, name);
                REQUIRE(t, "%s: no %s", archs[a], name);
                uint64_t each = t->dims[0] * t->dims[1], x = t->dims[2], from = t->offset;
                if (!half) {
                    snprintf(name, sizeof name, "blk.%d.ffn_gate_up_exps.weight", l);
                    append_floats(&f, name, (uint64_t[3]){t->dims[0], 2 * t->dims[1], x});
                    one = &f.info[f.n_infos - 1];
                }
                for (uint64_t e = 0; e < x; e++)
                    memcpy(f.p + f.data + one->offset + (2 * e + (uint64_t)half) * each * 4,
                           f.p + f.data + from + e * each * 4, each * 4);
            }
        }
        int n = 0;
        for (int i = 0; i < f.n_infos; i++)
            if (!strstr(f.info[i].name, "ffn_gate_exps.") &&
                !strstr(f.info[i].name, "ffn_up_exps."))
                f.info[n++] = f.info[i];
        put_together(path, &f, f.info, n, 0);
        CHECK_MSG(ok && last_logits(path, some_ids, 5, z[1], 24) && !memcmp(z[0], z[1], sizeof *z),
                  "%s: fused experts give other bits", archs[a]);
        free(f.p);
        free(f.info);
        unlink(path);
    }
}

/* ---------------------------------------------------------------- what predicts further on */

/* The last layer is a block that does, with tensors of its own: what runs is the layers before it.
 * What of the block is not known, or has another shape, is told, and is no fault. */
static void blocks_that_predict_further_on(void)
{
    static const char *const archs[] = {"glm4moe", "deepseek2", "exaone4", "mimo2", "qwen3next"};
    for (size_t a = 0; a < sizeof archs / sizeof *archs; a++) {
        char path[300], key[96];
        struct model_file f;
        struct pith_error err = {PITH_OK, ""};
        struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
        struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
        struct pith_model_info info = PITH_MODEL_INFO_INIT;
        const char *overrides[] = {key, NULL};
        p.arch = archs[a];
        p.type = "f32";
        p.n_layer = 4;
        p.n_embd = 32;
        p.n_expert = 4;
        mp.n_threads = 1;
        mp.overrides = overrides;
        snprintf(path, sizeof path, "%s", tmp_path("nextn"));
        snprintf(key, sizeof key, "%s.nextn_predict_layers=int:1", archs[a]);
        REQUIRE(pith_synth(path, &p, &err) == PITH_OK && take_apart(path, &f), "%s", err.msg);
        pith_model *plain = pith_model_open(path, &mp, &err);
        CHECK(plain && pith_model_get_info(plain, &info, &err) == PITH_OK);
        CHECK_MSG(info.note && strstr(info.note, "further on are not loaded") &&
                      !strstr(info.note, "known"),
                  "%s", info.note ? info.note : "no note");
        pith_model_close(plain);
        int n_block = 0;
        for (int i = 0; i < f.n_infos; i++)
            n_block += !strncmp(f.info[i].name, "blk.3.", 6);
        append_floats(&f, "blk.3.nextn.eh_proj.weight", (uint64_t[3]){64, 32});
        append_floats(&f, "blk.3.nextn.enorm.weight", (uint64_t[3]){32});
        append_floats(&f, "blk.3.nextn.hnorm.weight", (uint64_t[3]){31});
        append_floats(&f, "blk.3.nextn.wings.weight", (uint64_t[3]){32});
        put_together(path, &f, f.info, f.n_infos, 0);
        pith_model *m = pith_model_open(path, &mp, &err);
        REQUIRE(m, "%s: %s", archs[a], err.msg);
        const struct arch_nextn *x = m->arch.nextn;
        CHECK(m->arch.hp.n_layer == 3 && m->arch.hp.n_nextn == 1);
        CHECK(x->eh_proj && tensor_k(x->eh_proj) == 64 && x->enorm && !x->hnorm && !x->embed);
        int n_bound = 0;
        void *const *slots = arch_layer(&m->arch, 3);
        for (size_t i = 0; i < m->arch.arch->layer_bytes / sizeof *slots; i++)
            n_bound += slots[i] != NULL;
        CHECK_MSG(n_bound == n_block, "%s: %d of %d of the layer's are bound", archs[a], n_bound,
                  n_block);
        for (int32_t i = 0; i < m->n_tensors; i++)
            CHECK_MSG(strncmp(m->tensors[i]->name, "blk.3.", 6), "%s is loaded",
                      m->tensors[i]->name);
        CHECK(pith_model_get_info(m, &info, &err) == PITH_OK);
        CHECK_MSG(info.n_nextn == 1 && info.note &&
                      strstr(info.note, "2 tensors of blocks that predict further on are not known "
                                        "in this shape, the first being "
                                        "blk.3.nextn.hnorm.weight"),
                  "%s", info.note ? info.note : "no note");
        pith_session *s = pith_session_open(m, NULL, &err);
        CHECK_MSG(s && pith_feed(s, 0, some_ids, 5, &err) == PITH_OK, "%s: %s", archs[a], err.msg);
        pith_session_close(s);
        pith_model_close(m);
        free(f.p);
        free(f.info);
        unlink(path);
    }
}

/* ---------------------------------------------------------------- what sizes decide */

static pith_model *sized(const char *arch, int32_t n_layer, int32_t n_vocab, int32_t n_expert,
                         int32_t n_ctx)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    char path[300];
    snprintf(path, sizeof path, "%s", tmp_path("sized"));
    p.arch = arch;
    p.type = "q8_0";
    p.n_layer = n_layer;
    p.n_vocab = n_vocab;
    p.n_embd = 32;
    p.n_ff = 32;
    p.n_head = 2;
    p.n_expert = n_expert;
    p.n_ctx = n_ctx;
    mp.n_threads = 1;
    pith_model *m = pith_synth(path, &p, &err) == PITH_OK ? pith_model_open(path, &mp, &err) : NULL;
    CHECK_MSG(m, "%s of %d layers: %s", arch, n_layer, err.msg);
    unlink(path);
    return m;
}

static int n_nodes_named(const pith_model *m, const char *name)
{
    struct graph g;
    struct pith_error err;
    int n = 0;
    graph_init(&g);
    g.n_layer = m->arch.hp.n_layer;
    g.states = m->arch.states;
    g.n_states = m->arch.n_states;
    g.tok_embd = m->tok_embd;
    g.n_embd = m->arch.hp.n_embd;
    arch_build(&m->arch, &(struct arch_want){.logits = 1}, &g);
    CHECK(graph_finish(&g, &err) == PITH_OK);
    for (const struct node *k = g.first; k; k = k->next)
        n += strstr(k->name, name) != NULL;
    graph_deinit(&g);
    return n;
}

/* Rows of src/arch/sizes.c that second implementations do not show (test_second.py), each with a
 * size beside it. */
static void sizes_decide(void)
{
    static const struct {
        const char *arch;
        int32_t n_layer, n_vocab;
        int one_q;
    } q[] = {{"deepseek2", 26, 64, 1},     {"deepseek2", 27, 64, 1},  {"deepseek2", 28, 64, 0},
             {"deepseek2", 48, 128256, 1}, {"deepseek2", 48, 64, 0},  {"deepseek2", 25, 64, 0},
             {"mistral4", 27, 64, 1},      {"mistral4", 4, 64, 0},    {"mistral4", 26, 64, 1},
             {"mistral4", 48, 128256, 1},  {"deepseek32", 27, 64, 0}, {"glm-dsa", 27, 64, 0}};
    for (size_t i = 0; i < sizeof q / sizeof *q; i++) {
        if (test_scale() < 10 && q[i].n_vocab > 64)
            continue; /* large ones take long */
        pith_model *m = sized(q[i].arch, q[i].n_layer, q[i].n_vocab, 4, 0);
        CHECK_MSG(m && (gguf_tensor_find(m->gguf, SLICE("blk.1.attn_q.weight")) != NULL) ==
                           q[i].one_q,
                  "%s of %d layers and %d tokens", q[i].arch, q[i].n_layer, q[i].n_vocab);
        pith_model_close(m);
    }
    static const struct {
        const char *arch;
        int32_t n_layer, n_vocab, gating;
    } s[] = {{"deepseek2", 47, 154880, 2}, {"deepseek2", 48, 154880, 2},
             {"deepseek2", 46, 154880, 1}, {"deepseek2", 47, 64, 1},
             {"mistral4", 47, 154880, 2},  {"mistral4", 48, 154880, 2},
             {"mistral4", 47, 64, 1},      {"glm-dsa", 2, 64, 2}};
    for (size_t i = 0; i < sizeof s / sizeof *s; i++) {
        if (test_scale() < 10 && s[i].n_vocab > 64 && i % 4)
            continue;
        pith_model *m = sized(s[i].arch, s[i].n_layer, s[i].n_vocab, 4, 0);
        CHECK_MSG(m && m->arch.hp.expert_gating == s[i].gating, "%s of %d layers and %d tokens: %d",
                  s[i].arch, s[i].n_layer, s[i].n_vocab, m ? m->arch.hp.expert_gating : -1);
        pith_model_close(m);
    }
    for (int32_t x = 127; x <= 128; x++) { /* one of four layers has no positions, and no norm */
        pith_model *m = sized("llama4", 4, 64, x, 0);
        CHECK_MSG(m && n_nodes_named(m, "attn_q_norm") == (x == 128 ? 0 : 3), "%d experts", x);
        pith_model_close(m);
    }
    for (int far = 0; far < 2; far++) { /* layers 0, 1, 2, 6 */
        pith_model *m = sized("glm-dsa", 8, 64, 4, far ? 1048576 : 1048575);
        CHECK_MSG(m && n_nodes_named(m, "index_topk") == (far ? 4 : 8), "%d", far);
        pith_model_close(m);
    }
}

/* ---------------------------------------------------------------- YaRN of bailingmoe3 */

/* [YaRN, arXiv:2309.00071, sec. 3]: frequencies by a ramp, both rotated parts 1 + 0.1 ln s long. */
static void ling_scales_positions(void)
{
    enum { R = 8, N0 = 64 };
    const char *const yarn[] = {"bailingmoe3.rope.scaling.type=str:yarn",
                                "bailingmoe3.rope.scaling.factor=float:4",
                                "bailingmoe3.rope.scaling.original_context_length=int:64",
                                NULL,
                                NULL};
    const char *both[5];
    char path[300];
    struct pith_error err = {PITH_OK, ""};
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    p.arch = "bailingmoe3";
    snprintf(path, sizeof path, "%s", tmp_path("ling"));
    REQUIRE(pith_synth(path, &p, &err) == PITH_OK, "%s", err.msg);
    memcpy(both, yarn, sizeof both);
    both[3] = "bailingmoe3.rope.scaling.yarn_log_multiplier=float:0.1";
    mp.n_threads = 1;
    mp.overrides = yarn;
    pith_model *m = pith_model_open(path, &mp, &err);
    REQUIRE(m, "%s", err.msg);
    const struct rope_set *set = m->arch.rope[1];
    CHECK(set && set->n_rot == R && fabs((double)set->mscale - (1 + 0.1 * log(4))) < 1e-6);
    double lo = floor(R * log(N0 / (2 * M_PI * 32)) / (2 * log(10000))),
           hi = ceil(R * log(N0 / (2 * M_PI)) / (2 * log(10000)));
    lo = lo > 0 ? lo : 0;
    for (int i = 0; set && i < R / 2; i++) {
        double f = pow(10000, -2.0 * i / R), t = (i - lo) / (hi - lo);
        double keep = 1 - (t < 0 ? 0 : t > 1 ? 1 : t), want = f / 4 * (1 - keep) + f * keep;
        CHECK_MSG(fabs(set->freq[i] - want) < 1e-12, "pair %d: %g, wanted %g", i, set->freq[i],
                  want);
    }
    pith_model_close(m);
    mp.overrides = both;
    m = pith_model_open(path, &mp, &err);
    CHECK_MSG(!m && err.code == PITH_UNSUPPORTED && strstr(err.msg, "yarn_log_multiplier is 0.1"),
              "%s", err.msg);
    pith_model_close(m);
    unlink(path);
}

static void recorded_models(void)
{
    struct golden *list;
    int n = golden_list("golden/arch", &list), found = 0;
    for (int i = 0; i < n; i++) {
        if (!golden_known(&list[i]) || (found++ % 32 && test_scale() < 10))
            continue;
        check_model(list[i].name, golden_path(&list[i], ".gguf"));
    }
    golden_free(list, n);
    if (!found)
        SKIP("no golden/arch in %s", test_shared());
}

int main(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    tmp_make();
    TEST(messages);
    TEST(windows_that_are_not_told);
    TEST(keys_that_have_to_be_there);
    TEST(layers_that_share);
    TEST(windows_of_nothing);
    TEST(scales_of_nothing);
    TEST(windows_are_not_scaled);
    TEST(shared_experts_of_no_width);
    TEST(defaults_of_latent_families);
    TEST(biases_that_are_not_added);
    TEST(factors_come_in_pairs);
    TEST(contexts_choose_factors);
    TEST(q_k_v_in_one);
    TEST(tokens_switch_adapters);
    TEST(activations_are_divided);
    TEST(blocks_that_predict_further_on);
    TEST(sizes_decide);
    TEST(ling_scales_positions);
    TEST(experts_have_factors);
    TEST(experts_are_fused);
    TEST(synthetic_models);
    TEST(recorded_models);
    return test_end();
}
