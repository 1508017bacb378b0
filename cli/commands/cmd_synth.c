/* cmd_synth.c -- pith synth: writes a random model of any architecture, for tests. */
#include <string.h>
#include <strings.h>

#include "cli/cli.h"

struct opts {
    const char *out, *arch, *type;
    int64_t n_layer, n_embd, n_head, n_head_kv, n_ff, n_vocab, n_ctx, head_dim, n_expert, n_used;
    int64_t seed;
    int tied;
    struct arg_texts keys, tensors;
};

#define SIZE(flag, member, what)                                                                   \
    {                                                                                              \
        .name = flag, ARG_FIELD(struct opts, member, ARG_SIZE), .lo = 1, .hi = INT32_MAX,          \
        .help = what                                                                               \
    }
/* clang-format off */
static const struct arg args[] = {
    {.name = "OUT", .required = 1, ARG_FIELD(struct opts, out, ARG_TEXT),
     .help = "GGUF file to write; -: stdout"},
    {.name = "--arch", .alias = "-a", .meta = "A", ARG_FIELD(struct opts, arch, ARG_TEXT),
     .dflt = "llama", .help = "architecture; an unknown one lists the known"},
    {.name = "--type", .meta = "T", ARG_FIELD(struct opts, type, ARG_TEXT), .dflt = "f32",
     .help = "weight type of the matrices: f32, f16, q4_0, q4_K ...; q8_0 or f16 where rows are "
             "no whole blocks"},
    SIZE("--layers", n_layer, "layers (sizes that are not given are tiny)"),
    SIZE("--embd", n_embd, "width"),
    SIZE("--heads", n_head, "attention heads"),
    SIZE("--heads-kv", n_head_kv, "key and value heads"),
    SIZE("--head-dim", head_dim, "width of a head"),
    SIZE("--ff", n_ff, "width of the feed-forward part"),
    SIZE("--vocab", n_vocab, "tokens"),
    SIZE("--ctx", n_ctx, "trained context"),
    SIZE("--experts", n_expert, "experts"),
    SIZE("--experts-used", n_used, "experts per token"),
    {.name = "--tied", ARG_FIELD(struct opts, tied, ARG_SWITCH),
     .help = "the token embedding is the output matrix too"},
    {.name = "--key", .meta = "NAME=N", ARG_FIELD(struct opts, keys, ARG_TEXTS),
     .help = "a key of the architecture, without its name: ssm.state_size=128 (repeat it); one "
             "number stands for all items of a list by layers or of four"},
    {.name = "--tensor", .meta = "NAME", ARG_FIELD(struct opts, tensors, ARG_TEXTS),
     .help = "an optional tensor, without \"blk.N.\": attn_q.bias (repeat it)"},
    {.name = "--seed", .alias = "-s", ARG_FIELD(struct opts, seed, ARG_INT), .dflt = "0",
     .help = "the same seed and sizes give the same bytes"},
    {0},
};
/* clang-format on */

static int is_known(const char *name)
{
    for (const char *const *known = pith_arch_names(); *known; known++) {
        if (!strcmp(*known, name))
            return 1;
    }
    return 0;
}

/* Rows that a type of blocks cannot hold have another one, which is said; of a file, as nothing
 * else can be read back. */
static void tell_types(const struct opts *o, const char *out)
{
    static const char others[2][8] = {"q8_0", "f16"};
    struct pith_error err = {0};
    pith_file *f = cli_is_device(out) ? NULL : pith_file_open(out, &err);
    for (int k = 0; k < 2 && f; k++) {
        int n = 0;
        if (!strcasecmp(o->type, others[k]))
            continue;
        for (int64_t i = 0; i < pith_file_n_tensors(f); i++) {
            struct pith_tensor_info t = PITH_TENSOR_INFO_INIT;
            n += pith_file_tensor(f, i, &t) == PITH_OK && !strcmp(t.type, others[k]);
        }
        if (n)
            cli_say(CLI_OK, "%d matrices are %s: their rows are no whole blocks of %s", n,
                    others[k], o->type);
    }
    pith_file_close(f);
}

static int run(void *opts)
{
    const struct opts *o = opts;
    struct pith_error err = {0};
    const char *out = strcmp(o->out, "-") ? o->out : "/dev/stdout";
    int code = is_known(o->arch) ? cli_out_check(o->out) : cli_unknown_arch(o->arch);
    if (code)
        return code;
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    p.arch = o->arch;
    p.type = o->type;
    p.n_layer = (int32_t)o->n_layer;
    p.n_embd = (int32_t)o->n_embd;
    p.n_head = (int32_t)o->n_head;
    p.n_head_kv = (int32_t)o->n_head_kv;
    p.n_ff = (int32_t)o->n_ff;
    p.n_vocab = (int32_t)o->n_vocab;
    p.n_ctx = (int32_t)o->n_ctx;
    p.head_dim = (int32_t)o->head_dim;
    p.n_expert = (int32_t)o->n_expert;
    p.n_expert_used = (int32_t)o->n_used;
    p.tied = o->tied;
    p.keys = o->keys.v;
    p.tensors = o->tensors.v;
    p.seed = (uint64_t)o->seed;
    if (pith_synth(out, &p, &err) != PITH_OK)
        return cli_fail_file(out, &err);
    tell_types(o, out);
    return CLI_OK;
}

const struct command cmd_synth = {
    .name = "synth",
    .summary = "write a random model, for tests",
    .args =
        {
            .command = "pith synth",
            .about = "Writes a GGUF file with random weights and the complete tensor table of an "
                     "architecture. It says nothing sensible, but loads and runs like a real one.",
            .example =
                "  pith synth tiny.gguf --arch qwen3 --type q4_0 --layers 2 --embd 64 --seed 7\n",
            .rows = args,
        },
    .opts_bytes = sizeof(struct opts),
    .run = run,
};
