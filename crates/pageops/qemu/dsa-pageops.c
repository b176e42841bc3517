/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Zero checks by libvmtax_pageops: Intel DSA, a model of it, or the processor.
 * One engine serves all channels; it bounds every wait and finishes on the
 * processor what a device does not.
 */
#include "qemu/osdep.h"
#include "qemu/atomic.h"
#include "qemu/dsa.h"
#include "qemu/error-report.h"
#include "qemu/stats64.h"
#include <vmtax_pageops.h>

/* Between two looks whether the engine still lives. */
#define WAIT_MS 1000

typedef struct PageopsTask {
    QemuDsaBatchTask task;
    size_t batch_size;
    PageopsOp *ops;
    PageopsOutcome *outcomes;
} PageopsTask;

static PageopsEngine *engine;
static bool running;
static Stat64 checked;
static Stat64 zero;

int qemu_dsa_init(const strList *dsa_parameter, Error **errp)
{
    g_autoptr(GString) accel = g_string_new(NULL);
    char error[512];

    if (engine) {
        return 0;
    }
    if (pageops_abi() != PAGEOPS_ABI) {
        error_setg(errp, "accel-path: libvmtax_pageops %s has ABI %u, not %u",
                   pageops_version(), pageops_abi(), PAGEOPS_ABI);
        return -1;
    }
    for (const strList *path = dsa_parameter; path; path = path->next) {
        g_string_append_printf(accel, "%s%s", accel->len ? "," : "",
                               path->value);
    }
    engine = pageops_engine_new(accel->str, error, sizeof(error));
    if (!engine) {
        error_setg(errp, "accel-path: %s", error);
        return -1;
    }
    stat64_init(&checked, 0);
    stat64_init(&zero, 0);
    return 0;
}

void qemu_dsa_start(void)
{
    qatomic_set(&running, engine != NULL);
}

void qemu_dsa_stop(void)
{
    qatomic_set(&running, false);
}

bool qemu_dsa_is_running(void)
{
    return qatomic_read(&running);
}

void qemu_dsa_cleanup(void)
{
    char text[512];

    if (!engine) {
        return;
    }
    qemu_dsa_stop();
    pageops_engine_describe(engine, text, sizeof(text));
    info_report("accel-path: %" PRIu64 " pages checked, %" PRIu64 " zero: %s",
                stat64_get(&checked), stat64_get(&zero), text);
    pageops_engine_free(engine);
    engine = NULL;
}

QemuDsaBatchTask *buffer_zero_batch_task_init(int batch_size)
{
    PageopsTask *t = g_new0(PageopsTask, 1);

    t->batch_size = batch_size;
    t->task.addr = g_new0(const void *, batch_size);
    t->task.results = g_new0(bool, batch_size);
    t->ops = g_new0(PageopsOp, batch_size);
    t->outcomes = g_new0(PageopsOutcome, batch_size);
    return &t->task;
}

void buffer_zero_batch_task_destroy(QemuDsaBatchTask *task)
{
    PageopsTask *t = container_of(task, PageopsTask, task);

    g_free(t->task.addr);
    g_free(t->task.results);
    g_free(t->ops);
    g_free(t->outcomes);
    g_free(t);
}

int buffer_is_zero_dsa_batch_sync(QemuDsaBatchTask *task, const void **buf,
                                  size_t count, size_t len)
{
    PageopsTask *t = container_of(task, PageopsTask, task);
    PageopsJob *job;
    uint64_t found = 0;
    int ended;

    if (!qemu_dsa_is_running() || count > t->batch_size) {
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        t->ops[i] = (PageopsOp) {
            .kind = PAGEOPS_ZERO, .src = buf[i], .len = len,
        };
    }
    job = pageops_submit(engine, t->ops, count, NULL, 0);
    if (!job) {
        return -1;
    }
    do {
        ended = pageops_job_wait(job, WAIT_MS, t->outcomes, count);
    } while (ended == 0);
    pageops_job_free(job);
    if (ended < 0) {
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        task->results[i] = t->outcomes[i].value == 1;
        found += task->results[i];
    }
    stat64_add(&checked, count);
    stat64_add(&zero, found);
    return 0;
}
