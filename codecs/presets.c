/* presets.c: the papers' recipes. Where their numbers come from: man/kvc-recipes.7. */
#include "codecs/presets.h"

#include <string.h>

/* KIVI keeps the last 64 tokens, and of K also those that fill no group of 64. */
#define KIVI_TAIL "tail:64@v,tail:64:whole=64@k,"
/* GEAR's program does so with V too. */
#define GEAR_TAIL "tail:64:whole=64,"
#define GEAR(bits) GEAR_TAIL "outlier:0.02,quant:kivi:bits=" bits ",lowrank:r=4"
#define GEAR_L(bits) GEAR_TAIL "quant:kivi:bits=" bits ",lowrank:r=4"

/* The transform codec: the KL divergence per token sets one step for the whole cache. Sinks stay
 * exact; the last tokens get fine steps. */
#define TRANSFORM(kld) "sink:4,derope@k,predict,center,basis,steps,code:kld=" kld

static const struct kvc_preset table[] = {
    {"kivi2", KIVI_TAIL "quant:kivi:bits=2", "KIVI, 2 bits, groups of 64"},
    {"kivi4", KIVI_TAIL "quant:kivi:bits=4", "KIVI, 4 bits, groups of 64"},
    {"gear", GEAR("2"), "GEAR: KIVI-2, 2 % outliers, rank 4"},
    {"gear4", GEAR("4"), "GEAR: KIVI-4, 2 % outliers, rank 4"},
    {"gear-l", GEAR_L("2"), "GEAR-L: KIVI-2, rank 4"},
    {"gear-l4", GEAR_L("4"), "GEAR-L: KIVI-4, rank 4"},
    {"kcvt4", "tail:20,quant:kcvt:bits=4", "KCVT: whole channels of K, whole tokens of V, 4 bits"},
    {"zipcache", "saliency:0.6,quant:zip:bits=4",
     "ZipCache: 60 % salient tokens at 4 bits, the others at 2"},
    {"think", "tail:32@k,prune:k=0.4@k", "ThinK: 40 % of K's channels left out"},
    {"think-kivi", KIVI_TAIL "prune:k=0.4@k,quant:kivi:bits=4", "ThinK with KIVI-4"},
    {"minicache", "merge:slerp",
     "MiniCache: layers of the upper half in pairs, 5 % of tokens kept"},
    {"minicache-kivi4", KIVI_TAIL "merge:slerp,quant:kivi:bits=4", "MiniCache with KIVI-4"},
    {"near-lossless", TRANSFORM("0.003"), "transform codec: drift of a KLD of about 0.003"},
    {"small", TRANSFORM("0.01"), "transform codec: of about 0.01"},
    {"tiny", TRANSFORM("0.03"), "transform codec: of about 0.03"},
    {"hidden", "project:hidden",
     "Hidden-State cache: K and V out of hidden states; needs --weights"},
};

#define N (sizeof table / sizeof table[0])

const struct kvc_preset *kvc_preset_at(size_t i) {
    return i < N ? &table[i] : NULL;
}

const struct kvc_preset *kvc_preset_find(const char *name, size_t length) {
    for (size_t i = 0; i < N; i++)
        if (strlen(table[i].name) == length && memcmp(table[i].name, name, length) == 0)
            return &table[i];
    return NULL;
}
