/* The judge, for an engine behind C functions. shim.cpp fills the table from the contest's class DB. */

#ifndef FARBANK_JUDGE_H
#define FARBANK_JUDGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Results of set and get: the contest's Status. */
enum { FARBANK_OK = 0, FARBANK_NOT_FOUND = 1, FARBANK_IO_ERROR = 2, FARBANK_OUT_OF_MEMORY = 3 };

/* Callback that receives the value found by a get. */
typedef void (*farbank_sink)(void* to, const char* value, size_t bytes);

/* An engine. Keys have 16 bytes. Several threads call `set` and `get` concurrently. */
struct farbank_engine {
    /* Opens the engine in the file `path`, or creates one. Returns null on failure. */
    void* (*open)(const char* path);
    void (*close)(void* engine);
    int (*set)(void* engine, const char* key, const char* value, size_t bytes);
    /* Calls `sink` exactly once if it returns FARBANK_OK. */
    int (*get)(void* engine, const char* key, farbank_sink sink, void* to);
};

/* Runs the judge with the given command line. Returns the exit code for main. */
int farbank_judge_main(int argc, const char* const* argv, const struct farbank_engine* engine);

#ifdef __cplusplus
}
#endif

#endif
