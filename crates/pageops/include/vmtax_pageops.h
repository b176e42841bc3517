#ifndef VMTAX_PAGEOPS_H
#define VMTAX_PAGEOPS_H

/* Made by cbindgen from src/capi.rs: VMTAX_BLESS=1 cargo test -p vmtax-pageops --test c */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

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
 CRC-32C of `src`; `word` is 0 or the CRC of what stands before.
 */
#define PAGEOPS_CRC32C 4

/*
 Copy `src` to `dst`, and its CRC-32C.
 */
#define PAGEOPS_COPY_CRC32C 5

/*
 Queues of devices, and the thread that serves them.
 */
typedef struct PageopsEngine PageopsEngine;

/*
 Operations on their way.
 */
typedef struct PageopsJob PageopsJob;

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
 An operation for an engine.
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
   Bytes.
   */
  size_t len;
  /*
   Word to fill with, or seed of a CRC.
   */
  uint64_t word;
} PageopsOp;

/*
 How an operation ended.
 */
typedef struct {
  /*
   1 or 0, or a CRC.
   */
  uint64_t value;
  /*
   It was finished by a device.
   */
  bool on_device;
  /*
   Something went wrong on the way; the value is right all the same.
   */
  bool had_fault;
} PageopsOutcome;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Name of the variant for this processor: "avx512+clmul", "avx512", "avx2+clmul", "avx2", "sse2", "neon", "scalar".
 */
const char *pageops_variant(void);

/*
 Whether all bytes are zero.

 # Safety

 `len` bytes can be read at `p`.
 */
bool pageops_is_zero(const uint8_t *p, size_t len);

/*
 Whether one 8-byte word (little-endian) fills it; the word goes to `word`, which may be NULL.

 # Safety

 `len` bytes can be read at `p`; `word` can be written or is NULL.
 */
bool pageops_same_fill(const uint8_t *p, size_t len, uint64_t *word);

/*
 Place of the first byte that differs, or -1.

 # Safety

 `len` bytes can be read at both.
 */
int64_t pageops_compare(const uint8_t *a, const uint8_t *b, size_t len);

/*
 Copies; long blocks past the caches.

 # Safety

 `len` bytes can be read at `src` and written at `dst`; they do not overlap.
 */
void pageops_copy(uint8_t *dst, const uint8_t *src, size_t len);

/*
 Fills with an 8-byte word (little-endian).

 # Safety

 `len` bytes can be written at `dst`.
 */
void pageops_fill(uint8_t *dst, size_t len, uint64_t word);

/*
 CRC-32C; `seed` is 0, or the CRC of what stands before.

 # Safety

 `len` bytes can be read at `p`.
 */
uint32_t pageops_crc32c(uint32_t seed, const uint8_t *p, size_t len);

/*
 Copies, and gives the CRC-32C, in one read.

 # Safety

 `len` bytes can be read at `src` and written at `dst`; they do not overlap.
 */
uint32_t pageops_copy_crc32c(uint8_t *dst, const uint8_t *src, size_t len, uint32_t seed);

/*
 Zero check and CRC-32C of `count` pages of 4096 bytes, in one read.

 # Safety

 The pages can be read and as many facts written.
 */
void pageops_scan(const uint8_t *pages, size_t count, PageopsFacts *out);

/*
 Zero check, CRC-32C and copy of `count` pages of 4096 bytes, in one read.

 # Safety

 The pages can be read at `src` and written at `dst`, without overlap, and as many facts written.
 */
void pageops_copy_scan(uint8_t *dst, const uint8_t *src, size_t count, PageopsFacts *out);

/*
 Encodes what changed, as QEMU's xbzrle_encode_buffer does: bytes written, 0 if nothing changed, -1 if `cap`
 is too small, -2 if the page is longer than 16383 bytes.

 # Safety

 `len` bytes can be read at both pages and `cap` written at `delta`.
 */
int64_t pageops_xbzrle_encode(const uint8_t *old_page,
                              const uint8_t *new_page,
                              size_t len,
                              uint8_t *delta,
                              size_t cap);

/*
 Applies such a delta in place: the place behind the last changed byte, or -1 if it is no delta of this page.

 # Safety

 `size` bytes can be read at `delta` and `len` written at `page`.
 */
int64_t pageops_xbzrle_decode(const uint8_t *delta,
                              size_t size,
                              uint8_t *page,
                              size_t len);

/*
 Writes DSA's delta record: its bytes, 0 if nothing changed, -1 if `cap` is too small, -2 if `len` is no
 multiple of 8 or above 0x7FFF8.

 # Safety

 `len` bytes can be read at both blocks and `cap` written at `record`.
 */
int64_t pageops_delta_create(const uint8_t *old_block,
                             const uint8_t *new_block,
                             size_t len,
                             uint8_t *record,
                             size_t cap);

/*
 Applies DSA's delta record in place. False, and nothing changed, if it is none of this block.

 # Safety

 `size` bytes can be read at `record` and `len` written at `block`.
 */
bool pageops_delta_apply(const uint8_t *record, size_t size, uint8_t *block, size_t len);

/*
 Starts an engine: "cpu", "model" (four devices in software), or DSA queues such as
 "dsa:/dev/dsa/wq0.0,dsa:/dev/dsa/wq1.0". NULL if that cannot be; `error` then says why.

 # Safety

 `accel` is a C string; `error` has room for `room` bytes, or is NULL.
 */
PageopsEngine *pageops_engine_new(const char *accel, char *error, size_t room);

/*
 Hands operations in. NULL if one of them is of no known kind; then nothing was handed in.

 # Safety

 `count` operations can be read. What they read stays readable and unwritten, and what they write stays writable
 and unread, until the job was waited for with success or the engine freed.
 */
PageopsJob *pageops_submit(const PageopsEngine *engine,
                           const PageopsOp *ops,
                           size_t count);

/*
 Waits for a job, at most so long. True if it ended: `out` has the outcomes in the order of the operations, once.

 # Safety

 `out` has room for as many outcomes as the job has operations.
 */
bool pageops_job_wait(const PageopsJob *job,
                      uint64_t milliseconds,
                      PageopsOutcome *out);

/*
 Frees a job. That does not end its operations: their memory is used until they have ended.

 # Safety

 The job came from pageops_submit and is not used any more; NULL is allowed.
 */
void pageops_job_free(PageopsJob *job);

/*
 Who did what, why there, and what went wrong, in words; cut if there is too little room.

 # Safety

 `to` has room for `room` bytes.
 */
void pageops_engine_describe(const PageopsEngine *engine, char *to, size_t room);

/*
 Finishes what was handed in and frees the engine.

 # Safety

 The engine came from pageops_engine_new and is not used any more; NULL is allowed.
 */
void pageops_engine_free(PageopsEngine *engine);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* VMTAX_PAGEOPS_H */
