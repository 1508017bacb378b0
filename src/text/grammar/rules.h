/* rules.h -- a grammar while it is made: rules that are nondeterministic automata over bytes and
 * call each other.
 *
 *     rule  root: state 0 --'{'--> 2 --call pair--> 3 --'}'--> 1        (0 its start, 1 its end)
 *     rule  pair: ...
 *
 * GBNF, regular expressions and JSON Schema all write edges here; automaton.c makes the tables that
 * run. An edge is nothing (EPS), a range of bytes, a call of a rule, or a whole token. Code points
 * are written as the bytes of their UTF-8, so nothing behind this knows about characters. A *piece*
 * is what was written since a mark: all its states and edges are later than the mark, which is what
 * makes it repeatable by copying.
 * Failure is sticky: the first one stays in r->err, later calls do little, one check at the end. */
#ifndef PITH_TEXT_RULES_H
#define PITH_TEXT_RULES_H

#include "base/arena.h"
#include "base/map.h"
#include "base/str.h"
#include "text/grammar/charset.h"

enum { RULES_APART = 16 };

enum rules_edge_kind {
    EDGE_EPS,
    EDGE_BYTES,  /* lo..hi */
    EDGE_CALL,   /* value: rule */
    EDGE_TOKEN,  /* value: the id of the token */
    EDGE_OTHER,  /* any token that does not end the generation, but not this id */
    EDGE_SILENT, /* any token without text that does not end the generation, but neither this id nor
                    one of rules.apart */
};
struct rules_edge {
    uint32_t from, to, value;
    uint8_t kind, lo, hi;
};
/* Some of n rules in any order, none twice: one at first, then `comma` and another one, `close` at
 * the end. At most RULES_SET. differ: one rule that comes again and again, with another text each
 * time; it calls none. */
struct rules_set {
    int differ;
    uint32_t n, comma, close, extra; /* extra: a rule that may come any number of times between
                                        them; RULES_NONE: there is none */
    uint32_t min, max;               /* how many */
    struct rules_choice {
        uint32_t rule;
        int must;
    } v[];
};
struct rule {
    struct slice name;
    uint32_t start, end;
    int defined;
    const struct rules_set
        *set; /* what the rule is; its states only say what it calls. NULL: they are the rule */
};
struct rules {
    struct pith_error err; /* code PITH_OK: well so far */
    struct arena arena;    /* names */
    struct map names;
    struct rule *rule;
    struct rules_edge *edge;
    uint32_t n_rules, cap_rules, n_edges, cap_edges, n_states;
    uint64_t steps;       /* taken so far */
    int draft;            /* nothing is repeated: what is read is only looked at */
    int flat;             /* repeats by copies alone: nobody can follow calls */
    uint32_t apart[RULES_APART], n_apart; /* tokens that are named wherever they may come */
    struct slice writing; /* the rule at hand, for the names of parts of it */
    char empty[160];      /* the first place of a schema that nothing satisfies, and why; or "" */
    struct str unkept;    /* what a schema says of values that is not held: a line each */
};
struct rules_mark {
    uint32_t states, edges;
};
struct rules_piece {
    uint32_t start, end;
};

enum { RULES_SET = 64, RULES_NONE = 0x7FFFFFFF };
#define RULES_SET_OVER "any order of over 64 members" /* of `unkept` */
enum {
    RULES_MAX_STATES = 1 << 20,
    RULES_MAX_EDGES = 1 << 21,
    RULES_MAX = 1 << 17,
    RULES_ENDLESS = 0x7FFFFFFF,
    RULES_MAX_STEPS = 1 << 27
};

void rules_init(struct rules *r);
void rules_deinit(struct rules *r);
/* First failure wins; returns its status. */
pith_status rules_fail(struct rules *r, pith_status st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static inline int rules_ok(const struct rules *r)
{
    return r->err.code == PITH_OK;
}

/* One more line of `unkept`, unless it is there, or there are many. */
void rules_unkept(struct rules *r, const char *keyword, struct slice value);

/* Counts steps of the writing. 0: too many, or nobody waits any more; the failure is in r. */
int rules_spend(struct rules *r, uint64_t steps);

/* A new rule with a start and an end. Its name (copied) is for messages and rules_find; names may
 * repeat, the first is found. */
uint32_t rules_new(struct rules *r, struct slice name);
int rules_find(const struct rules *r, struct slice name, uint32_t *rule); /* 1 found */

uint32_t rules_state(struct rules *r);
struct rules_mark rules_mark(const struct rules *r);
void rules_edge(struct rules *r, uint32_t from, uint32_t to, enum rules_edge_kind kind,
                uint32_t value);
void rules_bytes(struct rules *r, uint32_t from, uint32_t to, uint8_t lo, uint8_t hi);
uint32_t rules_text(struct rules *r, uint32_t from, const char *p,
                    size_t n); /* the bytes one after the other; the state behind them */
uint32_t rules_call(struct rules *r, uint32_t from, uint32_t rule); /* the state behind it */
/* Any text up to the first place where `mark` (ASCII: the text is UTF-8) stands, and that; returns
 * the state behind it. *first (NULL allowed): of mark.n states, one for each begin of it that was
 * just read. */
uint32_t rules_until(struct rules *r, uint32_t from, struct slice mark, uint32_t *first);
/* How much of the begin of `mark` stands at the end of n bytes of it and this byte; mark.n: all. */
size_t rules_overlap(struct slice mark, size_t n, uint8_t byte);
/* Characters of a sorted set. as_json: as they may stand inside a JSON string, plain or escaped. */
void rules_chars(struct rules *r, uint32_t from, uint32_t to, const struct charset *set,
                 int as_json);
/* The piece min to max (RULES_ENDLESS: any) times; it was written since the mark. Few copies are
 * copies, many are rules that call each other. */
struct rules_piece rules_repeat(struct rules *r, struct rules_mark mark, struct rules_piece piece,
                                uint32_t min, uint32_t max);
/* The same with a text behind it. */
struct rules_piece rules_repeat_to(struct rules *r, struct rules_mark mark,
                                   struct rules_piece piece, uint32_t min, uint32_t max,
                                   struct slice close);

/* A rule of the set, which is the caller's and lies in r->arena. */
uint32_t rules_any_order(struct rules *r, struct slice name, const struct rules_set *set);
/* So many blanks and line ends at most, or none; the state behind them. */
uint32_t rules_blanks(struct rules *r, uint32_t from, int most);

#endif
