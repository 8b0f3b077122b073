// A minimal plug-in with the study's interface: a std::unordered_map of words behind a lock, in DRAM.
//
//   g++ -std=c++17 -O2 -shared -fPIC -Iinclude -o table.so example/table.cpp
//   farbank bench index --plugin ./table.so --target clht
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "hash_api.hpp"

namespace {

uint64_t word(const char* at) {
    uint64_t word;
    std::memcpy(&word, at, sizeof word);
    return word;
}

// The number that this thread was given.
thread_local int told = -1;

class Table : public hash_api {
  public:
    void thread_ini(int thread) override { told = thread; }
    std::string hash_name() override { return "unordered_map"; }
    bool find(const char* key, size_t, char* value_out, unsigned thread) override {
        check(thread);
        std::lock_guard<std::mutex> held(lock);
        auto at = map.find(word(key));
        if (at == map.end()) return false;
        std::memcpy(value_out, &at->second, sizeof at->second);
        return true;
    }
    bool insert(const char* key, size_t, const char* value, size_t, unsigned thread, unsigned) override {
        check(thread);
        std::lock_guard<std::mutex> held(lock);
        return map.emplace(word(key), word(value)).second;
    }
    bool update(const char* key, size_t, const char* value, size_t) override {
        std::lock_guard<std::mutex> held(lock);
        auto at = map.find(word(key));
        if (at == map.end()) return false;
        at->second = word(value);
        return true;
    }
    bool remove(const char* key, size_t, unsigned thread) override {
        check(thread);
        std::lock_guard<std::mutex> held(lock);
        return map.erase(word(key)) == 1;
    }
    int scan(const char*, size_t, int, char*&) override { return 0; }

  private:
    // Aborts if the caller passes a number that this thread was not given.
    static void check(unsigned thread) {
        if (int(thread) != told) std::abort();
    }

    std::mutex lock;
    std::unordered_map<uint64_t, uint64_t> map;
};

}  // namespace

extern "C" hash_api* create_hashtable(const hashtable_options_t&, unsigned, unsigned) { return new Table; }
