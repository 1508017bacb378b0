/* old.c -- a runtime that lacks nearly all of it. */
int aclInit(const char *config);
__attribute__((visibility("default"))) int aclInit(const char *config)
{
    (void)config;
    return 0;
}
