/* device.c -- what backends of GPUs have in common before there is a job: the driver's library, the
 * lists in the environment, devices that are kept for the next who opens them. */
#include "backend/gpu/gpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/env.h"

pith_status gpu_library(const struct gpu_library *l, void **lib, void **first, const char **file,
                        struct pith_error *err)
{
    *file = env_get(l->env);
    if (!*file)
        *file = l->file;
    /* It stays: what it has begun would not survive its going. */
    *lib = dlopen(*file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!*lib)
        return error_set(err, PITH_DEVICE, "%s: %.400s cannot be opened: %.400s", l->of, *file,
                         dlerror());
    *first = dlsym(*lib, l->function);
    if (*first)
        return PITH_OK;
    dlclose(*lib);
    return error_set(err, PITH_DEVICE, "%s: %.400s is no %s: it has no %s", l->of, *file, l->what,
                     l->function);
}

int gpu_in_list(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; at && (at = strstr(at, name)) != NULL; at += n)
        if ((at == list || at[-1] == ',') && (!at[n] || at[n] == ','))
            return 1;
    return 0;
}

int gpu_masked(const char *env, const char *name)
{
    return gpu_in_list(env_get(env), name);
}

void gpu_optional(struct device *d, const char *env, const char *name, int has)
{
    size_t n = strlen(d->lacks);
    if (!has || gpu_masked(env, name))
        snprintf(d->lacks + n, sizeof d->lacks - n, "%s%s%s%s%s", n ? ", " : "", name,
                 has ? " (" : "", has ? env : "", has ? ")" : "");
}

int gpu_park(struct gpu_parked *p, void *device, uint64_t key)
{
    int i = 0;
    pthread_mutex_lock(&p->lock);
    while (i < MAX_DEVICES && p->device[i])
        i++;
    if (i < MAX_DEVICES) {
        p->device[i] = device;
        p->key[i] = key;
    }
    pthread_mutex_unlock(&p->lock);
    return i < MAX_DEVICES;
}

void *gpu_unpark(struct gpu_parked *p, const uint64_t *key)
{
    void *device = NULL;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < MAX_DEVICES && !device; i++)
        if (p->device[i] && (!key || p->key[i] == *key)) {
            device = p->device[i];
            p->device[i] = NULL;
        }
    pthread_mutex_unlock(&p->lock);
    return device;
}

/* ---------------------------------------------------------------- kernels that are tried */

int gpu_without(struct gpu_levels *all, int tries, int *left, int n, int for_good,
                const char **names)
{
    int before = all->left, known = !n || (tries && n > 0 && n <= all->n);
    while (known && for_good && n > before && !atomic_compare_exchange_weak(&all->left, &before, n))
        ;
    if (known)
        *left = n > all->left ? n : all->left;
    *names = !known ? NULL : n ? all->list[n - 1] : "";
    return all->left;
}

int gpu_left_out(const struct gpu_levels *all, int left, const char *name)
{
    int is = 0;
    for (int i = 0; i < left; i++)
        is |= gpu_in_list(all->list[i], name);
    return is;
}

/* ---------------------------------------------------------------- lists of devices */

/* The numbers of a list, at most `cap` of them; -1: it is none. */
static int read_list(const char *text, long *out, int cap)
{
    for (int n = 0; n < cap;) {
        char *end;
        errno = 0;
        out[n] = strtol(text, &end, 10);
        if (end == text || *text < '0' || *text > '9' || errno || (*end && *end != ','))
            return -1;
        n++;
        if (!*end)
            return n;
        text = end + 1;
    }
    return -1;
}

long gpu_listed(const char *name, int i)
{
    long list[MAX_DEVICES - 1];
    const char *text = env_get(name);
    if (!text)
        return i;
    return i < read_list(text, list, MAX_DEVICES - 1) ? list[i] : -1;
}

int gpu_n_listed(const char *name, struct pith_error *err)
{
    long list[MAX_DEVICES - 1];
    const char *text = env_get(name);
    int n = text ? read_list(text, list, MAX_DEVICES - 1) : 0;
    if (n < 0)
        error_set(err, PITH_RANGE,
                  "%s is \"%.80s\"; wanted at most %d numbers of devices, from 0, with commas "
                  "between them (0,0 opens the first one twice)",
                  name, text, MAX_DEVICES - 1);
    return n;
}
