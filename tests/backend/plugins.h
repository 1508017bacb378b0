/* plugins.h -- tests lie in a folder of their own, build/tests: kernels of GPUs are one above. */
#ifndef PITH_TESTS_BACKEND_PLUGINS_H
#define PITH_TESTS_BACKEND_PLUGINS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The folder of this program. */
static void test_folder(char *out, size_t cap)
{
    ssize_t n = readlink("/proc/self/exe", out, cap - 1);
    out[n > 0 ? n : 0] = 0;
    char *slash = strrchr(out, '/');
    if (slash)
        *slash = 0;
}

static void plugins_use(void)
{
    char own[512], folder[600];
    test_folder(own, sizeof own);
    snprintf(folder, sizeof folder, "%s/..", own);
    setenv("PITH_PLUGINS", folder, 0);
}

#endif
