/* schema_number.c -- numbers: bounds digit by digit, multiples.
 *
 * A bound is kept as its digits, so nothing is rounded. A number of n digits before the point is
 * compared from the left: while it equals the lower (upper) bound so far it is *tight*, and the
 * next digit may not be less (more); at its end what is left of the bound decides. A number with
 * bounds has no exponent.
 */
#include "text/grammar/schema/schema_impl.h"

#include <string.h>

enum { MOST_DIGITS = 64 };
/* Where a schema sets no end a number has one all the same: a model that has nothing more to say
 * would write digits for ever. More than a double or a 64-bit integer has is in them. */
enum { USUAL_DIGITS = 20, USUAL_EXPONENT = 3 };

struct decimal {
    int negative;
    int n, point;           /* digits; of them before the point, at least 1 */
    uint8_t d[MOST_DIGITS]; /* no zeros in front but the one before the point, none at the end
                               behind it */
};

/* 0: too many digits. */
static int read_decimal(struct slice text, struct decimal *x)
{
    const char *p = text.p, *end = p + text.n;
    int64_t exponent = 0, point = -1;
    int sign = 1;
    *x = (struct decimal){.negative = p < end && *p == '-'};
    for (p += x->negative; p < end && (*p | 0x20) != 'e'; p++) {
        if (*p == '.') {
            point = x->n;
            continue;
        }
        if (*p == '0' && x->n == 0) { /* moves the point alone */
            exponent -= point >= 0;
            continue;
        }
        if (x->n == MOST_DIGITS)
            return 0;
        x->d[x->n++] = (uint8_t)(*p - '0');
    }
    if (p < end) {
        p++;
        sign = p < end && *p == '-' ? -1 : 1;
        p += p < end && (*p == '-' || *p == '+');
        int64_t e = 0;
        for (; p < end && e < 1000; p++)
            e = 10 * e + (*p - '0');
        exponent += sign * e;
    }
    int64_t at = (point < 0 ? x->n : point) + exponent;
    while (x->n && x->d[x->n - 1] == 0 && x->n > at)
        x->n--;
    if (x->n == 0) {
        x->n = x->point = 1;
        x->negative = 0;
        return 1;
    }
    int64_t front = at < 1 ? 1 - at : 0, back = at > x->n ? at - x->n : 0;
    if (front + x->n + back > MOST_DIGITS)
        return 0;
    memmove(x->d + front, x->d, (size_t)x->n);
    memset(x->d, 0, (size_t)front);
    memset(x->d + front + x->n, 0, (size_t)back);
    x->n += (int)(front + back);
    x->point = (int)(at < 1 ? 1 : at);
    while (x->n > x->point && x->d[x->n - 1] == 0)
        x->n--;
    return 1;
}

static int compare_size(const struct decimal *a, const struct decimal *b)
{
    if (a->point != b->point)
        return a->point < b->point ? -1 : 1;
    for (int i = 0; i < a->n || i < b->n; i++) {
        int x = i < a->n ? a->d[i] : 0, y = i < b->n ? b->d[i] : 0;
        if (x != y)
            return x < y ? -1 : 1;
    }
    return 0;
}

static int compare(const struct decimal *a, const struct decimal *b)
{
    if (a->negative != b->negative)
        return a->negative ? -1 : 1;
    return a->negative ? compare_size(b, a) : compare_size(a, b);
}

int schema_compare(struct slice a, struct slice b)
{
    struct decimal x, y;
    return read_decimal(a, &x) && read_decimal(b, &y) ? compare(&x, &y) : 2;
}

/* ---------------------------------------------------------------- bounds */

struct bound {
    struct decimal x;
    int given, open; /* open: the bound itself is outside */
};

/* The tightest of the bounds that the keywords of all parts give. */
static struct bound bound_of(struct schema *s, const struct parts *p, const char *key,
                             const char *exclusive, int lower)
{
    struct bound best = {.given = 0};
    for (uint32_t i = 0; i < 2 * p->n; i++) {
        const struct jtree *v = jtree_get(p->v[i / 2].node, i % 2 ? exclusive : key);
        struct bound b = {.given = 1, .open = (int)(i % 2)};
        if (!v)
            continue;
        if (v->kind != JTREE_NUMBER)
            schema_refuse(s, v, "found %s; wanted a number", jtree_kind_name(v));
        else if (!read_decimal(v->text, &b.x))
            schema_refuse(s, v, "wanted a number of at most %d digits", MOST_DIGITS);
        int order = best.given ? compare(&b.x, &best.x) : 0;
        if (!best.given || (lower ? order > 0 : order < 0) || (order == 0 && b.open))
            best = b;
    }
    return best;
}

int schema_number_fits(struct schema *s, const struct parts *p, const struct jtree *value)
{
    struct bound lo = bound_of(s, p, "minimum", "exclusiveMinimum", 1),
                 hi = bound_of(s, p, "maximum", "exclusiveMaximum", 0);
    struct decimal x;
    if (!read_decimal(value->text, &x)) {
        schema_refuse(s, value, "wanted a number of at most %d digits", MOST_DIGITS);
        return 0;
    }
    int above = lo.given ? compare(&x, &lo.x) : 1, below = hi.given ? compare(&hi.x, &x) : 1;
    return (above > 0 || (above == 0 && !lo.open)) && (below > 0 || (below == 0 && !hi.open));
}

/* ---------------------------------------------------------------- numbers between two sizes */

struct range {
    struct schema *s;
    struct bound lo, hi; /* lo is given; neither is negative */
    int integer, n;      /* digits before the point */
    int end;             /* digits that a number has at most while it is tight */
    uint32_t to;
    uint32_t whole,
        part; /* nothing is tight: all digits before the point were read; at least one behind it */
    uint32_t state[2 * MOST_DIGITS + USUAL_DIGITS + 2]
                  [4]; /* after so many digits, tight as the bits say; 0: not reached */
};
enum { TIGHT_LO = 1, TIGHT_HI = 2 };

static int digit(const struct bound *b, int i)
{
    return i < b->x.n ? b->x.d[i] : 0;
}

static int rest_is_zero(const struct bound *b, int i)
{
    for (; i < b->x.n; i++) {
        if (b->x.d[i])
            return 0;
    }
    return 1;
}

static int may_end(const struct range *g, int i, int tight)
{
    if ((tight & TIGHT_LO) && (!rest_is_zero(&g->lo, i) || g->lo.open))
        return 0;
    return !(tight & TIGHT_HI) || !rest_is_zero(&g->hi, i) || !g->hi.open;
}

/* The edges by the next digit, the i-th; `behind` gets the states after it. */
static void next_digit(struct range *g, uint32_t from, int i, int tight, uint32_t behind[4])
{
    struct rules *r = g->s->r;
    for (int d = i == 0 && g->n > 1; d < 10; d++) {
        int t = tight;
        if (((t & TIGHT_LO) && d < digit(&g->lo, i)) || ((t & TIGHT_HI) && d > digit(&g->hi, i)))
            continue;
        if ((t & TIGHT_LO) && d > digit(&g->lo, i))
            t &= ~TIGHT_LO;
        if ((t & TIGHT_HI) && d < digit(&g->hi, i))
            t &= ~TIGHT_HI;
        if (t && i + 1 == g->end && !may_end(g, g->end, t))
            continue; /* nothing could follow */
        if (!behind[t])
            behind[t] = rules_state(r);
        rules_bytes(r, from, behind[t], (uint8_t)('0' + d), (uint8_t)('0' + d));
    }
}

/* Numbers of n digits before the point, between the bounds. */
static void write_length(struct range *g, uint32_t from)
{
    struct rules *r = g->s->r;
    int tight = (g->n == g->lo.x.point ? TIGHT_LO : 0) |
                (g->hi.given && g->n == g->hi.x.point ? TIGHT_HI : 0);
    int most = g->lo.x.n > g->hi.x.n ? g->lo.x.n : g->hi.x.n;
    g->end = most > g->n + 1 ? most : g->n + 1; /* behind it both bounds have only zeros */
    g->end += g->integer ? 0 : USUAL_DIGITS;
    memset(g->state, 0, sizeof g->state);
    g->state[0][tight] = from;
    for (int i = 0; i <= g->end && rules_ok(r); i++) {
        for (int t = 3; t >= 0; t--) { /* downwards: tightness is only lost */
            uint32_t at = g->state[i][t];
            if (!at)
                continue;
            if (i >= g->n && t == 0) {
                rules_edge(r, at, i == g->n ? g->whole : g->part, EDGE_EPS, 0);
                continue;
            }
            if (i >= g->n && may_end(g, i, t))
                rules_edge(r, at, g->to, EDGE_EPS, 0);
            if (i == g->end || (i >= g->n && g->integer))
                continue;
            if (i == g->n)
                at = rules_text(r, at, ".", 1);
            next_digit(g, at, i, t, g->state[i + 1]);
        }
    }
}

/* Up to `most` digits; the state behind them. */
static uint32_t optional_digits(struct rules *r, uint32_t from, int most)
{
    uint32_t to = rules_state(r);
    for (int i = 0; i < most && rules_ok(r); i++) {
        uint32_t next = rules_state(r);
        rules_edge(r, from, to, EDGE_EPS, 0);
        rules_bytes(r, from, next, '0', '9');
        from = next;
    }
    rules_edge(r, from, to, EDGE_EPS, 0);
    return to;
}

/* Numbers of more digits before the point than lo and of fewer than hi. */
static void write_lengths_between(struct range *g, uint32_t from)
{
    struct rules *r = g->s->r;
    int least = g->lo.x.point + 1, most = g->hi.given            ? g->hi.x.point - 1
                                          : least < USUAL_DIGITS ? USUAL_DIGITS
                                                                 : least;
    uint32_t at = rules_state(r);
    rules_bytes(r, from, at, '1', '9');
    for (int n = 1; n <= most && rules_ok(r); n++) {
        if (n >= least)
            rules_edge(r, at, g->whole, EDGE_EPS, 0);
        uint32_t next = rules_state(r);
        rules_bytes(r, at, next, '0', '9');
        at = next;
    }
}

/* Sizes from lo to hi, behind the sign. */
static void write_range(struct range *g, uint32_t from)
{
    struct rules *r = g->s->r;
    g->whole = rules_state(r);
    g->part = rules_state(r);
    rules_edge(r, g->whole, g->to, EDGE_EPS, 0);
    if (!g->integer) {
        rules_bytes(r, rules_text(r, g->whole, ".", 1), g->part, '0', '9');
        rules_edge(r, optional_digits(r, g->part, USUAL_DIGITS), g->to, EDGE_EPS, 0);
    }
    for (int upper = 0; upper < 2; upper++) {
        g->n = upper ? g->hi.x.point : g->lo.x.point;
        if (upper && (!g->hi.given || g->hi.x.point <= g->lo.x.point))
            break;
        uint32_t begin = rules_state(r); /* may lie behind a sign that others share */
        rules_edge(r, from, begin, EDGE_EPS, 0);
        write_length(g, begin);
    }
    write_lengths_between(g, from);
}

static void write_between(struct schema *s, struct bound lo, struct bound hi, int integer,
                          uint32_t from, uint32_t to)
{
    static const struct bound zero = {.x = {.n = 1, .point = 1}, .given = 1};
    struct range g = {.s = s, .integer = integer, .to = to};
    if (!hi.given || !hi.x.negative) { /* 0 and more */
        g.lo = lo.given && !lo.x.negative ? lo : zero;
        g.hi = hi;
        write_range(&g, from);
    }
    if (lo.given && !lo.x.negative)
        return;
    g.lo = hi.given && hi.x.negative ? hi : zero;
    g.lo.open |= !(hi.given && hi.x.negative); /* no -0 */
    g.hi = lo;
    write_range(&g, rules_text(s->r, from, "-", 1));
}

/* ---------------------------------------------------------------- numbers */

static uint32_t digits(struct rules *r, uint32_t from, uint32_t max)
{
    struct rules_mark mark = rules_mark(r);
    struct rules_piece one = {rules_state(r), rules_state(r)};
    rules_bytes(r, one.start, one.end, '0', '9');
    one = rules_repeat(r, mark, one, 1, max);
    rules_edge(r, from, one.start, EDGE_EPS, 0);
    return one.end;
}

/* The part before the point, with its sign. */
static uint32_t write_integer(struct rules *r, uint32_t from)
{
    uint32_t at = rules_text(r, from, "-", 1), end = rules_state(r), more = rules_state(r);
    rules_edge(r, from, at, EDGE_EPS, 0);
    rules_bytes(r, at, end, '0', '0');
    rules_bytes(r, at, more, '1', '9');
    rules_edge(r, optional_digits(r, more, USUAL_DIGITS - 1), end, EDGE_EPS, 0);
    return end;
}

static void write_any(struct rules *r, int integer, uint32_t max_fraction, uint32_t from,
                      uint32_t to)
{
    uint32_t at = write_integer(r, from);
    rules_edge(r, at, to, EDGE_EPS, 0);
    if (integer)
        return;
    uint32_t behind = digits(r, rules_text(r, at, ".", 1),
                             max_fraction == RULES_ENDLESS ? USUAL_DIGITS : max_fraction);
    rules_edge(r, behind, to, EDGE_EPS, 0);
    if (max_fraction != RULES_ENDLESS)
        return;
    uint32_t e = rules_state(r), sign = rules_state(r);
    rules_edge(r, behind, e, EDGE_EPS, 0);
    rules_edge(r, at, e, EDGE_EPS, 0);
    rules_bytes(r, e, sign, 'e', 'e');
    rules_bytes(r, e, sign, 'E', 'E');
    uint32_t exponent = rules_text(r, sign, "+", 1);
    rules_bytes(r, sign, exponent, '-', '-');
    rules_edge(r, sign, exponent, EDGE_EPS, 0);
    rules_edge(r, digits(r, exponent, USUAL_EXPONENT), to, EDGE_EPS, 0);
}

/* Whole multiples of n: the states are how many digits were read, and their remainder. */
static void write_multiples(struct rules *r, uint32_t n, uint32_t from, uint32_t to)
{
    uint32_t begin = rules_text(r, from, "-", 1), base = r->n_states;
    rules_edge(r, from, begin, EDGE_EPS, 0);
    rules_bytes(r, begin, to, '0', '0');
    for (uint32_t i = 0; i < n * USUAL_DIGITS && rules_ok(r); i++)
        rules_state(r);
    for (uint32_t d = 1; d < 10; d++)
        rules_bytes(r, begin, base + d % n, (uint8_t)('0' + d), (uint8_t)('0' + d));
    for (uint32_t k = 0; k < USUAL_DIGITS && rules_ok(r); k++, base += n) {
        rules_edge(r, base, to, EDGE_EPS, 0);
        for (uint32_t rest = 0; rest < n && k + 1 < USUAL_DIGITS && rules_ok(r); rest++)
            for (uint32_t d = 0; d < 10; d++)
                rules_bytes(r, base + rest, base + n + (rest * 10 + d) % n, (uint8_t)('0' + d),
                            (uint8_t)('0' + d));
    }
}

void schema_number(struct schema *s, const struct parts *p, int integer, uint32_t from, uint32_t to)
{
    enum { MOST_MULTIPLE = 512 };
    struct bound lo = bound_of(s, p, "minimum", "exclusiveMinimum", 1),
                 hi = bound_of(s, p, "maximum", "exclusiveMaximum", 0);
    struct decimal step = {.n = 1, .point = 1};
    const struct jtree *multiple = NULL;
    for (uint32_t i = 0; i < p->n; i++) {
        const struct jtree *v = jtree_get(p->v[i].node, "multipleOf");
        if (v && multiple)
            schema_refuse(s, v, "several multipleOf for one number are not supported");
        multiple = v ? v : multiple;
    }
    if (multiple && (multiple->kind != JTREE_NUMBER || !read_decimal(multiple->text, &step) ||
                     step.negative || (step.n == 1 && !step.d[0])))
        schema_refuse(s, multiple, "wanted a number above 0 of at most %d digits", MOST_DIGITS);
    if (!rules_ok(s->r))
        return;
    int whole = step.n <= step.point,
        power = step.d[step.n - 1] == 1; /* 1, or a 1 behind the point and zeros */
    uint64_t n = 0;
    for (int i = 0; i < step.n; i++) {
        n = i < step.point && n <= MOST_MULTIPLE ? 10 * n + step.d[i] : n;
        power &= i == step.n - 1 || step.d[i] == 0;
    }
    if (multiple && whole && n == 1) {
        integer = 1;
        multiple = NULL;
    }
    if (multiple && integer && !whole && power)
        multiple = NULL; /* every integer is one */
    if (multiple && (lo.given || hi.given || (whole ? n > MOST_MULTIPLE : !power)))
        schema_refuse(s, multiple,
                      "multipleOf is supported as a whole number up to %d or as 0.1, 0.01 ..., "
                      "without bounds",
                      MOST_MULTIPLE);
    else if (multiple && whole)
        write_multiples(s->r, (uint32_t)n, from, to);
    else if (multiple)
        write_any(s->r, 0, (uint32_t)(step.n - step.point), from, to);
    else if (lo.given || hi.given)
        write_between(s, lo, hi, integer, from, to);
    else
        write_any(s->r, integer, RULES_ENDLESS, from, to);
}
