/* jinja_expr.c -- expressions to code for a stack machine: precedence climbing, code emitted as it
 * is read.
 *
 *     a if c else b                      lowest
 *     or   and   not   == != < <= > >= in not in   + -   ~   * / // %   **   unary - +
 *     primary: name literal (..) [..] {..}, then any of .name [index] (args), then |filter, is
 *         test, (args)
 *
 * Two orders differ from the order of evaluation. "a if c else b" reads a first: its code is
 * rotated behind c's. A comparison chain keeps the middle operand on the stack. Jumps are relative,
 * so that code can move.
 *
 * Nesting is limited because every bracket is a recursion; chains of operators are loops. */
#include "text/jinja/jinja_impl.h"

static int op_is(const struct compiler *c, const char *s)
{
    return tok_is(c, TOK_OP, s);
}

static int op_skip(struct compiler *c, const char *s)
{
    return tok_skip(c, TOK_OP, s);
}

static int word_is(const struct compiler *c, const char *s)
{
    return tok_is(c, TOK_NAME, s);
}

/* Moves the code [from, mid) behind [mid, end): three reversals. */
static void reverse(struct op *p, int32_t n)
{
    for (int32_t i = 0; i < n / 2; i++) {
        struct op x = p[i];
        p[i] = p[n - 1 - i];
        p[n - 1 - i] = x;
    }
}

static void rotate(struct compiler *c, int32_t from, int32_t mid)
{
    struct op *p = c->t->code;
    int32_t end = c->t->n_code;
    reverse(p + from, mid - from);
    reverse(p + mid, end - mid);
    reverse(p + from, end - from);
}

/* ---------------------------------------------------------------- arguments of calls */

static void star_args(struct compiler *c, int32_t site, int *seen)
{
    int twice = op_skip(c, "**");
    if (!twice)
        op_skip(c, "*");
    if (*seen > twice + 1)
        compile_fail(c, PITH_FORMAT, tok(c)->at, "found a second * or ** argument");
    *seen = twice + 2;
    compile_expr(c);
    site_add(c, site, twice ? ARG_STARSTAR : ARG_STAR, SLICE(""));
}

/* Behind "(": arguments and ")". */
static void arguments(struct compiler *c, int32_t site)
{
    int seen = 0; /* 1: a named one, 2: *, 3: ** */
    while (!c->failed && !op_is(c, ")")) {
        const struct token *next = &c->toks.v[c->i + 1];
        if (op_is(c, "*") || op_is(c, "**")) {
            star_args(c, site, &seen);
        } else if (tok_is(c, TOK_NAME, NULL) && next->t == TOK_OP && slice_eq_z(next->s, "=")) {
            struct slice name = tok(c)->s;
            c->i += 2;
            seen = seen ? seen : 1;
            compile_expr(c);
            site_add(c, site, ARG_NAME, name);
        } else {
            if (seen)
                compile_fail(c, PITH_FORMAT, tok(c)->at,
                             "found a positional argument behind a named or * one");
            compile_expr(c);
            site_add(c, site, ARG_POS, SLICE(""));
        }
        if (!op_skip(c, ","))
            break;
    }
    tok_expect(c, TOK_OP, ")");
}

static void call(struct compiler *c)
{
    size_t at = tok(c)->at;
    int32_t site = compile_site(c, SLICE(""));
    tok_expect(c, TOK_OP, "(");
    arguments(c, site);
    emit(c, JOP_CALL, site, 0, at);
}

/* "name" or "name.name" of a filter or a test */
static struct slice dotted(struct compiler *c)
{
    struct slice s = tok(c)->s;
    tok_expect(c, TOK_NAME, NULL);
    while (op_is(c, ".") && !c->failed) {
        c->i++;
        s.n = (size_t)(tok(c)->s.p + tok(c)->s.n - s.p);
        tok_expect(c, TOK_NAME, NULL);
    }
    return s;
}

static void filter(struct compiler *c)
{
    size_t at = tok(c)->at;
    int32_t site = compile_site(c, dotted(c));
    if (op_skip(c, "("))
        arguments(c, site);
    emit(c, JOP_FILTER, site, 0, at);
}

void compile_filters(struct compiler *c, int bare)
{
    if (bare)
        filter(c);
    while (op_skip(c, "|"))
        filter(c);
}

static void primary(struct compiler *c);
static void postfix(struct compiler *c);

static void test(struct compiler *c)
{
    size_t at = tok(c)->at;
    int negated = tok_skip(c, TOK_NAME, "not");
    int32_t site = compile_site(c, dotted(c));
    if (op_skip(c, "(")) {
        arguments(c, site);
    } else if (tok_is(c, TOK_STR, NULL) || tok_is(c, TOK_INT, NULL) || tok_is(c, TOK_FLOAT, NULL) ||
               op_is(c, "[") || op_is(c, "{") ||
               (tok_is(c, TOK_NAME, NULL) && !word_is(c, "else") && !word_is(c, "or") &&
                !word_is(c, "and") && !word_is(c, "is") && !word_is(c, "if") && !word_is(c, "in") &&
                !word_is(c, "not") && !word_is(c, "recursive"))) {
        primary(c);
        postfix(c);
        site_add(c, site, ARG_POS, SLICE(""));
    }
    emit(c, JOP_TEST, site, negated, at);
}

/* ---------------------------------------------------------------- primaries */

static void number(struct compiler *c)
{
    const struct token *t = tok(c);
    char digits[512];
    size_t n = 0;
    struct jv v;
    for (size_t i = 0; i < t->s.n && n < sizeof digits - 1; i++) {
        if (t->s.p[i] != '_')
            digits[n++] = t->s.p[i];
    }
    struct slice s = {digits, n};
    if (t->t == TOK_FLOAT) {
        double f = 0;
        v = parse_float(s, &f) ? jv_float(f) : (struct jv){0};
    } else if (!parse_int(s, 0, &v, NULL)) {
        v = (struct jv){0};
    }
    if (v.t == J_BIG) {
        struct jstr *big = arena_alloc(&c->t->arena, sizeof *big);
        if (big)
            *big = (struct jstr){arena_strndup(&c->t->arena, digits, n), n, n, NULL};
        v.u.s = big;
    }
    if (v.t == J_UNSET)
        compile_fail(c, PITH_FORMAT, t->at, "found a number that is none");
    emit(c, JOP_CONST, compile_const(c, v), 0, t->at);
    c->i++;
}

static void string(struct compiler *c)
{
    const struct token *t = tok(c), *end = t;
    struct slice s = {NULL, 0};
    while (end->t == TOK_STR) /* literals side by side are one */
        s.n += end++->s.n;
    char *all = end > t + 1 ? arena_alloc(&c->t->arena, s.n + 1) : NULL;
    if (end > t + 1 && !all) {
        compile_fail(c, PITH_NOMEM, t->at, "out of memory");
        return;
    }
    s.p = all ? all : t->s.p;
    for (const struct token *one = t; all && one < end; all += one++->s.n)
        memcpy(all, one->s.p, one->s.n);
    c->i += (size_t)(end - t);
    emit(c, JOP_CONST, compile_text(c, s), 0, t->at);
}

static void name(struct compiler *c)
{
    static const struct {
        const char *word;
        enum jtype t;
        int i;
    } words[] = {{"true", J_BOOL, 1},  {"True", J_BOOL, 1}, {"false", J_BOOL, 0},
                 {"False", J_BOOL, 0}, {"none", J_NONE, 0}, {"None", J_NONE, 0}};
    const struct token *t = tok(c);
    c->i++;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (slice_eq_z(t->s, words[i].word)) {
            struct jv v = {.t = words[i].t, .u.i = words[i].i};
            emit(c, JOP_CONST, compile_const(c, v), 0, t->at);
            return;
        }
    }
    int32_t id = compile_name(c, t->s);
    for (int k = c->n_ctx - 1; k >= 0 && id < N_FIXED_NAMES;
         k--) { /* what the macro around it must be given */
        if (c->ctx[k].kind != CTX_MACRO || c->ctx[k].proto < 0)
            continue;
        struct jproto *m = &c->t->protos[c->ctx[k].proto];
        m->uses_caller |= id == NAME_CALLER;
        m->uses_varargs |= id == NAME_VARARGS;
        m->uses_kwargs |= id == NAME_KWARGS;
    }
    emit(c, JOP_LOAD, id, 0, t->at);
}

/* Items up to the closing bracket; their number. */
static int32_t items(struct compiler *c, const char *close)
{
    int32_t n = 0;
    while (!c->failed && !op_is(c, close)) {
        compile_expr(c);
        n++;
        if (!op_skip(c, ","))
            break;
    }
    tok_expect(c, TOK_OP, close);
    return n;
}

static void dict(struct compiler *c, size_t at)
{
    int32_t n = 0;
    while (!c->failed && !op_is(c, "}")) {
        compile_expr(c);
        tok_expect(c, TOK_OP, ":");
        compile_expr(c);
        n++;
        if (!op_skip(c, ","))
            break;
    }
    tok_expect(c, TOK_OP, "}");
    emit(c, JOP_DICT, n, 0, at);
}

static void primary(struct compiler *c)
{
    const struct token *t = tok(c);
    if (t->t == TOK_NAME)
        name(c);
    else if (t->t == TOK_STR)
        string(c);
    else if (t->t == TOK_INT || t->t == TOK_FLOAT)
        number(c);
    else if (op_skip(c, "(")) {
        if (op_skip(c, ")")) {
            emit(c, JOP_TUPLE, 0, 0, t->at);
        } else {
            compile_tuple(c, 1);
            tok_expect(c, TOK_OP, ")");
        }
    } else if (op_skip(c, "["))
        emit(c, JOP_LIST, items(c, "]"), 0, t->at);
    else if (op_skip(c, "{"))
        dict(c, t->at);
    else
        compile_fail(c, PITH_FORMAT, t->at, "found \"%.*s\", wanted an expression",
                     t->s.n > 40 ? 40 : (int)t->s.n, t->s.p);
}

/* ---------------------------------------------------------------- what follows a primary */

static void none(struct compiler *c, size_t at)
{
    emit(c, JOP_CONST, compile_const(c, jv_none()), 0, at);
}

/* One part of an index; 1: it was a slice, whose op is out. */
static int subscript(struct compiler *c, size_t at)
{
    int colons = 0, have = 0;
    while (!c->failed && !op_is(c, "]") && !op_is(c, ",")) {
        if (op_skip(c, ":")) {
            if (!have)
                none(c, at);
            have = 0;
            if (++colons > 2)
                compile_fail(c, PITH_FORMAT, at, "found more than two ':' in an index");
        } else {
            if (have)
                break;
            compile_expr(c);
            have = 1;
        }
    }
    if (!colons && !have)
        compile_fail(c, PITH_FORMAT, at, "found an index without a value");
    if (!colons)
        return 0;
    for (int parts = colons + have; parts < 3; parts++)
        none(c, at);
    emit(c, JOP_SLICE, 0, 0, at);
    return 1;
}

static void postfix(struct compiler *c)
{
    while (!c->failed) {
        size_t at = tok(c)->at;
        if (op_skip(c, ".")) {
            const struct token *t = tok(c);
            at = t->at;
            if (t->t == TOK_INT) {
                number(c);
                emit(c, JOP_ITEM, 0, 0, at);
            } else {
                tok_expect(c, TOK_NAME, NULL);
                emit(c, JOP_ATTR, compile_name(c, t->s), 0, at);
            }
        } else if (op_skip(c, "[")) {
            int32_t n = 0;
            int slices = 0;
            do {
                slices += subscript(c, at);
                n++;
            } while (op_skip(c, ",") && !op_is(c, "]"));
            tok_expect(c, TOK_OP, "]");
            if (slices && n > 1)
                compile_fail(c, PITH_UNSUPPORTED, at, "found a slice inside a tuple as index");
            if (n > 1)
                emit(c, JOP_TUPLE, n, 0, at);
            if (!slices)
                emit(c, JOP_ITEM, 0, 0, at);
        } else if (op_is(c, "(")) {
            call(c);
        } else {
            return;
        }
    }
}

static void unary(struct compiler *c, int with_filter)
{
    size_t at = tok(c)->at;
    int minus = op_is(c, "-");
    if (minus || op_is(c, "+")) {
        if (!compile_enter(c))
            return;
        c->i++;
        unary(c, 0);
        emit(c, minus ? JOP_NEG : JOP_POS, 0, 0, at);
        c->depth--;
    } else {
        primary(c);
    }
    postfix(c);
    while (with_filter && !c->failed) {
        if (op_skip(c, "|"))
            filter(c);
        else if (tok_skip(c, TOK_NAME, "is"))
            test(c);
        else if (op_is(c, "("))
            call(c);
        else
            return;
    }
}

/* ---------------------------------------------------------------- operators */

enum {
    LEVEL_OR,
    LEVEL_AND,
    LEVEL_NOT,
    LEVEL_COMPARE,
    LEVEL_ADD,
    LEVEL_CONCAT,
    LEVEL_MUL,
    LEVEL_POW,
    LEVEL_UNARY
};
static const struct {
    const char *s;
    enum jtok t;
    int level;
    enum jop op;
} binaries[] = {
    {"or", TOK_NAME, LEVEL_OR, JOP_OR},      {"and", TOK_NAME, LEVEL_AND, JOP_AND},
    {"==", TOK_OP, LEVEL_COMPARE, JOP_EQ},   {"!=", TOK_OP, LEVEL_COMPARE, JOP_NE},
    {"<", TOK_OP, LEVEL_COMPARE, JOP_LT},    {"<=", TOK_OP, LEVEL_COMPARE, JOP_LE},
    {">", TOK_OP, LEVEL_COMPARE, JOP_GT},    {">=", TOK_OP, LEVEL_COMPARE, JOP_GE},
    {"in", TOK_NAME, LEVEL_COMPARE, JOP_IN}, {"not", TOK_NAME, LEVEL_COMPARE, JOP_NOT_IN},
    {"+", TOK_OP, LEVEL_ADD, JOP_ADD},       {"-", TOK_OP, LEVEL_ADD, JOP_SUB},
    {"~", TOK_OP, LEVEL_CONCAT, JOP_CONCAT}, {"*", TOK_OP, LEVEL_MUL, JOP_MUL},
    {"/", TOK_OP, LEVEL_MUL, JOP_DIV},       {"//", TOK_OP, LEVEL_MUL, JOP_FLOORDIV},
    {"%", TOK_OP, LEVEL_MUL, JOP_MOD},       {"**", TOK_OP, LEVEL_POW, JOP_POW},
};
enum { N_BINARIES = sizeof binaries / sizeof *binaries };

/* The operator here if it binds as tight as `level` or tighter, else N_BINARIES. */
static int operator_at(const struct compiler *c, int level)
{
    int i = 0;
    while (i < N_BINARIES &&
           !(binaries[i].level >= level && tok_is(c, binaries[i].t, binaries[i].s)))
        i++;
    if (i < N_BINARIES && binaries[i].op == JOP_NOT_IN) {
        const struct token *next = &c->toks.v[c->i + 1];
        return next->t == TOK_NAME && slice_eq_z(next->s, "in") ? i : N_BINARIES;
    }
    return i;
}

static void climb(struct compiler *c, int level);

/* Behind the first operand: a < b < c is a < b and b < c with b evaluated once. */
static void comparisons(struct compiler *c)
{
    int32_t chain = -1; /* jumps to the end of a chain, linked through op.a */
    for (int i;
         (i = operator_at(c, LEVEL_COMPARE)) < N_BINARIES && binaries[i].level == LEVEL_COMPARE;) {
        size_t at = tok(c)->at;
        c->i += binaries[i].op == JOP_NOT_IN ? 2 : 1;
        climb(c, LEVEL_ADD);
        if (operator_at(c, LEVEL_COMPARE) == N_BINARIES) {
            emit(c, binaries[i].op, 0, 0, at);
            break;
        }
        emit(c, JOP_CHAIN, 0, 0, at);
        emit(c, binaries[i].op, 0, 0, at);
        chain = emit(c, JOP_AND, chain, 0, at);
    }
    if (chain < 0)
        return;
    int32_t over = emit(c, JOP_JUMP, 0, 0, tok(c)->at);
    int32_t end = emit(c, JOP_UNCHAIN, 0, 0, tok(c)->at);
    while (chain >= 0 && !c->failed) {
        int32_t before = c->t->code[chain].a;
        emit_jump_to(c, chain, end);
        chain = before;
    }
    emit_jump_to(c, over, c->t->n_code);
}

/* One operand and all operators behind it that bind as tight as `level` or tighter. */
static void climb(struct compiler *c, int level)
{
    size_t at = tok(c)->at;
    int negations = 0;
    if (!compile_enter(c))
        return;
    while (level <= LEVEL_NOT && tok_skip(c, TOK_NAME, "not"))
        negations++;
    if (negations)
        climb(c, LEVEL_COMPARE);
    else
        unary(c, 1);
    while (negations-- > 0 && !c->failed)
        emit(c, JOP_NOT, 0, 0, at);
    for (int i; (i = operator_at(c, level)) < N_BINARIES;) {
        int is_jump = binaries[i].level <= LEVEL_AND;
        if (binaries[i].level == LEVEL_COMPARE) {
            comparisons(c);
            continue;
        }
        at = tok(c)->at;
        c->i++;
        int32_t jump = is_jump ? emit(c, binaries[i].op, 0, 0, at) : 0;
        climb(c, binaries[i].level + 1);
        if (is_jump)
            emit_jump_to(c, jump, c->t->n_code);
        else
            emit(c, binaries[i].op, 0, 0, at);
    }
    c->depth--;
}

void compile_expr_no_if(struct compiler *c)
{
    climb(c, LEVEL_OR);
}

void compile_expr(struct compiler *c)
{
    int32_t from = c->t->n_code, overs = -1; /* jumps to the end, linked through op.a */
    int more = 1;
    while (more && !c->failed) {
        more = 0;
        climb(c, LEVEL_OR);
        while (word_is(c, "if")) {
            size_t at = tok(c)->at;
            int32_t mid = c->t->n_code;
            c->i++;
            climb(c, LEVEL_OR);
            emit(c, JOP_JUMP_FALSE, 0, 0, at);
            if (c->failed)
                return;
            rotate(c, from, mid);
            int32_t test_at = from + (c->t->n_code - mid) - 1;
            int32_t over = emit(c, JOP_JUMP, overs, 0, at);
            emit_jump_to(c, test_at, c->t->n_code);
            if (tok_skip(c, TOK_NAME, "else")) {
                overs = over;
                from = c->t->n_code;
                more = 1;
                break;
            }
            emit(c, JOP_UNDEF, 0, 0, at);
            emit_jump_to(c, over, c->t->n_code);
        }
    }
    while (overs >= 0 && !c->failed) {
        int32_t before = c->t->code[overs].a;
        emit_jump_to(c, overs, c->t->n_code);
        overs = before;
    }
}

void compile_tuple(struct compiler *c, int with_if)
{
    size_t at = tok(c)->at;
    int32_t n = 0;
    int comma = 0;
    do {
        if (n && (tok_is(c, TOK_BLOCK_END, NULL) || tok_is(c, TOK_VAR_END, NULL) || op_is(c, ")") ||
                  word_is(c, "if") || word_is(c, "recursive")))
            break;
        if (with_if)
            compile_expr(c);
        else
            compile_expr_no_if(c);
        n++;
    } while (!c->failed && op_skip(c, ",") && (comma = 1));
    if (comma)
        emit(c, JOP_TUPLE, n, 0, at);
}
