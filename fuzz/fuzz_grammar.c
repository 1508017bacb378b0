/* fuzz_grammar.c -- the first byte chooses: the rest, up to a zero byte, is a grammar, a schema or a regular expression, and what
 * follows it a text. Whatever opens must take the text to the same end at once and byte by byte, and never take back that a text can go on.
 * Runs on a small stack: nothing may recurse with the input. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/jtree.h"
#include "base/str.h"
#include "text/grammar.h"

static void require(int ok)
{
    if (!ok)
        abort();
}

static void use(pith_grammar_kind kind, struct slice text, struct slice input)
{
    struct pith_error err = {.code = PITH_OK};
    struct grammar_spec spec = {.kind = (int)kind, .text = text, .trigger_token = -1};
    struct pith_grammar *g = grammar_new(&spec, &err), *h;
    if (!g) {
        require(err.code != PITH_OK && err.msg[0]);
        return;
    }
    h = grammar_clone(g, &err);
    require(h != NULL);
    size_t n = input.n < 512 ? input.n : 512, taken = 0;
    while (taken < n && grammar_accept_text(h, (struct slice){input.p + taken, 1}, NULL) == PITH_OK)
        taken++;
    struct slice whole = {input.p, taken};
    require(grammar_accept_text(g, whole, NULL) == PITH_OK);
    require(grammar_may_end(g) == grammar_may_end(h));
    require(taken == n || grammar_accept_text(g, (struct slice){input.p + taken, 1}, NULL) != PITH_OK);
    grammar_free(g);
    grammar_free(h);
}

struct job {
    const uint8_t *data;
    size_t size;
};

static void *run(void *arg)
{
    const struct job *j = arg;
    const char *p = (const char *)j->data + 1;
    const char *zero = memchr(p, 0, j->size - 1);
    struct slice text = {p, zero ? (size_t)(zero - p) : j->size - 1};
    struct slice input = {zero ? zero + 1 : "", zero ? j->size - 2 - text.n : 0};
    if (j->data[0] % 3 == 2) {
        struct str schema;
        str_init(&schema, PITH_MEM_SCRATCH);
        str_putz(&schema, "{\"type\":\"string\",\"pattern\":");
        str_json(&schema, text.p, text.n);
        str_putc(&schema, '}');
        use(PITH_GRAMMAR_SCHEMA, (struct slice){schema.p, schema.n}, input);
        str_deinit(&schema);
    } else {
        use(j->data[0] % 3 ? PITH_GRAMMAR_SCHEMA : PITH_GRAMMAR_GBNF, text, input);
    }
    return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { STACK = 64 << 10 };
    struct job job = {data, size};
    pthread_attr_t attr;
    pthread_t thread;
    if (size < 2 || size > 1 << 14)
        return 0;
    require(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, STACK) == 0);
    require(pthread_create(&thread, &attr, run, &job) == 0 && pthread_join(thread, NULL) == 0);
    pthread_attr_destroy(&attr);
    return 0;
}
