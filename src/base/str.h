/* str.h -- slices and a growing string with sticky failure (first failure kept, later calls do
 * nothing, one check at the end). */
#ifndef PITH_BASE_STR_H
#define PITH_BASE_STR_H

#include "pith.h"

struct slice { /* bytes owned by somebody else; not terminated */
    const char *p;
    size_t n;
};
#define SLICE(lit) ((struct slice){lit, sizeof(lit) - 1})
struct slice slice_of(const char *z); /* NULL gives an empty slice */
int slice_eq(struct slice a, struct slice b);
int slice_eq_z(struct slice a, const char *z);
uint64_t slice_hash(struct slice s); /* XXH3-64, the same everywhere; tables are keyed: hash.h */

struct str {
    char *p; /* always terminated after the first append that succeeded; NULL before */
    size_t n, cap;
    pith_purpose purpose;
    int failed;
};
void str_init(struct str *s, pith_purpose purpose);
void str_deinit(struct str *s);
void str_clear(struct str *s); /* begins a new text: keeps the capacity, forgets a failure */
int str_reserve(struct str *s, size_t extra); /* 1 on success */
void str_put(struct str *s, const char *bytes, size_t n);
void str_putz(struct str *s, const char *z);
void str_putc(struct str *s, char c);
void str_printf(struct str *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void str_json(struct str *s, const char *bytes,
              size_t n); /* quoted and escaped JSON string; invalid UTF-8 becomes U+FFFD */
void str_json_part(struct str *s, const char *bytes, size_t n); /* the same without its quotes */

/* strtod as in the "C" locale, whatever the program has set: our numbers have a point. */
double str_to_double(const char *text, char **end);
/* Puts the calling thread into the "C" locale, for many conversions both ways; what it was before
 * goes to c_locale_leave. */
void *c_locale_enter(void);
void c_locale_leave(void *before);

#endif
