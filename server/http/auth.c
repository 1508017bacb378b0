/* auth.c -- who may ask: keys, and what the Host and Origin headers may say. A page in a browser
 * can send requests to this machine's own addresses, and a name it owns can point there; so without
 * keys both headers have to name this machine, or what was allowed by flags. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server/http/auth.h"
#include "server/json.h"

struct tenants {
    int n, have_keys, have_admins;
    struct tenant v[];
};

static int count(const char *const *keys)
{
    int n = 0;
    while (keys && keys[n])
        n++;
    return n;
}

/* "name:secret" or "secret"; the n-th of its kind. */
static int add(struct tenants *t, const char *key, int n, int admin, struct pith_error *err)
{
    struct tenant *one = &t->v[t->n];
    const char *colon = strchr(key, ':'), *secret = colon ? colon + 1 : key;
    size_t n_name = colon ? (size_t)(colon - key) : 0;
    if (strlen(secret) < 8 || strlen(secret) >= sizeof one->secret || n_name >= sizeof one->name) {
        err->code = PITH_RANGE;
        snprintf(err->msg, sizeof err->msg,
                 "key %d of %s has %zu characters, wanted 8 to %zu, after a name of at most %zu "
                 "and a colon, if any",
                 n, admin ? "--admin-key" : "--api-key and --api-key-file", strlen(secret),
                 sizeof one->secret - 1, sizeof one->name - 1);
        return 0;
    }
    strcpy(one->secret, secret);
    if (colon)
        memcpy(one->name, key, n_name);
    else
        snprintf(one->name, sizeof one->name, "%s-%d", admin ? "admin" : "key", t->n + 1);
    one->index = t->n++;
    one->admin = admin || !strcmp(one->name, "admin");
    t->have_admins |= one->admin;
    return 1;
}

struct tenants *tenants_open(const char *const *keys, const char *const *admin_keys,
                             struct pith_error *err)
{
    int n = count(keys), n_admins = count(admin_keys), ok = 1;
    struct tenants *t = calloc(1, sizeof *t + (size_t)(n + n_admins + 1) * sizeof t->v[0]);
    if (!t) {
        *err = (struct pith_error){PITH_NOMEM, "out of memory for keys"};
        return NULL;
    }
    t->have_keys = n > 0;
    t->n = n == 0; /* everybody */
    for (int i = 0; ok && i < n; i++)
        ok = add(t, keys[i], i + 1, 0, err);
    for (int i = 0; ok && i < n_admins; i++)
        ok = add(t, admin_keys[i], i + 1, 1, err);
    if (ok)
        return t;
    free(t);
    return NULL;
}

void tenants_close(struct tenants *t)
{
    free(t);
}

int tenants_have_keys(const struct tenants *t)
{
    return t->have_keys;
}

int tenants_have_admins(const struct tenants *t)
{
    return t->have_admins;
}

int tenants_count(const struct tenants *t)
{
    return t->n;
}

struct tenant *tenants_at(struct tenants *t, int i)
{
    return &t->v[i];
}

struct tenant *tenants_find(struct tenants *t, const char *key)
{
    struct tenant *found = t->have_keys ? NULL : &t->v[0];
    char padded[sizeof t->v[0].secret] = "";
    if (!key || strlen(key) >= sizeof padded)
        return found;
    strcpy(padded, key);
    for (int i = !t->have_keys; i < t->n; i++) { /* all bytes of all keys, whatever differs */
        unsigned char differs = 0;
        for (size_t k = 0; k < sizeof padded; k++)
            differs |= (unsigned char)(padded[k] ^ t->v[i].secret[k]);
        if (!differs)
            found = &t->v[i];
    }
    return found;
}

/* ---------------------------------------------------------------- Host and Origin */

/* "[::1]:80" -> "::1"; "name:80" -> "name" */
static void host_name(const char *host, char *out, size_t cap)
{
    size_t n = *host == '[' ? strcspn(++host, "]") : strcspn(host, ":");
    snprintf(out, cap, "%.*s", (int)(n < cap ? n : cap - 1), host);
}

static int listed(const char *const *list, const char *word)
{
    for (; list && *list; list++)
        if (!strcasecmp(*list, word) || !strcmp(*list, "*"))
            return 1;
    return 0;
}

static int is_loopback(const char *name)
{
    struct in_addr a; /* a name may begin with "127.", too, and belong to anybody */
    return !strcasecmp(name, "localhost") || !strcmp(name, "::1") ||
           (inet_pton(AF_INET, name, &a) == 1 && ntohl(a.s_addr) >> 24 == 127);
}

/* Pages that only a program of this machine can have: what another port of it serves, and the
 * windows of desktop programs, whose schemes no web page has. "null" is anybody's: a file, or a
 * page in a sandbox. */
static int is_of_this_machine(const char *origin)
{
    static const char *const apps[] = {"app", "tauri", "vscode-webview"};
    const char *slashes = strstr(origin, "://");
    size_t n = slashes ? (size_t)(slashes - origin) : 0;
    char name[256];
    for (size_t i = 0; i < sizeof apps / sizeof *apps; i++)
        if (n == strlen(apps[i]) && !strncasecmp(origin, apps[i], n))
            return 1;
    if (!slashes || !((n == 4 && !strncasecmp(origin, "http", n)) ||
                      (n == 5 && !strncasecmp(origin, "https", n))))
        return 0;
    const char *host = slashes + 3;
    host_name(host, name, sizeof name);
    const char *port =
        host + (*host == '[') + strlen(name); /* a longer name was cut, and is none of ours */
    if (*host == '[' && *port++ != ']')
        return 0;
    int ends =
        !*port || (*port == ':' && port[1] && strspn(port + 1, "0123456789") == strlen(port + 1));
    return ends &&
           (is_loopback(name) ||
            !strcasecmp(name,
                        "tauri.localhost")); /* tauri's on systems where it can have no scheme */
}

int http_tells_lies(const struct server_params *p, const char *host, const char *origin, int local,
                    int keys, struct fault *f)
{
    char name[256];
    host_name(host ? host : "", name, sizeof name);
    if (local && !keys && !p->unix_path && !is_loopback(name) &&
        !(host && listed(p->hosts, name))) { /* no page reaches a socket in the file system */
        fault_set(
            f, 403, "host_not_allowed", "Host",
            "Host is \"%.100s\"; wanted a name of this machine, or one given with --allow-host",
            host ? host : "");
        return 1;
    }
    if (!origin || listed(p->origins, origin) || (local && is_of_this_machine(origin)))
        return 0;
    const char *slashes = strstr(origin, "://");
    if (host && slashes && !strcasecmp(slashes + 3, host))
        return 0; /* the server's own page */
    fault_set(f, 403, "origin_not_allowed", "Origin",
              "Origin is \"%.100s\"; pages from elsewhere need --allow-origin", origin);
    return 1;
}
