/* Counts to 1,000 with several threads, by compare-and-swap, and prints the keys of the tree.
 *
 *     cc -I include example/counter.c -o counter -lfarbank_tree_c -lpthread
 *     counter 127.0.0.1:7411,127.0.0.1:7412 key
 */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "farbank_tree.h"

enum { THREADS = 4, STEPS = 250, KEY_BYTES_MAX = 4096 };

static farbank_tree* tree;

static struct farbank_bytes text(const char* bytes) {
    struct farbank_bytes result = {bytes, strlen(bytes)};
    return result;
}

static void fail(const char* what) {
    fprintf(stderr, "%s: %s\n", what, farbank_tree_error());
    exit(1);
}

/* Adds 1 to the counter, which is a decimal number. */
static void step(void) {
    struct farbank_bytes seen = {NULL, 0};
    int is_present = 0;
    for (;;) {
        char digits[32] = "0", next[32];
        if (is_present) {
            memcpy(digits, seen.data, seen.bytes);
            digits[seen.bytes] = 0;
        }
        snprintf(next, sizeof next, "%d", atoi(digits) + 1);
        struct farbank_bytes new_value = text(next), found;
        int done = farbank_tree_compare_and_swap(tree, text("counter"), is_present ? &seen : NULL, &new_value, &found, &is_present);
        farbank_tree_free(&seen);
        if (done == FARBANK_TREE_OK) return;
        if (done == FARBANK_TREE_ERROR) fail("compare and swap");
        seen = found;
    }
}

static void* count(void* unused) {
    for (int n = 0; n < STEPS; n++) step();
    return unused;
}

static int print(void* keys, struct farbank_bytes key, struct farbank_bytes value) {
    printf("%.*s = %.*s\n", (int)key.bytes, (const char*)key.data, (int)value.bytes, (const char*)value.data);
    ++*(int*)keys;
    return 0;
}

int main(int argc, char** argv) {
    char secret[KEY_BYTES_MAX];
    FILE* file = argc == 3 ? fopen(argv[2], "rb") : NULL;
    if (file == NULL) {
        fprintf(stderr, "usage: counter IP:PORT,... KEY_FILE\n");
        return 2;
    }
    struct farbank_bytes key = {secret, fread(secret, 1, sizeof secret, file)};
    fclose(file);

    tree = farbank_tree_connect(argv[1], key, 5000);
    if (tree == NULL) fail("connect");
    if (farbank_tree_create(tree, 64, 1024) != FARBANK_TREE_OK) fail("create");
    pthread_t threads[THREADS];
    for (int n = 0; n < THREADS; n++) pthread_create(&threads[n], NULL, count, NULL);
    for (int n = 0; n < THREADS; n++) pthread_join(threads[n], NULL);

    struct farbank_bytes value;
    if (farbank_tree_put(tree, text("empty"), text("")) != FARBANK_TREE_OK) fail("put");
    if (farbank_tree_get(tree, text("empty"), &value) != FARBANK_TREE_OK || value.bytes != 0) fail("get");
    if (farbank_tree_get(tree, text("none"), &value) != FARBANK_TREE_NO) fail("get of an absent key");
    if (farbank_tree_delete(tree, text("none")) != FARBANK_TREE_NO) fail("delete of an absent key");
    int keys = 0;
    if (farbank_tree_scan(tree, NULL, NULL, 1, 100, print, &keys) != FARBANK_TREE_OK) fail("scan");
    if (farbank_tree_delete(tree, text("empty")) != FARBANK_TREE_OK) fail("delete");
    farbank_tree_close(tree);
    return keys == 2 ? 0 : 1;
}
