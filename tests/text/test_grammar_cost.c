/* test_grammar_cost.c -- what a grammar may cost for its size: steps and bytes of compiling and of
 * masks, counted (pith_work), never timed; whoever waits for it is asked often, and may end it at
 * any time. */
/* In make test alone: it takes long at any scale. */
#include "base/rng.h"
#include "base/str.h"
#include "hook.h"
#include "text/grammar/grammar.h"
#include "text/grammar/stacks.h"
#include "vocab_image.h"

/* ---------------------------------------------------------------- inputs */

static void put_branches(struct str *s, int n, const char *format)
{
    for (int i = 0; i < n; i++) {
        str_putz(s, i ? "," : "");
        str_printf(s, format, i, i, i);
    }
}

static void one_of_constants(struct str *s, int n)
{
    str_putz(s, "{\"oneOf\":[");
    put_branches(s, n, "{\"const\":%d}");
    str_putz(s, "]}");
}

static void one_of_kinds(struct str *s, int n)
{
    str_putz(s, "{\"oneOf\":[");
    put_branches(s, n,
                 "{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"k%d\"},\"x%d\":{"
                 "\"type\":\"number\"}},\"required\":[\"kind\"]}");
    str_putz(s, "]}");
}

static void one_of_both(struct str *s, int n)
{
    str_putz(s, "{\"oneOf\":[");
    put_branches(s, n / 2,
                 "{\"const\":\"a%d\"},{\"type\":\"object\",\"properties\":{\"t\":{\"enum\":[\"x%"
                 "d\",\"y%d\"]}},\"required\":[\"t\"]}");
    str_putz(s, "]}");
}

static void any_of_constants(struct str *s, int n)
{
    str_putz(s, "{\"anyOf\":[");
    put_branches(s, n, "{\"const\":\"v%d\"}");
    str_putz(s, "]}");
}

static void two_enums(struct str *s, int n)
{
    str_putz(s, "{\"allOf\":[{\"enum\":[");
    put_branches(s, n, "%d");
    str_putz(s, "]},{\"enum\":[");
    put_branches(s, n, "%d.0");
    str_putz(s, "]}]}");
}

static void references(struct str *s, int n)
{
    str_putz(s, "{\"$defs\":{");
    put_branches(s, n, "\"d%d\":{\"const\":%d}");
    str_putz(s, "},\"oneOf\":[");
    put_branches(s, n, "{\"$ref\":\"#/$defs/d%d\"}");
    str_putz(s, "]}");
}

static void long_branches(struct str *s, int n)
{
    str_putz(s, "{\"allOf\":[");
    for (int k = 0; k < 2; k++) {
        str_putz(s, k ? ",{\"anyOf\":[" : "{\"anyOf\":[");
        for (int i = 0; i < 10; i++) {
            str_printf(s, "%s{\"type\":\"object\",\"description\":\"", i ? "," : "");
            for (int j = 0; j < n; j++)
                str_putz(s, "some words ");
            str_printf(
                s, "\",\"properties\":{\"p%d_%d\":{\"type\":\"string\",\"description\":\"more\"}}}",
                k, i);
        }
        str_putz(s, "]}");
    }
    str_putz(s, "]}");
}

static void items_in_a_row(struct str *s, int n)
{
    str_putz(s, "{\"type\":\"array\",\"prefixItems\":[");
    put_branches(s, n, "{\"const\":%d}");
    str_putz(s, "]}");
}

static void counted(struct str *s, int n)
{
    str_printf(s, "root ::= (\"abcdefghijklmnopqrstuvwxyz0123456789\"){%d}", n);
}

static void counted_inside(struct str *s, int n)
{
    str_printf(s, "root ::= ((\"abc\" | \"abd\"){3,%d} \"!\"){%d,}", n, n);
}

static void long_text(struct str *s, int n)
{
    str_printf(s, "{\"type\":\"string\",\"minLength\":%d,\"maxLength\":%d}", n / 2, n);
}

static void many_items(struct str *s, int n)
{
    str_printf(
        s, "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":%d,\"maxItems\":%d}",
        n / 2, n);
}

static const struct input {
    const char *name;
    void (*write)(struct str *s, int n);
    int n;
    pith_grammar_kind kind;
    uint64_t most_steps, most_bytes; /* for each byte; of those below 1000, for each 1000 bytes */
} inputs[] = {
    {"oneOf of constants", one_of_constants, 5000, PITH_GRAMMAR_SCHEMA, 40, 500},
    {"oneOf of kinds", one_of_kinds, 1000, PITH_GRAMMAR_SCHEMA, 40, 500},
    {"oneOf of constants and kinds", one_of_both, 2000, PITH_GRAMMAR_SCHEMA, 40, 500},
    {"anyOf of constants", any_of_constants, 5000, PITH_GRAMMAR_SCHEMA, 40, 500},
    {"two enums", two_enums, 5000, PITH_GRAMMAR_SCHEMA, 40, 500},
    {"references", references, 2000, PITH_GRAMMAR_SCHEMA, 40, 500},
    {"combinations of long branches", long_branches, 200, PITH_GRAMMAR_SCHEMA, 40, 500},
    {"items in a row", items_in_a_row, 5000, PITH_GRAMMAR_SCHEMA, 40, 500},
    {"counted text", counted, 9000, PITH_GRAMMAR_GBNF, 2000, 4000},
    {"counted and nested", counted_inside, 900000, PITH_GRAMMAR_GBNF, 2000, 4000},
    {"long text", long_text, 1000000, PITH_GRAMMAR_SCHEMA, 2000, 4000},
    {"many items", many_items, 1000000, PITH_GRAMMAR_SCHEMA, 2000, 4000},
};
enum { N_INPUTS = sizeof inputs / sizeof inputs[0] };

struct asked {
    int n, stop_at;
    uint64_t before, widest; /* steps */
};

static int go_on(void *ctx, const struct pith_work *w)
{
    struct asked *a = ctx;
    a->widest = w->steps - a->before > a->widest ? w->steps - a->before : a->widest;
    a->before = w->steps;
    return a->n++ != a->stop_at;
}

static pith_grammar *open_within(const struct input *in, const struct str *text,
                                 struct pith_work *w, struct pith_error *err)
{
    pith_work_begin(w, NULL);
    pith_grammar *g = pith_grammar_open(NULL, in->kind, text->p, text->n, NULL, err);
    pith_work_end(w);
    return g;
}

/* Steps and bytes grow with the size of the input, and no faster. */
static void compiling_is_linear(void)
{
    for (int i = 0; i < N_INPUTS; i++) {
        const struct input *in = &inputs[i];
        struct str text;
        struct pith_error err = {0};
        struct pith_work w = PITH_WORK_INIT;
        str_init(&text, PITH_MEM_SCRATCH);
        in->write(&text, in->n);
        pith_grammar *g = open_within(in, &text, &w, &err);
        uint64_t n = text.n < 1000 ? 1000 : text.n;
        CHECK_MSG(g != NULL, "%s: %s", in->name, err.msg);
        CHECK_MSG(w.steps <= in->most_steps * n && (uint64_t)w.peak_bytes <= in->most_bytes * n,
                  "%s: %zu bytes take %llu steps (wanted %llu) and %lld bytes (%llu)", in->name,
                  text.n, (unsigned long long)w.steps, (unsigned long long)(in->most_steps * n),
                  (long long)w.peak_bytes, (unsigned long long)(in->most_bytes * n));
        if (getenv("PITH_COST"))
            printf("# %s: %zu bytes: %.1f steps and %.1f bytes a byte\n", in->name, text.n,
                   (double)w.steps / (double)text.n, (double)w.peak_bytes / (double)text.n);
        pith_grammar_close(g);
        str_deinit(&text);
    }
}

/* Whoever waits is asked every few thousand steps, and may end it at each of these times; nothing
 * is left behind. */
static void compiling_can_be_ended(void)
{
    for (int i = 0; i < N_INPUTS; i++) {
        const struct input *in = &inputs[i];
        struct str text;
        struct asked a = {.stop_at = -1};
        struct pith_error err = {0};
        struct pith_work w = PITH_WORK_INIT;
        str_init(&text, PITH_MEM_SCRATCH);
        in->write(&text, in->n);
        long held = atomic_load(&hook.blocks);
        w.go_on = go_on;
        w.ctx = &a;
        pith_grammar_close(open_within(in, &text, &w, &err));
        CHECK_MSG(a.n > 0 && a.widest <= 65536, "%s: asked %d times, once after %llu steps",
                  in->name, a.n, (unsigned long long)a.widest);
        int times = a.n, stride = times / (7 * test_scale()) + 1;
        for (int k = 0; k < times && !test_bad; k += stride) {
            struct pith_work again = PITH_WORK_INIT;
            a = (struct asked){.stop_at = k};
            again.go_on = go_on;
            again.ctx = &a;
            CHECK_MSG(!open_within(in, &text, &again, &err) && err.code == PITH_CANCELLED,
                      "%s, ended at %d: %s", in->name, k, err.msg);
            CHECK_MSG(a.n == k + 1, "%s, ended at %d: asked %d times", in->name, k, a.n);
            CHECK_MSG(atomic_load(&hook.blocks) == held, "%s, ended at %d: %ld blocks are left",
                      in->name, k, atomic_load(&hook.blocks) - held);
        }
        str_deinit(&text);
    }
}

/* Names that all begin otherwise are looked through one after the other, and each look counts. */
static void names_are_counted(void)
{
    struct pith_error err = {0};
    struct pith_work w = PITH_WORK_INIT;
    struct str s;
    str_init(&s, PITH_MEM_SCRATCH);
    str_putz(&s, "{\"type\":\"object\",\"required\":[");
    for (unsigned i = 0; i < 20000; i++) {
        unsigned cp = 0x4e00 + i;
        str_printf(&s, "%s\"%c%c%c\"", i ? "," : "", 0xe0 | cp >> 12, 0x80 | (cp >> 6 & 63),
                   0x80 | (cp & 63));
    }
    str_putz(&s, "]}");
    pith_work_begin(&w, NULL);
    pith_grammar *g = pith_grammar_open(NULL, PITH_GRAMMAR_SCHEMA, s.p, s.n, NULL, &err);
    pith_work_end(&w);
    CHECK_MSG(!g && err.code == PITH_RANGE && strstr(err.msg, "steps"), "%s",
              g ? "opened" : err.msg);
    CHECK_MSG(w.steps > 100000000, "%llu steps", (unsigned long long)w.steps);
    pith_grammar_close(g);
    str_deinit(&s);
}

/* Whether a schema can be kept is asked for what reading it takes, however large its grammar is. */
static void checking_is_linear(void)
{
    static const char *const refused[] = {"{\"type\":\"object\",\"if\":{}}",
                                          "{\"items\":{\"contains\":1}}",
                                          "{\"$ref\":\"#/nowhere\"}", "{\"type\":\"strin\"}", "{"};
    struct pith_error err = {0};
    struct str s;
    str_init(&s, PITH_MEM_SCRATCH);
    str_putz(&s, "{\"properties\":{");
    for (int i = 0; i < 1000; i++)
        str_printf(&s,
                   "%s\"p%d\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":%d},"
                   "\"maxItems\":%d}",
                   i ? "," : "", i, 1000 + i, 2000 + i);
    str_putz(&s, "}}");
    CHECK_MSG(!pith_grammar_open(NULL, PITH_GRAMMAR_SCHEMA, s.p, s.n, NULL, &err) &&
                  err.code == PITH_RANGE,
              "%s", err.msg);
    struct pith_work w = PITH_WORK_INIT;
    pith_work_begin(&w, NULL);
    pith_status st = pith_grammar_check_schema(s.p, s.n, &err);
    pith_work_end(&w);
    CHECK_MSG(st == PITH_OK && w.steps < 40 * s.n && w.peak_bytes < (int64_t)(500 * s.n),
              "%zu bytes take %llu steps and %lld bytes: %s", s.n, (unsigned long long)w.steps,
              (long long)w.peak_bytes, err.msg);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct pith_error two = {0};
        st = pith_grammar_check_schema(refused[i], strlen(refused[i]), &err);
        CHECK(!pith_grammar_open(NULL, PITH_GRAMMAR_SCHEMA, refused[i], strlen(refused[i]), NULL,
                                 &two));
        CHECK_MSG(st == two.code && st != PITH_OK && !strcmp(err.msg, two.msg), "%s, %s", err.msg,
                  two.msg);
    }
    CHECK(pith_grammar_check_schema(NULL, 0, NULL) == PITH_RANGE);
    str_deinit(&s);
}

/* Choices that multiply are refused before they are written: place, number and bound are told. */
static void combinations_are_bounded(void)
{
    struct str s;
    struct pith_error err = {0};
    struct pith_work w = PITH_WORK_INIT;
    str_init(&s, PITH_MEM_SCRATCH);
    str_putz(&s, "{\"allOf\":[");
    for (int k = 0; k < 4; k++) {
        str_putz(&s, k ? ",{\"anyOf\":[" : "{\"anyOf\":[");
        for (int i = 0; i < 10; i++) {
            str_printf(&s, "%s{\"properties\":{", i ? "," : "");
            for (int j = 0; j < 60; j++)
                str_printf(&s, "%s\"member_%d_%d_%d\":{\"type\":\"string\"}", j ? "," : "", k, i,
                           j);
            str_putz(&s, "}}");
        }
        str_putz(&s, "]}");
    }
    str_putz(&s, "]}");
    const struct input in = {.kind = PITH_GRAMMAR_SCHEMA};
    pith_grammar *g = open_within(&in, &s, &w, &err);
    CHECK(g == NULL);
    CHECK_MSG(strstr(err.msg, "#/allOf/0/anyOf") && strstr(err.msg, "10000 comb") &&
                  strstr(err.msg, "4096"),
              "%s", err.msg);
    CHECK_MSG(w.steps < 40 * s.n && (uint64_t)w.peak_bytes < 500 * s.n,
              "%zu bytes: %llu steps, %lld bytes", s.n, (unsigned long long)w.steps,
              (long long)w.peak_bytes);
    str_deinit(&s);
}

/* Rules that call themselves in many ways, but read no more than a loop, are loops: letters cost
 * the same however many there were. */
static void ambiguous_rules_become_loops(void)
{
    enum { LETTERS = 2000 };
    static const struct {
        const char *grammar, *good, *bad; /* behind the letters */
    } v[] = {
        {"root ::= s\ns ::= [a-z ] s s | [a-z ] s | [a-z ]", "x", "1"},
        {"root ::= (\"a\" root?)*", "a", "b"},
        {"root ::= e \".\"\ne ::= t | t \"a\" e\nt ::= \"a\" | \"a\" t", "a.", ".."},
        {"root ::= x \"!\"\nx ::= \"a\" y | \"a\"\ny ::= x y | x | \"\"", "!", "a"},
        {"root ::= \"a\" root | \"b\"", "b", "c"},
    };
    char text[LETTERS + 8];
    memset(text, 'a', LETTERS);
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        struct pith_error err = {0};
        pith_grammar *g = pith_grammar_open(NULL, PITH_GRAMMAR_GBNF, v[i].grammar,
                                            strlen(v[i].grammar), NULL, &err);
        CHECK_MSG(g != NULL, "%s: %s", v[i].grammar, err.msg);
        for (int good = 1; good >= 0 && g; good--) {
            struct pith_work w = PITH_WORK_INIT;
            size_t n =
                LETTERS + (size_t)snprintf(text + LETTERS, 8, "%s", good ? v[i].good : v[i].bad);
            pith_work_begin(&w, NULL);
            int took =
                pith_grammar_accept_text(g, text, n, &err) == PITH_OK && pith_grammar_complete(g);
            pith_work_end(&w);
            CHECK_MSG(took == good, "%s: %s %s", v[i].grammar, good ? v[i].good : v[i].bad,
                      err.msg);
            CHECK_MSG(w.steps < 8 * n, "%s: %llu steps for %zu letters", v[i].grammar,
                      (unsigned long long)w.steps, n);
            pith_grammar_reset(g);
        }
        pith_grammar_close(g);
    }
}

/* ---------------------------------------------------------------- what grows */

/* begin, then loop as often as it fits, and end again and again: a text that is read in as many
 * ways as there are, or in one. */
struct grown {
    const char *grammar, *begin, *loop, *end;
    const char *rule; /* that it is refused by; NULL: it is taken, and stays cheap */
    size_t n;         /* bytes of loops, 0: 3000 */
};
static const struct grown ambiguous[] = {
    {"root ::= s\ns ::= [a-z ] s s | [a-z ] s | [a-z ]", "", "a", "", NULL, 0},
    {"root ::= s\ns ::= [a-z ] s s s s | [a-z ] s s s | [a-z ] s s | [a-z ]", "", "a", "", "s", 0},
    {"root ::= s\ns ::= [ab] s s | [ab]", "", "a", "", "s", 0},
    {"root ::= s\ns ::= \"a\" s s | \"a\" | \"(\" s \")\"", "", "a", "", "s", 0},
    {"root ::= l\nl ::= \"[\" e \"]\"\ne ::= l | l e | l e e | \"x\" e e | \"x\"", "[", "x", "",
     "e", 0},
    {"root ::= e\ne ::= t | t o e | e2\nt ::= \"x\" | \"(\" e \")\"\no ::= [+*]\ne2 ::= t o e o e",
     "", "x+", "", "e2", 0},
    {"root ::= e\ne ::= \"x\" t\nt ::= \"\" | [+*] e t t", "", "x+", "", "t", 0},
    {"root ::= w\nw ::= \"a\" w w | \"aa\" w | \"aaa\" | \"a\" | \"<\" w \">\"", "", "a", "", "w",
     0},
    {"root ::= x \"!\"\nx ::= \"(\" x \")\" x x | \"\"", "", "()", "", "x", 0},
    {"root ::= s\ns ::= \"a\" s \"b\" s s | \"a\" s | \"b\" | \"a\"", "", "aab", "", "s", 0},
    {"root ::= p\np ::= \"<\" q \">\" | \"<\" p \">\"\nq ::= \"x\" q q | \"x\" p | \"x\"", "<", "x",
     "", "q", 0},
    {"root ::= a\na ::= [xy] b a | [xy]\nb ::= [xy] a b | [xy]", "", "xy", "", "a", 0},
    {"root ::= \"0123456789\" s\ns ::= \"a\" s s | \"a\" | \"(\" s \")\"", "0123456789", "a", "",
     "s", 0},
};
static const struct grown innocent[] = {
    {"root ::= v\nv ::= o | l | s | n\no ::= \"{\" w (s w \":\" w v (w \",\" w s w \":\" w v)*)? w "
     "\"}\"\n"
     "l ::= \"[\" w (v (w \",\" w v)*)? w \"]\"\ns ::= \"\\\"\" [^\"\\x00-\\x1f]* \"\\\"\"\nn ::= "
     "[0-9]+\n"
     "w ::= [ \\n]*",
     "", "[", "1", NULL, 0},
    {"root ::= e\ne ::= t ([+-] t)*\nt ::= f ([*/] f)*\nf ::= [0-9]+ | \"(\" e \")\" | \"-\" f", "",
     "(-", "7", NULL, 0},
    {"root ::= x\nx ::= \"(\" x* \")\" | [a-z]+ \" \"", "", "(", "a ", NULL, 0},
    {"root ::= b\nb ::= \"(\" b \")\" b | \"[\" b \"]\" b | \"\"", "", "([", "])", NULL, 0},
    {"root ::= t\nt ::= \"<a>\" t* \"</a>\" | \"<b>\" t* \"</b>\" | [x-z]", "", "<a><b>", "x", NULL,
     0},
    {"root ::= \"a\" root \"b\" | \"\"", "", "a", "b", NULL, 0},
    {"root ::= \"a\" root \"a\" | \"b\" root \"b\" | \"\"", "", "a", "a", NULL, 0},
    {"root ::= s\ns ::= \"i\" s | \"i\" s \"e\" s | \"x\"", "", "i", "xe", NULL, 0},
    {"root ::= s\ns ::= \"if x \" s (\"else \" s)? | \"f; \"", "", "if x ", "f; else ", NULL, 0},
    {"root ::= s\ns ::= \"if \" s \"fi \" | \"if \" s \"else \" s \"fi \" | \"x \"", "", "if ",
     "x fi ", NULL, 0},
    {"root ::= l\nl ::= i (\", \" i)*\ni ::= [a-z]+ | \"(\" l \")\"", "", "(", "a, a", NULL, 0},
    {"root ::= s+\ns ::= \"{\" s* \"}\" | [a-z] \"=\" e \";\"\ne ::= [a-z] | \"(\" e \"+\" e \")\"",
     "", "{", "a=b;", NULL, 0},
    {"root ::= e\ne ::= u | u \"?\" e \":\" e\nu ::= [a-z] | \"!\" u", "", "!", "a?", NULL, 0},
    {"root ::= c\nc ::= [a-z]+ (\"(\" (c (\",\" c)*)? \")\")? (\".\" c)?", "", "f(", "a,a", NULL,
     0},
    {"root ::= x x x x\nx ::= \"a\" x | y\ny ::= \"a\" y \"b\" | \"b\"", "", "a", "b", NULL, 0},
};

/* Steps of the costliest 64 bytes of a text that loops. 0: it is not taken. */
static uint64_t walk_grown(const struct grown *g, pith_grammar *at, size_t n)
{
    uint64_t most = 0;
    struct str s;
    struct pith_error err = {0};
    str_init(&s, PITH_MEM_SCRATCH);
    str_putz(&s, g->begin);
    while (s.n < n)
        str_putz(&s, g->loop);
    while (s.n < n + n / 2 && *g->end)
        str_putz(&s, g->end);
    for (size_t i = 0; i < s.n; i += 64) {
        struct pith_work w = PITH_WORK_INIT;
        pith_work_begin(&w, NULL);
        pith_status st = pith_grammar_accept_text(at, s.p + i, s.n - i < 64 ? s.n - i : 64, &err);
        pith_work_end(&w);
        if (st == PITH_STATE && i + 64 > n) /* the loops are all closed, or one is enough */
            break;
        CHECK_MSG(st == PITH_OK, "%s, byte %zu: %s", g->grammar, i, err.msg);
        most = st != PITH_OK ? 0 : w.steps > most ? w.steps : most;
        if (st != PITH_OK)
            break;
    }
    str_deinit(&s);
    return most;
}

/* What is read in ever more ways is refused when it is compiled, by its rule, within the bound of
 * the search; what is not is taken, and its last bytes cost no more than a token may. */
static void check_grown(const struct grown *v, size_t n)
{
    enum { BYTES = 3000 };
    for (size_t i = 0; i < n; i++) {
        struct pith_error err = {0};
        struct pith_work w = PITH_WORK_INIT;
        char name[40];
        pith_work_begin(&w, NULL);
        pith_grammar *g = pith_grammar_open(NULL, PITH_GRAMMAR_GBNF, v[i].grammar,
                                            strlen(v[i].grammar), NULL, &err);
        pith_work_end(&w);
        if (getenv("PITH_COST"))
            printf("# %.90s: %llu steps %s\n", v[i].grammar, (unsigned long long)w.steps, err.msg);
        snprintf(name, sizeof name, "rule \"%s\" ", v[i].rule ? v[i].rule : "");
        CHECK_MSG(w.steps < 3 * GROWTH_STEPS, "%s: %llu steps", v[i].grammar,
                  (unsigned long long)w.steps);
        CHECK_MSG(!v[i].rule == (g != NULL), "%s: %s", v[i].grammar, err.msg);
        if (v[i].rule)
            CHECK_MSG(err.code == PITH_RANGE && strstr(err.msg, name), "%s: %s", v[i].grammar,
                      err.msg);
        uint64_t most = g ? walk_grown(&v[i], g, v[i].n ? v[i].n : BYTES) : 1;
        CHECK_MSG(most && most < 64 * (uint64_t)GROWTH_TOKEN / 8, "%s: %llu steps", v[i].grammar,
                  (unsigned long long)most);
        pith_grammar_close(g);
    }
}

static void what_grows_is_refused(void)
{
    check_grown(ambiguous, sizeof ambiguous / sizeof *ambiguous);
}

static void what_looks_alike_is_taken(void)
{
    check_grown(innocent, sizeof innocent / sizeof *innocent);
}

/* Behind a trigger, too, and who waits for the search may end it. */
static void growth_behind_a_trigger(void)
{
    const struct input in = {.kind = PITH_GRAMMAR_GBNF};
    struct pith_grammar_params p = PITH_GRAMMAR_PARAMS_INIT;
    struct pith_error err = {0};
    const char *text = ambiguous[2].grammar;
    p.trigger = "<call>";
    CHECK(!pith_grammar_open(NULL, PITH_GRAMMAR_GBNF, text, strlen(text), &p, &err));
    CHECK_MSG(err.code == PITH_RANGE && strstr(err.msg, "rule \"s\""), "%s", err.msg);
    struct str s;
    struct asked a = {.stop_at = -1};
    struct pith_work w = PITH_WORK_INIT;
    str_init(&s, PITH_MEM_SCRATCH);
    str_putz(&s, text);
    long held = atomic_load(&hook.blocks);
    w.go_on = go_on;
    w.ctx = &a;
    CHECK(!open_within(&in, &s, &w, &err) && a.widest <= 65536);
    int times = a.n;
    CHECK_MSG(times > 3, "asked %d times", times);
    for (int k = 0; k < times; k += times / 5 + 1) {
        struct pith_work again = PITH_WORK_INIT;
        a = (struct asked){.stop_at = k};
        again.go_on = go_on;
        again.ctx = &a;
        CHECK_MSG(!open_within(&in, &s, &again, &err) && err.code == PITH_CANCELLED, "%d: %s", k,
                  err.msg);
        CHECK(atomic_load(&hook.blocks) == held);
    }
    str_deinit(&s);
}

/* Rules that call the next one twice, forty times over, over a text that may be empty: as many ways
 * to stand at one place as there can be. Compiling ends within the bound of a byte; so does the
 * byte that comes to them behind a text that is longer than what is searched. */
static void doubling_is_ended_in_time(void)
{
    enum { RULES = 40, PREFIX = 300, MOST = 3 * STACKS_MOST_BYTE };
    static const char *const body[] = {"r%d r%d", "r%d r%d | r%d", "r%d? r%d?", "r%d{0,2}",
                                       "r%d{2}", "(r%d | \"b\") r%d", "r%d | r%d", "r%d*",
                                       "\"(\" r%d r%d \")\" | \"\""},
                             *const last[] = {"\"a\" | \"\"", "[a-z]?", "\"\"", "\"a\""};
    char text[PREFIX];
    memset(text, 'a', sizeof text);
    for (size_t i = 0; i < 2 * sizeof body / sizeof *body * (sizeof last / sizeof *last); i++) {
        const char *one = body[i / 2 % (sizeof body / sizeof *body)],
                   *end = last[i / 2 / (sizeof body / sizeof *body)];
        struct str s;
        struct pith_error err = {0};
        struct pith_work w = PITH_WORK_INIT;
        str_init(&s, PITH_MEM_SCRATCH);
        str_printf(&s, "root ::= %s r0\n", i % 2 ? "[a-z]{300}" : "");
        for (int k = 0; k < RULES; k++) {
            char rule[128];
            snprintf(rule, sizeof rule, "r%d ::= ", k);
            str_putz(&s, rule);
            for (const char *p = one; *p; p += *p == 'r' ? 3 : 1)
                *p == 'r' ? str_printf(&s, "r%d", k + 1) : str_printf(&s, "%c", *p);
            str_putz(&s, "\n");
        }
        str_printf(&s, "r%d ::= %s\n", RULES, end);
        pith_work_begin(&w, NULL);
        pith_grammar *g = pith_grammar_open(NULL, PITH_GRAMMAR_GBNF, s.p, s.n, NULL, &err);
        pith_work_end(&w);
        CHECK_MSG(w.steps < MOST, "%s, %s: %llu steps, %s", one, end, (unsigned long long)w.steps,
                  err.msg);
        CHECK_MSG(g || (err.code == PITH_RANGE && strstr(err.msg, "1048576 steps")) ||
                      strstr(err.msg, "left-recursive"),
                  "%s, %s: %s", one, end, err.msg);
        for (size_t at = 0; g && at < sizeof text; at++) {
            struct pith_work step = PITH_WORK_INIT;
            pith_work_begin(&step, NULL);
            pith_status st = pith_grammar_accept_text(g, text + at, 1, &err);
            pith_work_end(&step);
            CHECK_MSG(step.steps < MOST, "%s, %s: a byte takes %llu steps, %s", one, end,
                      (unsigned long long)step.steps, err.msg);
            if (st != PITH_OK)
                break;
        }
        pith_grammar_close(g);
        str_deinit(&s);
    }
}

/* Tokens of letters, n of them, behind one that ends the generation. */
static struct vocab *large_vocab(int n)
{
    struct keys k = {0};
    key_str(&k, "tokenizer.ggml.model", "rwkv");
    put_array(&k.body, "tokenizer.ggml.tokens", GGUF_STR, (uint64_t)n);
    for (int i = 0; i < n; i++) {
        char text[8] = "<end>";
        for (int at = 0, rest = i; i && at < 5; at++, rest /= 26)
            text[at] = (char)('a' + rest % 26);
        put_text(&k.body, text);
    }
    return open_plain(&k, n);
}

/* Edges for all tokens but one: each is looked at once, whatever the vocabulary, and each is
 * counted. */
static void edges_of_named_tokens(void)
{
    enum { EDGES = 3000, VOCAB = 40001 };
    struct vocab *v = large_vocab(VOCAB);
    struct trie *t = v ? trie_new(v, NULL) : NULL;
    for (int same = 0; same < 2 && t; same++) {
        struct str text;
        struct pith_error err = {0};
        struct pith_work compile = PITH_WORK_INIT, first = PITH_WORK_INIT;
        str_init(&text, PITH_MEM_SCRATCH);
        str_putz(&text, "root ::= ");
        for (int i = 0; i < EDGES; i++)
            str_printf(&text, "%s!<[%d]> \"x\"", i ? " | " : "", same ? 5 : i + 1);
        for (int i = 0; i < EDGES && same; i++)
            str_printf(&text, " | <[%d]> \"x\"", i + 6);
        struct grammar_spec spec = {.kind = PITH_GRAMMAR_GBNF,
                                    .text = slice_of(text.p),
                                    .vocab = v,
                                    .trie = t,
                                    .trigger_token = -1,
                                    .cache_bytes = 1 << 20};
        pith_work_begin(&compile, NULL);
        struct pith_grammar *g = grammar_new(&spec, &err);
        pith_work_end(&compile);
        CHECK_MSG(g != NULL, "%s", err.msg);
        CHECK_MSG(compile.steps < 100 * text.n, "%zu bytes: %llu steps", text.n,
                  (unsigned long long)compile.steps);
        pith_work_begin(&first, NULL);
        const uint64_t *mask = g ? grammar_mask(g, &err) : NULL;
        pith_work_end(&first);
        CHECK_MSG(mask != NULL, "%s", err.msg);
        CHECK_MSG(first.steps >= EDGES && first.steps < 4 * EDGES + VOCAB / 8,
                  "%d edges: %llu steps", EDGES, (unsigned long long)first.steps);
        for (int id = 0; mask && id < VOCAB; id++) {
            int may = (int)(mask[id / 64] >> (id % 64) & 1), want = id && !(same && id == 5);
            CHECK_MSG(may == want, "same %d, token %d: %d", same, id, may);
        }
        grammar_free(g);
        str_deinit(&text);
    }
    trie_free(t);
    vocab_free(v);
}

/* Parts of a mask that are known are put together for each state of a position: counted, too. */
static void known_parts_are_counted(void)
{
    enum { RULES = 100, VOCAB = 40001, WORDS = (VOCAB + 63) / 64 };
    struct vocab *v = large_vocab(VOCAB);
    struct trie *t = v ? trie_new(v, NULL) : NULL;
    REQUIRE(t, "no vocabulary");
    struct pith_error err = {0};
    struct str text;
    str_init(&text, PITH_MEM_SCRATCH);
    str_putz(&text, "root ::= \"a\" x \"1\" | \"b\" x \"2\"\nx ::= ");
    for (int i = 0; i < RULES; i++)
        str_printf(&text, "%sr%d", i ? " | " : "", i);
    for (int i = 0; i < RULES; i++)
        str_printf(&text, "\nr%d ::= [a-z] r%d \"%d\" | \"!\"", i, i, i);
    struct grammar_spec spec = {.kind = PITH_GRAMMAR_GBNF,
                                .text = slice_of(text.p),
                                .vocab = v,
                                .trie = t,
                                .trigger_token = -1,
                                .cache_bytes = 64 << 20};
    struct pith_grammar *g = grammar_new(&spec, &err);
    REQUIRE(g, "%s", err.msg);
    uint64_t steps[2];
    for (int i = 0; i < 2; i++) {
        struct pith_work w = PITH_WORK_INIT;
        grammar_reset(g);
        CHECK(grammar_accept_text(g, slice_of(i ? "b" : "a"), &err) == PITH_OK);
        pith_work_begin(&w, NULL);
        CHECK_MSG(grammar_mask(g, &err) != NULL, "%s", err.msg);
        pith_work_end(&w);
        steps[i] = w.steps;
    }
    CHECK_MSG(steps[1] >= (uint64_t)RULES * (WORDS / 32) && steps[1] < steps[0] / 4,
              "%" PRIu64 " steps, then %" PRIu64, steps[0], steps[1]);
    grammar_free(g);
    str_deinit(&text);
    trie_free(t);
    vocab_free(v);
}

/* ---------------------------------------------------------------- items that differ */

static void put_number(struct str *s, int i, int n)
{
    (void)n;
    str_printf(s, "%d", i);
}

static void put_word(struct str *s, int i, int n)
{
    str_printf(s, "\"%08d\"", (int)((int64_t)i * 7919 % (100 * n)));
}

/* Opens a grammar of lists of n items that differ, and in *text the list of all of them, or of all
 * but one. */
static pith_grammar *open_differing(const char *items, void (*put)(struct str *s, int i, int n),
                                    int n, struct str *text)
{
    struct str s;
    struct pith_error err = {0};
    str_init(&s, PITH_MEM_SCRATCH);
    str_putz(&s, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{");
    if (*items) {
        str_putz(&s, items);
    } else {
        str_putz(&s, "\"enum\":[");
        for (int i = 0; i < n; i++) {
            str_putz(&s, i ? "," : "");
            put(&s, i, n);
        }
        str_putz(&s, "]");
    }
    str_putz(&s, "}}");
    str_putz(text, "[");
    for (int i = 0; i < n - !*items; i++) {
        str_putz(text, i ? "," : "");
        put(text, i, n);
    }
    pith_grammar *g = pith_grammar_open(NULL, PITH_GRAMMAR_SCHEMA, s.p, s.n, NULL, &err);
    CHECK_MSG(g != NULL, "%s", err.msg);
    str_deinit(&s);
    return g;
}

/* An item is compared with those that were there by what it has in common with them, not with each,
 * and however many there are: so is what is left of a long enum. */
static void many_items_that_differ_stay_cheap(void)
{
    static const struct {
        const char *items;
        void (*put)(struct str *s, int i, int n);
    } v[] = {{"", put_word},
             {"\"type\":\"string\"", put_word},
             {"\"type\":\"integer\"", put_number},
             {"\"type\":\"integer\",\"minimum\":0,\"maximum\":1000", put_number}};
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        struct str text;
        struct pith_error err = {0};
        struct pith_work w = PITH_WORK_INIT;
        str_init(&text, PITH_MEM_SCRATCH);
        pith_grammar *g = open_differing(v[i].items, v[i].put, 1000, &text);
        pith_work_begin(&w, NULL);
        CHECK_MSG(g && pith_grammar_accept_text(g, text.p, text.n, &err) == PITH_OK, "%s: %s",
                  v[i].items, err.msg);
        pith_work_end(&w);
        CHECK_MSG(w.steps < 40 * text.n, "%s: %llu steps for %zu bytes", v[i].items,
                  (unsigned long long)w.steps, text.n);
        pith_grammar_close(g);
        str_deinit(&text);
    }
}

/* What is remembered is each answer's own, though what they share tells one list after the other;
 * and a list of all that there is has no comma behind it, however long its items are. */
static void answers_remember_their_own(void)
{
    enum { N = 40, ANSWERS = 7, TRIES = 3000, LONG = 300 };
    struct str text;
    struct rng dice;
    pith_grammar *g[ANSWERS];
    uint8_t used[ANSWERS][N] = {{0}};
    int n_used[ANSWERS] = {0}, n_wrong = 0;
    rng_init(&dice, 1);
    str_init(&text, PITH_MEM_SCRATCH);
    g[0] = open_differing("", put_word, N, &text);
    for (int k = 1; k < ANSWERS; k++)
        g[k] = pith_grammar_clone(g[0], NULL);
    for (int n = 0; n < TRIES && g[0]; n++) {
        uint32_t k = rng_below(&dice, ANSWERS), i = rng_below(&dice, N);
        str_clear(&text);
        str_putz(&text, n_used[k] ? "," : "[");
        put_word(&text, (int)i, N);
        int took = pith_grammar_accept_text(g[k], text.p, text.n, NULL) == PITH_OK;
        n_wrong += took != !used[k][i];
        n_used[k] += took;
        used[k][i] |= (uint8_t)took;
        n_wrong += n_used[k] == N && pith_grammar_accept_text(g[k], ",", 1, NULL) == PITH_OK;
    }
    CHECK_MSG(!n_wrong && n_used[0] == N, "%d wrong, %d of %d", n_wrong, n_used[0], N);
    for (int k = 0; k < ANSWERS; k++)
        pith_grammar_close(g[k]);
    for (int i = 0; i < 2; i++) {
        str_clear(&text);
        if (!i)
            str_putz(&text, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":");
        str_putz(&text, "[");
        for (int n = 0; n < 100; n++)
            str_printf(&text, "%s\"%0*d\"", n ? "," : "", LONG, n);
        if (!i) {
            str_putz(&text, "]}}");
            g[0] = pith_grammar_open(NULL, PITH_GRAMMAR_SCHEMA, text.p, text.n, NULL, NULL);
        }
    }
    CHECK(g[0] && pith_grammar_accept_text(g[0], text.p, text.n, NULL) == PITH_OK);
    CHECK(pith_grammar_accept_text(g[0], ",", 1, NULL) != PITH_OK);
    CHECK(pith_grammar_accept_text(g[0], "]", 1, NULL) == PITH_OK);
    pith_grammar_close(g[0]);
    str_deinit(&text);
}

int main(void)
{
    hook_install();
    TEST(many_items_that_differ_stay_cheap);
    TEST(answers_remember_their_own);
    TEST(compiling_is_linear);
    TEST(compiling_can_be_ended);
    TEST(checking_is_linear);
    TEST(names_are_counted);
    TEST(combinations_are_bounded);
    TEST(ambiguous_rules_become_loops);
    TEST(what_grows_is_refused);
    TEST(what_looks_alike_is_taken);
    TEST(growth_behind_a_trigger);
    TEST(doubling_is_ended_in_time);
    TEST(edges_of_named_tokens);
    TEST(known_parts_are_counted);
    return test_end();
}
