/* test_layouts.c -- programs of other versions: structs with less at their end than the library's,
 * and with more. Each lies before bytes that nobody may write; the layouts below are those of the
 * first version that had sizes, written out, so they stay what they are when the header's grow. */
#include "hook.h"
#include "small_model.h"

/* ---------------------------------------------------------------- as they were */

struct old_report {
    size_t size;
    uint64_t used[32], peak[32];
};
struct old_tensor {
    size_t size;
    const char *name, *type;
    int n_dims;
    int64_t dims[4];
    uint64_t offset, bytes;
    int part;
};
struct old_shown {
    size_t size;
    const char *held;
    size_t n_held, n_fresh;
};
struct old_event {
    size_t size;
    int kind;
    const char *text;
    size_t n_bytes;
    const char *name, *id;
    int32_t index, whole;
};
struct old_draw {
    size_t size;
    int32_t output;
    pith_sampler *sampler;
    int32_t id, n_top;
    struct pith_logprob *top;
    float logprob;
};
struct old_result {
    size_t size;
    int stop;
    int32_t n_prompt, n_kept, n_generated;
    size_t n_bytes;
    int64_t prefill_ns, decode_ns;
    int32_t differs_at;
    char differs_known[32], differs_given[32];
    int32_t unfed;
};
struct old_plan {
    size_t size;
    int32_t n_ctx, n_ctx_train;
    int64_t n_tokens;
    uint64_t cache_bytes, left_bytes, memory_bytes;
    char limited_by[160];
};
struct old_allocator {
    size_t size;
    void *ctx;
    void *(*alloc)(void *ctx, size_t bytes, size_t align, pith_purpose purpose);
    void (*free)(void *ctx, void *p, size_t bytes, pith_purpose purpose);
    int (*commit)(void *ctx, void *addr, size_t bytes, pith_purpose purpose);
};

struct old_use {
    size_t size;
    const pith_adapter *adapter;
    float scale;
};

#define SAME(old, now, field)                                                                      \
    _Static_assert(offsetof(struct old, field) == offsetof(struct now, field),                     \
                   #now "." #field " has moved")
SAME(old_report, pith_memory_report, used);
SAME(old_report, pith_memory_report, peak);
SAME(old_tensor, pith_tensor_info, dims);
SAME(old_tensor, pith_tensor_info, part);
SAME(old_shown, pith_shown, n_fresh);
SAME(old_event, pith_chat_event, text);
SAME(old_event, pith_chat_event, whole);
SAME(old_draw, pith_draw, sampler);
SAME(old_draw, pith_draw, logprob);
SAME(old_result, pith_generate_result, differs_known);
SAME(old_result, pith_generate_result, unfed);
SAME(old_plan, pith_session_plan, limited_by);
SAME(old_allocator, pith_allocator, commit);
SAME(old_use, pith_adapter_use, adapter);
SAME(old_use, pith_adapter_use, scale);
_Static_assert(sizeof(struct pith_error) == sizeof(pith_status) + 2048 &&
                   sizeof(struct pith_logprob) == 8 && sizeof(struct pith_logit_bias) == 8 &&
                   sizeof(struct pith_span) == 2 * sizeof(size_t) &&
                   offsetof(struct pith_span, to) == sizeof(size_t),
               "a struct without a size has grown");
_Static_assert(PITH_MEM_MAX == 32, "arrays per purpose have changed their shape");

/* ---------------------------------------------------------------- a caller's memory */

enum { ROOM = 4096 };
static _Alignas(64) uint8_t room[ROOM];

/* A struct of n bytes as its caller says, in memory that holds 0xA5 elsewhere. */
static void *of_size(size_t n)
{
    memset(room, 0xA5, sizeof room);
    memset(room, 0, n);
    memcpy(room, &n, sizeof n);
    return room;
}

/* The struct still says n bytes, and what is behind them was not written. */
static int kept(size_t n)
{
    size_t says;
    memcpy(&says, room, sizeof says);
    for (size_t i = n; i < ROOM; i++)
        if (room[i] != 0xA5)
            return 0;
    return says == n;
}

/* Zero from the library's end to a later caller's. */
static int zero_from(size_t from, size_t to)
{
    while (from < to && !room[from])
        from++;
    return from == to;
}

static pith_model *model;
static pith_session *session;
static char path[128];

/* Calls what fills a struct of n bytes. */
typedef pith_status (*fill_fn)(void *out);

static pith_status fill_report(void *out)
{
    return pith_memory(out);
}
static pith_status fill_tensor(void *out)
{
    pith_file *f = pith_file_open(path, NULL);
    pith_status st = pith_file_tensor(f, 1, out);
    pith_file_close(f);
    return st;
}
static pith_status fill_info(void *out)
{
    return pith_model_get_info(model, out, NULL);
}
static pith_status fill_plan(void *out)
{
    return pith_plan_session(model, NULL, out, NULL);
}
static pith_status fill_state(void *out)
{
    return pith_session_state_at(session, 0, out, NULL);
}
static pith_status fill_arch_key(void *out)
{
    return pith_arch_key_at("llama", 0, out, NULL);
}
static pith_status fill_arch_tensor(void *out)
{
    return pith_arch_tensor_at("llama", 0, out, NULL);
}
static pith_status fill_result(void *out)
{
    int32_t ids[] = {1, 2, 3};
    struct pith_generate_params p = PITH_GENERATE_PARAMS_INIT;
    p.tokens = ids;
    p.n_tokens = 3;
    p.n_max = 4;
    p.ignore_eog = 1;
    return pith_generate(session, &p, out, NULL);
}
static pith_status fill_machine(void *out)
{
    return pith_machine_measure(1, 1, out, NULL);
}
static pith_status fill_threads(void *out)
{
    return pith_measure_threads(0, out, NULL);
}
static pith_status fill_shown(void *out)
{
    const char *const strings[] = {"stop", NULL};
    pith_stopper *s = pith_stopper_open(strings, NULL);
    size_t size;
    memcpy(&size, out, sizeof size);
    pith_stopper_put(s, "text st", 7, out);
    pith_stopper_close(s);
    return size < sizeof size ? PITH_RANGE : PITH_OK; /* it returns a match */
}

static const struct filled {
    const char *name;
    fill_fn fill;
    size_t now, first; /* bytes of the header's, and of the first version */
} filled[] = {
    {"pith_memory_report", fill_report, sizeof(struct pith_memory_report),
     sizeof(struct old_report)},
    {"pith_tensor_info", fill_tensor, sizeof(struct pith_tensor_info), sizeof(struct old_tensor)},
    {"pith_session_state", fill_state, sizeof(struct pith_session_state),
     sizeof(struct pith_session_state)},
    {"pith_arch_key", fill_arch_key, sizeof(struct pith_arch_key), sizeof(struct pith_arch_key)},
    {"pith_arch_tensor", fill_arch_tensor, sizeof(struct pith_arch_tensor),
     sizeof(struct pith_arch_tensor)},
    {"pith_model_info", fill_info, sizeof(struct pith_model_info), 64},
    {"pith_session_plan", fill_plan, sizeof(struct pith_session_plan), sizeof(struct old_plan)},
    {"pith_generate_result", fill_result, sizeof(struct pith_generate_result),
     sizeof(struct old_result)},
    {"pith_machine", fill_machine, sizeof(struct pith_machine), 112},
    {"pith_threads", fill_threads, sizeof(struct pith_threads), 32},
    {"pith_shown", fill_shown, sizeof(struct pith_shown), sizeof(struct old_shown)},
};

/* Whatever a caller's version has: no byte behind it is written, what it has is filled, what nobody
 * knows of is zero. */
static void structs_of_other_versions(void)
{
    for (size_t i = 0; i < sizeof filled / sizeof *filled; i++) {
        const struct filled *f = &filled[i];
        CHECK_MSG(f->fill(of_size(f->now)) == PITH_OK && kept(f->now), "%s as it is", f->name);
        CHECK_MSG(!zero_from(sizeof(size_t), f->now), "%s: nothing was filled in", f->name);
        CHECK_MSG(f->fill(of_size(f->first)) == PITH_OK && kept(f->first),
                  "%s of the first version", f->name);
        CHECK_MSG(f->fill(of_size(16)) == PITH_OK && kept(16), "%s of 16 bytes", f->name);
        size_t more = f->now + 72;
        CHECK_MSG(f->fill(of_size(more)) == PITH_OK && kept(more) && zero_from(f->now, more),
                  "%s of a later version", f->name);
        CHECK_MSG(f->fill(of_size(0)) == PITH_RANGE, "%s without a size", f->name);
        CHECK_MSG(room[0] == 0 && room[sizeof(size_t)] == 0xA5, "%s without a size was written",
                  f->name);
    }
}

/* What an older program reads is what a newer one does. */
static void old_fields_are_filled(void)
{
    struct old_result *r = of_size(sizeof *r);
    CHECK(fill_result(r) == PITH_OK && r->n_prompt == 3 && r->n_generated == 4 && r->unfed >= 0 &&
          r->stop == PITH_STOP_LENGTH);
    struct old_tensor *t = of_size(sizeof *t);
    CHECK(fill_tensor(t) == PITH_OK && t->n_dims >= 1 && t->dims[0] > 0 && t->bytes > 0);
    struct old_shown *s = of_size(sizeof *s);
    CHECK(fill_shown(s) == PITH_OK && s->n_fresh == 5);
    struct old_report *m = of_size(sizeof *m);
    CHECK(fill_report(m) == PITH_OK && m->used[PITH_MEM_WEIGHTS] > 0 &&
          m->peak[PITH_MEM_CACHE] > 0 &&
          zero_from(offsetof(struct old_report, used) + 8 * PITH_MEM_N,
                    offsetof(struct old_report, peak)));
}

/* An array is walked by its caller's size, and every element has to have it. */
static void draws_of_other_versions(void)
{
    enum { N = 3, LATER = sizeof(struct pith_draw) + 40 };
    const size_t sizes[] = {sizeof(struct old_draw), sizeof(struct pith_draw), LATER};
    int32_t tokens[N] = {1, 2, 3}, want[N];
    uint8_t asks[N] = {1, 1, 1};
    struct pith_batch b = PITH_BATCH_INIT;
    struct pith_sampler_params sp = PITH_SAMPLER_PARAMS_INIT;
    struct pith_error err;
    pith_truncate(session, 0, 0, NULL);
    b.n = N;
    b.token = tokens;
    b.want = asks;
    REQUIRE(pith_step(session, &b, &err) == PITH_OK, "%s", err.msg);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        pith_sampler *own[N];
        memset(room, 0xA5, sizeof room);
        for (int i = 0; i < N; i++) {
            own[i] = pith_sampler_open(64, &sp, &err);
            struct old_draw d = {
                .size = sizes[k], .output = N - 1 - i, .sampler = own[i], .id = -7, .n_top = -1};
            memset(room + (size_t)i * sizes[k], 0, sizes[k]);
            memcpy(room + (size_t)i * sizes[k], &d, sizeof d);
            want[i] = pith_sample(own[i], pith_logits(session, N - 1 - i));
        }
        pith_status st = pith_sample_rows(session, (struct pith_draw *)(void *)room, N, &err);
        CHECK_MSG(st == PITH_OK, "draws of %zu bytes: %s", sizes[k], err.msg);
        for (int i = 0; i < N; i++) {
            const struct old_draw *d = (const void *)(room + (size_t)i * sizes[k]);
            CHECK_MSG(d->id == want[i] && d->size == sizes[k], "draw %d of %zu bytes: %d, alone %d",
                      i, sizes[k], d->id, want[i]);
            pith_sampler_close(own[i]);
        }
        CHECK(room[N * sizes[k]] == 0xA5);
    }
    struct pith_draw d[2] = {PITH_DRAW_INIT, PITH_DRAW_INIT};
    d[0].n_top = d[1].n_top = -1;
    const size_t bad[] = {0, 8, sizeof(struct pith_draw) + 4, 1 << 20};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        d[0].size = bad[i];
        CHECK_MSG(pith_sample_rows(session, d, 2, &err) == PITH_RANGE && strstr(err.msg, "size"),
                  "%zu: %s", bad[i], err.msg);
    }
    d[0].size = sizeof d[0];
    d[1].size = sizeof d[1] + 8;
    CHECK(pith_sample_rows(session, d, 2, &err) == PITH_RANGE && strstr(err.msg, "draw 1"));
}

static void hear(void *ctx, const struct pith_chat_event *e)
{
    size_t *least = ctx;
    *least = e->size < *least ? e->size : *least;
}

/* What the library owns says how much there is of it. */
static void events_have_a_size(void)
{
    struct pith_chat_params p = PITH_CHAT_PARAMS_INIT;
    struct pith_error err;
    static const char text[] =
        "<think>so</think>yes<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>";
    size_t least = SIZE_MAX;
    p.family = "hermes";
    p.on_event = hear;
    p.ctx = &least;
    for (p.partial = 0; p.partial < 2; p.partial++) {
        pith_chat_parser *c = pith_chat_open(NULL, &p, &err);
        REQUIRE(c, "%s", err.msg);
        for (size_t i = 0; i < sizeof text - 1; i++)
            CHECK(pith_chat_feed(c, text + i, 1, &err) == PITH_OK);
        CHECK(pith_chat_finish(c, &err) == PITH_OK && pith_chat_n_calls(c) == 1 &&
              pith_chat_call(c, 0)->size == sizeof(struct pith_chat_event));
        pith_chat_close(c);
    }
    CHECK_MSG(least == sizeof(struct pith_chat_event), "an event says that it has %zu bytes",
              least);
}

/* First: the allocator of a later version, which has more entries than the library knows of. */
static void allocator_of_a_later_version(void)
{
    struct {
        struct pith_allocator known;
        void (*unknown[4])(void);
    } later = {
        .known = {
            .size = sizeof later, .alloc = hook_alloc, .free = hook_free, .commit = hook_commit}};
    struct pith_error err;
    CHECK_MSG(pith_set_allocator(&later.known, &err) == PITH_OK, "%s", err.msg);
    later.known.size = offsetof(struct old_allocator, commit);
    CHECK(pith_set_allocator(&later.known, &err) == PITH_RANGE && strstr(err.msg, "size"));
}

int main(void)
{
    struct pith_synth_params p = small_params("llama", 64);
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_error err;
    TEST(allocator_of_a_later_version);
    tmp_make();
    snprintf(path, sizeof path, "%s", tmp_path("small.gguf"));
    if (pith_synth(path, &p, &err) != PITH_OK) {
        printf("FAIL model: %s\n", err.msg);
        return 1;
    }
    model = small_model(&p, 0, NULL);
    sp.n_ctx = 128;
    session = model ? pith_session_open(model, &sp, &err) : NULL;
    if (session) {
        TEST(structs_of_other_versions);
        TEST(old_fields_are_filled);
        TEST(draws_of_other_versions);
        TEST(events_have_a_size);
    }
    int missing = session == NULL;
    pith_session_close(session);
    pith_model_close(model);
    if (missing)
        printf("FAIL session: %s\n", err.msg);
    return test_end() || missing;
}
