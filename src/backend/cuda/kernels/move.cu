/* move.cu -- rows of tables as numbers (EMBED, VECTOR, GATHER), pieces of rows side by side
 * (COLUMNS), one row of each sequence (POOL): graph/ops/move.c. */
#include "types.cuh"

enum { BY_TOKEN, BY_POSITION, BY_ROW, BY_VALUE, BY_INTS, EMBED, VECTOR };

FN int table_row(const Args &arg, uint32_t r, uint32_t part)
{
    int n = (int)arg.p[0], at = (int)arg.p[2], by = arg.spec[1];
    if (by == EMBED || by == BY_TOKEN)
        at = step_token(arg, r) < 0 ? (int)arg.p[3] : step_token(arg, r);
    if (by == EMBED) {
        uint32_t token = (uint32_t)at;
        for (uint32_t i = 0; i < arg.p[6]; i++)
            if ((uint32_t)i32_at(arg.extra)[2 * i] == token)
                at = i32_at(arg.extra)[2 * i + 1];
    } else if (by == BY_POSITION)
        at += step_pos(arg, r);
    else if (by == BY_INTS)
        at = ints_of(arg.a, r, arg.lda)[part];
    else if (by == BY_VALUE) {
        float v = row_of(arg.a, r, arg.lda)[0];
        at = v > 0 ? v < (float)n ? (int)v : n - 1 : 0;
    }
    return bound(at, 0, n - 1);
}

/* One thread for eight numbers. spec: type, by. p: rows of the table, by, row, of_embd, scale;
 * numbers of a row of the table; tokens that are embedded as others, which `extra` lists. */
KERNEL(embed, 64)
{
    uint32_t width = arg.p[5], octets = (width + 7) / 8, u = thread_x();
    uint32_t part = u / octets, k8 = u % octets, n = rows_of(arg, arg.rows);
    if (part * width >= arg.cols)
        return;
    EACH_ROW(r, n) {
        float *y = row_of(arg.dst, r, arg.ld) + (uint64_t)part * width;
        bool given = arg.spec[1] == VECTOR ||
                     (arg.spec[1] == EMBED && step_token(arg, r) < 0);
        Eight w = given ? plain(T_F32, step_embd_row(arg, r, width), 8 * k8, width)
                        : decode8(arg.spec[0],
                                  arg.w + (uint64_t)table_row(arg, r, part) *
                                              row_bytes(arg.spec[0], width),
                                  k8, width, books_of(arg));
        for (uint32_t i = 0; i < 8 && 8 * k8 + i < width; i++)
            y[8 * k8 + i] = given ? w.v[i] : w.v[i] * arg_f(arg, 4);
        if (arg.spec[1] != EMBED || given || !step_plus(arg, r))
            continue;
        w = plain(T_F32, step_embd_row(arg, r, width), 8 * k8, width);
        for (uint32_t i = 0; i < 8 && 8 * k8 + i < width; i++)
            y[8 * k8 + i] = y[8 * k8 + i] + w.v[i];
    }
}

/* extra: for each run its operand's address and rows' distance, first, width, stride and where its
 * columns begin. */
KERNEL(columns, 64)
{
    uint32_t i = thread_x(), n = rows_of(arg, arg.rows), at = 0;
    if (i >= arg.cols)
        return;
    const uint32_t *run = (const uint32_t *)i32_at(arg.extra);
    while (at + 8 < 8 * arg.p[0] && i >= run[at + 8 + 6])
        at += 8;
    uint64_t src = (uint64_t)run[at] | (uint64_t)run[at + 1] << 32;
    uint32_t in_run = i - run[at + 6], width = run[at + 4];
    uint32_t from = run[at + 3] + in_run / width * run[at + 5] + in_run % width;
    EACH_ROW(r, n)
        row_of(arg.dst, r, arg.ld)[i] = row_of(src, r, run[at + 2])[from];
}

/* p[0]: mean, first, last. */
KERNEL(pool, 64)
{
    uint32_t i = thread_x(), n = rows_of(arg, arg.rows);
    if (i >= arg.cols)
        return;
    EACH_ROW(s, n) {
        int from = step_first(arg, s), to = step_first(arg, s + 1);
        if (arg.p[0] == 2)
            from = to - 1;
        float y = row_of(arg.a, (uint32_t)from, arg.lda)[i];
        if (arg.p[0] == 0) {
            for (int r = from + 1; r < to; r++)
                y = y + row_of(arg.a, (uint32_t)r, arg.lda)[i];
            y = y / (float)(to - from);
        }
        row_of(arg.dst, s, arg.ld)[i] = y;
    }
}
