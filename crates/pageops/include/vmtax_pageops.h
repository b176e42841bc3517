#ifndef VMTAX_PAGEOPS_H
#define VMTAX_PAGEOPS_H

/* Made by cbindgen from src/capi.rs: VMTAX_BLESS=1 cargo test -p vmtax-pageops --test c */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/*
 Version of this interface, and the number in the shared library's name. It rises when a program that was compiled against an
 older header would no longer work.
 */
#define PAGEOPS_ABI 1

/*
 An argument is wrong.
 */
#define PAGEOPS_EINVAL -22

/*
 A file cannot be read or written, or is not what it should be; the sentence says which and why.
 */
#define PAGEOPS_EIO -5

/*
 The result does not fit into the room that was given.
 */
#define PAGEOPS_EOVERFLOW -75

/*
 A delta that is not one of this block.
 */
#define PAGEOPS_EBADMSG -74

/*
 The engine ended early, or an earlier call failed: this handle can only be freed.
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
 CRC-32C of `src`; `word` is 0 or the CRC of the bytes before.
 */
#define PAGEOPS_CRC32C 4

/*
 Copy `src` to `dst`, and its CRC-32C.
 */
#define PAGEOPS_COPY_CRC32C 5

/*
 Write to `record` what turns `src` into `dst` (neither is written); value is the record's size, 0 if they are equal; result
 PAGEOPS_EOVERFLOW if `record_len` is too small. A device takes it where addresses are multiples of 8 and `record_len` is at least 80.
 */
#define PAGEOPS_DELTA_CREATE 6

/*
 Apply `record` to `dst`; result PAGEOPS_EBADMSG, and `dst` changed in part, if it is no record of this block.
 */
#define PAGEOPS_DELTA_APPLY 7

/*
 A checkpoint that was opened. A handle: never follow it.
 */
typedef struct PageopsCheckpoint PageopsCheckpoint;

/*
 Queues of devices, and the thread that serves them. A handle: never follow it.
 */
typedef struct PageopsEngine PageopsEngine;

/*
 Operations under way. A handle: never follow it.
 */
typedef struct PageopsJob PageopsJob;

/*
 A checkpoint that is being written. A handle: never follow it.
 */
typedef struct PageopsWriter PageopsWriter;

/*
 What a pass over a page of 4096 bytes found.
 */
typedef struct {
  /*
   All bytes are zero.
   */
  bool zero;
  /*
   CRC-32C, of zero pages too.
   */
  uint32_t crc;
} PageopsFacts;

/*
 An operation for an engine. Members that a kind does not name are ignored.
 */
typedef struct {
  /*
   PAGEOPS_ZERO, ...
   */
  uint32_t kind;
  /*
   What is read.
   */
  const uint8_t *src;
  /*
   What is written, or compared with.
   */
  uint8_t *dst;
  /*
   Bytes of `src` and `dst`.
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
   Bytes of the record, or room for it.
   */
  size_t record_len;
} PageopsOp;

/*
 How an operation ended.
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
   It was finished by a device.
   */
  bool on_device;
  /*
   Something went wrong on the way; the value is right all the same.
   */
  bool had_fault;
} PageopsOutcome;

/*
 What an engine did so far.
 */
typedef struct {
  /*
   Operations finished by devices.
   */
  uint64_t on_device;
  /*
   Operations finished by the processor, for whatever reason.
   */
  uint64_t on_cpu;
  /*
   Operations that had a fault on the way.
   */
  uint64_t faults;
  /*
   Batches handed to devices.
   */
  uint64_t batches;
  /*
   Queues of the engine.
   */
  uint64_t queues;
  /*
   Of these, queues that were given up.
   */
  uint64_t dead_queues;
} PageopsCounts;

/*
 How a checkpoint is written. All zero is allowed: whole, not compressed, by the processor.
 */
typedef struct {
  /*
   Level of zstd, 1 to 19; 0: pages are not compressed.
   */
  int32_t zstd;
  /*
   Path of the checkpoint that the difference is saved to; NULL: all is saved.
   */
  const char *parent;
  /*
   Engine that scans and checksums; NULL: the processor, in the thread that calls.
   */
  PageopsEngine *engine;
} PageopsCheckpointOptions;

/*
 What was written, in pages but for `bytes`.
 */
typedef struct {
  /*
   Bytes of the file.
   */
  uint64_t bytes;
  /*
   Pages as they are.
   */
  uint64_t raw;
  /*
   Pages compressed.
   */
  uint64_t compressed;
  /*
   Pages as deltas.
   */
  uint64_t deltas;
  /*
   Pages of one repeated word.
   */
  uint64_t filled;
  /*
   Pages given that are zero.
   */
  uint64_t zero;
  /*
   Pages given that are as in the parent.
   */
  uint64_t unchanged;
} PageopsSummary;

/*
 Memory that a region is restored to.
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
 The version that the library was compiled with: PAGEOPS_ABI of its header. Another number than the program's PAGEOPS_ABI means
 that the two do not fit.

 Threads: any, at any time.
 */
uint32_t pageops_abi(void);

/*
 Version of the library, such as "0.1.0".

 Threads: any, at any time.
 */
const char *pageops_version(void);

/*
 Name of the variant for this processor: "avx512+clmul", "avx512", "avx2+clmul", "avx2", "sse2", "neon", "scalar".

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
 Whether one 8-byte word (little-endian) fills it: 1 or 0; PAGEOPS_EINVAL. The word goes to `word`, which may be NULL.

 Threads: any, at any time.

 # Safety

 `len` bytes can be read at `p`; `word` can be written or is NULL.
 */
int32_t pageops_same_fill(const uint8_t *p,
                          size_t len,
                          uint64_t *word);

/*
 Place of the first byte that differs, or `len` if none does; PAGEOPS_EINVAL.

 Threads: any, at any time.

 # Safety

 `len` bytes can be read at both.
 */
int64_t pageops_compare(const uint8_t *a, const uint8_t *b, size_t len);

/*
 Copies; long blocks past the caches. 0, or PAGEOPS_EINVAL.

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
 CRC-32C, at least 0; PAGEOPS_EINVAL. `seed` is 0, or the CRC of the bytes before.

 Threads: any, at any time.

 # Safety

 `len` bytes can be read at `p`.
 */
int64_t pageops_crc32c(uint32_t seed, const uint8_t *p, size_t len);

/*
 Copies, and gives the CRC-32C, in one read; PAGEOPS_EINVAL.

 Threads: any; no two with blocks that overlap.

 # Safety

 `len` bytes can be read at `src` and written at `dst`.
 */
int64_t pageops_copy_crc32c(uint8_t *dst, const uint8_t *src, size_t len, uint32_t seed);

/*
 Zero check and CRC-32C of `count` pages of 4096 bytes, in one read. 0, or PAGEOPS_EINVAL.

 Threads: any; no two with the same `out`.

 # Safety

 The pages can be read and as many facts written.
 */
int32_t pageops_scan(const uint8_t *pages, size_t count, PageopsFacts *out);

/*
 Zero check, CRC-32C and copy of `count` pages of 4096 bytes, in one read. 0, or PAGEOPS_EINVAL.

 Threads: any; no two with the same `out`, or with blocks that overlap.

 # Safety

 The pages can be read at `src` and written at `dst`, and as many facts written.
 */
int32_t pageops_copy_scan(uint8_t *dst, const uint8_t *src, size_t count, PageopsFacts *out);

/*
 Encodes what changed, as QEMU's xbzrle_encode_buffer does: bytes written, 0 if nothing changed, PAGEOPS_EOVERFLOW if `cap` is
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
 Applies such a delta in place: the place behind the last changed byte, or PAGEOPS_EBADMSG if it is no delta of this page, which
 may then be changed in part; PAGEOPS_EINVAL.

 Threads: any; no two with the same `page`.

 # Safety

 `size` bytes can be read at `delta` and `len` written at `page`.
 */
int64_t pageops_xbzrle_decode(const uint8_t *delta,
                              size_t size,
                              uint8_t *page,
                              size_t len);

/*
 Writes DSA's delta record: its bytes, 0 if nothing changed, PAGEOPS_EOVERFLOW if `cap` is too small; PAGEOPS_EINVAL, also of a
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
 Applies DSA's delta record in place. 0; PAGEOPS_EBADMSG if it is none of this block, and PAGEOPS_EINVAL, both with nothing changed.

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
 queues such as "dsa:/dev/dsa/wq0.0,dsa:/dev/dsa/wq1.0". NULL if that cannot be; `error` then says why. One engine serves all
 threads of a process; it does not survive a fork.

 Threads: any, at any time.

 # Safety

 `accel` is a C string; `error` has room for `room` bytes, or is NULL.
 */
PageopsEngine *pageops_engine_new(const char *accel,
                                  char *error,
                                  size_t room);

/*
 Hands operations in. NULL if one of them is not possible, and then nothing was handed in; `error` says which one and why. A job
 of no operations has ended. The array itself may be freed when this returns.

 Threads: any, at any time, with one engine.

 # Safety

 `count` operations can be read; `error` has room for `room` bytes, or is NULL. What the operations read stays readable, and what
 they write stays writable and unread, until the job was waited for with success or pageops_engine_free returned. What is read
 may be written to meanwhile (a VM's memory is): the value is then of the old or the new bytes.
 */
PageopsJob *pageops_submit(const PageopsEngine *engine,
                           const PageopsOp *ops,
                           size_t count,
                           char *error,
                           size_t room);

/*
 Waits for a job, at most so long: 1 if it ended, 0 if it has not yet (wait again), PAGEOPS_EINVAL, PAGEOPS_EDEAD. Where it ended,
 `out` has the outcomes in the order of the operations: each time, and for every thread that waits. With `out` NULL it only waits.

 Threads: any, at any time, with one job, each with an `out` of its own.

 # Safety

 `out` has room for `count` outcomes, or is NULL.
 */
int32_t pageops_job_wait(const PageopsJob *job,
                         uint64_t milliseconds,
                         PageopsOutcome *out,
                         size_t count);

/*
 Frees a job: 0, or PAGEOPS_EINVAL. NULL is allowed. That does not end its operations: their memory is used until they have ended.

 Threads: any, at any time; a thread that waits for the job goes on waiting.
 */
int32_t pageops_job_free(PageopsJob *job);

/*
 Counts of what the engine did. 0, or PAGEOPS_EINVAL.

 Threads: any, at any time, with one engine.

 # Safety

 `out` can be written.
 */
int32_t pageops_engine_counts(const PageopsEngine *engine, PageopsCounts *out);

/*
 Who did what, why there, and what went wrong, in words; cut if there is too little room. 0, or PAGEOPS_EINVAL.

 Threads: any, at any time, with one engine.

 # Safety

 `to` has room for `room` bytes.
 */
int32_t pageops_engine_describe(const PageopsEngine *engine,
                                char *to,
                                size_t room);

/*
 Finishes what was handed in and frees the engine: 0, or PAGEOPS_EINVAL. NULL is allowed. Its jobs can still be waited for; a
 checkpoint that is written with it keeps it until then.

 Threads: one, when no other is in a call with this engine.
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
 Takes `count` pages of 4096 bytes, which are those from page `first` of the region on. Pages come in ascending order; those left
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
 Ends the checkpoint with the device state and a description (at most 16 MiB; NULL with 0 bytes for none), brings it to the disk
 and gives it its name in one step. The handle is freed, also on an error; then nothing is left behind. `summary` may be NULL. 0;
 PAGEOPS_EINVAL, PAGEOPS_EIO, PAGEOPS_EDEAD.

 Threads: one; no other is in a call with this writer.

 # Safety

 The blocks can be read; `summary` can be written, or is NULL; `error` has room for `room` bytes, or is NULL.
 */
int32_t pageops_checkpoint_finish(PageopsWriter *writer,
                                  const uint8_t *state,
                                  size_t state_len,
                                  const uint8_t *description,
                                  size_t description_len,
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
 Pages of a region, by its number from 0; PAGEOPS_EINVAL. Its name goes to `name`, cut if there is too little room; NULL is allowed.

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

 `count` entries can be read, and their memory read and written; nobody else uses it meanwhile. `error` has room for `room` bytes,
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
