/* automaton.h -- the tables that run a grammar: one deterministic automaton over bytes whose states
 * may also call.
 *
 *     row of a state               the state behind a byte, 0: none. Nearly all read one range of
 *         bytes, which the row holds; the others have a
 *                                  line of next[line][class of byte]
 *     calls of a state             {start of the called rule, state to go on with when it ends (0:
 *         this rule ends there too)}
 *     tokens of a state            {which tokens, state behind}
 *
 * Each rule is deterministic by itself. Small rules are copied into their callers and are gone; a
 * rule that recurses, or that holds an unbounded loop over many characters (a JSON string), stays
 * one, so that what is computed for its states serves all callers. Every state can reach the end of
 * its rule: whatever is alive can be completed. */
#ifndef PITH_TEXT_AUTOMATON_H
#define PITH_TEXT_AUTOMATON_H

#include "text/grammar/rules.h"

enum {
    STATE_END,
    STATE_OPEN,
    STATE_FIRST
}; /* what lies below a whole text; unknown (stacks.h); the first real state */
enum {
    STATE_FINAL = 1, /* its rule may end here */
    STATE_CALLS = 2,
    STATE_MOVES = 4, /* has bytes or tokens of its own */
    STATE_TOKENS = 8,
};
struct automaton_call {
    uint32_t start, back;
};
struct automaton_token {
    uint32_t kind, value, to; /* EDGE_TOKEN, EDGE_OTHER, EDGE_SILENT */
};
struct automaton_row {
    uint32_t to;       /* by lo..hi; by several ranges: its line */
    uint8_t lo, width; /* width: hi - lo */
    uint8_t flags, several;
};
struct automaton_set {                       /* rules.h; start of each rule */
    uint32_t n, member, comma, close, extra; /* extra 0: none */
    uint32_t min, max;
    int differ;
};
struct automaton_member {
    uint32_t start;
    int must;
};
struct automaton_name { /* of a rule, for messages */
    uint32_t base;      /* its first state */
    char text[28];
};
struct automaton {
    struct automaton_name
        *name; /* [n_names] of rules that call themselves, in the order of their states */
    uint32_t n_names;
    uint32_t n_states, n_classes, n_lines, start;
    uint8_t class_of[256];
    struct automaton_row *row;    /* [n_states] */
    uint32_t *next;               /* [n_lines, n_classes] */
    uint32_t *call_at, *token_at; /* [n_states + 1] */
    struct automaton_call *call;
    struct automaton_token *token;
    struct automaton_set *set; /* [n_sets]; a call that starts at n_states + i is one of set i */
    struct automaton_member *member; /* of set i from set[i].member on */
    uint32_t n_sets, n_differ; /* n_differ: of them, such as remember texts */
    uint32_t apart[RULES_APART], n_apart; /* tokens that no EDGE_SILENT takes */
};
static inline int automaton_apart(const struct automaton *a, uint32_t id)
{
    uint32_t i = 0;
    while (i < a->n_apart && a->apart[i] != id)
        i++;
    return i < a->n_apart;
}
static inline uint8_t automaton_flags(const struct automaton *a, uint32_t state)
{
    return a->row[state].flags;
}
/* The state behind a byte, 0: none. */
static inline uint32_t automaton_next(const struct automaton *a, uint32_t state, uint8_t byte)
{
    const struct automaton_row *r = &a->row[state];
    if (r->several)
        return a->next[(size_t)r->to * a->n_classes + a->class_of[byte]];
    return (uint8_t)(byte - r->lo) <= r->width ? r->to : 0;
}
/* From rules whose texts are what `root` matches. Refused, with the rule's name: a rule without
 * definition, left recursion also behind rules that may be empty, a root that never ends, and what
 * needs too many states. On failure *a is empty. */
pith_status automaton_init(struct automaton *a, struct rules *r, uint32_t root,
                           struct pith_error *err);
void automaton_deinit(struct automaton *a);
uint64_t automaton_bytes(const struct automaton *a);
const char *
automaton_rule(const struct automaton *a,
               uint32_t state);         /* the recursive rule it may be of; NULL: there is none */
void set_sort(uint32_t *v, uint32_t n); /* ascending */

/* What analysis knows of rules (analysis.c). */
struct analysis {
    uint32_t *out_at, *out;     /* [n_states + 1], [n_edges]: edges by `from` */
    uint32_t *calls_at, *calls; /* [n_rules + 1], calls of each rule, as edges */
    uint8_t *live;              /* [n_states] the end of the rule can be reached */
    uint32_t *order;            /* [n_rules] rules reached from the root, callees first */
    uint8_t *recursive;         /* [n_rules] */
    uint32_t *circle; /* [n_rules] the same for rules that call each other; these are neighbours in
                         `order` */
    uint32_t *uses;   /* [n_rules] calls from rules that are reached */
    uint32_t n_order;
};
pith_status analysis_init(struct analysis *a, const struct rules *r, uint32_t root,
                          struct pith_error *err);
void analysis_deinit(struct analysis *a);
/* Rewrites recursive rules that need no stack (regular.c); how many. The analysis is that of
 * before. A failure is in r. */
uint32_t regular_rules(struct rules *r, const struct analysis *a);

#endif
