/* trie.c -- tokens are put into a tree of linked nodes, which is then written out in preorder. */
#include "text/vocab/trie.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"

struct link_node {
    uint32_t child, sibling, parent; /* 0: none */
    int32_t token;                   /* the last put here, -1: none; the others follow in same[] */
    uint8_t byte;
};
struct builder {
    struct link_node *node;
    uint32_t n, cap;
    int32_t *same; /* [n_vocab] */
};

static int put(struct builder *b, const char *p, size_t n, int32_t id)
{
    uint32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t k = b->node[at].child;
        while (k && b->node[k].byte != (uint8_t)p[i])
            k = b->node[k].sibling;
        if (!k) {
            if (!mem_grow(&b->node, &b->cap, (uint64_t)b->n + 1, sizeof *b->node, PITH_MEM_SCRATCH))
                return 0;
            k = b->n++;
            b->node[k] = (struct link_node){0, b->node[at].child, at, -1, (uint8_t)p[i]};
            b->node[at].child = k;
        }
        at = k;
    }
    b->same[id] = b->node[at].token;
    b->node[at].token = id;
    return 1;
}

static int put_all(struct builder *b, const struct vocab *v, struct trie *t)
{
    char text[TRIE_DEPTH];
    if (!mem_grow(&b->node, &b->cap, 1, sizeof *b->node, PITH_MEM_SCRATCH))
        return 0;
    b->node[b->n++] = (struct link_node){.token = -1};
    for (int32_t id = 0; id < t->n_vocab; id++) {
        size_t n = vocab_piece(v, id, 0, text, sizeof text);
        if (n == 0)
            t->silent[t->n_silent++] = id;
        else if (n <= sizeof text && !put(b, text, n, id))
            return 0;
        else if (n <= sizeof text && n > t->depth)
            t->depth = (uint32_t)n;
    }
    return 1;
}

static void flatten(const struct builder *b, struct trie *t)
{
    uint32_t at = 0, n_tokens = 0;
    uint16_t depth = 0;
    uint32_t open[TRIE_DEPTH + 1]; /* the nodes above, as numbered here */
    for (;;) {
        const struct link_node *l = &b->node[at];
        open[depth] = t->n;
        t->node[t->n++] = (struct trie_node){0, n_tokens, depth, l->byte};
        for (int32_t id = l->token; id >= 0; id = b->same[id])
            t->token[n_tokens++] = id;
        if (l->child) {
            at = l->child;
            depth++;
            continue;
        }
        for (;; at = b->node[at].parent, depth--) {
            t->node[open[depth]].next = t->n;
            if (at == 0 || b->node[at].sibling)
                break;
        }
        if (at == 0)
            break;
        at = b->node[at].sibling;
    }
    t->node[t->n] = (struct trie_node){.next = t->n, .first = n_tokens};
}

struct trie *trie_new(const struct vocab *v, struct pith_error *err)
{
    struct builder b = {0};
    struct trie *t = mem_zalloc(sizeof *t, PITH_MEM_VOCAB);
    int ok = t != NULL;
    if (ok) {
        t->n_vocab = vocab_n(v);
        t->token = mem_array((size_t)t->n_vocab, sizeof *t->token, PITH_MEM_VOCAB);
        t->silent = mem_array((size_t)t->n_vocab, sizeof *t->silent, PITH_MEM_VOCAB);
        b.same = mem_array((size_t)t->n_vocab, sizeof *b.same, PITH_MEM_SCRATCH);
        ok = t->token && t->silent && b.same && put_all(&b, v, t);
    }
    if (ok) {
        t->node = mem_array((size_t)b.n + 1, sizeof *t->node, PITH_MEM_VOCAB);
        ok = t->node != NULL;
    }
    if (ok)
        flatten(&b, t);
    mem_free(b.node);
    mem_free(b.same);
    if (ok)
        return t;
    error_set(err, PITH_NOMEM, "out of memory for the tree of %d tokens", vocab_n(v));
    trie_free(t);
    return NULL;
}

void trie_free(struct trie *t)
{
    if (!t)
        return;
    mem_free(t->node);
    mem_free(t->token);
    mem_free(t->silent);
    mem_free(t);
}
