/* jinja_impl.h -- what the files of the template language share: values, code, the machine that
 * runs it.
 *
 *     source --jinja_lex--> tokens --jinja_expr, jinja_stmt--> code --jinja_vm--> text
 *
 * Which file knows which, the lowest first:
 *
 *     run     memory, steps, failures          emit    what the compiler writes
 *     mark    where a byte comes from          expr    expressions
 *     build   texts in the making              stmt    statements
 *     text    what Python's str does
 *     value   values, their order, repr
 *     call    built-in functions, by name      time, json
 *     item    v.name, v[key], v[a:b]
 *     format  % and .format                    str, object    methods
 *     ops     operators
 *     test    what may stand behind "is"       filter, seq, global
 *     vm      runs code
 *     jinja   a template, a rendering
 *
 * Functions that templates find by name are rows; the rendering has the tables (vm->rows), so that
 * a filter can call a test without knowing its file.
 *
 * Values are 16 bytes, a type and a number or a pointer into the rendering's arena. Strings, dicts
 * and what the request gives never change, so they are shared freely; namespaces, loops, cyclers,
 * joiners, iterators and the lists that the template makes have state (struct jlist). Nothing is
 * freed before the rendering ends. Where a text comes from, the template or a value, is told by
 * where its bytes lie (jinja_mark.c). Functions that can fail leave vm->failed set (first failure
 * kept) and return an unset value; the machine looks after every op. */
#ifndef PITH_TEXT_JINJA_IMPL_H
#define PITH_TEXT_JINJA_IMPL_H

#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "text/jinja/jinja.h"
#include "text/spans.h"

enum {
    JINJA_NESTING = 64, /* of brackets and blocks in a template: the parser recurses */
    JINJA_DEPTH = 100,  /* of a value that is printed, compared or read: these recurse too */
    JINJA_CALLS = 256,  /* macros and recursive loops that are open at once */
    JINJA_PARAMS = 12,  /* most parameters of a built-in function */
};

/* ---------------------------------------------------------------- values (jinja_value.c) */

enum jtype {
    J_UNSET, /* no value: an argument not given, or a failure */
    J_UNDEF,
    J_NONE,
    J_BOOL,
    J_INT,
    J_BIG, /* an integer outside int64: its decimal digits; printed and compared, not computed with
            */
    J_FLOAT,
    J_STR,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_RANGE,
    J_VIEW, /* d.keys(), d.values(), d.items() */
    J_ITER, /* a generator: read once */
    J_NS,
    J_MACRO,
    J_LOOP,
    J_METHOD,
    J_FUNC,
    J_CYCLER,
    J_JOINER,
    J_N_TYPES
};

enum jfrom { FROM_TEMPLATE = 1, FROM_VALUE = 2, FROM_BOTH = 3 }; /* where a text comes from */

struct jv {
    enum jtype t;
    /* J_STR: marked safe, what is added to it gets escaped; J_VIEW: 0 keys, 1 values, 2 items;
     * numbers: given by the request, or computed from such a one */
    int safe;
    union {
        int64_t i; /* J_BOOL, J_INT */
        double f;
        struct jstr *s;        /* J_STR, J_BIG */
        struct jlist *l;       /* J_LIST, J_TUPLE */
        const struct jdict *d; /* J_DICT, J_VIEW */
        const struct jrange *r;
        const struct jundef *u;
        struct jiter *it; /* J_ITER, J_CYCLER, J_JOINER */
        struct jns *ns;
        const struct jmacro *m;
        struct jloop *loop;
        const struct jmethod *method;
        const struct builtin *fn;
    } u;
};

struct jstr {
    const char *p; /* valid UTF-8, not terminated */
    size_t n, n_cp;
    struct jbuf *buf; /* where p lies, when its end may grow */
};
/* A list that the template made grows behind its items, as long as it has room; any other change
 * gives it another array. So an array, up to the n that it was seen with, never changes: lists,
 * loops and what walks over items share arrays. */
struct jlist {
    struct jv *v;
    size_t n, cap; /* cap: 0 where v may be another's */
    int made;      /* by the template: its methods may change it */
};
struct jpair {
    struct jv k, v;
    uint64_t hash;
};
struct jdict { /* in order of insertion */
    struct jpair *p;
    size_t n, cap;
    uint32_t *index; /* open addressing over 2 * cap entries, n + 1; NULL while small */
    size_t n_index;
};
struct jrange {
    int64_t from, to, step;
};
struct jundef {
    struct slice what; /* the message when it is used */
};
struct jiter {
    struct jlist list;
    size_t at;
};
struct jns {
    struct jdict d;
};
struct jmethod {
    struct jv self;
    const struct builtin *fn;
};

struct jbuf;
struct jvm;
struct jv jv_undef(struct jvm *vm, const char *fmt, ...) PRINTF_LIKE(2, 3);
struct jv jv_str(struct jvm *vm, const char *p, size_t n); /* copies */
struct jv jv_view(struct jvm *vm, const char *p,
                  size_t n); /* bytes that live as long as the rendering */
/* The same at the end of a buffer that may grow. */
struct jv jv_piece(struct jvm *vm, const char *p, size_t n, struct jbuf *buf);
struct jv jv_strz(struct jvm *vm, const char *z); /* the template's: a literal */
/* Take v. jv_list: the template's; jv_fixed: a list that stays as it is. */
struct jv jv_list(struct jvm *vm, enum jtype t, struct jv *v, size_t n);
struct jv jv_fixed(struct jvm *vm, struct jv *v, size_t n);
struct jv jv_iter(struct jvm *vm, struct jv *v, size_t n);
struct jv jv_pair(struct jvm *vm, struct jv a, struct jv b);   /* a tuple */
struct jv jv_concat(struct jvm *vm, struct jv a, struct jv b); /* two strings */
static inline struct jv jv_none(void)
{
    return (struct jv){.t = J_NONE};
}
static inline struct jv jv_bool(int b)
{
    return (struct jv){.t = J_BOOL, .u.i = b != 0};
}
static inline struct jv jv_int(int64_t i)
{
    return (struct jv){.t = J_INT, .u.i = i};
}
static inline struct jv jv_float(double f)
{
    return (struct jv){.t = J_FLOAT, .u.f = f};
}
static inline struct slice jv_text(struct jv v)
{
    return (struct slice){v.u.s->p, v.u.s->n};
}
static inline struct jv jv_given(struct jv v, int given) /* a number, marked as the request's */
{
    v.safe |= given && v.t >= J_BOOL && v.t <= J_FLOAT && v.t != J_BIG;
    return v;
}
static inline enum jfrom jv_from(struct jv v) /* of a number's digits, a truth's word */
{
    return v.safe ? FROM_VALUE : FROM_TEMPLATE;
}
static inline int jv_is_int(struct jv v) /* as Python, where a bool is an int */
{
    return v.t == J_INT || v.t == J_BOOL;
}
static inline int jv_is_list(struct jv v)
{
    return v.t == J_LIST || v.t == J_TUPLE;
}
const char *jv_type_name(struct jv v);                    /* Python's: "str", "NoneType" */
struct slice jv_type_object(struct jvm *vm, struct jv v); /* in messages: "str object", "None" */
int jv_truth(struct jv v);
int64_t jv_len(struct jv v); /* -1: has none */
int jv_equal(struct jvm *vm, struct jv a, struct jv b);
/* -1, 0, 1; 2 when floats are unordered; fails for what has no order. */
int jv_order(struct jvm *vm, struct jv a, struct jv b, const char *op);
int jv_hash(struct jvm *vm, struct jv v, uint64_t *hash); /* 0 and failure when it has none */
/* Items of anything that can be iterated over (an iterator is used up). 0 and failure otherwise. */
int jv_items(struct jvm *vm, struct jv v, struct jlist *out);
int jv_contains(struct jvm *vm, struct jv box, struct jv item);
struct jv jv_to_str(struct jvm *vm, struct jv v); /* Python's str() */
struct jv jv_use_undef(struct jvm *vm, struct jv v); /* fails: an undefined value is used */
/* Sorts n values, stable, by the keys (NULL: by themselves). 0 and failure when two have no order.
 */
int sort_values(struct jvm *vm, struct jv *v, struct jv *keys, size_t n, int reverse);

/* A dict in the making. 0 and failure on an unhashable key or without memory. */
int jdict_put(struct jvm *vm, struct jdict *d, struct jv k, struct jv v);
struct jv *jdict_get(struct jvm *vm, const struct jdict *d, struct jv k);
struct jv *jdict_getz(struct jvm *vm, const struct jdict *d, struct slice name);
struct jv jv_dict(struct jvm *vm, const struct jdict *d); /* copies the struct */

/* ---------------------------------------------------------------- where texts come from
 * (jinja_mark.c) */

struct jregion {
    const char *p;
    size_t n;
    enum jfrom from;
    uint8_t *marks; /* [n] of FROM_BOTH, each FROM_TEMPLATE or FROM_VALUE */
};
struct jroom { /* of a region that is open */
    char *p;
    size_t n, next; /* next: how large its next one gets */
};
struct jtexts {
    struct jregion *v;   /* sorted */
    size_t n, cap, last; /* last: met last */
    struct jroom open[FROM_BOTH + 1];
    struct slice own; /* chunk of the template's arena met last */
};
struct jrun { /* text from `at` on, up to the next run */
    size_t at;
    enum jfrom from; /* never both */
};
struct jruns {
    struct jrun *v;
    size_t n, cap;
};
/* Memory for a text of n > 0 bytes. NULL and failure without any. */
char *text_alloc(struct jvm *vm, size_t n, enum jfrom from);
int text_region(struct jvm *vm, const char *p, size_t n,
                enum jfrom from); /* bytes that lie elsewhere */
/* Of the bytes at p and behind; *marks: one for each where they come from both, else NULL. */
enum jfrom text_from(struct jvm *vm, const char *p, uint8_t **marks);
enum jfrom byte_from(struct jvm *vm, const char *p); /* of one: never both */
int text_has_value(struct jvm *vm, struct slice s);
/* Copies n bytes of this origin; to_marks NULL: they go where all are of it. */
void text_copy(char *to, uint8_t *to_marks, const char *p, size_t n, enum jfrom from,
               const uint8_t *marks);

/* ---------------------------------------------------------------- texts in the making
 * (jinja_build.c) */

struct jbuild { /* in the rendering's arena; sticky through vm->failed */
    struct jvm *vm;
    char *p;
    size_t n, cap;
    enum jfrom from;
    uint8_t *marks; /* NULL: all is of one origin */
};
void jb_put(struct jbuild *b, const char *p,
            size_t n);                         /* keeps the origin: p is no buffer of C code */
void jb_putz(struct jbuild *b, const char *z); /* the template's: a literal */
void jb_from(struct jbuild *b, enum jfrom from, const uint8_t *marks, const char *p, size_t n);
/* Of the same origin as the byte at source. */
void jb_like(struct jbuild *b, const char *source, const char *p, size_t n);
void jb_fill(struct jbuild *b, char c, size_t n);
void jb_cp(struct jbuild *b, enum jfrom from, uint32_t cp);
/* At most 511 bytes. */
void jb_printf(struct jbuild *b, enum jfrom from, const char *fmt, ...) PRINTF_LIKE(3, 4);
struct jv jb_value(struct jbuild *b);
static inline void jb_slice(struct jbuild *b, struct slice s)
{
    jb_put(b, s.p, s.n);
}
static inline struct slice jb_text(const struct jbuild *b)
{
    return (struct slice){b->n ? b->p : "", b->n};
}
void jb_escape(struct jbuild *b, struct slice s); /* & < > ' " as HTML */
void out_mark(struct jvm *vm, enum jfrom from);  /* what is put into vm->out next */
struct jv out_take(struct jvm *vm, size_t mark); /* the text behind the mark becomes a value */
int out_values(const struct jvm *vm, size_t offset, struct spans *values); /* 0: no memory */
/* jinja_value.c: */
void jb_str(struct jbuild *b, struct jv v);             /* str() of any value */
void jb_repr(struct jbuild *b, struct jv v, int depth); /* repr() */
void jb_float(struct jbuild *b, enum jfrom from,
              double f); /* repr: the shortest text that reads back */

/* ---------------------------------------------------------------- code */

enum jop {
    JOP_TEXT,
    JOP_OUT,
    JOP_CONST,
    JOP_LOAD,
    JOP_STORE,
    JOP_STORE_NS,
    JOP_POP,
    JOP_JUMP,
    JOP_JUMP_FALSE,
    JOP_AND,
    JOP_OR, /* AND, OR: jump and keep, or pop */
    JOP_ADD,
    JOP_SUB,
    JOP_MUL,
    JOP_DIV,
    JOP_FLOORDIV,
    JOP_MOD,
    JOP_POW,
    JOP_NEG,
    JOP_POS,
    JOP_NOT,
    JOP_CONCAT,
    JOP_EQ,
    JOP_NE,
    JOP_LT,
    JOP_LE,
    JOP_GT,
    JOP_GE,
    JOP_IN,
    JOP_NOT_IN,
    JOP_CHAIN,
    JOP_UNCHAIN, /* a b -> b a b; a b -> b */
    JOP_ATTR,
    JOP_ITEM,
    JOP_SLICE,
    JOP_LIST,
    JOP_TUPLE,
    JOP_DICT,
    JOP_UNDEF,
    JOP_FILTER,
    JOP_TEST,
    JOP_CALL,
    JOP_SCOPE,
    JOP_UNSCOPE,
    JOP_UNPACK,
    JOP_FOR,
    JOP_FOR_NEXT,
    JOP_FOR_END,
    JOP_SELECT,
    JOP_SELECT_NEXT,
    JOP_SELECT_KEEP,
    JOP_CAPTURE,
    JOP_CAPTURED,
    JOP_DROP_CAPTURE,
    JOP_MACRO,
    JOP_DEFAULT,
    JOP_ENTER,
    JOP_RETURN,
    JOP_END
};
struct op {
    enum jop code;
    int32_t a, b;
    uint32_t at; /* offset in the source, for messages */
};

/* How a call gives its arguments: in this order they lie on the stack. */
enum jarg_kind { ARG_POS, ARG_NAME, ARG_STAR, ARG_STARSTAR };
struct jsite {
    struct slice name;     /* of the filter or test */
    int32_t n, cap, plain; /* plain: all of kind ARG_POS */
    struct jarg {
        enum jarg_kind kind;
        struct slice name;
    } * arg;
};
struct jproto { /* a macro as written */
    struct slice name;
    int32_t n_params, cap_params;
    struct jparam {
        int32_t name;
        size_t dflt; /* token of its default, 0 when it has none */
    } * params;
    int uses_varargs, uses_kwargs, uses_caller;
};

struct jinja {
    struct arena arena;
    struct slice source;
    struct op *code;
    int32_t n_code;
    struct jv *consts;
    struct slice *names;
    int32_t n_names;
    struct jsite *sites;
    struct jproto *protos;
    struct jdefault {
        struct jdefault *next;
        struct slice name, text;
    } * defaults;
    struct jkept *kept;
};
/* What others keep with a template, which is the same all its life otherwise: jinja_keep. */
struct jkept {
    _Atomic(const void *) note;
    void (*drop)(const void *);
};
/* Names whose numbers are fixed. */
enum { NAME_LOOP, NAME_CALLER, NAME_VARARGS, NAME_KWARGS, N_FIXED_NAMES };

/* ---------------------------------------------------------------- the machine (jinja_vm.c) */

struct jscope {
    struct jscope *parent;
    int32_t n, cap;
    struct jbinding {
        int32_t name;
        struct jv v;
    } * b;
};
struct jmacro {
    const struct jproto *proto;
    int32_t entry;
    struct jscope *scope;
};
struct jloop {
    struct jlist items;
    size_t at;     /* items begun; the current one is at - 1 */
    int32_t entry; /* of a recursive loop's code, else -1 */
    struct jscope *scope;
    int depth, done; /* done: a round reached its end */
    struct jv changed;
    struct jv *kept; /* JOP_SELECT */
    size_t n_kept;
};
struct jframe {
    int32_t back;
    size_t mark; /* where the output of this call begins */
    int32_t n_loops, n_captures;
    int depth; /* of a recursive loop */
    struct jscope *scope;
};

/* The tables of functions that a rendering has. */
enum jrows {
    ROWS_FILTERS,
    ROWS_SEQ_FILTERS,
    ROWS_TESTS,
    ROWS_GLOBALS,
    ROWS_STR, /* methods of texts; of sequences, numbers, loops; of lists that change; of dicts */
    ROWS_SEQ,
    ROWS_LIST,
    ROWS_DICT,
    N_ROWS
};
struct jvm {
    const struct jinja *t;
    const struct builtin *const *rows; /* [N_ROWS] */
    struct arena arena;
    struct str out;
    struct jruns runs; /* of out */
    struct jtexts texts;
    int marked; /* where its text comes from is asked for: no value may be a format */
    struct jinja_limits left;
    struct pith_error *err;
    pith_status failed;
    int32_t pc;
    struct jscope *scope;
    struct jv *stack;
    size_t n_stack, cap_stack;
    struct jloop **loops;
    int32_t n_loops, cap_loops;
    size_t *captures;
    int32_t n_captures, cap_captures;
    struct jframe frames[JINJA_CALLS];
    int n_frames;
    struct slice now;
};

void vm_run(struct jvm *vm, const struct jdict *vars);

/* ---------------------------------------------------------------- memory, steps, failures
 * (jinja_run.c) */

void *vm_alloc(struct jvm *vm, size_t bytes); /* zeroed; NULL and failure past the limit */
void *vm_array(struct jvm *vm, size_t n, size_t item);
int vm_charge(struct jvm *vm, uint64_t steps); /* 0 and failure past the limit */
int vm_tick(struct jvm *vm, uint64_t steps); /* the same of the thread's work alone (base/work.h) */
struct jv vm_fail(struct jvm *vm, const char *fmt, ...)
    PRINTF_LIKE(2, 3); /* an error of the template, here */
struct jv vm_fail_as(struct jvm *vm, pith_status st, const char *what);
struct jv vm_no_memory(struct jvm *vm);
/* "line 3, column 7: " and the line's text, for every message. */
void jinja_where(struct slice source, size_t at, char *buf, size_t cap);

/* ---------------------------------------------------------------- built-in functions
 * (jinja_call.c) */

struct jargs {
    const struct jv *pos;
    size_t n_pos;
    const struct jpair *kw; /* keys are strings */
    size_t n_kw;
};
struct jcall {
    struct jv arg[JINJA_PARAMS];
    struct jargs rest; /* what the parameters did not take (params ends in '*') */
};
struct builtin {
    const char *name;
    struct jv (*fn)(struct jvm *vm, struct jcall *c);
    const char *params; /* "s width? *": names, ? optional, * takes the rest */
};
extern const struct builtin jinja_filters[], jinja_seq_filters[], jinja_tests[], jinja_globals[];
extern const struct builtin jinja_str_methods[], jinja_seq_methods[], jinja_list_methods[],
    jinja_dict_methods[];
const struct builtin *builtin_find(const struct builtin *rows, struct slice name);
const struct builtin *filter_find(const struct jvm *vm, struct slice name);
const struct jpair *args_named(const struct jargs *args, struct slice name); /* NULL: none */
/* self: the first argument, or unset */
struct jv builtin_call(struct jvm *vm, const struct builtin *fn, struct jv self,
                       const struct jargs *args);
/* An integer argument, dflt when it is not given or None. 0 and failure otherwise. */
int arg_int(struct jvm *vm, struct jv v, int64_t dflt, int64_t *out);
struct jv value_call(struct jvm *vm, struct jv callee,
                     const struct jargs *args); /* all but macros and loops */
int test_run_named(struct jvm *vm, struct slice name, struct jv v,
                   const struct jargs *args); /* -1: failed */

/* ---------------------------------------------------------------- operators (jinja_ops.c,
 * jinja_item.c) */

struct jv op_binary(struct jvm *vm, enum jop op, struct jv a, struct jv b);
struct jv op_unary(struct jvm *vm, enum jop op, struct jv a);
int op_compare(struct jvm *vm, enum jop op, struct jv a, struct jv b);
struct jv op_attr(struct jvm *vm, struct jv v, struct slice name); /* v.name */
struct jv op_item(struct jvm *vm, struct jv v, struct jv key);     /* v[key] */
struct jv op_slice(struct jvm *vm, struct jv v, struct jv from, struct jv to, struct jv step);

/* ---------------------------------------------------------------- texts (jinja_text.c,
 * jinja_format.c, jinja_json.c, jinja_time.c) */

int cp_is_space(uint32_t cp); /* str.isspace() */
size_t str_n_cp(struct jstr *s); /* counts once */
size_t str_offset(struct jstr *s, size_t cp_index); /* byte offset of a code point */
struct slice slice_strip(struct slice s, const struct slice *chars, int left, int right);
size_t slice_find(struct slice s, struct slice what, size_t from); /* SIZE_MAX: not there */
enum text_case { CASE_UPPER, CASE_LOWER, CASE_CAPITAL, CASE_TITLE, CASE_SWAP };
struct jv text_case(struct jvm *vm, struct slice s, enum text_case how);
struct jv text_replace(struct jvm *vm, struct slice s, struct slice old, struct slice fresh,
                       int64_t count);
int parse_int(struct slice s, int base, struct jv *out,
              struct jvm *vm); /* Python's int(text, base) */
int parse_float(struct slice s, double *out);
struct jv float_to_int(struct jvm *vm, double f);
int jv_number(struct jv v, double *f); /* of int, bool and float */
struct jv format_percent(struct jvm *vm, struct jv fmt, struct jv args);
struct jv format_braces(struct jvm *vm, struct slice fmt, const struct jargs *args);
struct jv json_read(struct jvm *vm, const char *p, size_t n,
                    const char **why); /* why: set on failure */
struct json_style {
    int ascii, sort;
    struct slice comma, colon;
    int has_indent;
    struct slice indent;
};
void json_write(struct jbuild *b, struct jv v, const struct json_style *style, int depth);
struct jv time_format(struct jvm *vm, struct slice fmt);

/* ---------------------------------------------------------------- compiling (jinja_lex.c,
 * jinja_emit.c, jinja_expr.c, jinja_stmt.c) */

enum jtok {
    TOK_TEXT,
    TOK_BLOCK,
    TOK_BLOCK_END,
    TOK_VAR,
    TOK_VAR_END,
    TOK_NAME,
    TOK_STR,
    TOK_INT,
    TOK_FLOAT,
    TOK_OP,
    TOK_END
};
struct token {
    enum jtok t;
    struct slice s; /* text, name, operator, digits; a string's content, escapes resolved */
    uint32_t at;
};
struct tokens {
    struct token *v;
    size_t n, cap;
};
/* source: newlines normalised. 0 with *err. */
int jinja_lex(struct arena *arena, struct slice source, struct tokens *out, struct pith_error *err);

enum jctx { CTX_LOOP, CTX_SCOPE, CTX_CAPTURE, CTX_MACRO };
struct compiler {
    struct jinja *t;
    struct tokens toks;
    size_t i; /* next token */
    struct pith_error *err;
    int failed, depth;
    int32_t cap_code, n_consts, cap_consts, cap_names, n_sites, cap_sites, n_protos, cap_protos;
    struct map names; /* of t->names: where in it */
    struct context {
        enum jctx kind;
        int32_t breaks, next; /* CTX_LOOP: chain of jumps to its end (op.a is the one before, -1),
                                 its FOR_NEXT */
        int32_t proto;        /* CTX_MACRO */
    } ctx[4 * JINJA_NESTING];
    int n_ctx;
};
void compile_fail(struct compiler *c, pith_status st, size_t at, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
const struct token *tok(const struct compiler *c);
int tok_is(const struct compiler *c, enum jtok t, const char *s); /* s NULL: any */
int tok_skip(struct compiler *c, enum jtok t, const char *s);
void tok_expect(struct compiler *c, enum jtok t, const char *s);
int compile_enter(struct compiler *c); /* one level deeper; 0 when too deep; pairs with depth-- */
/* Room for one more item in an array of the template's arena. NULL and failure without memory. */
void *compile_grow(struct compiler *c, void *p, int32_t n, int32_t *cap, size_t item);
int32_t emit(struct compiler *c, enum jop code, int32_t a, int32_t b,
             size_t at);                                         /* index of the op */
void emit_jump_to(struct compiler *c, int32_t from, int32_t to); /* op `from` jumps to `to` */
int32_t compile_name(struct compiler *c, struct slice s);
int32_t compile_const(struct compiler *c, struct jv v);
int32_t compile_text(struct compiler *c, struct slice s);
void compile_expr(struct compiler *c);               /* with the conditional */
void compile_expr_no_if(struct compiler *c);         /* of a for */
void compile_tuple(struct compiler *c, int with_if); /* a, b or one expression */
void compile_filters(struct compiler *c,
                     int bare); /* | f | g after a value; bare: the first without its | */
int32_t compile_site(struct compiler *c, struct slice name);
void site_add(struct compiler *c, int32_t site, enum jarg_kind kind, struct slice name);
void compile_template(struct compiler *c);

#endif
