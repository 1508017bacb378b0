/* jinja_stmt.c -- statements to code.
 *
 * for:     iterable; FOR; next: FOR_NEXT done; assign; body; UNSCOPE; JUMP next; done: FOR_END
 *          behind; else part; behind:
 * macro:   MACRO m (its value); STORE; JUMP over; defaults; body; RETURN; over:
 * A recursive loop is a procedure, like a macro's body, entered once where it stands. Blocks whose
 * text is a value (set, filter, call) capture output. break and continue unwind the scopes and
 * captures between them and the loop, known while compiling. */
#include "text/jinja/jinja_impl.h"

/* ---------------------------------------------------------------- contexts */

static struct context *push_ctx(struct compiler *c, enum jctx kind)
{
    if (c->n_ctx == 4 * JINJA_NESTING)
        compile_fail(c, PITH_UNSUPPORTED, tok(c)->at, "found blocks nested too deep");
    if (c->failed)
        return NULL;
    struct context *x = &c->ctx[c->n_ctx++];
    *x = (struct context){.kind = kind, .breaks = -1};
    return x;
}

static void pop_ctx(struct compiler *c, int n)
{
    c->n_ctx = n;
}

static void end_tag(struct compiler *c)
{
    tok_expect(c, TOK_BLOCK_END, NULL);
}

static void body(struct compiler *c, const char *ends);

/* ---------------------------------------------------------------- assignment */

/* Targets up to a word or '=': names, and nested tuples of them. Where to store stands on the stack
 * at run time, so the stores are written behind the value: this only finds the end. */
static size_t skip_targets(struct compiler *c, const char *word, enum jtok t)
{
    size_t from = c->i;
    while (!c->failed && !tok_is(c, t, word)) {
        if (tok_is(c, TOK_BLOCK_END, NULL) || tok_is(c, TOK_END, NULL))
            break;
        c->i++;
    }
    return from;
}

static void store_targets(struct compiler *c);

static void store_one(struct compiler *c)
{
    size_t at = tok(c)->at;
    if (tok_is(c, TOK_OP, "(")) {
        if (!compile_enter(c))
            return;
        c->i++;
        store_targets(c);
        tok_expect(c, TOK_OP, ")");
        c->depth--;
        return;
    }
    struct slice name = tok(c)->s;
    tok_expect(c, TOK_NAME, NULL);
    if (slice_eq_z(name, "true") || slice_eq_z(name, "false") || slice_eq_z(name, "none") ||
        slice_eq_z(name, "True") || slice_eq_z(name, "False") || slice_eq_z(name, "None"))
        compile_fail(c, PITH_FORMAT, at, "cannot assign to %.*s", (int)name.n, name.p);
    int32_t id = compile_name(c, name);
    if (tok_skip(c, TOK_OP, ".")) {
        struct slice attr = tok(c)->s;
        tok_expect(c, TOK_NAME, NULL);
        emit(c, JOP_STORE_NS, id, compile_name(c, attr), at);
    } else {
        emit(c, JOP_STORE, id, 0, at);
    }
}

/* Stores the value on the stack; tokens at the targets. */
static void store_targets(struct compiler *c)
{
    size_t from = c->i, at = tok(c)->at;
    int32_t n = 0, depth = 0, comma = 0;
    for (size_t i = from; c->toks.v[i].t != TOK_END && c->toks.v[i].t != TOK_BLOCK_END; i++) {
        const struct token *t = &c->toks.v[i];
        if (t->t == TOK_OP && slice_eq_z(t->s, "("))
            depth++;
        else if (t->t == TOK_OP && slice_eq_z(t->s, ")") && depth-- == 0)
            break;
        else if (t->t == TOK_OP && slice_eq_z(t->s, "=") && depth == 0)
            break;
        else if (t->t == TOK_NAME && slice_eq_z(t->s, "in") && depth == 0)
            break;
        else if (t->t == TOK_OP && slice_eq_z(t->s, ",") && depth == 0)
            comma++;
        else if (depth == 0 || (t->t == TOK_OP && slice_eq_z(t->s, "(") && depth == 1))
            n = comma + 1;
    }
    int32_t parts = comma == 0 ? 1 : n > comma ? n : comma; /* a comma at the end adds none */
    if (comma)
        emit(c, JOP_UNPACK, parts, 0, at);
    for (int32_t i = 0; i < parts && !c->failed; i++) {
        store_one(c);
        if (i + 1 < parts || comma == parts)
            tok_expect(c, TOK_OP, ",");
    }
}

/* To the end of an expression that is compiled elsewhere. */
static void pass_over(struct compiler *c)
{
    int32_t code = c->t->n_code;
    compile_expr(c);
    c->t->n_code = c->failed ? c->t->n_code : code;
}

/* The filters that stand at token `from`, for the value on the stack. */
static void filters_at(struct compiler *c, size_t from, int bare)
{
    size_t back = c->i;
    c->i = from;
    compile_filters(c, bare);
    end_tag(c);
    c->i = back;
}

static void capture(struct compiler *c, const char *ends, size_t at)
{
    int n = c->n_ctx;
    emit(c, JOP_CAPTURE, 0, 0, at);
    emit(c, JOP_SCOPE, 0, 0, at);
    push_ctx(c, CTX_CAPTURE);
    push_ctx(c, CTX_SCOPE);
    body(c, ends);
    pop_ctx(c, n);
    emit(c, JOP_UNSCOPE, 0, 0, at);
    emit(c, JOP_CAPTURED, 0, 0, at);
}

static void skip_to_end(struct compiler *c)
{
    while (!c->failed && !tok_is(c, TOK_BLOCK_END, NULL) && !tok_is(c, TOK_END, NULL))
        c->i++;
    end_tag(c);
}

static void st_set(struct compiler *c, size_t at)
{
    size_t targets = skip_targets(c, "=", TOK_OP);
    if (tok_skip(c, TOK_OP, "=")) {
        compile_tuple(c, 1);
        size_t end = c->i;
        c->i = targets;
        store_targets(c);
        tok_expect(c, TOK_OP, "=");
        c->i = end;
        end_tag(c);
        return;
    }
    c->i = targets;
    while (!c->failed && !tok_is(c, TOK_OP, "|") && !tok_is(c, TOK_BLOCK_END, NULL) &&
           !tok_is(c, TOK_END, NULL))
        c->i++;
    size_t filters = c->i;
    skip_to_end(c);
    capture(c, "endset", at);
    tok_expect(c, TOK_NAME, "endset");
    end_tag(c);
    filters_at(c, filters, 0);
    size_t end = c->i;
    c->i = targets;
    store_one(c);
    c->i = end;
}

/* ---------------------------------------------------------------- if, for */

static void st_if(struct compiler *c, size_t at)
{
    int32_t ends = -1; /* jumps behind the endif, linked through op.a */
    for (;;) {
        compile_tuple(c, 1);
        end_tag(c);
        int32_t skip = emit(c, JOP_JUMP_FALSE, 0, 0, at);
        body(c, "elif else endif");
        if (tok_is(c, TOK_NAME, "endif")) {
            emit_jump_to(c, skip, c->t->n_code);
            break;
        }
        ends = emit(c, JOP_JUMP, ends, 0, at);
        emit_jump_to(c, skip, c->t->n_code);
        if (c->failed || tok_is(c, TOK_NAME, "else")) {
            tok_expect(c, TOK_NAME, "else");
            end_tag(c);
            body(c, "endif");
            break;
        }
        at = tok(c)->at;
        tok_expect(c, TOK_NAME, "elif");
    }
    tok_expect(c, TOK_NAME, "endif");
    end_tag(c);
    while (ends >= 0 && !c->failed) {
        int32_t before = c->t->code[ends].a;
        emit_jump_to(c, ends, c->t->n_code);
        ends = before;
    }
}

/* Behind the iterable: keeps the items for which the condition at token `condition` holds; 0: there
 * is none. */
static void select_items(struct compiler *c, size_t targets, size_t condition, size_t at)
{
    if (!condition || c->failed)
        return;
    emit(c, JOP_SELECT, 0, 0, at);
    int32_t next = emit(c, JOP_SELECT_NEXT, 0, 0, at);
    size_t back = c->i;
    c->i = targets;
    store_targets(c);
    c->i = condition;
    compile_expr(c);
    c->i = back;
    emit(c, JOP_SELECT_KEEP, 0, 0, at);
    emit_jump_to(c, emit(c, JOP_JUMP, 0, 0, at), next);
    emit_jump_to(c, next, c->t->n_code);
}

/* proc: where a recursive loop's code begins, else -1 */
static void loop_body(struct compiler *c, size_t targets, int32_t proc, size_t at)
{
    int n = c->n_ctx;
    int32_t begin = emit(c, JOP_FOR, 0, proc >= 0, at);
    if (proc >= 0)
        emit_jump_to(c, begin, proc);
    int32_t next = emit(c, JOP_FOR_NEXT, 0, 0, at);
    struct context *x = push_ctx(c, CTX_LOOP);
    if (!x)
        return;
    x->next = next;
    push_ctx(c, CTX_SCOPE);
    size_t back = c->i;
    c->i = targets;
    store_targets(c);
    tok_expect(c, TOK_NAME, "in");
    c->i = back;
    body(c, "else endfor");
    emit(c, JOP_UNSCOPE, 1, 0, at); /* a round that ended: no else part */
    emit_jump_to(c, emit(c, JOP_JUMP, 0, 0, at), next);
    int32_t done = c->t->n_code;
    emit_jump_to(c, next, done);
    for (int32_t b = x->breaks; b >= 0 && !c->failed;) {
        int32_t before = c->t->code[b].a;
        emit_jump_to(c, b, done);
        b = before;
    }
    pop_ctx(c, n);
    int32_t end = emit(c, JOP_FOR_END, 0, 0, at);
    if (tok_skip(c, TOK_NAME, "else")) {
        end_tag(c);
        emit(c, JOP_SCOPE, 0, 0, at);
        push_ctx(c, CTX_SCOPE);
        body(c, "endfor");
        pop_ctx(c, n);
        emit(c, JOP_UNSCOPE, 0, 0, at);
    }
    emit_jump_to(c, end, c->t->n_code);
}

static void st_for(struct compiler *c, size_t at)
{
    size_t targets = skip_targets(c, "in", TOK_NAME);
    int n = c->n_ctx;
    tok_expect(c, TOK_NAME, "in");
    compile_tuple(c, 0);
    size_t condition = tok_skip(c, TOK_NAME, "if") ? c->i : 0;
    if (condition)
        pass_over(c);
    int recursive = tok_skip(c, TOK_NAME, "recursive");
    end_tag(c);
    if (!recursive) {
        select_items(c, targets, condition, at);
        loop_body(c, targets, -1, at);
    } else {
        int32_t over = emit(c, JOP_JUMP, 0, 0, at), proc = c->t->n_code;
        struct context *x = push_ctx(c, CTX_MACRO);
        if (x) /* what it uses, the macro around it uses */
            x->proto = -1;
        select_items(c, targets, condition, at);
        loop_body(c, targets, proc, at);
        pop_ctx(c, n);
        emit(c, JOP_RETURN, 0, 0, at);
        emit_jump_to(c, over, c->t->n_code);
        emit_jump_to(c, emit(c, JOP_ENTER, 0, 0, at), proc);
        emit(c, JOP_OUT, 0, 0, at);
    }
    tok_expect(c, TOK_NAME, "endfor");
    end_tag(c);
}

static void leave_loop(struct compiler *c, size_t at, int is_break)
{
    int k = c->n_ctx - 1;
    while (k >= 0 && c->ctx[k].kind != CTX_LOOP && c->ctx[k].kind != CTX_MACRO) {
        emit(c, c->ctx[k].kind == CTX_SCOPE ? JOP_UNSCOPE : JOP_DROP_CAPTURE, 0, 0, at);
        k--;
    }
    if (k < 0 || c->ctx[k].kind != CTX_LOOP) {
        compile_fail(c, PITH_FORMAT, at, "found break or continue outside a loop");
        return;
    }
    if (is_break)
        c->ctx[k].breaks = emit(c, JOP_JUMP, c->ctx[k].breaks, 0, at);
    else
        emit_jump_to(c, emit(c, JOP_JUMP, 0, 0, at), c->ctx[k].next);
    end_tag(c);
}

static void st_break(struct compiler *c, size_t at)
{
    leave_loop(c, at, 1);
}

static void st_continue(struct compiler *c, size_t at)
{
    leave_loop(c, at, 0);
}

/* ---------------------------------------------------------------- macro, call */

static int32_t new_proto(struct compiler *c, struct slice name)
{
    struct jproto *p = compile_grow(c, c->t->protos, c->n_protos, &c->cap_protos, sizeof *p);
    if (!p)
        return 0;
    c->t->protos = p;
    p[c->n_protos] = (struct jproto){.name = name};
    return c->n_protos++;
}

/* From "(" to ")", when there are any. */
static void params(struct compiler *c, int32_t proto)
{
    if (!tok_skip(c, TOK_OP, "("))
        return;
    while (!c->failed && !tok_is(c, TOK_OP, ")")) {
        struct jparam q = {compile_name(c, tok(c)->s), 0};
        struct jproto *m = &c->t->protos[proto];
        tok_expect(c, TOK_NAME, NULL);
        if (tok_skip(c, TOK_OP, "=")) {
            q.dflt = c->i;
            pass_over(c);
        } else if (m->n_params && m->params[m->n_params - 1].dflt) {
            compile_fail(c, PITH_FORMAT, tok(c)->at,
                         "found a parameter without a default behind one with a default");
        }
        struct jparam *p = compile_grow(c, m->params, m->n_params, &m->cap_params, sizeof *p);
        if (!p)
            return;
        m->params = p;
        p[m->n_params++] = q;
        if (!tok_skip(c, TOK_OP, ","))
            break;
    }
    tok_expect(c, TOK_OP, ")");
}

/* Behind the tag: MACRO, which makes its value, and the code that a call enters. */
static void macro_body(struct compiler *c, int32_t proto, const char *ends, size_t at)
{
    int n = c->n_ctx;
    size_t back = c->i;
    emit(c, JOP_MACRO, proto, 2, at);
    int32_t over = emit(c, JOP_JUMP, 0, 0, at);
    struct context *x = push_ctx(c, CTX_MACRO);
    if (!x)
        return;
    x->proto = proto;
    for (int32_t i = 0; !c->failed && i < c->t->protos[proto].n_params; i++) {
        struct jparam q = c->t->protos[proto].params[i];
        if (!q.dflt)
            continue;
        int32_t have = emit(c, JOP_DEFAULT, 0, q.name, at);
        c->i = q.dflt;
        compile_expr(c);
        emit(c, JOP_STORE, q.name, 0, at);
        emit_jump_to(c, have, c->t->n_code);
    }
    c->i = back;
    body(c, ends);
    pop_ctx(c, n);
    emit(c, JOP_RETURN, 0, 0, at);
    emit_jump_to(c, over, c->t->n_code);
}

static void st_macro(struct compiler *c, size_t at)
{
    struct slice name = tok(c)->s;
    tok_expect(c, TOK_NAME, NULL);
    int32_t id = compile_name(c, name), proto = new_proto(c, name);
    if (!tok_is(c, TOK_OP, "("))
        tok_expect(c, TOK_OP, "(");
    params(c, proto);
    end_tag(c);
    macro_body(c, proto, "endmacro", at);
    emit(c, JOP_STORE, id, 0, at);
    tok_expect(c, TOK_NAME, "endmacro");
    tok_skip(c, TOK_NAME, NULL); /* its name again, if one likes */
    end_tag(c);
}

static void st_call(struct compiler *c, size_t at)
{
    int32_t proto = new_proto(c, SLICE("caller"));
    params(c, proto);
    compile_expr(c);
    if (c->failed || c->t->code[c->t->n_code - 1].code != JOP_CALL) {
        compile_fail(c, PITH_FORMAT, at, "found no call in this call block");
        return;
    }
    int32_t site = c->t->code[--c->t->n_code].a; /* the call waits for its caller */
    end_tag(c);
    macro_body(c, proto, "endcall", at);
    site_add(c, site, ARG_NAME, SLICE("caller"));
    emit(c, JOP_CALL, site, 0, at);
    emit(c, JOP_OUT, 0, 0, at);
    tok_expect(c, TOK_NAME, "endcall");
    end_tag(c);
}

/* ---------------------------------------------------------------- the others */

static void st_filter(struct compiler *c, size_t at)
{
    size_t filters = c->i;
    skip_to_end(c);
    capture(c, "endfilter", at);
    tok_expect(c, TOK_NAME, "endfilter");
    end_tag(c);
    filters_at(c, filters, 1);
    emit(c, JOP_OUT, 0, 0, at);
}

static void scoped(struct compiler *c, const char *end, size_t at)
{
    int n = c->n_ctx;
    push_ctx(c, CTX_SCOPE);
    body(c, end);
    pop_ctx(c, n);
    emit(c, JOP_UNSCOPE, 0, 0, at);
    tok_expect(c, TOK_NAME, end);
    end_tag(c);
}

/* Its values see nothing of what it binds: all are computed, then all are stored. */
static void st_with(struct compiler *c, size_t at)
{
    size_t targets[16];
    int n = 0;
    while (!c->failed && !tok_is(c, TOK_BLOCK_END, NULL)) {
        if (n == 16)
            compile_fail(c, PITH_UNSUPPORTED, at, "found more than 16 variables of one with");
        else
            targets[n++] = skip_targets(c, "=", TOK_OP);
        tok_expect(c, TOK_OP, "=");
        compile_expr(c);
        if (!tok_skip(c, TOK_OP, ","))
            break;
    }
    size_t back = c->i;
    emit(c, JOP_SCOPE, 0, 0, at);
    while (n-- > 0 && !c->failed) {
        c->i = targets[n];
        store_targets(c);
    }
    c->i = back;
    end_tag(c);
    scoped(c, "endwith", at);
}

static void st_generation(struct compiler *c, size_t at)
{
    end_tag(c);
    emit(c, JOP_SCOPE, 0, 0, at);
    scoped(c, "endgeneration", at);
}

static void st_autoescape(struct compiler *c, size_t at)
{
    if (!tok_skip(c, TOK_NAME, "false") && !tok_skip(c, TOK_NAME, "False"))
        compile_fail(c, PITH_UNSUPPORTED, at,
                     "autoescape is not supported: chat templates are not HTML");
    end_tag(c);
    emit(c, JOP_SCOPE, 0, 0, at);
    scoped(c, "endautoescape", at);
}

static void st_print(struct compiler *c, size_t at)
{
    do {
        compile_expr(c);
        emit(c, JOP_OUT, 0, 0, at);
    } while (tok_skip(c, TOK_OP, ","));
    end_tag(c);
}

static void st_refused(struct compiler *c, size_t at)
{
    struct slice s = c->toks.v[c->i - 1].s;
    compile_fail(c, PITH_UNSUPPORTED, at, "%.*s is not supported: a chat template is one file",
                 (int)s.n, s.p);
}

static const struct {
    const char *word;
    void (*fn)(struct compiler *c, size_t at);
} statements[] = {
    {"if", st_if},           {"for", st_for},
    {"set", st_set},         {"macro", st_macro},
    {"call", st_call},       {"filter", st_filter},
    {"with", st_with},       {"generation", st_generation},
    {"break", st_break},     {"continue", st_continue},
    {"print", st_print},     {"autoescape", st_autoescape},
    {"include", st_refused}, {"import", st_refused},
    {"from", st_refused},    {"extends", st_refused},
    {"block", st_refused},
};

static int is_one_of(struct slice word, const char *words)
{
    for (const char *w = words; *w;) {
        size_t n = strcspn(w, " ");
        if (slice_eq(word, (struct slice){w, n}))
            return 1;
        w += n + (w[n] == ' ');
    }
    return 0;
}

static void statement(struct compiler *c)
{
    const struct token *t = tok(c);
    tok_expect(c, TOK_NAME, NULL);
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (slice_eq_z(t->s, statements[i].word)) {
            statements[i].fn(c, t->at);
            return;
        }
    }
    compile_fail(c, PITH_FORMAT, t->at, "found the unknown tag \"%.*s\"",
                 t->s.n > 40 ? 40 : (int)t->s.n, t->s.p);
}

/* Up to the tag whose word is one of `ends` (tokens then at the word), or to the end of the source.
 */
static void body(struct compiler *c, const char *ends)
{
    if (!compile_enter(c))
        return;
    while (!c->failed) {
        const struct token *t = tok(c);
        if (t->t == TOK_END) {
            if (*ends)
                compile_fail(c, PITH_FORMAT, t->at, "found the end of the template, wanted %s",
                             ends);
            break;
        }
        c->i++;
        if (t->t == TOK_TEXT) {
            emit(c, JOP_TEXT, compile_text(c, t->s), 0, t->at);
        } else if (t->t == TOK_VAR) {
            compile_tuple(c, 1);
            tok_expect(c, TOK_VAR_END, NULL);
            emit(c, JOP_OUT, 0, 0, t->at);
        } else if (tok(c)->t == TOK_NAME && is_one_of(tok(c)->s, ends)) {
            break;
        } else {
            statement(c);
        }
    }
    c->depth--;
}

void compile_template(struct compiler *c)
{
    static const char *const fixed[] = {"loop", "caller", "varargs", "kwargs"};
    for (int i = 0; i < N_FIXED_NAMES; i++)
        compile_name(c, slice_of(fixed[i]));
    body(c, "");
    emit(c, JOP_END, 0, 0, c->t->source.n);
}
