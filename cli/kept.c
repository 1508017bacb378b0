/* kept.c -- what a saved session keeps of the flags: how it was sampled, and its grammar. In the
 * file it is JSON:
 *
 *     {"sampling": {"temperature": 1, ..., "seed": 5, "samplers": "...",
 *                   "dry_sequence_breaker": [...], "logit_bias": [...]},
 *      "grammar": {"flag": "--schema", "text": "...", "trigger": "...", "behind": true,
 *                  "schema_order": true}}
 *
 * Numbers have the names of samplers.def. A member that nobody gave is not there. behind: nobody
 * gave the trigger; it is what ends the reasoning that a prompt began. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* ---------------------------------------------------------------- out */

static json_t *texts_json(const struct arg_texts *texts)
{
    json_t *list = json_array();
    for (int i = 0; i < texts->n; i++)
        if (json_array_append_new(list, json_string(texts->v[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

static int put_text(json_t *to, const char *name, const char *text)
{
    return text ? json_object_set_new(to, name, json_string(text)) : 0;
}

static int put_texts(json_t *to, const char *name, const struct arg_texts *texts)
{
    return texts->n ? json_object_set_new(to, name, texts_json(texts)) : 0;
}

static json_t *sampling_json(const struct sampler_opts *o)
{
    json_t *to = json_object();
    int bad = 0;
#define INT                              json_integer
#define REAL                             json_real
#define SETTING(name, member, type, ...) bad |= json_object_set_new(to, #name, type(o->name));
#include "src/run/sample/samplers.def"
#undef INT
#undef REAL
    if (o->seed >= 0)
        bad |= json_object_set_new(to, "seed", json_integer(o->seed));
    bad |= put_text(to, "samplers", o->chain);
    bad |= put_texts(to, "dry_sequence_breaker", &o->dry_breakers);
    bad |= put_texts(to, "logit_bias", &o->bias);
    if (bad) {
        json_decref(to);
        return NULL;
    }
    return to;
}

static json_t *grammar_json(const struct grammar_opts *o)
{
    json_t *to = json_object();
    int bad = put_text(to, "flag", cli_grammar_flag(o)) | put_text(to, "trigger", o->trigger);
    if (o->text)
        bad |= json_object_set_new(to, "text", json_stringn(o->text, o->n));
    bad |= o->behind && json_object_set_new(to, "behind", json_true());
    bad |= json_object_set_new(to, "schema_order", json_boolean(o->schema_order));
    if (bad) {
        json_decref(to);
        return NULL;
    }
    return to;
}

char *cli_kept_text(const struct sampler_opts *sampler, const struct grammar_opts *grammar,
                    int *code)
{
    json_t *kept = json_object();
    int bad = json_object_set_new(kept, "sampling", sampling_json(sampler));
    if (cli_grammar_flag(grammar))
        bad |= json_object_set_new(kept, "grammar", grammar_json(grammar));
    char *text = bad ? NULL : json_dumps(kept, JSON_COMPACT);
    if (!text)
        *code = cli_say(CLI_INPUT, "a grammar, a trigger or a text of the samplers is no UTF-8; a "
                                   "session cannot keep it");
    json_decref(kept);
    return text;
}

/* ---------------------------------------------------------------- in */

struct taking {
    const char *path;
    json_t *from; /* of an object of the file */
    int damaged;
};

static void say_number(const struct taking *t, const char *flag, double is, double was)
{
    if ((float)is != (float)was)
        cli_say(CLI_OK, "--session %s: %s is %.7g from here on, and was %.7g", t->path, flag, is,
                was);
}

static void take_real(struct taking *t, const char *name, const char *flag, double *given)
{
    const json_t *v = json_object_get(t->from, name);
    t->damaged |= v && !json_is_number(v);
    if (!v || t->damaged)
        return;
    if (isnan(*given))
        *given = json_number_value(v);
    say_number(t, flag, *given, json_number_value(v));
}

static void take_int(struct taking *t, const char *name, const char *flag, int64_t *given)
{
    const json_t *v = json_object_get(t->from, name);
    json_int_t x = json_integer_value(v);
    t->damaged |= v && (!json_is_integer(v) || x < INT32_MIN || x > INT32_MAX);
    if (!v || t->damaged)
        return;
    if (*given == ARG_NONE)
        *given = x;
    say_number(t, flag, (double)*given, (double)x);
}

static void say_text(const struct taking *t, const char *flag, int differs)
{
    if (differs)
        cli_say(CLI_OK, "--session %s: %s is another from here on", t->path, flag);
}

static void take_text(struct taking *t, const char *name, const char *flag, const char **given)
{
    const json_t *v = json_object_get(t->from, name);
    t->damaged |= v && !json_is_string(v);
    if (t->damaged)
        return;
    say_text(t, flag, *given && (!v || strcmp(*given, json_string_value(v)) != 0));
    if (!*given && v)
        *given = json_string_value(v);
}

static void take_texts(struct taking *t, const char *name, const char *flag,
                       struct arg_texts *given)
{
    const json_t *v = json_object_get(t->from, name);
    int n = v ? (int)json_array_size(v) : 0, differs = given->n != n;
    t->damaged |= v && (!json_is_array(v) || json_array_size(v) > ARG_LIST_MAX);
    for (int i = 0; i < n && !t->damaged; i++)
        t->damaged |= !json_is_string(json_array_get(v, (size_t)i));
    if (t->damaged)
        return;
    for (int i = 0; i < n && !differs; i++)
        differs = strcmp(given->v[i], json_string_value(json_array_get(v, (size_t)i))) != 0;
    say_text(t, flag, given->n && differs);
    if (given->n)
        return;
    for (; given->n < n; given->n++)
        given->v[given->n] = json_string_value(json_array_get(v, (size_t)given->n));
}

/* Mirostat, which a session always keeps, is none beside a chain that does not name it: this run
 * gave the chain, or it was what drew (files of programs that did not let mirostat take its place
 * may have both). */
static void take_chain(struct taking *t, struct sampler_opts *o, int given)
{
    take_text(t, "samplers", "--samplers", &o->chain);
    if (t->damaged || !o->chain || o->mirostat <= 0 || strstr(o->chain, "mirostat"))
        return;
    if (given)
        say_number(t, "--mirostat", 0, (double)o->mirostat);
    o->mirostat = 0;
}

static void take_sampling(struct taking *t, struct sampler_opts *o)
{
    int has_mirostat = o->mirostat != ARG_NONE, has_chain = o->chain != NULL;
#define INT                                                   take_int
#define REAL                                                  take_real
#define SETTING(name, member, type, lo, hi, usual, flag, ...) type(t, #name, flag, &o->name);
#include "src/run/sample/samplers.def"
#undef INT
#undef REAL
    const json_t *seed = json_object_get(t->from, "seed");
    t->damaged |= seed && (!json_is_integer(seed) || json_integer_value(seed) < 0);
    if (seed && !t->damaged && o->seed >= 0 && o->seed != json_integer_value(seed))
        cli_say(CLI_OK, "--session %s: --seed is %lld from here on, and was %lld", t->path,
                (long long)o->seed, (long long)json_integer_value(seed));
    if (seed && !t->damaged && o->seed < 0)
        o->seed = json_integer_value(seed);
    if (has_mirostat)
        take_text(t, "samplers", "--samplers", &o->chain);
    else
        take_chain(t, o, has_chain);
    take_texts(t, "dry_sequence_breaker", "--dry-sequence-breaker", &o->dry_breakers);
    take_texts(t, "logit_bias", "--logit-bias", &o->bias);
}

/* A grammar of this run's own replaces the kept one whole. */
static int take_grammar(struct taking *t, struct grammar_opts *o)
{
    const json_t *flag = json_object_get(t->from, "flag"), *text = json_object_get(t->from, "text");
    const char *was = json_string_value(flag), *mine = cli_grammar_flag(o);
    const char *trigger = json_string_value(json_object_get(t->from, "trigger"));
    int order = json_is_true(json_object_get(t->from, "schema_order")),
        behind = json_is_true(json_object_get(t->from, "behind"));
    int is_json = was && !strcmp(was, "--json");
    int known = was && (is_json || !strcmp(was, "--grammar") || !strcmp(was, "--schema"));
    t->damaged |= t->from && (!known || (!is_json && !json_is_string(text)));
    if (t->damaged)
        return CLI_OK;
    int code = cli_grammar_read(o);
    if (mine && !code) {
        int same = was && !strcmp(was, mine) && o->n == json_string_length(text) &&
                   (!o->n || !memcmp(o->text, json_string_value(text), o->n));
        if (same && behind && !o->trigger) {
            o->trigger = trigger;
            o->behind = 1;
        }
        same = same && !o->trigger == !trigger && (!trigger || !strcmp(trigger, o->trigger)) &&
               !o->schema_order == !order;
        say_text(t, mine, !same);
    }
    if (mine || code || !was)
        return code;
    o->n = is_json ? 0 : json_string_length(text); /* a file may have one with --json, too */
    o->text = malloc(o->n + 1);
    if (!o->text)
        return cli_no_memory();
    memcpy(o->text, is_json ? "" : json_string_value(text), o->n + 1);
    o->kept = is_json ? "--json" : !strcmp(was, "--grammar") ? "--grammar" : "--schema";
    o->trigger = trigger;
    o->behind = behind;
    say_text(t, "--schema-order", o->schema_order && !order);
    o->schema_order |= order;
    return CLI_OK;
}

/* The file's bytes; *n 0: there are none. */
static int read_note(const char *path, char **note, size_t *n)
{
    struct pith_error err = {0};
    pith_status st = pith_saved_note(path, NULL, 0, n, &err);
    *note = st == PITH_OK ? malloc(*n + 1) : NULL;
    if (st == PITH_OK && !*note)
        return cli_no_memory();
    if (st == PITH_OK)
        st = pith_saved_note(path, *note, *n, n, &err);
    return st == PITH_OK ? CLI_OK : cli_fail(&err);
}

int cli_kept_take(const char *path, struct sampler_opts *sampler, struct grammar_opts *grammar,
                  json_t **kept)
{
    char *note = NULL;
    size_t n = 0;
    int code = read_note(path, &note, &n);
    if (!code && n == 0)
        cli_say(CLI_OK, "--session %s keeps no settings; those of this run's flags hold", path);
    if (!code && n) {
        *kept = json_loadb(note, n, JSON_ALLOW_NUL, NULL);
        struct taking t = {.path = path, .from = json_object_get(*kept, "sampling")};
        t.damaged = !json_is_object(t.from);
        if (!t.damaged)
            take_sampling(&t, sampler);
        t.from = json_object_get(*kept, "grammar");
        if (!t.damaged)
            code = take_grammar(&t, grammar);
        if (t.damaged)
            code = cli_say(CLI_INPUT,
                           "%s: what it keeps of the flags is damaged; wanted JSON with "
                           "sampling and grammar as 'pith run --session' writes it",
                           path);
    }
    free(note);
    return code;
}
