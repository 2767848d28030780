/* near.c: the distance of names, in slips of typing. */
#include "codecs/near.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define LONGEST 32 /* names beyond this are not compared */

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

static int same(char a, char b) {
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Letters to insert, leave out, replace or swap with their neighbour. */
static size_t distance(const char *a, size_t n, const char *b, size_t m) {
    size_t row[LONGEST + 1][LONGEST + 1];
    for (size_t i = 0; i <= n; i++)
        for (size_t j = 0; j <= m; j++) {
            if (!i || !j) {
                row[i][j] = i + j;
                continue;
            }
            row[i][j] = least(least(row[i - 1][j], row[i][j - 1]) + 1,
                              row[i - 1][j - 1] + !same(a[i - 1], b[j - 1]));
            if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
                row[i][j] = least(row[i][j], row[i - 2][j - 2] + 1);
        }
    return row[n][m];
}

/* Returns the distance, or FAR. A name that begins with the word has the distance 0. */
enum { FAR = 3 };

static unsigned slips(const char *word, const char *name) {
    const size_t n = strlen(word), m = strlen(name);
    if (n < 2 || n > LONGEST || m > LONGEST) return FAR;
    if (strncasecmp(word, name, n) == 0) return 0;
    const size_t d = distance(word, n, name, m);
    return d <= (n < 6 ? 1 : 2) ? (unsigned)d : FAR;
}

void kvc_near_offer(struct kvc_near *n, const char *name) {
    const unsigned d = slips(n->word, name);
    if (d == FAR || (*n->text && d > n->slips)) return;
    if (d < n->slips) *n->text = '\0';
    const size_t used = strlen(n->text);
    if (used + strlen(name) + 3 > sizeof n->text) return;
    n->slips = d;
    snprintf(n->text + used, sizeof n->text - used, "%s%s", used ? ", " : "", name);
}
