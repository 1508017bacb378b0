/* exact.c -- a shader whose sums and products are all rounded as they are written.
 *
 * A driver's compiler may join a product and a sum, or take a fused one apart, where an instruction
 * is not decorated NoContraction. GLSL's `precise` asks for that, but goes along the assignments of
 * one function alone. Kernels that make the same sums in other ways (few rows, tiles) have to have
 * the same bits with every compiler, so all of these instructions are decorated here.
 *
 * A module is a list of instructions of (words << 16 | opcode, operands ..) behind five words
 * [SPIR-V 1.5, 2.3]; decorations stand before the first type. */
#include "backend/vulkan/vulkan_impl.h"

#include <string.h>
#include "base/mem.h"

enum { MAGIC = 0x07230203, HEAD = 5, BOUND = 3 };
enum { /* opcodes */
       EXT_INST_IMPORT = 11,
       EXT_INST = 12,
       TYPE_FIRST = 19,
       TYPE_LAST = 39,
       DECORATE = 71,
       F_ADD = 129,
       F_SUB = 131,
       F_MUL = 133,
       F_DIV = 136,
       VECTOR_TIMES_SCALAR = 142,
       DOT = 148
};
enum { NO_CONTRACTION = 42, FMA = 50 /* of GLSL.std.450 */ };

static int rounds(const uint32_t *w, uint32_t glsl)
{
    switch (*w & 0xffff) {
    case F_ADD:
    case F_SUB:
    case F_MUL:
    case F_DIV:
    case VECTOR_TIMES_SCALAR:
    case DOT:
        return 1;
    case EXT_INST:
        return w[3] == glsl && w[4] == FMA;
    default:
        return 0;
    }
}

/* Is it a list of whole instructions, none of which is shorter than what is read of it? */
static int is_whole(const uint32_t *w, uint64_t n)
{
    uint64_t at = HEAD;
    if (n < HEAD || w[0] != MAGIC)
        return 0;
    for (uint32_t len; at < n; at += len) {
        len = w[at] >> 16;
        uint32_t op = w[at] & 0xffff;
        uint32_t least = op == EXT_INST                                         ? 5
                         : op == DECORATE || (op >= F_ADD && op <= DOT) ? 3
                         : op == EXT_INST_IMPORT                                ? 2
                                                                                : 1;
        if (len < least || n - at < len)
            return 0;
    }
    return at == n;
}

/* Takes the ids of all that rounds and is not decorated; where the first type is, 0: nowhere. */
static uint64_t find(const uint32_t *w, uint64_t n, uint8_t *decorated, uint32_t *id,
                     uint64_t *n_id)
{
    uint64_t types = 0;
    uint32_t glsl = 0;
    for (uint64_t at = HEAD; at < n; at += w[at] >> 16) {
        const uint32_t *i = w + at;
        uint32_t op = *i & 0xffff;
        if (op == EXT_INST_IMPORT)
            glsl = i[1];
        else if (op == DECORATE && i[2] == NO_CONTRACTION && i[1] < w[BOUND])
            decorated[i[1]] = 1;
        else if (op >= TYPE_FIRST && op <= TYPE_LAST && !types)
            types = at;
        else if (rounds(i, glsl) && i[2] < w[BOUND] && !decorated[i[2]])
            id[(*n_id)++] = i[2];
    }
    return types;
}

uint32_t *vk_exact(const uint32_t *w, uint64_t n, uint64_t *n_out)
{
    if (!is_whole(w, n))
        return NULL;
    uint8_t *decorated = mem_zalloc((size_t)w[BOUND] + 1, PITH_MEM_SCRATCH);
    uint32_t *id = mem_array((size_t)n, sizeof *id, PITH_MEM_SCRATCH);
    uint64_t n_id = 0, types = decorated && id ? find(w, n, decorated, id, &n_id) : 0;
    uint32_t *out = types ? mem_array((size_t)(n + 3 * n_id), sizeof *out, PITH_MEM_SCRATCH) : NULL;
    if (out) {
        uint32_t *to = out + types;
        memcpy(out, w, types * sizeof *w);
        for (uint64_t i = 0; i < n_id; i++, to += 3) {
            to[0] = 3u << 16 | DECORATE;
            to[1] = id[i];
            to[2] = NO_CONTRACTION;
        }
        memcpy(to, w + types, (n - types) * sizeof *w);
        *n_out = n + 3 * n_id;
    }
    mem_free(decorated);
    mem_free(id);
    return out;
}
