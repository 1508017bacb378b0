/* file_type.c -- what a file's mixture of weight types is called. Names and numbers:
 * general.file_type of ggml's page on GGUF, with those given out since; 5, 6 and 33 to 35 are no
 * longer in use, and 1024 says that whoever wrote the file had guessed. */
#include "format/gguf.h"

static const char *const names[] = {
    [0] = "F32",     [1] = "F16",      [2] = "Q4_0",     [3] = "Q4_1",    [4] = "Q4_1_F16",
    [7] = "Q8_0",    [8] = "Q5_0",     [9] = "Q5_1",     [10] = "Q2_K",   [11] = "Q3_K_S",
    [12] = "Q3_K_M", [13] = "Q3_K_L",  [14] = "Q4_K_S",  [15] = "Q4_K_M", [16] = "Q5_K_S",
    [17] = "Q5_K_M", [18] = "Q6_K",    [19] = "IQ2_XXS", [20] = "IQ2_XS", [21] = "Q2_K_S",
    [22] = "IQ3_XS", [23] = "IQ3_XXS", [24] = "IQ1_S",   [25] = "IQ4_NL", [26] = "IQ3_S",
    [27] = "IQ3_M",  [28] = "IQ2_S",   [29] = "IQ2_M",   [30] = "IQ4_XS", [31] = "IQ1_M",
    [32] = "BF16",   [36] = "TQ1_0",   [37] = "TQ2_0",   [38] = "MXFP4",  [39] = "NVFP4",
    [40] = "Q1_0",
};

const char *gguf_file_type(const struct gguf *g)
{
    const struct gguf_kv *kv = gguf_find(g, "general.file_type");
    uint64_t id, bytes[DT_COUNT] = {0};
    const char *most = NULL;
    uint64_t n_most = 0;
    if (kv && gguf_u64(g, kv, 0, &id) && id < sizeof names / sizeof *names && names[id])
        return names[id];
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        bytes[t->type] += t->bytes;
        if (bytes[t->type] > n_most) {
            n_most = bytes[t->type];
            most = dtypes[t->type].name;
        }
    }
    return most;
}
