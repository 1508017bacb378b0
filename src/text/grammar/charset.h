/* charset.h -- sets of code points as sorted ranges, for character classes. Failure to grow is
 * sticky. */
#ifndef PITH_TEXT_CHARSET_H
#define PITH_TEXT_CHARSET_H

#include "base/error.h"

enum { CHARSET_LAST = 0x10FFFF };
struct charset_range {
    uint32_t lo, hi; /* both in it */
};
struct charset {
    struct charset_range *v;
    uint32_t n, cap;
    int failed;
};
#define CHARSET_INIT                                                                               \
    {                                                                                              \
        NULL, 0, 0, 0                                                                              \
    }
void charset_deinit(struct charset *s);
void charset_add(struct charset *s, uint32_t lo, uint32_t hi); /* any order; nothing when lo > hi */
void charset_put(struct charset *s, const struct charset *from);
void charset_sort(
    struct charset *s); /* in order, apart from each other; the other functions want that */
void charset_invert(struct charset *s); /* within 0..CHARSET_LAST */
/* Adds what a and [lo, hi] share. */
void charset_cut(struct charset *to, const struct charset *a, uint32_t lo, uint32_t hi);

#endif
