/* stage.c: reads and prints the arguments of a stage. */
#include "codecs/stage.h"

int kvc_stage_parse(const struct kvc_stage *stage, const char *text, struct kvc_stage_args *args,
                    struct kvc_error *e) {
    if (kvc_args_parse(stage->name, stage->args, stage->n_args, text, args, e)) return -1;
    return stage->check ? stage->check(args, e) : 0;
}

int kvc_stage_append(char *text, size_t size, const struct kvc_stage *stage,
                     const struct kvc_stage_args *args) {
    char buffer[KVC_MAX_ARGS];
    kvc_args_print(stage->args, stage->n_args, args, buffer, sizeof buffer);
    if (kvc_text_append(text, size, stage->name)) return -1;
    if (!*buffer) return 0;
    if (kvc_text_append(text, size, ":") || kvc_text_append(text, size, buffer)) return -1;
    return 0;
}

unsigned kvc_stage_profile_need(const struct kvc_stage *stage, int predicts) {
    const int ahead = stage->flags & KVC_STAGE_AHEAD, profile = stage->flags & KVC_STAGE_PROFILE;
    unsigned use = 0;
    if (profile && (!ahead || predicts)) use |= KVC_PROFILE_DECODES;
    if (stage->flags & KVC_STAGE_QUERIES || (profile && !ahead)) use |= KVC_PROFILE_ENCODES;
    return use;
}
