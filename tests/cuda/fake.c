/* fake.c: devices for a libkvc_cuda without CUDA: the host (formats/device/host_device.c), so that
 * all but CUDA itself is tested where there is no GPU. A handle is the path of a file, padded with
 * zeros, which is mapped shared; what is exported are made-up handles. Not installed. */
#include "formats/device/cuda/devices.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAPPINGS = 64 };
static struct mapping {
    void *base;
    size_t size;
} mapped[MAPPINGS];

const char kvc_device_build[] = "the host in a GPU's place";

/* $KVC_FAKE_DEVICES: how many there are; none is a failure, as without a driver. */
int kvc_cuda_count(struct kvc_error *e) {
    const char *n = getenv("KVC_FAKE_DEVICES");
    const int count = n ? atoi(n) : 1;
    return count > 0 ? count
                     : kvc_fail(e, KVC_ERR_UNSUPPORTED, "CUDA cannot be used: there is none");
}

static int open_handle(struct kvc_device *d, const uint8_t handle[KVC_IPC_HANDLE], void **base,
                       struct kvc_error *e) {
    char path[KVC_IPC_HANDLE + 1] = "";
    struct stat st;
    (void)d;
    memcpy(path, handle, KVC_IPC_HANDLE);
    const int fd = open(path, O_RDWR);
    if (fd < 0 || fstat(fd, &st))
        return kvc_fail(e, KVC_ERR_IO, "no memory behind handle '%s'", path);
    *base = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    for (size_t i = 0; i < MAPPINGS && *base != MAP_FAILED; i++) {
        if (mapped[i].base) continue;
        mapped[i] = (struct mapping){*base, (size_t)st.st_size};
        return 0;
    }
    return kvc_fail(e, KVC_ERR_IO, "'%s' cannot be mapped", path);
}

static void close_handle(struct kvc_device *d, void *base) {
    (void)d;
    for (size_t i = 0; i < MAPPINGS; i++)
        if (mapped[i].base == base && base) {
            munmap(base, mapped[i].size);
            mapped[i].base = NULL;
        }
}

struct kvc_device *kvc_device_cuda(int number, struct kvc_error *e) {
    const int count = kvc_cuda_count(e);
    if (count < 0) return NULL;
    if (number < 0 || number >= count) {
        kvc_fail(e, KVC_ERR_USAGE, "there is no device cuda:%d: the last is cuda:%d", number,
                 count - 1);
        return NULL;
    }
    struct kvc_device *d = kvc_device_host(e);
    if (!d) return NULL;
    d->ipc_open = open_handle;
    d->ipc_close = close_handle;
    return d;
}
