/* files.c: what packing whole files saves and costs, beside memcpy, zstd and ZipNN; and what the
 * stages cost on the files' own blocks, without container, hashes and verification. Not for
 * kernels. */
#include "tests/bench/bench.h"
#include "tests/recipe_text.h"

#include "codecs/recipe.h"
#include "codecs/registry.h"
#include "formats/container/container.h"
#include "formats/file/restore.h"
#include "formats/cache/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

enum { ENCODE, DECODE }; /* jobs of a line */
enum { BLOCKS, ONE_CORE, ALL_CORES, PLACES };
enum { STAGES = 16, LINES = 4 + PLACES * (2 * STAGES + 2) };

static void *copied; /* a copy nobody reads: the compiler must make it none the less */

static void copy_bytes(void *dst, const void *src, size_t n) {
    memcpy(dst, src, n);
    copied = dst;
    __asm__ volatile("" ::: "memory");
}

/* --- blocks --- */

struct blocks {
    size_t n, bytes;
    struct kvc_block *block; /* rows, one after the other in memory */
    uint8_t *out;            /* for the rows of one block */
};

static size_t block_size(const struct kvc_block *block) {
    return (size_t)(block->shape.tokens * kvc_row_bytes(&block->shape));
}

static void blocks_read(struct blocks *b, const struct kvc_cache *c) {
    struct kvc_error e;
    size_t largest = 0;
    memset(b, 0, sizeof *b);
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        b->n += (size_t)kvc_tensor_part(c, t)->cells.n_blocks;
        b->bytes += (size_t)kvc_tensor_bytes(&c->tensor[t]);
    }
    b->block = need_memory(b->n * sizeof *b->block);
    memset(b->block, 0, b->n * sizeof *b->block); /* what no stage here asks for is absent */
    uint8_t *rows = need_memory(b->bytes);
    b->n = b->bytes = 0;
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const struct kvc_tensor *tensor = &c->tensor[t];
        const struct kvc_cells *cells = &kvc_tensor_part(c, t)->cells;
        if (tensor->role != KVC_ROLE_K && tensor->role != KVC_ROLE_V) continue;
        for (uint64_t i = 0; i < cells->n_blocks; i++) {
            struct kvc_block *block = &b->block[b->n++];
            uint64_t first = cells->block[i];
            block->shape = tensor->shape;
            block->shape.tokens = cells->block[i + 1] - first;
            block->rows = rows + b->bytes;
            size_t size = block_size(block);
            if (c->read(c, t, first, block->shape.tokens, block->rows, &e))
                give_up("a block", e.message);
            b->bytes += size;
            if (size > largest) largest = size;
        }
    }
    if (!b->n) free(rows);
    b->out = need_memory(largest);
}

static void blocks_free(struct blocks *b) {
    if (b->n) free(b->block[0].rows);
    free(b->block);
    free(b->out);
}

static void copy_blocks(struct job *job) {
    const struct blocks *b = job->what;
    for (size_t i = 0; i < b->n; i++)
        copy_bytes(b->out, b->block[i].rows, block_size(&b->block[i]));
}

/* One stage on all blocks. */
struct staged {
    const struct blocks *blocks;
    struct kvc_pipeline pipeline;
    /* of the current block, as in the container's writer; of all blocks, for decoding */
    struct kvc_sections one, all;
    size_t *first; /* n + 1: where the sections of each block begin in `all` */
};

static void encode_blocks(struct job *job) {
    struct staged *s = job->what;
    struct kvc_error e;
    for (size_t i = 0; i < s->blocks->n; i++) {
        struct kvc_block block = s->blocks->block[i];
        kvc_sections_clear(&s->one);
        if (kvc_pipeline_encode(&s->pipeline, &block, &s->one, &e)) give_up("encoding", e.message);
        kvc_sections_seal(&s->one);
    }
}

static void decode_block(struct staged *s, size_t i) {
    struct kvc_error e;
    struct kvc_block block = {.shape = s->blocks->block[i].shape, .rows = s->blocks->out};
    if (kvc_pipeline_decode(&s->pipeline, &block, s->all.section + s->first[i],
                            s->first[i + 1] - s->first[i], &e))
        give_up("decoding", e.message);
}

static void decode_blocks(struct job *job) {
    struct staged *s = job->what;
    for (size_t i = 0; i < s->blocks->n; i++) decode_block(s, i);
}

static void staged_init(struct staged *s, const struct kvc_stage *stage,
                        const struct blocks *blocks) {
    struct kvc_error e;
    memset(s, 0, sizeof *s);
    s->blocks = blocks;
    s->pipeline.n = 1;
    s->pipeline.step[0].stage = stage;
    kvc_sections_init(&s->one);
    kvc_sections_init(&s->all);
    s->first = need_memory((blocks->n + 1) * sizeof *s->first);
    if (kvc_stage_parse(stage, "", &s->pipeline.step[0].args, &e)) give_up(stage->name, e.message);
    for (size_t i = 0; i < blocks->n; i++) {
        struct kvc_block block = blocks->block[i];
        s->first[i] = s->all.count;
        if (kvc_pipeline_encode(&s->pipeline, &block, &s->all, &e)) give_up(stage->name, e.message);
    }
    s->first[blocks->n] = s->all.count;
    kvc_sections_seal(&s->all);
    for (size_t i = 0; i < blocks->n; i++) {
        decode_block(s, i);
        if (memcmp(blocks->out, blocks->block[i].rows, block_size(&blocks->block[i])) != 0)
            give_up(stage->name, "a block came back as another");
    }
}

static void staged_free(struct staged *s) {
    kvc_sections_free(&s->one);
    kvc_sections_free(&s->all);
    free(s->first);
}

/* --- whole files --- */

struct file {
    struct kvc_input in;
    struct kvc_cache *cache;
    uint8_t *out; /* as large as the file */
};

static void copy_file(struct job *job) {
    const struct file *f = job->what;
    copy_bytes(f->out, f->in.data, (size_t)f->in.size);
}

/* One recipe on a whole file. */
struct packed {
    const struct file *file;
    const char *recipe;
    unsigned threads;
    struct kvc_buffer buffer;
    struct kvc_input again; /* the buffer */
    struct kvc_cache *cache;
};

static void pack(struct packed *p, int no_verify) {
    struct kvc_error e;
    struct kvc_pack_options options = {.recipe = recipe_of(p->recipe),
                                       .threads = p->threads,
                                       .no_verify = no_verify};
    p->buffer.n = 0;
    struct kvc_sink sink = kvc_sink_output(&p->buffer);
    if (kvc_container_write(p->file->cache, &options, &sink, NULL, &e))
        give_up("packing", e.message);
}

static void pack_only(struct job *job) {
    pack(job->what, 1);
}

static void pack_verified(struct job *job) {
    pack(job->what, 0);
}

static void unpack(struct job *job) {
    struct packed *p = job->what;
    struct kvc_error e;
    struct kvc_sink sink = kvc_sink_memory(p->file->out, p->file->in.size);
    if (kvc_source_write(p->cache, p->threads, &sink, &e)) give_up("unpacking", e.message);
}

static void check(struct job *job) {
    struct packed *p = job->what;
    struct kvc_error e;
    if (kvc_container_check(p->cache, p->threads, &e)) give_up("checking", e.message);
}

static void packed_init(struct packed *p, const struct file *file, const char *recipe,
                        unsigned threads) {
    struct kvc_error e;
    memset(p, 0, sizeof *p);
    p->file = file;
    p->recipe = recipe;
    p->threads = threads;
    pack(p, 0);
    /* Packing again makes the same bytes in the same place: what is open on them stays good. */
    kvc_input_memory(&p->again, recipe, p->buffer.data, p->buffer.n);
    p->cache = kvc_container_open(&p->again, &e);
    if (!p->cache) give_up(recipe, e.message);
    if (!p->cache->n_extents) return; /* a compressed archive: there is no source to give back */
    unpack(&(struct job){.what = p});
    if (memcmp(file->out, file->in.data, (size_t)file->in.size) != 0)
        give_up(recipe, "the file came back as another");
}

static void packed_free(struct packed *p) {
    kvc_cache_free(p->cache);
    kvc_input_close(&p->again);
    free(p->buffer.data);
}

/* libzstd on the raw file, level 1. */
struct zstd {
    const struct file *file;
    ZSTD_CCtx *encoder;
    ZSTD_DCtx *decoder;
    uint8_t *bytes;
    size_t room, size;
};

static void zstd_compress(struct job *job) {
    struct zstd *z = job->what;
    z->size = ZSTD_compressCCtx(z->encoder, z->bytes, z->room, z->file->in.data,
                                (size_t)z->file->in.size, 1);
    if (ZSTD_isError(z->size)) give_up("zstd", ZSTD_getErrorName(z->size));
}

static void zstd_decompress(struct job *job) {
    struct zstd *z = job->what;
    if (ZSTD_decompressDCtx(z->decoder, z->file->out, (size_t)z->file->in.size, z->bytes,
                            z->size) != z->file->in.size)
        give_up("zstd", "another size came back");
}

static void zstd_init(struct zstd *z, const struct file *file) {
    *z = (struct zstd){.file = file, .encoder = ZSTD_createCCtx(), .decoder = ZSTD_createDCtx()};
    if (!z->encoder || !z->decoder) give_up("zstd", "there is not enough memory");
    z->room = ZSTD_compressBound((size_t)file->in.size);
    z->bytes = need_memory(z->room);
    zstd_compress(&(struct job){.what = z});
}

static void zstd_free(struct zstd *z) {
    ZSTD_freeCCtx(z->encoder);
    ZSTD_freeDCtx(z->decoder);
    free(z->bytes);
}

/* --- one file's lines --- */

static struct line lines[LINES];
static size_t n_lines;

static struct line *add(const char *title, const char *name, size_t bytes, double ratio,
                        int threaded) {
    struct line *line = &lines[n_lines++];
    memset(line, 0, sizeof *line);
    line->title = title;
    line->bytes = bytes;
    line->ratio = ratio;
    line->threaded = threaded;
    snprintf(line->name, sizeof line->name, "%s", name);
    return line;
}

static void set(struct line *line, unsigned job, void (*run)(struct job *job), void *what) {
    line->job[job].run = run;
    line->job[job].what = what;
}

static void print_job(const struct line *line, unsigned job, double copy) {
    if (line->job[job].run) printf("%9.3f (%.3f)", rate(line, job), rate(line, job) / copy);
    else printf("%17s", "");
}

static void print_lines(void) {
    double copy = 1;
    for (size_t i = 0; i < n_lines; i++) {
        const struct line *line = &lines[i];
        if (line->title)
            printf("  %-24s%9s%17s%17s\n", line->title, "ratio", "encode GB/s", "decode GB/s");
        if (line->job[ENCODE].run == copy_blocks || line->job[ENCODE].run == copy_file)
            copy = rate(line, ENCODE);
        printf("    %-22s", line->name);
        if (line->ratio > 0) printf("%9.4f", line->ratio);
        else printf("%9s", "");
        print_job(line, ENCODE, copy);
        print_job(line, DECODE, copy);
        putchar('\n');
    }
}

/* What the table at the end says of a file. */
struct result {
    char *name;
    size_t bytes, stage[STAGES], zipnn;
    double relative[PLACES][STAGES][2]; /* rates of encoding and decoding to ZipNN's */
};
static struct result *results;
static size_t n_results;

static struct result *add_result(const char *path, size_t bytes) {
    struct result *more = realloc(results, (n_results + 1) * sizeof *more);
    if (!more) give_up("memory", "there is not enough of it");
    results = more;
    struct result *r = &results[n_results++];
    const char *slash = strrchr(path, '/');
    memset(r, 0, sizeof *r);
    r->name = strdup(slash ? slash + 1 : path);
    if (!r->name) give_up("memory", "there is not enough of it");
    r->bytes = bytes;
    return r;
}

/* Stage i of those that are a lossless recipe by themselves; NULL past the last. */
static const struct kvc_stage *stage_at(unsigned i) {
    for (size_t s = 0; kvc_stage_at(s); s++) {
        const unsigned flags = kvc_stage_at(s)->flags;
        if (flags & KVC_STAGE_TERMINAL && flags & KVC_STAGE_LOSSLESS && i-- == 0)
            return kvc_stage_at(s);
    }
    return NULL;
}

static unsigned stages(void) {
    unsigned n = 0;
    while (n < STAGES && stage_at(n)) n++;
    return n;
}

/* With one core all of them are no place of their own. */
static unsigned last_place(void) {
    return cores() > 1 ? ALL_CORES : ONE_CORE;
}

static void bench_open_file(const char *path, struct file *file) {
    static struct staged staged[STAGES];
    static struct packed packed[PLACES][STAGES];
    const struct line *ours[PLACES][STAGES] = {{NULL}}, *peer[PLACES] = {NULL};
    const size_t size = (size_t)file->in.size;
    const unsigned n = stages(), last = last_place();
    struct result *r = add_result(path, size);
    struct blocks blocks;
    struct zstd zstd;
    char title[48], request[PLACES][2][32];
    blocks_read(&blocks, file->cache);
    const struct kvc_dtype_info *dtype = blocks.n ? kvc_dtype_info(blocks.block[0].shape.dtype)
                                                  : NULL;
    r->zipnn = dtype ? zipnn_file(dtype->name, path) : 0;
    zstd_init(&zstd, file);
    n_lines = 0;
    set(add("blocks, one core", "memcpy", blocks.bytes, 0, 0), ENCODE, copy_blocks, &blocks);
    for (unsigned i = 0; i < n; i++) {
        struct line *line;
        staged_init(&staged[i], stage_at(i), &blocks);
        ours[BLOCKS][i] = line = add(NULL, stage_at(i)->name, blocks.bytes,
                                     (double)blocks.bytes /
                                         (double)(staged[i].all.used ? staged[i].all.used : 1),
                                     0);
        set(line, ENCODE, encode_blocks, &staged[i]);
        set(line, DECODE, decode_blocks, &staged[i]);
    }
    for (unsigned place = ONE_CORE; place <= last; place++) {
        const unsigned threads = place == ONE_CORE ? 1 : cores();
        const char *head = place == ONE_CORE ? NULL : title;
        snprintf(title, sizeof title, "file, %u cores", cores());
        if (place == ONE_CORE)
            set(add("file, one core", "memcpy", size, 0, 0), ENCODE, copy_file, file);
        for (unsigned i = 0; i < n; i++, head = NULL) {
            struct packed *p = &packed[place][i];
            const char *name = stage_at(i)->name;
            char checked[40];
            packed_init(p, file, name, threads);
            r->stage[i] = p->buffer.n;
            struct line *line = add(head, name, size, (double)size / (double)p->buffer.n,
                                    threads > 1);
            ours[place][i] = line;
            set(line, ENCODE, pack_only, p);
            if (p->cache->n_extents) set(line, DECODE, unpack, p);
            snprintf(checked, sizeof checked, "%s, verify; check", name);
            line = add(NULL, checked, size, 0, threads > 1);
            set(line, ENCODE, pack_verified, p);
            set(line, DECODE, check, p);
        }
        if (place == ONE_CORE) {
            struct line *line = add(NULL, "zstd -1", size, (double)size / (double)zstd.size, 0);
            set(line, ENCODE, zstd_compress, &zstd);
            set(line, DECODE, zstd_decompress, &zstd);
        }
        if (r->zipnn) {
            struct line *line = add(NULL, "ZipNN", size, (double)size / (double)r->zipnn,
                                    threads > 1);
            peer[place] = line;
            snprintf(request[place][ENCODE], sizeof request[place][ENCODE], "compress %u", threads);
            snprintf(request[place][DECODE], sizeof request[place][DECODE], "decompress %u",
                     threads);
            set(line, ENCODE, zipnn_run, request[place][ENCODE]);
            set(line, DECODE, zipnn_run, request[place][DECODE]);
        }
    }
    race(lines, n_lines);
    printf("\n%s, %.1f MB, %zu blocks of up to %zu KB, %s: GB/s (to memcpy)\n", path,
           (double)size / 1e6, blocks.n, blocks.n ? block_size(&blocks.block[0]) / 1000 : 0,
           dtype ? dtype->name : "no K and V");
    print_lines();
    fflush(stdout);

    for (unsigned place = 0; place <= last; place++) {
        const struct line *theirs = peer[place ? place : ONE_CORE];
        for (unsigned job = ENCODE; job <= DECODE && theirs; job++)
            for (unsigned i = 0; i < n; i++)
                r->relative[place][i][job] = rate(ours[place][i], job) / rate(theirs, job);
    }
    for (unsigned i = 0; i < n; i++) {
        staged_free(&staged[i]);
        for (unsigned place = ONE_CORE; place <= last; place++) packed_free(&packed[place][i]);
    }
    zstd_free(&zstd);
    blocks_free(&blocks);
}

void bench_file(const char *path) {
    struct file file;
    file.cache = open_cache(&file.in, path);
    /* Aligned as the mapped file is: where the two differ by a few bytes, memcpy is slow on some
     * CPUs. */
    file.out = aligned_alloc(4096, ((size_t)file.in.size + 4095) / 4096 * 4096);
    if (!file.out) give_up("memory", "there is not enough of it");
    bench_open_file(path, &file);
    free(file.out);
    kvc_cache_free(file.cache);
    kvc_input_close(&file.in);
}

/* --- all files --- */

static void print_relative(void) {
    const unsigned n = stages();
    if (!n_results || !zipnn_version()) return;
    printf("\nRates to ZipNN's of the whole file on as many cores; stages that save nothing are "
           "left out\n  %-42s",
           "");
    printf("%18s%18s", "blocks, one core", "file, one core");
    if (last_place() == ALL_CORES) printf("     file, %2u cores", cores());
    printf("\n  %-42s", "");
    for (unsigned place = 0; place <= last_place(); place++) printf("%9s%9s", "encode", "decode");
    putchar('\n');
    for (const struct result *r = results; r < results + n_results; r++)
        for (unsigned i = 0; i < n; i++) {
            if (!r->zipnn || r->stage[i] >= r->bytes) continue;
            printf("  %-34s%-8s", r->name, stage_at(i)->name);
            for (unsigned place = 0; place <= last_place(); place++)
                for (unsigned job = ENCODE; job <= DECODE; job++)
                    printf("%9.3f", r->relative[place][i][job]);
            putchar('\n');
        }
}

void bench_files_done(void) {
    print_relative();
    for (size_t i = 0; i < n_results; i++) free(results[i].name);
    free(results);
    results = NULL;
    n_results = 0;
}
