/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Zero checks of pages by an accelerator: the functions that the posted series
 * "Use Intel DSA accelerator to offload zero page checking in multifd live
 * migration" gives migration code, over libvmtax_pageops.
 */
#ifndef QEMU_DSA_H
#define QEMU_DSA_H

#include "qapi/error.h"
#include "qapi/qapi-builtin-types.h"

/* A channel's checks under way. The channel fills in addr. */
typedef struct QemuDsaBatchTask {
    const void **addr;
    bool *results;
} QemuDsaBatchTask;

#ifdef CONFIG_PAGEOPS

/*
 * Starts the engine of this process on the devices of accel-path. Returns 0, or
 * -1 with an error.
 */
int qemu_dsa_init(const strList *dsa_parameter, Error **errp);

/* Until qemu_dsa_start() and after qemu_dsa_stop() no checks are taken. */
void qemu_dsa_start(void);
void qemu_dsa_stop(void);
bool qemu_dsa_is_running(void);

/* Ends the engine and reports what it did. Nothing may be under way. */
void qemu_dsa_cleanup(void);

QemuDsaBatchTask *buffer_zero_batch_task_init(int batch_size);
void buffer_zero_batch_task_destroy(QemuDsaBatchTask *task);

/*
 * Checks count buffers of len bytes; task->results says which are zero. Any
 * thread, each with a task of its own. Returns 0; on anything else the results
 * mean nothing and the caller checks by itself.
 */
int buffer_is_zero_dsa_batch_sync(QemuDsaBatchTask *task, const void **buf,
                                  size_t count, size_t len);

#else

static inline int qemu_dsa_init(const strList *dsa_parameter, Error **errp)
{
    error_setg(errp,
               "accel-path: this QEMU was built without libvmtax_pageops");
    return -1;
}

static inline void qemu_dsa_start(void) {}
static inline void qemu_dsa_stop(void) {}
static inline void qemu_dsa_cleanup(void) {}

static inline bool qemu_dsa_is_running(void)
{
    return false;
}

static inline QemuDsaBatchTask *buffer_zero_batch_task_init(int batch_size)
{
    return NULL;
}

static inline void buffer_zero_batch_task_destroy(QemuDsaBatchTask *task) {}

static inline int buffer_is_zero_dsa_batch_sync(QemuDsaBatchTask *task,
                                                const void **buf,
                                                size_t count, size_t len)
{
    return -1;
}

#endif
#endif
