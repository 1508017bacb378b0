/* error.h -- how things fail. A function that can fail returns a pith_status and takes `struct
 * pith_error *err` last (NULL allowed).
 * First failure wins: error_set on an error that already holds one only adds nothing. Messages:
 * object, found, wanted, what to do. */
#ifndef PITH_BASE_ERROR_H
#define PITH_BASE_ERROR_H

#include "pith.h"

#if defined(__GNUC__)
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))
#else
#define PRINTF_LIKE(f, a)
#endif

/* Fills *err (when not NULL) and returns st, so that `return error_set(err, PITH_IO, "...")` is the
 * whole failure path. */
pith_status error_set(struct pith_error *err, pith_status st, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
/* Puts "context: " before the message already in *err; returns its code (PITH_INTERNAL when err is
 * NULL or holds no failure). */
pith_status error_prefix(struct pith_error *err, const char *fmt, ...) PRINTF_LIKE(2, 3);
void error_clear(struct pith_error *err);

/* Runs an expression that yields a pith_status; on failure jumps to `fail:` with the status in
 * `st`. */
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        st = (expr);                                                                               \
        if (st != PITH_OK)                                                                         \
            goto fail;                                                                             \
    } while (0)

#endif
