/* replay.c: runs a fuzz target over files and directories, without a fuzzing engine. Each file gets
 * a process of its own, so that one crash does not hide the others. Exit code 0 when all pass. */
#include "tests/fuzz/fuzz.h"

#include <ftw.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS = 60, OPEN_DIRECTORIES = 16 };

static unsigned passed, failed;

/* In the child: the file's bytes, in a block that is exactly as large. */
static void run(const char *path, size_t size) {
    FILE *f = fopen(path, "rb");
    uint8_t *data = fuzz_alloc(size);
    if (!f || fread(data, 1, size, f) != size) fuzz_die("cannot be read", NULL);
    fclose(f);
    alarm(SECONDS);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
}

static int visit(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)ftw;
    if (type == FTW_D) return 0;
    int status = -1;
    fflush(NULL);
    pid_t child = type == FTW_F ? fork() : -1;
    if (child == 0) {
        run(path, (size_t)st->st_size);
        exit(0);
    }
    if (child > 0 && waitpid(child, &status, 0) == child && status == 0) {
        passed++;
        return 0;
    }
    if (child > 0 && WIFSIGNALED(status))
        printf("%s: failed (signal %d)\n", path, WTERMSIG(status));
    else printf("%s: failed\n", path);
    failed++;
    return 0;
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (nftw(argv[i], visit, OPEN_DIRECTORIES, FTW_PHYS) == 0) continue;
        printf("%s: cannot be read\n", argv[i]);
        failed++;
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed || !passed;
}
