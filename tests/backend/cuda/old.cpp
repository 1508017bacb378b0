// old.cpp -- a driver's library without most of what is needed.
extern "C" __attribute__((visibility("default"))) int cuInit(unsigned)
{
    return 0;
}
