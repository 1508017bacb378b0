/* notify.c -- the protocol of sd_notify(3): one datagram to the socket named by NOTIFY_SOCKET,
 * which a service manager listens at. A name that begins with @ is not in the file system. Whether
 * anybody reads it changes nothing here. */
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "cli/cli.h"

void cli_notify(const char *fmt, ...)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char text[512];
    va_list ap;
    size_t n = path ? strlen(path) : 0;
    if (!n || n >= sizeof a.sun_path || (*path != '/' && *path != '@'))
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    memcpy(a.sun_path, path, n);
    if (*path == '@')
        a.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    sendto(fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&a,
           (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
    close(fd);
}
