/* schema_number.c -- numbers: bounds digit by digit, multiples.
 *
 * A bound is kept as its digits, so nothing is rounded. A number of n digits before the point is
 * compared from the left: while it equals the lower (upper) bound so far it is *tight*, and the
 * next digit may not be less (more); at its end what is left of the bound decides. A number with
 * bounds has no exponent.
 */
#include "text/grammar/schema/schema_impl.h"
#include "base/mem.h"

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

/* What the bounds are for sizes, without the sign. */
struct sides {
    int positive, negative; /* are there numbers with this sign? */
    struct bound lo, hi, negative_lo, negative_hi;
};

static struct sides sides_of(struct bound lo, struct bound hi)
{
    static const struct bound zero = {.x = {.n = 1, .point = 1}, .given = 1};
    int above = lo.given && !lo.x.negative, below = hi.given && hi.x.negative;
    struct sides x = {.positive = !below, .negative = !above};
    x.lo = above ? lo : zero;
    x.hi = hi;
    x.negative_lo = below ? hi : zero;
    x.negative_lo.open |= !below; /* no -0 */
    x.negative_hi = lo;
    return x;
}

static void write_between(struct schema *s, struct bound lo, struct bound hi, int integer,
                          uint32_t from, uint32_t to)
{
    struct range g = {.s = s, .integer = integer, .to = to};
    struct sides x = sides_of(lo, hi);
    if (x.positive) {
        g.lo = x.lo;
        g.hi = x.hi;
        write_range(&g, from);
    }
    if (x.negative) {
        g.lo = x.negative_lo;
        g.hi = x.negative_hi;
        write_range(&g, rules_text(s->r, from, "-", 1));
    }
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

static void write_any(struct rules *r, int integer, uint32_t from, uint32_t to)
{
    uint32_t at = write_integer(r, from);
    rules_edge(r, at, to, EDGE_EPS, 0);
    if (integer)
        return;
    uint32_t behind = digits(r, rules_text(r, at, ".", 1), USUAL_DIGITS);
    rules_edge(r, behind, to, EDGE_EPS, 0);
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

/* ---------------------------------------------------------------- multiples */

/* The step of multipleOf: n / 10^fraction, a fraction in lowest digits. */
struct step {
    uint32_t n;
    int fraction;
};
enum { MOST_STEP = 512, MOST_FRACTION = 20 };

/* Multiples between two sizes. A state is how far the digits came and their remainder. Digits that
 * no multiple goes on with are left out, so a writer never gets stuck. */
struct multiples {
    struct range g;
    struct step step;
    int most;               /* digits before the point at most */
    uint32_t *loose;        /* [digits to come before the point][remainder]; 0: leads nowhere */
    uint32_t *part;         /* [digits read behind the point][remainder] */
    uint32_t tight[4];      /* of the length at hand, by tightness */
    uint32_t shift[MOST_FRACTION + 1]; /* 10^i modulo the step */
};

static uint32_t *loose_at(const struct multiples *m, int left, uint32_t rest)
{
    return m->loose + (uint32_t)left * m->step.n + rest;
}

static uint32_t *part_at(const struct multiples *m, int read, uint32_t rest)
{
    return m->part + (uint32_t)read * m->step.n + rest;
}

/* The remainder once a digit follows. */
static uint32_t rest_behind(const struct multiples *m, uint32_t rest, int digit)
{
    return (rest * 10 + (uint32_t)digit) % m->step.n;
}

/* Is a number with `read` digits behind its point and this remainder a multiple? */
static int is_multiple(const struct multiples *m, int read, uint32_t rest)
{
    return rest * m->shift[m->step.fraction - read] % m->step.n == 0;
}

static uint32_t made(struct rules *r, uint32_t *state)
{
    return *state = *state ? *state : rules_state(r);
}

/* States where no bound matters any more, from the last digit to the first. */
static void write_loose(struct multiples *m)
{
    struct rules *r = m->g.s->r;
    int f = m->step.fraction;
    for (int i = f; i > -m->most - 1 && rules_ok(r); i--) /* > 0: behind the point */
        for (uint32_t rest = 0; rest < m->step.n && rules_ok(r); rest++) {
            uint32_t *at = i > 0 ? part_at(m, i, rest) : loose_at(m, -i, rest), point = 0;
            if (i >= 0 && is_multiple(m, i, rest))
                rules_edge(r, made(r, at), m->g.to, EDGE_EPS, 0);
            for (int d = 0; d < 10 && i < f; d++) {
                uint32_t behind = rest_behind(m, rest, d);
                uint32_t next = *(i >= 0 ? part_at(m, i + 1, behind)
                                         : loose_at(m, -i - 1, behind));
                if (!next)
                    continue;
                uint32_t from = made(r, at);
                if (i == 0)
                    from = point ? point : (point = rules_text(r, from, ".", 1));
                rules_bytes(r, from, next, (uint8_t)('0' + d), (uint8_t)('0' + d));
            }
        }
}

/* Where the i-th digit leads: the tightness behind it, or -1 where it is outside. */
static int tight_behind(const struct range *g, int i, int tight, int d)
{
    int lo = digit(&g->lo, i), hi = digit(&g->hi, i);
    if (((tight & TIGHT_LO) && d < lo) || ((tight & TIGHT_HI) && d > hi))
        return -1;
    return (tight & TIGHT_LO && d == lo ? TIGHT_LO : 0) |
           (tight & TIGHT_HI && d == hi ? TIGHT_HI : 0);
}

/* The state after i digits that are those of a bound; `next`: the ones behind it. */
static uint32_t tight_state(struct multiples *m, int i, int tight, uint32_t rest,
                            const uint32_t next[4])
{
    struct range *g = &m->g;
    struct rules *r = g->s->r;
    uint32_t at = 0, point = 0;
    int read = i - g->n; /* behind the point */
    if (read >= 0 && may_end(g, i, tight) && is_multiple(m, read, rest))
        rules_edge(r, made(r, &at), g->to, EDGE_EPS, 0);
    for (int d = i == 0 && g->n > 1; d < 10 && read < m->step.fraction; d++) {
        int t = tight_behind(g, i, tight, d);
        uint32_t behind = rest_behind(m, rest, d);
        uint32_t to = t < 0   ? 0
                      : t > 0 ? next[t]
                      : read < 0 ? *loose_at(m, -read - 1, behind)
                                 : *part_at(m, read + 1, behind);
        if (!to)
            continue;
        uint32_t from = made(r, &at);
        if (read == 0)
            from = point ? point : (point = rules_text(r, from, ".", 1));
        rules_bytes(r, from, to, (uint8_t)('0' + d), (uint8_t)('0' + d));
    }
    return at;
}

/* Multiples of n digits before the point. */
static uint32_t multiples_of_length(struct multiples *m, int tight)
{
    struct range *g = &m->g;
    uint32_t rest[2][2 * MOST_DIGITS] = {{0}, {0}}; /* of the bounds' digits */
    int end = g->n + m->step.fraction;
    for (int i = 0; i < end; i++) {
        rest[0][i + 1] = rest_behind(m, rest[0][i], digit(&g->lo, i));
        rest[1][i + 1] = rest_behind(m, rest[1][i], digit(&g->hi, i));
    }
    uint32_t next[4] = {0, 0, 0, 0};
    for (int i = end; i > 0 && rules_ok(g->s->r); i--) {
        uint32_t now[4] = {0, 0, 0, 0};
        for (int t = 1; t < 4; t++) {
            if ((t & tight) == t)
                now[t] = tight_state(m, i, t, rest[!(t & TIGHT_LO)][i], next);
        }
        memcpy(next, now, sizeof next);
    }
    return tight_state(m, 0, tight, 0, next);
}

/* Multiples of sizes between lo and hi, behind the sign. */
static void write_multiples(struct multiples *m, uint32_t from)
{
    struct range *g = &m->g;
    int last = g->hi.given ? g->hi.x.point : m->most;
    for (g->n = g->lo.x.point; g->n <= last && rules_ok(g->s->r); g->n++) {
        int tight = (g->n == g->lo.x.point ? TIGHT_LO : 0) |
                    (g->hi.given && g->n == g->hi.x.point ? TIGHT_HI : 0);
        uint32_t begin = multiples_of_length(m, tight);
        if (begin)
            rules_edge(g->s->r, from, begin, EDGE_EPS, 0);
    }
}

static void write_stepped(struct schema *s, struct bound lo, struct bound hi, struct step step,
                          uint32_t from, uint32_t to)
{
    struct multiples m = {.g = {.s = s, .to = to}, .step = step, .most = USUAL_DIGITS};
    if (lo.given && lo.x.point > m.most)
        m.most = lo.x.point;
    if (hi.given && hi.x.point > m.most)
        m.most = hi.x.point;
    size_t rows = (size_t)m.most + 1 + (size_t)step.fraction + 1;
    m.loose = mem_array(rows * step.n, sizeof *m.loose, PITH_MEM_SCRATCH);
    if (!m.loose) {
        rules_fail(s->r, PITH_NOMEM, "out of memory for the multiples of a number");
        return;
    }
    m.part = m.loose + ((size_t)m.most + 1) * step.n;
    m.shift[0] = 1 % step.n;
    for (int i = 0; i < step.fraction; i++)
        m.shift[i + 1] = m.shift[i] * 10 % step.n;
    write_loose(&m);
    struct sides sides = sides_of(lo, hi);
    if (sides.positive) {
        m.g.lo = sides.lo;
        m.g.hi = sides.hi;
        write_multiples(&m, from);
    }
    if (sides.negative) {
        m.g.lo = sides.negative_lo;
        m.g.hi = sides.negative_hi;
        write_multiples(&m, rules_text(s->r, from, "-", 1));
    }
    mem_free(m.loose);
}

/* The step that all multipleOf of the parts have in common; n is 0 without any. */
static struct step step_of(struct schema *s, const struct parts *p, int integer)
{
    struct step all = {.n = 0};
    for (uint32_t i = 0; i < p->n; i++) {
        const struct jtree *v = jtree_get(p->v[i].node, "multipleOf");
        struct decimal x;
        if (!v)
            continue;
        if (v->kind != JTREE_NUMBER || !read_decimal(v->text, &x) || x.negative ||
            (x.n == 1 && !x.d[0])) {
            schema_refuse(s, v, "wanted a number above 0 of at most %d digits", MOST_DIGITS);
            return all;
        }
        uint64_t n = 0, before = all.n;
        int f = x.n > x.point ? x.n - x.point : 0;
        for (int k = 0; k < x.n && n <= MOST_STEP; k++)
            n = 10 * n + x.d[k];
        for (int k = f; n <= MOST_STEP && k < all.fraction; k++)
            n *= 10;
        for (int k = all.fraction; before <= MOST_STEP && k < f; k++)
            before *= 10;
        f = f > all.fraction ? f : all.fraction;
        if (integer) { /* a whole number that is a multiple of n / 10^f */
            for (; f && n <= MOST_STEP; f--)
                n /= n % 10 == 0 ? 10 : n % 5 == 0 ? 5 : n % 2 == 0 ? 2 : 1;
        }
        if (before && before <= MOST_STEP && n <= MOST_STEP) {
            uint64_t a = before, b = n;
            for (uint64_t rest; b; a = b, b = rest)
                rest = a % b;
            n = before / a * n;
        }
        if (n > MOST_STEP || before > MOST_STEP || f > MOST_FRACTION) {
            schema_refuse(s, v,
                          "multipleOf is supported up to a step of %d / 10^k with k at most %d, "
                          "all that apply to a number taken together",
                          MOST_STEP, MOST_FRACTION);
            return all;
        }
        all = (struct step){.n = (uint32_t)n, .fraction = f};
    }
    return all;
}

void schema_number(struct schema *s, const struct parts *p, int integer, uint32_t from, uint32_t to)
{
    struct bound lo = bound_of(s, p, "minimum", "exclusiveMinimum", 1),
                 hi = bound_of(s, p, "maximum", "exclusiveMaximum", 0);
    struct step step = step_of(s, p, integer);
    if (!rules_ok(s->r))
        return;
    if (step.n && !(integer && step.n == 1))
        write_stepped(s, lo, hi, step, from, to);
    else if (lo.given || hi.given)
        write_between(s, lo, hi, integer, from, to);
    else
        write_any(s->r, integer, from, to);
}
