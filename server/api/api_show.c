/* api_show.c -- /api/show as Ollama has it: what a model is. Of one that is not loaded its file's
 * header tells, so asking loads nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/api/api.h"
#include "server/http/exchange.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/models/models.h"
#include "server/parts.h"
#include "server/request/fields.h"
#include "server/request/request.h"

/* What both ways of looking find. Texts are malloc'd, "" for none. */
struct shown {
    char *arch, *type, *template;
    uint64_t n_params;
    int64_t n_ctx, n_vocab, n_embd;
    int generates, embeds, tools;
};

/* As files have them: "qwen2.context_length". */
static void put_number(json_t *info, const char *arch, const char *what, int64_t n)
{
    char key[128];
    snprintf(key, sizeof key, "%.64s.%s", arch, what);
    if (n > 0)
        json_object_set_new(info, key, json_integer((json_int_t)n));
}

static json_t *show_json(const struct hosted *h, const struct shown *w)
{
    json_t *can = json_array(),
           *info =
               json_pack("{s:o, s:I}", "general.architecture", json_text(w->arch, strlen(w->arch)),
                         "general.parameter_count", (json_int_t)w->n_params);
    if (w->generates)
        json_array_append_new(can, json_string("completion"));
    if (w->tools)
        json_array_append_new(can, json_string("tools"));
    if (w->embeds)
        json_array_append_new(can, json_string("embedding"));
    put_number(info, w->arch, "context_length", w->n_ctx);
    put_number(info, w->arch, "vocab_size", w->n_vocab);
    put_number(info, w->arch, "embedding_length", w->n_embd);
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o}", "modelfile", "", "parameters", "",
                     "template", json_text(w->template, strlen(w->template)), "details",
                     ollama_details(w->arch, w->type, w->n_params), "model_info", info,
                     "capabilities", can, "modified_at", ollama_time(h->created));
}

/* ---------------------------------------------------------------- one that is loaded */

static void look_at_model(struct hosted *h, struct shown *w)
{
    json_t *template = hosted_template(h);
    w->arch = strdup(h->info.arch ? h->info.arch : "");
    w->type = strdup(h->info.type ? h->info.type : "");
    w->template = strdup(json_is_string(template) ? json_string_value(template) : "");
    json_decref(template);
    w->n_params = h->info.n_params;
    w->n_ctx = hosted_n_ctx(h); /* of the server: what a client may fill */
    w->n_vocab = h->info.n_vocab;
    w->n_embd = h->info.n_embd;
    w->generates = h->generate != NULL;
    w->embeds = h->embed != NULL;
    w->tools = h->shows_tools;
}

/* ---------------------------------------------------------------- one that is not */

static int64_t find_key(const pith_file *file, const char *name)
{
    const char *key;
    for (int64_t i = 0; (key = pith_file_key(file, i)); i++)
        if (!strcmp(key, name))
            return i;
    return -1;
}

/* A value as text (malloc), "" where the file has no such key; NULL: out of memory. */
static char *value_of(const pith_file *file, const char *name)
{
    int64_t at = find_key(file, name), n = at < 0 ? 0 : pith_file_value(file, at, 0, NULL, 0);
    char *text = malloc((size_t)(n < 0 ? 0 : n) + 1);
    if (!text)
        return NULL;
    *text = 0;
    if (n > 0)
        pith_file_value(file, at, 0, text, (size_t)n + 1);
    return text;
}

static int64_t number_of(const pith_file *file, const char *arch, const char *what)
{
    char key[128];
    snprintf(key, sizeof key, "%.64s.%s", arch, what);
    char *text = value_of(file, key);
    int64_t n = text ? strtoll(text, NULL, 10) : 0;
    free(text);
    return n;
}

static int is_false(const pith_file *file, const char *arch, const char *what)
{
    char key[128];
    snprintf(key, sizeof key, "%.64s.%s", arch, what);
    char *text = value_of(file, key);
    int is = text && !strcmp(text, "false");
    free(text);
    return is;
}

/* Whether the template of a file that is not loaded shows tools, as is tried of one that is. */
static int file_shows_tools(const char *text)
{
    struct hosted stands_in = {0};
    pith_template *t = *text ? pith_template_open(text, strlen(text), NULL) : NULL;
    stands_in.template = t;
    int shows = t && request_shows_tools(&stands_in);
    pith_template_close(t);
    return shows;
}

static void look_at_file(const pith_file *file, struct shown *w)
{
    struct pith_tensor_info t = PITH_TENSOR_INFO_INIT;
    const char *type = pith_file_type(file);
    w->arch = value_of(file, "general.architecture");
    w->type = strdup(type ? type : "");
    w->template = value_of(file, "tokenizer.chat_template");
    for (int64_t i = 0; i < pith_file_n_tensors(file); i++) {
        uint64_t n = 1;
        if (pith_file_tensor(file, i, &t) != PITH_OK)
            continue;
        for (int d = 0; d < t.n_dims; d++)
            n *= (uint64_t)t.dims[d];
        w->n_params += n;
        if (!strcmp(t.name, "token_embd.weight"))
            w->n_vocab = t.dims[0];
    }
    if (!w->arch || !w->type || !w->template)
        return;
    w->n_ctx = number_of(file, w->arch, "context_length");
    w->n_embd = number_of(file, w->arch, "embedding_length");
    w->embeds =
        number_of(file, w->arch, "pooling_type") > 0 || is_false(file, w->arch, "attention.causal");
    w->generates = !w->embeds;
    w->tools = w->generates && file_shows_tools(w->template);
}

/* ---------------------------------------------------------------- the endpoint */

static json_t *show(struct hosted *none, struct fields *b, struct fault *f)
{
    const char *name = b->v[F_model] ? field_text(b, F_model) : field_text(b, F_name);
    struct server *s = exchange_server(b->x);
    struct pith_error err = {0};
    struct shown w = {0};
    struct fault cold = {0};
    struct hosted *h = models_find(s, name, f), *loaded = h ? models_hold(s, h->name, &cold) : NULL;
    json_t *j = NULL;
    (void)none;
    if (!h)
        return NULL;
    pith_file *file = loaded ? NULL : pith_file_open(server_told(s)->models[h->index].path, &err);
    if (loaded) {
        look_at_model(loaded, &w);
        hosted_drop(loaded);
    } else if (file) {
        look_at_file(file, &w);
    } else {
        fault_set(f, 503, "model_load_failed", "model", "the model \"%.100s\" cannot be read: %s",
                  h->name, err.msg);
    }
    pith_file_close(file);
    if (w.arch && w.type && w.template)
        j = show_json(h, &w);
    else if (!f->http)
        fault_memory(f);
    free(w.arch);
    free(w.type);
    free(w.template);
    return j;
}

void api_ollama_show(struct server *s, struct exchange *x)
{
    (void)s;
    request_answer(x, E_OLLAMA_SHOW, show);
}
