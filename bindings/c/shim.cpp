// The contest's class DB as the table of functions that the judge calls, and main.

#include <new>

#include "db.hpp"
#include "farbank_judge.h"

namespace {

Slice slice(const char* bytes, size_t count) {
    return Slice(const_cast<char*>(bytes), count);
}

// What comes out of an engine as an exception is an error of the engine's.
template <typename F>
int guarded(F f) {
    try {
        return f();
    } catch (const std::bad_alloc&) {
        return FARBANK_OUT_OF_MEMORY;
    } catch (...) {
        return FARBANK_IO_ERROR;
    }
}

void* open(const char* path) {
    DB* db = nullptr;
    int status = guarded([&] { return int(DB::CreateOrOpen(path, &db)); });
    return status == FARBANK_OK ? db : nullptr;
}

void close(void* engine) {
    delete static_cast<DB*>(engine);
}

int set(void* engine, const char* key, const char* value, size_t bytes) {
    return guarded([&] { return int(static_cast<DB*>(engine)->Set(slice(key, 16), slice(value, bytes))); });
}

int get(void* engine, const char* key, farbank_sink sink, void* to) {
    return guarded([&] {
        // Engines of the contest reuse the string they are given, as its judge let them.
        static thread_local std::string value;
        Status status = static_cast<DB*>(engine)->Get(slice(key, 16), &value);
        if (status == Ok) {
            sink(to, value.data(), value.size());
        }
        return int(status);
    });
}

}  // namespace

int main(int argc, char** argv) {
    const farbank_engine engine = {open, close, set, get};
    return farbank_judge_main(argc, argv, &engine);
}
