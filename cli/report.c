/* report.c: the frame of --json for all tools. Not for writing JSON (json.c), nor for a tool's keys
 * of a file. */
#include "cli/cli.h"

#include <string.h>

/* The number increases if a key is removed or changes its meaning. New keys do not change it. */
#define SCHEMA 1

static void head(struct cli_json *j) {
    cli_json_u64(j, "schema", SCHEMA);
    cli_json_text(j, "tool", cli_tool());
}

void cli_report_start(struct cli_report *r, FILE *out) {
    cli_json_start(&r->json, out);
    r->json.lines = r->lines;
    if (r->lines) return;
    cli_json_open(&r->json, NULL, '{');
    head(&r->json);
    cli_json_open(&r->json, "files", '[');
}

void cli_report_file(struct cli_report *r, const char *name) {
    cli_json_open(&r->json, NULL, '{');
    if (r->lines) head(&r->json);
    cli_json_text(&r->json, "file", cli_name(name));
}

void cli_report_file_end(struct cli_report *r) {
    cli_json_close(&r->json);
    if (r->lines) cli_json_end(&r->json);
}

void cli_report_failed(struct cli_report *r, const char *name, const struct kvc_error *e) {
    cli_report_file(r, name);
    cli_json_error(&r->json, e);
    cli_report_file_end(r);
}

struct cli_json *cli_report_total(struct cli_report *r) {
    if (r->lines) return NULL;
    cli_json_close(&r->json);
    cli_json_open(&r->json, "total", '{');
    return &r->json;
}

void cli_report_end(struct cli_report *r) {
    if (r->lines) return;
    if (r->json.depth > 1) cli_json_close(&r->json);
    cli_json_close(&r->json);
    cli_json_end(&r->json);
}

void cli_report_alone(struct cli_report *r, FILE *out) {
    cli_json_start(&r->json, out);
    r->json.lines = r->lines;
    cli_json_open(&r->json, NULL, '{');
    head(&r->json);
}

void cli_report_alone_end(struct cli_report *r, const struct kvc_error *e) {
    while (r->json.depth > 1) cli_json_close(&r->json); /* an error may have occurred anywhere */
    if (e) cli_json_error(&r->json, e);
    cli_json_close(&r->json);
    cli_json_end(&r->json);
}

static const char *kind_of(enum kvc_code code) {
    switch (code) {
    case KVC_ERR_USAGE: return "usage";
    case KVC_ERR_MEMORY: return "memory";
    case KVC_ERR_IO: return "io";
    case KVC_ERR_UNKNOWN_FORMAT: return "unknown-format";
    case KVC_ERR_DAMAGED: return "damaged";
    case KVC_ERR_UNSUPPORTED: return "unsupported";
    case KVC_ERR_NOT_SLICEABLE: return "not-sliceable";
    case KVC_ERR_OTHER_MODEL: return "other-model";
    case KVC_ERR_VERIFY: return "verify";
    default: return "other";
    }
}

void cli_json_error(struct cli_json *j, const struct kvc_error *e) {
    cli_json_open(j, "error", '{');
    cli_json_text(j, "kind", kind_of(kvc_error_code(e)));
    char text[CLI_ERROR_TEXT];
    cli_json_text(j, "message", cli_error_text(e, text, sizeof text));
    cli_json_close(j);
}
