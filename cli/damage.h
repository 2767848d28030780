/* damage.h: prints what is damaged in a file that was opened as damaged, for kvc-dump --check and
 * kvc-unpack --salvage. */
#ifndef KVC_CLI_DAMAGE_H
#define KVC_CLI_DAMAGE_H

#include "cli/cli.h"
#include "cli/text.h"

/* Prints a line on standard error for each entry, up to 1000, and a summary. */
void cli_say_damage(const char *name, const struct kvc_file *f);
/* Adds the keys records, damaged_records, whole_layers, whole_tokens and the array damage to the
 * open object. */
void cli_json_damage(struct cli_json *j, const struct kvc_file *f);
/* Prints a row "damage" for each entry. */
void cli_tsv_damage(FILE *out, const struct kvc_file *f);

#endif
