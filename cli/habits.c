/* habits.c: options of gzip, xz, zstd, tar and diff that the tools do not have, and what to use
 * instead. Not for misspelt options (options.c). */
#include "cli/habits.h"

#include <stddef.h>
#include <string.h>

#define WITHOUT "leave the option out"
#define FILES "kvc-pack kvc-unpack"

/* Options are words: letters, and names without "--". */
static const struct habit {
    const char *tools, *options, *advice;
} habits[] = {
    {FILES " kvc-diff kvc-store", "l list", "kvc-dump --list FILE lists a file"},
    {"kvc-pack", "d decompress uncompress x extract get", "kvc-unpack FILE.kvc unpacks a file"},
    {"kvc-dump", "d decompress uncompress extract get", "kvc-unpack FILE.kvc unpacks a file"},
    {"kvc-unpack", "d decompress uncompress x extract get", "kvc-unpack always unpacks: " WITHOUT},
    {"kvc-unpack kvc-dump", "z compress create", "kvc-pack FILE packs a file"},
    {"kvc-pack", "z compress create", "kvc-pack always packs: " WITHOUT},
    {"kvc-pack", "1 2 3 4 5 6 7 8 9 best fast ultra level e extreme",
     "there are no levels: -r fast takes the shortest time, -r split (the default) makes smaller "
     "files, lossy recipes "
     "(kvc-recipes(7)) the smallest"},
    {"kvc-pack", "b bench benchmark",
     "kvc-pack --curve FILE prints ratio and error of each preset"},
    {"kvc-pack", "D dict", "--profile=FILE gives what the caches of a model have in common"},
    {"kvc-unpack", "check integrity", "-t checks files and writes nothing"},
    {"kvc-dump", "l", "--list prints a row for each file"},
    {"kvc-dump", "t test integrity", "--check checks files"},
    {"kvc-pack", "learn-profile learn-layers", "kvc-profile learn FILE... makes a profile"},
    {FILES, "to-stdout", "-c writes to standard output"},
    {FILES, "C directory output-dir-flat", "--output-dir=DIR writes to files in DIR"},
    {FILES, "S", "--suffix=SUFFIX names the suffix of containers"},
    {FILES, "p progress no-progress", "progress is shown on a terminal; -q leaves it out"},
    {"kvc-pack", "R", "--recursive packs each file below a folder"},
    {"kvc-unpack kvc-dump", "r R", "--recursive takes each .kvc below a folder"},
    {"kvc-diff", "s report-identical-files", "-v also prints what is equal"},
    {"kvc-diff", "brief", "-q prints nothing: the exit status is the answer"},
    {"kvc-diff", "r recursive", "kvc-diff compares two caches: name both files"},
    {"kvc-diff", "u c unified context y side-by-side", "--report prints each value that differs"},
    {"kvc-dump", "i info", "kvc-dump FILE prints a summary: " WITHOUT},
};

/* Returns 1 if a text of words separated by spaces has the word. */
static int has_word(const char *words, const char *word) {
    const size_t n = strlen(word);
    for (const char *at = words; n && (at = strstr(at, word)); at++)
        if ((at == words || at[-1] == ' ') && (at[n] == ' ' || !at[n])) return 1;
    return 0;
}

const char *cli_habit(const char *tool, const char *option) {
    for (size_t i = 0; i < sizeof habits / sizeof habits[0]; i++)
        if (has_word(habits[i].tools, tool) && has_word(habits[i].options, option))
            return habits[i].advice;
    return NULL;
}
