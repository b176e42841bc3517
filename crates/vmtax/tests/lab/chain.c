/* Times the suite paging's chase on this processor: the same cycle through 8,192 pages, by the same places in them. Prints cycles of a load,
 * then waits for the end of its input while its frames are read. With an argument its memory is in huge pages. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096, HUGE = 2 << 20, MOST = 8192, ROUNDS = 60 };

static uint64_t order[MOST];

static uint64_t place(uint64_t page)
{
	return page * PAGE + ((page * 0x9e3779b1ull) >> 26) % 64 * 64;
}

/* Every page's word is the address of the next one's. */
static char *chained(char *memory, uint64_t pages)
{
	uint64_t random = 88172645463325252ull, at;

	for (at = 0; at < pages; at++)
		order[at] = at;
	for (at = pages - 1; at > 0; at--) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		uint64_t other = random % (at + 1), page = order[at];
		order[at] = order[other];
		order[other] = page;
	}
	for (at = 0; at < pages; at++)
		*(char **)(memory + place(order[at])) = memory + place(order[(at + 1) % pages]);
	return memory;
}

/* The least time of a load, in nanoseconds. */
static double least(char *at, uint64_t loads)
{
	double found = 1e9;

	for (int round = 0; round < ROUNDS; round++) {
		struct timespec from, to;
		clock_gettime(CLOCK_MONOTONIC, &from);
		for (uint64_t load = 0; load < loads; load++)
			at = *(char *volatile *)at;
		clock_gettime(CLOCK_MONOTONIC, &to);
		double took = ((to.tv_sec - from.tv_sec) * 1e9 + (to.tv_nsec - from.tv_nsec)) / loads;
		if (took < found)
			found = took;
	}
	return found;
}

int main(int count, char **arguments)
{
	size_t bytes = (size_t)MOST * PAGE;
	char *all = mmap(0, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *memory = (char *)(((uintptr_t)all + HUGE - 1) & -(uintptr_t)HUGE);

	(void)arguments;
	if (all == MAP_FAILED || madvise(memory, bytes, count > 1 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE))
		return 1;
	/* Only what the chain uses is present, so that the frames of the process are its. */
	for (uint64_t page = 0; page < MOST; page++)
		memory[page * PAGE] = 1;
	/* 4 cycles: the latency of the first cache of the processors of the lab that have cycles. */
	double cycle = least(chained(memory, 16), 200000) / 4;
	printf("%.1f\n", least(chained(memory, MOST), 4 * MOST) / cycle);
	fflush(stdout);
	return getchar() != EOF;
}
