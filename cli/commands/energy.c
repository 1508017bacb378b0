/* energy.c -- see energy.h. Running average power limit (RAPL), as Linux shows it:
 *
 *     class/powercap/intel-rapl:0/name                    "package-0"; of AMD's processors, too
 *     class/powercap/intel-rapl:0/energy_uj               a counter in microjoules
 *     class/powercap/intel-rapl:0/max_energy_range_uj     what it has at most, before it is 0 again
 *
 * under $PITH_SYSFS (tests) or /sys. Domains inside of a package (core, uncore, dram) have names of
 * their own and are left out, and so is a package that another driver shows a second time. As a
 * rule only root may read the counters; who may not gets no figure, and no word about it. A stretch
 * in which a counter goes round twice (20 minutes and more at full power) shows too little.
 *
 * Reference: Linux Documentation/power/powercap/powercap.rst. */
#include "cli/commands/energy.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first line of a package's file; 0: it cannot be read. */
static int read_line(const char *folder, const char *file, char *out, int cap)
{
    const char *sys = getenv("PITH_SYSFS");
    char path[1024];
    int n = snprintf(path, sizeof path, "%s/class/powercap/%s/%s", sys && *sys ? sys : "/sys",
                     folder, file);
    FILE *f = n > 0 && (size_t)n < sizeof path ? fopen(path, "r") : NULL;
    int ok = f && fgets(out, cap, f) != NULL;
    if (f)
        fclose(f);
    if (ok)
        out[strcspn(out, "\n")] = 0;
    return ok;
}

/* 0: it is no such number. */
static int read_number(const char *folder, const char *file, uint64_t *out)
{
    char text[64], *end;
    if (!read_line(folder, file, text, sizeof text) || text[0] < '0' || text[0] > '9')
        return 0;
    *out = strtoull(text, &end, 10);
    return *end == 0;
}

/* Reads all counters; what they have grown by, around the end of their range, is added where it
 * counts. */
static void sample(struct energy *e, int counts)
{
    double sum = 0;
    for (int i = 0; i < e->n; i++) {
        const char *folder = e->package[i].folder;
        uint64_t now, range, was = e->package[i].at;
        if (!read_number(folder, "energy_uj", &now) ||
            !read_number(folder, "max_energy_range_uj", &range)) {
            e->n = 0;
            return;
        }
        sum += (double)(now >= was ? now - was : range >= was ? range - was + now : now);
        e->package[i].at = now;
    }
    if (counts)
        e->joules += 1e-6 * sum;
}

static void add_package(struct energy *e, const char *folder)
{
    char name[sizeof e->package[0].name];
    if (strncmp(folder, "intel-rapl", 10) != 0 || strlen(folder) >= sizeof e->package[0].folder ||
        e->n == ENERGY_PACKAGES || !read_line(folder, "name", name, sizeof name) ||
        strncmp(name, "package-", 8) != 0)
        return;
    for (int i = 0; i < e->n; i++) {
        if (!strcmp(e->package[i].name, name))
            return;
    }
    strcpy(e->package[e->n].folder, folder);
    strcpy(e->package[e->n++].name, name);
}

void energy_open(struct energy *e)
{
    const char *sys = getenv("PITH_SYSFS");
    char path[1024];
    *e = (struct energy){0};
    int n = snprintf(path, sizeof path, "%s/class/powercap", sys && *sys ? sys : "/sys");
    DIR *d = n > 0 && (size_t)n < sizeof path ? opendir(path) : NULL;
    for (const struct dirent *f; d && (f = readdir(d));)
        add_package(e, f->d_name);
    if (d)
        closedir(d);
    sample(e, 0);
}

void energy_begin(struct energy *e)
{
    sample(e, 0);
}

void energy_end(struct energy *e)
{
    sample(e, 1);
}
