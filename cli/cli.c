/* cli.c: messages, versions, input options and opening caches, for all four tools. Not for output (output.c). */
#include "cli/cli.h"
#include "cli/text.h"

#include "codecs/near.h"
#include "codecs/presets.h"
#include "codecs/registry.h"
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

enum { KEPT_BYTES = 32 << 20 }; /* of freed memory that is not given back */

/* A mapped file that shrinks, or whose disk fails, shows as SIGBUS. */
static void on_bus_error(int number) {
    static const char text[] = ": an input file changed or could not be read while it was in use\n";
    (void)number;
    cli_output_remove_all();
    if (write(2, tool, strlen(tool)) < 0 || write(2, text, sizeof text - 1) < 0) _exit(EXIT_TROUBLE);
    _exit(EXIT_TROUBLE);
}

static void on_interrupt(int number) {
    cli_output_remove_all();
    signal(number, SIG_DFL);
    raise(number);
}

void cli_start(char **argv, const char *name) {
    static char copy[32];
    static char buffer[64 << 10]; /* so that most reports are written at the end, where cli_finish() learns why they cannot be */
    snprintf(copy, sizeof copy, "%s", name);
    tool = argv[0] = copy;
    if (!isatty(STDOUT_FILENO)) setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    /* A closed descriptor would be given to the next file that is opened, and messages would end up in it. Opened this
     * way round, reading and writing one that was closed still fails. */
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            _exit(EXIT_TROUBLE);
    const int ending[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    struct sigaction interrupt = {.sa_handler = on_interrupt}, bus = {.sa_handler = on_bus_error}, was;
    for (size_t i = 0; i < sizeof ending / sizeof ending[0]; i++) /* nohup's way of ignoring stays */
        if (sigaction(ending[i], NULL, &was) == 0 && was.sa_handler != SIG_IGN) sigaction(ending[i], &interrupt, NULL);
    sigaction(SIGXFSZ, &(struct sigaction){.sa_handler = SIG_IGN}, NULL); /* then write() says EFBIG */
    sigaction(SIGBUS, &bus, NULL);
#if defined(__GLIBC__)
    /* Blocks come and go by the thousand; to fault their memory in each time would cost as much as decoding them. */
    mallopt(M_MMAP_THRESHOLD, KEPT_BYTES);
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
#endif
}

const char *cli_tool(void) {
    return tool;
}

/* File names and metadata get into messages: what a terminal would obey is shown as \xNN. */
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

void cli_error(const struct kvc_error *e) {
    print_message(e->message);
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
        more();
    }
    return cli_finish(EXIT_SAME);
}

int cli_finish(int status) {
    int failed = ferror(stdout);
    size_t unwritten = __fpending(stdout);
    errno = 0;
    /* closed from the start is fine for a program that printed nothing */
    if ((fclose(stdout) && (unwritten || errno != EBADF)) || failed) {
        cli_warn("write error on standard output: %s", errno ? strerror(errno) : "output was lost");
        return EXIT_TROUBLE;
    }
    return status;
}

/* "key=value,key=value" into the raw geometry. */
static int parse_raw(struct cli_input *in, const char *arg) {
    char *copy = strdup(arg), *rest = copy, *item;
    int status = copy ? 0 : -1;
    while (!status && (item = strsep(&rest, ","))) {
        char *value = strchr(item, '=');
        if (!value) {
            status = -1;
            break;
        }
        *value++ = '\0';
        uint64_t *number = strcmp(item, "layers") == 0   ? &in->import.raw_layers
                           : strcmp(item, "tokens") == 0 ? &in->import.raw_tokens
                           : strcmp(item, "heads") == 0  ? &in->import.raw_heads
                           : strcmp(item, "dim") == 0    ? &in->import.raw_dim
                           : strcmp(item, "offset") == 0 ? &in->import.raw_offset
                                                         : NULL;
        if (number) {
            status = cli_parse_u64(value, number);
        } else if (strcmp(item, "dtype") == 0 && strlen(value) < sizeof in->raw_dtype) {
            strcpy(in->raw_dtype, value);
            in->import.raw_dtype = in->raw_dtype;
        } else if (strcmp(item, "order") == 0 && strlen(value) < sizeof in->raw_order) {
            strcpy(in->raw_order, value);
            in->import.raw_order = in->raw_order;
        } else {
            status = -1;
        }
    }
    free(copy);
    if (status) cli_usage("--raw=%s is not dtype=f16,layers=L,tokens=T,heads=H,dim=D[,order=lcthd][,offset=N]", arg);
    return status ? -1 : 1;
}

void cli_input_environment(struct cli_input *in) {
    const char *model = getenv("KVC_MODEL");
    if (model && *model) in->model_path = model;
}

int cli_input_option(struct cli_input *in, int opt, const char *arg) {
    uint64_t n;
    switch (opt) {
    case CLI_OPT_FROM:
        if (!kvc_format_find(arg)) {
            struct kvc_near near = {.word = arg};
            for (size_t i = 0; kvc_format_at(i); i++) kvc_near_offer(&near, kvc_format_at(i)->name);
            if (*near.text) cli_usage("--from=%s: there is no such format; did you mean %s?", arg, near.text);
            else cli_usage("--from=%s: there is no such format (kvc, llama, safetensors, npz, raw)", arg);
            return -1;
        }
        in->import.format = arg;
        return 1;
    case CLI_OPT_MAP:
        if (in->n_map + 1 == sizeof in->map / sizeof in->map[0]) {
            cli_usage("too many --map options");
            return -1;
        }
        in->map[in->n_map++] = arg;
        in->import.map = in->map;
        return 1;
    case CLI_OPT_KV_HEADS:
        if (cli_parse_u64(arg, &n) || !n || n > UINT16_MAX) {
            cli_usage("--kv-heads=%s is not a number of heads", arg);
            return -1;
        }
        in->import.kv_heads = (uint32_t)n;
        return 1;
    case CLI_OPT_PAIRING:
        if (!kvc_pairing_parse(arg, &in->import.pairing)) {
            cli_usage("--pairing=%s is none of halves, interleaved, none", arg);
            return -1;
        }
        return 1;
    case CLI_OPT_LATENT: in->import.latent = 1; return 1;
    case CLI_OPT_RAW: return parse_raw(in, arg);
    case CLI_OPT_MODEL: in->model_path = arg; return 1;
    case CLI_OPT_WEIGHTS: in->weights_path = arg; return 1;
    case CLI_OPT_PROFILE: in->import.profile = arg; return 1;
    default: return 0;
    }
}

int cli_check_kernels(struct kvc_error *e) {
    if (kvc_kernels_get()) return 0;
    return kvc_fail(e, KVC_ERR_USAGE, "KVC_KERNEL=%s names no kernel table that this CPU can run", getenv("KVC_KERNEL"));
}

static struct kvc_weights *open_weights;

static void close_weights(void) {
    kvc_weights_close(open_weights);
}

int cli_open_weights(struct cli_input *options, struct kvc_error *e) {
    if (!options->weights_path || options->weights) return 0;
    options->weights = open_weights = kvc_weights_open(options->weights_path, e);
    if (!open_weights) return kvc_error_prefix(e, options->weights_path);
    atexit(close_weights);
    return 0;
}

int cli_refuse_terminal(const char *path, struct kvc_error *e) {
    if (strcmp(path, "-") != 0 || !isatty(STDIN_FILENO)) return 0;
    return kvc_fail(e, KVC_ERR_USAGE, "standard input is a terminal: give a FILE or a pipe");
}

int cli_open(struct cli_file *f, const char *path, struct cli_input *options, struct kvc_error *e) {
    memset(f, 0, sizeof *f);
    if (cli_check_kernels(e) || cli_refuse_terminal(path, e)) return -1;
    if (options->model_path && !options->has_model) {
        if (kvc_model_read(options->model_path, options->full_fingerprint, &options->model, e))
            return kvc_error_prefix(e, options->model_path);
        options->has_model = 1;
    }
    if (cli_open_weights(options, e)) return -1;
    struct kvc_import_options import = options->import;
    import.weights = options->weights;
    if (options->has_model && !import.kv_heads && options->model.kv_heads <= UINT16_MAX)
        import.kv_heads = (uint32_t)options->model.kv_heads;
    if (kvc_input_open_sniffed(&f->input, path, kvc_format_sniff, &import, e)) return -1;
    f->cache = kvc_import(&f->input, &import, &f->format, e);
    char note[512] = "";
    int status = f->cache ? 0 : -1;
    if (!status && options->has_model && kvc_model_apply(&options->model, f->cache, note, sizeof note, e))
        status = kvc_error_prefix(e, f->input.name);
    if (*note && !options->quiet) cli_warn("%s: %s", f->input.name, note);
    if (status) cli_close(f);
    return status;
}

void cli_close(struct cli_file *f) {
    kvc_cache_free(f->cache);
    kvc_input_close(&f->input);
    memset(f, 0, sizeof *f);
}
