#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <x86intrin.h>

enum { THREADS = 2, MOST = 400 };

/* Ticks of a TSC of 1 GHz. */
static const uint64_t TIME = 60000000, GAP = 100000;

static uint64_t gap[THREADS][MOST], at[THREADS][MOST];
static int count[THREADS];
static volatile int ready;

static void *body(void *number)
{
	long me = (long)number;
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(me, &set);
	sched_setaffinity(0, sizeof set, &set);
	__sync_fetch_and_add(&ready, 1);
	while (ready < THREADS)
		_mm_pause();
	uint64_t start = __rdtsc(), last = start, now;
	while ((now = __rdtsc()) - start < TIME) {
		if (now - last > GAP && count[me] < MOST) {
			gap[me][count[me]] = now - last;
			at[me][count[me]++] = last - start;
		}
		last = now;
	}
	return 0;
}

int main(void)
{
	pthread_t threads[THREADS];
	for (long i = 0; i < THREADS; i++)
		pthread_create(threads + i, 0, body, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], 0);
	for (int i = 0; i < THREADS; i++) {
		printf("thread %d: %d gaps:", i, count[i]);
		for (int k = 0; k < count[i]; k++)
			printf(" %.3f+%.3f", at[i][k] / 1e6, gap[i][k] / 1e6);
		puts("");
	}
	return 0;
}
