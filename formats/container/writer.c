/* writer.c: writes a cache as a .kvc container: settles plan, profile and metadata, calls for the
 * records in order, and encodes the blocks. Spec: FORMAT.md. Not for the sections of other records
 * (write_sections.c).
 *
 * Several threads encode runs of blocks, each run into finished records in memory. The calling
 * thread is one of them, and writes the runs in order, so the bytes do not depend on the number of
 * threads. */
#include "formats/model/layer_rope.h"
#include "formats/model/predictor.h"
#include "formats/container/container.h"

#include "codecs/float_env.h"
#include "codecs/memory.h"
#include "formats/cache/keys.h"
#include "formats/container/device_blocks.h"
#include "formats/cache/prefix_space.h"
#include "formats/cache/shards.h"
#include "formats/cache/values.h"
#include "formats/cache/view.h"
#include "formats/container/base_blocks.h"
#include "formats/container/encode.h"
#include "formats/container/offsets.h"
#include "formats/container/records.h"
#include "formats/container/write_sections.h"
#include "formats/io/parallel.h"
#include "kernels/kernels.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- blocks that are copied: a record names its tensor and its number, and its digest counts
 * rows, so it is valid in every container in which these are the same --- */

/* Returns 1 if a block depends on its own rows only, and not on other blocks, a profile or the
 * number of all rows. */
static int codes_blocks_alone(const struct kvc_pipeline *line) {
    return !kvc_pipeline_has(line, KVC_STAGE_LOOKS | KVC_STAGE_PAIR | KVC_STAGE_TAKES |
                                       KVC_STAGE_REBUILDS | KVC_STAGE_PROFILE | KVC_STAGE_AHEAD);
}

/* Returns 1 if blocks of a tensor of `from` mean the same as blocks of the tensor of this number of
 * `c`. */
static int is_alike(const struct kvc_cache *c, const struct kvc_plan *plan,
                    const struct kvc_cache *from, uint32_t tensor) {
    const struct kvc_records *k = from ? kvc_records_of(from) : NULL;
    if (!k || tensor >= from->n_tensors) return 0;
    const struct kvc_pipeline *line = kvc_plan_pipeline(plan, tensor);
    const struct kvc_tensor *x = &c->tensor[tensor], *y = &from->tensor[tensor];
    const struct kvc_layer *layer = &c->layer[x->layer], *other = &from->layer[y->layer];
    const struct kvc_shape *s = &x->shape, *r = &k->shape[tensor];
    return codes_blocks_alone(line) && kvc_pipeline_same(line, kvc_records_pipeline(k, tensor)) &&
           x->role == y->role && layer->part == other->part && layer->index == other->index &&
           s->dtype == r->dtype && s->heads == r->heads && s->dim == r->dim;
}

static uint64_t reuse_blocks(const struct kvc_cache *c, const struct kvc_plan *plan,
                             const struct kvc_cache *from, uint32_t tensor) {
    if (!is_alike(c, plan, from, tensor)) return 0;
    const struct kvc_cells *cells = kvc_tensor_cells(c, tensor),
                           *had = kvc_tensor_cells(from, tensor);
    uint64_t n = 0;
    while (n < had->n_blocks && n < cells->n_blocks && cells->block[n + 1] == had->block[n + 1])
        n++;
    return n;
}

static int reuse_check(const struct kvc_cache *c, const struct kvc_plan *plan,
                       const struct kvc_cache *from, struct kvc_error *e) {
    const uint32_t unknown = from ? kvc_records_of(from)->header.writers : 0;
    if (unknown)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "copying its blocks needs features %08" PRIx32
                        " of a newer kvc (header, bytes 20 to 23): join the original files",
                        unknown);
    for (uint32_t t = 0; from && t < c->n_tensors && t < from->n_tensors; t++) {
        const uint64_t had = kvc_tensor_cells(from, t)->n_blocks;
        char label[64];
        if (kvc_pipeline_lossless(kvc_plan_pipeline(plan, t))) continue;
        /* the last block may grow */
        if (is_alike(c, plan, from, t) && reuse_blocks(c, plan, from, t) + 1 >= had) continue;
        kvc_tensor_label(c, t, label, sizeof label);
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "%s: its blocks are coded with loss and not each alone, so they cannot be "
                        "copied, and coding them again would add "
                        "to the loss: join the original files",
                        label);
    }
    return 0;
}

/* --- the writer --- */

struct writer {
    const struct kvc_cache *cache;
    struct kvc_pack_options options; /* the caller's; its queries may be made here */
    struct kvc_record_writer records;
    struct kvc_plan plan;
    struct kvc_encode encode;
    struct kvc_projections projections;
    struct kvc_shared *shared; /* by layer, n_shared of them made */
    uint32_t n_shared;
    uint64_t *left;      /* by layer: runs not yet written */
    uint32_t *first_run; /* by tensor: number of its first run; n_tensors + 1 entries */
    struct kvc_pack_report report;
    double squares[2][2];        /* of K and V: of the source, of the errors */
    uint64_t done;               /* tensor bytes written so far */
    struct kvc_rope_facts *turn; /* by tensor, as struct kvc_encode has it */
    double **angles;             /* owned; NULL: of the profile, or none */
};

/* --- blocks --- */

static void discard_run(void *result) {
    struct kvc_run *run = result;
    free(run->buffer.data);
    free(run);
}

static uint32_t tensor_of_run(const struct writer *w, uint64_t item) {
    uint32_t low = 0, high = w->cache->n_tensors;
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (w->first_run[mid] <= item) low = mid;
        else high = mid;
    }
    return low;
}

static int copy_block(const struct writer *w, uint32_t tensor, uint64_t block, struct kvc_run *run,
                      struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_tensor_cells(w->cache, tensor);
    run->bytes += (cells->block[block + 1] - cells->block[block]) *
                  kvc_row_bytes(&w->cache->tensor[tensor].shape);
    return kvc_base_copy_block(w->options.reuse, tensor, block, &run->buffer, e);
}

static int encode_run(void *state, uint64_t item, void **result, struct kvc_error *e) {
    const struct writer *w = state;
    const uint32_t tensor = tensor_of_run(w, item);
    const uint64_t blocks = kvc_tensor_cells(w->cache, tensor)->n_blocks;
    const uint64_t each = kvc_encode_run_blocks(&w->encode, tensor);
    uint64_t block = (item - w->first_run[tensor]) * each;
    struct kvc_run *run = calloc(1, sizeof *run);
    if (!run) return kvc_fail_memory(e, "a run of blocks");
    const uint64_t end = block + each < blocks ? block + each : blocks;
    const uint64_t had = reuse_blocks(w->cache, &w->plan, w->options.reuse, tensor),
                   copied = had < end ? had : end;
    int status = 0;
    for (; block < copied && !status; block++) status = copy_block(w, tensor, block, run, e);
    if (status || (block < end && kvc_encode_run(&w->encode, tensor, block, end, run, e))) {
        char label[64];
        kvc_tensor_label(w->cache, tensor, label, sizeof label);
        kvc_error_prefix(e, label);
        discard_run(run);
        return -1;
    }
    *result = run;
    return 0;
}

/* Returns the layer: runs of a layer follow each other, because they share results. */
static uint32_t layer_of_run(const void *state, uint64_t item) {
    const struct writer *w = state;
    return w->cache->tensor[tensor_of_run(w, item)].layer;
}

/* Frees the data that a layer's tensors share when the last of them is done. */
static void forget_shared(struct writer *w, uint32_t layer) {
    if (--w->left[layer]) return;
    free(w->shared[layer].bytes);
    w->shared[layer].bytes = NULL;
}

static int commit_run(void *state, uint64_t item, void *result, struct kvc_error *e) {
    struct writer *w = state;
    struct kvc_run *run = result;
    int status = 0;
    forget_shared(w, layer_of_run(w, item));
    for (size_t at = 0; at < run->buffer.n && !status;) {
        size_t size = (size_t)get_u32(run->buffer.data + at + 4) * KVC_UNIT;
        status = kvc_write_padding(&w->records, e) ||
                 kvc_write_records(&w->records, run->buffer.data + at, size, e);
        at += size;
    }
    w->report.same_rows += run->same_rows;
    const enum kvc_role role = w->cache->tensor[tensor_of_run(w, item)].role;
    if (role == KVC_ROLE_K || role == KVC_ROLE_V) {
        w->squares[role][0] += run->source_squares;
        w->squares[role][1] += run->error_squares;
    }
    w->done += run->bytes;
    if (!status && w->options.progress)
        w->options.progress(w->options.progress_state, w->done, w->report.tensor_bytes);
    discard_run(run);
    return status ? -1 : 0;
}

static int write_blocks(struct writer *w, struct kvc_error *e) {
    struct kvc_job job = {.work = encode_run,
                          .commit = commit_run,
                          .discard = discard_run,
                          .state = w};
    /* tensors of a closed loop wait for those before */
    for (uint32_t i = 0; i < w->plan.n_pipelines && !w->encode.loop; i++)
        if (kvc_pipeline_has(&w->plan.pipeline[i], KVC_STAGE_LOOKS)) job.group = layer_of_run;
    for (uint32_t t = 0; t < w->cache->n_tensors; t++) {
        const uint64_t each = kvc_encode_run_blocks(&w->encode, t);
        const uint64_t runs = (kvc_tensor_cells(w->cache, t)->n_blocks + each - 1) / each;
        w->first_run[t] = (uint32_t)job.n;
        w->left[w->cache->tensor[t].layer] += runs;
        job.n += runs;
        if (job.n > UINT32_MAX)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "more blocks than one .kvc can number");
    }
    return kvc_parallel(&job, kvc_cache_threads(w->cache, w->options.threads), e);
}

/* Notes whether rows are coded with the options' profile, which must be of the cache's model, where
 * a stage takes it at all. */
static int check_profile(struct writer *w, struct kvc_error *e) {
    const struct kvc_profile *p = w->options.profile;
    unsigned use = 0;
    if (!p) return 0;
    for (uint32_t i = 0; i < w->plan.n_pipelines; i++)
        use |= kvc_pipeline_profile_need(&w->plan.pipeline[i], kvc_profile_predicts(p));
    w->report.uses_profile = (use & KVC_PROFILE_DECODES) != 0;
    return use && kvc_profile_fits(p, w->cache, e) ? kvc_error_prefix(e, "profile") : 0;
}

/* Leaves the source's private bytes out together with the token ids, because they hold the ids as
 * well. */
static int write_source(struct writer *w, struct kvc_error *e) {
    return w->options.no_tokens ? 0 : kvc_write_source(&w->records, w->cache, e);
}

static int write_profile(struct writer *w, struct kvc_error *e) {
    size_t n;
    if (!w->report.uses_profile || !w->options.embed_profile) return 0;
    const uint8_t *bytes = kvc_profile_bytes(w->options.profile, &n);
    return kvc_write_simple(&w->records, KVC_RECORD_PROFILE, KVC_SECTION_PROFILE, bytes, n, e);
}

static const char *const fit_key[2] = {KVC_KEY_PROFILE_FIT_K, KVC_KEY_PROFILE_FIT_V};

/* Records the profile that decoding needs, and its fit. Removes the profile of an input that was
 * itself packed with one. */
static int name_profile(const struct writer *w, struct kvc_meta *meta, struct kvc_error *e) {
    const struct kvc_profile *p = w->options.profile;
    kvc_meta_remove(meta, KVC_KEY_PROFILE);
    kvc_meta_remove(meta, KVC_KEY_PROFILE_MODEL);
    kvc_meta_remove(meta, KVC_KEY_PROFILE_FIT);
    for (int r = 0; r < 2; r++) kvc_meta_remove(meta, fit_key[r]);
    if (!w->report.uses_profile) return 0;
    static const struct kvc_fit unknown = {.verdict = KVC_FIT_UNKNOWN};
    const struct kvc_fit *fit = w->options.fit ? w->options.fit : &unknown;
    if (kvc_meta_set_text(meta, KVC_KEY_PROFILE_FIT, kvc_fit_name(fit->verdict), e)) return -1;
    for (int r = 0; r < 2; r++)
        if (fit->ratio[r] > 0 &&
            kvc_meta_set_f64(meta, fit_key[r], round(1000 * fit->ratio[r]) / 1000, e))
            return -1;
    if (kvc_meta_set_bytes(meta, KVC_KEY_PROFILE, kvc_profile_sha256(p), KVC_SHA256_BYTES, e))
        return -1;
    return kvc_meta_set_text(meta, KVC_KEY_PROFILE_MODEL, kvc_profile_model(p), e);
}

/* Computes the namespace again, as facts may have changed. It is left out where it cannot be
 * computed. */
static int name_space(const struct writer *w, struct kvc_meta *meta, struct kvc_error *e) {
    const struct kvc_space space = {.lossless = w->plan.lossless};
    uint8_t hash[KVC_KEY_BYTES];
    struct kvc_error why;
    if (!w->options.space && !kvc_meta_find(meta, KVC_KEY_PREFIX_SPACE)) return 0;
    if (kvc_prefix_space(w->cache, meta, &space, hash, &why)) {
        kvc_meta_remove(meta, KVC_KEY_PREFIX_SPACE);
        if (!w->options.space && why.code != KVC_ERR_MEMORY) return 0;
        if (e) *e = why;
        return -1;
    }
    return kvc_meta_set_bytes(meta, KVC_KEY_PREFIX_SPACE, hash, sizeof hash, e);
}

/* Sets the identity of the prefix keys. Keys without the token ids from position 0 on cannot be
 * computed again, so their identity stays as well. */
static int name_identity(const struct kvc_cache *c, struct kvc_meta *meta, struct kvc_error *e) {
    char identity[KVC_IDENTITY_BYTES];
    if (!c->tokens) return 0;
    if (meta->facts.parent ? kvc_prefix_identity(meta, identity, sizeof identity, e)
                           : kvc_prefix_identity_of_model(meta, identity, sizeof identity, e))
        return -1;
    return kvc_meta_set_text(meta, KVC_KEY_PREFIX_IDENTITY, identity, e);
}

/* Removes what confirms a guess of the text. Extras stay with the token ids, which do not tell the
 * whole text without them. */
static int forget_keys(struct kvc_meta *meta) {
    static const char *const keys[] = {KVC_KEY_PREFIX_IDENTITY, KVC_KEY_PREFIX_PARENT,
                                       KVC_KEY_PREFIX_SPACE, KVC_KEY_SHARD_SET};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) kvc_meta_remove(meta, keys[i]);
    return 0;
}

static int writer_describe(const struct writer *w, const char *recipe, struct kvc_meta *meta,
                           struct kvc_error *e) {
    const struct kvc_cache *c = w->cache;
    const struct kvc_base *base = w->options.base;
    if (kvc_meta_copy(meta, &c->meta, e) || kvc_values_pass(meta, e) ||
        (base && kvc_values_keep(meta, &base->from->meta, e)) ||
        kvc_meta_set_text(meta, KVC_KEY_PRODUCER, "kvc " KVC_VERSION, e) ||
        kvc_meta_set_text(meta, KVC_KEY_RECIPE, recipe, e) || name_profile(w, meta, e))
        return -1;
    /* Extras belong to token ids, and tell as much. */
    if (w->options.no_tokens || !c->tokens) kvc_meta_remove(meta, KVC_KEY_PREFIX_EXTRAS);
    if (w->options.no_keys) return forget_keys(meta);
    if (name_identity(c, meta, e) || kvc_shard_name_set(meta, c, e)) return -1;
    return name_space(w, meta, e);
}

/* Returns 1 if a stage of the pipeline undoes the rotation of K. Predictions do, by a profile. */
static int asks_turns(const struct kvc_pipeline *line, int predicts) {
    for (unsigned i = 0; i < line->n; i++) {
        const unsigned flags = line->step[i].stage->flags;
        if (!(flags & (KVC_STAGE_POSITIONS | KVC_STAGE_REBUILDS))) continue;
        if (predicts || !(flags & KVC_STAGE_AHEAD)) return 1;
    }
    return 0;
}

/* Finds how the engine rotated K, if a stage asks that. */
static int find_turns(struct writer *w, struct kvc_error *e) {
    const struct kvc_cache *c = w->cache;
    struct kvc_profile *profile = w->options.profile;
    int asked = 0;
    w->turn = kvc_alloc_zeros((uint64_t)c->n_tensors + 1, sizeof *w->turn);
    w->angles = kvc_alloc_zeros((uint64_t)c->n_tensors + 1, sizeof *w->angles);
    if (!w->turn || !w->angles) return kvc_fail_memory(e, "RoPE");
    for (uint32_t i = 0; i < w->plan.n_pipelines; i++)
        asked |= asks_turns(&w->plan.pipeline[i], profile != NULL);
    for (uint32_t t = 0; t < c->n_tensors && asked; t++) {
        const struct kvc_layer *layer = kvc_tensor_layer(c, t);
        const struct kvc_profile_part *part = NULL;
        struct kvc_rope_facts *turn = &w->turn[t];
        if (c->tensor[t].role != KVC_ROLE_K) continue;
        if (profile && kvc_profile_part(profile, layer->index, KVC_ROLE_K,
                                        c->meta.facts.rope.pairing, 0, &part, e))
            return -1;
        if (kvc_rope_of_layer(c, c->tensor[t].layer, part, turn, &w->angles[t], e)) return -1;
        if (!turn->angle || !turn->half || 2 * turn->half > c->tensor[t].shape.dim)
            *turn = (struct kvc_rope_facts){.half = 0};
    }
    return 0;
}

static int writer_prepare(struct writer *w, struct kvc_cache **own_queries, struct kvc_error *e) {
    const struct kvc_cache *c = w->cache;
    w->first_run = calloc((size_t)c->n_tensors + 1, sizeof *w->first_run);
    w->left = calloc((size_t)c->n_layers + 1, sizeof *w->left);
    w->shared = calloc((size_t)c->n_layers + 1, sizeof *w->shared);
    if (!w->first_run || !w->left || !w->shared) return kvc_fail_memory(e, "the table of tensors");
    for (; w->n_shared < c->n_layers; w->n_shared++)
        if (kvc_shared_init(&w->shared[w->n_shared], e)) return -1;
    int looks = 0;
    for (uint32_t i = 0; i < w->plan.n_pipelines; i++)
        looks |= kvc_pipeline_has(&w->plan.pipeline[i], KVC_STAGE_LOOKS);
    if (looks && !w->options.queries && !(w->options.queries = *own_queries = kvc_view_float(c, e)))
        return -1;
    if (find_turns(w, e)) return -1;
    w->encode = (struct kvc_encode){.cache = c,
                                    .plan = &w->plan,
                                    .options = &w->options,
                                    .shared = w->shared,
                                    .projections = &w->projections,
                                    .turn = w->turn};
    if (kvc_repeats_find(&w->encode.repeats, c, e)) return -1;
    if (w->options.base && kvc_base_settle(w->options.base, &w->encode, e)) return -1;
    w->encode.base = w->options.base;
    if (kvc_loop_new(&w->encode.loop, c, &w->plan, w->options.profile, w->turn, e)) return -1;
    w->report.lossless = w->plan.lossless;
    w->report.tensor_bytes = w->plan.tensor_bytes;
    return 0;
}

/* Asks another coder than the CPU's whether it takes all tensors. */
static int ask_coder(const struct writer *w, struct kvc_error *e) {
    const struct kvc_block_coder *coder = w->options.coder;
    if (coder && w->options.base)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "blocks of a base are not copied where a device encodes");
    for (uint32_t t = 0; t < w->cache->n_tensors && coder; t++) {
        char label[64];
        if (!coder->accept(coder->state, w->cache, t, kvc_plan_pipeline(&w->plan, t), e)) continue;
        kvc_tensor_label(w->cache, t, label, sizeof label);
        return kvc_error_prefix(e, label);
    }
    return 0;
}

static int write_container(const struct kvc_cache *cache, const struct kvc_pack_options *options,
                           struct kvc_sink *out, struct kvc_pack_report *report,
                           struct kvc_error *e) {
    struct writer w = {.cache = cache, .options = *options};
    struct kvc_record_writer *r = &w.records;
    *r = (struct kvc_record_writer){.out = out, .start = out->offset, .align = options->align};
    const struct kvc_recipe *recipe = kvc_recipe_or_default(options->recipe);
    struct kvc_meta meta = {0};
    struct kvc_cache *own_queries = NULL;
    char text[KVC_MAX_RECIPE_TEXT];
    if (!kvc_kernels_get())
        return kvc_fail(e, KVC_ERR_USAGE, "KVC_KERNEL names no kernel table that this CPU can run");
    if (kvc_recipe_print(recipe, text, sizeof text))
        return kvc_fail(e, KVC_ERR_USAGE, "recipe: too long");
    if (kvc_projections_init(&w.projections, options->weights, e)) return -1;
    int status = kvc_plan_make(&w.plan, cache, recipe, e) ||
                 reuse_check(cache, &w.plan, options->reuse, e) || ask_coder(&w, e) ||
                 check_profile(&w, e) || writer_prepare(&w, &own_queries, e);
    if (!status)
        status = writer_describe(&w, text, &meta, e) || kvc_write_header(r, e) ||
                 kvc_write_meta(r, &meta, e) || kvc_write_table(r, cache, &w.plan, w.turn, e) ||
                 kvc_write_cells(r, cache, e) || kvc_write_tokens(r, cache, options, &meta, e) ||
                 write_source(&w, e) || write_profile(&w, e) || write_blocks(&w, e) ||
                 kvc_write_index(r, e);
    w.report.records = r->n_entries;
    w.report.sections = r->sections;
    w.report.stored_bytes = kvc_writer_offset(r);
    for (int i = 0; i < 2; i++)
        w.report.error[i] = w.squares[i][0] > 0 ? sqrt(w.squares[i][1] / w.squares[i][0]) : 0;
    if (!status && report) *report = w.report;
    kvc_loop_free(w.encode.loop);
    kvc_repeats_free(&w.encode.repeats);
    for (uint32_t t = 0; t < cache->n_tensors && w.angles; t++) free(w.angles[t]);
    free(w.angles);
    free(w.turn);
    kvc_meta_free(&meta);
    kvc_cache_free(own_queries);
    kvc_plan_free(&w.plan);
    kvc_projections_free(&w.projections);
    for (uint32_t i = 0; i < w.n_shared; i++) kvc_shared_free(&w.shared[i]);
    free(w.shared);
    free(w.left);
    free(w.first_run);
    free(r->entry);
    return status ? -1 : 0;
}

int kvc_container_write(const struct kvc_cache *cache, const struct kvc_pack_options *options,
                        struct kvc_sink *out, struct kvc_pack_report *report, struct kvc_error *e) {
    const fenv_t env = kvc_float_env_enter(); /* which the threads inherit */
    const int status = write_container(cache, options, out, report, e);
    kvc_float_env_leave(&env);
    return status;
}
