/* memory_limit.h: how many bytes of memory this process may have at most. Not for how many are
 * free. */
#ifndef KVC_MEMORY_LIMIT_H
#define KVC_MEMORY_LIMIT_H

#include <stdint.h>

/* Returns the bytes of memory that the machine has, or fewer where a control group allows fewer, as
 * in a container (Linux, cgroups(7), both versions); 1 GiB where the system does not say. `root`
 * has proc and sys; "" but in tests. */
uint64_t kvc_memory_limit(const char *root);

#endif
