/* large_files.h: the names of the calls that tests take the place of (ld --wrap). glibc's have 64
 * in their names for files of any size, other C libraries' have not. Not for the library. */
#ifndef KVC_TESTS_LARGE_FILES_H
#define KVC_TESTS_LARGE_FILES_H

#include <features.h>

#ifndef __GLIBC__
#define __real_fcntl64 __real_fcntl
#define __wrap_fcntl64 __wrap_fcntl
#define __real_fstat64 __real_fstat
#define __wrap_fstat64 __wrap_fstat
#define __real_fstatat64 __real_fstatat
#define __wrap_fstatat64 __wrap_fstatat
#define __real_fstatvfs64 __real_fstatvfs
#define __wrap_fstatvfs64 __wrap_fstatvfs
#define __real_ftruncate64 __real_ftruncate
#define __wrap_ftruncate64 __wrap_ftruncate
#define __real_open64 __real_open
#define __wrap_open64 __wrap_open
#define __real_openat64 __real_openat
#define __wrap_openat64 __wrap_openat
#define __real_pread64 __real_pread
#define __wrap_pread64 __wrap_pread
#define __real_pwrite64 __real_pwrite
#define __wrap_pwrite64 __wrap_pwrite
#define __real_stat64 __real_stat
#define __wrap_stat64 __wrap_stat
#endif

#endif
