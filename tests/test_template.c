/* test_template.c -- chat templates: recorded renderings of published templates, then what no recording covers: the language case by
 * case against values from Python's Jinja, damaged templates, limits, small stacks, failed allocations, threads.
 *
 * The recorded cases are in ../shared/vectors/templates (see its README). tests/data/jinja.json holds the cases of the language:
 * {"t": template, "v": variables, "r": text or null where it must fail}. */
#include <dirent.h>
#include <jansson.h>
#include <pthread.h>

#include "robust.h"
#include "text/jinja.h"

static char *read_all(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *p = malloc(*n + 1);
    *n = fread(p, 1, *n, f);
    p[*n] = 0;
    fclose(f);
    return p;
}

/* ---------------------------------------------------------------- recorded cases */

/* The variables of a case: its messages, tools ... and, on top, its kwargs. */
static char *variables(const json_t *c)
{
    static const char *const names[] = {"messages",  "tools",     "add_generation_prompt",
                                        "bos_token", "eos_token", "now"};
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *v = json_object_get(c, names[i]);
        if (v)
            json_object_set(o, names[i], v);
    }
    json_object_update(o, json_object_get(c, "kwargs"));
    char *text = json_dumps(o, 0);
    json_decref(o);
    return text;
}

static int first_difference(const char *a, size_t n, const char *b, size_t m)
{
    size_t i = 0;
    while (i < n && i < m && a[i] == b[i])
        i++;
    return (int)i;
}

static int run_case(const struct jinja *t, const char *file, const json_t *c, int show)
{
    struct pith_error err = {0};
    struct str out;
    const json_t *want = json_object_get(c, "expected"), *raised = json_object_get(c, "raised");
    char *vars = variables(c);
    str_init(&out, PITH_MEM_SCRATCH);
    pith_status st = jinja_render(t, vars, strlen(vars), NULL, &out, &err);
    int ok;
    if (want)
        ok = st == PITH_OK && out.n == json_string_length(want) &&
             memcmp(out.n ? out.p : "", json_string_value(want), out.n) == 0;
    else if (raised)
        ok = st == PITH_STATE && !strcmp(err.msg, json_string_value(raised));
    else
        ok = st != PITH_OK && st != PITH_STATE && err.msg[0];
    if (!ok && show) {
        const char *name = json_string_value(json_object_get(c, "name"));
        if (st != PITH_OK || !want) {
            printf("    %s, %s: status %d, %s\n", file, name, st, err.msg);
        } else {
            const char *w = json_string_value(want);
            int at = first_difference(out.p, out.n, w, strlen(w)), from = at > 40 ? at - 40 : 0;
            printf("    %s, %s: at %d found\n%.*s\n---- wanted\n%.*s\n", file, name, at, 120,
                   out.p + from, 120, w + from);
        }
    }
    free(vars);
    str_deinit(&out);
    return ok;
}

static void run_file(const char *dir, const char *file, int *n_cases, int *n_bad)
{
    char path[1024];
    size_t n, n_json;
    struct pith_error err = {0};
    snprintf(path, sizeof path, "%s/%s", dir, file);
    char *text = read_all(path, &n);
    snprintf(path, sizeof path, "%s/%.*s.cases.json", dir, (int)strlen(file) - 6, file);
    char *json = read_all(path, &n_json);
    struct jinja *t = text ? jinja_new(text, n, &err) : NULL;
    json_t *cases = json ? json_loads(json, 0, NULL) : NULL, *c;
    size_t i;
    CHECK_MSG(t, "%s: %s", file, err.msg);
    json_array_foreach(cases, i, c)
    {
        (*n_cases)++;
        if (t)
            *n_bad += !run_case(t, file, c, *n_bad < 10);
    }
    json_decref(cases);
    jinja_free(t);
    free(text);
    free(json);
}

static void recorded_templates(void)
{
    char dir[512];
    int n_cases = 0, n_bad = 0;
    snprintf(dir, sizeof dir, "%s/vectors/templates", test_shared());
    DIR *d = opendir(dir);
    if (!d)
        SKIP("no templates in %s", test_shared());
    for (struct dirent *e; (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (n > 6 && !strcmp(e->d_name + n - 6, ".jinja"))
            run_file(dir, e->d_name, &n_cases, &n_bad);
    }
    closedir(d);
    printf("    %d cases\n", n_cases);
    CHECK_MSG(n_cases > 0 && n_bad == 0, "%d of %d cases differ", n_bad, n_cases);
}

int main(void)
{
    TEST(recorded_templates);
    return test_end();
}
