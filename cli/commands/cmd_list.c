/* cmd_list.c -- pith list: the models that are on this machine, with what their headers say. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"
#include "cli/models/local.h"

struct opts {
    int json;
};

/* clang-format off */
static const struct arg args[] = {
    {.name = "--json", ARG_FIELD(struct opts, json, ARG_SWITCH),
     .help = "a JSON array of {name, source, path, where, bytes, parts, complete, modified "
         "(seconds since 1970), arch, type, params, error}; what a header does not tell is null"},
    {0},
};
/* clang-format on */

/* From the header: architecture, what its weights are called, how many there are. */
struct about {
    char arch[64], error[PITH_ERROR_MAX];
    const char *type; /* a constant */
    int64_t n_params;
};

static void count_weights(const pith_file *f, struct about *a)
{
    for (int64_t i = 0; i < pith_file_n_tensors(f); i++) {
        struct pith_tensor_info t = PITH_TENSOR_INFO_INIT;
        int64_t n_elements = 1;
        if (pith_file_tensor(f, i, &t) != PITH_OK)
            return;
        for (int d = 0; d < t.n_dims; d++)
            n_elements *= t.dims[d];
        a->n_params += n_elements;
    }
}

static void look_into(const struct local_model *m, struct about *a)
{
    struct pith_error err = {0};
    *a = (struct about){.type = ""};
    pith_file *f = local_is_whole(m) ? pith_file_open(m->path, &err) : NULL;
    if (!f) {
        snprintf(a->error, sizeof a->error, "%s", err.msg);
        return;
    }
    cli_file_text(f, "general.architecture", a->arch, sizeof a->arch);
    a->type = pith_file_type(f) ? pith_file_type(f) : "";
    count_weights(f, a);
    pith_file_close(f);
}

/* ---------------------------------------------------------------- output */

static void say_age(int64_t modified, char *out, size_t cap)
{
    static const struct {
        int64_t seconds;
        const char *name;
    } units[] = {{365 * 86400, "year"}, {30 * 86400, "month"}, {86400, "day"},
                 {3600, "hour"},        {60, "minute"},        {1, "second"}};
    int64_t age = (int64_t)time(NULL) - modified;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        long long n = (long long)(age / units[i].seconds);
        if (n <= 0)
            continue;
        snprintf(out, cap, "%lld %s%s", n, units[i].name, n == 1 ? "" : "s");
        return;
    }
    snprintf(out, cap, "now");
}

static void say_params(int64_t n, char *out, size_t cap)
{
    snprintf(out, cap,
             n >= 10000000000  ? "%.0fB"
             : n >= 1000000000 ? "%.1fB"
             : n >= 1000000    ? "%.0fM"
             : n               ? "%.2fM"
                               : "-",
             (double)n / (n >= 1000000000 ? 1e9 : 1e6));
}

static void print_row(const struct local_model *m, int width)
{
    struct about a;
    char size[32], params[32], age[32];
    look_into(m, &a);
    say_bytes(m->bytes, size, sizeof size);
    say_params(a.n_params, params, sizeof params);
    say_age(m->modified, age, sizeof age);
    for (const char *p = m->name; *p; p++, width--)
        putchar((unsigned char)*p < 0x20 || *p == 0x7F ? '?' : *p);
    printf("%*s  %-10s %-8s %-12s %-7s %-12s %s", width, "", size, *a.type ? a.type : "-",
           *a.arch ? a.arch : "-", params, m->tool, age);
    if (m->is_part)
        fputs(", unfinished", stdout);
    else if (!local_is_whole(m))
        printf(", %d of %d parts", m->n_there, m->n_parts);
    else if (*a.error)
        fputs(", cannot be read", stdout);
    putchar('\n');
}

static json_t *text_or_null(const char *text)
{
    return *text ? cli_json_text(text, strlen(text)) : json_null();
}

static json_t *row_json(const struct local_model *m)
{
    struct about a;
    look_into(m, &a);
    return json_pack(
        "{s:o, s:o, s:o, s:s, s:I, s:i, s:b, s:I, s:o, s:o, s:o, s:o}", "name",
        text_or_null(m->name), "source", text_or_null(m->source), "path", text_or_null(m->path),
        "where", m->tool, "bytes", (json_int_t)m->bytes, "parts", m->n_parts, "complete",
        local_is_whole(m), "modified", (json_int_t)m->modified, "arch", text_or_null(a.arch),
        "type", text_or_null(a.type), "params", a.n_params ? json_integer(a.n_params) : json_null(),
        "error", text_or_null(a.error));
}

static int print_json(const struct local *s)
{
    json_t *root = json_array();
    int ok = root != NULL;
    for (size_t i = 0; i < s->n && ok; i++)
        ok = json_array_append_new(root, row_json(&s->v[i])) == 0;
    if (ok && json_dumpf(root, stdout, JSON_INDENT(1)) == 0)
        putchar('\n');
    json_decref(root);
    return ok ? CLI_OK : cli_no_memory();
}

static int run(void *opts)
{
    const struct opts *o = opts;
    struct local s;
    char dir[4096];
    int width = 4, code = local_read(&s);
    if (code)
        return code;
    if (o->json) {
        code = print_json(&s);
        local_free(&s);
        return code;
    }
    for (size_t i = 0; i < s.n; i++)
        width = (int)strlen(s.v[i].name) > width ? (int)strlen(s.v[i].name) : width;
    if (s.n)
        printf("%-*s  %-10s %-8s %-12s %-7s %-12s %s\n", width, "NAME", "SIZE", "TYPE", "ARCH",
               "PARAMS", "WHERE", "AGE");
    else
        fprintf(stderr, "no models here; 'pith pull' fetches one into %s\n",
                local_dir(dir, sizeof dir) ? dir : "$PITH_MODELS");
    for (size_t i = 0; i < s.n; i++)
        print_row(&s.v[i], width);
    local_free(&s);
    return CLI_OK;
}

const struct command cmd_list = {
    .name = "list",
    .summary = "list the models on this machine",
    .args =
        {
            .command = "pith list",
            .about = "Lists the models in pith's folder ($PITH_MODELS, else pith/models in "
                     "$XDG_DATA_HOME or ~/.local/share) and in "
                     "those of other tools: Hugging Face's cache, llama.cpp's, LM Studio's, "
                     "Ollama's. Any of the names will do where a "
                     "command wants a model. A file put into pith's folder by hand is listed like "
                     "one that was pulled.",
            .example = "  pith list\n"
                       "  pith list --json | jq -r '.[] | select(.arch == \"llama\").path'\n",
            .rows = args,
        },
    .opts_bytes = sizeof(struct opts),
    .run = run,
};
