/* kld_text.h: what a KL divergence means, in a phrase. kvc-quality(7) has the measurements. Not for
 * measuring it. */
#ifndef KVC_KLD_TEXT_H
#define KVC_KLD_TEXT_H

#include <stddef.h>

/* Of what distributions: predictions of the next token, or the attention of a query. Figures of the
 * two cannot be compared. */
enum cli_kld { CLI_KLD_TOKENS, CLI_KLD_ATTENTION };

/* Writes a phrase about a divergence of `nats`, above 0, into `text`. Returns `text`. */
const char *cli_kld_text(enum cli_kld of, double nats, char *text, size_t size);

#endif
