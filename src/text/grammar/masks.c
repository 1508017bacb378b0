/* masks.c -- see masks.h. */
#include "text/grammar/masks.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* What a state allows by itself. Few tokens are a list, many are bits. */
struct state_mask {
    uint64_t *word; /* NULL: ids */
    uint32_t *id, *leave;
    uint32_t n_ids, n_leave;
    uint64_t bytes;
};

int masks_init(struct masks *m, struct stacks *s, const struct vocab *v, const struct trie *t,
               uint64_t budget)
{
    *m = (struct masks){.trie = t, .vocab = v, .stacks = s, .budget = budget};
    if (!t)
        return 1;
    m->n_words = ((uint32_t)t->n_vocab + 63) / 64;
    m->word = mem_array(m->n_words, sizeof *m->word, PITH_MEM_SCRATCH);
    m->had = s->a->n_differ ? mem_array(m->n_words, sizeof *m->had, PITH_MEM_SCRATCH) : NULL;
    m->eog = mem_array((size_t)t->n_vocab, sizeof *m->eog, PITH_MEM_SCRATCH);
    m->of_state = mem_array(s->a->n_states, sizeof *m->of_state, PITH_MEM_SCRATCH);
    m->level = mem_array((size_t)t->depth + 3, sizeof *m->level, PITH_MEM_SCRATCH);
    for (int32_t id = 0; m->eog && id < t->n_vocab; id++) {
        if (vocab_is_eog(v, id))
            m->eog[m->n_eog++] = id;
    }
    return m->word && m->eog && m->of_state && m->level && (m->had || !s->a->n_differ);
}

static void drop_state(struct state_mask *k)
{
    if (!k)
        return;
    mem_free(k->word);
    mem_free(k->id);
    mem_free(k->leave);
    mem_free(k);
}

void masks_drop_sets(struct masks *m)
{
    for (uint32_t i = 0; i < m->cap_sets; i++) {
        if (m->of_set[i])
            m->used -= m->n_words * sizeof *m->word;
        mem_free(m->of_set[i]);
    }
    mem_free(m->of_set);
    m->of_set = NULL;
    m->cap_sets = 0;
}

static void drop_all(struct masks *m)
{
    masks_drop_sets(m);
    for (uint32_t i = 0; m->of_state && i < m->stacks->a->n_states; i++) {
        drop_state(m->of_state[i]);
        m->of_state[i] = NULL;
    }
    m->used = 0;
}

void masks_deinit(struct masks *m)
{
    drop_all(m);
    mem_free(m->word);
    mem_free(m->had);
    mem_free(m->eog);
    mem_free(m->of_state);
    mem_free(m->alike);
    mem_free(m->pair);
    mem_free(m->level);
    mem_free(m->leave);
}

/* ---------------------------------------------------------------- the walk */

static void set_bit(struct masks *m, int32_t id)
{
    m->word[id / 64] |= (uint64_t)1 << (id % 64);
}

static int room(struct masks *m, uint64_t need)
{
    int ok = mem_grow(&m->pair, &m->cap_pairs, need, sizeof *m->pair, PITH_MEM_SCRATCH);
    m->failed |= !ok;
    return ok;
}

/* The pairs behind a byte, to the level after `d`, with the first n_also of all; how many. */
static uint32_t step(struct masks *m, uint32_t d, uint8_t byte, uint32_t n_also)
{
    struct stacks *s = m->stacks;
    const struct stack_pair *p = m->pair + m->level[d];
    uint32_t n = m->level[d + 1] - m->level[d], at = m->level[d + 1];
    if (n + n_also == 0)
        return 0;
    stacks_begin(s);
    stacks_step(s, p, n, byte);
    for (uint32_t i = 0; i < n_also; i++)
        stacks_add(s, m->pair[i].state, m->pair[i].below);
    if (s->n_members == 0 || !room(m, (uint64_t)at + stacks_close(s)))
        return 0;
    n = stacks_take(s, m->pair + at);
    m->failed |= s->failed;
    return n;
}

/* Whether nothing more can be read in this rule; *left: it may have ended. */
static int is_over(const struct masks *m, uint32_t at, uint32_t n, int *left)
{
    int over = 1;
    *left = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t state = m->pair[at + i].state;
        over &= state < STATE_FIRST;
        *left |= state == STATE_OPEN;
    }
    return over;
}

static void note_leave(struct masks *m, uint32_t node)
{
    if (!mem_grow(&m->leave, &m->cap_leave, (uint64_t)m->n_leave + 1, sizeof *m->leave,
                  PITH_MEM_SCRATCH))
        m->failed = 1;
    else
        m->leave[m->n_leave++] = node;
}

/* Nodes at which the pairs of level 0 begin as well: a list in the order of the tree, and how many
 * of it are dealt with. */
struct begins {
    const uint32_t *node;
    uint32_t n, at;
};

/* Where the walk goes on when nothing is left at node i, which is at depth d: at the next beginning
 * below it, or behind it. */
static uint32_t skip(struct masks *m, const struct begins *b, uint32_t i, uint32_t d)
{
    const struct trie_node *node = m->trie->node;
    uint32_t to = b->at < b->n && b->node[b->at] < node[i].next ? b->node[b->at] : node[i].next;
    for (uint32_t k = d; to < node[i].next && k < d + node[to].depth - node[i].depth; k++)
        m->level[k + 1] = m->level[k];
    return to;
}

/* One pair, which a byte leads to a state that reads on in its rule: nearly always. 1: the level
 * after d holds it; 0: nothing follows; -1: it is more than that. */
static inline int step_plain(struct masks *m, uint32_t d, uint8_t byte)
{
    const struct automaton *a = m->stacks->a;
    uint32_t at = m->level[d + 1];
    struct stack_pair p = m->pair[at - 1];
    uint32_t to = automaton_next(a, p.state, byte);
    if (!to)
        return 0;
    if ((automaton_flags(a, to) & (STATE_FINAL | STATE_CALLS)) ||
        stacks_has_items(m->stacks, p.below))
        return -1;
    if (at >= m->cap_pairs && !room(m, (uint64_t)at + 1))
        return 0;
    m->pair[at].state = to;
    m->pair[at].below = p.below;
    m->level[d + 2] = at + 1;
    return 1;
}

/* All tokens below a node that the pairs at level 0 can read, those read from a beginning on, too.
 */
static void walk(struct masks *m, uint32_t from, struct begins *b)
{
    enum { LOOK = 256 };
    const struct trie *t = m->trie;
    uint32_t base = t->node[from].depth, end = t->node[from].next, n_first = m->level[1],
             n_walked = 0;
    for (uint32_t i = from + 1; i < end && !m->failed;) {
        const struct trie_node *node = &t->node[i];
        int begins = b->at < b->n && b->node[b->at] == i;
        uint32_t d = node->depth - base, n;
        int left, plain = m->level[d] - m->level[d - 1] == 1 && !begins
                              ? step_plain(m, d - 1, node->byte)
                              : -1;
        if (++n_walked % LOOK == 0 && !stacks_spend(m->stacks, LOOK))
            m->failed = 1;
        if (plain > 0) {
            for (uint32_t k = node->first; k < node[1].first; k++)
                set_bit(m, t->token[k]);
            i++;
            continue;
        }
        n = plain ? step(m, d - 1, node->byte, begins ? n_first : 0) : 0;
        b->at += (uint32_t)begins;
        if (n == 0) {
            i = skip(m, b, i, d);
            continue;
        }
        m->level[d + 1] = m->level[d] + n;
        for (uint32_t k = node->first; k < node[1].first; k++)
            set_bit(m, t->token[k]);
        int over = is_over(m, m->level[d], n, &left);
        if (left && node->next > i + 1)
            note_leave(m, i);
        i = over ? skip(m, b, i, d + 1) : i + 1;
    }
    stacks_spend(m->stacks, n_walked % LOOK);
}

/* ---------------------------------------------------------------- tokens by name */

/* What all edges of a kind that take any token but one take together: two that leave out different
 * ones take all. */
struct others {
    uint32_t but;
    int n; /* 0: no such edge; 1: all but `but`; 2: all */
};

static void add_other(struct others *o, uint32_t but)
{
    o->n = !o->n ? 1 : o->but != but ? 2 : o->n;
    o->but = but;
}

static int is_set(const struct masks *m, uint32_t id)
{
    return id < (uint32_t)m->trie->n_vocab && m->word[id / 64] >> (id % 64) & 1;
}

static void set_others(struct masks *m, const struct others *o)
{
    uint32_t n = (uint32_t)m->trie->n_vocab;
    int had = is_set(m, o->but);
    memset(m->word, 0xFF, m->n_words * sizeof *m->word);
    if (n % 64)
        m->word[n / 64] = ((uint64_t)1 << (n % 64)) - 1;
    if (o->n == 1 && o->but < n && !had)
        m->word[o->but / 64] &= ~((uint64_t)1 << (o->but % 64));
}

/* Each edge is looked at once, whatever the vocabulary. Tokens that end a generation may be among
 * the others: make() decides of them. */
static void add_named(struct masks *m, uint32_t state)
{
    const struct automaton *a = m->stacks->a;
    uint32_t from = a->token_at[state], to = a->token_at[state + 1];
    struct others any = {0, 0}, silent = {0, 0};
    if (from == to)
        return;
    for (uint32_t i = from; i < to; i++) {
        if (a->token[i].kind != EDGE_TOKEN)
            add_other(a->token[i].kind == EDGE_SILENT ? &silent : &any, a->token[i].value);
    }
    if (any.n)
        set_others(m, &any);
    for (uint32_t i = 0; silent.n && i < m->trie->n_silent; i++) {
        uint32_t id = (uint32_t)m->trie->silent[i];
        if ((silent.n == 2 || id != silent.but) && !automaton_apart(a, id))
            set_bit(m, m->trie->silent[i]);
    }
    for (uint32_t i = from; i < to; i++) {
        if (a->token[i].kind == EDGE_TOKEN && a->token[i].value < (uint32_t)m->trie->n_vocab)
            set_bit(m, (int32_t)a->token[i].value);
    }
    if (!stacks_spend(m->stacks, (uint64_t)(to - from) + (any.n ? m->n_words : 0) +
                                     (silent.n ? m->trie->n_silent : 0)))
        m->failed = 1;
}

/* ---------------------------------------------------------------- states */

static uint32_t count_bits(const struct masks *m)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_words; i++)
        n += (uint32_t)__builtin_popcountll(m->word[i]);
    return n;
}

/* m->word and m->leave as they are now; NULL: no memory. */
static struct state_mask *keep_state(struct masks *m)
{
    struct state_mask *k = mem_zalloc(sizeof *k, PITH_MEM_SCRATCH);
    uint32_t n = count_bits(m), most = m->n_words;
    int bits = n > most;
    if (!k)
        return NULL;
    k->n_leave = m->n_leave;
    k->leave = mem_array(m->n_leave, sizeof *k->leave, PITH_MEM_SCRATCH);
    k->word = bits ? mem_array(m->n_words, sizeof *k->word, PITH_MEM_SCRATCH) : NULL;
    k->id = bits ? NULL : mem_array(n, sizeof *k->id, PITH_MEM_SCRATCH);
    if (!k->leave || !(bits ? (void *)k->word : (void *)k->id)) {
        drop_state(k);
        return NULL;
    }
    if (m->n_leave)
        memcpy(k->leave, m->leave, m->n_leave * sizeof *k->leave);
    if (bits)
        memcpy(k->word, m->word, m->n_words * sizeof *k->word);
    for (uint32_t i = 0; i < m->n_words && !bits; i++) {
        for (uint64_t w = m->word[i]; w; w &= w - 1)
            k->id[k->n_ids++] = 64 * i + (uint32_t)__builtin_ctzll(w);
    }
    k->bytes = sizeof *k + m->n_leave * sizeof *k->leave +
               (bits ? m->n_words * sizeof *k->word : n * sizeof *k->id);
    m->used += k->bytes;
    return k;
}

/* ---------------------------------------------------------------- states that are alike
 *
 * A string of up to 1,000 characters has 1,000 states for "a character follows", and no
 * token tells them apart as long as more characters may follow than it has.
 *
 * Classes of states are split in rounds [Moore, Gedanken-experiments on sequential machines, 1956]:
 * after k of them two states of a class read the same texts of k bytes, and end, call or name
 * tokens behind the same ones of them, since a state that does any of that is a class of its own.
 * Only states with an edge to one that has left its class are looked at again. */

/* A state that is looked at in a round, and the class that it goes to. */
struct looked {
    uint64_t hash; /* of its edges */
    uint32_t class, state, to;
};

struct split {
    const struct automaton *a;
    struct stacks *s;
    uint32_t *class, *size;   /* [n_states] of each state; [n_classes] */
    uint32_t *from_at, *from; /* [n_states + 1]; whose edges lead to a state */
    struct looked *look;      /* [n_states] */
    uint32_t *asked;          /* [n_states] the last round in which it was looked at */
    uint32_t *left;           /* [n_states] those that have left their class in a round */
    uint32_t n_classes, n_look;
};

enum { APART = STATE_FINAL | STATE_CALLS | STATE_TOKENS, MOST_STATES = 1 << 17 };

static int is_apart(const struct automaton *a, uint32_t state)
{
    return state < STATE_FIRST || (automaton_flags(a, state) & APART);
}

static uint32_t n_edges(const struct automaton *a, uint32_t state)
{
    return a->row[state].several ? a->n_classes : 1;
}

static uint32_t edge_to(const struct automaton *a, uint32_t state, uint32_t i)
{
    const struct automaton_row *r = &a->row[state];
    return r->several ? a->next[(size_t)r->to * a->n_classes + i] : r->to;
}

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

static uint64_t hash_of(const struct split *p, uint32_t state)
{
    const struct automaton_row *r = &p->a->row[state];
    uint64_t h = r->several ? 1 : mix(2, (uint64_t)r->lo << 8 | r->width);
    for (uint32_t i = 0, n = n_edges(p->a, state); i < n; i++)
        h = mix(h, p->class[edge_to(p->a, state, i)]);
    return h;
}

static int same_edges(const struct split *p, uint32_t x, uint32_t y)
{
    const struct automaton_row *r = &p->a->row[x], *q = &p->a->row[y];
    if (r->several != q->several || (!r->several && (r->lo != q->lo || r->width != q->width)))
        return 0;
    for (uint32_t i = 0, n = n_edges(p->a, x); i < n; i++)
        if (p->class[edge_to(p->a, x, i)] != p->class[edge_to(p->a, y, i)])
            return 0;
    return 1;
}

static int by_class(const void *a, const void *b)
{
    const struct looked *x = a, *y = b;
    if (x->class != y->class)
        return (x->class > y->class) - (x->class < y->class);
    if (x->hash != y->hash)
        return (x->hash > y->hash) - (x->hash < y->hash);
    return (x->state > y->state) - (x->state < y->state);
}

static int cost(struct split *p)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->n_look; i++)
        n += 1 + n_edges(p->a, p->look[i].state);
    return stacks_spend(p->s, n);
}

/* Those of [from, to) whose hash is the same go to a class of their own together; what only has the
 * same hash goes alone. */
static void leave_together(struct split *p, uint32_t from, uint32_t to)
{
    uint32_t together = p->n_classes++;
    for (uint32_t i = from; i < to; i++)
        p->look[i].to = same_edges(p, p->look[from].state, p->look[i].state) ? together
                                                                             : p->n_classes++;
}

/* A class of which all are looked at keeps those that are most; else all that are looked at leave
 * it: each has an edge to a class that is new, which no other has. */
static void split_class(struct split *p, uint32_t from, uint32_t to)
{
    int whole = p->size[p->look[from].class] == to - from;
    uint32_t most = 0, stay = to;
    for (uint32_t i = from, k; whole && i < to; i = k) {
        for (k = i; k < to && p->look[k].hash == p->look[i].hash;)
            k++;
        if (k - i > most) {
            most = k - i;
            stay = i;
        }
    }
    for (uint32_t i = from, k; i < to; i = k) {
        for (k = i; k < to && p->look[k].hash == p->look[i].hash;)
            k++;
        if (i != stay) {
            leave_together(p, i, k);
            continue;
        }
        for (uint32_t j = i; j < k; j++)
            p->look[j].to = same_edges(p, p->look[i].state, p->look[j].state) ? p->look[j].class
                                                                              : p->n_classes++;
    }
}

/* One round; those that have left their class, and after it who has an edge to one of them. 0:
 * there is no more work to spend. */
static int split_round(struct split *p, uint32_t round)
{
    uint32_t n_left = 0, n = 0;
    if (!cost(p))
        return 0;
    for (uint32_t i = 0; i < p->n_look; i++) {
        p->look[i].class = p->class[p->look[i].state];
        p->look[i].hash = hash_of(p, p->look[i].state);
    }
    qsort(p->look, p->n_look, sizeof *p->look, by_class);
    for (uint32_t i = 0, k; i < p->n_look; i = k) {
        for (k = i; k < p->n_look && p->look[k].class == p->look[i].class;)
            k++;
        split_class(p, i, k);
    }
    for (uint32_t i = 0; i < p->n_look; i++) {
        struct looked *l = &p->look[i];
        if (l->to == l->class)
            continue;
        p->size[l->class]--;
        p->size[l->to]++;
        p->class[l->state] = l->to;
        p->left[n_left++] = l->state;
    }
    for (uint32_t i = 0; i < n_left; i++)
        for (uint32_t k = p->from_at[p->left[i]]; k < p->from_at[p->left[i] + 1]; k++) {
            uint32_t from = p->from[k];
            if (p->asked[from] == round || is_apart(p->a, from))
                continue;
            p->asked[from] = round;
            p->look[n++].state = from;
        }
    p->n_look = n;
    return 1;
}

/* from_at and from. 0: no memory, or too many edges. */
static int turn_edges(struct split *p)
{
    enum { MOST_EDGES = 1 << 22 };
    const struct automaton *a = p->a;
    uint64_t n = 0;
    for (uint32_t s = STATE_FIRST; s < a->n_states; s++)
        for (uint32_t i = 0; i < n_edges(a, s); i++, n++)
            p->from_at[edge_to(a, s, i) + 1]++;
    for (uint32_t s = 0; s < a->n_states; s++)
        p->from_at[s + 1] += p->from_at[s];
    p->from = n <= MOST_EDGES && stacks_spend(p->s, n)
                  ? mem_array((size_t)n + 1, sizeof *p->from, PITH_MEM_SCRATCH)
                  : NULL;
    if (!p->from)
        return 0;
    for (uint32_t s = a->n_states; s-- > STATE_FIRST;)
        for (uint32_t i = 0; i < n_edges(a, s); i++)
            p->from[--p->from_at[edge_to(a, s, i) + 1]] = s;
    /* each begins one place behind now: where its own begin */
    for (uint32_t s = 0; s < a->n_states; s++)
        p->from_at[s] = p->from_at[s + 1];
    p->from_at[a->n_states] = (uint32_t)n;
    return 1;
}

/* Into p->size, which is not needed any more: the first state of each class; and so for all. */
static void name_first(struct split *p)
{
    for (uint32_t s = p->a->n_states; s-- > 0;)
        p->size[p->class[s]] = s;
    for (uint32_t s = 0; s < p->a->n_states; s++)
        p->class[s] = p->size[p->class[s]];
}

/* [n_states] of each state the first one that no text of at most `depth` bytes tells from it within
 * its rule; the caller's. NULL: no memory, or more work than there is left. */
static uint32_t *alike_states(struct stacks *stacks, uint32_t depth)
{
    const struct automaton *a = stacks->a;
    struct split p = {.a = a, .s = stacks, .n_classes = 1};
    size_t n = a->n_states;
    int ok = n <= MOST_STATES;
    uint32_t **const lists[] = {&p.class, &p.size, &p.from_at, &p.asked, &p.left};
    for (size_t i = 0; ok && i < sizeof lists / sizeof *lists; i++)
        ok = (*lists[i] = mem_array(n + 1, sizeof **lists[i], PITH_MEM_SCRATCH)) != NULL;
    p.look = ok ? mem_array(n, sizeof *p.look, PITH_MEM_SCRATCH) : NULL;
    ok = p.look && turn_edges(&p);
    for (uint32_t s = 0; ok && s < n; s++) {
        if (is_apart(a, s)) {
            p.size[p.n_classes] = 1;
            p.class[s] = p.n_classes++;
        } else {
            p.look[p.n_look++].state = s;
        }
    }
    if (ok)
        p.size[0] = p.n_look;
    for (uint32_t k = 1; ok && k <= depth && p.n_look; k++)
        ok = split_round(&p, k);
    if (ok)
        name_first(&p);
    for (size_t i = 1; i < sizeof lists / sizeof *lists; i++)
        mem_free(*lists[i]);
    mem_free(p.from);
    mem_free(p.look);
    if (!ok)
        mem_free(p.class);
    return ok ? p.class : NULL;
}

/* Where many masks are made, states that tokens cannot tell apart are looked for. */
static void look_alike(struct masks *m)
{
    enum { MANY = 32 };
    if (m->tried || m->n_made < MANY)
        return;
    m->tried = 1;
    m->alike = alike_states(m->stacks, m->trie->depth);
}

/* The state whose mask is this one's. */
static uint32_t first_alike(const struct masks *m, uint32_t state)
{
    return m->alike ? m->alike[state] : state;
}

static const struct state_mask *state_mask(struct masks *m, uint32_t state)
{
    state = first_alike(m, state);
    if (m->of_state[state])
        return m->of_state[state];
    memset(m->word, 0, m->n_words * sizeof *m->word);
    m->n_leave = 0;
    if (!room(m, 1))
        return NULL;
    m->pair[0] = (struct stack_pair){state, STACKS_OPEN};
    m->level[0] = 0;
    m->level[1] = 1;
    walk(m, 0, &(struct begins){NULL, 0, 0});
    add_named(m, state);
    m->n_made++;
    if (!m->failed)
        m->of_state[state] = keep_state(m);
    m->failed |= !m->of_state[state];
    return m->of_state[state];
}

/* ---------------------------------------------------------------- positions */

/* The pairs that the stacks have now are the walk's first level. Returns how many go on by a byte.
 */
static uint32_t first_level(struct masks *m)
{
    uint32_t n = stacks_take(m->stacks, m->pair), moves = 0;
    for (uint32_t i = 0; i < n; i++)
        moves += m->pair[i].state >= STATE_FIRST;
    m->level[0] = 0;
    m->level[1] = n;
    return moves;
}

/* What a state's part leaves open: from each node where the rule may end, with what lies below it.
 */
static void walk_on(struct masks *m, const struct state_mask *k, uint32_t below)
{
    struct stacks *s = m->stacks;
    uint32_t n, moves;
    stacks_begin(s);
    const struct stack_pair *p = stacks_pairs(s, below, &n);
    for (uint32_t i = 0; i < n; i++) {
        struct stack_pair q = p[i];
        stacks_add(s, q.state, q.below);
        p = stacks_pairs(s, below, &n);
    }
    if (!room(m, stacks_close(s)))
        return;
    moves = first_level(m);
    struct begins b = {k->leave, k->n_leave, 0};
    while (moves && b.at < b.n && !m->failed)
        walk(m, k->leave[b.at++], &b);
}

static void add_state(struct masks *m, const struct state_mask *k)
{
    enum { WORDS_A_STEP = 32, IDS_A_STEP = 4 };
    uint64_t steps = k->word ? m->n_words / WORDS_A_STEP : k->n_ids / IDS_A_STEP;
    if (!stacks_spend(m->stacks, 1 + steps)) {
        m->failed = 1;
        return;
    }
    for (uint32_t i = 0; k->word && i < m->n_words; i++)
        m->word[i] |= k->word[i];
    for (uint32_t i = 0; !k->word && i < k->n_ids; i++)
        set_bit(m, (int32_t)k->id[i]);
}

/* ---------------------------------------------------------------- items that differ */

/* Takes back the tokens by which an item becomes one that was there, of those below node i, where
 * it has a text, unless the mask had them before. As deep as the tree is. */
static void bar_repeats(struct masks *m, uint32_t i, uint32_t state, struct stack_state item)
{
    struct stacks *s = m->stacks;
    const struct trie *t = m->trie;
    uint32_t n = 0, list = (uint32_t)(item.seen >> 32), text = (uint32_t)item.seen;
    for (uint32_t k = i + 1; k < t->node[i].next; k = t->node[k].next, n++) {
        uint32_t to = automaton_next(s->a, state, t->node[k].byte),
                 more = to ? stacks_text(s, text, t->node[k].byte) : 0;
        if (!more || !stacks_item_begun(s, item.set, list, more))
            continue;
        if (!stacks_item_over(s, item.set, list, more)) {
            item.seen = (uint64_t)list << 32 | more;
            bar_repeats(m, k, to, item);
            continue;
        }
        for (uint32_t j = t->node[k].first; j < t->node[t->node[k].next].first; j++) {
            uint32_t id = (uint32_t)t->token[j];
            m->word[id / 64] &= m->had[id / 64] | ~((uint64_t)1 << (id % 64));
        }
    }
    stacks_spend(s, n);
}

/* What may stand behind an item that ends at a node of the tree. */
static void walk_behind(struct masks *m, uint32_t leaf, uint32_t state, struct stack_pair p)
{
    struct stacks *s = m->stacks;
    const struct trie_node *node = m->trie->node;
    struct begins none = {NULL, 0, 0};
    uint32_t moves, looked = 0;
    for (uint32_t i = 0; i != leaf; looked++) {
        for (i++; node[i].next <= leaf; i = node[i].next)
            looked++;
        if (!stacks_item_step(s, &state, &p, node[i].byte))
            return;
    }
    stacks_begin(s);
    stacks_add(s, p.state, p.below);
    if (!stacks_spend(s, looked) || !room(m, stacks_close(s)))
        return;
    moves = first_level(m);
    if (moves)
        walk(m, leaf, &none);
}

/* What a pair allows. Below a state of an item lies its text, which differs from node to node. */
static void add_pair(struct masks *m, struct stack_pair p)
{
    struct stacks *s = m->stacks;
    const struct state_mask *k = m->of_state[first_alike(m, p.state)];
    uint32_t n;
    if (!stacks_has_items(s, p.below)) {
        add_state(m, k);
        if (k->n_leave)
            walk_on(m, k, p.below);
        return;
    }
    stacks_pairs(s, p.below, &n);
    for (uint32_t i = 0; i < n && !m->failed && !s->failed; i++) {
        struct stack_pair q = stacks_pairs(s, p.below, &n)[i];
        const struct stack_state *item = stacks_item(s, q.state);
        if (!item) {
            add_pair(m, (struct stack_pair){p.state, stacks_push(s, q)});
            continue;
        }
        memcpy(m->had, m->word, m->n_words * sizeof *m->word);
        add_state(m, k);
        bar_repeats(m, 0, p.state, *item);
        for (uint32_t j = 0; j < k->n_leave && !m->failed && !s->failed; j++)
            walk_behind(m, k->leave[j], p.state, q);
    }
}

/* Tokens that end a generation: where the text may end, or where the grammar names them, and
 * nowhere else. */
static void set_ends(struct masks *m, uint32_t set)
{
    const struct automaton *a = m->stacks->a;
    uint32_t n, may_end = (uint32_t)stacks_has(m->stacks, set, STATE_END);
    const struct stack_pair *p = stacks_pairs(m->stacks, set, &n);
    uint64_t looked = m->n_eog;
    for (uint32_t i = 0; i < m->n_eog; i++) {
        m->word[m->eog[i] / 64] &= ~((uint64_t)1 << (m->eog[i] % 64));
        if (may_end)
            set_bit(m, m->eog[i]);
    }
    for (uint32_t i = 0; i < n && m->n_eog; i++) {
        uint32_t to = a->token_at[p[i].state + 1];
        looked += to - a->token_at[p[i].state];
        for (uint32_t k = a->token_at[p[i].state]; k < to; k++) {
            uint32_t id = a->token[k].value;
            if (a->token[k].kind == EDGE_TOKEN && id < (uint32_t)m->trie->n_vocab &&
                vocab_is_eog(m->vocab, (int32_t)id))
                set_bit(m, (int32_t)id);
        }
    }
    if (!stacks_spend(m->stacks, looked))
        m->failed = 1;
}

static void make(struct masks *m, uint32_t set)
{
    uint32_t n, mark = stacks_mark(m->stacks);
    look_alike(m);
    stacks_pairs(m->stacks, set, &n);
    for (uint32_t i = 0; i < n && !m->failed; i++) { /* before m->word is the position's */
        uint32_t state = stacks_pairs(m->stacks, set, &n)[i].state;
        if (state >= STATE_FIRST)
            state_mask(m, state);
    }
    memset(m->word, 0, m->n_words * sizeof *m->word);
    for (uint32_t i = 0; i < n && !m->failed; i++) {
        struct stack_pair p = stacks_pairs(m->stacks, set, &n)[i];
        if (p.state < STATE_FIRST)
            continue;
        add_pair(m, p);
    }
    set_ends(m, set);
    m->failed |= m->stacks->failed;
    stacks_cut(m->stacks, mark);
    if (m->stacks->failed == STACKS_LATE || m->stacks->failed == STACKS_CANCELLED) {
        m->stacks->failed = 0, m->late = 1; /* all else is as it was */
        m->tried = m->alike != NULL;        /* who has longer may find them */
    }
}

const uint64_t *masks_get(struct masks *m, uint32_t set)
{
    uint64_t bytes = m->n_words * sizeof *m->word;
    if (set < m->cap_sets && m->of_set[set])
        return m->of_set[set];
    if (m->used + bytes > m->budget)
        drop_all(m);
    m->failed = m->late = 0;
    make(m, set);
    if (m->failed)
        return NULL;
    uint32_t was = m->cap_sets;
    if (set >= was &&
        !mem_grow(&m->of_set, &m->cap_sets, (uint64_t)set + 1, sizeof *m->of_set, PITH_MEM_SCRATCH))
        return m->word;
    if (m->cap_sets > was)
        memset(m->of_set + was, 0, (m->cap_sets - was) * sizeof *m->of_set);
    m->of_set[set] = mem_alloc(bytes, PITH_MEM_SCRATCH);
    if (!m->of_set[set])
        return m->word;
    memcpy(m->of_set[set], m->word, bytes);
    m->used += bytes;
    return m->of_set[set];
}
