/* saved.h -- saved sessions whose contents lie under the right checksums: what the fuzzer and the
 * test of them share. A session of an architecture is filled, copied and edited, and saved; changes
 * are made in the bytes, each section gets the checksum that goes with it, and the file is loaded
 * and gone on with. Wanted is an error that says why and a session as it was, or a session that
 * goes on.
 *
 *     a change, 6 bytes:  section u8, place u16, how u8, value u16 */
#ifndef PITH_TESTS_SAVED_H
#define PITH_TESTS_SAVED_H

#include "encoder.h"
#include "robust.h"

#include <xxhash.h>

enum { SAVED_CHANGE = 6, SAVED_VOCAB = 40, SAVED_CTX = 128 };

struct saved {
    char arch[64];
    pith_model *m;
    pith_session *s;
    uint8_t *p;
    size_t n;
    long n_tried, n_loaded;
};

/* Says what is wrong; set by who includes this. */
static void saved_wrong(const struct saved *c, const char *what, const char *how);

static void saved_failed(const struct saved *c, const char *call, const struct pith_error *err)
{
    if (err->code == PITH_OK || strlen(err->msg) < 8 || strchr(err->msg, '\n'))
        saved_wrong(c, call, err->msg);
}

static pith_status saved_feed(pith_session *s, int32_t seq, int32_t n, int32_t salt,
                              struct pith_error *err)
{
    int32_t ids[SAVED_CTX];
    for (int32_t i = 0; i < n; i++)
        ids[i] = 3 + (i * 7 + salt * 13 + i * i) % (SAVED_VOCAB - 3);
    return pith_feed(s, seq, ids, (size_t)n, err);
}

static void saved_close(struct saved *c)
{
    pith_session_close(c->s);
    pith_model_close(c->m);
    free(c->p);
    memset(c, 0, sizeof *c);
}

/* Two sequences: one is fed and has edits to be carried out, where there can be such; the other is
 * a copy that has gone on. 0: not with this architecture. */
static int saved_open(struct saved *c, const char *arch)
{
    static const char window[] = "attention.sliding_window=int:70";
    const struct tiny t = {arch, "f32", 32, 2, 16, 32, SAVED_VOCAB, 0, 0, 4, 1};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_error err;
    char override[128];
    const char *overrides[2] = {override, NULL};
    snprintf(override, sizeof override, "%.60s.%s", arch, window);
    memset(c, 0, sizeof *c);
    snprintf(c->arch, sizeof c->arch, "%.60s", arch);
    const char *path = tiny_write(&t, 3);
    mp.n_threads = 1;
    mp.n_batch = 64;
    mp.overrides = overrides;
    c->m = path ? pith_model_open(path, &mp, &err) : NULL;
    if (path)
        unlink(path);
    sp.n_seq = 2;
    sp.n_ctx = SAVED_CTX;
    c->s = c->m ? pith_session_open(c->m, &sp, &err) : NULL;
    for (int32_t q = 0; c->s && q < 2; q++)
        if (encoder_reads(c->s, q, &err) != PITH_OK)
            saved_failed(c, "encode", &err);
    if (!c->s) {
        saved_failed(c, "open", &err);
        saved_close(c);
        return 0;
    }
    if (saved_feed(c->s, 0, 60, 1, &err) == PITH_OK &&
        saved_feed(c->s, 0, 30, 2, &err) == PITH_OK) {
        if (pith_copy(c->s, 1, 0, 0, -1, &err) == PITH_OK)
            saved_feed(c->s, 1, 8, 3, &err);
        pith_remove(c->s, 0, 5, 12, &err);
        pith_shift(c->s, 0, 12, -1, -7, &err);
    }
    size_t n = 0;
    if (pith_save_memory(c->s, -1, NULL, 0, &n, &err) == PITH_OK)
        c->p = malloc(n);
    if (!c->p || pith_save_memory(c->s, -1, c->p, n, &c->n, &err) != PITH_OK) {
        saved_failed(c, "save", &err);
        saved_close(c);
        return 0;
    }
    return 1;
}

/* Where section `id` begins, and its payload's length; 0: there is none. */
static size_t saved_section(const uint8_t *p, size_t n, uint32_t id, size_t *length)
{
    uint64_t long_as;
    for (size_t at = 24; at + 24 <= n; at += 24 + (size_t)long_as) {
        memcpy(&long_as, p + at + 8, sizeof long_as);
        *length = (size_t)long_as;
        if (p[at] == id)
            return at;
    }
    return 0;
}

static void saved_change(uint8_t *p, size_t n, const uint8_t *c)
{
    static const int32_t numbers[] = {0, -1, 1, 2, 64, 63, INT32_MAX, INT32_MIN, 1 << 20,
                                      (1 << 30) - 1, 255, 4096};
    size_t length = 0, from = saved_section(p, n, c[0] % 6u + 1, &length) + 16;
    uint32_t at = (uint32_t)(c[1] | c[2] << 8), value = (uint32_t)(c[4] | c[5] << 8);
    int32_t now;
    if (length < 8)
        return;
    at = c[3] & 64 ? (at * 4u) % 512u : at * 4u; /* heads are where a section begins */
    at %= (uint32_t)(length - 4);
    at -= c[3] & 32 ? 0 : at % 4;
    memcpy(&now, p + from + at, sizeof now);
    switch (c[3] % 8) {
    case 0:
        p[from + at] = (uint8_t)value;
        break;
    case 1:
        p[from + at] ^= (uint8_t)(1u << value % 8);
        break;
    case 2:
    case 3:
        now = (int32_t)((uint32_t)now + value % 7 - 3);
        memcpy(p + from + at, &now, sizeof now);
        break;
    case 4:
        now = (int32_t)value;
        memcpy(p + from + at, &now, sizeof now);
        break;
    default:
        memcpy(p + from + at, &numbers[value % (sizeof numbers / sizeof *numbers)], sizeof now);
    }
}

/* Checksums of all sections as their contents are. */
static void saved_seal(uint8_t *p, size_t n)
{
    for (uint32_t id = 1; id <= 7; id++) {
        size_t length = 0, at = saved_section(p, n, id, &length);
        uint64_t sum = at ? XXH3_64bits(p + at, 16 + length) : 0;
        if (at)
            memcpy(p + at + 16 + length, &sum, sizeof sum);
    }
}

static void saved_go_on(struct saved *c)
{
    struct pith_error err;
    pith_session *s = c->s;
    size_t n = 0;
#define SAVED_DO(call)                                                                             \
    if ((call) != PITH_OK)                                                                         \
        saved_failed(c, #call, &err);
    for (int32_t q = 0; q < 2; q++) {
        SAVED_DO(saved_feed(s, q, 3, q, &err));
        SAVED_DO(pith_remove(s, q, 2, 9, &err));
        SAVED_DO(pith_shift(s, q, 9, -1, -3, &err));
        SAVED_DO(saved_feed(s, q, 2, q, &err));
        int64_t length = pith_length(s, q);
        SAVED_DO(pith_truncate(s, q, length > 20 ? length - 20 : 0, &err));
        SAVED_DO(saved_feed(s, q, 70, q, &err));
        SAVED_DO(pith_copy(s, 1 - q, q, 0, -1, &err));
        SAVED_DO(saved_feed(s, 1 - q, 2, q, &err));
    }
    SAVED_DO(pith_save_memory(s, 0, NULL, 0, &n, &err));
    uint8_t *again = malloc(n + 1);
    if (again && pith_save_memory(s, 0, again, n, &n, &err) == PITH_OK)
        SAVED_DO(pith_load_memory(s, 1, again, n, &err));
    free(again);
#undef SAVED_DO
}

/* Loads the bytes with changes, and then those without: what a failed load has left is as good. */
static void saved_try(struct saved *c, const uint8_t *changes, size_t n_changes)
{
    struct pith_error err;
    uint8_t *p = malloc(c->n);
    c->n_tried++;
    int64_t before[2] = {pith_length(c->s, 0), pith_length(c->s, 1)};
    if (!p)
        return;
    memcpy(p, c->p, c->n);
    for (size_t i = 0; i + SAVED_CHANGE <= n_changes; i += SAVED_CHANGE)
        saved_change(p, c->n, changes + i);
    saved_seal(p, c->n);
    if (pith_load_memory(c->s, -1, p, c->n, &err) == PITH_OK) {
        c->n_loaded++;
        saved_go_on(c);
    } else {
        saved_failed(c, "load", &err);
        if (pith_length(c->s, 0) != before[0] || pith_length(c->s, 1) != before[1])
            saved_wrong(c, "load", "a failed one has changed the session");
    }
    free(p);
    if (pith_load_memory(c->s, -1, c->p, c->n, &err) != PITH_OK)
        saved_wrong(c, "load of what was saved", err.msg);
}

#endif
