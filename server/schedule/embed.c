/* embed.c -- inputs to be embedded or ranked: as many whole ones of a request as fit into a step
 * and, while others are being written to, into the time between two of their tokens. As much time
 * as such a step took generation has before the next one. The next request is the first one of the
 * key that has been served the fewest tokens. An input is a sequence of its own for one step. */
#include <stdlib.h>
#include <string.h>

#include "server/http/exchange.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/schedule/scheduler_impl.h"

static int64_t input_begin(const struct request *r, int i)
{
    return i ? r->input_end[i - 1] : 0;
}

static struct share *share_of(const struct sched *s, const struct request *r)
{
    return &s->share[r->tenant->index];
}

void embed_start(struct sched *s, struct request *r)
{
    struct request **at = &s->embeds;
    share_back(s, share_of(s, r));
    share_of(s, r)->n_embeds++;
    while (*at)
        at = &(*at)->next;
    r->next = NULL;
    *at = r;
}

static void end(struct sched *s, struct request *r, const struct event *e)
{
    struct request **at = &s->embeds;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    share_of(s, r)->n_embeds--;
    request_done(s, r, e);
}

void embed_fail(struct sched *s, struct request *r, const struct fault *f)
{
    end(s, r, &(struct event){.kind = EV_FAILED, .fault = f});
}

static struct request *next_request(const struct sched *s)
{
    struct request *best = NULL;
    for (struct request *r = s->embeds; r; r = r->next)
        if (!best || share_of(s, r)->served < share_of(s, best)->served)
            best = r;
    return best;
}

/* Rows of the request's next inputs. Returns how many inputs. */
static int put_inputs(struct sched *s, const struct request *r)
{
    int n = 0;
    int32_t n_step = r->ranks ? s->n_rank : s->n_embed;
    int64_t most = s->all && s->embed_ns > 0 ? rows_in_gap(s, s->embed_ns, 1, n_step) : n_step;
    s->n_rows = 0;
    for (int i = r->n_embedded; i < r->n && n < s->n_seq; i++, n++) {
        int64_t from = input_begin(r, i), to = r->input_end[i];
        if (s->n_rows + (to - from) > (n ? most : n_step))
            break;
        for (int64_t k = from; k < to; k++) {
            s->token[s->n_rows] = r->prompt[k];
            s->row_seq[s->n_rows++] = n;
        }
    }
    return n;
}

void embed_step(struct sched *s)
{
    struct request *r = next_request(s);
    struct pith_batch batch = PITH_BATCH_INIT;
    struct pith_error err = {0};
    struct fault f = {0};
    int64_t began = clock_now();
    if (!r || (s->all && s->owed > 0))
        return;
    struct pith_session *session = r->ranks ? s->hosted->rank : s->hosted->embed;
    if (!r->n_embedded) {
        r->started = began;
        r->figures.queue_ns = r->started - r->arrived;
    }
    int n = put_inputs(s, r);
    batch.n = s->n_rows;
    batch.token = s->token;
    batch.seq = s->row_seq;
    alone_begin(s, r, session);
    pith_status st = n ? pith_step(session, &batch, &err) : PITH_RANGE;
    alone_end(s, st);
    s->owed = clock_now() - began;
    if (st == PITH_CANCELLED)
        return; /* nobody waits for it any more, or the scheduler ends: both are told there */
    if (st != PITH_OK) {
        fault_from(&f, &err, "input");
        embed_fail(s, r, &f);
        return;
    }
    double ns = (double)s->owed / s->n_rows;
    s->embed_ns = s->embed_ns > 0 ? 0.7 * s->embed_ns + 0.3 * ns : ns;
    s->now = share_of(s, r)->served;
    share_of(s, r)->served += s->n_rows;
    metrics_add(s->hosted->metrics, M_PROMPT_TOKENS, s->n_rows);
    for (int i = 0; i < n; i++) {
        request_tell(r, &(struct event){.kind = EV_EMBEDDING,
                                       .choice = r->n_embedded + i,
                                       .vector = pith_embedding(session, i),
                                       .n_vector = r->ranks ? s->hosted->info.n_labels
                                                            : s->hosted->info.n_embd_out});
        pith_truncate(session, i, 0, NULL);
    }
    r->n_embedded += n;
    if (r->n_embedded == r->n)
        end(s, r, &(struct event){.kind = EV_DONE});
}
