/* damage.h: prints the damage of a container, for kvc-dump --check and kvc-unpack --salvage. Not
 * for finding damage (formats/container/salvage.h). */
#ifndef KVC_CLI_DAMAGE_H
#define KVC_CLI_DAMAGE_H

#include "cli/cli.h"
#include "cli/text.h"
#include "formats/container/salvage.h"

/* Prints a line on standard error for each entry, up to 1000, and a summary. */
void cli_say_damage(const char *name, const struct kvc_survey *s);
/* Adds the keys records, damaged_records, whole_layers, whole_tokens and the array damage to the
 * open object. */
void cli_json_damage(struct cli_json *j, const struct kvc_survey *s);
/* Prints a row "damage" for each entry. */
void cli_tsv_damage(FILE *out, const struct kvc_survey *s);

#endif
