/* model.c -- opening a model and a session from the flags that commands share, with progress. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"

int cli_chatty(const struct model_opts *o)
{
    return o->verbose || isatty(STDERR_FILENO);
}

struct progress {
    int shown, is_terminal;
    const char *stage;
    double drawn; /* when */
    int (*also)(void *ctx, const char *stage, double fraction,
                uint64_t bytes); /* the caller's own */
    void *also_ctx;
};

/* "weights  [##########..............]  41 %"; elsewhere than on a terminal, a line per stage. */
static void draw(struct progress *p, const char *stage, double fraction)
{
    enum { WIDTH = 32 };
    static const char bar[] = "################################................................";
    double now = cli_seconds();
    int new_stage = !p->stage || strcmp(p->stage, stage) != 0;
    if (!p->is_terminal) {
        if (new_stage)
            fprintf(stderr, "load: %s\n", stage);
    } else if (new_stage || fraction >= 1 || now - p->drawn > 0.05) {
        fraction = fraction < 0 ? 0 : fraction > 1 ? 1 : fraction;
        int done = (int)(fraction * WIDTH);
        char text[100], brief[16];
        snprintf(text, sizeof text, "%-10.40s [%.*s] %3d %%", stage, WIDTH, bar + WIDTH - done,
                 (int)(fraction * 100));
        snprintf(brief, sizeof brief, "%d %%", (int)(fraction * 100));
        cli_draw(text, brief);
        p->drawn = now;
    }
    p->stage = stage;
}

static int on_progress(void *ctx, const char *stage, double fraction, uint64_t bytes)
{
    struct progress *p = ctx;
    if (p->shown)
        draw(p, stage, fraction);
    if (p->also && !p->also(p->also_ctx, stage, fraction, bytes))
        return 0;
    return !interrupt_asked();
}

/* Where copies of packed weights are: the folder that was asked for, made if need be; else the
 * usual one, if somebody has made it: gigabytes are not put where nobody asked for them. "":
 * nowhere. */
static int cache_dir(const struct model_opts *o, char *dir, size_t cap)
{
    struct stat sb;
    *dir = 0;
    if (o->no_cache_dir)
        return CLI_OK;
    if (o->cache_dir) {
        if (mkdir(o->cache_dir, 0777) && errno != EEXIST)
            return cli_say(CLI_INPUT, "--cache-dir %s: cannot make it: %s", o->cache_dir,
                           strerror(errno));
        snprintf(dir, cap, "%s", o->cache_dir);
        return CLI_OK;
    }
    if (!cli_cache_path("packed", dir, cap) || stat(dir, &sb) || !S_ISDIR(sb.st_mode))
        *dir = 0;
    return CLI_OK;
}

/* The flags about devices as the library takes them. */
static void take_devices(const struct device_opts *o, struct pith_model_params *params)
{
    params->devices = o->list;
    params->gpu_layers = o->n_layers == -1   ? PITH_GPU_LAYERS_AUTO
                         : o->n_layers == -2 ? PITH_GPU_LAYERS_ALL
                         : o->n_layers == 0  ? PITH_GPU_LAYERS_NONE
                                             : (int32_t)o->n_layers;
    params->split = !o->split || o->split[0] == 'l' ? PITH_SPLIT_LAYER
                    : o->split[0] == 'r'            ? PITH_SPLIT_ROW
                    : o->split[0] == 't'            ? PITH_SPLIT_TENSOR
                                                    : PITH_SPLIT_NONE;
    params->tensor_split = o->shares;
    params->main_gpu = (int32_t)o->main;
    params->placements = o->placements.n ? o->placements.v : NULL;
    params->upload_rows = o->upload_rows == -2  ? PITH_UPLOAD_NONE
                          : o->upload_rows > 0 ? (int32_t)o->upload_rows
                                               : PITH_UPLOAD_AUTO;
    params->cpu_experts = o->cpu_experts ? -1 : (int32_t)o->n_cpu_experts;
    params->recordings = o->recordings == -1  ? 0
                         : o->recordings == 0 ? PITH_RECORDINGS_NONE
                                              : (int32_t)o->recordings;
    params->record_prefill = o->record_prefill;
    params->keep_free += (uint64_t)o->keep_free << 20;
}

/* Threads that have to take turns are slower than as many as there are processors. */
static void tell_threads(const struct thread_opts *o)
{
    struct pith_threads here = {.size = sizeof here};
    int64_t most = o->n_decode > o->n_prefill ? o->n_decode : o->n_prefill;
    if (pith_measure_threads(0, &here, NULL) == PITH_OK && most > here.n_prefill)
        cli_say(CLI_OK, "%lld threads on %d processors: they take turns, which is slow",
                (long long)most, here.n_prefill);
}

static int tracing;

int cli_trace_begin(const struct model_opts *o)
{
    struct pith_error err = {0};
    if (!o->trace || tracing)
        return CLI_OK;
    if (pith_trace_start(o->trace, 0, &err) != PITH_OK)
        return cli_fail_file(o->trace, &err);
    tracing = 1;
    return CLI_OK;
}

int cli_trace_end(int code)
{
    struct pith_error err = {0};
    if (!tracing || pith_trace_stop(&err) == PITH_OK)
        return code;
    int end = cli_fail(&err);
    return code ? code : end;
}

pith_model *cli_model_try(const struct model_opts *o, struct pith_model_params *params,
                          struct pith_error *err, int *code)
{
    struct progress progress = {.shown = cli_chatty(o),
                                .is_terminal = isatty(STDERR_FILENO),
                                .also = params->progress,
                                .also_ctx = params->progress_ctx};
    double began = cli_seconds();
    char dir[4000];
    const char *path = o->path;
    *code = cli_trace_begin(o);
    if (!*code)
        *code = cache_dir(o, dir, sizeof dir);
    if (*code)
        return NULL;
    params->cache_dir = *dir ? dir : NULL;
    params->cache_limit = (uint64_t)o->cache_limit;
    *code = cli_threads(&o->threads, progress.shown, params);
    if (*code)
        return NULL;
    *code = cli_model_path(&path);
    if (*code)
        return NULL;
    params->strict = o->strict;
    params->reproducible = o->reproducible;
    params->no_read_ahead = o->no_read_ahead;
    take_devices(&o->devices, params);
    params->overrides = o->overrides.n ? o->overrides.v : NULL;
    if (o->weights && o->weights[0] != 'a') /* auto: as the command has it */
        params->weights = o->weights[0] == 'm'   ? PITH_WEIGHTS_MAPPED
                          : o->weights[0] == 'p' ? PITH_WEIGHTS_PACKED
                                                 : PITH_WEIGHTS_LATER;
    params->progress = on_progress;
    params->progress_ctx = &progress;
    struct pith_session_params session = PITH_SESSION_PARAMS_INIT;
    if (params->session)
        session = *params->session;
    session.n_ctx = session.n_ctx ? session.n_ctx : (int32_t)o->n_ctx;
    session.cache_type_k = o->cache_k;
    session.cache_type_v = o->cache_v;
    params->session = &session;
    pith_model *m = pith_model_open(path, params, err);
    params->session = NULL;
    if (progress.shown && progress.is_terminal && progress.stage)
        fputs("\r\033[K", stderr); /* the bar has served */
    if (!m)
        return NULL;
    struct pith_model_info info = {.size = sizeof info};
    if (pith_model_get_info(m, &info, NULL) == PITH_OK && info.note)
        cli_say(CLI_OK, "%s", info.note);
    if (progress.shown)
        tell_threads(&o->threads);
    if (progress.shown)
        cli_tell("loaded %s (%s, %s, %.1f MiB) in %.2f s\n",
                 info.name && *info.name ? info.name : path, info.arch, info.type,
                 (double)info.weight_bytes / 1048576, cli_seconds() - began);
    return m;
}

pith_model *cli_model_open(const struct model_opts *o, struct pith_model_params *params, int *code)
{
    struct pith_error err = {0};
    pith_model *m = cli_model_try(o, params, &err, code);
    if (!m && !*code)
        *code = cli_fail_file(o->path, &err);
    return m;
}

/* "context 32768 tokens, as trained; cache of 32768 tokens, at most 576.0 MiB of 22893.6 MiB left".
 */
static void tell_room(const pith_session *s, pith_model *m, const struct model_opts *o,
                      const struct pith_session_plan *plan)
{
    struct pith_model_info info = PITH_MODEL_INFO_INIT;
    char why[100] = "as asked for", left[240] = "";
    if (!o->n_ctx && o->ctx_of_tests)
        snprintf(why, sizeof why, "as the tests need");
    else if (!o->n_ctx && pith_n_ctx(s) < plan->n_ctx_train)
        snprintf(why, sizeof why, "of %d trained, as memory allows", plan->n_ctx_train);
    else if (!o->n_ctx && pith_model_get_info(m, &info, NULL) == PITH_OK &&
             plan->n_ctx_train < info.n_ctx_train)
        snprintf(why, sizeof why, "as trained at first; --ctx up to %d takes its factors for more",
                 info.n_ctx_train);
    else if (!o->n_ctx)
        snprintf(why, sizeof why, "as trained");
    if (plan->left_bytes != UINT64_MAX)
        snprintf(left, sizeof left, " of %.1f MiB left (%s)", (double)plan->left_bytes / 1048576,
                 plan->limited_by);
    fprintf(stderr, "context %d tokens, %s; cache of %lld tokens, at most %.1f MiB%s\n",
            pith_n_ctx(s), why, (long long)plan->n_tokens, (double)plan->cache_bytes / 1048576,
            left);
}

/* Adds a name to a list that has it not. */
static void put_once(char *list, size_t cap, const char *name)
{
    size_t at = strlen(list), n = strlen(name);
    for (const char *p = list; (p = strstr(p, name)); p += n)
        if ((p == list || p[-1] == ' ') && (!p[n] || p[n] == ','))
            return;
    snprintf(list + at, cap - at, "%s%s", at ? ", " : "", name);
}

/* Names, once, what runs as plain C by the report's lines that end in FALLBACK: the weight types of
 * products (the second word), and ops (the first). */
static void tell_slow(const pith_session *s)
{
    char types[200] = "", ops[200] = "", op[24], type[24];
    int64_t n = pith_report(s, 0, NULL, 0);
    char *text = n > 0 ? malloc((size_t)n + 1) : NULL, *save = NULL;
    if (text && pith_report(s, 0, text, (size_t)n + 1) == n)
        for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
            const char *mark = strstr(line, "  FALLBACK");
            int has = mark ? sscanf(line, "%23[^,], %23[a-zA-Z0-9_],", op, type) : 0;
            if (has == 2 && !strcmp(mark, "  FALLBACK of its type"))
                put_once(types, sizeof types, type);
            else if (has)
                put_once(ops, sizeof ops, op);
        }
    if (*types)
        cli_say(
            CLI_OK,
            "weights of type %s have no fast kernel on this machine: a file with others may run "
            "many times as fast ('pith bench -v' tells which ops)",
            types);
    if (*ops)
        cli_say(CLI_OK,
                "no kernel on this machine for %s: it runs as plain C, and may take many times as "
                "long ('pith bench -v' tells how long)",
                ops);
    free(text);
}

pith_session *cli_session_try(pith_model *m, const struct model_opts *o, int32_t n_ctx,
                              struct pith_session_params *params, struct pith_error *err)
{
    params->n_ctx = n_ctx;
    params->cache_type_k = o->cache_k;
    params->cache_type_v = o->cache_v;
    params->store_dir = o->store_dir;
    params->store_limit = o->store_limit;
    struct pith_session_plan plan = PITH_SESSION_PLAN_INIT;
    int told =
        (o->tells_room || cli_chatty(o)) && pith_plan_session(m, params, &plan, NULL) == PITH_OK;
    pith_session *s = pith_session_open(m, params, err);
    if (s && told)
        tell_room(s, m, o, &plan);
    if (s)
        tell_slow(s);
    struct pith_model_info info = {.size = sizeof info};
    if (s && pith_model_get_info(m, &info, NULL) == PITH_OK && o->n_ctx > info.n_ctx_train)
        cli_say(CLI_OK,
                "--ctx is %lld, and the model was trained for %d tokens: it may write nonsense "
                "behind them",
                (long long)o->n_ctx, info.n_ctx_train);
    return s;
}

pith_session *cli_session_open(pith_model *m, const struct model_opts *o, int32_t n_ctx,
                               struct pith_session_params *params, int *code)
{
    struct pith_error err = {0};
    pith_session *s = cli_session_try(m, o, n_ctx, params, &err);
    if (!s)
        *code = cli_fail(&err);
    return s;
}

void cli_report(const pith_session *s)
{
    int64_t n = pith_report(s, 0, NULL, 0);
    char *text = n > 0 ? malloc((size_t)n + 1) : NULL;
    if (text && pith_report(s, 0, text, (size_t)n + 1) == n)
        cli_tell("%s", text);
    free(text);
}
