/* kld_text.c: what a KL divergence means, in a phrase. */
#include "cli/kld_text.h"

#include <math.h>
#include <stdio.h>

/* Greedy answers of 64 tokens by their KLD, kvc-quality(7): the percent that stay whole, and of how
 * many most likely tokens one is another. */
static const struct {
    double below; /* nats */
    unsigned whole, one_in;
} answers[] = {{0.0003, 89, 500}, {0.001, 57, 110}, {0.003, 38, 50},         {0.01, 21, 30},
               {0.03, 2, 17},     {0.1, 0, 9},      {(double)INFINITY, 0, 4}};

const char *cli_kld_text(enum cli_kld of, double nats, char *text, size_t size) {
    unsigned i = 0;
    if (of == CLI_KLD_ATTENTION) {
        /* Pinsker's inequality; the mean of roots is at most the root of the mean. */
        snprintf(text, size, "at most %.3g %% of the attention moves to other tokens, on average",
                 fmin(100, 100 * sqrt(nats / 2)));
        return text;
    }
    while (nats >= answers[i].below) i++;
    snprintf(text, size,
             "where this was measured, %u %% of greedy answers of 64 tokens stay whole, and one in "
             "%u of the most likely "
             "tokens is another",
             answers[i].whole, answers[i].one_in);
    return text;
}
