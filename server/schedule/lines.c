/* lines.c -- see lines.h. */
#include "server/schedule/lines.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t stride(const struct request *r)
{
    size_t n_top = r->n_logprobs > 0 ? (size_t)r->n_logprobs : 0;
    return sizeof(struct kept) + n_top * sizeof(struct pith_logprob);
}

struct kept *line_at(const struct request *r, const struct line *l, int64_t i)
{
    return (struct kept *)(void *)(l->v + (size_t)i * stride(r));
}

static int line_grow(struct request *r, struct line *l, int64_t n)
{
    if (n <= l->cap)
        return 1;
    int64_t cap = 2 * n + 16;
    char *more = realloc(l->v, (size_t)cap * stride(r));
    if (!more)
        return 0;
    r->answer += (cap - l->cap) * (int64_t)stride(r);
    l->v = more;
    l->cap = cap;
    return 1;
}

int line_copy(struct request *r, struct line *to, const struct line *from)
{
    if (!line_grow(r, to, from->n))
        return 0;
    if (from->n)
        memcpy(to->v, from->v, (size_t)from->n * stride(r));
    to->n = from->n;
    to->sum = from->sum;
    return 1;
}

int line_put(struct request *r, struct line *l, const struct beam *row, const struct way *w)
{
    if (!line_grow(r, l, l->n + 1))
        return 0;
    struct kept *t = line_at(r, l, l->n++);
    t->id = w->id;
    t->logprob = w->logprob;
    t->n_top = row->n_best < r->n_logprobs ? row->n_best : r->n_logprobs;
    t->n_top = t->n_top > 0 ? t->n_top : 0;
    if (t->n_top)
        memcpy(t->top, row->best, (size_t)t->n_top * sizeof *t->top);
    l->sum = w->sum;
    return 1;
}

int beam_open(struct branch *b)
{
    b->beam = calloc(1, sizeof *b->beam);
    if (b->beam && !b->choice)
        b->r->found = calloc(1, sizeof *b->r->found);
    b->parked = b->choice > 0;
    return b->beam && (b->choice || b->r->found);
}

void beam_close(struct branch *b)
{
    if (b->beam)
        free(b->beam->line.v);
    free(b->beam);
}

void found_free(struct found *f)
{
    for (int i = 0; f && i < f->n; i++)
        free(f->line[i].v);
    free(f);
}

double line_score(const struct request *r, double sum, int64_t n)
{
    return sum / pow((double)n, r->length_penalty);
}

int found_put(struct request *r, const struct beam *row, const struct way *w)
{
    struct found *f = r->found;
    double x = line_score(r, w->sum, row->line.n + 1);
    struct line l = {0};
    if (f->n == r->n && x <= f->score[f->n - 1])
        return 1;
    if (f->n == r->n)
        l = f->line[--f->n]; /* its room is used again */
    if (!line_copy(r, &l, &row->line) || !line_put(r, &l, row, w)) {
        free(l.v);
        return 0;
    }
    int k = f->n++;
    for (; k > 0 && f->score[k - 1] < x; k--) {
        f->line[k] = f->line[k - 1];
        f->score[k] = f->score[k - 1];
    }
    f->line[k] = l;
    f->score[k] = x;
    return 1;
}
