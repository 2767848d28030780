/* rate.h: the step of the stage `code` from what is asked for: a KLD, a ratio, an error. Not for
 * recipes (codecs/recipe.h) or coding (writer.c). */
#ifndef KVC_RATE_H
#define KVC_RATE_H

#include "formats/container/container.h"

/* The target. At most one field is not 0. */
struct kvc_rate {
    /* nats: drift of the next-token distributions, at the worst of continuation and recall */
    double kld;
    double ratio;        /* of row_bytes against the .kvc */
    double output_error; /* of attention outputs: kvc_attention_output() at 0.99 */
    double logit_error;  /* of logits: kvc_attention_logit_rms() */
    uint64_t row_bytes;
};

/* The settled step and its measures. */
struct kvc_rate_report {
    double step; /* 0: the recipe has no stage `code` */
    /* estimates: of the text's own continuation, of recall; 0: without a profile of metric fisher
     */
    double kld[2];
    double ratio; /* reached, if the target is a ratio; else 0 */
    double error; /* reached, if the target is an error; else 0 */
};

/* Sets *settled to the recipe of `options` with its step settled. Steps that the recipe gives stay,
 * unless `rate` asks for something; a ratio or an error is bisected, which encodes the cache some
 * ten times. Refuses what cannot be met, saying what can. A recipe without the stage `code` is
 * copied, and refused where `rate` asks for something. */
int kvc_rate_settle(const struct kvc_cache *c, const struct kvc_pack_options *options,
                    const struct kvc_rate *rate, struct kvc_recipe *settled,
                    struct kvc_rate_report *report, struct kvc_error *e);

#endif
