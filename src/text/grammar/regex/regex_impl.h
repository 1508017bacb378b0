/* regex_impl.h -- the inside of regex.c and its parts: regex_product.c, regex_watch.c. */
#ifndef PITH_TEXT_REGEX_IMPL_H
#define PITH_TEXT_REGEX_IMPL_H

#include "base/map.h"
#include "text/grammar/regex/regex.h"

/* Kinds of edges behind those of rules.h, in the automaton over characters alone. */
enum {
    EDGE_SET = 100,
    EDGE_BEGIN,
    EDGE_END,
    EDGE_AHEAD /* value: the part that is watched from here on */
};
enum { REGEX_PARTS = 32 };

struct regex_level {
    struct rules_mark mark;
    uint32_t start, end, before;
    int ahead; /* a look-ahead: 1, its opposite: -1 */
};
/* What is watched beside the pattern: a look-ahead, or one more pattern. */
struct regex_part {
    uint32_t start, end;
    int negative, searched; /* must not be found; may begin anywhere, else where it is asked for */
};
struct regex {
    struct rules *r; /* where failures go */
    struct rules nfa;
    struct slice pattern;
    const char *p, *end;
    struct charset *set; /* of EDGE_SET edges */
    uint32_t n_sets, cap_sets;
    uint32_t at;
    int depth, whole, n_open_aheads; /* whole: nothing may stand around it */
    struct regex_level level[REGEX_DEPTH + 1];
    struct rules_piece main; /* the pattern that is read state by state */
    int main_looks;          /* it has look-aheads */
    struct regex_part part[REGEX_PARTS];
    uint32_t n_parts;
    uint32_t *first; /* edges of `nfa` by where they begin: edge[first[q]] .. edge[first[q + 1]] */
    struct rules_edge *edge;
};

int regex_refuse(struct regex *x, const char *what); /* 0 */

enum regex_result {
    REGEX_DONE,
    REGEX_EMPTY, /* written, but no string matches */
    REGEX_TOO_LARGE,
    REGEX_FAILED /* in r */
};
enum regex_result regex_product(struct regex *x, uint32_t from, uint32_t to, uint32_t min,
                                uint32_t max, int as_json);
/* Whether a piece of `nfa` is found at the begin of a text alone. */
int regex_is_anchored(const struct regex *x, struct rules_piece piece, uint8_t *seen,
                      uint32_t *stack);

/* A part while it is read: a deterministic state, made when it is first reached. */
struct watch_state {
    uint32_t part, n;
    const uint32_t *q;  /* [n] of the nfa; q_before: may begin here */
    uint32_t *next;     /* [n_classes] state + 1, 0: not yet known */
    int ends;           /* found, if the text ends here */
};
struct watch {
    struct regex *x;
    uint32_t n_classes, n_ranges; /* characters that all sets treat alike */
    uint32_t *begin, *class_of;   /* [n_ranges] the first character of a range, its class */
    uint8_t *in;                  /* [n_sets, n_classes] */
    uint32_t *sample;             /* [n_classes] one range of each */
    struct watch_state *state;
    uint32_t n_states, cap_states;
    struct map states, tuples; /* {part, ends, q ...} -> state; states -> tuple */
    const uint32_t **tuple;    /* {n, states in ascending order} */
    uint32_t n_tuples, cap_tuples;
    uint32_t initial[REGEX_PARTS][2]; /* by whether something was read; state + 1 */
    uint8_t *seen;                    /* [2 (nfa.n_states)] by state and whether it is closed */
    uint32_t *stack, *list, n_list;
    uint8_t anchored[REGEX_PARTS];
    int too_large;
};
enum { WATCH_NOTHING = 0, WATCH_DEAD = UINT32_MAX }; /* tuples: nothing to watch; no way on */
/* 0: no memory, or too large. Deinit is due in any case. */
int watch_init(struct watch *w, struct regex *x);
void watch_deinit(struct watch *w);
/* The tuple with one more part, from here on. begun: something was read. */
uint32_t watch_add(struct watch *w, uint32_t tuple, uint32_t part, int begun);
/* The tuple behind a character of a class. */
uint32_t watch_step(struct watch *w, uint32_t tuple, uint32_t class);
int watch_ends(const struct watch *w, uint32_t tuple); /* the text may end here */

#endif
