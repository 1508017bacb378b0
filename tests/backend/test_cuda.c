/* test_cuda.c -- models on CUDA devices (gpu_test.h), and what is CUDA's own. Without a GPU all of
 * it runs on what stands in for one (cuda/standin.h). */
#include "backend/cuda/cuda.h"

#define GPU         "cuda"
#define GPU_ENV     "PITH_CUDA_"
#define gpu_backend backend_cuda
#define gpu_plan    cuda_plan
#define gpu_calls   cuda_calls
#define gpu_forget  cuda_forget
#define gpu_counts  cuda_counts
#include "cuda/standin.h"
#include "gpu_test.h"

/* With a setting of the machine a model that names the device is not opened, and one that does not
 * is opened on the CPU; both say why. */
static void with(const char *name, const char *value, const char *devices, const char *says)
{
    const char *was = getenv(name);
    char *before = was ? strdup(was) : NULL;
    cuda_forget();
    refused_with(name, value, devices, says);
    cuda_forget();
    set_env(name, before);
    free(before);
}

/* What is missing is named where the device was asked for; else the CPU does without, and that is
 * told. */
static void what_is_absent_is_named(void)
{
    struct pith_error err;
    char old[640];
    standin_path("cuda-old.so", old, sizeof old);
    make_model("llama");
    with("PITH_CUDA_LIBRARY", "libabsent.so.9", "0", "libabsent.so.9 cannot be opened");
    with("PITH_CUDA_LIBRARY", "libc.so.6", "0", "is no driver's library");
    with("PITH_CUDA_MEMORY", "many", "0", "PITH_CUDA_MEMORY");
    with("PITH_CUDA_RECORDINGS", NULL, "99", "this machine has");
    if (standin_is_used()) {
        with("STANDIN_DRIVER", "10020", "0", "the driver is for CUDA 10.2, 11.4 is needed");
        with("STANDIN_ARCH", "61", "0", "compute capability 6.1, 7.5 is needed");
        with("STANDIN_DEVICES", "0", "0", "CUDA_ERROR_NO_DEVICE");
        with("PITH_CUDA_LIBRARY", old, "0", "has no cuDriverGetVersion: the driver is too old");
        with("PITH_CUDA_KERNELS", "absent.cubin", "0", "absent.cubin");
        with("PITH_CUDA_KERNELS", "libc.so.6", "0", "libc.so.6 are no kernels for");
    }
    pith_model *m = open_model("0", "1", &err); /* and the next goes */
    CHECK_MSG(m, "%s", err.msg);
    pith_model_close(m);
}

static void products_of_bytes(void)
{
    products_by_bytes("cuda dp4a", test_scale() < 10 ? 2 : 6);
}

/* Rows of CODED_ROWS tokens that are other bits. */
static int other_rows(const float *a, const float *b)
{
    int n = 0;
    for (int r = 0; r < CODED_ROWS; r++)
        n += memcmp(a + r * V, b + r * V, V * sizeof *a) != 0;
    return n;
}

/* A model of weights of 16 bits by pieces of `piece`, with what the report says of products. */
static int pieces(int32_t piece, const char *says, float *out)
{
    return logits_in_pieces("1", piece, says, out);
}

/* Weights of 16 bits: steps of more than eight rows run on tensor cores, near what the CPU gives,
 * with the same bits recorded and not; and where the same bits from batch to batch are wanted, they
 * do not. */
static void products_of_halves(void)
{
    static const char *const cases[][2] = {
        {"llama", "f16"}, {"llama", "bf16"}, {"qwen3moe", "f16"}};
    static float cpu[CODED_ROWS * V], all[CODED_ROWS * V], some[CODED_ROWS * V];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *arch = cases[i][0], *type = cases[i][1];
        int moe = strstr(arch, "moe") != NULL;
        char mma[64], plain[64];
        double sum = 0, off = 0;
        snprintf(mma, sizeof mma, "\"matmul %s cuda mma\"", type);
        snprintf(plain, sizeof plain, "\"matmul %s cuda\"", type);
        if (!try_model(arch, 64, type) || !logits_in_pieces("0", CODED_ROWS, "", cpu) ||
            !pieces(CODED_ROWS, mma, all)) {
            CHECK_MSG(0, "%s, %s: no logits", arch, type);
            continue;
        }
        for (int j = 0; j < CODED_ROWS * V; j++) {
            sum += (double)cpu[j] * (double)cpu[j];
            off += pow((double)cpu[j] - (double)all[j], 2);
        }
        printf("# %s, %s: off by %.2g of what the CPU gives\n", arch, type, sqrt(off / sum));
        CHECK_MSG(sqrt(off / sum) <= 0.01, "%s, %s: off by %.3g", arch, type, sqrt(off / sum));
        set_env("PITH_CUDA_RECORDINGS", "0");
        CHECK(pieces(CODED_ROWS, "\"bits_by_rows\": ", some) && !other_rows(all, some));
        set_env("PITH_CUDA_RECORDINGS", NULL);
        CHECK(pieces(12, mma, some) && (moe || !other_rows(all, some)));
        CHECK(pieces(1, mma, some));
        CHECK_MSG(other_rows(all, some) > 0, "%s, %s: tensor cores have done nothing", arch, type);
        reproducible = 1;
        CHECK(pieces(CODED_ROWS, plain, all) && pieces(7, plain, some) && !other_rows(all, some));
        CHECK(pieces(1, plain, some) && !other_rows(all, some));
        reproducible = 0;
    }
}

/* One GPU that two backends offer is one device: the second of them is not there, where nobody asks
 * for it by name. */
static void twins_are_one(void)
{
    struct pith_error err = {PITH_OK, ""};
    make_model("llama");
    set_env("PITH_FAR_DEVICES", "1"); /* CPU, FAR0, cuda0 */
    for (int same = 0; same < 2 && standin_is_used(); same++) {
        set_env("STANDIN_NAME", same ? "a device for tests" : NULL);
        pith_model *m = open_model("0", "2", &err);
        CHECK_MSG((m == NULL) == same, "%s: %s", same ? "one name" : "two names",
                  m ? "opened" : err.msg);
        pith_model_close(m);
    }
    set_env("STANDIN_NAME", NULL);
    set_env("PITH_FAR_DEVICES", NULL);
    if (!standin_is_used())
        SKIP("a GPU has the name that it has");
}

static void no_device(void)
{
    SKIP("%s", absent());
}

int main(void)
{
    tmp_make();
    standin_use();
    if (*absent()) {
        TEST(no_device);
        return test_end();
    }
    gpu_tests();
    TEST(what_is_absent_is_named);
    TEST(products_of_bytes);
    TEST(products_of_halves);
    TEST(twins_are_one);
    return test_end();
}
