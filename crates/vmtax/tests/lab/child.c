/* A process with a child: its pages are copied when they are written to, and its tables change all the time. It leaves another one, which never ends, and
 * a file, which must not be there when it starts. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 512 };

__attribute__((noinline)) void touch(volatile char *memory) {
    for (int page = 0; page < PAGES; page++) memory[page * PAGE] = 1;
}

int main(void) {
    if (open("/tmp/left", O_CREAT | O_EXCL | O_WRONLY, 0600) < 0) return 2;
    char *memory = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    touch(memory);
    pid_t child = fork();
    touch(memory);
    if (child == 0) _exit(0);
    int status;
    if (waitpid(child, &status, 0) != child) return 1;
    munmap(memory, PAGES * PAGE);
    if (fork() == 0) for (;;) ;
    return status != 0;
}
