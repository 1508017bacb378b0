/* test_cuda.c -- models on CUDA devices (gpu_test.h), and what is CUDA's own. Without a GPU all of
 * it runs on what stands in for one (cuda/standin.h). */
/* In make test alone: make check has no GPU. */
#include "backend/cuda/cuda.h"

#define GPU         "cuda"
#define GPU_ENV     "PITH_CUDA_"
#define GPU_REDUCED 5
#define gpu_backend backend_cuda
#define gpu_plan    cuda_plan
#define gpu_calls   cuda_calls
#define gpu_forget  cuda_forget
#define gpu_counts  cuda_counts
#include <dlfcn.h>
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

/* Attention of many rows has bits of its own, which are looked at by themselves. */
static void products_of_bytes(void)
{
    set_env("PITH_CUDA_MASK", "flash");
    products_by_bytes("cuda dp4a", test_scale() < 10 ? 2 : 6);
    set_env("PITH_CUDA_MASK", NULL);
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
    set_env("PITH_CUDA_MASK", "flash");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *arch = cases[i][0], *type = cases[i][1];
        int moe = strstr(arch, "moe") != NULL;
        char mma[64], plain[64];
        double sum = 0, off = 0;
        snprintf(mma, sizeof mma, "\"matmul %s cuda wgmma\"", type);
        CHECK(!standin_is_used() || !try_model(arch, 64, type) || pieces(1, mma, some));
        set_env("PITH_CUDA_MASK", "flash,wgmma");
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
        set_env("PITH_CUDA_MASK", "flash");
    }
    set_env("PITH_CUDA_MASK", NULL);
}

/* How far two sets of logits are from each other, beside the first. */
static double far_off(const float *want, const float *got)
{
    double sum = 0, off = 0;
    for (int j = 0; j < CODED_ROWS * V; j++) {
        sum += (double)want[j] * (double)want[j];
        off += pow((double)want[j] - (double)got[j], 2);
    }
    return sqrt(off / sum);
}

/* Attention on tensor cores, of many rows and of few, is near what the CPU gives, with the same
 * bits recorded and not. Masked, or where the same bits from batch to batch are wanted, sums are
 * those of the kernel that has them. */
static void attention_on_tensor_cores(void)
{
    static const char *const families[] = {"llama", "gemma2", "gpt-oss", "deepseek2"};
    static const char mma[] = "\"attn cuda mma\"";
    static float cpu[CODED_ROWS * V], all[CODED_ROWS * V], some[CODED_ROWS * V];
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const char *arch = families[i];
        int wide = standin_is_used() && strcmp(arch, "deepseek2"); /* of latent rows: none */
        const char *tensor = wide                ? "\"attn cuda wgmma\""
                             : standin_is_used() ? mma
                                                 : "\"attn cuda ";
        if (!try_model(arch, 64, NULL) || !logits_in_pieces("0", CODED_ROWS, "", cpu) ||
            !pieces(CODED_ROWS, tensor, all)) {
            CHECK_MSG(0, "%s: no logits", arch);
            continue;
        }
        printf("# %s: off by %.2g of what the CPU gives\n", arch, far_off(cpu, all));
        CHECK_MSG(far_off(cpu, all) <= 0.003, "%s: off by %.3g", arch, far_off(cpu, all));
        set_env("PITH_CUDA_RECORDINGS", "0");
        CHECK(pieces(CODED_ROWS, "\"bits_by_rows\": ", some) && !other_rows(all, some));
        set_env("PITH_CUDA_RECORDINGS", NULL);
        CHECK_MSG(pieces(1, tensor, some) && far_off(cpu, some) <= 0.003,
                  "%s, row by row: off by %.3g", arch, far_off(cpu, some));
        set_env("PITH_CUDA_MASK", "flash_wide");
        CHECK(pieces(CODED_ROWS, mma, some) && far_off(cpu, some) <= 0.003);
        CHECK(pieces(1, "flash_wide (PITH_CUDA_MASK)", some) || !standin_is_used());
        set_env("PITH_CUDA_MASK", "flash");
        CHECK(pieces(CODED_ROWS, "\"attn\"", some));
        CHECK_MSG(other_rows(all, some) > 0, "%s: tensor cores have done nothing", arch);
        set_env("PITH_CUDA_MASK", NULL);
        reproducible = 1;
        CHECK(pieces(CODED_ROWS, "\"attn\"", all) && !other_rows(all, some));
        CHECK(pieces(7, "\"attn\"", some) && !other_rows(all, some));
        reproducible = 0;
    }
}

/* Kernels that say they work, and do not: a model is opened without them, by all of the process,
 * which is told; or it is refused. What has ended its device has done so for once. */
static void kernels_are_tried(void)
{
    static const struct {
        const char *wrong, *fatal, *says, *left; /* left: masked, the same logits */
    } cases[] = {
        {NULL, NULL, "", ""},
        {"pith_flash_wide", NULL, "wgmma,flash_wide of cuda are not used: they give other",
         "wgmma"},
        {"pith_flash", NULL, "mma,flash of cuda are not used: they give other", "mma,wgmma"},
        {NULL, "pith_flash_wide", "wgmma,flash_wide of cuda are not used: they did not", "wgmma"},
        {NULL, "pith_flash", "mma,flash of cuda are not used: they did not do before", "mma,wgmma"},
    };
    static float got[CODED_ROWS * V], want[CODED_ROWS * V];
    if (!standin_is_used())
        SKIP("hardware: a device that works has nothing to find");
    CHECK(try_model("llama", 64, "f16"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pith_error err = {PITH_OK, ""};
        struct pith_model_info info = PITH_MODEL_INFO_INIT;
        set_env("PITH_CUDA_MASK", cases[i].left);
        CHECK(pieces(CODED_ROWS, "", want));
        set_env("PITH_CUDA_MASK", NULL);
        set_env("PITH_CUDA_TRIAL", NULL);
        set_env("STANDIN_WRONG", cases[i].wrong);
        set_env("STANDIN_FATAL", cases[i].fatal);
        cuda_plan(&(struct cuda_plan){0});
        pith_model *m = open_model("0", "1", &err);
        CHECK_MSG(m, "case %zu: %s", i, err.msg);
        if (m && pith_model_get_info(m, &info, &err) == PITH_OK) {
            const char *note = info.note ? info.note : "";
            CHECK_MSG(*cases[i].says ? strstr(note, cases[i].says) != NULL : !*note, "case %zu: %s",
                      i, note);
        }
        pith_model_close(m);
        CHECK_MSG(pieces(CODED_ROWS, "", got) && !other_rows(want, got), "case %zu: other logits",
                  i);
        cuda_plan(&(struct cuda_plan){0});
        struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
        mp.strict = 1;
        set_devices("0", "1");
        m = pith_model_open(path, &mp, &err);
        CHECK_MSG((m != NULL) == !*cases[i].says &&
                      (m || (err.code == PITH_UNSUPPORTED && strstr(err.msg, "flash"))),
                  "case %zu, strict: %s", i, m ? "opened" : err.msg);
        set_devices(NULL, NULL);
        pith_model_close(m);
        set_env("STANDIN_WRONG", NULL);
        set_env("STANDIN_FATAL", NULL);
        set_env("PITH_CUDA_TRIAL", "0");
        cuda_plan(&(struct cuda_plan){0});
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
        SKIP("hardware: a GPU has the name that it has");
}

/* ---------------------------------------------------------------- NCCL */

enum { N_JOINED = 12 };

/* The logits of tokens over devices that share matrices; what the model's note or the report has to
 * say. 0: the model is not opened, and err says why. */
static int joined_logits(const char *devices, int strict, const char *says, float *out,
                         struct pith_error *err)
{
    static char report[1 << 16];
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    int32_t token[N_JOINED];
    mp.n_threads = 1;
    mp.n_batch = 64;
    mp.split = PITH_SPLIT_ROW;
    mp.strict = strict;
    for (int i = 0; i < N_JOINED; i++)
        token[i] = 5 * i % V;
    *err = (struct pith_error){PITH_OK, ""};
    set_devices(devices, NULL);
    pith_model *m = pith_model_open(path, &mp, err);
    set_devices(NULL, NULL);
    pith_session *s = m ? open_session(m, err) : NULL;
    int ok = s != NULL;
    for (int i = 0; i < N_JOINED && ok; i++) {
        ok = golden_feed(s, token + i, 1, err) == PITH_OK;
        if (ok)
            memcpy(out + i * V, pith_logits(s, 0), V * sizeof *out);
    }
    CHECK_MSG(!m || ok, "%s", err->msg);
    if (ok && pith_report(s, 0, report, sizeof report) > 0 &&
        pith_model_get_info(m, &info, NULL) == PITH_OK)
        CHECK_MSG(strstr(report, says) || (info.note && strstr(info.note, says)),
                  "nobody says \"%s\": %s; %s", says, info.note ? info.note : "no note", report);
    pith_session_close(s);
    pith_model_close(m);
    return ok;
}

static void weights_come_beside(void)
{
    char file[640];
    float out[V];
    int (*beside)(void);
    if (!standin_is_used())
        SKIP("hardware: a device does not tell by what stream something came");
    standin_path("cuda-driver.so", file, sizeof file);
    void *lib = dlopen(file, RTLD_NOW | RTLD_NOLOAD);
    REQUIRE(lib, "%s was not used", file);
    *(void **)&beside = dlsym(lib, "standin_beside");
    come_beside(beside, NULL, out);
    dlclose(lib);
}

static int *nccl_groups(int (**comms)(void))
{
    char file[640];
    standin_path("cuda-nccl.so", file, sizeof file);
    void *lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    *(void **)comms = lib ? dlsym(lib, "standin_nccl_comms") : NULL;
    return lib ? dlsym(lib, "standin_nccl_groups") : NULL;
}

/* Between GPUs that share matrices values go by NCCL, with the bits that copies have; where it is
 * absent, too old, turned off, cannot join them or fails in the middle, they go by copies, which is
 * named, and strict refuses what it knows when the model is opened. */
static void values_go_by_nccl(void)
{
    static const struct {
        const char *name, *value, *devices, *says;
        int refused;
    } gaps[] = {
        {"PITH_NCCL_LIBRARY", "libabsent.so.2", "0,1", "NCCL: libabsent.so.2 cannot be opened", 1},
        {"PITH_NCCL_LIBRARY", "libc.so.6", "0,1", "is no library of NCCL", 1},
        {"STANDIN_NCCL_VERSION", "20604", "0,1", "is version 20604, 20700 is needed", 1},
        {"STANDIN_NCCL", "init", "0,1", "2 GPUs cannot be joined: unhandled system error", 1},
        {"STANDIN_NCCL", NULL, "0,0", "NCCL takes each GPU once, cuda1 and cuda0 are the same", 1},
        {"PITH_NCCL", "0", "0,1", "between them: copies", 0},
        {"STANDIN_NCCL", "7", "0,1", "copies, since NCCL 2.21.5 has failed: remote process", 0}};
    static float plain[N_JOINED * V], got[N_JOINED * V];
    char file[640];
    struct pith_error err;
    int (*comms)(void) = NULL;
    if (!standin_is_used())
        SKIP("hardware: NCCL wants two GPUs");
    standin_path("cuda-nccl.so", file, sizeof file);
    int *groups = nccl_groups(&comms);
    REQUIRE(groups && comms, "no %s", file);
    for (int i = 0; i < 2; i++) {
        REQUIRE(try_model(i ? "qwen3moe" : "llama", 64, "q8_0"), "no model");
        set_env("PITH_NCCL", "0");
        CHECK_MSG(joined_logits("0,1", 0, "between them: copies", plain, &err), "%s", err.msg);
        set_env("PITH_NCCL", NULL);
        set_env("PITH_NCCL_LIBRARY", file);
        cuda_forget();
        int before = *groups;
        CHECK_MSG(joined_logits("0,1", 1, "between them: NCCL 2.21.5", got, &err), "%s", err.msg);
        CHECK_MSG(!memcmp(plain, got, sizeof got), "other bits by NCCL");
        printf("# %d groups of sends for %d steps\n", *groups - before, N_JOINED);
        CHECK_MSG(*groups - before >= 2 * N_JOINED && !comms(), "%d groups, %d communicators left",
                  *groups - before, comms());
        for (size_t k = 0; k < sizeof gaps / sizeof *gaps; k++) {
            cuda_forget();
            set_env(gaps[k].name, gaps[k].value);
            CHECK_MSG(joined_logits(gaps[k].devices, 0, gaps[k].says, got, &err), "%s: %s",
                      gaps[k].says, err.msg);
            CHECK_MSG(!memcmp(plain, got, sizeof got), "%s: other bits", gaps[k].says);
            int opened = joined_logits(gaps[k].devices, 1, gaps[k].says, got, &err);
            CHECK_MSG(opened == !gaps[k].refused && (opened || strstr(err.msg, gaps[k].says)),
                      "strict, %s: %s", gaps[k].says, opened ? "opened" : err.msg);
            set_env(gaps[k].name,
                    strcmp(gaps[k].name, "PITH_NCCL_LIBRARY") ? NULL : file);
            CHECK_MSG(!comms(), "%s: %d communicators left", gaps[k].says, comms());
        }
        set_env("PITH_NCCL_LIBRARY", NULL);
        cuda_forget();
    }
}

/* NCCL fails after a group was handed over, or a device is gone of which it knows nothing: devices
 * would wait for each other for ever. The step ends with an error that says what has happened, the
 * model's devices are lost, nothing of NCCL's is left, and the next model has both again. */
static void what_never_comes_ends(void)
{
    static const char *const faults[][2] = {
        {"hangs7", "NCCL 2.21.5 has failed at cuda"},
        {"gone7", "lost"}};
    static float first[V];
    char file[640];
    struct pith_error err;
    int (*comms)(void) = NULL;
    int32_t token = 3;
    if (!standin_is_used())
        SKIP("hardware: NCCL wants two GPUs");
    standin_path("cuda-nccl.so", file, sizeof file);
    REQUIRE(nccl_groups(&comms) && comms, "no %s", file);
    REQUIRE(try_model("llama", 64, "q8_0"), "no model");
    set_env("PITH_NCCL_LIBRARY", file);
    cuda_forget(); /* what was opened without it */
    for (int i = 0; i < 4; i++) { /* each fault, and after it none */
        struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
        mp.n_threads = 1;
        mp.n_batch = 64;
        mp.split = PITH_SPLIT_ROW;
        err = (struct pith_error){PITH_OK, ""};
        set_env("STANDIN_NCCL", i % 2 ? NULL : faults[i / 2][0]);
        set_devices("0,1", NULL);
        pith_model *m = pith_model_open(path, &mp, &err);
        set_devices(NULL, NULL);
        pith_session *s = m ? open_session(m, &err) : NULL;
        REQUIRE(s, "%s", err.msg);
        pith_status st = PITH_OK;
        for (int k = 0; k < N_JOINED && st == PITH_OK; k++)
            st = golden_feed(s, &token, 1, &err);
        CHECK_MSG(st == (i % 2 ? PITH_OK : PITH_DEVICE) &&
                      (i % 2 || strstr(err.msg, faults[i / 2][1])),
                  "%s: %d, %s", faults[i / 2][0], st, err.msg);
        CHECK_MSG(i % 2 || (golden_feed(s, &token, 1, &err) == PITH_DEVICE &&
                            strstr(err.msg, "was lost")),
                  "%s, the next step: %s", faults[i / 2][0], err.msg);
        const float *got = i % 2 ? pith_logits(s, 0) : NULL;
        if (got && i == 1)
            memcpy(first, got, sizeof first);
        CHECK_MSG(i % 2 == 0 || (got && !memcmp(first, got, sizeof first)), "other bits after %s",
                  faults[i / 2][0]);
        pith_session_close(s);
        pith_model_close(m);
        CHECK_MSG(!comms(), "%s: %d communicators left", faults[i / 2][0], comms());
    }
    set_env("PITH_NCCL_LIBRARY", NULL);
    cuda_forget();
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
    TEST(attention_on_tensor_cores);
    TEST(kernels_are_tried);
    TEST(twins_are_one);
    TEST(weights_come_beside);
    TEST(values_go_by_nccl);
    TEST(what_never_comes_ends);
    return test_end();
}
