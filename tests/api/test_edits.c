/* test_edits.c -- what pith_edits says of a session is what it does: for models that keep their
 * states in every way there is, each kind of edit is made and a token fed behind it; what is said
 * goes, what is not said is refused. */
#include "backend/far/far.h"
#include "hook.h"

enum { V = 64, N = 12 };

static const int32_t ids[N] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};

/* A sequence 0 of N tokens, and an empty one. */
static void begin(pith_session *s, int encoder)
{
    struct pith_error err;
    CHECK_MSG(pith_truncate(s, 0, 0, &err) == PITH_OK && pith_truncate(s, 1, 0, &err) == PITH_OK,
              "%s", err.msg);
    if (encoder)
        CHECK_MSG(pith_encode(s, 0, ids, 4, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(pith_feed(s, 0, ids, N, &err) == PITH_OK, "%s", err.msg);
}

static int goes_on(pith_session *s, int32_t seq, struct pith_error *err)
{
    return pith_feed(s, seq, ids, 1, err) == PITH_OK;
}

static int places(pith_session *s, struct pith_error *err)
{
    static const int32_t pos[4] = {N + 9, N + 9, N + 9, 0};
    struct pith_batch b = PITH_BATCH_INIT;
    b.n = 1;
    b.token = ids;
    b.pos = pos;
    return pith_step(s, &b, err) == PITH_OK;
}

static int tries(pith_session *s, struct pith_error *err)
{
    static const int32_t parent[3] = {PITH_ROOT, PITH_ROOT, 1};
    struct pith_batch b = PITH_BATCH_INIT;
    b.n = 3;
    b.token = ids;
    b.parent = parent;
    return pith_step(s, &b, err) == PITH_OK && pith_accept(s, 0, 2, err) == PITH_OK &&
           goes_on(s, 0, err);
}

/* Whether the edit can be made, and the sequence goes on. */
static int does(pith_session *s, enum pith_edit edit, uint32_t said, struct pith_error *err)
{
    switch (edit) {
    case PITH_EDIT_COPY:
        return pith_copy(s, 1, 0, 0, -1, err) == PITH_OK && goes_on(s, 1, err);
    case PITH_EDIT_TRUNCATE:
        return pith_copy(s, 1, 0, 0, 5, err) == PITH_OK && goes_on(s, 1, err) &&
               pith_truncate(s, 0, 7, err) == PITH_OK && goes_on(s, 0, err);
    case PITH_EDIT_REMOVE:
        return pith_remove(s, 0, 2, 4, err) == PITH_OK &&
               (said & PITH_EDIT_GAPS || pith_shift(s, 0, 4, -1, -2, err) == PITH_OK) &&
               goes_on(s, 0, err) && pith_length(s, 0) == N - 1;
    case PITH_EDIT_SHIFT:
        return pith_shift(s, 0, 0, -1, 3, err) == PITH_OK && goes_on(s, 0, err) &&
               pith_position_max(s, 0) == N + 3;
    case PITH_EDIT_GAPS:
        return places(s, err) && pith_position_max(s, 0) == N + 9;
    default:
        return tries(s, err);
    }
}

static pith_session *open_kind(const char *arch, pith_pooling pooling, int *encoder,
                               struct pith_error *err)
{
    char path[256];
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    snprintf(path, sizeof path, "%s/%s.gguf", tmp_dir, arch);
    p.arch = arch;
    p.n_vocab = V;
    p.n_ctx = 128;
    mp.n_threads = 1;
    sp.n_ctx = 64;
    sp.n_seq = 2;
    sp.pooling = pooling;
    pith_model *m = pith_synth(path, &p, err) == PITH_OK ? pith_model_open(path, &mp, err) : NULL;
    *encoder = m && pith_model_get_info(m, &info, err) == PITH_OK && info.encoder;
    pith_session *s = m ? pith_session_open(m, &sp, err) : NULL;
    pith_model_close(m);
    unlink(path);
    return s;
}

enum {
    LAST = PITH_EDIT_TREES,
    ROWS = PITH_EDIT_COPY | PITH_EDIT_TRUNCATE | PITH_EDIT_REMOVE | PITH_EDIT_TREES,
    ALL = ROWS | PITH_EDIT_SHIFT | PITH_EDIT_GAPS
};

static void what_is_said_is_done(void)
{
    static const struct {
        const char *arch;
        pith_pooling pooling;
        int far;
        uint32_t edits;
    } kind[] = {
        {"llama", PITH_POOL_NONE, 0, ALL},
        {"gemma3", PITH_POOL_NONE, 0, ALL},    /* windows */
        {"deepseek2", PITH_POOL_NONE, 0, ALL}, /* latent rows */
        {"gpt2", PITH_POOL_NONE, 0, ALL & ~PITH_EDIT_SHIFT},  /* learned positions */
        {"bloom", PITH_POOL_NONE, 0, ALL & ~PITH_EDIT_GAPS},  /* ALiBi */
        {"t5", PITH_POOL_NONE, 0, ALL & ~PITH_EDIT_GAPS},     /* buckets of distances */
        {"mamba2", PITH_POOL_NONE, 0, PITH_EDIT_COPY | PITH_EDIT_GAPS},
        {"qwen3next", PITH_POOL_NONE, 0, PITH_EDIT_COPY | PITH_EDIT_GAPS}, /* both kinds */
        {"deepseek4", PITH_POOL_NONE, 0, PITH_EDIT_COPY}, /* a row for several tokens */
        {"llama", PITH_POOL_NONE, 1, ALL},
        {"llama", PITH_POOL_MEAN, 0, 0},
        {"modern-bert", PITH_POOL_NONE, 0, 0},
        {"dream", PITH_POOL_NONE, 0, 0}, /* fills in masks */
    };
    struct pith_error err = {PITH_OK, ""};
    for (size_t i = 0; i < sizeof kind / sizeof *kind; i++) {
        int encoder;
        if (kind[i].far) {
            setenv("PITH_FAR_DEVICES", "1", 1);
            setenv("PITH_LAYER_DEVICES", "1", 1);
        }
        far_plan(&(struct far_plan){.seed = i});
        pith_session *s = open_kind(kind[i].arch, kind[i].pooling, &encoder, &err);
        unsetenv("PITH_FAR_DEVICES");
        unsetenv("PITH_LAYER_DEVICES");
        REQUIRE(s, "%s: %s", kind[i].arch, err.msg);
        uint32_t said = pith_edits(s);
        CHECK_MSG(said == kind[i].edits, "%s: says 0x%x, wanted 0x%x", kind[i].arch, said,
                  kind[i].edits);
        for (uint32_t e = 1; e <= LAST; e *= 2) {
            begin(s, encoder);
            err = (struct pith_error){PITH_OK, ""};
            int did = does(s, (enum pith_edit)e, said, &err);
            CHECK_MSG(did == ((said & e) != 0), "%s says 0x%x, and edit 0x%x %s: %s", kind[i].arch,
                      said, e, did ? "goes" : "does not go", err.msg);
            CHECK_MSG(did || err.code != PITH_OK, "%s: edit 0x%x ends otherwise", kind[i].arch, e);
        }
        pith_session_close(s);
    }
    CHECK(pith_edits(NULL) == 0);
    check_nothing_held("edits");
}

/* The report has them, as text and as JSON. */
static void the_report_tells(void)
{
    struct pith_error err;
    char text[1 << 15], json[1 << 15];
    int encoder;
    pith_session *s = open_kind("gpt2", PITH_POOL_NONE, &encoder, &err);
    REQUIRE(s && pith_report(s, 0, text, sizeof text) > 0 &&
                pith_report(s, 1, json, sizeof json) > 0,
            "%s", err.msg);
    CHECK_MSG(strstr(text, "edits: copy truncate remove gaps trees\n"), "%s", text);
    CHECK_MSG(strstr(json, "\"edits\": [\"copy\", \"truncate\", \"remove\", \"gaps\", \"trees\"]"),
              "%s", json);
    pith_session_close(s);
    s = open_kind("llama", PITH_POOL_MEAN, &encoder, &err);
    REQUIRE(s && pith_report(s, 0, text, sizeof text) > 0 &&
                pith_report(s, 1, json, sizeof json) > 0,
            "%s", err.msg);
    CHECK(strstr(text, "edits: none\n") && strstr(json, "\"edits\": [], "));
    pith_session_close(s);
    check_nothing_held("reports");
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(what_is_said_is_done);
    TEST(the_report_tells);
    return test_end();
}
