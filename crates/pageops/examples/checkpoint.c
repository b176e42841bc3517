/* A VMM's snapshot in C: which pages must be saved, with which checksums, and what changed since the last time.
 *
 *   cc checkpoint.c $(pkg-config --cflags --libs vmtax-pageops)
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "vmtax_pageops.h"

#define PAGE 4096
#define PAGES 256

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

int main(void) {
    uint8_t *memory = aligned_alloc(PAGE, PAGES * PAGE), *saved = aligned_alloc(PAGE, PAGES * PAGE);
    if (!memory || !saved) fail("no memory");
    for (int i = 0; i < PAGES; i++)
        for (int j = 0; j < PAGE; j++)
            memory[i * PAGE + j] = i % 4 == 0 ? 0 : (uint8_t)(i * 31 + j * 7);

    /* One read: zero pages, checksums, and the copy that goes on being valid while the VM runs on. */
    PageopsFacts facts[PAGES];
    pageops_copy_scan(saved, memory, PAGES, facts);
    int zero = 0;
    for (int i = 0; i < PAGES; i++) zero += facts[i].zero;
    printf("%s: %d of %d pages are zero\n", pageops_variant(), zero, PAGES);

    /* The VM runs on; what changed goes out as deltas. */
    memory[5 * PAGE + 100] ^= 1;
    uint8_t delta[PAGE];
    int64_t size = pageops_xbzrle_encode(saved + 5 * PAGE, memory + 5 * PAGE, PAGE, delta, sizeof delta);
    if (size <= 0) fail("the change was not seen");
    if (pageops_xbzrle_decode(delta, size, saved + 5 * PAGE, PAGE) < 0) fail("the delta is none");
    if (pageops_compare(saved, memory, PAGES * PAGE) != -1) fail("the delta is wrong");
    printf("page 5 changed: a delta of %" PRId64 " bytes\n", size);

    /* The same zero checks by an engine, here on devices in software. */
    char error[256];
    PageopsEngine *engine = pageops_engine_new("model", error, sizeof error);
    if (!engine) fail(error);
    PageopsOp ops[PAGES];
    for (int i = 0; i < PAGES; i++)
        ops[i] = (PageopsOp){ .kind = PAGEOPS_ZERO, .src = memory + i * PAGE, .len = PAGE };
    PageopsJob *job = pageops_submit(engine, ops, PAGES);
    if (!job) fail("an operation of no known kind");
    PageopsOutcome outcomes[PAGES];
    while (!pageops_job_wait(job, 1000, outcomes)) puts("still waiting");
    for (int i = 0; i < PAGES; i++)
        if (outcomes[i].value != facts[i].zero) fail("device and processor do not agree");
    char text[256];
    pageops_engine_describe(engine, text, sizeof text);
    printf("engine: %s\n", text);
    pageops_job_free(job);
    pageops_engine_free(engine);

    if (pageops_engine_new("dsa:/dev/dsa/wq99.0", error, sizeof error)) fail("a queue that there is not");
    printf("without hardware: %s\n", error);
    free(memory);
    free(saved);
    return 0;
}
