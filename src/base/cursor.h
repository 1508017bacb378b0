/* cursor.h -- the one reader of untrusted bytes: bounded, little or big endian, sticky failure. A
 * failed cursor reads zeros and empty slices; `what` and `at` say what was wanted and where it
 * failed. */
#ifndef PITH_BASE_CURSOR_H
#define PITH_BASE_CURSOR_H

#include "base/str.h"

struct cursor {
    const uint8_t *p;
    uint64_t n, at; /* size in all; next byte */
    int big_endian;
    int failed;
    uint64_t failed_at, wanted; /* offset of the failed read and how many bytes it wanted */
    const char *what;           /* static text given by the failed read */
};
void cursor_init(struct cursor *c, const void *p, uint64_t n);
uint8_t cursor_u8(struct cursor *c, const char *what);
uint16_t cursor_u16(struct cursor *c, const char *what);
uint32_t cursor_u32(struct cursor *c, const char *what);
uint64_t cursor_u64(struct cursor *c, const char *what);
float cursor_f32(struct cursor *c, const char *what);
double cursor_f64(struct cursor *c, const char *what);
const uint8_t *cursor_bytes(struct cursor *c, uint64_t n,
                            const char *what);               /* NULL when fewer are left */
struct slice cursor_str(struct cursor *c, const char *what); /* u64 length, then bytes */
void cursor_skip(struct cursor *c, uint64_t n, const char *what);

#endif
