/* A B+tree on Farbank's memory servers (`farbank memory-server`), over TCP.
 *
 * Link with libfarbank_tree_c.so, or with libfarbank_tree_c.a and -lpthread -ldl -lm. docs/tree.md describes the servers and what
 * the tree guarantees.
 *
 * All functions may be called by all threads at the same time, with the same tree. Functions that return `int` return
 * FARBANK_TREE_OK, FARBANK_TREE_NO or FARBANK_TREE_ERROR. After FARBANK_TREE_ERROR, and after a null pointer from
 * farbank_tree_connect, farbank_tree_error() describes the error of this thread. A write that ends with an error may have taken
 * effect, may still do so, or may never do so.
 */

#ifndef FARBANK_TREE_H
#define FARBANK_TREE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    FARBANK_TREE_OK = 0,
    /* The key is absent, or the condition of a write was not met. Nothing was changed. */
    FARBANK_TREE_NO = 1,
    FARBANK_TREE_ERROR = -1
};

/* A connection to a tree. */
typedef struct farbank_tree farbank_tree;

/* Bytes of a key or a value. A null `data` with 0 bytes is the empty value. */
struct farbank_bytes {
    const void* data;
    size_t bytes;
};

/* Connects to the memory servers at `servers`, a list of addresses in the order of their numbers,
 * each "IP:PORT", or "shm:FILE" for a server of this host whose memory is in FILE. `key` is the
 * content of the cluster's key file. A server that does not answer for `timeout_ms` is an error. Returns null after an error. */
farbank_tree* farbank_tree_connect(const char* servers, struct farbank_bytes key, uint32_t timeout_ms);

/* Ends the connection. No other function may be running or may be called later with `tree`. Null has no effect. */
void farbank_tree_close(farbank_tree* tree);

/* Creates an empty tree with keys to `key_bytes_max` (8 to 1024) and values to `value_bytes_max` (1 to 131056) bytes. */
int farbank_tree_create(farbank_tree* tree, size_t key_bytes_max, size_t value_bytes_max);

/* Sets `*value` to the value of `key`; farbank_tree_free frees it. FARBANK_TREE_NO: the key is absent. */
int farbank_tree_get(farbank_tree* tree, struct farbank_bytes key, struct farbank_bytes* value);

/* Sets the value of `key`. */
int farbank_tree_put(farbank_tree* tree, struct farbank_bytes key, struct farbank_bytes value);

/* Removes `key`. FARBANK_TREE_NO: the key is absent. */
int farbank_tree_delete(farbank_tree* tree, struct farbank_bytes key);

/* Sets the value of `key` to `*new_value` if it is `*expected`, in one step for all clients. Null stands for the absence of the key:
 * null `expected` inserts only a new key, null `new_value` removes the key. FARBANK_TREE_NO: the value differs. Then, if `found` is
 * not null, `*found` is the value, which farbank_tree_free frees, and `*is_present` tells whether there is one. */
int farbank_tree_compare_and_swap(farbank_tree* tree, struct farbank_bytes key, const struct farbank_bytes* expected,
                                  const struct farbank_bytes* new_value, struct farbank_bytes* found, int* is_present);

/* Called by farbank_tree_scan for each key. Returns 0 to continue, or another number to end the scan. */
typedef int (*farbank_tree_each)(void* to, struct farbank_bytes key, struct farbank_bytes value);

/* Calls `each` for at most `count` keys from `*from` to before `*to`, in ascending order, or in descending order if `is_reverse`
 * is not 0. A null bound is none. Not atomic: a key that is written meanwhile may or may not be found. */
int farbank_tree_scan(farbank_tree* tree, const struct farbank_bytes* from, const struct farbank_bytes* before, int is_reverse,
                      size_t count, farbank_tree_each each, void* to);

/* Frees bytes that another function returned, and sets them to null and 0. */
void farbank_tree_free(struct farbank_bytes* bytes);

/* Returns the description of the last error of this thread, which ends with a zero byte. It is valid until the thread's next
 * call. */
const char* farbank_tree_error(void);

#ifdef __cplusplus
}
#endif

#endif
