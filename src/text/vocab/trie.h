/* trie.h -- the texts of all tokens as one tree of bytes, flattened in preorder, so that walking it
 * is one pass forward:
 *
 *     node:   0      1      2      3      4              next: first node that is not below
 *     byte:   -      a      b      c      b              "ab" is 2, "abc" 3, "b" 4
 *     depth:  0      1      2      3      1
 *     token:  ids of the tokens that end at node i: token[first[i]] .. token[first[i + 1]]
 *
 * Tokens without text, which only a grammar can ask for by name, are not in it but in `silent`.
 * Read-only, any number of threads. */
#ifndef PITH_TEXT_TRIE_H
#define PITH_TEXT_TRIE_H

#include "text/vocab/vocab.h"

struct trie_node {
    uint32_t next, first;
    uint16_t depth;
    uint8_t byte;
};
struct trie {
    struct trie_node *node; /* [n + 1], the last one for its `first` alone */
    int32_t *token, *silent;
    uint32_t n, n_silent, depth; /* depth: of the deepest node */
    int32_t n_vocab;
};
enum { TRIE_DEPTH = 1024 }; /* longer tokens are never allowed */
struct trie *trie_new(const struct vocab *v, struct pith_error *err);
void trie_free(struct trie *t);

#endif
