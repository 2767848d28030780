/* unpack_write.c: kvc-unpack's output, one file or several: the source's own, or a new one of a
 * format. Not for damaged containers (unpack_salvage.c). */
#include "cli/unpack.h"

#include <stdlib.h>
#include <string.h>

int unpack_check_dividing(const struct cli_unpack *u) {
    const char *option = u->blocks ? "--blocks" : "--shard";
    if (!u->blocks && !u->ranks) return 0;
    if (u->salvage) return cli_usage("%s and --salvage exclude each other", option);
    if (!u->to)
        return cli_usage("%s needs --to=FORMAT; kvc-pack packs the files that are written", option);
    if (u->blocks && !u->job.output && !u->job.to_stdout && !u->job.test)
        return cli_usage("--blocks needs -o FOLDER, -o FILE.tar or -c");
    return 0;
}

/* Prints a note, with the names of options where a new file takes the place of the source's. */
static void note(void *state, enum kvc_note number, const char *name, const char *text) {
    switch (number) {
    case KVC_NOTE_NEW_FILE:
        cli_warn("%s: packed without the source file's own bytes (with --join, --tokens, "
                 "--layers, --dequantize, --no-tokens or --companions=no): writing a file with "
                 "equal values",
                 name);
        break;
    case KVC_NOTE_NEW_FILE_NO_TOKENS:
        cli_warn("%s: packed without its token ids (--no-tokens), and so without the source "
                 "file's own bytes: writing a file with equal values",
                 name);
        break;
    default: cli_note(state, number, name, text);
    }
}

struct kvc_write_options unpack_options(const struct cli_unpack *u) {
    return (struct kvc_write_options){.size = sizeof(struct kvc_write_options),
                                      .threads = u->job.threads,
                                      .pairing = u->pairing,
                                      .set = u->settings.n ? u->settings.item : NULL,
                                      .lossy_metadata = u->lossy_metadata,
                                      .nearest = 1,
                                      .blocks = u->blocks,
                                      .note = u->job.input.quiet ? NULL : note};
}

/* Returns the name of the output without folders and .tar, the stem of the names of its files; the
 * caller frees it. */
static char *name_stem(const char *output) {
    size_t n = output ? strlen(output) : 0;
    while (n > 1 && output[n - 1] == '/') n--;
    size_t begin = n;
    while (begin && output[begin - 1] != '/') begin--;
    if (n - begin > 4 && memcmp(output + n - 4, ".tar", 4) == 0) n -= 4;
    return n > begin ? strndup(output + begin, n - begin) : strdup("block");
}

static int write_to(struct cli_unpack *u, const struct kvc_file *f,
                    const struct unpack_place *place, struct kvc_error *e) {
    struct kvc_write_report report = {.size = sizeof report};
    struct kvc_write_options o = unpack_options(u);
    struct cli_output *out = place->out;
    char *stem = u->blocks ? name_stem(u->job.output) : NULL;
    o.stem = stem;
    o.report = &report;
    if (out) o.put = cli_output_any_order(out);
    const int status = out ? kvc_file_unpack(f, u->to, &o, cli_output_write, out, e)
                           : kvc_file_unpack_folder(f, u->to, place->folder, &o, e);
    u->job.bytes = report.bytes;
    free(stem);
    return status;
}

static int has_companions(const struct kvc_file *f) {
    struct kvc_tensor_info t = {.size = sizeof t};
    for (uint32_t i = 0; !kvc_file_tensor(f, i, &t); i++)
        if (strcmp(t.part, "companion") == 0) return 1;
    return 0;
}

int unpack_write(struct cli_unpack *u, const struct kvc_file *f, const struct unpack_place *place,
                 struct kvc_error *e) {
    struct kvc_file *shard = NULL, *part = NULL;
    const struct kvc_file *from = f;
    int status = 0;
    if (u->ranks) {
        from = shard = kvc_file_shard(f, u->rank, u->ranks, e);
        if (!shard) return -1;
        if (has_companions(f) && !u->job.input.quiet)
            cli_warn("%s: without queries and hidden states, which are not divided by heads",
                     job_source(f).name);
    }
    if (u->part.given) {
        from = part = kvc_file_select(from, &u->part.selection, e);
        status = part ? 0 : -1;
        if (!part && u->blocks && kvc_error_code(e) == KVC_ERR_USAGE)
            cli_usage_error(e, "has no tokens in the range");
    }
    if (!status) status = write_to(u, from, place, e);
    kvc_file_close(part);
    kvc_file_close(shard);
    return status;
}
