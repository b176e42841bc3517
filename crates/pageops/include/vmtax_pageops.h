#ifndef VMTAX_PAGEOPS_H
#define VMTAX_PAGEOPS_H

/* Made by cbindgen from src/capi.rs: VMTAX_BLESS=1 cargo test -p vmtax-pageops --test c */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/*
 Version of this interface, and the number in the shared library's name. It rises when programs compiled with an older header
 would no longer work.
 */
#define PAGEOPS_ABI 2

/*
 An argument is invalid.
 */
#define PAGEOPS_EINVAL -22

/*
 A file cannot be read or written, or is invalid; the error sentence names the file and the reason.
 */
#define PAGEOPS_EIO -5

/*
 The result does not fit into the given buffer.
 */
#define PAGEOPS_EOVERFLOW -75

/*
 The delta does not belong to this block.
 */
#define PAGEOPS_EBADMSG -74

/*
 The engine has ended, or an earlier call failed: this handle can only be freed.
 */
#define PAGEOPS_EDEAD -32

/*
 A defect of this library. The message is on standard error.
 */
#define PAGEOPS_EPANIC -131

/*
 Whether `src` is zero; value 1 if it is.
 */
#define PAGEOPS_ZERO 0

/*
 Whether `src` and `dst` are equal (neither is written); value 1 if they are.
 */
#define PAGEOPS_COMPARE 1

/*
 Copy `src` to `dst`.
 */
#define PAGEOPS_COPY 2

/*
 Fill `dst` with `word`.
 */
#define PAGEOPS_FILL 3

/*
 CRC-32C of `src`; `word` is 0 or the CRC of the preceding bytes.
 */
#define PAGEOPS_CRC32C 4

/*
 Copy `src` to `dst`, and compute its CRC-32C.
 */
#define PAGEOPS_COPY_CRC32C 5

/*
 Write the delta from `src` to `dst` to `record` (neither block is written); value is the record's size, 0 if they are equal;
 result
 PAGEOPS_EOVERFLOW if `record_len` is too small. A device executes it if addresses are multiples of 8 and `record_len` is at
 least 80.
 */
#define PAGEOPS_DELTA_CREATE 6

/*
 Apply `record` to `dst`; result PAGEOPS_EBADMSG, and `dst` partly changed, if the record does not belong to this block.
 */
#define PAGEOPS_DELTA_APPLY 7

/*
 An open checkpoint. A handle: never dereference it.
 */
typedef struct PageopsCheckpoint PageopsCheckpoint;

/*
 Device queues and the thread that serves them. A handle: never dereference it.
 */
typedef struct PageopsEngine PageopsEngine;

/*
 Submitted operations. A handle: never dereference it.
 */
typedef struct PageopsJob PageopsJob;

/*
 A checkpoint that is being written. A handle: never dereference it.
 */
typedef struct PageopsWriter PageopsWriter;

/*
 Result of a pass over a page of 4096 bytes.
 */
typedef struct {
  /*
   All bytes are zero.
   */
  bool zero;
  /*
   CRC-32C, also of zero pages.
   */
  uint32_t crc;
} PageopsFacts;

/*
 An operation for an engine. Members that the kind does not use are ignored.
 */
typedef struct {
  /*
   PAGEOPS_ZERO, ...
   */
  uint32_t kind;
  /*
   Source.
   */
  const uint8_t *src;
  /*
   Destination, or the block to compare with.
   */
  uint8_t *dst;
  /*
   Length of `src` and `dst`, bytes.
   */
  size_t len;
  /*
   Word to fill with, or seed of a CRC.
   */
  uint64_t word;
  /*
   A delta record.
   */
  uint8_t *record;
  /*
   Length or capacity of the record, bytes.
   */
  size_t record_len;
} PageopsOp;

/*
 Outcome of an operation.
 */
typedef struct {
  /*
   1 or 0, a CRC, or the size of a delta record.
   */
  uint64_t value;
  /*
   0, or PAGEOPS_EOVERFLOW or PAGEOPS_EBADMSG of a delta.
   */
  int32_t result;
  /*
   Completed by a device.
   */
  bool on_device;
  /*
   A fault occurred; the value is correct nevertheless.
   */
  bool had_fault;
} PageopsOutcome;

/*
 Statistics of an engine.
 */
typedef struct {
  /*
   Operations completed by devices.
   */
  uint64_t on_device;
  /*
   Operations completed by the CPU, for any reason.
   */
  uint64_t on_cpu;
  /*
   Operations with a fault.
   */
  uint64_t faults;
  /*
   Batches submitted to devices.
   */
  uint64_t batches;
  /*
   Queues of the engine.
   */
  uint64_t queues;
  /*
   Of these, queues that were removed after a failure.
   */
  uint64_t dead_queues;
} PageopsCounts;

/*
 Options for writing a checkpoint. All zero is valid: complete, uncompressed, by the CPU.
 */
typedef struct {
  /*
   Level of zstd, 1 to 19; 0: pages are not compressed.
   */
  int32_t zstd;
  /*
   Path of the parent checkpoint; NULL: a complete checkpoint.
   */
  const char *parent;
  /*
   Engine that scans and computes checksums; NULL: the CPU, in the calling thread.
   */
  PageopsEngine *engine;
} PageopsCheckpointOptions;

/*
 What a checkpoint holds besides memory. All zero is valid: nothing.
 */
typedef struct {
  /*
   The device state; NULL with 0 bytes for none.
   */
  const uint8_t *state;
  /*
   Its bytes.
   */
  size_t state_len;
  /*
   A description, at most 16 MiB; NULL with 0 bytes for none.
   */
  const uint8_t *description;
  /*
   Its bytes.
   */
  size_t description_len;
} PageopsContents;

/*
 Summary of a written checkpoint: numbers of pages, except `bytes`.
 */
typedef struct {
  /*
   Size of the file, bytes.
   */
  uint64_t bytes;
  /*
   Pages stored uncompressed.
   */
  uint64_t raw;
  /*
   Pages stored compressed.
   */
  uint64_t compressed;
  /*
   Pages stored as deltas.
   */
  uint64_t deltas;
  /*
   Pages of one repeated word.
   */
  uint64_t filled;
  /*
   Zero pages.
   */
  uint64_t zero;
  /*
   Pages equal to the parent's.
   */
  uint64_t unchanged;
} PageopsSummary;

/*
 Destination of a restored region.
 */
typedef struct {
  /*
   Where it begins.
   */
  uint8_t *at;
  /*
   Its bytes: 4096 for each page of the region.
   */
  size_t bytes;
} PageopsMemory;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The version that the library was compiled with: PAGEOPS_ABI of its header. If it differs from the program's PAGEOPS_ABI, the
 two are incompatible.

 Threads: any, at any time.
 */
uint32_t pageops_abi(void);

/*
 Version of the library, such as "0.1.0".

 Threads: any, at any time.
 */
const char *pageops_version(void);

/*
 Name of the variant for this processor: "avx512", "avx2", "sse2", "neon", "scalar".

 Threads: any, at any time.
 */
const char *pageops_variant(void);

/*
 Whether all bytes are zero: 1 or 0; PAGEOPS_EINVAL. Compare with 1: an error is not zero either.

 Threads: any, at any time.

 # Safety

 `len` bytes can be read at `p`.
 */
int32_t pageops_is_zero(const uint8_t *p, size_t len);

/*
 Whether the block is one repeated 8-byte word (little-endian): 1 or 0; PAGEOPS_EINVAL. The word is stored in `word`, which
 may be NULL.

 Threads: any, at any time.

 # Safety

 `len` bytes can be read at `p`; `word` can be written or is NULL.
 */
int32_t pageops_same_fill(const uint8_t *p,
                          size_t len,
                          uint64_t *word);

/*
 Offset of the first different byte, or `len` if the blocks are equal; PAGEOPS_EINVAL.

 Threads: any, at any time.

 # Safety

 `len` bytes can be read at both.
 */
int64_t pageops_compare(const uint8_t *a, const uint8_t *b, size_t len);

/*
 Copies; large blocks bypass the caches. 0, or PAGEOPS_EINVAL.

 Threads: any; no two with blocks that overlap.

 # Safety

 `len` bytes can be read at `src` and written at `dst`.
 */
int32_t pageops_copy(uint8_t *dst, const uint8_t *src, size_t len);

/*
 Fills with an 8-byte word (little-endian). 0, or PAGEOPS_EINVAL.

 Threads: any; no two with blocks that overlap.

 # Safety

 `len` bytes can be written at `dst`.
 */
int32_t pageops_fill(uint8_t *dst, size_t len, uint64_t word);

/*
 CRC-32C, at least 0; PAGEOPS_EINVAL. `seed` is 0, or the CRC of the preceding bytes.

 Threads: any, at any time.

 # Safety

 `len` bytes can be read at `p`.
 */
int64_t pageops_crc32c(uint32_t seed, const uint8_t *p, size_t len);

/*
 Copies and returns the CRC-32C, in one pass; PAGEOPS_EINVAL.

 Threads: any; no two with blocks that overlap.

 # Safety

 `len` bytes can be read at `src` and written at `dst`.
 */
int64_t pageops_copy_crc32c(uint8_t *dst, const uint8_t *src, size_t len, uint32_t seed);

/*
 Zero check and CRC-32C of `count` pages of 4096 bytes, in one pass. 0, or PAGEOPS_EINVAL.

 Threads: any; no two with the same `out`.

 # Safety

 The pages can be read and as many facts written.
 */
int32_t pageops_scan(const uint8_t *pages, size_t count, PageopsFacts *out);

/*
 Zero check, CRC-32C and copy of `count` pages of 4096 bytes, in one pass. 0, or PAGEOPS_EINVAL.

 Threads: any; no two with the same `out`, or with blocks that overlap.

 # Safety

 The pages can be read at `src` and written at `dst`, and as many facts written.
 */
int32_t pageops_copy_scan(uint8_t *dst, const uint8_t *src, size_t count, PageopsFacts *out);

/*
 Encodes the difference, like QEMU's xbzrle_encode_buffer: bytes written, 0 if the pages are equal, PAGEOPS_EOVERFLOW if `cap`
 is
 too small; PAGEOPS_EINVAL, also of a page longer than 16383 bytes.

 Threads: any; no two with the same `delta`.

 # Safety

 `len` bytes can be read at both pages and `cap` written at `delta`.
 */
int64_t pageops_xbzrle_encode(const uint8_t *old_page,
                              const uint8_t *new_page,
                              size_t len,
                              uint8_t *delta,
                              size_t cap);

/*
 Applies such a delta in place: the offset after the last changed byte, or PAGEOPS_EBADMSG if the delta does not belong to
 this page, which may then be partly changed; PAGEOPS_EINVAL.

 Threads: any; no two with the same `page`.

 # Safety

 `size` bytes can be read at `delta` and `len` written at `page`.
 */
int64_t pageops_xbzrle_decode(const uint8_t *delta,
                              size_t size,
                              uint8_t *page,
                              size_t len);

/*
 Writes a DSA delta record: its length, 0 if the blocks are equal, PAGEOPS_EOVERFLOW if `cap` is too small; PAGEOPS_EINVAL,
 also of a
 `len` that is no multiple of 8 or above 0x7FFF8.

 Threads: any; no two with the same `record`.

 # Safety

 `len` bytes can be read at both blocks and `cap` written at `record`.
 */
int64_t pageops_delta_create(const uint8_t *old_block,
                             const uint8_t *new_block,
                             size_t len,
                             uint8_t *record,
                             size_t cap);

/*
 Applies a DSA delta record in place. 0; PAGEOPS_EBADMSG if the record does not belong to this block, or PAGEOPS_EINVAL; both
 change nothing.

 Threads: any; no two with the same `block`.

 # Safety

 `size` bytes can be read at `record` and `len` written at `block`.
 */
int32_t pageops_delta_apply(const uint8_t *record,
                            size_t size,
                            uint8_t *block,
                            size_t len);

/*
 Starts an engine: "auto" (DSA queues that can be used, and the processor), "cpu", "model" (four devices in software), or DSA
 queues such as "dsa:/dev/dsa/wq0.0,dsa:/dev/dsa/wq1.0". NULL on an error; `error` then has the reason. One engine serves all
 threads of a process; it does not survive a fork.

 Threads: any, at any time.

 # Safety

 `accel` is a C string; `error` has room for `room` bytes, or is NULL.
 */
PageopsEngine *pageops_engine_new(const char *accel,
                                  char *error,
                                  size_t room);

/*
 Submits operations. NULL if one of them is invalid; then none was submitted, and `error` names the operation and the reason.
 A job without operations has ended. The array itself may be freed when this returns.

 Threads: any, at any time, with one engine.

 # Safety

 `count` operations can be read; `error` has room for `room` bytes, or is NULL. Sources must stay readable, and destinations
 writable and unread, until a wait for the job succeeded or pageops_engine_free returned. Sources may be written to meanwhile
 (as a VM's memory is): the value is then of the old or the new bytes.
 */
PageopsJob *pageops_submit(const PageopsEngine *engine,
                           const PageopsOp *ops,
                           size_t count,
                           char *error,
                           size_t room);

/*
 Waits for a job with a timeout: 1 if it has ended, 0 on a timeout (wait again), PAGEOPS_EINVAL, PAGEOPS_EDEAD. If it has
 ended, `out` receives the outcomes in the order of the operations, in every call and for every waiting thread. With `out`
 NULL it only waits.

 Threads: any, at any time, with one job, each with an `out` of its own.

 # Safety

 `out` has room for `count` outcomes, or is NULL.
 */
int32_t pageops_job_wait(const PageopsJob *job,
                         uint64_t milliseconds,
                         PageopsOutcome *out,
                         size_t count);

/*
 Frees a job: 0, or PAGEOPS_EINVAL. NULL is allowed. This does not end its operations: their memory is used until they have
 ended.

 Threads: any, at any time; a thread that waits for the job continues to wait.
 */
int32_t pageops_job_free(PageopsJob *job);

/*
 Statistics of the engine. 0, or PAGEOPS_EINVAL.

 Threads: any, at any time, with one engine.

 # Safety

 `out` can be written.
 */
int32_t pageops_engine_counts(const PageopsEngine *engine, PageopsCounts *out);

/*
 A description of the operations by backend, with reasons and faults, as text; truncated to `room`. 0, or PAGEOPS_EINVAL.

 Threads: any, at any time, with one engine.

 # Safety

 `to` has room for `room` bytes.
 */
int32_t pageops_engine_describe(const PageopsEngine *engine,
                                char *to,
                                size_t room);

/*
 Finishes all submitted operations and frees the engine: 0, or PAGEOPS_EINVAL. NULL is allowed. Its jobs can still be waited
 for; a checkpoint that is being written with it keeps it until it is finished.

 Threads: one, while no other is in a call with this engine.
 */
int32_t pageops_engine_free(PageopsEngine *engine);

/*
 Begins a checkpoint that will be `path`; NULL if that cannot be. Nothing is seen under that name before
 pageops_checkpoint_finish. `options` may be NULL.

 Threads: any, at any time.

 # Safety

 `path` and the options' parent are C strings; `options` can be read, or is NULL; `error` has room for `room` bytes, or is NULL.
 */
PageopsWriter *pageops_checkpoint_create(const char *path,
                                         const PageopsCheckpointOptions *options,
                                         char *error,
                                         size_t room);

/*
 Begins a region of memory of `pages` pages of 4096 bytes; its pages follow. With a parent these are the parent's regions in its
 order. 0; PAGEOPS_EINVAL, PAGEOPS_EIO, PAGEOPS_EDEAD.

 Threads: any; calls with one writer wait for each other, and their order matters.

 # Safety

 `name` is a C string; `error` has room for `room` bytes, or is NULL.
 */
int32_t pageops_checkpoint_region(const PageopsWriter *writer,
                                  const char *name,
                                  uint64_t pages,
                                  char *error,
                                  size_t room);

/*
 Takes `count` pages of 4096 bytes, which are those from page `first` of the region on. Pages come in ascending order; those
 left
 out are zero. Each byte is read once. 0; PAGEOPS_EINVAL, PAGEOPS_EIO, PAGEOPS_EDEAD.

 Threads: any; calls with one writer wait for each other, and their order matters.

 # Safety

 The pages can be read; `error` has room for `room` bytes, or is NULL.
 */
int32_t pageops_checkpoint_pages(const PageopsWriter *writer,
                                 uint64_t first,
                                 const uint8_t *pages,
                                 size_t count,
                                 char *error,
                                 size_t room);

/*
 Ends the checkpoint with the device state and a description, brings it to the disk and gives it its name in one step. The handle is
 freed, also on an error; then nothing is left behind. `contents` and `summary` may be NULL. 0; PAGEOPS_EINVAL, PAGEOPS_EIO,
 PAGEOPS_EDEAD.

 Threads: one; no other is in a call with this writer.

 # Safety

 `contents` and its blocks can be read, or it is NULL; `summary` can be written, or is NULL; `error` has room for `room` bytes, or is NULL.
 */
int32_t pageops_checkpoint_finish(PageopsWriter *writer,
                                  const PageopsContents *contents,
                                  PageopsSummary *summary,
                                  char *error,
                                  size_t room);

/*
 Ends a writer; nothing is left behind. 0, or PAGEOPS_EINVAL. NULL is allowed.

 Threads: any, at any time; a call with the writer that is under way ends first.
 */
int32_t pageops_checkpoint_abort(PageopsWriter *writer);

/*
 Opens a checkpoint and its parents, and checks all but the pages' bytes; NULL if that cannot be.

 Threads: any, at any time.

 # Safety

 `path` is a C string; `error` has room for `room` bytes, or is NULL.
 */
PageopsCheckpoint *pageops_checkpoint_open(const char *path, char *error, size_t room);

/*
 Number of regions; PAGEOPS_EINVAL.

 Threads: any, at any time, with one checkpoint.
 */
int64_t pageops_checkpoint_regions(const PageopsCheckpoint *checkpoint);

/*
 Pages of a region, by its number from 0; PAGEOPS_EINVAL. Its name goes to `name`, cut if there is too little room; NULL is
 allowed.

 Threads: any, at any time, with one checkpoint.

 # Safety

 `name` has room for `room` bytes, or is NULL.
 */
int64_t pageops_checkpoint_region_pages(const PageopsCheckpoint *checkpoint,
                                        size_t region,
                                        char *name,
                                        size_t room);

/*
 Reads `count` pages of 4096 bytes from page `first` of a region on, and checks each. 0; PAGEOPS_EINVAL, PAGEOPS_EIO, with which
 the bytes at `pages` mean nothing.

 Threads: any, at any time, with one checkpoint, each with `pages` of its own.

 # Safety

 The pages can be written; `error` has room for `room` bytes, or is NULL.
 */
int32_t pageops_checkpoint_read(const PageopsCheckpoint *checkpoint,
                                size_t region,
                                uint64_t first,
                                uint8_t *pages,
                                size_t count,
                                char *error,
                                size_t room);

/*
 Reads and checks every page of the checkpoint and its parents. 0; PAGEOPS_EINVAL, PAGEOPS_EIO.

 Threads: any, at any time, with one checkpoint.

 # Safety

 `error` has room for `room` bytes, or is NULL.
 */
int32_t pageops_checkpoint_verify(const PageopsCheckpoint *checkpoint, char *error, size_t room);

/*
 Puts all regions back into memory and checks every page: `memory` has an entry for each region, in order. Pages that are zero
 there already are not written to. 0; PAGEOPS_EINVAL with nothing written; PAGEOPS_EIO with a part written.

 Threads: any, at any time, with one checkpoint, each with memory of its own.

 # Safety

 `count` entries can be read, and their memory read and written; no other code uses it meanwhile. `error` has room for `room`
 bytes,
 or is NULL.
 */
int32_t pageops_checkpoint_restore(const PageopsCheckpoint *checkpoint,
                                   const PageopsMemory *memory,
                                   size_t count,
                                   char *error,
                                   size_t room);

/*
 The device state: its size, and its bytes if there is room for all of them. PAGEOPS_EINVAL, PAGEOPS_EIO.

 Threads: any, at any time, with one checkpoint, each with `to` of its own.

 # Safety

 `to` has room for `room` bytes; `error` has room for `error_room` bytes, or is NULL.
 */
int64_t pageops_checkpoint_state(const PageopsCheckpoint *checkpoint,
                                 uint8_t *to,
                                 size_t room,
                                 char *error,
                                 size_t error_room);

/*
 The description that the writer gave: its size, and its bytes if there is room for all of them. PAGEOPS_EINVAL.

 Threads: any, at any time, with one checkpoint, each with `to` of its own.

 # Safety

 `to` has room for `room` bytes.
 */
int64_t pageops_checkpoint_description(const PageopsCheckpoint *checkpoint,
                                       uint8_t *to,
                                       size_t room);

/*
 Closes a checkpoint: 0, or PAGEOPS_EINVAL. NULL is allowed.

 Threads: any, at any time; calls that are under way end as if it were open.
 */
int32_t pageops_checkpoint_close(PageopsCheckpoint *checkpoint);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* VMTAX_PAGEOPS_H */
