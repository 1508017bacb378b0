/* embed.c -- inputs to be embedded: as many whole ones as a step holds, in the order of arrival, one step between two of generation. An
 * input is a sequence of its own for one step. */
#include <stdlib.h>
#include <string.h>

#include "scheduler_impl.h"

static int64_t input_begin(const struct request *r, int i)
{
    return i ? r->input_end[i - 1] : 0;
}

static void end(struct sched *s, const struct event *e)
{
    struct request *r = s->embeds;
    s->embeds = r->next;
    if (!s->embeds)
        s->embeds_end = &s->embeds;
    request_done(s, r, e);
}

/* Rows of the request's next inputs. Returns how many inputs. */
static int put_inputs(struct sched *s, const struct request *r)
{
    int n = 0;
    s->n_rows = 0;
    for (int i = r->n_embedded; i < r->n && n < s->n_seq; i++, n++) {
        int64_t from = input_begin(r, i), to = r->input_end[i];
        if (s->n_rows + (to - from) > s->n_batch)
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
    struct request *r = s->embeds;
    struct pith_session *session = s->hosted->embed;
    struct pith_batch batch = PITH_BATCH_INIT;
    struct pith_error err = {0};
    struct fault f = {0};
    if (!r)
        return;
    if (!r->n_embedded) {
        r->started = clock_now();
        r->figures.queue_ns = r->started - r->arrived;
    }
    int late = r->deadline && clock_now() > r->deadline;
    if (atomic_load(r->gone) || late) {
        fault_set(&f, late ? 400 : 499, late ? "deadline_exceeded" : "client_closed_request", NULL, "the request has ended before its answer");
        end(s, &(struct event){.kind = EV_FAILED, .fault = &f});
        return;
    }
    int n = put_inputs(s, r);
    batch.n = s->n_rows;
    batch.token = s->token;
    batch.seq = s->row_seq;
    if (!n || pith_step(session, &batch, &err) != PITH_OK) {
        fault_from(&f, &err, "input");
        end(s, &(struct event){.kind = EV_FAILED, .fault = &f});
        return;
    }
    metrics_add(s->hosted->metrics, M_PROMPT_TOKENS, s->n_rows);
    for (int i = 0; i < n; i++) {
        r->on_event(r, &(struct event){.kind = EV_EMBEDDING, .choice = r->n_embedded + i, .vector = pith_embedding(session, i),
                                       .n_vector = s->hosted->info.n_embd});
        pith_truncate(session, i, 0, NULL);
    }
    r->n_embedded += n;
    if (r->n_embedded == r->n)
        end(s, &(struct event){.kind = EV_DONE});
}
