/* file_list.h: the inputs of a tool: operands, names from --files-from, and files below folders.
 * Not for opening them. */
#ifndef KVC_FILE_LIST_H
#define KVC_FILE_LIST_H

#include "cli/cli.h"
#include "cli/options.h"

struct cli_files {
    const char *from; /* --files-from; NULL: not given */
    int null;         /* names in it end in a NUL byte */
    int recursive;
    /* of files below folders, NULL-terminated: only these files, or with `others` only the others
     */
    const char *suffix[4];
    int others;
    /* Of cli_files_collect(): */
    /* 1: names were asked for otherwise than by operands, so that none is not standard input */
    int named;
    char **path;   /* [n] */
    size_t *below; /* [n] bytes of the path that name the folder it was found in, with its slash */
    int n;
};

/* --files-from, -0 and --recursive; their state is a struct cli_files. */
extern const struct cli_option cli_files_options[];
/* Collects the inputs: first the operands, then the names of --files-from, with folders replaced by
 * the files below them if `recursive` is set: in the order of the bytes of their names, without
 * following symbolic links. A folder that cannot be read is an input, which then cannot be opened.
 * 0, or EXIT_TROUBLE (message printed). cli_files_free() in either case. */
int cli_files_collect(struct cli_files *f, int n, char **operand);
void cli_files_free(struct cli_files *f);

#endif
