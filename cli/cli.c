/* cli.c: messages, versions and opening of caches, for all tools. Not for output (output.c) or
 * options (input_options.c). */
#include "cli/cli.h"
#include "cli/text.h"

#include "codecs/presets.h"
#include "codecs/registry.h"
#include "formats/file/given.h"
#include "formats/file/open.h"
#include "formats/container/container.h"
#include "formats/cache/keys.h"
#include "formats/cache/view.h"
#include "kernels/kernels.h"

#include <errno.h>
#include <fcntl.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <signal.h>
#include <stdarg.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *tool = "kvc";

enum { KEPT_BYTES = 32 << 20 }; /* bytes of freed memory that the process keeps */

/* Handles SIGBUS, which a mapped file causes if it shrinks or its disk fails. */
static void on_bus_error(int number) {
    static const char text[] = ": an input file changed or could not be read while it was in use\n";
    (void)number;
    cli_output_remove_all();
    if (write(2, tool, strlen(tool)) < 0 || write(2, text, sizeof text - 1) < 0)
        _exit(EXIT_TROUBLE);
    _exit(EXIT_TROUBLE);
}

static void on_interrupt(int number) {
    cli_output_remove_all();
    signal(number, SIG_DFL);
    raise(number);
}

void cli_start(char **argv, const char *name) {
    static char copy[32];
    /* holds most reports until cli_finish(), which reports write errors */
    static char buffer[64 << 10];
    snprintf(copy, sizeof copy, "%s", name);
    tool = argv[0] = copy;
    if (!isatty(STDOUT_FILENO)) setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    /* The next file that is opened would get a closed descriptor, and messages would be written to
     * it. /dev/null takes its place, in the opposite direction, so that reading and writing still
     * fail. */
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            _exit(EXIT_TROUBLE);
    const int ending[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    struct sigaction interrupt = {.sa_handler = on_interrupt}, bus = {.sa_handler = on_bus_error},
                     was;
    /* a signal that nohup ignores stays ignored */
    for (size_t i = 0; i < sizeof ending / sizeof ending[0]; i++)
        if (sigaction(ending[i], NULL, &was) == 0 && was.sa_handler != SIG_IGN)
            sigaction(ending[i], &interrupt, NULL);
    /* write() then returns EFBIG */
    sigaction(SIGXFSZ, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
    sigaction(SIGBUS, &bus, NULL);
#if defined(__GLIBC__)
    /* Thousands of blocks are allocated and freed; page faults for each would take as long as
     * decoding. */
    mallopt(M_MMAP_THRESHOLD, KEPT_BYTES);
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
#endif
}

const char *cli_tool(void) {
    return tool;
}

/* Prints a message. File names and metadata in it may have bytes that a terminal would obey: they
 * become \xNN. */
static void print_message(const char *message) {
    fprintf(stderr, "%s: ", tool);
    cli_print_safe(stderr, message);
    fputc('\n', stderr);
}

void cli_warn(const char *format, ...) {
    char text[2048];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    print_message(text);
}

/* Returns 1 if the tool takes --recursive. */
static int has_recursive(void) {
    return strcmp(tool, "kvc-dump") == 0 || strcmp(tool, "kvc-pack") == 0 ||
           strcmp(tool, "kvc-unpack") == 0;
}

const char *cli_error_text(const struct kvc_error *e, char *text, size_t size) {
    static const char *const hints[] = {
        [KVC_NEED_HEADS] = "give --kv-heads or --model",
        [KVC_NEED_PAIRING] = "give --pairing or --model",
        [KVC_NEED_MODEL] = "give --model",
        [KVC_NEED_WEIGHTS] = "give --weights=FILE",
        [KVC_NEED_PROFILE] = "give it with --profile=FILE, put it beside the file, or name its "
                             "folder in $KVC_PROFILE_PATH",
        [KVC_NEED_QUERIES] = "give --queries=FILE",
        [KVC_NEED_FORMAT] = "use --to=FORMAT",
        [KVC_NEED_INPUT] = "use --from=FORMAT",
        [KVC_NEED_NAMES] = "say which arrays are K and V, for instance --map='keys=layer.{i}.k' "
                           "--map='values=layer.{i}.v'",
        [KVC_NEED_TARGET_PAIRING] = "give --model=GGUF or --to-pairing=halves|interleaved|none",
        [KVC_NEED_STEP] = "give code:step=S, a preset or --target-kld",
        [KVC_NEED_FLOATS] = "pack it with --dequantize",
        [KVC_NEED_CONSENT] = "--force-profile packs it all the same",
        [KVC_NEED_LOSSY] = "--lossy-metadata writes the file without this",
        [KVC_NEED_AS_MODEL] = "give it by --model=FILE",
        [KVC_NEED_AS_PROFILE] = "give it by --profile=FILE",
        [KVC_NEED_AS_INPUT] = "name it without an option",
        [KVC_NEED_MEMORY] = "--max-memory=SIZE allows more",
        [KVC_NEED_EACH] = "--recursive takes the files of a folder one by one",
        [KVC_NEED_SALVAGE] = "kvc-unpack --salvage writes what is whole of it",
        [KVC_NEED_SCALES] = "give --scale=K:S,V:S (1: it stores the values themselves)",
    };
    const unsigned need = (unsigned)e->need;
    const char *hint = need < sizeof hints / sizeof hints[0] ? hints[need] : NULL;
    if (need == KVC_NEED_EACH && !has_recursive()) hint = NULL;
    /* its objects are no files of the user */
    if (need == KVC_NEED_SALVAGE && strcmp(tool, "kvc-store") == 0) hint = NULL;
    snprintf(text, size, "%s%s%s", e->message, hint ? "; " : "", hint ? hint : "");
    return text;
}

void cli_error(const struct kvc_error *e) {
    char text[sizeof e->message + 160];
    print_message(cli_error_text(e, text, sizeof text));
}

int cli_error_about(struct kvc_error *e, const char *name) {
    size_t n = strlen(name);
    if (strncmp(e->message, name, n) == 0 && strncmp(e->message + n, ": ", 2) == 0) return -1;
    return kvc_error_prefix(e, name);
}

int cli_try_help(void) {
    fprintf(stderr, "Try '%s --help' for more information.\n", tool);
    return EXIT_TROUBLE;
}

int cli_usage(const char *format, ...) {
    char text[2048];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    print_message(text);
    return cli_try_help();
}

int cli_version(int verbose, void (*more)(void)) {
    printf("%s %s (format %d)\n", tool, KVC_VERSION, KVC_FORMAT_VERSION);
    if (verbose) {
        const struct kvc_kernels_choice kernels = kvc_kernels_choice();
        printf("kernels: %s (of", kernels.name ? kernels.name : "none");
        for (const char *const *name = kvc_kernels_names(); *name; name++) printf(" %s", *name);
        printf(")\n");
        if (kernels.name)
            printf("rANS: %s encodes, %s decodes (%s)\n", kernels.rans_encode, kernels.rans_decode,
                   kernels.by_trial ? "by trial" : "by KVC_KERNEL");
        printf("stages:");
        for (size_t i = 0; kvc_stage_at(i); i++) printf(" %s", kvc_stage_at(i)->name);
        printf("\npresets:");
        for (size_t i = 0; kvc_preset_at(i); i++) printf(" %s", kvc_preset_at(i)->name);
        printf("\nformats:");
        for (size_t i = 0; kvc_format_at(i); i++) printf(" %s", kvc_format_at(i)->name);
        putchar('\n');
        if (more) more();
    }
    return cli_finish(EXIT_SAME);
}

int cli_finish(int status) {
    int failed = ferror(stdout);
    size_t unwritten = __fpending(stdout);
    errno = 0;
    /* a descriptor that was closed from the start is no error if nothing was printed */
    if ((fclose(stdout) && (unwritten || errno != EBADF)) || failed) {
        cli_warn("write error on standard output: %s", errno ? strerror(errno) : "output was lost");
        return EXIT_TROUBLE;
    }
    return status;
}

static struct kvc_weights *open_weights;

static void close_weights(void) {
    kvc_weights_close(open_weights);
}

static int open_given_weights(struct cli_input *options, struct kvc_error *e) {
    if (!options->weights_path || options->weights) return 0;
    options->weights = open_weights = kvc_given_weights(options->weights_path, e);
    if (!open_weights) return -1;
    atexit(close_weights);
    return 0;
}

int cli_open_given(struct cli_input *options, struct kvc_error *e) {
    if (open_given_weights(options, e)) return -1;
    if (options->profile_checked || !options->import.profile) return 0;
    if (kvc_given_profile_check(options->import.profile, e)) return -1;
    options->profile_checked = 1;
    return 0;
}

int cli_read_model(struct cli_input *options, struct kvc_error *e) {
    if (!options->model_path || options->has_model) return 0;
    if (kvc_given_model(options->model_path, options->full_fingerprint, &options->model, e))
        return -1;
    options->has_model = 1;
    return 0;
}

int cli_refuse_terminal(const char *path, struct kvc_error *e) {
    if (strcmp(path, "-") != 0 || !isatty(STDIN_FILENO)) return 0;
    return kvc_fail(e, KVC_ERR_USAGE, "standard input is a terminal: give a FILE or a pipe");
}

int cli_open(struct kvc_opened *f, const char *path, struct cli_input *options,
             struct kvc_error *e) {
    memset(f, 0, sizeof *f);
    if (cli_refuse_terminal(path, e) || cli_read_model(options, e) || cli_open_given(options, e))
        return -1;
    struct kvc_opening o = {.import = options->import,
                            .model = options->has_model ? &options->model : NULL,
                            .maps_files = 1};
    o.import.weights = options->weights;
    if (kvc_open_path(f, path, &o, e)) return -1;
    if (*f->note && !options->quiet) cli_warn("%s: %s", f->input.name, f->note);
    return 0;
}
