/* refused.h -- checks that a call was refused as it should be. */
#ifndef REFUSED_H
#define REFUSED_H

#include <string.h>

#include "pith.h"
#include "test.h"

/* The call gave `st`, and err says so in words that contain all of these. */
static void check_refused(const char *what, pith_status got, const struct pith_error *err,
                          pith_status st, const char *w1, const char *w2, const char *w3)
{
    const char *words[3] = {w1, w2, w3};
    CHECK_MSG(got == st && err->code == st, "%s: status %d, error %d (%s), wanted %d", what,
              (int)got, (int)err->code, err->msg, (int)st);
    for (int i = 0; i < 3; i++)
        CHECK_MSG(!words[i] || strstr(err->msg, words[i]), "%s: says \"%s\", wanted \"%s\"", what,
                  err->msg, words[i]);
    CHECK_MSG(strlen(err->msg) > 8 && !strchr(err->msg, '\n'), "%s: says \"%s\"", what, err->msg);
}

/* For calls that return a status; `err` is in scope. */
#define REFUSED(what, st, w1, w2, w3, call)                                                        \
    do {                                                                                           \
        memset(&err, 0x55, sizeof err); /* whatever was there before */                            \
        pith_status got_ = (call);                                                                 \
        check_refused(what, got_, &err, st, w1, w2, w3);                                           \
    } while (0)
/* For calls that return an object or -1. */
#define REFUSED_OBJECT(what, st, w1, w2, w3, call)                                                 \
    do {                                                                                           \
        memset(&err, 0x55, sizeof err);                                                            \
        CHECK_MSG(!(call), "%s: went well", what);                                                 \
        check_refused(what, err.code, &err, st, w1, w2, w3);                                       \
    } while (0)

#endif
