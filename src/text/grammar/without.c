/* without.c -- see without.h. All texts are looked for at once (Aho, Corasick 1975): a state is the
 * longest begin of one of them that was just read. A byte that would end one has no edge. A token
 * without text leaves the state as it is, since it does not part the text around it. */
#include "text/grammar/without.h"

#include <string.h>

#include "base/mem.h"
#include "text/jtree.h"

struct node {
    uint32_t next[256]; /* by byte; 0: the root */
    uint32_t fail;      /* the longest begin of one that stands at its end */
    int bad;            /* one of the texts stands at its end */
};

/* Of n bytes in all. NULL: the failure is in r. */
static struct node *make_nodes(struct rules *r, const struct jtree *list, uint32_t *n_nodes)
{
    size_t n = 0;
    uint32_t i = 0;
    for (const struct jtree *v = list->first; v; v = v->next, i++) {
        if (v->kind != JTREE_STRING || !v->text.n) {
            rules_fail(r, PITH_FORMAT, "texts to leave out: [%u] is %s; wanted a text, not empty",
                       i, v->kind == JTREE_STRING ? "empty" : jtree_kind_name(v));
            return NULL;
        }
        n += v->text.n;
        if (n > WITHOUT_BYTES) {
            rules_fail(r, PITH_RANGE, "texts to leave out have over %d bytes; wanted fewer",
                       WITHOUT_BYTES);
            return NULL;
        }
    }
    struct node *node = mem_array(n + 1, sizeof *node, PITH_MEM_SCRATCH);
    if (!node) {
        rules_fail(r, PITH_NOMEM, "out of memory for texts to leave out");
        return NULL;
    }
    *n_nodes = 1;
    for (const struct jtree *v = list->first; v; v = v->next) {
        uint32_t at = 0;
        for (size_t k = 0; k < v->text.n; k++) {
            uint32_t *to = &node[at].next[(uint8_t)v->text.p[k]];
            if (!*to)
                *to = (*n_nodes)++;
            at = *to;
        }
        node[at].bad = 1;
    }
    return node;
}

/* Level by level: where a node has no edge of its own, it has the one of the node it falls back to.
 */
static void complete(struct node *node, uint32_t *todo)
{
    uint32_t n_todo = 1;
    todo[0] = 0;
    for (uint32_t at = 0; at < n_todo; at++) {
        struct node *u = &node[todo[at]];
        for (int b = 0; b < 256; b++) {
            uint32_t back = todo[at] ? node[u->fail].next[b] : 0;
            if (u->next[b]) {
                struct node *v = &node[u->next[b]];
                v->fail = back;
                v->bad |= node[back].bad;
                todo[n_todo++] = u->next[b];
            } else {
                u->next[b] = back;
            }
        }
    }
}

static void put_bytes(struct rules *r, uint32_t base, const struct node *node, uint32_t i)
{
    const uint32_t *next = node[i].next;
    for (int b = 0, end; b < 256; b = end) {
        for (end = b + 1; end < 256 && next[end] == next[b];)
            end++;
        if (!node[next[b]].bad)
            rules_bytes(r, base + i, base + next[b], (uint8_t)b, (uint8_t)(end - 1));
    }
}

uint32_t without_read(struct rules *r, struct slice list)
{
    uint32_t n = 0, root = rules_new(r, SLICE("without")), *todo = NULL;
    const struct jtree *texts = rules_ok(r) ? jtree_read(&r->arena, list.p, list.n, &r->err) : NULL;
    if (!texts)
        return root;
    if (texts->kind != JTREE_ARRAY) {
        rules_fail(r, PITH_FORMAT, "texts to leave out: found %s, wanted an array",
                   jtree_kind_name(texts));
        return root;
    }
    struct node *node = make_nodes(r, texts, &n);
    todo = node ? mem_array(n, sizeof *todo, PITH_MEM_SCRATCH) : NULL;
    if (node && !todo)
        rules_fail(r, PITH_NOMEM, "out of memory for texts to leave out");
    if (todo) {
        uint32_t base = r->n_states;
        complete(node, todo);
        for (uint32_t i = 0; i < n; i++)
            rules_state(r);
        r->rule[root].defined = 1;
        rules_edge(r, r->rule[root].start, base, EDGE_EPS, 0);
        for (uint32_t i = 0; i < n && rules_spend(r, 256); i++) {
            if (node[i].bad)
                continue;
            put_bytes(r, base, node, i);
            rules_edge(r, base + i, base + i, EDGE_SILENT, UINT32_MAX);
            rules_edge(r, base + i, r->rule[root].end, EDGE_EPS, 0);
        }
    }
    mem_free(node);
    mem_free(todo);
    return root;
}
