#!/usr/bin/env bash
# lazy.sh LIBRARY SONAME PREFIX -- writes C that stands for the functions PREFIX* that the static
# LIBRARY calls: each opens SONAME when it is called first. So a program that can do TLS starts
# without a TLS library, and runs where there is none. x86-64 only.
set -euo pipefail
library=$1 soname=$2 prefix=$3
names=$(nm -u "$library" 2>/dev/null | grep -oE " U $prefix\w+" | awk '{print $2}' | sort -u)
[ -n "$names" ] || { echo "lazy.sh: $library calls no $prefix*" >&2; exit 1; }
cat <<EOF
/* Written by lazy.sh: $prefix* of $soname, opened at the first call. */
#include <dlfcn.h>
#include <stdlib.h>
static const char *const names[];
void *lazy_slot[];
static int absent(void) { return -1; }
static const char *absent_text(void) { return "$soname is not installed"; }
__attribute__((used, visibility("hidden"))) void *lazy_find(unsigned long i)
{
    void *library = dlopen("$soname", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    void *f = library ? dlsym(library, names[i]) : NULL;
    if (!f)
        f = __builtin_strstr(names[i], "strerror") ? (void *)absent_text : (void *)absent;
    __atomic_store_n(&lazy_slot[i], f, __ATOMIC_RELEASE);
    return f;
}
EOF
# A library that is opened sets itself up, so these two have nothing to do; gnutls_malloc is a
# variable.
own=" ${prefix}global_init ${prefix}global_deinit ${prefix}malloc "
n=0 table= stubs=
for name in $names; do
    case "$own" in *" $name "*) continue ;; esac
    table+="\"$name\", "
    stubs+=".globl $name\\n$name: mov lazy_slot+$((8 * n))(%rip), %r11\\n"
    stubs+="test %r11, %r11\\njz 1f\\njmp *%r11\\n1: push \$$n\\njmp lazy_enter\\n"
    n=$((n + 1))
done
cat <<EOF
int ${prefix}global_init(void);
int ${prefix}global_init(void) { return 0; }
void ${prefix}global_deinit(void);
void ${prefix}global_deinit(void) {}
void *(*${prefix}malloc)(size_t) = malloc;
static const char *const names[$n] = {$table};
__attribute__((visibility("hidden"))) void *lazy_slot[$n];
__asm__(".text\n"
        "lazy_enter: push %rdi\npush %rsi\npush %rdx\npush %rcx\n"
        "push %r8\npush %r9\npush %rax\nsub \$8, %rsp\n"
        "mov 64(%rsp), %rdi\ncall lazy_find\nmov %rax, %r11\nadd \$8, %rsp\n"
        "pop %rax\npop %r9\npop %r8\npop %rcx\npop %rdx\npop %rsi\npop %rdi\n"
        "add \$8, %rsp\njmp *%r11\n"
        "$stubs");
EOF
