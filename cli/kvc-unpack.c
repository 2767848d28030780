/* kvc-unpack.c: .kvc (or any supported file) to an engine's file. Knows no byte of either. */
#include "cli/damage.h"
#include "cli/gpu.h"
#include "cli/job.h"

#include "codecs/near.h"
#include "formats/container/container.h"
#include "formats/file/restore.h"
#include "formats/cache/keys.h"
#include "formats/cache/view.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_TOKENS = JOB_OPT_FREE, OPT_LAYERS, OPT_TO, OPT_TO_PAIRING, OPT_DEVICE, OPT_INTO,
       OPT_SALVAGE };

static const struct option long_options[] = {
    JOB_OPTIONS,
    {"tokens", required_argument, NULL, OPT_TOKENS},
    {"layers", required_argument, NULL, OPT_LAYERS},
    {"to", required_argument, NULL, OPT_TO},
    {"to-pairing", required_argument, NULL, OPT_TO_PAIRING},
    {"device", required_argument, NULL, OPT_DEVICE},
    {"into", required_argument, NULL, OPT_INTO},
    {"salvage", no_argument, NULL, OPT_SALVAGE},
    {NULL, 0, NULL, 0},
};

static const char help[] =
    "Usage: kvc-unpack [OPTION]... [FILE]...\n"
    "Unpack .kvc containers: FILE.kvc into FILE, byte for byte the file it was made from\n"
    "when it was packed losslessly, or standard input to standard output. Engine files\n"
    "are taken too, for conversion.\n"
    "\n"
    "  -o, --output=FILE       write to FILE\n"
    "  -c, --stdout            write to standard output\n"
    "      --to=FORMAT[:OPTIONS]\n"
    "                          another layout: %s;\n"
    "                          OPTIONS of a format: KEY=VALUE,KEY=VALUE\n"
    "      --to-pairing=P      RoPE pairing of K in the output: halves, interleaved or\n"
    "                          none (default: what FORMAT's engine keeps)\n"
    "      --tokens=A:B        positions A to B-1 only\n"
    "      --layers=LIST       these layers only, e.g. 0-3,7\n"
    "      --device=D          decode on cpu (default), cuda, cuda:N, or auto: cuda if any\n"
    "      --to=ipc            leave it in device memory: print its CUDA handles as JSON,\n"
    "                          keep it until standard input ends\n"
    "      --into=HANDLES      decode into device memory that another process exported, as\n"
    "                          the JSON file HANDLES says; see kvc-unpack(1)\n"
    "      --salvage           of a damaged or truncated .kvc give back what is whole, and say\n"
    "                          what is not; exit 1 when something is missing\n"
    "  -t, --test              check everything, write nothing; exit 1 when damaged\n"
    "  -T, --threads=N         threads; 0: one per core (default)\n"
    "  -f, --force             replace existing files, write to a terminal\n"
    "  -k, --keep              keep the input (default)\n"
    "      --rm                remove each input once its output is complete\n"
    "      --skip-existing     leave inputs alone whose output exists; no error\n"
    "      --json[=lines]      print a report as JSON; lines: an object a line\n"
    "  -q, --quiet             no notes; errors only\n"
    "  -v, --verbose           say what was done\n"
    "  -h, --help              this text\n"
    "  -V, --version           the version; with -v also kernels, stages and devices\n"
    "\n";
static const char end_of_help[] =
    "\nWith --model (or $KVC_MODEL) a .kvc of another model is refused.\n"
    "Exit status: 0 ok, 1 damaged (with -t) or not all given back (--salvage), 2 trouble.\n";

struct unpack {
    struct job job;
    struct kvc_export_options export;
    struct cli_settings settings; /* of the target */
    const struct kvc_format *to;
    struct kvc_selection selection;
    uint8_t *layers;
    int selects;
    struct cli_device device;
    int to_ipc;
    const char *into;     /* --into; NULL: none */
    int salvage;
    int incomplete;                   /* with it, of the file at hand: something was lost */
    const struct kvc_survey *survey;  /* likewise; the cache's */
    uint64_t written;     /* bytes of the file at hand */
    int loaded;           /* it was decoded on the device: */
    struct cli_load load; /* so; without its plan */
};

/* The format whose file the cache came from; NULL when it has no export. */
static const struct kvc_format *format_of_source(const struct kvc_cache *c) {
    const char *source = kvc_meta_text(&c->meta, KVC_KEY_SOURCE_FORMAT, "");
    if (strncmp(source, "llama.cpp", 9) == 0) return kvc_format_find("llama");
    const struct kvc_format *f = kvc_format_find(source);
    return f && f->export ? f : NULL;
}

/* FILE.kvc without .kvc, or with the target's suffix in its place. */
static char *default_name(void *state, const char *path, const struct kvc_input *in, struct kvc_error *e) {
    const struct kvc_format *to = ((const struct unpack *)state)->to;
    (void)in;
    size_t n = strlen(path), stem = n > 4 && strcmp(path + n - 4, ".kvc") == 0 ? n - 4 : n;
    if (!to && stem == n) {
        kvc_fail(e, KVC_ERR_USAGE, "%s: the name does not end in .kvc: use -o FILE", path);
        return NULL;
    }
    size_t suffix = to ? strlen(to->suffix) : 0;
    char *name = malloc(n + suffix + 1);
    if (!name) {
        kvc_fail_memory(e, "a name");
        return NULL;
    }
    memcpy(name, path, stem);
    name[stem] = '\0';
    if (to && (stem < suffix || strcmp(name + stem - suffix, to->suffix) != 0)) strcat(name, to->suffix);
    return name;
}

/* What another engine would misread, because the source does not say it. */
static void warn_unknown(const struct unpack *u, const struct kvc_opened *f) {
    if (u->job.input.quiet) return;
    if (!kvc_cache_heads_known(f->cache))
        cli_warn("%s: the number of KV heads is unknown, so all of a row is written as one head; give --model or "
                 "--kv-heads", f->input.name);
    if (!kvc_meta_find(&f->cache->meta, KVC_KEY_HADAMARD_K) || !kvc_meta_find(&f->cache->meta, KVC_KEY_HADAMARD_V))
        cli_warn("%s: whether the quantised K or V is Hadamard-rotated is unknown (llama.cpp before version 4 does not "
                 "say), so it is written as it is", f->input.name);
    if (kvc_cache_pairing(f->cache) == KVC_PAIRING_UNKNOWN)
        cli_warn("%s: the RoPE pairing of K is unknown, so K is written as it is; give --model or --pairing",
                 f->input.name);
}

/* raw has no place for positions. */
static void warn_positions(const struct unpack *u, const struct kvc_cache *c, const char *name) {
    const struct kvc_cells *cells = c->n_parts ? &c->part[0].cells : NULL;
    if (u->job.input.quiet || !cells || !cells->n) return;
    if (kvc_cells_position(cells, 0) == 0 && kvc_cells_position(cells, cells->n - 1) == (int64_t)cells->n - 1)
        return;
    cli_warn("%s: raw does not hold positions, and these are not 0, 1, 2, ...", name);
}

static void warn_checkpoints(const struct unpack *u, const struct kvc_opened *f) {
    unsigned n = 0;
    for (uint32_t i = 0; i < f->cache->n_parts; i++) n += f->cache->part[i].kind == KVC_PART_CHECKPOINT;
    if (n && !u->job.input.quiet)
        cli_warn("%s: server checkpoints (%u) are not written; llama.cpp may process the prompt again", f->input.name, n);
}

/* What reading all rows does not notice of a container. */
static int check_rest(const struct kvc_opened *f, struct kvc_error *e) {
    return kvc_cache_is_container(f->cache) ? kvc_container_check_rest(f->cache, e) : 0;
}

/* Why the source's file cannot be given back: as far as what is left of it tells. */
static const char *why_new(const struct kvc_cache *c) {
    const char *source = kvc_meta_text(&c->meta, KVC_KEY_SOURCE_FORMAT, "");
    const char *form = kvc_meta_text(&c->meta, KVC_KEY_LLAMA_TOKEN_FORM, "none");
    if (!c->tokens && (c->n_prefix_keys || strcmp(form, "none") != 0))
        return "packed without its token ids (--no-tokens), and so without the source file's own bytes";
    if (strcmp(source, "npz") == 0) return "a compressed npz's own bytes are not recorded";
    return "packed without the source file's own bytes (with --dequantize, --no-tokens or --companions=no)";
}

/* Whether the options ask for the source as it was; of several files, --to=FORMAT asks for one. */
static int wants_source(const struct unpack *u, const struct kvc_cache *c) {
    const int same = !u->to || (u->to == format_of_source(c) && !c->n_members);
    return same && !u->selects && !u->export.pairing && !u->settings.n;
}

static int becomes_folder(void *state, const struct kvc_opened *f) {
    const struct unpack *u = state;
    return f->cache->n_members && wants_source(u, f->cache) && !u->salvage;
}

/* `c` is the file's cache, or one that has its rows from a device. */
static int write_cache(const struct unpack *u, const struct kvc_opened *f, const struct kvc_cache *c, struct kvc_sink *out,
                       struct kvc_error *e) {
    const struct kvc_format *own = format_of_source(c), *to = u->to;
    const int as_it_was = wants_source(u, c);
    if (as_it_was && c->n_extents) return kvc_source_write(c, u->job.threads, out, e) || check_rest(f, e) ? -1 : 0;
    if (as_it_was && !to && !u->job.input.quiet)
        cli_warn("%s: %s: writing a file with equal values", f->input.name, why_new(c));
    if (!to) to = own;
    if (!to) return kvc_fail(e, KVC_ERR_USAGE, "its source format cannot be written anew: use --to=FORMAT");
    struct kvc_cache *view = u->selects ? kvc_view_select(c, &u->selection, e) : NULL;
    if (u->selects && !view) return -1;
    if (to == kvc_format_find("llama")) warn_checkpoints(u, f);
    else warn_unknown(u, f);
    if (to == kvc_format_find("raw")) warn_positions(u, view ? view : c, f->input.name);
    struct kvc_export_options options = u->export;
    options.set = u->settings.item;
    int status = kvc_export(to, view ? view : c, &options, out, e);
    /* without a selection this is a whole read, which notices damage anywhere in a .kvc */
    if (!status && !view) status = check_rest(f, e);
    kvc_cache_free(view);
    return status;
}

/* --- of damaged containers --- */

/* Positions that a selection asks for: [*first, *end). */
static void find_range(const struct kvc_cache *c, const struct kvc_selection *s, int64_t *first, int64_t *end) {
    *first = INT64_MAX;
    *end = INT64_MIN;
    for (uint32_t p = 0; p < c->n_parts; p++) {
        const struct kvc_cells *cells = &c->part[p].cells;
        if ((c->part[p].kind != KVC_PART_LIVE && c->part[p].kind != KVC_PART_SLIDING) || !cells->n) continue;
        const int64_t begin = kvc_cells_position(cells, 0), last = kvc_cells_position(cells, cells->n - 1);
        if (begin < *first) *first = begin;
        if (last >= *end) *end = last + 1;
    }
    if (s->end && (uint64_t)*end > s->end) *end = (int64_t)s->end;
    if (s->first && *first < (int64_t)s->first) *first = (int64_t)s->first;
}

/* What is written, against what was asked for; as_it_was: that was the source's own file, and a new one it has become. */
static void say_salvaged(struct unpack *u, const struct kvc_opened *f, const struct kvc_selection *given, int as_it_was) {
    const struct kvc_survey *s = u->survey;
    int64_t first, end, given_first, given_end;
    find_range(f->cache, &u->selection, &first, &end);
    find_range(f->cache, given, &given_first, &given_end);
    u->incomplete = given_end < end || given->no_companions || s->no_meta || s->no_tokens ||
                    (as_it_was && (s->no_source || f->cache->n_extents));
    if (u->job.input.quiet) return;
    cli_warn("%s: given back: tokens %" PRId64 "-%" PRId64 " of %" PRId64 "-%" PRId64 "%s%s%s%s%s", f->input.name, given_first,
             given_end - 1, first, end - 1, u->selection.layers ? " of the layers asked for" : "",
             as_it_was ? ", as a new file" : "", s->no_tokens ? ", without token ids" : "",
             s->no_meta ? ", without metadata" : "", given->no_companions ? ", without queries and hidden states" : "");
}

/* Of a container that may be damaged: its source's own file where all of that is whole; else a new one of the longest run of
 * tokens that is whole in all layers asked for. */
static int write_salvaged(struct unpack *u, const struct kvc_opened *f, struct kvc_sink *out, struct kvc_error *e) {
    const int as_it_was = !u->selects && (!u->to || u->to == format_of_source(f->cache)) && !u->export.pairing &&
                          !u->settings.n;
    u->incomplete = 0;
    if (!(u->survey = kvc_salvage_survey(f->cache, u->job.threads, e))) return -1;
    const struct kvc_survey *s = u->survey;
    if (s->n && !u->job.input.quiet) cli_say_damage(f->input.name, s);
    if (s->trouble.code != KVC_OK) {
        *e = s->trouble;
        return -1;
    }
    if (!s->n || (as_it_was && f->cache->n_extents && kvc_survey_all_whole(s, f->cache) && !s->no_source))
        return write_cache(u, f, f->cache, out, e);
    struct unpack some = *u;
    if (kvc_survey_narrow(s, f->cache, &some.selection, e)) return -1;
    some.selects = 1;
    if (write_cache(&some, f, f->cache, out, e)) return -1;
    say_salvaged(u, f, &some.selection, as_it_was);
    return 0;
}

/* --- on a device --- */

/* 1: the device decodes this input; 0: the CPU, which --device=auto takes for what the device cannot; -1: refused. */
static int on_device(const struct unpack *u, const struct kvc_input *in, struct kvc_error *e) {
    struct kvc_error why;
    if (!u->device.cuda) return 0;
    if (!cli_device_refuses(in, &why)) return 1;
    if (u->device.kind == CLI_DEVICE_AUTO) {
        if (u->job.verbose) cli_warn("%s: decoded on the CPU: %s", in->name, why.message);
        return 0;
    }
    *e = why;
    return -1;
}

static struct kvc_cuda_options load_options(const struct unpack *u) {
    return (struct kvc_cuda_options){.size = sizeof(struct kvc_cuda_options), .device = u->device.number,
                                     .threads = u->job.threads, .verify = u->job.test,
                                     .profile = u->job.input.import.profile, .model = u->job.input.model_path,
                                     .profile_folders = u->job.input.import.profile_folders};
}

static void keep_load(struct unpack *u, const struct cli_load *l) {
    u->loaded = 1;
    u->load = *l;
    u->load.plan = NULL;
}

static int unpack_from_device(struct unpack *u, const struct kvc_opened *f, struct kvc_sink *out, struct kvc_error *e) {
    struct kvc_cuda_options options = load_options(u);
    struct cli_device_cache d;
    if (cli_device_cache_open(&d, &u->device, &f->input, f->cache, &options, e)) return -1;
    int status = write_cache(u, f, &d.cache, out, e);
    keep_load(u, &d.load);
    cli_device_cache_close(&d);
    return status;
}

static int check_container(void *state, const struct kvc_input *in, const struct kvc_cache *c, struct kvc_error *e) {
    struct unpack *u = state;
    struct kvc_cuda_options options = load_options(u);
    struct cli_device_cache d;
    int device = on_device(u, in, e);
    if (device <= 0) return device ? -1 : kvc_container_check(c, u->job.threads, e);
    if (cli_device_cache_open(&d, &u->device, in, c, &options, e)) return -1;
    int status = cli_device_cache_check(&d, u->job.threads, e);
    keep_load(u, &d.load);
    cli_device_cache_close(&d);
    return status;
}

/* --to=ipc and --into: what is loaded stays on the device. */
static int share(struct unpack *u, const char *path, struct kvc_error *e) {
    struct kvc_cuda_options options = load_options(u);
    const uint64_t last = INT64_MAX;
    struct cli_load l;
    if (u->selection.end) {
        options.first = (int64_t)(u->selection.first < last ? u->selection.first : last);
        options.end = (int64_t)(u->selection.end < last ? u->selection.end : last);
    }
    options.layers = u->selection.layers;
    options.n_layers = u->selection.n_layers;
    int status = u->into ? cli_device_into(&l, &u->device, path, u->into, &options, e)
                         : cli_load(&l, &u->device, path, &options, NULL, e);
    if (status) return -1;
    if (u->job.verbose) cli_load_say(&l, path);
    if (u->job.json) {
        cli_report_file(&u->job.report, path);
        cli_load_json(&l, &u->job.report.json);
        cli_report_file_end(&u->job.report);
    }
    if (u->to_ipc) status = cli_device_lend(&l, path, e);
    cli_load_free(&l);
    return status;
}

/* --- inputs, one by one --- */

static int write_and_count(void *state, const struct kvc_opened *f, struct kvc_sink *out, struct kvc_error *e) {
    struct unpack *u = state;
    uint64_t start = out->offset;
    int device = on_device(u, &f->input, e);
    u->loaded = 0;
    if (u->salvage) {
        if (write_salvaged(u, f, out, e)) return -1;
        u->written = out->offset - start;
        return 0;
    }
    if (device < 0 || (device ? unpack_from_device(u, f, out, e) : write_cache(u, f, f->cache, out, e))) return -1;
    u->written = out->offset - start;
    return 0;
}

static int write_members(void *state, const struct kvc_opened *f, const struct kvc_member_sink *out, struct kvc_error *e) {
    struct unpack *u = state;
    u->loaded = 0;
    u->written = 0;
    for (uint32_t i = 0; i < f->cache->n_members; i++) u->written += kvc_source_size(f->cache, i);
    return kvc_source_write_members(f->cache, u->job.threads, out, e) || check_rest(f, e) ? -1 : 0;
}

static void say_done(void *state, const struct kvc_opened *f) {
    struct unpack *u = state;
    if (u->job.json) {
        struct cli_json *j = &u->job.report.json;
        cli_report_file(&u->job.report, f->input.name);
        cli_json_text(j, "to", u->to ? u->to->name : "source");
        cli_json_u64(j, "bytes", u->written);
        if (u->loaded) cli_load_json(&u->load, j);
        if (u->salvage) cli_json_bool(j, "complete", !u->incomplete);
        if (u->salvage) cli_json_damage(j, u->survey);
        cli_report_file_end(&u->job.report);
    }
    if (u->job.verbose) {
        char size[32];
        if (u->loaded) cli_load_say(&u->load, f->input.name);
        cli_size_text(u->written, size);
        cli_warn("%s: %s written", f->input.name, size);
    }
}

static int test_one(struct job *j, const char *path, struct kvc_error *e) {
    struct unpack *u = j->state;
    u->loaded = 0;
    int checksums = 0, status = cli_check_with(path, &j->input, check_container, u, &checksums, e);
    struct kvc_opened f;
    if (status != EXIT_SAME && checksums) cli_error_about(e, strcmp(path, "-") == 0 ? "(stdin)" : path);
    if (status == EXIT_SAME && !checksums && u->device.kind == CLI_DEVICE_CUDA) {
        kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s: only .kvc files are decoded on a device", path);
        status = EXIT_TROUBLE;
    }
    if (status == EXIT_SAME && j->input.model_path) { /* whole, but of this model? */
        if (cli_open(&f, path, &j->input, e)) status = EXIT_TROUBLE;
        else kvc_close(&f);
    }
    if (status == EXIT_SAME && j->verbose && u->loaded) cli_load_say(&u->load, path);
    if (status == EXIT_SAME && j->verbose)
        cli_warn("%s: ok%s", path, checksums ? "" : " (as far as a format without checksums can tell)");
    return status;
}

static int unpack_one(struct job *j, const char *path) {
    struct unpack *u = j->state;
    struct kvc_error e;
    int status;
    if (j->test) status = test_one(j, path, &e);
    else status = (u->to_ipc || u->into ? share(u, path, &e) : job_file(j, path, &e)) ? EXIT_TROUBLE : EXIT_SAME;
    if (status != EXIT_SAME) cli_error(&e);
    else if (u->salvage && u->incomplete) status = EXIT_DIFFER;
    if (j->test && j->json) {
        cli_report_file(&j->report, path);
        cli_json_text(&j->report.json, "check", status == EXIT_SAME ? "ok" : status == EXIT_DIFFER ? "damaged" : "trouble");
        if (status != EXIT_SAME) cli_json_error(&j->report.json, &e);
        else if (u->loaded) cli_load_json(&u->load, &j->report.json);
        cli_report_file_end(&j->report);
    } else if (j->json && status != EXIT_SAME) {
        cli_report_failed(&j->report, path, &e);
    }
    return status;
}

static int take_layers(struct unpack *u, const char *arg) {
    free(u->layers);
    u->layers = NULL;
    u->selection.n_layers = 0;
    if (cli_parse_list(arg, &u->layers, &u->selection.n_layers))
        return cli_usage("--layers=%s is not a list like 0-3,7", arg);
    u->selection.layers = u->layers;
    u->selects = 1;
    return 0;
}

/* --to=FORMAT[:KEY=VALUE,...] */
static int take_target(struct unpack *u, const char *arg) {
    const char *colon = strchr(arg, ':');
    u->to_ipc = strcmp(arg, "ipc") == 0;
    u->to = u->to_ipc ? NULL : kvc_format_find(arg);
    if (u->to_ipc) return 0;
    if (!u->to || !u->to->export) return cli_no_such_format("to", arg, 1, ", or ipc");
    return colon && cli_take_settings(&u->settings, u->to, 1, "to", colon + 1) < 0 ? EXIT_TROUBLE : 0;
}

/* An option of kvc-unpack alone; 0, or EXIT_TROUBLE (message printed). */
static int take_option(struct unpack *u, int opt, const char *arg) {
    switch (opt) {
    case OPT_TOKENS:
        if (cli_parse_range(arg, &u->selection.first, &u->selection.end) || !u->selection.end)
            return cli_usage("--tokens=%s is not a range A:B", arg);
        u->selects = 1;
        return 0;
    case OPT_LAYERS: return take_layers(u, arg);
    case OPT_TO: return take_target(u, arg);
    case OPT_TO_PAIRING:
        if (!kvc_pairing_parse(arg, &u->export.pairing))
            return cli_usage("--to-pairing=%s is none of halves, interleaved, none", arg);
        return 0;
    case OPT_DEVICE:
        if (cli_device_parse(&u->device, arg)) return cli_usage("--device=%s is none of cpu, cuda, cuda:N, auto", arg);
        return 0;
    case OPT_INTO: u->into = arg; return 0;
    case OPT_SALVAGE: u->salvage = u->job.input.import.salvage = 1; return 0;
    default: return (opt = cli_target_option(&u->settings, opt, arg)) ? (opt < 0 ? EXIT_TROUBLE : 0) : cli_try_help();
    }
}

/* What --to=ipc and --into do not go with; 0, or EXIT_TROUBLE (message printed). */
static int check_sharing(const struct unpack *u, int n, char **paths) {
    const char *option = u->to_ipc ? "--to=ipc" : "--into";
    const struct job *j = &u->job;
    if (!u->to_ipc && !u->into) return 0;
    if (u->to_ipc && u->into) return cli_usage("--to=ipc and --into exclude each other");
    if (u->device.kind != CLI_DEVICE_CUDA) return cli_usage("%s needs --device=cuda", option);
    if (u->to || j->output || j->to_stdout || j->test || j->remove || u->export.pairing || u->settings.n)
        return cli_usage("%s writes no file: leave out --to, -o, -c, -t, --rm, --to-pairing, --llama-version", option);
    if (n > 1) return cli_usage("%s takes one input, not %d", option, n);
    const int from_stdin = !n || strcmp(paths[0], "-") == 0;
    if (u->to_ipc && from_stdin) return cli_usage("--to=ipc needs a FILE: standard input says when its memory is free to go");
    if (u->to_ipc && j->json) return cli_usage("--to=ipc prints JSON of its own: it does not go with --json");
    if (u->into && from_stdin && strcmp(u->into, "-") == 0) return cli_usage("standard input can be read only once");
    return 0;
}

/* What --salvage does not go with; 0, or EXIT_TROUBLE (message printed). */
static int check_salvage(struct unpack *u) {
    const char *from = u->job.input.import.format;
    if (!u->salvage) return 0;
    if (u->job.test) return cli_usage("--salvage writes what is whole: kvc-dump --check says what is damaged");
    if (u->job.remove) return cli_usage("--salvage keeps its input: not all of it may have been given back");
    if (u->device.kind != CLI_DEVICE_CPU || u->into || u->to_ipc) return cli_usage("--salvage decodes on the CPU only");
    if (from && strcmp(from, "kvc") != 0) return cli_usage("--salvage is about .kvc files, not %s", from);
    u->job.input.import.format = "kvc"; /* its first bytes may be damaged */
    return 0;
}

/* Finds the device before anything is read. */
static int open_device(struct unpack *u) {
    struct kvc_error why, e;
    if (cli_device_open(&u->device, &why, &e)) {
        cli_error(&e);
        return EXIT_TROUBLE;
    }
    if (u->device.kind != CLI_DEVICE_AUTO || !u->job.verbose) return 0;
    if (u->device.cuda) cli_warn("--device=auto: %s", u->device.name);
    else cli_warn("--device=auto: cpu: %s", why.message);
    return 0;
}

int main(int argc, char **argv) {
    static struct unpack u = {.job = {.name = default_name, .write = write_and_count, .is_folder = becomes_folder,
                                     .write_members = write_members, .done = say_done}};
    int opt;
    const struct option *options = cli_long_options(long_options);
    cli_start(argv, "kvc-unpack");
    u.job.state = &u;
    cli_input_environment(&u.job.input);
    while ((opt = getopt_long(argc, argv, JOB_SHORT, options, NULL)) != -1) {
        int taken = job_option(&u.job, opt, optarg);
        if (taken < 0 || (!taken && take_option(&u, opt, optarg))) return EXIT_TROUBLE;
    }
    if (u.job.help) {
        char names[256];
        printf(help, cli_format_names(1, names, sizeof names));
        puts("Writing other layouts:");
        cli_print_target_help();
        cli_print_input_help();
        fputs(end_of_help, stdout);
        return cli_finish(EXIT_SAME);
    }
    if (u.job.version) return cli_version(u.job.verbose, cli_cuda_version);
    if (check_sharing(&u, argc - optind, argv + optind)) return EXIT_TROUBLE;
    if (!u.to_ipc && !u.into && job_check(&u.job, argc - optind, argv + optind)) return EXIT_TROUBLE;
    if (check_salvage(&u) || open_device(&u)) return EXIT_TROUBLE;
    int status = job_run(&u.job, argc - optind, argv + optind, unpack_one);
    free(u.layers);
    return cli_finish(status);
}
