/* utf8.h -- UTF-8 by the standard's table 3-7 (no surrogates, no overlong forms, at most U+10FFFF).
 */
#ifndef PITH_BASE_UTF8_H
#define PITH_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Decodes one code point at p[0..n), n >= 1. Returns its length 1..4; an invalid byte gives length
 * 1 and *cp = 0xFFFFFFFF. */
int utf8_decode(const char *p, size_t n, uint32_t *cp);
int utf8_encode(uint32_t cp, char out[4]);     /* length, 0 for a surrogate or above U+10FFFF */
int utf8_valid(const char *p, size_t n);       /* 1 when all of it is valid */
size_t utf8_complete(const char *p, size_t n); /* length of the prefix that does not end inside a
                                                  character that could still be completed */

#endif
