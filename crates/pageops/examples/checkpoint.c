/* A VMM's snapshot in C: which pages must be saved, with which checksums, what changed since the last time, and a checkpoint
 * with an increment, written, verified and restored.
 *
 *   cc checkpoint.c $(pkg-config --cflags --libs vmtax-pageops)
 *   ./a.out FOLDER
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "vmtax_pageops.h"

#define PAGE 4096
#define PAGES 256

static char error[512];

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, error);
    exit(1);
}

/* Memory, device state and all, to one file; `parent` is what the difference is saved to, or NULL. */
static void save(const char *path, const char *parent, PageopsEngine *engine, const uint8_t *memory) {
    PageopsCheckpointOptions options = { .zstd = 1, .parent = parent, .engine = engine };
    PageopsWriter *writer = pageops_checkpoint_create(path, &options, error, sizeof error);
    if (!writer) fail("create");
    if (pageops_checkpoint_region(writer, "ram", PAGES, error, sizeof error)) fail("region");
    if (pageops_checkpoint_pages(writer, 0, memory, PAGES, error, sizeof error)) fail("pages");
    const uint8_t state[] = "registers";
    PageopsContents contents = { .state = state, .state_len = sizeof state };
    PageopsSummary summary;
    if (pageops_checkpoint_finish(writer, &contents, &summary, error, sizeof error)) fail("finish");
    printf("saved: %" PRIu64 " zero, %" PRIu64 " unchanged, %" PRIu64 " delta, %" PRIu64 " others\n", summary.zero,
           summary.unchanged, summary.deltas, summary.raw + summary.compressed + summary.filled);
}

int main(int argc, char **argv) {
    if (argc != 2) fail("usage: checkpoint FOLDER");
    if (pageops_abi() != PAGEOPS_ABI) fail("the library does not fit the header");
    uint8_t *memory = aligned_alloc(PAGE, PAGES * PAGE), *saved = aligned_alloc(PAGE, PAGES * PAGE);
    if (!memory || !saved) fail("no memory");
    for (int i = 0; i < PAGES; i++)
        for (int j = 0; j < PAGE; j++)
            memory[i * PAGE + j] = i % 4 == 0 ? 0 : (uint8_t)(i * 31 + j * 7);

    /* One read: zero pages, checksums, and the copy that stays valid while the VM runs on. */
    PageopsFacts facts[PAGES];
    if (pageops_copy_scan(saved, memory, PAGES, facts)) fail("copy_scan");
    int zero = 0;
    for (int i = 0; i < PAGES; i++) zero += facts[i].zero;
    printf("%s %s: %d of %d pages are zero\n", pageops_version(), pageops_variant(), zero, PAGES);

    /* The same zero checks by an engine, here on devices in software; threads may share it. */
    PageopsEngine *engine = pageops_engine_new("model", error, sizeof error);
    if (!engine) fail("engine");
    PageopsOp ops[PAGES];
    for (int i = 0; i < PAGES; i++)
        ops[i] = (PageopsOp){ .kind = PAGEOPS_ZERO, .src = memory + i * PAGE, .len = PAGE };
    PageopsJob *job = pageops_submit(engine, ops, PAGES, error, sizeof error);
    if (!job) fail("submit");
    PageopsOutcome outcomes[PAGES];
    int ended;
    while ((ended = pageops_job_wait(job, 1000, outcomes, PAGES)) == 0) puts("still waiting");
    if (ended < 0) fail("wait");
    for (int i = 0; i < PAGES; i++)
        if (outcomes[i].value != facts[i].zero) fail("device and processor do not agree");
    pageops_job_free(job);
    char text[256];
    pageops_engine_describe(engine, text, sizeof text);
    printf("engine: %s\n", text);

    char base[4096], child[4096];
    snprintf(base, sizeof base, "%s/base.ckpt", argv[1]);
    snprintf(child, sizeof child, "%s/child.ckpt", argv[1]);
    save(base, NULL, engine, memory);

    /* The VM runs on; what changed goes out as a delta, in QEMU's form and in DSA's, and as an increment. */
    memory[5 * PAGE + 100] ^= 1;
    uint8_t delta[PAGE], record[80];
    int64_t size = pageops_xbzrle_encode(saved + 5 * PAGE, memory + 5 * PAGE, PAGE, delta, sizeof delta);
    int64_t bytes = pageops_delta_create(saved + 5 * PAGE, memory + 5 * PAGE, PAGE, record, sizeof record);
    if (size <= 0 || bytes <= 0) fail("the change was not seen");
    printf("page 5 changed: a delta of %" PRId64 " bytes, a record of %" PRId64 "\n", size, bytes);
    if (pageops_delta_apply(record, bytes, saved + 5 * PAGE, PAGE)) fail("the record is none");
    if (pageops_compare(saved, memory, PAGES * PAGE) != PAGES * PAGE) fail("the record is wrong");
    save(child, base, engine, memory);
    pageops_engine_free(engine);

    PageopsCheckpoint *checkpoint = pageops_checkpoint_open(child, error, sizeof error);
    if (!checkpoint) fail("open");
    if (pageops_checkpoint_verify(checkpoint, error, sizeof error)) fail("verify");
    memset(saved, 0xff, PAGES * PAGE);
    PageopsMemory target = { .at = saved, .bytes = PAGES * PAGE };
    if (pageops_checkpoint_restore(checkpoint, &target, 1, error, sizeof error)) fail("restore");
    if (memcmp(saved, memory, PAGES * PAGE)) fail("the restored memory is another");
    puts("restored: the same memory");
    pageops_checkpoint_close(checkpoint);

    if (pageops_engine_new("dsa:/dev/dsa/wq99.0", error, sizeof error)) fail("a queue that there is not");
    printf("without hardware: %s\n", error);
    free(memory);
    free(saved);
    return 0;
}
