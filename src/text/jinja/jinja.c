/* jinja.c -- a template from its text, and one rendering: see jinja.h. */
#include <stdatomic.h>
#include "base/utf8.h"
#include "text/jinja/jinja_impl.h"

/* ---------------------------------------------------------------- compiling */

/* Newlines of any kind become one, the last one goes. */
static struct slice normalise(struct arena *a, const char *text, size_t n)
{
    char *to = arena_alloc(a, n + 1);
    size_t used = 0;
    for (size_t i = 0; to && i < n; i++) {
        if (text[i] == '\r' && i + 1 < n && text[i + 1] == '\n')
            continue;
        to[used++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (used && to[used - 1] == '\n')
        used--;
    return (struct slice){to ? to : "", used};
}

struct jinja *jinja_new(const char *text, size_t n, struct pith_error *err)
{
    struct pith_error local;
    err = err ? err : &local;
    error_clear(err);
    struct {
        struct jinja t;
        struct jkept kept;
    } *both = mem_zalloc(sizeof *both, PITH_MEM_META);
    struct jinja *t = both ? &both->t : NULL;
    struct compiler *c = mem_zalloc(sizeof *c, PITH_MEM_SCRATCH);
    if (t) {
        arena_init(&t->arena, PITH_MEM_META);
        t->kept = &both->kept;
    }
    if (c)
        map_init(&c->names, PITH_MEM_SCRATCH);
    if (!t || !c) {
        error_set(err, PITH_NOMEM, "template: out of memory");
    } else if (n > JINJA_SOURCE_MOST) {
        error_set(err, PITH_RANGE, "template: it has %zu bytes, wanted at most %d", n,
                  JINJA_SOURCE_MOST);
    } else if (!utf8_valid(text, n)) {
        error_set(err, PITH_FORMAT, "template: it is not valid UTF-8");
    } else {
        c->t = t;
        c->err = err;
        void *locale = c_locale_enter();
        t->source = normalise(&t->arena, text, n);
        if (jinja_lex(&t->arena, t->source, &c->toks, err))
            compile_template(c);
        c_locale_leave(locale);
        if (!arena_ok(&t->arena))
            error_set(err, PITH_NOMEM, "template: out of memory");
    }
    if (c)
        map_deinit(&c->names);
    mem_free(c);
    if (err->code == PITH_OK)
        return t;
    jinja_free(t);
    return NULL;
}

void jinja_free(struct jinja *t)
{
    if (!t)
        return;
    const void *note = atomic_load(&t->kept->note);
    if (note)
        t->kept->drop(note);
    arena_deinit(&t->arena);
    mem_free(t);
}

const void *jinja_note(const struct jinja *t)
{
    return atomic_load(&t->kept->note);
}

int jinja_keep(const struct jinja *t, const void *note, void (*drop)(const void *))
{
    const void *none = NULL;
    if (!atomic_compare_exchange_strong(&t->kept->note, &none, note))
        return 0;
    t->kept->drop = drop; /* read when the template is freed, by whoever has it alone then */
    return 1;
}

struct slice jinja_source(const struct jinja *t)
{
    return t->source;
}

pith_status jinja_define(struct jinja *t, const char *name, struct slice text,
                         struct pith_error *err)
{
    struct jdefault *d = arena_alloc(&t->arena, sizeof *d);
    char *to = arena_strndup(&t->arena, text.p, text.n);
    if (!d || !to)
        return error_set(err, PITH_NOMEM, "template: out of memory");
    *d = (struct jdefault){t->defaults, slice_of(name), {to, text.n}};
    t->defaults = d;
    return PITH_OK;
}

/* ---------------------------------------------------------------- rendering */

static const struct builtin *const rows[N_ROWS] = {
    [ROWS_FILTERS] = jinja_filters, [ROWS_SEQ_FILTERS] = jinja_seq_filters,
    [ROWS_TESTS] = jinja_tests,     [ROWS_GLOBALS] = jinja_globals,
    [ROWS_STR] = jinja_str_methods, [ROWS_SEQ] = jinja_seq_methods,
    [ROWS_LIST] = jinja_list_methods, [ROWS_DICT] = jinja_dict_methods};

static void put_default(struct jvm *vm, struct jdict *vars, struct slice name, struct jv v)
{
    if (!jdict_getz(vm, vars, name))
        jdict_put(vm, vars, jv_view(vm, name.p, name.n), v);
}

/* A string becomes the template's. */
static void own(struct jvm *vm, struct jv *v)
{
    struct jbuild b = {.vm = vm};
    if (v->t != J_STR)
        return;
    jb_from(&b, FROM_TEMPLATE, NULL, v->u.s->p, v->u.s->n);
    *v = jb_value(&b);
}

/* Templates write markers around roles, and some inside of one: "<|" + role + "|>". */
static void own_roles(struct jvm *vm, const struct jlist *messages)
{
    static const char *const roles[] = {"system",   "user",      "assistant", "tool",
                                        "function", "developer", "ipython",   "model"};
    for (size_t i = 0; i < messages->n && !vm->failed; i++) {
        const struct jv m = messages->v[i];
        struct jv *role = m.t == J_DICT ? jdict_getz(vm, m.u.d, SLICE("role")) : NULL;
        for (size_t k = 0; role && role->t == J_STR && k < sizeof roles / sizeof *roles; k++) {
            if (!slice_eq_z(jv_text(*role), roles[k]))
                continue;
            own(vm, role);
            break;
        }
    }
}

/* Whether a template has a variable (or a member) of this name. */
static int has_name(const struct jinja *t, const char *name)
{
    for (int32_t i = 0; i < (int32_t)t->n_names; i++)
        if (slice_eq_z(t->names[i], name))
            return 1;
    return 0;
}

/* The functions of the tools as a text, as json.dumps(functions, indent=4) writes it. */
static struct jv functions_text(struct jvm *vm, struct jv tools)
{
    const struct json_style style = {.ascii = 1,
                                     .has_indent = 1,
                                     .indent = SLICE("    "),
                                     .comma = SLICE(","),
                                     .colon = SLICE(": ")};
    size_t n = jv_is_list(tools) ? tools.u.l->n : 0;
    struct jv *v = vm_array(vm, n, sizeof *v);
    struct jbuild b = {.vm = vm};
    for (size_t i = 0; v && i < n; i++) {
        const struct jv *fn = tools.u.l->v[i].t == J_DICT
                                  ? jdict_getz(vm, tools.u.l->v[i].u.d, SLICE("function"))
                                  : NULL;
        v[i] = fn ? *fn : tools.u.l->v[i];
    }
    if (!vm->failed)
        json_write(&b, jv_list(vm, J_LIST, v, n), &style, 0);
    return vm->failed ? (struct jv){0} : jb_value(&b);
}

/* What some templates (Firefunction 2) read besides, and those who use them make themselves. A day
 * without a time, so that a conversation's beginning stays the same. */
static void put_older(struct jvm *vm, struct jdict *vars)
{
    const struct jv *tools = jdict_getz(vm, vars, SLICE("tools"));
    if (tools && has_name(vm->t, "functions") && !jdict_getz(vm, vars, SLICE("functions")))
        put_default(vm, vars, SLICE("functions"), functions_text(vm, *tools));
    if (!vm->failed && has_name(vm->t, "datetime") && !jdict_getz(vm, vars, SLICE("datetime")))
        put_default(vm, vars, SLICE("datetime"), time_format(vm, SLICE("%Y-%m-%d")));
}

/* The variables: the object's but "now", then what it leaves out. */
static void read_variables(struct jvm *vm, const char *json, size_t n, struct jdict *vars)
{
    const char *why = NULL;
    if (n)
        text_region(vm, json, n, FROM_VALUE);
    struct jv v = json_read(vm, json, n, &why);
    if (!vm->failed && v.t != J_DICT)
        why = "wanted an object";
    if (why || vm->failed) {
        pith_status st = vm->failed && vm->failed != PITH_FORMAT ? vm->failed : PITH_FORMAT;
        vm->failed = st;
        error_set(vm->err, st, "the template's variables are no JSON object: %s",
                  why ? why : "out of memory");
        return;
    }
    for (size_t i = 0; i < v.u.d->n; i++) {
        struct jpair *p = &v.u.d->p[i];
        if (slice_eq_z(jv_text(p->k), "bos_token") || slice_eq_z(jv_text(p->k), "eos_token"))
            own(vm, &p->v);
        else if (slice_eq_z(jv_text(p->k), "messages") && jv_is_list(p->v))
            own_roles(vm, p->v.u.l);
        if (slice_eq_z(jv_text(p->k), "now") && p->v.t == J_STR)
            vm->now = jv_text(p->v);
        else
            jdict_put(vm, vars, p->k, p->v);
    }
    for (const struct jdefault *d = vm->t->defaults; d; d = d->next)
        put_default(vm, vars, d->name, jv_view(vm, d->text.p, d->text.n));
    put_default(vm, vars, SLICE("messages"), jv_none());
    put_default(vm, vars, SLICE("tools"), jv_none());
    put_default(vm, vars, SLICE("documents"), jv_none());
    put_default(vm, vars, SLICE("add_generation_prompt"), jv_bool(0));
    if (!vm->failed)
        put_older(vm, vars);
}

pith_status jinja_render(const struct jinja *t, const char *json, size_t n,
                         const struct jinja_limits *limits, struct str *out, struct pith_error *err)
{
    return jinja_render_marked(t, json, n, limits, out, NULL, err);
}

pith_status jinja_render_marked(const struct jinja *t, const char *json, size_t n,
                                const struct jinja_limits *limits, struct str *out,
                                struct spans *values, struct pith_error *err)
{
    struct pith_error local;
    struct jdict vars = {0};
    err = err ? err : &local;
    error_clear(err);
    struct jvm *vm = mem_zalloc(sizeof *vm, PITH_MEM_SCRATCH);
    if (!vm)
        return error_set(err, PITH_NOMEM, "template: out of memory");
    vm->t = t;
    vm->rows = rows;
    vm->err = err;
    vm->marked = values != NULL;
    vm->left = limits ? *limits : (struct jinja_limits){0};
    vm->left.steps = vm->left.steps ? vm->left.steps : 20000000;
    vm->left.memory = vm->left.memory ? vm->left.memory : (uint64_t)64 << 20;
    vm->left.output = vm->left.output ? vm->left.output : (uint64_t)64 << 20;
    arena_init(&vm->arena, PITH_MEM_SCRATCH);
    str_init(&vm->out, PITH_MEM_SCRATCH);
    void *locale = c_locale_enter(); /* numbers have a point, months English names */
    read_variables(vm, json, n, &vars);
    if (!vm->failed)
        vm_run(vm, &vars);
    c_locale_leave(locale);
    if (!vm->failed &&
        (!str_reserve(out, vm->out.n) || (values && !out_values(vm, out->n, values))))
        vm->failed = error_set(err, PITH_NOMEM, "template: out of memory");
    if (!vm->failed)
        str_put(out, vm->out.p, vm->out.n);
    pith_status st = vm->failed;
    str_deinit(&vm->out);
    arena_deinit(&vm->arena);
    mem_free(vm);
    return st;
}
