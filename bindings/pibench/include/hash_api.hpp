// The interface of hash tables in the study of Hu et al. (PVLDB 14, 2021), with the layout of its repository
// HashEvaluation at commit 7bdfd95. It is PiBench's interface (tree_api.hpp) with thread numbers. Only the order and
// the types of the functions are taken from there.
#ifndef FARBANK_HASH_API_HPP
#define FARBANK_HASH_API_HPP

#include <cstddef>
#include <string>

// Options for creating a table, the same as PiBench's.
struct hashtable_options_t {
    size_t key_size = 8;
    size_t value_size = 8;
    std::string pool_path;
    size_t pool_size = 0;
    size_t num_threads = 1;
};

struct hash_Utilization {
    float load_factor;
    float utilization;
};

// A table. `thread` is the caller's number, from 0. Several threads may call any function concurrently.
class hash_api {
  public:
    // Called once by each thread, with its number, before any other call.
    virtual void thread_ini(int) {}
    virtual void forsoft() {}
    virtual std::string hash_name() { return ""; }
    virtual ~hash_api() {}
    virtual hash_Utilization utilization() { return {}; }
    virtual bool recovery() { return false; }
    virtual void vmem_print_api() {}
    virtual bool find(const char* key, size_t key_size, char* value_out, unsigned thread) = 0;
    // `count` is the number of inserts that the thread has done before.
    virtual bool insert(const char* key, size_t key_size, const char* value, size_t value_size, unsigned thread, unsigned count) = 0;
    // Like insert, but returns whether this insert made the table grow.
    virtual bool insertResize(const char*, size_t, const char*, size_t, unsigned, unsigned) { return false; }
    virtual bool update(const char* key, size_t key_size, const char* value, size_t value_size) = 0;
    virtual bool remove(const char* key, size_t key_size, unsigned thread) = 0;
    virtual int scan(const char* key, size_t key_size, int count, char*& values_out) = 0;
    virtual int scan(const char*, size_t, int, char*) { return 0; }
};

// The function that a library exports. `slots` is the initial number of slots, `threads` the number of calling threads.
extern "C" hash_api* create_hashtable(const hashtable_options_t& options, unsigned slots, unsigned threads);

#endif
