/* The guest's init: counts, changes its memory with every count, and prints a hash of all of it. What is printed
 * depends on nothing but the count, so that a test can say what must come next. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <time.h>
#include <unistd.h>

#define PAGES 1024
static uint64_t memory[PAGES][512];

/* `check=MIB`: writes that much memory over and over, as fast as it can, and looks at every word before it writes it: it must
 * be what the pass before has written. Memory of two moments has words of two passes in the wrong places; they are
 * counted. */
static void check(FILE *out, uint64_t words) {
    volatile uint64_t *memory = malloc(words * 8);
    for (uint64_t i = 0; memory && i < words; i++) memory[i] = i;
    for (uint64_t pass = 1, bad = 0;; pass++) {
        uint64_t before = (pass - 1) * 0x9e3779b97f4a7c15u, now = pass * 0x9e3779b97f4a7c15u;
        for (uint64_t i = 0; memory && i < words; i++) {
            bad += memory[i] != (before ^ i);
            memory[i] = now ^ i;
        }
        fprintf(out, "pass %llu bad %llu\n", (unsigned long long)pass, (unsigned long long)bad);
    }
}

/* `rate=MB`: writes that many megabytes a second, page after page of 256 MiB. */
static void pace(FILE *out, uint64_t rate) {
    uint64_t pages = 256 << 8, page = 0, written = 0, told = 0;
    volatile uint64_t *memory = malloc(pages * 4096);
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (;;) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        uint64_t ms = (now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000;
        while (memory && written < ms * rate * 1000) {
            for (int i = 0; i < 512; i++) memory[page * 512 + i] = written + i;
            page = (page + 1) % pages;
            written += 4096;
        }
        if (ms / 1000 > told) {
            told = ms / 1000;
            fprintf(out, "wrote %llu MB\n", (unsigned long long)(written / 1000000));
        }
        usleep(2000);
    }
}

int main(void) {
    mount("none", "/dev", "devtmpfs", 0, "");
    FILE *out = fopen("/dev/ttyS0", "w");
    if (!out) out = stdout;
    setvbuf(out, NULL, _IOLBF, 256);
    uint64_t state = 1;
    if (getenv("check")) check(out, strtoull(getenv("check"), 0, 10) << 17);
    /* `fill=MIB` on the kernel's command line: as much noise besides, for a guest that has used all it has. */
    if (getenv("fill")) {
        uint64_t words = strtoull(getenv("fill"), 0, 10) << 17, *noise = malloc(words * 8), x = 88172645463325252u;
        for (uint64_t i = 0; noise && i < words; i++) {
            x ^= x << 13; x ^= x >> 7; x ^= x << 17;
            noise[i] = x;
        }
        fprintf(out, "filled\n");
    }
    if (getenv("rate")) pace(out, strtoull(getenv("rate"), 0, 10));
    for (int p = 0; p < PAGES; p++)
        for (int i = 0; i < 512; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            memory[p][i] = p % 8 == 0 ? 0 : state;
        }
    for (uint64_t count = 1;; count++) {
        memory[count * 7 % PAGES][count % 512] ^= count;
        uint64_t hash = count;
        for (int p = 0; p < PAGES; p++)
            for (int i = 0; i < 512; i++)
                hash = (hash ^ memory[p][i]) * 0xff51afd7ed558ccdu + 1;
        fprintf(out, "count %llu hash %016llx\n", (unsigned long long)count, (unsigned long long)hash);
        usleep(50000);
    }
}
