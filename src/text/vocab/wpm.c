/* wpm.c -- WordPiece, the model "bert": lower-cased words without accents, cut greedily from the
 * left.
 *
 *     "Cafés!"  ->  words "cafes" "!"  ->  "_cafe" "s"  "_!"     (_ is U+2581, a word's start)
 *
 * A word ends at white space; punctuation, ASCII symbols and Han characters are words of their own;
 * control characters are dropped. A word that tokens do not cover to its end is one unknown token.
 *
 * Accents go the way the field does it, which is not quite the published one: each character
 * becomes the first of its canonical decomposition. For Hangul syllables this leaves the leading
 * consonant. Unicode tables of utf8proc. Reference: Devlin et al. 2018, BERT; its
 * BasicTokenizer. */
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "base/work.h"
#include "text/vocab/piece.h"

struct wpm {
    struct prefix_set tokens;
    int lowercase, strip_accents;
};

static int any(const struct vocab *v, int32_t id)
{
    (void)v;
    (void)id;
    return 1;
}

static void wpm_deinit(struct vocab *v)
{
    struct wpm *m = v->impl;
    if (m)
        prefix_deinit(&m->tokens);
    mem_free(m);
}

static void load_option(const struct gguf *g, const char *key, int *option)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (kv)
        (void)gguf_bool(g, kv, 0, option);
}

static pith_status wpm_init(struct vocab *v, const struct gguf *g, struct pith_error *err)
{
    struct wpm *m = v->impl = mem_zalloc(sizeof *m, PITH_MEM_VOCAB);
    if (!m)
        return vocab_nomem(err);
    m->lowercase = 1;
    load_option(g, "tokenizer.ggml.normalizer.lowercase", &m->lowercase);
    m->strip_accents = m->lowercase;
    load_option(g, "tokenizer.ggml.normalizer.strip_accents", &m->strip_accents);
    return vocab_prefixes(v, any, &m->tokens, err);
}

/* White_Space of the Unicode standard. */
static int is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

/* Han ideographs, block by block, as the published tokenizers list them (2B920 included). */
static int is_han(uint32_t c)
{
    static const uint32_t blocks[][2] = {
        {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
        {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F},
    };
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        if (c >= blocks[i][0] && c <= blocks[i][1])
            return 1;
    }
    return 0;
}

enum char_class { CHAR_LETTER, CHAR_SPACE, CHAR_DROP, CHAR_ALONE };

static enum char_class classify(const struct wpm *m, uint32_t c)
{
    if (is_space(c))
        return CHAR_SPACE;
    if (c == 0 || c == 0xFFFD)
        return CHAR_DROP;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
        return CHAR_DROP;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return m->strip_accents ? CHAR_DROP : CHAR_LETTER;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
        return CHAR_ALONE;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
        return c < 0x7F ? CHAR_ALONE : CHAR_LETTER;
    default:
        return is_han(c) ? CHAR_ALONE : CHAR_LETTER;
    }
}

static uint32_t without_accent(uint32_t c)
{
    utf8proc_int32_t parts[32];
    int boundary = 0;
    utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)c, parts, 32, UTF8PROC_DECOMPOSE, &boundary);
    return n > 0 ? (uint32_t)parts[0] : c;
}

/* A word with its U+2581 in front to ids; the word is emptied. */
static void put_word(const struct vocab *v, struct scratch *s, struct ids *out)
{
    const struct wpm *m = v->impl;
    struct str *word = &s->text;
    int64_t before = out->n;
    if (word->n <= sizeof U2581 - 1)
        return;
    for (size_t i = 0; i < word->n && work_tick(8);) {
        const struct prefix_item *item, *longest = NULL;
        struct prefix_walk w;
        prefix_begin(&w, &m->tokens, word->p + i, word->n - i);
        while ((item = prefix_next(&w)))
            longest = s->no_markers && vocab_is_marker(v, (int32_t)item->value) ? longest : item;
        prefix_tick(&w, word->p + i);
        if (!longest) { /* the whole word is unknown */
            out->n = before;
            vocab_put_unknown(v, s->no_markers, out);
            break;
        }
        ids_put(out, (int32_t)longest->value);
        i += longest->s.n;
    }
    word->n = sizeof U2581 - 1;
}

static pith_status wpm_encode(const struct vocab *v, struct slice text, int at_start,
                              struct scratch *s, struct ids *out, struct pith_error *err)
{
    const struct wpm *m = v->impl;
    struct str *word = &s->text;
    (void)at_start;
    str_clear(word);
    str_putz(word, U2581);
    for (size_t i = 0; i < text.n && !word->failed;) {
        uint32_t c;
        if (!work_tick(8))
            return error_set(err, PITH_CANCELLED, "cancelled");
        char utf8[4];
        i += (size_t)utf8_decode(text.p + i, text.n - i, &c);
        if (c == UINT32_MAX)
            c = 0xFFFD;
        if (m->strip_accents)
            c = without_accent(c);
        enum char_class class = classify(m, c);
        if (class == CHAR_DROP)
            continue;
        if (class != CHAR_LETTER)
            put_word(v, s, out);
        if (class == CHAR_SPACE)
            continue;
        if (m->lowercase)
            c = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
        str_put(word, utf8, (size_t)utf8_encode(c, utf8));
        if (class == CHAR_ALONE)
            put_word(v, s, out);
    }
    if (word->failed)
        return vocab_nomem(err);
    put_word(v, s, out);
    return PITH_OK;
}

const struct vocab_model vocab_wpm = {
    .name = "bert",
    .kind = VOCAB_WPM,
    .bos = 101,
    .eos = -1,
    .unk = 100,
    .sep = 102,
    .pad = 0,
    .add_bos = 1,
    .add_sep = 1,
    .clean_spaces = 1,
    .init = wpm_init,
    .deinit = wpm_deinit,
    .encode = wpm_encode,
};
