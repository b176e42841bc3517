/* Arguments that cannot be right: each is an error, with a sentence where there is room for one, and none is a crash. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "vmtax_pageops.h"

#define PAGE 4096

static int failures;
static char error[512];

static void check(int right, const char *what, int line) {
    if (right) return;
    fprintf(stderr, "line %d: %s (last error: %s)\n", line, what, error);
    failures++;
}
#define CHECK(right) check((right), #right, __LINE__)
#define REFUSED(call) check((call) == PAGEOPS_EINVAL, #call, __LINE__)
/* A call that gives NULL and a sentence with this word. */
#define NONE(call, word) (error[0] = 0, check((call) == NULL && strstr(error, word), #call " without " word, __LINE__))
#define TOLD(call, code, word) (error[0] = 0, check((call) == (code) && strstr(error, word), #call " without " word, __LINE__))

static _Alignas(64) uint8_t page[PAGE], other[PAGE], room[2 * PAGE];

static void direct(void) {
    uint8_t *last = (uint8_t *)~(uintptr_t)0 - 10;
    uint64_t words[2];
    PageopsFacts facts[2];
    void *crooked_word = (uint8_t *)words + 1, *crooked_facts = (uint8_t *)facts + 1;
    /* NULL, past the end of memory, more than memory holds. */
    REFUSED(pageops_is_zero(NULL, 1));
    REFUSED(pageops_is_zero(last, 100));
    REFUSED(pageops_is_zero(page, SIZE_MAX));
    REFUSED(pageops_same_fill(NULL, 8, words));
    REFUSED(pageops_same_fill(page, PAGE, crooked_word));
    REFUSED(pageops_compare(NULL, page, 1));
    REFUSED(pageops_compare(page, NULL, 1));
    REFUSED(pageops_copy(NULL, page, 1));
    REFUSED(pageops_copy(page, NULL, 1));
    REFUSED(pageops_copy(page + 1, page, 100));
    REFUSED(pageops_fill(NULL, 8, 0));
    REFUSED(pageops_crc32c(0, NULL, 1));
    REFUSED(pageops_copy_crc32c(NULL, page, 1, 0));
    REFUSED(pageops_copy_crc32c(page, page, 1, 0));
    REFUSED(pageops_scan(NULL, 1, facts));
    REFUSED(pageops_scan(page, 1, NULL));
    REFUSED(pageops_scan(page, 1, crooked_facts));
    REFUSED(pageops_scan(page, SIZE_MAX / 2, facts));
    REFUSED(pageops_copy_scan(NULL, page, 1, facts));
    REFUSED(pageops_copy_scan(room, room + 1, 1, facts));
    REFUSED(pageops_xbzrle_encode(page, other, 16384, room, sizeof room));
    REFUSED(pageops_xbzrle_encode(NULL, other, PAGE, room, sizeof room));
    REFUSED(pageops_xbzrle_encode(page, other, PAGE, NULL, 10));
    REFUSED(pageops_xbzrle_encode(page, other, PAGE, page, PAGE));
    REFUSED(pageops_xbzrle_decode(NULL, 1, page, PAGE));
    REFUSED(pageops_xbzrle_decode(page, 1, page, PAGE));
    REFUSED(pageops_delta_create(page, other, 9, room, sizeof room));
    REFUSED(pageops_delta_create(page, other, 0x80000, room, sizeof room));
    REFUSED(pageops_delta_create(page, other, PAGE, NULL, 80));
    REFUSED(pageops_delta_create(page, other, PAGE, other, 80));
    REFUSED(pageops_delta_apply(NULL, 10, page, PAGE));
    REFUSED(pageops_delta_apply(room, 10, page, 9));
    /* Nothing at all is allowed anywhere. */
    CHECK(pageops_is_zero(NULL, 0) == 1);
    CHECK(pageops_compare(NULL, NULL, 0) == 0);
    CHECK(pageops_copy(NULL, NULL, 0) == 0 && pageops_copy(page, page, 0) == 0);
    CHECK(pageops_fill(NULL, 0, 1) == 0);
    CHECK(pageops_crc32c(7, NULL, 0) == 7 && pageops_copy_crc32c(NULL, NULL, 0, 7) == 7);
    CHECK(pageops_scan(NULL, 0, NULL) == 0 && pageops_copy_scan(NULL, NULL, 0, NULL) == 0);
    CHECK(pageops_xbzrle_encode(NULL, NULL, 0, NULL, 0) == 0 && pageops_xbzrle_decode(NULL, 0, NULL, 0) == 0);
    CHECK(pageops_delta_create(NULL, NULL, 0, NULL, 0) == 0 && pageops_delta_apply(NULL, 0, NULL, 0) == 0);
    /* Addresses that are not aligned are right for everything that has bytes. */
    page[PAGE - 1] = 1;
    CHECK(pageops_is_zero(page + 3, PAGE - 4) == 1 && pageops_is_zero(page + 3, PAGE - 3) == 0);
    CHECK(pageops_compare(page + 1, other + 1, PAGE - 1) == PAGE - 2);
    /* Deltas that are none, or do not fit. */
    other[7] = 9;
    CHECK(pageops_delta_create(page, other, PAGE, room, 10) == PAGEOPS_EOVERFLOW);
    CHECK(pageops_xbzrle_encode(page, other, PAGE, room, 1) == PAGEOPS_EOVERFLOW);
    memset(room, 0xff, sizeof room);
    CHECK(pageops_delta_apply(room, 10, page, PAGE) == PAGEOPS_EBADMSG);
    CHECK(pageops_delta_apply(room, 9, page, PAGE) == PAGEOPS_EBADMSG);
    CHECK(pageops_xbzrle_decode(room, 10, page, PAGE) == PAGEOPS_EBADMSG);
    memset(page, 0, PAGE);
    memset(other, 0, PAGE);
}

static PageopsJob *submit(PageopsEngine *engine, PageopsOp op) {
    return pageops_submit(engine, &op, 1, error, sizeof error);
}

static void engines(const char *accel) {
    PageopsEngine *engine = pageops_engine_new(accel, error, sizeof error);
    if (!engine) {
        check(0, accel, __LINE__);
        return;
    }
    PageopsOutcome out[2];
    PageopsCounts counts;
    void *wrong = page, *small = (void *)3;
    NONE(pageops_submit(NULL, NULL, 0, error, sizeof error), "engine is NULL");
    NONE(pageops_submit(wrong, NULL, 0, error, sizeof error), "no engine");
    NONE(pageops_submit(small, NULL, 0, error, sizeof error), "no engine");
    NONE(pageops_submit(engine, NULL, 1, error, sizeof error), "ops is NULL");
    NONE(pageops_submit(engine, (void *)(room + 1), 1, error, sizeof error), "not aligned");
    NONE(pageops_submit(engine, (void *)room, SIZE_MAX / 8, error, sizeof error), "memory");
    NONE(pageops_submit(engine, (void *)room, (1u << 24) + 1, error, sizeof error), "at most");
    NONE(submit(engine, (PageopsOp){ .kind = 99 }), "operation 0: kind 99");
    NONE(submit(engine, (PageopsOp){ .kind = PAGEOPS_ZERO, .len = 1 }), "src is NULL");
    NONE(submit(engine, (PageopsOp){ .kind = PAGEOPS_FILL, .len = 1 }), "dst is NULL");
    NONE(submit(engine, (PageopsOp){ .kind = PAGEOPS_COMPARE, .src = page, .len = 1 }), "dst is NULL");
    NONE(submit(engine, (PageopsOp){ .kind = PAGEOPS_ZERO, .src = page, .len = SIZE_MAX }), "memory");
    NONE(submit(engine, (PageopsOp){ .kind = PAGEOPS_COPY, .src = page, .dst = page + 8, .len = 16 }), "overlap");
    NONE(submit(engine, (PageopsOp){ .kind = PAGEOPS_COPY_CRC32C, .src = page, .dst = page, .len = 16 }), "overlap");
    NONE(submit(engine, (PageopsOp){ .kind = PAGEOPS_DELTA_CREATE, .src = page, .dst = other, .len = 12, .record = room, .record_len = 80 }),
         "multiple of 8");
    NONE(submit(engine, (PageopsOp){ .kind = PAGEOPS_DELTA_CREATE, .src = page, .dst = other, .len = 16, .record_len = 80 }), "record is NULL");
    NONE(submit(engine, (PageopsOp){ .kind = PAGEOPS_DELTA_APPLY, .dst = page, .len = 16, .record = page, .record_len = 10 }), "overlap");
    /* Nothing was handed in. */
    CHECK(pageops_engine_counts(engine, &counts) == 0 && counts.on_device + counts.on_cpu == 0);
    REFUSED(pageops_engine_counts(engine, NULL));
    REFUSED(pageops_engine_counts(NULL, &counts));
    REFUSED(pageops_engine_describe(NULL, error, sizeof error));
    REFUSED(pageops_engine_describe(engine, NULL, 0));

    /* No operations, operations on nothing, and addresses that no device takes but the processor does. */
    PageopsJob *job = pageops_submit(engine, NULL, 0, NULL, 0);
    CHECK(job && pageops_job_wait(job, 0, out, 0) == 1 && pageops_job_free(job) == 0);
    job = submit(engine, (PageopsOp){ .kind = PAGEOPS_ZERO });
    CHECK(job && pageops_job_wait(job, 60000, out, 1) == 1 && out[0].value == 1 && pageops_job_free(job) == 0);
    other[16] = 1;
    job = submit(engine, (PageopsOp){ .kind = PAGEOPS_DELTA_CREATE, .src = page, .dst = other, .len = 64, .record = room + 1, .record_len = 30 });
    CHECK(job && pageops_job_wait(job, 60000, out, 1) == 1 && out[0].value == 10 && out[0].result == 0 && !out[0].on_device);
    /* Outcomes again, each time; room that is missing, crooked or not wanted. */
    CHECK(pageops_job_wait(job, 0, out + 1, 1) == 1 && out[1].value == 10);
    CHECK(pageops_job_wait(job, UINT64_MAX, NULL, 0) == 1);
    REFUSED(pageops_job_wait(job, 0, out, 0));
    REFUSED(pageops_job_wait(job, 0, (void *)((uint8_t *)out + 1), 1));
    REFUSED(pageops_job_wait((void *)engine, 0, out, 1));
    REFUSED(pageops_job_wait(NULL, 0, out, 1));
    REFUSED(pageops_job_free((void *)engine));
    CHECK(pageops_job_free(job) == 0);
    REFUSED(pageops_job_free(job));
    REFUSED(pageops_job_wait(job, 0, out, 1));
    CHECK(pageops_job_free(NULL) == 0 && pageops_engine_free(NULL) == 0);
    /* Records by the engine: a device takes the first, both are the same. */
    job = submit(engine, (PageopsOp){ .kind = PAGEOPS_DELTA_CREATE, .src = page, .dst = other, .len = PAGE, .record = room, .record_len = 80 });
    CHECK(job && pageops_job_wait(job, 60000, out, 1) == 1 && out[0].value == 10 && out[0].on_device == !strcmp(accel, "model"));
    pageops_job_free(job);
    job = submit(engine, (PageopsOp){ .kind = PAGEOPS_DELTA_APPLY, .dst = page, .len = PAGE, .record = room, .record_len = 10 });
    CHECK(job && pageops_job_wait(job, 60000, out, 1) == 1 && out[0].result == 0 && !memcmp(page, other, PAGE));
    pageops_job_free(job);
    memset(room, 0xff, 10);
    job = submit(engine, (PageopsOp){ .kind = PAGEOPS_DELTA_APPLY, .dst = page, .len = PAGE, .record = room, .record_len = 10 });
    CHECK(job && pageops_job_wait(job, 60000, out, 1) == 1 && out[0].result == PAGEOPS_EBADMSG);
    pageops_job_free(job);
    memset(page, 0, PAGE);
    memset(other, 0, PAGE);

    /* A child of a fork has the number and no engine. */
    pid_t child = fork();
    if (child == 0) {
        int right = submit(engine, (PageopsOp){ .kind = PAGEOPS_ZERO }) == NULL && strstr(error, "fork") &&
                    pageops_engine_free(engine) == PAGEOPS_EINVAL;
        _exit(right ? 0 : 1);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(pageops_engine_free(engine) == 0);
    REFUSED(pageops_engine_free(engine));
    NONE(submit(engine, (PageopsOp){ .kind = PAGEOPS_ZERO }), "freed");
}

static void names(void) {
    NONE(pageops_engine_new(NULL, error, sizeof error), "accel is NULL");
    NONE(pageops_engine_new("", error, sizeof error), "use auto, cpu, model");
    NONE(pageops_engine_new("\xff", error, sizeof error), "UTF-8");
    NONE(pageops_engine_new("gpu", error, sizeof error), "use auto, cpu, model");
    NONE(pageops_engine_new("dsa:", error, sizeof error), "use auto, cpu, model");
    NONE(pageops_engine_new("dsa:wq0.0,dsa:/dev/dsa/wq0.0", error, sizeof error), "twice");
    CHECK(!pageops_engine_new("gpu", NULL, 100) && !pageops_engine_new("gpu", error, 0));
    memset(error, 'x', 10);
    CHECK(!pageops_engine_new("gpu", error, 4) && strlen(error) == 3 && error[4] == 'x');
}

static void checkpoints(const char *folder) {
    char path[1024], none[1024];
    snprintf(path, sizeof path, "%s/hostile.ckpt", folder);
    snprintf(none, sizeof none, "%s/none/x.ckpt", folder);
    unlink(path);
    NONE(pageops_checkpoint_create(NULL, NULL, error, sizeof error), "path is NULL");
    NONE(pageops_checkpoint_create("", NULL, error, sizeof error), "path is empty");
    NONE(pageops_checkpoint_create(none, NULL, error, sizeof error), "none/x.ckpt");
    PageopsCheckpointOptions options = { .zstd = 99 };
    NONE(pageops_checkpoint_create(path, &options, error, sizeof error), "zstd level 99");
    options = (PageopsCheckpointOptions){ .parent = none };
    NONE(pageops_checkpoint_create(path, &options, error, sizeof error), "none/x.ckpt");
    options = (PageopsCheckpointOptions){ .engine = (void *)page };
    NONE(pageops_checkpoint_create(path, &options, error, sizeof error), "no engine");
    NONE(pageops_checkpoint_create(path, (void *)(room + 1), error, sizeof error), "not aligned");

    TOLD(pageops_checkpoint_region(NULL, "a", 1, error, sizeof error), PAGEOPS_EINVAL, "writer is NULL");
    PageopsWriter *writer = pageops_checkpoint_create(path, NULL, error, sizeof error);
    CHECK(writer != NULL);
    TOLD(pageops_checkpoint_pages(writer, 0, page, 1, error, sizeof error), PAGEOPS_EINVAL, "outside");
    TOLD(pageops_checkpoint_region(writer, NULL, 1, error, sizeof error), PAGEOPS_EINVAL, "name is NULL");
    CHECK(pageops_checkpoint_region(writer, "a", 4, error, sizeof error) == 0);
    TOLD(pageops_checkpoint_region(writer, "a", 4, error, sizeof error), PAGEOPS_EINVAL, "two regions");
    TOLD(pageops_checkpoint_pages(writer, 0, NULL, 1, error, sizeof error), PAGEOPS_EINVAL, "pages is NULL");
    TOLD(pageops_checkpoint_pages(writer, UINT64_MAX, page, 1, error, sizeof error), PAGEOPS_EINVAL, "behind");
    TOLD(pageops_checkpoint_pages(writer, 0, page, SIZE_MAX, error, sizeof error), PAGEOPS_EINVAL, "memory");
    TOLD(pageops_checkpoint_pages(writer, 4, page, 1, error, sizeof error), PAGEOPS_EINVAL, "behind");
    page[9] = 3;
    CHECK(pageops_checkpoint_pages(writer, 2, page, 1, error, sizeof error) == 0);
    TOLD(pageops_checkpoint_pages(writer, 1, page, 1, error, sizeof error), PAGEOPS_EINVAL, "order");
    CHECK(access(path, F_OK) == -1 && errno == ENOENT);
    PageopsContents contents = { .state = page, .state_len = 10 };
    CHECK(pageops_checkpoint_finish(writer, &contents, NULL, error, sizeof error) == 0);
    TOLD(pageops_checkpoint_finish(writer, NULL, NULL, error, sizeof error), PAGEOPS_EINVAL, "freed");
    REFUSED(pageops_checkpoint_abort(writer));
    CHECK(pageops_checkpoint_abort(NULL) == 0);
    /* Arguments that are wrong at the end: the handle is gone and there is no file. */
    writer = pageops_checkpoint_create(path, NULL, error, sizeof error);
    contents.state = NULL;
    TOLD(pageops_checkpoint_finish(writer, &contents, NULL, error, sizeof error), PAGEOPS_EINVAL, "state is NULL");
    REFUSED(pageops_checkpoint_abort(writer));

    NONE(pageops_checkpoint_open(NULL, error, sizeof error), "path is NULL");
    NONE(pageops_checkpoint_open(none, error, sizeof error), "none/x.ckpt");
    NONE(pageops_checkpoint_open("/dev/null", error, sizeof error), "not a checkpoint");
    PageopsCheckpoint *checkpoint = pageops_checkpoint_open(path, error, sizeof error);
    CHECK(checkpoint != NULL);
    char name[8];
    CHECK(pageops_checkpoint_regions(checkpoint) == 1);
    CHECK(pageops_checkpoint_region_pages(checkpoint, 0, name, sizeof name) == 4 && !strcmp(name, "a"));
    REFUSED(pageops_checkpoint_region_pages(checkpoint, 1, NULL, 0));
    REFUSED(pageops_checkpoint_regions(NULL));
    TOLD(pageops_checkpoint_read(checkpoint, 1, 0, other, 1, error, sizeof error), PAGEOPS_EINVAL, "region 1");
    TOLD(pageops_checkpoint_read(checkpoint, 0, 4, other, 1, error, sizeof error), PAGEOPS_EINVAL, "has 4");
    TOLD(pageops_checkpoint_read(checkpoint, 0, UINT64_MAX, other, 1, error, sizeof error), PAGEOPS_EINVAL, "has 4");
    TOLD(pageops_checkpoint_read(checkpoint, 0, 0, NULL, 1, error, sizeof error), PAGEOPS_EINVAL, "pages is NULL");
    CHECK(pageops_checkpoint_read(checkpoint, 0, 4, NULL, 0, error, sizeof error) == 0);
    CHECK(pageops_checkpoint_read(checkpoint, 0, 2, other, 1, error, sizeof error) == 0 && !memcmp(page, other, PAGE));
    CHECK(pageops_checkpoint_read(checkpoint, 0, 1, other, 1, error, sizeof error) == 0 && pageops_is_zero(other, PAGE) == 1);
    CHECK(pageops_checkpoint_state(checkpoint, NULL, 0, error, sizeof error) == 10);
    CHECK(pageops_checkpoint_state(checkpoint, other, 10, error, sizeof error) == 10 && !memcmp(page, other, 10));
    CHECK(pageops_checkpoint_description(checkpoint, NULL, 0) == 0);
    PageopsMemory memory[2] = { { room, PAGE }, { page, PAGE } };
    TOLD(pageops_checkpoint_restore(checkpoint, memory, 1, error, sizeof error), PAGEOPS_EINVAL, "4096 bytes for");
    TOLD(pageops_checkpoint_restore(checkpoint, memory, 2, error, sizeof error), PAGEOPS_EINVAL, "2 of 1 regions");
    TOLD(pageops_checkpoint_restore(checkpoint, NULL, 1, error, sizeof error), PAGEOPS_EINVAL, "memory is NULL");
    memory[0] = (PageopsMemory){ NULL, 4 * PAGE };
    TOLD(pageops_checkpoint_restore(checkpoint, memory, 1, error, sizeof error), PAGEOPS_EINVAL, "memory is NULL");
    REFUSED(pageops_checkpoint_verify((void *)writer, NULL, 0));
    CHECK(pageops_checkpoint_verify(checkpoint, NULL, 0) == 0);
    CHECK(pageops_checkpoint_close(checkpoint) == 0 && pageops_checkpoint_close(NULL) == 0);
    REFUSED(pageops_checkpoint_close(checkpoint));
    REFUSED(pageops_checkpoint_verify(checkpoint, NULL, 0));

    /* A byte of a page that was damaged on the disk. */
    FILE *file = fopen(path, "r+b");
    CHECK(file && fread(room, 1, sizeof room, file) > 0);
    long at = 0;
    while (at < (long)sizeof room && (room[at] != 3 || room[at - 9 < 0 ? 0 : at - 9] != 0)) at++;
    fseek(file, at, SEEK_SET);
    fputc(4, file);
    fclose(file);
    checkpoint = pageops_checkpoint_open(path, error, sizeof error);
    if (checkpoint) {
        TOLD(pageops_checkpoint_verify(checkpoint, error, sizeof error), PAGEOPS_EIO, "page 2");
        TOLD(pageops_checkpoint_read(checkpoint, 0, 2, other, 1, error, sizeof error), PAGEOPS_EIO, "page 2");
        pageops_checkpoint_close(checkpoint);
    } else {
        check(strstr(error, "checksum") != NULL, "a damaged file", __LINE__);
    }
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    direct();
    names();
    engines("cpu");
    engines("model");
    checkpoints(argv[1]);
    if (failures) return 1;
    puts("every wrong argument was refused");
    return 0;
}
