// The interface of indexes that PiBench measures, with the layout its commit a78171a has: a class of virtual functions,
// and one function by which a library makes an object of it. Keys and values are so many bytes at an address.
#ifndef FARBANK_TREE_API_HPP
#define FARBANK_TREE_API_HPP

#include <cstddef>
#include <string>

// What an index is told when it is made.
struct tree_options_t {
    size_t key_size = 8;
    size_t value_size = 8;
    std::string pool_path;   // where its pool is to be; empty: where it likes
    size_t pool_size = 0;    // bytes; 0: as many as it likes
    size_t num_threads = 1;  // that will call
};

// An index. Every function may be called by several threads at once.
class tree_api {
  public:
    virtual ~tree_api() {}
    // Copies the value under a key to `value_out`; whether there is one.
    virtual bool find(const char* key, size_t key_size, char* value_out) = 0;
    // Stores a value under a key that has none; whether it had none.
    virtual bool insert(const char* key, size_t key_size, const char* value, size_t value_size) = 0;
    // Replaces the value under a key; whether there was one.
    virtual bool update(const char* key, size_t key_size, const char* value, size_t value_size) = 0;
    // Removes a key; whether it was there.
    virtual bool remove(const char* key, size_t key_size) = 0;
    // Finds up to `count` keys in order from `key` on, and says where they and their values are; how many.
    virtual int scan(const char* key, size_t key_size, int count, char*& values_out) = 0;
};

// What a library exports.
extern "C" tree_api* create_tree(const tree_options_t& options);

#endif
