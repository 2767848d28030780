/* pipeline.c: the stages of a pipeline: which may follow which, what they accept, their text. Not
 * for running them (pipeline_encode.c, pipeline_decode.c) or for recipes (recipe.c). */
#include "codecs/pipeline.h"

#include "codecs/floats.h"

int kvc_pipeline_print(const struct kvc_pipeline *pipeline, char *text, size_t size) {
    if (!size) return -1;
    *text = '\0';
    for (unsigned i = 0; i < pipeline->n; i++)
        if ((i && kvc_text_append(text, size, ",")) ||
            kvc_stage_append(text, size, pipeline->step[i].stage, &pipeline->step[i].args))
            return -1;
    return 0;
}

int kvc_pipeline_same(const struct kvc_pipeline *a, const struct kvc_pipeline *b) {
    if (a->n != b->n) return 0;
    for (unsigned i = 0; i < a->n; i++)
        if (a->step[i].stage != b->step[i].stage ||
            !kvc_args_same(&a->step[i].args, &b->step[i].args))
            return 0;
    return 1;
}

int kvc_pipeline_lossless(const struct kvc_pipeline *pipeline) {
    for (unsigned i = 0; i < pipeline->n; i++)
        if (!(pipeline->step[i].stage->flags & KVC_STAGE_LOSSLESS)) return 0;
    return 1;
}

unsigned kvc_pipeline_first(const struct kvc_pipeline *pipeline, unsigned flags) {
    unsigned i = 0;
    while (i < pipeline->n && !(pipeline->step[i].stage->flags & flags)) i++;
    return i;
}

unsigned kvc_pipeline_profile_need(const struct kvc_pipeline *pipeline, int predicts) {
    unsigned use = 0;
    for (unsigned i = 0; i < pipeline->n; i++)
        use |= kvc_stage_profile_need(pipeline->step[i].stage, predicts);
    return use;
}

int kvc_pipeline_check(const struct kvc_pipeline *pipeline, struct kvc_error *e) {
    const unsigned pair = kvc_pipeline_first(pipeline, KVC_STAGE_PAIR);
    for (unsigned i = 0; i < pipeline->n; i++) {
        const struct kvc_stage *s = pipeline->step[i].stage;
        const int last = i + 1 == pipeline->n, ends = (s->flags & KVC_STAGE_TERMINAL) != 0;
        if (ends != last && !(last && s->flags & KVC_STAGE_RESIDUAL))
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            ends ? "stage %s is terminal, and another follows it"
                                 : "stage %s is not terminal, and none follows it",
                            s->name);
        if (i < pair && pair < pipeline->n && s->flags & KVC_STAGE_LOOKS)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s cannot come before %s: put it after",
                            s->name, pipeline->step[pair].stage->name);
        const unsigned asks = kvc_pipeline_first(pipeline,
                                                 KVC_STAGE_REBUILDS | KVC_STAGE_POSITIONS);
        if (s->flags & KVC_STAGE_TAKES && asks < i)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s cannot come after %s: put it before",
                            s->name, pipeline->step[asks].stage->name);
        for (unsigned k = 0; k < i; k++)
            if (s->flags & KVC_STAGE_POSITIONS && pipeline->step[k].stage == s)
                return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s occurs twice in the recipe", s->name);
        const unsigned ahead = kvc_pipeline_first(pipeline, KVC_STAGE_AHEAD);
        if (i > ahead && s->flags & KVC_STAGE_AHEAD)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s and %s both predict: leave one of them out",
                            pipeline->step[ahead].stage->name, s->name);
        if (i == ahead && !(s->flags & KVC_STAGE_TERMINAL) && pair < pipeline->n)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "%s does not predict layers that %s merges: leave one of them out",
                            s->name, pipeline->step[pair].stage->name);
        const unsigned narrows = kvc_pipeline_first(pipeline, KVC_STAGE_NARROWS);
        if (i > narrows && s->flags & (KVC_STAGE_POSITIONS | KVC_STAGE_PROFILE | KVC_STAGE_AHEAD |
                                       KVC_STAGE_REBUILDS))
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s cannot come after %s: put it before",
                            s->name, pipeline->step[narrows].stage->name);
        if (i > pair && s->flags & KVC_STAGE_PAIR)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s occurs twice in the recipe", s->name);
    }
    return 0;
}

int kvc_pipeline_accepts(const struct kvc_pipeline *pipeline, const struct kvc_shape *shape,
                         struct kvc_error *e) {
    for (unsigned i = 0; i < pipeline->n; i++) {
        const struct kvc_stage *s = pipeline->step[i].stage;
        if (s->flags & (KVC_STAGE_FLOAT | KVC_STAGE_FINITE) && !kvc_is_float(shape->dtype)) {
            kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s takes f32, f16 and bf16, not %s", s->name,
                     kvc_dtype_info(shape->dtype)->name);
            return 0;
        }
        if (s->accepts && !s->accepts(&pipeline->step[i].args, shape, e)) {
            kvc_error_prefix(e, s->name);
            return 0;
        }
    }
    return 1;
}
