/* jinja_vm.c -- runs a template's code: a stack machine without recursion, so that what a template
 * nests costs no C stack.
 *
 *     stack     operands
 *     scopes    name -> value, innermost first; the last one holds the variables given
 *     loops     open for loops of this call; frames: open macros and recursive loops
 *     out       all text; a capture is a mark in it, whose text is taken off when it ends
 *
 * Scoping: a for body (each round anew), macro, call, filter, with and block set has a scope of its
 * own; if has none. A macro sees the scope it was written in as it is when called.
 *
 * Every op counts as one step and every item that a built-in function touches as another; steps,
 * bytes and output are limited. */
#include "text/jinja/jinja_impl.h"

/* ---------------------------------------------------------------- stacks */

/* Room for one more in an array of the rendering's arena. */
static void *grow(struct jvm *vm, void *p, size_t n, size_t *cap, size_t item)
{
    size_t more = *cap ? 2 * *cap : 32;
    if (n < *cap)
        return p;
    void *q = vm_array(vm, more, item);
    if (!q)
        return NULL;
    if (n)
        memcpy(q, p, n * item);
    *cap = more;
    return q;
}

static void push(struct jvm *vm, struct jv v)
{
    struct jv *p = grow(vm, vm->stack, vm->n_stack, &vm->cap_stack, sizeof *p);
    if (!p)
        return;
    vm->stack = p;
    p[vm->n_stack++] = v;
}

static struct jv pop(struct jvm *vm)
{
    return vm->n_stack ? vm->stack[--vm->n_stack] : (struct jv){0};
}

static void push_scope(struct jvm *vm, struct jscope *parent)
{
    struct jscope *s = vm_alloc(vm, sizeof *s);
    if (!s)
        return;
    s->parent = parent;
    vm->scope = s;
}

static void bind(struct jvm *vm, struct jscope *s, int32_t name, struct jv v)
{
    for (int32_t i = 0; i < s->n; i++) {
        if (s->b[i].name == name) {
            s->b[i].v = v;
            return;
        }
    }
    if (s->n == s->cap) {
        int32_t cap = s->cap ? 2 * s->cap : 4;
        struct jbinding *b = vm_array(vm, (size_t)cap, sizeof *b);
        if (!b)
            return;
        if (s->n)
            memcpy(b, s->b, (size_t)s->n * sizeof *b);
        s->b = b;
        s->cap = cap;
    }
    s->b[s->n++] = (struct jbinding){name, v};
}

static struct jv load(struct jvm *vm, int32_t name)
{
    for (const struct jscope *s = vm->scope; s; s = s->parent) {
        for (int32_t i = 0; i < s->n; i++) {
            if (s->b[i].name == name)
                return s->b[i].v;
        }
    }
    struct slice z = vm->t->names[name];
    const struct builtin *fn = builtin_find(vm->rows[ROWS_GLOBALS], z);
    if (fn)
        return (struct jv){.t = J_FUNC, .u.fn = fn};
    return jv_undef(vm, "'%.*s' is undefined", z.n > 100 ? 100 : (int)z.n, z.p);
}

static void store_ns(struct jvm *vm, int32_t name, int32_t attr)
{
    struct jv ns = load(vm, name), v = pop(vm),
              key = jv_view(vm, vm->t->names[attr].p, vm->t->names[attr].n);
    if (ns.t != J_NS)
        vm_fail(vm, "cannot assign attribute on non-namespace object");
    else
        jdict_put(vm, &ns.u.ns->d, key, v);
}

/* ---------------------------------------------------------------- output */

static void put_run(struct jvm *vm, struct slice s, enum jfrom from)
{
    if (s.n > vm->left.output - vm->out.n) {
        vm_fail_as(vm, PITH_RANGE, "this rendering is too long");
        return;
    }
    if (s.n)
        out_mark(vm, from);
    str_put(&vm->out, s.p, s.n);
    if (vm->out.failed)
        vm_no_memory(vm);
}

static void put(struct jvm *vm, struct slice s)
{
    uint8_t *marks = NULL;
    enum jfrom from = s.n ? text_from(vm, s.p, &marks) : FROM_TEMPLATE;
    if (!marks) {
        put_run(vm, s, from);
        return;
    }
    for (size_t i = 0, n; i < s.n && !vm->failed; i += n) {
        for (n = 1; i + n < s.n && marks[i + n] == marks[i];)
            n++;
        put_run(vm, (struct slice){s.p + i, n}, (enum jfrom)marks[i]);
    }
}

static void begin_capture(struct jvm *vm)
{
    size_t cap = (size_t)vm->cap_captures;
    size_t *p = grow(vm, vm->captures, (size_t)vm->n_captures, &cap, sizeof *p);
    if (!p)
        return;
    vm->captures = p;
    vm->cap_captures = (int32_t)cap;
    p[vm->n_captures++] = vm->out.n;
}

/* ---------------------------------------------------------------- calls */

static struct jframe *push_frame(struct jvm *vm, int32_t back)
{
    if (vm->n_frames == JINJA_CALLS) {
        vm_fail(vm, "macros or loops call each other deeper than %d", JINJA_CALLS);
        return NULL;
    }
    struct jframe *f = &vm->frames[vm->n_frames++];
    *f = (struct jframe){back, vm->out.n, vm->n_loops, vm->n_captures, 0, vm->scope};
    return f;
}

static void do_return(struct jvm *vm)
{
    const struct jframe *f = &vm->frames[--vm->n_frames];
    vm->n_loops = f->n_loops;
    vm->n_captures = f->n_captures;
    vm->scope = f->scope;
    vm->pc = f->back;
    push(vm, out_take(vm, f->mark));
}

/* Enters a recursive loop's code with the iterable on the stack. */
static void enter_loop(struct jvm *vm, int32_t entry, struct jscope *scope, int depth)
{
    struct jframe *f = push_frame(vm, vm->pc + 1);
    if (!f)
        return;
    f->depth = depth;
    vm->scope = scope;
    vm->pc = entry - 1;
}

/* varargs and kwargs: what the parameters did not take. */
static void bind_rest(struct jvm *vm, const struct jproto *p, const struct jargs *args)
{
    size_t n = (size_t)p->n_params < args->n_pos ? args->n_pos - (size_t)p->n_params : 0;
    struct jdict d = {0};
    if (n && !p->uses_varargs) {
        vm_fail(vm, "macro '%.*s' takes not more than %d argument(s)", (int)p->name.n, p->name.p,
                p->n_params);
        return;
    }
    if (p->uses_varargs) {
        struct jv *v = vm_array(vm, n, sizeof *v);
        if (v && n)
            memcpy(v, args->pos + p->n_params, n * sizeof *v);
        bind(vm, vm->scope, NAME_VARARGS, jv_list(vm, J_TUPLE, v, n));
    }
    for (size_t i = 0; i < args->n_kw && !vm->failed; i++) {
        struct slice name = jv_text(args->kw[i].k);
        int known = p->uses_caller && slice_eq_z(name, "caller");
        for (int32_t k = 0; k < p->n_params && !known; k++)
            known = slice_eq(vm->t->names[p->params[k].name], name);
        if (!known && !p->uses_kwargs)
            vm_fail(vm, "macro '%.*s' takes no keyword argument '%.*s'", (int)p->name.n, p->name.p,
                    (int)name.n, name.p);
        else if (!known)
            jdict_put(vm, &d, args->kw[i].k, args->kw[i].v);
    }
    if (p->uses_kwargs)
        bind(vm, vm->scope, NAME_KWARGS, jv_dict(vm, &d));
}

static void enter_macro(struct jvm *vm, const struct jmacro *m, const struct jargs *args)
{
    const struct jproto *p = m->proto;
    if (!push_frame(vm, vm->pc + 1))
        return;
    push_scope(vm, m->scope);
    if (vm->failed)
        return;
    for (int32_t i = 0; i < p->n_params && !vm->failed; i++) {
        struct slice name = vm->t->names[p->params[i].name];
        const struct jpair *kw = args_named(args, name);
        if (kw && (size_t)i < args->n_pos)
            vm_fail(vm, "macro '%.*s' got two values for '%.*s'", (int)p->name.n, p->name.p,
                    (int)name.n, name.p);
        else if ((size_t)i < args->n_pos)
            bind(vm, vm->scope, p->params[i].name, args->pos[i]);
        else if (kw)
            bind(vm, vm->scope, p->params[i].name, kw->v);
        else if (!p->params[i].dflt)
            bind(vm, vm->scope, p->params[i].name,
                 jv_undef(vm, "parameter '%.*s' was not provided", name.n > 100 ? 100 : (int)name.n,
                          name.p));
    }
    if (p->uses_caller) {
        const struct jpair *kw = args_named(args, SLICE("caller"));
        bind(vm, vm->scope, NAME_CALLER, kw ? kw->v : jv_undef(vm, "No caller defined"));
    }
    bind_rest(vm, p, args);
    vm->pc = m->entry - 1;
}

static int star_args(struct jvm *vm, struct jv v, struct jv *pos, size_t *n, size_t cap)
{
    struct jlist l;
    if (!jv_items(vm, v, &l))
        return 0;
    if (l.n > cap - *n) {
        vm_fail(vm, "too many arguments");
        return 0;
    }
    if (l.n)
        memcpy(pos + *n, l.v, l.n * sizeof *pos);
    *n += l.n;
    return 1;
}

static int starstar_args(struct jvm *vm, struct jv v, struct jdict *kw)
{
    if (v.t != J_DICT)
        vm_fail(vm, "argument after ** must be a mapping, not %s", jv_type_name(v));
    for (size_t i = 0; !vm->failed && i < v.u.d->n; i++) {
        if (v.u.d->p[i].k.t != J_STR)
            vm_fail(vm, "keywords must be strings");
        else
            jdict_put(vm, kw, v.u.d->p[i].k, v.u.d->p[i].v);
    }
    return !vm->failed;
}

/* Takes the arguments of a site off the stack. */
static int take_args(struct jvm *vm, const struct jsite *site, struct jargs *args)
{
    enum { STAR_MAX = 256 };
    size_t n_site = (size_t)site->n;
    *args = (struct jargs){0};
    if (n_site > vm->n_stack)
        return 0;
    const struct jv *from = vm->stack + (vm->n_stack - n_site);
    vm->n_stack -= n_site;
    if (site->plain) { /* they stay where they are: nothing is pushed before the call is made */
        args->pos = from;
        args->n_pos = n_site;
        return 1;
    }
    struct jdict kw = {0};
    struct jv *pos = vm_array(vm, n_site + STAR_MAX, sizeof *pos);
    for (int32_t i = 0; pos && i < site->n && !vm->failed; i++) {
        const struct jarg *a = &site->arg[i];
        if (a->kind == ARG_POS)
            pos[args->n_pos++] = from[i];
        else if (a->kind == ARG_NAME)
            jdict_put(vm, &kw, jv_view(vm, a->name.p, a->name.n), from[i]);
        else if (a->kind == ARG_STAR)
            star_args(vm, from[i], pos, &args->n_pos, n_site + STAR_MAX);
        else
            starstar_args(vm, from[i], &kw);
    }
    args->pos = pos;
    args->kw = kw.p;
    args->n_kw = kw.n;
    return !vm->failed;
}

static void do_call(struct jvm *vm, const struct jsite *site)
{
    struct jargs args;
    if (!take_args(vm, site, &args))
        return;
    struct jv callee = pop(vm);
    if (callee.t == J_MACRO) {
        enter_macro(vm, callee.u.m, &args);
    } else if (callee.t == J_LOOP) {
        if (callee.u.loop->entry < 0 || args.n_pos != 1) {
            vm_fail(vm, "The loop must have the 'recursive' marker to be called recursively.");
            return;
        }
        struct jv items = args.pos[0];
        push(vm, items);
        enter_loop(vm, callee.u.loop->entry, callee.u.loop->scope, callee.u.loop->depth + 1);
    } else {
        push(vm, value_call(vm, callee, &args));
    }
}

static void do_filter(struct jvm *vm, const struct jsite *site)
{
    struct jargs args;
    const struct builtin *fn = filter_find(vm, site->name);
    if (!take_args(vm, site, &args))
        return;
    struct jv v = pop(vm);
    if (!fn)
        vm_fail(vm, "No filter named '%.*s'.", (int)site->name.n, site->name.p);
    else
        push(vm, builtin_call(vm, fn, v, &args));
}

static void do_test(struct jvm *vm, const struct jsite *site, int negated)
{
    struct jargs args;
    if (!take_args(vm, site, &args))
        return;
    int r = test_run_named(vm, site->name, pop(vm), &args);
    push(vm, jv_bool(r == !negated));
}

/* ---------------------------------------------------------------- loops */

static struct jloop *push_loop(struct jvm *vm)
{
    size_t cap = (size_t)vm->cap_loops;
    struct jloop **p = grow(vm, vm->loops, (size_t)vm->n_loops, &cap, sizeof *p);
    struct jloop *l = vm_alloc(vm, sizeof *l);
    if (!p || !l || !jv_items(vm, pop(vm), &l->items))
        return NULL;
    vm->loops = p;
    vm->cap_loops = (int32_t)cap;
    l->entry = -1;
    p[vm->n_loops++] = l;
    return l;
}

static struct jloop *top_loop(struct jvm *vm)
{
    return vm->loops[vm->n_loops - 1];
}

static void do_for(struct jvm *vm, const struct op *op)
{
    struct jloop *l = push_loop(vm);
    if (!l || !op->b)
        return;
    l->entry = vm->pc + op->a;
    l->scope = vm->scope;
    l->depth = vm->frames[vm->n_frames - 1].depth;
}

static void for_next(struct jvm *vm, const struct op *op)
{
    struct jloop *l = top_loop(vm);
    if (l->at >= l->items.n) {
        vm->pc += op->a - 1;
        return;
    }
    struct jv item = l->items.v[l->at++];
    push_scope(vm, vm->scope);
    if (vm->failed)
        return;
    bind(vm, vm->scope, NAME_LOOP, (struct jv){.t = J_LOOP, .u.loop = l});
    push(vm, item);
}

static void select_begin(struct jvm *vm)
{
    struct jloop *l = push_loop(vm);
    if (l)
        l->kept = vm_array(vm, l->items.n, sizeof *l->kept);
    push_scope(vm, vm->scope);
}

static void select_next(struct jvm *vm, const struct op *op)
{
    struct jloop *l = top_loop(vm);
    if (l->at < l->items.n) {
        push(vm, l->items.v[l->at++]);
        return;
    }
    vm->scope = vm->scope->parent;
    vm->n_loops--;
    push(vm, jv_list(vm, J_LIST, l->kept, l->n_kept));
    vm->pc += op->a - 1;
}

static void select_keep(struct jvm *vm)
{
    struct jloop *l = top_loop(vm);
    if (jv_truth(pop(vm)))
        l->kept[l->n_kept++] = l->items.v[l->at - 1];
}

static void unpack(struct jvm *vm, size_t n)
{
    struct jlist l;
    if (!jv_items(vm, pop(vm), &l))
        return;
    if (l.n != n) {
        if (l.n < n)
            vm_fail(vm, "not enough values to unpack (expected %zu, got %zu)", n, l.n);
        else
            vm_fail(vm, "too many values to unpack (expected %zu)", n);
        return;
    }
    while (n-- > 0)
        push(vm, l.v[n]);
}

/* ---------------------------------------------------------------- the machine */

/* A list or tuple of the n values on top. */
static void make_list(struct jvm *vm, enum jtype t, size_t n)
{
    struct jv *v = vm_array(vm, n, sizeof *v);
    if (!v || n > vm->n_stack)
        return;
    vm->n_stack -= n;
    if (n)
        memcpy(v, vm->stack + vm->n_stack, n * sizeof *v);
    push(vm, jv_list(vm, t, v, n));
}

static void make_dict(struct jvm *vm, size_t n)
{
    struct jdict d = {0};
    const struct jv *v = vm->stack + (vm->n_stack - 2 * n);
    for (size_t i = 0; i < n; i++)
        jdict_put(vm, &d, v[2 * i], v[2 * i + 1]);
    vm->n_stack -= 2 * n;
    push(vm, jv_dict(vm, &d));
}

static void make_macro(struct jvm *vm, const struct op *op)
{
    struct jmacro *m = vm_alloc(vm, sizeof *m);
    if (!m)
        return;
    *m = (struct jmacro){&vm->t->protos[op->a], vm->pc + op->b, vm->scope};
    push(vm, (struct jv){.t = J_MACRO, .u.m = m});
}

static void print(struct jvm *vm, struct jv v)
{
    struct jv s = jv_to_str(vm, v);
    if (!vm->failed)
        put(vm, jv_text(s));
}

static void do_slice(struct jvm *vm)
{
    struct jv step = pop(vm), to = pop(vm), from = pop(vm), v = pop(vm);
    push(vm, op_slice(vm, v, from, to, step));
}

static void do_default(struct jvm *vm, const struct op *op)
{
    for (int32_t i = 0; i < vm->scope->n; i++) {
        if (vm->scope->b[i].name == op->b) {
            vm->pc += op->a - 1;
            return;
        }
    }
}

/* Ops that change what runs next, or what names mean. */
static void step_flow(struct jvm *vm, const struct op *op)
{
    switch (op->code) {
    case JOP_SCOPE:
        push_scope(vm, vm->scope);
        break;
    case JOP_UNSCOPE:
        vm->scope = vm->scope->parent;
        if (op->a)
            top_loop(vm)->done = 1;
        break;
    case JOP_UNPACK:
        unpack(vm, (size_t)op->a);
        break;
    case JOP_FOR:
        do_for(vm, op);
        break;
    case JOP_FOR_NEXT:
        for_next(vm, op);
        break;
    case JOP_FOR_END:
        if (vm->loops[--vm->n_loops]->done)
            vm->pc += op->a - 1;
        break;
    case JOP_SELECT:
        select_begin(vm);
        break;
    case JOP_SELECT_NEXT:
        select_next(vm, op);
        break;
    case JOP_SELECT_KEEP:
        select_keep(vm);
        break;
    case JOP_CAPTURE:
        begin_capture(vm);
        break;
    case JOP_CAPTURED:
        push(vm, out_take(vm, vm->captures[--vm->n_captures]));
        break;
    case JOP_DROP_CAPTURE:
        out_take(vm, vm->captures[--vm->n_captures]);
        break;
    case JOP_MACRO:
        make_macro(vm, op);
        break;
    case JOP_DEFAULT:
        do_default(vm, op);
        break;
    case JOP_ENTER:
        enter_loop(vm, vm->pc + op->a, vm->scope, 0);
        break;
    case JOP_RETURN:
        do_return(vm);
        vm->pc--;
        break;
    default:
        break;
    }
}

static void step_binary(struct jvm *vm, enum jop code)
{
    struct jv b = pop(vm), a = pop(vm);
    push(vm, code >= JOP_EQ ? jv_bool(op_compare(vm, code, a, b)) : op_binary(vm, code, a, b));
}

static void step_stack(struct jvm *vm, const struct op *op)
{
    struct jv a, b;
    switch (op->code) {
    case JOP_NEG:
    case JOP_POS:
        push(vm, op_unary(vm, op->code, pop(vm)));
        break;
    case JOP_NOT:
        push(vm, jv_bool(!jv_truth(pop(vm))));
        break;
    case JOP_CHAIN:
        b = pop(vm), a = pop(vm);
        push(vm, b);
        push(vm, a);
        push(vm, b);
        break;
    case JOP_UNCHAIN:
        b = pop(vm);
        pop(vm);
        push(vm, b);
        break;
    case JOP_ATTR:
        push(vm, op_attr(vm, pop(vm), vm->t->names[op->a]));
        break;
    case JOP_ITEM:
        b = pop(vm), a = pop(vm);
        push(vm, op_item(vm, a, b));
        break;
    case JOP_SLICE:
        do_slice(vm);
        break;
    case JOP_LIST:
    case JOP_TUPLE:
        make_list(vm, op->code == JOP_LIST ? J_LIST : J_TUPLE, (size_t)op->a);
        break;
    case JOP_DICT:
        make_dict(vm, (size_t)op->a);
        break;
    case JOP_UNDEF:
        push(vm,
             jv_undef(
                 vm,
                 "the inline if-expression evaluated to false and no else section was defined."));
        break;
    default:
        if (op->code >= JOP_ADD && op->code <= JOP_NOT_IN)
            step_binary(vm, op->code);
        else
            step_flow(vm, op);
    }
}

static void step(struct jvm *vm, const struct op *op)
{
    switch (op->code) {
    case JOP_TEXT:
        put_run(vm, jv_text(vm->t->consts[op->a]), FROM_TEMPLATE);
        break;
    case JOP_OUT:
        print(vm, pop(vm));
        break;
    case JOP_CONST:
        push(vm, vm->t->consts[op->a]);
        break;
    case JOP_LOAD:
        push(vm, load(vm, op->a));
        break;
    case JOP_STORE:
        bind(vm, vm->scope, op->a, pop(vm));
        break;
    case JOP_STORE_NS:
        store_ns(vm, op->a, op->b);
        break;
    case JOP_POP:
        pop(vm);
        break;
    case JOP_JUMP:
        vm->pc += op->a - 1;
        break;
    case JOP_JUMP_FALSE:
        vm->pc += jv_truth(pop(vm)) ? 0 : op->a - 1;
        break;
    case JOP_AND:
    case JOP_OR:
        if (jv_truth(vm->stack[vm->n_stack - 1]) == (op->code == JOP_OR))
            vm->pc += op->a - 1;
        else
            pop(vm);
        break;
    case JOP_FILTER:
        do_filter(vm, &vm->t->sites[op->a]);
        break;
    case JOP_TEST:
        do_test(vm, &vm->t->sites[op->a], op->b);
        break;
    case JOP_CALL:
        do_call(vm, &vm->t->sites[op->a]);
        break;
    default:
        step_stack(vm, op);
    }
}

/* The variables become the outermost scope, then one for what the template sets. */
static void bind_variables(struct jvm *vm, const struct jdict *vars)
{
    push_scope(vm, NULL);
    for (int32_t i = 0; i < vm->t->n_names && !vm->failed; i++) {
        const struct jv *v = jdict_getz(vm, vars, vm->t->names[i]);
        if (v)
            bind(vm, vm->scope, i, *v);
    }
    push_scope(vm, vm->scope);
}

void vm_run(struct jvm *vm, const struct jdict *vars)
{
    bind_variables(vm, vars);
    push(vm, jv_none()); /* from here on there is a stack */
    pop(vm);
    while (!vm->failed && vm_charge(vm, 1)) {
        const struct op *op = &vm->t->code[vm->pc];
        if (op->code == JOP_END)
            break;
        step(vm, op);
        if (!vm->failed) /* a message says where it stopped */
            vm->pc++;
    }
}
