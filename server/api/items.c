/* items.c -- see items.h. A key's items are the members of an object of JSON, each a text: a table
 * by id that lists what was put in first first. What is asked for is put in anew, so the first one
 * is the one that was used longest ago. */
#include "server/api/items.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "server/http/account.h"
#include "server/http/work.h"
#include "server/parts.h"

enum { KEYS_FULL = 16, BESIDE = 256 }; /* what a member takes besides its texts */

struct of_key {
    json_t *items;
    int64_t bytes;
};

struct items {
    pthread_mutex_t lock;
    struct server *s;
    int64_t most, bytes; /* of a key; of all now */
    int n;
    struct of_key key[];
};

struct items *items_open(struct server *s, int64_t most)
{
    int n = tenants_count(server_tenants(s));
    struct items *k = calloc(1, sizeof *k + (size_t)n * sizeof k->key[0]);
    if (!k)
        return NULL;
    k->s = s;
    k->most = most;
    k->n = n;
    pthread_mutex_init(&k->lock, NULL);
    return k;
}

void items_close(struct items *k)
{
    for (int i = 0; k && i < k->n; i++)
        json_decref(k->key[i].items);
    if (k)
        pthread_mutex_destroy(&k->lock);
    free(k);
}

static int64_t bytes_of(const char *id, const json_t *text)
{
    return (int64_t)(strlen(id) + json_string_length(text)) + BESIDE;
}

static void count(struct items *k, int i, int64_t bytes)
{
    k->key[i].bytes += bytes;
    k->bytes += bytes;
    account_add(k->s, tenants_at(server_tenants(k->s), i), bytes);
}

static void drop(struct items *k, int i, const char *id)
{
    const json_t *text = json_object_get(k->key[i].items, id);
    if (!text)
        return;
    count(k, i, -bytes_of(id, text));
    json_object_del(k->key[i].items, id);
}

static void drop_oldest(struct items *k, int i)
{
    /* a copy: the name goes with its member */
    char *id = strdup(json_object_iter_key(json_object_iter(k->key[i].items)));
    if (id)
        drop(k, i, id);
    else {
        count(k, i, -k->key[i].bytes);
        json_object_clear(k->key[i].items);
    }
    free(id);
}

static int fullest(const struct items *k)
{
    int most = 0;
    for (int i = 1; i < k->n; i++)
        if (k->key[i].bytes > k->key[most].bytes)
            most = i;
    return most;
}

static void keep(struct items *k, struct tenant *t, const char *id, char *text)
{
    int i = t->index;
    json_t *v = json_string(text);
    int64_t bytes = v ? bytes_of(id, v) : 0;
    if (!v || bytes > k->most) {
        json_decref(v);
        return;
    }
    if (!k->key[i].items)
        k->key[i].items = json_object();
    drop(k, i, id);
    while (k->key[i].bytes && (k->key[i].bytes + bytes > k->most ||
                               !account_has_room(k->s, t, bytes)))
        drop_oldest(k, i);
    while (k->bytes + bytes > KEYS_FULL * k->most)
        drop_oldest(k, fullest(k));
    if (!account_has_room(k->s, t, bytes))
        json_decref(v);
    else if (!json_object_set_new(k->key[i].items, id, v))
        count(k, i, bytes);
}

void items_keep(struct items *k, struct tenant *t, const json_t *list)
{
    const json_t *item;
    size_t i;
    json_array_foreach(list, i, item)
    {
        const char *id = json_string_value(json_object_get(item, "id"));
        char *text = id ? json_exact(item) : NULL;
        struct turn *mine = work_leave(); /* the lock is held */
        pthread_mutex_lock(&k->lock);
        if (text)
            keep(k, t, id, text);
        pthread_mutex_unlock(&k->lock);
        work_return(mine);
        free(text);
    }
}

json_t *items_find(struct items *k, struct tenant *t, const char *id, struct fault *f)
{
    json_t *item = NULL;
    struct turn *mine = work_leave(); /* the lock is held */
    pthread_mutex_lock(&k->lock);
    json_t *all = k->key[t->index].items, *text = json_incref(json_object_get(all, id));
    if (text) {
        json_object_del(all, id);
        if (json_object_set(all, id, text))
            count(k, t->index, -bytes_of(id, text));
    }
    pthread_mutex_unlock(&k->lock);
    work_return(mine);
    if (text)
        item = json_read(json_string_value(text), json_string_length(text), f);
    else
        f->http = 0;
    json_decref(text);
    return item;
}
