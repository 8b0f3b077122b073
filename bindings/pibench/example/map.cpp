// A minimal plug-in: an ordered std::map behind a lock, in DRAM. It supports keys and values of any length.
//
//   g++ -std=c++17 -O2 -shared -fPIC -Iinclude -o map.so example/map.cpp
//   farbank bench index --plugin ./map.so --target clht
#include <map>
#include <mutex>
#include <string>

#include "tree_api.hpp"

namespace {

class Map : public tree_api {
  public:
    bool find(const char* key, size_t key_size, char* value_out) override {
        std::lock_guard<std::mutex> held(lock);
        auto at = map.find({key, key_size});
        if (at == map.end()) return false;
        at->second.copy(value_out, at->second.size());
        return true;
    }
    bool insert(const char* key, size_t key_size, const char* value, size_t value_size) override {
        std::lock_guard<std::mutex> held(lock);
        return map.emplace(std::string(key, key_size), std::string(value, value_size)).second;
    }
    bool update(const char* key, size_t key_size, const char* value, size_t value_size) override {
        std::lock_guard<std::mutex> held(lock);
        auto at = map.find({key, key_size});
        if (at == map.end()) return false;
        at->second.assign(value, value_size);
        return true;
    }
    bool remove(const char* key, size_t key_size) override {
        std::lock_guard<std::mutex> held(lock);
        return map.erase({key, key_size}) == 1;
    }
    int scan(const char* key, size_t key_size, int count, char*& values_out) override {
        // Valid until the same thread scans again.
        static thread_local std::string found;
        found.clear();
        std::lock_guard<std::mutex> held(lock);
        int n = 0;
        for (auto at = map.lower_bound({key, key_size}); at != map.end() && n < count; ++at, ++n)
            found.append(at->first).append(at->second);
        values_out = &found[0];
        return n;
    }

  private:
    std::mutex lock;
    std::map<std::string, std::string> map;
};

}  // namespace

extern "C" tree_api* create_tree(const tree_options_t&) { return new Map; }
