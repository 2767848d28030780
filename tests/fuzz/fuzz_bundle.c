/* fuzz_bundle.c: caches of several members, from any bytes of a tar archive. What is imported is
 * packed, and all members must come back. */
#include "tests/fuzz/fuzz_members.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_archive(data, size, NULL);
    return 0;
}
