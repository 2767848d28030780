/* test_control_group.c: the limits of memory and cores by files of /proc and /sys as Linux has
 * them, of both versions of control groups, of a container, and of none. Not for what obeys the
 * limits. */
#include "formats/io/control_group.h"

#include "temp_folder.h"

#include <string.h>
#include <sys/stat.h>

enum { MIB = 1 << 20 };

/* Writes a text to a file, and makes the folders above the file. */
static void put(const char *name, const char *text) {
    char above[256];
    for (const char *slash = strchr(name, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(above, sizeof above, "%.*s", (int)(slash - name), name);
        mkdir(in_folder(above), 0700);
    }
    put_file(name, text, strlen(text));
}

static uint64_t limit(void) {
    return kvc_memory_limit_below(folder);
}

static uint64_t machine(void) {
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void test_none(void **state) {
    (void)state;
    assert_true(limit() == machine());
    put("proc/self/cgroup", "0::/user.slice\n\nno line of it\n9:\n");
    assert_true(limit() == machine());
    put("sys/fs/cgroup/user.slice/memory.max", "max\n");
    assert_true(limit() == machine());
    put("sys/fs/cgroup/user.slice/memory.max", "");
    assert_true(limit() == machine());
    assert_true(kvc_core_limit_below(folder) == UINT64_MAX);
    assert_true(kvc_memory_limit() <= machine() && kvc_memory_limit() > 0);
}

/* The smallest of a group and of those around it counts. */
static void test_version_2(void **state) {
    (void)state;
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/memory.max", "8388608\n");
    assert_int_equal(limit(), 8 * MIB);
    put("sys/fs/cgroup/a/memory.max", "4194304\n");
    assert_int_equal(limit(), 4 * MIB);
    put("sys/fs/cgroup/memory.max", "16777216\n");
    assert_int_equal(limit(), 4 * MIB);
    put("proc/self/cgroup", "0::/\n"); /* as in a container */
    assert_int_equal(limit(), 16 * MIB);
}

/* No limit is a number above any machine's memory; a container's group may be at the top under
 * another name; other controllers have no say. */
static void test_version_1(void **state) {
    (void)state;
    put("proc/self/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/cpu,cpuacct/docker/x/memory.limit_in_bytes", "1048576\n");
    assert_true(limit() == machine());
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "33554432\n");
    assert_int_equal(limit(), 32 * MIB);
    put("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "2097152\n");
    assert_int_equal(limit(), 2 * MIB);
}

/* A quota of time in a period, rounded up. */
static void test_cores(void **state) {
    (void)state;
    put("proc/self/cgroup", "3:cpuset:/z\n2:cpu,cpuacct:/x\n0::/a/b\n");
    put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_true(kvc_core_limit_below(folder) == UINT64_MAX);
    put("sys/fs/cgroup/a/b/cpu.max", "650000 100000\n");
    assert_int_equal(kvc_core_limit_below(folder), 7);
    put("sys/fs/cgroup/a/cpu.max", "600000 100000\n");
    assert_int_equal(kvc_core_limit_below(folder), 6);
    put("sys/fs/cgroup/cpuset/cpu.cfs_quota_us", "1000\n");
    put("sys/fs/cgroup/cpuset/cpu.cfs_period_us", "1000\n");
    put("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "50000\n");
    assert_int_equal(kvc_core_limit_below(folder), 6);
    put("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "200000\n");
    assert_int_equal(kvc_core_limit_below(folder), 4);
    put("sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "0\n");
    assert_int_equal(kvc_core_limit_below(folder), 6);
    put("sys/fs/cgroup/a/b/cpu.max", "1000 100000\n");
    assert_int_equal(kvc_core_limit_below(folder), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_none, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_version_2, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_version_1, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_cores, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
