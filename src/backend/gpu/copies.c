/* copies.c -- between the host and devices, piece by piece through stages that a driver can reach:
 * functions of struct backend, but for how a device moves one piece. */
#include "backend/gpu/gpu.h"

#include "base/mem.h"

void gpu_stages_init(struct gpu_stages *s)
{
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->left, NULL);
}

void gpu_stages_deinit(struct gpu_stages *s)
{
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->left);
}

int gpu_stage_take(struct gpu_stages *s)
{
    int i, k = 0;
    pthread_mutex_lock(&s->lock);
    for (i = s->next; s->taken[i]; i = (i + 1) % GPU_STAGES)
        if (++k % GPU_STAGES == 0)
            pthread_cond_wait(&s->left, &s->lock);
    s->taken[i] = 1;
    s->next = (i + 1) % GPU_STAGES;
    pthread_mutex_unlock(&s->lock);
    return i;
}

void gpu_stage_leave(struct gpu_stages *s, int i)
{
    pthread_mutex_lock(&s->lock);
    s->taken[i] = 0;
    pthread_cond_signal(&s->left);
    pthread_mutex_unlock(&s->lock);
}

static pith_status move_all(const struct gpu_mover *m, const char *what, struct place at,
                            const uint8_t *in, uint8_t *out, uint64_t n, int apart, uint64_t *value,
                            struct pith_error *err)
{
    pith_status st = m->stream->call(at.buffer->device, what, err);
    for (uint64_t i = 0; i < n && st == PITH_OK; i += GPU_STAGE_BYTES) {
        uint64_t part = n - i < GPU_STAGE_BYTES ? n - i : GPU_STAGE_BYTES;
        st = m->move((struct place){at.buffer, at.offset + i}, in ? in + i : NULL,
                     out ? out + i : NULL, part, apart, value, err);
    }
    return st;
}

pith_status gpu_write(const struct gpu_mover *m, struct place to, const void *host, uint64_t n,
                      int apart, struct event *ev, struct pith_error *err)
{
    uint64_t value = 0;
    pith_status st = move_all(m, "write", to, host, NULL, n, apart, &value, err);
    if (st == PITH_OK)
        *ev = (struct event){to.buffer->device, value};
    return st;
}

pith_status gpu_read(const struct gpu_mover *m, void *host, struct place from, uint64_t n,
                     struct pith_error *err)
{
    uint64_t value = 0;
    return move_all(m, "read", from, NULL, host, n, 0, &value, err);
}

pith_status gpu_across(const struct gpu_mover *m, struct place to, struct place from, uint64_t n,
                       struct event *ev, struct pith_error *err)
{
    uint64_t most = n < GPU_STAGE_BYTES ? n : GPU_STAGE_BYTES;
    uint8_t *piece = mem_alloc(most, PITH_MEM_SCRATCH);
    pith_status st =
        piece ? PITH_OK : error_set(err, PITH_NOMEM, "out of memory of the host for a copy");
    for (uint64_t i = 0; i < n && st == PITH_OK; i += most) {
        uint64_t part = n - i < most ? n - i : most;
        st = gpu_read(m, piece, (struct place){from.buffer, from.offset + i}, part, err);
        if (st == PITH_OK)
            st = gpu_write(m, (struct place){to.buffer, to.offset + i}, piece, part, 0, ev, err);
    }
    mem_free(piece);
    return st;
}

pith_status gpu_event_wait(const struct gpu_mover *m, struct device *d, uint64_t ticket,
                           struct pith_error *err)
{
    pith_status st = m->stream->call(d, "wait for a copy", err);
    pith_status end = m->stream->wait(d, ticket, err);
    return st == PITH_OK ? end : st;
}
