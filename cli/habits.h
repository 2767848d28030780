/* habits.h: options of gzip, xz, zstd, tar and diff that the tools do not have, and what to use
 * instead. Not for misspelt options (options.c). */
#ifndef KVC_HABITS_H
#define KVC_HABITS_H

/* Returns the advice for an unknown option of a tool, or NULL. `option` is a letter, or a name
 * without "--". */
const char *cli_habit(const char *tool, const char *option);

#endif
