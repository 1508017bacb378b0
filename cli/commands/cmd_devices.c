/* cmd_devices.c -- pith devices: what this machine can compute on. */
#include <string.h>

#include "cli/cli.h"

struct opts {
    int json;
};

/* clang-format off */
static const struct arg args[] = {
    {.name = "--json", ARG_FIELD(struct opts, json, ARG_SWITCH),
     .help = "a JSON array of {name, backend, kind, about, total_bytes, free_bytes, lacks, error}; "
         "what is not known is null; lacks: names of what kernels would use"},
    {0},
};
/* clang-format on */

static void print_row(const struct pith_device_info *d)
{
    printf("%-10s %-10s", d->name, d->kind);
    if (d->total_bytes != UINT64_MAX)
        printf(" %9.1f MiB, %.1f MiB free", (double)d->total_bytes / 1048576,
               (double)d->free_bytes / 1048576);
    printf("  %s\n", d->about);
    if (*d->lacks)
        printf("%-10s without %s\n", "", d->lacks);
}

/* Names with ", " between them. */
static json_t *names_json(const char *list)
{
    json_t *names = json_array();
    for (const char *p = list, *end; names && *p; p = *end ? end + 2 : end) {
        end = strstr(p, ", ");
        end = end ? end : p + strlen(p);
        json_array_append_new(names, json_stringn(p, (size_t)(end - p)));
    }
    return names;
}

static json_t *bytes_json(uint64_t n)
{
    return n == UINT64_MAX ? json_null() : json_integer((json_int_t)n);
}

static json_t *row_json(const struct pith_device_info *d, const char *error)
{
    if (*error)
        return json_pack("{s:o}", "error", cli_json_text(error, strlen(error)));
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:n}", "name", d->name, "backend",
                     d->backend, "kind", d->kind, "about",
                     cli_json_text(d->about, strlen(d->about)), "total_bytes",
                     bytes_json(d->total_bytes), "free_bytes", bytes_json(d->free_bytes), "lacks",
                     names_json(d->lacks), "error");
}

static int run(void *opts)
{
    const struct opts *o = opts;
    json_t *root = o->json ? json_array() : NULL;
    int ok = !o->json || root;
    for (int32_t i = 0; i < pith_n_devices() && ok; i++) {
        struct pith_device_info d = PITH_DEVICE_INFO_INIT;
        struct pith_error err = {0};
        pith_status st = pith_device_get(i, &d, &err);
        if (root)
            ok = json_array_append_new(root, row_json(&d, st == PITH_OK ? "" : err.msg)) == 0;
        else if (st == PITH_OK)
            print_row(&d);
        else
            cli_fail(&err);
    }
    if (root && ok && json_dumpf(root, stdout, JSON_INDENT(1)) == 0)
        putchar('\n');
    json_decref(root);
    return cli_finish(ok ? CLI_OK : cli_no_memory());
}

const struct command cmd_devices = {
    .name = "devices",
    .summary = "list what this machine can compute on",
    .args = {.command = "pith devices",
             .about = "Lists the CPU and every GPU that pith can use, as --device takes their "
                      "names. A device of kind software is a test of its drivers: it is used only "
                      "by name.",
             .example = "  pith devices\n  pith devices --json\n",
             .rows = args},
    .opts_bytes = sizeof(struct opts),
    .run = run,
};
