/* cli.c: messages, versions and opening of caches, for all tools. Not for output (output.c) or
 * options (input_options.c). */
#include "cli/cli.h"
#include "cli/text.h"

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

const char *cli_name(const char *path) {
    return strcmp(path, "-") == 0 ? "(stdin)" : path;
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
        [KVC_NEED_PROFILE] = "--profile=FILE names it for one command",
        [KVC_NEED_QUERIES] = "give --queries=FILE or --model=FILE",
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
    const unsigned need = (unsigned)kvc_error_need(e);
    const char *hint = need < sizeof hints / sizeof hints[0] ? hints[need] : NULL;
    if (need == KVC_NEED_EACH && !has_recursive()) hint = NULL;
    if (need == KVC_NEED_AS_INPUT && strcmp(tool, "kvc-profile") == 0) hint = NULL;
    /* its objects are no files of the user */
    if (need == KVC_NEED_SALVAGE && strcmp(tool, "kvc-store") == 0) hint = NULL;
    snprintf(text, size, "%s%s%s", kvc_error_message(e), hint ? "; " : "", hint ? hint : "");
    return text;
}

void cli_error(const struct kvc_error *e) {
    char text[CLI_ERROR_TEXT];
    print_message(cli_error_text(e, text, sizeof text));
}

const char *cli_error_unnamed(const struct kvc_error *e, const char *name) {
    const char *text = kvc_error_message(e);
    const size_t n = strlen(name);
    return strncmp(text, name, n) == 0 && strncmp(text + n, ": ", 2) == 0 ? text + n + 2 : text;
}

struct kvc_error *cli_error_new(void) {
    struct kvc_error *e = kvc_error_new();
    if (e) return e;
    cli_warn("out of memory");
    exit(EXIT_TROUBLE);
}

void *cli_room_for_one(void *array, size_t n, size_t size) {
    /* it doubles at powers of 2 */
    return n & (n - 1) ? array : reallocarray(array, n ? 2 * n : 1, size);
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

static void print_names(const char *heading, const char *(*name)(size_t i)) {
    printf("%s:", heading);
    for (size_t i = 0; name(i); i++) printf(" %s", name(i));
    putchar('\n');
}

static const char *preset_name(size_t i) {
    return kvc_preset_name(i, NULL);
}

static const char *format_name(size_t i) {
    struct kvc_format_info f = {.size = sizeof f};
    return kvc_format_describe(i, &f) ? NULL : f.name;
}

int cli_version(int verbose, void (*more)(void)) {
    printf("%s %s (format %u)\n", tool, kvc_version(), kvc_version_of_format());
    if (verbose) {
        struct kvc_kernels_info kernels = {.size = sizeof kernels};
        kvc_kernels_describe(&kernels);
        printf("kernels: %s (of", kernels.name ? kernels.name : "none");
        for (size_t i = 0; kvc_kernel_name(i); i++) printf(" %s", kvc_kernel_name(i));
        printf(")\n");
        if (kernels.name)
            printf("rANS: %s encodes, %s decodes (%s)\npredictions: %s\n", kernels.rans_encode,
                   kernels.rans_decode, kernels.by_trial ? "by trial" : "by KVC_KERNEL",
                   kernels.predictions);
        print_names("stages", kvc_stage_name);
        print_names("presets", preset_name);
        print_names("formats", format_name);
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

/* --- opening --- */

void cli_note(void *state, enum kvc_note number, const char *name, const char *text) {
    static const char *const hints[] = {
        [KVC_NOTE_TWICE] = "; --base=OLD.kvc would keep its blocks",
        [KVC_NOTE_HEADS_UNKNOWN] = "; give --model or --kv-heads",
        [KVC_NOTE_PAIRING_UNKNOWN] = "; give --model or --pairing",
    };
    const size_t n = (size_t)number;
    (void)state;
    cli_warn("%s: %s%s", name, text, n < sizeof hints / sizeof *hints && hints[n] ? hints[n] : "");
}

int cli_given_open(struct cli_input *in, struct kvc_open_options *o, struct kvc_error *e) {
    if (in->open.model && !in->model &&
        !(in->model = kvc_shared_model_open(in->open.model, !in->sampled_fingerprint, e)))
        return -1;
    if (in->open.weights && !in->weights &&
        !(in->weights = kvc_shared_weights_open(in->open.weights, e)))
        return -1;
    *o = in->open;
    o->size = sizeof *o;
    o->shared_model = in->open.model ? in->model : NULL;
    o->shared_weights = in->weights;
    o->map = 1;
    o->note = in->quiet ? NULL : cli_note;
    return 0;
}

int cli_refuse_terminal(const char *path, struct kvc_error *e) {
    if (strcmp(path, "-") != 0 || !isatty(STDIN_FILENO)) return 0;
    return cli_usage_error(e, "standard input is a terminal: give a FILE or a pipe");
}

struct kvc_file *cli_open(const char *path, struct cli_input *in, struct kvc_error *e) {
    struct kvc_open_options o;
    if (cli_refuse_terminal(path, e) || cli_given_open(in, &o, e)) return NULL;
    return kvc_file_open(path, &o, e);
}

int cli_token_ids(struct cli_token_ids *ids, const char *path, const struct cli_input *in,
                  struct kvc_error *e) {
    struct kvc_open_options o = in->open;
    o.size = sizeof o;
    o.model = o.weights = NULL; /* no values are read */
    return kvc_token_ids_read(path, &o, &ids->id, &ids->n, e);
}
