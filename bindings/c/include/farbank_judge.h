/* The judge, for an engine behind C functions. shim.cpp fills the table from the contest's class DB. */

#ifndef FARBANK_JUDGE_H
#define FARBANK_JUDGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What set and get answer: the contest's Status. */
enum { FARBANK_OK = 0, FARBANK_NOT_FOUND = 1, FARBANK_IO_ERROR = 2, FARBANK_OUT_OF_MEMORY = 3 };

/* Takes the value a get has found. */
typedef void (*farbank_sink)(void* to, const char* value, size_t bytes);

/* An engine. Keys have 16 bytes. All but open and close are called by several threads at once. */
struct farbank_engine {
    /* Opens the engine in the file `path`, or makes one; null if that cannot be. */
    void* (*open)(const char* path);
    void (*close)(void* engine);
    int (*set)(void* engine, const char* key, const char* value, size_t bytes);
    /* On FARBANK_OK, `sink` has been called once. */
    int (*get)(void* engine, const char* key, farbank_sink sink, void* to);
};

/* Judges the engine as the arguments say; what main should return. */
int farbank_judge_main(int argc, const char* const* argv, const struct farbank_engine* engine);

#ifdef __cplusplus
}
#endif

#endif
