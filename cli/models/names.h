/* names.h -- what models are called: references to where they come from, and what a file's name
 * says of it.
 *
 *     hf:OWNER/REPO[:WANT]      a repository of the hub; WANT is a quantization (Q4_K_M) or one of
 *         its files
 *     ollama:[SPACE/]NAME[:TAG] a model of Ollama's registry; TAG is "latest" without one
 *     https://HOST/PATH.gguf    a file; http:// for this machine alone
 *
 * Everything else is a path or the name of a model that is here (local.h). */
#ifndef PITH_CLI_NAMES_H
#define PITH_CLI_NAMES_H

#include <stddef.h>
#include <stdint.h>

enum ref_kind { REF_NONE, REF_HF, REF_OLLAMA, REF_URL };
struct model_ref {
    enum ref_kind kind;
    char repo[256]; /* "owner/repo"; "name" or "space/name" */
    char rev[128];  /* of the hub: "main" */
    char want[512]; /* quantization or file, "" = the usual one; tag */
    char url[2048];
};
/* Reads a reference; kind is REF_NONE when it is none. Returns an exit code, the message is out.
 * An address of a file on the hub is a reference to its repository. */
int ref_parse(const char *text, struct model_ref *r);
/* Where the hub is ($HF_ENDPOINT) and Ollama's registry ($PITH_OLLAMA_REGISTRY), without a slash at
 * the end. */
void ref_hub(char *out, size_t cap);
void ref_registry(char *out, size_t cap);
/* Writes the path of a file of the reference below the models' folder: "hf/owner/repo/file.gguf".
 * 0: it is too long. */
int ref_path(const struct model_ref *r, const char *file, char *out, size_t cap);
/* What the path of ref_path stands for: "hf:owner/repo", "ollama:name:tag", "https://host/path"; ""
 * for none. */
void ref_source(const char *path, char *out, size_t cap);
/* "hf:owner/repo", "ollama:name:tag" or the address. */
void ref_name(const struct model_ref *r, char *out, size_t cap);

/* Is the host of this address this machine? */
int url_is_loopback(const char *url);
/* A relative path without "..", empty parts, backslashes and control characters: it stays in its
 * folder. */
int path_is_plain(const char *path);
int ends_with(const char *text, const char *end);
/* Bytes as people read them: "1.5 GiB". */
void say_bytes(int64_t bytes, char *out, size_t cap);

/* "x-00002-of-00005.gguf": the length of "x", *part and *n_parts; 1 of 1 for others, which end in
 * .gguf. 0: it is no such name. */
size_t file_stem(const char *path, int *part, int *n_parts);
/* The quantization a file's name ends in ("Q4_K_M", "UD-Q2_K_XL", "F16"), "" when there is none. */
void file_quant(const char *path, char *out, size_t cap);

struct pick_file {
    const char *path; /* in its repository */
    int64_t bytes;
};
/* The file that `want` means among all of a repository: a file's name, else a quantization, else
 * ("") the first there is of a list of usual ones. Of split ones the first part. -1: none, or
 * several; the message, which names what there is, is out. */
int file_pick(const char *source, const char *want, const struct pick_file *files, size_t n);
/* The same without a message. */
int file_pick_quiet(const char *want, const struct pick_file *files, size_t n);

#endif
