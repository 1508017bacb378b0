/* stop.c -- see stop.h. Each string carries the failure table of Knuth, Morris and Pratt ("Fast
 * pattern matching in strings", SIAM J. Comput. 6, 1977): border[i] is the length of the longest
 * proper prefix of the string that is also a suffix of its first i + 1 bytes.
 */
#include "run/session/stop.h"

#include <string.h>

#include "base/mem.h"

struct pattern {
    const char *p;
    uint32_t *border;
    uint32_t n, matched; /* bytes; how many of them the text ends with */
};

struct stop {
    int n, hit;
    struct pattern patterns[];
};

static void find_borders(struct pattern *s)
{
    uint32_t k = 0;
    s->border[0] = 0;
    for (uint32_t i = 1; i < s->n; i++) {
        while (k > 0 && s->p[i] != s->p[k])
            k = s->border[k - 1];
        k += s->p[i] == s->p[k];
        s->border[i] = k;
    }
}

/* Moves on by one byte; 1 when the whole string has been read: then nothing may follow. */
static int advance(struct pattern *s, char byte)
{
    while (s->matched > 0 && s->p[s->matched] != byte)
        s->matched = s->border[s->matched - 1];
    s->matched += s->p[s->matched] == byte;
    return s->matched == s->n;
}

struct stop *stop_new(const char *const *strings, struct pith_error *err)
{
    enum { STRINGS_MAX = 1 << 16, BYTES_MAX = 1 << 28 };
    uint64_t n = 0, bytes = 0;
    for (; strings && strings[n]; n++) {
        size_t len = strlen(strings[n]);
        bytes += len;
        if (len == 0 || n == STRINGS_MAX || bytes > BYTES_MAX) {
            error_set(err, PITH_RANGE,
                      len == 0 ? "stop string %llu is empty; wanted at least one byte"
                               : "too many or too long stop strings (at number %llu)",
                      (unsigned long long)n);
            return NULL;
        }
    }
    /* One block: the struct, the patterns, their border tables, the copied bytes. */
    size_t head = sizeof(struct stop) + n * sizeof(struct pattern);
    struct stop *s = mem_zalloc(head + bytes * (sizeof(uint32_t) + 1), PITH_MEM_SCRATCH);
    if (!s) {
        error_set(err, PITH_NOMEM, "no memory for %llu stop strings", (unsigned long long)n);
        return NULL;
    }
    uint32_t *border = (uint32_t *)((char *)s + head);
    char *copy = (char *)(border + bytes);
    s->n = (int)n;
    for (int i = 0; i < s->n; i++) {
        struct pattern *q = &s->patterns[i];
        q->n = (uint32_t)strlen(strings[i]);
        q->border = border;
        q->p = memcpy(copy, strings[i], q->n);
        find_borders(q);
        border += q->n;
        copy += q->n;
    }
    s->hit = -1;
    return s;
}

void stop_free(struct stop *s)
{
    mem_free(s);
}

/* The bytes held back: the longest that is matched of any string. */
static struct slice held(const struct stop *s)
{
    struct slice most = {"", 0};
    for (int i = 0; i < s->n; i++) {
        if (s->patterns[i].matched > most.n)
            most = (struct slice){s->patterns[i].p, s->patterns[i].matched};
    }
    return most;
}

struct stop_text stop_push(struct stop *s, const char *text, size_t n)
{
    if (s->hit >= 0)
        return (struct stop_text){{"", 0}, {"", 0}, s->hit};
    struct slice old = held(s);
    size_t read = 0;
    while (read < n && s->hit < 0) {
        char byte = text[read++];
        for (int i = 0; i < s->n; i++) {
            if (advance(&s->patterns[i], byte) &&
                (s->hit < 0 || s->patterns[i].n > s->patterns[s->hit].n))
                s->hit = i;
        }
    }
    size_t keep = s->hit >= 0 ? s->patterns[s->hit].n : held(s).n;
    size_t show = old.n + read - keep, show_old = show < old.n ? show : old.n;
    return (struct stop_text){{old.p, show_old}, {text, show - show_old}, s->hit};
}

struct slice stop_flush(struct stop *s)
{
    struct slice rest = s->hit >= 0 ? (struct slice){"", 0} : held(s);
    for (int i = 0; i < s->n; i++)
        s->patterns[i].matched = 0;
    return rest;
}
