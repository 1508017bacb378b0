/* test_work.c -- bounds of work: everything that is long for a small input counts its steps, asks
 * often enough whether it may go on, ends when it may not, and leaves nothing behind. Steps and
 * bytes are counted, never time. */
#include "base/work.h"
#include "hook.h"
#include "small_model.h"

enum { TEXT_BYTES = 1 << 19 };

static pith_model *model;

struct asked {
    int n;           /* times */
    int stop_at;     /* the time that it says no, -1: never */
    uint64_t before; /* steps when it was asked last */
    uint64_t widest; /* steps between two times */
};

static int go_on(void *ctx, const struct pith_work *w)
{
    struct asked *a = ctx;
    uint64_t wide = w->steps - a->before;
    a->before = w->steps;
    a->widest = wide > a->widest ? wide : a->widest;
    return a->n++ != a->stop_at;
}

/* ---------------------------------------------------------------- what is long */

static char *repeated(const char *unit, size_t n)
{
    size_t len = strlen(unit);
    char *text = malloc(n * len + 1);
    for (size_t i = 0; i < n; i++)
        memcpy(text + i * len, unit, len);
    text[n * len] = 0;
    return text;
}

static pith_status tokenize(const char *unit, struct pith_error *err)
{
    char *text = repeated(unit, TEXT_BYTES / strlen(unit));
    int64_t n = pith_tokenize(model, text, TEXT_BYTES, PITH_PARSE_SPECIAL, NULL, 0, err);
    free(text);
    return n < 0 ? err->code : PITH_OK;
}

static pith_status tokenize_word(struct pith_error *err)
{
    return tokenize("a", err);
}

static pith_status tokenize_words(struct pith_error *err)
{
    return tokenize("ab cd ef", err);
}

static pith_status tokenize_special(struct pith_error *err)
{
    return tokenize("</s>", err);
}

static pith_status detokenize(struct pith_error *err)
{
    static int32_t ids[50000];
    static char text[sizeof ids];
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        ids[i] = 3 + (int32_t)(i % 100);
    int64_t n = pith_detokenize(model, ids, sizeof ids / sizeof *ids, PITH_RENDER_SPECIAL, text,
                                sizeof text, err);
    return n < 0 ? err->code : PITH_OK;
}

static pith_status render(struct pith_error *err)
{
    static const char text[] =
        "{% for i in range(300) %}{% for j in range(300) %}{{ j }}{% endfor %}{% endfor %}";
    pith_template *t = pith_template_open(text, sizeof text - 1, err);
    int64_t n = t ? pith_template_render(t, "{}", 2, NULL, 0, err) : -1;
    pith_template_close(t);
    return n < 0 ? err->code : PITH_OK;
}

static pith_status read_variables(struct pith_error *err)
{
    char *list = repeated("[],", 40000), *json;
    if (asprintf(&json, "{\"messages\":[%s0]}", list) < 0)
        return PITH_NOMEM;
    pith_template *t = pith_template_open("x", 1, err);
    int64_t n = t ? pith_template_render(t, json, strlen(json), NULL, 0, err) : -1;
    pith_template_close(t);
    free(list);
    free(json);
    return n < 0 ? err->code : PITH_OK;
}

static pith_status read_tools(struct pith_error *err)
{
#define TOOL "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}"
    char *list = repeated(TOOL ",", 4000);
    char *json;
    if (asprintf(&json, "[%s" TOOL "]", list) < 0)
        return PITH_NOMEM;
    struct pith_chat_params p = PITH_CHAT_PARAMS_INIT;
    p.tools = json;
    p.prompt = "";
    pith_chat_parser *c = pith_chat_open(NULL, &p, err);
    pith_status st = c ? PITH_OK : err->code;
    pith_chat_close(c);
    free(list);
    free(json);
    return st;
}

static const struct {
    const char *name;
    pith_status (*run)(struct pith_error *err);
} jobs[] = {
    {"a long word", tokenize_word},       {"many words", tokenize_words},
    {"special tokens", tokenize_special}, {"a template", render},
    {"variables", read_variables},        {"tools", read_tools},
};
enum { N_JOBS = sizeof jobs / sizeof *jobs };

/* ---------------------------------------------------------------- tests */

/* A tick may stand for a piece of work, but for no long one. */
static void asks_often(void)
{
    for (int i = 0; i < N_JOBS; i++) {
        struct pith_error err = {0};
        struct asked a = {.stop_at = -1};
        struct pith_work w = PITH_WORK_INIT;
        w.go_on = go_on;
        w.ctx = &a;
        REQUIRE(pith_work_begin(&w, &err) == PITH_OK, "%s", err.msg);
        pith_status st = jobs[i].run(&err);
        pith_work_end(&w);
        CHECK_MSG(st == PITH_OK, "%s: %s", jobs[i].name, err.msg);
        CHECK_MSG(a.n > 8, "%s: %llu steps, asked %d times", jobs[i].name,
                  (unsigned long long)w.steps, a.n);
        CHECK_MSG(a.widest <= 2 * WORK_LOOK, "%s: %llu steps between two times", jobs[i].name,
                  (unsigned long long)a.widest);
        CHECK(w.stop == PITH_WORK_GOES_ON && w.held_bytes == 0 && w.peak_bytes > 0);
    }
}

/* It ends at the very time it is told to, and says so, whatever it was at. */
static void is_cancelled(void)
{
    for (int i = 0; i < N_JOBS; i++) {
        for (int at = 0; at < 9; at += 4) {
            struct pith_error err = {0};
            struct asked a = {.stop_at = at};
            struct pith_work w = PITH_WORK_INIT;
            long blocks = atomic_load(&hook.blocks);
            w.go_on = go_on;
            w.ctx = &a;
            REQUIRE(pith_work_begin(&w, &err) == PITH_OK, "%s", err.msg);
            pith_status st = jobs[i].run(&err);
            pith_work_end(&w);
            CHECK_MSG(st == PITH_CANCELLED && !strcmp(err.msg, "cancelled"), "%s: %d %s",
                      jobs[i].name, st, err.msg);
            CHECK_MSG(a.n == at + 1, "%s: asked %d times, and again behind a no", jobs[i].name,
                      a.n);
            CHECK(w.stop == PITH_WORK_CANCELLED && w.held_bytes == 0);
            CHECK(atomic_load(&hook.blocks) == blocks);
        }
    }
}

static void has_a_deadline(void)
{
    for (int i = 0; i < N_JOBS; i++) {
        struct pith_error err = {0};
        struct pith_work w = PITH_WORK_INIT;
        w.deadline = 1; /* long ago */
        REQUIRE(pith_work_begin(&w, &err) == PITH_OK, "%s", err.msg);
        pith_status st = jobs[i].run(&err);
        pith_work_end(&w);
        CHECK_MSG(st == PITH_CANCELLED && w.stop == PITH_WORK_LATE, "%s: %d %s", jobs[i].name, st,
                  err.msg);
        CHECK_MSG(w.steps <= 2 * WORK_LOOK, "%s: %llu steps", jobs[i].name,
                  (unsigned long long)w.steps);
    }
}

static void has_a_bound_of_steps(void)
{
    for (int i = 0; i < N_JOBS; i++) {
        struct pith_error err = {0};
        struct pith_work w = PITH_WORK_INIT;
        w.max_steps = 10000;
        REQUIRE(pith_work_begin(&w, &err) == PITH_OK, "%s", err.msg);
        pith_status st = jobs[i].run(&err);
        pith_work_end(&w);
        CHECK_MSG(st == PITH_RANGE && strstr(err.msg, "10000 steps"), "%s: %d %s", jobs[i].name, st,
                  err.msg);
        CHECK_MSG(w.steps <= 10000 + 2 * WORK_LOOK, "%s: %llu steps", jobs[i].name,
                  (unsigned long long)w.steps);
    }
}

/* The bound holds: no block is ever taken past it. */
static void has_a_bound_of_bytes(void)
{
    for (int i = 0; i < N_JOBS; i++) {
        struct pith_error err = {0};
        struct pith_work w = PITH_WORK_INIT;
        uint64_t held = atomic_load(&hook.bytes);
        w.max_bytes = 1000;
        REQUIRE(pith_work_begin(&w, &err) == PITH_OK, "%s", err.msg);
        pith_status st = jobs[i].run(&err);
        pith_work_end(&w);
        CHECK_MSG(st == PITH_RANGE && strstr(err.msg, "1000 bytes"), "%s: %d %s", jobs[i].name, st,
                  err.msg);
        CHECK(w.stop == PITH_WORK_BYTES && w.held_bytes == 0);
        CHECK(atomic_load(&hook.bytes) == held);
    }
}

/* What a result holds is told, and what frees it later takes nothing off another work. */
static void tells_what_is_held(void)
{
    struct pith_error err = {0};
    struct pith_work w = PITH_WORK_INIT, inner = PITH_WORK_INIT;
    uint64_t before = atomic_load(&hook.bytes);
    REQUIRE(pith_work_begin(&w, &err) == PITH_OK, "%s", err.msg);
    REQUIRE(pith_work_begin(&inner, &err) == PITH_OK, "%s", err.msg);
    pith_grammar *g =
        pith_grammar_open(NULL, PITH_GRAMMAR_GBNF, "root ::= \"a\"{3}", 15, NULL, &err);
    pith_work_end(&w); /* not the innermost: nothing happens */
    pith_work_end(&inner);
    REQUIRE(g, "%s", err.msg);
    CHECK((uint64_t)inner.held_bytes == atomic_load(&hook.bytes) - before);
    CHECK(w.held_bytes == inner.held_bytes && w.peak_bytes >= inner.held_bytes);
    CHECK(w.steps == inner.steps);
    pith_grammar_close(g);
    CHECK(w.held_bytes == 0);
    pith_work_end(&w);
    CHECK(work_now == NULL);
}

/* It takes no memory: the other bounds hold for it as well. */
static void asks_at_ids(void)
{
    for (int at = -1; at < 9; at += 5) {
        struct pith_error err = {0};
        struct asked a = {.stop_at = at};
        struct pith_work w = PITH_WORK_INIT;
        w.go_on = go_on;
        w.ctx = &a;
        pith_work_begin(&w, NULL);
        pith_status st = detokenize(&err);
        pith_work_end(&w);
        CHECK_MSG(at < 0 ? st == PITH_OK && a.n > 8 : st == PITH_CANCELLED && a.n == at + 1,
                  "%d %s, asked %d times", st, err.msg, a.n);
        CHECK(a.widest <= 2 * WORK_LOOK);
    }
}

/* What is made once for a model is no request's, but it asks as all work does: others go first, and
 * who has left ends it. */
static void asks_while_it_works_for_all(void)
{
    struct pith_error err = {0};
    struct pith_synth_params p = small_params("llama", 30000);
    pith_model *m = small_model(&p, 0, NULL);
    REQUIRE(m, "no model");
    for (int at = 0; at < 12; at += 5) {
        struct asked no = {.stop_at = at};
        struct pith_work w = PITH_WORK_INIT;
        w.go_on = go_on;
        w.ctx = &no;
        pith_work_begin(&w, NULL);
        CHECK(!pith_grammar_open(m, PITH_GRAMMAR_GBNF, "root ::= \"a\"", 12, NULL, &err));
        pith_work_end(&w);
        CHECK_MSG(err.code == PITH_CANCELLED && no.n == at + 1, "%s, asked %d times", err.msg,
                  no.n);
        CHECK(w.held_bytes == 0 && w.peak_bytes == 0 && w.steps == 0);
    }
    uint64_t held[2];
    for (int i = 0; i < 2; i++) {
        struct asked a = {.stop_at = -1};
        struct pith_work w = PITH_WORK_INIT;
        w.go_on = go_on;
        w.ctx = &a;
        pith_work_begin(&w, NULL);
        pith_grammar *g = pith_grammar_open(m, PITH_GRAMMAR_GBNF, "root ::= \"a\"", 12, NULL, &err);
        pith_work_end(&w);
        REQUIRE(g, "%s", err.msg);
        held[i] = (uint64_t)w.held_bytes;
        pith_grammar_close(g);
        CHECK_MSG(i ? a.n <= 2 : a.n > 30, "time %d: asked %d times", i, a.n);
        CHECK_MSG(w.steps < 1000, "%llu steps", (unsigned long long)w.steps);
    }
    CHECK(held[0] == held[1]);
    pith_model_close(m);
}

static void refuses_bad_input(void)
{
    struct pith_error err = {0};
    struct pith_work w = {0};
    CHECK(pith_work_begin(NULL, &err) == PITH_RANGE);
    CHECK(pith_work_begin(&w, &err) == PITH_RANGE && strstr(err.msg, "size"));
    pith_work_end(NULL);
    pith_work_end(&w);
    CHECK(work_now == NULL);
}

int main(void)
{
    hook_install();
    struct pith_synth_params p = small_params("llama", 0);
    model = small_model(&p, 0, NULL);
    if (!model)
        return 1;
    TEST(asks_often);
    TEST(is_cancelled);
    TEST(has_a_deadline);
    TEST(has_a_bound_of_steps);
    TEST(has_a_bound_of_bytes);
    TEST(tells_what_is_held);
    TEST(asks_at_ids);
    TEST(asks_while_it_works_for_all);
    TEST(refuses_bad_input);
    pith_model_close(model);
    return test_end();
}
