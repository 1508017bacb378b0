/* jtree.h -- JSON text (RFC 8259) as a read-only tree in an arena. Strings are unescaped, numbers
 * stay the text that was written, members keep their order. Refused: more than JTREE_DEPTH levels,
 * a key twice in one object, half a surrogate pair, bytes that are not UTF-8, anything behind the
 * value. Reading does not recurse. */
#ifndef PITH_TEXT_JTREE_H
#define PITH_TEXT_JTREE_H

#include "base/arena.h"
#include "base/str.h"

enum { JTREE_DEPTH = 128 };
enum jtree_kind {
    JTREE_NULL,
    JTREE_FALSE,
    JTREE_TRUE,
    JTREE_NUMBER,
    JTREE_STRING,
    JTREE_ARRAY,
    JTREE_OBJECT
};

struct jtree {
    enum jtree_kind kind;
    uint32_t n;        /* items or members */
    struct slice key;  /* of a member of an object */
    struct slice text; /* string or number */
    struct jtree *first, *next, *parent;
    uint32_t says, plain, value; /* the reader's own, 0 at first (schema_same.c) */
};

/* The text may go away afterwards. NULL with *err, which names the line. */
struct jtree *jtree_read(struct arena *a, const char *p, size_t n, struct pith_error *err);
struct jtree *jtree_get(const struct jtree *object,
                        const char *key); /* NULL: no object or no such member */
struct jtree *jtree_find(const struct jtree *object, struct slice key);
const char *jtree_kind_name(const struct jtree *v);     /* "an array" */
void jtree_write(struct str *s, const struct jtree *v); /* without white space */

#endif
