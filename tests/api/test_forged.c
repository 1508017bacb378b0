/* test_forged.c -- by the public functions alone: no text of a request is ever a control token.
 *
 * Every published template x every place where a request puts text x every marker of that
 * template: those that it spells, those of the vocabulary that goes with it (of the shared ones the
 * one that has most of what it spells), and those of all other shared vocabularies, of numbered
 * ones the ends. Places are found in the recorded requests, one of each kind ("the name of a tool",
 * "an argument of a call"), names of arguments and parameters too; and each name that a template
 * reads is put into the variables and into every message.
 *
 * A control token that touches a value is forged, and so is one between "QZ" and "WK", which no
 * template writes: the first looks at what the prompt says of itself, the second at the bytes. */
#define MAX_TOKENS 4096
/* In make test alone: it takes long at any scale. */
#include "robust.h"
#include "templates.h"
#include "vocab_image.h"

enum { MOST_VOCABS = 16, MOST_KINDS = 400, KIND = 160 };

/* A vocabulary with its markers. */
static struct speller {
    pith_model *m;
    char name[64];
    char *is_marker; /* [n] */
    int32_t n;
    struct markers *markers, *ends; /* all; of runs that differ by a number the first and last */
} vocabs[MOST_VOCABS], control, user;
static int n_vocabs;
static struct markers all_ends; /* of all vocabularies */

static struct {
    int templates, kinds, silent, prompts, with_own, rewritten, n_markers[2];
    long tried;
} all;

/* ---------------------------------------------------------------- vocabularies */

static pith_model *open_vocab(const char *path)
{
    struct pith_error err = {0};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    mp.vocab_only = 1;
    pith_model *m = pith_model_open(path, &mp, &err);
    CHECK_MSG(m, "%s: %s", path, err.msg);
    return m;
}

/* [*n] types of the tokens of a file, for free(). */
static int32_t *token_types(const char *path, int32_t *n)
{
    int32_t *types = NULL;
    pith_file *f = pith_file_open(path, NULL);
    *n = 0;
    for (int64_t i = 0; f && i < pith_file_n_keys(f); i++) {
        if (strcmp(pith_file_key(f, i), "tokenizer.ggml.token_type"))
            continue;
        size_t bytes = (size_t)pith_file_value(f, i, -1, NULL, 0) + 1;
        char *text = calloc(1, bytes), *p = text;
        types = calloc(bytes, sizeof *types);
        pith_file_value(f, i, -1, text, bytes);
        while ((p = strpbrk(p, "0123456789")))
            types[(*n)++] = (int32_t)strtol(p, &p, 10);
        free(text);
    }
    pith_file_close(f);
    return types;
}

/* A user-defined token means more than its text where it stands in brackets, and is no HTML. */
static int in_brackets(const char *s, size_t n)
{
    return n > 2 && !strstr("<s></s>", s) &&
           ((s[0] == '<' && s[n - 1] == '>') || (s[0] == '[' && s[n - 1] == ']') ||
            (n > 6 && !memcmp(s, "◁", 3) && !memcmp(s + n - 3, "▷", 3)));
}

/* The same but for its digits. */
static int same_run(const char *a, const char *b)
{
    while (*a || *b) {
        a += strspn(a, "0123456789");
        b += strspn(b, "0123456789");
        if (*a != *b)
            return 0;
        a += *a != 0;
        b += *b != 0;
    }
    return 1;
}

static void find_ends(const struct markers *from, struct markers *to)
{
    for (int i = 0; i < from->n; i++) {
        const char *s = from->text[i];
        if (!i || i + 1 == from->n || !same_run(s, from->text[i - 1]) ||
            !same_run(s, from->text[i + 1]))
            add_marker(to, s, strlen(s));
    }
}

static void open_speller(struct speller *s, const char *path, const char *name)
{
    int32_t *types = token_types(path, &s->n);
    s->m = open_vocab(path);
    snprintf(s->name, sizeof s->name, "%s", name);
    s->is_marker = calloc(1, (size_t)s->n + 1);
    s->markers = calloc(1, sizeof *s->markers);
    s->ends = calloc(1, sizeof *s->ends);
    for (int32_t id = 0; s->m && id < s->n; id++) {
        char piece[64] = {0};
        if (types[id] != VOCAB_CONTROL && types[id] != VOCAB_USER)
            continue;
        int64_t n = pith_detokenize(s->m, &id, 1, PITH_RENDER_SPECIAL, piece, sizeof piece, NULL);
        if (n < 1 || n >= (int64_t)sizeof piece ||
            (types[id] == VOCAB_USER && !in_brackets(piece, (size_t)n)))
            continue;
        s->is_marker[id] = 1;
        add_marker(s->markers, piece, (size_t)n);
    }
    find_ends(s->markers, s->ends);
    free(types);
}

static void close_speller(struct speller *s)
{
    pith_model_close(s->m);
    free(s->is_marker);
    free(s->markers);
    free(s->ends);
    memset(s, 0, sizeof *s);
}

/* A vocabulary of bytes and the markers given: control tokens, or user-defined where their looks
 * make them markers. */
static void make_speller(struct speller *s, const struct markers *m, int type, const char *name)
{
    struct keys k = {0};
    static struct tokens t;
    const char *path = tmp_path(name);
    memset(&t, 0, sizeof t);
    add_byte_alphabet(&t);
    add_words(&t, "the user system assistant end im start think tool call");
    for (int i = 0; i < m->n; i++) {
        const char *text = m->text[i];
        add_token(&t, text, in_brackets(text, strlen(text)) ? type : VOCAB_CONTROL, 0);
    }
    key_str(&k, "general.architecture", "llama");
    key_str(&k, "tokenizer.ggml.model", "gpt2");
    key_str(&k, "tokenizer.ggml.pre", "llama-bpe");
    key_tokens(&k, &t);
    struct image im = finish_keys(&k);
    save(path, im.p, im.n);
    free(im.p);
    open_speller(s, path, name);
    CHECK_MSG(s->markers && s->markers->n >= m->n, "%s: %d of %d markers", name, s->markers->n,
              m->n);
}

static void open_vocabs(void)
{
    char dir[512], path[1024];
    snprintf(dir, sizeof dir, "%s/vectors/vocab", test_shared());
    DIR *d = opendir(dir);
    for (struct dirent *e; d && n_vocabs < MOST_VOCABS && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (n < 5 || strcmp(e->d_name + n - 5, ".gguf"))
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        struct speller *s = &vocabs[n_vocabs++];
        open_speller(s, path, e->d_name);
        for (int i = 0; i < s->ends->n; i++)
            add_marker(&all_ends, s->ends->text[i], strlen(s->ends->text[i]));
        all.n_markers[1] += s->markers->n;
    }
    if (d)
        closedir(d);
    for (int i = 0; i < N_OTHER_MARKERS; i++)
        add_marker(&all_ends, other_markers[i], strlen(other_markers[i]));
}

/* ---------------------------------------------------------------- places */

/* A walk over the variables of a request: every kind of place is noted, and texts of one kind get
 * the payload. A kind is a path without the numbers of a list: "messages(tool).content". */
struct walk {
    const char *kind, *before, *after; /* kind NULL: none is changed */
    char (*kinds)[KIND];
    int n_kinds;
};

static int note(struct walk *w, const char *path)
{
    for (int i = 0; w->kinds && i <= w->n_kinds && i < MOST_KINDS; i++) {
        if (i == w->n_kinds)
            snprintf(w->kinds[w->n_kinds++], KIND, "%s", path);
        if (!strcmp(w->kinds[i], path))
            break;
    }
    return w->kind && !strcmp(w->kind, path);
}

static json_t *joined(const struct walk *w, const char *s)
{
    size_t n = strlen(s) + strlen(w->before) + strlen(w->after) + 1;
    char *buf = malloc(n);
    snprintf(buf, n, "%s%s%s", w->before, s, w->after);
    json_t *v = json_string(buf);
    free(buf);
    return v;
}

static json_t *walk(struct walk *w, const json_t *given, const char *path)
{
    json_t *v = (json_t *)(uintptr_t)given, *out, *item;
    const char *key;
    char below[KIND];
    size_t i;
    if (json_is_string(v))
        return note(w, path) ? joined(w, json_string_value(v)) : json_incref(v);
    if (json_is_array(v)) {
        out = json_array();
        json_array_foreach(v, i, item)
        {
            const char *role = json_string_value(json_object_get(item, "role"));
            snprintf(below, sizeof below, "%.100s(%.20s)", path, role ? role : "");
            json_array_append_new(out, walk(w, item, below));
        }
        return out;
    }
    if (!json_is_object(v))
        return json_incref(v);
    size_t n = strlen(path);
    int named = (n > 9 && !strcmp(path + n - 9, "arguments")) ||
                (n > 10 && !strcmp(path + n - 10, "properties"));
    out = json_object();
    json_object_foreach(v, key, item)
    {
        snprintf(below, sizeof below, "%.100s.%.20s", path, named ? "*" : key);
        json_t *value = walk(w, item, below);
        snprintf(below, sizeof below, "%.100s, a name", path);
        json_t *name = named && note(w, below) ? joined(w, key) : json_string(key);
        json_object_set_new(out, json_string_value(name), value);
        json_decref(name);
    }
    return out;
}

/* A case's variables; extra: a name that gets the payload, "messages..name" in every message. */
static json_t *variables(struct walk *w, const json_t *c)
{
    static const char *const own[] = {"add_generation_prompt", "bos_token", "eos_token", "now"},
                             *const given[] = {"messages", "tools"};
    static const char in_each[] = "messages..";
    const char *extra = w->kind ? w->kind : "", *key;
    json_t *o = json_object(), *v, *m;
    size_t i;
    for (i = 0; i < 4; i++)
        if (json_object_get(c, own[i]))
            json_object_set(o, own[i], json_object_get(c, own[i]));
    for (i = 0; i < 2; i++)
        if (json_object_get(c, given[i]))
            json_object_set_new(o, given[i], walk(w, json_object_get(c, given[i]), given[i]));
    json_object_foreach(json_object_get(c, "kwargs"), key, v)
    {
        char path[KIND];
        snprintf(path, sizeof path, "kwargs.%.40s", key);
        json_object_set_new(o, key, walk(w, v, path));
    }
    if (!strncmp(extra, in_each, sizeof in_each - 1)) {
        json_array_foreach(json_object_get(o, "messages"), i, m)
        {
            m = json_copy(m);
            if (!json_object_get(m, extra + sizeof in_each - 1))
                json_object_set_new(m, extra + sizeof in_each - 1, joined(w, "x"));
            json_array_set_new(json_object_get(o, "messages"), i, m);
        }
    } else if (extra[0] == '$' && !json_object_get(o, extra + 1)) {
        json_object_set_new(o, extra + 1, joined(w, "x"));
    }
    return o;
}

static pith_prompt *prompt_of(const pith_template *t, struct walk *w, const json_t *c)
{
    json_t *o = variables(w, c);
    char *json = json_dumps(o, 0);
    pith_prompt *p = pith_prompt_open(t, json, strlen(json), NULL);
    free(json);
    json_decref(o);
    return p;
}

/* ---------------------------------------------------------------- what is forged */

static int touches(const struct pith_span *v, size_t n, size_t from, size_t to)
{
    for (size_t i = 0; i < n; i++)
        if (v[i].from < to && from < v[i].to)
            return 1;
    return 0;
}

static int stands(const char *text, size_t n, size_t at, const char *two)
{
    return at + 2 <= n && (two[0] | 32) == (text[at] | 32) && (two[1] | 32) == (text[at + 1] | 32);
}

/* Markers among a prompt's ids that are of a value, the first of them to which[64]. Some templates
 * cut what an assistant said where its reasoning ends, and write that marker themselves. */
static int n_forged(const struct speller *s, const pith_prompt *p, const char *rewritten,
                    char *which)
{
    size_t n_text, n_values, at = 0, n_back;
    int forged = 0;
    const char *text = pith_prompt_text(p, &n_text);
    const struct pith_span *values = pith_prompt_values(p, &n_values);
    int64_t n = pith_prompt_tokenize(p, s->m, 0, NULL, 0, NULL);
    int32_t *ids = calloc((size_t)n + 1, sizeof *ids);
    pith_prompt_tokenize(p, s->m, 0, ids, (size_t)n, NULL);
    size_t cap = 8 * n_text + 64;
    char *back = malloc(cap);
    n_back = (size_t)pith_detokenize(s->m, ids, (size_t)n, PITH_RENDER_SPECIAL, back, cap, NULL);
    n_back = n_back < cap ? n_back : cap;
    int same = n_back == n_text && !memcmp(back, text, n_text);
    for (int64_t i = 0; i < n && at < n_back; i++) {
        char piece[512];
        int64_t size =
            pith_detokenize(s->m, ids + i, 1, PITH_RENDER_SPECIAL, piece, sizeof piece, NULL);
        size_t to = at + (size_t)size;
        if (s->is_marker[ids[i]]) {
            int is_value = same && touches(values, n_values, at, to);
            int between = at > 1 && stands(back, n_back, at - 2, "QZ") &&
                          stands(back, n_back, to, "WK");
            int again = between && !is_value && rewritten && same &&
                        strlen(rewritten) == to - at && !memcmp(rewritten, back + at, to - at);
            all.rewritten += again;
            if ((is_value || between) && !again && !forged++)
                snprintf(which, 64, "%.*s", (int)(to - at), back + at);
        }
        at = to;
    }
    free(ids);
    free(back);
    return forged;
}

static char *payload_of(const struct markers *a, const struct markers *b)
{
    struct image im = {0};
    for (int half = 0; half < 2; half++) {
        const struct markers *m = half ? b : a;
        for (int i = 0; m && i < m->n; i++) {
            put_bytes(&im, "QZ", 2);
            put_bytes(&im, m->text[i], strlen(m->text[i]));
            put_bytes(&im, "WK", 2);
        }
    }
    put_bytes(&im, "", 1);
    return (char *)im.p;
}

static int n_in(const struct markers *m, const char *text)
{
    int n = 0;
    for (int i = 0; i < m->n; i++)
        n += strstr(text, m->text[i]) != NULL;
    return n;
}

/* ---------------------------------------------------------------- templates */

struct form {
    const char *file;
    const pith_template *t;
    const char *answer;         /* the marker that it may write again */
    const struct speller *with; /* the vocabulary that goes with it; NULL: none is here */
    const json_t *cases;
    char *payload, *whole; /* markers of the template and all vocabularies; of `with`, all */
    int n_payload, n_whole;
};

/* The payload in one kind of place of one case, before the text there or behind it. */
static void check_place(const struct form *f, const char *kind, const json_t *c, int turn)
{
    char which[64] = "";
    const struct speller *by[2] = {turn % 2 ? &control : &user, f->with};
    for (int i = 0; i < 2 && by[i]; i++) {
        const char *with = i ? f->whole : f->payload;
        struct walk w = {kind, turn & 2 ? with : "", turn & 2 ? "" : with, NULL, 0};
        pith_prompt *p = prompt_of(f->t, &w, c);
        if (!p)
            continue;
        int n = n_forged(by[i], p, f->answer, which);
        CHECK_MSG(!n, "%s, %s, %s: %d forged markers, such as %s", f->file, kind, by[i]->name, n,
                  which);
        all.tried += i ? f->n_whole : f->n_payload;
        all.prompts++;
        pith_prompt_close(p);
    }
}

/* Whether a text in a kind of place comes out. */
static int is_heard(const struct form *f, const char *kind, const json_t *c)
{
    size_t n;
    struct walk w = {kind, "QZWK", "QZWK", NULL, 0};
    pith_prompt *p = prompt_of(f->t, &w, c);
    const char *text = p ? pith_prompt_text(p, &n) : NULL;
    int heard = text && strcasestr(text, "QZWK");
    pith_prompt_close(p);
    return heard;
}

static void check_kind(const struct form *f, const char *kind)
{
    size_t i;
    json_t *c;
    all.kinds++;
    json_array_foreach((json_t *)(uintptr_t)f->cases, i, c)
    {
        const char *name = json_string_value(json_object_get(c, "name"));
        int added = kind[0] == '$' || strstr(kind, "..");
        if (added && strcmp(name, "tool_two_rounds") && strcmp(name, "tools_system") &&
            strcmp(name, "system_user"))
            continue;
        if (!is_heard(f, kind, c))
            continue;
        check_place(f, kind, c, all.kinds);
        return;
    }
    all.silent++;
}

/* Names in the template's text, as variables and as parts of messages. */
static void find_names(const char *text, size_t n, char (*kinds)[KIND], int *n_kinds)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz_";
    for (size_t i = 0, k; i < n; i = k + 1) {
        for (k = i; k < n && text[k] && strchr(letters, text[k]);)
            k++;
        if (k - i < 3 || k - i > 30)
            continue;
        for (int form = 0; form < 2 && *n_kinds < MOST_KINDS; form++) {
            struct walk w = {NULL, "", "", kinds, *n_kinds};
            char kind[KIND];
            snprintf(kind, sizeof kind, "%s%.*s", form ? "messages.." : "$", (int)(k - i),
                     text + i);
            note(&w, kind);
            *n_kinds = w.n_kinds;
        }
    }
}

/* The vocabulary with most of what a template spells. */
static const struct speller *goes_with(const char *text)
{
    const struct speller *best = NULL;
    int most = 0;
    for (int i = 0; i < n_vocabs; i++) {
        int n = n_in(vocabs[i].markers, text);
        if (n > most) {
            most = n;
            best = &vocabs[i];
        }
    }
    return best;
}

static struct markers spelled; /* of all templates */
static void read_template(const char *file, const char *text, size_t n, const json_t *cases)
{
    (void)file;
    (void)cases;
    find_markers(&spelled, text, n);
}

static void check_template(const char *file, const char *text, size_t n, const json_t *cases)
{
    static char kinds[MOST_KINDS][KIND];
    static struct markers own;
    struct pith_error err = {0};
    struct walk w = {NULL, "", "", kinds, 0};
    size_t i;
    json_t *c;
    pith_template *t = pith_template_open(text, n, &err);
    REQUIRE(t, "%s: %s", file, err.msg);
    own.n = 0;
    find_markers(&own, text, n);
    const char *answer = strstr(text, ".split(") ? pith_chat_answer(t) : NULL;
    struct form f = {file, t, answer, goes_with(text), cases, NULL, NULL, 0, 0};
    f.payload = payload_of(&own, &all_ends);
    f.n_payload = own.n + all_ends.n;
    f.whole = f.with ? payload_of(f.with->markers, NULL) : NULL;
    f.n_whole = f.with ? f.with->markers->n : 0;
    json_array_foreach((json_t *)(uintptr_t)cases, i, c) json_decref(variables(&w, c));
    int n_given = w.n_kinds, before = all.prompts;
    find_names(text, n, kinds, &w.n_kinds);
    for (int k = 0; k < w.n_kinds; k++) /* of the names a few in make check, others of each file */
        if (k < n_given || test_scale() > 1 || k % 4 == all.templates % 4)
            check_kind(&f, kinds[k]);
    CHECK_MSG(!json_array_size(cases) || (n_given > 30 && all.prompts >= before + 5),
              "%s: %d kinds of places, %d prompts", file, n_given, all.prompts - before);
    all.templates++;
    all.with_own += f.with != NULL;
    free(f.payload);
    free(f.whole);
    pith_template_close(t);
}

static void templates(void)
{
    each_template(read_template);
    if (!spelled.n || !n_vocabs)
        SKIP("no templates or vocabularies in %s", test_shared());
    static struct markers both;
    both = spelled;
    for (int i = 0; i < all_ends.n; i++)
        add_marker(&both, all_ends.text[i], strlen(all_ends.text[i]));
    make_speller(&control, &both, VOCAB_CONTROL, "markers that are control tokens");
    make_speller(&user, &both, VOCAB_USER, "markers that are user-defined");
    if (control.m && user.m)
        each_template(check_template);
    printf("    %d templates, %d with a vocabulary; %d markers spelled, %d of vocabularies (%d "
           "ends)\n    %d kinds of places, %d of them not shown; %d prompts: %ld times a marker in "
           "a place, %d written by the template too\n",
           all.templates, all.with_own, spelled.n, all.n_markers[1], all_ends.n, all.kinds,
           all.silent, all.prompts, all.tried, all.rewritten);
    CHECK(all.templates > 40 && all.with_own > 20 && all.prompts > 1000 && all.tried > 250000);
    close_speller(&control);
    close_speller(&user);
}

/* ---------------------------------------------------------------- texts that are put */

static pith_prompt *put(pith_origin from, const char *text)
{
    struct pith_error err = {0};
    pith_prompt *p = pith_prompt_open(NULL, NULL, 0, &err);
    CHECK_MSG(p && pith_prompt_put(p, from, text, strlen(text), &err) == PITH_OK, "%s", err.msg);
    return p;
}

/* Each marker of each vocabulary as a text of a request, such as the code around a gap that is to
 * be filled, and as the template's, where it is the marker. */
static void gaps(void)
{
    int n = 0;
    if (!n_vocabs)
        SKIP("no vocabularies in %s", test_shared());
    for (int v = 0; v < n_vocabs; v++) {
        const struct speller *s = &vocabs[v];
        for (int i = 0; i < s->markers->n; i++, n++) {
            char text[64], which[64] = "";
            int32_t ids[256];
            snprintf(text, sizeof text, "QZ%sWK", s->markers->text[i]);
            pith_prompt *p = put(PITH_FROM_VALUE, text), *as_is = put(PITH_FROM_TEMPLATE, text + 2);
            int forged = n_forged(s, p, NULL, which), found = 0;
            int64_t n_ids = pith_prompt_tokenize(p, s->m, 0, ids, 256, NULL);
            for (int64_t k = 0; k < n_ids && k < 256; k++)
                found += s->is_marker[ids[k]];
            CHECK_MSG(!forged && !found && n_ids > 0, "%s: %s in a value is a marker", s->name,
                      text);
            n_ids = pith_prompt_tokenize(as_is, s->m, 0, ids, 256, NULL);
            for (int64_t k = 0; k < n_ids && k < 256; k++)
                found += s->is_marker[ids[k]];
            CHECK_MSG(found == 1, "%s: %s of a template is %d markers", s->name, text, found);
            pith_prompt_close(p);
            pith_prompt_close(as_is);
        }
    }
    printf("    %d markers of %d vocabularies\n", n, n_vocabs);
    CHECK(n > 300);
}

int main(void)
{
    tmp_make();
    open_vocabs();
    TEST(templates);
    TEST(gaps);
    for (int i = 0; i < n_vocabs; i++)
        close_speller(&vocabs[i]);
    return test_end();
}
