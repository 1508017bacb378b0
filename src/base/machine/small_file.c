/* small_file.c -- files of /proc and /sys: read at once, without memory of our own, because who
 * asks how much memory there is asks so. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/machine/file.h"

/* Without stdio: this may run before the allocator is set. */
int file_read_small(const char *path, char *buf, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    size_t n = 0;
    ssize_t got;
    do {
        got = read(fd, buf + n, cap - 1 - n);
        if (got > 0)
            n += (size_t)got;
    } while ((got > 0 && n < cap - 1) || (got < 0 && errno == EINTR));
    close(fd);
    buf[n] = 0;
    return n > 0;
}
