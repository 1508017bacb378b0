/* pretok.c -- runs the rows of pretok.def.
 *
 *     text     "It's 1234"
 *     pass 1   SPLIT([0-9]+)         "It's "  "1234"
 *     pass 2   SPLIT('s| ?[a-z]+)    "It" "'s" " "  "1234"
 *
 * Every pass is one PCRE2 pattern, compiled to machine code when a vocabulary is opened; words of
 * ASCII letters, most of an English text, go without it where the row says WORDS. A pass
 * hands each of its pieces to the next pass at once; the last hands it to the caller, so nothing is
 * stored. A piece is a subject of its own: \b, $ and look-aheads see its ends as the ends of the
 * text. */
#include "text/vocab/pretok.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "base/mem.h"
#include "base/work.h"

enum pass_kind { PASS_END, PASS_SPLIT, PASS_WORDS, PASS_THREES };
struct pass {
    enum pass_kind kind;
    const char *pattern;
};
#define MAX_PASSES 8

/* clang-format off */
#define SPLIT(p)  {PASS_SPLIT, p}
#define WORDS(p)  {PASS_WORDS, p}
#define THREES(p) {PASS_THREES, p}
/* clang-format on */
#define PRETOK_RULE(rule, ...) static const struct pass rule_##rule[MAX_PASSES] = {__VA_ARGS__};
#define PRETOK_NAME(name, rule, flags)
#include "text/vocab/pretok.def"
#undef PRETOK_RULE
#undef PRETOK_NAME

static const struct row {
    const char *name;
    const struct pass *passes;
    int flags;
} rows[] = {
#define PRETOK_RULE(rule, ...)
#define PRETOK_NAME(name, rule, flags) {name, rule_##rule, flags},
#include "text/vocab/pretok.def"
#undef PRETOK_RULE
#undef PRETOK_NAME
};
#define N_ROWS (int)(sizeof rows / sizeof *rows)

struct pretok {
    const struct row *row;
    int n_passes;
    pcre2_code *code[MAX_PASSES];
    int jit[MAX_PASSES]; /* it is machine code */
    pcre2_general_context *memory;
    int by_pattern; /* no short way for plain words */
};

static void *pcre_alloc(size_t bytes, void *purpose)
{
    return mem_alloc(bytes, *(const pith_purpose *)purpose);
}

static void pcre_free(void *p, void *purpose)
{
    (void)purpose;
    mem_free(p);
}

static pith_purpose purpose_vocab = PITH_MEM_VOCAB, purpose_scratch = PITH_MEM_SCRATCH;

const char *pretok_name(int i)
{
    return i >= 0 && i < N_ROWS ? rows[i].name : NULL;
}

static const struct row *find_row(struct slice name, struct pith_error *err)
{
    for (int i = 0; i < N_ROWS; i++) {
        if (slice_eq_z(name, rows[i].name))
            return &rows[i];
    }
    struct str known;
    str_init(&known, PITH_MEM_SCRATCH);
    for (int i = 0; i < N_ROWS; i++)
        str_printf(&known, "%s%s", i ? " " : "", rows[i].name);
    error_set(
        err, PITH_UNSUPPORTED,
        "tokenizer.ggml.pre: unknown pre-tokenizer '%.*s'; known: %s (add a row to pretok.def)",
        (int)(name.n < 64 ? name.n : 64), name.p ? name.p : "", known.failed ? "" : known.p);
    str_deinit(&known);
    return NULL;
}

static pith_status compile(struct pretok *p, int i, struct pith_error *err)
{
    int code;
    PCRE2_SIZE at;
    const char *pattern = p->row->passes[i].pattern;
    pcre2_compile_context *cc = pcre2_compile_context_create(p->memory);
    if (!cc)
        return error_set(err, PITH_NOMEM, "out of memory compiling pre-tokenizer %s", p->row->name);
    p->code[i] = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                               PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &code, &at, cc);
    pcre2_compile_context_free(cc);
    if (!p->code[i] && code == PCRE2_ERROR_HEAP_FAILED)
        return error_set(err, PITH_NOMEM, "out of memory compiling pre-tokenizer %s", p->row->name);
    if (!p->code[i]) {
        char why[128] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return error_set(err, PITH_INTERNAL, "pre-tokenizer %s, pass %d: %s at offset %zu",
                         p->row->name, i, why, (size_t)at);
    }
    /* Without a JIT (a hardened system, another machine) the interpreter gives the same words. */
    p->jit[i] = pcre2_jit_compile(p->code[i], PCRE2_JIT_COMPLETE) == 0;
    return PITH_OK;
}

struct pretok *pretok_new(struct slice name, struct pith_error *err)
{
    const struct row *row = find_row(name, err);
    if (!row)
        return NULL;
    struct pretok *p = mem_zalloc(sizeof *p, PITH_MEM_VOCAB);
    if (!p) {
        error_set(err, PITH_NOMEM, "out of memory opening pre-tokenizer %s", row->name);
        return NULL;
    }
    p->row = row;
    p->memory = pcre2_general_context_create(pcre_alloc, pcre_free, &purpose_vocab);
    if (!p->memory) {
        error_set(err, PITH_NOMEM, "out of memory opening pre-tokenizer %s", row->name);
        goto fail;
    }
    while (p->n_passes < MAX_PASSES && row->passes[p->n_passes].kind != PASS_END) {
        if (compile(p, p->n_passes, err) != PITH_OK)
            goto fail;
        p->n_passes++;
    }
    return p;

fail:
    pretok_free(p);
    return NULL;
}

void pretok_free(struct pretok *p)
{
    if (!p)
        return;
    for (int i = 0; i < MAX_PASSES; i++)
        pcre2_code_free(p->code[i]);
    pcre2_general_context_free(p->memory);
    mem_free(p);
}

void pretok_by_pattern(struct pretok *p)
{
    p->by_pattern = 1;
}

int pretok_flags(const struct pretok *p)
{
    return p->row->flags;
}

struct run {
    const struct pretok *p;
    pcre2_match_data *match;
    pretok_word_fn word;
    void *ctx;
    struct pith_error *err;
};

static pith_status run_pass(const struct run *r, int i, struct slice piece);

/* A piece of pass i goes to pass i + 1, or out. */
static pith_status emit(const struct run *r, int i, const char *p, size_t n)
{
    struct slice piece = {p, n};
    if (n == 0)
        return PITH_OK;
    return i + 1 < r->p->n_passes ? run_pass(r, i + 1, piece) : r->word(r->ctx, piece);
}

/* Cuts a match into threes of characters, counted from its end: "12345" gives "12" "345". */
static pith_status emit_threes(const struct run *r, int i, const char *p, size_t n)
{
    pith_status st = PITH_OK;
    size_t chars = 0, from = 0;
    for (size_t k = 0; k < n; k++)
        chars += ((uint8_t)p[k] & 0xC0) != 0x80;
    for (size_t k = 0; k < n && st == PITH_OK; k++) {
        if (((uint8_t)p[k] & 0xC0) == 0x80)
            continue;
        if (chars % 3 == 0) {
            st = emit(r, i, p + from, k - from);
            from = k;
        }
        chars--;
    }
    return st == PITH_OK ? emit(r, i, p + from, n - from) : st;
}

static int is_small(char c)
{
    return c >= 'a' && c <= 'z';
}

static int is_capital(char c)
{
    return c >= 'A' && c <= 'Z';
}

/* Length of the plain word (see WORDS in pretok.def) that p[0..n) begins with, 0: none. */
static size_t plain_word(const char *p, size_t n)
{
    size_t i = *p == ' ';
    if (i == n || !(is_small(p[i]) || is_capital(p[i])))
        return 0;
    do
        i++;
    while (i < n && is_small(p[i]));
    return i < n && ((uint8_t)p[i] >= 0x80 || is_capital(p[i]) || p[i] == '\'') ? 0 : i;
}

/* The first match in piece from `done` on, as pcre2_match says it. */
static int match(const struct run *r, int i, struct slice piece, size_t done)
{
    PCRE2_SPTR text = (PCRE2_SPTR)piece.p;
    const pcre2_code *code = r->p->code[i];
    uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    return r->p->jit[i] /* straight to it: what pcre2_match does before takes as long as a word */
               ? pcre2_jit_match(code, text, piece.n, done, options, r->match, NULL)
               : pcre2_match(code, text, piece.n, done, options, r->match, NULL);
}

static pith_status run_pass(const struct run *r, int i, struct slice piece)
{
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(r->match);
    int words = r->p->row->passes[i].kind == PASS_WORDS && !r->p->by_pattern;
    size_t done = 0;
    while (done < piece.n) {
        size_t n = words ? plain_word(piece.p + done, piece.n - done) : 0;
        if (!work_tick(16))
            return error_set(r->err, PITH_CANCELLED, "cancelled");
        if (n) {
            pith_status st = r->word(r->ctx, (struct slice){piece.p + done, n});
            if (st != PITH_OK)
                return st;
            done += n;
            continue;
        }
        int rc = match(r, i, piece, done);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0)
            return error_set(r->err, rc == PCRE2_ERROR_NOMEMORY ? PITH_NOMEM : PITH_INTERNAL,
                             "pre-tokenizer %s, pass %d: PCRE2 error %d", r->p->row->name, i, rc);
        size_t from = span[0], to = span[1]; /* the next pass writes over them */
        pith_status st = emit(r, i, piece.p + done, from - done);
        if (st == PITH_OK)
            st = r->p->row->passes[i].kind == PASS_THREES
                     ? emit_threes(r, i, piece.p + from, to - from)
                     : emit(r, i, piece.p + from, to - from);
        if (st != PITH_OK)
            return st;
        done = to;
    }
    return emit(r, i, piece.p + done, piece.n - done);
}

pith_status pretok_split(const struct pretok *p, struct slice text, pretok_word_fn word, void *ctx,
                         struct pith_error *err)
{
    pcre2_general_context *gc =
        pcre2_general_context_create(pcre_alloc, pcre_free, &purpose_scratch);
    pcre2_match_data *match = gc ? pcre2_match_data_create(1, gc) : NULL;
    pith_status st;
    if (match) {
        struct run r = {p, match, word, ctx, err};
        st = run_pass(&r, 0, text);
    } else {
        st = error_set(err, PITH_NOMEM, "out of memory cutting text into words");
    }
    pcre2_match_data_free(match);
    pcre2_general_context_free(gc);
    return st;
}
