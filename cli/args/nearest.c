/* nearest.c -- the word that somebody may have meant. */
#include <string.h>

#include "cli/args/args.h"

static int min3(int a, int b, int c)
{
    a = a < b ? a : b;
    return a < c ? a : c;
}

/* Insertions, deletions and replacements from a to b; only the first 63 bytes of b count. */
static int distance(const char *a, const char *b)
{
    enum { MAX = 64 };
    int row[MAX], n = (int)strnlen(b, MAX - 1);
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 0; a[i] && i < MAX; i++) {
        int diagonal = row[0];
        row[0] = i + 1;
        for (int j = 0; j < n; j++) {
            int here = min3(row[j] + 1, row[j + 1] + 1, diagonal + (a[i] != b[j]));
            diagonal = row[j + 1];
            row[j + 1] = here;
        }
    }
    return row[n];
}

const char *args_nearest(const char *word, const char *const *candidates)
{
    size_t n = strlen(word);
    const char *best = NULL;
    /* As many slips as a typo may have, and fewer than the word is long. */
    size_t letters = n - (word[0] == '-' ? strspn(word, "-") : 0);
    int least = letters < n ? (letters < 4 ? 1 : letters < 6 ? 2 : 3) : n < 6 ? 2 : 3;
    if (least >= (int)n)
        least = (int)n - 1;
    for (; *candidates; candidates++) {
        int d = distance(word, *candidates);
        size_t len = strlen(*candidates), common = len < n ? len : n;
        size_t least_common = word[0] == '-' ? 4 : 3;
        /* "ben" for "bench"; "--temperature" for "--temp", which itself is nearer */
        if (d > 0 && common >= least_common && !memcmp(word, *candidates, common))
            d = len >= n ? 1 : d < 2 ? d : 2;
        if (d <= least) {
            least = d - 1; /* the first of equals */
            best = *candidates;
        }
    }
    return best;
}
