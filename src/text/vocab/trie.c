/* trie.c -- the texts of all tokens are sorted by their bytes; what each has in common with the one
 * before it is on the way to it, and the rest are new nodes. */
#include "text/vocab/trie.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/work.h"

struct word {
    uint64_t key; /* its first eight bytes, the first one on top; zeros behind its end */
    size_t at;    /* in the builder's text */
    uint32_t n, shared; /* bytes; how many of them the word before has, too */
    int32_t id;
};
struct builder {
    char *text;
    size_t n_text;
    uint32_t cap_text;
    struct word *word, *other; /* [n_vocab] each: sorted by merging from one to the other */
    uint32_t n;
};

static uint64_t key_of(const char *p, size_t n)
{
    uint64_t key = 0;
    for (size_t i = 0; i < 8; i++)
        key = key << 8 | (i < n ? (uint8_t)p[i] : 0);
    return key;
}

static int put_all(struct builder *b, const struct vocab *v, struct trie *t)
{
    for (int32_t id = 0; id < t->n_vocab; id++) {
        if (!mem_grow(&b->text, &b->cap_text, (uint64_t)b->n_text + TRIE_DEPTH, 1,
                      PITH_MEM_SCRATCH))
            return 0;
        char *p = b->text + b->n_text;
        size_t n = vocab_piece(v, id, 0, p, TRIE_DEPTH);
        if (!work_tick(1 + n))
            return 0;
        if (n == 0)
            t->silent[t->n_silent++] = id;
        if (n == 0 || n > TRIE_DEPTH)
            continue;
        b->word[b->n++] = (struct word){key_of(p, n), b->n_text, (uint32_t)n, 0, id};
        b->n_text += n;
        t->depth = n > t->depth ? (uint32_t)n : t->depth;
    }
    return 1;
}

/* Not after: where the keys are the same, one that ends within them is the beginning of the other
 * one. */
static int in_order(const struct builder *b, const struct word *x, const struct word *y)
{
    if (x->key != y->key)
        return x->key < y->key;
    uint32_t least = x->n < y->n ? x->n : y->n;
    int cmp = least > 8 ? memcmp(b->text + x->at + 8, b->text + y->at + 8, least - 8) : 0;
    return cmp ? cmp < 0 : x->n <= y->n;
}

static int sort(struct builder *b)
{
    for (size_t run = 1; run < b->n; run *= 2) {
        for (size_t from = 0; from < b->n; from += 2 * run) {
            size_t middle = from + run < b->n ? from + run : b->n;
            size_t end = middle + run < b->n ? middle + run : b->n;
            for (size_t i = from, k = middle, to = from; to < end; to++) {
                int left = k == end || (i < middle && in_order(b, &b->word[i], &b->word[k]));
                b->other[to] = left ? b->word[i++] : b->word[k++];
                if (!work_tick(1))
                    return 0;
            }
        }
        struct word *done = b->other;
        b->other = b->word;
        b->word = done;
    }
    return 1;
}

/* Returns how many nodes there will be, 0: it was stopped. */
static size_t compare(struct builder *b)
{
    size_t n_nodes = 1;
    for (uint32_t i = 0; i < b->n; i++) {
        struct word *w = &b->word[i];
        const struct word *before = i ? w - 1 : NULL;
        const char *p = b->text + w->at;
        while (before && w->shared < w->n && w->shared < before->n &&
               p[w->shared] == b->text[before->at + w->shared])
            w->shared++;
        n_nodes += w->n - w->shared;
        if (!work_tick(1 + w->shared))
            return 0;
    }
    return n_nodes;
}

static int flatten(const struct builder *b, struct trie *t)
{
    uint32_t n_tokens = 0, depth = 0, open[TRIE_DEPTH + 1] = {0}; /* the nodes above */
    t->node[t->n++] = (struct trie_node){0};
    for (uint32_t i = 0; i < b->n; i++) {
        const struct word *w = &b->word[i];
        for (; depth > w->shared; depth--)
            t->node[open[depth]].next = t->n;
        for (; depth < w->n; t->n++) {
            uint8_t byte = (uint8_t)b->text[w->at + depth];
            open[++depth] = t->n;
            t->node[t->n] = (struct trie_node){0, n_tokens, (uint16_t)depth, byte};
        }
        t->token[n_tokens++] = w->id;
        if (!work_tick(1 + w->n - w->shared))
            return 0;
    }
    for (uint32_t d = 0; d <= depth; d++)
        t->node[open[d]].next = t->n;
    t->node[t->n] = (struct trie_node){.next = t->n, .first = n_tokens};
    return 1;
}

struct trie *trie_new(const struct vocab *v, struct pith_error *err)
{
    struct builder b = {0};
    size_t n = (size_t)vocab_n(v), n_nodes = 0;
    struct trie *t = mem_zalloc(sizeof *t, PITH_MEM_VOCAB);
    if (t) {
        t->n_vocab = vocab_n(v);
        t->token = mem_array(n, sizeof *t->token, PITH_MEM_VOCAB);
        t->silent = mem_array(n, sizeof *t->silent, PITH_MEM_VOCAB);
        b.word = mem_array(n, sizeof *b.word, PITH_MEM_SCRATCH);
        b.other = mem_array(n, sizeof *b.other, PITH_MEM_SCRATCH);
    }
    if (t && t->token && t->silent && b.word && b.other && put_all(&b, v, t) && sort(&b))
        n_nodes = compare(&b);
    if (n_nodes)
        t->node = mem_array(n_nodes + 1, sizeof *t->node, PITH_MEM_VOCAB);
    int ok = n_nodes && t->node && flatten(&b, t);
    mem_free(b.text);
    mem_free(b.word);
    mem_free(b.other);
    if (ok)
        return t;
    error_set(err, PITH_NOMEM, "out of memory for the tree of %zu tokens", n);
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
