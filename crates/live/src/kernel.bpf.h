// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// What programs need of the kernel's declarations.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static __attribute__((always_inline)) inline
#define APART static __attribute__((noinline))
#define NULL ((void *)0)

// Linux include/uapi/linux/bpf.h: numbers of helpers and maps.
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*bpf_get_smp_processor_id)(void) = (void *)8;
static u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*bpf_get_current_comm)(void *to, u32 size) = (void *)16;
static u64 (*bpf_get_current_task)(void) = (void *)35;
static long (*bpf_get_stack)(void *context, void *to, u32 size, u64 flags) = (void *)67;
static u64 (*bpf_get_current_cgroup_id)(void) = (void *)80;
static long (*bpf_map_pop_elem)(void *map, void *value) = (void *)88;
static long (*bpf_probe_read_user)(void *to, u32 size, const void *from) = (void *)112;
static long (*bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*bpf_ringbuf_output)(void *ring, void *data, u64 size, u64 flags) = (void *)130;
#define BPF_NOEXIST 1
#define BPF_RB_NO_WAKEUP 1
#define MAP_HASH 1
#define MAP_ARRAY 2
#define MAP_STACK 23
#define MAP_RINGBUF 27
#define MAPPED (1U << 10)

#define UINT(name, value) int (*name)[value]
#define TYPE(name, value) value *name

#define RAW(name) SEC("raw_tp/" #name) int on_##name(u64 *args)

INLINE void add_one(u64 *to)
{
	__sync_fetch_and_add(to, 1);
}
