/* fuzz_chat.c -- the first byte chooses the family, the second how the text is cut, the rest is a
 * model's answer. Events must add up to what the parser holds, arguments of whole calls must be
 * JSON objects, and the same must come whole and in pieces; the second byte's highest bit has calls
 * told while they come. */
#include "fuzz.h"
#include "text/jtree.h"
#include "text/chat/chat_parse.h"

static const char tools[] =
    "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},"
    "\"n\":{\"type\":[\"integer\",\"null\"]},\"o\":{\"anyOf\":[{\"type\":\"object\"}]}}}}}]";

static const char *const families[] = {
    "harmony",      "atem",        "kimi-k3",   "kimi-k2",     "deepseek-v3.2", "deepseek",
    "mistral",      "command-r7b", "command-r", "granite",     "lfm2",          "solar",
    "hunyuan-3",    "hunyuan",     "seed",      "minimax-m3",  "minimax-m2",    "minimax-m1",
    "glm",          "qwen3-coder", "minicpm5",  "nemotron-v2", "hermes",        "functionary",
    "firefunction", "llama-3",     "gemma",     "generic"};
enum { N_FAMILIES = sizeof families / sizeof *families };

struct heard {
    size_t n[2];
    int32_t n_calls;
};

static void hear(void *ctx, const struct pith_chat_event *e)
{
    struct heard *h = ctx;
    if (e->kind == PITH_CHAT_CALL &&
        !(e->whole && e->index == h->n_calls)) { /* told in parts, or its end */
        require(e->index <= h->n_calls && e->name[0] && e->id[0] && (e->n_bytes || e->whole));
        h->n_calls += e->index == h->n_calls;
    } else if (e->kind == PITH_CHAT_CALL) {
        struct arena a;
        arena_init(&a, PITH_MEM_SCRATCH);
        const struct jtree *v = jtree_read(&a, e->text, e->n_bytes, NULL);
        require(v && v->kind == JTREE_OBJECT && e->index == h->n_calls++ && e->name[0] && e->id[0]);
        arena_deinit(&a);
    } else {
        require(e->n_bytes > 0);
        h->n[e->kind] += e->n_bytes;
    }
}

static struct pith_chat_parser *parse(const struct chat_parse_spec *spec, const char *text,
                                      size_t n, size_t cut)
{
    struct heard h = {0};
    struct chat_parse_spec own = *spec;
    own.ctx = &h;
    struct pith_chat_parser *p = chat_parse_new(&own, NULL);
    require(p != NULL);
    for (size_t i = 0, k; i < n; i += k) {
        k = cut < n - i ? cut : n - i;
        require(chat_parse_feed(p, (struct slice){text + i, k}, NULL) == PITH_OK);
    }
    require(chat_parse_finish(p, NULL) == PITH_OK && h.n_calls == chat_parse_n_calls(p));
    for (int i = 0; i < 2; i++)
        require(h.n[i] == chat_parse_said(p, (pith_chat_kind)i).n);
    return p;
}

static void run(const uint8_t *data, size_t size)
{
    static const char *const prompts[] = {"", "<think>\n", "<|start|>assistant", ">>>"};
    struct chat_parse_spec spec = {.format = chat_format_named(families[data[0] % N_FAMILIES]),
                                   .on_event = hear};
    require(spec.format != NULL);
    spec.partial = data[1] >> 7;
    spec.tools = data[1] & 16 ? (struct slice){tools, sizeof tools - 1} : (struct slice){NULL, 0};
    spec.prompt = slice_of(prompts[data[1] >> 5 & 3]);
    const char *text = (const char *)data + 2;
    struct pith_chat_parser *whole = parse(&spec, text, size - 2, size);
    struct pith_chat_parser *cut = parse(&spec, text, size - 2, 1 + (data[1] & 15));
    for (int i = 0; i < 2; i++)
        require(slice_eq(chat_parse_said(whole, (pith_chat_kind)i),
                         chat_parse_said(cut, (pith_chat_kind)i)));
    require(chat_parse_n_calls(whole) == chat_parse_n_calls(cut));
    for (int32_t i = 0; i < chat_parse_n_calls(whole); i++) {
        const struct pith_chat_event *a = chat_parse_call(whole, i), *b = chat_parse_call(cut, i);
        require(a->whole == b->whole && (a->whole || spec.partial) && a->n_bytes == b->n_bytes &&
                !memcmp(a->text, b->text, a->n_bytes) && !strcmp(a->name, b->name) &&
                !strcmp(a->id, b->id));
    }
    chat_parse_free(whole);
    chat_parse_free(cut);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size >= 2)
        on_small_stack(run, data, size);
    return 0;
}
