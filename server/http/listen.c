/* listen.c -- the socket: an address of this machine or of its network, or a name in the file
 * system. An address that others can reach needs a key. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/http/auth.h"
#include "server/http/http.h"
#include "server/parts.h"

int http_fail(struct pith_error *err, const char *what, const char *why)
{
    *err = (struct pith_error){.code = PITH_IO};
    snprintf(err->msg, sizeof err->msg, "%s: %s", what, why);
    return -1;
}

static int listen_unix(struct http *h, const char *path, struct pith_error *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat sb;
    if (strlen(path) >= sizeof a.sun_path)
        return http_fail(err, path, "too long for a socket's name");
    strcpy(a.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && !connect(fd, (struct sockaddr *)&a, sizeof a)) {
        close(fd);
        return http_fail(err, path, "another server listens there");
    }
    if (!lstat(path, &sb) && S_ISSOCK(sb.st_mode))
        unlink(path); /* of a server that was killed */
    mode_t old = umask(0077);
    int bound = fd >= 0 ? bind(fd, (struct sockaddr *)&a, sizeof a) : -1;
    umask(old);
    if (bound || listen(fd, 128)) {
        http_fail(err, path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return -1;
    }
    snprintf(h->url, sizeof h->url, "unix:%s", path);
    h->local = 1;
    return fd;
}

static int is_local_address(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static int listen_tcp(struct http *h, const struct server_params *p, struct pith_error *err)
{
    struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM}, *found = NULL;
    struct sockaddr_storage bound;
    socklen_t n = sizeof bound;
    char port[16], where[300], name[128];
    int one = 1, fd = -1;
    snprintf(port, sizeof port, "%d", p->port);
    snprintf(where, sizeof where, "%s port %d", p->host, p->port);
    int why = getaddrinfo(p->host, port, &hints, &found);
    if (why)
        return http_fail(err, where, gai_strerror(why));
    h->local = is_local_address(found->ai_addr);
    if (!h->local && !tenants_have_keys(server_tenants(h->s))) {
        freeaddrinfo(found);
        http_fail(err, where,
                  "everybody on the network could use this address; give an --api-key, or listen "
                  "on 127.0.0.1");
        err->code = PITH_RANGE;
        return -1;
    }
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) || listen(fd, 1024) ||
        getsockname(fd, (struct sockaddr *)&bound, &n) ||
        getnameinfo((struct sockaddr *)&bound, n, name, sizeof name, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV)) {
        http_fail(err, where, strerror(errno));
        if (fd >= 0)
            close(fd);
        fd = -1;
    } else {
        snprintf(h->url, sizeof h->url,
                 found->ai_family == AF_INET6 ? "%s://[%s]:%s" : "%s://%s:%s",
                 p->tls_cert ? "https" : "http", name, port);
    }
    freeaddrinfo(found);
    return fd;
}

int http_listen(struct http *h, const struct server_params *p, struct pith_error *err)
{
    return p->unix_path ? listen_unix(h, p->unix_path, err) : listen_tcp(h, p, err);
}
