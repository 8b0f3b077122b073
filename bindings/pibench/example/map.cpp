// The smallest plug-in: a std::unordered_map behind a lock, in DRAM.
//
//   g++ -std=c++17 -O2 -shared -fPIC -Iinclude -o map.so example/map.cpp
//   farbank bench index --plugin ./map.so --target clht
#include <cstdint>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "tree_api.hpp"

namespace {

uint64_t word(const char* bytes) {
    uint64_t word;
    std::memcpy(&word, bytes, sizeof word);
    return word;
}

class Map : public tree_api {
  public:
    bool find(const char* key, size_t, char* value_out) override {
        std::lock_guard<std::mutex> held(lock);
        auto at = map.find(word(key));
        if (at == map.end()) return false;
        std::memcpy(value_out, &at->second, sizeof at->second);
        return true;
    }
    bool insert(const char* key, size_t, const char* value, size_t) override {
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
    bool remove(const char* key, size_t) override {
        std::lock_guard<std::mutex> held(lock);
        return map.erase(word(key)) == 1;
    }
    int scan(const char*, size_t, int, char*&) override { return 0; }

  private:
    std::mutex lock;
    std::unordered_map<uint64_t, uint64_t> map;
};

}  // namespace

extern "C" tree_api* create_tree(const tree_options_t& options) {
    // This one knows no other keys and values.
    if (options.key_size != 8 || options.value_size != 8) return nullptr;
    return new Map;
}
