/* fuzz_container.c: .kvc files from any bytes. The first byte's two low bits say how far they are
 * mended, to get past the hashes: 0 not at all; 1 every check, as the records stand; 2 the index
 * and the footer as well. */
#include "tests/fuzz/mend.h"

#include "formats/container/salvage.h"

static void walk(const struct kvc_cache *c, size_t choice) {
    struct kvc_error e;
    struct kvc_record_info info;
    struct kvc_section section[8];
    uint64_t digest;
    for (uint64_t i = 0; i < kvc_container_records(c); i++)
        kvc_container_record(c, i, &info, section, 8, &e);
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (!kvc_container_stored(c, t) != !kvc_tensor_part(c, t)->cells.n ||
            !*kvc_container_pipeline(c, t))
            fuzz_die("a tensor without records or pipeline", NULL);
    if (!fuzz_is_small(c)) return;
    int readable = fuzz_read(c, &digest, &e) == 0, rest = kvc_container_check_rest(c, &e) == 0;
    if (kvc_container_check(c, 1, &e)) return;
    if (!readable || !rest) fuzz_die("a checked file cannot be read", &e);
    fuzz_round_trip(c, digest, NULL, 0, choice);
    fuzz_export(c, choice);
}

/* The same bytes as a damaged file: what can be read must be what the survey calls whole. */
static void salvage(const struct kvc_input *in) {
    struct kvc_error e;
    struct kvc_cache *c = kvc_salvage_open(in, &e);
    if (!c) return;
    if (!kvc_salvage_refusal(c)) kvc_container_set_profile(c, NULL);
    if (kvc_salvage_refusal(c) || fuzz_is_small(c)) {
        const struct kvc_survey *s = kvc_salvage_survey(c, 1, &e);
        uint64_t digest;
        if (s && !kvc_salvage_refusal(c) && !s->no_source &&
            kvc_survey_all_whole(s, c) != !fuzz_read(c, &digest, &e))
            fuzz_die("what is whole cannot be read, or the other way round", &e);
    }
    kvc_cache_free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct kvc_input in;
    struct kvc_error e;
    if (!size) return 0;
    struct file f = mend(data + 1, size - 1, (data[0] & 3) % MODES);
    kvc_input_memory(&in, "input", f.data, f.size);
    struct kvc_cache *c = kvc_container_open(&in, &e);
    if (c) kvc_container_set_profile(c, NULL); /* of the file itself */
    if (c) walk(c, size);
    else if (!*e.message) fuzz_die("refused without a word", NULL);
    kvc_cache_free(c);
    salvage(&in);
    kvc_input_close(&in);
    free(f.data);
    return 0;
}
