/* Preloaded into a test process (LD_PRELOAD): counts the calls that touch files below one folder, records them, and
   lets one of them fail as a broken disk would, write less than asked, or kill the process.

   Python sets it up through ctypes: faults_watch(folder, record), faults_arm(call, mode), faults_calls(). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FILES = 1024, SHORT_WRITE = -1, KILL = -2 };
static char folder[2048], paths[FILES][2048], last_call[32];
static int record = -1, mode = 0;
static long calls = 0, failing = 0;

void faults_watch(const char *name, int log) {
    strncpy(folder, name, sizeof folder - 1);
    record = log;
    failing = 0;
}
void faults_arm(long call, int how) { failing = call, mode = how, calls = 0; }
long faults_calls(void) { return calls; }
const char *faults_last(void) { return last_call; }

static int watched(const char *path) {
    return folder[0] && path && !strncmp(path, folder, strlen(folder));
}
static const char *of(int fd) { return fd >= 0 && fd < FILES ? paths[fd] : ""; }
static void at(int dir, const char *name, char *into) {
    if (name[0] == '/' || dir == AT_FDCWD || !watched(of(dir)))
        snprintf(into, 2048, "%s", name);
    else
        snprintf(into, 2048, "%s/%s", of(dir), name);
}
/* Counts a call. 0: go on; 1: fail with errno; SHORT_WRITE: write less. */
static int fault(const char *name) {
    calls++;
    if (calls != failing) return 0;
    snprintf(last_call, sizeof last_call, "%s", name);
    if (mode == KILL) kill(getpid(), SIGKILL);
    if (mode == SHORT_WRITE) return SHORT_WRITE;
    errno = mode;
    return 1;
}
static void note(const char *name, const char *one, const char *other, long number, const void *data, size_t size) {
    if (record < 0) return;
    int error = errno;
    dprintf(record, "%s\t%s\t%s\t%ld\t", name, one, other, number);
    for (size_t i = 0; i < size; i++) dprintf(record, "%02x", ((const unsigned char *)data)[i]);
    syscall(SYS_write, record, "\n", 1);
    errno = error;
}
#define REAL(type, name) static type (*real)() = NULL; if (!real) real = (type (*)())dlsym(RTLD_NEXT, #name)

static int opened(int fd, const char *path, int flags) {
    if (fd >= 0 && fd < FILES) snprintf(paths[fd], sizeof paths[fd], "%s", path);
    if (fd >= 0 && flags & (O_CREAT | O_TRUNC)) note("create", path, "", flags & O_TRUNC ? 1 : 0, "", 0);
    return fd;
}
#define OPEN(name)                                                                        \
    int name(const char *path, int flags, ...) {                                          \
        va_list more; va_start(more, flags); int bits = va_arg(more, int); va_end(more);  \
        REAL(int, name);                                                                  \
        if (!watched(path)) return real(path, flags, bits);                               \
        if (fault("open") == 1) return -1;                                                \
        return opened(real(path, flags, bits), path, flags);                              \
    }
#define OPENAT(name)                                                                      \
    int name(int dir, const char *path, int flags, ...) {                                 \
        va_list more; va_start(more, flags); int bits = va_arg(more, int); va_end(more);  \
        REAL(int, name);                                                                  \
        char whole[2048]; at(dir, path, whole);                                           \
        if (!watched(whole)) return real(dir, path, flags, bits);                         \
        if (fault("open") == 1) return -1;                                                \
        return opened(real(dir, path, flags, bits), whole, flags);                        \
    }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, write);
    if (!watched(of(fd))) return real(fd, data, size);
    int how = fault("write");
    if (how == 1) return -1;
    if (how == SHORT_WRITE && size > 1) size = size / 2;
    long place = lseek(fd, 0, SEEK_CUR);
    ssize_t done = real(fd, data, size);
    if (done > 0) note("write", of(fd), "", place, data, done);
    return done;
}
ssize_t writev(int fd, const struct iovec *parts, int count) { /* as several writes: the caller goes on after a short one */
    REAL(ssize_t, writev);
    if (!watched(of(fd))) return real(fd, parts, count);
    for (int i = 0; i < count; i++)
        if (parts[i].iov_len) return write(fd, parts[i].iov_base, parts[i].iov_len);
    return 0;
}
ssize_t read(int fd, void *data, size_t size) {
    REAL(ssize_t, read);
    if (watched(of(fd)) && fault("read") == 1) return -1;
    return real(fd, data, size);
}
#define ON_FILE(name, label)                                                              \
    int name(int fd) {                                                                    \
        REAL(int, name);                                                                  \
        if (!watched(of(fd))) return real(fd);                                            \
        if (fault(label) == 1) return -1;                                                 \
        note("sync", of(fd), "", 0, "", 0);                                               \
        return real(fd);                                                                  \
    }
ON_FILE(fsync, "fsync") ON_FILE(fdatasync, "fdatasync")
int close(int fd) {
    REAL(int, close);
    int ours = watched(of(fd)), failed = ours && fault("close") == 1, error = errno;
    if (fd >= 0 && fd < FILES) paths[fd][0] = 0;
    int done = real(fd);
    if (failed) errno = error;
    return failed ? -1 : done;
}
#define TRUNCATE(name)                                                                    \
    int name(int fd, off_t size) {                                                        \
        REAL(int, name);                                                                  \
        if (!watched(of(fd))) return real(fd, size);                                      \
        if (fault("ftruncate") == 1) return -1;                                           \
        note("truncate", of(fd), "", size, "", 0);                                        \
        return real(fd, size);                                                            \
    }
TRUNCATE(ftruncate) TRUNCATE(ftruncate64)
int rename(const char *from, const char *to) {
    REAL(int, rename);
    if (!watched(to)) return real(from, to);
    if (fault("rename") == 1) return -1;
    int done = real(from, to);
    if (!done) note("rename", from, to, 0, "", 0);
    return done;
}
#define ON_PATH(name, label)                                                              \
    int name(const char *path) {                                                          \
        REAL(int, name);                                                                  \
        if (!watched(path)) return real(path);                                            \
        if (fault(label) == 1) return -1;                                                 \
        int done = real(path);                                                            \
        if (!done) note("remove", path, "", 0, "", 0);                                    \
        return done;                                                                      \
    }
ON_PATH(unlink, "unlink") ON_PATH(rmdir, "rmdir")
int unlinkat(int dir, const char *name, int flags) {
    REAL(int, unlinkat);
    char whole[2048]; at(dir, name, whole);
    if (!watched(whole)) return real(dir, name, flags);
    if (fault("unlink") == 1) return -1;
    int done = real(dir, name, flags);
    if (!done) note("remove", whole, "", 0, "", 0);
    return done;
}
int mkdir(const char *path, mode_t bits) {
    REAL(int, mkdir);
    if (!watched(path)) return real(path, bits);
    if (fault("mkdir") == 1) return -1;
    int done = real(path, bits);
    if (!done) note("mkdir", path, "", 0, "", 0);
    return done;
}
