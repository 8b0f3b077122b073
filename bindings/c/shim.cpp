// Adapts the contest's class DB to the judge's table of functions, and defines main.

#include <new>

#include "db.hpp"
#include "farbank_judge.h"

namespace {

Slice slice(const char* bytes, size_t count) {
    return Slice(const_cast<char*>(bytes), count);
}

// Converts an engine's exception to an error code.
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
        // The string is reused from call to call, as in the contest's judge. Engines rely on that.
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
