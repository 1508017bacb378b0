/* account.c -- see account.h. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#include <stdatomic.h>
#endif

#include "server/http/account.h"
#include "server/http/auth.h"
#include "server/http/exchange.h"
#include "server/json.h"
#include "server/serve.h"

static void add(struct account *a, int64_t bytes)
{
    long long now = atomic_fetch_add(&a->bytes, bytes) + bytes, top = atomic_load(&a->peak);
    while (now > top && !atomic_compare_exchange_weak(&a->peak, &top, now)) {
    }
}

void account_add(struct server *s, struct tenant *t, int64_t bytes)
{
    if (!bytes)
        return;
    add(&s->account, bytes);
    add(&t->account, bytes);
}

int64_t account_budget(const struct server *s)
{
    return s->p.requests_memory;
}

/* Of one key, where there are several: half of what there is for all, so that one alone never fills
 * it. */
int64_t account_of_key(const struct server *s)
{
    return tenants_count(s->tenants) > 1 ? account_budget(s) / 2 : account_budget(s);
}

int64_t account_most(const struct server *s)
{
    return s->p.max_memory ? s->p.max_memory : atomic_load(&s->process_most);
}

/* How much more the process may have; what requests are given meanwhile is in it already. */
static int64_t room_of_process(const struct server *s)
{
    int64_t most = account_most(s);
    return most ? most - atomic_load(&s->beside_requests) - atomic_load(&s->account.bytes)
                : INT64_MAX;
}

/* Bytes of the process that lie in memory and in no file, from which the system could read them
 * again (mapped weights). 0: not known. */
static int64_t resident(void)
{
    long long all = 0, shared = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%*s %lld %lld", &all, &shared) != 2)
        all = shared = 0;
    if (f)
        fclose(f);
    return (all - shared) * sysconf(_SC_PAGESIZE);
}

int64_t account_own(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 0; /* what is freed is kept, and everything has a shadow */
#endif
    return resident();
}

/* What models and requests need at most, what the process had before, and something for the
 * allocator, stacks and libraries. */
static int64_t usual_most(const struct server *s, int64_t models)
{
    enum { SPARE = 256 << 20 };
    return s->own_bytes + models + models / 8 + s->p.requests_memory + SPARE;
}

void account_measure(struct server *s, int64_t of_models)
{
    if (!s->p.max_memory && !s->own_bytes)
        return;
    if (!s->p.max_memory)
        atomic_store(&s->process_most, usual_most(s, of_models));
    int64_t most = account_most(s);
    int64_t beside = resident() - atomic_load(&s->account.bytes);
#ifdef __GLIBC__
    if (beside + atomic_load(&s->account.bytes) > most) {
        /* what is free is kept there */
        malloc_trim(0);
        beside = resident() - atomic_load(&s->account.bytes);
    }
#endif
    atomic_store(&s->beside_requests, beside > 0 ? beside : 0);
}

static int64_t less(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t account_room(const struct server *s, const struct tenant *t)
{
    int64_t key = account_of_key(s) - atomic_load(&t->account.bytes),
            all = account_budget(s) - atomic_load(&s->account.bytes);
    int64_t room = less(less(s->p.request_memory, room_of_process(s)), less(key, all));
    return room > 0 ? room : 0;
}

int account_has_room(const struct server *s, const struct tenant *t, int64_t bytes)
{
    return atomic_load(&t->account.bytes) + bytes <= account_of_key(s) &&
           atomic_load(&s->account.bytes) + bytes <= account_budget(s) &&
           bytes <= room_of_process(s);
}

int account_refuse(const struct server *s, const struct tenant *t, int64_t bytes, struct fault *f)
{
    long long key = atomic_load(&t->account.bytes), all = atomic_load(&s->account.bytes);
    if (bytes > s->p.request_memory)
        return fault_set(f, 400, "request_too_expensive", NULL,
                         "this request needs more than %lld bytes of memory, which is "
                         "--request-memory; ask for less at a time",
                         (long long)s->p.request_memory);
    if (key + bytes <= account_of_key(s) && all + bytes <= account_budget(s) &&
        bytes > room_of_process(s))
        fault_set(f, 503, "memory_full", NULL,
                  "the process has %lld bytes of memory and this request needs %lld more; it may "
                  "have %lld (--max-memory); try again later",
                  (long long)(account_most(s) - room_of_process(s)), (long long)bytes,
                  (long long)account_most(s));
    else if (key + bytes > account_of_key(s) ||
             all + bytes <= account_budget(s)) /* or it was, a moment ago */
        fault_set(f, 429, "key_memory_full", NULL,
                  "the requests of this key have %lld bytes of memory and this one needs %lld "
                  "more; all of a key may have %lld (of --requests-memory); "
                  "try again later",
                  key, (long long)bytes, (long long)account_of_key(s));
    else
        fault_set(f, 503, "memory_full", NULL,
                  "the requests of this server have %lld bytes of memory and this one needs %lld "
                  "more; all may have %lld (--requests-memory); try again later",
                  all, (long long)bytes, (long long)account_budget(s));
    f->retry_after = 2;
    return 0;
}

int account_take(struct server *s, struct tenant *t, int64_t bytes, int64_t held, struct fault *f)
{
    if (held + bytes > s->p.request_memory)
        return account_refuse(s, t, held + bytes, f);
    account_add(s, t, bytes);
    if (account_has_room(s, t, 0))
        return 1;
    account_add(s, t, -bytes);
    return account_refuse(s, t, bytes, f);
}

void account_ended(struct tenant *t, const struct figures *f)
{
    atomic_fetch_add(&t->account.requests, 1);
    atomic_fetch_add(&t->account.n_prompt, f->n_prompt);
    atomic_fetch_add(&t->account.n_made, f->n_made);
}

/* ---------------------------------------------------------------- metrics */

static void put_label(FILE *f, const char *name)
{
    for (; *name; name++) {
        if (*name == '"' || *name == '\\')
            putc('\\', f);
        putc(*name == '\n' ? ' ' : *name, f);
    }
}

static double bytes_now(const struct account *a)
{
    return (double)atomic_load(&a->bytes);
}

static double bytes_peak(const struct account *a)
{
    return (double)atomic_load(&a->peak);
}

static double work_seconds(const struct account *a)
{
    return 1e-9 * (double)atomic_load(&a->work_ns);
}

static double sample_seconds(const struct account *a)
{
    return 1e-9 * (double)atomic_load(&a->sample_ns);
}

static double steps(const struct account *a)
{
    return (double)atomic_load(&a->steps);
}

static double requests(const struct account *a)
{
    return (double)atomic_load(&a->requests);
}

static double prompt_tokens(const struct account *a)
{
    return (double)atomic_load(&a->n_prompt);
}

static double made_tokens(const struct account *a)
{
    return (double)atomic_load(&a->n_made);
}

static void put_totals(const struct server *s, FILE *f)
{
    fprintf(f,
            "# HELP pith:requests_bytes Memory of all requests.\n# TYPE pith:requests_bytes "
            "gauge\npith:requests_bytes %.15g\n",
            bytes_now(&s->account));
    fprintf(f,
            "# HELP pith:requests_bytes_max The most it may be.\n# TYPE pith:requests_bytes_max "
            "gauge\npith:requests_bytes_max %lld\n",
            (long long)account_budget(s));
}

char *account_text(const struct server *s, const struct tenant *who, size_t *n)
{
    static const struct {
        const char *name, *type, *help;
        double (*of)(const struct account *a);
    } rows[] = {
        {"pith:key_bytes", "gauge", "Memory of a key's requests.", bytes_now},
        {"pith:key_bytes_peak", "gauge", "The most it was.", bytes_peak},
        {"pith:key_work_seconds_total", "counter",
         "Reading a key's requests: JSON, templates, tokens, grammars, prefixes in files.",
         work_seconds},
        {"pith:key_sampling_seconds_total", "counter",
         "Choosing tokens for a key: samplers and masks.", sample_seconds},
        {"pith:key_steps_total", "counter",
         "The same as counted steps of the library: texts, templates, grammars, masks beside.",
         steps},
        {"pith:key_requests_total", "counter", "Requests of a key that have ended.", requests},
        {"pith:key_prompt_tokens_total", "counter", "Tokens of their prompts.", prompt_tokens},
        {"pith:key_generation_tokens_total", "counter", "Tokens of their answers.", made_tokens},
    };
    char *text = NULL;
    FILE *f = open_memstream(&text, n);
    if (!f)
        return NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fprintf(f, "# HELP %s %s\n# TYPE %s %s\n", rows[i].name, rows[i].help, rows[i].name,
                rows[i].type);
        for (int k = 0; k < tenants_count(s->tenants); k++) {
            const struct tenant *t = tenants_at(s->tenants, k);
            if (who && t != who)
                continue;
            fprintf(f, "%s{key=\"", rows[i].name);
            put_label(f, t->name);
            fprintf(f, "\"} %.15g\n", rows[i].of(&t->account));
        }
    }
    if (!who)
        put_totals(s, f);
    if (fclose(f)) {
        free(text);
        return NULL;
    }
    return text;
}
