// The shape of the program that "Intel Virtual PMU Optimization" sampled: functions foo, bar and qux, main, and random()
// of the C library. Usage: ftest ROUNDS [CPUIDS]; it executes so many CPUID instructions beside.
#include <stdio.h>
#include <stdlib.h>

static volatile unsigned long sum;

__attribute__((noinline)) static void foo(int n) { for (int i = 0; i < n; i++) sum += i; }

__attribute__((noinline)) static void bar(int n) { for (int i = 0; i < n; i++) sum ^= i; }

__attribute__((noinline)) static void qux(int n) { for (int i = 0; i < n; i++) sum -= i; }

int main(int argc, char **argv) {
    long rounds = argc > 1 ? atol(argv[1]) : 1, cpuids = argc > 2 ? atol(argv[2]) : 0;
    for (long round = 0; round < rounds; round++) {
        for (int i = 0; i < 8; i++) sum += random() & 0xff;
        foo(40);
        bar(32);
        qux(100);
    }
    for (long i = 0; i < cpuids; i++) {
        unsigned a = 0, b, c = 0, d;
        __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    }
    printf("%lu\n", sum);
    return 0;
}
