/* tap.c -- names of values that are given out on their way (arch.h, struct arch_tap). */
#include "arch/arch.h"

#include <stdio.h>
#include <string.h>

/* Visits [first, end] of a role have taps. */
static int32_t first_of(const struct arch_model *m, enum role role)
{
    return role == ROLE_ENCODER ? 0 : m->stage.first;
}

static int32_t end_of(const struct arch_model *m, enum role role)
{
    return role == ROLE_ENCODER ? m->n_encoder_visits : arch_stage_end(m);
}

static int has_end(const struct arch_model *m, enum role role)
{
    return role == ROLE_ENCODER || arch_ends(m);
}

/* What there is of a role. */
static void tell(const struct arch_model *m, enum role role, char *out, size_t cap)
{
    const struct arch_role *r = arch_role(m, role);
    const char *before = role == ROLE_ENCODER ? "encoder." : "";
    int n = snprintf(out, cap, "%svisit.%d .. %svisit.%d", before, first_of(m, role), before,
                     end_of(m, role));
    if (has_end(m, role))
        n += snprintf(out + n, cap - (size_t)n, ", %send", before);
    for (int k = 1; k < CARRY_MAX; k++)
        if (r->carried[k] && n > 0 && (size_t)n < cap)
            n += snprintf(out + n, cap - (size_t)n, ", %svisit.N.%s", before, r->carried[k]);
}

static pith_status unknown(const struct arch_model *m, const char *name, struct pith_error *err)
{
    char own[200], read[200] = "";
    tell(m, m->runs, own, sizeof own);
    if (m->n_encoder_visits)
        tell(m, ROLE_ENCODER, read, sizeof read);
    return error_set(err, PITH_RANGE, "%s has no tap \"%.80s\"; wanted one of %s%s%s",
                     m->arch->name, name, own, *read ? ", " : "", read);
}

/* Digits, and no more than are of a number up to most; -1: it is none. */
static int32_t number(const char **at, int32_t most)
{
    int32_t v = 0;
    const char *p = *at;
    for (; *p >= '0' && *p <= '9' && v <= most; p++)
        v = v * 10 + (*p - '0');
    int ok = p > *at && v <= most && (p == *at + 1 || **at != '0');
    *at = p;
    return ok ? v : -1;
}

/* The value of the carry, -1: none of this name. */
static int value_of(const struct arch_role *r, const char *name)
{
    int k = 1;
    while (k < CARRY_MAX && !(r->carried[k] && !strcmp(r->carried[k], name)))
        k++;
    return k < CARRY_MAX ? k : -1;
}

pith_status arch_tap_find(const struct arch_model *m, const char *name, struct arch_tap *out,
                          struct pith_error *err)
{
    const char *at = name;
    *out = (struct arch_tap){.role = m->runs, .visit = TAP_END};
    if (m->n_encoder_visits && !strncmp(at, "encoder.", 8)) {
        out->role = ROLE_ENCODER;
        at += 8;
    }
    if (strlen(name) >= TAP_NAME)
        return unknown(m, name, err);
    memcpy(out->name, name, strlen(name) + 1);
    if (!strcmp(at, "end") && has_end(m, out->role))
        return PITH_OK;
    if (strncmp(at, "visit.", 6) != 0)
        return unknown(m, name, err);
    at += 6;
    out->visit = number(&at, end_of(m, out->role));
    out->value = *at == '.' ? value_of(arch_role(m, out->role), at + 1) : *at ? -1 : 0;
    return out->visit < first_of(m, out->role) || out->value < 0 ? unknown(m, name, err) : PITH_OK;
}
