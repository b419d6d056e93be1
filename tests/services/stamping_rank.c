/* A rank that does nothing but leave evidence: when it began, and, until it is killed, when it was last alive.

   usage: stamping_rank -I STAMPS: as the agent starts a rank; STAMPS stands where its worker does.
   STAMPS holds lines of two numbers, both CLOCK_BOOTTIME in nanoseconds; how many ranks there were stands before them. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define LINES 4096

static int64_t now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_BOOTTIME, &at);
    return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}

int main(int argc, char **argv)
{
    int64_t began = now();
    int file = argc == 3 ? open(argv[2], O_RDWR) : -1;
    _Atomic int64_t *stamps = mmap(NULL, 8 + 16 * LINES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || stamps == MAP_FAILED)
        return 1;
    _Atomic int64_t *line = stamps + 1 + 2 * (atomic_fetch_add(stamps, 1) % LINES);
    line[1] = began; /* killed between two lines, it leaves nothing that cannot be */
    line[0] = began;
    for (;;) {
        line[1] = now();
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
}
