/* control_group.h: how much of the machine's memory and cores this process may use, where a control
 * group has less than all of them, as a container has (Linux, cgroups(7), both versions). Not for
 * what is free at the moment. Read once; `_below` reads proc and sys in another root, for tests. */
#ifndef KVC_CONTROL_GROUP_H
#define KVC_CONTROL_GROUP_H

#include <stdint.h>

/* Returns bytes: the machine's memory, or the limit; 1 GiB where the system does not say. */
uint64_t kvc_memory_limit(void);
uint64_t kvc_memory_limit_below(const char *root);

/* Returns cores: the quota of processor time, rounded up, at least 1; UINT64_MAX: none. */
uint64_t kvc_core_limit(void);
uint64_t kvc_core_limit_below(const char *root);

#endif
