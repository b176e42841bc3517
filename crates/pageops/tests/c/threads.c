/* Threads that share one engine: each hands in jobs, gives up waiting at once and waits again, and has its own outcomes; two
 * threads that wait for one job both have all of them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "vmtax_pageops.h"

#define PAGE 4096
#define THREADS 8
#define ROUNDS 50
#define PAGES 64

static PageopsEngine *engine;
static PageopsJob *shared;
static uint8_t memory[PAGES][PAGE];

static void *channel(void *argument) {
    long me = (long)argument, wrong = 0;
    static _Thread_local uint8_t copy[PAGES][PAGE];
    PageopsOp ops[PAGES];
    PageopsOutcome outcomes[PAGES], again[PAGES];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < PAGES; i++)
            ops[i] = (i + me) % 2 ? (PageopsOp){ .kind = PAGEOPS_ZERO, .src = memory[i], .len = PAGE }
                                  : (PageopsOp){ .kind = PAGEOPS_COPY_CRC32C, .src = memory[i], .dst = copy[i], .len = PAGE };
        PageopsJob *job = pageops_submit(engine, ops, PAGES, NULL, 0);
        if (!job) return (void *)1;
        memset(outcomes, 0xee, sizeof outcomes);
        int ended = pageops_job_wait(job, 0, outcomes, PAGES);
        while (ended == 0) ended = pageops_job_wait(job, 1, outcomes, PAGES);
        if (ended != 1 || pageops_job_wait(job, 0, again, PAGES) != 1) return (void *)1;
        for (int i = 0; i < PAGES; i++) {
            uint64_t right = (i + me) % 2 ? i % 3 == 0 : (uint64_t)pageops_crc32c(0, memory[i], PAGE);
            wrong += outcomes[i].value != right || again[i].value != right || outcomes[i].result != 0;
            if (!((i + me) % 2)) wrong += memcmp(copy[i], memory[i], PAGE) != 0;
        }
        memset(copy, 0, sizeof copy);
        wrong += pageops_job_free(job) != 0;
    }
    PageopsOutcome all[PAGES];
    while (pageops_job_wait(shared, 1, all, PAGES) == 0) {}
    for (int i = 0; i < PAGES; i++) wrong += all[i].value != (uint64_t)(i % 3 == 0);
    return (void *)wrong;
}

int main(void) {
    char error[256];
    engine = pageops_engine_new("model", error, sizeof error);
    if (!engine) return fprintf(stderr, "%s\n", error), 1;
    PageopsOp ops[PAGES];
    for (int i = 0; i < PAGES; i++) {
        if (i % 3) memset(memory[i], i, PAGE);
        ops[i] = (PageopsOp){ .kind = PAGEOPS_ZERO, .src = memory[i], .len = PAGE };
    }
    shared = pageops_submit(engine, ops, PAGES, error, sizeof error);
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, channel, (void *)i)) return 1;
    long wrong = 0;
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        wrong += (long)result;
    }
    PageopsCounts counts;
    if (pageops_engine_counts(engine, &counts)) return 1;
    uint64_t all = counts.on_device + counts.on_cpu;
    if (all != PAGES + (uint64_t)THREADS * ROUNDS * PAGES) return fprintf(stderr, "%lu operations\n", (unsigned long)all), 1;
    /* The engine ends before its last job is waited for. */
    PageopsJob *last = pageops_submit(engine, ops, PAGES, error, sizeof error);
    if (pageops_engine_free(engine) || pageops_job_wait(last, 0, NULL, 0) != 1) return 1;
    printf("%d threads, %ld wrong outcomes\n", THREADS, wrong);
    return wrong != 0;
}
