/* schema_text.c -- how words, keys and values are written. */
#include "text/grammar/schema/schema_impl.h"

#include <string.h>

void schema_word(struct schema *s, uint32_t from, uint32_t to, enum jtree_kind word)
{
    static const char *const words[][2] = {
        {"null", "None"}, {"true", "True"}, {"false", "False"}};
    int k = word == JTREE_NULL ? 0 : word == JTREE_TRUE ? 1 : 2;
    for (int i = 0; i < 1 + (s->form == SCHEMA_PYTHON); i++)
        rules_edge(s->r, rules_text(s->r, from, words[k][i], strlen(words[k][i])), to, EDGE_EPS, 0);
}

int schema_put_single(const struct schema *s, struct str *out, struct slice text)
{
    if (s->form != SCHEMA_PYTHON)
        return 0;
    str_clear(out);
    str_putc(out, '\'');
    for (size_t i = 0; i < text.n; i++) {
        char c = text.p[i], escaped = c == '\n' ? 'n' : c == '\r' ? 'r' : c == '\t' ? 't' : c;
        if (c == '\'' || c == '\\' || escaped != c)
            str_putc(out, '\\');
        str_putc(out, escaped);
    }
    str_putc(out, '\'');
    return !out->failed;
}

void schema_put_key(const struct schema *s, struct str *out, struct slice name)
{
    if (s->form == SCHEMA_GEMMA)
        str_put(out, name.p, name.n);
    else
        str_json(out, name.p, name.n);
}

void schema_put_value(const struct schema *s, struct str *out, const struct jtree *v)
{
    if (s->form != SCHEMA_GEMMA || v->kind != JTREE_STRING) {
        jtree_write(out, v);
        return;
    }
    str_putz(out, SCHEMA_QUOTE);
    str_put(out, v->text.p, v->text.n);
    str_putz(out, SCHEMA_QUOTE);
}
