/* Stands between a runtime and the C library's memory (LD_PRELOAD): every allocation has a zone before and behind it that
 * holds one byte, REDZONE_BYTE, and so do fresh and freed memory. Two runs with different bytes differ in their outputs
 * where an operator reads memory that is not its own. An operator that writes there damages a zone, which ends the process
 * with exit code 99 when the memory is freed, or at the next removal of the folder /check-redzones, which checks the newest
 * blocks, or /check-all-redzones. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void __libc_free(void *);

/* NEWEST: so many blocks are checked after each run, the newest first. Zones of blocks that a load makes are narrow, because
 * there are many. */
enum { NARROW = 256, WIDE = 4096, DAMAGED = 99, NEWEST = 400 };
/* Fresh memory beyond this comes from the kernel as zeros, and filling it would cost the memory that it does not use. */
static const size_t FILLED_MAX = 1 << 20;
static const uint64_t MAGIC = 0x7265647a6f6e6573;

struct header {
    uint64_t magic;
    size_t size, zone;
    void *base;
    struct header *next, *previous;
};

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static struct header *all;
static int byte = -1;
static size_t zone = NARROW;

static int filler(void) {
    if (byte < 0) {
        const char *set = getenv("REDZONE_BYTE");
        byte = set ? (int)strtol(set, NULL, 0) & 255 : 0x55;
    }
    return byte;
}

/* Before a block: a zone, the header, and a short zone. */
static struct header *header_of(void *block) {
    return (struct header *)((char *)block - NARROW - sizeof(struct header));
}

static void damaged(const char *where) {
    static const char text[] = "damaged memory ";
    (void)!write(2, text, sizeof text - 1);
    (void)!write(2, where, strlen(where));
    (void)!write(2, "\n", 1);
    _exit(DAMAGED);
}

static void check_zone(const unsigned char *from, size_t length, const char *where) {
    if (from[0] != filler() || memcmp(from, from + 1, length - 1)) damaged(where);
}

static void check(struct header *header) {
    if (header->magic != MAGIC) damaged("in a header");
    unsigned char *block = (unsigned char *)(header + 1) + NARROW;
    check_zone(block - NARROW, NARROW, "before a block");
    check_zone((unsigned char *)header - header->zone, header->zone, "before a block");
    check_zone(block + header->size, header->zone, "behind a block");
}

static void *allocate(size_t alignment, size_t size, int zeroed) {
    if (alignment < 16) alignment = 16;
    size_t around = zone, more = sizeof(struct header) + NARROW + 2 * around + alignment;
    if (size > PTRDIFF_MAX - more) {
        errno = ENOMEM;
        return NULL;
    }
    char *base = __libc_malloc(size + more);
    if (!base) return NULL;
    uintptr_t first = (uintptr_t)base + around + sizeof(struct header) + NARROW;
    char *block = (char *)((first + alignment - 1) / alignment * alignment);
    struct header *header = header_of(block);
    *header = (struct header){MAGIC, size, around, base, NULL, NULL};
    memset((char *)header - around, filler(), around);
    memset(block - NARROW, filler(), NARROW);
    memset(block + size, filler(), around);
    if (zeroed) memset(block, 0, size);
    else memset(block, filler(), size < FILLED_MAX ? size : FILLED_MAX);
    pthread_mutex_lock(&turn);
    header->next = all;
    if (all) all->previous = header;
    all = header;
    pthread_mutex_unlock(&turn);
    return block;
}

void free(void *block) {
    if (!block) return;
    struct header *header = header_of(block);
    check(header);
    pthread_mutex_lock(&turn);
    if (header->previous) header->previous->next = header->next;
    else all = header->next;
    if (header->next) header->next->previous = header->previous;
    pthread_mutex_unlock(&turn);
    header->magic = 0;
    memset(block, filler(), header->size < FILLED_MAX ? header->size : FILLED_MAX);
    __libc_free(header->base);
}

void *malloc(size_t size) { return allocate(16, size, 0); }

void *calloc(size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return allocate(16, bytes, 1);
}

void *realloc(void *block, size_t size) {
    if (!block) return malloc(size);
    if (!size) {
        free(block);
        return NULL;
    }
    void *fresh = malloc(size);
    if (!fresh) return NULL;
    size_t old = header_of(block)->size;
    memcpy(fresh, block, old < size ? old : size);
    free(block);
    return fresh;
}

void *memalign(size_t alignment, size_t size) { return allocate(alignment, size, 0); }
void *aligned_alloc(size_t alignment, size_t size) { return allocate(alignment, size, 0); }
void *valloc(size_t size) { return allocate(4096, size, 0); }

int posix_memalign(void **block, size_t alignment, size_t size) {
    void *made = allocate(alignment, size, 0);
    if (!made) return ENOMEM;
    *block = made;
    return 0;
}

size_t malloc_usable_size(void *block) { return block ? header_of(block)->size : 0; }

/* A library that prefers its own symbols (TBB loads one) would mix this memory with the C library's. */
void *dlopen(const char *path, int flags) {
    static void *(*real)(const char *, int);
    if (!real) real = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    return real(path, flags & ~RTLD_DEEPBIND);
}

int rmdir(const char *path) {
    if (!strcmp(path, "/wide-redzones")) zone = WIDE;
    if (!strcmp(path, "/narrow-redzones")) zone = NARROW;
    int is_all = !strcmp(path, "/check-all-redzones");
    if (!is_all && strcmp(path, "/check-redzones")) return (int)syscall(SYS_rmdir, path);
    size_t left = is_all ? SIZE_MAX : NEWEST;
    pthread_mutex_lock(&turn);
    for (struct header *header = all; header && left; header = header->next, left--) check(header);
    pthread_mutex_unlock(&turn);
    errno = ENOENT;
    return -1;
}
