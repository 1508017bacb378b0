/* energy.h -- what the processors have taken, where the system tells. */
#ifndef PITH_CLI_ENERGY_H
#define PITH_CLI_ENERGY_H

#include <stdint.h>

enum { ENERGY_PACKAGES = 64 };

struct energy {
    int n; /* packages; 0: nothing can be read */
    struct {
        char folder[64], name[64];
        uint64_t at; /* its counter, when it was last read */
    } package[ENERGY_PACKAGES];
    double joules; /* of all packages, between energy_begin and energy_end, added up */
};

/* Finds the packages; none when a counter cannot be read. */
void energy_open(struct energy *e);
/* A stretch that counts. When a counter can no longer be read there are no packages any more. */
void energy_begin(struct energy *e);
void energy_end(struct energy *e);

#endif
