/* special.c -- tokens with a meaning of their own: which they are, and where they stand in a text.
 *
 * A GGUF file types its tokens (normal, control, user-defined, ...), but converters forget some and
 * no key lists every token that ends a turn. The field agrees on the texts of such tokens instead;
 * they are the rows below. A row sets a role; a role sets the type and says whether generation ends
 * there.
 *
 * Matching in text: user-defined tokens always, control and unknown tokens when asked. The longest
 * token goes first over the whole text, not the leftmost: with tokens "zab" and "abcd", "zabcd" is
 * "z" "abcd". Tokens of equal length go by id, occurrences of one token from left to right, none
 * overlaps another. All places where a special token begins go into a heap, keyed by (length
 * falling, id, place); what is popped is taken if it is free. If its end is taken but not its
 * beginning, a shorter token may still fit there and goes back into the heap.
 *
 * Markers: of a text that has values in it, a token that means more than its text is matched where
 * all its bytes are the template's, and nowhere else. Those are the control tokens; and of the
 * user-defined ones, which are matched always, those in brackets, as families write their thoughts
 * and calls ("<think>", "[/INST]", "<|channel>", "◁think▷"). Others are text that is one token for
 * the sake of length (line ends, blanks, HTML of Gemma): values have them too. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/work.h"
#include "text/vocab/merge.h"
#include "text/vocab/vocab_impl.h"

enum role {
    ROLE_END,     /* control, ends generation */
    ROLE_SHOWN,   /* user-defined: always matched, always rendered */
    ROLE_FIM_PRE, /* fill in the middle: control, one token each unless the file's key names it */
    ROLE_FIM_SUF,
    ROLE_FIM_MID,
    ROLE_FIM_PAD, /* from here on they end generation too */
    ROLE_FIM_REP,
    ROLE_FIM_SEP,
    N_ROLES
};

static const struct special_row {
    const char *text;
    enum role role;
} rows[] = {
    {"<|eot_id|>", ROLE_END},
    {"<|eom_id|>", ROLE_END},
    {"<|im_end|>", ROLE_END},
    {"<|end|>", ROLE_END},
    {"<|return|>", ROLE_END},
    {"<|call|>", ROLE_END},
    {"<|calls|>", ROLE_END},
    {"<|flush|>", ROLE_END},
    {"<end_of_turn>", ROLE_END},
    {"<turn|>", ROLE_END},
    {"<|tool_response>", ROLE_END},
    {"<eos>", ROLE_END},
    {"</s>", ROLE_END},
    {"<|endoftext|>", ROLE_END},
    {"<|end_of_text|>", ROLE_END},
    {"<end_of_utterance>", ROLE_END},
    {"<EOT>", ROLE_END},
    {"_<EOT>", ROLE_END},
    {"[EOT]", ROLE_END},
    {"[EOS]", ROLE_END},
    {"[e~[", ROLE_END},
    {"<\uFF5Cend\u2581of\u2581sentence\uFF5C>", ROLE_END},
    {"<|channel|>", ROLE_SHOWN},
    {"<|message|>", ROLE_SHOWN},
    {"<|start|>", ROLE_SHOWN},
    {"<|constrain|>", ROLE_SHOWN},
    {"<|fim_prefix|>", ROLE_FIM_PRE},
    {"<fim-prefix>", ROLE_FIM_PRE},
    {"<fim_prefix>", ROLE_FIM_PRE},
    {"<\uFF5Cfim\u2581begin\uFF5C>", ROLE_FIM_PRE},
    {"<PRE>", ROLE_FIM_PRE},
    {"\u2581<PRE>", ROLE_FIM_PRE},
    {"<|code_prefix|>", ROLE_FIM_PRE},
    {"<|prefix|>", ROLE_FIM_PRE},
    {"<|fim_suffix|>", ROLE_FIM_SUF},
    {"<fim-suffix>", ROLE_FIM_SUF},
    {"<fim_suffix>", ROLE_FIM_SUF},
    {"<\uFF5Cfim\u2581hole\uFF5C>", ROLE_FIM_SUF},
    {"<SUF>", ROLE_FIM_SUF},
    {"\u2581<SUF>", ROLE_FIM_SUF},
    {"<|code_suffix|>", ROLE_FIM_SUF},
    {"<|suffix|>", ROLE_FIM_SUF},
    {"<|fim_middle|>", ROLE_FIM_MID},
    {"<fim-middle>", ROLE_FIM_MID},
    {"<fim_middle>", ROLE_FIM_MID},
    {"<\uFF5Cfim\u2581end\uFF5C>", ROLE_FIM_MID},
    {"<MID>", ROLE_FIM_MID},
    {"\u2581<MID>", ROLE_FIM_MID},
    {"<|code_middle|>", ROLE_FIM_MID},
    {"<|middle|>", ROLE_FIM_MID},
    {"<|fim_pad|>", ROLE_FIM_PAD},
    {"<fim-pad>", ROLE_FIM_PAD},
    {"<fim_pad>", ROLE_FIM_PAD},
    {"<PAD>", ROLE_FIM_PAD},
    {"[PAD]", ROLE_FIM_PAD},
    {"<|fim_repo|>", ROLE_FIM_REP},
    {"<|repo_name|>", ROLE_FIM_REP},
    {"<fim-repo>", ROLE_FIM_REP},
    {"<REPO>", ROLE_FIM_REP},
    {"<reponame>", ROLE_FIM_REP},
    {"<|file_sep|>", ROLE_FIM_SEP},
};
#define N_ROWS (sizeof rows / sizeof *rows)

/* Keys that name a token with a role. */
static const struct key_row {
    const char *key;
    enum role role;
} keys[] = {
    {"tokenizer.ggml.eos_token_id", ROLE_END},
    {"tokenizer.ggml.eot_token_id", ROLE_END},
    {"tokenizer.ggml.eom_token_id", ROLE_END},
    {"tokenizer.ggml.fim_pre_token_id", ROLE_FIM_PRE},
    {"tokenizer.ggml.fim_suf_token_id", ROLE_FIM_SUF},
    {"tokenizer.ggml.fim_mid_token_id", ROLE_FIM_MID},
    {"tokenizer.ggml.prefix_token_id", ROLE_FIM_PRE},
    {"tokenizer.ggml.suffix_token_id", ROLE_FIM_SUF},
    {"tokenizer.ggml.middle_token_id", ROLE_FIM_MID},
    {"tokenizer.ggml.fim_pad_token_id", ROLE_FIM_PAD},
    {"tokenizer.ggml.fim_rep_token_id", ROLE_FIM_REP},
    {"tokenizer.ggml.fim_sep_token_id", ROLE_FIM_SEP},
};

/* Tokens that take the white space beside them, by the models that have them: files do not say it.
 * By their tokenizers' names, where these have some of their own; else by that of the architecture,
 * which nothing else outside of src/arch goes by. */
static const struct strip_row {
    const char *key, *part; /* a string key of the file, and what it contains */
    const char *text;
    uint8_t mark;
} strips[] = {
    {"tokenizer.ggml.pre", "jina-v2-de", "<mask>", TOKEN_STRIP_LEFT},
    {"tokenizer.ggml.pre", "jina-v2-es", "<mask>", TOKEN_STRIP_LEFT},
    {"tokenizer.ggml.pre", "jina-v2-code", "<mask>", TOKEN_STRIP_LEFT},
    {"general.architecture", "nomic-bert-moe", "<mask>", TOKEN_STRIP_LEFT},
    {"general.architecture", "jina-bert-v3", "<mask>", TOKEN_STRIP_LEFT},
    {"general.name", "modern-bert", "[MASK]", TOKEN_STRIP_LEFT},
    {"general.name", "phi-3", NULL, TOKEN_STRIP_RIGHT}, /* all special tokens but three */
    {"general.name", "phi3", NULL, TOKEN_STRIP_RIGHT},
};

static void set_type(struct vocab *v, int32_t id, enum vocab_attr type)
{
    v->mark[id] = (uint8_t)((v->mark[id] & ~(unsigned)TOKEN_TYPE) | type);
}

struct found {
    int32_t id[N_ROWS]; /* first token with each row's text, -1: none */
};

static int find_rows(const struct vocab *v, struct found *found)
{
    struct map map;
    int ok = 1;
    map_init(&map, PITH_MEM_SCRATCH);
    for (uint32_t i = 0; i < N_ROWS; i++) {
        found->id[i] = -1;
        ok = ok && map_put(&map, slice_of(rows[i].text), i) == 1;
    }
    for (int32_t id = 0; ok && id < v->n; id++) {
        uint32_t i;
        if (map_get(&map, vocab_text(v, id), &i) && found->id[i] < 0)
            found->id[i] = id;
    }
    map_deinit(&map);
    return ok;
}

static int32_t row_id(const struct found *found, const char *text)
{
    for (uint32_t i = 0; i < N_ROWS; i++) {
        if (strcmp(rows[i].text, text) == 0)
            return found->id[i];
    }
    return -1;
}

static int ends(const struct vocab *v, int32_t id)
{
    return id >= 0 && (v->mark[id] & TOKEN_EOG);
}

/* The first that is named for a role in filling in the middle is its token. */
static void set_fim(struct vocab *v, enum role role, int32_t id)
{
    if (role >= ROLE_FIM_PRE && v->fim[role - ROLE_FIM_PRE] < 0)
        v->fim[role - ROLE_FIM_PRE] = id;
}

static void set_roles(struct vocab *v, const struct gguf *g, const struct found *found)
{
    int named[N_ROLES] = {0}; /* by a key or an earlier row */
    for (uint32_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const struct gguf_kv *kv = gguf_find(g, keys[i].key);
        uint64_t id;
        if (!kv || !gguf_u64(g, kv, 0, &id) || id >= (uint64_t)v->n)
            continue;
        if (keys[i].role == ROLE_END || keys[i].role >= ROLE_FIM_PAD)
            v->mark[id] |= TOKEN_EOG;
        named[keys[i].role] = keys[i].role != ROLE_END;
        set_fim(v, keys[i].role, (int32_t)id);
    }
    if (v->eos >= 0)
        v->mark[v->eos] |= TOKEN_EOG;
    for (uint32_t i = 0; i < N_ROWS; i++) {
        int32_t id = found->id[i];
        enum role role = rows[i].role;
        if (id < 0 || named[role])
            continue;
        set_type(v, id, role == ROLE_SHOWN ? VOCAB_USER : VOCAB_CONTROL);
        if (role == ROLE_END || role >= ROLE_FIM_PAD)
            v->mark[id] |= TOKEN_EOG;
        named[role] = role >= ROLE_FIM_PRE;
        set_fim(v, role, id);
    }
    /* Two families use a well-known text for something else. */
    int32_t end = row_id(found, "<|end|>"), s = row_id(found, "</s>");
    int call = ends(v, row_id(found, "<|call|>")) || ends(v, row_id(found, "<|calls|>"));
    int more = ends(v, row_id(found, "<|return|>")) || ends(v, row_id(found, "<|flush|>"));
    if (end >= 0 && call && more) { /* the message ends, not the turn */
        v->mark[end] = VOCAB_USER;
    }
    if (s >= 0 && ends(v, row_id(found, "<|tool_response>"))) /* HTML, as far as Gemma knows */
        v->mark[s] = VOCAB_NORMAL;
}

/* 1 when hay contains needle, letters of either case alike. */
static int contains(struct slice hay, const char *needle)
{
    size_t n = strlen(needle);
    for (size_t i = 0; i + n <= hay.n; i++) {
        if (strncasecmp(hay.p + i, needle, n) == 0)
            return 1;
    }
    return 0;
}

static int is_special(const struct vocab *v, int32_t id)
{
    return vocab_is_hidden(v, id) || vocab_type(v, id) == VOCAB_USER;
}

static void set_strips(struct vocab *v, const struct gguf *g)
{
    for (uint32_t i = 0; i < sizeof strips / sizeof *strips; i++) {
        const struct gguf_kv *kv = gguf_find(g, strips[i].key);
        struct slice value;
        if (!kv || !gguf_str(g, kv, &value) || !contains(value, strips[i].part))
            continue;
        for (int32_t id = 0; id < v->n; id++) {
            struct slice s = vocab_text(v, id);
            int all = !strips[i].text && is_special(v, id) && !slice_eq_z(s, "<unk>") &&
                      !slice_eq_z(s, "<s>") && !slice_eq_z(s, "<|endoftext|>");
            if (all || (strips[i].text && slice_eq_z(s, strips[i].text)))
                v->mark[id] |= strips[i].mark;
        }
    }
}

/* The name in "<name>" or "</name>" is an element of HTML that vocabularies have as one token. */
static int is_html(struct slice s)
{
    static const char names[] = " table caption thead tbody tfoot tr th td h1 h2 h3 h4 h5 h6 "
                                "blockquote strong em b i u s sub sup code ";
    size_t from = s.n > 1 && s.p[1] == '/' ? 2 : 1;
    char word[16] = " ";
    if (s.p[0] != '<' || s.p[s.n - 1] != '>' || s.n - from > 12)
        return 0;
    memcpy(word + 1, s.p + from, s.n - from - 1);
    word[s.n - from] = ' ';
    return strstr(names, word) != NULL;
}

static int in_brackets(struct slice s)
{
    static const char open[] = "\xE2\x97\x81", close[] = "\xE2\x96\xB7"; /* Kimi's triangles */
    size_t n = sizeof open - 1;
    return s.n > 2 && ((s.p[0] && strchr("<[{]", s.p[0]) && s.p[s.n - 1] &&
                        strchr(">]}[", s.p[s.n - 1])) ||
                       (s.n > 2 * n && !memcmp(s.p, open, n) &&
                        !memcmp(s.p + s.n - n, close, n)));
}

static void set_markers(struct vocab *v)
{
    for (int32_t id = 0; id < v->n; id++) {
        struct slice s = vocab_text(v, id);
        /* "<s>" strikes a text through, unless it begins one. */
        int has_role = id == v->bos || (v->mark[id] & TOKEN_EOG),
            shown = vocab_type(v, id) == VOCAB_USER;
        if (vocab_is_hidden(v, id) ||
            ((has_role || shown) && in_brackets(s) && (has_role || !is_html(s))))
            v->mark[id] |= TOKEN_MARKER;
    }
}

/* The longest first, then by id: the order in which tokens are looked for. */
static int by_length(const void *pa, const void *pb)
{
    const struct prefix_item *a = pa, *b = pb;
    if (a->s.n != b->s.n)
        return a->s.n > b->s.n ? -1 : 1;
    return a->value < b->value ? -1 : a->value > b->value;
}

pith_status special_index(struct vocab *v, struct pith_error *err)
{
    uint32_t n = 0;
    for (int32_t id = 0; id < v->n; id++)
        n += (uint32_t)is_special(v, id);
    struct prefix_item *items = mem_array(n, sizeof *items, PITH_MEM_VOCAB);
    v->special_id = mem_array(n, sizeof *v->special_id, PITH_MEM_VOCAB);
    if (!items || !v->special_id) {
        mem_free(items);
        return vocab_nomem(err);
    }
    n = 0;
    for (int32_t id = 0; id < v->n; id++) {
        if (!is_special(v, id))
            continue;
        if (vocab_text(v, id).n > VOCAB_TOKEN_MOST) {
            mem_free(items);
            return vocab_too_long(v, id, err);
        }
        items[n++] = (struct prefix_item){vocab_text(v, id), (uint32_t)id};
        v->n_user += vocab_type(v, id) == VOCAB_USER;
    }
    if (n)
        qsort(items, n, sizeof *items, by_length);
    for (uint32_t i = 0; i < n; i++) {
        v->special_id[i] = (int32_t)items[i].value;
        items[i].value = i;
    }
    return prefix_init(&v->special, items, n) ? PITH_OK : vocab_nomem(err);
}

pith_status special_roles(struct vocab *v, const struct gguf *g, struct pith_error *err)
{
    struct found found;
    if (!find_rows(v, &found))
        return vocab_nomem(err);
    set_roles(v, g, &found);
    set_strips(v, g);
    set_markers(v);
    return PITH_OK;
}

void special_deinit(struct vocab *v)
{
    prefix_deinit(&v->special);
    mem_free(v->special_id);
}

/* ---------------------------------------------------------------- matching */

struct search {
    const struct vocab *v;
    struct slice text;
    int parse;
    const struct spans *values;
    struct heap hits; /* order of the token << 32 | place */
    uint64_t *found;  /* taken hits, place << 32 | order of the token */
    size_t n_found, cap_found;
    uint64_t *taken; /* a bit for each byte of the text */
};

static int is_taken(const struct search *s, size_t at)
{
    return s->taken[at >> 6] >> (at & 63) & 1;
}

static int is_allowed(const struct search *s, int32_t id, size_t at)
{
    if (!s->parse && vocab_is_hidden(s->v, id))
        return 0;
    return !s->values || !vocab_is_marker(s->v, id) ||
           !spans_touch(s->values, at, at + vocab_text(s->v, id).n);
}

/* The longest special token at this place that is at most n bytes long goes into the heap. */
static void look(struct search *s, size_t at, size_t n)
{
    const struct prefix_item *item, *longest = NULL;
    struct prefix_walk w;
    prefix_begin(&w, &s->v->special, s->text.p + at, n);
    while ((item = prefix_next(&w))) {
        if (is_allowed(s, s->v->special_id[item->value], at))
            longest = item;
    }
    if (!prefix_tick(&w, s->text.p + at))
        s->hits.failed = 1;
    if (longest)
        heap_push(&s->hits, (uint64_t)longest->value << 32 | at);
}

/* Takes what is popped if it is free. 0 on failed allocation. */
static int take(struct search *s, uint64_t key)
{
    uint32_t order = (uint32_t)(key >> 32);
    size_t at = (uint32_t)key, n = vocab_text(s->v, s->v->special_id[order]).n, room = 0;
    while (room < n && !is_taken(s, at + room))
        room++;
    if (room == 0)
        return 1;
    if (room < n) {
        look(s, at, room);
        return !s->hits.failed;
    }
    if (s->n_found == s->cap_found) {
        size_t cap = s->cap_found ? s->cap_found * 2 : 64;
        uint64_t *found = mem_realloc(s->found, cap * sizeof *found, PITH_MEM_SCRATCH);
        if (!found)
            return 0;
        s->found = found;
        s->cap_found = cap;
    }
    s->found[s->n_found++] = (uint64_t)at << 32 | order;
    for (size_t i = at; i < at + n; i++)
        s->taken[i >> 6] |= (uint64_t)1 << (i & 63);
    return 1;
}

static int by_value(const void *pa, const void *pb)
{
    const uint64_t *a = pa, *b = pb;
    return *a < *b ? -1 : *a > *b;
}

/* Fills s->found, sorted by place. 0 on failed allocation. */
static int find_all(struct search *s)
{
    const struct prefix_set *set = &s->v->special;
    for (size_t at = 0; at < s->text.n; at++) {
        if (at % 1024 == 1023 && !work_tick(1024))
            return 0;
        if (prefix_starts(set, s->text.p[at]))
            look(s, at, s->text.n - at);
        if (s->hits.failed)
            return 0;
    }
    if (s->hits.failed)
        return 0;
    if (!s->hits.n)
        return 1;
    s->taken = mem_array(s->text.n / 64 + 1, sizeof *s->taken, PITH_MEM_SCRATCH);
    int ok = s->taken != NULL;
    while (ok && s->hits.n)
        ok = work_tick(16) && take(s, heap_pop(&s->hits));
    if (ok && s->n_found)
        qsort(s->found, s->n_found, sizeof *s->found, by_value);
    return ok;
}

static int is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static pith_status deliver(const struct search *s, const struct special_sink *sink)
{
    pith_status st = PITH_OK;
    size_t from = 0;
    for (size_t i = 0; i <= s->n_found && st == PITH_OK; i++) {
        int last = i == s->n_found;
        size_t to = last ? s->text.n : (size_t)(s->found[i] >> 32), next = to;
        int32_t id = last ? -1 : s->v->special_id[(uint32_t)s->found[i]];
        if (id >= 0) {
            next = to + vocab_text(s->v, id).n;
            while ((s->v->mark[id] & TOKEN_STRIP_LEFT) && to > from && is_space(s->text.p[to - 1]))
                to--;
        }
        if (to > from)
            st = sink->text(sink->ctx, (struct slice){s->text.p + from, to - from});
        if (id < 0 || st != PITH_OK)
            break;
        sink->token(sink->ctx, id);
        size_t end = i + 1 < s->n_found ? (size_t)(s->found[i + 1] >> 32) : s->text.n;
        while ((s->v->mark[id] & TOKEN_STRIP_RIGHT) && next < end && is_space(s->text.p[next]))
            next++;
        from = next;
    }
    return st;
}

pith_status special_split(const struct vocab *v, struct slice text, int parse,
                          const struct spans *values, const struct special_sink *sink,
                          struct pith_error *err)
{
    struct search s = {.v = v, .text = text, .parse = parse, .values = values};
    int ok = !(parse ? v->special.n : (uint32_t)v->n_user) || find_all(&s);
    pith_status st = ok ? deliver(&s, sink) : vocab_nomem(err);
    heap_deinit(&s.hits);
    mem_free(s.found);
    mem_free(s.taken);
    return st;
}
