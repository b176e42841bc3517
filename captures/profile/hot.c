// What input/perf.data was recorded of: two threads of known shares, a fork, an exec, the kernel under it.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile unsigned sink;

__attribute__((noinline)) unsigned load(unsigned *w, size_t n) {
    unsigned s = 0;
    for (size_t i = 0; i < n; i += 16) s += w[(i * 2654435761u) % n];
    return s;
}

__attribute__((noinline)) unsigned spin(unsigned n) {
    unsigned s = 1;
    for (unsigned i = 0; i < n; i++) s = s * 1664525 + 1013904223;
    return s;
}

static void *worker(void *memory) {
    for (int i = 0; i < 10; i++) sink += load(memory, 1 << 22) + spin(4000000);
    return NULL;
}

int main(int argc, char **argv) {
    unsigned *memory = calloc(1 << 22, 4);
    pthread_t thread;
    pthread_create(&thread, NULL, worker, memory);
    if (fork() == 0) {
        worker(memory);
        if (argc == 1) execl(argv[0], "hot", "again", NULL);
        _exit(0);
    }
    pthread_join(thread, NULL);
    wait(NULL);
    return (int)(sink & 1);
}
