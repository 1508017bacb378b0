/* grammar.c -- handles: compiling, positions, accepting. See grammar.h.
 *
 * Two locks: `busy` of stacks and masks, held while they are made, which may take long; `list` of
 * the handles and their positions, held for moments. Who needs both takes busy first. */
#include "text/grammar/grammar.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "text/grammar/calls.h"
#include "text/grammar/gbnf.h"
#include "text/grammar/masks.h"
#include "text/grammar/regex/regex.h"
#include "text/grammar/schema/schema.h"
#include "text/grammar/without.h"

struct grammar_core {
    pthread_mutex_t busy, list;
    int refs;
    struct automaton automaton;
    struct stacks stacks;
    struct masks masks;
    const struct vocab *vocab;
    void (*release)(void *owner);
    void *owner;
    uint32_t start; /* position of an empty text */
    uint32_t keep_at,
        keep_more; /* pairs in the stacks, and states of sets, past which unused ones are dropped */
    struct pith_grammar *all;
    char *unkept;            /* rules.unkept */
    struct stack_pair *pair; /* a position on its way through the bytes of a token */
    uint32_t cap_pairs;
    int reading, has_stacks;
    _Atomic(uint64_t) bytes; /* as of the last use */
};

/* ---------------------------------------------------------------- compiling */

enum { MOST_BLANKS = 4 }; /* a few */

/* Anything, then the trigger, then the grammar, and all that again where it is wanted: the states
 * are how much of the trigger was just read (Knuth, Morris, Pratt). blanks: some white space may
 * stand behind it, as with `again`. */
static uint32_t put_trigger(struct rules *r, uint32_t root, struct slice trigger, int32_t token,
                            int again, int blanks)
{
    uint32_t lazy = rules_new(r, SLICE("trigger")), behind = rules_state(r), base = r->n_states;
    uint32_t n = trigger.n ? (uint32_t)trigger.n : 1;
    uint32_t *fail = arena_array(&r->arena, (size_t)n + 1, sizeof *fail);
    if (!fail || !rules_ok(r)) {
        rules_fail(r, PITH_NOMEM, "out of memory for a trigger");
        return root;
    }
    r->rule[lazy].defined = 1;
    for (uint32_t k = 1, f = 0; k < trigger.n; k++) {
        while (f && trigger.p[f] != trigger.p[k])
            f = fail[f];
        f += trigger.p[f] == trigger.p[k];
        fail[k + 1] = f;
    }
    for (uint32_t k = 0; k < n; k++)
        rules_state(r);
    rules_edge(r, r->rule[lazy].start, base, EDGE_EPS, 0);
    for (uint32_t k = 0; k < n && rules_ok(r); k++) {
        rules_edge(r, base + k, r->rule[lazy].end, EDGE_EPS, 0);
        rules_edge(r, base + k, base, EDGE_SILENT, (uint32_t)token);
        if (token >= 0)
            rules_edge(r, base + k, behind, EDGE_TOKEN, (uint32_t)token);
        for (uint32_t b = 0; b < 256; b++) {
            uint32_t f = k;
            while (trigger.n && f && (uint8_t)trigger.p[f] != b)
                f = fail[f];
            f = trigger.n && (uint8_t)trigger.p[f] == b ? f + 1 : 0;
            rules_bytes(r, base + k, trigger.n && f == n ? behind : base + f, (uint8_t)b,
                        (uint8_t)b);
        }
    }
    uint32_t from = again || blanks ? rules_blanks(r, behind, MOST_BLANKS) : behind;
    rules_edge(r, from, again ? base : r->rule[lazy].end, EDGE_CALL, root);
    return lazy;
}

/* The grammar, or a prefix and what satisfies a schema. */
static uint32_t put_other(struct rules *r, uint32_t root, const struct grammar_spec *spec)
{
    struct slice prefix = spec->or_prefix;
    uint32_t other = schema_read(r, spec->or_schema, spec->schema_order), both;
    if (!rules_ok(r))
        return root;
    both = rules_new(r, SLICE("one or the other"));
    uint32_t start = r->rule[both].start, end = r->rule[both].end;
    rules_edge(r, rules_call(r, start, root), end, EDGE_EPS, 0);
    rules_edge(r, rules_call(r, rules_text(r, start, prefix.p, prefix.n), other), end, EDGE_EPS, 0);
    r->rule[both].defined = 1;
    return both;
}

static uint32_t put_regex(struct rules *r, struct slice pattern)
{
    uint32_t root = rules_new(r, SLICE("pattern"));
    if (!rules_ok(r))
        return 0;
    r->rule[root].defined = 1;
    regex_write_whole(r, r->rule[root].start, r->rule[root].end, pattern);
    return root;
}

/* Grammars that somebody wrote, and that need a stack, are searched for what grows. */
static pith_status check_growth(const struct automaton *a, struct slice trigger, int32_t token,
                                struct pith_error *err)
{
    struct growth g;
    int why;
    if (!a->n_names)
        return PITH_OK;
    if (!growth_search(a, trigger, token, &g, &why))
        return why == STACKS_CANCELLED
                   ? error_set(err, PITH_CANCELLED, "grammar: cancelled")
                   : error_set(err, PITH_NOMEM, "out of memory for the stacks of a grammar");
    if (!g.grows)
        return PITH_OK;
    return error_set(err, PITH_RANGE,
                     g.by_pairs
                         ? "grammar: rule \"%s\" can be read in too many ways: a text of %u bytes "
                           "has %llu stack entries, one of %u has %llu; wanted a less ambiguous "
                           "grammar"
                         : "grammar: rule \"%s\" can be read in too many ways: a byte behind %u "
                           "others takes %llu steps, one behind %u takes %llu; wanted a less "
                           "ambiguous grammar",
                     automaton_rule(a, g.state), g.n[0], (unsigned long long)g.steps[0], g.n[1],
                     (unsigned long long)g.steps[1]);
}

pith_status grammar_check_schema(struct slice text, struct pith_error *err)
{
    struct rules r;
    rules_init(&r);
    r.draft = 1;
    schema_read(&r, text, 0);
    pith_status st = rules_ok(&r) ? PITH_OK : error_set(err, r.err.code, "%s", r.err.msg);
    rules_deinit(&r);
    return st;
}

static pith_status compile(struct grammar_core *c, const struct grammar_spec *spec,
                           struct pith_error *err)
{
    enum { MOST_TRIGGER = 256, MOST_TEXT = 1 << 24 };
    struct rules r;
    uint32_t root = 0;
    char text[MOST_TRIGGER];
    struct slice trigger = spec->trigger;
    int32_t token = spec->trigger_token;
    if (spec->text.n > MOST_TEXT)
        return error_set(err, PITH_RANGE, "grammar: the text has %zu bytes; wanted at most %d",
                         spec->text.n, MOST_TEXT);
    if (spec->or_schema.n > MOST_TEXT || spec->or_prefix.n > MOST_TRIGGER)
        return error_set(err, PITH_RANGE,
                         "grammar: or_prefix and or_schema have %zu and %zu bytes; wanted at most "
                         "%d and %d",
                         spec->or_prefix.n, spec->or_schema.n, MOST_TRIGGER, MOST_TEXT);
    if (token >= 0 && (!spec->vocab || token >= vocab_n(spec->vocab)))
        return error_set(err, PITH_RANGE, "grammar: trigger token %d is not in the vocabulary",
                         token);
    if (token >= 0) { /* one with a text is that text: it must not pass as anything */
        size_t n = vocab_piece(spec->vocab, token, 0, text, sizeof text);
        trigger = n ? (struct slice){text, n} : trigger;
        token = n ? -1 : token;
    }
    if (trigger.n > MOST_TRIGGER)
        return error_set(err, PITH_RANGE, "grammar: the trigger has %zu bytes; wanted at most %d",
                         trigger.n, MOST_TRIGGER);
    rules_init(&r);
    if (spec->kind == PITH_GRAMMAR_GBNF) {
        gbnf_read(&r, spec->text, spec->vocab);
        if (!rules_find(&r, SLICE("root"), &root) || !r.rule[root].defined)
            rules_fail(&r, PITH_MISSING,
                       "grammar: there is no rule \"root\", which is where a text begins");
    } else if (spec->kind == PITH_GRAMMAR_CALLS) {
        root =
            calls_read(&r, &(struct calls_spec){spec->format, spec->text, trigger, token,
                                                spec->vocab, spec->schema_order, spec->calls_only});
    } else if (spec->kind == PITH_GRAMMAR_REGEX) {
        root = put_regex(&r, spec->text);
    } else if (spec->kind == PITH_GRAMMAR_WITHOUT) {
        root = without_read(&r, spec->text);
    } else {
        root = schema_read(
            &r, spec->kind == PITH_GRAMMAR_JSON ? SLICE("{\"type\":\"object\"}") : spec->text,
            spec->schema_order);
    }
    if (rules_ok(&r) && spec->or_schema.n)
        root = put_other(&r, root, spec);
    if (spec->kind != PITH_GRAMMAR_CALLS && rules_ok(&r) && (trigger.n || token >= 0))
        root = put_trigger(&r, root, trigger, token, spec->again,
                           spec->kind == PITH_GRAMMAR_SCHEMA || spec->kind == PITH_GRAMMAR_JSON);
    pith_status st = rules_ok(&r) ? automaton_init(&c->automaton, &r, root, err)
                                  : error_set(err, r.err.code, "%s", r.err.msg);
    c->unkept = r.unkept.p; /* NULL: nothing */
    r.unkept.p = NULL;
    rules_deinit(&r);
    if (st == PITH_OK && spec->kind == PITH_GRAMMAR_GBNF && !spec->unsearched)
        st = check_growth(&c->automaton, trigger, token, err);
    return st;
}

static void core_free(struct grammar_core *c)
{
    if (c->has_stacks) {
        masks_deinit(&c->masks);
        stacks_deinit(&c->stacks);
    }
    automaton_deinit(&c->automaton);
    mem_free(c->pair);
    mem_free(c->unkept);
    pthread_mutex_destroy(&c->busy);
    pthread_mutex_destroy(&c->list);
    if (c->release)
        c->release(c->owner);
    mem_free(c);
}

/* At the position of another one, or at the beginning. */
static struct pith_grammar *new_handle(struct grammar_core *c, const struct pith_grammar *from)
{
    struct pith_grammar *g = mem_zalloc(sizeof *g, PITH_MEM_SCRATCH);
    if (!g)
        return NULL;
    pthread_mutex_lock(&c->list);
    *g = (struct pith_grammar){.core = c,
                               .next = c->all,
                               .at = from ? from->at : c->start,
                               .pending = from ? from->pending : -1};
    if (c->all)
        c->all->prev = g;
    c->all = g;
    c->refs++;
    pthread_mutex_unlock(&c->list);
    return g;
}

static pith_status exhausted(struct grammar_core *c, struct pith_error *err)
{
    const char *rule = automaton_rule(&c->automaton, growth_widest(&c->stacks));
    if (c->stacks.failed == STACKS_TOO_MANY || c->stacks.failed == STACKS_LATE)
        return error_set(err, PITH_RANGE,
                         "grammar: rule \"%s\" can be read in too many ways here (over %d stack "
                         "entries or %llu steps); wanted a less "
                         "ambiguous grammar",
                         rule ? rule : "root", STACKS_MOST_PAIRS,
                         (unsigned long long)c->stacks.passed);
    if (c->stacks.failed == STACKS_CANCELLED || c->masks.late)
        return error_set(err, PITH_CANCELLED, "grammar: cancelled");
    return error_set(err, PITH_NOMEM, "out of memory for the stacks or masks of a grammar");
}

/* At the end of every use. */
static void leave(struct grammar_core *c)
{
    const struct stacks *s = &c->stacks;
    uint64_t per_state = sizeof *s->at + sizeof *s->member + sizeof(void *);
    atomic_store(&c->bytes,
                 automaton_bytes(&c->automaton) +
                     (c->automaton.n_states + (uint64_t)s->cap_more) * per_state +
                     s->cap_more * sizeof *s->state + c->masks.used +
                     (s->cap_pairs + (uint64_t)s->cap_merge + s->cap_spare) * sizeof *s->pair +
                     s->cap_parts * sizeof *s->part + s->seen_cap * sizeof *s->seen +
                     stacks_differ_bytes(s) +
                     (uint64_t)s->cap_sets * 16 + 4 * (uint64_t)s->table_cap);
    pthread_mutex_unlock(&c->busy);
}

struct pith_grammar *grammar_new(const struct grammar_spec *spec, struct pith_error *err)
{
    enum { KEEP_FIRST = 1 << 16 };
    struct grammar_core *c = mem_zalloc(sizeof *c, PITH_MEM_SCRATCH);
    struct pith_grammar *g = NULL;
    if (!c) {
        error_set(err, PITH_NOMEM, "out of memory for a grammar");
        return NULL;
    }
    pthread_mutex_init(&c->busy, NULL);
    pthread_mutex_init(&c->list, NULL);
    c->vocab = spec->vocab;
    c->keep_at = c->keep_more = KEEP_FIRST;
    if (compile(c, spec, err) != PITH_OK)
        goto fail;
    c->has_stacks = 1;
    if (stacks_init(&c->stacks, &c->automaton) &&
        masks_init(&c->masks, &c->stacks, spec->vocab, spec->trie, spec->cache_bytes)) {
        stacks_begin(&c->stacks);
        stacks_add(&c->stacks, c->automaton.start, STACKS_BOTTOM);
        c->start = stacks_intern(&c->stacks);
        g = c->stacks.failed ? NULL : new_handle(c, NULL);
    }
    if (!g) {
        exhausted(c, err);
        goto fail;
    }
    pthread_mutex_lock(&c->busy);
    leave(c);
    c->release = spec->release; /* not before all is well: a failed call changes nothing */
    c->owner = spec->owner;
    return g;
fail:
    core_free(c);
    return NULL;
}

struct pith_grammar *grammar_clone(const struct pith_grammar *g, struct pith_error *err)
{
    struct pith_grammar *copy = new_handle(g->core, g);
    if (!copy)
        error_set(err, PITH_NOMEM, "out of memory for a grammar");
    return copy;
}

void grammar_free(struct pith_grammar *g)
{
    if (!g)
        return;
    struct grammar_core *c = g->core;
    pthread_mutex_lock(&c->list);
    *(g->prev ? &g->prev->next : &c->all) = g->next;
    if (g->next)
        g->next->prev = g->prev;
    int last = --c->refs == 0;
    pthread_mutex_unlock(&c->list);
    mem_free(g);
    if (last)
        core_free(c);
}

void grammar_reset(struct pith_grammar *g)
{
    pthread_mutex_lock(&g->core->list);
    g->at = g->core->start;
    g->pending = -1;
    pthread_mutex_unlock(&g->core->list);
}

/* ---------------------------------------------------------------- positions */

/* Before every use of the stacks, with `busy` held: drops sets that no handle needs, when there are
 * many, or after a failure. Work is counted from here, up to `most`. 0: no memory. */
static int tidy(struct grammar_core *c, uint64_t most)
{
    uint32_t n = 0, **root;
    c->stacks.work = 0;
    c->stacks.most = most < STACKS_MOST_WORK ? most : STACKS_MOST_WORK;
    c->masks.late = 0;
    if (!c->stacks.failed && c->stacks.n_pairs <= c->keep_at && c->stacks.n_more <= c->keep_more)
        return 1;
    pthread_mutex_lock(&c->list);
    root = mem_array((size_t)c->refs + 1, sizeof *root, PITH_MEM_SCRATCH);
    int ok = root != NULL;
    if (ok) {
        root[n++] = &c->start;
        for (struct pith_grammar *g = c->all; g; g = g->next)
            root[n++] = &g->at;
        ok = stacks_keep(&c->stacks, root, n);
    }
    pthread_mutex_unlock(&c->list);
    mem_free(root);
    if (!ok)
        return 0;
    masks_drop_sets(&c->masks);
    /* So far apart that what is looked through is paid for by what was added since. */
    uint32_t now = c->stacks.n_pairs;
    uint32_t more = now < STACKS_MOST_PAIRS / 8 ? 4 * now : now + (STACKS_MOST_PAIRS - now) / 2;
    c->keep_at = more > c->keep_at ? more : c->keep_at;
    c->keep_more = 2 * c->stacks.n_more > c->keep_more ? 2 * c->stacks.n_more : c->keep_more;
    return 1;
}

static void move(struct pith_grammar *g, uint32_t at)
{
    pthread_mutex_lock(&g->core->list);
    g->at = at;
    pthread_mutex_unlock(&g->core->list);
}

/* The pairs behind a text that began at a position: how many, in c->pair. */
static uint32_t read_bytes(struct grammar_core *c, uint32_t set, struct slice text)
{
    struct stacks *s = &c->stacks;
    uint32_t n;
    const struct stack_pair *p = stacks_pairs(s, set, &n);
    if (!mem_grow(&c->pair, &c->cap_pairs, n, sizeof *c->pair, PITH_MEM_SCRATCH)) {
        s->failed = STACKS_NO_MEMORY;
        return 0;
    }
    if (n)
        memcpy(c->pair, p, n * sizeof *p);
    for (size_t i = 0; i < text.n && n; i++) {
        stacks_begin(s);
        stacks_step(s, c->pair, n, (uint8_t)text.p[i]);
        if (!mem_grow(&c->pair, &c->cap_pairs, stacks_close(s), sizeof *c->pair,
                      PITH_MEM_SCRATCH)) {
            s->failed = STACKS_NO_MEMORY;
            return 0;
        }
        n = stacks_take(s, c->pair);
    }
    return n;
}

/* *at: the position being made, unless it is empty. */
static pith_status arrive(struct grammar_core *c, const char *what, uint32_t *at,
                          struct pith_error *err)
{
    *at = stacks_intern(&c->stacks);
    if (c->stacks.failed)
        return exhausted(c, err);
    return *at == STACKS_NONE ? error_set(err, PITH_STATE, "grammar: %s is not allowed here", what)
                              : PITH_OK;
}

static void add_pairs(struct grammar_core *c, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        stacks_add(&c->stacks, c->pair[i].state, c->pair[i].below);
}

/* Where the tokens that the position names lead. */
static void add_named(struct grammar_core *c, uint32_t set, int32_t id, size_t n_bytes)
{
    const struct automaton *a = &c->automaton;
    uint32_t n;
    stacks_pairs(&c->stacks, set, &n);
    for (uint32_t i = 0; i < n; i++) {
        struct stack_pair p = stacks_pairs(&c->stacks, set, &n)[i];
        for (uint32_t k = a->token_at[p.state]; k < a->token_at[p.state + 1]; k++) {
            const struct automaton_token *t = &a->token[k];
            int is_it = t->value == (uint32_t)id;
            if (t->kind == EDGE_TOKEN ? is_it
                                      : !is_it && !vocab_is_eog(c->vocab, id) &&
                                            (t->kind == EDGE_OTHER ||
                                             (n_bytes == 0 && !automaton_apart(a, (uint32_t)id))))
                stacks_add(&c->stacks, t->to, p.below);
        }
    }
}

/* *to: the position behind a token, with the stacks tidy. */
static pith_status follow(struct pith_grammar *g, int32_t id, uint32_t *to, struct pith_error *err)
{
    struct grammar_core *c = g->core;
    char text[TRIE_DEPTH], what[48];
    int ends = vocab_is_eog(c->vocab, id);
    size_t n_bytes = ends ? 0 : vocab_piece(c->vocab, id, 0, text, sizeof text);
    uint32_t n =
        n_bytes && n_bytes <= sizeof text ? read_bytes(c, g->at, (struct slice){text, n_bytes}) : 0;
    if (c->stacks.failed)
        return exhausted(c, err);
    stacks_begin(&c->stacks);
    add_pairs(c, n);
    add_named(c, g->at, id, n_bytes);
    if (ends && c->stacks.n_members == 0 && stacks_has(&c->stacks, g->at, STATE_END)) {
        *to = STACKS_NONE;
        return PITH_OK;
    }
    snprintf(what, sizeof what, "token %d", id);
    return arrive(c, what, to, err);
}

/* One token further, with `busy` held. most NULL: whatever it takes. Else *late, and nothing has
 * changed, where it takes more than *most; what it took is subtracted. Whoever waits for the same
 * step from the same position has made it, too. */
static pith_status step(struct pith_grammar *g, int32_t id, uint64_t *most, int *late,
                        struct pith_error *err)
{
    struct grammar_core *c = g->core;
    uint64_t bound = most && *most < GROWTH_TOKEN ? *most : GROWTH_TOKEN;
    if (!tidy(c, bound))
        return exhausted(c, err);
    uint32_t mark = stacks_mark(&c->stacks), was = g->at, to = was;
    pith_status st = follow(g, id, &to, err);
    if (most)
        *most -= c->stacks.work < *most ? c->stacks.work : *most;
    if (c->stacks.failed == STACKS_LATE && bound < GROWTH_TOKEN) {
        stacks_cut(&c->stacks, mark);
        c->stacks.failed = 0;
        *late = 1;
        return PITH_OK;
    }
    pthread_mutex_lock(&c->list);
    for (struct pith_grammar *h = c->all; h; h = h->next)
        if ((st == PITH_OK || st == PITH_STATE) && h->at == was && h->pending == id) {
            h->at = st == PITH_OK ? to : was;
            h->pending = -1;
        }
    if (st == PITH_OK)
        g->at = to;
    pthread_mutex_unlock(&c->list);
    return st;
}

/* Makes the step that was left for later (step). One that turns out not to be allowed is none. */
static pith_status settle(struct pith_grammar *g, uint64_t *most, int *late,
                          struct pith_error *err)
{
    struct pith_error own = {.code = PITH_OK};
    pith_status st = g->pending < 0 ? PITH_OK : step(g, g->pending, most, late, &own);
    return st == PITH_OK || st == PITH_STATE ? PITH_OK : error_set(err, st, "%s", own.msg);
}

static pith_status check_token(const struct grammar_core *c, int32_t id, struct pith_error *err)
{
    if (!c->vocab || id < 0 || id >= vocab_n(c->vocab))
        return error_set(err, PITH_RANGE, "grammar: token %d is not in the vocabulary", id);
    return PITH_OK;
}

pith_status grammar_accept(struct pith_grammar *g, int32_t id, struct pith_error *err)
{
    struct grammar_core *c = g->core;
    pith_status st = check_token(c, id, err);
    if (st != PITH_OK)
        return st;
    pthread_mutex_lock(&c->busy);
    st = settle(g, NULL, NULL, err);
    st = st == PITH_OK ? step(g, id, NULL, NULL, err) : st;
    leave(c);
    return st;
}

pith_status grammar_accept_within(struct pith_grammar *g, int32_t id, uint64_t most,
                                  struct pith_error *err)
{
    struct grammar_core *c = g->core;
    pith_status st = check_token(c, id, err);
    if (st != PITH_OK)
        return st;
    int late = pthread_mutex_trylock(&c->busy) != 0;
    if (late && g->pending >= 0) {
        pthread_mutex_lock(&c->busy); /* one alone can be left for later */
        late = 0;
    }
    if (!late) {
        st = settle(g, NULL, NULL, err);
        st = st == PITH_OK ? step(g, id, &most, &late, err) : st;
        leave(c);
    }
    if (late) {
        pthread_mutex_lock(&c->list);
        g->pending = id;
        pthread_mutex_unlock(&c->list);
    }
    return st;
}

pith_status grammar_accept_text(struct pith_grammar *g, struct slice text, struct pith_error *err)
{
    enum { STRIDE = 256 };
    struct grammar_core *c = g->core;
    struct pith_grammar *was = new_handle(c, g); /* where it was must outlive a tidying */
    pith_status st = was ? PITH_OK : error_set(err, PITH_NOMEM, "out of memory for a grammar");
    for (size_t i = 0; i < text.n && st == PITH_OK; i += STRIDE) {
        struct slice some = {text.p + i, text.n - i < STRIDE ? text.n - i : STRIDE};
        pthread_mutex_lock(&c->busy);
        st = settle(g, NULL, NULL, err);
        int ok = st == PITH_OK && tidy(c, STACKS_MOST_WORK);
        uint32_t n = ok ? read_bytes(c, g->at, some) : 0, to = STACKS_NONE;
        stacks_begin(&c->stacks);
        add_pairs(c, n);
        if (st == PITH_OK)
            st = ok ? arrive(c, "this text", &to, err) : exhausted(c, err);
        move(g, st == PITH_OK ? to : was->at);
        leave(c);
    }
    grammar_free(was);
    return st;
}

static int may_end(const struct pith_grammar *g)
{
    return g->at == STACKS_NONE || stacks_has(&g->core->stacks, g->at, STATE_END);
}

int grammar_may_end(struct pith_grammar *g)
{
    pthread_mutex_lock(&g->core->busy);
    settle(g, NULL, NULL, NULL);
    int may = may_end(g);
    pthread_mutex_unlock(&g->core->busy);
    return may;
}

int grammar_must_end(struct pith_grammar *g)
{
    uint32_t n;
    pthread_mutex_lock(&g->core->busy);
    settle(g, NULL, NULL, NULL);
    stacks_pairs(&g->core->stacks, g->at, &n);
    int must = n == 0 || (n == 1 && may_end(g));
    pthread_mutex_unlock(&g->core->busy);
    return must;
}

/* ---------------------------------------------------------------- masks */

/* With `busy` held. NULL: with *err, or it is late. most NULL: whatever it takes; else what it took
 * is subtracted from *most. */
static const uint64_t *mask_of(struct pith_grammar *g, uint64_t *most, int *late,
                               struct pith_error *err)
{
    struct grammar_core *c = g->core;
    const uint64_t *mask = NULL;
    *late = 0;
    if (!c->masks.trie) {
        error_set(err, PITH_STATE, "grammar: it was opened without a model and has no tokens");
        return NULL;
    }
    if (settle(g, most, late, err) != PITH_OK || *late)
        return NULL;
    if (tidy(c, most ? *most : STACKS_MOST_WORK))
        mask = masks_get(&c->masks, g->at);
    if (most)
        *most -= c->stacks.work < *most ? c->stacks.work : *most;
    *late = !mask && c->masks.late;
    if (!mask)
        exhausted(c, err);
    return mask;
}

const uint64_t *grammar_mask(struct pith_grammar *g, struct pith_error *err)
{
    int late;
    pthread_mutex_lock(&g->core->busy);
    const uint64_t *mask = mask_of(g, NULL, &late, err);
    pthread_mutex_unlock(&g->core->busy);
    return mask;
}

pith_status grammar_prepare(struct pith_grammar *g, struct pith_error *err)
{
    struct pith_error own = {.code = PITH_OK};
    int late;
    pthread_mutex_lock(&g->core->busy);
    int ok = mask_of(g, NULL, &late, &own) != NULL;
    leave(g->core);
    return ok ? PITH_OK : error_set(err, own.code, "%s", own.msg);
}

const char *grammar_unkept(const struct pith_grammar *g)
{
    return g->core->unkept ? g->core->unkept + 1 : "";
}

uint64_t grammar_bytes(const struct pith_grammar *g)
{
    return atomic_load(&g->core->bytes);
}

static void bar(const struct grammar_core *c, const uint64_t *mask, float *logits, int32_t n)
{
    int32_t known = c->masks.trie->n_vocab < n ? c->masks.trie->n_vocab : n;
    for (int32_t i = 0; i < known; i += 64) {
        uint64_t word = mask[i / 64];
        int32_t end = known - i < 64 ? known - i : 64;
        for (int32_t k = 0; word != UINT64_MAX && k < end; k++) {
            if (!(word >> k & 1))
                logits[i + k] = -INFINITY;
        }
    }
    for (int32_t i = known; i < n; i++)
        logits[i] = -INFINITY;
}

pith_status grammar_apply(struct pith_grammar *g, float *logits, int32_t n, struct pith_error *err)
{
    struct pith_error own = {.code = PITH_OK};
    struct grammar_core *c = g->core;
    pthread_mutex_lock(&c->busy);
    int late;
    const uint64_t *mask = mask_of(g, NULL, &late, &own);
    if (mask)
        bar(c, mask, logits, n);
    leave(c);
    return mask ? PITH_OK : error_set(err, own.code, "%s", own.msg);
}

pith_status grammar_apply_within(struct pith_grammar *g, float *logits, int32_t n, uint64_t *most,
                                 int *late, struct pith_error *err)
{
    struct pith_error own = {.code = PITH_OK};
    struct grammar_core *c = g->core;
    *late = pthread_mutex_trylock(&c->busy) != 0;
    if (*late)
        return PITH_OK;
    const uint64_t *mask = mask_of(g, most, late, &own);
    if (mask)
        bar(c, mask, logits, n);
    leave(c);
    return mask || *late ? PITH_OK : error_set(err, own.code, "%s", own.msg);
}
