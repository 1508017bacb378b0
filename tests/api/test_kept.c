/* test_kept.c -- sessions say which states they keep: pith_session_state_at, and the report. */
#include "robust.h"

/* A dense, a windowed, a latent and a recurrent model: rows, range, span, and bytes of 64 positions
 * (of a sequence) of all four layers, f16. */
static void session_states(void)
{
    static const struct {
        const char *arch, *rows, *range, *type_v, *line;
        int32_t span;
        uint64_t bytes;
    } cases[] = {
        {"llama", "K and V", "all", "f16", "state: K and V of 4 layers, 4 of their own", 0,
         4 * 64 * 2 * (32 + 32) * 2},
        {"gemma3", "K and V", "window", "f16", "layer 0 on, window 32, f16 f16", 32,
         4 * 64 * 2 * (32 + 32) * 2},
        {"deepseek2", "latent rows", "all", NULL, "latent rows of 4 layers", 0, 4 * 64 * 48 * 2},
        {"mamba2", "recurrent state", "", NULL, "recurrent state of 4 layers", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pith_synth_params sp = PITH_SYNTH_PARAMS_INIT;
        struct pith_session_params pp = PITH_SESSION_PARAMS_INIT;
        struct pith_session_state k = PITH_SESSION_STATE_INIT;
        struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
        struct pith_error err = {PITH_OK, ""};
        static char text[1 << 16];
        const char *file = tmp_path("states.gguf");
        mp.n_threads = 1;
        pp.n_ctx = 128;
        sp.arch = cases[i].arch;
        sp.n_layer = 4;
        sp.n_embd = 64;
        sp.n_head = sp.n_head_kv = 2;
        sp.head_dim = 32;
        REQUIRE(pith_synth(file, &sp, &err) == PITH_OK, "%s", err.msg);
        pith_model *m = pith_model_open(file, &mp, &err);
        pith_session *s = m ? pith_session_open(m, &pp, &err) : NULL;
        REQUIRE(s, "%s: %s", cases[i].arch, err.msg);
        CHECK_MSG(pith_session_n_states(s) == 1 &&
                      pith_session_state_at(s, 0, &k, &err) == PITH_OK,
                  "%s: %d kinds of state", cases[i].arch, pith_session_n_states(s));
        CHECK_MSG(!strcmp(k.rows, cases[i].rows) && !strcmp(k.range, cases[i].range) &&
                      k.span == cases[i].span && k.ratio == 1 && k.layers == 4 && k.states == 4 &&
                      k.first == 0 && !strcmp(k.device, "CPU"),
                  "%s: %s, %s %d, %d of %d from %d, %s", cases[i].arch, k.rows, k.range, k.span,
                  k.states, k.layers, k.first, k.device);
        CHECK_MSG(!k.type_v == !cases[i].type_v && (!k.type_v || !strcmp(k.type_v, "f16")),
                  "%s: V is %s", cases[i].arch, k.type_v ? k.type_v : "none");
        CHECK_MSG(cases[i].bytes ? k.bytes == cases[i].bytes : k.bytes > 0 && k.bytes % 4 == 0,
                  "%s: %llu bytes", cases[i].arch, (unsigned long long)k.bytes);
        CHECK(pith_report(s, 0, text, sizeof text) > 0 && strstr(text, cases[i].line));
        CHECK(pith_report(s, 1, text, sizeof text) > 0 && strstr(text, "\"states\": [{\"rows\":"));
        CHECK(pith_session_state_at(s, 1, &k, &err) == PITH_RANGE && strstr(err.msg, "1 of 1"));
        CHECK(pith_session_state_at(s, -1, &k, &err) == PITH_RANGE);
        CHECK(pith_session_state_at(s, 0, NULL, &err) == PITH_RANGE);
        k.size = 0;
        CHECK(pith_session_state_at(s, 0, &k, &err) == PITH_RANGE && strstr(err.msg, "size is 0"));
        pith_session_close(s);
        pith_model_close(m);
        unlink(file);
    }
    CHECK(pith_session_n_states(NULL) == -1);
}

int main(void)
{
    tmp_make();
    TEST(session_states);
    return test_end();
}
