/* Preloaded into every program of twice.py's second root: the clock is 400 days ahead, and there is one more core. */
#define _GNU_SOURCE
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define AHEAD_S (400 * 86400)

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += AHEAD_S;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec read;
    clock_gettime(CLOCK_REALTIME, &read);
    now->tv_sec = read.tv_sec;
    now->tv_usec = read.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec read;
    clock_gettime(CLOCK_REALTIME, &read);
    if (now)
        *now = read.tv_sec;
    return read.tv_sec;
}

int sched_getaffinity(pid_t process, size_t size, cpu_set_t *cores) {
    memset(cores, 0, size);
    for (long core = 0; core <= sysconf(_SC_NPROCESSORS_ONLN); core++)
        CPU_SET_S(core, size, cores);
    return 0;
}
