// The interface of indexes that PiBench measures, with the layout of its commit a78171a: a class with virtual
// functions, and one function that creates an object of it. Keys and values are byte arrays of a given length.
#ifndef FARBANK_TREE_API_HPP
#define FARBANK_TREE_API_HPP

#include <cstddef>
#include <string>

// Options for creating an index.
struct tree_options_t {
    size_t key_size = 8;
    size_t value_size = 8;
    std::string pool_path;   // path of the pool; empty: the library may choose
    size_t pool_size = 0;    // bytes; 0: the library may choose
    size_t num_threads = 1;  // number of calling threads
};

// An index. Several threads may call any function concurrently.
class tree_api {
  public:
    virtual ~tree_api() {}
    // Copies a key's value to `value_out`. Returns whether the key is present.
    virtual bool find(const char* key, size_t key_size, char* value_out) = 0;
    // Inserts a key that is absent. Returns whether it was absent.
    virtual bool insert(const char* key, size_t key_size, const char* value, size_t value_size) = 0;
    // Replaces the value of a key. Returns whether the key was present.
    virtual bool update(const char* key, size_t key_size, const char* value, size_t value_size) = 0;
    // Removes a key. Returns whether it was present.
    virtual bool remove(const char* key, size_t key_size) = 0;
    // Finds up to `count` keys in order, starting at `key`. Sets `values_out` to the keys and values found. Returns
    // their number.
    virtual int scan(const char* key, size_t key_size, int count, char*& values_out) = 0;
};

// The function that a library exports.
extern "C" tree_api* create_tree(const tree_options_t& options);

#endif
