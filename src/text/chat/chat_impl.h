/* chat_impl.h -- what the files of chat_parse.h share. */
#ifndef PITH_TEXT_CHAT_IMPL_H
#define PITH_TEXT_CHAT_IMPL_H

#include "base/arena.h"
#include "text/jtree.h"
#include "text/chat/chat_parse.h"

enum { CHAT_CALLS = 6, CHAT_DROPS = 8, CHAT_NEEDS = 4, CHAT_NAME_MAX = 256 };
enum { CHAT_BYTES_A_STEP = 16 }; /* that are looked at, of base/work.h */

struct chat_format {
    const char *name;
    const char *needs[CHAT_NEEDS];
    const char *think, *answer; /* around reasoning; NULL: the family has none */
    const char *last, *next;    /* before and behind `answer` where it is cut short; NULL */
    const char *drops[CHAT_DROPS];
    const char *calls[CHAT_CALLS];
    const char *trigger, *name_key, *args_key; /* of the grammar; trigger NULL: none */
    int many;
    void *own; /* of a derived one: what is to be freed */
};

/* ---------------------------------------------------------------- chat_value.c */

enum scan_result { SCAN_MORE, SCAN_END, SCAN_NO, SCAN_STOP };

enum { STOPS_AT_BRACKETS = 1, STOPS_AT_TEXTS };
/* Where a JSON array or object ends, without its whole text at once: structure is exact, numbers
 * and words are left to jtree_read. */
struct json_scan {
    uint64_t objects[2]; /* bit d: level d is an object */
    uint8_t state, depth, in_key, n_hex;
    uint8_t stops; /* SCAN_STOP behind brackets of objects, and where a text begins that is no key;
                      0: nowhere */
};
/* Looks at p[*i..n) and moves *i: behind the closing bracket, to the end, or to what cannot be
 * JSON. */
enum scan_result json_scan(struct json_scan *s, const char *p, size_t n, size_t *i);

/* Appends what closes all that is open. */
void json_close(const struct json_scan *s, struct str *out);

/* The same for Python's brackets and quotes. */
struct py_scan {
    uint32_t depth;
    char quote;
    uint8_t escaped;
};
/* And for Gemma's objects, {key:<|"|>text<|"|>}. */
enum scan_result gemma_scan(struct py_scan *s, const char *p, size_t n, size_t *i);
enum scan_result py_scan(struct py_scan *s, const char *p, size_t n, size_t *i);

/* What some families write around their parts. */
#define GEMMA_QUOTE "<|\"|>"
#define ELEMENT     "]<]minimax[>["
#define CDATA_OPEN  "<![CDATA["
#define CDATA_CLOSE "]]>"

/* ---------------------------------------------------------------- chat_literal.c */

enum { LITERAL_DEPTH = 32 };
/* Calls as Python writes them, or a value of Gemma's, in text that grows, as JSON: what is certain
 * comes at once, of strings each character, of numbers and words all at their end. It lets more
 * through than the reader of whole literals. */
struct literal_scan {
    uint8_t state, depth, quote;
    uint8_t gemma; /* else calls */
    uint8_t list, comma, key, raw;
    char close[LITERAL_DEPTH + 2];
    size_t seen, blank;  /* bytes of a word, and of the space behind a name */
    size_t name, n_name; /* of a call, in p */
};
/* Moves *i in p[0..n) and puts to out. SCAN_STOP: the arguments of a call begin, its "{" is not
 * put; SCAN_NO: it is none; SCAN_END: all is over. */
enum scan_result literal_scan(struct literal_scan *l, const char *p, size_t n, size_t *i,
                              struct str *out);
/* The text of a JSON string behind its quote, as it is meant. SCAN_END: behind the other quote. */
enum scan_result literal_text(const char *p, size_t n, size_t *i, struct str *out);

struct chat_call {
    struct slice name, id;
    struct slice args; /* n 0: none were given */
    int begins, ends;  /* not both: a part of a call that is told while it comes, with more of its
                          arguments */
};
typedef pith_status (*chat_take)(void *ctx, const struct chat_call *call);

/* Calls from JSON (one object, or an array of them) or from Python's syntax: 1 all were whole
 * (n_calls of them, in out[0..n)), 0 some was not. out is the arena's. */
int chat_calls_of_json(struct arena *a, struct slice text, struct chat_call **out, uint32_t *n);
int chat_calls_of_python(struct arena *a, struct slice text, struct chat_call **out, uint32_t *n);
int chat_name_char(char c);                  /* of a name in Python */
struct slice chat_called(struct slice name); /* f of f.call */
int chat_put_word(struct str *out, struct slice text); /* a number or a word as JSON; 0: neither */
/* A backslash and all that belongs to it; 0: it means nothing. */
int chat_escape(struct str *text, struct slice s);
/* An object's text as it is passed on; 0: not an object. */
int chat_object(struct arena *a, struct slice text, struct slice *out);
int chat_gemma(struct arena *a, struct slice text,
               struct slice *out); /* the same from Gemma's form */

struct chat_tool; /* chat_tools.c */
/* Appends an argument's value as JSON: by `type` as the text named it (empty: not at all), else by
 * the tool's schema, else by its looks. */
void chat_put_value(struct str *out, struct slice text, struct slice type,
                    const struct chat_tool *tool, struct slice key);
/* Whether what chat_put_value makes of a value that begins so is a string for sure, its text as it
 * stands. */
int chat_is_string(struct slice text, struct slice type, const struct chat_tool *tool,
                   struct slice key);
/* A value written as nested elements: looks from *i on (0 and *depth 0 at first) for the close of
 * `key`; then the value is [0, *i) and the close *n bytes long. */
enum scan_result chat_scan_elements(struct slice text, struct slice key, uint32_t *depth, size_t *i,
                                    size_t *n);
void chat_put_elements(struct str *out, struct slice text, const struct chat_tool *tool,
                       struct slice key);

/* ---------------------------------------------------------------- chat_tools.c */

/* The schema of a tool's arguments, NULL: it has none; what a "$ref" in it leads to, NULL: nowhere.
 */
struct jtree *chat_parameters(const struct jtree *tool);
/* What a tool without one is called with: nothing. */
#define CHAT_NO_PARAMETERS "{\"type\":\"object\",\"properties\":{}}"
const struct jtree *chat_schema_at(const struct jtree *root, const struct jtree *ref);
/* Bits of enum jtree_kind that a schema inside `root` allows by its type, through "$ref" and one
 * level of anyOf and oneOf; 0: it does not say. */
unsigned chat_kinds(const struct jtree *root, const struct jtree *schema);

/* The tools of an array, whose texts have to outlive them. NULL: no memory, or the work at hand may
 * not go on. */
struct chat_tools;
struct chat_tools *chat_tools_new(const struct jtree *list);
void chat_tools_free(struct chat_tools *t);
const struct chat_tool *chat_tool(const struct chat_tools *tools, struct slice name);
unsigned chat_argument_kinds(const struct chat_tool *tool, struct slice key); /* as chat_kinds */

/* ---------------------------------------------------------------- chat_match.c */

enum match_result { MATCH_MORE, MATCH_DONE, MATCH_NO, MATCH_NOMEM };

/* One pattern against text that grows. Offsets are from the text's begin, which must stay the same.
 */
struct chat_match {
    const char *op; /* the pattern from here on is still to match */
    size_t at;      /* and the text from here on */
    size_t kept;    /* end of the last whole call in the text; 0: none yet */
    size_t reach;   /* how far a failure had come */
    size_t scan;    /* bytes behind `at` that the op has looked at */
    int only_known; /* a tool's name must be one of tools */
    struct json_scan json;
    struct py_scan py;
    char name[CHAT_NAME_MAX], id[CHAT_NAME_MAX];
    uint16_t n_name, n_id;
    size_t key_at, n_key, type_at, n_type; /* in the text */
    uint32_t depth;                        /* of elements */
    int cut;                               /* the text ended before a closing part of the pattern */
    struct str args;        /* as JSON, while they come and are not told as they stand */
    size_t n_args;          /* of these, told */
    struct literal_scan lit;
    int partial;     /* calls are told while they come; one that has begun stays one */
    int open, fresh; /* the level of the arguments that are being told; nothing of them has been */
    int value;       /* enum value_kind of the argument that has begun */
    int in_text;     /* the arguments are a JSON string */
    int reads;       /* lit reads along */
    uint32_t n_told; /* calls of the op that have begun */
    int misses;      /* objects that opened since, and began none */
    int item_told;   /* this element of a list of calls has been */
    size_t told;     /* bytes behind `at` */
};
void chat_match_init(struct chat_match *m, const char *pattern);
void chat_match_deinit(struct chat_match *m);
/* final: no more text comes. Whole calls go to `take`. */
enum match_result chat_match_run(struct chat_match *m, struct slice text, int final,
                                 const struct chat_tools *tools, chat_take take, void *ctx);
size_t chat_literal(const char *op); /* length of the literal that stands there */
/* How a pattern's begin fits the text: SCAN_END it does, SCAN_MORE it may yet. */
enum scan_result chat_starts(const char *op, struct slice text, int final);

#endif
