/* schema_impl.h -- the inside of schema.c and its parts: schema_same.c, schema_choice.c,
 * schema_number.c, schema_string.c, schema_set.c, schema_object.c,
 * schema_unique.c. */
#ifndef PITH_TEXT_SCHEMA_IMPL_H
#define PITH_TEXT_SCHEMA_IMPL_H

#include "text/jtree.h"
#include "text/grammar/schema/schema.h"

enum {
    TYPE_NULL = 1,
    TYPE_BOOL = 2,
    TYPE_INT = 4,
    TYPE_FRACTION = 8,
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64
};
enum { TYPE_NUMBER = TYPE_INT | TYPE_FRACTION, TYPE_ALL = 127 };

/* One schema of several that must all hold. skip: keywords already dealt with. */
struct part {
    const struct jtree *node;
    uint32_t skip;
};
enum {
    SKIP_ANY_OF = 1,
    SKIP_ONE_OF = 2,
    SKIP_NULLABLE = 4,
    SKIP_ALL = 15
}; /* SKIP_ALL: null has taken its place */
enum { MOST_PARTS = 64 };
struct parts {
    struct part v[MOST_PARTS];
    uint32_t n;
};

struct job {
    struct job *next;
    uint32_t rule, n;
    struct part v[];
};

enum shared_rule {
    RULE_SPACE,
    RULE_VALUE,
    RULE_OBJECT,
    RULE_ARRAY,
    RULE_STRING,
    RULE_NUMBER,
    RULE_INTEGER,
    N_SHARED
};
/* What all schemas of a set say (schema_same.c), whatever form their values have. */
struct says {
    struct map ids; /* what a part says -> its number */
    uint32_t n_ids, cap_first;
    const struct jtree *
        *first_of;     /* [cap_first] by `plain`: the first schema that says it, NULL: none yet */
    struct map places; /* what is where in long lists and objects -> its number in `at` */
    const struct jtree **at;
    uint32_t n_at, cap_at;
    uint32_t whole; /* number of the schema that "$ref" is about now, by its text; 0: not made */
};
/* The rules of one form. */
struct schema {
    struct rules *r;
    const struct jtree *root, *null; /* null: the schema of null alone */
    int in_order;                    /* members come as they stand in the schema */
    enum schema_form form;
    struct map jobs;                 /* parts -> rule */
    struct map rests;                /* rule of a value -> rule of what stands behind its key */
    struct map wholes;               /* rule of a value -> the same with space behind it */
    struct says *says;
    uint64_t n_combined; /* branches written beside other choices that hold as well */
    struct job *first, **last;
    uint32_t shared[N_SHARED]; /* rule + 1, 0: not made */
};

/* First failure wins; the message begins with the place of the node, as a JSON pointer. */
void schema_refuse(struct schema *s, const struct jtree *at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Tells a place that nothing satisfies: kept for the message, where no text is left in the end. */
void schema_empty(struct schema *s, const struct jtree *at, const char *why);
/* The rule of what satisfies all parts. */
uint32_t schema_rule(struct schema *s, const struct parts *p);
uint32_t schema_rule_of(struct schema *s, const struct jtree *node);
/* Whether nothing satisfies it, by its form: false, or "not" of all. */
int schema_is_false(const struct jtree *node);
/* One more part; true is none, one that is there is not put again. */
void schema_put(struct schema *s, struct parts *p, const struct jtree *node, uint32_t skip);
/* Numbers all parts of a schema: jtree's says, plain and value; those of a root once. */
void schema_number_nodes(struct schema *s, struct jtree *root);
void schema_says_init(struct says *says);
void schema_says_deinit(struct says *says);
const struct jtree *schema_first(struct schema *s,
                                 const struct jtree *node); /* that says the same */
/* A member of an object by its key, or a string in a list; NULL: none. At once, also in long ones.
 */
const struct jtree *schema_find(struct schema *s, const struct jtree *in, struct slice name);
int schema_holds(struct schema *s, const struct jtree *list,
                 const struct jtree *value); /* an equal value */
int schema_type_of(const struct jtree *value);
int schema_nullable(struct schema *s,
                    const struct jtree *node);                /* OpenAPI's: null is a value, too */
int schema_types(struct schema *s, const struct jtree *node); /* by its `type` alone */
/* Refuses branches of which two may match one value. */
void schema_one_of(struct schema *s, const struct jtree *list);
/* Those of enum or const (`values`) that fit all parts. */
void schema_values(struct schema *s, const struct parts *p, const struct jtree *values, int types,
                   uint32_t from, uint32_t to);
uint32_t schema_space(struct schema *s, uint32_t from); /* the state behind white space */
/* null, true or false. */
void schema_word(struct schema *s, uint32_t from, uint32_t to, enum jtree_kind word);
/* Appends a string as Python may write it as well, 'text'; 0: the form has no other way. */
int schema_put_single(const struct schema *s, struct str *out, struct slice text);
/* Appends a key or a value as the form has it. */
void schema_put_key(const struct schema *s, struct str *out, struct slice name);
void schema_put_value(const struct schema *s, struct str *out, const struct jtree *v);
/* A count given by a keyword in any of the parts: the largest (or smallest) one; `none` when there
 * is none. */
uint32_t schema_count(struct schema *s, const struct parts *p, const char *key, int largest,
                      uint32_t none);
int schema_refers(struct schema *s, const struct jtree *node,
                  const struct jtree **to); /* follows $ref; 0: there is none */

/* Each writes one type between two states. */
void schema_number(struct schema *s, const struct parts *p, int integer, uint32_t from,
                   uint32_t to);
int schema_knows_format(const struct jtree *node); /* its `format` says something about strings */
void schema_string(struct schema *s, const struct parts *p, uint32_t from, uint32_t to);
void schema_object(struct schema *s, const struct parts *p, uint32_t from, uint32_t to);
void schema_array(struct schema *s, const struct parts *p, uint32_t from, uint32_t to);
/* The same for an array whose items must differ. 0: nothing asks for that. */
int schema_unique(struct schema *s, const struct parts *p, uint32_t min, uint32_t max,
                  uint32_t from, uint32_t to);
/* Strings, each of which has one text alone. 0: there is no such way. */
int schema_string_once(struct schema *s, const struct parts *p, uint32_t from, uint32_t to);
/* A rule that the caller writes; 0: it has failed. */
uint32_t schema_named_rule(struct schema *s, struct slice name);
/* With room for n of its rules, which `,` and `close` are put between and behind. */
struct rules_set *schema_new_set(struct schema *s, uint32_t n, const char *close);

/* Whether the value lies in minimum .. exclusiveMaximum of all parts. */
int schema_number_fits(struct schema *s, const struct parts *p, const struct jtree *value);
/* -1, 0, 1 as a is less, equal, more than b; both JSON numbers. 2: too long to compare. */
int schema_compare(struct slice a, struct slice b);

#endif
