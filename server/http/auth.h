/* auth.h -- who asks: keys, and what each has cost. */
#ifndef PITH_SERVER_HTTP_AUTH_H
#define PITH_SERVER_HTTP_AUTH_H

#include <pith.h>
#include <stdatomic.h>
#include "server/json.h"
#include "server/server.h"

struct account {
    atomic_llong bytes, peak;
    atomic_llong work_ns, sample_ns;
    atomic_llong steps; /* of the library's work for them, pith_work's */
    atomic_llong requests, n_prompt, n_made; /* that have ended; tokens of theirs */
};

/* Who shares the machine: a key. */
struct tenant {
    char name[64], secret[192];
    int index;                /* in the list of all */
    int admin;                /* may change the server */
    atomic_size_t body_bytes; /* of its requests that nobody has read yet */
    struct account account;
};

struct tenants;
struct tenants *tenants_open(const char *const *keys, const char *const *admin_keys,
                             struct pith_error *err);
void tenants_close(struct tenants *t);
int tenants_have_keys(const struct tenants *t); /* without, everybody may ask */
int tenants_have_admins(const struct tenants *t);
/* By the key given (NULL: none). NULL: there is none such, and one is needed. Compares in constant
 * time. */
struct tenant *tenants_find(struct tenants *t, const char *key);
struct tenant *tenants_at(struct tenants *t, int i); /* 0 .. tenants_count - 1 */
int tenants_count(const struct tenants *t);

/* Host and Origin are not what they have to be. local: only this machine can reach the
 * server; keys: a request needs one. */
int http_tells_lies(const struct server_params *p, const char *host, const char *origin, int local,
                    int keys, struct fault *f);

#endif
