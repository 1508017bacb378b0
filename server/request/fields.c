/* fields.c -- bodies against fields.def: one table makes validation, documentation and the OpenAPI
 * file. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/http/exchange.h"
#include "server/http/work.h"
#include "server/json.h"
#include "server/request/fields.h"
#include "server/parts.h"

enum {
    INT = 1,
    REAL = 2,
    BOOL = 4,
    TEXT = 8,
    TEXTS = 16,
    LIST = 32,
    OBJECT = 64,
    N_TYPES = 7
}; /* a field may have several */

static const struct row {
    const char *name;
    unsigned type;
    double lo, hi;
    const char *dflt;
    unsigned endpoints;
    const char *help;
} rows[N_FIELDS] = {
#define FIELD(id, ...) [F_##id] = {__VA_ARGS__},
#include "server/fields.def"
#undef FIELD
};

/* Samplers on the web page. */
static const struct control {
    double slider; /* where it ends; 0: where its range does, if that is small */
    int front;     /* it is shown at once */
} controls[N_FIELDS] = {
#define FRONT(end)                                                      {end, 1}
#define MORE(end)                                                       {end, 0}
#define SETTING(id, member, type, lo, hi, usual, flag, meta, page, ...) [F_##id] = page,
#include "src/run/sample/samplers.def"
#undef FRONT
#undef MORE
};

static const char *const type_names[N_TYPES] = {
    "an integer", "a number", "true or false", "a text", "a text or a list of texts",
    "a list",     "an object"};

/* Objects whose members have rows. */
static const struct {
    enum field_id id;
    unsigned endpoint;
} nested[] = {{F_options, E_OLLAMA_OPTIONS},         {F_stream_options, E_STREAM_OPTIONS},
              {F_text, E_TEXT},                      {F_reasoning, E_REASONING},
              {F_chat_reasoning, E_CHAT_REASONING},  {F_output_config, E_OUTPUT},
              {F_thinking, E_THINKING}};

/* ---------------------------------------------------------------- reading */

static int is_type(const json_t *v, unsigned t)
{
    double x = json_real_value(v); /* 3.0 is an integer to clients that know one kind of number */
    return ((t & INT) &&
            (json_is_integer(v) || (json_is_real(v) && x == floor(x) && fabs(x) < 9e15))) ||
           ((t & REAL) && json_is_number(v)) || ((t & BOOL) && json_is_boolean(v)) ||
           ((t & (TEXT | TEXTS)) && json_is_string(v)) ||
           ((t & (LIST | TEXTS)) && json_is_array(v)) || ((t & OBJECT) && json_is_object(v));
}

static int wrong_type(const struct row *r, const json_t *v, struct fault *f)
{
    char wanted[128];
    size_t n = 0;
    for (int i = 0; i < N_TYPES; i++)
        if (r->type >> i & 1)
            n += (size_t)snprintf(wanted + n, sizeof wanted - n, "%s%s", n ? " or " : "",
                                  type_names[i]);
    return fault_set(f, 400, "wrong_type", r->name, "%s is %s, wanted %s", r->name, json_found(v),
                     wanted);
}

static int check_range(const struct row *r, double found, const char *what, struct fault *f)
{
    if (found >= r->lo && found <= r->hi)
        return 1;
    return fault_set(f, 400, "out_of_range", r->name, "%s%s is %.15g, wanted %.15g to %.15g",
                     r->name, what, found, r->lo, r->hi);
}

/* Each choice of an answer has copies of them, and tables: so few bytes, of all together. */
enum { TEXTS_BYTES = 8192 };

static int check_texts(const struct row *r, const json_t *v, struct fault *f)
{
    size_t bytes = 0;
    int may_be_empty = r == &rows[F_stop] || r == &rows[F_stop_sequences]; /* as elsewhere */
    if (!check_range(r, (double)texts_count(v), ": its length", f))
        return 0;
    for (size_t i = 0; i < texts_count(v); i++) {
        const json_t *text = texts_at(v, i);
        size_t n = json_string_length(text);
        if (json_is_string(text) && !n && may_be_empty)
            continue;
        if (!n)
            return fault_set(f, 400, "wrong_type", r->name,
                             "%s[%zu] is %s, wanted a text that is not empty", r->name, i,
                             json_found(text));
        if (strlen(json_string_value(text)) != n)
            return fault_set(f, 400, "invalid_value", r->name, "%s[%zu] holds a zero byte", r->name,
                             i);
        bytes += n;
    }
    return bytes <= TEXTS_BYTES || fault_set(f, 400, "out_of_range", r->name,
                                             "%s has texts of %zu bytes, at most %d are taken",
                                             r->name, bytes, TEXTS_BYTES);
}

static int check(const struct row *r, const json_t *v, struct fault *f)
{
    if (!is_type(v, r->type))
        return wrong_type(r, v, f);
    if (json_is_integer(v) && r->type == INT &&
        (json_integer_value(v) < (json_int_t)r->lo || json_integer_value(v) > (json_int_t)r->hi))
        return fault_set(f, 400, "out_of_range", r->name, "%s is %lld, wanted %lld to %lld",
                         r->name, (long long)json_integer_value(v), (long long)r->lo,
                         (long long)r->hi); /* where a double would round */
    if (r->type == INT || r->type == REAL)
        return check_range(r, json_number_value(v), "", f);
    if (r->type == TEXT && strlen(json_string_value(v)) != json_string_length(v))
        return r->hi > 1e8 ||
               fault_set(f, 400, "invalid_value", r->name, "%s holds a zero byte", r->name);
    if (r->type == TEXT)
        return check_range(r, (double)json_string_length(v), ": its length", f);
    if (r->type == LIST)
        return check_range(r, (double)json_array_size(v), ": its length", f);
    if (r->type == OBJECT && r->hi > 0)
        return check_range(r, (double)json_object_size(v), ": its length", f);
    return r->type != TEXTS || check_texts(r, v, f);
}

static int find(const char *name, unsigned endpoint)
{
    for (int i = 0; i < N_FIELDS; i++)
        if (!strcmp(rows[i].name, name) && (rows[i].endpoints & endpoint))
            return i;
    return -1;
}

/* An empty list, text or object: clients that always send a field say so that they want nothing of
 * it. */
static int is_empty(const json_t *v)
{
    return (json_is_array(v) && !json_array_size(v)) ||
           (json_is_object(v) && !json_object_size(v)) ||
           (json_is_string(v) && !json_string_length(v));
}

/* Of these an empty one is none. */
static int says_nothing_empty(int id)
{
    static const enum field_id ids[] = {
        F_grammar,        F_guided_json, F_guided_regex, F_guided_choice,
        F_guided_grammar, F_stop,        F_stop_sequences, F_regex,
        F_ebnf,           F_bad_words,   F_banned_strings, F_structured_outputs,
        F_allowed_token_ids};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        if (id == (int)ids[i])
            return 1;
    return 0;
}

/* Such an empty one. */
static int is_none(int id, const json_t *v)
{
    return is_empty(v) && says_nothing_empty(id);
}

/* What an answer would have to keep, and this server cannot: to leave it out would be another
 * answer. */
static int is_constraint(const char *name, const json_t *v)
{
    static const char *const names[] = {"structured_outputs",
                                        "structural_tag",
                                        "regex",
                                        "ebnf",
                                        "bad_words",
                                        "allowed_token_ids",
                                        "logits_processors",
                                        "grammar_lazy",
                                        "grammar_triggers",
                                        "chat_template",
                                        "banned_tokens",
                                        "banned_strings"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i]))
            return !is_empty(v) && !json_is_false(v);
    return !strncmp(name, "guided_", 7) && !is_empty(v) && !json_is_false(v);
}

/* Names that other servers know, near to one of ours or not: what fields.def has for another
 * endpoint, and these. */
static int is_foreign(const char *name)
{
    static const char *const names[] = {
        "top_a",      "tfs",       "typical",     "rep_pen", "rep_pen_range", "min_length",
        "max_time",   "do_sample", "num_beams",   "skew",    "models",        "mode",
        "cache",      "speed",     "safe_prompt", "prefix",  "preset",        "api_base",
        "strict",     "num_gqa"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i]))
            return 1;
    return find(name, ~0u) >= 0;
}

/* The same letters, whatever their case and the underscores between them: maxTokens. */
static int same_letters(const char *a, const char *b)
{
    for (;; a++, b++) {
        a += strspn(a, "_-");
        b += strspn(b, "_-");
        int upper = *a >= 'A' && *a <= 'Z';
        if ((upper ? *a - 'A' + 'a' : *a) != *b)
            return 0;
        if (!*a)
            return 1;
    }
}

/* How many letters of a were put in, left out, changed, or changed places with their neighbour to
 * make b; a number above 2 where either has more than 63. */
static int slips(const char *a, const char *b)
{
    enum { MAX = 64 };
    int table[3][MAX], *old = table[0], *last = table[1], *here = table[2];
    int n = (int)strnlen(b, MAX);
    if (n == MAX || strnlen(a, MAX) == MAX)
        return MAX;
    for (int j = 0; j <= n; j++)
        last[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        here[0] = i;
        for (int j = 1; j <= n; j++) {
            int d = last[j - 1] + (a[i - 1] != b[j - 1]);
            d = last[j] + 1 < d ? last[j] + 1 : d;
            d = here[j - 1] + 1 < d ? here[j - 1] + 1 : d;
            int swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && old[j - 2] + 1 < d)
                d = old[j - 2] + 1;
            here[j] = d;
        }
        int *spare = old;
        old = last;
        last = here;
        here = spare;
    }
    return last[n];
}

/* The name of ours that a mistyped one was to be, NULL: none. It has one slip, two where ours has
 * ten letters or more, or is less than half of ours, cut short in a word ("temp"); what is further
 * away is another word, which some server knows. */
static const char *meant(const char *name, const char *const *names)
{
    enum { LONG = 10, SHORTENED = 4 };
    const char *best = NULL;
    size_t n = strlen(name);
    int least = 2;
    if (is_foreign(name) || n < 3)
        return NULL;
    for (; *names; names++) {
        size_t len = strlen(*names);
        if (same_letters(name, *names))
            return *names;
        if (n >= SHORTENED && 2 * n < len && !strncmp(name, *names, n) && (*names)[n] != '_')
            return *names;
        int d = slips(name, *names);
        if (d > (len >= LONG ? 2 : 1) || d > least || (best && d == least))
            continue;
        least = d;
        best = *names;
    }
    return best;
}

static int unknown(struct fields *f, unsigned endpoint, const char *name, const json_t *v,
                   struct fault *fault)
{
    const char *names[N_FIELDS + 1], *near;
    int n = 0;
    for (int i = 0; i < N_FIELDS; i++)
        if (rows[i].endpoints & endpoint)
            names[n++] = rows[i].name;
    names[n] = NULL;
    int strict = server_told(exchange_server(f->x))->strict_fields;
    near = strict && f->nearest ? f->nearest(name, names) : meant(name, names);
    if (is_constraint(name, v))
        return fault_set(fault, 400, "not_supported", name,
                         "\"%.100s\" is not supported here, and the answer would not keep to it; "
                         "see response_format and grammar",
                         name);
    if (!strict && !near) {
        exchange_ignores(f->x, "%.60s", name);
        return 1;
    }
    return fault_set(fault, 400, "unknown_field", name,
                     "there is no field \"%.100s\" here; %s%s%sGET /docs lists them", name,
                     near ? "did you mean \"" : "", near ? near : "", near ? "\"? " : "");
}

static int read_members(struct fields *f, unsigned endpoint, const json_t *object,
                        struct fault *fault)
{
    enum { MEMBERS_MAX = 1024 }; /* one that is not known is compared with all that are */
    const char *name;
    json_t *v;
    if (json_object_size(object) > MEMBERS_MAX)
        return fault_set(fault, 400, "out_of_range", NULL,
                         "%zu fields in one object, at most %d are taken; GET /docs lists those "
                         "there are",
                         json_object_size(object), MEMBERS_MAX);
    json_object_foreach(json_lent(object), name, v)
    {
        int i = find(name, endpoint);
        if (json_is_null(v))
            continue;
        if (i < 0) {
            if (!work_goes_on())
                return fault_memory(fault);
            if (!unknown(f, endpoint, name, v, fault))
                return 0;
            continue;
        }
        if (!check(&rows[i], v, fault))
            return 0;
        if (!is_none(i, v)) /* clients without one send it empty */
            f->v[i] = v;
    }
    return 1;
}

/* ---------------------------------------------------------------- defaults */

/* What requests speak of with several fields, by synonyms or by fields that exclude each other. */
enum subject {
    LENGTH = 1,
    CHOICES = 2,
    PENALTY = 4,
    KEPT = 8, /* what the text has to satisfy */
    PROBS = 16,
    BEST = 32, /* tokens with them */
    IDS = 64,
    PROGRESS = 128,
    THINKING = 256,
    BUDGET = 512,
    SHOWN = 1024, /* whether reasoning is returned */
    TOOLS = 2048,
    CALLS = 4096,
    LAST = 8192, /* whether the last message goes on */
    STARTS = 16384, /* start tokens */
    LONG = 32768, /* how long vectors are */
    PREFIX = 65536,
    INPUT = 131072,
    RETURNED = 262144,
    STOPS = 524288,
    DRAWN = 1048576, /* the samplers, by a chain or by mirostat in its place */
    ALIKE = LENGTH | STOPS, /* of these a value means the same in all fields */
    EXCLUSIVE = KEPT | TOOLS | CALLS | LAST | INPUT /* of these one field is taken */
};

/* Lists end with F_model, which is nobody's. */
static const struct {
    enum subject subject;
    enum field_id fields[24];
} speakers[] = {
    {LENGTH, {F_max_tokens, F_max_completion_tokens, F_n_predict, F_num_predict,
              F_max_output_tokens, F_messages_max_tokens}},
    {STOPS, {F_stop, F_stop_sequences}},
    {CHOICES, {F_n, F_n_cmpl}},
    {PENALTY, {F_repeat_penalty, F_repetition_penalty}},
    {KEPT, {F_response_format, F_json_schema, F_grammar, F_guided_json, F_guided_regex,
            F_guided_choice, F_guided_grammar, F_guided_json_object, F_structured_outputs, F_regex,
            F_ebnf, F_bad_words, F_banned_strings, F_text_format, F_format}},
    {PROBS, {F_chat_logprobs, F_logprobs, F_peer_logprobs, F_n_probs}},
    {BEST, {F_top_logprobs, F_logprobs, F_peer_logprobs, F_n_probs}},
    {IDS, {F_return_token_ids, F_return_tokens_made}},
    {PROGRESS, {F_return_progress, F_include_progress}},
    {THINKING, {F_reasoning_effort, F_effort, F_enable_thinking, F_reasoning_enabled,
                F_thinking_type, F_think}},
    {BUDGET, {F_reasoning_budget, F_reasoning_budget_tokens, F_thinking_budget_tokens,
              F_thinking_token_budget, F_reasoning_max, F_budget_tokens}},
    {SHOWN, {F_include_reasoning, F_reasoning_exclude}},
    {TOOLS, {F_tools, F_functions}},
    {CALLS, {F_tool_choice, F_function_call}},
    {LAST, {F_continue_final_message, F_add_generation_prompt}},
    {STARTS, {F_add_special, F_add_special_tokens}},
    {LONG, {F_embd_normalize, F_normalize}},
    {PREFIX, {F_prompt_name, F_input_type}},
    {INPUT, {F_content, F_tokenize_prompt, F_messages, F_input, F_embed_content, F_ollama_prompt,
             F_documents, F_texts}},
    {RETURNED, {F_return_documents, F_return_text}},
    {DRAWN, {F_samplers, F_mirostat}}};

/* Samplers that leave mirostat no say, or mirostat that leaves them none: a chain that names it
 * goes with any. */
static int is_drawn(int id, const json_t *v)
{
    if (id == F_mirostat)
        return json_number_value(v) > 0;
    for (size_t i = 0; i < texts_count(v); i++) {
        const char *text = json_string_value(texts_at(v, i));
        if (text && strstr(text, "mirostat"))
            return 0;
    }
    return !is_empty(v);
}

static unsigned subject_of(int id, const json_t *v)
{
    unsigned all = 0;
    if (is_none(id, v))
        return 0;
    for (size_t i = 0; i < sizeof speakers / sizeof *speakers; i++)
        for (const enum field_id *f = speakers[i].fields; *f != F_model; f++)
            all |= *f == (enum field_id)id ? (unsigned)speakers[i].subject : 0;
    if (all & BUDGET && json_number_value(v) == 0) /* not to think at all */
        all |= THINKING;
    if (all & PROBS && json_is_false(v)) /* then there are no best ones */
        all |= BEST;
    if (all & DRAWN && !is_drawn(id, v))
        return 0;
    return (all & KEPT && json_is_false(v)) || (all & LAST && !json_is_true(v)) ? 0 : all;
}

/* Of those that speak of something by themselves. */
static int has_members(int id)
{
    for (size_t i = 0; i < sizeof nested / sizeof *nested; i++)
        if (id == (int)nested[i].id)
            return 1;
    return id == F_chat_template_kwargs;
}

/* A member of field `id`, which is an object: of its own rows, or a variable of the template. */
static unsigned subject_of_member(int id, const char *name, const json_t *v)
{
    if (json_is_null(v))
        return 0;
    for (size_t i = 0; i < sizeof nested / sizeof *nested; i++) {
        int own = id == (int)nested[i].id ? find(name, nested[i].endpoint) : -1;
        if (own >= 0)
            return subject_of(own, v);
    }
    if (id != F_chat_template_kwargs)
        return 0;
    return !strcmp(name, "enable_thinking") || !strcmp(name, "thinking") ||
                   !strcmp(name, "reasoning_effort")
               ? THINKING
           : !strcmp(name, "thinking_budget") ? BUDGET
                                              : 0;
}

/* Of all that the body has said. */
static unsigned subjects(const struct fields *f)
{
    const char *name;
    json_t *v;
    unsigned all = 0;
    for (int i = 0; i < N_FIELDS; i++) {
        if (!f->v[i])
            continue;
        all |= subject_of(i, f->v[i]);
        if (has_members(i))
            json_object_foreach(json_lent(f->v[i]), name, v) all |= subject_of_member(i, name, v);
    }
    return all;
}

/* A format that wants nothing of the text, beside which anything else does. */
static int is_plain(int id, const json_t *v)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    return id == F_response_format && type && !strcmp(type, "text");
}

/* What every request would be refused for that says nothing itself. 0: *err. */
static int go_together(json_t *all, struct pith_error *err)
{
    struct fault none;
    const char *a, *b;
    json_t *v, *w;
    json_object_foreach(all, a, v)
    {
        json_object_foreach(all, b, w)
        {
            for (int i = 0; strcmp(a, b) < 0 && i < N_FIELDS; i++) {
                int k = strcmp(rows[i].name, a) ? -1 : find(b, rows[i].endpoints);
                if (k < 0 || is_plain(i, v) || is_plain(k, w) ||
                    !(subject_of(i, v) & subject_of(k, w) & EXCLUSIVE) ||
                    !check(&rows[i], v, &none) || !check(&rows[k], w, &none))
                    continue;
                err->code = PITH_RANGE;
                snprintf(err->msg, sizeof err->msg, "--default %s and --default %s; wanted one of "
                         "them", a, b);
                return 0;
            }
        }
    }
    return 1;
}

json_t *fields_defaults(const char *const *texts, struct pith_error *err)
{
    json_t *all = json_object();
    struct fault f = {0};
    for (; all && texts && *texts; texts++) {
        const char *equals = strchr(*texts, '=');
        size_t n = equals ? (size_t)(equals - *texts) : 0;
        json_t *v = n ? json_loads(equals + 1, JSON_DECODE_ANY, NULL) : NULL;
        int found = 0, ok = 0;
        if (n && !v)
            v = json_string(equals + 1);
        for (int i = 0; v && i < N_FIELDS; i++)
            if (!strncmp(rows[i].name, *texts, n) && (rows[i].endpoints & ~(unsigned)E_INNER) &&
                !rows[i].name[n]) { /* of one name some rows take it, others are other fields */
                found = 1;
                ok |= check(&rows[i], v, &f);
            }
        if (!ok) {
            err->code = PITH_RANGE;
            snprintf(err->msg, sizeof err->msg, "--default %.100s: %.120s", *texts,
                     !n       ? "wanted FIELD=VALUE"
                     : !found ? "there is no such field; GET /docs lists them"
                              : f.msg);
            json_decref(v);
            json_decref(all);
            return NULL;
        }
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)n, *texts);
        json_object_set_new(all, name, v);
    }
    if (!all)
        *err = (struct pith_error){PITH_NOMEM, "out of memory for the server"};
    else if (!go_together(all, err)) {
        json_decref(all);
        all = NULL;
    }
    return all;
}

/* A default of the members that the body does not speak of, beside those of the body. NULL: out of
 * memory. */
static json_t *left_of(const struct fields *f, int id, const json_t *object)
{
    const char *name;
    json_t *v, *left = json_object();
    int ok = left != NULL;
    json_object_foreach(json_lent(object), name, v)
    {
        if (ok && !(subject_of_member(id, name, v) & f->said))
            ok = !json_object_set(left, name, v);
    }
    if (ok && (!f->v[id] || !json_object_update(left, json_lent(f->v[id]))))
        return left;
    json_decref(left);
    return NULL;
}

/* The row of an endpoint that a default fills in: of that name, or where it has none such of
 * another name that means the same, unless one of those has a default of its own. -1: none. */
static int filled_by(const char *name, unsigned endpoint, const json_t *defaults)
{
    int i = find(name, endpoint), known = i < 0 ? find(name, ~0u) : -1;
    for (size_t g = 0; known >= 0 && g < sizeof speakers / sizeof *speakers; g++) {
        int has = 0, own = 0, other = -1;
        for (const enum field_id *f = speakers[g].fields; *f != F_model; f++) {
            has |= !strcmp(rows[*f].name, name);
            if (rows[*f].endpoints & endpoint) {
                own |= json_object_get(defaults, rows[*f].name) != NULL;
                other = (int)*f;
            }
        }
        if (has && !own && (speakers[g].subject & ALIKE))
            i = other;
    }
    return i;
}

int fields_of_nothing(struct fields *f, unsigned endpoint, const struct server *s,
                      struct fault *fault)
{
    struct fault none;
    const char *name;
    json_t *v;
    json_object_foreach(server_defaults(s), name, v)
    {
        int i = filled_by(name, endpoint, server_defaults(s));
        if (i < 0 || is_none(i, v) || (f->v[i] && i != F_chat_template_kwargs) ||
            (subject_of(i, v) & f->said) || !check(&rows[i], v, &none))
            continue;
        if (!has_members(i))
            f->v[i] = v;
        else if (!fields_put(f, (enum field_id)i, left_of(f, i, v), fault))
            return 0;
    }
    return 1;
}

int fields_read(struct fields *f, unsigned endpoint, struct exchange *x, struct fault *fault)
{
    memset(f, 0, sizeof *f);
    f->endpoint = endpoint;
    f->x = x;
    f->nearest = server_told(exchange_server(x))->nearest;
    f->body = exchange_tree(x, fault);
    if (!f->body)
        return 0;
    int ok = json_is_object(f->body) ||
             fault_set(fault, 400, "wrong_type", NULL, "the body is %s, wanted an object",
                       json_found(f->body));
    ok = ok && read_members(f, endpoint, f->body, fault);
    if (ok) {
        f->said = subjects(f);
        ok = fields_of_nothing(f, endpoint, exchange_server(f->x), fault);
    }
    if (!ok)
        fields_free(f);
    return ok;
}

int fields_nested(struct fields *f, enum field_id id, unsigned endpoint, struct fault *fault)
{
    char msg[sizeof fault->msg];
    if (!f->v[id] || read_members(f, endpoint, f->v[id], fault))
        return (endpoint & E_INNER) ||
               fields_of_nothing(f, endpoint, exchange_server(f->x), fault);
    snprintf(msg, sizeof msg, "%s: %.400s", rows[id].name, fault->msg);
    memcpy(fault->msg, msg, sizeof msg);
    return 0;
}

int fields_put(struct fields *f, enum field_id id, json_t *v, struct fault *fault)
{
    if (!f->put)
        f->put = json_array();
    if (!v || json_array_append_new(f->put, v))
        return fault_memory(fault);
    f->v[id] = v;
    return 1;
}

void fields_free(struct fields *f)
{
    json_decref(f->put);
    json_decref(f->body);
    memset(f, 0, sizeof *f);
}

int64_t field_int(const struct fields *f, enum field_id id)
{
    if (f->v[id])
        return json_is_integer(f->v[id]) ? json_integer_value(f->v[id])
                                         : (int64_t)json_real_value(f->v[id]);
    return rows[id].dflt ? strtoll(rows[id].dflt, NULL, 10) : 0;
}

double field_real(const struct fields *f, enum field_id id)
{
    return f->v[id] ? json_number_value(f->v[id]) : rows[id].dflt ? strtod(rows[id].dflt, NULL) : 0;
}

int field_bool(const struct fields *f, enum field_id id)
{
    return f->v[id] ? json_is_true(f->v[id]) : rows[id].dflt && *rows[id].dflt == 't';
}

size_t texts_count(const json_t *v)
{
    return json_is_array(v) ? json_array_size(v) : 1;
}

const json_t *texts_at(const json_t *v, size_t i)
{
    return json_is_array(v) ? json_array_get(v, i) : v;
}

const char *field_text(const struct fields *f, enum field_id id)
{
    return f->v[id] ? json_string_value(f->v[id]) : NULL;
}

/* ---------------------------------------------------------------- descriptions */

/* As a JSON Schema. */
static json_t *schema_of(const struct row *r)
{
    static const char *const names[N_TYPES] = {"integer", "number", "boolean", "string",
                                               NULL,      "array",  "object"};
    json_t *s = json_pack("{s:s}", "description", r->help), *types = json_array();
    int least = r != &rows[F_stop] && r != &rows[F_stop_sequences];
    for (int i = 0; i < N_TYPES; i++)
        if ((r->type >> i & 1) && names[i])
            json_array_append_new(types, json_string(names[i]));
    if (json_array_size(types))
        json_object_set(s, "type", json_array_size(types) == 1 ? json_array_get(types, 0) : types);
    json_decref(types);
    if (r->type == TEXTS)
        json_object_set_new(s, "anyOf",
                            json_pack("[{s:s, s:i, s:i}, {s:s, s:{s:s, s:i, s:i}, s:I}]", "type",
                                      "string", "minLength", least, "maxLength",
                                      TEXTS_BYTES, "type", "array", "items", "type", "string",
                                      "minLength", least, "maxLength", TEXTS_BYTES, "maxItems",
                                      (json_int_t)r->hi));
    if (r->type == OBJECT && r->hi > 0)
        json_object_set_new(s, "maxProperties", json_integer((json_int_t)r->hi));
    if (r->type == LIST) {
        json_object_set_new(s, "items", json_object());
        json_object_set_new(s, "minItems", json_integer((json_int_t)r->lo));
        json_object_set_new(s, "maxItems", json_integer((json_int_t)r->hi));
    }
    for (size_t i = 0; i < sizeof nested / sizeof *nested; i++)
        if (r == &rows[nested[i].id])
            json_object_set_new(s, "properties", fields_docs(nested[i].endpoint));
    if (r->type == INT || r->type == REAL) {
        json_object_set_new(s, "minimum",
                            r->type == INT ? json_integer((json_int_t)r->lo) : json_real(r->lo));
        json_object_set_new(s, "maximum",
                            r->type == INT ? json_integer((json_int_t)r->hi) : json_real(r->hi));
    }
    if (r->type == TEXT && r->hi < 1e8) {
        json_object_set_new(s, "minLength", json_integer((json_int_t)r->lo));
        json_object_set_new(s, "maxLength", json_integer((json_int_t)r->hi));
    }
    if (r->dflt)
        json_object_set_new(s, "default", json_loads(r->dflt, JSON_DECODE_ANY, NULL));
    if (controls[r - rows].slider > 0)
        json_object_set_new(s, "x-slider", json_real(controls[r - rows].slider));
    if (controls[r - rows].front)
        json_object_set_new(s, "x-front", json_true());
    return s;
}

json_t *field_schema(enum field_id id, unsigned endpoint)
{
    return rows[id].endpoints & endpoint ? schema_of(&rows[id]) : NULL;
}

const char *field_name(enum field_id id)
{
    return rows[id].name;
}

json_t *fields_docs(unsigned endpoint)
{
    json_t *all = json_object();
    for (int i = 0; i < N_FIELDS; i++)
        if (rows[i].endpoints & endpoint)
            json_object_set_new(all, rows[i].name, schema_of(&rows[i]));
    return all;
}
