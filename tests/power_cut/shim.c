/* Stands between the daemon and the C library (LD_PRELOAD) for the files below one folder, FAULT_FOLDER.
 *
 * With FAULT_LOG every call that changes a file or a name is recorded there, in the order in which it took effect, and
 * fsync and fdatasync are recorded instead of done: what a power cut leaves is worked out from the record
 * (tests/it/feature_faults/disk.rs). sync_file_range does nothing at all.
 *
 * With FAULT_BUDGET, a file of eight bytes, no more than so many bytes can be added to files: then writes are cut short
 * and end with ENOSPC, as on a full disk. Whoever runs the test changes the number meanwhile.
 *
 * With FAULT_CLOCK, a file of eight bytes, the wall clock is ahead by so many seconds. It may change meanwhile, too.
 * With FAULT_UPTIME, likewise, the machine had been running for so many seconds when the program was started.
 *
 * A call that changes files and is not known here aborts the program: a model that misses something would prove nothing. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum kind { OPEN = 1, WRITE, LENGTH, SYNC, SYNC_FOLDER, RENAME, UNLINK, MKDIR, RMDIR, LINK };

struct record {
    uint32_t kind, path_length, other_length, truncates;
    uint64_t inode;
    int64_t offset;
    uint64_t data_length;
};

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static const char *folder;
static size_t folder_length;
static int log_fd = -1;
static int64_t *budget, *ahead, *uptime, running;

#define REAL(name, type, ...)                                        \
    static type (*real)(__VA_ARGS__);                                \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name);

static void stop(const char *what, const char *path) {
    dprintf(2, "the shim does not know %s of %s\n", what, path);
    abort();
}

/* The number in a file, which others may change. */
static int64_t *shared_number(const char *path) {
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    void *shared = fd < 0 ? MAP_FAILED : (void *)syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) stop("how to map", path);
    return shared;
}

__attribute__((constructor)) static void begin(void) {
    const char *clock = getenv("FAULT_CLOCK");
    if (clock) ahead = shared_number(clock);
    const char *boot = getenv("FAULT_UPTIME");
    struct timespec now;
    if (boot && !syscall(SYS_clock_gettime, CLOCK_BOOTTIME, &now)) running = now.tv_sec, uptime = shared_number(boot);
    folder = getenv("FAULT_FOLDER");
    if (!folder) return;
    folder_length = strlen(folder);
    const char *log = getenv("FAULT_LOG"), *bytes = getenv("FAULT_BUDGET");
    if (log) {
        log_fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (log_fd < 0) stop("how to open", log);
    }
    if (bytes) budget = shared_number(bytes);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int done = syscall(SYS_clock_gettime, clock, time);
    if (!done && ahead && clock == CLOCK_REALTIME) time->tv_sec += *ahead;
    if (!done && uptime && clock == CLOCK_BOOTTIME) time->tv_sec += *uptime - running;
    return done;
}

/* Whether it is the folder, or in it. */
static int is_inside(const char *path) {
    return folder && !strncmp(path, folder, folder_length) && (path[folder_length] == '/' || !path[folder_length]);
}

/* The absolute path of `path` as seen from `at`; whether it is inside. */
static int resolve(int at, const char *path, char *out) {
    if (!folder || !path) return 0;
    if (path[0] == '/') {
        snprintf(out, PATH_MAX, "%s", path);
    } else {
        char link[64], base[PATH_MAX];
        if (at == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
        else snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        ssize_t length = readlink(link, base, sizeof base - 1);
        if (length < 0) return 0;
        base[length] = 0;
        snprintf(out, PATH_MAX, "%.2000s/%.2000s", base, path);
    }
    return is_inside(out);
}

/* The status of an open file or folder that is inside. */
static int known(int fd, char *path, struct stat *status) {
    char link[64];
    if (!folder || fd < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int before = errno;
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    int found = 0;
    if (length > 0) {
        path[length] = 0;
        found = is_inside(path) && !fstat(fd, status) && (S_ISREG(status->st_mode) || S_ISDIR(status->st_mode));
    }
    errno = before;
    return found;
}

static void tell(enum kind kind, uint64_t inode, int64_t offset, int truncates, const char *path, const char *other,
                 const void *data, size_t length) {
    if (log_fd < 0) return;
    struct record record = { kind, path ? strlen(path) : 0, other ? strlen(other) : 0, truncates, inode, offset, length };
    struct iovec parts[4] = { { &record, sizeof record },
                              { (void *)path, record.path_length },
                              { (void *)other, record.other_length },
                              { (void *)data, length } };
    size_t whole = sizeof record + record.path_length + record.other_length + length;
    if (syscall(SYS_writev, log_fd, parts, 4) != (long)whole) stop("how to write the log", path ? path : "");
}

static int opened(int at, const char *path, int flags, mode_t mode) {
    char whole[PATH_MAX];
    if (!resolve(at, path, whole) || (flags & O_ACCMODE) == O_RDONLY || (flags & O_DIRECTORY))
        return syscall(SYS_openat, at, path, flags | O_LARGEFILE, mode);
    pthread_mutex_lock(&turn);
    struct stat before;
    int was = !stat(whole, &before);
    int fd = syscall(SYS_openat, at, path, flags | O_LARGEFILE, mode);
    struct stat status;
    if (fd >= 0 && !fstat(fd, &status) && S_ISREG(status.st_mode)) {
        int truncates = (flags & O_TRUNC) != 0;
        if (budget && was && truncates) *budget += before.st_size;
        tell(OPEN, status.st_ino, 0, truncates, whole, NULL, NULL, 0);
    }
    pthread_mutex_unlock(&turn);
    return fd;
}

static mode_t mode_of(int flags, va_list list) {
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
}

#define OPENS(name, at, ...)                             \
    int name(__VA_ARGS__, int flags, ...) {              \
        va_list list;                                    \
        va_start(list, flags);                           \
        mode_t mode = mode_of(flags, list);              \
        va_end(list);                                    \
        return opened(at, path, flags, mode);            \
    }
OPENS(open, AT_FDCWD, const char *path)
OPENS(open64, AT_FDCWD, const char *path)
OPENS(openat, at, int at, const char *path)
OPENS(openat64, at, int at, const char *path)

/* How much of `length` bytes at `offset` fits, taken from what is left. */
static size_t allowed(const struct stat *status, int64_t offset, size_t length) {
    if (!budget) return length;
    int64_t grows = offset + (int64_t)length - status->st_size;
    if (grows <= 0) return length;
    int64_t given = grows < *budget ? grows : *budget < 0 ? 0 : *budget;
    if ((int64_t)length - (grows - given) <= 0) return 0;
    *budget -= given;
    return length - (grows - given);
}

/* offset < 0: where the file stands. */
static ssize_t put(int fd, const void *data, size_t length, int64_t offset) {
    char path[PATH_MAX];
    struct stat status;
    if (fd == log_fd || fd <= 2 || !known(fd, path, &status))
        return offset < 0 ? syscall(SYS_write, fd, data, length) : syscall(SYS_pwrite64, fd, data, length, offset);
    pthread_mutex_lock(&turn);
    fstat(fd, &status);
    int64_t at = offset;
    if (at < 0) at = fcntl(fd, F_GETFL) & O_APPEND ? status.st_size : lseek(fd, 0, SEEK_CUR);
    size_t fits = allowed(&status, at, length);
    ssize_t done = -1;
    if (!fits && length) {
        errno = ENOSPC;
    } else {
        done = offset < 0 ? syscall(SYS_write, fd, data, fits) : syscall(SYS_pwrite64, fd, data, fits, offset);
        if (done > 0) tell(WRITE, status.st_ino, at, 0, NULL, NULL, data, done);
    }
    int error = errno;
    pthread_mutex_unlock(&turn);
    errno = error;
    return done;
}

ssize_t write(int fd, const void *data, size_t length) { return put(fd, data, length, -1); }
ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) { return put(fd, data, length, offset); }
ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) { return put(fd, data, length, offset); }

static int set_length(int fd, int64_t length) {
    char path[PATH_MAX];
    struct stat status;
    if (!known(fd, path, &status)) return syscall(SYS_ftruncate, fd, length);
    pthread_mutex_lock(&turn);
    fstat(fd, &status);
    int done = syscall(SYS_ftruncate, fd, length);
    if (!done) {
        if (budget && length < status.st_size) *budget += status.st_size - length;
        tell(LENGTH, status.st_ino, length, 0, NULL, NULL, NULL, 0);
    }
    int error = errno;
    pthread_mutex_unlock(&turn);
    errno = error;
    return done;
}

int ftruncate(int fd, off_t length) { return set_length(fd, length); }
int ftruncate64(int fd, off64_t length) { return set_length(fd, length); }

static int synced(int fd, long call) {
    char path[PATH_MAX];
    struct stat status;
    if (log_fd < 0 || !known(fd, path, &status)) return syscall(call, fd);
    pthread_mutex_lock(&turn);
    tell(S_ISDIR(status.st_mode) ? SYNC_FOLDER : SYNC, status.st_ino, 0, 0, path, NULL, NULL, 0);
    pthread_mutex_unlock(&turn);
    return 0;
}

int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

/* It promises nothing, and is not there on every system: whoever meets that takes fsync instead, which would. */
int sync_file_range(int fd, off64_t offset, off64_t length, unsigned flags) {
    char path[PATH_MAX];
    struct stat status;
    if (log_fd >= 0 && known(fd, path, &status)) return 0;
    return syscall(SYS_sync_file_range, fd, offset, length, flags);
}

int rename(const char *from, const char *to) {
    char old[PATH_MAX], new[PATH_MAX];
    REAL("rename", int, const char *, const char *)
    int inside = resolve(AT_FDCWD, from, old);
    if (inside != resolve(AT_FDCWD, to, new)) stop("a rename across its border", from);
    if (!inside) return real(from, to);
    pthread_mutex_lock(&turn);
    struct stat status;
    int replaces = !lstat(new, &status) && S_ISREG(status.st_mode) && status.st_nlink == 1;
    int done = real(from, to);
    if (!done) {
        if (budget && replaces) *budget += status.st_size;
        tell(RENAME, 0, 0, 0, old, new, NULL, 0);
    }
    pthread_mutex_unlock(&turn);
    return done;
}

static int removed(int at, const char *path, int flags) {
    char whole[PATH_MAX];
    if (!resolve(at, path, whole)) return syscall(SYS_unlinkat, at, path, flags);
    pthread_mutex_lock(&turn);
    struct stat status;
    int is_file = !lstat(whole, &status) && S_ISREG(status.st_mode) && status.st_nlink == 1;
    int done = syscall(SYS_unlinkat, at, path, flags);
    if (!done) {
        if (budget && is_file) *budget += status.st_size;
        tell(flags & AT_REMOVEDIR ? RMDIR : UNLINK, 0, 0, 0, whole, NULL, NULL, 0);
    }
    int error = errno;
    pthread_mutex_unlock(&turn);
    errno = error;
    return done;
}

int unlink(const char *path) { return removed(AT_FDCWD, path, 0); }
int unlinkat(int at, const char *path, int flags) { return removed(at, path, flags); }
int rmdir(const char *path) { return removed(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdir(const char *path, mode_t mode) {
    char whole[PATH_MAX];
    if (!resolve(AT_FDCWD, path, whole)) return syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    pthread_mutex_lock(&turn);
    int done = syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    if (!done) tell(MKDIR, 0, 0, 0, whole, NULL, NULL, 0);
    int error = errno;
    pthread_mutex_unlock(&turn);
    errno = error;
    return done;
}

static int linked(int at, const char *from, int there, const char *to, int flags) {
    char old[PATH_MAX], new[PATH_MAX];
    int inside = resolve(at, from, old);
    if (inside != resolve(there, to, new)) stop("a link across its border", to);
    if (!inside) return syscall(SYS_linkat, at, from, there, to, flags);
    pthread_mutex_lock(&turn);
    struct stat status;
    int done = syscall(SYS_linkat, at, from, there, to, flags);
    int error = errno;
    if (!done && !lstat(new, &status)) tell(LINK, status.st_ino, 0, 0, new, NULL, NULL, 0);
    pthread_mutex_unlock(&turn);
    errno = error;
    return done;
}

int link(const char *from, const char *to) { return linked(AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int at, const char *from, int there, const char *to, int flags) { return linked(at, from, there, to, flags); }

/* What is not modelled must not happen. */
static void refuse_file(int fd, const char *what) {
    char path[PATH_MAX];
    struct stat status;
    if (known(fd, path, &status)) stop(what, path);
}

static int is_known(int fd) {
    char path[PATH_MAX];
    struct stat status;
    return known(fd, path, &status);
}

static void refuse_path(int at, const char *path, const char *what) {
    char whole[PATH_MAX];
    if (resolve(at, path, whole)) stop(what, whole);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    refuse_file(fd, "writev");
    return syscall(SYS_writev, fd, parts, count);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) {
    refuse_file(fd, "pwritev");
    REAL("pwritev64", ssize_t, int, const struct iovec *, int, off64_t)
    return real(fd, parts, count, offset);
}

ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t length, unsigned flags) {
    if (is_known(out)) return errno = ENOSYS, -1; /* the caller copies by read and write */
    return syscall(SYS_copy_file_range, in, from, out, to, length, flags);
}

ssize_t sendfile64(int out, int in, off64_t *offset, size_t length) {
    if (is_known(out)) return errno = ENOSYS, -1;
    return syscall(SYS_sendfile, out, in, offset, length);
}

int fallocate64(int fd, int mode, off64_t offset, off64_t length) {
    refuse_file(fd, "fallocate");
    return syscall(SYS_fallocate, fd, mode, offset, length);
}

int posix_fallocate64(int fd, off64_t offset, off64_t length) {
    refuse_file(fd, "posix_fallocate");
    REAL("posix_fallocate64", int, int, off64_t, off64_t)
    return real(fd, offset, length);
}

static void *mapped(void *at, size_t length, int access, int flags, int fd, off64_t offset) {
    if (!(flags & MAP_ANONYMOUS) && flags & MAP_SHARED && access & PROT_WRITE) refuse_file(fd, "mmap");
    return (void *)syscall(SYS_mmap, at, length, access, flags, fd, offset);
}

void *mmap(void *at, size_t length, int access, int flags, int fd, off_t offset) {
    return mapped(at, length, access, flags, fd, offset);
}

void *mmap64(void *at, size_t length, int access, int flags, int fd, off64_t offset) {
    return mapped(at, length, access, flags, fd, offset);
}

int truncate64(const char *path, off64_t length) {
    refuse_path(AT_FDCWD, path, "truncate");
    return syscall(SYS_truncate, path, length);
}

int symlink(const char *target, const char *path) {
    refuse_path(AT_FDCWD, path, "symlink");
    return syscall(SYS_symlinkat, target, AT_FDCWD, path);
}

int renameat(int at, const char *from, int there, const char *to) {
    refuse_path(there, to, "renameat");
    return syscall(SYS_renameat2, at, from, there, to, 0);
}

int renameat2(int at, const char *from, int there, const char *to, unsigned flags) {
    refuse_path(there, to, "renameat2");
    return syscall(SYS_renameat2, at, from, there, to, flags);
}

int mkdirat(int at, const char *path, mode_t mode) {
    refuse_path(at, path, "mkdirat");
    return syscall(SYS_mkdirat, at, path, mode);
}
