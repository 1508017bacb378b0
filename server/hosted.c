/* hosted.c -- a model that is held: by whom is counted; what it takes and says of itself. */
#include <stdio.h>
#include <stdlib.h>

#include "server/hosted.h"
#include "server/json.h"
#include "server/parts.h"

void hosted_keep(struct hosted *h)
{
    pthread_mutex_lock(h->lock);
    h->n_users++;
    pthread_mutex_unlock(h->lock);
}

int hosted_hold(struct hosted *h)
{
    pthread_mutex_lock(h->lock);
    int ready = h->state == MODEL_READY;
    h->n_users += ready;
    pthread_mutex_unlock(h->lock);
    return ready;
}

void hosted_drop(struct hosted *h)
{
    pthread_mutex_lock(h->lock);
    h->used = clock_now();
    if (--h->n_users == 0)
        pthread_cond_signal(h->let_go);
    pthread_mutex_unlock(h->lock);
}

pith_session *hosted_session(const struct hosted *h)
{
    return h->generate ? h->generate : h->embed ? h->embed : h->rank;
}

int hosted_fills_in(const struct hosted *h)
{
    return h->generate && !h->info.causal;
}

int32_t hosted_n_ctx(const struct hosted *h)
{
    return pith_n_ctx(hosted_session(h));
}

int32_t hosted_n_input(const struct hosted *h)
{
    int32_t n = h->embed ? pith_n_ctx(h->embed) : 0;
    return n < h->n_embed ? n : h->n_embed; /* an input is one step's */
}

int32_t hosted_n_pair(const struct hosted *h)
{
    int32_t n = h->rank ? pith_n_ctx(h->rank) : 0;
    return n < h->n_rank ? n : h->n_rank;
}

json_t *hosted_template(const struct hosted *h)
{
    const char *name = server_told(h->server)->chat_template_name;
    char key[300];
    snprintf(key, sizeof key, "tokenizer.chat_template%s%s", name ? "." : "", name ? name : "");
    int64_t n = pith_model_meta(h->model, key, NULL, 0);
    char *text = n >= 0 ? malloc((size_t)n + 1) : NULL;
    if (text)
        pith_model_meta(h->model, key, text, (size_t)n + 1);
    json_t *j = text ? json_text(text, (size_t)n) : n < 0 ? json_null() : NULL;
    free(text);
    return j;
}
