/* cmd_inspect.c -- pith inspect: what a GGUF file holds, without loading it, and what one of an
 * architecture has. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

struct opts {
    const char *path;
    int64_t max_items;
    int json, arch;
};

/* clang-format off */
static const struct arg args[] = {
    {.name = "FILE", ARG_FIELD(struct opts, path, ARG_TEXT),
     .help = "GGUF file; the first part of a split one. With --arch the name of an architecture"},
    {.name = "--arch", ARG_FIELD(struct opts, arch, ARG_SWITCH), .typed = 1,
     .help = "not of a file, but of an architecture: the keys and tensors that it has; without a "
             "name the names of all"},
    {.name = "--json", ARG_FIELD(struct opts, json, ARG_SWITCH),
     .help = "one JSON object: path, gguf_version, parts, keys [{name, type, value}], tensors "
             "[{name, type, shape, part, offset, bytes}], n_params, bytes, runs (true, or why "
             "not); of an architecture: arch, keys [{name, old, type, wanted, without, needed, "
             "sometimes}], tensors [{name, shape, use, needed, sometimes, group}]"},
    {.name = "--max-items", ARG_FIELD(struct opts, max_items, ARG_SIZE), .lo = -1, .hi = INT32_MAX,
     .dflt = "8", .help = "most items shown of an array, -1: all; a longer one ends in \"...\""},
    {0},
};
/* clang-format on */

enum { LINE_BYTES = 160 }; /* of a string that are shown in the listing */

static int64_t n_elements(const struct pith_tensor_info *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->n_dims; d++)
        n *= t->dims[d];
    return n;
}

/* Value i as text (malloc), NULL: no memory. */
static char *value_text(const pith_file *f, int64_t i, int64_t max_items, size_t *n)
{
    int64_t len = pith_file_value(f, i, max_items, NULL, 0);
    char *text = len < 0 ? NULL : malloc((size_t)len + 1);
    if (text)
        pith_file_value(f, i, max_items, text, (size_t)len + 1);
    *n = text ? (size_t)len : 0;
    return text;
}

/* ---------------------------------------------------------------- listing */

/* One line that a terminal shows as it is: control bytes become \xNN, a long text is cut. */
static void print_line(const char *p, size_t n)
{
    size_t shown = n < LINE_BYTES ? n : LINE_BYTES;
    while (shown < n && shown > 0 && (p[shown] & 0xC0) == 0x80)
        shown--; /* not inside a character */
    for (size_t i = 0; i < shown; i++) {
        unsigned char c = (unsigned char)p[i];
        if (c == '\n')
            fputs("\\n", stdout);
        else if (c < 0x20 || c == 0x7F)
            printf("\\x%02X", c);
        else
            putchar(c);
    }
    if (shown < n)
        printf("... (%zu bytes)", n);
    putchar('\n');
}

static void print_name(const char *name, int width)
{
    int n = 0;
    for (; *name; name++, n++)
        putchar((unsigned char)*name < 0x20 || *name == 0x7F ? '?' : *name);
    printf("%*s", n < width ? width - n : 1, "");
}

static int list(const struct opts *o, const pith_file *f)
{
    struct pith_error why = {0};
    uint64_t params = 0, bytes = 0;
    int64_t n_keys = pith_file_n_keys(f), n_tensors = pith_file_n_tensors(f);
    printf("%s: GGUF version %d, %d part%s\n\n%" PRId64 " keys\n", o->path,
           pith_file_gguf_version(f), pith_file_n_parts(f), pith_file_n_parts(f) == 1 ? "" : "s",
           n_keys);
    for (int64_t i = 0; i < n_keys; i++) {
        size_t n;
        int is_array = !strncmp(pith_file_key_type(f, i), "arr", 3);
        char *text = value_text(f, i, o->max_items < 0 ? INT64_MAX : o->max_items, &n);
        if (!text)
            return cli_no_memory();
        fputs("  ", stdout);
        print_name(pith_file_key(f, i), 44);
        printf("%-10s ", pith_file_key_type(f, i));
        if (is_array) { /* already cut, and JSON: no control bytes */
            fwrite(text, 1, n, stdout);
            putchar('\n');
        } else {
            print_line(text, n);
        }
        free(text);
    }
    printf("\n%" PRId64 " tensors\n", n_tensors);
    for (int64_t i = 0; i < n_tensors; i++) {
        struct pith_tensor_info t = PITH_TENSOR_INFO_INIT;
        if (pith_file_tensor(f, i, &t) != PITH_OK)
            break;
        fputs("  ", stdout);
        print_name(t.name, 44);
        printf("%-10s [", t.type);
        for (int d = 0; d < t.n_dims; d++)
            printf("%s%" PRId64, d ? ", " : "", t.dims[d]);
        printf("] %" PRIu64 " bytes\n", t.bytes);
        params += (uint64_t)n_elements(&t);
        bytes += t.bytes;
    }
    printf("\n%" PRIu64 " parameters, %" PRIu64 " bytes of tensors\n", params, bytes);
    if (pith_file_runs(f, &why) == PITH_OK)
        puts("this build runs it");
    else
        printf("this build does not run it: %s\n", why.msg);
    return CLI_OK;
}

/* ---------------------------------------------------------------- JSON */

/* Numbers, booleans and arrays as such, an array cut to max_items and "..."; what JSON cannot say
 * (NaN, 2^64 - 1) as a string. */
static json_t *value_json(const pith_file *f, int64_t i, int64_t max_items)
{
    size_t n;
    char *text = value_text(f, i, INT64_MAX, &n);
    json_t *v = NULL;
    if (!text)
        return NULL;
    if (strcmp(pith_file_key_type(f, i), "str"))
        v = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (!v)
        v = cli_json_text(text, n);
    free(text);
    if (json_is_array(v) && max_items >= 0 && json_array_size(v) > (size_t)max_items) {
        json_t *head = json_array();
        for (size_t k = 0; k < (size_t)max_items; k++)
            json_array_append(head, json_array_get(v, k));
        json_array_append_new(head, json_string("..."));
        json_decref(v);
        return head;
    }
    return v;
}

static json_t *tensor_json(const pith_file *f, int64_t i, uint64_t *params, uint64_t *bytes)
{
    struct pith_tensor_info t = PITH_TENSOR_INFO_INIT;
    if (pith_file_tensor(f, i, &t) != PITH_OK)
        return NULL;
    json_t *shape = json_array();
    for (int d = 0; d < t.n_dims; d++)
        json_array_append_new(shape, json_integer(t.dims[d]));
    *params += (uint64_t)n_elements(&t);
    *bytes += t.bytes;
    return json_pack("{s:o, s:s, s:o, s:i, s:I, s:I}", "name",
                     cli_json_text(t.name, strlen(t.name)), "type", t.type, "shape", shape, "part",
                     t.part, "offset", (json_int_t)t.offset, "bytes", (json_int_t)t.bytes);
}

static int print_json(const struct opts *o, const pith_file *f)
{
    uint64_t params = 0, bytes = 0;
    json_t *keys = json_array(), *tensors = json_array();
    int ok = keys && tensors;
    for (int64_t i = 0; i < pith_file_n_keys(f) && ok; i++) {
        const char *name = pith_file_key(f, i);
        json_t *row =
            json_pack("{s:o, s:s, s:o}", "name", cli_json_text(name, strlen(name)), "type",
                      pith_file_key_type(f, i), "value", value_json(f, i, o->max_items));
        ok = json_array_append_new(keys, row) == 0;
    }
    for (int64_t i = 0; i < pith_file_n_tensors(f) && ok; i++)
        ok = json_array_append_new(tensors, tensor_json(f, i, &params, &bytes)) == 0;
    struct pith_error why = {0};
    int runs = pith_file_runs(f, &why) == PITH_OK;
    json_t *root = json_pack("{s:o, s:i, s:i, s:o, s:o, s:I, s:I, s:o}", "path",
                             cli_json_text(o->path, strlen(o->path)), "gguf_version",
                             pith_file_gguf_version(f), "parts", pith_file_n_parts(f), "keys", keys,
                             "tensors", tensors, "n_params", (json_int_t)params, "bytes",
                             (json_int_t)bytes, "runs", runs ? json_true() : json_string(why.msg));
    if (ok && root && json_dumpf(root, stdout, JSON_INDENT(1)) == 0)
        putchar('\n');
    int code = ok && root ? CLI_OK : cli_no_memory();
    json_decref(root);
    return code;
}

/* ---------------------------------------------------------------- architectures */

static int list_archs(int json)
{
    json_t *names = json_array();
    for (const char *const *a = pith_arch_names(); *a; a++) {
        if (!json)
            puts(*a);
        else
            json_array_append_new(names, json_string(*a));
    }
    int ok = !json || (names && json_dumpf(names, stdout, JSON_INDENT(1)) == 0);
    if (json && ok)
        putchar('\n');
    json_decref(names);
    return ok ? CLI_OK : cli_no_memory();
}

static const char *need_of(int needed, int sometimes)
{
    return needed      ? sometimes ? "needed in some models" : "needed"
           : sometimes ? "optional in some models"
                       : "optional";
}

static int list_arch(const char *arch)
{
    const char *text, *words;
    printf("%s\n\n%" PRId64 " keys\n", arch, pith_arch_n_keys(arch));
    for (int64_t i = 0; i < pith_arch_n_keys(arch); i++) {
        struct pith_arch_key k = PITH_ARCH_KEY_INIT;
        if (pith_arch_key_at(arch, i, &k, NULL) != PITH_OK)
            break;
        printf("  %-44s %s", k.name, k.type);
        if (k.wanted[0])
            printf(", %s", k.wanted);
        if (k.needed)
            printf("; %s", need_of(1, k.sometimes));
        else
            printf("; without it %s", k.without);
        if (k.old[0])
            printf("; older files have %s", k.old);
        putchar('\n');
    }
    printf("\n%" PRId64 " tensors\n", pith_arch_n_tensors(arch));
    for (int64_t i = 0; i < pith_arch_n_tensors(arch); i++) {
        struct pith_arch_tensor t = PITH_ARCH_TENSOR_INIT;
        char shape[PITH_ARCH_TEXT + 2];
        if (pith_arch_tensor_at(arch, i, &t, NULL) != PITH_OK)
            break;
        snprintf(shape, sizeof shape, "[%s]", t.shape);
        printf("  %-44s %-20s %-10s %s", t.name, shape, t.use, need_of(t.needed, t.sometimes));
        if (t.group)
            printf(", of group %d", t.group);
        putchar('\n');
    }
    puts("\nsizes");
    for (int64_t i = 0; (text = pith_arch_size(i, &words)); i++)
        printf("  %-14s %s\n", text, words);
    puts("  own 1, own 2 ..  of the architecture itself");
    return CLI_OK;
}

static int print_arch_json(const char *arch)
{
    json_t *keys = json_array(), *tensors = json_array();
    for (int64_t i = 0; i < pith_arch_n_keys(arch); i++) {
        struct pith_arch_key k = PITH_ARCH_KEY_INIT;
        if (pith_arch_key_at(arch, i, &k, NULL) == PITH_OK)
            json_array_append_new(keys, json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:b}", "name",
                                                  k.name, "old", k.old, "type", k.type, "wanted",
                                                  k.wanted, "without", k.without, "needed",
                                                  k.needed, "sometimes", k.sometimes));
    }
    for (int64_t i = 0; i < pith_arch_n_tensors(arch); i++) {
        struct pith_arch_tensor t = PITH_ARCH_TENSOR_INIT;
        if (pith_arch_tensor_at(arch, i, &t, NULL) == PITH_OK)
            json_array_append_new(tensors,
                                  json_pack("{s:s, s:s, s:s, s:b, s:b, s:i}", "name", t.name,
                                            "shape", t.shape, "use", t.use, "needed", t.needed,
                                            "sometimes", t.sometimes, "group", t.group));
    }
    json_t *root = json_pack("{s:s, s:o, s:o}", "arch", arch, "keys", keys, "tensors", tensors);
    int ok = root && json_dumpf(root, stdout, JSON_INDENT(1)) == 0;
    if (ok)
        putchar('\n');
    json_decref(root);
    return ok ? CLI_OK : cli_no_memory();
}

static int show_arch(const struct opts *o)
{
    if (!o->path)
        return list_archs(o->json);
    if (pith_arch_n_keys(o->path) < 0)
        return cli_unknown_arch(o->path);
    return o->json ? print_arch_json(o->path) : list_arch(o->path);
}

static int run(void *opts)
{
    struct opts *o = opts;
    struct pith_error err = {0};
    if (o->arch)
        return show_arch(o);
    if (!o->path) {
        fputs("pith inspect: FILE is missing; 'pith inspect --help' shows how it is used\n",
              stderr);
        return CLI_USE;
    }
    int code = cli_model_path(&o->path);
    if (code)
        return code;
    pith_file *f = pith_file_open(o->path, &err);
    if (!f)
        return cli_fail_file(o->path, &err);
    code = o->json ? print_json(o, f) : list(o, f);
    pith_file_close(f);
    return code;
}

const struct command cmd_inspect = {
    .name = "inspect",
    .summary = "show what a GGUF file holds, or what one of an architecture has",
    .args =
        {
            .command = "pith inspect",
            .about = "Lists the metadata and the tensors of a GGUF file. Shapes are written "
                     "slowest first. "
                     "No weights are read. The last line says whether this build runs it, and if "
                     "not, what is missing: of an unknown architecture the nearest known one, and "
                     "the tensors that one has no place for.\n\n"
                     "With --arch it says what a file of an architecture has to have and may have, "
                     "by the tables that files are read and checked by. In names of tensors N "
                     "stands for the layer. What is needed in some models is so where other keys "
                     "say that they use it; optional tensors of one group go together.",
            .example = "  pith inspect model.gguf\n"
                       "  pith inspect --arch qwen3moe\n"
                       "  pith inspect model.gguf --json --max-items -1 | jq '.keys[].name'\n",
            .rows = args,
        },
    .opts_bytes = sizeof(struct opts),
    .run = run,
};
