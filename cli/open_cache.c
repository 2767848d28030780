/* open_cache.c: opens a cache for tools that read it by the library's own structs. */
#include "cli/open_cache.h"

#include "formats/api/kvc_file.h"

#include <string.h>

int cli_open_cache(struct kvc_opened *f, const char *path, struct cli_input *in,
                   struct kvc_error *e) {
    struct kvc_open_options o;
    struct kvc_file_opening by;
    memset(f, 0, sizeof *f);
    if (cli_refuse_terminal(path, e) || cli_given_open(in, &o, e)) return -1;
    int status = kvc_file_opening_begin(&by, &o, e);
    if (!status) status = kvc_open_path(f, path, &by.how, e);
    kvc_file_opening_end(&by);
    if (!status && *f->note && o.note) o.note(o.note_state, KVC_NOTE_MODEL, f->input.name, f->note);
    return status;
}
