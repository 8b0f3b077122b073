// The interface of hash tables that the study (Hu et al., PVLDB 14, 2021) measures, with the layout that its repository HashEvaluation has
// at commit 7bdfd95: PiBench's (tree_api.hpp), with numbers of threads. Only the order and the types of the functions are its.
#ifndef FARBANK_HASH_API_HPP
#define FARBANK_HASH_API_HPP

#include <cstddef>
#include <string>

// What a table is told when it is made: the same as PiBench's.
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

// A table. `thread` is the caller's number, from 0; every function may be called by several threads at once.
class hash_api {
  public:
    // Called once by each thread, with its number, before it calls anything else.
    virtual void thread_ini(int) {}
    virtual void forsoft() {}
    virtual std::string hash_name() { return ""; }
    virtual ~hash_api() {}
    virtual hash_Utilization utilization() { return {}; }
    virtual bool recovery() { return false; }
    virtual void vmem_print_api() {}
    virtual bool find(const char* key, size_t key_size, char* value_out, unsigned thread) = 0;
    // `count` is how many inserts the thread has done before.
    virtual bool insert(const char* key, size_t key_size, const char* value, size_t value_size, unsigned thread, unsigned count) = 0;
    // As insert; whether this one had the table grow.
    virtual bool insertResize(const char*, size_t, const char*, size_t, unsigned, unsigned) { return false; }
    virtual bool update(const char* key, size_t key_size, const char* value, size_t value_size) = 0;
    virtual bool remove(const char* key, size_t key_size, unsigned thread) = 0;
    virtual int scan(const char* key, size_t key_size, int count, char*& values_out) = 0;
    virtual int scan(const char*, size_t, int, char*) { return 0; }
};

// What a library exports: slots at first, and threads that will call.
extern "C" hash_api* create_hashtable(const hashtable_options_t& options, unsigned slots, unsigned threads);

#endif
