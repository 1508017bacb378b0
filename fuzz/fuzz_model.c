/* fuzz_model.c -- any bytes as a model file, and what is done with one: model.h.
 *
 * Seeds are small models of every kind. They are written into the first corpus folder of the
 * command line when it has none, so that they always are what pith_synth writes today. */
#include "model.h"

#include <sys/stat.h>

static const struct tiny seeds[] = {
    {"llama", "f32", 16, 2, 8, 16, 24, 0, 0, 1, 1},
    {"llama", "q4_0", 32, 2, 16, 32, 24, 4, 1, 1, 1},
    {"qwen2", "f16", 16, 2, 8, 16, 24, 0, 1, 1, 1},
    {"qwen3moe", "q8_0", 32, 2, 8, 32, 16, 2, 1, 1, 1},
    {"gemma2", "bf16", 16, 2, 8, 16, 24, 0, 0, 2, 1},
    {"gemma3", "q5_1", 32, 2, 8, 32, 16, 0, 1, 1, 1},
    {"qwen3", "q4_K", 256, 1, 8, 16, 8, 0, 1, 1, 1},
    {"llama-embed", "q6_K", 256, 1, 8, 16, 8, 0, 1, 1, 1},
    {"mamba", "f16", 16, 2, 8, 16, 24, 0, 1, 1, 1},
    {"mamba2", "q8_0", 32, 2, 16, 32, 16, 0, 0, 1, 1},
    {"jamba", "f32", 16, 2, 8, 16, 24, 2, 1, 2, 1},
    {"granitehybrid", "q4_0", 32, 2, 16, 32, 16, 2, 1, 2, 1},
    {"rwkv7", "bf16", 32, 2, 16, 32, 16, 0, 0, 2, 1},
};

static void write_seeds(const char *folder)
{
    char to[512];
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        const char *from = tiny_write(&seeds[i], i);
        size_t n = 0;
        uint8_t *p = from ? file_bytes(from, &n) : NULL;
        snprintf(to, sizeof to, "%s/seed-%s", folder, tiny_name(&seeds[i]));
        if (!p || (access(to, F_OK) != 0 && !file_put(to, p, n)))
            fprintf(stderr, "no seed %s\n", to);
        free(p);
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct stat sb;
    open_file();
    for (int i = 1; i < *argc; i++)
        if ((*argv)[i][0] != '-' && stat((*argv)[i], &sb) == 0 && S_ISDIR(sb.st_mode)) {
            write_seeds((*argv)[i]);
            break;
        }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_model(data, size, size);
    return 0;
}
