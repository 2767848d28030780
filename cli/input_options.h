/* input_options.h: options about reading input, and about formats, for all tools. Not for opening
 * (cli.h). */
#ifndef KVC_INPUT_OPTIONS_H
#define KVC_INPUT_OPTIONS_H

#include "cli/cli.h"
#include "cli/options.h"

#define CLI_PAIRING_WORDS "halves|interleaved|none"
/* The options about reading input, which every tool has; their state is a struct cli_input. */
extern const struct cli_option cli_input_options[];
/* Returns the options of formats for reading, or for writing; their state is a struct cli_settings.
 */
const struct cli_option *cli_format_options(int writing);
/* Return the names of the formats that can be written, and of presets and stages, separated by
 * spaces. */
const char *cli_target_names(void);
const char *cli_recipe_names(void);
/* Takes a range "A:B" of positions, or a list of layers, into a struct cli_selection. */
struct cli_selection {
    struct kvc_select_options selection;
    uint8_t *layers; /* of the selection; the caller frees it */
    int given;       /* 1: only a part is wanted */
};
extern const struct cli_option cli_selection_options[];
/* Refuses --OPTION=NAME, because there is no such format. Names a similar format, or lists the
 * formats. Returns EXIT_TROUBLE. */
int cli_no_such_format(const char *option, const char *name, int writing);
/* Fills *f with the row of a format NAME, also with options after a colon; -1 if there is none. */
int cli_find_format(const char *name, struct kvc_format_info *f);
/* Takes $KVC_MODEL as --model=FILE. Must be called before the options are taken, which replace it.
 */
void cli_input_environment(struct cli_input *in);

#endif
