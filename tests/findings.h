/* findings.h -- what the cases of a test find wrong, in memory that their processes share: a crash
 * costs one case, and what was found before it is told. */
#ifndef PITH_TESTS_FINDINGS_H
#define PITH_TESTS_FINDINGS_H

#include <stdarg.h>
#include <sys/mman.h>

#include "pith.h"
#include "test.h"

enum { FINDINGS_TOLD = 4 }; /* the first ones, each with its case */

static struct findings {
    long n;
    char label[200]; /* the case of this moment */
    char why[FINDINGS_TOLD][544];
} * findings;

/* 0: no memory can be shared. Before the first child. */
static int findings_make(void)
{
    void *p =
        mmap(NULL, sizeof *findings, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    findings = p == MAP_FAILED ? NULL : p;
    return findings != NULL;
}

__attribute__((format(printf, 1, 2))) static void bad(const char *fmt, ...)
{
    char text[320];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (findings->n < FINDINGS_TOLD)
        snprintf(findings->why[findings->n], sizeof findings->why[0], "%s: %s", findings->label,
                 text);
    findings->n++;
}

/* What a failed call must have said; st: what it returned, PITH_OK: nothing of the kind. */
static void check_message(const char *call, pith_status st, const struct pith_error *err)
{
    if (err->code == PITH_OK || err->code > PITH_INTERNAL || (st != PITH_OK && st != err->code))
        bad("%s failed with status %d, error %d", call, (int)st, (int)err->code);
    if (strlen(err->msg) < 8 || strchr(err->msg, '\n'))
        bad("%s says \"%.100s\"", call, err->msg);
}

/* They fail the test, and are forgotten. */
static void findings_tell(void)
{
    for (long i = 0; i < findings->n && i < FINDINGS_TOLD; i++)
        test_fail(__FILE__, __LINE__, "%s", findings->why[i]);
    CHECK_MSG(findings->n <= FINDINGS_TOLD, "%ld failed in all", findings->n);
    findings->n = 0;
}

#endif
